# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare cordon`, `uncordon` and `drain`: single GPUs, by the node annotation gpushare/cordon, which the device plugin follows,
and by evictions."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import ReportError, quote
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.overuse import STATIC
from gpushare_runtime.dra.slices import read_inventory
from gpushare_runtime.kube.client import METADATA_LIST, KubeClient, KubeError, path
from gpushare_runtime.kubectl_gpushare.api import FORBIDDEN, NOT_FOUND, slices_of
from gpushare_runtime.kubectl_gpushare.cluster import UNKNOWN_POD, Cluster
from gpushare_runtime.kubectl_gpushare.errors import InputError
from gpushare_runtime.kubectl_gpushare.views import Share, shares

ALL: Final = "all"
WAIT_SECONDS: Final = 15.0
"""The device plugin follows within a second or two."""
_POLL_SECONDS: Final = 0.5
_ATTEMPTS: Final = 5
_MOST_NODES: Final = 5000
_CONFLICT: Final = 409
_TOO_MANY: Final = 429
_RETRY_SECONDS: Final = 5.0


def chosen_gpus(inventory: Inventory, node: str, names: Sequence[str]) -> list[Gpu]:
    """The GPUs with these NVML indexes or UUIDs, "all" for every one. InputError lists those that there are."""
    if ALL in names:
        return list(inventory.gpus)
    by_name = {**{str(gpu.index): gpu for gpu in inventory.gpus}, **inventory.by_uuid}
    for name in names:
        if name not in by_name:
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in inventory.gpus)
            raise InputError(f"found no GPU {quote(name)} on node {quote(node)}; expected an index or UUID of {there[:2000]}, or all")
    return list({by_name[name].index: by_name[name] for name in names}.values())


def annotation(current: str, inventory: Inventory, gpus: Collection[Gpu], cordon: bool) -> str:
    """The new value of gpushare/cordon, "" for none. Its entries for GPUs that the node does not know now stay."""
    entries = [entry.strip() for entry in current.split(",") if entry.strip()]
    if ALL in entries:
        # "all" also stands for GPUs to come; one that is taken out leaves the others by name.
        if cordon:
            return current
        entries = [gpu.uuid for gpu in inventory.gpus] + [entry for entry in entries if entry != ALL]
    names = {name for gpu in gpus for name in (gpu.uuid, str(gpu.index))}
    known = {name for gpu in gpus for name in (gpu.uuid, str(gpu.index)) if name in entries}
    if cordon:
        return ",".join([*entries, *(gpu.uuid for gpu in gpus if not {gpu.uuid, str(gpu.index)} & known)])
    return ",".join(entry for entry in dict.fromkeys(entries) if entry not in names)


async def set_cordon(client: KubeClient, node: str, names: Sequence[str], cordon: bool, wait: float = WAIT_SECONDS) -> tuple[bool, bool]:
    """(whether the annotation has changed; whether the device plugin has followed within `wait` seconds). KubeError, InputError."""
    where = path("api/v1", "nodes", node)
    for attempt in range(_ATTEMPTS):
        raw = await _get(client, where, node)
        inventory = await _inventory(client, raw, node)
        gpus = chosen_gpus(inventory, node, names)
        before = str((raw["metadata"].get("annotations") or {}).get(protocol.ASK_CORDON) or "")
        after = annotation(before, inventory, gpus, cordon)
        if after == before:
            break
        # With the version that was read: another administrator's cordon is not undone.
        metadata = {"resourceVersion": raw["metadata"].get("resourceVersion"), "annotations": {protocol.ASK_CORDON: after or None}}
        try:
            await client.patch(where, {"metadata": metadata}, kind="merge")
            break
        except KubeError as error:
            if error.status != _CONFLICT or attempt == _ATTEMPTS - 1:
                raise
    deadline = time.monotonic() + wait
    uuids = {gpu.uuid for gpu in gpus}
    while True:
        states = {gpu.uuid: gpu.cordoned for gpu in (await _inventory(client, await client.get(where), node)).gpus}
        if all(states.get(uuid, cordon) is cordon for uuid in uuids):
            return after != before, True
        if time.monotonic() >= deadline:
            return after != before, False
        await asyncio.sleep(_POLL_SECONDS)


async def _get(client: KubeClient, where: str, node: str) -> Any:
    """The node. InputError lists those that there are if there is no such one."""
    try:
        return await client.get(where)
    except KubeError as error:
        if error.status != NOT_FOUND:
            raise
    there = await _nodes(client)
    raise InputError(f"found no node {quote(node)}{there and f'; there are: {there}'}")


async def _nodes(client: KubeClient) -> str:
    """The names of those with GPUs, the first of many; "" where they may not be listed."""
    try:
        found = (await client.get(path("api/v1", "nodes"), accept=METADATA_LIST, limit=_MOST_NODES)).get("items") or ()
    except KubeError as error:
        if error.status != FORBIDDEN:
            raise
        return ""
    names = sorted(
        str(item["metadata"]["name"]) for item in found if protocol.ANNOTATION_GPUS in (item["metadata"].get("annotations") or {})
    )
    names = names or sorted({str(item["spec"].get("nodeName")) for item in await slices_of(client)})
    return ", ".join(names)[:400] or "none with shared GPUs"


async def _inventory(client: KubeClient, raw: dict[str, Any], node: str) -> Inventory:
    """As the device plugin publishes it: in ResourceSlices, or in an annotation."""
    try:
        if slices := await slices_of(client, node):
            return read_inventory(slices)
    except ReportError as error:
        raise InputError(f"node {quote(node)}: its ResourceSlices cannot be used: {error}") from None
    text = (raw["metadata"].get("annotations") or {}).get(protocol.ANNOTATION_GPUS)
    if text is None:
        raise InputError(f"node {quote(node)} has no annotation {protocol.ANNOTATION_GPUS}; gpushare-device-plugin has not run there")
    try:
        return Inventory.from_json(text)
    except ReportError as error:
        raise InputError(f"node {quote(node)}: annotation {protocol.ANNOTATION_GPUS} cannot be used: {error}") from None


async def drain(client: KubeClient, cluster: Cluster, arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Cordon GPUs of a node and evict what has something of them. 1 if a pod stays; a dry run only reports: 0.

    arguments: node, gpus, dry_run, force, timeout.
    """
    node = next((node for node in cluster.nodes if node.name == arguments.node), None)
    if node is None or node.inventory is None:
        there = ", ".join(node.name for node in cluster.nodes if node.inventory)[:400] or "none"
        raise InputError(f"found no node {quote(arguments.node)} with shared GPUs; there are: {there}")
    indexes = {gpu.index for gpu in chosen_gpus(node.inventory, node.name, arguments.gpus)}
    names, dry = f"node/{node.name} GPU {','.join(map(str, sorted(indexes)))}", " (dry run)" if arguments.dry_run else ""
    if not arguments.dry_run:
        done = await set_cordon(client, node.name, arguments.gpus, True)
        if not done[1]:
            say(f"{names}: they do not show the cordon yet; is gpushare-device-plugin running on that node?")
    say(f"{names} cordoned{dry}")
    left, deadline = 0, time.monotonic() + arguments.timeout
    for share in sorted(shares(node), key=lambda share: (share.namespace, share.name)):
        if not indexes & set(share.by_gpu or ()) or share.pod is None or share.pod.terminating:
            continue
        why = _stays(share, cluster, arguments.force) or await _evict(client, share, arguments.dry_run, deadline)
        left += bool(why)
        say(f"pod/{share.name} in {share.namespace} {f'stays: {why}' if why else 'evicted'}{dry}")
    return 1 if left and not arguments.dry_run else 0


def _stays(share: Share, cluster: Cluster, force: bool) -> str:
    """Why a pod is not evicted; "" if it may be."""
    if share.pod is not None and share.pod.mirror:
        return STATIC
    owner = cluster.pods.get(share.uid, UNKNOWN_POD).owner
    if owner.startswith("DaemonSet/"):
        return "it is of a DaemonSet, which would start it again on this node"
    return "" if owner or force else "it has no owner that would start it again; --force evicts it all the same"


async def _evict(client: KubeClient, share: Share, dry: bool, deadline: float) -> str:
    """Why it was not evicted; "" if it was, or is gone. A disruption budget may allow it later. Other reasons are of this pod alone."""
    while True:
        try:
            await client.evict(share.namespace, share.name, share.uid, dry_run=dry)
            return ""
        except KubeError as error:
            if error.status in (404, 409):
                return ""
            # Of the user, or of no API server at all: the others fail likewise.
            if error.status in (0, 401):
                raise
            if error.status != _TOO_MANY or dry or time.monotonic() + _RETRY_SECONDS > deadline:
                return error.message
        await asyncio.sleep(_RETRY_SECONDS)
