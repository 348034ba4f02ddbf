# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""playbooks/site.yml: in which order it works, and gpushare_serial and gpushare_max_fail_percentage, wherever an inventory sets them."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SORTING = {
    "hosts": "all",
    "gather_facts": False,
    "tasks": [{"ansible.builtin.group_by": {"key": "gpushare_gpu_nodes"}, "when": "inventory_hostname is match('gpu')"}],
}
BUILT = "python_environment:{{ 'main' if gpushare_prerequisites | default('present') == 'managed' else 'build' }}"
#: The parts of site.yml for daemons that are services.
PARTS = ("control_planes.yml", "gpu_nodes.yml", "finish.yml")
#: What a batch may include.
ALL_STEPS = (
    *("take_over:operator", "nvidia_driver:main", "nvidia_container_toolkit:main", "container_runtime:main"),
    *("kubelet:main", "kubelet:labels", "mps:main", "device_plugin:serve", "device_plugin:from_pod", "device_plugin:to_pod"),
    *("python_environment:switch", "verify:after_upgrade"),
)
#: With which a batch of services includes all that it may include.
EVERYTHING = {
    "gpushare_driver_state": "managed",
    "gpushare_gpu_operator": "patch",
    "gpushare_isolation": "mps",
    "__site_prove": True,
    "ansible_connection": "local",
}
TASKS = [
    {"ansible.builtin.debug": {"msg": "batch {{ ansible_play_batch | join('+') }}."}, "run_once": True},
    {"ansible.builtin.fail": {"msg": "as planned"}, "when": "inventory_hostname in broken | default([])"},
]


def plays(playbook: str) -> list[dict[str, Any]]:
    """The plays of a playbook, and those of the playbooks that it imports and that only it and take_over.yml are made of."""
    found: list[dict[str, Any]] = []
    for play in yaml.safe_load((ROOT / f"playbooks/{playbook}.yml").read_text()):
        imported = play.get("ansible.builtin.import_playbook")
        found += plays(imported.removesuffix(".yml")) if imported in PARTS else [play] if "hosts" in play else []
    return found


def tasks_of(play: dict[str, Any]) -> list[dict[str, Any]]:
    """Its tasks, also those of blocks and of files, but not of those that only a change of the mode or a cluster of pods has."""
    return [each for task in play["tasks"] for each in inside(task)]


def inside(task: dict[str, Any]) -> list[dict[str, Any]]:
    file = task.get("ansible.builtin.import_tasks", task.get("ansible.builtin.include_tasks", ""))
    if Path(file).name == "gpu_nodes.yml":
        return [each for one in batch_block() for each in inside(one)]
    return [each for one in task["block"] for each in inside(one)] if "block" in task else [task]


def roles_of(play: dict[str, Any]) -> list[str]:
    """The roles that it includes, in their order, each with its entry point if it is not main; those of the table of subjects always."""
    included = [role for task in tasks_of(play) for role in includes(task)]
    return [":".join([role["name"].rpartition(".")[2], *([role["tasks_from"]] if "tasks_from" in role else [])]) for role in included]


def includes(task: dict[str, Any]) -> list[dict[str, Any]]:
    """What it includes of roles; for a loop over steps of a batch, each of them."""
    if "__site_subject" in task.get("loop_control", {}).values():
        rows = (row.split(":") for row in all_steps()[task["name"]])
        return [{"name": f"gpushare.kubernetes.{role}", "tasks_from": tasks} for role, tasks in rows]
    return [task["ansible.builtin.include_role"]] if "ansible.builtin.include_role" in task else []


def batch_block() -> list[dict[str, Any]]:
    (whole,) = yaml.safe_load((ROOT / "playbooks/tasks/gpu_nodes.yml").read_text())
    return [{**task, "vars": whole["vars"]} for task in whole["block"]]


@functools.cache
def all_steps() -> dict[str, list[str]]:
    """The steps of each loop of a batch that includes everything."""
    with tempfile.TemporaryDirectory() as folder:
        return {task["name"]: steps(Path(folder), {"gpu": EVERYTHING}, tasks=(task,))["gpu"] for task in batch_block()}


def steps(
    folder: Path, hosts: dict[str, dict[str, Any]], *arguments: str, tasks: Sequence[dict[str, Any]] | None = None
) -> dict[str, list[str]]:
    """What a batch includes on hosts with these variables, each as "role:tasks", in the order in which Ansible runs it there."""
    done_by = "{{ inventory_hostname }}={{ __site_subject.role }}:{{ __site_subject.tasks }}="
    (folder / "step.yml").write_text(yaml.safe_dump([{"ansible.builtin.debug": {"msg": f"STEP={done_by}"}}]))
    told = []
    for task in batch_block() if tasks is None else tasks:
        # One file for each step, as each has a role of its own.
        file = f"{folder}/{{{{ __site_subject.role }}}}-{{{{ __site_subject.tasks }}}}.yml"
        told.append({**{key: task[key] for key in ("loop", "loop_control", "vars")}, "ansible.builtin.include_tasks": file})
    for step in ALL_STEPS:
        (folder / f"{step.replace(':', '-')}.yml").write_text((folder / "step.yml").read_text())
    play = {"hosts": "all", "gather_facts": False, "tasks": told}
    done = run(folder, {"all": {"vars": {"ansible_connection": "local"}, "hosts": hosts}}, [play], *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = {host: [] for host in hosts}
    for host, step in re.findall(r'"msg": "STEP=(\w+)=(\S+)="', done.stdout):
        found[host].append(step)
    return found


def test_a_control_plane_that_fails_stops_the_run_before_the_next_one() -> None:
    found: dict[str, Any] = {}
    for play in plays("site"):
        for role in roles_of(play):
            found.setdefault(role, (play["hosts"], play.get("serial"), play.get("any_errors_fatal")))
    planes, nodes = "gpushare_control_planes", "gpushare_gpu_nodes"
    assert found["extender"] == found["scheduler"] == (planes, 1, True)
    assert found["admission"] == (f"{planes}:{nodes}", None, True)
    # In this order: rights before accounts, control planes before GPU nodes, and what nobody stands on last.
    assert list(found) == [
        *("admission", BUILT, "extender", "scheduler"),
        "take_over:operator",
        *("nvidia_driver:main", "nvidia_container_toolkit:main", "container_runtime:main"),
        *("kubelet:main", "mps:main", "device_plugin:serve"),
        *("python_environment:switch", "verify:after_upgrade"),
        *("admission:report", "kubectl_inspect", "dashboard", "verify"),
    ]


def gpu_play() -> dict[str, Any]:
    """The play that changes the GPU nodes, with other tasks."""
    (play,) = yaml.safe_load((ROOT / "playbooks/gpu_nodes.yml").read_text())
    return {**play, "become": False, "tasks": TASKS}


def batches(folder: Path, group_vars: dict[str, Any], *arguments: str) -> list[str]:
    """The batches that begin, each as "gpu1+gpu2"."""
    hosts: dict[str, dict[str, Any]] = {name: {} for name in ("gpu1", "gpu2", "gpu3", "gpu4")}
    inventory = {
        "all": {"vars": {"ansible_connection": "local"}, "hosts": {"cp1": {}}, "children": {"gpu": {"hosts": hosts, "vars": group_vars}}}
    }
    done = run(folder, inventory, [SORTING, gpu_play()], *arguments)
    assert done.returncode == (2 if "broken" in group_vars else 0), done.stdout + done.stderr
    return re.findall(r"batch (\S+)\.", done.stdout)


def run(folder: Path, inventory: dict[str, Any], plays_: list[dict[str, Any]], *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (folder / "play.yml").write_text(yaml.safe_dump(plays_, sort_keys=False))
    return subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", folder / "hosts.yml", folder / "play.yml", *arguments],
        env=os.environ
        | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCAL_TEMP": str(folder / "tmp")}
        # As an ansible.cfg may have it: the next batch would begin whatever became of the one before.
        | {"ANSIBLE_STRATEGY": "free"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("group_vars", "arguments", "wanted"),
    [
        # By default a canary, and a failure stops the run.
        ({}, (), ["gpu1", "gpu2", "gpu3", "gpu4"]),
        ({"broken": ["gpu2"]}, (), ["gpu1", "gpu2"]),
        ({"gpushare_serial": "100%"}, (), ["gpu1+gpu2+gpu3+gpu4"]),
        ({"gpushare_serial": 2}, (), ["gpu1+gpu2", "gpu3+gpu4"]),
        ({"gpushare_serial": [1, "50%"]}, (), ["gpu1", "gpu2+gpu3", "gpu4"]),
        ({}, ("-e", "gpushare_serial=3"), ["gpu1+gpu2+gpu3", "gpu4"]),
        ({"gpushare_serial": 1}, ("--limit", "gpu3"), ["gpu3"]),
        ({"gpushare_serial": 1}, ("--limit", "cp1"), []),
        # A failed batch stops the run only where the percentage says so.
        ({"gpushare_serial": 2, "gpushare_max_fail_percentage": 100, "broken": ["gpu1"]}, (), ["gpu1+gpu2", "gpu3+gpu4"]),
        ({"gpushare_serial": 2, "gpushare_max_fail_percentage": 0, "broken": ["gpu1"]}, (), ["gpu1+gpu2"]),
        ({"gpushare_serial": 2, "gpushare_max_fail_percentage": 50, "broken": ["gpu1"]}, (), ["gpu1+gpu2", "gpu3+gpu4"]),
    ],
)
def test_batches(tmp_path: Path, group_vars: dict[str, Any], arguments: tuple[str, ...], wanted: list[str]) -> None:
    assert batches(tmp_path, group_vars, *arguments) == wanted


def test_a_node_is_configured_unless_preflight_has_planned_that_nothing_changes(tmp_path: Path) -> None:
    idle: dict[str, Any] = {"changed": False, "changes": False}
    toolkit, packages, runtime = ("__nvidia_container_toolkit", "__nvidia_container_toolkit_packages", "__container_runtime")
    # Also the driver that nobody manages: hosts of a batch must not differ in what they loop over.
    everything = ["nvidia_driver:main", "nvidia_container_toolkit:main", "container_runtime:main"]
    nodes: dict[str, tuple[list[str], dict[str, Any]]] = {
        "idle": ([], {}),
        "managed": ([], {packages: idle}),
        # With CDI, the container runtime is left as it is.
        "skipped": ([], {runtime: {"changed": False, "skipped": True}}),
        "packages": (everything, {packages: {**idle, "changes": True}}),
        "toolkit": (everything, {toolkit: {**idle, "changes": True, "strategy": "cdi", "mps": []}}),
        "runtime": (everything, {runtime: {**idle, "changes": True}}),
        # What preflight was told to accept.
        "failed": (everything, {toolkit: {"changed": False, "failed": True, "msg": "why", "strategy": "cdi", "mps": []}}),
        "driver": (everything, {"gpushare_driver_state": "absent"}),
        "template": (everything, {"gpushare_driver_state": "{{ 'man' ~ 'aged' }}"}),
        "taken_over": (everything, {"__site_always": True}),
    }
    known = {toolkit: {**idle, "strategy": "cdi", "mps": []}, runtime: idle, **SETTLED}
    found = steps(tmp_path, {name: {**known, **values} for name, (_due, values) in nodes.items()})
    # It is the same on all hosts, or preflight rejects it.
    found |= steps(tmp_path, {"operator": {**known, "gpushare_gpu_operator": "patch"}})
    nodes["operator"] = (["take_over:operator", *everything], {})
    assert found == {name: [*due, "kubelet:labels", "device_plugin:serve"] for name, (due, _values) in nodes.items()}


SETTLED: dict[str, Any] = {
    "__gpushare_node": {"kubelet": {"version": "v1.36.3"}},
    "__python_environment": {"changed": False, "linked": True},
}


def test_a_batch_includes_what_its_hosts_need_and_nothing_else(tmp_path: Path) -> None:
    """Each further include would be a process of the controller for each host, whether or not the host leaves it out."""
    idle = {"changed": False, "changes": False}
    known = {"__nvidia_container_toolkit": {**idle, "strategy": "cdi", "mps": []}, "__container_runtime": idle, **SETTLED}
    pods = {"gpushare_deploy_mode": "kubernetes"}
    nodes: dict[str, tuple[str, dict[str, Any]]] = {
        "settled": ("kubelet:labels device_plugin:serve", {}),
        "old": ("kubelet:main device_plugin:serve", {"__gpushare_node": {"kubelet": {"version": "v1.25.16"}}}),
        "without_version": ("kubelet:main device_plugin:serve", {"__gpushare_node": {"kubelet": {"version": None}}}),
        "mps": ("kubelet:labels mps:main device_plugin:serve", {"gpushare_isolation": "mps"}),
        # Control daemons that are there, and must go.
        "former": (
            "kubelet:labels mps:main device_plugin:serve",
            {"__nvidia_container_toolkit": {**idle, "strategy": "cdi", "mps": ["GPU-1"]}},
        ),
        # Nothing is known of it.
        "unplanned": (
            "nvidia_driver:main nvidia_container_toolkit:main container_runtime:main kubelet:main device_plugin:serve "
            "python_environment:switch",
            {"__nvidia_container_toolkit": {}, "__container_runtime": {}, "__gpushare_node": {"kubelet": {}}, "__python_environment": {}},
        ),
        "unlinked": ("kubelet:labels device_plugin:serve python_environment:switch", {"__python_environment": {"linked": False}}),
        "upgraded": ("kubelet:labels device_plugin:serve python_environment:switch verify:after_upgrade", {"__site_prove": True}),
        "from_pods": ("kubelet:labels device_plugin:from_pod python_environment:switch", {"__site_change_mode": True}),
        "to_pods": ("kubelet:labels device_plugin:to_pod", {**pods, "__site_change_mode": True}),
        "pods": ("kubelet:labels", pods),
    }
    hosts = {name: {**known, **values} for name, (_steps, values) in nodes.items()}
    assert {name: " ".join(found) for name, found in steps(tmp_path, hosts).items()} == {
        name: wanted for name, (wanted, _v) in nodes.items()
    }
    assert "verify:after_upgrade" not in steps(tmp_path, {"upgraded": hosts["upgraded"]}, "--check")["upgraded"]


def test_pods_on_hosts_of_kubeadm_are_a_matter_of_the_roles_for_hosts(tmp_path: Path) -> None:
    """And those of k3s and RKE2 are not, in no play."""
    hosts = {"cp1": "kubeadm", "gpu1": "kubeadm", "gpu2": "k3s", "gpu3": "rke2", "gpu4": ""}
    inventory = {
        "all": {
            "vars": {"ansible_connection": "local"},
            "children": {
                "gpushare_pods_control_planes": {"hosts": {"cp1": {}}},
                "gpushare_pods_gpu_nodes": {"hosts": {name: {} for name in hosts if name != "cp1"}},
            },
        }
    }
    tasks: list[dict[str, Any]] = [
        {
            "ansible.builtin.include_tasks": str(ROOT / "playbooks/tasks/group_pods.yml"),
            "vars": {"__site_distribution": f"{{{{ {hosts!r}[inventory_hostname] }}}}"},
        },
        {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }}: {{ group_names | join('+') }}."}},
    ]
    done = run(tmp_path, inventory, [{"hosts": "all", "gather_facts": False, "tasks": tasks}])
    found = dict(re.findall(r'"msg": "(\w+): (\S+)\."', done.stdout))
    assert found == {
        "cp1": "gpushare_control_planes+gpushare_pods_control_planes",
        "gpu1": "gpushare_gpu_nodes+gpushare_pods_gpu_nodes",
        "gpu2": "gpushare_pods_gpu_nodes+gpushare_rancher_gpu_nodes",
        "gpu3": "gpushare_pods_gpu_nodes+gpushare_rancher_gpu_nodes",
        # Nobody has answered: the removal's own play says so.
        "gpu4": "gpushare_gpu_nodes+gpushare_pods_gpu_nodes",
    }, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("roots", "taken", "rejected"),
    [
        (("/data/kubelet", "/data/kubelet"), "/data/kubelet", ""),
        # One of them was not read.
        (("/data/kubelet", None), "/data/kubelet", ""),
        (("/data/kubelet", "/var/lib/kubelet"), "", "Found the root folders /data/kubelet and /var/lib/kubelet of the kubelets"),
    ],
)
def test_pods_on_hosts_get_the_root_of_their_kubelets(tmp_path: Path, roots: tuple[str | None, ...], taken: str, rejected: str) -> None:
    (judged,) = [play for play in plays("pods_planned") if play["name"] == "Judge the cluster before the first change"]
    tasks = {task["name"]: task for task in judged["tasks"]}
    included = yaml.safe_load((ROOT / "playbooks/tasks/in_cluster.yml").read_text())[0]["vars"]["gpushare_kubelet_root"]
    said = {"ansible.builtin.debug": {"msg": "ROOT={{ root }}="}, "vars": {"root": included}}
    hosts = {f"gpu{number}": {"__gpushare_host": {"kubelet_root": root or ""}} for number, root in enumerate(roots)}
    inventory = {"all": {"vars": {"ansible_connection": "local"}, "children": {"gpushare_gpu_nodes": {"hosts": hosts}}}}
    steps = [tasks["Stop if the kubelets have several root folders"], tasks["Note what the cluster's pods need"], said]
    done = run(tmp_path, inventory, [{"hosts": "all", "gather_facts": False, "vars": judged["vars"], "tasks": steps}])
    assert set(re.findall("ROOT=(.*?)=", done.stdout)) == ({taken} if taken else set()), done.stdout + done.stderr
    assert rejected in " ".join((done.stdout + done.stderr).split())


def test_every_play_has_the_strategy_that_its_safety_rests_on() -> None:
    """With `free`, run_once, any_errors_fatal and max_fail_percentage mean nothing."""
    files = [ROOT / "site.yml", *sorted((ROOT / "playbooks").glob("*.yml"))]
    found = {path.name: [play for play in yaml.safe_load(path.read_text()) if "hosts" in play] for path in files}
    assert sum(map(len, found.values())) > 30
    without = {name: [play["name"] for play in plays if play.get("strategy") != "ansible.builtin.linear"] for name, plays in found.items()}
    assert {name: plays for name, plays in without.items() if plays} == {}


def test_there_are_policies_before_there_is_an_account() -> None:
    """Also where only new GPU nodes are installed; and schedulers know the extender before a node offers units."""
    roles = [(play["hosts"], role) for play in plays("site") for task in tasks_of(play) for role in includes(task)]
    names = [(role["name"].split(".")[-1], role.get("tasks_from", "main")) for _hosts, role in roles]
    wanted = ["admission", "extender", "scheduler", "device_plugin"]
    order = [names.index((name, "serve" if name == "device_plugin" else "main")) for name in wanted]
    assert order == sorted(order)
    assert roles[order[0]][0] == "gpushare_control_planes:gpushare_gpu_nodes"
    # What people use is switched when the daemons run, on each host.
    assert (
        names.index(("python_environment", BUILT.partition(":")[2])) < order[1] < order[3] < names.index(("python_environment", "switch"))
    )
