# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of a host's container runtime, as far as the chosen device strategy needs it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Dict, List

from .._change.engine import Converged
from .._change.undo import Rejected
from .._facts import kubernetes
from .._facts.device_strategy import CDI
from .._formats.answers import DiffPart, ModuleAnswer
from .._host.answering import changing
from .._host.container_runtimes import KINDS
from .._host.host import Host
from .._runtimes.default_runtime import WantedRuntime, converge

ARGUMENTS: Dict[str, Dict[str, Any]] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "runtime": {"type": "str", "choices": ["auto", *KINDS], "default": "auto"},
    "default_runtime": {"type": "str", "choices": ["auto", "nvidia", "unchanged"], "default": "auto"},
    "chosen": {"type": "dict", "default": {}},
    "program": {"type": "path", "default": "/usr/bin/nvidia-container-runtime"},
    "program_comes": {"type": "bool", "default": False},
    "unit": {"type": "str", "default": ""},
    "config": {"type": "path", "default": ""},
    "timeout": {"type": "int", "default": 60},
    "allow_container_kill": {"type": "bool", "default": False},
}
#: Options to the variables of the inventory that they follow, unless a task says otherwise. tools/shared_variables.py reads this.
VARIABLES: Dict[str, str] = {
    "state": "gpushare_container_runtime_state",
    "runtime": "gpushare_container_runtime_name",
    "default_runtime": "gpushare_default_runtime",
    "program": "gpushare_container_runtime_program",
    "unit": "gpushare_container_runtime_unit",
    "config": "gpushare_container_runtime_config",
    "timeout": "gpushare_container_runtime_timeout",
    "allow_container_kill": "gpushare_container_runtime_allow_container_kill",
}


@dataclass(frozen=True)
class RuntimeConfigured(ModuleAnswer):
    """The answer of container_runtime. restarted_at: by this host's clock, as is the heartbeat of its kubelet."""

    restarted: bool
    restarted_at: float
    why_restart: str
    files: List[str]
    notes: List[str]
    diff: List[DiffPart]


def answer(module: Any) -> RuntimeConfigured:
    """Configure it. In check mode, the changes that would be made."""
    params = dict(module.params)
    chosen = params.pop("chosen")
    by_cdi = params["state"] == "present" and chosen.get("strategy") == CDI
    params["cdi"] = by_cdi and bool((chosen.get("cdi") or {}).get("off"))
    with changing(module):
        # With CDI no container needs nvidia's runtime: a container runtime that passes CDI devices on is not changed and not restarted.
        is_fit = by_cdi and not params["cdi"] and params["default_runtime"] == "auto"
        result = Converged() if is_fit else converge(_wanted(params), module.check_mode)
    for warning in result.warnings:
        module.warn(warning)
    return RuntimeConfigured(result.changed, bool(result.why), time.time(), result.why, result.files, result.notes, result.diff)


def _wanted(params: Dict[str, Any]) -> WantedRuntime:
    return WantedRuntime(**dict(params, runtime=_runtime_of(params), config=params["config"] or None))


def _runtime_of(params: Dict[str, Any]) -> str:
    """The name of the container runtime that is asked for; with `auto`, of the one at kubelet's endpoint. It raises Rejected
    if it is none that can be configured.
    """
    if params["runtime"] != "auto":
        return str(params["runtime"])
    host = Host()
    found = kubernetes.kubelet(host, kubernetes.distribution(host))
    name = found.runtime or "containerd"
    if name not in KINDS and params["state"] == "present":
        raise Rejected(
            f"kubelet uses the container runtime {name} ({found.endpoint}), expected {' or '.join(KINDS)}; nothing was changed: make "
            "nvidia its default runtime by hand, or name another one in gpushare_container_runtime_name"
        )
    return name
