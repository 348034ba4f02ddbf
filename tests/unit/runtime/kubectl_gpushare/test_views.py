# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What each view shows, character by character. `$` marks the end of a line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.protocol import ISOLATION_WATCH
from gpushare_runtime.core.quantity import GIB, UNITS
from gpushare_runtime.kubectl_gpushare.cluster import Cluster, Used
from gpushare_runtime.kubectl_gpushare.errors import UsageError
from gpushare_runtime.kubectl_gpushare.layout import BAD, GOOD, ODD, WARN, Cell, Column, Table, TableRow, lines_of
from gpushare_runtime.kubectl_gpushare.output import Format, render
from gpushare_runtime.kubectl_gpushare.selectors import parse_selector
from gpushare_runtime.kubectl_gpushare.views import VIEWS, Selection, age, document, gpus_of, names_of, nodes_view, shows_any
from tree import REPOSITORY
from unit.fakes.runtime.core.ledger_schema import check
from unit.fakes.runtime.kubectl_gpushare.objects import allocation, held, node, original_node, pending, pod, read_all
from unit.fakes.runtime.pods import gpu, inventory
from unit.golden import Golden


def golden(text: str) -> str:
    return text.replace("$\n", "\n").removeprefix("\n")


def shown(cluster: Cluster, view: str = "nodes", select: Selection | None = None, **form: Any) -> str:
    return render(cluster, view, select or Selection(), Format(**form))


def sixteen() -> Cluster:
    gpus = tuple(gpu(i, 16, health="XID 79: see dmesg" if i == 3 else "ok", cordoned=i == 5) for i in range(16))
    gone = {"pod": "default/gone", "uid": "u1", "units": 3, "why": "orphaned"}
    nodes = [held(node("gpu1", "10.0.0.1", gpus=Inventory(GIB, gpus)), gpu2=[gone]), node("gpu2", "10.0.0.2", 16, 24)]
    pods = [
        pod("a", "gpu1", gpu=0, mem=6),
        pod("whole", "gpu1", annotations=allocation({"0": {"1": 16}}), count=1),
        pod("two", "gpu1", annotations=allocation({"0": {"7": 4, "8": 4}}), mem=8),
        pod("bad", "gpu1", gpu=3, mem=5),
    ]
    return read_all(nodes, pods)


def test_no_node() -> None:
    assert shown(Cluster()) == golden("""
NAME  GPUS  ALLOC/TOTAL  LARGEST  ISOLATION$
$
0 of 0 GiB allocated, 0 GiB free on usable GPUs, 0 pods pending$
""")
    assert shown(Cluster(), headers=False) == ""


def test_one_gpu() -> None:
    assert shown(read_all([node("gpu1", "10.0.0.1", 16)], [pod("p", "gpu1", gpu=0, mem=6)])) == golden("""
NAME  GPUS  ALLOC/TOTAL  LARGEST  ISOLATION  GPU0$
gpu1   1/1         6/16       10  -          6/16$
$
6 of 16 GiB allocated (37 %), 10 GiB free on usable GPUs, 0 pods pending$
""")


def test_mig_instances_have_rows_of_their_own_and_one_cell_of_their_gpu() -> None:
    changes = {"pci": "0000:01:00.0", "minor": 1, "model": "NVIDIA A100-SXM4-80GB MIG 1g.10gb"}
    instances = [gpu(11070 + 10 * i, 9, uuid=f"MIG-{i}", **changes) for i in range(3)]
    instances[2] = replace(instances[2], health="XID 79: the GPU has fallen off the bus")
    made = Inventory(GIB, (gpu(0, 16), *instances))
    cluster = read_all([node("gpu1", "10.0.0.1", gpus=made)], [pod("p", "gpu1", gpu=11080, mem=6), pod("q", "gpu1", gpu=0, mem=1)])
    assert (
        shown(cluster).splitlines()[:2]
        == golden("""
NAME  GPUS  ALLOC/TOTAL  LARGEST  ISOLATION  GPU0    GPU1$
gpu1   3/4         7/43       15  -          1/16    6/27 B$
""").splitlines()
    )
    rows = [row.split() for row in shown(cluster, "gpus", headers=False).splitlines()]
    assert [(row[1], row[-1] if row[1] != "11090" else "bad") for row in rows] == [
        ("0", "ok"),
        ("11070", "ok"),
        ("11080", "ok"),
        ("11090", "bad"),
    ]
    assert shown(cluster, "pods", headers=False).count("11080") == 1


def shut(name: str, why: str) -> dict[str, Any]:
    made = node(name, "10.0.0.1", 16)
    if why == "not ready":
        made["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    elif why == "cordoned":
        made["spec"] = {"unschedulable": True}
    elif why == "plugin away":
        made["status"]["allocatable"] = {"aliyun.com/gpu-mem": "0"}
    return made


def test_what_no_pod_can_get_is_not_free() -> None:
    cluster = read_all([shut(f"gpu{i}", why) for i, why in enumerate(("", "not ready", "cordoned", "plugin away"))], [])
    assert shown(cluster) == golden("""
NAME   GPUS  ALLOC/TOTAL  LARGEST  ISOLATION  GPU0$
gpu0    1/1         0/16       16  -          0/16$
gpu1  1/1 N         0/16        -  -          0/16$
gpu2  1/1 S         0/16        -  -          0/16$
gpu3  1/1 P         0/16        -  -          0/16$
$
N node not ready  S node cordoned  P device plugin away$
0 of 64 GiB allocated (0 %), 16 GiB free on usable GPUs, 0 pods pending$
""")
    rows = shown(cluster, "gpus", headers=False).splitlines()
    assert [row.split()[6] for row in rows] == ["16", "-", "-", "-"]
    assert [row.rpartition("  ")[2] for row in rows] == ["ok", "node not ready", "node cordoned", "device plugin away"]
    ((_tesla, _t4, _nodes, every, usable, *_, free, _largest, _unit),) = [
        row.split() for row in shown(cluster, "models", headers=False).splitlines()
    ]
    assert (every, usable, free) == ("4", "1", "16")


def test_the_quick_start_shows_what_is_printed() -> None:
    gpus = [replace(inventory(*units), isolation=ISOLATION_WATCH) for units in ((16, 16), (16, 24))]
    nodes = [node(f"gpu{number}", f"10.0.0.{number}", gpus=one) for number, one in enumerate(gpus, 1)]
    pods = [pod(f"share-{number}", "gpu1", gpu=place, mem=6) for number, place in enumerate((0, 0, 1))]
    page = (REPOSITORY / "docs/start/quickstart.md").read_text()
    assert f"```text\n{shown(read_all(nodes, pods))}```\n" in page


def test_sixteen_gpus_on_eighty_columns() -> None:
    assert shown(sixteen(), width=80) == golden("""
NAME   GPUS  ALLOC/TOTAL  LARGEST  ISOLATION  GPU0     GPU1     GPU2     GPU3$
                                              GPU4     GPU5     GPU6     GPU7$
                                              GPU8     GPU9     GPU10    GPU11$
                                              GPU12    GPU13    GPU14    GPU15$
gpu1  14/16       38/256       16  -          6/16     16/16 W  3/16 O   5/16 B$
                                              0/16     0/16 C   0/16     4/16$
                                              4/16     0/16     0/16     0/16$
                                              0/16     0/16     0/16     0/16$
gpu2    2/2         0/40       24  -          0/16     0/24     -        -$
$
B bad  C cordoned  O orphaned units  W whole GPU$
38 of 296 GiB allocated (12 %), 231 GiB free on usable GPUs, 0 pods pending$
""")


@pytest.mark.parametrize("width", [80, 100])
def test_sixteen_gpus_are_a_glyph_each_where_their_numbers_do_not_fit(width: int) -> None:
    assert shown(sixteen(), width=width, blocks=True) == golden("""
NAME   GPUS  ALLOC/TOTAL  LARGEST  ISOLATION  GPU0-15$
gpu1  14/16       38/256       16  -          ▄█▂x·c·▃▃·······$
gpu2    2/2         0/40       24  -          ··$
$
GPUs: · empty  ▁ to █ allocated  x bad  c cordoned$
38 of 296 GiB allocated (12 %), 231 GiB free on usable GPUs, 0 pods pending$
""")


def test_a_bar_stands_before_the_numbers_where_all_of_them_fit() -> None:
    cluster = read_all([node("gpu1", "10.0.0.1", 16, 16, 16)], [pod("a", "gpu1", gpu=0, mem=6), pod("b", "gpu1", gpu=1, mem=16)])
    assert shown(cluster, width=90, blocks=True).splitlines()[:2] == [
        "NAME  GPUS  ALLOC/TOTAL  LARGEST  ISOLATION  GPU0       GPU1       GPU2",
        "gpu1   3/3        22/48       16  -          █▏  6/16   ███ 16/16      0/16",
    ]
    assert "█" not in shown(cluster, width=75, blocks=True)
    assert "█" not in shown(cluster)


def test_sixteen_gpus_on_two_hundred_columns() -> None:
    lines = shown(sixteen(), width=200).splitlines()
    assert [line.split()[5:] for line in lines[:1]] == [[f"GPU{i}" for i in range(16)]]
    cells = "6/16 16/16 W 3/16 O 5/16 B 0/16 0/16 C 0/16 4/16 4/16"
    assert lines[1].split()[5:] == [*cells.split(), *["0/16"] * 7]
    assert lines[2].split()[5:] == ["0/16", "0/24", *"-" * 14]
    assert max(map(len, lines)) <= 200
    assert shown(sixteen(), width=200) == shown(sixteen())


def test_gpus_each_with_its_state() -> None:
    assert (
        shown(sixteen(), "gpus", Selection(frozenset(("gpu1", "gpu2")))).splitlines()[:8]
        == golden("""
NODE  GPU  MODEL     ALLOCATED  TOTAL  FREE  PODS  STATE$
gpu1    0  Tesla T4          6     16    10     1  ok$
gpu1    1  Tesla T4         16     16     0     1  whole$
gpu1    2  Tesla T4          3     16    13     1  3 orphaned$
gpu1    3  Tesla T4          5     16     -     1  bad: XID 79: see dmesg$
gpu1    4  Tesla T4          0     16    16     0  ok$
gpu1    5  Tesla T4          0     16     -     0  cordoned$
gpu1    6  Tesla T4          0     16    16     0  ok$
""").splitlines()
    )


def test_mixed_gpus_an_absent_one_small_units_and_a_node_of_the_original() -> None:
    small = Inventory(UNITS["64MiB"], (gpu(1, 256, model="A100", mib=16384),))
    nodes = [node("mib", "10.0.0.3", gpus=small), original_node("old", "10.0.0.4", memory=30, count=2), node("mixed", "10.0.0.2", 16, 24)]
    cluster = read_all(nodes, [pod("p", "mib", gpu=1, mem=100), pod("o", "old", gpu=1, mem=5)])
    assert shown(cluster) == golden("""
NAME   GPUS  ALLOC/TOTAL  LARGEST  UNIT   ISOLATION  GPU0     GPU1$
mib     1/1      100/256      156  64MiB  -          -        100/256$
mixed   2/2         0/40       24  GiB    -          0/16     0/24$
old     2/2         5/30       15  GiB    -          0/15     5/15$
$
11.25 of 86 GiB allocated (13 %), 74.75 GiB free on usable GPUs, 0 pods pending$
""")
    assert shown(cluster, "models") == golden("""
MODEL     NODES  GPUS  USABLE  EMPTY  ALLOCATED  TOTAL  FREE  LARGEST  UNIT$
-             1     2       2      1          5     30    25       15  GiB$
A100          1     1       1      0        100    256   156      156  64MiB$
Tesla T4      1     2       2      2          0     40    40       24  GiB$
""")


def people() -> Cluster:
    """A cluster with one pod of each kind."""
    nodes = [
        held(
            node("gpu1", "10.0.0.1", 16, 16, 24),
            gpu0=[{"pod": "lab/gone", "uid": "u1", "units": 3, "why": "orphaned"}],
            gpu1=[{"pod": "lab/static", "uid": "uid-static", "units": 2, "why": "unmanaged"}],
        ),
        node("gpu2", "10.0.0.2", 16),
    ]
    leaving = pod("leaving", "gpu1", gpu=0, mem=6)
    leaving["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "creationTimestamp": "2025-12-29T00:00:00Z"}
    two = pod("two", "gpu1", annotations=allocation({"0": {"1": 4, "2": 4}}), mem=8)
    two["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "two"}]
    pods = [
        leaving,
        pod("whole", "gpu2", annotations=allocation({"0": {"0": 16}}), count=1),
        two,
        pod("static", "gpu1", namespace="lab", mem=2),
        pod("lost", "gpu2", namespace="lab", mem=3),
        pending("waits", "0/2 nodes are available: gpu1: needs 20 GiB on one GPU, at most 9 are free", mem=20),
        pending("large", "0/2 nodes are available", "lab", mem=25),
        pending("new", "", "lab", mem=1),
        pending("odd", "", "lab", mem=-1),
    ]
    cluster = read_all(nodes, pods)
    cluster.now = lambda: 1767225600.0  # 2026-01-01
    return cluster


def test_pods_of_a_bad_and_of_a_cordoned_gpu_are_marked_and_chosen_by_gpu() -> None:
    cluster = sixteen()
    cluster.set_pod(pod("cordoned", "gpu1", gpu=5, mem=1))
    assert shown(cluster, "pods", Selection(namespace="default")) == golden("""
NAME      NODE  GPU  ALLOCATED  AGE  STATE                REASON$
a         gpu1  0        6 GiB    -  bound$
bad       gpu1  3        5 GiB    -  bound, GPU bad       GPU 3: XID 79: see dmesg$
cordoned  gpu1  5        1 GiB    -  bound, GPU cordoned$
gone      gpu1  2        3 GiB    -  orphaned             the pod object is gone, its processes are not$
two       gpu1  7,8      8 GiB    -  bound$
whole     gpu1  1       16 GiB    -  whole$
""")
    for select, names in (
        (Selection(node="gpu2"), []),
        (Selection(node="gpu1", gpu="8"), ["two"]),
        (Selection(gpu=gpu(3, 1).uuid), ["bad"]),
        (Selection(node="gpu1", gpu="9"), []),
    ):
        assert [line.split()[1] for line in shown(cluster, "pods", select, headers=False).splitlines()] == names


def gone() -> Cluster:
    """GPU 1 of the node is another one since its pods have it; so is one of two GPUs of the pod `two`."""
    raw = held(node("gpu1", "x", 16, 16), gpu1=[{"pod": "default/two", "uid": "uid-two", "units": 4, "why": "gone"}])
    said = json.loads(raw["metadata"]["annotations"]["gpushare/held"])
    said["gpus"]["GPU-old"] = [{"pod": "default/a", "uid": "uid-a", "units": 12, "why": "gone"}] + [
        {"pod": f"default/{name}", "uid": f"uid-{name}", "units": 4, "why": "gone"} for name in ("two", "unknown")
    ]
    raw["metadata"]["annotations"]["gpushare/held"] = json.dumps(said)
    several = pod("two", "gpu1", annotations=allocation({"0": {"0": 4, "1": 4}}), mem=8)
    several["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    return read_all([raw], [pod("a", "gpu1", gpu=1, mem=12), several])


def test_a_gpu_that_is_not_in_its_node_any_more_is_named_and_nothing_is_charged_to_the_one_in_its_place() -> None:
    cluster = gone()
    assert shown(cluster, "pods", Selection(namespace="default")) == golden("""
NAME  NODE  GPU  ALLOCATED  AGE  STATE            REASON$
a     gpu1  -            -    -  bound, GPU gone  it has 12 GiB of GPU GPU-old, which is not in this node any more: delete it$
two   gpu1  1        4 GiB    -  bound, GPU gone  it has 4 GiB of GPU GPU-old, which is not in this node any more: delete it$
""")
    assert shown(cluster, "gpus") == golden("""
NODE  GPU  MODEL     ALLOCATED  TOTAL  FREE  PODS  STATE$
gpu1    0  Tesla T4          0     16    16     0  ok$
gpu1    1  Tesla T4          4     16    12     1  ok$
gpu1    -  -                16      -     -     2  gone: not in this node any more; UUID GPU-old$
""")
    names = [line.split()[1] for line in shown(cluster, "pods", Selection(gpu="GPU-old"), headers=False).splitlines()]
    assert names == ["a", "two"]
    assert VIEWS["pods"](cluster, Selection()).rows[0].cells[12].style == BAD
    assert "a" in shown(cluster, "top", Selection(namespace="default"))


def test_top_has_those_who_use_most_first_and_marks_who_is_over() -> None:
    cluster = people()
    idle = {"uid-whole": cluster.now() - 7200}
    cluster.used = Used({"uid-two": 9 * 1024, "uid-static": 512, "uid-whole": 100}, {}, {"uid-two": 150, "uid-whole": 0}, {}, idle)
    assert shown(cluster, "top", Selection()) == golden("""
NAMESPACE  NAME     NODE  GPU     USED  ALLOCATED    %    SM  IDLE  STATE$
default    two      gpu1  1,2    9 GiB      8 GiB  112  150%     -  bound, over$
lab        static   gpu1  1    0.5 GiB      2 GiB   25     -     -  unmanaged$
default    whole    gpu2  0    0.1 GiB     16 GiB    0    0%    2h  whole$
default    leaving  gpu1  0          -      6 GiB    -     -     -  terminating$
lab        gone     gpu1  0          -      3 GiB    -     -     -  orphaned$
lab        lost     gpu2  ?          -          -    -     -     -  bound$
""")
    assert shown(cluster, "namespaces", Selection(names=["default"])) == golden("""
NAMESPACE  PODS  PENDING  WHOLE  GIB    SM  IDLE  SHARE$
default       3        1      1   30  150%     1  41.7%$
""")


def test_idle_pods_are_listed_with_what_frees_their_gpus() -> None:
    """Who has most for longest comes first."""
    kept = held(
        node("gpu1", "10.0.0.1", gpus=inventory(16)), gpu0=[{"pod": "kube-system/--all", "uid": "u1", "units": 1, "why": "orphaned"}]
    )
    web = pod("web-5d4-a", "gpu1", gpu=0, mem=2)
    web["metadata"] |= {"labels": {"pod-template-hash": "5d4"}, "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d4"}]}
    cluster = read_all([kept], [web, pod("e", "gpu1", gpu=0, mem=3), pod("busy", "gpu1", gpu=0, mem=1)])
    cluster.used = Used(idle=dict.fromkeys(("uid-web-5d4-a", "uid-e", "u1"), cluster.now() - 3600))
    rows = VIEWS["idle"](cluster, Selection()).rows
    assert [(row.cells[1].text, row.cells[6].text, row.cells[-1].text.partition(":")[0]) for row in rows] == [
        ("e", "60m", "kubectl delete pod e -n default"),
        ("web-5d4-a", "60m", "kubectl scale deployment web -n default --replicas=0"),
        ("--all", "60m", "none"),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("soon", 0.0),
        (7, 0.0),
        (None, 0.0),
        ("9" * 100_000, 0.0),
        ("0001-01-01T00:00:00+23:59", 0.0),
    ],
)
def test_when_a_pod_was_created(text: Any, seconds: float) -> None:
    raw = pod("p", "a", gpu=0, mem=1)
    raw["metadata"]["creationTimestamp"] = text
    found = read_all([], [raw]).pods["uid-p"].created
    assert found == seconds or text[:4] == "0001"


def test_ages() -> None:
    cells = {seconds: age(1.0, 1.0 + seconds).text for seconds in (0, 119, 120, 7199, 7200, 172799, 172800, -5)}
    assert list(cells.values()) == ["0s", "119s", "2m", "119m", "2h", "47h", "2d", "0s"]
    assert age(0.0, 5.0).text == "-"


def test_pods_of_every_kind() -> None:
    lines = shown(people(), "pods").splitlines(keepends=True)
    assert lines.pop().endswith(" such as 8\n")
    assert "".join(lines) == golden("""
NAMESPACE  NAME     NODE  GPU  ALLOCATED  AGE  STATE        REASON$
default    leaving  gpu1  0        6 GiB   3d  terminating$
default    two      gpu1  1,2      8 GiB    -  bound$
default    whole    gpu2  0       16 GiB    -  whole$
lab        gone     gpu1  0        3 GiB    -  orphaned     the pod object is gone, its processes are not$
lab        lost     gpu2  ?            -    -  bound        its GPU is not known$
lab        static   gpu1  1        2 GiB    -  unmanaged    no scheduler gave it this GPU$
default    waits    -     -            -    -  pending      0/2 nodes are available: gpu1: needs 20 GiB on one GPU, at most 9 are free$
lab        large    -     -            -    -  pending      25 means 25 units of 1 GiB; the largest GPU has 24; write at most 24$
lab        new      -     -            -    -  pending      kube-scheduler has reported nothing yet$
""")


def test_a_long_reason_stands_below_its_row_on_a_narrow_terminal() -> None:
    assert shown(people(), "pods", Selection(namespace="default"), width=60) == golden("""
NAME     NODE  GPU  ALLOCATED  AGE  STATE        REASON$
leaving  gpu1  0        6 GiB   3d  terminating$
two      gpu1  1,2      8 GiB    -  bound$
whole    gpu2  0       16 GiB    -  whole$
waits    -     -            -    -  pending$
    0/2 nodes are available: gpu1: needs 20 GiB on one GPU,
    at most 9 are free$
""")


def test_a_reason_is_folded_in_its_column_where_there_is_room() -> None:
    words = [f"reason-{number}" for number in range(7)]
    first, rest, whole = (" ".join(words[part]) for part in (slice(5), slice(5, None), slice(None)))
    table = Table([Column("NODES"), Column("REASON", flexible=True)], [TableRow("gpu1", [Cell("gpu1"), Cell(whole)])])
    assert lines_of(table, width=55)[1:] == [f"gpu1   {first}", f"       {rest}"]
    assert lines_of(table, width=54)[1:] == ["gpu1", f"    {first}", f"    {rest}"]
    assert lines_of(table, width=80)[1:] == [f"gpu1   {whole}"]


@pytest.mark.parametrize("width", [40, 80])
def test_a_reason_of_blanks_alone_is_an_empty_one(width: int) -> None:
    """Others write it: the message of a pod's condition, the name of a process."""
    table = Table([Column("NODES"), Column("REASON", flexible=True)], [TableRow("gpu1", [Cell("gpu1"), Cell(100 * " ")])])
    assert lines_of(table, width=width)[1:] == ["gpu1"]


def test_namespaces() -> None:
    assert shown(people(), "namespaces") == golden("""
NAMESPACE  PODS  PENDING  WHOLE  GIB  SHARE$
default       3        1      1   30  41.7%$
lab           3        3      0    5   6.9%$
""")


def test_wide() -> None:
    cluster = people()
    assert (
        shown(cluster, name="wide").splitlines()[:3]
        == golden("""
NAME  GPUS  ALLOC/TOTAL  LARGEST  UNIT  ISOLATION  FREE  EMPTY  ADDRESS   MODEL     STRATEGY  STATE       GPU0     GPU1     GPU2$
gpu1   3/3        19/56       20  GiB   -            37      0  10.0.0.1  Tesla T4  -         3 orphaned  9/16 O   6/16     4/24$
gpu2   1/1        16/16        0  GiB   -             0      0  10.0.0.2  Tesla T4  -         ok          16/16 W  -        -$
""").splitlines()
    )
    assert "  1 bad, 1 cordoned, 3 orphaned  " in shown(sixteen(), name="wide").splitlines()[1]
    assert shown(cluster, "pods", Selection(frozenset(("two",))), name="wide") == golden("""
NAMESPACE  NAME  NODE  GPU  ALLOCATED  USED  SM  AGE  OWNER           PRIORITY  REQUEST  UID      STATE  REASON$
default    two   gpu1  1,2      8 GiB     -   -    -  ReplicaSet/two         0  8 GiB    uid-two  bound$
""")
    assert shown(cluster, "gpus", Selection(frozenset(("gpu2",))), name="wide").splitlines()[1].split()[9:] == (
        ["-", "-", "16384", "-", "-", "0", "0000:00:00.0", "GPU-00000000", "whole"]
    )


def test_names_sorting_and_no_headers(golden: Golden) -> None:
    cluster = people()
    assert shown(cluster, "pods", Selection(namespace="default"), name="name").split() == [
        f"pod/{n}" for n in ("leaving", "two", "whole", "waits")
    ]
    assert shown(cluster, "gpus", name="name").split() == ["gpu/gpu1/0", "gpu/gpu1/1", "gpu/gpu1/2", "gpu/gpu2/0"]
    by_free = shown(cluster, "gpus", name="name", sort_by="free", reverse=True).split()
    assert by_free == ["gpu/gpu1/2", "gpu/gpu1/1", "gpu/gpu1/0", "gpu/gpu2/0"]
    assert shown(cluster, "nodes", headers=False, sort_by="FREE").split()[0] == "gpu2"
    with golden.raised(UsageError):
        shown(cluster, sort_by="no")


def test_labels_of_nodes_and_of_pods() -> None:
    one, other = node("a", "10.0.0.1", 8), node("b", "10.0.0.2", 8)
    one["metadata"]["labels"] = {"pool": "x"}
    mine = pod("mine", "a", gpu=0, mem=1)
    mine["metadata"]["labels"] = {"app": "web"}
    wants = pending("wants", "", mem=1)
    wants["metadata"]["labels"] = {"app": "web"}
    cluster = read_all([one, other], [mine, wants, pod("theirs", "b", gpu=0, mem=1)])
    assert shown(cluster, "nodes", Selection(labels=parse_selector("pool=x")), name="name") == "node/a\n"
    assert shown(cluster, "pods", Selection(labels=parse_selector("app in (web)")), name="name").split() == [
        "pod/default/mine",
        "pod/default/wants",
    ]


def test_colours_change_nothing_but_colours() -> None:
    plain, painted = shown(sixteen(), width=80), shown(sixteen(), width=80, colours=True)
    assert "\x1b[1;31m5/16 B\x1b[0m" in painted
    for code in ("0", "1", "1;31", "32", "33", "35"):
        painted = painted.replace(f"\x1b[{code}m", "")
    assert painted == plain


def test_json_is_of_the_published_form_for_every_view() -> None:
    cluster = people()
    for view in ("nodes", "gpus", "pods", "namespaces", "models"):
        made = json.loads(shown(cluster, view, name="json"))
        check(made)
        assert [one["name"] for one in made["nodes"]] == ["gpu1", "gpu2"]
        assert [one["name"] for one in made["pending"]] == ["waits", "large", "new", "odd"]
    made = json.loads(shown(cluster, "pods", Selection(namespace="lab"), name="json"))
    check(made)
    assert [(n["name"], [p["name"] for p in n["pods"]], [h["pod"] for h in n["held"]]) for n in made["nodes"]] == [
        ("gpu1", ["static"], ["lab/gone", "lab/static"]),
        ("gpu2", ["lost"], []),
    ]
    assert [(one["name"], one["reason"][:20]) for one in made["pending"]] == [
        ("large", "25 means 25 units of"),
        ("new", ""),
        ("odd", "container 'main', al"),
    ]
    assert yaml.safe_load(shown(cluster, "pods", Selection(namespace="lab"), name="yaml")) == made


def test_a_document_has_what_was_chosen_and_where_it_is() -> None:
    def found(view: str, *names: str, namespace: str = "") -> tuple[dict[str, list[str]], list[str], list[str]]:
        made = document(people(), view, Selection(names, namespace))
        pods = {each["name"]: sorted(pod["name"] for pod in each["pods"]) for each in made["nodes"]}
        held_by = sorted(entry["pod"] for each in made["nodes"] for entry in each["held"])
        return pods, held_by, sorted(one["name"] for one in made["pending"])

    both, waiting = ["lab/gone", "lab/static"], ["large", "new", "odd", "waits"]
    everything = {"gpu1": ["leaving", "static", "two"], "gpu2": ["lost", "whole"]}
    # Of nodes, GPUs and models: whole nodes.
    assert found("nodes") == found("gpus") == found("models") == (everything, both, waiting)
    for view in ("nodes", "gpus"):
        assert found(view, "gpu2", "gpu9") == ({"gpu2": ["lost", "whole"]}, [], waiting)
    assert found("models", "Tesla T4") == (everything, both, waiting)
    assert found("models", "A100") == ({}, [], waiting)
    # Of pods and namespaces: those, with their nodes.
    assert found("pods", "two", "waits") == ({"gpu1": ["two"]}, [], ["waits"])
    assert found("pods", "two", namespace="lab") == ({}, [], [])
    assert found("namespaces", "lab") == found("pods", namespace="lab") == ({"gpu1": ["static"], "gpu2": ["lost"]}, both, waiting[:3])
    assert found("namespaces", "default") == ({"gpu1": ["leaving", "two"], "gpu2": ["whole"]}, [], ["waits"])


def test_which_names_a_view_can_show_whatever_was_asked_for() -> None:
    cluster = people()
    lab, default = {"gone", "static", "lost", "large", "new", "odd"}, {"leaving", "whole", "two", "waits"}
    for view, namespace, names in (
        ("nodes", "", {"gpu1", "gpu2"}),
        ("gpus", "", {"gpu1", "gpu2"}),
        ("models", "", {"Tesla T4"}),
        ("pods", "", lab | default),
        ("pods", "lab", lab),
        ("pods", "nobody", set[str]()),
        ("namespaces", "", {"lab", "default"}),
        ("namespaces", "lab", {"lab"}),
    ):
        select = Selection(("no such name",), namespace)
        assert names_of(cluster, view, select) == names
        assert shows_any(cluster, view, select) == bool(names)
        assert not names_of(Cluster(), view, select)
        assert not shows_any(Cluster(), view, select)
    # A pod may have something although it waits for nothing, and the other way round.
    for cluster in (read_all([], [pending("w", mem=1)]), read_all([node("a", "10.0.0.1", 8)], [pod("p", "a", gpu=0, mem=1)])):
        assert shows_any(cluster, "pods", Selection())


def test_what_is_in_use_is_shown_in_the_units_of_the_node_and_of_a_namespace_in_gib(golden: Golden) -> None:
    small = Inventory(UNITS["64MiB"], (gpu(0, 256, mib=16384, model="T4"),))
    pods = [pod("p", "mib", gpu=0, mem=100), pod("q", "mib", gpu=0, mem=1), pod("r", "mib", gpu=0, mem=1, namespace="other")]
    cluster = read_all([node("mib", "10.0.0.1", gpus=small)], pods)
    cluster.used = Used({"uid-p": 1600, "uid-q": 448}, {gpu(0, 1).uuid: 3200})

    def column(view: str) -> list[str]:
        lines = shown(cluster, view, name="wide").splitlines()
        at = lines[0].split().index("USED")
        return [line.split()[at] for line in lines[1:] if line and "allocated" not in line]

    assert (column("gpus"), column("namespaces")) == (["50"], ["2", "-"])
    assert [row.cells[4].text for row in VIEWS["pods"](cluster, Selection()).rows] == ["100 x 64 MiB", "1 x 64 MiB", "1 x 64 MiB"]
    assert [row.cells[5].text for row in VIEWS["pods"](cluster, Selection()).rows] == ["1.56 GiB", "0.44 GiB", "-"]
    assert shown(cluster).splitlines()[1].split()[:3] == ["mib", "1/1", "50/102/256"]
    golden(shown(cluster).splitlines()[-1])
    [found] = document(cluster, "pods", Selection())["nodes"]
    assert [one["used_mib"] for one in found["pods"]] == [1600, 448, None]
    assert [one["used_mib"] for one in found["gpus"]] == [3200]
    cluster.used = Used()
    assert "USED" not in shown(cluster, "pods")


def test_the_colour_of_a_gpu_says_what_is_wrong_with_it_and_else_whether_it_is_free() -> None:
    gpu1, gpu2 = sixteen().nodes
    styles = {view.gpu.index: view.style for view in gpus_of(gpu1)}
    assert styles == dict.fromkeys(range(16), GOOD) | {0: "", 1: "", 2: ODD, 3: BAD, 5: WARN, 7: "", 8: ""}
    assert {view.style for view in gpus_of(gpu2)} == {GOOD}
    table = nodes_view(sixteen(), Selection())
    assert [row.cells[1].style for row in table.rows] == [WARN, ""]


def test_where_no_gpu_is_known_or_usable_the_sums_say_so() -> None:
    broken = Inventory(GIB, (gpu(0, 16, health="XID 79"), gpu(1, 16, cordoned=True)))
    line = shown(read_all([node("a", "10.0.0.1", gpus=broken)], []), "models", headers=False)
    assert " ".join(line.split()) == "Tesla T4 1 2 0 0 0 32 0 0 GiB"
    line = shown(read_all([], [pod("p", "gone", gpu=0, mem=1)]), "namespaces", headers=False)
    assert " ".join(line.split()) == "default 1 0 0 - -"


def test_nothing_that_a_name_says_is_obeyed_by_a_terminal() -> None:
    evil = "\x1b[2J\x1b]0;x\x07\u202e" + "n" * 100_000
    odd = held(node("a", "10.0.0.1", 8), gpu0=[])
    odd["metadata"]["annotations"]["gpushare/gpus"] = Inventory(GIB, (gpu(0, 8, health="ok"),)).to_json()
    waits = pending(evil, evil, namespace=evil, mem=1)
    cluster = read_all([odd], [waits, pod(evil, "a", gpu=0, mem=1, namespace=evil)])
    for view in ("nodes", "gpus", "pods", "namespaces", "models"):
        for name in ("table", "wide", "name"):
            text = shown(cluster, view, name=name)
            assert text.replace("\n", "").isprintable()
            assert len(text) < 20_000
        assert "\x1b" not in shown(cluster, view, name="json")
        assert "\x1b" not in shown(cluster, view, name="yaml")


def test_changes_come_and_go() -> None:
    cluster = people()
    cluster.remove_pod("uid-waits")
    cluster.remove_pod("uid-two")
    cluster.remove_node("gpu2")
    cluster.settle()
    assert "two" not in shown(cluster, "pods")
    assert [line.split()[0] for line in shown(cluster, headers=False).splitlines()] == ["gpu1", "gpu2"]
    cluster.remove_pod("uid-whole")
    cluster.remove_pod("uid-lost")
    assert [line.split()[0] for line in shown(cluster, headers=False).splitlines()] == ["gpu1"]
    bound = pod("new", "gpu1", gpu=2, mem=1, namespace="lab")
    cluster.set_pod(bound)
    assert ["lab", "new", "gpu1", "2", "1", "GiB", "-", "bound"] in [line.split() for line in shown(cluster, "pods").splitlines()]
    cluster.set_pod(bound | {"status": {"phase": "Succeeded"}})
    assert "new" not in shown(cluster, "pods")


def test_inventory_of_a_node_that_cannot_be_used(golden: Golden) -> None:
    broken = node("a", "10.0.0.1", gpus='{"v":9}')
    cluster = read_all([broken, node("b", "10.0.0.2", gpus=inventory(8))], [])
    cells = shown(cluster, name="wide").splitlines()[1].split()
    assert cells[:11] == ["a", "0/0", "0/0", "-", "-", "-", "-", "0", "10.0.0.1", "-", "-"]
    golden(" ".join(cells[11:]))
    golden(cluster.problems()[0])


def test_the_cluster_records_which_nodes_and_waiting_pods_may_have_changed() -> None:
    cluster = read_all([node("a", "10.0.0.1", 16), node("b", "10.0.0.2", 16)], [pod("p", "a", gpu=0, mem=2), pod("w", None, mem=2)])
    taken = cluster.changed.take()
    assert (taken.nodes, taken.waiting) == ({"a", "b"}, {"uid-w"})
    assert cluster.changed.take() == type(taken)()
    cluster.set_pod(pod("w", "b", gpu=0, mem=2))
    taken = cluster.changed.take()
    assert (taken.nodes, taken.waiting) == ({"b"}, {"uid-w"})
    cluster.remove_pod("uid-p")
    cluster.remove_pod("uid-unknown")
    cluster.remove_node("b")
    taken = cluster.changed.take()
    assert (taken.nodes, taken.waiting) == ({"a", "b"}, set())
