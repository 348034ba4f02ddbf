# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler's part of kubeadm's ClusterConfiguration, from which `kubeadm upgrade apply` writes the static pod again.

Pure: works on what the YAML text loads as, and never changes its arguments. Its versions up to v1, which kubeadm 1.38.0-beta.0 reads with
--allow-experimental-api alone, were compared on 2026-11-29 (cmd/kubeadm/app/apis/kubeadm).
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._cluster.names import NAMESPACE
from .._formats.yaml_scalars import scalars
from .manifest import CONFIG, TLS_VOLUME, VOLUME, SchedulerError, SchedulerManifest

NAME, KEY = "kubeadm-config", "ClusterConfiguration"
# The name of the ClusterConfiguration in the journal and in the header of a diff.
PATH = f"configmap:{NAMESPACE}/{NAME}/{KEY}"
_GATES, _MOST_GATES, _SHOWN = "featureGates.", 100, 80
# Up to these, arguments are a map; from v1beta4 on a list, because a flag may be given several times.
_GROUP = "kubeadm.k8s.io/"
_WITH_MAPS = ("kubeadm.k8s.io/v1beta1", "kubeadm.k8s.io/v1beta2", "kubeadm.k8s.io/v1beta3")


def config_argument(cluster: Mapping[str, Any], name: str = CONFIG) -> Optional[str]:
    """The value of the scheduler's argument of this name, None if there is none."""
    arguments = _scheduler(cluster).get("extraArgs") or []
    if isinstance(arguments, Mapping):
        arguments = [{"name": key, "value": value} for key, value in arguments.items()]
    found = [argument.get("value") for argument in arguments if _sets(argument, name)]
    return found[-1] if found else None


def merge(cluster: Any, manifest: SchedulerManifest, name: str = CONFIG) -> Dict[str, Any]:
    """The ClusterConfiguration by which kubeadm writes the flag of this name, with the volumes that it needs. All else stays.

    Another argument of this name that is there stays as well: it is a decision of others.
    """
    merged = copy.deepcopy(_checked(cluster))
    scheduler = merged["scheduler"] = dict(_scheduler(merged))
    path = manifest.flags.get(name)
    if path is not None and config_argument(merged, name) is None:
        arguments = scheduler.get("extraArgs") or ({} if merged.get("apiVersion") in _WITH_MAPS else [])
        if isinstance(arguments, list):
            scheduler["extraArgs"] = [*arguments, {"name": name, "value": path}]
        else:
            scheduler["extraArgs"] = {**arguments, name: path}
    volumes: List[Dict[str, Any]] = list(scheduler.get("extraVolumes") or [])
    needed = _volumes(manifest, path)
    kept = [volume for volume in volumes if volume.get("name") != TLS_VOLUME or any(new["name"] == TLS_VOLUME for new in needed)]
    for new in needed:
        same = [place for place, volume in enumerate(kept) if volume.get("name") == new["name"]]
        if same:
            kept[same[0]] = new
        elif not any(volume.get("mountPath") == new["mountPath"] for volume in kept):
            kept.append(new)
    _put_back(scheduler, "extraVolumes", kept)
    return merged


def without_argument(cluster: Any, name: str, before: Any) -> Dict[str, Any]:
    """The ClusterConfiguration without the argument of this name, and without the volume of its file.

    before: the ClusterConfiguration as it was before us. An argument or a volume that it has stays: others have decided so.
    """
    kept = copy.deepcopy(_checked(cluster))
    path, known = config_argument(kept, name), _scheduler(before) if isinstance(before, dict) else None
    if path is None or known is None or config_argument(before, name) is not None:
        return kept
    scheduler = kept["scheduler"] = dict(_scheduler(kept))
    _drop_arguments(scheduler, name)
    volumes, there = scheduler.get("extraVolumes") or [], known.get("extraVolumes") or []
    left = [volume for volume in volumes if not _holds(volume, path) or volume in there or volume.get("name") == VOLUME]
    _put_back(scheduler, "extraVolumes", left)
    return kept


def version_and_gates(text: str) -> Tuple[str, List[str]]:
    """The version of a ClusterConfiguration, such as "v1beta4", and the names of kubeadm's feature gates in it.

    text: as the cluster has it, on a host without a YAML library. "" where it is none.
    """
    values = scalars(text)
    version = values.get("apiVersion", "")
    gates = [key[len(_GATES) :][:_SHOWN] for key in values if key.startswith(_GATES)]
    return version[len(_GROUP) :][:_SHOWN] if version.startswith(_GROUP) else "", gates[:_MOST_GATES]


def is_cluster_configuration(cluster: Any) -> bool:
    """Whether a document that YAML has loaded is kubeadm's ClusterConfiguration."""
    return isinstance(cluster, dict) and cluster.get("kind") == KEY


def is_alpha(cluster: Any) -> bool:
    """Whether a kubeadm older than 1.13 wrote this configuration, in which the scheduler has no section of its own."""
    return isinstance(cluster, dict) and str(cluster.get("apiVersion")).startswith("kubeadm.k8s.io/v1alpha")


def unmerge(cluster: Any, config_path: Optional[str], name: str = CONFIG) -> Dict[str, Any]:
    """The ClusterConfiguration without our volumes, and without the argument of this name if it is `config_path` (None: it stays)."""
    kept = copy.deepcopy(_checked(cluster))
    scheduler = dict(_scheduler(kept))
    ours = {TLS_VOLUME} if config_path is None else {TLS_VOLUME, VOLUME}
    volumes = [volume for volume in scheduler.get("extraVolumes") or [] if volume.get("name") not in ours]
    _put_back(scheduler, "extraVolumes", volumes)
    if config_path is not None and config_argument(kept, name) == config_path:
        _drop_arguments(scheduler, name, config_path)
    if scheduler != _scheduler(kept):
        kept["scheduler"] = scheduler
    return kept


def _checked(cluster: Any) -> Dict[str, Any]:
    if not is_cluster_configuration(cluster):
        found = cluster.get("kind") if isinstance(cluster, dict) else type(cluster).__name__
        raise SchedulerError(f"ConfigMap {NAMESPACE}/{NAME} must hold a {KEY}; found {found!r}")
    scheduler = cluster.get("scheduler") or {}
    arguments, volumes = ((scheduler.get(key) or []) if isinstance(scheduler, dict) else None for key in ("extraArgs", "extraVolumes"))
    listed = isinstance(arguments, dict) or (isinstance(arguments, list) and all(isinstance(argument, dict) for argument in arguments))
    if not listed or not isinstance(volumes, list) or not all(isinstance(volume, dict) for volume in volumes):
        raise SchedulerError(
            f"{PATH} is {str(cluster.get('apiVersion'))[:_SHOWN]!r}, whose scheduler has another form than kubeadm's versions up to v1; "
            "expected extraArgs (a map, or a list of name and value) and extraVolumes (a list): correct it, or take a newer release of "
            "this collection"
        )
    known: Dict[str, Any] = cluster
    return known


def _sets(argument: Mapping[str, Any], name: str) -> bool:
    """Whether an argument gives the scheduler this flag. In v1 one with a mergeMethod only adds to a flag of kubeadm's own."""
    return argument.get("name") == name and not argument.get("mergeMethod")


def _scheduler(cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    return cluster.get("scheduler") or {}


def _volumes(manifest: SchedulerManifest, config_path: Optional[str]) -> List[Dict[str, Any]]:
    """The mounts that carry the configuration and our certificates, as kubeadm's extraVolumes."""
    found = []
    for mount in manifest.container.get("volumeMounts") or []:
        inside = config_path is not None and (config_path + "/").startswith(mount["mountPath"].rstrip("/") + "/")
        source = manifest.volumes.get(mount.get("name"))
        if source is None or mount.get("subPath") or not (inside or mount["name"] == TLS_VOLUME):
            continue
        volume = {"name": mount["name"], "hostPath": source["path"], "mountPath": mount["mountPath"]}
        if mount.get("readOnly"):
            volume["readOnly"] = True
        if source.get("type"):
            volume["pathType"] = source["type"]
        found.append(volume)
    return found


def _holds(volume: Mapping[str, Any], path: str) -> bool:
    return (path + "/").startswith(str(volume.get("mountPath")).rstrip("/") + "/")


def _drop_arguments(scheduler: Dict[str, Any], name: str, value: Optional[str] = None) -> None:
    """Take the arguments of this name out, or only those that also have this value."""
    arguments: Any = scheduler["extraArgs"]
    if isinstance(arguments, Mapping):
        arguments = {key: argument for key, argument in arguments.items() if key != name}
    else:
        arguments = [argument for argument in arguments if not _sets(argument, name) or value not in (None, argument.get("value"))]
    _put_back(scheduler, "extraArgs", arguments)


def _put_back(parent: Dict[str, Any], key: str, items: Any) -> None:
    """Set a key. A key whose items are empty is deleted, because kubeadm does not write it either."""
    if items:
        parent[key] = items
    elif parent.get(key):
        del parent[key]
