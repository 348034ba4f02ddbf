# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of our daemons on a host: the runtime that is in use, and what its own program gpushare-doctor answers. Read-only.

Returns plain JSON: what it means is judged on the controller (_verdict/daemons.py, _verdict/doctor.py).
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass
from typing import Any, Dict, Sequence

from .._daemon.virtual_environment import LINK, MARKER
from .._host.host import Host

# More than the doctor gives itself.
_DOCTOR_SECONDS = 90.0
_DOCTOR_CHARACTERS = 256 * 1024


@dataclass(frozen=True)
class InstalledRuntime:
    """The runtime that is in use, and hashes of what it was installed from. environment: its folder."""

    version: str
    wheel_sha256: str
    requirements_sha256: str
    environment: str


@dataclass(frozen=True)
class DoctorSays:
    """answer: what gpushare-doctor prints, as it is. problem: why it prints nothing. cure: "" where the runtime is at fault, which is
    built again then.
    """

    problem: str
    cure: str
    answer: str


def runtime(host: Host, install_dir: str) -> InstalledRuntime:
    """The runtime that is in use, all "" for none."""
    name = host.link(posixpath.join(install_dir, LINK))
    folder = posixpath.join(install_dir, name) if name else ""
    if not host.is_folder(folder):
        name = folder = ""  # a link to a folder that is gone
    try:
        marker: Dict[str, Any] = json.loads((host.text(posixpath.join(folder, MARKER)) if name else None) or "{}")
    except ValueError:
        marker = {}
    version, wheel, requirements = (str(marker.get(key, "")) for key in ("version", "wheel_sha256", "requirements_sha256"))
    return InstalledRuntime(version, wheel, requirements, folder)


def doctor(host: Host, install_dir: str, daemons: Sequence[str]) -> DoctorSays:
    """The words of gpushare-doctor about these daemons."""
    program = posixpath.join(install_dir, LINK, "bin", "gpushare-doctor")
    outcome = host.ask(host.program(program), ["--output", "json", *daemons], _DOCTOR_SECONDS)
    if host.no_programs(program) and (outcome is None or outcome.status is None):
        # Nothing could be built there either.
        return _silent(f"the file system of {program} is mounted noexec", f"mount -o remount,exec $(findmnt -n -o TARGET -T {install_dir})")
    if outcome is None and host.exists(program):
        return _silent(f"{program} may not be executed", f"chmod 0755 {program}")
    if outcome is None:
        return _silent(f"there is no {program}")
    if outcome.timed_out:
        return _silent(f"{program} did not end within {outcome.timed_out:.0f} s", f"see on the host what hangs: {program}")
    if outcome.status not in (0, 1) or not outcome.out:
        return _silent(f"{program} ended with {outcome.status}: {outcome.words}")
    return DoctorSays("", "", outcome.out[:_DOCTOR_CHARACTERS])


def _silent(problem: str, cure: str = "") -> DoctorSays:
    return DoctorSays(problem, cure, "")
