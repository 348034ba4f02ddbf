# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""bind: choose the GPU, assume it in the ledger, and send one Binding with both node and GPU. The ledger takes its outcome."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.objects import read_pending
from gpushare_runtime.core.placement.explain import amount, exact
from gpushare_runtime.core.placement.policies import Policy
from gpushare_runtime.core.placement.view import seen_by
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.extender.binding import BindError, Bindings, BindOutcome, elsewhere, gone, node_of, reason_of
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.extender_v1 import BindArguments
from gpushare_runtime.extender.leadership import SERVER_SECONDS
from gpushare_runtime.kube.client import KubeClient, KubeError

log = logging.getLogger(__name__)

_BECAME: Final = {BindOutcome.BOUND: "bound", BindOutcome.NOT_BOUND: "not bound", BindOutcome.UNSEEN: "gone, perhaps after it was bound"}


@dataclass(frozen=True)
class _InFlight:
    node: str
    task: asyncio.Task[None]


class Binder:
    """Binds pods, any number at once. The ledger assumes the GPU from the moment it is chosen.

    now_ns: Unix time in nanoseconds, for the annotation. server_seconds, send_window: as for `Bindings`.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: ClusterCache,
        policy: Policy,
        *,
        now_ns: Callable[[], int] = time.time_ns,
        server_seconds: int = SERVER_SECONDS,
        send_window: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._bindings = Bindings(client, server_seconds=server_seconds, send_window=send_window)
        self._cluster = cluster
        self._ledger = cluster.ledger
        self._policy = policy
        self._now_ns = now_ns
        self._in_flight: dict[str, _InFlight] = {}
        self._outcome_unknown: dict[str, _InFlight] = {}

    async def bind(self, args: BindArguments) -> None:
        """Returns when the pod is on that node, also when it was there before. BindError when it is not."""
        unsettled = self._outcome_unknown.get(args.uid)
        if unsettled is not None:
            raise BindError(
                f"the API server has not confirmed yet whether pod {args} was bound to node {unsettled.node}; "
                f"the extender reads the pod again within {self._bindings.settled_after:.0f} s, the scheduler tries again by itself",
                "api-unknown",
            )
        flight = self._in_flight.get(args.uid)
        if flight is None:
            task = asyncio.create_task(self._bind(args))
            flight = self._in_flight[args.uid] = _InFlight(args.node, task)
            task.add_done_callback(lambda done: self._finished(args.uid, done))
        elif flight.node != args.node:
            raise BindError(f"pod {args} is being bound to node {flight.node}; it cannot go to node {args.node} meanwhile", "elsewhere")
        # A scheduler that waits no longer does not stop the Binding.
        await asyncio.shield(flight.task)

    async def drain(self) -> None:
        """Wait for the Bindings under way. No new ones may come."""
        if self._in_flight:
            await asyncio.wait([flight.task for flight in self._in_flight.values()])
        for flight in self._outcome_unknown.values():
            flight.task.cancel()

    def _finished(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._in_flight[uid]
        if not task.cancelled():
            # The caller may be gone, and asyncio logs an exception that nothing retrieved.
            task.exception()

    async def _bind(self, args: BindArguments) -> None:
        try:
            await self._bind_found(args)
        finally:
            # Bound or not, the reservation ends.
            self._ledger.release(args.uid)

    async def _bind_found(self, args: BindArguments) -> None:
        pod, node = await self._find(args)
        # The watch may have been faster than the answer.
        node = node or self._bound_to(args.uid)
        if node:
            if node != args.node:
                raise elsewhere(args, node)
        elif pod is None:
            sent = await self._bindings.send(args, {})
            if sent.error is not None:
                raise sent.error
            log.info("bind %s to node %s: it requests no GPU", args, args.node, extra=about(args, args.node))
        else:
            await self._place(args, pod)

    async def _place(self, args: BindArguments, pod: PendingPod) -> None:
        # From here to the assumption nothing waits, so that binds at the same time cannot take the same units.
        node = self._ledger.node(args.node) or NodeLedger(args.node)
        allocation = self._reserved(args, node)
        if allocation is None:
            self._ledger.release(args.uid)
            allocation = self._choose(args, pod, node)
        assert node.inventory is not None, "nothing is placed where there are no GPUs"
        self._cluster.assume(pod.allocated(args.node, allocation))
        try:
            sent = await self._bindings.send(args, allocation.to_annotations(node.inventory, self._now_ns()))
        except Exception:
            # With any error that is not the API server's the Binding may have been sent.
            self._settle_later(args)
            raise
        if sent.outcome is BindOutcome.UNKNOWN:
            self._settle_later(args)
        self._take(args.uid, sent.outcome)
        if sent.error is not None:
            raise sent.error
        if log.isEnabledFor(logging.DEBUG):
            # The pod's annotations and kube-scheduler's event have the same; a line for each pod would cost more than its answer.
            log.debug("bind %s to node %s: %s, %s", args, args.node, amount(pod.request), _gpus(allocation), extra=about(args, args.node))

    def _reserved(self, args: BindArguments, node: NodeLedger) -> Allocation | None:
        """The GPUs that prioritize has reserved there, if they are still good."""
        pod = self._ledger.pod(args.uid)
        if pod is None or pod.node != args.node or pod.allocation is None or not self._ledger.is_reserved(args.uid):
            return None
        return pod.allocation if node.still_valid(pod) else None

    def _choose(self, args: BindArguments, pod: PendingPod, node: NodeLedger) -> Allocation:
        seen, request = seen_by(self._ledger, self._policy, node, pod), self._ledger.for_pod(pod)
        allocation = self._policy.choose(request, seen)
        if allocation is None:
            raise _no_room(args, request, seen)
        return allocation

    def _bound_to(self, uid: str) -> str:
        """The node that it is bound to, or being bound to; "" where that is at most reserved."""
        pod = self._ledger.pod(uid)
        return pod.node if pod is not None and not self._ledger.is_reserved(uid) else ""

    async def _find(self, args: BindArguments) -> tuple[PendingPod | None, str]:
        """(the pod, None if it requests no GPUs; the node that it is bound to already, or "")."""
        if node := self._bound_to(args.uid):
            return None, node
        pod: PendingPod | InvalidPod | None = self._cluster.pending.get(args.uid)
        if pod is None:
            try:
                raw = await self._bindings.read(args)
            except KubeError as error:
                raise BindError(f"pod {args} is not known yet, and cannot be read from the API server: {error}", reason_of(error)) from None
            if raw is None:
                raise gone(args)
            pod, node = read_pending(raw), node_of(raw)
        fault = pod.error if isinstance(pod, InvalidPod) else pod.request.unsupported if pod is not None else None
        if isinstance(pod, InvalidPod) or fault is not None:
            raise BindError(f"pod {args}: {fault}", "invalid")
        return pod, node

    def _take(self, uid: str, outcome: BindOutcome) -> None:
        """Give the ledger the outcome of a Binding that it assumes."""
        if outcome is BindOutcome.NOT_BOUND:
            self._cluster.forget(uid)
        elif outcome is BindOutcome.UNSEEN:
            self._cluster.keep_until_seen(uid)

    def _settle_later(self, args: BindArguments) -> None:
        """Keep the GPU assumed until the outcome is known."""
        self._outcome_unknown[args.uid] = _InFlight(args.node, asyncio.create_task(self._settle(args)))

    async def _settle(self, args: BindArguments) -> None:
        try:
            outcome = await self._bindings.settled(args)
            self._take(args.uid, outcome)
            log.info("bind %s to node %s: settled, it was %s", args, args.node, _BECAME[outcome], extra=about(args, args.node))
        finally:
            del self._outcome_unknown[args.uid]


def _no_room(args: BindArguments, request: Request, node: NodeLedger) -> BindError:
    return BindError(f"pod {args} does not fit on node {args.node} any more: {exact(request, node)}", "no-room")


def _gpus(allocation: Allocation) -> str:
    indexes = sorted(allocation.by_gpu)
    return f"{'GPU' if len(indexes) == 1 else 'GPUs'} {', '.join(map(str, indexes))}"
