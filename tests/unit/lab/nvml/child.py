# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device plugin's NVML code in a process of its own, on the simulated library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpushare_runtime

_RUNTIME = Path(gpushare_runtime.__file__).parents[1]

# One request a line: "events" makes a subscription, "wait" asks it, "facts N", "links N …" and "count" ask as the plugin does. "own PID
# POD" says whose a process is, and "use UUID" reads what each pod uses: MiB, and percent of the engines or None.
_CHILD = """
import dataclasses, json, os, pathlib, sys
from gpushare_runtime.device_plugin.gpu import nvml as device_plugin_nvml
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.core.inventory import Gpu
from gpushare_runtime.device_plugin.gpu.nvml import Pynvml
from gpushare_runtime.device_plugin.gpu.use import UseReader
class Owners(dict):
    def identify(self, pid):
        return self.get(pid)
    def is_still(self, pid, known):
        return self.get(pid) == known
    def container_of(self, pid):
        return ""
nvml, events, owners = Pynvml(), None, Owners()
reader = UseReader(nvml, owners)
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
        elif name == "capabilities":
            answer, device_plugin_nvml._CAPABILITIES = None, pathlib.Path(arguments[0])
        elif name == "devices":
            answer, device_plugin_nvml._DEVICES = None, pathlib.Path(arguments[0])
        elif name == "nobody":
            answer = os.seteuid(65534)
        elif name == "limit":
            answer = nvml.limit_memory(arguments[0], arguments[1], json.loads(arguments[2]))
        elif name == "processes":
            answer = [nvml.processes(arguments[0]), nvml.memory_used(arguments[0])]
        elif name == "loads":
            answer = [dataclasses.astuple(one.load) + (one.pid, one.at) for one in nvml.loads(arguments[0], int(arguments[1]))]
        elif name == "own":
            answer = owners.update({int(arguments[0]): (1, arguments[1])})
        elif name == "use":
            use, answer = reader.read(Gpu(0, arguments[0], 0, "", "", 1, 1), sensors=True), {}
            for pod in sorted({uid for _, uid in owners.values()}):
                size, load = use.bytes_of((pod, arguments[0])), use.load_of((pod, arguments[0]))
                answer[pod] = [size and size >> 20, load and load.values()]
        elif name == "sensors":
            answer = dataclasses.asdict(nvml.sensors(arguments[0]))
        elif name == "limited":
            found = nvml.memory_limit(*arguments)
            answer = [found.most, found.used]
        elif name == "links":
            answer = nvml.links(tuple(map(int, arguments))).to_json()
        elif name == "facts":
            answer = dataclasses.asdict(nvml.facts(int(arguments[0])))
        else:
            answer = nvml.count()
    except NvmlError as error:
        answer = {"error": str(error), "reload": error.reload, "unable": error.unable}
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
