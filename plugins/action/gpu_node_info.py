# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a host which node it is, and believe it only if the inventory says so, too."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._answers import Known, ask, wrong_folder, wrong_node


class ActionModule(ActionBase):
    """Fails where the host says that it is another node than the inventory's, or than it said to preflight."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = dict(self._task.args)
        known = Known.of(self, variables, arguments.pop("node_name", ""))
        result = ask(self, task_vars, arguments=arguments)
        if result.get("failed") or "node_name" not in result:
            return result
        wrong = wrong_node(known, result["node_name"]) or wrong_folder("kubelet's root folder", result.get("kubelet_root"))
        if wrong is None:
            return result
        # Without what it says: nothing may be made of that.
        return {"changed": False, "failed": True, "msg": f"{known.host} is not believed: {wrong}"}
