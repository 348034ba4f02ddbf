# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods and nodes of people who mean harm, up to what the API server takes: they hurt themselves at most."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.ledger_json import ledger_json
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.placement.preemption import Victims
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.daemon import exposition
from gpushare_runtime.extender import inspect_json
from gpushare_runtime.extender.extender_v1 import PreemptArguments
from gpushare_runtime.extender.metrics import families
from gpushare_runtime.extender.requeue import Requeue
from gpushare_runtime.kubectl_gpushare.inspect_tables import details, summary
from gpushare_runtime.kubectl_gpushare.inspect_usage import read_usage
from unit.fakes.runtime.extender.in_memory import MIB, Extender, long_rules, many_labels
from unit.fakes.runtime.pods import container, inventory, memory, pod

MOST_ANNOTATIONS: Final = 256 * 1024
"""Bytes of all annotations of one object, names and values: the API server takes no more."""
ASKS: Final = ("models", "models-refused", "gpus", "gpus-refused", "same-gpu-as", "not-with", "placement", "no-such-thing")
GPUS: Final = inventory(16, 16, 24).to_json()
UUIDS: Final = [one.uuid for one in inventory(16, 16, 24).gpus]


# What they write.

TOKENS: Final = st.sampled_from(
    ["T4", "a=b", "app=x", ",", "=", "-", "\n", "\x1b[2J", "ü", "\u202e", "[", "{", '"', "9", "0", "GPU-00000000", " ", "fgd", "1", "%s"]
)
SIZES: Final = st.sampled_from([1, 1, 1, 3, 70, 4_000, 30_000, 250_000])
TEXT: Final = st.builds(lambda parts, times: ("".join(parts) * times)[:250_000], st.lists(TOKENS, max_size=4), SIZES)
NUMBERS: Final = st.sampled_from(
    [-1, 0, 1, 7, 16, 255, 256, 2**31 - 1, 2**31, 2**63 - 1, 2**64, 10**400, 10**4299, True, 1.5, "8", None, [], {}]
)
QUANTITIES: Final = st.sampled_from(["0", "1", "2", "8", "16", "1k", "1e3", "9223372036854775807", "5E", "-1", "1.5", "1" * 70, "x"])
LABELS: Final = st.builds(
    lambda few, count: {**few, **{f"label-{n}": f"value-{n}" for n in range(count)}},
    st.dictionaries(
        st.sampled_from(["app", "a", "aliyun.com/gpu-count"]), st.sampled_from(["x", "b", "2", "64", "999999", ""]), max_size=3
    ),
    st.sampled_from([0, 0, 1, 5_000]),
)
JSON_NUMBERS: Final = st.sampled_from(["0", "1", "8", "-1", "2147483648", "9" * 18, "9" * 4300, "1.0", "true", '"1"', "{}"])
ALLOCATIONS: Final = TEXT | st.builds(
    lambda keys, units, times: "{" + ",".join(f'"{key}":{{"{n}":{units}}}' for n in range(times) for key in keys) + "}",
    st.lists(st.sampled_from(["0", "1", "-1", "99"]), max_size=3),
    JSON_NUMBERS,
    st.sampled_from([1, 1, 3, 2000]),
)


def within(annotations: Mapping[str, str]) -> dict[str, str]:
    """As many of them as the API server takes."""
    taken, left = {}, MOST_ANNOTATIONS
    for key, value in annotations.items():
        left -= len(key) + len(value.encode())
        if left >= 0:
            taken[key] = value
    return taken


@st.composite
def containers(draw: st.DrawFn) -> list[dict[str, Any]]:
    limits = st.dictionaries(st.sampled_from(["mem", "count", "core"]), QUANTITIES, max_size=3)
    made = [container(f"c{n}", **each) for n, each in enumerate(draw(st.lists(limits, max_size=3)))]
    more = draw(st.sampled_from([0, 0, 0, 61, 5_000]))
    return [*made, *(container(f"more-{n}", mem=1) for n in range(more))]


@st.composite
def hostile_pods(draw: st.DrawFn) -> dict[str, Any]:
    annotations = draw(st.dictionaries(st.sampled_from([f"gpushare.request/{name}" for name in ASKS]), TEXT, max_size=2))
    if draw(st.booleans()):
        annotations["scheduler.framework.gpushare.allocation"] = draw(ALLOCATIONS)
    keys = st.sampled_from(["ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_POD", "kubernetes.io/config.mirror"])
    annotations |= draw(st.dictionaries(keys, st.sampled_from(["0", "1", "7", "-1", "x", "9" * 18, "9" * 5000]), max_size=4))
    raw = pod(*draw(containers()), labels=draw(LABELS), annotations=within(annotations))
    raw["spec"]["initContainers"] = [{**one, "restartPolicy": draw(st.sampled_from(["Always", ""]))} for one in draw(containers())][:3]
    node = draw(st.sampled_from(["", "good-1", "odd", "nowhere"]))
    if node:
        raw["spec"]["nodeName"] = node
    raw["status"] = {"phase": draw(st.sampled_from(["Pending", "Running", "Failed"]))}
    return raw


@st.composite
def documents(draw: st.DrawFn, good: dict[str, Any]) -> str:
    """A good document with one thing changed, or something else altogether."""
    if draw(st.integers(0, 5)) == 0:
        return (
            draw(TEXT)
            if draw(st.booleans())
            else draw(st.sampled_from(["[" * 100_000, '{"v":' * 50_000, '{"v":1,"v":' + "9" * 9999 + "}"]))
        )
    changed = json.loads(json.dumps(good))
    place: Any = changed
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        if not isinstance(place[key], (dict, list)) or not place[key] or draw(st.booleans()):
            break
        place = place[key]
    how = draw(st.sampled_from(["number", "text", "many", "gone"]))
    if how == "number":
        place[key] = draw(NUMBERS)
    elif how == "text":
        place[key] = draw(TEXT | st.just("\ud800"))
    elif how == "many":
        place[key] = [place[key]] * draw(st.sampled_from([2, 65, 1025, 3000]))
    else:
        del place[key]
    return json.dumps(changed)


HELD: Final = {
    "v": 1,
    "gpus": {
        UUIDS[0]: [{"pod": "x/gone", "uid": "gone", "units": 3, "why": "orphaned"}],
        UUIDS[1]: [{"pod": "x/whole", "uid": "whole", "units": 16, "why": "orphaned", "whole": True}],
    },
    "rejected": [{"uid": "u2", "gpu": UUIDS[2], "units": 8, "until": "2026-11-21T10:01:00Z"}],
}


EVICTIONS: Final = {"v": 1, "until": 7, "pods": [{"uid": "u2", "gpu": 0, "used": 9000, "requested": 8192, "seconds": 60}]}


@st.composite
def hostile_nodes(draw: st.DrawFn) -> dict[str, Any]:
    annotations = {"gpushare/gpus": draw(st.just(GPUS) | documents(json.loads(GPUS)))}
    if draw(st.booleans()):
        annotations["gpushare/held"] = draw(documents(HELD))
    if draw(st.booleans()):
        annotations["gpushare/evictions"] = draw(documents(EVICTIONS))
    allocatable = {f"aliyun.com/gpu-{what}": draw(QUANTITIES) for what in ("mem", "count")}
    status = {"allocatable": allocatable, "addresses": [{"type": "InternalIP", "address": draw(TEXT)}]}
    labels = {"aliyun.accelerator/nvidia_name": "Tesla-T4", "ack.node.gpu.placement": draw(st.sampled_from(["spread", "no-such-policy"]))}
    return {"metadata": {"name": "odd", "annotations": within(annotations), "labels": labels}, "status": status}


# What the extender is.


def good_nodes(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"metadata": {"name": f"good-{number}", "annotations": {"gpushare/gpus": GPUS}}}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(hostile_pods(), min_size=1, max_size=3),
    st.lists(hostile_nodes(), min_size=1, max_size=2),
    st.sampled_from(["binpack", "spread"]),
)
def test_no_pod_and_no_node_harms_another(pods: list[dict[str, Any]], nodes: list[dict[str, Any]], policy: str) -> None:
    extender = Extender(policy)
    names = [*(f"good-{number}" for number in range(12)), "odd", "nowhere"]
    for node in good_nodes(12):
        extender.node(node)
    harmless = pod(container(mem=16), name="harmless", namespace="other", uid="harmless", resourceVersion="1")
    extender.pod(harmless)
    for round_, node in enumerate(nodes):
        extender.node(node)
        for number, raw in enumerate(pods):
            raw["metadata"] |= {"name": f"p{number}", "uid": f"u{number}", "resourceVersion": str(round_)}
            extender.pod(raw, "ADDED" if not round_ else "MODIFIED")
            extender.filter(raw, names)
            extender.prioritize(raw, names)
            extender.bind(raw, ("odd", "good-2", "good-3")[number])
        extender.look()
        fitting = extender.filter(harmless, names)["NodeNames"]
        # Where one of them is, or is to be, it may be in the way.
        assert set(fitting) >= {f"good-{number}" for number in range(4, 12)}
        extender.prioritize(harmless, names)
        extender.now += 10
        extender.cluster.expire()
    assert extender.bind(harmless, "good-11") == ""
    shown = read_usage([*nodes[-1:], *good_nodes(12)], [raw for raw in pods if raw["spec"].get("nodeName")])
    assert len(details(shown.nodes)) + len(summary(shown.nodes)) <= 4 * MIB, "with hundreds of columns"
    assert all(len(warning) < 2000 and warning.isprintable() for warning in shown.warnings)
    for number, raw in enumerate(pods):
        extender.pod({**raw, "metadata": {**raw["metadata"], "uid": f"u{number}"}}, "DELETED")
    extender.look()


@pytest.mark.parametrize("nodes", [3, 20])
def test_a_fault_about_one_node_is_a_reason_for_that_node_alone(nodes: int, caplog: pytest.LogCaptureFixture) -> None:
    """Of a kind that nobody has thought of: here the ledger itself is broken there."""
    extender = Extender()
    for node in good_nodes(nodes):
        extender.node(node)
    broken = extender.cluster.ledger.nodes["good-1"]
    broken._facts.pods["odd"] = None  # type: ignore[assignment]
    names = [f"good-{number}" for number in range(nodes)]
    raw = pod(container(mem=20), name="p", uid="u", annotations={"gpushare.request/not-with": "a=b"})
    extender.pod(raw)
    others = [name for name in names if name != "good-1"]
    fault = "an internal fault while this node was computed; the log of gpushare-extender says which"
    for _ in range(2):
        answer = extender.filter(raw, names)
        assert answer["NodeNames"] == others
        assert answer["FailedNodes"] == {"good-1": f"good-1: {fault}"}
    extender.prioritize(raw, names)
    said = [one.message for one in caplog.records if "cannot be evaluated" in one.message]
    assert said == [f"nodes that cannot be evaluated and are omitted: 1; node good-1: {broken.fault}"]
    assert broken.fault.startswith("AttributeError in ")
    answer = extender.filter(pod(container(mem=25)), names)
    assert (fault in answer["FailedNodes"]["good-1"], "largest GPU has 24" in answer["FailedNodes"]["good-0"]) == (True, nodes == 3)
    extender.look()
    shown = {node["name"]: node for node in ledger_json(extender.cluster.ledger)["nodes"]}
    assert (shown["good-1"]["error"], shown["good-1"]["problems"]) == (fault, [broken.fault])
    assert inspect_json.inspect(extender.cluster.ledger, "good-1")["nodes"][0]["devs"] == []
    page = "".join(exposition.render(families(extender.cluster)))
    assert 'gpushare_extender_node_units_free{node="good-2"} 56' in page
    assert 'gpushare_extender_node_units_free{node="good-1"} 0' in page
    assert 'gpushare_extender_node_ledger_inconsistencies{node="good-1"} 1' in page
    assert extender.bind(raw, "good-2") == ""


def test_a_fault_about_one_node_keeps_nobody_from_evictions_and_requeues_on_others() -> None:
    """As above; with a pod nominated there, so that both look at what that leaves."""
    extender = Extender()
    ledger = extender.cluster.ledger
    requeue = Requeue(extender.cluster, Placement(), clock=lambda: extender.now)
    for node in good_nodes(4):
        extender.node(node)
    for number in (1, 2):
        holding = pod(container(mem=24), name=f"held-{number}", uid=f"held-{number}", annotations={"ALIYUN_COM_GPU_MEM_IDX": "2"})
        holding["spec"]["nodeName"] = f"good-{number}"
        extender.pod(holding)
        ledger.nominate(f"n{number}", PendingPod(f"n{number}", "default", f"n{number}", memory(1), priority=10, nominated=f"good-{number}"))
    raw = pod(container(mem=24), name="p", uid="u")
    raw["spec"]["priority"] = 10
    extender.pod(raw)
    ledger.nodes["good-1"]._facts.pods["odd"] = None  # type: ignore[assignment]
    proposed = {f"good-{number}": Victims((f"held-{number}",)) for number in (1, 2)}
    assert extender.service.preempt(PreemptArguments(raw, proposed)) == {"good-2": proposed["good-2"]}
    assert ledger.nodes["good-1"].fault.startswith("AttributeError in ")
    requeue.on_filter("u", ["good-1"])
    extender.now += 1
    requeue.on_capacity_freed()
    assert requeue.next() is None
    requeue.on_filter("u", ["good-1", "good-3"])
    extender.now += 1
    requeue.on_capacity_freed()
    assert requeue.next() == extender.cluster.pending["u"]


# How much of it, and how long.


@pytest.mark.parametrize(("without", "looks"), [((), 1), (("models",), 1), (("models", "models-refused", "gpus-refused"), 0)])
def test_long_rules_are_compared_once_with_each_gpu(monkeypatch: pytest.MonkeyPatch, without: tuple[str, ...], looks: int) -> None:
    """By filter, its reasons, prioritize and the next attempt together: a cluster has 40,000 GPUs, a pod 64 entries in each rule."""
    seen: list[str] = []

    def accept(self: Rules, uuid: str, models: tuple[str, ...]) -> bool:
        seen.append(uuid)
        return really(self, uuid, models)

    really = Rules.accept
    monkeypatch.setattr(Rules, "accept", accept)
    extender = Extender()
    for node in good_nodes(3):
        extender.node(node)
    names = [f"good-{number}" for number in range(3)]
    rules = {key: value for key, value in long_rules().items() if key.partition("/")[2] not in without}
    raw = pod(container(mem=1), annotations=rules, labels=many_labels(60))
    raw["metadata"] |= {"uid": "asks", "resourceVersion": "1"}
    for _ in range(2):
        extender.filter(raw, names)
        extender.prioritize(raw, names)
    assert len(seen) == looks * 3 * len(UUIDS)


def test_what_came_and_went_leaves_little_behind() -> None:
    """Each pod with rules and labels of its own, one after the other, on nodes that do not change."""
    extender = Extender()
    for node in good_nodes(40):
        extender.node(node)
    names = [f"good-{number}" for number in range(40)]
    raw = pod(container(mem=1), name="watcher", uid="watcher", annotations={"gpushare.request/not-with": "label-1=value-1"})
    raw["spec"]["nodeName"] = "good-0"
    extender.pod(raw)

    def come_and_go(first: int, count: int) -> None:
        for number in range(first, first + count):
            metadata = {"labels": many_labels(500, number), "annotations": long_rules(number)}
            raw = pod(container(mem=17 + number % 4), name="p", uid=f"u{number}", resourceVersion="1", **metadata)
            extender.pod(raw)
            extender.filter(raw, names)
            extender.pod(raw, "DELETED")

    come_and_go(0, 30)
    gc.collect()
    tracemalloc.start()
    come_and_go(30, 100)
    gc.collect()
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 12 * MIB, "250 kB of each have gone through"
