# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes off a host what this collection put there: what is ours is found by reading the host, so that a killed run is finished by the next.

Two plans, because the container runtime goes back between them and needs its journal: `services` (daemons, what they read and keep),
`leftovers` (runtime, links, the journal itself).
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Callable, List, Sequence, Set

from .._formats.answers import DiffPart, LeftThing, ModuleAnswer
from .._formats.failure import Failure
from .._host.files import FileState, digest, read_state, remove, sync_folder
from .._host.systemd import UNITS

STAGED = ".gpushare-staged-"
_SECRET_ENDS = (".key", ".token", ".kubeconfig")


class RemoveError(Failure):
    """Something would not go; says what, why and what to do."""


@dataclass(frozen=True)
class Layout:
    """Where things are, as the host sees it. root: "/" or the folder that stands for it."""

    install_dir: str = "/opt/gpushare"
    config_dir: str = "/etc/gpushare"
    pki_dir: str = "/etc/gpushare/pki"
    kubectl_plugin_dir: str = "/usr/local/bin"
    scheduler_manifest: str = "/etc/kubernetes/manifests/kube-scheduler.yaml"
    units: str = UNITS
    state: str = "/var/lib"
    root: str = "/"

    def real(self, path: str) -> str:
        """The path by which this process reaches it."""
        return os.path.join(self.root, path.lstrip("/"))


@dataclass(frozen=True)
class RemovalStep:
    """One thing to do. kind: "stopped", "removed" or "restored"; before and after: for the diff."""

    kind: str
    what: str
    do: Callable[[], None]
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class TracesRemoved(ModuleAnswer):
    """The answer of gpushare_traces that takes something off the host: units, files and packages."""

    stopped: List[str]
    removed: List[str]
    restored: List[str]
    left: List[LeftThing]
    notes: List[str]
    diff: List[DiffPart]


class RemovalPlan:
    """The things that go, in order, and those that stay and why. gone: paths that the steps take away."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.steps: List[RemovalStep] = []
        self.left: List[LeftThing] = []
        self.notes: List[str] = []
        self.gone: Set[str] = set()

    def add(self, kind: str, what: str, do: Callable[[], None], before: str = "", after: str = "") -> None:
        self.steps.append(RemovalStep(kind, what, do, before, after))

    def leave(self, what: str, why: str) -> None:
        self.left.append({"what": what, "why": why})

    def remove_file(self, path: str) -> None:
        """A file, link or socket of ours goes, if it is there."""
        real = self.layout.real(path)
        if path in self.gone or not os.path.lexists(real):
            return
        self.gone.add(path)
        self.add("removed", path, lambda: remove(real), shown(path, real))

    def remove_tree(self, path: str) -> None:
        """A folder that is wholly ours goes, if it is there; of a link only the link."""
        real = self.layout.real(path)
        if path in self.gone or not os.path.lexists(real):
            return
        if os.path.islink(real) or not os.path.isdir(real):
            self.remove_file(path)
            return
        self.gone.add(path)

        def do() -> None:
            shutil.rmtree(real)
            sync_folder(os.path.dirname(real))

        self.add("removed", path, do, "folder\n")

    def remove_folder_if_empty(self, path: str, ours: bool = True) -> None:
        """A folder goes if only things that the plan takes are in it. ours: what is in it otherwise is worth a word."""
        real = self.layout.real(path)
        if path in self.gone or os.path.islink(real) or not os.path.isdir(real):
            return
        strangers = [name for name in sorted(os.listdir(real)) if os.path.join(path, name) not in self.gone]
        if strangers:
            if ours:
                self.leave(path, f"it holds what this collection did not put there: {', '.join(strangers)}")
            return
        if os.path.ismount(real):
            self.leave(path, "it is a mount point")
            return
        self.gone.add(path)
        self.add("removed", path, lambda: os.rmdir(real), "folder\n")

    def remove_staged(self, folders: Sequence[str]) -> None:
        """The files that a run that was killed in the middle of writing a file has left."""
        for folder in sorted(set(folders)):
            for name in names(self.layout.real(folder)):
                if name.startswith(STAGED):
                    self.remove_file(os.path.join(folder, name))

    def apply(self, point: Callable[[str], None] = lambda _point: None) -> None:
        """Do the steps. point: called before and after each; a kill there must be harmless."""
        for step in self.steps:
            point(f"before {step.kind} {step.what}")
            step.do()
            point(f"{step.kind} {step.what}")

    def result(self) -> TracesRemoved:
        """For the module: what is done, or in check mode would be."""
        stopped, removed, restored = (
            [step.what for step in self.steps if step.kind == kind] for kind in ("stopped", "removed", "restored")
        )
        diff: List[DiffPart] = [{"before_header": s.what, "after_header": s.what, "before": s.before, "after": s.after} for s in self.steps]
        return TracesRemoved(bool(self.steps), stopped, removed, restored, self.left, self.notes, diff)


def shown(path: str, real: str) -> str:
    """A file for a diff: secrets and what is not text only as a digest."""
    if os.path.islink(real):
        return f"link to {os.readlink(real)}\n"
    try:
        state = read_state(real)
    except OSError:
        return "(no regular file)\n"
    return "" if state is None else shown_content(path, state)


def shown_content(path: str, state: FileState) -> str:
    """The same for a content that is known."""
    hidden = f"(content with sha256 {digest(state.content)[:16]})\n"
    if path.endswith(_SECRET_ENDS) or os.path.basename(path) == "token":
        return hidden
    try:
        return state.content.decode()
    except UnicodeDecodeError:
        return hidden


def names(folder: str) -> List[str]:
    """The names in the folder, sorted; empty if the folder does not exist."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
