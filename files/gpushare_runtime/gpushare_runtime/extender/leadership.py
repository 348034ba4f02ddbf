# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Leadership: which of several extenders may answer and bind, and when a new one knows all Bindings of the former one.

The argument is in docs/operate/high-availability.md. All times are durations on this host's monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from prometheus_client.core import Metric

from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.daemon.exposition import single
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.settings.extender import NO_LEASE

log = logging.getLogger(__name__)

SERVER_SECONDS: Final = 3
"""The API server ends the request of a Binding after this time. Later it cannot bind the pod any more."""

TRANSIT_SECONDS: Final = 1.5
"""The kernel retransmits unacknowledged data for this time, then it closes the connection (TCP_USER_TIMEOUT)."""

MARGIN_SECONDS: Final = 0.25
SEND_SECONDS: Final = 2.0
"""Send window: a Binding is sent only this long after the start of a read of the Lease that showed this host's scheduler as its holder."""
POLL_SECONDS: Final = 0.5
_POLL_WITHIN: Final = 1.5
GRACE_SECONDS: Final = 0.2
_READ_WITHIN: Final = 5.0
_RETRY_SECONDS: Final = 0.5
_REMEMBERED: Final = 20
_PODS: Final = path("api/v1", "pods")


def drained_after(server_seconds: float) -> float:
    """Seconds from the sending of a Binding to the moment from which it cannot happen any more."""
    return TRANSIT_SECONDS + server_seconds + MARGIN_SECONDS


DRAINED_SECONDS: Final = drained_after(SERVER_SECONDS)
"""From the moment a Binding is sent to the moment from which it cannot bind the pod any more."""
TAKEOVER_SECONDS: Final = SEND_SECONDS + DRAINED_SECONDS
"""From the first read that shows the Lease with us to the moment from which no Binding of the former holder is under way."""


@dataclass(frozen=True)
class Lease:
    """A Lease as kube-scheduler keeps it. holder: <host>_<UUID of the process>, "" when given up; transitions: changes of it, which
    are not all counted where it is coordinated: kube-controller-manager's coordinated leader election names the holder then."""

    uid: str
    holder: str
    transitions: int
    coordinated: bool = False

    @property
    def host(self) -> str:
        return self.holder.rpartition("_")[0]


def read_lease(raw: Mapping[str, Any]) -> Lease:
    """coordination.k8s.io/v1 Lease as JSON → what counts of it."""
    spec = raw.get("spec") or {}
    holder, transitions = str(spec.get("holderIdentity") or ""), int(spec.get("leaseTransitions") or 0)
    return Lease(str(raw["metadata"]["uid"]), holder, transitions, bool(spec.get("strategy")))


def _follows(before: Lease, now: Lease) -> bool:
    """Whether no other process had it between these two reads: both holders are of this host, and each change counts one."""
    changes = now.transitions - before.transitions
    same = changes == 0 and now.holder == before.holder
    return now.uid == before.uid and (same or (changes == 1 and not before.coordinated and not now.coordinated))


class PodCache(Protocol):
    """The part of the pods' Reflector that `Leadership` uses."""

    synced: asyncio.Event

    async def catch_up(self, version: str, grace: float) -> None: ...


class Leadership:
    """Whether the verbs may be answered, and Bindings sent, now.

    lease: "namespace/name", "" where no scheduler elects a leader. host: of the scheduler that asks. clock: monotonic, seconds.
    on_foreign_binding: called with the pod and a sentence when another scheduler binds while this one is active.
    """

    def __init__(
        self,
        lease: str,
        host: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_foreign_binding: Callable[[AllocatedPod, str], None] = lambda pod, words: None,
    ) -> None:
        self.lease, self.host = lease, host
        self.foreign_bindings = 0
        """Bindings of others that were seen since the start."""
        self.terms = 0
        """Times that this host's scheduler became the active one after another or an unknown one, since the start."""
        self._clock, self._on_foreign_binding = clock, on_foreign_binding
        self._seen: Lease | None = None
        self._mine: Lease | None = None
        self._observed_at = -math.inf
        self._failure = "it has not been read yet"
        # A process before this one may have sent Bindings until this one began.
        self._drained_at = clock() + DRAINED_SECONDS
        self._verified = False
        self._unverified = asyncio.Event()
        self._unverified.set()
        self._wake = asyncio.Event()
        self._problems: deque[str] = deque(maxlen=_REMEMBERED)

    def observe(self, lease: Lease | None, began: float) -> None:
        """Take the Lease as read; None if it does not exist. began: start of the read, by the same clock."""
        first, before = self._observed_at == -math.inf, self._seen
        self._seen, self._observed_at, self._failure = lease, began, ""
        if lease is None:
            self._mine = None
            # A former holder may have Bindings under way. A scheduler that creates the Lease waits for those.
            if before is not None or first:
                self._begin("it does not exist, so that one scheduler is taken to run alone")
        elif lease.host == self.host:
            mine, self._mine = self._mine, lease
            if mine is None or not _follows(mine, lease):
                self._begin(f"this host's scheduler holds it ({lease.holder})")
        elif lease.holder:
            # From now on the other one may bind, however the change back will be counted.
            self._mine = None

    def _begin(self, why: str) -> None:
        """A term begins: no verb is answered before the Bindings of all others are drained and in the cache."""
        self.terms += 1
        self._drained_at = self._clock() + TAKEOVER_SECONDS
        self._verified = False
        self._unverified.set()
        log.info("lease %s: %s; answering in %.1f s", self.lease, why, TAKEOVER_SECONDS)

    def failed(self, why: str) -> None:
        """The Lease could not be read."""
        self._failure = why

    def send_window(self) -> float:
        """Seconds that remain to send a Binding, by the last read of the Lease; none may be sent if 0 or less."""
        if self.lease and self._seen is not None and self._seen.host != self.host:
            return 0.0
        return self._observed_at + SEND_SECONDS - self._clock() if self.lease else math.inf

    def problem_now(self) -> str:
        """`problem`, for a call of the scheduler: it may have become the leader just now, so that the Lease is read immediately."""
        if self.send_window() <= 0:
            self._wake.set()
        return self.problem()

    def problem(self) -> str:
        """Why the verbs are not to be answered now, "" when they are."""
        if self.send_window() <= 0:
            return self._not_ours()
        left = self._drained_at - self._clock()
        if left > 0:
            return (
                f"the extender that was active before this one may have Bindings under way: they are drained in {left:.1f} s; "
                "kube-scheduler tries again by itself"
            )
        if not self._verified:
            return "after a change of the active extender the pods are compared with the API server; kube-scheduler tries again by itself"
        return ""

    def _not_ours(self) -> str:
        if self._seen is not None and not self._failure and self._seen.host != self.host:
            holder = f"held by {self._seen.holder}" if self._seen.holder else "held by nobody"
            return (
                f"lease {self.lease} is {holder}, and this extender serves the scheduler of host {self.host}: expected it to ask only "
                "while it holds that lease. If this continues, it runs with leader election off, or with another lease or host name: start "
                f"it with --leader-elect=true, or give this extender its lease and its schedulerHost (lease: {NO_LEASE} "
                "where one scheduler runs alone)"
            )
        return (
            f"lease {self.lease} cannot be read, so that it is not known whether another scheduler is active: "
            f"{self._failure or 'no answer for too long'}; expected the right to get it (role extender gives it) and an API server that "
            f"answers within {_POLL_WITHIN} s; where one scheduler runs alone without leader election, set lease: {NO_LEASE}"
        )

    def foreign_binding(self, pod: AllocatedPod) -> None:
        """The watch shows a pod with GPUs that this process did not bind. A problem only while this is the active extender."""
        if self.problem():
            return
        self.foreign_bindings += 1
        words = (
            f"pod {pod.namespace}/{pod.name} was bound to node {pod.node} with GPUs by another client, while the scheduler of "
            f"host {self.host} is the active one: a second scheduler allocates the same GPUs, or a Binding came later than its bound. "
            f"Expected one active scheduler: the same lease ({self.lease or 'leader election is off'}) on all control planes"
        )
        self._problems.append(words)
        log.error("%s", words, extra=about(pod, pod.node))
        self._on_foreign_binding(pod, words)

    def problems(self) -> list[str]:
        """The latest foreign bindings as sentences; normally []."""
        return list(self._problems)

    def families(self) -> Iterator[Metric]:
        """For the metrics."""
        yield single("gpushare_extender_active", "gauge", "1 if this extender may bind pods now.", not self.problem())
        yield single("gpushare_extender_terms_total", "counter", "Times that this extender became the active one.", self.terms)
        yield single(
            "gpushare_extender_foreign_bindings_total", "counter", "Bindings that a second active scheduler made.", self.foreign_bindings
        )

    async def run(self, client: KubeClient, pods: PodCache) -> None:
        """Never returns; cancel it."""
        await asyncio.gather(self._poll_lease(client), self._verify_cache(client, pods))

    async def _poll_lease(self, client: KubeClient) -> None:
        if not self.lease:
            return
        namespace, _, name = self.lease.partition("/")
        where = path("apis/coordination.k8s.io/v1", "namespaces", namespace, "leases", name)
        while True:
            self._wake.clear()
            began = self._clock()
            try:
                # Without a resourceVersion: the API server asks etcd's majority.
                self.observe(read_lease(await client.get(where, within=_POLL_WITHIN)), began)
            except KubeError as error:
                if error.status == 404:
                    self._absent(began)
                else:
                    self.failed(str(error))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), POLL_SECONDS)

    def _absent(self, began: float) -> None:
        if self._seen is not None or self._failure:
            log.warning("lease %s does not exist: no scheduler has elected itself with it, so that one is taken to run alone", self.lease)
        self.observe(None, began)

    async def _verify_cache(self, client: KubeClient, pods: PodCache) -> None:
        """When the Bindings of others are drained, have the cache reach the API server's current state."""
        await pods.synced.wait()
        while True:
            await self._unverified.wait()
            left = self._drained_at - self._clock()
            if left > 0:
                await asyncio.sleep(left)
                continue
            term, began = self.terms, self._clock()
            try:
                page = await client.get(_PODS, limit=1, within=_READ_WITHIN)
                await pods.catch_up(str((page.get("metadata") or {}).get("resourceVersion") or ""), GRACE_SECONDS)
            except KubeError as error:
                log.warning("the pods cannot be compared with the API server: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if term == self.terms:
                self._verified = True
                self._unverified.clear()
                log.info("the pods are as the API server has them now (%.2f s)", self._clock() - began)
