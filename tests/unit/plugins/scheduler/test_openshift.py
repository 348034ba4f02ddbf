# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The policy of OpenShift's scheduler with our extender in it, and both objects as they were. tests/generations has the real programs."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.manifest import SchedulerError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.openshift import Call, SchedulerObjects, absent, present, read
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.scheduler_config import ExtenderEntry

from unit.fakes.plugins.scheduler.manifests import RESOURCES
from unit.fakes.plugins.takeover.others import merged

Json = dict[str, Any]
EXTENDER = ExtenderEntry("http://127.0.0.1:32766/gpushare-scheduler", 1, "1s", RESOURCES)
SCHEDULER: Json = {"metadata": {"name": "cluster", "resourceVersion": "7"}, "spec": {"mastersSchedulable": False, "policy": {"name": ""}}}
NOTE = "gpushare.kubernetes/scheduler-policy"
#: As an administrator of OpenShift 4.9 has it, after its documentation.
POLICY = """{
   "kind" : "Policy",
   "apiVersion" : "v1",
   "predicates" : [{"name" : "MaxGCEPDVolumeCount"}, {"name" : "GeneralPredicates"}],
   "priorities" : [{"name" : "LeastRequestedPriority", "weight" : 1}],
   "extenders" : [{"urlPrefix": "http://10.0.0.9/x", "filterVerb": "filter", "weight": 1}]
}"""


def config_map(text: str = POLICY, **more: str) -> Json:
    metadata = {"name": "scheduler-policy", "namespace": "openshift-config", "resourceVersion": "3", "annotations": {}}
    return {"metadata": metadata, "data": {"policy.cfg": text, **more}}


def done(found: SchedulerObjects, steps: list[Call]) -> SchedulerObjects:
    """As the API server makes it."""
    for step in steps:
        if step.args[0] == "create":
            found = replace(found, config_map=json.loads(step.document))
        elif "delete" in step.args:
            found = replace(found, config_map=None)
        else:
            patch = json.loads(step.args[-1].removeprefix("--patch="))
            if "configmap" in step.args:
                found = replace(found, config_map=merged(found.config_map, patch))
            else:
                found = replace(found, scheduler=merged(found.scheduler, patch))
    return found


STATES = {
    "nothing": SchedulerObjects("v1.22.8+f34b40c", SCHEDULER, None),
    "no policy at all": SchedulerObjects("v1.21.1", {"metadata": {"resourceVersion": "7"}, "spec": {}}, None),
    "a policy that is read": SchedulerObjects(
        "v1.22.8", merged(SCHEDULER, {"spec": {"policy": {"name": "scheduler-policy"}}}), config_map()
    ),
    "a policy that nothing names": SchedulerObjects("v1.20.0", SCHEDULER, config_map()),
    "another key beside it": SchedulerObjects("v1.22.8", SCHEDULER, {**config_map(), "data": {"other": "x"}}),
    "one line": SchedulerObjects("v1.22.8", SCHEDULER, config_map(json.dumps({"kind": "Policy", "apiVersion": "v1"}))),
}


@pytest.mark.parametrize("name", STATES)
def test_the_extender_is_added_once_and_both_objects_are_restored_byte_for_byte(name: str) -> None:
    before = copy.deepcopy(STATES[name])
    now = done(before, present(before, EXTENDER))
    assert now.named == now.name == "scheduler-policy"
    policy, had = json.loads(now.text or ""), json.loads(before.text or "{}")
    assert [one["urlPrefix"] for one in policy["extenders"]][-1] == EXTENDER.url_prefix
    for part in ("predicates", "priorities"):
        assert policy.get(part) == had.get(part)
    assert policy["extenders"][:-1] == had.get("extenders", [])
    assert present(now, EXTENDER) == []
    # Another weight keeps what was there in the first place.
    now = done(now, present(now, replace(EXTENDER, weight=5)))
    steps, notes = absent(now, replace(EXTENDER, weight=5))
    after = done(now, steps)
    assert notes == []
    assert (after.scheduler, after.config_map) == (before.scheduler, before.config_map)
    assert absent(after, EXTENDER) == ([], [])


def test_the_scheduler_never_names_a_policy_that_is_not_there() -> None:
    before = STATES["nothing"]
    first = present(before, EXTENDER)
    assert [step.title for step in first] == ["ConfigMap openshift-config/scheduler-policy", "Scheduler cluster"]
    steps, _ = absent(done(before, first), EXTENDER)
    assert [step.title for step in steps] == ["Scheduler cluster", "ConfigMap openshift-config/scheduler-policy"]


def test_what_others_have_changed_since_stays() -> None:
    before = STATES["a policy that is read"]
    now = done(before, present(before, EXTENDER))
    changed = json.loads(now.text or "")
    changed["hardPodAffinitySymmetricWeight"] = 5
    now = replace(now, config_map=merged(now.config_map, {"data": {"policy.cfg": json.dumps(changed)}}))
    steps, notes = absent(now, EXTENDER)
    after = json.loads(done(now, steps).text or "")
    assert (after["hardPodAffinitySymmetricWeight"], len(after["extenders"])) == (5, 1)
    assert "changed since" in notes[0]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (replace(STATES["nothing"], version="v1.23.5+3afdacb"), "found Kubernetes v1.23.5.*expected 1.22 or older"),
        (replace(STATES["nothing"], version="nonsense"), "found Kubernetes nonsense"),
        (replace(STATES["nothing"], config_map=config_map("kind: Policy")), "policy.cfg is not JSON"),
        (replace(STATES["nothing"], config_map=config_map("[" * 70_000)), "policy"),
        (replace(STATES["nothing"], config_map=config_map('{"kind": "Other"}')), "must have apiVersion v1 and kind Policy"),
        (
            replace(STATES["nothing"], config_map=config_map(POLICY.replace('"weight": 1', '"weight": 1, "bindVerb": "b"'))),
            "allows one extender that binds",
        ),
        (
            replace(STATES["nothing"], config_map=merged(config_map(), {"metadata": {"annotations": {NOTE: "{}"}}})),
            f"annotation {NOTE} of ConfigMap openshift-config/scheduler-policy",
        ),
    ],
)
def test_what_cannot_be_extended_is_refused(found: SchedulerObjects, words: str) -> None:
    with pytest.raises(SchedulerError, match=words):
        present(found, EXTENDER)


@pytest.mark.parametrize(("scheduler", "words"), [(None, "expected OpenShift"), ({"spec": {"policy": {"name": "../x"}}}, "Correct it")])
def test_what_is_no_openshift_is_refused(scheduler: Json | None, words: str) -> None:
    def run(argv: list[str], data: str | None) -> tuple[int, str, str]:
        if argv[-1] == "/version":
            return 0, '{"gitVersion": "v1.22.8"}', ""
        assert "schedulers" in argv[-1]
        return (0, json.dumps(scheduler), "") if scheduler else (1, "", "Error from server (NotFound)")

    with pytest.raises(SchedulerError, match=words):
        read(Kubectl(run, "kubectl", "/k"))
