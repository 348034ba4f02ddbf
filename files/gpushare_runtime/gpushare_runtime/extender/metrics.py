# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The extender's metrics: calls of the verbs with their results and durations, and the state of the ledger. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, get_args

from prometheus_client.core import Metric

from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.node_report import GONE
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.core.reasons import BindReason, WaitReason
from gpushare_runtime.daemon.exposition import Value, family, latencies, maybe, single
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.kube.reflector import Reflector

VERBS: Final = ("filter", "prioritize", "preempt", "bind")

OK: Final = "ok"
UNSCHEDULABLE: Final = "unschedulable"
ERROR: Final = "error"
RESULTS: Final = (OK, UNSCHEDULABLE, ERROR)
"""unschedulable: no node fits, no eviction helps, or the pod is not bound, and the answer says why; error: the question could not be
answered: it is no such question, the caches are not complete, or a fault of ours."""

_KNOWN: Final = ("known", "unknown")
_STATES: Final = ("bound", "assumed", "reserved", "deleted")
_ROOMS: Final = ("enough", "fragmented", "too-little")
_MOST_NAMESPACES: Final = 500
"""With a series each: those that wait for most."""
_DRIFTS: Final = ("orphaned", "unmanaged", GONE, "other")


class Meters:
    """The work of the verbs since the start. Each call of the scheduler costs one `took`."""

    def __init__(self) -> None:
        self.unauthorized_callers = 0
        """Calls without the client certificate that verbs expect."""
        self._results: Counter[tuple[str, str]] = Counter()
        self._seconds = latencies("gpushare_extender_verb_duration_seconds", "Time from a call's body to its answer.", "verb", VERBS)
        self._of_verb = {verb: self._seconds.labels(verb) for verb in VERBS}
        self._causes: Counter[str] = Counter()

    def took(self, verb: str, result: str, seconds: float) -> None:
        """A call has been answered. seconds: from its body to its answer, what others did meanwhile included."""
        self._results[verb, result] += 1
        self._of_verb[verb].observe(seconds)

    def not_bound(self, reason: BindReason) -> None:
        """A call of bind has bound nothing."""
        self._causes[reason] += 1

    def count(self, verb: str, *results: str) -> int:
        """Calls of a verb that ended so; without results, all."""
        return sum(self._results[verb, result] for result in results or RESULTS)

    def families(self) -> Iterator[Metric]:
        """All of it as metrics."""
        yield from self._seconds.collect()
        results = [(self._results[verb, result], {"verb": verb, "result": result}) for verb in VERBS for result in RESULTS]
        yield family("gpushare_extender_verb_results_total", "counter", "Calls of each verb, by result.", results)
        causes = [(self._causes[cause], {"cause": cause}) for cause in get_args(BindReason)]
        yield family("gpushare_extender_bind_failures_total", "counter", "Calls of bind that bound nothing, by cause.", causes)
        yield single(
            "gpushare_extender_callers_unauthorized_total",
            "counter",
            "Calls without kube-scheduler's certificate.",
            self.unauthorized_callers,
        )


def families(cluster: ClusterCache) -> Iterator[Metric]:
    """Units are those of each node. Samples are made as they are read: between two of them the ledger may have changed."""
    ledger = cluster.ledger
    nodes = [ledger.nodes[name] for name in sorted(ledger.nodes)]
    yield _gauge("nodes", "Nodes that publish GPUs or have pods with allocated GPUs.", _counted("gpus", _known(nodes), _KNOWN))
    yield _per_node("gpus", "GPUs of the node.", nodes, lambda node: len(node.gpu_states))
    yield _per_node(
        "gpus_allocated", "GPUs of the node with at least one allocation.", nodes, lambda node: sum(not c.empty for c in node.gpu_states)
    )
    yield _per_node(
        "gpus_unusable", "GPUs of the node that accept no new pods.", nodes, lambda node: sum(not c.gpu.usable for c in node.gpu_states)
    )
    yield _per_node("units", "Units of all GPUs of the node.", nodes, lambda node: node.inventory.units if node.inventory else 0)
    yield _per_node("units_free", "Unallocated units on the GPUs of the node that accept new pods.", nodes, lambda node: node.free)
    text = "Units of the node that pods have, that are reserved for pods, or that orphaned pods use."
    yield _per_node("units_allocated", text, nodes, lambda node: sum(state.gpu.units - state.free for state in node.gpu_states))
    text = "GPUs of the node with more allocated units than they have."
    yield _per_node("gpus_overbooked", text, nodes, lambda node: len(node.overbooked()))
    yield _per_node(
        "units_free_largest", "Unallocated units on the GPU of the node that has most of them.", nodes, lambda node: node.largest_free()
    )
    yield _gauge("pods", "Pods with allocated GPUs, by state of the allocation.", _counted("state", _states(ledger), _STATES))
    waiting: Counter[str] = Counter(map(_why, cluster.pending.values()))
    yield _gauge("pods_waiting", "Pods that request GPUs and are on no node, by reason.", _counted("reason", waiting, get_args(WaitReason)))
    text = "Pods that wait for room, by what is free in the cluster."
    yield _gauge("pods_waiting_room", text, _counted("room", _rooms(cluster.pending.values(), nodes), _ROOMS))
    text = "GPUs that waiting pods of the namespace request, as parts of an average GPU."
    yield _gauge("namespace_gpus_waiting", text, _asked(cluster.pending.values(), nodes))
    yield single("gpushare_extender_reservations_expired_total", "counter", "Reservations that no bind followed in time.", ledger.expired)
    drift = _drift(nodes)
    yield _gauge(
        "drift_units", "Units that nodes report as in use and no pod's annotations have, by reason.", _counted("reason", drift, _DRIFTS)
    )
    rejected = sum(len(node.rejections) for node in nodes)
    yield _gauge("admission_rejections", "Rejections by kubelets for which GPUs are reserved now.", [(rejected, {})])
    skipped = [(cluster.node_states.skipped[node.name], {"node": node.name}) for node in nodes]
    text = "States of the node that were not read, because a newer one came within the same second."
    yield family("gpushare_extender_node_states_skipped_total", "counter", text, skipped)
    yield _per_node(
        "ledger_inconsistencies", "Inconsistencies of the ledger; GET /ledger describes them.", nodes, lambda node: len(node.problems())
    )


def expiry_families(token: float | None, certificate: float | None, client_ca: float | None) -> Iterator[Metric]:
    """When each expires, Unix time in seconds; None for what this extender does not have."""
    for what, text, value in (
        ("token", "When the token for the API server expires, if the extender renews one.", token),
        ("certificate", "When the certificate that the extender shows expires, if it serves TLS.", certificate),
        ("client_ca", "When the CA of kube-scheduler's certificate expires, if the extender serves TLS.", client_ca),
    ):
        yield maybe(f"gpushare_extender_{what}_expiry_timestamp_seconds", text, value)


def watch_families(watches: Mapping[str, Reflector[Any]]) -> Iterator[Metric]:
    """How well the API server is followed. watches: by what they watch."""

    def counter(name: str, text: str, value: Callable[[Reflector[Any]], int]) -> Metric:
        values = [(value(watch), {"resource": what}) for what, watch in watches.items()]
        return family(f"gpushare_extender_watch_{name}_total", "counter", text, values)

    yield counter("lists", "Complete lists from the API server; one after the start is normal.", lambda watch: watch.lists)
    yield counter("interruptions", "Lists and watches that ended with an error.", lambda watch: watch.interruptions)
    ages = [(round(watch.age, 3), {"resource": what}) for what, watch in watches.items()]
    yield _gauge("watch_age_seconds", "Seconds since the last answer or event from the API server.", ages)


def _gauge(name: str, text: str, values: Iterable[Value]) -> Metric:
    return family(f"gpushare_extender_{name}", "gauge", text, values)


def _per_node(name: str, text: str, nodes: Sequence[NodeLedger], value: Callable[[NodeLedger], int]) -> Metric:
    """By GPU there would be too many in a large cluster: those are the device plugins' to tell."""
    return _gauge(f"node_{name}", text, ((node.guarded(partial(value, node), 0), {"node": node.name}) for node in nodes))


def _counted(label: str, counted: Mapping[str, int], all_of: Sequence[str]) -> list[Value]:
    return [(counted.get(value, 0), {label: value}) for value in all_of]


def _known(nodes: Sequence[NodeLedger]) -> Mapping[str, int]:
    known = sum(node.inventory is not None for node in nodes)
    return {"known": known, "unknown": len(nodes) - known}


def _states(ledger: Ledger) -> Mapping[str, int]:
    """Most pods are bound: only the others are read."""
    others = ledger.in_flight - ledger.held_until
    reserved = sum(map(ledger.is_reserved, others))
    found = {"deleted": len(ledger.held_until), "reserved": reserved, "assumed": len(others) - reserved}
    return {**found, "bound": sum(len(node.pods) for node in ledger.nodes.values()) - sum(found.values())}


def _why(pod: PendingPod | InvalidPod) -> WaitReason:
    if isinstance(pod, InvalidPod):
        return "invalid"
    return "unsupported" if pod.request.unsupported else "nominated" if pod.nominated else "room"


def _rooms(pods: Iterable[PendingPod | InvalidPod], nodes: Sequence[NodeLedger]) -> Counter[str]:
    """Of the pods that wait for room, by memory alone: which models and neighbours a pod accepts is left out."""
    wanted = [pod.request for pod in pods if isinstance(pod, PendingPod) and _why(pod) == "room"]
    if not wanted:
        return Counter()
    nothing: tuple[int, ...] = ()
    units = empty = most_empty = 0
    largest: list[int] = []  # [m]: units free on each of m + 1 GPUs of one node, at most
    for node in nodes:
        frees = sorted(node.guarded(lambda ledger=node: ledger.free_units, nothing), reverse=True)  # type: ignore[misc]
        largest += [0] * (len(frees) - len(largest))
        for at, free in enumerate(frees):
            largest[at] = max(largest[at], free)
        node_empty = node.empty_gpus()
        units, empty, most_empty = units + sum(frees), empty + node_empty, max(most_empty, node_empty)
    found: Counter[str] = Counter()
    for request in wanted:
        if request.whole_gpus:
            fits, enough = request.whole_gpus <= most_empty, request.whole_gpus <= empty
        else:
            gpus = request.gpus_per_pod
            fits = gpus <= len(largest) and request.per_gpu <= largest[gpus - 1]
            enough = request.per_gpu * gpus <= units
        found["enough" if fits else "fragmented" if enough else "too-little"] += 1
    return found


def _asked(pods: Iterable[PendingPod | InvalidPod], nodes: Sequence[NodeLedger]) -> list[Value]:
    """The parts of GPUs, of pods that can run. Their GPU is not known yet: memory counts as its part of one of average MiB, at most all,
    and a request is as large as the unit of each GPU's node makes it."""
    wanted = [(pod.namespace, pod.request) for pod in pods if isinstance(pod, PendingPod) and not pod.request.unsupported]
    if not wanted:
        return []
    sizes = [(node.inventory.unit.mib, gpu.units) for node in nodes if node.inventory for gpu in node.inventory.gpus if gpu.usable]
    average = sum(mib * units for mib, units in sizes) / len(sizes) if sizes else 0.0
    by_unit = Counter(mib for mib, _ in sizes)
    found: dict[str, float] = {}
    for namespace, request in wanted:
        parts = (count * min(1.0, request.per_gpu * mib / average) for mib, count in by_unit.items())
        part = sum(parts) / len(sizes) if average else 1.0
        found[namespace] = found.get(namespace, 0.0) + (request.whole_gpus or part * request.gpus_per_pod)
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(gpus for _, gpus in ranked[_MOST_NAMESPACES:])
    return [(gpus, {"namespace": name}) for name, gpus in [*ranked[:_MOST_NAMESPACES], *([("", rest)] if rest else [])]]


def _drift(nodes: Sequence[NodeLedger]) -> Counter[str]:
    """By why the node says so; of a pod on a GPU, what is beyond the units that its annotations have there."""
    found: Counter[str] = Counter()
    for node in nodes:
        if node.record.held.entries:
            found += node.guarded(partial(_drift_of, node), Counter())
    return found


def _drift_of(node: NodeLedger) -> Counter[str]:
    index_of = {gpu.uuid: gpu.index for gpu in node.inventory.gpus} if node.inventory else {}
    allocations = {pod.uid: pod.allocation.by_gpu for pod in node.pods if pod.allocation is not None}
    said: Counter[tuple[str, str, str]] = Counter()
    for entry in node.record.held.entries:
        said[entry.uid, entry.gpu, entry.why if entry.why in _DRIFTS else "other"] += entry.units
    found: Counter[str] = Counter()
    for (uid, gpu, why), units in said.items():
        annotated = allocations.get(uid, {}).get(index_of.get(gpu, -1), 0)
        found[why] += max(0, units - annotated)
    return found
