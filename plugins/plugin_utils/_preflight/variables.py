# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of this collection: which there are (the options of all roles), and values that cannot be.

The bounds of a value, and its clashes with others, stand at its field in `gpushare_runtime/settings/`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ...module_utils._formats.credentials import without_credentials
from ...module_utils._formats.finding import ERROR, WARNING, Finding, few
from .._settings.rows import DaemonSetting, SettingClash, every
from .._settings.table import DAEMONS, SHARED
from .forms import FORMS, HOST_PATH, PATH_EXPECTED, address_of, is_host_path, seconds

COLLECTION = Path(__file__).resolve().parents[3]
# Every worker of Ansible reads them again, for each host.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FOR_READERS = ("description", "version_added")
PREFIX = "gpushare_"
#: Variables that count for more than one host: what they are about is one thing, or is asked once for many hosts. They must be the same
#: on every host of that scope; others may differ from host to host.
CLUSTER, GROUP, CONTROL_PLANES, GPU_NODES, HOST = "cluster", "group", "control planes", "GPU nodes", "host"
ROWS: Mapping[str, DaemonSetting] = {each.variable: each for each in every(DAEMONS, SHARED)}
SCOPES: Mapping[str, str] = {name: row.scope for name, row in ROWS.items() if row.scope != HOST}
METRICS_TOKEN, METRICS_ADDRESS = "gpushare_metrics_token", "gpushare_metrics_address"
DEPLOY_MODE = "gpushare_deploy_mode"
#: Options of the role in_cluster that each host has for itself also where the daemons are pods: site decides by what the hosts say, or
#: other roles read them there. All others are those of the control plane that is asked, whatever the other hosts have.
OF_HOSTS = tuple(sorted(name for name, row in ROWS.items() if row.apart))
_LONGEST_TIMEOUT = 86400
_CONDITIONS = {
    "beyond loopback": lambda value: (address := address_of(value)) is not None and not address.is_loopback,
    "everywhere": lambda value: (address := address_of(value)) is not None and address.is_unspecified,
}


@dataclass(frozen=True)
class Variable:
    """One variable. spec: its argument specification; roles: those that read it."""

    name: str
    spec: Mapping[str, Any]
    roles: tuple[str, ...]


def role_options(role: Path, entry_point: str = "") -> dict[str, dict[str, Any]]:
    """The options of a role, over all of its entry points or of one; empty for a role without specification."""
    path = role / "meta" / "argument_specs.yml"
    if not path.is_file():
        return {}
    entry_points = (yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader) or {}).get("argument_specs") or {}
    chosen = [entry for name, entry in entry_points.items() if entry_point in ("", name)]
    return {name: option for entry in chosen for name, option in ((entry or {}).get("options") or {}).items()}


@lru_cache(maxsize=None)
def variables(collection: Path = COLLECTION) -> Mapping[str, Variable]:
    """Every public variable, by name."""
    found: dict[str, Variable] = {}
    for role in sorted((collection / "roles").iterdir()):
        for name, spec in role_options(role).items():
            before = found.get(name)
            found[name] = Variable(name, before.spec if before else spec, (*(before.roles if before else ()), role.name))
    return dict(sorted(found.items()))


@lru_cache(maxsize=None)
def of_pods() -> tuple[str, ...]:
    """The variables that count for the whole cluster where the daemons are pods."""
    return tuple(name for name in role_options(COLLECTION / "roles" / "in_cluster", "main") if name not in OF_HOSTS)


def compared() -> Collection[str]:
    """The variables that are compared between hosts."""
    return {*SCOPES, *of_pods(), METRICS_TOKEN, METRICS_ADDRESS}


def of_type(name: str, value: Any, spec: Mapping[str, Any]) -> tuple[Any, str]:
    """(the value as the roles will have it, "") or (None, why it cannot be)."""
    plain = {key: part for key, part in spec.items() if key not in _FOR_READERS}
    result = ArgumentSpecValidator({name: plain}).validate({name: value})
    if result.error_messages:
        return None, "; ".join(result.error_messages)
    return result.validated_parameters[name], ""


def unknown(host: str, names: Collection[str], known: Collection[str]) -> list[Finding]:
    """Variables that are named like ours and are not: typing errors, or those of another release."""
    found = []
    for name in sorted(name for name in names if name.startswith(PREFIX) and name not in known):
        near = difflib.get_close_matches(name, known, 1, 0.75)
        cure = f"did you mean {near[0]}?" if near else "remove it; docs/operate/variables.md lists all"
        found.append(Finding("variables", f"the variable {name}, which does not exist", "a variable of this collection", cure, host=host))
    return found


def impossible(host: str, values: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Values of the right type that nevertheless cannot be. specs: the variables' argument specifications."""
    found = []
    for name, value in sorted(values.items()):
        expected, severity = _wrong(ROWS.get(name), name, value, specs.get(name, {}))
        if expected:
            seen = f"{name}: {shown(name, value, specs.get(name, {}))}"
            found.append(Finding("variables", seen, expected, f"correct {name} in the inventory", severity, host))
    return found


def scattered(values: Mapping[str, Mapping[str, Any]], planes: Collection[str], gpu_nodes: Collection[str]) -> list[Finding]:
    """Variables that must be the same on several hosts and are not. Where daemons are pods, this includes the options of the role for that.

    values: host to name to value; a variable that is not set has its default. planes, gpu_nodes: the hosts of the two groups.
    """
    sets = {
        CLUSTER: [("on every host", {*planes, *gpu_nodes})],
        CONTROL_PLANES: [("on all control planes", set(planes))],
        GPU_NODES: [("on all GPU nodes", set(gpu_nodes))],
        GROUP: [("on all control planes", set(planes)), ("on all GPU nodes", set(gpu_nodes))],
    }
    found = []
    pods = any(theirs.get(DEPLOY_MODE) == "kubernetes" for theirs in values.values())
    for name, scope in {**SCOPES, **(dict.fromkeys(of_pods(), CLUSTER) if pods else {})}.items():
        if name in ROWS and not ROWS[name].compared:
            continue
        for words, hosts in sets[scope]:
            by_value: dict[str, list[str]] = {}
            for host in sorted(hosts & set(values)):
                by_value.setdefault(repr(values[host][name])[:80] if name in values[host] else "its default", []).append(host)
            if len(by_value) > 1:
                seen = "; ".join(f"{value} on {few(hosts_, 3)}" for value, hosts_ in by_value.items())
                cure = "set it for all of them, in the group_vars of a group that they are all in"
                found.append(Finding("variables", f"{name}: {seen}", f"one value {words}", cure))
    return found


def shared(values: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Hosts with one token for their metrics: root of each of them could read those of the others. values: as for `scattered`."""
    by_token: dict[str, list[str]] = {}
    for host in sorted(values):
        if values[host].get(METRICS_TOKEN) and values[host].get(METRICS_ADDRESS):
            by_token.setdefault(str(values[host][METRICS_TOKEN]), []).append(host)
    words = "a token of its own for each host, because root there can read it"
    cure = f"""set {METRICS_TOKEN}: "{{{{ (inventory_hostname ~ vault_gpushare_metrics_secret) | ansible.builtin.hash('sha256') }}}}\""""
    return [
        Finding("variables", f"{METRICS_TOKEN}: one token on {few(hosts, 3)}", words, cure) for hosts in by_token.values() if len(hosts) > 1
    ]


def together(host: str, values: Mapping[str, Any]) -> list[Finding]:
    """Values that can be, but not with each other.

    values: of a host those that are given, and the others have their defaults; without a host those of all variables that there are.
    """
    known = {**{name: row.default for name, row in ROWS.items()}, **values} if host else values
    clashes = [clash for row in ROWS.values() for clash in row.clashes if all(name in known for name in clash.variables)]
    return [
        Finding("variables", _words(clash, known), clash.expected, clash.cure, WARNING if clash.warns else ERROR, host)
        for clash in clashes
        if _is_met(clash, known)
    ]


def _is_met(clash: SettingClash, values: Mapping[str, Any]) -> bool:
    for name, expected in clash.when.items():
        if not (_CONDITIONS[expected](values[name]) if isinstance(expected, str) else values[name] in expected):
            return False
    if any(values[name] in others for name, others in clash.unless.items()):
        return False
    return not clash.same or _are_same(*(values[name] for name in clash.same))


def _are_same(first: Any, second: Any) -> bool:
    if isinstance(first, int):
        return bool(first == second)
    return first != second and str(first).rpartition("/")[2] == str(second).rpartition("/")[2]


def _words(clash: SettingClash, values: Mapping[str, Any]) -> str:
    if clash.found:
        return clash.found.format_map(values)
    shown_ = ((name, values[name]) for name in (*clash.when, *clash.unless))
    return " with ".join(f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in shown_)


def is_secret(name: str, spec: Mapping[str, Any]) -> bool:
    """Whether no value of this variable may be shown."""
    return bool(spec.get("no_log")) or (name in ROWS and ROWS[name].secret)


def shown(name: str, value: Any, spec: Mapping[str, Any]) -> str:
    """A value of this variable for people to read; a secret as what it is."""
    return "a secret that is not shown" if is_secret(name, spec) else without_credentials(repr(value))


def _wrong(row: DaemonSetting | None, name: str, value: Any, spec: Mapping[str, Any]) -> tuple[str, str]:
    """(what is expected instead, how bad it is), "" for a good value."""
    if spec.get("type") == "path" and str(spec.get("default") or "").startswith("/"):
        return "" if is_host_path(value) else PATH_EXPECTED, ERROR
    if row is None:
        is_timeout = spec.get("type") == "int" and name.endswith("_timeout")
        good = not is_timeout or 1 <= value <= _LONGEST_TIMEOUT
        return "" if good else f"a number from 1 to {_LONGEST_TIMEOUT}", ERROR
    left_out = value == "" == row.default
    if not row.fits(value) or (row.form and not left_out and not FORMS[row.form](value)):
        return PATH_EXPECTED if row.form == HOST_PATH else row.expected, ERROR
    return row.longer if row.longest is not None and (seconds(str(value)) or 0) > row.longest else "", WARNING
