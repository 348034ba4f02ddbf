# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The lines of docs/use/frameworks.md, run as they stand there, against what was worked out by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import REPOSITORY, section, steps

PAGE, TEST = "docs/use/frameworks.md", "tests/unit/test_frameworks.py"
# Units of the container and of the GPU, MiB of a unit, MiB that the driver reports as the GPU's → PyTorch's fraction, TensorFlow's MiB,
# vLLM's fraction, Triton's bytes.
CASES = {
    ("4", "16", "", "16384"): (0.2125, 3481, "0.213", 1073741824),
    ("8", "80", "1024", "81920"): (0.0925, 7577, "0.093", 2147483648),
    ("64", "256", "64", "16384"): (0.2125, 3481, "0.213", 1073741824),
    ("1", "16", "256", "4096"): (0.0, 256, "0.000", 67108864),
    # The driver's limit: of a pod with one container, and of one whose other container has 5 units.
    ("4", "16", "", "4096"): (0.85, 3481, "0.850", 1073741824),
    ("64", "256", "64", "4096"): (0.85, 3481, "0.850", 1073741824),
    ("3", "16", "", "8192"): (0.3, 2457, "0.300", 805306368),
}
STAND_INS = {
    "torch": """
import os
class cuda:
    is_available = staticmethod(lambda: True)
    mem_get_info = staticmethod(lambda device=0: (0, int(os.environ["TOTAL_MIB"]) << 20))
    set_per_process_memory_fraction = staticmethod(lambda fraction, device: print(f"{fraction:.6f} {device}"))
""",
    "tensorflow": """
class config:
    LogicalDeviceConfiguration = staticmethod(lambda memory_limit: memory_limit)
    list_physical_devices = staticmethod(lambda kind: [kind])
    set_logical_device_configuration = staticmethod(lambda gpu, limits: print(gpu, *limits))
""",
}


def block(title: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", section(PAGE, title), re.DOTALL)
    assert found
    return found[1]


def run(command: list[str], folder: Path, case: tuple[str, str, str, str]) -> str:
    container, gpu, unit, total = case
    known = {"ALIYUN_COM_GPU_MEM_CONTAINER": container, "ALIYUN_COM_GPU_MEM_DEV": gpu, "TOTAL_MIB": total}
    known |= {"UNIT_MIB": unit} if unit else {}
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(folder), **known}
    return subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_lines_of_each_framework_make_its_share(case: tuple[str, str, str, str], tmp_path: Path) -> None:
    fraction, mib, utilization, pool = CASES[case]
    for name, text in STAND_INS.items():
        (tmp_path / f"{name}.py").write_text(text)
    for name in ("vllm", "tritonserver"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tmp_path / name).chmod(0o755)
    found, device = run([sys.executable, "-c", block("PyTorch", "python")], tmp_path, case).split()
    assert (float(found), device) == (pytest.approx(fraction, abs=1e-5), "0")
    assert run([sys.executable, "-c", block("TensorFlow", "python")], tmp_path, case).split() == ["GPU", str(mib)]
    total, vllm, triton = (step.command for step in steps(PAGE, TEST))
    assert run(["sh", "-c", f"{total}\n{vllm}"], tmp_path, case).split()[-2:] == ["--gpu-memory-utilization", utilization]
    assert run(["sh", "-c", triton], tmp_path, case).split()[-1] == f"--cuda-memory-pool-byte-size=0:{pool}"


def test_the_values_on_the_page_are_those_of_its_example() -> None:
    for text in ("# 0.2125 or 0.85", "# MiB: 3481", "# 0.213 or 0.850", "# 1073741824"):
        assert text in (REPOSITORY / PAGE).read_text()
