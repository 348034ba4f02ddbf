# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make one archive with all that hosts without a network need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils._formats.failure import Failure
from ..plugin_utils._bundle.contents import MACHINES, PYTHONS
from ..plugin_utils._bundle.make import Recipe, make
from ..plugin_utils._bundle.packages import PackagesOf
from ..plugin_utils._secrets import mask_passwords

COLLECTION = Path(__file__).resolve().parents[2]
_PACKAGES = {
    "system": {"type": "str", "required": True},
    "architecture": {"type": "str", "choices": list(MACHINES), "default": "x86_64"},
    "names": {"type": "list", "elements": "str", "default": []},
    "folder": {"type": "path", "default": ""},
}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "folder": {"type": "path", "required": True},
    "pythons": {"type": "list", "elements": "str", "choices": list(PYTHONS), "default": []},
    "architectures": {"type": "list", "elements": "str", "choices": list(MACHINES), "default": []},
    "images": {"type": "list", "elements": "path", "default": []},
    "packages": {"type": "list", "elements": "dict", "default": [], "options": _PACKAGES},
    "sign": {"type": "str", "default": ""},
    "pip_extra_args": {"type": "list", "elements": "str", "default": []},
}


class ActionModule(ActionBase):
    """Reaches no host."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given = self.validate_argument_spec(argument_spec=_ARGUMENTS)[1]
        mask_passwords(given["pip_extra_args"])
        packages = (
            PackagesOf(host["system"], host["architecture"], host["folder"] or "", tuple(host["names"])) for host in given["packages"]
        )
        recipe = Recipe(
            root=COLLECTION,
            folder=Path(given["folder"]).absolute(),
            pythons=tuple(python for python in PYTHONS if python in given["pythons"] or not given["pythons"]),
            machines=tuple(machine for machine in MACHINES if machine in given["architectures"] or not given["architectures"]),
            images=tuple(Path(path).absolute() for path in given["images"]),
            packages=tuple(packages),
            pip=tuple(given["pip_extra_args"]),
            sign=given["sign"],
        )
        if self._task.check_mode:
            # The downloads decide whether its bytes would be others.
            return {"changed": True}
        try:
            made = make(recipe, self._display.display)
        except (Failure, OSError) as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": made.changed, "bundle": str(made.bundle), "sha256": made.sha256, "bytes": made.size, "files": made.files}
