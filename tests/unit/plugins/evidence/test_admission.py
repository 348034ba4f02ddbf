# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What verify reads of the admission of pods, and of the Leases of schedulers: against a kubectl with lists by path."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import admission, cluster
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of

from unit.fakes.plugins.cluster.api_server import NOT_FOUND

Json = dict[str, Any]
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
POLICIES = "/apis/admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/tools/endpointslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
NAME = "kubernetes.io/metadata.name"
NOT_OURS: Json = {"matchExpressions": [{"key": NAME, "operator": "NotIn", "values": ["kube-system"]}]}
GUARD: Json = {"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "gpushare-annotations"}}


def answered(*arguments: Any) -> Json:
    """The evidence as the module answers it."""
    return dict(answer_of(admission.admission(*arguments)))


class Lists:
    """kubectl with a list behind each path, and why the server rejects what is created, "" for nothing."""

    def __init__(self, lists: dict[str, list[Json]], rejection: str = "denied") -> None:
        self.lists = lists
        self.rejection = rejection
        self.created: list[tuple[list[str], Json]] = []
        self.tried: list[list[str]] = []

    def __call__(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        words = argv[4:]
        if words[0] == "patch" or (words[1] == "--raw" and words[0] == "create"):
            self.tried.append(words)
            return int(bool(self.rejection)), "", self.rejection
        if words[0] == "create":
            self.created.append((words, json.loads(data or "")))
            return int(bool(self.rejection)), "", self.rejection
        path = urlsplit(words[2]).path
        if path == "/api/v1/namespaces/kube-system":
            return 0, json.dumps({"metadata": {"labels": {NAME: "kube-system"}}}), ""
        return (0, json.dumps({"items": self.lists[path]}), "") if path in self.lists else (1, "", NOT_FOUND)

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self, "kubectl", "admin.conf")


def webhook(resources: list[str], *, operation: str = "CREATE", group: str = "", **more: Any) -> Json:
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": [operation], "resources": resources}
    hook = {"name": "check", "clientConfig": {"service": {"namespace": "tools", "name": "hook"}}, "rules": [rule], **more}
    return {"metadata": {"name": "theirs"}, "webhooks": [hook]}


def endpoint(ready: bool | None) -> Json:
    return {"endpoints": [{"conditions": {} if ready is None else {"ready": ready}}]}


@pytest.mark.parametrize(
    ("hook", "slices", "writes"),
    [
        (webhook(["pods/binding"]), [], ["Bindings"]),
        (webhook(["bindings"]), [], ["Bindings"]),
        (webhook(["pods/*"], operation="*"), [endpoint(False)], ["Bindings", "states of pods"]),
        (webhook(["*/status"], operation="UPDATE"), [], ["states of nodes", "states of pods"]),
        (webhook(["*"], operation="UPDATE", group="*"), [], ["Leases", "nodes"]),
        (webhook(["*/*"], operation="CREATE"), [], ["Bindings", "tokens", "pods"]),
        (webhook(["*/*"], operation="CREATE", namespaceSelector=NOT_OURS), [], ["Bindings", "pods"]),
        (webhook(["serviceaccounts/token"], namespaceSelector=NOT_OURS), [], None),
        (webhook(["serviceaccounts/token"], namespaceSelector={"matchLabels": {NAME: "kube-system"}}), [], ["tokens"]),
        (webhook(["serviceaccounts/token"], namespaceSelector={"matchExpressions": [{"key": NAME, "operator": "Exists"}]}), [], ["tokens"]),
        (webhook(["pods"]), [], ["pods"]),
        (webhook(["pods/binding"]), [endpoint(True)], None),
        (webhook(["pods/binding"]), [endpoint(None)], None),
        (webhook(["pods/binding"]), [endpoint(False), endpoint(True)], None),
        (webhook(["pods/binding"], failurePolicy="Ignore"), [], None),
        (webhook(["pods/binding"], clientConfig={"url": "https://elsewhere"}), [], None),
        (webhook(["pods"], operation="DELETE"), [], None),
        (webhook(["deployments"], group="apps"), [], None),
        (webhook(["*"], group="apps"), [], None),
        ({"metadata": {"name": "empty"}}, [], None),
    ],
)
def test_a_webhook_that_fails_closed_without_an_endpoint(hook: Json, slices: list[Json], writes: list[str] | None) -> None:
    found = answered(Lists({WEBHOOKS: [hook], SLICES: slices}).kubectl, [])
    expected = {"object": "validatingwebhookconfiguration theirs", "webhook": "check", "service": "tools/hook", "writes": writes}
    assert (found["dead"], found["failing"]) == ([] if writes is None else [expected], [])


FAILED = 'Error from server (InternalError): Internal error occurred: failed calling webhook "{}": failed to call webhook: Post "https://10.0.0.9"'


def test_a_webhook_that_fails_at_its_url_is_found_by_dry_runs_of_what_it_is_asked_about() -> None:
    hooks = {WEBHOOKS: [webhook(["nodes/status", "nodes"], operation="UPDATE", clientConfig={"url": "https://10.0.0.9"})]}
    api = Lists(hooks, FAILED.format("check"))
    (found,) = answered(api.kubectl, [], ["gpu1", "gpu2"])["failing"]
    assert (found["object"].split()[1], [write.split()[-1] for write in found["writes"]]) == ("theirs", ["nodes", "nodes"])
    assert 'webhook "check"' in found["says"]
    assert all("--dry-run=server" in words and "gpu1" in words for words in api.tried), "no other write is tried"
    # One of another object, and another error, say nothing of it.
    for words in (FAILED.format("other"), "nodes is forbidden"):
        assert not answered(Lists(hooks, words).kubectl, [], ["gpu1"])["failing"]
    binding = Lists({WEBHOOKS: [webhook(["pods/binding"], clientConfig={"url": "https://10.0.0.9"})]}, FAILED.format("check"))
    assert answered(binding.kubectl, [])["failing"]
    assert ["dryRun=All" in words[2] for words in binding.tried] == [True], "nothing is bound"


def test_who_may_change_bindings() -> None:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}]
    policies = [
        {"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": found}}}
        for name, found in (("theirs", rules), ("gpushare-name", rules), ("pods", [{**rules[0], "resources": ["pods"]}]))
    ]
    hook = webhook(["bindings"], failurePolicy="Ignore")
    found = answered(Lists({MUTATING: [hook], POLICIES: policies, WEBHOOKS: [hook]}).kubectl, [])
    assert found["changing"] == ["mutatingwebhookconfiguration theirs (check)", "MutatingAdmissionPolicy theirs"]
    assert found["shaping"] == ["MutatingAdmissionPolicy pods"]


def test_a_policy_that_does_not_act_is_found_by_a_dry_run() -> None:
    idle = Lists({}, rejection="")
    assert answered(idle.kubectl, [])["unguarded"] == "", "nothing is wanted"
    assert idle.created == []
    assert "ALIYUN_COM_GPU_MEM_IDX" in answered(idle.kubectl, [GUARD])["unguarded"]
    ((words, pod),) = idle.created
    assert "--dry-run=server" in words, "nothing is left behind"
    assert "--as=system:serviceaccount:kube-system:default" in words
    assert pod["metadata"]["annotations"] == {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    # Whoever rejects it.
    assert answered(Lists({}, "users is forbidden: cannot impersonate").kubectl, [GUARD])["unguarded"] == ""


def lease(name: str, renewed: str | None, holder: str = "cp1_1") -> Json:
    return {"metadata": {"name": name}, "spec": {"holderIdentity": holder, "renewTime": renewed}}


def test_a_lease_that_moves_is_alive_whatever_the_clock_says() -> None:
    api = Lists({LEASES: [lease("kube-scheduler", "1970-01-01T00:00:00.000000Z"), lease("other", None)]})
    waited: list[float] = []

    def renewed(seconds: float) -> None:
        waited.append(seconds)
        api.lists[LEASES] = [lease("kube-scheduler", "1970-01-01T00:00:02.000000Z")]

    assert cluster.leases(api.kubectl, lambda: 1000.0, renewed) == {"kube-scheduler": {"holder": "cp1_1", "alive": True}}
    assert len(waited) == 1
    assert cluster.leases(api.kubectl, lambda: 1000.0, waited.append)["kube-scheduler"]["alive"] is False
    assert cluster.leases(api.kubectl, lambda: 30.0, waited.append)["kube-scheduler"]["alive"] is True
    assert len(waited) == 2, "a fresh one is read once"


def test_a_lease_without_a_holder_and_none_at_all() -> None:
    api = Lists({LEASES: [lease("kube-scheduler", None, "")]})
    assert cluster.leases(api.kubectl, lambda: 1000.0, lambda _: None) == {"kube-scheduler": {"holder": "", "alive": False}}
    assert cluster.leases(Lists({}).kubectl, lambda: 1000.0, lambda _: None) == {}
