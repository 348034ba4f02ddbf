# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A sentence for a pod that exists and neither waits for a GPU of ours nor has one: what it is, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import as_text, quote
from gpushare_runtime.core.quantity import parse_quantity
from gpushare_runtime.core.request import RequestError, parse_request

_MOST_MESSAGE: Final = 1024
_NAMED: Final = 3
#: Resources of other device plugins have one of these in their names: NVIDIA's, its MIG instances and shares, other vendors'.
_OF_OTHERS: Final = ("gpu", "nvidia.com/", "mig-")
_OURS: Final = f"{protocol.RESOURCE_GPUS}: 1 is a whole GPU, {protocol.RESOURCE_MEMORY}: 8 are 8 units of one"


def sentence(raw: Mapping[str, Any]) -> str:
    """raw: the v1.Pod as JSON, of a pod that is not in the ledger."""
    metadata, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    node = str(spec.get("nodeName") or "")
    try:
        request = parse_request(raw, bound=True)
    except RequestError as error:
        return f"{f'is on node {quote(node)}' if node else 'is on no node'}, and what it requests cannot be read: {error}"
    if request is None:
        return "; ".join(filter(None, (_requests_none(spec), _ended(status))))
    return _ended(status) or _on_node(metadata, node)


def _ended(status: Mapping[str, Any]) -> str:
    """ "" for a pod that has not."""
    phase = status.get("phase")
    if phase not in protocol.FINISHED_PHASES:
        return ""
    why = ": ".join(as_text(str(status[key]), _MOST_MESSAGE) for key in ("reason", "message") if status.get(key))
    word = "has failed" if phase == "Failed" else "has succeeded"
    return f"it {word}{f' ({why})' if why else ''}: it has no GPU any more, and only its owner starts another one"


def _on_node(metadata: Mapping[str, Any], node: str) -> str:
    if not node:
        return "it waits for a node since a moment ago: ask again"
    if protocol.ANNOTATION_MIRROR in (metadata.get("annotations") or {}):
        return f"it is the copy of a static pod on node {quote(node)}, and that node reports no GPU of it"
    return f"it is on node {quote(node)}, of which no GPUs are known"


def _requests_none(spec: Mapping[str, Any]) -> str:
    asked = dict(_resources(spec))
    zero = [name for name in protocol.RESOURCES if name in asked]
    others = sorted(name for name in asked if name not in protocol.RESOURCES and any(part in name for part in _OF_OTHERS))
    if zero:
        return f"it requests {zero[0]}: {as_text(asked[zero[0]], 80)}, so none of a GPU: {_OURS}"
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        return f"it requests {', '.join(map(as_text, others[:_NAMED]))}{more}, which gpushare does not provide: {_OURS}"
    if spec.get("resourceClaims"):
        return f"it requests devices by resourceClaims, and none of gpushare's: {_OURS}"
    return f"it requests no GPU: {_OURS}, in the limits of a container"


def _resources(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and amount of what containers ask for; where several ask, the last one that asks for some."""
    found: dict[str, str] = {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            if name not in found or not _is_zero(amount):
                found[str(name)] = str(amount)
    yield from found.items()


def _is_zero(amount: object) -> bool:
    try:
        return parse_quantity(amount) == 0
    except ValueError:
        return False
