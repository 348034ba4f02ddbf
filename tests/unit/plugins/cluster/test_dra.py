# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is read of dynamic resource allocation in the versions of its API; tests/others reads it from a real API server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.dra import drivers_on, facts

from unit.fakes.plugins.in_cluster.kubectl import Answer, Fake, Json
from unit.fakes.plugins.preflight.operator_facts import NO_DRA, dra

UUID = "GPU-18a3e86f-4c0e-cd9f-59c3-55488c4b0c24"


def offer(driver: str, node: str | None = "gpu1", version: str = "v1", **attributes: str) -> Json:
    named = {key: {"string": value} for key, value in attributes.items()}
    device: Json = {"name": "gpu-0", "basic": {"attributes": named}} if version == "v1beta1" else {"name": "gpu-0", "attributes": named}
    return {
        "metadata": {"name": "x"},
        "spec": {"driver": driver, "devices": [device], **({"nodeName": node} if node else {"allNodes": True})},
    }


def claim(driver: str, *pods: str, node: str = "gpu1", **result: bool) -> Json:
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    allocation = {"devices": {"results": [{"driver": driver, **result}]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    users = [{"resource": "pods", "name": name} for name in pods] + [{"resource": "podgroups", "name": "g"}]
    return {"metadata": {"name": "c", "namespace": "default"}, "status": {"allocation": allocation, "reservedFor": users}}


def read(slices: list[Json], claims: Sequence[Json] = (), versions: tuple[str, ...] = ("v1",)) -> Json:
    version = versions[0]
    answers: dict[str, Answer] = {
        f"get --raw /apis/resource.k8s.io/{version}/resourceslices": slices,
        f"get --raw /apis/resource.k8s.io/{version}/resourceclaims": list(claims),
        "get --raw /apis/resource.k8s.io": {"versions": [{"version": one} for one in versions]},
    }
    found: Json = facts(Fake(answers).kubectl)
    return found


@pytest.mark.parametrize("versions", [("v1", "v1beta2", "v1beta1"), ("v1beta2", "v1beta1"), ("v1beta1",)])
def test_each_version_of_the_api_is_read(versions: tuple[str, ...]) -> None:
    slices = [offer("gpu.nvidia.com", version=versions[0]), offer("gpu.example.org", "gpu2", versions[0], id=UUID)]
    found = read(slices, [claim("gpu.nvidia.com", "train")], versions)
    assert found == {
        "published": [{"node": "gpu1", "driver": "gpu.nvidia.com"}, {"node": "gpu2", "driver": "gpu.example.org"}],
        "holders": [{"node": "gpu1", "pod": "default/train", "driver": "gpu.nvidia.com"}],
    }
    assert drivers_on(found["published"], "gpu2") == ["gpu.example.org"]


@pytest.mark.parametrize("versions", [(), ("v1alpha2",), ("v1alpha3",)])
def test_a_cluster_without_the_api_has_none(versions: tuple[str, ...]) -> None:
    assert read([offer("gpu.nvidia.com")], versions=(*versions, *[""] * (not versions))) == NO_DRA


def test_a_group_that_is_not_served_is_no_failure() -> None:
    def none() -> Exception:
        return RuntimeError("Error from server (NotFound): the server could not find the requested resource")

    assert facts(Fake({"get --raw /apis/resource.k8s.io": none}).kubectl) == NO_DRA


@pytest.mark.parametrize(
    "one",
    [
        offer("compute-domain.nvidia.com", type="channel"),
        offer("gpu.amd.com", productName="MI300X", uuid="GPU-1"),
        # Of no single node.
        offer("gpu.nvidia.com", None),
        {"metadata": {"name": "x"}, "spec": {"driver": "other", "nodeName": "gpu1"}},
    ],
)
def test_what_offers_none_of_a_nodes_gpus(one: Json) -> None:
    assert read([one]) == NO_DRA


@pytest.mark.parametrize(
    "one", [offer("gpu.nvidia.com", type="gpu"), offer("x.org", uuid=UUID), offer("x.org", a=UUID.replace("GPU", "MIG"))]
)
def test_what_offers_them(one: Json) -> None:
    driver = one["spec"]["driver"]
    # Each GPU may have a slice of its own.
    assert read([one, one]) == dra("gpu1", driver=driver)


def test_who_has_some() -> None:
    claims = [
        claim("gpu.nvidia.com", "a", "b", node="gpu2"),
        claim("gpu.nvidia.com", "dcgm", adminAccess=True),
        claim("compute-domain.nvidia.com", "imex"),
        {"metadata": {"name": "pending", "namespace": "default"}},
        claim("hami-core-gpu.project-hami.io", "h"),
    ]
    assert [(one["node"], one["pod"]) for one in read([], claims)["holders"]] == [
        ("gpu1", "default/h"),
        ("gpu2", "default/a"),
        ("gpu2", "default/b"),
    ]
