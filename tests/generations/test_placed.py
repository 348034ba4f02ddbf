# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The real kube-scheduler of each generation places pods through our extender, as the files say that the role writes for it.

Real etcd, kube-apiserver and extender as plain processes; nodes without a kubelet. The API server is that of the lab: for an old one no
release of the collection is made, and a scheduler needs of it only objects that have not changed since.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import openshift, scheduler_config
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found, read_manifest

from bench.scheduling.control_plane import ControlPlane, Process, free_port
from bench.scheduling.extender import Extender
from bench.scheduling.objects import GPUS, PODS, UNITS, make_nodes
from generations.programs import VERSIONS, kube_scheduler, release_of
from gpushare_lab import components
from gpushare_lab.prepare import the_cache
from gpushare_lab.process import run, until
from gpushare_runtime.core.protocol import ANNOTATION_ALLOCATION, ANNOTATION_INDEX, RESOURCE_MEMORY
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kube.credentials import load
from others.server import crd
from unit.fakes.plugins.scheduler.generations import MANIFEST_PATH, STATES, manifest
from unit.fakes.plugins.scheduler.manifests import RESOURCES
from unit.fakes.plugins.scheduler.planned import done, plan, state

LEASE = "kube-system/kube-scheduler"
KUBECONFIG, OPEN_PORT = "/etc/kubernetes/scheduler.conf", "127.0.0.1:10251"
#: An API server of today no longer has what this gate would watch.
GATES = {"1.22": ["--feature-gates=CSIStorageCapacity=false"]}
NODES, NUMBER = 2, 12
_SECONDS = 120.0
# Of those without extenders of others, which nobody answers for here.
PLACED = [
    name
    for name in ("seed 000 with 1.22", *(f"kubeadm {release}" for release in VERSIONS))
    if release_of(STATES[name][0][MANIFEST_PATH].partition("kube-scheduler:v")[2]) in VERSIONS
]


class Cluster:
    """A control plane with nodes and our extender. entry: how the scheduler is to call it."""

    def __init__(self, plane: ControlPlane, extender: Extender, client: KubeClient) -> None:
        self.plane, self.extender, self.client = plane, extender, client
        tls = str(plane.folder / "pki/scheduler")
        self.entry = scheduler_config.ExtenderEntry(str(extender.entry["urlPrefix"]), 1, "1s", RESOURCES, tls)

    @contextmanager
    def scheduler(self, found: Found, release: str) -> Iterator[Process]:
        """kube-scheduler of that release with the command line of the manifest, and the files that it names."""
        folder = self.plane.folder / release
        folder.mkdir()
        places = {KUBECONFIG: str(self.plane.kubeconfig), OPEN_PORT: f"127.0.0.1:{free_port()}"}
        for number, (path, text) in enumerate(sorted(found.files.items())):
            if text is not None and path != MANIFEST_PATH:
                (folder / str(number)).write_text(_moved(text, places))
                places[path] = str(folder / str(number))
        words = read_manifest(found.files[MANIFEST_PATH] or "").words
        assert words[0] == "kube-scheduler"
        command = [kube_scheduler(release), *(_moved(word, places) for word in words[1:]), "--secure-port=0", *GATES.get(release, [])]
        process = Process(f"kube-scheduler-{release}", command, self.plane.folder)
        try:
            # Before, it answers with errors, after which kube-schedulers of some releases try again only when something happens.
            until("the extender knows its leader", _SECONDS, lambda: not self.extender.health()["leadership"], why_not=process.ended)
            yield process
        finally:
            process.stop()
        until("the extender sees that it leads no more", _SECONDS, lambda: self.extender.health()["leadership"])

    async def make(self, name: str, units: int) -> None:
        container = {"name": "main", "image": "none", "resources": {"limits": {RESOURCE_MEMORY: str(units)}}}
        spec = {"automountServiceAccountToken": False, "containers": [container]}
        await self.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    async def pods(self) -> dict[str, dict[str, Any]]:
        return {one["metadata"]["name"]: one for one in (await self.client.get(PODS))["items"]}

    async def places(self, prefix: str, process: Process) -> None:
        """Pods that fit are bound with a GPU, one that fits no GPU is not, though its node has the sum."""
        calls = int(self.extender.health()["filter_calls"])
        await self.make(f"{prefix}-large", UNITS + 1)
        names = [f"{prefix}-{number}" for number in range(NUMBER)]
        for number, name in enumerate(names):
            await self.make(name, 1 + number % UNITS)
        deadline = asyncio.get_running_loop().time() + _SECONDS
        while True:
            pods = await self.pods()
            waiting = [name for name in names if not pods[name]["spec"].get("nodeName")]
            conditions = pods[f"{prefix}-large"].get("status", {}).get("conditions") or []
            if not waiting and conditions and conditions[0].get("reason") == "Unschedulable":
                break
            assert process.ended() + self.extender.process.ended() == ""
            late = asyncio.get_running_loop().time() > deadline
            assert not late, f"not bound: {waiting}; {conditions}; {process.log.read_text()[-3000:]}"
            await asyncio.sleep(0.3)
        assert not pods[f"{prefix}-large"]["spec"].get("nodeName")
        assert f"{UNITS + 1}" in conditions[0]["message"], conditions
        assert int(self.extender.health()["filter_calls"]) >= calls + NUMBER
        assert over_booked(pods) == []
        assert [name for name in names if ANNOTATION_ALLOCATION not in pods[name]["metadata"].get("annotations", {})] == []
        await self.client.delete(f"{PODS}/{prefix}-large", {"gracePeriodSeconds": 0})


def over_booked(pods: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """GPUs with more units than they have, by the annotations of the bound pods."""
    found: Counter[tuple[str, str]] = Counter()
    for one in pods.values():
        if one["spec"].get("nodeName"):
            units = int(one["spec"]["containers"][0]["resources"]["limits"][RESOURCE_MEMORY])
            found[one["spec"]["nodeName"], one["metadata"]["annotations"][ANNOTATION_INDEX]] += units
    assert all(0 <= int(gpu) < GPUS for _node, gpu in found)
    return [f"{node} {gpu}: {units}" for (node, gpu), units in found.items() if units > UNITS]


def _moved(text: str, places: Mapping[str, str]) -> str:
    for path, place in places.items():
        text = text.replace(path, place)
    return text


async def _with_cluster(folder: Path, body: Any) -> None:
    plane = ControlPlane(folder, components.KUBERNETES, with_kwok=False)
    try:
        extender = Extender(plane, "--lease", LEASE)
        try:
            async with KubeClient(load(str(plane.kubeconfig)), user_agent="generations") as client:
                await make_nodes(client, NODES)
                await extender.ready(_SECONDS)
                await body(Cluster(plane, extender, client))
        finally:
            extender.process.stop()
    finally:
        plane.stop()


@pytest.mark.timeout(3600)  # where programs are to be built
@pytest.mark.parametrize("name", PLACED)
def test_pods_are_placed_through_our_extender(tmp_path: Path, name: str) -> None:
    release = release_of(STATES[name][0][MANIFEST_PATH].partition("kube-scheduler:v")[2])
    kube_scheduler(release)

    async def body(cluster: Cluster) -> None:
        before = state(name)
        made = plan(before, extender=cluster.entry)
        assert made.lease == LEASE
        with cluster.scheduler(done(before, made), release) as process:
            await cluster.places("pod", process)

    asyncio.run(_with_cluster(tmp_path, body))


@pytest.mark.timeout(3600)
def test_a_host_is_migrated_from_a_policy_to_a_configuration_and_its_pods_stay(tmp_path: Path) -> None:
    """As its administrator does it: the flag goes from manifest and ClusterConfiguration, then kubeadm brings the next releases."""

    async def body(cluster: Cluster) -> None:
        before = state("seed 000 with 1.22")
        found = done(before, plan(before, extender=cluster.entry))
        with cluster.scheduler(found, "1.22") as process:
            await cluster.places("policy", process)
        had = {name: one["metadata"]["annotations"] for name, one in (await cluster.pods()).items()}
        moved = replace(found, files={**found.files, MANIFEST_PATH: manifest(VERSIONS["1.24"])})
        made = plan(moved, extender=cluster.entry)
        assert "policy-config-file" not in str(made.for_module["cluster"]["content"])
        with cluster.scheduler(done(moved, made), "1.24") as process:
            await cluster.places("configuration", process)
        now = {name: one["metadata"]["annotations"] for name, one in (await cluster.pods()).items()}
        assert {name: now[name] for name in had} == had

    asyncio.run(_with_cluster(tmp_path, body))


# OpenShift up to 4.9. As the operator of its scheduler does it, kube-scheduler reads the ConfigMap by a flag.

OPENSHIFT, RELEASE = "v1.22.17", "1.22"
_NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
_SPEC = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"policy": _NAME}}
SCHEDULERS = crd("config.openshift.io", "v1", "Scheduler", "schedulers", {"spec": _SPEC})
SCHEDULER = {
    "apiVersion": "config.openshift.io/v1",
    "kind": "Scheduler",
    "metadata": {"name": "cluster"},
    "spec": {"mastersSchedulable": False, "policy": {"name": ""}},
}
#: With predicates and priorities of an administrator, which stay.
POLICY = (
    '{"kind": "Policy", "apiVersion": "v1", "predicates": [{"name": "GeneralPredicates"}, {"name": "PodToleratesNodeTaints"}], '
    '"priorities": [{"name": "LeastRequestedPriority", "weight": 1}]}\n'
)


def kubectl_of(cluster: Cluster) -> Kubectl:
    program = components.kubernetes(the_cache(), components.KUBERNETES) / "kubectl"

    def call(argv: list[str], data: str | None) -> tuple[int, str, str]:
        done = run(argv, stdin=data or "", check=False)
        return done.returncode, done.stdout, done.stderr

    return Kubectl(call, str(program), str(cluster.plane.kubeconfig))


@contextmanager
def by_config_map(cluster: Cluster) -> Iterator[Process]:
    flags = ["--policy-configmap=scheduler-policy", "--policy-configmap-namespace=openshift-config"]
    # It ends where it cannot renew its Lease in time, on a machine that is busy otherwise.
    flags += ["--leader-elect=true", "--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=40s"]
    address = ["--port=0", "--secure-port=0", f"--kubeconfig={cluster.plane.kubeconfig}"]
    process = Process("kube-scheduler-openshift", [kube_scheduler(RELEASE), *flags, *address, *GATES[RELEASE]], cluster.plane.folder)
    try:
        until("the extender knows its leader", _SECONDS, lambda: not cluster.extender.health()["leadership"], why_not=process.ended)
        yield process
    finally:
        process.stop()


def objects(kubectl: Kubectl) -> list[object]:
    """Both, without what the server counts."""
    found = openshift.read(kubectl)
    config_map = found.config_map
    return [found.scheduler["spec"], config_map and config_map["data"], config_map and config_map["metadata"].get("annotations", {})]


@pytest.mark.timeout(3600)  # where programs are to be built
@pytest.mark.parametrize("policy", [None, POLICY], ids=["none before", "of an administrator"])
def test_kube_scheduler_reads_the_policy_and_both_objects_are_restored(tmp_path: Path, policy: str | None) -> None:
    kube_scheduler(RELEASE)

    async def body(cluster: Cluster) -> None:
        kubectl = kubectl_of(cluster)
        made = [SCHEDULERS, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": openshift.NAMESPACE}}]
        for one in made:
            kubectl.text(["create", "-f", "-"], json.dumps(one))
        kubectl.text(["wait", "--for=condition=Established", "--timeout=60s", f"crd/{SCHEDULERS['metadata']['name']}"])
        kubectl.text(["create", "-f", "-"], json.dumps(SCHEDULER))
        if policy is not None:
            metadata = {"name": openshift.NAME, "namespace": openshift.NAMESPACE}
            config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"policy.cfg": policy}}
            kubectl.text(["create", "-f", "-"], json.dumps(config_map))
        before = objects(kubectl)

        found = replace(openshift.read(kubectl), version=OPENSHIFT)
        openshift.apply(kubectl, openshift.present(found, cluster.entry))
        with by_config_map(cluster) as process:
            await cluster.places("policy", process)
        again = replace(openshift.read(kubectl), version=OPENSHIFT)
        assert openshift.present(again, cluster.entry) == []
        assert again.named == openshift.NAME

        steps, notes = openshift.absent(again, cluster.entry)
        openshift.apply(kubectl, steps)
        assert (objects(kubectl), notes) == (before, [])

    asyncio.run(_with_cluster(tmp_path, body))
