# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The text that a person copies of a cure, from the words of `explain`: commands, or a line of a pod's manifest. Pure.

Only names that Kubernetes itself would accept get into a command: a node or a pod that comes from a file may be called anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import OBJECT_NAME
from gpushare_runtime.core.pods import PendingPod

_COMMAND: Final = re.compile(rf"kubectl (?:gpushare uncordon {OBJECT_NAME} \d+|uncordon {OBJECT_NAME}|describe node {OBJECT_NAME})")
_UNCORDON: Final = re.compile(r"uncordon GPU (\d+)")
_PODS: Final = re.compile(rf"end ({OBJECT_NAME}/{OBJECT_NAME}(?:, {OBJECT_NAME}/{OBJECT_NAME})*)")
_SMALLER: Final = re.compile(r"(?:ask for at most|request) (\d+) (units|whole GPUs?)")
_WRITE: Final = re.compile(r"write (?:at most )?(\d+)")
_CHEAPEST: Final = "; cheapest change: "
_END: Final = ": end "
_RESOURCES: Final = {"units": protocol.RESOURCE_MEMORY, "whole GPU": protocol.RESOURCE_GPUS, "whole GPUs": protocol.RESOURCE_GPUS}


def of_node(cure: str, node: str, pod: PendingPod) -> str:
    """Of a cure on one node, such as "uncordon GPU 7"; "" where no command does it."""
    uncordon = _UNCORDON.fullmatch(cure)
    if uncordon and re.fullmatch(OBJECT_NAME, node):
        return f"kubectl gpushare uncordon {node} {uncordon[1]}"
    return _to_copy(cure, pod)


def of_sentence(verdict: str, pod: PendingPod) -> str:
    """Of the sentence of `explain`; "" where it names no cure, or none that a command does."""
    _, _, change = verdict.partition(_CHEAPEST)
    if change:
        return _to_copy(change, pod)
    _, found, pods = verdict.rpartition(_END)
    if found:
        return _to_copy(f"end {pods}", pod)
    write = re.search(rf"; {_WRITE.pattern}$", verdict)
    resource = protocol.RESOURCE_GPUS if pod.request.whole_gpus else protocol.RESOURCE_MEMORY
    return _line(resource, write[1], pod) if write else ""


def _to_copy(cure: str, pod: PendingPod) -> str:
    if _COMMAND.fullmatch(cure):
        return cure
    if pods := _PODS.fullmatch(cure):
        return " && ".join(_deletions(pods[1].split(", ")))
    smaller = _SMALLER.fullmatch(cure)
    return _line(_RESOURCES[smaller[2]], smaller[1], pod) if smaller else ""


def _deletions(pods: Iterable[str]) -> Iterable[str]:
    by_namespace: dict[str, list[str]] = {}
    for namespace, _, name in (pod.partition("/") for pod in pods):
        by_namespace.setdefault(namespace, []).append(name)
    return (f"kubectl delete pod -n {namespace} {' '.join(names)}" for namespace, names in by_namespace.items())


def _line(resource: str, amount: str, pod: PendingPod) -> str:
    """Of limits; of several containers, or of several GPUs, no single line would say it."""
    return f"{resource}: {amount}" if len(pod.request.containers) == 1 and pod.request.gpus_per_pod == 1 else ""
