# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Environment files and command lines are read as systemd reads them.

The values are those that a service of systemd 252 (Debian 12) was given, which was run with these files on 2026-11-29.
"""

from __future__ import annotations

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import environment, expanded, words


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1", {"A": "1"}),
        (" A = 1 2 \n", {"A": "1 2"}),
        ("A=1\nA=2\n", {"A": "2"}),
        # Quotes count at the beginning of a value.
        ('A="a b"  \n', {"A": "a b"}),
        ("A='x''y' \"z\" w 'v'\n", {"A": "xyzw 'v'"}),
        ('A=a"b c"d\n', {"A": 'a"b c"d'}),
        ("A='a\\'\n", {"A": "a\\"}),
        ('A="a\\"b\\$c\\`d\\e\\\\"\n', {"A": 'a"b$c`d\\e\\'}),
        ('A=a\\"b\\ c\\ \n', {"A": 'a"b c '}),
        # No comments behind values.
        ("A=--x # y\n", {"A": "--x # y"}),
        ("# A=1\n ; A=2\nB=1\n", {"B": "1"}),
        # A backslash at the end of a line leaves nothing; quotes go over lines.
        ("A=a\\\nb \\\n  c\n", {"A": "ab   c"}),
        ('A="a\\\nb"\n', {"A": "ab"}),
        ('A="a\nb"\nB=2\n', {"A": "a\nb", "B": "2"}),
        ("A='a\nb'\nB=2\n", {"A": "a\nb", "B": "2"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("A=\nB=  \nC\nD=1\n", {"A": "", "B": "", "D": "1"}),
        ("A==b=c\n", {"A": "=b=c"}),
        # No names.
        ("export A=1\n1B=2\nC-D=3\nE=4\n", {"E": "4"}),
    ],
)
def test_an_environment_file(text: str, values: dict[str, str]) -> None:
    assert environment(text) == values


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("\"a b\" 'c d'", ["a b", "c d"]),
        ('--x="b c"d e', ["--x=b cd", "e"]),
        ("--x='a \"b' c", ['--x=a "b', "c"]),
        ('a\\ b \\"c', ["a b", '"c']),
        ('"a\\"b"', ['a"b']),
        ("''", [""]),
        ("", []),
        ('a "b c', ["a", "b c"]),
    ],
)
def test_the_words_of_a_value(value: str, found: list[str]) -> None:
    assert words(value) == found


def test_variables_of_a_command_line() -> None:
    variables = {"A": "--a=1 --b='2 3'", "C": "x y"}
    command = ["$A", "--c=${C}", "$NO", "${NO}", "z$C", "$C$C"]
    assert expanded(command, variables) == [("--a=1", "A"), ("--b=2 3", "A"), ("--c=x y", ""), ("", ""), ("z$C", ""), ("$C$C", "")]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", ["A=" + "\\ " * 50_000, "A=" + '"' * 50_001, "\\" * 100_000, "A" + " " * 100_000, "A \n" * 50_000, "#\n" * 50_000]
)
def test_a_file_of_an_enemy_takes_no_time(text: str) -> None:
    environment(text)
    words(text)
