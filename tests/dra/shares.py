# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What kube-scheduler has allocated by claims, and whether kubelet and containers have that, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cluster_mode.installs import until_ready
from e2e.api import Json
from e2e.checks import CONTROL_DEVICES
from e2e.cluster import GPU_NODES, Cluster, RealGpu

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
CONTAINER_UNITS = "ALIYUN_COM_GPU_MEM_CONTAINER"
#: Where kubelet keeps which claims it has prepared, and the device plugin those of its own.
KUBELETS, OURS = "/var/lib/kubelet/dra_manager_state", "/var/lib/gpushare-device-plugin/claims.json"
SPEC = "/var/run/cdi/gpushare-claims.json"
_GIB = {"Gi": 1, "Ti": 1024}


@dataclass(frozen=True)
class Share:
    """Memory of one GPU that a claim has. device: the GPU's UUID in small letters."""

    node: str
    device: str
    gib: int


def until_serving(cluster: Cluster) -> None:
    """Until all pods of gpushare are ready, each GPU node has its slice, and the namespace default its template."""
    until_ready(cluster, "gpushare-claims")
    cluster.until("each GPU node has its slice", lambda: {one["spec"]["nodeName"] for one in cluster.api.items(SLICES)} == {*GPU_NODES}, 60)
    cluster.until("the namespace default has its template", lambda: "default" in templates(cluster), 60)


def templates(cluster: Cluster) -> set[str]:
    """The namespaces that have the template."""
    return {one["metadata"]["namespace"] for one in cluster.api.items(TEMPLATES) if one["metadata"]["name"] == "gpushare"}


def claims(cluster: Cluster, namespace: str = "default") -> list[Json]:
    return cluster.api.items(_CLAIMS.format(namespace))


def claims_as_they_change(cluster: Cluster, seconds: int) -> Iterator[Json]:
    """Also a claim that has its allocation for a moment only."""
    return cluster.api.watch(_CLAIMS.format("default"), seconds)


def shares_of(claim: Json) -> list[Share]:
    """What is allocated for a claim."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return [Share(one["pool"], one["device"], _gib(one["consumedCapacity"]["memory"])) for one in results]


def _gib(amount: str) -> int:
    return int(amount[:-2]) * _GIB[amount[-2:]]


def allocated(cluster: Cluster) -> dict[str, list[Share]]:
    """UID of a pod → its shares."""
    found: dict[str, list[Share]] = {}
    for claim in claims(cluster):
        for user in claim.get("status", {}).get("reservedFor", ()):
            found.setdefault(user["uid"], []).extend(shares_of(claim))
    return found


def gpus_by_device(cluster: Cluster) -> dict[tuple[str, str], RealGpu]:
    """(node, device) → the GPU by the driver's word."""
    return {(node, gpu.uuid.lower()): gpu for node in GPU_NODES for gpu in cluster.gpus(node)}


def check_shares(cluster: Cluster, pods: Iterable[Json], units: Mapping[str, int]) -> list[str]:
    """Each running container of these pods has the GPUs of its pod's claim in /dev, and what PID 1 reads says the same.

    units: name of a pod → GiB of its first container.
    """
    shares, gpus, problems = allocated(cluster), gpus_by_device(cluster), []
    found = cluster.containers(pods)
    if not found:
        return ["there is no container to look at"]
    for container in found:
        node = container.pod["spec"]["nodeName"]
        held = shares.get(container.pod["metadata"]["uid"], [])
        if not held or {share.node for share in held} != {node}:
            problems.append(f"{container}: its claims have {held}")
            continue
        of = sorted((gpus[node, share.device] for share in held), key=lambda gpu: gpu.index)
        devices = set(container.devices) - CONTROL_DEVICES
        if devices != {f"nvidia{gpu.minor}" for gpu in of}:
            problems.append(f"{container}: has {sorted(devices)} in /dev, its claims {held}")
        wanted = {
            "ALIYUN_COM_GPU_MEM_IDX": of[0].index,
            "ALIYUN_COM_GPU_MEM_DEV": of[0].mib // 1024,
            "ALIYUN_COM_GPU_MEM_POD": sum(share.gib for share in held),
            CONTAINER_UNITS: units[container.pod["metadata"]["name"]],
        }
        seen = {name: container.environment.get(name) for name in wanted}
        if seen != {name: str(value) for name, value in wanted.items()}:
            problems.append(f"{container}: PID 1 has {seen}, expected {wanted}")
    return problems


def check_not_over_booked(cluster: Cluster) -> list[str]:
    """No GPU has claims of more memory than the driver says that it has."""
    held: Counter[tuple[str, str]] = Counter()
    for claim in cluster.api.items(CLAIMS):
        for share in shares_of(claim):
            held[share.node, share.device] += share.gib
    gpus = gpus_by_device(cluster)
    return [f"{device} of {node} has claims of {gib} GiB" for (node, device), gib in held.items() if gib > gpus[node, device].mib // 1024]


def prepared(cluster: Cluster, node: str) -> set[str]:
    """UIDs of the claims that kubelet has prepared on a node, by its own record."""
    return {one["ClaimUID"] for one in _kubelets(cluster, node)}


def _kubelets(cluster: Cluster, node: str) -> list[Json]:
    record = json.loads(cluster.on(node, "cat", KUBELETS))
    data = record["Data"]
    return list((json.loads(data) if isinstance(data, str) else data)["ClaimInfoStateList"] or ())


def cdi_devices(cluster: Cluster, node: str) -> dict[str, list[str]]:
    """UID of a claim → the CDI devices that kubelet gives to its containers, by its own record."""
    return {
        one["ClaimUID"]: [device for driver in one["DriverState"].values() for each in driver["Devices"] for device in each["CDIDeviceIDs"]]
        for one in _kubelets(cluster, node)
    }


def left_on(cluster: Cluster, node: str) -> list[str]:
    """What is left of claims on a node."""
    ours = [one["uid"] for one in json.loads(cluster.on(node, "cat", OURS))["claims"]]
    spec = cluster.on(node, "sh", "-c", f"cat {SPEC} 2>/dev/null || true")
    return [*ours, *prepared(cluster, node), *([spec] if spec else [])]


def clear(cluster: Cluster) -> None:
    """Delete what makes pods in the namespace default, and wait until no pod and no claim is left, also on the nodes."""
    cluster.kubectl("delete", "jobs,deployments", "--all", "-n", "default", seconds=120)
    cluster.clear()
    cluster.until("no claim is left", lambda: not claims(cluster), 60)
    cluster.until("no claim is left on the nodes", lambda: not any(left_on(cluster, node) for node in GPU_NODES), 60)
