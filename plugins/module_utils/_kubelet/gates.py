# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kubelet's feature gates about devices: in which versions they exist, which ones a kubelet must be given, and how a flag writes them.

Pure. `kubernetes_ends.py` of preflight says what an upgrade no longer takes. Versions are those of kubernetes.io, "Feature Gates" and
"Feature Gates (removed)", and of the CHANGELOG of 1.38.0-beta.0 (kubernetes#141946), read on 2026-11-29.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from .._formats.failure import Failure

#: (major, minor) of a Kubernetes release.
Release = Tuple[int, int]
# More than any kubelet has: a longer list is not one.
MOST_GATES = 500
_SHOWN = 80
#: Those without which no pod gets a GPU.
WANTED = ("Accelerators", "DevicePlugins")


class GateError(Failure, ValueError):
    """A list of gates that cannot be read; says what was found."""


@dataclass(frozen=True)
class Gate:
    """A feature gate, in minor versions of Kubernetes 1. since, until: the first and the last release that knows it, None for no end.

    default_on: the first release in which it is on by default; locked: the first one in which it cannot be switched off.
    """

    name: str
    since: int
    default_on: Optional[int]
    locked: Optional[int]
    until: Optional[int]

    def is_known(self, release: Release) -> bool:
        return release[0] == 1 and self.since <= release[1] and (self.until is None or release[1] <= self.until)

    def is_locked(self, release: Release) -> bool:
        return self.locked is not None and release >= (1, self.locked)

    def default(self, release: Release) -> bool:
        """Its value in a release that knows it, where no setting names it."""
        return self.default_on is not None and release >= (1, self.default_on)


#: Gates about devices that a host's kubelet may have been given. In Kubernetes 1.11 Accelerators had no effect any more.
TABLE: Mapping[str, Gate] = {
    gate.name: gate
    for gate in (
        Gate("Accelerators", 6, None, None, 10),
        Gate("DevicePlugins", 8, 10, 26, 27),
        Gate("KubeletPodResources", 13, 15, 28, 29),
        Gate("TopologyManager", 16, 18, 27, 28),
        Gate("KubeletPodResourcesGetAllocatable", 21, 23, 28, 29),
        Gate("DynamicResourceAllocation", 26, 34, 35, 37),
        Gate("DevicePluginCDIDevices", 28, 29, 31, 33),
    )
}


def needed(release: Release, given: Mapping[str, bool], wanted: Sequence[str] = WANTED) -> List[str]:
    """The gates that this kubelet must be given as true. given: those that it is given now.

    A gate that is on by default is not written: a later release that no longer knows it would not start with it.
    """
    found = []
    for name in wanted:
        gate = TABLE[name]
        if gate.is_known(release) and not gate.is_locked(release) and not given.get(name, gate.default(release)):
            found.append(name)
    return found


def parsed(value: str) -> Dict[str, bool]:
    """The value of a --feature-gates: name=true pairs. GateError if it is none."""
    found: Dict[str, bool] = {}
    pairs = [pair.strip() for pair in value.split(",") if pair.strip()]
    for pair in pairs[: MOST_GATES + 1]:
        name, equals, word = (part.strip() for part in pair.partition("="))
        if not name.isalnum() or not equals or word.lower() not in ("true", "false", "1", "0", "t", "f"):
            raise GateError(f"--feature-gates has {pair[:_SHOWN]!r}; expected NAME=true or NAME=false")
        found[name] = word.lower() in ("true", "1", "t")
    if len(pairs) > MOST_GATES:
        raise GateError(f"--feature-gates has more than {MOST_GATES} pairs")
    return found


def merged(value: str, changes: Mapping[str, Optional[bool]]) -> str:
    """The value of a --feature-gates with these gates set, or taken out (None); others, and the order, stay. GateError as for `parsed`."""
    parsed(value)
    kept, done = [], set()
    for pair in (part.strip() for part in value.split(",") if part.strip()):
        name = pair.partition("=")[0].strip()
        if name not in changes:
            kept.append(pair)
        elif changes[name] is not None and name not in done:
            kept.append(_pair(name, bool(changes[name])))
        done.add(name)
    kept += [_pair(name, setting) for name, setting in changes.items() if setting is not None and name not in done]
    return ",".join(kept)


def from_words(words: Sequence[str]) -> Dict[str, bool]:
    """The gates of a command line. Each --feature-gates adds to the ones before it. GateError as for `parsed`."""
    found: Dict[str, bool] = {}
    for place, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key in ("--feature-gates", "-feature-gates"):
            found.update(parsed(value if equals else next(iter(words[place + 1 : place + 2]), "")))
    return found


def _pair(name: str, setting: bool) -> str:
    return f"{name}={'true' if setting else 'false'}"
