# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a container gets by each strategy, and whether another one may be used while pods run."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.protocol import STRATEGIES
from gpushare_runtime.device_plugin.node.strategy import access_to, changed_isolation, changed_strategy, left_limits, no_instances
from unit.fakes.runtime.pods import gpu, inventory
from unit.golden import Golden

# Minors that are not the indexes.
FIRST, SECOND = gpu(0, 16, minor=3), gpu(1, 24, minor=1)
CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def test_cdi_names_the_gpus_by_uuid_and_leaves_nothing_to_the_nvidia_runtime() -> None:
    access = access_to("cdi", (FIRST, SECOND))
    assert access.cdi_devices == ("nvidia.com/gpu=GPU-00000000", "nvidia.com/gpu=GPU-00000001")
    assert (access.visible, access.mounts, access.device_nodes) == ("void", (), ())


def test_volume_mounts_are_one_for_each_gpu_below_nvidias_folder() -> None:
    access = access_to("volume-mounts", (FIRST, SECOND))
    assert access.visible == "/var/run/nvidia-container-devices"
    assert [(one.inside, one.outside, one.read_only) for one in access.mounts] == [
        (f"/var/run/nvidia-container-devices/GPU-0000000{number}", "/dev/null", True) for number in (0, 1)
    ]
    assert (access.cdi_devices, access.device_nodes) == ((), ("nvidia3", "nvidia1", *CONTROL))


def test_the_environment_is_the_originals() -> None:
    access = access_to("envvar", (FIRST, SECOND))
    assert access.visible == "GPU-00000000,GPU-00000001"
    assert (access.cdi_devices, access.mounts, access.device_nodes) == ((), (), ("nvidia3", "nvidia1", *CONTROL))


@given(st.sampled_from(STRATEGIES), st.sets(st.integers(0, 7), min_size=1))
def test_no_strategy_names_a_gpu_that_was_not_given(strategy: str, given_: set[int]) -> None:
    gpus = [gpu(index, 16, uuid=f"GPU-{index}", minor=100 + index) for index in range(8)]
    access = access_to(strategy, [one for one in gpus if one.index in given_])
    everything = " ".join((access.visible, *access.cdi_devices, *(one.inside for one in access.mounts), *access.device_nodes))
    assert {one.index for one in gpus if one.uuid in everything} <= given_
    named = {int(name[6:]) - 100 for name in access.device_nodes if name not in CONTROL}
    assert named == (set() if strategy == "cdi" else given_)


@pytest.mark.parametrize(
    ("strategy", "isolation", "words"),
    [
        ("cdi", "auto", ""),
        ("cdi", "watch", ""),
        ("cdi", "none", ""),
        ("cdi", "mps", "no limits by mps"),
        ("cdi", "driver", "no limits by driver"),
        ("volume-mounts", "auto", "need the device strategy cdi, found volume-mounts"),
        ("envvar", "mps", "need the device strategy cdi, found envvar"),
    ],
)
def test_what_pods_cannot_get_mig_instances_with(strategy: str, isolation: str, words: str) -> None:
    why = no_instances(strategy, isolation)
    assert (words in why, bool(why)) == (True, bool(words))


def everybody(uids: Set[str]) -> Set[str]:
    return uids


def test_another_strategy_is_rejected_while_pods_have_gpus() -> None:
    why = changed_strategy("cdi", "envvar", {"a", "b"}, lambda uids: uids & {"b"})
    assert why.startswith("1 pods have GPUs by the device strategy envvar (UID b), this plugin should use cdi: kubelet repeats")
    assert why.endswith("Delete these pods first, or start with --device-strategy envvar")
    assert "(UID a, b, c and 1 more)" in changed_strategy("cdi", "envvar", set("dcba"), everybody)
    assert len(changed_strategy("cdi", "x" * 10_000, {"a"}, everybody)) < 600


@pytest.mark.parametrize(
    ("before", "uids"), [("cdi", {"a"}), ("", {"a"}), ("envvar", set())], ids=["the same", "unknown", "nobody"]
)  # fmt: skip
def test_nobody_looks_at_processes_without_need(before: str, uids: set[str]) -> None:
    def live(uids: Set[str]) -> Set[str]:
        raise AssertionError("it looked")

    assert changed_strategy("cdi", before, uids, live) == ""


@pytest.mark.parametrize(
    ("isolation", "before", "words"),
    [
        ("mps", "watch", "with the isolation watch"),
        ("auto", "mps", "with the isolation mps"),
        ("mps", "mps", ""),
        ("auto", "driver", ""),
        ("none", "watch", ""),
        ("mps", "", ""),
    ],
)
def test_mps_is_set_and_left_without_pods_only(isolation: str, before: str, words: str) -> None:
    why = changed_isolation(isolation, before, {"a", "b"}, lambda uids: set(uids))
    assert (why == "") == (words == "")
    assert words in why
    assert changed_isolation(isolation, before, {"a", "b"}, lambda uids: set()) == ""


@pytest.mark.parametrize("isolation", ["watch", "none"])
def test_a_node_that_limits_nothing_any_more_waits_for_the_pods_that_the_driver_limits(isolation: str) -> None:
    why = left_limits(isolation, {"a", "b"}, lambda uids: uids & {"b"})
    assert why.startswith(f"the driver limits the memory of 1 pods (UID b), this plugin should use {isolation}: they would keep limits")
    assert left_limits(isolation, {"a"}, lambda uids: set()) == ""
    assert left_limits("driver", {"a"}, everybody) == ""


def test_pods_that_have_ended_do_not_matter() -> None:
    assert changed_strategy("cdi", "envvar", {"a"}, lambda uids: set()) == ""


def test_the_annotation_has_the_strategy_and_old_ones_have_none(golden: Golden) -> None:
    node = replace(inventory(16), strategy="volume-mounts")
    assert '"unit":"GiB","strategy":"volume-mounts","gpus"' in node.to_json()
    assert Inventory.from_json(node.to_json()) == node
    assert Inventory.from_json(inventory(16).to_json()).strategy == ""
    with golden.raised(ReportError):
        Inventory.from_json('{"v":1,"unit":"GiB","strategy":3,"gpus":[]}')
