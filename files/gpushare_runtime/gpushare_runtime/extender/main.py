# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-extender: the process beside kube-scheduler. Wiring only."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import uvloop

from gpushare_runtime import __version__
from gpushare_runtime.core import protocol
from gpushare_runtime.core.ledger import AllocatedPod
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.daemon import exposition, health_server, metrics_server
from gpushare_runtime.daemon.runner import FatalError, Signals, Status, keep_alive, run, run_all
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.cache import ClusterCache, incomplete
from gpushare_runtime.extender.diagnosis import Advisor
from gpushare_runtime.extender.evictor import Evictor
from gpushare_runtime.extender.http_server import Endpoints, listen
from gpushare_runtime.extender.leadership import TRANSIT_SECONDS, Leadership
from gpushare_runtime.extender.metrics import expiry_families, families, watch_families
from gpushare_runtime.extender.options import NAME, ExtenderSettings, parse_arguments
from gpushare_runtime.extender.requeue import Requeue
from gpushare_runtime.extender.sizes import SizesWriter
from gpushare_runtime.extender.tls import Tls
from gpushare_runtime.extender.verbs import Verbs
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kube.events import EventRecorder, ObjectReference
from gpushare_runtime.kube.reflector import Reflector
from gpushare_runtime.kube.service_account import TokenFiles, TokenRenewer, connect

log = logging.getLogger(__name__)

_CACHES: Final = "caches"


class Extender:
    """The whole extender; its dependencies are arguments."""

    def __init__(
        self,
        settings: ExtenderSettings,
        client: KubeClient,
        renewer: TokenRenewer | None = None,  # None if the client's credentials need none
        tls: Tls | None = None,  # None for plain http
    ) -> None:
        self._settings = settings
        self._client = client
        self._renewer = renewer
        self._tls = tls
        self.status = Status(required=[_CACHES])
        self._events = EventRecorder(client, NAME, socket.gethostname())
        self._cluster = ClusterCache()
        policy = Placement(settings.placement, settings.gpu_placement, self._cluster.scarcity)
        nodes, self._pods = self._cluster.watches(client)
        self._watches: dict[str, Reflector[Any]] = {"nodes": nodes, "pods": self._pods}
        if settings.preempt:
            self._watches["poddisruptionbudgets"] = self._cluster.budget_watch(client)
        self._leadership = Leadership(settings.lease, settings.scheduler_host, on_foreign_binding=self._emit_foreign_binding)
        self._cluster.on_foreign_binding = self._leadership.foreign_binding
        self._requeue = Requeue(self._cluster, policy, active=lambda: not self._leadership.problem())
        self._cluster.on_capacity_freed = self._requeue.on_capacity_freed
        pause, leads = settings.eviction_pause, lambda: not self._leadership.problem()
        self._evictor = Evictor(self._cluster, self._emit, active=leads, pause=pause)
        self._sizes = SizesWriter(self._cluster, active=lambda: not self._leadership.problem())
        self._binder = Binder(client, self._cluster, policy, send_window=self._leadership.send_window)
        service = Verbs(
            self._cluster.ledger,
            policy,
            self._requeue.on_filter,
            pending=self._cluster.pending,
            budgets=self._cluster.budgets,
            most=settings.most_nodes,
        )
        self._endpoints = Endpoints(self._cluster, service, self._binder, self._problem, self._leadership)

    async def run(self, signals: Signals) -> None:
        """Run until SIGTERM or SIGINT, then complete the binds under way. Raises the exception of a part that fails. SIGHUP reloads TLS."""
        address, context = self._settings.listen, self._tls.context if self._tls else None
        try:
            server = listen(self._endpoints, address.host, address.port, context)
        except OSError as error:
            why = f"cannot listen on {address}: {error.strerror}; stop what uses it (ss -ltnp shows it), or give another --listen"
            raise FatalError(why, restart=True) from None
        way = "TLS" if context else "plain http"
        log.info("%s %s listens on %s (%s), API server %s", NAME, __version__, address, way, self._client.server)
        try:
            await run_all(
                [
                    *(watch.run() for watch in self._watches.values()),
                    self._events.run(),
                    self._cluster.expire_for_ever(),
                    self._requeue.run(self._client),
                    *([self._evictor.run(self._client)] if self._settings.evict else []),
                    self._leadership.run(self._client, self._pods),
                    self._advise_when_synced(),
                    *([self._tls.follow(signals.reload)] if self._tls else []),
                    *([self._renewer.run(self._client, partial(self.status.set, "token"))] if self._renewer else []),
                    *metrics_server.parts(self._settings.metrics_listen, self._settings.metrics_token_file, self.metrics_text),
                    *health_server.parts(self._settings.health_listen, self._readiness),
                    keep_alive(lambda: self.status.ready),
                ],
                signals.stop,
            )
        finally:
            log.info("stopping: completing the binds under way")
            await server.close()
            await self._binder.drain()

    def metrics_text(self) -> Iterator[str]:
        """The response to a scrape."""
        of_process = exposition.of_process("gpushare_extender")
        certificate, client_ca = self._tls.ends() if self._tls else (None, None)
        expiry = expiry_families(self._renewer.expires if self._renewer else None, certificate, client_ca)
        watches, evictions = watch_families(self._watches), self._evictor.families()
        return exposition.render(chain(self._endpoints.families(), expiry, families(self._cluster), evictions, watches, of_process))

    def _readiness(self) -> tuple[list[str], list[str]]:
        """The reason that keeps it from answering kube-scheduler. A replica that is not the leader is ready."""
        token = bool(self._renewer and self._renewer.problem())
        return [*(["token"] if token else []), *([_CACHES] if incomplete(self._watches) else [])], []

    def _problem(self) -> str:
        """Why kube-scheduler may not be answered; "" if it may."""
        return (self._renewer.problem() if self._renewer else "") or incomplete(self._watches)

    async def _advise_when_synced(self) -> None:
        await asyncio.gather(*(watch.synced.wait() for watch in self._watches.values()))
        # A large cluster's first lists stay for good: no later collection needs to scan them.
        gc.collect()
        gc.freeze()
        self.status.ok(_CACHES, "complete, answering the scheduler")
        await asyncio.gather(Advisor(self._cluster, self._events).run(), self._sizes.run(self._client))

    def _emit_foreign_binding(self, pod: AllocatedPod, words: str) -> None:
        self._emit(pod, protocol.EVENT_SECOND_SCHEDULER, words)

    def _emit(self, pod: AllocatedPod, reason: str, message: str) -> None:
        self._events.emit(ObjectReference("Pod", pod.name, pod.uid, pod.namespace), "Warning", reason, message)


async def serve(settings: ExtenderSettings, signals: Signals) -> None:
    """Run the extender until SIGTERM or SIGINT. FatalError if it cannot start."""
    tls = Tls(settings.tls) if settings.tls else None
    async with connect(settings.kubeconfig, TokenFiles.of(settings), NAME, lost_after=TRANSIT_SECONDS) as (client, renewer):
        await Extender(settings, client, renewer, tls).run(signals)


def main(argv: Sequence[str] | None = None) -> int:
    """The console command. Returns the exit status."""
    settings = parse_arguments(argv)
    # It takes a fifth off what a pod costs: TLS, sockets and callbacks are C there.
    return run(partial(serve, settings), settings.log_level, uvloop.run)


if __name__ == "__main__":
    sys.exit(main())
