# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pods use more of a GPU than their units and for how long, and the requests for the eviction of such pods. Pure.

A node cannot be trusted with the right to evict pods: RBAC knows no nodes, and an Eviction does not carry its pod's node. So the device
plugin writes its requests into an annotation of its node, which a policy allows to no other account, and the extender evicts pods of that
node only. They are not on the pods: the owner of a pod could fill its annotations, so that no request has room.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare_runtime.core.bounds import MOST_EVICTIONS, ReportError, natural, quote, read_versioned, typed

VERSION: Final = 1
STARTS_NEVER: Final = "starts-never"
"""The reason of a request for a pod that can only start elsewhere; the other one is the use of memory."""
READINGS: Final = 2
"""So often in a row above its units, then a pod is reported."""
ENDS_BELOW: Final = 0.95
"""It ends below this part of the units."""
STATIC: Final = "it is a static pod, which kubelet would start again"
"""Why such a pod is not evicted."""
REQUEST_SECONDS: Final = 90.0
"""How long requests count, unless they are renewed: the device plugin that wrote them may be gone."""
# Two hosts' clocks differ by less.
CLOCKS_DIFFER: Final = 30.0
_LATEST: Final = 2**40

Key = tuple[str, str]
"""Pod UID, GPU UUID."""
_NUMBERS: Final = ("gpu", "used", "requested", "seconds")


@dataclass(frozen=True)
class Excess:
    """used, due: bytes at the last reading. since: of the clock, from when on every reading was above. readings: how many."""

    used: int
    due: int
    since: float
    readings: int = 1


class Overuse:
    """Follows the pods' use from reading to reading."""

    def __init__(self) -> None:
        self._found: Mapping[Key, Excess] = {}

    def observe(self, due: Mapping[Key, int], used: Mapping[Key, int], answered: Container[str], now: float) -> tuple[list[Key], list[Key]]:
        """Take a reading: who is to be reported from now on, and who no longer.

        due, used: bytes; answered: UUIDs of the GPUs that were read. An unknown GPU neither ends a report nor counts towards a time.
        """
        found: dict[Key, Excess] = {}
        for key, most in due.items():
            before = self._found.get(key)
            reported = before is not None and before.readings >= READINGS
            size = used.get(key, 0)
            if key[1] not in answered:
                if before is not None and reported:
                    found[key] = Excess(before.used, most, math.inf, before.readings)
            elif size > most or (reported and size > most * ENDS_BELOW):
                lasts = before is not None and before.since < math.inf
                since = math.inf if size <= most else before.since if before is not None and lasts else now
                found[key] = Excess(size, most, since, before.readings + 1 if before is not None else 1)
        began = [key for key, excess in found.items() if excess.readings == READINGS and key[1] in answered]
        ended = [key for key, excess in self._found.items() if excess.readings >= READINGS and key not in found]
        self._found = found
        return began, ended

    def reported(self) -> Mapping[Key, Excess]:
        """The pods that are reported now."""
        return {key: excess for key, excess in self._found.items() if excess.readings >= READINGS}

    def lasting(self, seconds: float, now: float) -> Mapping[Key, Excess]:
        """The pods above their units at every reading of the last so many seconds."""
        return {key: excess for key, excess in self.reported().items() if now - excess.since >= seconds}


@dataclass(frozen=True)
class EvictionRequest:
    """uid: the pod's. GPU: NVML's index. used, requested: MiB there. seconds: for how long.

    reason: "" for memory above its units, or STARTS_NEVER.
    """

    uid: str
    gpu: int
    used: int
    requested: int
    seconds: int
    reason: str = ""

    @property
    def cause(self) -> str:
        """The same words as long as the request is renewed."""
        if self.reason == STARTS_NEVER:
            return f"it can never start with what it has of GPU {self.gpu}"
        return f"it uses more than the {self.requested} MiB of GPU {self.gpu} that it requested"

    @property
    def advice(self) -> str:
        """The things that its owner can do."""
        return "its controller creates it again" if self.reason == STARTS_NEVER else "reduce its use, or request more"

    def __str__(self) -> str:
        if self.reason == STARTS_NEVER:
            return self.cause
        return f"{self.cause}, for {self.seconds} s; now {self.used} MiB"

    def fields(self) -> dict[str, object]:
        """Its entry in the annotation."""
        reason = {"reason": self.reason} if self.reason else {}
        return {"uid": self.uid, **{name: getattr(self, name) for name in _NUMBERS}, **reason}

    @classmethod
    def read(cls, entry: object, where: str) -> EvictionRequest:
        """From such an entry. ReportError."""
        uid: str = typed(entry, "uid", str, where)
        gpu, used, requested, seconds = (natural(entry, name, where) for name in _NUMBERS)
        reason = entry.get("reason", "") if isinstance(entry, dict) else ""
        if reason not in ("", STARTS_NEVER):
            raise ReportError(f"{where}.reason must be {STARTS_NEVER} or missing, found {quote(reason)}")
        return cls(uid, gpu, used, requested, seconds, reason)


@dataclass(frozen=True)
class Evictions:
    """The annotation's content. until: Unix time at which it ends unless it is renewed; error: why it cannot be used, "" if it can."""

    requests: tuple[EvictionRequest, ...] = ()
    until: int = 0
    error: str = ""

    def in_force(self, now: float) -> bool:
        """Whether it counts at this Unix time. A request that ends too late was written by a clock that cannot be trusted."""
        return now < self.until <= now + REQUEST_SECONDS + CLOCKS_DIFFER

    def to_json(self) -> str:
        """The annotation's value."""
        pods = [request.fields() for request in self.requests]
        return json.dumps({"v": VERSION, "until": self.until, "pods": pods}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Evictions:
        """Parse the annotation. ReportError. Unknown fields are ignored; of two requests for a pod the last one counts."""
        data = read_versioned(text, VERSION)
        pods: list[object] = typed(data, "pods", list)
        if len(pods) > MOST_EVICTIONS:
            raise ReportError(f"it lists {len(pods)} pods; expected at most {MOST_EVICTIONS}")
        requests = [EvictionRequest.read(entry, f"pods[{place}]") for place, entry in enumerate(pods)]
        return cls(tuple({request.uid: request for request in requests}.values()), natural(data, "until", most=_LATEST))


NO_EVICTIONS: Final = Evictions()
