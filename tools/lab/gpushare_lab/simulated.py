# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The simulated GPUs of a node: what a specification means, what is there, and changing it while all runs."""

from __future__ import annotations

import sys
from functools import cache
from importlib import util
from types import ModuleType

from . import nodes
from .places import SOURCES
from .process import LabError
from .state import Instance, save

_SCRIPT = "/usr/local/sbin/gpushare-lab-gpu"


@cache
def _gpus() -> ModuleType:
    """gpus.py of the simulated NVML, which is also a program and so lies outside of this package."""
    spec = util.spec_from_file_location("gpushare_lab_gpus", SOURCES / "nvml/gpus.py")
    assert spec
    assert spec.loader
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def state_text(gpus: str, node: str, instance: str) -> str:
    """The state file for these GPUs; UUIDs depend on instance, node and index only."""
    module = _gpus()
    try:
        return str(module.render(module.State(gpus=tuple(module.gpus_from_spec(gpus, node, instance)))))
    except module.GpusError as error:
        raise LabError(f"{node}: {error}") from error


def replace_gpus(instance: Instance, node: str, gpus: str) -> None:
    """Replace a running node's GPUs: state file, device nodes, CDI spec; and remember them."""
    state_text(gpus, node, instance.name)
    nodes.execute(instance, node, _SCRIPT, "set", "--gpus", gpus, "--node", node, "--seed", instance.name)
    save(instance.with_gpus(node, gpus))


def show_gpus(instance: Instance, node: str) -> str:
    """A node's GPUs as JSON: index, uuid, minor, memory_mib, name, health."""
    return nodes.execute(instance, node, _SCRIPT, "show")
