# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of subjects, as playbooks and roles walk it: which roles plan on a host, which a batch includes, what they have answered.

An answer is the result of a role's task in this run, by the name under which Ansible keeps it. No playbook and no other role names it.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ...module_utils._change.subjects import CONTROL_PLANES, DAEMONS, GPU_NODES, OWNERS, Owner, Plan, brought, is_fit
from ...module_utils._change.subjects import plans as all_plans
from ...module_utils._cluster.names import PLUGIN
from ...module_utils._facts.device_strategy import STRATEGY
from ...module_utils._operations.table import OPERATIONS

#: The value of a variable on the host, by its name; None for none.
Read = Callable[[str], Any]
#: The variable with what preflight has found on a host: its facts, plans, and what was asked for these.
PREFLIGHT = "__preflight_host"
GROUPS: Mapping[str, str] = {CONTROL_PLANES: "gpushare_control_plane_group", GPU_NODES: "gpushare_gpu_group"}
#: By the name of a plan, arguments beside those that follow variables. Roles ask the same; where they do not, they ask the host.
_OWN: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "container_runtime.strategy": lambda known: {"asked": known[STRATEGY], "toolkit": False, "brings_runtime": True},
    "python_environment": lambda known: {"root": known["gpushare_install_dir"], "python": known["gpushare_python"], "link": False},
    "device_plugin.look": lambda known: {
        "asked": known[STRATEGY],
        "required": True,
        "token_path": f"/var/lib/{PLUGIN}/token",
        "kubeconfig_path": f"{known['gpushare_config_dir']}/device-plugin.kubeconfig",
    },
}


def register(name: str) -> str:
    """The variable with the answer of a subject's role, or of a part of it: "container_runtime", "container_runtime.strategy"."""
    return "__" + name.replace(".", "_")


def read_plans(known: Mapping[str, Any], result: str = PREFLIGHT) -> Read:
    """The answers on a host, by its variables: those of its roles, else the plans that it made while its facts were gathered."""
    made = {register(name): answer for name, answer in ((known.get(result) or {}).get("answers") or {}).items()}
    return lambda name: known[name] if name in known else made.get(name)


def answers() -> list[str]:
    """The subjects, and their parts that plan by themselves, whose roles answer: those of hosts, then the daemons."""
    found = [name for role in brought() for name in (*(name for name, owning, _owner, _plan in all_plans() if owning == role), role)]
    return list(dict.fromkeys([*found, *(daemon.role for daemon in DAEMONS if daemon.role)]))


def checks() -> dict[str, str]:
    """By preflight's name for a host without a plan, the variable with the plan."""
    return {plan.check: register(name) for name, _role, _owner, plan in all_plans() if plan.check}


def together(groups: Mapping[str, list[str]], host: str, setting: Read) -> list[str]:
    """The names of the plans that a host makes while its facts are gathered."""
    return [name for name, _role, plan in _due(groups, host, setting) if _is_together(plan, setting)]


def plans(facts: Mapping[str, Any], groups: Mapping[str, list[str]], host: str, setting: Read) -> list[dict[str, str]]:
    """The entry points that plan on a host alone, each as its role and tasks. facts: those of preflight; groups: all of the inventory."""
    due = ((role, plan) for _name, role, plan in _due(groups, host, setting) if not _is_together(plan, setting))
    return [{"role": role, "tasks": plan.tasks} for role, plan in due if is_fit(plan, facts)]


def _due(groups: Mapping[str, list[str]], host: str, setting: Read) -> Iterator[tuple[str, str, Plan]]:
    """Name, role and plan of what the inventory wants on a host."""
    for name, role, owner, plan in all_plans():
        in_group = not owner.group or host in groups.get(str(setting(GROUPS[owner.group])), ())
        if in_group and all(str(setting(variable)) == value for variable, value in plan.settings):
            yield name, role, plan


def _is_together(plan: Plan, setting: Read) -> bool:
    return bool(plan.operation) and all(str(setting(variable)) != value for variable, value in plan.alone)


def operation_of(name: str) -> str:
    """The operation of the plan of this name."""
    return next(plan.operation for known, _role, _owner, plan in all_plans() if known == name)


def asked(name: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of preflight's plan of this name, before those that other plans decide. known: the variables of the host."""
    followed = {option: known[variable] for option, variable in OPERATIONS[operation_of(name)].variables.items()}
    return {**followed, **(_OWN[name](known) if name in _OWN else {})}


def foreseen(known: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of preflight's plan of this name to a role that asks the same now; None where it may be another one by now.

    known: the variables of the host; arguments: of the role's task.
    """
    told = known.get(PREFLIGHT) or {}
    answer, made = (told.get("answers") or {}).get(name), told.get("asked") or {}
    if answer is None or answer.get("failed") or answer.get("changes") or answer.get("now") != answer.get("strategy") or changed(known.get):
        return None
    operation = OPERATIONS[operation_of(name)]
    expected = {**made[name], **operation.follows(told["answers"])}
    given = {option: value for option, value in arguments.items() if option in operation.arguments}
    validator = ArgumentSpecValidator(operation.arguments)
    before, now = (validator.validate(dict(options)).validated_parameters for options in (expected, given))
    return dict(answer) if before == now else None


def batch(read: Read, setting: Read, always: bool) -> list[dict[str, str]]:
    """The roles that a batch of GPU nodes includes, each as its role and tasks: all, where one of them may change something.

    All, or none: Ansible includes what several hosts loop over in the order in which it first appears on any of them, so that a host whose
    list lacked a role would move it behind the others everywhere. always: whatever preflight has planned.
    """
    owners = [(role, owner) for role, owner in brought().items() if owner.install and owner.group == GPU_NODES]
    wanted = [(role, owner) for role, owner in owners if _is_wanted(owner, setting)]
    # A role that is out by default always runs where the inventory asks for it: its plan is not the whole of it.
    roles = {role for role, _owner in wanted}
    planned = [(name, plan) for name, role, _owner, plan in all_plans() if role in roles]
    due = always or any(owner.idle[0] for _role, owner in wanted) or any(_is_due(read, name, plan) for name, plan in planned)
    return [{"role": role, "tasks": owner.install} for role, owner in owners] if due else []


def _is_wanted(owner: Owner, setting: Read) -> bool:
    """Whether the inventory wants the role at all. A playbook has no defaults of roles."""
    name, default = owner.idle
    value = setting(name) if name else None
    return not name or str(default if value is None else value) != default


def _is_due(read: Read, name: str, plan: Plan) -> bool:
    """Whether preflight has planned a change. Where it could not plan, there may be one; a part that it has not planned is not wanted."""
    answer = read(register(name))
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
    chosen = (read(register(name)) or {} for name, role, _owner, plan in all_plans() if plan.chooses and role != besides)
    return next((answer for answer in chosen if "strategy" in answer), {})


def changed(read: Read) -> list[str]:
    """The subjects that roles have changed on a host in this run."""
    return [name for name in answers() if (read(register(name)) or {}).get("changed")]


def is_done(read: Read, name: str) -> bool:
    """Whether a subject's role has answered on a host in this run, without an error."""
    answer = read(register(name)) or {}
    # Ansible adds "changed" to the result of a host that it has lost, too.
    return "changed" in answer and not answer.get("failed") and not answer.get("unreachable")
