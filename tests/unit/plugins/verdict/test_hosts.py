# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Each judgement of verify by itself: where the line runs between good and bad, and the facts that a finding names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.containers import cards_of, free_units, judge_containers
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.control_plane import judge_plane
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.daemons import (
    judge_metrics,
    judge_runtime,
    judge_tokens,
    judge_unit,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import Findings
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.gpu_node import judge_node

from unit.plugins.verdict import evidence as seen
from unit.plugins.verdict.evidence import ARTIFACT, CONFIG, CONFIG_PATH, CONTAINER, MANIFEST_PATH, NOW, UUIDS

Json = dict[str, Any]
MEMORY, CARDS = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
SITE = "run site.yml again"


def said(found: Findings) -> list[tuple[str, str]]:
    """What was found, under which code; a warning or a note says so before its code."""
    assert {one.host for one in found.list} <= {found.host}
    return [(one.check if one.severity == "error" else f"{one.severity} {one.check}", one.found) for one in found.list]


# The runtime


def of_runtime(plane: bool = False, **changes: Any) -> list[tuple[str, str]]:
    found = Findings("h")
    judge_runtime(found, {**seen.runtime(), **changes}, ARTIFACT, plane=plane)
    return said(found)


WHERE = "/opt/gpushare/0.1.0-0123456789ab"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"environment": "", "files": 0, "wheel_sha256": ""}, [("runtime_missing", "no runtime in use")]),
        (
            {"wheel_sha256": "0123456789abcdef", "requirements_sha256": "x"},
            [("runtime_differs", f"{WHERE} made from wheel 0123456789ab (version 0.1.0)")],
        ),
        ({"wheel_sha256": "", "version": ""}, [("runtime_differs", f"{WHERE} made from wheel unknown (version unknown)")]),
        ({"requirements_sha256": "x"}, [("runtime_differs", f"{WHERE} made from other locked requirements")]),
        ({"damaged": ["a.py"], "damaged_count": 1}, [("runtime_differs", f"a.py in {WHERE} changed since it was installed")]),
        (
            {"damaged": ["a.py", "b.py"], "damaged_count": 3},
            [("runtime_differs", f"a.py, b.py and 1 more in {WHERE} changed since it was installed")],
        ),
        ({"files": 0}, [("runtime_differs", f"no record of the installed files in {WHERE}")]),
    ],
)
def test_the_runtime_is_this_collections_file_by_file(changes: Json, expected: list[tuple[str, str]]) -> None:
    assert of_runtime(**changes) == expected


def test_control_planes_have_the_requirements_of_kubectls_plugin() -> None:
    other = [("runtime_differs", f"{WHERE} made from other locked requirements")]
    assert of_runtime(plane=True) == other
    assert of_runtime(plane=True, requirements_sha256=ARTIFACT.kubectl_requirements_sha256) == []
    assert of_runtime(requirements_sha256=ARTIFACT.kubectl_requirements_sha256) == other


# A daemon's unit

NOT_FROM_DISK = "x.service running from other files than those on the disk"


@pytest.mark.parametrize(
    ("changes", "runs", "expected"),
    [
        ({}, True, []),
        ({"exists": False, "active": "failed"}, False, [("extender_missing", "no unit x.service")]),
        ({"active": "activating", "state": "start", "says": "waits", "file_generation": "new", "enabled": False}, True, []),
        ({"active": "activating", "state": "start"}, False, [("extender_down", "x.service activating (start)")]),
        (
            {"active": "activating", "state": "auto-restart", "says": "no API"},
            False,
            [("extender_down", "x.service activating (auto-restart, its last words: no API)")],
        ),
        ({"active": "failed", "state": "", "enabled": False}, False, [("extender_down", "x.service failed (no state)")]),
        (
            {"active": "deactivating", "state": "start", "says": "y"},
            False,
            [("extender_down", "x.service deactivating (start, its last words: y)")],
        ),
        ({"file_generation": "new"}, True, [("extender_older_than_file", NOT_FROM_DISK)]),
        ({"enabled": False}, True, [("warning extender_not_at_boot", "x.service not enabled")]),
        (
            {"enabled": False, "process_generation": None},
            True,
            [("extender_older_than_file", NOT_FROM_DISK), ("warning extender_not_at_boot", "x.service not enabled")],
        ),
    ],
)
def test_a_daemon_runs_from_the_files_on_the_disk_now_and_after_a_boot(changes: Json, runs: bool, expected: list[tuple[str, str]]) -> None:
    found = Findings("h")
    assert judge_unit(found, {**seen.unit("x", 5), **changes}, "extender", "/opt/gpushare/0.1.0-0123456789ab") is runs
    assert said(found) == expected


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ("/opt/gpushare/0.2.0-0123456789ab", None, [("runtime_differs", "x.service running /opt/gpushare/0.1.0-0123456789ab/bin/x")]),
        (
            "/opt/gpushare/0.1.0-0123456789a",
            ["/opt/gpushare/0.1.0-0123456789ab/bin/x"],
            [("runtime_differs", "x.service running /opt/gpushare/0.1.0-0123456789ab/bin/x")],
        ),
        ("/opt/gpushare/0.1.0-0123456789ab", ["/usr/bin/python3", "/opt/gpushare/0.1.0-0123456789ab/bin/x"], []),
        ("/opt/gpushare/0.1.0-0123456789ab", [], []),  # it has just ended
        ("", None, []),  # there is no link: that is said elsewhere
    ],
)
def test_a_daemon_runs_from_the_runtime_in_use(environment: str, arguments: list[str] | None, expected: list[tuple[str, str]]) -> None:
    found, unit = Findings("h"), seen.unit("x", 5)
    assert judge_unit(found, unit if arguments is None else {**unit, "arguments": arguments}, "extender", environment)
    assert said(found) == expected


def test_a_device_plugin_that_does_not_run_is_called_stopped() -> None:
    found = Findings("h")
    assert judge_unit(found, {**seen.unit("x", 5), "active": "failed", "state": "failed"}, "plugin", "") is False
    assert said(found) == [("plugin_stopped", "x.service failed (failed)")]
    assert "systemctl restart x;" in found.list[0].cure


# Its metrics

ADDRESS = "10.0.0.5:9440"
OPEN = f"HTTP 200 from {ADDRESS} for who shows no token"
CLOSED = f"from {ADDRESS}, for the metrics of x"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"wants_token": False, "stranger": 200}, []),
        ({"listens": ""}, [("metrics_wrong", "no metrics of x")]),
        ({"wanted": "", "scraper": 503}, [("metrics_wrong", f"metrics of x on {ADDRESS}")]),
        ({"scraper": 503, "stranger": 200}, [("metrics_down", f"HTTP 503 {CLOSED}")]),
        ({"scraper": "refused"}, [("metrics_down", f"refused {CLOSED}")]),
        ({"scraper": 201}, [("metrics_down", f"HTTP 201 {CLOSED}")]),
        ({"stranger": 200}, [("metrics_open", OPEN)]),
        ({"stranger": "timed out"}, [("metrics_open", OPEN.replace("HTTP 200", "timed out"))]),
    ],
)
def test_metrics_are_where_they_are_to_be_and_for_whom(changes: Json, expected: list[tuple[str, str]]) -> None:
    found = Findings("h")
    as_it_should_be = {"wanted": ADDRESS, "listens": ADDRESS, "wants_token": True, "stranger": 401, "scraper": 200}
    judge_metrics(found, {"name": "x"}, {**as_it_should_be, **changes})
    assert said(found) == expected
    wanted = changes.get("wanted", ADDRESS)
    if expected and expected[0][0] == "metrics_wrong":
        assert found.list[0].expected == (f"metrics of x on {wanted}" if wanted else "no metrics of x")
    judge_metrics(found, {"name": "x"}, None)
    assert len(found.list) == len(expected)


# Its tokens

ACCOUNT = "gpushare-extender"
OWN, SEED = f"/var/lib/{ACCOUNT}/token", "/etc/gpushare/extender.token"
Lives = tuple[float, float]


def of_tokens(own: Lives | None, seed: Lives | None, uid: str = f"uid-of-{ACCOUNT}", **more: Any) -> list[tuple[str, str]]:
    """own, seed: (issued, expires), as seconds from now."""
    tokens: Json = {"own": {"path": OWN, "claims": None}, "seed": {"path": SEED, "claims": None}}
    for which, life in (("own", own), ("seed", seed)):
        if life is not None:
            tokens[which]["claims"] = seen.token(ACCOUNT, NOW + life[0], NOW + life[1])["claims"]
    accounts = more.get("accounts", {ACCOUNT: uid})
    found = Findings("h")
    judge_tokens(found, {**seen.unit(ACCOUNT, 5), "with_token": more.get("with_token", True)}, tokens, NOW, accounts)
    return said(found)


def expired(how_long: str) -> list[tuple[str, str]]:
    return [("token_expired", f"the token in {OWN} expired {how_long} ago")]


REFUSED = f"a token of ServiceAccount {ACCOUNT} with UID uid-of-{ACCOUNT}, which is "
GOOD, LATE = (-100, 300), (-300, 99)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (of_tokens(GOOD, None), []),
        (of_tokens(None, GOOD), []),
        (of_tokens(None, None), [("token_missing", f"no token in {OWN} nor in {SEED}")]),
        (of_tokens(None, None, with_token=False), []),
        (of_tokens((-100, 1), (-50, 40)), []),
        (of_tokens((-100, -30), GOOD), []),
        (of_tokens((-100, -30), (-200, -59)), expired("30 s")),
        (of_tokens((-100, 0), None), expired("0 s")),
        (of_tokens((-100, -60), None), expired("1 min")),
        (of_tokens((-9000, -3599), None), expired("60 min")),
        (of_tokens((-9000, -3600), (-9000, -7200)), expired("1 h")),
        (of_tokens(None, (-900000, -86400)), expired("1 d")),
        (of_tokens(None, (-900000, -86399)), expired("24 h")),
        (of_tokens((-900000, -3 * 86400), None), expired("3 d")),
        (of_tokens(GOOD, None, "another"), [("token_refused", REFUSED + "another")]),
        (of_tokens(GOOD, None, accounts={}), [("token_refused", REFUSED + "gone")]),
        (of_tokens(GOOD, None, accounts=None), []),
        (of_tokens((-300, 100), None), []),
        (of_tokens(LATE, None), [("warning token_not_renewed", f"25% of the life of the token in {OWN} left")]),
        (of_tokens(LATE, (-300, -1)), [("warning token_not_renewed", f"25% of the life of the token in {OWN} left")]),
        # A daemon that has only its seed, or a newer seed than its own token, is about to swap it.
        (of_tokens(None, LATE), []),
        (of_tokens((-400, 99), LATE), []),
        (of_tokens((-10, -5), LATE), []),
        (of_tokens((0, 1), None), []),
        (of_tokens((5, 5), None), []),
        # A life of a second or less counts as one of a second.
        (of_tokens((-0.6, 0.4), None), []),
    ],
)
def test_a_token_lives_is_of_the_account_that_lives_and_is_renewed_in_time(
    found: list[tuple[str, str]], expected: list[tuple[str, str]]
) -> None:
    assert found == expected


# A GPU node


def of_node(node: Mapping[str, Any] | None = None, **changes: Any) -> list[tuple[str, str]]:
    """changes: of what was seen of the cards; `kubelet`, `says` and `active` (of the plugin) of their places."""
    host = seen.gpu_host()
    host["kubelet"].update(changes.pop("kubelet", {}))
    host["gpu"]["plugin"].update({key: changes.pop(key) for key in ("says", "active", "state") if key in changes})
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(host["gpu"][key], dict):
            host["gpu"][key].update(value)
        else:
            host["gpu"][key] = value
    found = Findings("h")
    judge_node(found, host, node)
    return said(found)


def socket(name: str, pid: int, process: str = "other") -> Json:
    return {"name": name, "pid": pid, "process": process}


MEM_SOCKET, CARD_SOCKET = "aliyungpushare.sock", "aliyungpushare-cards.sock"
OURS = [socket(MEM_SOCKET, 100), socket(CARD_SOCKET, 100)]
FOREIGN = {MEMORY: {UUIDS[0]: 16, "z": 1, "b": 1}, CARDS: dict.fromkeys(UUIDS, 1)}
NOT_READ = "kubelet does not read the list"
NOT_LISTENING = "no device plugin listening on /var/lib/kubelet/device-plugins/"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"driver": {"loaded": "550.1"}}, [("driver_mismatch", "kernel module 550.1 and library 535.261.03 of the driver")]),
        ({"driver": {"loaded": ""}}, []),
        ({"driver": {"library": None}}, []),
        ({"driver": None}, []),
        ({"kubelet": {"running": False}}, [("kubelet_stopped", "no kubelet that runs")]),
        # A second plugin
        (
            {"managers": [{"name": "HAMi", "evidence": ["process 7", "socket"]}, {"name": "NVIDIA", "evidence": ["process 8"]}]},
            [("second_plugin", "HAMi (process 7; socket), NVIDIA (process 8)")],
        ),
        (
            {"sockets": [socket(MEM_SOCKET, 300, ""), socket(CARD_SOCKET, 100)]},
            [("second_plugin", f"process 300 (unnamed) listening on the device plugin's own socket {MEM_SOCKET}")],
        ),
        ({"sockets": [*OURS, socket("other.sock", 300)]}, []),
        ({"registered": FOREIGN}, []),
        (
            {"sockets": [*OURS, socket("a.sock", 300, "x"), socket("b.sock", 301, "y")], "registered": FOREIGN},
            [("second_plugin", f"ids such as b registered for {MEMORY}, which are no card's, by process 300 (x) or process 301 (y)")],
        ),
        (
            {"sockets": [*OURS, socket("a.sock", 300, "x")], "says": NOT_READ},
            [("second_plugin", f"kubelet not listening to our device plugin ({NOT_READ}) while process 300 (x) serves it")],
        ),
        ({"says": NOT_READ}, []),
        (
            {"managers": [{"name": "HAMi", "evidence": ["p"]}], "sockets": [*OURS, socket("a.sock", 300)], "says": NOT_READ},
            [("second_plugin", "HAMi (p)")],
        ),
        # A plugin that is not known to kubelet
        ({"sockets": OURS[:1]}, [("plugin_not_registered", NOT_LISTENING + CARD_SOCKET)]),
        ({"sockets": OURS[1:], "says": "all is well"}, [("plugin_not_registered", NOT_LISTENING + MEM_SOCKET)]),
        (
            {"sockets": [], "active": "activating", "state": "start", "says": "waits", "kubelet": {"root": "/k"}},
            [
                ("plugin_not_registered", f"no device plugin listening on /k/device-plugins/{name} (the plugin says: waits)")
                for name in (MEM_SOCKET, CARD_SOCKET)
            ],
        ),
        ({"registered": {CARDS: {}, MEMORY: {}}}, []),
        ({"managers": [{"name": "HAMi", "evidence": ["p"]}], "sockets": []}, [("second_plugin", "HAMi (p)")]),
        # The container runtime
        ({"container_runtime": None}, []),
        ({"container_runtime": {"problem": "dead", "lacks": "y"}}, [("runtime_silent", "dead")]),
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
            [("warning containerd_older_than_file", "a containerd that was not restarted since its files changed (y)")],
        ),
    ],
)
def test_a_node_has_its_driver_one_plugin_and_the_runtime(changes: Json, expected: list[tuple[str, str]]) -> None:
    assert of_node(**changes) == expected


SPEC = "/var/run/cdi/nvidia.yaml"


@pytest.mark.parametrize(
    ("mode", "spec", "expected"),
    [
        ("cdi", None, ("cdi_missing", "no CDI spec of nvidia.com/gpu, though nvidia-container-runtime is in mode cdi")),
        ("legacy", None, None),
        ("", {}, None),
        ("cdi", {"cards": []}, None),
        ("cdi", {"cards": [*UUIDS, "GPU-a"]}, "card GPU-a, which is not there"),
        ("legacy", {"cards": [UUIDS[1]]}, f"no card {UUIDS[0]}"),
        ("cdi", {"cards": ["GPU-a"]}, f"card GPU-a, which is not there; no card {UUIDS[0]}; no card {UUIDS[1]}"),
        ("cdi", {"versions": ["535.261.03", "1.2", "1.3"]}, "libraries of driver 1.2, 1.3"),
        ("cdi", {"versions": []}, None),
        ("cdi", {"missing": ["a", "b", "c"]}, "a, b, c, which the host does not have"),
        ("cdi", {"missing": ["a", "b", "c", "d", "e"]}, "a, b, c and 2 more, which the host does not have"),
        ("cdi", {"versions": ["1.2"], "missing": ["a"]}, "libraries of driver 1.2; a, which the host does not have"),
    ],
)
def test_a_cdi_spec_names_the_cards_and_the_files_that_are_there(mode: str, spec: Json | None, expected: object) -> None:
    (good,) = seen.gpu_host()["gpu"]["cdi"]["specs"]
    found = of_node(cdi={"mode": mode, "specs": [] if spec is None else [good, {**good, **spec}]})
    assert found == ([] if expected is None else [expected if isinstance(expected, tuple) else ("cdi_stale", f"in {SPEC} {expected}")])


def test_a_driver_of_unknown_version_makes_no_library_stale() -> None:
    smi = {"driver_version": None}
    assert of_node(nvidia_smi=smi, cdi={"specs": [{"path": SPEC, "cards": [], "versions": ["1.2"], "missing": []}]}) == []


PROBLEM = {"kind": "version_mismatch", "found": "words", "expected": "cards", "cure": "reboot"}


def test_a_driver_that_does_not_answer_is_said_once_and_no_card_is_missed() -> None:
    smi = {"cards": [], "driver_version": None, "problem": PROBLEM}
    changes: Json = {"nvidia_smi": smi, "driver": {"loaded": "1"}, "registered": FOREIGN, "sockets": [*OURS, socket("a.sock", 300)]}
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


def test_differences_from_the_api_keep_how_bad_they_are() -> None:
    assert of_node({}) == [("node_missing", "node: no node of this name in the API")]
    host, found_ = {**seen.gpu_host(), "node_name": "none"}, Findings("h")
    judge_node(found_, host, {})
    assert said(found_) == [("node_missing", "node: no node of this name in the API")], "nothing is like this name"
    node = seen.node()
    content = json.loads(node["metadata"]["annotations"]["gpushare/cards"])
    content["cards"][1]["cordoned"] = True
    node["metadata"]["annotations"]["gpushare/cards"] = json.dumps(content)
    node["status"]["allocatable"] = {MEMORY: "16", CARDS: "1"}
    assert [one[0] for one in of_node(node)] == ["warning card_cordoned", "warning card_cordoned"]
    content["cards"][0]["health"] = "Xid 79"
    node["metadata"]["annotations"]["gpushare/cards"] = json.dumps(content)
    node["status"]["allocatable"] = {MEMORY: "0", CARDS: "0"}
    found = of_node(node)
    assert [(code, words.partition(":")[0]) for code, words in found] == [
        ("card_unusable", f"allocatable {one}") for one in (MEMORY, CARDS)
    ]
    assert all("Xid 79" in words for _code, words in found)


def test_metrics_of_a_plugin_that_does_not_run_are_not_asked_for() -> None:
    wrong = {"wanted": ADDRESS, "listens": "", "wants_token": False, "stranger": 1, "scraper": 1}
    assert [one[0] for one in of_node(metrics=wrong)] == ["metrics_wrong"]
    assert [one[0] for one in of_node(metrics=wrong, active="failed", state="failed", sockets=[], registered={})] == ["plugin_stopped"]


# A control plane


def of_plane(asked: bool = True, mirror: Json | None = None, gone: bool = False, **changes: Any) -> list[tuple[str, str]]:
    """changes: of what was seen of the control plane; `places` and `config` (the configuration's text) of their places."""
    host = seen.plane_host()
    host["places"].update(changes.pop("places", {}))
    text = changes.pop("config", CONFIG)
    scheduler = host["plane"]["scheduler"]
    scheduler["configs"][CONFIG_PATH]["text"] = text
    scheduler.update(changes.pop("scheduler", {}))
    host["plane"].update(changes)
    found = Findings("h")
    judge_plane(found, host, None if gone else mirror or seen.mirror(), asked)
    return said(found)


def certificates(problem: str = "", **changes: Any) -> Json:
    one = {"path": "a.crt", "not_after": "2027", "days_left": 80.0, "problem": "", **changes}
    return {"certificates": {"problem": problem, "certificates": [{**one, "path": "b.crt", "problem": ""}, one]}}


AT = "/etc/gpushare/pki/a.crt"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"certificates": None}, []),
        (certificates("no gpushare-pki"), [("certificate_wrong", "no gpushare-pki")]),
        (certificates(problem="", days_left=0), []),
        (certificates(days_left=0) | {}, []),
        ({"health": {"report": None, "why": "refused"}}, [("extender_down", "refused")]),
        (
            {"health": {"report": {"synced": False, "not_ready": "nodes"}}},
            [("extender_not_synced", "an extender that is not in sync: nodes")],
        ),
        (
            {"health": {"report": {"synced": "true"}}},
            [("extender_not_synced", "an extender that is not in sync: it does not say why")],
        ),
        ({"scheduler": {"manifest": None}}, [("scheduler_stopped", f"no manifest {MANIFEST_PATH}")]),
    ],
)
def test_a_control_plane_has_certificates_and_an_extender_in_sync(changes: Json, expected: list[tuple[str, str]]) -> None:
    assert of_plane(**changes) == expected


@pytest.mark.parametrize(
    ("left", "code"), [(0, "expired"), (0.0, "expired"), (-3.5, "expired"), (0.1, "wrong"), (1, "wrong"), (None, "wrong"), ("", "wrong")]
)
def test_a_certificate_that_is_over_is_told_from_one_that_is_wrong(left: object, code: str) -> None:
    changes = certificates(days_left=left)
    changes["certificates"]["certificates"][1]["problem"] = "bad"
    words = f"{AT}: bad (2027)" if code == "expired" else f"{AT}: bad"
    assert of_plane(**changes) == [(f"certificate_{code}", words)]


def test_an_extender_that_does_not_run_is_not_asked() -> None:
    metrics = {"wanted": ADDRESS, "listens": "", "wants_token": False, "stranger": 1, "scraper": 1}
    down = {**seen.unit("gpushare-extender", 0, "--listen", "127.0.0.1:32766"), "active": "failed"}
    assert [one[0] for one in of_plane(metrics=metrics)] == ["metrics_wrong"]
    assert [one[0] for one in of_plane(metrics=metrics, extender=down, health={"report": None, "why": "x"})] == ["extender_down"]


NAMED = f"urlPrefix 'https://127.0.0.1:32766/gpushare-scheduler' in {CONFIG_PATH}"


def of_config(text: str, **changes: Any) -> list[tuple[str, str]]:
    return of_plane(config=text, **changes)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        ("gpu-count", "gpu", [("extender_not_called", f"managedResources ['{MEMORY}', 'aliyun.com/gpu'] in {CONFIG_PATH}")]),
        ("gpu-mem", "gpu", [("extender_not_called", f"managedResources ['aliyun.com/gpu', '{CARDS}'] in {CONFIG_PATH}")]),
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
    elsewhere = seen.unit("gpushare-extender", 1, "--listen", "10.0.0.9:1")
    assert of_plane(extender=elsewhere) == [("extender_address_wrong", NAMED)]
    unsaid = seen.unit("gpushare-extender", 1)
    assert of_plane(extender=unsaid) == []
    assert of_plane(extender=unsaid, places={"extender_port": 1}) == [("extender_address_wrong", NAMED)]
    plain = CONFIG.replace("https:", "http:")
    assert of_config(plain, places={"pki_dir": ""}) == []
    assert of_config(plain, places={"pki_dir": "/p"}) == [("extender_address_wrong", NAMED.replace("https", "http"))]


def test_the_schedulers_manifest_names_its_configuration() -> None:
    lost = seen.manifest().replace(f"    - --config={CONFIG_PATH}\n", "")
    assert of_plane(scheduler={"manifest": lost}) == [("scheduler_not_configured", f"no --config in {MANIFEST_PATH}")]
    lacks = f"no file {CONFIG_PATH}, which {MANIFEST_PATH} means by --config"
    assert of_plane(scheduler={"configs": {}}) == [("scheduler_not_configured", lacks)]
    assert of_plane(scheduler={"configs": {CONFIG_PATH: None}}) == [("scheduler_not_configured", lacks)]
    for manifest in ("{", "a: b"):
        ((code, words),) = of_plane(scheduler={"manifest": manifest})
        assert (code, words.partition(":")[0]) == ("scheduler_not_configured", MANIFEST_PATH)


def beside(*texts: str) -> list[tuple[str, str]]:
    return of_plane(scheduler={"others": {f"/etc/kubernetes/manifests/{'abc'[place]}": text for place, text in enumerate(texts)}})


def stale(name: str) -> tuple[str, str]:
    return "stale_scheduler_file", f"/etc/kubernetes/manifests/{name}, which kubelet runs as kube-scheduler beside {MANIFEST_PATH}"


def test_another_file_that_kubelet_runs_as_the_same_scheduler() -> None:
    same = seen.manifest()
    another = same.replace("name: kube-scheduler\n  namespace", "name: another\n  namespace")
    assert another != same
    flag = f"--config={CONFIG_PATH}"
    assert beside(same) == [stale("a")]
    assert beside(another) == []
    assert beside(another.replace(flag, "--v=2")) == [stale("a")]
    assert beside(another.replace(flag, "--leader-elect-resource-name=other")) == []
    sidecar = same.replace("  - name: kube-scheduler\n    image", "  - name: x\n    command: [sh]\n  - name: kube-scheduler\n    image")
    assert sidecar != same
    assert beside(sidecar) == [stale("a")]
    assert beside("{", "kind: Pod", same) == [stale("c")]
    assert beside("[]", same.replace("    - kube-scheduler\n", "    - sh\n"), "7") == []


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

INDEXES: dict[int, int | None] = {0: 0, 1: 1, 2: None, 3: 7}
WHO = "container main of pod default/sharing"


def of_container(
    *, has: Mapping[str, list[str]] | None = None, annotations: Json | None = None, running: Json | None = None, **changes: Any
) -> tuple[int, list[tuple[str, str]]]:
    pod = seen.pod()
    pod["containers"][0].update({key: changes.pop(key) for key in ("units", "cards", "privileged", "index") if key in changes})
    pod["running"][0].update(running or {})
    if annotations is not None:
        pod["annotations"] = annotations
    pod.update(changes)
    found = Findings("h")
    count = judge_containers(found, [pod], {CONTAINER: ["nvidia0"]} if has is None else has, INDEXES, NOW)
    return count, said(found)


def allocation(**containers: Json) -> Json:
    return {"scheduler.framework.gpushare.allocation": json.dumps({key.strip("_"): value for key, value in containers.items()})}


UNNAMED = ("not_annotated", f"{WHO} without an annotation that names its card")


@pytest.mark.parametrize(
    ("changes", "count", "expected"),
    [
        ({}, 1, []),
        ({"deleted": True, "has": {}}, 0, []),
        ({"privileged": True, "has": {}}, 0, []),
        ({"units": 0, "has": {}}, 0, []),
        ({"units": 0, "cards": 1}, 1, []),
        ({"running": {"name": "sidecar"}, "has": {}}, 0, []),
        ({"running": {"started": NOW - 1}}, 1, []),
        ({"running": {"started": NOW - 0.9}, "has": {}}, 0, []),
        ({"has": {}}, 1, [("container_not_seen", f"no process of {WHO} (cccccccccccc)")]),
        ({"annotations": {}}, 1, [UNNAMED]),
        ({"annotations": {}, "running": {"started": NOW - 30.1}}, 1, [UNNAMED]),
        ({"annotations": {}, "running": {"started": NOW - 30}}, 1, []),
        ({"annotations": allocation(_0={"1": 6})}, 1, [("wrong_card", f"{WHO} with nvidia0 in its /dev")]),
        ({"annotations": allocation(_0={"3": 6})}, 1, [("wrong_card", f"{WHO} with nvidia0 in its /dev")]),
        ({"annotations": allocation(_0={"3": 6}), "has": {CONTAINER: ["nvidia7"]}}, 1, []),
        ({"annotations": allocation(_0={"3": 3, "0": 3}), "has": {CONTAINER: ["nvidia0", "nvidia7"]}}, 1, []),
        ({"annotations": allocation(_0={"0": 3, "2": 3})}, 1, [("wrong_card", f"{WHO} with nvidia0 in its /dev")]),
        ({"annotations": allocation(_0={"0": 3, "9": 3})}, 1, [("wrong_card", f"{WHO} with nvidia0 in its /dev")]),
        ({"has": {CONTAINER: []}}, 1, [("wrong_card", f"{WHO} with no card in its /dev")]),
        ({"has": {CONTAINER: ["nvidia0", "nvidia1"]}}, 1, [("wrong_card", f"{WHO} with nvidia0, nvidia1 in its /dev")]),
    ],
)
def test_a_container_has_the_card_of_its_annotation_and_no_other(changes: Json, count: int, expected: list[tuple[str, str]]) -> None:
    assert of_container(**changes) == (count, expected)


def test_what_a_wrong_card_should_have_been_is_named() -> None:
    found = Findings("h")
    pods = [seen.pod("a", card=3), {**seen.pod("b"), "deleted": True}, {**seen.pod("c"), "running": []}, seen.pod("d", card=1)]
    assert judge_containers(found, pods, {CONTAINER: ["nvidia0"]}, INDEXES, NOW) == 2
    assert [one.expected for one in found.list] == [
        f"nvidia{minor}: its annotation names card {index}" for index, minor in ((3, 7), (1, 1))
    ]


@pytest.mark.parametrize(
    ("annotations", "index", "cards"),
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
def test_the_cards_that_annotations_name_for_a_container(annotations: dict[str, str], index: int, cards: set[int]) -> None:
    assert cards_of(annotations, index) == cards


# Room for a probe pod


def with_annotations(pod: Json, annotations: Json, *containers: tuple[int, int]) -> Json:
    listed = [{"index": index, "name": f"c{index}", "units": units, "cards": 0, "privileged": False} for index, units in containers]
    return {**pod, "annotations": annotations, "containers": listed or pod["containers"]}


@pytest.mark.parametrize(
    ("pod", "free"),
    [
        (seen.pod(units=16), 16),
        (seen.pod(units=20), 16),
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
        ({"cards": {UUIDS[0]: [{"units": 3}, {"units": "4"}], UUIDS[1]: [{"units": 5}]}}, 20),
        ({"cards": {UUIDS[0]: [{"units": 30}]}}, 16),
        ({"cards": {"GPU-of-another": [{"units": 30}]}}, 32),
        ({"cards": None}, 32),
        ({}, 32),
        ([], 32),
        ({"cards": {UUIDS[0]: [{}]}}, 32),
    ],
)
def test_what_the_node_keeps_back_is_not_free(held: object, free: int) -> None:
    node = seen.node()
    node["metadata"]["annotations"]["gpushare/held"] = json.dumps(held)
    assert free_units(node, []) == free


def test_a_card_that_cannot_be_used_has_no_room() -> None:
    node = seen.node()
    content = json.loads(node["metadata"]["annotations"]["gpushare/cards"])
    content["cards"][1]["cordoned"] = True
    node["metadata"]["annotations"]["gpushare/cards"] = json.dumps(content)
    assert free_units(node, []) == 16
    node["metadata"]["annotations"]["gpushare/held"] = json.dumps({"cards": {UUIDS[1]: [{"units": 5}]}})
    assert free_units(node, [seen.pod(card=1), seen.pod(card=0, units=1)]) == 15
    node["metadata"]["annotations"]["gpushare/cards"] = "{"
    assert free_units(node, []) is None
