# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""An extender without HTTP and without an API server, and the longest rules and labels that a pod may have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gpushare_runtime.core.ledger_json import ledger_json
from gpushare_runtime.core.objects import PodReader, read_node
from gpushare_runtime.core.placement.explain import largest_of
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.daemon import exposition
from gpushare_runtime.extender import extender_v1, inspect_json
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.binding import BindError
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.diagnosis import advise
from gpushare_runtime.extender.extender_v1 import BindArguments
from gpushare_runtime.extender.metrics import families
from gpushare_runtime.extender.verbs import Verbs
from gpushare_runtime.kube.client import KubeError

MIB: Final = 1024 * 1024


class NoApi:
    """Takes every Binding, and knows no pod."""

    async def create(self, path: str, body: Mapping[str, Any], **params: object) -> dict[str, Any]:
        return {}

    async def get(self, path: str, **params: object) -> dict[str, Any]:
        raise KubeError(404, "NotFound", "not found")


class Extender:
    """All that is asked of it, with the size of each answer looked at. policy: for nodes and GPUs."""

    def __init__(self, policy: str = "binpack") -> None:
        self.now = 0.0
        self.cluster = ClusterCache(clock=lambda: self.now)
        self.reader = PodReader()
        placement = Placement(policy, scarcity=self.cluster.scarcity)
        self.service = Verbs(self.cluster.ledger, placement, clock=lambda: self.now)
        self.binder = Binder(NoApi(), self.cluster, placement)  # type: ignore[arg-type]

    def node(self, raw: dict[str, Any]) -> None:
        record = read_node(raw)
        self.cluster.node_event("MODIFIED", record)

    def pod(self, raw: dict[str, Any], kind: str = "ADDED") -> None:
        record = self.reader(raw)
        if record is not None:
            self.cluster.pod_event(kind, record)

    def filter(self, raw: dict[str, Any], names: list[str]) -> dict[str, Any]:
        args = extender_v1.read_arguments(orjson.dumps({"Pod": raw, "NodeNames": names}))
        answer = extender_v1.write_filtered(args, self.service.filter(args))
        assert len(answer) <= MIB
        found: dict[str, Any] = orjson.loads(answer)
        if found["Error"]:
            # It is on a node already, or about to be: no node is named at all.
            assert (found["NodeNames"], self.cluster.ledger.pod(raw["metadata"]["uid"]) is not None) == (None, True)
        else:
            assert set(found["NodeNames"]) | set(found["FailedNodes"]) == set(names)
        assert all(reason.isprintable() for reason in found["FailedNodes"].values())
        return found

    def prioritize(self, raw: dict[str, Any], names: list[str]) -> None:
        args = extender_v1.read_arguments(orjson.dumps({"Pod": raw, "NodeNames": names}))
        assert len(extender_v1.write_scores(self.service.prioritize(args))) <= MIB

    def bind(self, raw: dict[str, Any], node: str) -> str:
        metadata, words = raw["metadata"], ""
        try:
            asyncio.run(self.binder.bind(BindArguments(metadata["namespace"], metadata["name"], metadata["uid"], node)))
        except BindError as error:
            words = str(error)
        assert len(words) < 2000
        assert words.isprintable()
        return words

    def look(self) -> None:
        """Whatever people and Prometheus are shown."""
        ledger = self.cluster.ledger
        assert len("".join(exposition.render(families(self.cluster)))) <= MIB
        for shown in (
            ledger_json(ledger, pending=self.cluster.pending.values()),
            inspect_json.inspect(ledger),
            inspect_json.inspect(ledger, "odd"),
            inspect_json.inspect(ledger, "none"),
        ):
            assert len(orjson.dumps(shown)) <= MIB
        largest = largest_of(node.inventory for node in ledger.nodes.values() if node.inventory)
        for waiting in self.cluster.pending.values():
            assert len(str(advise(waiting, largest))) < 2000


def long_rules(number: int = 0) -> dict[str, str]:
    """As much as is read, and nothing that a GPU has but for one model."""
    models = [f"no such model {number} of {n:02d} in so very many words of its name" for n in range(63)]
    uuids = [f"GPU-8f6d4b2a-0c1e-4d3f-9a8b-{number:08d}{n:04d}" for n in range(64)]
    selector = [f"label-{n}=value-{n}" for n in range(63)]
    rules = {
        "models": [*models, "T4"],
        "models-refused": models,
        "gpus-refused": uuids,
        "same-gpu-as": [*selector, "label-63=value-63"],
        "not-with": [*selector, "nobody=has"],
    }
    return {f"gpushare.request/{name}": ",".join(entries) for name, entries in rules.items()}


def many_labels(count: int, number: int = 0) -> dict[str, str]:
    return {f"label-{n}": f"value-{n}" for n in range(count)} | {"job-name": str(number)}
