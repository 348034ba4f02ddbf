# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The table of docs/operate/visibility.md on a cluster whose GPU nodes have docker, containerd 1.6, 1.7 and 2.4: who sees which GPUs.

In each round every node has a device strategy of its own; site.yml brings the first. Then a CDI spec that systemd writes at boot.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from e2e.api import Json
from e2e.checks import check_devices
from e2e.cluster import MEMORY, Cluster, Container, RealGpu, allocation, annotations_of
from e2e.manifests import pod
from gpushare_lab import debian
from gpushare_lab.archive import Image, write_archive, write_layer
from gpushare_lab.images import test_image_members as members_of_the_test_image
from gpushare_lab.prepare import the_cache
from installer.driver_nodes import switched_on_again
from installer.site import Site
from installer.visibility import (
    ALL,
    ATTEMPTS,
    CDI,
    CDI_NVIDIA,
    ENVVAR,
    NAMED,
    NONE,
    PRESETS_ALL,
    VARIABLE,
    VOLUMES,
    Attempt,
    Setting,
    foreign,
    table,
)
from labs import FOUR_RUNTIMES, VISIBILITY, Labs

DOCKER, CONTAINERD_2, CONTAINERD_17, CONTAINERD_16 = FOUR_RUNTIMES
# docker and containerd 1.6 pass no CDI devices on.
ROUNDS = (
    {DOCKER: VOLUMES, CONTAINERD_16: VOLUMES, CONTAINERD_17: CDI, CONTAINERD_2: CDI},
    {DOCKER: ENVVAR, CONTAINERD_16: ENVVAR, CONTAINERD_17: CDI_NVIDIA, CONTAINERD_2: CDI_NVIDIA},
    {CONTAINERD_17: VOLUMES, CONTAINERD_2: VOLUMES},
    {CONTAINERD_17: ENVVAR, CONTAINERD_2: ENVVAR},
)
CONFIG = "/etc/nvidia-container-runtime/config.toml"
SPEC = "/var/run/cdi/nvidia.yaml"
# Opened by the kernel's own driver, and in no list of devices that every container may open, as the lab's GPUs are.
MAJOR, MINOR = 10, 229
CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}


@pytest.fixture(scope="module")
def cluster(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    found = labs.bare(VISIBILITY)
    archive = image_that_presets_the_variable(tmp_path_factory.mktemp("image"))
    for node, runtime in FOUR_RUNTIMES.items():
        load = ["docker", "load", "--quiet"] if runtime == "docker" else ["ctr", "-n", "k8s.io", "images", "import", "--no-unpack", "-"]
        argv = [*found.entering(node), *load]
        subprocess.run(argv, input=archive.read_bytes(), check=True, timeout=300, capture_output=True)
    found.kubectl("apply", "-f", "-", stdin=json.dumps(CLASS))
    return found


def image_that_presets_the_variable(folder: Path) -> Path:
    """The lab's test image, and the variable as images made from nvidia/cuda have it."""
    write_layer(folder / "layer", members_of_the_test_image(debian.root_file_system(the_cache())))
    variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", VARIABLE: "all"}
    write_archive(folder / "image.tar", [Image([PRESETS_ALL], folder / "layer", ["sleep", "infinity"], variables)])
    return folder / "image.tar"


def sh(cluster: Cluster, node: str, script: str) -> str:
    return cluster.on(node, "sh", "-ec", script, seconds=120)


def set_up(cluster: Cluster, folder: Path, settings: Mapping[str, Setting], playbook: str) -> None:
    """Each node has its strategy, and its device plugin has published that."""
    hosts = {node: {"gpushare_device_strategy": s.strategy, "gpushare_default_runtime": s.default_runtime} for node, s in settings.items()}
    (folder / "settings.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    arguments = ["-i", str(folder / "settings.json")]
    if playbook != "site.yml":
        arguments += ["--limit", ",".join(settings)]
    _results, output = Site(cluster, folder, tuple(FOUR_RUNTIMES)).play(playbook, *arguments)
    for node, setting in settings.items():
        ready = partial(has_strategy, cluster, node, setting.strategy)
        cluster.until(f"{node} has {setting.strategy}; the playbook printed\n{output}", ready, 120)


def has_strategy(cluster: Cluster, node: str, strategy: str) -> bool:
    """Whether the device plugin has published it, and kubelet has the units of both GPUs."""
    state = cluster.node(node)
    gpus = json.loads(annotations_of(state)["gpushare/gpus"])
    whole = len(gpus["gpus"]) == 2 and not any(gpu.get("unusable") for gpu in gpus["gpus"])
    return whole and gpus["strategy"] == strategy and state["status"]["allocatable"][MEMORY] == "32"


@contextmanager
def configured(cluster: Cluster, nodes: Mapping[str, object], settings: tuple[tuple[str, bool], ...]) -> Iterator[None]:
    """The toolkit's config.toml of the nodes with these lines; it is read at each start of a container."""
    if not settings:
        yield
        return
    commands = [f"sed -i '/^{key} *=/d' {CONFIG}; sed -i '1i {key} = {str(value).lower()}' {CONFIG}" for key, value in settings]
    for node in nodes:
        sh(cluster, node, f"cp -p {CONFIG} /run/config.toml; {'; '.join(commands)}")
    try:
        yield
    finally:
        for node in nodes:
            sh(cluster, node, f"cp -p /run/config.toml {CONFIG}")


def wrong(container: Container, attempt: Attempt, expected: str, own: RealGpu, other: RealGpu) -> list[str]:
    """How what a container has differs from what the table says."""
    allocated = [other if attempt.name == "other" else own] if attempt.allocated else []
    names = [f"nvidia{gpu.minor}" for gpu in allocated]
    seen = foreign(container.devices, names)
    wanted = {NONE: set(), NAMED: {f"nvidia{other.minor}"}, ALL: {f"nvidia{gpu.minor}" for gpu in (own, other)}}[expected]
    problems = [] if seen == wanted else [f"sees {sorted(seen)} of others, the table says {expected}"]
    if not set(names) <= set(container.devices):
        problems.append(f"does not have its own {names}")
    if expected == NONE and not allocated and container.devices:
        problems.append(f"asks for nothing and has {sorted(container.devices)}")
    return problems


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("number", range(len(ROUNDS)))
def test_each_container_sees_what_the_table_says(cluster: Cluster, tmp_path: Path, number: int) -> None:
    settings, page, problems = ROUNDS[number], table(), []
    set_up(cluster, tmp_path, settings, "tests/installer/visibility.yml" if number else "site.yml")
    gpus = {node: cluster.gpus(node) for node in settings}
    for wanted in dict.fromkeys(attempt.settings for attempt in ATTEMPTS):
        tries = {
            f"{attempt.name}-{node}": (attempt, node)
            for attempt in ATTEMPTS
            for node in settings
            if attempt.settings == wanted and FOUR_RUNTIMES[node] not in attempt.not_on
        }
        with configured(cluster, settings, wanted):
            for name, (attempt, node) in tries.items():
                cluster.create(attempt.make(name, node, *(gpu.uuid for gpu in gpus[node])))
            pods = cluster.until_running(*tries, seconds=600)
        found = cluster.containers(pods)
        assert len(found) == len(tries)
        for container in found:
            attempt, node = tries[container.pod["metadata"]["name"]]
            expected = attempt.expected(page, settings[node].column)
            problems += [f"{container}, {settings[node].column}: {one}" for one in wrong(container, attempt, expected, *gpus[node])]
        cluster.until("the pods are gone", lambda: not delete_all(cluster), 300)
        cluster.clear()
    assert problems == []
    see_a_gpu_by_a_volume_and_cannot_open_it(cluster, list(settings))


def delete_all(cluster: Cluster) -> int:
    """How many pods there are still."""
    cluster.api.delete("/api/v1/namespaces/default/pods")
    return len(cluster.pods())


@contextmanager
def guarded(cluster: Cluster, nodes: Sequence[str]) -> Iterator[dict[str, str]]:
    """Each node's second GPU can only be opened by who is allowed to, as all real ones. The paths of these GPUs."""
    paths = {node: f"/dev/nvidia{cluster.gpus(node)[1].minor}" for node in nodes}
    for node, path in paths.items():
        sh(cluster, node, f"rm {path}; mknod -m 666 {path} c {MAJOR} {MINOR}")
    try:
        yield paths
    finally:
        cluster.clear()
        for node, path in paths.items():
            sh(cluster, node, f"rm {path}; gpushare-lab-gpu refresh")


def see_a_gpu_by_a_volume_and_cannot_open_it(cluster: Cluster, nodes: Sequence[str]) -> None:
    """The device node of a GPU in a volume of the host: the device cgroup rejects who opens it, whatever the column."""
    (row,) = [cells for name, cells in table().items() if name.startswith("a pod with a hostPath volume on `/dev/nvidia")]
    assert set(row.values()) == {"the node, without access: the device cgroup rejects it"}
    with guarded(cluster, nodes) as paths:
        for node, path in paths.items():
            manifest, opening = pod(f"opens-{node}", node=node), f"(exec 3<{path}) 2>&1 && echo opened || echo rejected"
            container = manifest["spec"]["containers"][0]
            container["command"] = ["/bin/sh", "-c", f"ls {path}; {opening}; exec sleep 86400"]
            container["volumeMounts"] = [{"name": "gpu", "mountPath": path}]
            manifest["spec"]["volumes"] = [{"name": "gpu", "hostPath": {"path": path, "type": "CharDevice"}}]
            cluster.create(manifest)
            # Outside of containers it opens.
            assert sh(cluster, node, opening).split() == ["opened"]
        cluster.until_running(*(f"opens-{node}" for node in paths), seconds=300)
        for node, path in paths.items():
            there, *said = cluster.until(f"opens-{node} has tried it", partial(tried, cluster, f"opens-{node}"), 60)
            assert there == path
            assert "Operation not permitted" in said[0]
            assert said[1:] == ["rejected"]


def tried(cluster: Cluster, name: str) -> list[str]:
    """The three lines of its log; [] as long as it has fewer."""
    lines = cluster.log(name).splitlines()
    return lines if len(lines) >= 3 else []


@pytest.mark.timeout(2400)
def test_a_unit_of_systemd_writes_the_cdi_spec_at_boot_and_after_a_change_of_the_toolkit(cluster: Cluster, tmp_path: Path) -> None:
    """By our own units: the lab's toolkit is built from its Go module, and has none."""
    node, service = CONTAINERD_2, "gpushare-cdi-refresh.service"
    (tmp_path / "managed.yml").write_text(
        f"- hosts: {node}\n  gather_facts: false\n  become: true\n  tasks:\n    - gpushare.kubernetes.gpushare_toolkit: {{cdi: true}}\n"
    )
    site = Site(cluster, tmp_path, tuple(FOUR_RUNTIMES))
    sh(cluster, node, f"rm {SPEC}")
    site.play(str(tmp_path / "managed.yml"))
    assert "kind: nvidia.com/gpu" in sh(cluster, node, f"cat {SPEC}")
    again, output = site.play(str(tmp_path / "managed.yml"))
    assert again.changes() == {}, output
    set_up(cluster, tmp_path, {node: CDI}, "tests/installer/visibility.yml")
    gpus, boot = cluster.gpus(node), booted_at(cluster, node)

    # The lab makes GPUs, and a spec of its own, where a machine loads the driver.
    order = f"/etc/systemd/system/{service}.d/10-lab.conf"
    sh(cluster, node, f"mkdir -p $(dirname {order}); printf '[Unit]\\nAfter=gpushare-lab-boot.service\\n' > {order}")
    with switched_on_again(cluster, [node]) as rebooted:
        sh(cluster, node, "setsid sh -c 'sleep 1; exec systemctl reboot --force' > /dev/null 2>&1 &")
        cluster.until(f"{node} boots again", lambda: rebooted == [node] and booted_at(cluster, node) != boot, 600)
    written = cluster.until("the service has ended", lambda: number(cluster, node, service, "ExecMainExitTimestampMonotonic"), 300)
    assert sh(cluster, node, f"systemctl show -P Result {service}").strip() == "success"
    started = cluster.until("kubelet was started", lambda: number(cluster, node, "kubelet", "ExecMainStartTimestampMonotonic"), 300)
    assert written <= started, "kubelet was started before the spec was there"
    spec = sh(cluster, node, f"cat {SPEC}")
    # The lab's own is JSON.
    assert spec.startswith("---")
    assert [gpu.uuid in spec for gpu in gpus] == [True, True]

    cluster.until(f"{node} has its GPUs again", lambda: has_strategy(cluster, node, "cdi"), 300)
    cluster.create(pod("after-the-boot", memory=1, node=node))
    assert check_devices(cluster, cluster.until_running("after-the-boot", seconds=180)) == []
    cluster.clear()

    # What an upgrade of the toolkit, and one of the driver, change.
    program, modules = "/usr/bin/nvidia-ctk", "/lib/modules/$(uname -r)"
    for change in (f"cp -p {program} {program}.new; mv {program}.new {program}", f"mkdir -p {modules}; date > {modules}/modules.dep"):
        sh(cluster, node, f"rm {SPEC}; {change}")
        cluster.until(f"the spec is written anew after {change}", lambda: gpus[0].uuid in sh(cluster, node, f"cat {SPEC}"), 120)


MODEL = "gpushare.request/models"
LAYOUT = ",".join(["1g"] * 7)


@pytest.fixture
def mixed(cluster: Cluster) -> Iterator[str]:
    """A node with a GPU without MIG and one of seven instances."""
    node = CONTAINERD_2
    cluster.lab("gpu", node, "--gpus", "16+80", seconds=120)
    arrange(cluster, node, LAYOUT)
    yield node
    cluster.clear()
    cluster.lab("gpu", node, "--gpus", "2x16", seconds=120)


def arrange(cluster: Cluster, node: str, layout: str) -> None:
    """Give the second GPU of the node other instances, as an administrator does, and write the CDI spec again."""
    sh(cluster, node, f"python3 /usr/local/lib/gpushare-lab/gpus.py instances 1 {layout}; gpushare-lab-gpu refresh")


def published(cluster: Cluster, node: str) -> dict[str, Json]:
    """Its GPUs by UUID, as the device plugin has published them."""
    return {gpu["uuid"]: gpu for gpu in json.loads(annotations_of(cluster.node(node))["gpushare/gpus"])["gpus"]}


def instances(cluster: Cluster, node: str) -> dict[str, list[str]]:
    """UUID of each MIG instance that the lab has made to its device nodes."""
    gpus = json.loads(sh(cluster, node, "gpushare-lab-gpu show"))
    return {one["uuid"]: one["nodes"] for gpu in gpus for one in gpu["instances"]}


@pytest.mark.timeout(2400)
def test_ten_pods_on_a_mixed_node_see_exactly_their_instance(cluster: Cluster, mixed: str, tmp_path: Path) -> None:
    """site.yml with preflight and verify on such a node; pods alone and together on instances; a sick GPU; other instances."""
    set_up_mixed(cluster, mixed, tmp_path)
    made = instances(cluster, mixed)
    found = published(cluster, mixed)
    assert sorted(gpu["units"] for gpu in found.values()) == [9] * 7 + [16]
    # Not `caps`: the service has a /proc of its own (ProtectKernelTunables), without what the lab has mounted on the node's.
    assert {uuid for uuid in found if uuid.startswith("MIG-")} == set(made)
    # Six have an instance alone, two share the seventh, and two are on the GPU without MIG.
    wanted = {f"alone-{n}": (9, "MIG 1g.10gb") for n in range(6)} | {f"shared-{n}": (4, "1g.10gb") for n in range(2)}
    wanted |= {f"whole-{n}": (6, "T4") for n in range(2)}
    for name, (memory, model) in wanted.items():
        manifest = pod(name, memory=memory, node=mixed)
        manifest["metadata"]["annotations"] = {MODEL: model}
        cluster.create(manifest)
    pods = cluster.until_running(*wanted, seconds=300)
    by_index = {gpu["index"]: uuid for uuid, gpu in found.items()}
    has = {made["metadata"]["name"]: by_index[index] for made in pods for index in allocation(made)}
    assert len({has[f"alone-{n}"] for n in range(6)} | {has["shared-0"]}) == 7
    assert has["shared-0"] == has["shared-1"]
    own = {uuid: set(made.get(uuid, [f"nvidia{gpu['minor']}"])) for uuid, gpu in found.items()}
    for container in cluster.containers(pods):
        uuid = has[container.pod["metadata"]["name"]]
        assert foreign(container.devices, own[uuid]) == set(), container
        assert own[uuid] <= set(container.devices), container
    # What NVIDIA's own program says inside.
    for name, uuid in has.items():
        listed = cluster.kubectl("exec", name, "--", "nvidia-smi", "-L")
        assert [other for other in (*made, *found) if other in listed] == ([uuid, uuid] if uuid in made else [uuid]), listed
    # A node that verify has nothing to say about, with all these containers.
    cluster.playbook("-i", str(tmp_path / "settings.json"), "--limit", mixed, name="playbooks/verify.yml")

    # Who uses too much of an instance is told, and nobody else.
    greedy = cluster.pod("shared-0")
    uid = greedy["metadata"]["uid"]
    pid = sh(cluster, mixed, f"grep -l '{uid}\\|{uid.replace('-', '_')}' /proc/[0-9]*/cgroup | cut -d/ -f3").split()[0]
    sh(cluster, mixed, f"python3 /usr/local/lib/gpushare-lab/gpus.py instance_process {has['shared-0']} {pid} 5000 trainer")

    def exceeded(name: str) -> bool:
        return any(event["reason"] == "GPUShareMemoryExceeded" for event in cluster.events(name))

    cluster.until("the pod that uses too much of its instance has an Event", lambda: exceeded("shared-0"), 60)
    assert not any(exceeded(name) for name in wanted if name != "shared-0")

    # An error of the GPU is one of each of its instances.
    sh(cluster, mixed, "python3 /usr/local/lib/gpushare-lab/gpus.py lost 1")
    cluster.until(
        "all instances are unusable, the other GPU is not",
        lambda: {uuid for uuid, gpu in published(cluster, mixed).items() if gpu["health"] != "ok"} == set(made),
        60,
    )
    sh(cluster, mixed, "python3 /usr/local/lib/gpushare-lab/gpus.py back 1")
    cluster.clear()

    # The administrator makes others: they are other GPUs.
    arrange(cluster, mixed, "3g,4g")
    cluster.until("the new instances are published", lambda: healthy(cluster, mixed, (16, 39, 39)), 120)
    manifest = pod("large", memory=39, node=mixed)
    cluster.create(manifest)
    (container,) = cluster.containers(cluster.until_running("large", seconds=120))
    (index,) = allocation(container.pod)
    (uuid,) = (uuid for uuid, gpu in published(cluster, mixed).items() if gpu["index"] == index)
    assert foreign(container.devices, set(instances(cluster, mixed)[uuid])) == set()
    assert set(instances(cluster, mixed)[uuid]) <= set(container.devices)


def set_up_mixed(cluster: Cluster, node: str, folder: Path) -> None:
    hosts = {node: {"gpushare_device_strategy": "cdi"}}
    (folder / "settings.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    _results, output = Site(cluster, folder, tuple(FOUR_RUNTIMES)).play("site.yml", "-i", str(folder / "settings.json"))
    cluster.until(f"{node} has its instances; the playbook printed\n{output}", lambda: healthy(cluster, node, (9,) * 7 + (16,)), 120)


def healthy(cluster: Cluster, node: str, units: tuple[int, ...]) -> bool:
    """Whether it has published GPUs of these sizes, all well, and kubelet has their units."""
    found = published(cluster, node).values()
    well = sorted(gpu["units"] for gpu in found if gpu["health"] == "ok")
    return well == sorted(units) and cluster.node(node)["status"]["allocatable"][MEMORY] == str(sum(units))


def booted_at(cluster: Cluster, node: str) -> str:
    """When the systemd that runs was started."""
    return sh(cluster, node, "systemctl show -P UserspaceTimestampMonotonic")


def number(cluster: Cluster, node: str, unit: str, name: str) -> int:
    return int(sh(cluster, node, f"systemctl show -P {name} {unit}"))
