# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The facts that the plugin's next process needs to know: the usage, its unit and strategy, the GPUs, what Events have told of them, and
who has limits or started before.

kubelet may forget a pod with live processes while no plugin runs. The usage is valid for one boot only, because no process survives
a reboot. The GPUs stay valid: one may not answer just after a boot. So do the limits: an older kubelet starts a pod's containers
after a boot without asking the plugin, in a control group that has no limit yet. No pod has started before such a boot.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.inventory import HEALTHY, Inventory
from gpushare_runtime.daemon.files import age_of, replace_file
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.node.ids import DeviceKey
from gpushare_runtime.device_plugin.node.state import NodeState, Told

log = logging.getLogger(__name__)

VERSION: Final = 1
NAME: Final = "held.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PAUSE_SECONDS: Final = 0.1
_CURE: Final = "give the unit a StateDirectory= or another --state-dir"
_CURES: Final = {
    errno.ENOSPC: "free space or inodes on its file system",
    errno.EDQUOT: "free space of its quota",
    errno.EIO: "its disk does not answer; see dmesg",
    errno.EROFS: "its file system is read-only: see dmesg for why, and mount it read-write",
}


class StateFile:
    """The file of one plugin. boot: returns the ID of this boot."""

    def __init__(self, path: Path, node: NodeState, boot: Callable[[], str] = lambda: _BOOT_ID.read_text().strip()) -> None:
        self.path = path
        self.unit = ""  # name of the unit that `load` found; "" if unknown
        self.gpus: Inventory | None = None  # the GPUs that `load` found
        self.strategy = ""  # the device strategy that `load` found; "" if unknown
        self.isolation = ""  # the isolation that `load` found; "" if unknown
        self._node = node
        self._boot = boot()
        self._written: bytes | None = None
        self._rendered: tuple[object, bytes] = None, b""
        self._texts: dict[DeviceKey, tuple[frozenset[str], orjson.Fragment]] = {}
        self._problem = ""

    def load(self) -> None:
        """Restore the node's usage. A file that is missing, unreadable or of another boot has none."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s cannot be read (%s): units of pods that kubelet has forgotten may be allocated twice", self.path, error)
            return
        try:
            data = orjson.loads(text)
            if data["v"] != VERSION:
                return
            # Parse all of it before any part is used.
            unit, gpus = str(data.get("unit", "")), _gpus(data.get("gpus"))
            same = data["boot"] == self._boot
            snapshot, names = _usage(data["pods"]) if same else ({}, {})
            kept = _kept(data.get("kept", [])) if same else {}
            # A release without these fields did not know.
            limited, limited_gpus = _pairs(data.get("limited", {})), {str(gpu) for gpu in data.get("limited_gpus", [])}
            exempt = _pairs(data.get("exempt", {})) if same else set()
            told = Told({str(gpu): str(why) for gpu, why in data.get("bad", {}).items()}, frozenset(_pairs(data.get("gone", {}))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is not a file of this plugin (%r): the plugin replaces it", self.path, error)
            return
        self._written = text
        self.unit, self.gpus = unit, gpus
        # A release without strategies used the original's.
        self.strategy = (gpus.strategy or protocol.STRATEGY_ENVIRONMENT) if gpus else ""
        # A release without this field had no MPS.
        self.isolation = (gpus.isolation or protocol.ISOLATION_WATCH) if gpus else ""
        self._node.told = told
        self._node.limits.restore(limited, limited_gpus, exempt)
        self._node.recorder.restore(snapshot, names, kept, age_of(self.path))

    async def run(self) -> NoReturn:
        """Keep the file up to date. Never returns; cancel it."""
        changes = self._node.changes
        while True:
            seen = changes.count
            # Without GPUs the unit is unknown: until then the file keeps the usage in the former unit.
            inventory = self._node.devices.inventory
            if inventory is not None and (text := self._render(inventory)) != self._written:
                # A rename may take long, and kubelet must not wait for it.
                await in_thread(partial(self._write, text))
                await asyncio.sleep(_PAUSE_SECONDS)
            await changes.after(seen)

    def _render(self, inventory: Inventory) -> bytes:
        pods: dict[str, Any] = {}
        names, used, limits = self._node.usage.names(), self._node.usage.snapshot(), self._node.limits
        # Most changes of the node's state do not concern the file.
        kept, told = dict(self._node.usage.kept), self._node.told
        if (state := (names, used, inventory, (limits.pods, limits.gpus, limits.exempt), kept, told)) == self._rendered[0]:
            return self._rendered[1]
        # Each change affects few of thousands of ids.
        self._texts = {key: self._text(key, ids) for key, ids in used.items()}
        for key in sorted(used):
            containers = pods.setdefault(key.pod, {"name": names.get(key.pod, ""), "containers": {}})["containers"]
            containers.setdefault(key.container, {})[key.resource] = self._texts[key][1]
        # The next process reads health itself; with health in it, the file would change more often.
        gpus = replace(inventory, gpus=tuple(replace(gpu, health=HEALTHY, cordoned=False) for gpu in inventory.gpus))
        written = orjson.Fragment(gpus.to_json())
        text = orjson.dumps(
            {
                "v": VERSION,
                "boot": self._boot,
                "unit": inventory.unit.name,
                "gpus": written,
                "pods": pods,
                "limited": _by_pod(limits.pods),
                "limited_gpus": sorted(limits.gpus),
                "exempt": _by_pod(limits.exempt),
                "bad": told.bad,
                "gone": _by_pod(told.gone),
                # The ids that running containers have although kubelet's record has other ids for them.
                **({"kept": [[*key, sorted(usage.ids), container] for key, (usage, container) in sorted(kept.items())]} if kept else {}),
            }
        )
        self._rendered = state, text
        return text

    def _text(self, key: DeviceKey, ids: frozenset[str]) -> tuple[frozenset[str], orjson.Fragment]:
        known = self._texts.get(key)
        return known if known is not None and known[0] is ids else (ids, orjson.Fragment(orjson.dumps(sorted(ids))))

    def _write(self, text: bytes) -> None:
        if text == self._written:
            return
        try:
            replace_file(self.path, text, 0o700)
        except OSError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("%s cannot be written (%s): %s", self.path, error, _CURES.get(error.errno or 0, _CURE))
            return
        self._written, self._problem = text, ""


def _gpus(value: object) -> Inventory | None:
    try:
        return Inventory.from_json(orjson.dumps(value).decode()) if value is not None else None
    except ReportError as error:
        log.warning("%s: the plugin ignores its GPUs: %s", NAME, error)
        return None


def _pairs(by_pod: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(str(uid), str(gpu)) for uid, gpus in by_pod.items() for gpu in gpus}


def _by_pod(pairs: Set[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for uid, gpu in sorted(pairs):
        found.setdefault(uid, []).append(gpu)
    return found


def _kept(entries: Sequence[Any]) -> dict[DeviceKey, tuple[frozenset[str], str | None]]:
    return {
        DeviceKey(str(uid), str(container), str(resource)): (frozenset(map(str, ids)), None if container_id is None else str(container_id))
        for uid, container, resource, ids, container_id in entries
    }


def _usage(pods: Mapping[str, Any]) -> tuple[dict[DeviceKey, frozenset[str]], dict[str, str]]:
    snapshot = {
        DeviceKey(uid, container, resource): frozenset(map(str, ids))
        for uid, pod in pods.items()
        for container, resources in pod["containers"].items()
        for resource, ids in resources.items()
    }
    return snapshot, {uid: str(pod["name"]) for uid, pod in pods.items()}
