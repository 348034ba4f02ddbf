# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A user with the ClusterRole `edit` in one namespace, on a real API server with its RBAC: first-pod.md, `explain`, the cure.

kube-scheduler, our extender with the rights of its own account, and nodes without a kubelet: pods are placed and do not run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import KubectlError
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import on_hosts

from bench.scheduling.control_plane import Process, free_port
from bench.scheduling.objects import UNITS, make_nodes
from docs.pages import steps
from gpushare_lab.process import until
from gpushare_runtime.core.protocol import EXTENDER_PREFIX, INFO, PUBLIC_NAMESPACE, RESOURCE_GPUS, RESOURCE_MEMORY, SIZES
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kube.credentials import load
from others.server import Json, Server
from tree import REPOSITORY
from users import User, first_pod, granted

TEAM, OTHERS, TEST = "research", "others", "tests/others/test_tenant.py"
#: Of Kubernetes' ClusterRole `edit`, which a controller would fill from these.
EDIT = ("system:aggregate-to-edit", "system:aggregate-to-view")
_SECONDS = 120.0


def pod(name: str, units: int, namespace: str) -> Json:
    container = {"name": "main", "image": "none", "resources": {"limits": {RESOURCE_MEMORY: str(units)}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": {"containers": [container]}}


def as_extender(server: Server, folder: Path) -> User:
    return User(server.program, server.plane.kubeconfig, "gpushare-extender", "kube-system", folder / "extender.json")


@pytest.fixture
def analyst(server: Server, tmp_path: Path) -> Iterator[User]:
    """The user, beside a scheduler with our extender and two nodes with two GPUs of 16 GiB."""
    values = on_hosts.OnHosts(lease="none", prometheus="http://prometheus.monitoring:9090")
    ours = [*on_hosts.objects("admission", values), *on_hosts.objects("extender", values)]
    server.apply(*ours)
    others = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHERS}}
    server.apply(others, *granted("analyst", TEAM, EDIT))
    own, port = as_extender(server, tmp_path), free_port()
    module: list[str | Path] = [sys.executable, "-m", "gpushare_runtime.extender.main", "--kubeconfig", own.kubeconfig]
    extender = Process("extender", [*module, "--lease", "none", "--listen", f"127.0.0.1:{port}"], tmp_path)
    entry = {
        "urlPrefix": f"http://127.0.0.1:{port}{EXTENDER_PREFIX}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "weight": 10,
        "nodeCacheCapable": True,
        "managedResources": [{"name": RESOURCE_MEMORY}, {"name": RESOURCE_GPUS}],
    }
    scheduler = server.plane.scheduler({"extenders": [entry]})
    try:
        asyncio.run(_nodes(server))
        yield User(server.program, server.plane.kubeconfig, "analyst", TEAM, tmp_path / "analyst.json")
    finally:
        scheduler.stop()
        extender.stop()
        print((tmp_path / "extender.log").read_text()[-3000:])
        server.delete("nodes")
        server.kubectl.text(["delete", "--ignore-not-found", "-f", "-"], json.dumps({"apiVersion": "v1", "kind": "List", "items": ours}))


async def _nodes(server: Server) -> None:
    async with KubeClient(load(str(server.plane.kubeconfig)), user_agent="others") as client:
        await make_nodes(client, 2, gpus=2)


def test_from_the_first_pod_to_the_cure(server: Server, analyst: User, tmp_path: Path) -> None:
    # The nodes are not his business.
    for argv in (("get", "nodes"), ("get", "pods", "-A"), ("get", "configmap", SIZES, "-n", "kube-system")):
        code, said = analyst.kubectl(*argv)
        assert (code, "Forbidden" in said) == (1, True), said
    in_bytes = first_pod("8Gi")
    analyst.create(in_bytes)
    told = f"8Gi means {8 * 2**30} units of 1 GiB; the largest GPU has {UNITS}; write 8"
    verdict = analyst.until_told("first", f"{TEAM}/first: fits on no GPU, even an empty one: {told}")
    code, said = analyst.gpushare("explain", "first")
    assert (code, "which node has room, explain needs to list nodes and all pods" in said) == (3, True)
    # The Event on his own pod has the same words.
    until("the Event is there", _SECONDS, lambda: told in analyst.kubectl("describe", "pod", "first")[1], why_not=lambda: "")
    assert told in analyst.gpushare("pods")[1]
    code, said = analyst.gpushare("simulate", "-f", "-", text=in_bytes)
    assert (code, told in said) == (3, True)
    for command in ("status", "nodes", "explain -A"):
        code, said = analyst.gpushare(*command.split())
        assert (code, said.endswith("needs to list nodes and all pods. As you are: kubectl gpushare pods\n")) == (1, True), said
    # He does what it says.
    (number,) = re.findall(r"; write (\d+)$", verdict)
    analyst.delete("first")
    analyst.create(first_pod(number))
    # There is no kubelet.
    analyst.until_told("first", f"pod {TEAM}/first is being started: ContainerCreating")
    code, said = analyst.gpushare("explain", "first")
    assert f"\npod {TEAM}/first is on node node-0000" in said
    assert (code, said.rstrip().rpartition(" has ")[2].rpartition(" of GPU")[0]) == (0, "8 GiB")
    assert "8 GiB" in analyst.gpushare("pods")[1]

    # Pods of others, of whom he sees nothing, leave room for 8 units on one GPU.
    for fill in range(3):
        server.apply(pod(f"fill-{fill}", 12, OTHERS))

    def placed() -> bool:
        return all(one["spec"].get("nodeName") for one in server.kubectl.json(["get", "pods", "-n", OTHERS])["items"])

    until("the others are placed", _SECONDS, placed, why_not=lambda: "")
    analyst.create(json.dumps(pod("second", 10, TEAM)))
    verdict = analyst.until_told("second", "fits on no node, as kube-scheduler last reported: write at most 8, or wait for room")
    assert "fill-" not in verdict + analyst.gpushare("pods")[1]
    (number,) = re.findall(r"write at most (\d+)", verdict)
    analyst.delete("second")
    analyst.create(json.dumps(pod("second", int(number), TEAM)))
    analyst.until_told("second", f"pod {TEAM}/second is being started: ContainerCreating")
    assert f"\npod {TEAM}/second is on node node-0000" in analyst.gpushare("explain", "second")[1]

    # An older installation has no sizes: the Event is left.
    server.kubectl.text(["delete", "configmap", SIZES, "-n", PUBLIC_NAMESPACE])
    analyst.create(in_bytes.replace("name: first", "name: third"))
    analyst.until_told("third", f"{TEAM}/third: {told}")
    assert "8 units" in analyst.gpushare("pods")[1]
    # Of the two public ConfigMaps the extender may write one.
    for name, may in ((SIZES, "yes"), (INFO, "no")):
        asked = ("auth", "can-i", "patch", f"configmap/{name}", "-n", PUBLIC_NAMESPACE)
        assert as_extender(server, tmp_path).kubectl(*asked)[1].strip() == may


@pytest.mark.parametrize(("sample", "taken"), [("first", True), ("11-notebook", True), ("10-vllm", False)])
def test_a_namespace_that_enforces_the_standard_restricted(server: Server, sample: str, taken: bool) -> None:
    """It takes what the pages say that it takes; vLLM's image runs as root."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": labels}})
    text = first_pod("2") if sample == "first" else (REPOSITORY / f"docs/use/samples/{sample}.yaml").read_text()
    made = [one for one in yaml.safe_load_all(text) if one["kind"] in ("Pod", "Deployment")]
    specs = [one["spec"] if one["kind"] == "Pod" else one["spec"]["template"]["spec"] for one in made]
    assert len(specs) == 1
    one = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "strict"}, "spec": specs[0]}

    def create() -> None:
        server.kubectl.text(["create", "--dry-run=server", "-f", "-"], json.dumps(one))

    if taken:
        create()
    else:
        with pytest.raises(KubectlError, match="violates PodSecurity"):
            create()


def policies(*manifests: str) -> list[Json]:
    """Of the scheduler's name, or of claims, in manifests of the release."""
    documents = [one for name in manifests for one in yaml.safe_load_all((REPOSITORY / "docs/manifests" / name).read_text()) if one]
    wanted = ("gpushare-scheduler-name", "gpushare-dra-requests")
    return [one for one in documents if "AdmissionPolicy" in one["kind"] and one["metadata"]["name"] in wanted]


@pytest.mark.parametrize(
    ("manifests", "printed"),
    [
        ([], "default-scheduler"),
        (["gpushare.yaml"], "write spec.schedulerName: gpushare-scheduler"),
        (["gpushare.yaml", "scheduler-name.yaml"], "gpushare-scheduler"),
        (["dra/gpushare-dra.yaml"], "default-scheduler gpushare"),
    ],
    ids=["services", "pods before 1.36", "pods", "dra"],
)
def test_the_dry_run_of_the_page_shows_the_mode(server: Server, manifests: list[str], printed: str, tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(first_pod("2"))
    (step,) = steps("docs/use/first-pod.md", TEST)
    environment = {"PATH": f"{server.program.parent}:{os.environ['PATH']}", "KUBECONFIG": str(server.plane.kubeconfig)}
    applied = policies(*manifests)
    if applied:
        server.apply(*applied)
    said = [""]

    def shown() -> bool:
        done = subprocess.run(["sh", "-c", step.command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        said[0] = done.stdout.strip() + done.stderr.strip()
        return printed in said[0] if done.returncode else said[0].startswith(printed) and (len(said[0].split()) == len(printed.split()))

    try:
        until("the policies are in force", _SECONDS, shown, why_not=lambda: said[0])
    finally:
        if applied:
            server.kubectl.text(["delete", "-f", "-"], json.dumps({"apiVersion": "v1", "kind": "List", "items": applied}))
