# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods that the tests create. Their image is the one of the samples, which is all that a lab has."""

from __future__ import annotations

from collections.abc import Mapping

from e2e.api import Json
from e2e.cluster import CARDS, MEMORY

IMAGE = "bvlc/caffe:gpu"


def pod(
    name: str,
    *,
    memory: int | str | None = None,
    cards: int | None = None,
    node: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Json:
    """A pod with one container that sleeps. memory and cards become its limits; node: the only one that it may run on."""
    limits = {name: str(value) for name, value in ((MEMORY, memory), (CARDS, cards)) if value is not None}
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", "sleep 86400"],
        "env": [{"name": key, "value": value} for key, value in (environment or {}).items()],
        "resources": {"limits": limits},
    }
    spec: Json = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
