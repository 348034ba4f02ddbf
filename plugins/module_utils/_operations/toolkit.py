# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of NVIDIA's container toolkit, for the device strategy that this chooses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from .._change.undo import Rejected
from .._daemon.mps import Place, present
from .._facts.device_strategy import AUTO, ENVIRONMENT, STRATEGIES, STRATEGY, CdiFacts, PlannedInstalls
from .._facts.node import strategy
from .._formats.answers import ABSENT, DiffPart, ModuleAnswer
from .._formats.nvidia_config import CONFIG
from .._formats.toml import TomlError
from .._host import command
from .._host.answering import changing
from .._host.host import Host
from .._host.systemd import UNITS
from .._toolkit.toolkit import WantedToolkit, converge, restore

ARGUMENTS: Dict[str, Dict[str, Any]] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "asked": {"type": "str", "choices": [AUTO, *STRATEGIES], "default": AUTO},
    "minimum": {"type": "str", "default": "1.19.1"},
    "cdi": {"type": "bool", "default": False},
    "comes": {"type": "bool", "default": False},
    "root": {"type": "path", "default": "/"},
}
#: Options to the variables of the inventory that they follow, unless a task says otherwise. tools/shared_variables.py reads this.
VARIABLES: Dict[str, str] = {"asked": STRATEGY, "minimum": "gpushare_toolkit_minimum"}


@dataclass(frozen=True)
class ToolkitAnswer(ModuleAnswer):
    """The answer of gpushare_toolkit. strategy, now, cdi, mps: as in StrategyAnswer, where the configuration is to be present."""

    files: List[str]
    notes: List[str]
    diff: List[DiffPart]
    strategy: Optional[str] = field(default=None, metadata=ABSENT)
    now: Optional[str] = field(default=None, metadata=ABSENT)
    cdi: Optional[CdiFacts] = field(default=None, metadata=ABSENT)
    mps: Optional[List[str]] = field(default=None, metadata=ABSENT)


def answer(module: Any) -> ToolkitAnswer:
    """Configure it. In check mode, the changes that would be made."""
    params = module.params
    host = Host(params["root"])
    # The role container_runtime goes by this choice, also where the rest fails.
    chosen: Dict[str, Any] = {}
    with changing(module, params["root"], chosen):
        if params["state"] == "absent":
            result = restore(host, command.run, module.check_mode)
        else:
            chosen.update(strategy(host, params["asked"], PlannedInstalls(spec=params["cdi"], runtime=True), toolkit=False)[0])
            chosen["mps"] = present(Place(host.outside(UNITS)))
            strict = chosen["strategy"] != ENVIRONMENT
            wanted = WantedToolkit(strict, params["minimum"], params["cdi"], params["comes"])
            try:
                result = converge(wanted, host, command.run, module.check_mode)
            except TomlError as error:
                raise Rejected(f"{CONFIG} cannot be read: {error}; nothing was changed: correct it") from error
    for warning in result.warnings:
        module.warn(warning)
    return ToolkitAnswer(result.changed, result.files, result.notes, result.diff, **chosen)
