# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the controller believes of a host's answer: which node it is, and that it sets no variables."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import Known, ask, wrong_folder, wrong_node

from unit.plugins.fake_root import FakeRoot, debian, kubelet
from unit.plugins.playbooks import play_with_liars

ROOT = Path(__file__).resolve().parents[3]


def known(
    host: str = "gpu1", address: str = "", node: str = "", hosts: tuple[str, ...] = ("cp1", "gpu1", "gpu2"), judged: str = ""
) -> Known:
    return Known(host, address, node, hosts, judged)


@pytest.mark.parametrize(
    ("inventory", "name"),
    [
        (known(), "gpu1"),
        (known("GPU1"), "gpu1"),
        (known("gpu1.example.org"), "gpu1.example.org"),
        (known("gpu1.example.org"), "gpu1"),
        (known(address="gpu1.example.org"), "gpu1.example.org"),
        (known("a", address="gpu1.example.org"), "gpu1"),
        (known("a", address="10.0.0.5"), "10.0.0.5"),
        (known("a", address="10.0.0.5", node="ip-10-0-0-5.ec2.internal"), "ip-10-0-0-5.ec2.internal"),
        (known("gpu1.example.org", judged="gpu1"), "gpu1"),
    ],
)
def test_a_host_is_the_node_that_the_inventory_calls_it(inventory: Known, name: str) -> None:
    assert wrong_node(inventory, name) is None


@pytest.mark.parametrize(
    ("inventory", "name", "words"),
    [
        (known(), "gpu2", "that says it is the node 'gpu2'; expected a node that is called as in the inventory: gpu1; if it is, say so"),
        (known(), "gpu2", "gpushare_node_name: gpu2"),
        (known("a", address="10.0.0.5"), "10", "10.0.0.5"),
        (known("gpu1.example.org"), "gpu1.example.com", "expected"),
        # The domain would be the host's own choice, and another node may have that name.
        (known(), "gpu1.example.org", "gpushare_node_name: gpu1.example.org"),
        (known(node="other"), "gpu1", "expected 'other'; correct gpushare_node_name of gpu1"),
        (known(judged="gpu1"), "gpu1.example.org", "'gpu1', as it said to preflight"),
        # Of two hosts that differ by their domains only, neither is the short name.
        (known("gpu1.a.org", hosts=("gpu1.a.org", "gpu1.b.org")), "gpu1", "expected"),
        (known(), "", "DNS name"),
        (known(), None, "DNS name"),
        (known(), ["gpu1"], "DNS name"),
        (known(), "gpu1\n", "DNS name"),
        (known(), "gpu1.", "DNS name"),
        (known(node="x" * 254), "x" * 254, "DNS name"),
        (known(), 'gpu1"\n---\nkind: Secret', "DNS name"),
        (known(), "{{ gpushare_metrics_token }}", "DNS name"),
    ],
)
def test_a_host_is_no_other_node(inventory: Known, name: Any, words: str) -> None:
    wrong = wrong_node(inventory, name)
    assert wrong is not None
    assert words in str(wrong)
    assert len(str(wrong)) < 400


@pytest.mark.parametrize("path", ["/var/lib/kubelet", "/data/.k8s/kubelet_1@x", "/mnt/a..b"])
def test_a_folder(path: str) -> None:
    assert wrong_folder("it", path) is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "var",
        "/",
        "/a b",
        "/a\nExecStartPre=+/bin/x",
        "/a/../etc",
        "/a/.",
        "/a%h",
        "/$x",
        "/a;b",
        "/a'b",
        '/a"',
        "/é",
        None,
        "/" + "a" * 1024,
    ],
)
def test_no_folder(path: Any) -> None:
    wrong = wrong_folder("kubelet's root folder", path)
    assert wrong is not None
    assert "--root-dir" in str(wrong)


# Through Ansible.

TASKS = """
- hosts: all
  gather_facts: false
  tasks:
    - gpushare.kubernetes.gpu_node_info:
        gather: []
        node_name: "{{ gpushare_node_name | default('') }}"
        root: "{{ root }}"
      register: node
    - ansible.builtin.debug:
        msg: "the node {{ node.node_name }} with {{ gpushare_kubectl }} and {{ facts_of | default('no facts') }}"
"""


def host(folder: Path, *arguments: str) -> dict[str, Any]:
    """A host of the inventory that is a folder."""
    return {"root": str(kubelet(debian(FakeRoot(folder)), *arguments))}


def run(folder: Path, hosts: dict[str, dict[str, Any]], **variables: Any) -> str:
    (folder / "play.yml").write_text(TASKS)
    done = play_with_liars(folder, folder / "play.yml", {"gpu_nodes": hosts}, **variables)
    return done.stdout + done.stderr


def test_a_host_that_says_it_is_another_node_is_rejected(tmp_path: Path) -> None:
    said = {"gpu1": host(tmp_path / "1", "--hostname-override=gpu1"), "gpu2": host(tmp_path / "2", "--hostname-override=gpu1")}
    said["gpu3"] = {**host(tmp_path / "3", "--hostname-override=Node-3"), "gpushare_node_name": "Node-3"}
    said["gpu4"] = host(tmp_path / "4", "--hostname-override=gpu4", "--root-dir=/x\nExecStartPre=+/x")
    output = run(tmp_path, said, gpushare_kubectl="kubectl")
    assert "the node gpu1 with kubectl" in output
    assert "the node node-3 with kubectl" in output
    assert "gpu2 is not believed: found a host that says it is the node 'gpu1'" in output
    assert "gpu4 is not believed: found kubelet's root folder" in output


def test_an_answer_sets_no_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose Python adds facts to every answer: they would win over the inventory's variables."""
    # Ansible's default; this checkout's own configuration says otherwise.
    monkeypatch.setenv("ANSIBLE_INJECT_FACT_VARS", "true")
    liar = tmp_path / "python"
    facts = json.dumps({"ansible_facts": {"gpushare_kubectl": "/tmp/evil", "facts_of": "the host"}})[1:-1]
    # The module's answer is one line of JSON.
    liar.write_text(f"#!/bin/sh\n{sys.executable} \"$@\" | sed 's|^{{|{{{facts}, |'\n")
    liar.chmod(0o755)
    output = run(
        tmp_path,
        {"gpu1": {**host(tmp_path / "1", "--hostname-override=gpu1"), "ansible_python_interpreter": str(liar)}},
        gpushare_kubectl="kubectl",
    )
    assert "the node gpu1 with kubectl and no facts" in output


def liar(folder: Path, **keys: Any) -> dict[str, Any]:
    """A host whose Python adds these keys to every answer of a module, which is one line of JSON."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{sys.executable} \"$@\" | sed 's|^{{|{{{json.dumps(keys)[1:-1]}, |'\n")
    python.chmod(0o755)
    return {**host(folder / "root", "--hostname-override=gpu1"), "ansible_python_interpreter": str(python)}


@pytest.mark.parametrize(
    "keys",
    [
        # Each makes Ansible's own loop over all hosts raise, or makes the result another one than the module's.
        {"ansible_stats": 5},
        {"ansible_stats": {"data": 5}},
        {"add_host": 5},
        {"add_group": 5},
        {"results": [{"skipped": True}]},
        {"skipped": True},
        {"unreachable": True},
        {"warnings": 5},
        {"deprecations": "x"},
        {"diff": 5},
    ],
    ids=json.dumps,
)
def test_a_host_changes_nothing_of_the_run_but_its_own_answer(tmp_path: Path, keys: dict[str, Any]) -> None:
    (tmp_path / "1").mkdir()
    hosts = {"gpu1": liar(tmp_path / "1", **keys), "gpu2": host(tmp_path / "2", "--hostname-override=gpu2")}
    output = run(tmp_path, hosts, gpushare_kubectl="kubectl")
    for name in hosts:
        assert f"the node {name} with kubectl and no facts" in output, output


@pytest.mark.parametrize(
    "keys",
    [{"ansible_facts": 5}, {"stdout": 5}, {"changed": "x"}, {"failed": "no"}, {"warnings": [5]}, {"kubelet_root": 5}],
    ids=json.dumps,
)
def test_a_host_that_answers_in_another_form_has_failed_with_its_name(tmp_path: Path, keys: dict[str, Any]) -> None:
    (tmp_path / "1").mkdir()
    name, value = next(iter(keys.items()))
    evil = liar(tmp_path / "1", **keys)
    python = Path(evil["ansible_python_interpreter"])
    # The last of two equal keys counts.
    python.write_text(f'#!/bin/sh\n{sys.executable} "$@" | sed \'s|}}$|, "{name}": {json.dumps(value)}}}|\'\n')
    output = run(tmp_path, {"gpu1": evil, "gpu2": host(tmp_path / "2", "--hostname-override=gpu2")}, gpushare_kubectl="kubectl")
    assert "the node gpu2 with kubectl and no facts" in output, output
    # From 2.20 on Ansible itself takes the text for a truth.
    said = ("gpu1 is not believed: its answer has another form", "the node gpu1 with kubectl", "fatal: [gpu1]: FAILED!")
    assert any(one in output for one in said), output
    assert "Traceback" not in output


def test_only_our_own_modules_ask_hosts() -> None:
    """What Ansible's own modules answer may set variables and statistics, and stop the run for all."""
    asking = re.compile(r"^\s*(?:- )?ansible\.builtin\.(\w+):", re.MULTILINE)
    on_controller = {"assert", "debug", "fail", "set_fact", "group_by", "include_role", "include_tasks", "import_tasks", "import_playbook"}
    found = {
        (path.relative_to(ROOT).parts[1], name)
        for folder in ("roles", "playbooks")
        for path in (ROOT / folder).rglob("*.yml")
        for name in asking.findall(path.read_text())
        if name not in on_controller
    }
    # An action that takes nothing of its modules' answers into its own, two on control planes, and three on the controller itself.
    on_planes = {("kubectl_inspect", "stat"), ("kubectl_inspect", "file")}
    on_controller_itself = {("report", "template"), ("report", "file"), ("in_cluster", "add_host")}
    assert found == {("nvidia_driver", "reboot")} | on_planes | on_controller_itself
    (block,) = [task for task in yaml.safe_load((ROOT / "roles/report/tasks/scrape_config.yml").read_text()) if "block" in task]
    assert (block["delegate_to"], block["vars"]["ansible_connection"]) == ("localhost", "ansible.builtin.local")


def test_every_module_goes_by_an_action_that_takes_no_facts() -> None:
    """Ansible's own action, which is taken where there is none of a module's name, takes them."""
    modules = {path.stem for path in (ROOT / "plugins/modules").glob("*.py")}
    actions = {path.stem: path.read_text() for path in (ROOT / "plugins/action").glob("*.py")}
    routing = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())
    redirects = {name: entry["redirect"].rpartition(".")[2] for name, entry in routing["plugin_routing"]["action"].items()}
    assert modules == {*actions, *redirects}
    assert not set(actions) & set(redirects)
    assert {name: target for name, target in redirects.items() if "HostAction as ActionModule" not in actions.get(target, "")} == {}
    # Ansible takes the defaults of the name that it is redirected to.
    group = set(routing["action_groups"]["kubectl"])
    assert {name: target for name, target in redirects.items() if (name in group) != (target in group)} == {}
    direct = {name for name, text in actions.items() if "_execute_module" in text}
    assert direct == set(), "ask() of _answers runs modules"


class Fails:
    """An action whose module cannot be run."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def _execute_module(self, **_arguments: Any) -> dict[str, Any]:
        raise self.error


def test_a_wrong_password_of_sudo_is_an_answer_and_a_lost_connection_is_none() -> None:
    assert ask(Fails(AnsibleError("Incorrect sudo password")), {}) == {"changed": False, "failed": True, "msg": "Incorrect sudo password"}
    with pytest.raises(AnsibleConnectionFailure):
        ask(Fails(AnsibleConnectionFailure("rejected")), {})
