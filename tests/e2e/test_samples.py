# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/use/samples: what `make demo` shows holds."""

from __future__ import annotations

from e2e.checks import check_devices, check_environment, check_log_lists_its_gpu, check_readme, check_totals, check_unschedulable
from e2e.cluster import Cluster, allocation
from e2e.samples import DEPLOYMENT, NVIDIA_SMI, SHARING, TOO_LARGE, of_deployment, running_samples


def test_two_share_a_gpu_and_the_third_takes_another(samples: Cluster) -> None:
    first, second, third = ((pod["spec"]["nodeName"], allocation(pod)) for pod in map(samples.pod, SHARING))
    assert first == second == ("gpu1", {0: 6})
    assert third == ("gpu1", {1: 6})


def test_the_deployment_joins_the_fullest_gpu_with_room(samples: Cluster) -> None:
    pod = of_deployment(samples)
    assert pod is not None
    assert (pod["spec"]["nodeName"], allocation(pod)) == ("gpu1", {0: 1})


def test_every_container_has_the_gpu_of_its_annotation(samples: Cluster) -> None:
    pods = running_samples(samples)
    assert len(pods) == len(SHARING) + 1
    assert check_devices(samples, pods) == []
    assert check_environment(samples, pods) == []
    assert check_totals(samples) == []


def test_nvidia_smi_lists_one_gpu(samples: Cluster) -> None:
    pod = samples.pod(NVIDIA_SMI)
    assert "Driver Version" in samples.log(NVIDIA_SMI)
    assert check_log_lists_its_gpu(samples, pod) == []


def test_the_large_pod_is_told_why(samples: Cluster) -> None:
    assert check_unschedulable(samples, TOO_LARGE, "gpu2: needs 25 GiB on one GPU, its largest GPU has 24 (40 in total on 2 GPUs)") == []


def test_inspect_prints_what_the_readme_shows(samples: Cluster) -> None:
    assert check_readme(samples) == []


def test_details_name_every_pod(samples: Cluster) -> None:
    lines = [line.split() for line in samples.inspect("-d").splitlines()]
    rows = {fields[0]: fields[1:] for fields in lines if len(fields) == 4 and fields[1] == "default"}
    deployed = next(name for name in rows if name.startswith(DEPLOYMENT))
    assert rows == {
        "share-1": ["default", "6", "0"],
        "share-2": ["default", "6", "0"],
        "share-3": ["default", "0", "6"],
        deployed: ["default", "1", "0"],
    }
