# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at a host for verify; what it says counts only as that of the node which it is by the inventory."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import Known, ask, wrong_folder, wrong_node


class ActionModule(ActionBase):
    """Fails where the host says that it is another node than the inventory's."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        known = Known.of(self, task_vars or {}, arguments.pop("node_name", ""))
        result = ask(self, task_vars, arguments=arguments)
        seen = result.get("seen") or {}
        # The second look, during a probe, does not say it again.
        if "node_name" not in seen:
            return result
        wrong = wrong_node(known, seen["node_name"]) or wrong_folder("kubelet's root folder", (seen.get("kubelet") or {}).get("root"))
        return result if wrong is None else {"changed": False, "failed": True, "msg": f"{known.host} is not believed: {wrong}"}
