# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""k3s and RKE2 as services of a host: which one runs, and the options that it is started with.

Their processes do not say: both write a title over their arguments and environment ("k3s server", one word; k3s-io/k3s pull request 2072),
which an agent may have wrong (issue 10616). systemd's unit and its files do. Read-only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from .._formats.yaml_scalars import scalars
from .host import Host, RunningProcess, flags
from .systemd import environment, expanded, parsed, show_command, words

_PROPERTIES = ("LoadState", "ActiveState", "ExecStart", "Environment", "EnvironmentFiles")
_LOADED, _ACTIVE = "loaded", "active"
_START = re.compile(r"argv\[\]=(.*?) ;")
# systemctl has a line for each of them.
_FILES = re.compile(r"^EnvironmentFiles=(/\S{1,255})", re.MULTILINE)
_SHORT = {"c": "config", "d": "data-dir"}


@dataclass(frozen=True)
class RancherKind:
    """k3s or RKE2. units: of a server and of an agent, of which a host has one. data: its usual data-dir. ctr: its own client of
    containerd. config: its usual configuration file. prefix: of the variables that set options."""

    units: Tuple[str, str]
    data: str
    ctr: Tuple[str, ...]
    config: str
    prefix: str


KINDS: Mapping[str, RancherKind] = {
    "k3s": RancherKind(
        ("k3s.service", "k3s-agent.service"), "/var/lib/rancher/k3s", ("k3s", "ctr"), "/etc/rancher/k3s/config.yaml", "K3S_"
    ),
    "rke2": RancherKind(
        ("rke2-server.service", "rke2-agent.service"), "/var/lib/rancher/rke2", ("ctr",), "/etc/rancher/rke2/config.yaml", "RKE2_"
    ),
}


@dataclass(frozen=True)
class RancherService:
    """installed: whether systemd has the service, or it runs without. options: name to value, of arguments, files and variables.

    data: the folder with all that it writes (option data-dir).
    """

    installed: bool
    runs: bool
    is_server: bool
    options: Mapping[str, str]
    data: str


def service(host: Host, name: str) -> Optional[RancherService]:
    """The host's service of the distribution with this name; None for one that is none of KINDS."""
    kind = KINDS.get(name)
    if kind is None:
        return None
    printed = {unit: host.printed(host.program("systemctl"), show_command(unit, *_PROPERTIES)[1:]) for unit in kind.units}
    units = {unit: facts for unit, text in printed.items() if (facts := parsed(text)).get("LoadState") == _LOADED}
    unit = next((unit for unit, facts in units.items() if facts.get("ActiveState") == _ACTIVE), next(iter(units), ""))
    if not unit:
        argv = _words_of(host.process(name, f"{name}-server", f"{name}-agent"))
        options = _options(host, kind, argv, {})
        return RancherService(bool(argv), bool(argv), argv[1:2] == ["server"], options, options.get("data-dir", kind.data))
    variables = dict(word.split("=", 1) for word in words(units[unit].get("Environment", "")) if "=" in word)
    for path in _FILES.findall(printed[unit]):
        variables.update(environment(host.text(path) or ""))
    start = _START.search(units[unit].get("ExecStart", ""))
    argv = [word for word, _variable in expanded(start.group(1).split(), variables)] if start else []
    options = _options(host, kind, argv, variables)
    runs = units[unit].get("ActiveState") == _ACTIVE
    return RancherService(True, runs, unit == kind.units[0], options, options.get("data-dir", kind.data))


def _words_of(process: Optional[RunningProcess]) -> List[str]:
    """The arguments of a process, or the words of its title."""
    argv = list(process.argv) if process is not None else []
    return argv if len(argv) != 1 else argv[0].split()


def _options(host: Host, kind: RancherKind, argv: List[str], variables: Mapping[str, str]) -> Dict[str, str]:
    """Arguments win over files, whose values are arguments before them, and these over variables (docs.k3s.io, "Configuration Options",
    read on 2026-11-30)."""
    own = {key[len(kind.prefix) :]: value for key, value in variables.items() if key.startswith(kind.prefix) and value}
    found = {key.lower().replace("_", "-"): value for key, value in own.items()}
    given = {_SHORT.get(key, key): value for key, value in flags(argv).items()}
    path = given.get("config") or found.pop("config-file", "") or kind.config
    found.update(scalars(host.text(path) or ""))
    found.update(host.yaml_scalars(f"{path}.d", (".yaml", ".yml")))
    return {**found, **given}
