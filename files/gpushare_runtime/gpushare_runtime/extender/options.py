# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The command line and environment of gpushare-extender."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from gpushare_runtime import __version__
from gpushare_runtime.core.constraints import PLACEMENTS
from gpushare_runtime.core.protocol import EXTENDER_PORT
from gpushare_runtime.daemon import health_server, metrics_server, runner
from gpushare_runtime.daemon.metrics_server import MetricsAddress
from gpushare_runtime.extender.leadership import DEFAULT_LEASE, NO_LEASE
from gpushare_runtime.extender.tls import TlsFiles
from gpushare_runtime.kube import service_account
from gpushare_runtime.kube.service_account import TokenFiles

NAME: Final = "gpushare-extender"


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
class ExtenderSettings:
    """The extender's settings."""

    listen: Address
    placement: str = "binpack"  # policy between nodes
    gpu_placement: str = ""  # policy between the GPUs of a node, "" for the same
    evict: bool = False  # whether to evict pods at the request of their nodes
    preempt: bool = False  # whether kube-scheduler calls that verb, so that disruption budgets matter
    lease: str = ""  # leader-election Lease as "namespace/name", "" without leader election
    scheduler_host: str = ""  # this scheduler's host name in the lease
    most_nodes: int = 0  # maximum number of nodes that filter returns, 0 for no limit
    kubeconfig: str | None = None  # None for the pod's service account
    tokens: TokenFiles | None = None  # None for the kubeconfig's user
    tls: TlsFiles | None = None  # None for plain http
    metrics: MetricsAddress | None = None  # None without a metrics page
    health: health_server.Address | None = None  # None without pages for probes
    log_level: str = "info"


def parse_arguments(arguments: Sequence[str] | None = None) -> ExtenderSettings:
    """The settings by arguments and environment; None: this process's arguments. Ends the process with a message if they are invalid."""
    parser = _parser()
    given = parser.parse_args(arguments)
    return ExtenderSettings(
        listen=given.listen,
        placement=given.placement,
        gpu_placement=given.gpu_placement,
        evict=given.evict,
        preempt=given.preempt,
        lease=given.lease,
        scheduler_host=given.scheduler_host,
        most_nodes=given.most_nodes,
        kubeconfig=given.kubeconfig or None,
        tokens=service_account.from_options(parser, given),
        tls=_tls_files(parser, given),
        metrics=metrics_server.from_options(parser, given),
        health=health_server.from_options(parser, given),
        log_level=given.log_level,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME, description="Scheduler extender of gpushare: chooses the GPU of each pod, and binds the pod."
    )
    parser.add_argument(
        "--kubeconfig", default=os.environ.get("KUBECONFIG", ""), help="without it the pod's service account is used (env KUBECONFIG)"
    )
    parser.add_argument("--listen", type=_address, default=f"127.0.0.1:{EXTENDER_PORT}", help="address and port (default: %(default)s)")
    parser.add_argument("--placement", choices=PLACEMENTS, default="binpack", help="policy between nodes (default %(default)s)")
    parser.add_argument("--gpu-placement", choices=PLACEMENTS, default="", help="policy between the GPUs of a node (default: the same)")
    parser.add_argument("--preempt", action="store_true", help="kube-scheduler calls preempt here: watch disruption budgets for it")
    parser.add_argument(
        "--evict", action="store_true", help="evict pods that use more than their units, or can never start, when their nodes request it"
    )
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
        help="filter returns only the N best of the nodes that fit; 0: all of them (default)",
    )
    metrics_server.add_options(parser)
    health_server.add_options(parser)
    service_account.add_options(parser)
    runner.add_options(parser)
    for option, what in (
        ("--tls-cert", "the certificate for TLS"),
        ("--tls-key", "its key"),
        ("--client-ca", "the CA of kube-scheduler's client certificate"),
    ):
        parser.add_argument(
            option, type=Path, metavar="FILE", help=f"{what}, PEM (all three, or none for plain http on a loopback address)"
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
        raise argparse.ArgumentTypeError(f"{text!r} has no port from 1 to 65535; write for example 127.0.0.1:{EXTENDER_PORT}")
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes; write for example 100, or 0 for no limit")
    return int(text)
