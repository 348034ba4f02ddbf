# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The samples of docs/use/samples on a cluster: applied in their order, each waited for. What `make demo` and the tests share."""

from __future__ import annotations

from collections.abc import Callable

from e2e.api import Json
from e2e.cluster import SAMPLES, Cluster, is_running, unschedulable

SHARING = ("share-1", "share-2", "share-3")
DEPLOYMENT = "gpu-1"
NVIDIA_SMI = "gpu-pod"
TOO_LARGE = "too-large"


def apply_samples(cluster: Cluster, say: Callable[[str], None]) -> None:
    """Bring the namespace default to all samples; quick where they are there already. WaitedInVain says what went wrong."""
    failed = [pod["metadata"]["name"] for pod in cluster.pods() if pod["status"].get("phase") == "Failed"]
    if failed:
        say(f"removing what has failed: {', '.join(failed)}")
        cluster.delete(*failed)
    for name, document in zip(SHARING, (SAMPLES / "01-share.yaml").read_text().split("\n---\n"), strict=True):
        cluster.kubectl("apply", "-f", "-", stdin=document)
        cluster.until_running(name)
        say(f"{name} runs: 01-share.yaml, {_place(cluster.pod(name))}")
    cluster.kubectl("apply", "-f", str(SAMPLES / "02-deployment.yaml"))
    deployed = cluster.until(f"{DEPLOYMENT} runs", lambda: of_deployment(cluster), 60)
    say(f"deployment {DEPLOYMENT} runs: 02-deployment.yaml, {_place(deployed)}")
    cluster.kubectl("apply", "-f", str(SAMPLES / "03-nvidia-smi.yaml"))
    cluster.until(f"{NVIDIA_SMI} has ended well", lambda: cluster.pod(NVIDIA_SMI)["status"].get("phase") == "Succeeded", 60, NVIDIA_SMI)
    say(f"{NVIDIA_SMI} has run: 03-nvidia-smi.yaml, {_place(cluster.pod(NVIDIA_SMI))}")
    cluster.kubectl("apply", "-f", str(SAMPLES / "04-too-large.yaml"))
    cluster.until_unschedulable(TOO_LARGE)
    say(f"{TOO_LARGE} waits: 04-too-large.yaml, no GPU is that large")


def in_place(cluster: Cluster) -> bool:
    """Whether the namespace default has exactly the samples, in the state that apply_samples leaves."""
    pods = {pod["metadata"]["name"]: pod for pod in cluster.pods()}
    if not all(map(is_sample, pods.values())) or not {*SHARING, NVIDIA_SMI, TOO_LARGE} < set(pods):
        return False
    ended = pods[NVIDIA_SMI]["status"].get("phase") == "Succeeded"
    return ended and all(is_running(pods[n]) for n in SHARING) and bool(of_deployment(cluster) and unschedulable(pods[TOO_LARGE]))


def is_sample(pod: Json) -> bool:
    """Whether it is one of the samples' pods, and not being deleted."""
    known = pod["metadata"]["name"] in (*SHARING, NVIDIA_SMI, TOO_LARGE) or pod["metadata"].get("labels", {}).get("app") == DEPLOYMENT
    return known and "deletionTimestamp" not in pod["metadata"]


def of_deployment(cluster: Cluster) -> Json | None:
    """The pod of the sample Deployment if exactly one is there and runs."""
    found = [pod for pod in cluster.pods() if pod["metadata"].get("labels", {}).get("app") == DEPLOYMENT]
    return found[0] if len(found) == 1 and is_running(found[0]) else None


def running_samples(cluster: Cluster) -> list[Json]:
    """The sample pods that run on and on."""
    return [pod for pod in cluster.pods() if is_running(pod)]


def _place(pod: Json) -> str:
    return f"{pod['spec']['nodeName']}, GPU {pod['metadata']['annotations']['ALIYUN_COM_GPU_MEM_IDX']}"
