# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The machine as it is found: folders of the driver, control groups, namespaces, the pack."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpu_proof import groups, machine
from gpu_proof.__main__ import modules, named, tools, unfit
from gpu_proof.context import Context
from gpu_proof.findings import NotPossible
from gpu_proof.pack import PackError, sealed
from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses

V2 = "30 24 0:26 / /sys/fs/cgroup {options},nosuid - cgroup2 cgroup2 rw\n"
V1 = "31 24 0:27 / /sys/fs/cgroup/memory {options},nosuid - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("mounts", "place"),
    [(V2.format(options="rw"), "/sys/fs/cgroup"), (V2.format(options="rw") + V1.format(options="rw"), "/sys/fs/cgroup/memory")],
)
def test_the_hierarchy_is_that_in_which_the_plugin_looks(tmp_path: Path, mounts: str, place: str) -> None:
    (tmp_path / "m").write_text(mounts)
    assert str(groups.hierarchy(tmp_path / "m")) == place


@pytest.mark.parametrize(("mounts", "why"), [("", "found no control groups"), (V2.format(options="ro"), "read-only")])
def test_without_groups_that_can_be_written_it_is_said(tmp_path: Path, mounts: str, why: str) -> None:
    (tmp_path / "m").write_text(mounts)
    with pytest.raises(NotPossible, match=why):
        groups.hierarchy(tmp_path / "m")


@pytest.mark.parametrize("driver", groups.DRIVERS)
def test_the_plugin_knows_the_pod_of_a_process_in_such_a_group(driver: str) -> None:
    with groups.pod_groups(1, driver, groups.hierarchy()) as (pod,):
        procs = pod.folder / "cgroup.procs"
        sleeper = subprocess.Popen(["sh", "-c", 'echo $$ > "$0" && echo ready && exec sleep 60', str(procs)], stdout=subprocess.PIPE)
        try:
            assert sleeper.stdout is not None
            assert sleeper.stdout.readline() == b"ready\n"
            known = HostProcesses().identify(sleeper.pid)
            assert known is not None
            assert known[1] == pod.uid
        finally:
            sleeper.kill()
            sleeper.wait()
    assert not pod.folder.exists()


def test_groups_that_cannot_be_made_are_not_possible(tmp_path: Path) -> None:
    (tmp_path / "kubepods").write_text("a file in their place")
    with pytest.raises(NotPossible, match="expected to make control groups"), groups.pod_groups(1, "cgroupfs", tmp_path):
        pytest.fail("it was made")


def test_a_library_that_ldso_does_not_find_is_found_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(machine, "_FOLDERS", (str(tmp_path / "absent"), str(tmp_path / "driver/lib64")))
    assert machine.library_folder() == ("", False)
    (tmp_path / "driver/lib64").mkdir(parents=True)
    (tmp_path / "driver/lib64" / machine.LIBRARY).touch()
    assert machine.library_folder() == (str(tmp_path / "driver/lib64"), False)
    (tmp_path / "driver/bin").mkdir()
    program = tmp_path / "driver/bin/nvidia-smi"
    program.touch(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert machine.program("nvidia-smi", str(tmp_path / "driver/lib64")) == str(program)
    assert machine.program("nvidia-other", str(tmp_path / "driver/lib64")) == ""


@pytest.mark.parametrize(("version", "has"), [("cuda = '12.8'", True), ("cuda = None", False), (None, True)])
def test_a_python_with_pytorch_for_cuda_is_found(tmp_path: Path, version: str | None, has: bool) -> None:
    python = tmp_path / "python"
    # The folder of its modules, without a virtual environment.
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert machine.torch_python([str(python)]) == ""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('it was imported')")
    if version:
        (tmp_path / "torch/version.py").write_text(version)
    assert machine.torch_python(["/nowhere/python", str(python)]) == (str(python) if has else "")


def test_a_pack_that_is_too_large_or_of_another_python_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/a.whl").write_bytes(b"x")
    assert "found no" in unfit(tmp_path)
    sealed(tmp_path)
    assert unfit(None) == ""
    kept = json.loads((tmp_path / "pack.json").read_text())
    assert list(kept["sha256"]) == ["wheels/a.whl"]
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / "pack.json").write_text(json.dumps({**kept, "python": mine}))
    assert unfit(tmp_path) == ""
    (tmp_path / "pack.json").write_text(json.dumps({**kept, "python": "3.99"}))
    assert "expected 3.99" in unfit(tmp_path)
    with (tmp_path / "wheels/b.whl").open("wb") as large:
        large.truncate(60 * 2**20)
    with pytest.raises(PackError, match="at most 56 MiB"):
        sealed(tmp_path)


def test_the_packs_wheels_and_programs_are_used(tmp_path: Path) -> None:
    pack, folder = tmp_path / "pack", tmp_path / "folder"
    (pack / "wheels").mkdir(parents=True)
    folder.mkdir()
    with zipfile.ZipFile(pack / "wheels/odd-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("odd_module/__init__.py", "VALUE = 7\n")
    (pack / "bin").mkdir()
    # A copy may have lost its mode.
    (pack / "bin/nvidia-ctk").write_text("#!/bin/sh\necho it\n")
    ctk, _ = tools(pack, folder)
    assert subprocess.run([ctk], capture_output=True, check=True).stdout == b"it\n"
    ours = "ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi"
    code = f"import odd_module, {ours} as smi; print(smi and odd_module.VALUE)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": ":".join(modules(pack, folder))}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "7\n", done.stderr


def test_the_context_goes_to_the_step_as_it_is(tmp_path: Path) -> None:
    made = Context(tmp_path, tmp_path / "out", library="/l", framework=("a", "b"), path=("/p",))
    assert Context.from_json(made.to_json()) == made


def test_the_report_has_the_models_name(tmp_path: Path) -> None:
    (tmp_path / "gpu-proof.json").write_text(json.dumps({"steps": [{"values": {"model": "NVIDIA H100 80GB HBM3"}}]}))
    assert named(tmp_path / "gpu-proof.json").name == "gpu-nvidia-h100-80gb-hbm3.json"
    (tmp_path / "gpu-proof.json").write_text(json.dumps({"steps": [{"values": {}}]}))
    assert named(tmp_path / "gpu-proof.json").name == "gpu-proof.json"
