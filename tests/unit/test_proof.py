# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The words about proof are those of the saved reports: on the comparison's own columns, in the isolation table, on the status page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import proof
import readme
from docs.pages import by_column, rows, section
from tree import REPOSITORY

REAL, SIMULATED = "real GPU", "simulated"
OURS, COMPARISON = "gpushare, services of hosts", "docs/project/comparison.md"
#: Feature of the comparison, words of our first row before a mark, and the claim.
COMPARED = [
    ("memory limit at run time", "MPS", "limit by MPS"),
    ("memory limit at run time", "driver 615 or 620", "limit by the driver"),
    ("use of each pod", "counts memory", "memory by pod"),
]
#: Feature to the check of the cluster of one node that proves it.
ON_ONE_NODE = {
    "request of memory": "pod a sees",
    "scheduler": "a pod with more than is left waits",
    "installed by": "site.yml: tasks that failed",
    "whole installation on a real GPU, known users": "uninstall.yml: tasks that failed",
}


def comparison() -> dict[str, str]:
    """Feature to the cell of services of hosts, or the item of the list below the tables."""
    text = section(COMPARISON, "Feature by feature")
    items = re.findall(r"^- \*\*(.+?)\*\*: (.*?)(?=\n- |\n\n|\Z)", text, re.M | re.S)
    return {feature: cells[OURS] for feature, cells in by_column(text).items()} | {name: " ".join(words.split()) for name, words in items}


@pytest.mark.parametrize(("row", "words", "claim"), COMPARED)
def test_the_comparison_says_real_where_a_gpu_proves_it(row: str, words: str, claim: str) -> None:
    (mark,) = re.findall(rf"{re.escape(words)} \(([^)]+)\)", comparison()[row])
    assert mark == (REAL if proof.proven_on(claim) else SIMULATED)


def test_no_other_cell_of_the_comparison_says_that_a_gpu_proves_it() -> None:
    text = section(COMPARISON, "Feature by feature")
    real = [(row, words, claim) for row, words, claim in COMPARED if proof.proven_on(claim)]
    assert text.count(f"({REAL})") == len(real)
    # What the whole installation proves has a report of its own.
    ran = {check["name"] for check in proof.one_node()["checks"] if check["outcome"] == "ran"}
    assert len(ran) == len(proof.one_node()["checks"])
    assert {feature for feature, words in comparison().items() if f"[{REAL}]" in words} == set(ON_ONE_NODE)
    assert set(ON_ONE_NODE.values()) <= ran
    assert text.count(f"[{REAL}]") == len(ON_ONE_NODE)


def test_the_isolation_table_says_how_each_limit_is_known() -> None:
    text = (REPOSITORY / "docs/operate/isolation.md").read_text()
    (known,) = (row for row in rows(text) if row[0] == "how this is known")
    words = [proof.words(claim) for claim in ("limit by the driver", "limit by MPS", "eviction of a pod that uses more")]
    # Programs outside of pods, and the request of an eviction: the words behind the measure say so.
    measures = [re.split(r"[,;] ", cell)[0] for cell in known[1:4]]
    assert measures[:2] == words[:2]
    assert measures[2].endswith(words[2])
    assert "request" in measures[2]


def test_a_check_that_is_not_there_or_did_not_run_proves_nothing(tmp_path: Path) -> None:
    def save(outcome: str) -> None:
        checks = [{"name": name, "outcome": outcome, "found": "", "expected": ""} for name in proof.CLAIMS["limit by MPS"][1]]
        steps = [{"name": "discovery", "values": {"model": "NVIDIA A30"}, "checks": []}, {"name": "limits", "values": {}, "checks": checks}]
        (tmp_path / "gpu-a30.json").write_text(json.dumps({"date": "2026-11-26", "steps": steps}))

    save("ran")
    assert proof.words("limit by MPS", folder=tmp_path) == "measured on A30"
    assert proof.words("limit by the driver", folder=tmp_path) == "simulated so far"
    for outcome in ("failed", "not possible here"):
        save(outcome)
        assert proof.proven_on("limit by MPS", tmp_path) == []


@pytest.mark.parametrize(
    ("model", "short"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA RTX PRO 6000", "NVIDIA RTX PRO 6000"), ("Tesla V100-SXM2", "V100-SXM2")],
)
def test_a_model_is_one_word_where_it_has_one(model: str, short: str) -> None:
    assert proof.short(model) == short


def test_a_target_says_whether_it_was_missed() -> None:
    assert [readme.judged("75 %", missed) for missed in (True, False)] == ["75 %, **missed**", "75 %"]
