# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-extender: the process beside kube-scheduler."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare_runtime import __version__
from gpushare_runtime.core import protocol
from gpushare_runtime.core.ledger import AllocatedPod
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.daemon import metrics, metrics_server
from gpushare_runtime.daemon.metrics_server import MetricsServer
from gpushare_runtime.daemon.runner import FatalError, keep_alive, notify, run_all
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.cache import Cluster
from gpushare_runtime.extender.diagnosis import Advisor
from gpushare_runtime.extender.http_server import Endpoints, listen
from gpushare_runtime.extender.leadership import TRANSIT_SECONDS, Leadership
from gpushare_runtime.extender.metrics import families, watch_families
from gpushare_runtime.extender.options import _LEVELS, NAME, Settings, _parser, _tls_files
from gpushare_runtime.extender.requeue import Requeue
from gpushare_runtime.extender.tls import Tls, TlsError
from gpushare_runtime.extender.verbs import Service
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kube.credentials import Credentials, CredentialsError, load
from gpushare_runtime.kube.events import EventRecorder, ObjectReference
from gpushare_runtime.kube.reflector import Reflector
from gpushare_runtime.kube.service_account import TokenKeeper, from_options

log = logging.getLogger(__name__)

STALE_SECONDS: Final = 300.0
"""A watch that is well brings a bookmark about every minute."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    files, tokens = _tls_files(parser, options), from_options(parser, options)
    address = metrics_server.from_options(parser, options)
    settings = Settings(
        options.listen,
        options.placement,
        options.card_placement,
        options.preempt,
        address,
        options.lease,
        options.scheduler_host,
        options.most_nodes,
    )
    logging.basicConfig(stream=sys.stderr, level=_LEVELS[options.log_level], format="%(levelname)s %(message)s")
    try:
        tls = Tls(files) if files else None
        keeper = TokenKeeper(tokens) if tokens else None
        credentials = load(options.kubeconfig or None, tokens=keeper)
        asyncio.run(serve(credentials, settings, tls, keeper))
    except (CredentialsError, FatalError, TlsError) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    return 0


async def serve(credentials: Credentials, settings: Settings, tls: Tls | None, keeper: TokenKeeper | None) -> None:
    """Run until SIGTERM or SIGINT, then finish the binds under way. FatalError when it cannot start or go on.

    tls: None for plain http, SIGHUP reads its files again; keeper: None when the credentials need none.
    """
    address = settings.listen
    stop, hangup, ready = asyncio.Event(), asyncio.Event(), asyncio.Event()
    # First of all: what has no handler ends the process.
    for number, event in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGHUP, hangup)):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    async with KubeClient(credentials, user_agent=NAME, lost_after=TRANSIT_SECONDS) as client:
        cluster = Cluster()
        policy = Placement(settings.placement, settings.card_placement, cluster.workload)
        nodes, pods = cluster.watches(client)
        watches: dict[str, Reflector[Any]] = {"nodes": nodes, "pods": pods}
        if settings.preempt:
            watches["poddisruptionbudgets"] = cluster.budget_watch(client)
        problems = [*([keeper.problem] if keeper else []), lambda: incomplete(watches)]
        events = EventRecorder(client, NAME, socket.gethostname())
        leadership = Leadership(
            settings.lease, settings.scheduler_host, on_foreign_binding=lambda holder, words: _report_foreign_binding(events, holder, words)
        )
        cluster.on_foreign_binding = leadership.foreign_binding
        binder = Binder(client, cluster, policy, send_window=leadership.send_window)
        requeue = Requeue(cluster, policy, active=lambda: not leadership.problem())
        cluster.on_capacity_freed = requeue.on_capacity_freed
        endpoints = Endpoints(
            cluster,
            Service(cluster.ledger, policy, requeue.asked, budgets=lambda: cluster.budgets, most=settings.most_nodes),
            binder,
            lambda: _first(problems),
            leadership,
        )
        try:
            runner = await listen(endpoints, address.host, address.port, tls.context if tls else None)
        except OSError as error:
            raise FatalError(
                f"cannot listen on {address}: {error.strerror}; stop what uses it (ss -ltnp shows it), or give another --listen"
            ) from None
        log.info("%s %s listens on %s (%s), API server %s", NAME, __version__, address, "TLS" if tls else "plain http", credentials.server)
        try:
            await run_all(
                [
                    *(watch.run() for watch in watches.values()),
                    events.run(),
                    cluster.expire_for_ever(),
                    requeue.run(client),
                    leadership.run(client, pods),
                    _when_synced(watches, cluster, events, ready),
                    _follow_tls(hangup, tls),
                    *([keeper.run(client, _tell_token)] if keeper else []),
                    *([MetricsServer(settings.metrics, lambda: _figures(cluster, endpoints, watches)).run()] if settings.metrics else []),
                    keep_alive(ready.is_set),
                ],
                stop,
            )
        except Exception as error:
            raise FatalError(f"an internal task ended: {error!r}") from error
        finally:
            notify("STOPPING=1")
            log.info("stopping: finishing the binds under way")
            await runner.cleanup()
            await binder.drain()


async def _when_synced(watches: Mapping[str, Reflector[Any]], cluster: Cluster, events: EventRecorder, ready: asyncio.Event) -> None:
    await asyncio.gather(*(watch.synced.wait() for watch in watches.values()))
    # What a large cluster's first lists leave behind stays for good: not worth looking at in each collection.
    gc.collect()
    gc.freeze()
    ready.set()
    notify("READY=1")
    log.info("the caches are complete: answering the scheduler")
    await Advisor(cluster, events).run()


async def _follow_tls(hangup: asyncio.Event, tls: Tls | None) -> None:
    """After each SIGHUP, use what the TLS files have now; while they are broken, what they had."""
    while True:
        await hangup.wait()
        hangup.clear()
        if tls is None:
            continue
        try:
            tls.reload()
        except TlsError as error:
            log.error("not reloaded, the certificate read before stays in use: %s", error)
        else:
            log.info("reloaded %s and %s for new connections", tls.files.certificate, tls.files.client_ca)


def _report_foreign_binding(events: EventRecorder, holder: AllocatedPod, words: str) -> None:
    events.emit(ObjectReference("Pod", holder.name, holder.uid, holder.namespace), "Warning", protocol.EVENT_SECOND_SCHEDULER, words)


def _tell_token(well: bool, words: str) -> None:
    log.log(logging.INFO if well else logging.ERROR, "token: %s", words)
    notify(f"STATUS=token: {words}")


def _figures(cluster: Cluster, endpoints: Endpoints, watches: Mapping[str, Reflector[Any]]) -> Iterator[str]:
    """What a scrape gets."""
    yield from metrics.render(endpoints.families())
    yield from metrics.render(families(cluster))
    yield from metrics.render(watch_families(watches))
    yield from metrics.render(metrics.of_process("gpushare_extender"))


def _first(problems: Sequence[Callable[[], str]]) -> str:
    """Why the scheduler may not be answered, "" when it may."""
    return next((words for problem in problems if (words := problem())), "")


def incomplete(watches: Mapping[str, Reflector[Any]]) -> str:
    """Why the caches are not what the API server has, "" when they are."""
    missing = [what for what, watch in watches.items() if not watch.synced.is_set()]
    if missing:
        why = f"not synced yet: the list of {' and of '.join(missing)} from the API server is not complete"
        return f"{why}; the scheduler tries again by itself"
    old = [f"{what} ({watch.age:.0f} s)" for what, watch in watches.items() if watch.age > STALE_SECONDS]
    if old:
        return (
            f"not up to date: the API server has said nothing for more than {STALE_SECONDS:.0f} s about {' and '.join(old)}; "
            "expected it to answer, and the right to list and watch them (role extender gives it): the log says how each try ended"
        )
    return ""


if __name__ == "__main__":
    sys.exit(main())
