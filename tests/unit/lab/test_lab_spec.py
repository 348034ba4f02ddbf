# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the lab's command line asks for becomes a plan of nodes, or an error that says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_lab.process import LabError
from gpushare_lab.spec import (
    SUBNET_POOL,
    check_control_planes,
    check_name,
    check_version,
    choose_subnet,
    endpoint,
    gpus_of_nodes,
    no_longer_wanted,
    parse_gpus,
    plan_nodes,
    pod_routes,
)


def test_the_gpus_of_a_node_are_those_asked_for_those_that_are_there_or_the_default() -> None:
    assert gpus_of_nodes(2, {}) == {"gpu1": "2x16", "gpu2": "16+24"}
    gpus = gpus_of_nodes(4, {"gpu1": "8"}, {"gpu1": "80", "gpu2": "48"})
    assert gpus == {"gpu1": "8", "gpu2": "48", "gpu3": "2x16", "gpu4": "2x16"}


@pytest.mark.parametrize(
    ("call", "values", "words"),
    [
        (lambda node: gpus_of_nodes(2, {node: "16"}), ["gpu3"], "GPUs for gpu3, but the GPU nodes are gpu1, gpu2"),
        (lambda count: gpus_of_nodes(count, {}), [0, 51], "GPU nodes: expected 1 to 50"),
        (check_control_planes, [0, 2, 4, 5], "control planes: expected 1 or 3"),
        (parse_gpus, ["2x16", "gpu0=16", "cp1=16", "gpu1=", "gpu1=16,,gpu2=16", ""], "expected NODE=GPUS"),
        (parse_gpus, ["gpu1=16,gpu1=24"], "gpu1 stands there twice"),
        (check_name, ["", "Demo", "1st", "a-", "-a", "a b", "a/b", "a" * 21], "instance name"),
        (check_version, ["1.36", "latest", "2.0.0", "1.36.3-x.0", "1.36.3-rc.0+k0s"], r"expected one like 1\.37\.2"),
        (choose_subnet, [[SUBNET_POOL]], "podman network ls"),
    ],
)
def test_what_cannot_be_is_rejected(call: Callable[[Any], object], values: list[Any], words: str) -> None:
    for value in values:
        with pytest.raises(LabError, match=words):
            call(value)


def test_gpus_are_named_by_node() -> None:
    assert parse_gpus("gpu1=2x16, gpu2=16+24:NVIDIA A10") == {"gpu1": "2x16", "gpu2": "16+24:NVIDIA A10"}


def test_a_version_may_have_a_v() -> None:
    assert check_version("v1.36.3") == check_version("1.36.3") == "1.36.3"


def test_each_node_has_its_own_address_and_pod_range() -> None:
    nodes = plan_nodes(gpus_of_nodes(3, {}), IPv4Network("10.231.7.0/24"))
    assert [(node.name, node.address, node.pod_range) for node in nodes] == [
        ("cp1", "10.231.7.10", "10.244.0.0/24"),
        ("gpu1", "10.231.7.11", "10.244.1.0/24"),
        ("gpu2", "10.231.7.12", "10.244.2.0/24"),
        ("gpu3", "10.231.7.13", "10.244.3.0/24"),
    ]
    assert [node.name for node in nodes if node.has_gpus] == ["gpu1", "gpu2", "gpu3"]


def test_a_node_without_a_gpu_is_a_gpu_node_all_the_same() -> None:
    (_, node) = plan_nodes({"gpu1": "none"}, IPv4Network("10.231.7.0/24"))
    assert node.has_gpus


def test_a_node_keeps_its_address_when_others_come() -> None:
    subnet = IPv4Network("10.231.0.0/24")
    few, many = (plan_nodes(gpus_of_nodes(count, {}), subnet) for count in (2, 50))
    assert many[: len(few)] == few


def test_several_control_planes_stand_before_the_gpu_nodes_and_move_none_of_them() -> None:
    subnet = IPv4Network("10.231.7.0/24")
    one, three = (plan_nodes(gpus_of_nodes(2, {}), subnet, planes) for planes in (1, 3))
    assert [(node.name, node.address) for node in three if node.is_control_plane] == [
        ("cp1", "10.231.7.10"),
        ("cp2", "10.231.7.102"),
        ("cp3", "10.231.7.103"),
    ]
    assert [node for node in three if node.name not in ("cp2", "cp3")] == one
    assert [node.name for node in three] == ["cp1", "cp2", "cp3", "gpu1", "gpu2"]


def test_no_address_and_no_pod_range_is_given_twice_in_the_largest_lab() -> None:
    subnet = IPv4Network("10.231.7.0/24")
    nodes = plan_nodes(gpus_of_nodes(50, {}), subnet, 3)
    addresses = [endpoint(subnet, 3), *(node.address for node in nodes)]
    assert len(set(addresses)) == len(addresses)
    assert len({node.pod_range for node in nodes}) == len(nodes)


def test_one_control_plane_needs_no_address_before_it() -> None:
    assert endpoint(IPv4Network("10.231.7.0/24"), 1) == ""


def test_nodes_that_a_test_has_made_are_not_the_labs_to_remove() -> None:
    nodes = plan_nodes(gpus_of_nodes(2, {}), IPv4Network("10.231.0.0/24"))
    assert no_longer_wanted(["cp1", "gpu1", "gpu2", "gpu3", "kwok-1", "made-00"], nodes) == ["gpu3"]


def test_routes_lead_to_the_other_nodes() -> None:
    nodes = plan_nodes(gpus_of_nodes(2, {}), IPv4Network("10.231.0.0/24"))
    assert pod_routes(nodes, nodes[1]) == "10.244.0.0/24 10.231.0.10\n10.244.2.0/24 10.231.0.12\n"


networks = st.integers(0, 255).flatmap(
    lambda octet: st.integers(17, 28).map(lambda bits: IPv4Network(f"10.231.{octet}.0/{bits}", strict=False))
)


@given(st.lists(networks, max_size=30))
def test_a_chosen_subnet_overlaps_nothing_that_is_taken(taken: list[IPv4Network]) -> None:
    free = [net for net in SUBNET_POOL.subnets(new_prefix=24) if not any(net.overlaps(other) for other in taken)]
    if free:
        assert choose_subnet(taken) == free[0]
    else:
        with pytest.raises(LabError, match="every /24"):
            choose_subnet(taken)
