# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPU nodes whose kubelet has CRI-O, by hand: GPUSHARE_CRIO names a crio that somebody has built (docs/project/testing.md).

From untouched hosts over shared GPUs, samples and a churn to what uninstall leaves: gpu1 with the strategy `cdi`, gpu2 with
`volume-mounts` and nvidia as default runtime. What came out goes to docs/project/benchmarks.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from e2e import churn_judge as judge
from e2e.checks import check_devices, check_environment, check_log_lists_its_gpu, check_totals
from e2e.churn import Churn
from e2e.cluster import GPU_NODES, REPOSITORY, Cluster, CommandError, allocation, annotations_of
from e2e.manifests import pod
from e2e.samples import NVIDIA_SMI, SHARING, apply_samples, running_samples
from gpushare_lab.components import KUBERNETES
from gpushare_lab.runtimes import CRIO, CRIO_PROGRAM
from installer.shared import run_again_in_silence, see_their_own_gpus_only, share_two_gpus
from installer.site import Site, Untouched, differences
from labs import Labs, Shape

RESULT = REPOSITORY / "docs/project/benchmarks/cri-o.json"
STRATEGIES = {"gpu1": "cdi", "gpu2": "volume-mounts"}
DEFAULT_RUNTIMES = {"gpu1": "runc", "gpu2": "nvidia"}
SHAPE = Shape(
    "crio",
    (
        "--no-nvidia-runtime",
        "--gpus",
        ",".join(f"{node}=2x16" for node in GPU_NODES),
        "--runtime",
        ",".join(f"{node}={CRIO}" for node in GPU_NODES),
    ),
    variables={node: {"gpushare_device_strategy": strategy} for node, strategy in STRATEGIES.items()},
)
CHURN_PODS = int(os.environ.get("GPUSHARE_CHURN_PODS", "60"))
NOT_RUN = (
    "crun: the nodes have runc, by a program that raises oom_score_adj",
    "cgroup v2 and the systemd driver: the machine had cgroup v1",
    "seccomp and AppArmor: crio was built without",
)
DROP_INS = "/etc/crio/crio.conf.d"

pytestmark = [
    pytest.mark.skipif(CRIO_PROGRAM not in os.environ, reason=f"CRI-O is no Go module: by hand, {CRIO_PROGRAM} names no program crio"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module")
def cluster(labs: Labs) -> Cluster:
    return labs.bare(SHAPE)


@pytest.fixture(scope="module")
def untouched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Untouched:
    return Untouched(cluster, Site(cluster, tmp_path_factory.mktemp("untouched"), GPU_NODES).state())


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, Any]]:
    """What the tests have found, with the names of those that were green: a file."""
    found: dict[str, Any] = {"date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "kubernetes": KUBERNETES, "green": []}
    yield found
    if "version" in found:
        RESULT.write_text(json.dumps({**found, "not_run": NOT_RUN}, indent=1) + "\n")


@pytest.fixture(autouse=True)
def is_green(request: pytest.FixtureRequest, record: dict[str, Any]) -> Iterator[None]:
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed == failed:
        record["green"].append(request.node.name)


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path, GPU_NODES)


def sh(cluster: Cluster, node: str, script: str) -> str:
    return cluster.on(node, "sh", "-ec", script, seconds=120)


def default_runtime(cluster: Cluster, node: str) -> str:
    """Of the process, by its own page."""
    script = "import http.client, socket; c = http.client.HTTPConnection('localhost'); c.sock = socket.socket(socket.AF_UNIX); "
    script += "c.sock.connect('/var/run/crio/crio.sock'); c.request('GET', '/config'); print(c.getresponse().read().decode())"
    lines = [line.split() for line in cluster.on(node, "python3", "-c", script).splitlines()]
    return next(words[2].strip('"') for words in lines if words[:2] == ["default_runtime", "="])


def containers(cluster: Cluster) -> dict[str, str]:
    return {one["metadata"]["name"]: one["status"]["containerStatuses"][0]["containerID"] for one in cluster.pods()}


def published(cluster: Cluster, node: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(annotations_of(cluster.node(node))["gpushare/gpus"])
    return found


def test_kubelet_has_cri_o(cluster: Cluster, record: dict[str, Any]) -> None:
    said = {one["metadata"]["name"]: one["status"]["nodeInfo"]["containerRuntimeVersion"] for one in cluster.nodes()}
    (version,) = {said[node] for node in GPU_NODES}
    assert version.startswith("cri-o://")
    record["version"] = version.partition("://")[2]


def test_a_file_that_cri_o_rejects_stops_the_role_with_cri_os_reason(cluster: Cluster, untouched: Untouched, site: Site) -> None:
    node = "gpu2"
    sh(cluster, node, f"printf '[crio.runtime]\\nlog_level = \"loud\"\\n' > {DROP_INS}/20-broken.conf")
    try:
        with pytest.raises(CommandError) as error:
            site.play("tests/installer/visibility.yml", "--limit", node)
    finally:
        sh(cluster, node, f"rm {DROP_INS}/20-broken.conf")
    (said,) = {line.partition("crio config rejects")[2] for line in str(error.value).splitlines() if "crio config rejects" in line}
    assert "loud" in said
    assert "level=info" not in said


def test_site_sets_up_both_strategies_and_the_second_run_writes_no_byte(
    cluster: Cluster, untouched: Untouched, site: Site, record: dict[str, Any]
) -> None:
    for node in GPU_NODES:
        cluster.create(pod(f"before-{node}", node=node))
    cluster.until_running(*(f"before-{node}" for node in GPU_NODES), seconds=180)
    before, begin = containers(cluster), time.monotonic()
    _results, output = site.play("site.yml")
    record["site"] = {"seconds": round(time.monotonic() - begin)}
    assert containers(cluster) == before, f"a container did not survive\n{output}"
    found = {node: published(cluster, node)["strategy"] for node in GPU_NODES}
    assert found == STRATEGIES, output
    assert {node: default_runtime(cluster, node) for node in GPU_NODES} == DEFAULT_RUNTIMES, output
    record["site"] |= {"strategies": found, "default_runtimes": DEFAULT_RUNTIMES}
    run_again_in_silence(cluster, site)
    cluster.clear()


def test_pods_share_the_gpus_of_each(cluster: Cluster) -> None:
    share_two_gpus(cluster, GPU_NODES)


@pytest.mark.parametrize("node", GPU_NODES)
def test_nobody_sees_a_gpu_that_was_not_allocated(cluster: Cluster, node: str) -> None:
    see_their_own_gpus_only(cluster, node)


@pytest.mark.parametrize("node", GPU_NODES)
def test_gpus_stay_with_their_pods_when_cri_o_restarts(cluster: Cluster, node: str) -> None:
    first, second = cluster.gpus(node)
    for name in ("one", "other"):
        cluster.create(pod(name, memory=10, node=node))
    cluster.until_running("one", "other", seconds=120)
    before = containers(cluster)
    sh(cluster, node, "systemctl restart crio")
    cluster.create(pod("after", memory=6, node=node))
    pods = {one["metadata"]["name"]: one for one in cluster.until_running("one", "other", "after", seconds=180)}
    assert {name: identity for name, identity in containers(cluster).items() if name in before} == before
    assert sorted(gpu for name in before for gpu in allocation(pods[name])) == [first.index, second.index]
    assert check_devices(cluster, pods.values()) + check_environment(cluster, pods.values()) == []
    cluster.clear()


def test_samples(cluster: Cluster) -> None:
    apply_samples(cluster, print)
    running = running_samples(cluster)
    assert len(running) == len(SHARING) + 1
    assert check_devices(cluster, running) + check_environment(cluster, running) + check_totals(cluster) == []
    assert check_log_lists_its_gpu(cluster, cluster.pod(NVIDIA_SMI)) == []
    cluster.clear()


def test_churn(cluster: Cluster, record: dict[str, Any]) -> None:
    """As the suite `churn`, with fewer pods."""
    begin = time.monotonic()
    log = asyncio.run(Churn(cluster, pods=CHURN_PODS, seed=7, say=print).run())
    counts, wrong, over = judge.counts(log), judge.wrong_gpus(log), judge.over_booked(log)
    record["churn"] = {"pods": counts.pods, "seconds": round(time.monotonic() - begin), "wrong_gpus": len(wrong), "over_booked": len(over)}
    assert wrong == []
    assert over == []
    assert judge.never_seen(log) == []
    assert counts.pods >= CHURN_PODS
    cluster.clear()


def test_uninstalling_leaves_each_as_it_was(cluster: Cluster, untouched: Untouched, site: Site, record: dict[str, Any]) -> None:
    begin = time.monotonic()
    _results, output = site.uninstall()
    record["uninstall"] = {"seconds": round(time.monotonic() - begin)}
    assert differences(untouched.state, site.state(resources=False)) == [], output
