# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host to have packages from a repository at exact versions, with a hold. It takes all of that back by the journal.

The order: resolve the candidate in a scratch folder, write the repository and its keys as a transaction that the package manager verifies,
note each package in the journal, install, hold. After a kill at any point the next run compares again and continues, because what a package
was before us is noted before it changes, and only the first time.

The scripts of packages that bring units call `systemctl daemon-reload`. No package changes while that would hurt running containers.

A package's entry in the journal is "package:NAME". Its content is JSON: `{"version": null or as it was, "held": whether it had a hold}`. A
key in rpm's database that was not there before us is "key:FINGERPRINT:OWNER", one entry for each owner that needs it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.engine import ChangePlan, LastWord, Recorded, Subject, converge
from .._change.journal import Entry, Journal
from .._change.transaction import FollowUp, TransactionError, nothing
from .._change.undo import Rejected
from .._facts.system import System
from .._formats.answers import ABSENT, DiffPart, LeftThing
from .._host.command import RunWithin
from .._host.files import FileState
from .._host.host import Host
from .apt import Apt
from .dnf import Dnf
from .model import (
    Installed,
    Package,
    PackageChange,
    PackageManager,
    PackagePlan,
    PackagesError,
    PackageSet,
    Repository,
    check,
    check_minimum,
    check_steps,
    satisfies,
    shown,
)
from .zypper import Zypper

#: How the journal's entries of packages and of keys begin, and the owners of all that this makes.
ENTRY, KEY, OWNER = "package:", "key:", "packages."
#: Why a daemon-reload would hurt running containers, None if it would not.
Exposed = Callable[[], Optional[str]]


@dataclass
class PackagesResult:
    """The changes that were made, or would be. versions: of the wanted packages, as they are then. `held`: those whose hold is new or
    released."""

    changed: bool = False
    manager: str = ""
    versions: Dict[str, Optional[str]] = field(default_factory=dict)
    steps: List[PackageChange] = field(default_factory=list)
    held: List[str] = field(default_factory=list)
    files: List[str] = field(default_factory=list)
    left: List[LeftThing] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    diff: List[DiffPart] = field(default_factory=list)


@dataclass
class PackagesAnswer(PackagesResult):
    """The answer of gpushare_packages. missing, system: of a host that lacks a package, whose files its action plugin then sends."""

    missing: Optional[bool] = field(default=None, metadata=ABSENT)
    system: Optional[System] = field(default=None, metadata=ABSENT)


def together(results: Sequence[PackagesResult]) -> PackagesResult:
    """Several results as one."""
    whole = PackagesResult()
    for result in results:
        whole.changed = whole.changed or result.changed
        whole.manager = result.manager
        whole.versions.update(result.versions)
        for mine, theirs in ((whole.held, result.held), (whole.files, result.files), (whole.notes, result.notes)):
            mine += theirs
        whole.steps += result.steps
        whole.left += result.left
        whole.diff += result.diff
    return whole


class RepositoryFiles(Subject[None]):
    """The files of a repository and of its keys on this host. repository: None where none is asked for, and to take them back."""

    def __init__(self, owner: str, repository: Optional[Repository], manager: PackageManager, root: str) -> None:
        self.owner, self.root = owner, root
        self.contents: Mapping[str, Optional[bytes]] = {} if repository is None else manager.files(repository)
        self._lists = None if repository is None else _Lists(manager, repository)

    def look(self, recorded: Recorded) -> None:
        """Nothing: the files are ours as a whole."""

    def present(self, found: None) -> ChangePlan:
        return ChangePlan(self.contents, check=lambda changes, due: LastWord(follow_up=self._lists))


def manager_of(run: RunWithin, timeout: float, host: Host) -> PackageManager:
    """The package manager of a host. It raises Rejected if it has none that is known here."""
    release = host.text("/etc/os-release") or ""
    kinds: Sequence[Tuple[str, str, Callable[[RunWithin, float], PackageManager]]] = (("dnf", "rpm", Dnf), ("apt-get", "dpkg", Apt))
    # A Debian may have dnf beside apt, and the other way round: what the distribution is made of decides.
    if host.exists("/var/lib/dpkg/status") and host.program("apt-get") and not re.search("rhel|fedora|suse", release):
        return Apt(run, timeout)
    if "suse" in release:
        kinds = (("zypper", "rpm", Zypper), *kinds)
    for program, base, kind in kinds:
        if host.program(program) and host.program(base):
            return kind(run, timeout)
    raise Rejected(
        "the host has neither apt-get, dnf nor zypper, expected one of them; nothing was changed: install the packages by hand and let the "
        "role find them (its state present)"
    )


def present(
    wanted: PackageSet,
    manager: PackageManager,
    dry: bool,
    root: str = "/",
    point: Callable[[str], None] = nothing,
    exposed: Exposed = lambda: None,
) -> PackagesResult:
    """Do it, or with `dry` say what would be done. It raises Rejected or TransactionError if nothing was changed, PackagesError if packages
    were."""
    check(wanted)
    journal, owner = Journal(root), OWNER + wanted.owner
    result = PackagesResult(manager=manager.name)
    _finish(manager, journal, owner, dry, result)
    # None where a killed run had begun with a repository that is not asked for any more: its files stay, as those of any earlier one.
    repository = RepositoryFiles(owner, wanted.repository, manager, root)
    files = converge(repository, False, True)
    names = [package.name for package in wanted.packages]
    now = manager.installed(names)
    wrong = [package.name for package in wanted.packages if not satisfies(now[package.name].version, package.version)]
    result.files, result.diff = files.files, files.diff
    plan = PackagePlan({name: str(state.version) for name, state in now.items()}, ())
    if wrong or files.changed:
        resolved = manager.plan(wanted, repository.contents)
        # Where only the repository changes: a newer revision that satisfies as well is not a reason to touch a package.
        plan = resolved if wrong else plan
        check_steps(plan.steps, wanted.replaces)
    check_minimum(plan.versions, wanted.minimum)
    result.steps = list(plan.steps)
    result.versions.update(plan.versions)
    result.held = [name for name in names if wanted.hold and not now[name].held]
    result.changed = bool(files.changed or result.steps or result.held or result.notes)
    why = exposed() if plan.steps else None
    if why:
        raise Rejected(
            f"{shown([step.name for step in plan.steps])} would change, and scripts of packages call systemctl daemon-reload. {why}. Drain "
            "this node (kubectl drain) and run again; nothing was changed"
        )
    if dry or not result.changed:
        return result
    if files.changed:
        keys = _note_keys(journal, owner, manager, wanted.repository) if wanted.repository else []
        try:
            converge(repository, False, False, point)
        except TransactionError:
            _forget_keys(journal, manager, keys)
            raise
    _note(journal, owner, now, plan, result.held)
    point("noted packages")
    if plan.steps:
        _install(wanted, manager, plan)
        point("installed")
    _prove(wanted, manager, plan)
    if wanted.hold:
        # Also those with a hold: a package that was asked for by its version has no hold any more.
        manager.hold(names, True)
        point("held")
    # dnf and zypper keep the hold of a package that has made room, which would hold it when it comes back.
    gone = [step.name for step in plan.steps if step.after is None]
    over = [name for name, state in manager.installed(gone).items() if state.held] if gone else []
    if over:
        manager.hold(over, False)
    return result


def lacks(packages: Sequence[Package], manager: PackageManager) -> bool:
    """Whether the host lacks one of them in its version."""
    now = manager.installed([package.name for package in packages])
    return any(not satisfies(now[package.name].version, package.version) for package in packages)


def owners(root: str = "/") -> List[str]:
    """The owners for whom packages were changed on this host."""
    return sorted({entry.owner[len(OWNER) :] for entry in Journal(root).entries() if entry.owner.startswith(OWNER)})


class _Lists(FollowUp):
    """The package manager that reads what the repository has. When the files are restored, it reads what it can."""

    def __init__(self, manager: PackageManager, repository: Repository) -> None:
        self._refresh: Callable[[], None] = lambda: manager.refresh(repository)
        self._asked = False

    def restart(self) -> None:
        first, self._asked = not self._asked, True
        try:
            self._refresh()
        except (PackagesError, OSError):
            if first:
                raise


def absent(
    owner: str, manager: PackageManager, dry: bool, keep: bool = False, root: str = "/", exposed: Exposed = lambda: None
) -> PackagesResult:
    """Take back what `present` did for this owner, as far as it can be.

    keep: packages stay in the versions that they have, as they do while `exposed` says why. Names in `left` what stays, and why.
    """
    journal, owner = Journal(root), OWNER + owner
    entries = [entry for entry in journal.entries() if entry.owner == owner]
    result = PackagesResult(manager=manager.name)
    if not entries:
        return result
    _finish(manager, journal, owner, dry, result)
    packages = {entry.path[len(ENTRY) :]: entry for entry in entries if entry.path.startswith(ENTRY)}
    keys = [entry for entry in entries if entry.path.startswith(KEY)]
    now = manager.installed(sorted(packages)) if packages else {}
    before = {name: _before(entry) for name, entry in packages.items()}
    free = [name for name, state in now.items() if state.held and not before[name].held]
    new = [name for name, state in now.items() if state.version and before[name].version is None]
    changed = [name for name, state in now.items() if state.version and before[name].version != state.version]
    hurt = None if keep or not changed else exposed()
    stay = f"its scripts would call systemctl daemon-reload. {hurt}" if hurt else "packages are to stay" if keep else ""
    # One with a hold cannot go, nor can it change its version.
    going = [] if stay else _removable(manager, new, result)
    back = {} if stay else _older(manager, now, before, result)
    for name in new if keep else changed if stay else []:
        result.left.append({"what": f"package {name} {now[name].version}", "why": stay})
    for name, package in sorted(now.items()):
        if package.version is None and before[name].version is not None:
            why = f"version {before[name].version} was there before; install it if it is wanted again"
            result.left.append({"what": f"package {name}, removed", "why": why})
    repository = RepositoryFiles(owner, None, manager, root)
    files = converge(repository, True, True)
    result.notes += files.notes
    result.held, result.files = free, files.files
    result.steps = [PackageChange(name, now[name].version, None) for name in going] + [
        PackageChange(name, now[name].version, old) for name, old in back.items()
    ]
    # rpm has a key as a package of its own.
    result.steps += [PackageChange("gpg-pubkey", version, None) for version in _untrusted(journal, manager, keys).values()]
    result.diff, result.changed = files.diff, True
    if dry:
        return result
    if free:
        manager.hold(free, False)
    if back:
        manager.downgrade(back)
        again = [name for name in back if before[name].held]
        if again:
            manager.hold(again, True)
    if going:
        manager.remove(going)
    result.left += _forget_keys(journal, manager, keys)
    converge(repository, True, False)
    return result


def _finish(manager: PackageManager, journal: Journal, owner: str, dry: bool, result: PackagesResult) -> None:
    """Work that a run of the package manager left half done is finished where that run was ours, and rejected where it was not."""
    problem = manager.interrupted()
    if not problem:
        return
    if not any(entry.owner == owner for entry in journal.entries()):
        raise Rejected(
            f"the package manager of this host was interrupted ({problem}), expected none of it; nothing was changed: run "
            "`dpkg --configure -a` and `apt-get --fix-broken install` there, then run again"
        )
    result.notes.append(f"a run that was killed had left packages half configured ({problem}); this is finished first")
    if not dry:
        manager.repair()


def _note(journal: Journal, owner: str, now: Mapping[str, Installed], plan: PackagePlan, held: Sequence[str]) -> None:
    """Note how each package is before it changes. One that is as wanted by itself and is on hold by others does not count as ours."""
    changing = {step.name: (step.before, step.after) for step in plan.steps}
    for name in sorted({*changing, *held}):
        package = now.get(name, Installed(None))
        before, after = changing.get(name, (package.version, package.version))
        state = FileState(_content(Installed(before, package.held)), 0, 0, 0, None)
        if journal.entry(ENTRY + name) is None:
            journal.record(ENTRY + name, owner, state, _content(Installed(after, package.held or name in held)))


def _note_keys(journal: Journal, owner: str, manager: PackageManager, repository: Repository) -> List[Entry]:
    """Note the keys that the host will trust because of us, before it does. The new entries."""
    fingerprints = manager.imports(repository)
    there = manager.trusted(fingerprints)
    ours = {_fingerprint(entry) for entry in journal.entries() if entry.path.startswith(KEY)}
    paths = [f"{KEY}{fingerprint}:{owner}" for fingerprint in fingerprints if fingerprint not in there or fingerprint in ours]
    return [journal.record(path, owner, None, b"trusted") for path in paths if journal.entry(path) is None]


def _forget_keys(journal: Journal, manager: PackageManager, entries: Sequence[Entry]) -> List[LeftThing]:
    """Take away the trust of these entries, unless another owner needs it. It returns what stays, and why."""
    left = manager.distrust(_untrusted(journal, manager, entries))
    for entry in entries:
        journal.forget(entry.path)
    return left


def _untrusted(journal: Journal, manager: PackageManager, entries: Sequence[Entry]) -> Dict[str, str]:
    """The keys of these entries that no other owner needs and that the host still trusts."""
    paths = {entry.path for entry in entries}
    needed = {_fingerprint(entry) for entry in journal.entries() if entry.path.startswith(KEY) and entry.path not in paths}
    return manager.trusted([fingerprint for fingerprint in map(_fingerprint, entries) if fingerprint not in needed])


def _fingerprint(entry: Entry) -> str:
    return entry.path.split(":")[1]


def _content(package: Installed) -> bytes:
    return json.dumps({"version": package.version, "held": package.held}).encode()


def _before(entry: Entry) -> Installed:
    values = json.loads(entry.original.content) if entry.original is not None else {}
    return Installed(values.get("version"), bool(values.get("held")))


def _install(wanted: PackageSet, manager: PackageManager, plan: PackagePlan) -> None:
    try:
        manager.install(wanted, plan)
    except PackagesError as error:
        now = manager.installed(sorted({step.name for step in plan.steps}))
        rows = [f"{step.name} {now[step.name].version or 'not installed'} (was {step.before or 'not installed'})" for step in plan.steps]
        raise PackagesError(
            f"{error}; the packages are now: {shown(rows, 20)}. Cure it and run again, which continues from there"
        ) from error


def _prove(wanted: PackageSet, manager: PackageManager, plan: PackagePlan) -> None:
    now = manager.installed(list(plan.versions))
    wrong = [f"{name} {state.version or 'none'}" for name, state in now.items() if state.version != plan.versions[name]]
    if wrong:
        planned = ", ".join(f"{name} {version}" for name, version in plan.versions.items())
        raise PackagesError(f"the package manager reports success, but the host has {shown(wrong)}, expected {planned[:400]}")


def _removable(manager: PackageManager, names: Sequence[str], result: PackagesResult) -> List[str]:
    """Those of our packages that go; none of them where others need one."""
    if not names:
        return []
    try:
        others = [name for name in manager.plan_removal(names) if name not in names]
    except Rejected as error:
        others, why = [], str(error)
    else:
        why = f"{shown(others)} needs it"
        if not others:
            return list(names)
    result.left += [{"what": f"package {name}", "why": why} for name in names]
    return []


def _older(
    manager: PackageManager, now: Mapping[str, Installed], before: Mapping[str, Installed], result: PackagesResult
) -> Dict[str, str]:
    """The packages that get back the version that they had."""
    changed = {name: state for name, state in now.items() if state.version and before[name].version not in (None, state.version)}
    back = {name: str(before[name].version) for name in changed if before[name].version in manager.available(name)}
    if set(back) != set(changed):
        # A set of one version is not taken apart.
        for name, package in sorted(changed.items()):
            why = f"version {before[name].version} was there before, and no repository of the host has it any more for all of the set"
            result.left.append({"what": f"package {name} {package.version}", "why": why})
        return {}
    return back
