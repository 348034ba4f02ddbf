# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The probe of an installation in the cluster: what its pods print is compared with their annotation, whatever it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster import pods
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.pods import Ended, Image
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.verdict import judge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.verify import gpus_visible, verify

from gpushare_runtime.probe import main as probe
from unit.fakes.plugins.in_cluster.kubectl import Answer, Fake, Json
from unit.fakes.plugins.takeover.others import nvidia

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


def printed(devices: Any = ("nvidia5", "nvidiactl"), index: str = "1") -> str:
    return json.dumps({"devices": list(devices), "environment": {"ALIYUN_COM_GPU_MEM_IDX": index}})


def ended(log: str, phase: str = "Succeeded", annotations: Json | None = None, why: str = "") -> Ended:
    pod = {"metadata": {"name": "gpushare-verify-gpu1", "annotations": GIVEN if annotations is None else annotations}}
    return Ended("gpu1", pod, phase, log, why)


def test_a_pod_has_the_gpu_of_its_annotation() -> None:
    assert judge(ended(printed()), NODE) == []


def test_a_pod_has_the_mig_instance_of_its_annotation() -> None:
    published = json.loads(GPUS)
    published["gpus"][1].update(index=11070, uuid="MIG-1", caps=[66, 67])
    node = {**NODE, "metadata": {"name": "gpu1", "annotations": {"gpushare/gpus": json.dumps(published)}}}
    given = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {"11070": 1}})}

    def judged(*devices: str) -> list[str]:
        return judge(ended(printed(devices, "11070"), annotations=given), node)

    assert judged("nvidia5", "nvidiactl", "nvidia-caps/nvidia-cap66", "nvidia-caps/nvidia-cap67") == []
    (other,) = judged("nvidia5", "nvidia-caps/nvidia-cap75", "nvidia-caps/nvidia-cap76")
    assert "expected /dev/nvidia-caps/nvidia-cap66, /dev/nvidia-caps/nvidia-cap67, /dev/nvidia5, GPU 11070" in other
    assert len(judged("nvidia5")) == 1


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (ended(printed(["nvidia3"])), "found the device nodes /dev/nvidia3; expected /dev/nvidia5, GPU 1"),
        (ended(printed(["nvidia3", "nvidia5"])), "expected /dev/nvidia5"),
        (ended(printed([])), "found the device nodes none"),
        (ended(printed(index="0")), "found ALIYUN_COM_GPU_MEM_IDX=0 in its first process; expected 1"),
        (ended(printed(), annotations={}), "found the allocation 'none'"),
        (ended(printed(), annotations={"scheduler.framework.gpushare.allocation": '{"0": {"0": 1, "1": 1}}'}), "found the allocation"),
        (ended("", "", why="0/3 nodes are available"), "has not run (0/3 nodes are available)"),
        (ended("boom", "Failed", why="boom"), "it failed (boom)"),
        (ended("no JSON"), "found the words 'no JSON'"),
        (ended("[]"), "found the words '[]'"),
        (ended(json.dumps({"devices": 1, "environment": []})), "found the words"),
        (ended(printed([f"nvidia{number}" for number in range(300)])), "found the words"),
        (ended("[" * 100000), "found the words"),
    ],
)
def test_it_has_not(one: Ended, words: str) -> None:
    (said,) = judge(one, NODE)
    assert words in said
    assert len(said) < 1000


def test_where_cdi_is_chosen_the_cure_is_to_switch_it_on() -> None:
    node = {**NODE, "metadata": {"name": "gpu1", "annotations": {"gpushare/gpus": json.dumps({**json.loads(GPUS), "strategy": "cdi"})}}}
    (said,) = judge(ended(printed([])), node)
    assert "found the device nodes none; expected /dev/nvidia5, GPU 1; switch CDI on in the container runtime there" in said
    assert "containerd 1.7: enable_cdi = true" in said
    assert "enable_cdi" not in judge(ended(printed([])), NODE)[0]


def test_the_pods_program_prints_what_is_read(tmp_path: Path) -> None:
    (container,) = pods.probe("gpu1", IMAGE)["spec"]["containers"]
    assert container["command"][0].rpartition("/")[2] == probe.NAME
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia5").touch()
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/environ").write_bytes(b"ALIYUN_COM_GPU_MEM_IDX=1\0PATH=/bin\0")
    assert judge(ended(json.dumps(probe.probe(tmp_path))), NODE) == []


def test_pods_run_where_there_is_room_and_are_removed() -> None:
    live = {"metadata": {"name": "gpushare-verify-gpu1", "annotations": GIVEN}, "status": {"phase": "Succeeded"}}
    full: Json = {"metadata": {"name": "gpu2"}, "status": {"allocatable": {"aliyun.com/gpu-mem": "8"}}}
    held = {
        "metadata": {"name": "a", "namespace": "x"},
        "spec": {"nodeName": "gpu2", "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "8"}}}]},
    }
    fake = Fake({"get nodes": [NODE, full], "get --raw /api/v1/pods": [held], "get pods": [live], "logs": printed()})
    assert verify(fake.kubectl, IMAGE, 5)[:2] == (["gpu1"], ["gpu2"])
    # One pod each with a unit, and without.
    assert [words.split()[0] for words in fake.writes()] == ["delete", "create", "delete"] * 2
    # A dead node would take the whole time.
    assert verify(fake.kubectl, IMAGE, 5, ["gpu1"])[:2] == (["gpu1"], [])


def test_what_else_gives_the_gpus_of_our_nodes_is_found() -> None:
    other: Json = {"metadata": {"name": "gpu9"}}
    offers = [{"spec": {"driver": "gpu.nvidia.com", "nodeName": name}} for name in ("gpu1", "gpu9")]
    plugin = nvidia()
    metadata = {"name": "p", "namespace": "default", "ownerReferences": [{"uid": plugin["metadata"]["uid"]}]}
    answers: dict[str, Answer] = {
        "get nodes": [NODE],
        "get --raw /api/v1/nodes": [NODE, other],
        "get --raw /api/v1/pods?limit=500&fieldSelector": [],
        "get --raw /api/v1/pods": [{"metadata": metadata, "spec": {"nodeName": "gpu1"}}],
        "get --raw /apis/apps/v1/daemonsets": [plugin],
        "get --raw /apis/resource.k8s.io/v1/resourceslices": offers,
        "get --raw /apis/resource.k8s.io/v1/resourceclaims": [],
        "get --raw /apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
        "get pods": [{"metadata": {"name": "gpushare-verify-gpu1", "annotations": GIVEN}, "status": {"phase": "Succeeded"}}],
        "logs": printed(),
    }
    seconds = [said for said in verify(Fake(answers).kubectl, IMAGE, 5)[2] if "second_plugin" in said]
    (said,) = seconds
    assert said.startswith("second_plugin on gpu1: found DaemonSet kube-system/nvidia-device-plugin")
    assert "(NVIDIA device plugin), ResourceSlices of gpu.nvidia.com; expected" in said


def test_without_a_gpu_node_nothing_is_proven() -> None:
    (said,) = verify(Fake({}).kubectl, IMAGE, 5)[2]
    assert "gpushare_cluster_nodes" in said


@pytest.mark.parametrize(
    ("strategy", "asked", "runtime_class"),
    [("cdi", "nvidia", None), ("envvar", "nvidia", "nvidia"), ("", "nvidia", "nvidia"), ("envvar", "gpushare-nvidia", None)],
)
def test_a_probe_runs_as_pods_of_users_do(strategy: str, asked: str, runtime_class: str | None) -> None:
    node = {**NODE, "metadata": {"name": "gpu1", "annotations": {"gpushare/gpus": json.dumps({**json.loads(GPUS), "strategy": strategy})}}}
    live = {"metadata": {"name": "gpushare-verify-gpu1", "annotations": GIVEN}, "status": {"phase": "Succeeded"}}
    fake = Fake({"get nodes": [node], "get --raw /api/v1/pods": [], "get pods": [live], "logs": printed()})
    verify(fake.kubectl, replace(IMAGE, runtime_class=asked), 5)
    created = next(json.loads(text) for words, text in fake.inputs if words.startswith("create"))
    assert created["items"][0]["spec"].get("runtimeClassName") == runtime_class


def looked(sees: Json, strategy: str = "cdi", classes: tuple[tuple[str, str], ...] = ()) -> tuple[list[str], list[str]]:
    """sees: the device nodes of a pod that asks for none, by its RuntimeClass; None where no pod of it starts."""
    node = {**NODE, "metadata": {"name": "gpu1", "annotations": {"gpushare/gpus": json.dumps({**json.loads(GPUS), "strategy": strategy})}}}

    def live() -> list[Json]:
        made = json.loads(fake.inputs[-1][1])["items"][0]
        (container,) = made["spec"]["containers"]
        assert (container["securityContext"]["runAsUser"], container["securityContext"]["runAsNonRoot"]) == (65534, True)
        assert container["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        assert ("resources" not in container, made["spec"]["nodeName"]) == (True, "gpu1")
        found = sees[made["spec"].get("runtimeClassName", "")]
        return [{"metadata": made["metadata"], "status": {"phase": "Failed" if found is None else "Succeeded"}}]

    def log() -> str:
        return printed(sees[json.loads(fake.inputs[-1][1])["items"][0]["spec"].get("runtimeClassName", "")] or ())

    listed = [{"metadata": {"name": name}, "handler": handler} for name, handler in classes]
    fake = Fake({"get --raw /apis/node.k8s.io/v1/runtimeclasses": listed, "get pods": live, "logs": log})
    found = gpus_visible(fake.kubectl, IMAGE, {"gpu1": node}, 5)
    assert fake.writes()[-1].startswith("delete")
    return found


def test_a_pod_that_asks_for_nothing_sees_nothing() -> None:
    classes = (("nvidia", "nvidia"), ("gpushare-nvidia", "nvidia"), ("gvisor", "runsc"))
    assert looked({"": [], "nvidia": []}, classes=classes) == ([], [])
    assert looked({"": None, "nvidia": None}, classes=classes) == ([], [])


def test_gpus_that_any_pod_sees_are_found() -> None:
    (said,), told = looked({"": ["nvidia3", "nvidia5"]})
    assert said.startswith(
        "gpus_visible on gpu1: found that any pod of the default runtime with NVIDIA_VISIBLE_DEVICES=all sees /dev/nvidia3"
    )
    assert "envvar-when-unprivileged = false and accept-nvidia-visible-devices-as-volume-mounts = true" in said
    assert told == []


def test_what_is_not_ours_to_mend_is_a_warning() -> None:
    found, (said,) = looked({"": [], "nvidia": ["nvidia3"]}, classes=(("nvidia", "nvidia"),))
    assert (found, "of the RuntimeClass nvidia with" in said) == ([], True)
    # The strategy envvar is just that.
    found, told = looked({"": ["nvidia3"]}, strategy="envvar")
    assert (found, len(told)) == ([], 1)
