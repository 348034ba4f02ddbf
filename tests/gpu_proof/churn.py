# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Extender and device plugin together on the machine's inventory, without Kubernetes' daemons: pods come, run and end.

The proof has its own count of what each GPU has given out, from nothing but the requests and the index in each container's environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import aiohttp

from gpu_proof.context import Context
from gpu_proof.findings import Findings
from gpu_proof.node import START_SECONDS, Node, end, free_port, is_assigned, node, path_of
from gpushare_runtime.core import protocol
from unit.fakes.runtime.device_plugin.device_manager import AdmissionError, StartError
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import container, pod

_SEED: Final = 1
_TRIES: Final = 60
_ENDED: Final = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}
_SHOWN: Final = 5


@dataclass
class Churn:
    """given: GPU index → units, by the proof's own count; troubles: what went wrong, in words."""

    it: Node
    session: aiohttp.ClientSession
    url: str
    running: list[tuple[dict[str, Any], str, int]] = field(default_factory=list)
    given: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)
    refusals: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"filter": [], "bind": [], "admit": []})

    async def ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        async with self.session.post(f"{self.url}{protocol.EXTENDER_PREFIX}/{verb}", json=body) as response:
            answer: dict[str, Any] = await response.json(content_type=None)
        self.seconds[verb].append(time.perf_counter() - began)
        return answer

    async def fits(self, made: dict[str, Any]) -> bool:
        answer = await self.ask("filter", {"Pod": made, "NodeNames": ["gpu1"]})
        return bool(answer["NodeNames"] == ["gpu1"])

    async def end(self, place: int) -> None:
        """That pod has ended, as kubelet says it."""
        made, gpu, units = self.running.pop(place)
        self.given[gpu] -= units
        self.it.kubelet.manager.active.discard(made["metadata"]["uid"])
        await self.it.api.put(path_of(made), {**self.it.api.objects[path_of(made)], "status": _ENDED})

    async def place(self, made: dict[str, Any], units: int, choose: random.Random) -> bool:
        """As kube-scheduler and kubelet do it; pods end until it fits. Whether it runs."""
        await self.it.api.put(path_of(made), made)
        for _ in range(_TRIES):
            if await self.fits(made):
                break
            self.refusals += 1
            if self.running:
                await self.end(choose.randrange(len(self.running)))
            await asyncio.sleep(0.05)
        else:
            self.troubles.append(f"{made['metadata']['name']} with {units} units fits nowhere, and nothing runs that could end")
            return False
        metadata = made["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"], "Node": "gpu1"}
        if error := (await self.ask("bind", body))["Error"]:
            self.troubles.append(f"bind of {metadata['name']}: {error}")
            return False
        return await self.start(self.it.api.objects[path_of(made)], units)

    async def start(self, bound: dict[str, Any], units: int) -> bool:
        name = bound["metadata"]["name"]
        planned = bound["metadata"]["annotations"].get(protocol.ANNOTATION_INDEX, "")
        began = time.perf_counter()
        try:
            got = (await self.it.kubelet.manager.admit(bound))["main"]
            await self.it.kubelet.manager.start(bound, bound["spec"]["containers"][0])
        except (AdmissionError, StartError) as error:
            self.troubles.append(f"kubelet on {name}: {error}")
            return False
        self.seconds["admit"].append(time.perf_counter() - began)
        gpu = got.get(protocol.ENV_INDEX, "")
        if gpu != planned:
            self.troubles.append(f"{name} has GPU {gpu}, and the extender planned {planned}")
        self.given[gpu] += units
        self.running.append((bound, gpu, units))
        try:
            await until(partial(is_assigned, self.it.api, bound), seconds=10)
        except AssertionError:
            self.troubles.append(f"{name} is not marked as assigned")
        return True


@asynccontextmanager
async def _extender(it: Node) -> AsyncIterator[str]:
    """The extender's own process; its address once it answers."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    arguments = ["--listen", f"127.0.0.1:{port}", "--lease", "none", "--kubeconfig", str(it.log.with_name("kubeconfig"))]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gpushare_runtime.extender.main", *arguments)
    try:
        async with aiohttp.ClientSession() as session:
            deadline = asyncio.get_running_loop().time() + START_SECONDS
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{url}/healthz") as response:
                        health = await response.json(content_type=None)
                        if response.status == 200 and not health["leadership"] and health["nodes"] == 1:
                            break
                if process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                    raise TimeoutError(f"the extender does not answer within {START_SECONDS:g} s")
                await asyncio.sleep(0.1)
        yield url
    finally:
        await end(process)


def run(context: Context, findings: Findings) -> None:
    asyncio.run(_run(context, findings))


async def _run(context: Context, findings: Findings) -> None:
    choose = random.Random(_SEED)
    async with node() as it:
        await it.registered()
        inventory = await it.inventory()
        usable = [gpu for gpu in inventory.gpus if gpu.usable]
        findings.check("GPUs that pods may use", len(usable), len(inventory.gpus))
        if not usable:
            return
        units = {str(gpu.index): gpu.units for gpu in inventory.gpus}
        async with _extender(it) as url, aiohttp.ClientSession() as session:
            churn = Churn(it, session, url)
            ran, over = 0, []
            for number in range(context.pods):
                size = choose.randint(1, max(1, usable[0].units // 3))
                made = pod(container(mem=size), name=f"churn-{number}", uid=str(uuid.UUID(int=choose.getrandbits(128))))
                made["metadata"]["creationTimestamp"] = "2026-11-21T10:00:00Z"
                made["status"] = {"phase": "Pending"}
                ran += await churn.place(made, size, choose)
                over += [f"GPU {gpu}: {given} of {units.get(gpu, 0)}" for gpu, given in churn.given.items() if given > units.get(gpu, 0)]
                if choose.random() < 0.2 and churn.running:
                    await churn.end(choose.randrange(len(churn.running)))
                if len(churn.troubles) > _SHOWN:
                    break
            findings.check("pods that ran", ran, context.pods)
            findings.check("troubles", churn.troubles[:_SHOWN], [])
            findings.check("moments at which a GPU had given out more than it has", over[:_SHOWN], [])
            while churn.running:
                await churn.end(0)
            whole = pod(container(mem=usable[0].units), name="whole", uid=str(uuid.UUID(int=choose.getrandbits(128))))
            await it.api.put(path_of(whole), whole)
            free = False
            for _ in range(_TRIES):
                if free := await churn.fits(whole):
                    break
                await asyncio.sleep(0.1)
            findings.check("a whole GPU is free when all have ended", free, True)
            findings.value("times that a pod had to wait for another's end", churn.refusals)
            for verb, took in churn.seconds.items():
                if took:
                    ordered = sorted(took)
                    findings.value(
                        f"{verb}: ms, median and 99th percentile", [round(1000 * ordered[len(took) * p // 100], 2) for p in (50, 99)]
                    )
