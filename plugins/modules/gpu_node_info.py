#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_node_info
short_description: Gather facts about this host and its Kubernetes node
version_added: 0.1.0
description:
  - Gathers the facts of a host that sharing its GPUs depends on, in one call. Works on any host, with or without GPUs, driver or
    Kubernetes. Unknown values are null.
  - Reads files; runs only C(kubelet), C(containerd) and the like with C(--version), C(modinfo), C(dmesg), and C(nvidia-smi -q -x).
  - Always returns the node's name. If the inventory has another name, see O(node_name).
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  node_name:
    description:
      - Name that the node must have. By default the variable C(gpushare_node_name) of the host. Without it, the host's name in the
        inventory or its C(ansible_host), with or without domain.
      - A host that reports another name is rejected.
    type: str
    default: ""
  gather:
    description:
      - Facts to gather besides the node, its kubelet and its control plane. An empty list is the fastest.
      - V(gpus) calls the driver, which can take seconds without a persistence daemon.
    type: list
    elements: str
    choices: [system, gpus, runtimes, managers]
    default: [system, gpus, runtimes, managers]
  install_dir:
    description: Folder of the runtime. The module returns its disk space, and does not count its processes as other GPU managers.
    type: path
    default: /opt/gpushare
  root:
    description: Folder that stands for the host's V(/), for tests. Programs are then run from below it as well.
    type: path
    default: /
  timeout: {description: Timeout in seconds for each program that returns its version., type: int, default: 20}
"""

EXAMPLES = r"""
- name: Ask the host which node it is
  gpushare.kubernetes.gpu_node_info:
    gather: []
  register: node

- name: Gather everything
  gpushare.kubernetes.gpu_node_info:
  register: facts
"""

RETURN = r"""
node_name:
  description: Name of the Kubernetes node. Without a running kubelet the one that it would take.
  returned: success
  type: str
  sample: gpu1
kubelet_root: {description: Root folder of kubelet., returned: success, type: str, sample: /var/lib/kubelet}
kubelet_running: {description: Whether a kubelet runs on this host., returned: success, type: bool}
effective_uid:
  description: User id that the module ran as. Another user than root does not see whose processes run, and not all files.
  returned: success
  type: int
  sample: 0
kubelet:
  description: The running kubelet. If none runs, the content of its files.
  returned: success
  type: dict
  contains:
    installed: {description: Whether there is one., type: bool}
    running: {description: Whether it runs., type: bool}
    version: {description: Version., type: str, sample: v1.36.3}
    binary: {description: Path of the program., type: str, sample: /usr/bin/kubelet}
    node_name: {description: Name of its node., type: str, sample: gpu1}
    node_name_overridden: {description: Whether a flag gives the name., type: bool}
    root: {description: Root folder., type: str, sample: /var/lib/kubelet}
    config: {description: Configuration file., type: str, sample: /var/lib/kubelet/config.yaml}
    endpoint: {description: Socket of the container runtime., type: str, sample: unix:///run/containerd/containerd.sock}
    runtime: {description: "V(containerd), V(cri-o), V(docker) or V(unknown).", type: str, sample: containerd}
    feature_gates: {description: Feature gates that are set., type: dict}
    cgroup_driver: {description: As its own configuration says., type: str, sample: systemd}
    flags: {description: Names of the flags that it is given., type: list, elements: str, sample: [config, kubeconfig]}
    fail_cgroup_v1: {description: Its failCgroupV1 where something sets it., type: bool}
distribution:
  description: The tool that installed Kubernetes.
  returned: success
  type: dict
  contains:
    name: {description: "V(kubeadm), V(k3s), V(rke2), V(openshift), V(microk8s), V(k0s), V(unknown) or V(none).", type: str}
    kubespray: {description: Whether kubespray did., type: bool}
    version: {description: Its own version where it has one., type: str}
control_plane:
  description: The parts of a control plane on the host.
  returned: success
  type: dict
  contains:
    present: {description: Whether an API server is run here., type: bool}
    manifests: {description: Manifest of each static pod by component., type: dict}
    kubeconfig: {description: The administrator's kubeconfig., type: str, sample: /etc/kubernetes/admin.conf}
    kubectl: {description: Path of kubectl., type: str}
    feature_gates: {description: Feature gates that running components are given by component., type: dict}
system:
  description: The distribution.
  returned: when gathered
  type: dict
  contains:
    id: {description: As in os-release., type: str, sample: debian}
    like: {description: As in os-release., type: list, elements: str}
    version: {description: As in os-release., type: str, sample: "12"}
    name: {description: Full name., type: str, sample: Debian GNU/Linux 12 (bookworm)}
    architecture: {description: Of the kernel., type: str, sample: x86_64}
    init: {description: V(systemd) or V(other)., type: str}
    selinux: {description: "V(enforcing), V(permissive) or V(disabled).", type: str}
    memory_mib: {description: Memory of the machine in MiB., type: int}
    cgroup: {description: "Version of control groups, V(0) if it cannot be told.", type: int, sample: 2}
kernel:
  description: The running kernel.
  returned: when V(system) is gathered
  type: dict
  contains:
    release: {description: Release., type: str, sample: 6.1.0-30-amd64}
    headers: {description: Folder of its headers., type: str}
    secure_boot: {description: "V(enabled), V(disabled), V(none) for a host without EFI, or V(unknown).", type: str}
    signed_modules_only: {description: Whether the kernel rejects unsigned modules., type: bool}
pythons:
  description: Pythons from 3.10 on, newest first.
  returned: when V(system) is gathered
  type: list
  elements: dict
  contains:
    path: {description: Path., type: str, sample: /usr/bin/python3}
    version: {description: Version., type: str, sample: "3.11"}
    venv: {description: Whether it can make virtual environments with pip., type: bool}
python_packages:
  description: Packages of the distribution that the runtime lacks on this host, for its Python.
  returned: when V(system) is gathered
  type: list
  elements: str
disk:
  description: The file system of O(install_dir).
  returned: when V(system) is gathered
  type: dict
  contains:
    path: {description: The folder., type: str}
    free_mib: {description: Free space in MiB., type: int}
ground:
  description: Folders, ports, API server and scheduler that an installation needs.
  returned: when V(system) is gathered
  type: dict
  contains:
    read_only: {description: Folders that cannot be written., type: list, elements: str}
    full: {description: Folders whose file system has too few inodes left., type: list, elements: str}
    without_room:
      description: Folders in which no container can start, for lack of space or inodes, with what is missing.
      type: list
      elements: str
    no_programs: {description: "O(install_dir), if its file system is mounted noexec.", type: list, elements: str}
    listening: {description: TCP ports that are taken on 127.0.0.1., type: list, elements: int}
    extender: {description: Whether the extender is installed., type: bool}
    server: {description: The API server that kubelet uses., type: str}
    unreached: {description: Why no connection to it could be made., type: str}
    scheduler: {description: Whether a kube-scheduler runs., type: bool}
    machine_id: {description: "Content of C(/etc/machine-id).", type: str}
    ahead: {description: "Seconds by which the host's clock is ahead of the API server's.", type: float}
pci:
  description: NVIDIA's devices on the PCI bus. A hint only, since a host may hide the bus.
  returned: when V(gpus) is gathered
  type: dict
  contains:
    gpus: {description: "Each with C(address), C(device), C(driver) and C(numa_node).", type: list, elements: dict}
driver:
  description: NVIDIA's driver by its parts, which must be of one version.
  returned: when V(gpus) is gathered
  type: dict
  contains:
    loaded: {description: Version of the loaded kernel module., type: str}
    installed: {description: Version of the kernel module on disk for the running kernel., type: str}
    installed_path: {description: Its path., type: str}
    library: {description: Version of libnvidia-ml., type: str}
    library_path: {description: Its path., type: str}
    nvidia_smi: {description: Path of nvidia-smi., type: str}
    nouveau_loaded: {description: Whether nouveau is loaded., type: bool}
    kind: {description: "Kind of the kernel module, V(open) or V(proprietary).", type: str}
    installed_kind: {description: The same of the kernel module on disk., type: str}
    signed: {description: Whether the kernel module on disk has a signature., type: bool}
    other_kernels: {description: Other kernels that have a module on disk., type: list, elements: str}
    container: {description: Whether a driver container of the GPU Operator provides the driver., type: bool}
nvidia_smi: {description: Result of M(gpushare.kubernetes.nvidia_smi_info)., returned: when V(gpus) is gathered, type: dict}
runtimes:
  description: Container runtimes that are installed.
  returned: when gathered
  type: list
  elements: dict
  contains:
    name: {description: "V(containerd), V(docker), V(cri-o) or V(cri-dockerd).", type: str}
    binary: {description: Path of the program., type: str}
    version: {description: Version., type: str}
    socket: {description: Its socket., type: str}
    running: {description: Whether it runs., type: bool}
managers:
  description: Other managers of the GPUs, such as another device plugin.
  returned: when gathered
  type: list
  elements: dict
  contains:
    name: {description: Its project., type: str, sample: NVIDIA device plugin}
    active: {description: Whether it has the GPUs now., type: bool}
    evidence: {description: Observations., type: list, elements: str}
    pods: {description: Running pods that have its devices., type: list, elements: str, sample: [default/train-0]}
    holders:
      description: UIDs of all pods that have its devices by kubelet's record. Some of them may have ended.
      type: list
      elements: str
registered:
  description: Number of healthy devices by extended resource, from kubelet's record.
  returned: when V(managers) is gathered
  type: dict
sharing:
  description: How the GPUs are shared now.
  returned: when V(managers) is gathered
  type: dict
  contains:
    unit: {description: Unit of memory of the device plugin that this collection has installed., type: str, sample: GiB}
    pods: {description: UIDs of the pods that have memory of the GPUs and a process that runs., type: list, elements: str}
    holders: {description: "UIDs of these pods, and of those with whole GPUs.", type: list, elements: str}
    strategy: {description: Device strategy of the device plugin that this collection has installed., type: str, sample: cdi}
    limited: {description: UIDs of the pods with memory that the driver limits., type: list, elements: str}
cdi:
  description: Why CDI devices of a device plugin do not reach containers. Empty texts if they do.
  returned: when V(runtimes) is gathered
  type: dict
  contains:
    kubelet: {description: The reason in kubelet., type: str}
    runtime: {description: The reason in the container runtime., type: str}
    spec: {description: Why no CDI spec names the GPUs. Empty if one does., type: str}
    "off": {description: Whether the container runtime only has CDI switched off., type: bool}
    reader: {description: Why the container runtime reads no specs of version 0.7.0. Empty if it does., type: str}
    newer: {description: Whether the spec in place is of version 0.7.0 or newer., type: bool}
toolkit:
  description: Requests for GPUs that NVIDIA's container runtime honours, by the configuration of the toolkit.
  returned: when V(runtimes) is gathered
  type: dict
  contains:
    environment: {description: The environment of unprivileged containers., type: bool}
    mounts: {description: Mounts below /var/run/nvidia-container-devices., type: bool}
    problem: {description: Why that is not known., type: str}
    no_cgroups: {description: Whether the mode legacy leaves the cgroups of containers alone., type: bool}
    version: {description: "Version of nvidia-ctk, V(\"\") for none.", type: str, sample: 1.20.1}
authorities:
  description: SHA-256 of each certificate authority that kubelet believes. Hosts of one cluster have one in common.
  returned: when V(system) is gathered
  type: list
  elements: str
kubelet_unit:
  description:
    - The service of a kubelet that does not run, as systemd sees it.
    - Missing where kubelet runs.
  returned: success
  type: dict
  contains:
    name: {description: The name of the service., type: str}
    load: {description: "Its C(LoadState), such as V(masked).", type: str}
    active: {description: "Its C(ActiveState).", type: str}
    state: {description: "Its C(SubState).", type: str}
    result: {description: "Its C(Result), such as V(exit-code).", type: str}
    says: {description: The last error that kubelet has logged since its last start., type: str}
cgroups:
  description: The cgroup drivers of kubelet and of the runtime that makes pods, V(systemd) or V(cgroupfs), empty where it cannot be said.
  returned: when V(runtimes) is gathered
  type: dict
  contains:
    kubelet: {description: The driver of the running kubelet., type: str}
    runtime: {description: The driver of the container runtime., type: str}
    handler: {description: The runtime of containerd that pods get by default., type: str}
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._facts.node import SUBSETS, DescribedNode, described, gather
from ..module_utils._formats.answers import answer_of
from ..module_utils._host.host import Host


def answer(module: AnsibleModule) -> DescribedNode:
    """Gather the facts."""
    params = module.params
    return described(gather(Host(params["root"], params["timeout"]), params["gather"], params["install_dir"]))


OPERATIONS = {"": answer}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node_name": {"type": "str", "default": ""},
            "gather": {"type": "list", "elements": "str", "choices": list(SUBSETS), "default": list(SUBSETS)},
            "install_dir": {"type": "path", "default": "/opt/gpushare"},
            "root": {"type": "path", "default": "/"},
            "timeout": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **answer_of(answer(module)))


if __name__ == "__main__":
    main()
