# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a bundle: download, describe, sum, and write it. The same input makes the same bytes, except for the signature."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...module_utils._formats import tar
from ...module_utils._host.received import LIMITS
from .._wheel import build_wheel, locked_requirements
from . import sbom
from .archive import SPARE, Source, need_space, parts_of, sha256_of
from .collection import chart, collection, version_of
from .contents import (
    CHART,
    COLLECTION,
    IMAGES,
    MANIFEST,
    PACKAGES,
    RUNTIME,
    SBOM,
    SIGNATURE,
    SUMS,
    WHEELS,
    BundledImage,
    BundleError,
    checksums,
    manifest,
)
from .images import images_of
from .lock import Target, pins
from .packages import PackagesOf, collect
from .wheels import Say, collect_wheels

#: Of the wheels of one Python on one architecture, as measured with the lock of 0.1.0.
_BYTES_OF_TARGET = 20 << 20
_GPG_SECONDS = 120
#: The extra with the packages of all others.
_WHOLE = "kubectl"


@dataclass(frozen=True)
class Recipe:
    """The content of a bundle. root: of the collection; folder: where the bundle goes. pip: more arguments for it. sign: a key of gpg, or
    nothing."""

    root: Path
    folder: Path
    pythons: tuple[str, ...]
    machines: tuple[str, ...]
    images: tuple[Path, ...] = ()
    packages: tuple[PackagesOf, ...] = ()
    pip: tuple[str, ...] = ()
    sign: str = ""


@dataclass(frozen=True)
class Made:
    """The bundle that was written. changed: there was none, or another."""

    bundle: Path
    sha256: str
    size: int
    changed: bool
    files: int


def make(recipe: Recipe, say: Say) -> Made:
    """Write the bundle. BundleError, WheelError or OSError; then there is the former one, or none."""
    version = version_of(recipe.root)
    images = [image for path in recipe.images for image in images_of(path)]
    _once([path.name for path in recipe.images], "gpushare_bundle_images")
    _once([f"{packages.system} on {packages.machine}" for packages in recipe.packages], "gpushare_bundle_packages")
    recipe.folder.mkdir(parents=True, exist_ok=True)
    given = sum(path.stat().st_size for path in recipe.images)
    need_space(recipe.folder, 2 * _BYTES_OF_TARGET * len(recipe.pythons) * len(recipe.machines) + given + SPARE)
    with tempfile.TemporaryDirectory(prefix=".gpushare-bundle-", dir=recipe.folder) as scratch:
        files: dict[str, Source] = {f"{IMAGES}{path.name}": path for path in recipe.images}
        files |= _packages(recipe, Path(scratch), say)
        source = recipe.root / "files/gpushare_runtime"
        own, lock = build_wheel(source), locked_requirements(source, _WHOLE).decode()
        files[f"{RUNTIME}{own.filename}"] = own.content
        files[f"{COLLECTION}gpushare-kubernetes-{version}.tar.gz"] = collection(recipe.root)
        files[f"{CHART}gpushare-{version}.tgz"] = chart(recipe.root, version)
        # Minutes, so it comes last.
        targets = [Target(python, machine) for python in recipe.pythons for machine in recipe.machines]
        wheels = collect_wheels(lock, targets, Path(scratch) / "wheels", recipe.pip, say)
        files |= {f"{WHEELS}{path.name}": path for path in wheels}
        files[MANIFEST] = manifest(version, recipe.pythons, recipe.machines, images)
        sums = {name: sha256_of(content) for name, content in files.items()}
        files[SBOM] = bill(version, sums, images, lock).encode()
        sums[SBOM] = sha256_of(files[SBOM])
        files[SUMS] = summed = checksums(sums)
        if recipe.sign:
            files[SIGNATURE] = _signature(summed, recipe.sign)
        say(f"writing {len(files)} files")
        return write(recipe.folder / f"gpushare-bundle-{version}.tar", files)


def bill(version: str, sums: Mapping[str, str], images: Iterable[BundledImage], lock: str) -> str:
    """The bill of materials of a bundle with these files (name to SHA-256)."""
    by_hash = {sha256: pin for pin in pins(lock) for sha256 in pin.hashes}
    wheels: dict[tuple[str, str], list[str]] = {}
    parts = []
    references = {image.file: image.references[0] for image in images}
    for name, sha256 in sorted(sums.items()):
        if name.startswith(WHEELS):
            pin = by_hash[sha256]
            wheels.setdefault((pin.name, pin.version), []).append(name)
        else:
            kind = "container" if name.startswith(IMAGES) else "application" if name.startswith((COLLECTION, RUNTIME)) else "file"
            more = [("gpushare:image", references[name])] if name in references else []
            parts.append(sbom.Component(kind, name, "", [sha256], properties=more))
    for (package, number), files in wheels.items():
        part = sbom.pypi(package, number, [sums[name] for name in files])
        parts.append(replace(part, properties=[("gpushare:file", name) for name in files]))
    return sbom.bill(version, parts, checksums(sums).decode())


def write(path: Path, files: Mapping[str, Source]) -> Made:
    """The archive with these files, whole or not at all."""
    sizes = {name: len(content) if isinstance(content, bytes) else content.stat().st_size for name, content in files.items()}
    large = max(sizes, key=lambda name: sizes[name])
    if sizes[large] > LIMITS.member_bytes or sum(sizes.values()) > LIMITS.bytes or len(sizes) > LIMITS.members:
        seen = f"{len(sizes)} files of {sum(sizes.values()) >> 20} MiB, the largest {large[:80]} of {sizes[large] >> 20} MiB"
        most = f"at most {LIMITS.members} of {LIMITS.bytes >> 20} MiB, each of {LIMITS.member_bytes >> 20} MiB"
        raise BundleError(seen, most, "make several bundles, such as one for each kind of host")
    need_space(path.parent, sum(sizes.values()) + SPARE)
    former = sha256_of(path) if path.is_file() else ""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as stream:
            # The description and the checksums come first.
            for name in sorted(files, key=lambda file: ("/" in file, file)):
                tar.add(stream, name, sizes[name], parts_of(files[name]))
            tar.finish(stream)
            stream.flush()
            os.fsync(stream.fileno())
        sha256, size = sha256_of(temporary), temporary.stat().st_size
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return Made(path, sha256, size, former != sha256, len(files))


def _packages(recipe: Recipe, scratch: Path, say: Say) -> dict[str, Source]:
    found: dict[str, Source] = {}
    for number, wanted in enumerate(recipe.packages):
        if wanted.names:
            say(f"downloading {len(wanted.names)} packages for {wanted.system} on {wanted.machine}")
        folder = scratch / f"packages-{number}"
        folder.mkdir()
        found |= {f"{PACKAGES}{wanted.system}/{wanted.machine}/{path.name}": path for path in collect(wanted, folder)}
    return found


def _signature(summed: bytes, key: str) -> bytes:
    command = ["gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign"]
    try:
        done = subprocess.run(command, input=summed, capture_output=True, timeout=_GPG_SECONDS, check=False)
        words = done.stderr.decode("utf-8", "replace") if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        words = str(error)
    if words:
        cure = "see `gpg --list-secret-keys`, and correct gpushare_bundle_sign"
        raise BundleError(f"gpg that does not sign ({' '.join(words.split())[-200:]})", f"a signature by {key[:80]}", cure)
    return done.stdout


def _once(found: list[str], variable: str) -> None:
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise BundleError(f"{twice[:80]} twice in {variable}", "each once", f"correct {variable}")
