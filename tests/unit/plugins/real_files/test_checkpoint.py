# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's records of devices of many releases, as json reads them, and as the installer and the device plugin do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubelet_checkpoint import holding, registered
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host

from gpushare_runtime.device_plugin.kubelet import checkpoint
from unit.fakes.plugins.fake_root import FakeRoot
from unit.fakes.plugins.real_files.corpus import Case, parameters

RECORD = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"


def ids(value: Any) -> set[str]:
    """Of a list, or of lists by NUMA node."""
    return {one for part in (value.values() if isinstance(value, dict) else [value]) for one in part}


@pytest.mark.parametrize("case", parameters("checkpoint"))
def test_a_record(tmp_path: Path, case: Case) -> None:
    (content,) = case.files(RECORD).values()
    root = FakeRoot(tmp_path)
    root.file(RECORD, content)
    host = Host(str(root))
    if case.is_rejected():
        with pytest.raises(checkpoint.CheckpointError) as caught:
            checkpoint.parse({}, content, ["aliyun.com/gpu-mem"])
        assert [words for words in case.says if words not in str(caught.value)] == [], caught.value
        assert (holding(host), registered(host)) == ({}, {})
        return
    data = json.loads(content)
    data = data.get("Data", data)
    entries = data["PodDeviceEntries"] or []
    resources = {entry["ResourceName"] for entry in entries}
    found = checkpoint.parse({}, content, resources)
    assert {tuple(key): set(entry.ids) for key, (_json, entry) in found.items()} == {
        (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]): ids(entry["DeviceIDs"]) for entry in entries
    }
    wrapped = "Data" in json.loads(content)
    assert {resource: set(pods) for resource, pods in holding(host).items()} == (
        {resource: {entry["PodUID"] for entry in entries if entry["ResourceName"] == resource} for resource in resources} if wrapped else {}
    )
    assert registered(host) == ({name: len(one or []) for name, one in (data["RegisteredDevices"] or {}).items()} if wrapped else {})
