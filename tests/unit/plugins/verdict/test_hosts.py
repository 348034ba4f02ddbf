# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Each judgement of verify by itself: where the line runs between good and bad, and the facts that a finding names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.stopped_unit import StoppedUnit
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.container_gpus import free_units, gpus_of, judge_containers
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.control_plane import judge_plane
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.daemons import judge_runtime
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.doctor import Doctor, read
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import VerifyFindings
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.gpu_node import (
    judge_kubelet,
    judge_node,
    judge_record,
    judge_sandbox,
)

from unit.fakes.plugins.verdict import evidence as seen
from unit.fakes.plugins.verdict.evidence import ARTIFACT, CONFIG, CONFIG_PATH, CONTAINER, MANIFEST_PATH, NOW, UUIDS
from unit.golden import Golden

Json = dict[str, Any]
MEMORY, GPUS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


def said(found: VerifyFindings) -> list[tuple[str, str]]:
    """What was found, under which code; a warning or a note says so before its code."""
    assert {one.host for one in found.list} <= {found.host}
    return [(one.check if one.severity == "error" else f"{one.severity} {one.check}", one.found) for one in found.list]


# The runtime


def of_runtime(plane: bool = False, **changes: Any) -> list[tuple[str, str]]:
    found = VerifyFindings("h")
    judge_runtime(found, {**seen.runtime(), **changes}, ARTIFACT, plane=plane)
    return said(found)


WHERE = "/opt/gpushare/0.1.0-0123456789ab"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"environment": "", "wheel_sha256": ""}, [("runtime_missing", "no runtime in use")]),
        (
            {"wheel_sha256": "0123456789abcdef", "requirements_sha256": "x"},
            [("runtime_differs", f"{WHERE} made from wheel 0123456789ab (version 0.1.0)")],
        ),
        ({"wheel_sha256": "", "version": ""}, [("runtime_differs", f"{WHERE} made from wheel unknown (version unknown)")]),
        ({"requirements_sha256": "x"}, [("runtime_differs", f"{WHERE} made from other locked requirements")]),
    ],
)
def test_the_runtime_was_made_from_what_this_collection_ships(changes: Json, expected: list[tuple[str, str]]) -> None:
    assert of_runtime(**changes) == expected


def test_control_planes_have_the_requirements_of_kubectls_plugin() -> None:
    other = [("runtime_differs", f"{WHERE} made from other locked requirements")]
    assert of_runtime(plane=True) == other
    assert of_runtime(plane=True, requirements_sha256=ARTIFACT.kubectl_requirements_sha256) == []
    assert of_runtime(requirements_sha256=ARTIFACT.kubectl_requirements_sha256) == other


# A GPU node


def answered(host: Json) -> Doctor:
    return read(seen.printed(host)["doctor"], "h")


def of_node(node: Mapping[str, Any] | None = None, **changes: Any) -> list[tuple[str, str]]:
    """changes: of what was seen of the GPUs; `kubelet` and `doctor` of their places."""
    host = seen.gpu_host()
    for place in ("kubelet", "doctor", "places"):
        host[place].update(changes.pop(place, {}))
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(host["gpu"][key], dict):
            host["gpu"][key].update(value)
        else:
            host["gpu"][key] = value
    found = VerifyFindings("h")
    judge_node(found, host, answered(host), node)
    return said(found)


def stranger(name: str, pid: int, process: str = "other") -> Json:
    return {"name": name, "pid": pid, "process": process}


FOREIGN = {MEMORY: [UUIDS[0], "b", "z"], GPUS: list(UUIDS)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"driver": {"loaded": "550.1"}}, [("driver_mismatch", "kernel module 550.1 and library 535.261.03 of the driver")]),
        ({"driver": {"loaded": ""}}, []),
        ({"driver": {"library": None}}, []),
        ({"driver": None}, []),
        # Only the module on disk is newer: the driver still answers.
        ({"driver": {"installed": "550.163.01"}}, [("warning reboot_required", "kernel module 535.261.03 loaded, 550.163.01 installed")]),
        ({"driver": {"installed": "535.261.03"}}, []),
        ({"driver": {"installed": "550.163.01", "loaded": ""}}, []),
        ({"kubelet": {"running": False}}, [("kubelet_stopped", "no kubelet that runs")]),
        # A second plugin
        (
            {"managers": [{"name": "HAMi", "evidence": ["process 7", "socket"]}, {"name": "NVIDIA", "evidence": ["process 8"]}]},
            [("second_plugin", "HAMi (process 7; socket), NVIDIA (process 8)")],
        ),
        ({"doctor": {"strangers": [stranger("other.sock", 300)]}}, []),
        ({"doctor": {"registered": FOREIGN}}, []),
        (
            {"doctor": {"strangers": [stranger("a.sock", 300, "x"), stranger("b.sock", 301, "")], "registered": FOREIGN}},
            [
                (
                    "second_plugin",
                    f"ids such as b registered for {MEMORY}, which are not ids of GPUs, by process 300 (x) or process 301 (unnamed)",
                )
            ],
        ),
        ({"doctor": {"registered": {GPUS: [], MEMORY: []}}}, []),
        # The container runtime
        ({"container_runtime": None}, []),
        ({"container_runtime": {"problem": "dead", "lacks": "y"}}, [("runtime_silent", "dead")]),
        ({"container_runtime": {"problem": "dead", "broken": "cri is off"}}, [("runtime_silent", "dead; cri is off")]),
        (
            {"container_runtime": {"problem": "dead", "stopped": asdict(StoppedUnit("containerd.service", says="level=fatal no plugin"))}},
            [("runtime_silent", "dead; its last words: level=fatal no plugin")],
        ),
        (
            {"container_runtime": {"broken": "config dump failed: (26, 2)", "file_default": ""}},
            [("runtime_file_broken", "containerd running, and config dump failed: (26, 2)")],
        ),
        (
            {"container_runtime": {"running_default": "runc", "lacks": "no nvidia"}},
            [("default_runtime_not_running", "default runtime 'runc' in the running containerd (no nvidia)")],
        ),
        (
            {"container_runtime": {"file_default": "runc", "lacks": "y"}},
            [("default_runtime_missing", "default runtime 'runc' in containerd's files, though the process still has 'nvidia'")],
        ),
        (
            {"container_runtime": {"file_default": "", "running_default": "runc"}},
            [("default_runtime_missing", "default runtime '' in containerd's files")],
        ),
        (
            {"container_runtime": {"lacks": "y"}},
            [("warning runtime_older_than_file", "a containerd that was not restarted since its files changed (y)")],
        ),
        (
            {"container_runtime": {"name": "docker", "file_default": "runc", "running_default": "runc"}},
            [("default_runtime_missing", "default runtime 'runc' in docker's files")],
        ),
        ({"container_runtime": {"file_default": "runc", "running_default": "runc"}, "places": {"runtime_default": "unchanged"}}, []),
        (
            {"container_runtime": {"running_default": "runc", "lacks": "y"}, "places": {"runtime_default": "unchanged"}},
            [("warning runtime_older_than_file", "a containerd that was not restarted since its files changed (y)")],
        ),
    ],
)
def test_a_node_has_its_driver_one_plugin_and_the_runtime(changes: Json, expected: list[tuple[str, str]]) -> None:
    assert of_node(**changes) == expected


DRA = {"name": "NVIDIA DRA driver", "evidence": ["process 9 (gpu-kubelet-plugin)"]}


@pytest.mark.parametrize(
    ("managers", "drivers", "words", "restarts"),
    [
        ([DRA], [], "NVIDIA DRA driver (process 9 (gpu-kubelet-plugin))", False),
        ([], ["gpu.nvidia.com"], "NVIDIA DRA driver (ResourceSlices of gpu.nvidia.com)", False),
        ([], ["gpu.example.org"], "a DRA driver (ResourceSlices of gpu.example.org)", False),
        ([DRA, {"name": "HAMi", "evidence": ["process 7"]}], [], "HAMi (process 7)", True),
    ],
)
def test_a_dra_driver_on_the_host_or_in_the_api(managers: list[Json], drivers: list[str], words: str, restarts: bool) -> None:
    """It never takes our resources at kubelet, so nothing has to be registered again when it has gone."""
    host = seen.gpu_host()
    host["gpu"]["managers"] = managers
    found = VerifyFindings("h")
    judge_node(found, host, answered(host), None, drivers)
    (one,) = found.list
    assert (one.check, words in one.found, "systemctl restart" in one.cure) == ("second_plugin", True, restarts)


SPEC = "/var/run/cdi/nvidia.yaml"


@pytest.mark.parametrize(
    ("mode", "spec", "expected"),
    [
        ("cdi", None, ("cdi_missing", "no CDI spec of nvidia.com/gpu, though nvidia-container-runtime is in mode cdi")),
        ("legacy", None, None),
        ("", {}, None),
        ("cdi", {"gpus": []}, None),
        ("cdi", {"gpus": [*UUIDS, "GPU-a"]}, "GPU GPU-a, which is not there"),
        ("legacy", {"gpus": [UUIDS[1]]}, f"no GPU {UUIDS[0]}"),
        ("cdi", {"gpus": ["GPU-a"]}, f"GPU GPU-a, which is not there; no GPU {UUIDS[0]}; no GPU {UUIDS[1]}"),
        ("cdi", {"versions": ["535.261.03", "1.2", "1.3"]}, "libraries of driver 1.2, 1.3"),
        ("cdi", {"versions": []}, None),
        ("cdi", {"missing": ["a", "b", "c"]}, "a, b, c, which the host does not have"),
        ("cdi", {"missing": ["a", "b", "c", "d", "e"]}, "a, b, c and 2 more, which the host does not have"),
        ("cdi", {"versions": ["1.2"], "missing": ["a"]}, "libraries of driver 1.2; a, which the host does not have"),
    ],
)
def test_a_cdi_spec_names_the_gpus_and_the_files_that_are_there(mode: str, spec: Json | None, expected: object) -> None:
    (good,) = seen.gpu_host()["gpu"]["cdi"]["specs"]
    found = of_node(cdi={"mode": mode, "specs": [] if spec is None else [good, {**good, **spec}]})
    assert found == ([] if expected is None else [expected if isinstance(expected, tuple) else ("cdi_stale", f"in {SPEC} {expected}")])


def test_a_driver_of_unknown_version_makes_no_library_stale() -> None:
    smi = {"driver_version": None}
    assert of_node(nvidia_smi=smi, cdi={"specs": [{"path": SPEC, "gpus": [], "versions": ["1.2"], "missing": []}]}) == []


PROBLEM = {"kind": "version_mismatch", "found": "words", "expected": "gpus", "cure": "reboot"}


def test_a_driver_that_does_not_answer_is_said_once_and_no_gpu_is_missed() -> None:
    smi = {"gpus": [], "driver_version": None, "problem": PROBLEM}
    changes: Json = {
        "nvidia_smi": smi,
        "driver": {"loaded": "1"},
        "doctor": {"registered": FOREIGN, "strangers": [stranger("a.sock", 300)]},
    }
    assert of_node(**changes) == [("driver_mismatch", "words")]
    node = seen.node()
    assert [one for one in of_node(node, **changes) if one[0] == "driver_mismatch"] == [("driver_mismatch", "words")]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"gpushare.kubernetes/node": "true", "a": "b"}, []),
        ({"gpushare.kubernetes/node": "false"}, [("label_missing", "label gpushare.kubernetes/node=false on node node-1")]),
        ({"a": "true"}, [("label_missing", "no label gpushare.kubernetes/node on node node-1")]),
        (None, [("label_missing", "no label gpushare.kubernetes/node on node node-1")]),
    ],
)
def test_a_gpu_node_has_the_label(labels: dict[str, str] | None, expected: list[tuple[str, str]]) -> None:
    node = seen.node()
    node["metadata"]["labels"] = labels
    assert of_node(node) == expected


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"cordoned": True, "taints": ["node.kubernetes.io/unschedulable"]}, "cordoned"),
        ({"taints": ["ToBeDeletedByClusterAutoscaler", "nvidia.com/gpu"]}, "ToBeDeletedByClusterAutoscaler"),
        ({"taints": ["node.kubernetes.io/disk-pressure"]}, "disk-pressure"),
        ({"taints": ["nvidia.com/gpu", "node.kubernetes.io/not-ready"]}, ""),
    ],
)
def test_a_node_that_users_pods_do_not_enter(change: dict[str, Any], key: str) -> None:
    found = of_node({**seen.node(), **change})
    assert [code for code, _words in found] == (["warning node_closed"] if key else [])
    assert all(key in words for _code, words in found)


def test_differences_from_the_api_keep_how_bad_they_are() -> None:
    assert of_node({}) == [("node_missing", "node: no node of this name in the API")]
    host, found_ = {**seen.gpu_host(), "node_name": "none"}, VerifyFindings("h")
    judge_node(found_, host, answered(host), {})
    assert said(found_) == [("node_missing", "node: no node of this name in the API")], "nothing is like this name"
    node = seen.node()
    content = json.loads(node["metadata"]["annotations"]["gpushare/gpus"])
    content["gpus"][1]["cordoned"] = True
    node["metadata"]["annotations"]["gpushare/gpus"] = json.dumps(content)
    node["status"]["allocatable"] = {MEMORY: "16", GPUS: "1"}
    assert [one[0] for one in of_node(node)] == ["warning gpu_cordoned", "warning gpu_cordoned"]
    content["gpus"][0]["health"] = "Xid 79"
    node["metadata"]["annotations"]["gpushare/gpus"] = json.dumps(content)
    node["status"]["allocatable"] = {MEMORY: "0", GPUS: "0"}
    found = of_node(node)
    assert [(code, words.partition(":")[0]) for code, words in found] == [("gpu_unusable", f"allocatable {one}") for one in (MEMORY, GPUS)]
    assert all("Xid 79" in words for _code, words in found)


ADDRESS = "10.0.0.5:9440"


@pytest.mark.parametrize(
    ("changes", "wanted", "found", "expected"),
    [
        ({}, ADDRESS, "no metrics of {}", f"metrics of {{}} on {ADDRESS}"),
        ({"metrics": ADDRESS}, "", f"metrics of {{}} on {ADDRESS}", "no metrics of {}"),
        ({"metrics": "127.0.0.1:9440"}, ADDRESS, "metrics of {} on 127.0.0.1:9440", f"metrics of {{}} on {ADDRESS}"),
        ({"runs": False}, ADDRESS, "", ""),
        ({"metrics": ADDRESS}, ADDRESS, "", ""),
    ],
)
def test_metrics_are_where_they_are_to_be(changes: Json, wanted: str, found: str, expected: str) -> None:
    for daemon, place, host in (
        ("gpushare-device-plugin", "metrics_plugin", seen.gpu_host()),
        ("gpushare-extender", "metrics_extender", seen.plane_host()),
    ):
        host["places"][place] = wanted
        host["doctor"]["daemons"][daemon].update(changes)
        found_ = VerifyFindings("h")
        if host["gpu"]:
            judge_node(found_, host, answered(host), None)
        else:
            judge_plane(found_, host, answered(host), seen.mirror(), True)
        told = [("metrics_wrong", found.format(daemon), expected.format(daemon))] if found else []
        assert [(one.check, one.found, one.expected) for one in found_.list] == told


# A control plane


def of_plane(asked: bool = True, mirror: Json | None = None, gone: bool = False, **changes: Any) -> list[tuple[str, str]]:
    """changes: of what was seen of the control plane; `places` and `config` (the configuration's text) of their places."""
    host = seen.plane_host()
    host["places"].update(changes.pop("places", {}))
    host["doctor"]["daemons"]["gpushare-extender"].update(changes.pop("extender", {}))
    text = changes.pop("config", CONFIG)
    scheduler = host["plane"]["scheduler"]
    scheduler["configs"][CONFIG_PATH]["text"] = text
    scheduler.update(changes.pop("scheduler", {}))
    host["plane"].update(changes)
    found = VerifyFindings("h")
    judge_plane(found, host, answered(host), None if gone else mirror or seen.mirror(), asked)
    return said(found)


def test_a_control_plane_has_the_manifest_of_its_scheduler() -> None:
    assert of_plane() == []
    assert of_plane(scheduler={"manifest": None}) == [("scheduler_stopped", f"no manifest {MANIFEST_PATH}")]


NAMED = f"urlPrefix 'https://127.0.0.1:32766/gpushare-scheduler' in {CONFIG_PATH}"


def of_config(text: str, **changes: Any) -> list[tuple[str, str]]:
    return of_plane(config=text, **changes)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        ("gpu-count", "gpu", [("extender_not_called", f"managedResources ['{MEMORY}', 'aliyun.com/gpu'] in {CONFIG_PATH}")]),
        ("gpu-mem", "gpu", [("extender_not_called", f"managedResources ['aliyun.com/gpu', '{GPUS}'] in {CONFIG_PATH}")]),
        ("  filterVerb: filter\n", "", [("extender_not_called", f"no filterVerb in {CONFIG_PATH}")]),
        ("bindVerb: bind", 'bindVerb: ""', [("extender_not_called", f"no bindVerb in {CONFIG_PATH}")]),
        ("  filterVerb: filter\n  bindVerb: bind\n", "", [("extender_not_called", f"no filterVerb and bindVerb in {CONFIG_PATH}")]),
        ("127.0.0.1", "localhost", []),
        ("scheduler\n", "scheduler/\n", []),
        ("32766", "32767", [("extender_address_wrong", NAMED.replace("32766", "32767"))]),
        ("32766", "port", [("extender_address_wrong", NAMED.replace("32766", "port"))]),
        ("https", "http", [("extender_address_wrong", NAMED.replace("https", "http"))]),
        ("127.0.0.1", "10.0.0.1", [("extender_address_wrong", NAMED.replace("127.0.0.1", "10.0.0.1"))]),
        ("gpushare-scheduler", "other", [("extender_address_wrong", NAMED.replace("gpushare-scheduler", "other"))]),
        ("- urlPrefix: https://127.0.0.1:32766/gpushare-scheduler\n ", "-", [("extender_address_wrong", f"urlPrefix '' in {CONFIG_PATH}")]),
        ("extenders:\n", "extenders:\n- urlPrefix: https://other\n  filterVerb: f\n", []),
    ],
)
def test_the_schedulers_configuration_calls_the_extender_where_it_listens(old: str, new: str, expected: list[tuple[str, str]]) -> None:
    text = CONFIG.replace(old, new) if old else CONFIG
    assert (text != CONFIG) is bool(old)
    assert of_config(text) == expected


MANAGED = CONFIG[CONFIG.index("  managedResources:") :]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (CONFIG.replace(MANAGED, ""), "warning extender_called_for_all"),
        (CONFIG.replace(MANAGED, "  managedResources:\n"), "warning extender_called_for_all"),
        ("", "scheduler_not_configured"),
        ("extenders:\n", "scheduler_not_configured"),
        ("extenders: [{urlPrefix: x, managedResources: [{name: other}]}]", "scheduler_not_configured"),
        ("extenders: [{managedResources: null}]", "scheduler_not_configured"),
        ("extenders: [7]", "scheduler_not_configured"),
        ("extenders: 7", "scheduler_not_configured"),
        ("- a", "scheduler_not_configured"),
        ("{", "scheduler_not_configured"),
    ],
)
def test_a_configuration_without_us_is_none(text: str, code: str) -> None:
    assert [one[0] for one in of_config(text)] == [code]


def test_the_extender_is_called_where_it_says_that_it_listens_or_at_its_port() -> None:
    elsewhere = ("warning extender_elsewhere", "the extender listens on 10.0.0.9:1")
    assert of_plane(extender={"listens": "10.0.0.9:1"}) == [("extender_address_wrong", NAMED), elsewhere]
    unsaid = {"listens": ""}
    assert of_plane(extender=unsaid) == []
    assert of_plane(extender=unsaid, places={"extender_port": 1}) == [("extender_address_wrong", NAMED)]
    # The scheduler agrees with an extender that is not where the inventory says.
    moved = CONFIG.replace("32766", "32767")
    assert of_config(moved, extender={"listens": "127.0.0.1:32767"}) == [
        ("warning extender_elsewhere", "the extender listens on 127.0.0.1:32767")
    ]
    assert of_config(CONFIG.replace("https:", "http:")) == [("extender_address_wrong", NAMED.replace("https", "http"))]
    tls = CONFIG[CONFIG.index("  tlsConfig:") : CONFIG.index("  managedResources:")]
    plain = CONFIG.replace("https:", "http:").replace("enableHTTPS: true", "enableHTTPS: false").replace(tls, "")
    assert of_config(plain, places={"pki_dir": ""}) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  weight: 1\n", "  weight: 1\n  ignorable: true\n", "ignorable: True"),
        ("httpTimeout: 1s", "httpTimeout: 1ms", "httpTimeout: 1ms"),
        ("  httpTimeout: 1s\n", "", "httpTimeout: 5s"),
        ("httpTimeout: 1s", "httpTimeout: [x]", "httpTimeout: ['x']"),
        ("weight: 1", "weight: 7", "weight: 7"),
        ("nodeCacheCapable: true", "nodeCacheCapable: false", "nodeCacheCapable: False"),
        ("  preemptVerb: preempt\n", "", "preemptVerb: None"),
        ("prioritizeVerb: prioritize", "prioritizeVerb: x", "prioritizeVerb: x"),
        ("enableHTTPS: true", "enableHTTPS: false", "enableHTTPS: False"),
        # The same, in other words.
        ("httpTimeout: 1s", "httpTimeout: 1000ms", None),
        ("  weight: 1\n", "  weight: 1\n  ignorable: false\n", None),
    ],
)
def test_the_entry_is_what_the_role_writes_field_by_field(old: str, new: str, expected: str | None) -> None:
    assert old in CONFIG
    assert of_config(CONFIG.replace(old, new)) == ([("extender_entry_differs", f"{expected} in {CONFIG_PATH}")] if expected else [])


def test_the_entry_follows_the_inventory() -> None:
    wanted = {"extender_weight": 3, "extender_http_timeout": "2s", "preemption": False}
    ((code, words),) = of_plane(places=wanted)
    assert code == "extender_entry_differs"
    assert [words.count(name) for name in ("weight: 1 ", "httpTimeout: 1s ", "preemptVerb: preempt ")] == [1, 1, 1]


def test_the_schedulers_manifest_names_its_configuration() -> None:
    lost = seen.manifest().replace(f"    - --config={CONFIG_PATH}\n", "")
    assert of_plane(scheduler={"manifest": lost}) == [("scheduler_not_configured", f"no --config in {MANIFEST_PATH}")]
    lacks = f"no file {CONFIG_PATH}, which {MANIFEST_PATH} means by --config"
    assert of_plane(scheduler={"configs": {}}) == [("scheduler_not_configured", lacks)]
    assert of_plane(scheduler={"configs": {CONFIG_PATH: None}}) == [("scheduler_not_configured", lacks)]
    for manifest in ("{", "a: b"):
        ((code, words),) = of_plane(scheduler={"manifest": manifest})
        assert (code, words.partition(":")[0]) == ("scheduler_not_configured", MANIFEST_PATH)


def with_manifests(*texts: str) -> list[tuple[str, str]]:
    return of_plane(scheduler={"others": {f"/etc/kubernetes/manifests/{'abc'[place]}": text for place, text in enumerate(texts)}})


def stale(name: str) -> tuple[str, str]:
    return "stale_scheduler_file", f"/etc/kubernetes/manifests/{name}, which kubelet runs as kube-scheduler beside {MANIFEST_PATH}"


def test_another_file_that_kubelet_runs_as_the_same_scheduler() -> None:
    same = seen.manifest()
    another = same.replace("name: kube-scheduler\n  namespace", "name: another\n  namespace")
    assert another != same
    flag = f"--config={CONFIG_PATH}"
    assert with_manifests(same) == [stale("a")]
    assert with_manifests(another) == []
    assert with_manifests(another.replace(flag, "--v=2")) == [stale("a")]
    assert with_manifests(another.replace(flag, "--leader-elect-resource-name=other")) == []
    sidecar = same.replace("  - name: kube-scheduler\n    image", "  - name: x\n    command: [sh]\n  - name: kube-scheduler\n    image")
    assert sidecar != same
    assert with_manifests(sidecar) == [stale("a")]
    assert with_manifests("{", "kind: Pod", same) == [stale("c")]
    assert with_manifests("[]", same.replace("    - kube-scheduler\n", "    - sh\n"), "7") == []


OLDER = "scheduler_older_than_file"


def test_the_scheduler_that_runs_is_that_of_the_manifest() -> None:
    other = {"configs": {CONFIG_PATH: {"text": CONFIG, "sha256": "0" * 64}}}
    disk = f"a scheduler started with another {CONFIG_PATH} than the one on the disk"
    assert of_plane(scheduler=other) == [(OLDER, disk)]
    assert of_plane(asked=False, gone=True) == []
    assert of_plane(gone=True) == [("scheduler_stopped", "a scheduler of which kubelet has not created its pod yet")]
    mirror = seen.mirror()
    mirror["metadata"]["annotations"] = None
    former = "a scheduler of which kubelet still runs the pod of the former manifest"
    assert of_plane(mirror=mirror) == [(OLDER, former)]
    mirror = seen.mirror()
    mirror["spec"]["containers"][0]["command"].append("--v=9")
    assert of_plane(mirror=mirror) == [("scheduler_stopped", former)]
    mirror = seen.mirror()
    mirror["spec"]["containers"][0]["image"] = "registry.k8s.io/kube-scheduler:v1.35.0"
    assert of_plane(mirror=mirror) == [(OLDER, "a scheduler of image registry.k8s.io/kube-scheduler:v1.35.0")]
    mirror = seen.mirror()
    broken = {"restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    mirror["status"]["containerStatuses"] = [broken]
    ((code, words),) = of_plane(mirror=mirror)
    assert (code, "CrashLoopBackOff" in words) == ("scheduler_stopped", True)


# Containers

OWN, SECOND = ("nvidia4", "nvidia-caps/nvidia-cap67", "nvidia-caps/nvidia-cap66"), ("nvidia4", "nvidia-caps/nvidia-cap75")
INDEXES: dict[int, tuple[str, ...] | None] = {0: ("nvidia0",), 1: ("nvidia1",), 2: None, 3: ("nvidia7",), 14070: OWN, 14080: SECOND}
WHO = "container main of pod default/sharing"


def of_container(
    *, has: Mapping[str, list[str]] | None = None, annotations: Json | None = None, running: Json | None = None, **changes: Any
) -> tuple[int, list[tuple[str, str]]]:
    pod = seen.pod()
    pod["containers"][0].update({key: changes.pop(key) for key in ("units", "gpus", "privileged", "index") if key in changes})
    pod["running"][0].update(running or {})
    if annotations is not None:
        pod["annotations"] = annotations
    pod.update(changes)
    found = VerifyFindings("h")
    count = judge_containers(found, [pod], {CONTAINER: ["nvidia0"]} if has is None else has, INDEXES, NOW)
    return count, said(found)


def allocation(**containers: Json) -> Json:
    return {"scheduler.framework.gpushare.allocation": json.dumps({key.strip("_"): value for key, value in containers.items()})}


UNNAMED = ("not_annotated", f"{WHO} without an annotation that names its GPU")


@pytest.mark.parametrize(
    ("changes", "count", "expected"),
    [
        ({}, 1, []),
        ({"deleted": True, "has": {}}, 0, []),
        ({"privileged": True, "has": {}}, 0, []),
        ({"units": 0, "has": {}}, 0, []),
        ({"units": 0, "gpus": 1}, 1, []),
        ({"running": {"name": "sidecar"}, "has": {}}, 0, []),
        ({"running": {"started": NOW - 1}}, 1, []),
        ({"running": {"started": NOW - 0.9}, "has": {}}, 0, []),
        ({"has": {}}, 1, [("container_not_seen", f"no process of {WHO} (cccccccccccc)")]),
        ({"annotations": {}}, 1, [UNNAMED]),
        ({"annotations": {}, "running": {"started": NOW - 30.1}}, 1, [UNNAMED]),
        ({"annotations": {}, "running": {"started": NOW - 30}}, 1, []),
        ({"annotations": allocation(_0={"1": 6})}, 1, [("wrong_gpu", f"{WHO} with nvidia0 in its /dev")]),
        ({"annotations": allocation(_0={"3": 6})}, 1, [("wrong_gpu", f"{WHO} with nvidia0 in its /dev")]),
        ({"annotations": allocation(_0={"3": 6}), "has": {CONTAINER: ["nvidia7"]}}, 1, []),
        ({"annotations": allocation(_0={"3": 3, "0": 3}), "has": {CONTAINER: ["nvidia0", "nvidia7"]}}, 1, []),
        ({"annotations": allocation(_0={"0": 3, "2": 3})}, 1, [("wrong_gpu", f"{WHO} with nvidia0 in its /dev")]),
        ({"annotations": allocation(_0={"0": 3, "9": 3})}, 1, [("gpu_missing", f"no GPU 9, which {WHO} was given")]),
        # Instances of one GPU have its device node in common: which they are is said by their own.
        ({"annotations": allocation(_0={"14070": 6}), "has": {CONTAINER: sorted(OWN)}}, 1, []),
        ({"annotations": allocation(_0={"14070": 3, "14080": 3}), "has": {CONTAINER: sorted({*OWN, *SECOND})}}, 1, []),
        (
            {"annotations": allocation(_0={"14070": 6}), "has": {CONTAINER: sorted(SECOND)}},
            1,
            [("wrong_gpu", f"{WHO} with nvidia-caps/nvidia-cap75, nvidia4 in its /dev")],
        ),
        (
            {"annotations": allocation(_0={"14070": 6}), "has": {CONTAINER: ["nvidia4"]}},
            1,
            [("wrong_gpu", f"{WHO} with nvidia4 in its /dev")],
        ),
        ({"has": {CONTAINER: []}}, 1, [("wrong_gpu", f"{WHO} with no GPU in its /dev")]),
        ({"has": {CONTAINER: ["nvidia0", "nvidia1"]}}, 1, [("wrong_gpu", f"{WHO} with nvidia0, nvidia1 in its /dev")]),
    ],
)
def test_a_container_has_the_gpu_of_its_annotation_and_no_other(changes: Json, count: int, expected: list[tuple[str, str]]) -> None:
    assert of_container(**changes) == (count, expected)


def test_what_a_wrong_gpu_should_have_been_is_named() -> None:
    found = VerifyFindings("h")
    pods = [seen.pod("a", gpu=3), {**seen.pod("b"), "deleted": True}, {**seen.pod("c"), "running": []}, seen.pod("d", gpu=1)]
    assert judge_containers(found, pods, {CONTAINER: ["nvidia0"]}, INDEXES, NOW) == 2
    assert [one.expected for one in found.list] == [f"nvidia{minor}: its annotation names GPU {index}" for index, minor in ((3, 7), (1, 1))]


@pytest.mark.parametrize(
    ("annotations", "index", "gpus"),
    [
        ({}, 0, set()),
        (allocation(_0={"1": 2, "3": 4}, _1={"2": 1}), 0, {1, 3}),
        (allocation(_0={"1": 2, "3": 4}, _1={"2": 1}), 1, {2}),
        (allocation(_0={"1": 2}), 1, set()),
        (allocation(_1={"1": 2}), 0, set()),
        # An init container uses what the others will.
        (allocation(_0={"1": 2}, _1={"2": 1}), -1, {1, 2}),
        ({**allocation(_0={"1": 2}), "ALIYUN_COM_GPU_MEM_IDX": "5"}, 1, set()),
        ({"ALIYUN_COM_GPU_MEM_IDX": "5"}, 0, {5}),
        ({"ALIYUN_COM_GPU_MEM_IDX": "5"}, -1, {5}),
        ({"ALIYUN_COM_GPU_MEM_IDX": "0"}, 0, {0}),
        ({"ALIYUN_COM_GPU_MEM_IDX": "-1"}, 0, set()),
        ({"ALIYUN_COM_GPU_MEM_IDX": "x"}, 0, set()),
        ({"scheduler.framework.gpushare.allocation": "{"}, 0, set()),
        ({"scheduler.framework.gpushare.allocation": '{"0": 7}'}, 0, set()),
        ({"scheduler.framework.gpushare.allocation": "[]"}, 0, set()),
        ({"scheduler.framework.gpushare.allocation": "[1]"}, -1, set()),
    ],
)
def test_the_gpus_that_annotations_name_for_a_container(annotations: dict[str, str], index: int, gpus: set[int]) -> None:
    assert gpus_of(annotations, index) == gpus


# Room for a probe pod


def with_annotations(pod: Json, annotations: Json, *containers: tuple[int, int]) -> Json:
    listed = [{"index": index, "name": f"c{index}", "units": units, "gpus": 0, "privileged": False} for index, units in containers]
    return {**pod, "annotations": annotations, "containers": listed or pod["containers"]}


@pytest.mark.parametrize(
    ("pod", "free"),
    [
        (seen.pod(units=16), 16),
        (seen.pod(units=20), 16),
        ({**seen.pod(units=16), "node": "another"}, 32),
        (with_annotations(seen.pod(), allocation(_0={"0": 3, "1": 4}, _1={"1": 5})), 20),
        (with_annotations(seen.pod(), allocation(_0={"0": 16}, _1={"0": 16})), 16),
        (with_annotations(seen.pod(), {"ALIYUN_COM_GPU_MEM_IDX": "0"}, (0, 3), (1, 4), (-1, 9)), 25),
        (with_annotations(seen.pod(), {**allocation(_0={"1": 2}), "ALIYUN_COM_GPU_MEM_IDX": "0"}), 30),
        (with_annotations(seen.pod(), {"ALIYUN_COM_GPU_MEM_IDX": "-1"}), 32),
        (with_annotations(seen.pod(), {"ALIYUN_COM_GPU_MEM_IDX": "x"}), 32),
        (with_annotations(seen.pod(), {}), 32),
        (with_annotations(seen.pod(), {"scheduler.framework.gpushare.allocation": "[]"}), 32),
        (with_annotations(seen.pod(), allocation(_0={"0": 3, "x": 1})), 32),
        (with_annotations(seen.pod(), allocation(_7={"5": 3})), 32),
        (with_annotations(seen.pod(), allocation(_7={"5": 0})), 32),
    ],
)
def test_what_a_pod_holds_by_its_annotations_is_not_free(pod: Json, free: int) -> None:
    assert free_units(seen.node(), [pod]) == free


@pytest.mark.parametrize(
    ("held", "free"),
    [
        ({"gpus": {UUIDS[0]: [{"units": 3}, {"units": "4"}], UUIDS[1]: [{"units": 5}]}}, 20),
        ({"gpus": {UUIDS[0]: [{"units": 30}]}}, 16),
        ({"gpus": {"GPU-of-another": [{"units": 30}]}}, 32),
        ({"gpus": None}, 32),
        ({}, 32),
        ([], 32),
        ({"gpus": {UUIDS[0]: [{}]}}, 32),
    ],
)
def test_what_the_node_keeps_back_is_not_free(held: object, free: int) -> None:
    node = seen.node()
    node["metadata"]["annotations"]["gpushare/held"] = json.dumps(held)
    assert free_units(node, []) == free


def test_a_gpu_that_cannot_be_used_has_no_room() -> None:
    node = seen.node()
    content = json.loads(node["metadata"]["annotations"]["gpushare/gpus"])
    content["gpus"][1]["cordoned"] = True
    node["metadata"]["annotations"]["gpushare/gpus"] = json.dumps(content)
    assert free_units(node, []) == 16
    node["metadata"]["annotations"]["gpushare/held"] = json.dumps({"gpus": {UUIDS[1]: [{"units": 5}]}})
    assert free_units(node, [seen.pod(gpu=1), seen.pod(gpu=0, units=1)]) == 15
    node["metadata"]["annotations"]["gpushare/gpus"] = "{"
    assert free_units(node, []) is None
    node["metadata"]["annotations"].clear()
    assert free_units(node, []) is None


def test_a_fabric_manager_that_does_not_run_is_a_finding() -> None:
    """nvidia-smi lists the GPUs, and a pod without CUDA starts."""
    for host in ({"switches": 4}, {"nvlink5": True}):
        ((code, words),) = of_node(driver=host)
        assert (code, "NVSwitches, and no nv-fabricmanager" in words) == ("gpu_fabric_not_ready", True)
    assert of_node(driver={"switches": 4, "fabric_manager": True}) == []


# kubelet, its records, and what each pod needs before its first container


def of_kubelet(change: Callable[[Json], None], pods: list[Json] | None = None) -> list[tuple[str, str, str]]:
    host = seen.gpu_host()
    change(host["gpu"])
    found = VerifyFindings("h")
    judge_kubelet(found, host["gpu"], True, host["now"])
    judge_sandbox(found, host["gpu"])
    judge_record(found, host["gpu"], pods or [])
    return [(one.check, one.severity, one.cure) for one in found.list]


def test_a_healthy_node_has_none_of_these() -> None:
    assert of_kubelet(lambda gpu: None, [seen.pod()]) == []


@pytest.mark.parametrize(("images", "severity"), [([], "error"), (["registry.k8s.io/pause:3.8"], "warning")])
def test_a_sandbox_image_that_is_gone_is_pulled_by_its_name(images: list[str], severity: str, golden: Golden) -> None:
    gone = {"image": "registry.k8s.io/pause:3.10", "missing": True, "puller": "ctr -n k8s.io images pull"}
    ((code, found, cure),) = of_kubelet(lambda gpu: gpu.update(sandbox=gone, images=images))
    assert (code, found) == ("sandbox_image_missing", severity)
    golden(cure)


DAY = 86400.0


@pytest.mark.parametrize(
    ("life", "left", "severity"),
    [
        (365 * DAY, 100 * DAY, ""),
        (365 * DAY, 15 * DAY, ""),
        (365 * DAY, 13 * DAY, "warning"),
        (365 * DAY, -1.0, "error"),
        (DAY, 0.2 * DAY, ""),
        (DAY, 0.05 * DAY, "warning"),
    ],
)
def test_the_end_of_kubelets_certificate(life: float, left: float, severity: str) -> None:
    """A cluster may sign for a day: kubelet renews before nine tenths are over."""
    end = seen.NOW + left
    said = of_kubelet(lambda gpu: gpu.update(kubelet_life=[end - life, end]))
    assert [(code, found) for code, found, _cure in said] == ([("kubelet_certificate", severity)] if severity else [])


@pytest.mark.parametrize("name", ["scheduler", "controller-manager", "admin"])
def test_the_end_of_a_control_planes_certificate(name: str, golden: Golden) -> None:
    path = f"/etc/kubernetes/{name}.conf"

    def ends(left: float) -> list[tuple[str, str, str]]:
        host, found = seen.plane_host(), VerifyFindings("h")
        host["plane"]["lives"][path] = [seen.NOW + left - 365 * DAY, seen.NOW + left]
        judge_plane(found, host, read(seen.printed(host)["doctor"], "h"), None, asked=False)
        return [(one.severity, one.found, one.cure) for one in found.list if one.check == "control_plane_certificate"]

    assert ends(15 * DAY) == []
    ((severity, found, _cure),) = ends(13 * DAY)
    assert severity == "warning"
    golden(found)
    ((severity, found, cure),) = ends(-DAY)
    assert severity == ("warning" if name == "admin" else "error")
    golden(found)
    golden(cure)


def test_the_folder_of_kubelet_is_the_one_that_the_plugin_was_told() -> None:
    assert [code for code, *_ in of_kubelet(lambda gpu: gpu.update(kubelet_roots=["/data/kubelet", "/var/lib/kubelet"]))] == [
        "kubelet_root_differs"
    ]
    assert of_kubelet(lambda gpu: gpu.update(kubelet_roots=["/data/kubelet", ""])) == [], "no plugin of ours"


def test_a_lost_record_is_named_by_its_pods_and_harms_none(golden: Golden) -> None:
    lost = seen.pod("trains")
    ((code, severity, cure),) = of_kubelet(lambda gpu: gpu.update(forgotten=[lost["uid"], "of-no-pod"]), [lost, seen.pod("other")])
    assert (code, severity) == ("record_lost", "warning")
    golden(cure)
    assert of_kubelet(lambda gpu: gpu.update(forgotten=[lost["uid"]]), [{**lost, "deleted": True}]) == []
    assert of_kubelet(lambda gpu: gpu.update(forgotten=[lost["uid"]]), []) == [], "the API has no such pod"


@pytest.mark.parametrize(
    ("mode", "mps", "said"),
    [
        ("Default", False, []),
        ("Prohibited", False, [("gpu_compute_mode", "error")]),
        ("Exclusive_Process", False, [("gpu_compute_mode", "warning")]),
        ("Exclusive_Process", True, []),
    ],
)
def test_the_compute_mode_of_a_gpu(mode: str, mps: bool, said: list[tuple[str, str]]) -> None:
    """MPS sets it itself."""
    host = seen.gpu_host()
    host["gpu"].update(mps=mps)
    host["gpu"]["nvidia_smi"]["gpus"][1]["compute_mode"] = mode
    found = VerifyFindings("h")
    judge_node(found, host, Doctor(), None)
    assert [(one.check, one.severity) for one in found.list if one.check == "gpu_compute_mode"] == said
