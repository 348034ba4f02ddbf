# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host for verify; what it says counts only as that of the node which it is by the inventory."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from ..module_utils._evidence.host import VARIABLES, SeenAgain
from ..plugin_utils._answers import Known, ask, of_answer, read_variables, wrong_node
from ..plugin_utils._judge.verify import ROLES, wrong_role


class ActionModule(ActionBase):
    """Fails where the host says that it is another node than the inventory's, or has another role."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = {**read_variables(self, task_vars or {}, VARIABLES), **self._task.args}
        known = Known.of(self, task_vars or {})
        # The second reading, during a probe, is of what changes then.
        again = arguments.get("only") is not None
        result = ask(self, task_vars, arguments=arguments, shape=of_answer(SeenAgain) if again else None)
        seen = result.get("seen")
        if seen is None:
            return result
        wrong = wrong_role(seen, {name: boolean(arguments.get(name, False)) for name in ROLES}, again)
        if wrong is None and not again:
            wrong = wrong_node(known, seen["node_name"])
        return result if wrong is None else {"changed": False, "failed": True, "msg": f"{known.host} is not believed: {wrong}"}
