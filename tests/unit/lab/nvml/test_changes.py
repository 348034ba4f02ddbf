# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a running process sees when the GPUs change under it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pynvml

from lab.nvml import gpus

MIB = 1024 * 1024
HERE = Path(__file__).parent
SOURCES = Path(gpus.__file__).parent


def test_memory_in_use_changes(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1))
    nvml = machine.nvml()
    handle = nvml("DeviceGetHandleByIndex", 1)
    machine.command("used", 1, 3000)
    assert nvml("DeviceGetMemoryInfo", handle)["used"] == 3000 * MIB
    machine.command("process", 1, 99, 500, "python serve.py")
    assert nvml("DeviceGetMemoryInfo", handle)["used"] == 3500 * MIB
    machine.command("process", 1, 99, 0, "python serve.py")
    assert nvml("DeviceGetMemoryInfo", handle)["used"] == 3000 * MIB
    assert nvml("DeviceGetComputeRunningProcesses", handle) == []


def test_a_lost_gpu_and_its_return(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1))
    nvml = machine.nvml()
    lost, other = nvml("DeviceGetHandleByIndex", 0), nvml("DeviceGetHandleByIndex", 1)
    machine.command("lost", 0)
    for call in (("DeviceGetMemoryInfo",), ("DeviceGetUUID",), ("DeviceGetName",), ("DeviceGetTemperature", 0)):
        assert nvml.code(call[0], lost, *call[1:]) == pynvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.code("DeviceGetHandleByIndex", 0) == pynvml.NVML_ERROR_GPU_IS_LOST
    assert nvml("DeviceGetCount") == 2, "a lost GPU keeps its place"
    assert nvml("DeviceGetIndex", other) == 1
    machine.command("back", 0)
    assert nvml("DeviceGetUUID", lost) == "GPU-00000000-0000-4000-8000-000000000000"


def test_the_driver_goes_and_comes_back(machine, gpu) -> None:
    machine.write(gpu(0))
    running = machine.nvml()
    machine.command("driver", "gone")
    assert running.code("DeviceGetCount") == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert machine.nvml(initialize=False).code("Init") == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    machine.command("driver", "back")
    assert running("DeviceGetCount") == 1


def test_a_library_that_does_not_match_the_driver(machine, gpu) -> None:
    machine.write(gpu(0))
    running = machine.nvml()
    machine.command("driver", "mismatch")
    assert machine.nvml(initialize=False).code("Init") == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert running("DeviceGetCount") == 1, "who had initialized before the update goes on"
    machine.command("driver", "ok")
    assert machine.nvml()("DeviceGetCount") == 1


def test_only_gpus_with_a_device_node_are_seen(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1), gpu(2))
    (machine.devices / "nvidia0").unlink()
    (machine.devices / "nvidia2").unlink()
    nvml = machine.nvml()
    assert nvml("DeviceGetCount") == 1
    handle = nvml("DeviceGetHandleByIndex", 0)
    assert nvml("DeviceGetMinorNumber", handle) == 1
    assert nvml("DeviceGetIndex", handle) == 0
    hidden = "GPU-00000002-0000-4000-8000-000000000000"
    assert nvml.code("DeviceGetHandleByUUID", hidden) == pynvml.NVML_ERROR_NOT_FOUND
    (machine.devices / "nvidia2").touch()
    assert nvml("DeviceGetIndex", nvml("DeviceGetHandleByUUID", hidden)) == 1


def test_another_set_of_gpus(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1))
    nvml = machine.nvml()
    gone, stays = nvml("DeviceGetHandleByIndex", 0), nvml("DeviceGetHandleByIndex", 1)
    machine.write(gpu(1), gpu(2), gpu(3))
    assert nvml("DeviceGetCount") == 3
    assert nvml.code("DeviceGetUUID", gone) == pynvml.NVML_ERROR_GPU_IS_LOST
    assert nvml("DeviceGetUUID", stays) == "GPU-00000001-0000-4000-8000-000000000000"
    assert nvml("DeviceGetIndex", stays) == 0


def test_a_broken_state_file_leaves_the_last_good_one_in_force(machine, gpu) -> None:
    machine.write(gpu(0))
    nvml = machine.nvml()
    machine.state_file.write_text("driver=ok\ndriver_version=535.261.03\ngpus=1\ngpu.0.uuid=GPU-1\ngpu.0.colour=red\n")
    assert nvml("DeviceGetCount") == 1
    assert nvml("DeviceGetCount") == 1
    nvml.process.kill()
    said = nvml.process.communicate()[1]
    assert said.count("simulated NVML") == 1
    assert 'line 5: found "gpu.0.colour=red", expected a known key=value' in said
    started = machine.nvml(initialize=False)
    assert started.code("Init") == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_xid_events_reach_those_who_registered_before(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1), gpu(2))
    machine.command("xid", 0, 13)
    nvml = machine.nvml()
    first, second = nvml("DeviceGetHandleByIndex", 0), nvml("DeviceGetHandleByIndex", 1)
    ecc = pynvml.nvmlEventTypeSingleBitEccError | pynvml.nvmlEventTypeDoubleBitEccError
    assert nvml("DeviceGetSupportedEventTypes", first) == pynvml.nvmlEventTypeXidCriticalError | ecc
    events = nvml("EventSetCreate")
    for handle in (first, second):
        nvml("DeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, events)
    nvml("DeviceRegisterEvents", nvml("DeviceGetHandleByIndex", 2), ecc, events)
    assert nvml.code("DeviceRegisterEvents", first, pynvml.nvmlEventTypePState, events) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml.code("EventSetWait", events, 0) == pynvml.NVML_ERROR_TIMEOUT, "13 came before"
    machine.command("xid", 1, 48)
    machine.command("xid", 2, 79)
    machine.command("xid", 0, 31)
    for handle, number in ((second, 48), (first, 31)):
        event = nvml("EventSetWait", events, 1000)
        assert (event["device"], event["eventData"]) == (handle, number)
        assert event["eventType"] == pynvml.nvmlEventTypeXidCriticalError
    assert nvml.code("EventSetWait", events, 0) == pynvml.NVML_ERROR_TIMEOUT, "GPU 2 is registered for other events only"
    nvml("EventSetFree", events)
    assert nvml.code("EventSetWait", events, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_waiting_for_an_event_ends_when_it_comes_or_time_is_up(machine, gpu) -> None:
    machine.write(gpu(0))
    nvml = machine.nvml()
    events = nvml("EventSetCreate")
    nvml("DeviceRegisterEvents", nvml("DeviceGetHandleByIndex", 0), pynvml.nvmlEventTypeXidCriticalError, events)
    begin = time.monotonic()
    assert nvml.code("EventSetWait", events, 300) == pynvml.NVML_ERROR_TIMEOUT
    assert 0.25 < time.monotonic() - begin < 5
    timer = threading.Timer(0.3, machine.command, ["xid", 0, 79])
    timer.start()
    begin = time.monotonic()
    assert nvml("EventSetWait", events, 60000)["eventData"] == 79
    assert 0.25 < time.monotonic() - begin < 20
    timer.join()


def test_waiting_says_when_a_registered_gpu_is_lost(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1))
    nvml = machine.nvml()
    events = nvml("EventSetCreate")
    nvml("DeviceRegisterEvents", nvml("DeviceGetHandleByIndex", 0), pynvml.nvmlEventTypeXidCriticalError, events)
    machine.command("lost", 1)
    assert nvml.code("EventSetWait", events, 0) == pynvml.NVML_ERROR_TIMEOUT
    machine.command("xid", 0, 79)
    machine.command("lost", 0)
    assert nvml("EventSetWait", events, 0)["eventData"] == 79, "events come before the loss"
    assert nvml.code("EventSetWait", events, 1000) == pynvml.NVML_ERROR_GPU_IS_LOST


def test_threads_see_whole_states_only(machine, gpu) -> None:
    machine.write(gpu(0, name="one", memory_mib=1000, used_mib=10))
    for name, memory_mib, used_mib in (("one", 1000, 10), ("two", 2000, 20)):
        state = gpus.State(gpus=(gpu(0, name=name, memory_mib=memory_mib, used_mib=used_mib),))
        gpus.write_state(machine.state_file.with_name(name), state)
    program = machine.root / "threads"
    built = machine.run(
        *("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", str(SOURCES), "-o", str(program)),
        *(str(HERE / "threads.c"), str(machine.libraries / "libnvidia-ml.so.1")),
    )
    assert built.returncode == 0, built.stderr
    files = [str(machine.state_file.with_name(name)) for name in (machine.state_file.name, "one", "two")]
    ran = machine.run(str(program), "1500", *files)
    assert ran.stdout == "one seen, other seen, mixed 0, failed 0\n", ran.stderr
