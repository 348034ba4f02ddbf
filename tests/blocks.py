# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Reads the blocks that preflight and verify print, as a person does."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEAD = re.compile(r"✗ (\S+) +(.+)")
_PART = re.compile(r" {4}(found|expected|do) +(.*)")


def lines(output: str) -> str:
    """Each problem as `HOST: CHECK: found X; expected Y; CURE`, a line for each of its hosts. output: what the playbook printed."""
    return "\n".join(_lines(output))


def _lines(output: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", output):
        rows = block[block.find("✗") :].splitlines()
        head = _HEAD.fullmatch(rows[0].rstrip()) if rows else None
        parts = [part for row in rows[1:] if (part := _PART.fullmatch(row.rstrip()))]
        if head is None or not parts:
            continue
        check, hosts = head.groups()
        found = [part[2] for part in parts if part[1] == "found"]
        expected, cure = (next(part[2] for part in parts if part[1] == name) for name in ("expected", "do"))
        for words in found:
            here, own = hosts, re.fullmatch(r"(.*) \(([^()]+)\)", words) if len(found) > 1 else None
            if own:
                words, here = own.groups()
            yield from (f"{host}: {check}: found {words}; expected {expected}; {cure}" for host in here.split(", "))
