# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare status`: what is wrong with scheduler, extender, nodes, GPUs and waiting pods, by what the API server has. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.inventory import HEALTHY
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.node_report import HeldEntry
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.kubectl_gpushare.causes import EXTENDER, FOREIGN, POLICY, UNLED, WEBHOOK, Cause, cause_in
from gpushare_runtime.kubectl_gpushare.cluster import SYSTEM, UNKNOWN_POD, Cluster, Waiting, restart_of, why_never
from gpushare_runtime.kubectl_gpushare.events import PodEvent
from gpushare_runtime.kubectl_gpushare.explain import GATED, OUR_SCHEDULERS, explain, headline, names_in_words, some, usual
from gpushare_runtime.kubectl_gpushare.layout import BAD, GOOD, WARN, Cell, Column, Table, TableRow
from gpushare_runtime.kubectl_gpushare.stalls import CRASHES, HANGS_SECONDS, MOST_EVIDENCE, STARTING, Stall
from gpushare_runtime.kubectl_gpushare.views import Selection, gone_gpus, gpus_of, lost_records, orphans, selected_waiting, shares

VERSION: Final = 1
ERROR, WARNING, OK = "error", "warning", "ok"
NODE_LABEL: Final = ("gpushare.kubernetes/node", "true")
MOST_WAITING: Final = 100
WAITED_SECONDS: Final = 60.0
_MOST_LEASE_SECONDS: Final = 3600
_MOST_CAUSES: Final = 20
_NAMED: Final = 3
_UNLESS_ALONE: Final = "; or it runs alone with leader election off"
RECENT_SECONDS: Final = 600.0
"""So new is a Warning about a pod that kubelet is starting."""
EVENTS_SECONDS: Final = 3600.0
"""So new are the Events about pods that another scheduler has placed."""
_FIRST_SECONDS: Final = 60.0
_LABELLED: Final = "it has the label of a GPU node, and no device plugin has ever published GPUs"
_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STYLES: Final = {ERROR: BAD, WARNING: WARN, OK: GOOD}


IN_CLUSTER: Final = "gpushare-scheduler"
"""The scheduler, and its Lease, of an installation as pods. The cluster's own kube-scheduler places the other pods there."""


CONTROLLERS: Final = "kube-controller-manager"


OF_OPENSHIFT: Final = {"kube-scheduler": "openshift-kube-scheduler", CONTROLLERS: "openshift-kube-controller-manager"}
"""A Lease's name to its namespace there. That of the cluster's bootstrap stays in kube-system, where nobody renews it."""


@dataclass(frozen=True)
class LeaseState:
    """The leader of a scheduler. problem: why that is not known, "" if it is. renewed: Unix time. seconds: how long a renewal holds.

    scheduler: the Lease's name. namespace: where it is. exists: whether there is such a Lease. kube-scheduler makes one at its first start
    and never deletes it, unless its leader election is off.
    """

    holder: str = ""
    renewed: float = 0.0
    seconds: int = 15
    problem: str = ""
    scheduler: str = "kube-scheduler"
    namespace: str = "kube-system"
    exists: bool = True

    def age(self, now: float) -> int:
        """Seconds since it was renewed."""
        return max(0, int(now - self.renewed))

    def is_led(self, now: float) -> bool:
        return bool(self.holder) and self.age(now) <= 2 * self.seconds

    def unled(self, now: float) -> str:
        """The sentence about a Lease that is not renewed any more."""
        last = f"; {self.holder} was the last one, {self.age(now)} s ago" if self.holder else ""
        return f"{self.scheduler} has no leader{last}"


@dataclass(frozen=True)
class SchedulerPod:
    """A pod of kube-system that is a kube-scheduler by its name or image. plain: it has no configuration, and so calls no extender."""

    name: str
    plain: bool


@dataclass
class StatusEvidence:
    """The facts beside nodes and pods. warnings: by UID, kubelet's last one about a pod that hangs. unmanaged, seconds: Events
    GPUShareUnmanaged and GPUShareSecondScheduler of the last hour, one a pod. problem: why no Events are known, "" where they are.
    controllers: kube-controller-manager's Lease, None where there is none that the user may read."""

    leases: Sequence[LeaseState] = ()
    warnings: Mapping[str, PodEvent] = field(default_factory=dict)
    unmanaged: Sequence[PodEvent] = ()
    seconds: Sequence[PodEvent] = ()
    schedulers: Sequence[SchedulerPod] = ()
    problem: str = ""
    controllers: LeaseState | None = None


@dataclass(frozen=True)
class StatusEntry:
    """severity: of ERROR, WARNING, OK. where: nodes or a pod, "" for the cluster. cure: "" where nothing is to be done."""

    severity: str
    check: str
    where: str
    found: str
    cure: str = ""


def read_lease(raw: Mapping[str, Any]) -> LeaseState:
    """A coordination.k8s.io/v1 Lease."""
    spec = raw.get("spec") or {}
    holder, text, seconds = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or ""), spec.get("leaseDurationSeconds")
    try:
        renewed = datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        renewed = 0.0
    length = seconds if isinstance(seconds, int) and 0 < seconds <= _MOST_LEASE_SECONDS else LeaseState.seconds
    # The identity is HOST_UUID, the host's name a pod's where the scheduler is one.
    names = {key: as_text(str((raw.get("metadata") or {}).get(key) or ""), 253) for key in ("name", "namespace")}
    name, namespace = names["name"] or LeaseState.scheduler, names["namespace"] or LeaseState.namespace
    return LeaseState(as_text(holder.partition("_")[0], 253), renewed, length, scheduler=name, namespace=namespace)


def judge(cluster: Cluster, evidence: StatusEvidence) -> list[StatusEntry]:
    """Everything, what is worst first. evidence: empty where there is no cluster to ask."""
    leases = evidence.leases
    pods = next((f"-n {lease.namespace} -l app.kubernetes.io/part-of=gpushare" for lease in leases if lease.scheduler == IN_CLUSTER), "")
    # With claims there is no extender that a second scheduler could do without.
    of_extender = [] if cluster.claims.in_use else [*_second_scheduler(cluster, evidence)]
    found = [
        *(finding for lease in leases for finding in _scheduler(lease, cluster.now(), pods, cluster)),
        *_controllers(evidence.controllers, cluster.now()),
        *of_extender,
        *_stopped(cluster, pods),
        *_nodes(cluster, pods),
        *_gpus(cluster),
        *_hanging(cluster, evidence),
        *_unmanaged(cluster, evidence),
        *_waiting(cluster),
    ]
    order = (ERROR, WARNING, OK)
    return sorted([*found, *_drift(cluster)], key=lambda finding: order.index(finding.severity))


def nothing_scheduled(leases: Iterable[LeaseState], wait: Waiting, now: float) -> str:
    """The sentence about a pod whose scheduler has no leader; "" where it has one, or where that is not known."""
    if wait.scheduler not in OUR_SCHEDULERS:
        return ""
    # If it was tried, there is a scheduler, which needs no Lease where its leader election is off.
    if wait.reported:
        return ""
    own = [lease for lease in leases if (lease.scheduler == IN_CLUSTER) == (wait.scheduler == IN_CLUSTER)]
    if not own or any(lease.problem or not lease.exists or lease.is_led(now) for lease in own):
        return ""
    return f"nothing is scheduled: {own[0].unled(now)} (kubectl gpushare status has what to do)"


def _scheduler(lease: LeaseState, now: float, pods: str, cluster: Cluster) -> Iterator[StatusEntry]:
    """pods: how kubectl selects ours, "" where the daemons are services of hosts."""
    ours = lease.scheduler == IN_CLUSTER
    cure = "kubectl get pods -n kube-system -l component=kube-scheduler, and its log on each control plane"
    if ours:
        cure = f"kubectl get pods {pods}, and kubectl logs {pods} -c kube-scheduler"
    asked = Cause(UNLED, f"{lease.namespace}/{lease.scheduler}")
    unled = sum(cause_in(wait.reported) == asked for wait in cluster.waiting.values())
    if unled:
        words = f"{lease.scheduler} tries {_pods(unled)} without having the Lease {asked.name}, so the extender does not answer it"
        yield StatusEntry(
            ERROR,
            "scheduler",
            "",
            f"{words}: its leader election is off, or it has another Lease or host name",
            "start it with --leader-elect=true",
        )
    elif lease.problem:
        yield StatusEntry(
            WARNING, "scheduler", "", f"the leader is not known: {lease.problem}", "choose a user who may get Leases in kube-system"
        )
    elif not lease.exists:
        words = f"{lease.scheduler} has no Lease: it runs without leader election, or has never run"
        yield StatusEntry(WARNING, "scheduler", "", words, cure)
    elif not lease.is_led(now):
        untried = _untried(cluster, ours)
        words = f"{lease.unled(now)}: all new {'GPU pods' if ours else 'pods'} wait"
        words += f", and no scheduler has tried {_pods(untried)}" if untried else f"{_UNLESS_ALONE}, as no pod waits untried"
        yield StatusEntry(ERROR if untried else WARNING, "scheduler", "", words, cure)
    else:
        yield StatusEntry(OK, "scheduler", lease.holder, f"leads {lease.scheduler}, renewed {lease.age(now)} s ago")


def _untried(cluster: Cluster, ours: bool) -> int:
    """How many pods of this scheduler have waited for a minute without an attempt. ours: of the one of an installation as pods."""
    waiting = [uid for uid, wait in cluster.waiting.items() if not wait.reported and wait.scheduler in OUR_SCHEDULERS]
    of_it = [uid for uid in waiting if (cluster.waiting[uid].scheduler == IN_CLUSTER) == ours]
    return sum(0 < cluster.pods.get(uid, UNKNOWN_POD).created < cluster.now() - WAITED_SECONDS for uid in of_it)


def _controllers(lease: LeaseState | None, now: float) -> Iterator[StatusEntry]:
    if lease is not None and not lease.problem and not lease.is_led(now):
        words = f"{lease.unled(now)}: no Deployment, Job or StatefulSet makes pods, and a lost node is not noticed{_UNLESS_ALONE}"
        cure = f"kubectl get pods -n {SYSTEM} -l component={CONTROLLERS}, and its log on each control plane"
        yield StatusEntry(WARNING, "controllers", "", words, cure)


def _stopped(cluster: Cluster, pods: str) -> Iterator[StatusEntry]:
    """The extenders, webhooks and policies that stop pods which wait. A message that names another one is never blamed on ours."""
    stopped: dict[Cause, list[Waiting]] = {}
    for wait in cluster.waiting.values():
        if cause := cause_in(wait.reported):
            stopped.setdefault(cause, []).append(wait)
    for cause, waiting in list(stopped.items())[:_MOST_CAUSES]:
        many, words = _pods(len(waiting)), as_text(waiting[0].reported, MOST_EVIDENCE)
        if cause.kind == EXTENDER:
            what = "gets no answer" if cause.silent else f"gets the HTTP status {cause.code}"
            cure = "on the control plane of the leader: gpushare-doctor, then systemctl restart gpushare-extender"
            cure = f"kubectl logs {pods} -c extender" if pods else cure
            yield StatusEntry(ERROR, "extender", "", f"kube-scheduler {what} for {many}: {words}", cure)
        elif cause.kind == FOREIGN:
            what = "gets no answer from" if cause.silent else f"gets the HTTP status {cause.code} from"
            found = f"kube-scheduler {what} an extender that is not gpushare's, at {cause.name}, for {many}: {words}"
            cure = (
                "on each control plane, remove its entry from kube-scheduler's configuration, or start its program; verify names the file"
            )
            yield StatusEntry(ERROR, "extender", "", found, cure)
        elif cause.kind in (WEBHOOK, POLICY):
            what = "does not answer the API server" if cause.silent else "rejects what kube-scheduler does"
            lists = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
            if cause.kind == POLICY:
                lists = "validatingadmissionpolicies,validatingadmissionpolicybindings"
            start = "start the program of its service, or" if cause.silent else "if that is not meant,"
            cure = f"{start} except pods/binding in it: kubectl get {lists} -o yaml"
            severity = ERROR if cause.silent else WARNING
            yield StatusEntry(severity, "admission", "", f"the {cause.kind} {cause.name} {what} for {many}: {words}", cure)
    if not any(cause.kind in (EXTENDER, FOREIGN) for cause in stopped) and not cluster.claims.in_use:
        yield StatusEntry(OK, "extender", "", "no waiting pod reports an extender error")


def _nodes(cluster: Cluster, pods: str) -> Iterator[StatusEntry]:
    known = {node.name: node for node in cluster.nodes}
    groups: dict[tuple[str, str], list[str]] = {}
    fine = 0
    for name, info in cluster.infos.items():
        node = known.get(name)
        inventory = node.inventory if node else None
        if inventory is None and NODE_LABEL not in info.labels and not (node and node.inventory_error):
            continue
        log = "on it: gpushare-doctor, then systemctl restart gpushare-device-plugin"
        if pods:
            log = f"kubectl get pods {pods} -o wide, and kubectl logs {pods} -c device-plugin"
        if not info.ready:
            why = "not Ready: new pods go elsewhere", "kubectl describe node"
        elif inventory is None and node and node.inventory_error:
            why = node.inventory_error, log
        elif inventory is None:
            # A plugin that has stopped leaves its annotation: none has ever run there.
            why = _LABELLED, log
        elif info.offered == 0 and any(gpu.usable and gpu.units for gpu in inventory.gpus):
            why = "no device plugin: kubelet publishes no GPU memory, so new GPU pods wait or fail", log
        else:
            fine += 1
            continue
        groups.setdefault(why, []).append(name)
    for (found, cure), names in groups.items():
        if found == _LABELLED:
            cure = f"if it is not a GPU node: kubectl label node {' '.join(names[:_NAMED])} {NODE_LABEL[0]}-; else {cure}"
        yield StatusEntry(ERROR, "nodes", names_in_words(names), found, cure)
    cordoned = [name for name, info in cluster.infos.items() if info.cordoned and name in known and known[name].inventory]
    if cordoned:
        cure = f"kubectl uncordon {' '.join(sorted(cordoned)[:_NAMED])}, once what it was for is done"
        yield StatusEntry(WARNING, "nodes", names_in_words(cordoned), "takes no new pods: kubectl cordon", cure)
    if fine or not groups:
        yield StatusEntry(OK, "nodes", "", f"{fine} with a device plugin")


def _gpus(cluster: Cluster) -> Iterator[StatusEntry]:
    usable = every = 0
    for node in cluster.nodes:
        for view in gpus_of(node, with_pods=False):
            every, usable = every + 1, usable + view.gpu.usable
            if view.gpu.usable:
                continue
            where = f"{node.name} GPU {view.gpu.index}"
            there = [f"{share.namespace}/{share.name}" for share in shares(node) if view.gpu.index in (share.by_gpu or ())]
            on_it = f"; pods: {some(there)}" if there else "; no pods"
            if view.gpu.health != HEALTHY:
                cure = f"follow that; kubectl gpushare drain {node.name} {view.gpu.index} moves its pods" if there else "follow that"
                yield StatusEntry(ERROR, "gpus", where, f"bad: {view.gpu.health}{on_it}", cure)
            else:
                yield StatusEntry(WARNING, "gpus", where, f"cordoned{on_it}", f"kubectl gpushare uncordon {node.name} {view.gpu.index}")
        for uuid, had in gone_gpus(node).items():
            names = sorted(had)
            gone = f"GPU {as_text(uuid)} is not in this node any more; pods: {some(names)}"
            namespace, name = names[0].split("/", 1)
            pod = next(pod for pod in node.pods if (pod.namespace, pod.name) == (namespace, name))
            yield StatusEntry(ERROR, "gpus", node.name, gone, f"kubectl delete pod -n {namespace} {name}: {restart_of(cluster, pod.uid)}")
    yield StatusEntry(OK, "gpus", "", f"{usable} of {every} take new pods")


def hanging(cluster: Cluster) -> dict[tuple[str, str], list[tuple[AllocatedPod, Stall]]]:
    """(node, kubelet's state) → its pods with GPUs that have been in it for some minutes, the longest first. Of STARTING they hang only
    if kubelet has a Warning about one."""
    found: dict[tuple[str, str], list[tuple[AllocatedPod, Stall]]] = {}
    now = cluster.now()
    for node in cluster.nodes:
        for pod in node.pods:
            stall = cluster.pods.get(pod.uid, UNKNOWN_POD).stall
            if stall is not None and stall.hangs(now):
                found.setdefault((node.name, stall.state), []).append((pod, stall))
    for stalled in found.values():
        stalled.sort(key=lambda pair: (pair[1].since, pair[0].namespace, pair[0].name))
    return dict(sorted(found.items(), key=lambda group: -len(group[1])))


def _hanging(cluster: Cluster, evidence: StatusEvidence) -> Iterator[StatusEntry]:
    """Entries of pods that hang, those of one node in the same state together: the cause is mostly one."""
    told = now_hanging = 0
    for (node, state), pods in hanging(cluster).items():
        warned = next((pod for pod, stall in pods if _shows(evidence.warnings.get(pod.uid), stall, cluster.now())), None)
        if state == STARTING and warned is None:
            continue
        now_hanging += len(pods)
        told += 1
        if told > _MOST_CAUSES:
            continue
        first, stall = next(((pod, stall) for pod, stall in pods if pod is warned), pods[0])
        event = evidence.warnings.get(first.uid)
        words = f"{event.reason}: {event.message}" if event else "; ".join(filter(None, (stall.words, stall.ended)))
        said = f"; of {first.namespace}/{first.name}: {words[:MOST_EVIDENCE]}" if words else ""
        what = f"{_pods(len(pods))} with GPUs {'does' if len(pods) == 1 else 'do'} not run, {state}"
        names = some([f"{pod.namespace}/{pod.name}" for pod, _ in pods])
        look = "kubectl logs -p" if state == CRASHES else "kubectl describe pod"
        look += f" -n {first.namespace} {first.name}"
        yield StatusEntry(WARNING, "pods", node, f"{what}: {names}{said}", look)
    if evidence.problem:
        yield StatusEntry(WARNING, "pods", "", f"Events are not known: {evidence.problem}", "choose a user who may list Events")
    elif not now_hanging:
        yield StatusEntry(OK, "pods", "", f"none with GPUs hangs on its node for {HANGS_SECONDS:.0f} s")


def _shows(event: PodEvent | None, stall: Stall, now: float) -> bool:
    """Whether kubelet still fails: a Warning of the first moments may be over, and kubelet repeats one at least every 5 minutes."""
    return event is not None and now - event.time < RECENT_SECONDS and event.time - stall.since > _FIRST_SECONDS


def _unmanaged(cluster: Cluster, evidence: StatusEvidence) -> Iterator[StatusEntry]:
    """Pods that got GPUs on a node without the extender."""
    if not evidence.unmanaged:
        return
    ours = IN_CLUSTER if any(lease.scheduler == IN_CLUSTER for lease in evidence.leases) else "default-scheduler"
    names = sorted(f"{event.namespace}/{event.name}" for event in evidence.unmanaged)
    schedulers = sorted({cluster.pods[event.uid].scheduler for event in evidence.unmanaged if event.uid in cluster.pods} - {""})
    by = f" (schedulerName {some(schedulers)})" if schedulers else ""
    found = (
        f"{_pods(len(names))}{by} came to a node without the extender in the last hour, Event {protocol.EVENT_UNMANAGED}: {some(names)}; "
        "the node gave them GPUs by what was free, without policies and rules"
    )
    others = [name for name in schedulers if name != ours]
    cure = f"write schedulerName: {ours} into their manifests" if others else ""
    if not others or ours in schedulers:
        look = "check whether they have spec.nodeName, whether a second kube-scheduler runs, "
        look += "and whether a webhook or policy changes pods/binding"
        cure = f"{cure}; of those with {ours}, {look}" if cure else look
    yield StatusEntry(WARNING, "unmanaged", "", found, cure)


def _second_scheduler(cluster: Cluster, evidence: StatusEvidence) -> Iterator[StatusEntry]:
    """As far as the API shows one: pods that run kube-scheduler, and Bindings that our extender did not make."""
    # Where ours runs as pods, or that is not known, the cluster's own needs no configuration.
    used = {info.scheduler for info in cluster.pods.values()} | {wait.scheduler for wait in cluster.waiting.values()}
    in_cluster = IN_CLUSTER in used or any(lease.scheduler == IN_CLUSTER or lease.problem for lease in evidence.leases)
    plain = [] if in_cluster else [pod.name for pod in evidence.schedulers if pod.plain]
    if plain and any(node.inventory for node in cluster.nodes):
        found = f"kube-scheduler without --config, which calls no extender: {some(sorted(plain))}; pods that it places get GPUs by chance"
        cure = "remove it if it is a second one; on a control plane run site, which gives it the configuration"
        yield StatusEntry(WARNING, "scheduler", "kube-system", found, cure)
    if evidence.seconds:
        event = max(evidence.seconds, key=lambda event: event.time)
        where = f"{event.namespace}/{event.name}"
        others = f"; in kube-system: {some(sorted(pod.name for pod in evidence.schedulers))}" if evidence.schedulers else ""
        words = event.message[:MOST_EVIDENCE]
        found = f"{_pods(len(evidence.seconds))} got GPUs by another client than the extender in the last hour: {words}"
        yield StatusEntry(WARNING, "scheduler", where, found, f"run one kube-scheduler, with the same Lease on all control planes{others}")


def _waiting(cluster: Cluster) -> Iterator[StatusEntry]:
    """Pods that can never run, those with the same reason together, and pods that wait although GPUs have room."""
    waiting, largest, now, found = selected_waiting(cluster, Selection()), cluster.largest(), cluster.now(), 0
    hopeless: dict[str, list[str]] = {}
    others: list[tuple[PendingPod, Waiting]] = []
    for wait in waiting:
        if words := why_never(wait.pod, largest):
            hopeless.setdefault(words, []).append(str(wait.pod))
        elif isinstance(wait.pod, PendingPod):
            others.append((wait.pod, wait))
    for words, names in list(hopeless.items())[:MOST_WAITING]:
        yield StatusEntry(WARNING, "waiting", some(names), f"can never run: {words}")
    for pod, wait in others[:MOST_WAITING]:
        created = cluster.pods.get(pod.uid, UNKNOWN_POD).created
        if GATED.search(wait.reported) or (created and now - created < WAITED_SECONDS):
            continue
        verdicts = explain(cluster, pod, usual(cluster) if cluster.claims.in_use else Placement())
        if any(verdict.fits for verdict in verdicts):
            found += 1
            yield StatusEntry(
                WARNING,
                "waiting",
                str(pod),
                headline(pod, verdicts, wait.reported, largest, wait.scheduler),
                f"kubectl describe pod -n {pod.namespace} {pod.name}",
            )
    verb = "waits" if len(waiting) == 1 else "wait"
    more = f" (the first {MOST_WAITING} were tried)" if len(others) > MOST_WAITING else ""
    yield StatusEntry(OK, "waiting", "", f"{_pods(len(waiting))} {verb}, {found or 'none'} although GPUs have room{more}")


def _drift(cluster: Cluster) -> Iterator[StatusEntry]:
    for node in cluster.nodes:
        if left := orphans(node):
            yield StatusEntry(WARNING, "drift", node.name, *_orphaned(left))
        if lost := lost_records(node):
            yield StatusEntry(WARNING, "drift", node.name, *_without_record(list(lost.values()), cluster))
        units = sum(entry.units for entry in node.record.held.entries if entry.why == "unmanaged")
        if units:
            words = f"{units} units belong to pods that no scheduler placed"
            yield StatusEntry(WARNING, "drift", node.name, words, "kubectl gpushare pods -A, docs/operate/failures.md")
        yield from _problems(node)


def _orphaned(left: Sequence[HeldEntry]) -> tuple[str, str]:
    """(found, cure). left: of pods that the API server does not have."""
    pods = {entry.uid: entry.pod for entry in left}
    found = f"{sum(entry.units for entry in left)} units are in use by processes of pods that the API server does not have"
    uid = next((uid for uid in sorted(pods) if _UID.fullmatch(uid)), "")
    # A cgroup has the UID with dashes or with underscores: a point of the pattern stands for both.
    which = f": grep -l {uid.replace('-', '.')} /proc/[0-9]*/cgroup lists those of {pods[uid] or uid}" if uid else ""
    names = sorted(as_text(pod or uid, 253) for uid, pod in pods.items())
    return f"{found}: {some(names)}", f"on it, end the processes of these pods, and no others{which}"


def _without_record(pods: Sequence[AllocatedPod], cluster: Cluster) -> tuple[str, str]:
    """(found, cure) of pods that run."""
    count, names = len(pods), sorted(f"{pod.namespace}/{pod.name}" for pod in pods)
    what = "a running pod" if count == 1 else f"{count} running pods"
    bare = sum(not cluster.pods.get(pod.uid, UNKNOWN_POD).owner for pod in pods)
    alone = (
        ""
        if not bare
        else "; it has no owner that would start it again"
        if count == 1
        else f"; {bare} of {count} have no owner that would start them again"
    )
    keep = "it keeps its GPU" if count == 1 else "they keep their GPUs"
    return (
        f"kubelet has no record of {what} (its checkpoint was lost): {some(names)}; {keep}",
        f"delete {'it' if count == 1 else 'each pod'} when convenient, which ends its work{alone}",
    )


def _problems(node: NodeLedger) -> Iterator[StatusEntry]:
    problems = node.problems()
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield StatusEntry(WARNING, "drift", node.name, f"{problems[0]}{more}", f"kubectl gpushare -o json {node.name}")


def _pods(count: int) -> str:
    return f"{count} {'pod' if count == 1 else 'pods'}"


def table_of(findings: Iterable[StatusEntry]) -> Table:
    """One row per finding."""
    table = Table((Column("STATE"), Column("CHECK"), Column("WHERE"), Column("FOUND", flexible=True)))
    for finding in findings:
        cure = f"; do: {finding.cure}" if finding.cure else ""
        cells = [
            Cell(finding.severity, _STYLES[finding.severity]),
            Cell(finding.check),
            Cell(as_text(finding.where, 253)),
            Cell(as_text(f"{finding.found}{cure}", 4096)),
        ]
        table.rows.append(TableRow(f"{finding.check}/{as_text(finding.where, 253)}", cells))
    return table


def document(findings: Sequence[StatusEntry]) -> dict[str, Any]:
    """As JSON."""
    made = [
        {
            "severity": finding.severity,
            "check": finding.check,
            "where": as_text(finding.where, 253),
            "found": as_text(finding.found, 4096),
            "cure": finding.cure,
        }
        for finding in findings
    ]
    return {"v": VERSION, "ok": all(finding.severity != ERROR for finding in findings), "findings": made}
