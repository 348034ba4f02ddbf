# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device plugin's own NVML code on the simulated library: facts, lost GPUs, XID errors as they come."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.nvml import gpus
from unit.lab.nvml.child import Child
from unit.lab.nvml.conftest import SOURCES


def test_facts_are_those_of_the_gpu(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1, minor=7))
    ask = Child(machine)
    assert ask("count") == 2
    assert ask("facts 1") == {
        "uuid": "GPU-00000001-0000-4000-8000-000000000000",
        "minor": 7,
        "pci": "0000:11:00.0",
        "model": "NVIDIA A10",
        "mib": 24576,
        "numa": 0,
        "failed": "",
        "unfit": "",
        "recovery": "",
        "instances": None,
    }


def test_the_memory_of_a_gpu_may_change_while_nvml_runs(machine, gpu) -> None:
    machine.write(gpu(0, memory_mib=16384))
    ask = Child(machine)
    assert ask("facts 0")["mib"] == 16384
    machine.write(gpu(0, memory_mib=24576))
    assert ask("facts 0")["mib"] == 24576


def test_links_are_those_of_the_machine(machine, gpu) -> None:
    """Half an NVLink that only one end reports is none."""
    machine.write(*[gpu(index) for index in range(8)])
    ask = Child(machine)
    assert ask("links 0 1 2") == ["", "n0", "n0n0"]
    machine.command("links", "dgx-1")
    assert ask("links 0 1 2 3 4 5 6 7")[3:5] == ["h2h1p2", "s2s0s0s0"]
    machine.command("links", "nvswitch:18")
    assert ask("links 0 3 4") == ["", "ni", "sisi"]
    machine.command("links", "pairs:4")
    machine.command("set", 2, "nvlinks", "13:2")
    machine.command("set", 1, "nvlinks", "none")
    assert ask("links 0 1 2 3") == ["", "n0", "n0n0", "n0n0n2"]
    machine.command("lost", 1)
    assert "lost" in ask("links 0 1")["error"]


FIRST, SECOND = (f"GPU-0000000{number}-0000-4000-8000-000000000000" for number in (0, 1))


@pytest.mark.parametrize("loads", ["new", "old"])
def test_processes_are_busy_by_whichever_call_the_driver_has(machine, gpu, loads: str) -> None:
    machine.write(gpu(0, loads=loads, processes=(gpus.Process(7, 100, "a"), gpus.Process(8, 100, "b"))), gpu(1, loads=loads))
    ask = Child(machine)
    # The newer call lists those at rest, the older one says that it has found nothing.
    assert [sum(one[:4]) for one in ask(f"loads {FIRST} 0")] == ([0, 0] if loads == "new" else [])
    assert ask(f"loads {SECOND} 0") == []
    machine.command("load", 0, 7, 60, 30, 5, 1)
    busy = [one for one in ask(f"loads {FIRST} 0") if one[0]]
    assert [one[:5] for one in busy] == [[60.0, 30.0, 5.0, 1.0, 7]]
    assert ask(f"loads {FIRST} {busy[0][5] + 10**12}") == [], "samples of the past do not come again"
    assert (ask(f"sensors {FIRST}")["sm"], ask(f"sensors {FIRST}")["memory"]) == (60, 30)
    machine.command("process", 0, 7, 0, "gone")
    machine.command("process", 0, 8, 0, "gone")
    assert ask(f"loads {FIRST} 0") == []


def test_a_driver_that_does_not_count_by_process_says_so_and_is_not_asked_again(machine, gpu) -> None:
    machine.write(gpu(0, loads="none", processes=(gpus.Process(7, 100, "a"),)))
    ask = Child(machine)
    assert "Not Supported" in ask(f"loads {FIRST} 0")["error"]
    machine.command("set", 0, "loads", "new")
    answer = ask(f"loads {FIRST} 0")
    assert answer["unable"] is True
    machine.command("driver", "gone")
    assert ask(f"loads {FIRST} 0")["unable"] is True


@pytest.mark.parametrize("loads", ["new", "old"])
def test_a_pod_has_what_all_of_its_processes_do_and_nothing_of_those_that_are_gone(machine, gpu, loads: str) -> None:
    processes = [gpus.Process(pid, mib, "python") for pid, mib in ((7, 100), (8, 50), (9, 30))]
    machine.write(gpu(0, loads=loads, processes=tuple(processes)))
    ask, rest = Child(machine), [0.0] * 4
    for pid, pod in ((7, "a"), (8, "a"), (9, "b")):
        ask(f"own {pid} {pod}")
    machine.command("load", 0, 7, 40, 30, 0, 0)
    machine.command("load", 0, 8, 20, 10, 5, 1)
    assert ask(f"use {FIRST}") == {"a": [150, None], "b": [30, None]}, "samples count from the second reading on"
    assert ask(f"use {FIRST}") == {"a": [150, [60, 40, 5, 1]], "b": [30, rest]}
    machine.command("process", 0, 8, 0, "gone")
    assert ask(f"use {FIRST}") == {"a": [100, [40, 30, 0, 0]], "b": [30, rest]}
    ask("own 7 b")
    assert ask(f"use {FIRST}") == {"a": [0, None], "b": [30, None]}, "a number that has become another's is nobody's at first"
    assert ask(f"use {FIRST}") == {"a": [0, rest], "b": [130, [40, 30, 0, 0]]}
    machine.command("set", 0, "loads", "none")
    assert ask(f"use {FIRST}") == {"a": [0, None], "b": [130, None]}, "memory is read by whichever driver"


def test_a_mig_instance_counts_by_gpu_only_and_has_the_sensors_of_its_gpu(machine, gpu, tmp_path: Path) -> None:
    state = gpus.with_instances(
        gpus.State(gpus=(gpu(0, compute_capability="8.0", name="NVIDIA A100-SXM4-40GB", memory_mib=40960),)), 0, "3g"
    )
    machine.write(*state.gpus)
    machine.write_capabilities()
    ask = Child(machine)
    instance = state.gpus[0].instances[0].uuid
    assert ask(f"loads {instance} 0")["unable"] is True
    machine.command("instance_process", instance, 7, 512, "train")
    ask("own 7 a")
    assert [ask(f"use {instance}") for _ in range(2)] == [{"a": [512, None]}] * 2, "its memory alone"
    found = ask(f"sensors {instance}")
    assert (found["uuid"], found["celsius"], found["sm"]) == (FIRST, 56, None)


def test_sensors_of_a_gpu_and_what_it_lacks(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1, processes=(gpus.Process(7, 100, "a"),)))
    ask = Child(machine)
    idle, busy = ask(f"sensors {FIRST}"), ask(f"sensors {SECOND}")
    assert (idle["sm"], busy["sm"], busy["memory"], busy["encoder"]) == (0, 80, 40, 0)
    assert (idle["watts"], busy["watts"], busy["watts_limit"], busy["joules"]) == (14.0, 35.0, 70.0, 1000.0)
    assert (idle["sm_clock"], busy["sm_clock"], busy["memory_clock"], idle["reasons"], busy["reasons"]) == (300, 1590, 5001, 1, 0)
    assert (busy["corrected"], busy["uncorrected"]) == (0, 0)
    assert {busy[name] for name in ("pcie_sent", "pcie_received", "nvlink_sent", "nvlink_received")} == {None}
    machine.command("lost", 1)
    assert "lost" in ask(f"sensors {SECOND}")["error"]
    assert ask(f"sensors {FIRST}")["celsius"] == 34


def test_xid_errors_come_with_the_gpus_uuid(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1))
    ask = Child(machine)
    assert ask("events") is False
    assert ask("wait 0") is None
    machine.command("xid", 1, 31)
    machine.command("xid", 0, 48)
    assert ask("wait 5") == ["GPU-00000001-0000-4000-8000-000000000000", 31]
    assert ask("wait 5") == ["GPU-00000000-0000-4000-8000-000000000000", 48]
    assert ask("wait 0") is None


def test_a_lost_gpu_is_said_after_its_last_error_and_the_others_are_heard_anew(machine, gpu) -> None:
    machine.write(gpu(0), gpu(1))
    ask = Child(machine)
    ask("events")
    machine.command("xid", 0, 79)
    machine.command("lost", 0)
    assert ask("wait 5") == ["GPU-00000000-0000-4000-8000-000000000000", 79]
    assert "lost" in ask("wait 5")["error"]
    assert "lost" in ask("facts 0")["error"]
    assert ask("facts 1")["failed"] == ""
    ask("close")
    assert ask("events") is True
    machine.command("xid", 1, 13)
    assert ask("wait 5") == ["GPU-00000001-0000-4000-8000-000000000000", 13]
    machine.command("back", 0)
    assert ask("facts 0")["uuid"] == "GPU-00000000-0000-4000-8000-000000000000"


def test_without_a_driver_there_is_nothing_to_listen_to(machine, gpu) -> None:
    machine.write(gpu(0))
    ask = Child(machine)
    assert ask("count") == 1
    machine.command("driver", "gone")
    assert "modprobe nvidia" in ask("events")["error"]
    machine.command("driver", "back")
    assert ask("events") is False


def test_a_library_that_was_replaced_wants_a_new_process(machine, gpu, tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    shutil.copytree(machine.libraries, libraries, symlinks=True)
    machine.write(gpu(0))
    ask = Child(replace(machine, libraries=libraries))
    assert ask("count") == 1
    new = libraries / "new"
    shutil.copy(libraries / "libnvidia-ml.so.1", new)
    machine.command("driver", "mismatch")
    assert ask("count") == 1
    new.replace((libraries / "libnvidia-ml.so.1").resolve())
    answer = ask("count")
    assert answer["reload"] is True
    assert "as by a driver upgrade" in answer["error"]


def test_a_driver_that_is_loaded_later_wants_a_new_process_if_this_one_is_kept_from_its_devices(machine, gpu, tmp_path: Path) -> None:
    """systemd's DeviceAllow= goes by the numbers in /proc/devices when the process is started."""
    machine.write(gpu(0))
    machine.command("driver", "gone")
    ask = Child(machine, "not started")
    answer = ask("start")
    assert ("not loaded" in answer["error"], answer["reload"]) == (True, False)
    devices = tmp_path / "devices"
    devices.write_text("Character devices:\n  1 mem\n195 nvidia-frontend\n")
    ask(f"devices {devices}")
    answer = ask("start")
    assert ("was loaded after this process started" in answer["error"], answer["reload"]) == (True, True)
    machine.command("driver", "back")
    assert ask("start") is None
    assert ask("count") == 1


@pytest.mark.parametrize("capability", ["7.5", "8.6", "9.0"])
def test_gpus_of_every_age_pass_their_checks(machine, gpu, capability: str) -> None:
    """From 9.0 on NVML writes what it knows of NVSwitches through what pynvml hands on as it is."""
    machine.write(gpu(0, compute_capability=capability))
    facts = Child(machine)("facts 0")
    assert (facts["failed"], facts["unfit"]) == ("", "")


def group_at(machine: Any, name: str, *pids: int, **files: str) -> str:
    """A control group of version 2 with these processes."""
    folder: Path = machine.groups / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in {"cgroup.controllers": "cpu memory\n", "cgroup.procs": "".join(f"{pid}\n" for pid in pids), **files}.items():
        (folder / file).write_text(text)
    return str(folder)


GIB = 1024**3


def test_a_group_is_limited_and_a_process_of_it_gets_no_more(machine: Any, gpu: Any) -> None:
    machine.write(gpu(0), gpu(1))
    machine.command("limits", "misc")
    pod, beside = group_at(machine, "kubepods/pod1"), group_at(machine, "kubepods/pod2", 20)
    group_at(machine, "kubepods/pod1/main", 10)
    group_at(machine, "kubepods/pod1/second", 11)
    first, second = gpu(0).uuid, gpu(1).uuid
    it = Child(machine)
    assert it(f"limited {first} {pod}") == [None, 0]
    assert it(f"limit {first} {pod} {6 * GIB}") is None
    assert it(f"limit {first} {beside} {2 * GIB}") is None
    assert it(f"limited {first} {pod}/main") == [6 * GIB, 0], "that of the nearest group above"
    assert it(f"limited {second} {pod}") == [None, 0], "each GPU has its own"

    script = str(SOURCES / "gpus.py")

    def allocates(pid: int, mib: int) -> str:
        return str(machine.run(sys.executable, script, "allocate", "0", str(pid), str(mib), str(machine.state_file)).stderr)

    assert allocates(10, 4096) == ""
    assert allocates(11, 2048) == "", "both containers together have their pod's 6 GiB"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in allocates(11, 1)
    assert allocates(20, 2048) == "", "a neighbour has its own"
    assert it(f"limited {first} {pod}") == [6 * GIB, 6 * GIB]
    assert it(f"limited {first} {pod}/second") == [6 * GIB, 2 * GIB]
    # Another process of the plugin finds it as it was, and takes it away.
    again = Child(machine)
    assert again(f"limited {first} {pod}") == [6 * GIB, 6 * GIB]
    assert again(f"limit {first} {pod} null") is None
    assert it(f"limited {first} {pod}") == [None, 6 * GIB]
    assert allocates(11, 1) == ""


def test_a_program_sees_the_limit_of_its_own_group_and_each_one_above_stops_it_with_dmem(machine: Any, gpu: Any) -> None:
    """Figures of NVIDIA's table "Verified Behavior" (Dynamo, read on 2026-11-29), on a GPU of 96 GiB."""
    machine.write(gpu(0, memory_mib=97887, pci="00000000:02:00.0"), gpu(1))
    pod, leaf = (group_at(machine, name, *pids, **{"dmem.max": ""}) for name, *pids in (("pod1",), ("pod1/a", 10)))
    other, plain = group_at(machine, "pod1/b", 11, **{"dmem.max": ""}), group_at(machine, "pod1/a/own")
    it, script, uuid = Child(machine), str(SOURCES / "gpus.py"), gpu(0).uuid

    def command(*words: object) -> str:
        done = machine.run(sys.executable, script, *map(str, words), str(machine.state_file))
        return str(done.stdout or done.stderr).strip()

    def seen(group: str) -> str:
        return command("seen", 0, group).split()[-1]

    machine.command("limits", "dmem")
    it(f"limit {uuid} {pod} {48943 << 20}")
    assert seen(leaf) == seen(plain) == "97887", "on a parent only: the whole GPU"
    assert it(f"limited {uuid} {leaf}")[0] is None
    assert "OUT_OF_MEMORY" in command("allocate", 0, 10, 48944), "and it is stopped all the same"
    it(f"limit {uuid} {leaf} {30000 << 20}")
    assert seen(leaf) == seen(plain) == "30000"
    assert it(f"limited {uuid} {plain}")[0] == 30000 << 20
    assert (machine.groups / "pod1/a/dmem.max").read_text().splitlines() == [
        "nvidia/00000000:02:00.0/vidmem 31457280000",
        "nvidia/00000000:11:00.0/vidmem max",
    ]
    # Both have what their parent has, and no more together.
    for group in (leaf, other):
        it(f"limit {uuid} {group} {48943 << 20}")
    assert command("allocate", 0, 10, 40000) == ""
    assert command("seen", 0, leaf) == "8943 48943"
    assert command("seen", 0, other) == "48943 48943", "what a neighbour in the pod has is not in it"
    assert "OUT_OF_MEMORY" in command("allocate", 0, 11, 8944)
    assert command("allocate", 0, 11, 8943) == ""
    # The other back end does not nest: the nearest limit counts, and no other.
    machine.command("limits", "misc")
    assert command("allocate", 0, 11, 20000) == ""
    it(f"limit {uuid} {leaf} null")
    it(f"limit {uuid} {pod} {90000 << 20}")
    assert (seen(leaf), seen(pod)) == ("90000", "90000")


def test_a_limit_ends_with_its_group(machine: Any, gpu: Any) -> None:
    machine.write(gpu(0))
    machine.command("limits", "misc")
    pod, it = group_at(machine, "kubepods/pod1"), Child(machine)
    assert it(f"limit {gpu(0).uuid} {pod} {GIB}") is None
    # Moved and not removed: a folder's number may be given again at once by the file system of the tests, not by that of groups.
    Path(pod).rename(machine.groups / "kubepods/ended")
    assert "Not Found" in it(f"limited {gpu(0).uuid} {pod}")["error"]
    group_at(machine, "kubepods/pod1")
    assert it(f"limited {gpu(0).uuid} {pod}") == [None, 0]


def test_mig_instances_are_what_nvml_says_of_each(machine: Any) -> None:
    machine.write(*gpus.gpus_from_spec("16+80", "gpu1", "s"))
    machine.command("instances", 1, "1g,1g,3g")
    machine.write_capabilities()
    parent = gpus.read_state(machine.state_file).gpus[1]
    machine.command("instance_process", parent.instances[1].uuid, 4242, 512, "train")
    it = Child(machine)
    it(f"capabilities {machine.root / 'mig-minors'}")
    found = it("facts 1")
    assert (found["uuid"], found["mib"], it("facts 0")["instances"]) == (parent.uuid, 81920, None)
    assert [(one["gpu_instance"], one["compute_instance"], one["mib"], one["model"]) for one in found["instances"]] == [
        (7, 0, 9728, "NVIDIA A100-SXM4-80GB MIG 1g.10gb"),
        (8, 0, 9728, "NVIDIA A100-SXM4-80GB MIG 1g.10gb"),
        (1, 0, 40448, "NVIDIA A100-SXM4-80GB MIG 3g.40gb"),
    ]
    assert [(one["uuid"], one["caps"]) for one in found["instances"]] == [(i.uuid, list(i.capabilities(1))) for i in parent.instances]
    # Who uses which instance.
    first, second, _ = (one["uuid"] for one in found["instances"])
    assert it(f"processes {first}") == [[], 0]
    assert it(f"processes {second}") == [[[4242, 512 * 1024 * 1024]], 512 * 1024 * 1024]
    assert it(f"processes {parent.uuid}")[0] == [[4242, 512 * 1024 * 1024]]
    # The driver limits no instance by control group.
    machine.command("limits", "misc")
    assert "Not Supported" in it(f"limit {first} {group_at(machine, 'kubepods/pod1')} {GIB}")["error"]
    # Without the file the numbers of the device nodes are not known; an instance that is gone is not listed.
    it("capabilities /nowhere")
    machine.command("instances", 1, "7g")
    machine.write_capabilities()
    assert [(one["gpu_instance"], one["caps"]) for one in it("facts 1")["instances"]] == [(0, [])]
    assert "Invalid Argument" in it(f"processes {second}")["error"], "the handle that NVML had given for it"
    assert "Not Found" in it(f"processes {second}")["error"]
    machine.command("instances", 1, "none")
    assert it("facts 1")["instances"] == []
    machine.command("instances", 1, "off")
    assert it("facts 1")["instances"] is None


def test_what_a_driver_does_not_limit(machine: Any, gpu: Any) -> None:
    machine.write(gpu(0, mig_mode=1), gpu(1))
    pod, it = group_at(machine, "kubepods/pod1"), Child(machine)
    older = group_at(machine, "memory/kubepods/pod1")
    (Path(older) / "cgroup.controllers").unlink()

    def answer(number: int, group: str) -> str:
        found = it(f"limit {gpu(number).uuid} {group} {GIB}")
        return found["error"] if found else ""

    assert "Function Not Found" in answer(1, pod), "an older driver"
    machine.command("limits", "misc")
    assert "Not Supported" in answer(0, pod), "MIG"
    assert "Not Supported" in answer(1, older), "control groups of version 1"
    assert "Invalid Argument" in answer(1, "/tmp"), "no control group"
    assert answer(1, pod) == ""
    machine.command("limits", "dmem")
    assert "Not Found" in answer(1, pod), "no group of the kernel's controller"
    (Path(pod) / "dmem.max").write_text("")
    assert answer(1, pod) == ""
    machine.command("limits", "any-hierarchy")
    assert answer(1, older) == ""


def test_a_container_that_sees_the_machine_below_another_folder_sets_the_same_limit(machine: Any, gpu: Any) -> None:
    machine.write(gpu(0))
    machine.command("limits", "misc")
    pod, it, host = group_at(machine, "kubepods/pod1"), Child(machine), machine.root / "host"
    there = Path(f"{host}{machine.groups}")
    there.parent.mkdir(parents=True)
    there.symlink_to(machine.groups)
    assert it(f"limit {gpu(0).uuid} {host}{pod} {GIB}") is None
    assert it(f"limited {gpu(0).uuid} {pod}") == it(f"limited {gpu(0).uuid} {host}{pod}") == [GIB, 0]
    assert (machine.root / "limits").read_text().split()[-1] == pod


def test_only_root_may_limit(machine: Any, gpu: Any) -> None:
    # pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory() as name:
        open_to_all = replace(machine, root=Path(name))
        open_to_all.root.chmod(0o755)
        open_to_all.write(gpu(0))
        open_to_all.command("limits", "misc")
        pod, it = group_at(open_to_all, "kubepods/pod1"), Child(open_to_all)
        assert it(f"limit {gpu(0).uuid} {pod} {GIB}") is None
        it("nobody")
        assert it(f"limited {gpu(0).uuid} {pod}") == [GIB, 0]
        assert "run as root" in it(f"limit {gpu(0).uuid} {pod} {2 * GIB}")["error"]
        assert it(f"limited {gpu(0).uuid} {pod}") == [GIB, 0]


def test_processes_are_listed_with_their_memory(machine: Any, gpu: Any) -> None:
    machine.write(gpu(0))
    machine.command("process", 0, 4242, 512, "python")
    machine.command("process", 0, 4243, 256, "python")
    machine.command("used", 0, 100)
    mib = 1024 * 1024
    reserved = gpu(0).reserved_mib
    assert Child(machine)(f"processes {gpu(0).uuid}") == [[[4242, 512 * mib], [4243, 256 * mib]], (868 + reserved) * mib]
