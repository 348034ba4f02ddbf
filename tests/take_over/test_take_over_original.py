# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster of the original gpushare with 50 pods is taken over, given back by uninstall, taken over again, and the original's parts go.

The commands are those of the page docs/operate/migrate-original.md, run as a user runs them, from the installed release. The tests
are one story, in this order, on one lab. The original's manifests run images of a program that does what the original's device plugin
and extender do.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from docs.conftest import Shell, shell
from docs.pages import blocks, steps
from docs.tarball import release
from e2e.api import Json
from e2e.checks import check_devices
from e2e.cluster import CONTROL_PLANE, MEMORY, Cluster, annotations_of, asked, is_running
from e2e.manifests import pod
from installer.site import MANIFEST
from labs import TWO_NVIDIA, Labs
from operations.hosts import QUIET, counts
from take_over.stand_ins import (
    EXTENDER,
    ORIGINAL_DAEMON_SET,
    SCHEDULER_CONFIG,
    SYSTEM,
    give_gpus_by_variable,
    give_services,
    original,
    original_images,
    original_scheduler,
)

PAGE, TEST = "docs/operate/migrate-original.md", "tests/take_over/test_take_over_original.py"
NODES = ("gpu1", "gpu2")
#: Pod → units. kubelet gives their ids at random, so they may take ids of a GPU that they do not have: pods that come later need
#: more room than the sums say.
SHARES = {f"one-{number:02}": 1 for number in range(44)} | {f"two-{number}": 2 for number in range(6)}
#: Pods that are made while a playbook runs.
MEANWHILE = 6
INDEX, ASSIGNED = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_ASSIGNED"
ALLOCATION = "scheduler.framework.gpushare.allocation"
COPY = "/var/lib/gpushare-original/objects.json"
_SECONDS = 1500
# uninstall waits five minutes for kubelet.
pytestmark = pytest.mark.timeout(2 * _SECONDS)


@dataclass(frozen=True)
class Walk:
    """The page's commands, in a folder with its inventory. before: what must be as it was once everything is given back."""

    line: Shell
    take_over: str
    show: str
    give_back: str
    retire: str
    containers: Mapping[str, Json]
    before: Mapping[str, Any]

    def run(self, command: str) -> dict[str, tuple[int, int]]:
        found = counts(self.line(command, _SECONDS))
        assert {failed for _changed, failed in found.values()} == {0}
        return found


def share(name: str, units: int, node: str | None = None) -> Json:
    found = pod(name, memory=units, node=node)
    found["spec"]["terminationGracePeriodSeconds"] = 0
    return found


def containers(cluster: Cluster, names: Collection[str]) -> dict[str, Json]:
    """Pod → its container's id and restarts, and its GPU by the device node in its /dev."""
    pods = [one for one in cluster.pods() if one["metadata"]["name"] in names]
    devices = {found.pod["metadata"]["name"]: [name for name in found.devices if name[6:].isdigit()] for found in cluster.containers(pods)}
    return {
        one["metadata"]["name"]: {
            "id": one["status"]["containerStatuses"][0]["containerID"],
            "restarts": one["status"]["containerStatuses"][0]["restartCount"],
            "node": one["spec"]["nodeName"],
            "devices": devices[one["metadata"]["name"]],
        }
        for one in pods
    }


def wrong_annotations(cluster: Cluster) -> list[str]:
    """Pods whose annotation names another GPU than their container has."""
    minors = {(node, gpu.index): gpu.minor for node in NODES for gpu in cluster.gpus(node)}
    pods = {one["metadata"]["name"]: one for one in cluster.pods() if is_running(one) and _units(one)}
    said = {name: f"nvidia{minors[one['spec']['nodeName'], int(annotations_of(one)[INDEX])]}" for name, one in pods.items()}
    found = containers(cluster, pods)
    return [
        f"{name} has {found[name]['devices']}, its annotation means {said[name]}" for name in pods if found[name]["devices"] != [said[name]]
    ]


def ledger_of(cluster: Cluster, text: str) -> list[str]:
    """What `kubectl gpushare -o json` says otherwise than the annotations of the pods, or has over-booked."""
    shown: dict[str, Any] = json.loads(text)
    found = {}
    problems = [*shown["problems"]]
    for node in shown["nodes"]:
        problems += node["problems"] + [
            f"{node['name']}: GPU {gpu['index']} has {gpu['free']} free" for gpu in node["gpus"] if gpu["free"] < 0
        ]
        found.update({one["name"]: (node["name"], one["by_gpu"]) for one in node["pods"]})
    pods = [one for one in cluster.pods() if is_running(one) and _units(one)]
    wanted = {one["metadata"]["name"]: (one["spec"]["nodeName"], {annotations_of(one)[INDEX]: _units(one)}) for one in pods}
    return problems + [f"{name}: {found.get(name)}, expected {value}" for name, value in wanted.items() if found.get(name) != value]


def _units(one: Json) -> int:
    return sum(asked(container, MEMORY) for container in one["spec"]["containers"])


def theirs(cluster: Cluster) -> dict[str, str]:
    """Node → the original's pod there, that runs."""
    pods = [one for one in cluster.pods(SYSTEM) if one["metadata"]["labels"].get("app") == "gpushare" and is_running(one)]
    return {one["spec"]["nodeName"]: one["metadata"]["name"] for one in pods}


def offered(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Node → units and GPUs that the scheduler may give away."""
    amounts = {node: cluster.node(node)["status"]["allocatable"] for node in NODES}
    return {node: (found.get(MEMORY, "0"), found.get("aliyun.com/gpu-count", "0")) for node, found in amounts.items()}


ORIGINALS = {"gpu1": ("64", "2"), "gpu2": ("64", "2")}


def state(cluster: Cluster) -> dict[str, Any]:
    """What a take-over changes outside of the GPU hosts, and uninstall gives back."""
    items = [
        json.loads(cluster.kubectl("get", one["kind"].lower(), one["metadata"]["name"], *_namespace(one), "-o", "json"))
        for one in original()
    ]
    return {
        "objects": {
            f"{one['kind']} {one['metadata']['name']}": one.get("spec") or one.get("rules") or one.get("subjects") for one in items
        },
        "manifest": cluster.on(CONTROL_PLANE, "cat", MANIFEST),
        "configuration": cluster.on(CONTROL_PLANE, "cat", SCHEDULER_CONFIG),
        "labels": {node: cluster.node(node)["metadata"]["labels"] for node in NODES},
    }


def _namespace(one: Json) -> list[str]:
    return ["--namespace", one["metadata"]["namespace"]] if "namespace" in one["metadata"] else []


def cluster_of_the_original(cluster: Cluster) -> None:
    """The original as its guide installs it, by hand."""
    give_services(cluster, CONTROL_PLANE, *NODES)
    for node in NODES:
        give_gpus_by_variable(cluster, node)
    original_images(cluster, NODES)
    manifest, config = original_scheduler(cluster.on(CONTROL_PLANE, "cat", MANIFEST))
    cluster.lab("exec", CONTROL_PLANE, "sh", "-c", f"cat > {SCHEDULER_CONFIG}", stdin=config)
    cluster.lab("exec", CONTROL_PLANE, "sh", "-c", f"cat > /root/scheduler.yaml && mv /root/scheduler.yaml {MANIFEST}", stdin=manifest)
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": original()}))
    cluster.kubectl("label", "node", *NODES, "gpushare=true")
    cluster.until("the original serves both nodes", lambda: offered(cluster) == ORIGINALS and len(theirs(cluster)) == 3, 240)


@pytest.fixture(scope="module")
def cluster(labs: Labs) -> Cluster:
    """A cluster of the original, with pods that share its GPUs."""
    found = labs.bare(TWO_NVIDIA)
    # Of a lab that is used as it is, the story may have begun.
    if not theirs(found):
        cluster_of_the_original(found)
    known = {one["metadata"]["name"] for one in found.pods()}
    names = list(SHARES)
    # A few at a time: kube-scheduler asks the original's extender again where it is slow, which then forgets that a pod is assigned.
    for begin in range(0, len(names), 10):
        few = names[begin : begin + 10]
        for number, name in enumerate(few):
            if name not in known:
                found.create(share(name, SHARES[name], NODES[number % 2]))
        found.until_running(*few, seconds=240)
    return found


@pytest.fixture(scope="module")
def walk(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """A user with the release and the inventory that the page asks for."""
    folder = tmp_path_factory.mktemp("user")
    line = shell(cluster, folder)
    line(f"ansible-galaxy collection install {release(folder)}")
    (folder / "inventory/group_vars").mkdir(parents=True)
    (folder / "inventory/hosts.yml").write_text(cluster.inventory.read_text())
    setting = next(block.body for block in blocks(PAGE) if block.kind == "yaml" and "gpushare_extender_port" in block.body)
    (folder / "inventory/group_vars/all.yml").write_text(setting)
    over, show, back, retire = (step.command for step in steps(PAGE, TEST))
    return Walk(line, over, show, back, retire, containers(cluster, SHARES), state(cluster))


def test_the_original_serves_its_pods(cluster: Cluster, walk: Walk) -> None:
    """That the fixture is a cluster of the original at all."""
    assert len(walk.containers) == len(SHARES)
    assert {len(one["devices"]) for one in walk.containers.values()} == {1}
    assert {one["restarts"] for one in walk.containers.values()} == {0}
    for one in cluster.pods():
        assert annotations_of(one)[ASSIGNED] == "true"
        assert ALLOCATION not in annotations_of(one)


@pytest.fixture
def arriving(cluster: Cluster) -> Iterator[Callable[[], list[str]]]:
    """Pods of one unit that are made while a playbook runs, one after another; called at the end, their names."""
    names: list[str] = []
    over = threading.Event()

    def make() -> None:
        while not over.wait(40) and len(names) < MEANWHILE:
            name = f"meanwhile-{len(names)}"
            cluster.create(share(name, 1))
            names.append(name)

    thread = threading.Thread(target=make)
    thread.start()

    def end() -> list[str]:
        over.set()
        thread.join(60)
        return names

    yield end
    end()


def test_it_is_taken_over_and_no_pod_notices(cluster: Cluster, walk: Walk) -> None:
    walk.run(walk.take_over)
    assert containers(cluster, SHARES) == walk.containers
    assert set(theirs(cluster)) == {CONTROL_PLANE}
    assert [node for node in NODES if cluster.node(node)["spec"].get("unschedulable")] == []
    # The second GPU of gpu2 is larger than the first, which the original does not see.
    cluster.until("both nodes are served", lambda: offered(cluster) == {"gpu1": ("64", "2"), "gpu2": ("72", "2")}, 60)
    cluster.until("annotations name the GPUs that containers have", lambda: wrong_annotations(cluster) == [], 60)
    assert ledger_of(cluster, walk.line("kubectl gpushare -A -o json")) == []
    assert {line.split()[1] for line in walk.line(walk.show).splitlines()[1:] if line.strip()} >= set(SHARES)


def test_a_new_pod_has_its_gpu_beside_them(cluster: Cluster, walk: Walk) -> None:
    for node in NODES:
        cluster.create(share(f"new-{node}", 2, node))
    pods = cluster.until_running(*(f"new-{node}" for node in NODES))
    assert check_devices(cluster, pods) == []
    assert all(ALLOCATION in annotations_of(one) for one in pods)
    assert ledger_of(cluster, walk.line("kubectl gpushare -A -o json")) == []
    cluster.delete(*(f"new-{node}" for node in NODES))


def test_a_container_of_theirs_starts_again_with_its_gpu(cluster: Cluster, walk: Walk) -> None:
    name = "one-00"
    identity = walk.containers[name]["id"].partition("://")[2]
    cluster.on(walk.containers[name]["node"], "ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", identity)

    def started() -> bool:
        found = cluster.pod(name)
        return is_running(found) and found["status"]["containerStatuses"][0]["restartCount"] == 1

    cluster.until(f"{name} has started again", started, 90, name)
    assert containers(cluster, [name])[name]["devices"] == walk.containers[name]["devices"]


def test_a_second_run_changes_nothing(cluster: Cluster, walk: Walk) -> None:
    again = walk.run(walk.take_over)
    assert set(again.values()) == {QUIET}, again


def test_uninstall_gives_the_original_back(cluster: Cluster, walk: Walk) -> None:
    now = containers(cluster, SHARES)
    walk.run(walk.give_back)
    assert containers(cluster, SHARES) == now
    cluster.until("the original serves both nodes", lambda: offered(cluster) == ORIGINALS and len(theirs(cluster)) == 3, 120)
    assert state(cluster) == walk.before
    for node in NODES:
        cluster.create(share(f"back-{node}", 1, node))
    for one in cluster.until_running(*(f"back-{node}" for node in NODES)):
        assert annotations_of(one)[ASSIGNED] == "true"
        assert ALLOCATION not in annotations_of(one)
    assert wrong_annotations(cluster) == []
    cluster.delete(*(f"back-{node}" for node in NODES))


def test_a_second_uninstall_leaves_the_original_alone(cluster: Cluster, walk: Walk) -> None:
    again = walk.run(walk.give_back)
    assert set(again.values()) == {QUIET}, again
    assert state(cluster) == walk.before
    assert offered(cluster) == ORIGINALS


def test_it_is_taken_over_again_and_the_originals_parts_go_last(cluster: Cluster, walk: Walk, arriving: Callable[[], list[str]]) -> None:
    now = containers(cluster, SHARES)
    walk.run(walk.retire)
    assert containers(cluster, SHARES) == now
    assert theirs(cluster) == {}
    listed = json.loads(cluster.kubectl("get", "daemonsets,deployments,services,serviceaccounts", "-n", SYSTEM, "-o", "json"))["items"]
    assert {EXTENDER, ORIGINAL_DAEMON_SET, "gpushare-device-plugin"} & {one["metadata"]["name"] for one in listed} == set()
    roles = json.loads(cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "json"))["items"]
    assert {EXTENDER, "gpushare-device-plugin"} & {one["metadata"]["name"] for one in roles} == set()
    saved = yaml.safe_load(cluster.on(CONTROL_PLANE, "cat", COPY))["items"]
    assert {(one["kind"], one["metadata"]["name"]) for one in saved} == {(one["kind"], one["metadata"]["name"]) for one in original()}
    # Some of them the original's extender has placed, others ours.
    names = arriving()
    assert names
    cluster.until_running(*names, seconds=120)
    assert wrong_annotations(cluster) == []
    assert ledger_of(cluster, walk.line("kubectl gpushare -A -o json")) == []


def test_from_then_on_it_is_an_installation_as_any_other(cluster: Cluster, walk: Walk) -> None:
    again = walk.run("ansible-playbook -i inventory gpushare.kubernetes.site")
    assert {failed for _changed, failed in again.values()} == {0}
    assert {changed for changed, _failed in again.values()} == {0}, again
    assert containers(cluster, ["two-0"])["two-0"] == walk.containers["two-0"]
