# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The whole plugin with the back end DRA: claims instead of ids, and a pod's memory is limited and watched by them all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.load import Load
from gpushare_runtime.core.quantity import GIB as UNIT
from gpushare_runtime.core.use_report import UseReport
from gpushare_runtime.device_plugin.dra_backend import ids_of
from gpushare_runtime.device_plugin.host import usage_file
from gpushare_runtime.device_plugin.node import pod_state
from gpushare_runtime.device_plugin.options import parse_arguments
from gpushare_runtime.device_plugin.publish import use_reports
from gpushare_runtime.dra import prepared
from gpushare_runtime.dra.claims import parse_claim
from gpushare_runtime.dra.proto import dra_pb2 as pb
from gpushare_runtime.dra.proto.dra_pb2_grpc import DRAPluginStub
from unit.fakes.runtime.device_plugin.plugin import GIB, NODE, World, metric, world
from unit.fakes.runtime.dra.claims import A30, T4, claim, pod
from unit.fakes.runtime.kube.fake_api import until

HERE = Inventory(UNIT, (T4, A30))
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
POD = "/api/v1/namespaces/default/pods/p1"
SLICE = "/apis/resource.k8s.io/v1/resourceslices/gpu1-gpushare.kubernetes-0"


@asynccontextmanager
async def claims_world(folder: Path, **settings: Any) -> AsyncIterator[tuple[World, Path]]:
    """A plugin with a GPU of 16 GiB that publishes it and has registered, and kubelet's folder of registrations. folder: of CDI specs."""
    async with world(16 * GIB, registered=False, backend="dra", cdi_folders=(str(folder),), **settings) as it:
        registry = it.kubelet.directory.parent / "data/plugins_registry"
        registry.mkdir(parents=True)
        await until(lambda: len(sockets(registry)) == 1 and SLICE in it.api.objects)
        yield it, registry


def test_ids_of_a_claim_are_as_many_as_its_units_and_no_other_claims() -> None:
    first, second = (parse_claim(claim(uid, [(T4, "6Gi"), (A30, "6Gi")]), "gpu1", HERE) for uid in ("c1", "c2"))
    ids = ids_of(first)["aliyun.com/gpu-mem"]
    assert len(ids) == len(set(ids)) == 12
    assert ids == ids_of(first)["aliyun.com/gpu-mem"]
    assert not set(ids) & set(ids_of(second)["aliyun.com/gpu-mem"])


def test_a_whole_gpu_is_one_unless_a_limit_of_memory_asked_for_all_of_it() -> None:
    whole = parse_claim(claim("c1", [(T4, "15Gi")], name="mine"), "gpu1", HERE)
    assert ids_of(whole) == {"aliyun.com/gpu-count": [T4.uuid]}
    assert set(ids_of(parse_claim(claim("c1", [(T4, "15Gi")]), "gpu1", HERE))) == {"aliyun.com/gpu-mem"}


async def test_a_pod_with_a_whole_gpu_has_it_whole_over_a_restart_of_the_plugin(tmp_path: Path) -> None:
    """Else it would have both kinds of ids for it, and count as a pod that is gone."""
    async with claims_world(tmp_path, isolation="driver") as (it, registry):
        gpu = it.inventory.gpus[0]
        await it.api.put(POD, pod("p1", {"w": "c1"}))
        await it.api.put(f"{CLAIMS}/c1", claim("c1", [(gpu, "16Gi")], pods=["p1"], name="mine"))
        it.live.add("p1")
        it.host.pods.add("p1")
        assert await prepare(it, registry, "c1") == {"c1": ""}
        await until(lambda: it.plugin.node.pods.get("p1"))
        await it.stop()
        it.start()
        await until(lambda: "ok: ResourceSlices" in it.plugin.status.report()[1] and it.plugin.node.pods.get("p1"))

        def unchanged() -> bool:
            usage = it.plugin.node.usage
            counted = usage.units_by_pod(it.plugin.node.devices.inventory) == {("p1", gpu.uuid): 16}
            return counted and not usage.orphaned() and usage.gpu_users().whole == {gpu.uuid: "p1"} and not it.nvml.limits

        await it.stays(unchanged)
        assert not any(device.get("taints") for device in it.api.objects[SLICE]["spec"]["devices"])


def sockets(folder: Path) -> list[Path]:
    return list(folder.glob("*.sock"))


async def prepare(it: World, folder: Path, *uids: str) -> dict[str, str]:
    """Claim → error."""
    (socket,) = sockets(folder)
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace="default", uid=uid, name=uid) for uid in uids])
        found = (await DRAPluginStub(channel).NodePrepareResources(request, timeout=60)).claims
        return {uid: answer.error for uid, answer in found.items()}


async def release(folder: Path, uid: str) -> None:
    (socket,) = sockets(folder)
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        request = pb.NodeUnprepareResourcesRequest(claims=[pb.Claim(namespace="default", uid=uid, name=uid)])
        await DRAPluginStub(channel).NodeUnprepareResources(request, timeout=60)


async def test_a_claims_pod_has_its_limit_before_it_starts(tmp_path: Path) -> None:
    async with claims_world(tmp_path, isolation="driver") as (it, registry):
        gpu = it.inventory.gpus[0]
        it.host.pods.add("p1")
        await it.api.put(f"{CLAIMS}/c1", claim("c1", [(gpu, "6Gi")], pods=["p1"]))
        assert await prepare(it, registry, "c1") == {"c1": ""}
        group = f"{it.host.root}/kubepods/podp1"
        assert it.nvml.limits[gpu.uuid, group] == 6 * 1024**3
        # A pod without a control group that can be limited does not start.
        await it.api.put(f"{CLAIMS}/c2", claim("c2", [(gpu, "6Gi")], pods=["p2"]))
        assert "control group" in (await prepare(it, registry, "c2"))["c2"]
        # kubelet's device plugins are none of ours, and slices say what there is.
        assert it.kubelet.registrations == []
        assert it.api.objects[NODE]["metadata"]["annotations"].keys() <= {"gpushare/use"}


async def test_a_gpu_on_which_a_pod_that_is_gone_has_processes_takes_no_other(tmp_path: Path) -> None:
    """kube-scheduler has given its memory away with the claim."""
    async with claims_world(tmp_path) as (it, registry):
        await it.api.put(POD, pod("p1", {"gpushare-m6": "c1"}))
        await it.api.put(f"{CLAIMS}/c1", claim("c1", [(it.inventory.gpus[0], "6Gi")], pods=["p1"]))
        it.live.add("p1")
        assert await prepare(it, registry, "c1") == {"c1": ""}
        await until(lambda: it.plugin.node.pods.get("p1"))

        def taints() -> list[str]:
            (device,) = it.api.objects[SLICE]["spec"]["devices"]
            return [taint["value"] for taint in device.get("taints", ())]

        assert taints() == []
        # By force.
        await it.api.remove(POD)
        await release(registry, "c1")
        await until(lambda: taints() == ["in-use"])
        it.live.discard("p1")
        await until(lambda: taints() == [])


@pytest.mark.parametrize("met", [True, False])
async def test_a_gpu_takes_no_other_pod_once_the_claim_of_one_that_runs_is_found_missing(
    met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has deleted it past Kubernetes' controller, so that kube-scheduler sends pod after pod. met: by the first of these."""
    if not met:
        monkeypatch.setattr(prepared, "TURN_SECONDS", 0.05)
    async with claims_world(tmp_path) as (it, registry):
        gpu = it.inventory.gpus[0]
        await it.api.put(POD, pod("p1", {"gpushare-m12": "c1"}))
        await it.api.put(f"{CLAIMS}/c1", claim("c1", [(gpu, "12Gi")], pods=["p1"]))
        it.live.add("p1")
        assert await prepare(it, registry, "c1") == {"c1": ""}

        def taints() -> list[str]:
            return [taint["value"] for device in it.api.objects[SLICE]["spec"]["devices"] for taint in device.get("taints", ())]

        assert taints() == []
        await it.api.remove(f"{CLAIMS}/c1")
        await it.api.put(f"{CLAIMS}/c2", claim("c2", [(gpu, "12Gi")], pods=["p2"]))
        if met:
            assert "default/c1" in (await prepare(it, registry, "c2"))["c2"]
        await until(lambda: taints() == ["in-use"])
        it.live.discard("p1")
        await it.api.remove(POD)
        await release(registry, "c1")
        await until(lambda: taints() == [])
        assert await prepare(it, registry, "c2") == {"c2": ""}


async def test_a_gpu_stays_closed_over_a_restart_of_the_plugin_while_a_pod_that_is_gone_has_processes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no claim is left on the node."""
    async with claims_world(tmp_path) as (it, registry):
        await it.api.put(POD, pod("p1", {"gpushare-m6": "c1"}))
        await it.api.put(f"{CLAIMS}/c1", claim("c1", [(it.inventory.gpus[0], "6Gi")], pods=["p1"]))
        it.live.add("p1")
        assert await prepare(it, registry, "c1") == {"c1": ""}
        await until(lambda: it.plugin.node.pods.get("p1"))
        await it.api.remove(POD)
        await it.api.remove(f"{CLAIMS}/c1")
        await release(registry, "c1")

        def taints() -> list[str]:
            return [taint["value"] for device in it.api.objects[SLICE]["spec"]["devices"] for taint in device.get("taints", ())]

        await until(lambda: taints() == ["in-use"])
        (line,) = (record for record in caplog.records if "which is gone" in record.getMessage())
        assert line.about["pod"] == "default/p1"  # type: ignore[attr-defined]
        assert line.about["gpu"] == "0"  # type: ignore[attr-defined]
        await until(lambda: b"p1" in (it.kubelet.directory.parent / "state" / usage_file.NAME).read_bytes())
        await it.api.put(f"{CLAIMS}/c2", claim("c2", [(it.inventory.gpus[0], "14Gi")], pods=["p2"]))
        assert "default/p1" in (await prepare(it, registry, "c2"))["c2"]
        await it.stop()
        generation = it.api.objects[SLICE]["spec"]["pool"]["generation"]
        it.start()
        # Whatever this process knows by now, it has not opened the GPU.
        await until(lambda: "ok: ResourceSlices" in it.plugin.status.report()[1])
        await it.stays(lambda: taints() == ["in-use"])
        assert it.api.objects[SLICE]["spec"]["pool"]["generation"] == generation
        # The API server says nothing of the pod for a while.
        monkeypatch.setattr(pod_state, "GRACE", 0.1)
        await it.stays(lambda: taints() == ["in-use"])
        await until(lambda: any(state.alive for state in it.plugin.node.usage.states.values()))
        assert taints() == ["in-use"]
        # As kubelet does when it starts, or has had no driver for 30 s.
        await it.stop()
        await it.api.remove(SLICE)
        it.start()
        await until(lambda: SLICE in it.api.objects)
        await it.stays(lambda: taints() == ["in-use"])
        assert "default/p1" in (await prepare(it, registry, "c2"))["c2"]
        it.live.discard("p1")
        await until(lambda: taints() == [])
        assert await prepare(it, registry, "c2") == {"c2": ""}


async def test_the_containers_of_a_claims_pod_are_those_that_use_the_gpu_and_the_node_publishes_its_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_reports, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(use_reports, "WRITE_SECONDS", 0.0)
    async with claims_world(tmp_path) as (it, registry):
        gpu = it.inventory.gpus[0]
        runs = pod("p1", {"gpushare-m6": "c1"})
        runs["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}, "containerID": "containerd://x1"}]
        await it.api.put(POD, runs)
        await it.api.put(f"{CLAIMS}/c1", claim("c1", [(gpu, "6Gi")], pods=["p1"]))
        it.live.add("p1")
        assert await prepare(it, registry, "c1") == {"c1": ""}
        await until(lambda: it.plugin.node.pods.get("p1"))
        memory = it.plugin._memory
        await until(lambda: it.plugin.node.usage.gpu_uuids() and gpu.uuid in memory.use.measured)
        memory._observe_containers()
        assert memory.container_loads == {}
        it.host.processes[7], it.host.containers[7] = (7, "p1"), "x1"
        it.nvml.using[gpu.uuid] = [(7, GIB * 1024 * 1024)]
        it.nvml.busy[gpu.uuid] = {7: Load(60)}
        await until(lambda: set(memory.container_loads) == {("p1", gpu.uuid, "main")})

        def published() -> UseReport:
            return UseReport.from_json(it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/use", '{"v": 1, "at": 0}'))

        await until(lambda: ("p1", 0) in published().pods and published().pods["p1", 0].mib == GIB)
        assert published().pods["p1", 0].peak == GIB
        assert metric(it, "claims_prepared") == ["gpushare_device_plugin_claims_prepared 1.0"]


def test_only_claims_evict_the_pods_of_a_gpu_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--node-name=gpu1", "--unhealthy=evict"])
    assert "--backend dra" in capsys.readouterr().err
    assert parse_arguments(["--node-name=gpu1", "--unhealthy=evict", "--backend=dra"]).unhealthy == "evict"


@pytest.mark.parametrize("wrong", [["--isolation=mps"], ["--mps"], ["--device-strategy=volume-mounts"]])
def test_what_claims_cannot_give_is_rejected_at_the_start(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--node-name=gpu1", "--backend=dra", *wrong])
    assert "--backend dra" in capsys.readouterr().err
    assert parse_arguments(["--node-name=gpu1", "--backend=dra", "--device-strategy=auto", "--in-container"]).strategy == "cdi"
