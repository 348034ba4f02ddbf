# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Kueue as its release installs it, with its webhooks and rights, beside gpushare: Jobs and pods wait for quota and run on their GPUs.

The controller is built from its Go module, and so are its manifests. Two things of its Deployment differ: the image's name, and
imagePullPolicy, because the lab has no registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from cluster_mode.installs import gpushare
from docs.conftest import shell
from docs.pages import steps
from e2e.api import ApiError, Json
from e2e.checks import check_devices, check_environment, check_totals
from e2e.cluster import CONTROL_PLANE, GPU_NODES, MEMORY, SAMPLES, Cluster, is_running
from e2e.manifests import pod
from gpushare_lab.archive import File
from gpushare_lab.prepare import the_cache
from gpushare_lab.runtimes import Module, go_programs
from gpushare_lab.versions import version
from labs import TWO, Labs
from take_over.stand_ins import give_image_of, give_services
from tree import REPOSITORY

PAGE: Final = "docs/operate/integrations.md"
TEST: Final = "tests/integrations/test_kueue.py"
SAMPLE: Final = str(SAMPLES / "14-kueue.yaml")
KUEUE: Final = Module(
    "sigs.k8s.io/kueue", version("kueue"), {"manager": "cmd/kueue"}, "sigs.k8s.io/kueue/pkg/version.GitVersion", kept="config"
)
KUEUE_IMAGE: Final = f"registry.k8s.io/kueue/kueue:v{KUEUE.version}"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
GATE: Final = "kueue.x-k8s.io/admission"
QUEUE = "gpushare"
JOBS = {"queued-1", "queued-2", "queued-3"}
_API = "/apis/kueue.x-k8s.io/v1beta2"
# Kueue waits for kubelet to bring its new certificate into its pod: up to two minutes.
_SECONDS = 600
# A task of the sample takes two minutes, and the image of Kueue is built where the lab's cache has none.
pytestmark = pytest.mark.timeout(3600)


def manifests(cluster: Cluster, programs: Path) -> str:
    """What Kueue's release has, made from the module's files by kubectl's own kustomize."""
    documents = list(yaml.safe_load_all(cluster.kubectl("kustomize", str(programs / "config/default"))))
    (deployment,) = (one for one in documents if one["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0].update({"image": KUEUE_IMAGE, "imagePullPolicy": "Never"})
    return yaml.safe_dump_all(documents)


@pytest.fixture(scope="module")
def kueue(labs: Labs) -> Iterator[Cluster]:
    """A cluster with gpushare and Kueue, both ready, and no pod in the namespace default."""
    cluster = labs.installed(TWO)
    cluster.clear()
    programs = go_programs(the_cache(), "kueue", KUEUE)
    give_services(cluster, CONTROL_PLANE, *GPU_NODES)
    give_image_of(cluster, GPU_NODES, KUEUE_IMAGE, {"manager": File(programs / "manager")}, "/manager", user="65532:65532")
    installed = manifests(cluster, programs)
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=installed, seconds=_SECONDS)
    waiting = ("wait", "deployment/kueue-controller-manager", "--namespace=kueue-system", "--for=condition=Available")
    cluster.kubectl(*waiting, f"--timeout={_SECONDS}s", seconds=_SECONDS + 30)
    cluster.until("Kueue's webhooks answer", lambda: cluster.kubectl("apply", "--dry-run=server", "-f", SAMPLE), 60)
    yield cluster
    cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=installed, seconds=_SECONDS)


@pytest.fixture
def queue(kueue: Cluster) -> Iterator[Cluster]:
    """Afterwards nothing of the sample is left."""
    yield kueue
    kueue.kubectl("delete", "jobs", "--all", "--cascade=foreground", seconds=_SECONDS)
    kueue.clear()
    kueue.kubectl("delete", "-f", SAMPLE, "--ignore-not-found", seconds=_SECONDS)


def of_jobs(cluster: Cluster) -> dict[str, Json]:
    """Job → its pod."""
    return {one["metadata"]["labels"]["job-name"]: one for one in cluster.pods() if "job-name" in one["metadata"].get("labels", {})}


def running(cluster: Cluster) -> list[str]:
    return sorted(name for name, one in of_jobs(cluster).items() if is_running(one))


def condition(cluster: Cluster, owner: str, kind: str) -> Json:
    """A condition of the workload that Kueue has made for a Job or pod. LookupError until it has."""
    workloads = cluster.api.items(f"{_API}/namespaces/default/workloads")
    (workload,) = (one for one in workloads if one["metadata"]["ownerReferences"][0]["name"] == owner)
    found: Json = next(one for one in workload["status"]["conditions"] if one["type"] == kind)
    return found


def job(name: str, **limits: object) -> Json:
    """A Job like one of the sample, with other limits."""
    found: Json = next(one for one in yaml.safe_load_all(Path(SAMPLE).read_text()) if one["kind"] == "Job")
    found["metadata"]["name"] = name
    found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = limits
    return found


def check_gpus(cluster: Cluster, pods: list[Json]) -> list[str]:
    """Each container has the GPU of its pod's annotation in /dev, and PID 1 the variables of its share."""
    return check_devices(cluster, pods) + check_environment(cluster, pods) + check_totals(cluster)


def test_two_jobs_of_the_page_run_and_the_third_one_after_them(queue: Cluster, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(REPOSITORY / "docs")
    line, (apply, show) = shell(queue, tmp_path), steps(PAGE, TEST)
    line(apply.command)
    first = queue.until("two Jobs run", lambda: two if len(two := running(queue)) == 2 else None, _SECONDS)
    assert check_gpus(queue, [of_jobs(queue)[name] for name in first]) == []

    (third,) = JOBS - set(first)
    reserved = queue.until("Kueue says why the third one waits", lambda: condition(queue, third, "QuotaReserved"), _SECONDS)
    assert (reserved["status"], f"insufficient unused quota for {MEMORY}" in reserved["message"]) == ("False", True), reserved
    assert (set(of_jobs(queue)), queue.api.get(f"/apis/batch/v1/namespaces/default/jobs/{third}")["spec"]["suspend"]) == (set(first), True)
    assert sorted(row.split()[3:4] for row in line(show.command).splitlines()[1:]) == [[], ["True"], ["True"]]

    queue.until("the third one runs", lambda: third in running(queue), 2 * _SECONDS)
    assert check_gpus(queue, [of_jobs(queue)[third]]) == []
    status = {one["metadata"]["name"]: one["status"] for one in queue.api.items("/apis/batch/v1/namespaces/default/jobs")}
    ended = [status[name]["completionTime"] for name in first if "completionTime" in status[name]]
    assert ended
    assert min(ended) <= status[third]["startTime"]
    queue.kubectl("wait", "--for=condition=Complete", *(f"job/{name}" for name in sorted(JOBS)), "--timeout=600s", seconds=630)


def test_plain_pods_wait_behind_a_gate(queue: Cluster) -> None:
    """kube-scheduler, and so the extender, does not see a pod before Kueue admits it."""
    queue.kubectl("apply", "-f", SAMPLE, "--selector=!" + QUEUE_LABEL)
    for name in ("first", "second", "third"):
        wanted = pod(name, memory=8)
        wanted["metadata"]["labels"] = {QUEUE_LABEL: QUEUE}
        queue.create(wanted)
    assert check_gpus(queue, queue.until_running("first", "second", seconds=_SECONDS)) == []
    assert GATE in {gate["name"] for gate in queue.pod("third")["spec"]["schedulingGates"]}
    assert "it waits for the removal of its scheduling gates" in gpushare(queue, "explain", "third")
    queue.delete("first")
    assert check_gpus(queue, queue.until_running("second", "third", seconds=_SECONDS)) == []


def test_what_the_page_says_of_quota(queue: Cluster) -> None:
    """A pod that no single GPU has room for is admitted, and one that requests what no group covers is not."""
    queue.kubectl("apply", "-f", SAMPLE, "--selector=!" + QUEUE_LABEL)
    path = f"{_API}/clusterqueues/{QUEUE}"
    spec = queue.api.get(path)["spec"]
    spec["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "64"
    queue.api.patch(path, {"spec": {"resourceGroups": spec["resourceGroups"]}})
    for wanted in (job("wide", **{MEMORY: 30}), job("uncovered", **{MEMORY: 1, "cpu": "100m"})):
        queue.api.create("/apis/batch/v1/namespaces/default/jobs", wanted)
    queue.until("the wide Job has its pod", lambda: of_jobs(queue)["wide"], _SECONDS)
    assert condition(queue, "wide", "Admitted")["status"] == "True"
    name = of_jobs(queue)["wide"]["metadata"]["name"]
    assert "GPU" in queue.until_unschedulable(name, 60)
    assert "fits on no GPU" in gpushare(queue, "explain", name)
    reserved = queue.until("Kueue says why the other waits", lambda: condition(queue, "uncovered", "QuotaReserved"), _SECONDS)
    assert (reserved["status"], "resource cpu unavailable in ClusterQueue" in reserved["message"]) == ("False", True), reserved
    assert set(of_jobs(queue)) == {"wide"}


def test_without_kueue_no_pod_is_created(queue: Cluster) -> None:
    deployment = "/apis/apps/v1/namespaces/kueue-system/deployments/kueue-controller-manager"

    def scale(replicas: int) -> None:
        queue.api.patch(deployment, {"spec": {"replicas": replicas}})
        queue.until("Kueue has so many pods", lambda: queue.api.get(deployment)["status"].get("readyReplicas", 0) == replicas, _SECONDS)

    def rejected() -> str:
        with pytest.raises(ApiError) as error:
            queue.create(pod("without", memory=1))
        return str(error.value)

    scale(0)
    try:
        assert "mpod.kb.io" in rejected()
    finally:
        scale(1)
