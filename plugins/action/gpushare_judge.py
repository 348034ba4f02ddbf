# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge on the controller what hosts and the API server have answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.plugins.loader import lookup_loader

from ..plugin_utils._judge.dead_nodes import DeadNodesJudge
from ..plugin_utils._judge.driver import DriverJudge
from ..plugin_utils._judge.host import HostJudge
from ..plugin_utils._judge.in_cluster import InClusterJudge
from ..plugin_utils._judge.judge import Judge
from ..plugin_utils._judge.preflight import PreflightJudge
from ..plugin_utils._judge.take_over import TakeOverJudge
from ..plugin_utils._judge.verify import VerifyJudge
from ..plugin_utils._preflight.variables import variables

JUDGES: Mapping[str, type[Judge]] = {
    "host": HostJudge,
    "preflight": PreflightJudge,
    "driver": DriverJudge,
    "verify": VerifyJudge,
    "take_over": TakeOverJudge,
    "dead_nodes": DeadNodesJudge,
    "in_cluster": InClusterJudge,
}

# Once: Ansible's main process imports this, and each host's task runs in a copy of that process, which would read all roles again.
variables()
for _lookup in ("control_plane", "settings", "subjects"):
    lookup_loader.get(f"gpushare.kubernetes.{_lookup}", class_only=True)


class ActionModule(ActionBase):
    """Reaches a host only where the judge of this subject asks one."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        judge = JUDGES.get(str(self._task.args.get("what")))
        what = {"what": {"type": "str", "choices": list(JUDGES), "required": True}}
        arguments = self.validate_argument_spec(argument_spec={**what, **(judge.options if judge else {})})[1]
        return JUDGES[arguments.pop("what")](self, task_vars or {}).answer(arguments)
