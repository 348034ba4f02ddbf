# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A line of a program's log by which it says why it fails, as people read it. Pure."""

from __future__ import annotations

import re

#: klog's time, process and place; one line may have them twice, of the library that failed and of what logged it.
_HEAD = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d{1,10} [\w.-]{1,80}:\d{1,6}\] ")
_MIDDLE = " … "


def told(line: str, most: int) -> str:
    """The line without heads, escapes of quotes and what a terminal does not show: at most so many letters.

    Of a longer one the beginning and the end: in Go the cause, and what to do, come last.
    """
    text = "".join(letter if letter.isprintable() else " " for letter in line[: 16 * most])
    text = " ".join(_HEAD.sub("", text).replace('\\"', '"').split())
    if len(text) <= most:
        return text
    first = most // 3
    return text[:first].rstrip() + _MIDDLE + text[first + len(_MIDDLE) - most :].lstrip()
