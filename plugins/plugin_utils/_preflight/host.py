# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why one host must not be changed: its facts in, reasons out.

Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...module_utils._driver.generations import DOMAINS, is_coherent
from ...module_utils._facts.advisories import open_in_driver
from ...module_utils._facts.capacity import without_memory
from ...module_utils._facts.cgroup_drivers import two_drivers
from ...module_utils._facts.device_strategy import AUTO, CDI, STRATEGIES, PlannedInstalls, choose, obstacles
from ...module_utils._facts.diagnosis import unsigned, versions
from ...module_utils._facts.driver import PIN_FILE
from ...module_utils._facts.driver_branches import PAST, branch, lasting
from ...module_utils._facts.ground import MANIFESTS, OF_RUNTIMES
from ...module_utils._facts.node import NodeFacts
from ...module_utils._facts.stopped_unit import StoppedUnit, stopped
from ...module_utils._facts.system import Python, preferred
from ...module_utils._formats.finding import ERROR, WARNING, HostFindings, few
from ...module_utils._formats.versions import newer, numbers
from ...module_utils._host.container_runtimes import KINDS
from .._settings.rows import VARIABLE, WORDS
from . import kubernetes_ends
from .device_managers import judge_managers
from .gpus import Expected, judge_compute_modes, judge_gpus
from .memory_unit import judge_unit
from .reasons import OLDEST_IN_WORDS, OLDEST_KUBERNETES, Judgement

#: Family of a distribution to the versions that this release knows. Older ones are rejected, others are warned of.
SYSTEMS: Mapping[str, tuple[str, ...]] = {
    "debian": ("12", "13"),
    "ubuntu": ("22.04", "24.04", "26.04"),
    "rhel": ("8", "9", "10"),
    "suse": ("15", "16"),
}
#: Of these, what a whole installation was run on.
TRIED: Mapping[str, tuple[str, ...]] = {"debian": ("12",)}
_FAMILIES = {
    "debian": "debian",
    "ubuntu": "ubuntu",
    "rhel": "rhel",
    "centos": "rhel",
    "rocky": "rhel",
    "almalinux": "rhel",
    "ol": "rhel",
    "fedora": "rhel",
    "sles": "suse",
    "suse": "suse",
    "opensuse": "suse",
    "opensuse-leap": "suse",
}
_VERSIONS_IN_WORDS = "Debian 12 or 13, Ubuntu 22.04, 24.04 or 26.04, Enterprise Linux 8 to 10, SUSE 15 or 16"
_TRIED_IN_WORDS = "Debian 12, on which it was"
#: Of the folders in which containers start.
ROOM = "some MiB and inodes: no container starts without them"
_ROOM_CURE = "df -h and df -i of each name it: remove files there (old logs: journalctl --vacuum-size=200M)"
_READ_ONLY = re.compile(r"(/[\w./-]{1,80}) \(mounted read-only\)$")
MACHINES = ("x86_64", "aarch64")
SYSTEMD, KUBERNETES = "systemd", "kubernetes"
#: The installer of Kubernetes to the modes in which a run on its hosts installs gpushare. The playbook `cluster` needs no host.
DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {"kubeadm": (SYSTEMD, KUBERNETES), "k3s": (KUBERNETES,), "rke2": (KUBERNETES,)}
#: From here on both have containerd 2, whose CDI is on (k3s-io/k3s release notes, read on 2026-08-21).
FIRST_CONTAINERD_2 = {31: (1, 31, 6), 32: (1, 32, 2)}
MINIMUM_FREE_MIB = 500
#: The first driver with the firmware ucodes*.bin, and the first toolkit that gives it to containers.
UCODES_SINCE, TOOLKIT_WITH_UCODES = 615, "1.20.1"
_PODS_SHOWN = 8
_LABEL = 80
# Between clocks: what no network explains, and what makes new certificates and tokens invalid.
SECONDS_APART, MOST_SECONDS_APART = 10.0, 300.0
_WITHOUT_LIMITS = ("watch", "none")
# Problems of the driver that end where the role nvidia_driver installs one.
_INSTALLED_BY_ROLE = (
    "not_installed",
    "driver_not_loaded",
    "nouveau",
    "module_missing",
    "wrong_module",
    "unsupported_gpu",
    "version_mismatch",
    "library_missing",
    "no_devices",
)
_MENDED_BY_ROLE = ("driver_too_old", "gpu_fabric_not_ready")


@dataclass(frozen=True)
class WantedHost:
    """The wanted state of the host, from the inventory's variables. mode: whether the daemons are its services or pods.

    today: such as "2026-11-29", by the controller; "" leaves out what depends on it.
    """

    gpu_node: bool
    control_plane: bool
    python: str = ""
    kubectl: str = "kubectl"
    kubeconfig: str = "/etc/kubernetes/admin.conf"
    scheduler_manifest: str = "/etc/kubernetes/manifests/kube-scheduler.yaml"
    memory_unit: str = "GiB"
    device_strategy: str = AUTO
    isolation: str = AUTO
    mps_shared_memory_mib: int = 0
    expected: Expected = field(default_factory=Expected)
    driver_managed: bool = field(default=False, metadata={VARIABLE: "gpushare_driver_state", WORDS: ("managed",)})
    prerequisites_managed: bool = field(default=False, metadata={VARIABLE: "gpushare_prerequisites", WORDS: ("managed",)})
    toolkit_configured: bool = field(default=False, metadata={VARIABLE: "gpushare_toolkit_state", WORDS: ("present", "managed")})
    toolkit_managed: bool = field(default=False, metadata={VARIABLE: "gpushare_toolkit_state", WORDS: ("managed",)})
    runtime_configured: bool = field(default=False, metadata={VARIABLE: "gpushare_container_runtime_state", WORDS: ("present",)})
    target_kubernetes: str = ""
    take_over: bool = False
    extender_port: int = 32766
    mode: str = field(default=SYSTEMD, metadata={VARIABLE: "gpushare_deploy_mode"})
    today: str = ""


def judge(host: str, facts: NodeFacts, wanted: WantedHost) -> Judgement:
    """All that speaks against changing this host."""
    found = HostFindings(host)
    _next_kubernetes(found, facts, wanted)
    if wanted.mode == KUBERNETES and facts.distribution.name != "kubeadm":
        _for_pods(found, facts, wanted)
        return Judgement(host, facts.kubelet.node_name, tuple(found.list))
    _system(found, facts, wanted)
    _ground(found, facts, wanted)
    if wanted.gpu_node:
        _gpus(found, facts, wanted)
        _memory_unit(found, facts, wanted.memory_unit)
        _driver(found, facts, wanted)
        _kubelet(found, facts)
        _distribution_of(found, facts, SYSTEMD)
        _runtime(found, facts)
        _strategy(found, facts, wanted)
        _isolation(found, facts, wanted.isolation)
        _shared_memory(found, facts, wanted)
        judge_managers(found, facts.managers or (), wanted.take_over)
    if wanted.control_plane and wanted.mode == SYSTEMD:
        _control_plane(found, facts, wanted)
    return Judgement(host, facts.kubelet.node_name, tuple(found.list))


def _system(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    system = facts.system
    if system is None:
        return
    _distribution(found, system.id, system.like, system.version, system.name)
    if system.architecture not in MACHINES:
        found.error("os", f"architecture {system.architecture!r}", " or ".join(MACHINES), "the runtime's dependencies exist for these only")
    if system.init != "systemd":
        found.error("os", "a host that systemd does not run", "systemd, which starts the daemons", "boot the host with systemd")
    if system.selinux == "enforcing":
        cure = "try it on one node first; `ausearch -m avc` says what was denied"
        found.warn("selinux", "SELinux enforcing, which this release has not been tried on", "permissive or disabled", cure)
    disk = facts.disk
    if disk is not None and disk.free_mib is not None and disk.free_mib < MINIMUM_FREE_MIB:
        cure = "free some space, or put gpushare_install_dir elsewhere"
        found.error("disk", f"{disk.free_mib} MiB free for {disk.path}", f"{MINIMUM_FREE_MIB} MiB or more", cure)
    if wanted.mode == SYSTEMD:
        _python(found, facts, wanted.python, wanted.prerequisites_managed)


def _ground(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    """The reasons that would make the run fail halfway."""
    ground = facts.ground
    if ground is None:
        return
    for path in filter(lambda folder: _writes(folder, wanted), ground.read_only):
        report = found.warn if path in OF_RUNTIMES else found.error
        report("disk", f"{path} on a file system mounted read-only", "a folder that can be written", "see dmesg; mount it read-write")
    for path in filter(lambda folder: _writes(folder, wanted), ground.full):
        cure = f"remove files there (df -i {path}), or use another file system"
        report = found.warn if path in OF_RUNTIMES else found.error
        report("disk", f"too few free inodes for {path}", "inodes for the files that are written", cure)
    if ground.without_room and (wanted.gpu_node or wanted.control_plane):
        found.error("disk", f"no room in {', '.join(ground.without_room)}", ROOM, room_cure(ground.without_room))
    for path in ground.no_programs:
        cure = "mount it without noexec, or put gpushare_install_dir elsewhere"
        found.error("disk", f"{path} on a file system mounted noexec", "one from which programs run", cure)
    if ground.unreached:
        cure = "see routes and packet filters from this host to it: its daemons ask that API server"
        found.error("api", f"no connection from this host to {ground.server} ({ground.unreached})", "one", cure)
    if ground.ahead is not None and abs(ground.ahead) > SECONDS_APART:
        seen = f"a clock {abs(ground.ahead):.0f} s {'ahead of' if ground.ahead > 0 else 'behind'} that of the API server {ground.server}"
        cure = "set it: timedatectl timesync-status or chronyc tracking says why it is off; certificates and tokens go by it"
        (found.error if abs(ground.ahead) > MOST_SECONDS_APART else found.warn)("clock", seen, "the same time, by NTP", cure)
    if wanted.control_plane and wanted.mode == SYSTEMD and wanted.extender_port in ground.listening and not ground.extender:
        cure = f"end it (ss -ltnp 'sport = :{wanted.extender_port}' names it), or set gpushare_extender_port to a free port"
        found.error("port", f"another process listening on port {wanted.extender_port}", "it free for the extender", cure)


def room_cure(without_room: Iterable[str]) -> str:
    """The cure of folders that take no file. without_room: as _facts/ground.py has them."""
    each = {path: _READ_ONLY.match(path) for path in without_room}
    mounts = "; ".join(f"mount -o remount,rw $(findmnt -n -o TARGET -T {found[1]})" for found in each.values() if found)
    writable = f"dmesg says why, if the kernel did it; then: {mounts}; then: systemctl restart kubelet" if mounts else ""
    return "; ".join(filter(None, [writable, "" if all(each.values()) else _ROOM_CURE]))


def _writes(path: str, wanted: WantedHost) -> bool:
    return wanted.control_plane if path == MANIFESTS else wanted.gpu_node if path in OF_RUNTIMES else True


def family_of(name: str, like: Sequence[str]) -> str | None:
    """ "debian", "ubuntu", "rhel" or "suse", by the ID and ID_LIKE of os-release; None for another one."""
    return next((_FAMILIES[word] for word in [name, *like] if word in _FAMILIES), None)


def _distribution(found: HostFindings, name: str, like: Sequence[str], version: str, words: str) -> None:
    family = family_of(name, like)
    # A derivative counts its versions in its own way.
    versioned = name in _FAMILIES and name != "fedora"
    here, known = numbers(version), [numbers(release) or () for release in SYSTEMS.get(family or "", ())]
    if family is None:
        found.error("os", words, _VERSIONS_IN_WORDS, "use one of these, or accept the risk with gpushare_preflight_accept: [os]")
    elif not versioned or here is None:
        found.warn("os", f"{words}, a relative of a known one", _VERSIONS_IN_WORDS, "try it on one node first")
    elif here[: len(known[0])] < known[0]:
        found.error("os", words, _VERSIONS_IN_WORDS, "upgrade it, or accept the risk with gpushare_preflight_accept: [os]")
    elif here[: len(known[0])] not in known:
        found.warn("os", f"{words}, which this release does not know", _VERSIONS_IN_WORDS, "try it on one node first")
    elif version not in TRIED.get(name, ()):
        found.warn("os", f"{words}, on which this release was never installed as a whole", _TRIED_IN_WORDS, "try it on one node first")


def chosen_python(pythons: Sequence[Python], wanted: str) -> Python | None:
    """The one that is wanted by name or path, else that which the runtime prefers."""
    return preferred([python for python in pythons if not wanted or wanted in (python.path, posixpath.basename(python.path))])


def packages_label(name: str, like: Sequence[str], version: str) -> str:
    """The name in a bundle of the distribution whose packages a host takes, such as debian-12 or rhel-9; by the words of os-release."""
    family, here = family_of(name, like), numbers(version) or ()
    known = next((release for release in SYSTEMS.get(family or "", ()) if here[: len(release.split("."))] == numbers(release)), version)
    return f"{family or name}-{known}"[:_LABEL]


def _python(found: HostFindings, facts: NodeFacts, wanted: str, managed: bool) -> None:
    chosen = chosen_python(facts.pythons or (), wanted)
    missing = ", ".join(facts.python_packages or ())
    report, own = found.error, f"install {missing}, or set gpushare_prerequisites: managed" if missing else ""
    if managed and missing and not wanted:
        report, own = found.warn, f"nothing to do: the role python_environment installs {missing} (gpushare_prerequisites: managed)"
    if chosen is None and wanted.startswith("/"):
        return  # somewhere else than programs usually are: the role checks it
    if chosen is None:
        seen = f"no {wanted} of version 3.10 or newer" if wanted else "no Python 3.10 or newer"
        cure = "install one from the distribution (such as python3.11 on Enterprise Linux 8 and 9), or name its path in gpushare_python"
        report("python", seen, "one for the runtime", own if own and not wanted else cure)
    elif not chosen.venv:
        seen = f"{chosen.path} ({chosen.version}) without ensurepip"
        cure = f"install the distribution's package for it: python3-venv or python{chosen.version}-venv on Debian and Ubuntu"
        report("python", seen, "a Python that can make virtual environments", own or cure)


def _gpus(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    report = facts.nvidia_smi
    if report is None:
        return
    if report.problem is not None:
        problem = report.problem
        on_bus = len(facts.pci.gpus) if facts.pci else 0
        hint = f" ({on_bus or 'no'} NVIDIA GPU{'' if on_bus == 1 else 's'} on the PCI bus)"
        unseen = problem.check in ("not_installed", "driver_not_loaded", "module_missing", "no_devices") and "PCI" not in problem.found
        seen = problem.found + (hint if unseen else "")
        if wanted.driver_managed and problem.check in _INSTALLED_BY_ROLE:
            cure = "nothing to do: the role nvidia_driver installs the driver in this run (gpushare_driver_state: managed)"
            found.warn("gpus", seen, problem.expected, cure)
        else:
            found.add(problem, check="gpus", found=seen)
    for finding in judge_gpus(report, wanted.expected, facts.driver is not None and facts.driver.lacks_fabric_manager):
        if wanted.driver_managed and finding.check in _MENDED_BY_ROLE:
            continue
        found.add(finding, check="gpus")
    for gpu in report.gpus:
        if gpu.memory_mib is None:
            found.add(without_memory(gpu), check="gpus", severity=WARNING if len(report.gpus) > 1 else ERROR)
    for finding in judge_compute_modes(report):
        found.add(finding, check="gpus")


def _memory_unit(found: HostFindings, facts: NodeFacts, unit: str) -> None:
    gpus = facts.nvidia_smi.shared if facts.nvidia_smi else ()
    memory = [(gpu.uuid, gpu.memory_mib) for gpu in gpus if gpu.memory_mib is not None]
    now = facts.sharing
    judge_unit(found, unit, memory, now.unit if now else "", now.pods if now else ())


def _branch(found: HostFindings, loaded: str, pinned: str, today: str) -> None:
    """Whether NVIDIA still mends this driver, and apt keeps it."""
    have, pin = numbers(loaded), numbers(pinned)
    own = branch(have[0]) if have else None
    if own is not None and today and own.has_ended(today):
        stays = " or ".join(f"{known.number} ({known.kind}, until {known.end})" for known in lasting(today))
        seen = f"driver {loaded}, of a branch that NVIDIA has ended" + ("" if own.end == PAST else f" in {own.end}")
        cure = "upgrade it at a time of your choice: it gets no more fixes, also none of vulnerabilities (docs/start/drivers.md)"
        found.note("driver_branch", seen, f"a branch with fixes: {stays}", cure)
    if have and pin and have[: len(pin)] != pin:
        seen = f"{PIN_FILE}, by which apt takes the driver {pinned} (nvidia-driver-pinning-{pinned}), with driver {loaded}"
        cure = (
            f"install nvidia-driver-pinning-{have[0]} in its place, or hold the driver's packages: an upgrade of packages would change them"
        )
        found.warn("driver", seen, "a pin of the driver that the host has, or none", cure)


def _firmware(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    """The toolkit that knows all firmware of this driver: NVIDIA/nvidia-container-toolkit CHANGELOG.md of 1.20.1, read on 2026-11-29."""
    driver, toolkit = (facts.driver.loaded or "") if facts.driver else "", facts.toolkit.version if facts.toolkit else ""
    loaded = numbers(driver)
    if loaded is None or loaded[0] < UCODES_SINCE or not toolkit or wanted.toolkit_managed or not newer(TOOLKIT_WITH_UCODES, toolkit):
        return
    seen = f"NVIDIA's container toolkit {toolkit[:_LABEL]} with driver {driver}"
    cure = "upgrade the toolkit, or set gpushare_toolkit_state: managed: older ones leave ucodes*.bin of this driver out of CDI specs"
    found.warn("driver", seen, f"toolkit {TOOLKIT_WITH_UCODES} or newer", cure)


def _driver(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    driver, kernel, pci, managed = facts.driver, facts.kernel, facts.pci, wanted.driver_managed
    if driver is None or pci is None:
        return
    problem = facts.nvidia_smi.problem.check if facts.nvidia_smi is not None and facts.nvidia_smi.problem is not None else ""
    parts = versions(driver)
    if parts is not None and (parts.severity == WARNING or (problem != "version_mismatch" and not managed)):
        found.add(parts, check="driver")
    vulnerable = open_in_driver(driver.loaded or "") if not managed else None
    if vulnerable is not None:
        cure = "upgrade it at a time of your choice; the README of the role nvidia_driver lists NVIDIA's bulletins"
        found.warn("driver", f"driver {driver.loaded}, which has {vulnerable.to}", vulnerable.fixed, cure)
    if not managed:
        _branch(found, driver.loaded or "", driver.pinned, wanted.today)
    _firmware(found, facts, wanted)
    domain = next((DOMAINS[gpu.device.lower()] for gpu in pci.gpus if gpu.device.lower() in DOMAINS), "")
    if domain and not managed:
        seen = f"{domain}, whose NVLink domain spans several machines (IMEX), which this release does not give to pods"
        found.warn("driver", seen, "GPUs of one machine", "share them within a machine only; pods get no IMEX channel")
    if driver.next_without and not managed:
        seen = f"the kernel {driver.next_without}, which boots next and has no module of NVIDIA's driver"
        cure = (
            "install its headers and have DKMS or akmods build the module (`dkms autoinstall`, `akmods`), or its precompiled module; and "
            "the package that brings them with later kernels, such as linux-headers-generic-hwe-22.04 or kernel-devel-matched"
        )
        found.error("driver", seen, "a module for it: after the next reboot the node would have no GPUs", cure)
    if driver.upgraded_alone and not managed:
        seen = f"unattended-upgrades, which may upgrade {few(driver.upgraded_alone, _PODS_SHOWN)} under running pods"
        cure = (
            f"hold them (apt-mark hold {driver.upgraded_alone[0]} ...): with a library of another version than the loaded module pods fail"
        )
        found.warn("driver", seen, "driver packages on hold", cure)
    if driver.loaded and driver.memory_nodes and any(is_coherent(gpu.device) for gpu in pci.gpus) and not managed:
        seen = f"GPU memory that the kernel has as {driver.memory_nodes} NUMA nodes, which kubelet takes for memory of the host"
        cure = "set the module's option NVreg_CoherentGPUMemoryMode=driver (from driver 580 on) in /etc/modprobe.d, and reboot the host"
        found.error("driver", seen, "GPU memory that the driver has", cure)
    if driver.nouveau_loaded and problem != "nouveau" and not managed:
        found.error("driver", "nouveau loaded", "NVIDIA's driver alone", "blacklist nouveau, rebuild the initramfs and reboot")
    for gpu in pci.gpus:
        if gpu.driver == "vfio-pci":
            cure = "if it should serve pods, give it back to the host (unbind vfio-pci, bind nvidia)"
            found.warn("driver", f"GPU {gpu.address} given to virtual machines (vfio-pci)", "GPUs bound to nvidia", cure)
    must_build = bool(pci.gpus) and not driver.loaded and not driver.installed and kernel is not None and not managed
    if must_build and kernel is not None:
        if kernel.secure_boot == "enabled" or kernel.signed_modules_only:
            found.add(unsigned(kernel.secure_boot, "no driver yet"), severity=WARNING)
        if kernel.headers is None:
            cure = f"install the headers of {kernel.release}, or use precompiled driver packages"
            found.warn("kernel_headers", f"no headers for the running kernel {kernel.release}", "them, to build the driver with", cure)


def _kubelet(found: HostFindings, facts: NodeFacts) -> None:
    kubelet = facts.kubelet
    if not kubelet.installed:
        found.error("kubelet", "no kubelet", "a node of the cluster", "join the host to the cluster first, or take it out of the GPU nodes")
        return
    version = numbers(kubelet.version)
    if not kubelet.running:
        words, cure = stopped(facts.kubelet_unit or StoppedUnit())
        if version is not None and version[:2] >= (1, kubernetes_ends.NO_CGROUP_V1) and kubernetes_ends.fails_on_cgroup_v1(facts):
            cure = f"kubelet {kubelet.version} does not start on cgroup v1 by default: {kubernetes_ends.cgroup_cure(facts)}"
        found.error("kubelet", words, "a running one", cure)
    if version is None:
        found.warn("kubelet", "a kubelet that does not print its version", OLDEST_IN_WORDS, "run `kubelet --version` on the host")
    elif version[:2] < OLDEST_KUBERNETES:
        cure = "upgrade Kubernetes on this host, or accept the risk with gpushare_preflight_accept: [kubelet]"
        found.error("kubelet", f"kubelet {kubelet.version}", OLDEST_IN_WORDS, cure)
    elif kubelet.feature_gates.get("DevicePlugins") is False:
        cure = "nothing to do: the role kubelet switches it on and restarts kubelet"
        found.warn("kubelet", "the feature gate DevicePlugins switched off", "DevicePlugins=true", cure)


def _next_kubernetes(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    kubernetes_ends.judge_kubelet(found, facts, wanted.target_kubernetes)
    if wanted.control_plane:
        kubernetes_ends.judge_control_plane(found, facts, wanted.target_kubernetes)


def _runtime(found: HostFindings, facts: NodeFacts) -> None:
    kubelet = facts.kubelet
    if facts.runtimes is None or not kubelet.installed:
        return
    words = ", ".join(KINDS)
    if kubelet.runtime not in KINDS:
        seen = f"container runtime {kubelet.endpoint!r}" if kubelet.endpoint else "no container runtime in kubelet's configuration"
        found.error("runtime", seen, f"the socket of {words}", "check kubelet's --container-runtime-endpoint or containerRuntimeEndpoint")
        return
    own = facts.distribution.name in ("k3s", "rke2")  # they bring it with them, as a part of their own program
    if not own and not any(runtime.name == kubelet.runtime and runtime.running for runtime in facts.runtimes):
        cure = f"start it (systemctl status {kubelet.runtime}), or correct kubelet's endpoint"
        found.error("runtime", f"no running {kubelet.runtime}, though kubelet's endpoint is {kubelet.endpoint}", "it to run", cure)
    drivers = None if facts.cgroups is None else two_drivers(facts.cgroups, kubelet.runtime)
    if drivers is not None:
        found.add(drivers, check="runtime", severity=WARNING)


def _strategy(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    now, asked = facts.sharing, wanted.device_strategy
    if facts.cdi is None or now is None or asked not in (AUTO, *STRATEGIES) or facts.kubelet.runtime not in KINDS:
        return  # said of the variable itself, or of the container runtime
    # A setting that the role nvidia_container_toolkit will make is not a reason.
    configured = None if wanted.toolkit_configured else facts.toolkit
    brings = PlannedInstalls(spec=wanted.toolkit_managed, runtime=wanted.runtime_configured)
    for obstacle in obstacles(asked, facts.cdi, configured, now.strategy, now.holders, brings):
        found.add(obstacle)
    chosen = choose(asked, facts.cdi, now.strategy, now.holders, brings)
    if chosen.kept:
        seen = f"{len(now.holders)} pods that have GPUs by the device strategy {chosen.strategy}, which the host therefore keeps"
        found.warn("strategy", seen, chosen.kept, "run again when no pod of the host has GPUs")
    _instances(found, facts, chosen.strategy, wanted.isolation)


def _instances(found: HostFindings, facts: NodeFacts, strategy: str, isolation: str) -> None:
    """The instances that the device plugin will not share out of GPUs in MIG mode; its own word for it is in `no_instances` of
    node/strategy.py."""
    gpus = facts.nvidia_smi.gpus if facts.nvidia_smi is not None else ()
    report = found.error if all(gpu.mig_mode == "enabled" for gpu in gpus) else found.warn
    for gpu in gpus:
        if gpu.mig_mode != "enabled":
            continue
        name, off = f"GPU {gpu.index} ({gpu.model}) in MIG mode", f"disable MIG (nvidia-smi -i {gpu.index} -mig 0)"
        places = [device.gpu_instance for device in gpu.mig_devices]
        several = sorted({str(place) for place in places if places.count(place) > 1})
        if not gpu.mig_devices:
            cure = f"make some (nvidia-smi mig -i {gpu.index} -cgi PROFILE -C), or {off}; until then no pod gets anything of it"
            report("gpus", f"{name} without instances", "MIG instances, or MIG off", cure)
        elif strategy != CDI:
            cure = f"make the host fit for gpushare_device_strategy: {CDI}, or {off}; else no pod gets its instances"
            report("gpus", f"{name} with the device strategy {strategy}", f"{CDI}, the only one that gives pods MIG instances", cure)
        elif isolation in ("mps", "driver"):
            cure = f"set gpushare_isolation to auto or watch for this host, or {off}; else no pod gets its instances"
            report("gpus", f"{name} with gpushare_isolation: {isolation}", "auto, watch or none: instances have no such limits", cure)
        elif several:
            cure = "make one per GPU instance (nvidia-smi mig -cgi PROFILE -C); no pod gets these"
            seen = f"{name} with several compute instances in GPU instance {', '.join(several)}"
            found.warn("gpus", seen, "one: they share the memory of their GPU instance", cure)


def _isolation(found: HostFindings, facts: NodeFacts, asked: str) -> None:
    limited = facts.sharing.limited if facts.sharing is not None else ()
    if asked in _WITHOUT_LIMITS and limited:
        seen = f"{len(limited)} pods whose memory the driver limits (UID {few(limited, _PODS_SHOWN)}), with gpushare_isolation: {asked}"
        cure = "drain the node and run again, or keep gpushare_isolation as it was"
        found.error("isolation", seen, "no such pod, because their limits would stay", cure)


def _shared_memory(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    """Containers fill it beside their own memory limits once those that wrote it have ended."""
    memory = facts.system.memory_mib if facts.system is not None else None
    # Those in MIG mode get no control daemon.
    gpus = sum(gpu.mig_mode != "enabled" for gpu in facts.nvidia_smi.gpus) if facts.nvidia_smi is not None else 0
    if wanted.isolation == "mps" and memory is not None and gpus * wanted.mps_shared_memory_mib * 2 > memory:
        seen = f"gpushare_mps_shared_memory_mib: {wanted.mps_shared_memory_mib} for each of {gpus} GPUs, on a host with {memory} MiB"
        found.error("isolation", seen, "at most half of the memory for all GPUs together", "lower gpushare_mps_shared_memory_mib")


def _distribution_of(found: HostFindings, facts: NodeFacts, mode: str) -> bool:
    """Whether Kubernetes is of a kind whose hosts a run in this mode knows, or cannot be told."""
    name, known = facts.distribution.name, [distribution for distribution, modes in DISTRIBUTIONS.items() if mode in modes]
    if name in known or (mode == SYSTEMD and name in ("none", "unknown")):
        return True
    if not any(reason.check == "distribution" for reason in found.list):
        if KUBERNETES in DISTRIBUTIONS.get(name, ()):
            cure = "set gpushare_deploy_mode: kubernetes, by which the daemons are pods with a scheduler of their own"
        else:
            cure = "run the playbook cluster, which changes no host (docs/operate/clusters-of-others.md has presets), not a run on hosts"
        found.error("distribution", f"Kubernetes by {name} with gpushare_deploy_mode: {mode}", " or ".join(known), cure)
    return False


def _for_pods(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    """The reasons against preparing this host for daemons that are pods."""
    if not _distribution_of(found, facts, KUBERNETES):
        return
    name = facts.distribution.name
    if wanted.gpu_node:
        _gpus(found, facts, wanted)
        _memory_unit(found, facts, wanted.memory_unit)
        _driver(found, facts, wanted)
        _kubelet(found, facts)
        judge_managers(found, facts.managers or (), wanted.take_over)
        if facts.kubelet.runtime == "docker":
            cure = f"start {name} without --docker: its own containerd gets NVIDIA's runtime by itself"
            found.error("runtime", f"{name} with docker as container runtime ({facts.kubelet.endpoint})", "its own containerd", cure)
        version = numbers(facts.kubelet.version) or ()
        if version and version < FIRST_CONTAINERD_2.get(version[1], (1, 31, 6)):
            cure = "upgrade it, or set gpushare_device_strategy: envvar, by which any container with NVIDIA's runtime selects GPUs"
            seen = f"{name} {facts.kubelet.version}, whose containerd has no CDI by default"
            found.warn("strategy", seen, "1.31.6 or 1.32.2, or newer", cure)
    if wanted.control_plane:
        _is_plane(found, facts, wanted, f"server of {name}")


def _is_plane(found: HostFindings, facts: NodeFacts, wanted: WantedHost, what: str) -> bool:
    """Whether the host is a control plane, which runs this."""
    if not facts.control_plane.present:
        cure = "take the host out of the group of control planes, or name the right group in gpushare_control_plane_group"
        found.error("control_plane", f"a host that runs no {what}", "a control plane", cure)
    elif facts.control_plane.kubectl is None and not wanted.kubectl.startswith("/"):
        cure = "install it, or name its path in gpushare_kubectl"
        found.error("control_plane", f"no {wanted.kubectl}", "it in one of the usual folders", cure)
    return facts.control_plane.present


def _control_plane(found: HostFindings, facts: NodeFacts, wanted: WantedHost) -> None:
    plane = facts.control_plane
    if not _distribution_of(found, facts, SYSTEMD) or not _is_plane(found, facts, wanted, "API server"):
        return
    if wanted.scheduler_manifest not in plane.manifests.values():
        others = ", ".join(plane.manifests.values()) or "none"
        cure = "name it in gpushare_scheduler_manifest"
        found.error("control_plane", f"static pods {others}", f"kube-scheduler's in {wanted.scheduler_manifest}", cure)
    elif facts.ground is not None and not facts.ground.scheduler:
        cure = "see why: crictl ps -a --name kube-scheduler, crictl logs, journalctl -u kubelet; correct the manifest first"
        found.error("scheduler", f"no process of kube-scheduler, though {wanted.scheduler_manifest} is there", "it to run", cure)
    if plane.kubeconfig is None and wanted.kubeconfig == WantedHost.kubeconfig:
        cure = "name the administrator's kubeconfig in gpushare_admin_kubeconfig"
        found.error("control_plane", f"no {wanted.kubeconfig}", "a kubeconfig that may create the accounts of the daemons", cure)
    if facts.distribution.kubespray:
        cure = "its next run would take the scheduler's configuration back: set in its inventory what docs/operate/coexist.md has"
        found.warn("distribution", "Kubernetes by kubespray", "kubeadm alone", cure)
