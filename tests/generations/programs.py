# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The real programs of other generations, which the lab builds from their Go modules, or has."""

from __future__ import annotations

import os
from pathlib import Path

from gpushare_lab import components
from gpushare_lab.prepare import the_cache

FULL = bool(os.environ.get("GPUSHARE_FULL"))
#: Minor release to version of kube-scheduler: those that a smaller run has, and those that a run at full size builds besides.
VERSIONS = {"1.22": "1.22.17", "1.24": "1.24.17", "1.36": components.KUBERNETES}
if FULL:
    VERSIONS |= {"1.34": "1.34.4", "1.35": "1.35.8"}
#: The same of kubeadm.
KUBEADMS = VERSIONS if FULL else {"1.36": components.KUBERNETES}


_RAISED = components._REFLECT2


def release_of(version: str) -> str:
    """1.22 of 1.22.17."""
    return ".".join(version.split(".")[:2])


def kube_scheduler(release: str) -> Path:
    """The real kube-scheduler of this minor release."""
    if VERSIONS[release] == components.KUBERNETES:
        return components.kubernetes(the_cache(), components.KUBERNETES) / "kube-scheduler"
    return components.kube_scheduler(the_cache(), VERSIONS[release]) / "kube-scheduler"


def kubeadm(release: str) -> Path:
    """The real kubeadm of this minor release."""
    if VERSIONS[release] == components.KUBERNETES:
        return components.kubernetes(the_cache(), components.KUBERNETES) / "kubeadm"
    return components._one_program(the_cache(), "kubeadm", VERSIONS[release], "", _RAISED if release < "1.25" else "") / "kubeadm"
