# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Faults to switch on one at a time: of the original (by what it does, in our code's place for it), and safeguards taken away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.pods import AllocatedPod, FinishedPod, PodRecord
from gpushare_runtime.device_plugin.node.id_usage import Usage
from gpushare_runtime.device_plugin.node.ids import DeviceKey
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.binding import Bindings
from gpushare_runtime.extender.extender_v1 import BindArguments
from gpushare_runtime.extender.leadership import Leadership, Lease
from gpushare_runtime.kube.client import path

_read, _create, _apply, _observe = PodReader.__call__, Bindings._create, Ledger.apply, Leadership.observe


def _freed_when_marked(self: PodReader, pod: Mapping[str, Any]) -> PodRecord | None:
    record = _read(self, pod)
    return FinishedPod(record.uid) if isinstance(record, AllocatedPod) and record.terminating else record


async def _patch_then_bind(self: Bindings, args: BindArguments, annotations: Mapping[str, str]) -> None:
    where = path("api/v1", "namespaces", args.namespace, "pods", args.name)
    await self._client.patch(where, {"metadata": {"annotations": dict(annotations)}}, kind="merge")
    await _create(self, args, {})


def _skipped_without_gpus(self: Ledger, pod: AllocatedPod) -> None:
    node = self.node(pod.node)
    if node is not None and node.inventory is not None:
        _apply(self, pod)


async def _forget(self: Binder, args: BindArguments) -> None:
    self._ledger.forget(args.uid)
    del self._outcome_unknown[args.uid]


def _alone(self: Leadership, lease: Lease | None, began: float) -> None:
    if lease is None:
        self._seen, self._observed_at, self._failure = None, began, ""
    else:
        _observe(self, lease, began)


def _remembers_nothing(self: Usage, resource: str) -> dict[DeviceKey, frozenset[str]]:
    return {}


_PATCHES: Final[Mapping[str, list[Callable[[], Any]]]] = {
    # The original's.
    "hole-8": [lambda: patch.object(PodReader, "__call__", _freed_when_marked)],
    "hole-13": [
        lambda: patch.object(Leadership, "problem", lambda self: ""),
        lambda: patch.object(Leadership, "send_window", lambda self: math.inf),
    ],
    "hole-14": [lambda: patch.object(Bindings, "_create", _patch_then_bind)],
    "hole-19": [lambda: patch.object(Ledger, "apply", _skipped_without_gpus)],
    # Ours.
    "assume": [
        lambda: patch.object(Ledger, "reserve", lambda self, pod, until: None),
        lambda: patch.object(Ledger, "assume", lambda self, pod: None),
    ],
    "lease": [lambda: patch.object(Leadership, "observe", _alone)],
    "settle": [lambda: patch.object(Binder, "_settle", _forget)],
    "younger": [lambda: patch.object(Ledger, "in_flight", frozenset())],
    "leaving": [lambda: patch.object(Usage, "still_in_use", _remembers_nothing)],
}

FLAWS: Final = tuple(_PATCHES)

WORDS: Final[Mapping[str, str]] = {
    "hole-8": "a pod is free of its GPU when it is marked for deletion, though it runs on",
    "hole-13": "nothing between two extenders: each binds from its own cache as soon as it is asked",
    "hole-14": "annotations by PATCH, then a Binding",
    "hole-19": "pods on a node whose GPUs are not known yet are left out",
    "assume": "nothing is held between the choice of a GPU and the watch",
    "lease": "an extender whose Lease is gone takes itself for alone",
    "settle": "a Binding without an answer counts as failed at once",
    "younger": "a list takes what was bound after it",
    "leaving": "the node forgets with kubelet what processes still hold",
}


@contextmanager
def switched_on(flaw: str) -> Iterator[None]:
    """With this fault; "" for none."""
    patches = [make() for make in _PATCHES.get(flaw, [])]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()
