# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Sends a Binding to the API server, and reads the pod where the answer leaves a doubt. No ledger here."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from gpushare_runtime.core.reasons import BindReason
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.extender.extender_v1 import BindArguments
from gpushare_runtime.extender.leadership import SERVER_SECONDS, drained_after
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import UNREACHABLE, KubeClient, KubeError, path

log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 1.0
_READ_SECONDS: Final = 3.0
_SENDS: Final = 2


class BindError(GpushareError):
    """Why a pod is not bound, for the scheduler and the pod's event. reason: the `cause` of the metric."""

    def __init__(self, words: str, reason: BindReason) -> None:
        super().__init__(words)
        self.reason: BindReason = reason


class BindOutcome(Enum):
    """BOUND: to that node, by this Binding or before. NOT_BOUND: neither now nor later.

    UNSEEN: the pod is gone, perhaps after it was bound: the watch shows that. UNKNOWN: the Binding may still happen.
    """

    BOUND, NOT_BOUND, UNSEEN, UNKNOWN = range(4)


class Sent(NamedTuple):
    """error: None if it is bound."""

    outcome: BindOutcome
    error: BindError | None = None


class Bindings:
    """Sends Bindings. server_seconds: the API server's timeout for one; send_window: seconds that remain to send one, see leadership.py."""

    def __init__(
        self, client: KubeClient, *, server_seconds: int = SERVER_SECONDS, send_window: Callable[[], float] = lambda: math.inf
    ) -> None:
        self._client = client
        self._server_seconds = server_seconds
        self._send_window = send_window

    @property
    def settled_after(self) -> float:
        """Seconds after the last send in which a Binding may still happen."""
        return drained_after(self._server_seconds)

    async def send(self, args: BindArguments, annotations: Mapping[str, str]) -> Sent:
        """One Binding, sent again only because that cannot bind twice."""
        doubt = False
        for _ in range(_SENDS):
            try:
                await self._create(args, annotations)
                return Sent(BindOutcome.BOUND)
            except KubeError as error:
                failure = error
            rejected = BindError(f"the API server does not bind pod {args} to node {args.node}: {failure}", reason_of(failure))
            doubt = doubt or failure.ambiguous
            if not doubt and failure.status != 409:
                return Sent(BindOutcome.NOT_BOUND, rejected)
            try:
                pod = await self.read(args)
            except KubeError as error:
                log.warning("bind %s: the API server does not answer whether it was bound: %s", args, error, extra=about(args, args.node))
                break
            if pod is None:
                return Sent(BindOutcome.UNSEEN if doubt else BindOutcome.NOT_BOUND, gone(args))
            node = node_of(pod)
            if node:
                return Sent(BindOutcome.BOUND) if node == args.node else Sent(BindOutcome.NOT_BOUND, elsewhere(args, node))
            if not doubt:
                return Sent(BindOutcome.NOT_BOUND, rejected)
        words = f"it is not known whether pod {args} was bound to node {args.node}: {failure}"
        return Sent(BindOutcome.UNKNOWN, BindError(words, "api-unknown"))

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

    async def read(self, args: BindArguments) -> dict[str, Any] | None:
        """The pod as the API server has it now; None when it is gone, or another one has its name. KubeError."""
        try:
            pod = await self._client.get(path("api/v1", "namespaces", args.namespace, "pods", args.name), within=_READ_SECONDS)
        except KubeError as error:
            if error.status == 404:
                return None
            raise
        return pod if (pod.get("metadata") or {}).get("uid") == args.uid else None

    async def settled(self, args: BindArguments) -> BindOutcome:
        """The outcome of a Binding that was unknown, and may have been sent until now. Waits until it cannot happen any more."""
        await asyncio.sleep(self.settled_after)
        backoff = Backoff()
        while True:
            try:
                pod = await self.read(args)
                node = None if pod is None else node_of(pod)
                break
            except Exception as error:
                # With any error: without an answer this pod could never be bound.
                log.warning("bind %s: it is still not known whether it was bound: %s", args, error, extra=about(args, args.node))
                await asyncio.sleep(backoff.wait())
        if node is None:
            return BindOutcome.UNSEEN
        return BindOutcome.BOUND if node == args.node else BindOutcome.NOT_BOUND


def reason_of(error: KubeError) -> BindReason:
    """Of a bind that surely has not happened."""
    return "api-rejected" if error.status else "api-unreachable"


def elsewhere(args: BindArguments, node: str) -> BindError:
    """The pod is on another node."""
    return BindError(f"pod {args} is already bound to node {node}; it cannot be bound to node {args.node}", "elsewhere")


def gone(args: BindArguments) -> BindError:
    """There is no such pod any more."""
    return BindError(f"pod {args} with UID {args.uid} is gone: it was deleted, or another pod has its name now", "gone")


def node_of(pod: Mapping[str, Any]) -> str:
    """The node of a v1.Pod, "" without one."""
    return str((pod.get("spec") or {}).get("nodeName") or "")
