# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""CRI-O under systemd: its drop-ins, and what its own page /config says of the process.

CRI-O reads its main file and then every file of its folder in the order of their names. A runtime's table in a later file replaces
that of an earlier one as a whole, so ours has all keys that the low-level runtime has in the process. A restart ends no container.
Keys count in any case, except for the names of runtimes, and of two spellings in one file any may win: BurntSushi/toml 1.5.0, decode.go,
which CRI-O 1.34 has and which was run (2026-11-29).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.journal import Entry
from .._change.undo import Rejected, Texts, undone
from .._formats.toml import TomlError, loads
from .._formats.toml_edit import remove, remove_empty_header, set_value
from .._host.command import RunWithin
from .._host.host import Host, flag
from . import cri, unix_http
from .plan import RUNTIME, Asked, RuntimePlan, Runtimes, SilentError, leaves, read_text, stripped
from .service import ASK_SECONDS, RuntimeService, RuntimeUnit

CONFIG, FOLDER, SOCKET = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d", "/var/run/crio/crio.sock"
DROP_IN = "zz-gpushare.conf"
HEADER = "# Made by gpushare.kubernetes: the runtime nvidia.\n"
#: Where NVIDIA's hook of before the nvidia runtime is: with both, a container gets the driver twice.
HOOKS = ("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", "/etc/containers/oci/hooks.d/oci-nvidia-hook.json")
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
_SECTION = ("crio", "runtime")
_LOW_LEVEL = ("crun", "runc")
_MOST_QUOTED = 600


class CrioService(RuntimeService):
    """One host's CRI-O. config: its main file, whether it is there or not; folder: of its drop-ins."""

    #: CRI-O 1.36.3 did not end in a lab ("close of closed channel"), and systemd kills it after its usual TimeoutStopSec.
    stop_seconds = 90.0

    def __init__(self, unit: RuntimeUnit, config: str, folder: str, run: RunWithin, timeout: float, allowed: bool = False) -> None:
        self.config, self.folder = config, folder
        self._address = flag(unit.arguments, "listen") or SOCKET
        super().__init__(unit, run, timeout, allowed)

    @classmethod
    def of(cls, unit: RuntimeUnit, config: Optional[str], run: RunWithin, timeout: float, allowed: bool = False) -> "CrioService":
        """Of this unit, with this main file or the one that its command line names."""
        words = unit.arguments
        folder = flag(words, "config-dir") or flag(words, "d") or FOLDER
        return cls(unit, config or flag(words, "config") or flag(words, "c") or CONFIG, folder, run, timeout, allowed)

    def present(self, asked: Asked) -> RuntimePlan:
        program, default = asked.program or "", asked.default
        files = self._files({})
        now = effective(files)
        flagged = flag(self.unit.arguments, "default-runtime")
        if default and flagged not in (None, RUNTIME):
            raise Rejected(
                f"the command line of {self.unit.name} has --default-runtime={flagged}, which no file can change; nothing was changed: "
                "remove it there, restart CRI-O, and run again"
            )
        hooks = filter(os.path.exists, HOOKS)
        notes = [f"{path} is NVIDIA's hook for all containers: remove it, the runtime {RUNTIME} does its work" for path in hooks]
        entry = now.entries.get(RUNTIME)
        right = entry is not None and entry.get("runtime_path") == program and entry.get("runtime_type", "oci") == "oci"
        if right and (not default or now.default == RUNTIME):
            return RuntimePlan(now, notes=notes)
        low, base = self._low_level(default)
        notes += _order(low)
        path = os.path.join(self.folder, DROP_IN)
        own = read_text(path)
        text = own or ""
        if default:
            text = set_value(text, _SECTION + ("default_runtime",), RUNTIME)
        if not right:
            # An entry of others keeps what it says.
            wanted = dict(base if entry is None else entry, runtime_path=program, runtime_type="oci")
            for path_below, value in leaves((), wanted):
                text = set_value(text, _SECTION + ("runtimes", RUNTIME) + path_below, value)
        texts: Texts = {path: text if own else HEADER + text}
        after = effective(self._files(texts))
        expected = Runtimes(RUNTIME if default else now.default, dict(now.entries, **{RUNTIME: after.entries.get(RUNTIME)}))
        if after != expected or (after.entries.get(RUNTIME) or {}).get("runtime_path") != program:
            later = ", ".join(file for file in self._files(texts) if os.path.basename(file) > DROP_IN and file != self.config)
            raise Rejected(f"{later or 'another file'} takes back what {path} would say; nothing was changed: rename or remove it")
        self._check(texts)
        return RuntimePlan(after, texts, notes)

    def absent(self, entries: Sequence[Entry]) -> RuntimePlan:
        found = undone(entries, lambda path, now, original: reverted(now))
        texts = found.texts
        after = effective(self._files(texts))
        if after.default == RUNTIME and RUNTIME not in after.entries:
            raise Rejected(
                f"nothing was changed, because the default runtime would still be {RUNTIME}, which no file would define: set another "
                "default_runtime, and run again"
            )
        self._check(texts)
        return RuntimePlan(after, back=found)

    def paths(self) -> List[str]:
        return list(self._files({}))

    def shown(self, text: str) -> str:
        return text

    def wanted(self) -> Runtimes:
        return effective(self._files({}))

    def running(self) -> Tuple[Dict[str, Tuple[bool, str]], Runtimes]:
        return cri.status(self._address, ASK_SECONDS).conditions, self._process()

    def differs(self, wanted: Runtimes, running: Runtimes) -> Optional[str]:
        return not_running(wanted, running)

    def check_restart(self, plan: RuntimePlan) -> None:
        """Never: each container has a monitor of its own, outside of CRI-O's control group."""

    def _process(self) -> Runtimes:
        try:
            found = loads(unix_http.get(self._address, "/config", ASK_SECONDS).decode())
        except ValueError as error:
            raise SilentError(f"CRI-O at {self._address} answers what is not a configuration: {error}") from error
        return Runtimes.of(found.get("crio", {}).get("runtime", {}))

    def _low_level(self, replaced: bool) -> Tuple[str, Dict[str, Any]]:
        """Name and entry of the runtime that pods get now, as the process has it. replaced: whether nvidia shall be the default instead."""
        try:
            process = self._process()
        except SilentError as error:
            raise Rejected(f"{error}; nothing was changed: see `journalctl -u {self.unit.name}`, cure it, and run again") from error
        default = process.entries.get(process.default, {})
        if replaced and process.default != RUNTIME and default.get("runtime_type", "oci") != "oci":
            raise Rejected(
                f"the default runtime is {process.default} of type {default['runtime_type']}, which is not run by runc or crun: making "
                f"{RUNTIME} the default would take its isolation from every pod; nothing was changed: make crun or runc the default first, "
                "or set gpushare_default_runtime: unchanged"
            )
        name = next((name for name in (process.default, *_LOW_LEVEL) if name != RUNTIME and name in process.entries), "")
        return name, process.entries.get(name, {})

    def _files(self, texts: Mapping[str, Optional[str]]) -> Dict[str, str]:
        """Every file that CRI-O would read with these new texts, in its order."""
        there = [os.path.join(place, name) for place, _folders, names in os.walk(self.folder) for name in names]
        there += [path for path in texts if path.startswith(self.folder + "/")]
        paths = [self.config, *sorted(set(there), key=lambda path: path.split("/"))]
        found = {path: texts[path] if path in texts else read_text(path) for path in paths}
        return {path: text for path, text in found.items() if text is not None}

    def _check(self, texts: Texts) -> None:
        """It raises Rejected, in CRI-O's words, if it cannot read its files with these new texts."""
        scratch = tempfile.mkdtemp(prefix="gpushare-crio-")
        try:
            config, folder = os.path.join(scratch, "crio.conf"), os.path.join(scratch, "crio.conf.d")
            os.mkdir(folder)
            copies = {config: ""}
            for path, text in self._files(texts).items():
                copies[config if path == self.config else folder + path[len(self.folder) :]] = text
            for path, text in copies.items():
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8", newline="") as stream:
                    stream.write(text)
            arguments = [f"--config={config}", f"--config-dir={folder}", "config"]
            status, out, err = self.unit.program_call(self._run)(arguments)
            if status != 0:
                raise Rejected(f"crio config rejects the new configuration: {reason(err or out)}; nothing was changed")
        finally:
            shutil.rmtree(scratch)


def reason(said: str) -> str:
    """Why CRI-O ended: its fatal line, which stands below those about its start, or else its last one."""
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()] or ["it printed nothing"]
    line = next((line for line in lines if "level=fatal" in line), lines[-1])
    found = re.search(r'level=fatal msg="(.*)"', line)
    return (found.group(1).replace('\\"', '"') if found else line)[:_MOST_QUOTED]


def effective(files: Mapping[str, str]) -> Runtimes:
    """The settings of the files, in their order. default "": none names one, and CRI-O has its own."""
    default, entries = "", {}
    for path, text in files.items():
        try:
            section = _part(path, _part(path, loads(text), "crio"), "runtime")
        except TomlError as error:
            raise Rejected(f"{path} cannot be read: {error}; nothing was changed") from error
        known = _folded(path, section)
        default = known.get("default_runtime") or default
        runtimes = known.get("runtimes") or {}
        entries.update({name: stripped(_folded(path, entry)) for name, entry in runtimes.items()})
    return Runtimes(default, entries)


def _part(path: str, table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = _folded(path, table).get(name)
    return found if isinstance(found, dict) else {}


def _folded(path: str, table: Any) -> Dict[str, Any]:
    """A table by the names that its keys have for CRI-O. It raises Rejected for two keys of one name."""
    found: Dict[str, Tuple[str, Any]] = {}
    for key, value in (table if isinstance(table, dict) else {}).items():
        name = key.lower()
        if name in found:
            raise Rejected(
                f"{path} has {found[name][0]} and {key}, which are one key for CRI-O, of which any may win; nothing was changed: remove one"
            )
        found[name] = (key, value)
    return {name: value for name, (_key, value) in found.items()}


def reverted(text: str) -> Optional[str]:
    """Our file, which others have changed, without our part; None if then nothing is left in it."""
    section = loads(text).get("crio", {}).get("runtime", {})
    if section.get("default_runtime") == RUNTIME:
        text = remove(text, _SECTION + ("default_runtime",))
    text = remove(text, _SECTION + ("runtimes", RUNTIME))
    for length in (3, 2, 1):
        text = remove_empty_header(text, (*_SECTION, "runtimes")[:length])
    return text if stripped(loads(text)) else None


def not_running(wanted: Runtimes, running: Runtimes) -> Optional[str]:
    """The settings that the process lacks of the files, as far as it concerns us; None if nothing.

    Without a default in the files, any is right except ours.
    """
    if running.default != wanted.default and (wanted.default or running.default == RUNTIME):
        return f"its default runtime is {running.default!r}, expected {wanted.default or 'its own'!r}"
    has, should = (_of_ours(runtimes.entries.get(RUNTIME, {})) for runtimes in (running, wanted))
    if should[0] is not None and has != should:
        return f"its runtime {RUNTIME} is {has[0]!r} of type {has[1]}, expected {should[0]!r} of type {should[1]}"
    return None


def _of_ours(entry: Mapping[str, Any]) -> Tuple[Any, Any]:
    """Program and type of a runtime; CRI-O takes oci where none is named."""
    return entry.get("runtime_path"), entry.get("runtime_type") or "oci"


def _order(low: str) -> List[str]:
    """A note where NVIDIA's runtime would start another low-level runtime than CRI-O does: such containers do not end."""
    try:
        names = loads(read_text(TOOLKIT) or "").get("nvidia-container-runtime", {}).get("runtimes") or ["runc", "crun"]
    except TomlError:
        return []
    programs = Host()
    first = next((name for name in names if programs.program(str(name))), None)
    if low not in _LOW_LEVEL or first is None or os.path.basename(str(first)) == low:
        return []
    return [f"{TOOLKIT} starts {first} first, and CRI-O uses {low}: put {low} first in its list `runtimes`, or containers do not end"]
