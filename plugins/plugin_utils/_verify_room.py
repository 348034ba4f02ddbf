# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a probe pod of one unit can be placed: what the pods leave free on each card of a node.

Private to this collection, used on the controller only. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.capacity import ANNOTATION, AnnotationError, published
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verify_containers import ALLOCATION, INDEX

HELD = "gpushare/held"


def free_units(node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> int | None:
    """Units that the node has free on usable cards; None if its cards are not known. pods: any, of which it takes its own."""
    annotations = node["metadata"]["annotations"]
    try:
        known = published(annotations[ANNOTATION]).cards
    except (KeyError, AnnotationError):
        return None
    cards = {card.index: card.units for card in known if card.usable}
    for pod in pods:
        if pod["node"] == node["metadata"]["name"]:
            for card, units in _held(pod).items():
                cards[card] = cards.get(card, 0) - units
    kept_back = _kept_back(annotations.get(HELD, "{}"))
    for one in known:
        cards[one.index] = cards.get(one.index, 0) - kept_back.get(one.uuid, 0)
    return sum(units for units in cards.values() if units > 0)


def _held(pod: Mapping[str, Any]) -> dict[int, int]:
    """Card index to units, by the pod's annotations."""
    total: dict[int, int] = {}
    try:
        for cards in json.loads(pod["annotations"].get(ALLOCATION, "{}")).values():
            for card, units in cards.items():
                total[int(card)] = total.get(int(card), 0) + int(units)
        if not total and int(pod["annotations"].get(INDEX, "-1")) >= 0:
            total[int(pod["annotations"][INDEX])] = sum(one["units"] for one in pod["containers"] if one["index"] >= 0)
    except (ValueError, TypeError, AttributeError):
        return {}
    return total


def _kept_back(text: str) -> dict[str, int]:
    """Card UUID to units that the device plugin keeps back for pods that are gone."""
    try:
        cards = json.loads(text).get("cards")
        return {str(card): sum(int(one["units"]) for one in entries) for card, entries in cards.items()}
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}
