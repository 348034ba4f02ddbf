# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Up and down: what an instance has is compared with what it should have, and the difference is made."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from . import access, cluster, endpoint, host_firewall, host_sysctls, nodes, podman, saved, simulated, state
from .cache import locked
from .components import KUBERNETES
from .places import cache_root, state_root
from .prepare import prepare
from .process import LabError, say
from .spec import DEFAULT_RUNTIME, choose_subnet, gpus_of_nodes
from .state import Instance

# What the machine was like before the first instance, beside the instances' folders.
_SYSCTLS = "host-sysctls.json"
_FIREWALL = "host-firewall.json"


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for; None where it says nothing."""

    gpu_nodes: int | None = None
    control_planes: int | None = None
    gpus: Mapping[str, str] | None = None
    kubernetes: str | None = None
    no_nvidia_runtime: bool = False
    runtimes: Mapping[str, str] = field(default_factory=dict)


def instance_lock(name: str) -> AbstractContextManager[None]:
    """Held by every command that changes an instance."""
    return locked(_lock(f"instance-{name}"))


@contextmanager
def changing(name: str) -> Iterator[Instance]:
    """An existing instance under its lock, after what a killed save has left is settled; rejected after a killed restore."""
    with instance_lock(name):
        saved.settle(state.existing(name), finish_restore=False)
        yield state.existing(name)


def save(name: str, kept: str) -> None:
    """Keep the instance as it is under a name."""
    with changing(name) as instance:
        saved.save(instance, kept)


def restore(name: str, kept: str) -> None:
    """Bring the instance back as it was when the state was saved."""
    with instance_lock(name):
        saved.restore(state.existing(name), kept)


def forget(name: str, kept: str) -> None:
    """Remove a saved state."""
    with changing(name) as instance:
        saved.forget(instance, kept)


def up(name: str, wishes: Wishes) -> Instance:
    """Bring an instance up, or to what is asked for now."""
    with instance_lock(name):
        if begun := state.load(name):
            saved.settle(begun, finish_restore=True)
        before = state.load(name)
        version = wishes.kubernetes or (before.kubernetes if before else KUBERNETES)
        gpus = _gpus(before, wishes)
        states = {node: simulated.state_text(spec, node, name) for node, spec in gpus.items()}
        runtimes = _runtimes(before, wishes, gpus)
        _reject_changes(before, version, wishes)
        prepared = prepare(version, runtimes.values())
        instance = _write_down(name, before, version, gpus, replace(wishes, runtimes=runtimes))
        with locked(_lock("host")):
            host_sysctls.prepare(state_root(os.environ) / _SYSCTLS)
            host_firewall.prepare(state_root(os.environ) / _FIREWALL)
        podman.ensure_network(name, instance.subnet)
        nodes.discard_unusable(instance)
        access.write_files(instance)
        cluster.link_kubectl(instance, prepared.kubernetes)
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        endpoint.bring_up(instance, prepared.layers[DEFAULT_RUNTIME])
        started = nodes.boot(instance, prepared, states)
        if before:
            _apply_gpus(before, instance)
        new = cluster.form(instance)
        cluster.wait_ready(instance, dict.fromkeys(started - new, now))
        nodes.wait_ssh(instance)
        say(f"lab {name}: {len(instance.nodes)} nodes Ready, Kubernetes {version}")
        return instance


def upgrade(name: str, version: str) -> None:
    """Bring a running instance to another version of Kubernetes, as its administrator would: by kubeadm. Can be called again."""
    with changing(name) as instance:
        prepared = prepare(version, instance.runtimes.values())
        nodes.replace_programs(instance, prepared)
        cluster.link_kubectl(instance, prepared.kubernetes)
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        cluster.upgrade(instance, version)
        cluster.wait_ready(instance, {node.name: now for node in instance.nodes})
        state.save(replace(instance, kubernetes=version))
        say(f"lab {name}: upgraded from Kubernetes {instance.kubernetes} to {version}")


def _gpus(before: Instance | None, wishes: Wishes) -> dict[str, str]:
    asked = dict(wishes.gpus or {})
    present = dict(before.gpus) if before else {}
    numbers = [int(node.removeprefix("gpu")) for node in asked]
    count = wishes.gpu_nodes or max([len(present) or 2, *numbers])
    return gpus_of_nodes(count, asked, present)


def _reject_changes(before: Instance | None, version: str, wishes: Wishes) -> None:
    if before is None:
        return
    reasons = []
    if wishes.control_planes not in (None, before.control_planes):
        reasons.append(f"it has {before.control_planes} control planes, not {wishes.control_planes}")
    if version != before.kubernetes:
        reasons.append(f"it runs Kubernetes {before.kubernetes}, not {version}")
    if wishes.no_nvidia_runtime and before.nvidia_runtime:
        reasons.append("its nodes have the nvidia runtime in containerd already")
    if reasons:
        command = shlex.join(["lab", "--name", before.name, "down"])
        raise LabError(f"lab {before.name} exists and cannot be changed so: {'; '.join(reasons)}. Call `{command}` first")


def _runtimes(before: Instance | None, wishes: Wishes, gpus: Mapping[str, str]) -> dict[str, str]:
    """The container runtimes of the nodes that have not the usual one. A node keeps its own as long as it lives."""
    if strangers := sorted(set(wishes.runtimes) - set(gpus)):
        raise LabError(f"runtimes for {', '.join(strangers)}, but the GPU nodes are {', '.join(gpus)}: raise --gpu-nodes or drop them")
    present = {name: before.runtimes.get(name, DEFAULT_RUNTIME) for name in before.gpus} if before else {}
    changed = [f"{name} has {present[name]}, not {asked}" for name, asked in wishes.runtimes.items() if present.get(name, asked) != asked]
    if before and changed:
        command = shlex.join(["lab", "--name", before.name, "down"])
        raise LabError(f"lab {before.name} exists and cannot be changed so: {'; '.join(changed)}. Call `{command}` first")
    known = {**present, **wishes.runtimes}
    return {name: known[name] for name in gpus if known.get(name, DEFAULT_RUNTIME) != DEFAULT_RUNTIME}


def _write_down(name: str, before: Instance | None, version: str, gpus: Mapping[str, str], wishes: Wishes) -> Instance:
    """Written before anything is made, so that whatever happens next, `down` and the next `up` know of it."""
    with locked(_lock("subnets")):
        subnet = before.subnet if before else None
        if subnet is None:
            # A network that a killed command left behind must not make its own subnet look taken.
            podman.remove_network(name)
            subnet = str(choose_subnet([*podman.subnets_in_use(), *state.subnets_in_use()]))
        runtime = before.nvidia_runtime if before else not wishes.no_nvidia_runtime
        planes = before.control_planes if before else wishes.control_planes or 1
        # GPUs are noted as they are until they have been changed.
        kept = {node: before.gpus[node] for node in gpus if before and node in before.gpus}
        instance = Instance(name, subnet, version, runtime, {**gpus, **kept}, planes, wishes.runtimes)
        state.save(instance)
    return replace(instance, gpus=gpus)


def _apply_gpus(before: Instance, instance: Instance) -> None:
    changed = [node for node in before.gpus if instance.gpus.get(node, before.gpus[node]) != before.gpus[node]]
    for node in changed:
        say(f"{node}: GPUs {instance.gpus[node]} instead of {before.gpus[node]}")
        simulated.replace_gpus(instance, node, instance.gpus[node])
    state.save(instance)


def down(name: str) -> None:
    """Remove all that belongs to an instance, whatever is left of it."""
    with instance_lock(name):
        existed = state.folder_of(name).exists()
        containers = podman.remove_containers(name) if podman.installed() else 0
        networks = podman.remove_network(name) if podman.installed() else False
        state.remove(name)
        with locked(_lock("host")):
            if not state.names() and not (podman.installed() and podman.instances_with_containers()):
                host_sysctls.restore(state_root(os.environ) / _SYSCTLS)
                host_firewall.restore(state_root(os.environ) / _FIREWALL)
            state.remove_root_if_empty()
    if containers or networks or existed:
        say(f"lab {name}: removed {containers} containers, {int(networks)} networks and its state; the cache stays")
    else:
        say(f"lab {name}: there was nothing to remove")


def _lock(name: str) -> Path:
    return cache_root(os.environ) / "locks" / name
