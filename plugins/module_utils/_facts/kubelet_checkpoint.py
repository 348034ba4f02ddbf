# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a host shares its GPUs now: unit and strategy of its device plugin, and what kubelet has recorded of it.

Read-only.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from .._cluster.names import DEVICE_PLUGINS, GPUS, MEMORY, PLUGIN
from .._formats.config_document import field
from .._host.host import Host
from .._host.systemd import UNITS
from .pods import uids_in

_CHECKPOINT = f"{DEVICE_PLUGINS}/kubelet_internal_checkpoint"
# As many ids as kubelet takes, each written twice (registered, and given to a container).
_CHECKPOINT_BYTES = 16 * 1024 * 1024
# Of kubelet's own folder: its claims of dynamic resource allocation (pkg/kubelet/cm/dra/state of 1.36.3 to 1.38.0-beta.0).
_CLAIMS = "dra_manager_state"
_STATE = f"/var/lib/{PLUGIN}/held.json"
_STATE_BYTES = 32 * 1024 * 1024
_MOST_FORGOTTEN = 500
_BOOT = "/proc/sys/kernel/random/boot_id"
_UNIT_FILE = f"{UNITS}/{PLUGIN}.service"
_SETTINGS = re.compile(r"^EnvironmentFile=(/\S+)$", re.MULTILINE)
_CONFIG = re.compile(r" --config (/[^\s\"]+)")
#: The settings of the device plugin that count here, by their keys, each with its option.
_KEYS = {
    "memoryUnit": re.compile(r"--memory-unit[ =]([^\s\"]+)"),
    "deviceStrategy": re.compile(r"--device-strategy[ =]([^\s\"]+)"),
    "kubeletRoot": re.compile(r"--kubelet-root[ =](/[^\s\"]{0,1023})"),
}
_VALUE = re.compile(r"[^\s\"]{1,1024}")
# The fields of a device plugin's answer for a container, by strategy; one without either names GPUs in its variables.
_ANSWERED = ((b"/var/run/nvidia-container-devices", "volume-mounts"), (b"nvidia.com/gpu=", "cdi"))
_BY_VARIABLE = "envvar"
# From what the nvidia runtime takes from any container to what only kubelet can hand over.
_LOOSEST = (_BY_VARIABLE, "volume-mounts", "cdi")


@dataclass(frozen=True)
class Sharing:
    """unit: of the device plugin that this collection has installed, "" for none. pods: UIDs of the pods that have memory of the
    GPUs and a process that runs. holders: these, and those with whole GPUs. strategy: the device plugin's; without one of ours, the
    loosest by which a holder has its GPUs, such as the original's, "" for none. limited: those of pods that the driver limits.
    kubelet_root: the folder of kubelet that the device plugin was told, "" for none."""

    unit: str
    pods: Tuple[str, ...]
    holders: Tuple[str, ...] = ()
    strategy: str = ""
    limited: Tuple[str, ...] = ()
    kubelet_root: str = ""


def sharing(host: Host) -> Sharing:
    settings = _SETTINGS.search(host.text(_UNIT_FILE) or "")
    told = _told((host.text(settings.group(1)) if settings else None) or "", host)
    unit, strategy, root = (told.get(key, "") for key in _KEYS)
    # The device plugin's own default counts where its settings do not name one.
    now = strategy or (_BY_VARIABLE if unit else "")
    known = [entry for entry in _entries(host) if entry.get("ResourceName") in (MEMORY, GPUS)]
    pods, holders = _pods(host, known)
    # Those that the driver limits.
    limits = _uids(_state(host), "limited") if unit and pods else set()
    limited = tuple(uid for uid in pods if uid in limits)
    return Sharing(unit, pods, holders, now or _answered(known, holders), limited, root)


def _told(command: str, host: Host) -> Mapping[str, str]:
    """The settings of the device plugin, by key. command: its unit's, which names its file of settings or, in gpushare 0.1, has options."""
    options = {key: option.search(command) for key, option in _KEYS.items()}
    found = {key: match.group(1) for key, match in options.items() if match}
    path = _CONFIG.search(command)
    text = (host.text(path.group(1)) if path else None) or ""
    said = {key: field(text, key) for key in _KEYS}
    return {**found, **{key: value for key, value in said.items() if isinstance(value, str) and _VALUE.fullmatch(value)}}


def held(host: Host) -> Set[str]:
    """UIDs of the pods whose GPUs our device plugin holds in this boot, also of those that kubelet has forgotten while they run."""
    state = _state(host)
    return _uids(state, "pods") if state.get("boot") == host.line(_BOOT) else set()


def forgotten(host: Host) -> List[str]:
    """UIDs of the pods with GPUs by our device plugin that have a process, and that kubelet has no record of, as after a loss of its
    checkpoint. In this order: kubelet records what a container gets before the plugin does, and both before it starts."""
    groups = (host.text(f"/proc/{process.pid}/cgroup") or "" for process in Host(host.root).processes)
    alive = {uid for text in groups for uid in uids_in(text)}
    ours = held(host) & alive
    if not ours or not host.exists(_CHECKPOINT):
        return []
    return sorted(ours - {uid for uids in holding(host).values() for uid in uids})[:_MOST_FORGOTTEN]


def _state(host: Host) -> Mapping[str, Any]:
    """The notes of our device plugin for its next process, in a folder that only root and it can write; empty if unreadable."""
    try:
        state = json.loads((host.data(_STATE, _STATE_BYTES) or b"{}").decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def _uids(state: Mapping[str, Any], key: str) -> Set[str]:
    by_pod = state.get(key)
    return {str(uid) for uid in by_pod} if isinstance(by_pod, dict) else set()


def recorded(host: Host) -> Mapping[str, Any]:
    """The part "Data" of kubelet's record of devices; empty if there is none that can be read."""
    try:
        content = host.data(_CHECKPOINT, _CHECKPOINT_BYTES) or b"{}"
        data: Dict[str, Any] = json.loads(content.decode("utf-8", "replace"))["Data"]
        return data if isinstance(data, dict) else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def registered(host: Host) -> Dict[str, int]:
    """The extended resource to the number of healthy devices that kubelet has recorded for it; empty if it has recorded none."""
    devices = recorded(host).get("RegisteredDevices")
    if not isinstance(devices, dict):
        return {}
    return {str(name): len(ids) if isinstance(ids, (list, dict)) else 0 for name, ids in devices.items()}


def holding(host: Host) -> Dict[str, Tuple[str, ...]]:
    """The extended resource to the UIDs of the pods that have devices of it by kubelet's record, also of some that have ended."""
    found: Dict[str, Set[str]] = {}
    for entry in _entries(host):
        found.setdefault(str(entry.get("ResourceName")), set()).add(str(entry.get("PodUID")))
    return {resource: tuple(sorted(uids)) for resource, uids in found.items()}


def claiming(host: Host, kubelet_root: str) -> Dict[str, Tuple[str, ...]]:
    """The driver to the UIDs of the pods that have devices of it by claims, also of some that have ended. kubelet_root: --root-dir."""
    found: Dict[str, Set[str]] = {}
    try:
        content = host.data(f"{kubelet_root}/{_CLAIMS}", _CHECKPOINT_BYTES) or b"{}"
        claims = json.loads(json.loads(content.decode("utf-8", "replace"))["Data"])["ClaimInfoStateList"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    for claim in claims if isinstance(claims, list) else ():
        # Go's sets are objects with the members as keys.
        parts = [claim.get(key) if isinstance(claim, dict) else None for key in ("DriverState", "PodUIDs")]
        drivers, pods = (part if isinstance(part, dict) else {} for part in parts)
        for driver in drivers:
            found.setdefault(str(driver), set()).update(map(str, pods))
    return {driver: tuple(sorted(uids)) for driver, uids in found.items() if uids}


def _entries(host: Host) -> List[Mapping[str, Any]]:
    entries = recorded(host).get("PodDeviceEntries")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _answered(known: Sequence[Mapping[str, Any]], holders: Tuple[str, ...]) -> str:
    """By which strategy these pods have their GPUs. A container that starts again gets them by the same one."""
    found = {_strategy_of(entry.get("AllocResp")) for entry in known if entry.get("PodUID") in holders}
    return next((strategy for strategy in _LOOSEST if strategy in found), "")


def _strategy_of(answer: Any) -> str:
    """answer: as kubelet records it, the message in base64."""
    try:
        message = base64.b64decode(answer, validate=True)
    except (ValueError, TypeError):
        return ""
    return next((strategy for words, strategy in _ANSWERED if words in message), _BY_VARIABLE if message else "")


def _pods(host: Host, known: Sequence[Mapping[str, Any]]) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """(those with memory, those with memory or whole GPUs)."""
    memory, gpus = ({str(entry.get("PodUID")) for entry in known if entry.get("ResourceName") == name} for name in (MEMORY, GPUS))
    if not memory | gpus:
        return (), ()
    # kubelet forgets a pod late: whether it still has the memory is what its processes say.
    groups = (host.text(f"/proc/{process.pid}/cgroup") or "" for process in host.processes)
    alive = {uid for text in groups for uid in uids_in(text)}
    return tuple(sorted(memory & alive)), tuple(sorted((memory | gpus) & alive))
