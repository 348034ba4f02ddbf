# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The samples that `make demo` does not show, applied as they are."""

from __future__ import annotations

from functools import partial

import pytest
import yaml

from e2e.api import Api, Json
from e2e.checks import check_devices
from e2e.clients import forbidden, somebody
from e2e.cluster import MEMORY, SAMPLES, Cluster, CommandError, allocation
from e2e.manifests import pod

TENANT = "team-a"


def apply(cluster: Cluster, name: str) -> None:
    cluster.kubectl("apply", "-f", str(SAMPLES / name))


def test_memory_on_two_gpus(installed: Cluster) -> None:
    apply(installed, "05-two-gpus.yaml")
    (found,) = installed.until_running("two-gpus")
    assert allocation(found) == {0: 4, 1: 4}
    assert check_devices(installed, [found]) == []


def test_a_whole_gpu(installed: Cluster) -> None:
    apply(installed, "06-whole-gpu.yaml")
    (found,) = installed.until_running("whole-gpu")
    node = found["spec"]["nodeName"]
    (index,) = allocation(found)
    assert check_devices(installed, [found]) == []
    installed.create(pod("beside", memory=1, node=node))
    (beside,) = installed.until_running("beside")
    assert set(allocation(beside)) != {index}


def test_neighbours(installed: Cluster) -> None:
    apply(installed, "07-neighbours.yaml")
    encoder, decoder = sorted(installed.until_running("encoder", "decoder"), key=lambda one: str(one["metadata"]["name"]), reverse=True)
    assert (encoder["spec"]["nodeName"], set(allocation(encoder))) == (decoder["spec"]["nodeName"], set(allocation(decoder)))


def test_a_job_runs_its_tasks_two_at_a_time(installed: Cluster) -> None:
    apply(installed, "12-job.yaml")
    installed.kubectl("wait", "--for=condition=Complete", "job/batch", "--timeout=120s", seconds=150)
    tasks = [found for found in installed.pods() if found["metadata"].get("labels", {}).get("job-name") == "batch"]
    assert [found["status"]["phase"] for found in tasks].count("Succeeded") == 4
    assert {sum(allocation(found).values()) for found in tasks if found["status"]["phase"] == "Succeeded"} == {2}
    installed.kubectl("delete", "job", "batch", "--wait=true", seconds=120)


def test_a_manifest_of_the_original_runs_unchanged(installed: Cluster) -> None:
    apply(installed, "13-original.yaml")
    installed.kubectl("wait", "--for=condition=Available", "deployment/original", "--timeout=120s", seconds=150)
    (found,) = [one for one in installed.pods() if one["metadata"].get("labels", {}).get("app") == "original"]
    assert list(allocation(found).values()) == [1]
    assert check_devices(installed, [found]) == []


@pytest.fixture
def tenant(installed: Cluster) -> Api:
    """A user with the role of the sample, in its namespace."""
    apply(installed, "09-tenant.yaml")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "gpu-user", "namespace": TENANT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gpu-user"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "anna"}],
    }
    installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(binding))
    installed.until("the namespace has its ServiceAccount", lambda: installed.kubectl("get", "sa", "default", "-n", TENANT), 60)
    return somebody(installed, "anna")


def is_up(cluster: Cluster, name: str) -> bool:
    return bool(cluster.pod(name, TENANT)["status"].get("phase") == "Running")


def test_a_tenant_has_its_quota_and_no_more(installed: Cluster, tenant: Api) -> None:
    path = f"/api/v1/namespaces/{TENANT}/pods"

    def create(name: str, memory: int | None = None, gpus: int | None = None) -> Json:
        manifest = pod(name, memory=memory, gpus=gpus)
        manifest["metadata"]["namespace"] = TENANT
        return tenant.create(path, manifest)

    create("fits", memory=6)
    # The LimitRange has a maximum, which is the default of each container where it has no other one.
    create("plain")
    for name, units in (("fits", "6"), ("plain", "0")):
        installed.until(f"{name} runs", partial(is_up, installed, name), 60)
        assert installed.pod(name, TENANT)["spec"]["containers"][0]["resources"]["limits"] == {MEMORY: units}
    assert "exceeded quota: gpu" in forbidden(lambda: create("second", memory=3))
    assert f"maximum {MEMORY} usage per Container is 6" in forbidden(lambda: create("large", memory=7))
    assert "exceeded quota: gpu" in forbidden(lambda: create("whole", gpus=1))
    assert "placed by the scheduler" in forbidden(lambda: tenant.create(path, named_node("around", "gpu1")))
    assert "nodes" in forbidden(lambda: tenant.items("/api/v1/nodes"))
    assert [found["metadata"]["name"] for found in tenant.items(path)] == ["fits", "plain"]
    with pytest.raises(CommandError, match="not found"):
        installed.kubectl("get", "pod", "around", "-n", TENANT)
    installed.kubectl("delete", "namespace", TENANT, "--wait=true", seconds=120)


def named_node(name: str, node: str) -> Json:
    """A pod that names its node itself."""
    manifest = pod(name, memory=1)
    manifest["metadata"]["namespace"] = TENANT
    manifest["spec"]["nodeName"] = node
    return manifest
