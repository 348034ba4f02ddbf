# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of a host's device strategy, with the state of its device plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from .._daemon.mps import Place, present
from .._facts.device_strategy import AUTO, STRATEGIES, CdiFacts, PlannedInstalls
from .._facts.driver import driver
from .._facts.node import strategy
from .._formats.answers import ModuleAnswer
from .._host.host import Host
from .._host.systemd import UNITS
from .._identity.token import TokenClaims, ask_api_server, own_token

ARGUMENTS: Dict[str, Dict[str, Any]] = {
    "asked": {"type": "str", "choices": [AUTO, *STRATEGIES], "default": AUTO},
    "toolkit": {"type": "bool", "default": True},
    "required": {"type": "bool", "default": False},
    "token_path": {"type": "path", "no_log": False},
    "kubeconfig_path": {"type": "path"},
    "brings_spec": {"type": "bool", "default": False},
    "brings_runtime": {"type": "bool", "default": False},
    "root": {"type": "path", "default": "/"},
}


@dataclass(frozen=True)
class StrategyAnswer(ModuleAnswer):
    """The answer of gpushare_sharing about the strategy. now: of the device plugin, "" for none. mps: units. driver: the version that is
    loaded. own: the device plugin's token.
    """

    strategy: str
    now: str
    cdi: CdiFacts
    mps: List[str]
    driver: str
    own: Optional[TokenClaims]


def answer(module: Any) -> StrategyAnswer:
    """The strategy by the host's present state. It changes nothing."""
    params = module.params
    host, brings = Host(params["root"]), PlannedInstalls(spec=params["brings_spec"], runtime=params["brings_runtime"])
    chosen, obstacles = strategy(host, params["asked"], brings, params["toolkit"])
    if params["required"] and obstacles:
        module.fail_json(msg=". ".join(obstacles))
    try:
        own = own_token(params["token_path"], params["kubeconfig_path"], ask_api_server) if params["token_path"] else None
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}; expected a file that root can read")
    return StrategyAnswer(False, **chosen, mps=present(Place(host.outside(UNITS))), driver=driver(host).loaded or "", own=own)
