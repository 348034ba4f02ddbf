# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of the services of others that start pods, kubelet's and the container runtime's, as systemd has them: those that are too low.

Read-only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import List, Sequence, Tuple

from .._formats.answers import like
from .._host.host import Host
from .._host.systemd import parsed

#: The least with which a service starts pods: systemd's own default of open files, the rest far below what the packages of
#: kubelet, containerd, CRI-O and Docker set. TasksMax counts the shims of a runtime, and its threads.
_LEAST = {"LimitNOFILESoft": 1024, "TasksMax": 512, "MemoryMax": 128 << 20}
_SETTINGS = {"LimitNOFILESoft": "LimitNOFILE", "TasksMax": "TasksMax", "MemoryMax": "MemoryMax"}
_COUNT = re.compile(r"\d{1,18}")
_SET = re.compile(r"^[ \t]*(LimitNOFILE|TasksMax|Memory(?:Max|Limit))[ \t]*=", re.MULTILINE)
_SETTING = re.compile(r"^[ \t]*[A-Za-z]+[ \t]*=", re.MULTILINE)
UNIT, PATH = re.compile(r"[\w@.-]{1,80}\.service"), re.compile(r"/[\w@./-]{1,200}")
_LIMIT = re.compile(r"[A-Za-z]{1,20}=\d{1,18}")
_BYTES = 16 * 1024


@dataclass(frozen=True)
class UnitLimits:
    """low: such as "LimitNOFILE=64". drop_ins: files beside the unit that set such a limit, whole: those that set nothing else.

    They become names in commands that people paste.
    """

    unit: str = field(metadata=like(UNIT))
    low: Tuple[str, ...] = field(metadata=like(_LIMIT))
    drop_ins: Tuple[str, ...] = field(default=(), metadata=like(PATH))
    whole: bool = False


def low_limits(host: Host, units: Sequence[str]) -> List[UnitLimits]:
    """Of these services, those that have a limit that is too low."""
    names = [unit for unit in units if UNIT.fullmatch(unit)]
    words = ["show", *names, f"--property=Id,DropInPaths,{','.join(_LEAST)}"]
    printed = host.printed(host.program("systemctl"), words) if names else ""
    found = []
    for state in map(parsed, printed.split("\n\n")):
        low = tuple(
            f"{_SETTINGS[name]}={state[name]}"
            for name, least in _LEAST.items()
            if _COUNT.fullmatch(state.get(name, "")) and int(state[name]) < least
        )
        if low and UNIT.fullmatch(state.get("Id", "")):
            texts = {
                path: (host.data(path, _BYTES) or b"").decode("utf-8", "replace")
                for path in state.get("DropInPaths", "").split()
                if PATH.fullmatch(path)
            }
            setting = {path: text for path, text in texts.items() if _SET.search(text)}
            whole = all(len(_SETTING.findall(text)) == len(_SET.findall(text)) for text in setting.values())
            found.append(UnitLimits(state["Id"], low, tuple(setting), bool(setting) and whole))
    return found
