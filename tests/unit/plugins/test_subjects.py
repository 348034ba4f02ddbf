# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The table of subjects as playbooks walk it: which roles plan on a host, and that each role does what its row says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.subjects import DAEMONS, FORESEEN, OWNERS, brought, planned
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.subjects import plans as all_plans
from ansible_collections.gpushare.kubernetes.plugins.module_utils._operations.table import OPERATIONS
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import variables as variables_of_roles
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._subjects.rows import (
    answers,
    asked,
    batch,
    followers,
    foreseen,
    is_done,
    plans,
    register,
    restored,
    strategy,
    together,
)

ROLES = Path(__file__).resolve().parents[3] / "roles"
KUBELET = {"running": True, "runtime": "containerd", "version": "v1.36.3"}
FACTS: dict[str, Any] = {"kubelet": KUBELET, "distribution": {"name": "kubeadm"}, "control_plane": {"present": True}}
SETTINGS = {
    "gpushare_control_plane_group": "planes",
    "gpushare_gpu_group": "gpus",
    "gpushare_deploy_mode": "systemd",
    "gpushare_python": "",
    **dict.fromkeys(("gpushare_prerequisites", "gpushare_driver_state", "gpushare_toolkit_state"), "present"),
}
GROUPS = {"planes": ["cp1", "both"], "gpus": ["gpu1", "both"]}
MANAGED = dict.fromkeys(("gpushare_prerequisites", "gpushare_driver_state", "gpushare_toolkit_state"), "managed")
ON_GPU_NODE = ["nvidia_container_toolkit", "container_runtime"]
LATER = ["python_environment", "device_plugin.look"]
ALONE = ["nvidia_container_toolkit:packages", "nvidia_container_toolkit:configure", "container_runtime:configure"]
BEFORE_KUBELET = ["python_environment:packages", "nvidia_driver:plan"]


def planned_on(host: str, facts: dict[str, Any], settings: dict[str, str]) -> list[str]:
    """What a host plans while its facts are gathered, then the entry points that plan alone."""
    setting = {**SETTINGS, **settings}.get
    found = [name for name in together(GROUPS, host, setting) if planned(name, facts)]
    return found + [f"{plan['role']}:{plan['tasks']}" for plan in plans(facts, GROUPS, host, setting)]


@pytest.mark.parametrize(
    ("host", "facts", "settings", "wanted"),
    [
        ("gpu1", {}, {}, [*ON_GPU_NODE, *LATER]),
        ("cp1", {}, {}, ["python_environment", "scheduler:configure"]),
        ("both", {}, {}, [*ON_GPU_NODE, *LATER, "scheduler:configure"]),
        # Toolkit and container runtime after the packages, by which they are judged.
        ("gpu1", {}, MANAGED, [*LATER, *BEFORE_KUBELET, *ALONE]),
        (
            "gpu1",
            {},
            {"gpushare_toolkit_state": "unmanaged"},
            ["container_runtime.strategy", ON_GPU_NODE[1], *LATER, "nvidia_container_toolkit:configure"],
        ),
        ("gpu1", {"kubelet": {**KUBELET, "version": "v1.25.16"}}, {}, [*ON_GPU_NODE, *LATER, "kubelet:gates"]),
        ("gpu1", {"kubelet": {**KUBELET, "version": None}}, {}, [*ON_GPU_NODE, *LATER, "kubelet:gates"]),
        ("gpu1", {"kubelet": {**KUBELET, "version": "v1.26.0"}}, {}, [*ON_GPU_NODE, *LATER]),
        ("gpu1", {"kubelet": {**KUBELET, "runtime": None}}, {}, LATER[:1]),
        ("gpu1", {"kubelet": {**KUBELET, "runtime": "unknown"}}, {}, LATER[:1]),
        # A host that was read, with a kubelet that does not run.
        ("gpu1", {"kubelet": {}}, MANAGED, [*LATER[:1], *BEFORE_KUBELET]),
        ("gpu1", {"distribution": {"name": "k3s"}}, MANAGED, [*LATER[:1], *BEFORE_KUBELET]),
        ("cp1", {"control_plane": {"present": False}}, {}, LATER[:1]),
        ("both", {}, {"gpushare_deploy_mode": "kubernetes"}, ON_GPU_NODE),
        ("cp1", {}, {**MANAGED, "gpushare_python": "/usr/bin/python3.12"}, [*LATER[:1], "scheduler:configure"]),
    ],
)
def test_what_plans_on_a_host(host: str, facts: dict[str, Any], settings: dict[str, str], wanted: list[str]) -> None:
    assert planned_on(host, {**FACTS, **facts}, settings) == wanted


def test_nothing_plans_on_a_host_that_was_not_read() -> None:
    assert planned_on("both", {}, MANAGED) == []


ENVIRONMENT = {"root": "/opt/gpushare", "link": False, "artifact": {"version": "1", "wheel_sha256": "a", "requirements_sha256": "b"}}
LOOK = {"asked": "auto", "required": True, "token_path": "/t", "kubeconfig_path": "/k"}
STRATEGY = {"changed": False, "strategy": "cdi", "now": "cdi"}


def known(**more: Any) -> dict[str, Any]:
    """The variables of a host that needs nothing."""
    answers = {"nvidia_container_toolkit": {**STRATEGY, "changes": False}, "python_environment": {"changed": False, "changes": False}}
    answers["device_plugin.look"] = STRATEGY
    return {"__preflight_host": {"answers": answers, "asked": {"python_environment": ENVIRONMENT, "device_plugin.look": LOOK}}, **more}


def test_what_a_host_has_said_to_preflight_it_is_not_asked_again() -> None:
    # As a task passes it: a text, other options of the module, and what follows the toolkit's choice.
    assert foreseen(known(), "python_environment", {**ENVIRONMENT, "link": "False", "source": "/s"}) is not None
    assert foreseen(known(), "device_plugin.look", {**LOOK, "what": "strategy", "brings_spec": True}) == STRATEGY


@pytest.mark.parametrize(
    ("name", "arguments", "more", "answer"),
    [
        ("python_environment", {**ENVIRONMENT, "link": True}, {}, {}),
        ("python_environment", {**ENVIRONMENT, "artifact": {**ENVIRONMENT["artifact"], "version": "2"}}, {}, {}),  # type: ignore[dict-item]
        ("python_environment", ENVIRONMENT, {}, {"changes": True}),
        ("python_environment", ENVIRONMENT, {}, {"failed": True, "msg": "no Python"}),
        ("device_plugin.look", {**LOOK, "brings_spec": False}, {}, {}),
        ("device_plugin.look", {**LOOK, "brings_spec": True}, {"__container_runtime": {"changed": True}}, {}),
        # Another strategy than that of the device plugin which runs: a pod may have got a GPU by that since.
        ("device_plugin.look", {**LOOK, "brings_spec": True}, {}, {"now": "envvar"}),
    ],
)
def test_a_host_is_asked_again_where_its_answer_may_be_another(
    name: str, arguments: dict[str, Any], more: dict[str, Any], answer: dict[str, Any]
) -> None:
    variables = known(**more)
    variables["__preflight_host"]["answers"][name] |= answer
    assert foreseen(variables, name, arguments) is None


def test_each_plan_of_a_host_has_its_operation_and_its_arguments() -> None:
    defaults = {name: variable.spec.get("default") for name, variable in variables_of_roles().items()}
    for name, _role, _owner, plan in all_plans():
        if plan.operation:
            operation = OPERATIONS[plan.operation]
            result = ArgumentSpecValidator(operation.arguments).validate({**asked(name, defaults), **operation.follows({})})
            assert result.error_messages == [], name


def test_what_is_restored_is_reported_in_the_order_of_uninstall() -> None:
    answered: dict[str, Any] = {
        "__kubelet": {"files": ["/k"], "notes": ["n"]},
        "__scheduler": {"diff": [{"before_header": "/s"}], "notes": []},
        "__container_runtime": {"files": ["/c"], "diff": [{"before_header": "no"}]},
    }
    assert restored(answered.get) == {"files": ["/s", "/c", "/k"], "notes": ["n"]}
    assert restored({}.get) == {"files": [], "notes": []}


def test_the_device_strategy_is_that_of_the_first_role_that_has_chosen() -> None:
    own, other = {"strategy": "envvar"}, {"strategy": "cdi", "mps": []}
    assert strategy({"__container_runtime_strategy": own, "__nvidia_container_toolkit": other}.get) == other
    # With its state unmanaged, the toolkit has none.
    left: dict[str, Any] = {"__container_runtime_strategy": own, "__nvidia_container_toolkit": {"skipped": True}}
    assert strategy(left.get) == own
    assert strategy(left.get, besides="container_runtime") == strategy({}.get) == {}


@pytest.mark.parametrize(
    ("answer", "done"),
    [
        ({"changed": True}, True),
        ({"changed": False}, True),
        ({"changed": False, "failed": True, "msg": "no Python"}, False),
        ({"changed": False, "unreachable": True, "msg": "no route"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_role_is_done_on_a_host_that_has_answered_without_an_error(answer: dict[str, Any] | None, done: bool) -> None:
    assert is_done({"__python_environment": answer}.get, "python_environment") == done


def text(role: str) -> str:
    return "".join(path.read_text() for path in sorted((ROLES / role / "tasks").glob("*.yml")))


def test_each_row_names_what_its_role_has() -> None:
    """A row whose role answers under another name would never be due, and no run would say so."""
    for role, owner in brought().items():
        steps = [owner.step.partition(":")[2]] if owner.step.startswith(f"{role}:") else []
        for tasks in filter(None, [owner.install, *steps, *(plan.tasks for plan in owner.plans)]):
            assert (ROLES / f"{role}/tasks/{tasks}.yml").is_file(), f"{role}:{tasks}"
        for plan in owner.plans:
            entry = yaml.safe_load((ROLES / f"{role}/tasks/{plan.tasks}.yml").read_text())
            own = register(f"{role}.{plan.part}" if plan.part else role)
            assert own in [task.get("register") for task in entry], f"{role}:{plan.tasks} registers no {own}"
    for role, owner in FORESEEN.items():
        assert [f"{role}/tasks/{plan.tasks}" for plan in owner.plans if not (ROLES / f"{role}/tasks/{plan.tasks}.yml").is_file()] == []
    for name in answers():
        assert f"register: {register(name)}\n" in text(name.partition(".")[0]), name
    assert len({owner.order for owner in brought().values()}) == len(brought())


def test_each_role_that_plans_or_changes_hosts_has_its_row() -> None:
    """Without one, preflight, the batches, verify and uninstall pass over it without a word."""
    planning = {path.name for path in ROLES.iterdir() if "__gpushare_plan_only" in text(path.name)}
    assert planning - {"preflight"} == {role for role, owner in brought().items() if owner.plans}
    assert {daemon.role for daemon in DAEMONS if daemon.role} <= {path.name for path in ROLES.iterdir()}
    settings = {name for owner in OWNERS.values() for plan in owner.plans for name, _value in plan.settings}
    assert settings <= set(yaml.safe_load((ROLES / "preflight/defaults/main.yml").read_text()))


def test_no_register_of_a_role_is_named_elsewhere() -> None:
    whole = ROLES.parent
    files = [path for folder in ("roles", "playbooks") for path in (whole / folder).rglob("*") if path.suffix in (".yml", ".j2")]
    for name in answers():
        own = ROLES / name.partition(".")[0]
        found = [path for path in files if own not in path.parents and re.search(rf"\b{register(name)}\b", path.read_text())]
        assert found == [], register(name)


def test_what_follows_a_change_of_the_driver() -> None:
    assert followers({"gpushare_toolkit_state": "managed"}.get) == [{"role": "nvidia_container_toolkit", "tasks": "main"}]
    assert followers({"gpushare_toolkit_state": "present"}.get) == followers({}.get) == []


def test_a_batch_has_all_roles_or_none_so_that_its_hosts_do_not_differ() -> None:
    """Also the driver's, which does nothing where the inventory does not want it: Ansible orders by first appearance on any host."""
    every = ["nvidia_driver", "nvidia_container_toolkit", "container_runtime"]
    assert [row["role"] for row in batch({}.get, {}.get, always=False)] == every
    assert [row["role"] for row in batch({}.get, {"gpushare_driver_state": "managed"}.get, always=False)] == every


@pytest.mark.parametrize(("state", "roles"), [("present", 0), ("managed", 3), ("absent", 3)])
def test_a_driver_that_is_managed_or_removed_is_always_due(state: str, roles: int) -> None:
    """Its plan is about the version; services, options and the reboot are the role's."""
    idle = {"changed": False, "changes": False}
    answered = {"__nvidia_driver": idle, "__nvidia_container_toolkit": idle, "__container_runtime": idle}
    assert len(batch(answered.get, {"gpushare_driver_state": state}.get, always=False)) == roles
