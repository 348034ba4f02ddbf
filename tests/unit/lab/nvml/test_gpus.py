# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpus.py: specifications of GPUs, the state file and the commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.nvml import gpus

UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("2x16", [("Tesla T4", 16384), ("Tesla T4", 16384)]),
        ("16+24", [("Tesla T4", 16384), ("NVIDIA A30", 24576)]),
        ("1x15360MiB", [("Tesla T4", 15360)]),
        ("40+2x80GiB", [("NVIDIA A100-SXM4-40GB", 40960)] + [("NVIDIA A100-SXM4-80GB", 81920)] * 2),
        ("24:NVIDIA A10+141", [("NVIDIA A10", 24576), ("NVIDIA H200", 144384)]),
        ("none", []),
    ],
)
def test_specifications(spec: str, expected: list[tuple[str, int]]) -> None:
    found = gpus.gpus_from_spec(spec, "gpu1", "seed")
    assert [(gpu.name, gpu.memory_mib) for gpu in found] == expected
    assert [gpu.minor for gpu in found] == list(range(len(expected)))
    assert len({gpu.uuid for gpu in found} | {gpu.pci for gpu in found}) == 2 * len(found)
    assert all(UUID.fullmatch(gpu.uuid) for gpu in found)


@pytest.mark.parametrize("spec", ["", "0x16", "2x", "16G", "x16", "16+", "-16", "33x16", "16+32x16", "16:Voodoo 2"])
def test_bad_specifications_are_rejected(spec: str) -> None:
    with pytest.raises(gpus.GpusError):
        gpus.gpus_from_spec(spec, "gpu1", "seed")


def test_uuids_depend_on_seed_node_and_index_only() -> None:
    def uuids(spec: str, node: str, seed: str) -> list[str]:
        return [gpu.uuid for gpu in gpus.gpus_from_spec(spec, node, seed)]

    assert uuids("2x16", "gpu1", "a") == uuids("16+24", "gpu1", "a")
    everything = uuids("2x16", "gpu1", "a") + uuids("2x16", "gpu2", "a") + uuids("2x16", "gpu1", "b")
    assert len(set(everything)) == 6


TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40).map(str.strip).filter(bool)


@given(
    spec=st.sampled_from(["none", "16", "2x16+24", "16x192", "8+15360MiB"]),
    driver=st.sampled_from(["ok", "gone", "mismatch"]),
    processes=st.lists(st.builds(gpus.Process, st.integers(1, 2**22), st.integers(1, 9), TEXT), max_size=5),
    limits=st.sampled_from(gpus.MEMORY_LIMITS),
    xids=st.lists(st.builds(gpus.Xid, st.integers(1, 2**63), st.just("GPU-1"), st.integers(1, 200)), max_size=5),
)
def test_what_is_written_is_read(spec: str, driver: str, processes: list[gpus.Process], limits: str, xids: list[gpus.Xid]) -> None:
    state = gpus.State(tuple(gpus.gpus_from_spec(spec, "gpu1", "s")), driver, "384.81", 9000, limits, tuple(xids))
    if state.gpus:
        state = gpus.with_gpu(state, 0, processes=tuple(processes), health="lost", numa_node=-1)
    assert gpus.parse(gpus.render(state)) == state


def test_the_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gpus.state"
    gpus.write_state(path, gpus.State())
    with path.open() as before:
        gpus.write_state(path, gpus.State(driver="gone"))
        assert "driver=ok" in before.read()
    assert gpus.read_state(path).driver == "gone"
    assert [entry.name for entry in path.parent.iterdir()] == ["gpus.state"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_impossible_states_are_rejected() -> None:
    (gpu,) = gpus.gpus_from_spec("16", "gpu1", "s")
    state = gpus.State(gpus=(gpu,))
    with pytest.raises(gpus.GpusError, match="16384 MiB, 16640 MiB would be in use"):
        gpus.with_gpu(state, 0, used_mib=16384)
    with pytest.raises(gpus.GpusError, match="GPU 1 does not exist; there are 1"):
        gpus.with_xid(state, 1, 79)
    with pytest.raises(gpus.GpusError, match="same minor"):
        gpus.State(gpus=(gpu, *gpus.gpus_from_spec("16", "gpu2", "s")))
    with pytest.raises(gpus.GpusError, match="expected one line"):
        gpus.with_process(state, 0, 1, 10, "two\nlines")


def test_xid_sequences_grow_even_if_the_clock_does_not() -> None:
    state = gpus.State(gpus=tuple(gpus.gpus_from_spec("16", "gpu1", "s")))
    future = gpus.Xid(2**63 - 10, state.gpus[0].uuid, 1)
    state = gpus.State(gpus=state.gpus, xids=(future,))
    assert gpus.with_xid(state, 0, 79).xids[-1].sequence == future.sequence + 1


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpus.state"

    def run(*arguments: str) -> int:
        return gpus.main([*arguments, str(path)])

    assert run("write", "--gpus", "2x16", "--node", "gpu1", "--minors", "4,2") == 0
    assert run("lost", "1") == 0
    assert run("set", "0", "compute_mode", "3") == 0
    assert run("list") == 0
    uuids = [gpu.uuid for gpu in gpus.gpus_from_spec("2x16", "gpu1", "gpushare")]
    assert capsys.readouterr().out.splitlines() == [f"0\t4\t{uuids[0]}\t16384\tok\tTesla T4", f"1\t2\t{uuids[1]}\t16384\tlost\tTesla T4"]
    assert gpus.read_state(path).gpus[0].compute_mode == 3
    before = path.read_bytes()
    assert run("xid", "2", "79") == 1
    assert run("set", "0", "colour", "red") == 1
    assert path.read_bytes() == before
    assert "GPU 2 does not exist; there are 2, counted from 0" in capsys.readouterr().err
