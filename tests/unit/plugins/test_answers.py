# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the controller believes of a host's answer: which node it is, and that it sets no variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import Known, wrong_folder, wrong_node

ROOT = Path(__file__).resolve().parents[3]


def known(
    host: str = "gpu1", address: str = "", node: str = "", hosts: tuple[str, ...] = ("cp1", "gpu1", "gpu2"), judged: str = ""
) -> Known:
    return Known(host, address, node, hosts, judged)


class Templates:
    """An action whose templar knows one expression."""

    def __init__(self) -> None:
        self._templar = self

    def template(self, text: str) -> str:
        return "Node-7" if text == "{{ name_of_the_node }}" else text


@pytest.mark.parametrize(
    ("of_task", "of_variable", "node"),
    [("", "{{ name_of_the_node }}", "node-7"), ("other", "{{ name_of_the_node }}", "other"), ("", "", ""), ("", None, "")],
)
def test_the_name_of_the_node_is_that_of_the_task_or_else_of_the_variables(of_task: str, of_variable: str | None, node: str) -> None:
    variables = {"inventory_hostname": "gpu1", **({} if of_variable is None else {"gpushare_node_name": of_variable})}
    assert Known.of(Templates(), variables, of_task).node == node


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
        (
            known(),
            "gpu2",
            "is the node 'gpu2'; expected a node that is called as in the inventory: gpu1; if kubectl get nodes has gpu1 only",
        ),
        (known(), "gpu2", "hostnamectl set-hostname gpu1; systemctl restart kubelet; else say so in the inventory"),
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
    # One action has no module of its own name.
    assert modules | {"gpushare_host"} == {*actions, *redirects}
    assert not set(actions) & set(redirects)
    assert {name: target for name, target in redirects.items() if "HostAction as ActionModule" not in actions.get(target, "")} == {}
    # Ansible takes the defaults of the name that it is redirected to.
    group = set(routing["action_groups"]["kubectl"])
    assert {name: target for name, target in redirects.items() if (name in group) != (target in group)} == {}
    direct = {name for name, text in actions.items() if "_execute_module" in text}
    assert direct == set(), "ask() of _answers runs modules"
