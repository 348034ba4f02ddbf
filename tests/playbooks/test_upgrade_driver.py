# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""playbooks/upgrade_driver.yml through Ansible itself: after which failure the next batch does not begin, what is reported of each host,
and when nodes are made schedulable again. The roles are stand-ins that say their names; and how the role tells the machine that Ansible
runs on."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._subjects.rows import followers

from playbooks.play import ROOT, play

# As inventory.yml does. A play's keywords see the hosts of a group only after a play before them.
SORTING = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.group_by": {"key": "gpushare_gpu_nodes"}}]}
DEAD = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


def stand_in(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Instead of a role, under any condition: whether the host answers, whether it is to fail here, and a line with its name."""
    role = task.get("ansible.builtin.include_role")
    if role is None:
        return [task]
    if "'followers'" in task.get("loop", ""):
        rows = followers({"gpushare_toolkit_state": "managed"}.get)
        includes = [{"name": f"gpushare.kubernetes.{row['role']}", "tasks_from": row["tasks"]} for row in rows]
        return [made for each in includes for made in stand_in({"ansible.builtin.include_role": each})]
    name = ":".join([role["name"].rpartition(".")[2], *([role["tasks_from"]] if "tasks_from" in role else [])])
    seen = "{{ __verify_hosts | default([]) | sort | join('+') }}"
    made: list[dict[str, Any]] = [
        *([{"ansible.builtin.ping": {}}] if name == "nvidia_driver" else []),
        {"ansible.builtin.fail": {"msg": f"{name} as planned."}, "when": f"broken | default('') == '{name}'"},
        {"ansible.builtin.debug": {"msg": f"DID={{{{ inventory_hostname }}}} {name} {seen}="}},
    ]
    return [{**one, **{key: task[key] for key in ("vars",) if key in task}} for one in made]


def upgrade(folder: Path, hosts: dict[str, dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    plays = yaml.safe_load((ROOT / "playbooks/upgrade_driver.yml").read_text())
    (change,) = [one for one in plays if one.get("serial")]
    block = change["tasks"][0]
    for part in ("block", "rescue", "always"):
        block[part] = [made for task in block[part] for made in stand_in(task)]
    (folder / "play.yml").write_text(json.dumps([SORTING, change]))
    return play(folder, folder / "play.yml", {"gpu_nodes": hosts}, gpushare_driver_state="managed", gpushare_serial=[1, 2])


def did(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.strip() for line in re.findall("DID=(.*?)=", done.stdout)]


NAMES = ("gpu1", "gpu2", "gpu3", "gpu4", "gpu5")


def test_each_node_is_proven_by_a_pod_before_it_is_schedulable_and_before_the_next_batch(tmp_path: Path) -> None:
    done = upgrade(tmp_path, {name: {} for name in NAMES[:3]})
    assert done.returncode == 0, done.stdout + done.stderr
    steps = did(done)
    assert [one for one in steps if one.startswith("gpu1")] == [
        "gpu1 nvidia_driver",
        "gpu1 nvidia_container_toolkit:main",
        "gpu1 nvidia_driver:prove",
        "gpu1 verify gpu1",
        "gpu1 nvidia_driver:uncordon_working",
    ]
    first = steps.index("gpu1 nvidia_driver:uncordon_working")
    assert {one.split()[0] for one in steps[: first + 1]} == {"gpu1"}
    assert {"gpu2 verify gpu2+gpu3", "gpu3 verify gpu2+gpu3"} <= set(steps[first:])


@pytest.mark.parametrize("where", ["nvidia_driver", "nvidia_driver:prove", "verify"])
def test_a_failure_stops_the_run_after_its_batch_and_whether_its_driver_works_is_asked(tmp_path: Path, where: str) -> None:
    done = upgrade(tmp_path, {name: {"broken": where} if name == "gpu2" else {} for name in NAMES})
    assert done.returncode == 2
    assert f"The driver of gpu2 is not as required: {where} as planned." in done.stdout
    assert "Hosts with the new driver: gpu1, gpu3. Hosts that have not finished: gpu2." in done.stdout
    assert "Hosts that were not changed: gpu4, gpu5." in done.stdout
    steps = did(done)
    assert {"gpu1 nvidia_driver:uncordon_working", "gpu2 nvidia_driver:uncordon_working", "gpu3 nvidia_driver:uncordon_working"} <= set(
        steps
    )
    assert not [one for one in steps if one.startswith(("gpu4", "gpu5"))]
    if where != "verify":
        assert "gpu3 verify gpu3" in steps, "the host that failed is judged with the others"


SMI = {"found": "Failed to initialize NVML: Driver/library version mismatch", "cure": "reboot the host"}


@pytest.mark.parametrize(
    ("begun", "health", "schedulable"),
    [
        (True, {"problem": None}, True),
        (True, {"problem": SMI}, False),
        (True, {"failed": True, "msg": "the module failed"}, False),
        (True, {}, False),
        # The drain has failed: the driver is as it was, whatever that is.
        (False, {"skipped": True}, True),
    ],
)
def test_a_node_whose_driver_does_not_work_after_the_change_stays_cordoned(
    tmp_path: Path, begun: bool, health: dict[str, Any], schedulable: bool
) -> None:
    (ask, *tasks) = yaml.safe_load((ROOT / "roles/nvidia_driver/tasks/uncordon_working.yml").read_text())
    assert "gpushare.kubernetes.nvidia_smi_info" in ask
    told = [{"ansible.builtin.set_fact": {"__nvidia_driver_health": health}}]
    for task in tasks:
        if task.pop("ansible.builtin.include_tasks", None) == "uncordon.yml":
            task["ansible.builtin.debug"] = {"msg": "UNCORDONED"}
        if options := task.pop("gpushare.kubernetes.gpushare_node", None):
            task["ansible.builtin.debug"] = {"msg": f"{options['what']} {options['node']}: {options['reason']}"}
            del task["delegate_to"], task["until"]
    variables = yaml.safe_load((ROOT / "roles/nvidia_driver/vars/main.yml").read_text())
    variables["__nvidia_driver_node"] = {"node_name": "node-1"}
    variables |= {"__nvidia_driver_headers_installed": {"skipped": True}} if begun else {}
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "vars": variables, "tasks": told + tasks}]))
    done = play(tmp_path, tmp_path / "play.yml", {"gpu_nodes": {"gpu1": {}}})
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("UNCORDONED" in done.stdout) is schedulable
    assert ("The node node-1 stays cordoned. Its driver does not work" in done.stdout) is not schedulable
    assert ("cordon node-1: Its driver does not work after the change: " in done.stdout) is not schedulable
    if health.get("problem"):
        assert done.stdout.count("Driver/library version mismatch. reboot the host.") == 2, "in the report and on the node"


def test_everything_is_checked_before_the_first_node_is_drained() -> None:
    """With the permissions that the playbook itself gives, or preflight would reject what it is run for."""
    first, change, *_rest = yaml.safe_load((ROOT / "playbooks/upgrade_driver.yml").read_text())
    assert first["ansible.builtin.import_playbook"] == "preflight.yml"
    (role,) = [task for task in change["tasks"][0]["block"] if task["name"] == "Change the driver"]
    given = {name: value for name, value in role["vars"].items() if not name.startswith("__")}
    assert first["vars"] == given


def test_a_host_that_cannot_be_reached_stops_the_run_after_its_batch(tmp_path: Path) -> None:
    """For Ansible it has not failed, and max_fail_percentage does not count it."""
    done = upgrade(tmp_path, {name: DEAD if name == "gpu2" else {} for name in NAMES})
    assert done.returncode != 0
    assert "A host of this batch cannot be reached." in done.stdout
    assert "Hosts with the new driver: gpu1, gpu3. Hosts that have not finished: gpu2." in done.stdout
    assert "Hosts that were not changed: gpu4, gpu5." in done.stdout
    assert not [one for one in did(done) if one.startswith(("gpu4", "gpu5"))]


def test_a_host_whose_driver_nobody_manages_stops_the_run_untouched(tmp_path: Path) -> None:
    done = upgrade(tmp_path, {"gpu1": {"gpushare_driver_state": "present"}, "gpu2": {}})
    assert done.returncode == 2
    assert "gpushare_driver_state is present on gpu1, which must be managed" in done.stdout
    assert "Hosts that were not changed: gpu1, gpu2." in done.stdout
    assert "gpu1 nvidia_driver" not in did(done)


OWN_BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
OTHER = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("machine_id", "boot_id", "own"),
    [
        # Of a container on the same machine in which Ansible runs: another machine id, the same kernel.
        (OTHER, OWN_BOOT, True),
        ("", "11111111-2222-3333-4444-555555555555", True),
        (OTHER, "11111111-2222-3333-4444-555555555555", False),
        (OTHER, "", False),
    ],
)
def test_the_machine_that_ansible_runs_on_is_told_by_machine_and_boot(tmp_path: Path, machine_id: str, boot_id: str, own: bool) -> None:
    facts = {"info": {"machine_id": machine_id, "boot_id": boot_id}, "plan": {"version": "580.126.20"}}
    role = {"name": "gpushare.kubernetes.nvidia_driver", "tasks_from": "reboot_or_report"}
    tasks = [{"ansible.builtin.include_role": role, "vars": {"__nvidia_driver": facts, "__nvidia_driver_host": {"reboot": "why"}}}]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    # In check mode nothing is ever rebooted.
    done = play(tmp_path, tmp_path / "play.yml", {"gpu_nodes": {"gpu1": {}}}, "--check", gpushare_driver_reboot_ok=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("This is the machine that Ansible runs on, which is never rebooted." in done.stdout) is own


@pytest.mark.parametrize("variables", [{}, {"gpushare_driver_reboot_ok": True}])
def test_a_permission_that_the_command_line_denies_as_text_is_none(tmp_path: Path, variables: dict[str, Any]) -> None:
    facts = {"info": {"machine_id": OTHER, "boot_id": ""}, "plan": {"version": "580.126.20"}}
    role = {"name": "gpushare.kubernetes.nvidia_driver", "tasks_from": "reboot_or_report"}
    tasks = [{"ansible.builtin.include_role": role, "vars": {"__nvidia_driver": facts, "__nvidia_driver_host": {"reboot": "why"}}}]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    arguments = ("--check", "-e", "gpushare_driver_reboot_ok=false")
    done = play(tmp_path, tmp_path / "play.yml", {"gpu_nodes": {"gpu1": {}}}, *arguments, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Set gpushare_driver_reboot_ok: true to have it rebooted" in done.stdout


def test_a_host_on_which_processes_began_after_the_plan_is_not_rebooted(tmp_path: Path) -> None:
    tasks = yaml.safe_load((ROOT / "roles/nvidia_driver/tasks/reboot_now.yml").read_text())
    (reboot,) = [place for place, task in enumerate(tasks) if "ansible.builtin.reboot" in task]
    (check,) = [task for task in tasks[:reboot] if "ansible.builtin.assert" in task]
    for processes, code in (([], 0), (["77 (python3 train.py) of pod team-a/train-0"], 2)):
        facts = {"__nvidia_driver_before_reboot": {"processes": processes}, "__nvidia_driver": {"plan": {"version": "580.126.20"}}}
        (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "vars": facts, "tasks": [check]}]))
        done = play(tmp_path, tmp_path / "play.yml", {"gpu_nodes": {"gpu1": {}}})
        assert done.returncode == code, done.stdout + done.stderr
    assert "the host was not rebooted: 1 processes use the GPUs now: 77 (python3 train.py) of pod team-a/train-0" in done.stdout
