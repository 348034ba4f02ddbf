# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The steps, in the order in which they run: a deliberate fault of a program comes last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Step:
    """module: has `run(context, findings)`; seconds: after which it is ended, whatever it does."""

    name: str
    what: str
    module: str
    seconds: float


TOTAL_SECONDS: Final = 520.0
STEPS: Final = (
    Step("discovery", "our NVML code against nvidia-smi, field by field", "gpu_proof.discovery", 45),
    Step("cdi", "the CDI spec of the real nvidia-ctk, and the device strategy", "gpu_proof.cdi", 30),
    Step("plugin", "the device plugin with a stand-in for kubelet", "gpu_proof.plugin", 60),
    Step("memory", "memory by pod, overuse, Event and eviction request", "gpu_proof.memory", 80),
    Step("limits", "MPS and the driver's memory limits", "gpu_proof.limits", 100),
    Step("visible", "what a program sees of the driver's limit, on a pod's group and on a container's", "gpu_proof.visible", 45),
    Step("kills", "MPS: a kill in the middle of a kernel, and a malformed limit", "gpu_proof.kills", 100),
    Step("sharing", "throughput of 1, 2 and 4 programs by isolation", "gpu_proof.sharing", 105),
    Step("use", "how busy pods keep the GPU, against nvidia-smi pmon", "gpu_proof.use", 120),
    Step("churn", "extender and plugin together", "gpu_proof.churn", 60),
    Step("health", "XID errors, and a deliberate fault of one program", "gpu_proof.health", 60),
)
