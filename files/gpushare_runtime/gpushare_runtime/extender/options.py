# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The command line and environment of gpushare-extender."""

from __future__ import annotations

import argparse
import logging
import os
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from gpushare_runtime import __version__
from gpushare_runtime.core.constraints import PLACEMENTS
from gpushare_runtime.core.protocol import EXTENDER_PORT
from gpushare_runtime.daemon import metrics_server
from gpushare_runtime.daemon.metrics_server import MetricsAddress
from gpushare_runtime.extender.leadership import DEFAULT_LEASE, NO_LEASE
from gpushare_runtime.extender.tls import TlsFiles
from gpushare_runtime.kube.service_account import add_options

NAME: Final = "gpushare-extender"


_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


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
