# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What stand-in hosts answer with: the facts that the collection's own code reads of folders which stand for hosts, and the evidence,
scheduler files and API answers that the unit tests judge as those of a cluster without a fault."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.subjects import plans
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.host import Places
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_strategy import CdiFacts, ToolkitFacts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import SmiGpu
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import kubeadm
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.apply import SchedulerSettings
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._wheel import build_wheel, locked_requirements

from bench.fleet.answers import GPU_NODE, PLANE
from unit.fakes.plugins.fake_root import FakeRoot, control_plane, debian, gpu, kubelet
from unit.fakes.plugins.preflight.operator_facts import NO_DRA, NO_OPERATOR
from unit.fakes.plugins.scheduler import planned
from unit.fakes.plugins.verdict import evidence

_PLUGINS: Final = "ansible_collections.gpushare.kubernetes.plugins"

Json = dict[str, Any]

#: The newest state of a control plane among those of the unit tests.
_GENERATION = "kubeadm 1.36"


def prepared(folder: Path, runtime: Path) -> Json:
    """All that `answers.py` needs. folder: for the folders that stand for hosts; runtime: the source that a run builds its wheel of."""
    found = planned.state(_GENERATION)
    # A module has no types, and its arguments are data.
    options: Mapping[str, Any] = import_module(f"{_PLUGINS}.modules.kube_scheduler_extender").OPTIONS
    settled = planned.done(found, planned.plan(found))
    return {
        "facts": {"gpu": _facts(gpu(_host(folder, GPU_NODE)), GPU_NODE, True), "plane": _facts(_plane(folder), PLANE, False)},
        "seen": {"gpu": _of_release(_gpu_host(), runtime, ""), "plane": _of_release(_weighed(evidence.plane_host()), runtime, "kubectl")},
        "operations": {name: plan.operation for name, _role, _owner, plan in plans()},
        "places": {field.name: "" if field.default is MISSING else field.default for field in fields(Places)},
        "cdi": asdict(CdiFacts("", "containerd 1.6.20 does not take CDI devices from kubelet")),
        "api": {
            "version": "v1.36.3",
            "authorities": [],
            "may_grant": True,
            "kubeadm": {"version": "v1.36.3", "feature_gates": []},
            "in_cluster": [],
            "gpu_operator": NO_OPERATOR,
            "dra": NO_DRA,
        },
        **{name: getattr(evidence, name)() for name in ("node", "pod", "cluster")},
        "mirror": _weighed(evidence.mirror()),
        "scheduler": _scheduler(found),
        "settled": _scheduler(settled),
        "settings": {field.name: options[field.name].get("default") for field in fields(SchedulerSettings)},
        "cluster_path": kubeadm.PATH,
    }


def _scheduler(found: Found) -> Json:
    """The first answer of kube_scheduler_extender, besides its settings."""
    journal = [
        {
            "path": path,
            "original": None if entry.original is None else entry.original.content.decode(),
            "mode": None if entry.original is None else entry.original.mode,
            "left": list(entry.left),
            "others": entry.others,
        }
        for path, entry in found.journal.items()
    ]
    return {
        "server": "v1.36.3",
        "policy": None,
        "files": dict(found.files),
        "journal": journal,
        "cluster": {"text": found.cluster, "version": found.cluster_version},
        "nodes": 3,
        "others": [],
        "unreached": {},
        "unfinished": False,
        "running": planned.plan(found).shape,
    }


def _gpu_host() -> Json:
    """With every field, which a test that judges it may leave out."""
    seen = evidence.gpu_host()
    seen["gpu"]["nvidia_smi"]["gpus"] = [asdict(SmiGpu(**one)) for one in seen["gpu"]["nvidia_smi"]["gpus"]]
    strategy = seen["gpu"]["strategy"]
    strategy["cdi"], strategy["toolkit"] = asdict(CdiFacts(**strategy["cdi"])), asdict(ToolkitFacts(**strategy["toolkit"]))
    return seen


def _weighed(seen: Json) -> Json:
    """With the weight that the roles have by default, in the scheduler's configuration and in what is made of that."""
    weighed = evidence.CONFIG.replace("weight: 1\n", f"weight: {Places(False, False).extender_weight}\n")
    texts = ((evidence.CONFIG, weighed), *((hashlib.sha256(text.encode()).hexdigest() for text in (evidence.CONFIG, weighed)),))
    text = json.dumps(seen)
    for before, after in texts:
        text = text.replace(json.dumps(before)[1:-1], json.dumps(after)[1:-1])
    known: Json = json.loads(text)
    return known


def _host(folder: Path, name: str) -> FakeRoot:
    return kubelet(debian(FakeRoot(folder / name)), "--hostname-override", name)


def _plane(folder: Path) -> FakeRoot:
    return control_plane(_host(folder, PLANE))


def _facts(root: FakeRoot, name: str, is_gpu_node: bool) -> Json:
    """The answer of gpu_node_info, which its own code makes of the folder."""
    facts = gather(Host(str(root)), ["system", "gpus", "runtimes", "managers"] if is_gpu_node else ["system"])
    assert facts.kubelet.node_name == name, facts.kubelet
    known = {"node_name": name, "kubelet_root": facts.kubelet.root, "kubelet_running": facts.kubelet.running, "effective_uid": 0}
    return {"changed": False, **known, **json.loads(json.dumps(facts.as_dict()))}


def _of_release(seen: Json, runtime: Path, extra: str) -> Json:
    """The evidence of a host that runs this checkout's release."""
    hashes = {
        "wheel_sha256": build_wheel(runtime).sha256,
        "requirements_sha256": hashlib.sha256(locked_requirements(runtime, extra)).hexdigest(),
    }
    return evidence.printed({**seen, "runtime": {**seen["runtime"], **hashes}})
