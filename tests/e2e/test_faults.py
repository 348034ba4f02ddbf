# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Each check finds a fault that is planted: a check that cannot fail shows nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy

import pytest

from e2e import checks
from e2e.api import Json
from e2e.cluster import CONTROL_PLANE, GPUS, MEMORY, REPOSITORY, Cluster, annotations_of
from e2e.manifests import pod
from e2e.samples import NVIDIA_SMI, SHARING, TOO_LARGE

pytestmark = pytest.mark.suite("pods")

PLUGIN = "gpushare-device-plugin"
ALLOCATION = "scheduler.framework.gpushare.allocation"
PODS = "/api/v1/namespaces/default/pods"


@contextmanager
def stopped(cluster: Cluster, node: str, unit: str) -> Iterator[None]:
    """A service that does not run for a while."""
    cluster.stop(node, unit)
    try:
        yield
    finally:
        cluster.on(node, "systemctl", "start", unit)


@contextmanager
def annotated(cluster: Cluster, path: str, changes: Mapping[str, str]) -> Iterator[None]:
    """Wrong annotations for a while."""
    before = annotations_of(cluster.api.get(path))
    cluster.annotate(path, changes)
    try:
        yield
    finally:
        cluster.annotate(path, {name: before.get(name) for name in changes})


def pretended(pod: Json, changes: Mapping[str, str]) -> Json:
    """The pod with other annotations. Where they are really written, the device plugin corrects them at once."""
    other = deepcopy(pod)
    other["metadata"]["annotations"].update(changes)
    return other


@pytest.mark.parametrize("named", ["all", "another"])
def test_the_environment_of_a_pod_selects_no_gpu(samples: Cluster, named: str) -> None:
    """What anybody may write into a pod, or an image presets: the lab's nodes have the strategy volume-mounts."""
    gpus = samples.gpus("gpu2")[1].uuid if named == "another" else named
    with samples.created(pod("other-gpu", memory=1, node="gpu2", environment={"NVIDIA_VISIBLE_DEVICES": gpus})) as name:
        assert checks.check_devices(samples, [samples.pod(name)]) == []
    with samples.created(pod("greedy", node="gpu2", environment={"NVIDIA_VISIBLE_DEVICES": gpus})) as name:
        assert checks.check_no_gpu(samples, [samples.pod(name)]) == []


def test_devices_of_another_gpu(samples: Cluster) -> None:
    other = samples.gpus("gpu2")[1].uuid
    with samples.created(pod("other-gpu", memory=1, node="gpu2", mounted=[other])) as name:
        problems = checks.check_devices(samples, [samples.pod(name)])
    assert problems == ["other-gpu/main on gpu2: has ['nvidia0', 'nvidia1'] in /dev, its annotated GPUs [0] are ['nvidia0']"]


def test_a_gpu_without_asking(samples: Cluster) -> None:
    with samples.created(pod("greedy", node="gpu2", mounted=[samples.gpus("gpu2")[1].uuid])) as name:
        problems = checks.check_no_gpu(samples, [samples.pod(name)])
    assert len(problems) == 1
    assert "greedy/main on gpu2 has" in problems[0]
    assert "nvidia1" in problems[0]


def test_nothing_to_look_at(samples: Cluster) -> None:
    waiting = [samples.pod(TOO_LARGE)]
    assert checks.check_devices(samples, waiting) == ["too-large does not run", "there is no container to look at"]
    assert checks.check_environment(samples, waiting) == ["too-large does not run", "there is no container to look at"]
    assert checks.check_no_gpu(samples, waiting) == ["there is no container to look at"]


def test_annotations_that_name_another_gpu(samples: Cluster) -> None:
    moved = [pretended(samples.pod("share-1"), {"ALIYUN_COM_GPU_MEM_IDX": "1", ALLOCATION: '{"0":{"1":6}}'})]
    devices, environment = checks.check_devices(samples, moved), checks.check_environment(samples, moved)
    assert devices == ["share-1/main on gpu1: has ['nvidia0'] in /dev, its annotated GPUs [1] are ['nvidia1']"]
    assert environment == ["share-1/main on gpu1: PID 1 has ALIYUN_COM_GPU_MEM_IDX=0, expected 1"]


def test_annotations_with_other_numbers(samples: Cluster) -> None:
    wrong = {"ALIYUN_COM_GPU_MEM_DEV": "17", "ALIYUN_COM_GPU_MEM_POD": "7", ALLOCATION: '{"0":{"0":99}}'}
    pods = [pretended(pod, wrong) if pod["metadata"]["name"] == "share-1" else pod for pod in samples.pods()]
    assert checks.check_environment(samples, [pod for pod in pods if pod["metadata"]["name"] == "share-1"]) == [
        "share-1/main on gpu1: PID 1 has ALIYUN_COM_GPU_MEM_DEV=16, expected 17",
        "share-1/main on gpu1: PID 1 has ALIYUN_COM_GPU_MEM_POD=6, expected 7",
    ]
    assert checks.check_totals(samples, pods) == ["GPU 0 of gpu1 has 16 units, pods hold 106"]


def test_annotations_that_an_administrator_overwrites_are_corrected(samples: Cluster) -> None:
    wrong = {"ALIYUN_COM_GPU_MEM_IDX": "1", ALLOCATION: '{"0":{"1":6}}'}
    right = {name: annotations_of(samples.pod("share-1"))[name] for name in wrong}
    samples.annotate(f"{PODS}/share-1", wrong)
    samples.until(
        "the GPU that it has is annotated", lambda: right.items() <= annotations_of(samples.pod("share-1")).items(), 30, "share-1"
    )
    samples.until("an event says so", lambda: any(event["reason"] == "GPUShareCorrected" for event in samples.events("share-1")), 30)


def test_the_log_of_another_gpu(samples: Cluster) -> None:
    other = pretended(samples.pod(NVIDIA_SMI), {"ALIYUN_COM_GPU_MEM_IDX": "1", ALLOCATION: '{"0":{"1":2}}'})
    first, second = (gpu.uuid for gpu in samples.gpus("gpu1"))
    assert checks.check_log_lists_its_gpu(samples, other) == [f"the log lists ['{first}'], the annotation means ['{second}']"]


def test_another_number_of_pods_on_a_gpu(samples: Cluster) -> None:
    as_it_is = {("gpu1", 0): 3, ("gpu1", 1): 1}
    assert checks.check_pods_per_gpu(samples, as_it_is) == []
    with samples.created(pod("one-more", memory=1)):
        assert len(checks.check_pods_per_gpu(samples, as_it_is)) == 1


def test_a_pod_that_is_not_rejected_or_for_another_reason(samples: Cluster) -> None:
    assert checks.check_unschedulable(samples, "share-1", seconds=1) == ["share-1 was not rejected; it is on gpu1, phase Running"]
    with samples.created(pod("one-node", memory=25, node="gpu2"), running=False) as name:
        (problem,) = checks.check_unschedulable(samples, name, "gpu2: needs 25 GiB", "gpu1: needs 25 GiB")
    assert problem.startswith("the reason does not say 'gpu1: needs 25 GiB': ")
    assert checks.check_stays_unschedulable(samples, "share-1", ["share-2", "absent"]) == ["absent does not run", "share-1 is not rejected"]


def test_a_pod_without_the_event(samples: Cluster) -> None:
    (problem,) = checks.check_event(samples, TOO_LARGE, "10G means", seconds=1)
    assert problem.startswith("no event says '10G means'")


def test_a_request_that_filter_lets_pass(samples: Cluster) -> None:
    problems = checks.check_filter_rejects(samples, pod("good", memory=1), "negative")
    assert problems[0] == "it answers NodeNames ['gpu1', 'gpu2'], Error ''; expected none of both"
    assert problems[1:] == ["gpu1: the reason does not say 'negative': ''", "gpu2: the reason does not say 'negative': ''"]


def test_a_pod_that_does_not_run(samples: Cluster) -> None:
    (problem,) = checks.check_runs(samples, TOO_LARGE, seconds=1)
    assert problem.startswith("too-large does not run after 1 s: Pending, 0/3 nodes are available")


def test_a_gpu_that_is_not_whole(samples: Cluster) -> None:
    assert checks.check_whole_gpu(samples, samples.pod("share-1")) == [
        "GPU 0 of gpu1 is whole for share-1, and another pod holds memory of it"
    ]


def test_another_inspect_than_the_readme_has(samples: Cluster) -> None:
    with samples.created(pod("one-more", memory=1)):
        (problem,) = checks.check_readme(samples)
    assert problem.startswith("demo.md shows:")
    readme = (REPOSITORY / "docs/start/demo.md").read_text()
    assert checks.check_readme(samples, readme.replace("/72 (", "/73 (")) != []
    assert checks.check_readme(samples, "no block") == ["demo.md has 0 blocks marked <!-- inspect -->, expected one"]


def test_a_device_plugin_that_does_not_run(samples: Cluster) -> None:
    gpus = '{"v":1,"unit":"GiB","gpus":[]}'
    with stopped(samples, "gpu2", PLUGIN):
        problems, seconds = checks.check_registers_again(samples, "gpu2")
        assert problems == [f"gpu2: {resource} is not registered again 5 s after kubelet's start" for resource in (MEMORY, GPUS)]
        assert seconds == {}
        samples.until("kubelet offers no units", lambda: checks.check_registered(samples, "gpu2"), 30)
        with annotated(samples, "/api/v1/nodes/gpu2", {"gpushare/gpus": gpus}):
            (problem,) = checks.check_inventory(samples, "gpu2")
            assert problem.startswith("gpu2: gpushare/gpus says [], the driver [(0, 'GPU-")
        assert checks.check_follows(samples, "gpu2", seconds=1) != []
    assert checks.check_follows(samples, "gpu2") == []


def test_a_playbook_that_has_something_to_do(samples: Cluster) -> None:
    samples.stop(CONTROL_PLANE, "gpushare-extender")
    problems = checks.check_changes_nothing(samples)
    assert f"{CONTROL_PLANE}: changed=1 unreachable=0 failed=0" in problems
    assert f"gpushare-extender on {CONTROL_PLANE} was restarted" in problems
    assert checks.check_devices(samples, map(samples.pod, SHARING)) == []
