# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why nvidia-smi lists no GPUs, or not all of them, and what to do: by its messages first, then by what the host shows.

Pure. nvidia-smi prints one sentence for many causes ("couldn't communicate with the NVIDIA driver"); the PCI bus, the modules on disk and
the kernel's log tell them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Callable, Optional, Sequence, Tuple

from .._formats.finding import WARNING, Finding
from .._host.command import Outcome
from .driver import CONTAINER, Driver, Pci
from .system import Kernel

_SHOWN = 160
_ANSWER = "nvidia-smi to list the GPUs"
# The words that nvidia-smi has used for each failure since driver 384, and what helps.
_FAILURES: Tuple[Tuple[str, "re.Pattern[str]", str], ...] = (
    (
        "version_mismatch",
        re.compile("version mismatch", re.I),
        "the driver was upgraded while the old kernel module stayed loaded: reboot the host (or stop everything that uses the GPUs and "
        "reload the nvidia modules), and hold the driver's packages so that it does not happen again",
    ),
    (
        "library_missing",
        re.compile(r"couldn.t find libnvidia-ml|NVIDIA Management Library.*not found|shared library not found", re.I),
        "install the driver's libraries of the same version as its kernel module, then run ldconfig",
    ),
    (
        "driver_not_loaded",
        re.compile(r"couldn.t communicate with the NVIDIA driver|driver not loaded", re.I),
        "load it with `modprobe nvidia`; if that fails, `dmesg` shows the reason",
    ),
    ("reset_required", re.compile(r"requires? (?:a )?reset", re.I), "stop what uses the GPU, then run `nvidia-smi --gpu-reset` for it"),
    (
        "gpu_lost",
        re.compile(r"GPU is lost|fallen off the bus|unable to determine the device handle", re.I),
        "a GPU no longer answers on the bus: read `dmesg` for Xid, then reboot the host; if that does not last, the GPU or its power "
        "is faulty",
    ),
    (
        "devices_denied",
        re.compile(r"failed to initialize NVML: unknown error", re.I),
        "NVML cannot open the GPUs' device nodes: where `ls /dev/nvidia*` lacks nvidiactl or a GPU, run `nvidia-modprobe -c0 -u` (-c1 "
        "and so on for others); where all are there, what runs nvidia-smi may no longer use them (its device cgroup; a systemctl "
        "daemon-reload takes it from containers): start that anew",
    ),
    (
        "no_permission",
        re.compile(r"insufficient permissions|access blocked|operation not permitted", re.I),
        "run as root on the host itself, not in a container without the GPUs' device nodes",
    ),
    (
        "no_devices",
        re.compile("no devices (?:were )?found", re.I),
        "the driver is loaded and reports no GPU: check with `lspci -d 10de:` that the host has one, and that this version of the driver "
        "supports it",
    ),
)
_BY_STATUS = {4: "no_permission", 6: "no_devices", 9: "driver_not_loaded", 12: "library_missing", 15: "gpu_lost", 18: "version_mismatch"}
_CURES = {kind: cure for kind, dummy, cure in _FAILURES}
# The messages that the kernel logs when it rejects a module by its signature, and what NVIDIA's module logs about a GPU that it does not
# serve.
_REJECTED = re.compile(
    r"loading of (?:unsigned )?module .{0,80}rejected|unsigned module loading is restricted|key was rejected"
    r"|signed with (?:an )?untrusted key|not signed with a trusted key",
    re.I,
)
_NEEDS_OPEN = re.compile("requires use of the NVIDIA open kernel modules", re.I)
_NEEDS_PROPRIETARY = re.compile(r"not supported by open\s+(?:\[[^\]]*\]\s*)?(?:NVRM:\s*)?nvidia\.ko", re.I)
_LEGACY = re.compile(r"supported through the\s+(?:\[[^\]]*\]\s*)?(?:NVRM:\s*)?NVIDIA ([0-9]{2,3}\.[0-9xX.]{1,9}) Legacy", re.I)


@dataclass(frozen=True)
class Surroundings:
    """The state of the host besides nvidia-smi. kernel_log: the kernel's messages, asked for only where they can decide; None for none."""

    driver: Driver
    pci: Pci
    kernel: Kernel
    kernel_log: Callable[[], Optional[str]]


def not_installed(container: bool) -> Finding:
    """No nvidia-smi. container: whether a driver container provides the driver."""
    if container:
        found = f"no nvidia-smi on this host; its driver is in a container of NVIDIA's GPU Operator ({CONTAINER})"
        cure = (
            "this release needs the driver on the host. Do not install one beside the operator's: first have the operator leave this node "
            "(label nvidia.com/gpu.deploy.operands=false), reboot, then install the driver; or take this host out of the group of GPU hosts"
        )
        return Finding("driver_container", found, _ANSWER, cure)
    cure = "install the NVIDIA driver with its nvidia-smi, or take this host out of the group of GPU hosts"
    return Finding("not_installed", "no nvidia-smi on this host", _ANSWER, cure)


def unlisted(attached: Optional[int], listed: int) -> Optional[Finding]:
    """GPUs that the driver counts and nvidia-smi does not describe."""
    if attached is not None and attached > listed:
        return Finding(
            "gpu_lost", f"{attached} GPUs attached, of which {listed} answer", "every attached GPU to answer", _CURES["gpu_lost"]
        )
    return None if listed else Finding("no_devices", "a driver without GPUs", _ANSWER, _CURES["no_devices"])


def versions(driver: Driver) -> Optional[Finding]:
    """Whether the loaded module, the library and the module on disk are of one version."""
    if driver.loaded and driver.library and driver.loaded != driver.library:
        seen = f"kernel module {driver.loaded} and library {driver.library} of the driver"
        return Finding("driver_mismatch", seen, "one version", _CURES["version_mismatch"])
    if driver.loaded and driver.installed and driver.loaded != driver.installed:
        seen = f"kernel module {driver.loaded} loaded, {driver.installed} installed"
        cure = "the next boot brings the other one: drain the node and reboot the host at a time of your choice, and hold the packages"
        return Finding("reboot_required", seen, "the installed driver loaded", cure, WARNING)
    return None


def unusable(gpu: str, answers: Sequence[str]) -> Optional[Finding]:
    """The error that nvidia-smi prints in the place of a GPU's values."""
    for answer in answers:
        kind = {"gpu is lost": "gpu_lost", "gpu requires reset": "reset_required"}.get(answer.strip("[]").lower())
        if kind:
            return Finding(kind, f"{gpu}, of which nvidia-smi reports {answer!r}", "every attached GPU to answer", _CURES[kind])
    return None


def failure(outcome: Outcome, unreadable: str) -> Finding:
    """The complaint of an nvidia-smi that printed no XML. unreadable: why its output cannot be read."""
    command = " ".join(outcome.argv)
    if outcome.timed_out is not None:
        cure = "the driver hangs: read `dmesg` for Xid and NVRM lines, then reboot the host"
        return Finding("timeout", f"no answer from {command} within {outcome.timed_out:g} s", _ANSWER, cure)
    if outcome.status is None:
        cure = "check that it is an executable file of this machine's architecture, and that its libraries are there"
        return Finding("failed", f"{command} cannot be run ({outcome.words})", _ANSWER, cure)
    said = f"{outcome.words!r} (exit status {outcome.status})"
    for kind, words, cure in _FAILURES:
        if words.search(outcome.words):
            return Finding(kind, said, _ANSWER, cure)
    kind = _BY_STATUS.get(outcome.status, "")
    if kind:
        return Finding(kind, said, _ANSWER, _CURES[kind])
    if outcome.ok:
        cure = "run `nvidia-smi -q -x` on the host to see what it prints"
        return Finding("unreadable", unreadable, "the XML that nvidia-smi prints", cure)
    return Finding("failed", said, _ANSWER, "run `nvidia-smi` on the host, and read `dmesg` for lines with NVRM")


def refine(problem: Finding, host: Surroundings) -> Finding:
    """The same problem, or the cause of it where the host shows one."""
    if problem.check == "driver_not_loaded":
        return _not_loaded(problem, host)
    if problem.check == "no_devices":
        return _no_devices(problem, host)
    if problem.check == "not_installed" and host.driver.loaded:
        cure = f"install the package with nvidia-smi of the same version, {host.driver.loaded}"
        return replace(problem, found=f"no nvidia-smi on this host, though kernel module {host.driver.loaded} is loaded", cure=cure)
    return problem


def unsigned(secure_boot: str, seen: str, own_key: str = "") -> Finding:
    """A kernel that does not load NVIDIA's module, because of its signature (seen). own_key: what an own key needs besides."""
    cure = (
        "install the distribution's signed, precompiled driver packages where it has them; or sign the module with a key of your own and "
        f"enrol that key (`mokutil --import KEY`, then confirm at the console during the next boot){own_key}; or switch Secure Boot off in "
        "the firmware"
    )
    found = f"a kernel that accepts signed modules only (Secure Boot {secure_boot}); {seen}"
    return Finding("secure_boot", found, "a module that this kernel accepts", cure)


def _not_loaded(problem: Finding, host: Surroundings) -> Finding:
    driver, kernel = host.driver, host.kernel
    if driver.container:
        return not_installed(container=True)
    if driver.nouveau_loaded:
        cure = "blacklist nouveau (files in /etc/modprobe.d), rebuild the initramfs, then reboot the host"
        return Finding("nouveau", "the kernel's own driver nouveau loaded, which keeps the GPUs from NVIDIA's", _ANSWER, cure)
    if driver.installed_path is None:
        others = f" (there is one for {', '.join(driver.other_kernels[:3])})" if driver.other_kernels else ""
        headers = "its headers are installed" if kernel.headers else "its headers are not installed"
        cure = (
            f"install the headers of {kernel.release} and have DKMS build the module (`dkms autoinstall`), or install the precompiled "
            "module of this kernel, or boot a kernel that has one"
        )
        found = f"no NVIDIA kernel module for the running kernel {kernel.release}{others}; {headers}"
        return Finding("module_missing", found, "a module for the running kernel", cure)
    log = host.kernel_log() or ""
    rejected = _REJECTED.search(log)
    strict = kernel.secure_boot == "enabled" or kernel.signed_modules_only
    if strict and (rejected is not None or driver.signed is False):
        seen = f"the kernel logged {_shown(rejected.group(0))!r}" if rejected else f"{driver.installed_path} has no signature"
        return unsigned(kernel.secure_boot, seen)
    unsupported = _unsupported(log)
    return unsupported if unsupported is not None else problem


def _no_devices(problem: Finding, host: Surroundings) -> Finding:
    gpus = host.pci.gpus
    if not gpus:
        cure = "check that the GPU is plugged in and powered, or passed through to this virtual machine; `lspci -d 10de:` lists it"
        return replace(problem, found="a driver without GPUs, and no NVIDIA GPU on the PCI bus", cure=cure)
    passed = [gpu.address for gpu in gpus if gpu.driver == "vfio-pci"]
    if len(passed) == len(gpus):
        cure = "to share them here, give them back to the host (unbind vfio-pci, bind nvidia); or take this host out of the GPU hosts"
        return replace(problem, found=f"all GPUs ({', '.join(passed[:4])}) given to virtual machines (vfio-pci)", cure=cure)
    return _unsupported(host.kernel_log() or "") or problem


def _unsupported(log: str) -> Optional[Finding]:
    """The messages that NVIDIA's module logs about a GPU that it does not serve."""
    if _NEEDS_OPEN.search(log):
        cure = "install the open kernel module of the same version: GPUs from Blackwell on work with no other"
        return Finding("wrong_module", "the proprietary kernel module, which does not support this GPU", "the open kernel module", cure)
    if _NEEDS_PROPRIETARY.search(log):
        cure = "install the proprietary kernel module of the same version: the open one supports GPUs from Turing on"
        return Finding("wrong_module", "the open kernel module, which does not support this GPU", "the proprietary kernel module", cure)
    legacy = _LEGACY.search(log)
    if legacy:
        cure = f"install a driver of the branch {legacy.group(1)}: newer ones no longer support this GPU"
        return Finding("unsupported_gpu", "a driver that no longer supports this GPU", f"branch {legacy.group(1)}", cure)
    return None


def _shown(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)[:_SHOWN]
