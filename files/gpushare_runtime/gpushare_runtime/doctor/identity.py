# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The identity of the daemons: the tokens that they show to the API server, and the certificates between kube-scheduler and the
extender."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

from gpushare_runtime.doctor.findings import SITE, Findings
from gpushare_runtime.doctor.host import DASHBOARD, PLUGIN, DaemonUnit, HostReader
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kube.credentials import CredentialsError, load
from gpushare_runtime.kube.service_account import Token, TokenError, parse_token
from gpushare_runtime.pki.certificates import Broken, read_certificate, stamp
from gpushare_runtime.pki.folder import Folder

_LEAST_LEFT: Final = 0.25
"""A daemon renews its token when a third of its life is over; one that has less than this left has failed to for long."""
_API_SECONDS: Final = 5.0

Ask = Callable[[str, Token, str], int]
"""(kubeconfig, token, node) → the HTTP status with which the API server lists pods, 0 where it cannot be asked. node: whose, "" for all."""


def judge_tokens(found: Findings, host: HostReader, unit: DaemonUnit, now: float, ask: Ask) -> None:
    """Whether the daemon has a token that it can read, that is its own, and that the API server accepts. now: seconds since 1970."""
    own, seed = unit.option("token-file"), unit.file("seed-token-file")
    if not own:
        return
    tokens = {path: _token(host, path) for path in (own, seed)}
    known = [token for token in tokens.values() if token is not None]
    _judge_files(found, host, unit, own, seed)
    renew = f"{SITE}: it gives the daemon a fresh one to start from"
    if not known:
        found.error("token_missing", f"no token in {own} nor in {seed}", f"one for {unit.name}", renew)
        return
    alive = [token for token in known if not token.expired(now)]
    if not alive:
        ago = _time(now - max(token.expires for token in known))
        why = f"then see why it was not renewed: journalctl -u {unit.name} | grep -i token"
        found.error("token_expired", f"the token in {own} expired {ago} ago", "a valid one", f"{renew}; {why}")
        return
    token = max(alive, key=lambda token: token.issued)
    wanted, node = _account(unit), unit.option("node-name")
    if token.account != wanted:
        files = " ".join(path for path, token in tokens.items() if token is not None and token.account != wanted)
        seen = f"a token of ServiceAccount {token.account} in {files}"
        what = f"rm {files}; then {renew}"
        found.error("token_foreign", seen, f"one of {wanted}, the account of this daemon", what)
    else:
        status = ask(str(host.at(unit.file("kubeconfig"))), token, node)
        if status == 401:
            seen = f"a token of ServiceAccount {token.account} that the API server answers with 401"
            found.error("token_rejected", seen, "a token of the ServiceAccount that lives", renew)
        elif status == 403:
            seen = f"the API server answering 403 to ServiceAccount {wanted}, which asks for pods"
            found.error("token_forbidden", seen, "the rights that the roles give the account", f"{SITE}: it applies them again")
    left = (token.expires - now) / (token.expires - token.issued)
    if token is tokens[own] and left < _LEAST_LEFT:
        seen = f"{left:.0%} of the life of the token in {own} left"
        found.warn(
            "token_not_renewed",
            seen,
            "it renewed at a third",
            f"systemctl restart {unit.name}; if it stays: journalctl -u {unit.name} | grep -i token",
        )


def _account(unit: DaemonUnit) -> str:
    """Each device plugin has an account of its own; of the others there is one for all hosts."""
    return f"{PLUGIN}-{unit.option('node-name')}" if unit.name == PLUGIN and unit.option("node-name") else unit.name


def _judge_files(found: Findings, host: HostReader, unit: DaemonUnit, own: str, seed: str) -> None:
    """Whether the daemon, which has none of root's powers, can read its token files, and no other user can."""
    wrong: dict[bool, list[tuple[str, int, int, int]]] = {}
    for path, user in ((own, host.user_of(unit.pid)), (seed, host.root_user())):
        state = host.mode_and_owner(path)
        if state is None:
            continue
        mode, owner = state
        wanted = owner if user is None else user
        if owner != wanted or mode & 0o477 != 0o400:
            wrong.setdefault(bool(mode & 0o077), []).append((path, mode, owner, wanted))
    for exposed, files in wrong.items():
        seen = ", ".join(f"{path} with mode {mode:04o} of user {owner}" for path, mode, owner, _ in files)
        expected = ", ".join(dict.fromkeys(f"mode 0600 of user {wanted}" for *_, wanted in files))
        each = "; ".join(f"chown {wanted} {path}; chmod 0600 {path}" for path, _, _, wanted in files)
        cure = f"{each}; systemctl restart {unit.name}"
        if exposed:
            found.error("token_exposed", seen, expected, cure)
        else:
            found.error("token_unreadable", seen, expected, cure)


def api_status(kubeconfig: str, token: Token, node: str) -> int:
    """Asks the API server for what each daemon needs. Where it cannot be asked, the daemon itself reports that."""

    class Only:
        def authorization(self) -> str:
            return f"Bearer {token.text}"

        def unauthorized(self, authorization: str | None) -> None:
            """There is no other."""

    async def ask() -> None:
        async with KubeClient(load(kubeconfig, tokens=Only()), user_agent="gpushare-doctor", timeout=_API_SECONDS) as client:
            # From the API server's memory, where pods are kept by node.
            if node:
                await client.get("/api/v1/pods", limit=1, resourceVersion=0, fieldSelector=f"spec.nodeName={node}")
            else:
                await client.get("/api/v1/pods", limit=1, resourceVersion=0)

    try:
        asyncio.run(ask())
    except KubeError as error:
        return error.status
    except CredentialsError:
        return 0
    return 200


def judge_certificates(found: Findings, host: HostReader, unit: DaemonUnit, now: float) -> None:
    """Whether the certificates that the extender's unit names are good. now: seconds since 1970."""
    certificate = unit.file("tls-cert")
    if not certificate:
        return
    folder = posixpath.dirname(certificate)
    renew = "systemctl start gpushare-pki.service; journalctl -u gpushare-pki says why the timer did not"
    for state in Folder(host.at(folder)).status(datetime.fromtimestamp(now, timezone.utc)):
        path, problem = posixpath.join(folder, state["path"]), state["problem"]
        if problem and state["not_after"] and state["days_left"] <= 0:
            found.error("certificate_expired", f"{path}: {problem} ({state['not_after']})", "a valid certificate", renew)
        elif problem:
            found.error("certificate_wrong", f"{path}: {problem}", "a certificate as gpushare-pki makes it", renew)


def judge_served_certificate(found: Findings, host: HostReader, unit: DaemonUnit, now: float) -> bool:
    """Whether the certificate of the dashboard has not expired, by any issuer. now: seconds since 1970."""
    path = unit.file("tls-cert")
    if not path:
        return True
    renew = "run systemctl start gpushare-dashboard-pki.service, or replace a certificate of your own and run systemctl reload " + DASHBOARD
    try:
        end = read_certificate(host.read(path) or b"").not_valid_after_utc
    except Broken as error:
        found.error("dashboard_down", f"{path} {error}", "the certificate of the dashboard", f"{SITE}, or {renew}")
        return False
    if end.timestamp() <= now:
        found.error("certificate_expired", f"{path}: has expired at {stamp(end)}", "a valid certificate", renew)
        return False
    return True


def _token(host: HostReader, path: str) -> Token | None:
    try:
        return parse_token((host.read(path) or b"").decode("ascii", "replace"))
    except TokenError:
        return None


def _time(seconds: float) -> str:
    for size, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} s"
