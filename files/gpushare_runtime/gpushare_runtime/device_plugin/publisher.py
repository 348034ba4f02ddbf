# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keep the node's annotation `gpushare/cards` equal to the cards: written when it differs, also when others changed it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, NoReturn

from gpushare_runtime import protocol
from gpushare_runtime.device_plugin.changes import Changes, any_after
from gpushare_runtime.device_plugin.node import NodeState
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.reflector import Backoff, Reflector

log = logging.getLogger(__name__)

# Against somebody who keeps writing something else: never more than one PATCH in this time.
_PAUSE_SECONDS: Final = 1.0


class CardsPublisher:
    """Writes nothing before the cards were read once: a node whose NVML does not answer keeps what it had."""

    def __init__(self, node: NodeState, client: KubeClient, name: str) -> None:
        self._node = node
        self._client = client
        self._name = name
        self._published: str | None = None
        self._changes = Changes()

    def reflector(self) -> Reflector[str]:
        """The watch of this node's own annotation; run it beside `run`."""
        return Reflector(
            self._client,
            path("api/v1", "nodes"),
            on_replace=lambda values: self._see(values[0] if values else None),
            on_event=lambda kind, value: self._see(None if kind == "DELETED" else value),
            field_selector=f"metadata.name={self._name}",
            transform=_annotation,
            metadata_only=True,
        )

    def _see(self, value: str | None) -> None:
        """value: "" for a node without the annotation, None for no node."""
        self._published = value
        self._changes.notify()

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        backoff = Backoff()
        while True:
            seen = (self._changes, self._changes.count), (self._node.inventory_changes, self._node.inventory_changes.count)
            wanted = self._node.inventory.to_json() if self._node.inventory else None
            if wanted is None or self._published is None or wanted == self._published:
                await any_after(*seen)
                continue
            try:
                body = {"metadata": {"annotations": {protocol.ANNOTATION_CARDS: wanted}}}
                await self._client.patch(path("api/v1", "nodes", self._name), body, kind="merge", within=10.0)
            except KubeError as error:
                wait = backoff.wait()
                log.warning("annotation %s of node %s cannot be written, trying again in %.1f s: %s", *self._what(), wait, error)
                await asyncio.sleep(wait)
                continue
            backoff.reset()
            log.info("annotation %s of node %s written: %s", *self._what(), wanted)
            self._published = wanted
            await asyncio.sleep(_PAUSE_SECONDS)

    def _what(self) -> tuple[str, str]:
        return protocol.ANNOTATION_CARDS, self._name


def _annotation(node: dict[str, Any]) -> str:
    annotations = (node.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(protocol.ANNOTATION_CARDS, ""))
