# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The chart with the back end dra, from a cluster without gpushare: a sample runs, the other back end is rejected, and the end.

After the file of the playbook, which leaves nothing; both make the lab bare.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from cluster_mode.in_cluster import NAMESPACE, InCluster, archive, import_image
from cluster_mode.installs import CHART, Chart
from dra.shares import allocated, check_not_over_booked, check_shares, claims, clear, gpus_by_device, until_serving
from e2e.cluster import CONTROL_PLANE, GPU_NODES, SAMPLES, Cluster
from e2e.limits import GIB, LIMITS, Memory, limits, processes, strict
from e2e.running import NODE
from labs import IN_CLUSTER, Labs

pytestmark = [pytest.mark.suite("dra"), pytest.mark.timeout(900)]

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
#: Of the sample 01-share.
UNITS = {"share-1": 6, "share-2": 6, "share-3": 6}
#: A release of the same tree, whose chart and image have another version.
OTHER = "0.1.99"


@dataclass(frozen=True)
class Installed:
    """chart: with the back end dra. objects: those of the cluster before, by name."""

    cluster: Cluster
    chart: Chart
    here: InCluster
    objects: frozenset[str]

    def kept(self) -> dict[str, str]:
        """The container of each pod in the namespace default: another one has another id. They have the GPUs of their claims."""
        pods = self.cluster.pods()
        assert check_shares(self.cluster, pods, UNITS) == []
        assert check_not_over_booked(self.cluster) == []
        return {one["metadata"]["name"]: one["status"]["containerStatuses"][0]["containerID"] for one in pods}

    def images(self) -> set[str]:
        """The images of gpushare's pods."""
        pods = self.cluster.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
        staying = [one for one in pods if "deletionTimestamp" not in one["metadata"]]
        return {container["image"] for one in staying for container in one["spec"]["containers"]}

    def release(self) -> tuple[str, str]:
        """The chart and the status of what is installed."""
        (found,) = json.loads(self.chart.helm("list", "--output", "json"))
        return found["chart"], found["status"]

    def rejected(self, command: str) -> str:
        """What helm says about the other back end."""
        with pytest.raises(AssertionError) as error:
            self.chart.set(command, backend="extender", deviceStrategy="volume-mounts")
        return str(error.value)


@pytest.fixture(scope="module")
def installed(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    cluster = labs.bare(IN_CLUSTER)
    import_image(cluster, archive().read_bytes(), (CONTROL_PLANE, *GPU_NODES))
    here = InCluster(cluster, tmp_path_factory.mktemp("helm"))
    objects = frozenset(here.objects())
    chart = Chart(cluster, until_serving, backend="dra", deviceStrategy="cdi")
    chart.install()
    yield Installed(cluster, chart, here, objects)
    cluster.clear()


def test_a_sample_runs_with_its_gpus(installed: Installed) -> None:
    installed.cluster.kubectl("apply", "-f", str(SAMPLES / "01-share.yaml"))
    installed.cluster.until_running(*UNITS, seconds=120)
    assert set(installed.kept()) == set(UNITS)
    assert json.loads(installed.chart.helm("status", "gpushare", "--output", "json"))["info"]["status"] == "deployed"


def test_an_upgrade_to_the_other_back_end_is_rejected_and_changes_nothing(installed: Installed) -> None:
    before, kept = set(installed.here.objects()), installed.kept()
    assert "found the Deployment gpushare-claims of backend: dra" in installed.rejected("upgrade")
    assert set(installed.here.objects()) == before
    assert installed.kept() == kept


def test_other_values_replace_the_device_plugins_under_running_pods(installed: Installed) -> None:
    kept = installed.kept()
    installed.chart.set("upgrade", unhealthy="evict")
    until_serving(installed.cluster)
    assert installed.kept() == kept


@pytest.fixture
def limited(installed: Installed) -> Iterator[Cluster]:
    """The driver of each node limits memory, and the device plugins have it do so."""
    cluster = installed.cluster

    def set_to(kind: str, isolation: str) -> None:
        for node in GPU_NODES:
            cluster.on(node, "python3", "/usr/local/lib/gpushare-lab/gpus.py", "limits", kind)
        installed.chart.set("upgrade", isolation=isolation)
        until_serving(cluster)

    set_to("any-hierarchy", "driver")
    yield cluster
    set_to("off", "watch")
    for node in GPU_NODES:
        cluster.on(node, "rm", "-f", LIMITS)


def test_a_pod_that_requires_a_limit_has_its_units_and_no_more(installed: Installed, limited: Cluster) -> None:
    """The device plugin's pod sets it by the node's control groups, which it has below a folder of its own."""
    kept = installed.kept()
    limited.create(strict("strict", 4, NODE))
    (running,) = limited.until_running("strict", seconds=120)
    group, most = limits(limited)[running["metadata"]["uid"]]
    assert most == 4 * GIB
    (share,) = allocated(limited)[running["metadata"]["uid"]]
    index, pid, memory = gpus_by_device(limited)[share.node, share.device].index, processes(limited, group)[0], Memory(limited)
    try:
        assert memory.allocate(index, pid, 4096) == ""
        assert "CUDA_ERROR_OUT_OF_MEMORY" in memory.allocate(index, pid, 1)
    finally:
        memory.free()
    limited.delete("strict")
    assert installed.kept() == kept


def test_another_release_takes_the_place_under_running_pods_and_gives_it_back(installed: Installed, tmp_path: Path) -> None:
    chart, version = tmp_path / "gpushare", yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    shutil.copytree(CHART, chart)
    text = (CHART / "Chart.yaml").read_text().replace(f"ersion: {version}", f"ersion: {OTHER}")
    (chart / "Chart.yaml").write_text(text)
    (image,) = installed.images()
    other = f"{image.rpartition(':')[0]}:{OTHER}"
    for node in (CONTROL_PLANE, *GPU_NODES):
        installed.cluster.on(node, "ctr", "-n", "k8s.io", "images", "tag", image, other)
    kept, before = installed.kept(), installed.release()
    # As docs/operate/kubernetes.md has it.
    installed.chart.helm("upgrade", "gpushare", str(chart), "--reset-then-reuse-values", "--set", f"image={other}", "--wait")
    until_serving(installed.cluster)
    assert (installed.release(), installed.images()) == ((f"gpushare-{OTHER}", "deployed"), {other})
    assert installed.kept() == kept
    installed.chart.helm("rollback", "gpushare", "--wait")
    until_serving(installed.cluster)
    assert (installed.release(), installed.images()) == (before, {image})
    assert installed.kept() == kept


def test_without_its_release_the_pods_keep_their_gpus_from_the_other_back_end(installed: Installed) -> None:
    kept = installed.kept()
    installed.chart.helm("uninstall", "gpushare", "--wait")
    said = installed.rejected("install")
    assert "found the ResourceClaim default/share-" in said
    assert "install backend: dra again" in said
    left = {name for name in installed.here.objects() if f" {NAMESPACE}/" not in name}
    assert left == {*installed.objects, f"Namespace /{NAMESPACE}"}
    assert installed.kept() == kept
    installed.chart.set("install")
    until_serving(installed.cluster)
    assert installed.kept() == kept


def test_helm_uninstalls(installed: Installed) -> None:
    clear(installed.cluster)
    assert claims(installed.cluster) == []
    installed.chart.remove()
    assert set(installed.here.objects()) == installed.objects
    assert installed.cluster.api.items(CLASSES) == []
