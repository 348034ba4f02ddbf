# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Modules that work on the controller alone: their documentation has the options, and only their action plugins read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpushare.kubernetes.plugins.action import gpushare_bundle
from ansible_collections.gpushare.kubernetes.plugins.action.gpushare_judge import JUDGES

ROOT = Path(__file__).resolve().parents[3]


def documented(module: str) -> dict[str, dict[str, Any]]:
    text = (ROOT / f"plugins/modules/{module}.py").read_text()
    options: dict[str, dict[str, Any]] = yaml.safe_load(text.partition('DOCUMENTATION = r"""')[2].partition('"""')[0])["options"]
    return options


def differences(options: Mapping[str, Mapping[str, Any]], told: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The options that are documented otherwise, and by which key."""
    found = [
        (name, key)
        for name, one in options.items()
        for key in ("type", "elements", "choices", "default")
        if one.get(key) != told[name].get(key)
    ]
    inner = ((one["options"], told[name]["suboptions"]) for name, one in options.items() if "options" in one)
    return found + [one for below, below_told in inner for one in differences(below, below_told)]


def test_each_option_of_a_subject_is_documented_as_it_is() -> None:
    told = documented("gpushare_judge")
    assert told["what"]["choices"] == list(JUDGES)
    assert set(told) == {"what", *(name for judge in JUDGES.values() for name in judge.options)}
    for what, judge in JUDGES.items():
        # A path of the host where the module goes to the API server, which expands it.
        assert set(differences(judge.options, told)) <= {("kubeconfig", "type")}, what
        for name, option in judge.options.items():
            words = told[name]["description"]
            last = (words if isinstance(words, str) else " ".join(words)).rpartition(". ")[2]
            required = last.endswith(("require it.", "requires it.")) and f"V({what})" in last
            assert required == option.get("required", False), (what, name)


def test_each_option_of_a_bundle_is_documented_as_it_is() -> None:
    told = documented("gpushare_bundle")
    options = gpushare_bundle._ARGUMENTS
    assert (set(told), differences(options, told)) == (set(options), [])
    assert {name for name, one in told.items() if one.get("required")} == {name for name, one in options.items() if one.get("required")}
