# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations that a host can be asked to plan together, in one execution of a module: by the name of the module that each is alone,
with its `what`.

An operation is the options of its module and a function, which gets what it needs of an AnsibleModule.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, NoReturn

from .._change.subjects import planned
from .._facts.node import DescribedNode
from .._formats.answers import ModuleAnswer, answer_of
from .._formats.failure import Failure
from . import container_runtime, device_strategy, environment, toolkit

#: The arguments by an operation's options, with their defaults. WrongArguments.
Validate = Callable[[Mapping[str, Any], Mapping[str, Any]], Dict[str, Any]]
_TOOLKIT, _STRATEGY = "nvidia_container_toolkit", "container_runtime.strategy"


@dataclass(frozen=True)
class Operation:
    """arguments: its options. follows: those that earlier answers decide, which are by the names of subjects. variables: those that follow
    variables of the inventory.
    """

    arguments: Mapping[str, Mapping[str, Any]]
    answer: Callable[[Any], ModuleAnswer]
    follows: Callable[[Mapping[str, Mapping[str, Any]]], Dict[str, Any]] = lambda answers: {}
    variables: Mapping[str, str] = field(default_factory=dict)


def _chosen(answers: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """The choice of the toolkit, or of the container runtime where it leaves the toolkit alone."""
    found = (answers.get(name) or {} for name in (_TOOLKIT, _STRATEGY))
    return {"chosen": next(({key: choice[key] for key in ("strategy", "cdi")} for choice in found if "strategy" in choice), {})}


def _brought(answers: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Of a device plugin: a CDI spec that the toolkit writes once the driver runs is waited for."""
    return {"brings_spec": (answers.get(_TOOLKIT) or {}).get("strategy") == "cdi"}


OPERATIONS: Mapping[str, Operation] = {
    "gpushare_toolkit": Operation(toolkit.ARGUMENTS, toolkit.answer, variables=toolkit.VARIABLES),
    "container_runtime": Operation(container_runtime.ARGUMENTS, container_runtime.answer, _chosen, container_runtime.VARIABLES),
    "gpushare_runtime_env": Operation(environment.ARGUMENTS, environment.answer),
    "gpushare_sharing strategy": Operation(device_strategy.ARGUMENTS, device_strategy.answer, _brought),
}


@dataclass(frozen=True)
class PlansAnswer(ModuleAnswer):
    """The answer of gpushare_sharing about plans. answers: by subject, each as its own module answers."""

    facts: DescribedNode
    answers: Dict[str, Any]


class WrongArguments(Failure):
    """Arguments that an operation does not have: what is wrong with them."""


@dataclass
class _Planning:
    """An AnsibleModule in check mode, as far as operations use one. It keeps the answer of an operation that fails."""

    params: Dict[str, Any]
    run_command: Any
    check_mode: bool = True
    warnings: List[str] = field(default_factory=list)
    failed: Dict[str, Any] = field(default_factory=dict)

    def warn(self, warning: str) -> None:
        self.warnings.append(warning)

    def fail_json(self, **answer: Any) -> NoReturn:
        self.failed = {"changed": False, "failed": True, **answer}
        raise SystemExit(1)


def plan(asked: List[Mapping[str, Any]], facts: Mapping[str, Any], validate: Validate, run_command: Any) -> Dict[str, Dict[str, Any]]:
    """By the name of each subject, what its operation would change; none of a subject that the host is not fit for.

    asked: each with the subject's `name` and its `arguments`; facts: of the host.
    """
    answers: Dict[str, Dict[str, Any]] = {}
    for question in asked:
        name, row = question["name"], planned(question["name"], facts)
        if row is not None:
            operation = OPERATIONS[row.operation]
            arguments = {**question["arguments"], **operation.follows(answers)}
            answers[name] = _answer(operation, arguments, validate, run_command)
    return answers


def _answer(operation: Operation, arguments: Dict[str, Any], validate: Validate, run_command: Any) -> Dict[str, Any]:
    try:
        module = _Planning(validate(operation.arguments, arguments), run_command)
    except WrongArguments as error:
        return {"changed": False, "failed": True, "msg": str(error)}
    try:
        answer: Dict[str, Any] = answer_of(operation.answer(module))
        return dict(answer, warnings=module.warnings) if module.warnings else answer
    except SystemExit:
        return module.failed
    except Exception:  # A fault of one operation must not hide the facts and the other answers.
        return {"changed": False, "failed": True, "msg": traceback.format_exc().strip()}
