# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Faults without a code of their own, drawn at random: verify finds each, names its cause, and its cure, done word for word, cures it.

GPUSHARE_DRAW: the seeds of the draws, with commas; #N is the N-th fault alone. By default a new one, or three where GPUSHARE_FULL is set.
GPUSHARE_STRANGERS: a file for the score of each.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

import pytest

from e2e.cluster import GPU_NODES
from e2e.manifests import pod
from verify import cures, faults
from verify.conftest import SHARING
from verify.strangers import OF_A_NODE, OF_THE_CLUSTER, Stranger, draw
from verify.verdict import Verdict, Verify

GIVEN = os.environ.get("GPUSHARE_DRAW", "")
DRAWS = GIVEN.split(",") if GIVEN else [secrets.token_hex(4) for _ in range(3 if os.environ.get("GPUSHARE_FULL") == "1" else 1)]


def drawn(seed: str) -> list[tuple[str, Stranger]]:
    """A draw, or of a seed such as #3 the fault of that place alone, on the second GPU node."""
    if not seed.startswith("#"):
        return draw(seed)
    one = (*OF_A_NODE, *OF_THE_CLUSTER)[int(seed[1:])]
    return [("" if one in OF_THE_CLUSTER else GPU_NODES[1], one)]


@pytest.mark.parametrize("seed", DRAWS)
def test_drawn_faults_are_found_named_and_cured(clean: Verify, seed: str) -> None:
    cluster, planted = clean.cluster, drawn(seed)
    scores: list[dict[str, object]] = []
    try:
        with contextlib.ExitStack() as later:
            for host, one in planted:
                one.plant(cluster, host, later)
            verdict = clean.run("-e", "gpushare_verify_probe=always")
            for host, one in planted:
                scores.append(_score(verdict, host, one))
            _cured(clean, planted, verdict, scores)
            _record(seed, scores, verdict)
    finally:
        _as_before(clean)
    missed = [score for score in scores if not (score["found"] and score["named"] and score["cured"])]
    assert not missed, json.dumps({"missed": missed, "findings": verdict.findings}, indent=1)


def _score(verdict: Verdict, host: str, one: Stranger) -> dict[str, object]:
    """What verify says of one planted fault. found: an error or a warning of that host, or of the cluster."""
    of = [finding for finding in verdict.findings if finding["severity"] != "note" and (not host or finding["host"] == host)]
    naming = [finding["check"] for finding in of if one.named in finding["found"] + finding["cure"]]
    return {"name": one.name, "host": host, "found": sorted({finding["check"] for finding in of}), "named": naming, "cured": False}


def _cured(verify: Verify, planted: list[tuple[str, Stranger]], verdict: Verdict, scores: list[dict[str, object]]) -> None:
    """Do what was printed, once for each finding that does not follow from another one."""
    cluster = verify.cluster
    for (host, one), score in zip(planted, scores, strict=True):
        if one.by_hand is not None and score["named"]:
            one.by_hand(cluster, host)
    printed = [
        (finding["host"], finding["cure"]) for finding in verdict.findings if finding["severity"] == "error" and not finding["because"]
    ]
    with contextlib.suppress(AssertionError):
        cures.do(cluster, printed)
    with contextlib.suppress(AssertionError):
        cluster.until("verify is green", lambda: verify.run("-e", "gpushare_verify_probe=always").status == 0, 120)
    after = verify.run("-e", "gpushare_verify_probe=always")
    left = {finding["host"] for finding in after.findings if finding["severity"] == "error"}
    for score in scores:
        score["cured"] = not left if not score["host"] else score["host"] not in left


def _record(seed: str, scores: list[dict[str, object]], verdict: Verdict) -> None:
    """For the table of docs/project/faults.md, where GPUSHARE_STRANGERS names a file."""
    path = os.environ.get("GPUSHARE_STRANGERS")
    if path:
        line = {"seed": seed, "scores": scores, "findings": verdict.findings}
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")


def _as_before(verify: Verify) -> None:
    """Nodes that were deleted have lost what they had, and their pods are gone."""
    cluster = verify.cluster
    for node in GPU_NODES:
        cluster.on(node, "systemctl", "start", "containerd", "kubelet")
    if {node["metadata"]["name"] for node in cluster.nodes()} >= set(GPU_NODES) and verify.run().status == 0:
        return
    faults.started_again(cluster)
    cluster.playbook()
    there = {one["metadata"]["name"] for one in cluster.pods()}
    for name, node in zip(SHARING, GPU_NODES, strict=True):
        if name not in there:
            cluster.create(pod(name, memory=2, node=node))
    cluster.until_running(*SHARING)
