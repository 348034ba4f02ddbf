# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which device strategy a host is capable of, what its toolkit is configured for, and what `auto` means there.

The installer decides, because the roles before the device plugin need the answer, and because only it reads kubelet's gates and the
configuration of the running container runtime. docs/operate/visibility.md has the sources of the versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, List, Optional, Sequence, Tuple

from .._formats import toml
from .._formats.finding import Finding, few
from .._formats.nvidia_config import CONFIG, ENVIRONMENT_KEY, MOUNTS_KEY
from .._formats.versions import numbers
from .._host.container_runtimes import KINDS, CdiReleases, socket_path
from .._host.host import Host
from .._runtimes import cri
from .cdi_specs import FOLDERS, TOOLKIT_SAYS, specs
from .kubernetes import KubeletFacts, Runtime

AUTO, CDI, MOUNTS, ENVIRONMENT = "auto", "cdi", "volume-mounts", "envvar"
STRATEGIES = (CDI, MOUNTS, ENVIRONMENT)
#: The variable of the inventory that asks for one.
STRATEGY = "gpushare_device_strategy"
GATE = "DevicePluginCDIDevices"
_CLI, _NO_CGROUPS = "nvidia-container-cli", "no-cgroups"
_SPEC_NEEDED = (
    "a CDI spec that names every GPU",
    "set gpushare_toolkit_state: managed, or write it with `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
)
_READER_NEEDED = (
    "a container runtime that reads version 0.7.0 of CDI specs, or a spec of an older version",
    "upgrade it; or write the spec with `nvidia-ctk cdi generate --feature-flag no-additional-gids-for-device-nodes`; or set "
    "gpushare_device_strategy: auto",
)


@dataclass(frozen=True)
class CdiFacts:
    """Why kubelet, and why the container runtime, does not pass CDI devices of a device plugin on; "" for one that does.

    spec: why no CDI spec names the GPUs, "" if one does. off: whether `runtime` is only that containerd 1.7 has CDI switched off.
    reader: why the container runtime reads no specs of version 0.7.0, "" if it does; newer: whether the spec in place is of that version.
    """

    kubelet: str
    runtime: str
    spec: str = ""
    off: bool = False
    reader: str = ""
    newer: bool = False


@dataclass(frozen=True)
class PlannedInstalls:
    """The work of this run before the device plugin starts. spec: it writes a CDI spec; runtime: it configures the container runtime."""

    spec: bool = False
    runtime: bool = False

    def lacks(self, found: CdiFacts, waits: bool = False) -> List[str]:
        """Why the host is not capable of `cdi` even then. waits: whether a spec that is away counts as there."""
        runtime = "" if found.off and self.runtime else found.runtime
        # The contents of a spec that this run writes are not known before.
        reader = found.reader if found.newer or (self.spec and found.spec) else ""
        return [why for why in (found.kubelet, runtime, reader, "" if self.spec or waits else found.spec) if why]


@dataclass(frozen=True)
class ToolkitFacts:
    """The requests that nvidia's runtime honours: the environment of unprivileged containers, and mounts. problem: why that is not known.

    no_cgroups: whether its mode legacy leaves the cgroups of containers alone, as rootless container runtimes need it.
    version: of nvidia-ctk, "" for none.
    """

    environment: bool
    mounts: bool
    problem: str = ""
    no_cgroups: bool = False
    version: str = ""


@dataclass(frozen=True)
class StrategyChoice:
    """strategy: of STRATEGIES; kept: the stricter one that waits until no pod has GPUs, "" for none."""

    strategy: str
    kept: str = ""


def cdi(host: Host, kubelet: KubeletFacts, runtimes: Sequence[Runtime]) -> CdiFacts:
    named = [spec for spec in specs(host) if spec.gpus]
    spec = "" if named else f"no CDI spec in {' or '.join(FOLDERS)} names GPUs as nvidia.com/gpu by their UUID"
    runtime, off = _runtime(host, kubelet, runtimes)
    return CdiFacts(_kubelet(kubelet), runtime, spec, off, _reader(kubelet, runtimes), any(cdi_spec.newer for cdi_spec in named))


def toolkit(host: Host) -> ToolkitFacts:
    """Read the toolkit's configuration; without one its defaults count."""
    try:
        values = toml.loads(host.text(CONFIG) or "")
    except (ValueError, RecursionError) as error:
        return ToolkitFacts(True, False, f"{CONFIG} is not TOML ({error})"[:200])
    version = host.answer(host.program("nvidia-ctk"), ["--version"], TOOLKIT_SAYS) or ""
    cli = values.get(_CLI)
    no_cgroups = isinstance(cli, dict) and cli.get(_NO_CGROUPS) is True
    return ToolkitFacts(values.get(ENVIRONMENT_KEY, True) is not False, values.get(MOUNTS_KEY, False) is True, "", no_cgroups, version)


def choose(asked: str, found: CdiFacts, now: str, holders: Collection[str], brings: PlannedInstalls = PlannedInstalls()) -> StrategyChoice:
    """The strategy of the host. asked: gpushare_device_strategy. now: its device plugin's, "" for none. holders: pods with GPUs."""
    if asked != AUTO:
        return StrategyChoice(asked)
    # A host with `cdi` keeps it when its spec is away: that is a fault to be cured, and the device plugin waits for the spec.
    strictest = MOUNTS if brings.lacks(found, waits=now == CDI) else CDI
    if now in STRATEGIES and now != strictest and holders:
        return StrategyChoice(now, strictest)
    return StrategyChoice(strictest)


def obstacles(
    asked: str,
    found: CdiFacts,
    configured: Optional[ToolkitFacts],
    now: str,
    holders: Collection[str],
    brings: PlannedInstalls = PlannedInstalls(),
) -> List[Finding]:
    """Why the host cannot have its strategy. configured: None if this run configures the toolkit."""
    chosen = choose(asked, found, now, holders, brings).strategy
    variable = f"gpushare_device_strategy {asked}"
    reasons: List[Finding] = []
    if asked == CDI:
        needed = f"kubelet 1.29, or 1.28 with the feature gate {GATE}, and a container runtime that passes CDI devices on"
        cure = "upgrade it, or set gpushare_device_strategy: auto"
        words = {found.spec: _SPEC_NEEDED, found.reader: _READER_NEEDED}
        reasons += [_obstacle(f"{variable}, and {why}", *words.get(why, (needed, cure))) for why in brings.lacks(found)]
    if asked in STRATEGIES and now in STRATEGIES and now != asked and holders:
        seen = f"{variable} while {len(holders)} pods have GPUs by {now} (UID {few(sorted(holders), 3)})"
        cure = f"delete them first (kubectl drain, or their owners), or keep gpushare_device_strategy: {now} for this host"
        reasons.append(_obstacle(seen, "no pod with GPUs, to change the strategy", cure))
    if configured is not None:
        reasons += _of_toolkit(chosen, configured)
    return reasons


def _of_toolkit(chosen: str, configured: ToolkitFacts) -> List[Finding]:
    if configured.problem:
        return [_obstacle(configured.problem, "the configuration of NVIDIA's container toolkit", "correct the file")]
    keep = "or set gpushare_device_strategy: envvar, with which every image that sets NVIDIA_VISIBLE_DEVICES sees the GPUs that it names"
    if chosen == MOUNTS and (configured.environment or not configured.mounts):
        seen = f"{CONFIG} with {_said(configured)}"
        return [_obstacle(seen, f"{_said(ToolkitFacts(False, True))} for the strategy {MOUNTS}", f"set both, {keep}")]
    if chosen == ENVIRONMENT and not configured.environment:
        seen = f"{CONFIG} with {_said(configured)}"
        return [
            _obstacle(seen, f"{ENVIRONMENT_KEY} = true for the strategy {ENVIRONMENT}", "set it, or set gpushare_device_strategy: auto")
        ]
    return []


def _obstacle(found: str, expected: str, cure: str) -> Finding:
    return Finding("strategy", found, expected, cure)


def _said(configured: ToolkitFacts) -> str:
    return f"{MOUNTS_KEY} = {str(configured.mounts).lower()} and {ENVIRONMENT_KEY} = {str(configured.environment).lower()}"


def _kubelet(kubelet: KubeletFacts) -> str:
    version, gate = numbers(kubelet.version), kubelet.feature_gates.get(GATE)
    if version is None:
        return "kubelet does not print its version"
    if gate is False and version[:2] < (1, 31):
        return f"kubelet {kubelet.version} has its feature gate {GATE} off"
    if version[:2] >= (1, 29) or (version[:2] == (1, 28) and gate):
        return ""
    return f"kubelet {kubelet.version} knows no CDI devices of device plugins"


def _runtime(host: Host, kubelet: KubeletFacts, runtimes: Sequence[Runtime]) -> Tuple[str, bool]:
    name, releases = kubelet.runtime, _releases(kubelet.runtime)
    runtime = next((candidate for candidate in runtimes if candidate.name == name), None)
    version = numbers(runtime.version) if runtime else None
    switch = releases is not None and releases.default > releases.since
    if releases is None or runtime is None or version is None or version < releases.since or not switch:
        return _incapable(name, runtime, version), False
    return _switched(host, kubelet.endpoint, f"{name} {runtime.version}", version >= releases.default)


def _reader(kubelet: KubeletFacts, runtimes: Sequence[Runtime]) -> str:
    runtime = next((candidate for candidate in runtimes if candidate.name == kubelet.runtime), None)
    version, releases = numbers(runtime.version if runtime else None), _releases(kubelet.runtime)
    if runtime is None or version is None or releases is None or version >= releases.specs:
        return ""
    first = ".".join(map(str, releases.specs))
    return f"{kubelet.runtime} {runtime.version} reads no CDI specs of version 0.7.0, releases from {first} on do"


def by_status(kubelet: str, runtime: str) -> str:
    """Why the versions in a node's status exclude CDI devices of a device plugin, whatever is configured there; "" where they do not."""
    version, (name, words) = numbers(kubelet), runtime.partition("://")[::2]
    if version is not None and version[:2] < (1, 28):
        return f"kubelet {kubelet[:40]} knows no CDI devices of device plugins"
    found, number, releases = Runtime(name, None, words[:40], None, True), numbers(words), _releases(name)
    old = number and number < releases.since if releases is not None else name in KINDS
    return _incapable(name, found, number) if old else ""


def off_by_default(runtime: str) -> bool:
    """Whether the container runtime in a node's status passes CDI devices on only where its configuration says so."""
    name, words = runtime.partition("://")[::2]
    releases, number = _releases(name), numbers(words)
    return releases is not None and number is not None and releases.since <= number < releases.default


def _releases(name: Optional[str]) -> Optional[CdiReleases]:
    kind = KINDS.get(name or "")
    return None if kind is None else kind.cdi


def _incapable(name: Optional[str], runtime: Optional[Runtime], version: Optional[Tuple[int, ...]]) -> str:
    kind = KINDS.get(name or "")
    if kind is not None and kind.cdi is None:
        return kind.without_cdi
    if runtime is None or version is None:
        return f"the version of the container runtime {name or 'of kubelet'} is not known"
    if kind is None or kind.cdi is None:
        return f"the container runtime {name} is not known"
    return "" if version >= kind.cdi.since else kind.without_cdi.format(version=runtime.version)


def _switched(host: Host, endpoint: Optional[str], runtime: str, default: bool) -> Tuple[str, bool]:
    """Of the process that runs: its files may say something else by now. default: whether it has CDI on unless told otherwise."""
    address = host.outside(socket_path(endpoint))
    try:
        enabled = cri.status(address).config.get("enableCDI", default)
    except cri.CriError as error:
        return f"{runtime} does not report whether CDI is on ({error})"[:200], False
    # Where it is on by default a person has switched it off, and knows why.
    return ("", False) if enabled is True else (f"{runtime} runs without enable_cdi = true", not default)
