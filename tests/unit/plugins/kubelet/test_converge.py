# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's feature gates on hosts as installers leave them: switched on, proven, killed, put back, removed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet import service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.converge import GatesResult, WantedGates, converge

from unit.plugins.kubelet.fake_kubelet import CONFIG, DROP_IN, FOLDER, FakeKubelet
from unit.plugins.kubelet.found_states import CONFIG_TEXT, NEW_DROP_IN, OLD_DROP_IN, STATES

OURS = f"{FOLDER}/90-gpushare.conf"
# By hand: for each found state, what must be on after us, the files that change, and whether systemd must read its units again.
EXPECTED: dict[str, tuple[set[str], list[str], int]] = {
    "kubeadm 1.8": ({"Accelerators", "DevicePlugins"}, [OURS], 1),
    "kubeadm 1.9": ({"Accelerators", "DevicePlugins"}, [OURS], 1),
    "kubeadm 1.9 with arguments": ({"Accelerators", "DevicePlugins"}, [DROP_IN], 1),
    "seed 004": ({"Accelerators", "DevicePlugins"}, [DROP_IN], 1),
    "seed 002": ({"Accelerators"}, [], 0),
    "kubeadm 1.10 with another gate": ({"Accelerators"}, [DROP_IN], 1),
    "kubespray 1.9": ({"Accelerators", "DevicePlugins"}, ["/etc/kubernetes/kubelet.env"], 0),
    "kubespray 1.15, switched off in kubelet.env": ({"CPUManager", "DevicePlugins"}, ["/etc/kubernetes/kubelet.env"], 0),
    "kubespray 1.25, switched off in the configuration": ({"DevicePlugins"}, ["/etc/kubernetes/kubelet-config.yaml"], 0),
    "kubespray 1.36": (set(), [], 0),
    "rpm 1.9 with sysconfig": ({"Accelerators", "DevicePlugins"}, ["/etc/sysconfig/kubelet"], 0),
    "kubeadm 1.10 with a configuration file": ({"Accelerators"}, [CONFIG], 0),
    "kubeadm 1.15": (set(), [], 0),
    "kubeadm 1.15, switched off in kubeadm-flags.env": ({"CPUManager", "DevicePlugins"}, ["/var/lib/kubelet/kubeadm-flags.env"], 0),
    "kubeadm 1.15, switched off in /etc/default/kubelet": ({"DevicePlugins"}, ["/etc/default/kubelet"], 0),
    "kubeadm 1.25, switched off in the configuration": ({"CPUManager", "DevicePlugins"}, [CONFIG], 0),
    "kubeadm 1.27": (set(), [], 0),
    "kubeadm 1.36": (set(), [], 0),
}


class Clock:
    """The module `time`, but a sleep is over at once: the clocks go forward instead."""

    def __init__(self) -> None:
        self._slept = 0.0

    def time(self) -> float:
        return time.time() + self._slept

    def monotonic(self) -> float:
        return time.monotonic() + self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += seconds


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "time", Clock())
    monkeypatch.setattr(service, "STEADY_SECONDS", service.POLL_SECONDS)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[FakeKubelet]]:
    hosts: list[FakeKubelet] = []
    yield hosts
    for host in hosts:
        host.close()


def host_of(made: list[FakeKubelet], folder: Path, name: str) -> FakeKubelet:
    version, files = STATES[name]
    made.append(FakeKubelet(folder, version, files))
    return made[-1]


def run(host: FakeKubelet, state: str = "present", check: bool = False, **more: object) -> GatesResult:
    wanted = WantedGates(state, ("Accelerators", "DevicePlugins"), "kubelet.service", 30.0, False)
    return converge(wanted, check, str(host.root), host.run, **more)  # type: ignore[arg-type]


def tree(host: FakeKubelet) -> dict[str, bytes]:
    """Every file outside of /proc and of our own journal."""
    found = {}
    for place in sorted(host.root.folder.rglob("*")):
        name = str(place.relative_to(host.root.folder))
        if place.is_file() and not name.startswith(("proc/", "var/lib/gpushare/")):
            found[name] = place.read_bytes()
    return found


@pytest.mark.parametrize("name", STATES)
def test_gates_go_where_the_host_keeps_them_once_and_uninstall_gives_back(made: list[FakeKubelet], tmp_path: Path, name: str) -> None:
    host = host_of(made, tmp_path, name)
    on, files, reloads = EXPECTED[name]
    before, gates_before, argv_before = tree(host), dict(host.gates), list(host.argv)
    predicted = run(host, check=True)
    assert tree(host) == before
    assert host.restarts == 0
    result = run(host)
    assert {gate for gate, value in host.gates.items() if value} == on
    assert (result.files, result.changed) == (files, bool(files))
    assert (predicted.files, predicted.diff, predicted.changed) == (files, result.diff, bool(files))
    assert (host.restarts, host.reloads) == (int(bool(files)), reloads)
    # Everything else that kubelet was started with is there as before.
    flags = ("--feature-gates",)
    assert [word for word in host.argv if not word.startswith(flags)] == [word for word in argv_before if not word.startswith(flags)]
    assert {gate: value for gate, value in host.gates.items() if gate not in on} == {
        gate: value for gate, value in gates_before.items() if gate not in on
    }
    after = tree(host)
    again = run(host)
    assert (again.changed, again.files, host.restarts) == (False, [], int(bool(files)))
    assert tree(host) == after
    removed = run(host, "absent")
    assert removed.changed is bool(files)
    assert tree(host) == before
    assert (host.gates, host.argv) == (gates_before, argv_before)
    assert run(host, "absent").changed is False


def test_a_comment_and_an_unknown_setting_stay(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.25, switched off in the configuration")
    run(host)
    assert host.text(CONFIG) == CONFIG_TEXT + "featureGates:\n  CPUManager: true # pinned\n  DevicePlugins: true\n"


def test_a_kubelet_that_does_not_come_up_gets_its_files_back(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    before = tree(host)
    host.rejects = {"DevicePlugins"}
    with pytest.raises(TransactionError, match="put back what was there") as caught:
        run(host)
    assert "what kubelet says" in str(caught.value)
    assert caught.value.restored
    assert tree(host) == before
    assert (host.active, host.gates) == ("active", {})
    assert host.loaded == host.units()


def test_killed_anywhere_the_next_run_finishes(made: list[FakeKubelet], tmp_path: Path) -> None:
    points: list[str] = []
    run(host_of(made, tmp_path / "first", "kubeadm 1.25, switched off in the configuration"), point=points.append)
    assert len(points) > 4
    for number, wanted in enumerate(points):
        host = host_of(made, tmp_path / str(number), "kubeadm 1.25, switched off in the configuration")
        before = tree(host)

        def kill(point: str, wanted: str = wanted) -> None:
            if point == wanted:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(host, point=kill)
        run(host)
        assert host.gates["DevicePlugins"] is True, wanted
        assert run(host).changed is False, wanted
        run(host, "absent")
        assert tree(host) == before, wanted
        assert host.gates["DevicePlugins"] is False, wanted


def test_a_gate_that_this_kubelet_does_not_list_is_rejected(
    made: list[FakeKubelet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    before = tree(host)
    monkeypatch.setitem(__import__("unit.plugins.kubelet.fake_kubelet", fromlist=["LISTED"]).LISTED, (1, 9), ("CPUManager",))
    with pytest.raises(Rejected, match="does not list the feature gate Accelerators, DevicePlugins"):
        run(host)
    assert tree(host) == before


def test_no_daemon_reload_while_a_container_uses_a_gpu(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    host.root.process(4711, "train.py", namespace="pid:[7]")
    host.root.link("/proc/4711/fd/9", "/dev/nvidia0")
    before = tree(host)
    with pytest.raises(Rejected, match="1 processes in containers use a GPU now"):
        run(host)
    assert (tree(host), host.reloads) == (before, 0)
    allowed = WantedGates("present", ("DevicePlugins",), "kubelet.service", 30.0, True)
    converge(allowed, False, str(host.root), host.run)
    assert host.gates == {"DevicePlugins": True}


def test_an_environment_file_needs_no_reload_and_asks_nobody_for_gpus(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "rpm 1.9 with sysconfig")
    host.root.process(4711, "train.py", namespace="pid:[7]")
    host.root.link("/proc/4711/fd/9", "/dev/nvidia0")
    run(host)
    assert host.text("/etc/sysconfig/kubelet") == "KUBELET_EXTRA_ARGS=--feature-gates=Accelerators=true,DevicePlugins=true\n"


def test_edits_of_others_stay_when_ours_goes(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.25, switched off in the configuration")
    run(host)
    edited = str(host.text(CONFIG)).replace("rotateCertificates: true", "rotateCertificates: false")
    host.root.file(CONFIG, edited.replace("10248", str(host.port)))
    notes = run(host, "absent").notes
    assert notes == [f"{CONFIG} was changed by others since: only our part is taken out"]
    assert host.text(CONFIG) == edited.replace("DevicePlugins: true", "DevicePlugins: false")
    assert host.gates == {"CPUManager": True, "DevicePlugins": False}


def test_edits_of_others_in_an_environment_file_stay(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "rpm 1.9 with sysconfig")
    run(host)
    path = "/etc/sysconfig/kubelet"
    host.root.file(path, f'KUBELET_EXTRA_ARGS="--v=4 {str(host.text(path)).strip().partition("=")[2]}"\n')
    run(host, "absent")
    assert host.text(path) == 'KUBELET_EXTRA_ARGS="--v=4"\n'
    assert host.argv[-1] == "--v=4"


@pytest.mark.parametrize(
    ("version", "files", "words"),
    [
        ("1.9.6", {DROP_IN: OLD_DROP_IN.replace(" $KUBELET_EXTRA_ARGS", "")}, "uses none of \\$KUBELET_EXTRA_ARGS"),
        (
            "1.25.16",
            {DROP_IN: NEW_DROP_IN, CONFIG: CONFIG_TEXT + "featureGates: [DevicePlugins]\n"},
            "featureGates is '\\[DevicePlugins\\]'",
        ),
        ("1.25.16", {DROP_IN: NEW_DROP_IN, CONFIG: CONFIG_TEXT.replace("KubeletConfiguration", "Other")}, "expected KubeletConfiguration"),
        (
            "1.9.6",
            {DROP_IN: OLD_DROP_IN.replace("$KUBELET_EXTRA_ARGS", "--feature-gates=DevicePlugins")},
            "expected NAME=true or NAME=false",
        ),
    ],
)
def test_what_cannot_be_read_is_rejected_with_its_place(
    made: list[FakeKubelet], tmp_path: Path, version: str, files: dict[str, str], words: str
) -> None:
    started = FakeKubelet.start
    try:
        FakeKubelet.start = lambda self: None  # type: ignore[method-assign]
        host = FakeKubelet(tmp_path, version, files)
    finally:
        FakeKubelet.start = started  # type: ignore[method-assign]
    made.append(host)
    host.active, host.pid = "active", 7
    before = tree(host)
    with pytest.raises(Rejected, match=words) as caught:
        run(host)
    assert "nothing was changed" in str(caught.value)
    assert tree(host) == before


def test_a_stopped_kubelet_is_rejected(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    host.active = "failed"
    with pytest.raises(Rejected, match=r"kubelet\.service is failed, expected active"):
        run(host)


def test_a_restart_that_was_lost_is_made_up_for(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.25, switched off in the configuration")
    run(host)
    restarts = host.restarts
    # As after a kill between the write and the restart: the process is older than the file.
    os.utime(host.root.at(CONFIG))
    assert run(host).changed is True
    assert host.restarts == restarts + 1
