# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The settings of a device plugin in the cluster as its pods have them, also those of gpushare 0.1."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.config_document import document
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.told import setting

OPTIONS = {"spec": {"containers": [{"name": "sidecar"}, {"args": ["--in-container", "--memory-unit=64MiB", "--driver-root="]}]}}


def annotated(text: object) -> dict[str, Any]:
    return {"metadata": {"annotations": {"gpushare.kubernetes/settings": text}}, **OPTIONS}


@pytest.mark.parametrize(
    ("pod", "unit"),
    [
        (annotated(document("X", {"memoryUnit": "MiB", "overuseGrace": 60})), "MiB"),
        (annotated(document("X", {"overuseGrace": 60})), ""),
        (annotated('memoryUnit: ["MiB"]\n'), ""),
        (annotated("memoryUnit: " + "[" * 100_000), ""),
        (annotated(None), "64MiB"),
        ({"metadata": {"annotations": None}, **OPTIONS}, "64MiB"),
        (OPTIONS, "64MiB"),
        ({"metadata": None, "spec": None}, ""),
        ({}, ""),
    ],
)
def test_the_unit_of_a_pod(pod: dict[str, Any], unit: str) -> None:
    assert setting(pod, "memoryUnit", "--memory-unit") == unit
