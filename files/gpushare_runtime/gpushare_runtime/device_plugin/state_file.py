# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who held what, for the plugin's next start: kubelet may forget a pod whose processes still run while no plugin looks.

Of this boot only: no process outlives a reboot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from gpushare_runtime.device_plugin.follow_cards import in_thread
from gpushare_runtime.device_plugin.holders import Holders
from gpushare_runtime.device_plugin.turns import Key

log = logging.getLogger(__name__)

VERSION: Final = 1
NAME: Final = "held.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PAUSE_SECONDS: Final = 0.1


def directory() -> Path:
    """systemd's StateDirectory= where the unit has one, else one that a reboot empties."""
    return Path(os.environ.get("STATE_DIRECTORY", "/run/gpushare-device-plugin").split(":")[0])


class StateFile:
    """The file of one plugin. boot: which boot this is."""

    def __init__(self, path: Path, holders: Holders, boot: Callable[[], str] = lambda: _BOOT_ID.read_text().strip()) -> None:
        self.path = path
        self._holders = holders
        self._boot = boot()
        self._written: bytes | None = None
        self._problem = ""

    def load(self) -> None:
        """Tell the holders. A file that is missing, of another boot or unreadable says nothing."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s cannot be read (%s): processes of pods that kubelet has forgotten may not be noticed", self.path, error)
            return
        try:
            snapshot, names = _parse(text, self._boot)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is not what this plugin writes (%r): it is written anew", self.path, error)
            return
        self._written = text
        self._holders.restore(snapshot, names)

    async def run(self) -> NoReturn:
        """Keep the file true. Never returns; cancel it."""
        changes = self._holders.changes
        while True:
            seen = changes.count
            text = _render(self._holders, self._boot)
            # A disk may take long over a rename, and kubelet waits for nobody.
            await in_thread(lambda text=text: self._write(text))  # type: ignore[misc]
            await asyncio.sleep(_PAUSE_SECONDS)
            await changes.after(seen)

    def _write(self, text: bytes) -> None:
        if text == self._written:
            return
        temporary = self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(text)
            os.replace(temporary, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("%s cannot be written (%s): give the unit a StateDirectory= or another --state-dir", self.path, error)
            return
        self._written, self._problem = text, ""


def _render(holders: Holders, boot: str) -> bytes:
    pods: dict[str, Any] = {}
    names = holders.names()
    for (uid, container, resource), ids in sorted(holders.snapshot().items()):
        of = pods.setdefault(uid, {"name": names.get(uid, ""), "containers": {}})["containers"]
        of.setdefault(container, {})[resource] = sorted(ids)
    return orjson.dumps({"v": VERSION, "boot": boot, "pods": pods})


def _parse(text: bytes, boot: str) -> tuple[dict[Key, frozenset[str]], dict[str, str]]:
    data = orjson.loads(text)
    if data["v"] != VERSION or data["boot"] != boot:
        return {}, {}
    snapshot = {
        (uid, container, resource): frozenset(map(str, ids))
        for uid, pod in data["pods"].items()
        for container, resources in pod["containers"].items()
        for resource, ids in resources.items()
    }
    return snapshot, {uid: str(pod["name"]) for uid, pod in data["pods"].items()}
