# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""This host as root reads it: files, units of systemd, environments of processes.

The daemons' own users can write some of it. So a file is read up to a limit, only if it is a regular one, and never through a link
in its last place: the folders above it are root's, or systemd's.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

from gpushare_runtime.errors import GpushareError
from gpushare_runtime.settings import document
from gpushare_runtime.settings.dashboard import DashboardConfig
from gpushare_runtime.settings.device_plugin import DevicePluginConfig
from gpushare_runtime.settings.extender import ExtenderConfig
from gpushare_runtime.settings.schema import settings_of

T = TypeVar("T")

PLUGIN: Final = "gpushare-device-plugin"
EXTENDER: Final = "gpushare-extender"
DASHBOARD: Final = "gpushare-dashboard"
DAEMONS: Final = (PLUGIN, EXTENDER, DASHBOARD)

UNITS: Final = "/etc/systemd/system"
GENERATION: Final = "GPUSHARE_GENERATION"
"""The variable of a daemon's process with a hash of all that it reads at its start; the installer writes it into the settings
of the unit."""

MOST_BYTES: Final = 1024 * 1024
_SHOWN: Final = 300
_STATUS_SHOWN: Final = 4000
_SYSTEMCTL_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.2
_PROPERTIES: Final = ("LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "StatusText", "Result", "InvocationID")
_INVOCATION: Final = re.compile(r"[0-9a-f]{32}")
_SETTINGS: Final = re.compile(r"^EnvironmentFile=(/\S+)$", re.MULTILINE)
_START: Final = re.compile(r'^GPUSHARE_COMMAND="([^"\n]*)"$', re.MULTILINE)
_STAMP: Final = re.compile(rf"^{GENERATION}=(\S+)$", re.MULTILINE)
# Real, effective, saved and of the file system: the last one counts where a file is opened.
_USER: Final = re.compile(r"^Uid:\s+\d+\s+\d+\s+\d+\s+(\d+)$", re.MULTILINE)
# Each option of gpushare 0.1, and the field of a file that it is now.
_KEYS: Final = {each.option: each.key for owner in (DevicePluginConfig, ExtenderConfig, DashboardConfig) for each in settings_of(owner)}
_COPIED: Final = re.compile(r"\bfor file in ([^;]*);")


class CannotLook(GpushareError):
    """The doctor cannot read this host; it says why and what to do."""


@dataclass(frozen=True)
class DaemonUnit:
    """A service of ours: its file, and what systemd and the process say.

    text: None without a file. settings: of the file that the unit reads at each start. arguments: with which they start it; file_stamp,
    stamp: the generations of the settings and of the process, "" for one without, None for no process. says: its last status text, of
    which a message shows the first words. status: more of it, with each part of the daemon. load: whether systemd has read the unit, such
    as "masked". result: how its last process ended, such as "oom-kill". config: the fields of the file of settings that the arguments name.
    """

    name: str
    text: str | None
    settings: str = ""
    active: str = "unknown"
    state: str = ""
    enabled: bool = False
    says: str = ""
    pid: int = 0
    stamp: str | None = None
    status: str = ""
    load: str = ""
    result: str = ""
    config: Mapping[str, object] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """By the files. Not by the process, which may write there what it likes: files that are named here are read as root."""
        return _arguments(self.settings)

    @property
    def file_stamp(self) -> str:
        found = _STAMP.search(self.settings)
        return found.group(1) if found else ""

    def option(self, name: str) -> str:
        """The value of a setting by the name of its option, the last one of a list; "" without it."""
        return next(reversed(self.options(name)), "")

    def options(self, name: str) -> list[str]:
        """As `option`, of a setting that may have several values. In its file of settings, or as `--name value` of gpushare 0.1."""
        found = self.config.get(_KEYS.get(name, ""), [])
        values = list(map(str, found if isinstance(found, list) else [found]))
        return [*(value for word, value in pairwise(self.arguments) if word == f"--{name}"), *filter(None, values)]

    def file(self, name: str) -> str:
        """The path that an option names; where the unit copies a file of root's there for the process, that file."""
        path = self.option(name)
        copied = _COPIED.search(self.text or "")
        sources = copied.group(1).split() if copied and path else []
        return next((source for source in sources if posixpath.basename(source) == posixpath.basename(path)), path)


def _arguments(settings: str) -> list[str]:
    start = _START.search(settings)
    return start.group(1).split() if start else []


def printed(argv: Sequence[str]) -> str:
    """The output of a program of systemd. CannotLook if it fails."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SYSTEMCTL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotLook(f"{' '.join(argv)}: {error}; expected a host with systemd: run it on the host, not in a container") from None
    if done.returncode:
        raise CannotLook(f"{' '.join(argv)} failed with exit status {done.returncode}: {shown(done.stderr)}")
    return done.stdout


class HostReader:
    """root: "/" or a folder that stands for it. patience: seconds, in all, for what settles by itself."""

    def __init__(self, root: Path = Path("/"), ask: Callable[[Sequence[str]], str] = printed, patience: float = 20.0) -> None:
        self._root = root
        self._ask = ask
        self._patience = patience

    def wait(self, look: Callable[[], T], settled: Callable[[T], bool]) -> T:
        """The state that it sees, when that has settled or the patience is over. A busy host takes its time; a healthy one costs none."""
        began = time.monotonic()
        while not settled(seen := look()) and time.monotonic() - began < self._patience:
            time.sleep(_PAUSE_SECONDS)
        self._patience -= time.monotonic() - began
        return seen

    def at(self, path: str) -> Path:
        """Where a path of the host is for this process."""
        return self._root / path.lstrip("/")

    def read(self, path: str, most: int = MOST_BYTES) -> bytes | None:
        """The file's first bytes, None if there is no regular file that can be read."""
        try:
            # Opening must not wait: it could be a pipe.
            descriptor = os.open(self.at(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file")
                return file.read(most)
        except (OSError, ValueError):
            return None

    def settled_unit(self, name: str) -> DaemonUnit:
        """The service, after a wait for one that starts just now, as by systemd after the driver's library has been replaced."""
        return self.wait(partial(self.unit, name), lambda unit: unit.active != "activating")

    def unit(self, name: str) -> DaemonUnit:
        """The service and its process. CannotLook if systemd does not answer."""
        file = f"{name}.service"
        content = self.read(f"{UNITS}/{file}")
        properties = self._show(file, *_PROPERTIES)
        pid = int(properties.get("MainPID") or 0)
        text = None if content is None else content.decode("utf-8", "replace")
        settings = _SETTINGS.search(text or "")
        told = (self.read(settings.group(1)) or b"" if settings else b"").decode("utf-8", "replace")
        active, state, says = properties.get("ActiveState", "unknown"), properties.get("SubState", ""), properties.get("StatusText", "")
        if not says and (active == "failed" or state == "auto-restart"):
            says = self._last_line(properties.get("InvocationID", ""))
        return DaemonUnit(
            name,
            text,
            told,
            active,
            state,
            properties.get("UnitFileState") == "enabled",
            shown(says),
            pid,
            self._stamp(pid),
            shown(says, _STATUS_SHOWN),
            properties.get("LoadState", ""),
            properties.get("Result", ""),
            self._config(_arguments(told)),
        )

    def active(self, unit: str) -> str:
        """The state of any unit, such as "active". CannotLook if systemd does not answer."""
        return self._show(unit, "ActiveState").get("ActiveState", "unknown")

    def at_boot(self, unit: str) -> tuple[str, str]:
        """The state of any unit, and whether it starts at boot, such as "enabled" or "masked". CannotLook if systemd does not answer."""
        found = self._show(unit, "ActiveState", "UnitFileState")
        return found.get("ActiveState", "unknown"), found.get("UnitFileState", "")

    def mode_and_owner(self, path: str) -> tuple[int, int] | None:
        """The permission bits and the user of a regular file, None without one. Not through a link in its last place."""
        try:
            status = os.lstat(self.at(path))
        except (OSError, ValueError):
            return None
        return (stat.S_IMODE(status.st_mode), status.st_uid) if stat.S_ISREG(status.st_mode) else None

    def root_user(self) -> int:
        """The user to whom this host's own files belong."""
        return os.stat(self._root).st_uid

    def user_of(self, pid: int) -> int | None:
        """By whose rights a process opens files, None if it is gone."""
        found = _USER.search((self.read(f"/proc/{pid}/status", 4096) or b"").decode("ascii", "replace")) if pid else None
        return int(found.group(1)) if found else None

    def command(self, pid: int) -> str:
        """The first words of a process's command line, to be shown only."""
        return shown(b" ".join((self.read(f"/proc/{pid}/cmdline", 4096) or b"").split(b"\0")[:3]).decode("utf-8", "replace"))

    def _last_line(self, invocation: str) -> str:
        """The last line of the process of this start, such as an option that it does not know. Where it has written none, what systemd says
        of that start as an error, such as a folder that is missing. "" without a journal: the words of a process before explain nothing."""
        if not _INVOCATION.fullmatch(invocation):
            return ""
        for words in ([f"_SYSTEMD_INVOCATION_ID={invocation}"], ["-p", "err", f"INVOCATION_ID={invocation}"]):
            try:
                line = self._ask(["journalctl", "-q", "-o", "cat", "-n", "1", *words]).strip()
            except CannotLook:
                return ""
            if line:
                return line
        return ""

    def _show(self, unit: str, *properties: str) -> dict[str, str]:
        lines = (line.partition("=") for line in self._ask(["systemctl", "show", unit, f"--property={','.join(properties)}"]).splitlines())
        return {key: value for key, equals, value in lines if equals}

    def _config(self, arguments: Sequence[str]) -> Mapping[str, object]:
        """The fields of the file of settings that the words of a unit name; none without a file that can be read, which its daemon says."""
        path = next((value for word, value in pairwise(arguments) if word == "--config"), "")
        try:
            return document.plain(self.read(path) or b"", path) if path else {}
        except document.SettingsError:
            return {}

    def _stamp(self, pid: int) -> str | None:
        data = self.read(f"/proc/{pid}/environ") if pid else None
        if data is None:
            return None
        key = f"{GENERATION}=".encode()
        return next((word.removeprefix(key).decode("ascii", "replace") for word in data.split(b"\0") if word.startswith(key)), "")


def shown(text: str, most: int = _SHOWN) -> str:
    """Of what others wrote, what a message shows: one line of so many characters."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return words if len(words) <= most else f"{words[:most]}…"
