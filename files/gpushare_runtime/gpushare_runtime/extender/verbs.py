# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""filter, prioritize and preempt, answered from the ledger: no I/O, no HTTP."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.objects import read_pending
from gpushare_runtime.core.placement.budgets import MOST_BUDGETS, MOST_COMPARED_OF_ONE, MOST_LABELS, MOST_REQUIREMENTS, MOST_VALUES, Budgets
from gpushare_runtime.core.placement.explain import MOST_WORDINGS, NoFit, amount
from gpushare_runtime.core.placement.policies import Policy
from gpushare_runtime.core.placement.preemption import Preemption, Victims
from gpushare_runtime.core.placement.view import PodView, view_of
from gpushare_runtime.core.pods import AllocatedPod, InvalidPod, PendingPod
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.extender.extender_v1 import Arguments, Filtered, PreemptArguments, no_pod

log = logging.getLogger(__name__)

IN_THE_POD: Final = "what is wrong is in the pod: see the other reason"
"""For all nodes except the first, if the pod's request is invalid."""
AWAITED_SECONDS: Final = 10.0
"""So long a nominated pod waits for room of pods that have ended. A node says within `FORCED_SECONDS` that processes are left."""


class Verbs:
    """The verbs that bind nothing.

    The ledger reserves the GPU that the scheduler will most probably take, because the scheduler binds only after it has filtered
    other pods. on_filter: called with the pod's UID and all nodes of the call if it fits on none of them, else no nodes. pending: pods
    that the watch has shown, by UID. budgets: the cluster's disruption budgets. most: maximum number of nodes that filter returns, the
    best first, 0 for no limit. clock: monotonic seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        policy: Policy,
        on_filter: Callable[[str, Sequence[str]], None] = lambda uid, nodes: None,
        *,
        pending: Mapping[str, PendingPod | InvalidPod] | None = None,
        budgets: Budgets | None = None,
        most: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._policy = policy
        self._on_filter = on_filter
        self._known = pending if pending is not None else {}
        self._budgets = budgets if budgets is not None else Budgets()
        self._most = most
        self._clock = clock
        self._faulty: Set[str] = frozenset()
        self._uncounted: Set[str] = frozenset()
        self._awaiting: dict[tuple[str, str], float] = {}

    def filter(self, args: Arguments) -> Filtered:
        """The nodes that have a GPU (or empty GPUs) for the pod; the others with a reason."""
        pod = self._pending(args.pod)
        if pod is None:
            return Filtered(args.names)
        if isinstance(pod, InvalidPod):
            return self._invalid(args, pod.error)
        if pod.request.unsupported is not None:
            return self._invalid(args, pod.request.unsupported)
        # Its own reservation must not exclude it.
        self._ledger.asked(pod.uid, pod.group, self._clock())
        known = self._ledger.pod(pod.uid)
        if known is not None:
            self._on_filter(pod.uid, args.names)
            return Filtered(error=self._already_bound(known))
        view = view_of(self._ledger, self._policy, pod)
        pod = view.pod
        fitting, unfit = view.fitting(args.names, self._most)
        self._on_filter(pod.uid, () if fitting else args.names)
        if len(fitting) == 1:
            # The scheduler does not call prioritize then.
            self._reserve(view, fitting[0])
        reasons = view.no_fits(unfit)
        if not fitting or log.isEnabledFor(logging.DEBUG):
            # A line for each pod would cost more than its answer.
            counts = Counter(no_fit.reason for no_fit in reasons.values())
            fit, why = len(args.names) - len(unfit), ", ".join(f"{reason} on {count}" for reason, count in counts.most_common())
            log.info(
                "filter %s, %s: %d of %d nodes fit%s", pod, amount(pod.request), fit, len(args.names), why and f": {why}", extra=about(pod)
            )
        self._log_faults(reasons)
        return Filtered(
            fitting, view.in_words(reasons), unresolvable=frozenset(name for name, reason in reasons.items() if reason.hopeless)
        )

    def prioritize(self, args: Arguments) -> Mapping[str, int]:
        """Node name → 1 … 10. Nodes that are left out get 0."""
        pod = self._pending(args.pod)
        if not isinstance(pod, PendingPod) or pod.request.unsupported is not None:
            return {}
        self._ledger.release(pod.uid)
        view = view_of(self._ledger, self._policy, pod)
        best, scores = view.scores(args.names)
        self._reserve(view, best)
        return scores

    def preempt(self, args: PreemptArguments) -> Mapping[str, Victims]:
        """Node name → all victims that it takes there. Nodes that no eviction helps are left out."""
        pod = self._pending(args.pod)
        if pod is None:
            return args.victims
        if isinstance(pod, InvalidPod) or pod.request.unsupported is not None:
            return {}
        self._ledger.release(pod.uid)
        view = view_of(self._ledger, self._policy, pod)
        pod = view.pod
        if self._awaits_room(view):
            log.info(
                "preempt for %s: no pod is evicted, since its room on node %s is about to be free",
                pod,
                pod.nominated,
                extra=about(pod, pod.nominated),
            )
            return {}
        preemption = Preemption(self._ledger, self._policy, self._budgets)
        helped = preemption.victims(pod, args.victims)
        self._log_uncounted(preemption.uncounted)
        log.info(
            "preempt for %s, %s: evictions help on %d of %d nodes",
            pod,
            amount(pod.request),
            len(helped),
            len(args.victims),
            extra=about(pod),
        )
        if helped:
            self._awaiting.pop((pod.uid, pod.nominated), None)
        return helped

    def _awaits_room(self, view: PodView) -> bool:
        """Whether evictions have made its room, and only their end is not confirmed here: more evictions would be too many.

        kube-scheduler may see the end of a pod earlier, and counts one as gone that was deleted by force. It keeps the nomination then.
        Not for long, since the pod may lack something else on that node by now.
        """
        pod = view.pod
        node = self._ledger.node(pod.nominated)
        if node is None:
            return False
        leaving = {other.uid for other in node.pods if other.terminating or self._ledger.is_held_until(other.uid)}
        if view.node(node.name).simulate(without=leaving).remaining_after(pod.request) is None:
            return False
        nominees = self._ledger.nominees
        self._awaiting = {(uid, name): since for (uid, name), since in self._awaiting.items() if uid in nominees.get(name, ())}
        return self._clock() < self._awaiting.setdefault((pod.uid, node.name), self._clock()) + AWAITED_SECONDS

    def _pending(self, pod: Mapping[str, Any]) -> PendingPod | InvalidPod | None:
        """As `_read`; nearly always the watch has shown the same version of the pod."""
        metadata = pod.get("metadata") or {}
        known = self._known.get(metadata.get("uid") or "")
        same = isinstance(known, PendingPod) and known.version and known.version == metadata.get("resourceVersion")
        return known if same else _read(pod)

    def _reserve(self, view: PodView, name: str) -> None:
        """name: "" for no node."""
        pod = view.pod
        if self._ledger.node(name) is None or not pod.uid:
            return
        allocation = view.choice(name)
        if allocation is not None:
            self._ledger.reserve(pod.allocated(name, allocation), self._clock() + pod.seconds_to_bind)

    def _already_bound(self, known: AllocatedPod) -> str:
        """Why filter has no result for a pod that has GPUs: they would count against it, and make it unschedulable."""
        which = f"pod {known.namespace}/{known.name}"
        if self._ledger.is_assumed(known.uid):
            unknown = "and it is not known yet whether that happened; kube-scheduler tries again by itself"
            return f"{which} is being bound to node {known.node}, {unknown}"
        return f"{which} is bound to node {known.node} already"

    def _log_faults(self, reasons: Mapping[str, NoFit]) -> None:
        """Once each, as long as they are the same ones."""
        faults = {name: reason.fault for name, reason in reasons.items() if reason.fault}
        if faults.keys() - self._faulty:
            name, fault = next(item for item in faults.items() if item[0] not in self._faulty)
            log.error("nodes that cannot be evaluated and are omitted: %d; node %s: %s", len(faults), name, fault, extra=about(node=name))
        self._faulty = faults.keys()

    def _log_uncounted(self, namespaces: Set[str]) -> None:
        """Once each, as long as they are the same ones."""
        if namespaces - self._uncounted:
            log.warning(
                "disruption budgets of %d namespaces are not counted, such as %s: expected at most %d that may cover one pod, of at most "
                "%d labels and expressions with %d values, at most %d labels of the pod, and %d comparisons with all pods; preemption "
                "spares such pods as if their budgets were used up. Delete budgets there; a ResourceQuota of "
                "count/poddisruptionbudgets.policy limits them",
                len(namespaces),
                min(namespaces - self._uncounted),
                MOST_BUDGETS,
                MOST_REQUIREMENTS,
                MOST_VALUES,
                MOST_LABELS,
                MOST_COMPARED_OF_ONE,
            )
        self._uncounted = namespaces

    def _invalid(self, args: Arguments, reason: str) -> Filtered:
        log.info("filter %s: unschedulable on every node: %s", pod_name(args.pod), reason, extra=about(pod_name(args.pod)))
        failed = dict.fromkeys(args.names, reason)
        if len(failed) > MOST_WORDINGS:
            # Once, and not thousands of times in one response.
            failed = {**dict.fromkeys(args.names, IN_THE_POD), args.names[0]: reason}
        return Filtered(failed=failed, hopeless=True)


def _read(pod: Mapping[str, Any]) -> PendingPod | InvalidPod | None:
    """`read_pending`; WireError where that fails."""
    try:
        return read_pending(pod)
    except Exception as error:
        # The API server's pods have the right types everywhere: this one is none.
        raise no_pod(pod) from error


def pod_name(pod: Mapping[str, Any]) -> str:
    """namespace/name for a log line."""
    metadata = pod.get("metadata") or {}
    return f"{metadata.get('namespace')}/{metadata.get('name')}"
