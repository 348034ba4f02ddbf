# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whoever is root on a host answers whatever he likes: nothing that reads his answer raises, and no other host's result differs."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gpushare.kubernetes.plugins.action import gpushare_judge, gpushare_verify_host, kube_scheduler_extender
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.facts import gather as driver_facts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.host import Places
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_strategy import CdiFacts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import described, gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import SmiReport
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.seeds import daemons_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.token import why_seed
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.apply import SchedulerFound
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import COMMON, PARSED, RESULTS, ask, of_answer
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._judge.verify import _seen
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._shape import other_shape
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.judge import Evidence, judge, placeable, scheduler_name
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unit.fakes.plugins.fake_fleet import make_fleet
from unit.fakes.plugins.preflight.operator_facts import NO_DRA, NO_OPERATOR, dra
from unit.fakes.plugins.verdict.evidence import ARTIFACT, CONFIG, cluster, finding, gpu_host, manifest, node, plane_host, printed

ROOT = Path(__file__).resolve().parents[3]
Json = dict[str, Any]
SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "a" * 300, "\n", "../x", "-1", "1e999", "0000-00-00", "{{ x }}", "535", "GPU-1", "{", "[]", "true", "node-1"])
)
WORDS = st.sampled_from(
    ["v", "gpus", "node_name", "problem", "failed", "results", "ansible_stats", "add_host", "spec", "containers", "metadata", "name"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=3), max_leaves=8
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of the value, and to a key that it lacks."""
    yield path
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, (*path, key))
        yield (*path, "further")
    elif isinstance(value, list):
        for index, one in enumerate(value[:3]):
            yield from places(one, (*path, index))


def changed(value: Any, path: tuple[Any, ...], other: Any, *, gone: bool) -> Any:
    if not path:
        return other
    whole = copy.deepcopy(value)
    part = whole
    for step in path[:-1]:
        part = part[step]
    if gone and path[-1] != "further":
        del part[path[-1]]
    else:
        part[path[-1]] = other
    return whole


def answers(good: Json) -> st.SearchStrategy[Any]:
    """The answer with one or two parts of it gone or anything else, or anything at all."""
    ways = st.sampled_from(list(places(good)))
    one = st.builds(lambda path, other, gone: changed(good, path, other, gone=gone), ways, VALUES, st.booleans())
    return st.just(good) | one | one | one | st.dictionaries(WORDS, VALUES, max_size=4)


class Templar:
    @staticmethod
    def template(value: Any) -> Any:
        return value


def action(module: Any, arguments: Json, *said: Any, host: str = "evil") -> tuple[Any, Json]:
    """An action plugin whose module says this, one after the other, the last one for good; and the host's variables."""
    task = SimpleNamespace(args=arguments, action=module.__name__.rpartition(".")[2], async_val=0, check_mode=True, delegate_to=None)
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None), has_pipelining=True, become=SimpleNamespace(name="sudo"))
    made = module.ActionModule(task, connection, SimpleNamespace(), None, Templar(), None)
    left = list(said)
    made._execute_module = lambda **_more: copy.deepcopy(left.pop(0) if len(left) > 1 else left[0])
    made._early_needs_tmp_path = lambda: False
    return made, {"inventory_hostname": host, "groups": {"all": ["cp1", "gpu1", "evil"]}, "hostvars": {}}


def run(module: Any, arguments: Json, said: Any, **known: Any) -> Json:
    made, variables = action(module, arguments, said)
    result = made.run(None, {**variables, **known})
    assert isinstance(result, dict)
    if result.get("failed"):
        assert "evil" in result["msg"] or "cp1" in result["msg"] or not isinstance(said, dict) or said.get("failed") is True, result
        assert len(result["msg"]) < 2000 or said.get("failed") is True
    return result


def mapped(said: Any) -> Json:
    """Ansible makes sure of this much by itself."""
    return said if isinstance(said, dict) else {"said": said}


# Verify


def test_a_namespace_that_cannot_be_stops_verify_before_any_pod_is_made(tmp_path: Path) -> None:
    arguments = {"what": "verify", "hosts": ["cp1"], "runtime": str(tmp_path), "seen": "seen", "cluster": "cluster", "namespace": "--all"}
    made, variables = action(gpushare_judge, arguments, {})
    with pytest.raises(AnsibleActionFail, match="gpushare_verify_namespace"):
        made.run(None, variables)


def whole(host: Json, **roles: bool) -> Json:
    """An answer of gpushare_verify_host with every field that it really has, for the host evil."""
    seen = copy.deepcopy(printed(host))
    seen["places"] = {**asdict(Places(**roles)), **seen["places"]}
    if seen["gpu"]:
        seen["gpu"]["nvidia_smi"] = SmiReport.from_dict(seen["gpu"]["nvidia_smi"]).as_dict()
        seen["gpu"]["strategy"]["cdi"] = asdict(CdiFacts(**seen["gpu"]["strategy"]["cdi"]))
    return json.loads(json.dumps({"changed": False, "seen": {**seen, "node_name": "evil"}}))


GPU = whole(gpu_host(), gpu_node=True, control_plane=False)
PLANE = whole(plane_host(), gpu_node=False, control_plane=True)


def verdict_with(said: Any, roles: Json) -> tuple[set[tuple[str, ...]], Json]:
    """What is found of the other hosts, and what verify does next, where evil says this."""
    result = run(gpushare_verify_host, {**roles, "install_dir": "/opt/gpushare"}, said)
    honest = {"cp1": printed(plane_host()), "gpu1": printed(gpu_host())}
    evidence = Evidence({**honest, "evil": _seen(json.loads(json.dumps(result)))}, {**cluster(), "nodes": [node()]}, ARTIFACT)
    findings = judge(evidence).findings
    assert all(len(str(one)) < 100_000 for one in findings)
    images, unproven = placeable(evidence, "")
    plan = {"images": images, "unproven": unproven, "scheduler": scheduler_name(evidence)}
    plan["images"].pop("evil", None)
    plan["unproven"].pop("evil", None)
    # A warning that two hosts name one UUID is about the two, and names both.
    told = [one for one in findings if one.host != "evil" and not (one.check == "uuid_twice" and "evil" in one.found)]
    return {(one.host, one.check, one.severity, one.found) for one in told}, plan


GPU_NODE = {"gpu_node": True, "control_plane": False}
CONTROL_PLANE = {"gpu_node": False, "control_plane": True}
HONEST = (set(), {"images": {"node-1": "registry.k8s.io/pause:3.10"}, "unproven": {}, "scheduler": "default-scheduler"})


def test_what_these_hosts_really_answer_is_believed() -> None:
    for said, roles in ((GPU, GPU_NODE), (PLANE, CONTROL_PLANE)):
        assert run(gpushare_verify_host, roles, said)["seen"] == said["seen"]
        assert verdict_with(said, roles) == HONEST


def test_what_modules_really_answer_is_believed(fleet: dict[str, Json]) -> None:
    good = {
        "gpushare_verify_cluster evidence": {"changed": False, "seen": cluster()},
        "gpushare_api facts": {key: value for key, value in API.items() if key != "item"},
        "gpushare_daemon token": OWN,
        "gpushare_api nodes": DEAD,
        "gpushare_driver facts": fleet["driver_info"],
        "gpu_node_info": {"changed": False, **fleet["gpu1"]["facts"]},
        "gpushare_sharing plans": fleet["gpu1"],
    }
    for module, said in good.items():
        assert asked(module, said) == said, module
    assert asked("kube_scheduler_extender", FOUND, of_answer(SchedulerFound)) == FOUND


@SETTINGS
@given(answers(GPU))
def test_verify_of_a_gpu_node(said: Any) -> None:
    assert verdict_with(mapped(said), GPU_NODE) == HONEST


@SETTINGS
@given(answers(PLANE))
def test_verify_of_a_control_plane(said: Any) -> None:
    assert verdict_with(mapped(said), CONTROL_PLANE) == HONEST


CONFIGS = answers(yaml.safe_load(CONFIG)) | answers({**yaml.safe_load(CONFIG), "profiles": [{"schedulerName": "default-scheduler"}]})


@SETTINGS
@given(answers(yaml.safe_load(manifest())), CONFIGS, answers(finding("extender_down")))
def test_verify_of_a_control_plane_by_its_files(pod: Any, config: Any, one: Any) -> None:
    """In bounds, a control plane's own file says which scheduler probe pods name: so it must be a name."""
    said = copy.deepcopy(PLANE)
    files = said["seen"]["plane"]["scheduler"]
    files["manifest"] = json.dumps(pod)
    files["others"] = {"/etc/kubernetes/manifests/other": json.dumps(pod)}
    for file in files["configs"].values():
        file["text"] = json.dumps(config)
    answer = json.loads(said["seen"]["doctor"]["answer"])
    said["seen"]["doctor"]["answer"] = json.dumps({**answer, "findings": [one]})
    findings, _plan = verdict_with(said, CONTROL_PLANE)
    assert findings == set()
    evil = Evidence({"evil": said["seen"]}, cluster(), ARTIFACT)
    assert set(scheduler_name(evil)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")


def test_a_gpu_node_says_nothing_of_the_scheduler() -> None:
    said = copy.deepcopy(GPU)
    said["seen"]["plane"] = copy.deepcopy(PLANE["seen"]["plane"])
    for file in said["seen"]["plane"]["scheduler"]["configs"].values():
        file["text"] += "profiles: [{schedulerName: evil}]\n"
    result = run(gpushare_verify_host, GPU_NODE, said)
    assert "evil is not believed: found evidence that does not fit control_plane: false" in result["msg"]
    assert verdict_with(said, GPU_NODE) == HONEST


@pytest.mark.parametrize(("roles", "part"), [(GPU_NODE, "gpu"), (CONTROL_PLANE, "plane")])
def test_a_host_without_its_own_evidence_is_not_believed(roles: Json, part: str) -> None:
    said = copy.deepcopy(GPU if part == "gpu" else PLANE)
    said["seen"][part] = None
    assert "evil is not believed" in run(gpushare_verify_host, roles, said)["msg"]


@SETTINGS
@given(answers({"seen": {"places": GPU["seen"]["places"], "now": 1.5, "gpu": {"containers": {"c" * 64: ["nvidia0"]}}, "plane": None}}))
def test_verify_again_during_the_probe(said: Any) -> None:
    result = run(gpushare_verify_host, {**GPU_NODE, "only": ["containers", "extender"]}, mapped(said))
    pod = {"namespace": "kube-system", "name": "probe", "node": "evil", "phase": "Running", "message": "", "deleted": False, "probe": True}
    pod |= {"annotations": {}, "containers": [], "running": [], "waiting": [], "scheduling": "", "scheduler": "default-scheduler"}
    seen = _seen(result)
    probed = {} if isinstance(seen, str) else {"evil": seen}
    judge(Evidence({"evil": GPU["seen"]}, cluster(), ARTIFACT, probed=probed, probes={"evil": pod}))


@SETTINGS
@given(answers({"changed": False, "seen": cluster()}))
def test_verify_of_the_cluster(said: Any) -> None:
    result = asked("gpushare_verify_cluster evidence", mapped(said))
    evidence = Evidence({"cp1": printed(plane_host()), "gpu1": printed(gpu_host())}, _seen(result), ARTIFACT)
    judge(evidence)
    placeable(evidence, "")


# Every module


def asked(answer: str, said: Any, shape: Any = None) -> Json:
    """answer: its name in RESULTS."""
    module, _, what = answer.partition(" ")
    task = SimpleNamespace(action=f"gpushare.kubernetes.{module}", args={"what": what} if what else {}, delegate_to="evil")
    return ask(
        SimpleNamespace(_execute_module=lambda **_more: copy.deepcopy(said), _task=task), {"inventory_hostname": "gpu1"}, shape=shape
    )


@pytest.mark.parametrize("answer", sorted(RESULTS))
def test_nothing_but_what_the_module_may_say_reaches_anybody(answer: str) -> None:
    known = {key.removesuffix("?") for key in (*COMMON, *RESULTS[answer], *PARSED, "exception", "ansible_facts")}
    others = {"ansible_stats": 5, "add_host": 5, "add_group": 5, "results": [5], "skipped": True, "unreachable": True, "further": 1}
    for said in ({"failed": True, "msg": "x", **others}, {"changed": False, **others}):
        result = asked(answer, said)
        assert set(result) <= known
        assert result.get("failed") or "further" not in result


@SETTINGS
@given(st.sampled_from(sorted(RESULTS)), st.dictionaries(WORDS | st.sampled_from(["changed", "msg", "exception", "own"]), VALUES))
def test_any_answer_of_any_module_is_an_answer(answer: str, said: Json) -> None:
    result = asked(answer, said)
    assert isinstance(result.get("failed", False), bool)
    assert isinstance(result.get("msg", ""), str)
    assert (
        result.get("failed")
        or "msg" in said
        or set(result) & {"changed", *(key.removesuffix("?") for key in RESULTS[answer])}
        or not result.keys() - {"failed"}
    )


# Preflight, take-over, credentials

#: What these hosts plan while their facts are gathered.
PLANS: Json = {
    "nvidia_container_toolkit": {
        "changed": True,
        "strategy": "cdi",
        "now": "",
        "cdi": asdict(CdiFacts("", "")),
        "mps": [],
        "files": ["/c"],
        "notes": [],
        "diff": [],
    },
    "container_runtime": {"changed": False, "failed": True, "msg": "it is too old"},
    "python_environment": {"changed": False, "environment": "/opt/gpushare/1", "linked": True, "python": "/usr/bin/python3"},
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """What gpushare_sharing answers on three hosts; gpu1 is honest."""
    roots = make_fleet(tmp_path_factory.mktemp("fleet"))
    found = {}
    for name, root in roots.items():
        facts = {**answer_of(described(gather(Host(str(root))))), "node_name": name, "effective_uid": 0}
        found[name] = json.loads(json.dumps({"changed": False, "facts": facts, "answers": PLANS}))
    driver, problem = found["gpu1"]["facts"]["driver"], {"kind": "x", "found": "x", "expected": "x", "cure": "x"}
    info = {"processes": [], "machine_id": "m", "boot_id": "b", "driver": driver, "problem": problem}
    found["driver_info"] = json.loads(json.dumps({"changed": False, "facts": driver_facts(Host(str(roots["gpu1"]))).as_dict(), **info}))
    found["evil"] = json.loads(json.dumps(found["gpu2"]).replace('"gpu2"', '"evil"'))
    return found


def preflight(host: str, said: Any, **more: Any) -> Json:
    arguments = {"what": "host", "gpu_node": host != "cp1", "control_plane": host == "cp1", "plans": list(PLANS), **more}
    made, variables = action(gpushare_judge, arguments, said, host=host)
    result = made.run(None, variables)
    assert isinstance(result, dict)
    return json.loads(json.dumps(result))


def verdict(found: dict[str, Any], api: list[Json]) -> set[tuple[str, ...]]:
    report = Path(tempfile.mkdtemp()) / "report.json"
    groups_of = {"control_plane_group": "planes", "gpu_group": "gpus"}
    arguments = {"what": "preflight", "hosts": list(found), "result": "found", **groups_of, "answers": api, "report": str(report)}
    made, variables = action(gpushare_judge, arguments, {})
    groups = {"all": list(found), "planes": ["cp1"], "gpus": ["gpu1", "evil"]}
    hostvars = {host: {"found": result} for host, result in found.items()}
    result = made.run(None, {**variables, "groups": groups, "hostvars": hostvars})
    assert "ok" in result
    reasons = json.loads(report.read_text())["reasons"]
    return {(one["host"], one["check"], one["severity"], one["found"]) for one in reasons if one["host"] != "evil"}


API = {
    "item": "cp1",
    "changed": False,
    "kubeadm": {"version": "v1beta4", "feature_gates": []},
    "version": "v1.36.3",
    "nodes": ["cp1", "gpu1", "evil"],
    "may_grant": True,
    "authorities": [],
    "in_cluster": [],
    "gpu_operator": NO_OPERATOR,
    "dra": NO_DRA,
}


def test_a_driver_that_only_the_api_shows_reaches_the_verdict(fleet: dict[str, Json]) -> None:
    honest = {name: preflight(name, fleet[name]) for name in ("cp1", "gpu1")}
    groups = {**honest, "evil": preflight("evil", fleet["evil"])}
    more = verdict(groups, [{**API, "dra": dra(honest["gpu1"]["node_name"], "elsewhere")}]) - verdict(groups, [API])
    ((host, check, severity, found),) = more
    assert (host, check, severity) == ("cp1", "managers", "error")
    assert found == f"NVIDIA DRA driver (ResourceSlices of gpu.nvidia.com) on {honest['gpu1']['node_name']}"


@settings(SETTINGS, max_examples=40)
@given(st.data())
def test_preflight(fleet: dict[str, Json], data: st.DataObject) -> None:
    honest = {name: preflight(name, fleet[name]) for name in ("cp1", "gpu1")}
    expected = verdict({**honest, "evil": preflight("evil", fleet["evil"])}, [API])
    said = mapped(data.draw(answers(fleet["evil"])))
    found = preflight("evil", said)
    assert "reasons" in found, found
    for name, plan in found["answers"].items():
        assert name in PLANS
        assert plan["changed"] is False
        assert isinstance(plan.get("changes", True), bool)
        assert isinstance(plan.get("strategy", ""), str)
    of_others = verdict({**honest, "evil": found}, [API])
    # Whose authorities they are is said of the inventory, with the host's name.
    assert {one for one in of_others - expected if "evil" not in one[3]} == set()
    known = {"hostvars": {"gpu1": {"found": honest["gpu1"]}, "evil": {"found": found}}}
    plugins = {"changed": False, "plugins": [], "active": {}, "operators": {}, "writers": [], "node_ports": []}
    made, variables = action(gpushare_judge, {"what": "take_over", "hosts": ["gpu1", "evil"], "facts": "found"}, plugins)
    result = made.run(None, {**variables, **known})
    assert [one for one in result["rejections"] if not one.startswith("evil:")] == []


@SETTINGS
@given(answers(API))
def test_a_control_planes_answer_about_the_cluster(fleet: dict[str, Json], said: Any) -> None:
    honest = {name: preflight(name, fleet[name]) for name in ("cp1", "gpu1", "evil")}
    verdict(honest, [{"item": "cp1", **asked("gpushare_api facts", mapped(said))}])


OWN = {"changed": False, "own": {"subject": "s", "uid": "u", "issued": 1, "expires": 2, "accepted": None}}


@SETTINGS
@given(answers(OWN))
def test_a_token_that_is_none_stops_nobodys_credentials(said: Any) -> None:
    """What the role hands to gpushare_cluster."""
    found = {"gpu1": asked("gpushare_daemon token", OWN), "evil": asked("gpushare_daemon token", mapped(said))}
    tokens = {host: result["own"] for host, result in found.items() if "own" in result}
    daemons = daemons_of(dict.fromkeys(tokens, "account"), tokens)
    assert why_seed(daemons[0].own, "s", "u", 1.5) == ""
    assert all(isinstance(why_seed(one.own, "s", "u", 1.5), str) for one in daemons)


@pytest.mark.parametrize("token", [{"subject": "s"}, {**OWN["own"], "expires": "1"}, {**OWN["own"], "more": 1}, ["x"], "x"])
def test_the_module_names_whose_token_is_none(token: Any) -> None:
    with pytest.raises(TypeError, match="evil"):
        daemons_of({"gpu1": "a", "evil": "b"}, {"gpu1": OWN["own"], "evil": token})


# The driver, dead nodes, the scheduler


@settings(SETTINGS, max_examples=40)
@given(st.data())
def test_the_drivers_plan(fleet: dict[str, Json], data: st.DataObject) -> None:
    said = mapped(data.draw(answers(fleet["driver_info"])))
    result = run_plan(said)
    assert result.get("failed") or "plan" in result


def run_plan(said: Json) -> Json:
    arguments = {"what": "driver", "data": str(ROOT / "roles/nvidia_driver/vars"), "version": "580.95.05"}
    made, variables = action(gpushare_judge, arguments, said)
    result = made.run(None, variables)
    assert isinstance(result, dict)
    return result


DEAD = {"changed": False, "states": {"evil": "Unknown"}, "accounts": ["gpushare-device-plugin-evil"], "without_node": [], "pods": []}


@SETTINGS
@given(answers(DEAD))
def test_dead_nodes(said: Any) -> None:
    known = {"hostvars": {"evil": {}}}
    result = run(gpushare_judge, {"what": "dead_nodes", "hosts": ["evil"]}, mapped(said), **known)
    assert result.get("failed") or set(result) == {"changed", "dead", "pods"}


FOUND = {
    "changed": False,
    "settings": {
        "state": "present",
        "node_name": "evil",
        "manifest": "/m",
        "config": "/c",
        "url_prefix": "http://127.0.0.1:1/g",
        "tls_dir": "",
        "http_timeout": "1s",
        "lease": "",
        "weight": 1,
        "percentage_of_nodes_to_score": -1,
        "control_planes": 1,
        "preemption": True,
        "managed_resources": ["aliyun.com/gpu-mem"],
    },
    "server": "v1.36.3",
    "unreached": {},
    "policy": None,
    "files": {"/m": manifest(), "/c": None, "/etc/kubernetes/gpushare/kube-scheduler.yaml": CONFIG},
    "journal": [{"path": "/m", "original": "x", "mode": 384, "left": ["a", "b"], "others": False}],
    "cluster": None,
    "nodes": 3,
    "others": [],
    "unfinished": False,
    "running": None,
}


CLUSTER = {
    "apiVersion": "kubeadm.k8s.io/v1beta4",
    "kind": "ClusterConfiguration",
    "scheduler": {
        "extraArgs": [{"name": "config", "value": "/etc/kubernetes/gpushare/kube-scheduler.yaml"}],
        "extraVolumes": [{"name": "config", "hostPath": "/x", "mountPath": "/etc/kubernetes/gpushare"}],
    },
}
POLICY = {"kind": "Policy", "apiVersion": "v1", "extenders": [{"urlPrefix": "http://127.0.0.1:1/x"}]}


@SETTINGS
@given(
    st.sampled_from(["present", "absent"]),
    st.sampled_from(["v1.36.3", "v1.22.1", "v1.17.0"]),
    answers(FOUND) | st.just(FOUND) | st.just(FOUND),
    answers(yaml.safe_load(manifest())),
    CONFIGS | answers(POLICY),
    answers(CLUSTER),
)
def test_the_schedulers_plan(state: str, server: str, said: Any, pod: Any, config: Any, kubeadm: Any) -> None:
    if isinstance(said, dict) and said == FOUND:
        files = {**FOUND["files"], "/m": json.dumps(pod), "/etc/kubernetes/gpushare/kube-scheduler.yaml": json.dumps(config)}
        said = {**FOUND, "files": files, "server": server, "settings": {**FOUND["settings"], "state": state}}
        said["cluster"] = {"text": json.dumps(kubeadm), "version": "1"}
    made, variables = action(kube_scheduler_extender, {}, mapped(said))
    result = made.run(None, variables)
    assert result.get("failed") or isinstance(result["changed"], bool)


# What the table says against what the modules say of themselves

MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
SAMPLES = {"str": "x", "bool": True, "int": 1, "float": 1.5, "list": []}
#: Returned by the action plugin, which computes it on the controller of what the module answers.
OF_ACTIONS = {"kube_scheduler_extender": {"notes"}}
#: Steps between a module and its action plugin, which nobody else sees.
BETWEEN = {
    "gpushare_host_runtime": {"missing"},
    "gpushare_packages": {"missing", "system"},
    "gpushare_runtime_env": {"missing", "python_version", "machine"},
}


@pytest.mark.parametrize("module", MODULES)
def test_the_table_has_what_the_documentation_of_the_module_has(module: str) -> None:
    """A key that is documented and not in the table would reach nobody."""
    answers = {key.partition(" ")[2]: shape for key, shape in RESULTS.items() if key.partition(" ")[0] == module}
    assert answers
    if not any(answers.values()):
        return  # of an action plugin that asks no host, or another module
    text = (ROOT / f"plugins/modules/{module}.py").read_text()
    options, documented = (yaml.safe_load(text.partition(f'{part} = r"""')[2].partition('"""')[0]) for part in ("DOCUMENTATION", "RETURN"))
    assert set(answers) in ({""}, set((options.get("options") or {}).get("what", {}).get("choices", ())))
    shapes = [(key.removesuffix("?"), shape) for answer in answers.values() for key, shape in answer.items()]
    expected = set(documented) - OF_ACTIONS.get(module, set()) - set(COMMON)
    assert {key for key, _shape in shapes} - {"diff"} == expected | BETWEEN.get(module, set())
    for key, shape in shapes:
        kind = documented[key]["type"] if key in expected else ""
        for name, sample in SAMPLES.items() if kind else ():
            # An integer is a number, too; what one module calls a dictionary may be any JSON.
            fits = name == kind or (name, kind) == ("int", "float") or shape is Any
            assert (other_shape(shape, sample) is None) == fits, (key, name)
