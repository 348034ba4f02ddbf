# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Random hostile pods through the policies of the back end dra: each is translated, rejected with our words, or left alone.

GPUSHARE_SEED has the seed of a run that is to be repeated, and GPUSHARE_PODS another number of pods.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import TEMPLATE
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.dra import CORE, DRIVER, GPUS, MEMORY

from gpushare_runtime.dra.templates import template
from policies.engine import (
    ADMINISTRATOR,
    CONTROLLER,
    KUBELET,
    POD_PLUGIN,
    SCHEDULER,
    TENANT,
    UNBOUND,
    Answer,
    Json,
    Request,
    Who,
    ask,
    every_policy_by_claims,
    policies_by_claims,
)
from policies.hostile import pods

NUMBER = int(os.environ.get("GPUSHARE_PODS", "10000"))
SEED = int(os.environ.get("GPUSHARE_SEED") or secrets.randbelow(2**32))
#: What the API server says of an expression that cannot be evaluated, or has used its budget up (plugin/policy and plugin/cel of 1.37.2).
ERROR = re.compile(
    r"resulted in error|cost limit|budget|overflow|no such (?:key|overload|attribute)|evaluation|failed to|conversion|internal error"
    r"|type mismatch"
)
#: How a rejection of ours begins.
DENIED = re.compile(r"ValidatingAdmissionPolicy 'gpushare-dra-rejected' with binding 'gpushare-dra-rejected' denied request: ")
OURS = (MEMORY, GPUS, CORE)


@dataclass(frozen=True)
class Fate:
    sent: Json
    answer: Answer


@cache
def fates() -> list[Fate]:
    print(f"GPUSHARE_SEED={SEED} GPUSHARE_PODS={NUMBER}")
    sent = pods(SEED, NUMBER)
    answers = ask([Request(TENANT, "pods", pod) for pod in sent], policies_by_claims())
    return [Fate(pod, answer) for pod, answer in zip(sent, answers, strict=True)]


def containers(pod: Json) -> list[Json]:
    return [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]


def asks(pod: Json, *resources: str) -> bool:
    """Whether a limit or a request names one of them, other than 0."""
    found = [(one.get("resources") or {}).get(kind) or {} for one in containers(pod) for kind in ("limits", "requests")]
    return any(amounts.get(name, "0") != "0" for amounts in found for name in resources)


def mirror(fate: Fate) -> bool:
    """Of a static pod, which kubelet has started already. kubelet deletes others that say so, and nothing can be allocated for a claim of
    theirs.
    """
    return "kubernetes.io/config.mirror" in fate.sent["metadata"].get("annotations", {})


def about(found: list[Fate]) -> str:
    return f"GPUSHARE_SEED={SEED}: {len(found)}, the first: {[(fate.sent, fate.answer) for fate in found[:1]]!r:.3000}"


def test_no_expression_fails_and_none_uses_its_budget_up() -> None:
    wrong = [fate for fate in fates() if fate.answer.failed or ERROR.search(fate.answer.denied)]
    assert not wrong, about(wrong)


def test_each_rejection_is_in_words_of_ours() -> None:
    wrong = [fate for fate in fates() if fate.answer.denied and not DENIED.search(fate.answer.denied)]
    assert not wrong, about(wrong)


def test_there_are_many_of_each_fate() -> None:
    """Otherwise the pods are not what they shall be."""
    translated = sum(bool(fate.answer.made and not fate.answer.denied) for fate in fates())
    rejected = sum(bool(fate.answer.denied) for fate in fates())
    alone = sum(not fate.answer.made and not fate.answer.denied for fate in fates())
    print(f"translated {translated}, rejected {rejected}, left alone {alone}")
    assert min(translated, rejected, alone) > NUMBER / 50


def test_a_pod_that_passes_asks_for_no_memory_by_a_limit() -> None:
    """kubelet has no such resource; a limit that nobody counts would be a pod that waits for ever, or has a GPU that nobody gave it."""
    left = [fate for fate in fates() if not fate.answer.denied and asks(fate.answer.made or fate.sent, MEMORY, CORE)]
    left = [fate for fate in left if not mirror(fate)]
    assert not left, about(left)


def test_what_is_translated_has_one_claim_in_each_container_that_asked() -> None:
    wrong = []
    for fate in fates():
        made = fate.answer.made
        if fate.answer.denied or made is None or not asks(fate.sent, MEMORY):
            continue
        named = {one["name"] for one in made["spec"].get("resourceClaims", ()) if one.get("resourceClaimTemplateName") == TEMPLATE}
        before = {one["name"] for one in fate.sent["spec"].get("resourceClaims", ())}
        units = {name: amount for name, amount in _units(fate.sent).items() if amount}
        using = {one["name"]: {each["name"] for each in (one.get("resources") or {}).get("claims", ())} for one in containers(made)}
        new = named - before or {name for name in named if all(name in using[container] for container in units)}
        if len(new) != 1 or any(not new & using[name] for name in units) or _asked(next(iter(new))) != _most(fate.sent):
            wrong.append(fate)
    assert not wrong, about(wrong)


def _units(pod: Json) -> dict[str, int]:
    """Container to units; only whole ones pass."""
    found = {}
    for one in containers(pod):
        text = ((one.get("resources") or {}).get("limits") or {}).get(MEMORY, "0")
        match = re.fullmatch(r"([0-9]+)(?:\.0+)?(k|Ki|e3)?", text)
        found[one["name"]] = int(match[1]) * {"": 1, "k": 1000, "e3": 1000, "Ki": 1024}[match[2] or ""] if match else 0
    return found


def _most(pod: Json) -> int:
    """As Kubernetes counts containers, init containers and sidecars: an own loop, not the expressions'."""
    units, running, peak = _units(pod), 0, 0
    for one in pod["spec"].get("initContainers", ()):
        if one.get("restartPolicy") == "Always":
            running += units[one["name"]]
        else:
            peak = max(peak, running + units[one["name"]])
    return max(peak, running + sum(units[one["name"]] for one in pod["spec"]["containers"]))


def _asked(name: str) -> int:
    match = re.match(r"gpushare-m([0-9]+)(?:-x([0-9]+))?(?:--|$)", name)
    return int(match[1]) * int(match[2] or 1) if match else -1


def test_the_same_pod_again_is_changed_no_more() -> None:
    """As who applies a manifest twice, or a webhook of others that makes the API server ask again."""
    made = [fate.answer.made for fate in fates() if fate.answer.made and not fate.answer.denied][:1000]
    answers = ask([Request(TENANT, "pods", pod) for pod in made], policies_by_claims())
    wrong = [Fate(pod, answer) for pod, answer in zip(made, answers, strict=True) if answer.made or answer.denied or answer.failed]
    assert not wrong, about(wrong)


def _gpu_pod(limits: Json | None, scheduler: str, finalizers: tuple[str, ...] = ()) -> Json:
    container = {"name": "c", "image": "x", **({"resources": {"limits": limits, "requests": limits}} if limits else {})}
    metadata = {"name": "p", "namespace": "default", "finalizers": list(finalizers)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"schedulerName": scheduler, "containers": [container]}}


@pytest.mark.parametrize("scheduler", ["gpushare-scheduler", "default-scheduler"])
@pytest.mark.parametrize("limits", [{MEMORY: "4"}, {GPUS: "1"}])
def test_a_pod_from_before_this_back_end_stays_as_it_is(limits: Json, scheduler: str) -> None:
    """The API server rejects each change of these fields, so the controller of Jobs could not take its finalizer away."""
    before = _gpu_pod(limits, scheduler, ("batch.kubernetes.io/job-tracking",))
    (answer,) = ask([Request(TENANT, "pods", _gpu_pod(limits, scheduler), before)], policies_by_claims())
    assert (answer.made, answer.denied, answer.failed) == (None, "", "")


@pytest.mark.parametrize("limits", [{MEMORY: "4"}, {GPUS: "1"}])
def test_a_manifest_that_is_applied_again_changes_nothing(limits: Json) -> None:
    sent = _gpu_pod(limits, "gpushare-scheduler")
    (first,) = ask([Request(TENANT, "pods", sent)], policies_by_claims())
    assert first.made is not None
    (again,) = ask([Request(TENANT, "pods", sent, first.made)], policies_by_claims())
    assert (again.made, again.denied, again.failed) == (first.made, "", "")


def _slice(node: str, pool: str, driver: str = DRIVER) -> Json:
    spec = {"driver": driver, "nodeName": node, "pool": {"name": pool, "generation": 9, "resourceSliceCount": 1}, "devices": []}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}


@pytest.mark.parametrize(
    ("who", "made", "before", "words"),
    [
        (POD_PLUGIN, _slice("gpu1", "gpu1"), None, ""),
        (POD_PLUGIN, _slice("gpu1", "gpu1"), _slice("gpu1", "gpu1"), ""),
        (POD_PLUGIN, None, _slice("gpu1", "gpu1"), ""),
        (POD_PLUGIN, _slice("gpu1", "gpu2"), None, "pool of their own node"),
        (POD_PLUGIN, _slice("gpu1", "gpu2"), _slice("gpu1", "gpu1"), "pool of their own node"),
        (POD_PLUGIN, None, _slice("gpu1", "gpu2"), ""),
        (POD_PLUGIN, _slice("gpu2", "gpu2"), None, "of its own node"),
        (POD_PLUGIN, None, _slice("gpu2", "gpu2"), "of its own node"),
        (POD_PLUGIN, _slice("gpu1", "gpu1", "gpu.example.com"), None, f"only the ResourceSlices of {DRIVER}"),
        (UNBOUND, _slice("gpu1", "gpu1"), None, "of its own node"),
        (KUBELET, _slice("gpu1", "gpu2"), None, "pool of their own node"),
        (KUBELET, _slice("gpu1", "gpu1"), None, ""),
        (KUBELET, None, _slice("gpu1", "gpu2"), ""),
        (KUBELET, _slice("gpu1", "gpu2", "gpu.example.com"), None, ""),
    ],
)
def test_who_may_write_which_slices(who: Who, made: Json | None, before: Json | None, words: str) -> None:
    (answer,) = ask([Request(who, "resourceslices", made, before, group="resource.k8s.io")], every_policy_by_claims())
    assert answer.failed == ""
    assert words in answer.denied if words else answer.denied == ""


def claims() -> list[tuple[str, Json]]:
    """(name in the pod, the claim as Kubernetes' controller makes it of the template) of each pod that passed."""
    names = sorted(
        {
            one["name"]
            for fate in fates()
            if not fate.answer.denied and not mirror(fate)
            for one in (fate.answer.made or fate.sent)["spec"].get("resourceClaims", ())
            if one.get("resourceClaimTemplateName") == TEMPLATE
        }
    )
    spec: Any = template("default")["spec"]["spec"]
    return [
        (
            name,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {
                    "name": "p-x",
                    "namespace": "default",
                    "annotations": {"resource.kubernetes.io/pod-claim-name": name},
                    "ownerReferences": _of("p"),
                },
                "spec": spec,
            },
        )
        for name in names
    ]


def test_each_claim_of_a_pod_that_passed_asks_for_what_its_name_says() -> None:
    made = claims()
    assert len(made) > 20
    requests = [Request(TENANT, "resourceclaims", claim, group="resource.k8s.io") for _, claim in made]
    wrong = []
    for (name, claim), answer in zip(made, ask(requests, policies_by_claims()), strict=True):
        if answer.failed or answer.denied or answer.made is None:
            wrong.append(Fate({"name": name, "spec": claim["spec"]}, answer))
            continue
        (request,) = answer.made["spec"]["devices"]["requests"]
        exactly = request["exactly"]
        memory = exactly.get("capacity", {}).get("requests", {}).get("memory", "")
        gib = int(memory[:-2]) * {"Gi": 1, "Ti": 1024, "Pi": 1024**2}[memory[-2:]]
        # Without rules kube-scheduler has none to evaluate.
        selectors = [selector["cel"]["expression"] for selector in exactly.get("selectors", ())]
        if _asked(name) != gib * exactly["count"] or bool(selectors) != ("--" in name) or "false" in selectors:
            wrong.append(Fate({"name": name}, answer))
    assert not wrong, about(wrong)


@pytest.mark.parametrize("containers_", [1, 64])
def test_the_largest_pod_costs_in_proportion_to_its_size(containers_: int) -> None:
    """Of those whose lists are walked. CPU time of the policies that judge, beside that of reading the object."""
    limits = {"limits": {MEMORY: "16"}, "requests": {MEMORY: "16"}, "claims": [{"name": f"c{place}"} for place in range(19)]}
    variables = [{"name": f"E{place}", "value": "x"} for place in range(250)]
    each = [{"name": f"c{place}", "image": "x", "resources": limits, "env": variables} for place in range(containers_)]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": each}}
    (one,) = ask([replace(Request(TENANT, "pods", pod), measured=4)], policies_by_claims())
    print(f"{containers_} containers: {one.seconds * 1000:.1f} ms, reading {one.reading * 1000:.1f} ms")
    assert not one.failed
    assert not ERROR.search(one.denied), one.denied


def test_a_quota_or_a_limit_range_of_memory_is_rejected_and_one_of_devices_is_not() -> None:
    """Admission has made claims of the limits, and the API server counts devices of claims, never their memory."""
    of_class = f"{TEMPLATE}.deviceclass.resource.k8s.io"
    uncounted = (MEMORY, f"requests.{MEMORY}", f"limits.{MEMORY}", f"{of_class}/memory")
    hard = [*({name: "8"} for name in uncounted), {f"requests.{GPUS}": "2", f"{of_class}/devices": "4", "pods": "9"}, {}]
    limits = [{"type": "Container", kind: {MEMORY: "1"}} for kind in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")]
    made: list[tuple[str, Json]] = [("ResourceQuota", {"hard": each}) for each in hard]
    made += [("LimitRange", {"limits": [each]}) for each in (*limits, {"type": "Container", "max": {"cpu": "1"}})]
    about = {"apiVersion": "v1", "metadata": {"name": "x", "namespace": "default"}}
    requests = [Request(TENANT, f"{kind.lower()}s", {**about, "kind": kind, "spec": spec}) for kind, spec in made]
    answers = ask(requests, policies_by_claims())
    assert [answer.failed for answer in answers] == [""] * len(made)
    words = {"ResourceQuota": f"{MEMORY}: a ResourceQuota counts no GPU memory", "LimitRange": f"{MEMORY}: with such a LimitRange"}
    passes = {len(uncounted), len(uncounted) + 1, len(made) - 1}
    expected = ["" if place in passes else words[kind] for place, (kind, _) in enumerate(made)]
    for each, answer, says in zip(made, answers, expected, strict=True):
        assert says in answer.denied, (each, answer.denied)
        assert bool(says) == bool(answer.denied), (each, answer.denied)


RESOURCES = "resource.k8s.io"
PROTECTION = "resource.kubernetes.io/delete-protection"


def _claim(*users: str, kind: str = "pods", driver: str = DRIVER, allocated: bool = True, asks: str = "x", **metadata: Any) -> Json:
    """users: UIDs for which it is reserved. asks: for a class."""
    request = {"name": "gpu", "exactly": {"deviceClassName": asks, "allocationMode": "ExactCount", "count": 1}}
    result = {"request": "gpu", "driver": driver, "pool": "gpu1", "device": "gpu-1"}
    status = {"allocation": {"devices": {"results": [result]}}} if allocated else {}
    return {
        "apiVersion": f"{RESOURCES}/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", **metadata},
        "spec": {"devices": {"requests": [request]}},
        "status": {**status, "reservedFor": [{"resource": kind, "name": uid, "uid": uid} for uid in users]},
    }


def _of(*uids: str, kind: str = "Pod") -> list[Json]:
    return [{"apiVersion": "v1", "kind": kind, "name": uid, "uid": uid} for uid in uids]


def _judged(where: str, who: Who, cases: Sequence[tuple[Json | None, Json, str]]) -> None:
    """cases: (the object before, the object, words of the rejection, "" for none)."""
    requests = [Request(who, where, now, before, group=RESOURCES) for before, now, _ in cases]
    for (before, now, words), answer in zip(cases, ask(requests, every_policy_by_claims()), strict=True):
        assert not answer.failed
        assert words in answer.denied, (before, now, answer.denied)
        assert bool(answer.denied) == bool(words), (before, now, answer.denied)


def test_a_claim_with_gpus_is_reserved_for_the_pod_that_owns_it_and_claims_of_other_drivers_for_any() -> None:
    """kube-scheduler reserves a claim before it binds a pod, and Kubernetes' controller ends that once the API server has no such pod.

    kubelet may have the former pod still.
    """
    no = "write resourceClaimTemplateName"
    owned: Json = {"ownerReferences": _of("a")}
    two: Json = {"ownerReferences": _of("a", "b")}
    fresh = _claim(allocated=False, **owned)
    cases = [
        (fresh, _claim("a", **owned), ""),
        (_claim("a", **owned), _claim(**owned), ""),
        (_claim(**owned), _claim("a", **owned), ""),
        (_claim("a", **owned), fresh, ""),
        (_claim("a", **owned), _claim("b", **owned), no),
        (_claim(**owned), _claim("b", **owned), no),
        (fresh, _claim("b", **owned), no),
        (_claim("a", **owned), _claim("a", "b", **owned), no),
        (_claim("a", **two), _claim("b", **two), no),
        (fresh, _claim("a", kind="podgroups", **owned), no),
        (_claim(allocated=False), _claim("a"), no),
        (_claim(allocated=False), _claim("a", ownerReferences=_of("a", kind="ConfigMap")), no),
        # From before these policies.
        (_claim("a"), _claim(), ""),
        (_claim("a", "b"), _claim("b"), ""),
        (_claim("a", "b"), _claim("c"), no),
        (_claim("a", driver="gpu.example.org"), _claim("a", "b", driver="gpu.example.org"), ""),
        (_claim("a", driver="gpu.example.org"), _claim("b", driver="gpu.example.org"), ""),
    ]
    _judged("resourceclaims/status", SCHEDULER, cases)


def test_a_pod_owns_its_claim_from_the_creation_on() -> None:
    """Otherwise a tenant hands a claim on. The garbage collector takes owners away."""
    no, later = "write resourceClaimTemplateName", "from the claim's creation on"
    ours: Json = {"asks": TEMPLATE, "allocated": False}
    other: Json = {"driver": "gpu.example.org"}
    none, one, two = _claim(), _claim(ownerReferences=_of("a")), _claim(ownerReferences=_of("a", "b"))
    crowd = _claim(ownerReferences=_of(*(f"u{place}" for place in range(10000))))
    cases: list[tuple[Json | None, Json, str]] = [
        (None, _claim(**ours), no),
        (None, _claim(**ours, ownerReferences=_of("a", "b")), no),
        (None, _claim(**ours, ownerReferences=_of("a", kind="PodGroup")), no),
        (None, _claim(**ours, ownerReferences=_of("a")), ""),
        (None, _claim(allocated=False), ""),
        (none, one, later),
        (one, two, later),
        (one, _claim(ownerReferences=_of("b")), later),
        (_claim(allocated=False), _claim(allocated=False, ownerReferences=_of("b")), later),
        (two, one, ""),
        (one, none, ""),
        (one, _claim(ownerReferences=_of("a"), labels={"a": "b"}), ""),
        (_claim(**other), _claim(**other, ownerReferences=_of("x", kind="RayCluster")), ""),
        (crowd, crowd, ""),
        (crowd, none, ""),
        (none, crowd, later),
    ]
    _judged("resourceclaims", TENANT, cases)


def test_a_claim_that_has_gpus_keeps_its_finalizer() -> None:
    """A tenant who takes it off deletes the claim while the pod runs: kube-scheduler and quotas count nothing then."""
    no = "keeps the finalizer"
    kept: Json = {"finalizers": ["a/b", PROTECTION]}
    cases = [
        (_claim(**kept), _claim(finalizers=["a/b"]), no),
        (_claim(**kept), _claim(), no),
        (_claim(**kept), _claim(finalizers=[PROTECTION]), ""),
        (_claim(), _claim(labels={"a": "b"}), ""),
        (_claim(**kept, allocated=False), _claim(allocated=False), ""),
        (_claim(**kept, driver="gpu.example.org"), _claim(driver="gpu.example.org"), ""),
    ]
    _judged("resourceclaims", TENANT, cases)
    # Who may deallocate a claim: kube-scheduler takes a claim for whole GPUs back so, where it cannot bind the pod.
    _judged("resourceclaims", CONTROLLER, [(before, now, "") for before, now, _ in cases])


def _tolerating(*tolerations: Json, kind: str = "ResourceClaimTemplate", asks: str = TEMPLATE, first: bool = False) -> Json:
    one = {"deviceClassName": asks, "tolerations": list(tolerations)}
    request = {
        "name": "gpu",
        **({"firstAvailable": [{"name": "a", "deviceClassName": "x"}, {"name": "b", **one}]} if first else {"exactly": one}),
    }
    spec: Json = {"devices": {"requests": [request]}}
    about = {"name": "t", "namespace": "default", "ownerReferences": _of("a")}
    return {"apiVersion": f"{RESOURCES}/v1", "kind": kind, "metadata": about, "spec": spec if kind == "ResourceClaim" else {"spec": spec}}


def test_a_cordon_holds_against_the_tolerations_of_tenants() -> None:
    no = "takes no pods"
    taint, every = {"key": f"{DRIVER}/unusable", "operator": "Exists"}, {"operator": "Exists"}
    value = {"key": taint["key"], "operator": "Equal", "value": "cordoned", "effect": "NoSchedule"}
    other = {"key": "example.org/hot", "operator": "Exists"}
    of_claim = _tolerating(other, every, kind="ResourceClaim")
    many = [_tolerating(*[other] * 16, first=True) for _ in range(2)]
    many[0]["spec"]["spec"]["devices"]["requests"] *= 32
    cases: list[tuple[Json | None, Json, str]] = [
        (None, of_claim, no),
        *((None, _tolerating(other, one, first=first), no) for one in (taint, value, every) for first in (False, True)),
        (None, _tolerating(taint, asks="x"), no),
        # It may be meant for devices of others.
        (None, _tolerating(every, asks="x"), ""),
        (None, _tolerating(other), ""),
        *((None, one, "") for one in many),
    ]
    both = {"resourceclaims": [cases[0]], "resourceclaimtemplates": cases[1:]}
    for where, some in both.items():
        _judged(where, TENANT, some)
        _judged(where, ADMINISTRATOR, [(before, now, "") for before, now, _ in some])
        _judged(where, CONTROLLER, some)
    _judged("resourceclaims", Who("system:serviceaccount:kube-system:resource-claim-controller"), [(None, of_claim, "")])


def test_a_pod_has_no_more_claims_than_the_device_plugin_prepares() -> None:
    found = []
    for number in (64, 65):
        made = _gpu_pod(None, "default-scheduler")
        made["spec"]["resourceClaims"] = [
            {"name": f"gpushare-m{place + 1}", "resourceClaimTemplateName": TEMPLATE} for place in range(number)
        ]
        found.append(made)
    few, many = ask([Request(TENANT, "pods", made) for made in found], policies_by_claims())
    assert (few.denied, few.failed, many.failed) == ("", "", "")
    assert "at most 64 claims of the template" in many.denied


def test_a_large_claim_costs_in_proportion_to_its_size() -> None:
    """Of the lists that the API server does not bound, and of the longest that it takes."""
    crowd = _of(*(f"u{place}" for place in range(10000)))
    names = [f"a/{place}" for place in range(10000)]
    owned = _claim(ownerReferences=crowd, finalizers=[*names, PROTECTION])
    full = _tolerating(*[{"key": "example.org/hot", "operator": "Exists"}] * 16, first=True)
    request = full["spec"]["spec"]["devices"]["requests"][0]
    request["firstAvailable"] = [request["firstAvailable"][1]] * 8
    full["spec"]["spec"]["devices"]["requests"] = [request] * 32
    asked = {
        "a tenant takes owners and finalizers away": Request(
            TENANT, "resourceclaims", _claim(ownerReferences=crowd[1:]), owned, 4, RESOURCES
        ),
        "a tenant tolerates much": Request(TENANT, "resourceclaimtemplates", full, None, 4, RESOURCES),
    }
    for (what, _), one in zip(asked.items(), ask(list(asked.values()), every_policy_by_claims()), strict=True):
        print(f"{what}: {one.seconds * 1000:.1f} ms, reading {one.reading * 1000:.1f} ms")
        assert not one.failed
        assert not ERROR.search(one.denied), one.denied
        assert one.seconds <= 4 * one.reading, (what, one)
