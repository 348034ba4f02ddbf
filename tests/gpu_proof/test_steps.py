# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The whole proof on simulated GPUs; and for each step a planted fault that it finds, with its reason."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from aiohttp import web

from gpu_proof import churn, limits
from gpu_proof.context import Context
from gpu_proof.findings import FAILED, NOT_POSSIBLE, RAN, Findings
from gpu_proof.simulated import MOST_SECONDS, Simulated
from gpu_proof.steps import STEPS
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from proof import CLAIMS
from unit.fakes.runtime.kube.fake_api import FakeApi
from unit.fakes.runtime.kube.fake_api import status as api_status


@pytest.fixture
def machine() -> Iterator[Simulated]:
    # pytest's own folders make paths that are too long for a unix socket.
    with TemporaryDirectory(prefix="sim-") as name:
        yield Simulated(Path(name))


def fails(machine: Simulated, step: str, fault: str = "") -> str:
    """Why that step fails with this fault of a stand-in."""
    if fault:
        machine.extra["PROOF_FAULT"] = fault
    status, report = machine.prove("--only", step)
    (found,) = report["steps"]
    assert (status, found["outcome"]) == (1, FAILED), found
    return str(found["why"])


def test_the_whole_of_it(machine: Simulated) -> None:
    machine.make()
    began = time.monotonic()
    status, report = machine.prove()
    outcomes = {one["name"]: (one["outcome"], one["why"]) for one in report["steps"]}
    # A driver of that age cannot do anything of it.
    assert outcomes.pop("visible")[0] == NOT_POSSIBLE
    assert outcomes == {step.name: (RAN, "") for step in STEPS if step.name != "visible"}
    assert (status, report["complete"]) == (0, True)
    assert time.monotonic() - began < MOST_SECONDS
    assert "NVIDIA A30" in (machine.out / "nvidia-smi.xml").read_text()
    found = {one["name"]: one for one in report["steps"]}
    # What the pages say is proven has checks of these names, but for those of a newer driver.
    names = {step: {check["name"] for check in one["checks"]} for step, one in found.items()}
    assert {claim for claim, (step, checks) in CLAIMS.items() if not names[step].issuperset(checks)} == {"limit by the driver"}
    assert len(found["sharing"]["values"]["throughput"]) == 6
    assert found["health"]["values"]["XID errors"] == ["31"]
    assert found["discovery"]["values"]["functions"]["nvmlDeviceGetUUID"]["calls"] > 1
    # What a driver of that age cannot, and nothing else.
    absent = {check["name"] for one in report["steps"] for check in one["checks"] if check["outcome"] == NOT_POSSIBLE}
    assert absent == {
        "GPU 0: memory limits by control group",
        "GPU 1: memory limits by control group",
        "memory limits of the driver",
        "what a program sees of its pod's limit",
    }


def test_discovery_finds_a_field_that_differs(machine: Simulated) -> None:
    machine.make()
    assert fails(machine, "discovery", "memory") == (
        "GPU 0: memory in MiB: found 24576, expected 25600; GPU 1: memory in MiB: found 24576, expected 25600"
    )
    assert "GPU 0: uuid: found GPU-" in fails(machine, "discovery", "uuid")


def test_discovery_finds_that_nvidia_smi_prints_no_xml(machine: Simulated) -> None:
    machine.make()
    assert "expected XML of nvidia-smi" in fails(machine, "discovery", "garbage")


def test_discovery_finds_a_gpu_that_does_not_answer(machine: Simulated) -> None:
    machine.make()
    machine.change(1, health="lost")
    assert "GPU 1 answers: found the GPU is lost" in fails(machine, "discovery")


def test_without_a_driver_nothing_is_possible_and_that_is_said(machine: Simulated) -> None:
    machine.make(driver="gone")
    status, report = machine.prove("--only", "discovery", "--only", "memory", "--only", "limits")
    assert status == 2
    for one in report["steps"]:
        assert one["outcome"] == NOT_POSSIBLE
        assert "modprobe nvidia" in one["why"]


@pytest.mark.parametrize(("changes", "why"), [({"mig_mode": 1}, "MIG mode is on"), ({"compute_mode": 3}, "found compute mode 3")])
def test_a_gpu_that_programs_cannot_share_is_left_as_it_is(machine: Simulated, changes: dict[str, int], why: str) -> None:
    machine.make("24")
    machine.change(0, **changes)
    _, report = machine.prove("--only", "memory", "--only", "sharing", "--only", "health")
    for one in report["steps"]:
        assert one["outcome"] == NOT_POSSIBLE
        assert why in one["why"]


def test_cdi_finds_a_stale_spec(machine: Simulated) -> None:
    machine.make()
    # Once it has written the spec, the hook that this names is gone.
    ctk = (machine.programs / "nvidia-ctk").resolve()
    machine.program("nvidia-ctk", f'{ctk} "$@" || exit; sed -i "s|/bin/nvidia-cdi-hook|/bin/moved-hook|" "${{5#--output=}}"')
    assert "is stale, the host has no" in fails(machine, "cdi")


def test_cdi_finds_that_nvidia_ctk_fails(machine: Simulated) -> None:
    machine.make()
    machine.program("nvidia-ctk", "echo no such option >&2; exit 1")
    assert "found status 1: no such option, expected status 0" in fails(machine, "cdi")


def test_plugin_finds_a_gpu_that_is_not_usable(machine: Simulated) -> None:
    machine.make()
    machine.change(0, compute_mode=2)
    assert "GPU 0: health: found its compute mode is Prohibited" in fails(machine, "plugin")


def test_memory_finds_a_driver_that_lists_less_than_is_allocated(machine: Simulated) -> None:
    machine.make()
    why = fails(machine, "memory", "leaks")
    assert "MiB of the program that holds 4096: found 2448, expected 4096 to 5632" in why
    assert "cgroupfs: MiB of the pod that holds 8192: found 4496, expected 8192 to 9728" in why
    assert "systemd: MiB of the pod that holds 8192: found 4496, expected 8192 to 9728" in why
    assert "cgroupfs: Event about the second pod: found 0, expected 1" in why


def test_limits_finds_a_daemon_that_does_not_keep_its_limit(machine: Simulated) -> None:
    machine.make()
    plant(machine, "forgets")
    assert "the daemon's memory limit is '' after 24576M was set" in fails(machine, "limits")


def test_limits_finds_a_program_that_gets_more_than_its_limit(machine: Simulated) -> None:
    machine.make()
    why = fails(machine, "limits", "greedy")
    assert "MPS: a program with its container's environment asks for 1 GiB more than its 4096 MiB: found not stopped at 5120 MiB" in why
    assert "by the daemon's default asks for 1 GiB more than its 4096 MiB: found not stopped at 5120 MiB" in why


def plant(machine: Simulated, fault: str) -> None:
    """A control daemon with this fault."""
    machine.extra["TMPDIR"] = str(machine.root)
    control = (machine.programs / "nvidia-cuda-mps-control").read_text()
    machine.program("nvidia-cuda-mps-control", f'printf {fault} > "$CUDA_MPS_PIPE_DIRECTORY/../fault"\n{control.splitlines()[1]}')


def test_kills_finds_what_a_kill_in_a_kernel_does_and_that_a_new_daemon_ends_it(machine: Simulated) -> None:
    machine.make()
    plant(machine, "wedges")
    status, report = machine.prove("--only", "kills")
    (found,) = report["steps"]
    assert (status, found["outcome"], found["why"]) == (0, RAN, "")
    after = {name: value for name, value in found["values"].items() if name.endswith("after a kill in a kernel")}
    assert after == {
        "MPS: another program after a kill in a kernel": "computes",
        "MPS: a new program after a kill in a kernel": "no answer within 15 s",
        "MPS: the canary after a kill in a kernel": "a new program hangs in cuInit (more than 15 s)",
    }


def test_kills_finds_a_termination_that_does_not_come_back(machine: Simulated) -> None:
    machine.make()
    plant(machine, "clings")
    why = fails(machine, "kills")
    assert "MPS: terminate_client for a program in the middle of a kernel: found no answer to 'terminate_client" in why


def test_kills_finds_a_variable_that_lifts_every_limit(machine: Simulated) -> None:
    machine.make()
    why = fails(machine, "kills", "unlimited")
    assert (
        "MPS_PINNED_DEVICE_MEM_LIMIT=0=2G,1=4G asks for 1 GiB more than the daemon's 4096 MiB: found 5120 MiB, expected it is stopped"
        in why
    )


class Limits:
    """NVML of a driver that keeps a limit, or does not, or cannot."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.set: list[tuple[str, int | None]] = []

    def limit_memory(self, uuid: str, group: str, most: int | None) -> None:
        if self.error:
            raise NvmlError(self.error, unable=True)
        self.set.append((uuid, most))


@pytest.mark.parametrize(
    ("allocated", "error", "outcome"),
    [(4096, "CUDA_ERROR_OUT_OF_MEMORY", RAN), (5120, "", FAILED), (1024, "CUDA_ERROR_OUT_OF_MEMORY", FAILED)],
)
def test_limits_finds_whether_the_driver_keeps_its_limit(tmp_path: Path, allocated: int, error: str, outcome: str) -> None:
    program = f'import sys\nfor _ in sys.stdin: print(\'{{"allocated_mib": {allocated}, "error": "{error}"}}\', flush=True)'
    context = Context(tmp_path, tmp_path, driver=(sys.executable, "-c", program))
    findings, nvml = Findings(), Limits()
    assert limits._with_driver(context, findings, nvml, "GPU-1")  # type: ignore[arg-type]
    assert findings.outcome == outcome
    assert nvml.set == [("GPU-1", 4096 * 2**20), ("GPU-1", None)], "the limit is taken away again"


def test_limits_of_a_driver_that_has_none_are_not_possible(tmp_path: Path) -> None:
    findings = Findings()
    assert not limits._with_driver(Context(tmp_path, tmp_path), findings, Limits("Not Supported"), "GPU-1")  # type: ignore[arg-type]
    assert (findings.outcome, findings.checks[0].found) == (NOT_POSSIBLE, "Not Supported")


def test_sharing_finds_programs_that_cannot_compute(machine: Simulated) -> None:
    machine.make()
    assert "none: chain by 1 programs: found ['CUDA_ERROR_LAUNCH_FAILED'], expected []" in fails(machine, "sharing", "fails")


def test_sharing_finds_that_it_costs_more_than_half(machine: Simulated) -> None:
    machine.make()
    assert "programs together, of one alone: found 0." in fails(machine, "sharing", "slow")


def test_use_finds_programs_of_which_the_driver_counts_nothing(machine: Simulated) -> None:
    machine.make()
    why = fails(machine, "use", "uncounted")
    assert "none: 4 programs: pods that are busy: found [], expected [0, 1, 2, 3]" in why
    assert "mps: 1 programs: pods are unknown" not in why, "nor are pods called idle while the GPU is busy"


def test_use_finds_that_nvidia_smi_says_something_else(machine: Simulated) -> None:
    machine.make()
    assert "none: 1 programs: pods of which nvidia-smi pmon says something else: found [(30.0, 60" in fails(machine, "use", "pmon")


def test_health_finds_that_no_xid_error_is_heard(machine: Simulated) -> None:
    machine.make()
    assert fails(machine, "health", "quiet") == "the plugin has heard an XID error within 10 s: found [], expected at least one"


def test_health_finds_a_fault_that_takes_the_gpu(machine: Simulated) -> None:
    machine.make()
    why = fails(machine, "health", "breaks")
    assert "XID errors that are not an application's: found ['79'], expected []" in why
    assert "healthy ids afterwards: found 24, expected 48" in why


def test_churn_finds_binds_that_fail_and_a_gpu_that_is_given_out_twice(machine: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.make()
    for name in ("GPUSHARE_LAB_NVML_STATE", "LD_LIBRARY_PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, machine.environment[name])
    (machine.root / "nvidia0").touch()
    (machine.root / "nvidia1").touch()
    monkeypatch.setenv("GPUSHARE_LAB_NVML_DEV", str(machine.root))
    context = Context(machine.root, machine.root, pods=12)

    def found() -> dict[str, Any]:
        findings = Findings()
        churn.run(context, findings)
        return {one.name: one.found for one in findings.checks if one.outcome == FAILED}

    async def refused(self: FakeApi, request: web.Request, body: dict[str, Any]) -> web.Response:
        return api_status(403, "Forbidden", "planned")

    with monkeypatch.context() as patch:
        patch.setattr(FakeApi, "_bind", refused)
        wrong = found()
    assert wrong["pods that ran"] == "0"
    assert "bind of churn-0: " in wrong["troubles"]
    assert "planned" in wrong["troubles"]

    start = churn.Churn.start

    async def doubled(self: churn.Churn, bound: dict[str, Any], units: int) -> bool:
        return await start(self, bound, units * 9)

    monkeypatch.setattr(churn.Churn, "start", doubled)
    assert " of 24" in found()["moments at which a GPU had given out more than it has"]
