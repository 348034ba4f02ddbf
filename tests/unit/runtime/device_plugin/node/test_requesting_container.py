# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""This node's pods, and which of their containers kubelet is asking for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.device_plugin.node.id_recorder import UsageRecorder
from gpushare_runtime.device_plugin.node.id_usage import Usage
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import ContainerDevices, LocalPod, PendingContainer, PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.preferred_ids import allowed_gpus
from gpushare_runtime.device_plugin.node.requesting_container import PendingContainers, match_request
from unit.fakes.runtime.device_plugin.local_pods import bound, memory, whole
from unit.fakes.runtime.pods import container, inventory

MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
NODE = inventory(16, 16)


def table(*pods: dict[str, Any]) -> PodTable:
    made = PodTable()
    made.replace([])
    for pod in pods:
        made.event("ADDED", parse_local_pod(pod))
    return made


def names(pods: PodTable) -> list[str]:
    return [pod.name for pod in pods]


def asked(pods: PodTable, size: int, *served: tuple[str, str, str], late: bool = False) -> str | None:
    turn = match_request(pods, served, MEMORY, size, late=late)
    return f"{turn.pod.name}/{turn.devices.container}" if turn else None


def test_the_order_is_that_of_arrival_also_through_changes() -> None:
    pods = table(memory(NODE, 0, 1, name="b"), memory(NODE, 0, 1, name="a"))
    pods.event("MODIFIED", parse_local_pod(memory(NODE, 0, 1, name="b", uid=next(iter(pods)).uid, phase="Running")))
    assert names(pods) == ["b", "a"]


def test_a_list_is_taken_by_age_and_what_is_known_keeps_its_place() -> None:
    known = memory(NODE, 0, 1, name="known", created="2026-11-21T12:00:00Z")
    pods = table(known, memory(NODE, 0, 1, name="gone"))
    younger = memory(NODE, 0, 1, name="younger", created="2026-11-21T11:00:00Z")
    older = memory(NODE, 0, 1, name="older", created="2026-11-21T10:00:00Z")
    pods.replace([parse_local_pod(pod) for pod in (younger, older, known)])
    assert names(pods) == ["known", "older", "younger"]


def test_a_static_pod_has_kubelets_uid() -> None:
    pod = parse_local_pod(memory(None, 0, 1, annotations={"kubernetes.io/config.mirror": 32 * "a"}))
    assert (pod.uid, pod.static) == (32 * "a", True)


def test_init_containers_are_asked_for_first_and_the_allocation_is_of_containers() -> None:
    pod = parse_local_pod(bound(NODE, {0: {1: 2}, -1: {1: 1}}, container("main", mem=2), init=[container("first", mem=3)]))
    assert pod.container_devices == (ContainerDevices("first", MEMORY, 3, {1: 3}), ContainerDevices("main", MEMORY, 2, {1: 2}))


def test_both_resources_in_one_container_are_two_questions() -> None:
    pod = parse_local_pod(bound(None, {}, container(mem=2, count=1)))
    assert [(ask.resource, ask.size) for ask in pod.container_devices] == [(MEMORY, 2), (GPUS, 1)]
    assert match_request([pod], [], GPUS, 1) is not None
    assert match_request([pod], [(pod.uid, "main", MEMORY)], GPUS, 1) is not None


@pytest.mark.parametrize("annotation", ["{", '{"0":{"1":-2}}', '{"x":{"1":2}}'])
def test_an_allocation_that_cannot_be_read_is_no_allocation(annotation: str) -> None:
    pod = parse_local_pod(memory(NODE, 1, 2, annotations={"scheduler.framework.gpushare.allocation": annotation}))
    assert pod.allocation is None
    assert [ask.units_by_gpu for ask in pod.container_devices] == [{}]


def test_the_first_that_asks_for_this_size() -> None:
    pods = table(memory(NODE, 0, 2, name="two"), memory(NODE, 0, 3, name="three"), memory(NODE, 0, 2, name="another"))
    assert (asked(pods, 3), asked(pods, 2), asked(pods, 4)) == ("three/main", "two/main", None)


def test_what_has_its_ids_is_passed() -> None:
    pods = table(memory(NODE, 0, 2, name="one", uid="1"), memory(NODE, 0, 2, name="two"))
    assert asked(pods, 2, DeviceKey("1", "main", MEMORY)) == "two/main"


def test_a_later_container_waits_for_its_turn() -> None:
    pods = table(bound(NODE, {0: {0: 1}, 1: {0: 2}}, container("a", mem=1), container("b", mem=2), name="pair", uid="1"))
    assert (asked(pods, 2), asked(pods, 2, DeviceKey("1", "a", MEMORY))) == (None, "pair/b")


def test_a_pod_that_is_half_served_comes_before_older_ones() -> None:
    pair = bound(NODE, {0: {0: 2}, 1: {0: 2}}, container("a", mem=2), container("b", mem=2), name="pair", uid="1")
    pods = table(memory(NODE, 0, 2, name="older"), pair)
    assert asked(pods, 2, DeviceKey("1", "a", MEMORY)) == "pair/b"


def test_finished_pods_are_out_and_running_or_assigned_ones_come_last() -> None:
    assigned = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    pods = table(
        memory(NODE, 0, 2, name="failed", phase="Failed"),
        memory(NODE, 0, 2, name="running", phase="Running"),
        memory(NODE, 0, 3, name="assigned", annotations=assigned),
    )
    assert (asked(pods, 2), asked(pods, 3)) == (None, None)
    assert (asked(pods, 2, late=True), asked(pods, 3, late=True)) == ("running/main", "assigned/main")
    pods.event("ADDED", parse_local_pod(memory(NODE, 0, 2, name="new")))
    assert asked(pods, 2, late=True) == "new/main"


@pytest.mark.parametrize(
    ("phase", "states", "deleted", "stopped"),
    [
        ("Running", ["terminated"], False, False),
        ("Running", ["terminated"], True, False),
        ("Succeeded", ["terminated", "terminated"], False, True),
        ("Failed", ["terminated", "running"], False, False),
        ("Failed", [], False, False),
    ],
    ids=["between two runs", "deleted between two runs", "done", "one goes on", "never started"],
)
def test_kubelets_word_that_no_container_runs_any_more(phase: str, states: list[str], deleted: bool, stopped: bool) -> None:
    pod = memory(NODE, 0, 1)
    pod["status"] = {"phase": phase, "containerStatuses": [{"name": str(i), "state": {state: {}}} for i, state in enumerate(states)]}
    if deleted:
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
    assert parse_local_pod(pod).stopped is stopped


def local(raw: dict[str, Any]) -> LocalPod:
    return parse_local_pod(raw)


def test_whose_turn_it_is_of_all_pods_that_could_be_meant() -> None:
    """Half served before not begun, still to be admitted before past that; then in the order of arrival. Never one that is over."""
    random = Random(0)
    for _ in range(3000):
        pods, served, rejected, late = [], set(), set(), random.random() < 0.5
        ranks: list[tuple[int, int, int, str]] = []
        for place in range(random.randint(1, 4)):
            sizes = [random.choice((2, 2, 3)) for _ in range(random.randint(1, 3))]
            names = "abc"[: len(sizes)]
            phase = random.choice(("Pending", "Pending", "Pending", "Running", "Failed"))
            annotations = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"} if random.random() < 0.2 else {}
            asks = tuple(ContainerDevices(n, MEMORY, size) for n, size in zip(names, sizes, strict=True))
            running = frozenset(n for n in names if random.random() < 0.15)
            uid = f"uid-{place}"
            pods.append(LocalPod(uid, "default", uid, "", phase, annotations=annotations, running=running, container_devices=asks))
            has = {n for n in names if random.random() < 0.4}
            served |= {(uid, n, MEMORY) for n in has}
            if random.random() < 0.2:
                rejected.add(uid)
            past = phase != "Pending" or bool(annotations) or uid in rejected
            left = [n for n in names if n not in has and n not in running]
            # Of an admitted pod any container may have ended, and the start of an earlier one may have failed.
            asked = [n for n in (left if past else left[:1]) if sizes[names.index(n)] == 2]
            if asked and phase != "Failed" and (late or not past):
                ranks.append((past, not has, place, f"{uid}/{asked[0]}"))
        turn = match_request(pods, served, MEMORY, 2, rejected=rejected, late=late)
        assert (f"{turn.pod.uid}/{turn.devices.container}" if turn else None) == (min(ranks)[-1] if ranks else None)


def test_a_container_that_has_one_of_its_resources_is_asked_for_the_other_and_comes_first() -> None:
    both = local(bound(None, {}, container("a", mem=2, count=1), container("b", count=1)))
    other = local(bound(None, {}, container("a", count=1)))
    turn = match_request([other, both], {(both.uid, "a", MEMORY)}, GPUS, 1)
    assert turn is not None
    assert (turn.pod, turn.devices.container, turn.key, str(turn)) == (both, "a", (both.uid, "a", GPUS), f"default/{both.name} container a")
    assert match_request([both], {(both.uid, "a", GPUS)}, GPUS, 1) is None, "its second container is not next"
    assert match_request([replace(both, phase="Running")], (), MEMORY, 2) is None
    as_many = local(bound(None, {}, container("a", mem=1, count=1)))
    turn = match_request([as_many], (), GPUS, 1)
    assert turn is not None
    assert turn.devices.resource == GPUS


class Known:
    """What is known of each container's GPUs. Lost records: "runs", "free" (its former ids, of which it had two) or "taken" (by others)."""

    def __init__(self, records: dict[str, str], served: Collection[DeviceKey] = (), dropped: Collection[str] = ()) -> None:
        self._records, self._served, self._dropped = records, set(served), set(dropped)

    def allocated(self) -> set[DeviceKey]:
        return set(self._served)

    def dropped_by_kubelet(self) -> set[str]:
        return self._dropped

    def lost(self, key: DeviceKey) -> bool:
        return f"{key[0]}/{key[1]}" in self._records

    def record_lost(self, uid: str) -> bool:
        return any(name.startswith(f"{uid}/") for name in self._records)

    def may_run(self, key: DeviceKey, containers: object) -> bool:
        return self._records.get(f"{key[0]}/{key[1]}") == "runs"

    def former_ids(self, key: DeviceKey) -> str:
        return "12" if self._records[f"{key[0]}/{key[1]}"] == "free" else ""


def admitted(uid: str, *names: str, phase: str = "Running", gpus: int = 1, size: int = 2, **changes: Any) -> LocalPod:
    devices = tuple(ContainerDevices(name, MEMORY, size, gpus_per_pod=gpus) for name in names or ("main",))
    return LocalPod(uid, "default", uid, "", phase, container_devices=devices, **changes)


def containers_of(pods: Sequence[LocalPod], known: Known) -> PendingContainers:
    return PendingContainers(pods, known, SimpleNamespace(containers=None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("records", "meant"),
    [
        (["free"], 0),
        (["taken", "free"], 1),
        (["taken", "runs", "taken"], 0),
        (["taken", ""], 0),
        (["runs", "taken"], 1),
        (["runs", ""], 1),
        (["", "free"], 0),
        (["runs"], None),
    ],
)
def test_of_containers_without_a_record_one_comes_first_that_could_start(records: list[str], meant: int | None) -> None:
    known = Known({f"u{number}/main": record for number, record in enumerate(records) if record})
    found = containers_of([admitted(f"u{number}") for number in range(len(records))], known).match(MEMORY, 2, late=True)
    assert (found and found.pod.uid) == (None if meant is None else f"u{meant}")


def test_kubelet_may_request_for_pods_that_lack_ids_and_that_it_still_knows() -> None:
    pods = [
        admitted("waits", phase="Pending"),
        admitted("served"),
        admitted("over", phase="Failed"),
        admitted("dropped"),
        admitted("restarts", "runs", "ended"),
        admitted("lost-and-runs"),
    ]
    records = {"restarts/runs": "runs", "restarts/ended": "free", "lost-and-runs/main": "runs"}
    known = Known(records, served=[DeviceKey("served", "main", MEMORY)], dropped=["dropped"])
    assert containers_of(pods, known).may_request() == {"waits", "restarts"}


def test_how_many_gpus_an_unknown_container_wants_is_what_all_want_that_it_could_be() -> None:
    two, three = admitted("a", gpus=2), admitted("b", gpus=3)
    served = Known({}, served=[DeviceKey("b", "main", MEMORY)])
    assert containers_of([two, three], Known({})).gpus_per_pod(MEMORY, 2, PendingContainer(three, three.container_devices[0])) == 3
    assert containers_of([two], Known({})).gpus_per_pod(MEMORY, 2, None) == 2
    assert containers_of([two, three], Known({})).gpus_per_pod(MEMORY, 2, None) == 1, "it could be either"
    assert containers_of([two, three], served).gpus_per_pod(MEMORY, 2, None) == 2
    assert (
        containers_of([two, admitted("c", gpus=3, size=4), admitted("d", gpus=3, phase="Failed")], Known({})).gpus_per_pod(MEMORY, 2, None)
        == 2
    )
    assert containers_of([], Known({})).gpus_per_pod(MEMORY, 2, None) == 1


# Which GPUs may stand in for the chosen one.

WISHES: list[dict[str, Any]] = [
    {"annotations": {"gpushare.request/models": "T4"}},
    {"annotations": {"gpushare.request/not-with": "app=x"}},
    {"core": 20},
]


def wishing(gpu: int, *, core: int = 0, units: int = 4, namespace: str = "default", **options: Any) -> LocalPod:
    limits = {"mem": units} | ({"core": core} if core else {})
    raw = bound(NODE, {0: {gpu: units}}, container(**limits), **options)
    raw["metadata"]["namespace"] = namespace
    return local(raw)


def turn_of(pod: LocalPod) -> PendingContainer:
    return PendingContainer(pod, pod.container_devices[0])


def test_any_gpu_may_where_only_room_was_asked_for_and_nobody_says_with_whom() -> None:
    plain, wish = wishing(0), wishing(0, **WISHES[0])
    assert allowed_gpus(None, [wish], {}) is None
    assert allowed_gpus(turn_of(plain), [plain, wish, local(bound(None, {}, container()))], {}) is None
    unplaced = local(bound(None, {}, container(mem=4), **WISHES[0]))
    assert allowed_gpus(turn_of(unplaced), [unplaced], {}) is None
    assert allowed_gpus(turn_of(plain), [plain, wishing(1, **WISHES[1])], {}) == {0}, "one who does is on the node"


@pytest.mark.parametrize("wish", WISHES, ids=["a model", "company", "compute"])
def test_only_what_another_pod_of_the_same_shape_has_left_may_where_more_was_asked_for(wish: dict[str, Any]) -> None:
    pod, other = wishing(0, **wish), wishing(1, **wish)
    turn, key = turn_of(pod), (other.uid, "main", MEMORY)
    assert allowed_gpus(turn, [pod, other], {}) == {0}
    assert allowed_gpus(turn, [pod, other], {key: [1]}) == {0}
    assert allowed_gpus(turn, [pod, other], {key: [0]}) == {0, 1}
    # What it has itself is no exchange.
    assert allowed_gpus(turn, [pod, other], {(pod.uid, "main", MEMORY): [1], (other.uid, "main", GPUS): [0]}) == {0}
    pair = local(bound(NODE, {0: {0: 16}, 1: {1: 16}}, container("a", count=1), container("b", count=1), **WISHES[0]))
    assert allowed_gpus(PendingContainer(pair, pair.container_devices[1]), [pair], {(pair.uid, "a", GPUS): [2]}) == {1}
    unlike = [
        wishing(1, **wish, labels={"app": "y"}),
        wishing(1, **wish, namespace="elsewhere"),
        wishing(1, **wish, units=3),
        local(bound(None, {}, container(mem=4, **{"core": 20} if "core" in wish else {}), annotations=wish.get("annotations", {}))),
        local(bound(None, {}, container())),
    ]
    assert allowed_gpus(turn, [*unlike, pod], {(p.uid, "main", MEMORY): [0] for p in unlike}) == {0}


# Pods.


def test_a_pod_as_the_api_server_has_it() -> None:
    raw = memory(NODE, 1, 2, name="a", uid="u", labels={"app": "x"}, annotations={"other": "left out"}, created="2026-11-21T11:00:00Z")
    raw["status"] = {
        "phase": "Running",
        "initContainerStatuses": [{"name": "first", "state": {"terminated": {}}}, {"name": "side", "state": {"running": {}}}],
        "containerStatuses": [{"name": "main", "state": {"running": {}}}, {"name": "new"}],
    }
    pod = local(raw)
    assert (pod.uid, pod.mirror_uid, pod.static, pod.name, pod.namespace, str(pod)) == ("u", "", False, "a", "default", "default/a")
    assert (pod.created, pod.phase, pod.labels, pod.problem) == ("2026-11-21T11:00:00Z", "Running", {"app": "x"}, "")
    assert set(pod.annotations) == set(raw["metadata"]["annotations"]) - {"other"}
    assert len(pod.annotations) == 6
    assert pod.allocation == Allocation.of({0: {1: 2}})
    assert pod.running == {"side", "main"}
    assert (pod.stopped, pod.assigned, pod.waiting, pod.finished, pod.annotatable) == (False, False, False, False, True)
    bare = local({"metadata": {"name": "a", "namespace": "n", "uid": "u"}, "spec": {"containers": [container(mem=1)]}})
    assert (bare.created, bare.phase, bare.waiting, bare.labels, bare.annotations) == ("", "Pending", True, {}, {})
    assert (bare.container_devices, bare.allocation) == ((ContainerDevices("main", MEMORY, 1),), None)
    assert bare == LocalPod("u", "n", "a", "", "Pending", request=bare.request, container_devices=bare.container_devices)


def test_a_static_pod_a_pod_with_both_resources_and_one_that_cannot_be_meant_cannot_say_what_they_have() -> None:
    static = local(memory(None, 0, 1, uid="copy", annotations={"kubernetes.io/config.mirror": 32 * "b"}))
    assert (static.uid, static.mirror_uid, static.static, static.annotatable) == (32 * "b", "copy", True, False)
    assert not local(bound(None, {}, container(mem=2, count=1))).annotatable
    assert local(whole(NODE, 0)).annotatable
    assert not local(bound(None, {}, container())).annotatable
    odd = local(bound(None, {}, container(mem="1.5")))
    assert (odd.request, odd.container_devices, odd.annotatable) == (None, (), False)
    assert "1.5" in odd.problem


def test_gpus_of_another_number_than_the_pods_label_are_no_choice() -> None:
    two = {"labels": {"aliyun.com/gpu-count": "2"}}
    spread = local(bound(NODE, {0: {0: 2, 1: 2}}, container(mem=4), **two))
    assert spread.container_devices == (ContainerDevices("main", MEMORY, 4, {0: 2, 1: 2}, 2),)
    assert local(bound(NODE, {0: {0: 4}}, container(mem=4), **two)).container_devices == (ContainerDevices("main", MEMORY, 4, {}, 2),)
    assert local(whole(NODE, 0, 1)).container_devices == (ContainerDevices("main", GPUS, 2, {0: 16, 1: 16}),)


@pytest.mark.parametrize(
    ("phase", "assigned", "waiting", "finished"),
    [
        ("Pending", "false", True, False),
        ("Pending", "true", False, False),
        ("Running", "false", False, False),
        ("Succeeded", "true", False, True),
        ("Failed", "false", False, True),
        ("Unknown", "false", False, False),
    ],
)
def test_whether_kubelet_is_still_to_admit_it(phase: str, assigned: str, waiting: bool, finished: bool) -> None:
    pod = local(memory(NODE, 0, 1, phase=phase, annotations={"ALIYUN_COM_GPU_MEM_ASSIGNED": assigned}))
    assert (pod.waiting, pod.finished) == (waiting, finished)


@pytest.mark.parametrize(("text", "nanoseconds"), [("1774000000000000000", 1774 * 10**15), ("1" * 20, 0), ("-1", 0), ("٣", 0), ("", 0)])
def test_when_the_scheduler_chose_its_gpus(text: str, nanoseconds: int) -> None:
    assert local(memory(None, 0, 1, annotations={"ALIYUN_COM_GPU_MEM_ASSUME_TIME": text})).placed_at == nanoseconds


def test_a_pod_is_remembered_for_a_while_after_it_went() -> None:
    pods = PodTable()
    assert not pods.synced
    known = local(memory(NODE, 0, 1, name="a", uid="a"))
    for number, change in enumerate(
        (lambda: pods.replace([known]), lambda: pods.event("DELETED", known), lambda: pods.event("ADDED", known)), 1
    ):
        change()
        assert pods.changes.count == number
        assert pods.synced
        present = number != 2
        assert (pods.get("a"), pods.removed("a")) == ((known, None) if present else (None, known))
        assert len(pods) == present
    other = replace(known, uid="b")
    pods.replace([other])
    assert (pods.removed("a"), pods.removed("b")) == (known, None)
    pods.replace([])
    assert (pods.removed("b"), len(pods)) == (other, 0)
    # As it was last seen.
    pods.event("DELETED", replace(known, phase="Failed"))
    assert pods.removed("a") == replace(known, phase="Failed")
    for number in range(1000):
        assert pods.removed("a") is not None
        pods.event("DELETED", replace(known, uid=f"u{number}"))
    assert pods.removed("a") is None
    assert pods.removed("u0") is not None


# Who gives itself out for a static pod.

FILE = 32 * "a"


def mirror(of: str, uid: str, **changes: Any) -> dict[str, Any]:
    return memory(None, 0, 1, uid=uid, annotations={"kubernetes.io/config.mirror": of}, **changes)


@pytest.mark.parametrize("uid", ["u", "0f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8", 31 * "a", 33 * "a", 32 * "A", ""])
def test_a_copy_of_what_is_no_hash_of_a_file_is_the_pod_that_it_is(uid: str) -> None:
    pod = local(mirror(uid, "its own"))
    assert (pod.uid, pod.static, pod.mirror_uid) == ("its own", False, "")


def test_a_pod_cannot_take_the_place_of_another_one() -> None:
    victim = memory(NODE, 1, 1, uid="0f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8", name="victim")
    pods = table(victim)
    false = mirror(victim["metadata"]["uid"], "false", name="false")
    for kind in ("ADDED", "DELETED"):
        pods.event(kind, parse_local_pod(false))
        assert pods.get(victim["metadata"]["uid"]) == parse_local_pod(victim)
    pods.replace([parse_local_pod(pod) for pod in (false, victim)])
    assert pods.get(victim["metadata"]["uid"]) == parse_local_pod(victim)


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_copies_of_one_static_pod_the_known_one_counts_until_it_goes(order: int) -> None:
    true, false = parse_local_pod(mirror(FILE, "true")), parse_local_pod(mirror(FILE, "false", created="2020-01-01T00:00:00Z"))
    pods = PodTable()
    pods.replace([true])
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        pods.event(kind, false)
        assert pods.get(FILE) == true
    pods.replace([true, false][::order])
    assert pods.get(FILE) == true
    pods.event("DELETED", true)
    assert pods.get(FILE) is None
    pods.event("ADDED", false)
    assert pods.get(FILE) == false
    # kubelet has made its copy anew while nobody watched.
    pods.replace([true])
    assert pods.get(FILE) == true


def test_a_static_pod_with_a_uid_in_its_file_is_what_kubelet_has_under_it() -> None:
    given = "0f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8"
    pods = PodTable()
    copy = parse_local_pod(memory(NODE, 1, 1, uid="copy", annotations={"kubernetes.io/config.mirror": given}))
    pods.event("ADDED", copy)
    assert pods.get("copy") == copy
    assert copy.allocation is not None
    UsageRecorder(Usage(pods, lambda: 0.0), lambda _: None).set_checkpoint(
        (CheckpointEntry(given, "main", MEMORY, frozenset({f"{NODE.gpus[0].uuid}-_-0"})),)
    )
    pods.event("MODIFIED", copy)
    assert pods.get("copy") is None
    found = pods.get(given)
    assert found is not None
    assert (found.static, found.mirror_uid, found.allocation) == (True, "copy", None)
    pods.replace([copy])
    assert [pod.uid for pod in pods] == [given]
    # A pod of the API server with that UID is the one that kubelet has.
    victim = parse_local_pod(memory(NODE, 1, 1, uid=given, name="victim"))
    pods.replace([copy, victim])
    assert {pod.uid: pod.name for pod in pods} == {given: "victim", "copy": copy.name}
    pods.event("MODIFIED", copy)
    assert pods.get(given) == victim


def test_a_pod_of_which_a_container_has_run_was_admitted_with_all_of_them() -> None:
    """kubelet starts its next container from a worker, as any after a lost record."""
    pod = bound(NODE, {0: {0: 4}}, container(mem=4), init=[container("first", mem=4)], name="a")
    pods = table(pod)
    assert asked(pods, 4) == "a/first"
    pod["status"]["initContainerStatuses"] = [{"name": "first", "state": {"terminated": {}}, "containerID": "containerd://1"}]
    pods.event("MODIFIED", parse_local_pod(pod))
    assert (asked(pods, 4), asked(pods, 4, late=True)) == (None, "a/main")
