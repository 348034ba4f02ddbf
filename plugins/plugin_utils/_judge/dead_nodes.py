# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the Kubernetes node of each dead host by the inventory, because a dead host cannot report its node."""

from __future__ import annotations

from typing import Any

from .._answers import Known, ask
from .._removal.dead_nodes import choose
from .judge import KUBECTL, Judge


class DeadNodesJudge(Judge):
    """The inventory decides which node a host was; the module reports what the cluster has."""

    options = {"hosts": {"type": "list", "elements": "str", "required": True}, **KUBECTL}

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        asked = {"what": "nodes", "kubectl": arguments["kubectl"], "kubeconfig": arguments["kubeconfig"]}
        found = ask(self._action, self._known, "gpushare.kubernetes.gpushare_api", asked)
        if found.get("failed") or "states" not in found:
            return found
        choice = choose([self._host(str(name)) for name in arguments["hosts"]], found["states"], found["accounts"])
        if choice.rejections:
            return {"changed": False, "failed": True, "msg": "; ".join(choice.rejections) + ". Nothing was changed."}
        pods = [pod for pod in found["pods"] if pod["node"] in choice.nodes]
        return {"changed": False, "dead": list(choice.nodes), "pods": pods}

    def _host(self, name: str) -> Known:
        if name not in self._known["groups"]["all"]:
            return Known(name, "", name.lower(), ())
        # Not the task's own variables: with delegate_to, those are of the control plane.
        theirs = dict(self._known["hostvars"][name])
        known = {**theirs, "inventory_hostname": name, "groups": self._known["groups"]}
        return Known.of(self._action, known)
