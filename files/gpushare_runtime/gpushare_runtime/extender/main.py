# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-extender: the process beside kube-scheduler."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from gpushare_runtime import __version__, metrics, metrics_server, process, systemd
from gpushare_runtime.extender.advice import Advisor
from gpushare_runtime.extender.binder import TRANSIT_SECONDS, Binder
from gpushare_runtime.extender.cluster import Cluster
from gpushare_runtime.extender.fence import DEFAULT_LEASE, NO_LEASE, Fence
from gpushare_runtime.extender.figures import families, watch_families
from gpushare_runtime.extender.recall import Recall
from gpushare_runtime.extender.server import Endpoints, listen
from gpushare_runtime.extender.service import Service
from gpushare_runtime.extender.tls import Tls, TlsError, TlsFiles
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kube.credentials import Credentials, CredentialsError, load
from gpushare_runtime.kube.events import EventRecorder, ObjectReference
from gpushare_runtime.kube.identity import TokenKeeper, add_options, from_options
from gpushare_runtime.kube.reflector import Reflector
from gpushare_runtime.ledger import Holder
from gpushare_runtime.metrics_server import MetricsAddress, MetricsServer
from gpushare_runtime.placement import Placement
from gpushare_runtime.protocol import EXTENDER_PORT
from gpushare_runtime.rules import PLACEMENTS
from gpushare_runtime.tasks import run_all

log = logging.getLogger(__name__)

NAME: Final = "gpushare-extender"
STALE_SECONDS: Final = 300.0
"""A watch that is well brings a bookmark about every minute."""
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class Stopped(Exception):
    """The process cannot go on; says why."""


@dataclass(frozen=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it."""
        return ip_address(self.host).is_loopback


@dataclass(frozen=True)
class Settings:
    """placement: the policy between nodes; card_placement: between the cards of a node, "" for the same; preempt: whether
    kube-scheduler calls that verb, so that disruption budgets matter; metrics: None for nowhere; lease: that the schedulers of the
    control planes compete for, "" without leader election; scheduler_host: the name of this one's host in it; most_nodes: that
    filter names, 0 for all that fit."""

    listen: Address
    placement: str = "binpack"
    card_placement: str = ""
    preempt: bool = False
    metrics: MetricsAddress | None = None
    lease: str = ""
    scheduler_host: str = ""
    most_nodes: int = 0


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
    except (CredentialsError, Stopped, TlsError) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    return 0


async def serve(credentials: Credentials, settings: Settings, tls: Tls | None, keeper: TokenKeeper | None) -> None:
    """Run until SIGTERM or SIGINT, then finish the binds under way. Stopped when it cannot start or go on.

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
        fence = Fence(settings.lease, settings.scheduler_host, told=lambda holder, words: _tell_stranger(events, holder, words))
        cluster.on_stranger = fence.stranger
        binder = Binder(client, cluster, policy, licence=fence.licence)
        recall = Recall(cluster, policy, active=lambda: not fence.problem())
        cluster.on_room = recall.room
        endpoints = Endpoints(
            cluster,
            Service(cluster.ledger, policy, recall.asked, budgets=lambda: cluster.budgets, most=settings.most_nodes),
            binder,
            lambda: _first(problems),
            fence,
        )
        try:
            runner = await listen(endpoints, address.host, address.port, tls.context if tls else None)
        except OSError as error:
            raise Stopped(
                f"cannot listen on {address}: {error.strerror}; stop what uses it (ss -ltnp shows it), or give another --listen"
            ) from None
        log.info("%s %s listens on %s (%s), API server %s", NAME, __version__, address, "TLS" if tls else "plain http", credentials.server)
        try:
            await run_all(
                [
                    *(watch.run() for watch in watches.values()),
                    events.run(),
                    cluster.expire_for_ever(),
                    recall.run(client),
                    fence.run(client, pods),
                    _when_synced(watches, cluster, events, ready),
                    _follow_tls(hangup, tls),
                    *([keeper.run(client, _tell_token)] if keeper else []),
                    *([MetricsServer(settings.metrics, lambda: _figures(cluster, endpoints, watches)).run()] if settings.metrics else []),
                    systemd.keep_alive(ready.is_set),
                ],
                stop,
            )
        except Exception as error:
            raise Stopped(f"an internal task ended: {error!r}") from error
        finally:
            systemd.notify("STOPPING=1")
            log.info("stopping: finishing the binds under way")
            await runner.cleanup()
            await binder.drain()


async def _when_synced(watches: Mapping[str, Reflector[Any]], cluster: Cluster, events: EventRecorder, ready: asyncio.Event) -> None:
    await asyncio.gather(*(watch.synced.wait() for watch in watches.values()))
    # What a large cluster's first lists leave behind stays for good: not worth looking at in each collection.
    gc.collect()
    gc.freeze()
    ready.set()
    systemd.notify("READY=1")
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


def _tell_stranger(events: EventRecorder, holder: Holder, words: str) -> None:
    events.emit(ObjectReference("Pod", holder.name, holder.uid, holder.namespace), "Warning", "GpushareSecondScheduler", words)


def _tell_token(well: bool, words: str) -> None:
    log.log(logging.INFO if well else logging.ERROR, "token: %s", words)
    systemd.notify(f"STATUS=token: {words}")


def _figures(cluster: Cluster, endpoints: Endpoints, watches: Mapping[str, Reflector[Any]]) -> Iterator[str]:
    """What a scrape gets."""
    yield from metrics.render(endpoints.families())
    yield from metrics.render(families(cluster))
    yield from metrics.render(watch_families(watches))
    yield from metrics.render(process.families(NAME))


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME, description="Scheduler extender of gpushare: which card has room, and one Binding that says so."
    )
    parser.add_argument(
        "--kubeconfig", default=os.environ.get("KUBECONFIG", ""), help="without it the pod's service account is used (env KUBECONFIG)"
    )
    parser.add_argument("--listen", type=_address, default=f"127.0.0.1:{EXTENDER_PORT}", help="address and port (default: %(default)s)")
    parser.add_argument("--placement", choices=PLACEMENTS, default="binpack", help="policy between nodes (default %(default)s)")
    parser.add_argument("--card-placement", choices=PLACEMENTS, default="", help="policy between the cards of a node (default: the same)")
    parser.add_argument("--preempt", action="store_true", help="kube-scheduler calls preempt here: watch disruption budgets for it")
    parser.add_argument(
        "--lease",
        type=_lease,
        default=DEFAULT_LEASE,
        metavar="NAMESPACE/NAME",
        help=f"of kube-scheduler's leader election; {NO_LEASE}: one scheduler runs alone, without (default %(default)s)",
    )
    parser.add_argument(
        "--scheduler-host", default=socket.gethostname(), metavar="NAME", help="this scheduler's host in the lease (default %(default)s)"
    )
    parser.add_argument(
        "--most-nodes",
        type=_natural,
        default=0,
        metavar="N",
        help="filter answers with the best N of the nodes that fit, which alone the scheduler then scores; 0: with all (default)",
    )
    metrics_server.add_options(parser)
    add_options(parser)
    for option, what in (
        ("--tls-cert", "the certificate for TLS"),
        ("--tls-key", "its key"),
        ("--client-ca", "the CA of kube-scheduler's client certificate"),
    ):
        parser.add_argument(
            option, type=Path, metavar="FILE", help=f"{what}, PEM (all three, or none for plain http on a loopback address)"
        )
    parser.add_argument(
        "--log-level", type=_level, default=os.environ.get("LOG_LEVEL") or "info", help="debug, info, warn or error (env LOG_LEVEL)"
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    return parser


def _tls_files(parser: argparse.ArgumentParser, options: argparse.Namespace) -> TlsFiles | None:
    """The files for TLS, None for plain http; ends the process with a message where neither is possible."""
    given = {"--tls-cert": options.tls_cert, "--tls-key": options.tls_key, "--client-ca": options.client_ca}
    missing = [option for option, file in given.items() if file is None]
    if not missing:
        return TlsFiles(options.tls_cert, options.tls_key, options.client_ca)
    if len(missing) < len(given):
        parser.error(f"{' and '.join(missing)} not given: TLS takes all of {', '.join(given)}, plain http none of them")
    if not options.listen.loopback:
        parser.error(f"--listen {options.listen}: plain http is for loopback addresses; give {', '.join(given)}, or listen on 127.0.0.1")
    return None


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    try:
        host = str(ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} has no IP address; write address and port, such as 127.0.0.1:{EXTENDER_PORT}") from None
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} has no port from 1 to 65535; write such as 127.0.0.1:{EXTENDER_PORT}")
    return Address(host, int(port))


def _lease(text: str) -> str:
    if text == NO_LEASE:
        return ""
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} names no lease; write namespace and name, such as {DEFAULT_LEASE}, or {NO_LEASE}")
    return text


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of nodes; write such as 100, or 0 for no limit")
    return int(text)


def _level(text: str) -> str:
    if text not in _LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r} is no log level; use {', '.join(_LEVELS)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
