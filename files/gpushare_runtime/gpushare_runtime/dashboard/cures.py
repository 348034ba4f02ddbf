# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The text that a person copies of a cure of `explain`: commands, or a line of a pod's manifest. Pure.

Only names that Kubernetes itself would accept get into a command: a node or a pod that comes from a file may be called anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import OBJECT_NAME
from gpushare_runtime.core.placement.explain import Largest, too_large
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.kubectl_gpushare.explain import MOST_NAMED, Conclusion, Cure

_NODE: Final = re.compile(OBJECT_NAME)
_POD: Final = re.compile(rf"{OBJECT_NAME}/{OBJECT_NAME}")


def of_node(cure: Cure, node: str, pod: PendingPod) -> str:
    """The text for a cure on one node; "" where no command does it."""
    if cure.kind == "smaller":
        return _line(cure.number, pod)
    if cure.kind == "end":
        named = len(cure.pods) <= MOST_NAMED and all(map(_POD.fullmatch, cure.pods))
        return " && ".join(_deletions(cure.pods)) if named else ""
    if not _NODE.fullmatch(node):
        return ""
    if cure.kind == "uncordon":
        return f"kubectl gpushare uncordon {node} {cure.number}"
    if cure.kind == "describe-node":
        return f"kubectl describe node {node}"
    return cure.text if cure.kind == "uncordon-node" else ""


def of_conclusion(conclusion: Conclusion, pod: PendingPod, largest: Largest | None) -> str:
    """The text for the sentence of `explain`; "" where it names no cure, or none that a command does. largest: as of `of_size`."""
    return of_node(conclusion.cure, conclusion.node, pod) if conclusion.cure else of_size(pod, largest)


def of_size(pod: PendingPod, largest: Largest | None) -> str:
    """The text for a pod that no empty GPU holds; "" for another. largest: of the cluster, None where it is unknown."""
    found = None if largest is None or pod.request.unsupported else too_large(pod.request, largest)
    return _line(found.instead, pod) if found and found.instead else ""


def _deletions(pods: Iterable[str]) -> Iterable[str]:
    by_namespace: dict[str, list[str]] = {}
    for namespace, _, name in (pod.partition("/") for pod in pods):
        by_namespace.setdefault(namespace, []).append(name)
    return (f"kubectl delete pod -n {namespace} {' '.join(names)}" for namespace, names in by_namespace.items())


def _line(amount: int, pod: PendingPod) -> str:
    """A line of limits; of several containers, or of several GPUs, no single line would say it."""
    resource = protocol.RESOURCE_GPUS if pod.request.whole_gpus else protocol.RESOURCE_MEMORY
    return f"{resource}: {amount}" if len(pod.request.containers) == 1 and pod.request.gpus_per_pod == 1 else ""
