# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Columns come out as Go's text/tabwriter (minwidth 0, padding 2, spaces) writes them; expectations by hand from its documentation."""

from __future__ import annotations

import pytest

from gpushare_runtime.kubectl_gpushare.inspect_tables import align


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\n", "a  b\n"),
        ("a\tb\t\n", "a  b  \n"),
        ("long\tx\na\tyy\n", "long  x\na     yy\n"),
        # The last cell of a line, without a tab, has no say in the width.
        ("a\tb\nlong line\nccc\td\n", "a  b\nlong line\nccc  d\n"),
        # A line without the column ends it: what follows is aligned anew.
        ("aaaa\tb\t\n\na\tb\t\n", "aaaa  b  \n\na  b  \n"),
        # A shorter line ends only the columns that it lacks.
        ("a\tbbbb\tc\t\na\tb\t\na\tb\tc\t\n", "a  bbbb  c  \na  b     \na  b     c  \n"),
        # An empty cell is as wide as its column; a column of empty cells is the padding.
        ("a\t\tc\nb\tbb\tc\n", "a      c\nb  bb  c\n"),
        ("a\t\tc\n", "a    c\n"),
        # Width is counted in characters, not bytes.
        ("ü\tx\nab\ty\n", "ü   x\nab  y\n"),
    ],
)
def test_align(text: str, expected: str) -> None:
    assert align(text) == expected
