# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A control plane below a folder: files, a kubelet that runs the static pod, an API server behind kubectl, and the extender's health.

Everything that must outlive a killed process is a file.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import SCHEDULER_TLS_FILES
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import apply
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.manifest import SchedulerManifest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.scheduler_config import ExtenderEntry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.service import SchedulerHost
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found, SchedulerPlan, plan_present
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.unplan import plan_absent

from unit.fakes.plugins.scheduler.manifests import EXTENDER, MANIFEST

CLUSTER = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nscheduler: {}\n"


class ControlPlane:
    """runs_with: whether the scheduler runs with a configuration; deaf: text in it with which it does not call the extender."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = folder / "etc/kubernetes/manifests/kube-scheduler.yaml"
        self.config = folder / "etc/kubernetes/gpushare/kube-scheduler.yaml"
        self.pki = folder / "etc/gpushare/pki/scheduler"
        self.state = folder / "state.json"
        self.runs_with: Callable[[str], bool] = lambda _config: True
        self.deaf = "\0"
        # Plans are pure; the tests of kills ask for the same ones again and again.
        self._plans: dict[tuple[str, str], SchedulerPlan] = {}
        self.rejects = ""
        self.rejects_patch = False
        self.synced = True
        self.ctr: str | None = "/usr/bin/ctr"
        self.other_pods: list[dict[str, Any]] = []
        # Of the release, and the ConfigMap kube-system/scheduler-policy, if there is one.
        self.server = "v1.36.3"
        # What was asked of kubectl and ctr, and what the last run said of itself.
        self.asked: list[list[str]] = []
        self.candidate: str | None = None
        self.result: dict[str, Any] = {}
        self.manifest.parent.mkdir(parents=True)
        self.pki.mkdir(parents=True)
        for name in SCHEDULER_TLS_FILES:
            (self.pki / name).write_text("certificate\n")
        self.manifest.write_text(MANIFEST)
        self.state.write_text(json.dumps({"cluster": CLUSTER, "version": 1, "calls": 0, "ran": None, "since": "", "starts": 0, "ends": 0}))
        self.extender = ExtenderEntry(
            "https://127.0.0.1:32766/gpushare-scheduler", 10, "1s", tuple(EXTENDER.managed_resources), tls_dir=str(self.pki)
        )

    # What is there.

    def known(self, **changes: Any) -> dict[str, Any]:
        found: dict[str, Any] = {**json.loads(self.state.read_text()), **changes}
        if changes:
            self.state.write_text(json.dumps(found))
        return found

    def config_in_use(self) -> str:
        """The configuration that a scheduler with the present manifest reads."""
        flags = SchedulerManifest.parsed(parsed(self.manifest.read_text())).flags
        if "policy-configmap" in flags:
            return str(self.known()["policy"])
        path = flags.get("config")
        return Path(path).read_text() if path and Path(path).exists() else ("" if path is None else "no such file")

    def kubelet(self) -> None:
        """Run the static pod of the manifest, if it is another one than the one that runs."""
        text = self.manifest.read_text()
        if text != self.known()["ran"]:
            self.known(ran=text, reads=self.config_in_use(), since=now(), starts=self.known()["starts"] + 1)

    def pod(self) -> dict[str, Any]:
        """What the API server says at this moment; kubelet is a moment behind the files."""
        known = self.known()
        self.kubelet()
        pod = parsed(known["ran"])
        pod["metadata"].setdefault("annotations", {})["kubernetes.io/config.mirror"] = "x"
        pod["spec"]["nodeName"] = "cp1"
        broken = known["reads"] == "no such file" or not self.runs_with(known["reads"])
        if broken:
            # kubelet starts it again, and it reads everything again.
            self.known(reads=self.config_in_use())
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        status = {
            "state": waiting if broken else {"running": {"startedAt": known["since"]}},
            "restartCount": 3 if broken else 0,
            "ready": not broken,
            "containerID": f"containerd://c{known['starts']}-{known['ends']}",
        }
        return {**pod, "status": {"containerStatuses": [status]}}

    def tree(self) -> dict[str, tuple[int, bytes]]:
        files = (path for path in self.folder.rglob("*") if path.is_file() and path != self.state)
        return {str(path.relative_to(self.folder)): (path.stat().st_mode, path.read_bytes()) for path in files}

    # What the module's core sees of it.

    def kubectl(self, argv: list[str], data: str | None) -> tuple[int, str, str]:
        words = argv[4:]
        self.asked.append(words)
        if words[:2] == ["get", "pods"]:
            return 0, json.dumps({"kind": "List", "items": [*self.other_pods, self.pod()]}), ""
        if words[:2] == ["get", "lease"]:
            return 0, json.dumps({"spec": {"holderIdentity": "host_1", "renewTime": now(1), "acquireTime": now(1)}}), ""
        if words[:2] == ["get", "configmap"]:
            known = self.known()
            if "scheduler-policy" in words:
                return 0, json.dumps({"metadata": {"resourceVersion": "7"}, "data": {"policy.cfg": known["policy"]}}), ""
            if known["cluster"] is None:
                return 0, "", ""
            found = {"metadata": {"resourceVersion": str(known["version"])}, "data": {"ClusterConfiguration": known["cluster"]}}
            return 0, json.dumps(found), ""
        if words[:3] == ["get", "--raw", "/version"]:
            return 0, json.dumps({"gitVersion": self.server}), ""
        if words[:2] == ["get", "--raw"]:
            return 0, json.dumps({"items": [{}], "metadata": {"remainingItemCount": 2}}), ""
        if words[0] == "create":
            if self.deaf not in self.known()["reads"]:
                self.known(calls=self.known()["calls"] + 1)
            return 0, "", ""
        if words[0] == "patch":
            if self.rejects_patch:
                return 1, "", "configmaps is forbidden"
            patch = json.loads(words[-1])
            if "scheduler-policy" in words:
                assert patch["metadata"]["resourceVersion"] == "7"
                self.known(policy=patch["data"]["policy.cfg"])
                return 0, "", ""
            assert patch["metadata"]["resourceVersion"] == str(self.known()["version"])
            self.known(cluster=patch["data"]["ClusterConfiguration"], version=self.known()["version"] + 1)
        return 0, "", ""

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """ctr."""
        self.asked.append(argv)
        self.candidate = next((Path(word.split(",")[1][4:]).read_text() for word in argv if "gpushare-candidate.yaml" in word), None)
        if "kill" in argv:
            known = self.known()
            assert argv[-1] == f"c{known['starts']}-{known['ends']}"
            self.known(since=now(1), ends=known["ends"] + 1, reads=self.config_in_use())
            return 0, "", ""
        return (1, "", f"error: {self.rejects}\n") if self.rejects else (0, "kind: KubeSchedulerConfiguration\n", "")

    def health(self, _url: str, ca: str | None = None) -> tuple[dict[str, Any], str]:
        assert ca == str(self.pki.parent / "ca.crt")
        return {"synced": self.synced, "filter_calls": self.known()["calls"]}, ""

    @property
    def host(self) -> SchedulerHost:
        url = "https://127.0.0.1:32766/healthz"
        return SchedulerHost("host", "cp1", str(self.manifest), url, 0.3, str(self.pki.parent / "ca.crt"))

    # What the action plugin does.

    def read(self, *more: str) -> dict[str, Any]:
        return dict(answer_of(apply.read(self.host, Kubectl(self.kubectl, "kubectl", "admin.conf"), str(self.config), str(self.pki), more)))

    def plan(self, state: str) -> tuple[SchedulerPlan, bool]:
        text = json.dumps(self.read())
        found = json.loads(text)
        plan = self._plans.get((state, text))
        if plan is None:
            where = (str(self.manifest), str(self.config), Found.from_answer(found), self.extender)
            plan = self._plans[state, text] = plan_absent(*where) if state == "absent" else plan_present(*where)
        due = bool(found["journal"]) if state == "absent" else found["running"] != plan.shape
        return plan, plan.changed or found["unfinished"] or due

    def converge(self, state: str = "present", point: Callable[[str], None] = lambda _point: None) -> bool:
        """Whether something was done."""
        plan, due = self.plan(state)
        if due:
            self.carry_out(plan, state, point)
        return due

    def carry_out(self, plan: SchedulerPlan, state: str = "present", point: Callable[[str], None] = lambda _point: None) -> None:
        orders = json.loads(json.dumps(plan.for_module))
        kubectl = Kubectl(self.kubectl, "kubectl", "admin.conf")
        tools = apply.Tools(kubectl, self.run, self.ctr, str(self.folder), point)
        self.result = apply.apply(self.host, tools, orders, "aliyun.com/gpu-mem", str(self.pki), state)

    def passed(self, state: str) -> Sequence[str]:
        points: list[str] = []
        self.converge(state, points.append)
        return points


def parsed(text: str) -> dict[str, Any]:
    """A manifest, parsed once."""
    return copy.deepcopy(_parsed(text))


@lru_cache
def _parsed(text: str) -> dict[str, Any]:
    return dict(yaml.safe_load(text))


def now(later: float = 0) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(time.time() + later, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
