# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's two records of who has which ids, side by side: its checkpoint (by UID) and what it says itself (by name). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpushare_runtime.device_plugin.checkpoint import Entry
from gpushare_runtime.device_plugin.podresources import Said
from gpushare_runtime.device_plugin.pods import PodTable


@dataclass(frozen=True)
class Difference:
    """One container whose ids the checkpoint (recorded) and kubelet's own word (said) do not agree on. pod: namespace/name."""

    pod: str
    container: str
    resource: str
    recorded: frozenset[str]
    said: frozenset[str]

    def __str__(self) -> str:
        return (
            f"{self.resource} of container {self.container} of pod {self.pod}: the checkpoint has {_words(self.recorded - self.said)}, "
            f"kubelet says {_words(self.said - self.recorded)}, {len(self.recorded & self.said)} in both"
        )


def differences(entries: Iterable[Entry], said: Said, pods: PodTable) -> Iterator[Difference]:
    """Where both speak of the same container: what only one of them knows (init containers, pods that have ended) is no difference."""
    recorded: dict[tuple[str, str, str], list[frozenset[str]]] = {}
    nameless: set[tuple[str, str, frozenset[str]]] = set()
    for entry in entries:
        pod = pods.get(entry.pod)
        if pod is None:
            nameless.add((entry.container, entry.resource, entry.ids))
        elif not pod.finished:
            recorded.setdefault((str(pod), entry.container, entry.resource), []).append(entry.ids)
    for (name, container), resources in said.items():
        for resource, ids in resources.items():
            known = recorded.get((name, container, resource), [])
            # A pod that was made anew under its name has two entries for a moment.
            if ids and ids not in known and (container, resource, ids) not in nameless:
                yield Difference(name, container, resource, frozenset().union(*known), ids)
    for (name, container, resource), known in recorded.items():
        if (name, container) in said and not said[name, container].get(resource):
            yield Difference(name, container, resource, frozenset().union(*known), frozenset())


def entries_of(said: Said, pods: PodTable, before: Iterable[Entry]) -> tuple[Entry, ...]:
    """What kubelet says as the checkpoint would have it, as far as the pods are known; init containers' as they were `before`."""
    uids: dict[str, str] = {str(pod): pod.uid for pod in pods if not pod.finished}
    entries = {
        (uids[name], container, resource): Entry(uids[name], container, resource, ids)
        for (name, container), resources in said.items()
        for resource, ids in resources.items()
        if name in uids
    }
    listed = {(uids[name], container) for name, container in said if name in uids}
    names = {uid for uid, _ in listed}
    kept = [entry for entry in before if entry.pod in names and (entry.pod, entry.container) not in listed]
    return (*kept, *entries.values())


def _words(ids: frozenset[str]) -> str:
    return f"{len(ids)} of its own ({', '.join(sorted(ids)[:3])}{' …' if len(ids) > 3 else ''})" if ids else "none of its own"
