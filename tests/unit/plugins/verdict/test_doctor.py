# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The doctor's answer as the controller reads it: whoever is root on a host decides what it is."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict import daemons, gpu_node
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.doctor import CODES, Doctor, read

from gpushare_runtime import doctor
from gpushare_runtime.core.bounds import MOST_GPUS
from gpushare_runtime.doctor import findings, kubelet
from gpushare_runtime.doctor.findings import VERSION, DoctorFinding, Findings
from unit.fakes.plugins.verdict import evidence as seen

Json = dict[str, Any]
EXTENDER = "gpushare-extender"


def answer(**changes: Any) -> Json:
    return seen.doctor(EXTENDER, health={"filter_calls": 3, "unauthorized_calls": 1, "why": ""}, **changes)


def read_text(text: str) -> Doctor:
    return read({"problem": "", "cure": "", "answer": text}, "h")


def test_what_the_doctor_prints_is_what_is_read() -> None:
    printed = Findings()
    assert read_text(printed.as_json()) == Doctor()
    assert json.loads(printed.as_json())["v"] == VERSION
    printed.error("second_plugin", "f", "e", "c")
    printed.warn("token_not_renewed", "f", "e", "c")
    printed.daemons[EXTENDER] = {"runs": True, "listens": "a:1", "metrics": "b:2", "active": "active", "state": "", "says": "", "pid": 7}
    printed.health = {"filter_calls": 3, "unauthorized_calls": 1, "why": ""}
    printed.strangers = [{"name": "x.sock", "pid": 7, "process": "p"}, {"name": "y.sock", "pid": 8, "process": ""}]
    gpus = [f"GPU-{place}" for place in range(MOST_GPUS + 1)]
    printed.registered = {"aliyun.com/gpu-mem": gpus}
    found = read_text(printed.as_json())
    assert [(one.host, one.check, one.severity, one.found, one.expected, one.cure) for one in found.findings] == [
        ("h", "second_plugin", "error", "f", "e", "c"),
        ("h", "token_not_renewed", "warning", "f", "e", "c"),
    ]
    daemon = found.daemons[EXTENDER]
    assert (daemon.runs, daemon.listens, daemon.metrics) == (True, "a:1", "b:2")
    assert (found.health.filter_calls, found.health.unauthorized_calls, found.health.why) == (3, 1, "")
    assert found.strangers == ("process 7 (p)", "process 8 (unnamed)")
    assert (found.registered, found.problem) == ({"aliyun.com/gpu-mem": tuple(gpus)}, "")


def test_what_both_find_is_said_in_the_same_words() -> None:
    assert (daemons.SITE, gpu_node.ONE_PLUGIN, gpu_node.STOP_OTHER) == (findings.SITE, kubelet.ONE_PLUGIN, kubelet.OTHER_CURE)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": "9" * 5000},
        {"findings": None},
        {"findings": [7]},
        {"findings": [seen.finding("rbac_differs")]},
        {"findings": [{**seen.finding("second_plugin"), "check": ["second_plugin"]}]},
        {"findings": [seen.finding("second_plugin", "note")]},
        {"findings": [{**seen.finding("second_plugin"), "found": 7}]},
        {"findings": [{"check": "second_plugin", "severity": "error", "found": "x", "expected": "y"}]},
        {"findings": [seen.finding("second_plugin")] * (MOST_GPUS + 2)},
        {"daemons": []},
        {"daemons": {EXTENDER: None}},
        {"daemons": {EXTENDER: {"runs": True, "listens": None, "metrics": ""}}},
        {"health": 7},
        {"health": {"filter_calls": "3", "unauthorized_calls": 0, "why": ""}},
        {"health": {"filter_calls": -1, "unauthorized_calls": 0, "why": ""}},
        {"health": {"filter_calls": 2**63, "unauthorized_calls": 0, "why": ""}},
        {"strangers": [{"pid": "x", "process": ""}]},
        {"registered": {"a": {"b": 1}}},
        {"registered": {"a": ["x"] * (MOST_GPUS + 2)}},
    ],
)
def test_an_answer_of_another_form_is_none(change: Json) -> None:
    found = read_text(json.dumps({**answer(), **change}))
    assert found.problem.startswith("gpushare-doctor answered in another form than 1 (")
    assert len(found.problem) < 1100
    assert found.cure.startswith("run site.yml again")
    assert (found.findings, found.daemons) == ((), {})


@pytest.mark.parametrize("text", ["", "x", "[]", "7", "{}", "[" * 100_000, '{"v": 1'])
def test_what_is_no_answer_at_all_is_a_problem(text: str) -> None:
    assert read_text(text).problem.startswith("gpushare-doctor answered in another form")


def test_words_of_a_host_are_short_and_printable() -> None:
    found = read_text(json.dumps(answer(findings=[seen.finding("second_plugin", found="\x1b[2J\n" + "x" * 5000)])))
    (finding,) = found.findings
    assert finding.found.startswith("?[2J?xxx")
    assert len(finding.found) == 1000
    assert read({"problem": "\x1b" + "x" * 5000, "cure": "do", "answer": json.dumps(answer())}, "h") == Doctor("?" + "x" * 999, "do")


def test_the_codes_are_those_of_the_doctor() -> None:
    source = "".join(path.read_text() for path in Path(doctor.__file__).parent.glob("*.py"))
    named = re.findall(r'found\.(?:error|warn)\(\s*f?"([a-z_{}]+)"', source)
    of_daemons = {name.replace("{short}", short) for name in named for short in ("plugin", "extender", "dashboard")}
    assert of_daemons | {"plugin_stopped", "extender_down"} == CODES
    assert {one.name for one in fields(DoctorFinding)} <= {one.name for one in fields(Finding)}
