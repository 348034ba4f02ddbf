# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The variables of runs on hosts, as far as preflight checks or compares them: batches, sources of packages, drains, the dashboard's
service, verification, take-over and removal.

A field has the role that describes its variable, and the entry point of that role where that is not the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.settings.schema import (
    ADDRESS,
    BATCHES,
    BEYOND_LOOPBACK,
    CLUSTER,
    EVERYWHERE,
    GPU_NODES,
    HOST_PATH,
    NOTHING,
    OWN,
    TOKEN,
    ChoiceType,
    Clash,
    ListType,
    NumberType,
    SwitchType,
    TextType,
    VariableType,
    not_with_a_bundle,
    variable_alone,
)

_STATE, _ADDRESS, _TLS = "gpushare_dashboard_state", "gpushare_dashboard_address", "gpushare_dashboard_tls"
_CERTIFICATE, _KEY = "gpushare_dashboard_tls_cert", "gpushare_dashboard_tls_key"
_PRESENT: Final = {_STATE: ("present",)}
_HALF, _WITHOUT_TLS = f"one of {_CERTIFICATE} and {_KEY}", f"a certificate with {_TLS}: false"
_FILE: Final = TextType("an absolute path on the hosts, or nothing", path=True, form=HOST_PATH)
#: Checks of preflight. One of a cluster without hosts has no place here.
_ACCEPTED: Final = (
    *("gpus", "control_plane", "disk", "distribution", "driver", "kubelet", "managers", "memory_unit", "node_names", "operator", "os"),
    *("packages", "python", "runtime", "scheduler", "strategy", "toolkit", "unreachable", "variables"),
)


def _pair(found: str, **when: tuple[object, ...]) -> Clash:
    """A certificate without its key, a key without its certificate, or one of them without TLS."""
    return Clash({**_PRESENT, **when}, "certificate and key, or none of both", "set both, or remove them", found, unless={OWN: NOTHING})


def _same_port(other: str, **unless: tuple[object, ...]) -> Clash:
    return Clash(
        _PRESENT,
        "two ports",
        f"correct gpushare_dashboard_port or {other}",
        f"port {{gpushare_dashboard_port}} in gpushare_dashboard_port and {other}",
        unless=unless,
        same=(OWN, other),
    )


def _schedule(*words: str, isolations: tuple[str, ...]) -> Clash:
    """ACK's words for a node, and the isolations that keep their promise."""
    cure = "correct one of the two: pods select the node by what it says"
    return Clash({OWN: words}, f"gpushare_isolation: {' or '.join(isolations)}", cure, unless={"gpushare_isolation": isolations})


@dataclass(frozen=True)
class InstallerConfig:
    """The variables, by what they are about."""

    serial: int | str | Sequence[int | str] | None = variable_alone(
        None,
        "Number of GPU nodes that are changed at a time, as for Ansible's keyword C(serial), such as C(1), C(25%) or C([1, 50%]). By "
        "default one, and then a quarter of them at a time. The value of the first GPU node counts for all.",
        VariableType({"type": "raw"}, "a number of hosts, a percentage from 1% to 100%, or a list of these", BATCHES),
        variable="gpushare_serial",
        role="preflight",
        scope=GPU_NODES,
        preset=[1, "25%"],
    )
    max_fail_percentage: int = variable_alone(
        0,
        "The run stops when more than this percentage of a batch of GPU nodes has failed; C(0) stops after the first. The others stay "
        "unchanged. The value of the first GPU node counts for all.",
        NumberType(0, 100),
        variable="gpushare_max_fail_percentage",
        role="preflight",
        scope=GPU_NODES,
    )
    preflight_accept: tuple[str, ...] = variable_alone(
        (),
        "Checks whose errors become warnings. The name of the check follows the host's name in each reason.",
        ListType(ChoiceType(_ACCEPTED)),
        variable="gpushare_preflight_accept",
        role="preflight",
        scope=CLUSTER,
    )
    node_schedule: str = variable_alone(
        "",
        "ACK's label C(ack.node.gpu.schedule) of this host's node, so that pods written for ACK select it with their C(nodeSelector). It "
        "must agree with C(gpushare_isolation). V(mps) and V(core_mem) require C(mps), V(cgpu) requires C(driver), and V(share) excludes "
        "both. Empty means no label.",
        ChoiceType(("", "share", "cgpu", "core_mem", "mps")),
        variable="gpushare_node_schedule",
        role="kubelet",
        clashes=(
            _schedule("mps", "core_mem", isolations=(protocol.ISOLATION_MPS,)),
            _schedule("cgpu", isolations=(protocol.ISOLATION_DRIVER,)),
            _schedule("share", isolations=("auto", protocol.ISOLATION_WATCH, protocol.ISOLATION_NONE)),
        ),
    )
    pip_extra_args: tuple[str, ...] = variable_alone(
        (),
        "Additional arguments for pip when it installs the dependencies, such as C(--index-url) and its value, C(--proxy) and its value, "
        "or C(--no-index) and C(--find-links=DIR). By default the hosts' own configuration of pip decides.",
        ListType(TextType()),
        variable="gpushare_pip_extra_args",
        role="python_environment",
        clashes=(not_with_a_bundle("gpushare_pip_extra_args"),),
        secret=True,
    )
    proxy: str = variable_alone(
        "",
        "URL of the proxy through which the host fetches packages, repositories and keys. Empty for the host's own settings. The runtime's "
        "Python packages come through it, too.",
        TextType(secret=True),
        variable="gpushare_proxy",
        role="python_environment",
        clashes=(not_with_a_bundle("gpushare_proxy"),),
    )
    package_folder: str = variable_alone(
        "",
        "Folder on the host with package files (deb or rpm) of NVIDIA's software, for a host without a repository. These files come before "
        "those of a repository. Only root may write them and their folders. Empty for none.",
        TextType(),
        variable="gpushare_package_folder",
        role="nvidia_container_toolkit",
        clashes=(not_with_a_bundle("gpushare_package_folder"),),
    )
    toolkit_repository: str = variable_alone(
        "auto",
        "URL of the repository of the container toolkit, for example of a mirror. V(auto) is NVIDIA's own for the distribution. V(host) "
        "uses the repositories that the host has.",
        TextType(),
        variable="gpushare_toolkit_repository",
        role="nvidia_container_toolkit",
        clashes=(not_with_a_bundle("gpushare_toolkit_repository", "auto", "host"),),
    )
    driver_repository: str = variable_alone(
        "",
        "Address of a mirror of the driver's packages. The default is that of the chosen source. V(host) adds none, for a host that has "
        "the packages in its own repositories or in C(gpushare_package_folder).",
        TextType(),
        variable="gpushare_driver_repository",
        role="nvidia_driver",
        clashes=(not_with_a_bundle("gpushare_driver_repository", "host"),),
    )
    drain: bool = variable_alone(
        False,
        "Whether to drain a node before its driver changes while processes use its GPUs, before remove_node.yml removes it, or before "
        "take_over.yml takes it over. Otherwise the run stops, and names what uses the GPUs.",
        SwitchType(),
        variable="gpushare_drain",
        role="nvidia_driver",
    )
    drain_timeout: int = variable_alone(
        300,
        "Seconds within which the pods of a drained node must end.",
        NumberType(1, 86400, "seconds"),
        variable="gpushare_drain_timeout",
        role="nvidia_driver",
    )
    drain_force: bool = variable_alone(
        False,
        "Whether a drain deletes pods that no controller creates again.",
        SwitchType(),
        variable="gpushare_drain_force",
        role="nvidia_driver",
    )
    dashboard_state: str = variable_alone(
        "absent",
        "V(present) serves the dashboard on this host, V(absent) removes it from this host. Set it for control planes or GPU nodes. On "
        "hosts without the variable C(site.yml) does neither.",
        ChoiceType(("present", "absent")),
        variable=_STATE,
        role="dashboard",
        clashes=(
            Clash(
                {"gpushare_deploy_mode": ("kubernetes",), OWN: ("present",)},
                "no service on a host",
                "remove it: kubectl gpushare dashboard serves the page on your machine",
            ),
        ),
    )
    dashboard_address: str = variable_alone(
        "127.0.0.1",
        'IP address on which the dashboard listens, such as V("{{ ansible_host }}") if that is an address. V(0.0.0.0) and V(::) require '
        "O(gpushare_dashboard_host_names).",
        TextType("an IP address such as 127.0.0.1", "[0-9A-Fa-f:.]+", form=ADDRESS),
        variable=_ADDRESS,
        role="dashboard",
        clashes=(
            Clash(
                {**_PRESENT, OWN: BEYOND_LOOPBACK, _TLS: (False,)},
                "TLS where the token goes over a network",
                "leave gpushare_dashboard_tls out, or listen on 127.0.0.1 behind a proxy",
                f"{_ADDRESS}: {{{_ADDRESS}!r}} with {_TLS}: false",
            ),
            Clash(
                {**_PRESENT, OWN: EVERYWHERE, "gpushare_dashboard_host_names": NOTHING},
                "the names of the server, because requests for others are rejected",
                "set gpushare_dashboard_host_names",
                f"{_ADDRESS}: {{{_ADDRESS}!r}} without gpushare_dashboard_host_names",
            ),
        ),
    )
    dashboard_port: int = variable_alone(
        9442,
        "Port of the dashboard, from 1024 on.",
        NumberType(1024, 65535),
        variable="gpushare_dashboard_port",
        role="dashboard",
        clashes=(
            _same_port("gpushare_extender_port"),
            _same_port("gpushare_metrics_extender_port", gpushare_metrics_address=NOTHING),
            _same_port("gpushare_metrics_plugin_port", gpushare_metrics_address=NOTHING),
        ),
    )
    dashboard_token: str = variable_alone(
        "",
        "Token that people enter on the page, 16 characters or more. V(present) requires it. It shows the pods of all namespaces, so keep "
        "it in a vault. The host stores it in a file that only root may read.",
        TOKEN,
        variable="gpushare_dashboard_token",
        role="dashboard",
        clashes=(
            Clash(
                {**_PRESENT, OWN: NOTHING},
                "the token that people enter on the page",
                "set gpushare_dashboard_token (in a vault)",
                f"{_STATE}: present without gpushare_dashboard_token",
            ),
        ),
    )
    dashboard_tls: bool = variable_alone(
        True,
        "Whether the dashboard serves TLS. V(false) only on a loopback address, for a proxy on the same host.",
        SwitchType(),
        variable=_TLS,
        role="dashboard",
    )
    dashboard_tls_cert: str = variable_alone(
        "",
        "Certificate of the dashboard on the host, as PEM. Empty means that the role creates one, with an authority of this host in "
        "C(dashboard-pki) below O(gpushare_config_dir).",
        _FILE,
        variable=_CERTIFICATE,
        role="dashboard",
        clashes=(
            _pair(_HALF, **{_TLS: (True,), _KEY: NOTHING}),
            _pair(_WITHOUT_TLS, **{_TLS: (False,)}),
            Clash(
                _PRESENT,
                "different names",
                "rename one of them",
                f"{{{_CERTIFICATE}}} and {{{_KEY}}}, two files of one name",
                unless={OWN: NOTHING, _KEY: NOTHING},
                same=(OWN, _KEY),
            ),
        ),
    )
    dashboard_tls_key: str = variable_alone(
        "",
        f"Key of O({_CERTIFICATE}) on the host, as PEM.",
        _FILE,
        variable=_KEY,
        role="dashboard",
        clashes=(_pair(_HALF, **{_TLS: (True,), _CERTIFICATE: NOTHING}), _pair(_WITHOUT_TLS, **{_TLS: (False,), _CERTIFICATE: NOTHING})),
    )
    verify_probe: str = variable_alone(
        "auto",
        "When to place a probe pod on every GPU node. V(auto) places one if the run has changed something.",
        ChoiceType(("auto", "always", "never")),
        variable="gpushare_verify_probe",
        role="verify",
        scope=CLUSTER,
    )
    verify_namespace: str = variable_alone(
        "default",
        "The namespace in which the probe pods run, one that users' pods with GPUs are in. They meet what those meet there, such as "
        "webhooks, policies, quotas and pod security. A probe pod that the API server does not take there runs in C(kube-system), and a "
        "warning has the server's words.",
        TextType(
            "the name of a namespace: at most 63 lower-case letters, digits and dashes, such as default",
            "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?",
        ),
        variable="gpushare_verify_namespace",
        role="verify",
        scope=CLUSTER,
    )
    gpu_operator: str = variable_alone(
        "check",
        "The C(ClusterPolicy) of NVIDIA's GPU Operator needs C(devicePlugin.enabled: false) where the operator serves GPU nodes of this "
        "collection. V(check) fails and prints the change. V(patch) makes it, if no chart or tool owns the object, and uninstall restores "
        "it.",
        ChoiceType(("check", "patch")),
        variable="gpushare_gpu_operator",
        role="take_over",
        scope=CLUSTER,
    )
    take_over_timeout: int = variable_alone(
        180,
        "Seconds within which another device plugin must leave a node that take_over.yml takes over.",
        NumberType(1, 86400, "seconds"),
        variable="gpushare_take_over_timeout",
        role="take_over",
        entry="main",
        apart=True,
    )
    take_over_retire: bool = variable_alone(
        False,
        "Whether take_over.yml deletes the parts of the original gpushare as its last step. After it, uninstall.yml cannot restore them.",
        SwitchType(),
        variable="gpushare_take_over_retire",
        role="take_over",
        entry="retire",
        scope=CLUSTER,
    )
    uninstall_force: bool = variable_alone(
        False,
        "Whether to uninstall although pods have a share of a GPU. These pods keep running, but their containers cannot restart. Pods with "
        "GPUs by claims (back end C(dra)) are rejected all the same, because without the device plugin they cannot end.",
        SwitchType(),
        variable="gpushare_uninstall_force",
        role="uninstall",
        scope=CLUSTER,
    )
    remove_nodes: tuple[str, ...] = variable_alone(
        (),
        "Hosts that remove_node.yml or remove_dead_node.yml removes, by their names in the inventory. For a dead node that the inventory "
        "no longer has, the name of the Kubernetes node.",
        ListType(TextType()),
        variable="gpushare_remove_nodes",
        role="uninstall",
        entry="select",
        scope=CLUSTER,
    )
    uninstall_wait: int = variable_alone(
        330,
        "Seconds for which uninstall waits until kubelet releases the extended resources, which takes five minutes. With V(0) they stay in "
        "the nodes' status until the next run.",
        NumberType(0, 86400, "seconds"),
        variable="gpushare_uninstall_wait",
        role="uninstall",
        entry="cluster",
        scope=CLUSTER,
    )
