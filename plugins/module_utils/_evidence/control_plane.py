# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a control plane: the files that its kube-scheduler is run from, and the lives of its certificates. Read-only.

Plain JSON, judged on the controller, which has a YAML parser, by _verdict/control_plane.py.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from .._cluster.names import KUBEADM_CERTIFICATES, KUBECONFIGS
from .._formats.certificate import client_life_of, life_of
from .._host.host import Host
from .._host.logged import told
from .._scheduler.entries import silent
from .._scheduler.manifest import config_paths

#: Where kubelet keeps the logs of pods (--pod-log-dir's default); the folder of a static pod's begins like this.
_LOGS, _SCHEDULER, _SERVER, _CONTROLLERS = "/var/log/pods", "kube-scheduler", "kube-apiserver", "kube-controller-manager"
#: An error in klog's form, or what a program prints of its arguments, behind what the runtime writes before it.
_ERROR = re.compile(r"(?:\b|^)([EF][0-9]{4} [0-9:.]+ +[0-9]+ [^]]{1,80}\] .+|(?<=stderr F )Error: .+)")
#: k8s.io/component-base 0.37.2, metrics/options.go: an error of every start of every program without such a file.
_NO_ERROR = "] The manifest file is empty, ignoring."
#: As strconv.ParseBool has it.
_ALONE = re.compile(r"--leader-elect=(?:false|False|FALSE|f|F|0)\b")
_LOG_BYTES = 64 * 1024
_WORDS = 300
#: A manifest is some kB; a file of more in the manifests folder is none.
_MANIFEST_BYTES = 256 * 1024


@dataclass(frozen=True)
class ConfigFile:
    """A configuration of kube-scheduler."""

    text: str
    sha256: str


@dataclass(frozen=True)
class SchedulerEvidence:
    """The texts of the scheduler's manifest, of every other file that kubelet reads beside it and that names kube-scheduler, and of the
    configurations that the manifest may mean. unreached: extenders of others that do not answer. says: the last error that the scheduler
    that runs, or ran last, has logged, "" for none. server_says, controllers_say: likewise. controllers_elect: whether the controllers
    elect a leader.
    """

    manifest: Optional[str]
    others: Dict[str, str]
    configs: Dict[str, Optional[ConfigFile]]
    unreached: Dict[str, str]
    says: str
    server_says: str
    controllers_say: str
    controllers_elect: bool


@dataclass(frozen=True)
class PlaneEvidence:
    """lives: path to the Unix times at which its certificate begins and ends."""

    scheduler: SchedulerEvidence
    lives: Dict[str, Tuple[float, float]]


def scheduler_files(host: Host, manifest: str, config: str) -> SchedulerEvidence:
    """The files that kube-scheduler is run from."""
    folder = posixpath.dirname(manifest)
    others = {}
    for name in host.names(folder):
        path = f"{folder}/{name}"
        # kubelet passes over names with a dot in front, and reads all the others, whatever they end in.
        if path == manifest or name.startswith("."):
            continue
        text = _text(host, path)
        if text is not None and "kube-scheduler" in text:
            others[path] = text
    text = host.text(manifest)
    configs = {path: _file(host, path) for path in sorted({config, *config_paths(text or "")})}
    return SchedulerEvidence(
        manifest=text,
        others=others,
        configs=configs,
        unreached=silent(file.text for file in configs.values() if file is not None),
        says=_last_error(host, _SCHEDULER),
        server_says=_last_error(host, _SERVER),
        controllers_say=_last_error(host, _CONTROLLERS),
        controllers_elect=not _ALONE.search(host.text(f"{folder}/{_CONTROLLERS}.yaml") or ""),
    )


def lives(host: Host) -> Dict[str, Tuple[float, float]]:
    """Path to the life of its certificate, of kubeadm's kubeconfigs and certificates that have one."""
    found = {path: client_life_of(host.text(path) or "") for path in KUBECONFIGS}
    found.update((path, life_of(host.text(path) or "")) for path in KUBEADM_CERTIFICATES)
    return {path: life for path, life in found.items() if life is not None}


def _last_error(host: Host, program: str) -> str:
    """kubelet keeps the logs of each container below the pod's folder, a file for each start: 0.log is the first."""
    pods = [name for name in host.names(_LOGS) if name.startswith(f"kube-system_{program}-")]
    files = [f"{_LOGS}/{pod}/{program}/{name}" for pod in pods for name in host.names(f"{_LOGS}/{pod}/{program}")]
    newest = max((path for path in files if path.endswith(".log")), key=lambda path: host.changed_at(path) or 0.0, default="")
    lines = host.tail(newest, _LOG_BYTES).decode("utf-8", "replace").splitlines() if newest else []
    errors = (match for line in reversed(lines) for match in [_ERROR.search(line)] if match is not None)
    found = next((match for match in errors if not match.group(1).endswith(_NO_ERROR)), None)
    return "" if found is None else told(found.group(1), _WORDS)


def _text(host: Host, path: str) -> Optional[str]:
    data = host.data(path, _MANIFEST_BYTES)
    return None if data is None else data.decode("utf-8", "replace")


def _file(host: Host, path: str) -> Optional[ConfigFile]:
    data = host.data(path)
    return None if data is None else ConfigFile(data.decode("utf-8", "replace"), hashlib.sha256(data).hexdigest())
