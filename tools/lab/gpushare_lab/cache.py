# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cache: folders named by what they hold and by a hash of how it was made; never half written."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from .overlay import unmount_below
from .process import say, under_way


def _remove(folder: Path) -> None:
    # A build that was killed may have left /dev of this machine mounted there.
    unmount_below(folder)
    shutil.rmtree(folder)


def recipe_hash(recipe: Mapping[str, str | bytes]) -> str:
    """Twelve hex digits that change when any name or value of the recipe changes."""
    digest = hashlib.sha256()
    for key in sorted(recipe):
        value = recipe[key]
        data = value.encode() if isinstance(value, str) else value
        digest.update(f"{key}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:12]


def sources_recipe(folder: Path, patterns: tuple[str, ...] = ("**/*",)) -> dict[str, bytes]:
    """A recipe of the files below a folder: their content, and whether they are executable."""
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {
        f"{path.relative_to(folder)} {'x' if os.access(path, os.X_OK) else '-'}": path.read_bytes()
        for path in found
        if "__pycache__" not in path.parts
    }


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; it goes with the process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another lab command that holds {path}")
            with under_way(f"waiting for {path}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Cache:
    """Entries below one root. An entry that exists under its final name is complete."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: list[str] = []
        """Names of the entries that this process has made."""

    def present(self, what: str, version: str, recipe: Mapping[str, str | bytes]) -> Path | None:
        """The folder of an entry that is there."""
        final = self._final(what, version, recipe)
        return final if final.is_dir() else None

    def _final(self, what: str, version: str, recipe: Mapping[str, str | bytes]) -> Path:
        return self.root / f"{what}-{version}-{recipe_hash(recipe)}"

    def entry(self, what: str, version: str, recipe: Mapping[str, str | bytes], build: Callable[[Path], None], *, turns: str = "") -> Path:
        """The folder of an entry, built into a temporary folder first if it is missing.

        ``build`` gets an empty folder to fill. A build that another process holds is waited for;
        what a killed build left behind is removed. turns: builds with the same word are made one after the other.
        """
        if found := self.present(what, version, recipe):
            return found
        final = self._final(what, version, recipe)
        with locked(self.root / "locks" / final.name):
            if final.is_dir():
                return final
            for leftover in self.root.glob(f"{final.name}.tmp*"):
                _remove(leftover)
            partial = self.root / f"{final.name}.tmp{os.getpid()}"
            partial.mkdir(parents=True)
            say(f"{what} {version}: making it (not in {self.root})")
            started = time.monotonic()
            try:
                with self.turn(turns) if turns else nullcontext(), under_way(f"making {what} {version}"):
                    build(partial)
            except BaseException:
                _remove(partial)
                raise
            partial.rename(final)
            self.made.append(final.name)
            say(f"{what} {version}: ready after {time.monotonic() - started:.0f} s")
        return final

    def turn(self, word: str) -> AbstractContextManager[None]:
        """Held by one process at a time."""
        return locked(self.root / "locks" / word)

    def folder(self, name: str) -> Path:
        """A plain folder of the cache for files that tools share, such as Go's or pip's own caches."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        """The file for the output of one long command, emptied."""
        path = self.folder("logs") / f"{name}.log"
        path.write_bytes(b"")
        return path
