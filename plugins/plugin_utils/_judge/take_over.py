# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the device plugins of others with the facts of the GPU hosts, and give a reason for each that prevents the take-over."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure  # type: ignore[import-untyped]

from ...module_utils._takeover.operator import CHECK, MODES, PATCH
from .._answers import ask
from .._takeover.judge import HostState, judge
from .judge import KUBECTL, Judge

#: The variable of a host with what preflight has read of it in this run.
_PREFLIGHT = "__preflight_host"


class TakeOverJudge(Judge):
    """The module reports what the cluster has; what the hosts have answered is in their variables."""

    options = {
        "hosts": {"type": "list", "elements": "str", "required": True},
        "facts": {"type": "str", "default": _PREFLIGHT},
        "extender_port": {"type": "int", "default": 32766},
        "drain": {"type": "bool", "default": False},
        "gpu_operator": {"type": "str", "choices": list(MODES), "default": CHECK},
        **KUBECTL,
    }

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        states = [self._state(host, arguments["facts"]) for host in arguments["hosts"]]
        hosts = [state for state in states if state.node]
        asked = {"what": "plugins", "pods_of": [state.node for state in hosts]}
        asked |= {key: arguments[key] for key in ("kubectl", "kubeconfig")}
        try:
            found = ask(self._action, self._known, "gpushare.kubernetes.gpushare_api", asked)
        except AnsibleConnectionFailure as error:
            return {"failed": True, "changed": False, "msg": str(error)}
        if found.get("failed") or "plugins" not in found:
            return found
        verdict = judge(hosts, found, arguments["extender_port"], arguments["drain"], arguments["gpu_operator"] == PATCH)
        return {**found, "changed": False, "rejections": list(verdict.rejections), "moves": dict(verdict.moves)}

    def _state(self, host: str, name: str) -> HostState:
        theirs = self._known["hostvars"][host]
        result = theirs.get(name) or {}
        # Preflight's result has them one level below, and asks for the GPUs, which later questions do not.
        facts, before = result.get("facts") or result, (theirs.get(_PREFLIGHT) or {}).get("facts") or {}
        gpus = ((facts.get("nvidia_smi") or before.get("nvidia_smi") or {}).get("gpus")) or []
        unit = self._action._templar.template(theirs.get("gpushare_memory_unit", "GiB"))
        return HostState(
            host,
            str(result.get("node_name") or ""),
            list(facts.get("managers") or ()),
            dict(facts.get("registered") or {}),
            [int(gpu["memory_mib"]) for gpu in gpus if gpu.get("memory_mib")],
            str(unit),
        )
