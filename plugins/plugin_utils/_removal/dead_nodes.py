# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Kubernetes node a dead host was: the host cannot be asked, so the inventory and the cluster must agree.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...module_utils._cluster.names import PLUGIN_ACCOUNT_PREFIX
from .._answers import Known, wrong_node

READY = "True"
_QUOTED = 80


@dataclass(frozen=True)
class Choice:
    """nodes: names of the dead nodes; rejections: why the run must stop, each a message of its own."""

    nodes: tuple[str, ...]
    rejections: tuple[str, ...]


def choose(hosts: Iterable[Known], states: Mapping[str, str], accounts: Collection[str]) -> Choice:
    """The node of each host. states: the condition Ready by node; accounts: the device plugins' accounts in the cluster."""
    of_accounts = {name[len(PLUGIN_ACCOUNT_PREFIX) :] for name in accounts if name.startswith(PLUGIN_ACCOUNT_PREFIX)}
    candidates = sorted({*states, *of_accounts})
    nodes: list[str] = []
    rejections: list[str] = []
    for host in hosts:
        matches = [name for name in candidates if wrong_node(host, name) is None]
        if len(matches) > 1:
            rejections.append(f"{_short(host.host)} may be any of the nodes {_listed(matches)}: set gpushare_node_name for it")
        ready = [name for name in matches if states.get(name) == READY]
        rejections += [
            f"the node {name} is Ready, so {_short(host.host)} is not dead: run the playbook remove_node, or stop the host and wait "
            "until the API server reports NotReady"
            for name in ready
        ]
        nodes += [name for name in matches if name not in ready]
    return Choice(tuple(dict.fromkeys(nodes)), tuple(rejections))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8])


def _short(name: str) -> str:
    return name if len(name) <= _QUOTED else name[:_QUOTED] + "…"
