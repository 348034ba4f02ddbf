# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects in the cluster that the daemons on the hosts need, by the role that applies them.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...module_utils._cluster.names import EXTENDER, NAMESPACE
from ...module_utils._cluster.public import public
from . import accounts, policies
from .policies import Json

ROLES = ("admission", "extender", "device_plugin", "dashboard", "closed")


@dataclass(frozen=True)
class OnHosts:
    """The values of the objects. nodes: those with a device plugin. lease: of kube-scheduler, namespace/name. prometheus: its URL."""

    writers: Sequence[str] = ()
    token_seconds: int = 604800
    lease: str = "kube-system/kube-scheduler"
    evict: bool = False
    nodes: Sequence[str] = ()
    prometheus: str = ""


def objects(role: str, values: OnHosts) -> list[Json]:
    """The objects of one of ROLES, those that others need first."""
    if role == "admission":
        return policies.on_hosts(values.writers, values.token_seconds)
    if role == "extender":
        return [*accounts.extender(values.lease, values.evict), *public(values.prometheus, EXTENDER, NAMESPACE)]
    if role == "closed":
        return policies.closed()
    if role == "dashboard":
        return accounts.dashboard()
    if role == "device_plugin":
        return [account for node in values.nodes for account in accounts.device_plugin(node)]
    raise ValueError(f"no role has objects by the name {role[:80]!r}; expected one of {', '.join(ROLES)}")
