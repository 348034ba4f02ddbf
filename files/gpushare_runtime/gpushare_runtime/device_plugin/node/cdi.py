# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether containers can get a GPU through CDI: what the specs of this host say about it. Pure; host/cdi_specs.py reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu

REFRESH: Final = "systemctl restart nvidia-cdi-refresh, or nvidia-ctk cdi generate --device-name-strategy=uuid --output=FILE"
"""What makes a spec that fits."""
_NAMED: Final = 3


@dataclass(frozen=True)
class CdiDevice:
    """One device of a spec, with the edits that the spec makes for all of its devices.

    file: of the spec; minors: of the device nodes /dev/nvidia<minor> that a container gets; caps: numbers of those of a MIG instance,
    /dev/nvidia-caps/nvidia-cap<number>; missing: paths that the host does not have, although a container would get them; conflict: a
    second file of the same folder with this device, "" for none; drivers: the versions in the names of the driver's files, of a reader
    that cannot see the host's.
    """

    file: str
    minors: frozenset[int]
    missing: tuple[str, ...] = ()
    conflict: str = ""
    drivers: frozenset[str] = frozenset()
    caps: frozenset[int] = frozenset()


@dataclass(frozen=True)
class CdiSpecs:
    """The specs of all folders. devices: by name, of nvidia.com/gpu only; problems: files that cannot be used, and why."""

    folders: tuple[str, ...] = protocol.CDI_FOLDERS
    devices: Mapping[str, CdiDevice] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def problem(self, gpu: Gpu, driver: str = "") -> str:
        """Why no container can get this GPU through CDI, and what to do; "" if one can. driver: the version of the loaded one."""
        device = self.devices.get(gpu.uuid)
        if device is None:
            why = f" ({'; '.join(self.problems[:_NAMED])})" if self.problems else ""
            folders = " or ".join(self.folders)
            return f"no CDI spec in {folders} names {protocol.CDI_KIND}={gpu.uuid}{why}: run {REFRESH}"
        if device.conflict:
            return f"the CDI specs {device.file} and {device.conflict} both name it, so the container runtime uses neither: remove one"
        if device.missing:
            more = len(device.missing) - _NAMED
            paths = ", ".join(device.missing[:_NAMED]) + (f" and {more} more" if more > 0 else "")
            return f"the CDI spec {device.file} is stale, the host has no {paths}: run {REFRESH}"
        if device.drivers - {driver}:
            found = ", ".join(sorted(device.drivers - {driver})[:_NAMED])
            loaded = driver or "the loaded one"
            return f"the CDI spec {device.file} is stale, it has files of driver {found} instead of {loaded}: run {REFRESH}"
        if device.minors != {gpu.minor}:
            nodes = ", ".join(f"/dev/nvidia{minor}" for minor in sorted(device.minors)[:_NAMED]) or "no device node of a GPU"
            return f"the CDI spec {device.file} is stale, it has {nodes} for it instead of /dev/nvidia{gpu.minor}: run {REFRESH}"
        if gpu.caps and device.caps != set(gpu.caps):
            expected = " and ".join(f"nvidia-cap{cap}" for cap in gpu.caps)
            found = ", ".join(f"nvidia-cap{cap}" for cap in sorted(device.caps)[:_NAMED]) or "none"
            return f"the CDI spec {device.file} is stale, of /dev/nvidia-caps it has {found} for it instead of {expected}: run {REFRESH}"
        return ""
