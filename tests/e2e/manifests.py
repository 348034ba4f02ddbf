# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods that the tests create. Their image is the one of the samples, which is all that a lab has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from e2e.api import Json
from e2e.cluster import GPUS, MEMORY

IMAGE = "ubuntu:24.04"


def pod(
    name: str,
    *,
    memory: int | str | None = None,
    gpus: int | None = None,
    node: str | None = None,
    environment: Mapping[str, str] | None = None,
    mounted: Sequence[str] = (),
) -> Json:
    """A pod with one container that sleeps. memory and GPUs become its limits; node: the only one that it may run on.

    mounted: UUIDs of GPUs that it takes from the nvidia runtime by volumes of the host, which no strategy but CDI without that runtime
    stops.
    """
    limits = {name: str(value) for name, value in ((MEMORY, memory), (GPUS, gpus)) if value is not None}
    container: Json = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", "sleep 86400"],
        "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        "resources": {"limits": limits},
    }
    spec: Json = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if mounted:
        spec["volumes"] = [{"name": "null", "hostPath": {"path": "/dev/null"}}]
        container["volumeMounts"] = [{"name": "null", "mountPath": f"/var/run/nvidia-container-devices/{uuid}"} for uuid in mounted]
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
