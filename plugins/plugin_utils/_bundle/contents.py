# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a bundle: their names, their description, their checksums, and those that a host gets.

Pure. A bundle is an archive (see _formats/tar.py) of

    gpushare-bundle.json                   what this file makes of it, form FORMAT
    SHA256SUMS, SHA256SUMS.asc             of every other file; the second where it is signed
    sbom.cdx.json                          CycloneDX, with every file but the checksums and itself
    collection/, chart/, runtime/          the collection as for ansible-galaxy, the Helm chart, the wheel of the runtime
    wheels/                                the locked packages, for every Python and architecture
    images/                                archives of container images
    packages/SYSTEM/ARCHITECTURE/          the administrator's packages, such as packages/debian-12/x86_64/
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...module_utils._formats.failure import Failure
from ...module_utils._formats.finding import Finding
from .._shape import Open, other_shape, quoted

FORMAT = 1
MANIFEST, SUMS, SIGNATURE, SBOM = "gpushare-bundle.json", "SHA256SUMS", "SHA256SUMS.asc", "sbom.cdx.json"
WHEELS, IMAGES, PACKAGES, RUNTIME, COLLECTION, CHART = "wheels/", "images/", "packages/", "runtime/", "collection/", "chart/"
#: Those that the runtime's metadata admits and the lock has wheels for, and what `uname -m` says.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64"}
#: Of what is read into memory.
MOST_TEXT = 4 << 20
_SUM = re.compile(r"([0-9a-f]{64})  (\S{1,255})")
_REFERENCE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/@-]{0,253}[A-Za-z0-9])?")
_ID = re.compile(r"sha256:[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,40}")
_IMAGE = {"file": re.compile(r"images/[^/]+"), "references": [_REFERENCE], "architecture": re.compile("amd64|arm64"), "id": _ID}
_SHAPE = Open({"version": _VERSION, "pythons": [re.compile("|".join(PYTHONS))], "architectures": [re.compile("|".join(MACHINES))]})
_SYSTEM = re.compile(r"[a-z]+-[0-9]{1,4}(?:\.[0-9]{1,4})?")


class BundleError(Failure, ValueError):
    """The file is not a bundle that may be used: found, expected, and what to do."""

    def __init__(self, found: str, expected: str, cure: str) -> None:
        self.finding = Finding("bundle", found, expected, cure)
        super().__init__(f"the bundle: {self.finding}")


@dataclass(frozen=True)
class BundledImage:
    """One container image. file: of the archive that has it, among others perhaps; id: of its configuration, as runtimes name it."""

    file: str
    references: tuple[str, ...]
    architecture: str
    id: str


@dataclass(frozen=True)
class Contents:
    """A bundle by its own description. sums: SHA-256 of each file by name."""

    version: str
    pythons: tuple[str, ...]
    architectures: tuple[str, ...]
    images: tuple[BundledImage, ...]
    sums: Mapping[str, str]

    @property
    def wheels(self) -> dict[str, str]:
        """File name to SHA-256 of the locked packages."""
        return {name.removeprefix(WHEELS): sha256 for name, sha256 in self.sums.items() if name.startswith(WHEELS)}

    @property
    def runtime(self) -> str:
        """SHA-256 of the runtime's wheel, "" without one."""
        return next((sha256 for name, sha256 in self.sums.items() if name.startswith(RUNTIME)), "")

    def packages(self, system: str, machine: str) -> list[str]:
        """The administrator's packages for such a host."""
        return [name for name in self.sums if name.startswith(f"{PACKAGES}{system}/{machine}/")]


def manifest(version: str, pythons: Collection[str], architectures: Collection[str], images: Collection[BundledImage]) -> bytes:
    """The bundle's description of itself."""
    of_images = [asdict(image) for image in sorted(images, key=lambda image: (image.file, image.references))]
    written = {"format": FORMAT, "version": version, "pythons": list(pythons), "architectures": list(architectures), "images": of_images}
    return (json.dumps(written, indent=1, sort_keys=True) + "\n").encode()


def checksums(sums: Mapping[str, str]) -> bytes:
    """SHA256SUMS, as `sha256sum --check` reads it."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())).encode()


def parse(described: bytes, summed: bytes, names: Collection[str]) -> Contents:
    """The contents by the two files that describe them. names: of all files in the archive. BundleError."""
    sums = _sums(summed)
    if set(sums) != set(names) - {SUMS, SIGNATURE}:
        lacks, more = sorted(set(sums) - set(names)), sorted(set(names) - {SUMS, SIGNATURE} - set(sums))
        seen = [f"{quoted(lacks[0])} is missing" if lacks else "", f"{quoted(more[0])} is not in {SUMS}" if more else ""]
        raise _damaged(" and ".join(filter(None, seen)), f"the files of {SUMS} and no others")
    if hashlib.sha256(described).hexdigest() != sums.get(MANIFEST):
        raise _damaged(f"{MANIFEST} with another SHA-256", f"that of {SUMS}")
    try:
        found: Any = json.loads(described)
        form = found["format"]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise _damaged(f"{MANIFEST} that cannot be read ({type(error).__name__})", "JSON with a format") from error
    if form != FORMAT or isinstance(form, bool):
        older = isinstance(form, int) and form < FORMAT
        cure = "make a new one by the playbook bundle of this release" if older else "use the release of the collection that has made it"
        raise BundleError(f"format {quoted(form)}", f"format {FORMAT}", cure)
    wrong = other_shape(_SHAPE, found) or other_shape([Open(_IMAGE)], found.get("images"))
    if wrong is not None:
        raise _damaged(f"{MANIFEST}: {wrong}", "the form that the playbook bundle writes")
    listed = ((part["file"], tuple(part["references"]), part["architecture"], part["id"]) for part in found["images"])
    images = tuple(BundledImage(*fields) for fields in listed)
    for image in images:
        if image.file not in sums:
            raise _damaged(f"no {quoted(image.file)}", f"every image of {MANIFEST}")
    for name in sums:
        if name.startswith(PACKAGES) and (len(parts := name.split("/")) != 4 or not is_system(parts[1]) or parts[2] not in MACHINES):
            raise _damaged(f"{quoted(name)}", f"{PACKAGES}SYSTEM/ARCHITECTURE/FILE")
    return Contents(found["version"], tuple(found["pythons"]), tuple(found["architectures"]), images, sums)


def is_system(name: str) -> bool:
    """Whether it names a distribution as packages are sorted by, such as debian-12."""
    return bool(_SYSTEM.fullmatch(name))


def _sums(summed: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in summed.decode("ascii", "backslashreplace").splitlines():
        match = _SUM.fullmatch(line)
        if match is None or match[2] in found:
            raise _damaged(f"the line {quoted(line)} in {SUMS}", "SHA-256, two spaces and a name, each name once")
        found[match[2]] = match[1]
    return found


def _damaged(found: str, expected: str) -> BundleError:
    return BundleError(found, expected, "copy the file again, and compare its SHA-256 with that which the playbook bundle printed")
