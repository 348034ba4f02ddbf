# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a control plane: the files that its kube-scheduler is run from. Read-only.

Plain JSON, judged on the controller, which has a YAML parser, by _verdict/control_plane.py.
"""

from __future__ import annotations

import hashlib
import posixpath
from typing import Any, Dict, Optional

from .._host.host import Host
from .._scheduler.manifest import config_paths

#: A manifest is some kB; a file of more in the manifests folder is none.
_MANIFEST_BYTES = 256 * 1024


def scheduler_files(host: Host, manifest: str, config: str) -> Dict[str, Any]:
    """The texts of the scheduler's manifest, of every other file that kubelet reads beside it and that names kube-scheduler, and
    of the configurations that the manifest may mean; with their SHA-256."""
    folder = posixpath.dirname(manifest)
    others = {}
    for name in host.names(folder):
        path = f"{folder}/{name}"
        # kubelet passes over names with a dot in front, and reads all the others, whatever they end in.
        if path == manifest or name.startswith("."):
            continue
        text = _text(host, path)
        if text is not None and "kube-scheduler" in text:
            others[path] = text
    text = host.text(manifest)
    configs = {path: _file(host, path) for path in sorted({config, *config_paths(text or "")})}
    return {"manifest": text, "others": others, "configs": configs}


def _text(host: Host, path: str) -> Optional[str]:
    data = host.data(path, _MANIFEST_BYTES)
    return None if data is None else data.decode("utf-8", "replace")


def _file(host: Host, path: str) -> Optional[Dict[str, str]]:
    data = host.data(path)
    return None if data is None else {"text": data.decode("utf-8", "replace"), "sha256": hashlib.sha256(data).hexdigest()}
