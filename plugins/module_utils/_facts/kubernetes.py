# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's part in Kubernetes: its kubelet, what installed it, which container runtimes it has and which one kubelet uses.

Read-only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from .._formats.versions import numbers
from .._formats.yaml_scalars import scalars
from .._host.container_runtimes import DEFAULT_SOCKET, KINDS
from .._host.host import Host, flag, flags
from .._host.rancher import RancherService, service
from .._host.systemd import environment, words

_KUBELET_SAYS = re.compile(r"Kubernetes (v[0-9][^\s]*)")
_RANCHER_SAYS = re.compile(r"(?:k3s|rke2) version (v[0-9][^\s]*)")
DEFAULT_ROOT = "/var/lib/kubelet"
_DEFAULT_CONFIG = "/var/lib/kubelet/config.yaml"
_FLAG_FILES = (
    ("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS"),
    ("/etc/default/kubelet", "KUBELET_EXTRA_ARGS"),
    ("/etc/sysconfig/kubelet", "KUBELET_EXTRA_ARGS"),
)
_MANIFESTS = "/etc/kubernetes/manifests"
_COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_ADMIN = ("/etc/kubernetes/admin.conf", "/etc/rancher/rke2/rke2.yaml", "/etc/rancher/k3s/k3s.yaml")
_DRIVER = 40
_MOST_FLAGS, _FLAG = 300, re.compile("[A-Za-z0-9_-]{1,80}")
_ON = ("true", "t", "1")
_K3S_SOCKET = "/run/k3s/containerd/containerd.sock"


@dataclass(frozen=True)
class Runtime:
    """A container runtime that is installed. name: of KINDS, or "cri-dockerd"."""

    name: str
    binary: Optional[str]
    version: Optional[str]
    socket: Optional[str]
    running: bool


@dataclass(frozen=True)
class Kubelet:
    """The meaning of a kubelet's arguments. pid is None when none runs: then the other values are kubelet's defaults."""

    pid: Optional[int]
    node_name: str
    root_dir: str


@dataclass(frozen=True)
class KubeletFacts:
    """The host's kubelet. Where none runs, the values are those of the files that it would start with.

    installed: whether there is one at all. node_name: of its Kubernetes node. endpoint: the socket of its container runtime.
    runtime: the name of that runtime ("docker" also through cri-dockerd), "unknown" for a socket that no known runtime has,
    None if nothing says. config: its configuration file, if there is one. cgroup_driver: as it says itself, see cgroup_drivers.py.
    flags: the names of those that it is given, with - for _. fail_cgroup_v1: its failCgroupV1, None where nothing sets it.
    """

    installed: bool
    running: bool
    version: Optional[str]
    binary: Optional[str]
    node_name: str
    node_name_overridden: bool
    root: str
    config: Optional[str]
    endpoint: Optional[str]
    runtime: Optional[str]
    feature_gates: Dict[str, bool]
    cgroup_driver: str = "cgroupfs"
    flags: Tuple[str, ...] = ()
    fail_cgroup_v1: Optional[bool] = None


@dataclass(frozen=True)
class Distribution:
    """The installer of Kubernetes here. name: "kubeadm", "k3s", "rke2", "openshift", "microk8s", "k0s", "unknown", "none".

    kubespray: whether kubespray did, which would take changes of its own files back.
    """

    name: str
    kubespray: bool
    version: Optional[str]


@dataclass(frozen=True)
class ControlPlane:
    """The parts of a control plane on the host. manifests: path of each static pod's manifest by component.

    feature_gates: those that a running component is given, by component.
    """

    present: bool
    manifests: Dict[str, str]
    kubeconfig: Optional[str]
    kubectl: Optional[str]
    feature_gates: Dict[str, Dict[str, bool]] = field(default_factory=dict)


def distribution(host: Host) -> Distribution:
    """The installer of Kubernetes here, by the traces that it leaves."""
    server, rke2 = host.process("k3s", "k3s-server", "k3s-agent"), host.process("rke2")
    if rke2 or host.is_folder("/etc/rancher/rke2") or host.is_folder("/var/lib/rancher/rke2/agent"):
        return Distribution("rke2", False, host.answer(host.program("rke2"), ["--version"], _RANCHER_SAYS))
    if server or host.is_folder("/etc/rancher/k3s") or host.is_folder("/var/lib/rancher/k3s/agent"):
        return Distribution("k3s", False, host.answer(host.program("k3s"), ["--version"], _RANCHER_SAYS))
    os_release = host.text("/etc/os-release") or ""
    if "OPENSHIFT_VERSION" in os_release or host.is_folder("/etc/machine-config-daemon") or host.is_folder("/etc/microshift"):
        return Distribution("openshift", False, None)
    if host.is_folder("/var/snap/microk8s"):
        return Distribution("microk8s", False, None)
    if host.is_folder("/var/lib/k0s"):
        return Distribution("k0s", False, None)
    kubespray = host.exists("/etc/kubernetes/kubelet.env") and host.exists("/etc/kubernetes/kubelet-config.yaml")
    if kubespray or host.existing((_FLAG_FILES[0][0], "/etc/kubernetes/kubelet.conf", _ADMIN[0])):
        return Distribution("kubeadm", kubespray, None)
    return Distribution("unknown" if host.process("kubelet") or host.program("kubelet") else "none", False, None)


def kubelet(host: Host, found: Distribution) -> KubeletFacts:
    """The kubelet that runs, or else the one that would. For k3s it is k3s itself, and is asked of k3s' own files."""
    if found.name == "k3s":
        return _k3s(host, found)
    process = host.process("kubelet")
    argv = list(process.argv) if process else ["kubelet", *_flags_of_files(host)]
    basics = from_argv(process.pid if process else None, argv, host.hostname)
    own = service(host, found.name)
    binary = host.program_of(process, "kubelet") or (None if own is None else host.program(f"{own.data}/bin/kubelet"))
    config = flag(argv, "config") or next(iter(host.existing((_DEFAULT_CONFIG, "/etc/kubernetes/kubelet-config.yaml"))), None)
    values = scalars(host.text(config) or "") if config else {}
    # "Set kubelet parameters via a configuration file" (kubernetes.io).
    values.update(host.yaml_scalars(flag(argv, "config-dir") or "", (".conf",)))
    version = host.answer(binary, ["--version"], _KUBELET_SAYS)
    endpoint = _endpoint(argv, values, version)
    return KubeletFacts(
        installed=process is not None or binary is not None,
        running=process is not None,
        version=version,
        binary=binary,
        node_name=basics.node_name,
        node_name_overridden=flag(argv, "hostname-override") is not None,
        root=basics.root_dir,
        config=config,
        endpoint=endpoint,
        runtime=runtime_of(endpoint),
        feature_gates=_feature_gates(argv, values),
        cgroup_driver=(flag(argv, "cgroup-driver") or values.get("cgroupDriver") or "cgroupfs")[:_DRIVER],
        flags=tuple(sorted({name.replace("_", "-") for name in flags(argv) if _FLAG.fullmatch(name)}))[:_MOST_FLAGS],
        fail_cgroup_v1=_fail_cgroup_v1(argv, values),
    )


def from_argv(pid: Optional[int], argv: List[str], hostname: str) -> Kubelet:
    """The meaning of these arguments; kubelet lowers the case of its node's name."""
    name = flag(argv, "hostname-override") or hostname
    return Kubelet(pid, name.strip().lower(), flag(argv, "root-dir") or DEFAULT_ROOT)


def runtime_of(endpoint: Optional[str]) -> Optional[str]:
    """Which runtime listens on this socket."""
    if endpoint is None:
        return None
    path = endpoint.lower()
    # The first last: others may have its name in theirs.
    return next((name for name, kind in reversed(list(KINDS.items())) if any(word in path for word in kind.names)), "unknown")


def runtimes(host: Host, found: Distribution) -> Tuple[Runtime, ...]:
    """The container runtimes that are installed, whether kubelet uses them or not."""
    own = {"containerd": (_K3S_SOCKET,)} if found.name in ("k3s", "rke2") else {}
    known = [_runtime(host, name, kind.program, kind.version, (*own.get(name, ()), *kind.sockets)) for name, kind in KINDS.items()]
    known.append(_runtime(host, "cri-dockerd", "cri-dockerd", r"cri-dockerd v?([0-9][^\s]*)", ("/run/cri-dockerd.sock",)))
    return tuple(runtime for runtime in known if runtime is not None)


def control_plane(host: Host, own: Optional[RancherService]) -> ControlPlane:
    """The manifests of the control plane, and how its API is reached from here. own: the host's k3s or RKE2."""
    manifests = {}
    for folder in (_MANIFESTS, *([] if own is None else [f"{own.data}/agent/pod-manifests"])):
        for name in host.names(folder):
            component = name.rsplit(".", 1)[0]
            if component in _COMPONENTS and name.endswith((".yaml", ".yml", ".json")):
                manifests[component] = f"{folder}/{name}"
    is_server = own is not None and own.is_server
    return ControlPlane(
        present="kube-apiserver" in manifests or is_server or host.process("kube-apiserver") is not None,
        manifests=manifests,
        kubeconfig=next(iter(host.existing(_ADMIN)), None),
        kubectl=host.program("kubectl"),
        feature_gates={component: gates for component, gates in _running_gates(host).items() if gates},
    )


def _k3s(host: Host, found: Distribution) -> KubeletFacts:
    own = service(host, found.name)
    options = {} if own is None else own.options
    name, docker = options.get("node-name"), options.get("docker") in _ON
    endpoint = options.get("container-runtime-endpoint") or (
        "unix:///run/k3s/cri-dockerd/cri-dockerd.sock" if docker else f"unix://{_K3S_SOCKET}"
    )
    binary = host.program("k3s")
    return KubeletFacts(
        installed=binary is not None or (own is not None and own.installed),
        running=own is not None and own.runs,
        version=found.version,
        binary=binary,
        node_name=(name or host.hostname).strip().lower(),
        node_name_overridden=name is not None,
        root=DEFAULT_ROOT,
        config=None,
        endpoint=endpoint,
        runtime=runtime_of(endpoint),
        feature_gates={},
    )


def _flags_of_files(host: Host) -> List[str]:
    """The arguments that kubeadm's unit would start kubelet with."""
    texts = ((environment(host.text(path) or ""), variable) for path, variable in _FLAG_FILES)
    return [word for variables, variable in texts for word in words(variables.get(variable, ""))]


def _endpoint(argv: List[str], config: Dict[str, str], version: Optional[str]) -> Optional[str]:
    given = flag(argv, "container-runtime-endpoint")
    known = numbers(version)
    if known is not None and known[:2] < (1, 24) and flag(argv, "container-runtime") != "remote":
        return "unix:///var/run/dockershim.sock"
    if given or config.get("containerRuntimeEndpoint"):
        return given or config["containerRuntimeEndpoint"]
    # kubelet's own default since 1.24.
    return f"unix://{DEFAULT_SOCKET}" if known is not None else None


def _fail_cgroup_v1(argv: List[str], config: Dict[str, str]) -> Optional[bool]:
    said = flag(argv, "fail-cgroupv1") or config.get("failCgroupV1")
    return None if said is None else said.lower() in _ON


def _running_gates(host: Host) -> Dict[str, Dict[str, bool]]:
    processes = ((component, host.process(component)) for component in _COMPONENTS)
    return {component: _feature_gates(list(process.argv), {}) for component, process in processes if process is not None}


def _feature_gates(argv: List[str], config: Dict[str, str]) -> Dict[str, bool]:
    gates = {key[len("featureGates.") :]: value == "true" for key, value in config.items() if key.startswith("featureGates.")}
    # Each flag adds to the ones before it.
    for place, word in enumerate(argv):
        key, given, value = word.partition("=")
        if key not in ("--feature-gates", "-feature-gates"):
            continue
        for pair in (value if given else next(iter(argv[place + 1 : place + 2]), "")).split(","):
            name, equals, setting = pair.partition("=")
            if equals:
                gates[name.strip()] = setting.strip().lower() in _ON
    return gates


def _runtime(host: Host, name: str, program: str, says: str, sockets: Tuple[str, ...]) -> Optional[Runtime]:
    process = host.process(program)
    binary = host.program_of(process, program)
    if process is None and binary is None:
        return None
    return Runtime(
        name=name,
        binary=binary,
        version=host.answer(binary, ["--version"], re.compile(says)),
        socket=next((path for path in sockets if host.is_socket(path)), None),
        running=process is not None,
    )
