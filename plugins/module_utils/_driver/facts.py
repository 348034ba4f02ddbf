# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of a host that decide how its driver is installed.

Read-only. Works on any host, with or without GPUs or a driver.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._facts.driver import Driver, driver, pci
from .._facts.next_boot import has_headers, next_kernel
from .._facts.nvidia_smi import SmiProblem, SmiReport
from .._facts.pods import Pod, Pods
from .._facts.system import kernel, system
from .._formats.answers import ModuleAnswer
from .._host.host import Host

# In modprobe's order: a file takes the place of those of its name in later folders (modprobe.d(5), of kmod 30).
_MODPROBE = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_BLACKLIST = re.compile(r"^[ \t]*(?:blacklist[ \t]+nouveau|install[ \t]+nouveau[ \t]+/\S*(?:true|false))(?:[ \t].*)?$", re.MULTILINE)
_VENDOR_FILES = (("/etc/dgx-release", "DGX OS"), ("/etc/nv_tegra_release", "Jetson Linux"))
_DGX = re.compile(r'^DGX_OTA_VERSION="?([0-9.]{1,16})|^DGX_SWBUILD_VERSION="?([0-9.]{1,16})', re.MULTILINE)
# NVIDIA's installer leaves its uninstaller; packages have none.
_INSTALLER = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer")
_MOST_PACKAGES, _MOST_PROCESSES = 400, 200
# Every process that computes on a GPU has it open; one that only asks about GPUs has not.
_MEMORY_MANAGER = ("nvidia-uvm", "nvidia-uvm (deleted)")


@dataclass(frozen=True)
class HostFacts:
    """The facts.

    release: of the running kernel. next_release: of the newest installed one, which boots next. headers: those of the two whose headers are
    installed. devices: PCI device ids of the GPUs. switches: number of NVSwitches. strict: whether the kernel accepts signed modules only.
    vendor: name of a vendor's image, "" for none. container: whether a driver container provides the driver. run_file: whether NVIDIA's
    installer installed the driver. packages: installed packages with nvidia in their name, by version. version: of the driver on disk or
    loaded, None for none. module: kind of its kernel module on disk, "open" or "proprietary", or else of the loaded one. dkms: whether the
    host has the program dkms. nvlink5: see Driver. kernel_packages: those of Debian and its relatives that bring the running or next kernel
    and its successors, such as "linux-image-generic-hwe-22.04".
    """

    id: str
    like: Tuple[str, ...]
    os_version: str
    name: str
    machine: str
    release: str
    next_release: str
    headers: Tuple[str, ...]
    devices: Tuple[str, ...]
    switches: int
    strict: bool
    secure_boot: str
    nouveau_loaded: bool
    nouveau_blacklisted: bool
    vendor: str
    container: bool
    run_file: bool
    packages: Mapping[str, str]
    loaded: Optional[str]
    version: Optional[str]
    module: Optional[str]
    dkms: bool
    nvlink5: bool = False
    kernel_packages: Tuple[str, ...] = ()

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HostFacts":
        """The opposite of as_dict. KeyError or TypeError if it is not such a result."""
        known: Dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        return cls(**known)


@dataclass(frozen=True)
class DriverFacts(ModuleAnswer):
    """The answer of gpushare_driver about facts. processes: on the GPUs. problem: of nvidia-smi."""

    facts: HostFacts
    processes: List[str]
    machine_id: str
    boot_id: str
    driver: Driver
    problem: Optional[SmiProblem]


def gather(host: Host) -> HostFacts:
    own, core, parts = system(host), kernel(host), driver(host)
    newest = next_kernel(host)
    return HostFacts(
        id=own.id,
        like=own.like,
        os_version=own.version,
        name=own.name,
        machine=own.architecture,
        release=core.release,
        next_release=newest,
        headers=tuple(release for release in dict.fromkeys((core.release, newest)) if has_headers(host, release)),
        devices=tuple(gpu.device for gpu in pci(host).gpus),
        switches=parts.switches,
        strict=core.secure_boot == "enabled" or core.signed_modules_only,
        secure_boot=core.secure_boot,
        nouveau_loaded=parts.nouveau_loaded,
        nouveau_blacklisted=_blacklisted(host),
        vendor=_vendor(host),
        container=parts.container,
        run_file=bool(host.existing(_INSTALLER)),
        packages=_packages(host),
        loaded=parts.loaded,
        version=parts.installed or parts.loaded or parts.library,
        module=parts.installed_kind or parts.kind,
        dkms=host.program("dkms") is not None,
        nvlink5=parts.nvlink5,
        kernel_packages=_kernel_packages(host, (core.release, newest)),
    )


def _blacklisted(host: Host) -> bool:
    paths: Dict[str, str] = {}
    for folder in _MODPROBE:
        for name in host.names(folder):
            paths.setdefault(name, f"{folder}/{name}")
    # A line that ends with a backslash continues in the next one.
    texts = ((host.text(path) or "").replace("\\\n", " ") for name, path in paths.items() if name.endswith(".conf"))
    return any(_BLACKLIST.search(text) for text in texts)


def _vendor(host: Host) -> str:
    for path, name in _VENDOR_FILES:
        text = host.text(path)
        if text is not None:
            found = _DGX.search(text)
            return f"{name} {found.group(1) or found.group(2)}" if found else name
    return ""


def _packages(host: Host) -> Dict[str, str]:
    """Of dpkg where the host has a database of it, of rpm otherwise, whose database is elsewhere on each distribution."""
    for program, arguments, database in (
        ("dpkg-query", ["--show", "--showformat", "${db:Status-Status}\t${Package}\t${Version}\n", "*nvidia*"], "/var/lib/dpkg/status"),
        ("rpm", ["--query", "--all", "--queryformat", "installed\t%{NAME}\t%{VERSION}-%{RELEASE}\n", "*nvidia*"], "/"),
    ):
        if not host.exists(database):
            continue
        outcome = host.ask(host.program(program), arguments)
        if outcome is not None and outcome.status in (0, 1):
            rows: List[List[str]] = [line.split("\t") for line in outcome.out.splitlines()[:_MOST_PACKAGES]]
            return {row[1]: row[2] for row in rows if len(row) == 3 and row[0] == "installed"}
    return {}


def _kernel_packages(host: Host, releases: Tuple[str, ...]) -> Tuple[str, ...]:
    """The metapackages that depend on the kernels of these releases."""
    if not host.exists("/var/lib/dpkg/status"):
        return ()
    arguments = ["--show", "--showformat", "${db:Status-Status}\t${Package}\t${Depends}\n", "linux-image-*"]
    outcome = host.ask(host.program("dpkg-query"), arguments)
    rows = [line.split("\t") for line in (outcome.out if outcome is not None else "").splitlines()[:_MOST_PACKAGES]]
    images = {f"linux-image-{release}" for release in releases}
    return tuple(
        sorted(
            {
                row[1]
                for row in rows
                if len(row) == 3 and row[0] == "installed" and images & {part.split()[0] for part in row[2].split(",") if part.strip()}
            }
        )
    )


def processes_on(report: SmiReport, host: Host) -> List[str]:
    """The processes on the GPUs, for a message. Where nvidia-smi has a problem, it lists none or not all: after a change of packages it
    answers no more, while the processes continue. There the processes count that have the driver's memory manager open."""
    found: Dict[int, str] = {}
    for gpu in report.gpus:
        for process in gpu.processes:
            pod = None if process.pod_uid is None else Pod(process.pod_uid, process.pod_namespace, process.pod_name)
            found[process.pid] = _in_words(process.pid, process.name, pod)
    if report.problem is not None:
        pods = Pods(host)
        for pid in computing(host):
            name = (host.text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip() or host.line(f"/proc/{pid}/comm") or "?"
            found.setdefault(pid, _in_words(pid, name, pods.of(pid)))
    return [found[pid] for pid in sorted(found)][:_MOST_PROCESSES]


def _in_words(pid: int, name: str, pod: Optional[Pod]) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in name[:60])
    return f"{pid} ({shown})" + (f" of {pod}" if pod else "")


def computing(host: Host) -> List[int]:
    """The processes that have the driver's memory manager open."""
    return [pid for pid in (int(name) for name in host.names("/proc") if name.isdigit()) if _has_it_open(host, pid)]


def _has_it_open(host: Host, pid: int) -> bool:
    folder = host.outside(f"/proc/{pid}/fd")
    for name in host.names(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(posixpath.join(folder, name))
        except OSError:
            continue
        if posixpath.basename(target) in _MEMORY_MANAGER:
            return True
    return False
