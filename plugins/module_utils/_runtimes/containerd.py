# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd under systemd: its configuration files, what containerd itself makes of them or of a candidate, and the process that runs.

A candidate is a copy of all files in a scratch folder that containerd does not read, with `imports` that name the copies.
Which file can hold our change is not guessed from a version: each is tried on such a copy, and the first that has exactly
the effect wanted is taken. The CRI status decides whether the process needs a restart, never the files' dates.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import shutil
import tempfile
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .._change.journal import Entry
from .._change.undo import Rejected, Texts, Undone, undone
from .._formats.toml import TomlError, loads
from .._formats.toml_edit import append, set_value
from .._host.command import RunWithin
from .._host.host import flag
from . import containerd_config, cri
from .containerd_config import Change, cdi_is_on, dump_section
from .containerd_options import Decoder
from .plan import Asked, RuntimePlan, Runtimes, read_text
from .service import ASK_SECONDS, Program, RuntimeService, RuntimeUnit

CONFIG = "/etc/containerd/config.toml"
DROP_IN = "zz-gpushare.toml"
FOLDER = "conf.d"
HEADER = "# Made by gpushare.kubernetes: nvidia is the default runtime.\n"

Edit = Callable[[List[Change]], Texts]


class Installation:
    """The containerd of one host. config: path of the main configuration file, whether it is there or not."""

    def __init__(self, containerd: Program, config: str) -> None:
        self._containerd = containerd
        self.config = config
        self.release = containerd_config.release(self._must(["--version"]))
        self.decoder = Decoder(self.release)
        self._builtin = self._must(["config", "default"])
        self._newest = int(loads(self._builtin)["version"])

    def dump(self, config: Optional[str] = None) -> Dict[str, Any]:
        """The effective configuration of the files on the disk. It raises Rejected, in containerd's words, if it cannot read them."""
        config = config or self.config
        if self.release >= (2, 0):  # `dump` of 2.0 does not migrate older versions; 1.x has no `migrate`
            if config == self.config:
                self._check_imports()  # names the file and the line, where `migrate` names neither for an import
            return loads(self._must(["--config", config, "config", "migrate"]))
        return loads(self._must(["--config", config, "config", "dump"]) if os.path.exists(config) else self._builtin)

    def runtimes(self, cdi: bool, dump: Optional[Mapping[str, Any]] = None) -> Runtimes:
        """The runtimes that pods get by a dump, by default of the files on the disk. cdi: whether CDI is of interest.

        It raises Rejected where the files switch the CRI plugin off, so that pods get none.
        """
        found = self.dump() if dump is None else dump
        containerd_config.check_enabled(found)
        return replace(containerd_config.runtimes(dump_section(found), self.decoder), cdi=cdi_is_on(found) if cdi else None)

    def present(self, asked: Asked) -> RuntimePlan:
        """The files to write so that pods get what is asked, and nothing else changes."""
        before = self.dump()
        containerd_config.check_enabled(before)
        changes: List[Change] = [] if not asked.cdi or cdi_is_on(before) else [(containerd_config.CDI, True)]
        if asked.program:
            containerd_config.check_default_table(dump_section(before), self.read({}))
            changes += containerd_config.needed(dump_section(before), asked.program, asked.default, self.decoder)
        if not changes:
            return RuntimePlan(self.runtimes(asked.cdi, before))
        files = self.read({})
        wanted = containerd_config.applied(before, changes)
        rejections: List[str] = []
        for where, edit in self._places(files):
            try:
                texts = edit(changes)
                found = self._evaluate(texts)
                lost = containerd_config.lost(dump_section(before), dump_section(found), self.decoder)
                if lost:
                    texts = edit(changes + lost)
                    found = self._evaluate(texts)
            except (TomlError, Rejected) as error:
                rejections.append(f"in {where}: {error}")
                continue
            different = containerd_config.differences(wanted, found, self.decoder)
            if not different:
                return RuntimePlan(self.runtimes(asked.cdi, found), texts)
            rejections.append(f"in {where}: {containerd_config.describe(different)}")
        is_old = self._main_version(files) < min(self._newest, 3)
        cure = f"convert {self.config} with `containerd config migrate`" if is_old else "make it by hand"
        raise Rejected(
            "nothing was changed, because no place was found where the change has its effect and no other: "
            f"{cure}, restart containerd, see that pods run, and run again. {'; '.join(rejections)}"
        )

    def absent(self, entries: Sequence[Entry]) -> RuntimePlan:
        """The files of these journal entries without anything of ours."""
        before = self.dump()
        rejections: List[str] = []
        # The runtime that we had to spell out on 1.x goes too, unless others have come to rely on it since.
        for builtin in (dump_section(loads(self._builtin)).get("runtimes") or {}, {}):
            back = self._undone(entries, builtin)
            found = self._evaluate(back.texts)
            section = dump_section(found)
            default, runtimes = section.get("default_runtime_name"), section.get("runtimes") or {}
            different = containerd_config.differences(containerd_config.undone(before, found), found, self.decoder)
            if default not in runtimes:
                different.append(f"the default runtime {default!r} would not exist")
            if not different:
                return RuntimePlan(self.runtimes(cdi_is_on(found) != cdi_is_on(before), found), back=back)
            rejections.append(containerd_config.describe(different))
        raise Rejected(
            f"nothing was changed, because taking our part out would change more than that: {rejections[0]}. Put "
            f"{' and '.join(entry.path for entry in entries)} right by hand and run again"
        )

    def tidy(self) -> None:
        """Remove the folder that we may have made, if nothing is in it and nothing imports it."""
        folder = os.path.dirname(self.pattern())
        main = read_text(self.config)
        if os.path.isdir(folder) and not os.listdir(folder) and self.pattern() not in _imports(self.config, main or ""):
            os.rmdir(folder)

    def _check_imports(self) -> None:
        """It raises Rejected where an imported file is missing. Without it 2.x does not start, and its `migrate` passes over it (2.4.2)."""
        for path, text in self.read({}).items():
            for pattern in _imports(path, text):
                named = os.path.normpath(os.path.join(os.path.dirname(path), pattern))
                if "*" not in named and not os.path.exists(named):
                    raise Rejected(
                        f"{path} imports {named}: no such file, and containerd does not start without it; nothing was changed: restore it, "
                        "or take it out of imports"
                    )

    def pattern(self) -> str:
        """The entry that we add to `imports` where nothing imports a folder yet."""
        return os.path.join(os.path.dirname(self.config), FOLDER, "*.toml")

    def read(self, texts: Mapping[str, Optional[str]]) -> Dict[str, str]:
        """Every file that containerd would read with these new texts, in its order: path to text."""
        files: Dict[str, str] = {}
        pending = [self.config]
        while pending:
            path = pending.pop(0)
            if path in files:
                continue
            text = texts[path] if path in texts else read_text(path)
            if text is not None:
                files[path] = text
                for pattern in _imports(path, text):
                    pending += _matches(os.path.join(os.path.dirname(path), pattern), texts)
        return files

    def _places(self, files: Mapping[str, str]) -> Iterator[Tuple[str, Edit]]:
        """Where the change could be: the file's path, and what turns the change into new texts; the best first."""
        version = self._main_version(files)
        start = f"version = {version}\n"
        # A file of its own survives what others do to theirs. On 1.x it would reset every other setting of the section.
        if self.release >= (2, 0) and version > 2:
            drop_in = self._drop_in(files)
            yield drop_in, partial(self._edited_drop_in, files, drop_in, start)
        for path in [path for path in reversed(list(files)) if path != self.config] + [self.config]:
            yield path, partial(self._edited, path, files.get(path, start), version)

    def _main_version(self, files: Mapping[str, str]) -> int:
        main = files.get(self.config)
        return self._newest if main is None else containerd_config.file_version(self.config, loads(main), self._newest)

    def _edited(self, path: str, text: str, main_version: int, changes: List[Change]) -> Texts:
        version = int(loads(text).get("version", main_version))
        return {path: containerd_config.edited(text, version, changes)}

    def _drop_in(self, files: Mapping[str, str]) -> str:
        """The path of our own file: in a folder that is imported whole already, or in a new one."""
        for pattern in _imports(self.config, files.get(self.config, "")):
            folder, name = os.path.split(os.path.join(os.path.dirname(self.config), pattern))
            if "*" in name and "*" not in folder and fnmatch.fnmatchcase(DROP_IN, name):
                return os.path.join(folder, DROP_IN)
        return os.path.join(os.path.dirname(self.pattern()), DROP_IN)

    def _edited_drop_in(self, files: Mapping[str, str], path: str, start: str, changes: List[Change]) -> Texts:
        main = files.get(self.config, start)
        texts = self._edited(path, read_text(path) or HEADER + start, self._main_version(files), changes)
        patterns = [os.path.join(os.path.dirname(self.config), pattern) for pattern in _imports(self.config, main)]
        if not any(path in _matches(pattern, texts) for pattern in patterns):
            texts[self.config] = append(main, containerd_config.IMPORTS, self.pattern())
        return texts

    def _undone(self, entries: Sequence[Entry], builtin: Mapping[str, Any]) -> Undone:
        def reverted(path: str, now: str, original: str) -> Optional[str]:
            return containerd_config.reverted(now, original, builtin, [self.pattern()])

        return undone(sorted(entries, key=lambda entry: entry.path != self.config), reverted)

    def _evaluate(self, texts: Mapping[str, Optional[str]]) -> Dict[str, Any]:
        """The effective configuration if the files had these texts."""
        scratch = tempfile.mkdtemp(prefix="gpushare-containerd-")
        try:
            for path, text in self.read(texts).items():
                candidate = scratch + path
                os.makedirs(os.path.dirname(candidate), exist_ok=True)
                with open(candidate, "w", encoding="utf-8", newline="") as stream:
                    stream.write(_redirected(text, scratch))
            return self.dump(scratch + self.config)
        finally:
            shutil.rmtree(scratch)

    def _must(self, arguments: Sequence[str]) -> str:
        status, out, err = self._containerd(arguments)
        if status != 0:
            raise Rejected(f"containerd {' '.join(arguments)} failed: {' '.join((err or out).split())[-800:]}")
        return out


def config_of(unit: RuntimeUnit) -> str:
    """The configuration file that its command line names, or containerd's own default."""
    return flag(unit.arguments, "config") or flag(unit.arguments, "c") or CONFIG


def address_of(unit: RuntimeUnit) -> Optional[str]:
    """The socket that its command line names."""
    return flag(unit.arguments, "address") or flag(unit.arguments, "a")


class ContainerdService(RuntimeService):
    """One host's containerd."""

    def __init__(
        self, unit: RuntimeUnit, installation: Installation, run: RunWithin, timeout: float, allowed: bool = False, cdi: bool = False
    ) -> None:
        """cdi: whether CDI is of interest."""
        self._installation, self._cdi = installation, cdi
        self._address = address_of(unit) or containerd_config.socket_address(installation.dump())
        super().__init__(unit, run, timeout, allowed)

    @classmethod
    def of(cls, unit: RuntimeUnit, config: Optional[str], run: RunWithin, timeout: float, allowed: bool = False) -> "ContainerdService":
        """Of this unit, with this main configuration file or the one that its command line names."""
        return cls(unit, Installation(unit.program_call(run), config or config_of(unit)), run, timeout, allowed)

    def present(self, asked: Asked) -> RuntimePlan:
        return self._installation.present(asked)

    def absent(self, entries: Sequence[Entry]) -> RuntimePlan:
        return self._installation.absent(entries)

    def judged_by(self, plan: RuntimePlan) -> "ContainerdService":
        service = copy(self)
        service._cdi = plan.after.cdi is not None
        return service

    def paths(self) -> List[str]:
        return list(self._installation.read({}))

    def shown(self, text: str) -> str:
        return containerd_config.masked(text)

    def tidy(self) -> None:
        self._installation.tidy()

    def wanted(self) -> Runtimes:
        return self._installation.runtimes(self._cdi)

    def running(self) -> Tuple[Dict[str, Tuple[bool, str]], Runtimes]:
        status = cri.status(self._address, ASK_SECONDS)
        return status.conditions, containerd_config.running_runtimes(status.config, self._installation.decoder)

    def differs(self, wanted: Runtimes, running: Runtimes) -> Optional[str]:
        return containerd_config.not_running(wanted, running)

    def check_restart(self, plan: RuntimePlan) -> None:
        """Raise Rejected if it would have to be restarted and took containers with it."""
        if not self.allowed and self.unit.kill_mode not in ("process", "none") and self.lacks(plan.after):
            raise Rejected(
                f"{self.unit.name} has KillMode={self.unit.kill_mode}, so restarting containerd would end the shims of all containers on "
                "this host; nothing was changed: give it KillMode=process, as containerd's own unit has, or drain the node and set "
                "gpushare_container_runtime_allow_container_kill"
            )


def _imports(path: str, text: str) -> List[str]:
    try:
        found = loads(text).get("imports", [])
    except TomlError as error:
        raise Rejected(f"{path} cannot be read: {error}") from error
    return [pattern for pattern in found if isinstance(pattern, str)]


def _matches(pattern: str, texts: Mapping[str, Optional[str]]) -> List[str]:
    """The files that an import names, sorted. texts: files that count as there; a reader of one that shall go finds nothing."""
    pattern = os.path.normpath(pattern)
    if "*" not in pattern:
        return [pattern]
    folder, name = os.path.split(pattern)
    folders = glob.glob(folder) if "*" in folder else [folder]
    there = {os.path.join(directory, entry) for directory in folders if os.path.isdir(directory) for entry in os.listdir(directory)}
    there |= {path for path in texts if fnmatch.fnmatchcase(os.path.dirname(path), folder)}
    return sorted(path for path in there if fnmatch.fnmatchcase(os.path.basename(path), name))


def _redirected(text: str, scratch: str) -> str:
    """The text with its absolute imports inside the scratch folder; relative ones are there already."""
    found = loads(text).get("imports", [])
    moved = [scratch + os.path.normpath(pattern) if isinstance(pattern, str) and pattern.startswith("/") else pattern for pattern in found]
    return set_value(text, containerd_config.IMPORTS, moved) if moved != found else text
