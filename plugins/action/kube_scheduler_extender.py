# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan on the controller, which has a YAML parser, what a host's kube-scheduler files become; the module writes and proves."""

from __future__ import annotations

from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kube_scheduler import Extender, SchedulerError
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler_plan import Plan, UnreadFile, make_plan


class ActionModule(ActionBase):
    """Read the host's files, compute, and only if something differs run the module to change them."""

    _requires_connection = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        found = self._module({"read": []}, task_vars)
        if found.get("failed") or "files" not in found:
            return found
        try:
            plan = self._plan(found, task_vars)
        except (SchedulerError, yaml.YAMLError) as error:
            raise AnsibleActionFail(str(error)) from error
        changed = plan.changed or found["due"]
        result = {"changed": changed, "diff": plan.diff}
        if not changed or self._task.check_mode:
            return result
        return {**self._module(plan.for_module, task_vars), "diff": plan.diff}

    def _plan(self, found: dict[str, Any], task_vars: dict[str, Any] | None) -> Plan:
        settings = found["settings"]
        extender = Extender(settings["url_prefix"], settings["weight"], settings["http_timeout"], tuple(settings["managed_resources"]))
        try:
            return make_plan(settings["manifest"], settings["config"], found["files"], extender)
        except UnreadFile as unread:  # a volume puts it elsewhere on the host than in the container
            found = self._module({"read": [unread.path]}, task_vars)
            return make_plan(settings["manifest"], settings["config"], found["files"], extender)

    def _module(self, plan: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name="gpushare.kubernetes.kube_scheduler_extender",
            module_args={**self._task.args, "plan": plan},
            task_vars=task_vars,
        )
        return result
