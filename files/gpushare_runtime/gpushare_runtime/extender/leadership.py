# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""When this host's extender may answer: one of several does, and a new one not before the former one's Bindings are all known.

The argument is in docs/high-availability.md. All times are durations on this host's monotonic clock.
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
from gpushare_runtime.daemon.metrics import single
from gpushare_runtime.kube.client import KubeClient, KubeError, path

log = logging.getLogger(__name__)

DEFAULT_LEASE: Final = "kube-system/kube-scheduler"
NO_LEASE: Final = "none"

SERVER_SECONDS: Final = 3
"""The API server gives up on a Binding this long after it came; later it cannot happen any more."""

TRANSIT_SECONDS: Final = 1.5
"""What the API server has not acknowledged by then is not sent again: the kernel gives the connection up (TCP_USER_TIMEOUT)."""

_MARGIN_SECONDS: Final = 0.25


def drained_after(server_seconds: float) -> float:
    """Seconds from the sending of a Binding to the moment from which it cannot happen any more."""
    return TRANSIT_SECONDS + server_seconds + _MARGIN_SECONDS


LICENCE_SECONDS: Final = 2.0
"""A Binding is sent only this long after the beginning of a look at the Lease that showed it with this host's scheduler."""
LANDED_SECONDS: Final = drained_after(SERVER_SECONDS)
"""From the moment a Binding is sent to the moment from which it cannot happen any more."""
FENCE_SECONDS: Final = LICENCE_SECONDS + LANDED_SECONDS
"""From a look that shows the Lease with us for the first time to the moment when no Binding of the former holder is left."""

_LOOK_SECONDS: Final = 0.5
_LOOK_WITHIN: Final = 1.5
_GRACE_SECONDS: Final = 0.2
_READ_WITHIN: Final = 5.0
_AGAIN_SECONDS: Final = 0.5
_REMEMBERED: Final = 20
_PODS: Final = path("api/v1", "pods")


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
    """Whether nobody can have held it between these two looks: both holders are of this host, and each change counts one."""
    changes = now.transitions - before.transitions
    same = changes == 0 and now.holder == before.holder
    return now.uid == before.uid and (same or (changes == 1 and not before.coordinated and not now.coordinated))


class PodCache(Protocol):
    """What the fence needs of the pods' Reflector."""

    synced: asyncio.Event

    async def catch_up(self, version: str, grace: float) -> None: ...


class Leadership:
    """Whether the verbs may be answered, and Bindings sent, now.

    lease: "namespace/name", "" where no scheduler elects a leader; host: of the scheduler that asks; clock: monotonic, seconds.
    on_foreign_binding: gets the pod and the words when somebody else binds while we should be alone.
    """

    def __init__(
        self,
        lease: str,
        host: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_foreign_binding: Callable[[AllocatedPod, str], None] = lambda holder, words: None,
    ) -> None:
        self.lease, self.host = lease, host
        self.foreign_bindings = 0
        """Bindings of others that were seen since the start."""
        self.terms = 0
        """Times that this host's scheduler became the active one after another, or after nobody knows whom, since the start."""
        self._clock, self._on_foreign_binding = clock, on_foreign_binding
        self._seen: Lease | None = None
        self._mine: Lease | None = None
        self._looked = -math.inf
        self._trouble = "it has not been read yet"
        # A process before this one may have sent Bindings until this one began.
        self._landed = clock() + LANDED_SECONDS
        self._proven = False
        self._unproven = asyncio.Event()
        self._unproven.set()
        self._wake = asyncio.Event()
        self._problems: deque[str] = deque(maxlen=_REMEMBERED)

    def observe(self, lease: Lease | None, began: float) -> None:
        """The Lease was read; None: there is none. began: when the read was begun, of the same clock."""
        first, before = self._looked == -math.inf, self._seen
        self._seen, self._looked, self._trouble = lease, began, ""
        if lease is None:
            self._mine = None
            # Whoever held it, perhaps before the first look, may have Bindings under way, and whoever makes it anew waits for those.
            if before is not None or first:
                self._begin("it is not there, so that one scheduler is taken to run alone")
        elif lease.host == self.host:
            mine, self._mine = self._mine, lease
            if mine is None or not _follows(mine, lease):
                self._begin(f"this host's scheduler holds it ({lease.holder})")
        elif lease.holder:
            # Somebody else's Bindings, however the change back will be counted.
            self._mine = None

    def _begin(self, why: str) -> None:
        """A term: nothing is answered before the Bindings of all others are over and known."""
        self.terms += 1
        self._landed = self._clock() + FENCE_SECONDS
        self._proven = False
        self._unproven.set()
        log.info("lease %s: %s; answering in %.1f s", self.lease, why, FENCE_SECONDS)

    def failed(self, why: str) -> None:
        """The Lease could not be read."""
        self._trouble = why

    def send_window(self) -> float:
        """Seconds that are left in which a Binding may be sent, on what is known now; 0 or less: none may be."""
        if self.lease and self._seen is not None and self._seen.host != self.host:
            return 0.0
        return self._looked + LICENCE_SECONDS - self._clock() if self.lease else math.inf

    def asked(self) -> str:
        """`problem`, where the scheduler asks: it may have become the leader a moment ago, so that the Lease is looked at again."""
        if self.send_window() <= 0:
            self._wake.set()
        return self.problem()

    def problem(self) -> str:
        """Why the verbs are not to be answered now, "" when they are."""
        if self.send_window() <= 0:
            return self._not_ours()
        left = self._landed - self._clock()
        if left > 0:
            return (
                f"the extender that was active before this one may have Bindings under way: they have landed or timed out in {left:.1f} s; "
                "kube-scheduler tries again by itself"
            )
        if not self._proven:
            return "after a change of the active extender the pods are compared with the API server; kube-scheduler tries again by itself"
        return ""

    def _not_ours(self) -> str:
        if self._seen is not None and not self._trouble and self._seen.host != self.host:
            holder = f"held by {self._seen.holder}" if self._seen.holder else "held by nobody"
            return (
                f"lease {self.lease} is {holder}, and this extender serves the scheduler of host {self.host}: expected it to ask only "
                "while it holds that lease. If this goes on, it runs with leader election off, or with another lease or host name: start "
                f"it with --leader-elect=true, or this extender with --lease NAMESPACE/NAME and --scheduler-host (--lease {NO_LEASE} "
                "where one scheduler runs alone)"
            )
        return (
            f"lease {self.lease} cannot be read, so that it is not known whether another scheduler is active: "
            f"{self._trouble or 'no answer for too long'}; expected the right to get it (role extender gives it) and an API server that "
            f"answers within {_LOOK_WITHIN} s; where one scheduler runs alone without leader election, --lease {NO_LEASE}"
        )

    def foreign_binding(self, holder: AllocatedPod) -> None:
        """A pod was seen bound with cards, and not by this process. Matters only while this should be the only one that binds."""
        if self.problem():
            return
        self.foreign_bindings += 1
        words = (
            f"pod {holder.namespace}/{holder.name} was bound to node {holder.node} with cards by somebody else, while the scheduler of "
            f"host {self.host} is the active one: a second scheduler gives away the same cards, or a Binding came later than its bound. "
            f"Expected one active scheduler: the same lease ({self.lease or 'leader election is off'}) on all control planes"
        )
        self._problems.append(words)
        log.error("%s", words)
        self._on_foreign_binding(holder, words)

    def problems(self) -> list[str]:
        """What should not be, in words, the latest of it; [] usually."""
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
        await asyncio.gather(self._look_for_ever(client), self._prove_for_ever(client, pods))

    async def _look_for_ever(self, client: KubeClient) -> None:
        if not self.lease:
            return
        namespace, _, name = self.lease.partition("/")
        where = path("apis/coordination.k8s.io/v1", "namespaces", namespace, "leases", name)
        while True:
            self._wake.clear()
            began = self._clock()
            try:
                # Without a resourceVersion: the API server asks etcd's majority.
                self.observe(read_lease(await client.get(where, within=_LOOK_WITHIN)), began)
            except KubeError as error:
                if error.status == 404:
                    self._absent(began)
                else:
                    self.failed(str(error))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_SECONDS)

    def _absent(self, began: float) -> None:
        if self._seen is not None or self._trouble:
            log.warning("lease %s does not exist: no scheduler has elected itself with it, so that one is taken to run alone", self.lease)
        self.observe(None, began)

    async def _prove_for_ever(self, client: KubeClient, pods: PodCache) -> None:
        """After all Bindings of others: have the cache reach what the API server has then."""
        await pods.synced.wait()
        while True:
            await self._unproven.wait()
            left = self._landed - self._clock()
            if left > 0:
                await asyncio.sleep(left)
                continue
            term, began = self.terms, self._clock()
            try:
                page = await client.get(_PODS, limit=1, within=_READ_WITHIN)
                await pods.catch_up(str((page.get("metadata") or {}).get("resourceVersion") or ""), _GRACE_SECONDS)
            except KubeError as error:
                log.warning("pods cannot be compared with the API server: %s", error)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            if term == self.terms:
                self._proven = True
                self._unproven.clear()
                log.info("the pods are as the API server has them now (%.2f s)", self._clock() - began)
