# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Objects brought to what they shall be: which calls of kubectl are made, and that none writes where nothing differs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl, KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import (
    ForeignError,
    WantedObjects,
    changes,
    check_ours,
    converge,
    diff_of,
)

from unit.fakes.plugins.cluster.api_server import NOT_FOUND, ApiServer, Json, thing


def test_a_second_run_writes_nothing() -> None:
    api = ApiServer()
    wanted = WantedObjects(apply=[thing("a", data={"k": "v"})])
    assert api.converge(wanted)["objects"] == ["ConfigMap a"]
    assert api.converge(wanted) == {"changed": False, "objects": [], "unserved": [], "missing": [], "diff": []}
    assert api.writes == ["apply"]


def test_check_mode_tells_it_and_writes_nothing() -> None:
    api = ApiServer()
    result = api.converge(WantedObjects(apply=[thing("a")]), check_mode=True)
    assert result["objects"] == ["ConfigMap a"]
    assert (result["changed"], api.writes) == (True, [])


def test_an_object_that_may_not_be_made_is_left_out_and_named() -> None:
    api = ApiServer(thing("gpu1", "Node"))
    wanted = [thing("gpu1", "Node", data={"k": "v"}), thing("gpu2", "Node")]
    result = api.converge(WantedObjects(apply=wanted, create=False))
    assert (result["objects"], result["missing"]) == (["Node gpu1"], ["Node gpu2"])
    assert list(api.objects) == [("Node", "gpu1")]
    assert api.converge(WantedObjects(apply=wanted[1:], create=False))["missing"] == ["Node gpu2"]
    assert api.writes == ["apply"]


def test_what_an_older_release_has_made_goes() -> None:
    old, other = (thing(f"gpushare-{name}", "ClusterRoleBinding") for name in ("old", "other"))
    api = ApiServer(old, other)
    gone = [old, thing("gpushare-never-there", "ClusterRoleBinding")]
    assert api.converge(WantedObjects(gone=gone), check_mode=True)["objects"] == ["ClusterRoleBinding gpushare-old"]
    assert api.writes == []
    result = api.converge(WantedObjects(gone=gone))
    assert (result["changed"], result["objects"]) == (True, ["ClusterRoleBinding gpushare-old"])
    assert list(api.objects) == [("ClusterRoleBinding", "gpushare-other")]
    assert api.converge(WantedObjects(gone=gone))["changed"] is False


def test_what_a_step_before_would_have_removed_is_new_in_check_mode() -> None:
    same, old = thing("gpushare-a", "ClusterRole"), thing("gpushare-old", "ClusterRole")
    wanted = WantedObjects(apply=[same], gone=[old], removed=["ClusterRole gpushare-a", "ClusterRole gpushare-old"])
    found = ApiServer(same, old).converge(wanted, check_mode=True)
    assert (found["objects"], found["diff"][0]["before"]) == (["ClusterRole gpushare-a"], "")


@pytest.mark.parametrize("item", [thing("cluster-admin", "ClusterRoleBinding"), thing("gpushare-x", "Pod")])
def test_nothing_of_others_goes(item: Json) -> None:
    with pytest.raises(ForeignError):
        check_ours(WantedObjects(gone=[item]))


POLICY = thing("p", "ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1")


@pytest.mark.parametrize("served", [{"v1": ["ConfigMap"]}, {"v1": ["ConfigMap"], "admissionregistration.k8s.io/v1": ["MutatingWebhook"]}])
def test_kinds_that_the_server_does_not_have_are_named_and_left_out(served: dict[str, list[str]]) -> None:
    api = ApiServer(served=served)
    result = api.converge(WantedObjects(apply=[POLICY, thing("a")], skip_unserved=True))
    assert (result["objects"], result["unserved"]) == (["ConfigMap a"], ["ValidatingAdmissionPolicy p"])


def test_kinds_that_the_server_has_are_not_left_out() -> None:
    api = ApiServer(served={"admissionregistration.k8s.io/v1": ["ValidatingAdmissionPolicy"]})
    result = api.converge(WantedObjects(apply=[POLICY], skip_unserved=True))
    assert (result["objects"], result["unserved"]) == (["ValidatingAdmissionPolicy p"], [])


def test_an_api_server_that_does_not_answer_is_no_reason_to_leave_anything_out() -> None:
    def run(argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        return 1, "", "Unable to connect to the server: connection refused"

    with pytest.raises(KubectlError, match="connection refused"):
        converge(Kubectl(run, "kubectl", "admin.conf"), WantedObjects(apply=[POLICY], skip_unserved=True), False)


class Recorder(ApiServer):
    """Also remembers every command."""

    def __init__(self, *objects: Json, served: dict[str, list[str]] | None = None) -> None:
        super().__init__(*objects, served=served)
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        self.asked.append(argv[4:])
        return super().__call__(argv, data)


LOOK = ["get", "--ignore-not-found", "-f", "-", "-o", "json"]


def apply(manager: str) -> list[str]:
    return ["apply", "--server-side", "--force-conflicts", f"--field-manager={manager}", "-f", "-"]


def test_each_call_of_kubectl_as_the_module_promises_it() -> None:
    api = Recorder(thing("old"))
    result = api.converge(WantedObjects(apply=[thing("new")], field_manager="m"))
    assert api.asked == [LOOK, [*apply("m"), "--dry-run=server", "-o", "json"], apply("m")]
    assert (result["changed"], result["objects"], result["unserved"]) == (True, ["ConfigMap new"], [])
    api.asked.clear()
    assert api.converge(WantedObjects()) == {"changed": False, "objects": [], "unserved": [], "missing": [], "diff": []}
    assert api.asked == []
    api.converge(WantedObjects(apply=[thing("new")]))
    assert api.asked == [LOOK, [*apply("gpushare.kubernetes"), "--dry-run=server", "-o", "json"]]
    api.asked.clear()
    assert api.converge(WantedObjects(apply=[thing("none")], create=False))["missing"] == ["ConfigMap none"]
    assert api.asked == [LOOK]


def test_an_object_that_may_not_be_made_and_is_there_is_changed() -> None:
    api = ApiServer(thing("gpu1", "Node"))
    wanted = WantedObjects(apply=[{**thing("gpu1", "Node"), "metadata": {"name": "gpu1", "labels": {"x": "1"}}}], create=False)
    assert api.converge(wanted)["objects"] == ["Node gpu1"]
    assert api.writes == ["apply"]


def test_what_others_write_to_a_node_between_our_reading_and_the_dry_run_is_no_change_of_ours() -> None:
    before: Json = {"kind": "Node", "metadata": {"name": "gpu1", "labels": {"a": "1"}}, "spec": {"unschedulable": True}}
    after: Json = {"kind": "Node", "metadata": {"name": "gpu1", "labels": {"a": "1"}, "annotations": {"gpushare/held": "{}"}}, "spec": {}}
    assert changes([before], [after]) == []
    labelled = {**after, "metadata": {**after["metadata"], "labels": {"a": "2"}}}
    assert [change.title for change in changes([before], [labelled])] == ["Node gpu1"]
    # Of other objects all counts.
    one, other = ({"kind": "ConfigMap", "metadata": {"name": "c", "annotations": {"a": value}}} for value in ("1", "2"))
    assert [change.title for change in changes([one], [other])] == ["ConfigMap c"]


def test_the_sizes_that_the_extender_writes_between_the_two_are_no_change_of_ours() -> None:
    for name, titles in (("gpushare-gpus", []), ("gpushare-info", ["ConfigMap kube-public/gpushare-info"])):
        before: Json = {"kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-public"}}
        assert [change.title for change in changes([before], [{**before, "data": {"sizes": "{}"}}])] == titles


@pytest.mark.parametrize("words", [NOT_FOUND, "Error from server (NotFound): x", "error: the server could not find the requested resource"])
def test_each_way_to_say_that_a_group_is_not_there(words: str) -> None:
    def run(argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        return 1, "", words

    result = converge(Kubectl(run, "kubectl", "admin.conf"), WantedObjects(apply=[POLICY], skip_unserved=True), False)
    assert (result.changed, result.objects, result.unserved) == (False, [], ["ValidatingAdmissionPolicy p"])


def inside(name: str, namespace: str, **content: Any) -> Json:
    return thing(name, metadata={"name": name, "namespace": namespace, **content.pop("metadata", {})}, **content)


def test_the_difference_is_shown_without_secrets_and_without_what_the_server_writes() -> None:
    there = inside("a", "x", metadata={"uid": "u", "resourceVersion": "7"}, status={"s": 1})
    api = ApiServer(there, thing("s", "Secret", data={"password": "old"}))
    assert not api.converge(WantedObjects(apply=[inside("a", "x")]))["changed"]
    labelled, secret = inside("a", "x", metadata={"labels": {"l": "1"}}), thing("s", "Secret", data={"password": "new"})
    changed, hidden, new = api.converge(WantedObjects(apply=[labelled, secret, thing("n", data={"k": "v"})]))["diff"]
    start = '{\n  "apiVersion": "v1",\n  "kind": "ConfigMap",\n  "metadata": {\n    '
    place = '"name": "a",\n    "namespace": "x"\n  }\n}\n'
    headers = {"before_header": "ConfigMap x/a", "after_header": "ConfigMap x/a"}
    assert changed == {**headers, "before": start + place, "after": f'{start}"labels": {{\n      "l": "1"\n    }},\n    {place}'}
    assert [json.loads(hidden[side]) for side in ("before", "after")] == [thing("s", "Secret")] * 2
    assert (new["before"], json.loads(new["after"])) == ("", thing("n", data={"k": "v"}))


@pytest.mark.parametrize(("changes", "before", "after"), [({}, "Secret s\n", ""), ({"gone": False}, "", "Secret s\n")])
def test_objects_that_go_or_come_are_shown_by_their_titles(changes: dict[str, bool], before: str, after: str) -> None:
    assert diff_of(["Secret s"], **changes) == [{"before_header": "Secret s", "after_header": "Secret s", "before": before, "after": after}]


class Strict(ApiServer):
    """Its dry run makes no namespace, and rejects what is in one that is not there."""

    def __call__(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        if "--dry-run=server" in argv:
            known = {"", "default", *(name for kind, name in self.objects if kind == "Namespace")}
            if {item["metadata"].get("namespace", "") for item in json.loads(data or "")["items"]} - known:
                return 1, "", 'Error from server (NotFound): namespaces "new" not found'
        return super().__call__(argv, data)


def test_in_a_namespace_that_is_only_to_be_made_everything_is_new() -> None:
    there = [thing("old", "Namespace"), inside("default", "default"), inside("new", "old")]
    api = Strict(*there)
    assert not api.converge(WantedObjects(apply=there))["changed"]
    found = api.converge(WantedObjects(apply=[*there, thing("new", "Namespace"), inside("a", "new")]), check_mode=True)
    assert found["objects"] == ["Namespace new", "ConfigMap new/a"]
