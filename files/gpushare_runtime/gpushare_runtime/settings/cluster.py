# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The variables of the daemons and of the cluster that no daemon has as its own setting.

A field has the role that describes its variable. The other roles that read it get its specification and default from
`python tools/variables.py --write`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare_runtime.core.protocol import EXTENDER_PORT
from gpushare_runtime.settings.dashboard import FURTHER_NAMES
from gpushare_runtime.settings.schema import (
    ADDRESS,
    BEYOND_LOOPBACK,
    CLUSTER,
    CONTROL_PLANES,
    DURATION,
    GROUP,
    LABELS,
    NOTHING,
    OWN,
    PUBLIC_URL,
    TOKEN,
    TOLERATIONS,
    ChoiceType,
    Clash,
    ListType,
    NumberType,
    SwitchType,
    TextType,
    VariableType,
    folder,
    not_by_claims,
    setting,
    variable_alone,
)

#: Of the controller or the host, or none.
_FILE = TextType(path=True)
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
        compared=False,
    )
    gpu_group: str = setting(
        "gpu_nodes",
        "inventory group of the GPU nodes",
        _INVENTORY_GROUP,
        variable="gpushare_gpu_group",
        role="preflight",
        scope=CLUSTER,
        compared=False,
    )
    kubectl: str = setting(
        "kubectl", "name or path of kubectl on the control planes", TextType(), variable="gpushare_kubectl", role="preflight", apart=True
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
        TextType("an IP address such as 10.0.0.5 or fd00::5, or nothing", r"[0-9A-Fa-f:.]*", form=ADDRESS),
        variable="gpushare_metrics_address",
        role="device_plugin",
        clashes=(
            Clash(
                {OWN: BEYOND_LOOPBACK, "gpushare_metrics_token": NOTHING},
                "a token where others than this host can ask for the metrics",
                "set gpushare_metrics_token (in a vault), or 127.0.0.1",
                "gpushare_metrics_address: {gpushare_metrics_address!r} without gpushare_metrics_token",
            ),
        ),
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
        clashes=(
            Clash(
                {},
                "two ports",
                "correct one of gpushare_metrics_*_port",
                "port {gpushare_metrics_plugin_port} for the metrics of both daemons",
                unless={"gpushare_metrics_address": NOTHING, OWN: (0,)},
                same=(OWN, "gpushare_metrics_extender_port"),
            ),
        ),
    )
    metrics_extender_port: int = setting(
        9441,
        "port of the extender's metrics",
        _PORT_OR_NONE,
        variable="gpushare_metrics_extender_port",
        role="extender",
        description="Port of the extender's metrics on O(gpushare_metrics_address). 0 means no metrics.",
        clashes=(
            Clash(
                {},
                "two ports",
                "correct gpushare_metrics_extender_port",
                "port {gpushare_metrics_extender_port} for the extender and for its metrics",
                unless={"gpushare_metrics_address": NOTHING, OWN: (0,)},
                same=(OWN, "gpushare_extender_port"),
            ),
        ),
    )
    metrics_token: str = variable_alone(
        "",
        "Bearer token that Prometheus must present to this host, 16 characters or more. Each host has its own, made of its name and a "
        "secret from a vault: docs/reference/metrics.md has the expression. On the host only root may read it.",
        TOKEN,
        variable="gpushare_metrics_token",
        role="device_plugin",
    )
    start_timeout: int = setting(
        60,
        "seconds within which a daemon must become healthy after its start",
        NumberType(1, 86400, "seconds"),
        variable="gpushare_start_timeout",
        role="device_plugin",
        apart=True,
    )
    annotation_writers: tuple[str, ...] = variable_alone(
        (),
        "More users that may write gpushare's annotations, and place pods with GPU memory by C(spec.nodeName). Values are the API "
        "server's user names, such as C(system:serviceaccount:kube-system:gpushare-schd-extender) while taking over from the "
        "original. Administrators that are not ServiceAccounts may do so anyway.",
        ListType(TextType()),
        variable="gpushare_annotation_writers",
        role="cluster_objects",
        scope=CLUSTER,
    )
    bundle: str = variable_alone(
        "",
        "A bundle on the controller, as the playbook C(bundle) has written it: hosts take the runtime's Python packages, the "
        "packages of toolkit and driver, and container images from it alone. Empty for the hosts' own sources.",
        _FILE,
        variable="gpushare_bundle",
        role="python_environment",
        scope=CLUSTER,
    )
    bundle_key: str = variable_alone(
        "",
        "File on the controller with public keys of OpenPGP, of which one must have signed the bundle. Empty for a bundle without "
        "signature.",
        _FILE,
        variable="gpushare_bundle_key",
        role="python_environment",
        scope=CLUSTER,
        clashes=(
            Clash(
                {"gpushare_bundle": NOTHING},
                "the bundle that it is the key of",
                "set gpushare_bundle, or remove the key",
                "gpushare_bundle_key without gpushare_bundle",
                unless={OWN: NOTHING},
            ),
        ),
    )
    deploy_mode: str = variable_alone(
        "systemd",
        "Mode of the daemons. V(systemd) makes them services of the hosts. V(kubernetes) makes them pods: C(site) then configures "
        "driver, toolkit and container runtime of the hosts, on k3s and RKE2 as far as these need it, and installs the rest as "
        "the playbook C(cluster) does, which needs no inventory. The playbook C(change_mode) changes the mode of a cluster of "
        "kubeadm.",
        ChoiceType(("systemd", "kubernetes")),
        variable="gpushare_deploy_mode",
        role="preflight",
        scope=CLUSTER,
    )
    backend: str = variable_alone(
        "extender",
        "Back end that counts GPU memory where the daemons are pods. V(extender) is a scheduler of gpushare's. V(dra) is the cluster's "
        "own scheduler, by claims; it requires Kubernetes 1.37, and the page docs/use/dra.md has what it does not have. Another value "
        "than before removes the other back end first, and is rejected while a pod has a GPU or waits for one.",
        ChoiceType(("extender", "dra")),
        variable="gpushare_backend",
        role="in_cluster",
        scope=CLUSTER,
        clashes=(
            Clash(
                {OWN: ("dra",), "gpushare_deploy_mode": ("systemd",)},
                "daemons that are pods",
                "set gpushare_deploy_mode: kubernetes, or gpushare_backend: extender",
                "gpushare_backend: dra with services on hosts",
            ),
        ),
    )
    expect_gpus: int = variable_alone(
        0,
        "Number of GPUs that the host must have. C(0) accepts any number.",
        NumberType(0, 128),
        variable="gpushare_expect_gpus",
        role="preflight",
    )
    expect_memory_mib: int = variable_alone(
        0,
        "Memory in MiB, as nvidia-smi reports it, that each GPU of the host must have at least. C(0) accepts any size.",
        NumberType(0, 2**24, "MiB"),
        variable="gpushare_expect_memory_mib",
        role="preflight",
    )
    minimum_driver: str = variable_alone(
        "384.81",
        "The oldest version of the NVIDIA driver that is accepted. Containers get no GPUs with drivers before 384.81.",
        TextType("a version such as 535.104 (quote it in YAML)", r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,3}"),
        variable="gpushare_minimum_driver",
        role="preflight",
    )
    target_kubernetes: str = variable_alone(
        "",
        'Version of Kubernetes for the next upgrade, such as C("1.37"). Preflight then reports what kubelets, control planes and '
        "kubeadm use that this version no longer takes.",
        TextType("a version of Kubernetes such as 1.37, in quotes, or nothing", r"(?:v?1\.[0-9]{1,3}(?:\.[0-9]{1,3})?)?"),
        variable="gpushare_target_kubernetes",
        role="preflight",
        scope=CLUSTER,
    )
    preflight_report: str = variable_alone(
        "",
        "Path on the controller for all reasons of preflight as JSON. By default no file is written.",
        TextType(),
        variable="gpushare_preflight_report",
        role="preflight",
        scope=CLUSTER,
    )
    prometheus: str = variable_alone(
        "",
        "URL of the Prometheus that scrapes the device plugins. The ConfigMap C(gpushare-info) in C(kube-public) then has it, "
        "which every user of the cluster may read, and C(kubectl gpushare top) takes it from there. Empty means no such "
        "ConfigMap. One that is there stays until C(uninstall).",
        TextType("a URL such as http://prometheus.monitoring:9090", form=PUBLIC_URL),
        variable="gpushare_prometheus",
        role="cluster_objects",
        scope=CLUSTER,
    )
    taint_gpu_nodes: bool = variable_alone(
        False,
        "Whether GPU nodes have the taint C(gpushare.kubernetes/gpu:PreferNoSchedule). Then kube-scheduler gives pods without "
        "GPUs another node as long as one has room, and pods with GPUs find CPU where the GPUs are. V(false) removes the taint, "
        "and leaves others.",
        SwitchType(),
        variable="gpushare_taint_gpu_nodes",
        role="kubelet",
        scope=CLUSTER,
        clashes=(
            Clash(
                {OWN: (True,)},
                "nodes without GPUs for the pods that have none, which come to GPU nodes only where no other has room",
                "leave it, or set it to false to remove the taint",
                "gpushare_taint_gpu_nodes: true, by which GPU nodes get the taint gpushare.kubernetes/gpu:PreferNoSchedule",
                warns=True,
            ),
        ),
    )
    without_policies: bool = variable_alone(
        False,
        "Whether gpushare may be installed where the API server has no ValidatingAdmissionPolicy (Kubernetes before 1.30). Then "
        "the token of any GPU node can change annotations, labels and status of every pod, and create ConfigMaps in kube-system. "
        "Users who may edit pods can write gpushare's annotations and take GPUs of others.",
        SwitchType(),
        variable="gpushare_without_policies",
        role="admission",
        scope=CLUSTER,
    )
    extender_weight: int = variable_alone(
        10,
        "Weight of the extender's scores among those of the scheduler's own plugins. With 10 the plugins' points for free CPU and "
        "memory seldom outvote the choice of GPUs, and preferences that users write decide between nodes that are nearly as good.",
        NumberType(1, 1000),
        variable="gpushare_extender_weight",
        role="scheduler",
        scope=CONTROL_PLANES,
    )
    extender_http_timeout: str = variable_alone(
        "1s",
        "Timeout of the scheduler's calls of the extender, as a Go duration.",
        VariableType(
            {"type": "str"},
            "a duration such as 1s or 800ms",
            DURATION,
            1.0,
            "at most 1s: a dead extender holds the scheduler up for so long at each GPU pod",
        ),
        variable="gpushare_extender_http_timeout",
        role="scheduler",
        scope=CONTROL_PLANES,
    )
    percentage_of_nodes_to_score: int = variable_alone(
        -1,
        "Percentage of the nodes that kube-scheduler searches before it chooses among the feasible ones. -1 means 100 for "
        "clusters of up to 500 nodes, otherwise 0, which is Kubernetes' own sampling. With -1 an administrator's value in the "
        "configuration stays.",
        NumberType(-1, 100),
        variable="gpushare_percentage_of_nodes_to_score",
        role="scheduler",
        scope=CONTROL_PLANES,
    )
    scheduler_check_extender: bool = variable_alone(
        True,
        "Whether the extender must be in sync before the scheduler is changed, and must be called by the changed scheduler. Set "
        "V(false) only for an extender that is not of this collection, such as the original on a cluster that is too old for "
        "C(site).",
        SwitchType(),
        variable="gpushare_scheduler_check_extender",
        role="scheduler",
        scope=CONTROL_PLANES,
    )
    scheduler_config: Path = variable_alone(
        Path("/etc/kubernetes/gpushare/kube-scheduler.yaml"),
        "Configuration file of kube-scheduler to create if its manifest names none. Up to Kubernetes 1.18 a policy is created "
        "instead, C(scheduler-policy.json) in the same folder.",
        folder(),
        variable="gpushare_scheduler_config",
        role="scheduler",
        scope=CONTROL_PLANES,
    )
    verify_image: str = variable_alone(
        "",
        "The image of the probe pods, which must be on the nodes, and need neither a command nor root. By default that of their "
        "pod sandboxes.",
        TextType(),
        variable="gpushare_verify_image",
        role="verify",
        scope=CLUSTER,
    )
    verify_report: str = variable_alone(
        "",
        "Path on the controller for the verdict as JSON. By default no file is written.",
        TextType(),
        variable="gpushare_verify_report",
        role="verify",
        scope=CLUSTER,
    )
    verify_timeout: int = variable_alone(
        60,
        "Seconds within which the probe pods must run.",
        NumberType(1, 86400, "seconds"),
        variable="gpushare_verify_timeout",
        role="verify",
        scope=CLUSTER,
    )
    mps_canary_seconds: int = variable_alone(
        60,
        "Seconds between two programs that find out whether new ones can start CUDA with O(gpushare_isolation=mps). They run only "
        "where others do, and as their user. If they fail, the GPU takes no new pods. V(0) switches them off. A service that runs "
        "takes another value at its next start.",
        NumberType(0, 86400, "seconds"),
        variable="gpushare_mps_canary_seconds",
        role="mps",
    )
    mps_shared_memory_mib: int = variable_alone(
        1024,
        "MiB that all containers of a GPU together may have in C(/dev/shm) with O(gpushare_isolation=mps). It counts as memory of "
        "the container that writes it. A control daemon that runs takes another value at its next start.",
        NumberType(16, 2**20, "MiB"),
        variable="gpushare_mps_shared_memory_mib",
        role="mps",
    )
    selinux_type: str = variable_alone(
        "",
        "SELinux type of the device plugin's container, such as C(spc_t) where SELinux enforces. Empty means the container runtime's own.",
        TextType("a type of SELinux such as spc_t, or nothing", "[a-z0-9_]{0,64}"),
        variable="gpushare_selinux_type",
        role="in_cluster",
    )
    openshift: bool = variable_alone(
        False,
        "Whether the cluster is OpenShift. The playbook C(cluster) then applies SecurityContextConstraints and labels for the namespace, "
        "as it does where the API server has this kind. The playbook C(scheduler_extender) then adds the extender to the policy of "
        "OpenShift up to 4.9, by your kubeconfig.",
        SwitchType(),
        variable="gpushare_openshift",
        role="in_cluster",
        clashes=(not_by_claims(True),),
    )
    scheduler: str = variable_alone(
        "own",
        "Scheduler of pods with GPUs where the daemons are pods. V(own) is a second one in the cluster. V(default) is kube-scheduler of "
        "kubeadm's control planes, which calls the extender in a pod of its host; it requires the playbook C(site), which changes the "
        "hosts' kube-schedulers.",
        ChoiceType(("own", "default")),
        variable="gpushare_scheduler",
        role="in_cluster",
        clashes=(not_by_claims("default"),),
    )
    cluster_dashboard: bool = variable_alone(
        False,
        "Whether the dashboard runs in the cluster. People bring tokens of their own and see the pods that these may list. A dashboard on "
        "a host is P(gpushare.kubernetes.dashboard#role).",
        SwitchType(),
        variable="gpushare_cluster_dashboard",
        role="in_cluster",
    )
    cluster_dashboard_host_names: tuple[str, ...] = variable_alone(
        (),
        "Names by which people call the dashboard, such as that of an Ingress, besides that of its Service and localhost.",
        FURTHER_NAMES,
        variable="gpushare_cluster_dashboard_host_names",
        role="in_cluster",
    )
    cluster_nodes: tuple[str, ...] = variable_alone(
        (),
        "Names of the GPU nodes, which get the label C(gpushare.kubernetes/node=true). Empty means the nodes that have it.",
        ListType(TextType()),
        variable="gpushare_cluster_nodes",
        role="in_cluster",
        apart=True,
    )
    kubeconfig: str = variable_alone(
        "",
        "Your kubeconfig on the controller, of an administrator of the cluster. Empty means C(KUBECONFIG), else C(~/.kube/config).",
        TextType(),
        variable="gpushare_kubeconfig",
        role="in_cluster",
        apart=True,
    )
    node_selector: Mapping[str, str] | None = variable_alone(
        None,
        "More labels that a node must have for the pod of the device plugin, with their values.",
        VariableType({"type": "dict"}, "at most 50 labels with their values as text, such as {nvidia.com/gpu.present: 'true'}", LABELS),
        variable="gpushare_node_selector",
        role="in_cluster",
        preset={},
    )
    tolerations: Sequence[Mapping[str, object]] | None = variable_alone(
        None,
        "Tolerations of the device plugin's pods, as in Kubernetes. By default they tolerate all taints.",
        VariableType(
            {"type": "list", "elements": "dict"},
            "at most 50 tolerations as in Kubernetes, such as {key: nvidia.com/gpu, operator: Exists}, with texts as values",
            TOLERATIONS,
        ),
        variable="gpushare_tolerations",
        role="in_cluster",
        preset=[{"operator": "Exists"}],
    )
