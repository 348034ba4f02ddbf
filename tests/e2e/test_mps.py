# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The isolation mps on real kubelets: NVIDIA's own control daemon under systemd for each card, and what pods get of it.

The cards are simulated, so no server and no client runs: what the daemon does for them is not shown here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.api import Json
from e2e.cluster import Cluster, CommandError, allocation, annotations_of
from e2e.manifests import pod
from e2e.running import NODE

CORE = "aliyun.com/gpu-core.percentage"
SET = ("-e", "gpushare_isolation=mps")


def cards_of(cluster: Cluster, node: str) -> Json:
    found: Json = json.loads(annotations_of(cluster.node(node))["gpushare/cards"])
    return found


def usable(cluster: Cluster, node: str) -> list[bool]:
    return [card["health"] == "ok" for card in cards_of(cluster, node)["cards"]]


def services(cluster: Cluster, node: str) -> list[str]:
    listed = cluster.on(node, "systemctl", "list-units", "--plain", "--no-legend", "--state=active", "gpushare-mps-*")
    return [line.split()[0] for line in listed.splitlines()]


def modes(cluster: Cluster, node: str) -> set[str]:
    return {line.strip() for line in cluster.on(node, "nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader").splitlines()}


@pytest.fixture(scope="module")
def mps(cluster: Cluster) -> Iterator[Cluster]:
    cluster.clear()
    cluster.playbook(*SET)
    yield cluster
    cluster.clear()
    cluster.playbook()
    assert services(cluster, NODE) == []
    assert modes(cluster, NODE) == {"Default"}


def default_limit(cluster: Cluster, uuid: str) -> str:
    """What NVIDIA's control daemon of the card answers."""
    ask = f"echo get_default_device_pinned_mem_limit 0 | CUDA_MPS_PIPE_DIRECTORY=/run/gpushare-mps/{uuid}/pipe nvidia-cuda-mps-control"
    return cluster.on(NODE, "sh", "-c", ask).strip()


def sharing(name: str, memory: int, core: int) -> Json:
    made = pod(name, memory=memory, node=NODE)
    made["spec"]["containers"][0]["resources"]["limits"][CORE] = str(core)
    return made


def test_each_card_has_a_daemon_and_the_next_run_changes_nothing(mps: Cluster) -> None:
    found = cards_of(mps, NODE)
    assert services(mps, NODE) == [f"gpushare-mps-{uuid}.service" for uuid in sorted(card["uuid"] for card in found["cards"])]
    assert modes(mps, NODE) == {"Exclusive_Process"}
    assert (found["isolation"], found["core"], found["clients"]) == ("mps", 100, 48)
    assert all(usable(mps, NODE))
    recap = [line for line in mps.playbook(*SET).splitlines() if " : ok=" in line]
    assert recap
    assert all("changed=0" in line for line in recap), recap


def test_a_pod_gets_its_own_limits_and_the_socket_of_its_cards_daemon(mps: Cluster) -> None:
    mps.create(sharing("share", 4, 30))
    mps.until_running("share")
    environment = dict(line.split("=", 1) for line in mps.kubectl("exec", "share", "--", "env").splitlines() if "=" in line)
    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert mps.kubectl("exec", "share", "--", "sh", "-c", 'test -S "$CUDA_MPS_PIPE_DIRECTORY/control" && echo there').strip() == "there"
    # A client that unsets its limit gets no more than the largest container of the card has.
    uuid = cards_of(mps, NODE)["cards"][next(iter(allocation(mps.pod("share"))))]["uuid"]
    mps.until("the daemon's default is that of the container", lambda: default_limit(mps, uuid) == "4G", 30)
    # The rest of this card's compute is not enough for the next one, whatever memory is free.
    (index,) = allocation(mps.pod("share"))
    mps.create(sharing("other", 1, 80))
    mps.until_running("other")
    assert list(allocation(mps.pod("other"))) != [index]
    mps.create(pod("larger", memory=6, node=NODE))
    mps.until_running("larger")
    uuid = cards_of(mps, NODE)["cards"][next(iter(allocation(mps.pod("larger"))))]["uuid"]
    assert default_limit(mps, uuid) == "6G"
    mps.create(sharing("third", 1, 75))
    assert "of compute" in mps.until_unschedulable("third")
    mps.clear()


def test_while_a_daemon_does_not_answer_its_card_takes_no_pod(mps: Cluster) -> None:
    first = cards_of(mps, NODE)["cards"][0]["uuid"]
    unit = f"gpushare-mps-{first}.service"
    mps.on(NODE, "systemctl", "stop", unit)
    mps.until("the card is unusable", lambda: usable(mps, NODE).count(False) == 1, 60)
    mps.on(NODE, "systemctl", "start", unit)
    mps.until("the card is usable again", lambda: all(usable(mps, NODE)), 60)
    mps.on(NODE, "sh", "-c", f"kill -9 $(pgrep -f nvidia-cuda-mps-control | head -1); systemctl is-active {unit} || true")
    mps.until("systemd has started both again", lambda: len(services(mps, NODE)) == len(usable(mps, NODE)) and all(usable(mps, NODE)), 120)


def test_mps_is_not_left_under_pods(mps: Cluster) -> None:
    mps.create(pod("stays", memory=2, node=NODE))
    mps.until_running("stays")
    with pytest.raises(CommandError, match="drain the node and run again, or keep gpushare_isolation"):
        mps.playbook()
    assert cards_of(mps, NODE)["isolation"] == "mps"
    assert len(services(mps, NODE)) == len(usable(mps, NODE))
    assert mps.pod("stays")["status"]["phase"] == "Running"
    mps.clear()
