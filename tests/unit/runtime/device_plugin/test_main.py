# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The command: its flags and environment, what it says when they cannot be used, how it ends."""

from __future__ import annotations

import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare_runtime.core.quantity import UNITS
from gpushare_runtime.daemon.runner import EXIT_FAILED, EXIT_SETTINGS, Status
from gpushare_runtime.device_plugin.options import PluginSettings, parse_arguments
from gpushare_runtime.kube.service_account import TokenFiles
from unit.fakes.runtime.device_plugin.command import start
from unit.fakes.runtime.device_plugin.fake_kubelet import FakeKubelet
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, serving, until
from unit.fakes.runtime.kube.tokens import TokenApi

# The command with an NVML that fails as told in the first argument: always, or from the second reading on.
_WITHOUT_NVML = """
import sys
from gpushare_runtime.device_plugin.main import main
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml

class Failing(FakeNvml):
    def start(self):
        super().start()
        if how == "always":
            raise NvmlError("libnvidia-ml.so.1 was not found: install the driver")

    def count(self):
        count, self.count = super().count(), self.replaced
        return count

    def replaced(self):
        raise NvmlError("libnvidia-ml.so.1 was replaced", reload=True)

how = sys.argv.pop(1)
sys.exit(main(sys.argv[1:], Failing(16384)))
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_NAME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "NOTIFY_SOCKET", "WATCHDOG_USEC", "STATE_DIRECTORY", "LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)


def test_the_environment_of_the_original_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "gpu1")
    monkeypatch.setenv("KUBECONFIG", "/etc/kubernetes/x.conf")
    assert parse_arguments([]) == PluginSettings("gpu1", UNITS["GiB"], "/etc/kubernetes/x.conf", Path("/var/lib/kubelet"), log_level="info")


def test_the_command_line_of_the_original_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "gpu1")
    line = ["-logtostderr", "--v=5", "--memory-unit=MiB", "--health-check=true", "--mps=false"]
    assert parse_arguments(line) == PluginSettings("gpu1", UNITS["MiB"], log_level="debug")


def test_options_of_the_original_without_a_purpose_here_are_taken_and_said() -> None:
    line = ["--node-name=a", "--mps", "--query-kubelet", "--kubelet-port=10250", "--client-cert", "/c", "--timeout=10"]
    settings = parse_arguments(line)
    assert [note.split(": ")[0] for note in settings.notes] == ["--mps", "--query-kubelet, --kubelet-port, --client-cert, --timeout"]
    assert parse_arguments(["--node-name=a", "--mps=false", "--query-kubelet=false"]).notes == ()


def test_a_kubeconfig_that_is_not_there_means_the_pods_own_account_as_in_the_original(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBECONFIG", str(root / "kubeconfig"))
    assert parse_arguments(["--node-name=a"]).kubeconfig is None
    (root / "kubeconfig").touch()
    assert parse_arguments(["--node-name=a"]).kubeconfig == str(root / "kubeconfig")
    assert parse_arguments(["--node-name=a", "--kubeconfig=/none"]).kubeconfig == "/none"


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "gpu1")
    given = ["--node-name", "gpu2", "--kubelet-root", "/k", "--memory-unit", "256MiB", "--log-level", "warning"]
    assert parse_arguments(given) == PluginSettings("gpu2", UNITS["256MiB"], None, Path("/k"), log_level="warning")
    # kubelet's root does not move it.
    assert str(parse_arguments(given).device_plugins_dir) == "/var/lib/kubelet/device-plugins"
    given += ["--seed-token-file", "/s", "--token-file", "/t", "--token-seconds", "7200"]
    assert TokenFiles.of(parse_arguments(given)) == TokenFiles(Path("/s"), Path("/t"), 7200)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "set NODE_NAME or --node-name"),
        (["--node-name=a", "--memory-unit=GB"], "choose from 'GiB', '256MiB', '128MiB', '64MiB', 'MiB'|choose from GiB"),
        (["--node-name=a", "--seed-token-file=/s"], "--seed-token-file and --token-file go together"),
        (["--node-name=a", "--log-level=warn"], "'warn' is not one of debug, info, warning, error"),
        (["--node-name=a", "--metrics-listen=9440"], "'9440' is not an IP address and a port from 1 to 65535, such as 127.0.0.1:9440"),
        (["--node-name=a", "--metrics-listen=0.0.0.0:9440"], "give --metrics-token-file as well, or 127.0.0.1"),
    ],
)
def test_what_cannot_be_used_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments)
    assert ended.value.code == EXIT_SETTINGS
    assert any(part in capsys.readouterr().err for part in said.split("|"))


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as name:
        yield Path(name)


@pytest.fixture
def systemd(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What systemd would receive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(root / "notify"))
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(root / "notify"))
        yield receiver


def received(receiver: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(receiver.recv(65536).decode())
        except BlockingIOError:
            return messages


def hears(receiver: socket.socket) -> Callable[[str], bool]:
    """Whether something was said since now."""
    messages: list[str] = []

    def said(text: str) -> bool:
        messages.extend(received(receiver))
        return any(text in message for message in messages)

    return said


async def test_readiness_watchdog_and_sigterm(root: Path, systemd: socket.socket, api: FakeApi) -> None:
    (root / "kubeconfig").write_text(kubeconfig(api.url, token="t"))
    kubelet = FakeKubelet(root)
    process = start(root, WATCHDOG_USEC="300000")
    said = hears(systemd)
    try:
        await until(lambda: said("waiting for kubelet"), seconds=20)
        await until(lambda: said("READY=1"))
        assert not said("registered with kubelet")
        await until(lambda: said("WATCHDOG=1"))
        await kubelet.start()
        await until(lambda: said("aliyun.com/gpu-mem: registered with kubelet") and said("aliyun.com/gpu-count: registered with kubelet"))
        assert {resource for resource, _ in kubelet.registrations} == {"aliyun.com/gpu-mem", "aliyun.com/gpu-count"}
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None)
        assert (process.returncode, said("STOPPING=1")) == (0, True)
        assert list((root / "device-plugins").glob("aliyungpushare*")) == []
    finally:
        process.kill()
        process.communicate()
        await kubelet.stop()


async def test_without_nvml_it_says_so_and_kubelet_does_not_start_behind_it(root: Path, systemd: socket.socket, api: FakeApi) -> None:
    (root / "kubeconfig").write_text(kubeconfig(api.url, token="t"))
    kubelet = FakeKubelet(root)
    await kubelet.start()
    process = start(root, command=_WITHOUT_NVML, first="always")
    said = hears(systemd)
    try:
        await until(lambda: said("STATUS=gpus: libnvidia-ml.so.1 was not found"), seconds=20)
        await until(lambda: said("API server: watching"), seconds=20)
        assert kubelet.registrations == []
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None, seconds=20)
        assert (process.returncode, said("READY=1"), kubelet.registrations) == (0, False, [])
    finally:
        process.kill()
        process.communicate()
        await kubelet.stop()


async def test_a_library_that_was_replaced_ends_it_so_that_systemd_starts_it_anew(root: Path, api: FakeApi) -> None:
    (root / "kubeconfig").write_text(kubeconfig(api.url, token="t"))
    process = start(root, command=_WITHOUT_NVML, first="later")
    try:
        await until(lambda: process.poll() is not None, seconds=20)
    finally:
        process.kill()
    _, errors = process.communicate()
    assert process.returncode == EXIT_FAILED
    assert "libnvidia-ml.so.1 was replaced: ending, because only a new process can continue" in errors


async def test_the_token_is_part_of_the_status(root: Path, systemd: socket.socket) -> None:
    async with serving(TokenApi()) as api:
        assert isinstance(api, TokenApi)
        api.now = time.time()
        (root / "kubeconfig").write_text(kubeconfig(api.url))
        process = start(root, "--seed-token-file", str(root / "seed"), "--token-file", str(root / "token"))
        said = hears(systemd)
        try:
            await until(lambda: said(f"token: no token works: {root}/token is missing; the seed {root}/seed is missing"), seconds=20)
            (root / "seed").write_text(api.give(3600))
            await until(lambda: said("token: good until "), seconds=20)
            await until(lambda: said("API server: watching the pods of this node"), seconds=20)
            assert (root / "token").read_text().strip() in api.good
        finally:
            process.kill()
            process.communicate()


def test_a_missing_kubeconfig_ends_it_with_the_reason(root: Path) -> None:
    process = start(root)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == EXIT_SETTINGS
    assert f"kubeconfig {root}/kubeconfig: no such file" in errors


def test_what_waits_for_others_has_started_without_doing_its_work(systemd: socket.socket) -> None:
    status = Status(required=["memory", "whole"])
    status.waits("memory")
    status.degraded("memory", "waiting for kubelet")
    assert (status.ready, received(systemd)) == (False, ["STATUS=memory: waiting for kubelet"])
    status.ok("whole", "registered")
    assert (status.ready, received(systemd)) == (True, ["READY=1\nSTATUS=memory: waiting for kubelet; whole: registered"])
    assert (status.report()[0], status.readiness()) == (False, (["memory"], []))
    status.waits("whole")
    status.wait_no_longer()
    assert received(systemd) == []
    status.ok("memory", "registered")
    assert (status.report()[0], status.readiness()) == (True, ([], []))


def test_what_lacks_all_has_started_when_others_have_waited_long_enough(systemd: socket.socket) -> None:
    status = Status(required=["memory", "whole"])
    assert not status.report()[0]
    status.wait_no_longer()
    assert (status.ready, status.report()[0], received(systemd)) == (True, False, ["READY=1"])


def test_a_long_part_leaves_room_for_the_others_in_systemds_message(systemd: socket.socket) -> None:
    status = Status(required=["memory"])
    for part in ("gpus", "MPS", "CDI"):
        status.degraded(part, "x" * 9000)
    status.ok("memory", "registered")
    message = received(systemd)[-1]
    assert (message.endswith("x…; memory: registered"), len(message.encode()) < 4096) == (True, True)
    assert "x" * 9000 in status.report()[1]


def test_what_is_wrong_comes_first_and_ready_comes_once(systemd: socket.socket) -> None:
    status = Status(required=["memory", "whole"])
    status.ok("memory", "registered")
    status.degraded("gpus", "lost")
    status.ok("whole", "registered")
    status.ok("whole", "registered")
    status.degraded("whole", "gone")
    status.ok("whole", "registered")
    assert received(systemd) == [
        "STATUS=memory: registered",
        "STATUS=gpus: lost; memory: registered",
        "READY=1\nSTATUS=gpus: lost; memory: registered; whole: registered",
        "STATUS=gpus: lost; whole: gone; memory: registered",
        "STATUS=gpus: lost; memory: registered; whole: registered",
    ]
