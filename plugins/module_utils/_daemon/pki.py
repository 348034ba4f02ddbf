# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificates between kube-scheduler and the extender of a host, or of its dashboard, as gpushare-pki makes and reports them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import List, Optional, Sequence

from .._cluster.names import CERTIFICATES, DASHBOARD_CERTIFICATES
from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.failure import Failure
from .._host.command import Run


class PkiError(Failure):
    """gpushare-pki failed; the message has its words."""


@dataclass(frozen=True)
class Pki:
    """changed: the files that are, or would be, made again."""

    changed: List[str]

    def diff(self) -> DiffPart:
        """In Ansible's form; names only."""
        return {"before": "", "after": "".join(f"made anew: {name}\n" for name in self.changed)}


@dataclass(frozen=True)
class CertificatesMade(ModuleAnswer):
    """The answer of gpushare_daemon about certificates. files: those that were made again."""

    files: List[str]
    diff: DiffPart


def command(program: str, folder: str, verb: str, reload_unit: str, names: Optional[Sequence[str]] = None) -> List[str]:
    """The call of gpushare-pki. verb: "plan" or "ensure"; names: of the dashboard, None for the certificates of the extender."""
    purpose = [] if names is None else ["--for", "dashboard", *(word for name in names for word in ("--name", name))]
    return [program, verb, "--dir", folder, *purpose, *(["--reload", reload_unit] if verb == "ensure" and reload_unit else [])]


def ask(run: Run, argv: List[str]) -> Pki:
    """The program's report of what it did or would do. PkiError with its message."""
    status, out, err = run(argv)
    if status != 0:
        raise PkiError(f"{' '.join(argv)} failed with exit status {status}: {(err or out).strip()}")
    try:
        return Pki(list(json.loads(out)["changed"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PkiError(f"{' '.join(argv)} must print JSON with `changed`; it printed {out[:200]!r}") from error


def missing(folder: str, dashboard: bool = False) -> Pki:
    """The files that would be made where the program is not installed yet: every file that is not there."""
    names = DASHBOARD_CERTIFICATES if dashboard else CERTIFICATES
    return Pki([name for name in names if not os.path.exists(os.path.join(folder, name))])
