# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Plans that a host makes together: one operation's fault is its own, and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.answering import changing
from ansible_collections.gpushare.kubernetes.plugins.module_utils._operations import table
from ansible_collections.gpushare.kubernetes.plugins.module_utils._operations.table import Operation, WrongArguments, plan

FACTS: dict[str, Any] = {"kubelet": {"running": True, "runtime": "containerd"}, "distribution": {"name": "kubeadm"}}
NAMES = ("nvidia_container_toolkit", "container_runtime", "python_environment")
TOOLKIT, RUNTIME, ENVIRONMENT = ({"name": name, "arguments": {}} for name in NAMES)


def validate(options: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    if "bad" in arguments:
        raise WrongArguments("no such option: bad")
    return dict(arguments)


def made(monkeypatch: pytest.MonkeyPatch, toolkit: Any, asked: list[Mapping[str, Any]], facts: Any = FACTS) -> dict[str, dict[str, Any]]:
    """The answers, where the toolkit's operation is this one and the others tell their options."""

    def told(module: Any) -> dict[str, Any]:
        module.warn(f"check mode: {module.check_mode}")
        return {"changed": False, **module.params}

    others = {name: Operation({}, told, operation.follows) for name, operation in table.OPERATIONS.items()}
    monkeypatch.setattr(table, "OPERATIONS", {**others, "gpushare_toolkit": Operation({}, toolkit)})
    return plan(asked, facts, validate, None)


def test_a_later_plan_has_what_an_earlier_one_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"strategy": "cdi", "cdi": {"off": True}}
    answers = made(monkeypatch, lambda module: {"changed": True, "files": ["/c"], **chosen}, [TOOLKIT, RUNTIME])
    assert answers["nvidia_container_toolkit"]["changed"] is True
    assert answers["container_runtime"] == {"changed": False, "chosen": chosen, "warnings": ["check mode: True"]}


def rejecting(module: Any) -> dict[str, Any]:
    with changing(module, always={"strategy": "envvar", "cdi": {}}):
        raise Rejected("it is too old")


def broken(module: Any) -> dict[str, Any]:
    raise KeyError("x")


@pytest.mark.parametrize(("toolkit", "said"), [(rejecting, "it is too old"), (broken, "KeyError: 'x'")])
def test_the_fault_of_one_plan_leaves_the_others(monkeypatch: pytest.MonkeyPatch, toolkit: Any, said: str) -> None:
    answers = made(monkeypatch, toolkit, [TOOLKIT, RUNTIME, ENVIRONMENT])
    failed = answers["nvidia_container_toolkit"]
    assert (failed["changed"], failed["failed"], failed["msg"].splitlines()[-1]) == (False, True, said)
    # What it has chosen counts all the same.
    assert answers["container_runtime"]["chosen"] == ({"strategy": "envvar", "cdi": {}} if toolkit is rejecting else {})
    assert answers["python_environment"]["changed"] is False


def test_options_that_an_operation_does_not_have_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    (answer,) = made(monkeypatch, broken, [{"name": "python_environment", "arguments": {"bad": 1}}]).values()
    assert answer == {"changed": False, "failed": True, "msg": "no such option: bad"}


def test_a_host_plans_what_it_is_fit_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(made(monkeypatch, broken, [TOOLKIT, RUNTIME, ENVIRONMENT], {**FACTS, "kubelet": {}})) == ["python_environment"]
