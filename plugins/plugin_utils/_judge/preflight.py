# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put what was found on all hosts together, and stop the run if there is a reason to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from typing import Any

from ansible.errors import AnsibleError  # type: ignore[import-untyped]
from ansible.release import __version__ as ansible_version  # type: ignore[import-untyped]

from ...module_utils._facts.system import Python
from ...module_utils._formats.finding import Finding, HostFindings
from .._bundle.contents import MACHINES, PYTHONS
from .._bundle.lock import Target
from .._preflight import dra, gpu_operator, kubernetes_ends, looked_up
from .._preflight.bundle import Needs, checked
from .._preflight.bundle import judge as judge_bundle
from .._preflight.host import KUBERNETES, chosen_python, packages_label
from .._preflight.reasons import (
    Answer,
    Judgement,
    accept,
    judge_authorities,
    judge_cluster,
    judge_controller,
    judge_inventory,
    no_plan,
    not_gathered,
    unreachable,
)
from .._preflight.variables import COLLECTION, compared, of_type, scattered, shared, variables
from .._subjects.rows import checks, read_plans
from .judge import Judge


class PreflightJudge(Judge):
    """Reaches no host."""

    options = {
        "hosts": {"type": "list", "elements": "str", "required": True},
        "result": {"type": "str", "required": True},
        "control_plane_group": {"type": "str", "required": True},
        "gpu_group": {"type": "str", "required": True},
        "answers": {"type": "list", "elements": "dict"},
        "accept": {"type": "list", "elements": "str", "default": []},
        "report": {"type": "str", "default": ""},
    }

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        known = self._known
        judgements = [self._judgement(known, host, arguments["result"]) for host in arguments["hosts"]]
        groups = {name: list(hosts) for name, hosts in known["groups"].items()}
        facts = {host: (known["hostvars"][host].get(arguments["result"]) or {}).get("facts") or {} for host in arguments["hosts"]}
        machines = {host: str((found.get("ground") or {}).get("machine_id") or "")[:64] for host, found in facts.items()}
        of_inventory = [*judge_controller(ansible_version), *looked_up.judge(date.today())]
        of_inventory += judge_inventory(judgements, groups, arguments["control_plane_group"], arguments["gpu_group"], machines)
        of_inventory += self._differing_settings(
            known, groups.get(arguments["control_plane_group"], []), groups.get(arguments["gpu_group"], [])
        )
        answers = [Answer.of(answer) for answer in arguments["answers"] or ()]
        if arguments["answers"] is not None:
            without_policies = bool(self._of_cluster(known, arguments["hosts"], "gpushare_without_policies"))
            chosen = ("gpushare_overuse", "gpushare_unstartable")
            evicts = [name for name in chosen if self._of_cluster(known, arguments["hosts"], name) == "evict"]
            pods = self._of_cluster(known, arguments["hosts"], "gpushare_deploy_mode") == KUBERNETES
            of_inventory += judge_cluster(judgements, answers, without_policies, evicts, pods)
            mode = str(self._of_cluster(known, arguments["hosts"], "gpushare_gpu_operator"))
            gpu_hosts = groups.get(arguments["gpu_group"], ())
            gpu_nodes = [judgement.node_name for judgement in judgements if judgement.node_name and judgement.host in gpu_hosts]
            of_inventory += self._operator(arguments["answers"], gpu_nodes, mode, judgements, pods)
            target = str(self._of_cluster(known, arguments["hosts"], "gpushare_target_kubernetes"))
            of_inventory += self._kubeadm(arguments["answers"], target)
        believed = {answer.plane: answer.authorities for answer in answers}
        believed |= {host: [str(authority)[:64] for authority in (found.get("authorities") or [])[:8]] for host, found in facts.items()}
        of_inventory += judge_authorities(believed)
        of_bundle = self._bundle(known, arguments)
        of_inventory += of_bundle
        for check, name in checks().items():
            found = ((host, read_plans(known["hostvars"][host], arguments["result"])(name) or {}) for host in arguments["hosts"])
            # It has changed nothing, and failed for no host: that is said here.
            unplanned = [no_plan(host, check, str(plan["msg"])) for host, plan in found if "msg" in plan and not plan.get("skipped")]
            spoiled = check == "packages" and any(not reason.host for reason in of_bundle)
            of_inventory += [replace(finding, because="bundle") for finding in unplanned] if spoiled else unplanned
        of_hosts = [reason for judgement in judgements for reason in judgement.reasons]
        return self.verdict(accept([*of_inventory, *of_hosts], arguments["accept"]), arguments["report"])

    @staticmethod
    def _of_cluster(task_vars: dict[str, Any], hosts: list[str], name: str) -> Any:
        """The value of a variable that is the same on every host; its default where it is not set, or cannot be evaluated."""
        spec = variables()[name].spec
        for host in hosts:
            with contextlib.suppress(AnsibleError):
                if name in task_vars["hostvars"][host]:
                    value, wrong = of_type(name, task_vars["hostvars"][host][name], spec)
                    return spec["default"] if wrong else value
        return spec["default"]

    def _bundle(self, task_vars: dict[str, Any], arguments: dict[str, Any]) -> list[Finding]:
        """Whether the bundle is good, and all that it lacks for these hosts."""
        path = self._of_cluster(task_vars, arguments["hosts"], "gpushare_bundle")
        if not path:
            return []
        contents = checked(path, self._of_cluster(task_vars, arguments["hosts"], "gpushare_bundle_key"), COLLECTION)
        if isinstance(contents, Finding):
            return [contents]
        return judge_bundle(contents, [self._needs(task_vars, host, arguments) for host in arguments["hosts"]], COLLECTION)

    def _needs(self, task_vars: dict[str, Any], host: str, arguments: dict[str, Any]) -> Needs:
        theirs = task_vars["hostvars"][host]
        facts = (theirs.get(arguments["result"]) or {}).get("facts") or {}
        system = facts.get("system")
        if not system:
            return Needs(host, None)
        wanted = str(self._of_cluster(task_vars, [host], "gpushare_python"))
        python = chosen_python([Python(**found) for found in facts.get("pythons") or ()], wanted)
        machine = str(system["architecture"])
        # Other versions and architectures are reasons of their own. Pods need no Python of their host.
        known = python is not None and python.version in PYTHONS and machine in MACHINES
        known = known and self._of_cluster(task_vars, [host], "gpushare_deploy_mode") != KUBERNETES
        plan = theirs.get(checks()["driver"]) or {}
        driver = bool(plan.get("due")) and bool((plan.get("plan") or {}).get("packages"))
        label = packages_label(str(system["id"]), system["like"], str(system["version"]))
        return Needs(host, Target(python.version, machine) if python and known else None, label, machine, driver)

    @staticmethod
    def _operator(
        answers: list[dict[str, Any]], gpu_nodes: list[str], mode: str, judgements: Iterable[Judgement], pods: bool
    ) -> list[Finding]:
        """Of the first control plane that has answered. pods: whether the daemons are some, with a DRA driver of ours."""
        asked = next((answer for answer in answers if "gpu_operator" in answer), None)
        if asked is None:
            return []
        found = HostFindings(str(asked["item"]))
        gpu_operator.judge(found, asked["gpu_operator"], gpu_nodes, mode)
        dra.judge(found, dra.of_others(asked["dra"]) if pods else asked["dra"], asked["gpu_operator"], gpu_nodes, dra.said(judgements))
        return found.list

    @staticmethod
    def _kubeadm(answers: list[dict[str, Any]], target: str) -> list[Finding]:
        """Of the first control plane that has answered."""
        asked = next((answer for answer in answers if "kubeadm" in answer), None)
        if asked is None:
            return []
        found = HostFindings(str(asked["item"]))
        kubernetes_ends.judge_kubeadm(found, str(asked["kubeadm"]["version"]), asked["kubeadm"]["feature_gates"], target)
        return found.list

    def _differing_settings(self, task_vars: dict[str, Any], planes: list[str], gpu_nodes: list[str]) -> list[Finding]:
        values: dict[str, dict[str, Any]] = {}
        names = compared()
        for host in {*planes, *gpu_nodes}:
            theirs = task_vars["hostvars"][host]
            values[host] = {}
            for name in names:
                # A value that cannot be evaluated is a reason of its host.
                with contextlib.suppress(AnsibleError):
                    if name in theirs:
                        values[host][name] = theirs[name]
        return scattered(values, planes, gpu_nodes) + shared(values)

    @staticmethod
    def _judgement(task_vars: dict[str, Any], host: str, name: str) -> Judgement:
        found = task_vars["hostvars"][host].get(name)
        if found is not None and "reasons" in found:
            return Judgement.from_dict(found)
        why = str((found or {}).get("msg", f"it has no {name}"))
        return unreachable(host, why) if "timedout" in (found or {}) else not_gathered(host, why)
