# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The verbs' JSON, as kube-scheduler writes and reads it (k8s.io/kube-scheduler/extender/v1, Go names without JSON tags)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gpushare_runtime.core.bounds import OBJECT_NAME, quote
from gpushare_runtime.core.placement.preemption import Victims
from gpushare_runtime.errors import GpushareError

IN_THE_OTHER: Final = "see FailedAndUnresolvableNodes"
_MOST_TWICE: Final = 128 * 1024
"""Characters of reasons that are written into both maps."""

_NAME: Final = re.compile(OBJECT_NAME)
_KNOWN_BY: Final = ("uid", "namespace", "name", "resourceVersion")


class WireError(GpushareError, ValueError):
    """A body that is not what the verb expects; says what was found and expected."""


@dataclass(frozen=True)
class Arguments:
    """ExtenderArgs. names: of the candidate nodes; nodes: the objects, when the scheduler sent those instead of names."""

    pod: Mapping[str, Any]
    names: Sequence[str]
    nodes: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Filtered:
    """ExtenderFilterResult. names: nodes that fit. failed: others, with the reason.

    unresolvable: those of the failed on which no eviction could help. hopeless: whether that is all of them. error: our own
    failure, the scheduler then tries again.
    """

    names: Sequence[str] = field(default_factory=list)
    failed: Mapping[str, str] = field(default_factory=dict)
    hopeless: bool = False
    error: str = ""
    unresolvable: Collection[str] = ()


@dataclass(frozen=True)
class PreemptArguments:
    """ExtenderPreemptionArgs. victims: by node, as the scheduler has chosen them by totals."""

    pod: Mapping[str, Any]
    victims: Mapping[str, Victims]


@dataclass(frozen=True)
class BindArguments:
    """ExtenderBindingArgs."""

    namespace: str
    name: str
    uid: str
    node: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_arguments(body: bytes) -> Arguments:
    """The body of filter and prioritize. WireError if it is something else."""
    args = _object(body, "ExtenderArgs")
    pod = _pod(args)
    names = _get(args, "NodeNames")
    if names is not None:
        if not isinstance(names, list) or not _all_text(names):
            raise WireError(f"NodeNames must be a list of names, found {quote(names)}")
        return Arguments(pod, names)
    nodes = _get(args, "Nodes")
    items = nodes.get("items") if isinstance(nodes, dict) else None
    if items is None:
        raise WireError("neither NodeNames nor Nodes is there; expected one of them")
    try:
        of_nodes = [node["metadata"]["name"] for node in items]
        if _all_text(of_nodes):
            return Arguments(pod, of_nodes, items)
    except (KeyError, TypeError):
        pass
    raise WireError(f"Nodes.items must be nodes with metadata.name, found {quote(items)}")


def write_filtered(args: Arguments, result: Filtered) -> bytes:
    """The answer to filter, in the form in which the question named the nodes."""
    nodes = None
    if args.nodes is not None and not result.error:
        fitting = set(result.names)
        nodes = {"metadata": {}, "items": [node for node in args.nodes if node["metadata"]["name"] in fitting]}
    failed = result.failed
    unresolvable = failed if result.hopeless else {name: failed[name] for name in result.unresolvable}
    # Schedulers before 1.22 know the first map only; later ones let the second win, so that of thousands once is enough.
    if sum(map(len, unresolvable.values())) > _MOST_TWICE:
        failed = {**failed, **dict.fromkeys(unresolvable, IN_THE_OTHER)}
    return orjson.dumps(
        {
            "Nodes": nodes,
            "NodeNames": None if result.error or args.nodes is not None else result.names,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": unresolvable,
            "Error": result.error,
        }
    )


def write_filter_error(error: str) -> bytes:
    """The answer to a filter that cannot be answered."""
    return write_filtered(Arguments({}, []), Filtered(error=error))


def write_scores(scores: Mapping[str, int]) -> bytes:
    """The answer to prioritize: HostPriorityList. Nodes that are not in it count 0 for the scheduler: leave them out."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in scores.items()])


def read_bind(body: bytes) -> BindArguments:
    """The body of bind. WireError if a field is missing or cannot be a name."""
    args = _object(body, "ExtenderBindingArgs")
    values = {}
    for key in ("PodNamespace", "PodName", "Node"):
        value = _get(args, key)
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise WireError(f"{key} must be a Kubernetes name, found {quote(value)}")
        values[key] = value
    uid = _get(args, "PodUID")
    if not isinstance(uid, str) or not uid or len(uid) > 128 or not uid.isprintable():
        raise WireError(f"PodUID must be a UID, found {quote(uid)}")
    return BindArguments(values["PodNamespace"], values["PodName"], uid, values["Node"])


def write_bound(error: str) -> bytes:
    """The answer to bind; "" when the pod is bound."""
    return orjson.dumps({"Error": error})


def read_preempt(body: bytes) -> PreemptArguments:
    """The body of preempt, with whole pods or with their UIDs alone. WireError if it is something else."""
    args = _object(body, "ExtenderPreemptionArgs")
    pod = _pod(args)
    nodes = _get(args, "NodeNameToMetaVictims") or _get(args, "NodeNameToVictims") or {}
    try:
        return PreemptArguments(pod, {name: _read_victims(victims) for name, victims in nodes.items()})
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise WireError(f"NodeNameToMetaVictims must be nodes with Pods and NumPDBViolations, found {quote(nodes)}") from None


def _read_victims(victims: Mapping[str, Any]) -> Victims:
    pods = _get(victims, "Pods") or ()
    uids = tuple(pod["metadata"]["uid"] if "metadata" in pod else _get(pod, "UID") for pod in pods)
    if not all(isinstance(uid, str) for uid in uids):
        raise TypeError
    violations = _get(victims, "NumPDBViolations") or 0
    if not isinstance(violations, int):
        raise TypeError
    return Victims(uids, violations)


def write_preempted(victims: Mapping[str, Victims]) -> bytes:
    """The answer to preempt: always UIDs alone. A node without victims would be an error for the scheduler: leave it out."""
    return orjson.dumps(
        {
            "NodeNameToMetaVictims": {
                name: {"Pods": [{"UID": uid} for uid in node_victims.uids], "NumPDBViolations": node_victims.violations}
                for name, node_victims in victims.items()
                if node_victims.uids
            }
        }
    )


def _object(body: bytes, expected: str) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(f"the body is not JSON ({error}); expected {expected}") from None
    if not isinstance(value, dict):
        raise WireError(f"the body is {quote(value)}; expected {expected}, a JSON object")
    return value


def no_pod(found: object) -> WireError:
    """For what cannot be read as a pod."""
    return WireError(f"Pod must be a v1.Pod, found {quote(found)}")


def _pod(args: Mapping[str, Any]) -> dict[str, Any]:
    """With metadata by which a pod can be known; what is below `spec` and `status` is seen when it is read."""
    pod = _get(args, "Pod")
    if not isinstance(pod, dict):
        raise no_pod(pod)
    metadata = pod.get("metadata") or {}
    labels = metadata.get("labels") or {} if isinstance(metadata, dict) else None
    if not isinstance(labels, dict) or not _all_text([*labels.values(), *(metadata.get(name, "") for name in _KNOWN_BY)]):
        raise no_pod(pod)
    return pod


def _all_text(values: list[Any]) -> bool:
    try:
        # The fastest check of thousands of them.
        "".join(values)
    except TypeError:
        return False
    return True


def _get(args: Mapping[str, Any], name: str) -> Any:
    """A field by its Go name; Go's own decoder ignores case, so others may not write it exactly."""
    if name in args:
        return args[name]
    folded = name.lower()
    return next((value for key, value in args.items() if key.lower() == folded), None)
