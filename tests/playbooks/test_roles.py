# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Roles through Ansible itself, with a kubectl that writes down what it is asked."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import FIELD_MANAGER

from playbooks.play import LOCAL, ROOT, Hosts, play
from unit.fakes.plugins.cluster.kubectl_stub import asked, make_kubectl


def run_role(folder: Path, role: str, group: str, hosts: dict[str, dict[str, dict[str, Any]]], *arguments: str, **variables: Any) -> Any:
    """Run one role, or one entry of it ("role:entry"), on the hosts of a group."""
    name, _, entry = role.partition(":")
    tasks = [{"ansible.builtin.include_role": {"name": f"gpushare.kubernetes.{name}", "tasks_from": entry or "main"}}]
    (folder / "play.yml").write_text(json.dumps([{"hosts": group, "gather_facts": False, "tasks": tasks}]))
    done: subprocess.CompletedProcess[str] = play(folder, folder / "play.yml", hosts, *arguments, **variables)
    return done


def test_accounts_of_the_original_stay(tmp_path: Path) -> None:
    # The original's device plugin has the account gpushare-device-plugin. Every GPU node of the inventory is ours, others are not.
    kubectl = make_kubectl(tmp_path / "kubectl")
    hosts: dict[str, dict[str, dict[str, Any]]] = {
        "kube_control_plane": {"cp1": {}},
        "gpu_nodes": {"gpu1": {"__device_plugin": {"restarted": False}}},
    }
    done = run_role(tmp_path, "admission", "kube_control_plane", hosts, gpushare_kubectl=str(kubectl))
    assert done.returncode == 0, done.stdout + done.stderr
    calls = asked(kubectl)
    assert {word for call in calls for word in call["words"] if word in ("get", "apply", "delete")} == {"get", "apply"}
    assert {name for call in calls for name in call["items"]} >= {"gpushare-annotations", "gpushare-device-plugin"}


def test_verify_compares_what_the_three_roles_apply(tmp_path: Path) -> None:
    render = {"name": "gpushare.kubernetes.cluster_objects", "tasks_from": "render"}
    tasks: list[dict[str, Any]] = []
    names = "{% for one in __gpushare_objects %}{{ one.kind }} {{ one.metadata.name }};{% endfor %}"
    for which in ({}, *({"__cluster_objects_of": [role]} for role in ("admission", "extender", "device_plugin"))):
        tasks += [
            {"ansible.builtin.include_role": render, "vars": {"__gpushare_node_names": ["gpu1", "gpu2"], **which}},
            {"ansible.builtin.debug": {"msg": f"OBJECTS={names}="}},
        ]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = play(tmp_path, tmp_path / "play.yml", {"kube_control_plane": {"cp1": {}}})
    assert done.returncode == 0, done.stdout + done.stderr
    everything, *single = [found.split(";")[:-1] for found in re.findall("OBJECTS=(.*?)=", done.stdout)]
    assert everything == [one for role in single for one in role]
    assert [len(role) for role in single] == [14, 10, 10]
    assert "RoleBinding gpushare-device-plugin-gpu2" in everything


@pytest.mark.parametrize("entry", ["verify", "uninstall:preflight"])
def test_a_run_that_is_limited_to_gpu_nodes_asks_a_control_plane_that_answers(tmp_path: Path, entry: str) -> None:
    empty = ("/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces/kube-system/serviceaccounts")
    kubectl = make_kubectl(tmp_path / "kubectl", {"/version": {"gitVersion": "v1.34.1"}, **{path: {"items": []} for path in empty}})
    dead = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    hosts: dict[str, dict[str, dict[str, Any]]] = {
        "kube_control_plane": {"cp1": dead, "cp2": {"gpushare_kubectl": str(kubectl)}},
        "gpu_nodes": {"gpu1": {"gpushare_node_name": platform.node()}},
    }
    done = run_role(tmp_path, entry, "gpu_nodes", hosts)
    assert [call for call in asked(kubectl) if "pods" in " ".join(call["words"])], done.stdout + done.stderr


def labelled(folder: Path, hosts: dict[str, dict[str, dict[str, Any]]], **variables: Any) -> Any:
    return run_role(folder, "kubelet", "gpu_nodes", hosts, **variables)


def test_the_cluster_is_asked_as_the_control_planes_variables_say(tmp_path: Path) -> None:
    mine, wrong = make_kubectl(tmp_path / "cp/kubectl"), make_kubectl(tmp_path / "gpu/kubectl")
    node: dict[str, Any] = {"__gpushare_node": {"node_name": "gpu1", "kubelet": {"version": "v1.36.3"}}, "gpushare_kubectl": str(wrong)}
    planes = {"cp1": {"gpushare_kubectl": str(mine), "gpushare_admin_kubeconfig": "/root/admin.conf"}}
    done = labelled(tmp_path, {"kube_control_plane": planes, "gpu_nodes": {"gpu1": node}})
    assert done.returncode == 0, done.stdout + done.stderr
    assert asked(mine)[0]["words"][:2] == ["--kubeconfig", "/root/admin.conf"]
    assert asked(wrong) == []


def test_a_node_that_the_cluster_does_not_have_fails_alone(tmp_path: Path) -> None:
    kubectl = make_kubectl(tmp_path / "kubectl", missing=["gpu2"])
    nodes = {name: {"__gpushare_node": {"node_name": name, "kubelet": {"version": "v1.36.3"}}} for name in ("gpu1", "gpu2", "gpu3")}
    done = labelled(tmp_path, {"kube_control_plane": {"cp1": {}}, "gpu_nodes": nodes}, gpushare_kubectl=str(kubectl))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "has no node gpu2. Join gpu2" in " ".join(done.stdout.split())
    assert [line.split()[0] for line in done.stdout.splitlines() if "failed=1" in line] == ["gpu2"]
    assert [call["items"] for call in asked(kubectl) if "--dry-run=server" in call["words"]] == [["gpu1", "gpu3"]]


def test_a_host_that_has_failed_earlier_in_its_batch_concerns_no_other(tmp_path: Path) -> None:
    kubectl = make_kubectl(tmp_path / "kubectl")
    well = {"__gpushare_node": {"node_name": "gpu2", "kubelet": {"version": "v1.36.3"}}, "__device_plugin_found": {"own": True}}
    tasks: list[dict[str, Any]] = [
        {"ansible.builtin.fail": {"msg": "as planned"}, "when": "inventory_hostname == 'gpu1'"},
        {"ansible.builtin.include_role": {"name": "gpushare.kubernetes.kubelet"}},
        {"ansible.builtin.include_vars": str(ROOT / "roles/device_plugin/vars/main.yml")},
        {"ansible.builtin.debug": {"msg": "ACCOUNTS={{ __device_plugin_hosts | join('+') }}="}},
    ]
    # As in a batch of site.yml: until its rescue has ended, the host is one of the play's.
    block = {"block": tasks, "rescue": [{"ansible.builtin.fail": {"msg": "reported"}}]}
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "gpu_nodes", "gather_facts": False, "tasks": [block]}]))
    hosts: Hosts = {"kube_control_plane": {"cp1": {}}, "gpu_nodes": {"gpu1": {}, "gpu2": well}}
    done = play(tmp_path, tmp_path / "play.yml", hosts, gpushare_kubectl=str(kubectl))
    assert [line.split()[0] for line in done.stdout.splitlines() if "failed=1" in line] == ["gpu1"], done.stdout + done.stderr
    assert [call["items"] for call in asked(kubectl) if "--dry-run=server" in call["words"]] == [["gpu2"]]
    assert re.findall("ACCOUNTS=(.*?)=", done.stdout) == ["gpu2"]


@pytest.mark.parametrize(
    ("version", "running", "accepted", "rejected"),
    [
        ("v1.25.16", True, [], False),
        ("v1.22.17", True, [], True),
        ("v1.22.17", True, ["os"], True),
        # Accepted before the first change: a run that has begun must not end here.
        ("v1.22.17", True, ["kubelet"], False),
        ("v1.22.17", False, ["kubelet"], True),
    ],
)
def test_a_kubelet_that_preflight_rejects_is_rejected_by_its_role_unless_it_was_accepted(
    tmp_path: Path, version: str, running: bool, accepted: list[str], rejected: bool
) -> None:
    node: dict[str, Any] = {"node_name": "gpu1", "kubelet_running": running, "kubelet": {"version": version}}
    text = (ROOT / "roles/kubelet/tasks/preflight.yml").read_text().split("register: __kubelet_node\n", 1)[1]
    values = yaml.safe_load((ROOT / "roles/kubelet/defaults/main.yml").read_text()) | {"gpushare_preflight_accept": accepted}
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": yaml.safe_load(text)}]))
    done = play(tmp_path, tmp_path / "play.yml", {"gpu_nodes": {"gpu1": {"__kubelet_node": node}}}, **values)
    assert done.returncode == (2 if rejected else 0), done.stdout + done.stderr
    assert (f"Found on gpu1: {f'kubelet {version}' if running else 'no running kubelet'}" in done.stdout) == rejected


def test_groups_are_found_wherever_their_names_are_set(tmp_path: Path) -> None:
    names = {"gpushare_control_plane_group": "masters", "gpushare_gpu_group": "workers"}
    hosts: dict[str, dict[str, dict[str, Any]]] = {"bastions": {"a": {}}, "masters": {"m1": dict(names)}, "workers": {"w1": dict(names)}}
    done = play(tmp_path, ROOT / "playbooks/inventory.yml", hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    # Set for one group, they are known on the hosts of the other.
    known = {"ansible.builtin.debug": {"msg": "{{ gpushare_control_plane_group }}+{{ gpushare_gpu_group }}"}}
    tasks = {"hosts": "w1", "gather_facts": False, "tasks": [known]}
    (tmp_path / "play.yml").write_text(json.dumps([{"import_playbook": str(ROOT / "playbooks/inventory.yml")}, tasks]))
    assert "masters+workers" in play(tmp_path, tmp_path / "play.yml", {**hosts, "workers": {"w1": {}}}).stdout
    hosts["workers"]["w1"]["gpushare_gpu_group"] = "others"
    done = play(tmp_path, ROOT / "playbooks/inventory.yml", hosts)
    assert "do not agree on the name of a group: workers, others" in " ".join((done.stdout + done.stderr).split())


def test_a_device_strategy_that_the_host_cannot_have_ends_the_role_that_needs_it(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    asked = {"what": "strategy", "asked": "cdi", "toolkit": False, "root": str(tmp_path / "root")}
    tasks = [
        {"gpushare.kubernetes.gpushare_sharing": asked, "register": "chosen"},
        {"ansible.builtin.debug": {"msg": "CHOSEN={{ chosen.strategy }} {{ chosen.own is none }} {{ chosen.changes }}="}},
        {"gpushare.kubernetes.gpushare_sharing": {**asked, "required": True}},
    ]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = play(tmp_path, tmp_path / "play.yml", {"gpu_nodes": {"gpu1": {}}})
    assert re.findall("CHOSEN=(.*?)=", done.stdout) == ["cdi True False"], done.stdout + done.stderr
    assert done.returncode == 2, done.stdout + done.stderr
    assert "cdi, and kubelet does not print its version; expected kubelet 1.29" in " ".join(done.stdout.split())


def test_each_host_gets_the_code_of_its_own_runtime(tmp_path: Path) -> None:
    hosts = {"containerd": "containerd.service", "docker": "docker.service", "cri-o": "crio.service"}
    nodes = {name: {"gpushare_container_runtime_name": name} for name in hosts}
    done = run_role(tmp_path, "container_runtime", "gpu_nodes", {"kube_control_plane": {"cp1": {}}, "gpu_nodes": nodes})
    assert sorted(line.split()[0] for line in done.stdout.splitlines() if "failed=1" in line) == sorted(hosts), done.stdout
    for unit in hosts.values():
        assert unit in done.stdout + done.stderr


def test_a_link_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    install, place = tmp_path / "opt", tmp_path / "bin"
    (install / "current/bin").mkdir(parents=True)
    programs = ("kubectl-gpushare", "kubectl-inspect-gpushare", "kubectl_complete-gpushare")
    for program in programs:
        (install / "current/bin" / program).touch()
    place.mkdir()
    link = place / "kubectl-inspect-gpushare"
    settings = {"gpushare_install_dir": str(install), "gpushare_kubectl_plugin_dir": str(place)}
    (tmp_path / "theirs").touch()
    for target in (str(tmp_path / "theirs"), "/gone", None):
        if target is None:
            link.touch()
        else:
            link.symlink_to(target)
        before = os.readlink(link) if link.is_symlink() else None
        done = run_role(tmp_path, "kubectl_inspect", "all", {"kube_control_plane": {"cp1": {}}}, **settings)
        assert done.returncode == 2, done.stdout
        assert "which is not the link" in done.stdout
        assert (os.readlink(link) if link.is_symlink() else None) == before
        link.unlink()
    done = run_role(tmp_path, "kubectl_inspect", "all", {"kube_control_plane": {"cp1": {}}}, **settings)
    assert done.returncode == 0, done.stdout
    assert {program: os.readlink(place / program) for program in programs} == {p: str(install / "current/bin" / p) for p in programs}
    done = run_role(tmp_path, "kubectl_inspect", "all", {"kube_control_plane": {"cp1": {}}}, **settings)
    assert "changed=0" in done.stdout


@pytest.mark.parametrize(("role", "why"), [("python_environment", "https://***@127.0.0.1:1/simple"), ("bundle", "pip that fails for")])
def test_the_password_of_an_index_is_shown_nowhere_and_all_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, why: str
) -> None:
    monkeypatch.setenv("ANSIBLE_VERBOSITY", "3")
    extra = ["--index-url", "https://deploy:s3cr3t@127.0.0.1:1/simple", "--retries", "0"]
    settings = {"gpushare_install_dir": str(tmp_path / "opt"), "gpushare_pip_extra_args": extra, "gpushare_python": sys.executable}
    settings |= {"gpushare_bundle_folder": str(tmp_path), "gpushare_bundle_pythons": ["3.11"]}
    include = {"ansible.builtin.include_role": {"name": f"gpushare.kubernetes.{role}"}}
    masks = tuple(map(int, version("ansible-core").split(".")[:2])) >= (2, 22)
    # What a program of others would print. Before 2.22 Ansible masks it nowhere.
    after = {"ansible.builtin.debug": {"msg": "SAID {{ '%scr3t' | format('s3') }} []"}, "when": masks}
    tasks = [{"block": [include], "rescue": [after, {"ansible.builtin.fail": {"msg": "as expected"}}]}]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = play(tmp_path, tmp_path / "play.yml", {"kube_control_plane": {"cp1": {}}}, **settings)
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert why in output
    assert "s3cr3t" not in output
    # Each word of a hidden list is masked from 2.22 on, and so is its default: then a run shows no "0", and no "[]".
    assert re.search(r"cp1 +: ok=[0-9]+ +changed=0 +unreachable=0 +failed=1 ", output), output
    assert ("SAID $REDACTED$ []" in output) == masks, output


def test_the_collection_in_use_is_the_playbooks_own_wherever_that_lies(tmp_path: Path) -> None:
    # The layout of Ansible's own documentation: a collection beside the playbook.
    place = tmp_path / "infra/collections/ansible_collections/gpushare/kubernetes"
    place.mkdir(parents=True)
    for name in ("galaxy.yml", "meta", "playbooks", "plugins", "roles"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place / name)
    (tmp_path / "infra/site.yml").write_text("- import_playbook: gpushare.kubernetes.inventory\n")
    inventory = {"all": {"vars": LOCAL, "children": {"kube_control_plane": {"hosts": {"a": {}}}, "gpu_nodes": {"hosts": {"b": {}}}}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))

    def run(playbook: Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [Path(sys.executable).parent / "ansible-playbook", "-i", tmp_path / "hosts.json", playbook],
            env={name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")} | {"ANSIBLE_NOCOLOR": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    done = run(tmp_path / "infra/site.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    # A checkout's playbook, where Ansible finds no collection, or another one.
    assert "takes the collection gpushare.kubernetes from nowhere" in " ".join(run(ROOT / "playbooks/inventory.yml").stdout.split())
    (tmp_path / "infra/other.yml").write_text(f"- import_playbook: {ROOT}/playbooks/inventory.yml\n")
    assert f"takes the collection gpushare.kubernetes from {place}" in " ".join(run(tmp_path / "infra/other.yml").stdout.split())


def change_from_dra(folder: Path, kubectl: Path, *arguments: str, objects: Sequence[dict[str, Any]] = ()) -> Any:
    """Apply these objects to a cluster with the back end dra."""
    plan = {"former": ["dra"], "nodes": [], "labels": [], "objects": list(objects), "obsolete": []}
    variables = {"__in_cluster_plan": plan, "gpushare_kubectl": str(kubectl), "gpushare_kubeconfig": "/x", "gpushare_scheduler": "default"}
    return run_role(folder, "in_cluster:apply", "gpu_nodes", {"gpu_nodes": {"gpu1": {}}}, *arguments, **variables)


@pytest.mark.parametrize("left", [True, False])
def test_a_change_of_the_back_end_stops_where_the_other_one_is_there_again(tmp_path: Path, left: bool) -> None:
    """kubectl's objects have no field of ours, so that the removal before it finds nothing."""
    labels = {"app.kubernetes.io/part-of": "gpushare"}
    theirs = {"metadata": {"name": "gpushare-claims", "namespace": "gpushare-system", "labels": labels}}
    nothing: dict[str, Any] = {"kind": "List", "items": [], "metadata": {}}
    answers = {
        "get --raw /version": {"gitVersion": "v1.37.2"},
        "deployments?limit=500&fieldSelector=metadata.name%3Dgpushare-claims": {"items": [theirs] if left else []},
        "apply": {"kind": "List", "items": []},
        "get": nothing,
        "create --dry-run=server": {},
    }
    kubectl = make_kubectl(tmp_path / "kubectl", answers)
    done = change_from_dra(tmp_path, kubectl)
    assert ("Found an installation with dra after its removal, and nothing was applied" in done.stdout + done.stderr) == left
    assert (done.returncode != 0) == left, done.stdout + done.stderr


def test_check_mode_of_a_change_of_the_back_end_makes_again_what_both_have(tmp_path: Path) -> None:
    applied = [{"manager": FIELD_MANAGER, "operation": "Apply"}]
    names, rbac = ("gpushare-device-plugin", "gpushare-claims"), "rbac.authorization.k8s.io/v1"
    roles: list[dict[str, Any]] = [{"kind": "ClusterRole", "apiVersion": rbac, "metadata": {"name": name}} for name in names]
    device_plugins, claims = roles
    theirs = [{**role, "metadata": {**role["metadata"], "managedFields": applied}} for role in (device_plugins, claims)]
    answers = {
        f"{rbac}/clusterroles": {"items": theirs},
        "apply": {"kind": "List", "items": theirs[:1]},
        "get --ignore-not-found -f -": {"kind": "List", "items": theirs[:1]},
        "get": {"kind": "List", "items": [], "metadata": {}},
    }
    kubectl = make_kubectl(tmp_path / "kubectl", answers)
    done = change_from_dra(tmp_path, kubectl, "--check", "--diff", objects=[device_plugins])
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, after = done.stdout.partition("in_cluster : Apply the objects]")
    assert "+++ after: ClusterRole gpushare-device-plugin" in after, done.stdout
    assert {word for call in asked(kubectl) for word in call["words"] if word in ("delete", "patch")} == set()


def test_a_change_of_the_back_end_removes_nothing_where_the_api_server_does_not_take_the_other_one(tmp_path: Path) -> None:
    metadata = {"name": "gpushare-device-plugin"}
    role = {"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": metadata}
    theirs = {**role, "metadata": {**metadata, "managedFields": [{"manager": FIELD_MANAGER, "operation": "Apply"}]}}
    answers: dict[str, Any] = {"rbac.authorization.k8s.io/v1/clusterroles": {"items": [theirs]}, "apply": "admission of others: denied"}
    kubectl = make_kubectl(tmp_path / "kubectl", {**answers, "get": {"kind": "List", "items": [], "metadata": {}}})
    done = change_from_dra(tmp_path, kubectl, objects=[role])
    assert done.returncode != 0
    assert "admission of others: denied" in done.stdout + done.stderr
    assert {word for call in asked(kubectl) for word in call["words"] if word in ("delete", "patch")} == set()
