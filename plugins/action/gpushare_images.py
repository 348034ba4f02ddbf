# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a host which images of a bundle it lacks, and send these."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import ask
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.archive import opened
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.contents import BundleError
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.send import send

_MODULE = "gpushare.kubernetes.gpushare_images"


class ActionModule(ActionBase):
    """One call, and a second one with the archives."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = {name: value for name, value in self._task.args.items() if name not in ("received", "wanted")}
        try:
            with opened(str(arguments["bundle"]), str(arguments.get("bundle_key") or "")) as bundle:
                arguments["wanted"] = [asdict(image) for image in bundle.contents.images]
                result = ask(self, task_vars, _MODULE, arguments)
                missing = result.pop("missing", [])
                if not missing:
                    return result
                known = {image.file for image in bundle.contents.images}
                received = send(self, bundle, [name for name in missing if name in known])
        except BundleError as error:
            raise AnsibleActionFail(str(error)) from error
        return ask(self, task_vars, _MODULE, {**arguments, "received": received})
