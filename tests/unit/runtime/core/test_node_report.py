# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare/held: read as the protocol writes it, and what the ledger makes of it."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import NOTHING_HELD, Held, HeldEntry, Rejection
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from unit.fakes.runtime.pods import allocated_pod, frees, inventory, ledger_of, memory, on, whole
from unit.golden import Golden

GPUS = inventory(16, 16)
FIRST, SECOND = (gpu.uuid for gpu in GPUS.gpus)


def told(*entries: HeldEntry, rejected: tuple[Rejection, ...] = ()) -> Ledger:
    ledger = Ledger()
    ledger.set_node(NodeRecord("n", GPUS, "", Held(entries, rejected)))
    return ledger


def test_the_protocols_example() -> None:
    text = (
        '{"v":1,"gpus":{"GPU-8f6":[{"pod":"ns/name","uid":"u1","units":8,"why":"orphaned"}]},'
        '"rejected":[{"uid":"u2","gpu":"GPU-8f6","units":8,"until":"2026-11-21T10:01:00Z"}]}'
    )
    held = Held.from_json(text)
    assert held == Held((HeldEntry("GPU-8f6", "u1", "ns/name", 8, "orphaned"),), (Rejection("u2", "GPU-8f6", 8, 1795255260.0),))
    assert held.to_json() == text


TEXT = st.sampled_from(["u", "a/b", "GPU-1", 'ü "', "true"])
ENTRIES = st.builds(
    HeldEntry, st.sampled_from("ab"), TEXT, TEXT, st.integers(0, 99), st.sampled_from(["orphaned", "unmanaged", "gone"]), st.booleans()
)
REJECTIONS = st.builds(Rejection, TEXT, TEXT, st.integers(0, 99), st.integers(0, 4 * 10**9).map(float), st.booleans())


@given(st.lists(ENTRIES, max_size=3), st.lists(REJECTIONS, max_size=2))
def test_what_is_written_is_read_back(entries: list[HeldEntry], rejected: list[Rejection]) -> None:
    held = Held(tuple(sorted(entries, key=lambda e: [entry.gpu for entry in entries].index(e.gpu))), tuple(rejected))
    assert Held.from_json(held.to_json()) == held


def test_a_gpu_is_said_to_be_held_whole_only_by_the_word_true() -> None:
    whole = Held((HeldEntry("GPU-1", "u", "a/b", 16, "orphaned", whole=True),), (Rejection("u", "GPU-1", 0, 0.0, whole=True),))
    text = (
        '{"v":1,"gpus":{"GPU-1":[{"pod":"a/b","uid":"u","units":16,"why":"orphaned","whole":true}]},'
        '"rejected":[{"uid":"u","gpu":"GPU-1","units":0,"until":"1970-01-01T00:00:00Z","whole":true}]}'
    )
    assert whole.to_json() == text
    assert Held.from_json(text) == whole
    for other in ("1", '"yes"', "false", "null", "[0]"):
        read = Held.from_json(text.replace("true", other))
        assert not read.entries[0].whole
        assert not read.rejected[0].whole


def test_nothing_said_is_nothing_held() -> None:
    for text in (
        '{"v":1}',
        '{"v":1,"gpus":null,"rejected":null}',
        '{"v":1,"gpus":{},"rejected":[],"new":1}',
        '{"v":1,"gpus":{"GPU-1":[]}}',
    ):
        assert Held.from_json(text) == NOTHING_HELD


@pytest.mark.parametrize("key", ["uid", "pod", "why", "gpu"])
@pytest.mark.parametrize("text", ["a\nINFO bind", "\x1b[2J", "\ud800", "x" * 513])
def test_texts_are_short_and_obeyed_by_no_terminal(key: str, text: str) -> None:
    entry = {"pod": "a/b", "uid": "u", "units": 1, "why": "orphaned"}
    said = {"v": 1, "gpus": {text: entry} if key == "gpu" else {"GPU-1": {**entry, key: text}}}
    rejected = {"v": 1, "rejected": [{"uid": "u", "gpu": "c", "units": 1, "until": "2026-11-21T10:01:00Z", key: text}]}
    for document in (said, rejected) if key in ("uid", "gpu") else (said,):
        with pytest.raises(ReportError) as error:
            Held.from_json(json.dumps(document))
        assert len(str(error.value)) < 300
        assert str(error.value).isprintable()


def test_a_node_says_so_much_and_no_more(golden: Golden) -> None:
    entry = {"pod": "", "uid": "u", "units": 2**31 - 1, "why": ""}
    rejection = {"uid": "", "gpu": "", "units": 2**31 - 1, "until": "20261121"}
    entries = Held.from_json(json.dumps({"v": 1, "gpus": {"c": [entry] * 512, "d": [entry] * 512}}, separators=(",", ":"))).entries
    assert (len(entries), entries[0].units) == (1024, 2**31 - 1)
    assert len(Held.from_json(json.dumps({"v": 1, "rejected": [rejection] * 1024}, separators=(",", ":"))).rejected) == 1024
    for more in (
        {"gpus": {"c": [entry] * 512, "d": [entry] * 513}},
        {"gpus": {f"GPU-{n}": [] for n in range(1025)}},
        {"rejected": [rejection] * 1025},
    ):
        with golden.raised(ReportError):
            Held.from_json(json.dumps({"v": 1} | more, separators=(",", ":")))
    for units in (-1, 2**31, 10**4000):
        with golden.raised(ReportError) as error:
            Held.from_json(json.dumps({"v": 1, "gpus": {"c": {**entry, "units": units}}}))
        assert len(str(error.value)) < 200


def test_what_is_said_of_all_pods_of_a_full_node_fits_and_no_more_is_parsed(golden: Golden) -> None:
    name, uid = f"{'n' * 20}/{'p' * 40}", "12345678-1234-1234-1234-123456789012"
    full = Held(tuple(HeldEntry(f"GPU-{uid}", uid, name, 16, "unmanaged") for _ in range(250))).to_json()
    assert len(Held.from_json(full).entries) == 250
    padded = full + " " * (64 * 1024 - len(full))
    assert len(Held.from_json(padded).entries) == 250
    with golden.raised(ReportError):
        Held.from_json(f"{padded} ")


def test_what_a_pod_has_is_added_up_by_gpu() -> None:
    entries = [("c", "u", 3, False), ("c", "u", 4, False), ("d", "u", 16, True), ("d", "v", 1, False), ("c", "u", 0, True)]
    held = Held(tuple(HeldEntry(gpu, uid, "x/p", units, "orphaned", whole) for gpu, uid, units, whole in entries))
    assert held.by_uid == {"u": {"c": (7, True), "d": (16, True)}, "v": {"d": (1, False)}}
    assert NOTHING_HELD.by_uid == {}


def test_one_entry_needs_no_list() -> None:
    text = '{"v":1,"gpus":{"GPU-1":{"pod":"a/b","uid":"u","units":0,"why":"orphaned"}}}'
    assert Held.from_json(text) == Held((HeldEntry("GPU-1", "u", "a/b", 0, "orphaned"),))


def test_a_time_is_written_in_seconds() -> None:
    assert '"until":"1970-01-01T00:00:10Z"' in Held((), (Rejection("u", "c", 8, 10.75),)).to_json()


@pytest.mark.parametrize("text", ["2026-11-21T10:01:00", "2026-11-21T10:01:00Z", "2026-11-21T10:01:00+00:00", "2026-11-21T11:01:00+01:00"])
def test_a_time_without_a_zone_is_utc_wherever_this_runs(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for zone in ("Asia/Tokyo", "UTC"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            held = Held.from_json(f'{{"v":1,"rejected":[{{"uid":"u","gpu":"c","units":1,"until":"{text}"}}]}}')
            assert held.rejected[0].until == 1795255260.0
            assert '"until":"2026-11-21T10:01:00Z"' in held.to_json()
    finally:
        monkeypatch.undo()
        time.tzset()


ENTRY: Final = {"pod": "a/b", "uid": "u", "units": 8, "why": "orphaned"}
REJECTED: Final = {"uid": "u", "gpu": "c", "units": 8, "until": "2026-11-21T10:01:00Z"}


@pytest.mark.parametrize("wrong", [None, True, 1.5, ["x"]])
@pytest.mark.parametrize(
    ("part", "key"), [*(("gpus", key) for key in ENTRY), *(("rejected", key) for key in REJECTED)], ids=lambda value: str(value)
)
def test_each_field_is_asked_for_by_its_name(part: str, key: str, wrong: object) -> None:
    data: dict[str, Any] = {"v": 1, "gpus": {"GPU-1": [ENTRY, ENTRY]}, "rejected": [REJECTED, REJECTED]}
    assert Held.from_json(json.dumps(data)).entries == (HeldEntry("GPU-1", "u", "a/b", 8, "orphaned"),) * 2
    broken = [ENTRY | {}, ENTRY | {key: wrong}] if part == "gpus" else [REJECTED | {}, REJECTED | {key: wrong}]
    data[part] = {"GPU-1": broken} if part == "gpus" else broken
    place = "gpus['GPU-1'][1]" if part == "gpus" else "rejected[1]"
    with pytest.raises(ReportError, match=f"^{re.escape(f'{place}.{key} must be')}"):
        Held.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[" * 50_000, "not JSON"),
        ('{"v":1,"rejected":{"a":1}}', "rejected a list"),
        ('{"v":1,"rejected":[1]}', r"rejected\[0\] must be an object, found int"),
        ("{}", "version None is not known"),
        ('{"v":2}', "version 2 is not known"),
        ("[]", "version 'list'"),
        ('{"v":1,"gpus":[1]}', "GPUs must be an object"),
        (
            '{"v":1,"gpus":{"GPU-1":[{"pod":"a/b","uid":"u","units":"8","why":"orphaned"}]}}',
            r"gpus\['GPU-1'\]\[0\].units must be int, found '8'",
        ),
        ('{"v":1,"gpus":{"GPU-1":8}}', "must be an object, found int"),
        ('{"v":1,"rejected":[{"uid":"u","gpu":"c","units":-1,"until":"2026-11-21T10:01:00Z"}]}', "must not be negative"),
        ('{"v":1,"rejected":[{"uid":"u","gpu":"c","units":1,"until":"soon"}]}', "must be a time such as .* found 'soon'"),
    ],
)
def test_what_cannot_be_used_says_where(text: str, says: str) -> None:
    with pytest.raises(ReportError, match=says):
        Held.from_json(text)


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8
)


@given(ANYTHING)
def test_no_content_breaks_the_reader(content: object) -> None:
    with suppress(ReportError):
        Held.from_json(json.dumps({"v": 1, "gpus": content, "rejected": content}))


def test_the_processes_of_a_deleted_pod_still_hold() -> None:
    ledger = told(HeldEntry(FIRST, "gone", "x/gone", 6, "orphaned"), HeldEntry(SECOND, "big", "x/big", 16, "orphaned", whole=True))
    assert frees(ledger) == [10, 0]
    ledger.apply(allocated_pod("gone", memory(6), on(0, 6)))
    assert frees(ledger) == [10, 0], "counted once while the pod is there"
    ledger.remove("gone")
    ledger.set_node(NodeRecord("n", GPUS, "", NOTHING_HELD))
    assert frees(ledger) == [16, 16]
    one = Held((HeldEntry(FIRST, "gone", "x/gone", 1, "orphaned"),))
    ledger.set_node(NodeRecord("n", replace(GPUS, core=100, clients=4), "", one))
    for _ in range(2):
        state = ledger.nodes["n"].gpu_states[0]
        assert (state.free, state.core, state.clients) == (15, 100, 3), "its process is a client, whether the pod is there or not"
        ledger.apply(allocated_pod("gone", memory(1), on(0, 1)))


def test_the_nodes_word_tells_the_gpu_of_a_pod_that_nobody_placed() -> None:
    ledger = ledger_of(GPUS)
    ledger.apply(allocated_pod("stray", memory(6), None))
    assert frees(ledger) == [10, 10]
    ledger.set_node(NodeRecord("n", GPUS, "", Held((HeldEntry(SECOND, "stray", "x/stray", 6, "unmanaged"),))))
    assert frees(ledger) == [16, 10]


def test_the_node_may_know_more_than_the_annotations() -> None:
    ledger = told(HeldEntry(SECOND, "moved", "x/moved", 6, "unmanaged"))
    ledger.apply(allocated_pod("moved", memory(6), on(0, 6)))
    assert frees(ledger) == [10, 10], "until the annotation is corrected, both count"


def test_several_containers_of_one_pod_add_up() -> None:
    entries = [HeldEntry(FIRST, "u", "x/u", 3, "orphaned"), HeldEntry(FIRST, "u", "x/u", 4, "orphaned")]
    ledger = told(*entries)
    assert frees(ledger) == [9, 16]
    ledger.apply(allocated_pod("u", memory(5), on(0, 5)))
    assert frees(ledger) == [9, 16], "two more than the pod's annotations say"


@pytest.mark.parametrize("until", [0.0, 100.0, 4e9])
def test_a_gpu_that_rejected_a_size_takes_no_such_pod_for_a_minute(until: float) -> None:
    """From when that is first seen here, whatever the node's clock says."""
    first = Rejection("u", FIRST, 6, until)
    ledger = told(rejected=(first,))
    node = ledger.nodes["n"]

    def takes() -> dict[str, list[int]]:
        asks = {"5": memory(5), "6": memory(6), "whole": whole(1)}
        return {name: [state.gpu.index for state in node.candidates(ask)] for name, ask in asks.items()}

    assert takes() == {"5": [0, 1], "6": [1], "whole": [0, 1]}
    assert not ledger.expire(40.0)
    both = Held((), (first, Rejection("v", SECOND, 16, until, whole=True)))
    ledger.set_node(NodeRecord("n", GPUS, "", both))
    assert takes() == {"5": [0, 1], "6": [1], "whole": [0]}
    assert not ledger.expire(99.9)
    assert ledger.expire(100.0)
    assert takes() == {"5": [0, 1], "6": [0, 1], "whole": [0]}
    assert node.rejections == both.rejected[1:]
    ledger.set_node(NodeRecord("n", GPUS, "", both, model="T4"))
    assert takes()["6"] == [0, 1], "the same one again is over all the same"
    assert ledger.expire(159.9)
    assert takes()["whole"] == [0, 1]
    assert not ledger.expire(1000.0)
    ledger.set_node(NodeRecord("n", GPUS, "", Held((), (Rejection("u", FIRST, 6, until + 60.0),))))
    assert takes()["6"] == [1], "another one"


def test_a_gpu_that_the_node_does_not_have_is_reported() -> None:
    node = told(HeldEntry("GPU-other", "u", "x/u", 6, "orphaned")).node("n")
    assert node is not None
    assert node.problems() == ["the node says that pods hold GPU GPU-other, which is not among its GPUs"]


def test_a_gpu_that_rejected_a_size_is_not_the_gpu_that_is_left_over() -> None:
    node = told(rejected=(Rejection("u", FIRST, 6, 100.0),)).nodes["n"]
    assert [node.remaining_after(memory(units)) for units in (5, 6, 16, 17)] == [11, 10, 0, None]
    node = told(rejected=(Rejection("u", FIRST, 6, 100.0), Rejection("u", SECOND, 6, 100.0))).nodes["n"]
    assert [node.remaining_after(memory(units)) for units in (5, 6)] == [11, None]
    assert [node.remaining_after(whole(gpus)) for gpus in (1, 2, 3)] == [1, 0, None], "memory was rejected there, not a whole GPU"
    node = told(rejected=(Rejection("u", FIRST, 6, 100.0, whole=True), Rejection("u", SECOND, 6, 100.0, whole=True))).nodes["n"]
    assert [node.remaining_after(request) for request in (memory(16), whole(1))] == [0, None], "and now the other way round"


@pytest.mark.parametrize("units", [6, 7])
def test_the_nodes_word_is_believed_where_it_is_enough(units: int) -> None:
    """A pod of 6 units of which nobody knows the GPU; the node names one, or two parts of it, or less than it holds."""
    ledger = told(HeldEntry(SECOND, "u", "x/u", units, "unmanaged"), HeldEntry(FIRST, "other", "x/o", 1, "orphaned"))
    ledger.apply(allocated_pod("u", memory(6), None))
    assert frees(ledger) == [15, 16 - units]
    ledger.set_node(NodeRecord("n", GPUS, "", Held((HeldEntry(SECOND, "u", "x/u", 5, "unmanaged"),))))
    assert frees(ledger) == [10, 10], "less than it holds: it may be on any GPU"
    parts = (HeldEntry(FIRST, "u", "x/u", 2, "unmanaged"), HeldEntry(SECOND, "u", "x/u", 4, "unmanaged"))
    ledger.set_node(NodeRecord("n", GPUS, "", Held(parts)))
    assert frees(ledger) == [14, 12]
    assert ledger.nodes["n"].problems() == []


def test_the_nodes_word_tells_whole_gpus_too() -> None:
    ledger = told(HeldEntry(SECOND, "u", "x/u", 16, "unmanaged", whole=True))
    ledger.apply(allocated_pod("u", whole(1), None))
    assert [(state.free, state.empty) for state in ledger.nodes["n"].gpu_states] == [(16, True), (0, False)]
    ledger.apply(allocated_pod("u", whole(2), None))
    assert [(state.free, state.empty) for state in ledger.nodes["n"].gpu_states] == [(0, False), (0, False)], "one GPU of two is not all"


def test_no_units_are_nothing() -> None:
    ledger = told(HeldEntry(FIRST, "u", "x/u", 0, "orphaned"), HeldEntry("GPU-other", "u", "x/u", 5, "orphaned"))
    assert [(state.free, state.empty) for state in ledger.nodes["n"].gpu_states] == [(16, True), (16, True)]


def test_a_given_gpu_is_not_good_where_the_node_says_that_others_hold_it() -> None:
    """A pod that goes there all the same fails at the node, with an empty GPU beside it."""
    pod = allocated_pod("u", memory(6), on(0, 6))
    for units, whole_, good in ((10, False, True), (11, False, False), (16, True, False)):
        ledger = told(HeldEntry(FIRST, "gone", "x/gone", units, "orphaned", whole=whole_))
        ledger.apply(pod)
        assert ledger.nodes["n"].still_valid(pod) is good, (units, whole_)
    for size, good in ((memory(10), True), (memory(11), False), (whole(1), False)):
        ledger = told()
        ledger.apply(pod)
        ledger.apply(allocated_pod("unknown", size, None))
        assert ledger.nodes["n"].still_valid(pod) is good, size
    ledger = Ledger()
    ledger.set_node(NodeRecord("n", Inventory(GPUS.unit, GPUS.gpus, core=100)))
    for uid, core, good in (("a", 60, True), ("b", 40, True), ("c", 5, False)):
        asked = Request((ContainerRequest(Kind.APP, 0, "main", units=1, core=core),))
        ledger.apply(allocated_pod(uid, asked, on(0, 1)))
        assert ledger.nodes["n"].still_valid(allocated_pod("a", memory(1), on(0, 1))) is good, uid


def test_what_is_held_whole_leaves_nothing_whoever_else_is_there() -> None:
    """No compute either; and of what the node says only what the pods do not is added."""
    gpus = Inventory(GPUS.unit, GPUS.gpus, core=100)
    ledger = Ledger()
    ledger.set_node(NodeRecord("n", gpus, "", Held((HeldEntry(SECOND, "u", "x/u", 4, "orphaned", whole=True),))))
    assert [(state.free, state.core, state.empty) for state in ledger.nodes["n"].gpu_states] == [(16, 100, True), (0, 0, False)]
    ledger.apply(allocated_pod("u", memory(6), on(0, 6)))
    assert [(state.free, state.core) for state in ledger.nodes["n"].gpu_states] == [(10, 100), (0, 0)]
    ledger.apply(allocated_pod("u", memory(3), on(1, 3)))
    assert [(state.free, state.core) for state in ledger.nodes["n"].gpu_states] == [(16, 100), (0, 0)]
    ledger.apply(allocated_pod("u", memory(6), on(1, 6)))
    assert [(state.free, state.core) for state in ledger.nodes["n"].gpu_states] == [(16, 100), (10, 100)], "the pod says as much itself"


def test_a_given_gpu_is_good_until_it_is_not_usable_or_rejected_or_given_twice() -> None:
    ledger = ledger_of(GPUS)
    pod, second = allocated_pod("u", memory(6), on(0, 6)), Allocation.of({0: {0: 1, 1: 1}})
    both = AllocatedPod("w", "default", "w", "n", Request((ContainerRequest(Kind.APP, 0, "main", units=2),), 2), second)
    ledger.apply(pod)
    ledger.apply(both)
    node = ledger.nodes["n"]

    def sound() -> list[bool]:
        return [node.still_valid(pod), node.still_valid(both)]

    assert sound() == [True, True]
    alone, twin = (allocated_pod(uid, whole(1), on(1, 8)) for uid in ("alone", "twin"))
    assert node.simulate([alone], without=("w",)).still_valid(alone)
    assert not node.simulate([alone, twin], without=("w",)).still_valid(alone)
    unknown, stranger, giant = (allocated_pod("v", memory(17), allocation) for allocation in (None, on(5, 17), on(0, 17)))
    assert [node.still_valid(other) for other in (unknown, stranger, giant)] == [False] * 3, "no such GPU, or none as large"
    ledger.apply(allocated_pod("other", memory(10), on(0, 10)))
    assert sound() == [False, False]
    ledger.apply(allocated_pod("other", memory(10), on(1, 10)))
    ledger.apply(allocated_pod("beside", memory(6), on(1, 6)))
    assert sound() == [True, False], "another GPU is given twice"
    ledger.remove("beside")
    for size, good in ((6, [False, True]), (7, [True, True]), (1, [False, False])):
        ledger.set_node(NodeRecord("n", GPUS, "", Held((), (Rejection("x", FIRST, size, 1.0),))))
        assert sound() == good
    ledger.set_inventory("n", Inventory(GPUS.unit, (GPUS.gpus[0], replace(GPUS.gpus[1], cordoned=True))))
    ledger.set_node(replace(node.record, held=NOTHING_HELD))
    assert sound() == [True, False]
    ledger.set_inventory("n", None)
    assert sound() == [False, False]


def test_gpus_that_the_node_does_not_have_are_reported_by_uuid() -> None:
    entries = [HeldEntry(uuid, "u", "x/u", 6, "orphaned") for uuid in ("GPU-b", FIRST, "GPU-a", "GPU-b")]
    assert told(*entries).nodes["n"].problems() == [
        f"the node says that pods hold GPU {uuid}, which is not among its GPUs" for uuid in ("GPU-a", "GPU-b")
    ]
