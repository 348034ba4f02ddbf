# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""site.yml by a user with sudo and a password: rejected without a way to root, installed without pipelining, silent with it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from blocks import lines
from e2e.checks import check_devices, check_runs
from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster, CommandError
from e2e.manifests import pod
from installer.site import Site, Untouched, differences
from inventory.conftest import MakeSite
from inventory.hosts import BASTION, BEHIND, GUEST, OPS, addresses, inventory, password, settings, written
from labs import Labs

BOTH = pytest.mark.parametrize("pipelining", [False, True], ids=["without pipelining", "with pipelining"])


def test_the_hosts_are_as_meant(untouched: Untouched, config: Path) -> None:
    cluster, known = untouched.cluster, addresses(untouched.cluster)

    def logs_in(*arguments: str) -> bool:
        command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", *arguments, "true"]
        return subprocess.run(command, timeout=60, capture_output=True, check=False).returncode == 0

    assert not logs_in(f"{OPS}@{known[BEHIND]}")
    assert logs_in("-J", f"{OPS}@{known[BASTION]}", f"{OPS}@{known[BEHIND]}")
    as_root = "sudo -S -p '' sh -c 'command -v systemctl kubectl; umask'"
    said = cluster.lab("exec", CONTROL_PLANE, "runuser", "-u", OPS, "--", "sh", "-c", as_root, stdin=f"{password(CONTROL_PLANE)}\n")
    assert said.split() == ["/bin/systemctl", "0077"]


@BOTH
def test_without_a_way_to_root_nothing_is_changed(untouched: Untouched, config: Path, tmp_path: Path, pipelining: bool) -> None:
    own = inventory(untouched.cluster, config)
    groups = own["all"]["children"]
    groups["kube_control_plane"]["hosts"][CONTROL_PLANE]["ansible_become_password"] = "wrong"
    groups["gpu_nodes"]["hosts"][GPU_NODES[0]]["ansible_user"] = GUEST
    del groups["gpu_nodes"]["hosts"][GPU_NODES[1]]["ansible_become_password"]
    site = Site(untouched.cluster, tmp_path, GPU_NODES, written(tmp_path, own), settings(tmp_path, pipelining=pipelining))
    with pytest.raises(CommandError) as rejected:
        site.play("site.yml")
    said = str(rejected.value)
    assert "nothing was changed" in said, said
    for words in (
        rf"{CONTROL_PLANE}: become: found no way to root \(.*Incorrect sudo password",
        rf"{GPU_NODES[0]}: become: found no way to root \(.*{GUEST} is not in the sudoers file",
        rf"{GPU_NODES[1]}: become: found no way to root \(.*Missing sudo password",
    ):
        assert re.search(words, lines(said)), (words, said)
    assert "Traceback" not in said
    assert differences(untouched.state, site.state()) == []


def test_site_installs_without_pipelining(site: MakeSite, labs: Labs) -> None:
    _results, output = site(False).play("site.yml")
    labs.has_been_installed()
    assert not re.search(r"(unreachable|failed)=[1-9]", output), output


def test_the_next_run_with_pipelining_changes_nothing(site: MakeSite) -> None:
    again, output = site(True).play("site.yml")
    assert again.changes() == {}, output


def test_verify_is_green_with_a_probe_on_every_node(site: MakeSite) -> None:
    _results, output = site(False).play("playbooks/verify.yml", "-e", "gpushare_verify_probe=always")
    assert not re.search(r"(unreachable|failed)=[1-9]", output), output


def test_a_pod_gets_its_gpu_on_every_node(cluster: Cluster) -> None:
    for node in GPU_NODES:
        cluster.create(pod(f"share-{node}", memory=2, node=node))
    for node in GPU_NODES:
        assert check_runs(cluster, f"share-{node}") == []
        assert check_devices(cluster, cluster.until_running(f"share-{node}")) == []
    cluster.clear()


def test_a_user_who_is_not_root_can_ask_who_shares_which_gpu(cluster: Cluster) -> None:
    cluster.on(CONTROL_PLANE, "install", "-m", "600", "-o", OPS, "/etc/kubernetes/admin.conf", f"/home/{OPS}/kubeconfig")
    ask = ("env", f"KUBECONFIG=/home/{OPS}/kubeconfig", "kubectl", "inspect", "gpushare")
    said = cluster.on(CONTROL_PLANE, "runuser", "-u", OPS, "--", *ask)
    assert all(node in said for node in GPU_NODES), said
