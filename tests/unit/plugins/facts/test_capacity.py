# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The memory of GPUs, counted in four places: equal, or exactly the place that differs is named."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.capacity import AnnotationError, compare, published
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import MigDevice, SmiGpu, SmiReport
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.quantity import quantity, unit_mib
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core import inventory
from gpushare_runtime.core.quantity import UNITS, parse_quantity
from unit.golden import Golden

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


def smi_gpu(index: int, mib: int | None) -> SmiGpu:
    return SmiGpu(index, f"GPU-{index}", index, f"0000:0{index}:00.0", "Tesla T4", mib, "Default", None, (), ())


def report(*mib: int | None) -> SmiReport:
    return SmiReport(tuple(smi_gpu(index, size) for index, size in enumerate(mib)), "535.261.03", "12.2", None)


def annotation(*mib: int, unit: str = "GiB", **changes: Any) -> str:
    """As the device plugin itself writes it; `changes` are those of GPU 0."""
    gpus = [
        inventory.Gpu(index, f"GPU-{index}", index, f"0000:0{index}:00.0", "Tesla T4", size, UNITS[unit].count(size))
        for index, size in enumerate(mib)
    ]
    gpus[0] = replace(gpus[0], **changes)
    return inventory.Inventory(UNITS[unit], tuple(gpus)).to_json()


def node(text: str | None, capacity: dict[str, Any], allocatable: dict[str, Any] | None = None, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": "gpu1", "annotations": {"other": "x"} if text is None else {"gpushare/gpus": text}},
        "status": {
            "capacity": {"cpu": "8", "memory": "16Gi", **capacity},
            "allocatable": {"cpu": "8", **(capacity if allocatable is None else allocatable)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


FULL = {MEMORY: "40", GPUS: "2"}
GPUS_OF_GPU1 = (16384, 24576)


def test_words_of_a_node_are_cut() -> None:
    text = json.dumps({**json.loads(annotation(16384)), "strategy": "x" * 33})
    assert published(text).strategy == "x" * 32


def test_a_gpu_in_mig_mode_counts_by_its_instances() -> None:
    devices = tuple(MigDevice(i, 7 + i, 0, 9728, f"MIG-{i}", "1g.10gb", (66 + 9 * i, 67 + 9 * i)) for i in range(2))
    mixed = replace(report(16384, 81920), gpus=(smi_gpu(0, 16384), replace(smi_gpu(1, 81920), mig_mode="enabled", mig_devices=devices)))
    gpus = [json.loads(annotation(16384))["gpus"][0]]
    gpus += [{**gpus[0], "index": 11070 + 10 * i, "uuid": f"MIG-{i}", "minor": 1, "mib": 9728, "units": 9} for i in range(2)]
    text = json.dumps({"v": 1, "unit": "GiB", "gpus": [gpus[0], *({**one, "caps": [66, 67]} for one in gpus[1:])]})
    whole = {MEMORY: "34", GPUS: "3"}
    compared = compare({"gpu1": mixed}, [node(text, whole)])
    assert (compared.ok, compared.differences) == (True, ())
    assert (compared.sums[0].nvml, compared.sums[0].gpus_nvml) == (34, 3)
    assert published(text).gpus[1].nodes == ("nvidia1", "nvidia-caps/nvidia-cap66", "nvidia-caps/nvidia-cap67")
    (gone,) = compare({"gpu1": replace(mixed, gpus=mixed.gpus[:1])}, [node(text, whole)]).differences[:1]
    assert (gone.check, gone.found) == ("wrong_gpu_count", "GPU 11070 (MIG-0), which nvidia-smi does not list")


def differences(of: SmiReport, api: dict[str, Any], unit: str = "") -> list[tuple[str, str, str]]:
    """(what, found, severity) of each difference, each of which has a cure."""
    compared = compare({"gpu1": of}, [api], unit)
    assert all(difference.cure and difference.expected for difference in compared.differences)
    assert compared.ok == all(difference.severity == "warning" for difference in compared.differences)
    return [(difference.subject, difference.found, difference.severity) for difference in compared.differences]


def test_all_is_equal() -> None:
    compared = compare({"gpu1": report(*GPUS_OF_GPU1)}, [node(annotation(*GPUS_OF_GPU1), FULL)])
    assert compared.ok
    assert compared.differences == ()
    (sums,) = answer_of(compared.answer())["nodes"]
    assert (sums["unit"], sums["nvml"], sums["published"], sums["capacity"], sums["allocatable"]) == ("GiB", 40, 40, 40, 40)
    assert (sums["gpus_nvml"], sums["gpus_published"], sums["gpus_capacity"], sums["gpus_allocatable"]) == (2, 2, 2, 2)


def test_units_of_a_mib_come_as_quantities_with_suffixes() -> None:
    text = annotation(16000, 16384, unit="MiB")
    assert differences(report(16000, 16384), node(text, {MEMORY: "32384", GPUS: "2"})) == []
    assert differences(report(16000), node(annotation(16000, unit="MiB"), {MEMORY: "16k", GPUS: 1})) == []


def test_a_rounding_of_nvidia_smi_is_no_difference() -> None:
    assert differences(report(15360, 24575), node(annotation(15359, 24576), {MEMORY: "38", GPUS: "2"})) == []


def test_a_node_that_the_api_does_not_know() -> None:
    other = node(annotation(16384), {MEMORY: "16", GPUS: "1"})
    other["metadata"]["name"] = "gpu10"
    (difference,) = compare({"gpu1": report(16384)}, [other]).differences
    assert (difference.subject, difference.found) == ("node", "no node of this name in the API; gpu10 is one")


NOT_READY = "a node that is not Ready: kubelet has not said why"


@pytest.mark.parametrize(
    ("of", "api", "expected"),
    [
        (report(16384), node(None, {}), [("annotation", "no annotation gpushare/gpus", "error")]),
        (report(16384), node('{"v":2}', {}), [("annotation", "version 2 (this release reads 1)", "error")]),
        (
            report(*GPUS_OF_GPU1),
            node(annotation(*GPUS_OF_GPU1), {}),
            [(f"capacity {MEMORY}", "none", "error"), (f"capacity {GPUS}", "none", "error")],
        ),
        (
            report(*GPUS_OF_GPU1),
            node(annotation(*GPUS_OF_GPU1), {MEMORY: "0", GPUS: "0"}),
            [(f"capacity {MEMORY}", "0", "error"), (f"capacity {GPUS}", "0", "error")],
        ),
        (report(*GPUS_OF_GPU1), node(annotation(*GPUS_OF_GPU1), {MEMORY: "32", GPUS: "2"}, FULL), [(f"capacity {MEMORY}", "32", "error")]),
        (
            report(*GPUS_OF_GPU1),
            node(annotation(*GPUS_OF_GPU1), FULL, {MEMORY: "0", GPUS: "0"}),
            [(f"allocatable {MEMORY}", "0", "error"), (f"allocatable {GPUS}", "0", "error")],
        ),
        (report(16384), node(annotation(*GPUS_OF_GPU1), FULL), [("annotation", "GPU 1 (GPU-1), which nvidia-smi does not list", "error")]),
        (report(*GPUS_OF_GPU1), node(annotation(16384), {MEMORY: "16", GPUS: "1"}), [("annotation", "no GPU GPU-1", "error")]),
        (
            report(*GPUS_OF_GPU1),
            node(annotation(*GPUS_OF_GPU1, units=15), {MEMORY: "39", GPUS: "2"}),
            [("annotation", "15 units of GiB (16384 MiB) for GPU 0", "error")],
        ),
        (report(8192, 24576), node(annotation(*GPUS_OF_GPU1), FULL), [("annotation", "16 units of GiB (16384 MiB) for GPU 0", "error")]),
        (
            report(*GPUS_OF_GPU1),
            node(annotation(*GPUS_OF_GPU1, health="lost"), FULL, {MEMORY: "24", GPUS: "1"}),
            [(f"allocatable {MEMORY}", "24 of 40 (GPU 0: lost)", "warning"), (f"allocatable {GPUS}", "1 of 2 (GPU 0: lost)", "warning")],
        ),
        (
            report(*GPUS_OF_GPU1),
            node(annotation(*GPUS_OF_GPU1, cordoned=True), FULL, FULL),
            [(f"allocatable {MEMORY}", "40", "error"), (f"allocatable {GPUS}", "2", "error")],
        ),
        (report(*GPUS_OF_GPU1), node(annotation(*GPUS_OF_GPU1), FULL, ready=False), [("node", NOT_READY, "error")]),
        (report(None), node(annotation(16384), {MEMORY: "16", GPUS: "1"}), [("gpus", "GPU 0 (Tesla T4) that reports no memory", "error")]),
    ],
)
def test_exactly_what_differs_is_named(of: SmiReport, api: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert differences(of, api) == expected


def test_why_a_node_is_not_ready_is_told_in_kubelets_words(golden: Golden) -> None:
    api = node(annotation(*GPUS_OF_GPU1), FULL, ready=False)
    ready = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no\nnetwork " + "x" * 400 + " plugin"}
    api["status"]["conditions"] = [{"type": "DiskPressure", "status": "False", "message": "other"}, ready]
    ((_, found, _),) = differences(report(*GPUS_OF_GPU1), api)
    golden(found)
    assert len(found) < 400


def test_what_is_wrong_with_the_driver_comes_with_its_cure() -> None:
    broken = SmiReport((), None, None, Finding("timeout", "no answer", "an answer", "reboot"))
    (only,) = compare({"gpu1": broken}, [node(annotation(16384), {MEMORY: "16", GPUS: "1"})]).differences
    assert (only.host, only.subject, str(only)) == ("gpu1", "gpus", "found no answer; expected an answer; reboot")


def test_another_unit_than_the_wanted_one() -> None:
    api = node(annotation(16384, unit="MiB"), {MEMORY: "16384", GPUS: "1"})
    assert differences(report(16384), api, "GiB") == [("annotation", "units of MiB", "error")]
    assert differences(report(16384), api, "MiB") == []


def test_the_wanted_unit_counts_where_nothing_is_published() -> None:
    (sums,) = compare({"gpu1": report(*GPUS_OF_GPU1)}, [node(None, {})], "GiB").sums
    assert (sums.unit, sums.nvml, sums.published) == (None, 40, None)


def test_index_that_changed() -> None:
    swapped = report(16384, 24576)
    gpus = (replace(swapped.gpus[1], index=0), replace(swapped.gpus[0], index=1))
    found = differences(replace(swapped, gpus=gpus), node(annotation(*GPUS_OF_GPU1), FULL))
    assert found == [("annotation", "index 0 for GPU GPU-0", "error"), ("annotation", "index 1 for GPU GPU-1", "error")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"v":1,"unit":"0MiB","gpus":[]}',
        "{}",
        '{"v":1}',
        '{"v":1,"unit":"GB","gpus":[]}',
        '{"v":1,"unit":"GiB","gpus":[{}]}',
        "5",
    ],
)
def test_an_annotation_that_is_none(text: str) -> None:
    with pytest.raises(AnnotationError):
        published(text)


@given(
    st.text() | st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)).map(json.dumps)
)
def test_no_annotation_is_another_exception(text: str) -> None:
    with contextlib.suppress(AnnotationError):
        published(text)


@pytest.mark.parametrize("name", sorted(UNITS))
def test_the_same_units_as_the_runtimes(name: str) -> None:
    assert unit_mib(name) == UNITS[name].mib


@given(st.integers(0, 10**7), st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_the_same_quantities_as_the_runtimes(number: int, suffix: str) -> None:
    assert quantity(f"{number}{suffix}") == parse_quantity(f"{number}{suffix}")


@given(st.lists(st.integers(1024, 196608), min_size=1, max_size=16), st.sampled_from(sorted(UNITS)))
def test_what_the_runtime_publishes_is_equal_to_its_own_gpus(sizes: list[int], unit: str) -> None:
    total = str(sum(UNITS[unit].count(size) for size in sizes))
    api = node(annotation(*sizes, unit=unit), {MEMORY: total, GPUS: str(len(sizes))})
    assert differences(report(*sizes), api, unit) == []
