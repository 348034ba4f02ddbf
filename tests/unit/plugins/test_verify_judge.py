# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What verify makes of what it has seen: each fault is named once, on its host, and a cluster without one has none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verify_judge import judge, placeable, scheduler_name
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verify_room import free_units

from unit.plugins import verify_seen as seen
from unit.plugins.verify_seen import CONFIG, CONFIG_PATH, CONTAINER, MANIFEST_PATH, NOW, UUIDS, WEEK, World

Change = Callable[[World], Any]


@pytest.fixture
def world() -> World:
    return World()


def causes(world: World) -> set[tuple[str, str]]:
    found = judge(world.evidence())
    assert all(one.found and one.expected and one.cure for one in found.findings)
    assert found.ok == (not found.causes)
    return {(one.host, one.check) for one in found.causes}


def softer(world: World) -> list[tuple[str, str, str]]:
    """Findings that are no errors."""
    return [(one.host, one.check, one.severity) for one in judge(world.evidence()).findings if one.severity != "error"]


def test_a_cluster_without_a_fault_has_no_finding_and_all_was_looked_at(world: World) -> None:
    found = judge(world.evidence())
    assert found.findings == ()
    assert found.looked_at == {"hosts": 2, "GPU nodes": 1, "containers": 1, "probe pods": 0}
    assert found.words == "verified: 2 hosts, 1 GPU node, 1 container, 0 probe pods"


def configured(world: World, text: str) -> None:
    """Another configuration, with which the scheduler was restarted."""
    files, sha = world.cp["plane"]["scheduler"], hashlib.sha256(text.encode()).hexdigest()
    files["configs"][CONFIG_PATH] = {"text": text, "sha256": sha}
    files["manifest"] = seen.manifest(text)
    annotations = world.cluster["schedulers"]["cp1"]["metadata"]["annotations"]
    annotations["gpushare.kubernetes/scheduler-config-sha256"] = sha


def smi_problem(world: World) -> None:
    """Driver and library differ: nvidia-smi lists nothing, the plugin has marked every card and registers none as healthy."""
    smi = world.gpu["gpu"]["nvidia_smi"]
    smi.update(cards=[], driver_version=None)
    smi["problem"] = {"kind": "version_mismatch", "found": "words", "expected": "cards", "cure": "reboot"}
    world.cluster["nodes"][0]["status"]["allocatable"] = {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "0"}


def stopped(world: World) -> None:
    """As it looks when kubelet has noticed."""
    world.gpu["gpu"]["plugin"].update(active="inactive", state="dead", pid=0, process_generation=None)
    world.gpu["gpu"].update(sockets=[], registered={})
    world.cluster["nodes"][0]["status"]["allocatable"] = {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "0"}


def annotated(world: World, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Other cards in the node's annotation."""
    annotations = world.cluster["nodes"][0]["metadata"]["annotations"]
    content = json.loads(annotations["gpushare/cards"])
    change(content["cards"])
    annotations["gpushare/cards"] = json.dumps(content)


def gpu_token(world: World, **changes: Any) -> None:
    world.gpu["gpu"]["tokens"]["own"]["claims"].update(changes)


def another_socket(world: World) -> None:
    world.gpu["gpu"]["sockets"].append({"name": "other.sock", "pid": 300, "process": "other-plugin"})
    world.gpu["gpu"]["registered"]["aliyun.com/gpu-mem"] = {"other-1": 1}


def third_card(world: World) -> None:
    """The driver has one more than the plugin, which hangs, has published."""
    more = {**seen.card(1), "index": 2, "minor": 2, "uuid": UUIDS[0][:-1] + "9"}
    world.gpu["gpu"]["nvidia_smi"]["cards"].append(more)
    world.gpu["gpu"]["cdi"]["specs"][0]["cards"].append(more["uuid"])


def capacity(world: World, units: int) -> None:
    for place in ("capacity", "allocatable"):
        world.cluster["nodes"][0]["status"][place]["aliyun.com/gpu-mem"] = str(units)


def certificate(world: World, **changes: Any) -> None:
    world.cp["plane"]["certificates"]["certificates"][0].update(changes)


def runtime_of(world: World, **changes: Any) -> None:
    world.gpu["gpu"]["container_runtime"].update(changes)


def cdi(world: World, **changes: Any) -> None:
    world.gpu["gpu"]["cdi"]["specs"][0].update(changes)


def beside(world: World, text: str) -> None:
    world.cp["plane"]["scheduler"]["others"][f"{MANIFEST_PATH}.bak"] = text


OWN_LEASE = "--leader-elect-resource-name"

FAULTS: list[tuple[Change, str, str]] = [
    (lambda w: w.cp["plane"]["extender"].update(active="failed", state="failed", process_generation=None), "cp1", "extender_down"),
    (lambda w: w.cp["plane"].update(health={"report": None, "why": "refused"}), "cp1", "extender_down"),
    (lambda w: w.cp["plane"]["health"]["report"].update(synced=False, not_ready="nodes"), "cp1", "extender_not_synced"),
    (lambda w: w.cp["plane"]["extender"].update(exists=False), "cp1", "extender_missing"),
    (lambda w: w.cp["plane"]["extender"].update(process_generation="old"), "cp1", "extender_older_than_file"),
    (lambda w: beside(w, seen.manifest()), "cp1", "stale_scheduler_file"),
    (lambda w: beside(w, seen.manifest().replace("name: kube-scheduler", "name: x", 1).replace("--config", OWN_LEASE)), "cp1", ""),
    (lambda w: w.gpu["gpu"]["managers"].append({"name": "HAMi", "active": True, "evidence": ["process 7"]}), "gpu1", "second_plugin"),
    (lambda w: w.gpu["gpu"]["sockets"][0].update(pid=300, process="gpushare-device-plugin-v2"), "gpu1", "second_plugin"),
    (another_socket, "gpu1", "second_plugin"),
    (third_card, "gpu1", "wrong_card_count"),
    (lambda w: annotated(w, lambda cards: cards[1].update(index=5)), "gpu1", "annotation_wrong"),
    (lambda w: w.cluster["nodes"][0]["metadata"]["annotations"].clear(), "gpu1", "annotation_wrong"),
    (lambda w: capacity(w, 24), "gpu1", "capacity_short"),
    (lambda w: capacity(w, 48), "gpu1", "capacity_over"),
    (lambda w: w.cluster["nodes"].clear(), "gpu1", "node_missing"),
    (lambda w: w.cluster["nodes"][0]["status"].update(conditions=[]), "gpu1", "node_not_ready"),
    (smi_problem, "gpu1", "driver_mismatch"),
    (lambda w: w.gpu["gpu"]["driver"].update(loaded="550.1"), "gpu1", "driver_mismatch"),
    (lambda w: certificate(w, problem="expired", days_left=-1.0), "cp1", "certificate_expired"),
    (lambda w: certificate(w, problem="key does not match"), "cp1", "certificate_wrong"),
    (lambda w: w.cp["plane"].update(certificates={"problem": "no gpushare-pki", "certificates": []}), "cp1", "certificate_wrong"),
    (lambda w: gpu_token(w, expires=NOW - 3600), "gpu1", "token_expired"),
    (lambda w: gpu_token(w, uid="of-another"), "gpu1", "token_refused"),
    (lambda w: [w.gpu["gpu"]["tokens"][which].update(claims=None) for which in ("own", "seed")], "gpu1", "token_missing"),
    (lambda w: configured(w, CONFIG.replace("gpu-mem", "gpu-memory")), "cp1", "extender_not_called"),
    (lambda w: configured(w, CONFIG.replace("filterVerb: filter", 'filterVerb: ""')), "cp1", "extender_not_called"),
    (lambda w: configured(w, CONFIG.replace("32766", "32767")), "cp1", "extender_address_wrong"),
    (lambda w: configured(w, CONFIG.replace("https:", "http:")), "cp1", "extender_address_wrong"),
    (lambda w: configured(w, CONFIG.partition("extenders:")[0]), "cp1", "scheduler_not_configured"),
    (lambda w: w.cp["plane"]["scheduler"]["configs"].clear(), "cp1", "scheduler_not_configured"),
    (lambda w: w.cp["plane"]["scheduler"].update(manifest=seen.manifest().replace("--config", "--v")), "cp1", "scheduler_not_configured"),
    (lambda w: w.cp["plane"]["scheduler"].update(manifest=None), "cp1", "scheduler_stopped"),
    (lambda w: w.cp["plane"]["scheduler"]["configs"][CONFIG_PATH].update(sha256="0" * 64), "cp1", "scheduler_older_than_file"),
    (lambda w: w.cluster["schedulers"]["cp1"]["metadata"]["annotations"].clear(), "cp1", "scheduler_older_than_file"),
    (lambda w: w.cluster["schedulers"]["cp1"]["spec"]["containers"][0].update(image="other"), "cp1", "scheduler_older_than_file"),
    (lambda w: w.cluster["schedulers"].update(cp1=None), "cp1", "scheduler_stopped"),
    (stopped, "gpu1", "plugin_stopped"),
    (lambda w: w.gpu["gpu"]["plugin"].update(exists=False), "gpu1", "plugin_missing"),
    (lambda w: w.gpu["gpu"]["plugin"].update(process_generation="old"), "gpu1", "plugin_older_than_file"),
    (lambda w: w.gpu["gpu"].update(sockets=[]), "gpu1", "plugin_not_registered"),
    (lambda w: w.gpu["gpu"].update(registered={}), "gpu1", "plugin_not_registered"),
    (lambda w: w.gpu["kubelet"].update(running=False), "gpu1", "kubelet_stopped"),
    (lambda w: runtime_of(w, running_default="runc", lacks="the default is runc"), "gpu1", "default_runtime_not_running"),
    (lambda w: runtime_of(w, file_default="runc"), "gpu1", "default_runtime_missing"),
    (lambda w: runtime_of(w, problem="containerd is dead"), "gpu1", "runtime_silent"),
    (lambda w: cdi(w, versions=["535.216.01"]), "gpu1", "cdi_stale"),
    (lambda w: cdi(w, cards=[UUIDS[0]]), "gpu1", "cdi_stale"),
    (lambda w: cdi(w, missing=["/usr/lib/libcuda.so.1"]), "gpu1", "cdi_stale"),
    (lambda w: w.gpu["gpu"]["cdi"]["specs"].clear(), "gpu1", "cdi_missing"),
    (lambda w: w.cluster["objects"]["missing"].append("ClusterRoleBinding gpushare-extender"), "", "rbac_differs"),
    (lambda w: w.cluster["objects"]["differs"].append("ValidatingAdmissionPolicy gpushare-annotations"), "", "policy_differs"),
    (lambda w: w.cluster["nodes"][0]["metadata"]["labels"].clear(), "gpu1", "label_missing"),
    (lambda w: w.gpu["runtime"].update(wheel_sha256="c" * 64), "gpu1", "runtime_differs"),
    (lambda w: w.gpu["runtime"].update(damaged=["gpushare_runtime/ledger.py"], damaged_count=1), "gpu1", "runtime_differs"),
    (lambda w: w.gpu["runtime"].update(files=0), "gpu1", "runtime_differs"),
    (lambda w: w.gpu["runtime"].update(environment=""), "gpu1", "runtime_missing"),
    (lambda w: w.gpu["gpu"]["containers"].update({CONTAINER: ["nvidia1"]}), "gpu1", "wrong_card"),
    (lambda w: w.gpu["gpu"]["containers"].update({CONTAINER: ["nvidia0", "nvidia1"]}), "gpu1", "wrong_card"),
    (lambda w: w.gpu["gpu"]["containers"].update({CONTAINER: []}), "gpu1", "wrong_card"),
    (lambda w: w.gpu["gpu"]["containers"].pop(CONTAINER), "gpu1", "container_not_seen"),
    (lambda w: w.cluster["pods"][0]["annotations"].clear(), "gpu1", "not_annotated"),
    (lambda w: annotated(w, lambda cards: cards[1].update(health="Xid 79")), "gpu1", "capacity_short"),
]


@pytest.mark.parametrize(("change", "host", "code"), FAULTS, ids=[f"{number}-{code}" for number, (_c, _h, code) in enumerate(FAULTS)])
def test_each_fault_is_the_only_cause(world: World, change: Change, host: str, code: str) -> None:
    change(world)
    if code == "capacity_short" and "Xid" in world.cluster["nodes"][0]["metadata"]["annotations"]["gpushare/cards"]:
        world.cluster["nodes"][0]["status"]["allocatable"] = {"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "1"}
        code = "card_unusable"
    assert causes(world) == ({(host, code)} if code else set())


def test_what_only_follows_names_its_cause(world: World) -> None:
    stopped(world)
    found = {one.check: one.because for one in judge(world.evidence()).findings}
    assert found == {"plugin_stopped": "", "capacity_short": "plugin_stopped"}
    (cause, follower) = judge(world.evidence()).words.splitlines()[1:]
    assert cause.startswith("gpu1: plugin_stopped: found gpushare-device-plugin.service inactive")
    assert follower.endswith("(follows from plugin_stopped)")


def test_a_host_or_a_cluster_that_was_not_looked_at_is_an_error(world: World) -> None:
    world.more = {"hosts": {"cp1": world.cp, "gpu1": "no connection"}}
    assert causes(world) == {("gpu1", "not_looked")}
    world.more = {"cluster": "kubectl failed"}
    assert causes(world) == {("", "not_looked")}


def test_what_may_be_wanted_is_no_error(world: World) -> None:
    annotated(world, lambda cards: cards[1].update(cordoned=True))
    world.cluster["nodes"][0]["status"]["allocatable"] = {"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "1"}
    world.gpu["gpu"]["plugin"]["enabled"] = False
    world.cluster["objects"]["skipped"].append("ValidatingAdmissionPolicy gpushare-annotations")
    gpu_token(world, issued=NOW - WEEK, expires=NOW + 3600)
    runtime_of(world, lacks="another entry")
    configured(world, CONFIG.partition("  managedResources:")[0])
    assert causes(world) == set()
    assert softer(world) == [
        ("cp1", "extender_called_for_all", "warning"),
        ("gpu1", "card_cordoned", "warning"),
        ("gpu1", "containerd_older_than_file", "warning"),
        ("gpu1", "plugin_not_at_boot", "warning"),
        ("gpu1", "token_not_renewed", "warning"),
        ("", "policies_not_served", "note"),
    ]


def test_a_plugin_that_waits_for_kubelet_is_not_called_stopped(world: World) -> None:
    world.gpu["gpu"]["plugin"].update(active="activating", state="start", says="aliyun.com/gpu-mem: waiting for kubelet")
    world.gpu["gpu"].update(sockets=[])
    assert causes(world) == {("gpu1", "plugin_not_registered")}
    assert "waiting for kubelet" in judge(world.evidence()).causes[0].found


def test_containers_that_are_young_privileged_or_going_are_not_judged(world: World) -> None:
    (only,) = world.cluster["pods"]
    world.gpu["gpu"]["containers"] = {}
    only["running"][0]["started"] = NOW
    assert causes(world) == set()
    only["running"][0]["started"] = NOW - 600
    assert causes(world) != set()
    only["containers"][0]["privileged"] = True
    assert causes(world) == set()
    only["containers"][0]["privileged"] = False
    only["deleted"] = True
    assert causes(world) == set()


def probed(world: World, pod: dict[str, Any] | None, calls: int = 4, nodes: list[str] | None = None) -> None:
    """A probe pod on node-1, and the hosts seen again."""
    second = {"gpu": {"containers": {"e" * 64: ["nvidia1"] if nodes is None else nodes}}, "plane": None}
    health = {"report": {"synced": True, "filter_calls": calls}, "why": ""}
    world.more = {"probes": {"node-1": pod}, "probed": {"gpu1": second, "cp1": {"gpu": None, "plane": {"health": health}}}}


def test_a_probe_pod_proves_its_node(world: World) -> None:
    probe = seen.pod("gpushare-verify-node-1", "e" * 64, card=1, units=1)
    probed(world, probe)
    found = judge(world.evidence())
    assert found.findings == ()
    assert found.looked_at["probe pods"] == 1


@pytest.mark.parametrize(
    ("change", "calls", "nodes", "expected"),
    [
        (lambda p: p.update(node="", running=[], scheduling="0/2 nodes"), 4, None, {("gpu1", "probe_not_scheduled")}),
        (lambda p: p.update(running=[], waiting=["CreateContainerError: no"]), 4, None, {("gpu1", "probe_not_running")}),
        (lambda p: p["annotations"].clear(), 4, None, {("gpu1", "not_annotated")}),
        (lambda p: None, 4, ["nvidia0"], {("gpu1", "wrong_card")}),
        (lambda p: None, 3, None, {("", "probe_not_called")}),
    ],
)
def test_a_probe_pod_that_proves_the_opposite(
    world: World, change: Callable[[Any], Any], calls: int, nodes: list[str] | None, expected: set[tuple[str, str]]
) -> None:
    probe = seen.pod("gpushare-verify-node-1", "e" * 64, card=1, units=1)
    change(probe)
    probed(world, probe, calls, nodes)
    assert causes(world) == expected


def test_calls_without_the_client_certificate_are_named(world: World) -> None:
    probed(world, seen.pod("gpushare-verify-node-1", "e" * 64, card=1, units=1), calls=3)
    world.more["probed"]["cp1"]["plane"]["health"]["report"]["refused_calls"] = 2
    (cause,) = judge(world.evidence()).causes
    assert "has refused 2 calls that came without the scheduler's client certificate" in cause.found


def test_probe_pods_that_could_not_be_made_or_are_gone(world: World) -> None:
    world.more = {"probes": "kubectl create failed"}
    assert causes(world) == {("", "probe_failed")}
    probed(world, None)
    assert causes(world) == {("gpu1", "probe_failed")}


def test_where_a_probe_pod_has_room(world: World) -> None:
    assert placeable(world.evidence(), "") == ({"node-1": "registry.k8s.io/pause:3.10"}, {})
    assert placeable(world.evidence(), "own:1") == ({"node-1": "own:1"}, {})
    world.gpu["gpu"]["images"] = []
    assert list(placeable(world.evidence(), "")[1].values()) == [
        "no image on node-1 that needs no command; name one in gpushare_verify_image"
    ]
    world.cluster["pods"] = [seen.pod(card=0, units=16), {**seen.pod(card=1, units=16), "running": []}]
    assert placeable(world.evidence(), "own:1") == ({}, {"node-1": "no free unit on node-1"})
    world.more = {"unproven": {"node-1": "no free unit on node-1"}}
    (note,) = judge(world.evidence()).findings
    assert (note.host, note.check, note.severity, note.found) == ("gpu1", "not_proven", "note", "not proven: no free unit on node-1")


def test_free_units_without_what_others_hold() -> None:
    node = seen.node()
    assert free_units(node, []) == 32
    assert free_units(node, [seen.pod(units=6), {**seen.pod(units=16), "node": "another"}]) == 26
    old = {**seen.pod(units=5), "annotations": {"ALIYUN_COM_GPU_MEM_IDX": "1"}}
    assert free_units(node, [old]) == 27
    node["metadata"]["annotations"]["gpushare/held"] = json.dumps({"v": 1, "cards": {UUIDS[1]: [{"units": 8}]}})
    assert free_units(node, [seen.pod(card=1, units=16)]) == 16
    node["metadata"]["annotations"].clear()
    assert free_units(node, []) is None


def test_the_scheduler_that_was_configured_places_the_probe_pods(world: World) -> None:
    assert scheduler_name(world.evidence()) == "default-scheduler"
    configured(world, CONFIG + "profiles:\n- schedulerName: gpus\n")
    assert scheduler_name(world.evidence()) == "gpus"


ADDRESS = "10.0.0.5:9440"


def metrics(**changes: Any) -> dict[str, Any]:
    return {"wanted": ADDRESS, "listens": ADDRESS, "wants_token": True, "stranger": 401, "scraper": 200, **changes}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"wants_token": False, "stranger": 200}, None),
        ({"listens": "", "stranger": "it was started without", "scraper": "it was started without"}, "metrics_wrong"),
        ({"wanted": ""}, "metrics_wrong"),
        ({"listens": "127.0.0.1:9440"}, "metrics_wrong"),
        ({"scraper": "[Errno 111] Connection refused", "stranger": "[Errno 111] Connection refused"}, "metrics_down"),
        ({"scraper": 503}, "metrics_down"),
        ({"scraper": 401}, "metrics_down"),
        ({"stranger": 200}, "metrics_open"),
    ],
)
@pytest.mark.parametrize("where", ["cp1", "gpu1"])
def test_metrics_are_for_who_has_the_token_and_for_nobody_else(world: World, where: str, changes: dict[str, Any], code: str | None) -> None:
    part = world.cp["plane"] if where == "cp1" else world.gpu["gpu"]
    part["metrics"] = metrics(**changes)
    assert causes(world) == ({(where, code)} if code else set())
