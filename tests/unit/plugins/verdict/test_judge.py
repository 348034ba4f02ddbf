# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What verify makes of what it has seen: each fault is named once, on its host, and a cluster without one has none."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.admission import WRITES
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.proof import NOT_TRIED
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.doctor import CODES
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.hints import hint
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.judge import judge, obstructed, placeable, scheduler_name

from blocks import lines
from unit.fakes.plugins.preflight.operator_facts import dra
from unit.fakes.plugins.verdict import evidence as seen
from unit.fakes.plugins.verdict.evidence import CONFIG, CONFIG_PATH, CONTAINER, MANIFEST_PATH, NOW, UUIDS, World
from unit.golden import Golden

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


def dra_published(world: World) -> None:
    """In the API alone."""
    world.cluster["dra"] = dra("node-1", "elsewhere")["published"]


def dra_process(world: World) -> None:
    """All of it, which is said once."""
    dra_published(world)
    world.gpu["gpu"]["managers"] = [{"name": "NVIDIA DRA driver", "evidence": ["process 9 (gpu-kubelet-plugin)"]}]
    reported(world.gpu, "second_plugin", found="process 9")


@pytest.mark.parametrize("change", [dra_published, dra_process])
def test_a_dra_driver_is_said_once(world: World, change: Change) -> None:
    change(world)
    ((host, check),) = [(finding.host, finding.check) for finding in judge(world.evidence()).findings]
    assert (host, check) == ("gpu1", "second_plugin")


def configured(world: World, text: str) -> None:
    """Another configuration, with which the scheduler was restarted."""
    files, sha = world.cp["plane"]["scheduler"], hashlib.sha256(text.encode()).hexdigest()
    files["configs"][CONFIG_PATH] = {"text": text, "sha256": sha}
    files["manifest"] = seen.manifest(text)
    annotations = world.cluster["schedulers"]["cp1"]["metadata"]["annotations"]
    annotations["gpushare.kubernetes/scheduler-config-sha256"] = sha


def smi_problem(world: World) -> None:
    """Driver and library differ: nvidia-smi lists nothing, the plugin has marked every GPU and registers none as healthy."""
    smi = world.gpu["gpu"]["nvidia_smi"]
    smi.update(gpus=[], driver_version=None)
    smi["problem"] = {"kind": "version_mismatch", "found": "words", "expected": "gpus", "cure": "reboot"}
    world.cluster["nodes"][0]["status"]["allocatable"] = {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "0"}


def stopped(world: World) -> None:
    """As it looks when kubelet has noticed."""
    reported(world.gpu, "plugin_stopped", found="gpushare-device-plugin.service inactive (dead)")
    world.gpu["doctor"]["registered"] = {}
    world.cluster["nodes"][0]["status"]["allocatable"] = {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "0"}


def reported(host: dict[str, Any], code: str, severity: str = "error", found: str = "words") -> None:
    """The doctor has found that."""
    host["doctor"]["findings"].append(seen.finding(code, severity, found))


def annotated(world: World, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Other GPUs in the node's annotation."""
    annotations = world.cluster["nodes"][0]["metadata"]["annotations"]
    content = json.loads(annotations["gpushare/gpus"])
    change(content["gpus"])
    annotations["gpushare/gpus"] = json.dumps(content)


def another_socket(world: World) -> None:
    world.gpu["doctor"]["strangers"].append({"name": "other.sock", "pid": 300, "process": "other-plugin"})
    world.gpu["doctor"]["registered"]["aliyun.com/gpu-mem"] = ["other-1"]


def third_gpu(world: World) -> None:
    """The driver has one more than the plugin, which hangs, has published."""
    more = {**seen.gpu(1), "index": 2, "minor": 2, "uuid": UUIDS[0][:-1] + "9"}
    world.gpu["gpu"]["nvidia_smi"]["gpus"].append(more)
    world.gpu["gpu"]["cdi"]["specs"][0]["gpus"].append(more["uuid"])


def capacity(world: World, units: int) -> None:
    for place in ("capacity", "allocatable"):
        world.cluster["nodes"][0]["status"][place]["aliyun.com/gpu-mem"] = str(units)


def runtime_of(world: World, **changes: Any) -> None:
    world.gpu["gpu"]["container_runtime"].update(changes)


def cdi(world: World, **changes: Any) -> None:
    world.gpu["gpu"]["cdi"]["specs"][0].update(changes)


def cdi_mode(world: World, mode: str) -> None:
    world.gpu["gpu"]["cdi"]["mode"] = mode


def device_gone(world: World) -> None:
    """Of which the CDI spec says so, too."""
    world.gpu["gpu"]["devices"]["nodes"]["/dev/nvidia1"] = -1
    cdi(world, missing=["/dev/nvidia1"])


def add_manifest(world: World, text: str) -> None:
    world.cp["plane"]["scheduler"]["others"][f"{MANIFEST_PATH}.bak"] = text


DEAD = "http://127.0.0.1:9443/theirs"


def dead_extender(world: World, more: str = "") -> None:
    configured(world, CONFIG.replace("extenders:\n", f"extenders:\n- urlPrefix: {DEAD}\n  filterVerb: filter\n{more}"))
    world.cp["plane"]["scheduler"]["unreached"] = {DEAD: "Connection refused"}


def dead_webhook(world: World, *writes: str) -> None:
    world.cluster["admission"]["dead"] = [
        {"object": "validatingwebhookconfiguration theirs", "webhook": "check", "service": "tools/hook", "writes": [*writes]}
    ]


OWN_LEASE = "--leader-elect-resource-name"

OF_EXTENDER = {code for code in CODES if code.startswith(("extender", "certificate"))}
FAULTS: list[tuple[Change, str, str]] = [
    *((lambda w, code=code: reported(w.cp, code), "cp1", code) for code in sorted(OF_EXTENDER)),
    *((lambda w, code=code: reported(w.gpu, code), "gpu1", code) for code in sorted(CODES - OF_EXTENDER)),
    (lambda w: w.cp.update(doctor={"problem": "there is no gpushare-doctor", "cure": "", "answer": ""}), "cp1", "not_checked"),
    (lambda w: add_manifest(w, seen.manifest()), "cp1", "stale_scheduler_file"),
    (lambda w: add_manifest(w, seen.manifest().replace("name: kube-scheduler", "name: x", 1).replace("--config", OWN_LEASE)), "cp1", ""),
    (another_socket, "gpu1", "second_plugin"),
    (third_gpu, "gpu1", "wrong_gpu_count"),
    (lambda w: annotated(w, lambda gpus: gpus[1].update(index=5)), "gpu1", "annotation_wrong"),
    (lambda w: w.cluster["nodes"][0]["metadata"]["annotations"].clear(), "gpu1", "annotation_wrong"),
    (lambda w: capacity(w, 24), "gpu1", "capacity_short"),
    (lambda w: capacity(w, 48), "gpu1", "capacity_over"),
    (lambda w: w.cluster["nodes"].clear(), "gpu1", "node_missing"),
    (lambda w: w.cluster["nodes"][0]["status"].update(conditions=[]), "gpu1", "node_not_ready"),
    (smi_problem, "gpu1", "driver_mismatch"),
    (lambda w: configured(w, CONFIG.replace("filterVerb: filter", 'filterVerb: ""')), "cp1", "extender_not_called"),
    (lambda w: configured(w, CONFIG.replace("32766", "32767")), "cp1", "extender_address_wrong"),
    (lambda w: configured(w, CONFIG.replace("  weight: 1\n", "  ignorable: true\n  weight: 1\n")), "cp1", "extender_entry_differs"),
    (dead_extender, "cp1", "extender_of_others"),
    (lambda w: dead_extender(w, "  ignorable: true\n"), "cp1", ""),
    (lambda w: w.cluster["leases"].clear(), "", "scheduler_not_leading"),
    (lambda w: w.cluster["leases"]["kube-scheduler"].update(holder=""), "", "scheduler_not_leading"),
    (lambda w: w.cluster["leases"]["kube-scheduler"].update(alive=False), "", "scheduler_not_leading"),
    (lambda w: w.cluster["leases"].update(other={"holder": "", "alive": False}), "", ""),
    *((lambda w, write=write: dead_webhook(w, write, "pods"), "", "webhook_silent") for write, *_ in WRITES if write != "pods"),
    (lambda w: w.cluster["leases"]["kube-controller-manager"].update(alive=False), "", "controllers_not_leading"),
    (lambda w: w.cluster["leases"]["kube-controller-manager"].update(holder=""), "", "controllers_not_leading"),
    (lambda w: w.cluster["leases"].pop("kube-controller-manager"), "", ""),
    (lambda w: w.cp["plane"]["lives"].update({"/etc/kubernetes/pki/apiserver.crt": [0, NOW - 1]}), "cp1", "control_plane_certificate"),
    (lambda w: w.cluster["admission"].update(unguarded="a pod"), "", "policies_not_enforced"),
    (lambda w: w.gpu["files"]["changed"].append("/etc/gpushare/gpushare-device-plugin.env"), "gpu1", "files_changed"),
    (lambda w: w.gpu["files"]["drop_ins"].append({"path": "/a.conf", "starts": True, "stops": []}), "gpu1", "unit_overridden"),
    (lambda w: configured(w, CONFIG.partition("extenders:")[0]), "cp1", "scheduler_not_configured"),
    (lambda w: w.cp["plane"]["scheduler"].update(manifest=None), "cp1", "scheduler_stopped"),
    (lambda w: w.cluster["schedulers"]["cp1"]["metadata"]["annotations"].clear(), "cp1", "scheduler_older_than_file"),
    (lambda w: w.cluster["schedulers"].update(cp1=None), "cp1", "scheduler_stopped"),
    (stopped, "gpu1", "plugin_stopped"),
    (lambda w: w.gpu["kubelet"].update(running=False), "gpu1", "kubelet_stopped"),
    (lambda w: w.gpu["gpu"]["without_room"].append("/run (0 MiB free)"), "gpu1", "disk_full"),
    (lambda w: runtime_of(w, running_default="runc", lacks="the default is runc"), "gpu1", "default_runtime_not_running"),
    (lambda w: runtime_of(w, file_default="runc"), "gpu1", "default_runtime_missing"),
    (lambda w: runtime_of(w, problem="containerd is dead"), "gpu1", "runtime_silent"),
    (lambda w: runtime_of(w, broken="config dump failed"), "gpu1", "runtime_file_broken"),
    (lambda w: w.gpu["gpu"]["cgroups"].update(runtime="cgroupfs"), "gpu1", "cgroup_drivers_differ"),
    (lambda w: cdi(w, missing=["/usr/lib/libcuda.so.1"]), "gpu1", "cdi_stale"),
    (lambda w: w.gpu["gpu"]["cdi"]["specs"].clear(), "gpu1", "cdi_missing"),
    (lambda w: device_gone(w), "gpu1", "gpu_device_missing"),
    (lambda w: w.gpu["gpu"]["strategy"]["toolkit"].update(no_cgroups=True) or cdi_mode(w, "auto"), "gpu1", "no_cgroups"),
    (lambda w: w.cluster["objects"]["missing"].append("ClusterRoleBinding gpushare-extender"), "", "rbac_differs"),
    (lambda w: w.cluster["objects"]["differs"].append("ValidatingAdmissionPolicy gpushare-annotations"), "", "policy_differs"),
    (lambda w: w.cluster["nodes"][0]["metadata"]["labels"].clear(), "gpu1", "label_missing"),
    (lambda w: w.gpu["runtime"].update(wheel_sha256="c" * 64), "gpu1", "runtime_differs"),
    (lambda w: w.gpu["runtime"].update(environment=""), "gpu1", "runtime_missing"),
    (lambda w: w.gpu["gpu"]["containers"].update({CONTAINER: ["nvidia1"]}), "gpu1", "wrong_gpu"),
    (lambda w: w.gpu["gpu"]["containers"].pop(CONTAINER), "gpu1", "container_not_seen"),
    (lambda w: w.cluster["pods"][0]["annotations"].clear(), "gpu1", "not_annotated"),
    (lambda w: annotated(w, lambda gpus: gpus[1].update(health="Xid 79")), "gpu1", "capacity_short"),
]


@pytest.mark.parametrize(("change", "host", "code"), FAULTS, ids=[f"{number}-{code}" for number, (_c, _h, code) in enumerate(FAULTS)])
def test_each_fault_is_the_only_cause(world: World, change: Change, host: str, code: str) -> None:
    change(world)
    if code == "capacity_short" and "Xid" in world.cluster["nodes"][0]["metadata"]["annotations"]["gpushare/gpus"]:
        world.cluster["nodes"][0]["status"]["allocatable"] = {"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "1"}
        code = "gpu_unusable"
    assert causes(world) == ({(host, code)} if code else set())


def test_what_only_follows_names_its_cause(world: World) -> None:
    stopped(world)
    found = {one.check: one.because for one in judge(world.evidence()).findings}
    assert found == {"plugin_stopped": "", "capacity_short": "plugin_stopped"}
    words = judge(world.evidence()).words
    assert words.startswith("1 problem, and 1 finding that follows from it\n\nThe chain ")
    assert "\n\n✗ plugin_stopped gpu1\n" in words
    assert lines(words).startswith("gpu1: plugin_stopped: found gpushare-device-plugin.service inactive")
    assert words.endswith("(follows from plugin_stopped)")


def test_what_was_not_checked_at_is_named_and_the_rest_judged(world: World) -> None:
    world.more = {"hosts": {"cp1": "no route", "gpu1": world.gpu, "gpu2": "no connection"}, "cluster": "kubectl failed"}
    world.gpu["places"]["memory_unit"] = "no unit"
    found = judge(world.evidence())
    assert [(one.host, one.check, one.found) for one in found.findings] == [
        ("", "not_checked", "nothing in the API, because kubectl failed"),
        ("cp1", "not_checked", "nothing, because no route"),
        ("gpu2", "not_checked", "nothing, because no connection"),
    ]
    assert found.looked_at == {"hosts": 1, "GPU nodes": 1, "containers": 0, "probe pods": 0}


def test_a_host_that_is_not_believed_is_told_with_the_cure_of_that(world: World) -> None:
    why = "gpu1 is not believed: found the node 'b'; expected 'a'; it was renamed: hostnamectl set-hostname a; systemctl restart kubelet"
    world.more = {"hosts": {"cp1": world.cp, "gpu1": why}}
    (found,) = judge(world.evidence()).causes
    assert (found.check, found.expected) == ("not_checked", "'a'")
    assert found.found.endswith(": the node 'b'")
    assert why.endswith(f"; {found.cure}")
    assert found.cure.startswith("it was")


def test_without_the_api_a_control_plane_is_judged_by_its_files(world: World) -> None:
    world.more = {"cluster": "kubectl failed"}
    assert causes(world) == {("", "not_checked")}
    world.cp["plane"]["scheduler"]["configs"].clear()
    assert causes(world) == {("", "not_checked"), ("cp1", "scheduler_not_configured")}
    world.cp["plane"]["scheduler"]["server_says"] = "no space"
    (found,) = (one for one in judge(world.evidence()).causes if one.check == "not_checked")
    assert found.found.endswith("cp1: no space")


def test_objects_that_are_gone_or_changed_are_told_apart(world: World) -> None:
    world.cluster["objects"].update(
        missing=["ValidatingAdmissionPolicy b", "ClusterRole a"], differs=["ClusterRole c"], unserved=["Policy d", "Policy e"]
    )
    found = [(one.check, one.severity, one.found, one.expected) for one in judge(world.evidence()).findings]
    assert found == [
        ("policy_differs", "error", "ValidatingAdmissionPolicy b gone", "the policy that the roles apply"),
        ("rbac_differs", "error", "ClusterRole a gone, ClusterRole c changed by others", "the rights that the roles apply"),
        ("policies_not_served", "note", "an API server without Policy d, Policy e", "admission policies"),
    ]


def test_containers_of_other_nodes_and_probe_pods_are_not_this_nodes(world: World) -> None:
    other, probe = seen.pod("elsewhere", "f" * 64), seen.pod("gpushare-verify-node-1", "f" * 64)
    world.cluster["pods"] += [{**other, "node": "node-2"}, {**probe, "probe": True}, seen.pod("second", gpu=0)]
    found = judge(world.evidence())
    assert (found.findings, found.looked_at["containers"]) == ((), 2)


def test_without_an_answer_of_the_driver_no_container_is_judged(world: World) -> None:
    smi_problem(world)
    world.gpu["gpu"]["containers"] = {}
    found = judge(world.evidence())
    assert {one.check for one in found.causes} == {"driver_mismatch"}
    assert found.looked_at["containers"] == 0


def test_two_gpu_nodes_are_both_judged_and_counted(world: World) -> None:
    second = json.loads(json.dumps(world.gpu))
    second["node_name"] = "node-2"
    second["runtime"]["environment"] = ""
    world.more = {"hosts": {"cp1": world.cp, "gpu1": world.gpu, "gpu2": second}}
    world.cluster["nodes"].append({**seen.node(), "metadata": {**seen.node()["metadata"], "name": "node-2"}})
    world.cluster["pods"].append({**seen.pod("b"), "node": "node-2"})
    found = judge(world.evidence())
    assert {(one.host, one.check) for one in found.causes} == {("gpu2", "runtime_missing")}
    assert found.looked_at == {"hosts": 3, "GPU nodes": 2, "containers": 2, "probe pods": 0}


def test_what_may_be_wanted_is_no_error(world: World) -> None:
    annotated(world, lambda gpus: gpus[1].update(cordoned=True))
    world.cluster["nodes"][0]["status"]["allocatable"] = {"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "1"}
    reported(world.gpu, "plugin_not_at_boot", "warning")
    world.cluster["objects"]["unserved"].append("ValidatingAdmissionPolicy gpushare-annotations")
    reported(world.gpu, "token_not_renewed", "warning")
    runtime_of(world, lacks="another entry")
    configured(world, CONFIG.partition("  managedResources:")[0])
    assert causes(world) == set()
    assert softer(world) == [
        ("cp1", "extender_called_for_all", "warning"),
        ("gpu1", "gpu_cordoned", "warning"),
        ("gpu1", "plugin_not_at_boot", "warning"),
        ("gpu1", "runtime_older_than_file", "warning"),
        ("gpu1", "token_not_renewed", "warning"),
        ("", "policies_not_served", "note"),
    ]


def test_device_files_that_are_closed_and_cgroups_that_nobody_sets_up_are_warnings(world: World, golden: Golden) -> None:
    world.gpu["gpu"]["devices"]["nodes"].update({"/dev/nvidia1": 0o600, "/dev/nvidiactl": 0o666})
    world.gpu["gpu"]["strategy"]["toolkit"]["no_cgroups"] = True
    assert softer(world) == [("gpu1", "gpu_device_closed", "warning"), ("gpu1", "no_cgroups", "warning")]
    closed, cgroups = judge(world.evidence()).findings
    assert (closed.found, closed.cure.partition(";")[0]) == ("/dev/nvidia1 with mode 0600", "chmod 0666 /dev/nvidia1")
    golden(cgroups.found)
    world.gpu["gpu"]["devices"]["mode"] = 0o600
    assert [check for _host, check, _severity in softer(world)] == ["no_cgroups"], "as NVreg_DeviceFileMode says"


def test_pods_of_a_scheduler_that_does_not_call_the_extender_are_a_warning(world: World, golden: Golden) -> None:
    world.cluster["pods"] += [{**seen.pod(name), "scheduler": "mine" * 40} for name in "abcde"]
    (finding,) = judge(world.evidence()).findings
    assert (finding.host, finding.check, finding.severity) == ("", "other_scheduler", "warning")
    assert finding.found == f"pods of the scheduler {'mine' * 20!r}: default/a, default/b, default/c and 2 more"
    assert "schedulerName: default-scheduler" in finding.cure
    configured(world, CONFIG + f"profiles:\n- schedulerName: default-scheduler\n- schedulerName: {'mine' * 20}\n")
    world.cluster["pods"][-1]["scheduler"] = "others"
    for pod in world.cluster["pods"][1:-1]:
        pod["scheduler"] = "mine" * 20
    (finding,) = judge(world.evidence()).findings
    golden(finding.found)
    world.cluster["pods"][-1]["node"] = ""
    (finding,) = judge(world.evidence()).findings
    golden(f"{finding.found}: {finding.cure}")
    world.cluster["pods"][-1]["deleted"] = True
    assert judge(world.evidence()).findings == ()
    world.cluster["pods"][-1]["deleted"] = False
    world.more = {"hosts": {"gpu1": world.gpu}}
    assert judge(world.evidence()).findings == (), "without a control plane nobody knows"


def test_a_second_scheduler_is_named_by_the_events_of_pods_that_came_past_the_extender(world: World, golden: Golden) -> None:
    world.cluster["passed_by"] = [{"uid": "uid-of-sharing", "by": "default-scheduler-theirs-7f6c"}]
    (finding,) = judge(world.evidence()).findings
    assert (finding.host, finding.check, finding.severity) == ("", "second_scheduler", "warning")
    golden(finding.found)
    golden(finding.cure)


@pytest.mark.parametrize(
    ("by", "change"),
    [
        ("default-scheduler-cp1", {}),
        ("default-scheduler-CP1.example.org", {}),
        ("default-scheduler-host-2", {}),
        ("", {}),
        ("mine-theirs", {"scheduler": "mine"}),
        ("default-scheduler-theirs", {"uid": "another"}),
        ("default-scheduler-theirs", {"probe": True}),
    ],
)
def test_no_second_scheduler_is_seen_in_a_pod_that_ours_placed_or_none_or_of_which_more_is_said(
    world: World, by: str, change: dict[str, Any]
) -> None:
    """Whose Binding was changed, that names its node itself, or that names another scheduler."""
    world.cluster["leases"]["kube-scheduler"]["holder"] = "host-2_1"
    world.cluster["passed_by"] = [{"uid": "uid-of-sharing", "by": by}]
    world.cluster["pods"][0].update(change)
    assert {one.check for one in judge(world.evidence()).findings} <= {"other_scheduler"}


def test_a_dashboard_that_the_inventory_does_not_have_is_a_warning(world: World) -> None:
    for daemon in ("gpushare-extender", "gpushare-dashboard"):
        world.cp["doctor"]["daemons"][daemon] = dict(world.cp["doctor"]["daemons"]["gpushare-extender"])
    assert (causes(world), softer(world)) == (set(), [("cp1", "dashboard_unexpected", "warning")])
    world.cp["places"]["dashboard"] = True
    assert (causes(world), softer(world)) == (set(), [])


def test_containers_that_hold_gpus_and_request_none_are_a_warning(world: World) -> None:
    world.gpu["gpu"]["strangers"].append({"name": "container c of pod n/p", "gpus": ["nvidia1"], "privileged": False})
    sibling = {"index": 1, "name": "side", "units": 0, "gpus": 0, "privileged": False}
    (only,) = world.cluster["pods"]
    only["containers"].append(sibling)
    only["running"].append({"name": "side", "id": "d" * 64, "started": NOW - 1})
    verdict = judge(world.evidence())
    assert [one.found for one in verdict.findings] == ["container c of pod n/p with nvidia1 in its /dev"]
    world.gpu["gpu"]["containers"]["d" * 64] = ["nvidia0"]
    (finding,) = judge(world.evidence()).findings
    assert (finding.check, finding.severity) == ("gpu_without_request", "warning")
    assert f"container side of pod {only['namespace']}/{only['name']} with nvidia0 in its /dev" in finding.found
    sibling["privileged"] = True
    assert "side" not in judge(world.evidence()).findings[0].found
    sibling["privileged"], only["running"][1]["started"] = False, NOW - 0.9
    assert "side" not in judge(world.evidence()).findings[0].found


def probed(world: World, pod: dict[str, Any] | None, calls: int = 4, nodes: list[str] | None = None) -> None:
    """A probe pod on node-1, and the hosts seen again."""
    second = {"gpu": {"containers": {"e" * 64: ["nvidia1"] if nodes is None else nodes}}, "plane": None}
    world.more = {"probes": {"node-1": pod}, "probed": {"gpu1": second, "cp1": again(calls)}}


def probe_pod() -> dict[str, Any]:
    return seen.pod("gpushare-verify-node-1", "e" * 64, gpu=1, units=1)


def again(calls: int, rejected: int = 0, why: str = "") -> dict[str, Any]:
    """A control plane seen again; what its extender has counted."""
    health = {"filter_calls": calls, "unauthorized_calls": rejected, "why": why}
    return {"gpu": None, "plane": None, "doctor": seen.doctor("gpushare-extender", health=health)}


def test_a_probe_pod_proves_its_node(world: World) -> None:
    probed(world, probe_pod())
    found = judge(world.evidence())
    assert (found.findings, found.looked_at["probe pods"]) == ((), 1)


@pytest.mark.parametrize(
    ("change", "calls", "nodes", "expected"),
    [
        (lambda p: p["annotations"].clear(), 4, None, {("gpu1", "not_annotated")}),
        (lambda p: None, 4, ["nvidia0"], {("gpu1", "wrong_gpu")}),
        (lambda p: None, 3, None, {("", "probe_not_called")}),
    ],
)
def test_a_probe_pod_that_proves_the_opposite(
    world: World, change: Callable[[Any], Any], calls: int, nodes: list[str] | None, expected: set[tuple[str, str]]
) -> None:
    probe = probe_pod()
    change(probe)
    probed(world, probe, calls, nodes)
    assert causes(world) == expected


PROBE = "probe pod default/gpushare-verify-node-1"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"node": "", "scheduling": "0/2 nodes"}, "probe_not_scheduled", "not placed: 0/2 nodes"),
        ({"node": "", "scheduling": NOT_TRIED}, "probe_not_scheduled", f"not placed: {NOT_TRIED}"),
        (
            {"message": "evicted", "waiting": ["ErrImage no", "Creating"]},
            "probe_not_running",
            "placed and not running: evicted; ErrImage no; Creating",
        ),
        ({"waiting": ["ErrImage no"]}, "probe_not_running", "placed and not running: ErrImage no"),
        ({"phase": "Pending"}, "probe_not_running", "placed and not running: its phase is Pending"),
    ],
)
def test_why_a_probe_pod_does_not_run_is_said(world: World, change: dict[str, Any], code: str, words: str) -> None:
    probed(world, {**probe_pod(), "running": [], **change})
    found = judge(world.evidence())
    assert [(one.host, one.check, one.found) for one in found.causes] == [("gpu1", code, f"{PROBE} {words}")]
    world.cp["plane"]["scheduler"]["says"] = "E1129 no lease"
    last = "; the scheduler's last error, on cp1: E1129 no lease" if NOT_TRIED in words else ""
    assert [one.found for one in judge(world.evidence()).causes] == [f"{PROBE} {words}{last}"]
    assert found.looked_at["probe pods"] == 0


def test_who_leads_in_the_place_of_our_scheduler_is_said_of_a_probe_pod_that_none_has_tried(world: World, golden: Golden) -> None:
    probed(world, {**probe_pod(), "running": [], "node": "", "scheduling": NOT_TRIED})
    world.cluster["leases"]["kube-scheduler"]["holder"] = "volcano-7c9f_3b2a"
    (finding,) = judge(world.evidence()).causes
    golden(f"{finding.found}: {finding.cure}")


@pytest.mark.parametrize(
    "words",
    [
        'plugin type="calico" failed (add): failed to find plugin "calico" in path [/opt/cni/bin]',
        "failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.254",
        "runc create failed: unable to start container process: can't get final child's PID from pipe: EOF",
        "mkdir /var/log/pods/a: read-only file system",
        "write /run/a: no space left on device",
        "accept4: too many open files",
        "error locating runtime: no runtime binary found from candidate list: [runc]",
        "failed to create shim task: OCI runtime create failed: unable to retrieve OCI runtime error (open /run/containerd/a/log.json: "
        'no such file or directory): exec: "runc": executable file not found in $PATH',
        'fork/exec: exec: "/usr/sbin/runc": permission denied',
        'validate CRI v1 runtime API for endpoint "unix:///a": rpc error: code = DeadlineExceeded desc = context deadline exceeded',
        'Failed to pull image "pause:3": dial tcp: lookup registry.k8s.io: no such host',
    ],
)
def test_the_words_of_others_have_a_next_step(world: World, words: str, golden: Golden) -> None:
    probed(world, {**probe_pod(), "running": [], "waiting": [f"its last Event: {words}"]})
    (found,) = judge(world.evidence()).causes
    assert found.found.endswith(words)
    golden(found.cure)


@pytest.mark.parametrize("words", ['exec: "sleep": executable file not found', 'exec: "/run.sh": stat /run.sh: no such file or directory'])
def test_a_program_that_an_image_lacks_is_not_sought_on_the_host(words: str) -> None:
    start = "runc create failed: unable to start container process: error during container init"
    assert hint(f"{start}: {words}") == ""


def test_no_command_has_an_option_of_others_in_the_place_of_a_name() -> None:
    words = 'failed to find plugin "--help" in path [/opt/cni/bin]'
    assert hint(words) == ""


def test_a_kubelet_without_a_certificate_is_told_what_gives_it_one(world: World, golden: Golden) -> None:
    says = "unable to load bootstrap kubeconfig: stat x: no such file"
    unit = {"name": "kubelet.service", "load": "loaded", "active": "failed", "state": "failed", "result": "exit-code", "says": says}
    world.gpu["kubelet"].update(running=False, unit=unit)
    golden(next(one.cure for one in judge(world.evidence()).causes if one.check == "kubelet_stopped"))


@pytest.mark.parametrize(("load", "result"), [("masked", "exit-code"), ("masked", "success"), ("loaded", "success")])
def test_what_a_kubelet_said_before_somebody_stopped_it_is_no_cause(world: World, load: str, result: str) -> None:
    says = 'E1130 10:00:00.000000 1 reflector.go:204] "Failed to watch" err="secrets "a" is forbidden: User "system:node:gpu1" cannot list'
    unit = {"name": "kubelet.service", "load": load, "active": "inactive", "state": "dead", "result": result, "says": says}
    world.gpu["kubelet"].update(running=False, unit=unit)
    (found,) = [one for one in judge(world.evidence()).causes if one.check == "kubelet_stopped"]
    assert (hint(says) != "", found.cure.split(";")[0]) == (
        True,
        "systemctl unmask kubelet" if load == "masked" else "systemctl restart kubelet",
    )
    of_any_day = f"{says} secrets: no relationship found between node 'gpu1' and this object"
    assert hint(of_any_day) == ""


def test_an_extender_is_not_missed_where_the_schedulers_own_filters_leave_no_node(world: World) -> None:
    """As where kubelet takes no more pods."""
    probed(world, {**probe_pod(), "running": [], "node": "", "scheduling": "0/3 nodes are available: 1 Too many pods"}, calls=3)
    assert causes(world) == {("gpu1", "probe_not_scheduled")}


def test_what_is_wrong_with_a_gpu_nodes_kubelet_explains_no_leader(world: World) -> None:
    world.gpu["kubelet"].update(running=False)
    for lease in world.cluster["leases"].values():
        lease.update(alive=False)
    assert causes(world) == {("gpu1", "kubelet_stopped"), ("", "scheduler_not_leading"), ("", "controllers_not_leading")}


@pytest.mark.parametrize("second", [None, {}, {"gpu": None, "plane": None}])
def test_a_probe_pod_whose_node_was_not_seen_again_proves_nothing(world: World, second: dict[str, Any] | None) -> None:
    probed(world, probe_pod())
    world.more["probed"].pop("gpu1")
    if second is not None:
        world.more["probed"]["gpu1"] = second
    found = judge(world.evidence())
    assert [(one.host, one.check, one.found) for one in found.causes] == [("gpu1", "not_checked", f"nothing of {PROBE}")]
    assert found.looked_at["probe pods"] == 0


def test_a_probe_pod_that_is_being_deleted_proves_nothing(world: World) -> None:
    probed(world, {**probe_pod(), "deleted": True})
    found = judge(world.evidence())
    assert (found.findings, found.looked_at["probe pods"]) == ((), 0)


def test_a_probe_pod_whose_request_was_taken_from_it_is_a_finding(world: World, golden: Golden) -> None:
    """By a webhook or policy in the namespace: it runs, and has proven nothing."""
    for containers in ([], [{**probe_pod()["containers"][0], "units": 0}]):
        probed(world, {**probe_pod(), "containers": containers})
        found = judge(world.evidence())
        assert [(one.host, one.check) for one in found.causes] == [("gpu1", "probe_failed")]
        assert found.looked_at["probe pods"] == 0
    golden(found.causes[0].found)
    golden(found.causes[0].cure)


def test_probe_pods_that_others_give_to_another_scheduler_are_told_as_that(world: World, golden: Golden) -> None:
    """As by the admission of a scheduler that has gone: it does not ask the extender, which is well."""
    probed(world, {**probe_pod(), "running": [], "node": "", "scheduling": NOT_TRIED, "scheduler": "theirs"})
    found = judge(world.evidence())
    assert [(one.host, one.check) for one in found.causes] == [("gpu1", "probe_not_scheduled")]
    golden(found.causes[0].found)
    golden(found.causes[0].cure)


def test_behind_others_admission_a_node_is_judged_by_a_probe_pod_of_kube_system(world: World) -> None:
    theirs = {**probe_pod(), "running": [], "node": "", "scheduling": NOT_TRIED, "scheduler": "theirs"}
    for ours, checks, proven in (
        ({}, {"probe_not_scheduled"}, 1),
        ({"running": [], "phase": "Pending", "waiting": ["x"]}, {"probe_not_scheduled", "probe_not_running"}, 0),
    ):
        probed(world, {**probe_pod(), **ours})
        world.more.update(moved={"node-1": theirs})
        found = judge(world.evidence())
        assert ({one.check for one in found.findings}, found.looked_at["probe pods"]) == (checks, proven)
    gates = {"changed": ['schedulingGates [{"name": "queue"}]'], "scheduling": "Scheduling is blocked due to non-empty scheduling gates"}
    probed(world, probe_pod())
    world.more.update(moved={"node-1": {**theirs, **gates, "scheduler": probe_pod()["scheduler"]}})
    found = judge(world.evidence())
    assert [(one.check, "schedulingGates" in one.found) for one in found.causes] == [("probe_not_scheduled", True)]
    assert found.looked_at["probe pods"] == 1


def test_a_namespace_that_takes_no_probe_pods_is_a_warning_and_the_node_is_proven(world: World, golden: Golden) -> None:
    probed(world, probe_pod())
    world.more.update(namespace="team", rejected='pods "gpushare-verify-node-1" is forbidden: exceeded quota')
    found = judge(world.evidence())
    assert [(one.host, one.check, one.severity) for one in found.findings] == [("", "probe_rejected", "warning")]
    assert found.looked_at["probe pods"] == 1
    golden(found.findings[0].found)
    golden(found.findings[0].cure)


def test_a_probe_pod_that_is_as_young_as_can_be_is_looked_at(world: World) -> None:
    probe = probe_pod()
    probe["running"][0]["started"] = NOW + 100
    probed(world, probe)
    assert judge(world.evidence()).looked_at["probe pods"] == 1
    probed(world, probe, nodes=["nvidia0"])
    found = judge(world.evidence())
    assert ([one.check for one in found.causes], found.looked_at["probe pods"]) == (["wrong_gpu"], 0)


def test_every_probe_pod_is_judged_and_those_of_unknown_nodes_are_the_clusters(world: World) -> None:
    good = probe_pod()
    probed(world, good)
    world.more["probes"] = {"node-9": None, "node-1": good, "node-8": None}
    world.more["unproven"] = {"node-7": {"reason": "full", "found": "no free unit"}}
    found = judge(world.evidence())
    assert [(one.host, one.check, one.severity, one.found) for one in found.findings] == [
        ("", "probe_failed", "error", "the probe pod of node-9 gone, the probe pod of node-8 gone"),
        ("", "not_proven", "note", "not proven: no free unit"),
    ]
    assert found.looked_at["probe pods"] == 1


Counted = tuple[int, int] | str


def said_of_calls(world: World, *reports: tuple[Counted, Counted]) -> list[str]:
    """What is said of the calls, when each control plane's extender had counted this (before, after) the probe: (calls, rejected
    ones), or why that is not known."""
    probed(world, probe_pod())
    world.more["hosts"], world.more["probed"] = {"gpu1": world.gpu}, {"gpu1": world.more["probed"]["gpu1"]}
    for number, counts in enumerate(reports):
        before, after = (again(0, why=one) if isinstance(one, str) else again(*one) for one in counts)
        world.more["hosts"][f"plane{number}"] = {**json.loads(json.dumps(world.cp)), "doctor": before["doctor"]}
        world.more["probed"][f"plane{number}"] = after
    return [one.found for one in judge(world.evidence()).findings if one.check == "probe_not_called"]


NOT_ASKED = "the extender has not been asked (filter_calls is 3)"
OF_STRANGERS = ", and has rejected 1 calls that came without the scheduler's client certificate"


def test_one_extender_that_was_asked_is_enough(world: World) -> None:
    three, four, none = (3, 0), (4, 0), (0, 0)
    assert said_of_calls(world) == []
    assert said_of_calls(world, (three, three), (three, four)) == []
    assert said_of_calls(world, (three, four), (three, three)) == []
    assert said_of_calls(world, (three, three), (three, three)) == [f"{NOT_ASKED}; {NOT_ASKED}"]
    assert said_of_calls(world, (three, three), (three, "why 1")) == [f"{NOT_ASKED}; why 1"]
    assert said_of_calls(world, (none, (1, 0))) == []
    assert said_of_calls(world, ("why 0", (1, 0))) == []
    assert said_of_calls(world, (none, none)) == [NOT_ASKED.replace("3", "0")]
    for before, after, words in ((2, 3, NOT_ASKED + OF_STRANGERS), (3, 3, NOT_ASKED), (4, 3, NOT_ASKED), (0, 1, NOT_ASKED + OF_STRANGERS)):
        assert said_of_calls(world, ((3, before), (3, after))) == [words]
    assert said_of_calls(world, ((3, 2), (4, 9))) == []
    said_of_calls(world, (three, three))
    for probes in ({}, None):
        world.more["probes"] = probes
        assert judge(world.evidence()).findings == ()
    said_of_calls(world, (three, three))
    del world.more["probed"]["plane0"]
    assert judge(world.evidence()).findings == ()


def test_an_extender_that_nothing_is_known_of_was_not_called(world: World) -> None:
    said_of_calls(world, ((3, 0), (4, 0)))
    world.more["probed"]["plane0"]["doctor"]["health"] = None
    assert [one.found for one in judge(world.evidence()).findings] == ["the extender does not run"]
    world.more["probed"]["plane0"]["doctor"] = {"problem": "no answer", "cure": "", "answer": ""}
    assert [one.found for one in judge(world.evidence()).findings] == ["no answer"]


def test_probe_pods_that_could_not_be_made_or_are_gone(world: World) -> None:
    world.more = {"probes": "kubectl create failed"}
    assert causes(world) == {("", "probe_failed")}
    probed(world, None)
    assert causes(world) == {("gpu1", "probe_failed")}


def test_a_sick_node_keeps_no_probe_pod_from_the_others(world: World) -> None:
    second = copy.deepcopy(world.gpu)
    second["node_name"] = "node-2"
    sick = {"hosts": {"cp1": world.cp, "gpu1": world.gpu, "gpu2": second}}
    world.more = sick
    reported(world.gpu, "plugin_stopped")
    only = {"gpu1": "first cure plugin_stopped of gpu1"}

    def obstacles() -> dict[str, str]:
        verdict = judge(world.evidence())
        mine = [one for one in verdict.findings if one.host in ("gpu2", "cp2") and one.severity == "error"]
        verdict = replace(verdict, findings=tuple(one for one in verdict.findings if one not in mine))
        return {node: why["found"] for node, why in obstructed(world.evidence(), verdict).items()}

    assert obstacles() == {"node-1": only["gpu1"]}
    reported(world.cp, "extender_not_synced")
    assert obstacles() == {"node-1": only["gpu1"], "node-2": "first cure extender_not_synced of cp1"}
    # Another control plane may lead.
    sick["hosts"]["cp2"] = {**copy.deepcopy(world.cp), "node_name": "plane1", "doctor": seen.doctor("gpushare-extender")}
    assert obstacles() == {"node-1": only["gpu1"]}


def test_what_stops_no_pod_keeps_no_probe_pod_back(world: World) -> None:
    """A node's own fault would stay hidden behind it."""
    for change, found in (
        (lambda: reported(world.cp, "dashboard_down"), "dashboard_down"),
        (lambda: dead_webhook(world, "states of nodes"), "webhook_silent"),
    ):
        change()
        verdict = judge(world.evidence())
        assert found in {cause.check for cause in verdict.causes}
        assert obstructed(world.evidence(), verdict) == {}
    dead_webhook(world, "states of nodes", "Bindings")
    assert set(obstructed(world.evidence(), judge(world.evidence()))) == {"node-1"}


def test_gpus_of_two_hosts_with_one_uuid_are_a_warning(world: World) -> None:
    assert not judge(world.evidence()).findings
    second = copy.deepcopy(world.gpu)
    world.more = {"hosts": {"cp1": world.cp, "gpu1": world.gpu, "gpu2": second}}
    (finding,) = [one for one in judge(world.evidence()).findings if one.check == "uuid_twice"]
    assert (finding.severity, finding.found) == ("warning", f"{UUIDS[0]} on gpu1 and gpu2, {UUIDS[1]} on gpu1 and gpu2")


def test_where_a_probe_pod_has_room(world: World, golden: Golden) -> None:
    assert placeable(world.evidence(), "") == ({"node-1": "registry.k8s.io/pause:3.10"}, {})
    assert placeable(world.evidence(), "own:1") == ({"node-1": "own:1"}, {})
    world.gpu["gpu"]["images"] = []
    no_image = placeable(world.evidence(), "")[1]["node-1"]
    assert no_image["reason"] == "no_image"
    golden(no_image["found"])
    world.cluster["pods"] = [seen.pod(gpu=0, units=16), {**seen.pod(gpu=1, units=16), "running": []}]
    images, unproven = placeable(world.evidence(), "own:1")
    assert (images, unproven["node-1"]["reason"]) == ({}, "full")
    world.more = {"unproven": unproven, "required": True}
    (note,) = judge(world.evidence()).findings
    assert (note.host, note.check, note.severity, note.found) == ("gpu1", "not_proven", "note", "not proven: no free unit on node-1")
    assert "when there is room" in note.cure


def test_who_asks_for_probe_pods_is_not_told_that_all_is_well_without_them(world: World) -> None:
    world.more = {"unproven": {"node-1": {"reason": "no_image", "found": "x"}}}
    assert judge(world.evidence()).ok
    world.more["required"] = True
    assert causes(world) == {("gpu1", "not_proven")}


def test_what_concerns_others_more_than_us_is_a_warning(world: World) -> None:
    dead_webhook(world, "pods")
    world.cluster["admission"]["changing"] = ["MutatingAdmissionPolicy theirs"]
    assert softer(world) == [("", "bindings_changed", "warning"), ("", "webhook_silent", "warning")]
    assert judge(world.evidence()).ok


def test_a_webhook_that_fails_is_told_with_the_servers_words(world: World, golden: Golden) -> None:
    hook = {"object": "validatingwebhookconfiguration theirs", "webhook": "check", "says": 'failed calling webhook "check": EOF'}
    world.cluster["admission"]["failing"] = [{**hook, "writes": ["states of nodes", "nodes"]}]
    (finding,) = judge(world.evidence()).findings
    assert (finding.check, finding.severity) == ("webhook_silent", "error")
    golden(f"{finding.found}: {finding.cure}")


def test_who_may_have_changed_a_probe_pod_is_named(world: World, golden: Golden) -> None:
    world.cluster["admission"]["shaping"] = ["MutatingAdmissionPolicy zones"]
    changes = {"changed": ['nodeSelector {"tier": "gold"}'], "scheduling": "0/3 nodes are available"}
    probed(world, {**probe_pod(), "running": [], "node": "", **changes})
    (finding,) = (one for one in judge(world.evidence()).findings if one.check == "probe_not_scheduled")
    golden(f"{finding.found}: {finding.cure}")


def test_a_scheduler_that_does_not_lead_is_told_with_its_own_words(world: World) -> None:
    world.cluster["leases"]["kube-scheduler"].update(alive=False)
    world.cp["plane"]["scheduler"]["says"] = "error retrieving resource lock: Unauthorized"
    (found,) = judge(world.evidence()).findings
    assert "cp1_1 no longer renews it" in found.found
    assert "on cp1: error retrieving resource lock: Unauthorized" in found.found
    world.cp["plane"]["scheduler"]["server_says"] = "full"
    assert judge(world.evidence()).findings[0].found.endswith(": full")
    # Kubernetes' own rights of it: no file of the scheduler is at fault.
    forbidden = 'leases.coordination.k8s.io "kube-scheduler" is forbidden: User "system:kube-scheduler" cannot get resource "leases"'
    world.cp["plane"]["scheduler"].update(says=forbidden, server_says="")
    assert "kube-apiserver writes" in judge(world.evidence()).findings[0].cure
    # One that runs without leader election has no Lease.
    configured(world, CONFIG + "leaderElection:\n  leaderElect: false\n")
    assert judge(world.evidence()).ok


def test_why_a_schedulers_container_ends_is_said(world: World, golden: Golden) -> None:
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
    for end in ({"exitCode": 1, "reason": "Error"}, {"exitCode": 137, "reason": "OOMKilled"}):
        status = {"state": state, "lastState": {"terminated": end}, "restartCount": 3}
        world.cluster["schedulers"]["cp1"]["status"] = {"containerStatuses": [status]}
        world.cp["plane"]["scheduler"]["says"] = "Error: unknown flag: --no-such-flag"
        (finding,) = judge(world.evidence()).findings
        assert finding.check == "scheduler_stopped"
        golden(f"{finding.found}: {finding.cure}")


def test_a_folder_that_is_read_only_is_told_with_its_mount(world: World, golden: Golden) -> None:
    world.gpu["gpu"]["without_room"] += ["/run (0 MiB free)", "/var/log/pods (mounted read-only)"]
    (finding,) = judge(world.evidence()).findings
    golden(f"{finding.found}: {finding.cure}")


def test_controllers_that_do_not_lead_are_told_with_their_last_words_and_keep_no_probe_pod_away(world: World, golden: Golden) -> None:
    world.cluster["leases"]["kube-controller-manager"].update(alive=False)
    world.cp["plane"]["scheduler"]["controllers_say"] = "unknown"
    found = judge(world.evidence())
    assert found.findings[0].found.endswith("cp1: unknown")
    golden(found.findings[0].found)
    assert obstructed(world.evidence(), found) == {}
    # Alone, without leader election, they leave an old Lease behind (k0s' single controllers, kubeadm with --leader-elect=false).
    world.cp["plane"]["scheduler"]["controllers_elect"] = False
    assert judge(world.evidence()).findings == ()


def test_why_a_node_is_not_ready_is_said_by_the_api_and_by_its_kubelet(world: World, golden: Golden) -> None:
    ready = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "cni: none"}
    world.cluster["nodes"][0]["status"]["conditions"] = [ready]
    world.gpu["kubelet"]["says"] = "E1129 10:00:00.000000     100 kubelet.go:3117] no network config"
    (found,) = judge(world.evidence()).findings
    assert (found.check, found.host) == ("node_not_ready", "gpu1")
    golden(found.found)


def test_a_kubelet_that_does_not_reach_its_api_server_is_told_by_that_and_not_by_what_follows(world: World, golden: Golden) -> None:
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
    world.cluster["nodes"][0]["status"]["conditions"] = [ready]
    world.gpu["kubelet"].update(says="not registered yet", unreached='err="Get "https://192.0.2.1:6443/api": i/o timeout"')
    for proxy in ("", "http://192.0.2.9:3128"):
        world.gpu["kubelet"]["proxy"] = proxy
        (found,) = judge(world.evidence()).findings
        golden(f"{found.found}: {found.cure}")
    world.gpu["kubelet"]["unreached"] = ""
    (found,) = judge(world.evidence()).findings
    golden(found.found)


def test_a_node_without_room_for_any_pod_is_closed(world: World) -> None:
    world.cluster["nodes"][0]["nothing_of"] = ["memory"]
    assert softer(world) == [("gpu1", "node_closed", "warning")]
    assert "memory" in judge(world.evidence()).findings[0].found


def test_the_label_of_a_gpu_node_where_no_plugin_has_published_is_a_warning(world: World) -> None:
    # Of a node of this run, more is said.
    world.cluster["labelled"] = ["node-1"]
    assert judge(world.evidence()).findings == ()
    world.cluster["labelled"] = ["cp1", "node-1"]
    (found,) = judge(world.evidence()).findings
    assert (found.host, found.check, found.severity) == ("", "label_without_plugin", "warning")
    assert " cp1 gpushare.kubernetes/node-;" in found.cure


def test_a_probe_pod_has_room_where_a_single_unit_is_free(world: World) -> None:
    world.gpu["gpu"]["images"] = ["first", "second"]
    world.cluster["pods"] = [seen.pod(gpu=0, units=16), seen.pod(gpu=1, units=15)]
    assert placeable(world.evidence(), "") == ({"node-1": "first"}, {})
    world.cluster["pods"][1] = seen.pod(gpu=1, units=16)

    def unplaced() -> dict[str, str]:
        images, unproven = placeable(world.evidence(), "")
        assert not images
        return {node: why["reason"] for node, why in unproven.items()}

    assert unplaced() == {"node-1": "full"}
    world.cluster["nodes"][0]["metadata"]["annotations"].clear()
    assert unplaced() == {"node-1": "unknown"}
    world.cluster["nodes"].clear()
    assert unplaced() == {"node-1": "unknown"}
    world.more = {"cluster": "kubectl failed"}
    assert placeable(world.evidence(), "") == ({}, {})


def test_the_scheduler_that_was_configured_places_the_probe_pods(world: World) -> None:
    assert scheduler_name(world.evidence()) == "default-scheduler"
    configured(world, CONFIG + "profiles:\n- schedulerName: gpus\n")
    assert scheduler_name(world.evidence()) == "gpus"
    lost = json.loads(json.dumps(world.cp))
    for change in (
        {"manifest": None},
        {"manifest": "{"},
        {"manifest": "a: b"},
        {"configs": {CONFIG_PATH: {"text": "{"}}},
        {"configs": {CONFIG_PATH: {"text": "- a"}}},
        {"configs": {CONFIG_PATH: None}},
        {"configs": {}},
    ):
        lost["plane"]["scheduler"] = {**world.cp["plane"]["scheduler"], **change}
        world.more = {"hosts": {"gpu1": world.gpu, "cp0": lost, "cp1": world.cp}}
        assert scheduler_name(world.evidence()) == "gpus"
        world.more = {"hosts": {"cp0": lost, "cp1": "not seen"}}
        assert scheduler_name(world.evidence()) == "default-scheduler"


def test_a_host_without_a_runtime_is_said_once_and_one_without_an_answer_of_the_doctor_too(world: World, golden: Golden) -> None:
    world.gpu["doctor"] = {"problem": "there is no gpushare-doctor", "cure": "", "answer": ""}
    (finding,) = judge(world.evidence()).findings
    assert (finding.host, finding.check) == ("gpu1", "not_checked")
    golden(finding.found)
    assert "/opt/gpushare/0.1.0-0123456789ab" in finding.cure
    world.gpu["doctor"]["cure"] = "mount it"
    golden(judge(world.evidence()).findings[0].cure)
    # One of another release has no doctor, or another one.
    world.gpu["runtime"]["wheel_sha256"] = "c" * 64
    assert causes(world) == {("gpu1", "runtime_differs")}
    world.gpu["runtime"]["environment"] = ""
    assert [(one.check, one.because) for one in judge(world.evidence()).findings] == [("runtime_missing", "")]
