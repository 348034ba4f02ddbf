# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of our daemons, as `python tools/variables.py --write` makes them."""

from __future__ import annotations

from .rows import ConfiguredDaemon, DaemonSetting

DAEMONS = {
    "device_plugin": ConfiguredDaemon(
        "DevicePluginConfig",
        "device_plugin",
        (
            DaemonSetting("unit", "memoryUnit", "GiB", variable="gpushare_memory_unit", chart="memoryUnit"),
            DaemonSetting(
                "kubelet_root", "kubeletRoot", "/var/lib/kubelet", variable="gpushare_kubelet_root", hosts=False, chart="kubeletRoot"
            ),
            DaemonSetting(
                "token_seconds",
                "tokenSeconds",
                604800,
                variable="gpushare_token_seconds",
                scope="cluster",
                least=600,
                most=4294967296,
                expected="a number of seconds from 600 to 4294967296",
            ),
            DaemonSetting("strategy", "deviceStrategy", "auto", variable="gpushare_device_strategy", chart="deviceStrategy"),
            DaemonSetting("isolation", "isolation", "auto", variable="gpushare_isolation", chart="isolation"),
            DaemonSetting("limit_running_pods", "limitRunningPods", False, variable="gpushare_limit_running_pods"),
            DaemonSetting("overuse", "overuse", "report", variable="gpushare_overuse", scope="cluster", chart="overuse"),
            DaemonSetting(
                "overuse_grace",
                "overuseGrace",
                60,
                variable="gpushare_overuse_grace",
                chart="overuseGrace",
                least=10,
                most=86400,
                expected="a number of seconds from 10 to 86400",
            ),
            DaemonSetting("unstartable", "unstartable", "report", variable="gpushare_unstartable", scope="cluster"),
            DaemonSetting(
                "health_checks",
                "healthChecks",
                3,
                variable="gpushare_health_checks",
                chart="healthChecks",
                least=1,
                most=43200,
                expected="a number from 1 to 43200",
            ),
            DaemonSetting("publish_use", "publishUse", "node", variable="gpushare_publish_use", chart="publishUse"),
            DaemonSetting("cdi_dir", "cdiDir", "/var/run/cdi", variable="gpushare_cdi_dir", hosts=False, chart="cdiDir"),
            DaemonSetting(
                "driver_root",
                "driverRoot",
                "",
                variable="gpushare_driver_root",
                hosts=False,
                chart="driverRoot",
                pattern="(?:/[^\\0]*)?",
                expected="an absolute path, or nothing",
            ),
            DaemonSetting(
                "runtime_class", "runtimeClass", "gpushare-nvidia", variable="gpushare_runtime_class", hosts=False, chart="runtimeClass"
            ),
        ),
    ),
    "extender": ConfiguredDaemon(
        "ExtenderConfig",
        "extender",
        (
            DaemonSetting("placement", "placement", "binpack", variable="gpushare_placement", scope="control planes", chart="placement"),
            DaemonSetting(
                "gpu_placement", "gpuPlacement", "", variable="gpushare_gpu_placement", scope="control planes", chart="gpuPlacement"
            ),
            DaemonSetting("preempt", "preempt", True, variable="gpushare_preemption", scope="control planes", chart="preemption"),
            DaemonSetting(
                "eviction_pause",
                "evictionPause",
                0,
                variable="gpushare_eviction_pause",
                scope="control planes",
                chart="evictionPause",
                least=0,
                most=3600,
                expected="a number of seconds from 0 to 3600",
            ),
            DaemonSetting(
                "lease",
                "lease",
                "kube-system/kube-scheduler",
                variable="gpushare_scheduler_lease",
                scope="cluster",
                pattern="none|[a-z0-9](?:[-a-z0-9]*[a-z0-9])?/[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?",
                expected="namespace and name, such as kube-system/kube-scheduler, or none",
            ),
            DaemonSetting(
                "most_nodes",
                "mostNodes",
                0,
                variable="gpushare_most_nodes",
                scope="control planes",
                chart="mostNodes",
                least=0,
                most=100000,
                expected="a number from 0 to 100000",
            ),
            DaemonSetting(
                "token_seconds",
                "tokenSeconds",
                604800,
                variable="gpushare_token_seconds",
                scope="cluster",
                least=600,
                most=4294967296,
                expected="a number of seconds from 600 to 4294967296",
            ),
        ),
    ),
}
#: Of the cluster, and of no daemon.
SHARED = (
    DaemonSetting(
        "control_plane_group", "controlPlaneGroup", "kube_control_plane", variable="gpushare_control_plane_group", scope="cluster"
    ),
    DaemonSetting("gpu_group", "gpuGroup", "gpu_nodes", variable="gpushare_gpu_group", scope="cluster"),
    DaemonSetting("kubectl", "kubectl", "kubectl", variable="gpushare_kubectl"),
    DaemonSetting("admin_kubeconfig", "adminKubeconfig", "/etc/kubernetes/admin.conf", variable="gpushare_admin_kubeconfig"),
    DaemonSetting(
        "api_server",
        "apiServer",
        "",
        variable="gpushare_api_server",
        scope="group",
        pattern="(?:https://[^/\\s]+\\S*)?",
        expected="a URL such as https://10.0.0.1:6443, or nothing",
    ),
    DaemonSetting("config_dir", "configDir", "/etc/gpushare", variable="gpushare_config_dir"),
    DaemonSetting("pki_dir", "pkiDir", "/etc/gpushare/pki", variable="gpushare_pki_dir", scope="control planes"),
    DaemonSetting(
        "extender_port",
        "extenderPort",
        32766,
        variable="gpushare_extender_port",
        scope="control planes",
        least=1,
        most=65535,
        expected="a number from 1 to 65535",
    ),
    DaemonSetting("extender_tls", "extenderTls", True, variable="gpushare_extender_tls", scope="control planes"),
    DaemonSetting(
        "extender_memory",
        "extenderMemory",
        "1G",
        variable="gpushare_extender_memory",
        scope="control planes",
        pattern="[1-9][0-9]{0,5}[MG]",
        expected="an amount of memory such as 1G or 1536M",
    ),
    DaemonSetting(
        "metrics_address",
        "metricsAddress",
        "",
        variable="gpushare_metrics_address",
        pattern="[0-9A-Fa-f:.]*",
        expected="an IP address such as 10.0.0.5 or fd00::5, or nothing",
    ),
    DaemonSetting(
        "metrics_plugin_port",
        "metricsPluginPort",
        9440,
        variable="gpushare_metrics_plugin_port",
        least=1024,
        most=65535,
        zero=True,
        expected="a number from 1024 to 65535, or 0 for none",
    ),
    DaemonSetting(
        "metrics_extender_port",
        "metricsExtenderPort",
        9441,
        variable="gpushare_metrics_extender_port",
        least=1024,
        most=65535,
        zero=True,
        expected="a number from 1024 to 65535, or 0 for none",
    ),
    DaemonSetting(
        "start_timeout",
        "startTimeout",
        60,
        variable="gpushare_start_timeout",
        least=1,
        most=86400,
        expected="a number of seconds from 1 to 86400",
    ),
)
