# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the runtime's wheel on the controller and send it to a host that does not have it yet, with its wheels if a bundle has them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils._formats.failure import Failure
from ..plugin_utils._answers import ask
from ..plugin_utils._bundle.archive import opened
from ..plugin_utils._bundle.contents import WHEELS, BundleError
from ..plugin_utils._bundle.lock import Target, chosen, names
from ..plugin_utils._bundle.send import place, send
from ..plugin_utils._secrets import mask_passwords
from ..plugin_utils._subjects.rows import foreseen
from ..plugin_utils._wheel import SOURCE, artifact, build_wheel, locked_requirements, wheel_hash

# Once: Ansible's main process imports this, and each host's task runs in a copy of that process, which would build the wheel again.
with contextlib.suppress(Failure, OSError):
    wheel_hash(Path(__file__).resolve().parents[2] / SOURCE)


class ActionModule(ActionBase):
    """Ask the module whether the host has the environment; only if not, send what it is made of and have it built."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        source = Path(str(arguments.get("source", ""))).resolve()
        try:
            hashes = artifact(source, str(arguments.get("extra") or ""))
        except (Failure, OSError) as error:
            raise AnsibleActionFail(str(error)) from error
        extra = arguments.pop("pip_extra_args", None) or []
        words = [extra] if isinstance(extra, str) else [str(word) for word in extra]
        mask_passwords(words)
        known = foreseen(task_vars or {}, "python_environment", {**arguments, "artifact": hashes})
        if known is not None:
            return known
        # One string, so that to hide it hides nothing else; and none instead of "[]", which stands in other output, too.
        made = {**hashes, "pip_extra_args": json.dumps(words)} if words else hashes
        result = self._module(arguments, made, task_vars)
        target = Target(result.pop("python_version", ""), result.pop("machine", ""))
        if not result.pop("missing", False):
            return result
        wheel, requirements = build_wheel(source), locked_requirements(source, str(arguments.get("extra") or ""))
        paths = place(self, {wheel.filename: wheel.content, "requirements.txt": requirements})
        sent = dict(zip(("wheel_path", "requirements_path"), paths, strict=True))
        if arguments.get("bundle"):
            sent |= self._send_wheels(arguments, requirements, target)
        return self._module(arguments, {**made, **sent}, task_vars)

    def _module(self, arguments: dict[str, Any], artifact: dict[str, str], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        return ask(self, task_vars, "gpushare.kubernetes.gpushare_runtime_env", {**arguments, "artifact": artifact})

    def _send_wheels(self, arguments: dict[str, Any], requirements: bytes, target: Target) -> dict[str, str]:
        """Those that this host installs, and no others."""
        try:
            with opened(str(arguments["bundle"]), str(arguments.get("bundle_key") or "")) as bundle:
                wheels, lacking = chosen(requirements.decode(), target, bundle.contents.wheels)
                if lacking:
                    cure = "make the bundle for it (gpushare_bundle_pythons, gpushare_bundle_architectures)"
                    raise BundleError(f"no wheel of {names(lacking)} for {target}", "each package of the lock", cure)
                sent = send(self, bundle, [f"{WHEELS}{name}" for name in wheels])
        except (Failure, ValueError) as error:
            raise AnsibleActionFail(str(error)) from error
        return {"wheels_path": sent["path"], "wheels_sha256": sent["sha256"]}
