# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where the lab keeps things: the cache that all instances share, and each instance's state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: The folder of the lab's sources, which holds ``go``, ``node``, ``images`` and ``nvml``.
SOURCES = Path(__file__).resolve().parent.parent


def cache_root(env: Mapping[str, str]) -> Path:
    """The folder of the cache; it may not exist yet."""
    return _base(env, "XDG_CACHE_HOME", ".cache") / "gpushare-lab"


def state_root(env: Mapping[str, str]) -> Path:
    """The folder with one folder per instance; it may not exist yet."""
    return _base(env, "XDG_STATE_HOME", ".local/state") / "gpushare-lab"


def _base(env: Mapping[str, str], variable: str, fallback: str) -> Path:
    # The XDG specification says that relative paths in these variables are invalid and to be ignored.
    named = env.get(variable, "")
    return Path(named) if named.startswith("/") else Path(env.get("HOME") or "/root") / fallback
