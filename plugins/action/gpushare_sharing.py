# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module on the host, except for a device strategy that preflight has asked for and that still counts."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._answers import ask, with_changes
from ..plugin_utils._subjects.rows import foreseen


class ActionModule(ActionBase):
    """One call, or none."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = self._task.args
        known = foreseen(task_vars or {}, "device_plugin.look", arguments) if arguments.get("what") == "strategy" else None
        return with_changes(ask(self, task_vars) if known is None else known)
