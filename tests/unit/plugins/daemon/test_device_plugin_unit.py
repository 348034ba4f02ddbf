# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The order of the role's unit of the device plugin: before kubelet, and behind nothing that a driver can hold up."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

ROLES = Path(__file__).resolve().parents[4] / "roles"


@pytest.mark.parametrize("unit", ["kubelet.service", "kubelet"])
def test_kubelet_finds_it_waiting(unit: str) -> None:
    template = "device_plugin/templates/gpushare-device-plugin.service.j2"
    known = {"gpushare_kubelet_unit": unit, "__gpushare_node": {"kubelet_root": "/k"}, "__device_plugin_found": {"strategy": "cdi"}}
    known["__gpushare_environment"] = "/e"
    made = jinja2.Environment(trim_blocks=True)
    made.filters["bool"] = bool
    text = made.from_string((ROLES / template).read_text()).render(**known).splitlines()
    assert [line for line in text if line.startswith(("Before=", "After=", "Requires", "Wants=", "Timeout"))] == [
        "After=network.target",
        "Before=kubelet.service",
        "RequiresMountsFor=/var/lib/kubelet/device-plugins /k/pod-resources",
        "TimeoutStartSec=60",
        "TimeoutStopSec=10",
    ]


def test_a_control_daemon_of_mps_holds_up_neither() -> None:
    text = (ROLES / "mps/templates/gpushare-mps.service.j2").read_text()
    assert "Before=" not in text
