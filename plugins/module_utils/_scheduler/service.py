# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's kube-scheduler as what a transaction restarts and verifies.

kubelet restarts the static pod by itself when its manifest changes: restarting means to wait until it has. The scheduler is
healthy when it holds its lease, or stands by for another one that does, and has called the extender.
"""

from __future__ import annotations

import glob
import json
import os
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, TypeVar

from .._change.transaction import Service
from .._cluster.kubectl import Kubectl, KubectlError
from .._cluster.names import NAMESPACE
from .._daemon.health import fetch_json
from .._formats.failure import Failure
from .._host.files import digest, read_state
from . import manifest as scheduler_manifest
from . import proof

T = TypeVar("T")
POLL_SECONDS = 0.5
PROBE_REMOVAL_SECONDS = 20
LOGS = "/var/log/pods"


class Missing(Failure):
    """A condition that is waited for does not hold yet; the message says what is missing."""


class NotRunningError(Failure):
    """The scheduler did not come up within its time; the message has its own log."""


@dataclass(frozen=True)
class SchedulerHost:
    """Where things are on this host. name: of the host. node: of the Kubernetes node that it is; timeout in seconds.

    health_url: "" where no extender can be asked whether the extender is called. health_ca: its certificate authority, None for plain http.
    read_once: files that a scheduler reads at its start only, and whose change the manifest does not show.
    """

    name: str
    node: str
    manifest: str
    health_url: str
    timeout: float
    health_ca: Optional[str] = None
    read_once: Tuple[str, ...] = ()


@dataclass(frozen=True)
class ExpectedScheduler:
    """The facts that the plan knows of the scheduler: its lease (namespace and name) if it has one, and what a probe pod must name.

    shapes: what kubelet must run of a manifest (`SchedulerManifest.shape`), by the SHA-256 of the manifest's bytes.
    """

    lease: Optional[Mapping[str, str]]
    scheduler_name: str
    image: str
    resource: str
    shapes: Mapping[str, Mapping[str, Any]]


class SchedulerService(Service):
    """The kube-scheduler of one host. After `problem`, `proof` says who holds the lease and whether that is another host."""

    def __init__(
        self,
        host: SchedulerHost,
        kubectl: Kubectl,
        expected: Optional[ExpectedScheduler] = None,
        end: Callable[[str], None] = lambda _container: None,
        change: Callable[[str, bool], bool] = lambda _manifest, _do: False,
    ) -> None:
        """end: ends a container of this host, by its id, so that kubelet starts it again.

        change: whether what the scheduler reads from the cluster is out of step with this manifest; if so, the flag says to change it.
        """
        self.proof: Dict[str, Any] = {}
        self._host = host
        self._kubectl = kubectl
        self._expected = expected
        self._end = end
        self._change = change

    def due(self) -> bool:
        """Whether the scheduler that runs is another one than the manifest on the disk says, or none does."""
        return self.running() is None or self._change(self._manifest().decode(), False)

    def running(self) -> Optional[Mapping[str, Any]]:
        """The pod that kubelet runs, if it is the one of the manifest on the disk."""
        try:
            return self._running()
        except (Missing, proof.HopelessError):
            return None

    def restart(self) -> None:
        """Return when kubelet runs the manifest on the disk; NotRunningError if it does not within the timeout."""
        try:
            changed = self._change(self._manifest().decode(), True)
            # One that has read the former policy may fail for it; kubelet starts it again.
            pod = self._wait(self._as_written, patient=changed)
            if changed or self._is_stale(pod):
                former = proof.container_id(pod)
                self._end(former)
                if changed:
                    self._wait(lambda: self._another(former))
            self._wait(self._running)
        except Failure as error:
            raise NotRunningError(f"{error}. The scheduler said:\n{scheduler_log()}") from error

    def problem(self) -> Optional[str]:
        """None, or what is missing with the scheduler's log. A manifest without our configuration need not call the extender."""
        expected = self._expected
        if expected is None:
            return None
        try:
            pod = self._wait(self._running)
            holder = self._wait(lambda: self._holder(pod, expected))
            self.proof = {"holder": holder.identity if holder else "", "standby": bool(holder and not holder.ours)}
            if self.proof["standby"]:
                self._wait(self._ready)  # it will not call the extender before it is active
            elif scheduler_manifest.annotation_in(self._manifest().decode()) is not None and self._host.health_url:
                self._see_a_call(expected)
        except Failure as error:
            return f"{error}. The scheduler said:\n{scheduler_log()}"
        return None

    def _manifest(self) -> bytes:
        state = read_state(self._host.manifest)
        return b"" if state is None else state.content

    def _running(self) -> Mapping[str, Any]:
        pod = self._as_written()
        stale = self._is_stale(pod)
        if stale:
            raise Missing(f"kube-scheduler runs since before {stale} was changed, and reads that file at its start only")
        return pod

    def _another(self, former: str) -> None:
        if proof.container_id(self._running()) == former:
            raise Missing("kubelet has not started kube-scheduler again, which reads its policy at its start only")

    def _is_stale(self, pod: Mapping[str, Any]) -> Optional[str]:
        """The file that is newer than the process. Kubernetes gives whole seconds."""
        started = proof.started_at(pod).timestamp()
        return next((path for path in self._host.read_once if os.path.exists(path) and int(os.stat(path).st_mtime) > started), None)

    def _as_written(self) -> Mapping[str, Any]:
        selector = f"spec.nodeName={self._host.node}"
        pods = self._kubectl.items(["get", "pods", "--namespace", NAMESPACE, "--field-selector", selector])
        pod = proof.find_static_pod(pods)
        manifest = self._manifest()
        shape = self._expected.shapes.get(digest(manifest)) if self._expected else None
        reason = proof.not_running(pod, scheduler_manifest.annotation_in(manifest.decode()), shape)
        if reason is not None or pod is None:
            raise Missing(f"kube-scheduler does not run as its manifest says: {reason}")
        return pod

    def _ready(self) -> None:
        reason = proof.not_ready(self._running())
        if reason is not None:
            raise Missing(f"the new scheduler stands by for another one, but {reason}")

    def _holder(self, pod: Mapping[str, Any], expected: ExpectedScheduler) -> Optional[proof.Holder]:
        lease = expected.lease
        if lease is None:
            return None
        by = "endpoints" if lease.get("by") == "endpoints" else "lease"
        found = self._kubectl.json(["get", by, "--namespace", lease["namespace"], lease["name"], "--ignore-not-found"])
        if by == "endpoints":
            found = proof.lease_of_endpoints(found)
        holder = proof.holder(found, self._host.name, proof.started_at(pod))
        if holder is None:
            identity = ((found or {}).get("spec") or {}).get("holderIdentity")
            raise Missing(f"the new scheduler does not hold its lease {lease['namespace']}/{lease['name']}: its holder is {identity!r}")
        return holder

    def _see_a_call(self, expected: ExpectedScheduler) -> None:
        """Let a pod be scheduled that names our resource, and see the extender be asked."""
        health, _dummy = self._health()
        calls = int((health or {}).get("filter_calls", 0))
        probe = proof.probe_pod(self._host.node, expected.scheduler_name, expected.image, expected.resource)
        name = probe["metadata"]["name"]
        self._remove(name, "--wait=true", "--timeout=15s")  # of a run that was killed
        self._kubectl.text(["create", "-f", "-"], json.dumps(probe))
        try:
            self._wait(lambda: self._called(calls, name))
        finally:
            self._wait(lambda: self._remove(name, "--wait=false"), PROBE_REMOVAL_SECONDS)

    def _health(self) -> Tuple[Optional[Dict[str, Any]], str]:
        return fetch_json(self._host.health_url, ca=self._host.health_ca)

    def _called(self, calls: int, name: str) -> None:
        reason = proof.not_called(*self._health(), calls)
        if reason is None:
            return
        pod = self._kubectl.json(["get", "pod", "--namespace", NAMESPACE, name, "--ignore-not-found"])
        words = proof.scheduling_message(pod)
        raise Missing(f"the new scheduler has not called the extender for pod {NAMESPACE}/{name}: {reason}; {words}")

    def _remove(self, name: str, *how: str) -> None:
        self._kubectl.text(["delete", "pod", "--namespace", NAMESPACE, name, "--ignore-not-found", "--now", *how])

    def _wait(self, condition: Callable[[], T], timeout: Optional[float] = None, patient: bool = False) -> T:
        """patient: also where waiting seems hopeless."""
        deadline = time.monotonic() + (self._host.timeout if timeout is None else timeout)
        while True:
            try:
                return condition()
            except (Missing, KubectlError):
                if time.monotonic() > deadline:
                    raise
            except proof.HopelessError:
                if not patient or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)


def scheduler_log() -> str:
    """The last lines of the newest log of a kube-scheduler container on this host, as kubelet keeps it."""
    logs = glob.glob(os.path.join(LOGS, "kube-system_kube-scheduler-*", "kube-scheduler", "*.log"))
    if not logs:
        return f"(no log under {LOGS})"
    with open(max(logs, key=os.path.getmtime), encoding="utf-8", errors="replace") as stream:
        return "".join(stream.readlines()[-15:]).strip() or "(its log is empty)"
