# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""kube-scheduler's configuration with our extender in it, merged into the present one or made anew.

Private to this collection. Pure: works on what the YAML files load as, and never changes its arguments.
"""

from __future__ import annotations

import copy
import posixpath
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import COMPUTE, NAMESPACE, SCHEDULER_TLS_FILES
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.manifest import SchedulerError, flag

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"
PERCENTAGE = "percentageOfNodesToScore"
DEFAULT_KUBECONFIG = "/etc/kubernetes/scheduler.conf"
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
        ca, certificate, key = (posixpath.join(self.tls_dir, name) for name in SCHEDULER_TLS_FILES)
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
class Lease:
    """The lease that the active scheduler holds."""

    namespace: str
    name: str


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


def lease(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> Optional[Lease]:
    """The lease that this scheduler competes for, None without leader election. Flags win over the configuration."""
    section = config.get("leaderElection") or {}
    elect = flag(manifest, "leader-elect")
    if not (_boolean(elect) if elect is not None else section.get("leaderElect", True)):
        return None
    return Lease(
        flag(manifest, "leader-elect-resource-namespace") or section.get("resourceNamespace") or NAMESPACE,
        flag(manifest, "leader-elect-resource-name") or section.get("resourceName") or "kube-scheduler",
    )


def scheduler_name(config: Mapping[str, Any]) -> str:
    """The name by which a pod asks for this scheduler."""
    profiles = config.get("profiles") or [{}]
    return str(profiles[0].get("schedulerName") or "default-scheduler")


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


def _boolean(value: str) -> bool:
    if value.lower() in ("true", "t", "1"):
        return True
    if value.lower() in ("false", "f", "0"):
        return False
    raise SchedulerError(f"a flag of kube-scheduler must be true or false; found {value!r}")
