# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What verify makes of one host's daemons: their units, what they were installed from, their tokens.

Private to this collection, used on the controller only. Pure: what gpushare_verify_host saw in, findings out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.token import LEAST_LEFT, Token
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import Findings

SITE = "run site.yml again"


@dataclass(frozen=True)
class Artifact:
    """Hashes (hexadecimal SHA-256) of what this collection installs."""

    wheel_sha256: str
    requirements_sha256: str
    kubectl_requirements_sha256: str

    def requirements_of(self, *, plane: bool) -> str:
        """Of a control plane, which has kubectl's plugin, or of another host."""
        return self.kubectl_requirements_sha256 if plane else self.requirements_sha256


def judge_runtime(found: Findings, runtime: Mapping[str, Any], wanted: Artifact, *, plane: bool) -> None:
    """Whether the runtime in use is the one of this collection, file by file."""
    if not runtime["environment"]:
        found.error("runtime_missing", "no runtime in use", "the link to it in gpushare_install_dir", SITE)
        return
    where = runtime["environment"]
    if runtime["wheel_sha256"] != wanted.wheel_sha256:
        seen = f"{where} made from wheel {runtime['wheel_sha256'][:12] or 'unknown'} (version {runtime['version'] or 'unknown'})"
        found.error("runtime_differs", seen, f"wheel {wanted.wheel_sha256[:12]}, this collection's", SITE)
    elif runtime["requirements_sha256"] != wanted.requirements_of(plane=plane):
        seen = f"{where} made from other locked requirements"
        found.error("runtime_differs", seen, "those of this collection", SITE)
    cure = f"remove {where} and {SITE}: it is built anew from the wheel"
    if runtime["damaged"]:
        more = runtime["damaged_count"] - len(runtime["damaged"])
        seen = f"{', '.join(runtime['damaged'])}{f' and {more} more' if more > 0 else ''} in {where} changed since it was installed"
        found.error("runtime_differs", seen, "the wheel's own files", cure)
    elif not runtime["files"]:
        found.error("runtime_differs", f"no record of the installed files in {where}", "pip's, with their hashes", cure)


def judge_unit(found: Findings, unit: Mapping[str, Any], short: str, environment: str) -> bool:
    """Whether the daemon runs, from the files on the disk and from the runtime in use; the codes begin with short. True if it runs."""
    name, log = f"{unit['name']}.service", f"journalctl -u {unit['name']} -n 50"
    if not unit["exists"]:
        found.error(f"{short}_missing", f"no unit {name}", "it, as site.yml writes it", SITE)
        return False
    if unit["active"] == "activating" and unit["state"] == "start" and unit["says"]:
        return True  # it runs, is not ready, and says why: that is judged by what it does
    if unit["active"] != "active":
        words = f", its last words: {unit['says']}" if unit["says"] else ""
        seen = f"{name} {unit['active']} ({unit['state'] or 'no state'}{words})"
        down = "down" if short == "extender" else "stopped"
        found.error(f"{short}_{down}", seen, "it to run", f"systemctl restart {unit['name']}; if it does not stay: {log}")
        return False
    if unit["file_generation"] != unit["process_generation"]:
        seen = f"{name} running from other files than those on the disk"
        cure = f"{SITE}, or: systemctl daemon-reload && systemctl restart {unit['name']}"
        found.error(f"{short}_older_than_file", seen, "the process that its unit file starts", cure)
    elif environment and unit["arguments"] and not any(word.startswith(environment + "/") for word in unit["arguments"][:2]):
        seen = f"{name} running {unit['arguments'][min(1, len(unit['arguments']) - 1)]}"
        found.error("runtime_differs", seen, f"a program of the runtime in use, {environment}", SITE)
    if not unit["enabled"]:
        found.warn(f"{short}_not_at_boot", f"{name} not enabled", "it started at boot", f"systemctl enable {unit['name']}")
    return True


def judge_metrics(found: Findings, unit: Mapping[str, Any], seen: Mapping[str, Any] | None) -> None:
    """Whether a daemon that runs serves its metrics as it is to: to who may have them, and to nobody else."""
    if seen is None:
        return
    name = unit["name"]
    if seen["listens"] != seen["wanted"]:
        is_, shall = (f"metrics of {name} on {one}" if one else f"no metrics of {name}" for one in (seen["listens"], seen["wanted"]))
        found.error("metrics_wrong", is_, shall, SITE)
    elif seen["scraper"] != 200:
        cure = f"journalctl -u {name} | grep -i metrics says why; is the port taken (ss -ltnp), the address one of this host?"
        found.error("metrics_down", f"{_http(seen['scraper'])} from {seen['listens']}, for the metrics of {name}", "HTTP 200", cure)
    elif seen["wants_token"] and seen["stranger"] != 401:
        seen_ = f"{_http(seen['stranger'])} from {seen['listens']} for who shows no token"
        found.error("metrics_open", seen_, "HTTP 401", f"{SITE}, or: systemctl restart {name}")


def _http(answer: int | str) -> str:
    return f"HTTP {answer}" if isinstance(answer, int) else answer


def judge_tokens(
    found: Findings, unit: Mapping[str, Any], tokens: Mapping[str, Any], now: float, accounts: Mapping[str, str] | None
) -> None:
    """Whether the daemon has a token that the API server can accept. accounts: name to UID of those that live, None if unknown."""
    if not unit["with_token"]:
        return
    claims = [tokens[which]["claims"] for which in ("own", "seed")]
    known = [Token.from_dict(one) for one in claims if one is not None]
    place = tokens["own"]["path"]
    renew = f"{SITE}: it gives the daemon a fresh one to start from"
    if not known:
        found.error("token_missing", f"no token in {place} nor in {tokens['seed']['path']}", f"one for {unit['name']}", renew)
        return
    alive = [token for token in known if token.expires > now]
    if not alive:
        ago = now - max(token.expires for token in known)
        why = f"then see why it was not renewed: journalctl -u {unit['name']} | grep -i token"
        found.error("token_expired", f"the token in {place} expired {_time(ago)} ago", "a valid one", f"{renew}; {why}")
        return
    token = max(alive, key=lambda one: one.issued)
    name = token.subject.rpartition(":")[2]
    if accounts is not None and accounts.get(name) != token.uid:
        seen = f"a token of ServiceAccount {name} with UID {token.uid}, which is {accounts.get(name, 'gone')}"
        found.error("token_refused", seen, "a token of the ServiceAccount that lives", renew)
    left = (token.expires - now) / max(1, token.expires - token.issued)
    if claims[0] is not None and token == Token.from_dict(claims[0]) and left < LEAST_LEFT:
        seen = f"{left:.0%} of the life of the token in {place} left"
        found.warn("token_not_renewed", seen, "it renewed at a third", f"journalctl -u {unit['name']} | grep -i token")


def _time(seconds: float) -> str:
    for size, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} s"
