# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The order in which an uninstallation takes subjects out is that of their table, in each playbook that does it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.subjects import DAEMONS, OWNERS, owner_of
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._subjects.rows import removal

REPOSITORY = Path(__file__).parents[4]
TASKS = REPOSITORY / "roles/uninstall/tasks"
OURS = "gpushare.kubernetes."
Step = tuple[str, dict[str, Any]]


def loaded(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(path.read_text())
    return found


def steps(tasks: list[dict[str, Any]]) -> Iterator[Step]:
    """The roles and modules of ours in their order, each with its variables; those of the role uninstall one by one as well."""
    for task in tasks:
        yield from steps(task.get("block", []))
        for word in ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks"):
            if word in task and (TASKS / task[word]).exists():
                yield from steps(loaded(TASKS / task[word]))
        # The loop over the table.
        looped = "'removal'" in str(task.get("loop"))
        yield from ((f"{role['role']}:{role['tasks']}", {}) for role in (removal() if looped else ()))
        for role in filter(None, [None if looped else task.get("ansible.builtin.include_role")]):
            name, part = role["name"].removeprefix(OURS), role.get("tasks_from")
            yield f"{name}:{part}" if part else name, task.get("vars", {})
            if name == "uninstall":
                yield from steps(loaded(TASKS / f"{part}.yml"))
        yield from ((word.removeprefix(OURS), {}) for word in task if word.startswith(OURS))


def of_playbook(name: str) -> list[Step]:
    return [step for play in loaded(REPOSITORY / f"playbooks/{name}.yml") for step in steps(play.get("tasks", []))]


@pytest.mark.parametrize(("name", "besides"), [("uninstall", ()), ("remove_node", ("scheduler",))])
def test_subjects_are_taken_out_in_the_order_of_their_table(name: str, besides: tuple[str, ...]) -> None:
    """A node that goes alone is no control plane."""
    wanted = [owner.step for subject, owner in OWNERS.items() if subject not in besides]
    found = of_playbook(name)
    assert [step for step, _variables in found if step in wanted] == wanted
    cures = {owner.step: owner.cure for owner in OWNERS.values()}
    for step, variables in found:
        assert step not in cures or all(f"{key}: {value}" in cures[step] for key, value in variables.items()), step
    # The journal goes last: until then a killed run can be finished.
    assert [step for step, _variables in found][-2:] == ["uninstall:leftovers", "gpushare_traces"]


def test_daemons_go_with_the_step_that_stops_them() -> None:
    assert {owner_of(daemon.name).step for daemon in DAEMONS} == {"uninstall:services"}
