# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keeps the ResourceSlices of this node equal to its GPUs. kubelet deletes them when it starts, or has had no driver for 30 s."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from typing import Any, Final, NoReturn

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.dra.slices import API, DRIVER, Closed, changes, in_use, slices
from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.reflector import Reflector

log = logging.getLogger(__name__)

PART: Final = "ResourceSlices"
"""Of the status."""
_SECONDS: Final = 10.0
# GPUs that come and go write each slice at most so often.
_PAUSE_SECONDS: Final = 0.5
_RECHECK_SECONDS: Final = 30.0


class SlicePublisher:
    """inventory: the GPUs as they are now, None before the first reading. seen: told of whatever may change what is due.

    closed: the GPUs that take no pods, as they are now, by UUIDs of those that have the taint in-use at the API server.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        inventory: Callable[[], Inventory | None],
        seen: Changes,
        status: Status,
        closed: Callable[[Set[str]], Closed] = lambda _: Closed(),
    ) -> None:
        self._client = client
        self._node = node
        self._inventory = inventory
        self._changes = seen
        self._status = status
        self._closed = closed
        self._found: dict[str, Mapping[str, Any]] | None = None
        self._node_uid = ""
        self._generation = 0

    def reflector(self) -> Reflector[dict[str, Any]]:
        """The watch of this node's slices; run it beside `run`."""
        return Reflector(
            self._client,
            path(API, "resourceslices"),
            on_replace=self._replace,
            on_event=self._event,
            field_selector=f"spec.nodeName={self._node},spec.driver={DRIVER}",
        )

    def _replace(self, found: list[dict[str, Any]]) -> None:
        self._found = {str(part["metadata"]["name"]): part for part in found}
        self._node_uid = ""
        self._changes.notify()

    def _event(self, kind: str, part: dict[str, Any]) -> None:
        found = self._found if self._found is not None else {}
        name = str(part["metadata"]["name"])
        if kind == "DELETED":
            found.pop(name, None)
            # Kubernetes deletes it with its node, which may be another one by now.
            self._node_uid = ""
        else:
            found[name] = part
        self._found = found
        self._changes.notify()

    async def run(self) -> NoReturn:
        """Never returns; cancel it. The slices stay: pods keep their claims, and kubelet deletes the slices of a driver that is gone."""
        backoff = Backoff()
        while True:
            count = self._changes.count
            try:
                await self._look()
                backoff.reset()
            except KubeError as error:
                wait = backoff.wait()
                self._status.degraded(PART, f"cannot be written, trying again in {wait:.1f} s: {error}")
                await asyncio.sleep(wait)
                continue
            await self._changes.after(count, _RECHECK_SECONDS)

    async def _look(self) -> None:
        """Write what differs. KubeError."""
        inventory, found = self._inventory(), self._found
        if inventory is None or found is None:
            return
        if not self._node_uid:
            node = await self._client.get(path("api/v1", "nodes", self._node), within=_SECONDS)
            self._node_uid = str((node.get("metadata") or {}).get("uid") or "")
        generations = [int(((part.get("spec") or {}).get("pool") or {}).get("generation") or 0) for part in found.values()]
        wanted = slices(self._node, self._node_uid, inventory, 0, self._closed(in_use(found.values())))
        if not changes(wanted, found.values()) and len(set(generations)) <= 1:
            self._status.ok(PART, f"{len(wanted)} with {len(inventory.gpus)} GPUs")
            return
        # All of a pool have the same generation: until the last is written, kube-scheduler takes the pool for incomplete and waits.
        self._generation = max([self._generation, *generations]) + 1
        for part in wanted:
            part["spec"]["pool"]["generation"] = self._generation
            await self._write(part, part["metadata"]["name"] in found)
        for name in set(found) - {part["metadata"]["name"] for part in wanted}:
            await self._delete(name)
        log.info(
            "ResourceSlices: %d with %d GPUs, generation %d",
            len(wanted),
            len(inventory.gpus),
            self._generation,
            extra=about(node=self._node),
        )
        await asyncio.sleep(_PAUSE_SECONDS)

    async def _write(self, part: dict[str, Any], known: bool) -> None:
        every = path(API, "resourceslices")
        try:
            if known:
                body = {"metadata": {"ownerReferences": part["metadata"]["ownerReferences"]}, "spec": part["spec"]}
                self._took(await self._client.patch(f"{every}/{part['metadata']['name']}", body, kind="merge", within=_SECONDS))
            else:
                self._took(await self._client.create(every, part, within=_SECONDS))
        except KubeError as error:
            # The watch is a moment behind.
            if error.status not in (404, 409):
                raise
            raise KubeError(error.status, error.reason, f"{error.message}: the slices have changed meanwhile") from None

    def _took(self, part: dict[str, Any]) -> None:
        if self._found is not None and "metadata" in part:
            self._found[str(part["metadata"]["name"])] = part

    async def _delete(self, name: str) -> None:
        try:
            await self._client.delete(path(API, "resourceslices", name), within=_SECONDS)
        except KubeError as error:
            if error.status != 404:
                raise
        if self._found is not None:
            self._found.pop(name, None)
