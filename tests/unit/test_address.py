# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The addresses of the project follow one line of galaxy.yml, which a release rejects while it is a placeholder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

import address

OWN = "https://git.company.org/team/gpushare"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path in address.FILLED:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(address.ROOT / path, tmp_path / path)
    return tmp_path


def test_the_addresses_of_this_tree_are_those_of_its_repository() -> None:
    assert list(address.problems()) == []


def test_each_address_follows_the_repository(tree: Path) -> None:
    galaxy, rules = tree / address.GALAXY, tree / address.RULES
    old = address.repository(tree)
    galaxy.write_text(galaxy.read_text().replace(f"repository: {old}", f"repository: {OWN}/"))
    assert [problem.split()[0] for problem in address.problems(tree)] == [address.GALAXY, address.RULES, address.CHART]
    for path, fill in address.FILLED.items():
        (tree / path).write_text(fill((tree / path).read_text(), address.repository(tree)))
    assert list(address.problems(tree)) == []
    found = yaml.safe_load(galaxy.read_text())
    assert {key: found[key] for key in ("repository", "homepage", "documentation", "issues")} == {
        "repository": OWN,
        "homepage": OWN,
        "documentation": f"{OWN}/tree/main/docs",
        "issues": f"{OWN}/issues",
    }
    alerts = [rule for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"] if "alert" in rule]
    assert all(rule["annotations"]["runbook_url"] == f"{OWN}/blob/main/{address.RUNBOOKS}#{rule['alert'].lower()}" for rule in alerts)
    assert old not in rules.read_text() + galaxy.read_text()


def test_an_alert_without_an_address_gets_one() -> None:
    text = "rules:\n- alert: GPUShareX\n  annotations:\n    summary: x\n    runbook: docs/x.md\n"
    text += "- alert: GPUShareY\n  annotations:\n    runbook_url:\n"
    found = yaml.safe_load(address.rules(text, OWN))["rules"]
    assert [one["annotations"]["runbook_url"].rpartition("#")[2] for one in found] == ["gpusharex", "gpusharey"]


@pytest.mark.parametrize(
    "placeholder",
    [
        "https://gpushare.example/kubernetes",
        "https://www.example.com/x",
        "http://git.company.org/x",
        "https://git.company.org/",
        "",
        "x.test/y",
    ],
)
def test_a_release_rejects_a_placeholder_and_says_what_to_do(placeholder: str) -> None:
    reason = address.rejected(placeholder)
    assert repr(placeholder) in reason
    assert "expected the https address" in reason
    assert "python tools/address.py --write" in reason


def test_a_release_takes_a_real_address() -> None:
    assert address.rejected(OWN) == ""
    assert address.rejected("https://github.com/example/gpushare") == ""
