# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The other managers of the container toolkit, by the paths that a host has then: this collection leaves such a host alone."""

from __future__ import annotations

from .host import Host

MANAGERS = {
    "/etc/dgx-release": "DGX OS",
    "/usr/local/nvidia/toolkit/nvidia-container-runtime": "the GPU operator",
    "/run/nvidia/driver/usr/bin/nvidia-smi": "the GPU operator",
}


def toolkit_manager(host: Host) -> str:
    """The other manager of this host's toolkit, "" for none."""
    return next((name for path, name in MANAGERS.items() if host.exists(path)), "")
