# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How one host's kube-scheduler files, and kubeadm's ClusterConfiguration, go back to what they would be without us.

Pure. `undo` decides about each of them by its entry in the journal; this file knows our part. A configuration that we made and others have
changed since continues being used, without our part: their settings live in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...module_utils._change.journal import Entry
from ...module_utils._change.undo import WithoutOurs, undo
from ...module_utils._scheduler import kubeadm, scheduler_config
from ...module_utils._scheduler import policy as scheduler_policy
from ...module_utils._scheduler.manifest import CONFIG, TLS_VOLUME, VOLUME, Location, SchedulerError, SchedulerManifest, unmerge_manifest
from ...module_utils._scheduler.scheduler_config import PERCENTAGE, ExtenderEntry, check_config
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
    entry, take_out = found.journal.get(used), _without_extender(found, extender)
    # A file that another --config names must be there, even if it was us who made it.
    is_needed = ours is None and manifest is not None and name in manifest.flags and entry is not None and entry.original is None
    change = _undone(used, found.files[used], found, take_out, notes, is_needed)
    if is_needed and change.differs:
        notes.append(f"{used} stays without our part, because {manifest_path} named it before us")
    changes = [change, *(_undone(path, found.files[path], found, take_out, notes) for path in others)]
    stays = change.after is not None and (entry is None or not entry.untouched(_bytes(change.before)))
    if ours is not None and stays:
        notes.append(f"{used} has settings of others, so {manifest_path} still names it")
        ours = None
    changes.append(_manifest(manifest_path, manifest, found, (ours, name), stays, notes))
    after = None if changes[-1].after is None else read_manifest(changes[-1].after)
    cluster = _cluster(found, ours, name, stays, notes)
    return build(found, manifest, after, changes, [], cluster, _policy_map(found, extender, notes), notes)


def _undone(path: str, text: str | None, found: Found, without_ours: WithoutOurs, notes: list[str], stays: bool = False) -> FileChange:
    """One file, or object of the cluster, without us. stays: whether only our part is taken out even of one that is as we left it."""
    entry, now = found.journal.get(path), _bytes(text)
    known = entry or Entry(path, "", None, ("", ""), True)
    why = "was changed by others since" if entry else "is not in the journal"
    undone = undo(replace(known, others=known.others or stays), now, without_ours, why)
    # Another control plane has put our part into an object that the journal lacks.
    is_said = not entry.untouched(now) if entry else path.startswith("/")
    if is_said and undone.note and undone.content != now:
        notes.append(undone.note)
    original = entry.original if entry is not None and entry.is_file and not undone.note else None
    content = None if undone.content is None else undone.content.decode()
    return FileChange(path, text, content, None if original is None else original.mode)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _without_inherited(found: Found, manifest_path: str) -> Found:
    """The answers without the manifest's original if that has our volumes: kubeadm wrote it so for a host that joined a cluster with us."""
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
    """The policy's ConfigMap without our extender. The other schedulers read it at their start only: each loses ours in its own turn."""
    policy = None if found.policy is None else _yaml.load(found.policy.text)
    if found.policy is None or not isinstance(policy, dict) or policy.get("kind") != scheduler_policy.KIND:
        return None
    return _undone(found.policy.path, found.policy.text, found, _without_extender(found, extender), notes)


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


def _without_extender(found: Found, extender: ExtenderEntry) -> WithoutOurs:
    """A function that takes our extender out of a configuration or policy, and leaves any other text as it is."""
    noted = found.journal.get(NOTED_PERCENTAGE)

    def take_out(_path: str, text: str, text_before: str) -> str:
        config, before = _yaml.load(text), _yaml.load(text_before)
        kind = config.get("kind") if isinstance(config, dict) else None
        if kind == scheduler_policy.KIND:
            return policy_text(text, scheduler_policy.unmerge_policy(config, extender, before))
        if kind != scheduler_config.KIND:
            return text
        percentage = None
        if noted is not None and noted.untouched(str(config.get(PERCENTAGE)).encode()):
            percentage = Percentage(None if noted.original is None else int(noted.original.content))
        return splice(text, without_extender(config, extender, percentage, before))

    return take_out


def _manifest(
    path: str, manifest: SchedulerManifest | None, found: Found, ours: tuple[str | None, str], stays: bool, notes: list[str]
) -> FileChange:
    """The manifest without us. ours: the arguments of `unmerge_manifest`. stays: as `_undone` has it."""
    if manifest is None:
        return FileChange(path, None, None)
    kept = unmerge_manifest(manifest, *ours)
    return _undone(path, manifest.text, found, lambda _path, text, _before: splice(text, kept), notes, stays)


def _cluster(found: Found, ours: str | None, name: str, stays: bool, notes: list[str]) -> FileChange | None:
    if found.cluster is None:
        return None
    current = _yaml.load(found.cluster)
    path = ours if ours is not None or stays else kubeadm.config_argument(current, name) if _carries_ours(current) else None
    kept = kubeadm.unmerge(current, path, name)
    if kept == current:
        return None
    if found.others:
        notes.append(f"{kubeadm.PATH} stays as it is for the schedulers of {', '.join(found.others)}, which still call our extender")
        return None
    return _undone(kubeadm.PATH, found.cluster, found, lambda _path, text, _before: splice(text, kept), notes, stays)


def _carries_ours(cluster: Any) -> bool:
    """Whether kubeadm's argument `config` names the file in our volume."""
    volumes = (cluster.get("scheduler") or {}).get("extraVolumes") or [] if kubeadm.is_cluster_configuration(cluster) else []
    return any(volume.get("name") == VOLUME for volume in volumes)


def without_extender(config: Any, extender: ExtenderEntry, percentage: Percentage | None, before: Any = None) -> dict[str, Any]:
    """A configuration without our extender. percentage: the value to restore if the present value is ours, None if it is not."""
    kept = scheduler_config.without_extender(check_config(config), extender, before)
    if percentage is not None and percentage.before is None:
        kept.pop(PERCENTAGE, None)
    elif percentage is not None:
        kept[PERCENTAGE] = percentage.before
    return kept
