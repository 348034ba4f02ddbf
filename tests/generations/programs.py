# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The real programs of other generations, which the lab builds from their Go modules, or has."""

from __future__ import annotations

import os
from pathlib import Path

from gpushare_lab import components
from gpushare_lab.prepare import the_cache
from gpushare_lab.versions import released

FULL = bool(os.environ.get("GPUSHARE_FULL"))
#: That of the lab's own Kubernetes.
NEWEST = ".".join(components.KUBERNETES.split(".")[:2])
#: Minor release to version of kube-scheduler: those that a smaller run has, and those that a run at full size builds besides.
VERSIONS = {release: released(release) for release in ("1.22", "1.24", "1.36", NEWEST, "1.38", *(("1.34", "1.35") if FULL else ()))}
#: The same of kubeadm.
KUBEADMS = VERSIONS if FULL else {NEWEST: components.KUBERNETES}


_RAISED = components._REFLECT2


def release_of(version: str) -> str:
    """1.22 of 1.22.17."""
    return ".".join(version.split(".")[:2])


def kube_scheduler(release: str) -> Path:
    """The real kube-scheduler of this minor release."""
    return components.kube_scheduler(the_cache(), VERSIONS[release]) / "kube-scheduler"


def kubeadm(release: str) -> Path:
    """The real kubeadm of this minor release."""
    return components._one_program(the_cache(), "kubeadm", VERSIONS[release], "", _RAISED if release < "1.25" else "") / "kubeadm"
