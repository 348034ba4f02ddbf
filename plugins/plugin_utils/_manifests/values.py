# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values of an installation in the cluster.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from ...module_utils._cluster.names import LABEL_NODE, RUNTIME_CLASS
from .._settings.rows import VARIABLE, DaemonSetting, every, followed
from .._settings.table import DAEMONS

#: Where a release of Kubernetes has its images.
SCHEDULER_REPOSITORY = "registry.k8s.io/kube-scheduler"
#: The label of a GPU node of ours, and its value.
NODE_LABEL = {LABEL_NODE: "true"}
_HTTPS = 443


@dataclass(frozen=True)
class Values:
    """The values of one installation.

    image: gpushare's.
    backend: what counts GPU memory, `extender` or `dra`: a scheduler of ours, or the cluster's own by claims.
    default_scheduler: pods beside the kube-schedulers of kubeadm's control planes instead of a scheduler of our own.
    scheduler_image: kube-scheduler's of the API server's minor version.
    runtime_class: our own, the name of another one that is there, or "" where the nodes' default runtime is NVIDIA's.
    api_server: a URL for clusters in which the Service `kubernetes` cannot be reached, "" otherwise.
    mutating: whether the API server has MutatingAdmissionPolicy.
    openshift: whether it has SecurityContextConstraints.
    driver_root: of the driver's files on the nodes, "" for the usual places.
    cdi_dir: the folder of CDI specs that a reboot empties.
    selinux_type: of the device plugin's container, "" for the runtime's own.
    node_selector: labels that the nodes of the device plugin have besides ours.
    scheduler_tolerations, scheduler_node_selector: of the scheduler's pods, besides the toleration of control planes.
    scheduler_on_gpu_nodes: whether the scheduler's pods may run on GPU nodes, too, where their token is within reach of those nodes' root.
    prometheus: its URL for `kubectl gpushare top` and the dashboard, "" for none.
    dashboard: whether it is served in the cluster; dashboard_hosts: further names by which people call it.
    pull_secrets: names of the Secrets by which the accounts of our pods pull their images.
    metrics: whether both daemons serve metrics to scrapers with a token.
    pod_monitors: whether Prometheus' operator is told of them.
    settings: further values of the chart that are settings of a daemon, by their names there.
    """

    image: str
    scheduler_image: str
    namespace: str = "gpushare-system"
    backend: str = "extender"
    runtime_class: str = RUNTIME_CLASS
    api_server: str = ""
    openshift: bool = False
    kubelet_root: str = "/var/lib/kubelet"
    driver_root: str = ""
    cdi_dir: str = "/var/run/cdi"
    selinux_type: str = ""
    tolerations: Sequence[Mapping[str, Any]] = ({"operator": "Exists"},)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    writers: Sequence[str] = field(default=(), metadata={VARIABLE: "gpushare_annotation_writers"})
    policies: bool = True
    mutating: bool = True
    default_scheduler: bool = False
    scheduler_tolerations: Sequence[Mapping[str, Any]] = ()
    scheduler_node_selector: Mapping[str, str] = field(default_factory=dict)
    scheduler_on_gpu_nodes: bool = False
    replicas: int = 2
    memory_unit: str = "GiB"
    isolation: str = "auto"
    device_strategy: str = "auto"
    overuse: str = "report"
    overuse_grace: int = 60
    preemption: bool = True
    percentage: int = 100
    extender_weight: int = 10
    extender_http_timeout: str = "1s"
    prometheus: str = ""
    dashboard: bool = field(default=False, metadata={VARIABLE: "gpushare_cluster_dashboard"})
    dashboard_hosts: Sequence[str] = field(default=(), metadata={VARIABLE: "gpushare_cluster_dashboard_host_names"})
    pull_secrets: Sequence[str] = ()
    metrics: bool = field(default=False, metadata={VARIABLE: "gpushare_cluster_metrics"})
    pod_monitors: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def by_variables(cls, known: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that follow variables. known: their values. A field without a variable is decided otherwise."""
        own = {each.metadata.get(VARIABLE, f"gpushare_{each.name}") for each in fields(cls)}
        others = [each for each in every(DAEMONS) if each.chart and each.variable in known and each.variable not in own]
        return {**followed(cls, known), "settings": {each.chart: known[each.variable] for each in others}}

    @property
    def by_claims(self) -> bool:
        return self.backend == "dra"

    @property
    def evict(self) -> bool:
        return self.overuse == "evict"

    @property
    def own_class(self) -> bool:
        """Whether the RuntimeClass is ours, to which a policy lets our pods alone."""
        return self.runtime_class == RUNTIME_CLASS

    @property
    def isolation_of_pods(self) -> str:
        """The value of the device plugin's option. The pods of a DaemonSet have the same rights on every node: `auto` gives none of them
        CAP_SYS_ADMIN for the sake of those nodes whose driver can limit.
        """
        return "watch" if self.isolation == "auto" else self.isolation

    def settings_of(self, role: str) -> dict[str, Any]:
        """The fields of a daemon's settings that are values of the chart. role: the daemon's on hosts."""
        return {each.key: self._setting(each) for each in DAEMONS[role].settings if each.chart}

    def _setting(self, each: DaemonSetting) -> Any:
        """A field of its own where objects depend on it."""
        name = each.variable[len("gpushare_") :]
        return getattr(self, name) if name in self.__dataclass_fields__ else self.settings.get(each.chart, each.default)

    @property
    def limits_by_driver(self) -> bool:
        """Whether the driver keeps pods to their memory, which takes a capability and the control groups to write."""
        return self.isolation == "driver"

    @property
    def writes_cdi(self) -> bool:
        """Whether the device plugin may have to write a CDI spec, for which it sees the driver and the toolkit of its node."""
        return self.device_strategy in ("auto", "cdi")

    @property
    def api_host_and_port(self) -> tuple[str, int] | None:
        """Of api_server, None where the Service is used. ValueError where it is not a URL of an API server."""
        if not self.api_server:
            return None
        parts = urlsplit(self.api_server)
        if parts.scheme != "https" or not parts.hostname:
            raise ValueError(f"found the API server {self.api_server[:80]!r}; expected a URL such as https://10.0.0.1:6443")
        return parts.hostname, parts.port or _HTTPS


def scheduler_image(server: str) -> str:
    """Of the API server's version, such as v1.36.3+k3s1; "" where Kubernetes has none: AKS numbers its own patches from 100 on (long-term
    support, learn.microsoft.com/azure/aks/long-term-support, read on 2026-11-30)."""
    found = re.match(r"v?(1\.[0-9]+\.[0-9]{1,2})(?![0-9])", server)
    return f"{SCHEDULER_REPOSITORY}:v{found[1]}" if found is not None else ""
