# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The settings of gpushare-extender by its file or its command line."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from gpushare_runtime import __version__
from gpushare_runtime.extender.tls import TlsFiles
from gpushare_runtime.settings import options
from gpushare_runtime.settings.extender import NO_LEASE, ExtenderConfig

NAME: Final = "gpushare-extender"


@dataclass(frozen=True)
class ExtenderSettings(ExtenderConfig):
    """The extender's settings, with what follows from them. lease: "" without leader election."""

    tls: TlsFiles | None = None  # None for plain http


def parse_arguments(arguments: Sequence[str] | None = None) -> ExtenderSettings:
    """The settings by arguments and environment; None: this process's arguments. Ends the process with a message if they are invalid."""
    parser = argparse.ArgumentParser(
        prog=NAME, description="Scheduler extender of gpushare: chooses the GPU of each pod, and binds the pod."
    )
    options.add_options(parser, ExtenderConfig)
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    given = options.read(parser, ExtenderConfig, arguments)
    settings = _resolved(given)
    given.checked()
    return settings


def _resolved(given: options.Given[ExtenderConfig]) -> ExtenderSettings:
    """The settings with their consequences. Ends the process with a message if they do not fit each other."""
    config = given.settings
    own: dict[str, Any] = {
        "lease": "" if config.lease == NO_LEASE else config.lease,
        "scheduler_host": config.scheduler_host or socket.gethostname(),
    }
    return ExtenderSettings(**{each.name: getattr(config, each.name) for each in fields(config)} | own, tls=_tls(given))


def _tls(given: options.Given[ExtenderConfig]) -> TlsFiles | None:
    """The files for TLS, None for plain http. Ends the process with a message where neither is possible."""
    config = given.settings
    files = {given.name(field): getattr(config, field) for field in ("tls_cert", "tls_key", "client_ca")}
    missing = [name for name, file in files.items() if file is None]
    if not missing:
        return TlsFiles(*files.values())
    if len(missing) < len(files):
        given.reject(f"{' and '.join(missing)} not given: TLS takes all of {', '.join(files)}, plain http none of them")
    if not config.listen.loopback:
        loopback = f"plain http is for loopback addresses; give {', '.join(files)}, or listen on 127.0.0.1"
        given.reject(f"{given.name('listen')} {config.listen}: {loopback}")
    return None
