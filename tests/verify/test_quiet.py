# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""verify has nothing to say of a cluster without a fault, also while its pods come and go.

GPUSHARE_FULL=1: 50 runs. GPUSHARE_VERIFY_TIMES: a file to which the seconds of each run are added, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.api import ApiError, Json
from e2e.cluster import Cluster
from e2e.manifests import pod
from verify.verdict import Verify

RUNS = 50 if os.environ.get("GPUSHARE_FULL") == "1" else 4
TIMES = os.environ.get("GPUSHARE_VERIFY_TIMES")
_MOST_PODS = 5

pytestmark = pytest.mark.timeout(600 + 120 * RUNS)


@pytest.mark.parametrize("probe", [False, True], ids=["read-only", "probe"])
def test_no_false_alarm(verify: Verify, probe: bool) -> None:
    """At rest."""
    for _ in range(2):
        _run(verify, "probe" if probe else "read-only")


def test_no_false_alarm_while_pods_come_and_go(verify: Verify) -> None:
    with _churn(verify.cluster) as made:
        for _ in range(RUNS):
            _run(verify, "churn")
    # Otherwise nothing came and went.
    assert len(made) >= RUNS


def _run(verify: Verify, kind: str) -> None:
    began = time.monotonic()
    verdict = verify.run(*(("-e", "gpushare_verify_probe=always") if kind == "probe" else ()))
    seconds = time.monotonic() - began
    assert verdict.findings == [], verdict.words
    if TIMES:
        with Path(TIMES).open("a") as file:
            file.write(json.dumps({"kind": kind, "seconds": round(seconds, 1), "containers": verdict.looked_at["containers"]}) + "\n")


def _short(made: Json, chance: random.Random) -> Json:
    """A third of the pods do their work and end."""
    if chance.random() < 0.33:
        made["spec"]["restartPolicy"] = "Never"
        made["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", f"sleep {chance.randint(1, 12)}; true"]
    return made


@contextmanager
def _churn(cluster: Cluster) -> Iterator[list[str]]:
    """About a pod a second is made or deleted, some of them by force; some end by themselves."""
    stop, chance, made, alive = threading.Event(), random.Random(7), list[str](), list[str]()
    troubles: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.wait(chance.uniform(0.3, 1.5)):
                if len(alive) < _MOST_PODS and (not alive or chance.random() < 0.6):
                    name = f"churn-{len(made)}"
                    cluster.create(_short(pod(name, memory=chance.randint(1, 5), node=chance.choice(["gpu1", "gpu2"])), chance))
                    made.append(name)
                    alive.append(name)
                else:
                    name = alive.pop(chance.randrange(len(alive)))
                    query = {"gracePeriodSeconds": "0"} if chance.random() < 0.2 else {}
                    cluster.api.delete(f"/api/v1/namespaces/default/pods/{name}", **query)
        except (ApiError, OSError) as error:
            troubles.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield made
    finally:
        stop.set()
        worker.join()
        cluster.delete(*alive)
    assert not troubles, troubles
