# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/operate/offline.md: the release is installed without a network, and the page's folder of wheels has all that hosts need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from walks.pages import steps
from walks.test_tarball import COLLECTION, release

PAGE, TEST = "docs/operate/offline.md", "tests/quality/test_offline.py"
#: Nothing listens there: what connects to a server by HTTP fails.
NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
SECONDS = 600


def run(folder: Path, *command: str, **more: str) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))}
    environment: Mapping[str, str] = (
        own | {"HOME": str(folder / "home"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | more
    )
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.timeout(2 * SECONDS)
def test_hosts_without_a_network_install_from_the_folder_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    run(tmp_path, "ansible-galaxy", "collection", "install", str(release(tmp_path)), **NOWHERE)
    commands = [step.command for step in steps(PAGE, TEST)]
    assert len(commands) == 2
    run(tmp_path, "bash", "-euc", "\n".join(commands))
    runtime = tmp_path / COLLECTION / "files/gpushare_runtime"
    for requirements in ("requirements.txt", "requirements-kubectl.txt"):
        environment = tmp_path / requirements.removesuffix(".txt")
        run(tmp_path, sys.executable, "-m", "venv", str(environment))
        pip = (str(environment / "bin/pip"), "install", "--disable-pip-version-check", "--require-hashes", "--only-binary=:all:")
        # As the role python_environment calls it, with what the page sets.
        run(tmp_path, *pip, "--no-index", f"--find-links={tmp_path / 'wheels'}", "-r", str(runtime / requirements), **NOWHERE)
