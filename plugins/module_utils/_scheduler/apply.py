# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what a plan for a host's kube-scheduler is made from, and carries the plan out."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.journal import Entry
from .._change.transaction import Transaction, TransactionError, nothing
from .._change.undo import Rejected
from .._cluster.kubectl import Kubectl, KubectlError
from .._cluster.names import ANNOTATION_SCHEDULER_CONFIG, NAMESPACE, SCHEDULER_TLS_FILES
from .._daemon.health import fetch_json, unhealthy
from .._formats.answers import ABSENT, ModuleAnswer
from .._host.command import Run
from .._host.files import FileState, digest, read_state
from . import candidate, entries, kubeadm, proof
from . import manifest as scheduler_manifest
from .policy import KEY as POLICY_KEY
from .policy import PolicyMap
from .service import ExpectedScheduler, SchedulerHost, SchedulerService

OWNER = "scheduler"
FOLDER = "folder:"
CLUSTER = ["configmap", "--namespace", NAMESPACE, kubeadm.NAME]


@dataclass(frozen=True)
class Tools:
    """The means that act on the host. ctr: its path, None without containerd. scratch: a folder. point: called where a kill must be
    harmless."""

    kubectl: Kubectl
    run: Run
    ctr: Optional[str]
    scratch: str
    point: Callable[[str], None] = nothing

    def end_container(self, identity: str) -> None:
        """End a container's process; kubelet starts the container again."""
        if self.ctr is None:
            raise OSError(
                "kube-scheduler must be restarted, and this host has no ctr (containerd) to do it with: restart it, then run again"
            )
        status, out, err = self.run([self.ctr, "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGTERM", identity])
        if status != 0:
            raise OSError(f"kube-scheduler's container could not be ended: {err.strip() or out.strip()}")


@dataclass(frozen=True)
class SchedulerSettings:
    """The options of kube_scheduler_extender that a plan needs."""

    state: str
    node_name: str
    manifest: str
    config: str
    url_prefix: str
    tls_dir: str
    http_timeout: str
    lease: str
    weight: int
    percentage_of_nodes_to_score: int
    control_planes: int
    preemption: bool
    managed_resources: List[str]


@dataclass(frozen=True)
class FoundEntry:
    """An entry of the journal. original, mode: of the file as it was before us, None where there was none."""

    path: str
    original: Optional[str]
    mode: Optional[int]
    left: Tuple[str, str]
    others: bool


@dataclass(frozen=True)
class KubeadmPart:
    """kubeadm's ClusterConfiguration, and the version of the object that holds it."""

    text: str
    version: str


@dataclass(frozen=True)
class SchedulerFiles(ModuleAnswer):
    """The state that a plan is made from. files: path to text. unreached: extenders of others that do not answer. others: nodes whose
    scheduler calls our extender, too. running: the shape of the scheduler that runs.
    """

    server: str
    policy: Optional[PolicyMap]
    files: Dict[str, Optional[str]]
    journal: List[FoundEntry]
    cluster: Optional[KubeadmPart]
    nodes: int
    others: List[str]
    unreached: Dict[str, str]
    unfinished: bool
    running: Any


@dataclass(frozen=True)
class SchedulerFound(SchedulerFiles):
    """The answer of kube_scheduler_extender before there is a plan."""

    settings: SchedulerSettings


@dataclass(frozen=True)
class SchedulerDone(ModuleAnswer):
    """The answer of kube_scheduler_extender with a plan. candidate: what the manifest's own kube-scheduler says of it. holder: of the
    scheduler's Lease. standby: whether that is another host.
    """

    candidate: str
    holder: Optional[str] = field(default=None, metadata=ABSENT)
    standby: Optional[bool] = field(default=None, metadata=ABSENT)


def read(host: SchedulerHost, kubectl: Kubectl, config: str, tls_dir: str, more: Sequence[str]) -> SchedulerFiles:
    """The files that a plan may need, the journal, kubeadm's part, and whether the running scheduler is another one than they say."""
    transaction = Transaction(OWNER)
    manifest = _text(host.manifest)
    journal = transaction.entries()
    named = scheduler_manifest.config_paths(manifest or "")
    paths = {host.manifest, config, *named, *more, *(entry.path for entry in journal if entry.is_file)}
    pods = kubectl.items(["get", "pods", "--namespace", NAMESPACE, "--selector", "component=kube-scheduler"])
    if manifest is not None and scheduler_manifest.TLS_VOLUME in manifest:
        host = replace(host, read_once=(os.path.join(tls_dir, SCHEDULER_TLS_FILES[0]),))
    running = SchedulerService(host, kubectl).running()
    policy = scheduler_manifest.policy_configmap(manifest or "")
    files = {path: _text(path) for path in sorted(paths)}
    return SchedulerFiles(
        changed=False,
        server=json.loads(kubectl.text(["get", "--raw", "/version"])).get("gitVersion", ""),
        policy=None if policy is None else _policy(kubectl, *policy),
        files=files,
        unreached=entries.silent(text for text in files.values() if text is not None),
        journal=[_fields(entry) for entry in journal],
        cluster=_cluster(kubectl),
        nodes=_count_nodes(kubectl),
        others=sorted(_others(pods, host.node)),
        unfinished=transaction.unfinished,
        running=None if running is None else scheduler_manifest.SchedulerManifest.parsed(running).shape,
    )


def apply(host: SchedulerHost, tools: Tools, plan: Mapping[str, Any], resource: str, tls_dir: str, state: str) -> Dict[str, Any]:
    """Carry the plan out. On Rejected nothing was changed. TransactionError: it was restored. KubectlError: done except for kubeadm's
    part."""
    transaction = Transaction(OWNER, point=tools.point)
    folders = _plan(transaction, plan)
    scheduler, service = plan["scheduler"], None
    if scheduler is not None:
        expected = ExpectedScheduler(scheduler["lease"], scheduler["name"], scheduler["image"], resource, plan["shapes"])
        change = _change_policy(tools, transaction, plan["policy"], state)
        once = replace(host, read_once=tuple(scheduler["read_once"]))
        service = SchedulerService(once, tools.kubectl, expected, tools.end_container, change)
    if state == "present" and service is not None and (transaction.changes or transaction.unfinished or service.due()):
        _check_extender(host, tls_dir)
    policy = plan.get("policy")
    is_new = policy is not None and policy["sha256_before"] != digest(policy["content"].encode())
    due = bool((transaction.diff() or is_new) and scheduler)
    unchecked = _check_candidate(tools, plan) if due else None
    said = _said(unchecked, plan) if due else "not needed"
    result: Dict[str, Any] = {"candidate": said, "warnings": [] if unchecked is None else [unchecked]}
    if due and not host.health_url:
        result["warnings"].append("the extender was not called to verify the scheduler, because health_url is empty")
    try:
        transaction.apply(service)
    except TransactionError as error:
        if error.restored:
            _tidy(folders - {entry.path for entry in transaction.entries()})
        raise
    if plan["cluster"] is not None:
        _change_cluster(tools, transaction, plan["cluster"])
    if state == "absent":
        _forget(tools, transaction)
    return dict(result, **(service.proof if service else {}))


def trial(tools: Tools, plan: Mapping[str, Any]) -> str:
    """The answer of the manifest's own kube-scheduler to the candidate, or why it was not asked. It raises Rejected if that rejects it."""
    return _said(_check_candidate(tools, plan), plan)


def _said(unchecked: Optional[str], plan: Mapping[str, Any]) -> str:
    return unchecked or f"accepted by {plan['scheduler']['image']}"


def _plan(transaction: Transaction, plan: Mapping[str, Any]) -> "set[str]":
    """Fill the transaction. The folders that are ours, or become so, as the journal names them."""
    folders = {entry.path for entry in transaction.entries() if entry.path.startswith(FOLDER)}
    for name, before, after in plan["values"]:
        transaction.note(name, _encoded(before), _encoded(after))
    for file in plan["files"]:
        state = read_state(file["path"])
        if digest(None if state is None else state.content) != file["sha256_before"]:
            raise Rejected(f"{file['path']} has been changed by another program just now, so nothing was changed: run again")
        folder = os.path.dirname(file["path"])
        if file["content"] is None:
            transaction.remove(file["path"])
            continue
        if not os.path.isdir(folder):
            transaction.note(FOLDER + folder, None, b"")
            folders.add(FOLDER + folder)
        transaction.write(file["path"], file["content"].encode(), file["mode"])
    return folders


def _check_extender(host: SchedulerHost, tls_dir: str) -> None:
    missing = [name for name in SCHEDULER_TLS_FILES if tls_dir and not os.path.isfile(os.path.join(tls_dir, name))]
    if missing:
        raise Rejected(
            f"{tls_dir} has no {', '.join(missing)}, which kube-scheduler needs to call the extender, so nothing was changed: run the "
            "role extender first, which makes them"
        )
    if not host.health_url:
        return
    reason = unhealthy(*fetch_json(host.health_url, ca=host.health_ca), "synced")
    if reason is not None:
        raise Rejected(f"the extender must be in sync before a scheduler is configured for it, so nothing was changed: {reason}")


def _check_candidate(tools: Tools, plan: Mapping[str, Any]) -> Optional[str]:
    """Have the manifest's own kube-scheduler read the candidate. None if it accepts it; why it could not be asked."""
    scheduler, config = plan["scheduler"], plan["scheduler"]["candidate"]
    if tools.ctr is None:
        return "the candidate was not checked: this host has no ctr (containerd)"
    path = os.path.join(tools.scratch, "gpushare-candidate.yaml")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(config or "")
    mounts = [
        (path, scheduler_manifest.CANDIDATE_PATH),
        *((source, target) for source, target in scheduler["mounts"] if os.path.exists(source)),
    ]
    try:
        return candidate.check(tools.run, tools.ctr, scheduler["image"], mounts, scheduler["command"], scheduler["kind"])
    except candidate.CandidateError as error:
        raise Rejected(f"kube-scheduler rejects the configuration, so nothing was written. It says:\n{error}") from error
    finally:
        os.unlink(path)


def _change_policy(tools: Tools, transaction: Transaction, order: Optional[Mapping[str, Any]], state: str) -> Callable[[str, bool], bool]:
    """Brings the policy in its ConfigMap in step with the manifest on the disk; returns whether it is, or was, out of step.

    The manifest carries the hash of the policy with us in it. Without a hash, the policy is the one without us.
    """

    # A run that was killed may have changed it, and not have restarted the scheduler, which has read it at its start.
    forced = [transaction.unfinished]

    def change(manifest: str, do: bool) -> bool:
        if order is None:
            return False
        after, before = str(order["content"]), str(order["before"])
        noted = scheduler_manifest.annotation_in(manifest)
        wanted = after if noted == digest(after.encode()) or (noted is None and state == "absent") else before
        found = _policy(tools.kubectl, order["namespace"], order["name"])
        if found is None or found.text == wanted:
            is_forced = forced[0]
            forced[0] = is_forced and not do
            return is_forced
        if found.text not in (after, before):
            raise OSError(f"{order['path']} has been changed by another program just now: run again")
        if do:
            tools.point("before " + order["path"])
            transaction.journal.record(order["path"], OWNER, FileState(found.text.encode(), 0, 0, 0, None), wanted.encode())
            tools.point("noted " + order["path"])
            patch = {"metadata": {"resourceVersion": found.version}, "data": {POLICY_KEY: wanted}}
            what = ["configmap", "--namespace", order["namespace"], order["name"]]
            tools.kubectl.text(["patch", *what, "--type=merge", "--patch", json.dumps(patch)])
            tools.point("written " + order["path"])
        return True

    return change


def _change_cluster(tools: Tools, transaction: Transaction, change: Mapping[str, Any]) -> None:
    """kubeadm's part comes last: when it fails, the next run finds the files right and does it alone."""
    now = _cluster(tools.kubectl)
    if now is None or digest(now.text.encode()) != change["sha256_before"]:
        raise KubectlError(f"{change['path']} has been changed by another program just now; the scheduler's own files are done: run again")
    tools.point("before " + change["path"])
    before = FileState(now.text.encode(), 0, 0, 0, None)
    transaction.journal.record(change["path"], OWNER, before, change["content"].encode())
    tools.point("noted " + change["path"])
    patch = {"metadata": {"resourceVersion": change["version"]}, "data": {kubeadm.KEY: change["content"]}}
    tools.kubectl.text(["patch", *CLUSTER, "--type=merge", "--patch", json.dumps(patch)])
    tools.point("written " + change["path"])


def _forget(tools: Tools, transaction: Transaction) -> None:
    entries = transaction.entries()
    _tidy({entry.path for entry in entries})
    for entry in entries:
        transaction.journal.forget(entry.path)
        tools.point("forgotten " + entry.path)


def _tidy(paths: "set[str]") -> None:
    """Remove the folders that we made, if they are empty."""
    for path in paths:
        folder = path[len(FOLDER) :]
        if path.startswith(FOLDER) and os.path.isdir(folder) and not os.listdir(folder):
            os.rmdir(folder)


def _fields(entry: Entry) -> FoundEntry:
    original = entry.original
    content, mode = (None, None) if original is None else (original.content.decode(), original.mode)
    return FoundEntry(entry.path, content, mode, entry.left, entry.others)


def _cluster(kubectl: Kubectl) -> Optional[KubeadmPart]:
    """kubeadm's part, None where there is none."""
    found = kubectl.json(["get", *CLUSTER, "--ignore-not-found"])
    text = ((found or {}).get("data") or {}).get(kubeadm.KEY)
    return None if text is None else KubeadmPart(text, found["metadata"]["resourceVersion"])


def _policy(kubectl: Kubectl, namespace: str, name: str) -> Optional[PolicyMap]:
    """The scheduler's policy in this ConfigMap, None where there is none."""
    found = kubectl.json(["get", "configmap", "--namespace", namespace, name, "--ignore-not-found"])
    text = ((found or {}).get("data") or {}).get(POLICY_KEY)
    return None if text is None else PolicyMap(namespace, name, text, found["metadata"]["resourceVersion"])


def _count_nodes(kubectl: Kubectl) -> int:
    page = json.loads(kubectl.text(["get", "--raw", "/api/v1/nodes?limit=1"]))
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)


def _others(pods: Sequence[Mapping[str, Any]], node: str) -> "set[str]":
    """The other nodes whose scheduler calls our extender."""
    found = set()
    for pod in pods:
        annotated = ANNOTATION_SCHEDULER_CONFIG in (pod["metadata"].get("annotations") or {})
        if annotated and proof.find_static_pod([pod]) and pod["spec"].get("nodeName") != node:
            found.add(pod["spec"]["nodeName"])
    return found


def _text(path: str) -> Optional[str]:
    state = read_state(path)
    return None if state is None else state.content.decode()


def _encoded(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode()
