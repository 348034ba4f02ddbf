# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What kubelet meets behind the socket: registration, claims that are prepared once or again, and what is left after any end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB, UNITS, Unit
from gpushare_runtime.daemon.runner import FatalError, Status
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.dra import claims, driver, prepared
from gpushare_runtime.dra.claims import Claim, ClaimError
from gpushare_runtime.dra.driver import Gpus, KubeletDriver, Services
from gpushare_runtime.dra.prepared import Claims
from gpushare_runtime.dra.proto import dra_pb2 as pb
from gpushare_runtime.dra.proto import health_pb2 as health_pb
from gpushare_runtime.dra.proto import pluginregistration_pb2 as registration_pb
from gpushare_runtime.dra.proto.dra_pb2_grpc import DRAPluginStub
from gpushare_runtime.dra.proto.health_pb2_grpc import DRAResourceHealthStub
from gpushare_runtime.dra.proto.pluginregistration_pb2_grpc import RegistrationStub
from unit.fakes.runtime.dra.claims import A30, T4, claim
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, fail, serving, until

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


async def _nothing(_: Claim) -> None:
    """Where pods have no limits."""


@dataclass
class Node:
    """One node: its API server, its folders, and the process that serves kubelet now."""

    api: FakeApi
    client: Any
    root: Path
    inventory: Inventory | None
    claims: Claims
    status: Status
    task: asyncio.Task[Any]
    before_start: Callable[[Claim], Awaitable[None]] = _nothing
    changes: Changes = field(default_factory=Changes)
    unit: Unit = GIB
    alive: set[str] = field(default_factory=set)

    @property
    def registry(self) -> Path:
        return self.root / "plugins_registry"

    def sockets(self) -> list[Path]:
        return sorted(self.registry.glob("*.sock"))

    def spec(self) -> dict[str, list[str]]:
        """The CDI devices of claims, as a container runtime reads them now."""
        path = self.root / "cdi/gpushare-claims.json"
        devices = json.loads(path.read_text())["devices"] if path.exists() else []
        return {device["name"]: device["containerEdits"]["env"] for device in devices}

    async def start(self) -> None:
        folders = self.root / "state", self.root / "cdi"
        self.claims = Claims(
            self.client, "gpu1", *folders, lambda: self.inventory, self.unit, alive=lambda uids: self.alive.intersection(uids)
        )
        self.claims.load()

        def services(at: Path, told: Callable[[str], None]) -> Services:
            gpus = Gpus(lambda: self.inventory, self.changes, lambda: "nvidia.com/gpu")
            return Services(self.claims, "gpu1", gpus, lambda one: self.before_start(one), at, told)

        self.task = asyncio.ensure_future(KubeletDriver(services, self.registry, self.status).run())
        await until(lambda: any(map(_answers, self.sockets())))

    async def kill(self) -> None:
        """As SIGKILL does: the socket stays, and nobody answers."""
        await self.stop()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(self.registry / "gpushare.kubernetes-00000000-reg.sock"))

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def allocate(self, value: dict[str, Any]) -> dict[str, Any]:
        return await self.api.put(f"{CLAIMS}/{value['metadata']['name']}", value)

    async def prepare(self, *uids: str) -> dict[str, Any]:
        async with grpc.aio.insecure_channel(f"unix:{self.sockets()[-1]}") as channel:
            request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace="default", uid=uid, name=uid) for uid in uids])
            return dict((await DRAPluginStub(channel).NodePrepareResources(request, timeout=30)).claims)

    async def release(self, *uids: str) -> dict[str, Any]:
        async with grpc.aio.insecure_channel(f"unix:{self.sockets()[-1]}") as channel:
            request = pb.NodeUnprepareResourcesRequest(claims=[pb.Claim(namespace="default", uid=uid, name=uid) for uid in uids])
            return dict((await DRAPluginStub(channel).NodeUnprepareResources(request, timeout=30)).claims)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
        sock.connect(str(path))
        return True
    return False


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        root = Path(folder)
        (root / "plugins_registry").mkdir()
        async with serving(FakeApi()) as api, connected(api, root) as client:
            unused: Any = None
            it = Node(api, client, root, Inventory(GIB, (T4, A30)), unused, Status(required=()), unused)
            await it.start()
            try:
                yield it
            finally:
                await it.stop()


async def test_kubelet_registers_the_driver() -> None:
    async with node() as it:
        (path,) = it.sockets()
        assert path.stat().st_mode & 0o777 == 0o600
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            info = await RegistrationStub(channel).GetInfo(registration_pb.InfoRequest())
            assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpushare.kubernetes", str(path))
            assert list(info.supported_versions) == ["v1.DRAPlugin", "v1.DRAResourceHealth"]
            told = registration_pb.RegistrationStatus(plugin_registered=False, error="no such version")
            await RegistrationStub(channel).NotifyRegistrationStatus(told)
            assert "version)" in it.status.report()[1]
            await RegistrationStub(channel).NotifyRegistrationStatus(registration_pb.RegistrationStatus(plugin_registered=True))
            assert it.status.report()[0]
        await it.stop()
        # kubelet gives up a driver whose socket is gone.
        assert it.sockets() == []


async def test_kubelet_is_told_of_health_at_once_and_whenever_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node() as it, grpc.aio.insecure_channel(f"unix:{it.sockets()[-1]}") as channel:
        stream = DRAResourceHealthStub(channel).NodeWatchResources(health_pb.NodeWatchResourcesRequest(), timeout=60)

        async def told() -> dict[str, tuple[int, str]]:
            answer = await stream.read()
            assert {each.device.pool_name for each in answer.devices} == {"gpu1"}
            return {each.device.device_name: (each.health, each.message) for each in answer.devices}

        well = (health_pb.HEALTHY, "")
        assert await told() == {T4.uuid.lower(): well, A30.uuid.lower(): well}
        # Other changes, and a cordon, are none of the health.
        it.inventory = Inventory(GIB, (replace(T4, cordoned=True), A30))
        it.changes.notify()
        it.inventory = Inventory(GIB, (replace(T4, health="XID 79"), A30))
        it.changes.notify()
        assert await told() == {T4.uuid.lower(): (health_pb.UNKNOWN, "XID 79"), A30.uuid.lower(): well}
        it.inventory = Inventory(GIB, (replace(T4, health="XID 79", defective=True), A30))
        it.changes.notify()
        assert await told() == {T4.uuid.lower(): (health_pb.UNHEALTHY, "XID 79"), A30.uuid.lower(): well}
        # Before kubelet forgets it.
        monkeypatch.setattr(driver, "_HEALTH_SECONDS", 0.01)
        it.changes.notify()
        assert await told() == {T4.uuid.lower(): (health_pb.UNHEALTHY, "XID 79"), A30.uuid.lower(): well}
        # Without any device it has nothing to say.
        it.inventory = None
        it.changes.notify()
        stream.cancel()


async def test_a_claim_is_prepared_once_and_again() -> None:
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "6Gi")], pods=["p1"]))
        first = await it.prepare("c1")
        assert first["c1"] == pb.NodePrepareResourceResponse(
            devices=[
                pb.Device(
                    request_names=["gpu"],
                    pool_name="gpu1",
                    device_name=T4.uuid.lower(),
                    cdi_device_ids=[f"nvidia.com/gpu={T4.uuid}", "gpushare.kubernetes/claim=c1-gpu"],
                    share_id="share-0",
                )
            ]
        )
        assert "ALIYUN_COM_GPU_MEM_POD=6" in it.spec()["c1-gpu"]
        assert await it.prepare("c1") == first
        assert await it.release("c1", "never seen") == {
            "c1": pb.NodeUnprepareResourceResponse(),
            "never seen": pb.NodeUnprepareResourceResponse(),
        }
        assert it.spec() == {}
        assert await it.release("c1") == {"c1": pb.NodeUnprepareResourceResponse()}


async def test_the_environment_comes_once_for_several_gpus() -> None:
    """The same CDI device twice in one container would be an error of the container runtime."""
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "4Gi"), (A30, "4Gi")]))
        devices = (await it.prepare("c1"))["c1"].devices
        assert [list(device.cdi_device_ids) for device in devices] == [
            [f"nvidia.com/gpu={T4.uuid}", "gpushare.kubernetes/claim=c1-gpu"],
            [f"nvidia.com/gpu={A30.uuid}"],
        ]


async def test_one_bad_claim_is_that_ones_fault() -> None:
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "6Gi")]))
        await it.allocate(claim("c2", [(T4, "12Gi")]))
        await it.allocate({**claim("c3", [(T4, "1Gi")]), "status": {}})
        found = await it.prepare("c1", "c2", "c3", "gone")
        assert found["c1"].error == ""
        assert "18 would" in found["c2"].error
        assert "not allocated" in found["c3"].error
        assert "default/gone" in found["gone"].error
        # As soon as kubelet has released the first, its memory is the second's.
        await it.release("c1")
        assert (await it.prepare("c2"))["c2"].error == ""
        assert set(it.spec()) == {"c2-gpu"}


async def test_each_claim_of_a_request_has_an_answer() -> None:
    """kubelet neither starts nor ends a pod before."""
    async with node() as it:
        many = [f"c{number}" for number in range(driver._MOST_CLAIMS + 1)]
        found = await it.prepare(*many)
        assert found.keys() == {*many}
        assert all("has 65 claims" in answer.error for answer in found.values())
        assert await it.release(*many) == dict.fromkeys(many, pb.NodeUnprepareResourceResponse())


async def test_what_is_prepared_is_no_more_than_the_next_process_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "MOST_BYTES", 1000)
    monkeypatch.setattr(claims, "MOST_BYTES", 1000)
    async with node() as it:
        uids = [f"c{number}" for number in range(5)]
        for uid in uids:
            await it.allocate(claim(uid, [(T4, "1Gi")]))
        answers = await it.prepare(*uids)
        taken = {uid for uid, answer in answers.items() if not answer.error}
        assert 0 < len(taken) < len(uids)
        assert all("more than 1000" in answers[uid].error for uid in {*uids} - taken)
        await it.kill()
        await it.start()
        assert it.claims.by_uid.keys() == taken


async def passes(_: Any) -> None:
    """A request without a fault, before one with a fault."""


@pytest.mark.parametrize("again", [False, True])
async def test_a_claim_that_kubelet_has_forgotten_gives_its_memory_up_when_it_and_its_processes_are_gone(again: bool) -> None:
    """kubelet has lost its record: it releases nothing of before."""
    async with node() as it:
        old, new = claim("c1", [(T4, "10Gi")], pods=["p1"]), claim("c2", [(T4, "10Gi")], pods=["p2"])
        await it.allocate(old)
        await it.allocate(new)
        it.alive = {"p1"}
        assert (await it.prepare("c1"))["c1"].error == ""
        assert "default/c1" in (await it.prepare("c2"))["c2"].error
        it.alive = set()
        assert "default/c1" in (await it.prepare("c2"))["c2"].error
        if again:
            await it.allocate({**old, "metadata": {**old["metadata"], "uid": "another"}})
        else:
            await it.api.remove(f"{CLAIMS}/c1")
        it.alive = {"p1"}
        assert "default/c1" in (await it.prepare("c2"))["c2"].error
        it.alive = set()
        # The API server does not say.
        it.api.faults += [passes, fail(503)]
        assert "default/c1" in (await it.prepare("c2"))["c2"].error
        assert (await it.prepare("c2"))["c2"].error == ""
        assert set(it.spec()) == {"c2-gpu"}


async def test_a_claim_that_the_api_server_has_lost_is_found_in_its_turn() -> None:
    async with node() as it:
        for uid, gpu in (("c1", T4), ("c2", A30)):
            await it.allocate(claim(uid, [(gpu, "6Gi")], pods=[f"p-{uid}"]))
            assert (await it.prepare(uid))[uid].error == ""
        await it.api.remove(f"{CLAIMS}/c2")
        it.alive = {"p-c2"}
        await it.claims.look()
        assert it.claims.lost() == set()
        await it.claims.look()
        assert it.claims.lost() == {A30.uuid}
        it.alive = set()
        it.api.faults.append(fail(503))
        await it.claims.look()
        await it.claims.look()
        assert (it.claims.by_uid.keys(), it.claims.lost()) == ({"c1"}, set())
        await it.release("c1")
        await it.claims.look()


async def test_a_claim_whose_pods_are_not_known_is_never_forgotten() -> None:
    """A file of an older plugin may have such a one."""
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "10Gi")]))
        assert (await it.prepare("c1"))["c1"].error == ""
        it.claims.by_uid["c1"] = replace(it.claims.by_uid["c1"], claim=replace(it.claims.by_uid["c1"].claim, pods=()))
        await it.api.remove(f"{CLAIMS}/c1")
        await it.allocate(claim("c2", [(T4, "10Gi")]))
        assert "default/c1" in (await it.prepare("c2"))["c2"].error


async def test_a_claim_of_the_same_name_is_another_one() -> None:
    async with node() as it:
        await it.allocate({**claim("new", [(T4, "6Gi")]), "metadata": {**claim("new", [])["metadata"], "name": "old"}})
        assert "UID new" in (await it.prepare("old"))["old"].error


async def test_what_was_prepared_outlasts_the_process_and_the_boot() -> None:
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "6Gi")]))
        first = await it.prepare("c1")
        await it.kill()
        # A boot empties the folder of CDI specs.
        (it.root / "cdi/gpushare-claims.json").unlink()
        await it.start()
        assert set(it.spec()) == {"c1-gpu"}
        await until(lambda: len(it.sockets()) == 1)
        it.api.faults.append(fail(503))
        assert "503" in (await it.prepare("c1"))["c1"].error
        assert await it.prepare("c1") == first
        assert await it.release("c1") == {"c1": pb.NodeUnprepareResourceResponse()}
        await it.kill()
        await it.start()
        assert it.spec() == {}


async def test_a_gpu_that_fails_keeps_the_claims_that_it_has() -> None:
    """kubelet asks again for pods that run when it starts. A pod keeps its claim; what comes new is rejected."""
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "6Gi")]))
        await it.allocate(claim("c2", [(T4, "6Gi")]))
        first = await it.prepare("c1")
        it.inventory = Inventory(GIB, (T4.__class__(**{**_fields(T4), "health": "XID 79"}), A30))
        assert await it.prepare("c1") == first
        assert (await it.prepare("c2"))["c2"].error.endswith("XID 79")
        it.inventory = None
        assert "been read" in (await it.prepare("c2"))["c2"].error


def _fields(gpu: Any) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in gpu.__slots__}


async def test_a_claim_that_was_allocated_anew_gets_what_it_has_now() -> None:
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "6Gi")]))
        await it.prepare("c1")
        await it.allocate(claim("c1", [(A30, "8Gi")]))
        devices = (await it.prepare("c1"))["c1"].devices
        assert [device.device_name for device in devices] == [A30.uuid.lower()]
        assert "ALIYUN_COM_GPU_MEM_IDX=1" in it.spec()["c1-gpu"]


async def test_a_pod_that_gets_no_limit_does_not_start() -> None:
    async with node() as it:

        async def fails(one: Claim) -> None:
            raise ClaimError("no limit")

        it.before_start = fails
        await it.allocate(claim("c1", [(T4, "6Gi")]))
        assert (await it.prepare("c1"))["c1"].error == "no limit"


async def test_a_disk_that_is_full_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "6Gi")]))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(prepared, "replace_files", full)
            assert "No space" in (await it.prepare("c1"))["c1"].error
        assert it.claims.by_uid == {}
        assert (await it.prepare("c1"))["c1"].error == ""
        with monkeypatch.context() as patched:
            patched.setattr(prepared, "replace_files", full)
            assert "No space" in (await it.release("c1"))["c1"].error
        assert set(it.spec()) == {"c1-gpu"}


async def test_a_write_that_hangs_ends_before_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the older one might be the last."""
    async with node() as it:
        for uid in ("c1", "c2"):
            await it.allocate(claim(uid, [(T4, "2Gi")]))
        hangs, real = threading.Event(), prepared.replace_files

        def slow(*args: Any) -> None:
            hangs.wait(60)
            real(*args)

        with monkeypatch.context() as patched:
            patched.setattr(prepared, "_WRITE_SECONDS", 0.1)
            patched.setattr(prepared, "replace_files", slow)
            assert "(no answer)" in (await it.prepare("c1"))["c1"].error
            assert "(no answer)" in (await it.prepare("c2"))["c2"].error
        hangs.set()
        assert (await it.prepare("c2"))["c2"].error == ""
        assert set(it.spec()) == {"c2-gpu"}
        assert [entry["uid"] for entry in json.loads((it.root / "state/claims.json").read_bytes())["claims"]] == ["c2"]


async def test_a_file_that_cannot_be_read_now_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "6Gi")]))
        assert (await it.prepare("c1"))["c1"].error == ""
        await it.stop()

        def fails(path: Path, *_: object) -> Any:
            raise OSError(24, "Too many open files", str(path))

        with monkeypatch.context() as patched:
            patched.setattr(Path, "open", fails)
            with pytest.raises(FatalError, match=r"claims\.json") as error:
                await it.start()
        assert error.value.restart
        await it.start()
        assert set(it.claims.by_uid) == {"c1"}


async def test_a_file_of_another_program_is_moved_aside(caplog: pytest.LogCaptureFixture) -> None:
    async with node() as it:
        await it.stop()
        (it.root / "state/claims.json").write_bytes(b"{}")
        await it.start()
        assert "claims.json cannot" in caplog.text
        assert (it.root / "state/claims.json.unusable").read_bytes() == b"{}"
        await it.allocate(claim("c1", [(T4, "6Gi")]))
        assert (await it.prepare("c1"))["c1"].error == ""


async def test_the_plugin_does_not_start_in_a_unit_that_cannot_count_a_claim_and_forgets_none() -> None:
    async with node() as it:
        await it.allocate(claim("c1", [(T4, "6Gi")]))
        assert (await it.prepare("c1"))["c1"].error == ""
        await it.stop()
        it.unit = Unit("5GiB", 5 * 1024)
        file = it.root / "state/claims.json"
        written = file.read_bytes()
        with pytest.raises(FatalError, match="default/c1"):
            await it.start()
        assert file.read_bytes() == written
        it.unit = UNITS["MiB"]
        await it.start()
        assert [part.units for part in it.claims.by_uid["c1"].claim.parts] == [6 * 1024]


async def test_a_socket_that_is_removed_comes_back() -> None:
    async with node() as it:
        (path,) = it.sockets()
        path.unlink()
        await until(lambda: it.sockets() and it.sockets() != [path] and _answers(it.sockets()[0]))
