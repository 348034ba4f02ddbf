# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's CDI specs of a host, read as text: a host has no YAML parser.

Private to this collection. Read-only.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List

from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host

FOLDERS = ("/etc/cdi", "/var/run/cdi")
_KIND = re.compile(r"[\"']?kind[\"']?\s*:\s*[\"']?([\w.-]+/[\w.-]+)")
_HOST_PATH = re.compile(r"[\"']?(?:hostPath|path)[\"']?\s*:\s*[\"']?(/[^\"',\s}]+)")
_GPU = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LIBRARY = re.compile(r"/lib(?:nvidia-ml|cuda)\.so\.([0-9]+(?:\.[0-9]+)+)")


def specs(host: Host) -> List[Dict[str, Any]]:
    """Each spec of nvidia.com/gpu: path, GPUs (UUIDs), versions (of the driver, by its libraries), missing (paths that the host lacks)."""
    found = []
    for folder in FOLDERS:
        for name in host.names(folder):
            text = host.text(f"{folder}/{name}") if name.endswith((".yaml", ".json")) else None
            kind = _KIND.search(text or "")
            if text is None or kind is None or kind.group(1) != "nvidia.com/gpu":
                continue
            paths = sorted(set(_HOST_PATH.findall(text)))
            found.append(
                {
                    "path": f"{folder}/{name}",
                    "gpus": sorted(set(_GPU.findall(text))),
                    "versions": sorted(set(_LIBRARY.findall(text))),
                    "missing": [path for path in paths if not host.exists(path)],
                }
            )
    return found
