# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which facts, inventories and variables are rejected, which are warned of, and in which words."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.ground import Ground
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import NodeFacts, gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.forms import seconds
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.gpus import Expected
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.host import WantedHost, judge
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.in_cluster import InClusterSettings
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.reasons import (
    OLDEST_ANSIBLE,
    Answer,
    Finding,
    Judgement,
    accept,
    failure_of,
    is_silent,
    judge_authorities,
    judge_cluster,
    judge_controller,
    judge_inventory,
    not_gathered,
    summary,
    unreachable,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import (
    impossible,
    scattered,
    shared,
    shown,
    together,
    unknown,
    variables,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._report import blocks
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._settings.rows import VARIABLE, WORDS, followed
from hypothesis import given
from hypothesis import strategies as st

from tree import REPOSITORY
from unit.fakes.plugins.fake_root import NVIDIA_SMI, FakeRoot, control_plane, debian, gpu, kubelet, rancher
from unit.golden import Golden

GPU_NODE = WantedHost(gpu_node=True, control_plane=False)
CONTROL_PLANE = WantedHost(gpu_node=False, control_plane=True)
#: A driver without a known vulnerability.
MENDED = "580.178.04"
BY_CLAIMS = {"gpushare_deploy_mode": "kubernetes", "gpushare_backend": "dra"}
SERVED = {"gpushare_dashboard_state": "present", "gpushare_dashboard_token": "x" * 16}


@pytest.fixture
def node(tmp_path: Path) -> FakeRoot:
    """A GPU node that is fit."""
    return gpu(kubelet(debian(FakeRoot(tmp_path))), MENDED)


@pytest.fixture
def plane(tmp_path: Path) -> FakeRoot:
    """A control plane that is fit."""
    return control_plane(kubelet(debian(FakeRoot(tmp_path))))


def reasons(root: FakeRoot, wanted: WantedHost = GPU_NODE) -> tuple[Finding, ...]:
    return judge("h", gather(Host(str(root))), wanted).reasons


def found(root: FakeRoot, wanted: WantedHost = GPU_NODE) -> list[tuple[str, str]]:
    """(check, severity) of each reason."""
    return [(reason.check, reason.severity) for reason in reasons(root, wanted)]


def overwrite(root: FakeRoot, path: str, content: str) -> None:
    root.at(path).unlink()
    root.file(path, content)


def smi(root: FakeRoot, old: str, new: str) -> None:
    """The same GPUs, with something replaced in what nvidia-smi says."""
    assert old in NVIDIA_SMI.read_text()
    root.program("/usr/bin/nvidia-smi", NVIDIA_SMI.read_text().replace(old, new, 1))


def mig(root: FakeRoot, *instances: int, gpus: int = 1) -> None:
    """So many GPUs are in MIG mode, each with compute instances in these GPU instances."""
    devices = "".join(
        f"<mig_device><index>{place}</index><gpu_instance_id>{of}</gpu_instance_id><compute_instance_id>{instances[:place].count(of)}"
        "</compute_instance_id><fb_memory_usage><total>9728 MiB</total></fb_memory_usage></mig_device>"
        for place, of in enumerate(instances)
    )
    text = NVIDIA_SMI.read_text()
    for before in ("N/A", "Disabled")[:gpus]:
        text = text.replace(f"<current_mig>{before}", "<current_mig>Enabled", 1)
    root.program("/usr/bin/nvidia-smi", re.sub(r"<mig_devices>\s*None\s*</mig_devices>", f"<mig_devices>{devices}</mig_devices>", text))


@pytest.mark.parametrize(
    ("instances", "wanted", "severity", "words"),
    [
        ((7, 8), {}, "warning", "in MIG mode with the device strategy volume-mounts"),
        ((7, 8), {"device_strategy": "envvar"}, "warning", "in MIG mode with the device strategy envvar"),
        ((7, 8), {"device_strategy": "cdi", "isolation": "mps"}, "warning", "in MIG mode with gpushare_isolation: mps"),
        ((7, 8), {"device_strategy": "cdi", "isolation": "driver"}, "warning", "in MIG mode with gpushare_isolation: driver"),
        ((), {"device_strategy": "cdi"}, "warning", "in MIG mode without instances"),
        ((7, 7, 8), {"device_strategy": "cdi"}, "warning", "with several compute instances in GPU instance 7"),
        ((7, 8), {"device_strategy": "cdi"}, "", ""),
    ],
)
def test_instances_that_no_pod_would_get_are_said(
    node: FakeRoot, instances: tuple[int, ...], wanted: dict[str, str], severity: str, words: str
) -> None:
    mig(node, *instances)
    said = [one for one in reasons(node, replace(GPU_NODE, **wanted)) if one.check == "gpus"]  # type: ignore[arg-type]
    assert [one.severity for one in said] == ([severity] if severity else [])
    assert all(words in one.found for one in said)


@pytest.mark.parametrize(("wanted", "severity"), [("auto", ["error", "error"]), ("cdi", [])])
def test_a_host_of_which_no_pod_would_get_anything_is_rejected(node: FakeRoot, wanted: str, severity: list[str]) -> None:
    mig(node, 7, 8, gpus=2)
    said = reasons(node, replace(GPU_NODE, device_strategy=wanted))
    assert [one.severity for one in said if "in MIG mode" in one.found] == severity


def test_fit_hosts_have_no_reason(node: FakeRoot) -> None:
    assert reasons(node) == ()


def test_a_fit_control_plane_has_no_reason(plane: FakeRoot) -> None:
    assert reasons(plane, CONTROL_PLANE) == ()


def test_a_host_may_be_both(node: FakeRoot) -> None:
    assert reasons(control_plane(node), WantedHost(gpu_node=True, control_plane=True)) == ()


def test_a_control_plane_needs_no_gpus_and_a_gpu_node_no_api_server(node: FakeRoot) -> None:
    assert {check for check, _ in found(node, CONTROL_PLANE)} == {"control_plane"}


def os_release(text: str) -> Callable[[FakeRoot], None]:
    return lambda root: overwrite(root, "/usr/lib/os-release", text)


NEXT = "/lib/modules/6.1.0-99-amd64"
OFF = 'APT::Periodic::Unattended-Upgrade "0";\n'


def next_kernel(root: FakeRoot) -> None:
    """A newer kernel, for which nobody has built a module."""
    root.file("/lib/modules/6.1.0-30-amd64/modules.dep", "updates/dkms/nvidia.ko:\n")
    root.file("/lib/modules/6.1.0-30-amd64/updates/dkms/nvidia.ko", f"\0license=NVIDIA\0version={MENDED}\0")
    root.file(f"{NEXT}/modules.builtin", "")


def unattended(root: FakeRoot) -> None:
    root.file("/etc/apt/apt.conf.d/20auto-upgrades", 'APT::Periodic::Unattended-Upgrade "1";\n')
    root.program("/usr/bin/unattended-upgrade")
    rows = ("install\tinstalled\tnvidia-utils-535", "hold\tinstalled\tlibnvidia-ml1", "install\tinstalled\tnvidia-container-toolkit")
    root.program("/usr/bin/dpkg-query", "\n".join(rows) + "\n")


# What is done to a fit GPU node, and what is then said of it.
FAULTS: list[tuple[str, Callable[[FakeRoot], Any], list[tuple[str, str]]]] = [
    ("Debian 11", os_release('ID=debian\nVERSION_ID="11"\n'), [("os", "error")]),
    ("Debian 13", os_release('ID=debian\nVERSION_ID="13"\n'), [("os", "warning")]),
    ("Debian 14", os_release('ID=debian\nVERSION_ID="14"\n'), [("os", "warning")]),
    ("Debian sid", os_release("ID=debian\n"), [("os", "warning")]),
    ("Ubuntu 24.04", os_release('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n'), [("os", "warning")]),
    ("Ubuntu 20.04", os_release('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="20.04"\n'), [("os", "error")]),
    ("Rocky 9", os_release('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n'), [("os", "warning")]),
    ("CentOS 7", os_release('ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="7"\n'), [("os", "error")]),
    ("Leap 15.6", os_release('ID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="15.6"\n'), [("os", "warning")]),
    ("Linux Mint", os_release('ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="21"\n'), [("os", "warning")]),
    ("Alpine", os_release('ID=alpine\nVERSION_ID=3.20\nPRETTY_NAME="Alpine Linux v3.20"\n'), [("os", "error")]),
    ("ppc64le", lambda r: overwrite(r, "/proc/sys/kernel/arch", "ppc64le"), [("os", "error")]),
    ("no systemd", lambda r: r.at("/run/systemd/system").rmdir(), [("os", "error")]),
    ("old Python", lambda r: [r.at("/usr/bin/python3").unlink(), r.at("/usr/bin/python3.11").unlink()], [("python", "error")]),
    ("no ensurepip", lambda r: r.at("/usr/lib/python3.11/ensurepip/__init__.py").unlink(), [("python", "error")]),
    ("no nvidia-smi", lambda r: r.at("/usr/bin/nvidia-smi").unlink(), [("gpus", "error")]),
    ("no GPUs", lambda r: r.program("/usr/bin/nvidia-smi", "No devices were found", 6), [("gpus", "error")]),
    ("MIG without instances", lambda r: smi(r, "<current_mig>N/A", "<current_mig>Enabled"), [("gpus", "warning")]),
    ("prohibited", lambda r: smi(r, "<compute_mode>Default", "<compute_mode>Prohibited"), [("gpus", "error")]),
    ("exclusive", lambda r: smi(r, "<compute_mode>Default", "<compute_mode>Exclusive_Process"), [("gpus", "warning")]),
    ("no memory", lambda r: smi(r, "<total>16384 MiB", "<total>N/A"), [("gpus", "warning")]),
    ("old driver", lambda r: smi(r, "535.261.03", "384.59"), [("gpus", "error")]),
    (
        "other library",
        lambda r: overwrite(r, "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.178.05  x\n"),
        [("driver", "error")],
    ),
    (
        "vulnerable driver",
        lambda r: overwrite(r, "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  x\n"),
        [("driver", "error"), ("driver", "warning")],
    ),
    ("In Progress", lambda r: smi(r, "<state>N/A", "<state>In Progress"), [("gpus", "error")]),
    ("NVSwitch", lambda r: r.pci("0000:c0:00.0", kind="0x068000", driver="nvidia-nvswitch"), [("gpus", "error")]),
    ("GB200", lambda r: r.pci("0000:05:00.0", device="0x2941"), [("driver", "warning")]),
    ("next kernel", next_kernel, [("driver", "error")]),
    ("next kernel, DKMS", lambda r: [next_kernel(r), r.program("/usr/sbin/dkms"), r.file(f"{NEXT}/build/Makefile")], []),
    (
        "next kernel, akmods",
        lambda r: [
            next_kernel(r),
            r.program("/usr/sbin/akmods"),
            r.file("/usr/src/akmods/nvidia-kmod-580.178.04-1.fc43.src.rpm"),
            r.file("/usr/src/kernels/6.1.0-99-amd64/Makefile"),
        ],
        [],
    ),
    (
        "next kernel, akmods of others",
        lambda r: [next_kernel(r), r.program("/usr/sbin/akmods"), r.file(f"{NEXT}/build/Makefile")],
        [("driver", "error")],
    ),
    ("next kernel with a module", lambda r: [next_kernel(r), r.file(f"{NEXT}/modules.dep", "updates/nvidia.ko:\n")], []),
    ("unattended upgrades", unattended, [("driver", "warning")]),
    ("unattended upgrades, off", lambda r: [unattended(r), r.file("/etc/apt/apt.conf.d/99local", OFF)], []),
    (
        "GPU memory as NUMA nodes",
        lambda r: [
            r.pci("0000:05:00.0", device="0x2342"),
            r.file("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       98304 kB\n"),
        ],
        [("driver", "error")],
    ),
    ("nouveau", lambda r: r.file("/sys/module/nouveau/x"), [("driver", "error")]),
    ("vfio", lambda r: r.pci("0000:0c:00.0", driver="vfio-pci"), [("driver", "warning")]),
    ("dead kubelet", lambda r: r.at("/proc/30/cmdline").unlink(), [("kubelet", "error")]),
    ("old kubelet", lambda r: r.program("/usr/bin/kubelet", "Kubernetes v1.19.16"), [("kubelet", "error"), ("runtime", "error")]),
    ("kubelet without v1", lambda r: r.program("/usr/bin/kubelet", "Kubernetes v1.24.17"), [("kubelet", "error")]),
    ("silent kubelet", lambda r: r.program("/usr/bin/kubelet", "", 1), [("kubelet", "warning")]),
    (
        "gate off",
        lambda r: overwrite(r, "/var/lib/kubelet/config.yaml", "featureGates:\n  DevicePlugins: false\n"),
        [("kubelet", "warning")],
    ),
    ("dead containerd", lambda r: r.at("/proc/20/cmdline").unlink(), [("runtime", "error")]),
    (
        "strange runtime",
        lambda r: overwrite(r, "/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/rkt.sock\n"),
        [("runtime", "error")],
    ),
    (
        "CRI-O",
        lambda r: [
            overwrite(r, "/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n"),
            r.process(21, "/usr/bin/crio"),
        ],
        [],
    ),
    (
        "docker",
        lambda r: [
            overwrite(r, "/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/cri-dockerd.sock\n"),
            r.process(21, "/usr/bin/dockerd"),
        ],
        [],
    ),
    ("NVIDIA's plugin", lambda r: r.process(60, "nvidia-device-plugin", namespace="pid:[3]"), [("managers", "error")]),
    ("NVIDIA's DRA driver", lambda r: r.process(60, "gpu-kubelet-plugin", namespace="pid:[3]"), [("managers", "error")]),
    ("ComputeDomains", lambda r: r.process(60, "compute-domain-kubelet-plugin", namespace="pid:[3]"), []),
    ("HAMi's folder", lambda r: r.file("/usr/local/vgpu/x"), [("managers", "warning")]),
]


FIT = Ground((), (), (), (), False, "", "", True)


@pytest.mark.parametrize(
    ("ground", "wanted", "check", "words"),
    [
        (
            {"read_only": ("/etc/kubernetes/manifests",)},
            CONTROL_PLANE,
            "disk",
            "/etc/kubernetes/manifests on a file system mounted read-only",
        ),
        ({"read_only": ("/etc/kubernetes/manifests",)}, GPU_NODE, "", ""),
        ({"full": ("/opt/gpushare",)}, GPU_NODE, "disk", "too few free inodes for /opt/gpushare"),
        ({"without_room": ("/run (0 MiB free)",)}, GPU_NODE, "disk", "no room in /run (0 MiB free)"),
        ({"no_programs": ("/opt/gpushare",)}, GPU_NODE, "disk", "/opt/gpushare on a file system mounted noexec"),
        ({"server": "https://a:6443", "unreached": "refused"}, GPU_NODE, "api", "no connection from this host to https://a:6443 (refused)"),
        ({"listening": (22, 32766)}, CONTROL_PLANE, "port", "another process listening on port 32766"),
        ({"listening": (22, 32766)}, replace(CONTROL_PLANE, extender_port=1), "", ""),
        ({"listening": (32766,), "extender": True}, CONTROL_PLANE, "", ""),
        ({"listening": (32766,)}, GPU_NODE, "", ""),
        ({"scheduler": False}, CONTROL_PLANE, "scheduler", "no process of kube-scheduler"),
        ({"scheduler": False}, GPU_NODE, "", ""),
        ({"server": "https://a:6443", "ahead": 301.0}, GPU_NODE, "clock", "a clock 301 s ahead of that of the API server https://a:6443"),
        ({"ahead": -9.0}, GPU_NODE, "", ""),
    ],
)
def test_what_would_make_the_run_fail_halfway(tmp_path: Path, ground: dict[str, Any], wanted: WantedHost, check: str, words: str) -> None:
    host = control_plane(gpu(kubelet(debian(FakeRoot(tmp_path))), MENDED))
    facts = gather(Host(str(host)))
    assert facts.ground is not None
    assert facts.ground.scheduler
    judged = judge("h", replace(facts, ground=replace(FIT, **ground)), wanted).reasons
    assert [(one.check, one.severity) for one in judged] == ([(check, "error")] if check else [])
    assert all(words in one.found and one.cure for one in judged)


@pytest.mark.parametrize("field", ["read_only", "full"])
def test_a_runtimes_configuration_that_cannot_be_written_is_a_warning_on_gpu_nodes(tmp_path: Path, field: str) -> None:
    """The run may have nothing to write there."""
    facts = gather(Host(str(control_plane(gpu(kubelet(debian(FakeRoot(tmp_path))), MENDED)))))
    closed = replace(facts, ground=replace(FIT, **{field: ("/etc/containerd",)}))
    (only,) = judge("h", closed, GPU_NODE).reasons
    assert (only.check, only.severity) == ("disk", "warning")
    assert "/etc/containerd" in only.found
    assert judge("h", closed, CONTROL_PLANE).reasons == ()


def test_a_clock_that_is_a_little_off_is_a_warning(tmp_path: Path) -> None:
    facts = gather(Host(str(gpu(kubelet(debian(FakeRoot(tmp_path))), MENDED))))
    (only,) = judge("h", replace(facts, ground=replace(FIT, ahead=-42.4)), GPU_NODE).reasons
    assert (only.check, only.severity, only.found) == ("clock", "warning", "a clock 42 s behind that of the API server ")


@pytest.mark.parametrize(("plant", "expected"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_each_planted_fault_is_said_and_nothing_else(node: FakeRoot, plant: Callable[[FakeRoot], Any], expected: list[Any]) -> None:
    plant(node)
    assert found(node) == expected
    for reason in reasons(node):
        assert reason.found
        assert reason.expected
        assert reason.cure


PLANE_FAULTS: list[tuple[str, Callable[[FakeRoot], Any], list[tuple[str, str]]]] = [
    ("worker", lambda r: [p.unlink() for p in r.at("/etc/kubernetes/manifests/x").parent.iterdir()], [("control_plane", "error")]),
    ("no scheduler", lambda r: r.at("/etc/kubernetes/manifests/kube-scheduler.yaml").unlink(), [("control_plane", "error")]),
    ("no kubectl", lambda r: r.at("/usr/bin/kubectl").unlink(), [("control_plane", "error")]),
    ("no kubeconfig", lambda r: r.at("/etc/kubernetes/admin.conf").unlink(), [("control_plane", "error")]),
    (
        "kubespray",
        lambda r: [r.file("/etc/kubernetes/kubelet.env"), r.file("/etc/kubernetes/kubelet-config.yaml")],
        [("distribution", "warning")],
    ),
    ("k3s", lambda r: rancher(r, "k3s", "server"), [("distribution", "error")]),
]


@pytest.mark.parametrize(("plant", "expected"), [fault[1:] for fault in PLANE_FAULTS], ids=[fault[0] for fault in PLANE_FAULTS])
def test_each_fault_of_a_control_plane(plane: FakeRoot, plant: Callable[[FakeRoot], Any], expected: list[Any]) -> None:
    plant(plane)
    assert found(plane, CONTROL_PLANE) == expected


def test_paths_of_the_inventory_are_followed(plane: FakeRoot) -> None:
    for path in ("/usr/bin/kubectl", "/etc/kubernetes/admin.conf"):
        plane.at(path).unlink()
    assert found(plane, replace(CONTROL_PLANE, kubectl="/opt/bin/kubectl", kubeconfig="/root/config")) == []
    assert found(plane, replace(CONTROL_PLANE, scheduler_manifest="/x", kubectl="/opt/k", kubeconfig="/c")) == [("control_plane", "error")]


def test_what_a_host_lacks_for_its_python_is_no_reason_where_the_role_installs_it(node: FakeRoot) -> None:
    node.at("/usr/lib/python3.11/ensurepip/__init__.py").unlink()
    managed = replace(GPU_NODE, prerequisites_managed=True)
    (lacking,) = reasons(node)
    assert (lacking.severity, lacking.cure) == ("error", "install python3-venv, or set gpushare_prerequisites: managed")
    (coming,) = reasons(node, managed)
    assert (coming.severity, coming.cure[:13]) == ("warning", "nothing to do")
    # A Python that somebody names is theirs, and for an unknown distribution nothing is known.
    assert [one.severity for one in reasons(node, replace(managed, python="python3"))] == ["error"]
    overwrite(node, "/etc/os-release", "ID=gentoo\nVERSION_ID=2\n")
    assert ("python", "error") in found(node, managed)


def test_a_python_by_name(node: FakeRoot) -> None:
    node.program("/usr/bin/python3.12", "Python 3.12.1")
    assert found(node, replace(GPU_NODE, python="python3.12")) == [("python", "error")]  # it has no ensurepip
    assert found(node, replace(GPU_NODE, python="python3.13")) == [("python", "error")]
    assert found(node, replace(GPU_NODE, python="python3")) == []
    assert found(node, replace(GPU_NODE, python="/opt/python/bin/python3.13")) == []


def test_too_little_space(node: FakeRoot) -> None:
    facts = gather(Host(str(node)))
    assert facts.disk is not None
    judged = judge("h", replace(facts, disk=replace(facts.disk, free_mib=499)), GPU_NODE)
    assert [reason.line() for reason in judged.reasons] == [
        "h: disk: found 499 MiB free for /opt/gpushare; expected 500 MiB or more; free some space, or put gpushare_install_dir elsewhere"
    ]


@pytest.mark.parametrize(
    ("isolation", "limited", "rejected"),
    [("none", ["u1"], True), ("watch", ["u1"], True), ("auto", ["u1"], False), ("driver", ["u1"], False), ("none", [], False)],
)
def test_limits_of_the_driver_are_left_without_pods_only(node: FakeRoot, isolation: str, limited: list[str], rejected: bool) -> None:
    facts = gather(Host(str(node)))
    assert facts.sharing is not None
    with_pods = replace(facts, sharing=replace(facts.sharing, limited=tuple(limited)))
    judged = judge("h", NodeFacts.from_dict(with_pods.as_dict()), replace(GPU_NODE, isolation=isolation))
    assert [reason.line() for reason in judged.reasons] == rejected * [
        f"h: isolation: found 1 pods whose memory the driver limits (UID u1), with gpushare_isolation: {isolation}; expected no such pod, "
        "because their limits would stay; drain the node and run again, or keep gpushare_isolation as it was"
    ]


@pytest.mark.parametrize(
    ("isolation", "each", "memory", "rejected"),
    [("mps", 1024, 4096, False), ("mps", 1025, 4096, True), ("mps", 1025, None, False), ("auto", 1025, 4096, False)],
)
def test_the_shared_memory_of_all_gpus_fits_the_host(node: FakeRoot, isolation: str, each: int, memory: int | None, rejected: bool) -> None:
    if memory is not None:
        node.file("/proc/meminfo", f"MemTotal:       {memory * 1024} kB\nMemFree:  1 kB\n")
    assert reasons(node, replace(GPU_NODE, isolation=isolation, mps_shared_memory_mib=each)) == rejected * (
        Finding(
            "isolation",
            "gpushare_mps_shared_memory_mib: 1025 for each of 2 GPUs, on a host with 4096 MiB",
            "at most half of the memory for all GPUs together",
            "lower gpushare_mps_shared_memory_mib",
            host="h",
        ),
    )


def test_a_driver_that_would_have_to_be_built_under_secure_boot(node: FakeRoot) -> None:
    for path in ("/proc/driver/nvidia/version", "/etc/ld.so.cache", "/usr/bin/nvidia-smi"):
        node.at(path).unlink()
    node.file("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\6\0\0\0\1")
    assert found(node) == [("gpus", "error"), ("secure_boot", "warning"), ("kernel_headers", "warning")]
    assert "(2 NVIDIA GPUs on the PCI bus)" in reasons(node)[0].found


def test_a_version_mismatch_is_said_once(node: FakeRoot) -> None:
    node.program("/usr/bin/nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch", 18)
    overwrite(node, "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.178.05  x\n")
    assert found(node) == [("gpus", "error")]


def test_an_empty_host_has_every_reason_at_once(tmp_path: Path) -> None:
    assert {check for check, severity in found(FakeRoot(tmp_path), WantedHost(True, True)) if severity == "error"} == {
        "os",
        "python",
        "gpus",
        "kubelet",
        "control_plane",
    }


def test_the_inventory_as_a_whole(golden: Golden) -> None:
    judged = [
        Judgement("a", "n1", ()),
        Judgement("b", "n1", ()),
        Judgement("c", "n2", ()),
        unreachable("d", "timed out"),
        unreachable("e", "x"),
    ]
    groups = {"all": ["a", "b", "c"], "kube_control_planes": ["c"], "gpu_nodes": ["a"]}
    both = judge_inventory(judged, groups, "kube_control_plane", "gpu_nodes")
    assert [(reason.check, reason.severity) for reason in both] == [("groups", "error"), ("node_names", "error")]
    golden(both[0].found)
    assert both[1].found == "a, b which are all the node 'n1'"
    assert judge_inventory(judged[2:], groups, "kube_control_planes", "gpu_nodes", {"a": "", "b": "", "c": "0" * 32}) == []
    clones = judge_inventory(judged[2:], groups, "kube_control_planes", "gpu_nodes", {"a": "1" * 32, "b": "0" * 32, "c": "1" * 32})
    assert [(one.check, one.severity, one.found) for one in clones] == [
        ("machine_id", "warning", f"a, c with the same /etc/machine-id {'1' * 32}")
    ]


def test_accepted_checks_become_warnings_and_errors_come_first() -> None:
    given_reasons = [
        Finding("os", "f", "e", "c", host="b"),
        Finding("disk", "f", "e", "c", "warning", "a"),
        Finding("gpus", "f", "e", "c", host="c"),
    ]
    after = accept(given_reasons, ["os"])
    assert [(reason.host, reason.check, reason.severity) for reason in after] == [
        ("c", "gpus", "error"),
        ("a", "disk", "warning"),
        ("b", "os", "warning"),
    ]
    assert summary(after) == "1 problem, nothing was changed"
    assert summary(accept(given_reasons, [])) == "2 problems, nothing was changed"


def test_what_only_follows_is_no_problem_of_its_own_and_lost_hosts_are_counted() -> None:
    judged = [unreachable("cp1", "no route"), unreachable("cp2", "no route")]
    silent = [Answer("cp1", None), Answer("cp2", None)]
    given_reasons = [*(one for judgement in judged for one in judgement.reasons), *judge_cluster(judged, silent)]
    after = accept(given_reasons, [])
    assert [(one.host, one.check, one.because) for one in after] == [
        ("cp1", "unreachable", ""),
        ("cp2", "unreachable", ""),
        ("", "api", "unreachable"),
    ]
    assert summary(after) == "1 problem, nothing was changed (2 hosts unreachable)"
    shown = blocks(after)
    assert shown.startswith("✗ unreachable  cp1, cp2\n    found     no connection (no route)\n")
    assert shown.endswith("(follows from unreachable)")
    # The cause is accepted: what followed from it is the problem then.
    assert next((one.check, one.severity, one.because) for one in accept(given_reasons, ["unreachable"])) == ("api", "error", "")


def test_what_follows_from_a_distribution_that_no_run_on_hosts_knows_is_left_out() -> None:
    """k0s: a control plane has no program kubectl and is no node."""
    given_reasons = [
        Finding("distribution", "Kubernetes by k0s", "kubeadm", "c", host="cp1"),
        Finding("api", "no answer from the API server (there is no program kubectl)", "e", "c", host="cp1"),
        Finding("node", "no node 'cp1'", "e", "c", host="cp1"),
        Finding("disk", "1 MiB free", "e", "c", host="cp1"),
        Finding("kubelet", "no kubelet", "e", "c", host="gpu1"),
    ]
    assert [(one.host, one.check) for one in accept(given_reasons, [])] == [("cp1", "disk"), ("cp1", "distribution"), ("gpu1", "kubelet")]
    # Where it is accepted, the others are what stops the run.
    assert len(accept(given_reasons, ["distribution"])) == 5


def test_judgements_survive_the_way_through_json() -> None:
    for judgement in (unreachable("a", "x"), not_gathered("b", "y"), Judgement("c", "n", ())):
        assert Judgement.from_dict(json.loads(json.dumps(judgement.as_dict()))) == judgement


KNOWN = ["gpushare_memory_unit", "gpushare_extender_port", "gpushare_python"]


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("gpushare_memory_units", "did you mean gpushare_memory_unit?"),
        ("gpushare_extender_prot", "did you mean gpushare_extender_port?"),
        ("gpushare_zzz", "remove it; docs/operate/variables.md lists all"),
    ],
)
def test_unknown_variables(name: str, cure: str) -> None:
    (reason,) = unknown("h", ["ansible_host", "__gpushare_x", name, *KNOWN], KNOWN)
    assert (reason.check, reason.severity, reason.cure) == ("variables", "error", cure)
    assert name in reason.found


PATH = {"type": "path", "default": "/opt/gpushare"}
INT = {"type": "int", "default": 60}


@pytest.mark.parametrize(
    ("name", "spec", "good", "bad"),
    [
        ("gpushare_extender_port", {"type": "int"}, [1, 32766, 65535], [0, -1, 65536]),
        ("gpushare_extender_weight", {"type": "int"}, [1, 1000], [0, -5, 1001]),
        ("gpushare_most_nodes", {"type": "int"}, [0, 1, 100000], [-1, 100001]),
        ("gpushare_extender_http_timeout", {"type": "str"}, ["1s", "800ms", "0.5s"], ["0s", "1", "", "1s ", "fast", "-1s"]),
        (
            "gpushare_api_server",
            {"type": "str"},
            ["", "https://10.0.0.1:6443", "https://[::1]:6443"],
            ["10.0.0.1:6443", "https://", "http://x"],
        ),
        ("gpushare_install_dir", PATH, ["/opt/x", "/a/.b_c@d/"], ["opt/x", "", "/", "/a b", "/a/../b", "/a'; x", "/%h", "/$x", "/a\nb"]),
        ("gpushare_start_timeout", INT, [1, 600], [0, -1]),
        ("gpushare_memory_unit", {"type": "str"}, ["anything"], []),
        ("gpushare_mps_canary_seconds", {"type": "int"}, [0, 60, 86400], [-1, 86401]),
        ("gpushare_mps_shared_memory_mib", {"type": "int"}, [16, 1024, 2**20], [0, 15, -1, 2**20 + 1]),
        ("gpushare_percentage_of_nodes_to_score", {"type": "int"}, [-1, 0, 100], [-2, 101]),
        ("gpushare_serial", {"type": "raw"}, [1, "5", "25%", "100%", [1, "50%"]], [0, "0", "0%", "101%", "a third", [], [1, "x"], None]),
        ("gpushare_max_fail_percentage", {"type": "int"}, [0, 100], [-1, 101]),
        ("gpushare_token_seconds", {"type": "int"}, [600, 604800], [599, 2**32 + 1]),
        ("gpushare_metrics_address", {"type": "str"}, ["", "127.0.0.1", "fd00::5", "0.0.0.0"], ["gpu1", "10.0.0.1:9440", "[::1]", " "]),
        ("gpushare_metrics_plugin_port", {"type": "int"}, [0, 1024, 65535], [-1, 80, 65536]),
        ("gpushare_metrics_token", {"type": "str"}, ["", "x" * 16, "~!" * 8], ["short", "x" * 16 + " y", "ä" * 16, "x" * 16 + "\n"]),
        ("gpushare_dashboard_address", {"type": "str"}, ["127.0.0.1", "::", "fd00::5"], ["", "gpu1", "10.0.0.1:9442"]),
        ("gpushare_dashboard_port", {"type": "int"}, [1024, 65535], [0, 443, 65536]),
        ("gpushare_dashboard_token", {"type": "str"}, ["", "x" * 16], ["short", "x" * 16 + " y"]),
        (
            "gpushare_dashboard_host_names",
            {"type": "list"},
            [[], ["gpus.example.org", "G1"]],
            [["a b"], ["a:1"], ["-a"], ["a/b"], ["x" * 254], ["a"] * 61, ["$(id)"], ["a\n"]],
        ),
        (
            "gpushare_cluster_dashboard_host_names",
            {"type": "list"},
            [[], ["gpus.example.org"], ["a"] * 57],
            [["gpus.example.org:8443"], ["*.example.org"], ["a..b"], ["a"] * 58],
        ),
        (
            "gpushare_dashboard_prometheus",
            {"type": "str"},
            ["", "http://prometheus.monitoring:9090", "https://[fd00::1]:9090/sub/"],
            ["prometheus:9090", "http://a/?x=1", "http://a b/", "http://a;id", "file:///etc/passwd"],
        ),
        (
            "gpushare_prometheus",
            {"type": "str"},
            ["", "https://prometheus.monitoring.svc:9090/team-a"],
            ["prometheus:9090", "http://a b", "http://me:s3cret@p:9090"],
        ),
        ("gpushare_uninstall_wait", {"type": "int"}, [0, 330], [-1, 86401]),
        ("gpushare_take_over_timeout", INT, [1, 600], [0, -1]),
        ("gpushare_dashboard_title", {"type": "str"}, ["", "gpu-1", "two 'words'; $HOME", "x" * 80], ["x" * 81, "a\0b"]),
        ("gpushare_dashboard_tls_cert", {"type": "path", "default": ""}, ["", "/etc/ssl/a.crt"], ["a.crt", "/etc/../a", "/a b"]),
        ("gpushare_driver_root", {}, ["", "/run/nvidia/driver"], ["/", "run", "/a/../b", "/a b"]),
        ("gpushare_cdi_dir", {"type": "path", "default": "/var/run/cdi"}, ["/run/cdi"], ["cdi", ""]),
        ("gpushare_selinux_type", {}, ["", "spc_t"], ["spc_t ", "A"]),
        (
            "gpushare_node_selector",
            {},
            [{}, {"nvidia.com/gpu.present": "true", "a": ""}],
            [{"a": True}, {"a": 1}, {"a b": "c"}, {1: "a"}, {"a": "b c"}, {f"a{n}": "" for n in range(51)}],
        ),
        (
            "gpushare_tolerations",
            {},
            [[], [{"operator": "Exists"}, {"key": "a/b", "value": "c", "effect": "NoSchedule", "tolerationSeconds": 3}]],
            [[{}], [{"operator": "exists"}], [{"effect": "No"}], [{"key": 1}], [{"name": "a"}], [{"key": "a", "tolerationSeconds": "3"}]],
        ),
        (
            "gpushare_scheduler_lease",
            {"type": "str"},
            ["kube-system/kube-scheduler", "none", "a/b.c"],
            ["", "kube-scheduler", "a/b/c", "A/b"],
        ),
        (
            "gpushare_verify_namespace",
            {"type": "str", "default": "default"},
            ["default", "team-1", "1", "a" * 63],
            ["", "Team", "-a", "a-", "a.b", "a/b", "--all", "a\n", "a" * 64],
        ),
    ],
)
def test_impossible_values(name: str, spec: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if impossible("h", {name: value}, {name: spec})] == []
    assert [value for value in bad if not any(r.severity == "error" for r in impossible("h", {name: value}, {name: spec}))] == []


def test_a_secret_is_not_repeated(golden: Golden) -> None:
    (reason,) = impossible("h", {"gpushare_metrics_token": "pw"}, {"gpushare_metrics_token": {"type": "str", "no_log": True}})
    assert "pw" not in str(reason)
    assert "16 to 1024 characters" in reason.expected
    golden(shown("gpushare_pip_extra_args", {"--proxy": "a:b@c"}, {"type": "list"}))
    (reason,) = impossible("h", {"gpushare_prometheus": "http://me:s3cret@p:9090"}, {})
    assert reason.found == "gpushare_prometheus: 'http://***@p:9090'"
    # The repository itself is what people need to see.
    assert shown("gpushare_driver_repository", "http://a:b@c/d e", {"type": "str"}) == "'http://***@c/d e'"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ""),
        ({"gpushare_metrics_token": "x" * 16}, ""),
        ({"gpushare_metrics_address": "127.0.0.1"}, ""),
        ({"gpushare_metrics_address": "::1"}, ""),
        ({"gpushare_metrics_address": "10.0.0.5", "gpushare_metrics_token": "x" * 16}, ""),
        ({"gpushare_metrics_address": "nonsense"}, ""),  # said of the value itself
        ({"gpushare_metrics_address": "10.0.0.5"}, "without gpushare_metrics_token"),
        ({"gpushare_metrics_address": "0.0.0.0"}, "without gpushare_metrics_token"),
        ({"gpushare_metrics_address": "::1", "gpushare_metrics_plugin_port": 9441}, "port 9441 for the metrics of both daemons"),
        ({"gpushare_metrics_address": "::1", "gpushare_metrics_extender_port": 32766}, "port 32766 for the extender and for its metrics"),
        ({"gpushare_metrics_address": "::1", "gpushare_metrics_extender_port": 0, "gpushare_metrics_plugin_port": 0}, ""),
        ({"gpushare_dashboard_state": "absent", "gpushare_dashboard_tls": False, "gpushare_dashboard_address": "10.0.0.5"}, ""),
        ({"gpushare_dashboard_state": "present"}, "present without gpushare_dashboard_token"),
        ({"gpushare_node_schedule": "mps", "gpushare_isolation": "mps"}, ""),
        ({"gpushare_node_schedule": "core_mem", "gpushare_isolation": "mps"}, ""),
        ({"gpushare_node_schedule": "cgpu", "gpushare_isolation": "driver"}, ""),
        ({"gpushare_deploy_mode": "systemd"}, ""),
        ({"gpushare_deploy_mode": "kubernetes"}, ""),
        ({"gpushare_deploy_mode": "kubernetes", "gpushare_isolation": "mps"}, "kubernetes with gpushare_isolation: mps"),
        ({**SERVED, "gpushare_deploy_mode": "kubernetes"}, "kubernetes with gpushare_dashboard_state: present"),
        (BY_CLAIMS, ""),
        ({**BY_CLAIMS, "gpushare_unhealthy": "evict"}, ""),
        ({"gpushare_unhealthy": "evict"}, "gpushare_unhealthy: evict without gpushare_backend: dra"),
        ({**BY_CLAIMS, "gpushare_device_strategy": "cdi", "gpushare_openshift": False}, ""),
        ({"gpushare_backend": "dra"}, "gpushare_backend: dra with services on hosts"),
        ({**BY_CLAIMS, "gpushare_device_strategy": "envvar"}, "dra with gpushare_device_strategy: envvar"),
        ({**BY_CLAIMS, "gpushare_overuse": "evict"}, "dra with gpushare_overuse: evict"),
        ({**BY_CLAIMS, "gpushare_scheduler": "default"}, "dra with gpushare_scheduler: default"),
        ({**BY_CLAIMS, "gpushare_openshift": True}, "dra with gpushare_openshift: true"),
        ({**BY_CLAIMS, "gpushare_cluster_dashboard": True}, ""),
        ({"gpushare_node_schedule": "share"}, ""),
        ({"gpushare_node_schedule": ""}, ""),
        ({"gpushare_node_schedule": "mps"}, "gpushare_node_schedule: mps with gpushare_isolation: auto"),
        ({"gpushare_node_schedule": "core_mem", "gpushare_isolation": "driver"}, "core_mem with gpushare_isolation: driver"),
        ({"gpushare_node_schedule": "cgpu", "gpushare_isolation": "mps"}, "cgpu with gpushare_isolation: mps"),
        ({"gpushare_node_schedule": "share", "gpushare_isolation": "mps"}, "share with gpushare_isolation: mps"),
        (SERVED, ""),
        ({**SERVED, "gpushare_dashboard_address": "10.0.0.5"}, ""),
        ({**SERVED, "gpushare_dashboard_address": "nonsense"}, ""),
        ({**SERVED, "gpushare_dashboard_address": "127.0.0.9", "gpushare_dashboard_tls": False}, ""),
        ({**SERVED, "gpushare_dashboard_address": "10.0.0.5", "gpushare_dashboard_tls": False}, "with gpushare_dashboard_tls: false"),
        ({**SERVED, "gpushare_dashboard_address": "::"}, "'::' without gpushare_dashboard_host_names"),
        ({**SERVED, "gpushare_dashboard_address": "::", "gpushare_dashboard_host_names": ["a"]}, ""),
        ({**SERVED, "gpushare_dashboard_tls_cert": "/a.crt"}, "one of gpushare_dashboard_tls_cert and"),
        ({**SERVED, "gpushare_dashboard_tls_cert": "/a.crt", "gpushare_dashboard_tls_key": "/a.key"}, ""),
        ({**SERVED, "gpushare_dashboard_tls_cert": "/a.pem", "gpushare_dashboard_tls_key": "/a.pem"}, ""),
        ({**SERVED, "gpushare_dashboard_tls_cert": "/c/a", "gpushare_dashboard_tls_key": "/k/a"}, "two files of one name"),
        (
            {**SERVED, "gpushare_dashboard_tls": False, "gpushare_dashboard_tls_cert": "/a", "gpushare_dashboard_tls_key": "/b"},
            "a certificate with gpushare_dashboard_tls: false",
        ),
        ({**SERVED, "gpushare_dashboard_port": 32766}, "port 32766 in gpushare_dashboard_port and gpushare_extender_port"),
        ({**SERVED, "gpushare_dashboard_port": 9441}, ""),
        (
            {**SERVED, "gpushare_dashboard_port": 9441, "gpushare_metrics_address": "::1"},
            "port 9441 in gpushare_dashboard_port and gpushare_metrics_extender_port",
        ),
    ],
)
def test_values_that_cannot_be_together(values: dict[str, Any], words: str) -> None:
    found_ = together("h", values)
    assert len(found_) == bool(words)
    assert all(words in reason.found and reason.severity == "error" for reason in found_)


def test_a_note_says_what_the_taint_of_gpu_nodes_does() -> None:
    (reason,) = together("h", {"gpushare_taint_gpu_nodes": True})
    assert (reason.severity, "gpushare.kubernetes/gpu:PreferNoSchedule" in reason.found) == ("warning", True)
    assert together("h", {"gpushare_taint_gpu_nodes": False}) == []


def test_a_long_http_timeout_is_only_warned_of() -> None:
    (reason,) = impossible("h", {"gpushare_extender_http_timeout": "1.5s"}, {})
    assert reason.severity == "warning"


@pytest.mark.parametrize(("text", "value"), [("1m30s", 90), ("1h", 3600), ("250ms", 0.25), ("1.5s", 1.5), ("100us", 1e-4)])
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@given(st.text())
def test_no_duration_is_an_exception(text: str) -> None:
    value = seconds(text)
    assert value is None or value >= 0


NODES = ["cp1", "gpu1"]


SUDO = "[sudo via ansible, key=x] password:"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"msg": "Incorrect sudo password"}, "Incorrect sudo password"),
        ({"msg": "Missing sudo password"}, "Missing sudo password"),
        # Without a terminal, and with one.
        (
            {"module_stderr": "ops is not in the sudoers file.\n", "module_stdout": "", "msg": "MODULE FAILURE"},
            "ops is not in the sudoers file.",
        ),
        (
            {"module_stderr": "Shared connection closed.\n", "module_stdout": f"{SUDO}\r\nops is not in the sudoers file.\r\n"},
            # Its end: 80 characters of what a host has said.
            "…" + f"{SUDO} ops is not in the sudoers file. Shared connection closed."[-80:],
        ),
        ({"module_stderr": "su: Authentication failure\n", "module_stdout": ""}, "su: Authentication failure"),
        ({"module_stderr": "", "module_stdout": "Password: \r\nsu: Permission denied\r\n"}, "Password: su: Permission denied"),
        ({"module_stderr": "doas: Authentication failed\n", "module_stdout": ""}, "doas: Authentication failed"),
        ({"module_stderr": "doas: Operation not permitted\n", "module_stdout": ""}, "doas: Operation not permitted"),
        ({"module_stderr": "sudo: a password is required\n", "module_stdout": ""}, "sudo: a password is required"),
        (
            {"module_stderr": "Sorry, user ops is not allowed to execute '/bin/sh' as root on gpu1.", "msg": "x"},
            "Sorry, user ops is not allowed",
        ),
    ],
)
def test_a_user_who_does_not_become_root_is_named_with_the_cure(result: dict[str, str], words: str) -> None:
    (reason,) = not_gathered("gpu1", failure_of(result)).reasons
    assert (reason.host, reason.check, reason.severity) == ("gpu1", "become", "error")
    assert reason.found.startswith(f"no way to root ({words}")
    assert "ansible_become_password" in reason.cure


def test_a_module_that_fails_as_root_is_no_matter_of_sudo() -> None:
    (reason,) = not_gathered("gpu1", failure_of({"module_stderr": "/usr/bin/python3: not found", "msg": "MODULE FAILURE"})).reasons
    assert (reason.check, "/usr/bin/python3: not found" in reason.found) == ("facts", True)


@pytest.mark.parametrize(
    ("result", "become", "check"),
    [
        ({"module_stdout": "", "module_stderr": "", "msg": "MODULE FAILURE"}, "su", "become"),
        ({"module_stdout": "\r\n", "module_stderr": "Shared connection closed.", "msg": "MODULE FAILURE"}, "doas", "become"),
        ({"module_stdout": "", "module_stderr": "", "msg": "MODULE FAILURE"}, "", "facts"),
        # It was root, and found no Python.
        ({"module_stdout": "", "module_stderr": "/bin/sh: 1: /usr/bin/python3: not found"}, "sudo", "facts"),
        ({"module_stdout": "Traceback (most recent call last):", "module_stderr": ""}, "sudo", "facts"),
        ({"msg": "the module said so itself"}, "sudo", "facts"),
        # What sudo says besides.
        ({"module_stdout": "x", "module_stderr": "sudo: unable to resolve host gpu1: Name or service not known"}, "sudo", "facts"),
    ],
)
def test_a_module_that_printed_nothing_may_never_have_been_root(result: dict[str, str], become: str, check: str, golden: Golden) -> None:
    (reason,) = not_gathered("gpu1", failure_of(result), become if is_silent(result) else "").reasons
    assert reason.check == check
    if check == "become":
        golden(reason.cure)
        assert "ansible_become_method" in reason.cure
        assert "ansible_python_interpreter" in reason.cure


def of_cluster(*answers: dict[str, object], hosts: tuple[str, ...] = ("cp1", "gpu1")) -> list[tuple[str, str, str]]:
    """(host, check, what was found) of what the control planes answered."""
    judged = [Judgement(host, host, ()) for host in hosts]
    return [(one.host, one.check, one.found) for one in judge_cluster(judged, [Answer.of(answer) for answer in answers])]


def answer(plane: str, nodes: list[str], version: str = "v1.36.3", may_grant: bool = True) -> dict[str, object]:
    return {"item": plane, "nodes": nodes, "version": version, "may_grant": may_grant}


def test_a_cluster_that_answers_and_has_every_host_is_fit() -> None:
    assert of_cluster(answer("cp1", NODES)) == []
    assert of_cluster(answer("cp1", NODES, "v1.30.0")) == []
    # Another control plane can be asked, and this one is not in the run.
    assert of_cluster({"item": "cp0", "msg": "no route", "unreachable": True}, answer("cp1", NODES)) == []


def test_a_host_that_is_no_node_is_rejected_alone() -> None:
    (one,) = of_cluster(answer("cp1", NODES), hosts=("cp1", "gpu1", "gpu9"))
    assert one == ("gpu9", "node", "no node 'gpu9' in the cluster of cp1")


def test_two_clusters_in_one_inventory_are_told_apart() -> None:
    found = of_cluster(answer("cp1", NODES), answer("cp2", ["cp2", "gpu2"]), hosts=("cp1", "cp2", "gpu1", "gpu2"))
    assert [(host, check) for host, check, _seen in found] == [("cp2", "node"), ("gpu2", "node")]


def test_hosts_of_two_clusters_are_told_apart_by_their_authorities_although_their_nodes_have_the_same_names(golden: Golden) -> None:
    (reason,) = judge_authorities({"a-cp1": ["a" * 64], "a-gpu1": ["a" * 64], "b-cp1": ["b" * 64], "b-gpu1": ["b" * 64], "new": []})
    assert (reason.host, reason.check, reason.severity) == ("", "clusters", "error")
    assert reason.found == "hosts of 2 clusters: a-cp1, a-gpu1 (authority aaaaaaaaaaaa); b-cp1, b-gpu1 (authority bbbbbbbbbbbb)"
    golden(reason.cure)


def test_an_authority_that_is_being_exchanged_makes_no_second_cluster() -> None:
    old, both, new = ["a"], ["a", "b"], ["b"]
    for order in (("x", "y", "z"), ("y", "z", "x"), ("z", "x", "y")):
        assert judge_authorities(dict(zip(order, (old, both, new), strict=True))) == []
    assert judge_authorities({}) == judge_authorities({"x": old}) == []


def test_many_hosts_of_a_cluster_are_counted() -> None:
    (reason,) = judge_authorities({**{f"gpu{number}": ["a"] for number in range(6)}, "other": ["b"]})
    assert reason.found == "hosts of 2 clusters: gpu0, gpu1, gpu2, gpu3 and 2 more (authority a); other (authority b)"


def test_an_answer_without_authorities_is_one_of_an_older_release() -> None:
    assert Answer.of(answer("cp1", NODES)).authorities == ()
    assert Answer.of({**answer("cp1", NODES), "authorities": ["a"]}).authorities == ("a",)


def test_pods_of_gpushare_in_the_cluster_are_the_other_mode() -> None:
    pods = {**answer("cp1", NODES), "in_cluster": ["gpushare-system/gpushare-device-plugin"]}
    assert of_cluster(pods) == [("cp1", "deploy_mode", "gpushare as pods (DaemonSet gpushare-system/gpushare-device-plugin)")]
    assert judge_cluster([Judgement("cp1", "cp1", ())], [Answer.of(pods)], pods=True) == []


@pytest.mark.parametrize("version", ["v1.24.17", "v1.22.2+rke2r1", "v1.20.0"])
def test_a_cluster_whose_scheduler_could_not_read_our_configuration_is_rejected(version: str) -> None:
    assert of_cluster(answer("cp1", NODES, version)) == [("cp1", "kubernetes", f"Kubernetes {version}")]


def test_a_control_plane_that_cannot_ask_or_may_not_is_rejected() -> None:
    gone = {"item": "cp1", "failed": True, "msg": "kubectl get failed: rejected"}
    assert of_cluster(gone) == [("cp1", "api", "no answer from the API server (kubectl get failed: rejected)")]
    assert of_cluster(gone, answer("cp2", [*NODES, "cp2"]), hosts=("cp1", "cp2"))[0][:2] == ("cp1", "api")
    # A run that is limited to a GPU node, and nobody to be asked.
    assert of_cluster(gone, hosts=("gpu1",))[0][:2] == ("cp1", "api")
    assert of_cluster(answer("cp1", NODES, may_grant=False)) == [("cp1", "api", "a kubeconfig that may not create ClusterRoleBindings")]


def test_a_control_plane_with_a_reason_of_its_own_is_not_asked_for_a_kubeconfig() -> None:
    wrong = not_gathered("cp1", "Incorrect sudo password")
    gone = Answer.of({"item": "cp1", "failed": True, "msg": "Incorrect sudo password"})
    # Where the reason of the host is accepted, this one is left.
    assert [(one.host, one.check, one.found) for one in judge_cluster([wrong], [gone])] == [("", "api", "no control plane to ask (cp1)")]
    assert judge_cluster([wrong], [gone, Answer.of(answer("cp2", NODES))]) == []


@pytest.mark.parametrize("version", ["v1.25.0", "v1.29.4+k3s1"])
@pytest.mark.parametrize(
    ("without", "evicts", "severity", "found"),
    [
        (False, [], "error", "has no ValidatingAdmissionPolicy"),
        (False, ["gpushare_overuse"], "error", "has no ValidatingAdmissionPolicy"),
        (True, [], "warning", "has no ValidatingAdmissionPolicy"),
        (True, ["gpushare_overuse"], "error", "and gpushare_overuse: evict"),
        (True, ["gpushare_overuse", "gpushare_unstartable"], "error", "and gpushare_overuse and gpushare_unstartable: evict"),
    ],
)
def test_an_api_server_without_policies_is_rejected_unless_the_inventory_accepts_it(
    version: str, without: bool, evicts: list[str], severity: str, found: str
) -> None:
    judged = [Judgement("cp1", "cp1", ())]
    (reason,) = judge_cluster(judged, [Answer.of(answer("cp1", NODES, version))], without, evicts)
    assert (reason.host, reason.check, reason.severity) == ("cp1", "policies", severity)
    assert reason.found.endswith(found)
    assert judge_cluster(judged, [Answer.of(answer("cp1", NODES, "v1.30.0"))], without, evicts) == []


@pytest.mark.parametrize(("version", "fits"), [("2.17.14", False), ("2.18.0rc1", True), ("2.21.1", True), ("3.0.0", True), ("1.9", False)])
def test_a_controller_with_an_older_ansible_is_rejected(version: str, fits: bool) -> None:
    found = [(one.host, one.check, one.severity) for one in judge_controller(version)]
    assert found == ([] if fits else [("", "controller", "error")])


def test_the_oldest_ansible_is_that_of_the_collection() -> None:
    required = yaml.safe_load((REPOSITORY / "meta/runtime.yml").read_text())["requires_ansible"]
    assert required == f">={'.'.join(map(str, OLDEST_ANSIBLE))}.0"


def test_selinux_that_denies_is_a_warning(tmp_path: Path) -> None:
    root = gpu(kubelet(debian(FakeRoot(tmp_path))), MENDED)
    root.file("/sys/fs/selinux/enforce", "1")
    judged = judge("h", gather(Host(str(root))), GPU_NODE)
    assert [(one.check, one.severity) for one in judged.reasons] == [("selinux", "warning")]
    root.file("/sys/fs/selinux/enforce", "0")
    assert judge("h", gather(Host(str(root))), GPU_NODE).reasons == ()


def test_a_driver_in_the_operators_container_is_not_to_be_installed_over(tmp_path: Path) -> None:
    root = gpu(kubelet(debian(FakeRoot(tmp_path))))
    root.at("/usr/bin/nvidia-smi").unlink()
    root.file("/run/nvidia/driver/usr/bin/nvidia-smi", "")
    (one,) = (reason for reason in reasons(root) if reason.check == "gpus")
    assert "GPU Operator" in one.found
    assert one.cure.startswith("this release needs the driver on the host. Do not install one beside")


PLANES, GPUS = ["cp1", "cp2"], ["gpu1", "gpu2", "gpu3", "gpu4", "gpu5"]
PODS = {"gpushare_deploy_mode": "kubernetes"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, []),
        ({"cp1": {"gpushare_placement": "spread"}, "cp2": {"gpushare_placement": "spread"}}, []),
        (
            {"cp1": {"gpushare_placement": "spread"}},
            ["gpushare_placement: 'spread' on cp1; its default on cp2; expected one value on all control planes"],
        ),
        # What the GPU nodes have of it does not matter.
        ({"gpu1": {"gpushare_placement": "spread"}}, []),
        ({"gpu1": {"gpushare_install_dir": "/srv"}}, []),
        (
            {"gpu2": {"gpushare_serial": 2}},
            ["gpushare_serial: its default on gpu1, gpu3, gpu4 and 1 more; 2 on gpu2; expected one value on all GPU nodes"],
        ),
        ({name: {"gpushare_api_server": "https://a"} for name in PLANES}, []),
        (
            {"gpu1": {"gpushare_api_server": "https://a"}},
            ["gpushare_api_server: 'https://a' on gpu1; its default on gpu2, gpu3, gpu4 and 1 more; expected one value on all GPU nodes"],
        ),
        (
            {name: {"gpushare_scheduler_lease": "a/b"} for name in PLANES},
            ["gpushare_scheduler_lease: 'a/b' on cp1, cp2; its default on gpu1, gpu2, gpu3 and 2 more; expected one value on every host"],
        ),
        # Of daemons that are pods there is one DaemonSet and one scheduler, with the values of one control plane.
        (
            {name: {**PODS, "gpushare_isolation": "driver", "gpushare_placement": "spread"} for name in GPUS} | dict.fromkeys(PLANES, PODS),
            [
                "gpushare_placement: its default on cp1, cp2; 'spread' on gpu1, gpu2, gpu3 and 2 more; expected one value on every host",
                "gpushare_isolation: its default on cp1, cp2; 'driver' on gpu1, gpu2, gpu3 and 2 more; expected one value on every host",
            ],
        ),
        ({name: {**PODS, "gpushare_device_strategy": "cdi"} for name in GPUS} | dict.fromkeys(PLANES, PODS), []),
        ({"gpu1": {"gpushare_isolation": "driver"}}, []),
    ],
)
def test_what_several_hosts_share_is_the_same_on_all_of_them(values: dict[str, dict[str, Any]], said: list[str]) -> None:
    found_ = scattered({host: values.get(host, {}) for host in [*PLANES, *GPUS]}, PLANES, GPUS)
    assert [str(one).partition("found ")[2].rpartition("; set it")[0] for one in found_] == said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, []),
        ({"cp1": {"gpushare_metrics_token": "a" * 16}, "gpu1": {"gpushare_metrics_token": "b" * 16}}, []),
        ({name: {"gpushare_metrics_token": ""} for name in GPUS}, []),
        ({"gpu1": {"gpushare_metrics_token": "a" * 16}, "gpu2": {"gpushare_metrics_token": "a" * 16}}, ["gpu1, gpu2"]),
        ({name: {"gpushare_metrics_token": "a" * 16} for name in [*PLANES, *GPUS]}, ["cp1, cp2, gpu1 and 4 more"]),
        (
            {name: {"gpushare_metrics_token": "a" * 16} for name in PLANES} | {name: {"gpushare_metrics_token": "b" * 16} for name in GPUS},
            ["cp1, cp2", "gpu1, gpu2, gpu3 and 2 more"],
        ),
        # Without an address nobody is asked for it.
        ({name: {"gpushare_metrics_token": "a" * 16, "gpushare_metrics_address": ""} for name in GPUS}, []),
    ],
)
def test_the_token_of_a_hosts_metrics_is_its_own(values: dict[str, dict[str, Any]], said: list[str]) -> None:
    found_ = shared({host: {"gpushare_metrics_address": "10.0.0.5"} | values.get(host, {}) for host in [*PLANES, *GPUS]})
    assert [one.found for one in found_] == [f"gpushare_metrics_token: one token on {hosts}" for hosts in said]
    assert not any("a" * 16 in str(one) for one in found_)


def test_a_gpu_node_of_another_distribution_is_rejected_before_its_containerd_is_looked_for(tmp_path: Path) -> None:
    root = gpu(debian(FakeRoot(tmp_path)))
    rancher(root, "k3s", "agent")
    assert ("distribution", "error") in found(root)
    both = replace(GPU_NODE, control_plane=True)
    assert [check for check, _severity in found(root, both)].count("distribution") == 1


def k3s(root: FakeRoot, version: str = "v1.32.2+k3s1", *arguments: str, active: str = "active") -> FakeRoot:
    """A server of k3s with GPUs."""
    rancher(gpu(debian(root), MENDED), "k3s", "server", *arguments, version=version, active=active)
    root.file("/etc/rancher/k3s/k3s.yaml")
    root.link("/usr/local/bin/kubectl", "k3s")
    return root


PODS = replace(GPU_NODE, mode="kubernetes", control_plane=True)


@pytest.mark.parametrize(
    ("version", "arguments", "expected"),
    [
        ("v1.32.2+k3s1", (), []),
        ("v1.36.0+k3s1", (), []),
        ("v1.31.5+k3s1", (), [("strategy", "warning")]),
        ("v1.32.1+k3s1", (), [("strategy", "warning")]),
        ("v1.32.2+k3s1", ("--docker", "--tls-san=a"), [("runtime", "error")]),
        ("v1.32.2+k3s1", ("--docker=true",), [("runtime", "error")]),
    ],
)
def test_hosts_of_k3s_are_taken_where_the_daemons_are_pods(
    tmp_path: Path, version: str, arguments: tuple[str, ...], expected: list[Any]
) -> None:
    assert found(k3s(FakeRoot(tmp_path), version, *arguments), PODS) == expected


def test_k3s_that_does_not_run_is_started_by_its_own_service(tmp_path: Path) -> None:
    (why,) = reasons(k3s(FakeRoot(tmp_path), active="inactive"), PODS)
    assert (why.check, why.found, why.cure) == ("kubelet", "no kubelet that runs (k3s.service inactive: dead)", "systemctl restart k3s")


def test_services_on_k3s_are_rejected_with_the_mode_to_set(tmp_path: Path) -> None:
    (why,) = [one for one in reasons(k3s(FakeRoot(tmp_path)), GPU_NODE) if one.check == "distribution"]
    assert (why.found, why.expected) == ("Kubernetes by k3s with gpushare_deploy_mode: systemd", "kubeadm")
    assert "set gpushare_deploy_mode: kubernetes" in why.cure


def test_pods_on_hosts_of_others_are_for_the_playbook_cluster(tmp_path: Path, golden: Golden) -> None:
    root = debian(FakeRoot(tmp_path))
    root.file("/etc/machine-config-daemon/currentconfig")
    (why,) = reasons(root, PODS)
    assert (why.check, why.expected) == ("distribution", "kubeadm or k3s or rke2")
    golden(why.cure)


def test_pods_on_hosts_of_kubeadm_need_no_python_and_no_kube_scheduler_of_ours(tmp_path: Path) -> None:
    root = debian(FakeRoot(tmp_path))
    root.file("/etc/kubernetes/kubelet.conf")
    services = {check for check, _severity in found(root, replace(PODS, mode="systemd", python="python3.13"))}
    pods = {check for check, _severity in found(root, replace(PODS, python="python3.13"))}
    assert {"python", "control_plane"} <= services - pods
    assert "gpus" in pods


PIN = "/etc/apt/preferences.d/nvidia-driver-pin"


@pytest.mark.parametrize(
    ("version", "today", "expected"),
    [
        ("580.178.04", "2028-06-30", []),
        ("580.178.04", "2028-07-01", ["driver 580.178.04, of a branch that NVIDIA has ended in 2028-06"]),
        ("570.211.01", "2026-11-29", ["driver 570.211.01, of a branch that NVIDIA has ended in 2026-02"]),
        ("590.48.01", "2026-11-29", ["driver 590.48.01, of a branch that NVIDIA has ended"]),
        ("470.256.02", "2026-11-29", ["driver 470.256.02, of a branch that NVIDIA has ended"]),
        ("615.71.09", "2030-01-01", []),
        ("700.10.01", "2030-01-01", []),
        ("535.309.01", "", []),
    ],
)
def test_a_driver_of_a_branch_that_has_ended_is_noted(tmp_path: Path, version: str, today: str, expected: list[str]) -> None:
    root = gpu(kubelet(debian(FakeRoot(tmp_path))), version)
    said = [one for one in reasons(root, replace(GPU_NODE, today=today)) if one.check == "driver_branch"]
    assert [one.found for one in said] == expected
    assert [one.severity for one in said] == ["note"] * len(expected)
    if today == "2026-11-29":
        assert said[0].expected.endswith(
            "620 (long-term, until 2029-09) or 595 (production, until 2027-03) or 580 (long-term, until 2028-06)"
        )
    assert [one for one in reasons(root, replace(GPU_NODE, today=today, driver_managed=True)) if one.check == "driver_branch"] == []


@pytest.mark.parametrize(
    ("text", "pinned"),
    [
        ("Package: *nvidia*\nPin: version 595*\nPin-Priority: 1000\n", "595"),
        ("Package: *nvidia*\nPin: version 580.159.03-*\nPin-Priority: 1000\n", "580.159.03"),
        ("Package: *nvidia*\nPin: version 580*\nPin-Priority: 1000\n", ""),
        ("Package: *nvidia*\nPin: version 580.178.04-*\nPin-Priority: 1000\n", ""),
        ("Package: *nvidia*\nPin: release o=NVIDIA\n", ""),
        ("\0" * 5000, ""),
    ],
)
def test_a_pin_of_nvidias_for_another_driver_is_warned_of(node: FakeRoot, text: str, pinned: str) -> None:
    node.file(PIN, text)
    said = [one.found for one in reasons(node) if one.check == "driver"]
    whole = f"{PIN}, by which apt takes the driver {pinned} (nvidia-driver-pinning-{pinned}), with driver {MENDED}"
    assert said == ([whole] if pinned else [])
    assert found(node, replace(GPU_NODE, driver_managed=True)) == []


@pytest.mark.parametrize(
    ("driver", "toolkit", "managed", "warned"),
    [
        ("615.71.09", "1.20.0", False, True),
        ("620.20.01", "1.19.1", False, True),
        ("615.71.09", "1.20.1", False, False),
        ("610.57.04", "1.20.0", False, False),
        ("615.71.09", "1.20.0", True, False),
        ("615.71.09", "", False, False),
    ],
)
def test_a_toolkit_that_does_not_know_the_firmware_is_warned_of(
    tmp_path: Path, driver: str, toolkit: str, managed: bool, warned: bool
) -> None:
    root = gpu(kubelet(debian(FakeRoot(tmp_path))), driver)
    if toolkit:
        root.program("/usr/bin/nvidia-ctk", f"NVIDIA Container Toolkit CLI version {toolkit}\ncommit: 0\n")
    said = [one.found for one in reasons(root, replace(GPU_NODE, toolkit_managed=managed)) if one.check == "driver"]
    assert said == ([f"NVIDIA's container toolkit {toolkit} with driver {driver}"] if warned else [])


RESTART = "systemctl restart kubelet"


def test_a_kubelet_that_does_not_start_on_cgroup_v1_is_told_so(node: FakeRoot, golden: Golden) -> None:
    def cure() -> str:
        (one,) = [one for one in reasons(node) if one.check == "kubelet"]
        golden(one.found)
        return one.cure

    shutil.rmtree(node.at("/proc/30"))
    assert cure() == RESTART
    node.at("/sys/fs/cgroup/cgroup.controllers").unlink()
    node.file("/sys/fs/cgroup/memory/tasks")
    assert "set failCgroupV1: false in /var/lib/kubelet/config.yaml" in cure()
    overwrite(node, "/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\nfailCgroupV1: false\n")
    assert cure() == RESTART
    overwrite(node, "/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")
    node.program("/usr/bin/kubelet", "Kubernetes v1.34.2")
    assert cure() == RESTART


def test_what_the_next_kubernetes_does_not_take_is_read_from_processes_and_files(tmp_path: Path) -> None:
    root = control_plane(
        gpu(kubelet(debian(FakeRoot(tmp_path)), "--boot_id_file", "/x", "--feature-gates=A=true,DevicePlugins=true"), MENDED)
    )
    gates = "kind: KubeletConfiguration\nfeatureGates:\n  DynamicResourceAllocation: true\n"
    overwrite(root, "/var/lib/kubelet/config.yaml", gates)
    root.process(32, "kube-apiserver", "--feature-gates=DynamicResourceAllocation=true", "--feature-gates=SidecarContainers=true")
    both = replace(GPU_NODE, control_plane=True)
    before = {(one.check, one.found) for one in reasons(root, both)}
    assert {one.found for one in reasons(root, replace(both, target_kubernetes="v1.38.0")) if (one.check, one.found) not in before} == {
        "the feature gate DevicePlugins, which Kubernetes v1.38.0 does not know",
        "the feature gate DynamicResourceAllocation, which Kubernetes v1.38.0 does not know",
        "kubelet's --boot-id-file, which Kubernetes v1.38.0 does not have",
        "containerd 1.6.20~ds1, with gpushare_target_kubernetes: v1.38.0",
        "kube-apiserver with the feature gate DynamicResourceAllocation, which Kubernetes v1.38.0 does not know",
        "kube-apiserver with the feature gate SidecarContainers, which Kubernetes v1.38.0 does not know",
    }


def test_the_pages_show_what_is_printed(node: FakeRoot) -> None:
    node.process(2211, "nvidia-device-plugin", namespace="pid:[3]")
    plugin = judge("gpu1", gather(Host(str(node))), GPU_NODE).reasons
    for name in ("/usr/bin/python3", "/usr/bin/python3.11"):
        node.at(name).unlink()
    both = judge("gpu1", gather(Host(str(node))), GPU_NODE).reasons
    typo = unknown("cp1", ["gpushare_extender_prot"], ["gpushare_extender_port"])
    for page, reasons in {"docs/start/quickstart.md": accept(plugin, ()), "roles/preflight/README.md": accept([*both, *typo], ())}.items():
        shown = f"{summary(reasons)}\n\n{blocks(reasons)}"
        assert f"```text\n{shown}\n```\n" in (REPOSITORY / page).read_text(), f"{page} does not show\n{shown}"


def test_what_is_judged_follows_the_variables_by_their_names_and_words() -> None:
    known = {"gpushare_isolation": "mps", "gpushare_toolkit_state": "managed", "gpushare_deploy_mode": "kubernetes", "gpushare_other": 1}
    assert followed(WantedHost, known) == {"isolation": "mps", "toolkit_configured": True, "toolkit_managed": True, "mode": "kubernetes"}
    assert followed(WantedHost, {"gpushare_toolkit_state": "unmanaged"}) == {"toolkit_configured": False, "toolkit_managed": False}
    assert followed(Expected, {"gpushare_expect_gpus": 8, "gpus": 4}) == {"gpus": 8}


@pytest.mark.parametrize("owner", [WantedHost, Expected, InClusterSettings, Values])
def test_a_field_that_says_which_variable_it_follows_names_one_and_words_of_it(owner: type) -> None:
    for each in fields(owner):
        if VARIABLE in each.metadata:
            spec = variables()[each.metadata[VARIABLE]].spec
            assert set(each.metadata.get(WORDS, ())) <= set(spec.get("choices", ()))
