# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host's kube-scheduler files become: the new texts, their diff, and what the module is told to check and prove.

Private to this collection, used on the controller only. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _kube_scheduler
from ansible_collections.gpushare.kubernetes.plugins.module_utils._files import digest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._yaml_splice import dump, splice

_HEADER = "# Made by gpushare.kubernetes, which adds its extender and keeps everything else.\n"


class UnreadFile(LookupError):
    """The manifest means a file that the host has not sent; `path` is it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True)
class Plan:
    """changed: whether a file differs; diff: as Ansible prints it; for_module: the module's option `plan`."""

    changed: bool
    diff: list[dict[str, str]]
    for_module: dict[str, Any]


def make_plan(manifest_path: str, default_config: str, files: Mapping[str, str | None], extender: _kube_scheduler.Extender) -> Plan:
    """The plan for a host with these files (path to text, None for one that is not there).

    SchedulerError where they cannot be merged with, UnreadFile if another file is needed.
    """
    manifest_text = files[manifest_path] or ""
    manifest = yaml.safe_load(manifest_text)
    location = _kube_scheduler.config_location(manifest, default_config)
    if location.host not in files:
        raise UnreadFile(location.host)
    config_text = files[location.host]
    if config_text is None and _kube_scheduler.flag(manifest, "config") not in (None, default_config):
        raise _kube_scheduler.SchedulerError(
            f"the kube-scheduler manifest has --config={location.container}, which is {location.host} on this host, and that file "
            "does not exist; restore it, or remove the flag"
        )
    current = None if config_text is None else yaml.safe_load(config_text)
    config = _kube_scheduler.merge_config(current, manifest, extender)
    wanted_config = _HEADER + dump(config) if config_text is None else splice(config_text, config)
    merged = _kube_scheduler.merge_manifest(manifest, location, digest(wanted_config.encode()))
    lease = _kube_scheduler.lease(merged, config)
    changes = [
        _Change(location.host, config_text, wanted_config),
        _Change(manifest_path, manifest_text, splice(manifest_text, merged)),
    ]
    return Plan(
        any(change.differs for change in changes),
        [change.diff for change in changes if change.differs],
        {
            "files": [change.for_module for change in changes],
            "image": _kube_scheduler.image(manifest),
            "command": _kube_scheduler.candidate_command(manifest),
            "mounts": _kube_scheduler.host_mounts(manifest),
            "lease": None if lease is None else asdict(lease),
            "scheduler_name": _kube_scheduler.scheduler_name(config),
        },
    )


@dataclass(frozen=True)
class _Change:
    path: str
    before: str | None
    after: str

    @property
    def differs(self) -> bool:
        return self.before != self.after

    @property
    def diff(self) -> dict[str, str]:
        return {"before_header": self.path, "after_header": self.path, "before": self.before or "", "after": self.after}

    @property
    def for_module(self) -> dict[str, str]:
        before = None if self.before is None else self.before.encode()
        return {"path": self.path, "content": self.after, "sha256_before": digest(before)}
