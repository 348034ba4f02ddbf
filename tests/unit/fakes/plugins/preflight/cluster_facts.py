# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster that is fit for gpushare as pods, and what is asked of it."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.in_cluster import InClusterSettings

from unit.fakes.plugins.preflight.operator_facts import NO_DRA, NO_OPERATOR

IMAGE = "localhost/gpushare:1"
NODE = {
    "name": "gpu1",
    "architecture": "amd64",
    "platform": "",
    "ready": True,
    "images": [IMAGE],
    "all": True,
    "kubelet": "v1.36.3",
    "runtime": "containerd://2.4.2",
}
FACTS: dict[str, Any] = {
    "version": "v1.36.3",
    "admission": ["ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"],
    "nodes": [NODE],
    "number": 3,
    "homes": ["cp1"],
    "displaced": [],
    "away": [],
    "openshift": False,
    "missing": [],
    "runtime_classes": ["nvidia"],
    "enforces": "",
    "on_hosts": [],
    "others": [],
    "holders": [],
    "gpu_operator": NO_OPERATOR,
    "dra": NO_DRA,
    "unit": "",
    "scheduler": "",
    "backends": [],
    "lacks": [],
    "pods": [],
    "waiting": [],
    "may_grant": "",
}
NVIDIAS = {"title": "DaemonSet kube-system/nvidia-device-plugin", "kind": "NVIDIA device plugin", "nodes": ["gpu1"]}
OPERATORS = {"title": "DaemonSet gpu-operator/nvidia-device-plugin-daemonset", "kind": "NVIDIA GPU Operator", "nodes": ["gpu1"]}
ASKED = InClusterSettings(
    image=IMAGE,
    namespace="gpushare-system",
    scheduler_image="registry.k8s.io/kube-scheduler:v1.36.0",
    runtime_class="nvidia",
    isolation="auto",
    memory_unit="GiB",
    evicts=False,
    without_policies=False,
)
