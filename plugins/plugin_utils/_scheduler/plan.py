# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The new content of one host's kube-scheduler files and kubeadm's ClusterConfiguration: texts, diff, and orders for the module.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...module_utils._change.journal import Entry
from ...module_utils._cluster.names import ANNOTATION_SCHEDULER_CONFIG, NAMESPACE, SCHEDULER_TLS_FILES
from ...module_utils._host.files import FileState, digest
from ...module_utils._scheduler import config as scheduler_config
from ...module_utils._scheduler import kubeadm, releases
from ...module_utils._scheduler import manifest as scheduler_manifest
from ...module_utils._scheduler import policy as scheduler_policy
from ...module_utils._scheduler.manifest import CONFIG, POLICY, POLICY_CONFIGMAP
from .. import _yaml
from .wiring import CONFIGURATION, POLICY_MAP, PolicyMap, UnreadFile, find, policy_path, policy_text
from .yaml_splice import dump, lost_comments, splice

HEADER = "# Made by gpushare.kubernetes, which adds its extender and keeps everything else.\n"
# In the journal.
NOTED_PERCENTAGE = "value:percentageOfNodesToScore"
# As the extender's option --lease has it.
NO_LEASE = "none"


@dataclass(frozen=True)
class Found:
    """The answers of host and cluster. files: path to text, None for one that is not there. cluster: the ClusterConfiguration's
    text, None without one. others: the control-plane nodes besides this one whose scheduler calls our extender. server: version of the
    API server. policy: the ConfigMap with the scheduler's policy that the manifest names."""

    files: Mapping[str, str | None]
    journal: Mapping[str, Entry] = field(default_factory=dict)
    cluster: str | None = None
    cluster_version: str = ""
    nodes: int = 0
    others: Sequence[str] = ()
    server: str = ""
    policy: PolicyMap | None = None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Found:
        """From the module's answer."""
        cluster = answer["cluster"] or {}
        journal = {entry["path"]: _entry(entry) for entry in answer["journal"]}
        policy = PolicyMap(**answer["policy"]) if answer.get("policy") else None
        return cls(
            answer["files"],
            journal,
            cluster.get("text"),
            cluster.get("version", ""),
            answer["nodes"],
            answer["others"],
            str(answer.get("server") or ""),
            policy,
        )


@dataclass(frozen=True)
class FileChange:
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
class SchedulerPlan:
    """changed: whether something differs. diff: as Ansible prints it. warnings: what is lost. for_module: the module's option `plan`.
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
    """SchedulerError where two schedulers would be active at once, or the extender would read another lease. wanted: "" for any."""
    if lease == NO_LEASE and control_planes > 1:
        raise scheduler_manifest.SchedulerError(
            f"kube-scheduler on {node} runs with leader election off, and {control_planes} control planes have a scheduler: several would "
            "be active on the same GPU nodes, and each would give the same GPU away; expected --leader-elect=true on all of them "
            "(leaderElection.leaderElect: true), or one control plane in the inventory"
        )
    if wanted not in ("", lease):
        found = "runs without leader election" if lease == NO_LEASE else f"competes for the lease {lease}"
        raise scheduler_manifest.SchedulerError(
            f"kube-scheduler on {node} {found}, and the extender was told {wanted}; set gpushare_scheduler_lease: {lease} for all control "
            "planes, or have this scheduler compete for the same lease as theirs: of two leases the holders are active at once, and each "
            "would give the same GPU away"
        )


def build(
    changes: Sequence[FileChange],
    values: Sequence[tuple[str, str | None, str | None]],
    cluster: FileChange | None,
    found: Found,
    notes: list[str],
    policy: FileChange | None = None,
    upgrades: Sequence[str] = (),
) -> SchedulerPlan:
    """The plan of these changes. The first is the configuration or policy, the last the manifest.

    values: for the journal, (name, before, after). policy: of a ConfigMap, which is then the first one of the changes' stead.
    upgrades: what is to be done before Kubernetes is upgraded.
    """
    shown = [change for change in [*([policy] if policy else []), *changes, *([cluster] if cluster else [])] if change.differs]
    manifest_before, manifest_after = changes[-1].before, changes[-1].after
    texts = {text: _yaml.load(text) for text in (manifest_before, manifest_after) if text is not None}
    for_module: dict[str, Any] = {
        "files": [change.for_module for change in changes],
        "values": [list(value) for value in values],
        "cluster": {**cluster.for_module, "version": found.cluster_version} if cluster and cluster.differs else None,
        "policy": _policy_order(policy, found),
        "shapes": {digest(text.encode()): scheduler_manifest.shape(pod) for text, pod in texts.items()},
        "scheduler": None,
    }
    if manifest_after is not None:
        manifest = texts[manifest_after]
        release = releases.release_of(scheduler_manifest.image(manifest), found.server)
        is_old = release is not None and release <= releases.LAST_POLICY
        flag = POLICY if policy or (is_old and scheduler_manifest.flag(manifest, POLICY) is not None) else CONFIG
        named = scheduler_manifest.flag(manifest, flag) is not None
        config = _configuration(manifest, [*changes], found)
        lease = scheduler_config.lease(manifest, config, release)
        candidate = policy.after if policy else changes[0].after if named or _names(config, changes[0].path) else None
        for_module["scheduler"] = {
            "image": scheduler_manifest.image(manifest),
            "command": scheduler_manifest.candidate_command(manifest, flag),
            "candidate": candidate,
            "kind": "Policy" if flag == POLICY else scheduler_config.KIND,
            "mounts": scheduler_manifest.host_mounts(manifest),
            "lease": None if lease is None else asdict(lease),
            "name": scheduler_config.scheduler_names(config)[0],
            "read_once": _read_once(manifest, changes[0].path if named and policy is None else None),
        }
    shape = None if manifest_before is None else scheduler_manifest.shape(texts[manifest_before])
    warnings = [*(words for words in map(_lost, shown) if words), *upgrades]
    return SchedulerPlan(bool(shown), [change.diff for change in shown], notes, warnings, for_module, shape)


def _policy_order(policy: FileChange | None, found: Found) -> dict[str, Any] | None:
    """For the module: the policy's ConfigMap as it was and as it becomes, so that a scheduler that fails gets the former one back."""
    if policy is None or found.policy is None:
        return None
    return {**policy.for_module, "namespace": found.policy.namespace, "name": found.policy.name, "before": policy.before}


def _configuration(manifest: Mapping[str, Any], changes: Sequence[FileChange], found: Found) -> Mapping[str, Any]:
    """The KubeSchedulerConfiguration that the manifest names, as it becomes. A wrong one of others cannot be read."""
    if scheduler_manifest.flag(manifest, CONFIG) is None:
        return {}
    try:
        path = scheduler_manifest.config_location(manifest, changes[0].path).host
    except scheduler_manifest.SchedulerError:
        return {}
    texts = {**found.files, **{change.path: change.after for change in changes}}
    config = _yaml.load(texts.get(path) or "{}")
    return config if isinstance(config, dict) else {}


def _names(config: Mapping[str, Any], path: str) -> bool:
    """Whether a configuration up to v1alpha1 names this policy."""
    source = config.get("algorithmSource")
    policy = (source.get("policy") or {}) if isinstance(source, dict) else {}
    return bool((policy.get("file") or {}).get("path") == path)


def _lost(change: FileChange) -> str:
    count = lost_comments(change.before, change.after) if change.before is not None and change.after is not None else 0
    if not count:
        return ""
    return (
        f"{change.path} loses {count} comment{'s' if count > 1 else ''}: it has an alias, or another form that is not changed in "
        "place, so it is written anew; write that out first to keep the comments"
    )


def _read_once(manifest: Mapping[str, Any], config: str | None) -> list[str]:
    """The files that the scheduler reads at its start only: the extender's authority, and a configuration whose hash the manifest does not
    have."""
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in manifest["spec"].get("volumes") or [] if volume.get("hostPath")}
    annotated = ANNOTATION_SCHEDULER_CONFIG in ((manifest.get("metadata") or {}).get("annotations") or {})
    found = [config] if config is not None and not annotated else []
    if scheduler_manifest.TLS_VOLUME in volumes:
        found.append(f"{volumes[scheduler_manifest.TLS_VOLUME]}/{SCHEDULER_TLS_FILES[0]}")
    return found


def plan_present(
    manifest_path: str, default_config: str, found: Found, extender: scheduler_config.ExtenderEntry, percentage: int = -1
) -> SchedulerPlan:
    """The plan that brings our extender in. percentage: -1 for automatic.

    SchedulerError where the files cannot be merged with, UnreadFile if another file is needed.
    """
    manifest_text = found.files[manifest_path] or ""
    manifest = _yaml.load(manifest_text)
    wiring = find(manifest, default_config, found.files, found.server)
    notes: list[str] = []
    upgrades: list[str] = []
    if wiring.kind == POLICY_MAP:
        return _present_in_map(manifest_path, manifest_text, manifest, found, extender, notes)
    location = wiring.location
    if location is None:
        raise scheduler_manifest.SchedulerError(f"{manifest_path}: found no place of the configuration; expected one. Report this")
    if location.host not in found.files:
        raise UnreadFile(location.host)
    text = found.files[location.host]
    default = default_config if wiring.kind == CONFIGURATION else policy_path(default_config)
    if text is None and (not wiring.flag or scheduler_manifest.flag(manifest, wiring.flag) not in (None, default)):
        raise scheduler_manifest.SchedulerError(
            f"the kube-scheduler manifest has --{wiring.flag or CONFIG}={location.container}, which is {location.host} on this host, and "
            "that file does not exist; restore it, or remove the flag"
        )
    current = None if text is None else _yaml.load(text)
    values: list[tuple[str, str | None, str | None]] = []
    if wiring.kind == CONFIGURATION:
        entry = found.journal.get(location.host)
        is_ours = entry is not None and entry.original is None and text is not None and entry.untouched(text.encode())
        if is_ours and isinstance(current, dict):
            current = scheduler_config.renewed(current, wiring.release)
        now = current.get(scheduler_config.PERCENTAGE) if isinstance(current, dict) else None
        wanted = _percentage(percentage, now, found)
        config = scheduler_config.merge_config(current, manifest, extender, wanted, wiring.release)
        upgrades += scheduler_config.next_upgrade(config, wiring.release, location.host)
        after = HEADER + dump(config) if text is None else splice(text, config)
        values = [] if wanted in (None, now) else [(NOTED_PERCENTAGE, None if now is None else str(now), str(wanted))]
        if text is None and scheduler_config.opens_port(manifest, wiring.release):
            notes.append(
                "with a configuration, this kube-scheduler listens without TLS although --port=0 switches that off: the configuration "
                "limits it to 127.0.0.1"
            )
    else:
        after = policy_text(text, scheduler_policy.merge_policy(current, extender))
        upgrades += _ends_with_1_23(wiring.release, wiring.flag)
    merged = scheduler_manifest.merge_manifest(manifest, location, digest(after.encode()), extender.tls_dir, wiring.flag)
    cluster = _cluster(found, merged, wiring.flag, notes, upgrades)
    changes = [FileChange(location.host, text, after), FileChange(manifest_path, manifest_text, splice(manifest_text, merged))]
    return build(changes, values, cluster, found, notes, upgrades=upgrades)


def _present_in_map(
    manifest_path: str, manifest_text: str, manifest: Any, found: Found, extender: scheduler_config.ExtenderEntry, notes: list[str]
) -> SchedulerPlan:
    """The plan for a policy in a ConfigMap: the manifest gets the certificates and the hash, and the ConfigMap our extender."""
    if found.policy is None:
        name = scheduler_manifest.flag(manifest, POLICY_CONFIGMAP)
        raise scheduler_manifest.SchedulerError(
            f"the kube-scheduler manifest has --policy-configmap={name}, and there is no such ConfigMap with a key {scheduler_policy.KEY}; "
            "restore it, or remove the flag"
        )
    upgrades = _ends_with_1_23(releases.release_of(scheduler_manifest.image(manifest), found.server), POLICY_CONFIGMAP)
    before = found.policy.text
    after = policy_text(before, scheduler_policy.merge_policy(_yaml.load(before), extender))
    merged = scheduler_manifest.merge_manifest(manifest, None, digest(after.encode()), extender.tls_dir)
    cluster = _cluster(found, merged, "", notes, upgrades)
    changes = [FileChange(manifest_path, manifest_text, splice(manifest_text, merged))]
    return build(changes, [], cluster, found, notes, FileChange(found.policy.path, before, after), upgrades)


def _ends_with_1_23(release: releases.Release | None, name: str) -> list[str]:
    """The advice about a policy that this flag names before the upgrade after which it is no longer read."""
    if release != releases.LAST_POLICY or not name:
        return []
    return [
        f"kube-scheduler from 1.23 on does not start with --{name}: before that upgrade, remove the flag from this manifest and from "
        f"{kubeadm.PATH}, and run again, which makes a configuration; predicates and priorities of the policy must become a profile of it"
    ]


def _percentage(setting: int, now: int | None, found: Found) -> int | None:
    """The new value of percentageOfNodesToScore; None: an administrator's own value stays."""
    if not -1 <= setting <= 100:
        raise scheduler_manifest.SchedulerError(f"percentage_of_nodes_to_score must be -1 (automatic) or 0 to 100; found {setting}")
    if setting >= 0:
        return setting
    entry = found.journal.get(NOTED_PERCENTAGE)
    if now is None or (entry is not None and entry.untouched(str(now).encode())):
        return scheduler_config.percentage_by_default(found.nodes)
    return None


def _cluster(found: Found, merged: Mapping[str, Any], flag: str, notes: list[str], upgrades: list[str]) -> FileChange | None:
    if found.cluster is None:
        notes.append(
            f"this cluster has no ConfigMap {NAMESPACE}/{kubeadm.NAME}, so it was not made by kubeadm: whatever "
            "writes the scheduler's manifest anew has to be told of --config by other means, or this role be run again after it"
        )
        return None
    current = _yaml.load(found.cluster)
    if kubeadm.is_alpha(current):
        notes.append(
            f"{kubeadm.PATH} is {current['apiVersion']}, which is not changed: a kubeadm upgrade writes the scheduler's manifest without "
            "the extender, so run this role again after it"
        )
        return None
    if flag == CONFIG:
        # Ours, from when the scheduler had a policy: kube-scheduler from 1.23 on does not start with that flag.
        entry = found.journal.get(kubeadm.PATH)
        before = _yaml.load(entry.original.content) if entry is not None and entry.original is not None else None
        current = kubeadm.without_argument(current, POLICY, before)
    wanted = kubeadm.merge(current, merged, flag or CONFIG)
    for name in (POLICY, POLICY_CONFIGMAP) if flag == CONFIG else ():
        if kubeadm.config_argument(wanted, name) is not None:
            upgrades.append(
                f"{kubeadm.PATH} has --{name} for the scheduler, and this host's manifest has not: a kubeadm upgrade will bring it, and "
                "kube-scheduler from 1.23 on does not start with it; remove it there"
            )
    theirs, ours = kubeadm.config_argument(wanted, flag), scheduler_manifest.flag(merged, flag)
    if flag and theirs != ours:
        notes.append(
            f"{kubeadm.PATH} has --{flag}={theirs} for the scheduler, but this host's manifest has {ours}: a kubeadm upgrade will "
            "bring the former; let both name one file, then run again"
        )
    return FileChange(kubeadm.PATH, found.cluster, splice(found.cluster, wanted))


def _entry(fields: Mapping[str, Any]) -> Entry:
    original = None if fields["original"] is None else FileState(fields["original"].encode(), fields["mode"], 0, 0, None)
    return Entry(fields["path"], "scheduler", original, (fields["left"][0], fields["left"][1]), fields["others"])
