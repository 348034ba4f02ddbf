# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host answers, before anything in the cluster or on another host is made of it.

Private to this collection, used on the controller only. Whoever is root on a host decides what its modules answer. So which node it is
must be what the inventory says, names and paths must look like names and paths, and it sets no variables.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError  # type: ignore[import-untyped]
from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]

_NODE = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NODE_LENGTH = 253
# Without what means something to a shell or to systemd, and without `..`.
_FOLDER = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_@.+:,=-]+)+")
_FOLDER_LENGTH = 1024
_QUOTED = 80


@dataclass(frozen=True)
class Wrong:
    """An answer that is not believed, in the words of a rejection."""

    found: str
    expected: str
    cure: str

    def __str__(self) -> str:
        return f"found {self.found}; expected {self.expected}; {self.cure}"


@dataclass(frozen=True)
class Known:
    """What is known of a host. address: its ansible_host; node: its gpushare_node_name; hosts: all names in the inventory.

    judged: the name that preflight has judged in this run. What there is not is "".
    """

    host: str
    address: str
    node: str
    hosts: Collection[str]
    judged: str = ""

    @classmethod
    def of(cls, action: ActionBase, task_vars: Mapping[str, Any], node: Any) -> Known:
        address = action._templar.template(task_vars.get("ansible_host") or "")
        judged = (task_vars.get("__preflight_host") or {}).get("node_name")
        hosts = list(task_vars.get("groups", {}).get("all", ()))
        return cls(str(task_vars["inventory_hostname"]), str(address), str(node or "").lower(), hosts, str(judged or ""))


def wrong_node(known: Known, name: Any) -> Wrong | None:
    """Why the host is not believed to be the node of this name; None if it is."""
    if not isinstance(name, str) or len(name) > _NODE_LENGTH or not _NODE.fullmatch(name):
        cure = "look at the arguments of its kubelet (--hostname-override), and at who else has root there"
        return Wrong(f"the node name {_short(name)}", f"a DNS name in lower case of at most {_NODE_LENGTH} characters", cure)
    if known.judged and name != known.judged:
        cure = "find out why the host has changed its mind within a run"
        return Wrong(f"a host that says it is the node {name!r}", f"{known.judged!r}, as it said to preflight", cure)
    if known.node:
        cure = f"correct gpushare_node_name of {known.host} in the inventory, or find out why the host says so"
        return None if name == known.node else Wrong(f"a host that says it is the node {name!r}", f"{known.node!r}", cure)
    aliases = [alias.lower().rstrip(".") for alias in (known.host, known.address) if alias]
    if any(name == alias or (_same_host(name, alias) and _is_unique(alias, known.hosts)) for alias in aliases):
        return None
    cure = f"if it is, say so in the inventory, for this host: gpushare_node_name: {name}"
    return Wrong(f"a host that says it is the node {name!r}", f"a node that is called as in the inventory: {' or '.join(aliases)}", cure)


def wrong_folder(what: str, path: Any) -> Wrong | None:
    """Why the host's answer is not believed to be a folder of this meaning; None if it is."""
    if isinstance(path, str) and len(path) <= _FOLDER_LENGTH and _FOLDER.fullmatch(path):
        return None
    return Wrong(f"{what} {_short(path)}", "an absolute path of letters, digits and _@.+:,=-", "look at kubelet's --root-dir on the host")


def ask(action: ActionBase, task_vars: dict[str, Any] | None, name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    """What the module answers on the host. It may set no facts: those win over the inventory's variables.

    Raises AnsibleConnectionFailure only. A wrong password of sudo, which Ansible raises as well, is a failed result.
    """
    try:
        result: dict[str, Any] = action._execute_module(module_name=name, module_args=arguments, task_vars=task_vars)
    except AnsibleConnectionFailure:
        raise
    except AnsibleError as error:
        # `failed_when` does not see what is raised.
        return {"changed": False, "failed": True, "msg": str(error)}
    facts = result.pop("ansible_facts", None)
    # Ansible's own, which it takes from no module: where it has found Python.
    found = {key: value for key, value in dict(facts or {}).items() if "discovered_interpreter_" in key}
    return {**result, "ansible_facts": found} if found else result


class HostAction(ActionBase):  # type: ignore[misc]
    """Run the module of the task's name on the host, and nothing else."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        return ask(self, task_vars)


def _same_host(name: str, alias: str) -> bool:
    """Whether one is the other with its domain."""
    return ("." in name) != ("." in alias) and name.partition(".")[0] == alias.partition(".")[0]


def _is_unique(alias: str, hosts: Collection[str]) -> bool:
    """Whether no two hosts of the inventory differ from it by their domains only. An address has no domain."""
    try:
        ipaddress.ip_address(alias)
    except ValueError:
        label = alias.partition(".")[0]
        return sum(host.lower().partition(".")[0] == label for host in hosts) <= 1
    return False


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= _QUOTED else f"{words[:_QUOTED]}…"
