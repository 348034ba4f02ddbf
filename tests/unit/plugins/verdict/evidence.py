# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What verify sees of a cluster without a fault: one control plane, one GPU node with two cards, one pod on the first of them."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import ANNOTATION_SCHEDULER_CONFIG
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.daemons import Artifact
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.judge import Evidence

Json = dict[str, Any]

NOW = 1_800_000_000.0
WEEK = 604800
UUIDS = ("GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002")
CONTAINER = "c" * 64
ARTIFACT = Artifact("a" * 64, "b" * 64, "c" * 64)
MANIFEST_PATH = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG_PATH = "/etc/kubernetes/gpushare/kube-scheduler.yaml"

CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders:
- urlPrefix: https://127.0.0.1:32766/gpushare-scheduler
  filterVerb: filter
  bindVerb: bind
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


def unit(name: str, pid: int, *arguments: str) -> Json:
    return {
        "name": name,
        "exists": True,
        "active": "active",
        "state": "running",
        "enabled": True,
        "says": "",
        "pid": pid,
        "with_token": True,
        "arguments": ["/opt/gpushare/0.1.0-0123456789ab/bin/python", f"/opt/gpushare/0.1.0-0123456789ab/bin/{name}", *arguments],
        "file_generation": "0123456789abcdef",
        "process_generation": "0123456789abcdef",
    }


def token(account: str, issued: float = NOW - 1000, expires: float = NOW + WEEK) -> Json:
    claims = {"subject": f"system:serviceaccount:kube-system:{account}", "uid": f"uid-of-{account}"}
    return {
        "path": f"/var/lib/{account}/token",
        "exists": True,
        "claims": {**claims, "issued": issued, "expires": expires, "accepted": None},
    }


def tokens(account: str) -> Json:
    return {"own": token(account), "seed": token(account, NOW - 90000, NOW - 86400)}


def runtime() -> Json:
    return {
        "version": "0.1.0",
        "wheel_sha256": ARTIFACT.wheel_sha256,
        "requirements_sha256": ARTIFACT.requirements_sha256,
        "environment": "/opt/gpushare/0.1.0-0123456789ab",
        "files": 50,
        "damaged": [],
        "damaged_count": 0,
    }


def card(index: int, mib: int = 16384) -> Json:
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


def gpu_host() -> Json:
    """Of gpu1, whose node is node-1."""
    registered = {"aliyun.com/gpu-mem": dict.fromkeys(UUIDS, 16), "aliyun.com/gpu-count": dict.fromkeys(UUIDS, 1)}
    gpu = {
        "nvidia_smi": {"cards": [card(0), card(1)], "driver_version": "535.261.03", "cuda_version": "12.2", "problem": None},
        "driver": {"loaded": "535.261.03", "library": "535.261.03"},
        "plugin": unit("gpushare-device-plugin", 100),
        "metrics": None,
        "tokens": tokens("gpushare-device-plugin-node-1"),
        "sockets": [
            {"name": "aliyungpushare.sock", "pid": 100, "process": "gpushare-device-plugin"},
            {"name": "aliyungpushare-cards.sock", "pid": 100, "process": "gpushare-device-plugin"},
        ],
        "registered": registered,
        "managers": [],
        "container_runtime": {
            "problem": "",
            "file_default": "nvidia",
            "running_default": "nvidia",
            "lacks": "",
            "unit": "containerd.service",
        },
        "images": ["registry.k8s.io/pause:3.10"],
        "cdi": {
            "mode": "cdi",
            "specs": [{"path": "/var/run/cdi/nvidia.yaml", "cards": list(UUIDS), "versions": ["535.261.03"], "missing": []}],
        },
        "containers": {CONTAINER: ["nvidia0"], "d" * 64: []},
    }
    places = {"memory_unit": "GiB", "pki_dir": "", "extender_port": 32766}
    kubelet = {"running": True, "root": "/var/lib/kubelet"}
    return {
        "places": places,
        "node_name": "node-1",
        "kubelet": kubelet,
        "runtime": runtime(),
        "gpu": gpu,
        "plane": None,
        "now": NOW,
    }


def plane_host() -> Json:
    """Of cp1, whose node has the same name."""
    plane = {
        "extender": unit("gpushare-extender", 200, "--listen", "127.0.0.1:32766"),
        "metrics": None,
        "tokens": tokens("gpushare-extender"),
        "certificates": {
            "problem": "",
            "certificates": [
                {"path": "extender.crt", "role": "server", "not_after": "2027-02-19T10:00:00Z", "days_left": 80.0, "problem": ""}
            ],
        },
        "health": {"report": {"synced": True, "not_ready": "", "filter_calls": 3}, "why": ""},
        "scheduler": {
            "manifest": manifest(),
            "others": {},
            "configs": {CONFIG_PATH: {"text": CONFIG, "sha256": hashlib.sha256(CONFIG.encode()).hexdigest()}},
        },
    }
    places = {
        "memory_unit": "GiB",
        "pki_dir": "/etc/gpushare/pki",
        "extender_port": 32766,
        "scheduler_manifest": MANIFEST_PATH,
        "scheduler_config": CONFIG_PATH,
    }
    kubelet = {"running": True, "root": "/var/lib/kubelet"}
    return {
        "places": places,
        "node_name": "cp1",
        "kubelet": kubelet,
        "runtime": {**runtime(), "requirements_sha256": ARTIFACT.kubectl_requirements_sha256},
        "gpu": None,
        "plane": plane,
        "now": NOW,
    }


def node() -> Json:
    cards = [
        {"index": i, "uuid": uuid, "minor": i, "pci": "", "model": "T4", "mib": 16384, "units": 16, "health": "ok", "cordoned": False}
        for i, uuid in enumerate(UUIDS)
    ]
    amounts = {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"}
    return {
        "metadata": {
            "name": "node-1",
            "labels": {"gpushare.kubernetes/node": "true"},
            "annotations": {"gpushare/cards": json.dumps({"v": 1, "unit": "GiB", "cards": cards})},
        },
        "status": {"capacity": amounts, "allocatable": dict(amounts), "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str = "sharing", container: str = CONTAINER, card: int = 0, units: int = 6) -> Json:
    return {
        "namespace": "default",
        "name": name,
        "node": "node-1",
        "phase": "Running",
        "message": "",
        "deleted": False,
        "probe": False,
        "annotations": {
            "scheduler.framework.gpushare.allocation": json.dumps({"0": {str(card): units}}),
            "ALIYUN_COM_GPU_MEM_IDX": str(card),
        },
        "containers": [{"index": 0, "name": "main", "units": units, "cards": 0, "privileged": False}],
        "running": [{"name": "main", "id": container, "started": NOW - 600}],
        "waiting": [],
        "scheduling": "the scheduler has not looked at it",
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
        "status": {"containerStatuses": [{"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]},
    }


def cluster() -> Json:
    return {
        "nodes": [node()],
        "pods": [pod()],
        "schedulers": {"cp1": mirror()},
        "objects": {"missing": [], "differs": [], "skipped": []},
        "accounts": {name: f"uid-of-{name}" for name in ("gpushare-extender", "gpushare-device-plugin-node-1")},
    }


class World:
    """All of it, to be changed by a test and judged."""

    def __init__(self) -> None:
        self.cp: Json = plane_host()
        self.gpu: Json = gpu_host()
        self.cluster: Json = cluster()
        self.more: Json = {}

    def evidence(self) -> Evidence:
        hosts = {"cp1": copy.deepcopy(self.cp), "gpu1": copy.deepcopy(self.gpu)}
        return Evidence(**{"hosts": hosts, "cluster": copy.deepcopy(self.cluster), "artifact": ARTIFACT, **self.more})
