# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods come and go while device plugin, kubelet, containerd, gpushare-claims and the API server are killed: each has its GPU, none is
over-booked, no claim is left.

What ran where is the kernel's word, by churn_watch.py on each node. GPUSHARE_FULL=1: 400 pods and 20 kills of each.
GPUSHARE_CHURN_SEED: another course of events. GPUSHARE_CHURN_OUT: a file for the figures, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dra.shares import Share, claims, claims_as_they_change, clear, gpus_by_device, left_on, shares_of, templates, until_serving
from e2e import churn_judge as judge
from e2e.api import ApiError, Json
from e2e.churn import gpus_of
from e2e.churn_log import Log
from e2e.cluster import CONTROL_PLANE, GPU_NODES, GPUS, Cluster, CommandError, RealGpu, WaitedInVain
from e2e.manifests import pod

SEED = int(os.environ.get("GPUSHARE_CHURN_SEED", "7"))
OUT = os.environ.get("GPUSHARE_CHURN_OUT")
PLUGIN, KUBELET, CONTAINERD, KEEPER, SERVER = "device plugin", "kubelet", "containerd", "gpushare-claims", "kube-apiserver"
KINDS = (PLUGIN, KUBELET, CONTAINERD, KEEPER, SERVER)
#: One after each batch, in another order.
KILLS = KINDS * (20 if os.environ.get("GPUSHARE_FULL") == "1" else 2)
BATCH = 4
PODS = BATCH * len(KILLS)
#: After each third kill a pod is deleted by force.
FORCED = len(range(0, len(KILLS), 3))
NODES = {KEEPER: (CONTROL_PLANE, *GPU_NODES), SERVER: (CONTROL_PLANE,)}
_MAIN = ("systemctl", "kill", "--kill-whom=main", "--signal=KILL")
_SIGKILL = {
    KUBELET: (*_MAIN, KUBELET),
    CONTAINERD: (*_MAIN, CONTAINERD),
    SERVER: ("pkill", "-9", "-x", SERVER),
    # In brackets, because the pattern is in the shell's own arguments.
    PLUGIN: ("pkill", "-9", "-f", "[o]pt/gpushare/bin/gpushare-device-plugin"),
    KEEPER: ("pkill", "-9", "-f", "[o]pt/gpushare/bin/gpushare-claims"),
}
#: How long one watch of claims lasts.
CLAIMS_SECONDS = 5
ALL_PODS = "/api/v1/namespaces/default/pods"

# A batch takes 12 s; five times as long is too long.
pytestmark = [pytest.mark.suite("dra"), pytest.mark.timeout(600 + 60 * len(KILLS))]


@dataclass
class Seen:
    """log: of the containers; shares: UID of a pod → what was ever allocated for it; ended: name → the pod at its end; left: claims that
    are there when all pods are gone, and what kubelet and the device plugin have of such; story: why."""

    log: Log
    shares: dict[str, list[Share]] = field(default_factory=dict)
    ended: dict[str, Json] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    story: str = ""
    seconds: float = 0


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
    nodes = NODES.get(what, GPU_NODES)

    def killed() -> str | None:
        """The node. There is none while the last one that was killed has not been started again."""
        for node in rng.sample(nodes, len(nodes)):
            with suppress(CommandError):
                cluster.on(node, *_SIGKILL[what])
                return node
        return None

    return f"{what} on {cluster.until(f'{what} runs, and is killed', killed, 60)}"


def answered(cluster: Cluster, what: str, call: Callable[[], object], done_already: int) -> None:
    """Until the API server, which may be away, has done it. done_already: how it answers then, also to an attempt that it did not
    answer."""

    def probe() -> bool:
        try:
            call()
        except ApiError as error:
            if error.status != done_already:
                raise
        return True

    cluster.until(what, probe, 120)


@contextmanager
def soon_started_again(cluster: Cluster) -> Iterator[None]:
    """kubelets start a container again within a second. By default they wait longer after each end, and at last five minutes."""
    config, kept = "/var/lib/kubelet/config.yaml", "/var/lib/kubelet/config-before.yaml"
    change = f"""
        cp {config} {kept}
        sed -i '/^crashLoopBackOff:/,/^[^ ]/{{/^crashLoopBackOff:/d;/^ /d}}' {config}
        printf 'crashLoopBackOff:\n  maxContainerRestartPeriod: 1s\n' >> {config}
        systemctl restart kubelet
    """
    nodes = (CONTROL_PLANE, *GPU_NODES)
    for node in nodes:
        cluster.on(node, "sh", "-ec", change)
    until_serving(cluster)
    try:
        yield
    finally:
        for node in nodes:
            cluster.on(node, "sh", "-ec", f"mv {kept} {config}; systemctl restart kubelet")


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
            except (ApiError, OSError, ValueError):
                # The server was killed, also in the middle of a line.
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


def churn(cluster: Cluster) -> Seen:
    """All of it, until the last pod has ended."""
    rng = random.Random(SEED)
    seen = Seen(Log(gpus=tuple(gpus_of(cluster))))
    left: set[str] = set()

    def few_wait() -> bool:
        for one in cluster.pods():
            if one["status"].get("phase") in ("Succeeded", "Failed"):
                seen.ended[one["metadata"]["name"]] = one
        return len(left - set(seen.ended)) <= BATCH

    def create(one: Json) -> None:
        answered(cluster, "the pod is created", lambda: cluster.create(one), 409)

    def delete(name: str, **how: str) -> None:
        answered(cluster, "the pod is deleted", lambda: cluster.api.delete(f"{ALL_PODS}/{name}", **how), 404)

    started, deleted = time.monotonic(), set[str]()
    with watched(cluster, seen):
        for place, what in enumerate(rng.sample(KILLS, len(KILLS))):
            made = [planned(place * BATCH + number, rng) for number in range(BATCH)]
            for one in made:
                create(one)
                left.add(one["metadata"]["name"])
            seen.kills.append(kill(cluster, what, rng))
            if place % 3 == 0:
                # By force: kube-scheduler may give its memory away before its process has ended.
                gone = rng.choice(made)["metadata"]["name"]
                delete(gone, gracePeriodSeconds="0")
                left.discard(gone)
            cluster.until("the pods before have ended", few_wait, 240, *sorted(left - set(seen.ended)))
            # A list of all that ever were would be long.
            for name in set(seen.ended) - deleted:
                delete(name)
                deleted.add(name)
        cluster.until("the last pods have ended", lambda: few_wait() and left <= set(seen.ended), 240, *sorted(left - set(seen.ended)))
        cluster.until("no container lives", lambda: not [one for one in seen.log.containers.values() if one.end is None], 60)
    seen.seconds = time.monotonic() - started
    # One that was deleted by force may have ended before.
    seen.ended = {name: one for name, one in seen.ended.items() if name in left}
    return seen


def wrong_gpus(seen: Seen, gpus: dict[tuple[str, str], RealGpu]) -> list[str]:
    """Containers whose device nodes or variables are not those of their pod's claim."""
    problems = []
    for container in seen.log.containers.values():
        shares = seen.shares.get(container.uid, [])
        wanted = sorted(f"nvidia{gpus[share.node, share.device].minor}" for share in shares if share.node == container.node)
        units = str(sum(share.gib for share in shares))
        if list(container.devices) != wanted or container.environment.get("ALIYUN_COM_GPU_MEM_POD") != units:
            problems.append(f"{container}: its claim has {shares}")
    return problems


def over_booked(seen: Seen) -> list[str]:
    return [f"{device} of {node}: {most} of {size}" for (node, device), (most, size, _) in judge.peaks(seen.log).items() if most > size]


@pytest.fixture(scope="module")
def churned(cluster: Cluster, pytestconfig: pytest.Config) -> Iterator[Seen]:
    clear(cluster)
    with soon_started_again(cluster):
        seen = churn(cluster)
        try:
            clear(cluster)
        except WaitedInVain as error:
            seen.story = str(error)
            seen.left = [
                *(one["metadata"]["name"] for one in claims(cluster)),
                *(one for node in GPU_NODES for one in left_on(cluster, node)),
            ]
        found = {
            "seed": SEED,
            "seconds": round(seen.seconds),
            "pods": PODS,
            "deleted_by_force": FORCED,
            "ran_to_their_end": sum(one["status"]["phase"] == "Succeeded" for one in seen.ended.values()),
            "containers": len(seen.log.containers),
            "kills": dict(Counter(one.partition(" on ")[0] for one in seen.kills)),
            "wrong_gpus": len(wrong_gpus(seen, gpus_by_device(cluster))),
            "over_booked": len(over_booked(seen)),
            "left_claims": len(seen.left),
        }
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\nmeasured: {found}", flush=True)
        if OUT:
            Path(OUT).write_text(json.dumps(found, indent=2) + "\n")
        yield seen


def test_every_pod_has_run_to_its_end(churned: Seen) -> None:
    assert Counter(one.partition(" on ")[0] for one in churned.kills) == Counter(KILLS)
    assert len(churned.ended) == PODS - FORCED
    assert {name: one["status"] for name, one in churned.ended.items() if one["status"]["phase"] != "Succeeded"} == {}
    ran = {container.uid for container in churned.log.containers.values()}
    assert {one["metadata"]["uid"] for one in churned.ended.values()} <= ran


def test_each_container_had_the_gpus_of_its_claim(cluster: Cluster, churned: Seen) -> None:
    assert wrong_gpus(churned, gpus_by_device(cluster)) == []


def test_no_gpu_had_more_than_it_has(churned: Seen) -> None:
    assert over_booked(churned) == []
    # GPUs were shared, or the sums would show nothing.
    assert sum(most for most, _, _ in judge.peaks(churned.log).values()) > 20


def test_no_claim_is_left(churned: Seen) -> None:
    """Neither in the cluster, nor in the files of kubelet and of the device plugin."""
    assert churned.left == [], churned.story


def test_a_killed_keeper_serves_new_namespaces(cluster: Cluster, churned: Seen) -> None:
    assert [one for one in churned.kills if one.startswith(KEEPER)]
    cluster.kubectl("create", "namespace", "after-the-churn")
    try:
        cluster.until("it has its template", lambda: "after-the-churn" in templates(cluster), 60)
    finally:
        cluster.kubectl("delete", "namespace", "after-the-churn", seconds=120)
