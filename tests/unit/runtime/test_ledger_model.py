# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Ledger, rules and placement against the naive count, under any sequence of events, for every kind of request."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpushare_runtime.extender.pods import PodReader
from gpushare_runtime.held import Held, HeldEntry
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.ledger import Holder, Ledger, NodeRecord
from gpushare_runtime.placement import Placement
from gpushare_runtime.quantity import GIB
from gpushare_runtime.ranking import names_of, scores_of
from gpushare_runtime.request import Request, parse_request
from gpushare_runtime.rules import PLACEMENTS, labels_of
from unit.runtime.naive import CORE, MEMORY, WHOLE, Ghost, Naive, NaiveCard, NaivePod, effective
from unit.runtime.pods import card

SIZES = {"a": (16, 16), "b": (16, 24, 24), "c": (80,) * 4}
MODELS = ("T4", "A10", "A100")
APPS = ("red", "blue")


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
            + [{"models": "A100,A10"}, {"models-refused": "T4"}, {"not-with": "app=red"}, {"placement": "spread"}, {"placement": "fgd"}]
            + ([] if whole else [{"same-card-as": "app=blue"}, {"same-card-as": "app=red"}])
        )
    )
    annotations = {f"gpushare.request/{key}": value for key, value in rules.items()}
    metadata = {"namespace": "x", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": apps, "initContainers": init}}


class Events(RuleBasedStateMachine):
    """forging: whether there are pods that nobody placed, some with annotations that are not true. Once there was one, cards may
    be given twice, and only reporting that is asked for."""

    forging = False

    def __init__(self) -> None:
        super().__init__()
        self.ledger, self.reader = Ledger(), PodReader()
        self.policy = Placement("binpack")
        self.rankings = [Placement(name) for name in PLACEMENTS]
        self.naive = Naive({name: [NaiveCard(size, MODELS[i % 3]) for i, size in enumerate(sizes)] for name, sizes in SIZES.items()})
        self.tentative: dict[str, str] = {}
        self.count = 0
        self.asked: dict[object, Request] = {}
        self.forged = False
        self.clock = 0.0
        for name in SIZES:
            self.tell(name)

    @initialize(cards=st.sampled_from(["binpack", "spread", "fgd"]))
    def policies(self, cards: str) -> None:
        self.policy = Placement("binpack", cards)

    def tell(self, node: str) -> None:
        """What the node says of itself."""
        healthy = {True: "ok", False: "XID 79"}
        cards = tuple(card(i, c.units, model=f"NVIDIA {c.model}-X", health=healthy[c.usable]) for i, c in enumerate(self.naive.nodes[node]))
        ghosts = [ghost for ghost in self.naive.ghosts if ghost.node == node]
        held = Held(tuple(HeldEntry(cards[g.card].uuid, g.uid, f"x/{g.uid}", g.units, "leaving", g.whole) for g in ghosts))
        self.ledger.set_node(NodeRecord(node, Inventory(GIB, cards, core=100), "", held))

    def bound(self, raw: dict[str, Any], node: str, annotations: dict[str, str]) -> Holder:
        """As the watch shows it."""
        seen = copy.deepcopy(raw)
        seen["spec"]["nodeName"] = node
        seen["metadata"]["annotations"] |= annotations
        record = self.reader(seen)
        assert isinstance(record, Holder)
        return record

    @rule(
        raws=st.lists(pods(), min_size=1, max_size=4),
        node=st.sampled_from(list(SIZES)),
        how=st.sampled_from(["assume", "reserve", "confirm"]),
    )
    def burst(self, raws: list[dict[str, Any]], node: str, how: str) -> None:
        for raw in raws:
            self.place(raw, node, how)

    def place(self, raw: dict[str, Any], node: str, how: str) -> None:
        self.count += 1
        uid = f"pod-{self.count}"
        raw["metadata"] |= {"name": uid, "uid": uid}
        request = parse_request(raw)
        assert request is not None
        if request.unsupported is not None:
            return
        pod = NaivePod(raw, node, None)
        found = self.ledger.node(node)
        assert found is not None
        asked = self.ledger.asked_by(request, "x", labels_of(raw["metadata"]))
        self.asked[asked.key] = asked
        while len(self.asked) > 3:
            del self.asked[next(iter(self.asked))]
        fits = self.naive.fits(pod, node)
        assert (found.leftover(asked) is not None) == fits
        allocation = self.policy.choose(asked, found)
        assert (allocation is not None) == fits
        if allocation is None or found.inventory is None:
            return
        assert all(self.naive.takes(pod, node, index) for index in allocation.by_card)
        assert len(allocation.by_card) == (pod.whole or pod.several)
        assert allocation.units == (sum(allocation.by_card.values()) if pod.whole else effective(raw, MEMORY))
        pod.cards = dict(allocation.by_card)
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
            self.ledger.reserve(seen, self.clock + 3)

    @precondition(lambda self: self.tentative)
    @rule(data=st.data(), happens=st.booleans())
    def settle(self, data: st.DataObject, happens: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.tentative)))
        holder = self.ledger.holder(uid)
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
        known = self.naive.known(pod)
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
    @rule(raw=pods(), node=st.sampled_from(list(SIZES)), lie=st.sampled_from(["", "none", "card", "units"]), index=st.integers(0, 3))
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
        annotations = {} if lie == "none" else {"ALIYUN_COM_GPU_MEM_IDX": str(index + (90 if lie == "card" else 0))}
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
        seen = [h for uid in self.naive.pods if uid not in self.tentative and (h := self.ledger.holder(uid))]
        self.ledger.replace(seen, set(self.naive.pods))

    @rule(what=st.sampled_from(["time", "card", "node"]), node=st.sampled_from(list(SIZES)), index=st.integers(0, 3))
    def changes(self, what: str, node: str, index: int) -> None:
        if what == "time":
            self.time_passes()
            return
        cards = self.naive.nodes[node]
        if what == "card":
            cards[index % len(cards)].usable ^= True
        else:
            self.ledger.set_node(NodeRecord(node, None))
        self.tell(node)

    def time_passes(self) -> None:
        self.clock += 2
        before = {uid for uid, how in self.tentative.items() if how == "reserve"}
        self.ledger.expire(0.0, self.clock)
        for uid in before:
            if not self.ledger.is_reserved(uid):
                del self.tentative[uid], self.naive.pods[uid]

    @invariant()
    def every_card_is_counted_right_and_none_is_given_twice(self) -> None:
        for name, cards in self.naive.nodes.items():
            node = self.ledger.node(name)
            assert node is not None
            counted = [(state.free, state.core, state.empty) for state in node.cards]
            assert counted == [self.naive.free(name, index) for index in range(len(cards))]
        if not self.forged:
            assert self.naive.sound()
            assert not any(node.overbooked() for node in self.ledger.nodes.values())
        if not self.naive.sound():
            assert any(node.problems() for node in self.ledger.nodes.values())

    @invariant()
    def what_is_kept_of_all_nodes_is_what_a_fresh_look_says(self) -> None:
        names = [*SIZES, "nowhere"]
        nodes = [self.ledger.nodes[name].supposing() for name in SIZES]
        for request in self.asked.values():
            for policy in self.rankings:
                kept, fresh = policy.ranking(request, self.ledger), {node.name: policy.weigh(request, node) for node in nodes}
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
                    assert kept.scores(some) == (min(those)[-1] if those else "", scores_of(those))


class Forging(Events):
    """The same with strangers."""

    forging = True


TestEvents = Events.TestCase
TestForging = Forging.TestCase
TestEvents.settings = TestForging.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
