# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The administrator's packages for a bundle: those in a folder, or downloaded by name with the hosts' own kind of package manager.

No page of NVIDIA permits others to pass its driver on: only what is named here comes into a bundle.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .contents import MACHINES, BundleError, is_system

_SECONDS = 1800
_MOST = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_~:=-]{0,199}")
#: Family of a distribution to its package manager, and the suffix of its packages.
_MANAGERS: Mapping[str, tuple[str, str]] = {
    "debian": ("apt-get", ".deb"),
    "ubuntu": ("apt-get", ".deb"),
    "rhel": ("dnf", ".rpm"),
    "suse": ("zypper", ".rpm"),
}


@dataclass(frozen=True)
class PackagesOf:
    """Packages for one kind of host: system such as "debian-12", machine as `uname -m` says it; names or a folder, or both."""

    system: str
    machine: str
    folder: str = ""
    names: tuple[str, ...] = ()


def collect(wanted: PackagesOf, scratch: Path) -> list[Path]:
    """The files of the packages, sorted by name. BundleError. scratch: an empty folder for what is downloaded."""
    family = wanted.system.partition("-")[0]
    if family not in _MANAGERS or not is_system(wanted.system) or wanted.machine not in MACHINES:
        seen = f"gpushare_bundle_packages for {wanted.system[:80]!r} on {wanted.machine[:80]!r}"
        kinds = f"{', '.join(_MANAGERS)} with a version, such as debian-12 or rhel-9, on {' or '.join(MACHINES)}"
        raise BundleError(seen, kinds, "correct gpushare_bundle_packages")
    program, suffix = _MANAGERS[family]
    found: list[Path] = []
    if wanted.folder:
        folder = Path(wanted.folder).expanduser()
        found += [path for path in folder.glob(f"*{suffix}") if path.is_file()] if folder.is_dir() else []
        if not found:
            raise BundleError(f"no packages in {folder} for {wanted.system}", f"files with the suffix {suffix}", "put them there")
    if wanted.names:
        found += _downloaded(program, suffix, wanted, scratch)
    names = [path.name for path in found]
    if len(found) > _MOST or len(set(names)) != len(names) or not found:
        raise BundleError(
            f"{len(found)} packages for {wanted.system}", f"1 to {_MOST} with different names", "correct gpushare_bundle_packages"
        )
    return sorted(found, key=lambda path: path.name)


def command(program: str, names: Sequence[str], machine: str, folder: Path) -> list[str]:
    """The command that downloads these packages. apt-get puts them into the folder that it is started in.

    A version stands behind `=`, for dnf behind `-`. Nothing is installed, and no package is added that is not named.
    """
    if program == "apt-get":
        words = [name.partition("=") for name in names]
        architecture = MACHINES[machine]
        return [program, "-q", "download", *(f"{name}:{architecture}{equals}{version}" for name, equals, version in words)]
    if program == "dnf":
        # Of several versions only the newest.
        return [program, "-q", "download", "--arch", machine, "--arch", "noarch", "--destdir", str(folder), *names]
    return [program, "--non-interactive", "--pkg-cache-dir", str(folder), "download", *names]


def _downloaded(program: str, suffix: str, wanted: PackagesOf, scratch: Path) -> list[Path]:
    wrong = next((name for name in wanted.names if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise BundleError(f"the package {wrong[:80]!r}", "a name, with a version after = if need be", "correct gpushare_bundle_packages")
    path = shutil.which(program)
    if path is None:
        cure = f"make the bundle on a machine that has it, or name a folder with the packages for {wanted.system}"
        raise BundleError(f"no {program} on this machine", f"{program}, which downloads packages for {wanted.system}", cure)
    try:
        done = subprocess.run(
            [path, *command(program, wanted.names, wanted.machine, scratch)[1:]],
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"{program} that did not end within {_SECONDS} s", "the packages", "see its repositories") from error
    found = [package for package in scratch.rglob(f"*{suffix}") if package.is_file()]
    if done.returncode or len(found) < len(wanted.names):
        words = " ".join((done.stderr + done.stdout).split())[-300:]
        cure = f"see whether {program} of this machine knows a repository that has them, or name a folder"
        raise BundleError(f"{len(found)} of {len(wanted.names)} packages for {wanted.system} ({words})", "all of them", cure)
    return found
