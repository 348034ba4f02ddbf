# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The trial of a node before an installation: what is told of one that cannot run the device plugin, and that nothing stays."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.config_document import document
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.pods import Image
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.trial import DevicePluginNeeds, Trial, trial_pod

from unit.fakes.plugins.in_cluster.kubectl import Answer, Fake, Json

SPACE = "gpushare-system"
IMAGE = "localhost/gpushare:1"
NEEDS = DevicePluginNeeds(Image(IMAGE, SPACE, "nvidia"), "/data/kubelet")
PODS = f"get pods --namespace {SPACE} --selector gpushare.kubernetes/probe=trial"
NO_SPACE: dict[str, Answer] = {f"get --raw /api/v1/namespaces/{SPACE}": lambda: KubectlError("NotFound")}


def tried(phase: str, waiting: str = "", node: str = "gpu1") -> list[Json]:
    states = [{"state": {"waiting": {"reason": waiting, "message": ""}}}] if waiting else []
    metadata = {"name": f"gpushare-trial-{node}", "uid": f"u-{node}"}
    return [{"metadata": metadata, "status": {"phase": phase, "containerStatuses": states}}]


def trial(fake: Fake) -> Trial:
    seconds = itertools.count()
    return Trial(fake.kubectl, NEEDS, clock=lambda: float(next(seconds)), sleep=lambda _: None)


def warning(words: str, uid: str = "u-gpu1") -> list[Json]:
    return [{"involvedObject": {"name": "gpushare-trial-gpu1", "uid": uid}, "reason": "Failed", "message": words}]


def test_a_good_node_and_nothing_stays() -> None:
    fake = Fake({PODS: tried("Succeeded"), **NO_SPACE})
    assert trial(fake).run(["gpu1"], 60) == (["gpu1"], [])
    assert [" ".join(words.split()[:2]) for words in fake.writes()] == [
        "create -f",
        "delete pods",
        "create -f",
        "delete pods",
        "delete namespace",
    ]


def test_a_runtime_class_of_its_own_is_tried_by_one_that_nobody_knows() -> None:
    """Ours has its policy only after the trial."""
    fake = Fake({PODS: tried("Succeeded"), **NO_SPACE})
    needs = DevicePluginNeeds(Image(IMAGE, SPACE, "gpushare-nvidia"), "/var/lib/kubelet")
    assert Trial(fake.kubectl, needs, clock=lambda: 0.0, sleep=lambda _: None).run(["gpu1"], 60) == (["gpu1"], [])
    _, made, pods = (json.loads(data) for words, data in fake.inputs)
    assert re.fullmatch("gpushare-trial-[0-9a-f]{32}", made["metadata"]["name"])
    assert (made["kind"], made["handler"]) == ("RuntimeClass", "nvidia")
    assert pods["items"][0]["spec"]["runtimeClassName"] == made["metadata"]["name"]
    classes = [words for words in fake.writes() if words.startswith("delete runtimeclasses")]
    # Also one that a run has left that was killed.
    assert classes == ["delete runtimeclasses.node.k8s.io --selector gpushare.kubernetes/probe=trial --ignore-not-found"] * 2


def test_a_namespace_that_was_there_stays() -> None:
    fake = Fake({PODS: tried("Succeeded"), f"get --raw /api/v1/namespaces/{SPACE}": {"kind": "Namespace"}})
    trial(fake).run(["gpu1"], 60)
    assert not any("namespace gpushare" in words and words.startswith("delete namespace") for words in fake.writes())


@pytest.mark.parametrize(
    ("phase", "waiting", "event", "words"),
    [
        (
            "Pending",
            "",
            'MountVolume.SetUp failed for volume "device-plugins" : hostPath type check failed: x is not a socket file',
            "no socket /var/lib/kubelet/device-plugins/kubelet.sock (",
        ),
        (
            "Pending",
            "",
            'MountVolume.SetUp failed for volume "pod-resources" : hostPath type check failed: x is not a socket file',
            "no socket /data/kubelet/pod-resources/kubelet.sock (",
        ),
        ("Failed", "", "exec /opt/gpushare/bin/gpushare-probe: exec format error", "is of another architecture"),
        ("Pending", "ErrImageNeverPull", "x", f"no image {IMAGE}"),
        ("Pending", "", 'no runtime for "nvidia" is configured', "no runtime for the RuntimeClass nvidia"),
        ("Failed", "", "something", "; Failed: something); expected"),
    ],
)
def test_what_is_wrong_with_a_node(phase: str, waiting: str, event: str, words: str) -> None:
    fake = Fake({PODS: tried(phase, waiting), "get events": warning(event), **NO_SPACE})
    nodes, problems = trial(fake).run(["gpu1"], 600)
    assert nodes == ["gpu1"]
    (problem,) = problems
    assert problem.startswith("node gpu1: found ")
    assert words in problem
    assert "; expected a node that can run the device plugin; " in problem
    # Long before the time is over, and nothing stays.
    assert len(fake.asked) < 60
    assert [words.split()[1] for words in fake.writes()][-2:] == ["pods", "namespace"]


def test_a_node_that_is_slow_has_its_time_whatever_warnings_there_are_about_others() -> None:
    """An image of gigabytes takes minutes: neither another node's trouble nor an old Event of the namespace ends the trial of this one."""
    now = [0.0]

    def pods() -> list[Json]:
        slow = tried("Succeeded", node="gpu2") if now[0] > 100 else tried("Pending", "ContainerCreating", "gpu2")
        return tried("Pending", "ErrImagePull") + slow

    events = [*warning("x"), *warning("old", uid="u-of-a-former-run")]
    fake = Fake({PODS: pods, "get events": events, **NO_SPACE})
    clock, sleep = lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds)
    nodes, (problem,) = Trial(fake.kubectl, NEEDS, clock=clock, sleep=sleep).run(["gpu1", "gpu2"], 600)
    assert nodes == ["gpu1", "gpu2"]
    assert "node gpu1" in problem
    assert "old" not in problem
    assert 100 < now[0] < 105


@pytest.mark.parametrize(("image", "wanted"), [(IMAGE, []), ("localhost/gpushare:0", ["gpu1"])])
def test_nodes_that_serve_with_the_same_are_not_tried(image: str, wanted: list[str]) -> None:
    container = {"image": image, "args": ["--config=/x"]}
    spec = {"nodeName": "gpu1", "runtimeClassName": "nvidia", "containers": [container]}
    metadata = {"name": "p", "annotations": {"gpushare.kubernetes/settings": document("X", {"kubeletRoot": "/data/kubelet"})}}
    plugin: list[Json] = [{"metadata": metadata, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]
    fake = Fake({PODS: tried("Succeeded"), f"get pods --namespace {SPACE} --selector app": plugin, **NO_SPACE})
    assert trial(fake).run(["gpu1"], 60) == (wanted, [])
    assert bool(fake.writes()) == bool(wanted)


def test_the_pod_needs_no_power() -> None:
    made = trial_pod("gpu1", NEEDS)["spec"]
    (container,) = made["containers"]
    assert made["runtimeClassName"] == "nvidia"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert [volume["hostPath"] for volume in made["volumes"]] == [
        {"path": "/var/lib/kubelet/device-plugins/kubelet.sock", "type": "Socket"},
        {"path": "/data/kubelet/pod-resources/kubelet.sock", "type": "Socket"},
    ]
