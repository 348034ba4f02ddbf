# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods that are on a node and do not run: kubelet's word for the state of the container that waits, and its reasons. Pure.

The words are those of Kubernetes 1.37: pkg/kubelet/images/types.go, pkg/kubelet/kuberuntime/kuberuntime_container.go,
pkg/kubelet/kubelet_pods.go, read on 2026-11-29.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import QUOTED, as_mapping, as_text

STARTING: Final = "ContainerCreating"
"""The state of a pod that kubelet is about to start. For how long is no fault by itself: an image may be large."""
CRASHES: Final = "CrashLoopBackOff"
HANGS_SECONDS: Final = 300.0
MOST_EVIDENCE: Final = 300
"""Characters of a message of others that is quoted as evidence."""
_STARTING: Final = ("ContainerCreating", "PodInitializing", "")
# kubelet changes between the two with each attempt.
_SAME: Final = {"ErrImagePull": "ImagePullBackOff"}
# kubelet doubles the wait with each crash, from 10 s, and begins again after 10 minutes without one.
_LONG_BACKOFF: Final = re.compile(r"back-off (?:[2-9]|\d{2,3})m")


@dataclass(frozen=True)
class Stall:
    """state: kubelet's word. container: the one that waits, "" if it is the whole pod. words: kubelet's, "" without; ended: how the
    container ended the last time. since: Unix time from which the pod is not ready, 0 if unknown."""

    state: str
    container: str = ""
    words: str = ""
    ended: str = ""
    since: float = 0.0

    def in_words(self) -> str:
        """The state, then what kubelet says of the container."""
        said = "; ".join(filter(None, (self.words, self.ended)))
        return f"{self.state}{f' of container {self.container}' if self.container else ''}{f': {said}' if said else ''}"

    def hangs(self, now: float) -> bool:
        """Whether it has been so for some minutes. STARTING says no more than that: it needs a Warning of kubelet besides."""
        if self.state == CRASHES and _LONG_BACKOFF.search(self.words):
            return True
        return bool(self.since) and now - self.since >= HANGS_SECONDS


def stall_in(raw: Mapping[str, Any], since: float) -> Stall | None:
    """None for a v1.Pod that is on no node, runs, ends or has ended. since: as in `Stall`."""
    metadata, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    if not spec.get("nodeName") or metadata.get("deletionTimestamp") or status.get("phase") in protocol.FINISHED_PHASES:
        return None
    starts = runs = any_status = False
    for container in _statuses(status):
        any_status = True
        state = as_mapping(container.get("state"))
        waiting = state.get("waiting")
        runs = runs or "running" in state
        if not isinstance(waiting, dict):
            continue
        word = as_text(str(waiting.get("reason") or ""), QUOTED)
        if word in _STARTING:
            starts = True
            continue
        words = as_text(str(waiting.get("message") or ""), MOST_EVIDENCE)
        name = as_text(str(container.get("name") or ""), QUOTED)
        return Stall(_SAME.get(word, word), name, words, _ended(container), since)
    # While an init container runs, the others have not been tried.
    if (starts and not runs) or (not any_status and status.get("phase") == "Pending"):
        return Stall(STARTING, since=since)
    return None


def not_ready_since(conditions: object) -> object:
    """The time, as the API server writes it, from which a pod is not ready: None for one that is, or of which that is not known."""
    found = conditions if isinstance(conditions, list) else []
    known = {str(condition.get("type")): condition for condition in found if isinstance(condition, dict)}
    for kind, value in (("Ready", "False"), ("PodScheduled", "True")):
        condition = known.get(kind, {})
        if condition.get("status") == value:
            return condition.get("lastTransitionTime")
        if kind == "Ready" and condition:
            return None
    return None


def _statuses(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        found = status.get(kind)
        for container in found if isinstance(found, list) else ():
            if isinstance(container, dict):
                yield container


def _ended(container: Mapping[str, Any]) -> str:
    ended = as_mapping(container.get("lastState")).get("terminated")
    if not isinstance(ended, dict):
        return ""
    why = as_text(str(ended.get("reason") or ""), QUOTED)
    return f"it ended with exit code {as_text(str(ended.get('exitCode')), 20)}{f' ({why})' if why else ''}"
