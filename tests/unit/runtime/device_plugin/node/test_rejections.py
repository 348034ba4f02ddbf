# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A rejection is in force until it expires or other pods use the GPU, and then never again."""

from __future__ import annotations

from gpushare_runtime.core.node_report import Rejection
from gpushare_runtime.daemon.sync import Changes
from gpushare_runtime.device_plugin.node.rejections import Rejections


class Case:
    """Rejections at a time, with the users of each GPU."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.unix = 0.0
        self.users: dict[str, str] = {}
        self.rejections = Rejections(lambda: self.now, lambda: self.unix + self.now, lambda gpu: self.users.get(gpu), Changes())

    def add(self, uid: str, gpu: str, units: int = 4, *, whole: bool = False) -> None:
        before = self.rejections.changes.count
        self.rejections.add(uid, gpu, units, whole=whole)
        assert self.rejections.changes.count > before

    def uids(self) -> list[str]:
        return [rejection.uid for rejection in self.rejections.current()]


def test_all_of_it_is_said_oldest_first_for_a_minute() -> None:
    case = Case()
    case.add("a", "GPU-1")
    case.now += 10
    case.add("b", "GPU-1", 8, whole=True)
    case.add("a", "GPU-2", 2)
    assert case.rejections.current() == [
        Rejection("a", "GPU-1", 4, 1060.0),
        Rejection("b", "GPU-1", 8, 1070.0, whole=True),
        Rejection("a", "GPU-2", 2, 1070.0),
    ]
    case.now = 1059.9
    assert case.uids() == ["a", "b", "a"]
    case.now = 1060.0
    assert case.uids() == ["b", "a"]


def test_the_same_pod_and_gpu_again_is_the_newer_one() -> None:
    case = Case()
    case.add("a", "GPU-1", 4)
    case.now += 10
    case.add("a", "GPU-1", 5)
    assert case.rejections.current() == [Rejection("a", "GPU-1", 5, 1070.0)]


def test_a_change_on_the_gpu_ends_it_for_good_and_on_another_gpu_does_not() -> None:
    case = Case()
    case.add("a", "GPU-1")
    case.add("b", "GPU-2")
    case.users["GPU-1"] = "somebody else"
    assert case.uids() == ["b"]
    del case.users["GPU-1"]
    assert case.uids() == ["b"]


def test_a_clock_that_is_set_changes_neither_its_end_nor_by_more_than_that_what_is_said() -> None:
    case = Case()
    case.add("a", "GPU-1")
    case.now += 10
    assert [rejection.until for rejection in case.rejections.current()] == [1060.0]
    case.unix -= 3600
    assert [rejection.until for rejection in case.rejections.current()] == [1060.0 - 3600]
    case.now += 49.9
    assert case.uids() == ["a"]
    case.now += 0.1
    assert case.uids() == []
