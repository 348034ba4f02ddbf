# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Values of the chart with what the builders get for them, and values that it does not take."""

from __future__ import annotations

from typing import Any

import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import presets

Json = dict[str, Any]

#: Values of the chart and the fields of the builders that mean the same.
SETS: tuple[tuple[Json, Json, str], ...] = (
    ({}, {}, "v1.36.3"),
    ({}, {}, "v1.30.4"),
    ({"image": "registry.example.org/gpushare@sha256:00"}, {"image": "registry.example.org/gpushare@sha256:00"}, "v1.36.3"),
    ({"schedulerImage": "m.example.org/s:v1.36.0"}, {"scheduler_image": "m.example.org/s:v1.36.0"}, "v1.36.3"),
    ({"runtimeClass": "", "kubeletRoot": "/data/kubelet"}, {"runtime_class": "", "kubelet_root": "/data/kubelet"}, "v1.36.3"),
    ({"runtimeClass": "nvidia"}, {"runtime_class": "nvidia"}, "v1.36.3"),
    ({"apiServer": {"host": "10.0.0.1", "port": 8443}}, {"api_server": "https://10.0.0.1:8443"}, "v1.36.3"),
    ({"annotationWriters": ["a:b", "c/d@e"]}, {"writers": ["a:b", "c/d@e"]}, "v1.36.3"),
    ({"isolation": "driver", "memoryUnit": "MiB"}, {"isolation": "driver", "memory_unit": "MiB"}, "v1.36.3"),
    (
        {"driverRoot": "/opt/driver", "cdiDir": "/run/cdi", "selinuxType": "spc_t", "nodeSelector": {"nvidia.com/gpu.present": "true"}},
        {"driver_root": "/opt/driver", "cdi_dir": "/run/cdi", "selinux_type": "spc_t", "node_selector": {"nvidia.com/gpu.present": "true"}},
        "v1.36.3",
    ),
    ({"driverRoot": "/run/nvidia/driver"}, {"driver_root": "/run/nvidia/driver"}, "v1.36.3"),
    (
        {"driverRoot": "/opt/driver", "deviceStrategy": "envvar", "tolerations": [{"key": "a/b", "operator": "Exists"}]},
        {"driver_root": "/opt/driver", "device_strategy": "envvar", "tolerations": [{"key": "a/b", "operator": "Exists"}]},
        "v1.36.3",
    ),
    ({"isolation": "none", "deviceStrategy": "cdi"}, {"isolation": "none", "device_strategy": "cdi"}, "v1.36.3"),
    ({"overuse": "evict", "overuseGrace": 90}, {"overuse": "evict", "overuse_grace": 90}, "v1.36.3"),
    ({"openshift": True, "isolation": "watch"}, {"openshift": True, "isolation": "watch"}, "v1.36.3"),
    (
        {"placement": "spread", "gpuPlacement": "binpack", "preemption": False},
        {"settings": {"placement": "spread", "gpuPlacement": "binpack"}, "preemption": False},
        "v1.36.3",
    ),
    (
        {"mostNodes": 100, "percentageOfNodesToScore": 0, "extenderWeight": 7, "extenderHttpTimeout": "800ms", "replicas": 3},
        {"settings": {"mostNodes": 100}, "percentage": 0, "extender_weight": 7, "extender_http_timeout": "800ms", "replicas": 3},
        "v1.36.3",
    ),
    ({"schedulerOnGpuNodes": True}, {"scheduler_on_gpu_nodes": True}, "v1.36.3"),
    (
        {"scheduler": {"tolerations": [{"key": "a", "operator": "Exists"}], "nodeSelector": {"kubernetes.io/arch": "amd64"}}},
        {"scheduler_tolerations": [{"key": "a", "operator": "Exists"}], "scheduler_node_selector": {"kubernetes.io/arch": "amd64"}},
        "v1.36.3",
    ),
    ({"prometheus": "https://p.example.org:9090/a"}, {"prometheus": "https://p.example.org:9090/a"}, "v1.36.3"),
    ({"dashboard": {"enabled": True}}, {"dashboard": True}, "v1.36.3"),
    ({"imagePullSecrets": [{"name": "a"}, {"name": "b.c"}]}, {"pull_secrets": ["a", "b.c"]}, "v1.36.3"),
    ({"metrics": {"enabled": True}}, {"metrics": True}, "v1.36.3"),
    (
        {"metrics": {"enabled": True, "podMonitor": True}, "openshift": True},
        {"metrics": True, "pod_monitors": True, "openshift": True},
        "v1.30.4",
    ),
    # As with the dashboard's name.
    ({"metrics": {"podMonitor": True}}, {}, "v1.36.3"),
    (
        {
            "dashboard": {"enabled": True, "hostName": "gpu.example.org"},
            "openshift": True,
            "prometheus": "http://p:9090",
            "apiServer": {"host": "10.0.0.1"},
            "schedulerOnGpuNodes": True,
        },
        {
            "dashboard": True,
            "dashboard_hosts": ["gpu.example.org"],
            "openshift": True,
            "prometheus": "http://p:9090",
            "api_server": "https://10.0.0.1:6443",
            "scheduler_on_gpu_nodes": True,
        },
        "v1.30.4",
    ),
    ({"dashboard": {"hostName": "gpu.example.org"}}, {}, "v1.36.3"),
)
#: Names of the chart to fields of the builders, of those that presets set.
_FIELDS = {
    "kubeletRoot": "kubelet_root",
    "runtimeClass": "runtime_class",
    "deviceStrategy": "device_strategy",
    "selinuxType": "selinux_type",
    "driverRoot": "driver_root",
    "openshift": "openshift",
    "nodeSelector": "node_selector",
}
#: The back end that needs no scheduler of ours.
_CLAIMS = {"backend": "dra"}
SETS += tuple(
    ({**_CLAIMS, **values}, {**_CLAIMS, **fields}, "v1.37.2")
    for values, fields in (
        ({}, {}),
        ({"isolation": "driver", "memoryUnit": "MiB"}, {"isolation": "driver", "memory_unit": "MiB"}),
        ({"isolation": "none", "memoryUnit": "64MiB", "deviceStrategy": "cdi"}, {"isolation": "none", "memory_unit": "64MiB"}),
        ({"runtimeClass": "", "kubeletRoot": "/data/kubelet"}, {"runtime_class": "", "kubelet_root": "/data/kubelet"}),
        ({"runtimeClass": "nvidia", "replicas": 3}, {"runtime_class": "nvidia", "replicas": 3}),
        ({"apiServer": {"host": "10.0.0.1", "port": 8443}}, {"api_server": "https://10.0.0.1:8443"}),
        (
            {"driverRoot": "/opt/driver", "cdiDir": "/run/cdi", "selinuxType": "spc_t", "nodeSelector": {"a": "b"}},
            {"driver_root": "/opt/driver", "cdi_dir": "/run/cdi", "selinux_type": "spc_t", "node_selector": {"a": "b"}},
        ),
        ({"imagePullSecrets": [{"name": "a"}], "annotationWriters": ["a:b"]}, {"pull_secrets": ["a"], "writers": ["a:b"]}),
        ({"dashboard": {"enabled": True}}, {"dashboard": True}),
        (
            {"dashboard": {"enabled": True, "hostName": "gpu.example.org"}, "prometheus": "http://p:9090"},
            {"dashboard": True, "dashboard_hosts": ["gpu.example.org"], "prometheus": "http://p:9090"},
        ),
        ({"metrics": {"enabled": True}}, {"metrics": True}),
        ({"metrics": {"enabled": True, "podMonitor": True}}, {"metrics": True, "pod_monitors": True}),
        (
            {"overuseGrace": 90, "healthChecks": 5, "unhealthy": "evict"},
            {"overuse_grace": 90, "settings": {"healthChecks": 5, "unhealthy": "evict"}},
        ),
    )
)
#: Values with the back end dra, the version of Kubernetes, and what is said about them.
REJECTED_BY_CLAIMS: tuple[tuple[Json, str, str], ...] = (
    ({}, "v1.36.5", "found Kubernetes v1.36.5 with backend: dra; expected 1.37 or newer"),
    ({"openshift": True}, "v1.37.2", "found openshift: true"),
    ({"overuse": "evict"}, "v1.37.2", "found overuse: evict"),
    ({"deviceStrategy": "envvar"}, "v1.37.2", "found deviceStrategy: envvar"),
)
_PRESETS = [yaml.safe_load((presets.FOLDER / f"{name}.yaml").read_text()) for name in presets.names()]
SETS += tuple((values, {_FIELDS[key]: value for key, value in values.items()}, "v1.36.3") for values in _PRESETS)
BAD: tuple[Json, ...] = (
    {"isolation": "mps"},
    {"backend": "claims"},
    {"image": ""},
    {"image": 'x" y'},
    {"kubeletRoot": "data"},
    {"kubeletRoot": "/a/../b c"},
    {"replicas": 0},
    {"schedulerOnGpuNodes": "yes"},
    {"memoryUnit": "KiB"},
    {"deviceStrategy": "legacy"},
    {"driverRoot": "usr"},
    {"driverRoot": "/"},
    {"selinuxType": "a b"},
    {"tolerations": [{"name": "x"}]},
    {"nodeSelector": {"a": True}},
    {"scheduler": {"tolerations": [{"name": "x"}]}},
    {"scheduler": {"nodeSelector": {"a": True}}},
    {"scheduler": {"affinity": {}}},
    {"annotationWriters": ["a'] || ['"]},
    {"apiServer": {"host": "10.0.0.1"} | {"port": 0}},
    {"preemption": "yes"},
    {"prometheus": "p:9090"},
    {"prometheus": "http://user:word@p:9090"},
    {"dashboard": True},
    {"metrics": True},
    {"imagePullSecrets": ["a"]},
    {"imagePullSecrets": [{"name": "A"}]},
    {"metrics": {"enabled": True, "token": "x"}},
    {"dashboard": {"enabled": "yes"}},
    {"dashboard": {"hostName": "a b"}},
    {"dashboard": {"hostName": "-a"}},
    {"dashboard": {"hostName": "a..b"}},
    {"dashboard": {"hostName": "a:8443"}},
    {"unknown": 1},
    {"resources": {"extender": {"limits": {"memory": "1 GiB"}}}},
    {"resources": {"devicePlugin": {"limits": {"aliyun.com/gpu-mem": 1}}}},
    {"resources": {"renewal": {}}},
)
