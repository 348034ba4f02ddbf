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
from typing import Any, ClassVar

from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]


class Judge(ABC):
    """Judges one subject. options: those of the task, as an argument specification."""

    options: ClassVar[Mapping[str, Mapping[str, Any]]]

    def __init__(self, action: ActionBase, task_vars: dict[str, Any]) -> None:
        self._action, self._known = action, task_vars

    @abstractmethod
    def answer(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of the task. AnsibleActionFail."""
