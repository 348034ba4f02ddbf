# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is remembered of an instance, also by checkouts of before and after, which share it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushare_lab import lifecycle, state
from gpushare_lab.process import LabError
from gpushare_lab.state import Instance

ONE = Instance("one", "10.231.0.0/24", "1.36.3", True, {"gpu1": "16"})
THREE = Instance("three", "10.231.1.0/24", "1.36.3", True, {"gpu1": "16"}, 3)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize("instance", [ONE, THREE])
def test_an_instance_is_read_as_it_was_written(instance: Instance) -> None:
    state.save(instance)
    assert state.load(instance.name) == instance


def test_a_checkout_that_knows_one_control_plane_only_reads_instances_that_have_one() -> None:
    state.save(ONE)
    assert set(json.loads((ONE.folder / "lab.json").read_text())) == {"version", "name", "subnet", "kubernetes", "nvidia_runtime", "gpus"}


def test_the_address_before_three_control_planes_is_none_of_theirs() -> None:
    assert THREE.endpoint == "10.231.1.100"
    assert ONE.endpoint == ""


def test_another_number_of_control_planes_is_rejected() -> None:
    lifecycle._reject_changes(THREE, "1.36.3", lifecycle.Wishes())
    lifecycle._reject_changes(THREE, "1.36.3", lifecycle.Wishes(control_planes=3))
    with pytest.raises(LabError, match="it has 3 control planes, not 1"):
        lifecycle._reject_changes(THREE, "1.36.3", lifecycle.Wishes(control_planes=1))
