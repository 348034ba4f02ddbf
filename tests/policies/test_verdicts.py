# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which requests the policies let pass, and what they say to the others: each attack that is known, and what everybody needs."""

from __future__ import annotations

from functools import cache

import pytest

from gpushare_runtime.core import protocol
from policies.engine import (
    ADMINISTRATOR,
    CONTROLLER,
    EXTENDER,
    KUBELET,
    PLUGIN,
    SCHEDULER,
    TENANT,
    WRITER,
    Answer,
    Json,
    Request,
    Who,
    ask,
    policies,
)
from policies.requests import binding, changed, config_map, event, many, misused_events, node, pod, token_request

ALLOWED = ""
OWN_NODE = "only its own node and the pods that are bound to it"
ANNOTATIONS_ONLY = "may change only annotations of gpushare"
NOT_FROM_HERE = "only gpushare sets, changes and removes them"
PLACED = "is placed by the scheduler"
IDX, ASSIGNED, ALLOCATION = protocol.ANNOTATION_INDEX, protocol.ANNOTATION_ASSIGNED, protocol.ANNOTATION_ALLOCATION
SENDER = "gpushare-device-plugin"
HERE, ELSEWHERE, WAITING = pod({"team": "a", IDX: "0"}, "gpu1", "1"), pod({IDX: "0"}, "gpu2", "1"), pod({"team": "a"}, memory="1")
GPU1, GPU2 = node({protocol.ANNOTATION_GPUS: "{}"}), node(name="gpu2")
OURS = sorted(
    {value for name, value in vars(protocol).items() if name.startswith("ANNOTATION_")} - {protocol.ANNOTATION_MIRROR}
    | {protocol.ENV_CONTAINER_UNITS}
)
ZONE = {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "b"}


def limits(resource: str, kind: str = "limits", of: str = "containers") -> Json:
    made = pod(node="gpu1")
    container = {"name": "gpu", "image": "x", "resources": {kind: {resource: "1"}}}
    made["spec"][of] = [*made["spec"].get(of, []), container]
    return made


def notes(where: Json, **annotations: str | None) -> Json:
    return changed(where, annotations=annotations)


Case = tuple[str, Request, str]


def of_plugin() -> list[Case]:
    def status(kind: str, before: Json, after: Json, who: Who = PLUGIN) -> Request:
        return Request(who, f"{kind}/status", after, before)

    gpus, held, evictions = protocol.ANNOTATION_GPUS, protocol.ANNOTATION_HELD, protocol.ANNOTATION_EVICTIONS
    large = pod({**many(251), IDX: "0"}, "gpu1", "1")
    largest = pod({**many(249), IDX: "0"}, "gpu1", "1")
    return [
        ("publishes GPUs", status("nodes", GPU1, notes(GPU1, **{gpus: "{1}", held: "{}"})), ALLOWED),
        ("takes held back", status("nodes", notes(GPU1, **{held: "{}"}), GPU1), ALLOWED),
        ("publishes GPUs by the node itself", Request(PLUGIN, "nodes", notes(GPU1, **{gpus: "{1}"}), GPU1), ALLOWED),
        ("another node's", status("nodes", GPU2, notes(GPU2, **{gpus: "{}"})), OWN_NODE),
        ("a pod's annotation on its node", status("nodes", GPU1, notes(GPU1, **{IDX: "0"})), f"may not change the annotations {IDX}"),
        ("another's annotation of its node", status("nodes", GPU1, notes(GPU1, team="x")), "may not change the annotations team"),
        (
            "an annotation away from its node",
            status("nodes", GPU1, notes(GPU1, **{"volumes.kubernetes.io/x": None})),
            "may not change the annotations volumes.kubernetes.io/x",
        ),
        ("labels of its node", status("nodes", GPU1, changed(GPU1, labels={"a": "b"})), ANNOTATIONS_ONLY),
        ("capacity of its node", status("nodes", GPU1, changed(GPU1, status={"capacity": {"cpu": "9"}})), ANNOTATIONS_ONLY),
        ("taints of its node", Request(PLUGIN, "nodes", changed(GPU1, spec={"unschedulable": True}), GPU1), ANNOTATIONS_ONLY),
        ("a new node", Request(PLUGIN, "nodes", GPU1), OWN_NODE),
        ("marks a pod", status("pods", HERE, notes(HERE, **{ASSIGNED: "true", ALLOCATION: "{}", IDX: "1"})), ALLOWED),
        ("takes requests for evictions back", status("nodes", notes(GPU1, **{evictions: "{}"}), GPU1), ALLOWED),
        ("a pod of another node", status("pods", ELSEWHERE, notes(ELSEWHERE, **{ASSIGNED: "true"})), OWN_NODE),
        ("asks for another node's evictions", status("nodes", GPU2, notes(GPU2, **{evictions: "{}"})), OWN_NODE),
        ("a pod without a node", status("pods", WAITING, notes(WAITING, **{IDX: "0"})), OWN_NODE),
        ("takes a pod to its node", Request(PLUGIN, "pods", changed(WAITING, spec={"nodeName": "gpu1"}), WAITING), OWN_NODE),
        ("sends a pod away", Request(PLUGIN, "pods", changed(HERE, spec={"nodeName": "gpu2"}), HERE), ANNOTATIONS_ONLY),
        ("a new pod", Request(PLUGIN, "pods", pod()), OWN_NODE),
        ("requeues, which is the extender's", status("pods", HERE, notes(HERE, **{protocol.ANNOTATION_REQUEUED: "1"})), "may not change"),
        ("another's annotation of a pod", status("pods", HERE, notes(HERE, team="b")), "may not change the annotations team"),
        ("an annotation away from a pod", status("pods", HERE, notes(HERE, team=None)), "may not change the annotations team"),
        ("labels of a pod", status("pods", HERE, changed(HERE, labels={"a": "b"})), ANNOTATIONS_ONLY),
        ("owners of a pod", status("pods", HERE, changed(HERE, ownerReferences=[{"kind": "x", "name": "x"}])), ANNOTATIONS_ONLY),
        ("finalizers of a pod", status("pods", HERE, changed(HERE, finalizers=["a/b"])), ANNOTATIONS_ONLY),
        ("status of a pod", status("pods", HERE, changed(HERE, status={"phase": "Failed"})), ANNOTATIONS_ONLY),
        ("marks a pod with 250 annotations", status("pods", largest, notes(largest, **{IDX: "1"})), ALLOWED),
        ("one of others among 250", status("pods", largest, notes(largest, a="1", **{IDX: "1"})), "may not change the annotations a"),
        ("marks a pod with more", status("pods", large, notes(large, **{IDX: "1"})), "of an object that has more than 250"),
        ("its ConfigMap", Request(PLUGIN, "configmaps", config_map("unhealthy-gpu-gpu1")), ALLOWED),
        ("another's ConfigMap", Request(PLUGIN, "configmaps", config_map("unhealthy-gpu-gpu10")), "one ConfigMap only"),
        ("other keys", Request(PLUGIN, "configmaps", config_map("unhealthy-gpu-gpu1", data={"x": "y"})), "with the key gpus"),
        ("labels of it", Request(PLUGIN, "configmaps", config_map("unhealthy-gpu-gpu1", labels={"a": "b"})), "only the key gpus"),
        ("its own event", Request(PLUGIN, "events", event(SENDER, "gpu1", 2), event(SENDER, "gpu1")), ALLOWED),
        ("a new event", Request(PLUGIN, "events", event(SENDER, "gpu1", message="x" * 1024)), ALLOWED),
        ("one about its node", Request(PLUGIN, "events", event(SENDER, "gpu1", involvedObject={"kind": "Node", "name": "gpu1"})), ALLOWED),
        ("one of another node", Request(PLUGIN, "events", event(SENDER, "gpu2")), "in its own name only"),
        ("the extender's event", Request(PLUGIN, "events", event("gpushare-extender", "gpu1")), "in its own name only"),
        ("another's event", Request(PLUGIN, "events", event("kubelet", "gpu1", 2), event("kubelet", "gpu1")), "only the events"),
        *((what, Request(PLUGIN, "events", now, before), says) for what, now, before, says in misused_events(SENDER, "gpu1")),
    ]


def of_extender() -> list[Case]:
    requeued = protocol.ANNOTATION_REQUEUED
    full = {IDX: "0", ASSIGNED: "false", ALLOCATION: "{}"}
    crowd = {f"topology.kubernetes.io/x{number}": "" for number in range(251)}

    def status(before: Json, after: Json) -> Request:
        return Request(EXTENDER, "pods/status", after, before)

    return [
        ("binds", Request(EXTENDER, "pods/binding", binding(full)), ALLOWED),
        ("binds without annotations", Request(EXTENDER, "pods/binding", binding()), ALLOWED),
        # The API server sets these before it asks the policies.
        ("binds to a node in a zone", Request(EXTENDER, "pods/binding", binding(full, ZONE)), ALLOWED),
        ("binds with a label", Request(EXTENDER, "pods/binding", binding(full, {"app": "web", **ZONE})), ANNOTATIONS_ONLY),
        ("binds with a label, in the old way", Request(EXTENDER, "bindings", binding(full, {"app": "web"})), ANNOTATIONS_ONLY),
        ("binds with labels without an end", Request(EXTENDER, "pods/binding", binding(full, crowd)), ANNOTATIONS_ONLY),
        ("binds with another's annotation", Request(EXTENDER, "pods/binding", binding({**full, "team": "x"})), "not the annotations team"),
        (
            "binds with a request to evict",
            Request(EXTENDER, "bindings", binding({protocol.ANNOTATION_EVICTIONS: "{}"})),
            "not the annotations",
        ),
        ("requeues", status(WAITING, notes(WAITING, **{requeued: "1"})), ALLOWED),
        ("forgets that it requeued", status(notes(WAITING, **{requeued: "1"}), WAITING), ALLOWED),
        ("sets a GPU", status(WAITING, notes(WAITING, **{IDX: "0"})), f"not the annotations {IDX}"),
        ("another's annotation", status(WAITING, notes(WAITING, team=None)), "not the annotations team"),
        ("labels", status(WAITING, changed(WAITING, labels={"a": "b"})), ANNOTATIONS_ONLY),
        ("conditions", status(WAITING, changed(WAITING, status={"conditions": [{"type": "Ready", "status": "True"}]})), ANNOTATIONS_ONLY),
        ("a pod itself", Request(EXTENDER, "pods", notes(WAITING, **{requeued: "1"}), WAITING), "Bindings and the status of pods only"),
        ("a new pod", Request(EXTENDER, "pods", WAITING), "Bindings and the status of pods only"),
        ("a node", Request(EXTENDER, "nodes/status", notes(GPU1, **{protocol.ANNOTATION_GPUS: ""}), GPU1), "Bindings and the status"),
        ("its own event", Request(EXTENDER, "events", event("gpushare-extender", "x", 2), event("gpushare-extender", "x")), ALLOWED),
        ("a new event", Request(EXTENDER, "events", event("gpushare-extender", "any.host")), ALLOWED),
        *((what, Request(EXTENDER, "events", now, before), says) for what, now, before, says in misused_events("gpushare-extender", "x")),
        ("a plugin's event", Request(EXTENDER, "events", event(SENDER, "x", 2), event(SENDER, "x")), "only the events"),
    ]


def of_all_others() -> list[Case]:
    crowded = pod(node="gpu1")
    crowded["spec"]["containers"] = [{"name": f"c{number}", "image": "x"} for number in range(251)]
    mirror = {"kubernetes.io/config.mirror": "x"}
    wishes = {protocol.ASK_MODELS: "T4", "gpushare/models": "T4", "team": "x"}
    return [
        *((f"creates {key}", Request(TENANT, "pods", pod({key: "1"})), f"the annotations {key} say") for key in OURS),
        *((f"adds {key}", Request(TENANT, "pods", notes(WAITING, **{key: ""}), WAITING), f"the annotations {key} say") for key in OURS),
        *((f"removes {key}", Request(TENANT, "pods", pod(), pod({key: "1"})), f"the annotations {key} say") for key in OURS),
        *((f"alters {key}", Request(TENANT, "pods", pod({key: ""}), pod({key: "1"})), f"the annotations {key} say") for key in OURS),
        *((f"has {key}", Request(TENANT, "pods", pod({key: "1", "a": "b"}), pod({key: "1"})), ALLOWED) for key in OURS),
        ("names the user", Request(TENANT, "pods", pod({IDX: "1"})), "not tenant. Leave them out"),
        ("names them all", Request(TENANT, "pods", pod({IDX: "1", ALLOCATION: "{}", "team": "x"})), f"annotations {IDX}, {ALLOCATION} say"),
        ("hides one among many", Request(TENANT, "pods", pod({**many(), IDX: "1"})), f"the annotations {IDX} say"),
        ("wishes", Request(TENANT, "pods", pod(wishes, memory="1")), ALLOWED),
        ("wishes later", Request(TENANT, "pods", notes(HERE, **wishes), HERE), ALLOWED),
        ("many of its own", Request(TENANT, "pods", pod(many(), memory="1")), ALLOWED),
        ("forges a Binding", Request(TENANT, "pods/binding", binding({IDX: "1"})), NOT_FROM_HERE),
        ("forges a Binding in the old way", Request(TENANT, "bindings", binding({IDX: "1"})), NOT_FROM_HERE),
        ("forges the status", Request(TENANT, "pods/status", notes(HERE, **{IDX: "1"}), HERE), NOT_FROM_HERE),
        ("binds as kube-scheduler does", Request(SCHEDULER, "pods/binding", binding(labels={"app": "x"})), ALLOWED),
        ("kubelet's status", Request(KUBELET, "pods/status", changed(HERE, status={"phase": "Running"}), HERE), ALLOWED),
        ("kubelet's node", Request(KUBELET, "nodes/status", changed(GPU1, status={"capacity": {"cpu": "8"}}), GPU1), ALLOWED),
        ("kubelet's node with GPUs", Request(KUBELET, "nodes", notes(GPU1, **{protocol.ANNOTATION_GPUS: ""}), GPU1), NOT_FROM_HERE),
        ("kubelet's node without GPUs", Request(KUBELET, "nodes/status", node(), GPU1), NOT_FROM_HERE),
        ("a new node with GPUs", Request(KUBELET, "nodes", GPU1), NOT_FROM_HERE),
        ("a controller that may do all", Request(CONTROLLER, "pods", pod({IDX: "1"})), NOT_FROM_HERE),
        ("an administrator", Request(ADMINISTRATOR, "pods", pod({IDX: "1"})), ALLOWED),
        ("a writer of the inventory", Request(Who(WRITER), "pods", pod({IDX: "1"})), ALLOWED),
        *((f"places {name}", Request(TENANT, "pods", limits(name)), PLACED) for name in protocol.RESOURCES),
        ("places by a request", Request(TENANT, "pods", limits(protocol.RESOURCE_MEMORY, "requests")), PLACED),
        ("places by an init container", Request(TENANT, "pods", limits(protocol.RESOURCE_GPUS, of="initContainers")), PLACED),
        ("places a static pod's copy", Request(TENANT, "pods", pod(mirror, memory="1")), PLACED),
        ("places by a controller", Request(CONTROLLER, "pods", limits(protocol.RESOURCE_MEMORY)), PLACED),
        ("places more than can be looked at", Request(TENANT, "pods", crowded), PLACED),
        ("places another's device", Request(TENANT, "pods", limits("example.com/device")), ALLOWED),
        ("is placed", Request(TENANT, "pods", pod(memory="1")), ALLOWED),
        ("kubelet's copy of a static pod", Request(KUBELET, "pods", pod(mirror, "gpu1", "1")), ALLOWED),
        ("an administrator places", Request(ADMINISTRATOR, "pods", limits(protocol.RESOURCE_MEMORY)), ALLOWED),
        ("any ConfigMap", Request(TENANT, "configmaps", config_map("x", "default", {"x": "y"})), ALLOWED),
        ("any new event", Request(TENANT, "events", event("kubelet", "x", involvedObject={}, message="x" * 2000)), ALLOWED),
        ("any event", Request(TENANT, "events", event("kubelet", "x", 2), event("kubelet", "x")), ALLOWED),
        ("a long token", Request(ADMINISTRATOR, "serviceaccounts/token", token_request("gpushare-extender", 604801)), "604800 seconds"),
        ("a token", Request(PLUGIN, "serviceaccounts/token", token_request("gpushare-device-plugin-gpu1", 604800)), ALLOWED),
        ("another's long token", Request(ADMINISTRATOR, "serviceaccounts/token", token_request("x", 9999999)), ALLOWED),
    ]


CASES = {
    f"{who}: {what}": (request, words)
    for who, cases in (("plugin", of_plugin()), ("extender", of_extender()), ("others", of_all_others()))
    for what, request, words in cases
}


@cache
def answers() -> dict[str, Answer]:
    return dict(zip(CASES, ask([request for request, _ in CASES.values()], policies()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_request_has_its_answer(name: str) -> None:
    denied, words = answers()[name].denied, CASES[name][1]
    assert words in denied if words else denied == ""
