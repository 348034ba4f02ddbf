# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The admission of pods and their Bindings, between a user and the scheduler: webhooks and policies of others, and whether ours act.

A webhook that fails closed and whose Service has no ready endpoint stops what it is asked about. One that has an endpoint, or a URL, may
fail all the same: the server's dry run of such a write tells. Plain JSON, judged on the controller.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from .._cluster.kubectl import Kubectl, KubectlError
from .._cluster.names import ANNOTATION_INDEX, NAMESPACE, PREFIX
from .._scheduler.proof import RESTRICTED

_API = "/apis/admissionregistration.k8s.io"
_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
#: The versions of MutatingAdmissionPolicy: 1.36, 1.34 and 1.32.
_VERSIONS = ("v1", "v1beta1", "v1alpha1")
_CORE, _CREATE, _UPDATE = "", "CREATE", "UPDATE"
#: The writes between a user and the GPU: (name, API group, resource, operation). A patch is an update.
WRITES = (
    ("Bindings", _CORE, "pods/binding", _CREATE),
    ("Leases", "coordination.k8s.io", "leases", _UPDATE),
    ("states of nodes", _CORE, "nodes/status", _UPDATE),
    ("nodes", _CORE, "nodes", _UPDATE),
    ("states of pods", _CORE, "pods/status", _UPDATE),
    ("tokens", _CORE, "serviceaccounts/token", _CREATE),
    ("pods", _CORE, "pods", _CREATE),
)
_BINDINGS = WRITES[:1] + (("Bindings", _CORE, "bindings", _CREATE),)
#: Of these, those of the scheduler and of our daemons are in kube-system.
_THERE = ("Leases", "tokens")
#: A user who may create pods and is none of ours. ServiceAccounts are not exempt from the policy, whatever they may do.
_STRANGER = f"system:serviceaccount:{NAMESPACE}:default"
_POLICY = "gpushare-annotations"
_MOST, _SHOWN, _LONGEST_WORDS = 50, 120, 300
#: The API server's words about a webhook that fails closed (k8s.io/apiserver 0.37.2, pkg/admission/plugin/webhook/errors).
_FAILED = re.compile(r"failed calling webhook \\?\"([^\"\\]{1,253})\\?\": .+", re.DOTALL)


@dataclass(frozen=True)
class DeadWebhook:
    """A webhook that fails closed without a ready endpoint. writes: the names in WRITES that it is asked about."""

    object: str
    webhook: str
    service: str
    writes: List[str]


@dataclass(frozen=True)
class FailingWebhook:
    """A webhook that fails closed, and did in a dry run of these writes. says: the API server's words."""

    object: str
    webhook: str
    says: str
    writes: List[str]


@dataclass(frozen=True)
class AdmissionEvidence:
    """dead, failing: webhooks of others. changing, shaping: policies and webhooks of others that may change Bindings, and pods.

    unguarded: what the API server let a stranger do, "" if our policy acts, or is not wanted.
    """

    dead: List[DeadWebhook]
    failing: List[FailingWebhook]
    changing: List[str]
    shaping: List[str]
    unguarded: str


def admission(kubectl: Kubectl, wanted: Sequence[Mapping[str, Any]], nodes: Sequence[str] = ()) -> AdmissionEvidence:
    """The state of the admission. nodes: the first one is good for a dry run."""
    dead: List[DeadWebhook] = []
    changing: List[str] = []
    shaping: List[str] = []
    closed: Dict[str, Tuple[str, List[str]]] = {}
    answering: Dict[str, bool] = {}
    labels = _Labels(kubectl)
    for kind in _KINDS:
        for item in kubectl.pages(f"{_API}/v1/{kind}", optional=True):
            for webhook in item.get("webhooks") or []:
                rules = webhook.get("rules") or []
                owner, name = f"{kind[:-1]} {item['metadata']['name']}"[:_SHOWN], str(webhook.get("name"))[:_SHOWN]
                if kind == _KINDS[0] and _asked(rules, _BINDINGS):
                    changing.append(f"{owner} ({name})")
                if kind == _KINDS[0] and _asked(rules, WRITES[-1:]):
                    shaping.append(f"{owner} ({name})")
                service = (webhook.get("clientConfig") or {}).get("service")
                writes = _asked(rules, (*_BINDINGS, *WRITES))
                if not writes or webhook.get("failurePolicy", "Fail") != "Fail":
                    continue
                whose = f"{service.get('namespace')}/{service.get('name')}" if service else ""
                # One program mostly has many webhooks.
                if service and whose not in answering:
                    answering[whose] = _answers(kubectl, service)
                if not service or answering[whose]:
                    closed[name] = (owner, writes)
                else:
                    there = labels.match(webhook.get("namespaceSelector") or {})
                    writes = [write for write in writes if there or write not in _THERE]
                    dead += [DeadWebhook(owner, name, whose, writes)] if writes else []
    of_bindings, of_pods = _policies(kubectl)
    return AdmissionEvidence(
        dead=dead[:_MOST],
        failing=_failing(kubectl, closed, nodes),
        changing=[*changing, *of_bindings][:_MOST],
        shaping=[*shaping, *of_pods][:_MOST],
        unguarded=_unguarded(kubectl, wanted),
    )


def _failing(kubectl: Kubectl, closed: Mapping[str, Tuple[str, List[str]]], nodes: Sequence[str]) -> List[FailingWebhook]:
    """closed: webhook to its object and its writes. Each write that one of them is asked about is tried once, where a dry run can: it
    changes nothing, and a webhook that has side effects is not called."""
    asked = {write for _owner, writes in closed.values() for write in writes}
    found: Dict[str, FailingWebhook] = {}
    for write, arguments, data in _dry_runs(nodes):
        if write not in asked:
            continue
        try:
            kubectl.text(arguments, data)
        except KubectlError as error:
            # All other errors say nothing of webhooks: the pod of this Binding is not there.
            said = _FAILED.search(str(error))
            if said is not None and said.group(1)[:_SHOWN] in closed:
                name = said.group(1)[:_SHOWN]
                words = "".join(letter if letter.isprintable() else "?" for letter in " ".join(said.group().split()))[:_LONGEST_WORDS]
                found.setdefault(name, FailingWebhook(closed[name][0], name, words, [])).writes.append(write)
    return list(found.values())


def _dry_runs(nodes: Sequence[str]) -> List[Tuple[str, List[str], Optional[str]]]:
    """(name in WRITES, kubectl's arguments, its standard input) of writes that change nothing, even if they were real."""
    nothing = ["--type=merge", "--patch={}", "--dry-run=server"]
    name = "gpushare-verify-guard"
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": name}}
    path = f"/api/v1/namespaces/default/pods/{name}/binding?dryRun=All"
    found: List[Tuple[str, List[str], Optional[str]]] = [
        ("Bindings", ["create", "--raw", path, "-f", "-"], json.dumps(binding)),
        ("Leases", ["patch", "lease", "kube-scheduler", f"--namespace={NAMESPACE}", *nothing], None),
    ]
    for node in nodes[:1]:
        found.append(("states of nodes", ["patch", "node", node, "--subresource=status", *nothing], None))
        found.append(("nodes", ["patch", "node", node, *nothing], None))
    return found


def _asked(rules: Iterable[Mapping[str, Any]], writes: Sequence[Tuple[str, str, str, str]]) -> List[str]:
    """The names of the writes that one of the rules is about."""
    found: Dict[str, None] = {}
    for name, group, resource, operation in writes:
        for rule in rules:
            about = {group, "*"} & {*rule.get("apiGroups", ())} and {operation, "*"} & {*rule.get("operations", ())}
            if about and any(_covers(str(pattern), resource) for pattern in rule.get("resources") or ()):
                found[name] = None
    return [*found]


def _covers(pattern: str, resource: str) -> bool:
    """As the API server has it: `*` is every resource and no part of one, `*/*` both, and `pods/*` every part of pods."""
    if pattern == "*/*":
        return True
    kind, part, wanted = resource.partition("/")[0], resource.partition("/")[2], pattern.partition("/")
    return wanted[0] in (kind, "*") and bool(part) == bool(wanted[1]) and wanted[2] in (part, "*" if part else "")


class _Labels:
    """Whether a selector is for kube-system, whose labels are asked for once, and only where one needs them."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._known: Optional[Mapping[str, str]] = None

    def match(self, selector: Mapping[str, Any]) -> bool:
        if not selector:
            return True
        if self._known is None:
            found = self._kubectl.raw(f"/api/v1/namespaces/{NAMESPACE}") or {}
            self._known = (found.get("metadata") or {}).get("labels") or {}
        labels = self._known
        terms = [(key, "In", [value]) for key, value in (selector.get("matchLabels") or {}).items()]
        terms += [(term.get("key"), term.get("operator"), term.get("values") or []) for term in selector.get("matchExpressions") or []]
        return all(_holds(labels.get(key), operator, values) for key, operator, values in terms)


def _holds(value: Optional[str], operator: Any, values: Sequence[Any]) -> bool:
    """One term of a label selector."""
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) is bool(operator == "Exists")
    return (value in values) is bool(operator == "In")


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


def _policies(kubectl: Kubectl) -> Tuple[List[str], List[str]]:
    """MutatingAdmissionPolicies of others that match (Bindings, pods)."""
    of_bindings: List[str] = []
    of_pods: List[str] = []
    for version in _VERSIONS:
        items = kubectl.pages(f"{_API}/{version}/mutatingadmissionpolicies", optional=True)
        for item in items:
            name = str(item["metadata"]["name"])
            rules = ((item.get("spec") or {}).get("matchConstraints") or {}).get("resourceRules") or []
            for writes, found in ((_BINDINGS, of_bindings), (WRITES[-1:], of_pods)):
                if _asked(rules, writes) and not name.startswith(PREFIX):
                    found.append(f"MutatingAdmissionPolicy {name}"[:_SHOWN])
        if items:
            break
    return of_bindings, of_pods


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
