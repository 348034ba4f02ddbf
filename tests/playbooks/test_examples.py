# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The EXAMPLES of the public modules through Ansible, as they stand: people copy them first."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.quantity import UNITS
from playbooks.play import ROOT, Hosts, play
from unit.fakes.plugins.cluster.kubectl_stub import asked, make_kubectl
from unit.fakes.plugins.fake_root import NVIDIA_SMI, FakeRoot, debian, gpu, kubelet

MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
# What is true of every task.
KEYWORDS = {"name", "register", "delegate_to", "run_once", "when", "until", "retries", "delay", "environment", "become", "loop", "no_log"}
NODES = ("gpu1", "gpu2")
CAPACITY = "gpushare.kubernetes.gpu_mem_capacity"
HERE = os.uname().nodename.lower()


def public() -> list[str]:
    """The modules that docs/reference/names.md promises."""
    (line,) = re.findall(r"^- the modules (.*)$", (ROOT / "docs/reference/names.md").read_text(), re.MULTILINE)
    return re.findall(r"`(\w+)`", line)


def texts(module: str) -> dict[str, Any]:
    """DOCUMENTATION, EXAMPLES and RETURN, read."""
    tree = ast.parse((ROOT / f"plugins/modules/{module}.py").read_text())
    constants = [node for node in tree.body if isinstance(node, ast.Assign)]
    return {
        ast.unparse(one.targets[0]): yaml.safe_load(ast.literal_eval(one.value))
        for one in constants
        if ast.unparse(one.targets[0]) in ("DOCUMENTATION", "EXAMPLES", "RETURN")
    }


def node(name: str, gpus: tuple[Gpu, ...]) -> dict[str, Any]:
    """A v1.Node whose device plugin has published these GPUs."""
    units = {"aliyun.com/gpu-mem": str(sum(one.units for one in gpus)), "aliyun.com/gpu-count": str(len(gpus))}
    return {
        "kind": "Node",
        "metadata": {"name": name, "annotations": {"gpushare/gpus": Inventory(UNITS["GiB"], gpus).to_json()}},
        "status": {"capacity": units, "allocatable": units, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def run(folder: Path, tasks: list[dict[str, Any]], healthy: bool = True) -> tuple[Any, list[str]]:
    """The run of a play of these tasks on two GPU nodes, beside a control plane, and what its kubectl was asked.

    The options of the modules that say where programs are have other defaults.
    """
    hosts: Hosts = {"kube_control_plane": {"cp1": {}}, "gpu_nodes": {}}
    for name in NODES:
        root = gpu(kubelet(debian(FakeRoot(folder / name)), f"--hostname-override={name}"))
        if not healthy:
            root.program("/usr/bin/nvidia-smi", "Unable to determine the device handle for GPU0000:04:00.0: Unknown Error", 255)
        hosts["gpu_nodes"][name] = {"root": str(root)}
    uuids = re.findall(r"<uuid>(GPU-[-0-9a-f]+)</uuid>", NVIDIA_SMI.read_text())
    sizes = ((0, uuids[0], 16), (1, uuids[1], 24))
    gpus = tuple(Gpu(index, uuid, index, "", "Tesla T4", 1024 * units, units) for index, uuid, units in sizes)
    offered = {"kind": "List", "items": [node(name, gpus) for name in NODES]}
    kubectl = make_kubectl(folder / "kubectl", {f"get nodes {' '.join(NODES)}": offered, f"get nodes {HERE}": node(HERE, ())})
    defaults = {
        "nvidia_smi_info": {"nvidia_smi": "{{ root }}/usr/bin/nvidia-smi"},
        "gpu_mem_capacity": {"kubectl": str(kubectl)},
        "gpu_node_info": {"root": "{{ root }}"},
    }
    play_of: dict[str, Any] = {"hosts": "gpu_nodes", "gather_facts": False, "tasks": []}
    for task in tasks:
        # Of itself this machine, which has no GPU or one that the kubectl does not know, says a difference.
        itself = {} if "nodes" in task.get(CAPACITY, {}) else {"fail_on_difference": False}
        of_task = {f"gpushare.kubernetes.{name}": options for name, options in defaults.items()}
        play_of["tasks"].append({"block": [task], "module_defaults": {**of_task, CAPACITY: {**of_task[CAPACITY], **itself}}})
    (folder / "play.yml").write_text(json.dumps([play_of]))
    done = play(folder, folder / "play.yml", hosts)
    return done, [" ".join(word for word in call["words"] if not word.startswith("--")) for call in asked(kubectl)]


@pytest.mark.parametrize("module", public())
def test_the_examples_of_a_public_module_run(tmp_path: Path, module: str) -> None:
    tasks = texts(module)["EXAMPLES"]
    assert any(f"gpushare.kubernetes.{module}" in task for task in tasks)
    done, calls = run(tmp_path, tasks)
    assert done.returncode == 0, done.stdout + done.stderr
    # A task that runs once for all is the first host's, and each `when` is about a fault.
    (recap,) = re.findall(r"^gpu1 .*: ok=(\d+) +changed=0 +unreachable=0 +failed=0 ", done.stdout, re.MULTILINE)
    assert int(recap) == len([task for task in tasks if "when" not in task]), done.stdout
    if module == "gpu_mem_capacity":
        own = f"/etc/kubernetes/kubelet.conf get nodes {HERE} -o json"
        assert sorted(calls) == ["/etc/kubernetes/admin.conf get nodes gpu1 gpu2 -o json", own, own]


def test_the_example_that_stops_at_a_fault_does_and_says_which(tmp_path: Path) -> None:
    done, _calls = run(tmp_path, texts("nvidia_smi_info")["EXAMPLES"], healthy=False)
    assert done.returncode == 2
    assert len(re.findall(r'"msg": "Found .*Unknown Error.*; .+"', done.stdout)) == len(NODES), done.stdout


@pytest.mark.parametrize("module", MODULES)
def test_each_example_has_options_that_its_module_documents(module: str) -> None:
    read = texts(module)
    fragments = [one.split(".")[2:] for one in read["DOCUMENTATION"].get("extends_documentation_fragment", [])]
    options = dict(read["DOCUMENTATION"].get("options") or {})
    for name, *which in fragments:
        fragment = importlib.import_module(f"ansible_collections.gpushare.kubernetes.plugins.doc_fragments.{name}").ModuleDocFragment
        options |= yaml.safe_load(getattr(fragment, (which or ["DOCUMENTATION"])[0].upper())).get("options") or {}
    required = {name for name, one in options.items() if one.get("required")}
    seen = 0
    for task in read["EXAMPLES"]:
        given = task.get(f"gpushare.kubernetes.{module}", False)
        (action,) = set(task) - KEYWORDS
        assert "." in action, task
        if given is not False:
            seen += 1
            assert set(given or {}) <= set(options), task
            assert required <= set(given or {}), task
            wrong = [(name, given[name]) for name in given or {} if given[name] not in options[name].get("choices", [given[name]])]
            assert [one for one in wrong if not isinstance(one[1], list)] == [], task
    assert seen
