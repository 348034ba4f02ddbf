# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare simulate`: where each of some pods would go under each policy, one after the other, and why not elsewhere. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.placement.explain import Largest, no_fit
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.placement.ranking import BEST_SCORE
from gpushare_runtime.core.placement.scarcity import Scarcity
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.core.request import Request
from gpushare_runtime.kubectl_gpushare.explain import never
from gpushare_runtime.kubectl_gpushare.layout import ABSENT, BAD, Cell, Column, Table, TableRow
from gpushare_runtime.kubectl_gpushare.trace import UNITS, FreeResources, TracePod

VERSION: Final = 1
_REASONS: Final = 3


@dataclass(frozen=True)
class SimulatedPod:
    """One pod under one policy. node: "" if it fits on none. fitting: on how many nodes it fits. elsewhere: why not on the others."""

    pod: str
    node: str
    gpus: Sequence[int]
    fitting: int
    elsewhere: str


def run(
    policy: str,
    ledger: Ledger,
    pods: Iterable[PendingPod],
    *,
    has_room: Callable[[PendingPod, str], bool] = lambda pod, node: True,
    taken: Callable[[PendingPod, str], None] = lambda pod, node: None,
    reasons: bool = True,
    largest: Largest | None = None,
) -> list[SimulatedPod]:
    """Place the pods on the ledger, which changes. has_room: whether a node may take a pod, GPUs aside. taken: told of each that was
    placed. reasons: also for pods that were placed, why not elsewhere. largest: of the GPUs, by which a pod larger than all of them is told
    what to write."""
    scarcity = Scarcity(ledger.classes)
    scarcity.observe(pod.request for node in ledger.nodes.values() for pod in node.pods)
    placement = Placement(policy, scarcity=scarcity)
    found = []
    for pod in pods:
        scarcity.observe([pod.request])
        request = ledger.for_pod(pod)
        nodes = [node for node in ledger.nodes.values() if has_room(pod, node.name)]
        fitting = [node for node in nodes if request.unsupported is None and node.remaining_after(request) is not None]
        name = ""
        gpus: tuple[int, ...] = ()
        kept: Counter[str] = Counter()
        if fitting:
            scores = placement.rank(request, fitting)
            name = next(name for name, score in scores.items() if score == BEST_SCORE)
            allocation = placement.choose(request, ledger.nodes[name])
            assert allocation is not None
            gpus = tuple(sorted(allocation.by_gpu))
            kept = Counter(placement.kept_for(request, node) for node in fitting if node.name != name) if reasons else kept
        elsewhere = "" if name else never(pod, largest)
        if not elsewhere and (reasons or not name):
            fits = {node.name for node in fitting}
            unfit = [node for node in ledger.nodes.values() if node.name not in fits]
            elsewhere = _elsewhere(request, unfit, nodes, kept)
        if name:
            ledger.apply(pod.allocated(name, allocation))
            taken(pod, name)
        found.append(SimulatedPod(str(pod), name, gpus, len(fitting), elsewhere))
    return found


def _elsewhere(request: Request, unfit: Sequence[NodeLedger], possible: Collection[NodeLedger], kept: Counter[str]) -> str:
    """Reasons with the number of nodes, the most frequent first. kept: how many nodes where it fits are kept, by for whom."""
    names = {node.name for node in possible}
    counts = Counter(no_fit(request, node).words if node.name in names else "takes no such pods" for node in unfit)
    counts.update({words: count for words, count in kept.items() if words})
    parts = [f"{count} {'node' if count == 1 else 'nodes'}: {words}" for words, count in counts.most_common(_REASONS)]
    more = sum(counts.values()) - sum(count for _, count in counts.most_common(_REASONS))
    return as_text("; ".join([*parts, *([f"{more} more nodes"] if more else [])]), 4096)


def run_trace(policy: str, hosts: Sequence[FreeResources], ledger: Ledger, pods: Sequence[TracePod]) -> list[SimulatedPod]:
    """As `run`, with the nodes' CPU and memory counted as kube-scheduler does. Hosts and ledger change.

    A pod without GPUs goes to the node that has most CPU left, of those without GPUs first.
    """
    by_name = {host.name: host for host in hosts}
    by_uid = {f"{number}": pod for number, pod in enumerate(pods)}
    without: dict[str, SimulatedPod] = {}

    def has_room(pending: PendingPod, node: str) -> bool:
        pod, host = by_uid[pending.uid], by_name[node]
        return host.cpu >= pod.cpu and host.memory >= pod.memory

    def taken(pending: PendingPod, node: str) -> None:
        _take(by_name[node], by_uid[pending.uid])

    def asking() -> Iterator[PendingPod]:
        """The pods that request GPUs, one after the other. A pod without GPUs is placed here when its turn comes."""
        for uid, pod in by_uid.items():
            if pod.request is not None:
                yield PendingPod(uid, "trace", pod.name, pod.request)
                continue
            fits = [host for host in hosts if host.cpu >= pod.cpu and host.memory >= pod.memory]
            host = max(fits, key=lambda host: (host.name not in ledger.nodes, host.cpu), default=None)
            if host is not None:
                _take(host, pod)
            elsewhere = "" if host is not None else f"{len(hosts)} nodes: takes no such pods"
            without[uid] = SimulatedPod(f"trace/{pod.name}", host.name if host is not None else "", (), len(fits), elsewhere)

    placed = iter(run(policy, ledger, asking(), has_room=has_room, taken=taken, reasons=False))
    return [without[uid] if uid in without else next(placed) for uid in by_uid]


def _take(host: FreeResources, pod: TracePod) -> None:
    host.cpu, host.memory = host.cpu - pod.cpu, host.memory - pod.memory


def table_of(outcomes: dict[str, list[SimulatedPod]]) -> Table:
    """One row per pod, one column per policy."""
    policies = list(outcomes)
    table = Table(
        (Column("POD"), *(Column(policy.upper()) for policy in policies), Column("FITS", right=True), Column("ELSEWHERE", flexible=True))
    )
    for row in zip(*outcomes.values(), strict=True):
        # The first policy's; of one that places the pod nowhere, its own.
        told = next((outcome for outcome in row if not outcome.node), row[0])
        places = [
            Cell(f"{outcome.node}/{','.join(map(str, outcome.gpus))}" if outcome.gpus else outcome.node)
            if outcome.node
            else Cell(ABSENT, BAD)
            for outcome in row
        ]
        cells = [Cell(as_text(row[0].pod, 512)), *places, Cell(str(told.fitting), "", told.fitting), Cell(told.elsewhere)]
        table.rows.append(TableRow(f"pod/{as_text(row[0].pod, 512)}", cells))
    return table


def summary_of(outcomes: dict[str, list[SimulatedPod]], pods: Sequence[TracePod], gpus: int) -> Table:
    """One row per policy. GPUs: of all nodes."""
    table = Table(
        (
            Column("POLICY"),
            Column("PODS", right=True),
            Column("PLACED", right=True),
            Column("UNPLACED", right=True),
            Column("MEMORY", right=True),
        )
    )
    for policy, found in outcomes.items():
        placed = sum(pod.asked for outcome, pod in zip(found, pods, strict=True) if outcome.node)
        count = sum(bool(outcome.node) for outcome in found)
        share = f"{100 * placed / (gpus * UNITS):.1f}%" if gpus else ABSENT
        row = [Cell(policy), *(Cell(str(n), "", n) for n in (len(found), count, len(found) - count)), Cell(share, "", placed)]
        table.rows.append(TableRow(f"policy/{policy}", row))
    table.legend = ["MEMORY is the part of all GPUs' memory that is placed. Nothing ends, and nothing is preempted."]
    return table


def document(outcomes: dict[str, list[SimulatedPod]]) -> dict[str, Any]:
    """As JSON: by policy, a list of pods."""
    return {
        "v": VERSION,
        "policies": {
            policy: [
                {
                    "pod": outcome.pod,
                    "node": outcome.node,
                    "gpus": list(outcome.gpus),
                    "fitting": outcome.fitting,
                    "elsewhere": outcome.elsewhere,
                }
                for outcome in found
            ]
            for policy, found in outcomes.items()
        },
    }
