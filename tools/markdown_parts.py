# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pieces of Markdown, of which the generated parts of the docs are made."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines).replace("|  |", "| |")


def code(words: Iterable[str]) -> str:
    """Words in code quotes."""
    return ", ".join(f"`{word}`" for word in words)


def item(words: str) -> str:
    """An item of a list, in lines as long as those of the pages."""
    return textwrap.fill(words, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
