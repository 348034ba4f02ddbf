# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The plan for a control plane of a generation, what it must be, and the host after it."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Entry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import FileState, digest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import kubeadm, scheduler_config
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.policy import PolicyMap
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found, SchedulerPlan, plan_present
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.unplan import plan_absent
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.wiring import UnreadFile

from unit.fakes.plugins.scheduler.generations import CONFIG_PATH, MANIFEST_PATH, POLICY_PATH, STATES
from unit.fakes.plugins.scheduler.manifests import TLS


def files_done(found: Found, plan: SchedulerPlan) -> Found:
    """The host after the plan, as the module carries it out, with its journal."""
    files, journal, cluster = dict(found.files), dict(found.journal), found.cluster

    def note(path: str, before: str | None, after: str | None) -> None:
        known = journal.get(path)
        state = None if before is None else FileState(before.encode(), 0o644, 0, 0, None)
        left = (digest(None if before is None else before.encode()), digest(None if after is None else after.encode()))
        others = known is not None and (known.others or left[0] not in known.left)
        journal[path] = Entry(path, "scheduler", known.original if known else state, left, others)

    for one in plan.for_module["files"]:
        if files.get(one["path"]) != one["content"]:
            note(one["path"], files.get(one["path"]), one["content"])
            files[one["path"]] = one["content"]
    for value in plan.for_module["values"]:
        note(*value)
    if plan.for_module["cluster"] is not None:
        note(kubeadm.PATH, cluster, plan.for_module["cluster"]["content"])
        cluster = plan.for_module["cluster"]["content"]
    return replace(found, files=files, journal=journal, cluster=cluster)


NEW_POLICY = "/etc/kubernetes/gpushare/scheduler-policy.json"

SCHED = "/etc/kubernetes/sched/"

GROUP = "kubescheduler.config.k8s.io/"

# By hand: the file with our extender, what it is, and the flag that names it.
EXPECTED: dict[str, tuple[str, str, str]] = {
    "kubeadm 1.11": (NEW_POLICY, "v1", "policy-config-file"),
    "kubeadm 1.15": (NEW_POLICY, "v1", "policy-config-file"),
    "kubeadm 1.18": (NEW_POLICY, "v1", "policy-config-file"),
    "kubeadm 1.19": (CONFIG_PATH, f"{GROUP}v1beta1", "config"),
    "kubeadm 1.21": (CONFIG_PATH, f"{GROUP}v1beta1", "config"),
    "kubeadm 1.22": (CONFIG_PATH, f"{GROUP}v1beta2", "config"),
    "kubeadm 1.23": (CONFIG_PATH, f"{GROUP}v1beta3", "config"),
    "kubeadm 1.24": (CONFIG_PATH, f"{GROUP}v1beta3", "config"),
    "kubeadm 1.25": (CONFIG_PATH, f"{GROUP}v1", "config"),
    **{f"kubeadm 1.{minor}": (CONFIG_PATH, f"{GROUP}v1", "config") for minor in range(34, 39)},
    "seed 000": (POLICY_PATH, "v1", "policy-config-file"),
    "seed 000 with 1.22": (POLICY_PATH, "v1", "policy-config-file"),
    "1.22 with a rich policy": (POLICY_PATH, "v1", "policy-config-file"),
    "kubespray 2.8 with a policy": (f"{SCHED}kube-scheduler-policy.yaml", "v1", "policy-config-file"),
    "kubespray 1.36": ("/etc/kubernetes/kubescheduler-config.yaml", f"{GROUP}v1", "config"),
    "1.16 with a policy ConfigMap": ("", "v1", "policy-configmap"),
    "1.15 with v1alpha1 that names a policy": (f"{SCHED}policy.json", "v1", "config"),
    "1.22.17 with v1beta1": (f"{SCHED}config.yaml", f"{GROUP}v1beta1", "config"),
    "1.22.17 with v1beta2": (f"{SCHED}config.yaml", f"{GROUP}v1beta2", "config"),
    "1.24.17 with v1beta2": (f"{SCHED}config.yaml", f"{GROUP}v1beta2", "config"),
    "1.24.17 with v1beta3": (f"{SCHED}config.yaml", f"{GROUP}v1beta3", "config"),
    "1.27.16 with v1beta3": (f"{SCHED}config.yaml", f"{GROUP}v1beta3", "config"),
    **{f"1.36.3 {how}": (f"{SCHED}config.yaml", f"{GROUP}v1", "config") for how in ("with v1", "in JSON", "in braces", "with an alias")},
}


def state(name: str) -> Found:
    files, cluster, policy = STATES[name]
    found = PolicyMap("kube-system", "scheduler-policy", policy, "7") if policy else None
    return Found({CONFIG_PATH: None, **files}, cluster=cluster, cluster_version="42", nodes=3, policy=found)


def plan(found: Found, how: str = "present", extender: scheduler_config.ExtenderEntry = TLS) -> SchedulerPlan:
    """As the action plugin does it: a file that was not sent is sent then."""
    while True:
        try:
            where = (MANIFEST_PATH, CONFIG_PATH, found, extender)
            return plan_present(*where) if how == "present" else plan_absent(*where)
        except UnreadFile as unread:
            found = replace(found, files={**found.files, unread.path: None})


def done(found: Found, plan: SchedulerPlan) -> Found:
    after = files_done(found, plan)
    order = plan.for_module["policy"]
    if order is None or found.policy is None:
        return after
    known = found.journal.get(order["path"])
    left = (digest(found.policy.text.encode()), digest(order["content"].encode()))
    original = known.original if known else FileState(found.policy.text.encode(), 0, 0, 0, None)
    journal = {**after.journal, order["path"]: Entry(order["path"], "scheduler", original, left, False)}
    return replace(after, journal=journal, policy=replace(found.policy, text=order["content"]))
