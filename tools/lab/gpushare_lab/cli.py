# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The lab's command line: results go to standard output, progress and errors to standard error."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from . import access, cluster, components, lifecycle, nodes, podman, runtimes, saved, simulated, state
from .prepare import clean_cache, prepare
from .process import LabError, end_at_signal, say, ticking
from .spec import CONTROL_PLANES, DEFAULT_RUNTIME, ENDPOINT, check_control_planes, check_name, check_version, parse_gpus


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    root = argparse.ArgumentParser(
        prog="lab", description="A real Kubernetes with simulated NVIDIA GPUs on this machine (root, Debian, podman)."
    )
    root.add_argument("--name", default="demo", help="the instance; several live side by side (default: %(default)s)")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    up = command("up", "bring the instance up, or to what is asked for now; ends when all nodes are Ready")
    up.add_argument("--gpu-nodes", type=int, metavar="N", help="GPU nodes gpu1 … gpuN beside cp1 (default: 2)")
    planes = " or ".join(map(str, CONTROL_PLANES))
    up.add_argument("--control-planes", type=int, metavar="N", help=f"{planes} (default: 1); several are reached by one address")
    up.add_argument("--gpus", metavar="NODE=GPUS,…", help="in GiB: gpu1=2x16,gpu2=16+24 (the default); gpu1=none")
    for sub in (up, command("prepare", "make everything that the cache keeps; `up` does it too")):
        sub.add_argument("--kubernetes", metavar="VERSION", help=f"default: {components.KUBERNETES}")
    up.add_argument("--no-nvidia-runtime", action="store_true", help="leave the container runtime without the nvidia runtime")
    names = ", ".join(runtimes.NAMES)
    up.add_argument("--runtime", metavar="NODE=RUNTIME,…", help=f"container runtimes of GPU nodes (default: {DEFAULT_RUNTIME}): {names}")
    sub.add_argument("--runtime", metavar="RUNTIME,…", help="the container runtimes that nodes are to have besides the default")
    command("down", "remove everything of the instance; the cache stays")
    upgrade = command("upgrade", "bring the running instance to another version of Kubernetes by `kubeadm upgrade`")
    upgrade.add_argument("version", metavar="VERSION")
    for verb, text in (
        ("save", "keep the instance as it is under a name; its nodes boot again"),
        ("restore", "bring the instance back as it was when it was saved"),
        ("forget", "remove a saved state"),
    ):
        command(verb, text).add_argument("state", metavar="STATE")
    command("status", "show the instance and its nodes")
    command("inventory", "print the path of the Ansible inventory")
    command("kubeconfig", "print the path of the administrator's kubeconfig")
    command("cache-clean", "remove the cache and the node images")
    gpu = command("gpu", "print a node's simulated GPUs as JSON, or replace them while it runs")
    gpu.add_argument("node", metavar="NODE")
    gpu.add_argument("--gpus", metavar="GPUS", help="in GiB, such as 2x16, 16+24 or none")
    command("kubectl", "run kubectl on this machine against the instance: all that follows is kubectl's")
    execute = command("exec", "run the command that follows in a node; standard input and exit code are kept")
    execute.add_argument("node", metavar="NODE")
    return root


def split_passed_on(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lab's own words, and those after `kubectl` or `exec NODE`, which argparse would take for options."""
    own = 0
    while own < len(argv) and argv[own].startswith("-"):
        own += 2 if argv[own] == "--name" else 1
    passed_on = {"kubectl": own + 1, "exec": own + 2}.get(argv[own] if own < len(argv) else "", len(argv))
    return list(argv[:passed_on]), list(argv[passed_on:])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    own, passed_on = split_passed_on(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(own)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_at_signal)
    try:
        check_name(arguments.name)
        with ticking():
            _run(arguments, passed_on)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace, passed_on: list[str]) -> None:
    name = arguments.name
    match arguments.command:
        case "up":
            lifecycle.up(name, _wishes(arguments))
        case "prepare":
            wanted = [runtimes.check_runtime(one) for one in (arguments.runtime or DEFAULT_RUNTIME).split(",")]
            prepare(check_version(arguments.kubernetes or components.KUBERNETES), wanted)
            say("everything is there")
        case "down":
            lifecycle.down(name)
        case "upgrade":
            lifecycle.upgrade(name, check_version(arguments.version))
        case "save":
            lifecycle.save(name, saved.check_state_name(arguments.state))
        case "restore":
            lifecycle.restore(name, saved.check_state_name(arguments.state))
        case "forget":
            lifecycle.forget(name, saved.check_state_name(arguments.state))
        case "cache-clean":
            clean_cache()
        case "status":
            _status(state.existing(name))
        case "inventory":
            print(access.inventory_file(state.existing(name)))
        case "kubeconfig":
            print(access.kubeconfig_file(state.existing(name)))
        case "gpu":
            _gpu(name, arguments.node, arguments.gpus)
        case "kubectl":
            instance = state.existing(name)
            saved.reject_half_restored(instance)
            cluster.replace_by_kubectl(instance, passed_on)
        case "exec":
            _execute(state.existing(name), arguments.node, passed_on)


def _wishes(arguments: argparse.Namespace) -> lifecycle.Wishes:
    return lifecycle.Wishes(
        gpu_nodes=arguments.gpu_nodes,
        control_planes=None if arguments.control_planes is None else check_control_planes(arguments.control_planes),
        gpus=parse_gpus(arguments.gpus) if arguments.gpus else None,
        kubernetes=check_version(arguments.kubernetes) if arguments.kubernetes else None,
        no_nvidia_runtime=arguments.no_nvidia_runtime,
        runtimes=runtimes.parse_runtimes(arguments.runtime) if arguments.runtime else {},
    )


def _gpu(name: str, node: str, gpus: str | None) -> None:
    if gpus is None:
        instance = state.existing(name)
        _check_gpu_node(instance, node)
        print(simulated.show_gpus(instance, node), end="")
        return
    with lifecycle.changing(name) as instance:
        _check_gpu_node(instance, node)
        simulated.replace_gpus(instance, node, gpus)


def _check_gpu_node(instance: state.Instance, node: str) -> None:
    if not instance.node(node).has_gpus:
        raise LabError(f"{node} is no GPU node; GPU nodes are {', '.join(instance.gpus)}")


def _execute(instance: state.Instance, node: str, command: list[str]) -> None:
    instance.node(node)
    saved.reject_half_restored(instance)
    if not command:
        raise LabError("no command: write `lab exec NODE COMMAND …`")
    if sys.stdin.isatty() and sys.stdout.isatty():
        argv = ["podman", "exec", "-it", podman.container_name(instance.name, node), *command]
    else:
        argv = [*nodes.entering(instance, node), *command]
    os.execvp(argv[0], argv)


def _status(instance: state.Instance) -> None:
    runtime = "nvidia" if instance.nvidia_runtime else "runc"
    print(f"lab {instance.name}: Kubernetes {instance.kubernetes}, network {instance.subnet}, default runtime {runtime}")
    present = podman.containers(instance.name)
    conditions = "{range .items[*]}{.metadata.name} {.status.conditions[?(@.type=='Ready')].status}{'\\n'}{end}"
    listed = ""
    if access.kubeconfig_file(instance).exists():
        listed = cluster.kubectl(instance, "get", "nodes", "-o", f"jsonpath={conditions}", check=False)
    ready = dict(line.split() for line in listed.splitlines() if len(line.split()) == 2)
    if instance.endpoint:
        print(
            f"  {ENDPOINT:6} {instance.endpoint:14} container {present.get(ENDPOINT, {}).get('state', 'missing'):8} before the API servers"
        )
    for node in instance.nodes:
        container = present.get(node.name, {}).get("state", "missing")
        answer = {"True": "Ready", "": "unknown to the cluster"}.get(ready.get(node.name, ""), "NotReady")
        print(f"  {node.name:6} {node.address:14} container {container:8} {answer:10} {node.runtime:14} GPUs {node.gpus or '-'}")
    for kept, described in saved.listed(instance).items():
        print(f"  saved state {kept}: of {described.made}, Kubernetes {described.kubernetes}, {', '.join(described.nodes)}")
    if left := saved.unfinished(instance):
        print(f"  unfinished: {left.command} {left.state}; `lab --name {instance.name} up` finishes it or takes it back")
