# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Each reason against an installation in the cluster, and that a good one has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._judge.in_cluster import typed
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.in_cluster import judge
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import COLLECTION, role_options, variables

from unit.fakes.plugins.preflight.cluster_facts import ASKED, FACTS, NODE, NVIDIAS, OPERATORS
from unit.fakes.plugins.preflight.operator_facts import dra, gpu_cluster, operator, policy


@pytest.mark.parametrize(
    ("facts", "asked"),
    [
        ({}, {}),
        ({"enforces": "privileged"}, {}),
        # kubeadm's own scheduler, whose extender is on control planes.
        ({"homes": [], "scheduler": "default"}, {"scheduler": "default", "wires": True}),
        ({"unit": "GiB", "pods": ["default/a on gpu1"]}, {}),
        ({"unit": "MiB"}, {}),
        ({"nodes": [{**NODE, "kubelet": "v1.27.0"}]}, {}),
        ({"runtime_classes": []}, {"runtime_class": ""}),
        ({"runtime_classes": []}, {"runtime_class": "gpushare-nvidia"}),
        # kubelet has not told of all its images; a registry has the other one.
        ({"nodes": [{**NODE, "images": [], "all": False}]}, {}),
        ({"nodes": [{**NODE, "images": []}]}, {"image": "registry.example.org/gpushare@sha256:00"}),
        ({}, {"scheduler_image": "mirror.example.org/kube-scheduler@sha256:00"}),
        ({}, {"namespace": "kube-system"}),
        ({"scheduler": "default"}, {"scheduler": "default", "wires": True}),
        # Elsewhere it may stay.
        ({"dra": dra("gpu9", holders=["gpu9"]), "gpu_operator": gpu_cluster("gpu9")}, {}),
        # Its device plugin is about to go.
        ({"others": [OPERATORS], "gpu_operator": operator(policy(), nodes=("gpu1",))}, {"operator": "patch"}),
    ],
)
def test_nothing_speaks_against_it(facts: dict[str, Any], asked: dict[str, Any]) -> None:
    assert judge({**FACTS, **facts}, replace(ASKED, **asked)) == []


@pytest.mark.parametrize(
    ("facts", "asked", "check", "words"),
    [
        ({"nodes": [{**NODE, "images": []}]}, {}, "image", "no image localhost/gpushare:1 on gpu1"),
        ({"nodes": [{**NODE, "architecture": "s390x"}]}, {}, "image", "gpu1 (s390x)"),
        ({"nodes": [{**NODE, "kubelet": "v1.27.0"}]}, {"strategy": "cdi"}, "strategy", "cdi, and gpu1: kubelet v1.27.0 knows"),
        ({"nodes": [{**NODE, "platform": "GKE Autopilot"}]}, {}, "node", "no folder of the host: gpu1 (GKE Autopilot)"),
        ({"nodes": [{**NODE, "ready": False}]}, {}, "node", "not Ready: gpu1"),
        ({"nodes": []}, {}, "node", "kubectl label node NAME"),
        ({"missing": ["gpu9"]}, {}, "node", "no node gpu9"),
        ({"version": "v1.29.1", "admission": []}, {"scheduler_image": "k:v1.29.1"}, "policies", "1.30 or newer"),
        ({"others": [NVIDIAS]}, {}, "managers", "DaemonSet kube-system/nvidia-device-plugin (NVIDIA device plugin) on gpu1"),
        ({"holders": ["default/train on gpu1"]}, {}, "managers", "default/train on gpu1; expected none"),
        ({"gpu_operator": operator(policy())}, {}, "operator", "with the GPU Operator's device plugin, on gpu1"),
        ({"gpu_operator": operator()}, {"operator": "patch"}, "operator", "no ClusterPolicy"),
        ({"dra": dra("gpu1")}, {}, "managers", "NVIDIA DRA driver (ResourceSlices of gpu.nvidia.com) on gpu1"),
        ({"dra": dra(holders=["gpu1"])}, {}, "managers", "by ResourceClaims: default/train on gpu1; expected none"),
        ({"on_hosts": ["gpushare-extender"]}, {}, "deploy_mode", "playbook change_mode"),
        ({"runtime_classes": ["gvisor"]}, {}, "runtime", "no RuntimeClass nvidia (gvisor)"),
        ({}, {"scheduler_image": "registry.k8s.io/kube-scheduler:v1.35.2"}, "scheduler", "kube-scheduler 1.36"),
        ({"version": "v1.30.100"}, {"scheduler_image": ""}, "scheduler", "of kube-scheduler 1.30 in gpushare_scheduler_image"),
        ({"unit": "GiB", "pods": ["default/a on gpu1"]}, {"memory_unit": "MiB"}, "memory_unit", "default/a on gpu1"),
        ({"enforces": "restricted"}, {}, "namespace", "enforces restricted pods"),
        ({}, {"namespace": "default"}, "namespace", "begins with gpushare-"),
        ({}, {"isolation": "mps"}, "isolation", "each MPS control daemon needs a mount namespace of its own"),
        ({"openshift": True}, {"isolation": "driver"}, "isolation", "CAP_SYS_ADMIN"),
        ({}, {"scheduler": "default"}, "scheduler", "run site with the inventory"),
        ({}, {"scheduler": "default", "wires": True, "namespace": "kube-system"}, "scheduler", "in kube-system"),
        ({}, {"scheduler": "default", "wires": True, "changes": True}, "scheduler", "in a change of the mode"),
        ({"homes": []}, {}, "scheduler_nodes", "gpushare_scheduler_on_gpu_nodes: true"),
        ({"scheduler": "own"}, {"scheduler": "default", "wires": True}, "scheduler", "an installation with own"),
        ({"scheduler": "default"}, {}, "scheduler", "an installation with default"),
        ({"may_grant": "Forbidden: x"}, {}, "rights", "no right to grant the scheduler its rights (Forbidden: x)"),
    ],
)
def test_it_is_rejected(facts: dict[str, Any], asked: dict[str, Any], check: str, words: str) -> None:
    (reason,) = judge({**FACTS, **facts}, replace(ASKED, **asked))
    assert (reason.check, reason.severity) == (check, "error")
    assert words in str(reason)


NEW = {"version": "v1.37.2", "nodes": [{**NODE, "kubelet": "v1.37.2"}]}
BY_CLAIMS = {"backend": "dra"}
EXTENDER = {"backend": "extender", "scheduler_image": "mirror.example.org/kube-scheduler@sha256:00"}
OURS = dra("gpu1", driver="gpushare.kubernetes", holders=["gpu1"])


def of_backend(backend: str, namespace: str = "gpushare-system", owner: str = "", release: str = "") -> dict[str, str]:
    return {"backend": backend, "namespace": namespace, "owner": owner, "release": release}


@pytest.mark.parametrize(
    ("facts", "asked"),
    [
        (NEW, BY_CLAIMS),
        # It has neither a scheduler's pods nor its image.
        ({**NEW, "homes": []}, {**BY_CLAIMS, "scheduler_image": "registry.k8s.io/kube-scheduler:v1.30.0"}),
        # A second run, with pods that have GPUs.
        ({**NEW, "dra": OURS, "backends": [of_backend("dra")], "pods": ["default/a on gpu1"], "waiting": ["default/b"]}, BY_CLAIMS),
        ({**NEW, "backends": [of_backend("dra", owner="the Helm release x", release="x")]}, BY_CLAIMS),
        ({**NEW, "dra": OURS, "backends": [of_backend("dra")], "pods": ["default/whole on gpu1"]}, BY_CLAIMS),
        # A change without pods, in both directions.
        ({**NEW, "backends": [of_backend("extender")], "scheduler": "own"}, BY_CLAIMS),
        ({"dra": dra("gpu1", driver="gpushare.kubernetes"), "backends": [of_backend("dra")]}, {}),
        # A removal that ended in the middle.
        ({"backends": [of_backend("dra", namespace="")]}, {}),
    ],
)
def test_nothing_speaks_against_either_back_end(facts: dict[str, Any], asked: dict[str, Any]) -> None:
    assert judge({**FACTS, **facts}, replace(ASKED, **asked)) == []


@pytest.mark.parametrize(
    ("facts", "asked", "check", "words"),
    [
        ({"version": "v1.36.3"}, {}, "backend", "an API server v1.36.3; expected 1.37 or newer"),
        ({"nodes": [{**NODE, "kubelet": "v1.36.9"}]}, {}, "backend", "kubelets of gpu1 (v1.36.9)"),
        ({"lacks": ["devices that several claims share"]}, {}, "backend", "an API server without devices that several claims share"),
        ({"admission": ["ValidatingAdmissionPolicy"]}, {}, "backend", "without MutatingAdmissionPolicy"),
        ({"nodes": [{**NODE, "kubelet": "v1.37.2", "runtime": "containerd://1.6.4"}]}, {}, "strategy", "gpushare_backend: dra, and gpu1"),
        ({"scheduler": "default"}, {}, "backend", "their kube-schedulers ask the extender"),
        ({"openshift": True}, {}, "backend", "gpushare_backend: dra on OpenShift"),
        ({}, {"changes": True}, "backend", "in a change of the mode"),
        ({"dra": dra("gpu1")}, {}, "managers", "NVIDIA DRA driver (ResourceSlices of gpu.nvidia.com) on gpu1"),
        (
            {"backends": [of_backend("extender")], "pods": ["default/a on gpu1"]},
            {},
            "backend",
            "an installation with extender, and pods with GPUs",
        ),
        ({"dra": OURS, "backends": [of_backend("dra")]}, EXTENDER, "backend", "(default/train on gpu1)"),
        # Claims name no resource of ours.
        ({"dra": OURS, "backends": [of_backend("dra")], "unit": "MiB"}, {}, "memory_unit", "pods with GPUs (default/train on gpu1)"),
        ({"backends": [of_backend("extender")], "waiting": ["default/b"]}, {}, "backend", "pods that wait for it (default/b)"),
        ({"backends": [of_backend("dra")], "waiting": ["default/b"]}, EXTENDER, "backend", "scale their controllers to 0 first"),
        (
            {"backends": [of_backend("extender", owner="the Helm release x", release="x")]},
            {},
            "backend",
            "helm uninstall x --namespace gpushare-system --wait",
        ),
        (
            {"backends": [of_backend("dra", owner="a manifest")]},
            EXTENDER,
            "backend",
            "with dra in gpushare-system by a manifest; expected none that this run does not remove: of this collection, in "
            "gpushare_namespace (gpushare-system); end the pods with GPUs, then kubectl delete -f docs/manifests/dra/gpushare-dra.yaml",
        ),
        ({"backends": [of_backend("dra", owner="Flux (x)")]}, EXTENDER, "backend", "then remove it by Flux (x)"),
        ({"backends": [of_backend("extender", namespace="gpushare-old")]}, {}, "backend", "absent and gpushare_namespace: gpushare-old"),
        # The same back end twice in one cluster.
        ({"backends": [of_backend("dra", namespace="gpushare-old")]}, {}, "backend", "an installation with dra in gpushare-old"),
    ],
)
def test_a_back_end_is_rejected(facts: dict[str, Any], asked: dict[str, Any], check: str, words: str) -> None:
    (reason,) = judge({**FACTS, **NEW, **facts}, replace(ASKED, **{**BY_CLAIMS, **asked}))
    assert (reason.check, reason.severity) == (check, "error")
    assert words in str(reason)


@pytest.mark.parametrize(
    ("facts", "accepted", "words"),
    [
        ({"displaced": ["gpushare-scheduler-a on gpu1"]}, False, "found the scheduler's pods gpushare-scheduler-a on gpu1"),
        ({"homes": []}, True, "found gpushare_scheduler_on_gpu_nodes: true; expected other nodes"),
        ({}, True, "although cp1 can run them"),
    ],
)
def test_the_schedulers_pods_on_gpu_nodes_are_told(facts: dict[str, Any], accepted: bool, words: str) -> None:
    (reason,) = judge({**FACTS, **facts}, replace(ASKED, on_gpu_nodes=accepted))
    assert (reason.check, reason.severity) == ("scheduler_nodes", "warning")
    assert words in str(reason)


def test_a_dead_node_beside_those_that_are_named_is_told() -> None:
    (reason,) = judge({**FACTS, "away": ["gpu9"]}, ASKED)
    assert (reason.check, reason.severity) == ("node", "warning")
    assert reason.found.endswith(": gpu9")
    assert "gpushare.kubernetes/node-" in reason.cure
    # One that is named stops the run, and is said once.
    (reason,) = judge({**FACTS, "away": ["gpu1"], "nodes": [{**NODE, "ready": False}]}, ASKED)
    assert reason.severity == "error"


@pytest.mark.parametrize(
    ("runtime", "strategy", "said"),
    [
        ("containerd://1.7.34", "cdi", ["gpu1: containerd://1.7.34, which has CDI off by default"]),
        ("containerd://1.7.34", "auto", []),
        ("containerd://2.3.3", "cdi", []),
        ("cri-o://1.30.0", "cdi", []),
    ],
)
def test_nodes_whose_containerd_has_cdi_off_by_default_are_named(runtime: str, strategy: str, said: list[str]) -> None:
    """As those of k0s before 1.36."""
    found = judge({**FACTS, "nodes": [{**NODE, "runtime": runtime}]}, replace(ASKED, strategy=strategy))
    assert [(one.check, one.severity) for one in found] == [("strategy", "warning")] * len(said)
    assert [words for words in said if words not in found[0].found] == []


def test_a_server_without_policies_can_be_accepted_unless_pods_are_evicted() -> None:
    old = {**FACTS, "version": "v1.29.1", "admission": []}
    accepted = replace(ASKED, without_policies=True, scheduler_image="k:v1.29.1")
    assert [one.severity for one in judge(old, accepted)] == ["warning"]
    assert [one.severity for one in judge(old, replace(accepted, evicts=True))] == ["error"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"gpushare_preset": "bottlerocket"}, "gpushare_device_strategy: volume-mounts, by gpushare_preset: bottlerocket"),
        ({"gpushare_preset": "aks"}, "gpushare_device_strategy: envvar, by gpushare_preset: aks"),
        ({"gpushare_preset": "talos"}, "gpushare_device_strategy: envvar, by gpushare_preset: talos"),
        ({"gpushare_preset": "aks", "gpushare_device_strategy": "cdi"}, ""),
        ({"gpushare_preset": "aks", "gpushare_backend": "extender"}, ""),
        ({}, ""),
    ],
)
def test_what_a_preset_sets_is_judged_too(given: dict[str, Any], words: str) -> None:
    known = variables()
    defaults = {name: known[name].spec.get("default") for name in role_options(COLLECTION / "roles/in_cluster", "main") if name in known}
    _settings, reasons = typed({**defaults, "gpushare_backend": "dra", **given}, known)
    assert [words in str(reason) for reason in reasons] == ([True] if words else [])
