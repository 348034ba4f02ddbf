# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kube-scheduler's static pod: what it says, and the pod with our configuration, its volumes and the annotation that restarts it.

Pure: works on what the YAML files load as, and never changes its arguments.
"""

from __future__ import annotations

import copy
import posixpath
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._cluster.names import ANNOTATION_SCHEDULER_CONFIG
from .._formats.failure import Failure
from .._host import host

VOLUME = "gpushare-scheduler-config"
TLS_VOLUME = "gpushare-pki"
CANDIDATE_PATH = "/gpushare-candidate.yaml"
#: The flags of kube-scheduler that name its configuration, or its policy.
CONFIG, POLICY, POLICY_CONFIGMAP = "config", "policy-config-file", "policy-configmap"


class SchedulerError(Failure, ValueError):
    """The files on the host cannot be merged with; the message says what was found and what to do."""


@dataclass(frozen=True)
class Location:
    """Where the scheduler's configuration, or policy, lies: `host` on the host, `container` as the scheduler sees it."""

    host: str
    container: str


@dataclass(frozen=True)
class SchedulerManifest:
    """kube-scheduler's static pod, parsed once: its manifest, or what the API server says of the pod that kubelet runs.

    text: of the manifest, "" for a pod of the API server. pod: the text, loaded. container: the element of it that is kube-scheduler.
    words: its command line. flags: name to value, "true" for a flag without one. The last of a name counts. image: "" without one.
    volumes: name to hostPath of each volume that has one. mounts: (path on the host, path in the container) of those that it mounts.
    shape: the part that is the same in the manifest and in what the API server says of the pod that kubelet runs.
    """

    text: str
    pod: Dict[str, Any]
    container: Dict[str, Any]
    words: List[str]
    flags: Mapping[str, str]
    image: str
    annotations: Mapping[str, str]
    volumes: Mapping[str, Mapping[str, Any]]
    mounts: List[Tuple[str, str]]
    shape: Dict[str, Any]

    @classmethod
    def parsed(cls, pod: Any, text: str = "") -> "SchedulerManifest":
        """The manifest of a loaded pod. SchedulerError if it is not a Pod, or has not exactly one container that is kube-scheduler."""
        if not isinstance(pod, dict) or pod.get("kind") != "Pod":
            raise SchedulerError("the kube-scheduler manifest must be a Pod; this file is something else")
        found = [c for c in pod.get("spec", {}).get("containers") or [] if is_scheduler(c)]
        if len(found) != 1:
            raise SchedulerError(f"the kube-scheduler manifest must have one container whose command is kube-scheduler; found {len(found)}")
        container, words = found[0], _words(found[0])
        volumes = {v.get("name"): v["hostPath"] for v in pod["spec"].get("volumes") or [] if v.get("hostPath")}
        mounts = [m for m in container.get("volumeMounts") or [] if m.get("name") in volumes and not m.get("subPath")]
        places = [(volumes[m["name"]]["path"], m["mountPath"]) for m in mounts]
        image, annotations = str(container.get("image") or ""), (pod.get("metadata") or {}).get("annotations") or {}
        shape = {"words": words, "mounts": sorted(list(place) for place in places)}
        return cls(text, pod, container, words, host.flags(words), image, annotations, volumes, places, shape)

    def location(self, default: str, name: str = CONFIG) -> Location:
        """The file that the flag of this name names, or `default` if there is no such flag."""
        return self.location_of(self.flags.get(name) or default, default, f"--{name}=")

    def location_of(self, path: str, default: str, said_by: str) -> Location:
        """Where this path of the container lies on the host. said_by: what names it, for the message."""
        host_path = self.host_path(path)
        if host_path is None and path != default:
            raise SchedulerError(
                f"the kube-scheduler manifest has {said_by}{path}, but no hostPath volume is mounted there, so the file "
                "cannot be found on this host; mount it with a hostPath volume"
            )
        return Location(host_path or default, path)

    def host_path(self, path: str) -> Optional[str]:
        """The path on the host of a path in the container, None where no volume of the host is mounted."""
        around = [(target.rstrip("/"), source.rstrip("/")) for source, target in self.mounts]
        around = [(target, source) for target, source in around if path == target or path.startswith(target + "/")]
        target, source = max(around, key=lambda mount: len(mount[0]), default=("", None))
        return None if source is None else source + path[len(target) :]


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
    manifest: SchedulerManifest, location: Optional[Location], config_sha256: str, tls_dir: str = "", name: str = CONFIG
) -> Dict[str, Any]:
    """The static pod with the flag of this name, its volume and the certificates', and the annotation that restarts it.

    All else is as it was. location: None for a policy in a ConfigMap, which needs no flag and no volume. name: "" for a file that
    another one names.
    """
    pod, container = copy.deepcopy((manifest.pod, manifest.container))
    if location is not None and name and name not in manifest.flags:
        container["args" if container.get("args") else "command"].append(f"--{name}={location.container}")
    if location is not None and manifest.host_path(location.container) is None:
        folder, host_folder = posixpath.dirname(location.container), posixpath.dirname(location.host)
        _mount(pod, container, VOLUME, host_folder, folder, "DirectoryOrCreate")
    if tls_dir:
        _mount(pod, container, TLS_VOLUME, tls_dir, tls_dir, "Directory")
    else:
        _unmount(pod, container, TLS_VOLUME)
    if not pod.get("metadata"):
        pod["metadata"] = {}
    if not pod["metadata"].get("annotations"):
        pod["metadata"]["annotations"] = {}
    pod["metadata"]["annotations"][ANNOTATION_SCHEDULER_CONFIG] = config_sha256
    return pod


def unmerge_manifest(manifest: SchedulerManifest, config_path: Optional[str], name: str = CONFIG) -> Dict[str, Any]:
    """The static pod without our annotation and certificates, and without `--name=<config_path>` and its volume (None: they stay)."""
    pod, container = copy.deepcopy((manifest.pod, manifest.container))
    _unmount(pod, container, TLS_VOLUME)
    if config_path is not None:
        _unmount(pod, container, VOLUME)
        for key in ("command", "args"):
            if f"--{name}={config_path}" in (container.get(key) or []):
                container[key] = [word for word in container[key] if word != f"--{name}={config_path}"]
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if annotations.pop(ANNOTATION_SCHEDULER_CONFIG, None) is not None and not annotations:
        del pod["metadata"]["annotations"]
    return pod


def annotation_in(manifest: str) -> Optional[str]:
    """The hash of our configuration in the text of a manifest, None if there is none (hosts have no YAML parser)."""
    found = re.search(re.escape(ANNOTATION_SCHEDULER_CONFIG) + r"[\"']?:\s*[\"']?([0-9a-f]{64})", manifest)
    return found.group(1) if found else None


def is_scheduler(container: Mapping[str, Any]) -> bool:
    """Whether a container of a pod runs kube-scheduler."""
    line = _words(container)
    return bool(line) and posixpath.basename(line[0]) == "kube-scheduler"


def candidate_command(manifest: SchedulerManifest, name: str = CONFIG) -> List[str]:
    """The scheduler's own command, reading the configuration or policy at CANDIDATE_PATH, printing what it understood, and ending.

    name: the flag that names the file. The command has such a flag only if the manifest has one.
    """
    command, skip = [], False
    for word in manifest.words:
        if skip:
            skip = False
        elif word in (f"--{name}", f"-{name}"):
            skip = True
        elif not word.startswith((f"--{name}=", f"-{name}=")):
            command.append(word)
    if name in manifest.flags:
        command.append(f"--{name}={CANDIDATE_PATH}")
    return command + ["--write-config-to=/dev/stdout"]


def _words(container: Mapping[str, Any]) -> List[str]:
    return [str(word) for word in [*(container.get("command") or []), *(container.get("args") or [])]]


def _mount(pod: Dict[str, Any], container: Dict[str, Any], name: str, host_path: str, mount_path: str, kind: str) -> None:
    _put(pod["spec"], "volumes", {"name": name, "hostPath": {"path": host_path, "type": kind}})
    _put(container, "volumeMounts", {"name": name, "mountPath": mount_path, "readOnly": True})


def _unmount(pod: Dict[str, Any], container: Dict[str, Any], name: str) -> None:
    for parent, key in ((pod["spec"], "volumes"), (container, "volumeMounts")):
        kept = [item for item in parent.get(key) or [] if item.get("name") != name]
        if kept:
            parent[key] = kept
        elif parent.get(key):
            del parent[key]


def _put(parent: Dict[str, Any], key: str, wanted: Dict[str, Any]) -> None:
    """Add `wanted` to a list of named things, in the place of one of the same name."""
    items = parent.get(key) or []
    kept = [wanted if item.get("name") == wanted["name"] else item for item in items]
    parent[key] = kept if wanted in kept else [*items, wanted]
