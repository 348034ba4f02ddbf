# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host's kube-scheduler files and kubeadm's ClusterConfiguration become: texts, diff, and orders for the module.

Private to this collection, used on the controller only. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Entry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import (
    ANNOTATION_SCHEDULER_CONFIG,
    NAMESPACE,
    SCHEDULER_TLS_FILES,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import FileState, digest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import config as scheduler_config
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import kubeadm
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import manifest as scheduler_manifest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.yaml_splice import dump, lost_comments, splice

HEADER = "# Made by gpushare.kubernetes, which adds its extender and keeps everything else.\n"
# In the journal.
NOTED_PERCENTAGE = "value:percentageOfNodesToScore"
# Up to so many nodes every one of them is looked at: a pod must not be unschedulable because of a sample.
ALL_NODES_UP_TO = 500
# As the extender's option --lease has it.
NO_LEASE = "none"


class UnreadFile(LookupError):
    """The manifest means a file that the host has not sent; `path` is it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True)
class Found:
    """What the host and the cluster answered. files: path to text, None for one that is not there; cluster: the ClusterConfiguration's
    text, None without one; others: the control-plane nodes besides this one whose scheduler calls our extender."""

    files: Mapping[str, str | None]
    journal: Mapping[str, Entry] = field(default_factory=dict)
    cluster: str | None = None
    cluster_version: str = ""
    nodes: int = 0
    others: Sequence[str] = ()

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Found:
        """From the module's answer."""
        cluster = answer["cluster"] or {}
        journal = {one["path"]: _entry(one) for one in answer["journal"]}
        return cls(answer["files"], journal, cluster.get("text"), cluster.get("version", ""), answer["nodes"], answer["others"])


@dataclass(frozen=True)
class Change:
    """One file, or the ClusterConfiguration; None: there is none. mode: to be set, None: as it is."""

    path: str
    before: str | None
    after: str | None
    mode: int | None = None

    @property
    def differs(self) -> bool:
        return self.before != self.after

    @property
    def diff(self) -> dict[str, str]:
        return {"before_header": self.path, "after_header": self.path, "before": self.before or "", "after": self.after or ""}

    @property
    def for_module(self) -> dict[str, Any]:
        before = None if self.before is None else self.before.encode()
        return {"path": self.path, "content": self.after, "mode": self.mode, "sha256_before": digest(before)}


@dataclass(frozen=True)
class Plan:
    """changed: whether something differs; diff: as Ansible prints it; warnings: what is lost; for_module: the module's option `plan`;
    shape: what must run now."""

    changed: bool
    diff: list[dict[str, str]]
    notes: list[str]
    warnings: list[str]
    for_module: dict[str, Any]
    shape: Mapping[str, Any] | None

    @property
    def lease(self) -> str:
        """Namespace and name of the lease for which the scheduler will compete, "none" for a scheduler without leader election."""
        lease = (self.for_module["scheduler"] or {}).get("lease")
        return f"{lease['namespace']}/{lease['name']}" if lease else NO_LEASE


def check_lease(lease: str, wanted: str, control_planes: int, node: str) -> None:
    """SchedulerError where two schedulers would be active at once, or the extender would look at another lease. wanted: "" for any."""
    if lease == NO_LEASE and control_planes > 1:
        raise scheduler_manifest.SchedulerError(
            f"kube-scheduler on {node} runs with leader election off, and {control_planes} control planes have a scheduler: several would "
            "be active on the same GPU nodes, and each would give the same card away; expected --leader-elect=true on all of them "
            "(leaderElection.leaderElect: true), or one control plane in the inventory"
        )
    if wanted not in ("", lease):
        found = "runs without leader election" if lease == NO_LEASE else f"competes for the lease {lease}"
        raise scheduler_manifest.SchedulerError(
            f"kube-scheduler on {node} {found}, and the extender was told {wanted}; set gpushare_scheduler_lease: {lease} for all control "
            "planes, or have this scheduler compete for the same lease as theirs: of two leases the holders are active at once, and each "
            "would give the same card away"
        )


def build(
    changes: Sequence[Change], values: Sequence[tuple[str, str | None, str | None]], cluster: Change | None, version: str, notes: list[str]
) -> Plan:
    """The plan of these changes. The first is the configuration, the last the manifest. values: for the journal, (name, before, after)."""
    shown = [change for change in [*changes, *([cluster] if cluster else [])] if change.differs]
    manifest_before, manifest_after = changes[-1].before, changes[-1].after
    texts = {text: yaml.safe_load(text) for text in (manifest_before, manifest_after) if text is not None}
    for_module: dict[str, Any] = {
        "files": [change.for_module for change in changes],
        "values": [list(value) for value in values],
        "cluster": {**cluster.for_module, "version": version} if cluster and cluster.differs else None,
        "shapes": {digest(text.encode()): scheduler_manifest.shape(pod) for text, pod in texts.items()},
        "scheduler": None,
    }
    if manifest_after is not None:
        manifest = texts[manifest_after]
        named = scheduler_manifest.flag(manifest, "config") is not None
        found = yaml.safe_load((changes[0].after if named else None) or "{}")
        config = found if isinstance(found, dict) else {}  # it is somebody else's, and wrong: nothing can be read from it
        lease = scheduler_config.lease(manifest, config)
        for_module["scheduler"] = {
            "image": scheduler_manifest.image(manifest),
            "command": scheduler_manifest.candidate_command(manifest),
            "mounts": scheduler_manifest.host_mounts(manifest),
            "lease": None if lease is None else asdict(lease),
            "name": scheduler_config.scheduler_name(config),
            "read_once": _read_once(manifest, changes[0].path if named else None),
        }
    shape = None if manifest_before is None else scheduler_manifest.shape(texts[manifest_before])
    warnings = [words for words in map(_lost, shown) if words]
    return Plan(bool(shown), [change.diff for change in shown], notes, warnings, for_module, shape)


def _lost(change: Change) -> str:
    count = lost_comments(change.before, change.after) if change.before is not None and change.after is not None else 0
    if not count:
        return ""
    return (
        f"{change.path} loses {count} comment{'s' if count > 1 else ''}: it has an alias, or another form that is not changed in "
        "place, so it is written anew; write that out first to keep the comments"
    )


def _read_once(manifest: Mapping[str, Any], config: str | None) -> list[str]:
    """What the scheduler reads at its start only: the extender's authority, and a configuration whose hash the manifest does not have."""
    volumes = {one["name"]: one["hostPath"]["path"] for one in manifest["spec"].get("volumes") or [] if one.get("hostPath")}
    annotated = ANNOTATION_SCHEDULER_CONFIG in ((manifest.get("metadata") or {}).get("annotations") or {})
    found = [config] if config is not None and not annotated else []
    if scheduler_manifest.TLS_VOLUME in volumes:
        found.append(f"{volumes[scheduler_manifest.TLS_VOLUME]}/{SCHEDULER_TLS_FILES[0]}")
    return found


def plan_present(manifest_path: str, default_config: str, found: Found, extender: scheduler_config.Extender, percentage: int = -1) -> Plan:
    """The plan that brings our extender in. percentage: -1 for automatic.

    SchedulerError where the files cannot be merged with, UnreadFile if another file is needed.
    """
    manifest_text = found.files[manifest_path] or ""
    manifest = yaml.safe_load(manifest_text)
    location = scheduler_manifest.config_location(manifest, default_config)
    if location.host not in found.files:
        raise UnreadFile(location.host)
    config_text = found.files[location.host]
    if config_text is None and scheduler_manifest.flag(manifest, "config") not in (None, default_config):
        raise scheduler_manifest.SchedulerError(
            f"the kube-scheduler manifest has --config={location.container}, which is {location.host} on this host, and that file "
            "does not exist; restore it, or remove the flag"
        )
    current = None if config_text is None else yaml.safe_load(config_text)
    now = current.get(scheduler_config.PERCENTAGE) if isinstance(current, dict) else None
    wanted = _percentage(percentage, now, found)
    config = scheduler_config.merge_config(current, manifest, extender, wanted)
    wanted_config = HEADER + dump(config) if config_text is None else splice(config_text, config)
    merged = scheduler_manifest.merge_manifest(manifest, location, digest(wanted_config.encode()), extender.tls_dir)
    notes: list[str] = []
    cluster = _cluster(found, merged, notes)
    changes = [Change(location.host, config_text, wanted_config), Change(manifest_path, manifest_text, splice(manifest_text, merged))]
    values = [] if wanted in (None, now) else [(NOTED_PERCENTAGE, None if now is None else str(now), str(wanted))]
    return build(changes, values, cluster, found.cluster_version, notes)


def _percentage(setting: int, now: int | None, found: Found) -> int | None:
    """What percentageOfNodesToScore becomes; None: an administrator's own value stays."""
    if not -1 <= setting <= 100:
        raise scheduler_manifest.SchedulerError(f"percentage_of_nodes_to_score must be -1 (automatic) or 0 to 100; found {setting}")
    if setting >= 0:
        return setting
    entry = found.journal.get(NOTED_PERCENTAGE)
    if now is None or (entry is not None and entry.untouched(str(now).encode())):
        return 100 if found.nodes <= ALL_NODES_UP_TO else 0
    return None


def _cluster(found: Found, merged: Mapping[str, Any], notes: list[str]) -> Change | None:
    if found.cluster is None:
        notes.append(
            f"this cluster has no ConfigMap {NAMESPACE}/{kubeadm.NAME}, so it was not made by kubeadm: whatever "
            "writes the scheduler's manifest anew has to be told of --config by other means, or this role be run again after it"
        )
        return None
    current = yaml.safe_load(found.cluster)
    wanted = kubeadm.merge(current, merged)
    theirs, ours = kubeadm.config_argument(wanted), scheduler_manifest.flag(merged, "config")
    if theirs != ours:
        notes.append(
            f"{kubeadm.PATH} has --config={theirs} for the scheduler, but this host's manifest has {ours}: a kubeadm upgrade will "
            "bring the former; let both name one file, then run again"
        )
    return Change(kubeadm.PATH, found.cluster, splice(found.cluster, wanted))


def _entry(fields: Mapping[str, Any]) -> Entry:
    original = None if fields["original"] is None else FileState(fields["original"].encode(), fields["mode"], 0, 0, None)
    return Entry(fields["path"], "scheduler", original, (fields["left"][0], fields["left"][1]), fields["others"])
