# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-device-plugin in a process of its own, with GPUs from the fake NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# The command itself, with GPUs from the fake NVML.
_COMMAND = """
import sys
from gpushare_runtime.device_plugin.main import main
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml
sys.exit(main(sys.argv[1:], FakeNvml(16384, 16384)))
"""


def start(root: Path, *more: str, command: str = _COMMAND, first: str = "", **environment: str) -> subprocess.Popen[str]:
    given = os.environ | {"NODE_NAME": "gpu1", "KUBECONFIG": str(root / "kubeconfig"), "PYTHONPATH": os.pathsep.join(sys.path)}
    options = [
        "--kubelet-root",
        str(root / "data"),
        "--device-plugins-dir",
        str(root / "device-plugins"),
        "--state-dir",
        str(root / "state"),
        *more,
    ]
    arguments = [sys.executable, "-c", command, *([first] if first else []), *options]
    return subprocess.Popen(arguments, env=given | environment, stderr=subprocess.PIPE, text=True)
