# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""This collection and its chart as archives, the same bytes from the same files.

An installed collection has the list of its files with their checksums, and the archive that it came from is made of these. A checkout has
none: ansible-galaxy makes it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from .contents import BundleError

_SECONDS = 300
_AGAIN = "install the collection again (ansible-galaxy collection install --force)"


def version_of(root: Path) -> str:
    """The version of the collection in a folder, installed or not."""
    try:
        if (root / "MANIFEST.json").is_file():
            return str(json.loads((root / "MANIFEST.json").read_text(encoding="utf-8"))["collection_info"]["version"])
        return str(yaml.safe_load((root / "galaxy.yml").read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        raise BundleError(
            f"no version of the collection in {root} ({type(error).__name__})", "MANIFEST.json or galaxy.yml", _AGAIN
        ) from error


def collection(root: Path) -> bytes:
    """The collection in a folder as `ansible-galaxy collection install` takes it."""
    if (root / "MANIFEST.json").is_file():
        return _stored(_tar(sorted(_installed(root), key=lambda file: file[0])))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ansible", "galaxy", "collection", "build", "--output-path", folder, str(root)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False)
        made = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or len(made) != 1:
            raise BundleError(f"ansible-galaxy that fails: {done.stderr[-300:]}", "an archive of this checkout", "see its message")
        return _stored(normal(made[0]))


def chart(root: Path, version: str) -> bytes:
    """The Helm chart, as `helm install` takes it."""
    folder = root / "charts/gpushare"
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if not paths:
        raise BundleError(f"no chart in {folder}", "the chart of the collection", _AGAIN)
    return _stored(_tar((f"gpushare/{path.relative_to(folder).as_posix()}", path.read_bytes(), 0o644) for path in paths))


def normal(archive: Path, mtime: int = 0) -> bytes:
    """A compressed archive without compression, sorted, owned by root, and with one time on all of its files."""
    with tarfile.open(archive) as old:
        members = sorted(old.getmembers(), key=lambda member: member.name)
        # Of a folder, that is None.
        parts = [(member.name, old.extractfile(member), member.mode) for member in members if member.isdir() or member.isfile()]
        return _tar(((name, None if data is None else data.read(), mode) for name, data, mode in parts), mtime)


def _installed(root: Path) -> Iterable[tuple[str, bytes | None, int]]:
    manifest, listed = (root / "MANIFEST.json").read_bytes(), (root / "FILES.json").read_bytes()
    try:
        described: Any = json.loads(manifest)["file_manifest_file"]
        files: Any = json.loads(listed)["files"]
        wanted = [(str(file["name"]), file["chksum_sha256"], file["ftype"] == "dir") for file in files]
    except (ValueError, LookupError, TypeError) as error:
        raise BundleError(f"lists of files in {root} that cannot be read", "those of an installed collection", _AGAIN) from error
    if described["chksum_sha256"] != hashlib.sha256(listed).hexdigest():
        raise BundleError(f"{root}/FILES.json with another checksum", "the one in MANIFEST.json", _AGAIN)
    yield "FILES.json", listed, 0o644
    yield "MANIFEST.json", manifest, 0o644
    for name, sha256, is_folder in wanted:
        if name == ".":
            continue
        if is_folder:
            yield name, None, 0o755
            continue
        path = root / name
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BundleError(f"{path}, which was changed since the collection was installed", "the file of the release", _AGAIN)
        yield name, data, 0o755 if path.stat().st_mode & 0o100 else 0o644


def _tar(members: Iterable[tuple[str, bytes | None, int]], mtime: int = 0) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for name, data, mode in members:
            info = tarfile.TarInfo(name)
            info.mtime, info.mode, info.uname, info.gname = mtime, mode, "root", "root"
            if data is None:
                info.type = tarfile.DIRTYPE
                new.addfile(info)
            else:
                info.size = len(data)
                new.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def _stored(data: bytes) -> bytes:
    """Not deflated: what zlib makes differs between its versions."""
    return gzip.compress(data, compresslevel=0, mtime=0)
