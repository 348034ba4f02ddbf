# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The facts of hosts of many kinds, each a folder that stands for one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_managers import GpuManager
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_strategy import PlannedInstalls
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.driver import PciGpu
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubernetes import runtime_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import SUBSETS, NodeFacts, gather, strategy
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.stopped_unit import StoppedUnit
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.system import Python
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import run
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host, flag
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.rancher import service
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.fakes.plugins.fake_root import FakeRoot, control_plane, debian, gpu, kubelet, rancher

SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"


@pytest.fixture
def root(tmp_path: Path) -> FakeRoot:
    return FakeRoot(tmp_path)


def facts(root: FakeRoot) -> NodeFacts:
    return gather(Host(str(root)))


def test_an_empty_host_has_facts_too(root: FakeRoot) -> None:
    found = facts(root)
    assert found.distribution.name == "none"
    assert not found.kubelet.installed
    assert not found.kubelet.running
    assert found.kubelet.root == "/var/lib/kubelet"
    assert (found.pythons, found.runtimes, found.managers, found.registered) == ((), (), (), {})
    assert found.system is not None
    assert (found.system.id, found.system.init) == ("unknown", "other")
    assert found.nvidia_smi is not None
    assert found.nvidia_smi.problem is not None
    assert found.nvidia_smi.problem.check == "not_installed"


def test_a_host_says_which_strategy_it_has_and_what_it_lacks_for_it(root: FakeRoot) -> None:
    host = Host(str(root))
    chosen, lacks = strategy(host, "auto", PlannedInstalls(), toolkit=False)
    assert (chosen["strategy"], chosen["cdi"]["kubelet"], lacks) == ("volume-mounts", "kubelet does not print its version", [])
    (unset,) = strategy(host, "auto", PlannedInstalls(), toolkit=True)[1]
    assert unset.startswith("found /etc/nvidia-container-runtime/config.toml with ")
    chosen, (kubelet_, *_others) = strategy(host, "cdi", PlannedInstalls(), toolkit=False)
    assert chosen["strategy"] == "cdi"
    assert kubelet_.startswith("found gpushare_device_strategy cdi, and kubelet does not print its version; expected kubelet 1.29")


def test_this_very_host_can_be_looked_at() -> None:
    found = gather(Host("/"))
    assert found.kernel is not None
    assert found.kernel.release == os.uname().release
    assert found.disk is not None
    assert found.disk.free_mib is not None
    assert found.pythons


def test_a_prepared_gpu_node(root: FakeRoot) -> None:
    found = facts(gpu(kubelet(debian(root))))
    assert found.system is not None
    assert (found.system.id, found.system.version, found.system.init, found.system.architecture) == ("debian", "12", "systemd", "x86_64")
    assert found.system.selinux == "disabled"
    assert found.pythons == (Python("/usr/bin/python3", "3.11", True),)
    assert found.distribution.name == "kubeadm"
    assert not found.distribution.kubespray
    node = found.kubelet
    assert (node.installed, node.running, node.version, node.binary) == (True, True, "v1.36.3", "/usr/bin/kubelet")
    assert (node.node_name, node.node_name_overridden) == ("node-7", False)
    assert (node.config, node.endpoint, node.runtime) == (
        "/var/lib/kubelet/config.yaml",
        "unix:///run/containerd/containerd.sock",
        "containerd",
    )
    assert node.feature_gates == {"DevicePlugins": True, "Other": False}
    assert found.runtimes is not None
    (containerd,) = found.runtimes
    assert (containerd.name, containerd.version, containerd.running) == ("containerd", "1.6.20~ds1", True)
    assert containerd.socket == "/run/containerd/containerd.sock"
    assert found.pci is not None
    assert found.pci.gpus[0] == PciGpu("0000:04:00.0", "0x1eb8", "nvidia", None)
    assert found.driver is not None
    assert (found.driver.loaded, found.driver.library) == ("535.261.03", "535.261.03")
    assert found.nvidia_smi is not None
    assert [gpu.model for gpu in found.nvidia_smi.gpus] == ["Tesla T4", "NVIDIA A30"]
    assert not found.control_plane.present


def test_gathering_less_runs_no_program_but_kubelet(root: FakeRoot) -> None:
    gpu(kubelet(debian(root)))
    asked = []
    host = Host(str(root), run=lambda argv, timeout: asked.append(Path(argv[0]).name))
    host.answer = lambda program, arguments, pattern: asked.append(Path(program).name)  # type: ignore[method-assign,assignment]
    found = gather(host, [])
    assert found.kubelet.node_name == "node-7"
    assert asked == ["kubelet"]
    assert set(found.as_dict()) == {"distribution", "kubelet", "control_plane"}


@pytest.mark.parametrize("subsets", [SUBSETS, (), ("system",), ("gpus",), ("runtimes", "managers")])
def test_facts_survive_the_way_through_json(root: FakeRoot, subsets: tuple[str, ...]) -> None:
    found = gather(Host(str(control_plane(gpu(kubelet(debian(root)))))), subsets)
    assert NodeFacts.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_flags_of_the_running_kubelet_win_over_its_files(root: FakeRoot) -> None:
    endpoint = "--container-runtime-endpoint=unix:///var/run/crio/crio.sock"
    kubelet(
        debian(root), "--hostname-override", "Worker-1", endpoint, "--root-dir=/data/kubelet", "--feature-gates=DevicePlugins=false,X=true"
    )
    node = facts(root).kubelet
    assert (node.node_name, node.node_name_overridden, node.root) == ("worker-1", True, "/data/kubelet")
    assert (node.endpoint, node.runtime) == ("unix:///var/run/crio/crio.sock", "cri-o")
    assert node.feature_gates == {"DevicePlugins": False, "Other": False, "X": True}


def test_a_kubelet_that_does_not_run_is_known_by_its_files(root: FakeRoot) -> None:
    debian(root).program("/usr/bin/kubelet", "Kubernetes v1.23.17")
    root.file(
        "/var/lib/kubelet/kubeadm-flags.env",
        'KUBELET_KUBEADM_ARGS="--container-runtime=remote --container-runtime-endpoint=unix:///run/cri-dockerd.sock --v=2"\n',
    )
    root.file("/etc/default/kubelet", "# mine\nKUBELET_EXTRA_ARGS=--hostname-override=n9\n")
    node = facts(root).kubelet
    assert (node.installed, node.running, node.version) == (True, False, "v1.23.17")
    assert (node.node_name, node.runtime) == ("n9", "docker")


FAKES = {
    "another user's": {"uid": 1000},
    "another program": {"program": "/usr/bin/sleep"},
    "of a pod with hostPID": {"container": "/run/pod"},
    "of a pod": {"namespace": "pid:[2]"},
}


@pytest.mark.parametrize("fake", FAKES.values(), ids=FAKES)
def test_a_process_that_says_it_is_kubelet_is_believed_only_if_the_hosts_root_runs_one(root: FakeRoot, fake: dict[str, Any]) -> None:
    """An older one, so that it comes first; its program must never be executed, nor its arguments be believed."""
    gpu(kubelet(debian(root)))
    root.at("/run/pod/x")
    for pid, name in enumerate(("kubelet", "containerd", "crio", "dockerd", "cri-dockerd", "k3s", "rke2", "kube-apiserver"), 2):
        root.program(f"/tmp/x/{name}", f"Kubernetes v9\n{name} version v9")
        argv = (f"/tmp/x/{name}", "server", "--root-dir=/tmp/x", "--hostname-override=victim", "--config=/tmp/x/config")
        root.process(pid, *argv, **fake)
    asked: list[str] = []
    host = Host(str(root), run=lambda argv, timeout: asked.append(argv[0]) or run(argv, timeout))  # type: ignore[func-returns-value]
    found = gather(host)
    assert [program for program in asked if "/tmp/x" in program] == []
    assert (found.kubelet.node_name, found.kubelet.root, found.kubelet.config) == (
        "node-7",
        "/var/lib/kubelet",
        "/var/lib/kubelet/config.yaml",
    )
    assert (found.kubelet.version, found.kubelet.binary) == ("v1.36.3", "/usr/bin/kubelet")
    assert found.distribution.name == "kubeadm"
    assert not found.control_plane.present
    assert [(one.name, one.binary) for one in found.runtimes or ()] == [("containerd", "/usr/bin/containerd")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as somebody else")
@pytest.mark.parametrize(("user", "program", "believed"), [(0, "probe", True), (65534, "probe", False), (0, "other", False)])
def test_the_kernel_says_who_runs_what(user: int, program: str, believed: bool) -> None:
    """As above, of a real process: another user's, and one of root's that only calls itself so."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        path = shutil.copy("/bin/sleep", f"{name}/gpushare-test-{program}")
        with subprocess.Popen([f"{name}/gpushare-test-probe", "60"], executable=path, user=user) as process:
            try:
                found = Host("/").process("gpushare-test-probe")
            finally:
                process.kill()
    assert (found is not None and (found.pid, found.program) == (process.pid, path)) == believed


def test_a_program_that_a_package_has_replaced_is_asked_where_the_host_has_it_now(root: FakeRoot) -> None:
    debian(root).program("/usr/bin/kubelet", "Kubernetes v1.36.4")
    root.program("/opt/old/kubelet (deleted)", "Kubernetes v9")
    root.process(30, "/opt/old/kubelet", program="/opt/old/kubelet (deleted)")
    node = facts(root).kubelet
    assert (node.running, node.binary, node.version) == (True, "/usr/bin/kubelet", "v1.36.4")


def test_a_program_that_is_several_ones_is_known_by_the_name_that_the_host_has_for_it(root: FakeRoot) -> None:
    """As hyperkube was: what it is started as counts only where the host's own program of that name leads there, too."""
    debian(root).program("/usr/lib/kubernetes/all", "Kubernetes v1.36.3")
    root.link("/usr/bin/kubelet", "../lib/kubernetes/all")
    root.link("/tmp/crio", "/usr/bin/sudo")
    # A program that runs as root whoever starts it, and takes the name that it is given.
    root.process(20, "/tmp/crio", "--root-dir=/tmp", program="/usr/bin/sudo")
    root.process(21, "/tmp/kubelet", "--root-dir=/tmp", program="/usr/bin/sudo")
    root.process(30, "/usr/bin/kubelet", "--root-dir=/data/kubelet", program="/usr/lib/kubernetes/all")
    found = facts(root)
    node = found.kubelet
    assert (node.running, node.binary, node.version, node.root) == (True, "/usr/bin/kubelet", "v1.36.3", "/data/kubelet")
    assert found.runtimes == ()


def test_what_a_process_calls_itself_is_shown_short_and_without_control_characters(root: FakeRoot) -> None:
    root.process(60, "gpushare-device-plugin\x1b[2J" + "x" * 200, uid=1000)
    (manager,) = facts(root).managers or ()
    assert manager.evidence == ("process 60 (gpushare-device-plugin?[2J" + "x" * 54 + ")",)


@pytest.mark.parametrize(
    ("version", "arguments", "endpoint"),
    [
        ("v1.22.17", [], "unix:///var/run/dockershim.sock"),
        ("v1.30.2", [], "unix:///run/containerd/containerd.sock"),
        ("v1.22.17", ["--container-runtime=remote", "--container-runtime-endpoint", "/run/x.sock"], "/run/x.sock"),
    ],
)
def test_the_endpoint_that_kubelet_takes_by_default(root: FakeRoot, version: str, arguments: list[str], endpoint: str) -> None:
    kubelet(debian(root), *arguments, version=version)
    root.file("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")
    assert facts(root).kubelet.endpoint == endpoint


def test_a_kubelet_in_a_container_is_not_this_hosts(root: FakeRoot) -> None:
    debian(root).process(40, "kubelet", "--hostname-override=inner", namespace="pid:[2]")
    root.process(41, "/usr/bin/dockerd", namespace="pid:[2]")
    found = facts(root)
    assert not found.kubelet.installed
    assert found.kubelet.node_name == "node-7"
    assert found.runtimes == ()


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        ("unix:///run/k3s/containerd/containerd.sock", "containerd"),
        ("/var/run/crio/crio.sock", "cri-o"),
        ("unix:///var/run/dockershim.sock", "docker"),
        ("unix:///run/k3s/cri-dockerd/cri-dockerd.sock", "docker"),
        ("unix:///run/frakti.sock", "unknown"),
        (None, None),
    ],
)
def test_which_runtime_an_endpoint_means(endpoint: str | None, name: str | None) -> None:
    assert runtime_of(endpoint) == name


def test_k3s(root: FakeRoot) -> None:
    rancher(debian(root), "k3s", "server", version="v1.30.2+k3s1")
    root.file("/etc/rancher/k3s/config.yaml", "node-name: Edge-1\ntls-san:\n  - a.example\n")
    root.file("/etc/rancher/k3s/k3s.yaml")
    root.file("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "version = 2\n")
    root.process(51, "containerd", "-c", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
    found = facts(root)
    assert (found.distribution.name, found.distribution.version) == ("k3s", "v1.30.2+k3s1")
    assert (found.kubelet.running, found.kubelet.node_name, found.kubelet.runtime) == (True, "edge-1", "containerd")
    assert found.kubelet.version == "v1.30.2+k3s1"
    assert found.control_plane.present
    assert found.control_plane.kubeconfig == "/etc/rancher/k3s/k3s.yaml"


def test_later_files_of_a_folder_win_over_the_main_one(root: FakeRoot) -> None:
    rancher(debian(root), "k3s", "server")
    root.file("/etc/rancher/k3s/config.yaml", "node-name: edge-1\ndocker: false\n")
    root.file("/etc/rancher/k3s/config.yaml.d/20.yaml", "node-name: edge-3\ndocker: True\n")
    root.file("/etc/rancher/k3s/config.yaml.d/10.yml", "node-name: edge-2\n")
    root.file("/etc/rancher/k3s/config.yaml.d/30.off", "node-name: edge-4\n")
    found = facts(root)
    assert (found.kubelet.node_name, found.kubelet.runtime) == ("edge-3", "docker")


def test_options_of_k3s_are_those_of_its_unit_and_its_files_not_of_its_title(root: FakeRoot) -> None:
    """Arguments win over files, and files over variables. The title of an agent may say that it is a server (k3s issue 10616)."""
    variables = "/etc/systemd/system/k3s-agent.service.env"
    rancher(debian(root), "k3s", "agent", "--docker", "--node-name", "Edge-3", files=variables)
    root.file("/proc/50/cmdline", b"/usr/local/bin/k3s server\0")
    root.file(variables, "K3S_NODE_NAME=edge-1\nK3S_DATA_DIR='/data/k3s'\nK3S_CONFIG_FILE=/etc/k3s.yaml\n")
    root.file("/etc/k3s.yaml", "node-name: edge-2\n")
    root.file("/data/k3s/agent/client-ca.crt", "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n")
    found = facts(root)
    assert (found.kubelet.node_name, found.kubelet.runtime, found.control_plane.present) == ("edge-3", "docker", False)
    assert len(found.authorities or ()) == 1
    own = service(Host(str(root)), "k3s")
    assert own is not None
    assert (own.runs, own.options["node-name"], own.data) == (True, "Edge-3", "/data/k3s")


@pytest.mark.parametrize(("command", "is_server"), [(("k3s", "server"), True), (("rke2", "agent"), False), (("rke2", "server"), True)])
def test_a_service_of_others_is_a_server_by_its_unit_and_else_by_its_process(
    root: FakeRoot, command: tuple[str, str], is_server: bool
) -> None:
    rancher(debian(root), *command)
    assert facts(root).control_plane.present is is_server
    root.at("/usr/bin/systemctl").unlink()
    assert facts(root).control_plane.present is is_server


def test_the_files_of_rke2_are_found_in_its_data_dir(root: FakeRoot) -> None:
    rancher(debian(root), "rke2", "server", "-d", "/data/rke2", active="inactive")
    root.file("/etc/rancher/rke2/config.yaml", "node-name: gpu1\n")
    root.program("/data/rke2/bin/kubelet", "Kubernetes v1.33.1+rke2r1")
    root.file("/data/rke2/agent/pod-manifests/kube-scheduler.yaml")
    found = facts(root)
    assert (found.kubelet.running, found.kubelet.version) == (False, "v1.33.1+rke2r1")
    assert found.control_plane.manifests == {"kube-scheduler": "/data/rke2/agent/pod-manifests/kube-scheduler.yaml"}
    assert found.kubelet_unit == StoppedUnit("rke2-server.service", "loaded", "inactive", "dead", "success", "")


def test_kubelets_config_dir_wins_over_its_configuration_file(root: FakeRoot) -> None:
    debian(root).program("/usr/bin/kubelet", "Kubernetes v1.30.0\n")
    root.file(
        "/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n"
    )
    root.file("/etc/kubernetes/kubelet.conf.d/90.conf", "containerRuntimeEndpoint: unix:///run/crio/crio.sock\nfeatureGates:\n  A: yes\n")
    root.file("/etc/kubernetes/kubelet.conf.d/91.yaml", "containerRuntimeEndpoint: unix:///run/x.sock\n")
    root.process(7, "/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml", "--config-dir=/etc/kubernetes/kubelet.conf.d")
    found = facts(root).kubelet
    assert (found.runtime, found.feature_gates) == ("cri-o", {"A": True})


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/etc/rancher/rke2/config.yaml", "rke2"),
        ("/etc/machine-config-daemon/currentconfig", "openshift"),
        ("/var/snap/microk8s/current/args", "microk8s"),
        ("/var/lib/k0s/kubelet.conf", "k0s"),
        ("/etc/kubernetes/kubelet.conf", "kubeadm"),
        ("/usr/bin/kubelet", "unknown"),
    ],
)
def test_what_installed_kubernetes(root: FakeRoot, path: str, name: str) -> None:
    root.program(path)
    assert facts(root).distribution.name == name


def test_kubespray(root: FakeRoot) -> None:
    for name in ("kubelet.env", "kubelet-config.yaml", "admin.conf"):
        root.file(f"/etc/kubernetes/{name}")
    assert facts(root).distribution == facts(root).distribution.__class__("kubeadm", True, None)


def test_a_control_plane(root: FakeRoot) -> None:
    plane = facts(control_plane(debian(root))).control_plane
    assert plane.present
    assert plane.manifests["kube-scheduler"] == "/etc/kubernetes/manifests/kube-scheduler.yaml"
    assert (plane.kubeconfig, plane.kubectl) == ("/etc/kubernetes/admin.conf", "/usr/bin/kubectl")


def test_a_backup_among_the_manifests_is_no_component(root: FakeRoot) -> None:
    root.file("/etc/kubernetes/manifests/kube-apiserver.yaml.bak")
    assert not facts(root).control_plane.present


@pytest.mark.parametrize(
    ("content", "state"), [(b"\6\0\0\0\1", "enabled"), (b"\6\0\0\0\0", "disabled"), (b"\6\0", "unknown"), (None, "unknown")]
)
def test_secure_boot(root: FakeRoot, content: bytes | None, state: str) -> None:
    root.file("/sys/firmware/efi/x")
    if content is not None:
        root.file(SECURE_BOOT, content)
    kernel = facts(root).kernel
    assert kernel is not None
    assert kernel.secure_boot == state


def test_a_host_without_efi_has_no_secure_boot(root: FakeRoot) -> None:
    kernel = facts(debian(root)).kernel
    assert kernel is not None
    assert (kernel.secure_boot, kernel.headers, kernel.signed_modules_only) == ("none", None, False)


def test_lockdown_and_headers(root: FakeRoot) -> None:
    debian(root).file("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    root.file("/usr/src/linux-headers-6.1.0-30-amd64/Makefile")
    root.link("/lib/modules/6.1.0-30-amd64/build", "/usr/src/linux-headers-6.1.0-30-amd64")
    kernel = facts(root).kernel
    assert kernel is not None
    assert kernel.signed_modules_only
    assert kernel.headers == "/usr/src/linux-headers-6.1.0-30-amd64"


def test_headers_of_another_kernel_do_not_count(root: FakeRoot) -> None:
    debian(root).file("/usr/src/linux-headers-6.1.0-29-amd64/Makefile")
    kernel = facts(root).kernel
    assert kernel is not None
    assert kernel.headers is None


def test_pythons(root: FakeRoot) -> None:
    root.program("/usr/libexec/platform-python3.6", "Python 3.6.8")
    root.link("/usr/bin/python3", "/usr/libexec/platform-python3.6")
    root.program("/usr/bin/python3.12", "Python 3.12.1")
    root.program("/usr/bin/python3.9", "Python 3.9.1")
    root.program("/usr/local/bin/python3", "Python 3.14.0")
    root.file("/usr/lib64/python3.12/ensurepip/__init__.py")
    root.file("/usr/bin/python3.13", "not executable")
    found = facts(root).pythons
    assert found == (Python("/usr/local/bin/python3", "3.14", False), Python("/usr/bin/python3.12", "3.12", True))


@pytest.mark.parametrize(
    ("release", "programs", "venv", "packages"),
    [
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"', {"python3": "3.9.18"}, "", ("python3.11",)),
        ('ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="8.10"', {}, "", ("python3.11",)),
        ('ID="rhel"\nVERSION_ID="10.0"', {}, "", ()),
        ('ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"', {"python3": "3.6.15"}, "", ("python311",)),
        ("ID=debian\nVERSION_ID=12", {"python3": "3.11.2"}, "", ("python3-venv",)),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=22.04", {"python3": "3.10.12"}, "3.10", ()),
        ("ID=debian\nVERSION_ID=11", {"python3": "3.9.2", "python3.12": "3.12.1"}, "", ("python3.12-venv",)),
        # They bring venv with them, so what it lacks is no package that is known.
        ('ID="rhel"\nVERSION_ID="9.4"', {"python3.12": "3.12.1"}, "", ()),
        ("ID=gentoo\nVERSION_ID=2", {}, "", ()),
    ],
)
def test_the_package_that_a_host_lacks_for_its_python(
    root: FakeRoot, release: str, programs: dict[str, str], venv: str, packages: tuple[str, ...]
) -> None:
    root.file("/etc/os-release", release + "\n")
    for name, version in programs.items():
        root.program(f"/usr/bin/{name}", f"Python {version}")
    if venv:
        root.file(f"/usr/lib/python{venv}/ensurepip/__init__.py")
    found = facts(root)
    assert found.python_packages == packages
    assert NodeFacts.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_an_open_driver_and_one_for_the_next_boot(root: FakeRoot) -> None:
    debian(root)
    root.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")
    root.file("/lib/modules/6.1.0-30-amd64/modules.dep", "kernel/x.ko:\nupdates/dkms/nvidia-drm.ko: a\nupdates/dkms/nvidia.ko: b\n")
    root.file("/lib/modules/6.1.0-30-amd64/updates/dkms/nvidia.ko", b"\x7fELF..\0supported=external\0version=575.51.02\0license=MIT\0")
    root.file("/sys/module/nouveau/x")
    driver = facts(root).driver
    assert driver is not None
    assert (driver.loaded, driver.installed) == ("570.86.15", "575.51.02")
    assert driver.installed_path == "/lib/modules/6.1.0-30-amd64/updates/dkms/nvidia.ko"
    assert driver.nouveau_loaded


def test_a_compressed_module_is_known_by_dkms_or_modinfo(root: FakeRoot) -> None:
    debian(root).file("/lib/modules/6.1.0-30-amd64/modules.dep", "updates/dkms/nvidia-current.ko.xz: b\n")
    root.program("/sbin/modinfo", "535.216.01")
    driver = facts(root).driver
    assert driver is not None
    assert driver.installed == "535.216.01"
    root.file("/var/lib/dkms/nvidia-current/535.261.03/6.1.0-30-amd64/x86_64/module/x")
    driver = facts(root).driver
    assert driver is not None
    assert driver.installed == "535.261.03"


def test_pci_devices_of_others_and_switches_are_no_gpus(root: FakeRoot) -> None:
    root.pci("0000:01:00.0", vendor="0x1002")
    root.pci("0000:02:00.0", kind="0x040300")
    root.pci("0000:03:00.0", driver="vfio-pci")
    root.pci("0000:05:00.0", driver="")
    root.pci("0000:06:00.0", kind="0x068000", driver="")
    pci = facts(root).pci
    assert pci is not None
    assert [(gpu.address, gpu.driver) for gpu in pci.gpus] == [("0000:03:00.0", "vfio-pci"), ("0000:05:00.0", None)]


@pytest.mark.parametrize("arguments", [(), ("--root-dir=/data/kubelet",)])
def test_nvidias_device_plugin_by_its_process_and_its_devices(root: FakeRoot, arguments: tuple[str, ...]) -> None:
    """kubelet's folder of device plugins is the same, whatever its root."""
    kubelet(debian(root), *arguments)
    root.process(60, "nvidia-device-plugin", "--config-file=/x", namespace="pid:[5]")
    root.file(CHECKPOINT, json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {"nvidia.com/gpu": ["GPU-a", "GPU-b"]}}}))
    root.socket("/var/lib/kubelet/device-plugins/nvidia-gpu.sock")
    root.socket("/var/lib/kubelet/device-plugins/kubelet.sock")
    evidence = ("process 60 (nvidia-device-plugin)", "2 healthy devices of nvidia.com/gpu at kubelet", "socket nvidia-gpu.sock")
    assert facts(root).managers == (GpuManager("NVIDIA device plugin", True, evidence),)
    assert facts(root).registered == {"nvidia.com/gpu": 2}


def test_what_a_removed_device_plugin_leaves_is_a_trace(root: FakeRoot) -> None:
    root.file(CHECKPOINT, json.dumps({"Data": {"RegisteredDevices": {"nvidia.com/gpu": None, "aliyun.com/gpu-mem": ["a"]}}}))
    root.file("/usr/local/vgpu/libvgpu.so")
    found = facts(root).managers
    assert found == (
        GpuManager("NVIDIA device plugin", False, ("resource nvidia.com/gpu known to kubelet, without devices",)),
        GpuManager("HAMi", False, ("folder /usr/local/vgpu",)),
    )


def test_volcanos_device_plugin_by_its_process_and_its_devices(root: FakeRoot) -> None:
    root.process(60, "volcano-vgpu-device-plugin", "--device-split-count=10", namespace="pid:[5]")
    root.file(CHECKPOINT, json.dumps({"Data": {"RegisteredDevices": {"volcano.sh/vgpu-number": ["a"], "volcano.sh/vgpu-memory": None}}}))
    (found,) = facts(root).managers or ()
    assert (found.name, found.active, len(found.evidence)) == ("Volcano vGPU", True, 3)


POD = "0a1b2c3d-0000-4000-8000-000000000001"
DRIVERS = [
    ("NVIDIA DRA driver", "gpu-kubelet-plugin", "gpu.nvidia.com"),
    ("HAMi DRA driver", "hami-kubelet-plugin", "hami-core-gpu.project-hami.io"),
]


def claims(*drivers: str) -> str:
    """kubelet's record of a claim with devices of these drivers, as the pod has it."""
    claim = {"ClaimUID": "c", "ClaimName": "c", "Namespace": "default", "PodUIDs": {POD: {}}}
    state = {driver: {"Devices": [{"PoolName": "gpu1", "DeviceName": "gpu-0"}]} for driver in drivers}
    return json.dumps({"Data": json.dumps({"ClaimInfoStateList": [{**claim, "DriverState": state}]}), "Checksum": 1})


def pod_runs(root: FakeRoot, pid: int) -> None:
    root.process(pid, "/bin/train", namespace="pid:[7]")
    root.file(f"/proc/{pid}/cgroup", f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope\n")


@pytest.mark.parametrize("kubelet_root", ["/var/lib/kubelet", "/data/kubelet"])
@pytest.mark.parametrize(("name", "program", "driver"), DRIVERS)
def test_a_dra_driver_by_its_process_and_below_kubelets_own_folder(
    root: FakeRoot, kubelet_root: str, name: str, program: str, driver: str
) -> None:
    kubelet(debian(root), f"--root-dir={kubelet_root}")
    uid = "-0a1b2c3d-0000-4000-8000-000000000009"
    for socket in (f"{driver}-reg.sock", f"{driver}{uid}-reg.sock", f"{driver}-AbC_d-EfGhI-reg.sock"):
        root.socket(f"{kubelet_root}/plugins_registry/{socket}")
    root.file(f"{kubelet_root}/plugins/{driver}/checkpoint.json", "{}")
    (left,) = facts(root).managers or ()
    assert (left.name, left.active, len(left.evidence)) == (name, False, 4)
    root.process(60, program, "-v", "4", namespace="pid:[5]")
    root.file(f"{kubelet_root}/dra_manager_state", claims(driver))
    pod_runs(root, 61)
    (found,) = facts(root).managers or ()
    assert (found.name, found.active, found.pods, found.holders) == (name, True, (POD,), (POD,))
    assert found.evidence[0] == f"process 60 ({program})"
    assert f"folder {kubelet_root}/plugins/{driver}" in found.evidence


def test_compute_domains_alone_give_no_gpu(root: FakeRoot) -> None:
    root.process(60, "compute-domain-kubelet-plugin", namespace="pid:[5]")
    root.socket("/var/lib/kubelet/plugins_registry/compute-domain.nvidia.com-reg.sock")
    root.file("/var/lib/kubelet/plugins/compute-domain.nvidia.com/checkpoint.json", "{}")
    root.file("/var/lib/kubelet/dra_manager_state", claims("compute-domain.nvidia.com"))
    pod_runs(root, 61)
    assert facts(root).managers == ()


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("NVIDIA DRA driver", ""),
        # By itself, as an instance of MIG, and both as time-slicing names them.
        *(("NVIDIA device plugin", f"nvidia.com/{one}") for one in ("gpu", "mig-1g.10gb", "gpu.shared", "mig-1g.10gb.shared")),
        ("HAMi", "nvidia.com/gpumem"),
    ],
)
def test_pods_keep_the_gpus_of_a_manager_that_has_gone(root: FakeRoot, name: str, resource: str) -> None:
    if not resource:
        root.file("/var/lib/kubelet/dra_manager_state", claims("gpu.nvidia.com", "compute-domain.nvidia.com"))
    else:
        entry = {"PodUID": POD, "ContainerName": "c", "ResourceName": resource, "DeviceIDs": ["GPU-a"]}
        root.file(CHECKPOINT, json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}}))
    # kubelet forgets a pod late.
    assert facts(root).managers == ()
    pod_runs(root, 61)
    assert facts(root).managers == (
        GpuManager(name, True, (f"no process of it, and running pods with its devices: {POD}",), (POD,), (POD,)),
    )


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"Data": 5}', '{"Data": "["}', json.dumps({"Data": '{"ClaimInfoStateList": [7, {"DriverState": [], "PodUIDs": 1}]}'})],
)
def test_a_record_of_claims_that_is_none(root: FakeRoot, content: str) -> None:
    root.file("/var/lib/kubelet/dra_manager_state", content)
    pod_runs(root, 61)
    assert facts(root).managers == ()


def test_our_own_device_plugin_is_no_stranger_and_the_original_is(root: FakeRoot) -> None:
    plugins = "/var/lib/kubelet/device-plugins"
    root.process(70, "/opt/gpushare/0.1.0-abc/bin/python", "/opt/gpushare/current/bin/gpushare-device-plugin")
    root.socket(f"{plugins}/aliyungpushare-mem-0123cdef.sock")
    root.socket(f"{plugins}/aliyungpushare-gpus-0123cdef.sock")
    assert facts(root).managers == ()
    # Of a former release of ours.
    root.socket(f"{plugins}/aliyungpushare.sock")
    root.socket(f"{plugins}/aliyungpushare-gpus.sock")
    assert facts(root).managers == ()
    root.at(f"{plugins}/aliyungpushare-gpus.sock").unlink()
    root.process(71, "/usr/bin/gpushare-device-plugin-v2", "-logtostderr", namespace="pid:[9]")
    found = facts(root).managers
    assert found == (
        GpuManager("original gpushare device plugin", True, ("process 71 (gpushare-device-plugin-v2)", "socket aliyungpushare.sock")),
    )


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"Data": 5}', '{"Data": {"RegisteredDevices": [1]}}', '{"Data": {"RegisteredDevices": null}}']
)
def test_a_checkpoint_that_is_none(root: FakeRoot, content: str) -> None:
    root.file(CHECKPOINT, content)
    assert facts(root).registered == {}


def test_links_stay_within_the_root(root: FakeRoot, tmp_path: Path) -> None:
    root.file("/data/real", "inside")
    root.link("/etc/a", "/data/real")
    root.link("/etc/b", "../../../../data/real")
    root.link("/etc/loop", "loop")
    host = Host(str(root))
    assert (host.text("/etc/a"), host.text("/etc/b"), host.text("/etc/loop")) == ("inside", "inside", None)
    assert host.outside("/etc/a") == str(tmp_path / "data/real")


def test_reading_never_waits_for_a_pipe(root: FakeRoot) -> None:
    os.mkfifo(root.at("/etc/hostname"))
    assert Host(str(root)).line("/etc/hostname") is None


def test_only_so_much_is_read_of_a_file(root: FakeRoot) -> None:
    root.file("/big", b"x" * 200_000)
    assert len(Host(str(root)).data("/big", 100_000) or b"") == 100_000
    assert len(Host(str(root)).data("/big") or b"") == 200_000


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["k", "--a=1", "--a", "2"], "2"),
        (["k", "-a", "3"], "3"),
        (["k", "--a", "--b=1"], "true"),
        (["k", "--a"], "true"),
        (["k", "--ab=1"], None),
        (["k", "--a="], ""),
    ],
)
def test_flags(argv: list[str], value: str | None) -> None:
    assert flag(argv, "a") == value


FILES = (
    "/etc/os-release",
    "/proc/30/cmdline",
    "/var/lib/kubelet/config.yaml",
    "/var/lib/kubelet/kubeadm-flags.env",
    "/proc/driver/nvidia/version",
    "/etc/ld.so.cache",
    "/lib/modules/6.1.0-30-amd64/modules.dep",
    "/etc/rancher/k3s/config.yaml",
    "/sys/bus/pci/devices/0000:04:00.0/numa_node",
    SECURE_BOOT,
    CHECKPOINT,
)


@settings(deadline=None)
@given(st.sampled_from(FILES), st.binary(max_size=200) | st.text(max_size=60).map(str.encode))
def test_garbage_in_any_file_is_never_an_exception(tmp_path_factory: pytest.TempPathFactory, path: str, content: bytes) -> None:
    root = gpu(debian(FakeRoot(tmp_path_factory.mktemp("host"))))
    root.program("/usr/bin/nvidia-smi", "")
    root.file(path, content)
    found = facts(root)
    assert NodeFacts.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_a_program_that_is_several_is_called_by_the_name_it_was_found_under(tmp_path: Path) -> None:
    (tmp_path / "many").write_text('#!/bin/sh\necho "I am ${0##*/}"\n')
    (tmp_path / "many").chmod(0o755)
    (tmp_path / "one").symlink_to("many")
    outcome = Host("/").ask(str(tmp_path / "one"), [])
    assert outcome is not None
    assert outcome.out == "I am one\n"


def test_a_library_that_the_linkers_cache_does_not_know(root: FakeRoot) -> None:
    debian(root).file("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03")
    root.link("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.535.261.03")
    driver = facts(root).driver
    assert driver is not None
    assert driver.library == "535.261.03"
