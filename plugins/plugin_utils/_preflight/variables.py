# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of this collection: which there are (the options of all roles), and values that cannot be.

Rules that a type cannot express (a port, a percentage, an absolute path) are here.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator  # type: ignore[import-untyped]

from ...module_utils._cluster.names import BY_CLAIMS
from ...module_utils._cluster.public import EXPECTED, is_address
from ...module_utils._formats.credentials import without_credentials
from ...module_utils._formats.finding import ERROR, WARNING, Finding, few
from .._settings.rows import DaemonSetting, every
from .._settings.table import DAEMONS, SHARED

COLLECTION = Path(__file__).resolve().parents[3]
# Every worker of Ansible reads them again, for each host.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FOR_READERS = ("description", "version_added")
PREFIX = "gpushare_"
VERIFY_NAMESPACE = "gpushare_verify_namespace"
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Longest time for which a dead extender may hold up a pod that asks for a GPU.
LONGEST_HTTP_TIMEOUT = 1.0

#: Variables that count for more than one host: what they are about is one thing, or is asked once for many hosts. They must be the same
#: on every host of that scope; others may differ from host to host.
CLUSTER, GROUP, CONTROL_PLANES, GPU_NODES, HOST = "cluster", "group", "control planes", "GPU nodes", "host"
SCOPES: Mapping[str, str] = {
    **{each.variable: each.scope for each in every(DAEMONS, SHARED) if each.scope != HOST},
    "gpushare_gpu_operator": CLUSTER,
    "gpushare_max_fail_percentage": GPU_NODES,
    "gpushare_preflight_accept": CLUSTER,
    "gpushare_remove_nodes": CLUSTER,
    "gpushare_serial": GPU_NODES,
    "gpushare_take_over_retire": CLUSTER,
    "gpushare_uninstall_force": CLUSTER,
    "gpushare_uninstall_wait": CLUSTER,
    VERIFY_NAMESPACE: CLUSTER,
    "gpushare_verify_probe": CLUSTER,
}
#: Variable to the values that the back end dra does not have.
_NOT_BY_CLAIMS: Mapping[str, tuple[Any, ...]] = {
    "gpushare_overuse": ("evict",),
    "gpushare_device_strategy": ("volume-mounts", "envvar"),
    "gpushare_scheduler": ("default",),
    "gpushare_openshift": (True,),
    "gpushare_cluster_dashboard": (True,),
}
#: The dashboard's row for the names of requests; in the cluster it has these of its own: localhost, and two of its Service.
_HOST_NAMES = next(each for each in DAEMONS["dashboard"].settings if each.field == "host_names")
_OWN_NAMES = 3
METRICS_TOKEN = "gpushare_metrics_token"
DEPLOY_MODE = "gpushare_deploy_mode"
#: Options of the role in_cluster that each host has for itself also where the daemons are pods: site decides by what the hosts say, or
#: other roles read them there. All others are those of the control plane that is asked, whatever the other hosts have.
OF_HOSTS = (
    "gpushare_cluster_nodes",
    "gpushare_device_strategy",
    "gpushare_kubeconfig",
    "gpushare_kubectl",
    "gpushare_kubelet_root",
    "gpushare_runtime_class",
    "gpushare_start_timeout",
    "gpushare_take_over_timeout",
)
#: playbooks/inventory.yml compares these on every host itself, and then sets them, on the hosts of the run only.
_SET_BY_PLAYBOOKS = ("gpushare_control_plane_group", "gpushare_gpu_group")

# A value to (what is expected, how bad it is if not), None if the value is good.
Rule = Callable[[Any], tuple[str, str] | None]
#: Where packages come from, beside a bundle; and what is no other source.
_OTHER_SOURCES = tuple(
    f"gpushare_{name}" for name in ("pip_extra_args", "proxy", "package_folder", "toolkit_repository", "driver_repository")
)
#: Lists that may have a password among other words. With `no_log` Ansible would hide each of these words everywhere.
_WITH_SECRETS = ("gpushare_pip_extra_args",)
_NO_SOURCE: tuple[Any, ...] = (None, "", "auto", "host", [])
#: ACK's words for a node to the isolations that keep their promise.
_MODES: Mapping[str, tuple[str, ...]] = {"mps": ("mps",), "core_mem": ("mps",), "cgpu": ("driver",), "share": ("auto", "watch", "none")}
_OF_TOLERATION: Mapping[str, tuple[str, ...]] = {
    "operator": ("Exists", "Equal"),
    "effect": ("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
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
    return {*SCOPES, *of_pods(), METRICS_TOKEN, "gpushare_metrics_address"}


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
        rule = _rule(name, specs.get(name, {}))
        wrong = rule(value) if rule is not None else None
        if wrong is not None:
            expected, severity = wrong
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
        if name in _SET_BY_PLAYBOOKS:
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
        if values[host].get(METRICS_TOKEN) and values[host].get("gpushare_metrics_address"):
            by_token.setdefault(str(values[host][METRICS_TOKEN]), []).append(host)
    words = "a token of its own for each host, because root there can read it"
    cure = f"""set {METRICS_TOKEN}: "{{{{ (inventory_hostname ~ vault_gpushare_metrics_secret) | ansible.builtin.hash('sha256') }}}}\""""
    return [
        Finding("variables", f"{METRICS_TOKEN}: one token on {few(hosts, 3)}", words, cure) for hosts in by_token.values() if len(hosts) > 1
    ]


def together(host: str, values: Mapping[str, Any]) -> list[Finding]:
    """Values that can be, but not with each other. values: of all variables that are given; the others have their defaults."""

    def reject(found_: str, expected: str, cure: str) -> None:
        found.append(Finding("variables", found_, expected, cure, host=host))

    found: list[Finding] = []
    if values.get(DEPLOY_MODE) == "kubernetes":
        if values.get("gpushare_isolation") == "mps":
            cure = "set gpushare_isolation to auto, watch, driver or none, or gpushare_deploy_mode: systemd"
            reject("gpushare_deploy_mode: kubernetes with gpushare_isolation: mps", "another isolation", cure)
        if values.get("gpushare_dashboard_state") == "present":
            cure = "remove it: kubectl gpushare dashboard serves the page on your machine"
            reject("gpushare_deploy_mode: kubernetes with gpushare_dashboard_state: present", "no service on a host", cure)
    if values.get("gpushare_backend") == BY_CLAIMS:
        _by_claims(host, values, reject)
    elif values.get("gpushare_unhealthy") == "evict":
        reject(
            "gpushare_unhealthy: evict without gpushare_backend: dra",
            "report: only Kubernetes evicts the pods of a GPU that fails, by claims",
            "leave it out",
        )
    _dashboard(values, reject)
    _sources(values, reject)
    prometheus = str(values.get("gpushare_prometheus") or "")
    if not is_address(prometheus):
        reject(f"gpushare_prometheus: {without_credentials(prometheus)[:80]!r}", EXPECTED, "correct it, or leave it out")
    if values.get("gpushare_taint_gpu_nodes"):
        seen = "gpushare_taint_gpu_nodes: true, by which GPU nodes get the taint gpushare.kubernetes/gpu:PreferNoSchedule"
        expected = "nodes without GPUs for the pods that have none, which come to GPU nodes only where no other has room"
        found.append(Finding("variables", seen, expected, "leave it, or set it to false to remove the taint", WARNING, host))
    mode, isolation = str(values.get("gpushare_node_schedule") or ""), str(values.get("gpushare_isolation") or "auto")
    if mode in _MODES and isolation not in _MODES[mode]:
        seen = f"gpushare_node_schedule: {mode} with gpushare_isolation: {isolation}"
        reject(seen, f"gpushare_isolation: {' or '.join(_MODES[mode])}", "correct one of the two: pods select the node by what it says")
    address = str(values.get("gpushare_metrics_address") or "")
    extender, plugin = (_value(values, f"gpushare_metrics_{name}_port") for name in ("extender", "plugin"))
    if not address or _ip(address) is not None:
        return found
    if not ipaddress.ip_address(address).is_loopback and not values.get("gpushare_metrics_token"):
        seen = f"gpushare_metrics_address: {address!r} without gpushare_metrics_token"
        reject(seen, "a token where others than this host can ask for the metrics", "set gpushare_metrics_token (in a vault), or 127.0.0.1")
    if extender and extender == plugin:
        reject(f"port {extender} for the metrics of both daemons", "two ports", "correct one of gpushare_metrics_*_port")
    if extender and extender == _value(values, "gpushare_extender_port"):
        reject(f"port {extender} for the extender and for its metrics", "two ports", "correct gpushare_metrics_extender_port")
    return found


def _by_claims(host: str, values: Mapping[str, Any], reject: Callable[[str, str, str], None]) -> None:
    """Values that the back end dra does not have. The chart rejects the same (tools/chart.py)."""
    dra, keep = f"gpushare_backend: {BY_CLAIMS}", "leave it out, or set gpushare_backend: extender"
    if host and values.get(DEPLOY_MODE, "systemd") != "kubernetes":
        cure = "set gpushare_deploy_mode: kubernetes, or gpushare_backend: extender"
        reject(f"{dra} with services on hosts", "daemons that are pods", cure)
    for name, wrong in _NOT_BY_CLAIMS.items():
        value = values.get(name)
        if value in wrong:
            shown_ = str(value).lower() if isinstance(value, bool) else value
            reject(f"{dra} with {name}: {shown_}", "what this back end has (docs/use/dra.md)", keep)


def _sources(values: Mapping[str, Any], reject: Callable[[str, str, str], None]) -> None:
    """A bundle is the only source of a host that has one."""
    if values.get("gpushare_bundle"):
        for name in _OTHER_SOURCES:
            if values.get(name) not in _NO_SOURCE:
                reject(
                    f"gpushare_bundle and {name}", "one source of packages", f"remove one of the two: with a bundle {name} has no effect"
                )
    elif values.get("gpushare_bundle_key"):
        reject("gpushare_bundle_key without gpushare_bundle", "the bundle that it is the key of", "set gpushare_bundle, or remove the key")


def _dashboard(values: Mapping[str, Any], reject: Callable[[str, str, str], None]) -> None:
    """The variables that the dashboard needs, on a host that serves it."""
    if values.get("gpushare_dashboard_state", "absent") != "present":
        return
    address, tls = str(values.get("gpushare_dashboard_address") or "127.0.0.1"), values.get("gpushare_dashboard_tls", True)
    files = [str(values.get(f"gpushare_dashboard_tls_{what}") or "") for what in ("cert", "key")]
    if not values.get("gpushare_dashboard_token"):
        seen = "gpushare_dashboard_state: present without gpushare_dashboard_token"
        reject(seen, "the token that people enter on the page", "set gpushare_dashboard_token (in a vault)")
    if not tls and _ip(address) is None and not ipaddress.ip_address(address).is_loopback:
        seen = f"gpushare_dashboard_address: {address!r} with gpushare_dashboard_tls: false"
        reject(seen, "TLS where the token goes over a network", "leave gpushare_dashboard_tls out, or listen on 127.0.0.1 behind a proxy")
    if any(files) and not (tls and all(files)):
        seen = (
            "one of gpushare_dashboard_tls_cert and gpushare_dashboard_tls_key"
            if tls
            else "a certificate with gpushare_dashboard_tls: false"
        )
        reject(seen, "certificate and key, or none of both", "set both, or remove them")
    if all(files) and files[0] != files[1] and files[0].rsplit("/", 1)[-1] == files[1].rsplit("/", 1)[-1]:
        reject(f"{files[0]} and {files[1]}, two files of one name", "different names", "rename one of them")
    if _ip(address) is None and ipaddress.ip_address(address).is_unspecified and not values.get("gpushare_dashboard_host_names"):
        seen = f"gpushare_dashboard_address: {address!r} without gpushare_dashboard_host_names"
        reject(seen, "the names of the server, because requests for others are rejected", "set gpushare_dashboard_host_names")
    ports = ["gpushare_extender_port"]
    if values.get("gpushare_metrics_address"):
        ports += ["gpushare_metrics_extender_port", "gpushare_metrics_plugin_port"]
    port = _value(values, "gpushare_dashboard_port")
    for name in ports:
        if _value(values, name) == port:
            reject(f"port {port} in gpushare_dashboard_port and {name}", "two ports", f"correct gpushare_dashboard_port or {name}")


def _value(values: Mapping[str, Any], name: str) -> Any:
    """A shared variable's value or default."""
    return values.get(name, next(each.default for each in SHARED if each.variable == name))


def is_secret(name: str, spec: Mapping[str, Any]) -> bool:
    """Whether no value of this variable may be shown."""
    return bool(spec.get("no_log")) or name in _WITH_SECRETS


def shown(name: str, value: Any, spec: Mapping[str, Any]) -> str:
    """A value of this variable for people to read; a secret as what it is."""
    return "a secret that is not shown" if is_secret(name, spec) else without_credentials(repr(value))


def seconds(duration: str) -> float | None:
    """A duration as Go writes it ("1s", "1m30s", "800ms") in seconds; None if it is none."""
    if not _DURATION.fullmatch(duration):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(duration))


def _between(least: int, most: int) -> Rule:
    return lambda value: None if least <= value <= most else (f"a number from {least} to {most}", ERROR)


def _of_row(row: DaemonSetting) -> Rule:
    return lambda value: None if row.fits(value) else (row.expected, ERROR)


def _absolute(value: Any) -> tuple[str, str] | None:
    # Such paths stand in units and in commands of theirs.
    good = re.fullmatch(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_@.+:,=-]+)+/?", str(value))
    return None if good else ("an absolute path on the hosts, of letters, digits and _@.+:,=-", ERROR)


def _http_timeout(value: Any) -> tuple[str, str] | None:
    found = seconds(str(value))
    if not found:
        return "a duration such as 1s or 800ms", ERROR
    return (
        None
        if found <= LONGEST_HTTP_TIMEOUT
        else ("at most 1s: a dead extender holds the scheduler up for so long at each GPU pod", WARNING)
    )


def _serial(value: Any) -> tuple[str, str] | None:
    batches = value if isinstance(value, list) else [value]
    good = batches and all(re.fullmatch(r"0*[1-9][0-9]*|0*(?:100|[1-9][0-9]?)%", str(batch)) for batch in batches)
    return None if good else ("a number of hosts, a percentage from 1% to 100%, or a list of these", ERROR)


def _ip(value: Any) -> tuple[str, str] | None:
    try:
        ipaddress.ip_address(str(value) or "::")
    except ValueError:
        return "an IP address such as 10.0.0.5 or fd00::5, or nothing", ERROR
    return None


def _namespace(value: Any) -> tuple[str, str] | None:
    good = re.fullmatch(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", str(value))
    return None if good else ("the name of a namespace: at most 63 lower-case letters, digits and dashes, such as default", ERROR)


def _token(value: Any) -> tuple[str, str] | None:
    good = value == "" or re.fullmatch(r"[!-~]{16,1024}", str(value))
    return None if good else ("16 to 1024 characters of ASCII without white space", ERROR)


def _address(value: Any) -> tuple[str, str] | None:
    return _ip(value) if value else ("an IP address such as 127.0.0.1", ERROR)


def _file_or_none(value: Any) -> tuple[str, str] | None:
    return _absolute(value) if value else None


def _labels(value: Any) -> tuple[str, str] | None:
    key = re.compile(r"(?=.{1,317}\Z)(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?", re.ASCII)
    text = re.compile(r"(?:[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
    # YAML makes a truth of true, which a label is not.
    good = len(value) <= 50 and all(
        isinstance(name, str) and isinstance(part, str) and key.fullmatch(name) and text.fullmatch(part) for name, part in value.items()
    )
    return None if good else ("at most 50 labels with their values as text, such as {nvidia.com/gpu.present: 'true'}", ERROR)


def _tolerations(value: Any) -> tuple[str, str] | None:
    def good(toleration: Mapping[str, Any]) -> bool:
        texts = {name: part for name, part in toleration.items() if name in ("key", "value", *_OF_TOLERATION)}
        seconds_ = toleration.get("tolerationSeconds", 0)
        return (
            bool(toleration)
            and set(toleration) <= {*texts, "tolerationSeconds"}
            and all(isinstance(part, str) and len(part) <= 317 for part in texts.values())
            and all(toleration[name] in known for name, known in _OF_TOLERATION.items() if name in toleration)
            and isinstance(seconds_, int)
        )

    words = "at most 50 tolerations as in Kubernetes, such as {key: nvidia.com/gpu, operator: Exists}, with texts as values"
    return None if len(value) <= 50 and all(map(good, value)) else (words, ERROR)


def _further_names(value: Any) -> tuple[str, str] | None:
    most = (_HOST_NAMES.items or 0) - _OWN_NAMES
    good = len(value) <= most and _HOST_NAMES.fits(value)
    return None if good else (_HOST_NAMES.expected.replace(f"at most {_HOST_NAMES.items}", f"at most {most}"), ERROR)


_RULES: dict[str, Rule] = {
    **{each.variable: _of_row(each) for each in every(DAEMONS, SHARED) if each.bounded},
    "gpushare_cluster_dashboard_host_names": _further_names,
    "gpushare_dashboard_address": _address,
    "gpushare_dashboard_tls_cert": _file_or_none,
    "gpushare_dashboard_tls_key": _file_or_none,
    "gpushare_dashboard_token": _token,
    "gpushare_metrics_address": _ip,
    "gpushare_metrics_token": _token,
    "gpushare_driver_root": _file_or_none,
    "gpushare_node_selector": _labels,
    "gpushare_serial": _serial,
    "gpushare_tolerations": _tolerations,
    "gpushare_max_fail_percentage": _between(0, 100),
    "gpushare_extender_http_timeout": _http_timeout,
    VERIFY_NAMESPACE: _namespace,
}


def _rule(name: str, spec: Mapping[str, Any]) -> Rule | None:
    if name in _RULES:
        return _RULES[name]
    if spec.get("type") == "path" and str(spec.get("default") or "").startswith("/"):
        return _absolute
    if spec.get("type") == "int" and name.endswith("_timeout"):
        return _between(1, 86400)
    return None
