# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Container images as one docker archive, written without any container tool; the same input gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class File:
    """A file of a layer: the bytes of ``source``."""

    source: Path
    mode: int = 0o755


@dataclass(frozen=True)
class Text:
    """A file of a layer with this text."""

    text: str
    mode: int = 0o644


@dataclass(frozen=True)
class Link:
    """A symbolic link of a layer."""

    target: str


@dataclass(frozen=True)
class Folder:
    """A folder of a layer; folders on the way to a file are made without being named."""

    mode: int = 0o755


Member = File | Text | Link | Folder


def files_of(folder: Path) -> dict[str, Member]:
    """A folder's files, executable ones as 0755 and others as 0644, whatever the checkout's umask was."""
    return {
        str(path.relative_to(folder)): File(path, 0o755 if os.access(path, os.X_OK) else 0o644)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@dataclass(frozen=True)
class Image:
    """One image: its references with tags, its one layer, and how it runs. user: `UID:GID`, "" for root."""

    references: Sequence[str]
    layer: Path
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    architecture: str = "amd64"
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def write_layer(path: Path, members: Mapping[str, Member]) -> None:
    """An uncompressed layer, everything owned by root and dated 1970; names are relative to the root."""
    folders = {str(parent) for name in members for parent in Path(name).parents if str(parent) != "."}
    everything: dict[str, Member] = {**{folder: Folder() for folder in folders}, **members}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as layer:
        for name in sorted(everything):
            _add(layer, name, everything[name])


def _add(layer: tarfile.TarFile, name: str, member: Member) -> None:
    info = tarfile.TarInfo(name)
    if isinstance(member, Link):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, member.target, 0o777
        layer.addfile(info)
    elif isinstance(member, Folder):
        info.type, info.mode = tarfile.DIRTYPE, member.mode
        layer.addfile(info)
    else:
        info.mode = member.mode
        data = member.text.encode() if isinstance(member, Text) else member.source.read_bytes()
        info.size = len(data)
        layer.addfile(info, io.BytesIO(data))


def write_archive(path: Path, images: Sequence[Image]) -> None:
    """The images as `docker save` would write them; a layer that several share is stored once."""
    manifest = []
    layers: dict[Path, str] = {}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for image in images:
            if image.layer not in layers:
                layers[image.layer] = hashlib.sha256(image.layer.read_bytes()).hexdigest()
                archive.add(image.layer, f"{layers[image.layer]}.tar", filter=_anonymous)
            digest = layers[image.layer]
            config = _config(image, digest)
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            _add_bytes(archive, name, config)
            manifest.append({"Config": name, "RepoTags": list(image.references), "Layers": [f"{digest}.tar"]})
        _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())


def write_image(path: Path, image: Image) -> str:
    """One image with a compressed layer, in the layout of OCI and that of `docker save` at once. Returns the digest of its manifest.

    The digest is the one that a registry has for it after a push of these bytes.
    """
    plain = hashlib.sha256()
    packed = io.BytesIO()
    # Neither name nor time of the file.
    with gzip.GzipFile("", "wb", 6, packed, mtime=0) as stream, image.layer.open("rb") as layer:
        while block := layer.read(1 << 20):
            plain.update(block)
            stream.write(block)
    kinds = "application/vnd.oci.image"
    config, layer_bytes = _config(image, plain.hexdigest()), packed.getvalue()
    blobs = {_digest(data): data for data in (config, layer_bytes)}
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{kinds}.manifest.v1+json",
            "config": _described(f"{kinds}.config.v1+json", config),
            "layers": [_described(f"{kinds}.layer.v1.tar+gzip", layer_bytes)],
        }
    )
    blobs[_digest(manifest)] = manifest
    of_image = {**_described(f"{kinds}.manifest.v1+json", manifest), "platform": {"architecture": image.architecture, "os": "linux"}}
    names = [
        {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference.rpartition(":")[2]}
        for reference in image.references
    ]
    index = {"schemaVersion": 2, "mediaType": f"{kinds}.index.v1+json", "manifests": [{**of_image, "annotations": one} for one in names]}
    of_docker = [{"Config": _blob(config), "RepoTags": list(image.references), "Layers": [_blob(layer_bytes)]}]
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        _add_bytes(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        for data in sorted(blobs.values(), key=_blob):
            _add_bytes(archive, _blob(data), data)
        _add_bytes(archive, "index.json", _json(index))
        _add_bytes(archive, "manifest.json", _json(of_docker))
    return _digest(manifest)


def _json(data: object) -> bytes:
    return json.dumps(data, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(data: bytes) -> str:
    return f"blobs/{_digest(data).replace(':', '/')}"


def _described(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(data), "size": len(data)}


def _config(image: Image, layer_digest: str) -> bytes:
    return json.dumps(
        {
            "architecture": image.architecture,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "Env": [f"{key}={value}" for key, value in image.environment.items()],
                "Cmd": list(image.command),
                **({"User": image.user} if image.user else {}),
                **({"Labels": dict(image.labels)} if image.labels else {}),
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "gpushare"}],
        },
        sort_keys=True,
    ).encode()


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o644
    return info


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
