# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare explain` beside kube-scheduler, for random pods on a filled cluster: a pod that fits gets a GPU on one of the nodes
that explain named, the one that it named there; a pod that does not fit stays pending, with the reason of explain for each node."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.api import Json
from e2e.cluster import GPU_NODES, GPUS, MEMORY, Cluster, allocation, asked, is_running
from e2e.extender import ledgers
from e2e.fake_nodes import FAKE_NODE, Gpu, fake_nodes, fake_pod, remove
from e2e.manifests import pod
from gpushare_runtime.kubectl_program.main import main

pytestmark = pytest.mark.suite("pods")

PODS: Final = 300 if os.environ.get("GPUSHARE_FULL") else 60
SEED: Final = int(os.environ.get("GPUSHARE_EXPLAIN_SEED", "7"))
# Beside the two real ones, which have kubelets. Ten nodes or fewer are named one by one in the scheduler's message.
PLAIN: Final[Mapping[str, Sequence[Gpu]]] = {
    "fake-a": [16, 16, 16, 16],
    "fake-b": [24, (40, "NVIDIA A100-SXM4-40GB")],
    "fake-c": [(80, "NVIDIA A100-SXM4-80GB"), (80, "NVIDIA A100-SXM4-80GB")],
    "fake-d": [8],
}
COMPUTE: Final[Mapping[str, Sequence[Gpu]]] = {"fake-e": [16, 24], "fake-f": [40]}
# So much of the memory is in use, about: there is room for most pods, and not for many.
FULL: Final = 0.75
REAL_PART: Final = 0.25


@dataclass(frozen=True)
class Explained:
    """fits: node → GPUs; reasons: node → why not."""

    fits: Mapping[str, list[int]]
    reasons: Mapping[str, str]


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    cluster.clear()
    with fake_nodes(cluster, PLAIN), fake_nodes(cluster, COMPUTE, core=100):
        yield cluster
        cluster.clear()


def explained(cluster: Cluster, wanted: Json, file: Path) -> Explained:
    """What the command prints of a manifest."""
    file.write_text(json.dumps(wanted))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(["explain", "-f", str(file), "-o", "json", "--kubeconfig", str(cluster.kubeconfig)])
    found = json.loads(out.getvalue())
    # Of the nodes that the pod selects: explain judges GPUs alone.
    nodes = [one for one in found["nodes"] if (one["name"] in GPU_NODES) != is_fake(wanted)]
    assert status == (0 if any(one["fits"] for one in found["nodes"]) else 3)
    return Explained(
        {one["name"]: one["gpus"] for one in nodes if one["fits"]}, {one["name"]: one["reason"] for one in nodes if not one["fits"]}
    )


def is_fake(wanted: Json) -> bool:
    return FAKE_NODE in wanted["metadata"].get("labels", {})


def random_pod(rng: random.Random, name: str) -> Json:
    """For the real nodes or for the fake ones: memory on one GPU or two, whole GPUs, compute, and rules."""
    if rng.random() < REAL_PART:
        made = pod(name, memory=rng.randint(1, 26)) if rng.random() < 0.9 else pod(name, gpus=rng.randint(1, 3))
        nobody = [{"key": FAKE_NODE, "operator": "DoesNotExist"}]
        required = {"nodeSelectorTerms": [{"matchExpressions": nobody}]}
        made["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        return made
    kind = rng.random()
    size = rng.choice((rng.randint(1, 12), rng.randint(8, 45), rng.randint(60, 200)))
    labels: dict[str, str] = {"app": rng.choice(("a", "b"))}
    rules: dict[str, str] = {}
    if rng.random() < 0.3:
        rules |= rng.choice(
            (
                {"gpushare.request/models": "A100"},
                {"gpushare.request/models-refused": "T4"},
                {"gpushare.request/not-with": "app=a"},
                {"gpushare.request/gpus": "GPU-fake-a-1,GPU-fake-d-0"},
                {"gpushare.request/placement": "spread"},
            )
        )
    if kind < 0.15:
        return fake_pod(name, gpus=rng.randint(1, 5), labels=labels, annotations=rules)
    if kind < 0.3:
        return fake_pod(name, memory=2 * rng.randint(1, 30), labels={**labels, GPUS: "2"}, annotations=rules)
    if kind < 0.4:
        return fake_pod(name, memory=rng.randint(1, 20), core=5 * rng.randint(1, 20), labels=labels)
    return fake_pod(name, memory=size, labels=labels, annotations=rules)


def requested(wanted: Json, resource: str) -> int:
    return sum(asked(container, resource) for container in wanted["spec"]["containers"])


def lacks_in_total(cluster: Cluster, node: str, wanted: Json) -> bool:
    """Whether kube-scheduler finds too little by its own sums, so that it does not ask the extender for this node."""
    held = [one for one in cluster.pods() if one["spec"].get("nodeName") == node]
    has = cluster.node(node)["status"]["allocatable"]
    return any(
        int(has.get(r, 0)) < requested(wanted, r) + sum(requested(one, r) for one in held) for r in (MEMORY, GPUS) if requested(wanted, r)
    )


def use(cluster: Cluster) -> float:
    """The part of the cluster's memory that its pods request."""
    nodes = [one for one in cluster.nodes() if int(one["status"]["allocatable"].get(MEMORY, 0))]
    units = sum(int(one["status"]["allocatable"][MEMORY]) for one in nodes)
    return sum(requested(one, MEMORY) for one in cluster.pods() if one["spec"].get("nodeName")) / units


def delete(cluster: Cluster, name: str) -> None:
    found = cluster.pod(name)
    if is_fake(found):
        if found["spec"].get("nodeName"):
            # Nobody on such a node reports that a deleted pod has no processes any more, for which the extender would wait.
            cluster.api.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": {"phase": "Succeeded"}})
        remove(cluster, name)
    else:
        cluster.delete(name)


def settled(cluster: Cluster, name: str) -> Json | None:
    """The pod once it has a node, and runs where there is a kubelet; or once the scheduler has said why not."""
    found = cluster.pod(name)
    if not found["spec"].get("nodeName"):
        return found if any(one.get("reason") == "Unschedulable" for one in found["status"].get("conditions", ())) else None
    return found if is_fake(found) or is_running(found) else None


def test_explain_agrees_with_the_scheduler(filled: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, outcomes = random.Random(SEED), Counter[str]()
    there: list[str] = []
    for number in range(PODS):
        while there and use(filled) > FULL + 0.1 * rng.random():
            delete(filled, there.pop(rng.randrange(len(there))))
        wanted = random_pod(rng, f"explain-{number}")
        before = explained(filled, wanted, tmp_path / "pod.json")
        name = filled.create(wanted)["metadata"]["name"]
        found = filled.until(f"{name} is settled", partial(settled, filled, name), 60, name)
        what: Any = (f"seed {SEED}", wanted["metadata"], wanted["spec"]["containers"][0]["resources"], before)
        node = found["spec"].get("nodeName")
        if node:
            assert before.fits.get(node) == sorted(allocation(found)), (node, *what)
            outcomes["placed" if is_fake(wanted) else "running"] += 1
            there.append(name)
            continue
        (message,) = (one["message"] for one in found["status"]["conditions"] if one.get("reason") == "Unschedulable")
        if before.fits:
            # What both have read, for whoever looks into it.
            (tmp_path / "cluster.json").write_text(filled.kubectl("get", "nodes,pods", "-A", "-o", "json"))
            (tmp_path / "extender.json").write_text(json.dumps(ledgers(filled)))
        assert before.fits == {}, (message, tmp_path, *what)
        for on, reason in before.reasons.items():
            if f"1 {on}: {reason}" in message:
                outcomes["reasons of the extender"] += 1
            else:
                assert lacks_in_total(filled, on, wanted), (on, reason, message, *what)
                assert "Insufficient aliyun.com/" in message, (message, *what)
                outcomes["too little in total"] += 1
        outcomes["pending"] += 1
        delete(filled, name)
    with capsys.disabled():
        print(f"\nof {PODS} pods with seed {SEED}: {dict(sorted(outcomes.items()))}", end="", flush=True)
    # Enough of each that the comparison means something.
    assert outcomes["pending"] >= PODS // 10
    assert outcomes["placed"] >= PODS // 6
    assert outcomes["running"] >= PODS // 20
    assert outcomes["reasons of the extender"] >= outcomes["pending"] // 2
