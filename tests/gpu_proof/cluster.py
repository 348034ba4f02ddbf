# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster of this machine alone, on its real GPU: API server, kube-scheduler with the extender, kubelet, containerd and CDI.

    python -m gpu_proof.cluster pack PROGRAMS      fills the folder with the programs of the lab, where there is a network
    python -m gpu_proof.cluster run PROGRAMS OUT   on the machine with the GPU, as root; OUT gets cluster.json

It is for a machine that belongs to no cluster: kubelet has its usual folder, which is removed, and a CDI spec nvidia.yaml is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.scheduling.control_plane import ControlPlane, Process, free_port
from bench.scheduling.extender import Extender
from gpu_proof import machine
from gpu_proof.findings import FAILED, Findings, write_atomically
from gpu_proof.scrub import Scrubber
from gpushare_lab import components
from gpushare_runtime.core import protocol
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kube.credentials import load

_NODE: Final = "gpu1"
_PODS: Final = "/api/v1/namespaces/default/pods"
_KUBELET_ROOT: Final = Path("/var/lib/kubelet")
_SPECS: Final = Path("/var/run/cdi")
_IMAGE: Final = "localhost/gpushare-lab/test:1"
# A program's context counts for its pod's units.
_CONTEXT_MIB: Final = 1024
_WAIT_SECONDS: Final = 60.0
_CONTAINERD: Final = """version = 3
root = "{root}/containerd"
state = "{root}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "registry.k8s.io/pause:3.10.2"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
"""


def kubelet_configuration(socket: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "failSwapOn": False,
        "failCgroupV1": False,
        "localStorageCapacityIsolation": False,
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "2s",
    }


def pod(name: str, units: int, folder: Path, programs: Path, number: int, resource: str = protocol.RESOURCE_MEMORY) -> dict[str, Any]:
    """One that holds almost all of its units. It needs no network of its own, which would need a plugin for it."""
    held = max(units * 1024 - _CONTEXT_MIB, 64) if resource == protocol.RESOURCE_MEMORY else 2048
    container = {
        "name": "main",
        "image": _IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/programs/pod_client", str(held), str(number * 1000), f"/out/{name}.json"],
        # As CUDA's images have it for a driver that is in no folder of ld.so.
        "env": [{"name": "LD_LIBRARY_PATH", "value": machine.library_folder()[0]}],
        "resources": {"limits": {resource: units}},
        "volumeMounts": [{"name": "programs", "mountPath": "/programs", "readOnly": True}, {"name": "out", "mountPath": "/out"}],
    }
    volumes = [{"name": which, "hostPath": {"path": str(path)}} for which, path in (("programs", programs), ("out", folder))]
    spec = {"containers": [container], "volumes": volumes, "hostNetwork": True, "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {**spec, "automountServiceAccountToken": False}}


def done(*command: str) -> None:
    """SystemExit with its words if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr.strip()[-800:]}")


class Cluster:
    """root: of its own files; programs: folder."""

    def __init__(self, root: Path, programs: Path, plane: ControlPlane, client: KubeClient) -> None:
        self.answers = root / "answers"
        self.answers.mkdir()
        self.client = client
        self.processes: dict[str, Process] = dict(plane.processes)
        self._root, self._programs, self._plane = root, programs, plane
        self._metrics = free_port()

    def start(self, name: str, *argv: str | Path) -> None:
        path = f"{self._programs}:{os.environ['PATH']}"
        self.processes[name] = Process(name, argv, self._root, {**os.environ, "PATH": path})

    async def up(self) -> None:
        """containerd, kubelet, extender, kube-scheduler and device plugin."""
        socket = self._root / "c.sock"
        (self._root / "containerd.toml").write_text(_CONTAINERD.format(root=self._root, socket=socket))
        self.start("containerd", self._programs / "containerd", "--config", self._root / "containerd.toml")
        await self.until("containerd listens", socket.exists)
        imported = [
            str(self._programs / "ctr"),
            f"--address={socket}",
            "--namespace=k8s.io",
            "images",
            "import",
            "--local",
            "--snapshotter=native",
        ]
        await asyncio.to_thread(done, *imported, str(self._programs / "images.tar"))
        (self._root / "kubelet.json").write_text(json.dumps(kubelet_configuration(socket)))
        config = [f"--config={self._root}/kubelet.json", f"--kubeconfig={self._plane.kubeconfig}", f"--hostname-override={_NODE}"]
        self.start("kubelet", self._programs / "kubelet", *config)
        extender = Extender(self._plane)
        self.processes["extender"] = extender.process
        await extender.ready(_WAIT_SECONDS)
        self.processes["kube-scheduler"] = self._plane.scheduler({"extenders": [extender.entry]})
        await self.until("kubelet has made its node", self.node)
        own = [f"--node-name={_NODE}", f"--kubeconfig={self._plane.kubeconfig}", f"--state-dir={self._root}/plugin"]
        more = ["--device-strategy=cdi", f"--metrics-listen=127.0.0.1:{self._metrics}"]
        self.start("device-plugin", sys.executable, "-m", "gpushare_runtime.device_plugin.main", *own, *more)

    def down(self) -> None:
        for process in reversed(self.processes.values()):
            process.stop()

    async def until(self, what: str, condition: Callable[[], Any], seconds: float = _WAIT_SECONDS) -> Any:
        """What the condition returns, or its future. SystemExit with the logs' ends if it stays false, or a program has ended."""
        deadline = time.monotonic() + seconds
        while True:
            found = condition()
            found = await found if asyncio.iscoroutine(found) else found
            if found:
                return found
            ended = [one.ended() for one in self.processes.values() if one.ended()]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(f"== {name}\n{one.log.read_text(errors='replace')[-1500:]}" for name, one in self.processes.items())
                raise SystemExit(f"not so within {seconds:g} s: {what}\n{ended}\n{logs}")
            await asyncio.sleep(0.2)

    async def node(self) -> dict[str, Any]:
        try:
            return dict(await self.client.get(f"/api/v1/nodes/{_NODE}"))
        except KubeError:
            return {}

    async def create(self, name: str, units: int, number: int, resource: str = protocol.RESOURCE_MEMORY) -> None:
        await self.client.create(_PODS, pod(name, units, self.answers, self._programs, number, resource))

    async def runs(self, *names: str) -> float:
        """Seconds until the programs of these pods have answered."""
        began = time.monotonic()
        await self.until(f"{', '.join(names)} have answered", lambda: all((self.answers / f"{name}.json").exists() for name in names))
        return round(time.monotonic() - began, 1)

    def answer(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.answers / f"{name}.json").read_text()))

    def goes_on(self, name: str, rounds: int) -> bool:
        return bool(self.answer(name)["rounds"] > rounds)

    async def metric(self, name: str) -> dict[str, float]:
        """Samples of the device plugin by pod."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self._metrics}/metrics") as response:
            text = await response.text()
        return {pod: float(value) for pod, value in re.findall(rf'^gpushare_device_plugin_{name}{{.*pod="([^"]*)".*}} (\S+)$', text, re.M)}


@contextlib.asynccontextmanager
async def cluster(programs: Path) -> AsyncIterator[Cluster]:
    os.environ["GPUSHARE_LAB_BIN"] = str(programs)
    # A path of a unix socket has 107 characters.
    with tempfile.TemporaryDirectory(prefix="gc-", dir="/run") as name:
        root = Path(name)
        (root / "plane").mkdir()
        plane = ControlPlane(root / "plane", components.KUBERNETES, with_kwok=False)
        async with KubeClient(load(str(plane.kubeconfig)), user_agent="gpu-proof") as client:
            made = Cluster(root, programs, plane, client)
            try:
                await made.up()
                yield made
            finally:
                made.down()
                unmount(root, _KUBELET_ROOT)


def unmount(*folders: Path) -> None:
    """What containers and kubelet have mounted there."""
    for line in Path("/proc/mounts").read_text().splitlines()[::-1]:
        if line.split()[1].startswith(tuple(map(str, folders))):
            subprocess.run(["umount", "--lazy", line.split()[1]], check=False)


def spec_of(programs: Path) -> None:
    """By the real nvidia-ctk, as the toolkit's service writes it."""
    _SPECS.mkdir(exist_ok=True)
    hook, library = programs / "nvidia-cdi-hook", machine.library_folder()[0]
    done(*machine.cdi_command(str(programs / "nvidia-ctk"), str(hook), _SPECS / "nvidia.yaml", library))


async def prove(programs: Path, findings: Findings) -> None:
    began = time.monotonic()
    spec_of(programs)
    async with cluster(programs) as it:
        findings.value("seconds until the node's daemons were started", round(time.monotonic() - began, 1))

        async def offered() -> int:
            return int((await it.node()).get("status", {}).get("allocatable", {}).get(protocol.RESOURCE_MEMORY, 0))

        units = await it.until("kubelet offers units", offered)
        gpus = json.loads((await it.node())["metadata"]["annotations"][protocol.ANNOTATION_GPUS])["gpus"]
        findings.value("GPU", {name: gpus[0][name] for name in ("model", "mib", "units")})
        findings.check("units of the node", units, sum(gpu["units"] for gpu in gpus))
        shares = {"a": 8, "b": 16, "c": units - 8 - 16 - 2}
        for number, (name, share) in enumerate(shares.items()):
            await it.create(name, share, number)
        findings.value("seconds until three pods compute", await it.runs(*shares))
        await it.create("waits", 4, 3)
        await asyncio.sleep(3)
        for name, share in shares.items():
            seen = it.answer(name)
            what = {key: seen[key] for key in ("status", "gpus", "index", "units", "wrong")}
            findings.check(f"pod {name} sees", what, {"status": 0, "gpus": 1, "index": "0", "units": str(share), "wrong": 0})
            findings.check(f"pod {name}: UUID of its GPU", f"GPU-{seen['uuid']}", gpus[0]["uuid"])
            findings.check(f"pod {name}: MiB that it holds", seen["held_mib"], (share * 1024 - _CONTEXT_MIB) // 64 * 64)
        used: dict[str, float] = {}
        for _ in range(60):
            used = await it.metric("pod_memory_used_bytes")
            if set(shares) <= set(used):
                break
            await asyncio.sleep(0.25)
        for name, share in shares.items():
            mib = round(used.get(name, 0) / 2**20)
            findings.check(f"pod {name}: MiB by NVML and its control group", mib, f"up to {share * 1024}", 0 < mib <= share * 1024)
        waiting = await it.client.get(f"{_PODS}/waits")
        why = " ".join(str(one.get("message", "")) for one in waiting["status"].get("conditions", []))
        findings.check(
            "a pod with more than is left waits", why[:160], "Insufficient", "nsufficient" in why and "nodeName" not in waiting["spec"]
        )
        ended = time.monotonic()
        await it.client.delete(f"{_PODS}/a")
        await it.runs("waits")
        findings.value("seconds from the end of one until the waiting pod computes", round(time.monotonic() - ended, 1))
        findings.check("the pod that waited: wrong words in its memory", it.answer("waits")["wrong"], 0)
        for name in ("b", "c", "waits"):
            rounds = it.answer(name)["rounds"]
            await it.until(f"{name} computes on", partial(it.goes_on, name, rounds))
            findings.check(f"pod {name}: wrong words after that", it.answer(name)["wrong"], 0)
            await it.client.delete(f"{_PODS}/{name}")
        await it.create("whole", 1, 4, protocol.RESOURCE_GPUS)
        findings.value("seconds until a pod has the whole GPU", await it.runs("whole"))
        findings.check("the pod with the whole GPU: MiB that it holds", it.answer("whole")["held_mib"], 2048)
        await it.client.delete(f"{_PODS}/whole")
        await asyncio.sleep(2)


def pack(folder: Path) -> None:
    """Everything that `run` needs but this repository and the wheels of its lock."""
    from gpushare_lab import debian, images, runtimes
    from gpushare_lab.prepare import the_cache

    cache = the_cache()
    kubernetes, rootfs = components.kubernetes(cache, components.KUBERNETES), debian.root_file_system(cache)
    containerd = runtimes.go_programs(cache, "containerd", runtimes.CONTAINERDS["containerd-2.4"])
    toolkit = components.nvidia_toolkit(cache)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(kubernetes / "kubernetes", folder)
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubeadm", "kube-proxy", "kubelet", "kubectl"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("kubernetes")
    copied = [components.etcd(cache) / "etcd", rootfs / "usr/sbin/runc", *(toolkit / name for name in ("nvidia-ctk", "nvidia-cdi-hook"))]
    for program in (*copied, *(containerd / name for name in ("containerd", "containerd-shim-runc-v2", "ctr"))):
        shutil.copy(program, folder)
    shutil.copy(images.archives(cache, components.KUBERNETES, kubernetes, rootfs).every_node, folder / "images.tar")
    source = Path(__file__).with_name("programs") / "pod_client.c"
    done("gcc", "-O2", "-Wall", "-Wextra", "-Wno-cast-function-type", "-o", str(folder / "pod_client"), str(source), "-ldl")


def main(argv: list[str]) -> int:
    if argv[:1] == ["pack"] and len(argv) == 2:
        pack(Path(argv[1]))
        return 0
    if argv[:1] != ["run"] or len(argv) != 3:
        raise SystemExit(__doc__)
    programs, out = Path(argv[1]).resolve(), Path(argv[2])
    findings = Findings()
    try:
        asyncio.run(prove(programs, findings))
    finally:
        shutil.rmtree(_KUBELET_ROOT, ignore_errors=True)
        checks = [asdict(one) for one in findings.checks]
        report = {"date": time.strftime("%Y-%m-%d"), "kubernetes": components.KUBERNETES, "values": findings.values, "checks": checks}
        write_atomically(out / "cluster.json", Scrubber().text(json.dumps(report, indent=1)) + "\n")
    return int(findings.outcome == FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
