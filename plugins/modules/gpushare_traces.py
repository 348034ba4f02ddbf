#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_traces
short_description: "Private: list what gpushare has changed on a host, or remove its daemons and files"
version_added: 0.1.0
description:
  - The roles C(report), C(uninstall) and C(dashboard) use this module. Its options may change in any release.
  - Removes only files that belong to this collection by the journal, their names or their marks. RV(left) lists the remaining ones with
    the reason.
  - A file from before the collection gets its old bytes, mode and owner back if no one else has changed it since. Otherwise it stays and
    is listed. A file that the collection created is removed, even if it has been changed; RV(notes) then lists it.
  - M(gpushare.kubernetes.kube_scheduler_extender) and M(gpushare.kubernetes.container_runtime) restore the scheduler and the container
    runtime, and verify that they run. The module does not stop the extender while the manifest on this host configures kube-scheduler to
    call it.
  - After an interruption, the next run completes.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  what:
    description:
      - V(report) compares the host's journal with its present files. Returns the installed runtime and the running daemons. Changes
        nothing.
      - V(services) stops the daemons and removes their units, credentials, certificates, state and sockets.
      - V(leftovers), after the container runtime has been restored, removes kubectl's plugin, the runtime's environments and at last the
        journal.
    type: str
    choices: [report, services, leftovers]
    required: true
  daemons:
    description: With V(services), the daemons to remove while the others run on. Empty for all, and the folders that they share.
    type: list
    elements: str
    choices: [gpushare-extender, gpushare-dashboard, gpushare-device-plugin, gpushare-mps, gpushare-cdi-refresh]
    default: []
  keep_state:
    description: With V(services), whether the device plugin's state folder stays, because a pod needs it.
    type: bool
    default: false
  install_dir: {description: "Folder of the runtime's environments.", type: path, default: /opt/gpushare}
  config_dir: {description: "Folder of the daemons' credentials.", type: path, default: /etc/gpushare}
  pki_dir: {description: Folder of the certificates., type: path, default: /etc/gpushare/pki}
  kubectl_plugin_dir: {description: Folder of the link to the kubectl plugin., type: path, default: /usr/local/bin}
  scheduler_manifest:
    description: Manifest of kube-scheduler's static pod.
    type: path
    default: /etc/kubernetes/manifests/kube-scheduler.yaml
  root: {description: "Folder that stands for the host's V(/), for tests. Without systemd.", type: path, default: /}
"""

EXAMPLES = r"""
- name: Stop the daemons and remove what they need
  gpushare.kubernetes.gpushare_traces:
    what: services
"""

RETURN = r"""
words: {description: "The whole report as a table for people, line by line.", returned: with O(what=report), type: list, elements: str}
report:
  description: The same as data.
  returned: with O(what=report)
  type: dict
  contains:
    runtime:
      description: The runtime that is installed, null if none is.
      type: dict
      contains:
        environment: {description: Path of the environment in use., type: str}
        state: {description: Whether it is complete., type: str}
        version: {description: Version of the runtime., type: str}
        python: {description: Version of its Python., type: str}
        wheel_sha256: {description: Hash of its wheel., type: str}
        older: {description: Names of other environments., type: list, elements: str}
    units: {description: "Our systemd units: name, active, enabled, file.", type: list, elements: dict}
    files: {description: "The changed files: path, owner, before, state, and when others have last written it.", type: list, elements: dict}
    settings: {description: "Changes outside of the host's files: what, owner.", type: list, elements: dict}
    kubectl_plugins: {description: Paths of the links, type: list, elements: str}
    unproven: {description: Unverified changes of an interrupted run., type: list, elements: str}
    unrecorded: {description: Files of ours that the journal does not have., type: list, elements: str}
stopped:
  description: The units that were stopped (in check mode, would be).
  returned: without O(what=report)
  type: list
  elements: str
  sample: [gpushare-extender.service]
removed: {description: "The removed items, in order.", returned: without O(what=report), type: list, elements: str}
restored: {description: The files that got their old bytes back., returned: without O(what=report), type: list, elements: str}
left:
  description: The items that stay, and why.
  returned: without O(what=report)
  type: list
  elements: dict
  contains:
    what: {description: Usually a path., type: str}
    why: {description: The reason as a message., type: str}
notes: {description: Further remarks for people., returned: without O(what=report), type: list, elements: str}
"""

from dataclasses import fields

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._change.subjects import DAEMONS
from ..module_utils._formats.answers import answer_of
from ..module_utils._host.answering import answering, changing
from ..module_utils._removal.host import check_callers, plan_leftovers, plan_services
from ..module_utils._removal.plan import Layout, RemovalPlan, TracesRemoved
from ..module_utils._removal.report import TracesReport, words
from ..module_utils._removal.report import report as report_of


def report(module: AnsibleModule) -> TracesReport:
    """Report them."""
    layout, run = _layout(module)
    with answering(module):
        found = report_of(layout, run)
        return TracesReport(False, found, words(found))


def services(module: AnsibleModule) -> TracesRemoved:
    """Remove the daemons, and what they read and keep."""
    params, (layout, run) = module.params, _layout(module)
    with changing(module, params["root"]):
        # In check mode the scheduler still calls the extender, because the step before has only been predicted.
        if not module.check_mode:
            check_callers(layout, params["daemons"])
        return _done(module, plan_services(layout, run, params["daemons"], params["keep_state"]))


def leftovers(module: AnsibleModule) -> TracesRemoved:
    """Remove the rest."""
    layout, _run = _layout(module)
    with changing(module, module.params["root"]):
        return _done(module, plan_leftovers(layout, module.check_mode))


def _done(module: AnsibleModule, plan: RemovalPlan) -> TracesRemoved:
    if not module.check_mode:
        plan.apply()
    return plan.result()


def _layout(module: AnsibleModule) -> tuple:
    """(where things are, how a program is run)."""
    layout = Layout(**{field.name: module.params[field.name] for field in fields(Layout) if field.name in module.params})
    # A folder that stands for a host has no systemd; that of this host is none of its business.
    return layout, module.run_command if layout.root == "/" else lambda argv: (0, "", "")


OPERATIONS = {"report": report, "services": services, "leftovers": leftovers}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "what": {"type": "str", "choices": list(OPERATIONS), "required": True},
            "daemons": {"type": "list", "elements": "str", "choices": [daemon.name for daemon in DAEMONS], "default": []},
            "keep_state": {"type": "bool", "default": False},
            "install_dir": {"type": "path", "default": "/opt/gpushare"},
            "config_dir": {"type": "path", "default": "/etc/gpushare"},
            "pki_dir": {"type": "path", "default": "/etc/gpushare/pki"},
            "kubectl_plugin_dir": {"type": "path", "default": "/usr/local/bin"},
            "scheduler_manifest": {"type": "path", "default": "/etc/kubernetes/manifests/kube-scheduler.yaml"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    module.exit_json(**answer_of(OPERATIONS[module.params["what"]](module)))


if __name__ == "__main__":
    main()
