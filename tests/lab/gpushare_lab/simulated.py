# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The simulated cards of a node: what a specification means, what is there, and changing it while all runs."""

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
def _cards() -> ModuleType:
    """cards.py of the simulated NVML, which is also a program and so lies outside of this package."""
    spec = util.spec_from_file_location("gpushare_lab_cards", SOURCES / "nvml/cards.py")
    assert spec
    assert spec.loader
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def state_text(cards: str, node: str, instance: str) -> str:
    """The state file for these cards; UUIDs depend on instance, node and index only."""
    module = _cards()
    try:
        return str(module.render(module.State(cards=tuple(module.cards_from_spec(cards, node, instance)))))
    except module.CardsError as error:
        raise LabError(f"{node}: {error}") from error


def replace_cards(instance: Instance, node: str, cards: str) -> None:
    """Replace a running node's cards: state file, device nodes, CDI spec; and remember them."""
    state_text(cards, node, instance.name)
    nodes.execute(instance, node, _SCRIPT, "set", "--cards", cards, "--node", node, "--seed", instance.name)
    save(instance.with_cards(node, cards))


def show_cards(instance: Instance, node: str) -> str:
    """A node's cards as JSON: index, uuid, minor, memory_mib, name, health."""
    return nodes.execute(instance, node, _SCRIPT, "show")
