# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where a pod fits, why not elsewhere, and cures that hold: checked against a count of its own."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.links import GpuLink, GpuLinks
from gpushare_runtime.core.objects import read_pending
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.core.quantity import GIB, UNITS
from gpushare_runtime.core.reservation import Group
from gpushare_runtime.dra.slices import HELD
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.explain import NodeVerdict, conclude, explain, headline, names_in_words, table_of
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.kube.fake_api import status
from unit.fakes.runtime.kubectl_gpushare import command
from unit.fakes.runtime.kubectl_gpushare.objects import allocation, held, node, pending, pod, read_all
from unit.fakes.runtime.pods import gpu
from unit.golden import Golden


def asks(**limits: int) -> PendingPod:
    found = read_pending(pod("new", None, **limits))
    assert isinstance(found, PendingPod)
    return found


def by_node(cluster: Cluster, wants: PendingPod) -> dict[str, NodeVerdict]:
    return {one.node: one for one in explain(cluster, wants)}


def cures_of(verdict: NodeVerdict) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(cure.kind, cure.number, cure.pods) for cure in verdict.cures]


def one_node(*pods: dict[str, Any], **gpus: Any) -> Cluster:
    changes = {int(name.removeprefix("gpu")): value for name, value in gpus.items()}
    inventory = Inventory(GIB, tuple(gpu(i, 16, **changes.get(i, {})) for i in range(3)))
    return read_all([node("a", "10.0.0.1", gpus=inventory)], pods)


def test_where_it_fits_it_names_the_gpu() -> None:
    cluster = one_node(pod("p", "a", gpu=1, mem=10))
    assert by_node(cluster, asks(mem=6))["a"] == NodeVerdict("a", [1])
    assert by_node(cluster, asks(mem=7))["a"].gpus == [0]
    assert by_node(cluster, asks(count=2))["a"].gpus == [0, 2]


def test_where_several_gpus_fit_it_names_their_links(golden: Golden) -> None:
    links = GpuLinks((0, 1, 2), ((), (GpuLink("h", 0),), (GpuLink("s", 2), GpuLink("s", 1))))
    linked = Inventory(GIB, tuple(gpu(i, 16) for i in range(3)), links=links)
    cluster = read_all([node("a", "10.0.0.1", gpus=linked), node("b", "10.0.0.2", gpus=linked)], [])
    verdict = by_node(cluster, asks(count=2))["a"]
    assert (verdict.gpus, verdict.reason) == ([0, 2], "linked by NV2")
    assert by_node(cluster, asks(mem=6))["a"].reason == ""
    (row,) = table_of(explain(cluster, asks(count=3))).rows
    golden(row.cells[3].text)


def test_for_whom_gpus_are_kept(golden: Golden) -> None:
    """n1 and n2 have T4, which one waiting pod names; the other pod gets them last, though they leave less."""
    nodes = [node(name, f"10.0.0.{name[1]}", gpus=Inventory(GIB, (gpu(0, size, model=model),))) for name, size, model in (
        ("n0", 24, "A100"), ("n1", 16, "Tesla T4"), ("n2", 16, "Tesla T4"))]  # fmt: skip
    named = [pod(f"t{number}", None, mem=16) for number in range(8)]
    for one in named:
        one["metadata"]["annotations"] = {"gpushare.request/models": "T4"}
    found = explain(read_all(nodes, named), asks(mem=16))
    assert [(one.node, one.kept) for one in found] == [("n0", ""), *((name, "kept for pods that name T4") for name in ("n1", "n2"))]
    golden(table_of(found).rows[1].cells[-1].text)
    wants = read_pending({**named[0], "metadata": {**named[0]["metadata"], "name": "own", "uid": "own"}})
    assert isinstance(wants, PendingPod)
    assert all(not one.kept for one in explain(read_all(nodes, named), wants))


def test_why_not_and_what_would_change_that(golden: Golden) -> None:
    cluster = one_node(
        pod("large", "a", gpu=0, mem=10), pod("small", "a", gpu=0, mem=2), pod("other", "a", gpu=1, mem=9), gpu2={"health": "XID 79"}
    )
    found = by_node(cluster, asks(mem=12))["a"]
    assert not found.fits
    assert cures_of(found) == [("smaller", 7, ()), ("end", 0, ("default/other",)), ("repair", 2, ())]
    golden(found.words)
    for cure in found.cures:
        golden(cure.text)
    held = by_node(one_node(pod("other", "a", gpu=1, mem=9), gpu2={"health": HELD}), asks(count=2))["a"]
    assert cures_of(held) == [("smaller", 1, ()), ("end", 0, ("default/other",)), ("processes", 2, ())]
    golden(held.cures[-1].text)
    assert cures_of(by_node(cluster, asks(mem=17))["a"]) == [("smaller", 7, ())]
    assert cures_of(by_node(cluster, asks(count=2))["a"]) == [("end", 0, ("default/large", "default/other", "default/small"))]


def test_a_cordoned_gpu_and_a_cordoned_node(golden: Golden) -> None:
    cluster = one_node(pod("p", "a", gpu=0, mem=16), pod("q", "a", gpu=1, mem=16), gpu2={"cordoned": True})
    assert cures_of(by_node(cluster, asks(mem=1))["a"]) == [("end", 0, ("default/p",)), ("uncordon", 2, ())]
    raw = node("b", "10.0.0.2", 16)
    raw["spec"] = {"unschedulable": True}
    found = by_node(read_all([raw], []), asks(mem=1))["b"]
    assert (found.fits, cures_of(found), found.cures[0].text) == (False, [("uncordon-node", 0, ())], "kubectl uncordon b")
    golden(found.words)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "node not ready"),
        ({"allocatable": {"aliyun.com/gpu-mem": "0"}}, "device plugin away"),
    ],
)
def test_a_node_that_takes_no_pods_does_not_fit(status: dict[str, object], words: str, golden: Golden) -> None:
    raw = node("b", "10.0.0.2", 16)
    raw["status"].update(status)
    found = by_node(read_all([raw], []), asks(mem=1))["b"]
    assert (found.fits, found.words) == (False, f"{words}: the node takes no new pods")
    assert [cure.kind for cure in found.cures] == ["describe-node"]
    wants = asks(mem=1)
    golden(conclude(wants, [found], "", None).sentence)


def test_nodes_without_usable_gpus_say_so(golden: Golden) -> None:
    found = by_node(read_all([node("a", "10.0.0.1", gpus='{"v":9}')], []), asks(mem=1))["a"]
    golden(found.reason)
    assert found.cures == ()


@pytest.mark.parametrize("seed", range(40))
def test_every_cure_holds_by_a_count_of_its_own(seed: int) -> None:
    """Plain memory: a GPU takes the pod if it is usable and the units of its pods leave so many."""
    draw = random.Random(seed)
    gpus = {i: (draw.choice((8, 16)), draw.random() < 0.8) for i in range(4)}
    inventory = Inventory(GIB, tuple(gpu(i, size, cordoned=not usable) for i, (size, usable) in gpus.items()))
    pods: dict[str, tuple[int, int]] = {}
    for number in range(draw.randrange(12)):
        index, units = draw.randrange(4), draw.randrange(1, 9)
        if sum(u for i, u in pods.values() if i == index) + units <= gpus[index][0]:
            pods[f"p{number}"] = (index, units)
    cluster = read_all([node("a", "x", gpus=inventory)], [pod(name, "a", gpu=i, mem=u) for name, (i, u) in pods.items()])
    wanted = draw.randrange(1, 20)

    def fits(units: int, without: tuple[str, ...] = (), uncordoned: int = -1) -> bool:
        used = {i: sum(u for name, (j, u) in pods.items() if j == i and name not in without) for i in gpus}
        return any((usable or i == uncordoned) and size - used[i] >= units for i, (size, usable) in gpus.items())

    verdict = by_node(cluster, asks(mem=wanted))["a"]
    assert verdict.fits is fits(wanted)
    cures = dict(cure.text.split(" ", 1) for cure in verdict.cures)
    if not verdict.fits and any(fits(units) for units in range(1, wanted)):
        smaller = int(cures["ask"].split()[3])
        assert (fits(smaller), fits(smaller + 1)) == (True, False)
    if "end" in cures and "more" not in cures["end"]:
        named = tuple(name.removeprefix("default/") for name in cures["end"].split(", "))
        assert fits(wanted, without=named)
        assert not any(fits(wanted, without=tuple(n for n in named if n != left)) for left in named)
    if "uncordon" in cures:
        assert fits(wanted, uncordoned=int(cures["uncordon"].removeprefix("GPU ")))
    elif not verdict.fits:
        assert not any(fits(wanted, uncordoned=index) for index in gpus)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    nodes = [node("a", "10.0.0.1", 16), node("b", "10.0.0.2", 8)]
    pods = [
        pod("p", "a", gpu=0, mem=10),
        pod("w", "b", annotations=allocation({"0": {"0": 8}}), count=1),
        pending("waits", "0/2 nodes are available", mem=9),
        pending("odd", mem=-1),
    ]
    items = [{**one, "kind": "Node"} for one in nodes] + [{**one, "kind": "Pod"} for one in pods]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


def test_the_command(file: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert main(["explain", "waits", "--from-file", str(file)]) == 3
    golden(capsys.readouterr().out)
    assert main(["explain", "w", "--from-file", str(file)]) == 0
    golden(capsys.readouterr().out)
    assert main(["explain", "odd", "--from-file", str(file)]) == 3
    assert capsys.readouterr().out.startswith("default/odd: container 'main', aliyun.com/gpu-mem: -1 is negative")
    assert main(["explain", "waits", "-A", "--from-file", str(file)]) == 3
    golden(capsys.readouterr().out)
    assert main(["explain", "-A", "--from-file", str(file)]) == 3
    golden(capsys.readouterr().out)
    assert main(["explain", "none", "--from-file", str(file)]) == 1
    assert "found no pod 'none' in namespace 'default'; waiting for GPUs there: odd, waits" in capsys.readouterr().err


def test_what_kube_scheduler_says_of_gpus_is_not_said_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has it node by node. Other reasons, and a verdict without a table, are shown with kube-scheduler's own words."""
    of_gpus = "0/1 nodes are available: 1 a: needs {} GiB on one GPU, at most 6 are free on one"
    reports = {"gpus": (9, of_gpus.format(9)), "cpu": (9, of_gpus.format(9) + ", 1 Insufficient cpu"), "huge": (99, of_gpus.format(99))}
    items = [{**node("a", "10.0.0.1", 16), "kind": "Node"}, {**pod("p", "a", gpu=0, mem=10), "kind": "Pod"}]
    items += [{**pending(name, words, mem=units), "kind": "Pod"} for name, (units, words) in reports.items()]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))

    def second_line(*arguments: str) -> str:
        assert main(["explain", *arguments, "--from-file", str(path)]) == 3
        return capsys.readouterr().out.splitlines()[1]

    assert second_line("gpus") == "requests 9 GiB"
    assert second_line("gpus", "-o", "wide") == f"requests 9 GiB; kube-scheduler reported: {reports['gpus'][1]}"
    assert second_line("cpu") == f"requests 9 GiB; kube-scheduler reported: {reports['cpu'][1]}"
    assert second_line("huge") == f"requests 99 units; kube-scheduler reported: {reports['huge'][1]}"
    items.append({**node("b", "10.0.0.2", gpus=Inventory(UNITS["MiB"], (gpu(0, 8),))), "kind": "Node"})
    path.write_text(json.dumps({"kind": "List", "items": items}))
    assert second_line("gpus") == "requests 9 units", "of nodes that differ"


def test_a_manifest_as_json(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "job.yaml"
    limits = {"limits": {"aliyun.com/gpu-mem": "6"}}
    template = {"spec": {"containers": [{"name": "main", "resources": limits}]}}
    manifest.write_text(yaml.safe_dump({"kind": "Job", "metadata": {"name": "j", "namespace": "team"}, "spec": {"template": template}}))
    assert main(["explain", "-f", str(manifest), "--from-file", str(file), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["v"], found["namespace"], found["name"], found["request"], found["fits"]) == (1, "team", "j", "6 units", True)
    assert [(one["name"], one["fits"], one["gpus"]) for one in found["nodes"]] == [("a", True, [0]), ("b", False, [])]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "found no YAML ("),
        ("3", "found 3; expected a Kubernetes object"),
        ("kind: Service", "found no pod; expected a Pod"),
        ("kind: Pod", "found a pod that requests no GPUs"),
        ("{kind: Pod, spec: {containers: 3}}", "found a pod that cannot be read ("),
        ("{kind: Deployment, spec: {replicas: 100000, template: {}}}", "found 100000 replicas of 'pod'; expected 0 to 10000"),
    ],
)
def test_manifests_that_are_none(text: str, said: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.yaml").write_text(text)
    assert main(["explain", "-f", str(tmp_path / "x.yaml"), "--from-file", str(file)]) == 1
    assert said in capsys.readouterr().err
    assert main(["explain", "--from-file", str(file)]) == 2
    assert "expected the name of a pod, or -f FILE" in capsys.readouterr().err


# The sentence that is said first.

CPU = "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available"


@pytest.mark.parametrize(
    ("wants", "reported", "words"),
    [
        ({"mem": 9}, "", "fits on no node; cheapest change: ask for at most 6 GiB"),
        ({"mem": 13}, "", "fits on no node; cheapest change: end default/p"),
        ({"mem": 3}, CPU, "the GPUs fit on 1 node: it waits for CPU"),
        # The taint is that of the control planes: memory is missing on as many nodes as have room.
        ({"mem": 3}, "x: 1 node(s) had untolerated taint {a: b}, 2 Insufficient memory",
         "the GPUs fit on 1 node: it waits for main memory"),
        ({"mem": 3}, "0/3 nodes are available: 3 node(s) had untolerated taint {a: b}.",
         "the GPUs fit on 1 node: it waits for a node without a taint that it does not tolerate"),
        ({"mem": 3}, 'Post "https://127.0.0.1:32766/gpushare-scheduler/filter": dial tcp 127.0.0.1:32766: connect: connection refused',
         "the GPUs fit on 1 node: it waits for the extender, which does not answer"),
        ({"mem": 3}, "Scheduling is blocked due to non-empty scheduling gates",
         "the GPUs fit on 1 node: it waits for the removal of its scheduling gates"),
        ({"mem": 3}, "1 a: needs 3 GiB on one GPU, at most 0 are free; room is reserved for the group x/team, 1 b: x",
         "the GPUs fit on 1 node: it waits for the group x/team, for which room is reserved"),
        ({"mem": 3}, "minCount (5) cannot be satisfied: 3 scheduled, 1 remaining",
         "the GPUs fit on 1 node: it waits for room for all pods of its group at once"),
        ({"mem": 3}, "", "the GPUs fit on 1 node; kube-scheduler has reported nothing yet"),
        ({"mem": 10000000000}, "",
         "fits on no GPU, even an empty one: 10000000000 means 10000000000 units of 1 GiB; the largest GPU has 16; write 10"),
        ({"count": 3}, "", "fits on no GPU, even an empty one: 3 whole GPUs of one node are asked for (aliyun.com/gpu-count); "
         "the largest node has 1; write at most 1"),
    ],
)  # fmt: skip
def test_the_verdict_comes_first(wants: dict[str, int], reported: str, words: str) -> None:
    cluster = read_all([node("a", "10.0.0.1", 16)], [pod("p", "a", gpu=0, mem=10)])
    pod_ = asks(**wants)
    assert headline(pod_, explain(cluster, pod_), reported, cluster.largest()) == words


@pytest.mark.parametrize(
    ("scheduler", "reported", "words"),
    [
        ("", "", "the GPUs fit on 1 node; kube-scheduler has reported nothing yet"),
        ("gpushare-scheduler", "", "the GPUs fit on 1 node; kube-scheduler has reported nothing yet"),
        (
            "mine",
            "",
            "the GPUs fit on 1 node; its scheduler has reported nothing yet; its scheduler is another one, 'mine' (spec.schedulerName): "
            "does it run, and does it call the extender of gpushare?",
        ),
        ("mine", "x: 3 Insufficient cpu.", "the GPUs fit on 1 node: it waits for CPU; its scheduler is another one, 'mine' (spec."),
    ],
)
def test_a_scheduler_that_is_not_ours_is_named(scheduler: str, reported: str, words: str) -> None:
    wants = pod("p", "", mem=3)
    wants["spec"]["schedulerName"] = scheduler
    if reported:
        wants["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": reported}]
    cluster = read_all([node("a", "10.0.0.1", 16)], [wants])
    (one,) = cluster.waiting.values()
    assert isinstance(one.pod, PendingPod)
    assert headline(one.pod, explain(cluster, one.pod), one.reported, cluster.largest(), one.scheduler).startswith(words)


@pytest.mark.parametrize(("cordoned", "kind"), [("GPU", "uncordon"), ("node", "uncordon-node")])
def test_a_cordon_stays_where_a_smaller_request_would_do(cordoned: str, kind: str) -> None:
    """A person has decided it, and a colleague who reads "cheapest change" does not know why."""
    full, spare = pod("p", "a", gpu=0, mem=10), node("b", "10.0.0.2", 16)
    if cordoned == "GPU":
        cluster = one_node(full, pod("q", "a", gpu=1, mem=16), gpu2={"cordoned": True})
    else:
        spare["spec"] = {"unschedulable": True}
        cluster = read_all([node("a", "10.0.0.1", 16), spare], [full])
    for mem, cheapest in ((8, "smaller"), (14, kind)):
        cure = conclude(asks(mem=mem), explain(cluster, asks(mem=mem)), "", cluster.largest()).cure
        assert cure is not None
        assert cure.kind == cheapest


def test_a_cordon_is_the_cheapest_change_and_no_node_is_said(golden: Golden) -> None:
    cluster = one_node(pod("p", "a", gpu=0, mem=16), pod("q", "a", gpu=1, mem=16), gpu2={"cordoned": True})
    wants = asks(mem=1)
    golden(headline(wants, explain(cluster, wants), "", cluster.largest()))
    golden(headline(wants, [], "", None))


def test_nodes_with_the_same_reason_are_one_row() -> None:
    nodes = [node(f"gpu{number}", "10.0.0.1", 16) for number in (1, 2, 3, 5, 6, 12)] + [node("other", "10.0.0.1", 40)]
    found = explain(read_all(nodes, [pod("p", "gpu3", gpu=0, mem=9)]), asks(mem=20))
    rows = [[cell.text for cell in row.cells] for row in table_of(found).rows]
    assert rows == [
        ["other", "yes", "0", ""],
        ["gpu1–gpu3, gpu5, gpu6, gpu12", "no", "-",
         "needs 20 GiB on one GPU, its largest GPU has 16; it fits on gpu1 if you ask for at most 16 GiB"],
    ]  # fmt: skip
    assert len(table_of(found, each=True).rows) == 7
    fits = table_of(explain(read_all(nodes, []), asks(mem=2))).rows
    assert [cell.text for cell in fits[0].cells][1:] == ["yes", "-", "first choice: GPU 0 of gpu1"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["gpu2", "gpu1"], "gpu1, gpu2"),
        (["gpu9", "gpu10", "gpu11"], "gpu9–gpu11"),
        (["a", "b"], "a, b"),
        ([f"n{2 * i}" for i in range(9)], "n0, n2, n4, n6, n8, n10 and 3 more"),
        ([], ""),
    ],
)
def test_names_in_words(names: list[str], words: str) -> None:
    assert names_in_words(names) == words


OURS = "aliyun.com/gpu-count: 1 is a whole GPU, aliyun.com/gpu-mem: 8 are 8 units of one"
ENDED = "it has no GPU any more, and only its owner starts another one"


def limited(name: str, on: str | None, limits: dict[str, str], **spec: Any) -> dict[str, Any]:
    made = pod(name, on)
    made["spec"] = {**made["spec"], "containers": [{"name": "main", "resources": {"limits": limits}}], **spec}
    return made


def failed(phase: str, **status: str) -> dict[str, Any]:
    return {**pod("p", "a", gpu=0, mem=2), "status": {"phase": phase, **status}}


def static(raw: dict[str, Any]) -> dict[str, Any]:
    raw["metadata"]["annotations"]["kubernetes.io/config.mirror"] = 32 * "a"
    return raw


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (limited("p", None, {"nvidia.com/gpu": "1"}), f"it requests nvidia.com/gpu, which gpushare does not provide: {OURS}"),
        (limited("p", "a", {"nvidia.com/mig-1g.5gb": "1", "amd.com/gpu": "2", "cpu": "1"}),
         f"it requests amd.com/gpu, nvidia.com/mig-1g.5gb, which gpushare does not provide: {OURS}"),
        (limited("p", None, {"aliyun.com/gpu-mem": "0"}), f"it requests aliyun.com/gpu-mem: 0, so none of a GPU: {OURS}"),
        (limited("p", None, {"cpu": "1"}), f"it requests no GPU: {OURS}, in the limits of a container"),
        (limited("p", None, {}, resourceClaims=[{"name": "gpu"}]),
         f"it requests devices by resourceClaims, and none of gpushare's: {OURS}"),
        (limited("p", None, {}) | {"status": {"phase": "Failed", "reason": "Evicted"}},
         f"it requests no GPU: {OURS}, in the limits of a container; it has failed (Evicted): {ENDED}"),
        (failed("Failed", reason="UnexpectedAdmissionError", message="Pod was rejected: asked for 9 units"),
         f"it has failed (UnexpectedAdmissionError: Pod was rejected: asked for 9 units): {ENDED}"),
        (failed("Succeeded"), f"it has succeeded: {ENDED}"),
        ({**pod("p", None, mem=2), "status": {"phase": "Failed"}}, f"it has failed: {ENDED}"),
        (pod("p", "a", gpu=0, mem=-1), "is on node 'a', and what it requests cannot be read: container 'main', aliyun.com/gpu-mem: -1 is "
         "negative; write how many it needs, such as 8"),
        (static(pod("p", "a", mem=2)), "it is the copy of a static pod on node 'a', and that node reports no GPU of it"),
    ],
)  # fmt: skip
def test_a_pod_that_neither_waits_for_a_gpu_nor_has_one_is_what_it_is(
    raw: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [{**node("a", "10.0.0.1", 16), "kind": "Node"}, {**raw, "kind": "Pod"}]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    for words_of_command in (["p"], ["p", "-A"]):
        assert main(["explain", *words_of_command, "--from-file", str(tmp_path / "cluster.json")]) == 3
        assert capsys.readouterr().out == f"pod default/p: {words}\n"
    assert main(["explain", "p", "-n", "other", "--from-file", str(tmp_path / "cluster.json")]) == 1


def test_a_pod_that_has_ended_is_found_in_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """The list of pods that explain reads has none of them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setitem(command.OBJECTS, "/api/v1/namespaces/default/pods/q", {**failed("Failed"), "metadata": pod("q", "a")["metadata"]})
    assert command.run(tmp_path, "explain", "q")[0] == 3
    golden(capsys.readouterr().out)


def test_the_gpus_of_a_pod_that_are_gone_or_whose_processes_only_are_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = held(
        node("a", "10.0.0.1", 16),
        gpu0=[
            {"pod": f"default/{name}", "uid": f"uid-{name}", "units": units, "why": "orphaned"}
            for name, units in (("left", 3), ("lost", 2))
        ],
    )
    said = json.loads(raw["metadata"]["annotations"]["gpushare/held"])
    said["gpus"]["GPU-old"] = [{"pod": "default/p", "uid": "uid-p", "units": 2, "why": "gone"}]
    raw["metadata"]["annotations"]["gpushare/held"] = json.dumps(said)
    items = [{**raw, "kind": "Node"}, *({**pod(name, "a", gpu=0, mem=2), "kind": "Pod"} for name in ("p", "lost"))]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    for name, words in (
        ("p", "is on node a and has 2 GiB of GPU GPU-old, which is not in this node any more (bound, GPU gone): delete it; it has no "
         "owner that would start it again, so create it again"),
        ("lost", "is on node a and has 2 GiB of GPU 0 (record lost): kubelet has no record of it (its checkpoint was lost): it keeps its "
         "GPU; delete it when convenient"),
        ("left", "is deleted; its processes on node a have 3 GiB of GPU 0 (orphaned)"),
    ):  # fmt: skip
        assert main(["explain", name, "--from-file", str(tmp_path / "cluster.json")]) == 0
        assert capsys.readouterr().out == f"pod default/{name} {words}\n"


def test_the_processes_of_a_deleted_pod_are_named_where_they_are_in_the_way() -> None:
    raw = held(node("a", "10.0.0.1", 16, 8), gpu0=[{"pod": "default/c13", "uid": "u", "units": 12, "why": "orphaned"}])
    cluster, wants = read_all([raw], []), asks(mem=16)
    found = explain(cluster, wants)
    wait = "wait for the processes of default/c13 to end, which run although the pod is deleted"
    assert cures_of(found[0]) == [("smaller", 8, ()), ("processes", 0, ("default/c13",))]
    assert headline(wants, found, "", cluster.largest()) == f"fits on no node; cheapest change: {wait} (nvidia-smi on a lists them)"
    assert cures_of(explain(cluster, asks(mem=17))[0]) == [("smaller", 8, ())], "that would not help"


def important(priority: int, **limits: int) -> PendingPod:
    return replace(asks(**limits), priority=priority)


def test_pods_of_lower_priority_that_nobody_can_evict_come_first(golden: Golden) -> None:
    """kube-scheduler finds enough in total, 24 of 40, and so evicts nobody."""
    pods = [pod(f"low-{n}", "a", gpu=n % 2, mem=4) for n in range(4)]
    cluster = read_all([node("a", "10.0.0.1", 16, 24)], pods)
    wants = important(1000, mem=22)
    found = explain(cluster, wants)
    lesser = ("default/low-1", "default/low-3")
    assert (found[0].lesser, cures_of(found[0])) == (lesser, [("smaller", 16, ()), ("end", 0, lesser)])
    golden(headline(wants, found, "", cluster.largest()))
    assert explain(cluster, important(0, mem=22))[0].lesser == ()
    # By the sums it is too little: kube-scheduler evicts.
    full = [*pods, pod("more", "a", gpu=1, mem=16), pod("yet-more", "a", gpu=0, mem=4)]
    assert explain(read_all([node("a", "10.0.0.1", 16, 24)], full), wants)[0].lesser == ()
    # For a group it evicts nobody, whatever the sums are.
    of_group = replace(wants, group=Group("default/team", at_once=True))
    found = explain(read_all([node("a", "10.0.0.1", 16, 24)], full), of_group)
    golden(headline(of_group, found, "", cluster.largest()))
    # Of one GPU not enough may go.
    some = [pod("equal", "a", gpu=1, mem=3), pod("low", "a", gpu=1, mem=4)]
    some[0]["spec"]["priority"] = 1000
    assert explain(read_all([node("a", "10.0.0.1", 16, 24)], some), wants)[0].lesser == ()
    assert explain(read_all([node("a", "10.0.0.1", 16, 24)], some), important(1000, mem=21))[0].lesser == ("default/low",)
    # Memory does not count for whole GPUs.
    assert explain(read_all([node("a", "10.0.0.1", 16)], [pod("low", "a", gpu=0, mem=1)]), important(1, count=1))[0].lesser == (
        "default/low",
    )


def lease(seconds_ago: float, lasts: int = 15) -> dict[str, Any]:
    renewed = datetime.fromtimestamp(time.time() - seconds_ago, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    spec = {"holderIdentity": "cp1_7f-1", "renewTime": renewed, "leaseDurationSeconds": lasts}
    return {"metadata": {"name": "kube-scheduler", "namespace": "kube-system"}, "spec": spec}


@pytest.mark.parametrize(
    ("asks_for", "items", "words"),
    [
        (9, [lease(86)], r"team/w: nothing is scheduled: kube-scheduler has no leader; cp1 was the last one, \d+ s ago \(kubectl gpushare "
         r"status has what to do\)\nrequests 9 GiB\n"),
        (99, [lease(86)],
         r"team/w: nothing is scheduled: .*; it fits on no GPU, even an empty one: 99 .*; write at most 16\nrequests .*\n"),
        (9, [lease(1, 3600)], r"team/w: the GPUs fit on 1 node; kube-scheduler has reported nothing yet\n(.*\n)+"),
        # Without leader election there is none: it cannot be told from a scheduler that has never run.
        (9, [], r"team/w: the GPUs fit on 1 node; kube-scheduler has reported nothing yet\n(.*\n)+"),
    ],
)  # fmt: skip
def test_without_a_leader_no_change_of_a_pod_helps(
    asks_for: int, items: list[Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for item in items:
        monkeypatch.setitem(command.OBJECTS, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler", item)
    monkeypatch.setitem(command.OBJECTS, "/api/v1/namespaces/team/pods/w", pending("w", mem=asks_for, namespace="team"))
    command.run(tmp_path, "explain", "w", "-n", "team")
    printed = capsys.readouterr().out
    assert re.fullmatch(words, printed), printed
    (tmp_path / ".kube/config").unlink()
    (tmp_path / ".kube").rmdir()
    command.run(tmp_path, "explain", "-A", "-o", "json")
    verdict = json.loads(capsys.readouterr().out)["pods"][0]["verdict"]
    assert re.sub(r"\d+ s ago", "", f"team/w: {verdict}") == re.sub(r"\d+ s ago", "", printed.partition("\n")[0])


def warned(name: str, reason: str, message: str, **fields: Any) -> dict[str, Any]:
    at = datetime.fromtimestamp(time.time() - 40, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"uid": f"uid-{name}", "name": name, "namespace": "default"}
    made = {"type": "Warning", "reason": reason, "message": message, "source": {"component": "kubelet"}, "lastTimestamp": at}
    return {**made, "involvedObject": about, "metadata": {}, **fields}


SANDBOX = 'Failed to create pod sandbox: rpc error: code = Unknown: failed to get sandbox image "registry.k8s.io/pause:3.10": not found'
CRASHED = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container=main pod=p_default(uid-p)"}}
ENDED_WITH = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


@pytest.mark.parametrize(
    ("statuses", "events", "words"),
    [
        ([{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}], [warned("p", "FailedCreatePodSandBox", SANDBOX)],
         f"does not run: ContainerCreating; the last Warning of kubelet, N s ago: FailedCreatePodSandBox: {SANDBOX}"),
        ([], [], "is being started: ContainerCreating"),
        ([{"name": "main", "state": CRASHED, "lastState": ENDED_WITH}], [],
         f"does not run: CrashLoopBackOff of container main: {CRASHED['waiting']['message']}; it ended with exit code 137 (OOMKilled)"),
        ([{"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}],
         # Of a pod with the same name before, of its scheduling, and about its GPU.
         [warned("p", "Failed", "old", involvedObject={"uid": "other"}), warned("p", "FailedScheduling", "0/3"),
          warned("p", "GPUShareUnmanaged", "x"), warned("p", "BackOff", 2000 * "\x1b", lastTimestamp=None)],
         f"does not run: ImagePullBackOff of container main: not found; the last Warning of kubelet: BackOff: {300 * ' '}"),
        ([{"name": "i", "state": {"waiting": {"reason": "CreateContainerError", "message": "unresolvable CDI devices"}}},
          {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}], 403,
         "does not run: CreateContainerError of container i: unresolvable CDI devices"),
        ([{"name": "main", "state": {"running": {}}}], [warned("p", "Unhealthy", "Readiness probe failed")], ""),
    ],
)  # fmt: skip
def test_a_pod_that_is_on_a_node_and_does_not_run_has_kubelets_words_first(
    statuses: list[Any],
    events: Any,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    raw = pod("p", "gpu1", gpu=1, mem=6, phase="Pending")
    raw["status"]["containerStatuses"] = statuses
    monkeypatch.setitem(command.OBJECTS, "/api/v1/namespaces/default/pods/p", raw)
    for number, event in enumerate(events if isinstance(events, list) else ()):
        monkeypatch.setitem(command.OBJECTS, f"/api/v1/namespaces/default/events/{number}", event)

    async def forbidden(request: web.Request) -> web.StreamResponse | None:
        return status(events, "Forbidden", "no") if isinstance(events, int) and request.path.endswith("/events") else None

    assert command.run(tmp_path, "explain", "p", faults=lambda: 20 * [forbidden])[0] == 0
    printed = re.sub(r"\d+ s ago", "N s ago", capsys.readouterr().out)
    assert printed.startswith(f"pod default/p {words}\n" if words else "pod default/p is on node")
    golden(printed)
