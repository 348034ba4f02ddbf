# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a host below Kubernetes: distribution, kernel, Secure Boot, SELinux, Pythons, disk space.

Read-only.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Tuple

from .._host.host import PROGRAM_FOLDERS, Host
from .._host.systemd import environment

_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_CGROUPS = "/sys/fs/cgroup"
_PYTHON_NAME = re.compile(r"python3(?:\.([0-9]{1,3}))?")
# A Python 3.11 beside one that is too old: family, release, package. Enterprise Linux has it in AppStream since 8.8 and 9.2 (Red Hat,
# "Installing and using dynamic programming languages"), SUSE since 15 SP4 in the module Python 3 (linuxpunx.com, 2024-03-25). Read
# 2026-11-25.
_PYTHON_PACKAGES = (("rhel", "8", "python3.11"), ("rhel", "9", "python3.11"), ("suse", "15", "python311"))
_PYTHON_SAYS = re.compile(r"^Python ([0-9]+\.[0-9]+)", re.MULTILINE)


@dataclass(frozen=True)
class System:
    """The distribution. id and like: os-release's own words ("debian", "rhel fedora"); init: "systemd" or "other".

    memory_mib: of the machine, None if it cannot be asked. cgroup: the version of control groups, 1 or 2, 0 if it cannot be told.
    """

    id: str
    like: Tuple[str, ...]
    version: str
    name: str
    architecture: str
    init: str
    selinux: str
    memory_mib: Optional[int]
    cgroup: int = 0


@dataclass(frozen=True)
class Kernel:
    """The running kernel. headers: the folder that modules for it are built with, None if it is not installed.

    secure_boot: "enabled", "disabled", "none" (no EFI) or "unknown"; signed_modules_only: whether it rejects others.
    """

    release: str
    headers: Optional[str]
    secure_boot: str
    signed_modules_only: bool


@dataclass(frozen=True)
class Python:
    """A Python of the host. version such as "3.11"; venv: whether it can make virtual environments with pip in them."""

    path: str
    version: str
    venv: bool


def system(host: Host) -> System:
    """The distribution and what runs it."""
    total = re.search(r"^MemTotal: +([0-9]{1,15}) kB$", host.text("/proc/meminfo") or "", re.MULTILINE)
    release = environment(host.text("/etc/os-release") or host.text("/usr/lib/os-release") or "")
    return System(
        id=release.get("ID", "unknown").lower(),
        like=tuple(release.get("ID_LIKE", "").lower().split()),
        version=release.get("VERSION_ID", ""),
        name=release.get("PRETTY_NAME", release.get("NAME", "unknown")),
        architecture=host.machine,
        init="systemd" if host.is_folder("/run/systemd/system") else "other",
        selinux={"1": "enforcing", "0": "permissive"}.get(host.line("/sys/fs/selinux/enforce") or "", "disabled"),
        memory_mib=int(total.group(1)) // 1024 if total else None,
        cgroup=_cgroup(host),
    )


def _cgroup(host: Host) -> int:
    """As kubelet tells them apart: by the file system at /sys/fs/cgroup, whose root has this file in version 2 alone."""
    if host.exists(f"{_CGROUPS}/cgroup.controllers"):
        return 2
    return 1 if host.is_folder(f"{_CGROUPS}/memory") else 0


def kernel(host: Host) -> Kernel:
    """The running kernel, and what it takes to load another module into it."""
    return Kernel(
        release=host.release,
        headers=_headers(host, host.release),
        secure_boot=_secure_boot(host),
        signed_modules_only=_signed_modules_only(host),
    )


def pythons(host: Host, oldest: Tuple[int, int] = (3, 10)) -> Tuple[Python, ...]:
    """The Pythons from `oldest` on, newest first; one that is there under several names is listed once."""
    found: Dict[str, Python] = {}
    for folder in PROGRAM_FOLDERS:
        for name in host.names(folder):
            path = posixpath.join(folder, name)
            if not _PYTHON_NAME.fullmatch(name) or host.program(path) is None:
                continue
            real = host.real(path)
            version = _python_version(host, real)
            if version is not None and real not in found and _minor(version) >= oldest:
                found[real] = Python(path, version, _has_venv(host, real, version))
    return tuple(sorted(found.values(), key=lambda python: _minor(python.version), reverse=True))


def preferred(found: Sequence[Python]) -> Optional[Python]:
    """The Python that the runtime is built with: the distribution's own if it is new enough, else the newest."""
    return next((python for python in found if posixpath.basename(python.path) == "python3"), next(iter(found), None))


def python_packages(distribution: System, found: Sequence[Python]) -> Tuple[str, ...]:
    """The distribution's packages that give this host a Python for the runtime; () if it has one, or none is known."""
    words, chosen = {distribution.id, *distribution.like}, preferred(found)
    if chosen is None:
        major = distribution.version.split(".")[0]
        return tuple(package for family, release, package in _PYTHON_PACKAGES if family in words and release == major)
    if chosen.venv or not words & {"debian", "ubuntu"}:
        return ()
    return ("python3-venv",) if posixpath.basename(chosen.path) == "python3" else (f"python{chosen.version}-venv",)


def _minor(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _headers(host: Host, release: str) -> Optional[str]:
    if not release:
        return None
    folders = [f"{parent}/{release}/build" for parent in ("/lib/modules", "/usr/lib/modules")]
    folders += [f"/usr/src/linux-headers-{release}", f"/usr/src/kernels/{release}"]
    return next((host.real(folder) for folder in folders if host.exists(f"{folder}/Makefile")), None)


def _secure_boot(host: Host) -> str:
    if not host.is_folder("/sys/firmware/efi"):
        return "none"
    # Four bytes of attributes, then the value.
    value = host.data(_SECURE_BOOT, 5)
    if value is None or len(value) < 5:
        return "unknown"
    return "enabled" if value[4] == 1 else "disabled"


def _signed_modules_only(host: Host) -> bool:
    if host.line("/sys/module/module/parameters/sig_enforce") == "Y":
        return True
    lockdown = host.line("/sys/kernel/security/lockdown") or ""
    return "[integrity]" in lockdown or "[confidentiality]" in lockdown


def _python_version(host: Host, real: str) -> Optional[str]:
    match = _PYTHON_NAME.fullmatch(posixpath.basename(real))
    if match and match.group(1):
        return f"3.{match.group(1)}"
    # A python3 that is not a link to a name with a version: built by hand, or an old distribution's platform Python.
    return host.answer(real, ["--version"], _PYTHON_SAYS)


def _has_venv(host: Host, real: str, version: str) -> bool:
    # Debian and Ubuntu keep pip's part of venv in a package of its own.
    prefix = posixpath.dirname(posixpath.dirname(real))
    return any(host.exists(f"{prefix}/{lib}/python{version}/ensurepip/__init__.py") for lib in ("lib", "lib64"))
