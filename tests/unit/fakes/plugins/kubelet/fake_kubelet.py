# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A host whose kubelet runs under a systemd that does as the real one: it reads units at a daemon-reload, environment files at a start.

What kubelet is started with is worked out by a shell, and what it understands of it as kubelet's own sources do.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome

from unit.fakes.plugins.fake_root import FakeRoot

UNIT = "/lib/systemd/system/kubelet.service"
DROP_IN = "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf"
FOLDER = "/etc/systemd/system/kubelet.service.d"
CONFIG = "/var/lib/kubelet/config.yaml"
UNIT_TEXT = (
    "[Unit]\nDescription=kubelet\n\n[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n\n[Install]\nWantedBy=multi-user.target\n"
)

# What each release of kubelet lists in its --help, of the gates that matter here.
LISTED = {
    (1, 8): ("Accelerators", "DevicePlugins", "CPUManager"),
    (1, 9): ("Accelerators", "DevicePlugins", "CPUManager"),
    (1, 10): ("Accelerators", "DevicePlugins", "CPUManager"),
    (1, 15): ("DevicePlugins", "CPUManager"),
    (1, 25): ("DevicePlugins", "CPUManager"),
    (1, 27): ("CPUManager",),
    (1, 36): (),
    (1, 37): (),
    (1, 38): (),
}
KNOWN = {release: {*names, *({"DevicePlugins"} if (1, 8) <= release <= (1, 27) else set())} for release, names in LISTED.items()}


class Health(BaseHTTPRequestHandler):
    """Answers as kubelet's health check while the server's `well` is true."""

    def do_GET(self) -> None:
        self.send_response(200 if self.server.well else 500)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_arguments: Any) -> None:
        pass


def unquoted(value: str) -> str:
    """As systemd 252 reads it in an environment file: only quotes at the beginning count, and what follows them is joined on."""
    value, found = value.strip(), ""
    while value[:1] in ("'", '"'):
        inside, _quote, value = value[1:].partition(value[0])
        found, value = found + inside, value.lstrip()
    return found + value


class FakeKubelet:
    """One host. version such as "1.9.6"; files: path to text. It is started at once."""

    def __init__(self, folder: Path, version: str, files: dict[str, str]) -> None:
        self.root = FakeRoot(folder)
        self.version = version
        self.release = tuple(int(part) for part in version.split(".")[:2])
        self.calls: list[list[str]] = []
        self.rejects: set[str] = set()
        # What it answers instead, by the second word of a command; None: nothing in time.
        self.answers: dict[str, Outcome | None] = {}
        # sick: its health check fails; restless: it ends again and again; unnoticed: systemd does not see that a drop-in has come or gone.
        self.sick = self.restless = self.unnoticed = False
        self.pid, self.since, self.argv, self.gates, self.active = 0, 0.0, [], {}, "inactive"
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Health)
        self.server.well = False  # type: ignore[attr-defined]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.port = self.server.server_address[1]
        self.root.program("/usr/bin/kubelet", f"Kubernetes v{version}")
        self.root.file("/etc/hostname", "gpu1\n")
        self.root.link("/proc/self/ns/pid", "pid:[1]")
        for path, text in {UNIT: UNIT_TEXT, **files}.items():
            self.root.file(path, text.replace("10248", str(self.port)))
        self.loaded: dict[str, str] = {}
        self.reload()
        self.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def text(self, path: str) -> str | None:
        place = self.root.folder / path.lstrip("/")
        return place.read_text().replace(str(self.port), "10248") if place.exists() else None

    def units(self) -> dict[str, str]:
        drop_ins = sorted((self.root.folder / FOLDER.lstrip("/")).glob("*.conf"))
        paths = [UNIT, *(f"{FOLDER}/{one.name}" for one in drop_ins)]
        return {path: (self.root.folder / path.lstrip("/")).read_text() for path in paths}

    def reload(self) -> None:
        self.loaded = self.units()

    def start(self) -> None:
        """As systemd starts it with what it has loaded; kubelet ends at once if it does not understand its arguments."""
        environment: dict[str, str] = {}
        files: list[str] = []
        command: list[str] = []
        for text in self.loaded.values():
            for line in text.replace("\\\n", " ").splitlines():
                key, _equals, value = line.strip().partition("=")
                if key == "Environment":
                    environment.update(dict(word.split("=", 1) for word in shlex.split(value)))
                elif key == "EnvironmentFile":
                    files.append(value)
                elif key == "ExecStart" and value:
                    command = [value]
        for name in files:
            place = self.root.folder / name.lstrip("-/")
            if place.exists():
                lines = (
                    line.partition("=")
                    for line in place.read_text().replace("\\\n", "").splitlines()
                    if "=" in line and not line.startswith("#")
                )
                environment.update({key: unquoted(value) for key, _equals, value in lines})
        shell = f"set -- {command[0]}; for word; do printf '%s\\0' \"$word\"; done"
        out = subprocess.run(["sh", "-fc", shell], env=environment, capture_output=True, check=True).stdout
        self.argv = [word.decode() for word in out.split(b"\0")[:-1]]
        self.gates = self._understood()
        self.pid += 100
        self.since = time.time()
        well = set(self.gates) <= KNOWN[self.release] and not self.rejects & {name for name, value in self.gates.items() if value}
        self.active = "active" if well else "activating"
        self.server.well = well and not self.sick  # type: ignore[attr-defined]
        if well:
            self.root.file(f"/proc/{self.pid}/cmdline", b"".join(word.encode() + b"\0" for word in self.argv))

    def _understood(self) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for word in self.argv:
            name, _equals, value = word.partition("=")
            if name == "--config" and self.release >= (1, 10):
                found.update(yaml.safe_load(self.root.at(value).read_text()).get("featureGates") or {})
        for word in self.argv:
            name, _equals, value = word.partition("=")
            if name == "--feature-gates":
                found.update({gate: setting == "true" for gate, _e, setting in (pair.partition("=") for pair in value.split(",") if pair)})
        return found

    def run(self, argv: list[str], timeout: float) -> Outcome:
        self.calls.append(argv)
        if argv[1] in self.answers:
            return self.answers[argv[1]] or Outcome(argv, None, timed_out=timeout)
        if argv[0].endswith("/kubelet"):
            listed = "".join(f"{name}=true|false (BETA - default=true)\n" for name in LISTED[self.release])
            return Outcome(
                argv, 0, f"Kubernetes v{self.version}\n" if argv[1] == "--version" else f"--feature-gates ... Options are:\n{listed}"
            )
        if argv[:2] == ["systemctl", "show"]:
            if self.restless and len(self.calls) % 3 == 0:
                self.start()
            # A busy machine may stop this between the two clocks.
            now = max(time.monotonic() - time.time() for _ in range(5))
            since = int((self.since + now) * 1e6)
            drop_ins = " ".join(path for path in self.loaded if path != UNIT)
            return Outcome(
                argv,
                0,
                f"LoadState=loaded\nActiveState={self.active}\nMainPID={self.pid if self.active == 'active' else 0}\n"
                f"ExecStart={{ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet ; ignore_errors=no }}\n"
                f"ExecMainStartTimestampMonotonic={since}\n"
                f"FragmentPath={UNIT}\nDropInPaths={drop_ins}\n"
                f"NeedDaemonReload={'yes' if self.loaded != self.units() and not self.unnoticed else 'no'}\n",
            )
        if argv == ["systemctl", "daemon-reload"]:
            self.reload()
        elif argv == ["systemctl", "restart", "kubelet.service"]:
            self.start()
        elif argv[0] == "journalctl":
            return Outcome(argv, 0, "Error: unrecognized feature gate: what kubelet says\n")
        return Outcome(argv, 0)

    @property
    def restarts(self) -> int:
        return self.calls.count(["systemctl", "restart", "kubelet.service"])

    @property
    def reloads(self) -> int:
        return self.calls.count(["systemctl", "daemon-reload"])
