# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pods of the daemons in the cluster: a scheduler of its own with the extender beside it, and a device plugin on each GPU node.

Pure.
"""

from __future__ import annotations

import hashlib
import json

from ...module_utils._cluster.names import (
    ANNOTATION_SCHEDULER_CONFIG,
    ANNOTATION_SETTINGS,
    CLAIMS,
    DASHBOARD,
    DEVICE_PLUGINS,
    LABEL_NODE,
    LABEL_NVIDIA_GPU,
    LABEL_ON_HOST,
    NAMESPACE,
    RESOURCES,
    RUNTIME_CLASS,
    RUNTIME_HANDLER,
)
from ...module_utils._formats.config_document import document
from ...module_utils._scheduler.releases import V1
from ...module_utils._scheduler.scheduler_config import KIND, PERCENTAGE, ExtenderEntry
from .._settings.table import DAEMONS
from . import openshift
from .accounts import DEFAULT_SCHEDULER
from .policies import EXTENDER, PLUGIN, SCHEDULER, Json
from .values import NODE_LABEL, Values

#: Where the image has its programs.
PROGRAMS = "/opt/gpushare/bin"
#: Of the extender, on the loopback address that the two containers of a pod share.
_EXTENDER_ADDRESS = "127.0.0.1:32766"
EXTENDER_URL = f"http://{_EXTENDER_ADDRESS}"
HEALTH_PORT = 9443
DASHBOARD_PORT = 9442
_SCHEDULER_PORT = 10259
#: As with services of hosts.
EXTENDER_METRICS_PORT, PLUGIN_METRICS_PORT = 9441, 9440
#: Values of the label `job`, which rules and dashboards ask for, by the name of the pods.
_JOBS = {SCHEDULER: "gpushare-extender", EXTENDER: "gpushare-extender", PLUGIN: "gpushare-device-plugin"}
_METRICS_FOLDER, _TOKEN = "/etc/gpushare/metrics", "token"
#: Where a daemon's container has its settings, and the name of their file.
SETTINGS_FOLDER, _SETTINGS = "/etc/gpushare/settings", "settings.yaml"
_PLUGIN_ROLE, _EXTENDER_ROLE, _DASHBOARD_ROLE = "device_plugin", "extender", "dashboard"
#: On the nodes: the usage file, which the service of a host has in the same place.
STATE_FOLDER = "/var/lib/gpushare-device-plugin"
#: Of the certificates of a control plane, as with services.
PKI_FOLDER = "/etc/gpushare/pki"
#: The extender's own copies of them, and the dashboard's of its own.
_COPIES, _DASHBOARD_COPIES = "/run/gpushare-pki", "/run/gpushare-tls"
#: Where the device plugin's container sees the host: its paths below this one, as far as they are mounted.
HOST = "/host"
HOST_CGROUPS, HOST_DEV = f"{HOST}/sys/fs/cgroup", f"{HOST}/dev"
#: The image's user, who owns nothing.
USER = 65535
LINUX = {"kubernetes.io/os": "linux"}
#: Labels of the device plugin's nodes.
OWN_LABELS = {**LINUX, **NODE_LABEL}
#: Folders in which something is mounted later.
_CHANGING = ("run-nvidia", "driver-root")
_LABELS = {"app.kubernetes.io/part-of": "gpushare"}
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
#: The taint that the pods of scheduler and dashboard tolerate.
CONTROL_PLANES = {"key": _CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}
_CONFIG = "scheduler.yaml"
NOTHING: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
#: Of pods that own nothing.
AS_NOBODY: Json = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}}


def labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name, **_LABELS}


def namespace(values: Values) -> Json:
    """The namespace of gpushare. The device plugin sees the host's processes and folders, which the standard for pods calls privileged."""
    enforce = {"pod-security.kubernetes.io/enforce": "privileged", **(openshift.NAMESPACE_LABELS if values.openshift else {})}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": values.namespace, "labels": {**_LABELS, **enforce}}}


def scheduler_config(values: Values) -> Json:
    """kube-scheduler's configuration: a profile and a Lease of our own, and the extender beside it."""
    extender = ExtenderEntry(
        url_prefix=f"{EXTENDER_URL}/gpushare-scheduler",
        weight=values.extender_weight,
        http_timeout=values.extender_http_timeout,
        managed_resources=RESOURCES,
        preemption=values.preemption,
    )
    return {
        "apiVersion": V1,
        "kind": KIND,
        "leaderElection": {"leaderElect": True, "resourceName": SCHEDULER, "resourceNamespace": values.namespace},
        PERCENTAGE: values.percentage,
        "profiles": [{"schedulerName": SCHEDULER}],
        "extenders": [extender.entry()],
    }


def config_map(values: Values) -> Json:
    # JSON, which is YAML, too.
    text = json.dumps(scheduler_config(values), indent=2) + "\n"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _named(SCHEDULER, values), "data": {_CONFIG: text}}


def disruption_budget(values: Values) -> Json:
    """A drain takes one scheduler's pod at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels(SCHEDULER)}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": _named(SCHEDULER, values), "spec": spec}


def runtime_class() -> Json:
    """NVIDIA's runtime for our own pods, under a name of our own."""
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": RUNTIME_CLASS}, "handler": RUNTIME_HANDLER}


def network_policies(values: Values) -> list[Json]:
    """No pod has to call ours, except for the metrics: kubelet's probes come from the node itself, which a NetworkPolicy always lets in."""
    ports: dict[str, int | None] = {PLUGIN: PLUGIN_METRICS_PORT}
    if values.by_claims:
        ports |= {CLAIMS: None}
    elif not values.default_scheduler:
        ports = {SCHEDULER: EXTENDER_METRICS_PORT, **ports}
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": _named(name, values),
            "spec": {
                "podSelector": {"matchLabels": labels(name)},
                "policyTypes": ["Ingress"],
                **({"ingress": [{"ports": [{"port": port, "protocol": "TCP"}]}]} if values.metrics and port else {}),
            },
        }
        for name, port in ports.items()
    ]


def pod_monitors(values: Values) -> list[Json]:
    """How Prometheus' operator scrapes the pods: with the labels that services of hosts have, and no others.

    The fields are those of prometheus-operator, pkg/apis/monitoring v0.95.2 (read on 2026-11-29). An extender is an instance by the name
    of its pod, because two may be on one node; a device plugin by that of its node, which stays when the pod is another.
    """
    of_extender = {} if values.by_claims else {EXTENDER if values.default_scheduler else SCHEDULER: "pod_name"}
    places = {**of_extender, PLUGIN: "pod_node_name"}
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": _named(name, values),
            "spec": {
                "selector": {"matchLabels": labels(name)},
                "podMetricsEndpoints": [
                    {
                        "port": "metrics",
                        "authorization": {"credentials": {"name": f"{name}-metrics", "key": _TOKEN}},
                        "relabelings": [
                            {"action": "labeldrop", "regex": "namespace|pod|container|endpoint"},
                            {"action": "replace", "targetLabel": "job", "replacement": _JOBS[name]},
                            {"action": "replace", "sourceLabels": [f"__meta_kubernetes_{place}"], "targetLabel": "instance"},
                        ],
                    }
                ],
            },
        }
        for name, place in places.items()
    ]


def _metrics_settings(values: Values, port: int) -> Json:
    return {"metricsListen": f"0.0.0.0:{port}", "metricsTokenFile": f"{_METRICS_FOLDER}/{_TOKEN}"} if values.metrics else {}


def _metrics_port(values: Values, port: int) -> Json:
    return {"ports": [{"name": "metrics", "containerPort": port, "protocol": "TCP"}]} if values.metrics else {}


def _metrics_mounts(values: Values) -> list[Json]:
    return [_mount("metrics", _METRICS_FOLDER)] if values.metrics else []


def _metrics_volumes(values: Values, name: str) -> list[Json]:
    """The bearer token of scrapers, from a Secret that an administrator makes. Without it the daemon serves, and answers scrapes with 503.

    One Secret for each kind of pod: root of a GPU node reads those of its own pods.
    """
    source = {"name": f"{name}-metrics", "items": [{"key": _TOKEN, "path": _TOKEN}], "optional": True}
    return [{"name": "metrics", "projected": {"sources": [{"secret": source}]}}] if values.metrics else []


def deployment(values: Values) -> Json:
    """Two schedulers, of which one leads. Each pod's host name is what its Lease and its extender have in common."""
    digest = hashlib.sha256(config_map(values)["data"][_CONFIG].encode()).hexdigest()
    pod = {
        **own_account(SCHEDULER),
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {**values.scheduler_node_selector, **LINUX},
        "tolerations": [dict(CONTROL_PLANES), *(dict(toleration) for toleration in values.scheduler_tolerations)],
        "affinity": {**apart(SCHEDULER), "nodeAffinity": _off_gpu_nodes(values)},
        "securityContext": dict(AS_NOBODY),
        "containers": [_kube_scheduler(values), _extender(values)],
        "volumes": [{"name": "config", "configMap": {"name": SCHEDULER}}, _settings_volume(), *_metrics_volumes(values, SCHEDULER)],
    }
    annotations = {ANNOTATION_SCHEDULER_CONFIG: digest, ANNOTATION_SETTINGS: extender_settings(values)}
    # A new one leads only once an old one has ended: no gap with two, and none of seconds with one.
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    return deployment_of(SCHEDULER, values, values.replicas, pod, annotations, strategy=strategy)


def _off_gpu_nodes(values: Values) -> Json:
    """Root of a node reads the tokens of its pods, and the scheduler's binds pods to every node: so no weight, but a condition."""
    on_planes = {"matchExpressions": [{"key": _CONTROL_PLANE, "operator": "Exists"}]}
    others = {"key": LABEL_NVIDIA_GPU, "operator": "NotIn", "values": ["true"]}
    elsewhere = {"matchExpressions": [{"key": LABEL_NODE, "operator": "DoesNotExist"}, others]}
    preferred = [{"weight": 50, "preference": on_planes}, {"weight": 100, "preference": elsewhere}]
    rule: Json = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    if not values.scheduler_on_gpu_nodes:
        rule["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [elsewhere]}
    return rule


def _kube_scheduler(values: Values) -> Json:
    return {
        "name": "kube-scheduler",
        "image": values.scheduler_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["kube-scheduler", f"--config=/etc/gpushare/{_CONFIG}"],
        **environment(values),
        "volumeMounts": [_mount("config", "/etc/gpushare")],
        **probes(_SCHEDULER_PORT, "/livez", "HTTPS"),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": NOTHING,
    }


def extender_settings(values: Values) -> str:
    """The file that the extender reads."""
    fields = values.settings_of(_EXTENDER_ROLE)
    fields |= {"listen": _EXTENDER_ADDRESS, "healthListen": f"{_health_host(values) or '0.0.0.0'}:{HEALTH_PORT}"}
    if values.default_scheduler:
        fields["lease"] = f"{NAMESPACE}/{DEFAULT_SCHEDULER}"
        fields |= {"tlsCert": f"{_COPIES}/extender.crt", "tlsKey": f"{_COPIES}/extender.key", "clientCa": f"{_COPIES}/ca.crt"}
    else:
        fields["lease"] = f"{values.namespace}/{SCHEDULER}"
    fields |= {"evict": True} if values.evict else {}
    return document(DAEMONS[_EXTENDER_ROLE].kind, {**fields, **_metrics_settings(values, EXTENDER_METRICS_PORT)})


def _health_host(values: Values) -> str:
    """Where the extender serves its probes, "" for the pod's own address: a pod on the host's network has none."""
    return "127.0.0.1" if values.default_scheduler else ""


def _extender(values: Values) -> Json:
    mounts = [*([_mount("copies", _COPIES)] if values.default_scheduler else []), *_metrics_mounts(values)]
    return {
        "name": "extender",
        "image": values.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [f"{PROGRAMS}/gpushare-extender"],
        "args": [f"--config={SETTINGS_FOLDER}/{_SETTINGS}"],
        **environment(values),
        **_metrics_port(values, EXTENDER_METRICS_PORT),
        "volumeMounts": [_mount("settings", SETTINGS_FOLDER), *mounts],
        **probes(HEALTH_PORT, host=_health_host(values)),
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": NOTHING,
    }


def extender_daemon_set(values: Values) -> Json:
    """The extender on each control plane, where kube-scheduler calls it on the host's loopback address, by TLS as beside a service.

    The certificates are the host's, made and renewed in the pod, root's as kube-scheduler is. The extender has copies of its own alone.
    """
    extender = _extender(values)
    keeper = {
        "image": values.image,
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [_mount("pki", PKI_FOLDER, False), _mount("copies", _COPIES, False)],
        "securityContext": NOTHING,
    }
    program, places = f"{PROGRAMS}/gpushare-pki", [f"--dir={PKI_FOLDER}", f"--copy-to={_COPIES}"]
    small = {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}}
    pod = {
        **own_account(EXTENDER),
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"kubernetes.io/os": "linux", _CONTROL_PLANE: ""},
        "tolerations": [{"operator": "Exists"}],
        # Its name is the host's, which kube-scheduler's Lease has.
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [{"name": "certificates", "command": [program], "args": ["ensure", *places], **keeper}],
        "containers": [extender, {"name": "renewal", "command": [program], "args": ["keep", *places], "resources": small, **keeper}],
        "volumes": [
            {"name": "pki", "hostPath": {"path": PKI_FOLDER, "type": "DirectoryOrCreate"}},
            {"name": "copies", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            _settings_volume(),
            *_metrics_volumes(values, EXTENDER),
        ],
    }
    annotations = {ANNOTATION_SETTINGS: extender_settings(values)}
    spec = {
        "selector": {"matchLabels": labels(EXTENDER)},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        "template": {"metadata": {"labels": labels(EXTENDER), "annotations": annotations}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": _named(EXTENDER, values), "spec": spec}


def plugin_settings(values: Values) -> str:
    """The file that the device plugin reads."""
    fields = values.settings_of(_PLUGIN_ROLE)
    if not values.writes_cdi:
        fields = {key: value for key, value in fields.items() if key not in ("driverRoot", "cdiDir")}
    if not values.runtime_class:
        del fields["runtimeClass"]
    fields |= {"inContainer": True, "cgroupRoot": HOST_CGROUPS, "devRoot": HOST_DEV, "stateDir": STATE_FOLDER}
    fields |= {"isolation": values.isolation_of_pods, "healthListen": f"0.0.0.0:{HEALTH_PORT}"}
    fields |= {"hostRoot": HOST} if values.writes_cdi else {}
    return document(DAEMONS[_PLUGIN_ROLE].kind, {**fields, **_metrics_settings(values, PLUGIN_METRICS_PORT)})


def _settings_volume() -> Json:
    """The settings of a pod as a file. They are an annotation of the pod, and no ConfigMap, which could change under pods that run: a pod
    has the settings of its own revision, also once its container starts again, and a way back brings back settings and image together.
    """
    item = {"path": _SETTINGS, "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{ANNOTATION_SETTINGS}']"}}
    return {"name": "settings", "projected": {"sources": [{"downwardAPI": {"items": [item]}}]}}


def daemon_set(values: Values) -> Json:
    """The device plugin on each node with our label. It is root without any of root's powers but that root's files are its own."""
    cdi = [
        # The driver and NVIDIA's toolkit: of the host, and of the GPU Operator, which mounts its driver again when it changes.
        ("usr", "/usr", "Directory", f"{HOST}/usr", True),
        # Where /usr is an OSTree image, as on OpenShift, this is a link out of it.
        ("usr-local", "/usr/local", "Directory", f"{HOST}/usr/local", True),
        ("run-nvidia", "/run/nvidia", "DirectoryOrCreate", f"{HOST}/run/nvidia", True),
        *([("driver-root", values.driver_root, "Directory", f"{HOST}{values.driver_root}", True)] if values.driver_root else []),
        ("cdi", values.cdi_dir, "DirectoryOrCreate", values.cdi_dir, False),
    ]
    folders = [
        ("device-plugins", DEVICE_PLUGINS, "Directory", DEVICE_PLUGINS, False),
        ("pod-resources", f"{values.kubelet_root}/pod-resources", "Directory", f"{values.kubelet_root}/pod-resources", True),
        ("cgroups", "/sys/fs/cgroup", "Directory", HOST_CGROUPS, not values.limits_by_driver),
        ("state", STATE_FOLDER, "DirectoryOrCreate", STATE_FOLDER, False),
        ("dev", "/dev", "Directory", HOST_DEV, True),
        *(cdi if values.writes_cdi else []),
    ]
    rights = {
        **NOTHING,
        "capabilities": {"drop": ["ALL"], **({"add": ["SYS_ADMIN"]} if values.limits_by_driver else {})},
        **({"seLinuxOptions": {"type": values.selinux_type}} if values.selinux_type else {}),
    }
    container = {
        "name": "device-plugin",
        "image": values.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [f"{PROGRAMS}/gpushare-device-plugin"],
        "args": [f"--config={SETTINGS_FOLDER}/{_SETTINGS}"],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
            # By either of these, as its configuration allows, NVIDIA's runtime gives the driver's libraries and every GPU.
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
            *_api_server(values),
        ],
        **_metrics_port(values, PLUGIN_METRICS_PORT),
        "volumeMounts": [
            *(
                {**_mount(name, inside, read_only), **({"mountPropagation": "HostToContainer"} if name in _CHANGING else {})}
                for name, _, _, inside, read_only in folders
            ),
            _mount("every-gpu", "/var/run/nvidia-container-devices/all"),
            _mount("settings", SETTINGS_FOLDER),
            *_metrics_mounts(values),
        ],
        **probes(HEALTH_PORT),
        # The plugin uses 85 MiB on a real GPU.
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": rights,
    }
    not_on_host = {"matchExpressions": [{"key": LABEL_ON_HOST, "operator": "DoesNotExist"}]}
    pod = {
        **own_account(PLUGIN),
        **({"runtimeClassName": values.runtime_class} if values.runtime_class else {}),
        "priorityClassName": "system-node-critical",
        "nodeSelector": {**values.node_selector, **OWN_LABELS},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [not_on_host]}}},
        "tolerations": [dict(toleration) for toleration in values.tolerations],
        "hostPID": True,
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [
            *({"name": name, "hostPath": {"path": host, "type": kind}} for name, host, kind, _, _ in folders),
            {"name": "every-gpu", "hostPath": {"path": "/dev/null", "type": "CharDevice"}},
            _settings_volume(),
            *_metrics_volumes(values, PLUGIN),
        ],
    }
    spec = {
        "selector": {"matchLabels": labels(PLUGIN)},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        "template": {"metadata": {"labels": labels(PLUGIN), "annotations": {ANNOTATION_SETTINGS: plugin_settings(values)}}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": _named(PLUGIN, values), "spec": spec}


def _dashboard_names(values: Values) -> list[str]:
    """The names by which people call it, beside kubelet and `kubectl port-forward`."""
    return [f"{DASHBOARD}.{values.namespace}.svc", f"{DASHBOARD}.{values.namespace}", *values.dashboard_hosts]


def dashboard_settings(values: Values) -> str:
    """The file that the dashboard reads."""
    fields: Json = {
        "listen": f"0.0.0.0:{DASHBOARD_PORT}",
        "ownTokens": True,
        "tlsCert": f"{_DASHBOARD_COPIES}/dashboard.crt",
        "tlsKey": f"{_DASHBOARD_COPIES}/dashboard.key",
        "hostNames": ["localhost", *_dashboard_names(values)],
        **({"prometheus": values.prometheus} if values.prometheus else {}),
    }
    return document(DAEMONS[_DASHBOARD_ROLE].kind, fields)


def dashboard(values: Values) -> list[Json]:
    """The page, to which people bring tokens of their own. Its certificate and the authority of it are the pod's, made at its start."""
    folder, copies = "/run/gpushare-pki", _DASHBOARD_COPIES
    keeper = {
        "image": values.image,
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [_mount("pki", folder, False), _mount("tls", copies, False)],
        "securityContext": NOTHING,
    }
    program = f"{PROGRAMS}/gpushare-pki"
    # A folder of its own: that of the volume is root's.
    places = [f"--dir={folder}/own", "--for=dashboard", *(f"--name={name}" for name in _dashboard_names(values)), f"--copy-to={copies}"]
    small = {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}}
    ready = _probe("/healthz", DASHBOARD_PORT, "HTTPS", period=5, failures=3)
    ready["httpGet"]["httpHeaders"] = [{"name": "Host", "value": "localhost"}]
    container = {
        "name": "dashboard",
        "image": values.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [f"{PROGRAMS}/gpushare-dashboard"],
        "args": [f"--config={SETTINGS_FOLDER}/{_SETTINGS}"],
        **environment(values),
        "ports": [{"name": "https", "containerPort": DASHBOARD_PORT, "protocol": "TCP"}],
        "volumeMounts": [_mount("settings", SETTINGS_FOLDER), _mount("tls", copies)],
        "livenessProbe": {"tcpSocket": {"port": DASHBOARD_PORT}, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5},
        "readinessProbe": ready,
        # Its service on hosts has the same bound.
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": NOTHING,
    }
    # It may not bind pods, so that it is a preference to keep its token off the GPU nodes.
    preference = {key: rule for key, rule in _off_gpu_nodes(values).items() if key.startswith("preferred")}
    memory = {"medium": "Memory", "sizeLimit": "1Mi"}
    pod = {
        **own_account(DASHBOARD),
        "nodeSelector": dict(LINUX),
        "tolerations": [dict(CONTROL_PLANES)],
        "affinity": {"nodeAffinity": preference},
        "securityContext": dict(AS_NOBODY),
        "initContainers": [{"name": "certificates", "command": [program], "args": ["ensure", *places], **keeper}],
        "containers": [container, {"name": "renewal", "command": [program], "args": ["keep", *places], "resources": small, **keeper}],
        "volumes": [_settings_volume(), *({"name": name, "emptyDir": dict(memory)} for name in ("pki", "tls"))],
    }
    port = {"name": "https", "port": 443, "protocol": "TCP", "targetPort": DASHBOARD_PORT}
    service = {"type": "ClusterIP", "selector": labels(DASHBOARD), "ports": [port]}
    ingress = {
        "podSelector": {"matchLabels": labels(DASHBOARD)},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"port": DASHBOARD_PORT, "protocol": "TCP"}]}],
    }
    named = _named(DASHBOARD, values)
    return [
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": named, "spec": ingress},
        {"apiVersion": "v1", "kind": "Service", "metadata": named, "spec": service},
        deployment_of(DASHBOARD, values, 1, pod, {ANNOTATION_SETTINGS: dashboard_settings(values)}),
    ]


def node(name: str) -> Json:
    """The label of a GPU node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(NODE_LABEL)}}


def _named(name: str, values: Values) -> Json:
    return {"name": name, "namespace": values.namespace, "labels": labels(name)}


def _mount(name: str, path: str, read_only: bool = True) -> Json:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def own_account(name: str) -> Json:
    """The part of a pod that says who it is."""
    return {"serviceAccountName": name, "automountServiceAccountToken": True, "enableServiceLinks": False}


def apart(name: str) -> Json:
    """The part of an affinity that keeps the pods of this name on several nodes."""
    elsewhere = {"labelSelector": {"matchLabels": labels(name)}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": elsewhere}]}}


def deployment_of(name: str, values: Values, replicas: int, pod: Json, annotations: Json, **more: Json) -> Json:
    """more: of its spec."""
    metadata = {"labels": labels(name), **({"annotations": annotations} if annotations else {})}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels(name)}, **more, "template": {"metadata": metadata, "spec": pod}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _named(name, values), "spec": spec}


def probes(port: int, alive: str = "/healthz", scheme: str = "HTTP", *, host: str = "") -> Json:
    """The three probes of a daemon."""
    return {
        "startupProbe": _probe(alive, port, scheme, period=2, failures=60, host=host),
        "livenessProbe": _probe(alive, port, scheme, period=10, failures=6, host=host),
        "readinessProbe": _probe("/readyz", port, scheme, period=5, failures=3, host=host),
    }


def _probe(path: str, port: int, scheme: str = "HTTP", *, period: int, failures: int, host: str = "") -> Json:
    get = {**({"host": host} if host else {}), "path": path, "port": port, "scheme": scheme}
    return {"httpGet": get, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}


def _api_server(values: Values) -> list[Json]:
    """Where pods find the API server, if not at its Service."""
    found = values.api_host_and_port
    if found is None:
        return []
    return [{"name": "KUBERNETES_SERVICE_HOST", "value": found[0]}, {"name": "KUBERNETES_SERVICE_PORT", "value": str(found[1])}]


def environment(values: Values) -> Json:
    """Of a container that needs nothing else: an empty list is not what Kubernetes would say."""
    found = _api_server(values)
    return {"env": found} if found else {}


def around(values: Values) -> tuple[list[Json], list[Json]]:
    """The objects that are applied before the daemons of either back end, and those after them."""
    last = [*(dashboard(values) if values.dashboard else []), *(pod_monitors(values) if values.metrics and values.pod_monitors else [])]
    return [*([runtime_class()] if values.own_class else []), *network_policies(values)], last


def workloads(values: Values) -> list[Json]:
    """Every object that runs something, in the order in which they are applied."""
    first, last = around(values)
    if values.default_scheduler:
        return [*first, extender_daemon_set(values), daemon_set(values), *last]
    return [*first, config_map(values), disruption_budget(values), deployment(values), daemon_set(values), *last]
