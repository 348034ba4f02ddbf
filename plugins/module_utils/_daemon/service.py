# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One of our daemons under systemd, which a transaction restarts and verifies.

The unit gives its process a hash of all that it reads at its start. So the running process itself says whether it is older
than the files, also after a run that was killed between writing and restarting.

The parts that differ from release to release, the command line and that hash, are in a file that systemd reads at each start. So a new
release needs no `systemctl daemon-reload`, which could take the GPUs from running containers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.subjects import SETTINGS
from .._change.transaction import Service
from .._change.undo import Texts
from .._formats.failure import Failure
from .._host.command import Run
from .._host.files import read_state
from .._host.systemd import UNITS, show, unix_time
from .health import fetch_json, unhealthy

VARIABLE = "GPUSHARE_GENERATION"
COMMAND = "GPUSHARE_COMMAND"
#: Where the files are that our units read at each start, unless it is said otherwise.
_SETTINGS_HEAD = "# Copyright: gpushare.kubernetes contributors\n# systemd reads this at each start of the service. site.yml replaces it.\n"
_START = re.compile(r"^ExecStart=((?:.*\\\n)*.*)$", re.MULTILINE)
_WORD = re.compile(r"[\w@+=:,./~\[\]-]+", re.ASCII)
POLL_SECONDS = 0.3
_INVOCATION = re.compile(r"[0-9a-f]{32}")
_ERROR = re.compile(r"(?:ERROR|CRITICAL) |\S+: error: ")
_LINES = 25
# Of a status, in a message.
_SHOWN = 500
#: Each setting of a daemon with an address that it listens on, and how its socket unit is called after the daemon's name.
LISTENING = {"listen": ".socket", "metricsListen": "-metrics.socket"}
#: The same as options, of a daemon without a file of settings.
_OPTIONS = {"--listen": "listen", "--metrics-listen": "metricsListen"}
#: Units that run by themselves, also after a boot; others are started by them.
_RUNNING = (".timer", ".socket")
_SOCKET = """\
# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
[Unit]
Description=gpushare: {address} belongs to {name}, also while it restarts
StartLimitIntervalSec=0

[Socket]
Service={name}.service
ListenStream={address}
BindIPv6Only=ipv6-only
# The host may get the address later.
FreeBind=yes
# The address is kept, however often the service fails.
TriggerLimitIntervalSec=0

[Install]
WantedBy=sockets.target {name}.service
"""


class SystemdError(Failure):
    """systemctl rejected; the message has its words."""


def generation(parts: Sequence[Optional[str]]) -> str:
    """A short hash of everything that the process reads at its start; changes when any of it does."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()[:16]


def apart(unit: str, settings: str, parts: Sequence[Optional[str]]) -> Tuple[str, str]:
    """The unit, which is the same in every release, and its file `settings`: the command line and the generation of `parts`.

    systemd reads such a file at each start of the service, but the unit only at a daemon-reload. SystemdError for what it cannot hold.
    """
    head, section, rest = unit.partition("[Service]\n")
    if not section:
        raise SystemdError("the unit must have a line [Service]")
    found, words = _START.search(rest), command_line(unit)
    if found is None:
        raise SystemdError("the unit must have a line ExecStart=")
    for word in words:
        if not _WORD.fullmatch(word):
            raise SystemdError(
                f"the command line of the unit has {word[:80]!r}; a word may have letters, digits and @+=:,./~[]-: change the "
                "variable that it comes from"
            )
    start = f"EnvironmentFile={settings}\n{rest[: found.start()]}ExecStart=/usr/bin/env ${COMMAND}{rest[found.end() :]}"
    command = " ".join(words)
    return head + section + start, f'{_SETTINGS_HEAD}{VARIABLE}={generation(parts)}\n{COMMAND}="{command}"\n'


def command_line(unit: str) -> List[str]:
    """The words with which a unit starts its process."""
    found = _START.search(unit)
    return found.group(1).replace("\\\n", " ").split() if found else []


def sockets(name: str, unit: str, config: Mapping[str, Any]) -> Dict[str, Optional[str]]:
    """The socket units of a daemon by name, None for one that shall not be there: one for each address that its settings have.

    config: its file of settings, empty for a daemon whose settings are options of its unit. root holds the address, so no other user gets
    it while the daemon restarts. The daemon's own unit needs no change for them.
    """
    words = command_line(unit)
    addresses = {_OPTIONS[option]: words[at + 1] for at, option in enumerate(words[:-1]) if option in _OPTIONS}
    addresses.update({key: str(config[key]) for key in LISTENING if config.get(key)})
    return {name + end: _SOCKET.format(name=name, address=addresses[key]) if key in addresses else None for key, end in LISTENING.items()}


class Health:
    """Where the daemon reports its health, which key must be true, and how many seconds it has. url None: systemd's word counts.

    ca: for https, the certificate authority's file. also: what else must be so, as a message of what is wrong, None if nothing is.
    says: words that must all be in the status that it reports to systemd.
    """

    def __init__(
        self,
        url: Optional[str],
        key: str,
        timeout: float,
        ca: Optional[str] = None,
        also: Callable[[], Optional[str]] = lambda: None,
        says: Sequence[str] = (),
    ) -> None:
        self.url = url
        self.key = key
        self.timeout = timeout
        self.ca = ca
        self.also = also
        self.says = says


class Daemon(Service):
    """A systemd service of ours. `run` executes systemctl and journalctl, `environ` reads a process's environment.

    copies: file to the copy that the unit makes of it, at its start and when it is told to reload, for a process that may not read it.
    settings: the folder of the file that the unit reads at each start. exposed: as for `Systemd`. read: further files that the process
    reads at its start, and not again.
    """

    def __init__(
        self,
        name: str,
        health: Health,
        run: Run,
        environ: Callable[[str], bytes],
        units: str = UNITS,
        copies: Optional[Mapping[str, str]] = None,
        settings: str = SETTINGS,
        exposed: Callable[[], Optional[str]] = lambda: None,
        read: Sequence[str] = (),
    ) -> None:
        self.unit = f"{name}.service"
        self.path = os.path.join(units, self.unit)
        self.settings = os.path.join(settings, f"{name}.env")
        self._manager = Systemd(run, exposed)
        self._health = health
        self._run = run
        self._environ = environ
        self._copies = dict(copies or {})
        #: All that the process is as old as.
        self.read_at_start = (self.path, self.settings, *read)

    def due(self) -> bool:
        """Whether what runs is older than the files on the disk, or is not started at boot."""
        return self.is_stale() or self.has_old_copies() or self._is_disabled()

    def is_stale(self) -> bool:
        """Whether what runs was not started from the unit on the disk, whose hash covers all that it reads but its copies.

        Or a file was written after its start, or systemd knows another unit: a person changed them by hand, and it may run so. The hash
        stands in one of the files, and says nothing of a person's changes in the others.
        """
        wanted, found = self.wanted_generation(), self._show()
        if wanted is None:
            return found.get("ActiveState", "inactive") not in ("inactive", "failed")
        return wanted != self.running_generation() or found.get("NeedDaemonReload") == "yes" or self._is_older(found)

    def _is_older(self, found: Mapping[str, str]) -> bool:
        """Whether a file that the process reads at its start was written after that. A time that is still to come is none of a write."""
        started = found.get("ExecMainStartTimestampMonotonic", "0")
        if not started.isdigit() or started == "0":
            return False
        return any(unix_time(started) < written <= time.time() for written in map(_written, self.read_at_start[1:]))

    def has_old_copies(self) -> bool:
        """Whether a file differs from the copy that the process reads."""
        if self.running_generation() is None:
            return False
        return any(content_of(source) != content_of(copy) for source, copy in self._copies.items())

    def restart(self) -> None:
        """Have the files on the disk in use, at boot too. Where only copies are old, it is not restarted but told to reload."""
        if self.is_stale():
            self.start_anew()
        elif self.has_old_copies():
            self.reload()
        if self._is_disabled():
            self.enable()

    def start_anew(self) -> None:
        """Run the unit on the disk, at boot too, or nothing if there is none. SystemdError if it does not come up."""
        if self.wanted_generation() is None:
            self._run(["systemctl", "stop", self.unit])
            self._run(["systemctl", "disable", "--no-reload", "--quiet", self.unit])
            return
        if self._show().get("NeedDaemonReload") == "yes":
            self._manager.reload(self.unit)
        self.enable()
        self._must("restart", self.unit)

    def stop(self) -> None:
        """Until it is started again. Fails for a unit that systemd does not know; what needs it stopped fails if it runs on."""
        self._run(["systemctl", "stop", self.unit])

    def reload(self) -> None:
        """Have the unit make its copies again, and the process read them."""
        self._must("reload", self.unit)

    def enable(self) -> None:
        """Have it started at boot. Without the daemon-reload that systemctl adds otherwise: what is enabled here is started, too."""
        self._must("enable", "--no-reload", "--quiet", self.unit)

    def _is_disabled(self) -> bool:
        """Whether it is not started at boot, but there. The files are asked, since systemd keeps what it has once answered."""
        return read_state(self.path) is not None and self._run(["systemctl", "is-enabled", "--quiet", self.unit])[0] != 0

    def needs_reload(self, changes: Collection[str]) -> bool:
        """Whether the way there is a daemon-reload. changes: the paths of the files that are to be written."""
        found = self._show()
        return found.get("NeedDaemonReload") == "yes" or (self.path in changes and found.get("LoadState") == "loaded")

    def problem(self) -> Optional[str]:
        """None once it runs and its health report is good; what is wrong, in its own words, when its time is over."""
        deadline = time.monotonic() + self._health.timeout
        while True:
            reason = self._reason()
            if reason is None:
                return None
            if time.monotonic() > deadline:
                return f"{self.unit} is not healthy after {self._health.timeout} s: {reason}. It said:\n{self.journal()}"
            time.sleep(POLL_SECONDS)

    def wanted_generation(self) -> Optional[str]:
        """The generation in the unit's settings on the disk, "" without them, None if there is no unit."""
        if read_state(self.path) is None:
            return None
        found = re.search(rf"^{VARIABLE}=(\S+)$".encode(), content_of(self.settings) or b"", re.MULTILINE)
        return found.group(1).decode("ascii", "replace") if found else ""

    def running_generation(self) -> Optional[str]:
        """The generation that the running process was started with, "" if it has none, None if nothing runs."""
        properties = self._show()
        if properties.get("ActiveState") != "active":
            return None
        for variable in self._environ(properties.get("MainPID", "0")).split(b"\0"):
            key, _dummy, value = variable.partition(b"=")
            if key == VARIABLE.encode():
                return value.decode("ascii", "replace")
        return ""

    def journal(self) -> str:
        """Its last words since it was last started; the last error among them comes first."""
        invocation = show(self._run, self.unit, "InvocationID").get("InvocationID", "")
        of_this = [f"_SYSTEMD_INVOCATION_ID={invocation}"] if _INVOCATION.fullmatch(invocation) else []
        out = ""
        # A start that systemd itself gives up has left no words of its own.
        for which in filter(None, (of_this, ["--unit", self.unit])):
            out = out or self._run(["journalctl", *which, f"--lines={_LINES}", "--no-pager", "--output=cat"])[1].strip()
        lines = out.splitlines()
        errors = [line for line in lines if _ERROR.match(line)]
        first = [errors[-1], "Before that:"] if errors and errors[-1] != lines[0] else []
        return "\n".join([*first, *lines]) or "(its journal is empty)"

    def _reason(self) -> Optional[str]:
        if self.is_stale():
            return "systemd does not run it from its unit file"
        if self.wanted_generation() is None:
            return None
        health = self._health
        report = None if health.url is None else unhealthy(*fetch_json(health.url, ca=health.ca), health.key)
        return report or self._unsaid() or health.also()

    def _unsaid(self) -> Optional[str]:
        """Which words its status lacks, None if it has all. A daemon has started before others let it do its work."""
        status = show(self._run, self.unit, "StatusText").get("StatusText", "") if self._health.says else ""
        missing = [words for words in self._health.says if words not in status]
        return f"its status must say {missing[0]!r}; it says {status[:_SHOWN]!r}" if missing else None

    def _show(self) -> Dict[str, str]:
        return show(self._run, self.unit, "LoadState", "ActiveState", "MainPID", "NeedDaemonReload", "ExecMainStartTimestampMonotonic")

    def _must(self, *args: str) -> None:
        try:
            self._manager.must(*args)
        except SystemdError as error:
            raise SystemdError(f"{error}. It said:\n{self.journal()}") from None


def content_of(path: str) -> Optional[bytes]:
    """The file's bytes, None if there is none."""
    state = read_state(path)
    return None if state is None else state.content


def _written(path: str) -> float:
    """The Unix time at which a file was written, 0 if there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def read_environ(pid: str) -> bytes:
    """/proc/PID/environ, b"" if the process is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return stream.read()
    except OSError:
        return b""


class Companions:
    """Units by name with their content, None for one that shall not be there."""

    def __init__(
        self,
        wanted: Mapping[str, Optional[str]],
        run: Run,
        units: str = UNITS,
        settings: str = SETTINGS,
        exposed: Callable[[], Optional[str]] = lambda: None,
    ) -> None:
        """settings, exposed: as for `Daemon`."""
        self.wanted = dict(wanted)
        self._run = run
        self._units = units
        self._settings = settings
        self._manager = Systemd(run, exposed)

    def texts(self) -> Texts:
        """Their files. SystemdError for a command line that cannot be one."""
        texts: Texts = {}
        for name, content in self.wanted.items():
            stem, _dot, kind = name.rpartition(".")
            settings = os.path.join(self._settings, f"{stem}.env")
            texts[self.path(name)] = content
            if kind == "service":
                both = (None, None) if content is None else apart(content, settings, [content])
                texts[self.path(name)], texts[settings] = both
        return texts

    def path(self, name: str) -> str:
        return os.path.join(self._units, name)

    def due(self) -> bool:
        """Whether systemd does not have them as they are wanted."""
        return any(self._is_off(name) for name in self.wanted)

    def settle(self) -> None:
        """Have systemd take them as their files are now. SystemdError with its own words."""
        there = [name for name in self.wanted if os.path.exists(self.path(name))]
        for name in self.wanted:
            if name not in there:
                # Before systemd hears that the file is gone: it would be left as failed.
                self._run(["systemctl", "stop", name])
                self._run(["systemctl", "disable", "--no-reload", "--quiet", name])
        old = [name for name in there if show(self._run, name, "NeedDaemonReload").get("NeedDaemonReload") == "yes"]
        if old:
            self._manager.reload(old[0])
        for name in there:
            if name.endswith(_RUNNING):
                self._manager.must("enable", "--no-reload", "--quiet", name)
                self._manager.must("restart" if name in old else "start", name)

    def sockets_are_due(self, changes: Collection[str] = ()) -> bool:
        """Whether systemd does not have the sockets as they are wanted. changes: the paths of the files that are to be written."""
        return any(self.path(name) in changes or self._is_off(name) for name in self._sockets())

    def stop_sockets(self) -> None:
        for name in self._sockets():
            # It fails for one that systemd does not know.
            self._run(["systemctl", "stop", name])

    def needs_reload(self, changes: Collection[str]) -> bool:
        """Whether the way there is a daemon-reload. changes: the paths of the files that are to be written."""
        for name, content in self.wanted.items():
            found = show(self._run, name, "LoadState", "NeedDaemonReload") if content is not None else {}
            if found.get("NeedDaemonReload") == "yes" or (self.path(name) in changes and found.get("LoadState") == "loaded"):
                return True
        return False

    def _sockets(self) -> List[str]:
        return [name for name in self.wanted if name.endswith(".socket")]

    def _is_off(self, name: str) -> bool:
        status = show(self._run, name, "LoadState", "ActiveState", "NeedDaemonReload")
        running = status.get("ActiveState") in ("active", "activating")
        if not os.path.exists(self.path(name)):
            return running
        if status.get("NeedDaemonReload") == "yes":
            return True
        return name.endswith(_RUNNING) and not (running and self._run(["systemctl", "is-enabled", "--quiet", name])[0] == 0)


class Systemd:
    """systemd itself. exposed: why a daemon-reload would hurt running containers, None if it would not."""

    def __init__(self, run: Run, exposed: Callable[[], Optional[str]]) -> None:
        self._run = run
        self._exposed = exposed

    def reload(self, unit: str) -> None:
        """Have it read all units again. SystemdError where that would hurt, or in its own words."""
        why = self._exposed()
        if why:
            raise SystemdError(rejection(unit, why))
        self.must("daemon-reload")

    def must(self, *args: str) -> None:
        """Call systemctl. SystemdError in its own words."""
        status, out, err = self._run(["systemctl", *args])
        if status != 0:
            raise SystemdError(f"systemctl {' '.join(args)} failed with exit status {status}: {(err or out).strip()}")


def rejection(unit: str, why: str) -> str:
    """The message instead of a daemon-reload that `unit` needs."""
    return (
        f"{unit} has changed, and systemd reads it at a daemon-reload only. {why}. Drain this node (gpushare_drain) and run again; "
        "nothing was changed"
    )


class Together(Service):
    """A daemon and its companions as one service of a transaction."""

    def __init__(self, daemon: Daemon, companions: Companions) -> None:
        self._daemon = daemon
        self._companions = companions

    def due(self) -> bool:
        return self._daemon.due() or self._companions.due()

    def restart(self) -> None:
        """Each of the two only if it is due itself."""
        # This is asked first: what the companions need makes systemd forget that the daemon's unit is another one.
        stale = self._daemon.is_stale()
        if self._companions.sockets_are_due():
            # systemd starts no socket beside its running service, and a call at one that is left would start that again.
            self._companions.stop_sockets()
            self._daemon.stop()
            if self._daemon.wanted_generation() is not None:
                # Before a socket has systemd read the unit: whether it is enabled is read with it, and kept.
                self._daemon.enable()
            stale = True
        if self._companions.due():
            self._companions.settle()
        if stale:
            self._daemon.start_anew()
        else:
            self._daemon.restart()

    def problem(self) -> Optional[str]:
        return self._daemon.problem()
