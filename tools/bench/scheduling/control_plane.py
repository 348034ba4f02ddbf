# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A control plane without nodes: etcd, kube-apiserver and kube-scheduler as plain processes, kwok for the nodes' part."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.processes import cpu_seconds, resident_mib
from gpushare_lab import components
from gpushare_lab.cache import Cache, locked
from gpushare_lab.golang import go_command, go_environment
from gpushare_lab.prepare import the_cache
from gpushare_lab.process import run, run_logged, until
from gpushare_lab.versions import version

KWOK: Final = version("kwok")
MANAGER: Final = "kube-controller-manager"
_TOKEN: Final = "bench"
# No kubelet is there to remove the taint, no controller to make the account; no limit that would hide the scheduler. Privileged pods: as
# kubeadm allows them.
_API_SERVER: Final = (
    "--allow-privileged=true",
    "--bind-address=127.0.0.1",
    "--authorization-mode=RBAC",
    "--service-account-issuer=https://bench",
    "--service-cluster-ip-range=10.99.0.0/24",
    "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
    "--max-requests-inflight=3000",
    "--max-mutating-requests-inflight=3000",
)
# kwok keeps the nodes alive; what it would do for pods comes after their binding, and would only blur what that costs.
_NO_PODS: Final = {
    "apiVersion": "kwok.x-k8s.io/v1alpha1",
    "kind": "Stage",
    "metadata": {"name": "no-pods"},
    "spec": {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {"matchLabels": {"bench": "none"}},
        "next": {"statusTemplate": "phase: Running"},
    },
}


def kwok(cache: Cache) -> Path:
    """A folder with the program kwok, which answers for nodes and pods that have no kubelet."""

    def build(folder: Path) -> None:
        env = {**go_environment(cache, cgo=False), "GOBIN": str(folder)}
        argv: list[str | Path] = [go_command(cache), "install", "-trimpath", f"sigs.k8s.io/kwok/cmd/kwok@v{KWOK}"]
        run_logged(f"building kwok {KWOK}", argv, cache.log(f"kwok-{KWOK}"), env=env)

    with locked(cache.root / "locks/go"):
        return cache.entry("kwok", KWOK, {"flags": "-trimpath"}, build)


def free_port() -> int:
    """A port of this machine that nobody listens on just now, and that no connection gets before somebody does."""
    # Those of connections begin at 32768.
    for _attempt in range(100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(20000, 32768)
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("found no free port between 20000 and 32767")


class Process:
    """A program in the background, with its log."""

    def __init__(self, name: str, argv: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as sink:
            self._child = subprocess.Popen(
                [str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment
            )

    def cpu_seconds(self) -> float:
        """CPU time that it has used so far."""
        return cpu_seconds(self._child.pid)

    def resident_mib(self) -> float:
        """Memory that it has resident now."""
        return resident_mib(self._child.pid)

    def ended(self) -> str:
        """ "" while it runs; else the end of its log."""
        return "" if self._child.poll() is None else f"{self.name} has ended; the end of its log:\n{self.log.read_text()[-2000:]}"

    def stop(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class ControlPlane:
    """etcd, kube-apiserver and kwok, until `stop`; schedulers come and go. folder: an empty one for everything.

    with_kwok: without it the nodes stay as they are made, which lasts for a test. more: further options of kube-apiserver.
    """

    def __init__(self, folder: Path, kubernetes_version: str, *more: str, with_kwok: bool = True) -> None:
        cache = the_cache()
        self._kubernetes = components.kubernetes(cache, kubernetes_version)
        etcd = components.etcd(cache)
        self.folder = folder
        self._port, etcd_port, peer_port = free_port(), free_port(), free_port()
        self.kubeconfig = folder / "kubeconfig"
        self.processes: dict[str, Process] = {}
        key = folder / "service-account.key"
        run(["openssl", "genrsa", "-out", key, "2048"])
        (folder / "tokens.csv").write_text(f'{_TOKEN},admin,1,"system:masters"\n')
        here = f"http://127.0.0.1:{etcd_port}"
        peers = f"http://127.0.0.1:{peer_port}"
        urls = [f"--listen-client-urls={here}", f"--advertise-client-urls={here}", f"--listen-peer-urls={peers}"]
        self._start("etcd", [etcd / "etcd", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync", *urls])
        files = {
            "cert-dir": folder / "certificates",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "token-auth-file": folder / "tokens.csv",
        }
        flags = [f"--etcd-servers={here}", f"--secure-port={self._port}", *(f"--{name}={path}" for name, path in files.items())]
        self._start("kube-apiserver", [self._kubernetes / "kube-apiserver", *flags, *_API_SERVER, *more])
        try:
            self._write_kubeconfig()
            until("kube-apiserver is ready", 180, self._ready, why_not=lambda: "".join(one.ended() for one in self.processes.values()))
        except BaseException:
            # Who has no control plane cannot stop it.
            self.stop()
            raise
        if not with_kwok:
            return
        stages = folder / "kwok.json"
        stages.write_text(json.dumps(_NO_PODS))
        self._start("kwok", [kwok(cache) / "kwok", f"--kubeconfig={self.kubeconfig}", "--manage-all-nodes=true", f"--config={stages}"])

    def scheduler(self, configuration: Mapping[str, Any], *more: str, program: Path | None = None) -> Process:
        """kube-scheduler with this KubeSchedulerConfiguration, whose client has no limit that would hide the rest.

        more: further options. program: where it is not that of this control plane's release.
        """
        path = self.folder / "scheduler.json"
        client = {"kubeconfig": str(self.kubeconfig), "qps": 5000, "burst": 10000}
        kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        path.write_text(json.dumps({**kind, "clientConnection": client, "leaderElection": {"leaderElect": False}, **configuration}))
        program = program or self._kubernetes / "kube-scheduler"
        return Process("kube-scheduler", [program, f"--config={path}", "--secure-port=0", *more], self.folder)

    def start_controllers(self, *names: str) -> None:
        """Start kube-controller-manager with these of its controllers alone."""
        client = [f"--kubeconfig={self.kubeconfig}", "--kube-api-qps=5000", "--kube-api-burst=10000"]
        program = self._kubernetes / MANAGER
        options = [f"--controllers={','.join(names)}", "--leader-elect=false", "--secure-port=0"]
        self._start(MANAGER, [program, *client, *options])

    def stop_controllers(self) -> None:
        self.processes.pop(MANAGER).stop()

    def kubectl(self, *words: str, stdin: str) -> str:
        """Its output. LabError."""
        return run([self._kubernetes / "kubectl", f"--kubeconfig={self.kubeconfig}", *words], stdin=stdin).stdout

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.stop()

    def _start(self, name: str, argv: Sequence[str | Path]) -> None:
        self.processes[name] = Process(name, argv, self.folder)

    def _ready(self) -> bool:
        request = urllib.request.Request(f"https://127.0.0.1:{self._port}/readyz", headers={"Authorization": f"Bearer {_TOKEN}"})
        try:
            with urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=5) as reply:
                return bool(reply.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _write_kubeconfig(self) -> None:
        certificate = self.folder / "certificates/apiserver.crt"
        until("kube-apiserver writes its certificate", 60, certificate.exists, why_not=self.processes["kube-apiserver"].ended)
        cluster = {"server": f"https://127.0.0.1:{self._port}", "certificate-authority": str(certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "bench", "user": {"token": _TOKEN}}],
        }
        self.kubeconfig.write_text(json.dumps(content))


async def settle(process: Process, seconds: float = 60.0) -> None:
    """Until the process uses less than a tenth of a core, so that what comes next is measured alone."""
    deadline = time.monotonic() + seconds
    before = process.cpu_seconds()
    while time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        now = process.cpu_seconds()
        if now - before < 0.1:
            return
        before = now
