# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""filter, prioritize and preempt, answered from the ledger: no I/O, no HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Any, Final

from gpushare_runtime.core.constraints import Labels, labels_of
from gpushare_runtime.core.ledger import Holder, Ledger, NodeLedger, NodeRecord
from gpushare_runtime.core.placement.explain import FAULT, MOST_WORDINGS, NoFit, amount, no_fit, refusals
from gpushare_runtime.core.placement.policies import Policy
from gpushare_runtime.core.placement.preemption import Budget, Preemption, Preemptor, Victims, seen_by
from gpushare_runtime.core.placement.ranking import Weight, names_of, scores_of
from gpushare_runtime.core.request import Request, RequestError, parse_request
from gpushare_runtime.extender.extender_v1 import Arguments, Filtered, PreemptArguments
from gpushare_runtime.extender.objects import priority_of

log = logging.getLogger(__name__)

RESERVED_SECONDS: Final = 10.0
"""The scheduler's call to bind follows within milliseconds, where nothing comes before it."""
GROUP_SECONDS: Final = 60.0
"""Pods of a group wait in Permit for each other: coscheduling's default. From Kubernetes 1.35 they are nominated meanwhile."""
VOLUME_SECONDS: Final = 600.0
"""Volumes are provisioned and bound in PreBind, resource claims too: bindTimeoutSeconds of the scheduler's VolumeBinding."""
_GROUP_LABELS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")

IN_THE_POD: Final = "what is wrong is in the pod: see the other reason"
"""For all nodes but the first, where a pod cannot be meant."""

_REMEMBERED: Final = 300


@dataclass(frozen=True)
class _Pod:
    """The pod of a call. request: as asked by it; seconds: how long its call to bind may be after that for prioritize."""

    uid: str
    namespace: str
    name: str
    labels: Labels
    priority: int
    request: Request
    seconds: float


class Service:
    """The verbs that bind nothing. asked: told the UID of each pod that filter is asked about, and the nodes where it does not get a
    place for now, which are all that were named or none; budgets: those of the cluster.

    The node that the scheduler will most probably take is reserved in the ledger, since it binds only after it has asked about
    other pods. most: filter names at most so many nodes, those that prioritize would score best; 0 for all that fit.
    clock: monotonic, in seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        policy: Policy,
        asked: Callable[[str, Sequence[str]], None] = lambda uid, refused: None,
        *,
        budgets: Callable[[], Collection[Budget]] = tuple,
        most: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._policy = policy
        self._asked = asked
        self._budgets = budgets
        self._most = most
        self._clock = clock
        self._parsed: dict[tuple[object, object], Request | None] = {}
        self._faulty: Set[str] = frozenset()

    def filter(self, args: Arguments) -> Filtered:
        """The nodes that have a card (or empty cards) for the pod; the others with a reason."""
        try:
            request = self._request(args.pod)
        except RequestError as error:
            return self._refuse(args, str(error))
        if request is None:
            return Filtered(args.names)
        if request.unsupported is not None:
            return self._refuse(args, request.unsupported)
        uid = (args.pod.get("metadata") or {}).get("uid", "")
        # What is reserved for itself must not be in its way.
        self._ledger.release(uid)
        holder = self._ledger.holder(uid)
        if holder is not None:
            self._asked(uid, args.names)
            return Filtered(error=self._settling(holder))
        pod = self._pod(args.pod, request)
        fitting, unfit = self._fitting(args.names, pod)
        self._asked(uid, () if fitting else args.names)
        if len(fitting) == 1:
            # The scheduler does not ask for priorities then.
            self._reserve(pod, fitting[0])
        if not fitting or log.isEnabledFor(logging.DEBUG):
            # A line for each pod would cost more than its answer.
            log.info(
                "filter %s, %s: %d of %d nodes fit", pod_name(args.pod), amount(request), len(args.names) - len(unfit), len(args.names)
            )
        refused = self._refused(unfit, pod)
        self._log_faults(refused)
        failed = refusals(pod.request, refused, lambda name: self._node(name, pod))
        return Filtered(fitting, failed, unresolvable=frozenset(name for name, one in refused.items() if one.hopeless))

    def prioritize(self, args: Arguments) -> Mapping[str, int]:
        """Node name → 1 … 10. Nodes that are left out get 0."""
        try:
            request = self._request(args.pod)
        except RequestError:
            return {}
        if request is None or request.unsupported is not None:
            return {}
        self._ledger.release((args.pod.get("metadata") or {}).get("uid", ""))
        pod = self._pod(args.pod, request)
        best, scores = self._scores(args.names, pod)
        if best:
            self._reserve(pod, best)
        return scores

    def preempt(self, args: PreemptArguments) -> Mapping[str, Victims]:
        """Node name → all victims that it takes there. Nodes that no eviction helps are left out."""
        try:
            request = parse_request(args.pod)
        except RequestError:
            return {}
        if request is None:
            return args.victims
        if request.unsupported is not None:
            return {}
        self._ledger.release((args.pod.get("metadata") or {}).get("uid", ""))
        pod = self._pod(args.pod, request)
        helped = Preemption(self._ledger, self._policy, self._budgets()).victims(
            Preemptor(pod.uid, pod.priority, pod.request), args.victims
        )
        log.info(
            "preempt for %s, %s: evictions help on %d of %d nodes", pod_name(args.pod), amount(request), len(helped), len(args.victims)
        )
        return helped

    def _request(self, pod: Mapping[str, Any]) -> Request | None:
        """As `parse_request`: filter, prioritize and the next attempt ask about the same version of the same pod."""
        metadata = pod.get("metadata") or {}
        version = metadata.get("uid"), metadata.get("resourceVersion")
        if None in version:
            return parse_request(pod)
        if version not in self._parsed:
            if len(self._parsed) >= _REMEMBERED:
                self._parsed.clear()
            self._parsed[version] = parse_request(pod)
        return self._parsed[version]

    def _pod(self, raw: Mapping[str, Any], request: Request) -> _Pod:
        metadata = raw.get("metadata") or {}
        namespace, labels = metadata.get("namespace", ""), labels_of(metadata)
        asked = self._ledger.asked_by(request, namespace, labels)
        seconds = _seconds_to_bind(raw.get("spec") or {}, labels)
        return _Pod(metadata.get("uid", ""), namespace, metadata.get("name", ""), labels, priority_of(raw), asked, seconds)

    def _fitting(self, names: Sequence[str], pod: _Pod) -> tuple[Sequence[str], Collection[str]]:
        """(the nodes that are named to the scheduler, those where this pod does not fit or of which nothing is known)."""
        if not self._ledger.nominees:
            return self._policy.ranking(pod.request, self._ledger).fitting(names, self._most)
        weights = self._weights(names, pod)
        fitting = [weight for weight in weights if weight is not None]
        unfit = {name for name, weight in zip(names, weights, strict=True) if weight is None}
        return names_of(nsmallest(self._most, fitting) if self._most else fitting), unfit

    def _refused(self, unfit: Collection[str], pod: _Pod) -> Mapping[str, NoFit]:
        """Why it does not fit on these nodes."""
        if not unfit:
            return {}
        look, nominees = partial(no_fit, pod.request), self._ledger.nominees
        # Where others are nominated each pod sees another node.
        own = {name: look(self._node(name, pod)) for name in unfit if name in nominees} if nominees else {}
        rest = [name for name in unfit if name not in own] if own else unfit
        # In a full cluster those are most nodes, and few have changed since the last pod.
        found = self._policy.ranking(pod.request, self._ledger).noted(rest, look)
        found.update(own)
        return found

    def _scores(self, names: Sequence[str], pod: _Pod) -> tuple[str, Mapping[str, int]]:
        """(the best node, "" for none; name → 1 … 10)."""
        if not self._ledger.nominees:
            return self._policy.ranking(pod.request, self._ledger).scores(names)
        weights = [weight for weight in self._weights(names, pod) if weight is not None]
        return min(weights)[-1] if weights else "", scores_of(weights)

    def _weights(self, names: Sequence[str], pod: _Pod) -> list[Weight | None]:
        """Of each node as this pod may use it, while room on some is kept for nominees; None where it does not fit or nothing is known."""
        weights = self._policy.ranking(pod.request, self._ledger).weights(names)
        for place, name in enumerate(names):
            if name in self._ledger.nominees:
                node = self._node(name, pod)
                weights[place] = node.guarded(partial(self._policy.weigh, pod.request, node), None)
        return weights

    def _node(self, name: str, pod: _Pod) -> NodeLedger:
        """The node as this pod may use it; one without cards where nothing is known of it."""
        node = self._ledger.node(name)
        return self._seen(node, pod) if node is not None else NodeLedger(name)

    def _seen(self, node: NodeLedger, pod: _Pod) -> NodeLedger:
        seen = node.guarded(partial(seen_by, self._ledger, self._policy, node, pod.uid, pod.priority), None)
        if seen is None:
            seen = NodeLedger(node.name)
            seen.set_record(NodeRecord(node.name, None, FAULT))
        return seen

    def _reserve(self, pod: _Pod, name: str) -> None:
        node = self._ledger.node(name)
        if node is None or not pod.uid:
            return
        allocation = node.guarded(partial(self._policy.choose, pod.request, self._seen(node, pod)), None)
        if allocation is not None:
            holder = Holder(pod.uid, pod.namespace, pod.name, name, pod.request.asked_by(None), allocation, pod.labels, pod.priority)
            self._ledger.reserve(holder, self._clock() + pod.seconds)

    def _settling(self, holder: Holder) -> str:
        """Why there is no answer about a pod that has cards: its own would count against it, and it would be called unschedulable."""
        which = f"pod {holder.namespace}/{holder.name}"
        if self._ledger.is_assumed(holder.uid):
            unknown = "and it is not known yet whether that happened; kube-scheduler tries again by itself"
            return f"{which} is being bound to node {holder.node}, {unknown}"
        return f"{which} is bound to node {holder.node} already"

    def _log_faults(self, refused: Mapping[str, NoFit]) -> None:
        """Once each, as long as they are the same ones."""
        faults = {name: one.fault for name, one in refused.items() if one.fault}
        if faults.keys() - self._faulty:
            name, fault = next(item for item in faults.items() if item[0] not in self._faulty)
            log.error("nodes that cannot be looked at, and are left out: %d; node %s: %s", len(faults), name, fault)
        self._faulty = faults.keys()

    def _refuse(self, args: Arguments, reason: str) -> Filtered:
        log.info("filter %s: refused on every node: %s", pod_name(args.pod), reason)
        failed = dict.fromkeys(args.names, reason)
        if len(failed) > MOST_WORDINGS:
            # Once, and not thousands of times in one answer.
            failed = {**dict.fromkeys(args.names, IN_THE_POD), args.names[0]: reason}
        return Filtered(failed=failed, hopeless=True)


def _seconds_to_bind(spec: Mapping[str, Any], labels: Labels) -> float:
    """Between the choice of a node and the call to bind. Whatever ends the attempt earlier also ends the reservation, or the next does."""
    volumes = spec.get("volumes") or ()
    if spec.get("resourceClaims") or any(volume.get("persistentVolumeClaim") or volume.get("ephemeral") for volume in volumes):
        return VOLUME_SECONDS
    grouped = spec.get("schedulingGroup") or spec.get("workloadRef") or any(name in _GROUP_LABELS for name, _ in labels)
    return GROUP_SECONDS if grouped else RESERVED_SECONDS


def pod_name(pod: Mapping[str, Any]) -> str:
    """namespace/name for a log line."""
    metadata = pod.get("metadata") or {}
    return f"{metadata.get('namespace')}/{metadata.get('name')}"
