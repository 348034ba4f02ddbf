# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host shows of our daemons: the runtime that is in use, and what its own program gpushare-doctor answers. Read-only.

Private to this collection. Returns plain JSON: what it means is judged on the controller (_verdict/daemons.py, _verdict/doctor.py).
"""

from __future__ import annotations

import json
import posixpath
import time
from typing import Any, Dict, Sequence

from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.environment import LINK, MARKER
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host

# More than the doctor gives itself.
_DOCTOR_SECONDS = 90.0
_DOCTOR_CHARACTERS = 256 * 1024


def runtime(host: Host, install_dir: str) -> Dict[str, str]:
    """The runtime that is in use, and hashes of what it was installed from; all "" for none."""
    name = host.link(posixpath.join(install_dir, LINK))
    folder = posixpath.join(install_dir, name) if name else ""
    try:
        marker: Dict[str, Any] = json.loads((host.text(posixpath.join(folder, MARKER)) if name else None) or "{}")
    except ValueError:
        marker = {}
    return dict({key: str(marker.get(key, "")) for key in ("version", "wheel_sha256", "requirements_sha256")}, environment=folder)


def doctor(host: Host, install_dir: str, daemons: Sequence[str]) -> Dict[str, str]:
    """answer: what gpushare-doctor prints of these daemons, as it is; problem: why it prints nothing."""
    program = posixpath.join(install_dir, LINK, "bin", "gpushare-doctor")
    outcome = host.ask(host.program(program), ["--output", "json", *daemons], _DOCTOR_SECONDS)
    if outcome is None:
        return {"problem": f"there is no {program}", "answer": ""}
    if outcome.timed_out:
        return {"problem": f"{program} did not end within {outcome.timed_out:.0f} s", "answer": ""}
    if outcome.status not in (0, 1) or not outcome.out:
        return {"problem": f"{program} ended with {outcome.status}: {outcome.words}", "answer": ""}
    return {"problem": "", "answer": outcome.out[:_DOCTOR_CHARACTERS]}


def now() -> float:
    """Unix time of this host, against which its containers are judged."""
    return time.time()
