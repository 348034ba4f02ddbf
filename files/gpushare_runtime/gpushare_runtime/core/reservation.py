# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How long a GPU stays reserved for a pod, between the choice of its node and the scheduler's call to bind. Pure.

An event that ends the attempt earlier also ends the reservation, or the next event does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpushare_runtime.core.constraints import Labels

RESERVED_SECONDS: Final = 10.0
"""The scheduler's call to bind follows within milliseconds, where nothing comes before it."""
GROUP_SECONDS: Final = 60.0
"""Pods of a group wait in Permit for each other: coscheduling's default. From Kubernetes 1.35 they are nominated meanwhile."""
VOLUME_SECONDS: Final = 600.0
"""Volumes are provisioned and bound in PreBind, resource claims too: bindTimeoutSeconds of the scheduler's VolumeBinding."""
_GROUP_LABELS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")


def seconds_to_bind(spec: Mapping[str, Any], labels: Labels) -> float:
    """The longest time of a pod with this v1.PodSpec and these labels."""
    volumes = spec.get("volumes") or ()
    if spec.get("resourceClaims") or any(volume.get("persistentVolumeClaim") or volume.get("ephemeral") for volume in volumes):
        return VOLUME_SECONDS
    grouped = spec.get("schedulingGroup") or spec.get("workloadRef") or any(name in _GROUP_LABELS for name, _value in labels)
    return GROUP_SECONDS if grouped else RESERVED_SECONDS
