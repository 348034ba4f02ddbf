# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A `Cluster` kept current by watches of nodes and unfinished pods; with the back end DRA of ResourceSlices and ResourceClaims, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gpushare_runtime.core import protocol
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kube.reflector import Reflector
from gpushare_runtime.kubectl_gpushare.api import NODES, OF_OURS, SLICES, claims_path, pods_path
from gpushare_runtime.kubectl_gpushare.cluster import Cluster

K = TypeVar("K")


class Watcher:
    """Keeps a cluster equal to what the API server has. namespace: whose pods, "" for all.

    by_claims: whether slices and claims may come later, and may be read; else they are followed where the cluster has some already.
    """

    def __init__(self, client: KubeClient, cluster: Cluster, namespace: str, *, by_claims: bool = False) -> None:
        self.changed = asyncio.Event()
        self._cluster = cluster
        self._pods: set[str] = set()
        self._nodes: set[str] = set()
        pods: Reflector[str] = Reflector(
            client,
            pods_path(namespace),
            field_selector=protocol.UNFINISHED,
            transform=cluster.set_pod,
            on_replace=self._replace_pods,
            on_event=self._pod_event,
        )
        nodes: Reflector[str] = Reflector(
            client, NODES, transform=cluster.set_node, on_replace=self._replace_nodes, on_event=self._node_event
        )
        slices: Reflector[str] = Reflector(
            client,
            SLICES,
            field_selector=OF_OURS,
            transform=cluster.set_slice,
            on_replace=lambda names: self._replace(set(cluster.claims.slices) - set(names), cluster.remove_slice),
            on_event=lambda kind, name: self._replace({name} if kind == "DELETED" else (), cluster.remove_slice),
        )
        claims: Reflector[tuple[str, str]] = Reflector(
            client,
            claims_path(namespace),
            transform=cluster.set_claim,
            on_replace=lambda keys: self._replace(set(cluster.claims.claims) - set(keys), cluster.remove_claim),
            on_event=lambda kind, key: self._replace({key} if kind == "DELETED" else (), cluster.remove_claim),
        )
        self._reflectors: list[Reflector[Any]] = [
            pods,
            *([nodes] if cluster.knows_nodes else []),
            *([slices] if by_claims or cluster.claims.slices else []),
            *([claims] if by_claims or cluster.claims.in_use else []),
        ]

    @property
    def synced(self) -> bool:
        """Whether every list was read once: before that it is unknown what is free."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    @property
    def age(self) -> float:
        """Seconds since the cluster was known to be what the API server has; idle watches get a bookmark about every minute."""
        return max(reflector.age for reflector in self._reflectors)

    async def run(self) -> None:
        """Until it is cancelled."""
        await asyncio.gather(*(reflector.run() for reflector in self._reflectors))

    def _replace(self, gone: Iterable[K], remove: Callable[[K], None]) -> None:
        for key in gone:
            remove(key)
        self.changed.set()

    def _replace_pods(self, uids: list[str]) -> None:
        present = set(uids)
        known = {*self._cluster.waiting, *(pod.uid for node in self._cluster.nodes for pod in node.pods)}
        for uid in known - present:
            self._cluster.remove_pod(uid)
        self.changed.set()

    def _pod_event(self, kind: str, uid: str) -> None:
        if kind == "DELETED":
            self._cluster.remove_pod(uid)
        self.changed.set()

    def _replace_nodes(self, names: list[str]) -> None:
        for name in set(self._cluster.infos) - set(names):
            self._cluster.remove_node(name)
        self.changed.set()

    def _node_event(self, kind: str, name: str) -> None:
        if kind == "DELETED":
            self._cluster.remove_node(name)
        self.changed.set()
