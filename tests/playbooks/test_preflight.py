# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""playbooks/preflight.yml and its two actions through Ansible itself: every reason at once, and nothing written."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from blocks import lines
from playbooks.play import ROOT, Hosts, play
from unit.fakes.plugins.fake_fleet import NODES, make_fleet
from unit.fakes.plugins.fake_root import FakeRoot


def test_bad_input_is_rejected_with_every_reason_of_every_host(tmp_path: Path) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text("#!/bin/sh\necho 'ops is not in the sudoers file.' >&2\nexit 1\n")
    sudo.chmod(0o755)
    # As where nobody becomes root, also if this test runs as root.
    user = tmp_path / "python"
    user.write_text(f'#!/bin/sh\n{sys.executable} "$@" | sed \'s|"effective_uid": [0-9]*|"effective_uid": 1000|\'\n')
    user.chmod(0o755)
    done = play(
        tmp_path,
        ROOT / "playbooks/preflight.yml",
        {
            "kube_control_plane": {"cp1": {"gpushare_extender_prot": 5}},
            "gpu_nodes": {
                "gpu1": {"gpushare_memory_unit": "TiB"},
                "gpu2": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1},
                "gpu3": {"ansible_python_interpreter": "/nonexistent/python", "gpushare_api_server": "{{ nowhere }}"},
                "gpu4": {"gpushare_start_timeout": "soon", "gpushare_token_seconds": 7200},
                # Where this test runs as root, root is who it is already.
                "gpu5": {"ansible_become": True, "ansible_become_exe": str(sudo), "ansible_become_user": "nobody"},
                "gpu6": {"ansible_python_interpreter": str(user)},
                "gpu7": {"ansible_become": True, "ansible_become_exe": "/bin/false", "ansible_become_user": "nobody"},
            },
        },
        gpushare_extender_port=70000,
        gpushare_metrics_address="{{ '10.0.0.5' if inventory_hostname in ['gpu1', 'gpu6'] else '' }}",
        gpushare_metrics_token="{{ 'only' ~ '-for-a-test' }}",
    )
    assert done.returncode == 2, done.stdout + done.stderr
    wanted = [
        r"cp1: variables: found the variable gpushare_extender_prot, .* did you mean gpushare_extender_port\?",
        r"cp1: variables: found gpushare_extender_port: 70000; expected a number from 1 to 65535",
        r"gpu1: variables: found gpushare_memory_unit: 'TiB' .*must be one of: GiB, 256MiB, 128MiB, 64MiB, MiB",
        # Which of the two ssh says depends on what Ansible has sent by then.
        r"gpu2: unreachable: found no connection \(.*(refused|Broken pipe)",
        r"gpu3: facts: found a module that failed \(.*/nonexistent/python",
        r"gpu3: variables: found gpushare_api_server: .*nowhere",
        r"variables: found gpushare_token_seconds: its default on cp1, gpu1, .*; 7200 on gpu4; expected one value on every host",
        r"variables: found gpushare_metrics_token: one token on gpu1, gpu6; expected a token of its own for each host.*"
        r"set gpushare_metrics_token: .*\(inventory_hostname ~ vault_gpushare_metrics_secret\) \| ansible\.builtin\.hash",
        r"gpu4: variables: found gpushare_start_timeout: 'soon' ",
        r"gpu5: become: found no way to root \(.*ops is not in the sudoers file",
        # ansible-core 2.18 does not say that it waited.
        r"gpu7: become: found (no way to root \(Premature end of stream waiting for become success|a module that printed nothing)"
        r".*ansible_become_method",
        r"gpu6: become: found modules that run as user id 1000; expected Ansible to become root there; correct ansible_become ",
    ]
    output = done.stdout + done.stderr
    told = lines(output)
    assert [line for line in wanted if not re.search(line, told)] == [], output
    # Each once, not once more as JSON on one line.
    assert output.count("gpushare_extender_prot,") == 1, output
    assert "(1 host unreachable)" in output
    assert not re.search(r"changed=[1-9]", done.stdout)


def test_the_role_includes_each_plan_and_hands_the_clusters_answers_to_the_verdict() -> None:
    tasks = yaml.safe_load((ROOT / "roles/preflight/tasks/main.yml").read_text())
    (plans,) = [task for task in tasks if "ansible.builtin.include_role" in task]
    assert plans["loop"] == "{{ query('gpushare.kubernetes.subjects', 'plans', facts=__preflight_facts) }}"
    assert {"ansible.builtin.import_tasks": "control_planes.yml", "name": "Ask each control plane about the cluster"} in tasks
    asked = {task["register"]: task for task in yaml.safe_load((ROOT / "roles/preflight/tasks/control_planes.yml").read_text())}
    assert "gpushare.kubernetes.gpushare_api" in asked["__preflight_api"]
    assert tasks[-2]["gpushare.kubernetes.gpushare_judge"]["answers"] == "{{ __preflight_api.results }}"


def test_only_a_node_whose_kubelet_runs_is_noted_for_the_roles(tmp_path: Path) -> None:
    """The others are what preflight was told to accept."""
    kubelet = {"running": True, "root": "/var/lib/kubelet", "version": "v1.36.3"}
    found: dict[str, Any] = {
        "gpu1": {"node_name": "gpu1", "facts": {"kubelet": kubelet}},
        "stopped": {"node_name": "stopped", "facts": {"kubelet": {**kubelet, "running": False}}},
        "nameless": {"node_name": None, "facts": {"kubelet": {**kubelet, "running": False}}},
        "unreachable": {"node_name": None, "facts": {}},
        "timed-out": {"failed": True, "msg": "timed out"},
    }
    note = yaml.safe_load((ROOT / "roles/preflight/tasks/main.yml").read_text())[-1]
    told = {"ansible.builtin.debug": {"msg": "NOTED={{ inventory_hostname }}="}, "when": "__gpushare_node is defined"}
    files = [str(ROOT / f"roles/preflight/{part}/main.yml") for part in ("defaults", "vars")]
    (tmp_path / "play.yml").write_text(
        yaml.safe_dump([{"hosts": "all", "gather_facts": False, "vars_files": files, "tasks": [note, told]}])
    )
    done = play(tmp_path, tmp_path / "play.yml", {"gpu_nodes": {name: {"__preflight_host": values} for name, values in found.items()}})
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall("NOTED=(.*?)=", done.stdout) == ["gpu1"]


@pytest.mark.parametrize("group", ["kube_control_plane", "gpu_nodes"])
def test_an_inventory_without_one_of_the_groups_is_rejected(tmp_path: Path, group: str) -> None:
    done = play(tmp_path, ROOT / "playbooks/preflight.yml", {group: {"h1": {}}})
    assert done.returncode == 2, done.stdout + done.stderr
    assert "has no host in the group" in done.stdout + done.stderr


def test_a_run_that_is_limited_to_one_host_finds_no_names_of_groups_that_differ(tmp_path: Path) -> None:
    hosts: Hosts = {"kube_control_plane": {"cp1": {}}, "gpu_nodes": {"gpu1": {}, "gpu2": {}}}
    done = play(tmp_path, ROOT / "playbooks/preflight.yml", hosts, "--limit", "gpu2")
    output = done.stdout + done.stderr
    assert "nothing was changed" in output, output
    assert "_group: " not in lines(output), output


ACTIONS = """
- hosts: all
  gather_facts: false
  tasks:
    - gpushare.kubernetes.gpushare_judge:
        what: host
        gpu_node: "{{ inventory_hostname in groups.gpu_nodes }}"
        control_plane: "{{ inventory_hostname in groups.kube_control_plane }}"
        root: "{{ root }}"
      register: found
    - gpushare.kubernetes.gpushare_judge:
        what: preflight
        hosts: "{{ ansible_play_hosts_all }}"
        result: found
        control_plane_group: kube_control_plane
        gpu_group: gpu_nodes
        accept: "{{ accept | default([]) }}"
        answers: "{{ cluster | default(omit) }}"
      run_once: true
"""


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")}


def fleet(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """A control plane and two GPU nodes that are fit."""
    roots = make_fleet(folder)
    return {"kube_control_plane": {"cp1": {"root": str(roots["cp1"])}}, "gpu_nodes": {name: {"root": str(roots[name])} for name in NODES}}


def test_a_fit_fleet_passes_and_not_one_byte_is_written(tmp_path: Path) -> None:
    hosts = fleet(tmp_path / "hosts")
    (tmp_path / "play.yml").write_text(ACTIONS)
    before = snapshot(tmp_path / "hosts")
    done = play(tmp_path, tmp_path / "play.yml", hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert snapshot(tmp_path / "hosts") == before
    assert not re.search(r"changed=[1-9]|failed=[1-9]", done.stdout)


def test_a_reason_that_is_accepted_is_a_warning(tmp_path: Path) -> None:
    hosts = fleet(tmp_path / "hosts")
    FakeRoot(tmp_path / "hosts/gpu2").process(60, "nvidia-device-plugin", namespace="pid:[7]")
    (tmp_path / "play.yml").write_text(ACTIONS)
    rejected = play(tmp_path, tmp_path / "play.yml", hosts)
    assert rejected.returncode == 2
    reason = "gpu2: managers: found NVIDIA device plugin on the host (process 60 (nvidia-device-plugin))"
    assert reason in lines(rejected.stdout)
    warned = play(tmp_path, tmp_path / "play.yml", hosts, accept=["managers"])
    assert warned.returncode == 0, warned.stdout + warned.stderr
    # ansible-core 2.18 breaks the lines of a warning.
    assert "[WARNING]: " + reason in " ".join((warned.stdout + warned.stderr).split())


def test_a_cluster_without_policies_is_accepted_by_the_inventory_alone(tmp_path: Path) -> None:
    hosts = fleet(tmp_path / "hosts")
    cluster = [{"item": "cp1", "nodes": ["cp1", *NODES], "version": "v1.29.4", "may_grant": True}]
    (tmp_path / "play.yml").write_text(ACTIONS)
    rejected = play(tmp_path, tmp_path / "play.yml", hosts, cluster=cluster)
    assert rejected.returncode == 2
    assert "cp1: policies: found Kubernetes v1.29.4" in lines(rejected.stdout)
    warned = play(tmp_path, tmp_path / "play.yml", hosts, cluster=cluster, gpushare_without_policies="yes")
    assert warned.returncode == 0, warned.stdout + warned.stderr
    assert "[WARNING]: cp1: policies: found Kubernetes v1.29.4" in warned.stdout + warned.stderr
    both = play(tmp_path, tmp_path / "play.yml", hosts, cluster=cluster, gpushare_without_policies=True, gpushare_overuse="evict")
    assert "expected 1.30 or newer; upgrade it, or set gpushare_overuse: report" in lines(both.stdout)


def test_the_next_kubeadm_rejects_an_older_configuration_of_the_cluster(tmp_path: Path) -> None:
    hosts = fleet(tmp_path / "hosts")
    kubeadm = {"version": "v1beta3", "feature_gates": []}
    cluster = [{"item": "cp1", "nodes": ["cp1", *NODES], "version": "v1.36.3", "may_grant": True, "kubeadm": kubeadm}]
    (tmp_path / "play.yml").write_text(ACTIONS)
    passed = play(tmp_path, tmp_path / "play.yml", hosts, cluster=cluster, gpushare_target_kubernetes="1.36")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    rejected = play(tmp_path, tmp_path / "play.yml", hosts, cluster=cluster, gpushare_target_kubernetes="1.37")
    assert rejected.returncode == 2
    assert "cp1: kubernetes: found a ClusterConfiguration v1beta3; expected one that kubeadm 1.37 reads" in lines(rejected.stdout)


def test_what_a_role_would_reject_is_a_reason_like_the_others(tmp_path: Path) -> None:
    hosts = fleet(tmp_path / "hosts")
    hosts["gpu_nodes"]["gpu1"]["__container_runtime"] = {"changed": False, "restarted": True}
    hosts["gpu_nodes"]["gpu2"]["__container_runtime"] = {
        "changed": False,
        "failed": False,
        "msg": "/etc/containerd/config.toml has version 1;\n upgrade it",
    }
    (tmp_path / "play.yml").write_text(ACTIONS)
    rejected = play(tmp_path, tmp_path / "play.yml", hosts)
    assert rejected.returncode == 2
    output = lines(rejected.stdout)
    assert "gpu2: runtime: found no plan for this part (/etc/containerd/config.toml has version 1; upgrade it)" in output
    assert "gpu1: runtime" not in output
