# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The tarball of the collection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.cluster import REPOSITORY

COLLECTION = "home/.ansible/collections/ansible_collections/gpushare/kubernetes"


def release(folder: Path) -> Path:
    """The tarball of this tree."""
    program = Path(sys.executable).with_name("ansible-galaxy")
    command = [str(program), "collection", "build", "--output-path", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    (tarball,) = folder.glob("*.tar.gz")
    return tarball
