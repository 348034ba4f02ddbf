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

from gpushare_runtime.device_plugin.checkpoint import Key
from gpushare_runtime.device_plugin.holders import Holders
from gpushare_runtime.device_plugin.threads import in_thread

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
        self._texts: dict[Key, tuple[frozenset[str], orjson.Fragment]] = {}
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
            text = self._render()
            # A disk may take long over a rename, and kubelet waits for nobody.
            await in_thread(lambda text=text: self._write(text))  # type: ignore[misc]
            await asyncio.sleep(_PAUSE_SECONDS)
            await changes.after(seen)

    def _render(self) -> bytes:
        pods: dict[str, Any] = {}
        names, held = self._holders.names(), self._holders.snapshot()
        # Thousands of ids, of which each change touches few.
        self._texts = {key: self._text(key, ids) for key, ids in held.items()}
        for uid, container, resource in sorted(held):
            of = pods.setdefault(uid, {"name": names.get(uid, ""), "containers": {}})["containers"]
            of.setdefault(container, {})[resource] = self._texts[uid, container, resource][1]
        return orjson.dumps({"v": VERSION, "boot": self._boot, "pods": pods})

    def _text(self, key: Key, ids: frozenset[str]) -> tuple[frozenset[str], orjson.Fragment]:
        known = self._texts.get(key)
        return known if known is not None and known[0] is ids else (ids, orjson.Fragment(orjson.dumps(sorted(ids))))

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
