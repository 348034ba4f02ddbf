# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kube-scheduler's static pod: where it reads its configuration, and the pod with ours, its volumes and the annotation that restarts it.

Pure: works on what the YAML files load as, and never changes its arguments.
"""

from __future__ import annotations

import copy
import posixpath
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._cluster.names import ANNOTATION_SCHEDULER_CONFIG
from .._host import host

VOLUME = "gpushare-scheduler-config"
TLS_VOLUME = "gpushare-pki"
CANDIDATE_PATH = "/gpushare-candidate.yaml"


class SchedulerError(ValueError):
    """The files on the host cannot be merged with; the message says what was found and what to do."""


@dataclass(frozen=True)
class Location:
    """Where the scheduler's configuration, or policy, lies: `host` on the host, `container` as the scheduler sees it."""

    host: str
    container: str


CONFIG, POLICY, POLICY_CONFIGMAP = "config", "policy-config-file", "policy-configmap"


def config_location(manifest: Mapping[str, Any], default: str, name: str = CONFIG) -> Location:
    """The file that the flag of this name names, or `default` if the manifest names none."""
    return location_of(manifest, flag(manifest, name) or default, default, f"--{name}=")


def location_of(manifest: Mapping[str, Any], container_path: str, default: str, said_by: str) -> Location:
    """Where this path of the container lies on the host. said_by: what names it, for the message."""
    host_path = _host_path(manifest, container_path)
    if host_path is None and container_path != default:
        raise SchedulerError(
            f"the kube-scheduler manifest has {said_by}{container_path}, but no hostPath volume is mounted there, so the file "
            "cannot be found on this host; mount it with a hostPath volume"
        )
    return Location(host_path or default, container_path)


def config_paths(manifest: str) -> List[str]:
    """Paths that the text of a manifest may mean by `--config` and `--policy-config-file`: a host without a YAML parser sends these
    files along."""
    return re.findall(r"--?(?:policy-)?config(?:-file)?[=\s\"',-]+(/[^]\s\"',]+)", manifest)


def policy_configmap(manifest: str) -> Optional[Tuple[str, str]]:
    """(namespace, name) of the ConfigMap that the text of a manifest may name as the scheduler's policy."""
    found = [re.search(rf"--?policy-configmap{end}[=\s\"',-]+([a-z0-9.-]{{1,253}})", manifest) for end in ("-namespace", "")]
    namespace, name = (match.group(1) if match else None for match in found)
    return None if name is None else (namespace or "kube-system", name)


def merge_manifest(
    manifest: Mapping[str, Any], location: Optional[Location], config_sha256: str, tls_dir: str = "", name: str = CONFIG
) -> Dict[str, Any]:
    """The static pod with the flag of this name, its volume and the certificates', and the annotation that restarts it.

    All else is as it was. location: None for a policy in a ConfigMap, which needs no flag and no volume. name: "" for a file that
    another one names.
    """
    merged: Dict[str, Any] = copy.deepcopy(dict(manifest))
    container = scheduler_container(merged)
    if location is not None and name and flag(merged, name) is None:
        container["args" if container.get("args") else "command"].append(f"--{name}={location.container}")
    if location is not None and _host_path(merged, location.container) is None:
        folder, host_folder = posixpath.dirname(location.container), posixpath.dirname(location.host)
        _mount(merged, VOLUME, host_folder, folder, "DirectoryOrCreate")
    if tls_dir:
        _mount(merged, TLS_VOLUME, tls_dir, tls_dir, "Directory")
    else:
        unmount(merged, TLS_VOLUME)
    if not merged.get("metadata"):
        merged["metadata"] = {}
    if not merged["metadata"].get("annotations"):
        merged["metadata"]["annotations"] = {}
    merged["metadata"]["annotations"][ANNOTATION_SCHEDULER_CONFIG] = config_sha256
    return merged


def unmount(manifest: Dict[str, Any], name: str) -> None:
    """Take a volume out of a manifest in place."""
    for parent, key in ((manifest["spec"], "volumes"), (scheduler_container(manifest), "volumeMounts")):
        kept = [item for item in parent.get(key) or [] if item.get("name") != name]
        if kept:
            parent[key] = kept
        elif parent.get(key):
            del parent[key]


def flag(manifest: Mapping[str, Any], name: str) -> Optional[str]:
    """The value of a flag of kube-scheduler, "true" for one without a value, None if it is not given. The last one counts."""
    return host.flag(words(manifest), name)


def annotation_in(manifest: str) -> Optional[str]:
    """The hash of our configuration in the text of a manifest, None if there is none (hosts have no YAML parser)."""
    found = re.search(re.escape(ANNOTATION_SCHEDULER_CONFIG) + r"[\"']?:\s*[\"']?([0-9a-f]{64})", manifest)
    return found.group(1) if found else None


def is_scheduler(container: Mapping[str, Any]) -> bool:
    """Whether a container of a pod runs kube-scheduler."""
    line = _words(container)
    return bool(line) and posixpath.basename(line[0]) == "kube-scheduler"


def image(manifest: Mapping[str, Any]) -> str:
    """The image of the scheduler's container, "" without one."""
    return str(scheduler_container(manifest).get("image") or "")


def shape(pod: Mapping[str, Any]) -> Dict[str, Any]:
    """The part of a scheduler's pod that is the same in its manifest and in what the API server says of the pod that kubelet runs."""
    return {"words": words(pod), "mounts": sorted(list(mount) for mount in host_mounts(pod))}


def words(manifest: Mapping[str, Any]) -> List[str]:
    """The scheduler's command line."""
    return _words(scheduler_container(manifest))


def candidate_command(manifest: Mapping[str, Any], name: str = CONFIG) -> List[str]:
    """The scheduler's own command, reading the configuration or policy at CANDIDATE_PATH, printing what it understood, and ending.

    name: of the flag that names it. Without any if the manifest has none.
    """
    command, skip = [], False
    for word in words(manifest):
        if skip:
            skip = False
        elif word in (f"--{name}", f"-{name}"):
            skip = True
        elif not word.startswith((f"--{name}=", f"-{name}=")):
            command.append(word)
    if flag(manifest, name) is not None:
        command.append(f"--{name}={CANDIDATE_PATH}")
    return command + ["--write-config-to=/dev/stdout"]


def host_mounts(manifest: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """(path on the host, path in the container) of each hostPath volume of the scheduler's container."""
    volumes = {v.get("name"): v["hostPath"]["path"] for v in manifest["spec"].get("volumes") or [] if v.get("hostPath")}
    mounts = scheduler_container(manifest).get("volumeMounts") or []
    return [(volumes[m["name"]], m["mountPath"]) for m in mounts if m.get("name") in volumes and not m.get("subPath")]


def scheduler_container(manifest: Mapping[str, Any]) -> Dict[str, Any]:
    """The container of the static pod that is kube-scheduler, itself and not a copy; SchedulerError if there is not exactly one."""
    if not isinstance(manifest, dict) or manifest.get("kind") != "Pod":
        raise SchedulerError("the kube-scheduler manifest must be a Pod; this file is something else")
    found = [c for c in manifest.get("spec", {}).get("containers") or [] if is_scheduler(c)]
    if len(found) != 1:
        raise SchedulerError(f"the kube-scheduler manifest must have one container whose command is kube-scheduler; found {len(found)}")
    container: Dict[str, Any] = found[0]
    return container


def _words(container: Mapping[str, Any]) -> List[str]:
    return [str(word) for word in [*(container.get("command") or []), *(container.get("args") or [])]]


def _host_path(manifest: Mapping[str, Any], container_path: str) -> Optional[str]:
    best: Optional[Tuple[str, str]] = None
    for source, target in host_mounts(manifest):
        target = target.rstrip("/")
        inside = container_path == target or container_path.startswith(target + "/")
        if inside and (best is None or len(target) > len(best[1])):
            best = (source.rstrip("/"), target)
    return None if best is None else best[0] + container_path[len(best[1]) :]


def _mount(manifest: Dict[str, Any], name: str, host_path: str, mount_path: str, kind: str) -> None:
    _put(manifest["spec"], "volumes", {"name": name, "hostPath": {"path": host_path, "type": kind}})
    _put(scheduler_container(manifest), "volumeMounts", {"name": name, "mountPath": mount_path, "readOnly": True})


def _put(parent: Dict[str, Any], key: str, wanted: Dict[str, Any]) -> None:
    """Add `wanted` to a list of named things, in the place of one of the same name."""
    items = parent.get(key) or []
    kept = [wanted if item.get("name") == wanted["name"] else item for item in items]
    parent[key] = kept if wanted in kept else [*items, wanted]
