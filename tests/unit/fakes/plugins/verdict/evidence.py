# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What verify sees of a cluster without a fault: one control plane, one GPU node with two GPUs, one pod on the first of them."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import asdict
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import ANNOTATION_SCHEDULER_CONFIG
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.driver import Driver
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.daemons import ReleaseHashes
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.judge import Evidence

Json = dict[str, Any]

NOW = 1_800_000_000.0
UUIDS = ("GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002")
CONTAINER = "c" * 64
ARTIFACT = ReleaseHashes("a" * 64, "b" * 64, "c" * 64)
MANIFEST_PATH = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG_PATH = "/etc/kubernetes/gpushare/kube-scheduler.yaml"

CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders:
- urlPrefix: https://127.0.0.1:32766/gpushare-scheduler
  filterVerb: filter
  bindVerb: bind
  preemptVerb: preempt
  prioritizeVerb: prioritize
  weight: 1
  enableHTTPS: true
  httpTimeout: 1s
  nodeCacheCapable: true
  tlsConfig:
    certFile: /etc/gpushare/pki/scheduler/tls.crt
    keyFile: /etc/gpushare/pki/scheduler/tls.key
    caFile: /etc/gpushare/pki/scheduler/ca.crt
  managedResources:
  - name: aliyun.com/gpu-mem
  - name: aliyun.com/gpu-count
"""


def manifest(config: str = CONFIG) -> str:
    sha = hashlib.sha256(config.encode()).hexdigest()
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: kube-scheduler
  namespace: kube-system
  annotations:
    {ANNOTATION_SCHEDULER_CONFIG}: {sha}
spec:
  containers:
  - name: kube-scheduler
    image: registry.k8s.io/kube-scheduler:v1.36.3
    command:
    - kube-scheduler
    - --config={CONFIG_PATH}
    volumeMounts:
    - name: config
      mountPath: /etc/kubernetes/gpushare
  volumes:
  - name: config
    hostPath:
      path: /etc/kubernetes/gpushare
"""


def doctor(daemon: str, **changes: Any) -> Json:
    """What gpushare-doctor answers of a daemon that is as it should be."""
    listens = "127.0.0.1:32766" if daemon == "gpushare-extender" else ""
    known = {"runs": True, "active": "active", "state": "running", "says": "", "pid": 100, "listens": listens, "metrics": ""}
    empty: Json = {"findings": [], "health": None, "strangers": [], "registered": {}}
    return {"v": 1, "version": "0.1.0", "daemons": {daemon: known}, **empty, **changes}


def finding(code: str, severity: str = "error", found: str = "words") -> Json:
    """One of the doctor's."""
    return {"check": code, "severity": severity, "found": found, "expected": "others", "cure": "a cure"}


def printed(host: Json) -> Json:
    """What was seen of the host, with the doctor's answer as it is printed."""
    answer = host["doctor"]
    return {**host, "doctor": answer if "problem" in answer else {"problem": "", "cure": "", "answer": json.dumps(answer)}}


def runtime() -> Json:
    return {
        "version": "0.1.0",
        "wheel_sha256": ARTIFACT.wheel_sha256,
        "requirements_sha256": ARTIFACT.requirements_sha256,
        "environment": "/opt/gpushare/0.1.0-0123456789ab",
    }


def gpu(index: int, mib: int = 16384) -> Json:
    return {
        "index": index,
        "uuid": UUIDS[index],
        "minor": index,
        "pci": f"0000:0{index}:00.0",
        "model": "Tesla T4",
        "memory_mib": mib,
        "compute_mode": "Default",
        "mig_mode": None,
        "mig_devices": [],
        "processes": [],
    }


def files() -> Json:
    return {"problem": "", "changed": [], "unrecorded": [], "drop_ins": []}


def gpu_host() -> Json:
    """Of gpu1, whose node is node-1."""
    seen = {
        "nvidia_smi": {"gpus": [gpu(0), gpu(1)], "driver_version": "535.261.03", "cuda_version": "12.2", "problem": None},
        "driver": asdict(Driver("535.261.03", None, None, "535.261.03", None, None, False)),
        "managers": [],
        "container_runtime": {
            "name": "containerd",
            "problem": "",
            "broken": "",
            "file_default": "nvidia",
            "running_default": "nvidia",
            "lacks": "",
            "unit": "containerd.service",
            "stopped": None,
        },
        "images": ["registry.k8s.io/pause:3.10"],
        "sandbox": {"image": "registry.k8s.io/pause:3.10", "missing": False, "puller": "crictl pull"},
        "forgotten": [],
        "kubelet_life": [NOW - 100 * 86400, NOW + 265 * 86400],
        "kubelet_roots": ["/var/lib/kubelet", "/var/lib/kubelet"],
        "without_room": [],
        "mps": False,
        "cdi": {
            "mode": "cdi",
            "specs": [{"path": "/var/run/cdi/nvidia.yaml", "gpus": list(UUIDS), "versions": ["535.261.03"], "missing": [], "newer": False}],
        },
        "devices": {"mode": 0o666, "nodes": {"/dev/nvidiactl": 0o666, "/dev/nvidia0": 0o666, "/dev/nvidia1": 0o666}},
        "strangers": [],
        "containers": {CONTAINER: ["nvidia0"], "d" * 64: []},
        "cgroups": {"kubelet": "systemd", "runtime": "systemd", "handler": "nvidia"},
        "limits": [],
        "strategy": {
            "cdi": {"kubelet": "", "runtime": "containerd 1.6.20 does not take CDI devices from kubelet"},
            "toolkit": {"environment": False, "mounts": True, "problem": "", "no_cgroups": False, "version": ""},
            "now": "volume-mounts",
            "holders": [],
        },
    }
    places = {
        "memory_unit": "GiB",
        "minimum_driver": "384.81",
        "expect_gpus": 0,
        "expect_memory_mib": 0,
        "pki_dir": "",
        "extender_port": 32766,
        "extender_weight": 1,
        "extender_http_timeout": "1s",
        "preemption": True,
        "metrics_plugin": "",
        "metrics_extender": "",
        "device_strategy": "auto",
        "runtime_default": "auto",
    }
    kubelet = {"running": True, "unit": None, "says": "", "unreached": "", "proxy": ""}
    return {
        "places": places,
        "node_name": "node-1",
        "kubelet": kubelet,
        "runtime": runtime(),
        "doctor": doctor(
            "gpushare-device-plugin", registered={name: list(UUIDS) for name in ("aliyun.com/gpu-mem", "aliyun.com/gpu-count")}
        ),
        "files": files(),
        "gpu": seen,
        "plane": None,
        "now": NOW,
    }


def plane_host() -> Json:
    """Of cp1, whose node has the same name."""
    plane = {
        "scheduler": {
            "manifest": manifest(),
            "others": {},
            "configs": {CONFIG_PATH: {"text": CONFIG, "sha256": hashlib.sha256(CONFIG.encode()).hexdigest()}},
            "unreached": {},
            "says": "",
            "server_says": "",
            "controllers_say": "",
            "controllers_elect": True,
        },
        "lives": {"/etc/kubernetes/scheduler.conf": [NOW - 100 * 86400, NOW + 265 * 86400]},
    }
    places = {
        "memory_unit": "GiB",
        "pki_dir": "/etc/gpushare/pki",
        "extender_port": 32766,
        "extender_weight": 1,
        "extender_http_timeout": "1s",
        "preemption": True,
        "metrics_plugin": "",
        "metrics_extender": "",
        "scheduler_manifest": MANIFEST_PATH,
        "scheduler_config": CONFIG_PATH,
    }
    kubelet = {"running": True, "unit": None, "says": "", "unreached": "", "proxy": ""}
    return {
        "places": places,
        "node_name": "cp1",
        "kubelet": kubelet,
        "runtime": {**runtime(), "requirements_sha256": ARTIFACT.kubectl_requirements_sha256},
        "doctor": doctor("gpushare-extender", health={"filter_calls": 3, "unauthorized_calls": 0, "why": ""}),
        "files": files(),
        "gpu": None,
        "plane": plane,
        "now": NOW,
    }


def node() -> Json:
    gpus = [
        {"index": i, "uuid": uuid, "minor": i, "pci": "", "model": "T4", "mib": 16384, "units": 16, "health": "ok", "cordoned": False}
        for i, uuid in enumerate(UUIDS)
    ]
    amounts = {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"}
    return {
        "metadata": {
            "name": "node-1",
            "labels": {"gpushare.kubernetes/node": "true"},
            "annotations": {"gpushare/gpus": json.dumps({"v": 1, "unit": "GiB", "strategy": "volume-mounts", "gpus": gpus})},
        },
        "cordoned": False,
        "nothing_of": [],
        "taints": [],
        "status": {
            "capacity": amounts,
            "allocatable": dict(amounts),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        },
    }


def pod(name: str = "sharing", container: str = CONTAINER, gpu: int = 0, units: int = 6) -> Json:
    return {
        "namespace": "default",
        "name": name,
        "uid": f"uid-of-{name}",
        "node": "node-1",
        "scheduler": "default-scheduler",
        "phase": "Running",
        "message": "",
        "deleted": False,
        "probe": False,
        "annotations": {
            "scheduler.framework.gpushare.allocation": json.dumps({"0": {str(gpu): units}}),
            "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
        },
        "containers": [{"index": 0, "name": "main", "units": units, "gpus": 0, "privileged": False}],
        "running": [{"name": "main", "id": container, "started": NOW - 600}],
        "waiting": [],
        "scheduling": "the scheduler has not tried it",
    }


def mirror() -> Json:
    return {
        "kind": "Pod",
        "metadata": {
            "name": "kube-scheduler-cp1",
            "annotations": {ANNOTATION_SCHEDULER_CONFIG: hashlib.sha256(CONFIG.encode()).hexdigest(), "kubernetes.io/config.mirror": "x"},
        },
        "spec": {
            "containers": [
                {
                    "name": "kube-scheduler",
                    "image": "registry.k8s.io/kube-scheduler:v1.36.3",
                    "command": ["kube-scheduler", f"--config={CONFIG_PATH}"],
                    "volumeMounts": [{"name": "config", "mountPath": "/etc/kubernetes/gpushare"}],
                }
            ],
            "volumes": [{"name": "config", "hostPath": {"path": "/etc/kubernetes/gpushare"}}],
        },
        "status": {"containerStatuses": [{"state": {"running": {}}}]},
    }


def leases() -> Json:
    return {name: {"holder": "cp1_1", "alive": True} for name in ("kube-controller-manager", "kube-scheduler")}


def admission() -> Json:
    return {"dead": [], "failing": [], "changing": [], "shaping": [], "unguarded": ""}


def cluster() -> Json:
    objects: dict[str, Any] = {"missing": [], "differs": [], "unserved": []}
    return {
        "nodes": [node()],
        "labelled": [],
        "pods": [pod()],
        "passed_by": [],
        "schedulers": {"cp1": mirror()},
        "leases": leases(),
        "admission": admission(),
        "objects": objects,
        "dra": [],
    }


class World:
    """All of it, to be changed by a test and judged."""

    def __init__(self) -> None:
        self.cp: Json = plane_host()
        self.gpu: Json = gpu_host()
        self.cluster: Json = cluster()
        self.more: Json = {}

    def evidence(self) -> Evidence:
        more = {"hosts": {"cp1": self.cp, "gpu1": self.gpu}, "cluster": copy.deepcopy(self.cluster), "artifact": ARTIFACT, **self.more}
        for looks in ("hosts", "probed"):
            seen = more.get(looks, {})
            more[looks] = {host: printed(one) if "doctor" in one else one for host, one in seen.items()}
        return Evidence(**copy.deepcopy(more))
