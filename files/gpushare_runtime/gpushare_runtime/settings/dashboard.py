# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The settings of gpushare-dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.settings import common
from gpushare_runtime.settings.common import Address
from gpushare_runtime.settings.schema import ListType, SwitchType, TextType, folder, setting

DEFAULT_LISTEN: Final = Address("127.0.0.1", 9442)
_MOST_NAMES: Final = 60
_TITLE: Final = 80
_LABEL: Final = "[A-Za-z0-9][A-Za-z0-9-]{0,62}"
_NAME: Final = TextType("a host name without a port, such as gpushare.example.org", rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
#: In the cluster the dashboard has three names of its own: localhost, and two of its Service.
FURTHER_NAMES: Final = ListType(_NAME, _MOST_NAMES - 3)
# Without a user: everybody on the host may read the file.
_URL: Final = r"(?:https?://[A-Za-z0-9.:\[\]_~%-]+(?:/[A-Za-z0-9_+=:,./~%-]*)?)?"


@dataclass(frozen=True)
class DashboardConfig:
    """As a file or a command line has them. The order is that of the file and of the docs."""

    listen: Address = setting(
        DEFAULT_LISTEN,
        "address and port",
        common.listen_address(str(DEFAULT_LISTEN)),
        metavar="ADDRESS:PORT",
        agrees="any address beyond loopback requires TLS; one that is all addresses of the host requires `hostNames`",
    )
    kubeconfig: str | None = common.kubeconfig()
    viewer_token_file: Path | None = setting(
        None,
        "bearer token that people enter, who all see everything; a new token is used at once",
        folder(),
        metavar="FILE",
        agrees="goes without `ownTokens`, and one of the two is needed",
    )
    own_tokens: bool = setting(
        False,
        "people enter tokens of their own for the cluster, and see the pods that these may list",
        SwitchType(),
        agrees="goes without `viewerTokenFile`, and one of the two is needed",
    )
    host_names: tuple[str, ...] = setting(
        (),
        "name that people use for this server, as of a proxy in front; may be repeated",
        ListType(_NAME, _MOST_NAMES),
        option="host-name",
        metavar="NAME",
        variable="gpushare_dashboard_host_names",
        description="Names that people use for the server, such as that of a proxy in front. Requests for other names are rejected.",
    )
    tls_cert: Path | None = setting(
        None,
        "the certificate for TLS, PEM; any address beyond loopback requires it; a new one is used within a minute",
        folder(),
        metavar="FILE",
        together="tls_key",
        without="plain http on a loopback address",
    )
    tls_key: Path | None = setting(
        None, "its key, PEM", folder(), metavar="FILE", together="tls_cert", without="plain http on a loopback address"
    )
    prometheus: str = setting(
        "",
        "where history and memory in use come from",
        TextType("a URL such as http://prometheus.monitoring:9090, without user, password and query, or nothing", _URL),
        metavar="URL",
        variable="gpushare_dashboard_prometheus",
        description="URL of the Prometheus server for history and memory in use. Empty means only the samples of the dashboard itself.",
    )
    title: str = setting(
        "",
        "name of the cluster, on the page",
        TextType(f"a text of at most {_TITLE} characters", rf"[^\0]{{0,{_TITLE}}}", partial(as_text, most=_TITLE)),
        metavar="TEXT",
        variable="gpushare_dashboard_title",
        description="Name of the cluster on the page, at most 80 characters.",
    )
    seed_token_file: Path | None = common.seed_token_file()
    token_file: Path | None = common.token_file()
    token_seconds: int = common.token_seconds()
    log_level: str = common.log_level()
