# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a GPU node: its container runtime, CDI specs, containers. Read-only.

Plain JSON, judged on the controller by _verdict/gpu_node.py.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Collection, Dict, Iterable, List, Literal, Optional, Tuple

from .._change.undo import Rejected
from .._facts.cdi_specs import FoundSpec, specs
from .._facts.kubelet_checkpoint import held, holding
from .._facts.nvidia_smi import CAPS
from .._facts.pods import Pods, uids_in
from .._facts.stopped_unit import COMPLAINT_OF_RUNTIME, StoppedUnit, unit_of
from .._formats import toml
from .._formats.answers import like
from .._host.command import RunWithin
from .._host.container_runtimes import KINDS, socket_path
from .._host.host import Host
from .._runtimes import cri
from .._runtimes.default_runtime import SERVICES
from .._runtimes.images import IMAGE
from .._runtimes.plan import SilentError
from .._runtimes.service import ASK_SECONDS, arguments_of, find_unit

_OF_GPU = re.compile(r"nvidia\d+|" + CAPS + r"/nvidia-cap\d+")
# crio-conmon-<id>.scope is CRI-O's monitor of the container: a process of the host.
_CONTAINER = re.compile(r"(?<!conmon-)(?<![0-9a-f])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_PAUSE = re.compile(r"(?:^|/)pause(?:-[a-z0-9]+)?[:@]")
_PARAMS = "/proc/driver/nvidia/params"
# NVIDIA's default of NVreg_DeviceFileMode.
_DEVICE_MODE = 0o666
_IMAGES_PLUGIN = "io.containerd.cri.v1.images"
_CRI_SECONDS = 10.0
#: Images are named to the probe, the best first; more would be of no use.
_IMAGES = 5
_MOST_STRANGERS = 20


@dataclass
class RuntimeEvidence:
    """A container runtime of KINDS: its default runtime in the files and in the process, and what the process lacks of them.

    problem: why it does not answer; stopped: its unit then. broken: why it would not start again from its files, although it runs, or with
    a problem its cause.
    """

    name: str
    unit: str
    problem: str = ""
    broken: str = ""
    file_default: str = ""
    running_default: str = ""
    lacks: str = ""
    stopped: Optional[StoppedUnit] = None


@dataclass(frozen=True)
class SandboxImage:
    """image: that of which the runtime makes every pod's sandbox, None where it cannot be said. missing: whether the runtime does not have
    it, and would have to pull it first. puller: the command that does.
    """

    image: Optional[str] = field(metadata=like(IMAGE))
    missing: bool
    puller: Literal["crictl pull", "docker pull", "ctr -n k8s.io images pull"]


@dataclass(frozen=True)
class CdiEvidence:
    """NVIDIA's CDI specs. mode: of its runtime, "" for none in its configuration."""

    mode: str
    specs: List[FoundSpec]


@dataclass(frozen=True)
class DeviceNodes:
    """nodes: path to mode (-1: no device file there) of each GPU and of the driver's control device; mode: what the driver gives them."""

    nodes: Dict[str, int]
    mode: int


@dataclass(frozen=True)
class StrangeContainer:
    """A container with GPUs of a pod that has no device of kubelet's."""

    name: str
    gpus: List[str]
    privileged: bool


def container_runtime(name: str, unit_name: str, config: str, run: RunWithin, host: Host) -> RuntimeEvidence:
    """The container runtime of this name."""
    kind = KINDS[name]
    found = RuntimeEvidence(name, unit_name or kind.unit)
    runs, silent = False, ""
    try:
        unit = find_unit(found.unit, run, arguments_of, kind.program)
        runs = unit.active == "active"
        service = SERVICES[name](unit, config or None, run, ASK_SECONDS, False)
        silent = service.silent or ""
        wanted = service.wanted()
        found.file_default = wanted.default
        if silent:
            raise SilentError(silent)
        running = service.running()[1]
        found.running_default = running.default
        found.lacks = service.differs(wanted, running) or ""
    except Rejected as error:
        found.broken, found.problem = (str(error), silent) if runs else ("", silent or str(error))
    except (SilentError, OSError, ValueError) as error:
        found.problem = str(error)
    if found.problem:
        found.stopped = unit_of(host, found.unit, COMPLAINT_OF_RUNTIME)
    return found


def images(host: Host, endpoint: Optional[str]) -> List[str]:
    """Images on the node that run without a command and do no harm: those of the pod sandbox. endpoint: kubelet's; any runtime's."""
    address = host.outside(socket_path(endpoint))
    try:
        return pause_images(cri.call(address, "/runtime.v1.ImageService/ListImages", b"", _CRI_SECONDS))
    except (OSError, EOFError, ValueError, LookupError, cri.CriError):
        return []


def sandbox(host: Host, endpoint: Optional[str], runtime: Optional[str]) -> SandboxImage:
    """The image of pod sandboxes."""
    address = host.outside(socket_path(endpoint))
    found = SandboxImage(None, False, _puller(host, runtime))
    try:
        name = str(_sandbox_image(host, address, runtime) or "")
        if not IMAGE.fullmatch(name):
            return found
        wanted = _text(1, _text(1, name.encode()))
        reply = cri.call(address, "/runtime.v1.ImageService/ImageStatus", wanted, _CRI_SECONDS)
        # An ImageStatusResponse whose field `image` is not there. The runtime resolves the name as it does for a pod.
        return replace(found, image=name, missing=all(number != 1 for number, _value in cri.fields(reply)))
    except (OSError, EOFError, ValueError, LookupError, cri.CriError):
        return found


def _sandbox_image(host: Host, address: str, runtime: Optional[str]) -> Any:
    """containerd 1.x and CRI-O have it in the verbose Status (pkg/cri/config/config.go of containerd 1.7.36, server/runtime_status.go of
    CRI-O), containerd 2 in the configuration of its image plugin (internal/cri/config/config.go of 2.3.7 and 2.4.2). cri-dockerd has an
    argument. Read on 2026-11-29."""
    if runtime == "docker":
        adapter = host.process("cri-dockerd")
        return None if adapter is None else adapter.flag("pod-infra-container-image")
    name = cri.status(address, _CRI_SECONDS).config.get("sandboxImage")
    if name or runtime != "containerd":
        return name
    process = host.process("containerd")
    config = (process.flag("config") or process.flag("c")) if process is not None else None
    dump = host.printed(host.program("containerd"), [*(["--config", config] if config else []), "config", "dump"])
    plugins = toml.loads(dump).get("plugins", {})
    pinned = plugins.get(_IMAGES_PLUGIN, {}).get("pinned_images", {})
    return pinned.get("sandbox") if isinstance(pinned, dict) else None


def _puller(host: Host, runtime: Optional[str]) -> Literal["crictl pull", "docker pull", "ctr -n k8s.io images pull"]:
    if runtime == "docker":
        return "docker pull"
    return "ctr -n k8s.io images pull" if runtime == "containerd" and not host.program("crictl") else "crictl pull"


def _text(number: int, content: bytes) -> bytes:
    """A field of protobuf with a text of less than 16 KiB."""
    size = len(content)
    return bytes([number << 3 | 2]) + (bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])) + content


def pause_images(reply: bytes) -> List[str]:
    """From a runtime.v1.ListImagesResponse: names of pause images, those first that the runtime has pinned."""
    pinned: List[str] = []
    others: List[str] = []
    for number, image in cri.fields(reply):
        if number != 1 or not isinstance(image, bytes):
            continue
        names, held = [], False
        for key, value in cri.fields(image):
            if key == 2 and isinstance(value, bytes):
                names.append(value.decode("utf-8", "replace"))
            held = held or (key == 8 and bool(value))
        (pinned if held else others).extend(name for name in names if _PAUSE.search(name))
    return [*pinned, *others][:_IMAGES]


def cdi(host: Host) -> CdiEvidence:
    """NVIDIA's CDI specs, and whether the configuration of its runtime asks for them."""
    config = host.text("/etc/nvidia-container-runtime/config.toml") or ""
    mode = re.search(r"^\s*mode\s*=\s*\"(\w+)\"", config, re.MULTILINE)
    return CdiEvidence(mode.group(1) if mode else "", specs(host))


def devices(host: Host, minors: Collection[int]) -> DeviceNodes:
    """The device files of these GPUs."""
    params = re.search(r"^DeviceFileMode: ([0-9]{1,5})$", host.text(_PARAMS) or "", re.MULTILINE)
    paths = ["/dev/nvidiactl", *(f"/dev/nvidia{minor}" for minor in sorted(minors))]
    return DeviceNodes({path: host.device_mode(path) for path in paths}, int(params.group(1)) & 0o777 if params else _DEVICE_MODE)


def containers(host: Host) -> Dict[str, List[str]]:
    """Container id to the GPUs' device nodes in its /dev (such as "nvidia0"), of every container that has a process now.

    An instance of a GPU in MIG mode has nodes of its own (such as "nvidia-caps/nvidia-cap67") beside its GPU's.
    """
    found: Dict[str, List[str]] = {}
    for container, (pids, _uid) in _of_containers(host).items():
        seen = _devices_of(host, pids)
        if seen is not None:
            found[container] = _gpus_among(seen[1])
    return found


def strangers(host: Host) -> List[StrangeContainer]:
    """Containers with GPUs of pods that have no device of kubelet's.

    A privileged container has every device node of the host in its /dev, so of it those GPUs count that a process has open.
    """
    running = _of_containers(host)
    # After the processes: kubelet records what a container gets before it starts it. It forgets a pod that is deleted by force while
    # its processes run; our device plugin does not, and counts their memory.
    given = {uid for uids in holding(host).values() for uid in uids} | held(host)
    found, known = [], Pods(host)
    for container, (pids, uid) in running.items():
        pid, files = (None if uid in given else _devices_of(host, pids)) or (0, [])
        gpus = _gpus_among(files)
        privileged = bool(gpus) and "kmsg" in files
        if privileged:
            gpus = sorted({gpu for process in pids for gpu in _open_gpus(f"{host.root.rstrip('/')}/proc/{process}/fd")})
        if gpus:
            name = f"container {container[:12]} of {known.of(pid) or 'no pod'} (process {pid})"
            found.append(StrangeContainer(name, gpus, privileged))
    return found[:_MOST_STRANGERS]


def _of_containers(host: Host) -> Dict[str, Tuple[List[int], Optional[str]]]:
    """Container id to (its processes, by PID; the UID of its pod) of every container that has a process now.

    A process whose files are the host's shows what is in the host's /dev: a runtime's helper in the container's group, or one of a
    privileged container after `chroot /host`. It comes last, and a group of it alone is left out.
    """
    found: Dict[str, Tuple[List[int], Optional[str]]] = {}
    # Not host.processes: it may have listed them half a minute ago.
    for process in sorted(Host(host.root).processes, key=lambda process: process.own):
        groups = host.text(f"/proc/{process.pid}/cgroup") or ""
        ids = [match for line in groups.splitlines() for match in _CONTAINER.findall(line)]
        if ids and (ids[-1] in found or not process.own):
            # The outermost pod: below it, a container may name groups as it likes.
            uid = next(iter(uids_in(groups)), None)
            found.setdefault(ids[-1], ([], uid))[0].append(process.pid)
    return found


def _open_gpus(folder: str) -> List[str]:
    found = []
    try:
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                device = os.readlink(f"{folder}/{name}")
                found += [device[len("/dev/") :]] if device.startswith("/dev/") and _OF_GPU.fullmatch(device[len("/dev/") :]) else []
    except OSError:
        pass
    return found


def _devices_of(host: Host, pids: Iterable[int]) -> Optional[Tuple[int, List[str]]]:
    """(the container's first process that has not ended meanwhile, what is in its /dev); None if all have ended."""
    for pid in pids:
        # Not through Host, which follows links as the host does: this one leads into the container's own files.
        folder = f"{host.root.rstrip('/')}/proc/{pid}/root/dev"
        with contextlib.suppress(OSError):
            found = os.listdir(folder)
            if CAPS in found and not os.path.islink(f"{folder}/{CAPS}"):
                with contextlib.suppress(OSError):
                    found += [f"{CAPS}/{name}" for name in os.listdir(f"{folder}/{CAPS}")]
            return pid, found
    return None


def _gpus_among(device_files: Collection[str]) -> List[str]:
    return sorted(name for name in device_files if _OF_GPU.fullmatch(name))
