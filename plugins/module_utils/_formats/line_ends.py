# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edits of texts whose lines all end as on Windows: what is added ends so, too."""

from __future__ import annotations

import re
from typing import Callable

_BARE = re.compile(r"(?<!\r)\n")


def kept(text: str, edit: Callable[[str], str]) -> str:
    """The edited text. `edit` sees newlines alone where every line of the text ends in a carriage return and a newline."""
    if "\r\n" not in text or _BARE.search(text):
        return edit(text)
    return edit(text.replace("\r\n", "\n")).replace("\n", "\r\n")
