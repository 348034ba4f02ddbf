# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the driver's kernel modules: those that an administrator wishes, those that a machine needs, and those that are in use.

Pure.
"""

from __future__ import annotations

import re
from typing import List, Mapping, Sequence, Tuple

OPTIONS_FILE = "/etc/modprobe.d/gpushare-nvidia.conf"
MODULES_FILE = "/etc/modules-load.d/gpushare-nvidia.conf"
_MADE = "# Made by gpushare.kubernetes.\n"
_OPTION = re.compile(r'(nvidia(?:-uvm|-modeset|-drm|-peermem)?) ([A-Za-z][A-Za-z0-9_]{0,63})=((?:[^\s"\'\\#]|"[^\s"\'\\#]*"){0,200})')
_PARAMETER = "NVreg_"
#: The driver, not the kernel, has the memory of GPUs that share it with the processor. Otherwise it is a NUMA node, which kubelet takes for
#: memory of the host. NVIDIA's driver container sets it from this branch on (NVIDIA/gpu-driver-container, nvidia-driver, read 2026-11-25).
COHERENT, FIRST_COHERENT = "NVreg_CoherentGPUMemoryMode", 580


def unreadable(options: Sequence[str]) -> List[str]:
    """The names that are not options of the driver's modules."""
    return [option for option in options if not _OPTION.fullmatch(option)]


def with_defaults(options: Sequence[str], coherent: bool, branch: int) -> Tuple[str, ...]:
    """coherent: whether GPUs and processor share their memory."""
    if coherent and branch >= FIRST_COHERENT and not any(f" {COHERENT}=" in option for option in options):
        return (f"nvidia {COHERENT}=driver", *options)
    return tuple(options)


def options_text(options: Sequence[str]) -> str:
    return _MADE + "".join(f"options {option}\n" for option in options)


def modules_text(modules: Sequence[str]) -> str:
    return _MADE + "".join(f"{module}\n" for module in modules)


def not_in_use(options: Sequence[str], used: Mapping[str, str]) -> str:
    """The first option that the loaded module has otherwise, for a message. used: of Driver. Options that it does not print are passed
    over."""
    for option in options:
        found = _OPTION.fullmatch(option)
        if found and found.group(1) == "nvidia" and found.group(2).startswith(_PARAMETER):
            name, wanted = found.group(2)[len(_PARAMETER) :], found.group(3).replace('"', "")
            if name in used and used[name] != wanted:
                return f"the loaded kernel module has {name}={used[name][:40]!r}, {wanted[:40]!r} is configured"
    return ""
