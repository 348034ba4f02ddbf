# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which container runtime a node gets, what it is built from, and the runc of docker's nodes."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import tomllib

from gpushare_lab import lifecycle, payload, state
from gpushare_lab.process import LabError
from gpushare_lab.runtimes import CONTAINERDS, CRIO, NAMES, WITH_DOCKER, Module, go_mod_requiring, parse_runtimes, socket_of
from gpushare_lab.state import Instance

ONE = Instance("one", "10.231.0.0/24", "1.36.3", True, {"gpu1": "16", "gpu2": "16"}, 1, {"gpu2": "docker"})
RUNC = Path(payload.__file__).parent.parent / "node/docker/usr/local/sbin/runc"


def test_each_node_is_named_once_with_a_runtime_that_there_is() -> None:
    assert parse_runtimes("gpu1=docker, gpu12=containerd-2.4") == {"gpu1": "docker", "gpu12": "containerd-2.4"}
    for text in ("docker", "gpu1=docker,gpu1=docker", "cp1=docker", "gpu1=", "gpu0=docker", ""):
        with pytest.raises(LabError, match="expected each NODE=RUNTIME once"):
            parse_runtimes(text)
    with pytest.raises(LabError, match=r'runtime "frakti": expected one of containerd-1\.6, .*docker'):
        parse_runtimes("gpu1=frakti")


def test_a_node_keeps_its_runtime_and_a_new_one_may_have_any() -> None:
    gpus = {"gpu1": "16", "gpu2": "16", "gpu3": "16"}

    def asked(**runtimes: str) -> dict[str, str]:
        return lifecycle._runtimes(ONE, lifecycle.Wishes(runtimes=runtimes), gpus)

    assert asked() == {"gpu2": "docker"}
    assert asked(gpu2="docker", gpu3="containerd-1.7") == {"gpu2": "docker", "gpu3": "containerd-1.7"}
    assert asked(gpu1="containerd-2.4") == {"gpu2": "docker"}
    for name, other in (("gpu1", "docker"), ("gpu2", "containerd-1.6")):
        with pytest.raises(LabError, match=f"{name} has .*, not {other}. Call `lab --name one down` first"):
            asked(**{name: other})
    with pytest.raises(LabError, match="runtimes for gpu4, but the GPU nodes are"):
        asked(gpu4="docker")
    assert lifecycle._runtimes(ONE, lifecycle.Wishes(), {"gpu1": "16"}) == {}
    assert lifecycle._runtimes(None, lifecycle.Wishes(runtimes={"gpu1": "docker"}), gpus) == {"gpu1": "docker"}


def test_an_instance_remembers_its_runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state.save(ONE)
    found = state.existing("one")
    assert found == ONE
    assert [(node.name, node.runtime) for node in found.nodes] == [
        ("cp1", "containerd-2.4"),
        ("gpu1", "containerd-2.4"),
        ("gpu2", "docker"),
    ]


def test_a_module_is_required_with_what_its_own_go_mod_replaces_by_versions() -> None:
    module = Module("example.com/x", "1.2.3", {"x": ""}, "example.com/x.Version")
    upstream = """module example.com/x
go 1.23.7
require k8s.io/kubelet v0.0.0
replace example.com/one => example.com/other v1.0.0
replace (
	google.golang.org/grpc/naming => google.golang.org/grpc v1.29.0
	k8s.io/api v0.29.0 => k8s.io/api v0.29.10
	k8s.io/local => ./local
)
"""
    assert go_mod_requiring(upstream, module).splitlines() == [
        "module gpushare-lab/programs",
        "go 1.23.7",
        "require example.com/x v1.2.3",
        "replace example.com/one => example.com/other v1.0.0",
        "replace google.golang.org/grpc/naming => google.golang.org/grpc v1.29.0",
        "replace k8s.io/api v0.29.0 => k8s.io/api v0.29.10",
    ]
    with pytest.raises(LabError, match=r"example\.com/x v1\.2\.3 has no go line"):
        go_mod_requiring("", module)


@pytest.mark.parametrize("nvidia", [False, True])
@pytest.mark.parametrize("runtime", NAMES)
def test_every_runtime_has_a_configuration_with_and_without_nvidia(runtime: str, nvidia: bool) -> None:
    files = payload._runtime_configuration(runtime, nvidia, "pause:1")
    config = tomllib.loads(files["etc/containerd/config.toml"])
    assert "pause:1" in files["etc/containerd/config.toml"]
    assert config["version"] == {"containerd-2.3": 4, "containerd-2.4": 4}.get(runtime, 2)
    decides = {**dict.fromkeys(WITH_DOCKER, "etc/docker/daemon.json"), CRIO: "etc/crio/crio.conf.d/10-lab.conf"}.get(
        runtime, "etc/containerd/config.toml"
    )
    assert ("nvidia-container-runtime" in files[decides]) == nvidia
    # Whoever talks to docker is told which image holds a pod's namespaces.
    asking = {"docker": "etc/default/cri-docker", "dockershim": "etc/default/kubelet"}.get(runtime)
    if asking:
        assert json.loads(files[decides]).get("default-runtime") == ("nvidia" if nvidia else None)
        assert "--pod-infra-container-image=pause:1" in files[asking]
    assert {path for path in files if path.startswith("etc/default/")} == ({asking} if asking else set())
    assert ("cri-dockerd" in socket_of(runtime)) == (runtime == "docker")
    assert ("dockershim" in socket_of(runtime)) == (runtime == "dockershim")
    assert set(CONTAINERDS) < set(NAMES)


@pytest.fixture
def runc(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Its functions, without becoming runc."""
    monkeypatch.setattr(sys, "argv", ["runc", "state", "x"])
    monkeypatch.setattr("os.execv", lambda *_words: None)
    module = ModuleType("runc")
    module.__dict__.update(runpy.run_path(str(RUNC)))
    return module


def test_the_runc_of_docker_raises_scores_of_new_containers_only(runc: ModuleType, tmp_path: Path) -> None:
    assert runc.bundle_of(["--root", "/x", "create", "--bundle", "/b", "id"]) == "/b"
    assert runc.bundle_of(["run", "--bundle=/b", "id"]) == "/b"
    assert runc.bundle_of(["exec", "id", "sh"]) == ""
    config = tmp_path / "config.json"
    for before, after in ((-998, 100), (500, 500)):
        config.write_text(json.dumps({"process": {"oomScoreAdj": before, "args": ["x"]}}))
        runc.adapt(config, 100)
        assert json.loads(config.read_text())["process"] == {"oomScoreAdj": after, "args": ["x"]}
    config.write_text(json.dumps({"linux": {"resources": {"hugepageLimits": [{"pageSize": "2MB", "limit": 0}], "cpu": {}}}}))
    runc.adapt(config, 100)
    assert json.loads(config.read_text()) == {"linux": {"resources": {"cpu": {}}}}
    config.write_text("{}")
    runc.adapt(config, 100)
    assert config.read_text() == "{}"
