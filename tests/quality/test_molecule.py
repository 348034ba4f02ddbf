# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every role by its scenario: check mode first, then the change, nothing the second time, and what a user sees of it.

GPUSHARE_MOLECULE_LAB=NAME uses an instance of the lab that is up, and leaves it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from quality.scenarios import ANYWHERE, FOLDER, ON_LAB, problems, run
from quality.tree import REPOSITORY

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
    assert problems(FOLDER, [*ROLES, "mps"]) == ["the role mps has no scenario"]


@pytest.mark.parametrize("scenario", ANYWHERE)
def test_anywhere(scenario: str) -> None:
    wrong, output = run(scenario)
    assert wrong == [], output[-8000:]


@pytest.fixture(scope="session")
def inventory() -> Iterator[str]:
    """Of a cluster whose hosts are not prepared."""
    borrowed = os.environ.get("GPUSHARE_MOLECULE_LAB")
    cluster = Cluster(borrowed or "molecule")
    try:
        if not borrowed:
            cluster.lab("up", "--no-nvidia-runtime", "--gpu-nodes", "1", seconds=1800)
        yield str(cluster.inventory)
    finally:
        if not borrowed:
            cluster.lab("down", seconds=300)


@pytest.mark.parametrize("scenario", ON_LAB)
def test_on_hosts(scenario: str, inventory: str) -> None:
    wrong, output = run(scenario, inventory)
    assert wrong == [], output[-8000:]
