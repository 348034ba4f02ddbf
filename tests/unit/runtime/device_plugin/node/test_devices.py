# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which GPUs this node offers, by what was read of them, what isolates pods, and what an administrator cordoned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import permutations

import pytest

from gpushare_runtime.core.inventory import HEALTHY, Inventory
from gpushare_runtime.core.mps import MOST_CLIENTS
from gpushare_runtime.device_plugin.node.cdi import CdiDevice, CdiSpecs
from gpushare_runtime.device_plugin.node.devices import Devices
from gpushare_runtime.device_plugin.node.id_usage import Usage
from gpushare_runtime.device_plugin.node.local_pods import PodTable
from unit.fakes.runtime.pods import gpu, inventory
from unit.golden import Golden

FIRST, SECOND = "GPU-00000000", "GPU-00000001"
KIND = "nvidia.com/gpu"
SPECS = CdiSpecs(devices={f"{KIND}={uuid}": CdiDevice("nvidia.yaml", frozenset({minor})) for minor, uuid in enumerate((FIRST, SECOND))})
LOST = "it is lost"


def made(strategy: str = "environment") -> Devices:
    return Devices(Usage(PodTable(), lambda: 0.0), strategy)


def offered(devices: Devices) -> dict[str, str]:
    """UUID → health, or that it is cordoned."""
    return {each.uuid: "cordoned" if each.cordoned else each.health for each in devices.gpus}


def test_before_the_gpus_are_read_there_are_none() -> None:
    devices = made("cdi")
    assert (devices.inventory, devices.gpus, devices.by_uuid, devices.isolation, devices.unusable_specs()) == (None, (), {}, "", {})
    assert devices.reported("aliyun.com/gpu-mem") == []


@pytest.mark.parametrize(
    ("isolation", "core", "clients"), [("", 0, 0), ("none", 0, 0), ("watch", 0, 0), ("driver", 100, 0), ("mps", 100, MOST_CLIENTS)]
)
@pytest.mark.parametrize("strategy", ["environment", "cdi"])
def test_what_isolates_pods_says_what_a_gpu_shares_out(isolation: str, core: int, clients: int, strategy: str) -> None:
    devices = made(strategy)
    devices.set_isolation(isolation)
    devices.set_inventory(inventory(16))
    found = devices.inventory
    assert found is not None
    assert found.isolation == devices.isolation == isolation
    assert (found.core, found.clients, found.strategy) == (core, clients, strategy)


def test_with_mps_a_gpu_is_offered_while_its_daemon_answers(golden: Golden) -> None:
    devices = made()
    devices.set_isolation("mps")
    devices.set_inventory(inventory(16, 16))
    golden(offered(devices)[FIRST])
    devices.set_mps({FIRST: "", SECOND: "it was stopped"})
    assert offered(devices) == {FIRST: HEALTHY, SECOND: "it was stopped"}
    devices.set_mps({FIRST: "", SECOND: ""})
    assert offered(devices) == {FIRST: HEALTHY, SECOND: HEALTHY}
    devices.set_mps({FIRST: "it was stopped"})
    devices.set_isolation("driver")
    assert offered(devices) == {FIRST: HEALTHY, SECOND: HEALTHY}


def test_with_cdi_a_gpu_is_offered_that_a_spec_has() -> None:
    devices = made("cdi")
    lost = replace(inventory(16, 16, 16).gpus[2], health=LOST)
    devices.set_inventory(Inventory(inventory(16).unit, (*inventory(16, 16).gpus, lost)))
    assert set(devices.unusable_specs()) == {FIRST, SECOND}, "of those that answer"
    devices.set_cdi(replace(SPECS, devices={f"{KIND}={FIRST}": SPECS.devices[f"{KIND}={FIRST}"]}))
    found = offered(devices)
    assert found == {FIRST: HEALTHY, SECOND: devices.unusable_specs()[SECOND], lost.uuid: LOST}
    assert f"nvidia.com/gpu={SECOND}" in found[SECOND]
    # Both are missing: the spec, which every container needs, comes first.
    devices.set_isolation("mps")
    devices.set_mps({FIRST: "it was stopped", SECOND: "it was stopped"})
    assert offered(devices) == {**found, FIRST: "it was stopped"}
    environment = made()
    environment.set_inventory(inventory(16))
    assert (offered(environment), environment.unusable_specs()) == ({FIRST: HEALTHY}, {})


@pytest.mark.parametrize(
    ("strategy", "file", "kind"),
    [("cdi", "gpushare.json", "gpushare.kubernetes/gpu"), ("cdi", "", ""), ("environment", "gpushare.json", "")],
)
def test_the_node_names_our_own_kind_of_cdi_device_where_containers_get_it(strategy: str, file: str, kind: str) -> None:
    devices = made(strategy)
    devices.set_inventory(inventory(16))
    devices.set_cdi(CdiSpecs(own_file=file))
    assert devices.inventory is not None
    assert devices.inventory.cdi_kind == kind


@pytest.mark.parametrize(
    ("text", "cordoned"),
    [
        ("", []),
        ("0", [FIRST]),
        (f"7, {SECOND} ,GPU-other", [SECOND]),
        ("all", [FIRST, SECOND]),
        ("1,0", [FIRST, SECOND]),
        ("al, GPU-0000000", []),
        ("10", []),
        ("1;0", []),
        (",", []),
    ],
)
def test_a_cordoned_gpu_is_named_by_its_index_or_its_uuid(text: str, cordoned: list[str]) -> None:
    devices = made()
    devices.set_inventory(inventory(16, 16))
    devices.set_cordon(text)
    assert [uuid for uuid, state in offered(devices).items() if state == "cordoned"] == cordoned
    devices.set_cordon("")
    assert offered(devices) == {FIRST: HEALTHY, SECOND: HEALTHY}


def test_in_whatever_order_it_comes_the_offer_is_the_same() -> None:
    read = Inventory(inventory(16).unit, (gpu(0, 16), gpu(1, 24), gpu(2, 16, health=LOST), gpu(3, 16)))
    specs = replace(SPECS, devices={**SPECS.devices, f"{KIND}=GPU-00000003": CdiDevice("nvidia.yaml", frozenset({3}))})
    problems: Mapping[str, str] = {FIRST: "", SECOND: "", "GPU-00000003": "it was stopped"}
    steps: list[Callable[[Devices], object]] = [
        lambda devices: devices.set_inventory(read),
        lambda devices: devices.set_isolation("mps"),
        lambda devices: devices.set_cordon("1"),
        lambda devices: devices.set_mps(problems),
        lambda devices: devices.set_cdi(specs),
    ]
    for order in permutations(steps):
        devices = made("cdi")
        for number, step in enumerate(order, 1):
            step(devices)
            # Before the first three of them it would take back what the process before has published.
            assert (devices.settled is not None) is ({*steps[:3]} <= {*order[:number]})
        assert offered(devices) == {FIRST: HEALTHY, SECOND: "cordoned", "GPU-00000002": LOST, "GPU-00000003": "it was stopped"}
        assert devices.inventory is not None
        assert devices.inventory.isolation == "mps"
        before = devices.inventory
        for step in order:
            step(devices)
        assert devices.inventory is before, "nothing of it is news"


def test_only_news_is_a_change() -> None:
    usage = Usage(PodTable(), lambda: 0.0)
    devices = Devices(usage)
    assert usage.gpus_by_index == {}
    seen = []
    for read in (inventory(16), inventory(16), inventory(16, 24), inventory(16)):
        seen.append((devices.set_inventory(read), {index: each.units for index, each in usage.gpus_by_index.items()}))
    assert seen == [(True, {0: 16}), (False, {0: 16}), (True, {0: 16, 1: 24}), (True, {0: 16})]


def test_the_ids_of_a_gpu_are_its_units_and_itself() -> None:
    devices = made()
    devices.set_inventory(Inventory(inventory(16).unit, (gpu(0, 2), gpu(1, 1, health=LOST))))
    memory = [f"{FIRST}-_-0", f"{FIRST}-_-1", f"{SECOND}-_-0"]
    assert devices.reported("aliyun.com/gpu-mem") == [(memory[0], True), (memory[1], True), (memory[2], False)]
    assert devices.reported("aliyun.com/gpu-count") == [(FIRST, True), (SECOND, False)]
    assert {device_id: each.uuid for device_id, each in devices.gpu_of("aliyun.com/gpu-mem").items()} == dict(
        zip(memory, (FIRST, FIRST, SECOND), strict=True)
    )
    assert set(devices.gpu_of("aliyun.com/gpu-count")) == {FIRST, SECOND}
