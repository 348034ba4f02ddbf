# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The step `visible` on plain folders, with a program that is limited as the kernel's dmem does it; and the faults that it finds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpu_proof import visible
from gpu_proof.context import Context
from gpu_proof.findings import FAILED, RAN, Findings
from gpushare_runtime.device_plugin.gpu.container_limits import ContainerLimits
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml

WHOLE = 24576
# It finds its group as the folder that it has joined. Arguments: the top of all groups, the fault.
PROGRAM = """
import json, os, sys
from pathlib import Path
root, fault, held = Path(sys.argv[1]), sys.argv[2], 0
own = next(file.parent for file in root.rglob("cgroup.procs") if str(os.getpid()) in file.read_text().split())
def limit(group):
    most = (group / "dmem.max").read_text().split()[1]
    return 24576 if most == "max" else int(most) // 2**20
def used(group): return sum(int(file.read_text()) for file in group.rglob("used"))
def take(mib):
    global held
    if any(used(group) + mib > limit(group) for group in ([own] if fault == "does not nest" else [own, own.parent])):
        return "CUDA_ERROR_OUT_OF_MEMORY"
    held += mib
    (own / "used").write_text(str(held))
    return ""
for line in sys.stdin:
    name, *arguments = line.split()
    answer = {"error": ""}
    if name == "memory":
        answer["total_mib"] = 24576 if fault == "sees all" else limit(own)
    elif name == "hold":
        answer["error"] = "CUDA_ERROR_LAUNCH_FAILED" if fault == "fails" else take(int(arguments[0]))
    else:
        while held < int(arguments[1]) and not answer["error"]:
            answer["error"] = take(int(arguments[0]))
        answer["allocated_mib"] = held
    print(json.dumps(answer), flush=True)
(own / "used").unlink(missing_ok=True)
"""


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("", ""),
        ("sees all", "MiB in all that a program of container 1 sees: found 24576, expected 4096"),
        ("does not nest", "another container of the pod gets the rest and no more: found 4096 MiB, expected at most 2112 MiB"),
        ("fails", "a container of the pod allocates 2048 MiB: found CUDA_ERROR_LAUNCH_FAILED, expected "),
        ("no limit of containers", "MiB in all that a program of container 2 sees: found 24576, expected 4096"),
    ],
)
def test_it_finds_whether_the_leaf_is_seen_and_the_parent_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    nvml = FakeNvml(WHOLE)
    nvml.unlimited = None
    containers = [tmp_path / "pod" / name for name in ("a", "b")]
    for folder in containers:
        folder.mkdir(parents=True)
    for folder in (tmp_path / "pod", *containers):
        (folder / "dmem.max").write_text(nvml.dmem(str(folder)))
    if fault == "no limit of containers":
        monkeypatch.setattr(ContainerLimits, "took", lambda *_: None)
    findings = Findings()
    context = Context(tmp_path, tmp_path, driver=(sys.executable, "-c", PROGRAM, str(tmp_path), fault))
    visible.leaf_and_parent(context, findings, nvml, (nvml.gpus[0].uuid, nvml.gpus[0].pci), containers)
    wrong = [f"{one.name}: found {one.found}, expected {one.expected}" for one in findings.checks if one.outcome == FAILED]
    assert (findings.outcome, wrong == []) == (FAILED if fault else RAN, not fault)
    assert any(why in one for one in wrong) or not fault
    if not fault:
        assert list(findings.values.values()) == ["dmem", WHOLE], "with the pod's limit alone it sees the whole GPU"
    assert nvml.limits == {}, "the limits are taken away again"
