# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""zypper and rpm: a candidate repository is tried in a scratch root, with a copy of rpm's database, before the host knows it.

zypper trusts each key in rpm's database for each repository, so the scratch root has a copy of it, in which the candidate's key is
imported. zypper's locks keep packages, which are by name.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from typing import Dict, Iterator, List, Mapping, Optional, Sequence
from xml.etree import ElementTree

from .._change.undo import Rejected
from .._host.command import Outcome
from .._host.files import FileState, read_state, remove, replace
from . import openpgp, rpm, sources
from .apt import failure
from .model import (
    FETCH_SECONDS,
    QUESTION_SECONDS,
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

FOLDER = "/etc/zypp"
REPOSITORIES, LOCKS = f"{FOLDER}/repos.d", f"{FOLDER}/locks"
PRODUCTS = "/etc/products.d"
_DATABASE = "/var/lib/rpm"
_QUIET = ("--non-interactive", "--xmlout")
# It is done; and done, with updates, a reboot, a restart of zypper or repositories that do not answer to be told of.
_DONE = (0, 100, 101, 102, 103, 106)
_NO_REPOSITORY, _NOTHING_FOUND = 6, 104
_NEW = ("to-install", "to-upgrade", "to-downgrade", "to-reinstall", "to-change-arch", "to-upgrade-change-arch", "to-downgrade-change-arch")
_GONE = "to-remove"
_LOCK = "type: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: {}\n"
_LOCKED = re.compile(r"type: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: (?P<name>[A-Za-z0-9][A-Za-z0-9+._-]*)")


class Zypper(rpm.RpmBased):
    """One host's zypper and rpm. run: how commands are run."""

    name = "zypper"

    def installed(self, names: Sequence[str]) -> Dict[str, Installed]:
        versions, held = rpm.versions(self._run, names), locked(_text(LOCKS))
        return {name: Installed(versions.get(name), name in held) for name in names}

    def files(self, repository: Repository) -> "Dict[str, Optional[bytes]]":
        texts = rpm.without_former(REPOSITORIES, repository)
        key = self._key(repository)
        texts[key] = openpgp.armored(repository.keys)
        # zypper has a field of its own for the signatures of packages, and does not search for news by itself.
        more = (("pkg_gpgcheck", "1" if repository.package_signatures else "0"), ("autorefresh", "1"), ("type", "rpm-md"))
        texts[rpm.own_file(REPOSITORIES, repository)] = sources.repo_file(repository, key, more).encode()
        return texts

    def plan(self, wanted: PackageSet, files: "Mapping[str, Optional[bytes]]") -> PackagePlan:
        names = [package.name for package in wanted.packages]
        with self._scratch(files, [*names, *wanted.replaces]) as zypper:
            if wanted.repository is not None:
                self._reads(zypper, wanted.repository)
            packages = rpm.files_of(self._run, wanted) if wanted.folder else {}
            offered = self._offered(zypper, [name for name in names if name not in packages])
            versions = choose_all(wanted, packages, offered.__getitem__)
            chosen = [packages[name][version] for name, version in versions.items() if name in packages]
            argv = [*zypper, *self._install(wanted, versions, packages, dry=True)]
            return PackagePlan(versions, self._steps(argv, "install"), tuple(chosen))

    def refresh(self, repository: Repository) -> None:
        self._do(["rpmkeys", "--import", self._key(repository)])
        outcome = self._run(["zypper", *_QUIET, "refresh", sources.PREFIX + repository.name], FETCH_SECONDS)
        if outcome.status not in _DONE:
            raise PackagesError(f"zypper cannot read {repository.url}: {_words(outcome)}")

    def imports(self, repository: Repository) -> List[str]:
        return [key.fingerprint for key in repository.keys]

    def install(self, wanted: PackageSet, plan: PackagePlan) -> None:
        packages = rpm.files_of(self._run, wanted) if wanted.folder else {}
        with self._free([*plan.versions, *wanted.replaces]):
            self._do(["zypper", *_QUIET, *self._install(wanted, plan.versions, packages)])

    def hold(self, names: Sequence[str], held: bool) -> None:
        text = _text(LOCKS)
        _write_locks(text, with_locks(text, names) if held else without_locks(text, names))

    def plan_removal(self, names: Sequence[str]) -> List[str]:
        with self._scratch({}, names) as zypper:
            argv = [*zypper, "--disable-repositories", "remove", "--dry-run", "--no-clean-deps", *names]
            return [step.name for step in self._steps(argv, "remove") if step.after is None]

    def remove(self, names: Sequence[str]) -> None:
        self._do(["zypper", *_QUIET, "remove", "--no-clean-deps", *names])

    def available(self, name: str) -> List[str]:
        return self._offered(["zypper", *_QUIET], [name])[name]

    def downgrade(self, versions: Mapping[str, str]) -> None:
        with self._free(list(versions)):
            targets = [f"{name}={version}" for name, version in versions.items()]
            self._do(["zypper", *_QUIET, "install", "--oldpackage", "--auto-agree-with-licenses", *targets])

    def _install(
        self, wanted: PackageSet, versions: Mapping[str, str], packages: Mapping[str, Mapping[str, str]], dry: bool = False
    ) -> List[str]:
        options = ["--oldpackage", "--auto-agree-with-licenses", *(["--dry-run"] if dry else [])]
        if packages:
            options.append("--allow-unsigned-rpm")
        targets = [packages[name][version] if name in packages else f"{name}={version}" for name, version in versions.items()]
        # zypper takes nothing away by itself to make room.
        replaced = rpm.versions(self._run, wanted.replaces) if wanted.replaces else {}
        return ["install", *options, "--", *targets, *(f"-{name}" for name in sorted(replaced))]

    def _reads(self, zypper: Sequence[str], repository: Repository) -> None:
        outcome = self._run([*zypper, "refresh", sources.PREFIX + repository.name], FETCH_SECONDS)
        if outcome.status not in _DONE:
            raise Rejected(
                f"zypper cannot use the repository {repository.url}: {_words(outcome)}; nothing was changed: correct its address or key, "
                "or wait until it answers again"
            )

    def _offered(self, zypper: Sequence[str], names: Sequence[str]) -> Dict[str, List[str]]:
        found: Dict[str, List[str]] = {name: [] for name in names}
        if not names:
            return found
        outcome = self._run([*zypper, "search", "--type", "package", "--details", "--match-exact", *names], FETCH_SECONDS)
        if outcome.status in (_NOTHING_FOUND, _NO_REPOSITORY):
            return found
        if outcome.status not in _DONE:
            raise Rejected(f"zypper cannot use the repositories of this host: {_words(outcome)}; nothing was changed: correct them")
        for solvable in _parsed(outcome).iter("solvable"):
            name, version = solvable.get("name", ""), rpm.plain(solvable.get("edition", ""))
            # A package that is only installed is in no repository.
            if name in found and version not in found[name] and not solvable.get("repository", "(").startswith("("):
                found[name].append(version)
        return {name: sorted(versions, key=by_number, reverse=True) for name, versions in found.items()}

    def _steps(self, argv: Sequence[str], what: str) -> "tuple[PackageChange, ...]":
        outcome = self._run(list(argv), FETCH_SECONDS)
        if outcome.status not in _DONE:
            raise Rejected(f"zypper cannot {what} {' '.join(argv[-8:])[:300]}: {_words(outcome)}; nothing was changed")
        rows = table(_parsed(outcome))
        before = self.installed(list(rows)) if rows else {}
        return tuple(PackageChange(name, before[name].version, after) for name, after in rows.items())

    def _key(self, repository: Repository) -> str:
        return f"{FOLDER}/{sources.PREFIX}{repository.name}.asc"

    @contextmanager
    def _free(self, names: Sequence[str]) -> Iterator[None]:
        """zypper does not lock these packages; others stay as they are. Those that were locked are locked again, also after a failure."""
        before = [name for name in names if name in locked(_text(LOCKS))]
        self.hold(before, False)
        try:
            yield
        finally:
            self.hold(before, True)

    @contextmanager
    def _scratch(self, files: "Mapping[str, Optional[bytes]]", names: Sequence[str]) -> Iterator[List[str]]:
        """zypper with the repositories of the host, those files that the host shall have, and nothing else of the host to write to."""
        root = tempfile.mkdtemp(prefix="gpushare-zypper-")
        try:
            etc = root + FOLDER
            ignored = shutil.ignore_patterns(os.path.basename(REPOSITORIES), os.path.basename(LOCKS))
            shutil.copytree(FOLDER, etc, symlinks=True, ignore=ignored)
            if os.path.isdir(PRODUCTS):
                shutil.copytree(PRODUCTS, root + PRODUCTS, symlinks=True)
            database = self._database(root)
            keys = {path: root + path for path in files if path.startswith(FOLDER + "/") and path.endswith(".asc")}
            for path, copy in keys.items():
                rpm.write(copy, files[path] or b"")
                imported = self._run(["rpmkeys", "--dbpath", database, "--import", copy], QUESTION_SECONDS)
                if not imported.ok:
                    raise Rejected(f"rpm does not take the key of the repository ({last_words(imported)}); nothing was changed")
            os.mkdir(root + REPOSITORIES)
            for path, content in rpm.copies(REPOSITORIES, files, keys).items():
                rpm.write(root + path, content)
            rpm.write(root + LOCKS, without_locks(_text(LOCKS), names).encode("utf-8", "surrogateescape"))
            yield ["zypper", "--root", root, *_QUIET]
        finally:
            shutil.rmtree(root)

    def _database(self, root: str) -> str:
        """A copy of rpm's database below the root, where rpm and zypper search for it there."""
        outcome = self._run(["rpm", "--eval", "%{_dbpath}"], QUESTION_SECONDS)
        place = outcome.out.strip()
        if not outcome.ok or not os.path.isdir(place):
            raise Rejected(
                f"rpm has no database ({last_words(outcome) or place[:80]}); nothing was changed: run `rpm --rebuilddb` on the host"
            )
        shutil.copytree(place, root + place, ignore=shutil.ignore_patterns(".rpm.lock"))
        if not os.path.exists(root + _DATABASE):
            os.makedirs(os.path.dirname(root + _DATABASE), exist_ok=True)
            os.symlink(os.path.relpath(place, os.path.dirname(_DATABASE)), root + _DATABASE)
        return root + place

    def _do(self, argv: Sequence[str]) -> Outcome:
        outcome = self._run(list(argv), self._timeout)
        if outcome.status not in (_DONE if argv[0] == "zypper" else (0,)):
            raise PackagesError(_words(outcome) if argv[0] == "zypper" else failure(outcome))
        return outcome


def table(stream: ElementTree.Element) -> "Dict[str, Optional[str]]":
    """The changes of packages by zypper's XML: name to the version, None for one that goes. It raises Rejected where it cannot be read."""
    rows: "Dict[str, Optional[str]]" = {}
    for summary in stream.iter("install-summary"):
        for part in summary:
            if part.tag not in (*_NEW, _GONE):
                raise Rejected(f"zypper plans something that is not known here ({part.tag[:80]!r}); nothing was changed: do it by hand")
            for solvable in part.iter("solvable"):
                if solvable.get("type") == "package":
                    rows[solvable.get("name", "")] = None if part.tag == _GONE else rpm.plain(solvable.get("edition", ""))
    return rows


def locked(text: str) -> List[str]:
    """The packages that a file of locks holds by their names alone."""
    found = (_LOCKED.fullmatch(block) for block in _blocks(text))
    return [match.group("name") for match in found if match]


def with_locks(text: str, names: Sequence[str]) -> str:
    """The file of locks, with locks of these packages."""
    new = [_LOCK.format(name) for name in sorted(set(names) - set(locked(text)))]
    kept = text.rstrip("\n") + "\n" if text.strip() else ""
    return kept + "".join("\n" + block for block in new) + ("\n" if new else "") if new else text


def without_locks(text: str, names: Sequence[str]) -> str:
    """The file of locks, without locks of these packages."""
    gone = set(names) & set(locked(text))
    if not gone:
        return text
    kept = [block for block in _blocks(text) if not any(block == _LOCK.format(name).rstrip("\n") for name in gone)]
    return "".join(f"\n{block}\n" for block in kept) + ("\n" if kept else "")


def _blocks(text: str) -> List[str]:
    return [block.strip("\n") for block in re.split(r"\n[ \t]*\n", text) if block.strip()]


def _text(path: str) -> str:
    state = read_state(path)
    return "" if state is None else state.content.decode("utf-8", "surrogateescape")


def _write_locks(before: str, after: str) -> None:
    if after == before:
        return
    if not after.strip():
        remove(LOCKS)
        return
    state = read_state(LOCKS) or FileState(b"", 0o644, os.getuid(), os.getgid(), None)
    replace(LOCKS, after.encode("utf-8", "surrogateescape"), state.mode, state.uid, state.gid, state.label)


def _parsed(outcome: Outcome) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(outcome.out[outcome.out.index("<?xml") :])
    except (ValueError, ElementTree.ParseError) as error:
        raise Rejected(f"zypper printed no XML ({error}); nothing was changed: `zypper --xmlout` must work on the host") from None


def _words(outcome: Outcome) -> str:
    """The problem that zypper reported: its errors, or the problem that it could not solve."""
    try:
        stream = _parsed(outcome)
    except Rejected:
        return failure(outcome)
    said = [message.text or "" for message in stream.iter("message") if message.get("type") == "error"]
    said += [message.text or "" for message in stream.iter("message") if (message.text or "").startswith("Problem:")]
    return " ".join(" ".join(said).split())[:500] or failure(outcome)
