# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which device strategy a host is capable of, what its toolkit is configured for, and what `auto` means there.

Private to this collection. The installer decides, because the roles before the device plugin need the answer, and because only it
reads kubelet's gates and the configuration of the running container runtime. docs/isolation.md has the sources of the versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, List, Optional, Sequence, Tuple

from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubernetes import KubeletFacts, Runtime
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats import toml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri

AUTO, CDI, MOUNTS, ENVIRONMENT = "auto", "cdi", "volume-mounts", "envvar"
STRATEGIES = (CDI, MOUNTS, ENVIRONMENT)
GATE = "DevicePluginCDIDevices"
CONFIG = "/etc/nvidia-container-runtime/config.toml"
_MOUNTS_KEY = "accept-nvidia-visible-devices-as-volume-mounts"
_ENVIRONMENT_KEY = "accept-nvidia-visible-devices-envvar-when-unprivileged"
# From these on the CRI's own field counts. Releases before them read annotations, which kubelet no longer sends.
_CONTAINERD = (1, 7, 2)
_ALWAYS_ON = (2, 0)
_CRIO = (1, 28)


@dataclass(frozen=True)
class CdiFacts:
    """Why kubelet, and why the container runtime, does not pass CDI devices of a device plugin on; "" for one that does."""

    kubelet: str
    runtime: str

    @property
    def usable(self) -> bool:
        return not self.kubelet and not self.runtime


@dataclass(frozen=True)
class ToolkitFacts:
    """What nvidia's runtime honours: the environment of unprivileged containers, and mounts. problem: why that is not known."""

    environment: bool
    mounts: bool
    problem: str = ""


@dataclass(frozen=True)
class Choice:
    """strategy: of STRATEGIES; kept: the stricter one that waits until no pod has cards, "" for none."""

    strategy: str
    kept: str = ""


#: What was found, what was expected, what to do.
Obstacle = Tuple[str, str, str]


def cdi(host: Host, kubelet: KubeletFacts, runtimes: Sequence[Runtime]) -> CdiFacts:
    """Read the host."""
    return CdiFacts(_kubelet(kubelet), _runtime(host, kubelet, runtimes))


def toolkit(host: Host) -> ToolkitFacts:
    """Read the toolkit's configuration; without one its defaults count."""
    try:
        values = toml.loads(host.text(CONFIG) or "")
    except (toml.TomlError, ValueError, RecursionError) as error:
        return ToolkitFacts(True, False, f"{CONFIG} is not TOML ({error})"[:200])
    return ToolkitFacts(values.get(_ENVIRONMENT_KEY, True) is not False, values.get(_MOUNTS_KEY, False) is True)


def choose(asked: str, found: CdiFacts, now: str, holders: Collection[str]) -> Choice:
    """The strategy of the host. asked: gpushare_device_strategy; now: its device plugin's, "" for none; holders: pods with cards."""
    if asked != AUTO:
        return Choice(asked)
    strictest = CDI if found.usable else MOUNTS
    if now in STRATEGIES and now != strictest and holders:
        return Choice(now, strictest)
    return Choice(strictest)


def obstacles(asked: str, found: CdiFacts, configured: Optional[ToolkitFacts], now: str, holders: Collection[str]) -> List[Obstacle]:
    """Why the host cannot have its strategy. configured: None if this run configures the toolkit."""
    chosen = choose(asked, found, now, holders).strategy
    variable = f"gpushare_device_strategy {asked}"
    reasons: List[Obstacle] = []
    if asked == CDI:
        needed = f"kubelet 1.29, or 1.28 with the feature gate {GATE}, and a container runtime that passes CDI devices on"
        cure = "upgrade it, or set gpushare_device_strategy: auto"
        reasons += [(f"{variable}, and {why}", needed, cure) for why in (found.kubelet, found.runtime) if why]
    if asked in STRATEGIES and now in STRATEGIES and now != asked and holders:
        named = ", ".join(sorted(holders)[:3]) + (f" and {len(holders) - 3} more" if len(holders) > 3 else "")
        seen = f"{variable} while {len(holders)} pods have cards by {now} (UID {named})"
        cure = f"delete them first (kubectl drain, or their owners), or keep gpushare_device_strategy: {now} for this host"
        reasons.append((seen, "no pod with cards, to change the strategy", cure))
    if configured is not None:
        reasons += _of_toolkit(chosen, configured)
    return reasons


def _of_toolkit(chosen: str, configured: ToolkitFacts) -> List[Obstacle]:
    if configured.problem:
        return [(configured.problem, "the configuration of NVIDIA's container toolkit", "correct the file")]
    keep = "or set gpushare_device_strategy: envvar, with which every image that sets NVIDIA_VISIBLE_DEVICES sees the cards that it names"
    if chosen == MOUNTS and (configured.environment or not configured.mounts):
        seen = f"{CONFIG} with {_said(configured)}"
        return [(seen, f"{_said(ToolkitFacts(False, True))} for the strategy {MOUNTS}", f"set both, {keep}")]
    if chosen == ENVIRONMENT and not configured.environment:
        seen = f"{CONFIG} with {_said(configured)}"
        return [(seen, f"{_ENVIRONMENT_KEY} = true for the strategy {ENVIRONMENT}", "set it, or set gpushare_device_strategy: auto")]
    return []


def _said(configured: ToolkitFacts) -> str:
    return f"{_MOUNTS_KEY} = {str(configured.mounts).lower()} and {_ENVIRONMENT_KEY} = {str(configured.environment).lower()}"


def _kubelet(kubelet: KubeletFacts) -> str:
    version, gate = numbers(kubelet.version), kubelet.feature_gates.get(GATE)
    if version is None:
        return "kubelet does not print its version"
    if gate is False and version[:2] < (1, 31):
        return f"kubelet {kubelet.version} has its feature gate {GATE} off"
    if version[:2] >= (1, 29) or (version[:2] == (1, 28) and gate):
        return ""
    return f"kubelet {kubelet.version} knows no CDI devices of device plugins"


def _runtime(host: Host, kubelet: KubeletFacts, runtimes: Sequence[Runtime]) -> str:
    name = kubelet.runtime
    if name == "docker":
        return "cri-dockerd up to 0.4.3 does not pass CDI devices to docker"
    runtime = next((one for one in runtimes if one.name == name), None)
    version = numbers(runtime.version) if runtime else None
    if runtime is None or version is None:
        return f"the version of the container runtime {name or 'of kubelet'} is not known"
    if name == "cri-o":
        return "" if version >= _CRIO else f"CRI-O {runtime.version} reads CDI devices from annotations only, releases from 1.28 on do not"
    if name != "containerd":
        return f"the container runtime {name} is not known"
    if version < _CONTAINERD:
        return f"containerd {runtime.version} does not take CDI devices from kubelet, releases from 1.7.2 on do"
    return _enabled(host, kubelet.endpoint, runtime.version or "", version >= _ALWAYS_ON)


def _enabled(host: Host, endpoint: Optional[str], version: str, default: bool) -> str:
    """Of the process that runs: its files may say something else by now."""
    address = host.outside((endpoint or "/run/containerd/containerd.sock").replace("unix://", ""))
    try:
        enabled = cri.status(address).config.get("enableCDI", default)
    except cri.CriError as error:
        return f"containerd {version} does not report whether CDI is on ({error})"[:200]
    return "" if enabled is True else f"containerd {version} runs without enable_cdi = true"
