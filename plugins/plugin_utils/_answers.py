# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The answer of a host, before anything in the cluster or on another host is made of it.

The root user of a host decides what its modules answer. So every answer has the shape of the class that its module makes it of, or it
is none, which is that host's fault alone. Which node the host is must be what the inventory says. Names and paths must have the form of
names and paths, and it sets no variables.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_type_hints

from ansible.errors import AnsibleConnectionFailure, AnsibleError  # type: ignore[import-untyped]
from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]

from ..module_utils._formats.finding import Finding
from ..module_utils._operations.table import OPERATIONS
from ..modules import (
    container_runtime,
    gpu_mem_capacity,
    gpu_node_info,
    gpushare_api,
    gpushare_bundle,
    gpushare_cluster,
    gpushare_daemon,
    gpushare_driver,
    gpushare_host_runtime,
    gpushare_in_cluster,
    gpushare_judge,
    gpushare_node,
    gpushare_packages,
    gpushare_runtime_env,
    gpushare_sharing,
    gpushare_toolkit,
    gpushare_traces,
    gpushare_verify_cluster,
    gpushare_verify_host,
    kube_scheduler_extender,
    kubelet_gates,
    nvidia_smi_info,
)
from ._shape import learn, of_class, other_shape, quoted

_NODE = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NODE_LENGTH = 253
_NODE_NAME = "gpushare_node_name"
# Without what means something to a shell or to systemd, and without `..`.
_FOLDER = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_@.+:,=-]+)+")
_FOLDER_LENGTH = 1024

Shape = Mapping[str, Any]

#: Ansible's own of a module. The rest that it makes of a result, such as hosts, statistics or results of a loop, is nothing for a module.
COMMON: Shape = {
    "changed": bool,
    "failed": bool,
    "msg": str,
    "rc": int,
    "module_stdout": str,
    "module_stderr": str,
    # Its arguments, which Ansible shows with -vvv.
    "invocation": Any,
}
#: The same, which Ansible itself has parsed already; only lists of them are taken.
PARSED = ("warnings", "deprecations")


def of_answer(answer: type) -> Shape:
    """The keys of a module's answer beside Ansible's own."""
    return {key: shape for key, shape in of_class(answer).items() if key.removesuffix("?") not in COMMON}


def _of_modules(modules: Collection[ModuleType]) -> dict[str, Shape]:
    """By the module's name, with its option `what` where it has operations: the answer that its function returns.

    A module without operations is one whose action plugin asks no host.
    """
    found: dict[str, Shape] = {}
    for module in modules:
        name, operations = module.__name__.rpartition(".")[2], getattr(module, "OPERATIONS", {"": None})
        for what, operation in operations.items():
            found[f"{name} {what}".rstrip()] = {} if operation is None else of_answer(get_type_hints(operation)["return"])
    return found


#: The shape of what each module answers, by its name and `what`.
RESULTS: Mapping[str, Shape] = _of_modules(
    (
        container_runtime,
        gpu_mem_capacity,
        gpu_node_info,
        gpushare_api,
        gpushare_bundle,
        gpushare_cluster,
        gpushare_daemon,
        gpushare_driver,
        gpushare_host_runtime,
        gpushare_in_cluster,
        gpushare_judge,
        gpushare_node,
        gpushare_packages,
        gpushare_runtime_env,
        gpushare_sharing,
        gpushare_toolkit,
        gpushare_traces,
        gpushare_verify_cluster,
        gpushare_verify_host,
        kube_scheduler_extender,
        kubelet_gates,
        nvidia_smi_info,
    )
)
# Once: Ansible's main process imports this, and each host's task runs in a copy of that process.
learn(RESULTS)


@dataclass(frozen=True)
class Known:
    """The known facts of a host. address: its ansible_host. node: its name in Kubernetes. hosts: all names in the inventory.

    judged: the name that preflight has judged in this run. A name that there is not is "".
    """

    host: str
    address: str
    node: str
    hosts: Collection[str]
    judged: str = ""

    @classmethod
    def of(cls, action: ActionBase, task_vars: Mapping[str, Any], node: Any = "") -> Known:
        """node: the name in Kubernetes, where the task has it, else that of the variables."""
        node = node or action._templar.template(task_vars.get(_NODE_NAME) or "")
        address = action._templar.template(task_vars.get("ansible_host") or "")
        judged = (task_vars.get("__preflight_host") or {}).get("node_name")
        hosts = list(task_vars.get("groups", {}).get("all", ()))
        return cls(str(task_vars["inventory_hostname"]), str(address), str(node or "").lower(), hosts, str(judged or ""))


def shape_of(module: str, arguments: Mapping[str, Any]) -> Shape:
    """The shape of what the module answers to these arguments. Where it does not know their `what`, it can only fail."""
    return RESULTS[module] if module in RESULTS else RESULTS.get(f"{module} {arguments.get('what')}", {})


def wrong_node(known: Known, name: Any) -> Finding | None:
    """Why the host is not believed to be the node of this name; None if it is."""
    if not isinstance(name, str) or len(name) > _NODE_LENGTH or not _NODE.fullmatch(name):
        cure = "check the arguments of its kubelet (--hostname-override), and who else has root there"
        return Finding("identity", f"the node name {quoted(name)}", f"a DNS name in lower case of at most {_NODE_LENGTH} characters", cure)
    found = f"a host that says it is the node {name!r}"
    if known.judged and name != known.judged:
        cure = "find out why the host has changed its mind within a run"
        return Finding("identity", found, f"{known.judged!r}, as it said to preflight", cure)
    if known.node:
        cure = f"correct {_NODE_NAME} of {known.host} in the inventory, or find out why the host says so"
        return None if name == known.node else Finding("identity", found, f"{known.node!r}", cure)
    aliases = [alias.lower().rstrip(".") for alias in (known.host, known.address) if alias]
    if any(name == alias or (_is_short(name, alias) and _is_unique(alias, known.hosts)) for alias in aliases):
        return None
    said = f"say so in the inventory, for this host, by {_NODE_NAME}: {name}"
    former = next((alias for alias in aliases if _NODE.fullmatch(alias) and not alias.replace(".", "").isdigit()), "")
    # kubelet's rights are those of the name under which it joined.
    back = f"if kubectl get nodes has {former} only, it was renamed: hostnamectl set-hostname {former}; systemctl restart kubelet; else "
    cure = f"{back if former else 'if it is, '}{said}"
    return Finding("identity", found, f"a node that is called as in the inventory: {' or '.join(aliases)}", cure)


def wrong_folder(what: str, path: Any) -> Finding | None:
    """Why the host's answer is not believed to be a folder of this meaning; None if it is."""
    if isinstance(path, str) and len(path) <= _FOLDER_LENGTH and _FOLDER.fullmatch(path):
        return None
    expected, cure = "an absolute path of letters, digits and _@.+:,=-", "check kubelet's --root-dir on the host"
    return Finding("identity", f"{what} {quoted(path)}", expected, cure)


def ask(
    action: ActionBase, task_vars: dict[str, Any] | None, name: str | None = None, arguments: Any = None, shape: Shape | None = None
) -> dict[str, Any]:
    """The answer of the module on the host, in its shape. shape: where it is another one than that of RESULTS.

    Raises AnsibleConnectionFailure only. A wrong password of sudo, which Ansible raises as well, is a failed result, and so is any answer
    that is not believed.
    """
    try:
        result: dict[str, Any] = action._execute_module(module_name=name, module_args=arguments, task_vars=task_vars)
    except AnsibleConnectionFailure:
        raise
    except AnsibleError as error:
        # `failed_when` does not see what is raised.
        return {"changed": False, "failed": True, "msg": str(error)}
    except (AttributeError, TypeError, ValueError, LookupError, RecursionError) as error:
        # Ansible takes the keys that mean something to it for what they are to be.
        return _refused(action, task_vars, f"Ansible cannot read it ({type(error).__name__}: {quoted(str(error))})")
    module = (name or action._task.action).rpartition(".")[2]
    given = action._task.args if arguments is None else arguments
    believed = taken(action, task_vars, module, result, shape_of(module, given) if shape is None else shape)
    facts = result.get("ansible_facts")
    # Ansible's own, which it takes from no module: where it has found Python. Other facts win over the inventory's variables.
    found = {key: value for key, value in facts.items() if "discovered_interpreter_" in str(key)} if isinstance(facts, Mapping) else {}
    return {**believed, "ansible_facts": found} if found else believed


def taken(action: ActionBase, task_vars: Mapping[str, Any] | None, module: str, result: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """The result of a module as it is believed: one of another shape is a failed one."""
    believed = believe(result, shape)
    return _refused(action, task_vars, f"{module}: {believed}") if isinstance(believed, str) else believed


def read_variables(action: ActionBase, task_vars: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """The options of a module that follow variables of the same task, as option to variable; those without such a variable are left out.

    Ansible compiles each template of a task's arguments again for each host, also one that only names a variable. Most variables have none.
    """
    return {option: action._templar.template(task_vars[name]) for option, name in variables.items() if name in task_vars}


def with_changes(result: dict[str, Any]) -> dict[str, Any]:
    """An answer with `changes`, which is `changed` before a task that only plans says that it has changed nothing. Not of a failed one."""
    return result if result.get("failed") or "changed" not in result else {**result, "changes": result["changed"]}


def believe(result: Mapping[str, Any], shape: Shape) -> dict[str, Any] | str:
    """Of a module's result the keys that it may have, or what is wrong with them. One that has failed may lack the others."""
    known = {**COMMON, **{key.removesuffix("?"): value for key, value in shape.items()}}
    taken = {key: result[key] for key in known if key in result}
    needed = {f"{key}?": value for key, value in COMMON.items()} | dict(shape)
    if result.get("failed") is True or result.get("exception") is not None:
        needed = {f"{key.removesuffix('?')}?": value for key, value in needed.items()}
    wrong = other_shape(needed, taken)
    if wrong is not None:
        return wrong
    extra = {key: result[key] for key in PARSED if isinstance(result.get(key), list)}
    error = result.get("exception")
    # A traceback, or what Ansible has made of it.
    extra |= {} if error is None or isinstance(error, (bool, int, float, list, Mapping)) else {"exception": error, "failed": True}
    silent = {"msg": "the module failed and gives no reason"} if {**taken, **extra}.get("failed") and "msg" not in taken else {}
    return {**taken, **extra, **silent}


def _refused(action: ActionBase, task_vars: Mapping[str, Any] | None, why: str) -> dict[str, Any]:
    """An answer that nothing is made of, with the name of the host that gave it."""
    host = action._task.delegate_to or (task_vars or {}).get("inventory_hostname") or "the host"
    cure = "check who else has root there, and the Python that Ansible uses there"
    return {"changed": False, "failed": True, "msg": f"{host} is not believed: its answer has another form: {why}; {cure}"}


class HostAction(ActionBase):  # type: ignore[misc]
    """Run the module of the task's name on the host, with the options of its operation that follow variables."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        operation = OPERATIONS.get(self._task.action.rpartition(".")[2])
        followed = read_variables(self, task_vars or {}, operation.variables if operation else {})
        return with_changes(ask(self, task_vars, arguments={**followed, **self._task.args}))


def _is_short(name: str, alias: str) -> bool:
    """Whether it is the other one without its domain. Not the opposite: the host would choose its domain."""
    return "." not in name and name == alias.partition(".")[0]


def _is_unique(alias: str, hosts: Collection[str]) -> bool:
    """Whether no two hosts of the inventory differ from it by their domains only. An address has no domain."""
    try:
        ipaddress.ip_address(alias)
    except ValueError:
        label = alias.partition(".")[0]
        return sum(host.lower().partition(".")[0] == label for host in hosts) <= 1
    return False
