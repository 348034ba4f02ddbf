# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A folder that stands for a host with our daemons: their units as the roles write them, and what systemd and /proc say of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import DASHBOARD, EXTENDER, PLUGIN, HostReader

ENVIRONMENT = "/opt/gpushare/0.1.0-0123456789ab"
STAMP = "0123456789abcdef"
COPIES = "/run/gpushare-extender-copies"
DASHBOARD_COPIES = "/run/gpushare-dashboard-copies"
WATCHES = "API server: watching the pods of this node"
SAYS = f"aliyun.com/gpu-mem: registered with kubelet; aliyun.com/gpu-count: registered with kubelet; {WATCHES}"

UNITS = {
    PLUGIN: """\
[Service]
EnvironmentFile=/etc/gpushare/gpushare-device-plugin.env
ExecStartPre=+/bin/mkdir -p /var/lib/kubelet/device-plugins
ExecStart=/usr/bin/env $GPUSHARE_COMMAND
""",
    EXTENDER: f"""\
[Service]
EnvironmentFile=/etc/gpushare/gpushare-extender.env
ExecStartPre=+/bin/sh -ec 'owner=$(stat -c %%u "$RUNTIME_DIRECTORY"); install -d -m 0711 {COPIES}; for file in \
/etc/gpushare/extender.kubeconfig /etc/gpushare/extender.token /etc/gpushare/extender-metrics.token /etc/gpushare/pki/extender.crt \
/etc/gpushare/pki/extender.key /etc/gpushare/pki/ca.crt; do \\
  copy="{COPIES}/$(basename "$file")"; \\
  done'
ExecStart=/usr/bin/env $GPUSHARE_COMMAND
""",
    DASHBOARD: f"""\
[Service]
EnvironmentFile=/etc/gpushare/gpushare-dashboard.env
ExecStartPre=+/bin/sh -ec 'for file in /etc/gpushare/dashboard-viewer.token /etc/gpushare/dashboard-pki/dashboard.crt; do \\
  copy="{DASHBOARD_COPIES}/$(basename "$file")"; \\
  done'
ExecStart=/usr/bin/env $GPUSHARE_COMMAND
""",
}
COMMANDS = {
    PLUGIN: f"{ENVIRONMENT}/bin/gpushare-device-plugin --kubeconfig /etc/gpushare/device-plugin.kubeconfig"
    " --seed-token-file /etc/gpushare/device-plugin.token --token-file /var/lib/gpushare-device-plugin/token"
    " --kubelet-root /data/kubelet",
    EXTENDER: f"{ENVIRONMENT}/bin/gpushare-extender --kubeconfig {COPIES}/extender.kubeconfig"
    f" --seed-token-file {COPIES}/extender.token --token-file /var/lib/gpushare-extender/token --tls-cert {COPIES}/extender.crt"
    f" --tls-key {COPIES}/extender.key --client-ca {COPIES}/ca.crt --listen 127.0.0.1:32766",
    DASHBOARD: f"{ENVIRONMENT}/bin/gpushare-dashboard --token-file /var/lib/gpushare-dashboard/token"
    f" --viewer-token-file {DASHBOARD_COPIES}/dashboard-viewer.token --tls-cert {DASHBOARD_COPIES}/dashboard.crt"
    " --host-name gpus.example.org --listen 127.0.0.1:9442",
}


def settings(name: str, command: str | None = None, stamp: str = STAMP) -> str:
    """The file that the unit reads at each start."""
    return f'# A comment.\nGPUSHARE_GENERATION={stamp}\nGPUSHARE_COMMAND="{COMMANDS[name] if command is None else command}"\n'


class FakeHost(HostReader):
    """One without units; `install` gives it some. Every path given is as the host sees it. patience: as HostReader has it."""

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        super().__init__(folder, self._answer, patience)
        self.states: dict[str, dict[str, str]] = {}
        self.asked: list[list[str]] = []
        # By the condition under which journalctl is asked for them.
        self.last_lines: dict[str, str] = {}

    def file(self, path: str, content: str | bytes = "") -> None:
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
        place.chmod(0o600)

    def socket(self, path: str) -> None:
        place = self.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as sock:
            # Through a folder of /proc, because a socket's whole path may have few characters only.
            descriptor = os.open(place.parent, os.O_RDONLY)
            sock.bind(f"/proc/self/fd/{descriptor}/{place.name}")
            os.close(descriptor)

    def install(self, name: str, pid: int = 77, text: str | None = None, command: str | None = None, **state: str) -> None:
        """The unit, its settings, and a process that runs it."""
        self.file(f"/etc/systemd/system/{name}.service", UNITS[name] if text is None else text)
        self.file(f"/etc/gpushare/{name}.env", settings(name, command))
        self.file(f"/proc/{pid}/environ", f"A=1\0GPUSHARE_GENERATION={STAMP}\0".encode())
        says = SAYS if name == PLUGIN else ""
        running = {
            "ActiveState": "active",
            "SubState": "running",
            "UnitFileState": "enabled",
            "LoadState": "loaded",
            "MainPID": str(pid),
            "StatusText": says,
        }
        self.states[f"{name}.service"] = {**running, **state}
        for end in (".socket", "-metrics.socket"):
            self.states[name + end] = {"ActiveState": "active"}

    def real_ports(self, *pids: int) -> None:
        """Who listens where is this machine's; what is open in these processes is what this one has open."""
        self.at("/proc").mkdir(exist_ok=True)
        self.at("/proc/net").symlink_to("/proc/self/net")
        for pid in pids:
            self.at(f"/proc/{pid}").mkdir(exist_ok=True)
            self.at(f"/proc/{pid}/fd").symlink_to(f"/proc/{os.getpid()}/fd")

    def _answer(self, arguments: Sequence[str]) -> str:
        self.asked.append(list(arguments))
        if arguments[0] == "journalctl":
            return self.last_lines.get(arguments[-1], "")
        assert list(arguments[:2]) == ["systemctl", "show"]
        state = self.states.get(arguments[2], {"ActiveState": "inactive", "SubState": "dead", "MainPID": "0"})
        return "".join(f"{key}={value}\n" for key, value in state.items())


class Clock:
    """Virtual time for a host's patience. then: what has happened when so many seconds have passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[float], None]) -> None:
        self.passed = 0.0
        self._then = then
        monkeypatch.setattr("gpushare_runtime.doctor.host.time", self)
        then(0.0)

    def monotonic(self) -> float:
        return 100 + self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        self._then(self.passed)


def said(found: Findings) -> list[tuple[str, str]]:
    """What was found, under which code; a warning says so before its code. Each has its three parts."""
    assert all(one.found and one.expected and one.cure for one in found.findings)
    return [(one.check if one.severity == "error" else f"{one.severity} {one.check}", one.found) for one in found.findings]
