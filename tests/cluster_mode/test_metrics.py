# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Metrics of the daemons' pods: only a scraper with the token of the Secret gets them, and a pod without its Secret serves."""

from __future__ import annotations

import pytest

from cluster_mode.in_cluster import NAMESPACE, InCluster
from e2e.cluster import CONTROL_PLANE, Cluster

#: By python3 of a node: status and body.
SCRAPE = """\
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
try:
    answer = urllib.request.urlopen(request, timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""
#: kubelet brings a Secret that was made later within a minute or two.
SECONDS = 300


@pytest.mark.timeout(2 * SECONDS + 60)
@pytest.mark.parametrize(
    ("app", "port", "metric"),
    [("gpushare-scheduler", 9441, "gpushare_extender_ready 1.0"), ("gpushare-device-plugin", 9440, "gpushare_device_plugin_build_info")],
)
def test_scrapers_with_the_token_alone_get_the_metrics(cluster: Cluster, here: InCluster, app: str, port: int, metric: str) -> None:
    pods = here.pods(app)

    def answers(token: str) -> list[str]:
        urls = [f"http://{one['status']['podIP']}:{port}/metrics" for one in pods]
        return [cluster.on(CONTROL_PLANE, "python3", "-c", SCRAPE, url, token) for url in urls]

    assert {answer[:3] for answer in answers("right")} == {"503"}
    cluster.kubectl("create", "secret", "generic", f"{app}-metrics", "-n", NAMESPACE, "--from-literal=token=right")
    try:
        cluster.until("the pods have the token", lambda: all(metric in answer for answer in answers("right")), SECONDS)
        assert {answer[:3] for answer in answers("wrong")} == {"401"}
    finally:
        cluster.kubectl("delete", "secret", f"{app}-metrics", "-n", NAMESPACE)
