# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a kubelet's arguments mean: the name of its node and its root folder.

Private to this collection. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

DEFAULT_ROOT = "/var/lib/kubelet"


@dataclass(frozen=True)
class Kubelet:
    """A kubelet of this host. pid is None when none runs: then the other values are kubelet's defaults."""

    pid: Optional[int]
    node_name: str
    root_dir: str


def from_argv(pid: Optional[int], argv: List[str], hostname: str) -> Kubelet:
    """What these arguments mean; kubelet lowers the case of its node's name."""
    name = _flag(argv, "hostname-override") or hostname
    return Kubelet(pid, name.strip().lower(), _flag(argv, "root-dir") or DEFAULT_ROOT)


def _flag(argv: List[str], name: str) -> Optional[str]:
    value = None
    for place, word in enumerate(argv):
        key, equals, rest = word.partition("=")
        if key == "--" + name:
            value = rest if equals else next(iter(argv[place + 1 : place + 2]), None)
    return value
