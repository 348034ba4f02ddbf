# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The values of a cluster that several roles read, and no daemon has as its own setting.

A field has the role that describes its variable. The other roles that read it get its specification and default from
`python tools/variables.py --write`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpushare_runtime.core.protocol import EXTENDER_PORT
from gpushare_runtime.settings.schema import CLUSTER, CONTROL_PLANES, GROUP, NumberType, SwitchType, TextType, folder, setting

_INVENTORY_GROUP = TextType("the name of a group of the inventory")
_PORT = NumberType(1, 65535)
#: Of what an ordinary user may listen on; 0 for nothing.
_PORT_OR_NONE = NumberType(1024, 65535, zero=True)


@dataclass(frozen=True)
class ClusterConfig:
    """The variables, by what they are about."""

    control_plane_group: str = setting(
        "kube_control_plane",
        "inventory group of the control planes",
        _INVENTORY_GROUP,
        variable="gpushare_control_plane_group",
        role="preflight",
        scope=CLUSTER,
    )
    gpu_group: str = setting(
        "gpu_nodes", "inventory group of the GPU nodes", _INVENTORY_GROUP, variable="gpushare_gpu_group", role="preflight", scope=CLUSTER
    )
    kubectl: str = setting(
        "kubectl", "name or path of kubectl on the control planes", TextType(), variable="gpushare_kubectl", role="preflight"
    )
    admin_kubeconfig: Path = setting(
        Path("/etc/kubernetes/admin.conf"),
        "the administrator's kubeconfig on the control planes",
        folder(),
        variable="gpushare_admin_kubeconfig",
        role="preflight",
    )
    api_server: str = setting(
        "",
        "URL of the API server that the daemons use",
        # Not http: the daemons send it their tokens.
        TextType("a URL such as https://10.0.0.1:6443, or nothing", r"(?:https://[^/\s]+\S*)?"),
        variable="gpushare_api_server",
        role="device_plugin",
        scope=GROUP,
        description="URL of the API server that the daemons use. By default the one in the administrator's kubeconfig.",
    )
    config_dir: Path = setting(
        Path("/etc/gpushare"),
        "folder on the hosts for the daemons' settings, kubeconfigs and seed tokens",
        folder(),
        variable="gpushare_config_dir",
        role="device_plugin",
    )
    pki_dir: Path = setting(
        Path("/etc/gpushare/pki"),
        "folder on the control planes for the certificates between kube-scheduler and the extender",
        folder(),
        variable="gpushare_pki_dir",
        role="extender",
        scope=CONTROL_PLANES,
        description="Folder on the control planes for the certificates between kube-scheduler and the extender. Its subfolder C(scheduler) "
        "is mounted into kube-scheduler.",
    )
    extender_port: int = setting(
        EXTENDER_PORT,
        "port on 127.0.0.1 where the extender listens",
        _PORT,
        variable="gpushare_extender_port",
        role="extender",
        scope=CONTROL_PLANES,
    )
    extender_tls: bool = setting(
        True,
        "whether kube-scheduler and the extender authenticate each other by certificates",
        SwitchType(),
        variable="gpushare_extender_tls",
        role="extender",
        scope=CONTROL_PLANES,
        description="Whether kube-scheduler and the extender authenticate each other by certificates. Without them, any process on the "
        "control plane can make the extender bind pods. Set V(false) only to take over from the original.",
    )
    extender_memory: str = setting(
        "1G",
        "most memory of the extender",
        TextType("an amount of memory such as 1G or 1536M", "[1-9][0-9]{0,5}[MG]"),
        variable="gpushare_extender_memory",
        role="extender",
        scope=CONTROL_PLANES,
        description="Most memory of the extender as a service, such as C(1536M). systemd ends a process that needs more, and starts it "
        "again. Raise it where the cluster has more than 5000 nodes or 50,000 pods. Pods have C(resources) of the chart.",
    )
    metrics_address: str = setting(
        "",
        "IP address on which the daemons serve their metrics",
        TextType("an IP address such as 10.0.0.5 or fd00::5, or nothing", r"[0-9A-Fa-f:.]*"),
        variable="gpushare_metrics_address",
        role="device_plugin",
        description='IP address on which the daemons serve their metrics over plain http, such as V("{{ ansible_host }}") if that is an '
        "address. Empty means no metrics. Any address except a loopback one requires C(gpushare_metrics_token).",
    )
    metrics_plugin_port: int = setting(
        9440,
        "port of the device plugin's metrics",
        _PORT_OR_NONE,
        variable="gpushare_metrics_plugin_port",
        role="device_plugin",
        description="Port of the device plugin's metrics on O(gpushare_metrics_address). 0 means no metrics.",
    )
    metrics_extender_port: int = setting(
        9441,
        "port of the extender's metrics",
        _PORT_OR_NONE,
        variable="gpushare_metrics_extender_port",
        role="extender",
        description="Port of the extender's metrics on O(gpushare_metrics_address). 0 means no metrics.",
    )
    start_timeout: int = setting(
        60,
        "seconds within which a daemon must become healthy after its start",
        NumberType(1, 86400, "seconds"),
        variable="gpushare_start_timeout",
        role="device_plugin",
    )
