# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kube-scheduler manifest and configuration that call our extender, made from those that are there.

Private to this collection. Pure: works on what the YAML files load as, and never changes its arguments.
"""

from __future__ import annotations

import copy
import posixpath
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"
# On the static pod: a configuration that changes alone would not restart the scheduler.
ANNOTATION = "gpushare.kubernetes/scheduler-config-sha256"
VOLUME = "gpushare-scheduler-config"
TLS_VOLUME = "gpushare-pki"
TLS_FILES = ("ca.crt", "tls.crt", "tls.key")
PERCENTAGE = "percentageOfNodesToScore"
DEFAULT_KUBECONFIG = "/etc/kubernetes/scheduler.conf"
# No device plugin registers it: the extender alone accounts for it, and kube-scheduler must not look for it among a node's resources.
COMPUTE = "aliyun.com/gpu-core.percentage"
CANDIDATE_PATH = "/gpushare-candidate.yaml"

# kube-scheduler ignores these flags once it is given --config: their values move into a new configuration.
_FLAGS_OF_CONFIG = (
    ("kubeconfig", ("clientConnection", "kubeconfig"), str),
    ("kube-api-content-type", ("clientConnection", "contentType"), str),
    ("kube-api-qps", ("clientConnection", "qps"), float),
    ("kube-api-burst", ("clientConnection", "burst"), int),
    ("profiling", ("enableProfiling",), bool),
    ("contention-profiling", ("enableContentionProfiling",), bool),
    ("leader-elect", ("leaderElection", "leaderElect"), bool),
)


class SchedulerError(ValueError):
    """What is on the host cannot be merged with; the message says what was found and what to do."""


@dataclass(frozen=True)
class Extender:
    """How kube-scheduler is to call the extender. http_timeout as Go writes durations, such as "1s".

    tls_dir: the folder with ca.crt, tls.crt and tls.key, on the host and in the container; "" for plain http.
    preemption: whether it is asked which pods have to go, where a pod of higher priority has no room.
    """

    url_prefix: str
    weight: int
    http_timeout: str
    managed_resources: Tuple[str, ...]
    tls_dir: str = ""
    preemption: bool = True

    def entry(self) -> Dict[str, Any]:
        """The element of `extenders` in a KubeSchedulerConfiguration."""
        ca, certificate, key = (posixpath.join(self.tls_dir, name) for name in TLS_FILES)
        entry = {
            "urlPrefix": self.url_prefix,
            "filterVerb": "filter",
            **({"preemptVerb": "preempt"} if self.preemption else {}),
            "prioritizeVerb": "prioritize",
            "bindVerb": "bind",
            "weight": self.weight,
            "enableHTTPS": self.url_prefix.startswith("https:"),
            "httpTimeout": self.http_timeout,
            "nodeCacheCapable": True,
            "ignorable": False,
            "managedResources": [{"name": name, "ignoredByScheduler": name == COMPUTE} for name in self.managed_resources],
        }
        if self.tls_dir:
            entry["tlsConfig"] = {"certFile": certificate, "keyFile": key, "caFile": ca}
        return entry


@dataclass(frozen=True)
class Location:
    """Where the scheduler's configuration lies: `host` on the host, `container` as the scheduler sees it."""

    host: str
    container: str


@dataclass(frozen=True)
class Lease:
    """The lease that the active scheduler holds."""

    namespace: str
    name: str


def config_location(manifest: Mapping[str, Any], default: str) -> Location:
    """The file that `--config` names, or `default` if the manifest names none."""
    container_path = flag(manifest, "config") or default
    host_path = _host_path(manifest, container_path)
    if host_path is None and container_path != default:
        raise SchedulerError(
            f"the kube-scheduler manifest has --config={container_path}, but no hostPath volume is mounted there, so the file "
            "cannot be found on this host; mount it with a hostPath volume"
        )
    return Location(host_path or default, container_path)


def config_paths(manifest: str) -> List[str]:
    """Paths that the text of a manifest may mean by `--config`: a host without a YAML parser sends these files along."""
    return re.findall(r"--?config[=\s\"',-]+(/[^]\s\"',]+)", manifest)


def check_config(config: Any) -> Dict[str, Any]:
    """The configuration, if it is one that we can merge with; SchedulerError if not."""
    if not isinstance(config, dict) or config.get("kind") != KIND:
        found = config.get("kind") if isinstance(config, dict) else type(config).__name__
        raise SchedulerError(f"the scheduler's configuration must be a {KIND}; found {found!r}")
    if config.get("apiVersion") != API_VERSION:
        raise SchedulerError(
            f"the scheduler's configuration must have apiVersion {API_VERSION}; found {config.get('apiVersion')!r}: "
            "convert it (kube-scheduler --config OLD --write-config-to NEW), then run again"
        )
    return config


def merge_config(current: Optional[Any], manifest: Mapping[str, Any], extender: Extender, percentage: Optional[int]) -> Dict[str, Any]:
    """The KubeSchedulerConfiguration with our extender in it: `current` and nothing else changed, or a new one.

    percentage: what percentageOfNodesToScore shall be; None: as it is.
    """
    merged = _new_config(manifest) if current is None else copy.deepcopy(check_config(current))
    if percentage is not None:
        merged[PERCENTAGE] = percentage
    extenders = list(merged.get("extenders") or [])
    ours = [place for place, entry in enumerate(extenders) if is_ours(entry, extender)]
    for place, entry in enumerate(extenders):
        if place not in ours and entry.get("bindVerb"):
            raise SchedulerError(
                f"extenders[{place}] ({entry.get('urlPrefix')}) has bindVerb {entry['bindVerb']!r}, and kube-scheduler allows one "
                "extender that binds: remove that verb, or run a second scheduler for GPU pods"
            )
    if ours:
        extenders[ours[0]] = extender.entry()
        extenders = [entry for place, entry in enumerate(extenders) if place not in ours[1:]]
    else:
        extenders.append(extender.entry())
    merged["extenders"] = extenders
    return merged


def merge_manifest(manifest: Mapping[str, Any], location: Location, config_sha256: str, tls_dir: str = "") -> Dict[str, Any]:
    """The static pod with `--config`, its volume and the certificates', and the annotation that restarts it; all else as it was."""
    merged: Dict[str, Any] = copy.deepcopy(dict(manifest))
    container = scheduler_container(merged)
    if flag(merged, "config") is None:
        container["args" if container.get("args") else "command"].append(f"--config={location.container}")
    if _host_path(merged, location.container) is None:
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
    merged["metadata"]["annotations"][ANNOTATION] = config_sha256
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
    value = None
    line = words(manifest)
    for place, word in enumerate(line):
        key, equals, rest = word.partition("=")
        if key not in ("--" + name, "-" + name):
            continue
        following = line[place + 1] if place + 1 < len(line) else "-"
        value = rest if equals else ("true" if following.startswith("-") else following)
    return value


def lease(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> Optional[Lease]:
    """The lease that this scheduler competes for, None without leader election. Flags win over the configuration."""
    section = config.get("leaderElection") or {}
    elect = flag(manifest, "leader-elect")
    if not (_boolean(elect) if elect is not None else section.get("leaderElect", True)):
        return None
    return Lease(
        flag(manifest, "leader-elect-resource-namespace") or section.get("resourceNamespace") or "kube-system",
        flag(manifest, "leader-elect-resource-name") or section.get("resourceName") or "kube-scheduler",
    )


def scheduler_name(config: Mapping[str, Any]) -> str:
    """The name by which a pod asks for this scheduler."""
    profiles = config.get("profiles") or [{}]
    return str(profiles[0].get("schedulerName") or "default-scheduler")


def annotation_in(manifest: str) -> Optional[str]:
    """The hash of our configuration in the text of a manifest, None if there is none (hosts have no YAML parser)."""
    found = re.search(re.escape(ANNOTATION) + r"[\"']?:\s*[\"']?([0-9a-f]{64})", manifest)
    return found.group(1) if found else None


def is_scheduler(container: Mapping[str, Any]) -> bool:
    """Whether a container of a pod runs kube-scheduler."""
    line = _words(container)
    return bool(line) and posixpath.basename(line[0]) == "kube-scheduler"


def image(manifest: Mapping[str, Any]) -> str:
    """The image of the scheduler's container."""
    return str(scheduler_container(manifest)["image"])


def shape(pod: Mapping[str, Any]) -> Dict[str, Any]:
    """What of a scheduler's pod is the same in its manifest and in what the API server says of the pod that kubelet runs."""
    return {"words": words(pod), "mounts": sorted(list(mount) for mount in host_mounts(pod))}


def words(manifest: Mapping[str, Any]) -> List[str]:
    """The scheduler's command line."""
    return _words(scheduler_container(manifest))


def candidate_command(manifest: Mapping[str, Any]) -> List[str]:
    """The scheduler's own command, reading the configuration at CANDIDATE_PATH, printing what it understood, and ending.

    Without any configuration if the manifest names none.
    """
    command, skip = [], False
    for word in words(manifest):
        if skip:
            skip = False
        elif word in ("--config", "-config"):
            skip = True
        elif not word.startswith(("--config=", "-config=")):
            command.append(word)
    if flag(manifest, "config") is not None:
        command.append(f"--config={CANDIDATE_PATH}")
    return command + ["--write-config-to=/dev/stdout"]


def host_mounts(manifest: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """(path on the host, path in the container) of each hostPath volume of the scheduler's container."""
    volumes = {v.get("name"): v["hostPath"]["path"] for v in manifest["spec"].get("volumes") or [] if v.get("hostPath")}
    mounts = scheduler_container(manifest).get("volumeMounts") or []
    return [(volumes[m["name"]], m["mountPath"]) for m in mounts if m.get("name") in volumes and not m.get("subPath")]


def _new_config(manifest: Mapping[str, Any]) -> Dict[str, Any]:
    config: Dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "clientConnection": {"kubeconfig": DEFAULT_KUBECONFIG},
        "leaderElection": {"leaderElect": True},
    }
    for name, path, kind in _FLAGS_OF_CONFIG:
        value = flag(manifest, name)
        if value is None:
            continue
        section = config
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = _boolean(value) if kind is bool else kind(value)
    return config


def is_ours(entry: Mapping[str, Any], extender: Extender) -> bool:
    """Whether an element of `extenders` is for the same address or resources as ours."""
    managed = {resource.get("name") for resource in entry.get("managedResources") or []}
    return entry.get("urlPrefix") == extender.url_prefix or bool(managed & set(extender.managed_resources))


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


def _boolean(value: str) -> bool:
    if value.lower() in ("true", "t", "1"):
        return True
    if value.lower() in ("false", "f", "0"):
        return False
    raise SchedulerError(f"a flag of kube-scheduler must be true or false; found {value!r}")
