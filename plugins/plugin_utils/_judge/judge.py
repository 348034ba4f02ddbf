# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of the subjects of gpushare_judge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]

from ...module_utils._formats.finding import ERROR, Finding
from .._preflight.reasons import summary
from .._report import blocks, lines_of, write

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

    def verdict(self, reasons: Sequence[Finding], report: str = "") -> dict[str, Any]:
        """The result of these reasons of preflight: a failure where one is an error, which the screen then shows. report: a file."""
        errors = [reason for reason in reasons if reason.severity == ERROR]
        whole = {"v": 1, "ok": not errors, "reasons": [reason.as_dict() for reason in reasons]}
        write(report, whole, "gpushare_preflight_report")
        result = {"changed": False, "warnings": lines_of(reason for reason in reasons if reason.severity != ERROR)}
        if not errors:
            return {**result, **whole}
        # Ansible prints the result of what failed once more, on one line: it has the sum only.
        self._action._display.display(f"{summary(reasons)}\n\n{blocks(errors)}\n")
        return dict(result, failed=True, ok=False, msg=summary(reasons))

    @abstractmethod
    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of the task. AnsibleActionFail."""
