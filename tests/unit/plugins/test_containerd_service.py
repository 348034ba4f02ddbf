# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""containerd as a service: what systemd and the CRI say decides, never what we hope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _containerd_service, _cri
from ansible_collections.gpushare.kubernetes.plugins.module_utils._command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._containerd import Refused
from ansible_collections.gpushare.kubernetes.plugins.module_utils._containerd_files import Installation
from ansible_collections.gpushare.kubernetes.plugins.module_utils._containerd_service import (
    ContainerdService,
    RestartError,
    Unit,
    check_program,
    find_unit,
)

from unit.plugins.containerds import model

START = "{ path=/usr/bin/containerd ; argv[]=/usr/bin/containerd --config /srv/c.toml $OPTIONS ; ignore_errors=no ; pid=7 }"


class Host:
    """systemd, the journal and the CRI of a host."""

    def __init__(self) -> None:
        self.properties = {"LoadState": "loaded", "ActiveState": "active", "KillMode": "process", "MainPID": "7", "ExecStart": START}
        self.argvs: list[list[str]] = []
        self.restart = Outcome([], 0)
        self.journal = "time=1 level=info msg=starting\n"
        self.default = "runc"
        self.conditions = {"RuntimeReady": (True, ""), "NetworkReady": (True, "")}
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

    def status(self, _address: str, _timeout: float) -> _cri.Status:
        if self.silent:
            raise _cri.CriError("the container runtime does not answer")
        entry = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": ""}}
        return _cri.Status(dict(self.conditions), {"containerd": {"defaultRuntimeName": self.default, "runtimes": {"runc": entry}}})


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr(_cri, "status", host.status)
    monkeypatch.setattr(_containerd_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(_containerd_service, "STEADY_SECONDS", 0.05)
    monkeypatch.setattr(_containerd_service, "arguments_of", lambda _pid: [])
    return host


@pytest.fixture
def service(host: Host, tmp_path: Path) -> ContainerdService:
    (tmp_path / "config.toml").write_text("version = 2\n")
    installation = Installation(model("1.7.24"), str(tmp_path / "config.toml"))
    return ContainerdService(unit(host), installation, host.run, 0.3)


def unit(host: Host) -> Unit:
    return find_unit("containerd.service", host.run, lambda _pid: [])


def test_the_unit_is_read_and_the_process_knows_its_arguments_best(host: Host) -> None:
    found = unit(host)
    assert (found.program, found.config, found.address, found.main_pid) == ("/usr/bin/containerd", "/srv/c.toml", None, 7)
    of_process = ["/usr/bin/containerd", "-c", "/run/c.toml", "--address=/run/own.sock"]
    found = find_unit("containerd.service", host.run, {7: of_process}.__getitem__)
    assert (found.config, found.address) == ("/run/c.toml", "/run/own.sock")
    host.properties["ExecStart"] = "{ path=/usr/bin/containerd ; argv[]=/usr/bin/containerd ; }"
    assert unit(host).config == "/etc/containerd/config.toml"


def test_a_host_without_the_unit_is_refused(host: Host) -> None:
    host.properties = {"LoadState": "not-found", "ActiveState": "inactive"}
    with pytest.raises(Refused, match=r"no service containerd.service .*gpushare_container_runtime_unit"):
        unit(host)


def test_a_daemon_that_does_not_run_is_not_touched_unless_it_may_be_our_doing(host: Host) -> None:
    host.properties["ActiveState"] = "failed"
    with pytest.raises(Refused, match="is failed, expected active; nothing was changed"):
        unit(host).check_running(False)
    unit(host).check_running(True)


@pytest.mark.parametrize("mode", ["control-group", "mixed"])
def test_a_restart_that_ends_containers_needs_leave(host: Host, mode: str) -> None:
    host.properties["KillMode"] = mode
    with pytest.raises(Refused, match=f"KillMode={mode}"):
        unit(host).check_restart(True, False)
    unit(host).check_restart(True, True)
    unit(host).check_restart(False, False)


def test_a_restart_is_due_only_if_the_process_differs_from_the_files(host: Host, service: ContainerdService) -> None:
    assert not service.due()
    host.default = "nvidia"
    assert service.due()
    host.default, host.silent = "runc", True
    assert service.due()


def test_a_good_restart(host: Host, service: ContainerdService) -> None:
    service.restart()
    assert service.healthy() is None
    assert [argv for argv in host.argvs if argv[1] in ("reset-failed", "restart")] == [
        ["systemctl", "reset-failed", "containerd.service"],
        ["systemctl", "restart", "containerd.service"],
    ]


def test_a_refused_restart_says_what_containerd_complains_of(host: Host, service: ContainerdService) -> None:
    host.restart = Outcome([], 1, err="Job for containerd.service failed")
    host.journal = 'level=info msg="starting"\nlevel=warning msg="failed to load plugin cri"\ncontainerd: no way\nlevel=info msg="done"\n'
    with pytest.raises(RestartError) as error:
        service.restart()
    assert str(error.value) == (
        "systemctl restart containerd.service failed: Job for containerd.service failed. It said:\n"
        'level=warning msg="failed to load plugin cri"\ncontainerd: no way'
    )
    host.restart = Outcome([], None, timed_out=5.0)
    with pytest.raises(RestartError, match="did not end within 5 s"):
        service.restart()


def break_(host: Host, **how: Any) -> None:
    for key, value in how.items():
        setattr(host, key, value)


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
    break_(host, **how)
    problem = service.healthy()
    assert problem is not None
    assert problem.startswith(f"containerd.service is not healthy after 0.3 s: {reason}. It said:\n")


def test_systemd_has_the_last_word(host: Host, service: ContainerdService) -> None:
    host.properties["ActiveState"] = "activating"
    assert "systemd says that it is activating" in str(service.healthy())


def test_a_network_that_was_not_there_before_is_not_asked_for(host: Host, tmp_path: Path) -> None:
    host.conditions["NetworkReady"] = (False, "no CNI yet")
    (tmp_path / "config.toml").write_text("version = 2\n")
    service = ContainerdService(unit(host), Installation(model("1.7.24"), str(tmp_path / "config.toml")), host.run, 0.3)
    assert service.healthy() is None


def test_the_program_has_to_work(tmp_path: Path) -> None:
    def run(argv: list[str], _timeout: float) -> Outcome:
        return Outcome(argv, 127, err="libnvidia-container.so.1: cannot open shared object file")

    path = tmp_path / "nvidia-container-runtime"
    assert "does not exist or cannot be executed: install NVIDIA's container toolkit" in str(check_program(str(path), run))
    path.write_text("")
    path.chmod(0o755)
    assert "does not work (libnvidia-container.so.1: cannot open" in str(check_program(str(path), run))
    assert check_program(str(path), lambda argv, _timeout: Outcome(argv, 0)) is None
