# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Saved states of an instance: its nodes as they were at a moment, kept, and brought back in seconds.

A save takes what a node has written since the last one as a layer that never changes again; nothing is copied but
containerd's folder. A restore stacks the layers of then below an empty folder. What a killed command has left to do
is written down before it begins, and done or taken back by the next.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from . import access, cluster, endpoint, nodes, podman, state
from .prepare import the_cache
from .process import LabError, in_parallel, run, say
from .spec import ENDPOINT
from .state import Instance

# containerd names these files by their content and never writes to them again, so two folders can share them.
_CONTENT = "io.containerd.content.v1.content"
_VERSION = 1


@dataclass(frozen=True)
class Saved:
    """A saved state as it is described in its folder; ``made`` is when (UTC)."""

    recipe: str
    kubernetes: str
    made: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Unfinished:
    """What a command that did not end was about to do."""

    command: str
    state: str


def check_state_name(name: str) -> str:
    """The name of a state, if it can be that of a folder."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9._-]{0,38}[a-z0-9])?", name):
        raise LabError(f'state name "{name}": expected 1 to 40 small letters, digits and . _ - between them')
    return name


def listed(instance: Instance) -> dict[str, Saved]:
    """The complete states of an instance by name."""
    found = sorted(_states(instance).glob("[!.]*"))
    return {folder.name: _read(folder) for folder in found}


def unfinished(instance: Instance) -> Unfinished | None:
    """What a killed save or restore has left undone."""
    path = _marker(instance)
    return Unfinished(**json.loads(path.read_text())) if path.exists() else None


def reject_half_restored(instance: Instance) -> None:
    """An error if the nodes are neither those of now nor those of the saved state."""
    left = unfinished(instance)
    if left and left.command == "restore":
        lab = f"lab --name {instance.name}"
        raise LabError(f"restoring the state {left.state} was interrupted: `{lab} up` finishes it")


def settle(instance: Instance, *, finish_restore: bool) -> None:
    """Finish or take back what a killed save or restore began. Nodes that it has stopped stay so."""
    left = unfinished(instance)
    if left is None:
        _collect(instance)
    elif left.command == "restore":
        if not finish_restore:
            reject_half_restored(instance)
        say(f"restoring the state {left.state} was interrupted: finishing it")
        _put_back(instance, left.state)
    else:
        complete = left.state in listed(instance)
        kept = "is complete" if complete else "was not kept, and the lab is as it was"
        say(f"saving the state {left.state} was interrupted: it {kept}")
        shutil.rmtree(_partial(instance, left.state), ignore_errors=True)
        _marker(instance).unlink()
        _collect(instance)


def save(instance: Instance, name: str) -> None:
    """Keep the instance, whose nodes all run, under a name; they boot again after it."""
    if name in listed(instance):
        raise LabError(f"lab {instance.name} has a state {name}: call `lab --name {instance.name} forget {name}` first")
    recipe = nodes.made_by()
    present = podman.containers(instance.name)
    for member in _members(instance):
        if present.get(member, {}).get("state") != "running":
            raise LabError(f"{member} does not run: call `lab --name {instance.name} up` first")
        if nodes.file_system(instance, member).recipe != recipe:
            raise LabError(
                f"{member} was made by other sources of the lab than these, so a state of it could not be trusted: "
                f"call `lab --name {instance.name} down`, then up"
            )
    say(f"saving the state {name}: the nodes stop")
    _begin(instance, "save", name)
    _halt(instance)
    made = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    partial = _partial(instance, name)
    shutil.rmtree(partial, ignore_errors=True)
    layers = _new_layers(instance, name)

    def keep(member: str) -> None:
        files = nodes.file_system(instance, member)
        files.unmount()
        kept = partial / "nodes" / member
        kept.mkdir(parents=True)
        shutil.copyfile(nodes.node_folder(instance, member) / "record.json", kept / "record.json")
        if (containerd := nodes.containerd_folder(instance, member)).exists():
            copy_containerd(containerd, kept / "containerd")
        files.freeze(layers / member)
        # After the freeze: then it names the new layer.
        shutil.copyfile(files.folder / "file-system.json", kept / "file-system.json")

    in_parallel(keep, _members(instance))
    shutil.copyfile(instance.folder / "lab.json", partial / "lab.json")
    shutil.copyfile(access.kubeconfig_file(instance), partial / "kubeconfig")
    description = {"version": _VERSION, "recipe": recipe, "kubernetes": instance.kubernetes, "made": made, "nodes": _members(instance)}
    (partial / "state.json").write_text(json.dumps(description, indent=2) + "\n")
    partial.rename(_states(instance) / name)
    _marker(instance).unlink()
    _wake(instance)
    say(f"lab {instance.name}: saved as {name}, {len(instance.nodes)} nodes Ready again")


def restore(instance: Instance, name: str) -> Instance:
    """Bring the nodes back as they were when the state was saved."""
    if (left := unfinished(instance)) and left.command == "save":
        settle(instance, finish_restore=False)
    _check(instance, name)
    say(f"restoring the state {name}: the nodes stop")
    _put_back(instance, name)
    instance = state.existing(instance.name)
    removing = threading.Thread(target=_collect, args=[instance])
    removing.start()
    try:
        _wake(instance)
    finally:
        removing.join()
    say(f"lab {instance.name}: {name} is restored, {len(instance.nodes)} nodes Ready")
    return instance


def forget(instance: Instance, name: str) -> None:
    """Remove a saved state; the nodes go on."""
    if not (_states(instance) / name).is_dir():
        raise _no_such_state(instance, name)
    # In one step, so that a killed command leaves a whole state or none.
    _throw_away(instance, _states(instance) / name)
    _collect(instance)
    say(f"lab {instance.name}: the state {name} is forgotten")


def copy_containerd(source: Path, target: Path) -> None:
    """Copy containerd's folder with all attributes; what it never writes to again is shared, not copied."""
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        if entry.name != _CONTENT:
            run(["cp", "-a", "--reflink=auto", "--sparse=auto", entry, target])
            continue
        (target / _CONTENT).mkdir()
        for part in sorted(entry.iterdir()):
            share = ["--link"] if part.name == "blobs" else ["--reflink=auto"]
            run(["cp", "-a", *share, part, target / _CONTENT])


def _check(instance: Instance, name: str) -> None:
    """Reject what cannot be restored, before anything is touched."""
    if (found := listed(instance).get(name)) is None:
        raise _no_such_state(instance, name)
    remedy = f"call `lab --name {instance.name} forget {name}` and save it anew"
    if found.kubernetes != instance.kubernetes:
        raise LabError(f"the state {name} has Kubernetes {found.kubernetes}, the lab has {instance.kubernetes} by now: {remedy}")
    if found.recipe != nodes.made_by():
        raise LabError(f"the state {name} was made by other sources of the lab than these: {remedy} (in a lab that these have made)")
    stacks = [json.loads((_states(instance) / name / "nodes" / member / "file-system.json").read_text()) for member in found.nodes]
    if missing := sorted({layer for stack in stacks for layer in stack["layers"] if not Path(layer).is_dir()}):
        raise LabError(f"the state {name} lacks {', '.join(missing)}: {remedy}")


def _put_back(instance: Instance, name: str) -> None:
    """All files as they were; the nodes stand still afterwards. Can be done again from any point."""
    folder = _states(instance) / name
    saved = _read(folder)
    _begin(instance, "restore", name)
    _halt(instance)
    present = podman.containers(instance.name)
    for gone in sorted({*present, *(path.name for path in (instance.folder / "nodes").glob("*"))} - {*saved.nodes}):
        say(f"{gone}: removing it, which is not in the state {name}")
        if gone in present:
            podman.remove_container(present[gone]["id"])
        nodes.discard(instance, gone)
    shutil.copyfile(folder / "kubeconfig", access.kubeconfig_file(instance))
    partial = instance.folder / "lab.json.partial"
    shutil.copyfile(folder / "lab.json", partial)
    partial.rename(instance.folder / "lab.json")
    instance = state.existing(instance.name)

    def bring_back(member: str) -> None:
        files = nodes.file_system(instance, member)
        files.unmount()
        files.folder.mkdir(parents=True, exist_ok=True)
        _throw_away(instance, files.upper)
        for file in ("record.json", "file-system.json"):
            shutil.copyfile(folder / "nodes" / member / file, files.folder / file)
        if (containerd := folder / "nodes" / member / "containerd").exists():
            _throw_away(instance, nodes.containerd_folder(instance, member))
            copy_containerd(containerd, nodes.containerd_folder(instance, member))
        files.mount()
        if member in present:
            identity = present[member]["id"]
        elif member == ENDPOINT:
            identity = endpoint.create(instance)
        else:
            identity = nodes.create(instance, instance.node(member), the_cache().folder("pip"))
        nodes.note(instance, member, container=identity)

    in_parallel(bring_back, saved.nodes)
    access.write_files(instance)
    _marker(instance).unlink()


def _halt(instance: Instance) -> None:
    """End all containers as a power cut does: the page cache is the machine's, so nothing that was written is lost.

    Connections end too, such as those that Ansible keeps open: the kernel that closes them is the machine's as well.
    """
    running = [member for member, entry in podman.containers(instance.name).items() if entry["state"] == "running"]
    in_parallel(lambda member: podman.kill(podman.container_name(instance.name, member)), running)


def _wake(instance: Instance) -> None:
    """Start all containers and wait until the cluster knows about them what is so now."""
    since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    # The others wait for the API server, and on a small machine it is up sooner without them beside it.
    first = [member for member in _members(instance) if member not in instance.gpus]
    for group in (first, list(instance.gpus)):
        in_parallel(lambda member: nodes.start(instance, member), group)
    endpoint.wait_listening(instance)
    cluster.wait_api(instance)
    cluster.release_leases(instance, since)
    cluster.wait_ready(instance, {node.name: since for node in instance.nodes})
    cluster.wait_current(instance, since)
    nodes.wait_ssh(instance)


def _members(instance: Instance) -> list[str]:
    """What has a container: the nodes, and the balancer before several control planes."""
    return [*([ENDPOINT] if instance.endpoint else []), *(node.name for node in instance.nodes)]


def _begin(instance: Instance, command: str, name: str) -> None:
    partial = _marker(instance).with_suffix(".partial")
    partial.write_text(json.dumps({"command": command, "state": name}) + "\n")
    partial.rename(_marker(instance))


def _new_layers(instance: Instance, name: str) -> Path:
    """A folder for the layers of one save, which no node has yet."""
    taken = {path.name for path in _layers(instance).glob("*")}
    return _layers(instance) / next(candidate for number in range(len(taken) + 1) if (candidate := f"{name}.{number}") not in taken)


def _collect(instance: Instance) -> None:
    """Remove what was thrown away, and layers that neither a node nor a saved state has any more."""
    shutil.rmtree(_trash(instance), ignore_errors=True)
    used: set[Path] = set()
    for description in (*instance.folder.glob("nodes/*/file-system.json"), *_states(instance).glob("*/nodes/*/file-system.json")):
        used.update(Path(layer) for layer in json.loads(description.read_text())["layers"])
    for folder in _layers(instance).glob("*"):
        for layer in folder.iterdir():
            if layer not in used:
                shutil.rmtree(layer)
        if not any(folder.iterdir()):
            folder.rmdir()


def _throw_away(instance: Instance, folder: Path) -> None:
    """Out of the way at once; `_collect` removes it."""
    if folder.exists():
        _trash(instance).mkdir(exist_ok=True)
        folder.rename(Path(tempfile.mkdtemp(dir=_trash(instance))) / folder.name)


def _no_such_state(instance: Instance, name: str) -> LabError:
    have = ", ".join(sorted(folder.name for folder in _states(instance).glob("[!.]*"))) or "none"
    return LabError(f"lab {instance.name} has no saved state {name}; it has {have}")


def _read(folder: Path) -> Saved:
    found = json.loads((folder / "state.json").read_text())
    if (version := found.pop("version", None)) != _VERSION:
        raise LabError(f"{folder} has version {version}, expected {_VERSION}: call `lab forget` for it, or `lab down`")
    return Saved(**{**found, "nodes": tuple(found["nodes"])})


def _states(instance: Instance) -> Path:
    return instance.folder / "saved"


def _partial(instance: Instance, name: str) -> Path:
    return _states(instance) / f".{name}.partial"


def _layers(instance: Instance) -> Path:
    return instance.folder / "layers"


def _trash(instance: Instance) -> Path:
    return instance.folder / "trash"


def _marker(instance: Instance) -> Path:
    return instance.folder / "unfinished.json"
