# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether a container may start with its ids: the last look, before every start. It knows what this node knows, and asks nobody.

kubelet waits at most 30 s for the answer and tries a refused start again and again. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.checkpoint import Key
from gpushare_runtime.device_plugin.node import PLACE_ANEW, NodeState, Refused
from gpushare_runtime.device_plugin.pods import LocalPod
from gpushare_runtime.device_plugin.words import card_name
from gpushare_runtime.inventory import HEALTHY, Card
from gpushare_runtime.rules import selects

_TRIES_AGAIN: Final = "kubelet tries to start the container again and again"


def may_start(node: NodeState, resource: str, ids: Collection[str]) -> bool:
    """Whether these ids are as they were given, and held from now on. Refused if a container with them must not run now."""
    given = frozenset(ids)
    doubtful = node.holders.review()
    known = node.card_of(resource)
    if node.inventory and not given <= known.keys():
        raise Refused(f"{resource}: {len(given - known.keys())} of its ids are of no card in this node; {PLACE_ANEW}")
    cards = sorted({known[i] for i in given if i in known}, key=lambda c: c.index)
    for card in cards:
        if card.health != HEALTHY:
            raise Refused(f"{resource}: {card_name(card)} is not usable ({card.health}); {_TRIES_AGAIN}")
    owners = node.holders.with_ids(resource, given)
    recorded = [key for key in owners if not node.holders.ended(key[0])]
    _check_shape(node, resource, cards, recorded)
    if node.still_used(resource, given, recorded) and doubtful:
        node.settle()
        recorded = [key for key in recorded if key in node.holders.snapshot()]
    if used := node.still_used(resource, given, recorded):
        raise Refused(f"{resource}: {used}; {_TRIES_AGAIN}")
    if not recorded:
        # As it is now: what was settled meanwhile is nobody's any more, and may be somebody else's.
        _check_overlap(node, resource, given)
        if others := node.taken(resource, cards, {uid for uid, _, _ in owners}):
            raise Refused(f"{resource}: {others}; {PLACE_ANEW}")
        if not owners:
            node.holders.give(resource, given, None)
    for uid in {key[0] for key in recorded or owners}:
        node.holders.starts([key for key in recorded or owners if key[0] == uid])
    return bool(recorded)


def _held(node: NodeState, resource: str) -> Mapping[Key, frozenset[str]]:
    return {key: of for key, of in node.holders.snapshot().items() if key[2] == resource}


def _check_overlap(node: NodeState, resource: str, ids: frozenset[str]) -> None:
    """Ids that nobody has may be of a record that was lost; those that another container has are never this one's."""
    for (uid, container, _), of in _held(node, resource).items():
        if (shared := ids & of) and not _of_init(node, uid, resource, len(ids)):
            raise Refused(
                f"{resource}: {len(shared)} of its {len(ids)} ids ({min(shared)} …) are those of container {container} of "
                f"{node.pod_name(uid)} by kubelet's record; restart kubelet on this node if this stays, and {PLACE_ANEW}"
            )


def _of_init(node: NodeState, uid: str, resource: str, size: int) -> bool:
    """Whether they may be those of an ordinary init container of that pod: later ones have them after it, and podresources lacks it."""
    pod = node.pods.get(uid)
    if pod is None or pod.request is None:
        return False
    before = {c.name for c in pod.request.containers if not c.keeps}
    served = node.holders.served()
    asks = [ask for ask in pod.asks if ask.container in before and (ask.resource, ask.size) == (resource, size)]
    return any((uid, ask.container, resource) not in served for ask in asks)


def _check_shape(node: NodeState, resource: str, cards: Collection[Card], recorded: Collection[Key]) -> None:
    """Only now is it certain whose the ids are: in Allocate they may have been meant for a pod of the same size."""
    for uid, container, _ in recorded:
        pod = node.pods.get(uid)
        ask = next((a for a in pod.asks if (a.container, a.resource) == (container, resource)), None) if pod else None
        if pod is None or ask is None:
            continue
        if resource == protocol.RESOURCE_MEMORY and len(cards) != ask.spread:
            raise Refused(
                f"{resource}: container {container} of pod {pod} has units of {len(cards)} cards, "
                f"it needs {'one card' if ask.spread == 1 else f'{ask.spread} cards'}; {PLACE_ANEW}"
            )
        for card in cards:
            if why := _against(node, pod, card):
                raise Refused(f"{resource}: container {container} of pod {pod} has {card_name(card)}, {why}; {PLACE_ANEW}")


def _against(node: NodeState, pod: LocalPod, card: Card) -> str:
    """Why the pod's own rules, or those of a pod on the card, keep it off this card; "" if they do not."""
    if pod.request is None:
        return ""
    rules, cards = pod.request.rules, node.inventory.cards if node.inventory else ()
    # Where all are alike the node's label may be what the pod names, and the model tells no card from another.
    models = {other.model for other in cards}
    about = rules if len(models) > 1 else replace(rules, models=(), models_refused=())
    if about.about_cards and not about.accept(card.uuid, [card.model]):
        return "which its own annotations refuse"
    if pod.phase != "Pending":
        # Who was there first stays.
        return ""
    for (uid, _, _), held in node.holders.cards().items():
        other = node.pods.get(uid)
        if other is None or card.uuid not in held or uid == pod.uid or other.namespace != pod.namespace or other.request is None:
            continue
        if selects(rules.not_with, tuple(other.labels.items())):
            return f"beside pod {other}, with which it is not to be"
        if selects(other.request.rules.not_with, tuple(pod.labels.items())):
            return f"beside pod {other}, which is not to be with it"
    return ""
