# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What cannot read the table of container runtimes has the same ones as the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.container_runtimes import KINDS
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.default_runtime import SERVICES
from ansible_collections.gpushare.kubernetes.plugins.modules.container_runtime import DOCUMENTATION

from gpushare_runtime.device_plugin.node import node_kind

ROLES = Path(__file__).resolve().parents[4] / "roles"
NAME = "gpushare_container_runtime_name"


def specified() -> list[Any]:
    """The options of roles that are the name of a container runtime."""
    entries = [
        entry
        for path in sorted(ROLES.glob("*/meta/argument_specs.yml"))
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values()
    ]
    return [pytest.param(entry["options"][NAME], id=entry["short_description"]) for entry in entries if NAME in entry.get("options", {})]


@pytest.mark.parametrize("option", [*specified(), yaml.safe_load(DOCUMENTATION)["options"]["runtime"]])
def test_each_container_runtime_can_be_chosen(option: dict[str, Any]) -> None:
    assert option["choices"] == ["auto", *KINDS]


def test_each_container_runtime_has_its_service() -> None:
    assert list(SERVICES) == list(KINDS)


def test_the_device_plugin_in_a_pod_knows_the_same_releases() -> None:
    def padded(*releases: tuple[int, ...]) -> tuple[int, ...]:
        return tuple((*max(releases), 0, 0)[:3])

    cdi = {name: kind.cdi for name, kind in KINDS.items() if kind.cdi}
    assert {name: padded(found.default, found.specs) for name, found in cdi.items()} == node_kind._BY_DEFAULT
    assert {name: padded(found.since, found.specs) for name, found in cdi.items()} == node_kind._SWITCHED_ON
