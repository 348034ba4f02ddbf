# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The extender entries of others in kube-scheduler's configuration: which of them does not answer.

kube-scheduler asks each entry without managedResources for every pod, and places none while one of them does not answer (its `ignorable` is
not true). A host has no YAML parser: it finds the addresses in the text, and the controller says which of them is whose.
"""

from __future__ import annotations

import re
import socket
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple
from urllib.parse import urlsplit

from .._cluster.names import GPUS, MEMORY

PREFIX = "/gpushare-scheduler"
_URL = re.compile(r"[\"']?urlPrefix[\"']?\s*:\s*[\"']?(https?://[^\s\"',}]{1,200})")
#: A scheduler has one or two extenders.
_MOST = 8
_SECONDS = 2.0
_SHOWN = 80

Connect = Callable[[str, int], str]


def connect(name: str, port: int) -> str:
    """Why there is no connection to this address, "" if there is one. Takes some seconds at most, and sends nothing."""
    try:
        with socket.create_connection((name, port), timeout=_SECONDS):
            return ""
    except (OSError, ValueError) as error:
        return str(error)[:_SHOWN] or type(error).__name__


def silent(texts: Iterable[str], ask: Connect = connect) -> Dict[str, str]:
    """The urlPrefix of each entry of others in these configurations to why nothing answers there, of those where that is so."""
    found: Dict[str, str] = {}
    urls = dict.fromkeys(url for text in texts for url in _URL.findall(text) if not url.rstrip("/").endswith(PREFIX))
    for url in list(urls)[:_MOST]:
        try:
            parts = urlsplit(url)
            name, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            found[url] = str(error)[:_SHOWN]
            continue
        why = ask(name, port)
        if why:
            found[url] = why
    return found


def is_ours(entry: Mapping[str, Any]) -> bool:
    """Whether this entry of `extenders` is that of gpushare."""
    managed = {resource.get("name") for resource in entry.get("managedResources") or []}
    return bool(managed & {MEMORY, GPUS}) or str(entry.get("urlPrefix", "")).rstrip("/").endswith(PREFIX)


def dead(config: Mapping[str, Any], unreached: Mapping[str, str]) -> List[Tuple[int, Mapping[str, Any], str]]:
    """(place in `extenders`, entry, why it does not answer) of the entries of others that stop pods. unreached: of `silent`."""
    entries = [entry for entry in config.get("extenders") or [] if isinstance(entry, dict)]
    others = [(place, entry, unreached.get(str(entry.get("urlPrefix", "")), "")) for place, entry in enumerate(entries)]
    return [(place, entry, why) for place, entry, why in others if why and not is_ours(entry) and entry.get("ignorable") is not True]


def words(path: str, place: int, entry: Mapping[str, Any], why: str) -> Tuple[str, str, str]:
    """(found, expected, cure) about a dead entry of the configuration at this path."""
    managed = [str(resource.get("name"))[:_SHOWN] for resource in entry.get("managedResources") or [] if isinstance(resource, dict)][:3]
    url = str(entry.get("urlPrefix"))[:_SHOWN]
    pods = f"pods that ask for {', '.join(managed)}" if managed else "any pod of the cluster"
    return (
        f"extenders[{place}] of {path}, which is not ours, at {url}: {why}; kube-scheduler does not place {pods} while it is so",
        "an extender that answers, or none",
        f"start the program that listens on {url}, or take extenders[{place}] out of {path} if it is gone (ignorable: true lets pods pass "
        "without it); then run site.yml, which restarts the scheduler with the file",
    )
