# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the archive with the image to a host of k3s or RKE2 that does not have it yet."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import ask
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.send import place

_MODULE = "gpushare.kubernetes.gpushare_rancher"


class ActionModule(ActionBase):
    """One call, and a second one with the archive."""

    _requires_connection = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = {name: value for name, value in self._task.args.items() if name != "received"}
        if not arguments.get("archive"):
            return ask(self, task_vars, _MODULE, arguments)
        try:
            archive = Path(self._find_needle("files", str(arguments["archive"])))
            with archive.open("rb") as stream:
                received = {"sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        except (AnsibleError, OSError) as error:
            raise AnsibleActionFail(f"gpushare_image_archive cannot be read on the controller: {error}") from error
        result = ask(self, task_vars, _MODULE, {**arguments, "received": received})
        if not result.pop("missing", False):
            return result
        (received["path"],) = place(self, {"gpushare.tar": archive})
        return ask(self, task_vars, _MODULE, {**arguments, "received": received})
