# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The verdict through Ansible itself: what it prints, returns and writes, and when it fails the run."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._wheel import build_wheel

from blocks import lines
from playbooks.play import ROOT, play
from unit.fakes.plugins.verdict.evidence import World, finding, printed

SOURCE = ROOT / "files/gpushare_runtime"
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - gpushare.kubernetes.gpushare_judge:
        what: verify
        hosts: "{{ ansible_play_hosts_all }}"
        runtime: "{{ source }}"
        seen: looked
        cluster: looked_at_cluster
        probe: "{{ probe | default(false) }}"
        final: false
      run_once: true
      register: plan
    - ansible.builtin.debug:
        msg: "PLAN={{ plan | to_json }}="
      run_once: true
    - gpushare.kubernetes.gpushare_judge:
        what: verify
        hosts: "{{ ansible_play_hosts_all }}"
        runtime: "{{ source }}"
        seen: looked
        cluster: looked_at_cluster
        unproven: "{{ plan.unproven }}"
        report: "{{ report }}"
      run_once: true
"""


@pytest.fixture
def world() -> World:
    """With the runtime that this collection really installs."""
    world = World()
    for host, lock in ((world.cp, "requirements-kubectl.txt"), (world.gpu, "requirements.txt")):
        requirements = hashlib.sha256((SOURCE / lock).read_bytes()).hexdigest()
        host["runtime"].update({"wheel_sha256": build_wheel(SOURCE).sha256, "requirements_sha256": requirements})
    return world


def run(folder: Path, looked: dict[str, Any], cluster: Any, **variables: Any) -> tuple[subprocess.CompletedProcess[str], Any, Any]:
    """(what Ansible said, the plan, the report)."""
    (folder / "play.yml").write_text(PLAY)
    hosts = {name: {"looked": value, "looked_at_cluster": cluster} for name, value in looked.items()}
    report = folder / "new" / "report.json"
    done = play(folder, folder / "play.yml", {"all_of_them": hosts}, source=str(SOURCE), report=str(report), **variables)
    assert "PLAN=" in done.stdout, done.stdout + done.stderr
    plan = json.loads(json.loads('"' + done.stdout.split("PLAN=")[1].split('="')[0] + '"'))
    return done, plan, json.loads(report.read_text())


def test_a_clean_verdict_is_printed_and_written(tmp_path: Path, world: World) -> None:
    done, plan, report = run(
        tmp_path, {"cp1": {"seen": printed(world.cp)}, "gpu1": {"seen": printed(world.gpu)}}, {"seen": world.cluster}, probe=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified: 2 hosts, 1 GPU node, 1 container, 0 probe pods" in done.stdout
    assert (report["ok"], report["findings"]) == (True, [])
    assert (plan["images"], plan["unproven"], plan["left_behind"]) == ({"node-1": "registry.k8s.io/pause:3.10"}, {}, [])
    assert plan["scheduler_name"] == "default-scheduler"


def test_a_fault_fails_the_run_with_its_cure_and_no_probe_pod_is_placed(tmp_path: Path, world: World) -> None:
    world.cp["doctor"]["findings"].append(finding("extender_down", found="gpushare-extender.service failed"))
    done, plan, report = run(
        tmp_path, {"cp1": {"seen": printed(world.cp)}, "gpu1": {"seen": printed(world.gpu)}}, {"seen": world.cluster}, probe=True
    )
    assert done.returncode == 2
    output = done.stdout + done.stderr
    assert "1 problem\n" in output
    assert "cp1: extender_down: found gpushare-extender.service failed" in lines(output)
    # Not a second time, as JSON on one line.
    assert output.count("gpushare-extender.service failed") == 1
    assert [(one["check"], one["severity"]) for one in report["findings"]] == [("extender_down", "error"), ("not_proven", "note")]
    assert (plan["ok"], plan["images"], plan["unproven"]) == (
        False,
        {},
        {"node-1": {"reason": "obstructed", "found": "first cure extender_down of cp1"}},
    )
    assert "[WARNING]: gpu1: not_proven" in output


def test_what_a_host_said_instead_is_in_the_verdict(tmp_path: Path, world: World) -> None:
    looked = {"cp1": {"seen": printed(world.cp)}, "gpu1": {"unreachable": True, "msg": "no route to host"}, "gpu2": None}
    done, _plan, report = run(tmp_path, looked, {"msg": "kubectl get nodes failed"})
    assert done.returncode == 2
    assert [one["host"] for one in report["findings"]] == ["", "gpu1", "gpu2"]
    assert {one["check"] for one in report["findings"]} == {"not_checked"}
    assert "kubectl get nodes failed" in report["findings"][0]["found"]
    assert "no route to host" in report["findings"][1]["found"]


def test_a_cluster_of_which_nothing_can_be_reached_gets_its_verdict(tmp_path: Path) -> None:
    """The first control plane is also the one that is asked for the cluster, once for all hosts."""
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    report = tmp_path / "report.json"
    hosts = {"kube_control_plane": {"cp1": away}, "gpu_nodes": {"gpu1": away}}
    done = play(tmp_path, ROOT / "playbooks/verify.yml", hosts, gpushare_verify_report=str(report))
    assert done.returncode == 2, done.stdout + done.stderr
    findings = json.loads(report.read_text())["findings"]
    assert [(one["host"], one["check"]) for one in findings] == [("", "not_checked"), ("cp1", "not_checked"), ("gpu1", "not_checked")]
