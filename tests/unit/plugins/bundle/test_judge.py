# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What preflight says of a bundle: whole, of this release, and all that it lacks for the hosts, each host by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.contents import Contents
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.lock import Target
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._judge.preflight import PreflightJudge
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.bundle import Needs, checked, judge
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.host import packages_label
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.in_cluster import Bundled
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.in_cluster import judge as judge_cluster
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import together
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._subjects.rows import checks
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._wheel import build_wheel

from unit.fakes.plugins.bundle.bundles import archive, files, lock, summed
from unit.fakes.plugins.preflight.cluster_facts import ASKED, FACTS, NODE

RUNTIME = "runtime/gpushare_runtime-0.1.0-py3-none-any.whl"


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """One whose lock is that of the made-up bundles."""
    source = tmp_path / "files/gpushare_runtime"
    (source / "gpushare_runtime").mkdir(parents=True)
    (tmp_path / "galaxy.yml").write_text("version: 0.1.0\n")
    (source / "pyproject.toml").write_text('[project]\nname = "gpushare_runtime"\nversion = "0.1.0"\n')
    (source / "gpushare_runtime/__init__.py").write_text("")
    for name in ("requirements.txt", "requirements-kubectl.txt"):
        (source / name).write_text(lock())
    return tmp_path


def bundle(collection: Path, **more: bytes) -> Path:
    own = build_wheel(collection / "files/gpushare_runtime").content
    path = collection / "bundle.tar"
    path.write_bytes(archive(summed(files(**{RUNTIME.replace("/", "__"): own, **more}))))
    return path


def contents(collection: Path) -> Contents:
    found = checked(str(bundle(collection)), "", collection)
    assert isinstance(found, Contents)
    return found


def test_all_that_it_lacks_by_host(collection: Path) -> None:
    needs = [
        Needs("gpu1", Target("3.11", "x86_64"), "debian-12", "x86_64", driver=True),
        Needs("gpu7", Target("3.12", "x86_64"), "debian-13", "x86_64"),
        Needs("gpu8", None),
        Needs("gpu9", Target("3.11", "aarch64"), "debian-13", "aarch64", driver=True),
    ]
    assert [(one.host, one.check, one.found) for one in judge(contents(collection), needs, collection)] == [
        ("gpu7", "bundle", "no wheels for Python 3.12 on x86_64: fast 2.0"),
        ("gpu9", "bundle", "no packages for debian-13 on aarch64"),
    ]


@pytest.mark.parametrize(
    ("variables", "target", "driver"),
    [
        ({}, Target("3.11", "x86_64"), False),
        ({"gpushare_python": "python3.12"}, Target("3.12", "x86_64"), False),
        ({"gpushare_python": "python3.13"}, None, False),
        ({"gpushare_deploy_mode": "kubernetes"}, None, False),
        ({checks()["driver"]: {"due": True, "plan": {"packages": ["nvidia-driver"]}}}, Target("3.11", "x86_64"), True),
    ],
)
def test_the_needs_of_a_host_by_its_facts_and_variables(variables: dict[str, object], target: Target | None, driver: bool) -> None:
    pythons = [
        {"path": path, "version": version, "venv": True}
        for path, version in (("/usr/bin/python3.12", "3.12"), ("/usr/bin/python3", "3.11"))
    ]
    system = {"id": "rocky", "like": ["rhel"], "version": "9.5", "architecture": "x86_64"}
    known = {"hostvars": {"gpu1": {"found": {"facts": {"system": system, "pythons": pythons}}, **variables}}}
    found = PreflightJudge.__new__(PreflightJudge)._needs(known, "gpu1", {"result": "found"})
    assert found == Needs("gpu1", target, "rhel-9", "x86_64", driver)


def test_another_release_another_build_and_damage(collection: Path) -> None:
    found = checked(str(bundle(collection, **{RUNTIME.replace("/", "__"): b"other"})), "", collection)
    assert isinstance(found, Finding)
    assert found.found.startswith("another build of the runtime 0.1.0")
    (collection / "galaxy.yml").write_text("version: 0.2.0\n")
    found = checked(str(bundle(collection)), "", collection)
    assert isinstance(found, Finding)
    assert (found.host, found.check, found.found) == ("", "bundle", "release 0.1.0")
    assert found.expected.startswith("0.2.0, ")
    (collection / "cut.tar").write_bytes(bundle(collection).read_bytes()[:3000])
    found = checked(str(collection / "cut.tar"), "", collection)
    assert isinstance(found, Finding)
    assert found.cure.startswith("copy the file again")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gpushare_pip_extra_args": ["--index-url", "x"]}, "gpushare_bundle and gpushare_pip_extra_args"),
        ({"gpushare_proxy": "http://proxy:3128"}, "gpushare_bundle and gpushare_proxy"),
        ({"gpushare_package_folder": "/srv"}, "gpushare_bundle and gpushare_package_folder"),
        ({"gpushare_toolkit_repository": "https://mirror"}, "gpushare_bundle and gpushare_toolkit_repository"),
        ({"gpushare_toolkit_repository": "auto", "gpushare_driver_repository": "host", "gpushare_pip_extra_args": []}, ""),
        ({"gpushare_bundle": "", "gpushare_bundle_key": "/key"}, "gpushare_bundle_key without gpushare_bundle"),
    ],
)
def test_a_bundle_is_the_only_source(values: dict[str, object], words: str) -> None:
    found = together("gpu1", {"gpushare_bundle": "/srv/bundle.tar", **values})
    assert [one.found for one in found] == ([words] if words else [])


@pytest.mark.parametrize(
    ("name", "like", "version", "label"),
    [
        ("debian", [], "12", "debian-12"),
        ("rocky", ["rhel", "centos", "fedora"], "9.5", "rhel-9"),
        ("sles", ["suse"], "15.6", "suse-15"),
        ("ubuntu", ["debian"], "24.04", "ubuntu-24.04"),
        ("debian", [], "99", "debian-99"),
        ("arch", [], "", "arch-"),
    ],
)
def test_the_name_of_a_distribution_in_a_bundle(name: str, like: list[str], version: str, label: str) -> None:
    assert packages_label(name, like, version) == label


def test_nodes_get_images_where_their_host_is_in_the_inventory() -> None:
    bare = {**FACTS, "nodes": [{**NODE, "images": []}, {**NODE, "name": "gpu2", "images": [], "architecture": "arm64"}]}
    images = {"amd64": [ASKED.image, ASKED.scheduler_image], "arm64": [ASKED.image]}

    def found(nodes: list[str]) -> list[str]:
        return [one.found for one in judge_cluster(bare, replace(ASKED, bundle=Bundled(images, nodes)))]

    assert found(["gpu1", "gpu2"]) == [f"no image {ASKED.scheduler_image} on gpu2"]
    assert found(["gpu1"]) == [f"no image {ASKED.image} on gpu2", f"no image {ASKED.scheduler_image} on gpu2"]
    assert found([])[0] == f"no image {ASKED.image} on gpu1, gpu2"
