# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which objects are the original's, who writes its annotations, and that it only goes when nothing of it is in use."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import key, title
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.aside import TakeOverError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.cluster import OtherPlugins
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.original import (
    Parts,
    check_unused,
    for_file,
    memory_unit,
    parts,
    retire,
)
from hypothesis import given
from hypothesis import strategies as st

from unit.fakes.plugins.takeover.others import Api, Json, node, nvidia, original

SYSTEM = {"namespace": "kube-system"}
OURS = {"managedFields": [{"manager": "gpushare.kubernetes", "operation": "Apply"}]}
EXTENDER = {"component": "gpushare-schd-extender", "app": "gpushare"}


def named(name: str, **metadata: Any) -> Json:
    return {"metadata": {"name": name, "uid": "u", "resourceVersion": "7", **metadata}}


def deployment() -> Json:
    pod = {"serviceAccount": "gpushare-schd-extender", "containers": [{"name": "x", "image": "y"}]}
    return {
        **named("gpushare-schd-extender", **SYSTEM),
        "spec": {"template": {"metadata": {"labels": EXTENDER}, "spec": pod}},
        "status": {"a": 1},
    }


def service() -> Json:
    ports = [{"port": 12345, "nodePort": 32766}]
    return {
        **named("gpushare-schd-extender", **SYSTEM),
        "spec": {"selector": EXTENDER, "ports": ports, "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]},
    }


def api(*, labelled: bool = False, **changes: list[Json]) -> Api:
    """A cluster of the original, and some that only look like it. labelled: whether its DaemonSet still serves gpu1."""
    both = [named("gpushare-schd-extender"), named("gpushare-device-plugin"), named("gpushare-extender", **OURS), named("system:node")]
    accounts = [named(one["metadata"]["name"], **SYSTEM) for one in both[:2]] + [named("gpushare-extender", **SYSTEM, **OURS)]
    other = {**named("web", **SYSTEM), "spec": {"selector": {"app": "web"}, "ports": [{"nodePort": 30000}]}}
    more = [{**named("web"), "spec": {"template": {"spec": {}, **metadata}}} for metadata in ({}, {"metadata": {}})]
    lists = {
        "deployments": [deployment(), *more],
        "services": [service(), other, named("web"), {**named("kubernetes"), "spec": {}}],
        "clusterrolebindings": both,
        "clusterroles": copy.deepcopy(both),
        "serviceaccounts": accounts,
        **changes,
    }
    return Api([original(), nvidia()], [node("gpu1", {"gpushare": "true"} if labelled else {})], **lists)


def found(of: Api) -> tuple[Parts, OtherPlugins]:
    cluster = OtherPlugins(of.kubectl)
    return parts(of.kubectl, cluster), cluster


def test_its_parts_by_selector_and_name_and_never_ours() -> None:
    theirs, _cluster = found(api())
    assert [title(key(one)) for one in theirs.all] == [
        "DaemonSet kube-system/gpushare-device-plugin-ds",
        "Deployment kube-system/gpushare-schd-extender",
        "Service kube-system/gpushare-schd-extender",
        "ClusterRoleBinding gpushare-schd-extender",
        "ClusterRoleBinding gpushare-device-plugin",
        "ClusterRole gpushare-schd-extender",
        "ClusterRole gpushare-device-plugin",
        "ServiceAccount kube-system/gpushare-schd-extender",
        "ServiceAccount kube-system/gpushare-device-plugin",
    ]
    users = "system:serviceaccount:kube-system:"
    assert theirs.writers == [f"{users}gpushare-device-plugin", f"{users}gpushare-schd-extender"]
    assert theirs.node_ports == [32766]
    # A right of this name that this collection has applied.
    theirs, _cluster = found(api(clusterroles=[named("gpushare-device-plugin", **OURS)]))
    assert "ClusterRole" not in {one["kind"] for one in theirs.rights}


def test_a_cluster_without_it_has_no_parts() -> None:
    of = Api([nvidia()], [node("gpu1")])
    theirs, _cluster = found(of)
    assert (theirs.all, theirs.writers, theirs.node_ports) == ([], [], [])


def test_parts_without_an_account_and_without_ports() -> None:
    theirs = Parts((nvidia(),), (), ({"spec": {}}, {"spec": {"ports": [{"port": 80}]}}), ())
    assert (theirs.writers, theirs.node_ports) == (["system:serviceaccount:kube-system:default"], [])


def test_it_stays_while_it_serves_a_node() -> None:
    theirs, cluster = found(api(labelled=True))
    with pytest.raises(TakeOverError, match=r"the original's device plugin runs on gpu1; expected it on no node.*Nothing was changed"):
        check_unused(theirs, cluster, ["gpu1"])


def test_it_stays_where_nothing_took_its_place() -> None:
    theirs, cluster = found(api())
    with pytest.raises(TakeOverError, match="no node has the annotation gpushare/gpus"):
        check_unused(theirs, cluster, [])
    check_unused(theirs, cluster, ["gpu1"])
    check_unused(replace(theirs, daemon_sets=()), cluster, [])


def test_what_something_else_would_make_again_is_not_deleted() -> None:
    owned = deployment()
    owned["metadata"]["annotations"] = {"meta.helm.sh/release-name": "gpushare"}
    theirs, cluster = found(api(deployments=[owned]))
    with pytest.raises(TakeOverError, match=r"Deployment kube-system/gpushare-schd-extender .the Helm release gpushare. would come back"):
        check_unused(theirs, cluster, ["gpu1"])


def test_what_runs_goes_first_and_its_accounts_last() -> None:
    of = api()
    theirs, _cluster = found(of)
    retire(of.kubectl, theirs)
    assert [title(key(one)) for one in of.files] == [title(key(one)) for one in theirs.all]
    assert all(set(one) == {"apiVersion", "kind", "metadata"} and set(one["metadata"]) <= {"name", "namespace"} for one in of.files)


def test_the_copy_can_be_applied_again() -> None:
    theirs, _cluster = found(api())
    items = {title(key(one)): one for one in json.loads(for_file(theirs))["items"]}
    assert items["Service kube-system/gpushare-schd-extender"]["spec"] == {
        "selector": EXTENDER,
        "ports": [{"port": 12345, "nodePort": 32766}],
    }
    assert items["Deployment kube-system/gpushare-schd-extender"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "gpushare-schd-extender", "namespace": "kube-system"},
        "spec": deployment()["spec"],
    }


@pytest.mark.parametrize(
    ("registered", "memories", "unit"),
    [
        (32, (16384, 16384), "GiB"),
        (32768, (16384, 16384), "MiB"),
        (30, (15360, 24576), "GiB"),
        (48, (15360, 24576), "GiB"),
        (7, (16384,), None),
        (0, (), None),
        (0, (512,), None),
    ],
)
def test_the_unit_of_the_original_by_the_number_of_its_ids(registered: int, memories: tuple[int, ...], unit: str | None) -> None:
    assert memory_unit(registered, memories) == unit


@given(st.lists(st.integers(4096, 200_000), min_size=1, max_size=8), st.sampled_from((("GiB", 1024), ("MiB", 1))))
def test_the_unit_is_never_mistaken(memories: list[int], unit: tuple[str, int]) -> None:
    assert memory_unit(len(memories) * (memories[0] // unit[1]), memories) in (unit[0], None)
