# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The admission of pods and their Bindings, between a user and the scheduler: webhooks and policies of others, and whether ours act.

A webhook that fails closed and whose Service has no ready endpoint stops what it is asked about. Plain JSON, judged on the controller.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set

from .._cluster.kubectl import Kubectl, KubectlError
from .._cluster.names import ANNOTATION_INDEX, NAMESPACE, PREFIX
from .._scheduler.proof import RESTRICTED

_API = "/apis/admissionregistration.k8s.io"
_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
#: The versions of MutatingAdmissionPolicy: 1.36, 1.34 and 1.32.
_VERSIONS = ("v1", "v1beta1", "v1alpha1")
_BINDINGS = ("pods/binding", "bindings", "pods/*", "*/*")
_PODS = ("pods", "pods/*", "*", "*/*")
#: A user who may create pods and is none of ours. ServiceAccounts are not exempt from the policy, whatever they may do.
_STRANGER = f"system:serviceaccount:{NAMESPACE}:default"
_POLICY = "gpushare-annotations"
_MOST, _SHOWN = 50, 120


def admission(kubectl: Kubectl, wanted: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """dead: webhooks of others that fail closed without a ready endpoint: {"object", "webhook", "service", "bindings"}. changing: policies
    and webhooks of others that change Bindings. unguarded: what the API server let a stranger do, "" if our policy acts, or is not wanted.
    """
    dead, changing = [], []
    answering: Dict[str, bool] = {}
    for kind in _KINDS:
        for item in kubectl.pages(f"{_API}/v1/{kind}", optional=True):
            for webhook in item.get("webhooks") or []:
                resources = _resources(webhook.get("rules") or [])
                binds, pods = bool(resources & {*_BINDINGS}), bool(resources & {*_PODS})
                owner, name = f"{kind[:-1]} {item['metadata']['name']}"[:_SHOWN], str(webhook.get("name"))[:_SHOWN]
                if binds and kind == _KINDS[0]:
                    changing.append(f"{owner} ({name})")
                service = (webhook.get("clientConfig") or {}).get("service")
                if not (binds or pods) or not service or webhook.get("failurePolicy", "Fail") != "Fail":
                    continue
                whose = f"{service.get('namespace')}/{service.get('name')}"
                # One program mostly has many webhooks.
                if whose not in answering:
                    answering[whose] = _answers(kubectl, service)
                if not answering[whose]:
                    dead.append({"object": owner, "webhook": name, "service": whose, "bindings": binds})
    changing += _policies(kubectl)
    return {"dead": dead[:_MOST], "changing": changing[:_MOST], "unguarded": _unguarded(kubectl, wanted)}


def _resources(rules: Iterable[Mapping[str, Any]]) -> Set[str]:
    """The core resources of the rules that concern a creation."""
    found: Set[str] = set()
    for rule in rules:
        if {"", "*"} & {*rule.get("apiGroups", ())} and {"CREATE", "*"} & {*rule.get("operations", ())}:
            found.update(str(resource) for resource in rule.get("resources") or ())
    return found


def _answers(kubectl: Kubectl, service: Mapping[str, Any]) -> bool:
    """Whether the Service has a ready endpoint. One whose state is not known counts as ready."""
    namespace, name = str(service.get("namespace")), str(service.get("name"))
    slices = kubectl.pages(
        f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
        optional=True,
        labelSelector=f"kubernetes.io/service-name={name}",
    )
    endpoints = [endpoint for item in slices for endpoint in item.get("endpoints") or []]
    return any((endpoint.get("conditions") or {}).get("ready") is not False for endpoint in endpoints)


def _policies(kubectl: Kubectl) -> List[str]:
    """MutatingAdmissionPolicies of others that match Bindings."""
    for version in _VERSIONS:
        items = kubectl.pages(f"{_API}/{version}/mutatingadmissionpolicies", optional=True)
        found = []
        for item in items:
            name = str(item["metadata"]["name"])
            rules = ((item.get("spec") or {}).get("matchConstraints") or {}).get("resourceRules") or []
            if _resources(rules) & {*_BINDINGS} and not name.startswith(PREFIX):
                found.append(f"MutatingAdmissionPolicy {name}"[:_SHOWN])
        if items:
            return found
    return []


def _unguarded(kubectl: Kubectl, wanted: Sequence[Mapping[str, Any]]) -> str:
    """The server's dry run of a pod that names its GPU itself, as an account that may create pods and is none of ours."""
    if not any(item["kind"] == "ValidatingAdmissionPolicy" and item["metadata"]["name"] == _POLICY for item in wanted):
        return ""
    rights = {**RESTRICTED, "seccompProfile": {"type": "RuntimeDefault"}}
    # Only the extender may write this annotation.
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gpushare-verify-guard", "namespace": NAMESPACE, "annotations": {ANNOTATION_INDEX: "0"}},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "none", "image": "none.invalid/none", "securityContext": rights}],
        },
    }
    try:
        kubectl.text(["create", "--dry-run=server", f"--as={_STRANGER}", "--as-group=system:masters", "-f", "-"], json.dumps(pod))
    except KubectlError:
        # By our policy, or by one of others, or because this administrator may not impersonate: that says nothing against our policy.
        return ""
    return f"a pod of {_STRANGER} with the annotation {ANNOTATION_INDEX}, accepted by the server's dry run"
