# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a control plane which device plugins the cluster has, and judge them with what the GPU hosts have said of themselves."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.operator import CHECK, MODES, PATCH
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import ask
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._takeover.judge import HostState, judge

_NAME = "gpushare.kubernetes.gpushare_takeover_info"
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "hosts": {"type": "list", "elements": "str", "required": True},
    "facts": {"type": "str", "required": True},
    "extender_port": {"type": "int", "default": 32766},
    "drain": {"type": "bool", "default": False},
    "gpu_operator": {"type": "str", "choices": list(MODES), "default": CHECK},
    "kubectl": {"type": "str", "default": "kubectl"},
    "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
}


class ActionModule(ActionBase):
    """The module reports what the cluster has; what the hosts have answered is in their variables."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        known = task_vars or {}
        arguments = self.validate_argument_spec(argument_spec=_ARGUMENTS)[1]
        states = [self._state(known, host, arguments["facts"]) for host in arguments["hosts"]]
        hosts = [state for state in states if state.node]
        options = {"nodes": [state.node for state in hosts], **{key: arguments[key] for key in ("kubectl", "kubeconfig")}}
        try:
            found = ask(self, known, _NAME, options)
        except AnsibleConnectionFailure as error:
            return {"failed": True, "changed": False, "msg": str(error)}
        if found.get("failed") or "plugins" not in found:
            return found
        verdict = judge(hosts, found, arguments["extender_port"], arguments["drain"], arguments["gpu_operator"] == PATCH)
        return {**found, "changed": False, "rejections": list(verdict.rejections), "moves": dict(verdict.moves)}

    def _state(self, task_vars: dict[str, Any], host: str, name: str) -> HostState:
        theirs = task_vars["hostvars"][host]
        result = theirs.get(name) or {}
        # Preflight's result has them one level below, and asks for the GPUs, which later questions do not.
        facts, before = result.get("facts") or result, (theirs.get("__preflight_host") or {}).get("facts") or {}
        gpus = ((facts.get("nvidia_smi") or before.get("nvidia_smi") or {}).get("gpus")) or []
        unit = self._templar.template(theirs.get("gpushare_memory_unit", "GiB"))
        return HostState(
            host,
            str(result.get("node_name") or ""),
            list(facts.get("managers") or ()),
            dict(facts.get("registered") or {}),
            [int(gpu["memory_mib"]) for gpu in gpus if gpu.get("memory_mib")],
            str(unit),
        )
