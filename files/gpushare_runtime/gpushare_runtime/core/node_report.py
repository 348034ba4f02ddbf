# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The facts that only the node knows about its GPUs: the node annotation `gpushare/held`, written by the device plugin."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Final

from gpushare_runtime.core.bounds import MOST_HELD, ReportError, is_text, natural, quote, read_versioned, typed

VERSION: Final = 1
ORPHANED: Final = "orphaned"
"""Why of what processes use whose ids kubelet may give to others: it, or the API server, has no record of their pod."""
GONE: Final = "gone"
"""Why of what a pod has of a GPU that is not in its node any more, and of all else that the pod has."""
Share = tuple[int, bool]
"""(units, whether some of them as the whole GPU)."""
_NOTHING: Final[Share] = (0, False)


@dataclass(frozen=True)
class HeldEntry:
    """Units of one GPU that a pod has although the pods in the API do not show them.

    gpu: UUID. pod: namespace/name. why: ORPHANED (mostly the pod object is gone and its processes are not; of a pod that the API has,
    kubelet has lost its record), "unmanaged" (it has ids that no scheduler gave it) or GONE. units: 0 for the whole of
    a GPU that is gone, whose size the node does not know.
    """

    gpu: str
    uid: str
    pod: str
    units: int
    why: str
    whole: bool = False


@dataclass(frozen=True)
class Rejection:
    """An admission that the node rejected: the GPU is to take no pod of that size for a while. until: Unix time in seconds, by the
    node's clock, which need not be right."""

    uid: str
    gpu: str
    units: int
    until: float
    whole: bool = False


@dataclass(frozen=True)
class Held:
    """The annotation's content; empty on the normal path."""

    entries: tuple[HeldEntry, ...] = ()
    rejected: tuple[Rejection, ...] = ()

    @cached_property
    def by_uid(self) -> Mapping[str, Mapping[str, Share]]:
        """Pod UID → GPU UUID → what it has of it."""
        found: dict[str, dict[str, Share]] = {}
        for entry in self.entries:
            gpus = found.setdefault(entry.uid, {})
            units, whole = gpus.get(entry.gpu, _NOTHING)
            gpus[entry.gpu] = units + entry.units, whole or entry.whole
        return found

    def gone(self, uuids: Container[str]) -> dict[str, dict[str, HeldEntry]]:
        """Pod UID → UUID of each GPU of the pod that is not in the node any more, what it had of it.

        uuids: of the node's GPUs. Nothing of them is gone, whatever is said.
        """
        found: dict[str, dict[str, HeldEntry]] = {}
        for entry in self.entries:
            if entry.why == GONE and entry.gpu not in uuids:
                found.setdefault(entry.uid, {})[entry.gpu] = entry
        return found

    def to_json(self) -> str:
        """The annotation's value."""
        gpus: dict[str, list[dict[str, object]]] = {}
        for e in self.entries:
            whole = {"whole": True} if e.whole else {}
            gpus.setdefault(e.gpu, []).append({"pod": e.pod, "uid": e.uid, "units": e.units, "why": e.why, **whole})
        rejected = [
            {"uid": r.uid, "gpu": r.gpu, "units": r.units, "until": _written(r.until), **({"whole": True} if r.whole else {})}
            for r in self.rejected
        ]
        return json.dumps({"v": VERSION, "gpus": gpus, "rejected": rejected}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Held:
        """Parse the annotation; ReportError says what is wrong. Unknown fields are ignored."""
        data = read_versioned(text, VERSION)
        gpus, rejected = data.get("gpus") or {}, data.get("rejected") or []
        if not isinstance(gpus, dict) or not isinstance(rejected, list):
            raise ReportError("GPUs must be an object and rejected a list")
        by_gpu = {uuid: held if isinstance(held, list) else [held] for uuid, held in gpus.items()}
        if max(len(by_gpu), sum(map(len, by_gpu.values())), len(rejected)) > MOST_HELD:
            raise ReportError(f"more than {MOST_HELD} entries, or rejections: no node has so many")
        entries = []
        for uuid, held in by_gpu.items():
            if not is_text(uuid):
                raise ReportError(f"GPUs must be named by their UUIDs, found {quote(uuid)}")
            for place, entry in enumerate(held):
                where = f"gpus[{quote(uuid)}][{place}]"
                text_of = {key: typed(entry, key, str, where) for key in ("uid", "pod", "why")}
                entries.append(
                    HeldEntry(uuid, text_of["uid"], text_of["pod"], natural(entry, "units", where), text_of["why"], _is_whole(entry))
                )
        rejections = []
        for place, entry in enumerate(rejected):
            where = f"rejected[{place}]"
            uid, gpu, until = (typed(entry, key, str, where) for key in ("uid", "gpu", "until"))
            rejections.append(Rejection(uid, gpu, natural(entry, "units", where), _read_time(until, where), _is_whole(entry)))
        return cls(tuple(entries), tuple(rejections))


NOTHING_HELD: Final = Held()


def _is_whole(entry: dict[str, Any]) -> bool:
    return entry.get("whole") is True


def _read_time(text: str, where: str) -> float:
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
    except (OverflowError, ValueError):
        raise ReportError(f"{where}.until must be a time such as 2026-11-21T10:01:00Z, found {quote(text)}") from None


def _written(time: float) -> str:
    return datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
