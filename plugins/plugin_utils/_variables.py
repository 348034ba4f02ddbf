# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The public variables of this collection: the options of all its roles' argument specifications, read where they stand.

Private to this collection, used on the controller only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator  # type: ignore[import-untyped]

COLLECTION = Path(__file__).resolve().parents[2]
# Every worker of Ansible reads them anew, for each host.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FOR_READERS = ("description", "version_added")


@dataclass(frozen=True)
class Variable:
    """One variable. spec: its argument specification; roles: those that read it."""

    name: str
    spec: Mapping[str, Any]
    roles: tuple[str, ...]


def role_options(role: Path) -> dict[str, dict[str, Any]]:
    """The options of a role, over all of its entry points; empty for a role without specification."""
    path = role / "meta" / "argument_specs.yml"
    if not path.is_file():
        return {}
    entry_points = (yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader) or {}).get("argument_specs") or {}
    return {name: option for entry in entry_points.values() for name, option in ((entry or {}).get("options") or {}).items()}


@lru_cache(maxsize=None)
def variables(collection: Path = COLLECTION) -> Mapping[str, Variable]:
    """Every public variable, by name."""
    found: dict[str, Variable] = {}
    for role in sorted((collection / "roles").iterdir()):
        for name, spec in role_options(role).items():
            before = found.get(name)
            found[name] = Variable(name, before.spec if before else spec, (*(before.roles if before else ()), role.name))
    return dict(sorted(found.items()))


def of_type(name: str, value: Any, spec: Mapping[str, Any]) -> tuple[Any, str]:
    """(the value as the roles will have it, "") or (None, why it cannot be)."""
    plain = {key: part for key, part in spec.items() if key not in _FOR_READERS}
    result = ArgumentSpecValidator({name: plain}).validate({name: value})
    if result.error_messages:
        return None, "; ".join(result.error_messages)
    return result.validated_parameters[name], ""
