# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a node: one half of a removal (first argument), which kills itself after its first step. Ends well once nothing is left."""

import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.host import plan_leftovers, plan_services
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.plan import Layout


def run(argv: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def point(name: str) -> None:
    if not name.startswith("before "):
        print(name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


plan = plan_services(Layout(), run) if sys.argv[1] == "services" else plan_leftovers(Layout(), False)
plan.apply(point)
print("nothing left")
