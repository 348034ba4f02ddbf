# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users and passwords in URLs: texts without them, and what of them is secret. Pure."""

from __future__ import annotations

import re
from typing import Iterable, List
from urllib.parse import unquote

# Up to the last @ before the path: a password may hold one, too.
_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,15}://)([^\s/'\"]{1,1024})@")
#: Texts of this length and shorter ones, such as a number, hide nothing and stand in many a word.
SHORT = 3


def without_credentials(text: str) -> str:
    """The text without what stands before an @ in URLs: an index may want a user and a password, and pip's own words repeat them."""
    return _CREDENTIALS.sub(r"\1***@", text)


def secrets_in(texts: Iterable[str]) -> List[str]:
    """The passwords of the URLs in these texts, as written and decoded. Of a short one, or of a user alone, what stands before the host."""
    found = []
    for text in texts:
        for _scheme, credentials in _CREDENTIALS.findall(text):
            password = credentials.partition(":")[2]
            found += [password, unquote(password)] if len(unquote(password)) > SHORT else [f"{credentials}@"]
    return list(dict.fromkeys(found))
