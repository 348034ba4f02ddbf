# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-dashboard: the dashboard as a service, with an account of its own; those who read it have its token, or tokens of their own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import secrets
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime import __version__
from gpushare_runtime.core.bounds import quote
from gpushare_runtime.daemon import runner
from gpushare_runtime.daemon.runner import FatalError, Signals, Status, keep_alive, run_all
from gpushare_runtime.dashboard.access import AccessError, Hosts, TokenFile
from gpushare_runtime.dashboard.feed import Feed
from gpushare_runtime.dashboard.history import Prometheus
from gpushare_runtime.dashboard.server import Dashboard, listen
from gpushare_runtime.dashboard.viewers import OneToken, OwnTokens
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kube.service_account import TokenFiles, TokenRenewer, connect
from gpushare_runtime.kubectl_gpushare.api import explain_error, find_scope, may_follow_claims
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.used import read_used
from gpushare_runtime.kubectl_gpushare.watcher import Watcher
from gpushare_runtime.settings import options
from gpushare_runtime.settings.dashboard import DashboardConfig

log = logging.getLogger(__name__)

NAME: Final = "gpushare-dashboard"
_CERTIFICATE_SECONDS: Final = 60.0
_STALE_SECONDS: Final = 180.0
_CLUSTER: Final = "cluster"


@dataclass(frozen=True)
class DashboardSettings(DashboardConfig):
    """The dashboard's settings, with what follows from them."""

    token: TokenFile | None = None  # of those who read, None for tokens of their own
    history: Prometheus | None = None


def parse_arguments(arguments: Sequence[str] | None = None) -> DashboardSettings:
    """The settings; None: this process's arguments. Ends the process with a message if they are invalid."""
    parser = argparse.ArgumentParser(prog=NAME, description="Web page that shows who has how much of which GPU.")
    options.add_options(parser, DashboardConfig)
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    given = options.read(parser, DashboardConfig, arguments)
    settings = _resolved(given)
    given.checked()
    return settings


def _resolved(given: options.Given[DashboardConfig]) -> DashboardSettings:
    """The settings with their consequences. Ends the process with a message if they do not fit each other."""
    config, listen_ = given.settings, f"{given.name('listen')} {given.settings.listen.host}"
    certificate, key = given.name("tls_cert"), given.name("tls_key")
    if config.tls_cert is None and not config.listen.loopback:
        given.reject(
            f"{listen_}: found no certificate, so the token would go over the network in clear text; "
            f"give {certificate} and {key}, or listen on 127.0.0.1 behind a proxy that has one"
        )
    if ip_address(config.listen.host).is_unspecified and not config.host_names:
        given.reject(f"{listen_}: expected {given.name('host_names')} too: requests for other names are rejected")
    if (config.viewer_token_file is None) != config.own_tokens:
        readers = f"{given.name('viewer_token_file')} and {given.name('own_tokens')}"
        given.reject(f"expected one of {readers}, which say who may read")
    token = TokenFile(config.viewer_token_file) if config.viewer_token_file else None
    try:
        # A user who asks what a file means may lack the right to read the file that it names.
        if token is not None and not given.options.check_config:
            token.current()
        history = Prometheus(config.prometheus) if config.prometheus else None
    except (AccessError, ValueError) as error:
        given.reject(str(error))
    return DashboardSettings(**{each.name: getattr(config, each.name) for each in fields(config)}, token=token, history=history)


class Certificate:
    """The TLS context, which follows its files. FatalError if they cannot be used at the start."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._state = self._load()
        except (OSError, ssl.SSLError) as error:
            raise FatalError(
                f"found no certificate with its key in {certificate} and {key} ({quote(str(error))}); expected both as PEM"
            ) from None

    def _load(self) -> object:
        state = [(file.stat().st_mtime_ns, file.stat().st_ino) for file in self._files]
        self.context.load_cert_chain(*self._files)
        return state

    async def follow(self, reload: asyncio.Event) -> NoReturn:
        """Load the files again when they have changed: within a minute, and at once after a reload."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(reload.wait(), _CERTIFICATE_SECONDS)
            reload.clear()
            try:
                if self._state != [(file.stat().st_mtime_ns, file.stat().st_ino) for file in self._files]:
                    self._state = self._load()
                    log.info("the certificate was replaced")
            except (OSError, ssl.SSLError) as error:
                log.error("the new certificate cannot be used, the old one stays in use: %s", quote(str(error)))


async def _scope(client: KubeClient, cluster: Cluster) -> bool:
    """Whether the account has the rights of the back end DRA. FatalError without those of either."""
    try:
        await find_scope(client, cluster, "default")
        by_claims = await may_follow_claims(client)
    except KubeError as error:
        raise FatalError(explain_error(error, client.server, "nodes, and pods in all namespaces"), restart=True) from None
    if not cluster.complete:
        raise FatalError(
            f"{'; '.join(cluster.warnings[-2:])}. The account of the dashboard needs to list and watch nodes, and pods of all namespaces: "
            "docs/use/dashboard.md has the ClusterRole"
        )
    return by_claims


def namespaces_of(cluster: Cluster) -> set[str]:
    """The namespaces that have something to show: pods with GPUs, pods that wait for some, and deleted ones whose processes run."""
    held = {entry.pod.partition("/")[0] for node in cluster.nodes for entry in node.record.held.entries}
    return {
        *(pod.namespace for node in cluster.nodes for pod in node.pods),
        *(wait.pod.namespace for wait in cluster.waiting.values()),
        *filter(None, held),
    }


def namespaces_shown(feed: Feed) -> Callable[[], set[str]]:
    """`namespaces_of` the feed's cluster, once for each revision of its state: of 10,000 pods it takes milliseconds."""
    of_revision = lru_cache(maxsize=1)(lambda _revision: namespaces_of(feed.cluster))
    return lambda: of_revision(feed.state.revision)


async def _report(feed: Feed, status: Status) -> NoReturn:
    """To systemd and the log: whether the page shows the cluster as it is."""
    while True:
        age = feed.age()
        if not feed.synced:
            status.set(_CLUSTER, False, "not read yet")
        elif age > _STALE_SECONDS:
            status.set(_CLUSTER, False, "the API server has sent nothing for more than three minutes; pages show what was before")
        else:
            status.set(_CLUSTER, True, "complete, pages follow it")
        await asyncio.sleep(1.0)


async def _serve(settings: DashboardSettings, client: KubeClient, renewer: TokenRenewer | None, signals: Signals) -> None:
    status, cluster = Status(required=[_CLUSTER]), Cluster()
    by_claims = await _scope(client, cluster)
    feed = Feed(cluster, secrets.token_hex(8))
    certificate = Certificate(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None
    context = certificate.context if certificate else None
    access = OneToken(settings.token, client.get) if settings.token else OwnTokens(client.of_user, namespaces_shown(feed))

    def dashboard(port: int) -> Dashboard:
        hosts = Hosts(settings.listen.host, port, settings.host_names)
        return Dashboard(feed, access, hosts, title=settings.title, prometheus=settings.history)

    try:
        server, _ = await listen(dashboard, *settings.listen, context)
    except OSError as error:
        why = f"cannot listen on {settings.listen}: {error.strerror}; stop what uses it (ss -ltnp shows it), or set another address"
        raise FatalError(why, restart=True) from None
    way = "TLS" if certificate else "plain http"
    log.info("%s %s listens on %s (%s), API server %s", NAME, __version__, settings.listen, way, client.server)
    try:
        await run_all(
            [
                feed.watch(Watcher(client, cluster, "", by_claims=by_claims)),
                _report(feed, status),
                feed.follow_used(partial(read_used, settings.history.url)) if settings.history else feed.follow_published(),
                *([renewer.run(client, partial(status.set, "token"))] if renewer else []),
                *([certificate.follow(signals.reload)] if certificate else []),
                keep_alive(lambda: status.ready),
            ],
            signals.stop,
        )
    finally:
        await server.cleanup()


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status, as daemon/runner.py has it."""
    settings = parse_arguments(argv)

    async def serve(signals: Signals) -> None:
        async with connect(settings.kubeconfig, TokenFiles.of(settings), NAME) as (client, renewer):
            await _serve(settings, client, renewer, signals)

    return runner.run(serve, settings.log_level)


if __name__ == "__main__":
    sys.exit(main())
