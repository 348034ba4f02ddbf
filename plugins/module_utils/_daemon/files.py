# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that one of our daemons is made of, and when it is healthy with them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .._change.engine import ChangePlan, LastWord, Recorded, Subject
from .._change.subjects import CONFIG
from .._change.undo import Rejected, Texts
from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.config_document import written
from .._identity.token import read_token, taken
from .service import Companions, Daemon, Health, Together, apart, content_of, rejection

RUN = "/run"


@dataclass(frozen=True)
class DaemonFiles:
    """The files of a daemon as they shall be; None for content that stays as it is. copies: files that its unit copies for it.

    unit: names the environment that it runs from. config: its settings with their `kind`, which its unit names as a file, empty for a
    daemon whose settings are options of its unit. secrets: path to content, "" for a file that shall not be there. The daemon reads
    them again by itself.
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
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config_path(self) -> str:
        return os.path.join(os.path.dirname(self.kubeconfig_path), self.name + CONFIG)

    @property
    def read_at_start(self) -> Sequence[str]:
        """The files of its own that the process reads at its start, and not again."""
        return [self.kubeconfig_path, *([self.config_path] if self.config else [])]

    @property
    def config_text(self) -> Optional[str]:
        """The content of its file of settings, None without one."""
        fields = {key: value for key, value in self.config.items() if key != "kind"}
        return written(self.name, str(self.config.get("kind")), fields) if self.config else None

    @property
    def copied(self) -> Dict[str, str]:
        """Each file that is copied, and where the process reads it."""
        return {path: os.path.join(RUN, self.name + "-copies", os.path.basename(path)) for path in self.copies}


@dataclass(frozen=True)
class ServiceInstalled(ModuleAnswer):
    """The answer of gpushare_daemon about a service."""

    restarted: bool
    diff: List[DiffPart]


class InstalledDaemon(Subject[None]):
    """A daemon of ours on this host. hurt: why a daemon-reload would take GPUs from running containers, None if it would not."""

    mode = 0o644

    def __init__(self, wanted: DaemonFiles, daemon: Daemon, companions: Companions, hurt: Callable[[], Optional[str]]) -> None:
        self.owner = wanted.name
        # The kubeconfig has no secret; an administrator may put one of his own there, which may have one.
        self.secrets = [wanted.kubeconfig_path, wanted.seed_path or "", *wanted.secrets]
        self._wanted, self._daemon, self._companions, self._hurt = wanted, daemon, companions, hurt

    def look(self, recorded: Recorded) -> None:
        """Nothing: the services ask systemd."""

    def present(self, found: None) -> ChangePlan:
        """The unit, and the kubeconfig and the seed where their content is known. SystemdError for a command line that cannot be one.

        Its settings have a hash of all that is read at the start.
        """
        wanted, daemon = self._wanted, self._daemon
        texts: Texts = {}
        kubeconfig = wanted.kubeconfig_content
        if kubeconfig is None:
            content = content_of(wanted.kubeconfig_path)
            kubeconfig = None if content is None else content.decode()
        else:
            texts[wanted.kubeconfig_path] = kubeconfig
        if wanted.seed_path and wanted.seed_content:
            texts[wanted.seed_path] = wanted.seed_content.strip() + "\n"
        for path, secret in sorted(wanted.secrets.items()):
            texts[path] = secret.strip() + "\n" if secret else None
        read = [wanted.unit, kubeconfig]
        if wanted.config_text is not None:
            texts[wanted.config_path] = wanted.config_text
            read.append(wanted.config_text)
        texts[daemon.path], texts[daemon.settings] = apart(wanted.unit or "", daemon.settings, read)
        service = Together(daemon, self._companions)
        return ChangePlan({**texts, **self._companions.texts()}, service=service, check=self._check)

    def _check(self, changes: Sequence[str], due: bool) -> LastWord:
        """Whether the process will be started again, and why. It raises Rejected where the way there would hurt containers."""
        daemon, companions = self._daemon, self._companions
        hurt = self._hurt() if daemon.needs_reload(changes) or companions.needs_reload(changes) else None
        if hurt:
            raise Rejected(rejection(daemon.unit, hurt))
        if set(daemon.read_at_start) & set(changes) or daemon.is_stale():
            return LastWord(f"{daemon.unit} is not as its files are")
        return LastWord(f"{daemon.unit} does not have its sockets" if companions.sockets_are_due(changes) else "")


def health_of(wanted: DaemonFiles, url: Optional[str], ca: Optional[str], key: str, timeout: float, says: Sequence[str] = ()) -> Health:
    """Its own report, and after a new seed the token that it has swapped it for. says: as of `Health`."""
    seed = read_token(wanted.seed_content)

    def swapped() -> Optional[str]:
        own = content_of(wanted.token_path or "")
        if seed is None or taken(read_token(_text(own)), seed) or read_token(_text(content_of(wanted.seed_path or ""))) != seed:
            # In the last case the seed was restored to a former one.
            return None
        seen = "is missing" if own is None else "holds an older one"
        return f"it must get a token of its own with the new seed in {wanted.seed_path}; {wanted.token_path} {seen}"

    return Health(url, key, timeout, ca, swapped, says)


def _text(content: Optional[bytes]) -> Optional[str]:
    return None if content is None else content.decode("utf-8", "replace")
