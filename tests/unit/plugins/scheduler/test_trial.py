# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""In check mode, which is preflight's plan, the host's own kube-scheduler already reads what it would be given."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.action import kube_scheduler_extender
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import apply

from unit.fakes.plugins.scheduler.control_plane import ControlPlane
from unit.golden import Golden

SETTINGS = {
    "state": "present",
    "node_name": "cp1",
    "url_prefix": "https://127.0.0.1:32766/gpushare-scheduler",
    "http_timeout": "1s",
    "lease": "",
    "weight": 10,
    "percentage_of_nodes_to_score": -1,
    "control_planes": 1,
    "preemption": True,
    "managed_resources": ["aliyun.com/gpu-mem"],
}


@pytest.fixture
def plane(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    plane = ControlPlane(tmp_path / "plane")
    monkeypatch.setattr(journal, "FOLDER", str(plane.folder / "journal"))
    plane.kubelet()
    return plane


def planned(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, check: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The task's result, and the orders that the module was given after the plan was made."""
    orders: list[dict[str, Any]] = []
    settings = {**SETTINGS, "manifest": str(plane.manifest), "config": str(plane.config), "tls_dir": str(plane.pki)}
    tools = apply.Tools(Kubectl(plane.kubectl, "kubectl", "x"), plane.run, plane.ctr, str(plane.folder))

    def module(_action: Any, _vars: Any, _name: Any, arguments: Any, _shape: Any = None) -> dict[str, Any]:
        plan = arguments["plan"]
        if "files" not in plan:
            return {"changed": False, "settings": settings, **plane.read(*plan["read"])}
        orders.append(copy.deepcopy(plan))
        try:
            return {"changed": False, "candidate": apply.trial(tools, plan)}
        except Rejected as error:
            return {"changed": False, "failed": True, "msg": str(error)}

    monkeypatch.setattr(kube_scheduler_extender, "ask", module)
    task = SimpleNamespace(args={}, action="kube_scheduler_extender", async_val=0, check_mode=check, delegate_to=None)
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None), has_pipelining=True)
    return kube_scheduler_extender.ActionModule(task, connection, SimpleNamespace(), None, None, None).run(None, {}), orders


def test_before_the_host_has_certificates_the_candidate_names_none(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in plane.pki.iterdir():
        file.unlink()
    before = plane.tree()
    result, orders = planned(plane, monkeypatch, check=True)
    assert (result["changed"], result["candidate"]) == (True, "accepted by registry.k8s.io/kube-scheduler:v1.36.3")
    assert [order["trial"] for order in orders] == [True]
    assert "http://127.0.0.1:32766/gpushare-scheduler" in str(plane.candidate)
    assert "tls" not in str(plane.candidate)
    # What would be written has them.
    assert "https://127.0.0.1:32766" in result["diff"][0]["after"]
    assert plane.tree() == before


def test_a_candidate_that_the_scheduler_rejects_ends_the_plan(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    plane.rejects = "json parse error: invalid character 'k'"
    result, _orders = planned(plane, monkeypatch, check=True)
    assert result["failed"]
    golden(result["msg"])


def test_a_host_without_the_means_is_planned_for_all_the_same(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.ctr = None
    result, _orders = planned(plane, monkeypatch, check=True)
    assert (result["changed"], result["candidate"]) == (True, "the candidate was not checked: this host has no ctr (containerd)")


def test_outside_of_check_mode_there_is_no_trial_besides_the_check(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    _result, orders = planned(plane, monkeypatch, check=False)
    assert ["trial" in order for order in orders] == [False]
