# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather the facts of one host in one call and judge them, with its variables, on the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import date
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError  # type: ignore[import-untyped]

from ...module_utils._facts.node import NodeFacts
from ...module_utils._formats.failure import Failure
from ...module_utils._formats.finding import Finding
from .._answers import RESULTS, Known, ask, taken, with_changes, wrong_folder, wrong_node
from .._preflight import reasons as preflight_reasons
from .._preflight import variables as preflight_variables
from .._preflight.gpus import Expected
from .._preflight.host import WantedHost, judge
from .._preflight.reasons import Judgement
from .._preflight.variables import COLLECTION, of_type, variables
from .._settings.rows import followed
from .._subjects.rows import asked, operation_of
from .._wheel import SOURCE, artifact
from .judge import Judge

_SUBSETS = {True: ["system", "gpus", "runtimes", "managers"], False: ["system"]}
_UID_SHOWN = 20
ENVIRONMENT = "python_environment"


class HostJudge(Judge):
    """Never fails because of the host: whatever is wrong with it, even that it is gone, is a reason in the result."""

    options = {
        "gpu_node": {"type": "bool", "required": True},
        "control_plane": {"type": "bool", "required": True},
        "install_dir": {"type": "path", "default": "/opt/gpushare"},
        "python": {"type": "str", "default": ""},
        "kubectl": {"type": "str", "default": "kubectl"},
        "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
        "scheduler_manifest": {"type": "path", "default": "/etc/kubernetes/manifests/kube-scheduler.yaml"},
        "target_kubernetes": {"type": "str", "default": ""},
        "take_over": {"type": "bool", "default": False},
        "plans": {"type": "list", "elements": "str", "default": []},
        "root": {"type": "path", "default": "/"},
    }

    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        known = self._known
        host = str(known["inventory_hostname"])
        values, reasons = self._variables(host, known)
        settings = {name: values.get(name, variable.spec.get("default")) for name, variable in variables().items()}
        asked = self._asked(arguments.pop("plans"), settings, arguments["control_plane"])
        judgement, told = self._host(host, {**self._judged(settings), **arguments}, known, asked)
        judgement = replace(judgement, reasons=(*judgement.reasons, *reasons))
        answers = self._answers(asked, told.get("answers", {}))
        warnings = [warning for answer in answers.values() for warning in answer.pop("warnings", ())]
        plans = {"answers": answers, "asked": asked, "warnings": warnings}
        return {"changed": False, **judgement.as_dict(), "facts": told.get("facts", {}), **plans}

    @staticmethod
    def _asked(plans: list[str], settings: dict[str, Any], control_plane: bool) -> dict[str, dict[str, Any]]:
        """The arguments of each plan, by its name."""
        found = {name: asked(name, settings) for name in plans}
        if ENVIRONMENT in found:
            try:
                found[ENVIRONMENT]["artifact"] = artifact(COLLECTION / SOURCE, "kubectl" if control_plane else "")
            except (Failure, OSError):
                # The role says so, before it changes a host.
                del found[ENVIRONMENT]
        return found

    def _answers(self, asked: dict[str, dict[str, Any]], answers: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The plans of the host as they are believed. Nothing has changed by them."""
        found = {}
        for name in (name for name in asked if isinstance(answers.get(name), Mapping)):
            operation = operation_of(name)
            answer = with_changes(taken(self._action, self._known, operation, answers[name], RESULTS[operation]))
            found[name] = {**answer, "changed": False}
        return found

    def _host(
        self, host: str, arguments: dict[str, Any], task_vars: dict[str, Any], asked: dict[str, dict[str, Any]]
    ) -> tuple[Judgement, dict[str, Any]]:
        """The judgement, and the answer of the host where it is believed."""
        plans = [{"name": name, "arguments": given} for name, given in asked.items()]
        options = {"gather": _SUBSETS[arguments["gpu_node"]], "install_dir": arguments["install_dir"], "root": arguments["root"]}
        options |= {"what": "plans", "plans": plans}
        try:
            result = ask(self._action, self._known, "gpushare.kubernetes.gpushare_sharing", options)
        except AnsibleConnectionFailure as error:
            return preflight_reasons.unreachable(host, _line(error)), {}
        if result.get("failed") or "facts" not in result:
            become = self._action._connection.become if preflight_reasons.is_silent(result) else None
            return preflight_reasons.not_gathered(host, preflight_reasons.failure_of(result), become.name if become else ""), {}
        user = result["facts"]["effective_uid"]
        if user != 0 and arguments["root"] == "/":
            return preflight_reasons.not_root(host, f"modules that run as user id {str(user)[:_UID_SHOWN]}"), {}
        facts = NodeFacts.from_dict(result["facts"])
        known = Known.of(self._action, task_vars)
        wrong = wrong_node(known, facts.kubelet.node_name) or wrong_folder("kubelet's root folder", facts.kubelet.root)
        if wrong is not None and facts.kubelet.running:
            return Judgement(host, None, (replace(wrong, host=host),)), {}
        judgement = judge(host, facts, WantedHost(**{field.name: arguments[field.name] for field in fields(WantedHost)}))
        # Without a kubelet that runs no host is to be that node: what the host lacks is what counts.
        return judgement if wrong is None else replace(judgement, node_name=None), {**result, "facts": facts.as_dict()}

    @staticmethod
    def _judged(known: dict[str, Any]) -> dict[str, Any]:
        """The variables that the host is judged by. The role has none of them: a bad value would be its only reason."""
        return {**followed(WantedHost, known), "expected": Expected(**followed(Expected, known)), "today": date.today().isoformat()}

    def _variables(self, host: str, task_vars: dict[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
        """The variables that this host has, from wherever they come, and what is wrong with them."""
        known = variables()
        given = [name for name in task_vars if name.startswith(preflight_variables.PREFIX)]
        reasons = preflight_variables.unknown(host, given, known)
        values = {}
        for name in given:
            if name not in known:
                continue
            try:
                value = self._action._templar.template(task_vars[name])
            except AnsibleError as error:
                reasons.append(_of_variable(host, name, _line(error), "a value that can be evaluated"))
                continue
            values[name], wrong = of_type(name, value, known[name].spec)
            if wrong:
                kind = known[name].spec.get("type", "str")
                shown = preflight_variables.shown(name, value, known[name].spec)
                words = "" if preflight_variables.is_secret(name, known[name].spec) else f" ({wrong})"
                reasons.append(_of_variable(host, name, f"{shown}{words}", f"a value of type {kind}, see docs/operate/variables.md"))
                del values[name]
        reasons += preflight_variables.impossible(host, values, {name: known[name].spec for name in values})
        return values, reasons + preflight_variables.together(host, values)


def _of_variable(host: str, name: str, found: str, expected: str) -> Finding:
    return Finding("variables", f"{name}: {found}", expected, f"correct {name} in the inventory", host=host)


def _line(words: object) -> str:
    return " ".join(str(words).split())[-300:]
