# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Findings: merged, marked with their cause, sorted, and put into words and JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._report import write
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import (
    CHECKS,
    FOLLOWS_FROM,
    PREFLIGHT,
    VerifyFindings,
    mark,
    merge,
    verdict,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.links import LINKS
from hypothesis import given
from hypothesis import strategies as st

from unit.golden import Golden

CAUSES = {code: [cause.rstrip("*") for cause in causes.split()] for code, causes in FOLLOWS_FROM.items()}
CODES = sorted(CAUSES.keys() | {cause for causes in CAUSES.values() for cause in causes})


def error(host: str, check: str, found: str = "x", severity: str = "error") -> Finding:
    return Finding(check, found, "y", "do z", severity, host)


@pytest.mark.parametrize(
    ("check", "severity", "expected"),
    [
        ("second_plugin", "", "error"),
        ("uuid_twice", "", "warning"),
        ("policies_not_served", "", "note"),
        ("not_proven", "error", "error"),
        ("gpus_visible", "note", "note"),
        ("gpus_visible", "error", "error"),
    ],
)
def test_a_code_has_the_severity_of_the_table(check: str, severity: str, expected: str) -> None:
    found = VerifyFindings("h")
    found.say(check, "x", "y", "do z", severity)
    found.add(error("", check, severity=expected if severity else "error"))
    assert found.list == [error("h", check, severity=expected)] * 2


@pytest.mark.parametrize("check", ["no_such_code", "gpus", "plugin_missing", "gpus_visible"])
def test_a_code_that_is_not_verifys_or_needs_a_severity_fails(check: str) -> None:
    found = VerifyFindings("h")
    with pytest.raises(LookupError):
        found.say(check, "x", "y", "do z")
    with pytest.raises(LookupError):
        found.add(error("", check, severity="warning"))


def test_each_finding_judges_one_link_by_two_places() -> None:
    codes = Counter(code for link in LINKS for code in link.codes)
    assert [code for code, count in codes.items() if count > 1] == []
    assert {code for code, (_severities, programs) in CHECKS.items() if PREFLIGHT not in programs} == codes.keys()
    assert [link.name for link in LINKS if not link.codes or len({*link.evidence}) != 2] == []
    assert len({link.name for link in LINKS}) == len(LINKS)


def test_no_cause_stands_behind_the_probe_that_goes_through_all_links() -> None:
    order = {code: place for place, link in enumerate(LINKS) for code in link.codes}
    probe = order["probe_not_scheduled"]
    assert [(code, cause) for code, causes in CAUSES.items() for cause in causes if order[code] <= probe < order[cause]] == []


def test_nothing_follows_from_what_follows_from_it() -> None:
    TopologicalSorter(CAUSES).prepare()
    assert set(CODES) - CHECKS.keys() == set()


@given(st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.sampled_from(CODES)), min_size=1))
def test_where_something_is_wrong_at_least_one_cause_is_left(pairs: list[tuple[str, str]]) -> None:
    found = verdict([error(host, check) for host, check in pairs], {})
    assert not found.ok
    assert found.causes
    assert {(one.host, one.check) for one in found.findings} == set(pairs)


def test_a_cause_on_another_host_explains_nothing_unless_it_is_one_for_the_cluster() -> None:
    stopped = error("gpu1", "plugin_stopped")
    assert [one.because for one in mark([stopped, error("gpu1", "capacity_short"), error("gpu2", "capacity_short")])] == [
        "",
        "plugin_stopped",
        "",
    ]
    assert mark([error("", "rbac_differs"), error("cp1", "extender_not_synced")])[1].because == "rbac_differs"


def test_a_warning_is_no_cause() -> None:
    assert mark([error("g", "plugin_stopped", severity="warning"), error("g", "capacity_short")])[1].because == ""


def test_what_says_the_same_is_one_finding() -> None:
    merged = merge([error("g", "capacity_short", "8"), error("g", "capacity_short", "9"), error("h", "capacity_short", "8")])
    assert [(one.host, one.found) for one in merged] == [("g", "8, 9"), ("h", "8")]


def test_what_differs_in_how_bad_it_is_or_in_what_was_expected_is_said_in_full() -> None:
    both = merge([error("g", "x", "8"), error("g", "x", "9", severity="warning")])
    assert [(one.severity, one.found) for one in both] == [("error", "8"), ("warning", "9")]
    (one,) = merge([Finding("x", "8", "a", "first", host="g"), Finding("x", "8", "b", "second", host="g")])
    assert (one.found, one.expected, one.cure) == ("8", "a, b", "first")


def test_errors_come_before_warnings_and_notes_and_causes_before_what_follows() -> None:
    found = verdict(
        [
            error("a", "z", severity="note"),
            error("b", "y", severity="warning"),
            error("a", "capacity_short"),
            error("b", "w"),
            error("a", "x"),
            error("a", "plugin_stopped"),
            error("", "v"),
        ],
        {},
    )
    assert [(one.host, one.check) for one in found.findings] == [
        ("", "v"),
        ("a", "plugin_stopped"),
        ("a", "x"),
        ("b", "w"),
        ("a", "capacity_short"),
        ("b", "y"),
        ("a", "z"),
    ]
    assert [(one.host, one.check) for one in found.causes] == [("", "v"), ("a", "plugin_stopped"), ("a", "x"), ("b", "w")]


def test_the_verdict_in_words_leaves_out_what_is_no_error_and_counts_in_good_english() -> None:
    warned = verdict([error("b", "w", severity="warning")], {"hosts": 1, "GPU nodes": 0})
    assert warned.words == "verified: 1 host, 0 GPU nodes"
    one = verdict([error("", "v"), error("b", "w", severity="warning")], {})
    assert one.words == "1 problem\n\n✗ v            cluster\n    found     x\n    expected  y\n    do        do z"
    heading = verdict([error("a", check) for check in ("plugin_stopped", "capacity_short", "annotation_wrong")], {}).summary
    assert heading == "1 problem, and 2 findings that follow from it"


def test_the_verdict_in_words_has_causes_first_and_one_block_for_all_hosts() -> None:
    found = verdict(
        [error("b", "capacity_short"), error("a", "runtime_differs"), error("b", "plugin_stopped"), error("b", "runtime_differs")],
        {"hosts": 2},
    )
    told = ["    found     x", "    expected  y", "    do        do z", ""]
    assert found.words.splitlines() == [
        *("2 problems, and 1 finding that follows from them", ""),
        *(found.chain, ""),
        *("✗ runtime_differs a, b", *told),
        *("✗ plugin_stopped b", *told),
        "These follow from the problems above:",
        "  b: capacity_short: found x; expected y; do z (follows from plugin_stopped)",
    ]


def test_what_differs_between_hosts_stands_with_its_hosts_and_long_lists_are_cut() -> None:
    hosts = [f"gpu{number}" for number in range(1, 11)]
    found = verdict([replace(error(host, "plugin_stopped"), found="p" if host == "gpu3" else "x") for host in hosts], {})
    shown = "gpu1, gpu10, gpu2, gpu3, gpu4, gpu5, gpu6, gpu7 and 2 more"
    others = "gpu1, gpu10, gpu2, gpu4, gpu5, gpu6, gpu7, gpu8 and 1 more"
    assert found.words.splitlines()[4:7] == [f"✗ plugin_stopped {shown}", f"    found     x ({others})", "    found     p (gpu3)"]


def test_an_answer_of_a_host_cannot_look_like_a_block() -> None:
    shown = verdict([replace(error("gpu1", "plugin_stopped"), found="x\n\n✗ gpu_lost gpu2\n    found y")], {}).words
    assert "    found     x ✗ gpu_lost gpu2 found y\n" in shown


def test_the_report_is_json_with_a_version(tmp_path: Path) -> None:
    file = tmp_path / "new" / "report.json"
    write(str(file), verdict([error("", "rbac_differs")], {"hosts": 2}).as_dict(), "gpushare_verify_report")
    text = file.read_text()
    assert text.startswith('{\n  "findings": [\n    {\n      "because": "",\n')
    assert text.endswith('  "ok": false,\n  "v": 1\n}\n')
    assert json.loads(text) == {
        "v": 1,
        "ok": False,
        "looked_at": {"hosts": 2},
        "findings": [
            {
                "host": "",
                "check": "rbac_differs",
                "link": "admission",
                "severity": "error",
                "found": "x",
                "expected": "y",
                "cure": "do z",
                "because": "",
            }
        ],
    }
    assert verdict([error("g", "not_proven", severity="note")], {}).ok


def test_the_first_broken_link_is_named_with_those_before_it(golden: Golden) -> None:
    def chain(*findings: Finding) -> str:
        return verdict(findings, {}).chain

    golden(chain(error("b", "plugin_stopped"), error("a", "scheduler_stopped")))
    golden(chain(error("a", "not_checked")))
    # What only follows breaks no link, and what stands beside the chain stops no pod.
    assert "'disks'" in chain(error("a", "disk_full"), error("a", "plugin_stopped"))
    assert chain(error("a", "metrics_down")) == ""
    assert chain(replace(error("a", "kubelet_stopped"), severity="warning")) == ""
