# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster of Kubernetes 1.36 whose GPU nodes have docker and containerd 1.6, 1.7 and 2.4: broken configurations, from untouched hosts
over shared GPUs and back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomllib  # type: ignore[import-not-found,unused-ignore]
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import rancher

from cluster_mode.in_cluster import RUNTIME_CLASS
from e2e.checks import check_devices, check_environment, check_no_gpu
from e2e.cluster import Cluster, annotations_of
from e2e.manifests import pod
from installer.shared import container_runtime, run_again_in_silence, see_their_own_gpus_only, share_two_gpus
from installer.site import Site, Untouched, differences
from labs import RUNTIMES, Labs
from unit.fakes.plugins.runtimes import k3s_config


@dataclass(frozen=True)
class Runtime:
    """A node and its container runtime. config: the file that decides; files: those that the role writes, in their order.

    strategy: the strictest of which it is capable; default: the runtime that `ready` prints when that is set up.
    """

    node: str
    name: str
    config: str
    files: tuple[str, ...]
    ready: str
    strategy: str
    default: str

    @property
    def unit(self) -> str:
        return f"{self.name}.service"


CONTAINERD = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/zz-gpushare.toml"
DAEMON = "/etc/docker/daemon.json"
DEFAULT_OF_CRI = "containerd config dump | sed -n 's/^ *default_runtime_name = .\\(.*\\).$/\\1/p'"
NODES = {
    "docker": Runtime("gpu1", "docker", DAEMON, (DAEMON,), "docker info -f '{{.DefaultRuntime}}'", "volume-mounts", "nvidia"),
    "containerd-2.4": Runtime("gpu2", "containerd", CONTAINERD, (DROP_IN, CONTAINERD), DEFAULT_OF_CRI, "cdi", "runc"),
    # CDI is off in it until the role switches it on.
    "containerd-1.7": Runtime("gpu3", "containerd", CONTAINERD, (CONTAINERD,), DEFAULT_OF_CRI, "cdi", "runc"),
    "containerd-1.6": Runtime("gpu4", "containerd", CONTAINERD, (CONTAINERD,), DEFAULT_OF_CRI, "volume-mounts", "nvidia"),
}
GPU_NODES = tuple(runtime.node for runtime in NODES.values())


@pytest.fixture(scope="module")
def cluster(labs: Labs) -> Cluster:
    return labs.bare(RUNTIMES)


@pytest.fixture(scope="module")
def untouched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Untouched:
    return Untouched(cluster, Site(cluster, tmp_path_factory.mktemp("untouched"), GPU_NODES).state())


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path, GPU_NODES)


@pytest.fixture(params=sorted(NODES))
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return NODES[request.param]


def sh(cluster: Cluster, node: str, script: str) -> str:
    return cluster.on(node, "sh", "-ec", script, seconds=120)


def watched(cluster: Cluster, runtime: Runtime) -> str:
    """Every file that could have been written, with its times, and which daemon runs."""
    files = "find /etc /var/lib/gpushare -printf '%p %y %m %U:%G %s %T@ %C@\\n' 2>/dev/null | grep -v ' /etc/mtab' | sort"
    return sh(cluster, runtime.node, f"({files}); systemctl show -P MainPID {runtime.unit}")


@pytest.fixture
def kept(cluster: Cluster, runtime: Runtime) -> Iterator[str]:
    """The runtime's configuration, which is put back."""
    before = cluster.on(runtime.node, "cat", runtime.config)
    yield before
    cluster.lab("exec", runtime.node, "sh", "-c", f"cat > {runtime.config}", stdin=before)
    gate = f"/run/systemd/system/{runtime.unit}.d"
    reset = f"rm -rf {gate} /etc/containerd/conf.d /var/lib/gpushare; systemctl daemon-reload; systemctl reset-failed {runtime.unit}"
    sh(cluster, runtime.node, f"{reset} || true; systemctl restart {runtime.unit}")
    cluster.until(f"{runtime.node} is ready", lambda: ready(cluster, runtime.node), 120)


def ready(cluster: Cluster, node: str) -> bool:
    conditions = {one["type"]: one["status"] for one in cluster.node(node)["status"]["conditions"]}
    return bool(conditions["Ready"] == "True")


def test_each_node_runs_what_it_is_called(cluster: Cluster) -> None:
    said = {node["metadata"]["name"]: node["status"]["nodeInfo"]["containerRuntimeVersion"] for node in cluster.nodes()}
    assert {name: version.rpartition(".")[0].rpartition("+")[0] or version.rpartition(".")[0] for name, version in said.items()} == {
        "cp1": "containerd://2.4",
        "gpu1": "docker://20.10",
        "gpu2": "containerd://2.4",
        "gpu3": "containerd://1.7",
        "gpu4": "containerd://1.6",
    }


def test_a_broken_configuration_is_rejected_with_its_place_and_stays_untouched(cluster: Cluster, runtime: Runtime, kept: str) -> None:
    broken = {
        DAEMON: {
            kept.replace("{", '{\n  "live-restore": true,', 1): "live-restore",
            kept.replace("{", "{ // GPUs", 1): f"{DAEMON}: line 1",
            kept.replace("{", '{\n  "no-such-option": true,', 1): "no-such-option",
        },
        CONTAINERD: {
            kept.replace("\n\n", "\nbroken\n\n", 1): CONTAINERD,
            kept.replace(
                "version = ", 'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"]\nversion = ', 1
            ): "cri",
        },
    }[runtime.config]
    for text, words in broken.items():
        assert text != kept
        cluster.lab("exec", runtime.node, "sh", "-c", f"cat > {runtime.config}", stdin=text)
        before = watched(cluster, runtime)
        answer = container_runtime(cluster, runtime.node)
        assert answer["failed"], answer
        assert words in answer["msg"], answer["msg"]
        assert watched(cluster, runtime) == before


def test_a_daemon_that_is_killed_after_the_change_and_does_not_come_back_gets_its_old_files(
    cluster: Cluster, runtime: Runtime, kept: str
) -> None:
    gate = f"/run/systemd/system/{runtime.unit}.d/90-gpushare-test.conf"
    start = f"! grep -qs nvidia {' '.join(runtime.files)} || {{ echo no nvidia here; exit 1; }}"
    # docker is told to reload, which here kills it.
    reload = "ExecReload=\nExecReload=/bin/kill -KILL $MAINPID\n" if runtime.name == "docker" else ""
    text = f"[Service]\nExecStartPre=/bin/sh -c '{start}'\n{reload}"
    cluster.lab("exec", runtime.node, "sh", "-c", f"mkdir -p $(dirname {gate}); cat > {gate}; systemctl daemon-reload", stdin=text)
    answer = container_runtime(cluster, runtime.node, "timeout=30")
    assert answer["failed"], answer
    assert "what was there is restored" in answer["msg"]
    assert cluster.on(runtime.node, "cat", runtime.config) == kept
    assert sh(cluster, runtime.node, "ls /var/lib/gpushare/journal").split() == []
    assert sh(cluster, runtime.node, runtime.ready).split()[-1:] in ([], ["runc"])
    cluster.until(f"{runtime.node} is ready", lambda: ready(cluster, runtime.node), 120)


def containers(cluster: Cluster) -> dict[str, str]:
    return {one["metadata"]["name"]: one["status"]["containerStatuses"][0]["containerID"] for one in cluster.pods()}


def containerd_of(cluster: Cluster, runtime: Runtime) -> str:
    """Its configuration, every file, and which process runs."""
    return sh(cluster, runtime.node, f"cd /etc/containerd; find . -type f -exec md5sum {{}} +; systemctl show -P MainPID {runtime.unit}")


@pytest.mark.timeout(2400)
def test_site_sets_up_each_for_the_strictest_strategy_and_the_second_run_writes_no_byte(
    cluster: Cluster, untouched: Untouched, site: Site
) -> None:
    for node in GPU_NODES:
        cluster.create(pod(f"before-{node}", node=node))
        cluster.until_running(f"before-{node}", seconds=180)
    before, passes_on = containers(cluster), containerd_of(cluster, NODES["containerd-2.4"])
    _results, output = site.play("site.yml")
    assert containers(cluster) == before, f"a container did not survive\n{output}"
    # It passes CDI devices on by itself: nothing was written, and it was not restarted.
    assert containerd_of(cluster, NODES["containerd-2.4"]) == passes_on, output
    for runtime in NODES.values():
        assert sh(cluster, runtime.node, runtime.ready).split()[-1] == runtime.default, output
        published = json.loads(annotations_of(cluster.node(runtime.node))["gpushare/gpus"])
        assert published["strategy"] == runtime.strategy, output
    run_again_in_silence(cluster, site)
    cluster.clear()


def test_pods_share_the_gpus_of_each(cluster: Cluster) -> None:
    share_two_gpus(cluster, GPU_NODES)


def test_nobody_sees_a_gpu_that_was_not_allocated(cluster: Cluster, runtime: Runtime) -> None:
    see_their_own_gpus_only(cluster, runtime.node)


@pytest.fixture
def configured_by_k3s(cluster: Cluster) -> Iterator[str]:
    """The node with containerd 2.4, as k3s configures its own where it has found NVIDIA's runtime."""
    node, before = NODES["containerd-2.4"].node, cluster.on(NODES["containerd-2.4"].node, "cat", CONTAINERD)
    pause = tomllib.loads(before)["plugins"]["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"]
    by_k3s = k3s_config.on_a_node_of_the_lab(k3s_config.V3 + k3s_config.FOUND_V3, pause)
    assert rancher.knows(by_k3s)
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(RUNTIME_CLASS))
    for text in (by_k3s, before):
        cluster.lab("exec", node, "sh", "-c", f"cat > {CONTAINERD}; systemctl restart containerd", stdin=text)
        cluster.until(f"{node} is ready", lambda: ready(cluster, node), 120)
        if text == by_k3s:
            yield node
            cluster.clear()
    cluster.kubectl("delete", "runtimeclass", "nvidia")


def test_pods_of_its_runtime_class_have_their_gpus_where_k3s_has_configured_containerd(cluster: Cluster, configured_by_k3s: str) -> None:
    node, dump = configured_by_k3s, sh(cluster, configured_by_k3s, "containerd config dump")
    assert "'/usr/bin/nvidia-container-runtime'" in dump
    asking, idle = [pod(f"k3s-{number}", memory=10, node=node) for number in range(2)], pod("k3s-idle", node=node)
    for manifest in (*asking, idle):
        manifest["spec"]["runtimeClassName"] = "nvidia"
        cluster.create(manifest)
    pods = {one["metadata"]["name"]: one for one in cluster.until_running("k3s-0", "k3s-1", "k3s-idle", seconds=180)}
    nothing = pods.pop("k3s-idle")
    assert check_devices(cluster, pods.values()) + check_environment(cluster, pods.values()) == []
    assert check_no_gpu(cluster, [nothing]) == []


@pytest.mark.timeout(1500)
def test_uninstalling_leaves_each_as_it_was(cluster: Cluster, untouched: Untouched, site: Site) -> None:
    _results, output = site.uninstall()
    assert differences(untouched.state, site.state(resources=False)) == [], output
