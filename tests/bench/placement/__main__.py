# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What fraction of a trace's pods each placement policy places, without a cluster: `python -m bench.placement --traces DIR`.

The trace is openb of the Alibaba cluster data (openb_node_list_gpu_node.csv, openb_pod_list_*.csv). As in Weng et al., USENIX ATC
2023, its pods are drawn at random, with replacement, until they have asked for a given part of all GPUs together. A GPU counts
1000 units, as the trace writes shares; a pod of a whole GPU or of several asks for whole GPUs. Nodes without the CPU and memory
for a pod are left out first, as kube-scheduler does, unless --gpus-only. Nothing ends and nothing is preempted. Prints a table, and
writes JSON where asked.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.placement.fragmentation import Workload
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.placement.ranking import BEST_SCORE
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.kubectl_gpushare.trace import Host, TracePod, read_hosts, read_pods

POLICIES: Final = ("random", "binpack", "spread", "fgd")
MARKS: Final = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)


def pods_of(file: Path, gpus_only: bool) -> list[TracePod]:
    """The pods that ask for GPUs; without what else they ask for, if only GPUs count."""
    return [replace(pod, cpu=0, memory=0) if gpus_only else pod for pod in read_pods(file)]


def replay(policy: str, hosts_file: Path, pods: Sequence[TracePod], seed: int) -> dict[str, Any]:
    """placed: {mark: fraction of all GPUs' units that is placed when pods have asked for `mark` of them}; CPU time per pod."""
    hosts, ledger = read_hosts(hosts_file)
    total = sum(node.free for node in ledger.nodes.values())
    workload = Workload()
    # The paper's FGD knows the trace's distribution beforehand; so does this one, from the same file.
    workload.observe(pod.request for pod in pods)
    placement = Placement("binpack" if policy == "random" else policy, workload=workload)
    draw, pick = random.Random(seed), random.Random(seed + 1)
    arrived = placed = count = rejected = 0
    marks = list(MARKS)
    fractions: dict[str, float] = {}
    start = time.process_time()
    while marks:
        pod = draw.choice(pods)
        count += 1
        arrived += pod.asked
        name = _place(placement, hosts, ledger, pod, pick if policy == "random" else None, f"pod-{count}")
        placed, rejected = (placed + pod.asked, rejected) if name else (placed, rejected + 1)
        while marks and arrived >= marks[0] * total:
            fractions[f"{marks.pop(0):.1f}"] = round(placed / total, 4)
    spent = time.process_time() - start
    problems = sum(len(node.problems()) for node in ledger.nodes.values())
    return {
        "policy": policy,
        "seed": seed,
        "pods": count,
        "rejected": rejected,
        "cpu_ms_per_pod": round(1000 * spent / count, 3),
        "placed": fractions,
        "problems": problems,
    }


def _place(placement: Placement, hosts: Iterable[Host], ledger: Ledger, pod: TracePod, pick: random.Random | None, uid: str) -> str:
    """The node that it went to, "" if there was none."""
    by_name = {host.name: host for host in hosts if host.cpu >= pod.cpu and host.memory >= pod.memory}
    nodes: list[NodeLedger] = [ledger.nodes[name] for name in by_name if ledger.nodes[name].remaining_after(pod.request) is not None]
    if not nodes:
        return ""
    if pick is not None:
        node = pick.choice(nodes)
    else:
        scores = placement.rank(pod.request, nodes)
        node = ledger.nodes[next(name for name, score in scores.items() if score == BEST_SCORE)]
    allocation = placement.choose(pod.request, node)
    assert allocation is not None
    ledger.apply(AllocatedPod(uid, "trace", uid, node.name, pod.request, allocation))
    host = by_name[node.name]
    host.cpu, host.memory = host.cpu - pod.cpu, host.memory - pod.memory
    return node.name


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Replay a trace of GPU pods through the placement policies.")
    parser.add_argument("--traces", type=Path, required=True, help="folder with the openb_*.csv files")
    parser.add_argument("--pods", default="openb_pod_list_default.csv", help="which pods (default: %(default)s)")
    parser.add_argument("--gpus-only", action="store_true", help="do not count the nodes' CPU and main memory")
    parser.add_argument("--policies", nargs="+", default=POLICIES, choices=POLICIES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    pods = pods_of(options.traces / options.pods, options.gpus_only)
    found = []
    only = ", only GPUs count" if options.gpus_only else ""
    print(f"{options.pods}: {len(pods)} pods with GPUs{only}; fraction of all GPU memory placed when pods have asked for …")
    print(f"{'policy':>8} {'seed':>5} " + " ".join(f"{mark:>6.0%}" for mark in MARKS) + "  CPU ms/pod  rejected")
    for seed in options.seeds:
        for policy in options.policies:
            one = replay(policy, options.traces / "openb_node_list_gpu_node.csv", pods, seed)
            found.append(one | {"trace": options.pods, "gpus_only": options.gpus_only})
            cells = " ".join(f"{fraction:>6.1%}" for fraction in one["placed"].values())
            print(f"{policy:>8} {seed:>5} {cells} {one['cpu_ms_per_pod']:>11.2f} {one['rejected']:>8}", flush=True)
            assert one["problems"] == 0, "a GPU was given twice"
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
