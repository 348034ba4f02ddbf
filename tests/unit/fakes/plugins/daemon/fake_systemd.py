# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A systemd with one service, which the tests of daemons run against."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.service import Daemon, Health, apart


class Systemd:
    """systemctl and journalctl of one service: a unit that is read once, and settings that are read at each start; or it fails."""

    def __init__(self, units: Path, starts: bool = True) -> None:
        self.path, self.starts = units / "gpushare-x.service", starts
        self.settings = units / "gpushare-x.env"
        self.hurts: str | None = None
        self.loaded: str | None = None
        self.running: str | None = None
        # systemd's clock, in seconds.
        self.started = 0.0
        self.enabled = False
        self.status = ""
        self.calls: list[str] = []
        self.copies: dict[str, str] = {}

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        verb = argv[1] if argv[0] == "systemctl" else argv[0]
        if verb in ("enable", "disable"):
            assert "--no-reload" in argv, "systemctl would reload systemd by itself"
        if verb not in ("show", "journalctl", "is-enabled"):
            self.calls.append(verb)
        answer: Callable[[], tuple[int, str, str]] = getattr(self, "on_" + verb.replace("-", "_"))
        return answer()

    def on_show(self) -> tuple[int, str, str]:
        active, pid = ("active", 42) if self.running is not None else ("failed", 0)
        on_disk = self.path.read_text() if self.path.exists() else None
        reload_due = "no" if self.loaded in (None, on_disk) else "yes"
        load = "not-found" if self.loaded is None else "loaded"
        found = f"LoadState={load}\nMainPID={pid}\nActiveState={active}\nNeedDaemonReload={reload_due}\nStatusText={self.status}\n"
        found += f"ExecMainStartTimestampMonotonic={int(self.started * 1e6)}\n"
        return 0, found, ""

    def on_is_enabled(self) -> tuple[int, str, str]:
        return (0 if self.enabled else 1), "", ""

    def on_stop(self) -> tuple[int, str, str]:
        self.running = None
        return 0, "", ""

    def on_journalctl(self) -> tuple[int, str, str]:
        return 0, "it said this\n", ""

    def on_daemon_reload(self) -> tuple[int, str, str]:
        self.loaded = self.path.read_text() if self.path.exists() else None
        return 0, "", ""

    def on_enable(self) -> tuple[int, str, str]:
        self.enabled = True
        return 0, "", ""

    def on_disable(self) -> tuple[int, str, str]:
        self.enabled = False
        return 0, "", ""

    def on_reload(self) -> tuple[int, str, str]:
        self.copy()
        return 0, "", ""

    def copy(self) -> None:
        """What the unit's own commands do."""
        for source, copy in self.copies.items():
            Path(copy).write_bytes(Path(source).read_bytes())

    def on_restart(self) -> tuple[int, str, str]:
        if self.loaded is None:  # a unit that is new to systemd is read when it is started
            self.loaded = self.path.read_text()
        self.running = self.settings.read_text() if self.starts else None
        self.started = time.monotonic()
        self.copy()
        return (0, "", "") if self.starts else (1, "", "Job failed.")

    def environ(self, pid: str) -> bytes:
        assert pid == "42"
        return b"\0".join([b"HOME=/", *(line.encode() for line in (self.running or "").splitlines())]) + b"\0"

    def write(self, unit: str, part: str) -> None:
        """As the module does."""
        text, settings = apart(unit, str(self.settings), [part])
        self.path.write_text(text)
        self.settings.write_text(settings)

    def daemon(self, *read: Path) -> Daemon:
        """read: further files that the process reads at its start."""
        folder, further = str(self.path.parent), list(map(str, read))
        return Daemon("gpushare-x", Health(None, "synced", 0), self, self.environ, folder, self.copies, folder, lambda: self.hurts, further)
