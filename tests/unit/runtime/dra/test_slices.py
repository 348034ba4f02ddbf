# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ResourceSlices of a node: what kube-scheduler reads of its GPUs, within the API server's limits."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.quantity import GIB, UNITS
from gpushare_runtime.dra.slices import Closed, changes, device_name, in_use, quantity, read_inventory, slices, words

T4 = Gpu(0, "GPU-6406b1ff-e486-da64-8a09-584683bdfe67", 3, "0000:3B:00.0", "Tesla T4", 15360, 15, numa=1)
A30 = Gpu(1, "GPU-404966e9-8716-c392-9c97-aff857c46602", 0, "0000:0b:00.0", "NVIDIA A30", 24576, 24)


def made(*gpus: Gpu, generation: int = 1) -> list[dict[str, Any]]:
    return slices("gpu1", "node-uid", Inventory(GIB, gpus), generation)


def test_a_gpu_is_a_device_that_claims_share_by_memory() -> None:
    (one,) = made(T4, A30, generation=7)
    assert one["metadata"] == {
        "name": "gpu1-gpushare.kubernetes-0",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "gpu1", "uid": "node-uid"}],
    }
    assert one["spec"]["nodeName"] == "gpu1"
    assert one["spec"]["pool"] == {"name": "gpu1", "generation": 7, "resourceSliceCount": 1}
    assert one["spec"]["devices"][0] == {
        "name": "gpu-6406b1ff-e486-da64-8a09-584683bdfe67",
        "attributes": {
            "uuid": {"string": T4.uuid},
            "index": {"int": 0},
            "model": {"string": "Tesla T4"},
            "words": {"string": "-tesla-t4-"},
            "minor": {"int": 3},
            "mib": {"int": 15360},
            "numa": {"int": 1},
            "resource.kubernetes.io/numaNode": {"int": 1},
            "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
        },
        "capacity": {
            "memory": {
                "value": "15Gi",
                # Without an amount all of it: that is a whole GPU.
                "requestPolicy": {"default": "15Gi", "validRange": {"min": "1Gi", "step": "1Gi", "max": "15Gi"}},
            }
        },
        "allowMultipleAllocations": True,
    }
    assert not {"numa", "resource.kubernetes.io/numaNode"} & one["spec"]["devices"][1]["attributes"].keys()


@pytest.mark.parametrize(
    ("unit", "units", "text"),
    [("GiB", 6, "6Gi"), ("MiB", 1536, "1536Mi"), ("MiB", 2048, "2Gi"), ("64MiB", 3, "192Mi"), ("256MiB", 4, "1Gi")],
)
def test_units_are_a_quantity(unit: str, units: int, text: str) -> None:
    assert quantity(units, UNITS[unit]) == text


def test_a_gpu_of_one_unit_has_no_step_between() -> None:
    (one,) = made(replace(T4, units=1))
    assert one["spec"]["devices"][0]["capacity"]["memory"] == {"value": "1Gi", "requestPolicy": {"default": "1Gi"}}


@pytest.mark.parametrize(
    ("gpu", "value", "effect"),
    [
        (T4, None, None),
        (replace(T4, health="XID 79", defective=True), "unhealthy", "NoExecute"),
        # A CDI spec, or the driver of all GPUs: containers that run have what they need.
        (replace(T4, health="two CDI specs name it"), "unhealthy", "NoSchedule"),
        # People cordon a GPU so that its pods end by themselves; their drain evicts them.
        (replace(T4, cordoned=True), "cordoned", "NoSchedule"),
        (A30, "in-use", "NoSchedule"),
        (replace(A30, health="XID 79", defective=True), "unhealthy", "NoExecute"),
    ],
)
def test_only_a_gpu_that_fails_ends_its_pods_where_that_is_asked_for(gpu: Gpu, value: str | None, effect: str | None) -> None:
    (one,) = slices("gpu1", "u", Inventory(GIB, (gpu,)), 1, Closed(evicts=True, in_use={A30.uuid}))
    (device,) = one["spec"]["devices"]
    assert device.get("taints") == ([{"key": "gpushare.kubernetes/unusable", "value": value, "effect": effect}] if value else None)


@pytest.mark.parametrize(("change", "value"), [({"health": "XID 79"}, "unhealthy"), ({"cordoned": True}, "cordoned")])
def test_a_gpu_that_takes_no_new_pods_has_a_taint(change: dict[str, Any], value: str) -> None:
    (one,) = made(replace(T4, **change), A30)
    taint = {"key": "gpushare.kubernetes/unusable", "value": value, "effect": "NoSchedule"}
    assert [device.get("taints") for device in one["spec"]["devices"]] == [[taint], None]


def test_who_reads_the_slices_sees_that_processes_of_pods_that_are_gone_have_a_gpu() -> None:
    found = slices("gpu1", "u", Inventory(GIB, (T4, A30)), 1, Closed(in_use={A30.uuid}))
    assert in_use(found) == {A30.uuid}
    free, closed = read_inventory(found).gpus
    assert (free.usable, free.health, closed.usable) == (True, "ok", False)
    assert "processes" in closed.health
    # Taints of others, and odd ones.
    found[0]["spec"]["devices"][1]["taints"] = [
        {"key": "example.org/x", "value": "in-use"},
        "in-use",
        {"key": "gpushare.kubernetes/unusable"},
    ]
    assert in_use(found) == frozenset()
    assert read_inventory(found).gpus[1].usable


def test_a_gpu_without_a_unit_is_no_device_and_a_node_without_gpus_has_an_empty_slice() -> None:
    (one,) = made(replace(T4, units=0), replace(A30, uuid="GPU-404966e9_8716"))
    assert one["spec"]["devices"] == []


@pytest.mark.parametrize(("number", "sizes"), [(64, [64]), (65, [64, 1]), (112, [64, 48])])
def test_many_instances_are_several_slices_of_one_pool(number: int, sizes: list[int]) -> None:
    found = made(*(replace(T4, index=10000 + place, uuid=f"MIG-{place:032}") for place in range(number)), generation=3)
    assert [len(one["spec"]["devices"]) for one in found] == sizes
    assert {json.dumps(one["spec"]["pool"]) for one in found} == {
        json.dumps({"name": "gpu1", "generation": 3, "resourceSliceCount": len(sizes)})
    }
    names = [device["name"] for one in found for device in one["spec"]["devices"]]
    assert len(set(names)) == number
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 63 for name in names)


def test_words_of_a_model_match_as_with_the_extender() -> None:
    """The selector of a claim looks for `-<words>-`. What it finds is what the annotation finds with the extender."""
    models = ["NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA A10", "A100 1g.10gb", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "a--b"]
    asked = ["A100", "A10", "Tesla-V100", "T4", "tesla t4", "1g.10gb", "PRO 6000", "00", "nvidia", "edition"]
    for model in models:
        for name in asked:
            looked = f"-{'-'.join(re.findall('[a-z0-9]+', name.lower()))}-"
            assert (looked in words(model)) == Rules(models=(name,)).accept("", [model]), (model, name)


def test_a_long_model_is_cut_between_words() -> None:
    rng = random.Random(1)
    for _ in range(200):
        model = " ".join("x" * rng.randrange(1, 40) for _ in range(rng.randrange(1, 9)))
        text = words(model)
        assert len(text) <= 64
        assert text.startswith("-")
        assert text.endswith("-")


def test_what_the_api_server_adds_is_no_difference() -> None:
    wanted = made(replace(T4, health="XID 79"), A30)
    (found,) = made(replace(T4, health="XID 79"), A30, generation=9)
    found["metadata"].update(uid="x", resourceVersion="5")
    found["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-11-29T10:00:00Z"
    assert not changes(wanted, [found])
    assert changes(wanted, [])
    assert changes(wanted, made(T4, A30))
    assert changes(wanted, [found, {**found, "metadata": {"name": "gpu1-gpushare.kubernetes-1"}}])
    found["metadata"]["ownerReferences"][0]["uid"] = "of a node before"
    assert changes(wanted, [found])


@pytest.mark.parametrize("unit", UNITS)
def test_an_inventory_is_read_back_from_its_slices(unit: str) -> None:
    gpus = [replace(T4, health="XID 79: it has fallen off the bus", cordoned=True), replace(A30, cordoned=True)]
    gpus += [replace(T4, index=index, uuid=f"GPU-{index:032}", pci="", numa=None, units=index) for index in range(2, 80)]
    inventory = Inventory(UNITS[unit], tuple(replace(gpu, pci=gpu.pci.lower()) for gpu in gpus), strategy="cdi", isolation="watch")
    assert read_inventory(reversed(slices("gpu1", "node-uid", inventory, 3))) == inventory


def test_a_gpu_of_one_unit_says_what_the_unit_is() -> None:
    assert read_inventory(slices("gpu1", "uid", Inventory(UNITS["64MiB"], (replace(T4, units=1),)), 1)).unit == UNITS["64MiB"]
    assert read_inventory(made()).gpus == ()


def test_of_a_pool_that_is_written_anew_the_newest_part_counts() -> None:
    assert [gpu.index for gpu in read_inventory([*made(T4, generation=1), *made(A30, generation=2)]).gpus] == [1]


@pytest.mark.parametrize(
    ("field", "value"), [("value", "a lot"), ("value", "-1Gi"), ("value", f"{2**70}"), ("requestPolicy", {"validRange": {"step": "3Gi"}})]
)
def test_memory_that_cannot_be_is_told(field: str, value: object) -> None:
    (one,) = made(T4, A30)
    one["spec"]["devices"][0]["capacity"]["memory"][field] = value
    with pytest.raises(ReportError, match="memory"):
        read_inventory([one])


@pytest.mark.parametrize(("name", "value"), [("index", {"int": -1}), ("minor", {"int": True}), ("index", {"int": 2**63})])
def test_numbers_that_cannot_be_are_told(name: str, value: dict[str, Any]) -> None:
    (one,) = made(T4)
    one["spec"]["devices"][0]["attributes"][name] = value
    with pytest.raises(ReportError, match=name):
        read_inventory([one])


def test_a_node_has_no_more_gpus_than_a_node_has() -> None:
    many = made(*(replace(T4, index=index, uuid=f"GPU-{index:032}") for index in range(129)))
    with pytest.raises(ReportError, match="129 devices"):
        read_inventory(many)


def test_the_device_name_stays_when_the_index_changes() -> None:
    assert device_name(replace(T4, index=5).uuid) == "gpu-6406b1ff-e486-da64-8a09-584683bdfe67"
