# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every role has a whole scenario that can fail."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from collection.scenarios import FOLDER, problems
from tree import REPOSITORY

ROLES = [path.name for path in (REPOSITORY / "roles").iterdir()]


def test_every_role_has_a_whole_scenario() -> None:
    assert problems(FOLDER, ROLES) == []


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("scheduler/verify.yml", None, "scheduler has no verify.yml"),
        ("extender/converge.yml", None, "extender has no converge.yml"),
        ("stray/molecule.yml", "", "stray is no scenario that is run"),
        (
            "kubelet/verify.yml",
            "- hosts: all\n  tasks:\n    - ansible.builtin.assert: {that: [true, 1 == 1]}\n",
            "kubelet/verify.yml has no assertion about anything that it has looked at",
        ),
    ],
)
def test_a_scenario_that_proves_nothing_is_found(tmp_path: Path, path: str, content: str | None, problem: str) -> None:
    shutil.copytree(FOLDER, tmp_path / "molecule")
    place = tmp_path / "molecule" / path
    if content is None:
        place.unlink()
    else:
        place.parent.mkdir(exist_ok=True)
        place.write_text(content)
    assert problems(tmp_path / "molecule", ROLES) == [problem]


def test_a_new_role_needs_one() -> None:
    assert problems(FOLDER, [*ROLES, "tuning"]) == ["the role tuning has no scenario"]
