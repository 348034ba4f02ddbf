# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A connection to a stand-in host that starts no process: what Ansible sends is answered in its own worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure  # type: ignore[import-untyped]
from ansible.plugins.connection import ConnectionBase  # type: ignore[import-untyped]

DOCUMENTATION = """
name: answering
short_description: A stand-in host
description: Answers for the host with tools/bench/fleet/answers.py. The folder of the hosts is in E(FLEET_WORLD).
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - ansible.builtin.connection_pipelining
"""

sys.path.insert(0, os.environ["FLEET_WORLD"])
# The copy beside the hosts, which needs no package.
import answers  # type: ignore[import-not-found]  # noqa: E402


class Connection(ConnectionBase):  # type: ignore[misc]
    """Its address is the name of the host."""

    transport = "answering"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        if in_data is not None:
            world = answers.world(Path(os.environ["FLEET_WORLD"]))
            fault = world.faults.get(self._play_context.remote_addr)
            if fault == "unreachable":
                raise AnsibleConnectionFailure("Connection timed out")
            if fault == "garbage":
                return 0, b"\x00\xff{" * 100, b""
            if fault == "hang":
                time.sleep(3600)
            answer = world.answer(self._play_context.remote_addr, in_data)
            if fault == "drop" and json.loads(answer).get("changed"):
                raise AnsibleConnectionFailure("Connection reset by peer")
            return 0, answer, b""
        # Folders for files that are sent.
        done = subprocess.run(["/bin/sh", "-c", cmd], capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path: str, out_path: str) -> None:
        shutil.copy(in_path, out_path)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        shutil.copy(in_path, out_path)

    def close(self) -> Any:
        self._connected = False
