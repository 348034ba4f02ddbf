# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan on the controller, which has a YAML parser, what a host's kube-scheduler files become; the module writes and verifies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml
from ansible.plugins.action import ActionBase

from ..module_utils._formats.failure import Failure
from ..module_utils._scheduler.apply import SchedulerFound
from ..module_utils._scheduler.manifest import SchedulerError
from ..module_utils._scheduler.scheduler_config import ExtenderEntry
from ..plugin_utils._answers import ask, of_answer
from ..plugin_utils._scheduler.plan import Found, SchedulerPlan, check_lease, plan_present
from ..plugin_utils._scheduler.unplan import plan_absent
from ..plugin_utils._scheduler.wiring import UnreadFile


class ActionModule(ActionBase):
    """Read the host's files, compute, and only if something differs run the module to change them."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        if self._task.args.get("what", "extender") != "extender":
            return ask(self, task_vars)
        found = self._module({"read": []}, task_vars)
        if found.get("failed") or "files" not in found:
            return found
        try:
            plan, trial = self._plan(found, task_vars)
        except (Failure, yaml.YAMLError) as error:
            # Not raised: a task that only asks for the plan continues.
            return {"changed": False, "failed": True, "msg": str(error)}
        changed = plan.is_due(found)
        result = {"changed": changed, "diff": plan.diff, "notes": plan.notes, "warnings": plan.warnings}
        if self._task.check_mode and plan.changed and trial.for_module["scheduler"] is not None:
            said = self._module({**trial.for_module, "trial": True}, task_vars)
            return said if said.get("failed") else {**said, **result}
        if not changed or self._task.check_mode:
            return result
        done = self._module(plan.for_module, task_vars)
        return {**done, **result, "changed": done.get("changed", True), "warnings": [*plan.warnings, *(done.get("warnings") or ())]}

    def _plan(self, found: dict[str, Any], task_vars: dict[str, Any] | None) -> tuple[SchedulerPlan, SchedulerPlan]:
        """The plan, and one for a trial before the host has the certificates, which kube-scheduler reads, too."""
        read: list[str] = []
        while True:
            try:
                return _make_plan(found), _make_plan(found, with_tls=False)
            except UnreadFile as unread:  # a volume puts it elsewhere on the host than in the container, or another file names it
                if unread.path in read:
                    raise SchedulerError(f"{unread.path[:80]} cannot be read on this host") from unread
                read.append(unread.path)
                found = self._module({"read": read}, task_vars)
                if found.get("failed") or "files" not in found:
                    raise SchedulerError(str(found.get("msg") or "the host does not answer")) from unread

    def _module(self, plan: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        shape = of_answer(SchedulerFound) if "read" in plan else None
        return ask(self, task_vars, None, {**self._task.args, "what": "extender", "plan": plan}, shape)


def _make_plan(found: dict[str, Any], with_tls: bool = True) -> SchedulerPlan:
    s = found["settings"]
    if s["manifest"] not in found["files"]:
        raise SchedulerError("the host has not answered for its manifest")
    managed = tuple(s["managed_resources"])
    extender = ExtenderEntry(s["url_prefix"], s["weight"], s["http_timeout"], managed, s["tls_dir"], s["preemption"])
    if not with_tls:
        extender = replace(extender, url_prefix=extender.url_prefix.replace("https:", "http:", 1), tls_dir="")
    if s["state"] == "absent":
        return plan_absent(s["manifest"], s["config"], Found.from_answer(found), extender)
    plan = plan_present(s["manifest"], s["config"], Found.from_answer(found), extender, s["percentage_of_nodes_to_score"])
    check_lease(plan.lease, s["lease"], s["control_planes"], s["node_name"])
    return plan
