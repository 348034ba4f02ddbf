# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The checker of public variables finds what it is there for."""

from __future__ import annotations

from pathlib import Path

import pytest

import shared_variables
import variables as checker

SPEC = """
argument_specs:
  main:
    options:
      gpushare_a: {description: The first., type: int, default: 1}
      gpushare_b: {description: The second., type: list, elements: str, default: []}
      gpushare_must: {description: Required., type: str, required: true}
"""
DEFAULTS = "gpushare_a: 1\ngpushare_b: []\n"
TASKS = """
- name: Gpushare
  gpushare.kubernetes.gpushare_daemon:
    name: gpushare-x
    a: "{{ gpushare_a }} {{ 'gpushare_quoted' }}"
    group: gpushare_in_plain_text
  register: __role_x
  when: gpushare_b | length > 0
"""


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checker, "ROOT", tmp_path)
    write(tmp_path / "roles/r", SPEC, DEFAULTS, TASKS)
    return tmp_path / "roles/r"


def write(role: Path, spec: str, defaults: str, tasks: str) -> None:
    for name, text in (("meta/argument_specs.yml", spec), ("defaults/main.yml", defaults), ("tasks/main.yml", tasks)):
        (role / name).parent.mkdir(parents=True, exist_ok=True)
        (role / name).write_text(text)


def test_a_good_role_has_no_problem(role: Path) -> None:
    assert list(checker.role_problems(role)) == []


@pytest.mark.parametrize(
    ("spec", "defaults", "tasks", "problem"),
    [
        (SPEC, "gpushare_a: 1\n", TASKS, "gpushare_b is in argument_specs and not in defaults"),
        (SPEC, DEFAULTS + "gpushare_c: 1\n", TASKS, "gpushare_c is in defaults and not in the defaults of argument_specs"),
        (SPEC, DEFAULTS + "gpushare_must: x\n", TASKS, "gpushare_must is in defaults and not in the defaults of argument_specs"),
        (SPEC, DEFAULTS.replace("a: 1", "a: 2"), TASKS, "gpushare_a is 2 in defaults and 1 in argument_specs"),
        (SPEC, DEFAULTS.replace("a: 1", "a: true"), TASKS, "gpushare_a is True in defaults and 1 in argument_specs"),
        (
            SPEC.replace("default: 1", "default: x"),
            DEFAULTS.replace("a: 1", "a: x"),
            TASKS,
            "the default of gpushare_a is not of its own type",
        ),
        (SPEC.replace("description: The first., ", ""), DEFAULTS, TASKS, "gpushare_a has no description"),
        (
            SPEC.replace("gpushare_a", "other"),
            DEFAULTS.replace("gpushare_a", "other"),
            "",
            "other is public and does not begin with gpushare_",
        ),
        (SPEC, DEFAULTS, TASKS.replace("gpushare_a }}", "gpushare_z }}"), "tasks/main.yml reads gpushare_z"),
        (SPEC, DEFAULTS, TASKS.replace("gpushare_b |", "gpushare_y |"), "tasks/main.yml reads gpushare_y"),
        (SPEC, DEFAULTS, TASKS.replace("__role_x", "gpushare_x"), "tasks/main.yml sets gpushare_x"),
    ],
)
def test_each_problem_is_found(role: Path, spec: str, defaults: str, tasks: str, problem: str) -> None:
    write(role, spec, defaults, tasks)
    assert [found for found in checker.role_problems(role) if problem in found]


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ("Another.", "gpushare_a is described in r and s; expected one of them, and See P(…) in the others"),
        ("See P(gpushare.kubernetes.r#role).", "gpushare_a is one thing in roles/r and another in roles/s"),
    ],
)
def test_one_role_describes_a_variable_and_others_mean_the_same(role: Path, others: str, words: str) -> None:
    write(role.parent / "s", SPEC.replace("The first.", others).replace("default: 1", "default: 2"), DEFAULTS, TASKS)
    assert [problem for problem in checker.collection_problems() if problem.startswith(words)]


def test_playbooks_and_examples_know_no_other_names(role: Path, tmp_path: Path) -> None:
    for folder, text in (
        ("playbooks", '- hosts: "{{ gpushare_p | default(1) }}"\n- hosts: gpushare_gpu_nodes\n'),
        ("inventory.example", "# gpushare_e: 1\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.yml").write_text(text)
    assert [problem.partition(",")[0] for problem in checker.collection_problems()] == [
        "playbooks/x.yml reads gpushare_p",
        "inventory.example/x.yml sets gpushare_e",
    ]


def test_an_option_that_refers_to_another_role_has_its_type_and_default(role: Path, tmp_path: Path) -> None:
    """In each entry point, also with an anchor, and one that the defaults lack."""
    options = (
        "      gpushare_a: &a {description: See P(gpushare.kubernetes.r#role)., type: str, default: old}\n"
        "  other:\n    options:\n      gpushare_a: *a\n      gpushare_b:\n"
        "        description: See P(gpushare.kubernetes.r#role).\n        type: str\n"
        "      gpushare_own: {description: See P(gpushare.kubernetes.r#role)., type: int, default: 2}\n"
    )
    write(role.parent / "s", f"argument_specs:\n  main:\n    options:\n{options}", "gpushare_a: old\ngpushare_own: 2\n", "")
    found = shared_variables.filled(tmp_path, {})
    assert found["roles/s/meta/argument_specs.yml"].splitlines()[3:] == [
        "      gpushare_a: &a {description: See P(gpushare.kubernetes.r#role)., type: int, default: 1}",
        "  other:",
        "    options:",
        "      gpushare_a: *a",
        "      gpushare_b: {description: See P(gpushare.kubernetes.r#role)., type: list, elements: str, default: []}",
        "      gpushare_own: {description: See P(gpushare.kubernetes.r#role)., type: int, default: 2}",
    ]
    assert found["roles/s/defaults/main.yml"] == "gpushare_a: 1\ngpushare_own: 2\ngpushare_b: []\n"


def test_the_document_has_a_row_for_each(role: Path) -> None:
    rows = [line for line in checker.document().splitlines() if line.startswith("| `gpushare_")]
    assert rows == [
        "| `gpushare_a` | int | `1` | host | r | The first. |",
        "| `gpushare_b` | list of str | `[]` | host | r | The second. |",
        "| `gpushare_must` | str | required | host | r | Required. |",
    ]
