# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The presets for clusters of others: each value is one of the chart and a variable of the role, and has a source."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import presets
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import COLLECTION, impossible, of_type, variables

import chart_values

CHART = yaml.safe_load((COLLECTION / "charts/gpushare/values.yaml").read_text())
SCHEMA = json.loads((COLLECTION / "charts/gpushare/values.schema.json").read_text())


def test_each_value_that_the_schema_requires_has_a_default() -> None:
    assert set(SCHEMA["required"]) <= set(CHART) <= set(SCHEMA["properties"])


def test_the_role_knows_each_of_them() -> None:
    assert ["", *presets.names()] == variables()["gpushare_preset"].spec["choices"]
    assert of_type("gpushare_preset", "k3", variables()["gpushare_preset"].spec)[1]


@pytest.mark.parametrize("name", presets.names())
def test_its_values_can_be_and_say_where_they_are_from(name: str) -> None:
    text = (presets.FOLDER / f"{name}.yaml").read_text()
    head = dict(re.findall(r"^# (title|driver|brings|switch|source|read|state): (.+)$", text, re.M))
    # What was run says so.
    assert set(head) - {"state"} == {"title", "driver", "brings", "switch", "source", "read"}
    assert ("state" in head) == (name == "k0s")
    assert re.fullmatch(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]", head["read"])
    assert set(yaml.safe_load(text)) <= set(CHART)
    found = presets.variables(name)
    specs = {one: variables()[one].spec for one in found}
    assert "in_cluster" in set.intersection(*(set(variables()[one].roles) for one in found))
    assert [one for one, value in found.items() if of_type(one, value, specs[one])[1]] == []
    assert impossible("cluster", found, specs) == []
    # A value that is the default already says nothing.
    assert [one for one, value in found.items() if value == specs[one].get("default")] == []


def test_what_somebody_has_set_stays() -> None:
    defaults = {"gpushare_kubelet_root": "/var/lib/kubelet", "gpushare_device_strategy": "auto", "gpushare_namespace": "gpushare-system"}
    assert presets.applied(defaults, "", defaults) == defaults
    by_preset = presets.applied(defaults, "k0s", defaults)
    assert by_preset == {**defaults, "gpushare_kubelet_root": "/var/lib/k0s/kubelet", "gpushare_device_strategy": "cdi"}
    own = {**defaults, "gpushare_kubelet_root": "/data/kubelet"}
    assert presets.applied(own, "k0s", defaults)["gpushare_kubelet_root"] == "/data/kubelet"


@pytest.mark.parametrize("value", ["isolation", "memoryUnit", "dashboard.enabled"])
def test_a_meaning_with_words_of_ansible_is_none_for_a_value_of_the_chart(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable's own description speaks of MPS, of preflight and of a role."""
    monkeypatch.delitem(chart_values._MEANINGS, value)
    with pytest.raises(ValueError, match=value):
        chart_values.values()
