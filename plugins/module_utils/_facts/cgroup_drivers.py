# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cgroup drivers of kubelet and of the runtime that makes pods. Where they differ, pods end after seconds, or do not start.

From kubelet 1.31 on (and 1.28 by its gate) kubelet asks the runtime when it starts, where that answers: containerd from 2.0 on
(CRI RuntimeConfig, internal/cri/server/runtime_config_linux.go), CRI-O from 1.28 on (KEP 4033); read on 2026-11-29. Read-only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Sequence, Tuple

from .._formats import toml
from .._formats.finding import Finding
from .._formats.versions import numbers
from .._host.container_runtimes import KINDS, socket_path
from .._host.host import Host
from .._runtimes import cri, docker, unix_http
from .._runtimes.containerd_config import running_runtimes
from .._runtimes.containerd_options import SYSTEMD_CGROUP, Decoder, is_runc
from .._runtimes.plan import SilentError
from .kubernetes import KubeletFacts, Runtime

SYSTEMD, CGROUPFS = "systemd", "cgroupfs"
GATE = "KubeletCgroupDriverFromCRI"
_ASKS_BY_GATE, _ASKS, _ASKS_ALWAYS = (1, 28), (1, 31), (1, 34)
#: A container runtime to the first release that has RuntimeConfig of the CRI.
ANSWERS: Mapping[str, Tuple[int, int]] = {"containerd": (2, 0), "cri-o": (1, 28)}
#: Of cgroup v2, and of controllers that every v1 has.
_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu")
#: The group of all pods, by the driver that makes it.
_PODS = {SYSTEMD: "kubepods.slice", CGROUPFS: "kubepods"}
_SET = {
    "containerd": "{field} = {systemd} in the options of the runtime {handler} of containerd's configuration",
    "docker": '"exec-opts": ["native.cgroupdriver={driver}"] in /etc/docker/daemon.json',
    "cri-o": 'cgroup_manager = "{driver}" in CRI-O\'s configuration',
}
_ASK_SECONDS = 10.0


@dataclass(frozen=True)
class CgroupDrivers:
    """SYSTEMD or CGROUPFS, "" where it cannot be said. handler: the runtime that pods get by default, "" where there is but one."""

    kubelet: str = ""
    runtime: str = ""
    handler: str = ""

    @property
    def differ(self) -> bool:
        return bool(self.kubelet and self.runtime) and self.kubelet != self.runtime


def cgroup_drivers(host: Host, kubelet: KubeletFacts, runtimes: Sequence[Runtime]) -> CgroupDrivers:
    """The drivers of the running processes. A runtime that does not answer is said elsewhere."""
    name = kubelet.runtime or ""
    runtime = next((installed for installed in runtimes if installed.name == name), None)
    if not kubelet.running or runtime is None or name not in KINDS:
        return CgroupDrivers()
    release = (numbers(runtime.version) or ())[:2]
    try:
        driver, handler = _of_runtime(host, name, kubelet.endpoint, release)
    except (SilentError, OSError, ValueError):
        return CgroupDrivers()
    return CgroupDrivers(_of_kubelet(host, kubelet, asks(kubelet, name, release)), driver, handler)


def two_drivers(found: CgroupDrivers, runtime: Optional[str]) -> Optional[Finding]:
    """A finding that names no check yet; None where the drivers are the same or not known. runtime: of KINDS."""
    if not found.differ or runtime is None:
        return None
    whose = f"{runtime}'s default runtime {found.handler}" if found.handler else runtime
    setting = _SET[runtime].format(
        field=SYSTEMD_CGROUP, systemd=str(found.kubelet == SYSTEMD).lower(), driver=found.kubelet, handler=found.handler
    )
    return Finding(
        "",
        f"the cgroup driver {found.kubelet} of kubelet, and {found.runtime} of {whose}",
        "one driver: with two, pods do not start, or end after seconds",
        f"set {setting}, and: systemctl restart {KINDS[runtime].unit}",
    )


def asks(kubelet: KubeletFacts, runtime: str, release: Sequence[int]) -> bool:
    """Whether this kubelet takes the driver from the runtime, whatever its own configuration says."""
    version, since = (numbers(kubelet.version) or ())[:2], ANSWERS.get(runtime)
    if since is None or tuple(release) < since or version < _ASKS_BY_GATE:
        return False
    return version >= _ASKS_ALWAYS or kubelet.feature_gates.get(GATE, version >= _ASKS)


def _of_kubelet(host: Host, kubelet: KubeletFacts, asked: bool) -> str:
    """By the group that the running kubelet has made for all pods: its files may say something else by now, or another drop-in."""
    made = [driver for driver, name in _PODS.items() if any(host.is_folder(f"{root}/{name}") for root in _ROOTS)]
    if len(made) == 1:
        return made[0]
    # One of both is left from before a change of the driver.
    return "" if asked else kubelet.cgroup_driver


def _of_runtime(host: Host, name: str, endpoint: Optional[str], release: Sequence[int]) -> Tuple[str, str]:
    """The driver, and the runtime that has it."""
    if name == "docker":
        driver = docker.info(host.outside(KINDS[name].sockets[0]), _ASK_SECONDS).get("CgroupDriver")
        return (driver if driver in _PODS else ""), ""
    address = host.outside(socket_path(endpoint))
    if name == "cri-o":
        found = toml.loads(unix_http.get(address, "/config", _ASK_SECONDS).decode())
        driver = found.get("crio", {}).get("runtime", {}).get("cgroup_manager", SYSTEMD)
        return (driver if driver in _PODS else ""), ""
    decoder = Decoder((release[0], release[1]) if len(release) > 1 else (1, 0))
    running = running_runtimes(cri.status(address, _ASK_SECONDS).config, decoder)
    entry = running.entries.get(running.default, {})
    if not is_runc(entry):
        return "", running.default
    return (SYSTEMD if entry.get("options", {}).get(SYSTEMD_CGROUP) else CGROUPFS), running.default
