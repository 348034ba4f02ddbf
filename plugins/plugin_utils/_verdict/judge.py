# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that verify has seen, judged together: hosts, cluster, and probe pods.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml

from ...module_utils._cluster.dra import drivers_on
from ...module_utils._cluster.names import LABEL_NODE, MEMORY, NAMESPACE
from ...module_utils._facts.nvidia_smi import SmiReport
from ...module_utils._formats.finding import ERROR, NOTE, WARNING, Finding, few
from ...module_utils._scheduler import proof, scheduler_config
from ...module_utils._scheduler.manifest import SchedulerError
from .. import _yaml
from .container_gpus import free_units, judge_containers, judge_strangers
from .control_plane import files_of, judge_controllers, judge_leader, judge_plane, lock_of
from .daemons import SITE, ReleaseHashes, judge_dashboard, judge_doctor, judge_files, judge_runtime
from .doctor import ExtenderReport, read
from .findings import PASSABLE, Verdict, VerifyFindings, of_verify, verdict
from .gpu_node import judge_node, judge_record
from .hints import hint

_PROBE_EACH = "a probe pod on every GPU node"
_NAMED = 3
_SHOWN = 80
_CHANGED_BY = (
    ". Admission has changed it, which may be why: webhooks, policies, a LimitRange of the namespace, or --enable-admission-plugins of "
    "kube-apiserver (AlwaysPullImages, PodNodeSelector) gave it "
)
#: The words of a finding with which a module failed.
_SAID = re.compile(r"(.*?):? found (.+?); expected (.+?); (.+)", re.DOTALL)
#: The names of writes (_evidence/admission.py, WRITES) to the severity, and to what fails while they are stopped.
_STOPPED = {
    "Bindings": (ERROR, "no pod can be bound to a node in the namespaces that it is for"),
    "Leases": (ERROR, "no scheduler can lead, and no node stays Ready"),
    "states of nodes": (ERROR, "kubelet cannot say what its node has, nor that it is Ready"),
    "nodes": (ERROR, "no device plugin can publish its GPUs"),
    "states of pods": (ERROR, "kubelet cannot say that a pod runs"),
    "tokens": (ERROR, "no daemon can renew its token, and no pod with a token can start"),
    "pods": (WARNING, "no pod can be created in the namespaces that it is for"),
}
#: Those of them without which no probe pod is seen to run.
_NEEDED = {"Bindings", "Leases", "states of pods", "tokens"}
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class Evidence:
    """The evidence. hosts: inventory name to what gpushare_verify_host saw, or why it saw nothing. cluster: likewise.

    probed: what the hosts answered again, during the probe. probes: node to its probe pod, or why there are none. namespace: the one that
    they were meant for; rejected: what the API server said where it did not take one there. moved: node to its pod that others gave to
    another scheduler there, or hold back by a gate. unproven: node to why no probe pod was placed there, as `reason` (full, no_image,
    unknown or obstructed) and `found`. required: whether the user demands probe pods (gpushare_verify_probe: always).
    """

    hosts: Mapping[str, Mapping[str, Any] | str]
    cluster: Mapping[str, Any] | str
    artifact: ReleaseHashes
    probed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    probes: Mapping[str, Mapping[str, Any] | None] | str | None = None
    rejected: str = ""
    moved: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    namespace: str = "default"
    unproven: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    required: bool = False

    @cached_property
    def seen(self) -> dict[str, Mapping[str, Any]]:
        """The hosts that were checked."""
        return {host: seen for host, seen in self.hosts.items() if not isinstance(seen, str)}

    @cached_property
    def gpu(self) -> dict[str, Mapping[str, Any]]:
        """The hosts with GPUs."""
        return {host: seen for host, seen in self.seen.items() if seen["gpu"] is not None}

    @cached_property
    def pods(self) -> dict[str, list[Mapping[str, Any]]]:
        """Node to the pods that the cluster has on it, probe pods too."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for pod in () if isinstance(self.cluster, str) else self.cluster["pods"]:
            found.setdefault(pod["node"], []).append(pod)
        return found


def judge(evidence: Evidence) -> Verdict:
    findings: list[Finding] = []
    containers = 0
    cluster = evidence.cluster if not isinstance(evidence.cluster, str) else None
    findings += _not_checked(evidence)
    nodes = {node["metadata"]["name"]: node for node in cluster["nodes"]} if cluster else {}
    for host, seen in evidence.seen.items():
        found = VerifyFindings(host)
        judge_runtime(found, seen["runtime"], evidence.artifact, plane=seen["plane"] is not None)
        doctor = read(seen["doctor"], host)
        judge_doctor(found, doctor, seen["runtime"]["environment"])
        judge_files(found, seen["files"])
        judge_dashboard(found, doctor, wanted=seen["places"].get("dashboard", False))
        if seen["gpu"] is not None:
            drivers = drivers_on(cluster["dra"], seen["node_name"]) if cluster else []
            judge_node(found, seen, doctor, nodes.get(seen["node_name"], {}) if cluster else None, drivers)
            pods = [pod for pod in evidence.pods.get(seen["node_name"], ()) if not pod["probe"]]
            judge_record(found, seen["gpu"], pods)
            judge_strangers(found, seen["gpu"]["strangers"])
            containers += _containers(found, seen, seen["gpu"]["containers"], seen["now"], pods)
        if seen["plane"] is not None:
            judge_plane(found, seen, doctor, cluster["schedulers"].get(seen["node_name"]) if cluster else None, cluster is not None)
        findings += found.list
    findings += _twice(evidence)
    if cluster is not None:
        findings += judge_leader(_planes(evidence), cluster["leases"]).list
        findings += judge_controllers(_planes(evidence), cluster["leases"]).list
        findings += _labelled(evidence, cluster["labelled"])
        findings += _objects(cluster["objects"])
        findings += _admission(cluster["admission"])
        findings += _by_others(cluster["pods"], scheduler_names(evidence))
        findings += _second_scheduler(evidence, cluster)
    proven, of_probes = _probes(evidence)
    counts = {"hosts": len(evidence.seen), "GPU nodes": len(evidence.gpu), "containers": containers, "probe pods": proven}
    return verdict([*findings, *of_probes], counts)


def placeable(evidence: Evidence, image: str) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """(node to the image of its probe pod, node to why it cannot have one). image: the one to use, "" for one of the node's own."""
    if isinstance(evidence.cluster, str):
        return {}, {}
    nodes = {node["metadata"]["name"]: node for node in evidence.cluster["nodes"]}
    images: dict[str, str] = {}
    unproven: dict[str, dict[str, str]] = {}
    for seen in evidence.gpu.values():
        name = seen["node_name"]
        known = seen["gpu"]["images"]
        free = free_units(nodes[name], evidence.pods.get(name, ())) if name in nodes else None
        if not image and not known:
            unproven[name] = _unproven("no_image", f"no image on {name} that needs no command; name one in gpushare_verify_image")
        elif free is None:
            unproven[name] = _unproven("unknown", f"the GPUs of {name} are not known")
        elif free < 1:
            unproven[name] = _unproven("full", f"no free unit on {name}")
        else:
            images[name] = image or known[0]
    return images, unproven


def _unproven(reason: str, found: str) -> dict[str, str]:
    return {"reason": reason, "found": found}


def obstructed(evidence: Evidence, found: Verdict) -> dict[str, dict[str, str]]:
    """Node to why a probe pod there would only say again what is found: on its host, or on what places all pods."""
    errors: dict[str, list[str]] = {}
    for cause in found.causes:
        if cause.check not in PASSABLE and (cause.check != "webhook_silent" or _holds_pods_up(evidence)):
            errors.setdefault(cause.host, []).append(cause.check)
    # The scheduler of a control plane without a fault may lead.
    planes = list(_planes(evidence))
    everywhere = [host for host in ("", *planes) if host in errors] if "" in errors or all(host in errors for host in planes) else []
    why = {}
    for host, seen in evidence.gpu.items():
        by = host if host in errors else next(iter(everywhere), None)
        if by is not None:
            why[seen["node_name"]] = _unproven("obstructed", f"first cure {', '.join(errors[by])} of {by or 'the cluster'}")
    return why


def _holds_pods_up(evidence: Evidence) -> bool:
    """Whether a webhook that does not answer is asked about what a probe pod needs."""
    admission = {} if isinstance(evidence.cluster, str) else evidence.cluster["admission"]
    return any(_NEEDED & {*webhook["writes"]} for what in ("dead", "failing") for webhook in admission.get(what, ()))


def scheduler_name(evidence: Evidence) -> str:
    """The name by which a pod asks for the scheduler that was configured; the default one's where none was checked."""
    return next(iter(scheduler_names(evidence)), "default-scheduler")


def scheduler_names(evidence: Evidence) -> list[str]:
    """All names by which pods ask for the schedulers that were configured; none where no control plane was checked."""
    names: list[str] = []
    for seen in _planes(evidence).values():
        try:
            config = _yaml.load(files_of(seen)[1])
        except (yaml.YAMLError, SchedulerError):
            continue
        if isinstance(config, dict) and config.get("kind") == scheduler_config.KIND:
            # kubectl makes all probe pods in one call, and one bad name would reject all.
            names += [name for name in scheduler_config.scheduler_names(config) if _NAME.fullmatch(name)]
    return names


def _planes(evidence: Evidence) -> dict[str, Mapping[str, Any]]:
    """Host to what was seen, of the control planes that were checked."""
    return {host: seen for host, seen in evidence.seen.items() if seen["plane"] is not None}


def _not_checked(evidence: Evidence) -> list[Finding]:
    cure, expected = "bring it back, or leave it out with --limit; then run verify again", "an answer of every host of the run"
    gone = {host: why for host, why in evidence.hosts.items() if isinstance(why, str)}
    found = []
    for host, why in gone.items():
        # A host that is not believed: that finding has a cure of its own.
        said = _SAID.fullmatch(why)
        words = (f"nothing, because {said[1]}: {said[2]}", said[3], said[4]) if said else (f"nothing, because {why}", expected, cure)
        found.append(of_verify("not_checked", *words, host))
    if isinstance(evidence.cluster, str):
        cure, seen = "run it again once kubectl works on a control plane", f"nothing in the API, because {evidence.cluster}"
        planes = {host: seen["plane"]["scheduler"]["server_says"] for host, seen in _planes(evidence).items()}
        if says := "; ".join(f"{host}: {words}" for host, words in planes.items() if words):
            seen, cure = (
                f"{seen}; kube-apiserver's last error, on {says}",
                f"correct what that error names, where it is the cause; then {cure}",
            )
        found.append(of_verify("not_checked", seen, "an answer of the cluster", cure))
    return found


def _containers(
    found: VerifyFindings, seen: Mapping[str, Any], has: Mapping[str, list[str]], now: float, pods: list[Mapping[str, Any]]
) -> int:
    gpus = {gpu.index: gpu.nodes for gpu in SmiReport.from_dict(seen["gpu"]["nvidia_smi"]).shared}
    # A driver that does not answer is said already, and without it no index has a device node.
    return judge_containers(found, pods, has, gpus, now) if gpus else 0


def _twice(evidence: Evidence) -> list[Finding]:
    """GPUs of several hosts that have one UUID."""
    hosts: dict[str, list[str]] = {}
    for host, seen in evidence.gpu.items():
        for gpu in seen["gpu"]["nvidia_smi"]["gpus"]:
            hosts.setdefault(gpu["uuid"], []).append(host)
    cure = "see nvidia-smi -L on each: clones of one virtual machine, or one host under two names? metrics and requests go by UUID"
    twice = {uuid: " and ".join(sorted(several)) for uuid, several in hosts.items() if len(several) > 1}
    return [of_verify("uuid_twice", f"{uuid} on {names}", "each UUID on one host", cure) for uuid, names in twice.items()]


def _by_others(pods: Iterable[Mapping[str, Any]], ours: Sequence[str]) -> list[Finding]:
    """Pods with a request whose scheduler does not call the extender: it knows nothing of single GPUs, or does not run."""
    found = VerifyFindings("")
    others: dict[str, list[str]] = {}
    untried: dict[str, list[str]] = {}
    for pod in pods:
        asks = any(container["units"] or container["gpus"] for container in pod["containers"])
        if asks and ours and pod["scheduler"] not in ours and not (pod["deleted"] or pod["probe"]):
            waits = not pod["node"] and pod["scheduling"] == proof.NOT_TRIED
            for group in (others, untried) if waits else (others,):
                group.setdefault(pod["scheduler"][:_SHOWN], []).append(f"{pod['namespace']}/{pod['name']}")
    for scheduler, names in sorted(others.items())[:_NAMED]:
        seen = f"pods of the scheduler {scheduler!r}: {few(sorted(names), _NAMED)}"
        rewrite = f"write schedulerName: {ours[0]} into their manifests and create the pods again"
        cure = f"{rewrite}; or give {scheduler!r} the extender's entry of kube-scheduler's configuration"
        if scheduler in untried:
            seen += f"; nothing has tried to place {few(sorted(untried[scheduler]), _NAMED)}"
            cure = (
                f"if no scheduler of that name runs, add a profile with schedulerName: {scheduler} to kube-scheduler's configuration (it "
                f"has {' and '.join(ours)[:_SHOWN]}), and {SITE}, which restarts the scheduler with it; or {rewrite}"
            )
        found.say("other_scheduler", seen, f"{' or '.join(ours)}, which calls the extender for each pod with a GPU", cure)
    return found.list


def _second_scheduler(evidence: Evidence, cluster: Mapping[str, Any]) -> list[Finding]:
    """Whether a scheduler that is none of the control planes' places pods with GPUs under a name of theirs."""
    ours, pods = scheduler_names(evidence), {pod["uid"]: pod for pod in cluster["pods"]}
    hosts = [lease["holder"].partition("_")[0] for lease in cluster["leases"].values()]
    hosts += [seen["node_name"] for seen in _planes(evidence).values()]
    known = {_short(f"{name}-{host}") for name in ours for host in hosts}
    strangers: dict[str, list[str]] = {}
    for passed in cluster["passed_by"]:
        pod = pods.get(passed["uid"])
        if pod is not None and not pod["probe"] and pod["scheduler"] in ours and passed["by"] and _short(passed["by"]) not in known:
            strangers.setdefault(passed["by"], []).append(f"{pod['namespace']}/{pod['name']}")
    found = VerifyFindings("")
    for stranger, names in sorted(strangers.items()):
        cure = (
            "its name ends with that of its pod or host (kubectl get pods -A | grep kube-scheduler): stop it, or give it another "
            "schedulerName; the pods keep their GPUs, which they got past policies and rules"
        )
        seen = f"a second scheduler, {stranger[:_SHOWN]!r} in the Events of {few(sorted(names), _NAMED)}, that calls no extender"
        found.say("second_scheduler", seen, f"only schedulers of the control planes for {' and '.join(ours)[:_SHOWN]}", cure)
    return found.list


def _short(name: str) -> str:
    """As a host may call itself with its domain, and its node without."""
    return name.lower().partition(".")[0]


def _objects(objects: Mapping[str, Any]) -> list[Finding]:
    found = VerifyFindings("")
    for title in sorted({*objects["missing"], *objects["differs"]}):
        gone = title in objects["missing"]
        policy = title.startswith("ValidatingAdmissionPolicy")
        code, what = ("policy_differs", "policy") if policy else ("rbac_differs", "rights")
        seen = f"{title} gone" if gone else f"{title} changed by others"
        found.say(code, seen, f"the {what} that the roles apply", SITE)
    if objects["unserved"]:
        seen, cure = ", ".join(objects["unserved"]), "upgrade to Kubernetes 1.30 or newer to have them"
        found.say("policies_not_served", f"an API server without {seen}", "admission policies", cure)
    return found.list


def _labelled(evidence: Evidence, labelled: Iterable[str]) -> list[Finding]:
    """labelled: nodes with the label of a GPU node on which no device plugin has ever published GPUs."""
    ours = {seen["node_name"] for seen in evidence.gpu.values()}
    found = VerifyFindings("")
    others = sorted({*labelled} - ours)
    if others:
        names = " ".join(others[:_NAMED])
        cure = (
            f"if they have no GPUs: kubectl label node {names} {LABEL_NODE}-; or, if they have: put their hosts into the group "
            f"gpushare_gpu_nodes, then {SITE}"
        )
        seen = f"the label {LABEL_NODE}=true on {few(others, _NAMED)}, where no device plugin has ever published GPUs"
        found.say("label_without_plugin", seen, "the label on nodes with a device plugin only", cure)
    return found.list


def _admission(admission: Mapping[str, Any]) -> list[Finding]:
    """Findings about the admission of pods and Bindings."""
    found = VerifyFindings("")
    silent = [
        (webhook, f"with no ready endpoint of {webhook['service']}", f"bring the pods of the Service {webhook['service']} back")
        for webhook in admission["dead"]
    ]
    silent += [(webhook, f"and fails: {webhook['says']}", "correct what that message names") for webhook in admission["failing"]]
    for webhook, why, first in silent:
        severity, what = next(
            (_STOPPED[write] for write in webhook["writes"] if write in _STOPPED), (WARNING, "what it is asked about waits")
        )
        cure = f"{first}; or, if its program is gone for good, remove its configuration: kubectl delete {webhook['object']}"
        seen = f"webhook {webhook['webhook']}, which fails closed, {why}; {what}"
        found.say("webhook_silent", seen, "an answer, or none that is needed", cure, severity)
    if admission["changing"]:
        seen = f"Bindings that {few(admission['changing'], _NAMED)} may change"
        cure = "see that it keeps annotations of Bindings: they tell the device plugin which GPU a pod has (kubectl get TYPE NAME -o yaml)"
        found.say("bindings_changed", seen, "Bindings as the extender writes them", cure)
    if admission["unguarded"]:
        cure = (
            "check --disable-admission-plugins and --runtime-config of kube-apiserver, which must leave ValidatingAdmissionPolicy on, "
            f"and at the binding (kubectl get validatingadmissionpolicybinding gpushare-annotations -o yaml); then {SITE}"
        )
        found.say("policies_not_enforced", admission["unguarded"], "a denial by the policy gpushare-annotations", cure)
    return found.list


def _probes(evidence: Evidence) -> tuple[int, list[Finding]]:
    """(how many probe pods verified their node, what is wrong with the others)."""
    findings: list[Finding] = []
    host_of = {seen["node_name"]: host for host, seen in evidence.gpu.items()}
    for node, why in evidence.unproven.items():
        cure = "run verify again when there is room, if you want it" if why["reason"] == "full" else "then run verify again"
        # A node whose GPUs are all in use is as it should be.
        severity = ERROR if evidence.required and why["reason"] == "no_image" else NOTE
        findings.append(of_verify("not_proven", f"not proven: {why['found']}", _PROBE_EACH, cure, host_of.get(node, ""), severity))
    if evidence.probes is None:
        return 0, findings
    if isinstance(evidence.probes, str):
        cure = f"run verify again; kubectl must be able to create pods in {evidence.namespace}, or in {NAMESPACE}"
        return 0, [*findings, of_verify("probe_failed", f"no probe pods, because {evidence.probes}", _PROBE_EACH, cure)]
    if evidence.rejected:
        seen = f"the API server, which does not take the probe pods in the namespace {evidence.namespace}: {evidence.rejected}"
        cure = (
            f"see whether users' pods with GPUs shall run in {evidence.namespace}: correct what the message names, or name a namespace of "
            f"theirs in gpushare_verify_namespace; verify judged those pods in {NAMESPACE} instead"
        )
        findings.append(of_verify("probe_rejected", seen, "probe pods where users' pods run", cure))
    proven, ours = 0, scheduler_name(evidence)
    moved = {node for node, pod in evidence.probes.items() if pod is not None and pod["scheduler"] != ours}
    for node, pod in evidence.probes.items():
        of_node = VerifyFindings(host_of.get(node, ""))
        told = pod if node in moved else evidence.moved.get(node)
        if told is not None and told["scheduler"] == ours:
            _not_placed(of_node, evidence, node, told)
        elif told is not None:
            _moved(of_node, told, ours)
        if node not in moved:
            proven += _probe(of_node, evidence, host_of.get(node, ""), node, pod)
        findings += of_node.list
    # Another scheduler does not ask the extender, and ours only where its own filters leave the node.
    filtered = {
        node for node, pod in evidence.probes.items() if pod is not None and not pod["node"] and pod["scheduling"] != proof.NOT_TRIED
    }
    return proven, findings + (_calls(evidence) if evidence.probes.keys() - moved - filtered else [])


def _probe(found: VerifyFindings, evidence: Evidence, host: str, node: str, pod: Mapping[str, Any] | None) -> int:
    if pod is None:
        found.say("probe_failed", f"the probe pod of {node} gone", "it to stay until it was checked", "run verify again; who deletes it?")
        return 0
    name = f"{pod['namespace']}/{pod['name']}"
    if not pod["node"]:
        _not_placed(found, evidence, node, pod)
        return 0
    if not pod["running"]:
        why = "; ".join(filter(None, [pod["message"], *pod["waiting"]])) or f"its phase is {pod['phase']}"
        # kubelet's log says the same.
        has_event = any(words.startswith(proof.LAST_EVENT) for words in pod["waiting"])
        first = "correct what its last Event names" if has_event else f"journalctl -u kubelet on {node} says why"
        changed, by = _by_admission(evidence, pod)
        cure = f"{hint(why) or by or first}; then verify with -e gpushare_verify_probe=always"
        found.say("probe_not_running", f"probe pod {name} placed and not running: {why}{changed}", "it to run", cure)
        return 0
    if not any(container["units"] for container in pod["containers"]):
        cure = f"see which webhook or policy changes pods in {pod['namespace']}; it changes those of users there, too"
        found.say("probe_failed", f"probe pod {name}, from which its request was taken", f"one unit of {MEMORY} in its limits", cure)
        return 0
    second = evidence.probed.get(host)
    if second is None or second.get("gpu") is None:
        found.say("not_checked", f"nothing of probe pod {name}", "a list of its device nodes", "run verify again")
        return 0
    before = len(found.list)
    # Everything that runs was seen: the hosts answered again after it was running.
    checked = _containers(found, evidence.seen[host], second["gpu"]["containers"], float("inf"), [pod])
    return int(checked == 1 and len(found.list) == before)


def _not_placed(found: VerifyFindings, evidence: Evidence, node: str, pod: Mapping[str, Any]) -> None:
    # Of a scheduler that has tried it, the words about this pod say more.
    planes = _planes(evidence) if pod["scheduling"] == proof.NOT_TRIED else {}
    says = [f"{at}: {words}" for at, plane in planes.items() for words in [plane["plane"]["scheduler"]["says"]] if words]
    last = f"; the scheduler's last error, on {'; '.join(says)}" if says else ""
    changed, by = _by_admission(evidence, pod)
    leads, way = _by_another(evidence) if planes else ("", "")
    cure = by or way or hint(last) or "do what the message states; journalctl -u gpushare-extender has the extender's part"
    seen = f"probe pod {pod['namespace']}/{pod['name']} not placed: {pod['scheduling']}{last}{leads}{changed}"
    found.say("probe_not_scheduled", seen, f"it on {node}", cure)


def _by_another(evidence: Evidence) -> tuple[str, str]:
    """(words for the end of what was found, a cure) of a probe pod that no scheduler has tried; "" where ours leads, as far as is known."""
    planes = _planes(evidence)
    hosts = {_short(name) for host, seen in planes.items() for name in (host, seen["node_name"])}
    leases = {} if isinstance(evidence.cluster, str) else evidence.cluster["leases"]
    for name in dict.fromkeys(lock for seen in planes.values() if (lock := lock_of(seen))):
        holder = (leases.get(name) or {"holder": ""})["holder"].partition("_")[0]
        if holder and _short(holder) not in hosts:
            cure = (
                f"if {holder!r} is not a control plane, it is another scheduler with the same lock (kubectl get pods -A -o wide names it): "
                "give it a Lease of its own (leaderElection.resourceName of its configuration, or --leader-elect-resource-name), or stop it"
            )
            return f"; the holder of the Lease {NAMESPACE}/{name} is {holder!r}, none of {', '.join(planes)}", cure
    return "", ""


def _by_admission(evidence: Evidence, pod: Mapping[str, Any]) -> tuple[str, str]:
    """(words for the end of what was found, a cure) of a probe pod; "" where it is as it was created."""
    changes = "; ".join(pod.get("changed", ()))
    if not changes:
        return "", ""
    shaping = () if isinstance(evidence.cluster, str) else evidence.cluster["admission"]["shaping"]
    who = f"{few(shaping, _NAMED)} may; " if shaping else ""
    cure = (
        f"where that change keeps it from the node: keep who made it off pods with GPUs, or remove it ({who}a LimitRange: kubectl get "
        f"limitrange -n {pod['namespace']}); else do what the message states"
    )
    return f"{_CHANGED_BY}{changes}", cure


def _moved(found: VerifyFindings, pod: Mapping[str, Any], ours: str) -> None:
    """A probe pod that the API server has given to another scheduler than ours, for which it was created."""
    other = pod["scheduler"][:_SHOWN]
    name = f"{pod['namespace']}/{pod['name']}"
    seen = f"probe pod {name} with the schedulerName {other!r}, which a mutating webhook or policy of others has written"
    cure = (
        "kubectl get mutatingwebhookconfigurations,mutatingadmissionpolicies shows who may: keep that one off pods with GPUs, or "
        "remove it if its scheduler has gone"
    )
    found.say("probe_not_scheduled", seen, f"{ours!r}, as it was created", cure)


def _calls(evidence: Evidence) -> list[Finding]:
    """Whether an extender was asked for the probe pods."""
    planes = {host: seen for host, seen in _planes(evidence).items() if host in evidence.probed}
    reasons = []
    for host, seen in planes.items():
        before, after = (_health(evidence_of, host) for evidence_of in (seen, evidence.probed[host]))
        reason = proof.not_called(None if after.why else {"filter_calls": after.filter_calls}, after.why, before.filter_calls)
        rejected = after.unauthorized_calls - before.unauthorized_calls
        if reason and rejected > 0:
            reason += f", and has rejected {rejected} calls that came without the scheduler's client certificate"
        reasons.append(reason)
    if evidence.probes and reasons and all(reasons):
        cure = "see which scheduler places pods (kubectl get lease -n kube-system kube-scheduler) and whether its configuration names us"
        return [of_verify("probe_not_called", "; ".join(filter(None, reasons)), "an extender asked for each probe pod", cure)]
    return []


def _health(seen: Mapping[str, Any], host: str) -> ExtenderReport:
    """Of a control plane's extender."""
    doctor = read(seen["doctor"], host)
    return ExtenderReport(why=doctor.problem) if doctor.problem else doctor.health
