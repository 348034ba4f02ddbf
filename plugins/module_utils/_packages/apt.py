# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""apt: a candidate is fetched and resolved in a scratch folder, so that the host's own sources are not touched before it is verified."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from typing import Dict, Iterator, List, Mapping, Optional, Sequence

from .._change.undo import Rejected
from .._host.command import Outcome, RunWithin
from .._host.files import read_state
from . import openpgp, sources
from .folder import package_files
from .model import (
    FETCH_SECONDS,
    QUESTION_SECONDS,
    STEP_SECONDS,
    Installed,
    PackageChange,
    PackageManager,
    PackagePlan,
    PackagesError,
    PackageSet,
    Repository,
    choose_all,
    last_words,
)

LISTS, SOURCES, KEYRINGS = "/var/lib/apt/lists", "/etc/apt/sources.list.d", "/etc/apt/keyrings"
PREFERENCES = "/etc/apt/preferences.d"
# Never a prompt; a file of configuration that an administrator has changed stays.
_ENV = ["env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=l"]
_QUIET = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=120"]
# Without it a repository that cannot be fetched is a warning.
_STRICT = ["-o", "APT::Update::Error-Mode=any", "-o", "APT::Get::List-Cleanup=0"]
_FORCE = ["--allow-change-held-packages", "--allow-downgrades", "--no-install-recommends"]
_INST = re.compile(r"^Inst (\S+)(?: \[([^\]]*)\])? \((\S+)", re.MULTILINE)
_GONE = re.compile(r"^(?:Remv|Purg) (\S+)(?: \[([^\]]*)\])?", re.MULTILINE)


class Apt(PackageManager):
    """One host's apt and dpkg. run: how commands are run."""

    name = "apt"

    def __init__(self, run: RunWithin, timeout: float = STEP_SECONDS) -> None:
        self._run = run
        self._timeout = timeout

    def installed(self, names: Sequence[str]) -> Dict[str, Installed]:
        shown = "${Package}\t${Version}\t${db:Status-Status}\t${db:Status-Want}\n"
        outcome = self._run(["dpkg-query", "--show", "--showformat", shown, *names], QUESTION_SECONDS)
        # 1: it does not know one of them.
        if outcome.status not in (0, 1):
            raise Rejected(f"dpkg-query does not answer ({last_words(outcome)}); nothing was changed: run `dpkg --audit` on the host")
        rows = [line.split("\t") for line in outcome.out.splitlines() if line.count("\t") == 3]
        found = {row[0]: Installed(row[1], row[3] == "hold") for row in rows if row[2] == "installed"}
        return {name: found.get(name.partition(":")[0], Installed(None)) for name in names}

    def interrupted(self) -> str:
        outcome = self._run(["dpkg", "--audit"], QUESTION_SECONDS)
        left = os.listdir("/var/lib/dpkg/updates") if os.path.isdir("/var/lib/dpkg/updates") else []
        return last_words(outcome) or ("dpkg was interrupted" if any(name.isdigit() for name in left) else "")

    def repair(self) -> None:
        for argv in (
            ["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"],
            ["apt-get", "-qy", *_QUIET, "--fix-broken", "install"],
        ):
            self._do(argv)

    def files(self, repository: Repository) -> "Dict[str, Optional[bytes]]":
        texts: Dict[str, Optional[bytes]] = {}
        own = f"{SOURCES}/{sources.PREFIX}{repository.name}.sources"
        urls = (repository.url, *repository.replaces)
        for path in _source_files():
            state = None if path == own else read_state(path)
            if state is None:
                continue
            before = state.content.decode("utf-8", "surrogateescape")
            change = sources.without_stanzas if path.endswith(".sources") else sources.without_lines
            after = change(before, urls)
            if after != before:
                # A file that has only such entries goes; what it was is in the journal.
                gone = path.endswith(".list") and path != "/etc/apt/sources.list" and sources.names_only(after)
                texts[path] = None if gone else after.encode("utf-8", "surrogateescape")
        key = f"{KEYRINGS}/{sources.PREFIX}{repository.name}.asc"
        texts[key] = openpgp.armored_together(repository.keys)
        preferences = f"{PREFERENCES}/{sources.PREFIX}{repository.name}"
        if repository.version:
            texts[preferences] = sources.preferences(repository.version).encode()
        elif read_state(preferences) is not None:
            texts[preferences] = None
        texts[own] = sources.deb822(repository, key, self._architecture()).encode()
        return texts

    def plan(self, wanted: PackageSet, files: "Mapping[str, Optional[bytes]]") -> PackagePlan:
        with _Scratch(files, wanted.repository.url if wanted.repository else "").opened() as scratch:
            if wanted.repository is not None:
                self._fetch(scratch, wanted.repository)
            packages = self._files_of(wanted) if wanted.folder else {}
            versions = choose_all(wanted, packages, lambda name: self._madison(name, scratch.options))
            chosen = [packages[name][version] for name, version in versions.items() if name in packages]
            argv = [*_ENV, "apt-get", "-q", "--simulate", *scratch.options, *_FORCE, "install", *self._targets(versions, packages)]
            argv += self._going(wanted)
            outcome = self._run(argv, QUESTION_SECONDS)
            if not outcome.ok:
                raise Rejected(
                    f"apt cannot install {', '.join(f'{name} {version}' for name, version in versions.items())[:300]}: "
                    f"{last_words(outcome)}; nothing was changed: run `apt-get update` if it misses packages of the distribution"
                )
            return PackagePlan(versions, _steps(outcome.out), tuple(chosen))

    def refresh(self, repository: Repository) -> None:
        with _Scratch({}).opened() as scratch:
            own = f"{sources.PREFIX}{repository.name}.sources"
            shutil.copy(os.path.join(SOURCES, own), os.path.join(scratch.own, own))
            options = ["-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={scratch.own}"]
            outcome = self._run([*_ENV, "apt-get", "-q", *_QUIET, *options, *_STRICT, "update"], FETCH_SECONDS)
        if not outcome.ok:
            raise PackagesError(f"apt-get update of {repository.url} failed: {last_words(outcome)}")

    def install(self, wanted: PackageSet, plan: PackagePlan) -> None:
        packages = self._files_of(wanted) if wanted.folder else {}
        self._do([*_ENV, "apt-get", "-qy", *_QUIET, *_FORCE, "install", *self._targets(plan.versions, packages), *self._going(wanted)])

    def hold(self, names: Sequence[str], held: bool) -> None:
        self._do(["apt-mark", "hold" if held else "unhold", *names])

    def plan_removal(self, names: Sequence[str]) -> List[str]:
        outcome = self._run([*_ENV, "apt-get", "-q", "--simulate", "--allow-change-held-packages", "remove", *names], QUESTION_SECONDS)
        if not outcome.ok:
            raise Rejected(f"apt cannot remove {', '.join(names)[:300]}: {last_words(outcome)}")
        return [found.group(1) for found in _GONE.finditer(outcome.out)]

    def remove(self, names: Sequence[str]) -> None:
        # They were not there before: their configuration goes as well.
        self._do([*_ENV, "apt-get", "-qy", *_QUIET, "--allow-change-held-packages", "purge", *names])

    def available(self, name: str) -> List[str]:
        return self._madison(name, [])

    def downgrade(self, versions: Mapping[str, str]) -> None:
        self._do([*_ENV, "apt-get", "-qy", *_QUIET, *_FORCE, "install", *(f"{name}={version}" for name, version in versions.items())])

    def _architecture(self) -> str:
        outcome = self._run(["dpkg", "--print-architecture"], QUESTION_SECONDS)
        if not outcome.ok:
            raise Rejected(f"dpkg does not print its architecture ({last_words(outcome)}); nothing was changed")
        return outcome.out.strip()

    def _fetch(self, scratch: "_Scratch", repository: Repository) -> None:
        options = [*scratch.base, "-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={scratch.own}"]
        outcome = self._run([*_ENV, "apt-get", "-q", *options, *_STRICT, "update"], FETCH_SECONDS)
        if not outcome.ok:
            raise Rejected(
                f"apt cannot use the repository {repository.url}: {last_words(outcome)}; nothing was changed: correct its address, key "
                "or suite, or wait until it answers again"
            )

    def _madison(self, name: str, options: Sequence[str]) -> List[str]:
        outcome = self._run(["apt-cache", *options, "madison", name], QUESTION_SECONDS)
        rows = [[part.strip() for part in line.split("|")] for line in outcome.out.splitlines()]
        # Newest first; sources come as well.
        return [row[1] for row in rows if len(row) == 3 and row[0] == name and not row[2].endswith("Sources")]

    def _files_of(self, wanted: PackageSet) -> Dict[str, Dict[str, str]]:
        """The package files of the folder: name to version to path."""
        found: Dict[str, Dict[str, str]] = {}
        names = {package.name for package in wanted.packages}
        for path in package_files(wanted.folder, ".deb"):
            shown = "${Package}\t${Version}\t${Architecture}"
            outcome = self._run(["dpkg-deb", "--show", "--showformat", shown, path], QUESTION_SECONDS)
            row = outcome.out.split("\t")
            if not outcome.ok or len(row) != 3:
                raise Rejected(f"{path} is not a Debian package ({last_words(outcome)}); nothing was changed: remove it from the folder")
            if row[0] in names and row[2] in ("all", self._architecture()):
                found.setdefault(row[0], {})[row[1]] = path
        return found

    def _targets(self, versions: Mapping[str, str], packages: Mapping[str, Mapping[str, str]]) -> List[str]:
        return [packages[name][version] if name in packages else f"{name}={version}" for name, version in versions.items()]

    def _going(self, wanted: PackageSet) -> List[str]:
        """A package that may go goes by name: apt does not take a package with a hold away by itself."""
        now = self.installed(wanted.replaces) if wanted.replaces else {}
        return [f"{name}-" for name, package in now.items() if package.version is not None]

    def _do(self, argv: Sequence[str]) -> None:
        outcome = self._run(list(argv), self._timeout)
        if not outcome.ok:
            raise PackagesError(failure(outcome))


class _Scratch:
    """A folder where apt has the sources and lists of the host, and those files that the host shall have."""

    def __init__(self, files: "Mapping[str, Optional[bytes]]", url: str = "") -> None:
        self._files = files
        self._listed = re.sub(r"^[a-z]+:/*", "", url).rstrip("/").replace("_", "%5f").replace("/", "_") or "/"
        self.folder = ""

    @contextmanager
    def opened(self) -> Iterator["_Scratch"]:
        self.folder = tempfile.mkdtemp(prefix="gpushare-apt-")
        try:
            # The user as which apt fetches must get through it.
            os.chmod(self.folder, 0o755)
            for name in ("own", "all", "preferences", "lists/partial", "archives/partial"):
                os.makedirs(os.path.join(self.folder, name))
            self._fill()
            yield self
        finally:
            shutil.rmtree(self.folder)

    @property
    def own(self) -> str:
        return os.path.join(self.folder, "own")

    @property
    def base(self) -> List[str]:
        settings = {
            "Dir::State::Lists": os.path.join(self.folder, "lists"),
            "Dir::Cache": self.folder,
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
        }
        return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]

    @property
    def options(self) -> List[str]:
        parts, preferences = os.path.join(self.folder, "all"), os.path.join(self.folder, "preferences")
        settings = ["Dir::Etc::SourceList=/dev/null", f"Dir::Etc::SourceParts={parts}", f"Dir::Etc::PreferencesParts={preferences}"]
        return [*self.base, *(word for setting in settings for word in ("-o", setting))]

    def _fill(self) -> None:
        keys = {path: os.path.join(self.folder, os.path.basename(path)) for path in self._files if path.startswith(KEYRINGS)}
        for path, copy in keys.items():
            _write(copy, self._files[path] or b"")
        self._fill_preferences()
        texts = {path: state.content for path in _source_files() for state in [read_state(path)] if state is not None}
        for path, content in self._files.items():
            if path in keys or path.startswith(PREFERENCES):
                continue
            if content is None:
                texts.pop(path, None)
                continue
            for original, copy in keys.items():
                content = content.replace(original.encode(), copy.encode())
            texts[path] = content
            if os.path.basename(path).startswith(sources.PREFIX):
                _write(os.path.join(self.own, os.path.basename(path)), content)
        for path, content in texts.items():
            name = os.path.basename(path) if path.startswith(SOURCES) else "host-sources.list"
            _write(os.path.join(self.folder, "all", name), content)
        for name in os.listdir(LISTS) if os.path.isdir(LISTS) else []:
            # Those of the candidate are fetched again, with its key.
            if os.path.isfile(os.path.join(LISTS, name)) and name != "lock" and not name.startswith(self._listed):
                os.symlink(os.path.join(LISTS, name), os.path.join(self.folder, "lists", name))

    def _fill_preferences(self) -> None:
        names = sorted(os.listdir(PREFERENCES)) if os.path.isdir(PREFERENCES) else []
        paths = [os.path.join(PREFERENCES, name) for name in names]
        texts = {path: state.content for path in paths if os.path.isfile(path) for state in [read_state(path)] if state is not None}
        texts.update({path: content or b"" for path, content in self._files.items() if path.startswith(PREFERENCES)})
        for path, content in texts.items():
            _write(os.path.join(self.folder, "preferences", os.path.basename(path)), content)


def failure(outcome: Outcome) -> str:
    """The message of a command of the package manager that failed."""
    program = next(word for word in outcome.argv if "=" not in word and word != "env")
    if outcome.timed_out:
        return f"{program} did not end within {outcome.timed_out:.0f} seconds"
    return f"{program} failed with exit status {outcome.status}: {last_words(outcome)}"


def _steps(printed: str) -> "tuple[PackageChange, ...]":
    gone = [PackageChange(found.group(1), found.group(2), None) for found in _GONE.finditer(printed)]
    new = [PackageChange(found.group(1), found.group(2), found.group(3)) for found in _INST.finditer(printed)]
    # One that is removed and comes back is none that goes.
    names = {step.name for step in new}
    return tuple([step for step in gone if step.name not in names] + new)


def _source_files() -> List[str]:
    names = sorted(os.listdir(SOURCES)) if os.path.isdir(SOURCES) else []
    paths = ["/etc/apt/sources.list", *(os.path.join(SOURCES, name) for name in names if name.endswith((".list", ".sources")))]
    return [path for path in paths if os.path.isfile(path)]


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as stream:
        stream.write(content)
