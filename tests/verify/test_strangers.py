# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Faults that nobody has told verify of, planted at once: it finds each, names its cause, and its cure, done word for word, cures it.

GPUSHARE_DRAW: the seeds of the draws, with commas; #N+rM are the N-th fault of strangers.py and the M-th of reviewed.py, and no others.
By default a new draw, or three, and the groups of reviewed.py, where GPUSHARE_FULL is set. GPUSHARE_STRANGERS: a file for the score of
each, with what preflight and `kubectl gpushare` say.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.api import ApiError, Json
from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster, CommandError, is_running
from e2e.manifests import pod
from verify import cures, faults
from verify.conftest import SHARING
from verify.reviewed import GROUPS, REVIEWED
from verify.strangers import OF_A_NODE, OF_THE_CLUSTER, Stranger, draw
from verify.verdict import Verdict, Verify

FULL = os.environ.get("GPUSHARE_FULL") == "1"
GIVEN = os.environ.get("GPUSHARE_DRAW", "")
DRAWS = [secrets.token_hex(4) for _ in range(3 if FULL else 1)] + ["+".join(f"r{n}" for n in group) for group in GROUPS if FULL]
PROBED = ("-e", "gpushare_verify_probe=always")

pytestmark = pytest.mark.timeout(1800)


def drawn(seed: str) -> list[tuple[str, Stranger]]:
    """A draw, or the faults of a seed such as #3+r12, those without a host on GPU nodes, the last one first."""
    if seed[0] not in "#r":
        return draw(seed)
    every = (*OF_A_NODE, *OF_THE_CLUSTER)
    ones = [REVIEWED[int(part[1:]) - 1] if part[0] == "r" else every[int(part[1:])] for part in seed.split("+")]
    free = [node for node in GPU_NODES if all(one.host != node for one in ones)]
    return [("" if one in OF_THE_CLUSTER else free.pop() if one.host is None else one.host, one) for one in ones]


@pytest.mark.parametrize("seed", GIVEN.split(",") if GIVEN else DRAWS)
def test_drawn_faults_are_found_named_and_cured(clean: Verify, seed: str) -> None:
    cluster, planted = clean.cluster, drawn(seed)
    scores: list[dict[str, object]] = []
    try:
        with contextlib.ExitStack() as later:
            for host, one in planted:
                one.plant(cluster, host, later)
            began = time.monotonic()
            verdict = clean.run(*PROBED)
            seconds = round(time.monotonic() - began)
            users = _Users(cluster)
            later.callback(users.removed)
            others = _others_say(clean, users)
            scores += [_score(verdict, others, host, one) for host, one in planted]
            _by_hand(cluster, planted, scores)
            before = _alive(cluster)
            after = _cured(clean, planted, verdict, scores, users)
            harm = [*_harm(before, _alive(cluster)), *([users.trouble] if after.status == 0 and users.trouble else [])]
            _record({"seed": seed, "seconds": seconds, "scores": scores, "harm": harm, "others": others}, verdict, after)
    finally:
        _as_before(clean)
    missed = [score for score in scores if not (score["found"] and score["named"] and score["cured"])]
    assert not missed, json.dumps({"missed": missed, "findings": verdict.findings}, indent=1)
    assert not harm


class _Users:
    """Pods of users, which a Deployment for each GPU node makes: they meet whatever stands between a user and his GPU.

    trouble: what was wrong with them when they were last waited for, "" for nothing.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.trouble = ""
        for node in GPU_NODES:
            with contextlib.suppress(ApiError, OSError):
                cluster.api.create("/apis/apps/v1/namespaces/default/deployments", self._deployment(node))

    @staticmethod
    def _deployment(node: str) -> Json:
        name, template = f"user-{node}", pod("any", memory=1, node=node)
        labels = {"app": name}
        template["metadata"] = {"labels": labels}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"}, "spec": spec}

    def pods(self) -> list[Json]:
        return [one for one in self._cluster.pods() if (one["metadata"].get("labels") or {}).get("app", "").startswith("user-")]

    def run_on(self, seconds: float) -> set[str]:
        """The nodes on which new ones run after so many seconds at most."""
        for node in GPU_NODES:
            with contextlib.suppress(ApiError, OSError):
                self._cluster.api.create("/apis/apps/v1/namespaces/default/deployments", self._deployment(node))
        with contextlib.suppress(ApiError, OSError):
            names = ",".join(f"user-{node}" for node in GPU_NODES)
            self._cluster.api.delete("/api/v1/namespaces/default/pods", labelSelector=f"app in ({names})")
        with contextlib.suppress(AssertionError):
            self._cluster.until("users' pods run", lambda: self._running() >= set(GPU_NODES), seconds)
        running = self._running()
        self.trouble = f"no pod of users runs on {' and '.join(sorted({*GPU_NODES} - running))}" if running < {*GPU_NODES} else ""
        return running

    def _running(self) -> set[str]:
        try:
            return {one["spec"]["nodeName"] for one in self.pods() if is_running(one)}
        except (ApiError, OSError):
            return set()

    def removed(self) -> None:
        for node in GPU_NODES:
            self._cluster.kubectl("delete", "deployment", f"user-{node}", "--ignore-not-found", "--cascade=foreground", "--wait=false")

        def gone() -> bool:
            # One whose node has gone stays for ever, and one of a kubelet that has just come back for a while.
            for one in self.pods():
                self._cluster.api.delete(f"/api/v1/namespaces/default/pods/{one['metadata']['name']}", gracePeriodSeconds="0")
            return not self.pods()

        with contextlib.suppress(AssertionError):
            self._cluster.until("users' pods are gone", gone, 60)


def _others_say(verify: Verify, users: _Users) -> dict[str, str]:
    """What preflight finds, and `kubectl gpushare status` and `explain` say of the pods that users make now."""
    cluster, report = verify.cluster, verify.folder / "preflight.json"
    report.unlink(missing_ok=True)
    with contextlib.suppress(CommandError):
        cluster.playbook("-e", f"gpushare_preflight_report={report}", name="playbooks/preflight.yml", seconds=180)
    said = {"preflight": ""}
    if report.exists():
        reasons = json.loads(report.read_text())["reasons"]
        said["preflight"] = "\n".join(f"{one['severity']} {one['host']} {one['found']}; do: {one['cure']}" for one in reasons)
    environment = ("env", "KUBECONFIG=/etc/kubernetes/admin.conf", "kubectl", "gpushare")
    try:
        names = [one["metadata"]["name"] for one in users.pods()]
    except (ApiError, OSError):
        names = []
    for words in (("status",), *(("explain", name) for name in names)):
        try:
            said[" ".join(words)] = cluster.on(CONTROL_PLANE, *environment, *words, seconds=60)
        except CommandError as error:
            said[" ".join(words)] = str(error)
    return said


def _score(verdict: Verdict, others: dict[str, str], host: str, one: Stranger) -> dict[str, object]:
    """What is said of one planted fault. found: the codes of errors and warnings of that host, of the cluster and its control plane for one
    of the cluster, or that name it. also: who else names it."""
    where = {host} if host else {"", CONTROL_PLANE}
    there = [finding for finding in verdict.findings if finding["severity"] != "note"]
    naming = sorted({finding["check"] for finding in there if one.named in finding["found"] + finding["cure"]})
    found = sorted({finding["check"] for finding in there if finding["host"] in where} | {*naming})
    also = [who for who, words in others.items() if one.named in " ".join(words.split())]
    return {"name": one.name, "host": host, "found": found, "named": naming, "also": also, "cured": False}


def _by_hand(cluster: Cluster, planted: Sequence[tuple[str, Stranger]], scores: list[dict[str, object]]) -> None:
    """What a finding that names the cause asks of hands."""
    for (host, one), score in zip(planted, scores, strict=True):
        if one.by_hand is not None and score["named"]:
            one.by_hand(cluster, host)


def _cured(
    verify: Verify, planted: Sequence[tuple[str, Stranger]], verdict: Verdict, scores: list[dict[str, object]], users: _Users
) -> Verdict:
    """Do what was printed, once for each finding that does not follow from another one; the verdict then."""
    cluster = verify.cluster
    for finding in verdict.findings:
        if finding["severity"] != "note" and not finding["because"]:
            # One that does not work does not keep people from the next one.
            with contextlib.suppress(AssertionError):
                cures.do(cluster, [(finding["host"], finding["cure"])], site=False)
    if any(cures.read(one["cure"]).site for one in verdict.findings if one["severity"] != "note" and not one["because"]):
        with contextlib.suppress(AssertionError):
            cluster.playbook()
    verdicts: list[Verdict] = []

    def green() -> bool:
        verdicts.append(verify.run(*PROBED))
        return verdicts[-1].status == 0

    with contextlib.suppress(AssertionError):
        cluster.until("verify is green", green, 120)
    after = verdicts[-1]
    running, others = users.run_on(180), {host for host, _ in planted}
    for (host, one), score in zip(planted, scores, strict=True):
        where = {host} if host else {"", CONTROL_PLANE}
        left = [finding for finding in after.findings if finding["host"] in where and finding["severity"] != "note"]
        stays = any(finding["severity"] == "error" or finding["check"] in score["found"] for finding in left)  # type: ignore[operator]
        works = ({host} if host in GPU_NODES else {*GPU_NODES} - others) <= running
        score["cured"] = not stays and works and (one.gone is None or _holds(one.gone, cluster))
    return after


def _holds(gone: object, cluster: Cluster) -> bool:
    try:
        return bool(gone(cluster))  # type: ignore[operator]
    except (AssertionError, ApiError, OSError, LookupError):
        return False


def _alive(cluster: Cluster) -> dict[str, str]:
    """Pod to its container, of the pods that ran before anything was planted."""
    try:
        found = [one for one in cluster.pods() if one["metadata"]["name"] in SHARING and is_running(one)]
    except (ApiError, OSError):
        return {}
    return {one["metadata"]["name"]: one["status"]["containerStatuses"][0]["containerID"] for one in found}


def _harm(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The healthy pods that the cures have ended."""
    return [f"{name} was ended" for name, container in before.items() if after.get(name) != container]


def _record(line: dict[str, object], verdict: Verdict, after: Verdict) -> None:
    """For the table of docs/project/faults.md, where GPUSHARE_STRANGERS names a file."""
    if path := os.environ.get("GPUSHARE_STRANGERS"):
        with Path(path).open("a") as file:
            file.write(json.dumps({**line, "findings": verdict.findings, "after": after.findings}) + "\n")


def _as_before(verify: Verify) -> None:
    """Nodes that were deleted have lost what they had, and their pods are gone."""
    cluster = verify.cluster
    for node in GPU_NODES:
        cluster.on(node, "systemctl", "unmask", "kubelet")
        cluster.on(node, "systemctl", "start", "containerd", "kubelet")
    if not ({node["metadata"]["name"] for node in cluster.nodes()} >= set(GPU_NODES) and verify.run().status == 0):
        faults.started_again(cluster)
        cluster.playbook()
    for name, node in zip(SHARING, GPU_NODES, strict=True):
        there = {one["metadata"]["name"]: one for one in cluster.pods()}
        if name in there and not is_running(there[name]):
            cluster.delete(name)
        if name not in there or not is_running(there[name]):
            cluster.create(pod(name, memory=2, node=node))
    cluster.until_running(*SHARING)
