# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""site.yml with pods instead of services, and the playbook change_mode both ways under pods with GPUs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster_mode.in_cluster import Modes, archive, bring_images, of_hosts
from e2e.api import ApiError
from e2e.checks import check_devices, check_environment, check_totals
from e2e.cluster import GPU_NODES, MEMORY, Cluster
from e2e.manifests import pod
from installer.site import differences
from labs import TWO_MOUNTS, Labs

pytestmark = pytest.mark.timeout(1800)

PODS = 20
HELD = "/var/lib/gpushare-device-plugin/held.json"


@pytest.fixture(scope="module")
def bare(labs: Labs) -> Cluster:
    cluster = labs.bare(TWO_MOUNTS)
    bring_images(cluster, archive())
    return cluster


@pytest.fixture
def modes(bare: Cluster, tmp_path: Path) -> Modes:
    return Modes(bare, tmp_path)


def test_site_makes_pods_and_uninstall_takes_them_away(bare: Cluster, modes: Modes) -> None:
    before = of_hosts(modes.site)
    modes.play("site.yml", "kubernetes")
    bare.create(pod("first", memory=2))
    running = bare.until_running("first")
    assert check_devices(bare, running) == []
    assert check_environment(bare, running) == []
    again, output = modes.play("site.yml", "kubernetes")
    assert again.changes() == {}, output
    bare.delete("first")
    modes.play("playbooks/uninstall.yml", "kubernetes")
    assert differences(before, of_hosts(modes.site)) == []


class Watched:
    """What happens to pods and to the nodes' memory while a mode changes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._since = time.time()
        self.failed: set[str] = set()
        self.containers = self._containers()

    def _containers(self) -> dict[str, tuple[str, int]]:
        found = {}
        for one in self._cluster.pods():
            status = one["status"]["containerStatuses"][0]
            found[one["metadata"]["name"]] = (str(status["containerID"]), int(status["restartCount"]))
        return found

    def _look(self) -> None:
        while not self._over.wait(0.2):
            try:
                pods = self._cluster.pods()
            except (ApiError, OSError):
                # The API server's node has other work.
                continue
            self.failed |= {one["metadata"]["name"] for one in pods if one["status"].get("phase") == "Failed"}

    def without(self, node: str) -> float:
        """Seconds for which kubelet had no device plugin for our memory, by its log: the API server hears of it every ten seconds only."""
        journal = self._cluster.on(node, "journalctl", "-u", "kubelet", "-o", "json", "--no-pager", "--since", f"@{self._since:.3f}")
        lines = [(int(one["__REALTIME_TIMESTAMP"]) / 1e6, str(one["MESSAGE"])) for one in map(json.loads, journal.splitlines())]
        ended = [at for at, text in lines if "ListAndWatch ended" in text and MEMORY in text]
        again = [at for at, text in lines if "Got registration request" in text and MEMORY in text]
        assert len(ended) == len(again) > 0, (node, ended, again)
        return sum(again) - sum(ended)

    @contextmanager
    def looking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def problems(self) -> list[str]:
        after = self._containers()
        changed = [f"{name}: {one} → {after.get(name)}" for name, one in self.containers.items() if after.get(name) != one]
        return [*changed, *(f"{name} has failed" for name in sorted(self.failed))]


def changed(modes: Modes, cluster: Cluster, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Change the mode under the pods that run: none ends, and each has its GPU before and after, as those that come later."""
    watched, held = Watched(cluster), [json.loads(cluster.on(node, "cat", HELD)) for node in GPU_NODES]
    begin = time.monotonic()
    with watched.looking():
        modes.play("playbooks/change_mode.yml", mode)
    with capsys.disabled():
        without = {node: watched.without(node) for node in GPU_NODES}
        words = ", ".join(f"{node} {seconds:.1f} s" for node, seconds in without.items())
        print(f"\nmeasured: to {mode} under {len(watched.containers)} pods in {time.monotonic() - begin:.0f} s; without units: {words}")
    assert watched.problems() == []
    # Five times what is promised.
    assert max(without.values()) <= 50
    assert [sorted(json.loads(cluster.on(node, "cat", HELD))) for node in GPU_NODES] == [sorted(one) for one in held]
    assert not any(node["spec"].get("unschedulable") for node in cluster.nodes())
    cluster.create(pod(f"after-{mode}", memory=1))
    cluster.until_running(f"after-{mode}")
    running = cluster.pods()
    assert check_devices(cluster, running) == []
    assert check_environment(cluster, running) == []
    assert check_totals(cluster) == []


@pytest.fixture(scope="module")
def shared(labs: Labs, bare: Cluster) -> Cluster:
    """Services, and pods with GPUs on both nodes."""
    cluster = labs.installed(TWO_MOUNTS)
    bring_images(cluster, archive())
    names = [f"share-{number}" for number in range(PODS)]
    for number, name in enumerate(names):
        cluster.create(pod(name, memory=1 + number % 3))
    cluster.until_running(*names, seconds=300)
    assert {one["spec"]["nodeName"] for one in cluster.pods()} == set(GPU_NODES)
    return cluster


def test_both_modes_at_once_are_rejected(shared: Cluster, modes: Modes) -> None:
    with pytest.raises(AssertionError, match="change_mode"):
        modes.play("site.yml", "kubernetes")
    assert shared.on(GPU_NODES[0], "systemctl", "is-active", "gpushare-device-plugin").strip() == "active"


def test_services_become_pods(shared: Cluster, modes: Modes, capsys: pytest.CaptureFixture[str]) -> None:
    changed(modes, shared, "kubernetes", capsys)
    for node in GPU_NODES:
        assert "gpushare-device-plugin" not in shared.on(node, "ls", "/etc/systemd/system")
        assert "gpushare" not in shared.on(node, "ls", "/opt")
    again, output = modes.play("site.yml", "kubernetes")
    assert again.changes() == {}, output


def test_pods_become_services(shared: Cluster, modes: Modes, capsys: pytest.CaptureFixture[str]) -> None:
    changed(modes, shared, "systemd", capsys)
    spaces = shared.api.items("/api/v1/namespaces")
    assert "gpushare-system" not in {one["metadata"]["name"] for one in spaces}
    again, output = modes.play("site.yml", "systemd")
    assert again.changes() == {}, output
    shared.clear()
