# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A node's file system: layers that never change, shared by nodes, below one folder that the node writes to."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .process import LabError, run, until

# The kernel takes the options of a mount in one page of memory.
_OPTIONS_BYTES = 4095
_UNMOUNT_DEADLINE_S = 30.0


@dataclass(frozen=True)
class FileSystem:
    """The file system of one node, kept in the node's folder: mounted at ``root``, written to ``upper``."""

    folder: Path

    @property
    def root(self) -> Path:
        """Where it is mounted."""
        return self.folder / "root"

    @property
    def upper(self) -> Path:
        """What the node has written since the layers were made."""
        return self.folder / "upper"

    @property
    def _description(self) -> Path:
        return self.folder / "file-system.json"

    def describe(self, layers: Sequence[Path], recipe: str) -> None:
        """Write down the layers, the uppermost first, and the recipe by which the node was made; in one step."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self._description.with_suffix(".partial")
        partial.write_text(json.dumps({"layers": [str(layer) for layer in layers], "recipe": recipe}) + "\n")
        partial.rename(self._description)

    @property
    def layers(self) -> list[Path]:
        """The layers, the uppermost first; none if there is no file system."""
        return [Path(layer) for layer in self._read().get("layers", [])]

    @property
    def recipe(self) -> str:
        """The recipe by which the node was made."""
        return str(self._read().get("recipe", ""))

    def _read(self) -> dict[str, list[str]]:
        return dict(json.loads(self._description.read_text())) if self._description.exists() else {}

    def mount(self) -> None:
        """Mount it if it is not. A `freeze` that was killed is finished by that."""
        if is_mounted(self.root):
            return
        first, *below = self.layers
        if not first.exists() and self.upper.exists():
            first.parent.mkdir(parents=True, exist_ok=True)
            self.upper.rename(first)
        if missing := [str(layer) for layer in (first, *below) if not layer.is_dir()]:
            raise LabError(f"{self.folder}: its file system lacks {', '.join(missing)}: call `lab down`, then `lab up`")
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        for folder in (self.root, self.upper, work):
            folder.mkdir(exist_ok=True)
        # The root folder of the node is this one, whatever the umask is.
        self.upper.chmod(0o755)
        mount_overlay(self.root, (first, *below), self.upper, work)

    def unmount(self) -> None:
        """Unmount it if it is mounted, once nothing runs in it."""
        unmount_below(self.folder)

    def freeze(self, layer: Path) -> None:
        """Let what the node has written be its uppermost layer from now on, without copying; it must not be mounted."""
        self.describe([layer, *self.layers], self.recipe)
        layer.parent.mkdir(parents=True, exist_ok=True)
        self.upper.rename(layer)


def mount_options(layers: Sequence[Path], upper: Path, work: Path) -> bytes:
    """The options of an overlay's mount, with what the kernel would take for a separator escaped."""

    def escaped(path: Path) -> str:
        return re.sub(r"([\\:,])", r"\\\1", str(path))

    text = f"lowerdir={':'.join(map(escaped, layers))},upperdir={escaped(upper)},workdir={escaped(work)}"
    options = os.fsencode(text)
    if len(options) > _OPTIONS_BYTES:
        raise LabError(f"a node has {len(layers)} layers, more than can be named in a mount: restore an earlier state, or call `lab down`")
    return options


def mount_overlay(root: Path, layers: Sequence[Path], upper: Path, work: Path) -> None:
    """Mount layers, the uppermost first, below one folder that takes what is written; work: an empty folder beside that."""
    _mount(root, mount_options(layers, upper, work))


def _mount(root: Path, options: bytes) -> None:
    # Not mount(8), which splits options at commas, escaped or not.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"overlay", os.fsencode(root), b"overlay", 0, options) != 0:
        raise LabError(f"mounting {root} with {os.fsdecode(options)}: {os.strerror(ctypes.get_errno())}; see `dmesg`")


def mounts_below(folder: Path, mountinfo: str) -> list[Path]:
    """Where something is mounted in or below a folder, according to /proc/self/mountinfo; the innermost first."""
    points = []
    for line in mountinfo.splitlines():
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split()[4]))
        if point == folder or folder in point.parents:
            points.append(point)
    return sorted(points, key=lambda point: len(point.parts), reverse=True)


def is_mounted(point: Path) -> bool:
    """Whether something is mounted there."""
    return point in mounts_below(point, _mountinfo())


def unmount_below(folder: Path) -> None:
    """Unmount all that is mounted in or below a folder, once what ran there is gone."""
    for point in mounts_below(folder, _mountinfo()):
        until(
            f"{point} to be unmounted",
            _UNMOUNT_DEADLINE_S,
            lambda point=point: run(["umount", point], check=False).returncode == 0 or not is_mounted(point),  # type: ignore[misc]
            why_not=lambda point=point: run(["fuser", "-vm", point], check=False).stderr,  # type: ignore[misc]
        )


def _mountinfo() -> str:
    return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
