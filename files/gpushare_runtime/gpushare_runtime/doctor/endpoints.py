# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The answers of the daemons over HTTP: the extender's health report, metrics, and the pages of the dashboard."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any, Final

from gpushare_runtime.doctor.findings import SITE, Findings
from gpushare_runtime.doctor.host import DaemonUnit, HostReader, shown
from gpushare_runtime.doctor.ports import is_its_own

_SECONDS: Final = 5.0
_MOST_BYTES: Final = 64 * 1024
# A program that listens everywhere listens on this host.
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class ExtenderCounters:
    """The extender's counters since its start. why: why they are not known, "" if they are."""

    filter_calls: int = 0
    unauthorized_calls: int = 0
    why: str = ""


def judge_health(found: Findings, host: HostReader, unit: DaemonUnit) -> ExtenderCounters:
    """Whether the extender answers, and has read the cluster's pods and nodes."""
    log = "journalctl -u gpushare-extender -n 50"
    ca, address = unit.file("client-ca"), unit.option("listen")
    url = f"{'https' if ca else 'http'}://{address}/healthz"
    try:
        body = _get(address, "/healthz", tls=ssl.create_default_context(cafile=str(host.at(ca))) if ca else None)[1]
        report = json.loads(body)
        if not isinstance(report, dict):
            raise ValueError(f"it must answer a JSON object; it answers {shown(body.decode('utf-8', 'replace'))}")
    except (OSError, ValueError, http.client.HTTPException, RecursionError) as error:
        why = f"{url} cannot be read: {shown(str(error) or type(error).__name__)}"
        cure = f"systemctl restart gpushare-extender; {log}"
        if isinstance(error, TimeoutError):
            # The connection is not rejected: the program that listens there hangs, or does not get the packets.
            cure = f"does a packet filter of this host drop them (nft list ruleset; iptables -S)? If not: {cure}"
        found.error("extender_down", why, "the extender's health report", cure)
        return ExtenderCounters(why=why)
    if report.get("synced") is not True:
        why = shown(str(report.get("not_ready") or "it does not say why"))
        seen = f"an extender that is not in sync: {why}"
        cure = f"does the API server of its kubeconfig answer this host? Then: systemctl restart {unit.name}; {log}"
        found.error("extender_not_synced", seen, "synced: true", cure)
    return ExtenderCounters(_count(report, "filter_calls"), _count(report, "unauthorized_calls"))


def judge_metrics(found: Findings, host: HostReader, unit: DaemonUnit) -> None:
    """Whether a daemon that runs serves its metrics only to callers that show the token of its file."""
    address, file = unit.option("metrics-listen"), unit.file("metrics-token-file")
    if not address:
        return
    token = (host.read(file) or b"").decode("ascii", "replace").strip() if file else ""
    stranger, mine = _status(address, ""), is_its_own(host, unit, address)
    if not mine and stranger.startswith("HTTP"):
        return  # judge_ports says so
    scraper = _status(address, token) if token and mine else stranger
    if scraper != "HTTP 200":
        cure = f"journalctl -u {unit.name} | grep -i metrics says why; is the port taken (ss -ltnp), the address one of this host?"
        found.error("metrics_down", f"{scraper} from {address}, for the metrics of {unit.name}", "HTTP 200", cure)
    elif file and stranger != "HTTP 401":
        seen = f"{stranger} from {address} for who shows no token"
        found.error("metrics_open", seen, "HTTP 401", f"{SITE}, or: systemctl restart {unit.name}")


def judge_dashboard(found: Findings, host: HostReader, unit: DaemonUnit) -> None:
    """Whether the dashboard has read the cluster, and serves it only to those who send the token of its file."""
    address, log = unit.option("listen"), f"journalctl -u {unit.name} -n 50"
    name = unit.option("host-name") or address
    tls = _of_certificate(host, unit.file("tls-cert"))
    token = (host.read(unit.file("viewer-token-file")) or b"").decode("ascii", "replace").strip()

    def status(path: str, token: str = "") -> str:
        try:
            return f"HTTP {_get(address, path, token=token, tls=tls, name=name)[0]}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return shown(str(error)) or type(error).__name__

    health = status("/healthz")
    if health == "HTTP 503":
        seen = f"{health} from {address}{f' (it says: {unit.says})' if unit.says else ''}"
        cure = f"does the API server of its kubeconfig answer this host? Then: {SITE}: it gives its account the rights again; {log}"
        found.error("dashboard_not_synced", seen, "a dashboard that has read the cluster", cure)
    elif health != "HTTP 200":
        found.error("dashboard_down", f"{health} from {address}", "HTTP 200", f"systemctl restart {unit.name}; {log}")
    elif is_its_own(host, unit, address):
        viewer, stranger = status("/api/state", token), status("/api/state")
        if stranger != "HTTP 401":
            seen = f"{stranger} from {address} for requests without a token"
            found.error("dashboard_open", seen, "HTTP 401", f"{SITE}, or: systemctl restart {unit.name}")
        if viewer != "HTTP 200":
            seen = f"{viewer} from {address} for requests with the token of its file"
            found.error("dashboard_down", seen, "HTTP 200", f"{SITE}; {log}")


def _of_certificate(host: HostReader, path: str) -> ssl.SSLContext | None:
    """Accepts this certificate alone, by whatever name; None for plain http. The names are for people's browsers."""
    if not path:
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=(host.read(path) or b"").decode("ascii", "replace"))
    return context


def _status(address: str, token: str) -> str:
    """ "HTTP 200", or why there is no answer."""
    try:
        return f"HTTP {_get(address, '/metrics', token=token)[0]}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return shown(str(error)) or type(error).__name__


def _get(address: str, path: str, *, token: str = "", tls: ssl.SSLContext | None = None, name: str = "") -> tuple[int, bytes]:
    """(status, the first bytes of the body). OSError, HTTPException; ValueError for an address without a port.

    name: for the header Host.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    host = _EVERYWHERE.get(host, host)
    if tls:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(host, int(port), timeout=_SECONDS, context=tls)
    else:
        connection = http.client.HTTPConnection(host, int(port), timeout=_SECONDS)
    headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **({"Host": name} if name else {})}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES)
    finally:
        connection.close()


def _count(report: dict[str, Any], key: str) -> int:
    value = report.get(key)
    return value if isinstance(value, int) else 0
