# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Behind the original's extender, which knows five annotations, the node's two capacities and one ConfigMap."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import GIB, GPUS, MEMORY, World, path_of, world
from unit.fakes.runtime.kube.fake_api import until

IDX, DEV, POD, ASSIGNED, TIME = (f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "DEV", "POD", "ASSIGNED", "ASSUME_TIME"))
UNHEALTHY = "/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-gpu1"


class OriginalExtender:
    """Its placement on one node (pkg/cache/nodeinfo.go): all GPUs alike, the fullest that fits; used from annotations."""

    def __init__(self, it: World) -> None:
        self._it = it
        self.pods: list[dict[str, Any]] = []
        self._time = 1_774_000_000_000_000_000

    def _capacity(self, resource: str) -> int:
        return len(self._it.kubelet.lists[resource][-1])

    def unhealthy(self) -> set[int]:
        """As it reads the ConfigMap: what is no number counts as GPU 0."""
        data: Mapping[str, str] = self._it.api.objects.get(UNHEALTHY, {}).get("data") or {}
        return {int(text) if text.isdecimal() else 0 for text in data["gpus"].split(",")} if "gpus" in data else set()

    def bind(self, units: int) -> dict[str, Any] | None:
        """The pod as it is once it is bound, None if no GPU has room."""
        total = self._capacity(MEMORY) // self._capacity(GPUS)
        free = {gpu: total for gpu in range(self._capacity(GPUS)) if gpu not in self.unhealthy()}
        for pod in self.pods:
            annotations = pod["metadata"]["annotations"]
            if int(annotations[IDX]) in free:
                free[int(annotations[IDX])] -= int(annotations[POD])
        fitting = [gpu for gpu in free if free[gpu] >= units]
        if not fitting:
            return None
        self._time += 1
        gpu = min(fitting, key=lambda index: (free[index], index))
        pod = memory(None, gpu, units)
        pod["metadata"]["annotations"] = {IDX: str(gpu), DEV: str(total), POD: str(units), ASSIGNED: "false", TIME: str(self._time)}
        self.pods.append(pod)
        return pod


async def test_every_pod_gets_the_gpu_that_the_original_chose_and_is_marked_as_it_expects() -> None:
    choose = random.Random(7)
    async with world(16 * GIB, 16 * GIB, 16 * GIB) as it:
        extender = OriginalExtender(it)
        seen: set[str] = set()
        for _ in range(20):
            made = [pod for pod in (extender.bind(choose.choice((3, 3, 5))) for _ in range(4)) if pod]
            for pod in made:
                await it.bind(pod)
            for pod in made:
                got = (await it.kubelet.manager.admit(pod))["main"]
                before = pod["metadata"]["annotations"]
                assert (got[IDX], got[DEV], got[POD]) == (before[IDX], before[DEV], before[POD])
                assert got["NVIDIA_VISIBLE_DEVICES"] == it.inventory.by_index[int(before[IDX])].uuid
                seen.add(before[IDX])
            for pod in made:
                await until(lambda pod=pod: it.annotations(pod)[ASSIGNED] == "true")  # type: ignore[misc]
                assert it.annotations(pod) == pod["metadata"]["annotations"] | {ASSIGNED: "true"}
            for pod in choose.sample(extender.pods, len(extender.pods) // 3):
                extender.pods.remove(pod)
                it.kubelet.manager.active.discard(pod["metadata"]["uid"])
                ended = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}
                await it.api.put(path_of(pod), {**pod, "status": ended})
                await until(lambda pod=pod: it.plugin.node.pods.get(pod["metadata"]["uid"]).finished)  # type: ignore[misc, union-attr]
        assert seen == {"0", "1", "2"}
        assert (it.plugin.counters.corrections, it.plugin.counters.rejections, it.plugin.counters.unplanned) == (0, 0, 0)


async def test_its_list_of_bad_gpus_names_them_and_is_empty_again_when_they_recover() -> None:
    async with world(8 * GIB, 8 * GIB, 8 * GIB) as it:
        extender = OriginalExtender(it)
        it.nvml.lost = {1, 2}
        await until(lambda: extender.unhealthy() == {1, 2})
        it.nvml.lost = set()
        await until(lambda: extender.unhealthy() == set())
