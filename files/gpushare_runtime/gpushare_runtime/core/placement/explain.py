# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Why a request does not fit: on a node, in numbers and a bounded number of wordings per answer; or on no GPU of the cluster, ever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_ledger import FAULT, NodeLedger
from gpushare_runtime.core.quantity import GIB, Unit
from gpushare_runtime.core.reasons import UnfitReason
from gpushare_runtime.core.request import ContainerRequest, Request

RESERVED_FOR: Final = "room is reserved for the group "
"""Before its name: other programs find it in what kube-scheduler reports."""
MOST_WORDINGS: Final = 10
"""kube-scheduler copies every distinct reason into the pod's condition at each attempt."""
_KEPT_BACK: Final = {
    "isolation": f"on a node with another isolation than {protocol.ASK_ISOLATION} requires, or with MPS, which gives a pod one GPU",
    "clients": "with as many MPS clients as the driver allows",
    "incompatible": "not of a model or UUID that the pod accepts",
    "links": f"without {protocol.ASK_LINKS} to enough others",
    "affinity": "with other pods than the pods' rules allow",
    "held back": "held back because the node rejected a pod of this size there",
}
_MOST_MODELS: Final = 3
_MOST_MODEL: Final = 40
_MOST_GROUP: Final = 80
# A number that is at least this large was meant in bytes: 64 MiB of units would be the memory of no machine.
_BYTES: Final = 64 * 1024 * 1024
# A number that is at least this large, in units of 1 GiB, was meant in MiB.
_MEBIBYTES: Final = 512


def amount(request: Request, unit: Unit | None = None) -> str:
    """The amount of a request, for a line of text. unit: of the nodes, None where it is unknown or they differ."""
    if request.whole_gpus:
        return f"{request.whole_gpus} whole {'GPU' if request.whole_gpus == 1 else 'GPUs'}"
    several = f" on {request.gpus_per_pod} GPUs" if request.gpus_per_pod > 1 else ""
    core = f" and {request.core} % of compute" if request.core else ""
    return f"{unit.amount(request.units) if unit else in_units(request.units)}{core}{several}"


def in_units(number: int) -> str:
    """So many units of an unknown size."""
    return f"{number} {'unit' if number == 1 else 'units'}"


class NoFit(NamedTuple):
    """Why a request does not fit on one of many nodes. hopeless: no eviction could help; fault: what could not be computed there."""

    reason: UnfitReason
    words: str
    hopeless: bool
    fault: str


def no_fit(request: Request, node: NodeLedger) -> NoFit:
    """The reason for a node on which a request does not fit, with a text that many nodes have in common."""
    nothing: tuple[UnfitReason, str] = "fault", FAULT
    reason, words = node.guarded(partial(_alike, request, node), nothing)
    hopeless = not node.guarded(partial(node.fits_when_empty, request), True)
    return NoFit(*(nothing if node.fault else (reason, words)), hopeless, node.fault)


def failed_nodes(request: Request, unfit: Mapping[str, NoFit], node_of: Callable[[str], NodeLedger]) -> dict[str, str]:
    """Node name → why the request does not fit there. Up to ten nodes are named each with its numbers, more in groups."""
    if len(unfit) <= MOST_WORDINGS:
        return {name: f"{name}: {_guarded(exact, request, node_of(name))}" for name in unfit}
    groups = {name: no_fit.words for name, no_fit in unfit.items()}
    if len(set(groups.values())) > MOST_WORDINGS:
        return dict.fromkeys(groups, f"no node has {_wanted(request, None)}")
    return groups


def _guarded(words: Callable[[Request, NodeLedger], str], request: Request, node: NodeLedger) -> str:
    found = node.guarded(partial(words, request, node), FAULT)
    return FAULT if node.fault else found


def exact(request: Request, node: NodeLedger) -> str:
    """The numbers of one node, and for which groups its room is reserved."""
    return numbers(request, node).words + reserved_for(reserving(request, node))


def reserving(request: Request, node: NodeLedger) -> list[str]:
    """The names of the groups without whose reservations a request would fit, sorted; [] if it would not."""
    reserved = {pod.uid: pod.group.name for pod in node.pods if pod.group is not None}
    if not reserved or node.simulate(without=reserved).remaining_after(request) is None:
        return []
    return sorted(set(reserved.values()))


def reserved_for(groups: Sequence[str]) -> str:
    """The words about reservations of groups, to follow others; "" for none."""
    more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
    return f"; {RESERVED_FOR}{as_text(groups[0], _MOST_GROUP)}{more}" if groups else ""


def _reason(request: Request, node: NodeLedger) -> UnfitReason:
    """The reason apart from reservations of groups."""
    if node.inventory is None:
        return "no-inventory"
    if request.core and not node.inventory.core:
        return "no-compute"
    # A restriction counts if it alone keeps the pod off every usable GPU, whatever is free there.
    whys = {*node.exclusions(request)} - {"unusable"}
    if whys == {"incompatible"}:
        return "incompatible"
    if whys == {"isolation"}:
        return "isolation"
    if request.rules.links and request.gpus > 1 and not node.fits_when_empty(request) and len(node.gpu_states) >= request.gpus:
        return "no-links"
    if request.whole_gpus:
        return "too-small" if request.whole_gpus > sum(1 for _ in node.usable) else "no-room"
    return "too-small" if request.per_gpu > max((state.gpu.units for state in node.usable), default=0) else "no-room"


class Numbers(NamedTuple):
    """The numbers of one node, without groups. alike: the same without its sums, which differ among nodes with the same reason."""

    words: str
    alike: str


def numbers(request: Request, node: NodeLedger) -> Numbers:
    """Why a request does not fit on a node."""
    reason = _reason(request, node)
    if node.inventory is None:
        return _without_sums(_no_inventory(node))
    wanted = _wanted(request, node.inventory.unit)
    if reason == "no-compute":
        return _without_sums(_no_compute(wanted))
    if reason == "incompatible":
        models = sorted({as_text(state.gpu.model, _MOST_MODEL) for state in node.usable})[:_MOST_MODELS]
        return _without_sums(f"needs {wanted}, its GPUs ({', '.join(models)}) are {_KEPT_BACK['incompatible']}")
    if reason == "isolation":
        return _without_sums(f"needs {wanted}, {_other_isolation(request, node.inventory)}")
    if reason == "no-links":
        return _without_sums(f"needs {wanted}, {_other_links(request, node.inventory)}")
    usable = [state.gpu for state in node.usable]
    out = len(node.inventory.gpus) - len(usable)
    without = f", {out} not usable" if out else ""
    kept = _kept_back(request, node)
    if request.whole_gpus:
        return _without_sums(f"needs {wanted}, {node.empty_gpus()} of {len(node.gpu_states)} GPUs are empty{without}{kept}")
    size, total = max((gpu.units for gpu in usable), default=0), sum(gpu.units for gpu in usable)
    if reason == "too-small":
        words = f"needs {wanted}, its largest GPU has {size}"
        return Numbers(f"{words} ({total} in total on {_gpus(len(usable))}{without})", words)
    words = f"needs {wanted}, {_most(request, node)}"
    return Numbers(f"{words} ({node.free} of {total} in total{without}){kept}", f"{words}{kept}")


def _without_sums(words: str) -> Numbers:
    return Numbers(words, words)


def _alike(request: Request, node: NodeLedger) -> tuple[UnfitReason, str]:
    """(the reason, it in fewer words, which many nodes have in common)."""
    reason, groups = _reason(request, node), reserving(request, node)
    return "reserved" if groups else reason, _few(request, node, reason) + reserved_for(groups)


def _few(request: Request, node: NodeLedger, reason: UnfitReason) -> str:
    if node.inventory is None:
        return _no_inventory(node)
    wanted = _wanted(request, node.inventory.unit)
    if reason == "no-compute":
        return _no_compute(wanted)
    if request.whole_gpus:
        return f"needs {wanted}, {node.empty_gpus()} are empty{_kept_back(request, node)}"
    return f"needs {wanted}, {_most(request, node)}{_kept_back(request, node)}"


def _most(request: Request, node: NodeLedger) -> str:
    if request.gpus_per_pod > 1:
        fitting = sum(state.free >= request.per_gpu for state in node.usable)
        return f"{fitting} {'GPU has' if fitting == 1 else 'GPUs have'} that free"
    most = f"at most {node.largest_free()} are free on one"
    if not request.core:
        return most
    core = max((state.core for state in node.usable if state.free >= request.per_gpu), default=0)
    return f"{most}, and at most {core} % of compute beside such memory"


def _no_compute(wanted: str) -> str:
    return f"needs {wanted}, but its isolation shares out no compute ({protocol.RESOURCE_CORE})"


def _other_isolation(request: Request, inventory: Inventory) -> str:
    if not request.rules.isolation or inventory.isolation == request.rules.isolation:
        return "the node has MPS, which gives a pod one GPU"
    return f"the node has another isolation ({inventory.isolation or 'unknown'}) than {request.rules.isolation}"


def _other_links(request: Request, inventory: Inventory) -> str:
    if inventory.links is None:
        return f"the links of its GPUs are not known ({protocol.ASK_LINKS}: {request.rules.links})"
    most = max(map(len, inventory.links.connected(gpu.index for gpu in inventory.gpus)), default=0)
    return f"NVLinks connect at most {most} of its GPUs" if most > 1 else "no NVLinks connect its GPUs"


def _kept_back(request: Request, node: NodeLedger) -> str:
    """GPUs that have the room, and why they are not given all the same."""
    whys = node.exclusions(request)
    parts = [f"{_gpus(whys.count(why))} {text}" for why, text in _KEPT_BACK.items() if why in whys]
    return f"; {', '.join(parts)}" if parts else ""


def _no_inventory(node: NodeLedger) -> str:
    if node.inventory_error:
        return f"its {node.inventory_error}"
    return f"no annotation {protocol.ANNOTATION_GPUS} on the node: gpushare-device-plugin has not run there"


def _wanted(request: Request, unit: Unit | None) -> str:
    if request.whole_gpus:
        return f"{request.whole_gpus} whole {'GPU' if request.whole_gpus == 1 else 'GPUs'}"
    name = "units" if unit is None else unit.name if unit == GIB else f"units of {unit}"
    core = f" and {request.core} % of compute" if request.core else ""
    if request.gpus_per_pod > 1:
        return f"{request.per_gpu} {name} on each of {request.gpus_per_pod} GPUs"
    return f"{request.units} {name}{core} on one GPU"


def _gpus(count: int) -> str:
    return f"{count} {'GPU' if count == 1 else 'GPUs'}"


@dataclass(frozen=True)
class Largest:
    """The largest of what the cluster has. GPU: units of its largest GPU, in `unit`; gpu_count: of its node with most GPUs."""

    unit: Unit
    gpu: int
    gpu_count: int


def largest_of(inventories: Iterable[Inventory]) -> Largest | None:
    """None while no GPUs are known. Health does not count: a GPU that is out today may be back tomorrow."""
    unit, mib, units, gpus = None, 0, 0, 0
    for inventory in inventories:
        gpus = max(gpus, len(inventory.gpus))
        for gpu in inventory.gpus:
            if gpu.units * inventory.unit.mib > mib:
                unit, mib, units = inventory.unit, gpu.units * inventory.unit.mib, gpu.units
    return Largest(unit, units, gpus) if unit else None


def asked(request: Request, largest: Largest | None, unit: Unit | None) -> str:
    """The amount that a waiting pod asks for. unit: as in `amount`; a number that no GPU is large enough for was meant otherwise."""
    return amount(request, None if largest and too_large(request, largest) else unit)


class TooLarge(NamedTuple):
    """Why no GPU (or no node) is large enough for a request. instead: the amount to write in one line, 0 where one line would not do."""

    words: str
    instead: int = 0


def too_large(request: Request, largest: Largest) -> TooLarge | None:
    """Why no GPU (or no node) is large enough even when empty, and what to write; None if one is."""
    if request.whole_gpus > largest.gpu_count:
        return TooLarge(
            f"{request.whole_gpus} whole GPUs of one node are asked for ({protocol.RESOURCE_GPUS}); "
            f"the largest node has {largest.gpu_count}; write at most {largest.gpu_count}",
            largest.gpu_count,
        )
    if request.gpus_per_pod > 1:
        words = _too_large_for_several(request, largest)
        return TooLarge(words) if words else None
    several = len(request.containers) > 1
    for container in request.containers:
        found = explain_size(container, largest.unit, largest.gpu)
        if found is not None:
            return TooLarge(f"container {container.name!r}: {found.words}") if several else found
    if request.units > largest.gpu:
        return TooLarge(
            f"the pod's containers ask for {request.units} units of {largest.unit} together, which must be on one GPU; "
            f"the largest GPU has {largest.gpu}; write at most {largest.gpu} in total"
        )
    return None


def _too_large_for_several(request: Request, largest: Largest) -> str | None:
    label = f"the pod label {protocol.LABEL_GPUS_PER_POD}: {str(request.gpus_per_pod)!r}"
    if request.gpus_per_pod > largest.gpu_count:
        most = largest.gpu_count
        return f"{label} asks for memory on so many GPUs of one node; the largest node has {most}; write at most {most}"
    if request.per_gpu > largest.gpu:
        most = largest.gpu * request.gpus_per_pod
        return (
            f"{label} spreads {request.units} units of {largest.unit}, {request.per_gpu} on each GPU; the largest GPU has "
            f"{largest.gpu}; write at most {most} in total, or more GPUs"
        )
    return None


def explain_size(container: ContainerRequest, unit: Unit, largest: int) -> TooLarge | None:
    """A message about a request that exceeds every GPU, and what to write instead; None if a GPU of `largest` units is enough."""
    if container.units <= largest:
        return None
    text = f"{container.written} means {container.units} units of {unit}; the largest GPU has {largest}"
    meant = 0
    if container.units >= _BYTES:
        meant = -(-container.units // (unit.mib * 1024 * 1024))
    elif container.units >= _MEBIBYTES:
        meant = -(-container.units // unit.mib)
    if 0 < meant <= largest:
        return TooLarge(f"{text}; write {meant}", meant)
    return TooLarge(f"{text}; write at most {largest}", largest)
