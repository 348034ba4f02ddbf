# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether containers can get every GPU of this host through CDI, where the device plugin uses it."""

from __future__ import annotations

import json
import posixpath
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.device_plugin.host.cdi_specs import SpecFolders
from gpushare_runtime.device_plugin.node.cdi import REFRESH, CdiSpecs
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import PLUGIN, DaemonUnit, HostReader, shown

_STATE: Final = f"/var/lib/{PLUGIN}"
# By nvidia-cdi-refresh or our own unit, and by the device plugin in the cluster.
_WRITTEN_AGAIN: Final = ("nvidia.yaml", protocol.CDI_FILE)
_MOST_PAIRS, _SHOWN = 4, 80


def judge_cdi(found: Findings, host: HostReader, unit: DaemonUnit) -> None:
    """Whether a spec names every GPU that the plugin last had, and no two of one folder name the same."""
    used = unit.option("device-strategy") == protocol.STRATEGY_CDI
    folders = unit.options("cdi-spec-dir") or protocol.CDI_FOLDERS
    specs = SpecFolders(str(host.at(folder)) for folder in folders).read()
    _twice(found, specs, used)
    if not used:
        return
    wrong = {why for gpu in _gpus(host, unit) if (why := specs.problem(gpu)) and not _conflicts(specs, gpu)}
    if wrong:
        expected = f"a CDI spec that names every GPU as {protocol.CDI_KIND}=<UUID>, with files that the host has"
        found.error("cdi_stale", shown("; ".join(sorted(wrong))), expected, REFRESH)


def _twice(found: Findings, specs: CdiSpecs, used: bool) -> None:
    """A runtime gives no container a device that two specs of one folder name, and of several folders the last one wins (refresh in
    pkg/cdi/cache.go of tags.cncf.io/container-device-interface 0.8.1 to 1.1.1, read on 2026-11-29)."""
    pairs = {tuple(sorted((device.file, device.conflict))): name for name, device in specs.devices.items() if device.conflict}
    for (first, second), name in sorted(pairs.items())[:_MOST_PAIRS]:
        # The toolkit's own unit and ours write the former names again.
        goes = second if posixpath.basename(second) not in _WRITTEN_AGAIN else first
        seen = f"two CDI specs that name the same devices, such as {shown(name, _SHOWN)}: {shown(first)} and {shown(second)}"
        expected, cure = "one: the container runtime uses neither of two", f"rm {goes}; and see which program writes it"
        if used:
            found.error("cdi_twice", seen, expected, cure)
        else:
            found.warn("cdi_twice", seen, expected, cure)


def _conflicts(specs: CdiSpecs, gpu: Gpu) -> bool:
    device = specs.devices.get(f"{protocol.CDI_KIND}={gpu.uuid}")
    return device is not None and bool(device.conflict)


def _gpus(host: HostReader, unit: DaemonUnit) -> tuple[Gpu, ...]:
    """The GPUs that the plugin has recorded; none before it has read them for the first time."""
    data = host.read(f"{unit.option('state-dir') or _STATE}/held.json")
    try:
        gpus = json.loads(data or b"{}").get("gpus")
        return Inventory.from_json(json.dumps(gpus)).gpus if gpus is not None else ()
    except (ValueError, AttributeError, RecursionError):
        return ()
