# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A claim becomes GPUs, variables and a CDI spec; one that is not of this node is told what is wrong."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_report import HeldEntry
from gpushare_runtime.core.quantity import GIB, UNITS, Unit
from gpushare_runtime.dra.claims import (
    Claim,
    ClaimError,
    OtherUnitError,
    Part,
    cdi_spec,
    conflict,
    from_checkpoint,
    parse_claim,
    prepare,
    to_checkpoint,
)
from unit.fakes.runtime.dra.claims import A30, T4, claim

HERE = Inventory(GIB, (T4, A30))


def parsed(value: dict[str, Any], node: str = "gpu1", inventory: Inventory = HERE) -> Claim:
    return parse_claim(value, node, inventory)


def test_a_claim_of_a_limit() -> None:
    found = parsed(claim("c1", [(T4, "6Gi")], pods=["p1"]))
    assert found == Claim("c1", "default", "c1", (Part("gpu", T4.uuid, 6, "share-0"),), True, ("p1",))
    # Each container's own amount stands in its pod, since several containers share the claim.
    assert prepare(found, HERE).devices == {
        "c1-gpu": {
            "NVIDIA_VISIBLE_DEVICES": "void",
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_DEV": "15",
            "ALIYUN_COM_GPU_MEM_POD": "6",
        }
    }


def test_a_claim_of_several_gpus_and_one_that_a_user_wrote() -> None:
    found = parsed(claim("c1", [(A30, "4Gi"), (T4, "4Gi")], name="mine"))
    variables = prepare(found, HERE).devices["c1-gpu"]
    # By index, whatever the order of the allocation.
    assert (variables["ALIYUN_COM_GPU_MEM_IDX"], variables["ALIYUN_COM_GPU_MEM_DEV"]) == ("0", "15")
    assert variables["ALIYUN_COM_GPU_MEM_POD"] == variables["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8"


def test_each_request_of_a_claim_has_its_own_variables() -> None:
    value = claim("c1", [(T4, "15Gi"), (A30, "24Gi")], name="mine")
    value["status"]["allocation"]["devices"]["results"][1]["request"] = "b/alternative"
    found = prepare(parsed(value), HERE)
    assert {name: one["ALIYUN_COM_GPU_MEM_CONTAINER"] for name, one in found.devices.items()} == {"c1-gpu": "15", "c1-b.alternative": "24"}


def test_devices_of_other_drivers_are_theirs() -> None:
    value = claim("c1", [(T4, "6Gi")])
    other = {"driver": "gpu.nvidia.com", "pool": "gpu1", "device": "gpu-0", "request": "x"}
    value["status"]["allocation"]["devices"]["results"].append(other)
    assert [part.uuid for part in parsed(value).parts] == [T4.uuid]


def changed(path: str, value: object) -> dict[str, Any]:
    found = copy.deepcopy(claim("c1", [(T4, "6Gi")]))
    at: Any = found
    *above, last = path.split("/")
    for key in above:
        at = at[int(key) if key.isdigit() else key]
    at[last] = value
    return found


RESULT = "status/allocation/devices/results/0"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (changed("status", {}), "has no allocation: kube-scheduler has not allocated it"),
        (changed("status/allocation/devices/results", []), "has no GPU of gpushare.kubernetes"),
        (changed("status/allocation/devices/results", [{}] * 33), "more than 32 devices"),
        (changed(f"{RESULT}/pool", "gpu2"), "allocated in the pool 'gpu2', this node is gpu1"),
        (changed(f"{RESULT}/device", "gpu-of-before"), "has the GPU 'gpu-of-before', which is not in this node"),
        (changed(f"{RESULT}/consumedCapacity", {}), "adminAccess is not supported"),
        (changed(f"{RESULT}/consumedCapacity", {"memory": "1500Mi"}), "'1500Mi' of memory, not a multiple of the unit GiB"),
        (changed(f"{RESULT}/consumedCapacity", {"memory": "-1Gi"}), "not a multiple"),
        (changed(f"{RESULT}/consumedCapacity", {"memory": "x" * 500}), "is not a quantity"),
        (changed(f"{RESULT}/request", "../../etc"), "a request of the name '../../etc'"),
        (changed("metadata/uid", "../x"), "has the UID '../x'"),
        (claim("c1", [(T4, "6Gi")], pods=["p1", "p2"]), "is reserved for 2 users"),
        (claim("c1", [(T4, "6Gi")], pods=[]), "is reserved for 0 users"),
        (changed("status/reservedFor/0/uid", "../x"), "is reserved for 1 users"),
        (changed("status/reservedFor", [{"resource": "podgroups", "name": "g", "uid": "g"}]), "write resourceClaimTemplateName"),
        ({}, "has the UID ''"),
    ],
)
def test_what_cannot_be_prepared_here(value: dict[str, Any], said: str) -> None:
    with pytest.raises(ClaimError) as error:
        parsed(value)
    assert said in str(error.value)
    assert len(str(error.value)) < 700


def test_a_qualified_name_of_the_capacity_is_the_same() -> None:
    assert parsed(changed(f"{RESULT}/consumedCapacity", {"gpushare.kubernetes/memory": "2Gi"})).parts[0].units == 2


def test_what_others_have_left_is_enough_or_not() -> None:
    first, second = parsed(claim("c1", [(T4, "10Gi")])), parsed(claim("c2", [(T4, "5Gi")]))
    assert conflict(second, [first], HERE) == ""
    third = parsed(claim("c3", [(T4, "6Gi")]))
    why = conflict(third, [first], HERE)
    assert [word in why for word in ("GPU 0", "15 units", "16 would", "default/c1")] == [True] * 4
    gone = HeldEntry(T4.uuid, "p9", "default/p9", 1, "orphaned")
    why = conflict(second, [first], HERE, [gone])
    assert [word in why for word in ("16", "default/c1", "default/p9")] == [True] * 3
    # The same claim again is no second one.
    assert conflict(first, [first, second], HERE) == ""
    assert conflict(parsed(claim("c4", [(T4, "8Gi"), (T4, "8Gi")])), [], HERE).startswith("GPU 0")


def test_the_owner_of_a_pod_is_told_no_names_of_other_namespaces() -> None:
    """kubelet makes an Event of the sentence."""
    mine = parsed(claim("c1", [(T4, "15Gi")]))
    secret = [replace(mine, uid=uid, namespace="bank", name=f"payroll-{uid}") for uid in ("c2", "c3")]
    beside = [*secret, replace(mine, uid="c4", name="own")]
    left = [HeldEntry(T4.uuid, uid, name, 1, "orphaned") for uid, name in (("p8", "bank/payroll"), ("p9", ""), ("p7", "default/gone"))]
    assert "(others, default/own, processes" in conflict(mine, beside, HERE, left)
    assert "(bank/payroll-c2, bank/payroll-c3, default/own)" in conflict(mine, beside, HERE, left, everybody=True)


def test_a_gpu_that_fails_takes_no_new_claim() -> None:
    failed = Inventory(GIB, (replace(T4, health="XID 79"), A30))
    assert conflict(parsed(claim("c1", [(T4, "1Gi")])), [], failed).endswith("XID 79")
    # The scheduler knew of no cordon when it allocated: the pod may start.
    assert conflict(parsed(claim("c1", [(T4, "1Gi")])), [], Inventory(GIB, (replace(T4, cordoned=True), A30))) == ""


def test_the_cdi_spec_names_a_device_for_each_request() -> None:
    assert json.loads(cdi_spec({"b": {"Y": "2", "X": "1"}, "a": {}})) == {
        "cdiVersion": "0.5.0",
        "kind": "gpushare.kubernetes/claim",
        "devices": [{"name": "a", "containerEdits": {"env": []}}, {"name": "b", "containerEdits": {"env": ["X=1", "Y=2"]}}],
    }


def test_the_next_process_reads_what_this_one_wrote() -> None:
    written = [
        prepare(parsed(claim("c2", [(T4, "1Gi"), (A30, "2Gi")], name="mine")), HERE),
        prepare(parsed(claim("c1", [(T4, "6Gi")])), HERE),
    ]
    assert sorted(from_checkpoint(to_checkpoint(written, GIB), GIB), key=lambda one: one.claim.uid) == [written[1], written[0]]


MIB = UNITS["MiB"]
IN_MIB = Inventory(MIB, (replace(T4, units=T4.mib), replace(A30, units=A30.mib)))


@pytest.mark.parametrize(("before", "after", "units"), [(HERE, MIB, 6144), (IN_MIB, GIB, 6), (IN_MIB, UNITS["128MiB"], 48)])
def test_a_claim_keeps_its_memory_in_another_unit(before: Inventory, after: Unit, units: int) -> None:
    was = prepare(parsed(claim("c1", [(T4, "6Gi")]), inventory=before), before)
    (now,) = from_checkpoint(to_checkpoint([was], before.unit), after)
    assert now.claim == replace(was.claim, parts=(replace(was.claim.parts[0], units=units),))
    # A container that restarts has the variables of those beside it.
    assert now.devices == was.devices


def test_a_claim_that_another_unit_cannot_count_is_told() -> None:
    odd = prepare(parsed(claim("c1", [(T4, "1536Mi")]), inventory=IN_MIB), IN_MIB)
    with pytest.raises(OtherUnitError, match=r"^claim default/c1 .* 1536 MiB .* 1 GiB: "):
        from_checkpoint(to_checkpoint([odd], MIB), GIB)


def test_a_file_without_a_unit_is_in_the_units_of_now() -> None:
    written = [prepare(parsed(claim("c1", [(T4, "6Gi")])), HERE)]
    old = {key: part for key, part in json.loads(to_checkpoint(written, GIB)).items() if key != "unit"}
    assert from_checkpoint(json.dumps(old).encode(), GIB) == written


def test_whole_gpus_stay_whole_without_the_inventory_also_in_a_file_of_an_older_plugin() -> None:
    whole = prepare(parsed(claim("c1", [(T4, "15Gi")], name="mine")), HERE)
    part = prepare(parsed(claim("c2", [(A30, "8Gi")], name="mine")), HERE)
    of_limit = prepare(parsed(claim("c3", [(T4, "15Gi")])), HERE)
    assert [entry.claim.parts[0].whole for entry in (whole, part, of_limit)] == [True, False, False]
    written = json.loads(to_checkpoint([whole, part, of_limit], GIB))
    assert from_checkpoint(json.dumps(written).encode(), GIB) == [whole, part, of_limit]
    for entry in written["claims"]:
        del entry["whole"]
    assert from_checkpoint(json.dumps(written).encode(), GIB) == [whole, part, of_limit]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"v":2,"claims":[]}',
        b'{"v":1}',
        b'{"v":1,"claims":{}}{',
        b'{"v":1,"unit":"TiB","claims":[]}',
        b'{"v":1,"claims":[{"uid":"a"}]}',
        b'{"v":1,"claims":[{"uid":"../a","namespace":"n","name":"m","parts":[["gpu","u",1,""]],"of_limits":true,"pods":[],"devices":{}}]}',
        b'{"v":1,"claims":[{"uid":"a","namespace":"n","name":"m","parts":[],"of_limits":true,"pods":[],"devices":{}}]}',
        b"[" * 100_000,
        b" " * (4 * 1024 * 1024 + 1),
    ],
)
def test_a_file_that_is_none_of_ours(data: bytes) -> None:
    with pytest.raises(ClaimError):
        from_checkpoint(data, GIB)


def test_a_file_of_another_version_is_not_called_broken() -> None:
    with pytest.raises(ClaimError, match=r"^version 2 with 0 claims; expected 1"):
        from_checkpoint(b'{"v":2,"claims":[]}', GIB)
