# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""uninstall.yml over ssh on a cluster of its own: afterwards hosts, cluster and nodes are as they would be without the collection.

GPUSHARE_UNINSTALL_LAB=NAME uses a lab that is up and has never been installed on, and leaves it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.api import Json
from e2e.cluster import LAB, REPOSITORY, Cluster, CommandError, run
from quality.results import Results, environment

HERE = Path(__file__).parent
NODE = "gpu1"
PLANE = "cp1"
SCHEDULER = "/etc/kubernetes/gpushare/kube-scheduler.yaml"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONTAINERD = "/etc/containerd/config.toml"
RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count")
SCRATCH = "/root/gpushare-test"
# What changes by itself on a node of a living cluster, and why; everything else below the watched folders must be the same.
VOLATILE = {
    "/var/lib/kubelet/pods": "volumes and state of the pods that happen to run; kubelet's",
    "/var/lib/kubelet/actuated_pods_state": "what kubelet has given to the pods that happen to run",
    "/var/lib/kubelet/allocated_pods_state": "the same",
    "/var/lib/kubelet/dra_manager_state": "the same, written with the first pod that kubelet admits",
    "/var/lib/kubelet/image_manager": "which images kubelet has pulled",
    "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": "kubelet writes it at each pod with a device; looked at by itself below",
    "/var/lib/containerd": "containers and images; containerd's",
    "/var/lib/cni": "addresses of the pods that happen to run; the network plugin's",
    "/var/lib/etcd": "the database of the cluster; its objects are compared by the API",
    "/var/lib/systemd/catalog": "systemd's own index of messages",
    "/var/lib/systemd/random-seed": "systemd writes it at boot and shutdown",
    "/var/lib/systemd/timers": "when the distribution's timers last ran; ours is looked at by itself below",
    "/var/lib/apt": "lists of packages, which the distribution's timer fetches",
    "/var/lib/logrotate": "when the distribution's timer last ran",
    "/var/lib/private": "an empty folder that systemd makes for the first service with a user of its own and that is any service's then",
}
# Of these only that they are there: the device plugin writes its own record whenever a pod takes or leaves units.
LIVING = ("/var/lib/gpushare-device-plugin/held.json",)
KINDS = (
    "serviceaccounts,secrets,configmaps,roles,rolebindings,clusterroles,clusterrolebindings,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,daemonsets,deployments"
)


class Site:
    """The cluster, with the playbooks run as a user runs them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder

    def command(self, playbook: str, *arguments: str) -> list[str]:
        program = Path(sys.executable).with_name("ansible-playbook")
        return [str(program), "-i", str(self.cluster.inventory), playbook, *arguments]

    def environment(self) -> dict[str, str]:
        own = {"ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
        return {**os.environ, **own, **environment(self._folder / "results.jsonl")}

    def play(self, playbook: str, *arguments: str) -> tuple[Results, str]:
        output = run(self.command(playbook, *arguments), seconds=900, environment=self.environment())
        return Results.read(self._folder / "results.jsonl"), output

    def install(self) -> None:
        self.play("site.yml")

    def uninstall(self, *arguments: str, wait: int = 0) -> tuple[Results, str]:
        return self.play("playbooks/uninstall.yml", "-e", f"gpushare_uninstall_wait={wait}", *arguments)

    def refused(self, *arguments: str) -> str:
        """Why uninstall.yml did not begin."""
        with pytest.raises(CommandError) as error:
            self.uninstall(*arguments)
        return str(error.value)

    def ship(self, node: str) -> None:
        """The core of the module to a node, without Ansible."""
        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            utils = "plugins/module_utils"
            archive.add(REPOSITORY / utils, f"ansible_collections/gpushare/kubernetes/{utils}", filter=without_caches)
            archive.add(HERE / "removed_at.py", "removed_at.py")
        command = [sys.executable, str(LAB), "--name", self.cluster.name, "exec", node]
        unpack = f"mkdir -p {SCRATCH} && tar -x -C {SCRATCH}"
        subprocess.run([*command, "sh", "-c", unpack], input=buffer.getvalue(), check=True, timeout=60, capture_output=True)

    def remove_killed_at_each_step(self, node: str, half: str) -> list[str]:
        """Run that half again and again, each time killed after its first step. The steps."""
        steps: list[str] = []
        while True:
            # The shell's last word is that the process was killed.
            lines = self.cluster.on(node, "sh", "-c", f"cd {SCRATCH} && python3 removed_at.py {half} 2>&1; true").splitlines()
            if lines == ["nothing left"]:
                return steps
            said = lines[0]
            assert lines == [said, "Killed"], lines
            assert said not in steps, f"done twice: {said}"
            steps.append(said)

    def files(self) -> dict[str, Any]:
        """Every watched path of every host."""
        script = (HERE / "look_at_tree.py").read_text()
        found = {}
        for host in (PLANE, NODE):
            seen = json.loads(self.cluster.on(host, "python3", "-c", script, *VOLATILE))
            found |= {f"{host}:{path}": state[:3] if path in LIVING else state for path, state in seen.items()}
        return found

    def units(self) -> dict[str, Any]:
        """What systemd knows on every host of units that could be ours, and what has failed."""
        found = {}
        for host in (PLANE, NODE):
            ours = self.cluster.on(host, "systemctl", "list-units", "--all", "--no-legend", "--plain", "*gpushare-[!l]*")
            failed = self.cluster.on(host, "systemctl", "list-units", "--failed", "--no-legend", "--plain")
            stamps = self.cluster.on(host, "sh", "-c", "ls /var/lib/systemd/timers /var/lib/private 2>/dev/null | grep gpushare || true")
            found[f"{host}: units, failures and stamps"] = [ours.split(), failed.split(), stamps.split()]
        return found

    def objects(self, resources: bool = True) -> dict[str, Any]:
        """What the cluster has: objects by name, kubeadm's configuration by content, nodes by all but their heartbeat."""
        listed = json.loads(self.cluster.kubectl("get", KINDS, "--all-namespaces", "-o", "json"))["items"]
        found: dict[str, Any] = {f"{i['kind']} {i['metadata'].get('namespace', '')}/{i['metadata']['name']}": "there" for i in listed}
        found["kubeadm-config"] = next(i["data"] for i in listed if i["metadata"]["name"] == "kubeadm-config")
        for node in self.cluster.nodes():
            found[f"node {node['metadata']['name']}"] = node_state(node, resources)
        return found

    def state(self, resources: bool = True) -> dict[str, Any]:
        return self.files() | self.units() | self.objects(resources)

    def write(self, node: str, path: str, text: str) -> None:
        self.cluster.lab("exec", node, "sh", "-c", f"cat > {path}", stdin=text)

    def read(self, node: str, path: str) -> str:
        return self.cluster.on(node, "cat", path)

    def schedules(self, name: str) -> None:
        """A pod that asks for no GPU is placed and runs."""
        self.cluster.create(pod(name, {}))
        self.cluster.until_running(name)
        self.cluster.delete(name)


def node_state(node: Json, resources: bool) -> list[Any]:
    """resources: with ours; they stay in the status until kubelet lets go of them."""
    status = node["status"]
    amounts = [{k: v for k, v in status[part].items() if resources or k not in RESOURCES} for part in ("capacity", "allocatable")]
    return [node["metadata"]["labels"], node["metadata"]["annotations"], node["spec"], *amounts]


def pod(name: str, limits: Json) -> Json:
    container = {
        "name": "main",
        "image": "localhost/gpushare-lab/test:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "1000000"],
        "resources": {"limits": limits},
    }
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    pairs = ((name, before.get(name, "absent"), after.get(name, "absent")) for name in names)
    return [f"{name}: {one} → {other}" for name, one, other in pairs if one != other]


def without(state: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The state without things of these names, which the test has declared different."""
    assert set(names) <= set(state), f"nothing is called {set(names) - set(state)}"
    return {name: value for name, value in state.items() if name not in names}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    borrowed = os.environ.get("GPUSHARE_UNINSTALL_LAB")
    cluster = Cluster(borrowed or "uninstall")
    try:
        if not borrowed:
            cluster.lab("up", "--no-nvidia-runtime", "--gpu-nodes", "1", seconds=1800)
        yield cluster
    finally:
        if not borrowed:
            cluster.lab("down", seconds=300)


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path)


def test_afterwards_everything_is_as_it_was(site: Site) -> None:
    cluster = site.cluster
    untouched = site.state()
    assert [name for name in untouched if "gpushare" in name and "gpushare-lab" not in name] == []

    results, output = site.uninstall()
    assert results.changes() == {}, output
    assert differences(untouched, site.state()) == [], "uninstalling nothing has written"

    site.install()
    installed = site.state()
    changed = differences(untouched, installed)
    assert len(changed) > 20, changed
    cluster.create(pod("share", {"aliyun.com/gpu-mem": "2"}))
    cluster.until_running("share")
    cluster.create(pod("witness", {}))
    cluster.until_running("witness")
    assert "default/share on gpu1" in site.refused()
    assert differences(installed, site.state()) == [], "a refused run has written"
    cluster.delete("share")
    witness = cluster.pod("witness")["status"]["containerStatuses"][0]["containerID"]

    predicted, shown = site.uninstall("--check", "--diff")
    assert differences(installed, site.state()) == [], "check mode has written"
    assert f"--- before: {CONTAINERD}" in shown
    done, output = site.uninstall(wait=400)
    assert done.changes() == predicted.changes(), output
    assert differences(untouched, site.state()) == [], output
    assert registered(site) == []

    again, output = site.uninstall()
    assert again.changes() == {}, output
    assert cluster.pod("witness")["status"]["containerStatuses"][0]["containerID"] == witness, "a pod without GPU was disturbed"
    cluster.delete("witness")
    site.schedules("afterwards")

    # What kubelet has let go of does not come back with a new kubelet, nor with its next report.
    before = heartbeat(cluster)
    cluster.on(NODE, "systemctl", "restart", "kubelet")
    cluster.until("kubelet has reported again", lambda: heartbeat(cluster) != before, 400)
    assert differences(untouched, site.state()) == []


def heartbeat(cluster: Cluster) -> str:
    conditions = cluster.node(NODE)["status"]["conditions"]
    return str(next(c["lastHeartbeatTime"] for c in conditions if c["type"] == "Ready"))


def registered(site: Site) -> list[str]:
    """Our resources in kubelet's own list of device plugins."""
    text = site.read(NODE, "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
    return [resource for resource in RESOURCES if resource in json.loads(text)["Data"]["RegisteredDevices"]]


def test_a_host_that_cannot_be_reached_stops_it_and_without_that_host_its_accounts_stay(site: Site, tmp_path: Path) -> None:
    untouched = site.state(resources=False)
    site.install()
    installed = site.state()
    away = tmp_path / "away.yml"
    away.write_text(yaml.safe_dump({"all": {"hosts": {NODE: {"ansible_host": "127.0.0.1", "ansible_port": 1}}}}))
    assert f"{NODE} cannot be reached (or looked at: see above), so nothing was changed on any host" in site.refused("-i", str(away))
    assert differences(installed, site.state()) == []

    _results, output = site.uninstall("--limit", f"all:!{NODE}")
    assert "other hosts still use it" in output
    after = site.state()
    of_the_node = {name: state for name, state in installed.items() if name.startswith((f"{NODE}:", f"node {NODE}"))}
    assert differences(of_the_node, {name: state for name, state in after.items() if name in of_the_node}) == []
    accounts = {name for name in installed if "gpushare-device-plugin" in name and not name.startswith(f"{PLANE}:")}
    assert accounts <= set(after), "an account is gone that is in use"
    assert [line for line in differences(untouched, after) if line.startswith(f"{PLANE}:")] == []
    site.schedules("while-one-is-away")

    site.uninstall()
    assert differences(untouched, site.state(resources=False)) == []


def test_killed_at_each_step_the_next_run_finishes_and_pods_are_scheduled_meanwhile(site: Site) -> None:
    cluster = site.cluster
    untouched = site.state(resources=False)
    site.install()
    site.ship(NODE)
    steps = site.remove_killed_at_each_step(NODE, "services")
    assert steps[0] == "stopped gpushare-device-plugin.service"
    assert "removed /etc/systemd/system/gpushare-device-plugin.service" in steps
    site.schedules("plugin-half-removed")

    play = subprocess.Popen(
        site.command("playbooks/uninstall.yml"),
        cwd=REPOSITORY,
        env=site.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        cluster.until("the scheduler has lost the extender", lambda: "gpushare" not in site.read(PLANE, MANIFEST), 180)
    finally:
        os.killpg(play.pid, signal.SIGKILL)
        play.wait(30)
    site.schedules("scheduler-just-changed")
    site.ship(PLANE)
    steps = site.remove_killed_at_each_step(PLANE, "services")
    assert steps[:2] == ["stopped gpushare-pki.timer", "stopped gpushare-extender.service"]
    assert "removed /etc/gpushare" in steps
    site.schedules("extender-half-removed")

    site.uninstall()
    assert differences(untouched, site.state(resources=False)) == []
    results, output = site.uninstall()
    assert results.changes() == {}, output


def test_what_an_administrator_has_changed_meanwhile_stays_and_is_reported(site: Site) -> None:
    untouched = site.state(resources=False)
    manifest, containerd = site.read(PLANE, MANIFEST), site.read(NODE, CONTAINERD)
    site.install()
    site.write(PLANE, SCHEDULER, site.read(PLANE, SCHEDULER) + "parallelism: 8\n")
    edit = (
        "  tolerate_missing_hugetlb_controller = true\n",
        "  tolerate_missing_hugetlb_controller = true\n  max_container_log_line_size = 32768\n",
    )
    site.write(NODE, CONTAINERD, site.read(NODE, CONTAINERD).replace(*edit))
    unit = "/etc/systemd/system/gpushare-device-plugin.service"
    site.write(NODE, unit, site.read(NODE, unit) + "# edited\n")
    site.write(NODE, "/etc/gpushare/notes.txt", "mine\n")
    for path in (CONTAINERD, unit, SCHEDULER):
        assert any(path in line and "changed by others since" in line for line in site.play("playbooks/report.yml")[1].splitlines()), path

    _results, output = site.uninstall()
    for path in (CONTAINERD, unit, SCHEDULER, "/etc/gpushare"):
        assert path in output
    assert "notes.txt" in output
    assert site.read(NODE, CONTAINERD) == containerd.replace(*edit)
    config = yaml.safe_load(site.read(PLANE, SCHEDULER))
    assert config["parallelism"] == 8
    assert "extenders" not in config
    assert "gpushare.kubernetes/" not in site.read(PLANE, MANIFEST)
    assert site.read(PLANE, MANIFEST) != manifest  # it goes on naming the configuration, which now is the administrator's
    declared = [f"{NODE}:{CONTAINERD}", f"{PLANE}:{MANIFEST}", "kubeadm-config"]
    after = {
        name: state
        for name, state in site.state(resources=False).items()
        if name
        not in (f"{PLANE}:/etc/kubernetes/gpushare", f"{PLANE}:{SCHEDULER}", f"{NODE}:/etc/gpushare", f"{NODE}:/etc/gpushare/notes.txt")
    }
    assert differences(without(untouched, *declared), without(after, *declared)) == []
    site.schedules("afterwards-with-edits")
