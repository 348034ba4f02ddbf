# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The needs of a driver on a host besides its packages: nouveau blacklisted, an initramfs without it, NVIDIA's installer where no packages
are wanted, the module loaded, its services enabled; and whether the host must reboot. `absent` takes all of that back by the journal.

The packages themselves are those of _packages. After a kill at any point the next run continues: what is due is asked of the host, and what
was there before is noted before it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from .._change.journal import Journal
from .._change.transaction import Service, Transaction
from .._change.undo import Undone, undone
from .._facts.driver import Driver, driver
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


class DriverError(Exception):
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
class DriverResult:
    """steps: messages about what was done or would be. reboot: why the host must reboot, "" if it need not."""

    steps: List[str] = field(default_factory=list)
    files: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    reboot: str = ""
    diff: List[Dict[str, str]] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.steps)


def present(
    wanted: WantedDriver, run: RunWithin, dry: bool, root: str = "/", point: Callable[[str], None] = lambda _point: None
) -> DriverResult:
    """Do it, or with `dry` say what would be done. DriverError or TransactionError if a step fails."""
    result, host = DriverResult(), Host(root)
    if wanted.run_file:
        _install(wanted, run, host, dry, result)
        point("installed")
    _configure(wanted, run, host, dry, result, point)
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
            result.steps.append(f"disable {unit}")
            if not dry:
                _must(run, ["systemctl", "disable", "--now", unit], _QUESTION, f"disable {unit}")
                journal.forget(entry.path)
        elif entry.path == _RUN_FILE:
            _uninstall(run, Host(root), dry, timeout, result)
            if not dry:
                journal.forget(entry.path)
    files = [entry for entry in mine if entry.is_file]
    if files:
        transaction = Transaction(OWNER, root)
        back = undone(files, root=root)
        transaction.restore(back.files, files)
        result.notes += back.messages
        _note_files(transaction, back, result)
        result.steps.append(f"rebuild the initramfs ({' '.join(initramfs)})")
        if not dry:
            transaction.apply(_Initramfs(run, initramfs, transaction, Host(root)))
            for entry in back.over(files):
                journal.forget(entry.path)
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
    result.steps.append(f"run {path}")
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
    result.steps.append(f"run {program} --silent")
    if not dry:
        _must(run, [program, "--silent"], timeout, "uninstall the driver")


def _configure(wanted: WantedDriver, run: RunWithin, host: Host, dry: bool, result: DriverResult, point: Callable[[str], None]) -> None:
    """The files of modprobe and of modules-load. One that is no longer wanted goes as uninstall takes it out."""
    transaction = Transaction(OWNER, host.root, point)
    texts = {}
    if wanted.blacklist or transaction.unfinished or host.exists(BLACKLIST_FILE):
        texts[BLACKLIST_FILE] = BLACKLIST
    texts[OPTIONS_FILE] = options_text(wanted.options) if wanted.options else ""
    texts[MODULES_FILE] = modules_text(wanted.modules) if wanted.modules else ""
    gone = [entry for entry in transaction.entries() if entry.path in texts and not texts[entry.path]]
    back = undone(gone, root=host.root)
    result.notes += back.messages
    for path, text in texts.items():
        if text:
            transaction.write(path, text.encode(), 0o644)
    transaction.restore(back.files, gone)
    initramfs = _Initramfs(run, wanted.initramfs, transaction, host)
    if transaction.changes or initramfs.due():
        _note_files(transaction, back, result)
        result.steps += [f"rebuild the initramfs ({' '.join(wanted.initramfs)})"] if initramfs.due() else []
        if not dry:
            transaction.apply(initramfs)
    if not dry:
        for entry in back.over(gone):
            transaction.journal.forget(entry.path)


def _note_files(transaction: Transaction, back: Undone, result: DriverResult) -> None:
    """The files that change; `back` has those that are as they were before us."""
    result.files, result.diff = [change.path for change in transaction.changes], transaction.diff()
    for path in result.files:
        result.steps.append(f"{'write' if path not in back.files else 'remove' if back.files[path] is None else 'restore'} {path}")


class _Initramfs(Service):
    """Rebuilt where the file changed, or a run was killed before it was; the file is restored where that fails."""

    def __init__(self, run: RunWithin, command: Sequence[str], transaction: Transaction, host: Host) -> None:
        self._due = any(change.path != MODULES_FILE for change in transaction.changes) or transaction.unfinished
        self._run, self._command, self._host = run, command, host

    def due(self) -> bool:
        return self._due

    def restart(self) -> None:
        # Hosts that boot another way have none.
        if self._host.program(self._command[0]) is not None:
            _must(self._run, self._command, _REBUILD, "rebuild the initramfs")

    def problem(self) -> Optional[str]:
        return None


def _load_at_boot(module: str, run: RunWithin, host: Host, dry: bool, result: DriverResult) -> None:
    if host.is_folder(f"/sys/module/{module}"):
        return
    result.steps.append(f"load the kernel module {module}")
    if not dry:
        _must(run, ["modprobe", module], _LOAD, f"load the kernel module {module}")


def _load(wanted: WantedDriver, run: RunWithin, host: Host, dry: bool, result: DriverResult) -> None:
    parts = driver(host)
    if parts.loaded or parts.nouveau_loaded or parts.installed != wanted.version:
        return
    result.steps.append("load the kernel module")
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
    result.steps.append(f"enable {unit}" if not enabled else f"start {unit}")
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
