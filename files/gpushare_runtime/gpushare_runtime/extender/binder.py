# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""bind: choose the GPU, assume it in the ledger, and send one Binding with both node and GPU."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.objects import read_pending
from gpushare_runtime.core.placement.explain import amount, exact
from gpushare_runtime.core.placement.policies import Policy
from gpushare_runtime.core.placement.preemption import seen_by
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.extender_v1 import BindArguments
from gpushare_runtime.extender.leadership import SERVER_SECONDS, drained_after
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import UNREACHABLE, KubeClient, KubeError, path

log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 1.0
_READ_SECONDS: Final = 3.0
_SENDS: Final = 2


class BindError(Exception):
    """Why a pod is not bound, for the scheduler and the pod's event. cause: one of metrics.CAUSES."""

    def __init__(self, words: str, cause: str) -> None:
        super().__init__(words)
        self.cause = cause


@dataclass(frozen=True)
class _InFlight:
    node: str
    task: asyncio.Task[None]


class Binder:
    """Binds pods, any number at once. The ledger assumes the GPU from the moment it is chosen.

    now_ns: Unix time in nanoseconds, for the annotation. server_seconds: the API server's timeout for a Binding.
    send_window: seconds that remain to send a Binding, see leadership.py.
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
        self._client = client
        self._cluster = cluster
        self._ledger = cluster.ledger
        self._policy = policy
        self._now_ns = now_ns
        self._server_seconds = server_seconds
        self._send_window = send_window
        self._in_flight: dict[str, _InFlight] = {}
        self._outcome_unknown: dict[str, _InFlight] = {}

    async def bind(self, args: BindArguments) -> None:
        """Returns when the pod is on that node, also when it was there before. BindError when it is not."""
        unsettled = self._outcome_unknown.get(args.uid)
        if unsettled is not None:
            raise BindError(
                f"the API server has not confirmed yet whether pod {args} was bound to node {unsettled.node}; "
                f"the extender reads the pod again within {drained_after(self._server_seconds):.0f} s, the scheduler tries again by itself",
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
                raise _elsewhere(args, node)
        elif pod is None:
            await self._send(args, {})
            log.info("bind %s to node %s: it requests no GPU", args, args.node)
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
            await self._send(args, allocation.to_annotations(node.inventory, self._now_ns()))
        except BindError:
            raise
        except Exception:
            # With any of these errors the Binding may have been sent.
            self._outcome_unknown[args.uid] = _InFlight(args.node, asyncio.create_task(self._settle(args)))
            raise
        if log.isEnabledFor(logging.DEBUG):
            # The pod's annotations and kube-scheduler's event have the same; a line for each pod would cost more than its answer.
            log.debug("bind %s to node %s: %s, %s", args, args.node, amount(pod.request), _gpus(allocation))

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
                raw = await self._read(args)
            except KubeError as error:
                raise BindError(f"pod {args} is not known yet, and cannot be read from the API server: {error}", _cause(error)) from None
            if raw is None:
                raise _gone(args)
            pod, node = read_pending(raw), _node_of(raw)
        fault = pod.error if isinstance(pod, InvalidPod) else pod.request.unsupported if pod is not None else None
        if isinstance(pod, InvalidPod) or fault is not None:
            raise BindError(f"pod {args}: {fault}", "invalid")
        return pod, node

    async def _send(self, args: BindArguments, annotations: Mapping[str, str]) -> None:
        """One Binding, sent again only because that cannot bind twice. On BindError the ledger is as before.

        If the Binding may still happen, the GPU stays assumed and `_settle` reads the result later. If it may have happened to a pod
        that is gone, the watch shows the result.
        """
        doubt = False
        for _ in range(_SENDS):
            try:
                return await self._create(args, annotations)
            except KubeError as error:
                failure = error
            doubt = doubt or failure.ambiguous
            if not doubt and failure.status != 409:
                raise self._rejected(args, failure)
            try:
                pod = await self._read(args)
            except KubeError as error:
                log.warning("bind %s: the API server does not answer whether it was bound: %s", args, error)
                doubt = True
                break
            node = _node_of(pod) if pod is not None else ""
            if node == args.node:
                return None
            if pod is None:
                if doubt:
                    self._cluster.keep_until_seen(args.uid)
                else:
                    self._cluster.forget(args.uid)
                raise _gone(args)
            if node:
                self._cluster.forget(args.uid)
                raise _elsewhere(args, node)
            if not doubt:
                raise self._rejected(args, failure)
            if not failure.ambiguous:
                break
        if annotations:
            self._outcome_unknown[args.uid] = _InFlight(args.node, asyncio.create_task(self._settle(args)))
        raise BindError(f"it is not known whether pod {args} was bound to node {args.node}: {failure}", "api-unknown")

    def _rejected(self, args: BindArguments, failure: KubeError) -> BindError:
        self._cluster.forget(args.uid)
        return BindError(f"the API server does not bind pod {args} to node {args.node}: {failure}", _cause(failure))

    async def _create(self, args: BindArguments, annotations: Mapping[str, str]) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": args.name, "namespace": args.namespace, "uid": args.uid, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": args.node},
        }
        left = self._send_window()
        if left <= 0:
            raise KubeError(0, UNREACHABLE, "not sent, because this host's scheduler may not be the active one any more")
        await self._client.create(
            path("api/v1", "namespaces", args.namespace, "pods", args.name, "binding"),
            binding,
            within=self._server_seconds + _PATIENCE_SECONDS,
            send_within=left,
            timeout=f"{self._server_seconds}s",
        )

    async def _read(self, args: BindArguments) -> dict[str, Any] | None:
        """The pod as the API server has it now; None when it is gone, or another one has its name."""
        try:
            pod = await self._client.get(path("api/v1", "namespaces", args.namespace, "pods", args.name), within=_READ_SECONDS)
        except KubeError as error:
            if error.status == 404:
                return None
            raise
        return pod if (pod.get("metadata") or {}).get("uid") == args.uid else None

    async def _settle(self, args: BindArguments) -> None:
        """Keep the GPU assumed until the Binding cannot happen any more, then read whether it did. It may have been sent until now."""
        try:
            await asyncio.sleep(drained_after(self._server_seconds))
            node = await self._node_at_last(args)
            if node is None:
                self._cluster.keep_until_seen(args.uid)
            elif node != args.node:
                self._cluster.forget(args.uid)
            became = "gone, perhaps after it was bound" if node is None else "bound" if node == args.node else "not bound"
            log.info("bind %s to node %s: settled, it was %s", args, args.node, became)
        finally:
            del self._outcome_unknown[args.uid]

    async def _node_at_last(self, args: BindArguments) -> str | None:
        """The pod's node, "" for none, None if the pod is gone; read as often as it takes."""
        backoff = Backoff()
        while True:
            try:
                pod = await self._read(args)
                return None if pod is None else _node_of(pod)
            except Exception as error:
                # With any error: without an answer this pod could never be bound.
                log.warning("bind %s: it is still not known whether it was bound: %s", args, error)
                await asyncio.sleep(backoff.wait())


def _cause(error: KubeError) -> str:
    """Of a bind that surely has not happened."""
    return "api-rejected" if error.status else "api-unreachable"


def _elsewhere(args: BindArguments, node: str) -> BindError:
    return BindError(f"pod {args} is already bound to node {node}; it cannot be bound to node {args.node}", "elsewhere")


def _no_room(args: BindArguments, request: Request, node: NodeLedger) -> BindError:
    return BindError(f"pod {args} does not fit on node {args.node} any more: {exact(request, node)}", "no-room")


def _gone(args: BindArguments) -> BindError:
    return BindError(f"pod {args} with UID {args.uid} is gone: it was deleted, or another pod has its name now", "gone")


def _node_of(pod: Mapping[str, Any]) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _gpus(allocation: Allocation) -> str:
    indexes = sorted(allocation.by_gpu)
    return f"{'GPU' if len(indexes) == 1 else 'GPUs'} {', '.join(map(str, indexes))}"
