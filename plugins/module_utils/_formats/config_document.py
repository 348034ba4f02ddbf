# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file with a daemon's settings as the daemon reads it: one document of YAML, a field in a line, which this collection alone writes.

`gpushare_runtime/settings/` of the runtime has the fields and reads the file strictly.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

API_VERSION = "gpushare.kubernetes/v1"
_HEAD = """\
# Copyright: gpushare.kubernetes contributors
# {program} reads this at its start, and explains it with --check-config. site.yml replaces it.
"""
_FIELD = re.compile(r"^([A-Za-z]+): (.*)$", re.MULTILINE)


def document(kind: str, fields: Mapping[str, Any]) -> str:
    """The fields as YAML. Values are JSON, which YAML contains; the order does not depend on the one who asks."""
    lines = [
        f"apiVersion: {API_VERSION}",
        f"kind: {kind}",
        *(f"{key}: {json.dumps(fields[key], separators=(',', ':'))}" for key in sorted(fields)),
    ]
    return "\n".join(lines) + "\n"


def written(program: str, kind: str, fields: Mapping[str, Any]) -> str:
    """The file on a host."""
    return _HEAD.format(program=program) + document(kind, fields)


def field(text: str, key: str) -> Any:
    """A value of a document that this collection has written, None without it."""
    for name, value in _FIELD.findall(text):
        if name == key:
            try:
                return json.loads(value)
            except (ValueError, RecursionError):
                return None
    return None
