# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of all that a bundle lacks for the hosts of a run, before anything is changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ...module_utils._formats.finding import Finding
from .._bundle.archive import opened
from .._bundle.collection import version_of
from .._bundle.contents import BundleError, Contents
from .._bundle.lock import Target, chosen, names
from .._wheel import WheelError, build_wheel, locked_requirements


@dataclass(frozen=True)
class Needs:
    """The needs of one host. target: its Python and architecture, None where nothing is known; driver: whether one is to be
    installed, from packages for this system, as a bundle calls it."""

    host: str
    target: Target | None
    system: str = ""
    machine: str = ""
    driver: bool = False


def checked(path: str, key: str, root: Path) -> Contents | Finding:
    """The contents of the bundle, every file of which has its sum; or why it is none for this release. root: of the collection."""
    try:
        with opened(path, key) as bundle:
            contents = bundle.contents
            wrong = _other_release(contents, root)
            if wrong is None:
                bundle.check()
            return wrong or contents
    except BundleError as error:
        return error.finding
    except (WheelError, OSError) as error:
        return Finding("bundle", str(error)[:300], "a bundle that can be read", "see the message")


def judge(contents: Contents, needs: Collection[Needs], root: Path) -> list[Finding]:
    """A reason for each part that a host needs and the bundle lacks."""
    found = []
    lacking: dict[Target, str] = {}
    for need in needs:
        if need.target is not None:
            if need.target not in lacking:
                lacking[need.target] = _lacking(contents, need.target, root)
            if lacking[need.target]:
                cure = "make the bundle for it (gpushare_bundle_pythons, gpushare_bundle_architectures), or name another in gpushare_python"
                seen = f"no wheels for {need.target}: {lacking[need.target]}"
                found.append(Finding("bundle", seen, "those of the lock", cure, host=need.host))
        if need.driver and not contents.packages(need.system, need.machine):
            cure = "make the bundle with them (gpushare_bundle_packages), or install the driver by hand (gpushare_driver_state: present)"
            seen = f"no packages for {need.system} on {need.machine}"
            found.append(Finding("bundle", seen, "those of the driver", cure, host=need.host))
    return found


def _lacking(contents: Contents, target: Target, root: Path) -> str:
    """The packages without a wheel for the target, for people; "" if there are none."""
    try:
        # The larger of the two locks has the other one.
        lock = locked_requirements(root / "files/gpushare_runtime", "kubectl").decode()
        return names(chosen(lock, target, contents.wheels)[1])
    except (OSError, ValueError) as error:
        return str(error)[:200]


def _other_release(contents: Contents, root: Path) -> Finding | None:
    own = version_of(root)
    cure = "use the collection of the bundle (its folder collection/), or make the bundle by the playbook of this release"
    if contents.version != own:
        return Finding("bundle", f"release {contents.version}", f"{own}, which is that of this collection", cure)
    wheel = build_wheel(root / "files/gpushare_runtime").sha256
    if contents.runtime != wheel:
        seen = f"another build of the runtime {own} ({contents.runtime[:12]})"
        return Finding("bundle", seen, f"that of this collection ({wheel[:12]})", cure)
    return None
