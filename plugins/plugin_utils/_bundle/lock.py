# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which locked packages a Python on an architecture needs, and which wheel of each it can use.

Pure. pip evaluates the markers of a lock for the Python that runs it, even where it is told to download for another one. Here they are
evaluated for that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from ...module_utils._formats.failure import Failure
from ...module_utils._formats.finding import few

#: The minor version of glibc 2 in EL 8, the oldest of a distribution that preflight accepts, and of the oldest platform of wheels.
OLDEST_GLIBC, _FIRST_GLIBC = 28, 17
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class LockError(Failure, ValueError):
    """The lock is not a list of exact versions with hashes; says which line."""


@dataclass(frozen=True, order=True)
class Target:
    """python: such as "3.11"; machine: as `uname -m` says it. glibc: the minor version of its C library."""

    python: str
    machine: str
    glibc: int = OLDEST_GLIBC

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"

    @property
    def platforms(self) -> list[str]:
        """The platforms whose wheels run there, the best first."""
        newer = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc, _FIRST_GLIBC - 1, -1)]
        return [*newer, f"manylinux2014_{self.machine}"]


@dataclass(frozen=True)
class Pin:
    """One locked package: its name in its normal form, its version, and the SHA-256 of each file that may be installed."""

    name: str
    version: str
    hashes: frozenset[str]

    @property
    def line(self) -> str:
        """As a file of requirements has it."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{digest}" for digest in sorted(self.hashes))])


def pins(lock: str, target: Target | None = None) -> Iterator[Pin]:
    """The packages of a lock that the target needs; all of them without a target. LockError."""
    lines = (line.strip() for line in lock.replace("\\\n", " ").splitlines())
    for line in lines:
        if not line or line.startswith("#"):
            continue
        words, *hashes = re.split(r"\s+(?=--hash=)", line)
        try:
            requirement = Requirement(words)
            (exact,) = requirement.specifier
        except (InvalidRequirement, ValueError) as error:
            raise LockError(f"{words[:80]!r} in the lock, expected NAME==VERSION ({str(error)[:80]})") from error
        if exact.operator != "==" or not hashes or not all(_HASH.fullmatch(option) for option in hashes):
            raise LockError(f"{words[:80]!r} in the lock has no exact version or no SHA-256: `make lock` writes both")
        if target is None or requirement.marker is None or requirement.marker.evaluate(_environment(target)):
            yield Pin(canonicalize_name(requirement.name), exact.version, frozenset(option.rpartition(":")[2] for option in hashes))


def tags(target: Target) -> list[Tag]:
    """The tags of wheels that the target can install, the best first."""
    version = tuple(int(part) for part in target.python.split("."))
    abi = f"cp{target.python.replace('.', '')}"
    own = cpython_tags(version, [abi], target.platforms, warn=False)
    return [*own, *compatible_tags(version, abi, target.platforms)]


def wheel_of(pin: Pin, wheels: Mapping[str, str], can: list[Tag]) -> str | None:
    """The file name of the best wheel of the package among these (file name to SHA-256), None where there is none.

    can: of `tags`.
    """
    best: tuple[int, str] | None = None
    for filename, sha256 in wheels.items():
        if sha256 not in pin.hashes:
            continue
        try:
            name, version, _build, its = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            continue
        rank = min((place for place, tag in enumerate(can) if tag in its), default=None)
        if rank is not None and name == pin.name and version == Version(pin.version) and (best is None or rank < best[0]):
            best = (rank, filename)
    return best[1] if best else None


def chosen(lock: str, target: Target, wheels: Mapping[str, str]) -> tuple[list[str], list[Pin]]:
    """(file names of the wheels that the target installs, packages of the lock that have none)."""
    can = tags(target)
    found = [(pin, wheel_of(pin, wheels, can)) for pin in pins(lock, target)]
    return [wheel for _pin, wheel in found if wheel], [pin for pin, wheel in found if not wheel]


def names(listed: Iterable[Pin], most: int = 4) -> str:
    return few((f"{pin.name} {pin.version}" for pin in listed), most)


def _environment(target: Target) -> dict[str, str]:
    return {
        "python_version": target.python,
        "python_full_version": f"{target.python}.0",
        "implementation_name": "cpython",
        "implementation_version": f"{target.python}.0",
        "platform_python_implementation": "CPython",
        "platform_machine": target.machine,
        "platform_system": "Linux",
        "platform_release": "",
        "platform_version": "",
        "sys_platform": "linux",
        "os_name": "posix",
        "extra": "",
    }
