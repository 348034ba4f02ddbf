# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kubelet under systemd, as what a transaction restarts and verifies.

Whether a restart is due is asked of the running process: its arguments, and whether it is older than a file of ours. It is healthy when
the same process answers its health check, has the gates, and the API server has a heartbeat and Ready from after the restart.
"""

from __future__ import annotations

import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.transaction import Service
from .._change.undo import Rejected
from .._facts.stopped_unit import COMPLAINT
from .._formats.failure import Failure
from .._formats.versions import numbers
from .._formats.yaml_scalars import scalars
from .._host.command import RunWithin
from .._host.host import Host, flag
from .._host.systemd import parsed, show_command, unix_time
from . import gates
from .arguments import ArgumentsError, StartFile, environment_file_paths, start_of
from .config_file import KEY
from .plan import DROP_IN, KubeletState

POLL_SECONDS = 0.5
# So long the same process must have lived: one that systemd restarts again and again has not.
STEADY_SECONDS = 2.0
ASK_SECONDS = 10.0
HEALTH_PORT = 10248
_SAYS = re.compile(r"Kubernetes (v[0-9][^\s]*)")
_LISTED = re.compile(r"\b(\w+)=true\|false")
_GPU = re.compile(r"/dev/nvidia\d+")
_UNIT_FOLDERS = ("/etc/systemd/", "/usr/lib/systemd/", "/lib/systemd/", "/run/systemd/")
#: Whether the API server has seen the node Ready since that Unix time, as kubelet itself may ask; None if it has.
Ready = Callable[[float], Optional[str]]


class KubeletRestartError(Failure):
    """systemd says no; the message has its words and kubelet's."""


@dataclass(frozen=True)
class KubeletUnit:
    """kubelet's unit. since: start of its process in Unix time; reload: whether a file of it has changed and systemd has not read it."""

    name: str
    active: str
    pid: int
    since: float
    program: str
    reload: bool


def find_unit(name: str, run: RunWithin) -> Tuple[KubeletUnit, List[str]]:
    """The unit as systemd knows it, and its files in the order in which they count. It raises Rejected if there is none."""
    names = ("LoadState", "ActiveState", "MainPID", "ExecStart", "ExecMainStartTimestampMonotonic", "FragmentPath", "DropInPaths")
    outcome = run(show_command(name, *names, "NeedDaemonReload"), ASK_SECONDS)
    found = parsed(outcome.out) if outcome.ok else {}
    match = re.search(r"path=(\S+) ;", found.get("ExecStart", ""))
    if found.get("LoadState") != "loaded" or match is None:
        raise Rejected(
            f"systemd has no service {name} that starts kubelet (LoadState is {found.get('LoadState', 'unknown')}); nothing was changed: "
            "kubelets of k3s, RKE2, MicroK8s and OpenShift take their feature gates from these distributions' own settings"
        )
    since = unix_time(found.get("ExecMainStartTimestampMonotonic"))
    paths = [path for path in (found.get("FragmentPath", ""), *found.get("DropInPaths", "").split()) if path]
    pid, reload = int(found.get("MainPID") or 0), found.get("NeedDaemonReload") == "yes"
    return KubeletUnit(name, found.get("ActiveState", ""), pid, since, match.group(1), reload), paths


def look(host: Host, unit: KubeletUnit, unit_paths: Sequence[str], run: RunWithin) -> KubeletState:
    """The host's kubelet as it will be started next. It raises Rejected if that cannot be told."""
    outcome = run([host.outside(unit.program), "--version"], ASK_SECONDS)
    match = _SAYS.search(outcome.out)
    version = numbers(match.group(1)) if match else None
    if not outcome.ok or version is None or len(version) < 2:
        raise Rejected(f"{unit.program} --version names no version ({outcome.words[:80] or 'no output'}); nothing was changed")
    # One of ours that systemd has not read yet counts, because the restart comes with a reload.
    paths = [*unit_paths, *([DROP_IN] if DROP_IN not in unit_paths and host.exists(DROP_IN) else [])]
    units = [StartFile(path, host.text(path) or "") for path in paths]
    files = []
    for path, optional in environment_file_paths(units):
        text = host.text(path)
        if text is None and not optional:
            raise Rejected(f"{path} does not exist, and {unit.name} does not start without it; nothing was changed")
        files.append(StartFile(path, text or ""))
    try:
        start = start_of(units, files)
    except ArgumentsError as error:
        raise Rejected(f"{error} ({', '.join(paths)}); nothing was changed") from error
    named = flag(start.argv, "config")
    said = host.text(named) if named else None
    texts = {source.path: source.text for source in [*units, *files]}
    config = None if named is None or said is None else (named, said)
    folder = flag(start.argv, "config-dir")
    names = [name for name in host.names(folder) if name.endswith(".conf")] if folder else []
    over = [path for path in (f"{folder}/{name}" for name in names) if KEY in (host.text(path) or "")]
    return KubeletState((version[0], version[1]), start, config, texts, [source.path for source in units], over)


def settable(program: str, run: RunWithin) -> Optional[List[str]]:
    """The gates that this kubelet itself says it can be given; None if it lists none. It hides those that are locked."""
    outcome = run([program, "--help"], ASK_SECONDS)
    return _LISTED.findall(outcome.out + outcome.err) or None


def gpu_containers(host: Host) -> List[int]:
    """Processes in containers that have a GPU open, by PID. systemd may take their GPUs away when it reads its units again."""
    own, found = host.link("/proc/self/ns/pid"), []
    for name in host.names("/proc"):
        if name.isdigit() and host.link(f"/proc/{name}/ns/pid") not in (None, own):
            targets = (host.link(f"/proc/{name}/fd/{number}") or "" for number in host.names(f"/proc/{name}/fd"))
            if any(_GPU.fullmatch(target) for target in targets):
                found.append(int(name))
    return found


class KubeletService(Service):
    """The kubelet of one host. wanted: the gates that must be on after the change; ours: files that we change or have changed."""

    def __init__(
        self, host: Host, unit: KubeletUnit, run: RunWithin, ready: Optional[Ready], ours: Sequence[str], timeout: float, allow_reload: bool
    ) -> None:
        self.unit = unit
        self.restarted_at: Optional[float] = None
        self._host, self._run, self._ready, self._timeout = host, run, ready, timeout
        self._ours, self._allow_reload = list(ours), allow_reload

    def due(self) -> bool:
        """Whether the running kubelet has other gates than its next start would have, as far as files of ours are concerned."""
        unit, paths = find_unit(self.unit.name, self._run)
        if unit.pid == 0:
            return True
        return self._lacks(unit, look(self._host, unit, paths, self._run)) is not None

    def restart(self) -> None:
        """Restart it; KubeletRestartError if systemd says no, or must not read its units again while containers use GPUs."""
        unit, paths = find_unit(self.unit.name, self._run)
        stale = (DROP_IN not in paths and self._host.exists(DROP_IN)) or (DROP_IN in paths and not self._host.exists(DROP_IN))
        if (unit.reload or stale) and any(path.startswith(_UNIT_FOLDERS) for path in self._ours):
            self.check_reload()
            self._systemctl("daemon-reload")
        self._run(["systemctl", "reset-failed", self.unit.name], ASK_SECONDS)
        self.restarted_at = time.time()
        self._systemctl("restart", self.unit.name)

    def check_reload(self) -> None:
        """Raise Rejected if a daemon-reload could take the GPUs from running containers, unless it is allowed."""
        users = [] if self._allow_reload else gpu_containers(self._host)
        if users:
            raise Rejected(
                "kubelet's arguments stand in files of systemd alone, which must be read again (systemctl daemon-reload), and "
                f"{len(users)} processes in containers use a GPU now (such as {users[0]}): systemd could take it from them. Nothing was "
                "changed: drain the node, or set gpushare_kubelet_allow_daemon_reload"
            )

    def problem(self) -> Optional[str]:
        """None once it is healthy; what is wrong when the time is over."""
        deadline = time.monotonic() + self._timeout
        steady, steady_since = 0, 0.0
        while True:
            unit, paths = find_unit(self.unit.name, self._run)
            reason = self._reason(unit, paths)
            if reason is not None or unit.pid != steady:
                steady, steady_since = (unit.pid if reason is None else 0), time.monotonic()
                reason = reason or "it was started just now"
            elif time.monotonic() - steady_since < STEADY_SECONDS:
                reason = "it was started just now"
            elif self._ready is not None:
                reason = self._ready(unit.since)
            if reason is None:
                return None
            if time.monotonic() > deadline:
                return f"{self.unit.name} is not healthy after {self._timeout:g} s: {reason}. It said:\n{self.journal()}"
            time.sleep(POLL_SECONDS)

    def journal(self) -> str:
        """Its last words since the restart: errors, if there are any."""
        since = f"--since=@{int(self.restarted_at or self.unit.since)}"
        outcome = self._run(["journalctl", "--unit", self.unit.name, since, "--no-pager", "--output=cat"], ASK_SECONDS)
        lines = outcome.out.splitlines()
        errors = [line for line in lines if COMPLAINT.match(line)]
        return "\n".join(line[:500] for line in (errors or lines)[-10:]) or "(its journal is empty)"

    def _reason(self, unit: KubeletUnit, paths: Sequence[str]) -> Optional[str]:
        if unit.active != "active" or unit.pid == 0:
            return f"systemd says that it is {unit.active or 'unknown'}"
        found = look(self._host, unit, paths, self._run)
        lacks = self._lacks(unit, found)
        return lacks or healthz(found)

    def _lacks(self, unit: KubeletUnit, found: KubeletState) -> Optional[str]:
        words = (self._host.data(f"/proc/{unit.pid}/cmdline") or b"").rstrip(b"\0").split(b"\0")
        try:
            running = gates.from_words([os.fsdecode(word) for word in words])
            wanted = gates.from_words(found.start.argv)
        except gates.GateError as error:
            return str(error)
        differing = [name for name in gates.TABLE if running.get(name) != wanted.get(name)]
        if differing:
            return f"the running kubelet has other arguments for {', '.join(differing)} than its files"
        if found.config is not None and found.config[0] in self._ours:
            try:
                # Of Unix time to the second: a kubelet that was started in the same second may have read either.
                changed = os.stat(self._host.outside(found.config[0])).st_mtime
            except OSError as error:
                return f"{found.config[0]}: {error.strerror}"
            if changed > unit.since + 0.001:
                return f"kubelet runs since before {found.config[0]} was changed"
        return None

    def _systemctl(self, *words: str) -> None:
        outcome = self._run(["systemctl", *words], max(self._timeout, ASK_SECONDS))
        if not outcome.ok:
            why = f"did not end within {outcome.timed_out:g} s" if outcome.timed_out else f"failed: {outcome.words}"
            raise KubeletRestartError(f"systemctl {' '.join(words)} {why}. It said:\n{self.journal()}")


def healthz(found: KubeletState) -> Optional[str]:
    """None if kubelet's own health check says that it is well, or is switched off; else what it says."""
    values: Dict[str, str] = scalars(found.config[1]) if found.config is not None else {}
    port = flag(found.start.argv, "healthz-port") or values.get("healthzPort") or str(HEALTH_PORT)
    address = flag(found.start.argv, "healthz-bind-address") or values.get("healthzBindAddress") or "127.0.0.1"
    if not port.isdigit() or int(port) == 0:
        return None
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}/healthz"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ASK_SECONDS) as reply:
            return None if reply.status == 200 else f"{url} answers {reply.status}"
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}: {error.read(200)!r}"
    except (OSError, ValueError) as error:
        return f"{url} cannot be read: {error}"


def written(texts: Mapping[str, Optional[str]]) -> bool:
    """Whether one of these paths is a file that systemd reads at a daemon-reload only."""
    return any(path.startswith(_UNIT_FOLDERS) for path in texts)
