# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of the subjects of gpushare_judge.

Private to this collection, used on the controller only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail  # type: ignore[import-untyped]
from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.report import ReportError, write

KUBECTL: Mapping[str, Mapping[str, Any]] = {
    "kubectl": {"type": "str", "default": "kubectl"},
    "kubeconfig": {"type": "str", "default": "/etc/kubernetes/admin.conf"},
}
"""Options of a judge that has gpushare_api ask the API server."""


class Judge(ABC):
    """Judges one subject. options: those of the task, as an argument specification."""

    options: ClassVar[Mapping[str, Mapping[str, Any]]]

    def __init__(self, action: ActionBase, task_vars: dict[str, Any]) -> None:
        self._action, self._known = action, task_vars

    @staticmethod
    def write_report(path: str, report: Mapping[str, Any], variable: str) -> None:
        """Write it to a file on the controller, if there is to be one. variable: that names the file. AnsibleActionFail."""
        if path:
            try:
                write(Path(path), report, variable)
            except ReportError as error:
                raise AnsibleActionFail(str(error)) from error

    @abstractmethod
    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of the task. AnsibleActionFail."""
