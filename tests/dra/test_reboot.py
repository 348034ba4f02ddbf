# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Both GPU nodes reboot under pods with claims: each runs again with its GPUs, and one that was deleted meanwhile leaves nothing.

kubelet waits with such a pod until the device plugin has registered, where a limit of a device plugin rejects it.
"""

from __future__ import annotations

import json
import time

import pytest

from dra.shares import OURS, allocated, check_not_over_booked, check_shares, claims, prepared, shares_of, until_serving
from e2e.api import Json
from e2e.cluster import GPU_NODES, GPUS, Cluster, container_id, is_running
from e2e.manifests import pod

pytestmark = [pytest.mark.suite("dra"), pytest.mark.timeout(900)]

FIRST, SECOND = GPU_NODES
#: Name → node, and GiB of its first container.
PODS = {"whole": (FIRST, 16), "share-1": (FIRST, 6), "share-2": (FIRST, 4), "both": (SECOND, 12), "beside": (SECOND, 3)}
GONE = "gone"


def manifest(name: str) -> Json:
    node, gib = PODS[name]
    if name == "whole":
        return pod(name, gpus=1, node=node)
    made = pod(name, memory=gib, node=node)
    if name == "both":
        made["metadata"]["labels"] = {GPUS: "2"}
    return made


def devices(cluster: Cluster) -> dict[str, list[tuple[str, int]]]:
    """Name of a pod → device and GiB of each of its shares."""
    shares = allocated(cluster)
    return {
        one["metadata"]["name"]: sorted((share.device, share.gib) for share in shares.get(one["metadata"]["uid"], ()))
        for one in cluster.pods()
    }


def test_pods_run_again_with_their_gpus_after_a_reboot(empty: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    for name in PODS:
        empty.create(manifest(name))
        empty.until_running(name)
    empty.create(pod(GONE, memory=2, node=SECOND))
    before = {one["metadata"]["name"]: container_id(one) for one in empty.until_running(*PODS, GONE)}
    had = devices(empty)
    empty.switch_off(*GPU_NODES)
    empty.api.delete(f"/api/v1/namespaces/default/pods/{GONE}", gracePeriodSeconds="0")
    begin = time.monotonic()
    empty.lab("up", seconds=300)
    ready = time.monotonic() - begin

    def again(one: Json) -> bool:
        """What the API server has may be from before the reboot."""
        return is_running(one) and container_id(one) != before[one["metadata"]["name"]]

    def settled() -> list[Json] | None:
        found = [empty.pod(name) for name in PODS]
        return found if all(one["status"].get("phase") == "Failed" or again(one) for one in found) else None

    found = empty.until("every pod runs again or has failed", settled, 240, *PODS)
    took = time.monotonic() - begin
    failed = {one["metadata"]["name"]: one["status"].get("message") for one in found if not is_running(one)}
    with capsys.disabled():
        print(f"\nmeasured: reboot under {len(PODS)} pods: Ready after {ready:.1f} s, all run after {took:.1f} s; failed: {failed}")
    until_serving(empty)
    assert failed == {}
    assert devices(empty) == {name: of for name, of in had.items() if name != GONE}
    assert check_shares(empty, found, {name: gib for name, (_, gib) in PODS.items()}) == []
    assert check_not_over_booked(empty) == []

    def only_theirs() -> bool:
        """kubelet and the device plugin of each node have the claims of its pods, and no others."""
        nodes = {one["metadata"]["uid"]: shares_of(one)[0].node for one in claims(empty)}
        wanted = [{uid for uid, on in nodes.items() if on == node} for node in GPU_NODES]
        kubelets = [prepared(empty, node) for node in GPU_NODES]
        ours = [{one["uid"] for one in json.loads(empty.on(node, "cat", OURS))["claims"]} for node in GPU_NODES]
        return len(nodes) == len(PODS) and wanted == kubelets == ours

    empty.until("no claim of the pod that was deleted meanwhile is left", only_theirs, 60)
    # Its memory can be had: 16 + 24 - 12 - 3.
    empty.create(pod("next", memory=18, node=SECOND))
    assert check_shares(empty, empty.until_running("next"), {"next": 18}) == []
    assert check_not_over_booked(empty) == []
