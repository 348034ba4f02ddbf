# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A GPU node of the time before cri-dockerd in a cluster of today: kubelet 1.22 with dockershim, and docker.

From an untouched host over kubelet's feature gates and shared GPUs, with `nvidia` as the default runtime in daemon.json, and back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blocks import lines
from e2e.checks import check_devices, check_environment, check_follows, check_registers_again
from e2e.cluster import MEMORY, Cluster, CommandError, allocation, annotations_of
from e2e.manifests import pod
from gpushare_lab.runtimes import DOCKERSHIM_KUBELET
from installer.shared import run_again_in_silence, see_their_own_gpus_only, share_two_gpus
from installer.site import NODE, Site, Untouched, differences
from labs import DOCKERSHIM, Labs

DAEMON, ARGUMENTS = "/etc/docker/daemon.json", "/etc/default/kubelet"
#: Kubernetes supports no kubelet that is so much older than its API server, and preflight stops without this.
ACCEPTED = ("-e", json.dumps({"gpushare_preflight_accept": ["kubelet"]}))


@pytest.fixture(scope="module")
def cluster(labs: Labs) -> Cluster:
    return labs.bare(DOCKERSHIM)


@pytest.fixture(scope="module")
def untouched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Untouched:
    return Untouched(cluster, Site(cluster, tmp_path_factory.mktemp("untouched")).state())


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path)


def sh(cluster: Cluster, script: str) -> str:
    return cluster.on(NODE, "sh", "-ec", script, seconds=120)


def default_runtime(cluster: Cluster) -> str:
    return sh(cluster, "docker info -f '{{.DefaultRuntime}}'").strip()


def arguments(cluster: Cluster) -> list[str]:
    """Of the kubelet that runs."""
    return sh(cluster, "tr '\\0' '\\n' < /proc/$(systemctl show -P MainPID kubelet)/cmdline").split("\n")


def gates(cluster: Cluster) -> dict[str, str]:
    """Those that the running kubelet has been given."""
    (value,) = [word.partition("=")[2] for word in arguments(cluster) if word.startswith("--feature-gates=")]
    return dict(pair.split("=") for pair in value.split(","))


def ready(cluster: Cluster) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in cluster.node(NODE)["status"]["conditions"])


def process(cluster: Cluster, unit: str) -> str:
    return sh(cluster, f"systemctl show -P MainPID {unit}").strip()


def started(cluster: Cluster) -> dict[str, str]:
    """Pod to its container."""
    return {one["metadata"]["name"]: one["status"]["containerStatuses"][0]["containerID"] for one in cluster.pods()}


def test_the_node_has_an_old_kubelet_that_talks_to_docker_itself(cluster: Cluster, untouched: Untouched) -> None:
    said = {node["metadata"]["name"]: node["status"]["nodeInfo"] for node in cluster.nodes()}
    assert said[NODE]["kubeletVersion"] == f"v{DOCKERSHIM_KUBELET}"
    assert said[NODE]["containerRuntimeVersion"].startswith("docker://20.10.")
    assert said["cp1"]["kubeletVersion"].startswith("v1.36.")
    assert "--container-runtime=docker" in arguments(cluster)
    assert sh(cluster, "pgrep -c cri-dockerd || true").strip() == "0"
    assert default_runtime(cluster) == "runc"


def test_site_stops_before_the_first_change_until_the_kubelet_is_accepted(cluster: Cluster, untouched: Untouched, site: Site) -> None:
    with pytest.raises(CommandError) as error:
        site.play("site.yml")
    words = str(error.value)
    assert f"{NODE}: kubelet: found kubelet v{DOCKERSHIM_KUBELET}; expected 1.25 or newer" in lines(words)
    assert "1 problem, nothing was changed" in words
    assert differences(untouched.state, site.state()) == []


@pytest.fixture
def without_device_plugins(cluster: Cluster) -> Iterator[str]:
    """kubelet's arguments, which are put back; while the test runs they switch device plugins off."""
    before = cluster.on(NODE, "cat", ARGUMENTS)
    assert "--feature-gates=" in before
    text = before.replace("--feature-gates=", "--feature-gates=DevicePlugins=false,")
    for content in (text, before):
        was = process(cluster, "kubelet")
        cluster.lab("exec", NODE, "sh", "-c", f"cat > {ARGUMENTS}; systemctl restart kubelet", stdin=content)
        cluster.until(f"{NODE} is ready", lambda was=was: process(cluster, "kubelet") != was and ready(cluster), 120)  # type: ignore[misc]
        if content == text:
            yield text


def test_the_gate_of_device_plugins_is_switched_on_in_a_real_old_kubelet_and_given_back(
    cluster: Cluster, site: Site, without_device_plugins: str
) -> None:
    assert gates(cluster)["DevicePlugins"] == "false"
    was = process(cluster, "kubelet")
    site.play("playbooks/kubelet_gates.yml")
    assert gates(cluster) == {"DevicePlugins": "true", "LocalStorageCapacityIsolation": "false"}
    assert process(cluster, "kubelet") != was
    again, output = site.play("playbooks/kubelet_gates.yml")
    assert again.changes() == {}, output
    site.play("playbooks/kubelet_gates.yml", "-e", "gpushare_kubelet_state=absent")
    assert cluster.on(NODE, "cat", ARGUMENTS) == without_device_plugins
    assert gates(cluster)["DevicePlugins"] == "false"


@pytest.mark.timeout(2400)
def test_site_makes_nvidia_the_default_runtime_and_the_second_run_writes_no_byte(
    cluster: Cluster, untouched: Untouched, site: Site
) -> None:
    cluster.create(pod("before", node=NODE))
    cluster.until_running("before", seconds=180)
    before, dockerd, kubelet = started(cluster), process(cluster, "docker"), process(cluster, "kubelet")
    _results, output = site.play("site.yml", *ACCEPTED)
    assert started(cluster) == before, f"the container did not survive\n{output}"
    # docker reads its runtimes again without a restart, and kubelet needs none.
    assert (process(cluster, "docker"), process(cluster, "kubelet")) == (dockerd, kubelet), output
    written = json.loads(cluster.on(NODE, "cat", DAEMON))
    assert (written["default-runtime"], written["runtimes"]["nvidia"]["path"]) == ("nvidia", "/usr/bin/nvidia-container-runtime")
    assert default_runtime(cluster) == "nvidia"
    node = cluster.node(NODE)
    assert node["metadata"]["labels"]["gpushare.kubernetes/node"] == "true"
    assert json.loads(annotations_of(node)["gpushare/gpus"])["strategy"] == "volume-mounts", output
    assert node["status"]["allocatable"][MEMORY] == "32"
    run_again_in_silence(cluster, site, *ACCEPTED)
    cluster.clear()


def test_pods_share_a_gpu(cluster: Cluster) -> None:
    share_two_gpus(cluster, (NODE,))


def test_nobody_sees_a_gpu_that_was_not_allocated(cluster: Cluster) -> None:
    see_their_own_gpus_only(cluster, NODE)


def restart_kubelet(cluster: Cluster) -> None:
    problems, _seconds = check_registers_again(cluster, NODE)
    assert problems == []
    assert check_follows(cluster, NODE, seconds=60) == []


def restart_docker(cluster: Cluster) -> None:
    was = process(cluster, "docker")
    sh(cluster, "systemctl restart docker")
    assert process(cluster, "docker") != was
    cluster.until(f"{NODE} is ready", lambda: ready(cluster), 120)


@pytest.mark.parametrize("restart", [restart_kubelet, restart_docker])
def test_gpus_stay_with_their_pods_when_a_daemon_of_the_node_restarts(cluster: Cluster, restart: Callable[[Cluster], None]) -> None:
    first, second = cluster.gpus(NODE)
    for name in ("one", "other"):
        cluster.create(pod(name, memory=10, node=NODE))
    cluster.until_running("one", "other", seconds=120)
    before = started(cluster)
    restart(cluster)
    cluster.create(pod("after", memory=6, node=NODE))
    pods = {one["metadata"]["name"]: one for one in cluster.until_running("one", "other", "after", seconds=180)}
    assert {name: identity for name, identity in started(cluster).items() if name in before} == before
    assert sorted(gpu for name in before for gpu in allocation(pods[name])) == [first.index, second.index]
    assert check_devices(cluster, pods.values()) == []
    assert check_environment(cluster, pods.values()) == []
    cluster.clear()


@pytest.mark.timeout(1500)
def test_uninstalling_leaves_the_host_as_it_was(cluster: Cluster, untouched: Untouched, site: Site) -> None:
    _results, output = site.uninstall()
    assert differences(untouched.state, site.state(resources=False)) == [], output
