# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of a device plugin in the cluster, by its pod or the template of its pods.

Pure.
"""

from __future__ import annotations

from typing import Any, Mapping

from .._cluster.names import ANNOTATION_SETTINGS
from .._formats.config_document import field


def setting(pod: Mapping[str, Any], key: str, option: str) -> str:
    """The value of a field of its settings, "" without it. option: by which gpushare 0.1 gave it."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(ANNOTATION_SETTINGS)
    if isinstance(text, str):
        value = field(text, key)
        return value if isinstance(value, str) else ""
    containers = (pod.get("spec") or {}).get("containers") or []
    words = [str(word) for container in containers for word in container.get("args") or []]
    return next((word[len(option) + 1 :] for word in words if word.startswith(f"{option}=")), "")
