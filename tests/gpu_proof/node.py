# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device plugin in its own process on the machine's GPUs, between stand-ins for kubelet and the API server, as a node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Inventory
from unit.fakes.runtime.device_plugin.fake_kubelet import FakeKubelet
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, serving, until

NODE: Final = "/api/v1/nodes/gpu1"
RESOURCES: Final = (protocol.RESOURCE_MEMORY, protocol.RESOURCE_GPUS)
START_SECONDS: Final = 30.0
_SAMPLE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Sample:
    """Of the metrics page."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass
class Node:
    """began: when the plugin was started, on the monotonic clock; url: of its metrics page."""

    api: FakeApi
    kubelet: FakeKubelet
    process: asyncio.subprocess.Process
    began: float
    url: str
    log: Path

    async def registered(self) -> float:
        """Seconds from the start until kubelet has both lists. TimeoutError if they do not come, with the plugin's last words."""
        try:
            await until(lambda: set(self.kubelet.lists) == set(RESOURCES) or self.process.returncode is not None, seconds=START_SECONDS)
        except AssertionError:
            raise TimeoutError(f"the plugin has not registered within {START_SECONDS:g} s: {self.last_words()}") from None
        if self.process.returncode is not None:
            raise TimeoutError(f"the plugin ended with {self.process.returncode}: {self.last_words()}")
        return time.monotonic() - self.began

    def last_words(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-3:])[-400:]

    def annotation(self, name: str) -> str | None:
        found = self.api.objects[NODE]["metadata"].get("annotations", {}).get(name)
        return None if found is None else str(found)

    async def inventory(self) -> Inventory:
        """As the plugin has published it. AssertionError if it does not."""
        await until(lambda: self.annotation(protocol.ANNOTATION_GPUS), seconds=START_SECONDS)
        return Inventory.from_json(self.annotation(protocol.ANNOTATION_GPUS) or "")

    async def metrics(self) -> list[Sample]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            text = await response.text()
        found = (_SAMPLE.fullmatch(line) for line in text.splitlines() if not line.startswith("#"))
        return [Sample(one[1], dict(_LABEL.findall(one[2] or "")), float(one[3])) for one in found if one]

    async def metric(self, name: str, **labels: str) -> float | None:
        """The value of that sample; None if there is none."""
        of_name = [one for one in await self.metrics() if one.name == f"gpushare_device_plugin_{name}"]
        return next((one.value for one in of_name if labels.items() <= one.labels.items()), None)

    def healthy(self) -> int:
        """Ids of memory that kubelet may give out now."""
        return sum(health == "Healthy" for health in self.kubelet.lists[protocol.RESOURCE_MEMORY][-1].values())

    def events(self, reason: str) -> list[str]:
        """Their messages."""
        found = [value for path, value in self.api.objects.items() if "/events/" in path]
        return [str(one.get("message", one.get("note", ""))) for one in found if one["reason"] == reason]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def end(process: asyncio.subprocess.Process) -> None:
    """Terminate it, and kill it if it does not follow within 15 s."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 15)
    except (TimeoutError, asyncio.TimeoutError):
        process.kill()


@asynccontextmanager
async def node(*arguments: str) -> AsyncIterator[Node]:
    """arguments: further ones of the plugin's command line. It must end with 0 when it is asked to."""
    # A path of a unix socket has 107 characters.
    with tempfile.TemporaryDirectory(prefix="proof-") as name:
        root, port = Path(name), free_port()
        async with serving(FakeApi()) as api:
            await api.put(NODE, {"metadata": {"name": "gpu1", "annotations": {}}})
            (root / "kubeconfig").write_text(kubeconfig(api.url, token="unused"))
            kubelet, log = FakeKubelet(root), root / "log"
            await kubelet.start()
            own = ("--node-name=gpu1", f"--kubeconfig={root}/kubeconfig", f"--state-dir={root}/state")
            folders = (f"--kubelet-root={root}", f"--device-plugins-dir={kubelet.directory}")
            began = time.monotonic()
            with log.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "gpushare_runtime.device_plugin.main", *own, *folders),
                    f"--metrics-listen=127.0.0.1:{port}",
                    *arguments,
                    stdout=output,
                    stderr=output,
                )
            try:
                yield Node(api, kubelet, process, began, f"http://127.0.0.1:{port}", log)
            finally:
                await end(process)
                await kubelet.stop()
                print(log.read_text(errors="replace"))


def path_of(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"


def is_assigned(api: FakeApi, pod: dict[str, Any]) -> bool:
    annotations: dict[str, str] = api.objects[path_of(pod)]["metadata"].get("annotations", {})
    return annotations.get(protocol.ANNOTATION_ASSIGNED) == "true"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
