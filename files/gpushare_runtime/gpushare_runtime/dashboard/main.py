# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-dashboard: the dashboard as a service, with an account of its own; those who read it have its token, or tokens of their own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime import __version__
from gpushare_runtime.core.bounds import as_text, quote
from gpushare_runtime.daemon import runner
from gpushare_runtime.daemon.runner import FatalError, Signals, Status, keep_alive, run_all
from gpushare_runtime.dashboard.access import AccessError, Hosts, TokenFile
from gpushare_runtime.dashboard.feed import Feed
from gpushare_runtime.dashboard.history import Prometheus
from gpushare_runtime.dashboard.server import Dashboard, listen
from gpushare_runtime.dashboard.viewers import OneToken, OwnTokens
from gpushare_runtime.kube import service_account
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kube.service_account import TokenFiles, TokenRenewer, connect
from gpushare_runtime.kubectl_gpushare.api import explain_error, find_scope
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.used import read_used
from gpushare_runtime.kubectl_gpushare.watcher import Watcher

log = logging.getLogger(__name__)

NAME: Final = "gpushare-dashboard"
DEFAULT_LISTEN: Final = "127.0.0.1:9442"
_CERTIFICATE_SECONDS: Final = 60.0
_STALE_SECONDS: Final = 180.0
_CLUSTER: Final = "cluster"


@dataclass(frozen=True)
class DashboardSettings:
    """The settings of the service."""

    host: str
    port: int
    token: TokenFile | None  # of those who read, None for tokens of their own
    host_names: tuple[str, ...] = ()  # further names that people use
    certificate: Path | None = None  # PEM, None for plain http
    key: Path | None = None
    prometheus: Prometheus | None = None
    title: str = ""
    kubeconfig: str | None = None  # None for the pod's service account
    tokens: TokenFiles | None = None  # None for the kubeconfig's user
    log_level: str = "info"


def parse_arguments(arguments: Sequence[str] | None = None) -> DashboardSettings:
    """The settings; None: this process's arguments. Ends the process with a message if they are invalid."""
    parser = _parser()
    given = parser.parse_args(arguments)
    host, port = given.listen
    loopback = ip_address(host).is_loopback
    if (given.tls_cert is None) != (given.tls_key is None):
        parser.error("--tls-cert and --tls-key go together: give both, or none for plain http on a loopback address")
    if given.tls_cert is None and not loopback:
        parser.error(
            f"--listen {host}: found no certificate, so the token would go over the network in clear text; "
            "give --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that has one"
        )
    if ip_address(host).is_unspecified and not given.host_name:
        parser.error(f"--listen {host}: expected --host-name too: requests for other names are rejected")
    if (given.viewer_token_file is None) != given.own_tokens:
        parser.error("expected one of --viewer-token-file FILE and --own-tokens, which say who may read")
    token = TokenFile(given.viewer_token_file) if given.viewer_token_file else None
    try:
        if token is not None:
            token.current()
        prometheus = Prometheus(given.prometheus) if given.prometheus else None
    except (AccessError, ValueError) as error:
        parser.error(str(error))
    return DashboardSettings(
        host=host,
        port=port,
        token=token,
        host_names=tuple(given.host_name),
        certificate=given.tls_cert,
        key=given.tls_key,
        prometheus=prometheus,
        title=given.title,
        kubeconfig=given.kubeconfig or None,
        tokens=service_account.from_options(parser, given),
        log_level=given.log_level,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description="Web page that shows who has how much of which GPU.")
    parser.add_argument(
        "--kubeconfig", default=os.environ.get("KUBECONFIG", ""), help="without it the pod's service account is used (env KUBECONFIG)"
    )
    parser.add_argument("--listen", type=_address, default=DEFAULT_LISTEN, metavar="ADDRESS:PORT", help="default: %(default)s")
    parser.add_argument(
        "--viewer-token-file",
        type=Path,
        metavar="FILE",
        help="bearer token that people enter, who all see everything; read again when it has changed",
    )
    parser.add_argument(
        "--own-tokens", action="store_true", help="people enter tokens of their own for the cluster, and see the pods that these may list"
    )
    parser.add_argument(
        "--host-name",
        action="append",
        default=[],
        type=_name,
        metavar="NAME",
        help="name that people use for this server, as of a proxy in front; may be repeated",
    )
    parser.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="the certificate for TLS, PEM; any address beyond loopback requires it"
    )
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, PEM")
    parser.add_argument("--prometheus", default="", metavar="URL", help="where history and memory in use come from")
    parser.add_argument("--title", default="", type=partial(as_text, most=80), metavar="TEXT", help="name of the cluster, on the page")
    service_account.add_options(parser)
    runner.add_options(parser)
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    return parser


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        host = str(ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {quote(text)}; expected an IP address and a port, such as {DEFAULT_LISTEN}") from None
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"found {quote(text)}; expected a port from 1 to 65535 at the end, such as {DEFAULT_LISTEN}")
    return host, int(port)


def _name(text: str) -> str:
    if not text or len(text) > 253 or not all(character.isascii() and (character.isalnum() or character in ".-") for character in text):
        raise argparse.ArgumentTypeError(f"found {quote(text)}; expected a host name without a port, such as gpushare.example.org")
    return text


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


async def _scope(client: KubeClient, cluster: Cluster) -> None:
    try:
        await find_scope(client, cluster, "default")
    except KubeError as error:
        raise FatalError(explain_error(error, client.server, "nodes, and pods in all namespaces"), restart=True) from None
    if not cluster.complete:
        raise FatalError(
            f"{'; '.join(cluster.warnings[-2:])}. The account of the dashboard needs to list and watch nodes, and pods of all namespaces: "
            "docs/use/dashboard.md has the ClusterRole"
        )


def namespaces_of(cluster: Cluster) -> set[str]:
    """The namespaces that have something to show: pods with GPUs, pods that wait for some, and deleted ones whose processes run."""
    held = {entry.pod.partition("/")[0] for node in cluster.nodes for entry in node.record.held.entries}
    return {
        *(pod.namespace for node in cluster.nodes for pod in node.pods),
        *(wait.pod.namespace for wait in cluster.waiting.values()),
        *filter(None, held),
    }


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
    await _scope(client, cluster)
    feed = Feed(cluster, secrets.token_hex(8))
    certificate = Certificate(settings.certificate, settings.key) if settings.certificate and settings.key else None

    access = OneToken(settings.token, client.get) if settings.token else OwnTokens(client.of_user, partial(namespaces_of, cluster))

    def dashboard(port: int) -> Dashboard:
        hosts = Hosts(settings.host, port, settings.host_names)
        return Dashboard(feed, access, hosts, title=settings.title, prometheus=settings.prometheus)

    try:
        server, _ = await listen(dashboard, settings.host, settings.port, certificate.context if certificate else None)
    except OSError as error:
        why = f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; stop what uses it (ss -ltnp shows it), or give --listen"
        raise FatalError(why, restart=True) from None
    way = "TLS" if certificate else "plain http"
    log.info("%s %s listens on %s:%d (%s), API server %s", NAME, __version__, settings.host, settings.port, way, client.server)
    try:
        await run_all(
            [
                feed.watch(Watcher(client, cluster, "")),
                _report(feed, status),
                feed.follow_used(partial(read_used, settings.prometheus.url)) if settings.prometheus else feed.follow_published(),
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
        async with connect(settings.kubeconfig, settings.tokens, NAME) as (client, renewer):
            await _serve(settings, client, renewer, signals)

    return runner.run(serve, settings.log_level)


if __name__ == "__main__":
    sys.exit(main())
