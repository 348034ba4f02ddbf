# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A line of a daemon's log: level, logger, a sentence, and at its end keys to search for (docs/operate/failures.md#logs).

Names of others are in sentences and keys. None of them makes a line, or a key, that the daemon has not written.
"""

from __future__ import annotations

import logging
import re
from types import TracebackType
from typing import Final

LOG_FORMAT: Final = "%(levelname)s %(name)s: %(message)s"
"""Without a time: journald and the container runtime record it."""
KEYS: Final = ("reason", "pod", "node", "gpu")
"""In their order at the end of a line."""
_FIELD: Final = "about"
# As long as namespace and name of a pod may be.
_MOST: Final = 317
_NOT_IN_A_VALUE: Final = re.compile(r"[^\w.:/,-]", re.ASCII)
_KEY: Final = re.compile(rf"\b({'|'.join(KEYS)})=")
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def about(pod: object = "", node: str = "", gpu: object = "", reason: str = "") -> dict[str, dict[str, str]]:
    """The argument `extra` of a line. pod: its text is NAMESPACE/NAME; gpu: its index, or its UUID where no index is known."""
    return {_FIELD: {"reason": reason, "pod": str(pod), "node": node, "gpu": str(gpu)}}


class LogLine(logging.Formatter):
    """One line per record, and a traceback indented below it. node: of this daemon, for lines about a pod or a GPU that name no other."""

    def __init__(self, node: str = "") -> None:
        super().__init__(LOG_FORMAT)
        self._node = node

    def formatMessage(self, record: logging.LogRecord) -> str:
        keys: dict[str, str] = dict(getattr(record, _FIELD, {}))
        if any(keys.values()):
            keys["node"] = keys["node"] or self._node
        return " ".join([_plain(super().formatMessage(record)), *(f"{key}={_value(keys[key])}" for key in KEYS if keys.get(key))])

    def formatException(self, ei: _ExcInfo) -> str:
        return "\n".join(f"  {_plain(line)}" for line in super().formatException(ei).splitlines())


def _plain(text: str) -> str:
    """A sentence on one line, in which no word reads as a key."""
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return _KEY.sub(r"\1 =", shown)


def _value(text: str) -> str:
    return _NOT_IN_A_VALUE.sub("?", text[:_MOST])
