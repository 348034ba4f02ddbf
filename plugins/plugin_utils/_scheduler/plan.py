# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The new content of one host's kube-scheduler files and kubeadm's ClusterConfiguration: texts, diff, and orders for the module.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...module_utils._change.journal import Entry
from ...module_utils._cluster.names import ANNOTATION_SCHEDULER_CONFIG, NAMESPACE, SCHEDULER_TLS_FILES
from ...module_utils._host.files import FileState, digest
from ...module_utils._scheduler import entries as scheduler_entries
from ...module_utils._scheduler import kubeadm, releases, scheduler_config
from ...module_utils._scheduler import policy as scheduler_policy
from ...module_utils._scheduler.manifest import (
    CONFIG,
    POLICY,
    POLICY_CONFIGMAP,
    TLS_VOLUME,
    SchedulerError,
    SchedulerManifest,
    candidate_command,
    merge_manifest,
)
from ...module_utils._scheduler.policy import PolicyMap
from .. import _yaml
from .wiring import UnreadFile, Wiring, find, policy_path, policy_text
from .yaml_splice import lost_comments, splice

HEADER = "# Made by gpushare.kubernetes, which adds its extender and keeps everything else.\n"
# The journal's name of the percentage that we have set.
NOTED_PERCENTAGE = "value:percentageOfNodesToScore"
# The value of the extender's option --lease for a scheduler without leader election.
NO_LEASE = "none"


@dataclass(frozen=True)
class Found:
    """The answers of host and cluster. files: path to text, None for one that is not there. cluster: the ClusterConfiguration's
    text, None without one. others: the control-plane nodes besides this one whose scheduler calls our extender. server: version of the
    API server. policy: the ConfigMap with the scheduler's policy that the manifest names. unreached: urlPrefix to why it does not answer,
    of extenders of others."""

    files: Mapping[str, str | None]
    journal: Mapping[str, Entry] = field(default_factory=dict)
    cluster: str | None = None
    cluster_version: str = ""
    nodes: int = 0
    others: Sequence[str] = ()
    server: str = ""
    policy: PolicyMap | None = None
    unreached: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> Found:
        """The answers of the module."""
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
            answer["unreached"],
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

    def is_due(self, answer: Mapping[str, Any]) -> bool:
        """Whether something is to be done, also where no file differs. answer: of the module, from which the plan was made."""
        # With absent, a run that was killed has undone everything, but not forgotten it.
        more = answer["journal"] if answer["settings"]["state"] == "absent" else answer["running"] != self.shape
        return bool(self.changed or answer["unfinished"] or more)


def check_lease(lease: str, wanted: str, control_planes: int, node: str) -> None:
    """SchedulerError where two schedulers would be active at once, or the extender would read another lease. wanted: "" for any."""
    if lease == NO_LEASE and control_planes > 1:
        raise SchedulerError(
            f"kube-scheduler on {node} runs with leader election off, and {control_planes} control planes have a scheduler: several would "
            "be active on the same GPU nodes, and each would give the same GPU away; expected --leader-elect=true on all of them "
            "(leaderElection.leaderElect: true), or one control plane in the inventory"
        )
    if wanted not in ("", lease):
        found = "runs without leader election" if lease == NO_LEASE else f"competes for the lease {lease}"
        raise SchedulerError(
            f"kube-scheduler on {node} {found}, and the extender was told {wanted}; set gpushare_scheduler_lease: {lease} for all control "
            "planes, or have this scheduler compete for the same lease as theirs: of two leases the holders are active at once, and each "
            "would give the same GPU away"
        )


def build(
    found: Found,
    before: SchedulerManifest | None,
    after: SchedulerManifest | None,
    changes: Sequence[FileChange],
    values: Sequence[tuple[str, str | None, str | None]],
    cluster: FileChange | None,
    policy: FileChange | None,
    notes: list[str],
    upgrades: Sequence[str] = (),
) -> SchedulerPlan:
    """The plan of these changes. The first is the configuration or policy, the last the manifest, which `before` and `after` have parsed.

    values: for the journal, (name, before, after). policy: the change of a policy in a ConfigMap, which no file has then.
    upgrades: what is to be done before Kubernetes is upgraded.
    """
    shown = [change for change in [*([policy] if policy else []), *changes, *([cluster] if cluster else [])] if change.differs]
    for_module: dict[str, Any] = {
        "files": [change.for_module for change in changes],
        "values": [list(value) for value in values],
        "cluster": {**cluster.for_module, "version": found.cluster_version} if cluster and cluster.differs else None,
        "policy": None,
        "shapes": {digest(manifest.text.encode()): manifest.shape for manifest in (before, after) if manifest is not None},
        "scheduler": None if after is None else _expected(after, changes, policy, found),
    }
    if policy and found.policy:
        place = {"namespace": found.policy.namespace, "name": found.policy.name}
        for_module["policy"] = {**policy.for_module, **place, "before": policy.before}
    diff, shape = [change.diff for change in shown], None if before is None else before.shape
    return SchedulerPlan(bool(shown), diff, notes, [*_lost(shown), *upgrades], for_module, shape)


def _expected(manifest: SchedulerManifest, changes: Sequence[FileChange], policy: FileChange | None, found: Found) -> dict[str, Any]:
    """For the module: what the scheduler of the new manifest reads, how it is tried before, and how it is verified."""
    path = changes[0].path
    release = releases.release_of(manifest.image, found.server)
    is_old = release is not None and release <= releases.LAST_POLICY
    flag = POLICY if policy or (is_old and POLICY in manifest.flags) else CONFIG
    config = _configuration(manifest, changes, found)
    lease = scheduler_config.lease(manifest, config, release)
    # The scheduler reads these at its start only: a configuration whose hash the manifest lacks, and the extender's authority.
    is_noted = policy is not None or ANNOTATION_SCHEDULER_CONFIG in manifest.annotations
    read_once = [path] if flag in manifest.flags and not is_noted else []
    if TLS_VOLUME in manifest.volumes:
        read_once.append(f"{manifest.volumes[TLS_VOLUME]['path']}/{SCHEDULER_TLS_FILES[0]}")
    is_read = flag in manifest.flags or _names(config, path)
    return {
        "name": scheduler_config.scheduler_names(config)[0],
        "lease": None if lease is None else asdict(lease),
        "image": manifest.image,
        "mounts": manifest.mounts,
        "command": candidate_command(manifest, flag),
        "candidate": policy.after if policy else changes[0].after if is_read else None,
        "kind": "Policy" if flag == POLICY else scheduler_config.KIND,
        "read_once": read_once,
    }


def _configuration(manifest: SchedulerManifest, changes: Sequence[FileChange], found: Found) -> Mapping[str, Any]:
    """The new KubeSchedulerConfiguration that the manifest names, {} if it names none, or one that cannot be read."""
    if CONFIG not in manifest.flags:
        return {}
    try:
        path = manifest.location(changes[0].path).host
    except SchedulerError:
        return {}
    texts = {**found.files, **{change.path: change.after for change in changes}}
    config = _yaml.load(texts.get(path) or "{}")
    return config if isinstance(config, dict) else {}


def _names(config: Mapping[str, Any], path: str) -> bool:
    """Whether a configuration up to v1alpha1 names this policy."""
    source = config.get("algorithmSource")
    policy = (source.get("policy") or {}) if isinstance(source, dict) else {}
    return bool((policy.get("file") or {}).get("path") == path)


def _lost(shown: Sequence[FileChange]) -> Iterator[str]:
    """The warnings about comments that the changes lose."""
    for change in shown:
        count = lost_comments(change.before or "", change.after or "") if change.after is not None else 0
        if count:
            yield (
                f"{change.path} loses {count} comment{'s' if count > 1 else ''}: it has an alias, or another form that is not changed in "
                "place, so it is written as a whole; write that out first to keep the comments"
            )


def read_manifest(text: str) -> SchedulerManifest:
    """The manifest with this text. SchedulerError if it is not kube-scheduler's static pod."""
    return SchedulerManifest.parsed(_yaml.load(text), text)


def plan_present(
    manifest_path: str, default_config: str, found: Found, extender: scheduler_config.ExtenderEntry, percentage: int = -1
) -> SchedulerPlan:
    """The plan that brings our extender in. percentage: -1 for automatic.

    SchedulerError where the files cannot be merged with, UnreadFile if another file is needed.
    """
    before = read_manifest(found.files[manifest_path] or "")
    wiring = find(before, default_config, found.files, found.server)
    path, text = _wired_file(before, wiring, default_config, found)
    current = None if text is None else _yaml.load(text)
    _check_others(path, current, found)
    notes: list[str] = []
    upgrades: list[str] = []
    values: list[tuple[str, str | None, str | None]] = []
    if wiring.policy:
        wired = FileChange(path, text, policy_text(text, scheduler_policy.merge_policy(current, extender)))
        upgrades += _ends_with_1_23(wiring)
    else:
        entry = found.journal.get(path)
        is_ours = entry is not None and entry.original is None and text is not None and entry.untouched(text.encode())
        if is_ours and isinstance(current, dict):
            current = scheduler_config.renewed(current, wiring.release)
        now = current.get(scheduler_config.PERCENTAGE) if isinstance(current, dict) else None
        wanted = _percentage(percentage, now, found)
        config = scheduler_config.merge_config(current, before, extender, wanted, wiring.release)
        upgrades += scheduler_config.next_upgrade(config, wiring.release, path)
        values = [] if wanted in (None, now) else [(NOTED_PERCENTAGE, None if now is None else str(now), str(wanted))]
        if text is None and scheduler_config.opens_port(before, wiring.release):
            notes.append(
                "with a configuration, this kube-scheduler listens without TLS although --port=0 switches that off: the configuration "
                "limits it to 127.0.0.1"
            )
        wired = FileChange(path, text, HEADER + _yaml.dump(config) if text is None else splice(text, config))
    pod = merge_manifest(before, wiring.location, digest((wired.after or "").encode()), extender.tls_dir, wiring.flag)
    after = read_manifest(splice(before.text, pod))
    cluster = _cluster(found, after, wiring.flag, notes, upgrades)
    policy = wired if wiring.location is None else None
    changes = [*([] if policy else [wired]), FileChange(manifest_path, before.text, after.text)]
    return build(found, before, after, changes, values, cluster, policy, notes, upgrades)


def _check_others(path: str, config: Any, found: Found) -> None:
    """SchedulerError where an extender of others does not answer: the scheduler is restarted with the file, and would place no pod."""
    for place, entry, why in scheduler_entries.dead(config, found.unreached) if isinstance(config, dict) else ():
        seen, expected, cure = scheduler_entries.words(path, place, entry, why)
        raise SchedulerError(f"found {seen}; expected {expected}: {cure}")


def _wired_file(manifest: SchedulerManifest, wiring: Wiring, default_config: str, found: Found) -> tuple[str, str | None]:
    """Path and text of the configuration or policy that gets our extender. Without a text it is to be made."""
    location, policy = wiring.location, found.policy
    if location is None and policy is not None:
        return policy.path, policy.text
    if location is None:
        raise SchedulerError(
            f"the kube-scheduler manifest has --policy-configmap={manifest.flags[POLICY_CONFIGMAP]}, and there is no such ConfigMap with a "
            f"key {scheduler_policy.KEY}; restore it, or remove the flag"
        )
    if location.host not in found.files:
        raise UnreadFile(location.host)
    text = found.files[location.host]
    default = policy_path(default_config) if wiring.policy else default_config
    if text is None and (not wiring.flag or manifest.flags.get(wiring.flag) not in (None, default)):
        raise SchedulerError(
            f"the kube-scheduler manifest has --{wiring.flag or CONFIG}={location.container}, which is {location.host} on this host, and "
            "that file does not exist; restore it, or remove the flag"
        )
    return location.host, text


def _ends_with_1_23(wiring: Wiring) -> list[str]:
    """The advice about a policy that a flag names before the upgrade after which it is no longer read."""
    flag = POLICY_CONFIGMAP if wiring.location is None else wiring.flag
    if wiring.release != releases.LAST_POLICY or not flag:
        return []
    return [
        f"kube-scheduler from 1.23 on does not start with --{flag}: before that upgrade, remove the flag from this manifest and from "
        f"{kubeadm.PATH}, and run again, which makes a configuration; predicates and priorities of the policy must become a profile of it"
    ]


def _percentage(setting: int, now: int | None, found: Found) -> int | None:
    """The new value of percentageOfNodesToScore; None: an administrator's own value stays."""
    if not -1 <= setting <= 100:
        raise SchedulerError(f"percentage_of_nodes_to_score must be -1 (automatic) or 0 to 100; found {setting}")
    if setting >= 0:
        return setting
    entry = found.journal.get(NOTED_PERCENTAGE)
    if now is None or (entry is not None and entry.untouched(str(now).encode())):
        return scheduler_config.percentage_by_default(found.nodes)
    return None


def _cluster(found: Found, manifest: SchedulerManifest, flag: str, notes: list[str], upgrades: list[str]) -> FileChange | None:
    if found.cluster is None:
        notes.append(
            f"this cluster has no ConfigMap {NAMESPACE}/{kubeadm.NAME}, so it was not made by kubeadm: whatever "
            "writes the scheduler's manifest has to be told of --config by other means, or this role be run again after it"
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
        # We may have written the argument of a policy, with which kube-scheduler from 1.23 on does not start.
        entry = found.journal.get(kubeadm.PATH)
        before = _yaml.load(entry.original.content) if entry is not None and entry.original is not None else None
        current = kubeadm.without_argument(current, POLICY, before)
    wanted = kubeadm.merge(current, manifest, flag or CONFIG)
    for name in (POLICY, POLICY_CONFIGMAP) if flag == CONFIG else ():
        if kubeadm.config_argument(wanted, name) is not None:
            upgrades.append(
                f"{kubeadm.PATH} has --{name} for the scheduler, and this host's manifest has not: a kubeadm upgrade will bring it, and "
                "kube-scheduler from 1.23 on does not start with it; remove it there"
            )
    theirs, ours = kubeadm.config_argument(wanted, flag), manifest.flags.get(flag)
    if flag and theirs != ours:
        notes.append(
            f"{kubeadm.PATH} has --{flag}={theirs} for the scheduler, but this host's manifest has {ours}: a kubeadm upgrade will "
            "bring the former; let both name one file, then run again"
        )
    return FileChange(kubeadm.PATH, found.cluster, splice(found.cluster, wanted))


def _entry(fields: Mapping[str, Any]) -> Entry:
    original = None if fields["original"] is None else FileState(fields["original"].encode(), fields["mode"], 0, 0, None)
    return Entry(fields["path"], "scheduler", original, (fields["left"][0], fields["left"][1]), fields["others"])
