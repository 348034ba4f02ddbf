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
                "token_seconds", "tokenSeconds", 604800, variable="gpushare_token_seconds", scope="cluster", least=600, most=4294967296
            ),
            DaemonSetting("strategy", "deviceStrategy", "auto", variable="gpushare_device_strategy", chart="deviceStrategy"),
            DaemonSetting("isolation", "isolation", "auto", variable="gpushare_isolation", chart="isolation"),
            DaemonSetting("limit_running_pods", "limitRunningPods", False, variable="gpushare_limit_running_pods"),
            DaemonSetting("overuse", "overuse", "report", variable="gpushare_overuse", scope="cluster", chart="overuse"),
            DaemonSetting(
                "overuse_grace", "overuseGrace", 60, variable="gpushare_overuse_grace", chart="overuseGrace", least=10, most=86400
            ),
            DaemonSetting("unstartable", "unstartable", "report", variable="gpushare_unstartable", scope="cluster"),
            DaemonSetting("health_checks", "healthChecks", 3, variable="gpushare_health_checks", chart="healthChecks", least=1, most=43200),
            DaemonSetting("cdi_dir", "cdiDir", "/var/run/cdi", variable="gpushare_cdi_dir", hosts=False, chart="cdiDir"),
            DaemonSetting("driver_root", "driverRoot", "", variable="gpushare_driver_root", hosts=False, chart="driverRoot"),
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
            DaemonSetting("lease", "lease", "kube-system/kube-scheduler", variable="gpushare_scheduler_lease", scope="cluster"),
            DaemonSetting(
                "most_nodes",
                "mostNodes",
                0,
                variable="gpushare_most_nodes",
                scope="control planes",
                chart="mostNodes",
                least=0,
                most=100000,
            ),
            DaemonSetting(
                "token_seconds", "tokenSeconds", 604800, variable="gpushare_token_seconds", scope="cluster", least=600, most=4294967296
            ),
        ),
    ),
}
