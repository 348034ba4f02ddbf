# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""docker under systemd: its daemon.json, and what its API says of the process.

dockerd reads runtimes and the default runtime again when it is told to reload, and no container ends. It is restarted only where that
does not suffice: a default runtime that is no longer in the file, or one that the command line names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.journal import Entry
from .._change.undo import Rejected, undone
from .._formats.json_edit import remove
from .._formats.versions import numbers
from .._host.command import RunWithin
from .._host.host import flag
from .._host.systemd import environment, expanded, parsed, show_command, words
from . import docker_config, unix_http
from .docker_config import DEFAULT, TABLE, DockerdStart, Source
from .plan import RUNTIME, Asked, RuntimePlan, Runtimes, SilentError, read_text
from .service import ASK_SECONDS, RestartError, RuntimeService, RuntimeUnit, arguments_of, find_unit

CONFIG = "/etc/docker/daemon.json"
SOCKET = "/run/docker.sock"
#: From here on dockerd checks a configuration by itself.
VALIDATES = (23,)
# A scratch start must not reach these places; all of them are options of the command line, too.
_PLACES = {"data-root": ("data-root", "graph"), "exec-root": ("exec-root",), "pidfile": ("pidfile",)}


class DockerService(RuntimeService):
    """One host's docker. config: path of its daemon.json, whether it is there or not."""

    def __init__(
        self, unit: RuntimeUnit, start: DockerdStart, reloads: bool, config: str, run: RunWithin, timeout: float, allowed: bool = False
    ) -> None:
        self.config = config
        self._start = start
        self._can_reload = reloads
        self._address = _address(start.words)
        super().__init__(unit, run, timeout, allowed)

    @classmethod
    def of(cls, unit: RuntimeUnit, config: Optional[str], run: RunWithin, timeout: float, allowed: bool = False) -> "DockerService":
        """Of this unit, with this daemon.json or the one that its command line names."""
        start, reloads = _next_start(unit, run)
        return cls(unit, start, reloads, config or start.value("config-file") or CONFIG, run, timeout, allowed)

    def present(self, asked: Asked) -> RuntimePlan:
        program, default = asked.program or "", asked.default
        text = read_text(self.config) or ""
        data = docker_config.parsed(self.config, text)
        changes, notes = docker_config.needed(data, self.config, self._start, program, default)
        if not changes:
            return RuntimePlan(docker_config.effective(data, self._start), notes=notes)
        after = docker_config.edited(text, changes)
        self._check(after)
        return RuntimePlan(self._effective(after), {self.config: after}, notes)

    def absent(self, entries: Sequence[Entry]) -> RuntimePlan:
        def reverted(path: str, now: str, original: str) -> Optional[str]:
            docker_config.parsed(path, now)  # It raises Rejected, with the line, where it is broken.
            return docker_config.reverted(now, original)

        found = undone(entries, reverted)
        texts = found.texts
        after = texts[self.config] if self.config in texts else read_text(self.config)
        self._check(after or "{}\n")
        return RuntimePlan(self._effective(after or ""), back=found)

    def paths(self) -> List[str]:
        return [path for path in [self.config] if os.path.exists(path)]

    def shown(self, text: str) -> str:
        return docker_config.masked(text)

    def wanted(self) -> Runtimes:
        return docker_config.effective(self._data(), self._start)

    def running(self) -> Tuple[Dict[str, Tuple[bool, str]], Runtimes]:
        info = self._info()
        return {"RuntimeReady": (True, "")}, Runtimes(info.get("DefaultRuntime") or "", info.get("Runtimes") or {})

    def differs(self, wanted: Runtimes, running: Runtimes) -> Optional[str]:
        return docker_config.not_running(wanted, running)

    def check_restart(self, plan: RuntimePlan) -> None:
        data = docker_config.parsed(self.config, plan.text(self.config) or "")
        ends = None if self.allowed or not self.lacks(plan.after) else self._ends(plan.after, data)
        if ends:
            raise Rejected(
                f"{ends}; nothing was changed: switch live-restore on in {self.config} and reload docker, or drain the node and set "
                "gpushare_container_runtime_allow_container_kill"
            )

    def restart(self) -> None:
        """Reload it if that suffices, otherwise restart it; RestartError where that would end containers and must not."""
        wanted, data = self.wanted(), self._data()
        if not self._reload_suffices(wanted, data):
            ends = None if self.allowed else self._ends(wanted, data)
            if ends:
                raise RestartError(ends)
            super().restart()
            return
        outcome = self._run(["systemctl", "reload", self.unit.name], self._timeout)
        if not outcome.ok:
            raise RestartError(f"systemctl reload {self.unit.name} failed: {outcome.words or 'it did not end'}. It said:\n{self.journal()}")

    def _effective(self, text: str) -> Runtimes:
        return docker_config.effective(docker_config.parsed(self.config, text), self._start)

    def _data(self) -> Dict[str, Any]:
        return docker_config.parsed(self.config, read_text(self.config) or "")

    def _info(self) -> Dict[str, Any]:
        # Its socket belongs to systemd, which would start it for the question.
        if find_unit(self.unit.name, self._run, arguments_of, "dockerd").active not in ("active", "reloading"):
            raise SilentError(f"{self.unit.name} does not run")
        return info(self._address, ASK_SECONDS)

    def _reload_suffices(self, wanted: Runtimes, data: Mapping[str, Any]) -> bool:
        """Whether the running dockerd gets there by reading its file again: from it, it takes what it says, not what it no longer says."""
        words = self.unit.arguments
        if (
            not self._can_reload
            or DockerdStart(self.unit.name, words, []).runtimes
            or (flag(words, DEFAULT) is not None and DEFAULT in data)
        ):
            return False
        try:
            running = self.running()[1]
        except SilentError:
            return False
        if running.default != wanted.default and DEFAULT not in data:
            return False
        return TABLE in data or RUNTIME not in wanted.entries

    def _ends(self, wanted: Runtimes, data: Mapping[str, Any]) -> Optional[str]:
        """Why the way to `wanted` would end containers; None if it would not."""
        if self._reload_suffices(wanted, data):
            return None
        try:
            found = self._info()
        except SilentError:
            return None
        count = int(found.get("ContainersRunning") or 0)
        if found.get("LiveRestoreEnabled") or not count:
            return None
        return f"restarting {self.unit.name} would end the {count} running containers of this host, because it runs without live-restore"

    def _check(self, text: str) -> None:
        """It raises Rejected, in dockerd's words, if it would not start with this daemon.json and its command line."""
        scratch = tempfile.mkdtemp(prefix="gpushare-docker-")
        try:
            candidate, nowhere = os.path.join(scratch, "daemon.json"), os.path.join(scratch, "nowhere")
            status, out, err = self.unit.program_call(self._run)(["--version"])
            release = numbers((re.search(r"version v?([0-9.]+)", out) or [""] * 2)[1])
            if status != 0 or release is None:
                raise Rejected(f"{self.unit.program} --version failed or names no version: {' '.join((out or err).split())[:200]}")
            if release[:1] >= VALIDATES:
                arguments = ["--validate"]
            else:
                # Older ones have no such option. This start ends at the first folder that it needs, after it has read everything.
                arguments = [f"--{option}={nowhere}/{option}" for option in _PLACES]
                for key in [key for keys in _PLACES.values() for key in keys]:
                    text = remove(text, (key,))
            for path, content in ((candidate, text), (nowhere, "")):
                with open(path, "w", encoding="utf-8", newline="") as stream:
                    stream.write(content)
            words = [*self._start.words, f"--config-file={candidate}", *arguments]
            status, out, err = self.unit.program_call(self._run)(words)
            if status != 0 and f"{nowhere}/" not in err:
                raise Rejected(f"dockerd rejects {self.config}: {self._located(err or out, candidate)}; nothing was changed")
        finally:
            shutil.rmtree(scratch)

    def _located(self, words: str, candidate: str) -> str:
        """dockerd's words with the places of what it complains of, in the files as they are now."""
        text = read_text(self.config) or ""
        words = " ".join(words.split())[-600:].replace(candidate, self.config)
        places = []
        for name in re.findall(r"([\w-]+): \(from flag", words):
            match = re.search(rf'"{re.escape(name)}"\s*:', text)
            if match:
                singular = re.sub("ies$", "y", name) if name.endswith("ies") else re.sub("s$", "", name)
                line = self._start.line_of(name) or self._start.line_of(singular) or f"the command line of {self.unit.name}"
                places.append(f"{self.config}:{text.count(chr(10), 0, match.start()) + 1} and {line}")
        return words + (f" ({'; '.join(places)})" if places else "")


def info(address: str, timeout: float) -> Dict[str, Any]:
    """The answer of docker's API about the process. SilentError if it does not answer."""
    body = unix_http.get(address, "/info", timeout)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SilentError(f"docker at {address} does not answer: {error}") from error
    if not isinstance(found, dict):
        raise SilentError(f"docker at {address} answers {body[:200].decode('utf-8', 'replace')}")
    return found


def _address(words: Sequence[str]) -> str:
    """The socket that the command line names."""
    for place, word in enumerate(words):
        value = word.partition("=")[2] if word.startswith("--host=") else next(iter(words[place + 1 : place + 2]), "")
        if (word.startswith("--host=") or word in ("-H", "--host")) and value.startswith("unix://"):
            return value[len("unix://") :]
    return SOCKET


def _next_start(unit: RuntimeUnit, run: RunWithin) -> Tuple[DockerdStart, bool]:
    """How the unit will start dockerd next, and whether it can be reloaded. It raises Rejected if systemd has not read what decides
    that."""
    names = ("ExecStart", "FragmentPath", "DropInPaths", "Environment", "EnvironmentFiles", "NeedDaemonReload", "CanReload")
    outcome = run(show_command(unit.name, *names), ASK_SECONDS)
    properties = parsed(outcome.out)
    files = [line.partition("=")[2].rpartition(" (")[0] for line in outcome.out.splitlines() if line.startswith("EnvironmentFiles=")]
    assignments = [word.partition("=") for word in words(properties.get("Environment", ""))]
    variables = {name: value for name, equals, value in assignments if equals}
    sources = []
    for path in [properties.get("FragmentPath", ""), *properties.get("DropInPaths", "").split(), *files]:
        text = read_text(path) or ""
        sources.append(Source(path, text))
        if path in files:
            variables.update(environment(text))
    match = re.search(r"argv\[\]=(.*?) ;", properties.get("ExecStart", ""))
    line = expanded(match.group(1).split()[1:] if match else unit.arguments, variables)
    start = DockerdStart(unit.name, [word for word, _variable in line], sources)
    if properties.get("NeedDaemonReload") == "yes" and start.value(DEFAULT) is None and start.line_of(DEFAULT):
        raise Rejected(
            f"{start.line_of(DEFAULT)} has --{DEFAULT}, which systemd has not read; nothing was changed: remove it there, or drain the "
            f"node, call `systemctl daemon-reload`, restart {unit.name}, and run again"
        )
    return start, properties.get("CanReload", "no") == "yes"
