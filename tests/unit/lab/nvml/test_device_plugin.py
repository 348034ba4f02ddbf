# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device plugin's own NVML code on the simulated library: facts, lost cards, XID errors as they come."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpushare_runtime

_RUNTIME = Path(gpushare_runtime.__file__).parents[1]
# One request a line: "events" makes a subscription, "wait" asks it, "facts N" and "count" ask as the plugin does.
_CHILD = """
import dataclasses, json, pathlib, sys
from gpushare_runtime.device_plugin.gpu import nvml as device_plugin_nvml
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.gpu.nvml import Pynvml
nvml, events = Pynvml(), None
if not sys.argv[1:]:
    nvml.start()
for line in sys.stdin:
    name, *arguments = line.split()
    try:
        if name == "events":
            events = nvml.xid_events()
            answer = events.partial
        elif name == "wait":
            answer = events.wait(float(arguments[0]))
        elif name == "close":
            answer = events.close()
        elif name == "start":
            answer = nvml.start()
        elif name == "devices":
            answer, device_plugin_nvml._DEVICES = None, pathlib.Path(arguments[0])
        elif name == "facts":
            answer = dataclasses.asdict(nvml.facts(int(arguments[0])))
        else:
            answer = nvml.count()
    except NvmlError as error:
        answer = {"error": str(error), "reload": error.reload}
    print(json.dumps(answer), flush=True)
"""


class Child:
    """The plugin's NVML code in a process that has the simulated library."""

    def __init__(self, machine: Any, *arguments: str) -> None:
        environment = machine.environment | {"PYTHONPATH": os.pathsep.join([str(_RUNTIME), *sys.path])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *arguments], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        machine.processes.append(self.process)

    def __call__(self, request: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()} at {request!r}"
        return json.loads(line)


def test_facts_are_those_of_the_card(machine, card) -> None:
    machine.write(card(0), card(1, minor=7))
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
    }


def test_xid_errors_come_with_the_cards_uuid(machine, card) -> None:
    machine.write(card(0), card(1))
    ask = Child(machine)
    assert ask("events") is False
    assert ask("wait 0") is None
    machine.command("xid", 1, 31)
    machine.command("xid", 0, 48)
    assert ask("wait 5") == ["GPU-00000001-0000-4000-8000-000000000000", 31]
    assert ask("wait 5") == ["GPU-00000000-0000-4000-8000-000000000000", 48]
    assert ask("wait 0") is None


def test_a_lost_card_is_said_after_its_last_error_and_the_others_are_heard_anew(machine, card) -> None:
    machine.write(card(0), card(1))
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


def test_without_a_driver_there_is_nothing_to_listen_to(machine, card) -> None:
    machine.write(card(0))
    ask = Child(machine)
    assert ask("count") == 1
    machine.command("driver", "gone")
    assert "modprobe nvidia" in ask("events")["error"]
    machine.command("driver", "back")
    assert ask("events") is False


def test_a_library_that_was_replaced_wants_a_new_process(machine, card, tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    shutil.copytree(machine.libraries, libraries, symlinks=True)
    machine.write(card(0))
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


def test_a_driver_that_is_loaded_later_wants_a_new_process_if_this_one_is_kept_from_its_devices(machine, card, tmp_path: Path) -> None:
    """systemd's DeviceAllow= goes by the numbers in /proc/devices when the process is started."""
    machine.write(card(0))
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


@pytest.mark.parametrize("capability", ["7.5", "8.6"])
def test_cards_of_every_age_pass_their_checks(machine, card, capability: str) -> None:
    machine.write(card(0, compute_capability=capability))
    facts = Child(machine)("facts 0")
    assert (facts["failed"], facts["unfit"]) == ("", "")
