# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every name on the wire, once: resources, annotations, labels, environment, sockets, paths."""

from __future__ import annotations

from typing import Final

# The extended resources.
RESOURCE_MEMORY: Final = "aliyun.com/gpu-mem"
RESOURCE_GPUS: Final = "aliyun.com/gpu-count"
RESOURCE_CORE: Final = "aliyun.com/gpu-core.percentage"
RESOURCES: Final = (RESOURCE_MEMORY, RESOURCE_GPUS, RESOURCE_CORE)

# Pod label of ACK: gpu-mem N as N/M on each of M GPUs of one node. Same text as RESOURCE_GPUS, another place.
LABEL_GPUS_PER_POD: Final = "aliyun.com/gpu-count"

# Pod annotations: the original's five, and ACK's allocation JSON.
ANNOTATION_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ANNOTATION_GPU_UNITS: Final = "ALIYUN_COM_GPU_MEM_DEV"
ANNOTATION_POD_UNITS: Final = "ALIYUN_COM_GPU_MEM_POD"
ANNOTATION_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ANNOTATION_ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ANNOTATION_ALLOCATION: Final = "scheduler.framework.gpushare.allocation"

# Pod annotation, written by the extender on a pending pod so that kube-scheduler retries it; value: when.
ANNOTATION_REQUEUED: Final = "gpushare/requeued"

# Pod annotation of the API's copy of a static pod: by it kubelet knows the pod. Anybody may write it who may set spec.nodeName.
ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"

# Pod annotations, written by users: which GPUs are meant, with whom, and how they are chosen. See constraints.py.
ASK_MODELS: Final = "gpushare.request/models"
ASK_MODELS_REFUSED: Final = "gpushare.request/models-refused"
ASK_GPUS: Final = "gpushare.request/gpus"
ASK_GPUS_REFUSED: Final = "gpushare.request/gpus-refused"
ASK_SAME_GPU_AS: Final = "gpushare.request/same-gpu-as"
ASK_NOT_WITH: Final = "gpushare.request/not-with"
ASK_PLACEMENT: Final = "gpushare.request/placement"
ASK_ISOLATION: Final = "gpushare.request/isolation"
ASK_LINKS: Final = "gpushare.request/links"
ASKS: Final = frozenset(
    (ASK_MODELS, ASK_MODELS_REFUSED, ASK_GPUS, ASK_GPUS_REFUSED, ASK_SAME_GPU_AS, ASK_NOT_WITH, ASK_PLACEMENT, ASK_ISOLATION, ASK_LINKS)
)

# The isolations that keep a pod to its units, strictest first. The node annotation `gpushare/gpus` publishes it; see
# docs/operate/isolation.md.
ISOLATION_DRIVER: Final = "driver"
ISOLATION_MPS: Final = "mps"
ISOLATION_WATCH: Final = "watch"
ISOLATION_NONE: Final = "none"
# Those that a pod may require, and those that share out a GPU's compute.
ISOLATIONS_REQUIRED: Final = (ISOLATION_DRIVER, ISOLATION_MPS)
ISOLATIONS_WITH_COMPUTE: Final = (ISOLATION_DRIVER, ISOLATION_MPS)

# The links that a pod may require between its GPUs.
LINKS_REQUIRED: Final = ("nvlink",)

# Node labels, of ACK.
LABEL_PLACEMENT: Final = "ack.node.gpu.placement"
LABEL_MODEL: Final = "aliyun.accelerator/nvidia_name"

# Node annotations, written by the device plugin.
ANNOTATION_GPUS: Final = "gpushare/gpus"
ANNOTATION_HELD: Final = "gpushare/held"
# The pods of this node that the extender should evict. See overuse.py.
ANNOTATION_EVICTIONS: Final = "gpushare/evictions"
# The use that the pods of this node make of its GPUs. See use_report.py.
ANNOTATION_USE: Final = "gpushare/use"
# Node annotation, written by an administrator: GPUs (NVML index or UUID, with commas; "all") that take no new pods.
ASK_CORDON: Final = "gpushare/cordon"

# ConfigMap of the original, with key "gpus": indexes of the GPUs of a node that are not to be used.
UNHEALTHY_NAMESPACE: Final = "kube-system"
UNHEALTHY_PREFIX: Final = "unhealthy-gpu-"
UNHEALTHY_KEY: Final = "gpus"

# How a container gets its GPUs from the device plugin, strictest first. The node annotation `gpushare/gpus` publishes it.
STRATEGY_CDI: Final = "cdi"
STRATEGY_MOUNTS: Final = "volume-mounts"
STRATEGY_ENVIRONMENT: Final = "envvar"
STRATEGIES: Final = (STRATEGY_CDI, STRATEGY_MOUNTS, STRATEGY_ENVIRONMENT)

# NVIDIA's names for GPUs in CDI, ours where the device plugin writes the spec, and the folder whose mounts NVIDIA's runtime reads.
CDI_KIND: Final = "nvidia.com/gpu"
CDI_KIND_OWN: Final = "gpushare.kubernetes/gpu"
# Of the GPU Operator's toolkit: one device `all`, for the operator's own pods.
CDI_KIND_MANAGEMENT: Final = "management.nvidia.com/gpu"
CDI_KINDS: Final = (CDI_KIND, CDI_KIND_OWN)
# The file of our spec, in the folder of CDI specs that a reboot empties.
CDI_FILE: Final = "gpushare.json"
CDI_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
MOUNTED_DEVICES: Final = "/var/run/nvidia-container-devices"

# Environment of a container, from Allocate.
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
ENV_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ENV_POD_UNITS: Final = "ALIYUN_COM_GPU_MEM_POD"
ENV_CONTAINER_UNITS: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
ENV_GPU_UNITS: Final = "ALIYUN_COM_GPU_MEM_DEV"

# kubelet. Its folder of device plugins, with its socket and its checkpoint, does not follow its --root-dir (k8s.io/kubelet v0.36.3,
# pkg/apis/deviceplugin/v1beta1/constants.go: DevicePluginPath; kubernetes#120626), that of pod-resources does.
KUBELET_PLUGIN_DIR: Final = "/var/lib/kubelet/device-plugins"
KUBELET_SOCKET: Final = "kubelet.sock"
KUBELET_CHECKPOINT: Final = "kubelet_internal_checkpoint"
# Of --root-dir; what else is below it here is relative to it.
KUBELET_ROOT: Final = "/var/lib/kubelet"
KUBELET_POD_RESOURCES: Final = "pod-resources/kubelet.sock"
# The folder of its plugin watcher, the drivers that give GPUs by dynamic resource allocation, and how the names of their sockets there
# go on: with rolling updates "-" and the pod's UID, or a hash of it, come first (k8s.io/dynamic-resource-allocation v0.37.2).
KUBELET_REGISTRATIONS: Final = "plugins_registry"
DRA_DRIVERS: Final = ("gpu.nvidia.com", "hami-core-gpu.project-hami.io")
DRA_REGISTRATION: Final = r"(-[-\w]+)?-reg\.sock"
# How the names of the device plugin's sockets begin; eight hexadecimal digits of this registration and ".sock" follow. kubelet 1.37
# and newer keep a plugin by the path of its socket, and reject another one there until they restart.
SOCKET_MEMORY: Final = "aliyungpushare-mem-"
SOCKET_GPUS: Final = "aliyungpushare-gpus-"
SOCKET_END: Final = ".sock"
# The original's name, and that of a former release beside it: both were fixed.
FORMER_SOCKETS: Final = ("aliyungpushare.sock", "aliyungpushare-gpus.sock")
REGISTERED: Final = "registered with kubelet"
"""The device plugin's status of a resource that kubelet has from it; the installer and the doctor search for it."""

# Reasons of Events: on pods, the first two also on the node, the last one there only.
EVENT_GPU_UNUSABLE: Final = "GPUShareGPUUnusable"
EVENT_GPU_USABLE: Final = "GPUShareGPUUsable"
EVENT_ALLOCATED: Final = "GPUShareAllocated"
EVENT_TOO_LARGE: Final = "GPUShareRequestTooLarge"
EVENT_INVALID: Final = "GPUShareRequestInvalid"
EVENT_UNSUPPORTED: Final = "GPUShareRequestUnsupported"
EVENT_UNMANAGED: Final = "GPUShareUnmanaged"
EVENT_CORRECTED: Final = "GPUShareCorrected"
EVENT_SECOND_SCHEDULER: Final = "GPUShareSecondScheduler"
EVENT_EXCEEDED: Final = "GPUShareMemoryExceeded"
EVENT_NOT_EVICTED: Final = "GPUShareNotEvicted"
EVENT_EVICTED: Final = "GPUShareEvicted"
EVENT_CDI: Final = "GPUShareCDISpecUnusable"

# Phases of a pod that has ended and has no GPUs any more.
FINISHED_PHASES: Final = ("Succeeded", "Failed")
# The field selector for the others.
UNFINISHED: Final = ",".join(f"status.phase!={phase}" for phase in FINISHED_PHASES)

# Extender.
EXTENDER_PREFIX: Final = "/gpushare-scheduler"
EXTENDER_PORT: Final = 32766
# The namespace of the daemons where they are pods.
IN_CLUSTER_NAMESPACE: Final = "gpushare-system"
# ConfigMaps that every user may read: the sizes of the GPUs, which the extender writes, and what the installation knows.
PUBLIC_NAMESPACE: Final = "kube-public"
SIZES: Final = "gpushare-gpus"
SIZES_KEY: Final = "sizes"
INFO: Final = "gpushare-info"
