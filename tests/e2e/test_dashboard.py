# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The dashboard on a real cluster: pods that the scheduler places appear in an open page, and the service has the rights of its page."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import yaml

from dashboard.browser import Browser, Loop, Page
from dashboard.programs import kubectl_dashboard
from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster
from e2e.fake_nodes import fake_nodes, fake_pod, placed, remove
from e2e.manifests import pod
from quality.tree import REPOSITORY

Say = Callable[[str, float], None]
Json = dict[str, Any]

NODE: Final = "seen"
CARDS: Final = 12
PODS: Final = 40
APPEARS_SECONDS: Final = 10.0
"""Five times what people are promised."""
PICTURES: Final = REPOSITORY / "build" / "dashboard"
SERVICE: Final = "gpushare-dashboard-under-test"
FOLDER: Final = "/run/gpushare-dashboard-test"
TOKEN: Final = "0123456789abcdef-of-the-lab"


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    """The lab's nodes and one more, which have twelve cards together, and forty pods."""
    cluster.clear()
    nodes = [one for one in cluster.api.get("/api/v1/nodes")["items"] if "gpushare/cards" in one["metadata"].get("annotations", {})]
    real = sum(len(json.loads(one["metadata"]["annotations"]["gpushare/cards"])["cards"]) for one in nodes)
    assert 0 < real < CARDS
    with fake_nodes(cluster, {NODE: [40] * (CARDS - real)}):
        for number in range(PODS):
            # One on each card that is more than its half, so that none is empty.
            placed(cluster, fake_pod(f"seen-{number}", memory=21 if number < CARDS - real else 1))
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
    assert facts(page)["Cards"] == str(CARDS)
    assert facts(page)["Pods with cards"] == str(PODS)
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
    page.until("the view", "document.getElementById('view-title').textContent === 'Pods that wait for cards'")
    name = filled.create(fake_pod("waits", memory=39))["metadata"]["name"]
    reason = filled.until_unschedulable(name)
    page.until("it waits", "document.querySelector('.row a')?.textContent === 'default/waits'", APPEARS_SECONDS)
    page.eval("location.hash = '#/pod/default/waits'")
    page.until("the scheduler's words", f"document.querySelector('.page')?.innerText.includes({json.dumps(reason[:60])})", APPEARS_SECONDS)
    assert "Cards have room on 0 of 3 nodes" in page.text
    page.picture(PICTURES / "lab-pod.png")
    remove(filled, *(f"seen-{number}" for number in range(PODS)))
    page.until("it has its card", "document.querySelector('.page').innerText.includes('39 of 40')", 60)


def test_the_service_needs_no_more_than_the_rights_of_its_page(filled: Cluster) -> None:
    text = (REPOSITORY / "docs/use/dashboard.md").read_text()
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found
    role = yaml.safe_load(found[1])
    account: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SERVICE, "namespace": "default"}}
    binding: Json = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": SERVICE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": SERVICE, "namespace": "default"}],
    }
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, account, binding]})
    filled.kubectl("apply", "-f", "-", stdin=objects)
    try:
        admin = yaml.safe_load(filled.on(CONTROL_PLANE, "cat", "/etc/kubernetes/admin.conf"))
        cluster = admin["clusters"][0]["cluster"]
        token = filled.kubectl("create", "token", SERVICE).strip()
        config = {**admin, "users": [{"name": admin["users"][0]["name"], "user": {"token": token}}], "clusters": admin["clusters"]}
        assert cluster["server"].startswith("https://")
        write(filled, "kubeconfig", json.dumps(config))
        write(filled, "token", TOKEN)
        filled.on(CONTROL_PLANE, "systemd-run", f"--unit={SERVICE}", "--property=Type=notify", "--property=DynamicUser=no",
                  "/opt/gpushare/current/bin/gpushare-dashboard", "--kubeconfig", f"{FOLDER}/kubeconfig",
                  "--viewer-token-file", f"{FOLDER}/token", seconds=120)  # fmt: skip
        # Type=notify: it was started when the cluster was read.
        assert get(filled, "/healthz", "") == (200, "ok\n")
        assert get(filled, "/api/state", "")[0] == 401
        assert get(filled, "/api/state", "wrong")[0] == 401
        status, body = get(filled, "/api/state", TOKEN)
        assert (status, json.loads(body)["sums"]["nodes"], json.loads(body)["complete"]) == (200, 3, True)
        rights = filled.kubectl("auth", "can-i", "--list", f"--as=system:serviceaccount:default:{SERVICE}")
        assert re.search(r"^pods\s+\[\]\s+\[\]\s+\[list watch\]", rights, re.MULTILINE)
    finally:
        filled.on(CONTROL_PLANE, "sh", "-c", f"systemctl stop {SERVICE}; systemctl reset-failed {SERVICE}; rm -rf {FOLDER}; true")
        filled.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=objects)


def write(cluster: Cluster, name: str, text: str) -> None:
    """A file that only root of the control plane may read."""
    command = f"mkdir -p -m 700 {FOLDER} && umask 077 && cat > {FOLDER}/{name}"
    cluster.lab("exec", CONTROL_PLANE, "sh", "-c", command, stdin=text)


GET: Final = """
import sys, urllib.request, urllib.error
request = urllib.request.Request(f"http://127.0.0.1:9442{sys.argv[1]}", headers={"Authorization": f"Bearer {sys.argv[2]}"})
try:
    answer = urllib.request.urlopen(request, timeout=30)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status)
sys.stdout.write(answer.read().decode())
"""


def get(cluster: Cluster, path: str, token: str) -> tuple[int, str]:
    """Status and body of a request on the control plane itself."""
    status, _, body = cluster.on(CONTROL_PLANE, "python3", "-c", GET, path, token).partition("\n")
    return int(status), body
