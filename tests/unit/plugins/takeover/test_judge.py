# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Why other device plugins cannot be moved aside, by what hosts and cluster say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.plugins import other_plugins
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._takeover.judge import HostState, judge

from unit.fakes.plugins.takeover.others import Json, nvidia, operators, original

ROOT = Path(__file__).resolve().parents[4]
RUNS = {"name": "NVIDIA device plugin", "active": True, "evidence": ["process 60 (nvidia-device-plugin)"], "pods": [], "holders": []}
THEIRS = {**RUNS, "name": "original gpushare device plugin", "evidence": ["process 61 (gpushare-device-plugin-v2)"]}
MEMORY = "aliyun.com/gpu-mem"


def cluster(*items: Json, nodes: tuple[str, ...] = ("gpu1",), **changes: Any) -> dict[str, Any]:
    plugins = [answer_of(one.found(nodes)) for one in other_plugins(items)]
    return {"plugins": plugins, "active": {}, "writers": [], "node_ports": [], **changes}


def host(*managers: Json, registered: int = 0, memories: tuple[int, ...] = (16384, 16384), unit: str = "GiB") -> HostState:
    return HostState("gpu1", "gpu1", managers, {MEMORY: registered} if registered else {}, memories, unit)


def rejections(state: HostState, found: dict[str, Any], port: int = 32766, drain: bool = False) -> list[str]:
    return list(judge([state], found, port, drain).rejections)


def test_a_plugin_without_pods_is_moved() -> None:
    verdict = judge([host({**RUNS, "pods": None, "holders": None})], cluster(nvidia()), 32766, False)
    assert (verdict.rejections, verdict.moves) == ((), {"gpu1": ["DaemonSet kube-system/nvidia-device-plugin-daemonset"]})


def test_a_host_that_nobody_serves_is_not_moved() -> None:
    verdict = judge([host()], cluster(nvidia(), nodes=("gpu2",)), 32766, False)
    assert (verdict.rejections, verdict.moves) == ((), {})


def test_pods_that_have_its_gpus_are_named_also_those_that_have_no_process_yet() -> None:
    manager = {**RUNS, "pods": ["default/train-0"], "holders": ["u1", "u2", "ended"]}
    (why,) = rejections(host(manager), cluster(nvidia(), active={"u1": "default/train-0", "u2": "default/pulls-its-image"}))
    assert (
        "pods have GPUs of DaemonSet kube-system/nvidia-device-plugin-daemonset: default/pulls-its-image, default/train-0; expected none"
        in why
    )
    assert rejections(host(manager), cluster(nvidia()), drain=True) == []
    # Also when the plugin itself is gone already.
    left = {**manager, "active": False, "evidence": []}
    assert "another device plugin: default/train-0" in rejections(host(left), cluster())[0]
    many = {**left, "pods": [f"n/{'a' * 78}{number}" for number in range(9)]}
    assert f"plugin: {', '.join(['n/' + 'a' * 78] * 8)} and 1 more; expected none" in rejections(host(many), cluster())[0]


def test_pods_of_the_original_keep_their_gpus() -> None:
    manager = {**THEIRS, "pods": ["default/train-0"], "holders": ["u1"]}
    assert rejections(host(manager, registered=32), cluster(original(), active={"u1": "default/train-0"})) == []


def test_a_plugin_that_no_daemon_set_runs_cannot_be_moved() -> None:
    assert "NVIDIA device plugin runs on the node gpu1, and no DaemonSet of it is known" in rejections(host(RUNS), cluster())[0]
    assert "original gpushare device plugin runs on the node gpu1" in rejections(host(THEIRS), cluster(nvidia()))[0]
    # What is no device plugin that could be moved stays.
    assert rejections(host({**RUNS, "name": "something else"}), cluster()) == []


def test_an_owned_one_is_named_once_with_the_change_to_make() -> None:
    owned = nvidia(annotations={"meta.helm.sh/release-name": "nvdp"})
    both = [HostState(name, name, [RUNS], {}, (), "GiB") for name in ("gpu1", "gpu2")]
    for without_operator in (False, True):
        (why,) = judge(both, cluster(owned, nodes=("gpu1", "gpu2")), 32766, False, without_operator).rejections
        assert "belongs to the Helm release nvdp" in why


def test_the_operators_plugin_goes_by_its_cluster_policy_alone() -> None:
    found, state = cluster(operators()), host(RUNS)
    (why,) = rejections(state, found)
    assert "is the GPU Operator's; expected none: wait" in why
    verdict = judge([state], found, 32766, False, without_operator=True)
    assert (verdict.rejections, verdict.moves) == ((), {"gpu1": ["DaemonSet gpu-operator/nvidia-device-plugin-daemonset"]})
    # Its pods would have the GPUs still.
    held = host({**RUNS, "pods": ["default/train-0"], "holders": ["u1"]})
    assert "default/train-0" in judge([held], found, 32766, False, without_operator=True).rejections[0]


def test_the_originals_port_is_not_ours() -> None:
    assert rejections(host(RUNS), cluster(nvidia(), node_ports=[32766])) == []
    found = cluster(original(), nvidia(), node_ports=[32766])
    assert "set gpushare_extender_port to a free port" in rejections(host(THEIRS, registered=32), found)[0]
    assert rejections(host(THEIRS, registered=32), found, port=22766) == []


def test_ids_in_another_unit_would_mean_another_amount() -> None:
    for others in ((), (nvidia(),)):
        why = rejections(host(THEIRS, registered=2 * 16384), cluster(original(), *others))[-1]
        assert "set gpushare_memory_unit: MiB for this host" in why
    assert rejections(host(THEIRS, registered=2 * 16384, unit="MiB"), cluster(original())) == []
    assert rejections(host(THEIRS, registered=32), cluster(original())) == []
    # A number that tells no unit, and that of another plugin.
    assert rejections(host(THEIRS, registered=7), cluster(original())) == []
    assert rejections(host(RUNS, registered=2 * 16384), cluster(nvidia())) == []


def test_both_questions_of_the_role_are_about_the_same_port() -> None:
    """The second one, after the original has left a node, must not reject what the first one accepted."""
    module, asked = "gpushare.kubernetes.gpushare_judge", []
    for name in ("look", "aside"):
        tasks = yaml.safe_load((ROOT / f"roles/take_over/tasks/{name}.yml").read_text())
        tasks = [inner for task in tasks for inner in task.get("block", [task])]
        asked += [task[module] for task in tasks if module in task]
    assert len(asked) == 2
    assert asked[0]["extender_port"] == asked[1]["extender_port"]
