# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Bringing up an instance's nodes: containers that boot, with their files, up to containerd and ssh."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from . import payload, podman, runtimes
from .archive import write_layer
from .cache import recipe_hash, sources_recipe
from .overlay import FileSystem
from .places import SOURCES
from .prepare import Prepared
from .process import LabError, in_parallel, run, say, tail, until
from .spec import CONTROL_PLANE, ENDPOINT, Node, pod_routes
from .state import Instance

_BOOT_DEADLINE_S = 180.0
_SSH_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Record:
    """What was done to a node's container, written down when it was done; a killed `up` leaves the truth."""

    container: str = ""
    cluster: str = ""
    gpus_payload: str = ""
    images: tuple[str, ...] = ()


def node_folder(instance: Instance, node: str) -> Path:
    """What a node keeps outside of its container."""
    return instance.folder / "nodes" / node


def file_system(instance: Instance, node: str) -> FileSystem:
    """A node's file system."""
    return FileSystem(node_folder(instance, node))


def containerd_folder(instance: Instance, node: str) -> Path:
    """What a node's containerd keeps; a folder of this machine, since containerd makes overlays of it."""
    return node_folder(instance, node) / "containerd"


def made_by() -> str:
    """The recipe of nodes: changes when a source of the lab does."""
    patterns = ("gpushare_lab/*.py", "node/**/*", "go/**/*", "images/**/*", "nvml/Makefile", "nvml/*.[ch]", "nvml/*.inc", "nvml/*.map")
    return recipe_hash(sources_recipe(SOURCES, (*patterns, "nvml/gpus.py")))


def record_of(instance: Instance, node: str) -> Record:
    """The record of a node; empty if there is none."""
    path = node_folder(instance, node) / "record.json"
    if not path.exists():
        return Record()
    found = json.loads(path.read_text())
    return Record(**{**found, "images": tuple(found["images"])})


def note(instance: Instance, node: str, **changes: object) -> None:
    """Change some fields of a node's record, in one step."""
    folder = node_folder(instance, node)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "record.json.partial"
    record = replace(record_of(instance, node), **changes)  # type: ignore[arg-type]
    partial.write_text(json.dumps(asdict(record)) + "\n")
    partial.rename(folder / "record.json")


def execute(instance: Instance, node: str, *command: str, stdin: str | None = None, timeout_s: float = 300) -> str:
    """Run a command in a node and return what it printed."""
    what = f"{node}: {' '.join(itertools.takewhile(lambda word: not word.startswith('-'), command))}"
    return run([*entering(instance, node), *command], stdin=stdin, timeout_s=timeout_s, what=what).stdout


def _unpack(instance: Instance, node: str, archive: Path) -> None:
    """Unpack a tar archive into a node that runs; folders that are there keep their owner and mode."""
    with archive.open("rb") as content:
        run([*entering(instance, node), "tar", "-x", "-C", "/", *podman.KEEP], stdin=content)


def entering(instance: Instance, node: str) -> list[str]:
    """What stands before a command to run it in a node, which must run."""
    if found := podman.entering(record_of(instance, node).container, _pid_file(instance, node)):
        return found
    raise LabError(f"{node} of lab {instance.name} does not run: call `lab --name {instance.name} up`")


def discard_unusable(instance: Instance) -> None:
    """Remove containers that a killed `up` left half-made, nodes no longer wanted, and joiners of a lost cluster.

    Where one of several control planes is not whole, nothing stays: etcd would still count it as a member.
    """
    podman.remove_half_made(instance.name)
    present = podman.containers(instance.name)
    wanted = {node.name for node in instance.nodes}
    cluster = record_of(instance, CONTROL_PLANE).cluster
    control_planes = [node.name for node in instance.nodes if node.is_control_plane]
    cluster_lives = all(_is_complete(instance, name, present, cluster) for name in control_planes)
    for name in {*present, *(path.name for path in (instance.folder / "nodes").glob("*"))} - {ENDPOINT}:
        if cluster_lives and name in wanted and _is_complete(instance, name, present, cluster):
            continue
        if name in present:
            say(f"{name}: removing a container that is {'unfinished' if name in wanted else 'no longer wanted'}")
            podman.remove_container(present[name]["id"])
        discard(instance, name)


def _is_complete(instance: Instance, node: str, present: dict[str, dict[str, str]], cluster: str) -> bool:
    record = record_of(instance, node)
    made = bool(file_system(instance, node).layers)
    return made and bool(cluster) and node in present and (record.container, record.cluster) == (present[node]["id"], cluster)


def boot(instance: Instance, prepared: Prepared, states: Mapping[str, str]) -> set[str]:
    """Make missing nodes, start stopped ones, refresh changed files of GPUs; returns the nodes that (re)started.

    ``states`` has the text of the state file of each node that has GPUs.
    """
    parts = instance.folder / "payload"
    parts.mkdir(exist_ok=True)
    present = podman.containers(instance.name)
    recipe = made_by()
    gpus = payload.gpus(prepared.toolkit, prepared.libraries, prepared.nvidia_smi, prepared.nvidia_mps)
    gpus_digest = payload.digest(gpus)
    if any(node.has_gpus and record_of(instance, node.name).gpus_payload != gpus_digest for node in instance.nodes):
        write_layer(parts / "gpus.tar", gpus)
    started: set[str] = set()

    def bring_up(node: Node) -> None:
        entry = present.get(node.name)
        if entry is None:
            _make(instance, node, prepared, states, parts, gpus_digest, recipe)
            started.add(node.name)
        elif entry["state"] != "running":
            say(f"{node.name}: starting it again")
            start(instance, node.name)
            started.add(node.name)
        wait_booted(instance, node)
        if node.has_gpus and record_of(instance, node.name).gpus_payload != gpus_digest:
            say(f"{node.name}: new files of the simulated driver")
            _unpack(instance, node.name, parts / "gpus.tar")
            execute(instance, node.name, "/usr/local/sbin/gpushare-lab-gpu", "refresh")
            note(instance, node.name, gpus_payload=gpus_digest)
        _write_routes(instance, node)
        _import_images(instance, node, prepared)

    in_parallel(bring_up, instance.nodes)
    shutil.rmtree(parts)
    return started


def replace_programs(instance: Instance, prepared: Prepared) -> None:
    """Put Kubernetes' programs and images of another version into the nodes that run; what runs of them goes on as it is."""
    parts = instance.folder / "payload"
    parts.mkdir(exist_ok=True)
    write_layer(parts / "programs.tar", payload.programs(prepared.kubernetes))

    def bring_in(node: Node) -> None:
        _unpack(instance, node.name, parts / "programs.tar")
        _import_images(instance, node, prepared)

    in_parallel(bring_in, instance.nodes)
    shutil.rmtree(parts)


def _make(
    instance: Instance, node: Node, prepared: Prepared, states: Mapping[str, str], parts: Path, gpus_digest: str, recipe: str
) -> None:
    files = file_system(instance, node.name)
    files.describe(prepared.layers[node.runtime], recipe)
    files.mount()
    settings = parts / f"{node.name}.tar"
    write_layer(settings, payload.settings(instance, node, prepared.archives.pause, states.get(node.name)))
    podman.unpack_below(files.root, settings)
    if node.has_gpus:
        podman.unpack_below(files.root, parts / "gpus.tar")
    identity = create(instance, node, prepared.pip_cache)
    note(instance, node.name, container=identity, gpus_payload=gpus_digest if node.has_gpus else "")
    podman.start(identity)
    say(f"{node.name}: started, {node.address}")


def create(instance: Instance, node: Node, pip_cache: Path) -> str:
    """Make a node's container, without starting it, on the file system that the node has; returns the container's id."""
    containerd = containerd_folder(instance, node.name)
    containerd.mkdir(parents=True, exist_ok=True)
    root, volumes = file_system(instance, node.name).root, [(pip_cache, "/root/.cache/pip")]
    if node.runtime in runtimes.WITH_DOCKER:
        # docker makes overlays as well; within containerd's folder, so that a saved state has both.
        (containerd / "docker").mkdir(exist_ok=True)
        volumes.append((containerd / "docker", "/var/lib/docker"))
    if node.runtime == runtimes.CRIO:
        (containerd / "containers").mkdir(exist_ok=True)
        volumes.append((containerd / "containers", "/var/lib/containers"))
    return podman.create_node(instance.name, node.name, node.address, root, containerd, _pid_file(instance, node.name), volumes)


def _pid_file(instance: Instance, node: str) -> Path:
    """Where podman writes the number of the node's first process."""
    return node_folder(instance, node) / "pid"


def start(instance: Instance, node: str) -> None:
    """Start a container that does not run; its file system is no longer mounted after this machine has booted."""
    file_system(instance, node).mount()
    podman.start(podman.container_name(instance.name, node))


def discard(instance: Instance, node: str) -> None:
    """Remove what a node keeps, once its container is gone."""
    file_system(instance, node).unmount()
    shutil.rmtree(node_folder(instance, node), ignore_errors=True)


def wait_booted(instance: Instance, node: Node) -> None:
    """Wait until the boot unit is done and the container runtime answers."""
    commands = {
        runtimes.DOCKER: "docker version && systemctl is-active cri-docker",
        runtimes.DOCKERSHIM: "docker version",
        runtimes.CRIO: "systemctl is-active crio",
    }
    runtime = commands.get(node.runtime, "ctr version")

    def answers() -> bool:
        script = f"systemctl is-active gpushare-lab-boot && systemctl is-active ssh && {runtime}"
        return run([*entering(instance, node.name), "sh", "-c", script], check=False).returncode == 0

    until(f"{node.name} to boot", _BOOT_DEADLINE_S, answers, why_not=lambda: logs(instance, node.name))


def wait_ssh(instance: Instance) -> None:
    """Wait until sshd of every node greets."""
    for node in instance.nodes:
        until(
            f"sshd of {node.name} at {node.address}",
            _SSH_DEADLINE_S,
            lambda address=node.address: _greets(address),  # type: ignore[misc]
            why_not=lambda name=node.name: logs(instance, name, "ssh"),  # type: ignore[misc]
        )


def _greets(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=2) as connection:
            return connection.recv(64).startswith(b"SSH-2.0")
    except OSError:
        return False


def logs(instance: Instance, node: str, *units: str) -> str:
    """The last lines of a node's journal and its failed units, for an error."""
    try:
        enter = entering(instance, node)
    except LabError as error:
        return f"  {error}"
    chosen = [word for unit in units for word in ("-u", unit)]
    journal = run([*enter, "journalctl", "--no-pager", "-n", "30", *chosen], check=False)
    failed = run([*enter, "systemctl", "--failed", "--no-legend", "--plain"], check=False)
    said = tail(journal.stdout or journal.stderr, 30)
    return f"  failed units of {node}:\n{tail(failed.stdout)}\n  end of its journal:\n{said}"


def _write_routes(instance: Instance, node: Node) -> None:
    """The ways to other nodes' pods, which change when nodes come."""
    script = (
        "f=/etc/gpushare-lab/pod-routes; cat > $f.new; cmp -s $f.new $f && rm $f.new && exit; mv $f.new $f; "
        "while read -r range address; do ip route replace $range via $address; done < $f"
    )
    execute(instance, node.name, "sh", "-c", script, stdin=pod_routes(instance.nodes, node))


def _import_command(node: Node) -> list[str]:
    if node.runtime in runtimes.WITH_DOCKER:
        return ["docker", "load", "--quiet", "--input"]
    if node.runtime == runtimes.CRIO:
        return ["podman", "load", "--quiet", "--input"]
    return ["ctr", "-n", "k8s.io", "images", "import", "--no-unpack"]


def _import_images(instance: Instance, node: Node, prepared: Prepared) -> None:
    wanted = [prepared.archives.every_node]
    if node.is_control_plane:
        wanted.append(prepared.archives.control_plane)
    done = record_of(instance, node.name).images
    for archive in wanted:
        if str(archive) in done:
            continue
        # The node sees this folder; a copy, since the cache may go while the node stays.
        copy = containerd_folder(instance, node.name) / "import.tar"
        shutil.copyfile(archive, copy)
        execute(instance, node.name, *_import_command(node), "/var/lib/containerd/import.tar")
        copy.unlink()
        done = (*done, str(archive))
        note(instance, node.name, images=done)
