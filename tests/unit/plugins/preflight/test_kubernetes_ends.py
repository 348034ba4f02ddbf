# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What preflight says before an upgrade of Kubernetes, by a host's kubelet, its control plane and kubeadm's ClusterConfiguration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubernetes import ControlPlane, Distribution, KubeletFacts, Runtime
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import NodeFacts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.system import System
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import HostFindings
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet import gates
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight import kubernetes_ends as ends

KUBELET = KubeletFacts(True, True, "v1.36.3", None, "gpu1", False, "/k", "/k/config.yaml", "unix:///c", "containerd", {})
SYSTEM = System("debian", (), "12", "Debian 12", "x86_64", "systemd", "disabled", None, 2)


def host(kubelet: dict[str, Any] | None = None, cgroup: int = 2, runtime: str = "2.4.2", **more: Any) -> NodeFacts:
    found = Runtime("containerd", None, runtime, None, True)
    plane = ControlPlane(True, {}, None, None, more.pop("gates", {}))
    distribution = Distribution(more.pop("distribution", "kubeadm"), False, None)
    return NodeFacts(distribution, replace(KUBELET, **(kubelet or {})), plane, replace(SYSTEM, cgroup=cgroup), runtimes=(found,))


def said(facts: NodeFacts, target: str) -> list[tuple[str, str, str]]:
    found = HostFindings("gpu1")
    ends.judge_kubelet(found, facts, target)
    ends.judge_control_plane(found, facts, target)
    return [(one.check, one.severity, one.found) for one in found.list]


def test_nothing_is_said_of_a_host_that_uses_nothing_of_it_nor_without_a_target() -> None:
    everything = host({"feature_gates": {"SidecarContainers": True}, "flags": ("boot-id-file",)}, 1, "1.6.20")
    assert said(host(), "1.38") == said(everything, "") == []


# In which minor release Kubernetes itself no longer takes it: no table of ours.
@pytest.mark.parametrize(
    ("name", "value", "error_from"),
    [
        ("DynamicResourceAllocation", True, 38),
        ("DynamicResourceAllocation", False, 35),
        ("SidecarContainers", True, 37),
        ("GangScheduling", True, 37),
        ("CPUCFSQuotaPeriod", True, 36),
        ("SystemdWatchdog", False, 35),
        ("GitRepoVolumeDriver", True, 36),
        ("KubeletPSI", False, 36),
        ("KubeletPSI", True, None),
        ("DRAConsumableCapacity", True, None),
        ("Unheard", True, None),
    ],
)
def test_a_gate_is_an_error_from_the_release_on_that_does_not_start_with_it(name: str, value: bool, error_from: int | None) -> None:
    given = host({"feature_gates": {name: value}})
    errors = [minor for minor in range(30, 39) if any(severity == "error" for _check, severity, _found in said(given, f"1.{minor}"))]
    assert errors == ([] if error_from is None else list(range(error_from, 39)))


def test_a_locked_gate_of_its_own_value_is_a_warning() -> None:
    (one,) = said(host({"feature_gates": {"KubeletPSI": True}}), "v1.37.2")
    assert one == ("kubelet", "warning", "the feature gate KubeletPSI, which is locked in Kubernetes v1.37.2")


def test_no_gate_stands_in_two_tables() -> None:
    listed = [
        name for by_release in (ends.GATES_GONE, ends.GATES_ON, ends.GATES_OFF) for names in by_release.values() for name in names.split()
    ]
    assert not set(listed).intersection(gates.TABLE)
    locked = [name for by_release in (ends.GATES_ON, ends.GATES_OFF) for names in by_release.values() for name in names.split()]
    assert len(locked) == len(set(locked))


def test_flags_that_kubelet_has_no_more_are_named() -> None:
    facts = host({"flags": ("boot-id-file", "config", "containerd", "kubeconfig")})
    assert said(facts, "1.36") == []
    (one,) = said(facts, "1.37")
    assert one == ("kubelet", "error", "kubelet's --boot-id-file, --containerd, which Kubernetes 1.37 does not have")


@pytest.mark.parametrize(
    ("cgroup", "setting", "targets"), [(1, None, [35, 36]), (1, True, [35, 36]), (1, False, []), (2, None, []), (0, None, [])]
)
def test_kubelet_does_not_start_on_cgroup_v1(cgroup: int, setting: bool | None, targets: list[int]) -> None:
    facts = host({"fail_cgroup_v1": setting}, cgroup)
    assert [minor for minor in (34, 35, 36) if said(facts, f"1.{minor}")] == targets


@pytest.mark.parametrize(
    ("runtime", "distribution", "target", "expected"),
    [
        ("1.7.29", "kubeadm", "1.37", []),
        ("1.7.29", "kubeadm", "1.38", [("runtime", "warning", "containerd 1.7.29, with gpushare_target_kubernetes: 1.38")]),
        ("2.0.0", "kubeadm", "1.38", []),
        ("1.7.29", "rke2", "1.38", []),
    ],
)
def test_a_container_runtime_without_runtime_config_is_warned_of(runtime: str, distribution: str, target: str, expected: list[Any]) -> None:
    assert said(host(runtime=runtime, distribution=distribution), target) == expected


def test_components_of_the_control_plane_have_the_same_gates() -> None:
    (one,) = said(host(gates={"kube-scheduler": {"SchedulerQueueingHints": True}}), "1.37")
    assert one == (
        "control_plane",
        "error",
        "kube-scheduler with the feature gate SchedulerQueueingHints, which Kubernetes 1.37 does not know",
    )


def test_a_release_that_nobody_has_read_about_is_said() -> None:
    (one,) = said(host(), f"1.{ends.NEWEST + 1}")
    assert one[:2] == ("kubelet", "warning")
    assert "knows nothing" in one[2]


@pytest.mark.parametrize(
    ("version", "named", "target", "expected"),
    [
        ("v1beta3", [], "1.36", []),
        ("v1beta3", [], "1.37", ["a ClusterConfiguration v1beta3"]),
        ("v1beta4", [], "1.38", []),
        ("v1", [], "1.38", []),
        ("", ["NodeLocalCRISocket"], "1.38", []),
        (
            "v1beta4",
            ["NodeLocalCRISocket", "RootlessControlPlane"],
            "1.37",
            ["a ClusterConfiguration with kubeadm's feature gate NodeLocalCRISocket"],
        ),
    ],
)
def test_a_cluster_configuration_that_the_next_kubeadm_does_not_read(
    version: str, named: list[str], target: str, expected: list[str]
) -> None:
    found = HostFindings("cp1")
    ends.judge_kubeadm(found, version, named, target)
    assert [one.found for one in found.list] == expected
