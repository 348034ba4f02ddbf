# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of modules that follow variables of the inventory, so that roles do not name them, and what preflight asks for each plan.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...module_utils._cluster.names import PLUGIN

#: By module, its options with their variables, unless a task says otherwise. tools/shared_variables.py reads this.
VARIABLES: Mapping[str, Mapping[str, str]] = {
    "container_runtime": {
        "state": "gpushare_container_runtime_state",
        "runtime": "gpushare_container_runtime_name",
        "default_runtime": "gpushare_default_runtime",
        "program": "gpushare_container_runtime_program",
        "unit": "gpushare_container_runtime_unit",
        "config": "gpushare_container_runtime_config",
        "timeout": "gpushare_container_runtime_timeout",
        "allow_container_kill": "gpushare_container_runtime_allow_container_kill",
    },
    "gpushare_toolkit": {"asked": "gpushare_device_strategy", "minimum": "gpushare_toolkit_minimum"},
    "gpushare_verify_host": {
        "install_dir": "gpushare_install_dir",
        "extender_port": "gpushare_extender_port",
        "extender_weight": "gpushare_extender_weight",
        "extender_http_timeout": "gpushare_extender_http_timeout",
        "preemption": "gpushare_preemption",
        "memory_unit": "gpushare_memory_unit",
        "device_strategy": "gpushare_device_strategy",
        "minimum_driver": "gpushare_minimum_driver",
        "expect_gpus": "gpushare_expect_gpus",
        "expect_memory_mib": "gpushare_expect_memory_mib",
        "scheduler_manifest": "gpushare_scheduler_manifest",
        "scheduler_config": "gpushare_scheduler_config",
        "runtime_unit": "gpushare_container_runtime_unit",
        "runtime_default": "gpushare_default_runtime",
        "runtime_config": "gpushare_container_runtime_config",
    },
}
_STRATEGY = "gpushare_device_strategy"
#: By the name of a plan, further arguments by the variables of the host. Roles ask the same; where they do not, they ask the host.
_OWN: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "container_runtime.strategy": lambda known: {"asked": known[_STRATEGY], "toolkit": False, "brings_runtime": True},
    "python_environment": lambda known: {"root": known["gpushare_install_dir"], "python": known["gpushare_python"], "link": False},
    "device_plugin.look": lambda known: {
        "asked": known[_STRATEGY],
        "required": True,
        "token_path": f"/var/lib/{PLUGIN}/token",
        "kubeconfig_path": f"{known['gpushare_config_dir']}/device-plugin.kubeconfig",
    },
}


def asked(name: str, operation: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a plan's operation, before those that other plans decide. known: the variables of the host."""
    followed = {option: known[variable] for option, variable in VARIABLES.get(operation, {}).items()}
    return {**followed, **(_OWN[name](known) if name in _OWN else {})}
