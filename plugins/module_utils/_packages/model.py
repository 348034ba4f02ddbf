# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages that are wanted on a host, what a package manager would do for them, and the manager as all kinds of it are used.

A version is the distribution's whole one ("1.17.8-1", "3:570.86-1", "570.86-1.el9") or its upstream part alone ("1.17.8"), which every
revision of it satisfies. "" is any version.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.undo import Rejected
from .._formats.answers import LeftThing
from .._formats.credentials import without_credentials
from .._formats.failure import Failure
from .._formats.finding import few
from .._formats.versions import newer
from .._host.command import Outcome
from .openpgp import Key

#: Seconds for a question to what the host has, for one that fetches a repository's lists, and for a step such as an installation; the
#: module's option `timeout` is the last one.
QUESTION_SECONDS, FETCH_SECONDS, STEP_SECONDS = 120.0, 600.0, 1800
#: The most that a run may name, and of what it may be made. The first letter keeps a name from being an option.
LIMIT = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,127}(?::[a-z0-9]{1,16})?")
_VERSION = re.compile(r"(?:[0-9]{1,6}:)?[A-Za-z0-9][A-Za-z0-9.+~^_-]{0,127}")
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_URL = re.compile(r"(?:https?|file)://[!-~]{1,1000}")
_SUITE = re.compile(r"[A-Za-z0-9./$()_-]{1,200}")
_WORD = re.compile(r"[A-Za-z0-9._/-]{1,64}")
_KERNEL = re.compile(r"_k[0-9][A-Za-z0-9._]*\Z")


class PackagesError(Failure):
    """The package manager failed on the way; says which packages are in which version now, and what to do."""


@dataclass(frozen=True)
class Package:
    """One package that is wanted. version: see above."""

    name: str
    version: str = ""


@dataclass(frozen=True)
class Repository:
    """Where packages come from.

    name: of its files, without "gpushare-". suite and components: of a repository for apt, "/" and none for one without folders.
    keys: those whose fingerprints were compared. package_signatures: whether the packages are signed as well (rpm). The metadata must
    always be. replaces: addresses of repositories that this one takes the place of. version: the upstream version that apt prefers for all
    packages, also for those that others need: apt takes the newest of these otherwise, and does not find an older set; "" for none.
    modules: those of dnf that it disables, so that no stream of them is enabled.
    """

    name: str
    url: str
    keys: Tuple[Key, ...]
    suite: str = "/"
    components: Tuple[str, ...] = ()
    package_signatures: bool = True
    replaces: Tuple[str, ...] = ()
    version: str = ""
    modules: Tuple[str, ...] = ()


@dataclass(frozen=True)
class PackageSet:
    """The packages that one owner wants of a host.

    owner: of the journal's entries. repository: None for those that the host has. folder: of package files on the host, "" for none.
    replaces: packages that may be removed on the way. hold: whether the packages stay at their version until the owner changes it.
    minimum: the oldest upstream version that is accepted of each.
    """

    owner: str
    packages: Tuple[Package, ...]
    repository: Optional[Repository] = None
    folder: str = ""
    replaces: Tuple[str, ...] = ()
    hold: bool = True
    minimum: str = ""


@dataclass(frozen=True)
class PackageChange:
    """The change of one package. None: it is not installed."""

    name: str
    before: Optional[str]
    after: Optional[str]


@dataclass(frozen=True)
class Installed:
    """A package on the host. version None: it is not installed; `held`: whether upgrades pass it over."""

    version: Optional[str]
    held: bool = False


class PackageManager(ABC):
    """A host's package manager. Commands that change the host raise PackagesError; questions raise Rejected."""

    #: As facts and messages call it.
    name = ""

    @abstractmethod
    def installed(self, names: Sequence[str]) -> Dict[str, Installed]:
        """Each of these packages as it is on the host."""

    @abstractmethod
    def interrupted(self) -> str:
        """A message about what an earlier run of the package manager has left half done; "" if nothing."""

    @abstractmethod
    def repair(self) -> None:
        """Finish that."""

    @abstractmethod
    def files(self, repository: Repository) -> "Dict[str, Optional[bytes]]":
        """The files that make the host know the repository, by path, in the order in which to write; None: the file goes."""

    @abstractmethod
    def plan(self, wanted: PackageSet, files: "Mapping[str, Optional[bytes]]") -> "PackagePlan":
        """The plan if the host had these files; the host itself stays as it is. It raises Rejected if that cannot be."""

    @abstractmethod
    def refresh(self, repository: Repository) -> None:
        """Read what the repository has, now that the host knows it."""

    def imports(self, repository: Repository) -> List[str]:
        """The fingerprints of the keys that `refresh` makes the host trust beside the files; none where a key is a file."""
        return []

    def trusted(self, fingerprints: Sequence[str]) -> Dict[str, str]:
        """The keys among these that the host trusts beside its files, each with the version by which it goes there."""
        return {}

    def distrust(self, keys: Mapping[str, str]) -> List[LeftThing]:
        """Take these keys, as `trusted` gives them, away from there; what stays, and why."""
        return []

    @abstractmethod
    def install(self, wanted: PackageSet, plan: "PackagePlan") -> None:
        """Do what was planned."""

    @abstractmethod
    def hold(self, names: Sequence[str], held: bool) -> None:
        """Hold these packages at their version, or release them."""

    @abstractmethod
    def plan_removal(self, names: Sequence[str]) -> List[str]:
        """All packages that would go with these."""

    @abstractmethod
    def remove(self, names: Sequence[str]) -> None:
        """Remove these packages."""

    @abstractmethod
    def available(self, name: str) -> List[str]:
        """The versions that the host's repositories have, newest first, as the host knows them."""

    @abstractmethod
    def downgrade(self, versions: Mapping[str, str]) -> None:
        """Bring these packages back to these versions."""


@dataclass(frozen=True)
class PackagePlan:
    """versions: the whole version of each wanted package; steps: what happens to packages, also to others. files: packages as files."""

    versions: Dict[str, str]
    steps: Tuple[PackageChange, ...]
    files: Tuple[str, ...] = ()


def check(wanted: PackageSet) -> None:
    """Raise Rejected if the wish cannot be meant: names, versions and addresses go to programs and into files."""
    if not wanted.packages:
        raise Rejected("no package is named, expected at least one; name them")
    if len(wanted.packages) > LIMIT:
        raise Rejected(f"{len(wanted.packages)} packages are named, expected at most {LIMIT}; name fewer at a time")
    if len({package.name for package in wanted.packages}) < len(wanted.packages):
        raise Rejected("a package is named twice, expected each once; remove one")
    for name in (*(package.name for package in wanted.packages), *wanted.replaces):
        _match(_NAME, name, "the package name", "letters, digits and +.-_, with a letter or digit first")
    for package in wanted.packages:
        if package.version:
            _match(_VERSION, package.version, f"the version of {package.name}", "a version such as 1.17.8 or 1.17.8-1")
    if wanted.folder and not wanted.folder.startswith("/"):
        raise Rejected(f"the folder of packages is {wanted.folder[:80]!r}, expected an absolute path; correct it")
    repository = wanted.repository
    if repository is None:
        return
    _match(_REPOSITORY, repository.name, "the name of the repository", "small letters, digits and -")
    for url in (repository.url, *repository.replaces):
        _match(_URL, url, "the address of the repository", "a URL that begins with https://, http:// or file://, without white space")
    if repository.version:
        _match(_VERSION, repository.version, "the version of the repository", "a version such as 580.178.04")
    _match(_SUITE, repository.suite, "the suite of the repository", "a suite such as bookworm, or a path that ends in /")
    for module in repository.modules:
        _match(_REPOSITORY, module, "a module of the repository", "small letters, digits and -")
    for component in repository.components:
        _match(_WORD, component, "a component of the repository", "a word such as main")
    if repository.suite.endswith("/") == bool(repository.components):
        raise Rejected(
            f"the suite of the repository is {repository.suite!r} with {len(repository.components)} components, expected a path that ends "
            "in / and no component, or a suite and at least one; correct it"
        )
    if not repository.keys:
        raise Rejected("the repository has no key, expected one: what it says could not be checked; name its key and the fingerprint")


def satisfies(version: Optional[str], wanted: str) -> bool:
    """Whether an installed or available version is the wanted one."""
    if version is None:
        return False
    if not wanted or version == wanted:
        return True
    plain = version.partition(":")[2] or version
    if "-" in wanted:
        return plain == wanted
    upstream = plain.rpartition("-")[0]
    # SUSE's kernel module packages name the kernel behind the driver: 580.82.07_k6.4.0_150600.21-1.
    return wanted in (plain, upstream, _KERNEL.sub("", upstream))


def choose(name: str, wanted: str, available: Sequence[str], where: str) -> str:
    """The newest available version that is wanted. It raises Rejected if there is none. available: newest first."""
    if not available:
        raise Rejected(f"no package {name} in {where}; correct the repository, which may be one of another distribution, or the name")
    found = next((version for version in available if satisfies(version, wanted)), None)
    if found is None:
        raise Rejected(f"no version {wanted} of {name} in {where}, which has {shown(available)}; name one of these")
    return found


def choose_all(wanted: PackageSet, files: "Mapping[str, Mapping[str, str]]", available: Callable[[str], Sequence[str]]) -> Dict[str, str]:
    """The version of each wanted package. It raises Rejected if there is none. files: of the folder, which go first; available: newest
    first."""
    versions = {}
    for package in wanted.packages:
        where = f"the folder {wanted.folder}"
        found: Sequence[str] = sorted(files.get(package.name, ()), key=by_number, reverse=True)
        if package.name not in files:
            found = available(package.name)
            where = "the repositories of this host"
            if wanted.repository is not None:
                where = f"{wanted.repository.url} and the other repositories of this host"
        versions[package.name] = choose(package.name, package.version, found, where)
    return versions


def by_number(version: str) -> "tuple[tuple[int, str], ...]":
    """To sort versions of package files, whose numbers count as numbers."""
    return tuple((int(number or 0), word) for number, word in re.findall(r"([0-9]*)([^0-9]*)", version))


def check_minimum(versions: "Mapping[str, Optional[str]]", minimum: str) -> None:
    """Raise Rejected if one of these versions is older than accepted."""
    for name, version in versions.items():
        upstream = (version or "").partition(":")[2] or version
        if newer(minimum, upstream):
            raise Rejected(f"{name} would be {version}, expected {minimum} or newer; nothing was changed: name a newer version")


def check_steps(steps: Sequence[PackageChange], replaces: Sequence[str]) -> None:
    """Raise Rejected if a package would go that may not."""
    lost = [step.name for step in steps if step.after is None and step.name not in replaces]
    if lost:
        raise Rejected(
            f"the package manager would remove {shown(lost)}, which was not requested; nothing was changed: remove these packages yourself "
            "if they may go, or find what they conflict with"
        )


def shown(words: Sequence[str], most: int = 8) -> str:
    return few((word[:80] for word in words), most)


def last_words(outcome: Outcome, most: int = 400) -> str:
    """The last lines of what a program printed, on one, without credentials in addresses."""
    return without_credentials(" ".join(f"{outcome.out} {outcome.err}".split()))[-most:]


def _match(pattern: "re.Pattern[str]", value: str, what: str, expected: str) -> None:
    if not pattern.fullmatch(value):
        raise Rejected(f"{what} is {value[:80]!r}, expected {expected}; correct it")
