# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/reference/names.md has every name that pods, nodes and containers carry; those of Events: see test_references.py."""

from __future__ import annotations

import re

import pytest

from gpushare_runtime.core import protocol
from tree import REPOSITORY

PAGE = (REPOSITORY / "docs/reference/names.md").read_text()
# What users write on pods stands in requests.md, under one heading.
ASKED = (REPOSITORY / "docs/use/requests.md").read_text()
NAMES = {
    name: value
    for name, value in vars(protocol).items()
    # kubelet's own mark of a static pod's copy is no name of ours.
    if name != "ANNOTATION_MIRROR" and name.startswith(("RESOURCE_", "LABEL_", "ANNOTATION_", "ASK_", "ENV_")) and isinstance(value, str)
}


def test_a_module_is_private_or_part_of_the_interface() -> None:
    """names.md lists the public ones; `ansible-doc -l` shows which are not."""
    files = (REPOSITORY / "plugins/modules").glob("[a-z]*.py")
    described = {path.stem: re.findall("^short_description: (.+)$", path.read_text(), re.M) for path in files}
    private = {name for name, (words,) in described.items() if words.startswith('"Private: ')}
    (line,) = re.findall(r"^- the modules (.*?)\. `ansible-doc", PAGE, re.M)
    assert described.keys() - private == set(re.findall("`([a-z_]+)`", line))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_documented(name: str) -> None:
    value = NAMES[name]
    assert f"`{value}" in PAGE or f"`{value}" in ASKED, f"{name}: {value} stands in neither names.md nor requests.md"


def test_all_kinds_of_names_are_looked_for() -> None:
    assert {name.partition("_")[0] for name in NAMES} == {"RESOURCE", "LABEL", "ANNOTATION", "ASK", "ENV"}
