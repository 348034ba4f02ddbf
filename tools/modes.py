# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What holds in which mode: one row for each question, one column for each mode. Pages include the table or link to it.

What preflight decides stands in its data, and the cells take it from there. Links are from the repository's root.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
for folder in (".collections", "tools/lab"):
    sys.path.insert(0, str(ROOT / folder))

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import presets  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight import host, reasons  # noqa: E402
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import variables  # noqa: E402

import markdown_parts  # noqa: E402
import proof  # noqa: E402
from gpushare_lab.versions import version  # noqa: E402

#: Titles of the columns.
MODES: Final = ("services of hosts (`systemd`)", "pods (`kubernetes`)", "pods, by DRA")
#: From here on the back end DRA runs.
OLDEST_WITH_DRA: Final = "1.37"
#: Its page.
DRA: Final = "docs/use/dra.md"
#: From here on the API server has MutatingAdmissionPolicy without a gate.
NAMES_THE_SCHEDULER: Final = "1.36"
#: Presets in the words of their makers, in the order of the README.
_MAKERS: Final = {
    "eks": "EKS",
    "bottlerocket": "EKS",
    "gke": "GKE",
    "aks": "AKS",
    "openshift": "OpenShift",
    "k3s": "k3s",
    "rke2": "RKE2",
    "k0s": "k0s",
    "microk8s": "MicroK8s",
    "talos": "Talos",
}


def dotted(release: Sequence[int]) -> str:
    return ".".join(map(str, release))


def maker(preset: str) -> str:
    """The cluster of a preset, as its makers write it. KeyError for a preset without a name here."""
    return _MAKERS[preset]


def makers() -> list[str]:
    """The clusters that have a preset, in the order of the README."""
    return sorted(set(map(maker, presets.names())), key=list(_MAKERS.values()).index)


def run_by_hand() -> list[str]:
    """Names of the presets whose cluster was run."""
    return [name for name in presets.names() if re.search(r"^# state: .*by hand", (presets.FOLDER / f"{name}.yaml").read_text(), re.M)]


def oldest_of(preset: str) -> str:
    """The first releases of a preset's cluster, as its title has them, such as 1.31.6 or 1.32.2."""
    (title,) = re.findall(r"^# title: \S+ ([\d.]+(?: or [\d.]+)*),? or newer", (presets.FOLDER / f"{preset}.yaml").read_text(), re.M)
    return str(title)


def oldest_ansible() -> str:
    """The first ansible-core that runs the playbooks."""
    requires = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["requires_ansible"]
    return dotted(requires.lstrip(">=").split(".")[:2])


def default_of(name: str) -> str:
    """The default of a public variable."""
    return str(variables(ROOT)[name].spec["default"])


def by_site() -> str:
    """Distributions that `site` prepares for services of hosts."""
    return " or ".join(name for name, modes in host.DISTRIBUTIONS.items() if host.SYSTEMD in modes)


def rows() -> list[tuple[str, str, str, str]]:
    """Question, and the answer for each mode."""
    oldest, policies, lab = reasons.OLDEST_IN_WORDS, dotted(reasons.OLDEST_WITH_POLICIES), version("kubernetes")
    others = "docs/operate/clusters-of-others.md"
    by_hand = ", ".join(f"{maker(name)} [by hand]({others}#{name})" for name in run_by_hand())
    node = proof.gpu_of_one_node()
    services, pods = (markdown_parts.code(choices(role)) for role in ("device_plugin", "chart"))
    return [
        (
            "clusters",
            f"by {by_site()}",
            f"any whose nodes run pods with `hostPID`; {len(presets.names())} [presets]({others}) "
            f"for {len(makers())} distributions and providers",
            "any whose nodes run pods with `hostPID`, and whose runtime has CDI",
        ),
        ("Kubernetes", f"{oldest}; {policies} or newer for admission policies", f"{policies} or newer", f"{OLDEST_WITH_DRA} or newer"),
        (
            "changes to the control plane",
            "kube-scheduler's manifest and configuration, kubeadm's ConfigMap",
            "none; the same with the cluster's own scheduler",
            "none",
        ),
        (
            "scheduler",
            "the cluster's own, with the extender beside it",
            "a second one, `gpushare-scheduler`; on kubeadm's control planes also "
            "[the cluster's own](docs/operate/kubernetes.md#the-clusters-own-scheduler), by `site`",
            f"the cluster's own, unchanged; [it places worse]({DRA}#what-each-back-end-gives)",
        ),
        (
            "`gpushare_isolation: auto`, the default",
            "`driver` where the driver can limit memory, else `watch`",
            f"`{Values('', '').isolation_of_pods}`: [nothing is stopped](docs/operate/isolation.md#choosing-the-isolation), "
            "whatever the driver can",
            f"`{Values('', '').isolation_of_pods}`",
        ),
        (
            "tested on",
            f"kubeadm, Kubernetes {lab}, simulated GPUs; one node with an {node}, Kubernetes {proof.one_node()['kubernetes']}",
            f"kubeadm, Kubernetes {lab}, simulated GPUs; {by_hand}. Not on a real GPU",
            f"kubeadm, Kubernetes {lab}, simulated GPUs. Not on a real GPU",
        ),
        (
            "installed by",
            "`site`, over ssh as root",
            "Helm, a manifest, or the playbook `cluster`, through the API; or `site`",
            f"Helm, or the playbook `cluster` or `site`, [with the back end `dra`]({DRA}#install); or a manifest",
        ),
        (
            "the cluster is checked before the first change",
            "`preflight`, which `site` runs",
            "by the playbooks. Helm checks [only the version of Kubernetes](docs/operate/kubernetes.md#with-helm), `kubectl apply` nothing",
            f"by the playbooks, the nodes, too. [Helm]({DRA}#by-helm) sees version, gates, DRA drivers of others, the other back end",
        ),
        (
            "`spec.schedulerName` of pods with GPUs",
            "leave it out",
            f"`gpushare-scheduler`. From Kubernetes {NAMES_THE_SCHEDULER} on an admission policy writes it; "
            "before that, write it, or the pod is rejected",
            "leave it out",
        ),
        (
            "`runtimeClassName` of pods with GPUs",
            "leave it out",
            f"leave it out, except where [only a RuntimeClass has NVIDIA's runtime]({others})",
            "leave it out",
        ),
        ("an image", "none", "one, which you [build](docs/reference/image.md)", "the same"),
        (
            "driver, toolkit, container runtime",
            "roles install and configure them, or they are there",
            "they are there; or `site`, on hosts of kubeadm, k3s and RKE2",
            "they are there",
        ),
        (
            "driver container of NVIDIA's GPU Operator",
            "rejected: the driver must be on the host",
            "used; [not yet run under the operator](docs/operate/gpu-operator.md)",
            "not tried",
        ),
        ("`gpushare_isolation`", services, pods, pods),
        (
            "limits by the driver",
            "the service has `CAP_SYS_ADMIN` where they are",
            "by `isolation: driver`; the pods then have `CAP_SYS_ADMIN` on every node. Not on OpenShift",
            "as pods, simulated",
        ),
        (
            "[dashboard](docs/use/dashboard.md) for others",
            "the role `dashboard`, with one token for all",
            "`dashboard.enabled` of the chart, `gpushare_cluster_dashboard` of `cluster`: people show their own tokens",
            "as pods",
        ),
        (
            "[metrics](docs/reference/metrics.md), off by default",
            "`gpushare_metrics_address`, one token for each host; the playbook `scrape_config`",
            "`metrics.enabled` of the chart, `gpushare_cluster_metrics` of `cluster`, two Secrets with tokens; PodMonitors",
            "the same, of the device plugins alone",
        ),
        ("webhooks, custom resources", "none", "none", "none"),
        (
            "when the active scheduler fails",
            "that of another control plane takes over, with its own extender",
            "the other of the two pods takes over",
            "as the cluster has it",
        ),
        (
            "after a reboot of a node",
            "the device plugin registers at once",
            "it registers once its pod has started; until then kubelet rejects pods with GPUs",
            "the same, and until then pods with GPUs wait",
        ),
        (
            "removed by",
            "`uninstall`, which gives every file of yours its old bytes back",
            "[Helm](docs/operate/uninstall.md#helm), or `cluster` with `gpushare_cluster_state: absent`",
            f"the same, or [`kubectl delete`]({DRA}#upgrade-and-remove)",
        ),
    ]


def table(page: str) -> str:
    """The rows as Markdown, with links as this page needs them."""
    return rebased(markdown_parts.table(["", *MODES], rows()), page)


def rebased(text: str, page: str) -> str:
    """A text whose links are from the repository's root, for a page below it."""
    own = os.path.dirname(page) or "."
    return re.sub(r"\]\((?!https?:|#)([^)#]+)", lambda found: f"]({os.path.relpath(found[1], own)}", text)


def choices(of: str) -> Sequence[str]:
    """Values of gpushare_isolation that the role, or the chart, takes."""
    if of == "chart":
        return tuple(json.loads((ROOT / "charts/gpushare/values.schema.json").read_text())["properties"]["isolation"]["enum"])
    specs = yaml.safe_load((ROOT / f"roles/{of}/meta/argument_specs.yml").read_text())
    return tuple(specs["argument_specs"]["main"]["options"]["gpushare_isolation"]["choices"])
