# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the driver of a host is to be installed: its facts, the wish and the data of its distribution in, a plan or its rejection out.

Pure. The data are the files roles/nvidia_driver/vars/*.yml; README.md of the role describes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .._facts.advisories import open_in_driver
from .._facts.diagnosis import unsigned
from .._formats.finding import Finding
from .._formats.versions import numbers
from .facts import HostFacts
from .generations import DEFAULT_OPEN, DOMAINS, FIRST_OPEN, HIDDEN_FABRIC, ONLY_OPEN, Generation, generation, is_coherent
from .names import Names, every
from .options import unreadable, with_defaults

OPEN, PROPRIETARY = "open", "proprietary"
DKMS, PRECOMPILED = "dkms", "precompiled"
#: In place of a repository's address: those that the host has, and the folder of packages.
HOST = "host"
NVIDIA, DISTRIBUTION, RUN_FILE = "nvidia", "distribution", "run_file"
BLACKLIST_FILE = "/etc/modprobe.d/gpushare-nouveau.conf"
BLACKLIST = "# Made by gpushare.kubernetes: NVIDIA's driver needs the GPUs.\nblacklist nouveau\noptions nouveau modeset=0\n"
RUN_FILE_LOG = "/var/log/gpushare-nvidia-installer.log"
# The first branches whose installer has --kernel-module-type, and --allow-installation-with-running-driver.
_FIRST_TYPED, _FIRST_BESIDE = 560, 545
_PERMIT = "set gpushare_driver_change_ok: true for this run, best with the playbook upgrade_driver"
_OWN_FABRIC = "choose gpushare_driver_source: nvidia, which has it; or install it yourself and set gpushare_driver_fabric: never"
#: NVIDIA's packages for apt that have it take one branch or version, with priority 1000 (/etc/apt/preferences.d/nvidia-driver-pin).
PINNING = "nvidia-driver-pinning-"
_VERSION = re.compile(r"[0-9]{3,4}(?:\.[0-9]{1,4}){1,2}")


@dataclass(frozen=True)
class Wish:
    """The variables gpushare_driver_*. version: such as "580.178.04"; module, build: "auto" for what suits the GPUs and the firmware."""

    version: str
    source: str = NVIDIA
    module: str = "auto"
    build: str = "auto"
    run_file: str = ""
    change_ok: bool = False
    own_key: bool = False
    persistenced: bool = True
    fabric: str = "auto"
    repository: str = ""
    key: str = ""
    fingerprints: Tuple[str, ...] = ()
    module_options: Tuple[str, ...] = ()


@dataclass(frozen=True)
class DriverPlan:
    """The steps to take. rejected: reasons, with which nothing is done.

    module: "open" or "proprietary". build: "dkms" or "precompiled". headers, packages: (name, version), version "" for any. repository: as
    the module gpushare_packages takes it, None for those that the host has. run_file: arguments of NVIDIA's installer, empty for packages.
    blacklist: whether nouveau must be blacklisted. initramfs: the command that rebuilds it. services: units that are enabled and started.
    options: of kernel modules, as modprobe.d takes them. modules: those that the kernel loads at boot.
    change: "none", "install", "upgrade", "downgrade" or "module".
    """

    rejected: Tuple[Finding, ...] = ()
    notes: Tuple[str, ...] = ()
    version: str = ""
    source: str = ""
    module: str = ""
    build: str = ""
    change: str = "none"
    headers: Tuple[Tuple[str, str], ...] = ()
    packages: Tuple[Tuple[str, str], ...] = ()
    replaces: Tuple[str, ...] = ()
    repository: Optional[Dict[str, Any]] = None
    run_file: Tuple[str, ...] = ()
    blacklist: bool = False
    initramfs: Tuple[str, ...] = ()
    services: Tuple[str, ...] = ()
    options: Tuple[str, ...] = ()
    modules: Tuple[str, ...] = ()

    def disturbs(self, loaded: Optional[str], processes: Sequence[str]) -> bool:
        """Whether the node must be drained for it: a driver that is installed and not loaded disturbs no process."""
        return self.change != "none" and (loaded is not None or bool(processes))


@dataclass
class _Draft:
    """The decisions so far."""

    facts: HostFacts
    wish: Wish
    data: Mapping[str, Any]
    rejected: List[Finding] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)

    @property
    def branch(self) -> int:
        return self.names.branch

    @property
    def names(self) -> Names:
        return Names(self.facts, self.wish.version, self.data.get("unbranched_from") or 0)

    def reject(self, check: str, found: str, expected: str, cure: str) -> None:
        self.rejected.append(Finding(check, found, expected, cure))


def make(facts: HostFacts, wish: Wish, data: Optional[Mapping[str, Any]]) -> DriverPlan:
    """The plan of a managed driver. data: of the host's distribution, None where this release has none."""
    if not _VERSION.fullmatch(wish.version):
        shown = repr(wish.version[:80]) if wish.version else "no gpushare_driver_version"
        cure = "set gpushare_driver_version to one exact version, quoted in YAML; the role nvidia_driver's README says how to choose it"
        return DriverPlan((Finding("version", shown, "a version such as 580.178.04", cure),))
    if data is None:
        words = f"{facts.name} on {facts.machine}"
        cure = "install the driver yourself and leave gpushare_driver_state: present, or use a run file on a known distribution"
        return DriverPlan((Finding("distribution", words[:80], "a distribution that the role nvidia_driver has data for", cure),))
    draft = _Draft(facts, wish, data)
    vulnerable = open_in_driver(wish.version)
    if vulnerable is not None:
        draft.notes.append(f"the driver {wish.version} has {vulnerable.to}; expected {vulnerable.fixed}: correct gpushare_driver_version")
    _image(draft)
    module = _module(draft)
    build = _build(draft, module)
    change = _change(draft, module)
    headers = _headers(draft, build)
    options = _options(draft)
    plan = _of_run_file(draft, module) if wish.source == RUN_FILE else _of_packages(draft, module, build)
    return replace(
        plan,
        rejected=(*draft.rejected, *plan.rejected),
        notes=tuple(draft.notes),
        version=wish.version,
        source=wish.source,
        module=module,
        build=build,
        change=change,
        headers=headers,
        blacklist=not facts.nouveau_blacklisted,
        initramfs=tuple(data["initramfs"]),
        options=options,
    )


def _options(draft: _Draft) -> Tuple[str, ...]:
    wrong = unreadable(draft.wish.module_options)
    if wrong:
        cure = "correct gpushare_driver_module_options"
        draft.reject("options", repr(wrong[0][:80]), "a module and an option, such as nvidia NVreg_RestrictProfilingToAdminUsers=0", cure)
    return with_defaults(draft.wish.module_options, any(map(is_coherent, draft.facts.devices)), draft.branch)


def _image(draft: _Draft) -> None:
    """Whose driver it is."""
    facts = draft.facts
    if facts.vendor:
        cure = "leave gpushare_driver_state: present on this host, and upgrade the driver as its vendor describes"
        draft.reject("vendor_image", f"{facts.vendor}, which brings its own driver", "a host whose driver no other program manages", cure)
    if facts.container:
        cure = "have the operator leave this node (label nvidia.com/gpu.deploy.operands=false) and reboot it, or leave state: present"
        draft.reject(
            "driver_container", "a driver container of NVIDIA's GPU Operator", "a host whose driver no other program manages", cure
        )
    if facts.run_file and draft.wish.source != RUN_FILE:
        cure = "uninstall it first: drain the node, then run `nvidia-uninstall --silent` on it; or set gpushare_driver_source: run_file"
        draft.reject("run_file", "a driver that NVIDIA's installer (.run) installed", "one that packages installed, or none", cure)
    kernel_packages = sorted(name for name in facts.packages if re.search(r"dkms|^kmod-nvidia|kmp|linux-modules-nvidia", name))
    if draft.wish.source == RUN_FILE and kernel_packages:
        found = f"the package {kernel_packages[0]}, which installs a driver as well"
        cure = "remove the driver's packages first, or choose another gpushare_driver_source"
        draft.reject("packages", found, "no driver by packages", cure)


def _generations(draft: _Draft) -> List[Generation]:
    """Of the GPUs; a GPU that is not known here is noted."""
    found = []
    for device in dict.fromkeys(draft.facts.devices):
        known = generation(device)
        if known is None:
            draft.notes.append(f"the GPU with PCI device id {device[:12]} is not known to this release: its driver was not checked")
        elif known not in found:
            found.append(known)
    if draft.wish.fabric != "never":
        _hidden_fabric(draft)
    if not draft.facts.devices:
        draft.notes.append("the PCI bus shows no NVIDIA GPU, so that the driver was not checked against the GPUs")
    return found


def _hidden_fabric(draft: _Draft) -> None:
    """NVSwitches that the PCI bus does not show."""
    devices = [device.lower() for device in draft.facts.devices]
    domain = next((DOMAINS[device] for device in devices if device in DOMAINS), "")
    if domain:
        cure = (
            "install the driver, nvidia-imex and its nodes_config.cfg yourself and leave gpushare_driver_state: present; or set "
            "gpushare_driver_fabric: never, with which only the driver is installed"
        )
        draft.reject("fabric", f"{domain}, whose NVLink domain spans several machines (IMEX)", "GPUs of one machine", cure)
    elif any(device in HIDDEN_FABRIC for device in devices) and not draft.facts.nvlink5:
        draft.notes.append(
            "GPUs of this kind are mostly connected by NVSwitches, and no network controller of the host says that it manages them "
            "(SW_MNG): if there are some, load mlx5_core and mlx5_ib and run again, so that fabric manager and nvlsm are installed"
        )


def _module(draft: _Draft) -> str:
    """Which kind of kernel module, with rejections where there is none for all GPUs."""
    branch, wish, gpus = draft.branch, draft.wish, _generations(draft)
    for gpu in gpus:
        if branch < gpu.first or (gpu.last is not None and branch > gpu.last):
            served = f"a branch from {gpu.first} on" if gpu.last is None else f"a branch from {gpu.first} to {gpu.last}"
            cure = "choose another gpushare_driver_version"
            draft.reject("gpu", f"driver {wish.version} for a GPU of the generation {gpu.name}", served, cure)
    without_open = [gpu.name for gpu in gpus if gpu.open_module == "no"]
    open_only = [gpu.name for gpu in gpus if gpu.open_module == "only"]
    if without_open and open_only:
        found = f"GPUs of the generations {without_open[0]} and {open_only[0]} in one host"
        cure = "move the GPUs to different hosts: the former need the proprietary kernel module, the latter the open one"
        draft.reject("gpus", found, "GPUs that one kernel module supports", cure)
        return PROPRIETARY
    needed = OPEN if open_only else PROPRIETARY if without_open or branch < FIRST_OPEN else OPEN if branch >= ONLY_OPEN else ""
    if wish.module != "auto" and needed and wish.module != needed:
        why = (open_only or without_open or [f"driver {wish.version}"])[0]
        cure = f"set gpushare_driver_module: {needed}, or auto"
        draft.reject("module", f"the {wish.module} kernel module for {why}", f"the {needed} one", cure)
    if needed:
        return needed
    return wish.module if wish.module != "auto" else OPEN if branch >= DEFAULT_OPEN else PROPRIETARY


def _build(draft: _Draft, module: str) -> str:
    """DKMS or precompiled. Under Secure Boot a module needs a signature that the firmware knows."""
    facts, wish = draft.facts, draft.wish
    source = draft.data["sources"].get(wish.source, {})
    offers = bool(draft.names.chosen((source.get("precompiled") or {}).get(module)))
    builds = bool(draft.names.chosen((source.get("dkms") or {}).get(module))) or wish.source == RUN_FILE
    if wish.build == PRECOMPILED and not offers:
        cure = "set gpushare_driver_build: dkms, or another gpushare_driver_source"
        draft.reject("build", f"no precompiled {module} kernel module from {wish.source}", "a source that has one", cure)
    if wish.build == DKMS and not builds:
        cure = "set gpushare_driver_build: precompiled or auto"
        draft.reject("build", f"no {module} kernel module for DKMS from {wish.source}", "a source that has one", cure)
    precompiled = offers and (facts.strict or source.get("prefers") == PRECOMPILED)
    chosen = wish.build if wish.build != "auto" else PRECOMPILED if precompiled or not builds else DKMS
    signed = chosen == PRECOMPILED and module in (source.get("precompiled_signed") or ())
    if facts.strict and not signed and not wish.own_key:
        own_key = ", configure DKMS to sign with it and set gpushare_driver_own_key: true"
        draft.rejected.append(unsigned(facts.secure_boot, "no enrolled key would sign the module", own_key))
    return chosen


def _change(draft: _Draft, module: str) -> str:
    """The effect of the installation on the driver that is there."""
    facts, wish = draft.facts, draft.wish
    if facts.version is None:
        return "install"
    have, want = numbers(facts.version) or (), numbers(wish.version) or ()
    change = "upgrade" if want > have else "downgrade"
    if have == want:
        change = "none" if facts.module in (None, module) else "module"
    if change != "none" and not wish.change_ok:
        found = f"driver {facts.version}" + (f" with the {facts.module} kernel module" if facts.module else "")
        expected = f"{wish.version} ({module}), or the permission for a change ({change})"
        draft.reject("change", found, expected, f"{_PERMIT}; or correct gpushare_driver_version")
    return change


def _headers(draft: _Draft, build: str) -> Tuple[Tuple[str, str], ...]:
    """Packages with the headers of the running and of the next kernel, and those that bring the headers of later kernels."""
    facts, headers = draft.facts, draft.data["headers"]
    if build != DKMS:
        return ()
    # A kernel of another flavour has headers of its own.
    flavours: Mapping[str, Mapping[str, Any]] = headers.get("flavours") or {}
    flavour = next((packages for end, packages in flavours.items() if _flavour(facts).endswith(end)), None)
    found: Dict[str, str] = {}
    for release in dict.fromkeys((facts.release, facts.next_release)):
        if release in facts.headers:
            continue
        names = draft.names.parts(release)
        name, version = (flavour or headers)["package"].format(**names), headers.get("version", "").format(**names)
        if found.setdefault(name, version) != version:
            cure = f"reboot the host into {facts.next_release} first, or install the headers of both yourself"
            draft.reject("headers", f"no headers for {facts.release} nor for {facts.next_release}", "those of one of them", cure)
    later = flavour["following"] if flavour else draft.names.following_headers(headers.get("following", {}).get(facts.machine, ()))
    found.update(dict.fromkeys(later, ""))
    return tuple(found.items())


def _flavour(facts: HostFacts) -> str:
    """The part that follows the numbers of the kernel's release, such as "+64k" or ".el9uek"."""
    return re.sub(rf"\.{re.escape(facts.machine)}(?=$|\+)", "", facts.release)


def _of_packages(draft: _Draft, module: str, build: str) -> DriverPlan:
    facts, wish, source = draft.facts, draft.wish, draft.data["sources"].get(draft.wish.source)
    if source is None or facts.machine not in source.get("machines", ()):
        cure = "choose another gpushare_driver_source, or install the driver yourself and leave gpushare_driver_state: present"
        seen = f"no driver packages from {wish.source} for {facts.name[:60]} on {facts.machine}"
        draft.reject("source", seen, "a source that has them", cure)
        return DriverPlan()
    names = draft.names
    driver, kernel_parts = names.chosen(source.get("driver")), names.chosen((source.get(build) or {}).get(module))
    if not driver or draft.branch < draft.data.get("first", 0):
        seen = f"no driver packages of the branch {draft.branch} from {wish.source} for {facts.name[:60]}"
        draft.reject("source", seen, "a branch that it has", "choose another gpushare_driver_version or gpushare_driver_source")
    packages: Dict[str, str] = dict.fromkeys(names.full(driver), wish.version)
    version = "" if build == PRECOMPILED and not source.get("precompiled_versioned") else wish.version
    # The precompiled modules are of one kernel each: the reboot that this installation needs may be into the next one.
    for release in dict.fromkeys((facts.release, facts.next_release) if build == PRECOMPILED else (facts.release,)):
        packages.update(dict.fromkeys(names.full(kernel_parts, release), version))
    later = names.following_modules(kernel_parts) if build == PRECOMPILED else []
    packages.update(dict.fromkeys([*later, *(source.get("beside") or ())], ""))
    services = list(source.get("services") or ()) if wish.persistenced else []
    fabric = names.chosen(source.get("fabric")) if (facts.switches or facts.nvlink5) and wish.fabric != "never" else None
    if fabric is not None:
        # It speaks to its own version of the driver only.
        packages.update(dict.fromkeys(names.full(fabric), wish.version))
        services += list(source.get("fabric_services") or ())
        manager = source.get("nvlink5") or () if facts.nvlink5 else ()
        # It has versions of its own.
        packages.update(dict.fromkeys(manager, ""))
        if not fabric or (facts.nvlink5 and not manager):
            seen = f"{facts.switches} NVSwitches" if facts.switches else "NVSwitches of NVLink 5"
            draft.reject("fabric", f"{seen} and not all of their software from {wish.source}", "a source that has it", _OWN_FABRIC)
    kinds = [(source.get(how) or {}).get(kind) for how in (DKMS, PRECOMPILED) for kind in (OPEN, PROPRIETARY)]
    planned = [*driver, *kernel_parts, *(fabric or ())]
    others = {name for kind in [*kinds, source.get("driver"), *([] if fabric is None else [source.get("fabric")])] for name in every(kind)}
    elsewhere, repository = _elsewhere(draft, source), _repository(draft, source)
    _pins(draft, repository is not None)
    replaces = (names.replaced(planned, others - set(planned)) | elsewhere) - set(packages)
    return DriverPlan(
        packages=tuple(packages.items()),
        replaces=tuple(sorted(replaces)),
        repository=repository,
        services=tuple(services),
        # Fabric manager does not start without it.
        modules=("ib_umad",) if fabric and facts.nvlink5 else (),
    )


def _elsewhere(draft: _Draft, source: Mapping[str, Any]) -> Set[str]:
    """The installed driver packages of another source, which go with a permission only."""
    found = draft.names.installed(source.get("conflicts") or ())
    if found and not draft.wish.change_ok and not any(rejection.check == "change" for rejection in draft.rejected):
        seen = f"{sorted(found)[0]} and {len(found) - 1} more driver packages of the distribution" if len(found) > 1 else sorted(found)[0]
        expected = f"those of {draft.wish.source}, or the permission for a change"
        draft.reject("change", seen, expected, f"{_PERMIT}; or choose another gpushare_driver_source")
    return found


def _pins(draft: _Draft, own_pin: bool) -> None:
    """The installed pins of another driver. own_pin: whether the role has apt take its version, with priority 1001: the highest counts."""
    wanted = numbers(draft.wish.version) or ()
    for name in sorted(package for package in draft.facts.packages if package.startswith(PINNING)):
        pinned = numbers(name[len(PINNING) :]) or ()
        if not pinned or wanted[: len(pinned)] == pinned:
            continue
        cure = f"remove {name[:80]}, or install {PINNING}{draft.branch} in its place"
        if own_pin or draft.wish.source != NVIDIA:
            draft.notes.append(f"{name[:80]} is installed, which counts again once this role's pin is gone: {cure}")
        else:
            seen = f"{name[:80]}, by which apt takes what belongs to the driver in another version"
            draft.reject("packages", seen, f"no pin of another driver than {draft.wish.version}", cure)


def _repository(draft: _Draft, source: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """NVIDIA's own, or what the variables name in its place."""
    wish, nvidias = draft.wish, source.get("repository")
    if wish.repository == HOST or (nvidias is None and not wish.repository):
        return None
    base: Mapping[str, Any] = nvidias or {"name": "nvidia-driver"}
    url = wish.repository or base["url"].format(machine=(base.get("machines") or {}).get(draft.facts.machine, draft.facts.machine))
    key = wish.key or (f"{base['url'].format(machine=base['machines'][draft.facts.machine])}/{base['key']}" if nvidias else "")
    fingerprints = list(wish.fingerprints or base.get("fingerprints") or ())
    lacking = [] if key else [("key", "gpushare_driver_key")]
    lacking += [] if fingerprints else [(f"fingerprint of {key[:120]}" if key else "fingerprint", "gpushare_driver_fingerprints")]
    if lacking:
        seen = f"no {' and no '.join(word for word, _ in lacking)} for the repository {url[:80]}"
        cure = f"set {' and '.join(name for _, name in lacking)}; `gpg --show-keys` prints a key's fingerprint: compare it with one from a "
        draft.reject("key", seen, "a key and its fingerprint, so that the repository can be trusted", cure + "second source")
    return {
        "name": base["name"],
        "url": url,
        "suite": base.get("suite", "/"),
        "components": list(base.get("components") or ()),
        "key": key,
        "fingerprints": fingerprints,
        "replaces": list(base.get("replaces") or ()),
        "modules": list(base.get("modules") or ()),
        "version": wish.version,
    }


def _of_run_file(draft: _Draft, module: str) -> DriverPlan:
    """NVIDIA's installer. Its user space is the host's own; its kernel module is built by DKMS."""
    wish = draft.wish
    if not wish.run_file.startswith("/"):
        cure = "copy NVIDIA-Linux-*.run to the hosts and name its path"
        draft.reject("run_file", f"gpushare_driver_run_file: {wish.run_file[:80]!r}", "the absolute path of the file on the host", cure)
    if wish.version not in wish.run_file.rpartition("/")[2]:
        found = f"the file {wish.run_file.rpartition('/')[2][:80]!r} for gpushare_driver_version {wish.version}"
        draft.reject("run_file", found, "a file of that version", "correct the path or the version")
    if (draft.facts.switches or draft.facts.nvlink5) and wish.fabric != "never":
        draft.reject("fabric", "NVSwitches and no fabric manager in a run file", "a source that has it", _OWN_FABRIC)
    if draft.facts.nouveau_loaded:
        cure = "blacklist nouveau, rebuild the initramfs and reboot the host; the installer loads its module and needs the GPUs for that"
        draft.reject("nouveau", "nouveau loaded, which keeps the GPUs from NVIDIA's installer", "a host without it", cure)
    if not draft.facts.dkms and draft.facts.version != wish.version:
        cure = "install the package dkms, on Enterprise Linux from EPEL, then run again"
        found = "no program dkms: the installer would remove the driver that is there, and then fail"
        draft.reject("run_file", found, "dkms, which builds the kernel module of this and of later kernels", cure)
    flavour = (f"--kernel-module-type={module}",) if draft.branch >= _FIRST_TYPED else ()
    older = ("-m=kernel-open",) if FIRST_OPEN <= draft.branch < _FIRST_TYPED and module == OPEN else ()
    # It unloads a driver that nothing uses. With this it also installs beside one that is in use, until the reboot, as packages do.
    beside = ("--allow-installation-with-running-driver",) if draft.branch >= _FIRST_BESIDE else ()
    arguments = ("--silent", "--dkms", "--no-x-check", "--no-cc-version-check", f"--log-file-name={RUN_FILE_LOG}")
    return DriverPlan(run_file=(wish.run_file, *arguments, *flavour, *older, *beside))
