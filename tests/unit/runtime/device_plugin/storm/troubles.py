# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What happens to the world: each trouble with the mean seconds between two."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from unit.runtime.device_plugin.storm.world import Pod, World, now


async def plugin_restart(world: World, state: str = "") -> None:
    """Killed. state: what becomes of its file."""
    if world.plugin is None:
        return
    world.note(f"plugin killed {state}")
    world.plugin.kill()
    world.plugin = None
    file = world.folder / "held.json"
    if state == "lost":
        file.unlink(missing_ok=True)
    if state == "old" and world.saved is not None:
        file.write_bytes(world.saved)
    await asyncio.sleep(1.0 if state else world.random.choice((0.0, 1.0, 3.0, 3.0, 20.0)))
    world.start_plugin()


async def _state(world: World, becomes: str) -> None:
    """What neither kubelet's record nor the API server knows either, nobody can know (docs/operate/failures.md)."""
    given = world.kubelet.manager.given if world.kubelet is not None else {}
    recorded = all(name in given.get(pod.uid, {}) for pod in world.pods.values() for name in pod.devices)
    if recorded and all(world.object_of(pod.uid) is not None and not pod.ghosts for pod in world.pods.values()):
        world.stays = False
        try:
            await plugin_restart(world, becomes)
        finally:
            world.stays = True


async def state_lost(world: World) -> None:
    await _state(world, "lost")


async def state_old(world: World) -> None:
    await _state(world, "old")


async def kubelet_restart(world: World, file: str = "") -> None:
    """Killed. file: what becomes of its checkpoint."""
    if world.kubelet is None:
        return
    world.note(f"kubelet killed {file}")
    world.kubelet.kill()
    world.kubelet = None
    await asyncio.sleep(world.random.choice((0.2, 1.0, 3.0)))
    if file == "lost":
        world.file = None
    elif file == "corrupt" and world.file is not None:
        world.counts["writes"] += 1
        world.file.corrupt, world.file.n = True, world.counts["writes"]
    world.start_kubelet()


async def lost_checkpoint(world: World) -> None:
    await kubelet_restart(world, "lost")


async def corrupt_checkpoint(world: World) -> None:
    await kubelet_restart(world, "corrupt")


async def both_restart(world: World) -> None:
    await asyncio.gather(plugin_restart(world), kubelet_restart(world))


async def reboot(world: World) -> None:
    if world.kubelet is None or world.plugin is None:
        return
    world.note("reboot")
    world.kubelet.kill()
    world.plugin.kill()
    world.kubelet = world.plugin = None
    world.boot = f"boot-{world.counts['reboot']}"
    for pod in world.pods.values():
        pod.devices.clear()
        pod.ghosts.clear()
        pod.whole.clear()
        pod.sandbox = False
        # Init containers run again.
        pod.state = {name: "waiting" for name in pod.state if pod.kinds[name] != "init"}
    world.nvml.limits, world.kubepods = {}, False
    await asyncio.sleep(world.random.uniform(5, 20))
    for start in world.random.sample((world.start_kubelet, world.start_plugin), 2):
        start()
        await asyncio.sleep(world.random.choice((0.0, 0.5, 2.0)))


async def frozen(world: World) -> None:
    """kubelet answers no registration for a while, and the plugin is killed at its beginning or in it."""
    if world.kubelet is not None:
        world.kubelet.frozen_until = now() + world.random.choice((6.0, 14.0, 30.0, 40.0))
        world.note(f"kubelet is frozen until {world.kubelet.frozen_until:.1f}")
        await asyncio.sleep(world.random.choice((0.0, 0.0, 3.0)))
        await plugin_restart(world)


async def plugin_api_away(world: World) -> None:
    world.plugin_api_until = now() + world.random.uniform(3, 40)
    world.note(f"the plugin does not reach the API server until {world.plugin_api_until:.1f}")


async def api_away(world: World) -> None:
    world.api_until = now() + world.random.uniform(1, 10)
    world.note(f"nobody reaches the API server until {world.api_until:.1f}")


async def xid(world: World) -> None:
    gpu = world.random.choice(world.nvml.gpus)
    if world.plugin is not None:
        world.plugin.health.xid(gpu.uuid, 79)
        world.note(f"XID on {gpu.uuid[:12]}")


async def lost_gpu(world: World) -> None:
    index = world.random.randrange(len(world.nvml.gpus))
    world.nvml.lost.add(index)
    world.note(f"GPU {index} lost")
    await asyncio.sleep(world.random.uniform(5, 60))
    world.nvml.lost.discard(index)


async def cordon(world: World) -> None:
    for value in (str(world.random.randrange(len(world.nvml.gpus))), ""):
        world.cordon = value
        if world.plugin is not None:
            world.plugin.set_cordon()
        if value:
            await asyncio.sleep(world.random.uniform(5, 40))


def running(world: World) -> list[Pod]:
    return [pod for pod in world.pods.values() if pod.lives and pod.ends is None and pod.devices and world.object_of(pod.uid) is not None]


def _end(world: World, pod: Pod, name: str) -> None:
    if pod.kinds[name] != "init":
        del pod.devices[name]
        pod.state[name] = "waiting"
        pod.due[name] = now() + world.random.choice((0.0, 0.0, 2.0, 8.0))


async def crash(world: World) -> None:
    found = running(world)
    if found:
        pod = world.random.choice(found)
        name = world.random.choice(sorted(pod.devices))
        world.note(f"crash {pod.name}/{name}")
        _end(world, pod, name)
        if world.kubelet is not None and world.kubelet.up:
            world.kubelet.tell(pod)


async def crash_all(world: World) -> None:
    """The driver ends all containers of the node."""
    world.note("all containers crash")
    for pod in running(world):
        for name in sorted(pod.devices):
            _end(world, pod, name)
            pod.due.pop(name, None)
        if world.kubelet is not None and world.kubelet.up:
            world.kubelet.tell(pod)


async def force(world: World) -> None:
    if world.api and not world.away and world.stays:
        raw = world.random.choice(list(world.api.values()))
        world.note(f"force delete {raw['metadata']['name']}")
        world.gone(raw)


async def delete(world: World) -> None:
    found = [raw for raw in world.api.values() if "deletionTimestamp" not in raw["metadata"]]
    if found and not world.away:
        raw = world.random.choice(found)
        world.note(f"delete {raw['metadata']['name']}")
        world.delete(raw)


async def complete(world: World) -> None:
    found = [
        pod
        for pod in running(world)
        if pod.raw["spec"]["restartPolicy"] == "Never" and all(kind == "init" or name in pod.devices for name, kind in pod.kinds.items())
    ]
    if found and world.kubelet is not None and world.kubelet.up:
        pod = world.random.choice(found)
        world.note(f"complete {pod.name}")
        world.kubelet.spawn(world.kubelet.complete(pod))


async def resize(world: World) -> None:
    kubelet = world.kubelet
    found = [pod for pod in running(world) if kubelet is not None and pod.uid in kubelet.manager.active]
    if kubelet is not None and kubelet.ready and found:
        kubelet.spawn(kubelet.resize(world.random.choice(found)))


Act = Callable[[World], Awaitable[Any]]
ORDINARY: dict[Act, float] = {
    crash: 4.0,
    crash_all: 40.0,
    force: 4.0,
    complete: 4.0,
    delete: 3.0,
    resize: 15.0,
    plugin_restart: 40.0,
    kubelet_restart: 60.0,
    both_restart: 200.0,
    reboot: 400.0,
    plugin_api_away: 80.0,
    api_away: 120.0,
    state_lost: 300.0,
    state_old: 300.0,
    xid: 60.0,
    lost_gpu: 120.0,
    cordon: 60.0,
}
LOST: dict[Act, float] = {lost_checkpoint: 80.0, corrupt_checkpoint: 300.0}
ALL = ORDINARY | LOST
FROZEN: dict[Act, float] = {frozen: 50.0, plugin_restart: 60.0, crash: 8.0, complete: 8.0, delete: 8.0, force: 8.0, kubelet_restart: 120.0}


async def happens(world: World, act: Act, mean: float) -> None:
    """Again and again, until the world is quiet."""
    while True:
        await asyncio.sleep(world.random.expovariate(1 / mean))
        if not world.quiet:
            world.counts[act.__name__] += 1
            await act(world)


async def save(world: World) -> None:
    """Keep a state file of some seconds ago."""
    while True:
        await asyncio.sleep(world.random.uniform(2, 10))
        file = world.folder / "held.json"
        world.saved = file.read_bytes() if file.exists() else None
