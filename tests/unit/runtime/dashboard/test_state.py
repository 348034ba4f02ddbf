# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a page shows: the whole of a version and the differences since lead to the same; rows count what the ledger counts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.dashboard import feed as feeds
from gpushare_runtime.dashboard import rows, state
from gpushare_runtime.dashboard.feed import Feed
from gpushare_runtime.dashboard.rows import Row, Sums, node_page, node_row
from gpushare_runtime.dashboard.state import State
from gpushare_runtime.kubectl_gpushare.cluster import Cluster, Used
from gpushare_runtime.kubectl_gpushare.errors import InputError
from unit.fakes.runtime.kubectl_gpushare.objects import node, original_node, pod, read_all
from unit.fakes.runtime.pods import gpu, inventory

Json = dict[str, Any]


def patched(page: Json, difference: Json) -> Json:
    """What a page has after a difference, as model.js makes it; the suite `dashboard` compares that one with the whole, too."""
    nodes = {one["name"]: one for one in page["nodes"]}
    waiting = {one["uid"]: one for one in page["waiting"]}
    for name in difference["gone"]:
        del nodes[name]
    for uid in difference["done"]:
        del waiting[uid]
    nodes.update({one["name"]: one for one in difference["nodes"]})
    waiting.update({one["uid"]: one for one in difference["waiting"]})
    head = {key: value for key, value in difference.items() if key not in ("gone", "done", "nodes", "waiting")}
    return {**head, "nodes": list(nodes.values()), "waiting": list(waiting.values())}


def sorted_page(page: Json) -> Json:
    return {**page, "nodes": sorted(page["nodes"], key=lambda n: n["name"]), "waiting": sorted(page["waiting"], key=lambda w: w["uid"])}


def whole(of: State) -> Json:
    return sorted_page(json.loads(of.whole()))


names = st.sampled_from(["a", "b", "c"])
node_updates = st.dictionaries(names, st.none() | st.integers(0, 3), max_size=3)
pod_updates = st.dictionaries(st.sampled_from(["u", "v"]), st.none() | st.integers(0, 2), max_size=2)


@given(st.lists(st.tuples(node_updates, pod_updates, st.integers(0, 1)), max_size=12), st.data())
def test_the_differences_since_any_version_applied_to_its_whole_are_the_last_whole(
    updates: list[tuple[dict[str, int | None], dict[str, int | None], int]], data: st.DataObject
) -> None:
    of, wholes = State("e"), {}
    wholes[of.version] = whole(of)
    for node_update, pod_update, warning in updates:
        nodes = {
            k: None if v is None else Row(json.dumps({"name": k, "v": v}).encode(), Sums(nodes=1, total=v)) for k, v in node_update.items()
        }
        pods = {k: None if v is None else Row(json.dumps({"uid": k, "v": v}).encode()) for k, v in pod_update.items()}
        before = of.version
        assert of.update(nodes, pods, {"warnings": [warning]}) == (of.version != before)
        wholes[of.version] = whole(of)
    begin = data.draw(st.sampled_from(sorted(wholes)))
    page = wholes[begin]
    differences = of.since(begin)
    assert differences is not None
    for difference in differences:
        page = patched(page, json.loads(difference))
    assert sorted_page(page) == whole(of)
    assert whole(of)["sums"]["nodes"] == len(whole(of)["nodes"])
    assert whole(of)["sums"]["total"] == sum(one["v"] for one in whole(of)["nodes"])


def row(value: str) -> Row:
    return Row(json.dumps({"name": "n", "value": value}).encode(), Sums(nodes=1))


def test_what_does_not_change_is_no_difference() -> None:
    of = State("e")
    assert of.update({"n": row("1")}, {}, {})
    version = of.version
    assert not of.update({"n": row("1"), "other": None}, {"gone": None}, {})
    assert (of.version, of.since(version)) == (version, [])
    assert of.update({}, {}, {"warnings": ["x"]})
    [difference] = of.since(version) or []
    assert json.loads(difference)["warnings"] == ["x"]
    assert json.loads(difference)["nodes"] == []


@pytest.mark.parametrize("version", ["", "e", "e.", "e.x", "e.-1", "e.3", "other.1", "e.²", "e." + "9" * 400, "e.1.0"])
def test_a_version_that_this_process_never_had_has_no_differences(version: str) -> None:
    of = State("e")
    of.update({"n": row("1")}, {}, {})
    assert of.since(version) is None


def test_only_so_many_differences_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_KEPT", 3)
    of = State("e")
    for value in range(6):
        of.update({"n": row(str(value))}, {}, {})
    assert of.since("e.2") is None
    assert [json.loads(one)["nodes"][0]["value"] for one in of.since("e.3") or []] == ["3", "4", "5"]
    monkeypatch.setattr(state, "MOST_KEPT_BYTES", 10)
    of.update({"n": row("x" * 100)}, {}, {})
    assert of.since("e.6") is None
    assert of.since("e.7") == []


# Rows.


def shown(cluster: Cluster, name: str) -> Json:
    found = node_row(cluster, name)
    assert found is not None
    return dict(json.loads(found.data))


def sums(cluster: Cluster, name: str) -> Sums | None:
    found = node_row(cluster, name)
    return found and found.sums


def test_a_row_of_a_node_has_its_gpus_and_who_has_what() -> None:
    gpus = inventory(16, 24)
    gpus = type(gpus)(gpus.unit, (gpus.gpus[0], gpu(1, 24, model="A100", health="XID 79")))
    # A controller has made a pod of the same name again, and nobody knows the GPU of another pod.
    again, unknown = pod("p", "a", gpu=0, mem=1), pod("o", "a", mem=2)
    again["metadata"].update(uid="again", creationTimestamp="1970-01-01T00:01:40Z")
    pods = [pod("p", "a", gpu=0, mem=3), again, unknown, pod("q", "a", gpu=1, mem=4, namespace="b")]
    cluster = read_all([node("a", "10.0.0.1", gpus=gpus) | {"spec": {"unschedulable": True}}], pods)
    made = shown(cluster, "a")
    assert made["gpus"] == [[0, "Tesla T4", 16, 4, 12, None, "", "ok", None], [1, "A100", 24, 4, None, None, "B", "bad: XID 79", None]]
    first = [["b", "q", "bound, GPU bad", {"1": 4}, 0, None, None, 0], ["default", "o", "bound", None, 0, None, None, 0]]
    last = [["default", "p", "bound", {"0": 3}, 0, None, None, 0], ["default", "p", "bound", {"0": 1}, 100, None, None, 0]]
    assert made["pods"] == [*first, *last]
    assert (made["name"], made["unit"], made["mib"], made["error"], made["cordoned"]) == ("a", "GiB", 1024, "", True)
    [problem] = made["problems"]
    assert problem.startswith("pod default/o: its GPU is not known")
    assert sums(cluster, "a") == Sums(nodes=1, gpus=2, usable=1, total=40960, allocated=8192, free=12288, pods=4, problems=1)


def test_nothing_is_free_as_far_as_anybody_knows_where_not_all_pods_are_known() -> None:
    cluster = read_all([node("a", "10.0.0.1", 16)], [pod("o", "a", mem=2)])
    cluster.complete = False
    made = shown(cluster, "a")
    assert (made["gpus"][0][4], made["problems"]) == (None, [])


def test_a_node_that_cannot_be_read_is_a_row_with_the_reason() -> None:
    cluster = read_all([node("a", "10.0.0.1", gpus="{"), original_node("old", "10.0.0.2", memory=32, count=2)], [])
    made = shown(cluster, "a")
    assert "not JSON" in made["error"]
    assert (made["unit"], made["mib"], sums(cluster, "a")) == (None, 0, Sums(nodes=1, problems=1))
    assert [one[2] for one in shown(cluster, "old")["gpus"]] == [16, 16]
    assert node_row(cluster, "nobody") is node_page(cluster, "nobody") is None
    assert (node_page(cluster, "old") or {})["name"] == "old"


def test_a_fault_about_one_node_concerns_its_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = read_all([node("a", "10.0.0.1", 16)], [])

    def broken(of: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(rows, "gpus_of", broken)
    [problem] = shown(cluster, "a")["problems"]
    assert "boom" in problem
    assert sums(cluster, "a") == Sums(1, 0, 0, 0, 0, 0, 0, 1)


HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e\x00\n" + "A" * 100_000


def test_hostile_texts_are_short_and_printable() -> None:
    # The API server would reject most of these names; a file need not come from one.
    bad = pod(HOSTILE, None, mem=16, namespace=HOSTILE, phase="Pending")
    bad["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": HOSTILE}]
    bound = pod(HOSTILE + "b", HOSTILE, gpu=0, mem=2, namespace=HOSTILE)
    # The first asks for what cannot be meant, the others have GPUs that nobody knows.
    odd = [pod("z", None, mem=1, count=1, phase="Pending"), *(pod(str(number), "c", mem=1) for number in range(21))]
    cluster = read_all([node(HOSTILE, HOSTILE, 16), node("b", HOSTILE, gpus=HOSTILE), node("c", HOSTILE, 16)], [bad, bound, *odd])

    async def feed() -> Json:
        made = Feed(cluster, "e")
        await made.refresh()
        return dict(json.loads(made.state.whole()))

    page = asyncio.run(feed())
    assert len(json.dumps(page)) < 20_000
    waiting = sorted(page["waiting"], key=lambda one: int(one["invalid"]))
    assert [(one["request"], one["invalid"]) for one in waiting] == [("16 GiB", False), ("", True)]
    assert [len(waiting[0][key]) for key in ("uid", "namespace", "name", "reported")] == [253, 253, 253, 1024]
    assert sorted((len(one["name"]), len(one["problems"])) for one in page["nodes"]) == [(1, 0), (1, 20), (253, 0)]

    def texts(value: object) -> list[str]:
        if isinstance(value, dict):
            return [*value, *(text for one in value.values() for text in texts(one))]
        if isinstance(value, list):
            return [text for one in value for text in texts(one)]
        return [value] if isinstance(value, str) else []

    found = texts(page)
    assert any(text.startswith("<img src=x") for text in found)
    assert all(text.isprintable() for text in found)


# The feed.


async def test_memory_in_use_is_sent_again_where_it_has_changed_by_much_and_a_failure_is_a_warning() -> None:
    cluster = read_all([node("a", "10.0.0.1", 16), node("b", "10.0.0.2", gpus=type(inventory(1))(GIB, (gpu(0, 16, uuid="B"),)))], [])
    feed = Feed(cluster, "e")
    answers: list[Used | InputError] = [Used({}, {"B": 640}), Used({}, {"B": 650}), Used({}, {"B": 6400}), InputError("no answer")]

    async def read() -> Used:
        if not answers:
            raise asyncio.CancelledError
        answer = answers.pop(0)
        if isinstance(answer, InputError):
            raise answer
        return answer

    async def step() -> Json:
        before = feed.state.version
        task = asyncio.ensure_future(feed.follow_used(read))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await feed.refresh()
        differences = feed.state.since(before) or []
        return dict(json.loads(differences[-1])) if differences else {}

    await feed.refresh()
    assert [(one["name"], one["gpus"][0][5]) for one in (await step())["nodes"]] == [("b", 640)]
    assert await step() == {}
    assert [(one["name"], one["gpus"][0][5]) for one in (await step())["nodes"]] == [("b", 6400)]
    last = await step()
    assert [(one["name"], one["gpus"][0][5]) for one in last["nodes"]] == [("b", None)]
    assert last["warnings"] == ["memory in use is not known: no answer"]
    assert last["uses"] == "memory in use is not known: no answer"


def test_what_a_pod_uses_is_zero_without_a_process_and_unknown_where_its_gpu_does_not_answer() -> None:
    gpus = Inventory(GIB, tuple(gpu(index, 16, uuid=f"U{index}") for index in range(3)))
    bound = [pod(name, "a", gpu=at, mem=2) for at, name in enumerate(("busy", "idle", "silent"))]
    cluster = read_all([node("a", "10.0.0.1", gpus=gpus)], bound)
    assert [one[5] for one in shown(cluster, "a")["pods"]] == [None, None, None]
    cluster.used = Used({"uid-busy": 700}, {"U0": 800, "U1": 0})
    assert {one[1]: one[5] for one in shown(cluster, "a")["pods"]} == {"busy": 700, "idle": 0, "silent": None}


async def test_a_pod_that_uses_more_than_before_is_sent_again_although_its_gpu_does_not() -> None:
    cluster = read_all(
        [node("a", "10.0.0.1", gpus=Inventory(GIB, (gpu(0, 16, uuid="U"),)))], [pod("p", "a", gpu=0, mem=2), pod("q", "a", gpu=0, mem=2)]
    )
    feed = Feed(cluster, "e")
    await feed.set_used(Used({"uid-p": 640, "uid-q": 0}, {"U": 640}))
    await feed.refresh()
    assert whole(feed.state)["uses"] == "off"
    before = feed.state.version
    await feed.set_used(Used({"uid-p": 0, "uid-q": 640}, {"U": 640}))
    await feed.refresh()
    [difference] = map(json.loads, feed.state.since(before) or [])
    assert [one[5] for one in difference["nodes"][0]["pods"]] == [0, 640]


async def test_the_use_of_many_nodes_is_compared_in_steps_that_let_requests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_STEP_SECONDS", 0.0)
    feed, passed = Feed(read_all([node(f"n{at}", "10.0.0.1", 16) for at in range(20)], []), "e"), 0

    async def requests() -> None:
        nonlocal passed
        while True:
            passed += 1
            await asyncio.sleep(0)

    asked = asyncio.ensure_future(requests())
    await feed.set_used(Used({"u": 1}))
    compared = passed
    assert compared >= 20
    await feed.set_used(Used({"u": 1}))
    assert passed == compared, "where nothing has changed, no node is looked at"
    asked.cancel()


async def test_the_feed_shows_what_changed_and_wakes_those_who_wait() -> None:
    cluster = read_all([node("a", "10.0.0.1", 16), node("b", "10.0.0.2", 16)], [pod("w", None, mem=20)])
    feed = Feed(cluster, "e", clock=lambda: 1000.0)
    assert not feed.synced
    await feed.refresh()
    assert feed.synced
    first = whole(feed.state)
    assert first["waiting"][0]["copy"] == "aliyun.com/gpu-mem: 16"
    assert "largest" in first["waiting"][0]["verdict"]
    assert (first["sums"]["pending"], first["sums"]["nodes"], first["complete"]) == (1, 2, True)
    news = asyncio.ensure_future(feed.news())
    await feed.refresh()
    await asyncio.sleep(0)
    assert not news.done()
    cluster.set_pod(pod("p", "a", gpu=0, mem=3))
    await feed.refresh()
    await asyncio.wait_for(news, 60)
    [difference] = map(json.loads, feed.state.since(first["version"]) or [])
    assert [one["name"] for one in difference["nodes"]] == ["a"]
    # A larger GPU makes another reason of the pod that waits, which has not changed itself.
    cluster.set_node(node("c", "10.0.0.3", 40))
    await feed.refresh()
    assert whole(feed.state)["waiting"][0]["verdict"] == ""
    cluster.remove_node("c")
    cluster.remove_pod("uid-w")
    await feed.refresh()
    last = whole(feed.state)
    assert ([one["name"] for one in last["nodes"]], last["waiting"]) == (["a", "b"], [])
    expected: dict[str, object] = {
        "source": "dashboard", "unit": "MiB", "problem": "", "time": [990], "total": [32768], "allocated": [3072], "pending": [0],
    }  # fmt: skip
    assert feed.samples.to_json() == {**expected, "busy": [None]}
    await feed.set_used(Used(busy_gpus={"U": 40, "V": 15}))
    await feed.refresh()
    assert feed.samples.to_json() == {**expected, "busy": [28]}


def test_a_pod_whose_gpu_is_gone_is_a_problem_of_its_node() -> None:
    raw = node("n1", "10.0.0.1", 16)
    entry = {"pod": "default/p", "uid": "uid-p", "units": 6, "why": "gone"}
    raw["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "gpus": {"GPU-old": [entry]}, "rejected": []})
    row = node_row(read_all([raw], [pod("p", "n1", gpu=0, mem=6)]), "n1")
    assert row is not None
    shown = json.loads(row.data)
    assert shown["pods"] == [["default", "p", "bound, GPU gone", {}, 0, None, None, 0]]
    assert shown["problems"] == ["pod default/p has 6 GiB of GPU GPU-old, which is not in this node any more: delete it"]
    assert (row.sums.allocated, row.sums.problems) == (0, 1)
