# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.kubectl_gpushare.endings import Owned, OwnersPods, ending
from unit.golden import Golden

COST = "controller.kubernetes.io/pod-deletion-cost=-1"


def holder(name: str, kind: str = "", owner: str = "", **more: Any) -> Owned:
    return replace(Owned("prod", name, kind, owner, idle=True, ready=True, known=True), **more)


def command(pod: Owned, *others: Owned, waiting: tuple[str, ...] = ()) -> str:
    return ending(pod, OwnersPods((pod, *others)), {("prod", name) for name in waiting})


def test_all_pods_of_an_owner_are_idle(golden: Golden) -> None:
    golden(command(holder("a")))
    golden(command(holder("a", "Job", "train"), holder("b", "Job", "train")))
    golden(command(holder("a", "Deployment", "web")))
    golden(command(holder("db-1", "StatefulSet", "db")))


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
def test_a_busy_pod_is_not_ended(kind: str) -> None:
    assert command(holder("db-0", kind, "db"), holder("db-1", kind, "db", idle=False)).startswith("others of ")


def test_of_a_deployment_the_idle_pod_ends(golden: Golden) -> None:
    idle, busy = holder("a", "Deployment", "web"), holder("b", "Deployment", "web", idle=False)
    scaled = f"kubectl annotate pod a -n prod {COST} && kubectl scale deployment web -n prod --replicas=1"
    assert command(idle, busy) == scaled
    assert command(replace(idle, ready=False), busy) == scaled
    # It loads a model: a ReplicaSet ends it before the one whose deletion costs less.
    golden(command(idle, replace(busy, ready=False)))


def test_of_a_statefulset_only_the_last_pod_ends() -> None:
    idle, busy = holder("db-10", "StatefulSet", "db"), holder("db-9", "StatefulSet", "db", idle=False)
    scaled = "kubectl scale statefulset db -n prod --replicas=10"
    assert command(idle, busy, replace(busy, name="db-0")) == scaled
    # The number is that of the name, not of those that have GPUs: db-0 waits for one.
    assert command(idle, busy, waiting=("db-0",)) == scaled
    # It may count from another number than 0.
    assert command(idle, busy).startswith("others of ")
    assert command(replace(idle, name="db-8"), busy, waiting=("db-0",)).startswith("others of ")


@pytest.mark.parametrize(
    "odd",
    [
        holder("--all"),
        holder("x; rm -rf /"),
        replace(holder("a"), namespace="--all"),
        holder("a", "Job", "--all"),
        holder("a", "Deployment", "$(reboot)"),
        holder("a", known=False),
        holder("a", "DaemonSet", "agent"),
        holder("a", "Notebook\n", "lab"),
    ],
)
def test_no_command_for_what_a_command_would_not_free_or_could_be_chosen_by_a_tenant(odd: Owned) -> None:
    said = command(odd)
    assert said.startswith("none: ")
    assert said.isprintable()
