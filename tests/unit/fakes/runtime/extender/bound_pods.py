# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods of 8 units, as the extender knows them."""

from __future__ import annotations

from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.request import ContainerRequest, Kind, Request

REQUEST = Request((ContainerRequest(Kind.APP, 0, "main", units=8),))


def allocated_pod(uid: str, node: str = "n") -> AllocatedPod:
    return AllocatedPod(uid, "default", uid, node, REQUEST, Allocation.of({0: {0: 8}}))
