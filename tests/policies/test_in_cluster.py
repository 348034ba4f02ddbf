# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The verdicts where the daemons are pods: one account for all device plugins, and one for kube-scheduler with the extender beside it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from gpushare_runtime.core import protocol
from policies.engine import (
    ADMINISTRATOR,
    CONTROLLER,
    KUBELET,
    POD_PLUGIN,
    POD_SCHEDULER,
    SYSTEM,
    TENANT,
    UNBOUND,
    WRITER,
    Answer,
    Json,
    Request,
    Who,
    ask,
    policies_in_cluster,
)
from policies.requests import binding, changed, event, many, misused_events, node, pod, token_request

ALLOWED = ""
OWN_NODE = "only its own node and the pods that are bound to it"
STATUS_ONLY = "only its annotations, status.conditions and status.nominatedNodeName"
WRITE = "write spec.schedulerName: gpushare-scheduler"
IDX, ASSIGNED, ALLOCATION = protocol.ANNOTATION_INDEX, protocol.ANNOTATION_ASSIGNED, protocol.ANNOTATION_ALLOCATION
GPUS, REQUEUED = protocol.ANNOTATION_GPUS, protocol.ANNOTATION_REQUEUED
FULL = {IDX: "0", ASSIGNED: "false", ALLOCATION: "{}"}
HERE, ELSEWHERE, WAITING = pod({"team": "a", IDX: "0"}, "gpu1", "1"), pod({IDX: "0"}, "gpu2", "1"), pod({"team": "a"}, memory="1")
LARGE = pod(many(251), memory="1")
GPU1, GPU2 = node({GPUS: "{}"}), node(name="gpu2")
SAYS_WHY = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}]}
NOMINATES = {**SAYS_WHY, "nominatedNodeName": "gpu1"}
OURS = {"schedulerName": "gpushare-scheduler"}
READY, GOES = {"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
CROWD = [{"type": f"x/{number}", "status": "True"} for number in range(251)]
RUNS = changed(HERE, status={"phase": "Running", "conditions": [READY]})
VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "v", "annotations": {"team": "a"}},
    "spec": {"persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/data"}, "capacity": {"storage": "1Gi"}},
    "status": {"phase": "Available"},
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "c", "namespace": "default", "annotations": {"team": "a"}, "finalizers": ["kubernetes.io/pvc-protection"]},
    "spec": {"storageClassName": "local"},
    "status": {"phase": "Pending"},
}
DEVICES = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "d", "namespace": "default", "annotations": {}},
    "spec": {"devices": {"requests": [{"name": "r"}]}},
    "status": {},
}
CLAIMS = "persistentvolumeclaims"
ITS_OWN = "no pod to the node on which it runs itself"
CONDITIONS = "only the conditions PodScheduled and DisruptionTarget"
DELETES, ONE_LEASE = "may delete only pods that preemption could choose", "one Lease only, gpushare-system/gpushare-scheduler"
A_VOLUME, A_CLAIM = "may only give a PersistentVolume without a claim", "only the annotation volume.kubernetes.io/selected-node"
DEVICES_ONLY = "only the allocation of a ResourceClaim"
Case = tuple[str, Request, str]


def notes(where: Json, **annotations: str | None) -> Json:
    return changed(where, annotations=annotations)


def of_plugin() -> list[Case]:
    def status(kind: str, before: Json, after: Json, who: Who = POD_PLUGIN) -> Request:
        return Request(who, f"{kind}/status", after, before)

    of_gpu2 = Who(POD_PLUGIN.name, node="gpu2")
    mine = ("nodes", GPU1, notes(GPU1, **{GPUS: "{1}"})), ("pods", HERE, notes(HERE, **{ASSIGNED: "true"}))
    others = ("nodes", GPU2, notes(GPU2, **{GPUS: "{}"})), ("pods", ELSEWHERE, notes(ELSEWHERE, **{ASSIGNED: "true"}))
    return [
        *((f"its {kind}", status(kind, before, after), ALLOWED) for kind, before, after in mine),
        *((f"another node's {kind}", status(kind, before, after), OWN_NODE) for kind, before, after in others),
        *((f"those {kind} as their own", status(kind, before, after, of_gpu2), ALLOWED) for kind, before, after in others),
        *(
            (
                f"{kind} of {before['metadata']['name']} on {before['spec'].get('nodeName', '')} with a token of no node",
                status(kind, before, after, UNBOUND),
                OWN_NODE,
            )
            for kind, before, after in (*mine, *others)
        ),
        ("a pod without a node", status("pods", WAITING, notes(WAITING, **{IDX: "0"})), OWN_NODE),
        ("a pod without a node, with a token of none", status("pods", WAITING, notes(WAITING, **{IDX: "0"}), UNBOUND), OWN_NODE),
        ("a new pod", Request(POD_PLUGIN, "pods", pod()), OWN_NODE),
        ("another's annotation", status("pods", HERE, notes(HERE, team="b")), "may not change the annotations team"),
        ("what the extender writes", status("pods", HERE, notes(HERE, **{REQUEUED: "1"})), "may not change"),
        ("labels", status("pods", HERE, changed(HERE, labels={"a": "b"})), "only annotations"),
        ("conditions", status("pods", HERE, changed(HERE, status=SAYS_WHY)), "only annotations"),
        ("capacity", status("nodes", GPU1, changed(GPU1, status={"capacity": {"cpu": "9"}})), "only annotations"),
        (
            "its own event",
            Request(POD_PLUGIN, "events", event("gpushare-device-plugin", "gpu1", 2), event("gpushare-device-plugin", "gpu1")),
            ALLOWED,
        ),
        (
            "another node's event",
            Request(POD_PLUGIN, "events", event("gpushare-device-plugin", "gpu2", 2), event("gpushare-device-plugin", "gpu2")),
            "only the events",
        ),
        (
            "an event with a token of no node",
            Request(UNBOUND, "events", event("gpushare-device-plugin", "", 2), event("gpushare-device-plugin", "")),
            "only the events",
        ),
        ("a new event", Request(POD_PLUGIN, "events", event("gpushare-device-plugin", "gpu1")), ALLOWED),
        ("a new event with a token of no node", Request(UNBOUND, "events", event("gpushare-device-plugin", "")), "in its own name only"),
        *(
            (what, Request(POD_PLUGIN, "events", now, before), says)
            for what, now, before, says in misused_events("gpushare-device-plugin", "gpu1")
        ),
        ("the events of kubelet", Request(POD_PLUGIN, "events", event("kubelet", "gpu1", 2), event("kubelet", "gpu1")), "only the events"),
    ]


def of_scheduler() -> list[Case]:
    def status(before: Json, after: Json) -> Request:
        return Request(POD_SCHEDULER, "pods/status", after, before)

    said = changed(WAITING, status=SAYS_WHY)
    newer = {**event("", ""), "reportingComponent": "gpushare-scheduler"}
    running = changed(WAITING, status={"phase": "Running", "podIP": "10.0.0.1"})
    return [
        ("binds a pod with GPUs", Request(POD_SCHEDULER, "pods/binding", binding(FULL, {"topology.kubernetes.io/zone": "a"})), ALLOWED),
        ("binds a pod without", Request(POD_SCHEDULER, "pods/binding", binding()), "only pods that get GPUs"),
        ("binds in the old way without", Request(POD_SCHEDULER, "bindings", binding()), "only pods that get GPUs"),
        ("binds to its own node", Request(Who(POD_SCHEDULER.name, node="gpu1"), "pods/binding", binding(FULL)), ITS_OWN),
        ("binds to its own node in the old way", Request(Who(POD_SCHEDULER.name, node="gpu1"), "bindings", binding(FULL)), ITS_OWN),
        ("binds with a token of no node", Request(Who(POD_SCHEDULER.name), "pods/binding", binding(FULL)), ITS_OWN),
        ("binds with a label", Request(POD_SCHEDULER, "pods/binding", binding(FULL, {"app": "web"})), STATUS_ONLY),
        (
            "binds with another's annotation",
            Request(POD_SCHEDULER, "pods/binding", binding({**FULL, "team": "x"})),
            "not the annotations team",
        ),
        ("says why a pod waits", status(WAITING, said), ALLOWED),
        ("says it of a pod that has no status yet", status({**WAITING, "status": {}}, said), ALLOWED),
        ("says it of one with many annotations", status(LARGE, changed(LARGE, status=SAYS_WHY)), ALLOWED),
        ("nominates a node", status(said, changed(WAITING, status=NOMINATES)), ALLOWED),
        ("takes the nomination back", status(changed(WAITING, status=NOMINATES), said), ALLOWED),
        ("marks a pod that another one takes the place of", status(RUNS, changed(RUNS, status={"conditions": [READY, GOES]})), ALLOWED),
        ("says that a pod is not ready", status(RUNS, changed(RUNS, status={"conditions": [{**READY, "status": "False"}]})), CONDITIONS),
        ("a condition away", status(RUNS, changed(RUNS, status={"conditions": []})), CONDITIONS),
        ("many conditions", status(RUNS, changed(RUNS, status={"conditions": [READY, *CROWD]})), CONDITIONS),
        ("requeues", status(said, notes(said, **{REQUEUED: "1"})), ALLOWED),
        ("requeues and says why", status(WAITING, changed(WAITING, status=SAYS_WHY, annotations={REQUEUED: "1"})), ALLOWED),
        ("sets a GPU", status(WAITING, notes(WAITING, **{IDX: "0"})), f"not the annotations {IDX}"),
        ("another's annotation", status(WAITING, notes(WAITING, team=None)), "not the annotations team"),
        ("an annotation among many", status(LARGE, notes(LARGE, **{REQUEUED: "1"})), "more than 250"),
        ("a phase", status(WAITING, changed(WAITING, status={"phase": "Failed"})), STATUS_ONLY),
        ("a phase that is there", status(running, changed(running, status={"phase": "Failed"})), STATUS_ONLY),
        ("an address away", status(running, {**running, "status": {"phase": "Running"}}), STATUS_ONLY),
        ("a whole status away", status(running, {**running, "status": {}}), STATUS_ONLY),
        ("labels", status(WAITING, changed(WAITING, labels={"a": "b"})), STATUS_ONLY),
        ("owners", status(WAITING, changed(WAITING, ownerReferences=[{"kind": "x", "name": "x"}])), STATUS_ONLY),
        ("finalizers", status(WAITING, changed(WAITING, finalizers=["a/b"])), STATUS_ONLY),
        (
            "a pod itself",
            Request(POD_SCHEDULER, "pods", notes(WAITING, **{REQUEUED: "1"}), WAITING),
            "Bindings and the status of pods only",
        ),
        ("a new pod", Request(POD_SCHEDULER, "pods", pod()), "Bindings and the status of pods only"),
        ("a node", Request(POD_SCHEDULER, "nodes/status", notes(GPU1, **{GPUS: ""}), GPU1), "Bindings and the status of pods only"),
        ("its event", Request(POD_SCHEDULER, "events", event("gpushare-extender", "x", 2), event("gpushare-extender", "x")), ALLOWED),
        ("kube-scheduler's event", Request(POD_SCHEDULER, "events", {**newer, "count": 2}, newer), ALLOWED),
        ("kube-scheduler's new event", Request(POD_SCHEDULER, "events", newer), ALLOWED),
        ("its event about a Lease", Request(POD_SCHEDULER, "events", {**newer, "involvedObject": {"kind": "Lease", "name": "x"}}), ALLOWED),
        ("a new event in kubelet's name", Request(POD_SCHEDULER, "events", event("kubelet", "x")), "in its own name only"),
        ("kubelet's event", Request(POD_SCHEDULER, "events", event("kubelet", "x", 2), event("kubelet", "x")), "only the events"),
    ]


def of_the_schedulers_other_rights() -> list[Case]:
    """What RBAC gives it in the whole cluster, and what preemption and volumes need of that."""

    def deletes(of: Json, **spec: Any) -> Request:
        return Request(POD_SCHEDULER, "pods", None, {**of, "spec": {**of["spec"], **spec}})

    def lease(name: str, namespace: str = SYSTEM) -> Request:
        made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": namespace}, "spec": {}}
        return Request(POD_SCHEDULER, "leases", made, group="coordination.k8s.io")

    def volume(before: Json, status: Json | None = None, spec: Json | None = None, **metadata: Any) -> Request:
        return Request(POD_SCHEDULER, "persistentvolumes", changed(before, status, spec, **metadata), before)

    def claim(status: Json | None = None, spec: Json | None = None, **metadata: Any) -> Request:
        return Request(POD_SCHEDULER, "persistentvolumeclaims", changed(CLAIM, status, spec, **metadata), CLAIM)

    def devices(part: str = "", status: Json | None = None, spec: Json | None = None, **metadata: Any) -> Request:
        after = changed(DEVICES, status, spec, **metadata)
        return Request(POD_SCHEDULER, f"resourceclaims{part}", after, DEVICES, group="resource.k8s.io")

    static = {**HERE, "metadata": {**HERE["metadata"], "annotations": {"kubernetes.io/config.mirror": "x"}}}
    crowd = {f"a{number}": "" for number in range(251)}
    reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": "u"}
    whose, by_controller = {"claimRef": reference}, {"pv.kubernetes.io/bound-by-controller": "yes"}
    named = changed(VOLUME, spec={"claimRef": {"namespace": "default", "name": "c"}})
    taken = changed(VOLUME, spec={"claimRef": {**reference, "uid": "other"}})
    node, finalizer = {"volume.kubernetes.io/selected-node": "gpu1"}, ["resource.kubernetes.io/delete-protection"]
    given = {"allocation": {"devices": {}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
    return [
        ("deletes a pod of less priority", deletes(HERE, priority=-5), ALLOWED),
        ("deletes one of the highest that users may give", deletes(HERE, priority=999999999), ALLOWED),
        ("deletes one of another scheduler", deletes(HERE, schedulerName="default-scheduler"), ALLOWED),
        ("deletes one on its way", deletes(WAITING, schedulerName="gpushare-scheduler"), ALLOWED),
        ("deletes one that waits for another scheduler", deletes(WAITING), DELETES),
        ("deletes a control plane", deletes(HERE, priority=2000001000), DELETES),
        ("deletes a device plugin", deletes(HERE, priority=1000000000), DELETES),
        ("deletes the copy of a static pod", deletes(static), DELETES),
        ("its Lease", lease("gpushare-scheduler"), ALLOWED),
        ("kube-scheduler's Lease", lease("kube-scheduler"), ONE_LEASE),
        ("its Lease elsewhere", lease("gpushare-scheduler", "kube-system"), ONE_LEASE),
        ("another Lease beside it", lease("x"), ONE_LEASE),
        ("gives a volume to a claim", volume(VOLUME, spec=whose, annotations=by_controller), ALLOWED),
        ("gives a volume to the claim that it names", volume(named, spec=whose), ALLOWED),
        ("gives a volume to another than it names", volume(named, spec={"claimRef": {**reference, "name": "d"}}), A_VOLUME),
        ("gives a volume of another", volume(taken, spec=whose), A_VOLUME),
        ("frees a volume", volume(taken, spec={"claimRef": None}), A_VOLUME),
        ("a volume's reclaim policy", volume(VOLUME, spec={"persistentVolumeReclaimPolicy": "Delete"}), A_VOLUME),
        ("a volume's place", volume(VOLUME, spec={"hostPath": {"path": "/etc"}}), A_VOLUME),
        ("a volume's mount options", volume(VOLUME, spec={"mountOptions": ["suid"]}), A_VOLUME),
        ("a volume's labels", volume(VOLUME, labels={"a": "b"}), A_VOLUME),
        ("a volume's annotation", volume(VOLUME, annotations={"team": "b"}), A_VOLUME),
        ("a volume's annotation away", volume(VOLUME, annotations={"team": None}), A_VOLUME),
        ("a volume's phase", volume(VOLUME, {"phase": "Failed"}), A_VOLUME),
        ("names the node of a claim", claim(annotations=node), ALLOWED),
        ("names no node of a claim any more", Request(POD_SCHEDULER, CLAIMS, CLAIM, changed(CLAIM, annotations=node)), ALLOWED),
        ("a claim's volume", claim(spec={"volumeName": "v"}), A_CLAIM),
        ("a claim's annotation", claim(annotations={"team": "b"}), A_CLAIM),
        ("a claim's annotations without an end", claim(annotations={**crowd, **node}), A_CLAIM),
        ("a claim's finalizers", claim(finalizers=[]), A_CLAIM),
        ("gives devices", devices("/status", given), ALLOWED),
        ("protects a claim of devices", devices(finalizers=finalizer), ALLOWED),
        ("a claim of devices itself", devices(spec={"devices": {"requests": []}}), DEVICES_ONLY),
        ("labels of a claim of devices", devices(labels={"a": "b"}), "only the finalizer"),
        ("annotations of a claim of devices", devices("/status", given, annotations={"a": "b"}), "only the finalizer"),
        ("other finalizers of a claim of devices", devices(finalizers=["a/b"]), "only the finalizer"),
    ]


def of_nodes() -> list[Case]:
    """A kubelet may write labels of its own node. Ours keeps the scheduler's token off it."""
    label = {"gpushare.kubernetes/node": "true"}
    labelled = changed(GPU1, labels=label)
    unlabelled = changed(GPU1, labels={})
    return [
        ("removes its label", Request(KUBELET, "nodes", unlabelled, labelled), "may not remove its label"),
        ("removes its label with its status", Request(KUBELET, "nodes/status", unlabelled, labelled), "may not remove its label"),
        ("keeps its label", Request(KUBELET, "nodes/status", changed(labelled, status={"capacity": {"cpu": "8"}}), labelled), ALLOWED),
        ("gets its label", Request(KUBELET, "nodes", labelled, unlabelled), ALLOWED),
        ("an administrator removes it", Request(ADMINISTRATOR, "nodes", unlabelled, labelled), ALLOWED),
    ]


def of_all_others() -> list[Case]:
    def named(name: str, memory: str = "") -> Json:
        made = pod(memory=memory)
        return {**made, "spec": {**made["spec"], "schedulerName": name}}

    def of_class(name: str, **metadata: Any) -> Json:
        made = pod(**metadata)
        return {**made, "spec": {**made["spec"], "runtimeClassName": name}}

    full = named("gpushare-scheduler", memory="1")
    full["spec"]["containers"] += [{"name": f"c{number}", "image": "x"} for number in range(249)]
    crowded = pod(memory="1")
    crowded["spec"]["containers"] += [{"name": f"c{number}", "image": "x"} for number in range(251)]
    init = pod()
    init["spec"]["initContainers"] = [{"name": "i", "image": "x", "resources": {"requests": {protocol.RESOURCE_GPUS: "1"}}}]
    return [
        ("a pod for our scheduler", Request(TENANT, "pods", named("gpushare-scheduler", memory="1")), ALLOWED),
        ("a pod for another", Request(TENANT, "pods", named("volcano", memory="1")), WRITE),
        ("a pod for the default scheduler", Request(TENANT, "pods", named("default-scheduler", memory="1")), WRITE),
        ("a pod for none", Request(TENANT, "pods", pod(memory="1")), WRITE),
        ("a pod whose init container asks", Request(TENANT, "pods", init), WRITE),
        ("an administrator's for another", Request(ADMINISTRATOR, "pods", named("volcano", memory="1")), WRITE),
        ("a pod without GPUs for another", Request(TENANT, "pods", named("volcano")), ALLOWED),
        ("a pod with more containers than are looked at", Request(TENANT, "pods", crowded), "at most 250 containers"),
        ("one for our scheduler", Request(TENANT, "pods", {**crowded, "spec": {**crowded["spec"], **OURS}}), "at most 250 containers"),
        ("a pod with as many as are looked at", Request(TENANT, "pods", full), ALLOWED),
        ("a pod without GPUs for our scheduler", Request(TENANT, "pods", named("gpushare-scheduler")), "leave spec.schedulerName out"),
        ("a pod with zero units for our scheduler", Request(TENANT, "pods", named("gpushare-scheduler", memory="0")), "only pods that ask"),
        ("a pod with zero units", Request(TENANT, "pods", pod(memory="0")), ALLOWED),
        ("our RuntimeClass", Request(TENANT, "pods", of_class("gpushare-nvidia")), "is for gpushare's own pods"),
        ("our RuntimeClass by an administrator", Request(ADMINISTRATOR, "pods", of_class("gpushare-nvidia")), "is for gpushare's own pods"),
        ("our RuntimeClass in our namespace", Request(CONTROLLER, "pods", of_class("gpushare-nvidia", namespace=SYSTEM)), ALLOWED),
        ("another RuntimeClass", Request(TENANT, "pods", of_class("nvidia")), ALLOWED),
        (
            "a pod that places itself",
            Request(TENANT, "pods", {**HERE, "spec": {**HERE["spec"], "schedulerName": "gpushare-scheduler"}, "metadata": {"name": "p"}}),
            "is placed by the scheduler",
        ),
        ("forges a GPU", Request(TENANT, "pods", pod({IDX: "1"})), "only gpushare sets"),
        ("forges a Binding", Request(TENANT, "pods/binding", binding({IDX: "1"})), "only gpushare sets"),
        ("a controller that may do all", Request(CONTROLLER, "pods", pod({IDX: "1"})), "only gpushare sets"),
        (
            "the account of a service of a host",
            Request(Who("system:serviceaccount:kube-system:gpushare-extender"), "pods/binding", binding(FULL)),
            "only gpushare sets",
        ),
        ("kubelet's node with GPUs", Request(KUBELET, "nodes", notes(GPU1, **{GPUS: ""}), GPU1), "only gpushare sets"),
        ("kubelet's status", Request(KUBELET, "pods/status", changed(HERE, status={"phase": "Running"}), HERE), ALLOWED),
        ("a writer of the installation", Request(Who(WRITER), "pods", pod({IDX: "1"})), ALLOWED),
        (
            "kubelet's token for a daemon",
            Request(KUBELET, "serviceaccounts/token", token_request("gpushare-scheduler", 3607, SYSTEM)),
            ALLOWED,
        ),
        *(
            (
                f"a long token of {account}",
                Request(ADMINISTRATOR, "serviceaccounts/token", token_request(account, 3608, SYSTEM)),
                "3607 seconds",
            )
            for account in ("gpushare-device-plugin", "gpushare-dashboard")
        ),
        (
            "a long token elsewhere",
            Request(ADMINISTRATOR, "serviceaccounts/token", token_request("gpushare-device-plugin", 9999999)),
            ALLOWED,
        ),
    ]


CASES = {
    f"{who}: {what}": (request, words)
    for who, cases in (
        ("plugin", of_plugin()),
        ("scheduler", of_scheduler()),
        ("the scheduler's rights", of_the_schedulers_other_rights()),
        ("node", of_nodes()),
        ("others", of_all_others()),
    )
    for what, request, words in cases
}


@cache
def answers() -> dict[str, Answer]:
    return dict(zip(CASES, ask([request for request, _ in CASES.values()], policies_in_cluster()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_request_has_its_answer(name: str) -> None:
    denied, words = answers()[name].denied, CASES[name][1]
    assert words in denied if words else denied == ""
