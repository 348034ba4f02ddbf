# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where pods would go, by hand for small clusters, and by a count of its own for a random trace."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpushare_runtime.core.constraints import PLACEMENTS
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.objects import read_pending
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.kubectl_gpushare import simulate, trace
from gpushare_runtime.kubectl_gpushare.errors import InputError
from gpushare_runtime.kubectl_gpushare.trace import TracePod, read_hosts, read_pods
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod, read_all
from unit.fakes.runtime.pods import container, gpu, memory
from unit.fakes.runtime.pods import pod as raw_pod
from unit.golden import Golden

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"


def asks(name: str, units: int) -> PendingPod:
    found = read_pending({**pod(name, None, mem=units), "metadata": {"name": name, "namespace": "x", "uid": name}})
    assert isinstance(found, PendingPod)
    return found


def test_binpack_fills_and_spread_spreads() -> None:
    cluster = read_all([node("a", "x", 16, 16), node("b", "y", 16)], [pod("p", "a", gpu=1, mem=6)])
    pods = [asks("one", 6), asks("two", 10), asks("three", 12), asks("four", 12), asks("five", 12)]
    places = {}
    for policy in ("binpack", "spread"):
        found = simulate.run(policy, cluster.ledger.copy(), pods)
        places[policy] = [(one.node, *one.gpus) for one in found]
    # Binpack: the GPU with least left; ties between nodes go to one in use, then to the first. Spread: the node with least in use.
    assert places["binpack"] == [("a", 1), ("a", 0), ("b", 0), ("",), ("",)]
    assert places["spread"] == [("b", 0), ("a", 0), ("",), ("",), ("",)]
    assert [state.free for state in cluster.ledger.nodes["a"].gpu_states] == [16, 10]


def test_pods_of_which_nobody_knows_the_gpu_count_as_in_the_cluster_that_was_read() -> None:
    """By their node's word, here nothing; in a fresh ledger they would keep every GPU."""
    cluster = read_all([node("a", "x", 16)], [pod("lost", "a", mem=16)])
    cluster.settle()
    assert cluster.ledger.nodes["a"].free == 16
    [found] = simulate.run("binpack", cluster.ledger.copy(), [asks("one", 6)])
    assert (found.node, found.gpus) == ("a", (0,))


def test_nodes_whose_gpus_are_kept_are_told() -> None:
    sizes = {"a": (16, "T4"), "b": (12, "L4")}
    nodes = [node(name, name, gpus=Inventory(GIB, (gpu(0, size, model=model),))) for name, (size, model) in sizes.items()]
    named = read_pending(raw_pod(container(mem=1), uid="named", annotations={"gpushare.request/models": "T4"}))
    assert isinstance(named, PendingPod)
    others = [replace(named, uid=f"{number}") for number in range(7)]
    *_, last = simulate.run("binpack", read_all(nodes, []).ledger, [named, *others, asks("one", 8)])
    assert (last.node, last.elsewhere) == ("b", "1 node: kept for pods that name T4")
    *_, last = simulate.run("spread", read_all(nodes, []).ledger, [named, *others, asks("one", 8)])
    assert (last.node, last.elsewhere) == ("b", "")


def test_a_request_that_no_node_can_serve_is_placed_nowhere_and_has_its_own_reason(golden: Golden) -> None:
    asked = read_pending(raw_pod(container(mem=2), init=[container("i", mem=4)], labels={"aliyun.com/gpu-count": "2"}))
    assert isinstance(asked, PendingPod)
    for reasons in (True, False):
        [found] = simulate.run("binpack", read_all([node("a", "x", 16, 16)], []).ledger, [asked], reasons=reasons)
        assert (found.node, found.gpus, found.fitting) == ("", (), 0)
        golden(found.elsewhere)


def test_a_request_that_is_larger_than_every_gpu_is_told_what_to_write(golden: Golden) -> None:
    cluster = read_all([node("a", "x", 16), node("b", "y", 4)], [])
    [large, fits] = simulate.run("binpack", cluster.ledger, [asks("one", 8 * 1024**3), asks("two", 16)], largest=cluster.largest())
    golden(large.elsewhere)
    assert (large.node, fits.node) == ("", "a")


def test_the_three_most_frequent_reasons_are_given_and_the_other_nodes_counted() -> None:
    sizes = (5, 4, 3, 2, 1, 3, 2, 1, 1)
    nodes = [node(f"n{number}", f"10.0.0.{number}", size) for number, size in enumerate(sizes)]
    [found] = simulate.run("binpack", read_all(nodes, []).ledger, [asks("one", 6)])
    *reasons, last = found.elsewhere.split("; ")
    assert [reason.split(":")[0] for reason in reasons] == ["3 nodes", "2 nodes", "2 nodes"]
    assert len(set(reasons)) == 3
    assert last == "2 more nodes"


def test_why_not_elsewhere_is_found_only_where_it_is_wanted_or_the_pod_fits_nowhere() -> None:
    for wanted in (True, False):
        ledger = read_all([node("a", "x", 16), node("b", "y", 4)], []).ledger
        placed, nowhere = simulate.run("binpack", ledger, [asks("one", 8), asks("two", 17)], reasons=wanted)
        assert (placed.node, placed.fitting, placed.elsewhere != "") == ("a", 1, wanted)
        assert (nowhere.node, nowhere.fitting, nowhere.elsewhere != "") == ("", 0, True)


def test_the_table_explains_the_policy_that_places_the_pod_nowhere_and_else_the_first() -> None:
    first = simulate.SimulatedPod("x/p", "a", (0, 2), 2, "of the first")
    second = simulate.SimulatedPod("x/p", "b", (1,), 1, "of the second")
    nowhere = simulate.SimulatedPod("x/p", "", (), 0, "of that one")
    for row, cells in (
        ((first, second), ["x/p", "a/0,2", "b/1", "2", "of the first"]),
        ((first, nowhere), ["x/p", "a/0,2", "-", "0", "of that one"]),
    ):
        table = simulate.table_of({"binpack": [row[0]], "spread": [row[1]]})
        assert [cell.text for cell in table.rows[0].cells] == cells


def test_a_trace_of_hosts_without_gpus_has_no_share_of_memory() -> None:
    table = simulate.summary_of({"binpack": [simulate.SimulatedPod("p", "", (), 0, "")]}, [TracePod("p", 1, 1, memory(1), 1, 0)], 0)
    assert [cell.text for cell in table.rows[0].cells] == ["binpack", "1", "0", "1", "-"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    cordoned = node("c", "10.0.0.3", 24)
    cordoned["spec"] = {"unschedulable": True}
    items = [{**one, "kind": "Node"} for one in (node("a", "10.0.0.1", 16), node("b", "10.0.0.2", 8), cordoned)]
    items.append({**pod("p", "a", gpu=0, mem=4), "kind": "Pod"})
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    return tmp_path / "cluster.json"


def manifest(tmp_path: Path, replicas: int, units: int) -> str:
    limits = {"limits": {"aliyun.com/gpu-mem": str(units)}}
    template = {"spec": {"containers": [{"name": "main", "resources": limits}]}}
    value = {"kind": "Deployment", "metadata": {"name": "web", "namespace": "t"}, "spec": {"replicas": replicas, "template": template}}
    (tmp_path / "web.yaml").write_text(yaml.safe_dump(value))
    return str(tmp_path / "web.yaml")


def test_the_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    argv = ["simulate", "-f", manifest(tmp_path, 3, 8), "--from-file", str(file), "--policies", "binpack"]
    assert main(argv) == 3
    golden(capsys.readouterr().out)
    argv[2] = manifest(tmp_path, 1, 12)
    assert main([*argv[:-1], "spread", "binpack", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["v"] == 1
    assert {policy: [(one["pod"], one["node"], one["gpus"]) for one in pods] for policy, pods in found["policies"].items()} == {
        "spread": [("t/web", "a", [0])],
        "binpack": [("t/web", "a", [0])],
    }


def random_trace(tmp_path: Path, seed: int) -> tuple[Path, Path]:
    draw = random.Random(seed)
    nodes = [
        f"n{i},{draw.choice((4000, 8000))},{draw.choice((3072, 65536))},{draw.choice((1, 2, 4))},{draw.choice(('T4', 'P100'))}\n"
        for i in range(6)
    ]
    rows = []
    for i in range(60):
        gpus, milli = draw.choice(((0, 0), (1, 300), (1, 500), (1, 700), (1, 1000), (2, 1000)))
        rows.append(f"p{i},{draw.choice((500, 1000))},1024,{gpus},{milli},{draw.choice(('', 'T4', 'T4|P100'))},LS,Running,{60 - i},9,9\n")
    (tmp_path / "nodes.csv").write_text(NODES + "".join(nodes))
    (tmp_path / "pods.csv").write_text(PODS + "".join(rows))
    return tmp_path / "nodes.csv", tmp_path / "pods.csv"


@pytest.mark.parametrize("policy", PLACEMENTS)
@pytest.mark.parametrize("seed", range(5))
def test_a_trace_books_nothing_twice_and_rejects_only_what_cannot_be(policy: str, seed: int, tmp_path: Path) -> None:
    nodes_file, pods_file = random_trace(tmp_path, seed)
    hosts, ledger = read_hosts(nodes_file)
    pods = read_pods(pods_file)
    assert len(pods) == 60
    rows = {
        name: (int(cpu), int(gpus), model, int(memory))
        for name, cpu, memory, gpus, model in (row.split(",") for row in nodes_file.read_text().split()[1:])
    }
    asked = {row.split(",")[0]: row.split(",") for row in pods_file.read_text().splitlines()[1:]}
    cpu, free = {name: row[0] for name, row in rows.items()}, {name: [1000] * row[1] for name, row in rows.items()}
    memory = {name: row[3] for name, row in rows.items()}

    def fits(name: str, row: list[str]) -> bool:
        count, milli, spec = int(row[3]), int(row[4]), row[5]
        if cpu[name] < int(row[1]) or memory[name] < int(row[2]) or (spec and count and rows[name][2] not in spec.split("|")):
            return False
        return sum(left >= milli for left in free[name]) >= count

    for one in simulate.run_trace(policy, hosts, ledger, pods):
        row = asked[one.pod.removeprefix("trace/")]
        assert one.fitting == sum(fits(name, row) for name in rows)
        if not one.node:
            assert not any(fits(name, row) for name in rows)
            assert one.elsewhere
            continue
        assert fits(one.node, row)
        assert len(one.gpus) == int(row[3])
        assert not one.elsewhere
        cpu[one.node] -= int(row[1])
        memory[one.node] -= int(row[2])
        for index in one.gpus:
            free[one.node][index] -= int(row[4])
            assert free[one.node][index] >= 0


@pytest.mark.parametrize(
    ("gpus", "milli", "spec", "units", "whole", "asked", "models"),
    [
        (1, 999, "", 999, 0, 999, ()),
        (1, 1000, "T4", 0, 1, 1000, ("T4",)),
        (2, 1000, "T4|P100", 0, 2, 2000, ("T4", "P100")),
        (2, 500, "", 0, 2, 1000, ()),
        (1, 250, "|".join(map(str, range(70))), 250, 0, 250, tuple(map(str, range(64)))),
    ],
)
def test_a_line_of_the_trace(
    tmp_path: Path, gpus: int, milli: int, spec: str, units: int, whole: int, asked: int, models: tuple[str, ...]
) -> None:
    (tmp_path / "pods.csv").write_text(f"{PODS}none,1,2,0,500,,,,3,,\nzero,1,2,1,0,,,,3,,\none,4000,5000,{gpus},{milli},{spec},,,77,,\n")
    *without, found = read_pods(tmp_path / "pods.csv")
    assert without == [TracePod(name, 1, 2, None, 0, 3) for name in ("none", "zero")]
    assert found.request is not None
    assert (found.request.cpu, [one.key for one in found.request.containers]) == (4000, [0])
    assert (found.name, found.cpu, found.memory, found.asked, found.created) == ("one", 4000, 5000, asked, 77)
    assert (found.request.units, found.request.whole_gpus, found.request.rules.models) == (units, whole, models)


def test_a_trace_may_lack_the_models_that_pods_name_and_the_times(tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\none,4000,5000,1,500\n")
    [found] = read_pods(tmp_path / "pods.csv")
    assert found.request is not None
    assert (found.request.units, found.request.rules.models, found.created) == (500, (), 0)


def test_pods_without_gpus_take_cpu_and_nodes_without_gpus_first(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(f"{NODES}gpus,8000,65536,2,T4\nnone,2000,65536,0,\n")
    rows = ("a,2000,1,0,0,,,,1,,", "b,5000,1,0,0,,,,2,,", "c,4000,1,1,500,,,,3,,", "d,3000,1,1,500,,,,4,,", "e,1,1,0,0,,,,5,,")
    (tmp_path / "pods.csv").write_text(PODS + "\n".join(rows) + "\n")
    found = simulate.run_trace("binpack", *read_hosts(tmp_path / "nodes.csv"), read_pods(tmp_path / "pods.csv"))
    assert [(one.pod, one.node, one.gpus, one.fitting) for one in found] == [
        ("trace/a", "none", (), 2),
        ("trace/b", "gpus", (), 1),
        ("trace/c", "", (), 0),
        ("trace/d", "gpus", (0,), 1),
        ("trace/e", "", (), 0),
    ]


def test_the_hosts_of_a_trace(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(f"{NODES}a,64000,262144,2,T4\nb,1,2,0,\n")
    hosts, ledger = read_hosts(tmp_path / "nodes.csv")
    assert [(host.name, host.cpu, host.memory) for host in hosts] == [("a", 64000, 262144), ("b", 1, 2)]
    found = [(state.gpu.index, state.gpu.model, state.gpu.units, state.free) for state in ledger.nodes["a"].gpu_states]
    assert found == [(0, "T4", 1000, 1000), (1, "T4", 1000, 1000)]
    inventory = ledger.nodes["a"].inventory
    assert inventory is not None
    assert inventory.cpu == 64000


def test_the_traces_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nodes.csv").write_text(f"{NODES}n1,4000,65536,2,T4\n")
    lines = (
        "late,1,1,1,600,,LS,Running,9,9,9",
        "none,1,1,0,0,,LS,Running,1,9,9",
        "soon,1,1,1,1000,,LS,Running,1,9,9",
        "no,1,1,1,500,P4,LS,R,2,9,9",
    )
    (tmp_path / "pods.csv").write_text(PODS + "\n".join(lines) + "\n")
    argv = ["simulate", "--trace", str(tmp_path / "pods.csv"), "--trace-nodes", str(tmp_path / "nodes.csv"), "--policies", "binpack"]
    assert main(argv) == 3
    assert capsys.readouterr().out.splitlines()[:2] == [
        "POLICY   PODS  PLACED  UNPLACED  MEMORY",
        "binpack     4       3         1   80.0%",
    ]
    assert main([*argv, "-o", "wide", "--no-headers"]) == 3
    assert Counter(line.split()[0] for line in capsys.readouterr().out.splitlines()) == Counter(
        ("trace/none", "trace/soon", "trace/no", "trace/late")
    )


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        ("sn\nx\n", PODS, "line 2: found None as model; expected a short text"),
        (f"{NODES}n1,1,1,129,T4\n", PODS, "line 2: found '129' as gpu; expected a whole number of at most 128"),
        (
            f"{NODES}n1,1,1,1,T4\n",
            f"{PODS}p,1,1,1,-5,,a,b,1,1,1\n",
            "line 2: found '-5' as gpu_milli; expected a whole number of at most 1000",
        ),
        (f"{NODES}n1,1,1,1,T4\n", f"{PODS}\x1b[2J,1,1,1,5,,a,b,1,1,1\n", "line 2: found '\\x1b[2J' as name; expected a short text"),
        (f"{NODES}n1,1,1,1,T4\n", f'{PODS}"a\r\nb",1,1,1,5,,a,b,1,1,1\n', "line 2: found 'a\\r\\nb' as name; expected a short text"),
    ],
)
def test_traces_that_are_none(nodes: str, pods: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "pods.csv").write_text(pods)
    assert main(["simulate", "--trace", str(tmp_path / "pods.csv"), "--trace-nodes", str(tmp_path / "nodes.csv")]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "-1", "+1", "1.5", "1e3", " 1", "\u00b2", "\u0663", "1001", "0" * 18 + "1", "9" * 30])
def test_what_is_no_whole_number_in_ascii_digits_is_no_number(value: str, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "pods.csv").write_text(f"{PODS}p,1,1,1,{value},,a,b,1,1,1\n", encoding="utf-8")
    with golden.raised(InputError):
        read_pods(tmp_path / "pods.csv")


@pytest.mark.parametrize(("value", "milli"), [("0", 0), ("007", 7), ("999", 999), ("0" * 17 + "1", 1)])
def test_leading_zeros_count_nothing(value: str, milli: int, tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text(f"{PODS}{'n' * 253},1,1,1,{value},,a,b,1,1,1\n")
    [found] = read_pods(tmp_path / "pods.csv")
    assert (found.name, found.asked) == ("n" * 253, milli)


def test_a_file_that_is_no_trace_is_an_error_that_names_it(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "pods.csv"
    for content in (b"\xff\xfe\x00", f"{PODS}p,1,1,1,1,{'x' * 200_000},a,b,1,1,1\n".encode()):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"{path}: found no CSV"):
            read_pods(path)
    path.write_text(f"{PODS}{'n' * 254},1,1,1,1,,a,b,1,1,1\n")
    with golden.raised(InputError):
        read_pods(path)
    path.write_text(f"{PODS}p,1\n")
    with golden.raised(InputError):
        read_pods(path)


def test_a_trace_is_read_up_to_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    path = tmp_path / "pods.csv"
    with path.open("wb") as file:
        file.truncate(512 * 1024**2 + 1)
    with golden.raised(InputError):
        read_pods(path)
    path.write_text(PODS + "p,1,1,1,1,,a,b,1,1,1\n" * 3)
    monkeypatch.setattr(trace, "MOST_BYTES", path.stat().st_size)
    monkeypatch.setattr(trace, "MOST_ROWS", 3)
    assert len(read_pods(path)) == 3
    monkeypatch.setattr(trace, "MOST_ROWS", 2)
    with golden.raised(InputError):
        read_pods(path)
    monkeypatch.setattr(trace, "MOST_BYTES", path.stat().st_size - 1)
    with golden.raised(InputError):
        read_pods(path)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "expected -f FILE with pods, or --trace FILE"),
        (("--trace", "x"), "found --trace without --trace-nodes"),
        (("--trace", "/none/x.csv", "--trace-nodes", "y"), "cannot read /none/x.csv: No such file"),
    ],
)
def test_wrong_command_lines(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *argv]) == (1 if "/none/x.csv" in argv else 2)
    assert said in capsys.readouterr().err
