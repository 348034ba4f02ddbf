# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""axe-core, the usual judge of accessibility: its release is pinned by version and hash, comes by npm, and is never committed."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

VERSION: Final = "4.14.1"
INTEGRITY: Final = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
_SECONDS: Final = 120


def axe_script() -> str:
    """Its JavaScript; "" where npm is not installed: the tests of the accessibility tree run all the same."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gpushare-lab", f"axe-core-{VERSION}.tgz")
    if not cache.exists():
        if not shutil.which("npm"):
            return ""
        with tempfile.TemporaryDirectory() as folder:
            command = ["npm", "pack", f"axe-core@{VERSION}", "--ignore-scripts", "--silent"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_SECONDS)
            [made] = Path(folder).glob("*.tgz")
            cache.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made, cache)
    data = cache.read_bytes()
    found = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != INTEGRITY:
        cache.unlink()
        raise AssertionError(f"found axe-core {VERSION} with hash {found}; expected {INTEGRITY}")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()
