# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every name that this collection shares with the cluster: resources, annotations, labels, accounts, units, sockets, files.

Those that the daemons use, too, are the ones in the runtime's protocol.py, which a test compares.
"""

from __future__ import annotations

import hashlib

#: The resources of NVIDIA's device plugin: GPUs, instances of MIG, and both with time-slicing or MPS, such as nvidia.com/gpu.shared.
#: HAMi's of similar names, gpumem and gpucores, are not among them.
NVIDIA_RESOURCES = r"nvidia\.com/(?:gpu(?!mem|cores)|mig-).*"

# Resources that pods ask for.
MEMORY = "aliyun.com/gpu-mem"
GPUS = "aliyun.com/gpu-count"
#: No device plugin registers it: the extender alone accounts for it, and kube-scheduler must not search for it among a node's resources.
COMPUTE = "aliyun.com/gpu-core.percentage"
RESOURCES = (MEMORY, GPUS, COMPUTE)

# Annotations of nodes: their GPUs, and what the device plugin keeps back.
ANNOTATION_GPUS = "gpushare/gpus"
ANNOTATION_HELD = "gpushare/held"
ANNOTATION_USE = "gpushare/use"
# Annotations of pods: container to GPU to units; the GPU of the whole pod, as the original writes it.
ANNOTATION_ALLOCATION = "scheduler.framework.gpushare.allocation"
ANNOTATION_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
#: How all annotations begin that are ours, on nodes and pods.
ANNOTATION_PREFIXES = ("ALIYUN_COM_", "gpushare/", "scheduler.framework.gpushare")
#: On kube-scheduler's static pod: a configuration that changes alone would not restart the scheduler.
ANNOTATION_SETTINGS = "gpushare.kubernetes/settings"
ANNOTATION_SCHEDULER_CONFIG = "gpushare.kubernetes/scheduler-config-sha256"
#: kubelet's own: the API's copy of a static pod.
ANNOTATION_MIRROR = "kubernetes.io/config.mirror"

#: A device plugin's Event about a pod that came to its node without the extender.
EVENT_UNMANAGED = "GPUShareUnmanaged"

# Labels of nodes: that ours serves it, and how its GPUs are filled.
LABEL_NODE = "gpushare.kubernetes/node"
#: Of NVIDIA's feature discovery and GPU Operator, on nodes with a GPU (gpu-operator controllers/state_manager.go, read on 2026-11-29).
LABEL_NVIDIA_GPU = "nvidia.com/gpu.present"
#: While the mode changes: a service of the host still serves the node, and the DaemonSet stays away.
LABEL_ON_HOST = "gpushare.kubernetes/on-host"
LABEL_PLACEMENT = "ack.node.gpu.placement"
#: The isolation that keeps pods to their memory there, in ACK's words: pods written for ACK select nodes by it.
LABEL_SCHEDULE = "ack.node.gpu.schedule"
#: Of GPU nodes where pods without GPUs shall prefer other ones.
TAINT = "gpushare.kubernetes/gpu"
# The label of verify's probe pods, and its value.
LABEL_PROBE = "gpushare.kubernetes/probe"
PROBE = "verify"

# Of take_over.yml: the label of nodes from which another device plugin was moved aside by its affinity; the annotations that say what
# nodes and DaemonSets were before.
LABEL_TAKEN_OVER = "gpushare.kubernetes/taken-over"
ANNOTATION_TAKEN_OVER = "gpushare.kubernetes/taken-over"
ANNOTATION_MOVED_ASIDE = "gpushare.kubernetes/moved-aside"
#: On the ClusterPolicy of NVIDIA's GPU Operator: what it was before its device plugin was switched off.
ANNOTATION_OPERATOR = "gpushare.kubernetes/gpu-operator"
#: On the ConfigMap with OpenShift's scheduler policy: what it was before our extender was in it.
ANNOTATION_POLICY = "gpushare.kubernetes/scheduler-policy"

#: The RuntimeClass of our own pods, and NVIDIA's runtime as container runtimes call it. A policy keeps pods of others off that class: by
#: NVIDIA's runtime any container may get every GPU.
RUNTIME_CLASS, RUNTIME_HANDLER = "gpushare-nvidia", "nvidia"
NAMESPACE = "kube-system"
#: kubeadm's kubeconfigs on a control plane, each with a certificate for a year (kubernetes.io, "Certificate Management with kubeadm", read
#: on 2026-11-29).
ADMIN_CONF = "/etc/kubernetes/admin.conf"
KUBECONFIGS = ("/etc/kubernetes/scheduler.conf", "/etc/kubernetes/controller-manager.conf", ADMIN_CONF)
#: kubeadm's certificates of its control plane by file: the name in `kubeadm certs renew`, and the program that shows it (Kubernetes 1.37.2,
#: cmd/kubeadm/app/phases/certs/certlist.go).
KUBEADM_CERTIFICATES = {
    f"/etc/kubernetes/pki/{file}.crt": (name, program)
    for file, name, program in (
        ("apiserver", "apiserver", "kube-apiserver"),
        ("apiserver-kubelet-client", "apiserver-kubelet-client", "kube-apiserver"),
        ("apiserver-etcd-client", "apiserver-etcd-client", "kube-apiserver"),
        ("front-proxy-client", "front-proxy-client", "kube-apiserver"),
        ("etcd/server", "etcd-server", "etcd"),
        ("etcd/peer", "etcd-peer", "etcd"),
    )
}
#: A pattern of the namespaces that daemons in the cluster may have; objects elsewhere are not ours to change.
NAMESPACES = r"kube-system|gpushare-[a-z0-9](?:[-a-z0-9]{0,50}[a-z0-9])?"
#: How the names of all our objects begin.
PREFIX = "gpushare-"
#: The name under which the API server remembers which fields we have applied.
FIELD_MANAGER = "gpushare.kubernetes"
#: The daemons: their units, and as the device plugin calls itself at the API server.
PLUGIN, EXTENDER, DASHBOARD = "gpushare-device-plugin", "gpushare-extender", "gpushare-dashboard"
#: Of the scheduler in the cluster: its Deployment, its account, and as pods name it.
SCHEDULER = "gpushare-scheduler"
#: A device plugin's account, in front of its node's name.
PLUGIN_ACCOUNT_PREFIX = "gpushare-device-plugin-"
#: The ConfigMap of a node that its device plugin makes, in front of the node's name.
UNHEALTHY_PREFIX = "unhealthy-gpu-"

#: kubelet's folder of device plugins, with its socket and its checkpoint, wherever its --root-dir points.
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"
#: The original's socket, one that only a former release of ours has beside it, and a pattern of ours: each registration has its own.
ORIGINAL_SOCKET, FORMER_SOCKET = "aliyungpushare.sock", "aliyungpushare-gpus.sock"
SOCKETS = r"aliyungpushare-(mem|gpus)-[0-9a-f]{8}\.sock"
#: Beside ours those of former releases, which one that was killed has left; the original may listen on the first.
LEFT_SOCKETS = rf"{SOCKETS}|aliyungpushare(-gpus)?\.sock"

#: NVIDIA's and HAMi's drivers that give GPUs by dynamic resource allocation (main.go of kubernetes-sigs/dra-driver-nvidia-gpu and of
#: Project-HAMi/k8s-dra-driver, read on 2026-11-29). NVIDIA's compute-domain.nvidia.com gives channels between nodes, and no GPU.
DRA_NVIDIA, DRA_HAMI = "gpu.nvidia.com", "hami-core-gpu.project-hami.io"
#: The name of a driver's socket for kubelet's plugin watcher, behind the driver's own; with rolling updates "-", the pod's UID or a hash
#: of it, stand between (k8s.io/dynamic-resource-allocation v0.37.2, kubeletplugin/draplugin.go).
DRA_REGISTRATION = r"(-[-\w]+)?-reg\.sock"

#: The back ends that count GPU memory where the daemons are pods: a scheduler of ours, or the cluster's own by claims (DRA).
BACKENDS = BY_EXTENDER, BY_CLAIMS = "extender", "dra"
#: The owner of an installation that this collection has not applied, and no tool has marked.
MANIFEST = "a manifest"
#: Our own driver of DRA, the daemon that keeps a template in each namespace, and the name of those templates and of the DeviceClass.
DRA_OWN, CLAIMS, TEMPLATE = "gpushare.kubernetes", "gpushare-claims", "gpushare"
#: A pattern of the sockets of our driver in kubelet's folder of plugins that register, below its --root-dir.
DRA_SOCKETS, PLUGINS_REGISTRY = rf"{DRA_OWN.replace('.', '[.]')}-[0-9a-f]{{8}}-reg[.]sock", "plugins_registry"

#: The files by which kube-scheduler authenticates to the extender: authority, certificate, key.
SCHEDULER_TLS_FILES = ("ca.crt", "tls.crt", "tls.key")
#: All that gpushare-pki makes in its folder.
CERTIFICATES = ("ca.crt", "ca.key", "extender.crt", "extender.key", *(f"scheduler/{name}" for name in SCHEDULER_TLS_FILES))
#: The same for the dashboard: the folder beside its credentials, and what is in it.
DASHBOARD_PKI = "dashboard-pki"
DASHBOARD_CERTIFICATES = ("ca.crt", "ca.key", "dashboard.crt", "dashboard.key")
_LONGEST_NODE_NAME = 200


def own_pod_name(what: str, node: str) -> str:
    """Of a pod of ours for this node. A pod's name may have 253 characters, as a node's."""
    suffix = node if len(node) <= _LONGEST_NODE_NAME else hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{PREFIX}{what}-{suffix}"
