# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kube-scheduler's configuration with our extender in it, merged into the present one or made new.

Pure: works on what the YAML files load as, and never changes its arguments.
"""

from __future__ import annotations

import copy
import posixpath
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._cluster.names import COMPUTE, NAMESPACE, SCHEDULER_TLS_FILES
from . import releases
from .manifest import SchedulerError, SchedulerManifest
from .releases import Release

KIND = "KubeSchedulerConfiguration"
PERCENTAGE = "percentageOfNodesToScore"
# Up to so many nodes every one of them is scored: a pod must not be unschedulable because of a sample.
ALL_NODES_UP_TO = 500
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
    ("leader-elect-lease-duration", ("leaderElection", "leaseDuration"), str),
    ("leader-elect-renew-deadline", ("leaderElection", "renewDeadline"), str),
    ("leader-elect-retry-period", ("leaderElection", "retryPeriod"), str),
    ("leader-elect-resource-lock", ("leaderElection", "resourceLock"), str),
    ("lock-object-namespace", ("leaderElection", "resourceNamespace"), str),
    ("lock-object-name", ("leaderElection", "resourceName"), str),
    ("leader-elect-resource-namespace", ("leaderElection", "resourceNamespace"), str),
    ("leader-elect-resource-name", ("leaderElection", "resourceName"), str),
)
# Flags of Kubernetes up to 1.22 that a configuration can say in another form only, and their defaults.
_NOT_CARRIED = (
    ("algorithm-provider", "DefaultProvider"),
    ("hard-pod-affinity-symmetric-weight", "1"),
    ("scheduler-name", "default-scheduler"),
)
_INSECURE_PORT = 10251
#: Where kube-scheduler up to 1.22 listens without TLS. From 1.23 on it does not start with a port there.
_ADDRESSES = ("healthzBindAddress", "metricsBindAddress")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_NANOSECONDS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
#: The values that kube-scheduler takes where an entry lacks the key.
_DEFAULTS = {"weight": 0, "enableHTTPS": False, "nodeCacheCapable": False, "ignorable": False, "httpTimeout": "5s"}
#: `differing` leaves these out: its caller compares them itself.
_APART = ("urlPrefix", "filterVerb", "bindVerb", "managedResources")
_SHOWN = 120


@dataclass(frozen=True)
class ExtenderEntry:
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


def percentage_by_default(nodes: int) -> int:
    """percentageOfNodesToScore of a cluster with so many nodes; 0 is Kubernetes' own sampling."""
    return 100 if nodes <= ALL_NODES_UP_TO else 0


def differing(entry: Mapping[str, Any], extender: ExtenderEntry) -> Dict[str, Tuple[str, str]]:
    """The fields of an entry of a configuration that differ from what we write: name to (present value, wanted value), as messages."""
    wanted = {"preemptVerb": None, "tlsConfig": None, **extender.entry()}
    found = {}
    for name, wish in wanted.items():
        if name in _APART:
            continue
        has = entry.get("enableHttps" if name == "enableHTTPS" and "enableHttps" in entry else name, _DEFAULTS.get(name))
        same = _nanoseconds(has) == _nanoseconds(wish) if name == "httpTimeout" else (has or None) == (wish or None)
        if not same:
            found[name] = str(has)[:_SHOWN], str(wish)
    return found


def _nanoseconds(duration: object) -> object:
    """The nanoseconds of a Go duration. The number that a policy has, and anything else, stays as it is."""
    if not isinstance(duration, str) or not re.fullmatch(f"(?:{_DURATION.pattern})+", duration[:_SHOWN]):
        return duration
    return round(sum(float(number) * _NANOSECONDS[unit] for number, unit in _DURATION.findall(duration)))


def policy_entry(extender: ExtenderEntry) -> Dict[str, Any]:
    """The element of `extenders` in a Policy: the same, except for the name of one key, and a timeout in nanoseconds."""
    entry = {"enableHttps" if key == "enableHTTPS" else key: value for key, value in extender.entry().items()}
    entry["httpTimeout"] = _nanoseconds(extender.http_timeout)
    return entry


@dataclass(frozen=True)
class SchedulerLock:
    """The lock that the active scheduler holds. by: "leases" for a Lease, "endpoints" for an annotation of Endpoints."""

    namespace: str
    name: str
    by: str = "leases"


def check_config(config: Any, release: Optional[Release] = None) -> Dict[str, Any]:
    """The configuration itself. SchedulerError if we cannot merge with it. release: the release of the scheduler, None if unknown."""
    if not isinstance(config, dict) or config.get("kind") != KIND:
        found = config.get("kind") if isinstance(config, dict) else type(config).__name__
        raise SchedulerError(f"the scheduler's configuration must be a {KIND}; found {found!r}")
    version = str(config.get("apiVersion"))
    if not releases.reads(release, version):
        known = releases.readable(release) if release is not None else list(releases.API_VERSIONS)
        whose = f"that kube-scheduler {release[0]}.{release[1]} reads" if release is not None else "of Kubernetes"
        raise SchedulerError(
            f"the scheduler's configuration must have an apiVersion {whose} ({', '.join(known) or 'none'}); found {version[:80]!r}: "
            f"{_rewriting(version, release, known)}, then run again"
        )
    return config


def _rewriting(version: str, release: Optional[Release], known: List[str]) -> str:
    """How a person gets from this version to one that the release reads. No kube-scheduler converts one into another."""
    wanted = known[0] if release is not None and known else releases.V1
    both = releases.that_reads_both(release, version) if release is not None else None
    said = f"write it in {wanted} (kubernetes.io, Scheduler Configuration, has the differences)"
    if both is None:
        return said
    return f"{said}; kube-scheduler {both[0]}.{both[1]} reads both, and with --config NEW --write-config-to /dev/stdout says what is wrong"


def merge_config(
    current: Optional[Any],
    manifest: SchedulerManifest,
    extender: ExtenderEntry,
    percentage: Optional[int],
    release: Optional[Release] = None,
) -> Dict[str, Any]:
    """The KubeSchedulerConfiguration with our extender in it: `current` and nothing else changed, or a new one.

    percentage: the wanted percentageOfNodesToScore, None to leave it. release: the release of the scheduler, None if unknown.
    """
    merged = _new_config(manifest, release) if current is None else copy.deepcopy(check_config(current, release))
    if percentage is not None:
        merged[PERCENTAGE] = percentage
    is_alpha = merged["apiVersion"] in releases.ALPHA
    return with_extender(merged, extender, policy_entry(extender) if is_alpha else extender.entry())


def renewed(config: Mapping[str, Any], release: Optional[Release]) -> Dict[str, Any]:
    """A configuration that we have made and others have not changed, as this release reads it after an upgrade of Kubernetes."""
    if release is None:
        return dict(config)
    kept = {key: value for key, value in config.items() if key not in _ADDRESSES or release <= releases.LAST_INSECURE}
    return {**kept, "apiVersion": releases.newest(release)}


def next_upgrade(config: Mapping[str, Any], release: Optional[Release], path: str) -> List[str]:
    """The steps without which the kube-scheduler of the next Kubernetes would not start with this configuration."""
    if release is None:
        return []
    found, version, following = [], str(config.get("apiVersion")), f"1.{release[1] + 1}"
    if releases.reads(release, version) and not releases.reads((release[0], release[1] + 1), version):
        found.append(
            f"kube-scheduler {following} does not read {version}, which {path} has: before that upgrade, write it in a newer apiVersion "
            "that this kube-scheduler reads, too"
        )
    if release == releases.LAST_INSECURE and any(config.get(key) for key in _ADDRESSES):
        found.append(
            f"kube-scheduler {following} does not start with {' and '.join(_ADDRESSES)}, which {path} has: before that upgrade, remove "
            "them; until it is done, this kube-scheduler listens without TLS on every address"
        )
    return found


def with_extender(merged: Dict[str, Any], extender: ExtenderEntry, entry: Mapping[str, Any]) -> Dict[str, Any]:
    """The configuration or policy, with this entry in the place of ours, or at the end. SchedulerError where another one binds."""
    extenders = list(merged.get("extenders") or [])
    ours = [place for place, entry in enumerate(extenders) if is_ours(entry, extender)]
    for place, other in enumerate(extenders):
        if place not in ours and other.get("bindVerb"):
            raise SchedulerError(
                f"extenders[{place}] ({other.get('urlPrefix')}) has bindVerb {other['bindVerb']!r}, and kube-scheduler allows one "
                "extender that binds: remove that verb, or run a second scheduler for GPU pods"
            )
    if ours:
        extenders[ours[0]] = dict(entry)
        extenders = [kept for place, kept in enumerate(extenders) if place not in ours[1:]]
    else:
        extenders.append(dict(entry))
    merged["extenders"] = extenders
    return merged


def without_extender(config: Mapping[str, Any], extender: ExtenderEntry, before: Any = None) -> Dict[str, Any]:
    """The configuration or policy without our extender.

    before: the configuration or policy as it was before us. If ours has replaced an extender in it, that extender returns in its place.
    """
    kept = copy.deepcopy(dict(config))
    known = (before.get("extenders") or []) if isinstance(before, dict) else []
    replaced = [copy.deepcopy(entry) for entry in known if is_ours(entry, extender) and not is_written(entry, extender)]
    extenders: List[Any] = []
    for entry in kept.get("extenders") or []:
        if is_written(entry, extender):
            extenders += replaced
            replaced = []
        else:
            extenders.append(entry)
    if extenders:
        kept["extenders"] = extenders
    elif kept.get("extenders"):
        del kept["extenders"]
    return kept


def lease(manifest: SchedulerManifest, config: Mapping[str, Any], release: Optional[Release] = None) -> Optional[SchedulerLock]:
    """The lock that this scheduler competes for, None without leader election. Flags win over the configuration."""
    flags, section = manifest.flags, config.get("leaderElection") or {}
    elect = flags.get("leader-elect")
    if not (_boolean(elect) if elect is not None else section.get("leaderElect", True)):
        return None
    namespace, name = (
        str(flags.get(f"leader-elect-resource-{part}") or section.get(key) or flags.get(f"lock-object-{part}") or default)
        for part, key, default in (("namespace", "resourceNamespace", NAMESPACE), ("name", "resourceName", "kube-scheduler"))
    )
    by = flags.get("leader-elect-resource-lock") or section.get("resourceLock")
    if by is None:
        by = "endpoints" if release is not None and release < releases.FIRST_LEASE else "leases"
    return SchedulerLock(namespace, name, "endpoints" if by == "endpoints" else "leases")


def scheduler_names(config: Mapping[str, Any]) -> List[str]:
    """The names by which pods ask for this scheduler, one of each profile: all profiles call the extenders."""
    return [str(profile.get("schedulerName") or "default-scheduler") for profile in config.get("profiles") or [{}]]


def opens_port(manifest: SchedulerManifest, release: Optional[Release]) -> bool:
    """Whether a configuration opens a port without TLS that the manifest's flags keep shut."""
    return release is not None and release <= releases.LAST_INSECURE and manifest.flags.get("port") == "0"


def _new_config(manifest: SchedulerManifest, release: Optional[Release]) -> Dict[str, Any]:
    for name, default in _NOT_CARRIED:
        value = manifest.flags.get(name)
        if value not in (None, default):
            raise SchedulerError(
                f"the kube-scheduler manifest has --{name}={str(value)[:80]}, which kube-scheduler ignores beside a configuration: write a "
                f"configuration that says the same as a profile, name it in --config with a volume, remove --{name}, and run again"
            )
    config: Dict[str, Any] = {
        "apiVersion": releases.newest(release),
        "kind": KIND,
        "clientConnection": {"kubeconfig": DEFAULT_KUBECONFIG},
        "leaderElection": {"leaderElect": True},
    }
    for name, path, kind in _FLAGS_OF_CONFIG:
        value = manifest.flags.get(name)
        if value is None:
            continue
        section = config
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = _boolean(value) if kind is bool else kind(value)
    port = manifest.flags.get("port")
    if port is not None and release is not None and release <= releases.LAST_INSECURE:
        # A configuration cannot switch this port off, and its default is every address.
        address = "127.0.0.1" if port == "0" else manifest.flags.get("address") or "0.0.0.0"
        config.update(dict.fromkeys(_ADDRESSES, f"{address}:{_INSECURE_PORT if port == '0' else port}"))
    return config


def is_ours(entry: Mapping[str, Any], extender: ExtenderEntry) -> bool:
    """Whether an element of `extenders` is for the same address or resources as ours."""
    managed = {resource.get("name") for resource in entry.get("managedResources") or []}
    return entry.get("urlPrefix") == extender.url_prefix or bool(managed & set(extender.managed_resources))


def is_written(entry: Mapping[str, Any], extender: ExtenderEntry) -> bool:
    """Whether we have written an element of `extenders`. That of the original project has the same resource, and may have the same
    address, but it does not prioritize."""
    return is_ours(entry, extender) and bool(entry.get("prioritizeVerb") or entry.get("tlsConfig"))


def _boolean(value: str) -> bool:
    if value.lower() in ("true", "t", "1"):
        return True
    if value.lower() in ("false", "f", "0"):
        return False
    raise SchedulerError(f"a flag of kube-scheduler must be true or false; found {value!r}")
