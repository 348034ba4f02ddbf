# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether the device plugin serves kubelet: who listens on the sockets of device plugins, and what kubelet has recorded of ours."""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.device_plugin.kubelet.checkpoint import CheckpointError, registered_gpus
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import DaemonUnit, HostReader, shown

SOCKETS: Final = {protocol.RESOURCE_MEMORY: protocol.SOCKET_MEMORY, protocol.RESOURCE_GPUS: protocol.SOCKET_GPUS}
"""Resource → how the names of the device plugin's sockets for it begin."""
# In verify's words, which finds other signs of the same.
ONE_PLUGIN: Final = "one device plugin for the GPUs, ours"
OTHER_CURE: Final = (
    "stop it and keep it off this node (its DaemonSet, unit, or the label that selects it): both would allocate the same GPUs; then: "
    "systemctl restart gpushare-device-plugin"
)
DRA_CURE: Final = (
    "end the pods that have its claims on this node, then keep it off the node or switch its GPUs off (docs/operate/migrate.md): both "
    "would allocate the same GPUs"
)
_CONNECT_SECONDS: Final = 2.0
_REJECTS: Final = "kubelet rejects the registration"
# As many ids as kubelet takes, each written twice (registered, and given to a container).
_CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
# As the plugin's status has its part `gpus`.
_BAD_GPUS: Final = re.compile(r"; gpus: (GPU \d+ (?:\([^()]{1,80}\):|is omitted:) .+?)(?:; (?!GPU \d)[\w. -]{1,40}: |$)")
# As it has its part `GPUs of pods`, where that is degraded.
_GONE_GPUS: Final = re.compile(r"(?:^|; )GPUs of pods: ([^;]{1,1000}?, which is not in this node any more[^:;]{0,1000})")
# A folder of device plugins has a handful.
_MOST_SOCKETS: Final = 100


@dataclass(frozen=True)
class SocketOwner:
    """The process that listens on a socket of the folder. process: its first words."""

    name: str
    pid: int
    process: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.process or 'unnamed'})"


def listeners(host: HostReader, peer: Callable[[Path], int | None]) -> list[SocketOwner]:
    """Of every device plugin's socket that a process listens on. peer: a socket's listener by its PID, None for no process."""
    return _owners(host, protocol.KUBELET_PLUGIN_DIR, lambda name: name != protocol.KUBELET_SOCKET, peer)


def dra_drivers(host: HostReader, kubelet_root: str, peer: Callable[[Path], int | None]) -> list[SocketOwner]:
    """Of every socket by which a driver that gives GPUs by dynamic resource allocation is known to kubelet. kubelet_root: --root-dir.

    One that a killed driver has left has no listener.
    """
    known = re.compile(f"(?:{'|'.join(map(re.escape, protocol.DRA_DRIVERS))}){protocol.DRA_REGISTRATION}")
    folder = f"{kubelet_root or protocol.KUBELET_ROOT}/{protocol.KUBELET_REGISTRATIONS}"
    return _owners(host, folder, lambda name: known.fullmatch(name) is not None, peer)


def _owners(host: HostReader, path: str, wanted: Callable[[str], bool], peer: Callable[[Path], int | None]) -> list[SocketOwner]:
    folder = host.at(path)
    try:
        names = sorted(name for name in os.listdir(folder) if wanted(name) and _is_socket(folder / name))
    except OSError:
        return []
    pids = {name: peer(folder / name) for name in names[:_MOST_SOCKETS]}
    return [SocketOwner(name, pid, host.command(pid)) for name, pid in pids.items() if pid is not None]


def listener(path: Path) -> int | None:
    """The PID that listens on a unix socket, None if none does. It connects and sends nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect(str(path))
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
        return int(struct.unpack("3i", credentials)[0])


def registered_soon(host: HostReader, unit: DaemonUnit, listening: list[SocketOwner]) -> tuple[DaemonUnit, dict[str, list[str]]]:
    """The plugin and `registered`, after a wait for kubelet: it accepts the registration, then reads the list of ids, then writes its
    checkpoint."""
    if unit.active != "active" or not all(any(owner.name.startswith(begin) for owner in listening) for begin in SOCKETS.values()):
        return unit, registered(host)

    def both() -> tuple[DaemonUnit, dict[str, list[str]]]:
        return host.unit(unit.name), registered(host)

    return host.wait(both, lambda seen: all(_says_registered(seen[0], resource) and resource in seen[1] for resource in SOCKETS))


def _says_registered(unit: DaemonUnit, resource: str) -> bool:
    return f"{resource}: {protocol.REGISTERED}" in unit.status


def registered(host: HostReader) -> dict[str, list[str]]:
    """Resource of ours to the GPUs of its ids, as kubelet has recorded them."""
    data = host.read(f"{protocol.KUBELET_PLUGIN_DIR}/{protocol.KUBELET_CHECKPOINT}", _CHECKPOINT_BYTES)
    try:
        return registered_gpus(data or b"{}", SOCKETS)
    except CheckpointError:
        return {}


def judge_second_plugin(found: Findings, unit: DaemonUnit, listening: list[SocketOwner]) -> bool:
    """Whether another device plugin allocates the GPUs, for which kubelet takes it."""
    evidence = [
        f"{owner} listening on the device plugin's own socket {owner.name}"
        for owner in listening
        if is_own(owner.name) and owner.pid != unit.pid
    ]
    strangers = [str(owner) for owner in listening if not is_own(owner.name)]
    if strangers and not evidence and "does not read the list" in unit.says:
        evidence.append(f"kubelet not listening to our device plugin ({unit.says}) while {' and '.join(strangers)} serves it")
    if evidence:
        found.error("second_plugin", ", ".join(evidence), ONE_PLUGIN, OTHER_CURE)
    return bool(evidence)


def judge_dra_drivers(found: Findings, drivers: list[SocketOwner]) -> None:
    """Whether a driver of dynamic resource allocation gives the GPUs to pods, too: ours is registered beside it, and knows nothing."""
    if drivers:
        seen = ", ".join(f"{owner} listening on {owner.name}, which gives GPUs by ResourceClaims" for owner in drivers)
        found.error("second_plugin", seen, ONE_PLUGIN, DRA_CURE)


def is_own(name: str) -> bool:
    """Whether a socket is of our device plugin, of a former release of it, or of the original, by its name."""
    return name.startswith(tuple(SOCKETS.values())) or name in protocol.FORMER_SOCKETS


def takes_plugins(host: HostReader, peer: Callable[[Path], int | None]) -> bool:
    """Whether kubelet listens on its socket for device plugins. It makes that at its start only: one that is removed stays away."""
    return peer(host.at(f"{protocol.KUBELET_PLUGIN_DIR}/{protocol.KUBELET_SOCKET}")) is not None


def judge_registration(
    found: Findings, unit: DaemonUnit, listening: list[SocketOwner], recorded: Mapping[str, list[str]], kubelet_listens: bool = True
) -> None:
    """Whether the device plugin, which runs, is registered with kubelet for each of its resources."""
    log = f"journalctl -u {unit.name} -n 50, and kubelet's journal"
    for resource, begin in SOCKETS.items():
        if not any(owner.name.startswith(begin) for owner in listening):
            seen = f"no device plugin listening on {protocol.KUBELET_PLUGIN_DIR}/{begin}*{protocol.SOCKET_END}"
        elif resource not in recorded:
            seen = f"no {resource} in kubelet's checkpoint"
        elif not _says_registered(unit, resource):
            # The checkpoint may have it from the process before.
            seen = f"a device plugin that waits to be registered for {resource}"
        else:
            continue
        says = unit.says if not _says_registered(unit, resource) else ""
        seen += f" (the plugin says: {says})" if says else ""
        if not kubelet_listens:
            seen += f", and no kubelet listening on {protocol.KUBELET_PLUGIN_DIR}/{protocol.KUBELET_SOCKET}, which only its start makes"
        # A kubelet that rejects it, or does not listen, does so for every process of the plugin.
        first = "kubelet" if _REJECTS in unit.status or not kubelet_listens else unit.name
        cure = f"systemctl restart {first}; if that does not help: {log}"
        found.error("plugin_not_registered", seen, f"{resource} registered with kubelet", cure)


def judge_gpus(found: Findings, unit: DaemonUnit) -> None:
    """Whether the device plugin keeps new pods off a GPU, by its status."""
    bad = _BAD_GPUS.search(f"; {unit.says}")
    if bad is not None:
        cure = "follow the reason, or docs/operate/on-call.md; pods on it: kubectl gpushare pods --node NODE --gpu INDEX"
        found.error("gpu_unhealthy", bad[1], "every GPU to pass its checks", cure)


def judge_pods_gpus(found: Findings, unit: DaemonUnit) -> None:
    """Whether pods have GPUs that the node has no more, by the device plugin's status."""
    gone = _GONE_GPUS.search(unit.status)
    if gone is not None:
        cure = (
            "kubectl delete pod POD -n NAMESPACE: its owner starts it on another GPU; if the GPU should be there: lspci -d 10de:, dmesg; "
            "docs/operate/on-call.md"
        )
        found.error("gpu_gone", shown(gone[1]), "pods that have GPUs of this node", cure)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
