# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Playbooks through Ansible itself, with their hosts on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from results import reserved_keys

ROOT = Path(__file__).resolve().parents[2]

# Group to host to its variables.
Hosts = dict[str, dict[str, dict[str, Any]]]
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}


def play(folder: Path, playbook: Path, hosts: Hosts, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """As `play_with_liars`, and no result may have a key that Ansible reserves."""
    done = play_with_liars(folder, playbook, hosts, *arguments, **variables)
    found = reserved_keys(done.stdout + done.stderr)
    assert found == [], found
    return done


def play_with_liars(folder: Path, playbook: Path, hosts: Hosts, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a playbook."""
    inventory = {"all": {"vars": LOCAL | variables, "children": {group: {"hosts": members} for group, members in hosts.items()}}}
    (folder / "hosts.json").write_text(json.dumps(inventory))
    return subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", folder / "hosts.json", playbook, *arguments],
        env=os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCAL_TEMP": str(folder / "tmp")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
