# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's CDI specs of a host, read as text: a host has no YAML parser.

Read-only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List

from .._formats.versions import numbers
from .._host.host import Host

#: The version that nvidia-ctk and nvidia-container-runtime print, which make and use them.
TOOLKIT_SAYS = re.compile(r"version:? v?([0-9]+\.[0-9]+\.[0-9]+(?:[-~]rc\.?[0-9]+)?)")
FOLDERS = ("/etc/cdi", "/var/run/cdi")
_KIND = re.compile(r"[\"']?kind[\"']?\s*:\s*[\"']?([\w.-]+/[\w.-]+)")
_VERSION = re.compile(r"[\"']?cdiVersion[\"']?\s*:\s*[\"']?([0-9.]{1,16})")
# The fields that version 0.7.0 of the specification brought (cncf-tags/container-device-interface, SPEC.md, 2024-02). A reader of older
# ones rejects the version and the field, and with it the whole file.
_NEWER, _NEWER_FIELD = (0, 7), re.compile(r"[\"']?(?:additionalGids|intelRdt)[\"']?\s*:")
_HOST_PATH = re.compile(r"[\"']?(?:hostPath|path)[\"']?\s*:\s*[\"']?(/[^\"',\s}]+)")
_GPU = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LIBRARY = re.compile(r"/lib(?:nvidia-ml|cuda)\.so\.([0-9]+(?:\.[0-9]+)+)")


@dataclass(frozen=True)
class FoundSpec:
    """A spec of nvidia.com/gpu. gpus: UUIDs. versions: of the driver, by its libraries. missing: paths that the host lacks.

    newer: whether only readers of version 0.7.0 of the specification or newer take it.
    """

    path: str
    gpus: List[str]
    versions: List[str]
    missing: List[str]
    newer: bool


def specs(host: Host) -> List[FoundSpec]:
    """Each spec of nvidia.com/gpu."""
    found = []
    for folder in FOLDERS:
        for name in host.names(folder):
            text = host.text(f"{folder}/{name}") if name.endswith((".yaml", ".json")) else None
            kind = _KIND.search(text or "")
            if text is None or kind is None or kind.group(1) != "nvidia.com/gpu":
                continue
            version = _VERSION.search(text)
            paths = sorted(set(_HOST_PATH.findall(text)))
            found.append(
                FoundSpec(
                    path=f"{folder}/{name}",
                    gpus=sorted(set(_GPU.findall(text))),
                    versions=sorted(set(_LIBRARY.findall(text))),
                    missing=[path for path in paths if not host.exists(path)],
                    newer=bool(_NEWER_FIELD.search(text) or (version and (numbers(version.group(1)) or ()) >= _NEWER)),
                )
            )
    return found
