# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""ResourceClaims as the API server of Kubernetes 1.37.2 has them, of two GPUs of the node gpu1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpushare_runtime.core.inventory import Gpu

T4 = Gpu(0, "GPU-6406b1ff-e486-da64-8a09-584683bdfe67", 3, "0000:3b:00.0", "Tesla T4", 15360, 15)
A30 = Gpu(1, "GPU-404966e9-8716-c392-9c97-aff857c46602", 0, "0000:0b:00.0", "NVIDIA A30", 24576, 24)


def claim(uid: str, parts: Sequence[tuple[Gpu, str]], name: str = "gpushare-m6", pods: Sequence[str] = ()) -> dict[str, Any]:
    """One that is allocated: of these GPUs so much memory. name: of its entry in the pod."""
    results = [
        {
            "request": "gpu",
            "driver": "gpushare.kubernetes",
            "pool": "gpu1",
            "device": gpu.uuid.lower(),
            "shareID": f"share-{place}",
            "consumedCapacity": {"memory": amount},
        }
        for place, (gpu, amount) in enumerate(parts)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": uid, "namespace": "default", "uid": uid, "annotations": {"resource.kubernetes.io/pod-claim-name": name}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        },
    }
