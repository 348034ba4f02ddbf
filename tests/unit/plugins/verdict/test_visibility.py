# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device strategy of a node against the inventory's, and what a container sees that sets NVIDIA_VISIBLE_DEVICES=all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import VerifyFindings
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.visibility import judge_visibility, needs_no_runtime

from unit.fakes.plugins.verdict.evidence import gpu_host, node

Json = dict[str, Any]
CAPABLE = {"kubelet": "", "runtime": ""}
ASKED_BY_ENVIRONMENT = {"environment": True, "mounts": True, "problem": "", "no_cgroups": False}


def judged(published: str | None = "volume-mounts", asked: str = "auto", *, default: str = "nvidia", **facts: Any) -> list[str]:
    seen = gpu_host()
    seen["places"]["device_strategy"] = asked
    seen["gpu"]["container_runtime"]["running_default"] = default
    seen["gpu"]["strategy"].update({"now": published or "", **facts})
    in_api = node()
    annotations = in_api["metadata"]["annotations"]
    gpus = json.loads(annotations["gpushare/gpus"])
    gpus.pop("strategy", None)
    annotations["gpushare/gpus"] = json.dumps(gpus | ({"strategy": published} if published is not None else {}))
    found = VerifyFindings("gpu1")
    judge_visibility(found, seen, in_api)
    return [f"{one.severity} {one.check}: {one.found}; {one.expected}" for one in found.list]


def test_a_node_that_is_as_asked() -> None:
    assert judged() == []
    assert judged("cdi", cdi=CAPABLE, default="runc") == []
    assert judged("cdi", "cdi", cdi=CAPABLE) == []


@pytest.mark.parametrize(
    ("published", "asked", "facts", "finding"),
    [
        ("envvar", "volume-mounts", {}, "error strategy_wrong: device strategy envvar; volume-mounts"),
        ("envvar", "auto", {}, "error strategy_wrong: device strategy envvar; volume-mounts, which auto means on this host"),
        (
            "volume-mounts",
            "auto",
            {"cdi": CAPABLE},
            "error strategy_wrong: device strategy volume-mounts; cdi, which auto means on this host",
        ),
        (None, "envvar", {}, "error strategy_wrong: a device plugin that publishes no device strategy; envvar"),
        (
            "volume-mounts",
            "auto",
            {"cdi": CAPABLE, "holders": ["a", "b"]},
            "note strategy_kept: device strategy volume-mounts, which the node keeps while 2 pods have GPUs by it; cdi",
        ),
    ],
)
def test_the_published_strategy(published: str | None, asked: str, facts: Json, finding: str) -> None:
    assert finding in judged(published, asked, **facts)


@pytest.mark.parametrize(
    ("strategy", "default", "toolkit", "codes"),
    [
        ("envvar", "nvidia", ASKED_BY_ENVIRONMENT, ["note gpus_visible"]),
        ("envvar", "nvidia", {"environment": False, "mounts": True, "problem": "", "no_cgroups": False}, ["error environment_ignored"]),
        ("volume-mounts", "nvidia", ASKED_BY_ENVIRONMENT, ["error gpus_visible"]),
        ("volume-mounts", "nvidia", {"environment": False, "mounts": False, "problem": "", "no_cgroups": False}, ["error mounts_ignored"]),
        ("cdi", "nvidia", ASKED_BY_ENVIRONMENT, ["error gpus_visible"]),
        ("cdi", "nvidia", {"environment": False, "mounts": False, "problem": "", "no_cgroups": False}, []),
        ("cdi", "runc", ASKED_BY_ENVIRONMENT, []),
    ],
)
def test_what_an_image_with_all_sees(strategy: str, default: str, toolkit: Json, codes: list[str]) -> None:
    found = judged(strategy, strategy, default=default, toolkit=toolkit, cdi=CAPABLE)
    assert [line.partition(":")[0] for line in found] == codes


def test_a_host_without_a_device_plugin_or_a_node_is_judged_elsewhere() -> None:
    seen = gpu_host()
    seen["gpu"]["strategy"]["now"] = ""
    found = VerifyFindings("gpu1")
    judge_visibility(found, seen, None)
    judge_visibility(found, seen, {"metadata": {"annotations": {}}})
    judge_visibility(found, seen, {"metadata": {"annotations": {"gpushare/gpus": "{"}}})
    assert found.list == []


@pytest.mark.parametrize(
    ("default", "now", "answer"),
    [("auto", "cdi", True), ("auto", "envvar", False), ("nvidia", "cdi", False), ("unchanged", "envvar", True)],
)
def test_where_the_default_runtime_does_not_matter(default: str, now: str, answer: bool) -> None:
    assert needs_no_runtime({"strategy": {"now": now}}, default) is answer
