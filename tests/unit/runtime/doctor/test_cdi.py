# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""CDI specs of the host, where the device plugin's unit uses them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_runtime.doctor.cdi import judge_cdi
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import PLUGIN, DaemonUnit
from unit.fakes.runtime.doctor.fake_host import FakeHost, settings
from unit.fakes.runtime.pods import inventory

FOLDER = "/etc/cdi"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.install(PLUGIN)
    gpus = json.loads(inventory(16, 16).to_json())
    host.file("/var/lib/gpushare-device-plugin/held.json", json.dumps({"v": 1, "gpus": gpus}))
    return host


def unit(host: FakeHost, options: str) -> DaemonUnit:
    return replace(host.unit(PLUGIN), settings=settings(PLUGIN).replace("--kubelet-root", f"{options} --kubelet-root"))


def spec(host: FakeHost, *indexes: int, folder: str = FOLDER) -> None:
    for index in indexes:
        host.file(f"/dev/nvidia{index}")
    nodes = {index: {"deviceNodes": [{"path": str(host.at(f"/dev/nvidia{index}"))}]} for index in indexes}
    devices = [{"name": f"GPU-{index:08d}", "containerEdits": nodes[index]} for index in indexes]
    host.file(f"{folder}/nvidia.yaml", json.dumps({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}))


def judged(host: FakeHost, options: str = "--device-strategy cdi") -> list[str]:
    found = Findings()
    judge_cdi(found, host, unit(host, options))
    return [f"{one.check}: {one.found}" for one in found.findings]


def test_specs_that_name_every_gpu(host: FakeHost) -> None:
    spec(host, 0, 1)
    assert judged(host) == []


def test_a_gpu_without_a_spec(host: FakeHost) -> None:
    spec(host, 0)
    assert len(judged(host)) == 1
    assert judged(host)[0].startswith("cdi_stale: no CDI spec in ")
    assert "names nvidia.com/gpu=GPU-00000001" in judged(host)[0]


def test_files_that_are_gone(host: FakeHost) -> None:
    spec(host, 0, 1)
    host.at("/dev/nvidia1").unlink()
    assert f"is stale, the host has no {host.at('/dev/nvidia1')}" in judged(host)[0]


def test_the_folders_of_the_unit(host: FakeHost) -> None:
    spec(host, 0, 1, folder="/srv/specs")
    assert judged(host) != []
    assert judged(host, "--device-strategy cdi --cdi-spec-dir /none --cdi-spec-dir /srv/specs") == []


@pytest.mark.parametrize("options", ["--device-strategy envvar", "--device-strategy volume-mounts", "--x y"])
def test_other_strategies_need_no_spec(host: FakeHost, options: str) -> None:
    assert judged(host, options) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpus": 3}', '{"gpus": {"v": 9}}', "[" * 100_000])
def test_gpus_that_nobody_has_recorded(host: FakeHost, text: str) -> None:
    host.file("/var/lib/gpushare-device-plugin/held.json", text)
    assert judged(host) == []


def test_two_specs_of_one_folder_that_name_the_same(host: FakeHost) -> None:
    """The toolkit's own unit writes nvidia.yaml again, so the other one goes."""
    spec(host, 0, 1)
    host.file(f"{FOLDER}/a-tool.json", host.at(f"{FOLDER}/nvidia.yaml").read_bytes())
    found = Findings()
    judge_cdi(found, host, unit(host, "--device-strategy cdi"))
    ((one,), first, second) = (found.findings, host.at(f"{FOLDER}/a-tool.json"), host.at(f"{FOLDER}/nvidia.yaml"))
    assert (one.check, one.severity) == ("cdi_twice", "error")
    assert f"{first} and {second}" in one.found
    assert one.cure.startswith(f"rm {first};")
    found = Findings()
    judge_cdi(found, host, unit(host, "--device-strategy volume-mounts"))
    assert [(one.check, one.severity) for one in found.findings] == [("cdi_twice", "warning")]


def test_a_spec_of_a_later_folder_that_names_the_same_wins(host: FakeHost) -> None:
    spec(host, 0, 1)
    spec(host, 0, 1, folder="/var/run/cdi")
    assert judged(host) == []
