# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The images of an archive that `docker save`, `podman save` or `ctr images export` has written."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .contents import IMAGES, MACHINES, BundledImage, BundleError

_MOST_JSON, _MOST_IMAGES = 4 << 20, 100
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


def images_of(path: Path) -> list[BundledImage]:
    """The images in the archive, with their references. BundleError where it is none that a runtime would import."""
    try:
        with tarfile.open(path, "r:") as archive:
            found = list(_images(archive, f"{IMAGES}{path.name}"))
    except (OSError, tarfile.TarError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _odd(path, f"an archive that cannot be read ({type(error).__name__}: {str(error)[:120]})") from error
    if not found or len(found) > _MOST_IMAGES:
        raise _odd(path, f"{len(found)} images")
    for image in found:
        if not image.references or image.architecture not in MACHINES.values():
            raise _odd(path, f"an image {image.id[:19]} with {len(image.references)} names for {image.architecture[:20]!r}")
    return found


def _images(archive: tarfile.TarFile, file: str) -> Iterator[BundledImage]:
    try:
        listed = _json(archive, "manifest.json")
    except KeyError:
        yield from _of_oci(archive, file)
        return
    for image in listed:
        yield _image(archive, file, str(image["Config"]), image["RepoTags"] or ())


def _of_oci(archive: tarfile.TarFile, file: str) -> Iterator[BundledImage]:
    for image in _json(archive, "index.json")["manifests"]:
        names = image.get("annotations") or {}
        name = next((names[key] for key in _NAMES if names.get(key)), None)
        manifest = _json(archive, _blob(image["digest"]))
        yield _image(archive, file, _blob(manifest["config"]["digest"]), [name] if name else [])


def _image(archive: tarfile.TarFile, file: str, config: str, names: Any) -> BundledImage:
    data = _read(archive, config)
    return BundledImage(file, tuple(map(str, names)), str(json.loads(data)["architecture"]), f"sha256:{hashlib.sha256(data).hexdigest()}")


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(archive: tarfile.TarFile, name: str) -> Any:
    return json.loads(_read(archive, name))


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.getmember(name)
    file = archive.extractfile(member) if member.isfile() and member.size <= _MOST_JSON else None
    if file is None:
        raise ValueError(f"{name[:80]} is not a file of at most {_MOST_JSON} bytes")
    return file.read()


def _odd(path: Path, found: str) -> BundleError:
    cure = "save it again, such as by `ctr -n k8s.io images export FILE REFERENCE` or `docker save -o FILE REFERENCE`, uncompressed"
    return BundleError(f"{found} in {path}", f"images with a name, for {' or '.join(MACHINES.values())}", cure)
