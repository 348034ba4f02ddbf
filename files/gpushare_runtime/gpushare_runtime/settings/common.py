# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Settings that several daemons have: each is a function that makes the field."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from gpushare_runtime.daemon.runner import LOG_LEVELS
from gpushare_runtime.settings.schema import CLUSTER, ChoiceType, NumberType, TextType, folder, setting

_TOKEN_SECONDS: Final = 604800
# The API server issues no token for less.
_LEAST_SECONDS, _MOST_SECONDS = 600, 2**32
_ADDRESS: Final = r"(?:\[[0-9a-fA-F:.]{2,45}\]|[^:\[\]\s]{1,253}):[0-9]{1,5}"


class Address(NamedTuple):
    """Where a daemon listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it."""
        return ip_address(self.host).is_loopback


def listen_address(example: str) -> TextType:
    """The kind of an address on which a daemon must be able to listen."""
    expected = f"an IP address and a port from 1 to 65535, such as {example}"

    def parsed(text: str) -> Address:
        host, _, port = text.rpartition(":")
        try:
            found = Address(str(ip_address(host.removeprefix("[").removesuffix("]"))), int(port))
        except ValueError:
            raise ValueError(expected) from None
        if not 1 <= found.port <= 65535:
            raise ValueError(expected)
        return found

    return TextType(expected, _ADDRESS, parsed)


def kubeconfig() -> Any:
    doc = "without it the pod's service account is used (or KUBECONFIG)"
    return setting(None, doc, TextType("the path of a file"), environment="KUBECONFIG", metavar="FILE")


def seed_token_file() -> Any:
    return setting(
        None,
        "token to begin with, instead of the kubeconfig's credentials",
        folder(),
        together="token_file",
        without="the credentials of the kubeconfig",
        metavar="FILE",
    )


def token_file() -> Any:
    doc = "where the own token is kept (with --seed-token-file)"
    return setting(None, doc, folder(), together="seed_token_file", without="the credentials of the kubeconfig", metavar="FILE")


def token_seconds() -> Any:
    kind = NumberType(_LEAST_SECONDS, _MOST_SECONDS, "seconds")
    variable = {"variable": "gpushare_token_seconds", "role": "cluster_objects", "scope": CLUSTER}
    return setting(_TOKEN_SECONDS, "lifetime of a token", kind, metavar="N", **variable)


def metrics_listen(example: str) -> Any:
    return setting(
        None,
        f"serve metrics there, such as {example}; default: nowhere",
        listen_address(example),
        metavar="ADDRESS:PORT",
        agrees="any address beyond loopback requires `metricsTokenFile`",
        misfit=_open_metrics,
    )


def _open_metrics(settings: Any, name: Callable[[str], str]) -> str:
    address: Address | None = settings.metrics_listen
    if address is None or address.loopback or settings.metrics_token_file:
        return ""
    return f"metrics on {address.host} would be open to the network: give {name('metrics_token_file')} as well, or 127.0.0.1"


def metrics_token_file() -> Any:
    return setting(None, "bearer token of scrapers; any address beyond loopback requires it", folder(), metavar="FILE")


def health_listen(example: str) -> Any:
    doc = f"serve /healthz and /readyz there, open, such as {example}; default: nowhere"
    return setting(None, doc, listen_address(example), metavar="ADDRESS:PORT")


def log_level() -> Any:
    words = f"{', '.join(LOG_LEVELS[:-1])} or {LOG_LEVELS[-1]}"
    return setting("info", f"{words} (or LOG_LEVEL); default info", ChoiceType(LOG_LEVELS), environment="LOG_LEVEL", metavar="LEVEL")
