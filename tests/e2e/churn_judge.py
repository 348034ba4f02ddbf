# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the log of a churn shows: problems in words, none if all is right, and how much of what there was. No I/O."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise

from e2e.churn_log import ALLOCATION, ASSIGNED, ASSUME_TIME, CONTAINER_UNITS, GPU_UNITS, INDEX, POD_UNITS, Container, GpuOf, Log, Pod

# A pod that ran as long as this has been marked assigned, whatever the API server was busy with.
ASSIGNED_SECONDS = 10.0
# An orphaned process: by more than the kill of an ordinary one takes.
SURVIVED_SECONDS = 1.0


def wrong_gpus(log: Log) -> list[str]:
    """Containers whose device nodes, variables or ids are not their pod's annotations; annotations that contradict themselves."""
    given = {(entry.uid, entry.container): entry.ids for entry in log.given}
    problems = []
    for container in log.containers.values():
        pod = log.pods.get(container.uid)
        if pod is None or not pod.plan.units:
            problems.append(f"container {container.name} on {container.node} has a GPU and is of no pod of the churn")
            continue
        gpus = {gpu.index: gpu for gpu in log.gpus if gpu.node == container.node}
        found = [
            *_annotation_problems(pod, gpus),
            *_container_problems(pod, container, gpus),
            *_id_problems(given.get((container.uid, container.name)), container, gpus.values(), _units(pod, container)),
        ]
        problems += [f"{pod} container {container.name}: {problem}" for problem in found]
    return problems


def _units(pod: Pod, container: Container) -> int:
    return pod.plan.units[int(container.name[1:])]


def _allocation(pod: Pod) -> dict[int, dict[int, int]]:
    """Container → GPU → units by the annotation."""
    said = json.loads(pod.annotations.get(ALLOCATION, "{}"))
    return {int(container): {int(gpu): units for gpu, units in of.items()} for container, of in said.items()}


def _annotation_problems(pod: Pod, gpus: Mapping[int, GpuOf]) -> Iterator[str]:
    allocation, notes = _allocation(pod), pod.annotations
    used = sorted({gpu for of in allocation.values() for gpu in of})
    if set(allocation) != set(range(len(pod.plan.units))) or len(used) != pod.plan.spread or not set(used) <= set(gpus):
        yield f"it asks for {pod.plan.units} on {pod.plan.spread} gpu(s), and is annotated with {allocation}"
        return
    for place, units in enumerate(pod.plan.units):
        if sum(allocation[place].values()) != units or len(set(allocation[place].values())) != 1:
            yield f"container {place} asks for {units} and is annotated with {allocation[place]}"
    # The GPU that the old annotations name is the first container's first.
    first = min(allocation[0])
    for name, wanted in ((INDEX, first), (GPU_UNITS, gpus[first].units), (POD_UNITS, pod.plan.total)):
        if notes.get(name) != str(wanted):
            yield f"annotation {name} is {notes.get(name)!r}, by the allocation it is {wanted}"
    if not notes.get(ASSUME_TIME, "").isdecimal():
        yield f"annotation {ASSUME_TIME} is {notes.get(ASSUME_TIME)!r}, expected nanoseconds"
    if notes.get(ASSIGNED) != "true" and pod.running is not None and (pod.gone or float("inf")) - pod.running > ASSIGNED_SECONDS:
        yield f"annotation {ASSIGNED} is {notes.get(ASSIGNED)!r} although it ran for {ASSIGNED_SECONDS:g} s"


def _container_problems(pod: Pod, container: Container, gpus: Mapping[int, GpuOf]) -> Iterator[str]:
    annotated = _allocation(pod).get(int(container.name[1:]), {})
    wanted = sorted(f"nvidia{gpus[index].minor}" for index in annotated if index in gpus)
    if list(container.devices) != wanted:
        yield f"has {list(container.devices)} in /dev, its annotated GPUs {sorted(annotated)} are {wanted}"
    expected = {name: pod.annotations.get(name) for name in (INDEX, GPU_UNITS, POD_UNITS)}
    expected[CONTAINER_UNITS] = str(_units(pod, container))
    for name, value in expected.items():
        if container.environment.get(name) != value:
            yield f"PID 1 has {name}={container.environment.get(name)}, expected {value}"


def _id_problems(ids: tuple[str, ...] | None, container: Container, gpus: Iterable[GpuOf], units: int) -> Iterator[str]:
    if ids is None:
        yield "it runs, and kubelet's record never had ids for it"
        return
    per_gpu = Counter(i.partition("-_-")[0] for i in ids)
    has = {gpu.uuid for gpu in gpus if f"nvidia{gpu.minor}" in container.devices}
    if set(per_gpu) != has or len(ids) != units or len(set(per_gpu.values())) != 1:
        yield f"kubelet's record gives it {dict(per_gpu)}, it has the devices of {sorted(has)} and asks for {units}"


def never_seen(log: Log) -> list[str]:
    """Containers that have run by the word of the API server and are not in the nodes' log: it would not be complete."""
    return [
        f"container {identity[:12]} of {pod} has run, and the node's log has no start of it"
        for pod in log.pods.values()
        for identity in pod.containers
        if identity not in log.containers
    ]


def peaks(log: Log) -> dict[tuple[str, str], tuple[int, int, str]]:
    """(node, device) → most units at one time of containers with a live process, of how many, and which container made it so."""
    changes: dict[tuple[str, str], list[tuple[float, int, str]]] = {(gpu.node, f"nvidia{gpu.minor}"): [] for gpu in log.gpus}
    for container in log.containers.values():
        units = int(container.environment[CONTAINER_UNITS])
        for device in container.devices:
            share = units // len(container.devices)
            of = changes.setdefault((container.node, device), [])
            of.append((container.start, share, f"{container.name} of {log.pods.get(container.uid, container.uid)}"))
            if container.end is not None:
                of.append((container.end, -share, ""))
    sizes = {(gpu.node, f"nvidia{gpu.minor}"): gpu.units for gpu in log.gpus}
    found = {}
    for where, of in changes.items():
        held, most, who = 0, 0, ""
        for _, change, name in sorted(of, key=lambda item: item[:2]):
            held += change
            if held > most:
                most, who = held, name
        found[where] = most, sizes.get(where, 0), who
    return found


def over_booked(log: Log) -> list[str]:
    """GPUs whose live containers had more units than the GPU, at any time; and ids given while another's process had them."""
    problems = [
        f"{device} of {node} has {size} units, and live processes had {most} when {who} started"
        for (node, device), (most, size, who) in peaks(log).items()
        if most > size
    ]
    return problems + _ids_twice(log)


def _ids_twice(log: Log) -> list[str]:
    """Each id is its container's from kubelet's grant to the end of the process."""
    ends: dict[tuple[str, str], float] = {}
    for container in log.containers.values():
        key = container.uid, container.name
        ends[key] = max(ends.get(key, 0.0), float("inf") if container.end is None else container.end)
    had: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for entry in log.given:
        end = ends.get((entry.uid, entry.container))
        if end is not None:
            for i in entry.ids:
                had[i].append((entry.t, end, f"{entry.container} of {log.pods.get(entry.uid, entry.uid)}"))
    return [
        f"id {i} was given to {after[2]} while {before[2]} lived with it"
        for i, of in had.items()
        for before, after in pairwise(sorted(of))
        if after[0] < before[1]
    ]


def rejection_runs(log: Log) -> Counter[str]:
    """Name → how many pods of this name in a row kubelet has rejected."""
    runs: Counter[str] = Counter()
    by_name = sorted(log.pods.values(), key=lambda pod: (pod.plan.name, pod.created))
    for name, pods in groupby(by_name, lambda pod: pod.plan.name):
        for rejected, run in groupby(pods, lambda pod: pod.rejected):
            if rejected:
                runs[name] = max(runs[name], len(list(run)))
    return runs


def in_pairs(log: Log) -> list[Pod]:
    """Pods that were made together with another of the same size which got another GPU of the same node."""
    gpu = {container.uid: (container.node, container.devices) for container in log.containers.values()}
    groups: dict[tuple[int, tuple[int, ...]], list[Pod]] = defaultdict(list)
    for pod in log.pods.values():
        if pod.uid in gpu and len(pod.plan.units) == 1 and pod.plan.spread == 1:
            groups[pod.plan.group, pod.plan.units].append(pod)

    def parted(pod: Pod, group: Iterable[Pod]) -> bool:
        node, devices = gpu[pod.uid]
        return any(gpu[other.uid][0] == node and gpu[other.uid][1] != devices for other in group)

    return [pod for group in groups.values() for pod in group if parted(pod, group)]


def survivors(log: Log) -> list[Pod]:
    """Force-deleted pods with an orphaned process."""
    last: dict[str, float] = {}
    for container in log.containers.values():
        last[container.uid] = max(last.get(container.uid, 0.0), container.end or float("inf"))
    return [pod for pod in log.pods.values() if pod.forced and pod.gone and last.get(pod.uid, 0.0) > pod.gone + SURVIVED_SECONDS]


def _made(log: Log) -> list[Pod]:
    return [pod for pod in log.pods.values() if pod.plan.units]


def _witnesses(log: Log) -> list[Pod]:
    """Pods that were to run. One deleted on purpose before it ran is none; for a rejected one speaks the one made in its place."""
    pods = _made(log)
    replaced = {(pod.plan.name, pod.plan.group, pod.plan.retry - 1) for pod in pods}
    return [
        pod
        for pod in pods
        if not pod.early
        and (pod.asked_away is None or pod.reached or pod.failed is not None)
        and not (pod.rejected and (pod.plan.name, pod.plan.group, pod.plan.retry) in replaced)
    ]


def not_reached(log: Log) -> list[str]:
    """What became of each pod that kubelet rejected, and of each that was to run and did not."""
    pods = [pod for pod in _made(log) if pod.rejected] + [pod for pod in _witnesses(log) if not pod.reached and not pod.rejected]
    return [
        f"{pod}: {'had' if pod.plan.room else 'waited for'} room, created {pod.created:.1f}, bound {pod.bound}, "
        f"failed {pod.failed} {pod.reason} {pod.message}, asked away {pod.asked_away}, gone {pod.gone}"
        for pod in pods
    ]


@dataclass(frozen=True)
class Counts:
    """pods: made; room: had room and were to run, the last of its name where kubelet rejected some; room_reached: of these ran;
    late: had to wait for the end of others' processes; again: made under a name that another had before; started_again: containers;
    rejected: by kubelet; rejected_in_a_row: at most, of one name."""

    pods: int
    containers: int
    room: int
    room_reached: int
    late: int
    late_reached: int
    pairs: int
    forced: int
    survivors: int
    again: int
    several_containers: int
    several_gpus: int
    deleted_early: int
    slow: int
    started_again: int
    rejected: int
    rejected_in_a_row: int

    def __str__(self) -> str:
        return (
            f"{self.pods} pods, {self.containers} containers started: {self.pairs} pods in same-size pairs on different GPUs of a node, "
            f"{self.several_containers} with two containers, {self.several_gpus} on two GPUs, {self.again} under a name used before, "
            f"{self.deleted_early} deleted before they ran, {self.slow} slow to start, {self.started_again} containers started again; "
            f"{self.forced} deleted by force, {self.survivors} of them with a surviving "
            f"process; {self.room_reached} of {self.room} that had room ran, {self.late_reached} of {self.late} that had to wait for "
            f"others' processes; {self.rejected} rejected by kubelet, at most {self.rejected_in_a_row} of one name in a row"
        )


def counts(log: Log) -> Counts:
    pods, witnesses = _made(log), _witnesses(log)
    room, late = ([pod for pod in witnesses if pod.plan.room is with_room] for with_room in (True, False))
    return Counts(
        pods=len(pods),
        containers=len(log.containers),
        room=len(room),
        room_reached=sum(pod.reached for pod in room),
        late=len(late),
        late_reached=sum(pod.reached for pod in late),
        pairs=len(in_pairs(log)),
        forced=sum(pod.forced and not pod.rejected for pod in pods),
        survivors=len(survivors(log)),
        again=len(pods) - len({pod.plan.name for pod in pods}),
        several_containers=sum(len(pod.plan.units) > 1 for pod in pods),
        several_gpus=sum(pod.plan.spread > 1 for pod in pods),
        deleted_early=sum(pod.early for pod in pods),
        slow=sum(pod.plan.slow > 0 and pod.reached for pod in pods),
        started_again=len(log.containers) - len({(container.uid, container.name) for container in log.containers.values()}),
        rejected=sum(pod.rejected for pod in pods),
        rejected_in_a_row=max(rejection_runs(log).values(), default=0),
    )
