# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module on the host, which sets no variables by it."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure

from ..plugin_utils._answers import HostAction


class ActionModule(HostAction):
    """For preflight, a host that cannot be reached has failed like any other.

    Where any error is fatal, one that is unreachable ends the play, ignored or not, before anybody has said why.
    """

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            return super().run(tmp, task_vars)
        except AnsibleConnectionFailure as error:
            if self._task.args.get("what") != "facts":
                raise
            return {"failed": True, "changed": False, "msg": str(error)}
