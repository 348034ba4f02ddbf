# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A pod without any right connects to the daemons' health pages as fast as it can: kubelet's probes are answered all the while.

The lab's network enforces no NetworkPolicy, so the pages themselves have to hold.
"""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from cluster_mode.in_cluster import NAMESPACE, InCluster
from e2e.api import Json
from e2e.cluster import Cluster
from e2e.manifests import pod

SECONDS = 300 if os.environ.get("GPUSHARE_FULL") else 90
IMAGE = "localhost/gpushare:0.1.0"
#: Connections are reset, so that their ports are free again; of four, one asks for a page, and three say nothing.
FLOOD = """\
import collections, socket, struct, sys, time
targets = [(host, 9443) for host in sys.argv[2:]]
kept, number, end = collections.deque(), 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for target in targets:
        caller = socket.socket()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.setblocking(False)
        try:
            caller.connect(target)
        except BlockingIOError:
            pass
        except OSError:
            caller.close()
            continue
        kept.append(caller)
        number += 1
    if len(kept) > 800:
        for _ in range(16):
            old = kept.popleft()
            if number % 4 == 0:
                try:
                    old.send(b"GET /healthz HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
                except OSError:
                    pass
            old.close()
print(number)
"""
pytestmark = pytest.mark.timeout(SECONDS + 600)


def restarts(pods: list[Json]) -> dict[str, int]:
    """Of the containers whose ports are flooded; kube-scheduler's ends where a busy API server lets its Lease expire."""
    found = ((one["metadata"]["name"], status) for one in pods for status in one["status"]["containerStatuses"])
    return {f"{name} {status['name']}": status["restartCount"] for name, status in found if status["name"] != "kube-scheduler"}


def test_probes_are_answered_under_a_flood_of_connections(cluster: Cluster, here: InCluster, capsys: pytest.CaptureFixture[str]) -> None:
    def daemons() -> list[Json]:
        return [*here.pods("gpushare-scheduler"), *here.pods("gpushare-device-plugin")]

    before = restarts(daemons())
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    flood = pod("flood")
    flood["spec"]["restartPolicy"] = "Never"
    container = flood["spec"]["containers"][0]
    addresses = [one["status"]["podIP"] for one in daemons()]
    container |= {"image": IMAGE, "command": ["/opt/gpushare/bin/python3", "-c", FLOOD, str(SECONDS), *addresses]}
    container["securityContext"] = {
        "runAsUser": 65534,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    cluster.create(flood)
    cluster.until("the flood has ended", lambda: cluster.pod("flood")["status"].get("phase") in ("Succeeded", "Failed"), SECONDS + 300)
    number = int(cluster.kubectl("logs", "flood").strip())
    events = json.loads(cluster.kubectl("get", "events", "-n", NAMESPACE, "--field-selector", "reason=Unhealthy", "-o", "json"))["items"]
    late = [one["message"] for one in events if (one.get("lastTimestamp") or since) >= since and re.search("Liveness", one["message"])]
    with capsys.disabled():
        print(f"\nmeasured: {number / SECONDS:.0f} connections/s on {len(addresses)} health ports; failed liveness probes: {late}")
    assert number / SECONDS > 100
    assert restarts(daemons()) == before
    cluster.clear()
    cluster.create(pod("after-the-flood", memory=1))
    cluster.until_running("after-the-flood", seconds=120)
    cluster.clear()
