# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The table of subjects as playbooks walk it: which roles plan on a host, and that each role does what its row says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.subjects import DAEMONS, OWNERS, brought
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._subjects.rows import (
    answers,
    batch,
    followers,
    plans,
    register,
    restored,
    strategy,
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
ON_GPU_NODE = ["nvidia_container_toolkit:configure", "container_runtime:configure"]


@pytest.mark.parametrize(
    ("host", "facts", "settings", "wanted"),
    [
        ("gpu1", {}, {}, ON_GPU_NODE),
        ("cp1", {}, {}, ["scheduler:configure"]),
        ("both", {}, {}, [*ON_GPU_NODE, "scheduler:configure"]),
        ("gpu1", {}, MANAGED, ["python_environment:packages", "nvidia_driver:plan", "nvidia_container_toolkit:packages", *ON_GPU_NODE]),
        ("gpu1", {}, {"gpushare_toolkit_state": "unmanaged"}, [ON_GPU_NODE[0], "container_runtime:strategy", ON_GPU_NODE[1]]),
        ("gpu1", {"kubelet": {**KUBELET, "version": "v1.25.16"}}, {}, ["kubelet:gates", *ON_GPU_NODE]),
        ("gpu1", {"kubelet": {**KUBELET, "version": None}}, {}, ["kubelet:gates", *ON_GPU_NODE]),
        ("gpu1", {"kubelet": {**KUBELET, "version": "v1.26.0"}}, {}, ON_GPU_NODE),
        ("gpu1", {"kubelet": {**KUBELET, "runtime": None}}, {}, []),
        ("gpu1", {"kubelet": {**KUBELET, "runtime": "unknown"}}, {}, []),
        # A host that was read, with a kubelet that does not run.
        ("gpu1", {"kubelet": {}}, MANAGED, ["python_environment:packages", "nvidia_driver:plan"]),
        ("gpu1", {"distribution": {"name": "k3s"}}, MANAGED, ["python_environment:packages", "nvidia_driver:plan"]),
        ("cp1", {"control_plane": {"present": False}}, {}, []),
        ("both", {}, {"gpushare_deploy_mode": "kubernetes"}, ON_GPU_NODE),
        ("cp1", {}, {**MANAGED, "gpushare_python": "/usr/bin/python3.12"}, ["scheduler:configure"]),
    ],
)
def test_what_plans_on_a_host(host: str, facts: dict[str, Any], settings: dict[str, str], wanted: list[str]) -> None:
    found = plans({**FACTS, **facts}, GROUPS, host, {**SETTINGS, **settings}.get)
    assert [f"{plan['role']}:{plan['tasks']}" for plan in found] == wanted


def test_nothing_plans_on_a_host_that_was_not_read() -> None:
    assert plans({}, GROUPS, "both", {**SETTINGS, **MANAGED}.get) == []


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
