# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Limits of kubelet's service and the container runtime's that are too low, with the drop-ins that set them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.unit_limits import UnitLimits, low_limits
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host

from unit.fakes.plugins.fake_root import FakeRoot

UNITS = ("kubelet.service", "containerd.service")
DROP_IN = "/etc/systemd/system/containerd.service.d/90-limits.conf"


def limits(tmp_path: Path, text: str, **state: str) -> list[UnitLimits]:
    root = FakeRoot(tmp_path)
    root.file(DROP_IN, text)
    kubelet = "Id=kubelet.service\nLimitNOFILESoft=1000000\nTasksMax=infinity\nMemoryMax=infinity\n"
    well = {"LimitNOFILESoft": "1024", "TasksMax": "4915", "MemoryMax": "infinity", "DropInPaths": DROP_IN, **state}
    mine = "".join(f"{key}={value}\n" for key, value in {"Id": "containerd.service", **well}.items())
    root.program("/usr/bin/systemctl", f"{kubelet}\n{mine}")
    return low_limits(Host(str(root)), UNITS)


def test_a_service_with_the_limits_of_its_package_has_none_that_is_too_low(tmp_path: Path) -> None:
    assert limits(tmp_path, "[Service]\nLimitNOFILE=1048576\n") == []


@pytest.mark.parametrize(
    ("state", "low"),
    [({"LimitNOFILESoft": "64"}, ("LimitNOFILE=64",)), ({"TasksMax": "20", "MemoryMax": "8388608"}, ("TasksMax=20", "MemoryMax=8388608"))],
)
def test_a_limit_that_is_too_low_is_told_as_its_setting(tmp_path: Path, state: dict[str, str], low: tuple[str, ...]) -> None:
    assert limits(tmp_path, "[Service]\n", **state) == [UnitLimits("containerd.service", low)], "the unit itself sets it"


@pytest.mark.parametrize(("text", "whole"), [("LimitNOFILE=64\n", True), ("LimitNOFILE=64\nEnvironment=A=b\n", False)])
def test_a_drop_in_is_removed_as_a_whole_only_where_it_sets_nothing_else(tmp_path: Path, text: str, whole: bool) -> None:
    (found,) = limits(tmp_path, f"[Service]\n{text}", LimitNOFILESoft="64")
    assert (found.drop_ins, found.whole) == ((DROP_IN,), whole)
