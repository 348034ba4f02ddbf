# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The root of the errors of this package. Every folder may import it, and it imports only the standard library."""

from __future__ import annotations

import re
from typing import Any, Final

_HUMP: Final = re.compile("(?<!^)(?=[A-Z])")


class GpushareError(Exception):
    """An error whose text says what was found, what was expected and what to do. reason: a word that stays when the text changes.

    The reason of a class is its name without Error: NotSentError has not-sent. An error that its callers tell apart has its own.
    """

    reason: str = "gpushare"

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "reason" not in cls.__dict__:
            cls.reason = _HUMP.sub("-", cls.__name__.removesuffix("Error")).lower()
