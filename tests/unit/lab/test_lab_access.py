# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The inventory that the lab writes is what Ansible reads."""

from __future__ import annotations

import json
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader

from gpushare_lab.access import inventory_text
from gpushare_lab.spec import plan_nodes


@pytest.fixture
def inventory(tmp_path: Path) -> InventoryManager:
    nodes = plan_nodes({"gpu1": "2x16", "gpu2": "16+24"}, IPv4Network("10.231.0.0/24"))
    path = tmp_path / "inventory.yml"
    path.write_text(inventory_text(nodes, Path("/state dir/key"), Path("/state dir/known_hosts")))
    return InventoryManager(loader=DataLoader(), sources=[str(path)])


def test_groups(inventory: InventoryManager) -> None:
    groups = inventory.get_groups_dict()
    assert groups["kube_control_plane"] == ["cp1"]
    assert groups["gpu_nodes"] == ["gpu1", "gpu2"]


def test_all_control_planes_are_in_their_group() -> None:
    nodes = plan_nodes({"gpu1": "16"}, IPv4Network("10.231.0.0/24"), 3)
    text = inventory_text(nodes, Path("/k"), Path("/h"))
    assert [line.split(":")[0].strip() for line in text.splitlines() if "ansible_host" in line] == ["cp1", "cp2", "cp3", "gpu1"]


def test_every_host_is_reached_as_root_with_the_labs_own_key(inventory: InventoryManager) -> None:
    variables = inventory.groups["all"].get_vars()
    assert variables["ansible_user"] == "root"
    assert variables["ansible_python_interpreter"] == "/usr/bin/python3"
    assert variables["ansible_ssh_private_key_file"] == "/state dir/key"
    assert inventory.get_host("gpu2").vars["ansible_host"] == "10.231.0.12"


def test_the_labs_host_keys_are_the_only_ones_that_count_also_in_a_folder_with_a_space(inventory: InventoryManager) -> None:
    arguments = inventory.groups["all"].get_vars()["ansible_ssh_common_args"]
    assert "-o 'UserKnownHostsFile=\"/state dir/known_hosts\"'" in arguments
    assert "-o StrictHostKeyChecking=yes" in arguments


def test_the_text_is_plain_yaml_without_surprises() -> None:
    text = inventory_text(plan_nodes({"gpu1": "none"}, IPv4Network("10.231.0.0/24")), Path("/k"), Path("/h"))
    assert json.dumps("/k") in text
    assert text.endswith("        gpu1: {ansible_host: 10.231.0.11}\n")
