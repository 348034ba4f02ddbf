# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which drivers and GPUs are not those that the administrator expects, and what GPUs report of their own health."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import Ecc, Repair, SmiReport, parse
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.gpus import Expected, judge_gpus

from unit.fakes.plugins.fake_root import NVIDIA_SMI

TWO = parse(NVIDIA_SMI.read_text())


def codes(report: SmiReport, **expected: object) -> list[tuple[str, str]]:
    return [(one.check, one.severity) for one in judge_gpus(report, Expected(**expected))]  # type: ignore[arg-type]


def first_with(**changes: object) -> SmiReport:
    return replace(TWO, gpus=(replace(TWO.gpus[0], **changes), TWO.gpus[1]))  # type: ignore[arg-type]


def test_gpus_as_recorded_are_as_expected() -> None:
    assert codes(TWO) == []
    assert codes(TWO, minimum_driver="535.261.03", gpus=2, memory_mib=16384) == []


@pytest.mark.parametrize(
    ("version", "least", "expected"),
    [
        ("384.81", "384.81", []),
        ("384.80", "384.81", [("driver_too_old", "error")]),
        ("535.261.03", "535.261.04", [("driver_too_old", "error")]),
        ("1000.1", "999.9", []),
        (None, "384.81", []),
    ],
)
def test_the_oldest_driver(version: str | None, least: str, expected: list[tuple[str, str]]) -> None:
    assert codes(replace(TWO, driver_version=version), minimum_driver=least) == expected


@pytest.mark.parametrize(("gpus", "expected"), [(1, 1), (2, 0), (3, 1), (0, 0)])
def test_the_number_of_gpus(gpus: int, expected: int) -> None:
    assert codes(TWO, gpus=gpus) == [("gpu_count_unexpected", "error")] * expected


def test_a_driver_that_lists_nothing_has_no_number_of_gpus() -> None:
    silent = SmiReport((), None, None, Finding("no_devices", "a", "b", "c"))
    assert codes(silent, gpus=8) == []
    assert codes(replace(silent, problem=None), gpus=8) == [("gpu_count_unexpected", "error")]


def test_memory_is_expected_of_each_gpu() -> None:
    assert [one.found for one in judge_gpus(TWO, Expected(memory_mib=16385))] == ["GPU 0 (Tesla T4) with 16384 MiB"]
    assert codes(TWO, memory_mib=30000) == [("gpu_memory_unexpected", "error")] * 2
    assert codes(first_with(memory_mib=None), memory_mib=20000) == []


@pytest.mark.parametrize(
    ("repair", "expected"),
    [
        (Repair(failed=True), [("gpu_failing", "error")]),
        (Repair(failed=True, pending=True, action="Reset"), [("gpu_failing", "error")]),
        (Repair(action="Reset"), [("gpu_failing", "error")]),
        (Repair(action="Reboot"), [("gpu_failing", "error")]),
        (Repair(action="Drain and Reset"), [("gpu_repair_pending", "warning")]),
        (Repair(action="Drain P2P"), [("gpu_repair_pending", "warning")]),
        (Repair(pending=True), [("gpu_repair_pending", "warning")]),
        (Repair(retired_pages=3, remapped_rows=9, pending=False, failed=False), []),
    ],
)
def test_what_gpus_report_of_their_memory(repair: Repair, expected: list[tuple[str, str]]) -> None:
    assert codes(first_with(repair=repair)) == expected


@pytest.mark.parametrize(
    ("now", "later", "expected"), [("enabled", "disabled", 1), ("enabled", "enabled", 0), (None, "enabled", 0), ("disabled", None, 0)]
)
def test_modes_that_the_next_reset_changes(now: str | None, later: str | None, expected: int) -> None:
    assert codes(first_with(ecc=Ecc(now, later))) == [("gpu_mode_pending", "warning")] * expected
    assert codes(first_with(mig_mode=now, pending_mig_mode=later)) == [("gpu_mode_pending", "warning")] * expected


@pytest.mark.parametrize(
    ("states", "lacks", "words"),
    [
        ((None, None), False, ""),
        (("Completed", "Completed"), False, ""),
        # A virtual machine, whose host runs it.
        (("Completed", "Completed"), True, ""),
        (("Completed", "In Progress"), False, "an NVLink fabric that is not ready: GPU 1 (In Progress)"),
        (("Completed, Failure", "Not Started"), True, "an NVLink fabric that is not ready: GPU 0 (Completed, Failure), 1 (Not Started)"),
        # GPUs before Hopper do not say.
        ((None, None), True, "NVSwitches, and no nv-fabricmanager that runs"),
    ],
)
def test_a_fabric_that_keeps_cuda_from_starting(states: tuple[str | None, str | None], lacks: bool, words: str) -> None:
    report = replace(TWO, gpus=tuple(replace(gpu, fabric=state) for gpu, state in zip(TWO.gpus, states, strict=True)))
    found = list(judge_gpus(report, Expected(), lacks))
    assert [(one.check, one.severity, one.found) for one in found] == ([("gpu_fabric_not_ready", "error", words)] if words else [])
    assert all("error 802" in one.cure for one in found)
    # The state that each GPU should have, or the manager that should run.
    assert [one.expected.startswith("the state Completed") for one in found] == ([words.startswith("an NVLink")] if words else [])
