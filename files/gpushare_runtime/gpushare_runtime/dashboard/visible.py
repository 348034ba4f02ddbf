# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The part of the page for a person who may list the pods of some namespaces only. Pure.

Nodes and GPUs are whole, except for names of pods: models, states, and how much is allocated and free. Of other namespaces the page has
no pod, no group, and no text that may name one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from gpushare_runtime.kubectl_gpushare.explain import Cure, NodeVerdict

Namespaces = frozenset[str]

_OTHERS: Final = ("of others",)
_KEPT: Final = ("name", "unit", "unit_mib", "core", "strategy", "isolation", "error", "placement", "model", "gpus")


def state(data: bytes, namespaces: Namespaces) -> bytes:
    """A whole of `State`, or a difference. The counts of pods are null: who has all rows can count them."""
    page = orjson.loads(data)
    for node in page["nodes"]:
        node["pods"] = [pod for pod in node["pods"] if pod[0] in namespaces]
        node["problems"] = []
    page["waiting"] = [pod for pod in page["waiting"] if pod["namespace"] in namespaces]
    page["sums"].update(pods=None, pending=None, problems=0)
    page["warnings"] = [_warning(len(namespaces))]
    return orjson.dumps(page)


def _warning(count: int) -> str:
    which = "no namespace with GPUs" if not count else "one namespace" if count == 1 else f"{count} namespaces"
    return f"Your token may list the pods of {which}: other pods are in the sums, without their names"


def node(page: Mapping[str, Any], namespaces: Namespaces) -> dict[str, Any]:
    """A node of docs/reference/ledger-v1.schema.json."""
    made = {key: page[key] for key in _KEPT}
    pods = [pod for pod in page["pods"] if pod["namespace"] in namespaces]
    held = [entry for entry in page["held"] if entry["pod"].partition("/")[0] in namespaces]
    return {**made, "pods": pods, "held": held, "rejected": [], "nominated": [], "problems": []}


def verdict(found: NodeVerdict, namespaces: Namespaces) -> NodeVerdict:
    """Without the names of others: a cure that would end their pods is none that this person could use."""
    cures = tuple(cure for cure in found.cures if _is_of_own_pods(cure, namespaces))
    lesser = found.lesser if all(pod.partition("/")[0] in namespaces for pod in found.lesser) else ()
    return replace(found, groups=_OTHERS if found.groups else (), cures=cures, kept="", lesser=lesser)


def _is_of_own_pods(cure: Cure, namespaces: Namespaces) -> bool:
    """Whether a cure is of no pod, or of this person's alone. A pod whose name was lost is of an unknown namespace."""
    return all("/" in pod and pod.partition("/")[0] in namespaces for pod in cure.pods)
