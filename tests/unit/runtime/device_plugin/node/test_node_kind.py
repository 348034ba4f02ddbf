# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How containers get GPUs on a node that somebody else has prepared, by what the device plugin's pod sees of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core.protocol import STRATEGIES
from gpushare_runtime.device_plugin.node.node_kind import NODE_KINDS, NodeSight, node_kind

OPERATOR = {"operator": True, "management": True, "runtime_class": "nvidia"}
NAMED = {"runtime_class": "nvidia"}


@pytest.mark.parametrize(
    ("kubelet", "runtime", "seen", "name", "strategy"),
    [
        ("v1.34.1", "containerd://2.1.4", OPERATOR, "gpu-operator", "cdi"),
        ("v1.34.1", "containerd://1.7.29", OPERATOR, "gpu-operator", "cdi"),
        ("v1.34.1", "containerd://1.7.15", OPERATOR, "gpu-operator", "envvar"),
        ("v1.34.1", "cri-o://1.33.0", OPERATOR, "gpu-operator", "cdi"),
        # Its toolkit works without CDI, as it did by default before 25.10.
        ("v1.34.1", "containerd://1.7.29", {"operator": True, **NAMED}, "gpu-operator", "envvar"),
        ("v1.33.4+k3s1", "containerd://2.0.5-k3s2", NAMED, "k3s", "cdi"),
        ("v1.30.4+k3s1", "containerd://1.7.20-k3s1", NAMED, "k3s", "envvar"),
        ("v1.34.1+rke2r1", "containerd://2.1.4-k3s2", NAMED, "rke2", "cdi"),
        ("v1.34.1+rke2r1", "containerd://2.1.4-k3s2", OPERATOR, "gpu-operator", "cdi"),
        ("v1.34.1", "containerd://2.1.4", NAMED, "toolkit", "cdi"),
        ("v1.34.1", "containerd://1.7.29", NAMED, "toolkit", "envvar"),
        ("v1.34.1", "containerd://1.7.29", {}, "default-runtime", "envvar"),
        ("v1.34.1", "containerd://2.1.4", {}, "default-runtime", "cdi"),
        ("v1.28.9", "containerd://2.1.4", NAMED, "toolkit", "envvar"),
        ("v1.34.1-eks-113cf36", "containerd://2.1.4", NAMED, "toolkit", "cdi"),
        ("v1.34.1", "docker://28.0.1", NAMED, "toolkit", "envvar"),
        # From these on.
        ("v1.29.0", "containerd://2.0.0", {}, "default-runtime", "cdi"),
        ("v1.34.1", "cri-o://1.30.0", {}, "default-runtime", "cdi"),
        ("v1.34.1", "cri-o://1.29.9", {}, "default-runtime", "envvar"),
        ("v1.34.1", "containerd://1.7.16", OPERATOR, "gpu-operator", "cdi"),
        ("v1.34.1", "cri-o://1.30.0", OPERATOR, "gpu-operator", "cdi"),
        ("v1.34.1", "cri-o://1.29.9", OPERATOR, "gpu-operator", "envvar"),
        ("", "", {}, "default-runtime", "envvar"),
    ],
)
def test_the_kinds_of_nodes(kubelet: str, runtime: str, seen: dict[str, object], name: str, strategy: str) -> None:
    found = node_kind(NodeSight(kubelet, runtime, **seen))  # type: ignore[arg-type]
    assert (found.name, found.strategy) == (name, strategy)
    assert ("the weakest strategy" in found.why) == (strategy == "envvar")


@given(st.text(max_size=300), st.text(max_size=300), st.booleans(), st.booleans(), st.text(max_size=3))
def test_any_words_of_a_node_have_a_kind(kubelet: str, runtime: str, operator: bool, management: bool, runtime_class: str) -> None:
    found = node_kind(NodeSight(kubelet, runtime, operator, management, runtime_class))
    assert found.name in NODE_KINDS
    assert found.strategy in STRATEGIES
    assert len(found.why) < 500
