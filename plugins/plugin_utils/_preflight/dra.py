# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether drivers of dynamic resource allocation (DRA) give the GPUs of our nodes to pods, in both modes.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ...module_utils._cluster.names import DRA_NVIDIA, DRA_OWN
from ...module_utils._facts.device_managers import BOTH, DRA_DRIVERS, dra_title
from ...module_utils._formats.finding import ERROR, HostFindings, few
from ...module_utils._takeover.operator import CLUSTER_KIND, DRA_CLAIMANTS, DRA_LABEL
from .reasons import Judgement

_PAGE = "docs/operate/migrate.md"
_CURE = (
    f"end the pods that have its claims there, then keep it off these nodes or switch its GPUs off: {_PAGE} has the commands for its Helm "
    f"chart; {BOTH}"
)
_OF_OTHERS = f"keep it off these nodes by the means that started it: {BOTH}"
_PODS_SHOWN = 8


def judge(
    found: HostFindings, facts: Mapping[str, Any], operator: Mapping[str, Any], ours: Collection[str], said: Collection[str] = ()
) -> None:
    """facts: of `_cluster/dra.py`. operator: of `_takeover/operator.py`. ours: names of the GPU nodes of this run. said: those whose hosts
    have named a driver already.
    """
    deployed = _judge_gpu_cluster(found, operator, ours)
    rest = set(ours) - set(deployed) - set(said)
    drivers: dict[str, list[str]] = {}
    for entry in facts["published"]:
        if entry["node"] in rest:
            drivers.setdefault(entry["driver"], []).append(entry["node"])
    for driver, nodes in sorted(drivers.items()):
        cure = _CURE if driver == DRA_NVIDIA else _OF_OTHERS
        found.error("managers", f"{dra_title(driver)} on {_few(sorted(nodes))}", "no other manager of the GPUs", cure)
    pods = [f"{pod['pod'][:80]} on {pod['node'][:80]}" for pod in facts["holders"] if pod["node"] in set(ours) - set(said)]
    if pods:
        cure = "end them first (kubectl drain NODE), because these GPUs would be given twice"
        found.error("managers", f"pods with GPUs by ResourceClaims: {few(pods, _PODS_SHOWN)}", "none on the GPU nodes", cure)


def of_others(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts without our own driver, which is one with the back end dra: what that has given is judged with the back end."""
    return {key: [entry for entry in entries if entry["driver"] != DRA_OWN] for key, entries in facts.items()}


def said(judgements: Iterable[Judgement]) -> set[str]:
    """Names of the nodes whose hosts have named a driver, with its process and its pods."""
    names = set(DRA_DRIVERS.values())
    return {
        judgement.node_name
        for judgement in judgements
        if judgement.node_name
        and any(reason.check == "managers" and reason.severity == ERROR and reason.subject in names for reason in judgement.reasons)
    }


def _judge_gpu_cluster(found: HostFindings, operator: Mapping[str, Any], ours: Collection[str]) -> list[str]:
    """The nodes of ours to which a GPUCluster brings NVIDIA's driver."""
    here = sorted(set(operator["dra_nodes"]) & set(ours))
    if not operator["clusters"] or not here:
        return []
    away, last = (" ".join(f"{label}=false" for label in labels) for labels in (DRA_CLAIMANTS, (DRA_LABEL,)))
    cure = (
        f"end the pods with its claims there, then: kubectl label node NODE --overwrite {away}; when their pods have ended: kubectl label "
        f"node NODE --overwrite {last} ({_PAGE})"
    )
    seen = f"{CLUSTER_KIND} {_few(operator['clusters'])}, which deploys NVIDIA's DRA driver on {_few(here)}"
    found.error("operator", seen, f"the label {last} on these nodes: {BOTH}", cure)
    return here


def _few(names: Collection[str]) -> str:
    """Each with at most 80 characters: they are the cluster's."""
    return few(name[:80] for name in names)
