# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One sentence of nvidia-smi, many causes: each host has its own, with its own cure. The hosts are folders.

The messages of nvidia-smi are recordings of 535.261.03; those of the kernel are as NVIDIA's users quote them from `dmesg`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.gpus import gpus
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import Process
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host

from unit.fakes.plugins.fake_root import NVIDIA_SMI, FakeRoot, debian

RELEASE = "6.1.0-30-amd64"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
    "installed and running.\n"
)
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
MODULE = f"/lib/modules/{RELEASE}/updates/dkms/nvidia.ko"
VERSION, LOADED = "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Wed Jan\n"
SIGNATURE = b"~Module signature appended~\n"
NEEDS_OPEN = (
    "[  5.5] NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c58)\n"
    "               NVRM: installed in this system requires use of the NVIDIA open kernel modules.\n"
)
NEEDS_PROPRIETARY = (
    "[  5.1] NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:1b80)\n[  5.1] NVRM: installed in this system is not supported by open\n"
    "[  5.1] NVRM: nvidia.ko because it does not include the required GPU\n"
)
LEGACY = "[  4.0] NVRM: installed in this system is supported through the NVIDIA 470.xx Legacy drivers.\n"


@pytest.fixture
def root(tmp_path: Path) -> FakeRoot:
    """A host with one GPU and an nvidia-smi that finds no driver."""
    made = debian(FakeRoot(tmp_path))
    made.pci("0000:04:00.0", driver="")
    made.program("/usr/bin/nvidia-smi", NO_DRIVER, 9)
    return made


def module(root: FakeRoot, signed: bool = False, license_: bytes = b"NVIDIA") -> None:
    """A kernel module on disk for the running kernel."""
    content = b"\x7fELF\0license=" + license_ + b"\0version=535.261.03\0"
    root.file(MODULE, content + (SIGNATURE if signed else b""))
    root.file(f"/lib/modules/{RELEASE}/modules.dep", "updates/dkms/nvidia.ko:\n")


def secure_boot(root: FakeRoot) -> None:
    root.file(SECURE_BOOT, b"\6\0\0\0\1")


def problem(root: FakeRoot) -> Finding:
    found = gpus(Host(str(root))).problem
    assert found is not None
    return found


Change = Callable[[FakeRoot], object]
# What is done to the host, the kind of problem, words of what was found, words of the cure.
HOSTS: list[tuple[str, list[Change], str, str, str]] = [
    ("nothing else known", [module], "driver_not_loaded", "couldn't communicate", "modprobe nvidia"),
    ("nouveau", [module, lambda r: r.file("/sys/module/nouveau/x")], "nouveau", "nouveau loaded", "initramfs"),
    ("no module", [], "module_missing", f"for the running kernel {RELEASE}; its headers are not installed", "install the headers"),
    (
        "a module for another kernel",
        [
            lambda r: r.file("/lib/modules/6.1.0-28-amd64/modules.dep", "updates/dkms/nvidia.ko.xz:\n"),
            lambda r: r.file(f"/usr/src/linux-headers-{RELEASE}/Makefile"),
        ],
        "module_missing",
        f"{RELEASE} (there is one for 6.1.0-28-amd64); its headers are installed",
        "boot a kernel that has one",
    ),
    ("Secure Boot, unsigned", [module, secure_boot], "secure_boot", f"{MODULE} has no signature", "mokutil --import"),
    (
        "Secure Boot, a key that is not enrolled",
        [
            lambda r: module(r, signed=True),
            secure_boot,
            lambda r: r.program("/usr/bin/dmesg", "[1.0] Loading of module with unavailable key is rejected"),
        ],
        "secure_boot",
        "'Loading of module with unavailable key is rejected'",
        "enrol",
    ),
    (
        "lockdown without Secure Boot",
        [module, lambda r: r.file("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n")],
        "secure_boot",
        "accepts signed modules only (Secure Boot none)",
        "sign the module",
    ),
    (
        "Secure Boot, signed, and no complaint of the kernel",
        [lambda r: module(r, signed=True), secure_boot, lambda r: r.program("/usr/bin/dmesg", "[1.0] x")],
        "driver_not_loaded",
        "couldn't communicate",
        "modprobe",
    ),
    (
        "another problem, and the module is loaded",
        [lambda r: r.program("/usr/bin/nvidia-smi", "Driver/library version mismatch\n", 18), lambda r: r.file(VERSION, LOADED)],
        "version_mismatch",
        "version mismatch",
        "reboot the host",
    ),
    ("driver container", [lambda r: r.file("/run/nvidia/driver/usr/bin/nvidia-smi")], "driver_container", "GPU Operator", "operator leave"),
    (
        "Blackwell",
        [module, lambda r: r.program("/usr/bin/dmesg", NEEDS_OPEN)],
        "wrong_module",
        "the proprietary kernel module",
        "open kernel module",
    ),
    (
        "Pascal",
        [lambda r: module(r, license_=b"Dual MIT/GPL"), lambda r: r.program("/usr/bin/dmesg", NEEDS_PROPRIETARY)],
        "wrong_module",
        "the open kernel module",
        "proprietary",
    ),
    ("Kepler", [module, lambda r: r.program("/usr/bin/dmesg", LEGACY)], "unsupported_gpu", "no longer supports", "branch 470.xx"),
]


@pytest.mark.parametrize(("changes", "kind", "found", "cure"), [host[1:] for host in HOSTS], ids=[host[0] for host in HOSTS])
def test_no_driver_has_one_message_and_many_causes(root: FakeRoot, changes: list[Change], kind: str, found: str, cure: str) -> None:
    for change in changes:
        change(root)
    seen = problem(root)
    assert seen.check == kind
    assert found in seen.found
    assert cure in seen.cure


def test_no_devices_by_what_the_bus_shows(root: FakeRoot) -> None:
    root.program("/usr/bin/nvidia-smi", "No devices were found\n", 6)
    assert problem(root).found == "'No devices were found' (exit status 6)"
    root.program("/usr/bin/dmesg", NEEDS_OPEN)
    assert problem(root).check == "wrong_module"
    root.at("/usr/bin/dmesg").unlink()
    root.link("/sys/bus/pci/devices/0000:04:00.0/driver", "../../../../bus/pci/drivers/vfio-pci")
    assert "all GPUs (0000:04:00.0) given to virtual machines" in problem(root).found
    assert "give them back to the host" in problem(root).cure
    for name in ("vendor", "class", "device", "numa_node", "driver"):
        root.at(f"/sys/bus/pci/devices/0000:04:00.0/{name}").unlink()
    assert "no NVIDIA GPU on the PCI bus" in problem(root).found
    assert "plugged in and powered" in problem(root).cure


def test_a_host_without_nvidia_smi(root: FakeRoot) -> None:
    root.at("/usr/bin/nvidia-smi").unlink()
    assert (problem(root).check, problem(root).found) == ("not_installed", "no nvidia-smi on this host")
    root.file(VERSION, LOADED)
    assert "kernel module 535.261.03 is loaded" in problem(root).found
    assert "nvidia-smi of the same version, 535.261.03" in problem(root).cure
    root.file("/run/nvidia/driver/usr/bin/nvidia-smi")
    assert problem(root).check == "driver_container"


def test_a_log_that_is_hostile_is_cut_and_printable(root: FakeRoot) -> None:
    module(root)
    secure_boot(root)
    root.program("/usr/bin/dmesg", "Loading of module \x1b[31m" + "x" * 60 + " is rejected" + "y" * 100_000)
    assert problem(root).check == "secure_boot"
    assert "module  [31mxxx" in problem(root).found
    assert len(problem(root).found) < 400


UID = "1a2b3c4d-0000-4000-8000-0123456789ab"


@pytest.mark.parametrize(
    ("group", "uid"),
    [
        (f"0::/kubepods.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{'c' * 64}.scope", UID),
        (f"12:devices:/kubepods/besteffort/pod{UID}/{'c' * 64}", UID),
        ("0::/system.slice/ssh.service", None),
        ("0::/user.slice/podcast-server", None),
    ],
)
def test_a_process_has_its_pod(root: FakeRoot, group: str, uid: str | None) -> None:
    root.program("/usr/bin/nvidia-smi", NVIDIA_SMI.read_text())
    root.file("/proc/4242/cgroup", group + "\n")
    root.file(f"/var/log/pods/team-a_train-0_{UID}/x/0.log")
    root.file("/var/log/pods/not a pod/x")
    named = ("team-a", "train-0") if uid else (None, None)
    assert gpus(Host(str(root))).gpus[0].processes == (Process(4242, "C", "python train.py", 512, uid, *named),)


def test_a_pod_without_logs_has_its_uid(root: FakeRoot) -> None:
    root.program("/usr/bin/nvidia-smi", NVIDIA_SMI.read_text())
    root.file("/proc/4242/cgroup", f"0::/kubepods/pod{UID}/x\n")
    (process,) = gpus(Host(str(root))).gpus[0].processes
    assert (process.pod_uid, process.pod_namespace, process.pod_name) == (UID, None, None)
