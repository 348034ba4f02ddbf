# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A real `kubeadm upgrade apply` over an installed cluster.

The scheduler still calls the extender, and uninstalling leaves kubeadm's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from e2e.cluster import Cluster
from gpushare_lab import components
from gpushare_lab.versions import released
from installer.control_plane import CONFIG, MANIFEST, ControlPlane, calls, gpu_pod
from labs import Labs, Shape

OLD, NEW = released("1.36"), components.KUBERNETES
LAB_CONFIG = "/etc/gpushare-lab/kubeadm.yaml"


@pytest.fixture
def old(labs: Labs) -> Cluster:
    """A cluster of the old version that was never installed on."""
    return labs.bare(Shape("old", ("--kubernetes", OLD, "--gpu-nodes", "1"), seconds=3600))


def generated(plane: ControlPlane, version: str) -> str:
    """The manifest that kubeadm of the node writes for a cluster of that version that never heard of us."""
    folder = "/root/generated"
    plane.sh(
        f"rm -rf {folder} /etc/kubernetes/tmp && mkdir {folder} && sed 's/v{OLD}/v{version}/' {LAB_CONFIG} > {folder}/kubeadm.yaml"
        f" && kubeadm init phase control-plane scheduler --config {folder}/kubeadm.yaml --dry-run"
    )
    return plane.sh(f"cat /etc/kubernetes/tmp/*/kube-scheduler.yaml && rm -rf /etc/kubernetes/tmp {folder}")


def asks_the_extender(plane: ControlPlane, name: str) -> bool:
    """Whether a pod with a unit comes to run, and the extender was asked for it."""
    before = calls(plane)
    # kubeadm has just replaced the API server, and kubelet may do so once more.
    plane.cluster.until(f"{name} is created", lambda: plane.cluster.create(gpu_pod(name)), 120)
    plane.cluster.until_running(name)
    return calls(plane) > before


@pytest.mark.timeout(4800)  # the first time, Kubernetes of the old version is built
def test_from_one_minor_version_to_the_next(old: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    plane = ControlPlane(old)
    durations: list[str] = []

    def timed(what: str, call: Callable[[], object]) -> None:
        started = time.monotonic()
        call()
        durations.append(f"{what} {time.monotonic() - started:.0f} s")

    untouched = plane.cluster_configuration()
    assert plane.read(MANIFEST) == generated(plane, OLD)

    timed("site.yml", old.playbook)
    assert asks_the_extender(plane, "before")
    installed = plane.read(MANIFEST)

    timed(f"kubeadm upgrade from {OLD} to {NEW}", lambda: old.lab("upgrade", NEW, seconds=1800))
    upgraded = plane.read(MANIFEST)
    assert f"kube-scheduler:v{NEW}" in upgraded
    assert "scheduler-config-sha256" not in upgraded, "kubeadm has not written the manifest anew"
    for ours in (f"--config={CONFIG}", "name: gpushare-scheduler-config", "name: gpushare-pki"):
        assert upgraded.count(ours) == installed.count(ours) > 0
    assert asks_the_extender(plane, "upgraded")

    timed("site.yml after it", old.playbook)
    assert "scheduler-config-sha256" in plane.read(MANIFEST)
    before = plane.snapshot()
    assert "changed=0" in plane.role()
    assert plane.snapshot() == before
    assert asks_the_extender(plane, "again")

    timed("taking our part out", plane.absent)
    assert plane.read(MANIFEST) == generated(plane, NEW)
    assert plane.cluster_configuration() == untouched.replace(f"v{OLD}", f"v{NEW}")
    assert plane.sh(f"ls {CONFIG} 2>/dev/null || echo gone").strip() == "gone"
    assert "changed=0" in plane.absent()
    with capsys.disabled():
        print(f"\n{'; '.join(durations)}")
