# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The probe of an installation in the cluster: what its pods print is compared with their annotation, whatever it is."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.pods import Ended, Image, probe
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.verdict import judge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.verify import verify

from unit.plugins.in_cluster.kubectl import Fake, Json

GPUS = json.dumps(
    {
        "v": 1,
        "unit": "GiB",
        "gpus": [
            {"index": index, "uuid": f"GPU-{index}", "minor": minor, "mib": 16384, "units": 16, "health": "ok", "cordoned": False}
            for index, minor in ((0, 3), (1, 5))
        ],
    }
)
NODE: Json = {"metadata": {"name": "gpu1", "annotations": {"gpushare/gpus": GPUS}}, "status": {"allocatable": {"aliyun.com/gpu-mem": "32"}}}
GIVEN = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {"1": 1}})}
IMAGE = Image("localhost/gpushare:1", "gpushare-system", "nvidia")


def printed(devices: Any = ("/dev/nvidia5", "/dev/nvidiactl"), index: str = "1") -> str:
    return json.dumps({"devices": list(devices), "environment": {"ALIYUN_COM_GPU_MEM_IDX": index}})


def ended(log: str, phase: str = "Succeeded", annotations: Json | None = None, why: str = "") -> Ended:
    pod = {"metadata": {"name": "gpushare-verify-gpu1", "annotations": GIVEN if annotations is None else annotations}}
    return Ended("gpu1", pod, phase, log, why)


def test_a_pod_has_the_gpu_of_its_annotation() -> None:
    assert judge(ended(printed()), NODE) == []


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (ended(printed(["/dev/nvidia3"])), "found the device nodes /dev/nvidia3; expected /dev/nvidia5, GPU 1"),
        (ended(printed(["/dev/nvidia3", "/dev/nvidia5"])), "expected /dev/nvidia5"),
        (ended(printed([])), "found the device nodes none"),
        (ended(printed(index="0")), "found ALIYUN_COM_GPU_MEM_IDX=0 in its first process; expected 1"),
        (ended(printed(), annotations={}), "found the allocation 'none'"),
        (ended(printed(), annotations={"scheduler.framework.gpushare.allocation": '{"0": {"0": 1, "1": 1}}'}), "found the allocation"),
        (ended("", "", why="0/3 nodes are available"), "has not run (0/3 nodes are available)"),
        (ended("boom", "Failed", why="boom"), "it failed (boom)"),
        (ended("no JSON"), "found the words 'no JSON'"),
        (ended("[]"), "found the words '[]'"),
        (ended(json.dumps({"devices": 1, "environment": []})), "found the words"),
        (ended(printed([f"/dev/nvidia{number}" for number in range(300)])), "found the words"),
        (ended("[" * 100000), "found the words"),
    ],
)
def test_it_has_not(one: Ended, words: str) -> None:
    (said,) = judge(one, NODE)
    assert words in said
    assert len(said) < 1000


def test_the_pods_program_prints_what_is_read() -> None:
    (container,) = probe("gpu1", IMAGE)["spec"]["containers"]
    done = subprocess.run(
        [sys.executable, *container["command"][1:]], capture_output=True, text=True, check=True, env={"ALIYUN_COM_X": "1"}
    )
    assert json.loads(done.stdout)["environment"] == {"ALIYUN_COM_X": "1"}


def test_pods_run_where_there_is_room_and_are_removed() -> None:
    live = {"metadata": {"name": "gpushare-verify-gpu1", "annotations": GIVEN}, "status": {"phase": "Succeeded"}}
    full: Json = {"metadata": {"name": "gpu2"}, "status": {"allocatable": {"aliyun.com/gpu-mem": "8"}}}
    held = {
        "metadata": {"name": "a", "namespace": "x"},
        "spec": {"nodeName": "gpu2", "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "8"}}}]},
    }
    fake = Fake({"get nodes": [NODE, full], "get --raw /api/v1/pods": [held], "get pods": [live], "logs": printed()})
    assert verify(fake.kubectl, IMAGE, 5) == (["gpu1"], ["gpu2"], [])
    assert [words.split()[0] for words in fake.writes()] == ["delete", "create", "delete"]


def test_without_a_gpu_node_nothing_is_proven() -> None:
    (said,) = verify(Fake({}).kubectl, IMAGE, 5)[2]
    assert "gpushare_cluster_nodes" in said
