# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which node a dead host was, and that a living one is never taken for it."""

from __future__ import annotations

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import node_states
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import Known
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._removal.dead_nodes import choose

STATES = {"cp1": "True", "gpu1": "True", "gpu2": "Unknown", "gpu3": "False"}
ACCOUNTS = ["gpushare-device-plugin-gpu1", "gpushare-device-plugin-gpu2", "gpushare-device-plugin-gone"]


def host(name: str, node: str = "", address: str = "", hosts: tuple[str, ...] = ("cp1", "gpu1", "gpu2", "gpu3")) -> Known:
    return Known(name, address, node, hosts)


def stranger(name: str) -> Known:
    """A name that the inventory does not have."""
    return Known(name, "", name, ())


@pytest.mark.parametrize(
    ("asked", "node"),
    [
        (host("gpu2"), "gpu2"),
        (host("gpu3.example.org"), "gpu3"),
        (host("a", node="gpu3"), "gpu3"),
        (host("a", address="gpu2.example.org"), "gpu2"),
        (stranger("gone"), "gone"),
        (stranger("gpu3"), "gpu3"),
    ],
)
def test_the_node_of_a_dead_host_is_the_one_that_the_inventory_names(asked: Known, node: str) -> None:
    choice = choose([asked], STATES, ACCOUNTS)
    assert (choice.nodes, choice.rejections) == ((node,), ())


def test_a_node_that_is_ready_is_not_dead() -> None:
    choice = choose([host("gpu1"), host("gpu2")], STATES, ACCOUNTS)
    assert choice.nodes == ("gpu2",)
    (words,) = choice.rejections
    assert words.startswith("the node gpu1 is Ready, so gpu1 is not dead: run the playbook remove_node")


def test_a_ready_control_plane_of_that_name_is_not_dead_either() -> None:
    assert choose([stranger("cp1")], STATES, ACCOUNTS).rejections


@pytest.mark.parametrize("name", ["gpu9", "gpu", "*", "", "../gpu2", "GPU2"])
def test_a_name_that_the_cluster_does_not_have_is_no_node(name: str) -> None:
    assert choose([stranger(name)], STATES, ACCOUNTS).nodes == ()


def test_a_name_that_fits_two_nodes_is_rejected_until_the_inventory_says_which() -> None:
    states = {"gpu2": "Unknown", "gpu2.example.org": "Unknown"}
    choice = choose([host("gpu2.example.org")], states, [])
    assert choice.rejections == ("gpu2.example.org may be any of the nodes gpu2, gpu2.example.org: set gpushare_node_name for it",)
    assert choose([host("gpu2.example.org", node="gpu2")], states, []).nodes == ("gpu2",)
    # The domain of the other one is not the inventory's.
    assert choose([host("gpu2")], states, []).nodes == ("gpu2",)


def test_an_account_without_our_prefix_names_no_node() -> None:
    assert choose([stranger("gone")], {}, ["gone", "gpushare-extender"]).nodes == ()


def test_a_long_name_is_cut_in_a_rejection() -> None:
    long = "a" * 200
    (words,) = choose([Known("b" * 300, "", long, ())], {long: "True"}, []).rejections
    assert "b" * 81 not in words


def test_the_condition_ready_of_each_node() -> None:
    def node(name: str, *conditions: tuple[str, str]) -> dict[str, object]:
        return {"metadata": {"name": name}, "status": {"conditions": [{"type": kind, "status": value} for kind, value in conditions]}}

    assert node_states(
        [node("a", ("DiskPressure", "False"), ("Ready", "True")), node("b", ("Ready", "Unknown")), node("c"), {"metadata": {"name": "d"}}]
    ) == {"a": "True", "b": "Unknown", "c": "Unknown", "d": "Unknown"}
