# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""zypper's locks and its XML. The real zypper is in tests/packages."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.zypper import locked, table, with_locks, without_locks

# As `zypper addlock` of 1.14.42 writes it.
OWN = "\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: {}\n\n"
# By an administrator, for one repository only, or by a pattern.
THEIRS = (
    "\nsolvable_name: kernel-*\ncase_sensitive: on\nmatch_type: glob\n\n"
    "\ntype: package\nmatch_type: glob\ncase_sensitive: on\nrepo: a\nsolvable_name: b\n\n"
)


def test_locks_are_as_zypper_writes_them_and_those_of_others_stay() -> None:
    assert with_locks("", ["foo"]) == OWN.format("foo")
    assert locked(OWN.format("foo") + THEIRS) == ["foo"]
    both = with_locks(THEIRS, ["foo", "bar"])
    assert both.startswith(THEIRS.rstrip("\n"))
    assert sorted(locked(both)) == ["bar", "foo"]
    assert with_locks(both, ["bar", "foo"]) == both
    assert without_locks(both, ["baz", "b", "kernel-*"]) == both
    rest = without_locks(both, ["foo", "bar"])
    assert locked(rest) == []
    assert rest.split() == THEIRS.split()
    assert without_locks(OWN.format("foo"), ["foo"]) == ""


def summary(parts: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<stream><message type='info'>x</message><install-summary>{parts}</install-summary></stream>")


def test_what_becomes_of_packages() -> None:
    parts = (
        "<to-install><solvable type='package' name='a' edition='1.0-1'/><solvable type='pattern' name='p' edition='1'/></to-install>"
        "<to-upgrade><solvable type='package' name='b' edition='3:2.0-1' edition-old='3:1.0-1'/></to-upgrade>"
        "<to-remove><solvable type='package' name='c' edition='1.0-1'/></to-remove>"
    )
    assert table(summary(parts)) == {"a": "1.0-1", "b": "3:2.0-1", "c": None}
    assert table(summary("")) == {}
    with pytest.raises(Rejected, match="'to-shred'"):
        table(summary("<to-shred><solvable type='package' name='a' edition='1'/></to-shred>"))
