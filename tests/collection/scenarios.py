# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The scenarios below molecule/: what each of them must consist of, and running them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from timeline import span
from tree import REPOSITORY

FOLDER = REPOSITORY / "molecule"
# In the order of an installation, as they share a cluster.
ON_LAB = (
    "preflight",
    "nvidia_driver",
    "python_environment",
    "extender",
    "container_runtime",
    "kubelet",
    "device_plugin",
    "admission",
    "scheduler",
    "kubectl_inspect",
    "verify",
    # After verify, which finds a dashboard that the inventory does not have.
    "dashboard",
)
ANYWHERE = ("fake-root",)
# The bundle is made on a controller: tests/offline. The objects belong to admission, extender and device_plugin. For mps it matters what
# pods get: tests/e2e/test_mps.py. Packages need repositories: tests/packages. The others need something to take out, to take over or to
# report: tests/installer.
ELSEWHERE = {"bundle", "cluster_objects", "in_cluster", "mps", "nvidia_container_toolkit", "report", "take_over", "uninstall"}
STEPS = ("syntax", "check", "converge", "idempotence", "verify")


def problems(folder: Path, roles: Iterable[str]) -> list[str]:
    """What is wrong with the scenarios in `folder`, in words: a file missing, a verify that cannot fail, a role without one."""
    found = [f"the role {role} has no scenario" for role in sorted(set(roles) - set(ON_LAB) - ELSEWHERE)]
    found += [f"{path.name} is no scenario that is run" for path in folder.iterdir() if path.name not in (*ON_LAB, *ANYWHERE)]
    for scenario in (*ON_LAB, *ANYWHERE):
        for name in ("molecule.yml", "converge.yml", "verify.yml"):
            if not (folder / scenario / name).is_file():
                found.append(f"{scenario} has no {name}")
            elif name == "verify.yml" and not _can_fail(yaml.safe_load((folder / scenario / name).read_text())):
                found.append(f"{scenario}/verify.yml has no assertion about anything that it has looked at")
    return found


def _can_fail(thing: Any) -> bool:
    """Whether a playbook asserts something of what its tasks have found."""
    if isinstance(thing, list):
        return any(map(_can_fail, thing))
    if not isinstance(thing, dict):
        return False
    claims = (thing.get("ansible.builtin.assert") or {}).get("that", [])
    if any(_names(str(claim)) for claim in (claims if isinstance(claims, list) else [claims])):
        return True
    return any(map(_can_fail, thing.values()))


def _names(claim: str) -> set[str]:
    """The variables that it speaks of; a constant names none."""
    words = re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", claim))
    return set(words) - {"True", "true", "False", "false", "none", "not", "and", "or", "is", "in", "defined"}


def run(scenario: str, inventory: str = "", seconds: float = 600) -> tuple[list[str], str]:
    """`molecule test` of one scenario: what went wrong, in words, and all that it printed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    own |= {"PATH": f"{Path(sys.executable).parent}:{own['PATH']}", "MOLECULE_COMMAND_BORDERS": "0", "NO_COLOR": "1"}
    own |= {"MOLECULE_GLOB": "molecule/*/molecule.yml", "GPUSHARE_MOLECULE_INVENTORY": inventory}
    command = [str(Path(sys.executable).with_name("molecule")), "test", "--scenario-name", scenario]
    with span("playbook", f"molecule {scenario}"):
        done = subprocess.run(command, cwd=REPOSITORY, env=own, capture_output=True, text=True, timeout=seconds, check=False)
    output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    wrong = [f"molecule ended with {done.returncode}"] if done.returncode else []
    # A step without its playbook is a warning to molecule.
    wrong += [f"{step} was not done" for step in STEPS if not re.search(rf"{scenario} \S+ {step}: Executed: Successful", output)]
    return wrong, output
