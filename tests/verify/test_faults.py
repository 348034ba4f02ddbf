# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""verify names each planted fault, on its host, and nothing else; what its cure says, done word for word, makes it green again."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import pytest

from blocks import lines
from e2e.cluster import MEMORY
from e2e.manifests import pod
from verify import cures, faults
from verify.planted import GROUPS, Planted
from verify.verdict import Verdict, Verify


def test_nothing_to_say_and_everything_looked_at(verify: Verify) -> None:
    read_only = verify.run()
    assert read_only.findings == [], read_only.words
    assert read_only.looked_at == {"hosts": 3, "GPU nodes": 2, "containers": 2, "probe pods": 0}
    probed = verify.run("-e", "gpushare_verify_probe=always")
    assert probed.findings == [], probed.words
    assert probed.looked_at == {"hosts": 3, "GPU nodes": 2, "containers": 2, "probe pods": 2}
    assert "verified: 3 hosts, 2 GPU nodes, 2 containers, 2 probe pods" in probed.words
    assert _probe_pods(verify) == []


def _probe_pods(verify: Verify) -> list[str]:
    """Those that are left, in whatever namespace of the lab."""
    names = [
        f"{space}/{one['metadata']['name']}" for space in ("default", "kube-public", "kube-system") for one in verify.cluster.pods(space)
    ]
    return [name for name in names if "/gpushare-verify-" in name]


@pytest.mark.parametrize("group", GROUPS, ids=lambda name: name.replace(" ", "-"))
def test_planted_faults_are_named_and_their_cures_help(clean: Verify, group: str) -> None:
    cluster, planted = clean.cluster, GROUPS[group]
    try:
        with contextlib.ExitStack() as later:
            for one in planted:
                one.fault(cluster, later)
            began = time.monotonic()
            verdict = clean.run()
            seconds = time.monotonic() - began
            _all_named(verdict, planted)
            for one in planted:
                if one.by_hand is not None:
                    one.by_hand(cluster)
            done = [(one, verdict.one(one.code, one.host)["cure"]) for one in planted]
            did = cures.do(cluster, [(one.host, text) for one, text in done])
            for one, text in done:
                assert one.by_hand is not None or cures.read(text) != cures.Cure((), False), (
                    f"{one.code} has no cure that can be done: {text}"
                )
            # A frozen daemon of the test has a drop-in, of which verify warns.
            cluster.until("verify is green", lambda: clean.run().status == 0, 120)
            _record(group, planted, verdict, seconds, did)
    except BaseException:
        # What is next must not suffer from it.
        faults.started_again(cluster)
        cluster.playbook()
        raise


def _all_named(verdict: Verdict, planted: tuple[Planted, ...]) -> None:
    """Errors are exactly those that were planted; a warning beside them is one of the test's own drop-in."""
    errors = {(one.host, one.code) for one in planted if one.severity == "error"}
    assert verdict.causes == errors, verdict.words
    softer = {(one["host"], one["check"]) for one in verdict.findings if one["severity"] == "warning" and one["check"] != "unit_extended"}
    assert softer == {(one.host, one.code) for one in planted if one.severity == "warning"}, verdict.findings
    for one in planted:
        assert one.cure in verdict.one(one.code, one.host)["cure"]
        if one.severity == "error":
            assert f"{one.host or 'cluster'}: {one.code}: found" in lines(verdict.words)


def _record(group: str, planted: tuple[Planted, ...], verdict: Verdict, seconds: float, did: cures.Cure) -> None:
    """For the table of docs/project/faults.md, where GPUSHARE_FAULTS names a file."""
    path = os.environ.get("GPUSHARE_FAULTS")
    if path:
        found = {one.code: {key: verdict.one(one.code, one.host)[key] for key in ("found", "cure")} for one in planted}
        line = {"group": group, "seconds": round(seconds), "found": found, "commands": did.commands, "site": did.site}
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")


def test_a_full_node_is_not_proven_and_no_fault(clean: Verify) -> None:
    cluster = clean.cluster
    name = cluster.create(pod("full", memory=14, node="gpu1"))["metadata"]["name"]
    other = cluster.create(pod("full-too", memory=16, node="gpu1"))["metadata"]["name"]
    try:
        cluster.until_running(name, other)
        verdict = clean.run("-e", "gpushare_verify_probe=always")
    finally:
        cluster.delete(name, other)
    assert verdict.status == 0, verdict.words
    assert [(one["host"], one["check"], one["severity"]) for one in verdict.findings] == [("gpu1", "not_proven", "note")]
    assert "not proven: no free unit on gpu1" in verdict.words
    assert verdict.looked_at["probe pods"] == 1


def test_a_probe_pod_that_does_not_start_is_explained_by_its_last_event(clean: Verify) -> None:
    """The container runtime cannot run nvidia's, which nothing else shows: only a probe finds it. The Event names the program."""
    program = "/usr/bin/nvidia-container-runtime"
    cluster = clean.cluster
    cluster.on("gpu2", "chmod", "0644", program)
    try:
        verdict = clean.run("-e", "gpushare_verify_probe=always")
    finally:
        cluster.on("gpu2", "chmod", "0755", program)
    assert verdict.causes == {("gpu2", "probe_not_running")}, verdict.words
    assert program in verdict.one("probe_not_running")["found"]
    assert "permission denied" in verdict.one("probe_not_running")["found"]
    assert verdict.looked_at["probe pods"] == 1, "the other node is proven"


@pytest.mark.parametrize("space", ["default", "kube-public"])
def test_a_probe_pod_of_a_killed_run_is_removed(clean: Verify, space: str) -> None:
    left = pod("gpushare-verify-gpu1", memory=1, node="gpu1")
    left["metadata"].update(namespace=space, labels={"gpushare.kubernetes/probe": "verify"})
    clean.cluster.api.create(f"/api/v1/namespaces/{space}/pods", left)
    verdict = clean.run()
    assert verdict.findings == [], verdict.words
    assert _probe_pods(clean) == []


def test_a_quota_of_users_is_told_and_the_chain_is_judged_all_the_same(clean: Verify) -> None:
    """It has room for the pods that are there, and for no probe."""
    quotas = "/api/v1/namespaces/default/resourcequotas"
    api = clean.cluster.api
    api.create(quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": {f"requests.{MEMORY}": "4"}}})
    try:
        verdict = clean.run("-e", "gpushare_verify_probe=always")
    finally:
        api.delete(f"{quotas}/gpus")
    assert verdict.status == 0, verdict.words
    assert [(one["host"], one["check"], one["severity"]) for one in verdict.findings] == [("", "probe_rejected", "warning")]
    assert "quota" in verdict.one("probe_rejected")["found"]
    assert verdict.looked_at["probe pods"] == 2
    assert _probe_pods(clean) == []


def test_a_probe_pod_passes_restricted_pod_security(clean: Verify) -> None:
    spaces, labels = "/api/v1/namespaces", {"pod-security.kubernetes.io/enforce": "restricted"}
    api = clean.cluster.api
    api.create(spaces, {"metadata": {"name": "tenants", "labels": labels}})
    try:
        verdict = clean.run("-e", "gpushare_verify_probe=always", "-e", "gpushare_verify_namespace=tenants")
    finally:
        api.delete(f"{spaces}/tenants")
    assert verdict.findings == [], verdict.words
    assert verdict.looked_at["probe pods"] == 2


def test_a_second_scheduler_is_named_by_the_pods_that_it_placed(clean: Verify) -> None:
    with faults.second_scheduler(clean.cluster):
        verdict = clean.run()
    assert verdict.status == 0, verdict.words
    assert [(one["host"], one["check"], one["severity"]) for one in verdict.findings] == [("", "second_scheduler", "warning")]
    assert "'default-scheduler-theirs' in the Events of default/by-another" in verdict.one("second_scheduler")["found"]


def test_a_host_that_cannot_be_reached_is_a_finding(clean: Verify) -> None:
    with faults.unreachable(clean.cluster, "gpu2"):
        verdict = clean.run()
    assert verdict.causes == {("gpu2", "not_checked")}, verdict.words
