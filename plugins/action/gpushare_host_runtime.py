# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a host which images it lacks, and send these."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

from ..plugin_utils._answers import ask
from ..plugin_utils._bundle.archive import opened
from ..plugin_utils._bundle.contents import BundleError
from ..plugin_utils._bundle.send import place, send

#: Options that are set here.
_OWN = ("received", "sha256", "wanted")


class ActionModule(ActionBase):
    """One call, and a second one with the archives."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = {name: value for name, value in self._task.args.items() if name not in _OWN}
        if arguments.get("bundle"):
            return self._images(arguments, task_vars)
        return self._image(arguments, task_vars) if arguments.get("archive") else ask(self, task_vars, None, arguments)

    def _images(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Those of a bundle."""
        try:
            with opened(str(arguments["bundle"]), str(arguments.get("bundle_key") or "")) as bundle:
                arguments["wanted"] = [asdict(image) for image in bundle.contents.images]
                result = ask(self, task_vars, None, arguments)
                missing = result.pop("missing", [])
                if not missing:
                    return result
                known = {image.file for image in bundle.contents.images}
                received = send(self, bundle, [name for name in missing if name in known])
        except BundleError as error:
            raise AnsibleActionFail(str(error)) from error
        return ask(self, task_vars, None, {**arguments, "received": received})

    def _image(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """The one that `make image` has made, for k3s or RKE2."""
        try:
            archive = Path(self._find_needle("files", str(arguments["archive"])))
            with archive.open("rb") as stream:
                arguments["sha256"] = hashlib.file_digest(stream, "sha256").hexdigest()
        except (AnsibleError, OSError) as error:
            raise AnsibleActionFail(f"gpushare_image_archive cannot be read on the controller: {error}") from error
        result = ask(self, task_vars, None, arguments)
        if not result.pop("missing", False):
            return result
        (path,) = place(self, {"gpushare.tar": archive})
        return ask(self, task_vars, None, {**arguments, "received": {"path": path, "sha256": arguments["sha256"]}})
