# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The requests that would do for what pods use: a small cluster, counted by hand."""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import UNITS
from gpushare_runtime.core.use_report import GpuUse, PodUse, UseReport
from gpushare_runtime.kubectl_gpushare import commands, right_size
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.errors import PrometheusError
from gpushare_runtime.kubectl_gpushare.right_size import InUse, Peaks, Workload
from gpushare_runtime.kubectl_gpushare.used import published_peaks
from gpushare_runtime.kubectl_gpushare.views import Selection
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.kubectl_gpushare.objects import allocation, node, pod, read_all
from unit.fakes.runtime.pods import gpu
from unit.golden import Golden

NOW = 1_000_000.0
EVERY = Selection()
SEEN = 5 * 86400 + 60


def owned(raw: dict[str, Any], kind: str, name: str, code: str = "") -> dict[str, Any]:
    metadata = raw["metadata"]
    metadata["ownerReferences"] = [{"kind": kind, "name": name}]
    metadata["labels"] = {**metadata.get("labels", {}), **({"pod-template-hash": code} if code else {})}
    return raw


def objects() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two nodes of three GPUs of 16 GiB. A Deployment of three pods, a Job on two GPUs, a whole GPU, and a pod that has just begun."""
    nodes = [node("a", "10.0.0.1", 16, 16, 16), node("b", "10.0.0.2", 16, 16, 16)]
    places = (("web-0", "a", 0), ("web-1", "a", 1), ("web-2", "b", 0))
    pods = [owned(pod(name, on, gpu=index, mem=8), "ReplicaSet", "web-5d9", "5d9") for name, on, index in places]
    train = pod("train", "b", annotations=allocation({"0": {"1": 8, "2": 8}}), mem=16)
    train["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    pods += [owned(train, "Job", "train"), pod("book", "a", annotations=allocation({"0": {"2": 16}}), count=1, namespace="people")]
    return nodes, [*pods, pod("new", "b", gpu=0, mem=2, namespace="people")]


def cluster() -> Cluster:
    found = read_all(*objects())
    found.now = lambda: NOW
    return found


PEAKS = Peaks(
    "x",
    {"uid-web-0": 2000, "uid-web-1": 2500, "uid-train": 8000, "uid-book": 500},
    {"uid-web-0": 60, "uid-web-1": 9000, "uid-train": 600, "uid-book": 9000},
)


def by_name(found: list[Workload]) -> dict[str, Workload]:
    return {workload.name: workload for workload in found}


def test_a_workload_needs_the_most_of_any_of_its_pods_and_a_margin(golden: Golden) -> None:
    found = right_size.workloads(cluster(), EVERY, PEAKS, 10)
    assert [(workload.name, workload.asked_mib - workload.needed_mib) for workload in found] == [
        # 2750 MiB are 3 GiB, for each of three pods; 8800 MiB are 9 GiB, on each of two GPUs.
        ("Deployment/web", 3 * 5 * 1024),
        ("Pod/book", 0),
        ("Pod/new", 0),
        ("Job/train", -2 * 1024),
    ]
    named = by_name(found)
    assert [(named[name].used, named[name].needs, named[name].unknown, len(named[name].pods)) for name in sorted(named)] == [
        (2500, 3, 1, 3),
        (8000, 9, 0, 1),
        (500, 1, 0, 1),
        (None, None, 1, 1),
    ]
    assert (named["Deployment/web"].seconds, named["Job/train"].seconds, named["Pod/new"].seconds) == (9000, 600, None)
    for name in sorted(named):
        golden("; ".join(named[name].notes()))


@pytest.mark.parametrize(("margin", "needs"), [(0, 3), (22, 3), (23, 4), (100, 5), (1000, 16)])
def test_the_margin_is_rounded_up_and_nothing_needs_more_than_a_gpu(margin: int, needs: int) -> None:
    """3072 MiB are 3 units: 2500 and 22.88 percent."""
    assert by_name(right_size.workloads(cluster(), EVERY, PEAKS, margin))["Deployment/web"].needs == needs


def test_a_pod_without_memory_in_use_needs_one_unit(golden: Golden) -> None:
    found = by_name(right_size.workloads(cluster(), EVERY, Peaks("x", {"uid-new": 0}, {"uid-new": 7200}), 10))["Pod/new"]
    assert (found.used, found.needs, found.seconds) == (0, 1, 7200)
    golden("; ".join(found.notes()))


def test_pods_of_one_owner_that_ask_for_different_amounts_are_two_rows_and_those_that_end_none() -> None:
    nodes, pods = objects()
    pods[0]["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = "4"
    pods[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = [w for w in right_size.workloads(read_all(nodes, pods), EVERY, PEAKS, 10) if w.name == "Deployment/web"]
    assert sorted((w.units, len(w.pods), w.needs) for w in found) == [(4, 1, 3), (8, 1, None)]


def test_the_gpus_of_all_pods_placed_anew_as_they_ask_and_as_they_use() -> None:
    it = cluster()
    found = right_size.workloads(it, EVERY, PEAKS, 10)
    # Whole: 1. As they ask: the Job's two with a pod of the Deployment on each, and one more for the third and the new one.
    # As used: 9 + 3 + 3 on one of the Job's, 9 + 3 + 2 on the other.
    assert right_size.gpus_in_use(it, found, "binpack") == InUse(6, 4, 3)
    for name in ("a", "b"):
        it.set_node({**node(name, "x", 16, 16, 16), "spec": {"unschedulable": True}})
    assert right_size.gpus_in_use(it, found, "binpack") == InUse(6, 0, 0, 6, 6)


def test_pods_that_find_no_place_are_counted_for_both_and_both_are_said() -> None:
    """Three GPUs of 16 GiB: as they ask, the whole GPU, the Job and two of the Deployment fill them. As used, all have room."""
    it = cluster()
    found = right_size.workloads(it, EVERY, PEAKS, 10)
    it.set_node(node("a", "10.0.0.1", 16))
    it.set_node(node("b", "10.0.0.2", 16, 16))
    sums = right_size.gpus_in_use(it, found, "binpack")
    assert sums is not None
    assert (sums.unplaced_as_requested, sums.unplaced) == (2, 0)
    line = right_size.sentences(found, PEAKS, 10, sums)[1]
    # GPUs now, as requested, pods without a place then, and as used.
    assert re.findall(r"\b\d+\b", line.rpartition(":")[2])[-3:] == ["3", "2", "3"], line


def test_nothing_is_placed_where_units_differ_or_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    it = cluster()
    found = right_size.workloads(it, EVERY, PEAKS, 10)
    monkeypatch.setattr(right_size, "MOST_TRIED", 12)
    assert right_size.gpus_in_use(it, found, "binpack") is not None
    monkeypatch.setattr(right_size, "MOST_TRIED", 11)
    assert right_size.gpus_in_use(it, found, "binpack") is None
    monkeypatch.undo()
    it.set_node(node("c", "x", gpus=Inventory(UNITS["256MiB"], (gpu(0, 64, mib=16384),))))
    assert right_size.gpus_in_use(it, found, "binpack") is None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    nodes, pods = objects()
    uses: dict[str, dict[tuple[str, int], PodUse]] = {
        "a": {
            ("uid-web-0", 0): PodUse(1, 0, None, 2000, SEEN),
            ("uid-web-1", 1): PodUse(1, 0, None, 2500, SEEN),
            ("uid-web-2", 0): PodUse(peak=9999),
        },
        "b": {("uid-train", 1): PodUse(7000, 9, None, 7000, SEEN), ("uid-train", 2): PodUse(1, 9, None, 8000, SEEN + 9999)},
    }
    for raw in nodes:
        name = raw["metadata"]["name"]
        report = UseReport(int(time.time()), {0: GpuUse(1)}, uses[name])
        raw["metadata"]["annotations"]["gpushare/use"] = report.to_json()
    items = [*({**raw, "kind": "Node"} for raw in nodes), *({**raw, "kind": "Pod"} for raw in pods)]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    return tmp_path / "cluster.json"


def test_the_command(file: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    """What nodes publish: the larger one of a pod's GPUs, and nothing about a pod that is on another node."""
    assert main(["simulate", "--as-used", "-A", "--from-file", str(file)]) == 0
    golden(capsys.readouterr().out)
    assert main(["simulate", "--as-used", "-n", "people", "--margin", "50", "--from-file", str(file)]) == 0
    golden(capsys.readouterr().out)
    assert main(["simulate", "--as-used", "-A", "-o", "json", "--from-file", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["v"], found["margin_percent"], found["gpus"]) == (
        1,
        10,
        {"now": 6, "as_requested": 4, "as_used": 3, "unplaced": 0, "unplaced_as_requested": 0},
    )
    assert {w["workload"]: (w["peak_mib"], w["needed_units"], w["unknown"]) for w in found["workloads"]} == {
        "Deployment/web": (2500, 3, 1),
        "Job/train": (8000, 9, 0),
        "Pod/book": (None, None, 1),
        "Pod/new": (None, None, 1),
    }


def published(report: UseReport, **changes: Any) -> Peaks:
    """What node b says of the Job on its GPUs 1 and 2."""
    nodes, pods = objects()
    nodes[1]["metadata"]["annotations"]["gpushare/use"] = report.to_json()
    found = read_all([nodes[0], {**nodes[1], **changes}], pods)
    found.now = lambda: NOW
    return published_peaks(found)


def test_what_one_gpu_of_a_pod_does_not_know_is_unknown() -> None:
    first, at = PodUse(7000, 9, None, 7000, 100), int(NOW) - 50
    for second in (PodUse(None, 9, None, None, 100), None):
        assert published(UseReport(at, pods={("uid-train", 1): first, **({("uid-train", 2): second} if second else {})})).by_pod == {}
    # The GPU 2 does not answer now: its peak counts, and no further time.
    both = UseReport(at, pods={("uid-train", 1): first, ("uid-train", 2): PodUse(peak=8000, seconds=90)})
    assert (published(both).by_pod, published(both).seconds) == ({"uid-train": 8000}, {"uid-train": 90})
    both = UseReport(at, pods={("uid-train", index): first for index in (1, 2)})
    assert published(both).seconds == {"uid-train": 150}


def test_a_node_that_is_gone_has_not_watched_since() -> None:
    report = UseReport(int(NOW) - 86400, pods={("uid-train", index): PodUse(7000, 9, None, 7000, 100) for index in (1, 2)})
    assert published(report).by_pod
    gone = published(report, status={"conditions": [{"type": "Ready", "status": "Unknown"}]})
    assert (gone.by_pod, gone.seconds) == ({}, {})


def test_a_prometheus_of_the_installer_that_is_away_leaves_what_nodes_publish(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Not one that somebody has named here: that is an error."""
    given = ["simulate", "--as-used", "-A", "-o", "json", "--from-file", str(file)]
    assert main([*given, "--prometheus", "http://127.0.0.1:1"]) == 1
    capsys.readouterr()
    read = commands.read

    def found(arguments: argparse.Namespace, *rest: Any) -> Any:
        answer = read(arguments, *rest)
        arguments.prometheus, arguments.prometheus_by_installer = "http://127.0.0.1:1", True
        return answer

    async def away(*_: object) -> Peaks:
        raise PrometheusError("Prometheus at http://p does not answer")

    monkeypatch.setattr(commands, "read", found)
    monkeypatch.setattr(commands, "read_peaks", away)
    assert main(given) == 0
    shown = capsys.readouterr()
    assert {w["workload"]: w["peak_mib"] for w in json.loads(shown.out)["workloads"]}["Job/train"] == 8000
    golden(shown.err)


def test_what_it_cannot_do(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    argv = ["simulate", "--as-used", "--from-file", str(file)]
    assert main([*argv, "-f", "x.yaml"]) == 2
    golden(capsys.readouterr().err)
    assert main([*argv, "-n", "nobody"]) == 1
    golden(capsys.readouterr().err)
    silent = tmp_path / "silent.json"
    silent.write_text(file.read_text().replace("gpushare/use", "gpushare/other"))
    assert main(["simulate", "--as-used", "-A", "--from-file", str(silent)]) == 1
    golden(capsys.readouterr().err)
    for margin in ("-1", "1001", "x"):
        with pytest.raises(SystemExit):
            main([*argv, "--margin", margin])
        capsys.readouterr()
