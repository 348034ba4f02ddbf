# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods that share a GPU: the annotation `gpushare/use`, `kubectl gpushare top` and `idle`, and the metrics say which of them uses how much.

The driver is simulated below NVML. It counts the processes of one GPU, and those of the other it does not. A pod is idle after 20 seconds
here, not after 10 minutes: the device plugin runs with another value of that constant.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster import Cluster, WaitedInVain, allocation, annotations_of, is_running, run
from e2e.manifests import pod
from e2e.running import NODE, PLUGIN, container, gpu, node_state
from gpushare_runtime.core.use_report import NOTED_PERCENT, UseReport

SECONDS: Final = 750
"""Five times a mean of a minute, the next write of an annotation, and 20 seconds."""
pytestmark = [pytest.mark.suite("gpus"), pytest.mark.timeout(2 * SECONDS, func_only=True)]

CONFIG: Final = f"/etc/gpushare/{PLUGIN}.yaml"
OTHER_CONFIG: Final = "/run/gpushare-test-use.yaml"
DROP_IN: Final = f"/run/systemd/system/{PLUGIN}.service.d/use.conf"
METRICS: Final = "127.0.0.1:9440"
PROGRAM: Final = "; ".join(
    (
        "import sys",
        "from gpushare_runtime.device_plugin import main",
        "from gpushare_runtime.device_plugin.publish import use_reports",
        "use_reports.IDLE_SECONDS = 20.0",
        "sys.exit(main.main())",
    )
)
UNIT: Final = f'[Service]\nExecStart=\nExecStart=/opt/gpushare/current/bin/python -c "{PROGRAM}" --config {OTHER_CONFIG}\n'
SCRAPE: Final = f"import urllib.request; print(urllib.request.urlopen('http://{METRICS}/metrics', timeout=20).read().decode())"


class Told(NamedTuple):
    """What is said of a pod. mib, sm: None where nothing is. sm: percent."""

    mib: int | None
    sm: float | None
    idle: bool


@dataclass
class Shared:
    """The pods of the node. gpu: that three of them share. second: one of the two processes in a container of `busy`.

    processes: each with its GPU.
    """

    cluster: Cluster
    gpu: int = 0
    second: str = ""
    processes: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, Told] = field(default_factory=dict)

    def uses(self, pid: str, index: int, mib: int, sm: int = 0) -> None:
        """A process has so much of a GPU, and keeps its SMs busy so long."""
        gpu(self.cluster, "process", index, pid, mib, "trainer")
        self.processes[pid] = index
        self.works(pid, sm)

    def works(self, pid: str, sm: int) -> None:
        gpu(self.cluster, "load", self.processes[pid], pid, sm, sm // 2, 0, 0)

    def ends(self, pid: str) -> None:
        gpu(self.cluster, "process", self.processes.pop(pid), pid, 0, "trainer")

    def all_end(self) -> None:
        for pid in list(self.processes):
            self.ends(pid)

    @property
    def uuids(self) -> Mapping[str, str]:
        """The GPU of each pod."""
        known = [one.uuid for one in self.cluster.gpus(NODE)]
        return {name: known[1 - self.gpu if name == "uncounted" else self.gpu] for name in self.wanted}


def page(cluster: Cluster) -> str:
    """The metrics of the node's device plugin."""
    return cluster.on(NODE, "python3", "-c", SCRAPE)


def impatient(cluster: Cluster) -> None:
    """The node's device plugin with metrics, and with a shorter time after which a pod is idle."""
    cluster.on(NODE, "sh", "-ec", f"(cat {CONFIG}; printf '\\nmetricsListen: {METRICS}\\n') > {OTHER_CONFIG}")
    cluster.lab("exec", NODE, "sh", "-ec", f"mkdir -p $(dirname {DROP_IN}); cat > {DROP_IN}", stdin=UNIT)
    cluster.on(NODE, "sh", "-ec", f"systemctl daemon-reload; systemctl restart {PLUGIN}")
    until_nothing_is_held(cluster)


def until_nothing_is_held(cluster: Cluster) -> None:
    """A plugin that is started again a moment after pods have gone counts them until it has looked for their processes."""
    cluster.until("no GPU is kept for pods that are gone", lambda: 'state="orphaned"' not in page(cluster), 60)


def until_empty(cluster: Cluster) -> None:
    cluster.clear()
    until_nothing_is_held(cluster)


def as_before(cluster: Cluster) -> None:
    cluster.clear()
    for index in (0, 1):
        gpu(cluster, "set", index, "loads", "new")
    cluster.on(NODE, "sh", "-ec", f"rm -rf $(dirname {DROP_IN}) {OTHER_CONFIG}; systemctl daemon-reload; systemctl restart {PLUGIN}")


def children(cluster: Cluster, pid: int) -> list[str]:
    return cluster.on(NODE, "sh", "-c", f"grep -lE '^PPid:[[:space:]]+{pid}$' /proc/[0-9]*/status | cut -d/ -f3").split()


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[Shared]:
    """`busy` has two containers with three processes, `holds` has most and does nothing, `light` does little; `uncounted` is elsewhere."""
    cluster.clear()
    made = Shared(cluster)
    with ExitStack() as later:
        later.callback(as_before, cluster)
        impatient(cluster)
        later.callback(until_empty, cluster)
        busy = pod("busy", node=NODE)
        busy["spec"]["containers"] = [container("main", 3, "sleep 86400 & sleep 86400 & wait"), container("side", 2)]
        for one in (pod("holds", memory=6, node=NODE), busy, pod("light", memory=2, node=NODE), pod("uncounted", memory=12, node=NODE)):
            name = cluster.create(one)["metadata"]["name"]
            (placed,) = cluster.until_running(name, seconds=240)
            ((index),) = allocation(placed)
            if name == "holds":
                made.gpu = index
            assert (index == made.gpu) == (name != "uncounted"), "GPUs are filled one after the other"
        later.callback(made.all_end)
        pids = {name: one.pid for name, one in node_state(cluster).containers.items()}
        first, made.second = children(cluster, pids["busy/main"])
        made.uses(first, made.gpu, 1024, 30)
        made.uses(made.second, made.gpu, 512, 20)
        made.uses(str(pids["busy/side"]), made.gpu, 256, 10)
        made.uses(str(pids["light/main"]), made.gpu, 700, 15)
        made.uses(str(pids["holds/main"]), made.gpu, 5000)
        made.uses(str(pids["uncounted/main"]), 1 - made.gpu, 9000)
        gpu(cluster, "set", 1 - made.gpu, "loads", "none")
        # What it has seen of the other GPU before is gone with it.
        cluster.on(NODE, "systemctl", "restart", PLUGIN)
        made.wanted = {
            "busy": Told(1792, 60, False),
            "holds": Told(5000, 0, True),
            "light": Told(700, 15, False),
            "uncounted": Told(9000, None, False),
        }
        yield made


def by_annotation(shared: Shared) -> dict[str, Told]:
    report = UseReport.from_json(annotations_of(shared.cluster.node(NODE))["gpushare/use"])
    names = {one["metadata"]["uid"]: one["metadata"]["name"] for one in shared.cluster.pods()}
    on = {(uid, 1 - shared.gpu if name == "uncounted" else shared.gpu): name for uid, name in names.items()}
    # What is said of another pod, or of another GPU than the pod has, has a name that is not wanted.
    return {on.get(key, f"{key}"): Told(use.mib, use.sm, use.idle is not None) for key, use in report.pods.items()}


def kubectl_gpushare(shared: Shared, *arguments: str) -> str:
    command = [sys.executable, "-m", "gpushare_runtime.kubectl_program.main", *arguments, "--kubeconfig", str(shared.cluster.kubeconfig)]
    return run(command, seconds=60)


def by_top(shared: Shared) -> dict[str, Told]:
    answer = json.loads(kubectl_gpushare(shared, "top", "-A", "-o", "json"))
    pods = [one for node in answer["nodes"] for one in node["pods"]]
    return {one["name"]: Told(one["used_mib"], one["sm_percent"], one["idle_since"] is not None) for one in pods}


def samples(shared: Shared, name: str, **labels: str) -> dict[str, float]:
    """Of a metric of the node's device plugin, by the pod, or the container, of the GPU that the pod has."""
    found, uuids = {}, shared.uuids
    for family in text_string_to_metric_families(page(shared.cluster)):
        for one in family.samples:
            if one.name == f"gpushare_device_plugin_{name}" and labels.items() <= one.labels.items():
                assert one.labels["uuid"] == uuids[one.labels["pod"]]
                found[one.labels.get("container", one.labels["pod"])] = one.value
    return found


def by_metrics(shared: Shared) -> dict[str, Told]:
    sizes, loads = samples(shared, "pod_memory_used_bytes"), samples(shared, "pod_sm_utilization_ratio")
    idle = samples(shared, "pod_idle_since_timestamp_seconds")
    return {name: Told(int(size) >> 20, 100 * loads[name] if name in loads else None, name in idle) for name, size in sizes.items()}


def in_idle(shared: Shared) -> dict[str, list[str]]:
    """The rows of `idle`, by pod."""
    rows = [line.split() for line in kubectl_gpushare(shared, "idle", "-A", "--no-headers").splitlines()]
    return {row[1]: row for row in rows}


def differences(found: Mapping[str, Told], wanted: Mapping[str, Told], within: float) -> dict[str, tuple[Told | None, Told | None]]:
    """Pod → what is said and what is so. within: percent of the SMs."""
    wrong = {}
    for name in found.keys() | wanted.keys():
        one, other = found.get(name), wanted.get(name)
        if one and other and one.sm is not None and other.sm is not None and abs(one.sm - other.sm) < within:
            one = one._replace(sm=other.sm)
        if one != other:
            wrong[name] = found.get(name), other
    return wrong


Source = Callable[[Shared], dict[str, Told]]
#: What each says, and the percent by which it may lag behind.
SOURCES: Final[Mapping[Source, float]] = {by_metrics: 0.5, by_annotation: NOTED_PERCENT, by_top: NOTED_PERCENT}


def until_told(shared: Shared, source: Source) -> None:
    """Until a source says of all pods what is so."""
    last: dict[str, Told] = {}

    def same() -> bool:
        last.clear()
        last.update(source(shared))
        return not differences(last, shared.wanted, SOURCES[source])

    try:
        shared.cluster.until(f"{source.__name__} is what is so", same, SECONDS)
    except WaitedInVain as error:
        raise AssertionError(f"{source.__name__}: {differences(last, shared.wanted, SOURCES[source])}") from error


@pytest.mark.parametrize("source", SOURCES)
def test_each_pod_has_the_use_of_its_own_processes(shared: Shared, source: Source) -> None:
    until_told(shared, source)


def test_a_container_has_the_use_of_its_own_processes(shared: Shared) -> None:
    until_told(shared, by_metrics)
    loads = samples(shared, "container_sm_utilization_ratio", pod="busy")
    assert {name: round(100 * load) for name, load in loads.items()} == {"main": 50, "side": 10}
    sizes = samples(shared, "container_memory_used_bytes", pod="busy")
    assert {name: int(size) >> 20 for name, size in sizes.items()} == {"main": 1536, "side": 256}


def test_the_pod_that_holds_memory_and_does_nothing_is_idle_and_no_other(shared: Shared) -> None:
    until_told(shared, by_annotation)
    rows = in_idle(shared)
    assert list(rows) == ["holds"], "nor the one whose GPU counts no process"
    assert rows["holds"][:4] == ["default", "holds", NODE, str(shared.gpu)]
    assert rows["holds"][-6:] == ["kubectl", "delete", "pod", "holds", "-n", "default"]
    assert is_running(shared.cluster.pod("holds")), "nothing ends it"


def test_a_process_that_has_ended_counts_for_no_pod(shared: Shared) -> None:
    """NVML still lists it for a moment."""
    shared.cluster.on(NODE, "kill", shared.second)
    shared.cluster.until("its memory counts no more", lambda: samples(shared, "pod_memory_used_bytes")["busy"] == 1280 << 20, 60)
    assert {name: int(size) >> 20 for name, size in samples(shared, "pod_memory_used_bytes").items() if name != "busy"} == {
        name: told.mib for name, told in shared.wanted.items() if name != "busy"
    }
    shared.ends(shared.second)
    shared.wanted["busy"] = Told(1280, 40, False)
    for source in SOURCES:
        until_told(shared, source)


def test_idle_follows_the_pods(shared: Shared) -> None:
    pids = {name: str(one.pid) for name, one in node_state(shared.cluster).containers.items()}
    shared.works(pids["holds/main"], 25)
    shared.works(pids["light/main"], 0)
    shared.wanted |= {"holds": Told(5000, 25, False), "light": Told(700, 0, True)}
    for source in SOURCES:
        until_told(shared, source)
    assert list(in_idle(shared)) == ["light"]
