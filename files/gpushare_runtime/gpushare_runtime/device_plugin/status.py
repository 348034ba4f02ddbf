# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the plugin is doing, in a sentence for systemd and the log; ready only when kubelet has all resources."""

from __future__ import annotations

import logging
from collections.abc import Collection

from gpushare_runtime import systemd

log = logging.getLogger(__name__)


class Status:
    """Each part of the plugin says how it is; what changes is told. needed: the parts that must be well to be ready."""

    def __init__(self, needed: Collection[str]) -> None:
        self._needed = frozenset(needed)
        self._parts: dict[str, tuple[bool, str]] = {}
        self.ready = False

    def good(self, part: str, text: str) -> None:
        self._set(part, True, text)

    def bad(self, part: str, text: str) -> None:
        """text: what is wrong and what to do."""
        self._set(part, False, text)

    def _set(self, part: str, well: bool, text: str) -> None:
        if self._parts.get(part) == (well, text):
            return
        self._parts[part] = well, text
        log.log(logging.INFO if well else logging.ERROR, "%s: %s", part, text)
        # What is wrong comes first: systemctl shows one line.
        parts = sorted(self._parts.items(), key=lambda item: item[1][0])
        lines = [f"STATUS={'; '.join(f'{name}: {words}' for name, (_, words) in parts)}"]
        if not self.ready and all(self._parts.get(name, (False, ""))[0] for name in self._needed):
            self.ready = True
            lines.insert(0, "READY=1")
        systemd.notify("\n".join(lines))
