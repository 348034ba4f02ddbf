# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What only the node knows about its cards: the node annotation `gpushare/held`, written by the device plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Final

from gpushare_runtime.core.bounds import MOST_HELD, MOST_UNITS, is_text, quote

VERSION: Final = 1


class HeldError(ValueError):
    """A `gpushare/held` annotation that cannot be used; the message says what was found and expected."""


@dataclass(frozen=True)
class HeldEntry:
    """Units of one card that a pod holds although the pods in the API do not say so.

    card: UUID; pod: namespace/name; why: "orphaned" (the pod object is gone, its processes are not) or "unmanaged" (it has ids
    that no scheduler gave it).
    """

    card: str
    uid: str
    pod: str
    units: int
    why: str
    whole: bool = False


Share = tuple[int, bool]
"""(units, whether some of them as the whole card)."""
_NOTHING: Final[Share] = (0, False)


@dataclass(frozen=True)
class Refusal:
    """An admission that the node refused: the card is to take no pod of that size for a while. until: Unix time in seconds, by the
    node's clock, which need not be right."""

    uid: str
    card: str
    units: int
    until: float
    whole: bool = False


@dataclass(frozen=True)
class Held:
    """The annotation's content; empty on the normal path."""

    entries: tuple[HeldEntry, ...] = ()
    refused: tuple[Refusal, ...] = ()

    @cached_property
    def by_uid(self) -> Mapping[str, Mapping[str, Share]]:
        """Pod UID → card UUID → what it has of it."""
        found: dict[str, dict[str, Share]] = {}
        for entry in self.entries:
            cards = found.setdefault(entry.uid, {})
            units, whole = cards.get(entry.card, _NOTHING)
            cards[entry.card] = units + entry.units, whole or entry.whole
        return found

    def to_json(self) -> str:
        """The annotation's value."""
        cards: dict[str, list[dict[str, object]]] = {}
        for e in self.entries:
            whole = {"whole": True} if e.whole else {}
            cards.setdefault(e.card, []).append({"pod": e.pod, "uid": e.uid, "units": e.units, "why": e.why, **whole})
        refused = [
            {"uid": r.uid, "card": r.card, "units": r.units, "until": _written(r.until), **({"whole": True} if r.whole else {})}
            for r in self.refused
        ]
        return json.dumps({"v": VERSION, "cards": cards, "rejected": refused}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Held:
        """Parse the annotation; HeldError says what is wrong. Unknown fields are ignored."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HeldError(f"not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("v") != VERSION:
            found = data.get("v") if isinstance(data, dict) else type(data).__name__
            raise HeldError(
                f"version {quote(found)} is not known; this release reads version {VERSION}: install the same release everywhere"
            )
        cards, refused = data.get("cards") or {}, data.get("rejected") or []
        if not isinstance(cards, dict) or not isinstance(refused, list):
            raise HeldError("cards must be an object and rejected a list")
        by_card = {uuid: held if isinstance(held, list) else [held] for uuid, held in cards.items()}
        if max(len(by_card), sum(map(len, by_card.values())), len(refused)) > MOST_HELD:
            raise HeldError(f"more than {MOST_HELD} entries, or refusals: no node has so many")
        entries = []
        for uuid, held in by_card.items():
            if not is_text(uuid):
                raise HeldError(f"cards must be named by their UUIDs, found {quote(uuid)}")
            for place, entry in enumerate(held):
                where = f"cards[{quote(uuid)}][{place}]"
                text_of = {key: _typed(entry, key, str, where) for key in ("uid", "pod", "why")}
                entries.append(HeldEntry(uuid, text_of["uid"], text_of["pod"], _units(entry, where), text_of["why"], _whole(entry)))
        refusals = []
        for place, entry in enumerate(refused):
            where = f"rejected[{place}]"
            uid, card, until = (_typed(entry, key, str, where) for key in ("uid", "card", "until"))
            refusals.append(Refusal(uid, card, _units(entry, where), _read_time(until, where), _whole(entry)))
        return cls(tuple(entries), tuple(refusals))


NOTHING_HELD: Final = Held()


def _typed(entry: object, key: str, kind: type, where: str) -> Any:
    if not isinstance(entry, dict):
        raise HeldError(f"{where} must be an object, found {type(entry).__name__}")
    value = entry.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise HeldError(f"{where}.{key} must be {kind.__name__}, found {quote(value)}")
    if isinstance(value, str) and not is_text(value):
        raise HeldError(f"{where}.{key} must be a short text without control characters, found {quote(value)}")
    return value


def _units(entry: object, where: str) -> int:
    units: int = _typed(entry, "units", int, where)
    if not 0 <= units <= MOST_UNITS:
        raise HeldError(f"{where}.units must not be negative, nor more than {MOST_UNITS}, found {quote(units)}")
    return units


def _whole(entry: dict[str, Any]) -> bool:
    return entry.get("whole") is True


def _read_time(text: str, where: str) -> float:
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
    except (OverflowError, ValueError):
        raise HeldError(f"{where}.until must be a time such as 2026-11-21T10:01:00Z, found {quote(text)}") from None


def _written(time: float) -> str:
    return datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
