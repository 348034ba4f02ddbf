# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPUs from NVML, and the size of their list for kubelet."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.links import GpuLink, GpuLinks
from gpushare_runtime.core.quantity import GIB, UNITS
from gpushare_runtime.core.unit_ids import unit_id
from gpushare_runtime.device_plugin.gpu.discovery import (
    KUBELET_MESSAGE_BYTES,
    GpuReader,
    MigInstance,
    NvmlError,
    list_bytes,
    smallest_fitting,
)
from gpushare_runtime.device_plugin.gpu.health import GpuHealth
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml, facts
from unit.golden import Golden


def test_a_gpu_is_what_nvml_says_in_whole_units() -> None:
    inventory = GpuReader(FakeNvml(15360 + 1023), GIB, GpuHealth()).read()
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    assert inventory.gpus == (Gpu(0, uuid, 0, "0000:3b:00.0", "Tesla T4", 16383, 15, 0, "ok"),)


def test_gpus_are_read_anew_each_time() -> None:
    nvml = FakeNvml(8192)
    reader = GpuReader(nvml, GIB, GpuHealth(checks=1))
    assert reader.read().units == 8
    nvml.gpus = [facts(0, 4096, uuid="GPU-new"), facts(1, 4096)]
    assert [gpu.uuid for gpu in reader.read().gpus] == ["GPU-new", nvml.gpus[1].uuid]
    assert nvml.starts == 1


def test_one_lost_gpu_leaves_the_others_alone_and_comes_back() -> None:
    nvml = FakeNvml(8192, 8192)
    reader = GpuReader(nvml, GIB, GpuHealth(checks=1))
    before = reader.read()
    nvml.lost = {1}
    lost = reader.read()
    assert [(gpu.uuid, gpu.health) for gpu in lost.gpus] == [(before.gpus[0].uuid, "ok"), (before.gpus[1].uuid, "the GPU is lost")]
    nvml.lost = set()
    assert reader.read() == before


def test_links_are_read_again_where_the_gpus_are_others_or_have_another_health() -> None:
    nvml = FakeNvml(8192, 8192, 8192)
    reader = GpuReader(nvml, GIB, GpuHealth(checks=1))
    assert reader.read().links is None
    nvml.linked = links = GpuLinks((0, 1, 2), ((), (GpuLink("p", 2),), (GpuLink("s", 0), GpuLink("n", 0))))
    assert (reader.read().links, nvml.link_reads) == (None, 1)
    nvml.lost = {2}
    assert [reader.read().links for _ in range(2)] == [links.among((0, 1))] * 2
    nvml.lost = set()
    assert [reader.read().links for _ in range(2)] == [links] * 2
    assert nvml.link_reads == 3


def instance(gpu_instance: int, compute_instance: int = 0, mib: int = 9728, uuid: str = "") -> MigInstance:
    uuid = uuid or f"MIG-{gpu_instance}-{compute_instance}"
    caps = (3 + gpu_instance * 9, 4 + gpu_instance * 9 + compute_instance)
    return MigInstance(uuid, gpu_instance, compute_instance, "NVIDIA A100-SXM4-80GB MIG 1g.10gb", mib, caps)


def mixed(*instances: MigInstance) -> FakeNvml:
    """A GPU without MIG, and one with these instances."""
    nvml = FakeNvml(16384, 81920)
    nvml.gpus[1] = replace(nvml.gpus[1], instances=instances)
    return nvml


def shown(found: Inventory) -> list[tuple[int, str, int, str]]:
    return [(gpu.index, gpu.uuid, gpu.units, gpu.health) for gpu in found.gpus]


def test_in_mig_mode_each_instance_is_a_gpu_of_its_own() -> None:
    nvml = mixed(instance(13), instance(7, mib=9800))
    reader = GpuReader(nvml, GIB, GpuHealth())
    whole, first, second = reader.read().gpus
    assert whole.uuid == nvml.gpus[0].uuid
    assert first == Gpu(11070, "MIG-7-0", 1, nvml.gpus[1].pci, "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9800, 9, 0, caps=(66, 67))
    assert (second.index, second.uuid, second.caps) == (11130, "MIG-13-0", (120, 121))
    # The administrator makes others: they are other GPUs, and who remains keeps its index.
    nvml.gpus[1] = replace(nvml.gpus[1], instances=(instance(1, mib=40448), instance(13)))
    assert [(gpu.index, gpu.units) for gpu in reader.read().gpus] == [(0, 16), (11010, 39), (11130, 9)]
    nvml.gpus[1] = replace(nvml.gpus[1], instances=())
    assert [(gpu.index, reader.empty) for gpu in reader.read().gpus] == [(0, (1,))]
    nvml.gpus[1] = replace(nvml.gpus[1], instances=None)
    assert [(gpu.index, reader.empty) for gpu in reader.read().gpus] == [(0, ()), (1, ())]


def test_an_instance_is_as_well_as_its_gpu() -> None:
    nvml, health = mixed(instance(7), instance(8)), GpuHealth(checks=2)
    reader = GpuReader(nvml, GIB, health)
    before = reader.read()
    health.xid(nvml.gpus[1].uuid, 79)
    assert [gpu.health[:6] for gpu in reader.read().gpus] == ["ok", "XID 79", "XID 79"]
    assert [gpu.health[:6] for gpu in reader.read().gpus] == ["ok", "XID 79", "XID 79"], "after an XID it needs three"
    assert reader.read() == before
    nvml.lost = {1}
    lost = reader.read()
    assert [(gpu.uuid, gpu.health) for gpu in lost.gpus[1:]] == [("MIG-7-0", "the GPU is lost"), ("MIG-8-0", "the GPU is lost")]
    nvml.lost = set()
    assert [gpu.health for gpu in reader.read().gpus] == ["ok", "the GPU is lost", "the GPU is lost"], "one check of two"
    assert reader.read() == before
    # A new process knows the instances of a GPU that does not answer from the former one.
    nvml.lost = {1}
    again = GpuReader(nvml, GIB, GpuHealth(), before).read()
    assert [(gpu.index, gpu.uuid, gpu.usable) for gpu in again.gpus] == [
        (0, nvml.gpus[0].uuid, True),
        (11070, "MIG-7-0", False),
        (11080, "MIG-8-0", False),
    ]


def test_instances_that_no_pod_can_use_say_why() -> None:
    parts = mixed(instance(1), instance(1, 1), instance(7), instance(8, uuid="MIG-GPU-1/8/0"))
    shared, other, usable, old = (health for _, _, _, health in shown(GpuReader(parts, GIB, GpuHealth()).read())[1:])
    assert shared == other
    assert shared.startswith("its GPU instance 1 has 2 compute instances, which share one memory: make one per GPU instance")
    assert (usable, old[:15]) == ("ok", "its driver name")
    reader = GpuReader(mixed(instance(7)), GIB, GpuHealth(), no_instances="MIG instances need the device strategy cdi")
    assert [health for _, _, _, health in shown(reader.read())] == ["ok", "MIG instances need the device strategy cdi"]
    # The GPU's own failure says more.
    reader = GpuReader(nvml := mixed(instance(7)), GIB, GpuHealth(), no_instances="MIG instances need the device strategy cdi")
    nvml.gpus[1] = replace(nvml.gpus[1], failed="remapping has failed")
    assert [health for _, _, _, health in shown(reader.read())] == ["ok", "remapping has failed"]


def test_a_gpu_that_never_answered_is_left_out() -> None:
    nvml = FakeNvml(8192, 8192)
    nvml.lost = {0}
    assert [gpu.index for gpu in GpuReader(nvml, GIB, GpuHealth(checks=1)).read().gpus] == [1]


def test_when_nvml_fails_all_gpus_are_unusable_and_it_is_started_again() -> None:
    nvml = FakeNvml(8192)
    reader = GpuReader(nvml, GIB, GpuHealth(checks=1))
    nvml.failure = NvmlError("the driver is gone")
    with pytest.raises(NvmlError):
        reader.read()
    assert reader.failed("the driver is gone") is None
    nvml.failure = None
    before = reader.read()
    nvml.failure = NvmlError("the driver is gone")
    with pytest.raises(NvmlError):
        reader.read()
    failed = reader.failed("the driver is gone")
    assert failed is not None
    assert [(gpu.uuid, gpu.health, gpu.usable) for gpu in failed.gpus] == [(before.gpus[0].uuid, "the driver is gone", False)]
    starts, nvml.failure = nvml.starts, None
    assert reader.read() == before
    assert nvml.starts == starts + 1


def test_the_driver_s_version_is_read_at_each_start() -> None:
    nvml = FakeNvml(8192)
    reader = GpuReader(nvml, GIB, GpuHealth(checks=1))
    assert (reader.driver, reader.read().units, reader.driver) == ("", 8, "535.261.03")
    nvml.version = "580.65.06"
    reader.stop()
    reader.read()
    assert reader.driver == "580.65.06"


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=3))
def test_the_size_of_the_list_is_what_protobuf_makes_of_it(units: list[int]) -> None:
    gpus = [(facts(index, 0).uuid, count) for index, count in enumerate(units)]
    devices = [pb.Device(ID=unit_id(uuid, slot), health="Unhealthy") for uuid, count in gpus for slot in range(count)]
    assert list_bytes(gpus) == pb.ListAndWatchResponse(devices=devices).ByteSize()


@pytest.mark.parametrize(
    ("gpus", "mib", "unit"), [(1, 15360, "MiB"), (8, 15360, "64MiB"), (8, 81920, "64MiB"), (16, 294912, "128MiB"), (300, 294912, None)]
)
def test_the_smallest_unit_that_kubelet_takes(gpus: int, mib: int, unit: str | None) -> None:
    read = GpuReader(FakeNvml(*[mib] * gpus), GIB, GpuHealth()).read()
    fitting = smallest_fitting(read, list(UNITS.values()))
    assert (fitting.name if fitting else None) == unit


class Counting(FakeNvml):
    """calls: those that start and stop it, and the indexes that are read."""

    def __init__(self, *mib: int) -> None:
        super().__init__(*mib)
        self.calls: list[object] = []

    def start(self) -> None:
        self.calls.append("start")
        super().start()

    def stop(self) -> None:
        self.calls.append("stop")


def test_the_library_is_stopped_as_often_as_it_was_started() -> None:
    nvml = Counting(8192)
    reader = GpuReader(nvml, GIB, GpuHealth())
    reader.stop()
    nvml.failure = NvmlError("not loaded")
    with pytest.raises(NvmlError):
        reader.read()
    assert nvml.calls == ["start"], "what did not start is not stopped"
    nvml.failure = None
    reader.read()
    reader.read()
    assert nvml.calls == ["start", "start"]
    nvml.failure = NvmlError("gone")
    with pytest.raises(NvmlError):
        reader.read()
    reader.stop()
    assert nvml.calls == ["start", "start", "stop"]
    nvml.failure = None
    reader.read()
    reader.stop()
    assert nvml.calls[3:] == ["start", "stop"]


def test_an_exchange_under_way_does_not_stop_the_library_and_leaves_what_was_known(golden: Golden) -> None:
    nvml = Counting(8192, 8192)
    reader = GpuReader(nvml, GIB, GpuHealth())
    before = reader.read()
    nvml.gpus[1] = nvml.gpus[0]
    with golden.raised(NvmlError) as error:
        reader.read()
    assert (nvml.calls, error.value.reload) == (["start"], False)
    assert NvmlError("x", reload=True).reload
    assert (error.value.unable, error.value.code) == (False, 0)
    failed = reader.failed("why")
    assert failed is not None
    assert [gpu.uuid for gpu in failed.gpus] == [gpu.uuid for gpu in before.gpus]


def test_a_gpu_that_fails_a_check_is_out_and_comes_back_when_nothing_speaks_against_it() -> None:
    nvml = FakeNvml(8192)
    reader = GpuReader(nvml, GIB, GpuHealth(checks=1))
    said = []
    for changes in ({}, {"failed": "row remapping has failed"}, {"unfit": "reset it"}, {}, {"unfit": "reset it"}):
        nvml.gpus = [facts(0, 8192, **changes)]
        said.append(reader.read().gpus[0].health)
    assert said == ["ok", "row remapping has failed", "row remapping has failed (reset it)", "ok", "ok"]


def test_a_gpu_that_is_lost_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    nvml = mixed(instance(7), instance(1), instance(1, 1))
    reader = GpuReader(nvml, GIB, GpuHealth(checks=1))
    assert [gpu.usable for gpu in reader.read().gpus] == [True, False, False, True]
    nvml.lost = {1}
    for _ in range(3):
        assert [gpu.usable for gpu in reader.read().gpus] == [True, False, False, False]
    assert [record.message for record in caplog.records] == ["GPU 1 (GPU-00000001-0000-0000-0000-000000000000): the GPU is lost"]


def test_a_list_that_just_fits_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = GpuReader(FakeNvml(8192, 4096), GIB, GpuHealth()).read()
    assert KUBELET_MESSAGE_BYTES == 4_194_304
    units = [UNITS["GiB"], UNITS["256MiB"], UNITS["64MiB"]]
    size = list_bytes([(gpu.uuid, UNITS["256MiB"].count(gpu.mib)) for gpu in inventory.gpus])
    for most, fitting in ((size, UNITS["256MiB"]), (size - 1, UNITS["GiB"]), (0, None)):
        monkeypatch.setattr("gpushare_runtime.device_plugin.gpu.discovery.KUBELET_MESSAGE_BYTES", most)
        assert smallest_fitting(inventory, units) == fitting


def test_a_gpu_that_does_not_answer_after_the_start_is_kept_as_it_was_before_it() -> None:
    nvml = FakeNvml(8192, 16384)
    before = GpuReader(nvml, GIB, GpuHealth()).read()
    nvml.lost = {1}
    reader = GpuReader(nvml, UNITS["256MiB"], GpuHealth(checks=1), before)
    gpus = reader.read().gpus
    assert [(gpu.uuid, gpu.units, gpu.health) for gpu in gpus] == [
        (before.gpus[0].uuid, 32, "ok"),
        (before.gpus[1].uuid, 64, "the GPU is lost"),
    ]
    nvml.lost = set()
    assert [gpu.usable for gpu in reader.read().gpus] == [True, True]


def test_of_another_number_of_gpus_before_the_start_none_is_taken_for_a_silent_one() -> None:
    before = GpuReader(FakeNvml(8192, 8192, 8192), GIB, GpuHealth()).read()
    nvml = FakeNvml(8192, 8192)
    nvml.lost = {1}
    assert [gpu.index for gpu in GpuReader(nvml, GIB, GpuHealth(), before).read().gpus] == [0]


def test_a_silent_gpu_is_not_taken_for_one_that_answers_at_another_place(caplog: pytest.LogCaptureFixture) -> None:
    nvml, health = FakeNvml(8192, 8192, 8192, 8192), GpuHealth(checks=1)
    reader = GpuReader(nvml, GIB, health)
    before = reader.read()
    # The first one was taken out, and the driver loaded anew; of the others one is silent.
    nvml.gpus = [replace(facts, minor=place) for place, facts in enumerate(nvml.gpus[1:])]
    nvml.lost = {1}
    for _ in range(3):
        assert [(gpu.index, gpu.uuid, gpu.usable) for gpu in reader.read().gpus] == [
            (0, before.gpus[1].uuid, True),
            (2, before.gpus[3].uuid, True),
        ]
    assert [record.message for record in caplog.records] == ["GPU 1 is omitted: the GPU is lost"]
    assert {gpu.uuid: health.answers(gpu.uuid) for gpu in before.gpus} == {gpu.uuid: "ok" for gpu in before.gpus}


def test_a_silent_gpu_is_omitted_if_another_index_has_an_instance_of_it() -> None:
    nvml = mixed(instance(7), instance(8))
    reader = GpuReader(nvml, GIB, GpuHealth(checks=1))
    reader.read()
    nvml.gpus = [replace(nvml.gpus[1], instances=(instance(7),)), nvml.gpus[0]]
    nvml.lost = {1}
    assert [gpu.uuid for gpu in reader.read().gpus] == ["MIG-7-0"]


def test_an_index_of_the_former_process_that_was_wrong_once_is_not_believed_again() -> None:
    nvml = FakeNvml(8192, 8192)
    former = GpuReader(nvml, GIB, GpuHealth()).read()
    nvml.gpus.reverse()
    reader = GpuReader(nvml, GIB, GpuHealth(checks=1), former)
    for nvml.lost in ({1}, {0, 1}):
        assert [(gpu.index, gpu.uuid) for gpu in reader.read().gpus] == [(0, former.gpus[1].uuid)]


@pytest.mark.parametrize("next_process", [False, True])
def test_a_gpu_that_was_taken_out_does_not_stand_in_for_a_silent_one(caplog: pytest.LogCaptureFixture, next_process: bool) -> None:
    nvml, health = FakeNvml(8192, 8192, 8192, 8192), GpuHealth(checks=1)
    all_gpus = nvml.gpus
    reader = GpuReader(nvml, GIB, health)
    before = reader.read()
    if next_process:
        # Which knew of three GPUs, as there are again below.
        nvml.gpus = all_gpus[:3]
        former = GpuReader(nvml, GIB, health).read()
        nvml.gpus = all_gpus
        reader = GpuReader(nvml, GIB, health, former)
        reader.read()
    # The first one was taken out, and the driver loaded anew; the one that has its index now is silent.
    nvml.gpus = [replace(facts, minor=place) for place, facts in enumerate(all_gpus[1:])]
    nvml.lost = {0}
    for _ in range(3):
        assert [(gpu.index, gpu.uuid) for gpu in reader.read().gpus] == [(1, before.gpus[2].uuid), (2, before.gpus[3].uuid)]
    assert [record.message for record in caplog.records] == ["GPU 0 is omitted: the GPU is lost"]
    assert {gpu.uuid: health.answers(gpu.uuid) for gpu in before.gpus} == {gpu.uuid: "ok" for gpu in before.gpus}
    # One that was left out does not change the number: the others are kept as they were.
    nvml.lost = {0, 2}
    assert [(gpu.uuid, gpu.usable) for gpu in reader.read().gpus] == [(before.gpus[2].uuid, True), (before.gpus[3].uuid, False)]


def defective(found: Inventory) -> list[bool]:
    return [gpu.defective for gpu in found.gpus]


def test_a_gpu_that_does_not_answer_while_others_do_has_itself_failed_and_one_of_a_silent_driver_has_not() -> None:
    nvml = FakeNvml(8192, 8192)
    reader = GpuReader(nvml, GIB, GpuHealth())
    reader.read()
    # The driver is loaded anew: all are silent, then fail as a whole.
    nvml.lost = {0, 1}
    assert [defective(reader.read()) for _ in range(5)] == [[False, False]] * 5
    failed = reader.failed("NVML has not answered")
    assert failed is not None
    assert defective(failed) == [False, False]
    nvml.lost = {1}
    assert [defective(reader.read()) for _ in range(3)] == [[False, False], [False, False], [False, True]]
    # Trouble of the driver does not mend it.
    failed = reader.failed("NVML has not answered")
    assert failed is not None
    assert defective(failed) == [False, True]
    nvml.lost = set()
    assert defective(reader.read()) == [False, False]


def test_a_node_s_only_gpu_has_itself_failed_if_the_driver_says_that_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(8192)
    reader = GpuReader(nvml, GIB, GpuHealth())
    reader.read()

    def lost(index: int) -> NoReturn:
        raise NvmlError("the GPU is lost", lost=True)

    monkeypatch.setattr(nvml, "facts", lost)
    assert [defective(reader.read()) for _ in range(3)] == [[False], [False], [True]]


def test_instances_of_a_gpu_that_has_itself_failed_have_too() -> None:
    nvml = mixed(instance(3), instance(4, uuid="MIG-4"))
    reader = GpuReader(nvml, GIB, GpuHealth())
    nvml.gpus[1] = replace(nvml.gpus[1], recovery="reset it")
    assert [sum(defective(reader.read())) for _ in range(3)] == [0, 0, 2]
