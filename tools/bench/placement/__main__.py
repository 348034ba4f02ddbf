# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What part of all GPUs the policies bring into use, without a cluster: `python -m bench.placement --traces DIR`.

The traces are openb of the Alibaba cluster data (openb_node_list_*.csv, openb_pod_list_*.csv). Five parts:

- anchor: FGD, best fit and random by the rules of Weng et al., USENIX ATC 2023, beside the figures that they published;
- filled: kube-scheduler's model with our policies; all pods come once, then others, up to 130 % of all GPUs, and none leaves;
- churn: the same model; pods live for a drawn time, and what is asked for is 90 or 100 % of all GPUs at any time;
- decisions: what a decision costs in process, at 1213 and at 5000 nodes;
- live (where it is asked for): an eighth of the cluster, filled once, on a real kube-scheduler with the extender, beside the model.

`before` is binpack as it was: no scarcity, exact units, of equals the node with less free, weight 1. `first fit` is kube-scheduler alone
with claims (the back end dra), and `no score` the same with the fullest GPU of the node that fits.
Prints means with the standard error over the seeds. --json keeps what other runs have written there;
`tools/pictures.py --write` draws it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

from bench.placement.decisions import Cost, costs, enlarged
from bench.placement.live import live
from bench.placement.published import RULES, Anchor
from bench.placement.scheduler import Learn, Make, Scheduler, churn, fill
from bench.placement.workload import Machine, Pod, arrivals, eighth, first, read_machines, read_trace, total
from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.placement.policies import FIRST_FIT, Binpack, Placement, Policy
from gpushare_runtime.core.placement.ranking import NodeCost, Ranking
from gpushare_runtime.core.placement.scarcity import Scarcity
from gpushare_runtime.core.request import Request

MARKS: Final = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
DEMANDS: Final = (0.9, 1.0)
WEIGHT: Final = 10
"""gpushare_extender_weight by default."""
PARTS: Final = ("anchor", "filled", "churn", "decisions")
LIVE: Final = "live"
LIVE_SECONDS: Final = 600.0
NODES: Final = (1213, 5000)
PUBLISHED: Final[Mapping[str, Mapping[str, float]]] = {
    "default": {"FGD": 95.23, "best fit": 92.86, "random": 86.30},
    "gpushare100": {"FGD": 86.64, "best fit": 84.62, "random": 78.90},
}
"""Per cent of all GPUs in use when pods have asked for 100 %: means of ten seeds in experiments/analysis/expected_results of
hkust-adsl/kubernetes-scheduler-simulator, commit 8f3d641, read on 2026-11-25."""


def _policy(name: str, *, scarce: bool = True) -> Make:
    def make(ledger: Ledger) -> tuple[Policy, Learn]:
        scarcity = Scarcity(ledger.classes)

        def learn(request: Request) -> None:
            if scarce:
                scarcity.observe([request])

        return Placement(name, scarcity=scarcity), learn

    return make


class Before(Binpack):
    """binpack as it was until 2026-11: what stays free, then what is free on the node."""

    def node_cost(self, request: Request, node: NodeLedger) -> NodeCost | None:
        left = node.remaining_after(request)
        return None if left is None else (left, node.free, node.name)

    def ranking(self, request: Request, ledger: Ledger) -> Ranking:
        return ledger.derived(request.key, lambda: Ranking(ledger.nodes, lambda node: self.node_cost(request, node)))


def _before(ledger: Ledger) -> tuple[Policy, Learn]:
    del ledger
    return Before(), lambda request: None


POLICIES: Final[Mapping[str, tuple[Make, int, bool]]] = {
    "binpack": (_policy("binpack"), WEIGHT, True),
    "before": (_before, 1, True),
    "spread": (_policy("spread"), WEIGHT, True),
    "no score": (_policy("binpack", scarce=False), 0, True),
    "first fit": (_policy(FIRST_FIT), 0, True),
    "binpack, no taint": (_policy("binpack"), WEIGHT, False),
}
"""By name: the policy, gpushare_extender_weight, and whether GPU nodes have the taint of gpushare_taint_gpu_nodes."""


@dataclass(frozen=True)
class Figure:
    """A mean over seeds. load: per cent of all GPUs that is asked for; in_use: of them; lost: per cent of the demand that found no room."""

    part: str
    trace: str
    policy: str
    load: int
    in_use: float
    error: float
    lost: float
    seeds: int
    cpu_seconds: float


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _figure(part: str, trace: str, policy: str, load: int, found: Sequence[tuple[float, float]], seconds: float) -> Figure:
    used, lost = [one for one, _ in found], [one for _, one in found]
    mean, error, seeds = round(statistics.mean(used), 2), round(_error(used), 2), len(found)
    return Figure(part, trace, policy, load, mean, error, round(statistics.mean(lost), 2), seeds, round(seconds / seeds, 1))


def anchor(pool: Executor, trace: str, machines: Sequence[Machine], pods: Sequence[Pod], seeds: Sequence[int]) -> Iterator[Figure]:
    """As the paper counts: the mean of what is in use while what was asked for rounds to 100 %."""
    runs = pool.map(partial(_anchor, machines, pods), *zip(*product(RULES, seeds), strict=True))
    for rule in RULES:
        found = list(islice(runs, len(seeds)))
        yield _figure("anchor", trace, rule, 100, [(used, 100 - used) for used, _ in found], sum(took for _, took in found))


def _anchor(machines: Sequence[Machine], pods: Sequence[Pod], rule: str, seed: int) -> tuple[float, float]:
    """And the seconds of CPU that it took."""
    start, capacity, asked, used, at = time.process_time(), total(machines), 0, 0, []
    nodes = Anchor(rule, machines, pods, seed)
    for pod in arrivals(pods, capacity, seed, 1.02):
        asked += pod.asked
        used += pod.asked if nodes.place(pod) else 0
        if round(100 * asked / capacity) == 100:
            at.append(100 * used / capacity)
    return statistics.mean(at), time.process_time() - start


def filled(
    pool: Executor, policies: Sequence[str], trace: str, machines: Sequence[Machine], pods: Sequence[Pod], seeds: Sequence[int]
) -> Iterator[Figure]:
    """With kube-scheduler's model."""
    runs = pool.map(partial(_fill, machines, pods), *zip(*product(policies, seeds), strict=True))
    for policy in policies:
        found = list(islice(runs, len(seeds)))
        seconds = sum(took for _, took in found)
        for mark in MARKS:
            used = [run[f"{mark:.1f}"] for run, _ in found]
            yield _figure("filled", trace, policy, round(100 * mark), [(one, 100 - one / mark) for one in used], seconds)


def _fill(machines: Sequence[Machine], pods: Sequence[Pod], policy: str, seed: int) -> tuple[dict[str, float], float]:
    """And the seconds of CPU that it took."""
    start = time.process_time()
    return fill(_scheduler(policy, machines, seed), machines, pods, seed, MARKS), time.process_time() - start


def churned(
    pool: Executor,
    policies: Sequence[str],
    trace: str,
    machines: Sequence[Machine],
    pods: Sequence[Pod],
    seeds: Sequence[int],
    demands: Sequence[float],
) -> Iterator[Figure]:
    """With kube-scheduler's model, while pods come and go."""
    runs = pool.map(partial(_churn, machines, pods), *zip(*product(policies, demands, seeds), strict=True))
    for policy, demand in product(policies, demands):
        found = list(islice(runs, len(seeds)))
        yield _figure("churn", trace, policy, round(100 * demand), [run for run, _ in found], sum(took for _, took in found))


def _churn(machines: Sequence[Machine], pods: Sequence[Pod], policy: str, demand: float, seed: int) -> tuple[tuple[float, float], float]:
    start = time.process_time()
    return churn(_scheduler(policy, machines, seed), machines, pods, seed, demand), time.process_time() - start


def decided(
    pool: Executor, policies: Sequence[str], traces: Mapping[str, Sequence[Pod]], machines: Sequence[Machine], seed: int
) -> Iterator[Cost]:
    """The policies in turns, in one process for each trace and number of nodes."""
    # The longest first.
    runs = sorted(product(NODES, traces), reverse=True)
    for found in pool.map(partial(_decide, policies, traces, machines, seed), runs):
        yield from found


def _decide(
    policies: Sequence[str], traces: Mapping[str, Sequence[Pod]], machines: Sequence[Machine], seed: int, run: tuple[int, str]
) -> list[Cost]:
    nodes, trace = run
    return list(costs(trace, {policy: POLICIES[policy][0] for policy in policies}, enlarged(machines, nodes), traces[trace], seed))


def _scheduler(policy: str, machines: Sequence[Machine], seed: int) -> Scheduler:
    make, weight, tainted = POLICIES[policy]
    return Scheduler(make, weight, machines, seed, tainted=tainted)


def modelled(policy: str, machines: Sequence[Machine], pods: Sequence[Pod], seed: int) -> float:
    """Per cent of all GPUs in use once each pod has come, by kube-scheduler's model."""
    scheduler = _scheduler(policy, machines, seed)
    return 100 * sum(pod.asked for pod in pods if scheduler.place(pod)[0]) / total(machines)


def on_a_real_scheduler(trace: str, machines: Sequence[Machine], pods: Sequence[Pod], seed: int) -> Iterator[Figure]:
    """What the real one brings into use, and the model with the same pods, also as it was before."""
    machines = eighth(machines)
    came = first(pods, total(machines), seed)
    asked = round(100 * sum(pod.asked for pod in came) / total(machines))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as folder:
        found = asyncio.run(live(Path(folder), machines, came, LIVE_SECONDS))
    seconds = time.monotonic() - start
    for name, used in (
        ("live", found),
        *((f"model, {policy}", modelled(policy, machines, came, seed)) for policy in ("binpack", "before")),
    ):
        yield _figure(LIVE, trace, name, asked, [(used, asked - used)], seconds if name == "live" else 0.0)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Replay traces of GPU pods through the placement policies.")
    parser.add_argument("--traces", type=Path, required=True, help="folder with the openb_*.csv files")
    parser.add_argument("--pods", nargs="+", default=["default", "gpuspec25"], help="which openb_pod_list_NAME.csv (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=(*PARTS, LIVE))
    parser.add_argument("--policies", nargs="+", default=["before", "binpack"], choices=POLICIES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44, 45, 46])
    parser.add_argument("--demands", nargs="+", type=float, default=DEMANDS, help="of churn, in parts of all GPUs (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="keep the figures there as well")
    options = parser.parse_args()

    def tell(figures: Iterable[Figure]) -> None:
        for one in figures:
            keep(options.json, "figures", one, ("part", "trace", "policy", "load"))
            published = PUBLISHED.get(one.trace, {}).get(one.policy)
            beside = f"  published {published:.2f}" if published is not None and one.part == "anchor" else ""
            figures_of = f"{one.load:>4} % {one.in_use:>7.2f} ±{one.error:.2f} lost {one.lost:>5.2f}  {one.cpu_seconds:>5.1f} s{beside}"
            print(f"{one.part:<7} {one.trace:<12} {one.policy:<17} {figures_of}", flush=True)

    def read(trace: str) -> list[Pod]:
        return read_trace(options.traces / f"openb_pod_list_{trace}.csv")

    with_gpus = read_machines(options.traces / "openb_node_list_gpu_node.csv")
    every = read_machines(options.traces / "openb_node_list_all_node.csv")
    traces = {trace: read(trace) for trace in options.pods}
    # Runs by themselves, as many at once as there are CPUs.
    with ProcessPoolExecutor() as pool:
        for trace in PUBLISHED if "anchor" in options.parts else ():
            tell(anchor(pool, trace, with_gpus, read(trace), options.seeds))
        for trace, pods in traces.items():
            if "filled" in options.parts:
                tell(filled(pool, options.policies, trace, every, pods, options.seeds))
            if "churn" in options.parts:
                tell(churned(pool, options.policies, trace, every, pods, options.seeds, options.demands))
        for took in decided(pool, options.policies, traces, with_gpus, options.seeds[0]) if "decisions" in options.parts else ():
            keep(options.json, "decisions", took, ("trace", "policy", "nodes"))
            words = f"{took.mean:.3f} ms a decision, median {took.median:.3f}, the first of a kind at most {took.first:.1f}"
            print(f"decisions {took.trace:<12} {took.policy:<17} {took.nodes} nodes: {words}", flush=True)
    for trace, pods in traces.items() if LIVE in options.parts else ():
        tell(on_a_real_scheduler(trace, every, pods, options.seeds[0]))


def keep(file: Path | None, part: str, one: Any, key: Sequence[str]) -> None:
    """Put it into the file, in place of what an earlier run has measured of the same."""
    if file is None:
        return
    known = json.loads(file.read_text()) if file.exists() else {}
    new = asdict(one)
    others = [old for old in known.get(part, ()) if any(old[name] != new[name] for name in key)]
    known |= {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), part: [*others, new]}
    file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
