# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The dashboard on a real cluster: pods that the scheduler places appear in an open page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from dashboard.browser import Browser, Loop, Page
from dashboard.programs import kubectl_dashboard
from e2e.cluster import GPU_NODES, Cluster
from e2e.fake_nodes import fake_nodes, fake_pod, placed, remove
from e2e.manifests import pod
from tree import REPOSITORY

pytestmark = pytest.mark.suite("dashboard")

Say = Callable[[str, float], None]

NODE: Final = "seen"
GPUS: Final = 12
PODS: Final = 40
APPEARS_SECONDS: Final = 10.0
"""Five times what people are promised."""
PICTURES: Final = REPOSITORY / "build" / "dashboard"


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    """The lab's nodes and one more, which have twelve GPUs together, and forty pods."""
    cluster.clear()
    nodes = [one for one in cluster.api.get("/api/v1/nodes")["items"] if "gpushare/gpus" in one["metadata"].get("annotations", {})]
    real = sum(len(json.loads(one["metadata"]["annotations"]["gpushare/gpus"])["gpus"]) for one in nodes)
    assert 0 < real < GPUS
    with fake_nodes(cluster, {NODE: [40] * (GPUS - real)}):
        for number in range(PODS):
            # One on each GPU that is more than its half, so that none is empty.
            placed(cluster, fake_pod(f"seen-{number}", memory=21 if number < GPUS - real else 1))
        yield cluster


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    loop = Loop()
    made = Browser(loop)
    yield made
    made.close()
    loop.close()


@pytest.fixture
def page(browser: Browser, filled: Cluster) -> Iterator[Page]:
    with kubectl_dashboard("--kubeconfig", str(filled.kubeconfig)) as running, browser.page(running.url) as made:
        made.until("the nodes are there", "document.querySelectorAll('.row').length === 3", 60)
        made.eval("window.same = true")
        yield made
        assert made.eval("window.same") is True
        assert made.errors == []


def facts(page: Page) -> dict[str, str]:
    return dict(page.eval("[...document.querySelectorAll('#sums div')].map(one => [...one.children].map(part => part.textContent))"))


def test_a_pod_that_the_scheduler_places_appears_in_the_open_page(page: Page, filled: Cluster, say: Say) -> None:
    assert facts(page)["GPUs"] == str(GPUS)
    assert facts(page)["Pods with GPUs"] == str(PODS)
    page.picture(PICTURES / "lab-nodes.png")
    page.eval("location.hash = '#/pods'")
    page.until("the pods", "document.getElementById('view-text').textContent === '40'")
    # On a node with a kubelet, which ends it.
    filled.create(pod("appears", memory=2, node=GPU_NODES[0]))
    bound = filled.until("appears is bound", lambda: filled.pod("appears")["spec"].get("nodeName"), 60)
    began = time.monotonic()
    page.until("41 pods", "document.getElementById('view-text').textContent === '41'", APPEARS_SECONDS)
    say("a pod that is bound appears in the page after", time.monotonic() - began)
    page.eval("location.hash = '#/pod/default/appears'")
    page.until("its page names the node", f"document.querySelector('.page')?.innerText.includes({json.dumps(bound)})")
    filled.delete("appears")
    page.until("and goes", "document.querySelector('.page').innerText.includes('no such pod')", 60)


def test_a_pod_that_waits_has_the_schedulers_reason_and_starts_when_there_is_room(page: Page, filled: Cluster) -> None:
    page.eval("location.hash = '#/waiting'")
    page.until("the view", "document.getElementById('view-title').textContent === 'Pods that wait for GPUs'")
    name = filled.create(fake_pod("waits", memory=39))["metadata"]["name"]
    reason = filled.until_unschedulable(name)
    page.until("it waits", "document.querySelector('.row a')?.textContent === 'default/waits'", APPEARS_SECONDS)
    page.eval("location.hash = '#/pod/default/waits'")
    page.until("the scheduler's words", f"document.querySelector('.page')?.innerText.includes({json.dumps(reason[:60])})", APPEARS_SECONDS)
    assert "GPUs have room on 0 of 3 nodes" in page.text
    page.picture(PICTURES / "lab-pod.png")
    remove(filled, *(f"seen-{number}" for number in range(PODS)))
    page.until("it has its GPU", "document.querySelector('.page').innerText.includes('39 of 40')", 60)
