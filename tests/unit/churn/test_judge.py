# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The judge finds each fault that is planted in a log, and none in one that is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.churn_judge import counts, in_pairs, never_seen, not_reached, over_booked, peaks, rejection_runs, survivors, wrong_gpus
from e2e.churn_log import ALLOCATION, REJECTED, Log, Plan, Pod
from unit.fakes.churn.logs import Story


@pytest.fixture
def story() -> Story:
    return Story()


def all_problems(story: Story) -> list[str]:
    return wrong_gpus(story.log) + over_booked(story.log) + never_seen(story.log)


def test_a_right_log(story: Story) -> None:
    story.pod(Plan("one", (8,)), {0: 8})
    story.pod(Plan("two", (3, 5)), {1: 3}, {1: 5})
    story.pod(Plan("spread", (8,), spread=2), {0: 4, 1: 4})
    assert all_problems(story) == []
    assert {where: peak[:2] for where, peak in peaks(story.log).items()} == {("gpu2", "nvidia0"): (12, 16), ("gpu2", "nvidia5"): (12, 24)}


def test_another_device_than_annotated(story: Story) -> None:
    story.pod(Plan("one", (8,)), {0: 8})
    container = story.log.containers["uid-0-0"]
    container.devices = ("nvidia5",)
    devices, ids = wrong_gpus(story.log)
    assert "has ['nvidia5'] in /dev, its annotated GPUs [0] are ['nvidia0']" in devices
    assert "kubelet's record gives it {'GPU-a': 8}, it has the devices of ['GPU-b']" in ids
    container.devices = ("nvidia0", "nvidia5")
    assert len(wrong_gpus(story.log)) == 2


@pytest.mark.parametrize("name", ["IDX", "DEV", "POD", "CONTAINER"])
def test_another_variable_than_annotated(name: str, story: Story) -> None:
    story.pod(Plan("one", (8,)), {0: 8})
    environment = dict(story.log.containers["uid-0-0"].environment)
    story.log.containers["uid-0-0"].environment = {**environment, f"ALIYUN_COM_GPU_MEM_{name}": "7"}
    (problem,) = wrong_gpus(story.log)
    assert f"PID 1 has ALIYUN_COM_GPU_MEM_{name}=7, expected" in problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({ALLOCATION: '{"0":{"0":7}}'}, "container 0 asks for 8 and is annotated with {0: 7}"),
        ({ALLOCATION: '{"0":{"0":4,"1":4}}'}, "it asks for (8,) on 1 gpu(s)"),
        ({ALLOCATION: '{"0":{"0":8},"1":{"0":8}}'}, "it asks for (8,) on 1 gpu(s)"),
        ({ALLOCATION: "{}"}, "it asks for (8,) on 1 gpu(s)"),
        ({"ALIYUN_COM_GPU_MEM_IDX": "1"}, "annotation ALIYUN_COM_GPU_MEM_IDX is '1', by the allocation it is 0"),
        ({"ALIYUN_COM_GPU_MEM_DEV": "24"}, "annotation ALIYUN_COM_GPU_MEM_DEV is '24', by the allocation it is 16"),
        ({"ALIYUN_COM_GPU_MEM_POD": "9"}, "annotation ALIYUN_COM_GPU_MEM_POD is '9', by the allocation it is 8"),
        ({"ALIYUN_COM_GPU_MEM_ASSUME_TIME": ""}, "expected nanoseconds"),
        ({"ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}, "annotation ALIYUN_COM_GPU_MEM_ASSIGNED is 'false' although it ran"),
    ],
)
def test_annotations_that_are_wrong(change: dict[str, str], words: str, story: Story) -> None:
    pod = story.pod(Plan("one", (8,)), {0: 8})
    pod.annotations = {**pod.annotations, **change}
    assert any(words in problem for problem in wrong_gpus(story.log))


def test_a_container_without_ids_or_without_a_pod(story: Story) -> None:
    story.pod(Plan("one", (8,)), {0: 8})
    story.log.given.clear()
    assert "kubelet's record never had ids for it" in wrong_gpus(story.log)[0]
    story.log.pods.clear()
    assert wrong_gpus(story.log) == ["container c0 on gpu2 has a GPU and is of no pod of the churn"]


def test_a_start_that_the_node_did_not_log(story: Story) -> None:
    story.pod(Plan("one", (8,)), {0: 8}).containers.add("f" * 64)
    assert len(never_seen(story.log)) == 1


def test_a_container_that_may_have_ended_between_two_looks_is_not_missed() -> None:
    log, pod = Log(), Plan("one", (8,))
    log.made(pod, {"metadata": {"uid": "u"}}, 0)
    seen = {"metadata": {"uid": "u", "name": "one"}, "spec": {"nodeName": "gpu1"}, "status": {"phase": "Running"}}

    def container(state: dict[str, object]) -> list[str]:
        seen["status"]["containerStatuses"] = [{"containerID": "containerd://" + "f" * 64, "state": state}]
        log.api_says("MODIFIED", seen, 1)
        return never_seen(log)

    started, second, third = (f"2026-01-02T03:04:0{digit}Z" for digit in (5, 6, 7))
    assert len(container({"running": {"startedAt": started}})) == 1
    assert container({"terminated": {"startedAt": started, "finishedAt": second}}) == []
    assert len(container({"terminated": {"startedAt": started, "finishedAt": third}})) == 1


def test_more_units_than_the_gpu_for_a_moment(story: Story) -> None:
    story.pod(Plan("one", (10,)), {0: 10}, at=0, end=5.0)
    story.pod(Plan("two", (10,)), {0: 10}, at=4.9, end=9.0)
    (problem,) = over_booked(story.log)
    assert problem.startswith("nvidia0 of gpu2 has 16 units, and live processes had 20 when c0 of two")


def test_one_after_the_other_is_not_too_much(story: Story) -> None:
    story.pod(Plan("one", (10,)), {0: 10}, at=0, end=5.0, slots=0)
    story.pod(Plan("two", (10,)), {0: 10}, at=5.0, end=9.0, slots=0)
    assert over_booked(story.log) == []


def test_an_id_given_before_its_last_bearer_has_ended(story: Story) -> None:
    story.pod(Plan("one", (2,)), {0: 2}, at=0, end=5.0, slots=0)
    story.pod(Plan("two", (1,)), {0: 1}, at=4.0, end=9.0, slots=1)
    (problem,) = over_booked(story.log)
    assert problem.startswith("id GPU-a-_-1 was given to c0 of two")


def rejected(name: str, number: int, at: float, reason: str = REJECTED) -> Pod:
    return Pod(f"{name}-{number}", Plan(name, (4,)), at, failed=at + 1, reason=reason)


def test_rejections_in_a_row_of_one_name(story: Story) -> None:
    story.log.pods = {pod.uid: pod for pod in [rejected("a", 0, 0), rejected("a", 1, 1), rejected("b", 0, 2), rejected("a", 2, 4)]}
    story.log.pods["fine"] = Pod("fine", Plan("a", (4,)), 3, running=4)
    assert rejection_runs(story.log) == {"a": 2, "b": 1}
    assert (counts(story.log).rejected, counts(story.log).rejected_in_a_row) == (4, 2)


def test_pairs_are_of_one_group_one_size_and_different_gpus(story: Story) -> None:
    story.pod(Plan("a", (4,), group=1), {0: 4})
    story.pod(Plan("b", (4,), group=1), {1: 4})
    story.pod(Plan("c", (4,), group=1), {1: 4})
    story.pod(Plan("same-gpu", (4,), group=2), {1: 4})
    story.pod(Plan("same-gpu-too", (4,), group=2), {1: 4})
    story.pod(Plan("other-size", (3,), group=1), {0: 3})
    assert [pod.plan.name for pod in in_pairs(story.log)] == ["a", "b", "c"]


def test_survivors_outlive_their_object(story: Story) -> None:
    for name, end, forced in (("lives-on", 9.0, True), ("ended", 5.2, True), ("not-forced", 9.0, False)):
        pod = story.pod(Plan(name, (4,)), {1: 4}, end=end)
        pod.asked_away = pod.gone = 5.0
        pod.forced = forced
    assert [pod.plan.name for pod in survivors(story.log)] == ["lives-on"]


def test_who_had_room_and_ran(story: Story) -> None:
    story.pod(Plan("ran", (4,)), {1: 4})
    late = story.pod(Plan("late", (4,), room=False), {1: 4})
    never = story.pod(Plan("never", (4,)), {1: 4})
    never.running = None
    early = story.pod(Plan("early", (4,)), {1: 4})
    early.running, early.early, early.asked_away = None, True, 1.0
    found = counts(story.log)
    assert [text.partition(" ")[0] for text in not_reached(story.log)] == ["never"]
    assert (found.room, found.room_reached, found.late, found.late_reached, found.deleted_early) == (2, 1, 1, 1, 1)
    late.plan = replace(late.plan, room=True)
    assert counts(story.log).room_reached == 2


def test_for_a_pod_that_kubelet_rejected_speaks_the_one_made_in_its_place() -> None:
    def attempt(retry: int, *, group: int, ran: bool) -> Pod:
        pod = Pod(f"{group}-{retry}", Plan("a", (4,), group=group, retry=retry), float(retry))
        pod.running, pod.failed, pod.reason = (2.0, None, "") if ran else (None, 2.0, REJECTED)
        return pod

    story = Story()
    lives = [attempt(0, group=1, ran=False), attempt(1, group=1, ran=True), attempt(0, group=2, ran=False), attempt(1, group=2, ran=False)]
    story.log.pods = {pod.uid: pod for pod in lives}
    found = counts(story.log)
    assert (found.pods, found.room, found.room_reached, found.rejected) == (4, 2, 1, 3)
