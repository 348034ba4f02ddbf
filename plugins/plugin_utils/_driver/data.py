# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data of a host's distribution, from the files of the role nvidia_driver.

A file is called FAMILY_VERSION.yml, with the version as far as it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ...module_utils._driver.facts import HostFacts
from .._preflight.host import family_of

_VARIABLE = "__nvidia_driver_data"


def data_of(folder: Path, facts: HostFacts) -> Mapping[str, Any] | None:
    """None for a distribution, or a version of one, that has no file."""
    for name in _names(facts):
        path = folder / f"{name}.yml"
        if path.is_file():
            return read(path)
    return None


def read(path: Path) -> dict[str, Any]:
    """One file. `like` names another, of which it has what it does not have itself."""
    own: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))[_VARIABLE]
    like = own.pop("like", "")
    return _over(read(path.with_name(f"{like}.yml")), own) if like else own


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _over(base[key], own[key]) for key in base.keys() & own.keys() if isinstance(base[key], dict)}
    return {**base, **own, **both}


def _names(facts: HostFacts) -> Iterator[str]:
    family = family_of(facts.id, facts.like)
    if family is None or (family == "ubuntu") != (facts.id == "ubuntu"):
        # A derivative counts its versions in its own way.
        return
    version = "".join(letter for letter in facts.os_version if letter.isdigit() or letter == ".")[:16]
    if facts.id.startswith("opensuse"):
        yield f"opensuse_{version.partition('.')[0]}"
    yield f"{family}_{version}"
    yield f"{family}_{version.partition('.')[0]}"
