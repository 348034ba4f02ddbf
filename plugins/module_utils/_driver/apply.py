# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The needs of a driver on a host besides its packages: nouveau blacklisted, an initramfs without it, NVIDIA's installer where no packages
are wanted, the module loaded, its services enabled; and whether the host must reboot. `absent` takes all of that back by the journal.

The packages themselves are those of _packages. After a kill at any point the next run continues: what is due is asked of the host, and what
was there before is noted before it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Callable, List, Sequence, Tuple

from .._change.engine import ChangePlan, Converged, LastWord, Recorded, Subject, converge
from .._change.journal import Entry, Journal
from .._change.transaction import FollowUp, nothing
from .._change.undo import Texts
from .._facts.driver import Driver, driver
from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.failure import Failure
from .._host.command import Outcome, RunWithin
from .._host.host import Host
from .._host.ownership import open_to_others
from .._host.systemd import parsed, show_command
from .facts import computing
from .options import MODULES_FILE, OPTIONS_FILE, modules_text, not_in_use, options_text
from .plan import BLACKLIST, BLACKLIST_FILE, RUN_FILE_LOG

OWNER = "nvidia_driver"
_SERVICE, _RUN_FILE = "service:", "run_file:driver"
_QUESTION, _REBUILD, _LOAD = 60.0, 1200.0, 120.0
_LOG_LINES = 12
# Of Debian and its relatives, and of the others.
_REBUILDERS = (("update-initramfs", "-u", "-k", "all"), ("dracut", "--force", "--regenerate-all"))


class DriverError(Failure):
    """A step failed; says which, what the host has now, and what to do."""


@dataclass(frozen=True)
class WantedDriver:
    """The wishes of the plan; see plan.DriverPlan. version: the driver's. timeout: seconds for NVIDIA's installer."""

    version: str
    module: str = ""
    blacklist: bool = True
    initramfs: Tuple[str, ...] = ()
    run_file: Tuple[str, ...] = ()
    services: Tuple[str, ...] = ()
    options: Tuple[str, ...] = ()
    modules: Tuple[str, ...] = ()
    timeout: float = 1800.0


@dataclass
class DriverResult(Converged):
    """steps: messages about what was done or would be. reboot: why the host must reboot, "" if it need not."""

    steps: List[str] = field(default_factory=list)
    reboot: str = ""

    def step(self, words: str) -> None:
        """A change that was made, or would be."""
        self.changed = True
        self.steps.append(words)

    def add(self, other: Converged) -> None:
        """The changes of its files as well, each as a step."""
        super().add(other)
        for change in other.diff:
            verb = "remove" if not change["after"] else "change" if change["before"] else "write"
            self.steps.append(f"{verb} {change['after_header']}")
        self.steps += [other.why] if other.why else []


@dataclass(frozen=True)
class DriverAnswer(ModuleAnswer):
    """The answer of gpushare_driver that changes something, as DriverResult has it. at: this host's clock, in Unix time."""

    steps: List[str]
    files: List[str]
    notes: List[str]
    reboot: str
    at: float
    diff: List[DiffPart]


class DriverFiles(Subject[bool]):
    """The files of modprobe and of modules-load. wanted: to take them back, only its `initramfs` counts."""

    owner, mode = OWNER, 0o644

    def __init__(self, wanted: WantedDriver, run: RunWithin, host: Host) -> None:
        self.root, self._host, self._wanted = host.root, host, wanted
        self._initramfs = _Initramfs(run, wanted.initramfs, host)

    def look(self, recorded: Recorded) -> bool:
        """Whether a run was killed before the initramfs was rebuilt."""
        return recorded.unfinished

    def present(self, found: bool) -> ChangePlan:
        wanted = self._wanted
        texts: Texts = {}
        if wanted.blacklist or found or self._host.exists(BLACKLIST_FILE):
            texts[BLACKLIST_FILE] = BLACKLIST
        if wanted.options:
            texts[OPTIONS_FILE] = options_text(wanted.options)
        if wanted.modules:
            texts[MODULES_FILE] = modules_text(wanted.modules)
        return ChangePlan(texts, dropped={OPTIONS_FILE, MODULES_FILE} - texts.keys(), check=partial(self._check, found))

    def absent(self, found: bool, entries: Sequence[Entry]) -> ChangePlan:
        return replace(super().absent(found, entries), check=partial(self._check, found))

    def _check(self, unfinished: bool, changes: Sequence[str], due: bool) -> LastWord:
        if not unfinished and all(path == MODULES_FILE for path in changes):
            return LastWord()
        return LastWord(f"rebuild the initramfs ({' '.join(self._initramfs.command)})", follow_up=self._initramfs)


def present(wanted: WantedDriver, run: RunWithin, dry: bool, root: str = "/", point: Callable[[str], None] = nothing) -> DriverResult:
    """Do it, or with `dry` say what would be done. DriverError or TransactionError if a step fails."""
    result, host = DriverResult(), Host(root)
    if wanted.run_file:
        _install(wanted, run, host, dry, result)
        point("installed")
    result.add(converge(DriverFiles(wanted, run, host), False, dry, point))
    for module in wanted.modules:
        _load_at_boot(module, run, host, dry, result)
    _load(wanted, run, host, dry, result)
    for unit in wanted.services:
        _enable(unit, run, root, dry, result, bool(driver(Host(root)).loaded))
    result.reboot = reboot_reason(driver(Host(root)), wanted.version, wanted.module, wanted.options)
    return result


def absent(run: RunWithin, dry: bool, root: str = "/", timeout: float = 1800.0) -> DriverResult:
    """Take back what `present` noted; the driver's packages are still there then."""
    result, journal = DriverResult(), Journal(root)
    initramfs = next((rebuilder for rebuilder in _REBUILDERS if Host(root).program(rebuilder[0])), _REBUILDERS[0])
    mine = [entry for entry in journal.entries() if entry.owner == OWNER]
    if any(entry.path == _RUN_FILE for entry in mine):
        _check_unused(Host(root))
    for entry in mine:
        if entry.path.startswith(_SERVICE):
            unit = entry.path[len(_SERVICE) :]
            result.step(f"disable {unit}")
            if not dry:
                _must(run, ["systemctl", "disable", "--now", unit], _QUESTION, f"disable {unit}")
                journal.forget(entry.path)
        elif entry.path == _RUN_FILE:
            _uninstall(run, Host(root), dry, timeout, result)
            if not dry:
                journal.forget(entry.path)
    if any(entry.is_file for entry in mine):
        result.add(converge(DriverFiles(WantedDriver("", initramfs=initramfs), run, Host(root)), True, dry))
    loaded = driver(Host(root)).loaded
    if result.changed and loaded:
        result.reboot = f"kernel module {loaded} stays loaded until then"
    return result


def reboot_reason(parts: Driver, version: str, module: str = "", options: Sequence[str] = ()) -> str:
    """Why the host must reboot before this driver runs; "" if it need not."""
    if parts.nouveau_loaded:
        return "nouveau is loaded and keeps the GPUs from NVIDIA's driver"
    if parts.loaded and parts.loaded != version:
        return f"kernel module {parts.loaded} is loaded, {version} is installed"
    if parts.loaded and module and parts.kind and parts.kind != module:
        return f"the {parts.kind} kernel module is loaded, the {module} one is installed"
    return not_in_use(options, parts.options) if parts.loaded else ""


def _install(wanted: WantedDriver, run: RunWithin, host: Host, dry: bool, result: DriverResult) -> None:
    """Run NVIDIA's installer, unless all of this version is there: one that was killed leaves a module without its library."""
    if _is_whole(driver(host), wanted.version):
        return
    path = wanted.run_file[0]
    real = _checked_run_file(host, path)
    result.step(f"run {path}")
    if dry:
        return
    Journal(host.root).record(_RUN_FILE, OWNER, None, wanted.version.encode())
    outcome = run(["sh", host.outside(real), *wanted.run_file[1:]], wanted.timeout)
    now = driver(Host(host.root))
    if not outcome.ok or not _is_whole(now, wanted.version):
        log = " / ".join((Host(host.root).text(RUN_FILE_LOG) or outcome.words).splitlines()[-_LOG_LINES:])[-800:]
        raise DriverError(
            f"NVIDIA's installer {path} failed ({_ended(outcome)}); the host has {_parts(now)} on disk now, expected "
            f"{wanted.version} of each. Its log {RUN_FILE_LOG} ends with: {' '.join(log.split())}. Remove the cause and run again: "
            "`nvidia-uninstall --silent` removes a half installed driver"
        )


def _is_whole(parts: Driver, version: str) -> bool:
    return parts.installed == parts.library == version and parts.nvidia_smi is not None


def _parts(parts: Driver) -> str:
    smi = "nvidia-smi" if parts.nvidia_smi else "no nvidia-smi"
    return f"{parts.installed or 'no'} kernel module, {parts.library or 'no'} library and {smi}"


def _checked_run_file(host: Host, path: str) -> str:
    """Its path without links, by which it runs as root. DriverError if others may write it, or put another file in its place."""
    real = host.real(path)
    try:
        open_ = open_to_others(host, real)
    except OSError as error:
        raise DriverError(
            f"the run file {path[:80]} cannot be read ({error.strerror}); nothing was changed: copy it to the host"
        ) from error
    if open_ is not None:
        raise DriverError(
            f"the run file {path[:80]} would run as root, and others than root may write {open_}; nothing was changed: move it to a folder "
            "of root's, such as /root, give it to root with mode 0600, and check its sum again"
        )
    return real


def _check_unused(host: Host) -> None:
    """nvidia-uninstall takes the driver away from whatever uses it."""
    pids = computing(host)
    if pids:
        raise DriverError(
            f"the driver is to be uninstalled, but processes use the GPUs ({', '.join(map(str, pids[:8]))}); nothing was changed: drain "
            "the node, stop them and run again"
        )


def _uninstall(run: RunWithin, host: Host, dry: bool, timeout: float, result: DriverResult) -> None:
    program = host.program("nvidia-uninstall")
    if program is None:
        result.notes.append("nvidia-uninstall is gone, so that the driver of the run file was removed by others or is left")
        return
    result.step(f"run {program} --silent")
    if not dry:
        _must(run, [program, "--silent"], timeout, "uninstall the driver")


class _Initramfs(FollowUp):
    """Rebuilt where a file of modprobe changed, or a run was killed before it was; the file is restored where that fails."""

    def __init__(self, run: RunWithin, command: Sequence[str], host: Host) -> None:
        self._run, self.command, self._host = run, command, host

    def restart(self) -> None:
        # Hosts that boot another way have none.
        if self._host.program(self.command[0]) is not None:
            _must(self._run, self.command, _REBUILD, "rebuild the initramfs")


def _load_at_boot(module: str, run: RunWithin, host: Host, dry: bool, result: DriverResult) -> None:
    if host.is_folder(f"/sys/module/{module}"):
        return
    result.step(f"load the kernel module {module}")
    if not dry:
        _must(run, ["modprobe", module], _LOAD, f"load the kernel module {module}")


def _load(wanted: WantedDriver, run: RunWithin, host: Host, dry: bool, result: DriverResult) -> None:
    parts = driver(host)
    if parts.loaded or parts.nouveau_loaded or parts.installed != wanted.version:
        return
    result.step("load the kernel module")
    if dry:
        return
    outcome = run(["modprobe", "nvidia"], _LOAD)
    if not outcome.ok:
        raise DriverError(
            f"the kernel module nvidia {wanted.version} cannot be loaded: {outcome.words[-300:]}; read `dmesg` for NVRM lines and for a "
            "rejected signature, cure that and run again"
        )


def _enable(unit: str, run: RunWithin, root: str, dry: bool, result: DriverResult, start: bool) -> None:
    found = parsed(run(show_command(unit, "LoadState", "UnitFileState", "ActiveState"), _QUESTION).out)
    if found.get("LoadState") != "loaded":
        if not dry:
            result.notes.append(f"systemd has no unit {unit}, so that it was not enabled")
        return
    enabled = found.get("UnitFileState") in ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")
    running = found.get("ActiveState") in ("active", "activating") or not start
    if enabled and running:
        return
    result.step(f"enable {unit}" if not enabled else f"start {unit}")
    if dry:
        return
    if not enabled:
        Journal(root).record(_SERVICE + unit, OWNER, None, b"enabled")
        _must(run, ["systemctl", "enable", unit], _QUESTION, f"enable {unit}")
    if not running:
        _must(run, ["systemctl", "start", unit], _LOAD, f"start {unit}")


def _must(run: RunWithin, argv: Sequence[str], seconds: float, what: str) -> None:
    outcome = run(list(argv), seconds)
    if not outcome.ok:
        raise DriverError(f"cannot {what} ({' '.join(argv)[:200]}: {_ended(outcome)}); cure that and run again")


def _ended(outcome: Outcome) -> str:
    if outcome.timed_out is not None:
        return f"no end within {outcome.timed_out:g} s"
    return f"exit status {outcome.status}: {outcome.words[-300:]}"
