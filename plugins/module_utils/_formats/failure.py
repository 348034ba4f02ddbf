# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The root of the errors of this collection: what a run tells people, and what programs and tests may rely on."""

from __future__ import annotations

import re
from typing import Any

_HUMP = re.compile("(?<!^)(?=[A-Z])")


class Failure(Exception):
    """An error whose text says what was found, what was expected and what to do. reason: a word that stays when the text changes.

    The reason of a class is its name: KubectlError has kubectl, NotRunningError not_running.
    """

    reason = "failure"

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "reason" not in cls.__dict__:
            cls.reason = _HUMP.sub("_", re.sub("Error$", "", cls.__name__).strip("_")).lower()
