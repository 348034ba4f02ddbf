# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vulnerabilities of NVIDIA's container toolkit by which a container reaches its host, and the release that ends each.

Private to this collection. Data: from NVIDIA's security bulletins, https://github.com/NVIDIA/product-security, row "Updated Version". To
bring it up to date, read the bulletins since READ_UP_TO, add their rows here and in the README of the role, and raise the minimum.
"""

from __future__ import annotations

from typing import List, NamedTuple, Sequence

from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers

#: Up to this day all bulletins about the toolkit are here.
READ_UP_TO = "2026-08-18"
_SHOWN = 3


class Advisory(NamedTuple):
    """cves: of one bulletin; fixed_in: the first version without them; bulletin: its number at NVIDIA; published: its day."""

    cves: Sequence[str]
    fixed_in: str
    bulletin: int
    published: str


#: The newest first.
ADVISORIES = (
    Advisory(("CVE-2026-24260",), "1.19.1", 5850, "2026-06-30"),
    Advisory(("CVE-2025-23266", "CVE-2025-23267"), "1.17.8", 5659, "2025-07-15"),
    Advisory(("CVE-2025-23359",), "1.17.4", 5616, "2025-02-11"),
    Advisory(("CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137"), "1.17.1", 5599, "2025-01-14"),
    Advisory(("CVE-2024-0134",), "1.17.0", 5585, "2024-11-05"),
    Advisory(("CVE-2024-0132", "CVE-2024-0133"), "1.16.2", 5582, "2024-09-25"),
)
#: The oldest version without any of them.
MINIMUM = "1.19.1"


def known_in(version: str) -> str:
    """What a version is vulnerable to, in words, the newest first; "" for nothing that is known."""
    open_: List[str] = [
        f"{cve} (fixed in {one.fixed_in})"
        for one in ADVISORIES
        if (numbers(version) or ()) < (numbers(one.fixed_in) or ())
        for cve in one.cves
    ]
    return ", ".join(open_[:_SHOWN]) + (f" and {len(open_) - _SHOWN} more" if len(open_) > _SHOWN else "")
