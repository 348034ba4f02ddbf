# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How one host's kube-scheduler files, and kubeadm's ClusterConfiguration, go back to what they would be without us.

Pure. A file that still is as we left it gets its old bytes back; one that others have changed since loses exactly our part. A configuration
that we made and others have changed since continues being used, without our part: their settings live in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...module_utils._change.journal import Entry
from ...module_utils._scheduler import config as scheduler_config
from ...module_utils._scheduler import kubeadm
from ...module_utils._scheduler import policy as scheduler_policy
from ...module_utils._scheduler.config import PERCENTAGE, ExtenderEntry, check_config
from ...module_utils._scheduler.manifest import CONFIG, TLS_VOLUME, VOLUME, Location, SchedulerError, SchedulerManifest, unmerge_manifest
from .. import _yaml
from .plan import NOTED_PERCENTAGE, FileChange, Found, SchedulerPlan, build, read_manifest
from .wiring import UnreadFile, find, policy_text
from .yaml_splice import splice


@dataclass(frozen=True)
class Percentage:
    """percentageOfNodesToScore as it was before us; None: it was not there."""

    before: int | None


def plan_absent(manifest_path: str, default_config: str, found: Found, extender: scheduler_config.ExtenderEntry) -> SchedulerPlan:
    """The plan that takes our extender out. SchedulerError where files cannot be read, UnreadFile if another file is needed."""
    notes: list[str] = []
    found = _without_inherited(found, manifest_path)
    manifest_text = found.files[manifest_path]
    manifest = None if manifest_text is None else read_manifest(manifest_text)
    name, location = _where(manifest, default_config, found)
    used = default_config if location is None else location.host
    for path in (used, *found.journal):
        if path.startswith("/") and path not in found.files:
            raise UnreadFile(path)
    others = [path for path, entry in found.journal.items() if entry.is_file and path not in (used, manifest_path)]
    ours = _our_config_path(manifest, location, found.journal.get(manifest_path), default_config, name)
    # A file that another --config names must be there, even if it was us who made it.
    named = ours is None and manifest is not None and name in manifest.flags
    changes = [_config(path, found, extender, notes, named and path == used) for path in (used, *others)]
    stays = changes[0].after is not None and _is_edited(changes[0], found.journal.get(used))
    if ours is not None and stays:
        notes.append(f"{used} holds settings of somebody else, so {manifest_path} goes on naming it")
        ours = None
    changed = _manifest(manifest_path, manifest, found, (ours, name), stays, notes)
    after = None if changed.after is None else read_manifest(changed.after)
    cluster = _cluster(found, ours, name, stays, notes)
    return build(found, manifest, after, [*changes, changed], [], cluster, _policy_map(found, extender, notes), notes)


def _without_inherited(found: Found, manifest_path: str) -> Found:
    """Without the manifest's original if that has our volumes already: kubeadm wrote it so, for a host that joined a cluster with us."""
    entry = found.journal.get(manifest_path)
    if entry is None or entry.original is None:
        return found
    original = _yaml.load(entry.original.content)
    volumes = (original.get("spec") or {}).get("volumes") if isinstance(original, dict) else None
    if not any(volume.get("name") in (VOLUME, TLS_VOLUME) for volume in volumes or []):
        return found
    return replace(found, journal={path: noted for path, noted in found.journal.items() if path != manifest_path})


def _where(manifest: SchedulerManifest | None, default_config: str, found: Found) -> tuple[str, Location | None]:
    """The flag that names the file with our extender, and that file."""
    if manifest is None:
        return CONFIG, None
    try:
        wiring = find(manifest, default_config, found.files, found.server)
    except SchedulerError:
        wiring = None  # nothing of ours has to be taken from a scheduler that could not be wired
    if wiring is None or wiring.location is None:
        return CONFIG, manifest.location(default_config)
    return wiring.flag or CONFIG, wiring.location


def _policy_map(found: Found, extender: ExtenderEntry, notes: list[str]) -> FileChange | None:
    """The policy's ConfigMap without our extender. The other schedulers have read it at their start, and lose theirs by their own turn."""
    if found.policy is None:
        return None
    text, path = found.policy.text, found.policy.path
    entry = found.journal.get(path)
    policy = _yaml.load(text)
    if entry is not None and entry.original is not None and entry.untouched(text.encode()):
        return FileChange(path, text, entry.original.content.decode())
    if not isinstance(policy, dict) or policy.get("kind") != scheduler_policy.KIND:
        return None
    kept = scheduler_policy.unmerge_policy(policy, extender, _before(entry))
    if kept == policy:
        return FileChange(path, text, text)
    if entry is not None:  # without one, another control plane has put it in
        notes.append(_only_ours(path, entry))
    return FileChange(path, text, policy_text(text, kept))


def _our_config_path(
    manifest: SchedulerManifest | None, location: Location | None, entry: Entry | None, default_config: str, name: str
) -> str | None:
    """The file that the flag of this name names in the manifest if it was us who put it there."""
    if manifest is None or location is None or name not in manifest.flags:
        return None
    if entry is not None and entry.original is not None:
        ours = name not in read_manifest(entry.original.content.decode()).flags
    else:
        ours = VOLUME in manifest.volumes or location.container == default_config
    return location.container if ours else None


def _is_edited(change: FileChange, entry: Entry | None) -> bool:
    """Whether others have changed a configuration since we wrote it. Without a word in the journal it is unknown, so: yes."""
    return entry is None or not entry.untouched(_bytes(change.before))


def _config(path: str, found: Found, extender: scheduler_config.ExtenderEntry, notes: list[str], needed: bool) -> FileChange:
    text, entry = found.files[path], found.journal.get(path)
    if entry is not None and entry.untouched(_bytes(text)) and not (needed and entry.original is None):
        return _original(path, text, entry)
    if text is None:
        return FileChange(path, None, None)
    config = _yaml.load(text)
    if isinstance(config, dict) and config.get("kind") == scheduler_policy.KIND:
        policy = scheduler_policy.unmerge_policy(config, extender, _before(entry))
        if policy != config:
            notes.append(_only_ours(path, entry))
        return FileChange(path, text, policy_text(text, policy))
    if not isinstance(config, dict) or config.get("kind") != scheduler_config.KIND:
        return FileChange(path, text, text)
    noted = found.journal.get(NOTED_PERCENTAGE)
    percentage = None
    if noted is not None and noted.untouched(str(config.get(scheduler_config.PERCENTAGE)).encode()):
        percentage = Percentage(None if noted.original is None else int(noted.original.content))
    kept = without_extender(config, extender, percentage, _before(entry))
    if kept != config:
        notes.append(_only_ours(path, entry))
    return FileChange(path, text, splice(text, kept))


def _manifest(
    path: str, manifest: SchedulerManifest | None, found: Found, ours: tuple[str | None, str], stays: bool, notes: list[str]
) -> FileChange:
    """ours: what `unmerge_manifest` takes out."""
    text, entry = None if manifest is None else manifest.text, found.journal.get(path)
    if entry is not None and entry.untouched(_bytes(text)) and not stays:
        return _original(path, text, entry)
    if manifest is None:
        return FileChange(path, None, None)
    kept = unmerge_manifest(manifest, *ours)
    if kept != manifest.pod and not (entry and entry.untouched(_bytes(text))):
        notes.append(_only_ours(path, entry))
    return FileChange(path, text, splice(manifest.text, kept))


def _cluster(found: Found, ours: str | None, name: str, stays: bool, notes: list[str]) -> FileChange | None:
    if found.cluster is None:
        return None
    text, entry, current = found.cluster, found.journal.get(kubeadm.PATH), _yaml.load(found.cluster)
    path = ours if ours is not None or stays else kubeadm.config_argument(current, name) if _carries_ours(current) else None
    kept = kubeadm.unmerge(current, path, name)
    if kept == current:
        return None
    if found.others:
        notes.append(f"{kubeadm.PATH} stays as it is for the schedulers of {', '.join(found.others)}, which still call our extender")
        return None
    if entry is not None and entry.original is not None and entry.untouched(text.encode()) and not stays:
        return FileChange(kubeadm.PATH, text, entry.original.content.decode())
    if entry is not None and not entry.untouched(text.encode()):  # without one, another control plane has put it in
        notes.append(_only_ours(kubeadm.PATH, entry))
    return FileChange(kubeadm.PATH, text, splice(text, kept))


def _carries_ours(cluster: Any) -> bool:
    """Whether kubeadm's argument `config` names the file in our volume."""
    volumes = (cluster.get("scheduler") or {}).get("extraVolumes") or [] if kubeadm.is_one(cluster) else []
    return any(volume.get("name") == VOLUME for volume in volumes)


def _original(path: str, text: str | None, entry: Entry) -> FileChange:
    if entry.original is None:
        return FileChange(path, text, None)
    return FileChange(path, text, entry.original.content.decode(), entry.original.mode)


def _only_ours(path: str, entry: Entry | None) -> str:
    why = "is not in the journal" if entry is None else "was changed by somebody else since"
    return f"{path} {why}: only our part is taken out"


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _before(entry: Entry | None) -> Any:
    """The configuration or policy as it was before us; None if that is not known."""
    return _yaml.load(entry.original.content) if entry is not None and entry.original is not None else None


def without_extender(config: Any, extender: ExtenderEntry, percentage: Percentage | None, before: Any = None) -> dict[str, Any]:
    """A configuration without our extender. percentage: the value to restore if the present value is ours, None if it is not."""
    kept = scheduler_config.without_extender(check_config(config), extender, before)
    if percentage is not None and percentage.before is None:
        kept.pop(PERCENTAGE, None)
    elif percentage is not None:
        kept[PERCENTAGE] = percentage.before
    return kept
