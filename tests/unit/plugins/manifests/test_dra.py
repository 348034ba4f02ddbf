# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The objects of the back end DRA and the runtime have the same names; what a token may do is what the daemon does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import DRA_SOCKETS
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.claims import POLICIES
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import dra, in_cluster
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import COLLECTION, role_options, variables

from docs.pages import codes, rows, section
from gpushare_runtime.core import protocol
from gpushare_runtime.core.quantity import UNITS
from gpushare_runtime.device_plugin.options import parse_arguments
from gpushare_runtime.dra import claims, driver, slices, templates
from gpushare_runtime.settings.device_plugin import DevicePluginConfig
from gpushare_runtime.settings.document import parse

VALUES = Values(image="example.org/gpushare:1", scheduler_image="")


def objects(kind: str, values: Values = VALUES) -> dict[str, Any]:
    """Name → object."""
    return {made["metadata"]["name"]: made for made in dra.objects(values) if made["kind"] == kind}


def test_the_runtime_has_the_same_names() -> None:
    assert (dra.DRIVER, dra.CLAIMS, dra.TEMPLATE) == (slices.DRIVER, templates.NAME, slices.CLASS)
    assert (dra.TAINT, dra.MOST_CLAIMS) == (slices.TAINT, driver._MOST_CLAIMS)
    sockets = ("gpushare.kubernetes-0123cdef-reg.sock", "gpushare-kubernetes-0123cdef-reg.sock", "gpushare.kubernetes-0123-reg.sock")
    assert [bool(re.fullmatch(DRA_SOCKETS, name)) for name in sockets] == [bool(driver._SOCKET.fullmatch(name)) for name in sockets]
    assert set(POLICIES) == set(objects("MutatingAdmissionPolicy")) == set(objects("MutatingAdmissionPolicyBinding"))
    assert (dra.MEMORY, dra.GPUS, dra.CORE) == (protocol.RESOURCE_MEMORY, protocol.RESOURCE_GPUS, protocol.RESOURCE_CORE)
    assert {*dra._PARTS, *dra._UNKNOWN_TO_CLAIMS} == protocol.ASKS
    assert dra._NAME.startswith(f"^{claims.OF_LIMITS}")
    assert dra._UNITS_OF_CONTAINER == protocol.ENV_CONTAINER_UNITS


def test_the_playbook_makes_what_the_manifest_has() -> None:
    """The chart's objects are compared with these in tests/charts."""
    names = role_options(COLLECTION / "roles/in_cluster", "main")
    settings = {name: variables()[name].spec.get("default") for name in names} | {"gpushare_backend": "dra"}
    made = in_cluster.objects(Values(**{**Values.by_variables(settings), "scheduler_image": ""}))
    text = (COLLECTION / "docs/manifests/dra/gpushare-dra.yaml").read_text(encoding="utf-8")
    assert json.loads(json.dumps(made)) == list(yaml.safe_load_all(text))


def test_the_page_has_the_words_with_which_mps_and_compute_shares_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of preflight and Helm are in their tests."""
    table = [(by, *codes(words)) for _, by, words in rows(section("docs/use/dra.md", "MPS and compute shares"))]
    (policy,) = (one for name, one in objects("ValidatingAdmissionPolicy").items() if name == "gpushare-dra-rejected")
    messages = [one.get("message") or one["messageExpression"] for one in policy["spec"]["validations"]]
    said = [words for by, words in table if by == "API server"]
    assert len(said) == 2
    assert [words for words in said if not any(words in message for message in messages)] == []
    with pytest.raises(SystemExit):
        parse_arguments(["--node-name=gpu1", "--backend=dra", "--isolation=mps"])
    assert dict(table)["the program"] in capsys.readouterr().err


def test_units_are_the_runtimes_quantities() -> None:
    assert set(dra.UNIT_QUANTITIES) == set(UNITS)
    for name, (number, suffix) in dra.UNIT_QUANTITIES.items():
        assert number * {"Mi": 1, "Gi": 1024}[suffix] == UNITS[name].mib


def test_claims_are_made_what_they_say_before_any_pod_has_one() -> None:
    """A claim never changes: one that came before its policy would wait for ever."""
    names = [made["metadata"]["name"] for made in dra.objects(VALUES) if made["kind"] == "MutatingAdmissionPolicyBinding"]
    assert names == ["gpushare-dra-claims", "gpushare-dra-requests"]


def test_accounts_have_no_right_to_pods_and_only_a_policys_to_nodes() -> None:
    roles = objects("ClusterRole")
    assert set(roles) == {"gpushare-device-plugin", "gpushare-claims"}
    writes = {
        (name, resource, verb)
        for name, role in roles.items()
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    }
    assert writes == {
        ("gpushare-claims", "resourceclaimtemplates", "create"),
        *(("gpushare-device-plugin", "resourceslices", verb) for verb in ("create", "patch", "delete")),
        *(("gpushare-device-plugin", "events", verb) for verb in ("create", "patch")),
        ("gpushare-device-plugin", "nodes/status", "patch"),
    }
    # These rights are narrowed by policies.
    assert {"gpushare-dra-slices", "gpushare-dra-templates", "gpushare-device-plugin"} <= set(objects("ValidatingAdmissionPolicyBinding"))


@pytest.mark.parametrize("metrics", [False, True])
def test_no_pod_connects_to_those_of_the_daemons_but_for_the_metrics_of_device_plugins(metrics: bool) -> None:
    values = replace(VALUES, metrics=metrics, backend="dra")
    found, pods = objects("NetworkPolicy", values), {**objects("Deployment", values), **objects("DaemonSet", values)}
    assert found.keys() == pods.keys()
    for name, pod in pods.items():
        assert found[name]["spec"]["podSelector"]["matchLabels"] == pod["spec"]["template"]["metadata"]["labels"]
        assert ("ingress" in found[name]["spec"]) == (metrics and name == "gpushare-device-plugin")


def test_the_device_plugin_registers_as_a_driver_and_has_its_folder() -> None:
    values = Values(image="x", scheduler_image="", kubelet_root="/data/kubelet", device_strategy="auto")
    pod = objects("DaemonSet", values)["gpushare-device-plugin"]["spec"]["template"]
    text = next(iter(pod["metadata"]["annotations"].values()))
    read = parse(text.encode(), DevicePluginConfig, "settings")[0]
    assert (read.backend, read.strategy) == ("dra", "cdi")
    mounts = {mount["mountPath"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert not mounts["/data/kubelet/plugins_registry"].get("readOnly")
