# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether the files of the runtime are as pip installed them, by the hashes that it recorded."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpushare_runtime.doctor.findings import SITE, Findings

# Of a damaged installation so many files are named.
_NAMED: Final = 5


def judge_installed_files(found: Findings, environment: Path) -> None:
    """Whether the runtime's files are as pip recorded them when it installed them."""
    damaged, count = [], 0
    for packages in environment.glob("lib/python3*/site-packages"):
        for path, wanted in _recorded(packages):
            count += 1
            if _hash(packages / path) != wanted:
                damaged.append(path)
    cure = f"rm -r {environment}; then {SITE}: it is built again from the wheel"
    if damaged:
        more = len(damaged) - _NAMED
        seen = f"{', '.join(damaged[:_NAMED])}{f' and {more} more' if more > 0 else ''} in {environment} changed since it was installed"
        found.error("runtime_differs", seen, "the wheel's own files", cure)
    elif not count:
        found.error("runtime_differs", f"no record of the installed files in {environment}", "pip's, with their hashes", cure)


def _recorded(packages: Path) -> Iterator[tuple[str, str]]:
    """(path, hash) of each file of our package that the record has a hash of."""
    for record in packages.glob("gpushare_runtime-*.dist-info/RECORD"):
        for row in csv.reader(record.read_text("utf-8", "replace").splitlines()):
            if len(row) == 3 and row[1].startswith("sha256=") and ".py" in row[0]:
                yield row[0], row[1].removeprefix("sha256=")


def _hash(path: Path) -> str:
    """As pip writes it; "" for a file that cannot be read."""
    try:
        return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    except OSError:
        return ""
