# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How long a GPU stays reserved for a pod, between the choice of its node and the scheduler's call to bind. Pure.

An event that ends the attempt earlier also ends the reservation, or the next event does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare_runtime.core.constraints import Labels

RESERVED_SECONDS: Final = 10.0
"""The scheduler's call to bind follows within milliseconds, where nothing comes before it."""
GROUP_SECONDS: Final = 60.0
"""Pods of a group that is not placed at once wait in Permit for each other: coscheduling's default."""
CYCLE_SECONDS: Final = 2.0
"""The binds of a group that was placed at once follow its cycle within milliseconds, or their pods are nominated. The rest is time for a
busy machine."""
VOLUME_SECONDS: Final = 600.0
"""Volumes are provisioned and bound in PreBind, resource claims too: bindTimeoutSeconds of the scheduler's VolumeBinding."""
_GROUP_LABELS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
_WORKLOAD: Final = ("name", "podGroup", "podGroupReplicaKey")


@dataclass(frozen=True)
class Group:
    """Pods that are to be placed together. name: with its namespace.

    at_once: kube-scheduler tries them in one cycle, during which it asks about no other pod, and then binds all or gives all up.
    """

    name: str
    at_once: bool


def group_of(namespace: str, spec: Mapping[str, Any], labels: Labels) -> Group | None:
    """Of a pod with this v1.PodSpec and these labels.

    `schedulingGroup` is the field of Kubernetes 1.36, 1.37 and 1.38, with the gate GenericWorkload; `workloadRef` was that of 1.35, where
    pods wait in Permit as those of coscheduling do.
    """
    group, before = spec.get("schedulingGroup"), spec.get("workloadRef")
    if group and group.get("podGroupName"):
        return Group(f"{namespace}/{group['podGroupName']}", at_once=True)
    if before:
        return Group("/".join([namespace, *(str(before[key]) for key in _WORKLOAD if before.get(key))]), at_once=False)
    named = next((value for name, value in labels if name in _GROUP_LABELS), None)
    return Group(f"{namespace}/{named}", at_once=False) if named is not None else None


def seconds_to_bind(spec: Mapping[str, Any], group: Group | None) -> float:
    """The longest time of a pod with this v1.PodSpec in this group."""
    volumes = spec.get("volumes") or ()
    if spec.get("resourceClaims") or any(volume.get("persistentVolumeClaim") or volume.get("ephemeral") for volume in volumes):
        return VOLUME_SECONDS
    return RESERVED_SECONDS if group is None or group.at_once else GROUP_SECONDS
