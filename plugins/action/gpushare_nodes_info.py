# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a control plane for nodes, accounts and pods, and find those of the dead hosts by the inventory."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import HostAction, Known
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._removal.dead_nodes import choose


class ActionModule(HostAction):
    """The inventory decides which node a host was; the module reports what the cluster has."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        known = task_vars or {}
        found, dead = super().run(tmp, task_vars), self._task.args.get("dead_hosts")
        if found.get("failed") or "states" not in found or dead is None:
            return found
        hosts = [self._known(known, str(name)) for name in dead]
        choice = choose(hosts, found["states"], found["accounts"])
        if choice.rejections:
            return {"changed": False, "failed": True, "msg": "; ".join(choice.rejections) + ". Nothing was changed."}
        return {
            **found,
            "changed": False,
            "dead": list(choice.nodes),
            "pods": [one for one in found["pods"] if one["node"] in choice.nodes],
        }

    def _known(self, task_vars: dict[str, Any], name: str) -> Known:
        if name not in task_vars["groups"]["all"]:
            return Known(name, "", name.lower(), ())
        # Not task_vars: with delegate_to, those are of the control plane.
        theirs = dict(task_vars["hostvars"][name])
        return Known.of(self, {**theirs, "inventory_hostname": name, "groups": task_vars["groups"]}, theirs.get("gpushare_node_name", ""))
