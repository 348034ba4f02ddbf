# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The commands of `kubectl gpushare` that are no views: explain, simulate, cordon, uncordon."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpushare_runtime.core.bounds import as_text, quote
from gpushare_runtime.core.objects import read_pending
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kubectl_gpushare import simulate
from gpushare_runtime.kubectl_gpushare.api import (
    MOST_REPLICAS,
    TIMEOUT_SECONDS,
    InputError,
    explain_error,
    fill,
    fill_from_files,
    read_manifests,
)
from gpushare_runtime.kubectl_gpushare.cluster import UNKNOWN_NODE, Cluster
from gpushare_runtime.kubectl_gpushare.cordon import set_cordon
from gpushare_runtime.kubectl_gpushare.explain import document, explain, table_of
from gpushare_runtime.kubectl_gpushare.kubeconfig import context_namespace, find_kubeconfig, load_kubeconfig
from gpushare_runtime.kubectl_gpushare.layout import Table, lines_of
from gpushare_runtime.kubectl_gpushare.output import Format, written
from gpushare_runtime.kubectl_gpushare.trace import TraceError, read_hosts, read_pods

FITS_NOWHERE: Final = 3


def read(arguments: argparse.Namespace, what: str) -> tuple[Cluster, str]:
    """The whole cluster, and the namespace that is meant. InputError where not all of it may be read. what: needs it, for the message."""
    cluster = Cluster()
    if arguments.from_file:
        fill_from_files(cluster, arguments.from_file)
        return cluster, arguments.namespace or "default"
    file = find_kubeconfig(arguments.kubeconfig)
    credentials = load_kubeconfig(file, context=arguments.context)
    own = arguments.namespace or context_namespace(file, arguments.context)

    async def go() -> None:
        async with KubeClient(credentials, user_agent="kubectl-gpushare", timeout=TIMEOUT_SECONDS) as client:
            await fill(client, cluster, "", own)

    try:
        asyncio.run(go())
    except KubeError as error:
        raise InputError(explain_error(error, credentials.server, "nodes, and pods in all namespaces")) from None
    if not cluster.complete:
        raise InputError(
            f"{'; '.join(cluster.warnings[-2:])}. {what} needs both rights: choose another user with --context, or have them granted"
        )
    return cluster, own


def run_explain(arguments: argparse.Namespace, form: Format) -> int:
    """0 if the pod fits on a node, or is on one; FITS_NOWHERE if not."""
    if bool(arguments.pod) == bool(arguments.filename):
        raise InputError("expected the name of a pod, or -f FILE with one, and not both")
    cluster, namespace = read(arguments, "explain")
    if arguments.filename:
        [raw, _], *others = read_manifests(arguments.filename)
        if others:
            raise InputError(f"{arguments.filename}: found {len(others) + 1} pods; expected one. `simulate` takes several")
        pod, reported = _pending(raw, arguments.filename), ""
    else:
        found = [one for one in cluster.waiting.values() if (one.pod.namespace, one.pod.name) == (namespace, arguments.pod)]
        if not found:
            return _on_a_node(cluster, namespace, arguments.pod)
        pod, reported = found[0].pod, found[0].reported
    if isinstance(pod, InvalidPod):
        print(as_text(f"{pod}: {pod.error}", 4096))
        return FITS_NOWHERE
    verdicts = explain(cluster, pod)
    if form.name in ("json", "yaml"):
        sys.stdout.write(written(document(pod, reported, verdicts), form.name))
    else:
        if reported:
            print(f"kube-scheduler reported: {reported}\n")
        for line in lines_of(table_of(verdicts), wide=form.name == "wide", width=form.width, headers=form.headers, colours=form.colours):
            print(line)
    return 0 if any(one.fits for one in verdicts) else FITS_NOWHERE


def _pending(raw: dict[str, object], file: str) -> PendingPod | InvalidPod:
    try:
        pod = read_pending(raw)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: found a pod that cannot be read ({quote(repr(error))}); expected it as Kubernetes takes it") from None
    if pod is None:
        raise InputError(f"{file}: found a pod that requests no GPUs; expected aliyun.com/gpu-mem or aliyun.com/gpu-count in its limits")
    return pod


def _on_a_node(cluster: Cluster, namespace: str, name: str) -> int:
    for node in cluster.nodes:
        for pod in node.pods:
            if (pod.namespace, pod.name) == (namespace, name):
                gpus = ", ".join(f"{units} units of GPU {index}" for index, units in sorted((node.units_of(pod.uid) or {}).items()))
                print(as_text(f"pod {pod.namespace}/{pod.name} is on node {node.name} and has {gpus or 'GPUs that are not known'}", 4096))
                return 0
    waiting = sorted(one.pod.name for one in cluster.waiting.values() if one.pod.namespace == namespace)
    there = ", ".join(waiting[:20]) or "none"
    raise InputError(
        f"found no pod {quote(name)} that requests GPUs in namespace {quote(namespace)}; pending there: {as_text(there, 1000)}"
    )


def run_simulate(arguments: argparse.Namespace, form: Format) -> int:
    """0 if every policy places every pod, FITS_NOWHERE if not."""
    if bool(arguments.filename) == bool(arguments.trace):
        raise InputError("expected -f FILE with pods, or --trace FILE with --trace-nodes FILE, and not both")
    if arguments.trace:
        outcomes, table = _simulate_trace(arguments, form)
    else:
        outcomes = _simulate_pods(arguments)
        table = simulate.table_of(outcomes)
    if form.name in ("json", "yaml"):
        sys.stdout.write(written(simulate.document(outcomes), form.name))
    else:
        for line in lines_of(table, wide=form.name == "wide", width=form.width, headers=form.headers, colours=form.colours):
            print(line)
    return 0 if all(one.node for found in outcomes.values() for one in found) else FITS_NOWHERE


def _simulate_pods(arguments: argparse.Namespace) -> dict[str, list[simulate.Outcome]]:
    pods: list[PendingPod] = []
    for number, (raw, count) in enumerate(read_manifests(arguments.filename)):
        pod = _pending(raw, arguments.filename)
        if isinstance(pod, InvalidPod):
            raise InputError(f"{arguments.filename}: {pod}: {pod.error}")
        names = [pod.name] if count == 1 else [f"{pod.name}-{replica}" for replica in range(count)]
        pods += [replace(pod, name=name, uid=f"simulated-{number}-{replica}") for replica, name in enumerate(names)]
        if len(pods) > MOST_REPLICAS:
            raise InputError(f"{arguments.filename}: found more than {MOST_REPLICAS} pods; expected at most so many")
    cluster, _ = read(arguments, "simulate")

    def takes_pods(pod: PendingPod, node: str) -> bool:
        return not cluster.infos.get(node, UNKNOWN_NODE).cordoned

    return {policy: simulate.run(policy, simulate.copy_of(cluster.ledger), pods, has_room=takes_pods) for policy in arguments.policies}


def _simulate_trace(arguments: argparse.Namespace, form: Format) -> tuple[dict[str, list[simulate.Outcome]], Table]:
    if not arguments.trace_nodes:
        raise InputError("found --trace without --trace-nodes; expected the trace's nodes too, such as openb_node_list_gpu_node.csv")
    outcomes, gpus = {}, 0
    try:
        pods = sorted(read_pods(Path(arguments.trace)), key=lambda pod: pod.created)
        for policy in arguments.policies:
            hosts, ledger = read_hosts(Path(arguments.trace_nodes))
            gpus = sum(len(node.gpu_states) for node in ledger.nodes.values())
            outcomes[policy] = simulate.run_trace(policy, hosts, ledger, pods)
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from None
    except TraceError as error:
        raise InputError(f"{error}") from None
    table = simulate.table_of(outcomes) if form.name == "wide" else simulate.summary_of(outcomes, pods, gpus)
    return outcomes, table


def run_cordon(arguments: argparse.Namespace) -> int:
    """0 if the device plugin has followed, 1 if it has not (yet)."""
    cordon = arguments.command == "cordon"
    file = find_kubeconfig(arguments.kubeconfig)
    credentials = load_kubeconfig(file, context=arguments.context)

    async def go() -> tuple[bool, bool]:
        async with KubeClient(credentials, user_agent="kubectl-gpushare", timeout=TIMEOUT_SECONDS) as client:
            return await set_cordon(client, arguments.node, arguments.gpus, cordon)

    try:
        changed, followed = asyncio.run(go())
    except KubeError as error:
        if error.status == 403:
            raise InputError(f"{error.message}; it needs to get and patch nodes: choose another user with --context") from None
        raise InputError(explain_error(error, credentials.server, "nodes")) from None
    except ValueError as error:
        raise InputError(f"{error}") from None
    what = f"{arguments.command}ed" if changed else f"already {arguments.command}ed"
    print(as_text(f"node/{arguments.node} GPU {','.join(arguments.gpus)} {what}", 1000))
    if not followed:
        print("kubectl gpushare: gpushare/gpus does not show it yet; is gpushare-device-plugin running on that node?", file=sys.stderr)
    return 0 if followed else 1
