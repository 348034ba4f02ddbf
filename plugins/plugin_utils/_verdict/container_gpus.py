# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether containers have the GPUs that the API says, and where a probe pod of one unit can be placed.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...module_utils._cluster.names import ANNOTATION_ALLOCATION, ANNOTATION_GPUS, ANNOTATION_HELD, ANNOTATION_INDEX
from ...module_utils._facts.capacity import AnnotationError, published
from .findings import VerifyFindings

#: Seconds that the device plugin has to write what kubelet gave.
_GRACE = 30.0


def judge_containers(
    found: VerifyFindings,
    pods: Iterable[Mapping[str, Any]],
    has: Mapping[str, list[str]],
    gpus: Mapping[int, Sequence[str] | None],
    now: float,
) -> int:
    """How many containers were checked. pods: of this node. has: container id to device nodes. gpus: index to the GPU's device nodes.

    now: when the node answered, by its own clock, which is also that of the containers' start.
    """
    count = 0
    for pod in pods:
        if pod["deleted"]:
            continue
        asking = {declared["name"]: declared for declared in pod["containers"] if declared["units"] or declared["gpus"]}
        for running in pod["running"]:
            container = asking.get(running["name"])
            others = [declared for declared in pod["containers"] if declared["name"] == running["name"] and not declared["privileged"]]
            if container is None and others and has.get(running["id"]) and running["started"] <= now - 1:
                name = f"container {running['name']} of pod {pod['namespace']}/{pod['name']}"
                judge_strangers(found, [{"name": name, "gpus": has[running["id"]], "privileged": False}])
            if container is None or container["privileged"] or running["started"] > now - 1:
                continue  # privileged ones have every device by their own wish
            count += 1
            _judge_container(found, pod, container, running, has, gpus, now)
    return count


def judge_strangers(found: VerifyFindings, strangers: Iterable[Mapping[str, Any]]) -> None:
    """Containers that have GPUs and have asked for none: no memory is counted for them."""
    for stranger in strangers:
        how = "open in a privileged container" if stranger["privileged"] else "in its /dev"
        cure = (
            "give it a request of aliyun.com/gpu-mem, or end it; see its volumes (hostPath below /var/run/nvidia-container-devices), "
            "NVIDIA_VISIBLE_DEVICES, runtimeClassName and securityContext; a program that only watches GPUs may stay"
        )
        found.say("gpu_without_request", f"{stranger['name']} with {_list(stranger['gpus'])} {how}", "a request, or no GPU", cure)


def _judge_container(
    found: VerifyFindings,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    running: Mapping[str, Any],
    has: Mapping[str, list[str]],
    gpus: Mapping[int, Sequence[str] | None],
    now: float,
) -> None:
    who = f"container {container['name']} of pod {pod['namespace']}/{pod['name']}"
    nodes = has.get(running["id"])
    if nodes is None:
        cure = "run verify again; if it stays: is the container runtime's id in /proc/PID/cgroup of its processes?"
        found.say("container_not_seen", f"no process of {who} ({running['id'][:12]})", "the processes of a running container", cure)
        return
    wanted = gpus_of(pod["annotations"], container["index"])
    if not wanted:
        if running["started"] < now - _GRACE:
            cure = "delete the pod so that it is scheduled again; if it comes again, see whether its scheduler calls the extender"
            found.say("not_annotated", f"{who} without an annotation that names its GPU", ANNOTATION_ALLOCATION, cure)
        return
    gone = sorted(gpu for gpu in wanted if gpu not in gpus)
    if gone:
        indexes = ", ".join(map(str, gone))
        cure = (
            "read dmesg for Xid, check that the GPU is on the bus (lspci -d 10de:), then reboot the host; leave the pod until then: it is "
            "the last trace of the GPU"
        )
        found.say("gpu_missing", f"no GPU {indexes}, which {who} was given", "each GPU that the node had when the pod started", cure)
        return
    unknown = sorted(gpu for gpu in wanted if gpus.get(gpu) is None)
    # Instances of one GPU have its device node in common.
    expected = sorted({node for gpu in wanted for node in gpus.get(gpu) or ()})
    if unknown or nodes != expected:
        seen = f"{who} with {_list(nodes)} in its /dev"
        indexes = ", ".join(map(str, sorted(wanted)))
        cure = (
            "delete the pod so that it gets its GPU again; check that it has no hostPath volume below /var/run/nvidia-container-devices, "
            "that its image or manifest does not set NVIDIA_VISIBLE_DEVICES, and that its annotations are as the scheduler wrote them"
        )
        found.say("wrong_gpu", seen, f"{_list(expected)}: its annotation names GPU {indexes}", cure)


def gpus_of(annotations: Mapping[str, str], index: int) -> set[int]:
    """NVML indexes of the GPUs that the annotations give a container; empty if they name none."""
    try:
        allocation = json.loads(annotations.get(ANNOTATION_ALLOCATION, "{}"))
        if str(index) in allocation:
            return {int(gpu) for gpu in allocation[str(index)]}
        if index < 0 and allocation:
            return {int(gpu) for container in allocation.values() for gpu in container}
        # The original writes the GPU of the whole pod only.
        gpu = annotations.get(ANNOTATION_INDEX, "-1") if not allocation else "-1"
        return {int(gpu)} if int(gpu) >= 0 else set()
    except (ValueError, TypeError, AttributeError):
        return set()


def _list(nodes: Iterable[str]) -> str:
    return ", ".join(nodes) or "no GPU"


def free_units(node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> int | None:
    """Units that the node has free on usable GPUs; None if its GPUs are not known. pods: any, of which it takes its own."""
    annotations = node["metadata"]["annotations"]
    try:
        known = published(annotations[ANNOTATION_GPUS]).gpus
    except (KeyError, AnnotationError):
        return None
    gpus = {gpu.index: gpu.units for gpu in known if gpu.usable}
    for pod in pods:
        if pod["node"] == node["metadata"]["name"]:
            for gpu, units in _held(pod).items():
                gpus[gpu] = gpus.get(gpu, 0) - units
    kept_back = _kept_back(annotations.get(ANNOTATION_HELD, "{}"))
    for shared in known:
        gpus[shared.index] = gpus.get(shared.index, 0) - kept_back.get(shared.uuid, 0)
    return sum(units for units in gpus.values() if units > 0)


def _held(pod: Mapping[str, Any]) -> dict[int, int]:
    """GPU index to units, by the pod's annotations."""
    total: dict[int, int] = {}
    try:
        for gpus in json.loads(pod["annotations"].get(ANNOTATION_ALLOCATION, "{}")).values():
            for gpu, units in gpus.items():
                total[int(gpu)] = total.get(int(gpu), 0) + int(units)
        if not total and int(pod["annotations"].get(ANNOTATION_INDEX, "-1")) >= 0:
            asked = (container["units"] for container in pod["containers"] if container["index"] >= 0)
            total[int(pod["annotations"][ANNOTATION_INDEX])] = sum(asked)
    except (ValueError, TypeError, AttributeError):
        return {}
    return total


def _kept_back(text: str) -> dict[str, int]:
    """GPU UUID to units that the device plugin keeps back for pods that are gone."""
    try:
        gpus = json.loads(text).get("gpus")
        return {str(gpu): sum(int(entry["units"]) for entry in entries) for gpu, entries in gpus.items()}
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}
