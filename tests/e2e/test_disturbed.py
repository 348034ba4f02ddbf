# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster in which something is restarted, replaced or down."""

from __future__ import annotations

import pytest

from e2e.checks import (
    check_changes_nothing,
    check_devices,
    check_environment,
    check_follows,
    check_refused,
    check_registers_again,
    check_runs,
)
from e2e.cluster import CONTROL_PLANE, Cluster
from e2e.manifests import pod
from e2e.samples import running_samples

EXTENDER = "gpushare-extender"


def test_kubelet_restarts(samples: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    before = running_samples(samples)
    problems, seconds = check_registers_again(samples, "gpu1")
    with capsys.disabled():
        print(f"\nregistered again after kubelet made its socket: {', '.join(f'{r} {s:.2f} s' for r, s in seconds.items())}")
    assert problems == []
    assert check_follows(samples, "gpu1") == []
    after = running_samples(samples)
    assert {p["metadata"]["uid"] for p in after} == {p["metadata"]["uid"] for p in before}
    assert check_devices(samples, after) == []
    samples.create(pod("after-restart", memory=8, node="gpu1"))
    assert check_runs(samples, "after-restart") == []
    assert check_devices(samples, [samples.pod("after-restart")]) == []


def test_the_playbook_again_changes_nothing(samples: Cluster) -> None:
    assert check_changes_nothing(samples) == []


def test_the_extender_is_down(empty: Cluster) -> None:
    empty.on(CONTROL_PLANE, "systemctl", "stop", EXTENDER)
    try:
        empty.create(pod("plain"))
        empty.create(pod("shares", memory=1))
        assert check_runs(empty, "plain", seconds=15) == []
        assert check_refused(empty, "shares", "127.0.0.1:32766", "connection refused") == []
    finally:
        empty.on(CONTROL_PLANE, "systemctl", "start", EXTENDER)
    assert check_runs(empty, "shares") == []


def test_cards_are_replaced_while_everything_runs(empty: Cluster) -> None:
    before = empty.cards("gpu1")
    try:
        empty.lab("gpu", "gpu1", "--cards", "24+8+8")
        assert [card.mib for card in empty.cards("gpu1")] == [24 * 1024, 8 * 1024, 8 * 1024]
        assert check_follows(empty, "gpu1") == []
        empty.create(pod("twenty", memory=20, node="gpu1"))
        pods = empty.until_running("twenty")
        assert check_devices(empty, pods) == []
        assert check_environment(empty, pods) == []
        empty.clear()
    finally:
        empty.lab("gpu", "gpu1", "--cards", "2x16")
    assert check_follows(empty, "gpu1") == []
    assert empty.cards("gpu1") == before
