# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The real kube-scheduler of each generation reads what we write for it, and rejects what is wrong in it.

Each runs as the candidate check runs it, but without a container: in a network namespace of its own, with the paths of the host.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import apply
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.candidate import CONTAINER

from generations.programs import NEWEST, VERSIONS, kube_scheduler
from generations.programs import release_of as minor
from unit.fakes.plugins.real_files.control_planes import found
from unit.fakes.plugins.real_files.corpus import Case, cases
from unit.fakes.plugins.scheduler.generations import CONFIG_PATH, MANIFEST_PATH, STATES
from unit.fakes.plugins.scheduler.manifests import TLS
from unit.fakes.plugins.scheduler.planned import EXPECTED, done, plan, state

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "x"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "c",
}


def release_of(name: str) -> str:
    return minor(STATES[name][0][MANIFEST_PATH].partition("kube-scheduler:v")[2])


OURS = [name for name in STATES if release_of(name) in VERSIONS]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.crt, tls.crt and tls.key."""
    folder = tmp_path_factory.mktemp("pki")
    key, certificate = folder / "tls.key", folder / "tls.crt"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x"]
    subprocess.run([*words, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    (folder / "ca.crt").write_bytes(certificate.read_bytes())
    return folder


def checked(folder: Path, pki: Path, release: str, orders: dict[str, Any]) -> str | None:
    """What the candidate check of the module says of these orders, with the real program in the place of its image."""
    kubeconfig = folder / "scheduler.conf"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    places = {"/etc/kubernetes/scheduler.conf": str(kubeconfig), TLS.tls_dir: str(pki)}

    def run(argv: list[str]) -> tuple[int, str, str]:
        mounts = dict(word.split(",src=")[1].split(",options")[0].split(",dst=")[::-1] for word in argv if word.startswith("--mount="))
        words = argv[argv.index(CONTAINER) + 1 :]
        assert words[0] == "kube-scheduler"
        for inside, outside in {**mounts, **places}.items():
            words = [word.replace(inside, outside) for word in words]
        candidate = folder / "gpushare-candidate.yaml"
        text = candidate.read_text()
        for inside, outside in places.items():
            text = text.replace(inside, outside)
        candidate.write_text(text)
        command = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", str(kube_scheduler(release)), *words[1:]]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, ended.stdout, ended.stderr

    tools = apply.Tools(Kubectl(lambda _argv, _data: (1, "", ""), "kubectl", "x"), run, "ctr", str(folder))
    return apply._check_candidate(tools, orders)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OURS)
def test_the_scheduler_of_that_generation_takes_what_we_write_for_it(tmp_path: Path, certificates: Path, name: str) -> None:
    before = state(name)
    orders = plan(before).for_module
    assert "gpushare-scheduler" in orders["scheduler"]["candidate"]
    assert checked(tmp_path, certificates, release_of(name), orders) is None
    # And what uninstall leaves.
    after = done(before, plan(before))
    gone = plan(after, "absent").for_module
    if gone["scheduler"]["candidate"] is not None:
        assert checked(tmp_path, certificates, release_of(name), gone) is None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OURS)
def test_it_rejects_a_mistake_in_the_same_place(tmp_path: Path, certificates: Path, name: str) -> None:
    before = state(name)
    orders = plan(before).for_module
    text = orders["scheduler"]["candidate"]
    # The certificates cannot be read: the extender is really taken from there.
    orders["scheduler"]["candidate"] = text.replace(f"{TLS.tls_dir}/tls.crt", "/nowhere/tls.crt")
    if "kind: KubeSchedulerConfiguration" in text:
        orders["scheduler"]["candidate"] = text.replace("urlPrefix", "urlPrefixx")
    with pytest.raises(apply.Rejected, match=r"urlPrefixx|/nowhere/tls\.crt"):
        checked(tmp_path, certificates, release_of(name), orders)


@pytest.mark.timeout(3600)
def test_a_configuration_of_a_later_generation_is_rejected_by_both(tmp_path: Path, certificates: Path) -> None:
    control_plane = state(f"kubeadm {NEWEST}")
    orders = plan(control_plane).for_module
    with pytest.raises(apply.Rejected, match=r"no kind|no matches|not registered|is registered"):
        checked(tmp_path, certificates, "1.22", orders)
    moved = replace(control_plane, files={MANIFEST_PATH: control_plane.files[MANIFEST_PATH], CONFIG_PATH: orders["scheduler"]["candidate"]})
    text = str(moved.files[MANIFEST_PATH]).replace(f"v{VERSIONS[NEWEST]}", "v1.22.17")
    with pytest.raises(ValueError, match=r"that kube-scheduler 1\.22 reads"):
        plan(replace(moved, files={**moved.files, MANIFEST_PATH: text}))


def nearest(release: str) -> str:
    """The release of ours that reads the same as this one: Policies and v1beta1, v1beta3, or v1."""
    number = int(release.partition(".")[2])
    return release if release in VERSIONS else "1.22" if number <= 22 else "1.24" if number <= 24 else NEWEST


def judged(case: Case) -> bool:
    """Whether Kubernetes' own scheduler reads this case's files, and not one with plugins of its own."""
    return not case.is_rejected() and ":v1." in (found(case).files[MANIFEST_PATH] or "")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", [case for case in cases("scheduler") if judged(case)], ids=lambda case: case.name)
def test_a_scheduler_takes_what_we_write_into_the_files_of_others(tmp_path: Path, certificates: Path, case: Case) -> None:
    before = found(case)
    release = minor((before.files[MANIFEST_PATH] or "").partition(":v")[2].split()[0].partition("@")[0])
    orders = plan(before).for_module
    assert "gpushare-scheduler" in orders["scheduler"]["candidate"]
    assert checked(tmp_path, certificates, nearest(release), orders) is None


def test_each_generation_with_a_program_of_its_own_is_among_the_found_states() -> None:
    assert {release_of(name) for name in OURS} == set(VERSIONS)
    assert {EXPECTED[name][1].rpartition("/")[2] for name in OURS} == {"v1", "v1beta1", "v1beta2", "v1beta3"}
