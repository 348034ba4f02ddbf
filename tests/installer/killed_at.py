# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a node: the module's core, which kills itself at the point named by the first argument. Prints the points passed."""

import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import command
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.default_runtime import WantedRuntime, converge

victim, state = sys.argv[1:]


def point(name: str) -> None:
    print(name, flush=True)
    if name == victim:
        os.kill(os.getpid(), signal.SIGKILL)


def run(argv: list[str], timeout: float) -> command.Outcome:
    if argv[:2] == ["systemctl", "restart"]:
        if victim == "restarting":
            # What it says comes when it likes, and is not what this program was asked for.
            subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        point("restarting")
    return command.run(argv, timeout)


converge(WantedRuntime(state, "/usr/bin/nvidia-container-runtime", "containerd.service", None, 60, False), False, run, point)
