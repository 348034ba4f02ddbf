# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One node in virtual time, with everything at once: `python -m unit.runtime.device_plugin.storm SEED…`, in the folder tests.

kubelet asks from several workers at once, and each call takes time. The plugin is all of its real parts, the scheduler's side the real
ledger and verbs. They are killed, lose their files and the API server, in each other's middle. What is true is what processes have:
no GPU may have more of them than it has units, no container may run without its limit, and when all is quiet every container runs on
the GPUs of its pod's annotations. The same seed gives the same run with the same PYTHONHASHSEED: use 0. Exit status 1 for a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar
from unittest.mock import patch

from gpushare_runtime.device_plugin.gpu import pod_limits
from gpushare_runtime.device_plugin.host import usage_file
from gpushare_runtime.device_plugin.kubelet import server
from gpushare_runtime.kube import backoff
from unit.fakes.runtime.extender import virtual
from unit.runtime.device_plugin.storm.kubelet import Kubelet
from unit.runtime.device_plugin.storm.plugin import Plugin
from unit.runtime.device_plugin.storm.troubles import ALL, ORDINARY, Act, happens, save
from unit.runtime.device_plugin.storm.world import World, now

SECONDS: Final = 250.0
# Until everything has arrived, and a container that failed often has been tried again.
QUIET: Final = 60.0, 100.0
T = TypeVar("T")


async def _direct(function: Callable[[], T]) -> T:
    return function()


async def _wait_for(work: Any, seconds: float) -> Any:
    return await work


@contextmanager
def virtual_clocks(seed: int) -> Iterator[None]:
    """No threads, no other clock than the loop's, and no other chance than the seed's."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(backoff, "random", random.Random(seed)))
        for module in (pod_limits, usage_file):
            stack.enter_context(patch.object(module, "in_thread", _direct))
        for module in (pod_limits, server):
            stack.enter_context(patch.object(module, "time", SimpleNamespace(monotonic=now)))
        stack.enter_context(patch.object(pod_limits, "asyncio", SimpleNamespace(**{**vars(asyncio), "wait_for": _wait_for})))
        yield


async def _play(world: World, seconds: float, troubles: Mapping[Act, float]) -> None:
    works = [world.users(), world.scheduler(), world.checks(), save(world), *(happens(world, act, mean) for act, mean in troubles.items())]
    tasks = [asyncio.create_task(work) for work in works]
    world.start_kubelet()
    world.start_plugin()

    async def passes(seconds: float) -> None:
        end = now() + seconds
        while now() < end:
            await asyncio.sleep(1.0)
            for task in tasks:
                if task.done():
                    task.result()

    await passes(seconds)
    world.quiet = True
    await passes(QUIET[0])
    world.start_plugin()
    world.start_kubelet()
    world.plugin_api_until = world.api_until = 0.0
    world.nvml.lost.clear()
    world.cordon = ""
    assert world.plugin is not None
    world.plugin.set_cordon()
    await passes(QUIET[1])
    world.finish()


def play(
    seed: int,
    seconds: float = SECONDS,
    troubles: Mapping[Act, float] = ALL,
    make_plugin: Callable[[World], Plugin] = Plugin,
    *,
    verbose: bool = False,
) -> World:
    """The world with this seed, at its end."""
    with virtual_clocks(seed):
        loop: dict[str, World] = {}

        async def run() -> None:
            loop["world"] = World(seed, make_plugin, Kubelet, verbose=verbose)
            try:
                await _play(loop["world"], seconds, troubles)
            finally:
                shutil.rmtree(loop["world"].folder, ignore_errors=True)

        virtual.run(run())
        return loop["world"]


def main() -> int:
    parser = argparse.ArgumentParser(description="One node in virtual time, with everything at once.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?", help="the last seed; only the first without")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--ordinary", action="store_true", help="without lost and corrupt checkpoints")
    parser.add_argument("--logs", type=Path, help="folder for the logs of worlds with a fault")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    began, bad = time.process_time(), []
    seeds = range(options.first, (options.first if options.last is None else options.last) + 1)
    for seed in seeds:
        world = play(seed, options.seconds, ORDINARY if options.ordinary else ALL, verbose=options.verbose)
        counts.update(world.counts)
        kinds.update(fault.partition(" ")[0] for fault in world.faults)
        if world.faults:
            bad.append(seed)
            print(f"seed {seed}: {len(world.faults)} faults", *(f"  {fault[:400]}" for fault in world.faults[:6]), sep="\n", flush=True)
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                (options.logs / f"{seed}.log").write_text("\n".join([*world.faults, *world.log, str(world.reasons.most_common(12))]))
    found = {"worlds": len(seeds), "seconds": options.seconds, "worlds with a fault": bad, "faults": dict(kinds), **sorted_counts(counts)}
    print(f"{time.process_time() - began:.0f} s CPU: {found}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if bad else 0


def sorted_counts(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(counts)}
