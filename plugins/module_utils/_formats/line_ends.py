# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ends of lines of a text that is edited: a file of others keeps them, whatever its reader makes of them."""

from __future__ import annotations

from typing import Callable

_CARRIAGE = "\r\n"


def kept(text: str, edit: Callable[[str], str]) -> str:
    """The text after the edit, which gets and makes lines that end in "\\n". Where all ended in "\\r\\n", all do again."""
    if _CARRIAGE not in text or text.count("\n") != text.count(_CARRIAGE):
        return edit(text)
    return edit(text.replace(_CARRIAGE, "\n")).replace("\n", _CARRIAGE)
