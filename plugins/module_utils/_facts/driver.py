# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's GPUs and driver as the kernel and the disk show them, without asking the driver.

Read-only. NVML decides about GPUs (nvidia-smi): PCI is a hint, since a host may hide it.
"""

from __future__ import annotations

import mmap
import os
import posixpath
import re
from dataclasses import dataclass, field
from typing import List, Mapping, Optional, Tuple

from .._host.host import Host
from .next_boot import has_headers, kernels, next_kernel, upgraded_alone

_PCI = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_LOADED = re.compile(r"^NVRM version: .*?\b([0-9]{3,4}(?:\.[0-9]+)+)\b", re.MULTILINE)
_LIBRARY = re.compile(rb"(/[^\0]*/libnvidia-ml\.so\.1)\0")
_LIBRARY_VERSION = re.compile(r"libnvidia-ml\.so\.([0-9]+(?:\.[0-9]+)+)")
_MODULE = re.compile(r"^([^:\s]*/nvidia(?:-current|-tesla[^/:]*)?\.ko(?:\.(?:xz|zst|gz))?):", re.MULTILINE)
_MODULE_VERSION = re.compile(rb"\0version=([0-9]{3,4}(?:\.[0-9]+)+)\0")
_MODULE_LICENSE = re.compile(rb"\0license=([^\0]{1,40})\0")
_MODINFO = re.compile(r"^([0-9]{3,4}(?:\.[0-9]+)+)", re.MULTILINE)
_MODINFO_LINE = re.compile(r"^(.{1,80})$", re.MULTILINE)
# The kernel appends this after the signature of a module.
_SIGNED = b"~Module signature appended~\n"
_OPEN_LICENSE = "Dual MIT/GPL"
_INFINIBAND, _SWITCH_MANAGER = "/sys/class/infiniband", b"SW_MNG"
_VPD, _MOST_CONTROLLERS = 32768, 256
_FABRIC_MANAGER = "nv-fabricmanager"
_NUMA = "/sys/devices/system/node"
_AKMODS = "/usr/src/akmods"
_OPTION, _MOST_OPTIONS = re.compile(r'^([A-Za-z][A-Za-z0-9_]{0,63}): "?([^"\n]{0,200})"?$', re.MULTILINE), 200
#: Where the GPU Operator's driver container puts the driver's files, for other containers.
CONTAINER = "/run/nvidia/driver"
# Of the packages nvidia-driver-pinning-<branch or version> in NVIDIA's repositories for apt, of which a host has one at most.
_PIN = re.compile(r"^Pin:[ \t]*version[ \t]+([0-9]{3,4}(?:\.[0-9]{1,4}){0,2})", re.MULTILINE)
PIN_FILE = "/etc/apt/preferences.d/nvidia-driver-pin"


@dataclass(frozen=True)
class PciGpu:
    """A display or 3D controller by NVIDIA. driver: the kernel driver that has it, such as "nvidia", "nouveau", "vfio-pci"."""

    address: str
    device: str
    driver: Optional[str]
    numa_node: Optional[int]


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver by its parts, each a version or None. They must all be of the same.

    loaded: the kernel module in use. installed: the module on disk for the running kernel. library: libnvidia-ml as the dynamic
    linker finds it. kind: "open" or "proprietary", of the loaded module or else of the one on disk. installed_kind: of the latter.
    signed: whether the module on disk has a signature, None if there is none or it cannot be told. other_kernels: kernels other than
    the running one that have a module on disk. container: whether a driver container of NVIDIA's GPU Operator provides the driver.
    switches: the number of NVSwitches on the PCI bus. nvlink5: whether network controllers manage NVSwitches that are not on that bus, as
    from HGX B200 on. fabric_manager: whether NVIDIA's fabric manager runs. options: of the loaded module, without NVreg_. memory_nodes: the
    number of NUMA nodes with memory and without a processor, as memory of GPUs is on Grace. next_without: the release of the kernel that
    boots next, if it has no module of the driver and neither DKMS nor akmods can build one. upgraded_alone: packages that
    unattended-upgrades may upgrade. pinned: the branch or version that a pin of NVIDIA's has apt take, "" for none.
    """

    loaded: Optional[str]
    installed: Optional[str]
    installed_path: Optional[str]
    library: Optional[str]
    library_path: Optional[str]
    nvidia_smi: Optional[str]
    nouveau_loaded: bool
    kind: Optional[str] = None
    installed_kind: Optional[str] = None
    signed: Optional[bool] = None
    other_kernels: Tuple[str, ...] = ()
    container: bool = False
    switches: int = 0
    nvlink5: bool = False
    fabric_manager: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    memory_nodes: int = 0
    next_without: str = ""
    upgraded_alone: Tuple[str, ...] = ()
    pinned: str = ""

    @property
    def lacks_fabric_manager(self) -> bool:
        return bool(self.switches or self.nvlink5) and not self.fabric_manager


@dataclass(frozen=True)
class Pci:
    """The devices of NVIDIA on the PCI bus."""

    gpus: Tuple[PciGpu, ...]


def pci(host: Host) -> Pci:
    """NVIDIA's devices on the bus; empty where the host hides it."""
    gpus: List[PciGpu] = []
    for address in host.names(_PCI):
        folder = f"{_PCI}/{address}"
        if host.line(f"{folder}/vendor") != _NVIDIA:
            continue
        kind = host.line(f"{folder}/class") or ""
        if kind.startswith(("0x0300", "0x0302", "0x0380")):
            driver = host.link(f"{folder}/driver")
            numa = host.line(f"{folder}/numa_node") or ""
            gpus.append(
                PciGpu(
                    address=address,
                    device=host.line(f"{folder}/device") or "",
                    driver=posixpath.basename(driver) if driver else None,
                    numa_node=int(numa) if numa.isascii() and numa.isdigit() else None,
                )
            )
    return Pci(tuple(gpus))


def driver(host: Host) -> Driver:
    loaded = host.text("/proc/driver/nvidia/version") or ""
    match = _LOADED.search(loaded)
    module = _module_path(host)
    library = _library(host)
    license_, signed = _license_and_signature(host, module) if module else (None, None)
    return Driver(
        loaded=match.group(1) if match else host.line("/sys/module/nvidia/version"),
        installed=_module_version(host, module) if module else None,
        installed_path=module,
        library=_version_in_name(host.real(library)) if library else None,
        library_path=library,
        nvidia_smi=host.program("nvidia-smi"),
        nouveau_loaded=host.is_folder("/sys/module/nouveau"),
        kind=_kind(loaded, license_),
        installed_kind=_kind("", license_),
        signed=signed,
        other_kernels=tuple(release for release in kernels(host) if release != host.release and _module_path(host, release)),
        container=bool(host.names(CONTAINER)),
        switches=_switches(host),
        nvlink5=_has_nvlink5(host),
        fabric_manager=host.process(_FABRIC_MANAGER) is not None,
        options=dict(_OPTION.findall(host.text("/proc/driver/nvidia/params") or "")[:_MOST_OPTIONS]),
        memory_nodes=_memory_nodes(host),
        next_without=_next_without(host) if module else "",
        upgraded_alone=upgraded_alone(host),
        pinned=next(iter(_PIN.findall(host.text(PIN_FILE) or "")), ""),
    )


def _next_without(host: Host) -> str:
    release = next_kernel(host)
    if release == host.release or _module_path(host, release):
        return ""
    # Both build it at that boot at the latest: DKMS, and akmods of Fedora and RPM Fusion from the source of akmod-nvidia.
    of_akmods = host.program("akmods") is not None and any("nvidia" in name for name in host.names(_AKMODS))
    return "" if (of_akmods or host.program("dkms")) and has_headers(host, release) else release


def _memory_nodes(host: Host) -> int:
    nodes = [name for name in host.names(_NUMA) if re.fullmatch("node[0-9]{1,5}", name)]
    return sum(
        host.line(f"{_NUMA}/{node}/cpulist") in (None, "")
        and re.search(r"MemTotal: +[1-9]", host.text(f"{_NUMA}/{node}/meminfo") or "") is not None
        for node in nodes
    )


def _switches(host: Host) -> int:
    """NVSwitches are bridges of NVIDIA's; so are those of Hopper, in a class of their own."""
    found = 0
    for address in host.names(_PCI):
        if host.line(f"{_PCI}/{address}/vendor") == _NVIDIA and (host.line(f"{_PCI}/{address}/class") or "").startswith("0x0680"):
            found += 1
    return found


def _has_nvlink5(host: Host) -> bool:
    """NVIDIA's own sign, which its driver container and the start script of its fabric manager search for (NVIDIA/gpu-driver-container,
    nvidia-driver, read 2026-11-25): a controller that manages switches says so in its vital product data."""
    return any(
        _SWITCH_MANAGER in (host.data(f"{_INFINIBAND}/{name}/device/vpd", _VPD) or b"")
        for name in host.names(_INFINIBAND)[:_MOST_CONTROLLERS]
    )


def _kind(loaded: str, license_: Optional[str]) -> Optional[str]:
    if _LOADED.search(loaded):
        return "open" if "Open Kernel Module" in loaded else "proprietary"
    return None if license_ is None else "open" if license_ == _OPEN_LICENSE else "proprietary"


def _license_and_signature(host: Host, path: str) -> Tuple[Optional[str], Optional[bool]]:
    if path.endswith(".ko"):
        content = host.outside(path)
        return _search(content, _MODULE_LICENSE), _ends_with(content, _SIGNED)
    # A compressed file: modinfo unpacks it.
    modinfo, outside = host.program("modinfo"), host.outside(path)
    license_ = host.answer(modinfo, ["-F", "license", outside], _MODINFO_LINE)
    signer = host.answer(modinfo, ["-F", "signer", outside], _MODINFO_LINE)
    return license_, None if license_ is None else signer is not None


def _ends_with(path: str, words: bytes) -> Optional[bool]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - len(words)))
            return file.read(len(words)) == words
    except (OSError, ValueError):
        return None


def _module_path(host: Host, release: Optional[str] = None) -> Optional[str]:
    release = host.release if release is None else release
    for folder in (f"/lib/modules/{release}", f"/usr/lib/modules/{release}"):
        match = _MODULE.search(host.text(f"{folder}/modules.dep") or "")
        if match:
            return posixpath.join(folder, match.group(1))
    return None


def _module_version(host: Host, path: str) -> Optional[str]:
    if path.endswith(".ko"):
        return _search(host.outside(path), _MODULE_VERSION)
    # A compressed file: the version is in the name of DKMS's folder, or modinfo unpacks it.
    folders = [f"/var/lib/dkms/{name}" for name in ("nvidia", "nvidia-current")]
    built = [version for folder in folders for version in host.names(folder) if host.is_folder(f"{folder}/{version}/{host.release}")]
    if len(built) == 1:
        return built[0]
    return host.answer(host.program("modinfo"), ["-F", "version", host.outside(path)], _MODINFO)


def _search(path: str, pattern: "re.Pattern[bytes]") -> Optional[str]:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            match = pattern.search(content)
            return os.fsdecode(match.group(1)) if match else None
    except (OSError, ValueError):
        return None


def _library(host: Host) -> Optional[str]:
    # The strings of the linker's cache are paths, each ended by a zero byte, whatever its format. Libraries that it does not know it
    # searches in its own folders.
    paths = [os.fsdecode(path) for path in _LIBRARY.findall(host.data("/etc/ld.so.cache") or b"")]
    paths += [f"{folder}/libnvidia-ml.so.1" for folder in (f"/usr/lib/{host.machine}-linux-gnu", "/usr/lib64", "/usr/lib")]
    return next((path for path in paths if host.exists(path)), None)


def _version_in_name(path: str) -> Optional[str]:
    match = _LIBRARY_VERSION.fullmatch(posixpath.basename(path))
    return match.group(1) if match else None
