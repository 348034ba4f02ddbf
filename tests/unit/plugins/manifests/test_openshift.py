# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""OpenShift's constraints, field by field: the device plugin's pod keeps to them, and they allow no more than it needs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import foreign
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import in_cluster, openshift
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values

Json = dict[str, Any]
VALUES = Values(image="i", scheduler_image="s", openshift=True, device_strategy="cdi", metrics=True)
MADE = in_cluster.objects(VALUES)


def of(kind: str, name: str) -> Json:
    (found,) = (one for one in MADE if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def pod_of(kind: str, name: str) -> Json:
    """With what kubelet's admission adds: the account's token."""
    pod: Json = copy.deepcopy(of(kind, name)["spec"]["template"]["spec"])
    pod["volumes"].append({"name": "token", "projected": {}})
    return pod


def asks_too_much(pod: Json, scc: Json) -> set[str]:
    """The fields of the constraints that a pod does not keep to, as OpenShift's admission compares them (security/v1/types.go)."""
    found: set[str] = set()
    for field, key in (("allowHostPID", "hostPID"), ("allowHostIPC", "hostIPC"), ("allowHostNetwork", "hostNetwork")):
        found |= {field} if pod.get(key) and not scc[field] else set()
    kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
    found |= {"volumes"} if kinds - set(scc["volumes"]) else set()
    found |= {"allowHostDirVolumePlugin"} if "hostPath" in kinds and not scc["allowHostDirVolumePlugin"] else set()
    shared = pod.get("securityContext") or {}
    profile = (shared.get("seccompProfile") or {}).get("type")
    found |= {"seccompProfiles"} if {"RuntimeDefault": "runtime/default"}.get(profile) not in scc["seccompProfiles"] else set()
    for container in pod["containers"]:
        rights = container["securityContext"]
        capabilities = rights.get("capabilities") or {}
        found |= {"allowPrivilegedContainer"} if rights.get("privileged") and not scc["allowPrivilegedContainer"] else set()
        found |= {"allowPrivilegeEscalation"} if rights["allowPrivilegeEscalation"] and not scc["allowPrivilegeEscalation"] else set()
        found |= {"allowedCapabilities"} if set(capabilities.get("add") or ()) - set(scc["allowedCapabilities"] or ()) else set()
        found |= {"requiredDropCapabilities"} if set(scc["requiredDropCapabilities"]) - set(capabilities["drop"]) else set()
        found |= {"readOnlyRootFilesystem"} if scc["readOnlyRootFilesystem"] and not rights["readOnlyRootFilesystem"] else set()
        found |= (
            {"allowHostPorts"} if any(one.get("hostPort") for one in container.get("ports") or ()) and not scc["allowHostPorts"] else set()
        )
    user = shared.get("runAsUser")
    found |= {"runAsUser"} if scc["runAsUser"]["type"] == "MustRunAsNonRoot" and not user else set()
    return found


def test_the_device_plugin_keeps_to_them() -> None:
    assert asks_too_much(pod_of("DaemonSet", "gpushare-device-plugin"), openshift.constraints()) == set()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowHostPID", False),
        ("allowHostDirVolumePlugin", False),
        ("volumes", ["hostPath"]),
        ("volumes", ["projected"]),
        ("seccompProfiles", []),
        ("runAsUser", {"type": "MustRunAsNonRoot"}),
    ],
)
def test_they_allow_no_more_than_it_needs(field: str, value: object) -> None:
    assert field in asks_too_much(pod_of("DaemonSet", "gpushare-device-plugin"), {**openshift.constraints(), field: value})


def _privileged(pod: Json) -> None:
    pod["containers"][0]["securityContext"]["privileged"] = True


def _capability(pod: Json) -> None:
    pod["containers"][0]["securityContext"]["capabilities"]["add"] = ["SYS_ADMIN"]


def _network(pod: Json) -> None:
    pod["hostNetwork"] = True


def _secret(pod: Json) -> None:
    pod["volumes"].append({"name": "x", "secret": {}})


@pytest.mark.parametrize("more", [_privileged, _capability, _network, _secret])
def test_a_pod_that_asked_for_more_would_not_be_admitted(more: Callable[[Json], None]) -> None:
    pod = pod_of("DaemonSet", "gpushare-device-plugin")
    more(pod)
    assert asks_too_much(pod, openshift.constraints()) != set()


def test_the_schedulers_pods_keep_to_those_of_openshift_for_pods_that_are_not_root() -> None:
    """nonroot-v2, of the fields that differ: manifests of openshift/cluster-kube-apiserver-operator, 4.11 and newer."""
    nonroot = {
        **openshift.constraints(),
        **dict.fromkeys(("allowHostPID", "allowHostDirVolumePlugin", "readOnlyRootFilesystem"), False),
        "runAsUser": {"type": "MustRunAsNonRoot"},
        "volumes": ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"],
    }
    assert asks_too_much(pod_of("Deployment", "gpushare-scheduler"), nonroot) == set()


def test_each_account_may_use_one_of_them() -> None:
    for account, constraint in (("gpushare-device-plugin", "gpushare-device-plugin"), ("gpushare-scheduler", "nonroot-v2")):
        (rule,) = of("Role", f"{account}-scc")["rules"]
        assert (rule["verbs"], rule["resourceNames"], rule["apiGroups"]) == (["use"], [constraint], ["security.openshift.io"])
        assert of("RoleBinding", f"{account}-scc")["subjects"][0]["name"] == account
    assert of("Namespace", "gpushare-system")["metadata"]["labels"]["security.openshift.io/scc.podSecurityLabelSync"] == "false"
    assert foreign(MADE, "gpushare-system") is None


def test_other_clusters_have_none_of_it() -> None:
    made = in_cluster.objects(replace(VALUES, openshift=False))
    assert "openshift" not in str(made)
