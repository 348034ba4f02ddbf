# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Ledger, rules and placement against the naive count, under any sequence of events, for every kind of request."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.constraints import PLACEMENTS, labels_of
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.placement.ranking import names_of, scores_of
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.request import Request, parse_request
from gpushare_runtime.core.reservation import Group
from unit.fakes.runtime.core.naive import CORE, MEMORY, WHOLE, Ghost, Naive, NaiveGpu, NaivePod, effective
from unit.fakes.runtime.pods import gpu, pending

SIZES = {"a": (16, 16), "b": (16, 24, 24), "c": (80,) * 4}
MODELS = ("T4", "A10", "A100")
APPS = ("red", "blue")
GROUPS = (None, Group("x/first", True), Group("x/second", True), Group("x/patient", False))


def container(name: str, limits: dict[str, int], sidecar: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "resources": {"limits": {key: str(value) for key, value in limits.items() if value}}}
    return made | {"restartPolicy": "Always"} if sidecar else made


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """A pod of any kind that is placed, as a user writes it; its name is given later."""
    several, whole, core = draw(st.sampled_from([(1, 0, 0), (1, 0, 0), (1, 0, 20), (2, 0, 0), (3, 0, 0), (1, 1, 0)]))
    amount = st.integers(1, 2) if whole else st.integers(1, 12).map(lambda n: n * several)

    def limits() -> dict[str, int]:
        return {WHOLE: draw(amount)} if whole else {MEMORY: draw(amount), CORE: core}

    init = [container(f"i{n}", limits(), draw(st.booleans())) for n in range(draw(st.sampled_from([0, 0, 0, 1, 2])))]
    apps = [container(f"c{n}", limits()) for n in range(draw(st.sampled_from([1, 1, 2])))]
    labels = {"app": draw(st.sampled_from(APPS))} | ({WHOLE: str(several)} if several > 1 else {})
    rules = draw(
        st.sampled_from(
            [{}] * 6
            + [{"models": "A100,A10"}, {"models-refused": "T4"}, {"not-with": "app=red"}, {"placement": "spread"}]
            + ([] if whole else [{"same-gpu-as": "app=blue"}, {"same-gpu-as": "app=red"}])
        )
    )
    annotations = {f"gpushare.request/{key}": value for key, value in rules.items()}
    metadata = {"namespace": "x", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": apps, "initContainers": init}}


class Events(RuleBasedStateMachine):
    """forging: whether there are pods that nobody placed, some with annotations that are not true. Once there was one, GPUs may
    be given twice, and only reporting that is asked for."""

    forging = False

    def __init__(self) -> None:
        super().__init__()
        self.ledger, self.reader = Ledger(), PodReader()
        self.policy = Placement("binpack")
        self.rankings = [Placement(name) for name in PLACEMENTS]
        self.naive = Naive({name: [NaiveGpu(size, MODELS[i % 3]) for i, size in enumerate(sizes)] for name, sizes in SIZES.items()})
        self.tentative: dict[str, str] = {}
        self.count = 0
        self.asked: dict[object, Request] = {}
        self.forged = False
        self.clock = 0.0
        self.unknown_since: dict[str, float] = {}
        for name in SIZES:
            self.tell(name)

    @initialize(gpus=st.sampled_from(["binpack", "spread"]))
    def policies(self, gpus: str) -> None:
        self.policy = Placement("binpack", gpus)

    def tell(self, node: str) -> None:
        """What the node says of itself."""
        healthy = {True: "ok", False: "XID 79"}
        gpus = tuple(gpu(i, c.units, model=f"NVIDIA {c.model}-X", health=healthy[c.usable]) for i, c in enumerate(self.naive.nodes[node]))
        ghosts = [ghost for ghost in self.naive.ghosts if ghost.node == node]
        held = Held(tuple(HeldEntry(gpus[g.gpu].uuid, g.uid, f"x/{g.uid}", g.units, "orphaned", g.whole) for g in ghosts))
        self.ledger.set_node(NodeRecord(node, Inventory(GIB, gpus, core=100), "", held))

    def bound(self, raw: dict[str, Any], node: str, annotations: dict[str, str]) -> AllocatedPod:
        """As the watch shows it."""
        seen = copy.deepcopy(raw)
        seen["spec"]["nodeName"] = node
        seen["metadata"]["annotations"] |= annotations
        record = self.reader(seen)
        assert isinstance(record, AllocatedPod)
        return record

    @rule(
        raws=st.lists(pods(), min_size=1, max_size=4),
        node=st.sampled_from(list(SIZES)),
        how=st.sampled_from(["assume", "reserve", "confirm"]),
        group=st.sampled_from(GROUPS),
    )
    def burst(self, raws: list[dict[str, Any]], node: str, how: str, group: Group | None) -> None:
        for raw in raws:
            self.place(raw, node, how, group)

    def place(self, raw: dict[str, Any], node: str, how: str, group: Group | None) -> None:
        self.count += 1
        self.ledger.asked(f"pod-{self.count}", group, self.clock)
        self.reservations_end()
        uid = f"pod-{self.count}"
        raw["metadata"] |= {"name": uid, "uid": uid}
        request = parse_request(raw)
        assert request is not None
        if request.unsupported is not None:
            return
        pod = NaivePod(raw, node, None)
        found = self.ledger.nodes[node]
        asked = self.ledger.for_pod(pending(request, "x", labels_of(raw["metadata"])))
        self.asked[asked.key] = asked
        while len(self.asked) > 3:
            del self.asked[next(iter(self.asked))]
        fits = self.naive.fits(pod, node)
        assert (found.remaining_after(asked) is not None) == fits
        allocation = self.policy.choose(asked, found)
        assert (allocation is not None) == fits
        if allocation is None or found.inventory is None:
            return
        assert all(self.naive.takes(pod, node, index) for index in allocation.by_gpu)
        assert len(allocation.by_gpu) == (pod.whole or pod.several)
        assert allocation.units == (sum(allocation.by_gpu.values()) if pod.whole else effective(raw, MEMORY))
        pod.gpus = dict(allocation.by_gpu)
        self.naive.pods[uid] = pod
        seen = self.bound(raw, node, allocation.to_annotations(found.inventory, 1))
        assert seen.allocation == allocation
        if how == "confirm":
            self.ledger.apply(seen)
            return
        self.tentative[uid] = how
        if how == "assume":
            self.ledger.assume(seen)
        else:
            self.clock += 1
            self.ledger.reserve(replace(seen, group=group), self.clock + 3)

    @precondition(lambda self: self.tentative)
    @rule(data=st.data(), happens=st.booleans())
    def settle(self, data: st.DataObject, happens: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.tentative)))
        holder = self.ledger.pod(uid)
        assert holder is not None
        how = self.tentative.pop(uid)
        if happens:
            (self.ledger.apply if how == "assume" else self.ledger.assume)(holder)
            if how == "reserve":
                self.tentative[uid] = "assume"
        else:
            (self.ledger.forget if how == "assume" else self.ledger.release)(uid)
            del self.naive.pods[uid]

    @precondition(lambda self: self.naive.pods)
    @rule(data=st.data(), survives=st.booleans())
    def delete(self, data: st.DataObject, survives: bool) -> None:
        """By force: its processes may survive it, and then the node says so."""
        uid = data.draw(st.sampled_from(sorted(self.naive.pods)))
        pod = self.naive.pods.pop(uid)
        known = self.naive.gpus_of(pod)
        if survives and known and uid not in self.tentative:
            self.naive.ghosts += [Ghost(uid, pod.node, index, units, pod.whole > 0) for index, units in known.items()]
            self.tell(pod.node)
        self.tentative.pop(uid, None)
        self.ledger.remove(uid)

    @precondition(lambda self: self.naive.ghosts)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.naive.ghosts))
        self.naive.ghosts = [ghost for ghost in self.naive.ghosts if ghost.uid != gone.uid]
        self.tell(gone.node)

    @precondition(lambda self: self.forging)
    @rule(raw=pods(), node=st.sampled_from(list(SIZES)), lie=st.sampled_from(["", "none", "gpu", "units"]), index=st.integers(0, 3))
    def appears(self, raw: dict[str, Any], node: str, lie: str, index: int) -> None:
        """A pod that the original has bound, or somebody past every scheduler."""
        self.count += 1
        uid = f"pod-{self.count}"
        raw["metadata"] |= {"name": uid, "uid": uid}
        raw["metadata"]["labels"].pop(WHOLE, None)
        request = parse_request(raw)
        if request is None or effective(raw, WHOLE):
            return
        units = effective(raw, MEMORY)
        annotations = {} if lie == "none" else {"ALIYUN_COM_GPU_MEM_IDX": str(index + (90 if lie == "gpu" else 0))}
        if lie == "units":
            annotations["scheduler.framework.gpushare.allocation"] = f'{{"0":{{"{index}":{units + 1}}}}}'
        self.ledger.apply(self.bound(raw, node, annotations))
        self.naive.pods[uid] = NaivePod(raw, node, {index: units} if not lie else None)
        self.forged = True

    @rule(gone=st.sets(st.integers(1, 30)))
    def relist(self, gone: set[int]) -> None:
        """The watch was lost; what went meanwhile is not in the list, nor what is not bound yet."""
        for uid in [f"pod-{n}" for n in gone]:
            self.naive.pods.pop(uid, None)
            self.tentative.pop(uid, None)
        seen = [h for uid in self.naive.pods if uid not in self.tentative and (h := self.ledger.pod(uid))]
        self.ledger.replace(seen, set(self.naive.pods))

    @rule(what=st.sampled_from(["time", "long time", "gpu", "node"]), node=st.sampled_from(list(SIZES)), index=st.integers(0, 3))
    def changes(self, what: str, node: str, index: int) -> None:
        if "time" in what:
            self.time_passes(16 if what == "long time" else 2)
            return
        gpus = self.naive.nodes[node]
        if what == "gpu":
            gpus[index % len(gpus)].usable ^= True
        else:
            self.ledger.set_node(NodeRecord(node, None))
        self.tell(node)

    def time_passes(self, seconds: int) -> None:
        self.clock += seconds
        for uid, pod in self.naive.pods.items():
            # It counts against every GPU for a quarter of a minute, and then with what its node says: here that is nothing.
            if self.naive.gpus_of(pod) is None and self.clock - self.unknown_since.setdefault(uid, self.clock) >= 15:
                pod.gpus = {}
        self.ledger.expire(self.clock)
        self.reservations_end()

    def reservations_end(self) -> None:
        """Which and when, is for `test_cycles.py` to say."""
        for uid in [uid for uid, how in self.tentative.items() if how == "reserve"]:
            if not self.ledger.is_reserved(uid):
                del self.tentative[uid], self.naive.pods[uid]

    @invariant()
    def every_gpu_is_counted_right_and_none_is_given_twice(self) -> None:
        for name, gpus in self.naive.nodes.items():
            node = self.ledger.nodes[name]
            counted = [(state.free, state.core, state.empty) for state in node.gpu_states]
            assert counted == [self.naive.free(name, index) for index in range(len(gpus))]
            usable = [(free, empty) for (free, _, empty), gpu in zip(counted, gpus, strict=True) if gpu.usable]
            sums = sum(free for free, _ in usable), max((free for free, _ in usable), default=0), sum(empty for _, empty in usable)
            assert (node.free, node.largest_free(), node.empty_gpus()) == sums
        if not self.forged:
            assert self.naive.still_valid()
            assert not any(node.overbooked() for node in self.ledger.nodes.values())
        if not self.naive.still_valid():
            assert any(node.problems() for node in self.ledger.nodes.values())

    @invariant()
    def what_is_kept_of_all_nodes_is_what_a_fresh_look_says(self) -> None:
        names = [*SIZES, "nowhere"]
        nodes = [self.ledger.nodes[name].simulate() for name in SIZES]
        for request in self.asked.values():
            for policy in self.rankings:
                kept, fresh = policy.ranking(request, self.ledger), {node.name: policy.node_cost(request, node) for node in nodes}
                weights = [weight for weight in fresh.values() if weight is not None]
                fitting = names_of(weights)
                assert kept.weights(names) == [*fresh.values(), None]
                named, unfit = kept.fitting(names)
                assert (list(named), set(unfit)) == (fitting, {*names} - {*fitting})
                assert kept.fitting(fitting) == (fitting, set())
                assert kept.fitting(fitting, most=2)[0] == (fitting if len(fitting) <= 2 else names_of(sorted(weights)[:2]))
                # Of all that fit, as a scheduler asks after its filter; and of fewer.
                for some in (fitting, names, fitting[1:]):
                    those = [weight for weight in weights if weight[-1] in some]
                    assert kept.scores(some) == (min(those)[-1] if those else "", scores_of(those)[1])


class Forging(Events):
    """The same with strangers."""

    forging = True


TestEvents = Events.TestCase
TestForging = Forging.TestCase
TestEvents.settings = TestForging.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


def raw(amount: int, core: int = 0, several: int = 1, whole: bool = False, app: str = "other", **rules: str) -> dict[str, Any]:
    """A pod of one container, as a user writes it."""
    limits = {WHOLE: amount} if whole else {MEMORY: amount, CORE: core}
    metadata = {
        "namespace": "x",
        "labels": {"app": app} | ({WHOLE: str(several)} if several > 1 else {}),
        "annotations": {f"gpushare.request/{key.replace('_', '-')}": value for key, value in rules.items()},
    }
    return {"metadata": metadata, "spec": {"containers": [container("c0", limits)]}}


SMALL: Final = (NaiveGpu(4, "T4"), NaiveGpu(6, "A10"))
THERE: Final[tuple[tuple[dict[str, Any], dict[int, int] | None], ...]] = (
    (raw(2), {0: 2}), (raw(4), {0: 4}), (raw(3, core=60), {1: 3}), (raw(4, several=2), {0: 2, 1: 2}), (raw(1, whole=True), {0: 4}),
    (raw(1, whole=True), {1: 6}), (raw(2), None), (raw(5, core=60), None), (raw(1, whole=True), None), (raw(1), {7: 1}), (raw(5), {0: 5}),
    (raw(1, not_with="app=red"), {0: 1}), (raw(1, app="red"), {1: 1}), (raw(1, app="red"), None),
)  # fmt: skip
"""Pods that are there, with the GPUs that they name."""
ASKING: Final = (
    raw(1), raw(2), raw(4), raw(5), raw(6), raw(7), raw(4, several=2), raw(8, several=2), raw(10, several=2), raw(3, several=3),
    raw(1, whole=True), raw(2, whole=True), raw(3, whole=True), raw(1, core=40), raw(1, core=45), raw(1, core=100),
    raw(1, not_with="app=red"), raw(1, app="red"), raw(1, same_gpu_as="app=red"), raw(1, app="red", same_gpu_as="app=red"),
    raw(1, models="T4"), raw(5, models="T4"), raw(1, models_refused="T4"), raw(1, whole=True, models="A10"),
)  # fmt: skip


@pytest.mark.parametrize("good", [(True, True), (False, True)])
def test_every_small_node_is_counted_and_offered_as_the_naive_count_has_it(good: tuple[bool, bool]) -> None:
    """Two GPUs with up to two pods and with units that a pod has left behind, asked about by each kind of pod."""
    left_behind = ((), (Ghost("gone", "n", 0, 2, False),), (Ghost("gone", "n", 1, 6, True),))
    asking = [(NaivePod(one, "n", None), parse_request(one)) for one in ASKING]
    health = ["ok" if usable else "lost" for usable in good]
    gpus = tuple(gpu(i, c.units, model=f"NVIDIA {c.model}-X", health=health[i]) for i, c in enumerate(SMALL))
    for there in [(), *((one,) for one in THERE), *combinations(THERE, 2)]:
        for ghosts in left_behind if len(there) < 2 else left_behind[:1]:
            naive = Naive({"n": [replace(c, usable=usable) for c, usable in zip(SMALL, good, strict=True)]}, ghosts=list(ghosts))
            ledger = Ledger()
            held = Held(tuple(HeldEntry(gpus[g.gpu].uuid, g.uid, "x/gone", g.units, "orphaned", g.whole) for g in ghosts))
            ledger.set_node(NodeRecord("n", Inventory(GIB, gpus, core=100), "", held))
            node = ledger.nodes["n"]
            for number, (pod, on) in enumerate(there):
                naive.pods[str(number)] = NaivePod(pod, "n", on)
                request = parse_request(pod)
                assert request is not None
                allocation = None if on is None else Allocation.of({0: on})
                ledger.apply(AllocatedPod(str(number), "x", f"p{number}", "n", request, allocation, labels_of(pod["metadata"])))
            counted = [naive.free("n", index) for index in range(2)]
            assert [(state.free, state.core, state.empty) for state in node.gpu_states] == counted, there
            uids = {pod.uid for pod in node.pods} | node.record.held.by_uid.keys()
            assert sum((Counter(node.units_of(uid) or {}) for uid in uids), Counter()) == Counter(node.usage().used), there
            frees = [free for (free, _, _), usable in zip(counted, good, strict=True) if usable]
            empty = [empty for (_, _, empty), usable in zip(counted, good, strict=True) if usable]
            assert (node.free, node.largest_free(), node.empty_gpus()) == (sum(frees), max(frees), sum(empty)), there
            assert naive.still_valid() or node.problems(), there
            for asked, request in asking:
                assert request is not None
                named = ledger.for_pod(pending(request, "x", labels_of(asked.raw["metadata"])))
                takers = [index for index in range(2) if naive.takes(asked, "n", index)]
                assert node.remaining_after(named) == naive.left(asked, "n"), (there, asked)
                assert [state.gpu.index for state in node.candidates(named)] == (takers if naive.fits(asked, "n") else []), (there, asked)
                assert [node.exclusion(named, state) == "" for state in node.gpu_states] == [index in takers for index in range(2)], (
                    there,
                    asked,
                )
