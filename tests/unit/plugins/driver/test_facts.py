# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What of a host decides about its driver; each host is a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.facts import HostFacts, gather, processes_on
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.driver import driver
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.gpus import gpus
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import parse
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._driver.data import data_of

from unit.fakes.plugins.driver.hosts import DEBIAN, HOSTS, VARS, data
from unit.fakes.plugins.fake_root import NVIDIA_SMI, FakeRoot, debian, gpu

RELEASE = "6.1.0-30-amd64"


@pytest.fixture
def root(tmp_path: Path) -> FakeRoot:
    return debian(FakeRoot(tmp_path))


def facts(root: FakeRoot) -> HostFacts:
    found = gather(Host(str(root)))
    assert HostFacts.from_dict(json.loads(json.dumps(found.as_dict()))) == found
    return found


def test_an_empty_host(tmp_path: Path) -> None:
    found = facts(FakeRoot(tmp_path))
    assert (found.id, found.version, found.vendor, found.packages, found.devices) == ("unknown", None, "", {}, ())


def test_this_very_host_can_be_looked_at() -> None:
    assert gather(Host("/")).release


def test_the_next_kernel_is_the_newest_of_the_same_flavour_that_is_installed(root: FakeRoot) -> None:
    for release in (RELEASE, "6.1.0-9-amd64", "6.1.0-31-amd64", "6.5.0-1-rt-amd64"):
        root.file(f"/lib/modules/{release}/modules.builtin")
    # What DKMS left of a kernel that is gone.
    root.file("/lib/modules/6.9.0-1-amd64/updates/dkms/nvidia.ko")
    root.file("/usr/src/linux-headers-6.1.0-31-amd64/Makefile")
    found = facts(root)
    assert (found.release, found.next_release, found.headers) == (RELEASE, "6.1.0-31-amd64", ("6.1.0-31-amd64",))


def test_kernels_may_be_below_usr_only(root: FakeRoot) -> None:
    root.file("/usr/lib/modules/6.1.0-31-amd64/modules.builtin")
    assert facts(root).next_release == "6.1.0-31-amd64"


@pytest.mark.parametrize(
    ("firmware", "enforced", "strict"), [(b"\x06\0\0\0\x01", "N", True), (b"\x06\0\0\0\0", "Y", True), (b"\x06\0\0\0\0", "N", False)]
)
def test_whether_the_kernel_takes_signed_modules_only(root: FakeRoot, firmware: bytes, enforced: str, strict: bool) -> None:
    root.file("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", firmware)
    root.file("/sys/module/module/parameters/sig_enforce", enforced + "\n")
    assert facts(root).strict is strict


def test_dkms_is_a_program_of_the_host(root: FakeRoot) -> None:
    assert not facts(root).dkms
    root.program("/usr/sbin/dkms")
    assert facts(root).dkms


def test_without_a_module_on_disk_the_loaded_driver_counts_and_then_the_library(root: FakeRoot) -> None:
    root.file("/usr/lib64/libnvidia-ml.so.550.163.01")
    root.link("/usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.550.163.01")
    root.file("/etc/ld.so.cache", b"\0libnvidia-ml.so.1\0/usr/lib64/libnvidia-ml.so.1\0")
    assert facts(root).version == "550.163.01"
    root.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  x\n")
    assert facts(root).version == "535.261.03"


def test_gpus_and_switches(root: FakeRoot) -> None:
    gpu(root)
    root.pci("0000:bf:00.0", kind="0x068000", vendor="0x8086")
    root.file("/sys/bus/pci/devices/0000:c2:00.0/vendor", "0x10de\n")
    root.pci("0000:c0:00.0", kind="0x068000", driver="nvidia-nvswitch")
    root.pci("0000:c1:00.0", kind="0x068000", vendor="0x8086")
    found = facts(root)
    assert (found.devices, found.switches, found.loaded, found.module) == (("0x1eb8", "0x1eb8"), 1, "535.261.03", "proprietary")


def test_switches_that_the_bus_does_not_show(root: FakeRoot) -> None:
    """From HGX B200 on a network controller manages them, which says so in its vital product data."""
    root.file("/sys/class/infiniband/mlx5_0/device/vpd", b"\x82\x21\x00ConnectX-7 HHHL adapter\0")
    root.file("/sys/class/infiniband/mlx5_1/x", "")
    assert not facts(root).nvlink5
    root.file("/sys/class/infiniband/mlx5_5/device/vpd", b"\x82\x1f\x00Nvidia ConnectX-7\0V2\x11SW_MNG\0\xff")
    assert facts(root).nvlink5
    parts = driver(Host(str(root)))
    assert (parts.nvlink5, parts.fabric_manager, parts.lacks_fabric_manager) == (True, False, True)
    root.process(77, "/usr/bin/nv-fabricmanager", "-c", "/usr/share/nvidia/nvswitch/fabricmanager.cfg")
    parts = driver(Host(str(root)))
    assert (parts.fabric_manager, parts.lacks_fabric_manager) == (True, False)


def test_an_open_module_that_is_loaded(root: FakeRoot) -> None:
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.20  Release Build  (dvs-builder@U22)\n"
    root.file("/proc/driver/nvidia/version", line)
    assert (facts(root).loaded, facts(root).module) == ("580.126.20", "open")


def test_kind_and_version_of_a_module_on_disk(root: FakeRoot) -> None:
    root.file(f"/lib/modules/{RELEASE}/modules.dep", "updates/dkms/nvidia.ko:\n")
    root.file(f"/lib/modules/{RELEASE}/updates/dkms/nvidia.ko", b"x\0license=Dual MIT/GPL\0version=580.126.20\0y")
    found = facts(root)
    assert (found.version, found.module, found.loaded) == ("580.126.20", "open", None)


def test_the_kind_on_disk_counts_before_the_one_that_is_loaded_until_the_reboot(root: FakeRoot) -> None:
    test_kind_and_version_of_a_module_on_disk(root)
    root.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.126.20  x\n")
    assert (facts(root).loaded, facts(root).module) == ("580.126.20", "open")


@pytest.mark.parametrize(
    ("path", "content", "vendor"),
    [
        ("/etc/dgx-release", 'DGX_NAME="DGX Server"\nDGX_SWBUILD_VERSION="6.1.0"\n', "DGX OS 6.1.0"),
        ("/etc/dgx-release", "", "DGX OS"),
        ("/etc/nv_tegra_release", "# R36 (release)", "Jetson Linux"),
        ("/etc/other", "", ""),
    ],
)
def test_images_of_vendors(root: FakeRoot, path: str, content: str, vendor: str) -> None:
    root.file(path, content)
    assert facts(root).vendor == vendor


@pytest.mark.parametrize(
    ("folder", "content", "blacklisted"),
    [
        ("/etc/modprobe.d/x.conf", "blacklist nouveau\n", True),
        ("/usr/lib/modprobe.d/nvidia.conf", "# x\n  blacklist   nouveau  \n", True),
        ("/etc/modprobe.d/x.conf", "install nouveau /bin/false\n", True),
        ("/etc/modprobe.d/x.conf", "blacklist nouveau # ours\n", True),
        ("/etc/modprobe.d/x.conf", "blacklist \\\nnouveau\n", True),
        ("/etc/modprobe.d/x.conf", "# blacklist nouveau\n", False),
        ("/etc/modprobe.d/x.conf", "blacklist nouveaux\n", False),
        ("/etc/modprobe.d/x.conf.off", "blacklist nouveau\n", False),
        # A folder, which cannot be read.
        ("/etc/modprobe.d/x.conf/y", "blacklist nouveau\n", False),
    ],
)
def test_where_nouveau_is_blacklisted(root: FakeRoot, folder: str, content: str, blacklisted: bool) -> None:
    root.file(folder, content)
    assert facts(root).nouveau_blacklisted is blacklisted


def test_a_file_of_an_administrator_takes_the_place_of_the_packages(root: FakeRoot) -> None:
    root.file("/usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n")
    root.file("/etc/modprobe.d/nvidia.conf", "# nouveau is wanted here\n")
    assert facts(root).nouveau_blacklisted is False


def test_packages_of_dpkg_that_are_installed(root: FakeRoot) -> None:
    root.file("/var/lib/dpkg/status")
    lines = "installed\tnvidia-smi\t535.261.03-1\nconfig-files\tnvidia-old\t1\nbroken line\ninstalled\tnvidia-x"
    root.program("/usr/bin/dpkg-query", lines, 1)
    assert facts(root).packages == {"nvidia-smi": "535.261.03-1"}


def test_packages_of_rpm(root: FakeRoot) -> None:
    root.program("/usr/bin/rpm", "installed\tnvidia-driver-cuda\t580.126.20-1.el9\n")
    # Some have dpkg's programs, too, without a database.
    root.program("/usr/bin/dpkg-query", "installed\tnvidia-smi\t535.261.03-1")
    assert facts(root).packages == {"nvidia-driver-cuda": "580.126.20-1.el9"}
    root.program("/usr/bin/rpm", "installed\tnvidia-driver-cuda\t580.126.20-1.el9\n", 2)
    assert facts(root).packages == {}


def test_of_very_many_packages_the_first_400_are_listed(root: FakeRoot) -> None:
    root.program("/usr/bin/rpm", "\n".join(f"installed\tnvidia-{number}\t1-1" for number in range(500)))
    assert list(facts(root).packages) == [f"nvidia-{number}" for number in range(400)]


def test_marks_of_nvidias_installer_and_of_the_driver_container(root: FakeRoot) -> None:
    assert (facts(root).run_file, facts(root).container) == (False, False)
    root.file("/usr/bin/nvidia-uninstall")
    root.file("/run/nvidia/driver/usr/bin/nvidia-smi")
    assert (facts(root).run_file, facts(root).container) == (True, True)


def test_processes_in_words() -> None:
    assert processes_on(parse(NVIDIA_SMI.read_text()), Host("/nowhere")) == ["4242 (python train.py)"]


def test_the_pod_of_a_process_that_nvidia_smi_lists_is_named(root: FakeRoot) -> None:
    gpu(root)
    root.file("/proc/4242/cgroup", f"0::/kubepods/pod{UID}/x\n")
    host = Host(str(root))
    assert processes_on(gpus(host), host) == [f"4242 (python train.py) of pod {UID}"]


def test_a_process_without_arguments_goes_by_its_name(root: FakeRoot) -> None:
    gpu(root)
    root.at("/usr/bin/nvidia-smi").unlink()
    for pid in (77, 78, 79):
        opened(root, pid, "/dev/nvidia-uvm")
    # As a file that was closed meanwhile, what is no link says nothing of the others.
    root.file("/proc/80/fd/0")
    root.link("/proc/80/fd/1", "/dev/nvidia-uvm")
    root.file("/proc/78/cmdline", b"\0\0")
    for pid in (78, 79):
        root.file(f"/proc/{pid}/comm", "kworker\n")
    root.file("/proc/80/cmdline", b"x" * 61)
    host = Host(str(root))
    assert processes_on(gpus(host), host) == ["77 (?)", "78 (kworker)", "79 (kworker)", f"80 ({'x' * 60})"]


def test_of_very_many_processes_the_first_200_are_listed(root: FakeRoot) -> None:
    for pid in range(1, 206):
        root.link(f"/proc/{pid}/fd/3", "/dev/nvidia-uvm")
    host = Host(str(root))
    assert processes_on(gpus(host), host) == [f"{pid} (?)" for pid in range(1, 201)]


MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.163\n"
UID = "1a2b3c4d-0000-4000-8000-0123456789ab"


def opened(root: FakeRoot, pid: int, *paths: str) -> None:
    """The files that a process has open."""
    for number, path in enumerate(("/dev/null", *paths)):
        root.link(f"/proc/{pid}/fd/{number}", path)


def test_processes_of_a_host_whose_nvidia_smi_answers_no_more(root: FakeRoot) -> None:
    gpu(root)
    root.process(77, "python3", "train.py", "--epochs=9\x1b[31m")
    opened(root, 77, "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm")
    root.file("/proc/77/cgroup", f"0::/kubepods/pod{UID}/x\n")
    root.file(f"/var/log/pods/team-a_train-0_{UID}/x/0.log")
    # The file is another one after an upgrade of nvidia-modprobe.
    root.process(78, "/usr/bin/nvidia-cuda-mps-server")
    opened(root, 78, "/dev/nvidia-uvm (deleted)")
    # Those that only ask about GPUs: the device plugin, the persistence daemon.
    root.process(79, "/usr/bin/nvidia-persistenced")
    opened(root, 79, "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm-tools", "socket:[4711]")
    host = Host(str(root))
    assert processes_on(gpus(host), host) == ["4242 (python train.py)"]
    root.program("/usr/bin/nvidia-smi", MISMATCH, 18)
    host = Host(str(root))
    assert processes_on(gpus(host), host) == [
        "77 (python3 train.py --epochs=9?[31m) of pod team-a/train-0",
        "78 (/usr/bin/nvidia-cuda-mps-server)",
    ]
    root.at("/usr/bin/nvidia-smi").unlink()
    assert len(processes_on(gpus(Host(str(root))), host)) == 2


def test_processes_of_a_host_with_a_gpu_that_is_lost(root: FakeRoot) -> None:
    """nvidia-smi lists those of the other GPU only."""
    gpu(root)
    root.program("/usr/bin/nvidia-smi", NVIDIA_SMI.read_text().replace("<attached_gpus>2<", "<attached_gpus>3<"))
    for pid in (77, 4242):
        root.process(pid, "python3", "other.py")
        opened(root, pid, "/dev/nvidia-uvm")
    host = Host(str(root))
    assert processes_on(gpus(host), host) == ["77 (python3 other.py)", "4242 (python train.py)"]


def test_each_host_finds_the_data_of_its_distribution() -> None:
    for name, host in HOSTS.items():
        assert data_of(VARS, host) == data(name)
    for fields in ({"os_version": "11"}, {"id": "alpine"}, {"id": "linuxmint", "like": ("ubuntu", "debian")}, {"os_version": "../../x"}):
        assert data_of(VARS, HostFacts.from_dict({**DEBIAN.as_dict(), **fields})) is None


def test_the_packages_that_bring_the_kernels(root: FakeRoot) -> None:
    rows = (
        f"installed\tlinux-image-{RELEASE}\tkmod, linux-base (>= 4.3~)",
        f"installed\tlinux-image-cloud-amd64\tlinux-image-{RELEASE} (= 6.1.129-1)",
        f"config-files\tlinux-image-amd64\tlinux-image-{RELEASE} (= 6.1.129-1)",
        "installed\tlinux-image-rt-amd64\tlinux-image-6.1.0-30-rt-amd64 (= 6.1.129-1)",
        "garbage",
    )
    root.program("/usr/bin/dpkg-query", "\n".join(rows) + "\n")
    assert facts(root).kernel_packages == (), "its packages are another manager's"
    root.file("/var/lib/dpkg/status", "x")
    assert facts(root).kernel_packages == ("linux-image-cloud-amd64",)


def test_options_in_use_and_memory_of_gpus_as_numa_nodes(root: FakeRoot) -> None:
    root.file("/proc/driver/nvidia/params", 'CreateImexChannel0: 0\nCoherentGPUMemoryMode: "driver"\nRmMsg: ""\ngarbage\n')
    for node, cpus, memory in ((0, "0-71\n", 500000), (1, "\n", 98304), (2, "\n", 0)):
        root.file(f"/sys/devices/system/node/node{node}/cpulist", cpus)
        root.file(f"/sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:       {memory} kB\n")
    parts = driver(Host(str(root)))
    assert parts.options == {"CreateImexChannel0": "0", "CoherentGPUMemoryMode": "driver", "RmMsg": ""}
    assert parts.memory_nodes == 1
