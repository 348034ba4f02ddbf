# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The commands of `kubectl gpushare` that are not views: status, explain, simulate, cordon, uncordon, drain."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import as_text, quote
from gpushare_runtime.core.constraints import PLACEMENTS
from gpushare_runtime.core.node_ledger import gone_in_words
from gpushare_runtime.core.objects import read_pending
from gpushare_runtime.core.placement.explain import Largest, asked
from gpushare_runtime.core.placement.policies import FIRST_FIT
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kubectl_gpushare import right_size, simulate, status
from gpushare_runtime.kubectl_gpushare.api import (
    FORBIDDEN,
    MOST_REPLICAS,
    TIMEOUT_SECONDS,
    explain_error,
    fill,
    fill_from_files,
    need_all,
    pods_named,
    read_manifests,
)
from gpushare_runtime.kubectl_gpushare.cluster import (
    SYSTEM,
    UNKNOWN_NODE,
    UNKNOWN_POD,
    Cluster,
    Waiting,
    has_no_configuration,
    restart_of,
    scheduler_of,
    stall_of,
)
from gpushare_runtime.kubectl_gpushare.cordon import drain, set_cordon
from gpushare_runtime.kubectl_gpushare.errors import InputError, PrometheusError, UsageError
from gpushare_runtime.kubectl_gpushare.events import PodEvent, last_warning, with_reason
from gpushare_runtime.kubectl_gpushare.explain import (
    ALONE,
    VERSION,
    alone,
    beside_gpus,
    document,
    explain,
    headline,
    never,
    table_of,
    usual,
)
from gpushare_runtime.kubectl_gpushare.kubeconfig import context_namespace, find_kubeconfig, load_kubeconfig
from gpushare_runtime.kubectl_gpushare.layout import BAD, GOOD, HEADER, Cell, Column, Table, TableRow, paint
from gpushare_runtime.kubectl_gpushare.output import Format, written
from gpushare_runtime.kubectl_gpushare.stalls import MOST_EVIDENCE, STARTING, Stall
from gpushare_runtime.kubectl_gpushare.trace import read_hosts, read_pods
from gpushare_runtime.kubectl_gpushare.unplaced import sentence
from gpushare_runtime.kubectl_gpushare.used import find_address, instead_of, published_peaks, read_peaks
from gpushare_runtime.kubectl_gpushare.views import RECORD_IN_WORDS, RECORD_LOST, Selection, share_state, shares

FITS_NOWHERE: Final = 3
WRONG: Final = 3
UNKNOWN: Final = 1
_LEASES: Final = "/apis/coordination.k8s.io/v1"
_OF_EXTENDER: Final = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/gpushare-extender"
_OF_SCHEDULER: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/gpushare-scheduler"
MOST_EXPLAINED: Final = 100
_LISTED: Final = 20
_ASKED: Final = 3
_NO_POLICY: Final = (
    "kube-scheduler counts GPU memory here (DRA): it takes the first GPU with room, and chooses between nodes by other things than GPUs; "
    "here the first one by name stands for them"
)


@dataclass
class Beside:
    """The facts that `explain` reads beside nodes and pods, as far as the user may. leases: of the schedulers. warnings: by UID, kubelet's
    last one about a pod that does not run."""

    leases: list[status.LeaseState] = field(default_factory=list)
    warnings: dict[str, PodEvent] = field(default_factory=dict)


def read(arguments: argparse.Namespace, name: str = "", beside: Beside | None = None) -> tuple[Cluster, str]:
    """The cluster as far as it may be read, which it says itself, and the namespace that is meant. InputError where not even the pods of
    that one may be. name: of pods that are kept whatever they request. beside: is filled."""
    cluster = Cluster()
    cluster.remember = name
    if arguments.from_file:
        fill_from_files(cluster, arguments.from_file)
        return cluster, arguments.namespace or "default"
    file = find_kubeconfig(arguments.kubeconfig)
    credentials = load_kubeconfig(file, context=arguments.context)
    own = arguments.namespace or context_namespace(file, arguments.context)

    async def go() -> None:
        async with KubeClient(credentials, user_agent="kubectl-gpushare", timeout=TIMEOUT_SECONDS) as client:
            await fill(client, cluster, "", own)
            if name:
                # Of those that have ended, too, which are not in the list.
                everywhere = arguments.all_namespaces and cluster.complete
                cluster.named = list(await pods_named(client, "" if everywhere else own, name))
            if beside is not None and cluster.waiting:
                with contextlib.suppress(KubeError):
                    beside.leases = await find_leases(client)
            if beside is not None:
                beside.warnings = await _last_warnings(client, cluster.named)
            if getattr(arguments, "as_used", False) and not arguments.prometheus:
                arguments.prometheus = await find_address(client)
                arguments.prometheus_by_installer = True
            cluster.now = client.now

    try:
        asyncio.run(go())
    except KubeError as error:
        raise InputError(explain_error(error, credentials.server, f"pods in namespace {own} (-n names another)")) from None
    return cluster, own


async def _last_warnings(client: KubeClient, pods: Sequence[Mapping[str, Any]]) -> dict[str, PodEvent]:
    """By UID, of the first ones of these that are on a node and do not run; none without the right to read them."""
    found: dict[str, PodEvent] = {}
    for raw in [raw for raw in pods if stall_of(raw) is not None][:_LISTED]:
        metadata = raw["metadata"]
        with contextlib.suppress(KubeError):
            if event := await last_warning(client, metadata["namespace"], metadata["uid"]):
                found[event.uid] = event
    return found


def run_explain(arguments: argparse.Namespace, form: Format) -> int:
    """0 if the pod fits on a node, or has GPUs of one; FITS_NOWHERE if not. With -A and without a pod it explains all pods that wait.

    Where not all nodes and pods may be read, it judges the pod alone: UNKNOWN before its scheduler has tried it.
    """
    everywhere = arguments.all_namespaces
    if bool(arguments.pod) == bool(arguments.filename) and not (everywhere and not arguments.pod):
        raise UsageError("expected the name of a pod, or -f FILE with one, or -A for all pods that wait")
    beside = Beside()
    cluster, namespace = read(arguments, arguments.pod or "", None if arguments.filename else beside)
    everywhere = everywhere and cluster.complete
    if arguments.filename:
        [raw, _], *others = read_manifests(arguments.filename)
        if others:
            raise InputError(f"{arguments.filename}: found {len(others) + 1} pods; expected one. `simulate` takes several")
        pod = _pending(raw, arguments.filename)
        if not cluster.complete and isinstance(pod, PendingPod) and not never(pod, cluster.largest()):
            # kube-scheduler has reported nothing of a pod that is not in the cluster.
            need_all(cluster, "explain -f", f"create the pod, then kubectl gpushare explain {pod.name}")
        return _explain_one(cluster, Waiting(pod, "", (), scheduler_of(raw)), form, beside)
    if not arguments.pod:
        need_all(cluster, "explain -A", "kubectl gpushare pods")
        return _explain_all(cluster, form, beside)
    waiting = [
        wait for wait in cluster.waiting.values() if wait.pod.name == arguments.pod and (everywhere or wait.pod.namespace == namespace)
    ]
    if len(waiting) > 1:
        names = ", ".join(sorted(wait.pod.namespace for wait in waiting)[:_LISTED])
        raise InputError(f"found {len(waiting)} pods {quote(arguments.pod)}; choose one of the namespaces with -n: {as_text(names, 1000)}")
    if not waiting:
        return _on_a_node(cluster, "" if everywhere else namespace, arguments.pod, beside)
    return _explain_one(cluster, waiting[0], form, beside)


def _explain_one(cluster: Cluster, wait: Waiting, form: Format, beside: Beside) -> int:
    pod, reported, largest, complete = wait.pod, wait.reported, cluster.largest(), cluster.complete
    if isinstance(pod, InvalidPod):
        print(as_text(f"{pod}: {pod.error}", 4096))
        return FITS_NOWHERE
    verdicts = explain(cluster, pod) if complete else []
    if complete:
        sentence, known = headline(pod, verdicts, reported, largest, wait.scheduler), True
    else:
        sentence, known = alone(pod, reported, cluster.told.get(pod.uid, ""), largest, wait.scheduler)
    unled = _nothing_scheduled(cluster, wait, beside, largest) or _has_claimed(cluster, pod)
    sentence, known = unled or sentence, known or bool(unled)
    if form.name in ("json", "yaml"):
        sys.stdout.write(written(document(pod, reported, verdicts, sentence, complete), form.name))
    else:
        verdict = as_text(f"{pod}: {sentence}", 4096)
        print(paint(verdict, HEADER) if form.colours else verdict)
        wide = form.name == "wide"
        table = table_of(verdicts, each=wide)
        # Of a request that no GPU is large enough for, every node has the same to say.
        shown = table.rows and not unled and (wide or not never(pod, largest))
        words = beside_gpus(reported) if shown and not wide else reported
        print(f"requests {asked(pod.request, largest, cluster.unit())}" + (f"; kube-scheduler reported: {words}" if words else ""))
        for line in ["", *form.lines(table)] if shown else ():
            print(line)
        if not complete:
            print(f"\n{ALONE}")
    return 0 if any(verdict.fits for verdict in verdicts) else FITS_NOWHERE if known else UNKNOWN


def _has_claimed(cluster: Cluster, pod: PendingPod) -> str:
    """The sentence about a pod whose ResourceClaim has GPUs already, though it is on no node; "" for any other."""
    for node, indexes in cluster.claims.reserved(pod.uid).items():
        gpus = ",".join(map(str, sorted(indexes))) or "that are not known"
        return f"its ResourceClaim has GPU {gpus} of node {node} already: it waits for something else there, as kube-scheduler reports"
    return ""


def _explain_all(cluster: Cluster, form: Format, beside: Beside) -> int:
    """A line for each pod that waits: its verdict. FITS_NOWHERE if one of them fits nowhere."""
    largest = cluster.largest()
    table, made, fits = Table((Column("NAMESPACE"), Column("NAME"), Column("FITS"), Column("VERDICT", flexible=True))), [], True
    waiting = sorted(cluster.waiting.values(), key=lambda wait: (wait.pod.namespace, wait.pod.name))
    placement = usual(cluster)
    for wait in waiting[:MOST_EXPLAINED]:
        pod = wait.pod
        verdicts = [] if isinstance(pod, InvalidPod) else explain(cluster, pod, placement)
        sentence = pod.error if isinstance(pod, InvalidPod) else _nothing_scheduled(cluster, wait, beside, largest)
        if isinstance(pod, PendingPod) and not sentence:
            sentence = headline(pod, verdicts, wait.reported, largest, wait.scheduler)
        good = any(verdict.fits for verdict in verdicts)
        fits &= good
        names = [as_text(pod.namespace, 253), as_text(pod.name, 253)]
        cells = [*map(Cell, names), Cell("yes", GOOD) if good else Cell("no", BAD), Cell(as_text(sentence, 4096))]
        table.rows.append(TableRow(f"pod/{'/'.join(names)}", cells))
        made.append({"namespace": names[0], "name": names[1], "fits": good, "verdict": as_text(sentence, 4096)})
    if form.name in ("json", "yaml"):
        sys.stdout.write(written({"v": VERSION, "pods": made}, form.name))
    else:
        if not waiting:
            print("no pod waits for a GPU", file=sys.stderr)
        for line in form.lines(table) if waiting else ():
            print(line)
    if len(waiting) > MOST_EXPLAINED:
        print(f"warning: {len(waiting) - MOST_EXPLAINED} more pods wait; give their names", file=sys.stderr)
    return 0 if fits else FITS_NOWHERE


def _nothing_scheduled(cluster: Cluster, wait: Waiting, beside: Beside, largest: Largest | None) -> str:
    """Whether room, no cure that makes some helps; what is wrong with the pod itself remains. "" where there is a leader."""
    sentence = status.nothing_scheduled(beside.leases, wait, cluster.now())
    own = never(wait.pod, largest) if sentence and isinstance(wait.pod, PendingPod) else ""
    return f"{sentence}; it {own}" if own else sentence


def _pending(raw: dict[str, object], file: str) -> PendingPod | InvalidPod:
    try:
        pod = read_pending(raw)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: found a pod that cannot be read ({quote(repr(error))}); expected it as Kubernetes takes it") from None
    if pod is None:
        raise InputError(f"{file}: found a pod that requests no GPUs; expected aliyun.com/gpu-mem or aliyun.com/gpu-count in its limits")
    return pod


def _on_a_node(cluster: Cluster, namespace: str, name: str, beside: Beside) -> int:
    """namespace: "" for all."""
    found = [(node, share) for node in cluster.nodes for share in shares(node) if share.name == name and namespace in ("", share.namespace)]
    for node, share in found:
        unit = cluster.unit_of(node)
        parts = [
            f"{unit.amount(units) if unit else f'{units} units'} of GPU {index}" for index, units in sorted((share.by_gpu or {}).items())
        ]
        state = f" ({share_state(share)[0]})" if share.mark or share.why else ""
        if share.why == RECORD_LOST:
            state += f": {RECORD_IN_WORDS}"
        has = ", ".join(parts) or ("" if share.gone else "GPUs that are not known")
        if share.gone and node.inventory:
            has = f"{has and has + ', and '}{gone_in_words(share.gone, node.inventory.unit)}"
            state += f": delete it; {restart_of(cluster, share.uid)}"
        stall = cluster.pods.get(share.uid, UNKNOWN_POD).stall
        if stall is not None:
            words = _stalled(stall, beside.warnings.get(share.uid), cluster)
            print(as_text(f"pod {share.namespace}/{share.name} {words}", 4096))
        orphaned = share.pod is None and share.why == "orphaned"
        is_there = f"is deleted; its processes on node {node.name} have" if orphaned else f"is on node {node.name} and has"
        print(as_text(f"pod {share.namespace}/{share.name} {is_there} {has}{state}", 4096))
    if found:
        return 0
    others = [raw for raw in cluster.named if namespace in ("", (raw.get("metadata") or {}).get("namespace"))]
    for raw in others[:_LISTED]:
        print(as_text(f"pod {raw['metadata'].get('namespace')}/{name}: {_in_words(cluster, raw)}", 4096))
    if others:
        return FITS_NOWHERE
    waiting = sorted(wait.pod.name for wait in cluster.waiting.values() if namespace in ("", wait.pod.namespace))
    there = ", ".join(waiting[:_LISTED]) or "none"
    where = f"in namespace {quote(namespace)}" if namespace else "in any namespace"
    raise InputError(f"found no pod {quote(name)} {where}; waiting for GPUs there: {as_text(there, 1000)}")


def _in_words(cluster: Cluster, raw: Mapping[str, Any]) -> str:
    """The sentence about a pod that is not in the ledger."""
    shared = cluster.claims.shared(raw)
    return f"it shares the ResourceClaim {quote(shared)} with another pod, which has its GPUs here" if shared else sentence(raw)


def _stalled(stall: Stall, event: PodEvent | None, cluster: Cluster) -> str:
    """kubelet's state, and its last Warning in its own words."""
    if event is None and stall.state == STARTING and not stall.hangs(cluster.now()):
        return f"is being started: {stall.in_words()}"
    words = f"does not run: {stall.in_words()}"
    if event is None:
        return words
    ago = f", {max(0, int(cluster.now() - event.time))} s ago" if event.time else ""
    return f"{words}; the last Warning of {event.source or 'kubelet'}{ago}: {event.reason}: {event.message[:MOST_EVIDENCE]}"


def run_simulate(arguments: argparse.Namespace, form: Format) -> int:
    """0 if every policy places every pod, FITS_NOWHERE if not; 0 of pods as they are used."""
    if arguments.as_used:
        return _simulate_as_used(arguments, form)
    if bool(arguments.filename) == bool(arguments.trace):
        raise UsageError("expected -f FILE with pods, or --trace FILE with --trace-nodes FILE, and not both")
    if arguments.trace:
        outcomes, table = _simulate_trace(arguments, form)
    else:
        outcomes = _simulate_pods(arguments)
        table = simulate.table_of(outcomes)
    if form.name in ("json", "yaml"):
        sys.stdout.write(written(simulate.document(outcomes), form.name))
    else:
        for line in form.lines(table):
            print(line)
    return 0 if all(outcome.node for found in outcomes.values() for outcome in found) else FITS_NOWHERE


def _simulate_as_used(arguments: argparse.Namespace, form: Format) -> int:
    if arguments.filename or arguments.trace:
        raise UsageError("found --as-used with -f or --trace; it is about the pods of the cluster, so leave the others out")
    cluster, namespace = read(arguments)
    namespace = "" if arguments.all_namespaces else namespace
    peaks = None
    if arguments.prometheus:
        try:
            peaks = asyncio.run(read_peaks(arguments.prometheus, arguments.prometheus_token_file, namespace))
        except PrometheusError as error:
            print(instead_of(error, cluster, arguments.prometheus_by_installer), file=sys.stderr)
    if peaks is None:
        if not cluster.knows_nodes:
            need_all(cluster, "simulate --as-used", "simulate --as-used --prometheus URL")
        peaks = published_peaks(cluster)
    select = Selection(namespace=namespace)
    found = right_size.workloads(cluster, select, peaks, arguments.margin)
    if not found:
        raise InputError(f"found no pod with shared GPUs in {f'namespace {quote(namespace)}' if namespace else 'any namespace'}")
    everything = not namespace and cluster.complete
    in_use = right_size.gpus_in_use(cluster, found, FIRST_FIT if cluster.claims.in_use else PLACEMENTS[0]) if everything else None
    if form.name in ("json", "yaml"):
        sys.stdout.write(written(right_size.document(found, peaks, arguments.margin, in_use), form.name))
        return 0
    table = right_size.table_of(found, select)
    table.legend = right_size.sentences(found, peaks, arguments.margin, in_use)
    for line in form.lines(table):
        print(line)
    return 0


def _simulate_pods(arguments: argparse.Namespace) -> dict[str, list[simulate.SimulatedPod]]:
    pods: list[PendingPod] = []
    for number, (raw, count) in enumerate(read_manifests(arguments.filename)):
        pod = _pending(raw, arguments.filename)
        if isinstance(pod, InvalidPod):
            raise InputError(f"{arguments.filename}: {pod}: {pod.error}")
        names = [pod.name] if count == 1 else [f"{pod.name}-{replica}" for replica in range(count)]
        pods += [replace(pod, name=name, uid=f"simulated-{number}-{replica}") for replica, name in enumerate(names)]
        if len(pods) > MOST_REPLICAS:
            raise InputError(f"{arguments.filename}: found more than {MOST_REPLICAS} pods; expected at most so many")
    cluster, _ = read(arguments)
    largest = cluster.largest()
    if not cluster.complete:
        pods = _judged_alone(pods, largest)

    def takes_pods(pod: PendingPod, node: str) -> bool:
        return not cluster.infos.get(node, UNKNOWN_NODE).cordoned

    policies = arguments.policies
    if cluster.claims.in_use:
        policies = (FIRST_FIT,)
        print(f"warning: {_NO_POLICY}", file=sys.stderr)
    return {policy: simulate.run(policy, cluster.ledger.copy(), pods, has_room=takes_pods, largest=largest) for policy in policies}


def _judged_alone(pods: list[PendingPod], largest: Largest | None) -> list[PendingPod]:
    """Of a user who may not list all nodes and pods: those that fit nowhere, and a note about the others. InputError for others alone."""
    found = [pod for pod in pods if never(pod, largest)]
    if count := len(pods) - len(found):
        size = f"the largest GPU has {largest.unit.amount(largest.gpu)}, which is enough" if largest else "the sizes of GPUs are not known"
        note = f"{count} {'pod' if count == 1 else 'pods'}: {size}; which node has room is not known"
        need = "simulate needs to list nodes and all pods. As you are: create the pod, then kubectl gpushare explain POD"
        if not found:
            raise InputError(f"{note}: {need}")
        print(f"warning: {note}: {need}", file=sys.stderr)
    return found


def _simulate_trace(arguments: argparse.Namespace, form: Format) -> tuple[dict[str, list[simulate.SimulatedPod]], Table]:
    if not arguments.trace_nodes:
        raise UsageError("found --trace without --trace-nodes; expected the trace's nodes too, such as openb_node_list_gpu_node.csv")
    outcomes, gpus = {}, 0
    try:
        pods = sorted(read_pods(Path(arguments.trace)), key=lambda pod: pod.created)
        for policy in arguments.policies:
            hosts, ledger = read_hosts(Path(arguments.trace_nodes))
            gpus = sum(len(node.gpu_states) for node in ledger.nodes.values())
            outcomes[policy] = simulate.run_trace(policy, hosts, ledger, pods)
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from None
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
        print("kubectl gpushare: the GPUs of that node do not show it yet; is gpushare-device-plugin running there?", file=sys.stderr)
    return 0 if followed else 1


async def find_leases(client: KubeClient) -> list[status.LeaseState]:
    """Of kube-scheduler, by whatever name the extender goes, and of gpushare's own scheduler where the daemons are pods. KubeError."""
    name = await _lease_of_extender(client) or status.LeaseState.scheduler
    own = await _lease_named(client, status.IN_CLUSTER, await _homes_of_scheduler(client))
    found = await _lease_named(client, name, [SYSTEM, status.OF_OPENSHIFT.get(name, SYSTEM)])
    # Without leader election, or on a control plane that others run, there is none: that only matters to pods of ours that it places.
    return [*own, *(found or ([] if own else [status.LeaseState(scheduler=name, exists=False)]))]


async def _lease_named(client: KubeClient, name: str, homes: Sequence[str]) -> list[status.LeaseState]:
    """The one that holds longest in the namespaces where it belongs, none or one. Anybody who may edit a namespace makes Leases there."""
    found, problem = [], ""
    for namespace in dict.fromkeys(homes):
        try:
            found.append(status.read_lease(await client.get(path(_LEASES, "namespaces", namespace, "leases", name))))
        except KubeError as error:
            if error.status not in (403, 404):
                raise
            if error.status == 403 and namespace == SYSTEM:
                problem = "you may not get it"
    if found:
        return [max(found, key=lambda lease: (bool(lease.holder), lease.renewed + 2 * lease.seconds))]
    return [status.LeaseState(problem=problem, scheduler=name)] if problem else []


async def _homes_of_scheduler(client: KubeClient) -> list[str]:
    """The namespace of an installation as pods, by a binding that only an administrator makes; the usual one where the user may not read
    that."""
    try:
        subjects = (await client.get(_OF_SCHEDULER)).get("subjects") or []
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return [protocol.IN_CLUSTER_NAMESPACE]
    return [str(subject["namespace"]) for subject in subjects if subject.get("namespace")][:_LISTED]


async def _lease_of_extender(client: KubeClient) -> str:
    """The Lease that the extender beside a kube-scheduler may get, "" where the user may not read that."""
    try:
        rules = (await client.get(_OF_EXTENDER)).get("rules") or []
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return ""
    return next((str(name) for rule in rules if "leases" in (rule.get("resources") or ()) for name in rule.get("resourceNames") or ()), "")


async def find_evidence(client: KubeClient, cluster: Cluster) -> status.StatusEvidence:
    """The facts that `status` reads beside nodes and pods. A user who may not read Events is told so. KubeError."""
    controllers = await _lease_named(client, status.CONTROLLERS, [SYSTEM, status.OF_OPENSHIFT[status.CONTROLLERS]])
    found = status.StatusEvidence(await find_leases(client), controllers=controllers[0] if controllers else None)
    if not cluster.complete:
        return found
    warnings: dict[str, PodEvent] = {}
    try:
        since = cluster.now() - status.EVENTS_SECONDS
        found.unmanaged = await with_reason(client, protocol.EVENT_UNMANAGED, since)
        found.seconds = await with_reason(client, protocol.EVENT_SECOND_SCHEDULER, since)
        for pods in list(status.hanging(cluster).values())[:_LISTED]:
            for pod, _ in pods[:_ASKED]:
                event = await last_warning(client, pod.namespace, pod.uid)
                if event is not None:
                    warnings[pod.uid] = event
                    break
    except KubeError as error:
        found.problem = "you may not list them" if error.status == FORBIDDEN else quote(error.message)
    found.warnings = warnings
    found.schedulers = [seen for name in sorted(cluster.schedulers.values())[:_LISTED] if (seen := await _scheduler_pod(client, name))]
    return found


async def _scheduler_pod(client: KubeClient, name: str) -> status.SchedulerPod | None:
    """None if it cannot be read any more."""
    try:
        raw = await client.get(path("api/v1", "namespaces", SYSTEM, "pods", name))
    except KubeError:
        return None
    return status.SchedulerPod(as_text(name, 253), has_no_configuration(raw))


def run_status(arguments: argparse.Namespace, form: Format) -> int:
    """0 if nothing is wrong, WRONG if something is."""
    cluster, evidence = Cluster(), status.StatusEvidence()
    if arguments.from_file:
        fill_from_files(cluster, arguments.from_file)
    else:
        file = find_kubeconfig(arguments.kubeconfig)
        credentials = load_kubeconfig(file, context=arguments.context)

        async def go() -> status.StatusEvidence:
            async with KubeClient(credentials, user_agent="kubectl-gpushare", timeout=TIMEOUT_SECONDS) as client:
                await fill(client, cluster, "", context_namespace(file, arguments.context))
                cluster.now = client.now
                return await find_evidence(client, cluster)

        try:
            evidence = asyncio.run(go())
        except KubeError as error:
            raise InputError(explain_error(error, credentials.server, "nodes, and pods in all namespaces")) from None
    need_all(cluster, "status", "kubectl gpushare pods")
    findings = status.judge(cluster, evidence)
    if form.name in ("json", "yaml"):
        sys.stdout.write(written(status.document(findings), form.name))
    else:
        for line in form.lines(status.table_of(findings)):
            print(line)
    return WRONG if any(finding.severity == status.ERROR for finding in findings) else 0


def run_drain(arguments: argparse.Namespace) -> int:
    """0 if every pod was evicted; 1 if one was not. A dry run only reports: 0."""
    file = find_kubeconfig(arguments.kubeconfig)
    credentials = load_kubeconfig(file, context=arguments.context)

    async def go() -> int:
        async with KubeClient(credentials, user_agent="kubectl-gpushare", timeout=TIMEOUT_SECONDS) as client:
            cluster = Cluster()
            await fill(client, cluster, "", context_namespace(file, arguments.context))
            need_all(cluster, "drain", "ask an administrator of the cluster")
            return await drain(client, cluster, arguments, lambda text: print(as_text(text, 1000)))

    try:
        return asyncio.run(go())
    except KubeError as error:
        needs = "nodes and pods, to patch nodes, and to create pods/eviction"
        raise InputError(explain_error(error, credentials.server, needs)) from None
