# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that one of our daemons is made of, and when it is healthy with them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Callable, Dict, Mapping, Optional, Sequence

from .._change.transaction import Transaction
from .._identity.token import read_token, taken
from .service import Daemon, Health, apart, content_of

RUN = "/run"


@dataclass(frozen=True)
class DaemonFiles:
    """The files of a daemon as they shall be; None for content that stays as it is. copies: files that its unit copies for it.

    unit: names the environment that it runs from. secrets: path to content, "" for a file that shall not be there; the daemon reads them
    again by itself.
    """

    name: str
    unit: Optional[str]
    kubeconfig_path: str
    kubeconfig_content: Optional[str] = None
    seed_path: Optional[str] = None
    seed_content: Optional[str] = None
    token_path: Optional[str] = None
    copies: Sequence[str] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def copied(self) -> Dict[str, str]:
        """Each file that is copied, and where the process reads it."""
        return {path: os.path.join(RUN, self.name + "-copies", os.path.basename(path)) for path in self.copies}


def plan(wanted: DaemonFiles, daemon: Daemon, point: Callable[[str], None] = lambda name: None) -> Transaction:
    """The unit, and the kubeconfig and the seed where their content is known. Its settings have a hash of all that is read at the start.

    point: called at each point where a kill must be harmless.
    """
    transaction = Transaction(wanted.name, point=point)
    kubeconfig = wanted.kubeconfig_content
    if kubeconfig is None:
        found = content_of(wanted.kubeconfig_path)
        kubeconfig = None if found is None else found.decode()
    else:
        # It holds no secret; an administrator may put a kubeconfig of his own there, which may hold one.
        transaction.write(wanted.kubeconfig_path, kubeconfig.encode(), 0o600, secret=True)
    if wanted.seed_path and wanted.seed_content:
        transaction.write(wanted.seed_path, (wanted.seed_content.strip() + "\n").encode(), 0o600, secret=True)
    for path, content in sorted(wanted.secrets.items()):
        if content:
            transaction.write(path, (content.strip() + "\n").encode(), 0o600, secret=True)
        else:
            transaction.remove(path, secret=True)
    unit, settings = apart(wanted.unit or "", daemon.settings, [wanted.unit, kubeconfig])
    transaction.write(daemon.path, unit.encode(), 0o644)
    transaction.write(daemon.settings, settings.encode(), 0o644)
    return transaction


def health_of(wanted: DaemonFiles, url: Optional[str], ca: Optional[str], key: str, timeout: float) -> Health:
    """Its own report, and after a new seed the token that it has swapped it for."""
    seed = read_token(wanted.seed_content)

    def swapped() -> Optional[str]:
        own = content_of(wanted.token_path or "")
        if seed is None or taken(read_token(_text(own)), seed) or read_token(_text(content_of(wanted.seed_path or ""))) != seed:
            # In the last case the seed was restored to a former one.
            return None
        seen = "is missing" if own is None else "holds an older one"
        return f"it must get a token of its own with the new seed in {wanted.seed_path}; {wanted.token_path} {seen}"

    return Health(url, key, timeout, ca, swapped)


def _text(content: Optional[bytes]) -> Optional[str]:
    return None if content is None else content.decode("utf-8", "replace")
