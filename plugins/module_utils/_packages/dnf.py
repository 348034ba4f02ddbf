# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""dnf 4 and rpm: a candidate repository is read into a cache of its own, with a key ring of its own, before the host knows it.

Packages get their hold by dnf's plugin versionlock where the host has it, and else by excludepkgs in dnf.conf, which every program that
stands on libdnf respects.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .._change.undo import Rejected
from .._host.command import Outcome
from .._host.files import FileState, read_state, replace
from . import openpgp, rpm, sources
from .apt import failure
from .model import (
    FETCH_SECONDS,
    Installed,
    PackageChange,
    PackagePlan,
    PackagesError,
    PackageSet,
    Repository,
    by_number,
    choose_all,
    last_words,
)

REPOSITORIES, KEYS, CONFIG = "/etc/yum.repos.d", "/etc/pki/rpm-gpg", "/etc/dnf/dnf.conf"
PLUGIN, MODULES = "/etc/dnf/plugins/versionlock.conf", "/etc/dnf/modules.d"
_NEW = ("Installing", "Installing dependencies", "Installing weak dependencies", "Upgrading", "Downgrading", "Reinstalling")
_GONE = ("Removing", "Removing dependent packages", "Removing unused dependencies")
_STREAMS = "Enabling module streams"
# As dnf 4 writes it.
_DISABLED = "[{0}]\nname={0}\nstream=\nprofiles=\nstate=disabled\n"
_LOCKED = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9+._-]*)-(?P<version>[0-9]+:[^\s:]+-[^\s-]+)\.\*$")
_EXCLUDES = ("exclude", "excludepkgs")
_DUMPED = re.compile(r"^excludepkgs\s*=\s*(.*)$", re.MULTILINE)
# Of dnf 4 by its plugin config-manager, and of dnf 5.
_DUMPS = (["dnf", "-q", "config-manager", "--dump"], ["dnf", "-q", "--dump-main-config"])


class Dnf(rpm.RpmBased):
    """One host's dnf and rpm. run: how commands are run."""

    name = "dnf"

    def installed(self, names: Sequence[str]) -> Dict[str, Installed]:
        versions = rpm.versions(self._run, names)
        held = self._held()
        # One that is locked at another version than it has has no hold: a run was killed between the two. A lock outlives its package.
        return {name: Installed(versions.get(name), name in held and held[name] in ("", versions.get(name, held[name]))) for name in names}

    def files(self, repository: Repository) -> "Dict[str, Optional[bytes]]":
        texts = rpm.without_former(REPOSITORIES, repository)
        key = f"{KEYS}/RPM-GPG-KEY-{sources.PREFIX}{repository.name}"
        texts[key] = openpgp.armored(repository.keys)
        # A package at its version, whatever stream of a module it is in: dnf hides those of all streams but one. And it switches a stream
        # on when it installs a package of the default one, which would then be left behind.
        texts.update({f"{MODULES}/{name}.module": _DISABLED.format(name).encode() for name in repository.modules})
        texts[rpm.own_file(REPOSITORIES, repository)] = sources.repo_file(repository, key, (("module_hotfixes", "1"),)).encode()
        return texts

    def plan(self, wanted: PackageSet, files: "Mapping[str, Optional[bytes]]") -> PackagePlan:
        names = [package.name for package in wanted.packages]
        with self._scratch(files, [*names, *wanted.replaces]) as options:
            packages = rpm.files_of(self._run, wanted) if wanted.folder else {}
            own = [_needed(wanted.repository)] if wanted.repository is not None else []
            offered = self._offered([name for name in names if name not in packages], [*options, *own], wanted.repository)
            versions = choose_all(wanted, packages, offered.__getitem__)
            chosen = [packages[name][version] for name, version in versions.items() if name in packages]
            argv = ["dnf", "--assumeno", *options, *_making_room(wanted), "install", *self._targets(versions, packages)]
            modules = wanted.repository.modules if wanted.repository else ()
            return PackagePlan(versions, self._steps(argv, "install", modules), tuple(chosen))

    def refresh(self, repository: Repository) -> None:
        if repository.package_signatures:
            self._do(["rpmkeys", "--import", f"{KEYS}/RPM-GPG-KEY-{sources.PREFIX}{repository.name}"])
        name = sources.PREFIX + repository.name
        argv = ["dnf", "-qy", "--disablerepo=*", f"--enablerepo={name}", _needed(repository), "--refresh", "makecache"]
        outcome = self._run(argv, FETCH_SECONDS)
        if not outcome.ok:
            raise PackagesError(f"dnf cannot read {repository.url}: {last_words(outcome)}")

    def imports(self, repository: Repository) -> List[str]:
        # Those of metadata are in the repository's own cache.
        return [key.fingerprint for key in repository.keys] if repository.package_signatures else []

    def install(self, wanted: PackageSet, plan: PackagePlan) -> None:
        packages = rpm.files_of(self._run, wanted) if wanted.folder else {}
        with self._free([*plan.versions, *wanted.replaces]) as options:
            self._do(["dnf", "-qy", *options, *_making_room(wanted), "install", *self._targets(plan.versions, packages)])

    def hold(self, names: Sequence[str], held: bool) -> None:
        versions = {name: package.version for name, package in self.installed(names).items() if package.version is not None}
        path = self._locks()
        state = read_state(path) or FileState(b"", 0o644, os.getuid(), os.getgid(), None)
        text = state.content.decode("utf-8", "surrogateescape")
        if path == CONFIG:
            text = excluding(text, [*excluded(without(text, names)), *(versions if held else ())])
        else:
            kept = "".join(line for line in text.splitlines(keepends=True) if _name_of(line) not in names)
            text = kept + "".join(f"{name}-{_full(version)}.*\n" for name, version in sorted(versions.items()) if held)
        content = text.encode("utf-8", "surrogateescape")
        if content != state.content:
            replace(path, content, state.mode, state.uid, state.gid, state.label)
        if path == CONFIG and held:
            self._check_excluded(list(versions))

    def _check_excluded(self, names: Sequence[str]) -> None:
        """PackagesError if dnf itself says that it does not exclude them. One without the means to say so is believed by its file."""
        for argv in _DUMPS:
            outcome = self._run(argv, FETCH_SECONDS)
            found = _DUMPED.search(outcome.out) if outcome.ok else None
            if found is None:
                continue
            lacking = [name for name in names if name not in re.split(r"[\s,]+", found.group(1))]
            if lacking:
                raise PackagesError(f"{CONFIG} excludes {', '.join(lacking[:8])[:200]}, and dnf does not: read its other files")
            return

    def plan_removal(self, names: Sequence[str]) -> List[str]:
        # Packages that dnf.conf excludes cannot be removed either.
        with self._free(names) as options:
            steps = self._steps(["dnf", "--assumeno", *options, "--setopt=clean_requirements_on_remove=False", "remove", *names], "remove")
        return [step.name for step in steps if step.after is None]

    def remove(self, names: Sequence[str]) -> None:
        self._do(["dnf", "-qy", "--setopt=clean_requirements_on_remove=False", "remove", *names])

    def available(self, name: str) -> List[str]:
        with self._free([name]) as options:
            return self._offered([name], options, None)[name]

    def downgrade(self, versions: Mapping[str, str]) -> None:
        with self._free(list(versions)) as options:
            self._do(["dnf", "-qy", *options, "install", *self._targets(versions, {})])

    def _targets(self, versions: Mapping[str, str], packages: Mapping[str, Mapping[str, str]]) -> List[str]:
        return [packages[name][version] if name in packages else f"{name}-{_full(version)}" for name, version in versions.items()]

    def _offered(self, names: Sequence[str], options: Sequence[str], repository: Optional[Repository]) -> Dict[str, List[str]]:
        found: Dict[str, List[str]] = {name: [] for name in names}
        if not names:
            return found
        shown = "%{name}\t%{epoch}:%{version}-%{release}"
        outcome = self._run(["dnf", "-qy", *options, "repoquery", "--available", "--showduplicates", "--qf", shown, *names], FETCH_SECONDS)
        if not outcome.ok:
            which = f"the repository {repository.url}" if repository else "the repositories of this host"
            raise Rejected(
                f"dnf cannot use {which}: {last_words(outcome)}; nothing was changed: correct its address or key, or wait until it "
                "answers again"
            )
        for line in outcome.out.splitlines():
            name, _tab, version = line.partition("\t")
            if name in found and rpm.plain(version) not in found[name]:
                found[name].append(rpm.plain(version))
        return {name: sorted(versions, key=by_number, reverse=True) for name, versions in found.items()}

    def _steps(self, argv: Sequence[str], what: str, modules: Sequence[str] = ()) -> "tuple[PackageChange, ...]":
        outcome = self._run(list(argv), FETCH_SECONDS)
        # Status 1 is also that no person has agreed.
        if outcome.status not in (0, 1) or (outcome.status == 1 and "Operation aborted." not in outcome.out + outcome.err):
            raise Rejected(f"dnf cannot {what} {' '.join(argv[-8:])[:300]}: {last_words(outcome)}; nothing was changed")
        rows = table(outcome.out, modules)
        before = self.installed([name for name, _version, _gone in rows]) if rows else {}
        return tuple(PackageChange(name, before[name].version, None if gone else rpm.plain(version)) for name, version, gone in rows)

    def _locks(self) -> str:
        """The file with the locks of packages."""
        state = read_state(PLUGIN)
        text = "" if state is None else state.content.decode("utf-8", "replace")
        enabled = re.search(r"^\s*enabled\s*=\s*(\S+)", text, re.MULTILINE)
        listed = re.search(r"^\s*locklist\s*=\s*(/\S+)", text, re.MULTILINE)
        return listed.group(1) if listed and enabled and enabled.group(1).lower() in ("1", "true", "yes") else CONFIG

    def _held(self) -> Dict[str, str]:
        """The packages that are locked, with the version at which they are; "" for any."""
        state = read_state(self._locks())
        text = "" if state is None else state.content.decode("utf-8", "replace")
        if self._locks() == CONFIG:
            return dict.fromkeys(excluded(text), "")
        found = (_LOCKED.match(line.strip()) for line in text.splitlines())
        return {line.group("name"): rpm.plain(line.group("version")) for line in found if line}

    @contextmanager
    def _free(self, names: Sequence[str]) -> Iterator[List[str]]:
        """Options by which dnf does not hold these packages; others stay as they are."""
        state = read_state(self._locks())
        text = "" if state is None else state.content.decode("utf-8", "surrogateescape")
        if self._locks() == CONFIG:
            # dnf adds to the file's own, unless the first is empty.
            others = ",".join(["", *excluded(without(text, names))])
            yield [f"--setopt=excludepkgs={others}"] if set(excluded(text)) & set(names) else []
            return
        folder = tempfile.mkdtemp(prefix="gpushare-dnf-")
        try:
            yield self._unlocked(folder, text, names)
        finally:
            shutil.rmtree(folder)

    def _unlocked(self, folder: str, text: str, names: Sequence[str]) -> List[str]:
        plugins = os.path.join(folder, "plugins")
        shutil.copytree(os.path.dirname(PLUGIN), plugins)
        locks = os.path.join(folder, "versionlock.list")
        kept = "".join(line for line in text.splitlines(keepends=True) if _name_of(line) not in names)
        rpm.write(locks, kept.encode("utf-8", "surrogateescape"))
        rpm.write(os.path.join(plugins, os.path.basename(PLUGIN)), f"[main]\nenabled = 1\nlocklist = {locks}\n".encode())
        return [f"--setopt=pluginconfpath={plugins}"]

    @contextmanager
    def _scratch(self, files: "Mapping[str, Optional[bytes]]", names: Sequence[str]) -> Iterator[List[str]]:
        """Options by which dnf has the repositories of the host, those files that the host shall have, and a cache of its own."""
        folder = tempfile.mkdtemp(prefix="gpushare-dnf-")
        try:
            keys = {path: os.path.join(folder, os.path.basename(path)) for path in files if path.startswith(KEYS)}
            for path, copy in keys.items():
                rpm.write(copy, files[path] or b"")
            os.mkdir(os.path.join(folder, "repositories"))
            # Packages are not fetched here, so that their signatures need not be checked.
            for path, content in rpm.copies(REPOSITORIES, files, keys).items():
                rpm.write(os.path.join(folder, "repositories", os.path.basename(path)), content)
            with self._free(names) as free:
                places = {"reposdir": "repositories", "cachedir": "cache", "persistdir": "persist"}
                yield [*(f"--setopt={name}={folder}/{place}" for name, place in places.items()), *free]
        finally:
            shutil.rmtree(folder)

    def _do(self, argv: Sequence[str]) -> Outcome:
        outcome = self._run(list(argv), self._timeout)
        if not outcome.ok:
            raise PackagesError(failure(outcome))
        return outcome


def _making_room(wanted: PackageSet) -> List[str]:
    """The option by which dnf removes what conflicts. Which packages may go that way is checked in the plan."""
    return ["--allowerasing"] if wanted.replaces else []


def _needed(repository: Repository) -> str:
    """The option by which dnf fails without the repository, also where dnf.conf says skip_if_unavailable."""
    return f"--setopt={sources.PREFIX}{repository.name}.skip_if_unavailable=False"


def table(printed: str, modules: Sequence[str] = ()) -> "list[tuple[str, str, bool]]":
    """The rows of the table that dnf shows before a transaction: name, version, whether it goes. It raises Rejected where it cannot be
    read.

    modules: those that will be disabled before the transaction is done, so that none of their streams will be enabled by it.
    """
    rows: "list[tuple[str, str, bool]]" = []
    section, words = "", []  # type: str, List[str]
    inside = False
    for line in printed.splitlines():
        if line.startswith("=" * 20):
            inside = True
            continue
        if line.startswith("Transaction Summary"):
            break
        if not inside or not line.strip() or line.startswith(" Package "):
            continue
        if not line.startswith(" "):
            section, words = line.strip().rstrip(":"), []
            if section not in (*_NEW, *_GONE, _STREAMS):
                raise Rejected(f"dnf plans something that is not known here ({section[:80]!r}); nothing was changed: do it by hand")
            continue
        if line.split()[0] == "replacing":
            rows.append((line.split()[1].rpartition(".")[0], "", True))
            continue
        words += line.split()
        if section == _STREAMS:
            if words[0] not in modules:
                raise Rejected(
                    f"dnf would enable a stream of the module {words[0][:80]!r}; nothing was changed: enable or disable it by hand"
                )
            words = []
        # A name that is too long stands on a line of its own.
        if len(words) >= 4:
            rows.append((words[0], words[2], section in _GONE))
            words = []
    if words:
        raise Rejected(f"dnf plans something that cannot be read here ({' '.join(words)[:80]!r}); nothing was changed")
    return rows


class _Item(NamedTuple):
    """A key of [main] that excludes packages, with its whole value. start, end: of its lines in the text."""

    key: str
    value: str
    start: int
    end: int


def _exclusions(text: str) -> "Tuple[List[_Item], Optional[int]]":
    """Those items in their order, and where the first section [main] begins. As libdnf reads a file, which is not as INI files are read:
    a section may be there several times, and a value continues in lines that begin with white space.
    """
    items: List[_Item] = []
    begins: Optional[int] = None
    section, place = "", 0
    current: Optional[_Item] = None
    for raw in re.findall(r"[^\n]*\n|[^\n]+", text):
        line = (raw.lstrip("\ufeff") if place == 0 else raw).rstrip("\r\n")
        bare, end = line.strip(" \t\r"), place + len(raw)
        goes_on = current is not None and (not bare or (line[0] in " \t" and bare[0] != "["))
        if not line or line[0] in "#;":
            goes_on = False
        if goes_on and current is not None:
            current = current._replace(value=f"{current.value}\n{bare}", end=end)
            items[-1] = current
        else:
            current = None
            if bare.startswith("["):
                section = bare[1:].partition("]")[0]
                begins = end if section == "main" and begins is None else begins
            elif section == "main" and line and line[0] not in "#; \t":
                key, _equals, value = (part.strip(" \t") for part in line.partition("="))
                if key in _EXCLUDES:
                    current = _Item(key, value, place, end)
                    items.append(current)
        place = end
    return items, begins


def excluded(text: str) -> List[str]:
    """The packages that a dnf.conf excludes: by the last value of each key, to which the other key adds unless it begins with a comma."""
    found: List[str] = []
    for value in {item.key: item.value for item in _exclusions(text)[0]}.values():
        plain = value.strip()
        if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "\"'":
            plain = plain[1:-1]
        if not plain or plain.startswith(","):
            found = []
        found += [word for word in re.split(r"[\s,]+", plain) if word]
    return list(dict.fromkeys(found))


def excluding(text: str, names: Sequence[str]) -> str:
    """The dnf.conf, with these excluded and no others, by one key of [main]."""
    wanted = list(dict.fromkeys(names))
    if excluded(text) == wanted:
        return text
    items, begins = _exclusions(text)
    line = f"{items[0].key if items else _EXCLUDES[1]}={' '.join(wanted)}\n" if wanted else ""
    if items:
        begins = items[0].start
        for item in reversed(items):
            text = text[: item.start] + text[item.end :]
    if begins is None:
        begins, line = len(text), f"[main]\n{line}" if line else ""
    if line and begins and not text[:begins].endswith("\n"):
        line = "\n" + line
    return text[:begins] + line + text[begins:]


def without(text: str, names: Sequence[str]) -> str:
    """The dnf.conf, where these are not excluded."""
    return excluding(text, [name for name in excluded(text) if name not in names]) if excluded(text) else text


def _name_of(line: str) -> str:
    """The package of a line of versionlock, "" for one that is none or not written by us."""
    found = _LOCKED.match(line.strip())
    return found.group("name") if found else ""


def _full(version: str) -> str:
    return version if ":" in version else "0:" + version
