# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which device strategy a host gets: what it is capable of, what is asked, and what pods keep it from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import device_strategy
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_strategy import (
    CdiFacts,
    PlannedInstalls,
    StrategyChoice,
    ToolkitFacts,
    by_status,
    cdi,
    choose,
    obstacles,
    toolkit,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubernetes import KubeletFacts, Runtime
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.cri import CriError, RuntimeStatus
from hypothesis import given
from hypothesis import strategies as st

from unit.fakes.plugins.fake_root import FakeRoot

CAPABLE, UNABLE = CdiFacts("", ""), CdiFacts("", "containerd 1.6.20 does not take them")
OFF, NO_SPEC = CdiFacts("", "containerd 1.7.27 runs without it", off=True), CdiFacts("", "", spec="no CDI spec")
SPEC, RUNTIME = PlannedInstalls(spec=True), PlannedInstalls(runtime=True)
STRICT, DEFAULT = ToolkitFacts(environment=False, mounts=True), ToolkitFacts(environment=True, mounts=False)


def kubelet(version: str | None = "v1.36.3", runtime: str | None = "containerd", **gates: bool) -> KubeletFacts:
    endpoint = "unix:///run/containerd/containerd.sock"
    return KubeletFacts(True, True, version, "/usr/bin/kubelet", "n", False, "/var/lib/kubelet", None, endpoint, runtime, gates)


def running(name: str, version: str | None) -> tuple[Runtime, ...]:
    return (Runtime(name, f"/usr/bin/{name}", version, None, True), Runtime("other", None, "9.9.9", None, False))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(str(tmp_path))


def configured(monkeypatch: pytest.MonkeyPatch, config: Mapping[str, Any]) -> None:
    """What the running containerd says of itself."""
    monkeypatch.setattr(device_strategy.cri, "status", lambda _address: RuntimeStatus({}, dict(config)))


@pytest.mark.parametrize(
    ("version", "gates", "why"),
    [
        ("v1.36.3", {}, ""),
        ("v1.29.0", {}, ""),
        ("v1.29.0", {"DevicePluginCDIDevices": False}, "has its feature gate DevicePluginCDIDevices off"),
        ("v1.28.4", {"DevicePluginCDIDevices": True}, ""),
        ("v1.28.4", {}, "knows no CDI devices"),
        ("v1.27.9", {"DevicePluginCDIDevices": True}, "knows no CDI devices"),
        (None, {}, "does not print its version"),
    ],
)
def test_kubelets(host: Host, monkeypatch: pytest.MonkeyPatch, version: str | None, gates: dict[str, bool], why: str) -> None:
    configured(monkeypatch, {"enableCDI": True})
    found = cdi(host, kubelet(version, **gates), running("containerd", "2.1.4"))
    assert (why in found.kubelet, bool(why), found.runtime) == (True, bool(found.kubelet), "")


@pytest.mark.parametrize(
    ("name", "version", "config", "why"),
    [
        ("containerd", "2.1.4", {"enableCDI": True}, ""),
        ("containerd", "2.1.4", {}, ""),
        ("containerd", "2.1.4", {"enableCDI": False}, "runs without enable_cdi = true"),
        ("containerd", "1.7.27", {"enableCDI": True}, ""),
        ("containerd", "1.7.27", {}, "runs without enable_cdi = true"),
        ("containerd", "1.7.1", {"enableCDI": True}, "releases from 1.7.2 on do"),
        ("containerd", "1.6.20~ds1", {}, "containerd 1.6.20~ds1 does not take CDI devices"),
        ("containerd", None, {}, "version of the container runtime containerd is not known"),
        ("cri-o", "1.28.0", {}, ""),
        ("cri-o", "1.27.8", {}, "annotations only"),
        ("docker", "29.0.0", {}, "cri-dockerd up to 0.4.3"),
        ("unknown", "1.0", {}, "unknown is not known"),
    ],
)
def test_container_runtimes(
    host: Host, monkeypatch: pytest.MonkeyPatch, name: str, version: str | None, config: dict[str, Any], why: str
) -> None:
    configured(monkeypatch, config)
    found = cdi(host, kubelet(runtime=name), running(name, version))
    assert (why in found.runtime, bool(found.runtime)) == (True, bool(why))
    # From 2.0 on it is on by default, so that somebody has switched it off.
    assert found.off == (version == "1.7.27" and bool(why))


def test_a_containerd_that_does_not_answer(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_address: str) -> RuntimeStatus:
        raise CriError("no answer")

    monkeypatch.setattr(device_strategy.cri, "status", silent)
    for version in ("2.1.4", "1.7.27"):
        found = cdi(host, kubelet(), running("containerd", version))
        assert ("does not report whether CDI is on (no answer)" in found.runtime, found.off) == (True, False)


GPU = "GPU-0123abcd-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("/etc/cdi/other.yaml", f"kind: vendor.com/nic\ndevices: [{{name: {GPU}}}]", False),
        ("/etc/cdi/nvidia.yaml", 'kind: nvidia.com/gpu\ndevices: [{name: "0"}, {name: all}]', False),
        ("/etc/cdi/nvidia.yaml", f"kind: nvidia.com/gpu\ndevices: [{{name: {GPU}}}]", True),
        ("/var/run/cdi/nvidia.json", f'{{"kind": "nvidia.com/gpu", "devices": [{{"name": "{GPU}"}}]}}', True),
        ("/etc/cdi/nvidia.yaml.bak", f"kind: nvidia.com/gpu\ndevices: [{{name: {GPU}}}]", False),
    ],
)
def test_a_spec_has_to_name_gpus_by_their_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, text: str, named: bool) -> None:
    configured(monkeypatch, {})
    root = FakeRoot(tmp_path)
    root.file(path, text)
    found = cdi(Host(str(root)), kubelet(), running("containerd", "2.1.4"))
    assert (not found.spec, choose("auto", found, "", ()).strategy) == (named, "cdi" if named else "volume-mounts")


OLDER = "cdiVersion: 0.5.0\n"
GROUPS = "cdiVersion: 0.7.0\ncontainerEdits: {additionalGids: [44]}\n"


@pytest.mark.parametrize(
    ("name", "version", "spec", "strategy"),
    [
        ("containerd", "1.7.2", OLDER, "cdi"),
        ("containerd", "1.7.2", GROUPS, "volume-mounts"),
        ("containerd", "1.7.15", GROUPS, "volume-mounts"),
        ("containerd", "1.7.15", "containerEdits:\n  additionalGids:\n  - 44\n", "volume-mounts"),
        ("containerd", "1.7.15", "cdiVersion: '1.0.0'\n", "volume-mounts"),
        ("containerd", "1.7.16", GROUPS, "cdi"),
        ("containerd", "2.0.0", GROUPS, "cdi"),
        ("cri-o", "1.29.9", OLDER, "cdi"),
        ("cri-o", "1.29.9", GROUPS, "volume-mounts"),
        ("cri-o", "1.30.0", GROUPS, "cdi"),
    ],
)
def test_a_spec_that_the_runtime_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str, spec: str, strategy: str
) -> None:
    """Version 0.7.0 of the specification came with the toolkit 1.19; containerd 1.7.15 rejects such a file as a whole."""
    configured(monkeypatch, {"enableCDI": True})
    root = FakeRoot(tmp_path)
    root.file("/var/run/cdi/nvidia.yaml", f"kind: nvidia.com/gpu\n{spec}devices: [{{name: {GPU}}}]")
    found = cdi(Host(str(root)), kubelet(runtime=name), running(name, version))
    assert choose("auto", found, "", ()).strategy == strategy
    rejected = obstacles("cdi", found, STRICT, "", ())
    assert [obstacle.found for obstacle in rejected] == ([] if strategy == "cdi" else [f"gpushare_device_strategy cdi, and {found.reader}"])
    assert all("no-additional-gids-for-device-nodes" in obstacle.cure for obstacle in rejected)


@pytest.mark.parametrize(
    ("found", "now", "brings", "strategy"),
    [
        # A headless host has a spec without groups, which every reader takes.
        (CdiFacts("", "", reader="old"), "", PlannedInstalls(), "cdi"),
        (CdiFacts("", "", reader="old"), "", SPEC, "cdi"),
        (CdiFacts("", "", reader="old", newer=True), "", PlannedInstalls(), "volume-mounts"),
        (CdiFacts("", "", reader="old", newer=True), "cdi", SPEC, "volume-mounts"),
        # What the toolkit will write is not known.
        (CdiFacts("", "", "no CDI spec", reader="old"), "", SPEC, "volume-mounts"),
        (CdiFacts("", "", "no CDI spec", reader="old"), "cdi", PlannedInstalls(), "cdi"),
        (CdiFacts("", "", newer=True), "", PlannedInstalls(), "cdi"),
        (OFF, "", PlannedInstalls(), "volume-mounts"),
        (OFF, "", RUNTIME, "cdi"),
        (OFF, "", SPEC, "volume-mounts"),
        (UNABLE, "", PlannedInstalls(spec=True, runtime=True), "volume-mounts"),
        (NO_SPEC, "", RUNTIME, "volume-mounts"),
        (NO_SPEC, "", SPEC, "cdi"),
        # Its spec is away: a fault of that host, not another strategy.
        (NO_SPEC, "cdi", PlannedInstalls(), "cdi"),
        (NO_SPEC, "volume-mounts", PlannedInstalls(), "volume-mounts"),
    ],
)
def test_what_this_run_brings_counts(found: CdiFacts, now: str, brings: PlannedInstalls, strategy: str) -> None:
    assert choose("auto", found, now, (), brings) == StrategyChoice(strategy)


def test_a_spec_that_nobody_writes_is_an_obstacle_where_cdi_is_asked_for() -> None:
    (obstacle,) = obstacles("cdi", NO_SPEC, STRICT, "", ())
    assert (obstacle.found, obstacle.expected) == ("gpushare_device_strategy cdi, and no CDI spec", "a CDI spec that names every GPU")
    assert "gpushare_toolkit_state: managed" in obstacle.cure
    assert obstacles("cdi", NO_SPEC, STRICT, "", (), SPEC) == []
    assert obstacles("cdi", OFF, STRICT, "", (), RUNTIME) == []
    assert [obstacle.found for obstacle in obstacles("cdi", OFF, STRICT, "", (), SPEC)] == [
        "gpushare_device_strategy cdi, and containerd 1.7.27 runs without it"
    ]


@pytest.mark.parametrize(
    ("asked", "found", "now", "holders", "choice"),
    [
        ("auto", CAPABLE, "", (), StrategyChoice("cdi")),
        ("auto", UNABLE, "", (), StrategyChoice("volume-mounts")),
        ("auto", CAPABLE, "envvar", ("a",), StrategyChoice("envvar", "cdi")),
        ("auto", CAPABLE, "envvar", (), StrategyChoice("cdi")),
        ("auto", UNABLE, "cdi", ("a",), StrategyChoice("cdi", "volume-mounts")),
        ("auto", CAPABLE, "cdi", ("a",), StrategyChoice("cdi")),
        ("auto", CAPABLE, "strange", ("a",), StrategyChoice("cdi")),
        ("envvar", CAPABLE, "cdi", ("a",), StrategyChoice("envvar")),
    ],
)
def test_choices(asked: str, found: CdiFacts, now: str, holders: tuple[str, ...], choice: StrategyChoice) -> None:
    assert choose(asked, found, now, holders) == choice


@given(st.booleans(), st.booleans(), st.sampled_from(["", "cdi", "volume-mounts"]), st.booleans())
def test_auto_is_never_the_environment_by_itself(by_kubelet: bool, by_runtime: bool, now: str, busy: bool) -> None:
    found = CdiFacts("" if by_kubelet else "no", "" if by_runtime else "no")
    assert choose("auto", found, now, ("a",) if busy else ()).strategy in ("cdi", "volume-mounts")


@pytest.mark.parametrize(
    ("asked", "found", "configured_", "now", "holders", "words"),
    [
        ("auto", CAPABLE, DEFAULT, "", (), []),
        ("auto", UNABLE, STRICT, "", (), []),
        ("auto", UNABLE, DEFAULT, "", (), ["as-volume-mounts = false and accept-"]),
        ("auto", UNABLE, ToolkitFacts(True, True), "", (), ["when-unprivileged = true"]),
        ("auto", UNABLE, None, "", (), []),
        ("cdi", UNABLE, DEFAULT, "", (), ["gpushare_device_strategy cdi, and containerd 1.6.20 does not"]),
        ("cdi", CdiFacts("a", "b"), DEFAULT, "", (), ["cdi, and a", "cdi, and b"]),
        ("envvar", CAPABLE, DEFAULT, "", (), []),
        ("envvar", CAPABLE, STRICT, "", (), ["when-unprivileged = false"]),
        ("envvar", CAPABLE, DEFAULT, "cdi", tuple("dcba"), ["while 4 pods have GPUs by cdi (UID a, b, c and 1 more)"]),
        ("envvar", CAPABLE, DEFAULT, "cdi", (), []),
        ("auto", CAPABLE, DEFAULT, "envvar", ("a",), []),
        ("volume-mounts", CAPABLE, ToolkitFacts(True, False, "config.toml is not TOML"), "", (), ["config.toml is not TOML"]),
    ],
)
def test_obstacles(
    asked: str, found: CdiFacts, configured_: ToolkitFacts | None, now: str, holders: tuple[str, ...], words: list[str]
) -> None:
    reasons = obstacles(asked, found, configured_, now, holders)
    assert len(reasons) == len(words)
    assert all(word in reason.found and reason.expected and reason.cure for word, reason in zip(words, reasons, strict=True))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (None, DEFAULT),
        ("disable-require = false\n", DEFAULT),
        ("accept-nvidia-visible-devices-as-volume-mounts = true\naccept-nvidia-visible-devices-envvar-when-unprivileged = false\n", STRICT),
    ],
)
def test_the_toolkits_configuration(tmp_path: Path, text: str | None, read: ToolkitFacts) -> None:
    root = FakeRoot(tmp_path)
    if text is not None:
        root.file("/etc/nvidia-container-runtime/config.toml", text)
    assert toolkit(Host(str(root))) == read


def test_a_configuration_that_is_not_toml(tmp_path: Path) -> None:
    root = FakeRoot(tmp_path)
    root.file("/etc/nvidia-container-runtime/config.toml", "= =")
    assert toolkit(Host(str(root))).problem.startswith("/etc/nvidia-container-runtime/config.toml is not TOML (")


@pytest.mark.parametrize(
    ("kubelet_version", "runtime", "words"),
    [
        ("v1.27.3", "containerd://2.1.4", "kubelet v1.27.3 knows no CDI devices"),
        ("v1.28.3", "containerd://1.7.1", "containerd 1.7.1 does not take CDI devices from kubelet"),
        ("v1.36.3", "cri-o://1.27.0", "CRI-O 1.27.0 reads CDI devices from annotations only"),
        ("v1.36.3", "docker://28.0.1", "cri-dockerd"),
        ("v1.36.3", "containerd://1.7.29-k3s1", ""),
        ("v1.36.3", "cri-o://1.30.0", ""),
        ("", "", ""),
        ("x", "other://1", ""),
    ],
)
def test_versions_of_a_node_s_status_that_exclude_cdi(kubelet_version: str, runtime: str, words: str) -> None:
    found = by_status(kubelet_version, runtime)
    assert (words in found) if words else found == ""
