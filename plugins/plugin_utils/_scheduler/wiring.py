# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a kube-scheduler of any release is told of extenders: its configuration, a policy file, or a policy in a ConfigMap.

Pure. The files of the host decide. Where it has nothing, the release does: up to 1.18 a policy file; from 1.19 on a configuration, because
Kubernetes 1.23 no longer starts with a policy.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...module_utils._formats.failure import Failure
from ...module_utils._scheduler import releases
from ...module_utils._scheduler.manifest import CONFIG, POLICY, POLICY_CONFIGMAP, Location, SchedulerError, SchedulerManifest
from .. import _yaml
from .yaml_splice import splice

_POLICY_NAME = "scheduler-policy.json"


class UnreadFile(Failure, LookupError):
    """The manifest means a file that the host has not sent; `path` is it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True)
class Wiring:
    """The place of the extenders of a scheduler. policy: whether it is a Policy, and not a configuration. flag: the flag by which the
    manifest names the file, "" if another file names it. location: the place of the file, None for a ConfigMap."""

    release: releases.Release | None
    policy: bool
    flag: str
    location: Location | None


def find(manifest: SchedulerManifest, default_config: str, files: Mapping[str, str | None], server: str) -> Wiring:
    """The scheduler's wiring. server: version of the API server, for an image whose tag says none.

    SchedulerError where there is none that could be extended; UnreadFile if another file is needed.
    """
    release = releases.release_of(manifest.image, server)
    old = release is not None and release <= releases.LAST_POLICY
    policy, config_map = (manifest.flags.get(name) for name in (POLICY, POLICY_CONFIGMAP))
    if release is not None and not old and (policy or config_map):
        raise SchedulerError(
            f"the kube-scheduler manifest has --{POLICY if policy else POLICY_CONFIGMAP}, with which kube-scheduler "
            f"{release[0]}.{release[1]} does not start: remove it from the manifest and from kubeadm's ClusterConfiguration, and run "
            "again, which makes a configuration"
        )
    if old and config_map and manifest.flags.get("use-legacy-policy-config") != "true":
        return Wiring(release, True, "", None)
    if old and policy:
        return Wiring(release, True, POLICY, manifest.location(policy_path(default_config), POLICY))
    location = manifest.location(default_config)
    if release is not None and release < releases.FIRST_CONFIGURATION:
        if CONFIG not in manifest.flags:
            default = policy_path(default_config)
            return Wiring(release, True, POLICY, manifest.location_of(default, default, ""))
        if location.host not in files:
            raise UnreadFile(location.host)
        by_config = _policy_named_by(_yaml.load(files[location.host] or "{}"), location, manifest, release)
        if by_config is not None:
            return by_config
    return Wiring(release, False, CONFIG, location)


def policy_path(default_config: str) -> str:
    """The path of a new policy file: it lies in the folder of the new configuration."""
    return posixpath.join(posixpath.dirname(default_config), _POLICY_NAME)


def _policy_named_by(config: Any, location: Location, manifest: SchedulerManifest, release: releases.Release) -> Wiring | None:
    """The wiring of the policy file that this configuration, which lies at `location`, names.

    None for a configuration after v1alpha1, which has extenders itself.
    """
    if not isinstance(config, dict) or config.get("apiVersion") not in releases.ALPHA[:2]:
        return None
    policy = ((config.get("algorithmSource") or {}).get("policy")) or {}
    path = (policy.get("file") or {}).get("path")
    if path:
        place = manifest.location_of(str(path), "", f"in {location.host} algorithmSource.policy.file.path: ")
        return Wiring(release, True, "", place)
    raise SchedulerError(
        f"{location.host} has apiVersion {config['apiVersion']} and names no policy file, and only a policy has extenders in Kubernetes "
        f"{release[0]}.{release[1]}: set algorithmSource.policy.file.path to a file with a policy, mount it with a hostPath volume, and "
        "run again"
    )


def policy_text(before: str | None, wanted: Mapping[str, Any]) -> str:
    """The text of the wanted policy, in JSON or YAML as it was before. A new one is JSON."""
    return json.dumps(wanted, indent=2) + "\n" if before is None else splice(before, wanted)
