# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods come and go while device plugin, kubelet, containerd and gpushare-claims are killed: each has its GPU, none is over-booked, no claim
is left.

What ran where is the kernel's word, by churn_watch.py on each node. GPUSHARE_CHURN_SEED: another course of events.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dra.shares import Share, claims_as_they_change, clear, gpus_by_device, shares_of, templates
from e2e import churn_judge as judge
from e2e.api import ApiError, Json
from e2e.churn import gpus_of
from e2e.churn_log import Log
from e2e.cluster import CONTROL_PLANE, GPU_NODES, GPUS, Cluster, CommandError
from e2e.manifests import pod

pytestmark = [pytest.mark.suite("dra"), pytest.mark.timeout(900)]

SEED = int(os.environ.get("GPUSHARE_CHURN_SEED", "7"))
PODS, BATCH = 40, 4
PLUGIN, KUBELET, CONTAINERD, KEEPER = "device plugin", "kubelet", "containerd", "gpushare-claims"
#: One after each batch.
KILLS = (PLUGIN, KUBELET, CONTAINERD, PLUGIN, KEEPER, KUBELET, CONTAINERD, PLUGIN, KUBELET, KEEPER)
_PROGRAM = {PLUGIN: "gpushare-device-plugin", KEEPER: "gpushare-claims"}
#: How long one watch of claims lasts.
CLAIMS_SECONDS = 5


@dataclass
class Seen:
    """log: of the containers; shares: UID of a pod → what was ever allocated for it; ended: name → the pod at its end."""

    log: Log
    shares: dict[str, list[Share]] = field(default_factory=dict)
    ended: dict[str, Json] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)


def planned(number: int, rng: random.Random) -> Json:
    """A pod that ends by itself after some seconds."""
    kind = rng.random()
    if kind < 0.1:
        made = pod(f"churn-{number}", gpus=1)
    elif kind < 0.3:
        made = pod(f"churn-{number}", memory=rng.choice((2, 4, 8)))
        made["metadata"]["labels"] = {GPUS: "2"}
    else:
        made = pod(f"churn-{number}", memory=rng.choice((1, 2, 3, 4, 6, 8, 12)))
    made["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", f"sleep {rng.randint(2, 6)}"]
    # A container whose runtime was killed between its start and the record of it has failed by kubelet's word, and is started again.
    made["spec"]["restartPolicy"] = "OnFailure"
    return made


def kill(cluster: Cluster, what: str, rng: random.Random) -> str:
    """SIGKILL for one process, without those that it has started."""
    if what in (KUBELET, CONTAINERD):
        node = rng.choice(GPU_NODES)
        cluster.on(node, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", what)
        return f"{what} on {node}"
    nodes = list(GPU_NODES) if what == PLUGIN else [CONTROL_PLANE, *GPU_NODES]
    for node in rng.sample(nodes, len(nodes)):
        try:
            # In brackets, because the pattern is in the shell's own arguments.
            cluster.on(node, "pkill", "-9", "-f", f"[o]pt/gpushare/bin/{_PROGRAM[what]}")
        except CommandError:
            continue
        return f"{what} on {node}"
    raise AssertionError(f"{what} runs on none of {nodes}")


@contextmanager
def watched(cluster: Cluster, seen: Seen) -> Iterator[None]:
    """churn_watch.py on each node, and what claims have, until the end."""
    script = (Path(__file__).parents[1] / "e2e/churn_watch.py").read_text()
    stop = threading.Event()

    def read(node: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            if said["event"] != "ready":
                seen.log.node_says(node, said)

    def look() -> None:
        claims: dict[str, dict[str, list[Share]]] = {}
        while not stop.is_set():
            try:
                for claim in claims_as_they_change(cluster, CLAIMS_SECONDS):
                    for user in claim.get("status", {}).get("reservedFor", ()):
                        of_pod = claims.setdefault(user["uid"], {})
                        of_pod[claim["metadata"]["uid"]] = shares_of(claim) or of_pod.get(claim["metadata"]["uid"], [])
                        seen.shares[user["uid"]] = [share for shares in of_pod.values() for share in shares]
            except (ApiError, OSError):
                stop.wait(0.2)

    with ExitStack() as stack:
        readers = [threading.Thread(target=look)]

        def join() -> None:
            for reader in readers:
                reader.join(20)

        stack.callback(join)
        for node in GPU_NODES:
            command = [*cluster.entering(node), "python3", "-c", script]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait, 20)
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "ready"
            readers.append(threading.Thread(target=read, args=(node, process)))
        for one in readers:
            one.start()
        stack.callback(stop.set)
        yield


@pytest.fixture(scope="module")
def churned(cluster: Cluster) -> Iterator[Seen]:
    clear(cluster)
    rng = random.Random(SEED)
    seen = Seen(Log(gpus=tuple(gpus_of(cluster))))
    left: set[str] = set()

    def few_wait() -> bool:
        for one in cluster.pods():
            if one["status"].get("phase") in ("Succeeded", "Failed"):
                seen.ended[one["metadata"]["name"]] = one
        return len(left - set(seen.ended)) <= BATCH

    with watched(cluster, seen):
        for place, what in enumerate(KILLS):
            made = [planned(place * BATCH + number, rng) for number in range(BATCH)]
            for one in made:
                cluster.create(one)
                left.add(one["metadata"]["name"])
            seen.kills.append(kill(cluster, what, rng))
            if place % 3 == 0:
                # By force: kube-scheduler may give its memory away before its process has ended.
                gone = rng.choice(made)["metadata"]["name"]
                cluster.api.delete(f"/api/v1/namespaces/default/pods/{gone}", gracePeriodSeconds="0")
                left.discard(gone)
            cluster.until("the pods before have ended", few_wait, 120, *left - set(seen.ended))
        cluster.until("the last pods have ended", lambda: few_wait() and left <= set(seen.ended), 180, *left - set(seen.ended))
        cluster.until("no container lives", lambda: not [one for one in seen.log.containers.values() if one.end is None], 60)
    yield seen
    clear(cluster)


def test_every_pod_has_run_to_its_end(churned: Seen) -> None:
    assert len(churned.kills) == len(KILLS)
    forced = len(range(0, len(KILLS), 3))
    assert len(churned.ended) == PODS - forced
    assert {name: one["status"] for name, one in churned.ended.items() if one["status"]["phase"] != "Succeeded"} == {}
    ran = {container.uid for container in churned.log.containers.values()}
    assert {one["metadata"]["uid"] for one in churned.ended.values()} <= ran


def test_each_container_had_the_gpus_of_its_claim(cluster: Cluster, churned: Seen) -> None:
    gpus, problems = gpus_by_device(cluster), []
    for container in churned.log.containers.values():
        shares = churned.shares.get(container.uid, [])
        wanted = sorted(f"nvidia{gpus[share.node, share.device].minor}" for share in shares if share.node == container.node)
        units = str(sum(share.gib for share in shares))
        if list(container.devices) != wanted or container.environment.get("ALIYUN_COM_GPU_MEM_POD") != units:
            problems.append(f"{container}: its claim has {shares}")
    assert problems == []


def test_no_gpu_had_more_than_it_has(churned: Seen) -> None:
    peaks = judge.peaks(churned.log)
    assert {where: found for where, found in peaks.items() if found[0] > found[1]} == {}
    # GPUs were shared, or the sums would show nothing.
    assert sum(most for most, _, _ in peaks.values()) > 20


def test_no_claim_is_left(cluster: Cluster, churned: Seen) -> None:
    """Neither in the cluster, nor in the files of kubelet and of the device plugin."""
    clear(cluster)


def test_a_killed_keeper_serves_new_namespaces(cluster: Cluster, churned: Seen) -> None:
    assert [one for one in churned.kills if one.startswith(KEEPER)]
    cluster.kubectl("create", "namespace", "after-the-churn")
    try:
        cluster.until("it has its template", lambda: "after-the-churn" in templates(cluster), 60)
    finally:
        cluster.kubectl("delete", "namespace", "after-the-churn", seconds=120)
