# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whose a DaemonSet is, how it leaves a node, and that everything is as it was once it is given back."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl, KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import GPUS
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_managers import HAMI, NVIDIA, OPERATOR, ORIGINAL
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.aside import (
    TakeOverError,
    daemon_set_aside,
    daemon_set_returned,
    moves_of,
    node_aside,
    node_returned,
    with_expression,
    without_expression,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.cluster import OtherPlugins, PluginPod, active_pods
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.plugins import BY_AFFINITY, is_prepared, other_plugins, owner_of
from hypothesis import given
from hypothesis import strategies as st

from docs.pages import blocks
from unit.fakes.plugins.takeover.others import (
    Api,
    Json,
    cluster_policy,
    daemon_set,
    hami,
    merged,
    node,
    nvidia,
    operators,
    original,
    runs_on,
)

TAKEN = "gpushare.kubernetes/taken-over"
ASIDE = "gpushare.kubernetes/moved-aside"
KEYS, VALUES = ("zone", "gpu", TAKEN), ("a", "b")

expressions = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, **({"values": values} if operator in ("In", "NotIn") else {})},
    st.sampled_from(KEYS[:2]),
    st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist")),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=2),
)
terms = st.one_of(st.just({}), st.builds(lambda many: {"matchExpressions": many}, st.lists(expressions, min_size=1, max_size=3)))
required = st.builds(lambda many: {"nodeSelectorTerms": many}, st.lists(terms, min_size=1, max_size=3))
preferred = st.just([{"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}])
affinities = st.one_of(
    st.none(),
    st.just({}),
    st.builds(
        lambda node_affinity, pods: {**({"nodeAffinity": node_affinity} if node_affinity is not None else {}), **pods},
        st.one_of(
            st.none(),
            st.just({}),
            st.fixed_dictionaries(
                {},
                optional={
                    "requiredDuringSchedulingIgnoredDuringExecution": required,
                    "preferredDuringSchedulingIgnoredDuringExecution": preferred,
                },
            ),
        ),
        st.sampled_from(({}, {"podAntiAffinity": {"x": 1}})),
    ),
)
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)


def kinds(*items: Json) -> list[tuple[str, str, bool]]:
    return [(one.kind, one.switch.label, one.by_affinity) for one in other_plugins(items)]


def containers_of(item: Json) -> list[Json]:
    found: list[Json] = item["spec"]["template"]["spec"]["containers"]
    return found


# Whose it is.


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (nvidia(), (NVIDIA, TAKEN, True)),
        (operators(), (OPERATOR, TAKEN, True)),
        (hami(), (HAMI, "gpu", False)),
        (original(), (ORIGINAL, "gpushare", False)),
        # Without its usual selector each of them can only be moved by its affinity.
        (merged(original(), {"spec": {"template": {"spec": {"nodeSelector": None}}}}), (ORIGINAL, TAKEN, True)),
        (merged(hami(), {"spec": {"template": {"spec": {"nodeSelector": {"gpu": "off"}}}}}), (HAMI, TAKEN, True)),
        # By its label alone, by its image alone, and beside another container.
        (merged(original(), {"spec": {"template": {"spec": {"containers": None}}}}), (ORIGINAL, "gpushare", False)),
        (merged(original(), {"spec": {"template": {"metadata": None}}}), (ORIGINAL, "gpushare", False)),
        (merged(hami(), {"spec": {"template": {"spec": {"containers": [{"name": "x", "image": "y"}]}}}}), (HAMI, "gpu", False)),
        (merged(hami(), {"spec": {"template": {"metadata": {"labels": None}}}}), (HAMI, "gpu", False)),
        (
            merged(nvidia(), {"spec": {"template": {"spec": {"containers": [{"name": "x", "image": "y"}, *containers_of(nvidia())]}}}}),
            (NVIDIA, TAKEN, True),
        ),
        (nvidia(ownerReferences=[{"kind": "NVIDIADriver", "name": "d"}]), (OPERATOR, TAKEN, True)),
    ],
)
def test_a_device_plugin_is_known_by_its_manifest(item: Json, wanted: tuple[str, str, bool]) -> None:
    assert kinds(item) == [wanted]


@pytest.mark.parametrize(
    "item",
    [
        daemon_set("gpu-feature-discovery", "nvcr.io/nvidia/k8s-device-plugin:v0.17.1", "gpu-feature-discovery-ctr"),
        daemon_set("kube-proxy", "registry.k8s.io/kube-proxy:v1.36.3", "kube-proxy"),
        daemon_set("nvidia-dcgm-exporter", "nvcr.io/nvidia/k8s/dcgm-exporter:4", "nvidia-dcgm-exporter"),
        daemon_set("nvidia-device-plugin-check", "", "nvidia-device-plugin-check"),
    ],
)
def test_other_daemon_sets_are_none(item: Json) -> None:
    assert kinds(item) == []


def test_device_plugins_are_listed_by_namespace_and_name_each_with_the_labels_of_its_pods() -> None:
    bare, by_expression = (merged(nvidia(), {"spec": {"selector": selector}}) for selector in (None, {"matchLabels": None}))
    bare["metadata"]["name"], by_expression["metadata"]["name"] = "b", "a"
    found = other_plugins([bare, by_expression, operators(), hami()])
    assert [(one.namespace, one.name, one.selector) for one in found] == [
        ("gpu-operator", "nvidia-device-plugin-daemonset", "name=nvidia-device-plugin-daemonset"),
        ("kube-system", "a", ""),
        ("kube-system", "b", ""),
        ("kube-system", "hami-device-plugin", "app.kubernetes.io/component=hami-device-plugin"),
    ]
    # It belongs to a Helm release, which does not know of the node's label.
    assert (found[-1].owner, found[-1].rejection) == ("the Helm release hami", "")


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ({}, ""),
        ({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, "the Helm release of this object"),
        ({"annotations": {"meta.helm.sh/release-name": "nvdp"}}, "the Helm release nvdp"),
        ({"annotations": {"argocd.argoproj.io/tracking-id": "gpu:apps/DaemonSet:x"}}, "Argo CD (gpu:apps/DaemonSet:x)"),
        (
            {
                "labels": {"app.kubernetes.io/instance": "gpu", "app.kubernetes.io/managed-by": "Helm"},
                "managedFields": [{"manager": "kube-controller-manager"}, {"manager": "argocd-controller", "operation": "Apply"}],
            },
            "Argo CD (gpu)",
        ),
        ({"labels": {"app.kubernetes.io/instance": "gpu"}, "managedFields": [{"manager": "kubectl-client-side-apply"}]}, ""),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "infra"}}, "Flux (infra)"),
        ({"labels": {"helm.toolkit.fluxcd.io/name": "infra", "app.kubernetes.io/managed-by": "Helm"}}, "Flux (infra)"),
        (
            {"labels": {"operators.coreos.com/gpu-operator-certified.nvidia-gpu-operator": ""}},
            "OLM (gpu-operator-certified.nvidia-gpu-operator)",
        ),
        ({"labels": {"olm.operatorframework.io/owner-name": "gpu-operator"}}, "OLM (gpu-operator)"),
        ({"ownerReferences": [{"kind": "ClusterPolicy", "name": "p", "controller": True}]}, "ClusterPolicy p"),
        ({"ownerReferences": [{"kind": "ClusterPolicy", "name": "p"}]}, ""),
        ({"labels": {"argocd.argoproj.io/instance": "gpu"}}, "Argo CD (gpu)"),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "a" * 80}}, f"Flux ({'a' * 80})"),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "a" * 81}}, f"Flux ({'a' * 80}…)"),
    ],
)
def test_what_would_undo_a_change(metadata: Json, wanted: str) -> None:
    assert owner_of(metadata) == wanted


def test_one_that_is_owned_and_has_no_label_is_left_to_its_owner_with_the_change_to_make() -> None:
    item = nvidia(annotations={"meta.helm.sh/release-name": "nvdp"})
    (plugin,) = other_plugins([item])
    assert "belongs to the Helm release nvdp" in plugin.rejection
    assert f"key: {TAKEN}, operator: DoesNotExist" in plugin.rejection
    api = Api([item], [node("gpu1")])
    with pytest.raises(TakeOverError, match=r"belongs to the Helm release nvdp.*Nothing was changed"):
        OtherPlugins(api.kubectl).move_aside(["gpu1"], False)
    assert api.calls == []
    # Once its owner has made the change, only the node's label is missing.
    prepared = copy.deepcopy(item)
    prepared["spec"]["template"]["spec"]["affinity"] = with_expression(None)
    (plugin,) = other_plugins([prepared])
    assert plugin.rejection == ""
    api = Api([prepared], [node("gpu1")])
    assert [change.title for change in OtherPlugins(api.kubectl).move_aside(["gpu1"], False).changes] == ["Node gpu1"]


# The affinity.


def test_nvidias_chart_with_the_values_of_the_page_needs_no_other_change() -> None:
    (affinity,) = (yaml.safe_load(one.body)["affinity"] for one in blocks("docs/operate/migrate.md") if "affinity:" in one.body)
    assert is_prepared(affinity)
    assert with_expression(without_expression(affinity)) == affinity
    assert daemon_set_aside(nvidia(affinity=affinity)) is None


@given(affinities, labels)
def test_a_moved_daemon_set_runs_where_it_did_except_on_nodes_that_were_taken_over(affinity: Any, of_node: dict[str, str]) -> None:
    before = runs_on({"affinity": affinity} if affinity is not None else {}, of_node)
    assert runs_on({"affinity": with_expression(affinity)}, of_node) == (before and TAKEN not in of_node)


@given(affinities)
def test_the_expression_is_added_once_and_taken_out_again(affinity: Any) -> None:
    moved = with_expression(affinity)
    assert with_expression(moved) == moved
    assert is_prepared(moved) or affinity is not None
    # What is empty says nothing.
    kept = {key: value for key, value in (affinity or {}).items() if value}
    assert without_expression(moved) == (kept or None)


@given(affinities)
def test_a_daemon_set_is_given_back_as_it_was(affinity: Any) -> None:
    item = nvidia(affinity=affinity)
    change = daemon_set_aside(item)
    if change is None:
        assert not runs_on(item["spec"]["template"]["spec"], {})
        return
    moved = merged(item, change.patch)
    assert daemon_set_aside(moved) is None
    back = daemon_set_returned(moved)
    assert back is not None
    returned = merged(moved, back.patch)
    assert returned["spec"] == item["spec"]
    assert daemon_set_returned(returned) is None


def test_what_others_have_changed_since_stays_and_only_our_part_goes() -> None:
    item = nvidia()
    change = daemon_set_aside(item)
    assert change is not None
    assert change.patch["metadata"]["annotations"] == {ASIDE: '{"affinity":null,"v":1}'}
    moved = merged(item, change.patch)
    term = moved["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ][0]
    term["matchExpressions"].append({"key": "zone", "operator": "In", "values": ["a"]})
    back = daemon_set_returned(moved)
    assert back is not None
    spec = merged(moved, back.patch)["spec"]["template"]["spec"]
    assert spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    ]
    for others in (None, {"podAntiAffinity": {"x": 1}}):
        moved["spec"]["template"]["spec"]["affinity"] = others
        back = daemon_set_returned(moved)
        assert back is not None
        assert merged(moved, back.patch)["spec"]["template"]["spec"].get("affinity") == others
    assert daemon_set_returned(merged(item, {"metadata": {"annotations": None}})) is None


def test_a_term_of_a_nodes_name_gets_the_expression_too() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu1"]}]}
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": [named]}}}
    moved = with_expression(affinity)
    ours = [{"key": TAKEN, "operator": "DoesNotExist"}]
    assert moved["nodeAffinity"][required]["nodeSelectorTerms"] == [{**named, "matchExpressions": ours}]
    assert (is_prepared(affinity), is_prepared(moved), without_expression(moved)) == (False, True, affinity)


# The node.


@given(labels)
def test_a_node_is_given_back_as_it_was(of_node: dict[str, str]) -> None:
    before = node("gpu1", of_node)
    switches = [one.switch for one in other_plugins([nvidia(), operators(), hami(), original()])]
    change = node_aside(before, switches)
    assert change is not None
    moved = merged(before, change.patch)
    assert node_aside(moved, switches) is None
    assert not any(runs_on(one["spec"]["template"]["spec"], moved["metadata"]["labels"]) for one in (operators(), hami(), original()))
    back, kept = node_returned(moved)
    assert back is not None
    assert kept == []
    assert merged(moved, back.patch) == before
    assert node_returned(before) == (None, [])


def test_a_node_without_labels_or_annotations_is_moved_and_given_back() -> None:
    bare = {"metadata": {"name": "gpu1"}}
    assert node_returned(bare) == (None, [])
    change = node_aside(bare, [BY_AFFINITY])
    assert change is not None
    assert merged(bare, change.patch)["metadata"]["labels"] == {TAKEN: "true"}
    for remembered, restored in (('{"v":1,"labels":{"gpu":["on",null]}}', {"gpu": "on"}), ('{"v":1,"labels":{}}', {})):
        moved = {"metadata": {"name": "gpu1", "annotations": {TAKEN: remembered}}}
        back, kept = node_returned(moved)
        assert back is not None
        assert merged(moved, back.patch)["metadata"] == {"name": "gpu1", "annotations": {}, "labels": restored}
        assert kept == []


def test_a_label_that_was_changed_since_stays_and_is_reported() -> None:
    before = node("gpu1", {"gpushare": "true", "gpu": "on"})
    switches = [one.switch for one in other_plugins([hami(), original()])]
    change = node_aside(before, switches)
    assert change is not None
    assert change.diff() == {
        "before_header": "Node gpu1",
        "after_header": "Node gpu1",
        "before": '{\n  "labels": {\n    "gpu": "on",\n    "gpushare": "true"\n  }\n}\n',
        "after": '{\n  "labels": {\n    "gpu": null,\n    "gpushare": null\n  }\n}\n',
    }
    moved = merged(before, change.patch)
    assert moved["metadata"]["labels"] == {}
    assert moved["metadata"]["annotations"] == {TAKEN: '{"labels":{"gpu":["on",null],"gpushare":["true",null]},"v":1}'}
    # Others have set it again: it goes again.
    again = node_aside(merged(moved, {"metadata": {"labels": {"gpushare": "true"}}}), switches)
    assert again is not None
    assert again.after == {"labels": {"gpu": None, "gpushare": None}}
    moved["metadata"]["labels"]["gpushare"] = "false"
    back, kept = node_returned(moved)
    assert back is not None
    assert (kept, merged(moved, back.patch)["metadata"]["labels"]) == (["gpushare"], {"gpushare": "false", "gpu": "on"})


def padded(size: int) -> str:
    """An annotation of so many characters."""
    start = '{"v":1,"labels":{"gpushare":["true",null]},"x":"'
    return start + "a" * (size - len(start) - 2) + '"}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"v":2,"labels":{}}',
        '{"v":1}',
        '{"v":1,"labels":{"node-role.kubernetes.io/control-plane":["",null]}}',
        '{"v":1,"labels":{"gpushare":["a b",null]}}',
        '{"v":1,"labels":{"gpushare":["true"]}}',
        '{"v":1,"labels":{"gpushare":[{},null]}}',
        "[" * 100_000,
        '{"v":1,"labels":{"gpushare":["true",null],"gpu":["on"]}}',
        '{"v":1,"labels":{"gpushare":"ab"}}',
        padded(64 * 1024 + 1),
    ],
)
def test_an_annotation_of_a_node_that_is_not_ours_is_reported_and_sets_no_label(text: str) -> None:
    found = node("gpu1", annotations={TAKEN: text})
    with pytest.raises(TakeOverError, match=rf"annotation {TAKEN} of node gpu1 .*expected") as error:
        moves_of(found)
    assert len(str(error.value)) < 500
    assert moves_of(node("gpu1", annotations={TAKEN: padded(64 * 1024)})) == {"gpushare": ("true", None)}


@pytest.mark.parametrize("text", ["{", "[]", '{"v":1,"affinity":"x"}', '{"v":7,"affinity":null}'])
def test_an_annotation_of_a_daemon_set_that_is_not_ours_is_reported(text: str) -> None:
    with pytest.raises(TakeOverError, match=rf"annotation {ASIDE} of DaemonSet kube-system/nvidia-device-plugin-daemonset .*expected"):
        daemon_set_returned(nvidia(annotations={ASIDE: text}))


# The cluster.


def on(api: Api) -> dict[str, list[str]]:
    """DaemonSet → the nodes that it runs on."""
    return {name: [pod["spec"]["nodeName"] for pod in api.pods(one)] for (_namespace, name), one in api.daemon_sets.items()}


def test_a_plugin_is_on_the_nodes_that_have_its_pods_or_its_label_and_only_there_it_is_moved() -> None:
    # gpu2 has the label and no pod yet.
    waiting = merged(original(), {"spec": {"template": {"spec": {"nodeSelector": {"zone": "a"}}}}})
    labels = {"gpu1": {"pool": "a"}, "gpu2": {"gpushare": "true"}, "gpu3": {"gpushare": "true", "zone": "a"}}
    api = Api([nvidia(selector={"pool": "a"}), waiting], [*(node(*one) for one in labels.items()), {"metadata": {"name": "bare"}}])
    cluster = OtherPlugins(api.kubectl)
    assert [cluster.nodes_of(one) for one in cluster.plugins] == [{"gpu2", "gpu3"}, {"gpu1"}]
    for names, here in (
        (("gpu1",), [NVIDIA]),
        (("gpu2", "bare", "gone"), [ORIGINAL]),
        (("bare", "gone"), []),
        (labels, [ORIGINAL, NVIDIA]),
    ):
        assert [one.kind for one in cluster.plugins_on(set(names))] == here
    assert cluster.move_aside(["bare"], False).changes == ()
    assert [change.title for change in cluster.move_aside(["gpu2"], False).changes] == ["Node gpu2"]


def test_only_living_pods_of_its_own_are_a_plugins() -> None:
    api = Api([nvidia()], [])
    own, place = [{"uid": "other"}, {"uid": "uid-nvidia-device-plugin-daemonset"}], {"nodeName": "gpu1"}
    api.more_pods = [
        {"metadata": {"name": "a", "ownerReferences": own, "deletionTimestamp": "2026-11-21T10:00:00Z"}, "spec": place},
        {"metadata": {"name": "b", "ownerReferences": own}, "spec": {}},
        {"metadata": {"name": "c"}, "spec": place},
        *({"metadata": {"name": end, "ownerReferences": own}, "spec": place, "status": {"phase": end}} for end in ("Succeeded", "Failed")),
    ]
    title = "DaemonSet kube-system/nvidia-device-plugin-daemonset"
    assert OtherPlugins(api.kubectl).pods == [PluginPod("gpu1", "kube-system/a", title, terminating=True)]


def test_pods_are_known_by_uid_on_the_nodes_that_were_asked_about() -> None:
    kubectl = Kubectl(lambda _argv, _data: (0, "u1 gpu1 x/a\nu2 gpu2 x/b\n\nu3  x/c\nand gpu1 is slow\n", ""), "kubectl", "/k")
    assert active_pods(kubectl, {"gpu1"}) == {"u1": "x/a"}


def test_one_node_after_the_other_loses_nvidias_plugin_and_gets_it_back() -> None:
    api = Api([nvidia()], [node("gpu1"), node("gpu2"), node("gpu3")])
    before = copy.deepcopy((api.nodes, api.daemon_sets))
    first = OtherPlugins(api.kubectl).move_aside(["gpu1"], False)
    assert [change.title for change in first.changes] == ["Node gpu1", "DaemonSet kube-system/nvidia-device-plugin-daemonset"]
    assert first.left == ()
    assert on(api) == {"nvidia-device-plugin-daemonset": ["gpu2", "gpu3"]}
    # Again: nothing to do.
    calls = len(api.calls)
    assert OtherPlugins(api.kubectl).move_aside(["gpu1"], False).changes == ()
    assert len(api.calls) == calls
    assert [change.title for change in OtherPlugins(api.kubectl).move_aside(["gpu2"], False).changes] == ["Node gpu2"]
    assert on(api) == {"nvidia-device-plugin-daemonset": ["gpu3"]}

    # The DaemonSet keeps our expression as long as a node needs it.
    assert [change.title for change in OtherPlugins(api.kubectl).give_back(["gpu1"], False).changes] == ["Node gpu1"]
    assert on(api) == {"nvidia-device-plugin-daemonset": ["gpu1", "gpu3"]}
    last = OtherPlugins(api.kubectl).give_back(["gpu2", "gone"], False)
    assert [change.title for change in last.changes] == ["Node gpu2", "DaemonSet kube-system/nvidia-device-plugin-daemonset"]
    assert last.served == ()
    assert (api.nodes, api.daemon_sets) == before
    assert OtherPlugins(api.kubectl).give_back(["gpu1", "gpu2", "gpu3"], False).changes == ()


def test_check_mode_says_what_would_be_done_and_writes_nothing() -> None:
    api = Api([nvidia()], [node("gpu1"), node("gpu2")])
    found = OtherPlugins(api.kubectl).move_aside(["gpu1"], True)
    assert len(found.changes) == 2
    assert [pod.node for pod in found.left] == ["gpu1"]
    assert api.calls == []


def test_the_original_leaves_by_its_label_and_no_daemon_set_is_touched() -> None:
    api = Api([original(), nvidia()], [node("gpu1", {"gpushare": "true"}), node("gpu2", {"gpushare": "true"})])
    api.daemon_sets.pop(("kube-system", "nvidia-device-plugin-daemonset"))
    assert [change.title for change in OtherPlugins(api.kubectl).move_aside(["gpu1"], False).changes] == ["Node gpu1"]
    assert on(api) == {"gpushare-device-plugin-ds": ["gpu2"]}
    assert json.loads(api.nodes["gpu1"]["metadata"]["annotations"][TAKEN]) == {"v": 1, "labels": {"gpushare": ["true", None]}}


def test_a_node_is_given_back_to_the_original_which_writes_its_number_of_gpus_when_it_starts_again() -> None:
    api = Api([original(), hami()], [node("gpu1", {"gpushare": "true"}), node("gpu2", {"gpushare": "true"}), node("gpu3", {"gpu": "on"})])
    names = ["gone", "gpu1", "gpu2", "gpu3"]
    OtherPlugins(api.kubectl).move_aside(["gpu1", "gpu2"], False)
    for name, number in (("gpu1", "2"), ("gpu2", "0"), ("gpu3", "0")):
        api.nodes[name]["status"] = {"capacity": {GPUS: number}}
    api.calls.clear()
    assert OtherPlugins(api.kubectl).give_back(names, True).served == ("gpu1", "gpu2")
    assert api.calls == []

    # Its pods start now, and write the number by themselves.
    given = OtherPlugins(api.kubectl).give_back(names, False)
    assert (given.served, given.restarted) == (("gpu1", "gpu2"), ())
    assert {words[0] for words in api.calls} == {"patch"}

    # kubelet lets go of ours minutes later, and sets the number to 0.
    api.calls.clear()
    ends = {"name": "old", "ownerReferences": [{"uid": "uid-gpushare-device-plugin-ds"}], "deletionTimestamp": "2026-11-21T10:00:00Z"}
    api.more_pods = [{"metadata": ends, "spec": {"nodeName": "gpu2"}}]
    predicted = OtherPlugins(api.kubectl).give_back(names, True)
    assert api.calls == []
    found = OtherPlugins(api.kubectl).give_back(names, False)
    assert [pod.name for pod in found.restarted] == ["kube-system/gpushare-device-plugin-ds-gpu2"]
    assert (found, found.served) == (predicted, ("gpu1", "gpu2"))
    assert OtherPlugins(api.kubectl).give_back(["gpu2"], True).restarted == found.restarted
    assert api.calls == [["delete", "pod", "gpushare-device-plugin-ds-gpu2", "--ignore-not-found", "--wait=false"]]
    api.nodes["gpu2"]["status"]["capacity"][GPUS] = "2"
    assert OtherPlugins(api.kubectl).give_back(names, False).restarted == ()


DEPLOYED = {f"nvidia.com/gpu.deploy.{part}": "true" for part in ("device-plugin", "operator-validator")}


def test_a_node_is_not_taken_over_before_the_operator_has_deleted_its_device_plugin() -> None:
    api = Api([operators()], [node("gpu1", DEPLOYED)], clusterpolicies=[cluster_policy(enabled=False)])
    # kubelet has its pods until the DaemonSet is gone.
    api.daemon_sets["gpu-operator", "nvidia-device-plugin-daemonset"]["spec"]["template"]["spec"]["nodeSelector"] = DEPLOYED
    with pytest.raises(
        TakeOverError, match=r"DaemonSet gpu-operator/nvidia-device-plugin-daemonset is the GPU Operator's; expected none: wait"
    ):
        OtherPlugins(api.kubectl).move_aside(["gpu1"], False)
    api.daemon_sets.clear()
    assert OtherPlugins(api.kubectl).move_aside(["gpu1"], False).changes == ()
    # Who else has switched it off may be its owner.
    api.policies["cluster-policy"]["metadata"]["annotations"] = {"meta.helm.sh/release-name": "gpu"}
    assert OtherPlugins(api.kubectl).switch_operator_off(["gpu1"], False).changes == ()
    assert api.calls == []


@pytest.mark.parametrize("part", [{"enabled": True}, {}, None], ids=["enabled", "default", "no part"])
def test_the_operators_plugin_is_switched_off_and_on_as_it_was(part: Json | None) -> None:
    policy = cluster_policy(**(part or {}))
    if part is None:
        del policy["spec"]["devicePlugin"]
    nodes = [
        node("gpu1", DEPLOYED),
        node("gpu2", {"gpushare.kubernetes/node": "true"}),
        node("gpu3", DEPLOYED),
        {"metadata": {"name": "bare"}},
    ]
    api = Api([operators(), nvidia()], nodes, clusterpolicies=[policy])
    before = copy.deepcopy(api.policies)
    api.daemon_sets["gpu-operator", "nvidia-device-plugin-daemonset"]["spec"]["template"]["spec"]["nodeSelector"] = DEPLOYED
    predicted = OtherPlugins(api.kubectl).switch_operator_off(["gpu1"], True)
    assert api.calls == []
    found = OtherPlugins(api.kubectl).switch_operator_off(["gpu1"], False)
    assert found == predicted
    assert [change.title for change in found.changes] == ["ClusterPolicy cluster-policy"]
    assert [pod.name for pod in found.left] == ["gpu-operator/nvidia-device-plugin-daemonset-gpu1"]
    assert api.policies["cluster-policy"]["spec"]["devicePlugin"]["enabled"] is False
    assert OtherPlugins(api.kubectl).switch_operator_off(["gpu1"], False).changes == ()

    # gpu2 is ours still.
    api.daemon_sets.clear()
    assert OtherPlugins(api.kubectl).give_back(["gpu1"], False).changes == ()
    given = OtherPlugins(api.kubectl).give_back(["gpu1", "gpu2"], False)
    assert ([change.title for change in given.changes], given.kept) == (["ClusterPolicy cluster-policy"], ())
    assert api.policies == before
    assert OtherPlugins(api.kubectl).switch_operator_on(["gpu1", "gpu2"], False).changes == ()


def test_what_others_have_set_since_stays() -> None:
    api = Api([], [node("gpu1", DEPLOYED)], clusterpolicies=[cluster_policy(enabled=True)])
    OtherPlugins(api.kubectl).switch_operator_off(["gpu1"], False)
    api.policies["cluster-policy"]["spec"]["devicePlugin"]["enabled"] = True
    given = OtherPlugins(api.kubectl).switch_operator_on(["gpu1"], False)
    assert given.kept == ("devicePlugin.enabled of ClusterPolicy cluster-policy, which was changed since",)
    assert api.policies["cluster-policy"] == cluster_policy(enabled=True)


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ([], "found 0; expected one ClusterPolicy"),
        ([cluster_policy(), merged(cluster_policy(), {"metadata": {"name": "b"}})], "found 2; expected one"),
        (
            [merged(cluster_policy(), {"metadata": {"annotations": {"meta.helm.sh/release-name": "gpu"}}})],
            "found that of the Helm release gpu",
        ),
        ([cluster_policy(enabled="yes")], r"has devicePlugin .*; expected enabled: true or false"),
    ],
)
def test_no_other_cluster_policy_is_touched(policies: list[Json], words: str) -> None:
    api = Api([], [node("gpu1", DEPLOYED)], clusterpolicies=policies)
    with pytest.raises(TakeOverError, match=words):
        OtherPlugins(api.kubectl).switch_operator_off(["gpu1"], False)
    assert api.calls == []


@pytest.mark.parametrize(
    "text", ["{", '{"v":1}', '{"v":1,"enabled":false,"part":true}', '{"v":1,"enabled":"x","part":true}', "[" * 100_000]
)
def test_an_annotation_of_a_cluster_policy_that_is_not_ours_is_reported(text: str) -> None:
    policy = cluster_policy(enabled=False)
    policy["metadata"]["annotations"] = {"gpushare.kubernetes/gpu-operator": text}
    api = Api([], [node("gpu1")], clusterpolicies=[policy])
    with pytest.raises(TakeOverError, match=r"annotation gpushare.kubernetes/gpu-operator of ClusterPolicy cluster-policy .*expected"):
        OtherPlugins(api.kubectl).switch_operator_on(["gpu1"], False)
    assert api.calls == []


def test_a_cluster_policy_that_cannot_be_read_ends_the_run() -> None:
    api = Api([operators()], [node("gpu1", DEPLOYED)])
    refusing = Kubectl(
        lambda argv, data: (1, "", "Error from server (Forbidden)") if "nvidia.com" in argv[-1] else api._run(argv, data), "kubectl", "/k"
    )
    with pytest.raises(KubectlError, match="Forbidden"):
        OtherPlugins(refusing)


def test_a_label_of_the_operator_that_a_former_take_over_has_changed_is_given_back() -> None:
    moved = json.dumps({"v": 1, "labels": {"nvidia.com/gpu.deploy.device-plugin": ["true", "false"]}})
    values = {"gpu1": "false", "gpu2": "other"}
    api = Api([], [node(name, {"nvidia.com/gpu.deploy.device-plugin": value}, {TAKEN: moved}) for name, value in values.items()])
    found = OtherPlugins(api.kubectl).give_back(["gpu1", "gpu2"], False)
    assert found.kept == ("label nvidia.com/gpu.deploy.device-plugin of node gpu2, which was changed since",)
    assert api.nodes["gpu1"]["metadata"]["labels"] == {"nvidia.com/gpu.deploy.device-plugin": "true"}


def test_a_node_that_is_not_there_and_one_that_changes_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    api = Api([nvidia(annotations={"meta.helm.sh/release-name": "nvdp"})], [node("gpu1")], clusterpolicies=[cluster_policy()])
    for step in (OtherPlugins.move_aside, OtherPlugins.switch_operator_off):
        with pytest.raises(TakeOverError, match="the cluster has no node gpu9; expected"):
            step(OtherPlugins(api.kubectl), ["gpu1", "gpu9"], False)
    api = Api([nvidia()], [node("gpu1")])
    api.conflicts = {"node": 99}
    with pytest.raises(TakeOverError, match=r"Node gpu1 is changed by other clients all the time \(6 attempts\); expected.*. Run again"):
        OtherPlugins(api.kubectl).move_aside(["gpu1"], False)
    assert slept == [0.1] * 6
    api.refusal = "Error from server (Forbidden)"
    with pytest.raises(KubectlError, match="Forbidden"):
        OtherPlugins(api.kubectl).move_aside(["gpu1"], False)


@pytest.mark.parametrize("words", ["Error from server (Conflict): x", "error: the object has been modified"])
def test_what_others_change_at_the_same_moment_is_read_again(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller writes a DaemonSet's status as soon as a node's label has changed."""
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    api = Api([nvidia()], [node("gpu1"), node("gpu2")])
    api.refusal = words
    before = copy.deepcopy((api.nodes, api.daemon_sets))
    for step in (OtherPlugins.move_aside, OtherPlugins.give_back):
        api.conflicts = {"daemonset": 2, "node": 1}
        found = step(OtherPlugins(api.kubectl), ["gpu1"], False)
        assert [change.title for change in found.changes] == ["Node gpu1", "DaemonSet kube-system/nvidia-device-plugin-daemonset"]
    assert (api.nodes, api.daemon_sets) == before


def test_a_label_by_affinity_is_the_same_for_all() -> None:
    assert (BY_AFFINITY.label, BY_AFFINITY.away) == (TAKEN, "true")
