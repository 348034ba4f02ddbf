# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ledger's state as a scrape shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry, Rejection
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.core.quantity import GIB, UNITS
from gpushare_runtime.core.request import Request
from gpushare_runtime.daemon.exposition import render
from gpushare_runtime.extender import metrics
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.metrics import expiry_families, families
from unit.fakes.runtime.exposition import read
from unit.fakes.runtime.pods import allocated_pod, gpu, memory, on, whole

GPUS = NodeRecord("n", Inventory(GIB, (gpu(0, 16), gpu(1, 24, health="XID 79"))))


def lines(cluster: ClusterCache) -> list[str]:
    text = "".join(render(families(cluster)))
    assert read(text)
    return text.splitlines()


def test_gpus_pods_and_what_is_wrong() -> None:
    cluster = ClusterCache(clock=lambda: 9.0)
    cluster.node_event("ADDED", GPUS)
    cluster.node_event("ADDED", NodeRecord("broken", None, "not JSON"))
    cluster.ledger.apply(allocated_pod("a", memory(6), on(0, 6)))
    cluster.ledger.assume(allocated_pod("b", memory(2), on(0, 2)))
    cluster.ledger.reserve(allocated_pod("c", memory(1), on(0, 1)), 20.0)
    cluster.ledger.reserve(allocated_pod("d", memory(1), on(0, 1)), 20.0)
    cluster.ledger.apply(allocated_pod("e", memory(9), on(0, 9)))
    cluster.ledger.hold_until("e", 30.0)
    cluster.pod_event("ADDED", PendingPod("w", "default", "w", memory(40)))
    cluster.pod_event("ADDED", PendingPod("y", "default", "y", memory(1), nominated="n"))
    cluster.pod_event("ADDED", InvalidPod("x", "default", "x", "asks for nonsense"))
    found = lines(cluster)
    for line in (
        'gpushare_extender_nodes{gpus="known"} 1.0',
        'gpushare_extender_nodes{gpus="unknown"} 1.0',
        'gpushare_extender_node_gpus{node="n"} 2.0',
        'gpushare_extender_node_gpus{node="broken"} 0.0',
        'gpushare_extender_node_gpus_allocated{node="n"} 1.0',
        'gpushare_extender_node_gpus_unusable{node="n"} 1.0',
        'gpushare_extender_node_units{node="n"} 40.0',
        'gpushare_extender_node_units_free{node="n"} 0.0',
        'gpushare_extender_node_units_free_largest{node="n"} 0.0',
        # 19 units are stated for the GPU of 16.
        'gpushare_extender_node_units_allocated{node="n"} 16.0',
        'gpushare_extender_node_gpus_overbooked{node="n"} 1.0',
        'gpushare_extender_node_gpus_overbooked{node="broken"} 0.0',
        'gpushare_extender_pods{state="bound"} 1.0',
        'gpushare_extender_pods{state="assumed"} 1.0',
        'gpushare_extender_pods{state="reserved"} 2.0',
        'gpushare_extender_pods{state="deleted"} 1.0',
        'gpushare_extender_pods_waiting{reason="room"} 1.0',
        'gpushare_extender_pods_waiting{reason="nominated"} 1.0',
        'gpushare_extender_pods_waiting{reason="invalid"} 1.0',
        "gpushare_extender_reservations_expired_total 0.0",
        'gpushare_extender_node_ledger_inconsistencies{node="n"} 1.0',
        'gpushare_extender_node_ledger_inconsistencies{node="broken"} 0.0',
    ):
        assert line in found
    cluster.ledger.expire(20.0)
    assert "gpushare_extender_reservations_expired_total 2.0" in lines(cluster)


def test_drift_is_what_a_node_says_beyond_the_annotations() -> None:
    cluster = ClusterCache(clock=lambda: 0.0)
    cluster.node_event("ADDED", GPUS)
    cluster.ledger.apply(allocated_pod("a", memory(6), on(0, 6)))
    cluster.ledger.apply(allocated_pod("static", memory(3), None))
    first, second = "GPU-00000000", "GPU-00000001"
    held = Held(
        (
            HeldEntry(first, "a", "default/a", 6, "unmanaged"),
            HeldEntry(second, "a", "default/a", 2, "unmanaged"),
            HeldEntry(first, "static", "default/static", 3, "unmanaged"),
            HeldEntry(first, "gone", "default/gone", 4, "orphaned"),
            HeldEntry("GPU-old", "g", "default/g", 7, "gone"),
            HeldEntry("GPU-of-another-node", "b", "default/b", 1, "a word of tomorrow"),
        ),
        (Rejection("r", first, 5, until=60.0),),
    )
    cluster.node_event("MODIFIED", replace(GPUS, held=held))
    found = lines(cluster)
    for line in (
        'gpushare_extender_drift_units{reason="unmanaged"} 5.0',
        'gpushare_extender_drift_units{reason="orphaned"} 4.0',
        'gpushare_extender_drift_units{reason="gone"} 7.0',
        'gpushare_extender_drift_units{reason="other"} 1.0',
        "gpushare_extender_admission_rejections 1.0",
        # A GPU of another node; the static pod's is known from the node's word.
        'gpushare_extender_node_ledger_inconsistencies{node="n"} 1.0',
    ):
        assert line in found


def test_pods_wait_for_room_that_is_there_scattered_or_missing() -> None:
    cluster = ClusterCache(clock=lambda: 0.0)
    for name in ("m", "n"):
        cluster.node_event("ADDED", NodeRecord(name, Inventory(GIB, (gpu(0, 16), gpu(1, 16)))))
    cluster.ledger.apply(allocated_pod("a", memory(6), on(0, 6)))
    cluster.ledger.apply(allocated_pod("b", memory(1), on(1, 1), node="m"))

    def rooms() -> list[str]:
        return [line.partition("{room=")[2] for line in lines(cluster) if line.startswith("gpushare_extender_pods_waiting_room{")]

    def wait(uid: str, request: Request, **more: Any) -> None:
        cluster.pod_event("ADDED", PendingPod(uid, "default", uid, request, **more))

    assert rooms() == ['"enough"} 0.0', '"fragmented"} 0.0', '"too-little"} 0.0']
    # Free: 10 and 16, 16 and 15.
    wait("gpu", memory(16))
    wait("two", replace(memory(30), gpus_per_pod=2))
    wait("whole", whole(1))
    assert rooms() == ['"enough"} 3.0', '"fragmented"} 0.0', '"too-little"} 0.0']
    wait("large", memory(17))
    wait("wide", replace(memory(32), gpus_per_pod=2))
    wait("wider", replace(memory(12), gpus_per_pod=3))
    wait("two whole", whole(2))
    assert rooms() == ['"enough"} 3.0', '"fragmented"} 4.0', '"too-little"} 0.0']
    wait("all", memory(57))
    wait("most", memory(58))
    wait("three whole", whole(3))
    wait("its room is being made", memory(99), nominated="n")
    cluster.pod_event("ADDED", InvalidPod("x", "default", "x", "asks for nonsense"))
    assert rooms() == ['"enough"} 3.0', '"fragmented"} 5.0', '"too-little"} 2.0']


def test_a_request_is_as_large_as_the_unit_of_each_node_makes_it() -> None:
    """Two GPUs of 16 GiB, in units of 1 GiB and of 256 MiB: four units are a fourth of the one and a sixteenth of the other."""
    cluster = ClusterCache(clock=lambda: 0.0)
    cluster.node_event("ADDED", NodeRecord("large", Inventory(GIB, (gpu(0, 16),))))
    cluster.node_event("ADDED", NodeRecord("small", Inventory(UNITS["256MiB"], (gpu(0, 64, mib=16384),))))
    cluster.pod_event("ADDED", PendingPod("w", "a", "w", memory(4)))
    assert next(line for line in lines(cluster) if "namespace_gpus_waiting{" in line).endswith(" 0.15625")


def test_the_gpus_that_waiting_pods_of_a_namespace_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an average GPU, which has 16 units; one that takes no pods does not count."""
    cluster = ClusterCache(clock=lambda: 0.0)

    def waiting() -> dict[str, float]:
        found = [line for line in lines(cluster) if line.startswith("gpushare_extender_namespace_gpus_waiting{")]
        return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in found}

    def wait(namespace: str, uid: str, request: Request) -> None:
        cluster.pod_event("ADDED", PendingPod(uid, namespace, uid, request))

    wait("a", "unknown", memory(4))
    assert waiting() == {"a": 1.0}, "no GPU is known"
    sizes = Inventory(GIB, (gpu(0, 8), gpu(1, 24), gpu(2, 80, cordoned=True)))
    cluster.node_event("ADDED", NodeRecord("n", sizes))
    wait("a", "more than any", memory(99))
    wait("b", "two", replace(memory(16), gpus_per_pod=2))
    wait("c", "whole", whole(3))
    cluster.pod_event("ADDED", InvalidPod("x", "d", "x", "asks for nonsense"))
    assert waiting() == {"a": 1.25, "b": 1.0, "c": 3.0}
    monkeypatch.setattr(metrics, "_MOST_NAMESPACES", 1)
    assert waiting() == {"c": 3.0, "": 2.25}


def test_the_end_of_what_expires() -> None:
    text = "".join(render(expiry_families(5.0, None, 7.5)))
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "gpushare_extender_token_expiry_timestamp_seconds 5.0",
        "gpushare_extender_client_ca_expiry_timestamp_seconds 7.5",
    ]
