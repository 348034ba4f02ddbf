# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shape of what each module answers, beside Ansible's own keys. A key that is not here reaches no reader.

Data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..module_utils._cluster.dra import DraFacts, PublishedDriver
from ..module_utils._driver.facts import HostFacts
from ..module_utils._evidence.admission import AdmissionEvidence
from ..module_utils._evidence.control_plane import SchedulerEvidence
from ..module_utils._evidence.gpu_node import RuntimeEvidence
from ..module_utils._evidence.host import KubeletEvidence, Places
from ..module_utils._facts.capacity import CapacityCounts
from ..module_utils._facts.cgroup_drivers import CgroupDrivers
from ..module_utils._facts.device_managers import GpuManager
from ..module_utils._facts.device_strategy import CdiFacts, ToolkitFacts
from ..module_utils._facts.driver import Driver
from ..module_utils._facts.node import NodeFacts
from ..module_utils._facts.nvidia_smi import SmiReport
from ..module_utils._facts.system import System
from ..module_utils._facts.unit_limits import PATH, UNIT
from ..module_utils._identity.token import TokenClaims
from ..module_utils._in_cluster.facts import InClusterFacts
from ..module_utils._packages.model import PackageChange
from ..module_utils._takeover.operator import OperatorFacts
from ._shape import Map, Maybe, Open, of_dataclass

Shape = Mapping[str, Any]

#: As the API server takes it: kubectl makes all probe pods in one call, and one bad image would reject all.
IMAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/@-]*[A-Za-z0-9])?")
_LEFT = [{"what": str, "why": str}]
_CHANGE = {"before_header?": str, "after_header?": str, "before": str, "after": str}

#: Ansible's own of a module. The rest that it makes of a result, such as hosts, statistics or results of a loop, is nothing for a module.
COMMON: Shape = {
    "changed": bool,
    "failed": bool,
    "msg": str,
    "rc": int,
    "module_stdout": str,
    "module_stderr": str,
    # Its arguments, which Ansible shows with -vvv.
    "invocation": Any,
}
#: The same, which Ansible itself has parsed already; only lists of them are taken.
PARSED = ("warnings", "deprecations")

_PROBLEM = Maybe(dict.fromkeys(("kind", "found", "expected", "cure"), str))
_DIFFERENCE = dict.fromkeys(("node", "what", "severity", "code", "found", "expected", "cure"), str)
_NVIDIA_SMI = {**of_dataclass(SmiReport), "problem": _PROBLEM}
_DOCTOR = {"problem": str, "cure": str, "answer": str}
_GPU = {
    "nvidia_smi": _NVIDIA_SMI,
    "driver": Maybe(Driver),
    "managers": [GpuManager],
    "container_runtime": Maybe(RuntimeEvidence),
    "images": [IMAGE],
    "sandbox": {"image": Maybe(IMAGE), "missing": bool, "puller": re.compile("crictl pull|docker pull|ctr -n k8s.io images pull")},
    "forgotten": [str],
    "kubelet_life": Maybe((float, float)),
    "kubelet_roots": (str, str),
    "without_room": [str],
    "mps": bool,
    "cdi": {"mode": str, "specs": [{"path": str, "gpus": [str], "versions": [str], "missing": [str], "newer": bool}]},
    "strategy": {"cdi": CdiFacts, "toolkit": ToolkitFacts, "now": str, "holders": [str]},
    "cgroups": CgroupDrivers,
    # Names in commands that people paste.
    "limits": [{"unit": UNIT, "low": [re.compile(r"[A-Za-z]{1,20}=\d{1,18}")], "drop_ins": [PATH], "whole": bool}],
    "devices": {"nodes": Map(int), "mode": int},
    "strangers": [{"name": str, "gpus": [str], "privileged": bool}],
    "containers": Map([str]),
}
_SEEN = {
    "places": Places,
    "now": float,
    "node_name": str,
    "kubelet": KubeletEvidence,
    "runtime": dict.fromkeys(("version", "wheel_sha256", "requirements_sha256", "environment"), str),
    "doctor": _DOCTOR,
    "files": {"problem": str, "changed": [str], "unrecorded": [str], "drop_ins": [{"path": str, "starts": bool, "stops": [str]}]},
    "gpu": Maybe(_GPU),
    "plane": Maybe({"scheduler": SchedulerEvidence, "lives": Map((float, float))}),
}
#: During a probe, gpushare_verify_host reads again what changes then.
SEEN_AGAIN: Shape = {"seen": {"places": Places, "now": float, "gpu": Maybe({"containers": Map([str])}), "plane": None, "doctor?": _DOCTOR}}
_SETTINGS = {
    **dict.fromkeys(("state", "node_name", "manifest", "config", "url_prefix", "tls_dir", "http_timeout", "lease"), str),
    **dict.fromkeys(("weight", "percentage_of_nodes_to_score", "control_planes"), int),
    "preemption": bool,
    "managed_resources": [str],
}
#: The files that kube_scheduler_extender reads on a host for a plan.
FOUND: Shape = {
    "settings": Open(_SETTINGS),
    "server": str,
    # A `PolicyMap` of _scheduler/wiring.py.
    "policy": Maybe(dict.fromkeys(("namespace", "name", "text", "version"), str)),
    "files": Map(Maybe(str)),
    "journal": [{"path": str, "original": Maybe(str), "mode": Maybe(int), "left": (str, str), "others": bool}],
    "cluster": Maybe({"text": str, "version": str}),
    "nodes": int,
    "others": [str],
    "unreached": Map(str),
    "unfinished": bool,
    "running": Any,
}
_POD = {
    **dict.fromkeys(("namespace", "name", "uid", "node", "scheduler", "phase", "message", "scheduling"), str),
    "deleted": bool,
    "probe": bool,
    "annotations": Map(str),
    "containers": [{"index": int, "name": str, "units": int, "gpus": int, "privileged": bool}],
    "running": [{"name": str, "id": str, "started": float}],
    "waiting": [str],
    # Of probe pods.
    "changed?": [str],
}
_NODE = {
    "metadata": {"name": str, "labels": Map(str), "annotations": Map(str)},
    "cordoned": bool,
    "nothing_of": [str],
    "taints": [str],
    "status": {"capacity": Map(Any), "allocatable": Map(Any), "conditions": [{"type": str, "status": str, "reason": str, "message": str}]},
}
_STATE = Open({"waiting?": Open({}), "terminated?": Open({"exitCode?": int}), "running?": Open({})})
_MIRROR = {
    "kind": str,
    "metadata": {"name": str, "annotations": Map(str)},
    "spec": {
        "containers": [
            Open({"command?": [str], "args?": [str], "volumeMounts?": [Open({"name": str, "mountPath": str, "subPath?": str})]})
        ],
        "volumes": [Open({"name": str, "hostPath": Open({"path": str})})],
    },
    "status": {"containerStatuses": [Open({"restartCount?": int, "state?": _STATE, "lastState?": _STATE})]},
}
_ALWAYS = ("distribution", "kubelet", "control_plane")
_NODE_INFO = {
    "node_name": str,
    "kubelet_root": str,
    "kubelet_running": bool,
    "effective_uid": int,
    # Only what was gathered.
    **{key if key in _ALWAYS else f"{key}?": shape for key, shape in of_dataclass(NodeFacts).items()},
    "nvidia_smi?": Maybe(_NVIDIA_SMI),
}
_REMOVED = {"stopped": [str], "removed": [str], "restored": [str], "left": _LEFT, "notes": [str], "diff": [_CHANGE]}
_DRIVEN = {"steps": [str], "files": [str], "notes": [str], "reboot": str, "at": float, "diff": [_CHANGE]}
_DRAINED = {"done": bool, "left": [str], "why": str, "diff": [_CHANGE]}
_PROOF = {"nodes": [str], "unproven": [str], "findings": [str]}
_MOVED = {"objects": [str], "left": [str], "kept": [str], "served": [str], "diff": [_CHANGE]}
_GPU_POD = {"pod": str, "node": str, "asks": str}

#: By the module's name, and by its option `what` where the answer depends on that. `?`: not in every answer.
RESULTS: Mapping[str, Shape] = {
    "container_runtime": {"restarted": bool, "restarted_at": float, "why_restart": str, "files": [str], "notes": [str], "diff": [_CHANGE]},
    "gpu_mem_capacity": {"ok": bool, "nodes": [CapacityCounts], "differences": [_DIFFERENCE]},
    "gpu_node_info": _NODE_INFO,
    "gpushare_api facts": {
        "version": str,
        "nodes": [str],
        "authorities": [str],
        "may_grant": bool,
        "kubeadm": {"version": str, "feature_gates": [str]},
        "in_cluster": [str],
        "gpu_operator": OperatorFacts,
        "dra": DraFacts,
    },
    "gpushare_api nodes": {"accounts": [str], "without_node": [str], "states": Map(str), "pods": [_GPU_POD]},
    "gpushare_api plugins": {
        "plugins": [Open({"kind": str, "title": str, "owner": str, "rejection": str, "original": bool, "nodes": [str]})],
        "active": Map(str),
        "writers": [str],
        "node_ports": [int],
    },
    **dict.fromkeys((f"gpushare_api {what}" for what in ("aside", "returned", "operator_off", "operator_returned", "retired")), _MOVED),
    "gpushare_bundle": {},
    "gpushare_cluster objects": {"objects": [str], "unserved": [str], "missing": [str], "diff": [_CHANGE]},
    "gpushare_cluster identity": {"kubeconfig": str, "due": Map(str), "seeds": Map(str)},
    "gpushare_cluster openshift_policy": {"notes": [str], "diff": [_CHANGE]},
    "gpushare_cluster remove_objects": {"removed": [str], "left": _LEFT, "diff": [_CHANGE]},
    "gpushare_cluster remove_pods": {"removed": [str], "nodes": [str], "diff": [_CHANGE]},
    "gpushare_daemon service": {"restarted": bool, "diff": [_CHANGE]},
    "gpushare_daemon certificates": {"files": [str], "diff": _CHANGE},
    "gpushare_daemon token": {"own": Maybe(TokenClaims)},
    "gpushare_driver facts": {
        "facts": HostFacts,
        "processes": [str],
        "machine_id": str,
        "boot_id": str,
        "driver": Driver,
        "problem": _PROBLEM,
    },
    **dict.fromkeys(("gpushare_driver present", "gpushare_driver absent"), _DRIVEN),
    "gpushare_host_runtime images": {"imported": [IMAGE], "missing?": [re.compile(r"images/[^/]{1,200}")]},
    "gpushare_host_runtime rancher": {"imported": [IMAGE], "restarted": str, "missing?": bool},
    "gpushare_in_cluster facts": {"facts": InClusterFacts},
    **dict.fromkeys(("gpushare_in_cluster trial", "gpushare_in_cluster scheduler", "gpushare_in_cluster everything"), _PROOF),
    "gpushare_in_cluster handover": {"objects": [str], "diff": [_CHANGE]},
    "gpushare_in_cluster moved": {"objects": [str], "diff": [_CHANGE]},
    "gpushare_judge": {},
    # Each answer has the shape of its own module.
    "gpushare_sharing plans": {"facts": _NODE_INFO, "answers": Map(Any)},
    **dict.fromkeys(("gpushare_node cordon", "gpushare_node drain", "gpushare_node uncordon"), _DRAINED),
    "gpushare_node ready": {"ready": bool},
    "gpushare_packages": {
        "missing?": bool,
        "system?": System,
        "manager": str,
        "versions": Map(Maybe(str)),
        "steps": [PackageChange],
        "held": [str],
        "files": [str],
        "left": _LEFT,
        "notes": [str],
        "diff": [_CHANGE],
    },
    "gpushare_runtime_env": {
        "environment?": str,
        "linked?": bool,
        "python?": str,
        "removed?": [str],
        "missing?": bool,
        "python_version?": re.compile(r"3\.[0-9]{1,3}"),
        "machine?": re.compile("[a-z0-9_]{1,20}"),
        "diff?": _CHANGE,
    },
    "gpushare_sharing strategy": {"strategy": str, "now": str, "cdi": CdiFacts, "mps": [str], "driver": str, "own": Maybe(TokenClaims)},
    "gpushare_sharing mps": {"waiting": [str], "diff": [_CHANGE]},
    "gpushare_toolkit": {"strategy?": str, "now?": str, "cdi?": CdiFacts, "mps?": [str], "files": [str], "notes": [str], "diff": [_CHANGE]},
    "gpushare_traces report": {"words": [str], "report": Any},
    **dict.fromkeys(("gpushare_traces services", "gpushare_traces leftovers"), _REMOVED),
    "gpushare_verify_cluster evidence": {
        "seen": {
            "nodes": [_NODE],
            "labelled": [str],
            "pods": [_POD],
            "passed_by": [{"uid": str, "by": str}],
            "schedulers": Map(Maybe(_MIRROR)),
            "leases": Map({"holder": str, "alive": bool}),
            "admission": AdmissionEvidence,
            "objects": {"missing": [str], "differs": [str], "unserved": [str]},
            "dra": [PublishedDriver],
        }
    },
    "gpushare_verify_cluster place": {"pods?": Map(Maybe(_POD)), "rejected?": str, "moved?": Map(_POD), "removed": [str]},
    "gpushare_verify_cluster remove": {"removed": [str]},
    "gpushare_verify_host": {"seen": _SEEN},
    # With a plan; before there is one, FOUND.
    "kube_scheduler_extender extender": {"candidate": str, "holder?": str, "standby?": bool},
    "kube_scheduler_extender read_files": {"files": Map(str)},
    "kube_scheduler_extender write_files": {"kept": [str], "diff": [_CHANGE]},
    "kubelet_gates": {
        "version": str,
        "feature_gates": Map(bool),
        "files": [str],
        "restarted_at": Maybe(float),
        "notes": [str],
        "diff": [_CHANGE],
    },
    "nvidia_smi_info": _NVIDIA_SMI,
}


def shape_of(module: str, arguments: Mapping[str, Any]) -> Shape:
    """The shape of what the module answers to these arguments. Where it does not know their `what`, it can only fail."""
    return RESULTS[module] if module in RESULTS else RESULTS.get(f"{module} {arguments.get('what')}", {})
