# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a host: nvidia-smi's report, with the pod of each process, and the cause where it reports none.

Read-only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from .._host.host import Host
from .diagnosis import Surroundings, refine
from .driver import driver, pci
from .nvidia_smi import ARGUMENTS, CAPABILITIES, LIST, TIMEOUT, Process, SmiReport, report, with_instances
from .pods import Pods
from .system import kernel


def gpus(host: Host, program: str = "nvidia-smi", timeout: float = TIMEOUT) -> SmiReport:
    """Ask nvidia-smi, at most for `timeout` seconds."""
    outcome = host.ask(host.program(program), ARGUMENTS, timeout)
    parts = driver(host)
    found = report(outcome, parts.container)
    if any(gpu.mig_devices for gpu in found.gpus):
        listed = host.ask(host.program(program), LIST, timeout)
        found = with_instances(found, listed.out if listed is not None else "", host.text(CAPABILITIES) or "")
    pods = Pods(host)
    problem = found.problem
    if problem is not None:
        problem = refine(problem, Surroundings(parts, pci(host), kernel(host), lambda: _kernel_log(host)))
    known = (replace(gpu, processes=tuple(_with_pod(process, pods) for process in gpu.processes)) for gpu in found.gpus)
    return replace(found, gpus=tuple(known), problem=problem)


def _with_pod(process: Process, pods: Pods) -> Process:
    pod = pods.of(process.pid)
    return process if pod is None else replace(process, pod_uid=pod.uid, pod_namespace=pod.namespace, pod_name=pod.name)


def _kernel_log(host: Host) -> Optional[str]:
    outcome = host.ask(host.program("dmesg"), [])
    return outcome.out if outcome is not None and outcome.ok else None
