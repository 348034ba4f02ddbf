# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module on the host, which sets no variables by it; where a bundle has the packages, send them to a host that lacks one."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._answers import ask, with_changes
from ..plugin_utils._bundle.archive import opened
from ..plugin_utils._bundle.contents import BundleError
from ..plugin_utils._bundle.send import send
from ..plugin_utils._preflight.host import packages_label

_MODULE = "gpushare.kubernetes.gpushare_packages"


class ActionModule(ActionBase):
    """One call, and a second one with the files."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = {name: value for name, value in self._task.args.items() if name != "received"}
        result = ask(self, task_vars, _MODULE, arguments)
        system = result.pop("system", {})
        if not result.pop("missing", False):
            return with_changes(result)
        label = packages_label(str(system["id"]), system["like"], str(system["version"]))
        try:
            with opened(str(arguments["bundle"]), str(arguments.get("bundle_key") or "")) as bundle:
                names = bundle.contents.packages(label, str(system["architecture"]))
                if not names:
                    seen = f"no packages for {label} on {str(system['architecture'])[:80]}"
                    cure = "make the bundle with them (gpushare_bundle_packages), or install them on the host by hand"
                    raise BundleError(seen, "those that this host lacks", cure)
                received = send(self, bundle, names)
        except BundleError as error:
            # `failed_when` of the task does not see an exception.
            return {"changed": False, "failed": True, "msg": str(error)}
        return ask(self, task_vars, _MODULE, {**arguments, "received": received})
