# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""containerd as a service: what systemd and the CRI say decides, never what we hope."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import service as runtime_service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd import (
    ContainerdService,
    Installation,
    address_of,
    config_of,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.plan import Asked, RuntimePlan, Runtimes
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.service import (
    RestartError,
    RuntimeUnit,
    check_program,
    find_unit,
)

from unit.fakes.plugins.runtimes.fake_containerd import model
from unit.golden import Golden

START = "{ path=/usr/bin/containerd ; argv[]=/usr/bin/containerd --config /srv/c.toml $OPTIONS ; ignore_errors=no ; pid=7 }"

#: What the process does not have.
OTHERS = Runtimes("nvidia", {"nvidia": {"runtime_type": "io.containerd.runc.v2"}})


class Host:
    """systemd, the journal and the CRI of a host."""

    def __init__(self) -> None:
        self.properties = {"LoadState": "loaded", "ActiveState": "active", "KillMode": "process", "MainPID": "7", "ExecStart": START}
        self.argvs: list[list[str]] = []
        self.restart = Outcome([], 0)
        self.journal = "time=1 level=info msg=starting\n"
        self.default = "runc"
        self.conditions = {"RuntimeReady": (True, ""), "NetworkReady": (True, "")}
        self.cdi = False
        self.silent = False
        self.flaps = False

    def run(self, argv: list[str], _timeout: float) -> Outcome:
        self.argvs.append(argv)
        if argv[:2] == ["systemctl", "show"]:
            if self.flaps:
                self.properties["MainPID"] = str(int(self.properties["MainPID"]) + 1)
            return Outcome(argv, 0, "".join(f"{key}={value}\n" for key, value in self.properties.items()))
        if argv[:2] == ["systemctl", "restart"]:
            return self.restart
        return Outcome(argv, 0, self.journal if argv[0] == "journalctl" else "")

    def status(self, _address: str, _timeout: float) -> cri.RuntimeStatus:
        if self.silent:
            raise cri.CriError("the container runtime does not answer")
        entry = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": ""}}
        config = {"enableCDI": self.cdi, "containerd": {"defaultRuntimeName": self.default, "runtimes": {"runc": entry}}}
        return cri.RuntimeStatus(dict(self.conditions), config)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr(cri, "status", host.status)
    monkeypatch.setattr(runtime_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runtime_service, "STEADY_SECONDS", 0.05)
    monkeypatch.setattr(runtime_service, "arguments_of", lambda _pid: [])
    return host


@pytest.fixture
def service(host: Host, tmp_path: Path) -> ContainerdService:
    return opened(host, tmp_path)


def opened(host: Host, tmp_path: Path, allowed: bool = False) -> ContainerdService:
    (tmp_path / "config.toml").write_text("version = 2\n")
    installation = Installation(model("1.7.24"), str(tmp_path / "config.toml"))
    return ContainerdService(unit(host), installation, host.run, 0.3, allowed)


def unit(host: Host) -> RuntimeUnit:
    return find_unit("containerd.service", host.run, lambda _pid: [])


def test_the_unit_is_read_and_the_process_knows_its_arguments_best(host: Host) -> None:
    found = unit(host)
    assert (found.program, config_of(found), address_of(found), found.main_pid) == ("/usr/bin/containerd", "/srv/c.toml", None, 7)
    of_process = ["/usr/bin/containerd", "-c", "/run/c.toml", "--address=/run/own.sock"]
    found = find_unit("containerd.service", host.run, {7: of_process}.__getitem__)
    assert (config_of(found), address_of(found)) == ("/run/c.toml", "/run/own.sock")
    host.properties["ExecStart"] = "{ path=/usr/bin/containerd ; argv[]=/usr/bin/containerd ; }"
    assert config_of(unit(host)) == "/etc/containerd/config.toml"


def test_a_host_without_the_unit_is_rejected(host: Host, golden: Golden) -> None:
    host.properties = {"LoadState": "not-found", "ActiveState": "inactive"}
    with golden.raised(Rejected):
        unit(host)


def test_a_daemon_that_does_not_run_is_not_touched_unless_it_may_be_our_doing(host: Host, golden: Golden) -> None:
    host.properties["ActiveState"] = "failed"
    with golden.raised(Rejected):
        unit(host).check_running(False)
    unit(host).check_running(True)


@pytest.mark.parametrize(("mode", "ends"), [("control-group", True), ("mixed", True), ("process", False), ("none", False)])
def test_a_restart_that_ends_containers_needs_leave(host: Host, tmp_path: Path, mode: str, ends: bool) -> None:
    host.properties["KillMode"] = mode
    service = opened(host, tmp_path)
    with pytest.raises(Rejected, match=f"KillMode={mode}") if ends else nullcontext():
        service.check_restart(RuntimePlan(OTHERS))
    opened(host, tmp_path, allowed=True).check_restart(RuntimePlan(OTHERS))
    service.check_restart(RuntimePlan(service.wanted()))


def test_a_restart_is_due_only_if_the_process_differs_from_the_files(host: Host, service: ContainerdService) -> None:
    assert not service.due()
    host.default = "nvidia"
    assert service.due()
    host.default, host.silent = "runc", True
    assert service.due()


def test_whether_cdi_is_on_counts_where_it_is_asked_for(host: Host, service: ContainerdService, golden: Golden) -> None:
    assert service.present(Asked(None)).after.cdi is None
    assert not service.due()
    plan = service.present(Asked(None, cdi=True))
    ((path, text),) = plan.files.items()
    Path(path).write_text(text or "")
    golden(service.lacks(plan.after))
    judged = service.judged_by(plan)
    assert (service.due(), judged.due()) == (False, True)
    host.cdi = True
    assert not judged.due()


def test_a_good_restart(host: Host, service: ContainerdService) -> None:
    service.restart()
    assert service.problem() is None
    assert [argv for argv in host.argvs if argv[1] in ("reset-failed", "restart")] == [
        ["systemctl", "reset-failed", "containerd.service"],
        ["systemctl", "restart", "containerd.service"],
    ]


def test_a_rejected_restart_says_what_containerd_complains_of(host: Host, service: ContainerdService, golden: Golden) -> None:
    host.restart = Outcome([], 1, err="Job for containerd.service failed")
    host.journal = 'level=info msg="starting"\nlevel=warning msg="failed to load plugin cri"\ncontainerd: no way\nlevel=info msg="done"\n'
    with pytest.raises(RestartError) as error:
        service.restart()
    golden(error.value)
    host.restart = Outcome([], None, timed_out=5.0)
    with golden.raised(RestartError):
        service.restart()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"silent": True}, "the container runtime does not answer"),
        ({"default": "nvidia"}, "its default runtime is 'nvidia', expected 'runc'"),
        ({"conditions": {"RuntimeReady": (False, "NoRuntime: x"), "NetworkReady": (True, "")}}, "RuntimeReady is false: NoRuntime: x"),
        ({"conditions": {"RuntimeReady": (True, ""), "NetworkReady": (False, "NoCni")}}, "NetworkReady is false: NoCni"),
        ({"conditions": {}}, "RuntimeReady is false: it does not say"),
        ({"flaps": True}, "it restarts again and again"),
    ],
)
def test_what_is_not_healthy_is_named_when_the_time_is_over(
    host: Host, service: ContainerdService, how: dict[str, Any], reason: str
) -> None:
    for key, value in how.items():
        setattr(host, key, value)
    problem = service.problem()
    assert problem is not None
    assert problem.startswith(f"containerd.service is not healthy after 0.3 s: {reason}. It said:\n")


def test_the_program_has_to_work(tmp_path: Path) -> None:
    def run(argv: list[str], _timeout: float) -> Outcome:
        return Outcome(argv, 127, err="libnvidia-container.so.1: cannot open shared object file")

    path = tmp_path / "nvidia-container-runtime"
    assert "does not exist or cannot be executed: install NVIDIA's container toolkit" in str(check_program(str(path), run))
    path.write_text("")
    path.chmod(0o755)
    assert "does not work (libnvidia-container.so.1: cannot open" in str(check_program(str(path), run))
    assert check_program(str(path), lambda argv, _timeout: Outcome(argv, 0)) is None
    asked: list[list[str]] = []
    problem = check_program(str(path), lambda argv, _timeout: asked.append(argv) or Outcome(argv, None))  # type: ignore[func-returns-value]
    assert asked == [[str(path), "--version"]]
    assert f"{path} --version does not work (it did not end): install NVIDIA's" in str(problem)


@pytest.mark.parametrize(("how", "found"), [({"ExecStart": ""}, "LoadState is loaded"), ({"LoadState": "masked"}, "LoadState is masked")])
def test_a_unit_that_starts_nothing_is_rejected(host: Host, how: dict[str, str], found: str, golden: Golden) -> None:
    host.properties.update(how)
    with golden.raised(Rejected):
        unit(host)
    host.properties = {}
    with golden.raised(Rejected):
        unit(host)


def test_a_host_without_systemd_is_rejected(golden: Golden) -> None:
    with golden.raised(Rejected):
        find_unit("x", lambda argv, _timeout: Outcome(argv, 1, err="no such file"), lambda _pid: [])


def test_what_systemd_says_is_asked_and_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_service.time, "time", lambda: 5000.0)
    monkeypatch.setattr(runtime_service.time, "monotonic", lambda: 1000.0)
    host.properties["ExecMainStartTimestampMonotonic"] = "250000000"
    assert unit(host) == RuntimeUnit(
        "containerd.service", "active", "process", 7, 4250.0, "/usr/bin/containerd", ["--config", "/srv/c.toml", "$OPTIONS"]
    )
    assert host.argvs[-1][:3] == ["systemctl", "show", "containerd.service"]
    asked: list[int] = []
    host.properties = {"LoadState": "loaded", "ExecStart": START}
    found = find_unit("x", host.run, lambda pid: asked.append(pid) or ["/y"])  # type: ignore[func-returns-value]
    assert found == RuntimeUnit("x", "", "", 0, 4000.0, "/usr/bin/containerd", ["--config", "/srv/c.toml", "$OPTIONS"])
    assert asked == []


def test_the_arguments_of_a_process_are_those_it_was_started_with() -> None:
    assert runtime_service.arguments_of(os.getpid()) == Path("/proc/self/cmdline").read_text().split("\0")[:-1]
    assert runtime_service.arguments_of(2**22 + 1) == []


def test_the_program_of_the_unit_is_the_one_that_is_asked(host: Host) -> None:
    answers = [Outcome([], 0, "out", "err"), Outcome([], 3, "out", ""), Outcome([], None, "", "")]
    asked: list[tuple[list[str], float]] = []

    def run(argv: list[str], timeout: float) -> Outcome:
        asked.append((argv, timeout))
        return answers[len(asked) - 1]

    call = unit(host).program_call(run)
    assert [call(["a", "b"]) for _ in answers] == [(0, "out", "err"), (3, "out", "it did not end"), (1, "", "it did not end")]
    assert asked == [(["/usr/bin/containerd", "a", "b"], 10.0)] * 3


def test_a_unit_of_which_nothing_is_known_is_said_to_be_so(host: Host, service: ContainerdService, golden: Golden) -> None:
    host.properties["ActiveState"] = ""
    with golden.raised(Rejected):
        unit(host).check_running(False)
    golden(str(service.problem()))
    host.properties["ActiveState"] = "active"
    unit(host).check_running(False)


def test_where_it_listens_is_what_its_command_line_or_its_configuration_says(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def status(address: str, timeout: float) -> cri.RuntimeStatus:
        asked.append((address, timeout))
        return host.status(address, timeout)

    monkeypatch.setattr(cri, "status", status)
    opened(host, tmp_path)
    host.properties["ExecStart"] = START.replace("$OPTIONS", "-a /own.sock")
    assert opened(host, tmp_path).silent is None
    assert asked == [("/run/containerd/containerd.sock", 10.0), ("/own.sock", 10.0)]
    host.silent = True
    assert opened(host, tmp_path).silent == "the container runtime does not answer"


def test_what_was_not_ready_before_need_not_be_but_the_runtime_must(host: Host, tmp_path: Path, golden: Golden) -> None:
    host.conditions = {"NetworkReady": (False, "no CNI yet")}
    service = opened(host, tmp_path)
    golden(str(service.problem()))
    host.conditions["RuntimeReady"] = (True, "")
    assert service.problem() is None


def test_the_journal_is_asked_for_since_the_restart_and_told_by_its_last_complaints(
    host: Host, service: ContainerdService, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(runtime_service.time, "time", lambda: 4711.9)
    service.restart()
    host.journal = "".join(f"level=info {number}\nlevel=error {number}\n" for number in range(20))
    assert service.journal() == "\n".join(f"level=error {number}" for number in range(8, 20))
    assert host.argvs[-1] == ["journalctl", "--unit", "containerd.service", "--since=@4711", "--no-pager", "--output=cat"]
    host.journal = "".join(f"level=info {number}\n" for number in range(20))
    assert service.journal() == "\n".join(f"level=info {number}" for number in range(8, 20))
    host.journal = ""
    golden(service.journal())


def test_health_is_one_process_that_stays(host: Host, service: ContainerdService, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of its own: unwell at first, then another process, which has to live for the whole while."""
    clock, seen = [100.0], []

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        seen.append(clock[0])
        host.silent = clock[0] < 100.15
        host.properties["MainPID"] = "8" if clock[0] >= 100.175 else "7"

    monkeypatch.setattr(runtime_service.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(runtime_service.time, "sleep", sleep)
    host.silent = True
    assert service.problem() is None
    assert 100.225 < seen[-1] < 100.275


def test_after_a_restore_a_process_as_before_is_healthy_whatever_the_files_mean_to_us(host: Host, tmp_path: Path, golden: Golden) -> None:
    """Rules of containerd that we do not know, such as a deprecated table, made it run something else than we read in its files."""
    host.default = "default"
    service = opened(host, tmp_path)
    assert service.problem() is not None
    service.restored()
    assert (service.due(), service.problem()) == (False, None)
    # Neither what the files say nor what ran.
    host.default = "nvidia"
    assert service.due()
    golden(str(service.problem()))
    # The files as they are now are right, too: an edit of others that had not been loaded.
    host.default = "runc"
    assert (service.due(), service.problem()) == (False, None)


def test_a_process_that_did_not_answer_before_is_held_against_the_files_after_a_restore(host: Host, tmp_path: Path) -> None:
    host.silent = True
    service = opened(host, tmp_path)
    host.silent, host.default = False, "default"
    service.restored()
    assert service.problem() is not None
