# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Reads the CDI specs of this host as a container runtime does: all .yaml and .json files of the folders, a later folder first.

Any program may write a spec, so file, number of files, number of entries and depth are bounded, and YAML aliases are
rejected: nvidia-ctk writes none, and with them a short text may be a huge one. Only what decides which GPU a container gets is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import quote
from gpushare_runtime.device_plugin.node.cdi import CdiDevice, CdiSpecs
from gpushare_runtime.errors import GpushareError

MOST_BYTES: Final = 1024 * 1024
"""Of one spec; one of 16 GPUs with two names each has some 100 KiB."""
MOST_FILES: Final = 64
"""Of one folder."""
MOST_NODES: Final = 100_000
"""Keys and values of one YAML document."""
MOST_DEPTH: Final = 32
MOST_ENTRIES: Final = 4096
"""Devices of one spec, and paths of one device."""
_ENDINGS: Final = (".yaml", ".json")
_VERSION: Final = re.compile(r"v?[0-9]+\.[0-9]+\.[0-9]+")
# As in libcuda.so.535.261.03. Libraries with a version of their own, such as libnvidia-egl-gbm.so.1.1.2, have one digit in front.
_DRIVER_FILE: Final = re.compile(r".*/lib[^/]+\.so\.([0-9]{3,4}(?:\.[0-9]{1,4}){1,2})")
_GPU_NODE: Final = re.compile(r"/(?:.*/)?nvidia([0-9]{1,5})")
_CAP_NODE: Final = re.compile(r"/(?:.*/)?nvidia-caps/nvidia-cap([0-9]{1,5})")
# Every scalar is a text: nothing is made of tags, dates and numbers. libyaml's reader is tens of times faster; its absence changes
# no result.
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_NULLS: Final = (None, "", "~", "null")
_Identity = tuple[int, int, int]


class SpecError(GpushareError, ValueError):
    """A file that is not a CDI spec; says what was found and what was expected."""


@dataclass(frozen=True)
class Edits:
    """The devices that a container gets: minors of GPU nodes, paths of the host, and numbers of the nodes of MIG instances."""

    minors: frozenset[int]
    paths: frozenset[str]
    caps: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Spec:
    """One file. devices: full name, KIND=NAME → edits, with those for all of the file's devices; empty for kinds that we do not use."""

    kind: str
    devices: Mapping[str, Edits]


def parse_spec(text: bytes) -> Spec:
    """One CDI spec in JSON or YAML. SpecError if it is none."""
    data = _load(text)
    if not isinstance(data, dict):
        raise SpecError(f"it must be an object with cdiVersion, kind and devices, found {quote(data)}")
    version, kind = data.get("cdiVersion"), data.get("kind")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise SpecError(f"cdiVersion must be a version such as '0.6.0', found {quote(version)}")
    if not isinstance(kind, str) or "/" not in kind:
        raise SpecError(f"kind must be a text such as '{protocol.CDI_KIND}', found {quote(kind)}")
    if kind not in protocol.CDI_KINDS:
        return Spec(kind, {})
    common = _edits(data.get("containerEdits"), "containerEdits")
    devices: dict[str, Edits] = {}
    for place, device in enumerate(_entries(data.get("devices"), "devices")):
        where = f"devices[{place}]"
        name = device.get("name")
        if not isinstance(name, str) or not name:
            raise SpecError(f"{where}.name must be a text, found {quote(name)}")
        if f"{kind}={name}" in devices:
            raise SpecError(f"{where}.name is {quote(name)} a second time, each device needs its own name")
        own = _edits(device.get("containerEdits"), f"{where}.containerEdits")
        devices[f"{kind}={name}"] = Edits(own.minors | common.minors, own.paths | common.paths, own.caps | common.caps)
    return Spec(kind, devices)


def _load(text: bytes) -> object:
    if len(text) > MOST_BYTES:
        raise SpecError(f"it has more than {MOST_BYTES} bytes, no spec has so many")
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"it is not UTF-8 ({error})") from None
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(decoded)
    try:
        _check_events(decoded)
        return yaml.load(decoded, Loader=_Loader)
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise SpecError(f"it is neither JSON nor YAML ({words[:200]})") from None


def _check_events(text: str) -> None:
    """Before anything is built. SpecError for what could become large."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if isinstance(event, yaml.AliasEvent):
            raise SpecError(f"it has the YAML alias *{str(event.anchor)[:40]}; write out what it stands for")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MOST_DEPTH or count > MOST_NODES:
            raise SpecError(f"it is deeper than {MOST_DEPTH} or has more than {MOST_NODES} entries, no spec has so many")


def _entries(value: object, where: str) -> list[dict[str, Any]]:
    if value in _NULLS:
        return []
    if not isinstance(value, list) or len(value) > MOST_ENTRIES or not all(isinstance(entry, dict) for entry in value):
        raise SpecError(f"{where} must be a list of at most {MOST_ENTRIES} objects, found {quote(value)}")
    return value


def _edits(value: object, where: str) -> Edits:
    edits = {} if value in _NULLS else value
    if not isinstance(edits, dict):
        raise SpecError(f"{where} must be an object, found {quote(value)}")
    minors, paths, caps = set(), set(), set()
    for key, names in (("deviceNodes", ("hostPath", "path")), ("mounts", ("hostPath",)), ("hooks", ("path",))):
        for place, entry in enumerate(_entries(edits.get(key), f"{where}.{key}")):
            path = next((entry[name] for name in names if entry.get(name)), None)
            if not isinstance(path, str) or not path.startswith("/") or "\0" in path or len(path) > 4096:
                raise SpecError(f"{where}.{key}[{place}].{names[0]} must be an absolute path, found {quote(path)}")
            paths.add(path)
            if key == "deviceNodes" and (node := _GPU_NODE.fullmatch(path)):
                minors.add(int(node.group(1)))
            elif key == "deviceNodes" and (node := _CAP_NODE.fullmatch(path)):
                caps.add(int(node.group(1)))
    return Edits(frozenset(minors), frozenset(paths), frozenset(caps))


class SpecFolders:
    """The folders of CDI specs, lowest priority first. A file is read again only when it has changed.

    in_container: the host's files cannot be found, so the versions in their names are read instead.
    """

    def __init__(self, folders: Iterable[str] = protocol.CDI_FOLDERS, *, in_container: bool = False) -> None:
        self.folders = tuple(folders)
        self._in_container = in_container
        self._known: dict[str, tuple[_Identity, Spec | str]] = {}

    def read(self) -> CdiSpecs:
        """The specs as they are now. Blocks. Never raises for what is in the folders."""
        known: dict[str, tuple[_Identity, Spec | str]] = {}
        devices: dict[str, CdiDevice] = {}
        problems: list[str] = []
        exists: dict[str, bool] = {}
        kinds: set[str] = set()
        for folder in self.folders:
            in_folder: dict[str, CdiDevice] = {}
            for path in _files(folder, problems):
                spec = self._read(path, known)
                if isinstance(spec, str):
                    problems.append(f"{path}: {spec}")
                    continue
                kinds.add(spec.kind)
                for name, edits in spec.devices.items():
                    if name in in_folder:
                        in_folder[name] = replace(in_folder[name], conflict=path)
                        continue
                    if self._in_container:
                        in_folder[name] = CdiDevice(path, edits.minors, drivers=_drivers(edits.paths), caps=edits.caps)
                    else:
                        in_folder[name] = CdiDevice(path, edits.minors, tuple(_missing(edits.paths, exists)), caps=edits.caps)
            devices.update(in_folder)
        self._known = known
        return CdiSpecs(self.folders, devices, tuple(problems), frozenset(kinds))

    def _read(self, path: str, known: dict[str, tuple[_Identity, Spec | str]]) -> Spec | str:
        """The spec, or why the file has none."""
        try:
            # Opening must not wait: it could be a pipe.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return "it is not a regular file"
                identity = status.st_ino, status.st_mtime_ns, status.st_size
                before = self._known.get(path)
                if before is not None and before[0] == identity:
                    known[path] = before
                    return before[1]
                text = file.read(MOST_BYTES + 1)
        except OSError as error:
            return error.strerror or str(error)
        result: Spec | str
        try:
            result = parse_spec(text)
        except SpecError as error:
            result = str(error)
        known[path] = identity, result
        return result


def _files(folder: str, problems: list[str]) -> Sequence[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_ENDINGS) and name.isprintable())
    except FileNotFoundError:
        return ()
    except OSError as error:
        problems.append(f"{folder}: {error.strerror}")
        return ()
    if len(names) > MOST_FILES:
        problems.append(f"{folder}: it has {len(names)} specs, only the first {MOST_FILES} are read")
    return [str(Path(folder) / name) for name in names[:MOST_FILES]]


def _drivers(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(match.group(1) for path in paths if (match := _DRIVER_FILE.fullmatch(path)))


def _missing(paths: Iterable[str], exists: dict[str, bool]) -> Iterator[str]:
    for path in sorted(paths):
        if path not in exists:
            exists[path] = os.path.exists(path)
        if not exists[path]:
            yield path
