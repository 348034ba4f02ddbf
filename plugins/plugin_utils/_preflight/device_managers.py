# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether other programs give a host's GPUs to pods, and what must happen to them before ours does.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from ...module_utils._facts.device_managers import BOTH, DRA_CURE, DRA_DRIVERS, HAMI, NVIDIA, OPERATOR, ORIGINAL, OTHER_CURE, GpuManager
from ...module_utils._formats.finding import HostFindings, few

#: Those that the playbook take_over moves aside.
MOVABLE = (NVIDIA, OPERATOR, HAMI, ORIGINAL)
_PODS_SHOWN = 8


def judge_managers(found: HostFindings, managers: Collection[GpuManager], take_over: bool) -> None:
    """take_over: whether this run moves aside those of MOVABLE."""
    for manager in managers:
        evidence = f" ({'; '.join(manager.evidence)})"
        if not manager.active:
            cure = "it seems to be gone and to have left this behind: clean up once you are sure"
            found.warn("managers", f"traces of {manager.name}" + evidence, "none", cure, manager.name)
            continue
        pods = manager.pods
        held = f"; pods that have its devices: {few(pods, _PODS_SHOWN)}" if pods else ""
        seen = f"{manager.name} on the host{evidence}{held}"
        if manager.name == OPERATOR and not any(other.active and other.name == NVIDIA for other in managers):
            # Its other parts, such as the driver's, may stay: only its device plugin allocates GPUs.
            found.warn("managers", seen, "no other manager of the GPUs", "keep devicePlugin.enabled: false in its ClusterPolicy")
        elif manager.name not in MOVABLE:
            cure = DRA_CURE if manager.name in DRA_DRIVERS.values() else OTHER_CURE
            found.error("managers", seen, "no other manager of the GPUs", cure, manager.name)
        elif take_over:
            found.warn("managers", seen, "no other manager of the GPUs", "nothing to do: this playbook moves it aside on this node")
        else:
            cure = f"run the playbook take_over instead, which moves it aside on this node first: {BOTH}"
            found.error("managers", seen, "no other manager of the GPUs", cure, manager.name)
