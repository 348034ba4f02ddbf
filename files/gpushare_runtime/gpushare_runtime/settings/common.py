# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Settings that several daemons have: each is a function that makes the field."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from gpushare_runtime.daemon.runner import LOG_LEVELS
from gpushare_runtime.settings.schema import CLUSTER, ChoiceType, NumberType, TextType, folder, setting

TOKEN_SECONDS: Final = 604800
# The API server issues no token for less.
_LEAST_SECONDS, _MOST_SECONDS = 600, 2**32
_ADDRESS: Final = r"(?:\[[0-9a-fA-F:.]{2,45}\]|[^:\[\]\s]{1,253}):[0-9]{1,5}"


@dataclass(frozen=True)
class Address:
    """Where a daemon listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it."""
        return ip_address(self.host).is_loopback


def address(example: str) -> TextType:
    """The kind of an address with a port."""
    return TextType(f"an address and port, such as {example}", _ADDRESS)


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
    agrees = "goes together with `tokenFile`"
    return setting(None, "token to begin with, instead of the kubeconfig's credentials", folder(), agrees=agrees, metavar="FILE")


def token_file() -> Any:
    agrees = "goes together with `seedTokenFile`"
    return setting(None, "where the own token is kept (with --seed-token-file)", folder(), agrees=agrees, metavar="FILE")


def token_seconds() -> Any:
    kind = NumberType(_LEAST_SECONDS, _MOST_SECONDS, "seconds")
    variable = {"variable": "gpushare_token_seconds", "role": "cluster_objects", "scope": CLUSTER}
    return setting(TOKEN_SECONDS, "lifetime of a token", kind, metavar="N", **variable)


def metrics_listen(example: str) -> Any:
    agrees = "any address beyond loopback requires `metricsTokenFile`"
    return setting("", f"serve metrics there, such as {example}; default: nowhere", address(example), agrees=agrees, metavar="ADDRESS:PORT")


def metrics_token_file() -> Any:
    return setting(None, "bearer token of scrapers; any address beyond loopback requires it", folder(), metavar="FILE")


def health_listen(example: str) -> Any:
    doc = f"serve /healthz and /readyz there, open, such as {example}; default: nowhere"
    return setting("", doc, address(example), metavar="ADDRESS:PORT")


def log_level() -> Any:
    words = f"{', '.join(LOG_LEVELS[:-1])} or {LOG_LEVELS[-1]}"
    return setting("info", f"{words} (or LOG_LEVEL); default info", ChoiceType(LOG_LEVELS), environment="LOG_LEVEL", metavar="LEVEL")
