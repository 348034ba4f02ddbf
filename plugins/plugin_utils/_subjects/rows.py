# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of subjects, as playbooks and roles walk it: which roles plan on a host, which a batch includes, what they have answered.

An answer is the result of a role's task in this run, by the name under which Ansible keeps it. No playbook and no other role names it.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...module_utils._change.subjects import CONTROL_PLANE, CONTROL_PLANES, DAEMONS, GPU_NODES, HOST, OWNERS, RUNTIME, Owner, Plan, brought
from ...module_utils._formats.versions import newer

#: The value of a variable on the host, by its name; None for none.
Read = Callable[[str], Any]
GROUPS: Mapping[str, str] = {CONTROL_PLANES: "gpushare_control_plane_group", GPU_NODES: "gpushare_gpu_group"}


def register(name: str) -> str:
    """The variable with the answer of a subject's role, or of a part of it: "container_runtime", "container_runtime.strategy"."""
    return "__" + name.replace(".", "_")


def answers() -> list[str]:
    """The subjects, and their parts that plan by themselves, whose roles answer: those of hosts, then the daemons."""
    found = [name for role, owner in brought().items() for name in (*(_name(role, plan) for plan in owner.plans), role)]
    return [*dict.fromkeys(found), *(daemon.role for daemon in DAEMONS if daemon.role)]


def checks() -> dict[str, str]:
    """By preflight's name for a host without a plan, the variable with the plan."""
    return {plan.check: register(_name(role, plan)) for role, plan in _plans() if plan.check}


def plans(facts: Mapping[str, Any], groups: Mapping[str, list[str]], host: str, setting: Read) -> list[dict[str, str]]:
    """The entry points that plan on a host, each as its role and tasks. facts: those of preflight; groups: all of the inventory."""
    return [
        {"role": role, "tasks": plan.tasks}
        for role, owner in brought().items()
        if not owner.group or host in groups.get(str(setting(GROUPS[owner.group])), ())
        for plan in owner.plans
        if is_fit(plan, facts) and all(str(setting(name)) == value for name, value in plan.settings)
    ]


def is_fit(plan: Plan, facts: Mapping[str, Any]) -> bool:
    """Whether a host with these facts has what the plan is about."""
    kubelet = facts.get("kubelet") or {}
    if plan.needs == HOST:
        return "kubelet" in facts
    if (facts.get("distribution") or {}).get("name") != "kubeadm":
        return False
    if plan.needs == CONTROL_PLANE:
        return bool((facts.get("control_plane") or {}).get("present"))
    # Of a kubelet that does not say its version, the oldest is expected.
    is_older = not plan.below or newer(plan.below, str(kubelet.get("version") or "v1.0"))
    has_runtime = plan.needs != RUNTIME or (kubelet.get("runtime") or "unknown") != "unknown"
    return bool(kubelet.get("running")) and is_older and has_runtime


def batch(read: Read, setting: Read, always: bool) -> list[dict[str, str]]:
    """The roles that a batch of GPU nodes includes, each as its role and tasks: all, where one of them may change something.

    All, or none: Ansible includes what several hosts loop over in the order in which it first appears on any of them, so that a host whose
    list lacked a role would move it behind the others everywhere. always: whatever preflight has planned.
    """
    owners = [(role, owner) for role, owner in brought().items() if owner.install and owner.group == GPU_NODES]
    wanted = [(role, owner) for role, owner in owners if _is_wanted(owner, setting)]
    # A role that is out by default always runs where the inventory asks for it: its plan is not the whole of it.
    due = always or any(owner.idle[0] or _is_due(read, role, plan) for role, owner in wanted for plan in owner.plans)
    return [{"role": role, "tasks": owner.install} for role, owner in owners] if due else []


def _is_wanted(owner: Owner, setting: Read) -> bool:
    """Whether the inventory wants the role at all. A playbook has no defaults of roles."""
    name, default = owner.idle
    value = setting(name) if name else None
    return not name or str(default if value is None else value) != default


def _is_due(read: Read, role: str, plan: Plan) -> bool:
    """Whether preflight has planned a change. Where it could not plan, there may be one; a part that it has not planned is not wanted."""
    answer = read(register(_name(role, plan)))
    if answer is None:
        return not plan.part
    return "skipped" not in answer and bool(answer.get("changes", True))


def followers(setting: Read) -> list[dict[str, str]]:
    """The roles that run again after a change of the driver, each as its role and tasks."""
    rows = [(role, owner) for role, owner in brought().items() if owner.follows[0]]
    return [{"role": role, "tasks": owner.install} for role, owner in rows if str(setting(owner.follows[0])) == owner.follows[1]]


def removal() -> list[dict[str, str]]:
    """The entry points that take a subject's part out of a GPU node, each as its role and tasks, in the order of uninstall."""
    rows = [(role, owner.step) for role, owner in OWNERS.items() if owner.group == GPU_NODES]
    return [{"role": role, "tasks": step.partition(":")[2]} for role, step in rows if step.startswith(f"{role}:")]


def restored(read: Read) -> dict[str, list[str]]:
    """The files that the removal has restored on a host, and its notes, in the order of uninstall."""
    given = [answer for name, owner in OWNERS.items() if owner.order and (answer := read(register(name)))]
    changed = [answer.get("files") or [change.get("before_header", "") for change in answer.get("diff") or ()] for answer in given]
    return {
        "files": [path for paths in changed for path in paths],
        "notes": [note for answer in given for note in answer.get("notes") or ()],
    }


def strategy(read: Read, besides: str = "") -> dict[str, Any]:
    """The answer of the role that has chosen the device strategy of a host; empty where none has. besides: a role that does not count."""
    chosen = (read(register(_name(role, plan))) or {} for role, plan in _plans() if plan.chooses and role != besides)
    return next((answer for answer in chosen if "strategy" in answer), {})


def changed(read: Read) -> list[str]:
    """The subjects that roles have changed on a host in this run."""
    return [name for name in answers() if (read(register(name)) or {}).get("changed")]


def is_done(read: Read, name: str) -> bool:
    """Whether a subject's role has answered on a host in this run, without an error."""
    answer = read(register(name)) or {}
    return "changed" in answer and not answer.get("failed")


def _plans() -> Iterator[tuple[str, Plan]]:
    return ((role, plan) for role, owner in brought().items() for plan in owner.plans)


def _name(role: str, plan: Plan) -> str:
    return f"{role}.{plan.part}" if plan.part else role
