# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The plugin as a whole: it registers, steers, corrects, publishes, and comes back from what goes wrong around it."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from aiohttp import web

from gpushare_runtime.core.quantity import UNITS
from gpushare_runtime.daemon import grpc_socket
from gpushare_runtime.daemon.runner import FatalError
from gpushare_runtime.device_plugin import main
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.kubelet import registration, server
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.proto.deviceplugin_pb2_grpc import DevicePluginServicer, RegistrationStub
from gpushare_runtime.device_plugin.node.local_pods import UNREADABLE, LocalPod
from unit.fakes.runtime.device_plugin.device_manager import AdmissionError
from unit.fakes.runtime.device_plugin.fake_kubelet import MESSAGE_BYTES
from unit.fakes.runtime.device_plugin.fake_nvml import facts
from unit.fakes.runtime.device_plugin.fake_pod_resources import serving_pod_resources
from unit.fakes.runtime.device_plugin.local_pods import bound, memory, whole
from unit.fakes.runtime.device_plugin.plugin import GIB, GPUS, MEMORY, NODE, RESOURCES, World, healthy, path_of, world
from unit.fakes.runtime.kube.fake_api import fail, until
from unit.fakes.runtime.pods import container

# Five times what is aimed at: 1 s after kubelet's socket appears; 500 ms of waiting for the watch.
REGISTERED_WITHIN = 5.0
ANSWERED_WITHIN = 2.5


async def test_both_resources_are_registered_with_their_ids() -> None:
    async with world(16 * GIB, 24 * GIB) as it:
        assert len(it.kubelet.lists[MEMORY][0]) == 40
        assert list(it.kubelet.lists[GPUS][0]) == [gpu.uuid for gpu in it.inventory.gpus]
        assert f"{it.inventory.gpus[1].uuid}-_-23" in it.kubelet.lists[MEMORY][0]
        assert set(it.kubelet.lists[MEMORY][0].values()) == {"Healthy"}
        assert {(o.get_preferred_allocation_available, o.pre_start_required) for o in it.kubelet.options.values()} == {(True, True)}
        await until(lambda: it.plugin.status.ready)
        expected = ["aliyungpushare-gpus-*.sock", "aliyungpushare-mem-*.sock", "kubelet.sock"]

        def sockets() -> list[str]:
            names = sorted(path.name for path in it.kubelet.directory.iterdir() if path.is_socket())
            return [re.sub("-[0-9a-f]{8}[.]", "-*.", name) for name in names]

        # On a busy machine a resource may be registering once more.
        await until(lambda: sockets() == expected)
        assert {path.stat().st_mode & 0o777 for path in it.kubelet.directory.glob("aliyun*")} == {0o600}


async def test_a_pod_gets_its_gpu_and_is_marked_assigned_with_one_patch() -> None:
    async with world(16 * GIB, 16 * GIB) as it:
        await until(lambda: it.plugin.node.pods.synced)
        pod = await it.bind(memory(it.inventory, 1, 6))
        got = await it.kubelet.manager.admit(pod)
        annotations = pod["metadata"]["annotations"]
        assert got["main"] == {
            "NVIDIA_VISIBLE_DEVICES": it.inventory.gpus[1].uuid,
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_DEV": "16",
            "ALIYUN_COM_GPU_MEM_POD": "6",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "6",
        }
        await until(lambda: it.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true")
        assert it.annotations(pod) == annotations | {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
        # The node's annotations go by PATCH, too.
        assert pod["metadata"]["uid"] in [body.get("metadata", {}).get("uid") for body in it.api.bodies]
        await it.stays(lambda: it.patches(pod) == 1)
        assert (it.plugin.counters.allocations, it.plugin.counters.corrections, it.plugin.counters.unplanned) == (1, 0, 0)


async def asked_early(it: World) -> tuple[dict[str, Any], asyncio.Task[Any]]:
    """(a pod of 6 units of GPU 1 that the watch has not shown, kubelet's admission of it, which waits)."""
    await until(lambda: it.plugin.node.pods.synced)
    pod = memory(it.inventory, 1, 6)
    begun = it.plugin.node.turns.changes.count
    admission = asyncio.ensure_future(it.kubelet.manager.admit(pod))
    await until(lambda: it.plugin.node.turns.changes.count > begun)
    assert not admission.done()
    return pod, admission


async def test_kubelet_may_ask_before_the_watch_has_shown_the_pod() -> None:
    async with world(16 * GIB, 16 * GIB) as it:
        pod, admission = await asked_early(it)
        await it.bind(pod)
        assert (await admission)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"


async def test_a_pod_on_another_gpu_than_annotated_is_corrected_once() -> None:
    async with world(16 * GIB, 16 * GIB) as it:
        await until(lambda: it.plugin.node.pods.synced)
        pod = memory(it.inventory, 1, 6, name="late")
        started = time.monotonic()
        got = await it.kubelet.manager.admit(pod)
        assert time.monotonic() - started < ANSWERED_WITHIN
        assert got["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"
        await it.bind(pod)
        await until(lambda: it.annotations(pod)["ALIYUN_COM_GPU_MEM_IDX"] == "0")
        corrected = it.annotations(pod)
        assert json.loads(corrected["scheduler.framework.gpushare.allocation"]) == {"0": {"0": 6}}
        assert corrected["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
        assert corrected["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] == pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSUME_TIME"]
        await it.stays(lambda: (it.patches(pod), it.plugin.counters.corrections) == (1, 1))


async def test_marking_waits_for_an_api_server_that_fails_and_holds_up_nobody() -> None:
    async with world(16 * GIB, 16 * GIB) as it:
        first = await it.bind(memory(it.inventory, 1, 6))
        await until(lambda: len(list(it.plugin.node.pods)) == 1)
        it.api.faults += [fail(500), fail(503)]
        await it.kubelet.manager.admit(first)
        second = await it.bind(memory(it.inventory, 0, 6))
        assert (await it.kubelet.manager.admit(second))["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"
        for pod in (first, second):
            await until(lambda pod=pod: it.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true")  # type: ignore[misc]


async def test_a_rejection_reaches_kubelet_in_words() -> None:
    async with world(16 * GIB) as it:
        await it.kubelet.manager.admit(await it.bind(whole(it.inventory, 0, name="big")))
        with pytest.raises(
            AdmissionError,
            match=r"FAILED_PRECONDITION: aliyun.com/gpu-mem: asked for 2 units of 1 GiB .* GPU 0 is allocated whole to pod default/big",
        ):
            await it.kubelet.manager.admit(await it.bind(memory(it.inventory, 0, 2)))
        assert it.plugin.counters.rejections == 1


async def test_after_a_restart_of_kubelet_it_is_registered_again_and_what_was_given_stays_given() -> None:
    async with world(16 * GIB, 16 * GIB) as it:
        await it.kubelet.manager.admit(await it.bind(whole(it.inventory, 0)))
        for _ in range(3):
            await it.kubelet.restart()
            await it.registered()
            assert max(seconds for _, seconds in it.kubelet.registrations) < REGISTERED_WITHIN
            assert sorted(resource for resource, _ in it.kubelet.registrations) == sorted(RESOURCES)
        got = await it.kubelet.manager.admit(await it.bind(memory(it.inventory, 1, 16)))
        assert got["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"


async def test_a_kubelet_that_leaves_our_socket_in_place_is_noticed_by_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # And not by its silence.
    monkeypatch.setattr(registration, "_STREAM_SECONDS", 600.0)
    async with world(16 * GIB) as it:
        await it.kubelet.stop()
        it.kubelet.registrations.clear()
        await it.kubelet.start(sweep=False)
        await until(lambda: {resource for resource, _ in it.kubelet.registrations} == RESOURCES)


async def test_it_waits_for_kubelet_and_then_for_its_answer() -> None:
    async with world(16 * GIB, kubelet=False) as it:
        await until(lambda: "waiting for kubelet, whose socket" in it.plugin.status.report()[1])
        await until(lambda: it.plugin.status.ready)
        it.kubelet.reject_registration = True
        await it.kubelet.start()
        await until(lambda: it.kubelet.rejected >= 2 * len(RESOURCES))
        assert it.plugin.status.readiness()[0] == [GPUS, MEMORY]
        it.kubelet.reject_registration = False
        await it.registered()
        await until(lambda: it.plugin.status.readiness() == ([], []))


async def test_it_has_started_when_it_waits_for_the_kubelet_whose_socket_is_left() -> None:
    """So that systemd starts kubelet, which it does after this process, and kubelet finds it waiting."""
    async with world(16 * GIB, kubelet=False) as it:
        it.kubelet.directory.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(it.kubelet.directory / "kubelet.sock"))
        await until(lambda: it.plugin.status.ready)
        await until(lambda: "waiting for kubelet, which does not answer at" in it.plugin.status.report()[1])
        assert it.plugin.status.readiness()[0] == [GPUS, MEMORY]


async def test_kubelet_waits_for_a_driver_that_hangs_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main.START_SECONDS == 20.0
    monkeypatch.setattr(main, "START_SECONDS", 0.3)
    async with world(kubelet=False) as it:
        it.nvml.failure = NvmlError("the NVIDIA kernel driver is not loaded")
        assert not it.plugin.status.ready
        await until(lambda: it.plugin.status.ready)
        assert it.plugin.status.readiness()[0] == [GPUS, MEMORY]


async def test_a_socket_that_somebody_removed_is_made_again() -> None:
    async with world(16 * GIB) as it:
        it.kubelet.lists.clear()
        socket_of(it, "mem").unlink()
        await until(lambda: MEMORY in it.kubelet.lists)
        assert sorted(resource for resource, _ in it.kubelet.registrations) == sorted([*RESOURCES, MEMORY])


def socket_of(it: World, resource: str) -> Path:
    (path,) = it.kubelet.directory.glob(f"aliyungpushare-{resource}-*.sock")
    return path


EITHER = pytest.mark.parametrize("by_socket", [False, True], ids=["kubelet 1.36", "kubelet 1.37"])


@EITHER
@pytest.mark.parametrize("restarts", [False, True], ids=["", "and restarts"])
async def test_a_kubelet_that_was_frozen_takes_this_process_and_the_next(
    monkeypatch: pytest.MonkeyPatch, by_socket: bool, restarts: bool
) -> None:
    """Of several requests that it finds when it awakes, it must not keep one whose socket the next ones have."""
    async with world(16 * GIB, by_socket=by_socket) as it:
        assert registration.REGISTER_SECONDS == 15.0
        monkeypatch.setattr(registration, "REGISTER_SECONDS", 0.1)
        await it.stop()
        await until(lambda: it.kubelet.reading == 0)
        it.kubelet.awake.clear()
        it.kubelet.asked.clear()
        it.start()
        await until(lambda: len(it.kubelet.asked) >= 3 * len(RESOURCES))
        await until(lambda: "kubelet rejects the registration (DEADLINE_EXCEEDED" in it.plugin.status.report()[1])
        assert len(set(it.kubelet.asked)) == len(it.kubelet.asked)
        monkeypatch.setattr(registration, "REGISTER_SECONDS", 15.0)
        it.kubelet.awake.set()
        if restarts:
            await it.kubelet.restart()
        for _ in range(2):
            await it.registered()
            await until(lambda: it.plugin.status.readiness() == ([], []))
            await until(lambda: healthy(it) == 16)
            await it.stop()
            it.start()
        await it.registered()


@EITHER
async def test_a_process_that_does_not_end_keeps_no_other_from_registering(by_socket: bool) -> None:
    """As one in the driver: its list stays open. kubelet 1.37 keeps its socket."""
    async with world(16 * GIB, by_socket=by_socket) as it:
        hangs, first = it.plugin, it.task
        try:
            for _ in range(2):
                it.start()
                await it.registered()
                await until(lambda: it.plugin.status.readiness() == ([], []))
                pod = await it.bind(memory(it.inventory, 0, 2))
                await until(lambda uid=pod["metadata"]["uid"]: it.plugin.node.pods.get(uid))  # type: ignore[misc]
                await it.kubelet.manager.admit(pod)
                assert (it.plugin.counters.allocations, hangs.counters.allocations) == (1, 0)
                await it.stop()
                # kubelet has dropped its lists: then it goes on with the one that hangs, until another process registers.
                await until(lambda: it.kubelet.reading == len(RESOURCES))
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)


async def test_what_processes_before_left_goes_and_what_others_serve_stays() -> None:
    async with world(16 * GIB, kubelet=False) as it:
        folder = it.kubelet.directory
        folder.mkdir(exist_ok=True)
        await it.kubelet.start()
        await it.registered()
        await it.stop()
        names = (
            "aliyungpushare.sock",
            "aliyungpushare-gpus.sock",
            "aliyungpushare-mem-01234567.sock",
            "aliyungpushare-mem-x.sock",
            "n.sock",
        )
        for name in names:
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(folder / name))
        (folder / "aliyungpushare-mem-00000000.sock").write_text("no socket")
        with socket.socket(socket.AF_UNIX) as served:
            served.bind(str(folder / "aliyungpushare-gpus-89abcdef.sock"))
            served.listen(1)
            it.start()
            await it.registered()
            gone = [*names[:3], "aliyungpushare-mem-00000000.sock"]
            await until(lambda: not any((folder / name).exists() for name in names[:3]))
            assert [name for name in gone if (folder / name).exists()] == ["aliyungpushare-mem-00000000.sock"]
            assert all((folder / name).exists() for name in (*names[3:], "aliyungpushare-gpus-89abcdef.sock"))


@EITHER
async def test_after_another_plugin_for_the_resource_ours_registers_again(by_socket: bool) -> None:
    """kubelet reads our list all the time: up to 1.36 it has no healthy id when the other one ends, then it goes on with that one's."""
    async with world(16 * GIB, by_socket=by_socket) as it, serving_pod_resources(it.kubelet.directory.parent / "data") as resources:
        resources.healthy = it.kubelet.manager.healthy
        ours = set(it.kubelet.manager.healthy[MEMORY])
        other = server.PluginServer(OtherService(), it.kubelet.directory / "other.sock")  # type: ignore[arg-type]
        await other.start()
        it.kubelet.registrations.clear()
        async with grpc.aio.insecure_channel(f"unix:{it.kubelet.directory}/kubelet.sock") as channel:
            asked = pb.RegisterRequest(version="v1beta1", endpoint="other.sock", resource_name=MEMORY)
            await RegistrationStub(channel).Register(asked)  # type: ignore[no-untyped-call]
        await until(lambda: it.kubelet.manager.healthy[MEMORY] == {"another"})
        await other.stop(0)
        await until(lambda: it.kubelet.manager.healthy[MEMORY] == ours)
        pod = await it.bind(memory(it.inventory, 0, 2))
        await until(lambda: it.plugin.node.pods.get(pod["metadata"]["uid"]))
        await it.kubelet.manager.admit(pod)
        registered = [resource for resource, _ in it.kubelet.registrations]
        assert registered.count(GPUS) == 0
        await it.stays(lambda: len(it.kubelet.registrations) == len(registered))


class OtherService(DevicePluginServicer):
    """Another plugin, with an id of its own."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID="another", health="Healthy")])
        await self._closed.wait()

    def close(self) -> None:
        self._closed.set()


async def test_a_kubelet_that_rejects_it_is_named_as_the_cure_and_nothing_ends() -> None:
    async with world(16 * GIB, kubelet=False) as it:
        it.kubelet.reject_registration = True
        await it.kubelet.start()
        words = "degraded: aliyun.com/gpu-mem: kubelet rejects the registration (UNKNOWN: planned): trying again; "
        await until(lambda: words + "if this stays: systemctl restart kubelet, and read its log" in it.plugin.status.report()[1])
        assert it.plugin.status.ready
        assert not it.task.done()


async def test_a_kubelet_that_has_hung_up_is_registered_with_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(16 * GIB) as it:
        monkeypatch.setattr(registration, "_STREAM_SECONDS", 0.1)
        it.kubelet.lists.clear()
        it.kubelet.drop_lists()
        await until(lambda: set(it.kubelet.lists) == RESOURCES)


async def test_without_nvml_nothing_is_registered_until_it_answers() -> None:
    async with world(kubelet=True, registered=False) as it:
        it.nvml.failure = NvmlError("the NVIDIA kernel driver is not loaded")
        await until(lambda: it.nvml.starts >= 3)
        assert it.kubelet.registrations == []
        assert not it.plugin.status.ready
        it.nvml.failure = None
        await until(lambda: "NVML lists no GPU" in it.plugin.status.report()[1])
        await it.stays(lambda: it.kubelet.registrations == [])
        it.nvml.gpus = [facts(0, 16 * GIB)]
        await it.registered()


async def test_gpus_that_are_exchanged_reach_kubelet_and_the_annotation() -> None:
    async with world(16 * GIB) as it:
        it.nvml.gpus = [facts(0, 8 * GIB, uuid="GPU-new"), facts(1, 4 * GIB)]
        await until(lambda: len(it.kubelet.lists[MEMORY][-1]) == 12)
        await until(lambda: len(it.kubelet.lists[GPUS][-1]) == 2)
        await until(lambda: "GPU-new" in it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/gpus", ""))


async def test_a_container_reports_that_its_library_is_old_before_it_ends() -> None:
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(main, "CONTAINER_ENDING_SECONDS", 0.5)
        async with world(4 * GIB, in_container=True) as it:
            it.nvml.failure = NvmlError("another version", reload=True)
            await until(lambda: it.plugin.status.readiness()[1] == ["gpus"])
            await until(lambda: not any(gpu.usable for gpu in it.inventory.gpus))
            assert not it.task.done()
            with pytest.raises(FatalError, match="another version: ending") as ended:
                await it.task
            assert ended.value.restart


async def test_a_lost_gpu_and_a_lost_driver_make_ids_unhealthy_and_they_recover() -> None:
    async with world(4 * GIB, 4 * GIB) as it:
        it.nvml.lost = {1}
        await until(lambda: sorted(it.kubelet.lists[MEMORY][-1].values()) == ["Healthy"] * 4 + ["Unhealthy"] * 4)
        it.nvml.failure = NvmlError("gone")
        await until(lambda: set(it.kubelet.lists[MEMORY][-1].values()) == {"Unhealthy"})
        await until(lambda: it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/gpus", "").count('"health":"gone"') == 2)
        it.nvml.failure, it.nvml.lost = None, set()
        await until(lambda: set(it.kubelet.lists[MEMORY][-1].values()) == {"Healthy"})


async def test_a_gpu_that_was_lost_stays_out_of_use_for_as_many_checks_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(4 * GIB, health_checks=40_000) as it:
        it.nvml.lost = {0}
        await until(lambda: set(it.kubelet.lists[MEMORY][-1].values()) == {"Unhealthy"})
        looks, facts = [], it.nvml.facts
        monkeypatch.setattr(it.nvml, "facts", lambda index: looks.append(index) or facts(index))
        it.nvml.lost = set()
        await until(lambda: len(looks) > 20)
        assert set(it.kubelet.lists[MEMORY][-1].values()) == {"Unhealthy"}


async def test_the_annotation_is_written_once_and_again_when_others_change_it() -> None:
    async with world(16 * GIB, registered=False) as it:

        def writes() -> int:
            return sum(method == "PATCH" and path == f"{NODE}/status" for method, path, _ in it.api.requests)

        await until(lambda: writes() == 1)
        wanted = it.inventory.to_json()
        assert it.api.objects[NODE]["metadata"]["annotations"] == {"gpushare/gpus": wanted}
        await it.stays(lambda: writes() == 1)
        await it.api.put(NODE, {"metadata": {"name": "gpu1", "annotations": {"gpushare/gpus": "{}", "other": "stays"}}})
        await until(lambda: writes() == 2)
        assert it.api.objects[NODE]["metadata"]["annotations"] == {"gpushare/gpus": wanted, "other": "stays"}


async def test_a_node_that_joins_later_gets_its_annotation_then() -> None:
    async with world(16 * GIB, node=False) as it:
        await it.api.put(NODE, {"metadata": {"name": "gpu1"}})
        await until(lambda: it.api.objects[NODE]["metadata"].get("annotations"))


async def test_a_unit_that_is_too_small_ends_it_with_the_unit_to_use() -> None:
    async with world(*[15360] * 8, unit=UNITS["MiB"], registered=False) as it:
        with pytest.raises(FatalError, match="use --memory-unit 64MiB"):
            await asyncio.wait_for(it.task, 5)


async def test_questions_larger_than_grpcs_default_are_answered() -> None:
    async with world(16 * GIB) as it:
        free = [f"{it.inventory.gpus[0].uuid}-_-{slot}" for slot in range(100_000)]
        assert sum(map(len, free)) > MESSAGE_BYTES
        assert len(await it.kubelet.prefer(MEMORY, free, [], 2)) == 2


async def test_when_stopped_it_takes_its_sockets_away_and_nothing_else() -> None:
    async with world(16 * GIB) as it:
        started = time.monotonic()
        await it.stop()
        assert time.monotonic() - started < ANSWERED_WITHIN
        left: set[Path] = set(it.kubelet.directory.iterdir())
        assert {path.name for path in left} == {"kubelet.sock", "kubelet_internal_checkpoint"}
        await until(lambda: it.kubelet.manager.healthy == {MEMORY: set(), GPUS: set()})


async def test_when_stopped_a_pod_that_kubelet_is_admitting_still_gets_its_gpu() -> None:
    async with world(16 * GIB, 16 * GIB) as it:
        pod, admission = await asked_early(it)
        stopping = asyncio.ensure_future(it.stop())
        # Its watch still runs, and so it knows which GPU; and it goes only when kubelet has asked for the ids as well.
        await asyncio.sleep(0.15)
        await it.bind(pod)
        assert (await admission)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"
        await asyncio.wait_for(stopping, ANSWERED_WITHIN)


async def test_a_directory_that_it_may_no_longer_write_ends_it_to_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd makes the directory writable that was there at the start; one that is made anew is read-only, as all of the host."""

    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    async with world(16 * GIB) as it:
        monkeypatch.setattr(grpc_socket, "try_binding", read_only)
        socket_of(it, "mem").unlink()
        with pytest.raises(FatalError, match="device-plugins was removed and created again") as caught:
            await asyncio.wait_for(it.task, ANSWERED_WITHIN)
        assert caught.value.restart


async def test_a_pod_recreated_under_its_name_is_not_marked_for_the_old_one() -> None:
    async with world(16 * GIB) as it:
        old, new = (memory(it.inventory, 0, 2, name="same", uid=uid) for uid in ("old", "new"))

        async def recreated(request: web.Request) -> None:
            """While the first PATCH of the old one is under way."""
            if request.path == f"{path_of(old)}/status":
                await it.api.remove(path_of(old))
                await it.bind(new)
            else:
                it.api.faults.append(recreated)

        await it.bind(old)
        await until(lambda: it.plugin.node.pods.get("old"))
        it.api.faults.append(recreated)
        await it.kubelet.manager.admit(old)
        await until(lambda: it.plugin.node.pods.get("new") and not it.plugin.node.pods.get("old"))
        await it.stays(lambda: it.annotations(new)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false")


async def test_a_pod_that_can_no_longer_be_read_is_not_known_as_it_was() -> None:
    async with world(16 * GIB) as it:
        pod = await it.bind(memory(it.inventory, 0, 2, uid="u", name="odd"))
        await until(lambda: it.plugin.node.pods.get("u"))
        before = it.plugin.node.pods.get("u")
        assert before is not None
        assert before.container_devices
        odd = {**pod, "status": {"phase": "Running", "containerStatuses": [None]}}
        odd["metadata"] = {**pod["metadata"], "deletionTimestamp": "2026-11-21T11:00:00Z"}
        await it.api.put(path_of(pod), odd)
        await until(lambda: it.plugin.node.pods.get("u") != before)
        bare = LocalPod("u", "default", "odd", before.created, "Running", terminating=True, problem=UNREADABLE)
        assert it.plugin.node.pods.get("u") == bare


def events(it: World) -> list[dict[str, Any]]:
    return [found for path, found in it.api.objects.items() if "/events/" in path]


async def test_a_static_pod_is_told_in_an_event_alone_and_under_the_uid_that_describe_looks_for() -> None:
    async with world(16 * GIB) as it:
        static = memory(None, 0, 2, uid="of-the-copy", annotations={"kubernetes.io/config.mirror": 32 * "a"})
        await it.bind(static)
        await until(lambda: it.plugin.node.pods.get(32 * "a"))
        got = await it.kubelet.manager.admit({**static, "metadata": {**static["metadata"], "uid": 32 * "a"}})
        assert got["main"]["ALIYUN_COM_GPU_MEM_POD"] == "2"
        await until(lambda: events(it))
        [event] = events(it)
        assert (event["type"], event["reason"], event["involvedObject"]["uid"]) == ("Warning", "GPUShareUnmanaged", 32 * "a")
        assert event["message"].startswith("No scheduler places a static pod; it has 2 units of GPU 0 (GPU-00000000")
        # The API's copy is kubelet's, which makes it anew when it is changed.
        assert it.patches(static) == 0


async def test_a_request_that_nobody_can_place_is_told_why() -> None:
    async with world(16 * GIB, 8 * GIB) as it:
        odd = await it.bind(bound(None, {}, container(mem=3, count=1)))
        await it.kubelet.manager.admit(odd)
        await until(lambda: events(it))
        [event] = events(it)
        assert event["reason"] == "GPUShareUnmanaged"
        assert event["message"].startswith("No scheduler extender can place it (")
        assert "requests both aliyun.com/gpu-mem and aliyun.com/gpu-count" in event["message"]
        assert re.search(r"it has 3 units of GPU \d .*, the whole GPU \d ", event["message"])
        assert event["message"].endswith("Correct the request and create the pod again")
        assert it.patches(odd) == 0
