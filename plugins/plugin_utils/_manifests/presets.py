# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values for clusters of others: one file each in charts/gpushare/presets, which Helm takes as it is, and here as variables.

Reads the collection's own files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[3] / "charts/gpushare/presets"
_HUMP = re.compile("([A-Z])")
_READ = re.compile("^# read: (20[0-9]{2}-[01][0-9]-[0-3][0-9])$", re.MULTILINE)


@lru_cache(maxsize=None)
def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def read_days() -> dict[str, str]:
    """The day on which each one's source was read: the line `# read:` of its file."""
    texts = {name: (FOLDER / f"{name}.yaml").read_text(encoding="utf-8") for name in names()}
    return {name: _READ.findall(text)[0] for name, text in texts.items()}


def variable(value: str) -> str:
    """The variable of the role in_cluster for a value of the chart: kubeletRoot is gpushare_kubelet_root."""
    return "gpushare_" + _HUMP.sub(lambda hump: "_" + hump[1].lower(), value)


def variables(name: str) -> dict[str, Any]:
    """The variables of the role in_cluster that the preset of one of `names` sets."""
    values = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return {variable(key): value for key, value in values.items()}


def applied(settings: Mapping[str, Any], preset: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those of the preset in the place of defaults: other values stay. preset: "" for none."""
    own = variables(preset) if preset else {}
    return {name: own[name] if name in own and value == defaults[name] else value for name, value in settings.items()}
