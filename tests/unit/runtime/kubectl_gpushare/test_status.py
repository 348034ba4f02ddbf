# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What `status` finds, each with what to do; and that it finds nothing where nothing is wrong."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.kube.client import KubeError
from gpushare_runtime.kubectl_gpushare.cluster import Cluster, has_no_configuration
from gpushare_runtime.kubectl_gpushare.commands import find_evidence, find_leases
from gpushare_runtime.kubectl_gpushare.events import PodEvent
from gpushare_runtime.kubectl_gpushare.status import LeaseState, SchedulerPod, StatusEvidence, judge, read_lease
from gpushare_runtime.kubectl_gpushare.views import Selection, nodes_view, pods_view
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.kube.fake_api import status
from unit.fakes.runtime.kubectl_gpushare import command
from unit.fakes.runtime.kubectl_gpushare.objects import held, node, pending, pod, read_all
from unit.fakes.runtime.pods import gpu
from unit.golden import Golden

NOW = 1767225600.0
SILENT = 'Post "https://127.0.0.1:32766/gpushare-scheduler/filter": dial tcp 127.0.0.1:32766: connect: connection refused'
FOREIGN = 'Post "http://127.0.0.1:9443/filter": dial tcp 127.0.0.1:9443: connect: connection refused'
WEBHOOK = (
    'the API server does not bind pod default/w to node gpu1: Internal error occurred: failed calling webhook "guard.example.com": '
    'failed to call webhook: Post "https://guard.infra.svc:443/?timeout=10s": connect: connection refused (500 InternalError)'
)
UNLED = (
    "lease kube-system/kube-scheduler is held by nobody, and this extender serves the scheduler of host cp1: expected it to ask only while "
    "it holds that lease. If this continues, it runs with leader election off"
)
ENTRY = "on each control plane, remove its entry from kube-scheduler's configuration, or start its program; verify names the file"
LEADS = LeaseState("cp1", NOW - 3, 15)


def ours(name: str, *, ready: bool = True, offered: str | None = "32", labelled: bool = True, gpus: Any = None) -> dict[str, Any]:
    raw = node(name, "10.0.0.1", gpus=gpus if gpus is not None else Inventory(GIB, (gpu(0, 16), gpu(1, 16))))
    raw["metadata"]["labels"] = {"gpushare.kubernetes/node": "true"} if labelled else {}
    raw["status"]["conditions"] = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    if offered is not None:
        raw["status"]["allocatable"] = {"aliyun.com/gpu-mem": offered}
    return raw


def found(cluster: Cluster, *leases: LeaseState, evidence: StatusEvidence | None = None) -> list[tuple[str, str, str]]:
    """(severity and check, where, found) of what is wrong."""
    cluster.now = lambda: NOW
    return [
        (f"{one.severity} {one.check}", one.where, one.found)
        for one in judge(cluster, evidence or StatusEvidence(leases or [LEADS]))
        if one.severity != "ok"
    ]


def told(cluster: Cluster, evidence: StatusEvidence | None = None) -> str:
    """A line for each row that is wrong, as a person reads it."""
    rows = judge(cluster, evidence or StatusEvidence([LEADS]))
    return "\n".join(f"{row.severity} {row.check} {row.where}: {row.found}; do: {row.cure}" for row in rows if row.severity != "ok")


def bare(name: str) -> dict[str, Any]:
    """A node without any annotation of ours."""
    raw = ours(name, offered=None)
    del raw["metadata"]["annotations"]
    return raw


ALONE = "; or it runs alone with leader election off, as no pod waits untried"


def test_nothing_is_wrong() -> None:
    full = [pod(f"{on}-{index}", on, gpu=index, mem=16) for on in ("gpu1", "gpu2") for index in (0, 1)]
    cluster = read_all([ours("gpu1"), ours("gpu2")], [*full, pending("w", "0/2", mem=16)])
    assert found(cluster) == []
    assert [(one.check, one.where, one.found) for one in judge(cluster, StatusEvidence([LEADS]))] == [
        ("scheduler", "cp1", "leads kube-scheduler, renewed 3 s ago"),
        ("extender", "", "no waiting pod reports an extender error"),
        ("nodes", "", "2 with a device plugin"),
        ("gpus", "", "4 of 4 take new pods"),
        ("pods", "", "none with GPUs hangs on its node for 300 s"),
        ("waiting", "", "1 pod waits, none although GPUs have room"),
    ]


@pytest.mark.parametrize(
    ("lease", "words"),
    [
        (
            LeaseState("cp1", NOW - 31, 15),
            ("warning scheduler", "", f"kube-scheduler has no leader; cp1 was the last one, 31 s ago: all new pods wait{ALONE}"),
        ),
        (LeaseState(), ("warning scheduler", "", f"kube-scheduler has no leader: all new pods wait{ALONE}")),
        (
            LeaseState(exists=False),
            ("warning scheduler", "", "kube-scheduler has no Lease: it runs without leader election, or has never run"),
        ),
        (LeaseState(problem="you may not get it"), ("warning scheduler", "", "the leader is not known: you may not get it")),
    ],
)
def test_who_leads(lease: LeaseState, words: tuple[str, str, str]) -> None:
    assert found(read_all([ours("gpu1")], []), lease) == [words]


@pytest.mark.parametrize(
    ("reported", "waited", "scheduler", "severity"),
    [
        ("", 61, "default-scheduler", "error"),
        ("", 59, "default-scheduler", "warning"),
        ("0/1 nodes", 61, "default-scheduler", "warning"),
        ("", 61, "gpushare-scheduler", "warning"),
        ("", 61, "of-others", "warning"),
    ],
)
def test_a_lease_that_is_not_renewed_is_an_error_where_a_pod_waits_untried(
    golden: Golden, reported: str, waited: int, scheduler: str, severity: str
) -> None:
    """kubeadm with --leader-elect=false and k0s' single controllers leave an old one behind."""
    raw = pending("p", reported, mem=2)
    raw["spec"]["schedulerName"] = scheduler
    raw["metadata"]["creationTimestamp"] = datetime.fromtimestamp(NOW - waited, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    rows = found(read_all([ours("gpu1")], [raw]), LeaseState("cp1", NOW - 31, 15))
    assert [row[0] for row in rows if row[0].endswith(" scheduler")] == [f"{severity} scheduler"]
    golden(rows[0][2])


@pytest.mark.parametrize(
    ("lease", "wrong"),
    [
        (None, []),
        (LeaseState("cp1_a", NOW - 3, 15, scheduler="kube-controller-manager"), []),
        (LeaseState(problem="you may not get it", scheduler="kube-controller-manager"), []),
        (LeaseState("cp1", NOW - 40, 15, scheduler="kube-controller-manager"), ["controllers"]),
        (LeaseState(scheduler="kube-controller-manager"), ["controllers"]),
    ],
)
def test_without_a_leader_of_the_controllers_nothing_makes_pods(golden: Golden, lease: LeaseState | None, wrong: list[str]) -> None:
    cluster = read_all([ours("gpu1")], [])
    evidence = StatusEvidence([LEADS], controllers=lease)
    assert [row[0] for row in found(cluster, evidence=evidence)] == [f"warning {check}" for check in wrong]
    golden(told(cluster, evidence))


OURS = LeaseState("gpushare-scheduler-7c", NOW - 40, 15, scheduler="gpushare-scheduler", namespace="gpus")


def test_where_the_daemons_are_pods_their_scheduler_counts_and_cures_are_kubectls(golden: Golden) -> None:
    untried = pending("untried", mem=2)
    untried["spec"]["schedulerName"] = "gpushare-scheduler"
    untried["metadata"]["creationTimestamp"] = datetime.fromtimestamp(NOW - 61, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster = read_all([ours("gpu1", offered="0")], [pending("silent", SILENT, mem=2), untried])
    cluster.now = lambda: NOW
    wrong = [one for one in judge(cluster, StatusEvidence([OURS, LEADS])) if one.severity == "error"]
    assert [(one.check, one.found.partition(":")[0]) for one in wrong] == [
        ("scheduler", "gpushare-scheduler has no leader; gpushare-scheduler-7c was the last one, 40 s ago"),
        ("extender", "kube-scheduler gets no answer for 1 pod"),
        ("nodes", "no device plugin"),
    ]
    golden(wrong[0].found)
    assert all("-n gpus -l app.kubernetes.io/part-of=gpushare" in one.cure for one in wrong)
    assert "systemctl" not in "".join(one.cure for one in wrong)


class Asked:
    """An API server with these answers: a JSON, or a status of failure, by namespace or resource, and name; others are 404."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    async def get(self, path: str) -> Any:
        parts = path.split("/")
        answer = self.answers.get("/".join([parts[-3] if parts[-2] == "leases" else parts[-2], parts[-1]]), 404)
        if isinstance(answer, int):
            raise KubeError(answer, "Reason", "words")
        return answer


def a_lease(name: str, namespace: str, holder: str = "cp1_7f-1", renewed: str = "2026-01-01T00:00:00.123456Z") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 20}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


NAMED = {"rules": [{"resources": ["leases"], "resourceNames": ["mine"], "verbs": ["get"]}]}
IN_GPUS = {"subjects": [{"kind": "ServiceAccount", "name": "gpushare-scheduler", "namespace": "gpus"}]}
KUBE, OWN, BINDING = "kube-system/kube-scheduler", "gpushare-system/gpushare-scheduler", "clusterrolebindings/gpushare-scheduler"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({KUBE: a_lease("kube-scheduler", "kube-system")}, [("kube-scheduler", "kube-system", "cp1", "")]),
        ({}, [("kube-scheduler", "kube-system", "", "")]),
        (
            {BINDING: IN_GPUS, "gpus/gpushare-scheduler": a_lease("gpushare-scheduler", "gpus"), OWN: a_lease("gpushare-scheduler", "x")},
            [("gpushare-scheduler", "gpus", "cp1", "")],
        ),
        ({"roles/gpushare-extender": NAMED, "kube-system/mine": a_lease("mine", "kube-system")}, [("mine", "kube-system", "cp1", "")]),
        ({BINDING: 403, KUBE: 403, OWN: 403}, [("kube-scheduler", "kube-system", "", "you may not get it")]),
        (
            {"roles/gpushare-extender": 403, BINDING: 403, KUBE: 403, OWN: a_lease("gpushare-scheduler", "gpushare-system")},
            [("gpushare-scheduler", "gpushare-system", "cp1", ""), ("kube-scheduler", "kube-system", "", "you may not get it")],
        ),
        # Of OpenShift, whose bootstrap leaves one behind.
        (
            {
                KUBE: a_lease("kube-scheduler", "kube-system", "", "2026-01-02T00:00:00Z"),
                "openshift-kube-scheduler/kube-scheduler": a_lease("kube-scheduler", "openshift-kube-scheduler"),
            },
            [("kube-scheduler", "openshift-kube-scheduler", "cp1", "")],
        ),
    ],
)
def test_the_leases_of_every_way_to_install(answers: dict[str, Any], expected: list[tuple[str, str, str, str]]) -> None:
    """Nobody is asked for the Leases of all namespaces: who may edit one makes any name there."""
    leases = asyncio.run(find_leases(Asked(answers)))  # type: ignore[arg-type]
    assert [(one.scheduler, one.namespace, one.holder, one.problem) for one in leases] == expected
    assert [one.exists for one in leases] == [bool(one.holder or one.problem) for one in leases]


@pytest.mark.parametrize(("answer", "holder"), [(a_lease("kube-controller-manager", "kube-system"), "cp1"), (404, None), (403, "")])
def test_status_asks_who_leads_the_controllers(answer: Any, holder: str | None) -> None:
    cluster = Cluster()
    cluster.complete = False
    asked = Asked({"kube-system/kube-controller-manager": answer})
    lease = asyncio.run(find_evidence(asked, cluster)).controllers  # type: ignore[arg-type]
    assert (lease and lease.holder) == holder


def test_nodes_whose_plugin_does_not_serve(golden: Golden) -> None:
    nodes = [ours("gpu1", offered="0"), ours("gpu2", offered="0"), ours("gpu3", ready=False), bare("gpu4"), ours("gpu5")]
    # A node that is none of ours, and one whose GPUs are all bad and which therefore offers nothing.
    other = bare("cp1")
    other["metadata"]["labels"] = {}
    ill = ours("gpu6", offered="0", gpus=Inventory(GIB, (gpu(0, 16, cordoned=True),)))
    wrong = [one for one in found(read_all([*nodes, other, ill], [])) if one[0] == "error nodes"]
    assert wrong == [
        ("error nodes", "gpu1, gpu2", "no device plugin: kubelet publishes no GPU memory, so new GPU pods wait or fail"),
        ("error nodes", "gpu3", "not Ready: new pods go elsewhere"),
        ("error nodes", "gpu4", "it has the label of a GPU node, and no device plugin has ever published GPUs"),
    ]
    [cure] = [one.cure for one in judge(read_all([bare("cp1")], []), StatusEvidence()) if one.check == "nodes"]
    golden(cure)


def test_cordoned_nodes_with_gpus(golden: Golden) -> None:
    nodes = [ours("gpu1"), ours("gpu2"), ours("gpu3"), bare("cp1")]
    nodes[3]["metadata"]["labels"] = {}
    for raw in (nodes[1], nodes[2], nodes[3]):
        raw["spec"] = {"unschedulable": True}
    cluster = read_all(nodes, [])
    assert [row[:2] for row in found(cluster)] == [("warning nodes", "gpu2, gpu3")]
    golden(told(cluster))


def test_bad_gpus_with_their_pods_come_before_cordoned_ones() -> None:
    gpus = Inventory(GIB, (gpu(0, 16, cordoned=True), gpu(1, 16, health="XID 79: off the bus")))
    pods = [pod(f"p{number}", "gpu1", gpu=1, mem=2) for number in range(5)]
    assert found(read_all([ours("gpu1", gpus=gpus)], pods)) == [
        ("error gpus", "gpu1 GPU 1", "bad: XID 79: off the bus; pods: default/p0, default/p1, default/p2 and 2 more"),
        ("warning gpus", "gpu1 GPU 0", "cordoned; no pods"),
    ]


def test_gpus_that_are_not_in_their_node_any_more_with_their_pods(golden: Golden) -> None:
    raw = held(ours("gpu1"))
    entries = [{"pod": f"default/p{number}", "uid": f"uid-p{number}", "units": 2, "why": "gone"} for number in range(5)]
    raw["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "gpus": {"GPU-old": entries}, "rejected": []})
    cluster = read_all([raw], [pod(f"p{number}", "gpu1", gpu=1, mem=2) for number in range(5)])
    assert found(cluster) == [
        ("error gpus", "gpu1", "GPU GPU-old is not in this node any more; pods: default/p0, default/p1, default/p2 and 2 more")
    ]
    [cure] = [one.cure for one in judge(cluster, StatusEvidence([LEADS])) if one.severity == "error"]
    golden(cure)
    cluster.set_pod(owned(pod("p0", "gpu1", gpu=1, mem=2)))
    [cure] = [one.cure for one in judge(cluster, StatusEvidence([LEADS])) if one.severity == "error"]
    golden(cure)


def test_pods_that_wait_although_there_is_room_and_an_extender_that_does_not_answer(golden: Golden) -> None:
    new = pending("new", "", mem=2)
    new["metadata"]["creationTimestamp"] = "2025-12-31T23:59:30Z"
    silent = pending("silent", SILENT, mem=2)
    # Its queue is not ours.
    queued = pending("queued", "Scheduling is blocked due to non-empty scheduling gates", mem=2)
    cpu = pending("cpu", "0/1: 1 Insufficient cpu", mem=2)
    wrong = found(read_all([ours("gpu1")], [cpu, silent, new, queued]))
    assert wrong[0][:2] == ("error extender", "")
    golden(wrong[0][2])
    assert [one[1:] for one in wrong[1:]] == [
        ("default/cpu", "the GPUs fit on 1 node: it waits for CPU"),
        ("default/silent", "the GPUs fit on 1 node: it waits for the extender, which does not answer"),
    ]


@pytest.mark.parametrize(
    ("reported", "check", "begins", "cure"),
    [
        (FOREIGN, "error extender", "kube-scheduler gets no answer from an extender that is not gpushare's, at http://127.0.0.1:9443, for "
         "2 pods: Post", ENTRY),
        ("failed filter with extender at URL http://127.0.0.1:9443/x/filter, code 500", "error extender", "kube-scheduler gets the HTTP "
         "status 500 from an extender that is not gpushare's, at http://127.0.0.1:9443/x, for 2 pods: failed", ENTRY),
        (WEBHOOK, "error admission", "the webhook guard.example.com does not answer the API server for 2 pods: the API server does not",
         "start the program of its service, or except pods/binding in it: kubectl get "
         "mutatingwebhookconfigurations,validatingwebhookconfigurations -o yaml"),
        ("ValidatingAdmissionPolicy 'no-gpus' with binding 'all' denied request: closed", "warning admission", "the policy no-gpus rejects "
         "what kube-scheduler does for 2 pods: Valid", "if that is not meant, except pods/binding in it: kubectl get "
         "validatingadmissionpolicies,validatingadmissionpolicybindings -o yaml"),
        (UNLED, "error scheduler", "kube-scheduler tries 2 pods without having the Lease kube-system/kube-scheduler, so the extender does "
         "not answer it: its leader election is off", "start it with --leader-elect=true"),
    ],
)  # fmt: skip
def test_what_stops_pods_is_named_by_the_message_and_not_blamed_on_the_extender(reported: str, check: str, begins: str, cure: str) -> None:
    cluster = read_all([ours("gpu1")], [pending("v", reported + 2000 * " x\x1b", mem=2), pending("w", reported + 2000 * " x\x1b", mem=2)])
    cluster.now = lambda: NOW
    one = judge(cluster, StatusEvidence([LEADS]))[0]
    assert f"{one.severity} {one.check}" == check
    assert one.found.startswith(begins)
    assert one.cure == cure
    assert len(one.found) < 600
    assert one.found.isprintable()
    assert any(good.check == "extender" and good.severity == "ok" for good in judge(cluster, StatusEvidence([LEADS]))) is (
        check != "error extender"
    )


def test_pods_that_can_never_run_and_what_to_write(golden: Golden) -> None:
    large = [pending(f"large-{number}", "0/1", mem=17) for number in range(5)]
    odd = pending("odd", "", mem=-1)
    cluster = read_all([ours("gpu1")], [*large, odd, pending("bytes", "", mem=8 * 1024**3)])
    assert found(cluster) == [
        ("warning waiting", "default/bytes", "can never run: 8589934592 means 8589934592 units of 1 GiB; the largest GPU has 16; write 8"),
        (
            "warning waiting",
            "default/large-0, default/large-1, default/large-2 and 2 more",
            "can never run: 17 means 17 units of 1 GiB; the largest GPU has 16; write at most 16",
        ),
        (
            "warning waiting",
            "default/odd",
            "can never run: container 'main', aliyun.com/gpu-mem: -1 is negative; write how many it needs, such as 8",
        ),
    ]
    golden(judge(cluster, StatusEvidence([LEADS]))[-1].found)


SANDBOX = "Failed to create pod sandbox: rpc error: code = NotFound desc = failed to get sandbox image"


def stalled(name: str, reason: str, since: float, message: str = "", on: str = "gpu1") -> dict[str, Any]:
    """A pod that is not ready since so many seconds; reason "": kubelet has said nothing of it."""
    raw = pod(name, on, gpu=sum(map(ord, name)) % 2, mem=1, phase="Pending")
    at = datetime.fromtimestamp(NOW - since, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    raw["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]
    if reason:
        raw["status"]["conditions"].append({"type": "Ready", "status": "False", "lastTransitionTime": at})
        raw["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}]
    return raw


def event(name: str, reason: str, seconds_ago: float, message: str = "x", namespace: str = "default") -> PodEvent:
    return PodEvent("Warning", reason, message, 1, int(NOW - seconds_ago), "kubelet", f"uid-{name}", namespace, name)


def test_pods_that_hang_on_one_node_for_one_reason_are_one_row(golden: Golden) -> None:
    pods = [stalled(f"s{number:02}", "ContainerCreating" if number else "", 400 + number) for number in range(19)]
    pods += [
        stalled("c", "CrashLoopBackOff", 20, "back-off 5m0s restarting failed container=main"),
        stalled("i", "ErrImagePull", 301, "no", "gpu2"),
    ]
    pods[-2]["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error"}}
    cluster = read_all([ours("gpu1"), ours("gpu2")], [*pods, pod("fine", "gpu1", gpu=0, mem=1)])
    evidence = StatusEvidence([LEADS], {"uid-s18": event("s18", "FailedCreatePodSandBox", 299, SANDBOX + 2000 * "!")})
    wrong = found(cluster, evidence=evidence)
    assert [row[:2] for row in wrong] == 2 * [("warning pods", "gpu1")] + [("warning pods", "gpu2")]
    golden(told(cluster, evidence))


@pytest.mark.parametrize(
    ("raw", "warned"),
    [
        # A large image, which is pulled for an hour; a volume that came late; kubelet's words of long ago.
        (stalled("p", "ContainerCreating", 3600), None),
        (stalled("p", "ContainerCreating", 320), event("p", "FailedMount", 300)),
        (stalled("p", "ContainerCreating", 3600), event("p", "FailedMount", 1000)),
        (stalled("p", "ContainerCreating", 200), event("p", "FailedCreatePodSandBox", 10)),
        # One crash, some seconds ago, and the first attempts to pull an image.
        (stalled("p", "CrashLoopBackOff", 8, "back-off 10s restarting failed container=main"), event("p", "BackOff", 5)),
        (stalled("p", "ImagePullBackOff", 200), None),
    ],
)
def test_a_pod_that_starts_or_has_crashed_once_does_not_hang(raw: dict[str, Any], warned: PodEvent | None) -> None:
    assert found(read_all([ours("gpu1")], [raw]), evidence=StatusEvidence([LEADS], {"uid-p": warned} if warned else {})) == []


def test_a_pod_whose_init_container_runs_or_that_ends_does_not_hang() -> None:
    init, ending = stalled("i", "PodInitializing", 9999), stalled("e", "CreateContainerError", 9999)
    init["status"]["initContainerStatuses"] = [{"name": "load", "state": {"running": {}}}]
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    warnings = {f"uid-{name}": event(name, "Failed", 10) for name in "ie"}
    assert found(read_all([ours("gpu1")], [init, ending]), evidence=StatusEvidence([LEADS], warnings)) == []


@pytest.mark.parametrize(
    ("schedulers", "leases"), [(["mine", ""], [LEADS]), (["default-scheduler", "mine"], [LEADS]), (["default-scheduler"], [OURS])]
)
def test_pods_that_came_without_the_extender(schedulers: list[str], leases: list[LeaseState], golden: Golden) -> None:
    pods = [pod(f"p{number}", "gpu1", gpu=0, mem=1) for number in range(len(schedulers))]
    for raw, name in zip(pods, schedulers, strict=True):
        raw["spec"]["schedulerName"] = name
    cluster = read_all([ours("gpu1")], pods)
    events = [event(f"p{number}", "GPUShareUnmanaged", 60) for number in range(len(schedulers))] + [event("gone", "GPUShareUnmanaged", 60)]
    cluster.now = lambda: NOW
    [one] = [one for one in judge(cluster, StatusEvidence(leases, unmanaged=events)) if one.check == "unmanaged"]
    assert one.severity == "warning"
    golden(f"{one.found} | {one.cure}")


PLAIN = [SchedulerPod("kube-scheduler-cp1", False), SchedulerPod("sched2", True)]


@pytest.mark.parametrize(
    ("evidence", "rows"),
    [
        (StatusEvidence([LEADS], schedulers=PLAIN), [("warning scheduler", "kube-system", "kube-scheduler without --config, which calls no "
         "extender: sched2; pods that it places get GPUs by chance")]),
        (StatusEvidence([LEADS], schedulers=PLAIN[:1]), []),
        # There the cluster's own scheduler has none.
        (StatusEvidence([LEADS, LeaseState("x", NOW, scheduler="gpushare-scheduler")], schedulers=PLAIN), []),
        (StatusEvidence([LEADS, LeaseState(problem="you may not get it")], schedulers=PLAIN),
         [("warning scheduler", "", "the leader is not known: you may not get it")]),
        (StatusEvidence([LEADS], seconds=[event("p", "GPUShareSecondScheduler", 9, "a second scheduler allocates the same GPUs")]),
         [("warning scheduler", "default/p", "1 pod got GPUs by another client than the extender in the last hour: a second scheduler "
           "allocates the same GPUs")]),
        (StatusEvidence([LEADS], problem="you may not list them"), [("warning pods", "", "Events are not known: you may not list them")]),
    ],
)  # fmt: skip
def test_a_second_scheduler_as_far_as_the_api_shows_it(evidence: StatusEvidence, rows: list[tuple[str, str, str]]) -> None:
    assert found(read_all([ours("gpu1")], []), evidence=evidence) == rows


@pytest.mark.parametrize(
    ("command_line", "plain"),
    [
        ({"command": ["kube-scheduler", "--leader-elect=false"]}, True),
        ({"command": ["/usr/local/bin/kube-scheduler"], "args": ["--config=/etc/x.yaml"]}, False),
        ({"args": ["sh", "-c", "exec kube-scheduler --config /etc/x.yaml"]}, False),
        ({"command": ["kube-scheduler", "--policy-configmap=x"]}, False),
        ({"command": ["other"], "args": ["--kube-scheduler-name=x"]}, False),
        ({}, False),
    ],
)
def test_a_kube_scheduler_without_configuration(command_line: dict[str, Any], plain: bool) -> None:
    raw = pod("s", "cp1", namespace="kube-system")
    raw["spec"]["containers"] = [{"name": "main", "image": "registry.k8s.io/kube-scheduler:v1.37.2", **command_line}]
    assert has_no_configuration(raw) is plain
    assert list(read_all([], [raw]).schedulers.values()) == ["s"]
    assert not read_all([], [{**raw, "metadata": {**raw["metadata"], "namespace": "team"}}]).schedulers, (
        "of another cluster's control plane"
    )


def test_the_evidence_is_read_from_the_api(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    now = time.time()
    scheduler = pod("sched2", "cp1", namespace="kube-system")
    scheduler["spec"]["containers"] = [{"name": "main", "image": "x/kube-scheduler:1", "command": ["kube-scheduler"]}]
    hangs = stalled("h", "CreateContainerError", NOW - now + 3600, "words")
    objects = {"/api/v1/namespaces/kube-system/pods/sched2": scheduler, "/api/v1/namespaces/default/pods/h": hangs}
    for number, (name, reason, ago) in enumerate(
        (("h", "Failed", 60), ("h", "GPUShareUnmanaged", 60), ("old", "GPUShareUnmanaged", 7000), ("p", "GPUShareSecondScheduler", 60))
    ):
        at = datetime.fromtimestamp(now - ago, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
        objects[f"/api/v1/namespaces/default/events/{number}"] = {
            "type": "Warning", "reason": reason, "message": f"of {name}", "lastTimestamp": at, "involvedObject": about, "metadata": {}
        }  # fmt: skip
    for path, value in objects.items():
        monkeypatch.setitem(command.OBJECTS, path, value)
    command.run(tmp_path, "status", "-o", "json")
    found = {(one["check"], one["where"]): one["found"] for one in json.loads(capsys.readouterr().out)["findings"]}
    for key in (("pods", "gpu1"), ("unmanaged", ""), ("scheduler", "default/p"), ("scheduler", "kube-system")):
        golden(found[key])


def test_without_the_right_to_list_events_the_rest_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def forbidden(request: web.Request) -> web.StreamResponse | None:
        return status(403, "Forbidden", "no") if request.path.endswith("/events") else None

    assert command.run(tmp_path, "status", faults=lambda: 40 * [forbidden])[0] == 0
    golden(capsys.readouterr().out)


def owned(raw: dict[str, Any]) -> dict[str, Any]:
    raw["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-7c"}]
    return raw


def left(*names: str, uid: str = "uid-{}") -> list[dict[str, Any]]:
    """Entries of `gpushare/held`: kubelet could give the ids of these pods to others."""
    return [{"pod": f"default/{name}", "uid": uid.format(name), "units": 3, "why": "orphaned"} for name in names]


UID = "8f1c2d3e-0000-4000-8000-0123456789ab"


def test_processes_of_pods_that_the_api_server_does_not_have_can_be_told_from_others(golden: Golden) -> None:
    cluster = read_all([held(ours("gpu1"), gpu0=[*left("gone", uid=UID), *left("odd", uid="; reboot")])], [pod("p", "gpu1", gpu=1, mem=2)])
    words = "6 units are in use by processes of pods that the API server does not have: default/gone, default/odd"
    assert found(cluster) == [("warning drift", "gpu1", words)]
    golden(told(cluster))


def test_pods_that_run_and_whose_record_kubelet_has_lost_are_not_ended_as_processes_of_no_pod(golden: Golden) -> None:
    """As after rm /var/lib/kubelet/device-plugins/*: the node reports them like pods that are gone, and the API server has them."""
    static = pod("s", "gpu1", mem=3)
    static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    ending = pod("e", "gpu1", gpu=1, mem=3)
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pods = [owned(pod("a", "gpu1", gpu=0, mem=3)), pod("b", "gpu1", gpu=0, mem=3), static, ending]
    cluster = read_all([held(ours("gpu1"), gpu0=[*left("a", "b"), *left("s", uid="of-kubelet")], gpu1=left("e"))], pods)
    words = "kubelet has no record of 3 running pods (its checkpoint was lost): default/a, default/b, default/s; they keep their GPUs"
    assert found(cluster) == [("warning drift", "gpu1", words)]
    golden(told(cluster))
    cells = {row.cells[0].text: [cell.text for cell in row.cells[-2:]] for row in pods_view(cluster, Selection(namespace="default")).rows}
    lost = "kubelet has no record of it (its checkpoint was lost): it keeps its GPU; delete it when convenient"
    assert cells == {**{name: ["record lost", lost] for name in "abs"}, "e": ["terminating", ""]}
    assert [one.text for one in nodes_view(cluster, Selection()).rows[0].grid] == ["9/16", "3/16"], "no orphaned units"


@pytest.mark.parametrize(
    ("spec", "lease"),
    [
        (
            {"holderIdentity": "cp1_7f-1", "renewTime": "2026-01-01T00:00:00.123456Z", "leaseDurationSeconds": 20},
            LeaseState("cp1", NOW, 20),
        ),
        ({"holderIdentity": None, "renewTime": "soon", "leaseDurationSeconds": 10**9}, LeaseState("", 0.0, 15)),
        (None, LeaseState()),
    ],
)
def test_a_lease(spec: Any, lease: LeaseState) -> None:
    assert read_lease({"spec": spec}) == lease


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    where = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
    monkeypatch.setitem(command.OBJECTS, where, a_lease("kube-scheduler", "kube-system"))
    code, api = command.run(tmp_path, "status")
    printed = capsys.readouterr().out
    assert code == 0
    assert "kube-scheduler has no leader; cp1 was the last one, " in printed
    assert where in [path for _, path, _query in api.requests]
    file = tmp_path / "cluster.json"
    items = [{**ours("gpu1"), "kind": "Node"}, {**pod("p", "gpu1", gpu=0, mem=2), "kind": "Pod"}]
    file.write_text(json.dumps({"kind": "List", "items": items}))
    assert main(["status", "--from-file", str(file), "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["v"], made["ok"], {one["check"] for one in made["findings"]}) == (
        1,
        True,
        {"extender", "nodes", "gpus", "pods", "waiting"},
    )
