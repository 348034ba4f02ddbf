# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether containers can get a GPU through CDI, and by which kind of device: what the specs of this host say about it.

Pure; host/cdi_specs.py reads the specs, host/own_spec.py writes ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu

RETRIES: Final = "the device plugin writes it again as soon as that is possible"
"""What follows a problem with our own spec."""
REFRESH: Final = (
    "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/var/run/cdi/nvidia.yaml, or systemctl restart nvidia-cdi-refresh"
)
"""What makes a spec that fits, in the file of the toolkit's own unit, which not every host has."""
_NAMED: Final = 3


@dataclass(frozen=True)
class CdiDevice:
    """One device of a spec, with the edits that the spec makes for all of its devices.

    file: of the spec. minors: of the device nodes /dev/nvidia<minor> that a container gets. caps: numbers of those of a MIG instance,
    /dev/nvidia-caps/nvidia-cap<number>. missing: paths that the host does not have, although a container would get them. conflict: a
    second file of the same folder with this device, "" for none. drivers: the versions in the names of the driver's files, of a reader
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
    """The specs of all folders. devices: by full name, KIND=NAME, of the kinds that we use. problems: files that cannot be used, and why.

    kinds: of all files that can be used. own_file: where we write a spec, "" if we do not. foreign: whether it has other bytes than we
    have written. not_written: why writing it did not work the last time, "" if it did.
    """

    folders: tuple[str, ...] = protocol.CDI_FOLDERS
    devices: Mapping[str, CdiDevice] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset()
    own_file: str = ""
    foreign: bool = False
    not_written: str = ""

    def problem(self, gpu: Gpu, driver: str = "", kind: str = protocol.CDI_KIND) -> str:
        """Why no container can get this GPU as a device of that kind, and what to do; "" if one can. driver: version of the loaded one."""
        name = f"{kind}={gpu.uuid}"
        device, own = self.devices.get(name), kind == protocol.CDI_KIND_OWN
        cure = f"run {REFRESH}" if not own else f"{RETRIES} ({self.not_written})" if self.not_written else RETRIES
        if device is None:
            why = f" ({'; '.join(self.problems[:_NAMED])})" if self.problems else ""
            folders = " or ".join(self.folders)
            return f"no CDI spec in {folders} names {name}{why}: {cure}"
        if device.conflict:
            return f"the CDI specs {device.file} and {device.conflict} both name it, so the container runtime uses neither: remove one"
        if own and device.file == self.own_file and self.foreign:
            return f"the CDI spec {self.own_file} is not what the device plugin has written: {cure}"
        if own and device.file != self.own_file:
            return f"the CDI spec {device.file} names {name}, which only {self.own_file} may: remove it"
        if device.missing:
            more = len(device.missing) - _NAMED
            paths = ", ".join(device.missing[:_NAMED]) + (f" and {more} more" if more > 0 else "")
            return f"the CDI spec {device.file} is stale, the host has no {paths}: {cure}"
        if device.drivers - {driver}:
            found = ", ".join(sorted(device.drivers - {driver})[:_NAMED])
            loaded = driver or "the loaded one"
            return f"the CDI spec {device.file} is stale, its files are of driver {found} instead of {loaded}: {cure}"
        if device.minors != {gpu.minor}:
            nodes = ", ".join(f"/dev/nvidia{minor}" for minor in sorted(device.minors)[:_NAMED]) or "no device node of a GPU"
            return f"the CDI spec {device.file} is stale, it has {nodes} for it instead of /dev/nvidia{gpu.minor}: {cure}"
        if gpu.caps and device.caps != set(gpu.caps):
            expected = " and ".join(f"nvidia-cap{cap}" for cap in gpu.caps)
            found = ", ".join(f"nvidia-cap{cap}" for cap in sorted(device.caps)[:_NAMED]) or "none"
            return f"the CDI spec {device.file} is stale, of /dev/nvidia-caps it has {found} for it instead of {expected}: {cure}"
        return ""

    def kind(self, gpus: Collection[Gpu], driver: str, before: str) -> str:
        """The kind of device that new containers get. gpus: those that answer; before: the kind so far.

        Another's spec serves as long as it fits every GPU. From the first time that it does not, ours does: the writer of the other, as
        NVIDIA's device plugin, may be gone for good. It never goes back, because kubelet repeats an answer as long as its pod exists.
        """
        if not self.own_file:
            return protocol.CDI_KIND
        if before == protocol.CDI_KIND_OWN or any(self.problem(gpu, driver) for gpu in gpus):
            return protocol.CDI_KIND_OWN
        return protocol.CDI_KIND

    def names(self, kind: str) -> set[str]:
        """Names of the devices of that kind."""
        return {name.removeprefix(f"{kind}=") for name in self.devices if name.startswith(f"{kind}=")}
