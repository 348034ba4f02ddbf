# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The second half of a removal: kubectl's plugin, the runtime's environments, and at the very end the journal.

Private to this collection.
"""

from __future__ import annotations

import os

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import FOLDER, Journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.environment import LINK, is_environment
from ansible_collections.gpushare.kubernetes.plugins.module_utils._remove import Layout, Plan, fate
from ansible_collections.gpushare.kubernetes.plugins.module_utils._remove_services import PROVEN_ELSEWHERE

KUBECTL_PLUGIN = "kubectl-inspect-gpushare"
_CURES = {
    "scheduler": "the role scheduler with gpushare_scheduler_state: absent",
    "container_runtime": "the role container_runtime with gpushare_container_runtime_state: absent",
}


def plan_leftovers(layout: Layout, check: bool) -> Plan:
    """What goes. check: the steps before this one have only been predicted, so what they would take counts as gone."""
    plan = Plan(layout)
    _plan_link(plan)
    folder = layout.real(layout.install_dir)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if is_environment(name) or name in (LINK, LINK + ".new"):
            plan.remove_tree(os.path.join(layout.install_dir, name))
    plan.remove_folder_if_empty(layout.install_dir)
    _plan_journal(plan, check)
    return plan


def _plan_link(plan: Plan) -> None:
    layout = plan.layout
    path = os.path.join(layout.kubectl_plugin_dir, KUBECTL_PLUGIN)
    real, target = layout.real(path), os.path.join(layout.install_dir, "current/bin", KUBECTL_PLUGIN)
    if os.path.islink(real) and os.readlink(real) == target:
        plan.remove_file(path)
    elif os.path.lexists(real):
        plan.leave(path, "it is not the link to %s that this collection makes" % target)


def _plan_journal(plan: Plan, check: bool) -> None:
    layout = plan.layout
    folder, kept = "/" + FOLDER, []
    for entry in Journal(layout.root).entries():
        if entry.owner in PROVEN_ELSEWHERE and not check:
            plan.leave(entry.path, "%s has not taken its part out yet: run %s" % (entry.owner, _CURES[entry.owner]))
            kept.append(entry)
        elif entry.owner not in PROVEN_ELSEWHERE and entry.is_file and fate(layout, entry).left_alone:
            kept.append(entry)  # the first half has said why
    if not kept:
        plan.remove_tree(folder)
    parent = os.path.dirname(folder)
    plan.remove_staged([parent, os.path.dirname(parent)])
    if not kept:
        plan.remove_folder_if_empty(parent)
