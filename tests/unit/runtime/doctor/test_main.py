# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-doctor as a whole: which daemons it looks at, what it prints, and its exit status."""

from __future__ import annotations

import base64
import hashlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.core.protocol import RESOURCE_GPUS, RESOURCE_MEMORY
from gpushare_runtime.doctor import endpoints, identity, kubelet, main
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import EXTENDER, PLUGIN, CannotLook, DaemonUnit
from gpushare_runtime.doctor.kubelet import SocketOwner
from gpushare_runtime.doctor.main import look
from unit.fakes.runtime.doctor.fake_host import COMMANDS, ENVIRONMENT, SAYS, Clock, FakeHost, said
from unit.fakes.runtime.kube.tokens import jwt
from unit.golden import Golden

FOLDER = "/var/lib/kubelet/device-plugins"
SOCKETS = ("aliyungpushare-mem-0123cdef.sock", "aliyungpushare-gpus-4567cdef.sock")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """With both daemons as they should be, but for certificates, which the extender here does without."""
    host = FakeHost(tmp_path)
    environment = host.at(ENVIRONMENT)
    content = b"x = 1\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    host.file(f"{ENVIRONMENT}/lib/python3.11/site-packages/gpushare_runtime/x.py", content)
    record = f"{ENVIRONMENT}/lib/python3.11/site-packages/gpushare_runtime-0.1.0.dist-info/RECORD"
    host.file(record, f"gpushare_runtime/x.py,sha256={digest},6\n")
    # The units name their programs as the host has them, the doctor its own place.
    commands = {name: command.replace(ENVIRONMENT, str(environment)) for name, command in COMMANDS.items()}
    commands[EXTENDER] = commands[EXTENDER].replace("--tls-cert", "--x").replace("--client-ca", "--y")
    host.install(PLUGIN, 77, command=commands[PLUGIN])
    host.install(EXTENDER, 78, command=commands[EXTENDER], StatusText="all is well")
    now = time.time()
    for name in (PLUGIN, EXTENDER):
        host.file(f"/var/lib/{name}/token", jwt(now - 100, now + 300, account=name))
    for name in SOCKETS:
        host.socket(f"{FOLDER}/{name}")
    devices = {RESOURCE_MEMORY: ["GPU-1-_-0"], RESOURCE_GPUS: ["GPU-1"]}
    host.file(f"{FOLDER}/kubelet_internal_checkpoint", json.dumps({"Data": {"RegisteredDevices": devices}}))
    monkeypatch.setattr(kubelet, "listener", lambda path: 77)
    monkeypatch.setattr(identity, "api_status", lambda kubeconfig, token, node: 200)
    monkeypatch.setattr(endpoints, "_get", lambda *_arguments, **_more: (200, b'{"synced": true, "filter_calls": 3}'))
    return host


def of(host: FakeHost, *expected: str) -> Findings:
    return look(host, host.at(ENVIRONMENT), expected)


def test_a_host_without_a_fault_has_no_finding_and_all_was_looked_at(host: FakeHost) -> None:
    found = of(host)
    assert said(found) == []
    assert found.daemons == {
        PLUGIN: {"runs": True, "active": "active", "state": "running", "says": SAYS, "pid": 77, "listens": "", "metrics": ""},
        EXTENDER: {
            "runs": True,
            "active": "active",
            "state": "running",
            "says": "all is well",
            "pid": 78,
            "listens": "127.0.0.1:32766",
            "metrics": "",
        },
    }
    assert found.health == {"filter_calls": 3, "unauthorized_calls": 0, "why": ""}
    assert (found.strangers, found.registered) == ([], {RESOURCE_MEMORY: ["GPU-1"], RESOURCE_GPUS: ["GPU-1"]})


def test_the_daemons_that_are_looked_at(host: FakeHost, golden: Golden) -> None:
    assert list(of(host, EXTENDER).daemons) == [EXTENDER]
    host.at(f"/etc/systemd/system/{PLUGIN}.service").unlink()
    assert list(of(host).daemons) == [EXTENDER]
    assert said(of(host)) == []
    found = of(host, PLUGIN)
    assert [code for code, _ in said(found)] == ["plugin_missing"]
    assert found.daemons == {}
    host.at(f"/etc/systemd/system/{EXTENDER}.service").unlink()
    with golden.raised(CannotLook):
        of(host)


def codes(host: FakeHost) -> list[str]:
    return [code for code, _ in said(of(host))]


def test_a_daemon_that_does_not_run_is_not_asked_what_only_one_that_runs_can_answer(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(*_arguments: Any, **_more: Any) -> tuple[int, bytes]:
        raise AssertionError

    monkeypatch.setattr(endpoints, "_get", get)
    last = "API server: not reached; gpus: GPU 0 is omitted: no memory; GPUs of pods: p on GPU 1, which is not in this node any more"
    for name in (PLUGIN, EXTENDER):
        command = f"{' '.join(host.unit(name).arguments)} --metrics-listen 127.0.0.1:9440"
        host.install(name, 0, command=command, ActiveState="failed", MainPID="0", StatusText=last)
        host.file(f"/var/lib/{name}/token", "no token")
    for name in SOCKETS:
        host.at(f"{FOLDER}/{name}").unlink()
    host.file(f"{FOLDER}/kubelet_internal_checkpoint", "{}")
    # A token is judged all the same: it may be the reason.
    assert codes(host) == ["plugin_stopped", "token_missing", "extender_down", "token_missing"]
    assert of(host).health is None


def test_another_plugin_is_named_and_not_that_ours_is_not_registered(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.socket(f"{FOLDER}/other.sock")
    host.file("/proc/300/cmdline", b"other\0")
    monkeypatch.setattr(kubelet, "listener", lambda path: 77 if path.name == SOCKETS[1] else 300)
    host.file(f"{FOLDER}/kubelet_internal_checkpoint", "{}")
    found = of(host, PLUGIN)
    assert [code for code, _ in said(found)] == ["second_plugin"]
    assert found.strangers == [{"name": "other.sock", "pid": 300, "process": "other"}]


def test_a_dra_driver_is_named_beside_a_plugin_that_serves_kubelet(host: FakeHost) -> None:
    """Below the root that the unit names."""
    host.install(PLUGIN, command=f"{' '.join(host.unit(PLUGIN).arguments)} --kubelet-root /data/kubelet")
    host.socket("/data/kubelet/plugins_registry/gpu.nvidia.com-reg.sock")
    ((code, words),) = said(of(host, PLUGIN))
    assert (code, words.count("listening on gpu.nvidia.com-reg.sock")) == ("second_plugin", 1)


def test_a_plugin_that_waits_for_kubelet_is_not_called_stopped(host: FakeHost) -> None:
    for name in SOCKETS:
        host.at(f"{FOLDER}/{name}").unlink()
    for active, state in (("activating", "start"), ("active", "running")):
        waits = "aliyun.com/gpu-mem: waiting for kubelet; API server: watching the pods of this node"
        host.states[f"{PLUGIN}.service"].update(ActiveState=active, SubState=state, StatusText=waits)
        found = of(host, PLUGIN)
        assert [code for code, _ in said(found)] == ["plugin_not_registered"] * 2
        assert all("waiting for kubelet" in words for _, words in said(found))


def test_a_plugin_that_kubelet_has_from_its_former_process_only_is_not_registered(host: FakeHost) -> None:
    host.states[f"{PLUGIN}.service"].update(StatusText="aliyun.com/gpu-mem: kubelet rejects the registration (UNKNOWN: x); " + SAYS[44:])
    found = of(host, PLUGIN)
    waits = "a device plugin that waits to be registered for aliyun.com/gpu-mem (the plugin says: aliyun.com/gpu-mem: kubelet rejects"
    assert [(code, words[: len(waits)]) for code, words in said(found)] == [("plugin_not_registered", waits)]


@pytest.mark.parametrize(("pids", "looks", "expected"), [([1, 2, 2], 2, (2, [2])), ([1, 2, 3, 4, 5], 4, (4, [4])), ([1, 1], 1, (1, [1]))])
def test_a_plugin_that_restarts_while_it_is_looked_at_is_looked_at_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, pids: list[int], looks: int, expected: tuple[int, list[int]]
) -> None:
    following, done = iter(pids), []

    def unit(_name: str) -> DaemonUnit:
        return DaemonUnit(PLUGIN, "", "", "active", "running", True, "", next(following), "", status=SAYS)

    def listeners(*_: object) -> list[SocketOwner]:
        done.append(True)
        return [SocketOwner("x", len(done), "")]

    monkeypatch.setattr(host, "unit", unit)
    monkeypatch.setattr(kubelet, "listeners", listeners)
    found = of(host, PLUGIN)
    assert (found.daemons[PLUGIN]["pid"], [one["pid"] for one in found.strangers]) == expected
    assert len(done) == looks


@pytest.mark.parametrize(("starts", "checks", "seconds"), [(0, [], 0), (12, [], 12), (60, ["plugin_stopped", "extender_down"], 20)])
def test_a_daemon_that_systemd_starts_again_just_now_has_time_for_it(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, starts: float, checks: list[str], seconds: float
) -> None:
    """All daemons share the time: the doctor answers while somebody waits."""
    busy = FakeHost(host.at("/"), patience=20)
    busy.states = host.states

    def then(passed: float) -> None:
        for state in (host.states[f"{name}.service"] for name in (PLUGIN, EXTENDER)):
            active, how = ("activating", "auto-restart") if passed < starts else ("active", "running")
            state.update(ActiveState=active, SubState=how)

    clock = Clock(monkeypatch, then)
    found = look(busy, host.at(ENVIRONMENT), (PLUGIN, EXTENDER))
    assert [code for code, _ in said(found)] == checks
    assert seconds <= clock.passed <= seconds + 1


def test_files_of_the_runtime_that_are_damaged_are_named_though_the_rest_cannot_be_loaded(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules["gpushare_runtime.doctor"], "daemons")
    monkeypatch.setitem(sys.modules, "gpushare_runtime.doctor.daemons", None)
    with pytest.raises(CannotLook, match=r"does not work: .*ImportError|ModuleNotFoundError"):
        of(host)
    host.file(f"{ENVIRONMENT}/lib/python3.11/site-packages/gpushare_runtime/x.py", "x = (")
    assert codes(host) == ["runtime_differs"]


# The command


@pytest.fixture
def installed(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """What the command takes for this host, and for its own environment."""
    monkeypatch.setattr(main, "HostReader", lambda: host)
    monkeypatch.setattr(sys, "prefix", str(host.at(ENVIRONMENT)))
    monkeypatch.setattr(main.os, "geteuid", lambda: 0)
    return host


def test_without_findings_the_exit_status_is_0(installed: FakeHost, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{PLUGIN}: active (running), PID 77, {SAYS}",
        f"{EXTENDER}: active (running), PID 78, all is well",
        "",
        "findings: 0",
    ]
    assert main.main(["--output", "json", EXTENDER]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["v"], answer["findings"], list(answer["daemons"])) == (1, [], [EXTENDER])
    assert signal.alarm(0) == 0


def test_with_findings_it_is_1(installed: FakeHost, capsys: pytest.CaptureFixture[str]) -> None:
    installed.states[f"{EXTENDER}.service"]["UnitFileState"] = "disabled"
    assert main.main([EXTENDER]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "",
        "! extender_not_at_boot",
        "    found     gpushare-extender.service not enabled",
        "    expected  it started at boot",
        "    do        systemctl enable gpushare-extender",
        "",
        "findings: 1",
    ]
    assert main.main([EXTENDER, "--output", "json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding == {
        "check": "extender_not_at_boot",
        "severity": "warning",
        "found": "gpushare-extender.service not enabled",
        "expected": "it started at boot",
        "cure": "systemctl enable gpushare-extender",
    }


def test_what_cannot_be_looked_at_is_2(installed: FakeHost, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as usage:
        main.main(["sshd"])
    assert usage.value.code == 2
    assert "found sshd; expected gpushare-device-plugin or gpushare-extender" in capsys.readouterr().err
    # A daemon that answers a byte at a time.
    monkeypatch.setattr(main, "_SECONDS", 1)
    monkeypatch.setattr(endpoints, "_get", lambda *_arguments, **_more: time.sleep(60))
    assert main.main([]) == 2
    said_ = capsys.readouterr()
    assert (said_.out, said_.err.startswith("gpushare-doctor: not done after 1 seconds; expected")) == ("", True)
    monkeypatch.setattr(main.os, "geteuid", lambda: 1000)
    assert main.main([]) == 2
    assert "run it with sudo" in capsys.readouterr().err
