# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether a container may start with its ids: the last look, before every start. It knows what this node knows, and asks nobody.

kubelet waits at most 30 s for the answer and tries a refused start again and again. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.checkpoint import Key
from gpushare_runtime.device_plugin.node import PLACE_ANEW, NodeState, Refused
from gpushare_runtime.device_plugin.shares import cards_of
from gpushare_runtime.device_plugin.words import card_name
from gpushare_runtime.inventory import HEALTHY

_TRIES_AGAIN: Final = "kubelet tries to start the container again and again"


def may_start(node: NodeState, resource: str, ids: Collection[str]) -> bool:
    """Whether these ids are as they were given. Refused if a container with them must not run now."""
    given = frozenset(ids)
    doubtful = node.holders.review()
    known = node.card_of(resource)
    if node.inventory and not given <= known.keys():
        raise Refused(f"{resource}: {len(given - known.keys())} of its ids are of no card in this node; {PLACE_ANEW}")
    for card in sorted({known[i] for i in given if i in known}, key=lambda c: c.index):
        if card.health != HEALTHY:
            raise Refused(f"{resource}: {card_name(card)} is not usable ({card.health}); {_TRIES_AGAIN}")
    held = {key: of for key, of in node.holders.snapshot().items() if key[2] == resource}
    recorded = [key for key, of in held.items() if of == given]
    _check_shape(node, resource, given, recorded)
    owners = {uid for uid, _, _ in recorded}
    if node.still_used(resource, given, owners) and doubtful:
        node.settle()
    if used := node.still_used(resource, given, owners):
        raise Refused(f"{resource}: {used}; {_TRIES_AGAIN}")
    if not recorded:
        _check_overlap(node, resource, given, held)
    return bool(recorded)


def _check_overlap(node: NodeState, resource: str, ids: frozenset[str], held: Mapping[Key, frozenset[str]]) -> None:
    """Ids that nobody has may be of a record that was lost; those that another container has are never this one's."""
    for (uid, container, _), of in held.items():
        if shared := ids & of:
            raise Refused(
                f"{resource}: {len(shared)} of its {len(ids)} ids ({min(shared)} …) are those of container {container} of "
                f"{node.pod_name(uid)} by kubelet's record; restart kubelet on this node if this stays, and {PLACE_ANEW}"
            )


def _check_shape(node: NodeState, resource: str, ids: Collection[str], recorded: Collection[Key]) -> None:
    """Only now is it certain whose the ids are: in Allocate they may have been meant for a pod of the same size."""
    cards = cards_of(resource, ids)
    for uid, container, _ in recorded:
        pod = node.pods.get(uid)
        ask = next((a for a in pod.asks if (a.container, a.resource) == (container, resource)), None) if pod else None
        if ask is not None and resource == protocol.RESOURCE_MEMORY and len(cards) != ask.spread:
            raise Refused(
                f"{resource}: container {container} of pod {pod} has units of {len(cards)} cards, "
                f"it needs {'one card' if ask.spread == 1 else f'{ask.spread} cards'}; {PLACE_ANEW}"
            )
