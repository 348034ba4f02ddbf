# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether containers can get every GPU of this host through CDI, where the device plugin uses it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.device_plugin.host.cdi_specs import SpecFolders
from gpushare_runtime.device_plugin.node.cdi import REFRESH
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import PLUGIN, DaemonUnit, HostReader, shown

_STATE: Final = f"/var/lib/{PLUGIN}"
_CDI: Final = "--cdi-spec-dir"


def judge_cdi(found: Findings, host: HostReader, unit: DaemonUnit) -> None:
    """Whether a spec names every GPU that the plugin last had."""
    if unit.option("device-strategy") != protocol.STRATEGY_CDI:
        return
    folders = [value for word, value in pairwise(unit.arguments) if word == _CDI] or protocol.CDI_FOLDERS
    specs = SpecFolders(str(host.at(folder)) for folder in folders).read()
    wrong = {why for gpu in _gpus(host, unit) if (why := specs.problem(gpu))}
    if wrong:
        expected = f"a CDI spec that names every GPU as {protocol.CDI_KIND}=<UUID>, with files that the host has"
        found.error("cdi_stale", shown("; ".join(sorted(wrong))), expected, REFRESH)


def _gpus(host: HostReader, unit: DaemonUnit) -> tuple[Gpu, ...]:
    """The GPUs that the plugin has recorded; none before it has read them for the first time."""
    data = host.read(f"{unit.option('state-dir') or _STATE}/held.json")
    try:
        gpus = json.loads(data or b"{}").get("gpus")
        return Inventory.from_json(json.dumps(gpus)).gpus if gpus is not None else ()
    except (ValueError, AttributeError, RecursionError):
        return ()
