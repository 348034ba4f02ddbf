# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The stand-in hosts of the benchmark of fleets: the collection believes what they answer, and verify finds nothing wrong with them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.host import SeenAgain
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.apply import SchedulerFound
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import believe, of_answer, shape_of
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._judge.verify import _artifact
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.judge import Evidence, judge

from bench.fleet.__main__ import ROOT, Fleet, Scales, squares
from bench.fleet.answers import Host, World, payload
from results import Results

Json = dict[str, Any]

ARTIFACT = {"version": "0.1.0", "wheel_sha256": "a", "requirements_sha256": "b"}
SERVICE: Json = {"what": "service", "name": "gpushare-device-plugin", "unit": "[Unit]\n", "seed_content": "t"}
#: Modules with arguments as the roles give them. The control plane is asked about the cluster.
ASKED: list[tuple[str, str, Json]] = [
    ("gpu001", "gpu_node_info", {"gather": ["system", "gpus", "runtimes", "managers"]}),
    ("gpu001", "gpu_node_info", {"gather": []}),
    ("gpu001", "gpushare_sharing", {"what": "plans", "plans": [{"name": "python_environment", "arguments": {"artifact": ARTIFACT}}]}),
    ("gpu001", "gpushare_runtime_env", {"artifact": ARTIFACT}),
    ("gpu001", "gpushare_runtime_env", {"artifact": {**ARTIFACT, "wheel_path": "/tmp/wheel"}}),
    ("gpu001", "gpushare_toolkit", {}),
    ("gpu001", "container_runtime", {"state": "present"}),
    ("gpu001", "container_runtime", {"state": "absent"}),
    ("gpu001", "kubelet_gates", {"state": "absent"}),
    ("gpu001", "gpushare_sharing", {"what": "strategy"}),
    ("gpu001", "gpushare_daemon", SERVICE),
    ("gpu001", "gpushare_sharing", {"what": "strategy"}),
    ("gpu001", "gpushare_traces", {"what": "services"}),
    ("gpu001", "gpushare_traces", {"what": "leftovers"}),
    ("gpu001", "gpushare_driver", {"what": "absent"}),
    ("gpu001", "gpushare_packages", {"state": "absent"}),
    ("cp1", "gpu_node_info", {"gather": ["system"]}),
    ("cp1", "gpushare_daemon", {"what": "certificates", "path": "/etc/gpushare/pki"}),
    ("cp1", "gpushare_daemon", {"what": "token"}),
    ("cp1", "gpushare_api", {"what": "facts"}),
    ("cp1", "gpushare_api", {"what": "nodes"}),
    ("cp1", "gpushare_api", {"what": "returned"}),
    ("cp1", "gpushare_node", {"what": "ready"}),
    ("cp1", "gpushare_cluster", {"what": "objects", "objects": [{"kind": "Node", "metadata": {"name": "gpu001"}}]}),
    ("cp1", "gpushare_cluster", {"what": "identity", "tokens": {"gpu001": None}}),
    ("cp1", "gpushare_cluster", {"what": "remove_objects"}),
    ("cp1", "gpushare_verify_cluster", {"what": "evidence", "nodes": ["gpu001", "gpu002"]}),
    ("cp1", "gpushare_verify_cluster", {"what": "place", "images": {"gpu001": "pause"}}),
    ("cp1", "gpushare_verify_cluster", {"what": "remove"}),
]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Fleet(tmp_path, 2, forks=5).folder)


def seen(world: World, host: str, **more: Any) -> Json:
    roles = {"gpu_node": host.startswith("gpu"), "control_plane": host.startswith("cp")}
    return Host(world, host).answer("gpushare_verify_host", {"node_name": host, **roles, "pki_dir": "/etc/gpushare/pki", **more})


def test_each_answer_has_the_shape_that_the_collection_takes(world: World) -> None:
    for host, module, arguments in ASKED:
        found = believe(Host(world, host).answer(module, arguments), shape_of(module, arguments))
        assert not isinstance(found, str), (host, module, arguments, found)
        assert not found.get("failed"), (host, module, arguments, found)
    extender = Host(world, "cp1").answer("kube_scheduler_extender", {"plan": {"read": []}, "node_name": "cp1"})
    assert not isinstance(believe(extender, of_answer(SchedulerFound)), str), believe(extender, of_answer(SchedulerFound))
    for host in world.names:
        again = believe(seen(world, host, only=["containers", "extender"]), of_answer(SeenAgain))
        assert not isinstance(again, str), again


def test_a_second_call_changes_nothing_and_a_plan_never_does(world: World) -> None:
    asked = {"state": "present"}
    checks = (True, False, False)
    changed = [Host(world, "gpu001").answer("container_runtime", {**asked, "_ansible_check_mode": check})["changed"] for check in checks]
    assert changed == [True, True, False]
    assert Host(world, "gpu002").answer("container_runtime", asked)["changed"]


def test_an_upgrade_finds_what_an_earlier_release_has_left(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 1, forks=5)

    def changes(*hosts: str) -> list[bool]:
        asked = (("gpushare_runtime_env", {"artifact": {**ARTIFACT, "wheel_path": "/tmp/wheel"}}), ("gpushare_daemon", SERVICE))
        return [Host(World(tmp_path), host).answer(module, arguments)["changed"] for host in hosts for module, arguments in asked]

    assert changes("gpu001") == [True, True]
    assert changes("gpu001") == [False, False]
    fleet.age()
    # cp1 has nothing yet.
    assert changes("gpu001", "cp1") == [True] * 4
    assert changes("gpu001", "cp1") == [False] * 4


def test_verify_finds_nothing_wrong_with_these_hosts(world: World) -> None:
    nodes, planes = (["gpu001", "gpu002"], ["cp1", "cp2", "cp3"])
    hosts = {host: believe(seen(world, host), shape_of("gpushare_verify_host", {})) for host in world.names}
    cluster = Host(world, "cp1").answer("gpushare_verify_cluster", {"what": "evidence", "nodes": nodes, "schedulers": planes})["seen"]
    artifact = _artifact(ROOT / "files/gpushare_runtime")
    verdict = judge(Evidence({host: one["seen"] for host, one in hosts.items() if isinstance(one, dict)}, cluster, artifact))
    assert (verdict.findings, verdict.looked_at["GPU nodes"], verdict.looked_at["containers"]) == ((), 2, 2), verdict.words


def test_what_is_no_module_is_named() -> None:
    with pytest.raises(ValueError, match="ansible-core"):
        payload(b"print('hello')")


def test_memory_is_that_of_a_process_and_its_children_and_shared_pages_count_once() -> None:
    held = "import os, time; held = b'x' * (80 << 20); pid = os.fork(); more = b'y' * (40 << 20) if pid else b''"
    held += "; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE) as process:
        # Both have what they hold: a line of each.
        assert process.stdout
        process.stdout.read(2)
        with Scales(process.pid, every=0.05) as scales:
            ends = time.monotonic() + 30
            while scales.most < 120 and time.monotonic() < ends:
                time.sleep(0.05)
        subprocess.run(["pkill", "-P", str(process.pid)], check=True)
        process.kill()
    # Counted for each of them, what they share would make it 200.
    assert 120 <= scales.most < 180


def of_tasks(**seconds: float) -> Results:
    """A run with a task of each name that took so long."""
    events, now = [], 0.0
    for name, spent in seconds.items():
        events.append({"event": "task", "play": "p", "task": name, "controller_seconds": now})
        now += spent
    return Results((*events, {"event": "end", "controller_seconds": now}))


def test_the_part_of_the_square_of_a_task() -> None:
    few, many = of_tasks(line=1.0, square=1.0, both=2.0, new=0.0), of_tasks(line=4.0, square=16.0, both=20.0, new=0.0)
    found = {task: round(part, 6) for part, _many, _few, task in squares(few, many, (10, 40))}
    assert found == {"p / square": 16.0, "p / both": 16.0, "p / line": 0.0, "p / new": 0.0}


def test_hosts_have_their_own_names_and_gpus(world: World) -> None:
    texts = {host: json.dumps(seen(world, host)) for host in world.names}
    assert "gpu002" not in texts["gpu001"]
    assert "GPU-00000004" in texts["gpu001"]
    assert "GPU-00000004" not in texts["gpu002"]
