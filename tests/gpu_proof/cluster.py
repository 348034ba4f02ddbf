# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster of this machine alone, on its real GPU: site.yml sets it up, pods share the GPU, uninstall.yml leaves nothing.

    python -m gpu_proof.cluster pack FOLDER       fills the folder with the node, where there is a network
    python -m gpu_proof.cluster run FOLDER OUT    on the machine with the GPU, as root; OUT gets cluster.json and logs

The node is a Debian in namespaces of the machine; of the machine it has the kernel, the GPU and the driver's files.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpu_proof.findings import FAILED, Findings, write_atomically
from gpu_proof.one_node import ARCHIVE, BUNDLE, CONTROLLER, NODE, PROGRAMS, Failed, Node, pack, until
from gpu_proof.scrub import Scrubber
from gpushare_lab import components
from gpushare_runtime.core import protocol

_IMAGE: Final = "localhost/gpushare-lab/test:1"
# A program's context counts for its pod's units.
_CONTEXT_MIB: Final = 1024
_WAIT_SECONDS: Final = 120.0
_PLAY_SECONDS: Final = 900.0
_ANSWERS: Final = "srv/answers"
_METRICS: Final = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9440/metrics', timeout=5).read().decode())"
_KINDS: Final = "serviceaccounts,secrets,configmaps,roles,rolebindings,clusterroles,clusterrolebindings,validatingadmissionpolicies"
_PRINT_TREE: Final = (Path(__file__).parents[1] / "installer/print_file_tree.py").read_text()
# What changes by itself while a cluster runs; and what dpkg and apt note of packages that have come and gone.
_LIVING: Final = (
    *(f"/var/lib/{name}" for name in ("containerd", "cni", "etcd", "systemd", "private", "dpkg", "apt", "logrotate")),
    *(f"/var/lib/kubelet/{name}" for name in ("pods", "actuated_pods_state", "allocated_pods_state", "dra_manager_state", "image_manager")),
    *(f"/var/lib/kubelet/{name}" for name in ("device-plugins/kubelet_internal_checkpoint", "cpu_manager_state", "memory_manager_state")),
)
# A script of NVIDIA's package makes them, and none removes them.
_OF_NVIDIA: Final = ["/etc/nvidia-container-runtime", "/etc/nvidia-container-runtime/config.toml"]


def pod(name: str, units: int, number: int, resource: str = protocol.RESOURCE_MEMORY) -> dict[str, Any]:
    """One that holds almost all of its units."""
    held = max(units * 1024 - _CONTEXT_MIB, 64) if resource == protocol.RESOURCE_MEMORY else 2048
    container = {
        "name": "main",
        "image": _IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/programs/pod_client", str(held), str(number * 1000), f"/out/{name}.json"],
        "resources": {"limits": {resource: units}},
        "volumeMounts": [{"name": "programs", "mountPath": "/programs", "readOnly": True}, {"name": "out", "mountPath": "/out"}],
    }
    volumes = [{"name": which, "hostPath": {"path": f"/{path}"}} for which, path in (("programs", PROGRAMS), ("out", _ANSWERS))]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def recap(output: str) -> dict[str, int]:
    """The numbers of the one host, by name, at the end of what ansible-playbook has printed."""
    found = re.findall(rf"^{NODE} +: +(.*)$", output, re.MULTILINE)
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", found[-1])} if found else {}


class Cluster:
    """Of that node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.answers = node.root / _ANSWERS
        self.answers.mkdir()

    def up(self) -> None:
        """What an administrator has done before us."""
        for number in range(2):
            self.node.run("ctr", "-n", "k8s.io", "images", "import", "--no-unpack", f"/srv/images{number}.tar")
        self.node.run("kubeadm", "init", "--config=/srv/kubeadm.yaml", seconds=150, log="kubeadm.log")
        ready = "-o=jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        until("the node is Ready", lambda: self.kubectl("get", "node", NODE, ready) == "True", _WAIT_SECONDS)
        until("pods have their account", lambda: self.kubectl("get", "serviceaccount", "default"), _WAIT_SECONDS)
        self.node.run("tar", "-x", "-C", "/srv", "-f", f"/{BUNDLE}", "--wildcards", "collection/*")
        self.node.run("sh", "-c", f"/{CONTROLLER}/bin/ansible-galaxy collection install --force /srv/collection/*", log="galaxy.log")

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self.node.run("kubectl", "--request-timeout=10s", *arguments, text=text)

    def play(self, name: str, number: int, *arguments: str) -> dict[str, int]:
        """Of this collection, as a user runs it. Failed with its output."""
        command = (f"/{CONTROLLER}/bin/ansible-playbook", "-i", "/srv/hosts.json", f"gpushare.kubernetes.{name}", *arguments)
        return recap(self.node.run(*command, seconds=_PLAY_SECONDS, log=f"{number}-{name}.log"))

    def object(self, *arguments: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", *arguments, "-o", "json")))

    def gpus(self) -> dict[str, Any]:
        """The annotation of the node."""
        return dict(json.loads(self.object("node", NODE)["metadata"]["annotations"][protocol.ANNOTATION_GPUS]))

    def units(self) -> int:
        return int(self.object("node", NODE)["status"]["allocatable"].get(protocol.RESOURCE_MEMORY, 0))

    def create(self, name: str, units: int, number: int, resource: str = protocol.RESOURCE_MEMORY) -> None:
        self.kubectl("create", "-f", "-", text=json.dumps(pod(name, units, number, resource)))

    def delete(self, *names: str) -> None:
        self.kubectl("delete", "pod", "--wait=false", *names)

    def clear(self) -> None:
        self.delete("--all")
        until("no pod is left", lambda: not self.object("pods")["items"], _WAIT_SECONDS)

    def runs(self, *names: str) -> float:
        """Seconds until the programs of these pods have answered."""
        began = time.monotonic()
        until(f"{', '.join(names)} have answered", lambda: all((self.answers / f"{name}.json").exists() for name in names), _WAIT_SECONDS)
        return round(time.monotonic() - began, 1)

    def answer(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.answers / f"{name}.json").read_text()))

    def goes_on(self, name: str, rounds: int) -> bool:
        return bool(self.answer(name)["rounds"] > rounds)

    def used(self) -> dict[str, int]:
        """MiB by pod, of the device plugin."""
        samples = re.findall(r'^\w+_pod_memory_used_bytes{.*pod="([^"]*)".*} (\S+)$', self.node.run("python3", "-c", _METRICS), re.M)
        return {name: round(float(value) / 2**20) for name, value in samples}

    def state(self) -> dict[str, Any]:
        """All that an installation could have left."""
        found = dict(json.loads(self.node.run("python3", "-c", _PRINT_TREE, *_LIVING)))
        units = self.node.run("systemctl", "list-units", "--all", "--no-legend", "--plain", "*gpushare-[!l]*", "nvidia-*")
        packages = self.node.run("sh", "-c", "dpkg-query --show '*nvidia*' 2>&1 || true")
        node = self.object("node", NODE)["metadata"]
        objects = self.kubectl("get", _KINDS, "--all-namespaces", "-o", "name").split()
        return {**found, "units": units, "packages": packages, "objects": sorted(objects), "node": [node["labels"], node["annotations"]]}


@contextlib.contextmanager
def part(findings: Findings, what: str) -> Iterator[None]:
    """With its seconds; a failure is a finding, and the next part may still tell something."""
    began = time.monotonic()
    try:
        yield
    except (Failed, LookupError, ValueError) as error:
        findings.check(what, repr(error), "no error")
    findings.value(f"seconds of {what}", round(time.monotonic() - began, 1))


def share(it: Cluster, findings: Findings) -> None:
    """Pods on the GPU, until all of it is free again."""
    units, gpus = until("kubelet offers units", it.units, _WAIT_SECONDS), it.gpus()
    findings.value("GPU", {name: gpus["gpus"][0][name] for name in ("model", "mib", "units")})
    findings.value("driver", it.node.run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").strip())
    findings.check("strategy", gpus["strategy"], "cdi")
    findings.check("units of the node", units, sum(gpu["units"] for gpu in gpus["gpus"]))
    shares = {"a": 8, "b": 16, "c": units - 8 - 16 - 2}
    for number, (name, size) in enumerate(shares.items()):
        it.create(name, size, number)
    findings.value("seconds until three pods compute", it.runs(*shares))
    it.create("waits", 4, 3)
    for name, size in shares.items():
        seen = it.answer(name)
        what = {key: seen[key] for key in ("status", "gpus", "index", "units", "wrong")}
        findings.check(f"pod {name} sees", what, {"status": 0, "gpus": 1, "index": "0", "units": str(size), "wrong": 0})
        findings.check(f"pod {name}: UUID of its GPU", f"GPU-{seen['uuid']}", gpus["gpus"][0]["uuid"])
        findings.check(f"pod {name}: MiB that it holds", seen["held_mib"], (size * 1024 - _CONTEXT_MIB) // 64 * 64)
    # The device plugin asks NVML every few seconds.
    with contextlib.suppress(Failed):
        until("memory by pod", lambda: all(it.used()[name] >= it.answer(name)["held_mib"] for name in shares), 30)
    used = it.used()
    for name, size in shares.items():
        held, most = it.answer(name)["held_mib"], size * 1024
        findings.check(
            f"pod {name}: MiB by NVML and its control group", used.get(name), f"{held} to {most}", held <= used.get(name, 0) <= most
        )
    waiting = it.object("pod", "waits")
    why = " ".join(str(condition.get("message", "")) for condition in waiting["status"].get("conditions", []))
    findings.check(
        "a pod with more than is left waits", why[:160], "Insufficient", "nsufficient" in why and "nodeName" not in waiting["spec"]
    )
    verdict(it, findings, 2, "while the pods run")
    it.delete("a")
    findings.value("seconds from the end of one until the waiting pod computes", it.runs("waits"))
    findings.check("the pod that waited: wrong words in its memory", it.answer("waits")["wrong"], 0)
    for name in ("b", "c", "waits"):
        until(f"{name} computes on", partial(it.goes_on, name, it.answer(name)["rounds"]), 30)
        findings.check(f"pod {name}: wrong words after that", it.answer(name)["wrong"], 0)
    it.delete("b", "c", "waits")
    it.create("whole", 1, 4, protocol.RESOURCE_GPUS)
    findings.value("seconds until a pod has the whole GPU", it.runs("whole"))
    findings.check("the pod with the whole GPU: MiB that it holds", it.answer("whole")["held_mib"], 2048)
    it.clear()


def verdict(it: Cluster, findings: Findings, number: int, when: str) -> None:
    """verify.yml with a probe pod, and all that it has found, notes too."""
    file = f"/srv/verdict{number}.json"
    with contextlib.suppress(Failed):
        it.play("verify", number, "-e", "gpushare_verify_probe=always", "-e", f"gpushare_verify_report={file}")
    report = Path(f"{it.node.root}{file}")
    said = json.loads(report.read_text())["findings"] if report.exists() else "no report"
    findings.check(f"findings of verify.yml {when}", said, [])


def prove(it: Cluster, findings: Findings) -> None:
    before = it.state()
    with part(findings, "site.yml"):
        numbers = it.play("site", 1)
        findings.check("site.yml: tasks that failed", numbers.get("failed"), 0)
        findings.value("site.yml: tasks that changed something", numbers.get("changed"))
    with part(findings, "the pods"):
        share(it, findings)
    verdict(it, findings, 3, "without pods")
    with part(findings, "the second site.yml"):
        findings.check("the second site.yml: tasks that changed something", it.play("site", 4).get("changed"), 0)
    it.clear()
    with part(findings, "uninstall.yml"):
        # Not the five minutes after which kubelet forgets the resources.
        findings.check("uninstall.yml: tasks that failed", it.play("uninstall", 5, "-e", "gpushare_uninstall_wait=0").get("failed"), 0)
    after = it.state()
    left = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    findings.check("what uninstall.yml leaves or does not bring back of files, units, packages and objects", left, _OF_NVIDIA)


def run(folder: Path, out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    findings = Findings(out / "findings.json")
    with tempfile.TemporaryDirectory(prefix="gpushare-node-", ignore_cleanup_errors=True) as name:
        node = Node(Path(name), out)
        try:
            with part(findings, "the node until it is Ready"):
                node.unpack(folder / ARCHIVE)
                node.boot()
                it = Cluster(node)
                it.up()
            if findings.outcome != FAILED:
                prove(it, findings)
        finally:
            node.keep_logs()
            node.down()
    checks = [asdict(check) for check in findings.checks]
    report = {"date": time.strftime("%Y-%m-%d"), "kubernetes": components.KUBERNETES, "values": findings.values, "checks": checks}
    write_atomically(out / "cluster.json", Scrubber().text(json.dumps(report, indent=1)) + "\n")
    return int(findings.outcome == FAILED)


def main(argv: list[str]) -> int:
    if argv[:1] == ["pack"] and len(argv) == 2:
        pack(Path(argv[1]))
        return 0
    if argv[:1] != ["run"] or len(argv) != 3:
        raise SystemExit(__doc__)
    return run(Path(argv[1]).resolve(), Path(argv[2]).resolve())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
