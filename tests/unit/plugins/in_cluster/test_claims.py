# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The links from a limit to a GPU with the back end dra, in slices that the runtime makes, and a probe pod's verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.claims import broken, lacks, offers, waiting
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.pods import Ended, Image
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.ready import Awaited, beside, unready
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.verdict import judge_claim
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.verify import verify
from ansible_collections.gpushare.kubernetes.plugins.modules.gpushare_api import of_nodes
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import dra
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values

from unit.fakes.plugins.in_cluster.kubectl import Answer, Fake, Json, named
from unit.fakes.runtime.dra.claims import A30, T4, slices_of

SPACE = "gpushare-system"
IMAGE = Image("localhost/gpushare:1", SPACE, backend="dra")
OBJECTS = [
    item
    for item in dra.objects(Values(image="x", scheduler_image=""))
    if item["kind"].startswith("MutatingAdmissionPolicy") or item["kind"] == "DeviceClass"
]
LABELLED: Json = {"metadata": {"name": "gpu1", "labels": {"gpushare.kubernetes/node": "true"}}}


def claim(device: str, memory: str, driver: str = "gpushare.kubernetes") -> Json:
    result = {"driver": driver, "pool": "gpu1", "device": device, "request": "gpu", "consumedCapacity": {"memory": memory}}
    return {"metadata": {"name": "c", "namespace": "default"}, "status": {"allocation": {"devices": {"results": [result]}}}}


def cluster(**more: Any) -> dict[str, Answer]:
    """more: in the place of slices, claims, templates, spaces and objects."""
    found: dict[str, Any] = {
        "slices": slices_of(),
        "claims": [],
        "templates": [{"metadata": {"name": "gpushare", "namespace": name}} for name in ("default", SPACE)],
        "spaces": [{"metadata": {"name": name}} for name in ("default", SPACE)],
        "objects": OBJECTS,
        **more,
    }
    return {
        "get --raw /apis/resource.k8s.io/v1/resourceslices": found["slices"],
        "get --raw /apis/resource.k8s.io/v1/resourceclaims": found["claims"],
        "get --raw /apis/resource.k8s.io/v1/resourceclaimtemplates": found["templates"],
        "get --raw /api/v1/namespaces": found["spaces"],
        "get mutatingadmissionpolic": found["objects"],
        "get nodes": [LABELLED],
    }


def test_a_whole_chain() -> None:
    assert broken(Fake(cluster()).kubectl, ["gpu1"], SPACE) == []


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ({"objects": [item for item in OBJECTS if item["kind"] != "DeviceClass"]}, "DeviceClass gpushare is not there"),
        ({"objects": OBJECTS[1:]}, "MutatingAdmissionPolicy gpushare-dra-claims is not there"),
        ({"templates": []}, "namespace gpushare-system without the ResourceClaimTemplate gpushare, which gpushare-claims makes"),
        ({"slices": []}, "node gpu1: no ResourceSlice of gpushare.kubernetes with a GPU"),
    ],
)
def test_each_link_that_is_not_there_is_named(lacking: Json, words: str) -> None:
    assert broken(Fake(cluster(**lacking)).kubectl, ["gpu1"], SPACE) == [words]


def test_another_namespace_that_takes_no_template_is_told_and_waited_for_by_nobody() -> None:
    """Its quota may allow none. One that ends needs none."""
    full, ends = {"name": "full"}, {"name": "old", "deletionTimestamp": "2026-11-30T00:00:00Z"}
    kubectl = Fake(cluster(spaces=[{"metadata": one} for one in ({"name": "default"}, full, ends)])).kubectl
    assert broken(kubectl, ["gpu1"], SPACE) == []
    (said,) = beside(kubectl, Awaited(SPACE, "dra"))
    assert "full; expected" in said
    assert beside(Fake(cluster()).kubectl, Awaited(SPACE, "dra")) == []


def test_it_is_waited_for_as_for_workloads() -> None:
    status = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    status |= {"desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberReady": 1}
    workloads = [
        named("Deployment", "gpushare-claims", SPACE, spec={"replicas": 2}, status=status),
        named("DaemonSet", "gpushare-device-plugin", SPACE, spec={}, status=status),
    ]
    answers = {"get deployments.apps/gpushare-claims": workloads, **cluster(slices=[])}
    assert len(unready(Fake(answers).kubectl, Awaited(SPACE, "dra"))) == 1
    assert unready(Fake({**answers, **cluster()}).kubectl, Awaited(SPACE, "dra")) == []


def wish(name: str, request: Json, allocation: Json | None = None, pod: str = "") -> Json:
    """A claim that a user wrote, or a template of theirs."""
    owners = [{"kind": "Pod", "name": pod}] if pod else []
    metadata = {"name": name, "namespace": "default", "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"devices": {"requests": [request]}}, "status": {"allocation": allocation} if allocation else {}}


def test_claims_of_users_that_wait_for_a_gpu_are_named_by_their_pods() -> None:
    ours, theirs = ({"deviceClassName": name} for name in ("gpushare", "gpu.nvidia.com"))
    claims = [
        wish("a-x", {"exactly": ours}, pod="a"),
        wish("b-x", {"firstAvailable": [theirs, ours]}, pod="b"),
        wish("mine", {"exactly": ours}),
        wish("c-x", {"exactly": ours}, allocation={"devices": {}}, pod="c"),
        wish("d-x", {"exactly": theirs}, pod="d"),
    ]
    assert waiting(Fake(cluster(claims=claims)).kubectl) == ["ResourceClaim default/mine", "default/a", "default/b"]


def test_room_is_what_claims_have_left_of_usable_gpus() -> None:
    full = [claim(T4.uuid.lower(), "8Gi"), claim(T4.uuid.lower(), "7Gi"), claim(A30.uuid.lower(), "24Gi", driver="gpu.nvidia.com")]
    fake = Fake(cluster(claims=full, slices=slices_of(T4, replace(A30, cordoned=True), replace(A30, index=2, uuid="MIG-3", minor=0))))
    assert [(gpu.index, gpu.minor, gpu.instance, gpu.takes_one) for gpu in offers(fake.kubectl)["gpu1"]] == [
        (0, 3, False, False),
        (1, 0, False, False),
        (2, 0, True, True),
    ]


def test_slices_that_are_being_replaced_do_not_count() -> None:
    old, new = slices_of(T4, A30), slices_of(A30)
    new[0]["spec"]["pool"]["generation"] = 2
    assert [gpu.index for gpu in offers(Fake(cluster(slices=[*old, *new])).kubectl)["gpu1"]] == [1]


SERVED = {"get --raw /apis/resource.k8s.io/v1": {"resources": [{"kind": "ResourceSlice"}]}}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({**SERVED, "create --dry-run=server": {"spec": {"devices": [{"name": "gpu", "allowMultipleAllocations": True}]}}}, ""),
        ({**SERVED, "create --dry-run=server": {"spec": {"devices": [{"name": "gpu"}]}}}, "the feature gate DRAConsumableCapacity"),
        ({"get --raw /apis/resource.k8s.io/v1": {"resources": []}}, "the API resource.k8s.io/v1"),
        (
            {**SERVED, "create --dry-run=server": lambda: KubectlError('strict decoding error: unknown field "spec.devices[0].capacity"')},
            'unknown field "spec.devices[0].capacity"',
        ),
        (
            {**SERVED, "create --dry-run=server": lambda: KubectlError('The ResourceSlice "x" is invalid: spec.devices[0]: Forbidden')},
            "spec.devices[0]: Forbidden",
        ),
    ],
)
def test_what_the_api_server_lacks_is_found_by_a_dry_run(answers: dict[str, Answer], said: str) -> None:
    found = lacks(Fake(answers).kubectl)
    assert (len(found), said in "".join(found)) == (1 if said else 0, True)


@pytest.mark.parametrize(
    "said",
    [
        'Error from server (Forbidden): resourceslices.resource.k8s.io is forbidden: User "you" cannot create resource "resourceslices"',
        'Error from server: admission webhook "x.example.org" denied the request: no',
        "The resourceslices \"x\" is invalid: : ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
    ],
)
def test_what_is_refused_for_another_reason_is_no_lack(said: str) -> None:
    with pytest.raises(KubectlError) as error:
        lacks(Fake({**SERVED, "create --dry-run=server": lambda: KubectlError(said)}).kubectl)
    assert said in str(error.value)


def ended(devices: list[str], index: str, entry: str = "gpushare-m1") -> Ended:
    log = json.dumps({"devices": devices, "environment": {"ALIYUN_COM_GPU_MEM_IDX": index}})
    status = {"phase": "Succeeded", "resourceClaimStatuses": [{"name": entry, "resourceClaimName": "x"}] if entry else []}
    return Ended("gpu1", {"metadata": {"name": "gpushare-verify-gpu1"}, "status": status}, "Succeeded", log, "")


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (ended(["nvidia3", "nvidiactl"], "0"), ""),
        (ended(["nvidia0"], "0"), "found the device nodes /dev/nvidia0; expected /dev/nvidia3, GPU 0"),
        (ended(["nvidia0", "nvidia3"], "0"), "expected /dev/nvidia3, GPU 0"),
        (ended([], ""), "found ALIYUN_COM_GPU_MEM_IDX=; expected a GPU of the node's ResourceSlice (0, 1); switch CDI on"),
        (ended(["nvidia3"], "0", ""), "found the claims none; expected gpushare-m1"),
        (Ended("gpu1", {}, "", "", "cannot allocate all claims"), "has not run (cannot allocate all claims)"),
        (Ended("gpu1", {}, "Failed", "boom", "boom"), "it failed (boom)"),
    ],
)
def test_a_probe_has_the_gpu_of_its_claim(pod: Ended, words: str) -> None:
    said = judge_claim(pod, offers(Fake(cluster()).kubectl)["gpu1"])
    assert [words in one for one in said] == ([True] if words else [])


def test_an_instance_has_files_that_no_slice_names() -> None:
    gpus = offers(Fake(cluster(slices=slices_of(replace(A30, uuid="MIG-3")))).kubectl)["gpu1"]
    assert judge_claim(ended(["nvidia0", "nvidia-caps/nvidia-cap66"], "1"), gpus) == []


def test_probes_ask_the_clusters_own_scheduler_and_ours_is_no_second_driver() -> None:
    live: Json = {**ended([], "0").pod, "metadata": {"name": "gpushare-verify-gpu1"}}
    answers: dict[str, Answer] = {
        **cluster(),
        "get --raw /apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
        "get --raw /apis/apps/v1/daemonsets": [],
        "get pods": [live],
        "logs": json.dumps({"devices": ["nvidia3"], "environment": {"ALIYUN_COM_GPU_MEM_IDX": "0"}}),
    }
    # By the longer beginning first.
    fake = Fake(dict(sorted(answers.items(), key=lambda found: -len(found[0]))))
    nodes, full, found, _told = verify(fake.kubectl, IMAGE, 5)
    assert (nodes, full, [words for words in found if "gpus_visible" not in words]) == (["gpu1"], [], [])
    made = next(json.loads(text)["items"][0] for words, text in fake.inputs if words.startswith("create"))
    assert "schedulerName" not in made["spec"]
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"aliyun.com/gpu-mem": "1"}}


@pytest.mark.parametrize(("nodes", "found"), [(None, ["a", "b"]), (["gpu1"], ["a"]), (["gpu2"], ["b"])])
def test_an_uninstallation_sees_pods_that_hold_gpus_by_claims(nodes: list[str] | None, found: list[str]) -> None:
    """Admission has made a claim of their limit."""

    def held(pod: str, node: str, driver: str = "gpushare.kubernetes") -> Json:
        place = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {"devices": {"results": [{"driver": driver}]}, "nodeSelector": {"nodeSelectorTerms": [place]}}
        users = [{"resource": "pods", "name": pod}]
        return {"metadata": {"name": pod, "namespace": "default"}, "status": {"allocation": allocation, "reservedFor": users}}

    claims = [held("b", "gpu2"), held("a", "gpu1"), held("theirs", "gpu1", "gpu.nvidia.com")]
    answers: dict[str, Answer] = {
        "get --raw /apis/resource.k8s.io/v1/resourceclaims": claims,
        "get --raw /apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
    }
    said = of_nodes(Fake(answers).kubectl, {"pods": True, "pods_of": nodes}, True).pods
    assert [one["pod"] for one in said] == [f"default/{name}" for name in found]
    assert {one["asks"].split()[-1] for one in said} == {"gpushare.kubernetes"}
