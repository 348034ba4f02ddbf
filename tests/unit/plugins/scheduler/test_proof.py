# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""When a changed kube-scheduler counts as proven, and what is said while it does not."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import ANNOTATION_SCHEDULER_CONFIG
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import proof

HASH = "a" * 64
START = "2026-11-21T10:00:00Z"
RUNNING = {"state": {"running": {"startedAt": START}}, "ready": True, "restartCount": 0}


def pod(status: dict[str, Any] | None, annotation: str | None = HASH) -> dict[str, Any]:
    annotations = {"kubernetes.io/config.mirror": "x", **({ANNOTATION_SCHEDULER_CONFIG: annotation} if annotation else {})}
    return {
        "metadata": {"name": "kube-scheduler-cp1", "annotations": annotations},
        "spec": {"containers": [{"command": ["kube-scheduler", "--leader-elect=true"]}]},
        "status": {"containerStatuses": [status] if status else []},
    }


def lease(holder: str, renewed: str, acquired: str) -> dict[str, Any]:
    return {"spec": {"holderIdentity": holder, "renewTime": renewed, "acquireTime": acquired}}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "has not created its pod"),
        (pod(RUNNING, None), "the former manifest"),
        (pod(RUNNING, "b" * 64), "the former manifest"),
        (pod(None), "has not been created"),
        (pod({"state": {"waiting": {"reason": "ContainerCreating"}}, "restartCount": 0}), "ContainerCreating"),
    ],
)
def test_what_is_missing_until_it_runs(found: dict[str, Any] | None, words: str) -> None:
    assert words in (proof.not_running(found, HASH) or "")


def test_ready_is_more_than_running() -> None:
    assert proof.not_running(pod({**RUNNING, "ready": False}), HASH) is None
    assert "not ready" in (proof.not_ready(pod({**RUNNING, "ready": False})) or "")
    assert proof.not_ready(pod(RUNNING)) is None


def test_it_runs() -> None:
    assert proof.not_running(pod(RUNNING), HASH) is None
    assert proof.not_running(pod(RUNNING, None), None) is None


def test_a_container_that_ends_again_and_again_is_not_waited_for() -> None:
    status = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}, "restartCount": 2}
    with pytest.raises(proof.HopelessError, match="CrashLoopBackOff back-off 20s"):
        proof.not_running(pod(status), HASH)


def test_one_that_kubelet_has_stopped_is_waited_for() -> None:
    terminated = {"exitCode": 0, "reason": "Completed"}
    assert "Completed" in (proof.not_running(pod({"state": {"terminated": terminated}, "restartCount": 5}), HASH) or "")
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    paused = {"state": waiting, "lastState": {"terminated": terminated}, "restartCount": 5}
    assert "CrashLoopBackOff" in (proof.not_running(pod(paused), HASH) or "")
    with pytest.raises(proof.HopelessError):
        proof.not_running(pod({"state": {"terminated": {**terminated, "exitCode": 1}}, "restartCount": 5}), HASH)


def test_only_the_mirror_of_a_static_pod_counts() -> None:
    other = {"metadata": {}, "spec": {"containers": [{"command": ["kube-scheduler", "--version"]}]}}
    assert proof.find_static_pod([other]) is None
    assert proof.find_static_pod([other, pod(RUNNING)]) == pod(RUNNING)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (None, None),
        (lease("", "2026-11-21T10:00:09.5Z", "2026-11-21T10:00:02.5Z"), None),
        (lease("cp1_new", "2026-11-21T10:00:09.000000Z", "2026-11-21T10:00:02.123456Z"), proof.Holder(True, "cp1_new")),
        # The process before ours: it has not renewed since ours started, or had the lease before.
        (lease("cp1_old", "2026-11-21T09:59:59.9Z", "2026-11-21T08:00:00Z"), None),
        (lease("cp1_old", "2026-11-21T10:00:00.4Z", "2026-11-21T08:00:00Z"), None),
        (lease("cp2_x", "2026-11-21T10:00:09.5Z", "2026-11-21T08:00:00Z"), proof.Holder(False, "cp2_x")),
        (lease("cp10_x", "2026-11-21T10:00:09.5Z", "2026-11-21T08:00:00Z"), proof.Holder(False, "cp10_x")),
    ],
)
def test_who_holds_the_lease(found: dict[str, Any] | None, wanted: proof.Holder | None) -> None:
    assert proof.holder(found, "cp1", proof.started_at(pod(RUNNING))) == wanted


@pytest.mark.parametrize(
    ("health", "missing"),
    [
        ({"filter_calls": 8}, False),
        ({"filter_calls": 7}, True),
        ({"filter_calls": 2}, False),  # the extender was restarted, and asked since
        ({"filter_calls": 0}, True),
        ({}, True),
        (None, True),
    ],
)
def test_whether_the_extender_was_called(health: dict[str, Any] | None, missing: bool) -> None:
    assert (proof.not_called(health, "cannot be read", 7) is not None) == missing


def test_the_probe_names_our_resource_but_takes_none_of_it() -> None:
    probe = proof.probe_pod("node-1", "default-scheduler", "image", "aliyun.com/gpu-mem")
    assert probe["spec"]["containers"][0]["resources"] == {"limits": {"aliyun.com/gpu-mem": "0"}}
