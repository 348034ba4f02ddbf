# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's feature gates on hosts as installers leave them: switched on, proven, killed, put back, removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet import converge as converge_module
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet import service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.arguments import StartFile, start_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.converge import GatesResult, WantedGates, converge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.plan import KubeletState

from gpushare_lab.versions import released
from unit.fakes.plugins.kubelet.fake_kubelet import CONFIG, DROP_IN, FOLDER, UNIT, FakeKubelet
from unit.fakes.plugins.kubelet.found_states import CONFIG_TEXT, NEW_DROP_IN, OLD_DROP_IN, RPM_DROP_IN, STATES

OURS = f"{FOLDER}/90-gpushare.conf"
LOADED = "LoadState=loaded\nExecStart={ path=/usr/bin/kubelet ; }\n"
# By hand: for each found state, what must be on after us, the files that change, and whether systemd must read its units again.
EXPECTED: dict[str, tuple[set[str], list[str], int]] = {
    "kubeadm 1.8": ({"Accelerators", "DevicePlugins"}, [OURS], 1),
    "kubeadm 1.9": ({"Accelerators", "DevicePlugins"}, [OURS], 1),
    "kubeadm 1.9 with arguments": ({"Accelerators", "DevicePlugins"}, [DROP_IN], 1),
    "a package's unit with arguments": ({"Accelerators", "DevicePlugins"}, [OURS], 1),
    "seed 004": ({"Accelerators", "DevicePlugins"}, [DROP_IN], 1),
    "seed 002": ({"Accelerators"}, [], 0),
    "kubeadm 1.10 without a configuration file": ({"Accelerators"}, [OURS], 1),
    "kubeadm 1.10 with another gate": ({"Accelerators"}, [DROP_IN], 1),
    "kubespray 1.9": ({"Accelerators", "DevicePlugins"}, ["/etc/kubernetes/kubelet.env"], 0),
    "kubespray 1.15, switched off in kubelet.env": ({"CPUManager", "DevicePlugins"}, ["/etc/kubernetes/kubelet.env"], 0),
    "kubespray 1.25, switched off in the configuration": ({"DevicePlugins"}, ["/etc/kubernetes/kubelet-config.yaml"], 0),
    "kubespray 1.36": (set(), [], 0),
    "rpm 1.9 with sysconfig": ({"Accelerators", "DevicePlugins"}, ["/etc/sysconfig/kubelet"], 0),
    "kubeadm 1.10 with a configuration file": ({"Accelerators"}, [CONFIG], 0),
    "kubeadm 1.15": (set(), [], 0),
    "kubeadm 1.15, switched off in kubeadm-flags.env": ({"CPUManager", "DevicePlugins"}, ["/var/lib/kubelet/kubeadm-flags.env"], 0),
    "kubeadm 1.15, switched off in /etc/default/kubelet": ({"CPUManager", "DevicePlugins"}, ["/etc/default/kubelet"], 0),
    "kubeadm 1.25, switched off in the configuration": ({"CPUManager", "DevicePlugins"}, [CONFIG], 0),
    "kubeadm 1.27": (set(), [], 0),
    **dict.fromkeys((f"kubeadm {released(minor)}" for minor in ("1.36", "1.37", "1.38")), (set(), [], 0)),
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


def run(host: FakeKubelet, state: str = "present", check: bool = False, timeout: float = 30.0, **more: object) -> GatesResult:
    wanted = WantedGates(state, ("Accelerators", "DevicePlugins"), "kubelet.service", timeout, False)
    return converge(wanted, check, str(host.root), host.run, **more)  # type: ignore[arg-type]


def killed(host: FakeKubelet, wanted: str) -> None:
    """A run that ends at this point."""

    def kill(point: str) -> None:
        if point == wanted:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(host, point=kill)


def upgrade(host: FakeKubelet, version: str) -> None:
    host.version, host.release = version, tuple(int(part) for part in version.split(".")[:2])
    host.root.program("/usr/bin/kubelet", f"Kubernetes v{version}")
    host.start()


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
    assert (predicted.given, predicted.restarted_at) == (gates_before, None)
    assert (result.release, result.given, result.why) == (".".join(host.version.split(".")[:2]), host.gates, "")
    assert (result.restarted_at is not None) is bool(files)
    off = "the feature gate DevicePlugins was switched off: it is switched on"
    assert result.notes == ([off] if "switched off" in name else [])
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
    assert (removed.release, removed.given) == ((result.release, gates_before) if files else ("", {}))
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
    with pytest.raises(TransactionError, match="what was there is restored") as caught:
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
        killed(host, wanted)
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
    monkeypatch.setitem(__import__("unit.fakes.plugins.kubelet.fake_kubelet", fromlist=["LISTED"]).LISTED, (1, 9), ("CPUManager",))
    with pytest.raises(Rejected, match="does not list the feature gate Accelerators, DevicePlugins"):
        run(host)
    assert tree(host) == before
    # One that lists none at all says nothing about any.
    host.answers = {"--help": Outcome([], 0, "--feature-gates mapStringBool")}
    assert run(host).given == {"Accelerators": True, "DevicePlugins": True}


def test_no_daemon_reload_while_a_container_uses_a_gpu(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    for pid, namespace, devices in (
        (4710, "pid:[7]", ["/dev/null", "/dev/nvidiactl"]),
        (4711, "pid:[7]", ["/dev/null", "/dev/nvidia0"]),
        (4712, "pid:[1]", ["/dev/nvidia0"]),
    ):
        host.root.process(pid, "train.py", namespace=namespace)
        for number, device in enumerate(devices):
            host.root.link(f"/proc/{pid}/fd/{number}", device)
    host.root.file("/proc/4710/fd/none")
    before = tree(host)
    with pytest.raises(Rejected, match="1 processes in containers use a GPU now \\(such as 4711\\)"):
        run(host)
    assert (tree(host), host.reloads) == (before, 0)
    allowed = WantedGates("present", ("DevicePlugins",), "kubelet.service", 30.0, True)
    converge(allowed, False, str(host.root), host.run)
    assert host.gates == {"DevicePlugins": True}


def test_no_daemon_reload_if_a_container_takes_a_gpu_meanwhile(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    before = tree(host)

    def start(point: str) -> None:
        if point == f"written {OURS}":
            host.root.process(4711, "train.py", namespace="pid:[7]")
            host.root.link("/proc/4711/fd/9", "/dev/nvidia0")

    with pytest.raises(TransactionError, match="1 processes in containers use a GPU now") as caught:
        run(host, point=start)
    assert caught.value.restored
    assert (tree(host), host.reloads, host.restarts) == (before, 0, 0)


def test_a_drop_in_that_systemd_has_not_noticed_is_read_and_forgotten(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    host.unnoticed = True
    killed(host, f"written {OURS}")
    assert (run(host).changed, run(host).changed, host.reloads) == (True, False, 1)
    assert host.gates == {"Accelerators": True, "DevicePlugins": True}
    host.active = "failed"
    assert (run(host).changed, host.restarts, host.reloads) == (True, 2, 1)
    run(host, "absent")
    assert (host.gates, host.reloads) == ({}, 2)


def test_an_environment_file_needs_no_reload_and_asks_nobody_for_gpus(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "rpm 1.9 with sysconfig")
    host.root.process(4711, "train.py", namespace="pid:[7]")
    host.root.link("/proc/4711/fd/9", "/dev/nvidia0")
    # Not even where others have edited the unit.
    host.root.file(DROP_IN, host.units()[DROP_IN] + "# edited\n")
    run(host)
    assert host.reloads == 0
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
        (
            "1.9.6",
            {UNIT: OLD_DROP_IN.replace("$KUBELET_EXTRA_ARGS", "--feature-gates=CPUManager=true")},
            "stands in /lib/systemd/system/kubelet.service, which a package owns",
        ),
        (
            "1.9.6",
            {UNIT: OLD_DROP_IN.replace("ExecStart=\n", "Environment='KUBELET_EXTRA_ARGS=--a=\"b c\"'\n")},
            "cannot be added there without a change of kubelet's other arguments; nothing was changed: add Accelerators",
        ),
        (
            "1.9.6",
            {DROP_IN: RPM_DROP_IN, "/etc/sysconfig/kubelet": "KUBELET_EXTRA_ARGS=--a 'b'\n"},
            "/etc/sysconfig/kubelet: KUBELET_EXTRA_ARGS has a value with quotes inside",
        ),
        (
            "1.9.6",
            {DROP_IN: RPM_DROP_IN.replace("=-", "=")},
            "/var/lib/kubelet/kubeadm-flags.env does not exist, and kubelet.service does not start without it",
        ),
        (
            "1.25.16",
            {
                DROP_IN: NEW_DROP_IN.replace("$KUBELET_EXTRA_ARGS", "--config-dir=/etc/kubelet.d"),
                CONFIG: CONFIG_TEXT,
                "/etc/kubelet.d/9.conf": "featureGates:\n  A: true\n",
            },
            "/etc/kubelet.d/9.conf of kubelet's --config-dir has featureGates, which wins over its own file",
        ),
        ("1.9.6", {UNIT: "[Service]\n"}, "kubelet's unit has no ExecStart \\(/lib/systemd/system/kubelet.service\\)"),
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


@pytest.mark.parametrize(
    ("question", "status", "out", "words"),
    [
        ("show", 1, LOADED, "LoadState is unknown"),
        ("show", 0, LOADED.replace("loaded", "not-found"), "LoadState is not-found"),
        ("show", 0, "LoadState=loaded\n", "no service kubelet.service that starts kubelet"),
        ("show", 0, f"{LOADED}DropInPaths={DROP_IN}\n", "is unknown, expected active"),
        ("show", 0, LOADED + "DropInPaths=/etc/gone\n", "no ExecStart \\(/etc/gone\\)"),
        ("--version", 1, "Kubernetes v1.9.6\n", "names no version \\(Kubernetes v1.9.6\\)"),
        ("--version", 0, "Kubernetes v1\n", "names no version"),
        ("--version", 0, "", "names no version \\(no output\\)"),
    ],
)
def test_what_nobody_tells_is_rejected(made: list[FakeKubelet], tmp_path: Path, question: str, status: int, out: str, words: str) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    host.root.program("/usr/bin/kubelet")
    before = tree(host)
    host.answers = {question: Outcome([], status, out)}
    with pytest.raises(Rejected, match=words):
        run(host)
    assert tree(host) == before


def test_a_kubelet_whose_gates_cannot_be_set_needs_no_service(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.27")
    host.answers = {"show": Outcome([], 1)}
    result = run(host)
    assert (result.changed, result.release, result.given) == (False, "1.27", {})
    host.root.file(CONFIG, CONFIG_TEXT + "featureGates:\n  A: true\n")
    assert run(host).given == {"A": True}


def test_what_is_left_of_us_is_verified_after_an_upgrade_too(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.25, switched off in the configuration")
    killed(host, f"before {CONFIG}")
    upgrade(host, "1.27.16")
    assert (run(host).changed, run(host).changed) == (True, False)
    upgrade(host, "1.25.16")
    run(host)
    upgrade(host, "1.27.16")
    assert run(host).changed is False
    host.since -= 10
    assert run(host).changed is True


def test_a_stopped_kubelet_is_rejected(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    host.active = "failed"
    with pytest.raises(Rejected, match=r"kubelet\.service is failed, expected active"):
        run(host)
    assert host.restarts == 0
    # Where nothing is to be done, it is nobody's business.
    host = host_of(made, tmp_path / "other", "seed 002")
    host.active = "failed"
    assert run(host).changed is False


def test_a_stopped_kubelet_keeps_nobody_from_removing_a_run_that_was_killed(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.25, switched off in the configuration")
    killed(host, f"before {CONFIG}")
    host.active = "failed"
    assert (run(host, "absent").changed, run(host, "absent").changed) == (True, False)


def test_a_restart_that_was_lost_is_made_up_for(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.25, switched off in the configuration")
    run(host)
    restarts = host.restarts
    # As after a kill between the write and the restart: the process is older than the file.
    host.since -= 10
    assert run(host).changed is True
    assert host.restarts == restarts + 1
    # A process that says no arguments may still have read the configuration.
    host.root.at(f"/proc/{host.pid}/cmdline").unlink()
    assert (run(host).changed, host.restarts) == (False, restarts + 1)
    host.active = "failed"
    assert (run(host).changed, host.restarts) == (True, restarts + 2)


def test_changes_of_others_are_left_to_others(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.15, switched off in /etc/default/kubelet")
    run(host)
    host.since -= 10
    assert run(host).changed is False
    host = host_of(made, tmp_path / "other", "seed 002")
    host.root.file(DROP_IN, host.units()[DROP_IN].replace("=true", "=true,DevicePlugins=true"))
    assert (run(host).changed, host.restarts) == (False, 0)


def test_gates_of_others_that_kubelet_cannot_read_are_named(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "rpm 1.9 with sysconfig")
    run(host)
    host.root.file(DROP_IN, host.units()[DROP_IN].replace("$KUBELET_EXTRA", "--feature-gates=A $KUBELET_EXTRA"))
    with pytest.raises(TransactionError, match=r"kubelet\.service is not healthy after 5 s: --feature-gates has 'A'"):
        run(host, "absent", timeout=5.0)


@pytest.mark.parametrize(
    ("answer", "said", "words"),
    [
        (
            Outcome([], 1, "", "Unit is\nmasked"),
            "",
            "systemctl restart kubelet.service failed: Unit is masked. It said:\n(its journal is empty)",
        ),
        (None, "", "systemctl restart kubelet.service did not end within 30 s. It said:\n(its journal is empty)"),
        (None, "".join(f"{number}\n" for number in range(12)), "It said:\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11;"),
        (None, f"at ease\nE1128 {'x' * 600}\nfine\nit failed to run\n", f"It said:\nE1128 {'x' * 494}\nit failed to run;"),
    ],
)
def test_a_restart_that_fails_says_why(made: list[FakeKubelet], tmp_path: Path, answer: Outcome | None, said: str, words: str) -> None:
    host = host_of(made, tmp_path, "rpm 1.9 with sysconfig")
    before = tree(host)
    host.answers = {"restart": answer, "--unit": Outcome([], 0, said)}
    with pytest.raises(TransactionError) as caught:
        run(host)
    assert words in str(caught.value)
    assert (tree(host), caught.value.restored) == (before, True)
    assert ["systemctl", "reset-failed", "kubelet.service"] in host.calls


def test_a_kubelet_that_ends_again_and_again_is_not_healthy(
    made: list[FakeKubelet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STEADY_SECONDS", 2.0)
    host = host_of(made, tmp_path, "rpm 1.9 with sysconfig")
    host.restless = True
    with pytest.raises(TransactionError, match="it was started just now"):
        run(host, timeout=5.0)


@pytest.mark.parametrize(
    ("arguments", "config", "words"),
    [
        # The default port, where no kubelet of this machine answers.
        ("--healthz-bind-address=127.0.0.2", None, "http://127.0.0.2:10248/healthz "),
        ("--healthz-port=PORT", None, "http://127.0.0.1:PORT/healthz answers 500: b'ok'"),
        ("--healthz-port=PORT", "healthzPort: 1\nhealthzBindAddress: 0.0.0.0\n", "http://127.0.0.1:PORT/healthz answers 500"),
        ("--healthz-bind-address=127.0.0.1", "healthzPort: PORT\nhealthzBindAddress: ::\n", "http://127.0.0.1:PORT/healthz answers 500"),
        ("", "healthzPort: 1\nhealthzBindAddress: '::'\n", "http://[::1]:1/healthz cannot be read: "),
        ("--healthz-port=0", "healthzPort: PORT\n", None),
        ("--healthz-port=none", None, None),
    ],
)
def test_the_health_check_is_asked_where_kubelet_has_it(
    made: list[FakeKubelet], tmp_path: Path, arguments: str, config: str | None, words: str | None
) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.9")
    host.server.well = False  # type: ignore[attr-defined]
    unit = StartFile("/a", f"[Service]\nExecStart=/usr/bin/kubelet {arguments}".replace("PORT", str(host.port)))
    text = None if config is None else ("/b", config.replace("PORT", str(host.port)))
    said = service.healthz(KubeletState((1, 9), start_of([unit], []), text, {}, []))
    assert said == words if words is None else str(said).startswith(words.replace("PORT", str(host.port)))


def test_a_kubelet_that_is_ill_gets_its_files_back(made: list[FakeKubelet], tmp_path: Path) -> None:
    host = host_of(made, tmp_path, "rpm 1.9 with sysconfig")
    before = tree(host)
    host.sick = True
    with pytest.raises(TransactionError, match=r"/healthz answers 500: b'ok'. It said:\nError: unrecognized"):
        run(host, timeout=5.0)
    assert tree(host) == before


@pytest.mark.parametrize(("state", "pid"), [("active", 0), ("deactivating", 7)])
def test_a_kubelet_that_does_not_run_is_not_healthy(made: list[FakeKubelet], tmp_path: Path, state: str, pid: int) -> None:
    host = host_of(made, tmp_path, "kubeadm 1.25, switched off in the configuration")
    run(host)
    shown = f"{LOADED}ActiveState={state}\nMainPID={pid}\nFragmentPath={UNIT}\nDropInPaths={DROP_IN}\n"
    host.answers = {"show": Outcome([], 0, shown.replace("MainPID=0\n", ""))}
    with pytest.raises(TransactionError, match=f"systemd says that it is {state}"):
        run(host, timeout=5.0)


@pytest.mark.parametrize(("first", "then", "restored"), [(None, None, False), (None, "no heartbeat", True), ("no such node", "no", False)])
def test_a_node_that_was_ready_must_be_ready_again(
    made: list[FakeKubelet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str | None, then: str | None, restored: bool
) -> None:
    host = host_of(made, tmp_path, "rpm 1.9 with sysconfig")
    asked: list[float] = []

    def not_ready(since: float) -> str | None:
        asked.append(since)
        return then if since else first

    api = SimpleNamespace(not_ready=not_ready)
    monkeypatch.setattr(
        converge_module, "node_api", lambda _host, path, node: api if (path, node) == ("/etc/kubernetes/kubelet.conf", "gpu1") else None
    )
    if restored:
        with pytest.raises(TransactionError, match="is not healthy after 5 s: no heartbeat"):
            run(host, timeout=5.0)
    else:
        run(host)
    assert host.gates == ({} if restored else {"Accelerators": True, "DevicePlugins": True})
    # Since the start of its process, and only if it was Ready before.
    assert asked[-1] == (0.0 if first else pytest.approx(host.since, abs=0.1))
