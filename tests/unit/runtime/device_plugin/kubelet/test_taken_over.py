# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods that the original's device plugin has started: their GPUs are those of its answers, whatever ids kubelet chose for them.

kubelet chooses among all free ids at random where a plugin prefers none, and the original does not look at them. So the ids of one
container are of several GPUs, and never say which one it has.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from gpushare_runtime.device_plugin.kubelet.checkpoint import given_index
from gpushare_runtime.device_plugin.publish.node_annotations import OTHERS_IDS
from unit.fakes.runtime.device_plugin.device_manager import _response
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import GIB, MEMORY, NODE, World, path_of, world
from unit.fakes.runtime.kube.fake_api import until

IDX, DEV, POD, ASSIGNED, TIME = (f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "DEV", "POD", "ASSIGNED", "ASSUME_TIME"))
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def answer(gpu: int, units: int) -> dict[str, str]:
    """The original's answer to Allocate on a node with several GPUs."""
    own = {IDX: str(gpu), POD: str(units), "ALIYUN_COM_GPU_MEM_CONTAINER": str(units), DEV: "16"}
    return {VISIBLE: str(gpu), **own}


async def started_by_the_original(it: World, choose: random.Random, *shapes: tuple[int, int]) -> list[dict[str, Any]]:
    """A running pod of each (GPU, units), with ids by chance."""
    manager, pods = it.kubelet.manager, []
    for number, (gpu, units) in enumerate(shapes):
        pod = memory(None, gpu, units, phase="Running")
        uid = pod["metadata"]["uid"]
        pod["metadata"]["annotations"] = {
            IDX: str(gpu),
            DEV: "16",
            POD: str(units),
            ASSIGNED: "true",
            TIME: str(1_774_000_000_000_000_000 + number),
        }
        pod["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}, "containerID": f"containerd://{uid}"}]
        free = sorted(manager.healthy[MEMORY] - manager.allocated.get(MEMORY, set()))
        manager.given[uid] = {"main": {MEMORY: set(choose.sample(free, units))}}
        manager.environments[uid, "main", MEMORY] = answer(gpu, units)
        manager.allocated = manager._of_pods()
        manager.active.add(uid)
        it.live.add(uid)
        pods.append(pod)
    manager.write()
    for pod in pods:
        await it.bind(pod)
    await until(lambda: all(it.plugin.node.usage.was_allocated(pod["metadata"]["uid"]) for pod in pods))
    return pods


def free_by_ledger(it: World, pods: list[dict[str, Any]]) -> dict[int, int]:
    held = json.loads(it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/held", '{"gpus":{}}'))["gpus"]
    by_uuid = {gpu.uuid: gpu for gpu in it.inventory.gpus}
    free = {gpu.index: gpu.units for gpu in it.inventory.gpus}
    for pod in pods:
        notes = it.annotations(pod)
        free[int(notes[IDX])] -= int(notes[POD])
    for uuid, entries in held.items():
        free[by_uuid[uuid].index] -= sum(entry["units"] for entry in entries)
    return free


def named(it: World) -> Counter[int]:
    """GPU → ids of it that kubelet has given away."""
    by_uuid = {gpu.uuid: gpu.index for gpu in it.inventory.gpus}
    return Counter(by_uuid[i.partition("-_-")[0]] for i in it.kubelet.manager.allocated.get(MEMORY, ()))


def published(it: World) -> bool:
    """Whether the node's report is that of now."""
    due = it.plugin.node.usage.displaced()
    short = {uuid: -shift for uuid, shift in due.items() if shift < 0}
    text = it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/held")
    held = json.loads(text)["gpus"] if text else {}
    return {uuid: entry["units"] for uuid, entries in held.items() for entry in entries if entry["uid"] == OTHERS_IDS} == short


@pytest.mark.parametrize("seed", range(4))
async def test_no_gpu_is_over_booked_whatever_ids_they_have(seed: int) -> None:
    choose = random.Random(seed)
    async with world(16 * GIB, 16 * GIB, 16 * GIB) as it:
        theirs = await started_by_the_original(it, choose, (0, 5), (0, 4), (1, 7), (2, 1), (2, 1), (1, 2))
        real = Counter({0: 9, 1: 9, 2: 2})
        await until(lambda: published(it))
        # Nobody has touched their annotations: they are right.
        assert [it.patches(pod) for pod in theirs] == [0] * len(theirs)
        assert it.plugin.counters.corrections == 0
        usage = it.plugin.node.usage
        assert usage.units_by_gpu(it.inventory) == {gpu.uuid: real[gpu.index] for gpu in it.inventory.gpus}
        assert {uid: (gpu, units) for (uid, gpu), units in usage.units_by_pod(it.inventory).items()} == {
            pod["metadata"]["uid"]: (it.inventory.by_index[int(it.annotations(pod)[IDX])].uuid, int(it.annotations(pod)[POD]))
            for pod in theirs
        }

        # Whatever the scheduler's side sees as free can be had, on that GPU.
        ours = []
        for _ in range(40):
            free = free_by_ledger(it, [*theirs, *ours])
            assert all(units >= 0 for units in free.values())
            gpu = max(free, key=lambda index: free[index])
            if not free[gpu]:
                break
            pod = memory(it.inventory, gpu, choose.randint(1, free[gpu]))
            ours.append(await it.bind(pod))
            units = int(pod["metadata"]["annotations"][POD])
            got = (await it.kubelet.manager.admit(pod))["main"]
            assert got[VISIBLE] == it.inventory.by_index[gpu].uuid
            it.live.add(pod["metadata"]["uid"])
            real[gpu] += units
            assert real[gpu] <= 16
            await until(lambda pod=pod: it.annotations(pod)[ASSIGNED] == "true")  # type: ignore[misc]
        # What cannot be had are ids, or memory: never both of one GPU.
        assert all(real[index] == 16 or named(it)[index] == 16 for index in range(3))
        assert it.plugin.counters.corrections == it.plugin.counters.rejections == 0

        # When they have ended, every GPU is whole again.
        for pod in theirs:
            uid = pod["metadata"]["uid"]
            it.kubelet.manager.active.discard(uid)
            it.live.discard(uid)
            await it.api.put(
                path_of(pod),
                {**pod, "status": {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}},
            )
        it.kubelet.manager.purge()
        it.kubelet.manager.write()
        await until(lambda: "gpushare/held" not in it.api.objects[NODE]["metadata"]["annotations"])
        assert it.plugin.node.usage.displaced() == {}


async def test_their_containers_start_again_and_what_nobody_planned_gets_no_memory_of_theirs() -> None:
    choose = random.Random(3)
    async with world(16 * GIB, 16 * GIB) as it:
        theirs = await started_by_the_original(it, choose, (0, 8), (0, 8))
        await until(lambda: published(it))
        for pod in theirs:
            assert (await it.kubelet.manager.start(pod, pod["spec"]["containers"][0]))[VISIBLE] == "0"
        # GPU 0 is full, although kubelet has ids of it free.
        assert named(it)[0] < 16
        unplanned = await it.bind(memory(None, 0, 2))
        got = (await it.kubelet.manager.admit(unplanned))["main"]
        assert got[VISIBLE] == it.inventory.by_index[1].uuid


async def test_a_plugin_that_starts_again_counts_them_as_before() -> None:
    choose = random.Random(5)
    async with world(16 * GIB, 16 * GIB) as it:
        theirs = await started_by_the_original(it, choose, (1, 9), (1, 3))
        await until(lambda: published(it))
        before = it.plugin.node.usage.units_by_gpu(it.inventory)
        # As from the file of the process before, which has their ids alone, and then from the checkpoint.
        usage, recorder = it.plugin.node.usage, it.plugin.node.recorder
        recorder.restore(usage.snapshot(), usage.names())
        assert usage.displaced() == {}
        recorder.set_checkpoint(usage.entries)
        assert usage.units_by_gpu(it.inventory) == before == {gpu.uuid: (0, 12)[gpu.index] for gpu in it.inventory.gpus}
        await it.stays(lambda: [it.patches(pod) for pod in theirs] == [0, 0])


@pytest.mark.parametrize(
    ("environment", "index"),
    [
        (answer(0, 2), 0),
        (answer(13, 2), 13),
        # On a node with one GPU it names that by its UUID; ours always does. Where it fails it names none.
        ({**answer(0, 2), VISIBLE: "GPU-8f6d510d-f037-46b6-8f9d-3e6d2f1c0a01"}, None),
        ({**answer(0, 2), VISIBLE: "no-gpu-has-2GiB-to-run", IDX: "-1"}, None),
        ({VISIBLE: "0"}, None),
        ({**answer(0, 2), VISIBLE: "1"}, None),
        ({**answer(0, 2), VISIBLE: "0,1"}, None),
        ({**answer(0, 2), VISIBLE: "²", IDX: "²"}, None),
        ({**answer(0, 2), VISIBLE: "9" * 400, IDX: "9" * 400}, None),
        ({}, None),
    ],
)
def test_whose_answer_it_is(environment: dict[str, str], index: int | None) -> None:
    assert given_index({"ResourceName": MEMORY, "AllocResp": _response(environment)}) == index
    assert given_index({"ResourceName": "nvidia.com/gpu", "AllocResp": _response(environment)}) is None


@pytest.mark.parametrize("response", [None, 7, "", "%", "AAAA", "/////w==", "A" * 101])
def test_an_answer_that_cannot_be_read_is_nobodys(response: object) -> None:
    assert given_index({"ResourceName": MEMORY, "AllocResp": response}) is None
