# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster counted the slow and plain way, from pods as users write them: what the ledger and placement are held against.

Shares no code with them: it reads raw pods, counts effective requests as Kubernetes documents them, and adds up every card anew
at every question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

MEMORY, WHOLE, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"


def effective(pod: dict[str, Any], resource: str) -> int:
    """max(largest init container and the sidecars before it, all app containers and sidecars)."""
    sidecars = most = 0
    for container in pod["spec"].get("initContainers", []):
        amount = int(container["resources"]["limits"].get(resource, 0))
        if container.get("restartPolicy") == "Always":
            sidecars += amount
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + amount)
    apps = sum(int(c["resources"]["limits"].get(resource, 0)) for c in pod["spec"]["containers"])
    return max(most, apps + sidecars)


def shapes(resource: str, several: int = 1, most: int = 3, amounts: tuple[int, ...] = (1, 2, 3)) -> Iterator[dict[str, Any]]:
    """Every pod of up to `most` containers, of which each asks for a little of one resource: c0, c1, … and before them i0, i1, …"""
    labels = {WHOLE: str(several)} if several > 1 else {}
    for count in range(1, most + 1):
        for kinds in product(("init", "sidecar", "app"), repeat=count):
            if list(kinds) != sorted(kinds, key="app".__eq__):
                continue
            for asked in product(amounts, repeat=count):
                init: list[dict[str, Any]] = []
                apps: list[dict[str, Any]] = []
                for kind, amount in zip(kinds, asked, strict=True):
                    to = apps if kind == "app" else init
                    name = f"{'c' if kind == 'app' else 'i'}{len(to)}"
                    always = {"restartPolicy": "Always"} if kind == "sidecar" else {}
                    to.append({"name": name, "resources": {"limits": {resource: str(amount * several)}}, **always})
                yield {"metadata": {"labels": labels, "annotations": {}}, "spec": {"containers": apps, "initContainers": init}}


def pairs(text: str) -> list[tuple[str, str]]:
    """A selector's text."""
    return [(a, b) for a, b in (part.split("=") for part in text.split(",") if part)]


@dataclass
class NaivePod:
    """cards: index → units, None when nobody knows."""

    raw: dict[str, Any]
    node: str
    cards: dict[int, int] | None

    @cached_property
    def several(self) -> int:
        return int(self.raw["metadata"]["labels"].get(WHOLE, 1))

    @cached_property
    def per_card(self) -> int:
        return effective(self.raw, MEMORY) // self.several

    @cached_property
    def whole(self) -> int:
        return effective(self.raw, WHOLE)

    @cached_property
    def core(self) -> int:
        return effective(self.raw, CORE)

    def selector(self, name: str) -> list[tuple[str, str]]:
        return pairs(self.raw["metadata"]["annotations"].get(f"gpushare.request/{name}", ""))

    def matches(self, selector: list[tuple[str, str]]) -> bool:
        return bool(selector) and all(self.raw["metadata"]["labels"].get(a) == b for a, b in selector)


@dataclass
class NaiveCard:
    units: int
    model: str
    usable: bool = True


@dataclass
class Ghost:
    """Units of a card that are still held by a pod that the API has forgotten."""

    uid: str
    node: str
    card: int
    units: int
    whole: bool


@dataclass
class Naive:
    nodes: dict[str, list[NaiveCard]]
    pods: dict[str, NaivePod] = field(default_factory=dict)
    ghosts: list[Ghost] = field(default_factory=list)
    core: int = 100

    def on(self, node: str) -> list[NaivePod]:
        return [pod for pod in self.pods.values() if pod.node == node]

    def cards_of(self, pod: NaivePod) -> dict[int, int] | None:
        """None also where no such pod can be on the cards that it names."""
        cards = self.nodes[pod.node]
        if pod.cards is None or any(index >= len(cards) or units > cards[index].units for index, units in pod.cards.items()):
            return None
        return pod.cards

    def free(self, node: str, index: int) -> tuple[int, int, bool]:
        """(units, per cent of compute, whether nobody has any of it)."""
        card = self.nodes[node][index]
        units, core, empty = card.units, self.core, True
        for pod in self.on(node):
            cards = self.cards_of(pod)
            if cards is not None and index not in cards:
                continue
            empty = False
            units -= card.units if pod.whole else pod.per_card
            core -= self.core if pod.whole else pod.core
        for ghost in self.ghosts:
            if (ghost.node, ghost.card) == (node, index) and ghost.uid not in self.pods:
                empty = False
                units -= card.units if ghost.whole else ghost.units
                core -= self.core if ghost.whole else 0
        return max(0, units), max(0, core), empty

    def takes(self, pod: NaivePod, node: str, index: int) -> bool:
        """Whether this card can have its part of the pod."""
        card = self.nodes[node][index]
        units, core, empty = self.free(node, index)
        if not card.usable or (pod.whole and not empty) or (not pod.whole and (units < pod.per_card or core < pod.core)):
            return False
        annotations = pod.raw["metadata"]["annotations"]
        if card.model not in annotations.get("gpushare.request/models", card.model):
            return False
        if card.model in annotations.get("gpushare.request/models-refused", "").split(","):
            return False
        return self.good_company(pod, node, index)

    def good_company(self, pod: NaivePod, node: str, index: int) -> bool:
        maybe = [p for p in self.on(node) if self.cards_of(p) is None or index in (self.cards_of(p) or {})]
        if any(p.matches(pod.selector("not-with")) or pod.matches(p.selector("not-with")) for p in maybe):
            return False
        wanted = pod.selector("same-card-as")
        if not wanted or any(p.matches(wanted) for p in maybe if self.cards_of(p) is not None):
            return True
        return pod.matches(wanted) and not any(p.matches(wanted) for p in self.pods.values())

    def fits(self, pod: NaivePod, node: str) -> bool:
        return sum(self.takes(pod, node, index) for index in range(len(self.nodes[node]))) >= (pod.whole or pod.several)

    def left(self, pod: NaivePod, node: str) -> int | None:
        """What stays free on the fullest cards that take it, or how many cards stay empty; None if it does not fit."""
        if not self.fits(pod, node):
            return None
        frees = sorted(self.free(node, index)[0] for index in range(len(self.nodes[node])) if self.takes(pod, node, index))
        return len(frees) - pod.whole if pod.whole else sum(frees[: pod.several]) - pod.per_card * pod.several

    def still_valid(self) -> bool:
        """Whether no card is given twice: of what is known and held."""
        for name, cards in self.nodes.items():
            for index, card in enumerate(cards):
                here = [pod for pod in self.on(name) if index in (self.cards_of(pod) or {})]
                if sum(card.units if pod.whole else pod.per_card for pod in here) > card.units or sum(pod.core for pod in here) > self.core:
                    return False
        return True


@dataclass
class NaiveLife:
    """What is held for one pod, as the ledger's methods promise it. how: "" (nothing), "reserved", "assumed" or "bound"."""

    how: str = ""
    node: str = ""
    until: float = 0.0
    held_until: float | None = None
    expired: int = 0

    def end(self) -> None:
        self.how, self.node, self.held_until = "", "", None

    def hold(self, how: str, node: str) -> None:
        if node != self.node:
            self.end()
        self.how, self.node = how, node

    def reserve(self, node: str, until: float) -> None:
        if self.how in ("", "reserved"):
            self.hold("reserved", node)
            self.until = until

    def seen(self, node: str) -> None:
        self.hold("bound", node)
        self.held_until = None

    def give_up(self, how: str) -> None:
        if self.how == how:
            self.end()

    def hold_until(self, until: float) -> None:
        if self.how and self.held_until is None:
            self.held_until = until

    def listed(self, node: str, exists: bool) -> None:
        if node:
            self.seen(node)
        elif self.held_until is None and not (exists and self.how in ("assumed", "reserved")):
            self.end()

    def node_speaks(self, node: str) -> None:
        if self.held_until is not None and self.node == node:
            self.end()

    def expire(self, clock: float) -> bool:
        ran_out = self.how == "reserved" and self.until <= clock
        over = ran_out or (self.held_until is not None and self.held_until <= clock)
        self.expired += ran_out
        if over:
            self.end()
        return over
