# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the wheel of a pure-Python package, the same bytes from the same sources on every controller.

Needs no build tool: the sources, pyproject.toml, nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import tomllib  # type: ignore[import-not-found,unused-ignore]  # of Python 3.11, which ansible-core 2.18 needs here

from ..module_utils._formats.failure import Failure

# The oldest moment that a zip file can name.
_EPOCH = (1980, 1, 1, 0, 0, 0)


#: Of the runtime, below the collection.
SOURCE = "files/gpushare_runtime"


class WheelError(Failure, ValueError):
    """The sources are not a package that can be built; says what is missing and where."""


@dataclass(frozen=True)
class Wheel:
    """A built wheel: its file name, its bytes, and the package's version."""

    filename: str
    content: bytes
    version: str

    @property
    def sha256(self) -> str:
        """Hash of the wheel's bytes, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class WheelHash:
    """Version and SHA-256 (hexadecimal) of a wheel."""

    version: str
    sha256: str


@lru_cache(maxsize=None)
def wheel_hash(source: Path) -> WheelHash:
    """Version and hash of the wheel of the package at `source`, as it is when a run first asks. WheelError if it cannot be built."""
    wheel = build_wheel(source)
    return WheelHash(wheel.version, wheel.sha256)


def locked_requirements(source: Path, extra: str = "") -> bytes:
    """The locked requirements of the package at `source`, those of an extra included. OSError without them."""
    return (source / (f"requirements-{extra}.txt" if extra else "requirements.txt")).read_bytes()


def artifact(source: Path, extra: str = "") -> dict[str, str]:
    """The hashes of what the environment is made of, with its version. WheelError or OSError."""
    known, requirements = wheel_hash(source), locked_requirements(source, extra)
    return {"version": known.version, "wheel_sha256": known.sha256, "requirements_sha256": hashlib.sha256(requirements).hexdigest()}


def build_wheel(source: Path) -> Wheel:
    """The wheel of the package at `source`, a folder with pyproject.toml. WheelError if it cannot be built."""
    try:
        pyproject = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        project = pyproject["project"]
        name, version = re.sub(r"[-_.]+", "_", project["name"]).lower(), project["version"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise WheelError(f"{source} must hold a pyproject.toml with project.name and project.version: {error!r}") from error
    entries = _package_files(source, name, pyproject)
    info = f"{name}-{version}.dist-info"
    entries[f"{info}/METADATA"] = _metadata(project).encode()
    entries[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: gpushare.kubernetes\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    entries[f"{info}/entry_points.txt"] = _entry_points(project).encode()
    entries[f"{info}/RECORD"] = _record(entries, f"{info}/RECORD")
    return Wheel(f"{name}-{version}-py3-none-any.whl", _archive(entries), version)


def _package_files(source: Path, name: str, pyproject: dict[str, Any]) -> dict[str, bytes]:
    patterns = ["*.py", *pyproject.get("tool", {}).get("setuptools", {}).get("package-data", {}).get(name, [])]
    found = {path for pattern in patterns for path in (source / name).rglob(pattern) if path.is_file()}
    if source / name / "__init__.py" not in found:
        raise WheelError(f"{source / name} must be a package; it has no __init__.py")
    return {path.relative_to(source).as_posix(): path.read_bytes() for path in found}


def _metadata(project: dict[str, Any]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    if "description" in project:
        lines.append(f"Summary: {project['description']}")
    if "requires-python" in project:
        lines.append(f"Requires-Python: {project['requires-python']}")
    lines += [f"Requires-Dist: {requirement}" for requirement in project.get("dependencies", [])]
    for extra, requirements in sorted(project.get("optional-dependencies", {}).items()):
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {requirement} ; extra == "{extra}"' for requirement in requirements]
    return "\n".join(lines) + "\n"


def _entry_points(project: dict[str, Any]) -> str:
    scripts = sorted(project.get("scripts", {}).items())
    return "\n".join(["[console_scripts]", *(f"{script} = {target}" for script, target in scripts)]) + "\n"


def _record(entries: dict[str, bytes], own_path: str) -> bytes:
    lines = []
    for path, content in sorted(entries.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}")
    return ("\n".join([*lines, f"{own_path},,"]) + "\n").encode()


def _archive(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    # It is stored, not deflated: what zlib makes differs between its versions, and the hash names the environment.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in sorted(entries.items()):
            member = zipfile.ZipInfo(path, _EPOCH)
            member.create_system = 3
            member.external_attr = 0o100644 << 16
            archive.writestr(member, content)
    return buffer.getvalue()
