# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare explain`: on which nodes the GPUs have room for a pod, why not on the others, and what would change that. Pure.

Every cure that is named was tried on a copy of the node's ledger.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from gpushare_runtime.core.bounds import as_text, quote
from gpushare_runtime.core.ledger import NodeLedger
from gpushare_runtime.core.placement.explain import RESERVED_FOR, Largest, amount, in_units, numbers, reserved_for, reserving
from gpushare_runtime.core.placement.policies import FIRST_FIT, Placement
from gpushare_runtime.core.placement.scarcity import Scarcity
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.core.quantity import GIB, Unit
from gpushare_runtime.core.request import Request
from gpushare_runtime.dra.slices import HELD
from gpushare_runtime.kubectl_gpushare.causes import cause_in
from gpushare_runtime.kubectl_gpushare.cluster import UNKNOWN_NODE, Cluster, why_never
from gpushare_runtime.kubectl_gpushare.layout import ABSENT, BAD, GOOD, Cell, Column, Table, TableRow
from gpushare_runtime.kubectl_gpushare.views import CLOSED, closed, orphans

VERSION: Final = 1
_LESSER: Final = (
    "fits on no node: pods of lower priority are in the way; kube-scheduler before 1.38 cannot evict for room on one GPU "
    "(kubernetes/kubernetes#135486)"
)
_LESSER_OF_GROUP: Final = (
    "fits on no node: pods of lower priority are in the way; kube-scheduler from 1.37 on evicts none for a group, as it asks no extender"
)
_LESSER_OF_CLAIM: Final = "fits on no node: pods of lower priority are in the way, and kube-scheduler evicts none for a claim"
NOT_JUDGED: Final = "Only GPUs are judged: not CPU, main memory, taints, selectors or volumes."
MOST_NAMED: Final = 3
_MOST_SPANS: Final = 6
OUR_SCHEDULERS: Final = ("", "default-scheduler", "gpushare-scheduler")
"""kube-scheduler as site.yml configures it, and the one that runs as pods where gpushare is installed in the cluster."""
GATED: Final = re.compile(r"non-empty scheduling gates")
"""What the API server reports of a pod that kube-scheduler must not see yet, such as one in a queue of Kueue."""
# The reasons that kube-scheduler reports about other things than GPUs, in its words, and in ours; and what excludes nodes such as control
# planes.
_OTHER_REASONS: Final = (
    (re.compile(r"Insufficient cpu"), "CPU"),
    (re.compile(r"Insufficient memory"), "main memory"),
    (re.compile(r"Insufficient ephemeral-storage"), "disk of a node"),
    (re.compile(r"Too many pods"), "a node with room for one more pod"),
    (re.compile(r"pod (anti-)?affinity|topology spread"), "its rules about other pods"),
    (re.compile(r"volume|PersistentVolume|persistentvolume"), "a volume"),
    (
        re.compile(r"ResourceClaim not created yet"),
        "its ResourceClaim, which is not made yet: kubectl describe pod has an Event with the reason",
    ),
    (GATED, "the removal of its scheduling gates"),
    (re.compile(rf"{RESERVED_FOR}([^\s,;]{{1,80}})"), r"the group \1, for which room is reserved"),
    (re.compile(r"\bminCount\b|pod group is unschedulable"), "room for all pods of its group at once"),
)
_EXCLUDING: Final = (
    (re.compile(r"untolerated taint"), "a node without a taint that it does not tolerate"),
    (re.compile(r"didn't match Pod's node (affinity|selector)|didn't satisfy plugin"), "a node that its selector or affinity allows"),
)
_COUNTED: Final = re.compile(r"(\d{1,7}) ([^,]+)")
# In kube-scheduler's words and in the extender's, that GPUs are the reason, and what a pod could have had.
_NO_GPUS: Final = re.compile(r"needs [^,;]{1,80} (?:on one GPU|GPUs?)|no node has |Insufficient aliyun\.com/gpu|cannot allocate all claims")
_FREE: Final = re.compile(r"at most (\d{1,9}) are free on one")
ALONE: Final = "Only the pod itself was judged: to say which node has room, explain needs to list nodes and all pods."


@dataclass(frozen=True)
class Cure:
    """A change that alone makes a pod fit on a node. text: the change, to follow "if you".

    A smaller request is for at most `number` units per GPU, or whole GPUs. The cure "processes" waits for those that `pods` left behind.
    The cure "end" ends the pods `pods`. The cures "uncordon" and "repair" are of GPU `number`, as "processes" is without pods.
    """

    kind: Literal["smaller", "processes", "end", "uncordon", "repair", "uncordon-node", "describe-node"]
    text: str
    pods: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True)
class NodeVerdict:
    """One node. GPUs: those that the pod would get, () where it does not fit.

    reason: why not, apart from `groups`: those for which room is reserved that it needs; where it fits, the links of several GPUs.
    alike: the reason without sums of the node, "" for one that has none. cures: each alone makes it fit. kept: for whom its GPUs are kept,
    where it fits. lesser: pods of lower priority whose end makes room, where kube-scheduler cannot evict them. by_claim: whether it counts
    GPU memory itself.
    """

    node: str
    gpus: Sequence[int]
    reason: str = ""
    cures: Sequence[Cure] = ()
    kept: str = ""
    lesser: Sequence[str] = ()
    groups: Sequence[str] = ()
    alike: str = ""
    by_claim: bool = False

    @property
    def fits(self) -> bool:
        return bool(self.gpus)

    @property
    def words(self) -> str:
        """The whole reason."""
        return self.reason + reserved_for(self.groups)


@dataclass(frozen=True)
class Conclusion:
    """The verdict in one sentence. cure: the change that it names, on `node` where it is of one; None for none."""

    sentence: str
    cure: Cure | None = None
    node: str = ""


def explain(cluster: Cluster, pod: PendingPod, placement: Placement | None = None) -> list[NodeVerdict]:
    """Of every node with GPUs: those where it fits first, best first as the policy ranks them."""
    placement = placement or usual(cluster)
    return ranked(cluster, pod, list(verdicts(cluster, pod, placement)), placement)


def usual(cluster: Cluster) -> Placement:
    """The default policy, which has seen the requests of all pods; that of kube-scheduler where it counts GPU memory itself."""
    if cluster.claims.in_use:
        return Placement(FIRST_FIT)
    scarcity = Scarcity(cluster.ledger.classes)
    scarcity.observe(pod.request for node in cluster.nodes for pod in node.pods)
    scarcity.observe(wait.pod.request for wait in cluster.waiting.values() if isinstance(wait.pod, PendingPod))
    return Placement(scarcity=scarcity)


def verdicts(cluster: Cluster, pod: PendingPod, placement: Placement) -> Iterator[NodeVerdict]:
    """As `explain`, one node after the other, in no order: a few milliseconds each."""
    request = cluster.ledger.for_pod(pod)
    for node in cluster.nodes:
        if node.inventory or node.inventory_error:
            yield _verdict(cluster, node, request, placement, pod)


def ranked(cluster: Cluster, pod: PendingPod, found: Collection[NodeVerdict], placement: Placement) -> list[NodeVerdict]:
    """In the order of `explain`."""
    fit, request = {verdict.node for verdict in found if verdict.fits}, cluster.ledger.for_pod(pod)
    ranks = placement.rank(request, [node for node in cluster.nodes if node.name in fit]) if fit else {}
    return sorted(found, key=lambda verdict: (not verdict.fits, -ranks.get(verdict.node, 0), verdict.node))


def _verdict(cluster: Cluster, node: NodeLedger, request: Request, placement: Placement, pod: PendingPod) -> NodeVerdict:
    if request.unsupported is not None:
        return NodeVerdict(node.name, (), request.unsupported)
    allocation = placement.choose(request, node)
    if cluster.infos.get(node.name, UNKNOWN_NODE).cordoned:
        return NodeVerdict(
            node.name,
            (),
            "the node takes no new pods (kubectl cordon)",
            (Cure("uncordon-node", f"kubectl uncordon {node.name}"),) if allocation else (),
        )
    shut = closed(node, cluster.infos.get(node.name, UNKNOWN_NODE))
    if shut:
        name = node.name
        describe = Cure("describe-node", f"bring node {name} back: kubectl describe node {name} says why it is away")
        return NodeVerdict(node.name, (), f"{CLOSED[shut]}: the node takes no new pods", (describe,))
    if allocation is not None:
        gpus, links = sorted(allocation.by_gpu), node.inventory.links if node.inventory is not None else None
        return NodeVerdict(node.name, gpus, links.in_words(gpus) if links is not None else "", kept=placement.kept_for(request, node))
    by_claim = cluster.claims.in_use
    lesser = tuple(_in_the_way(node, request, pod.priority)) if by_claim or _of_group(pod) or _counts_as_room(node, request) else ()
    words, alike = numbers(request, node)
    return NodeVerdict(
        node.name, (), words, tuple(_cures(node, request)), lesser=lesser, groups=reserving(request, node), alike=alike, by_claim=by_claim
    )


def _of_group(pod: PendingPod) -> bool:
    """Whether kube-scheduler tries it together with others, and so evicts no pod for it."""
    return pod.group is not None and pod.group.at_once


def _cures(node: NodeLedger, request: Request) -> Iterator[Cure]:
    if node.inventory is None:
        return
    smaller = _largest(node, request)
    if smaller:
        yield Cure("smaller", f"ask for at most {_size(request, smaller, node.inventory.unit)}", number=smaller)
    orphans = _orphans(node, request)
    if orphans:
        yield Cure("processes", f"wait for the processes of {some(orphans)} to end, which run although the pod is deleted", tuple(orphans))
    in_the_way = _in_the_way(node, request)
    if in_the_way:
        yield Cure("end", f"end {some(in_the_way)}", tuple(in_the_way))
    changes: tuple[tuple[Literal["uncordon", "repair"], dict[str, Any]], ...] = (
        ("uncordon", {"cordoned": False}),
        ("repair", {"health": "ok"}),
    )
    for kind, change in changes:
        gpus = [gpu.index for gpu in node.inventory.gpus if any(getattr(gpu, name) != value for name, value in change.items())]
        for index in gpus:
            changed = tuple(replace(gpu, **change) if gpu.index == index else gpu for gpu in node.inventory.gpus)
            other = node.simulate()
            other.set_record(replace(node.record, inventory=replace(node.inventory, gpus=changed)))
            if other.candidates(request):
                if kind == "repair" and node.inventory.by_index[index].health == HELD:
                    yield Cure("processes", f"wait for the processes on GPU {index} to end, whose pods are gone", number=index)
                else:
                    yield Cure(kind, f"{kind} GPU {index}", number=index)
                break


def _size(request: Request, number: int, unit: Unit) -> str:
    """The text for the size of another request of this shape. number: units per GPU, as a manifest has it, or whole GPUs."""
    if request.whole_gpus:
        return f"{number} whole {'GPU' if number == 1 else 'GPUs'}"
    return (f"{number} {unit.name}" if unit == GIB else in_units(number)) + (
        f" on each of {request.gpus_per_pod} GPUs" if request.gpus_per_pod > 1 else ""
    )


def _largest(node: NodeLedger, request: Request) -> int:
    """The largest request of this shape that fits: units per GPU, or whole GPUs; 0 if only the size is not the reason."""
    possible = [state for state in node.gpu_states if node.exclusion(request, state) in ("", "room")]
    if request.whole_gpus:
        return sum(state.empty for state in possible)
    frees = sorted((state.free for state in possible if state.core >= request.core), reverse=True)
    return frees[request.gpus_per_pod - 1] if len(frees) >= request.gpus_per_pod else 0


def some(names: Sequence[str]) -> str:
    """The first ones, and how many more."""
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _counts_as_room(node: NodeLedger, request: Request) -> bool:
    """Whether the node has room by kube-scheduler's count, by sums alone: then it evicts no pod."""
    usable = {state.gpu.index: state.gpu.units for state in node.usable}
    if request.whole_gpus:
        return len(usable) - sum(pod.request.whole_gpus for pod in node.pods) >= request.whole_gpus
    taken = sum(units for pod in node.pods if not pod.whole for index, units in (node.gpus_of(pod) or {}).items() if index in usable)
    return sum(usable.values()) - taken >= request.units


def _orphans(node: NodeLedger, request: Request) -> list[str]:
    """The deleted pods without whose processes it fits; [] if that would not help."""
    gone = {entry.uid: entry.pod for entry in orphans(node)}
    left = tuple(entry for entry in node.record.held.entries if entry.uid not in gone)
    other = node.copy()
    other.set_record(replace(node.record, held=replace(node.record.held, entries=left)))
    return sorted(as_text(name or uid, 512) for uid, name in gone.items()) if gone and other.candidates(request) else []


def _in_the_way(node: NodeLedger, request: Request, below: int | None = None) -> list[str]:
    """The fewest pods found without which it fits, as namespace/name; [] if that would not help. below: only pods of lower priority."""
    wanted = request.gpus
    options: list[tuple[int, int, list[str]]] = []
    for state in node.gpu_states:
        if not node.exclusion(request, state):
            options.append((0, 0, []))
        elif node.exclusion(request, state) == "room" and state.gpu.units >= request.per_gpu:
            uids, freed = _fewest(node, state.gpu.index, request.per_gpu - state.free, bool(request.whole_gpus), below)
            if uids:
                options.append((len(uids), freed, uids))
    chosen = sorted(options)[:wanted]
    uids_to_end = {uid for _, _, uids in chosen for uid in uids}
    if len(chosen) < wanted or not node.simulate(without=uids_to_end).candidates(request):
        return []
    return sorted(f"{pod.namespace}/{pod.name}" for pod in node.pods if pod.uid in uids_to_end)


def _fewest(node: NodeLedger, index: int, missing: int, everything: bool, below: int | None) -> tuple[list[str], int]:
    """(UIDs of pods of a GPU, largest first, that free what is missing, and the units that they free). ([], 0) if too few may go.

    below: as in `_in_the_way`.
    """
    on_gpu = []
    for pod in node.pods:
        units = (node.gpus_of(pod) or {}).get(index, 0)
        if units and (below is None or pod.priority < below):
            on_gpu.append((units, pod.uid))
        elif units and everything:
            return [], 0
    uids: list[str] = []
    freed = 0
    for units, uid in sorted(on_gpu, reverse=True):
        if freed >= missing and not everything:
            break
        uids.append(uid)
        freed += units
    return (uids, freed) if freed >= missing else ([], 0)


def headline(pod: PendingPod, found: Sequence[NodeVerdict], reported: str, largest: Largest | None, scheduler: str = "") -> str:
    """The sentence of `conclude`."""
    return conclude(pod, found, reported, largest, scheduler).sentence


def conclude(pod: PendingPod, found: Sequence[NodeVerdict], reported: str, largest: Largest | None, scheduler: str = "") -> Conclusion:
    """The verdict on all nodes. reported: by the pod's scheduler, whose name is `scheduler`; largest: of the cluster's GPUs."""
    conclusion = _conclude(pod, found, reported, largest, who_of(scheduler))
    return replace(conclusion, sentence=conclusion.sentence + _other(scheduler))


def who_of(scheduler: str) -> str:
    """The name of a pod's scheduler in sentences."""
    return "kube-scheduler" if scheduler in OUR_SCHEDULERS else "its scheduler"


def _other(scheduler: str) -> str:
    """The words about a scheduler that is not ours."""
    if scheduler in OUR_SCHEDULERS:
        return ""
    question = "does it run, and does it call the extender of gpushare?"
    return f"; its scheduler is another one, {quote(scheduler)} (spec.schedulerName): {question}"


def never(pod: PendingPod, largest: Largest | None) -> str:
    """The verdict on a pod that could not run on an empty cluster either; "" if it could, as far as is known."""
    words = why_never(pod, largest)
    return f"{'fits on no node' if pod.request.unsupported else 'fits on no GPU, even an empty one'}: {words}" if words else ""


def alone(pod: PendingPod, reported: str, told: str, largest: Largest | None, scheduler: str = "") -> tuple[str, bool]:
    """The verdict in one sentence by the pod itself, where not all nodes and pods may be read; and whether there is one yet.

    told: by the extender's Event; the others as in `headline`.
    """
    sentence = never(pod, largest) or told
    if not sentence and reported:
        sentence = _as_reported(pod.request, reported, who_of(scheduler))
    return f"{sentence or f'{who_of(scheduler)} has reported nothing yet: ask again in a moment'}{_other(scheduler)}", bool(sentence)


def _as_reported(request: Request, reported: str, who: str) -> str:
    if not _NO_GPUS.search(reported):
        return f"fits on no node, as {who} last reported: it waits for {_waits_for(reported, 0) or 'what is reported below'}"
    smaller = max((int(free) for free in _FREE.findall(reported)), default=0)
    change = f"write at most {smaller}, or " if 0 < smaller < request.per_gpu else ""
    return f"fits on no node, as {who} last reported: {change}wait for room"


def _conclude(pod: PendingPod, found: Sequence[NodeVerdict], reported: str, largest: Largest | None, who: str) -> Conclusion:
    """`who`: reports."""
    fitting = sum(verdict.fits for verdict in found)
    if fitting:
        nodes = f"{fitting} {'node' if fitting == 1 else 'nodes'}"
        what = _waits_for(reported, fitting)
        if what:
            return Conclusion(f"the GPUs fit on {nodes}: it waits for {what}")
        return Conclusion(f"the GPUs fit on {nodes}" + (f"; {who} has reported nothing yet" if not reported else ""))
    if words := never(pod, largest):
        return Conclusion(words)
    if not found:
        return Conclusion("fits on no node: no node has GPUs that are known")
    lesser = min((verdict.lesser for verdict in found if verdict.lesser), key=len, default=())
    if lesser:
        end = Cure("end", f"end {some(lesser)}", tuple(lesser))
        by_claim = any(verdict.by_claim for verdict in found)
        return Conclusion(f"{_LESSER_OF_CLAIM if by_claim else _LESSER_OF_GROUP if _of_group(pod) else _LESSER}: {end.text}", end)
    return _cheapest(pod.request, found)


def beside_gpus(reported: str) -> str:
    """The words of the scheduler, or "" where it is about GPUs alone: the table has that, node by node."""
    return "" if _NO_GPUS.search(reported) and not _waits_for(reported, 0) else reported


def _waits_for(reported: str, fitting: int) -> str:
    """fitting: nodes whose GPUs have room. Taints and selectors count only where other reasons do not explain all of these."""
    if cause := cause_in(reported):
        return cause.in_words()
    matches = ((pattern.search(reported), words) for pattern, words in _OTHER_REASONS)
    found = [match.expand(words) for match, words in matches if match]
    counts = [int(count) for count, reason in _COUNTED.findall(reported) if any(pattern.search(reason) for pattern, _ in _OTHER_REASONS)]
    if not found or (counts and sum(counts) < fitting):
        found += [words for pattern, words in _EXCLUDING if pattern.search(reported)]
    return " and ".join(found[:MOST_NAMED])


def _cheapest(request: Request, found: Sequence[NodeVerdict]) -> Conclusion:
    """A wait for processes first, then a request at least half as large, then the end of a cordon, which a person has decided, then the
    end of the fewest pods, then other changes."""
    ranked = [(*_rank(request, verdict.node, cure), verdict.node, cure) for verdict in found for cure in verdict.cures]
    if not ranked:
        return Conclusion("fits on no node, and no single change would help")
    *_, text, node, cure = min(ranked, key=lambda row: row[:3])
    return Conclusion(f"fits on no node; cheapest change: {text}", cure, node)


def _rank(request: Request, node: str, cure: Cure) -> tuple[int, int, str]:
    """(class, cost within it, the words of the cure where its node is not known)."""
    if cure.kind == "smaller":
        enough = 2 * cure.number >= (request.whole_gpus or request.per_gpu)
        return 1 if enough else 4, -cure.number, cure.text
    if cure.kind in ("uncordon", "uncordon-node"):
        command = cure.text if cure.kind == "uncordon-node" else f"kubectl gpushare uncordon {node} {cure.number}"
        return 2, 0, f"{command}, if the person who cordoned it agrees"
    if cure.kind == "processes":
        return 0, 0, f"{cure.text} (nvidia-smi on {node} lists them)"
    if cure.kind == "end":
        return 3, len(cure.pods), cure.text
    return 5, 0, f"{cure.text} of {node}" if cure.kind == "repair" else cure.text


def grouped(found: Sequence[NodeVerdict]) -> list[tuple[list[str], NodeVerdict]]:
    """The nodes of each kind of verdict, in the order of the first of them, and one verdict for them: that of the best of them."""
    groups: dict[tuple[str, str], list[NodeVerdict]] = {}
    for verdict in found:
        reason = (verdict.alike or verdict.reason) + reserved_for(verdict.groups)
        groups.setdefault((reason, verdict.kept), []).append(verdict)
    merged = []
    for (reason, _), some in groups.items():
        best = max(some, key=_ease)
        if len(some) > 1:
            linked = f", {reason}" if reason else ""
            reason = f"first choice: GPU {','.join(map(str, best.gpus))} of {best.node}{linked}" if best.fits else reason
            best = replace(best, reason=reason, groups=())
        merged.append(([verdict.node for verdict in some], best))
    return merged


def _ease(verdict: NodeVerdict) -> tuple[int, int]:
    """Larger for one whose cures cost less. Of equal ones the first is taken."""
    return len(verdict.cures), next((cure.number for cure in verdict.cures if cure.kind == "smaller"), 0)


def names_in_words(names: Iterable[str]) -> str:
    """Names with numbers in a row as a span: "gpu1, gpu4–gpu6"; of many the first ones."""
    spans: list[tuple[str, int, str, str]] = []
    for name in sorted(names, key=lambda name: [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]):
        prefix, digits = re.fullmatch(r"(.*?)(\d{0,9})", name, re.S).groups()  # type: ignore[union-attr]
        number = int(digits) if digits else -1
        if spans and digits and spans[-1][0] == prefix and spans[-1][1] + 1 == number:
            spans[-1] = prefix, number, spans[-1][2], name
        else:
            spans.append((prefix, number, name, name))
    texts = [first if first == last else f"{first}, {last}" if number == _number(first) + 1 else f"{first}–{last}"
             for _, number, first, last in spans]  # fmt: skip
    more = f" and {len(texts) - _MOST_SPANS} more" if len(texts) > _MOST_SPANS else ""
    return ", ".join(texts[:_MOST_SPANS]) + more


def _number(name: str) -> int:
    found = re.search(r"(\d{1,9})$", name)
    return int(found[1]) if found else -1


def table_of(verdicts: Sequence[NodeVerdict], each: bool = False) -> Table:
    """One row per kind of verdict, with its nodes, and a column for GPUs where it fits on any. each: one row per node."""
    gpus = [Column("GPU")] if any(verdict.fits for verdict in verdicts) else []
    table = Table((Column("NODES"), Column("FITS"), *gpus, Column("REASON", flexible=True)), legend=[NOT_JUDGED])
    for nodes, verdict in [([verdict.node], verdict) for verdict in verdicts] if each else grouped(verdicts):
        where = f" on {verdict.node}" if len(nodes) > 1 else ""
        cures = f"; it fits{where} if you {', or '.join(cure.text for cure in verdict.cures)}" if verdict.cures else ""
        names = as_text(names_in_words(nodes), 253)
        cells = [
            Cell(names),
            Cell("yes", GOOD) if verdict.fits else Cell("no", BAD),
            *(Cell(",".join(map(str, verdict.gpus)) if verdict.gpus and len(nodes) == 1 else ABSENT) for _ in gpus),
            Cell(as_text("; ".join(filter(None, (f"{verdict.words}{cures}", verdict.kept))), 4096)),
        ]
        table.rows.append(TableRow(f"node/{names}", cells))
    return table


def document(pod: PendingPod, reason: str, verdicts: Sequence[NodeVerdict], verdict: str = "", complete: bool = True) -> dict[str, Any]:
    """As JSON. reason: what kube-scheduler reported, or what is wrong with the pod. verdict: the sentence. complete: whether all nodes and
    pods were read."""
    nodes = [
        {
            "name": node_verdict.node,
            "fits": node_verdict.fits,
            "gpus": list(node_verdict.gpus),
            "reason": node_verdict.words,
            "cures": [cure.text for cure in node_verdict.cures],
            "kept": node_verdict.kept,
        }
        for node_verdict in verdicts
    ]
    return {
        "v": VERSION,
        "complete": complete,
        "namespace": pod.namespace,
        "name": pod.name,
        "request": amount(pod.request),
        "verdict": verdict,
        "reason": reason,
        "fits": any(node_verdict.fits for node_verdict in verdicts),
        "nodes": nodes,
    }
