# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""cards.py: specifications of cards, the state file and the commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.nvml import cards

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
    found = cards.cards_from_spec(spec, "gpu1", "seed")
    assert [(card.name, card.memory_mib) for card in found] == expected
    assert [card.minor for card in found] == list(range(len(expected)))
    assert len({card.uuid for card in found} | {card.pci for card in found}) == 2 * len(found)
    assert all(UUID.fullmatch(card.uuid) for card in found)


@pytest.mark.parametrize("spec", ["", "0x16", "2x", "16G", "x16", "16+", "-16", "33x16", "16+32x16", "16:Voodoo 2"])
def test_bad_specifications_are_rejected(spec: str) -> None:
    with pytest.raises(cards.CardsError):
        cards.cards_from_spec(spec, "gpu1", "seed")


def test_uuids_depend_on_seed_node_and_index_only() -> None:
    def uuids(spec: str, node: str, seed: str) -> list[str]:
        return [card.uuid for card in cards.cards_from_spec(spec, node, seed)]

    assert uuids("2x16", "gpu1", "a") == uuids("16+24", "gpu1", "a")
    everything = uuids("2x16", "gpu1", "a") + uuids("2x16", "gpu2", "a") + uuids("2x16", "gpu1", "b")
    assert len(set(everything)) == 6


TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40).map(str.strip).filter(bool)


@given(
    spec=st.sampled_from(["none", "16", "2x16+24", "16x192", "8+15360MiB"]),
    driver=st.sampled_from(["ok", "gone", "mismatch"]),
    processes=st.lists(st.builds(cards.Process, st.integers(1, 2**22), st.integers(1, 9), TEXT), max_size=5),
    limits=st.sampled_from(cards.MEMORY_LIMITS),
    xids=st.lists(st.builds(cards.Xid, st.integers(1, 2**63), st.just("GPU-1"), st.integers(1, 200)), max_size=5),
)
def test_what_is_written_is_read(spec: str, driver: str, processes: list[cards.Process], limits: str, xids: list[cards.Xid]) -> None:
    state = cards.State(tuple(cards.cards_from_spec(spec, "gpu1", "s")), driver, "384.81", 9000, limits, tuple(xids))
    if state.cards:
        state = cards.with_card(state, 0, processes=tuple(processes), health="lost", numa_node=-1)
    assert cards.parse(cards.render(state)) == state


def test_the_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gpus.state"
    cards.write_state(path, cards.State())
    with path.open() as before:
        cards.write_state(path, cards.State(driver="gone"))
        assert "driver=ok" in before.read()
    assert cards.read_state(path).driver == "gone"
    assert [entry.name for entry in path.parent.iterdir()] == ["gpus.state"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_impossible_states_are_rejected() -> None:
    (card,) = cards.cards_from_spec("16", "gpu1", "s")
    state = cards.State(cards=(card,))
    with pytest.raises(cards.CardsError, match="16384 MiB, 16640 MiB would be in use"):
        cards.with_card(state, 0, used_mib=16384)
    with pytest.raises(cards.CardsError, match="card 1 does not exist; there are 1"):
        cards.with_xid(state, 1, 79)
    with pytest.raises(cards.CardsError, match="same minor"):
        cards.State(cards=(card, *cards.cards_from_spec("16", "gpu2", "s")))
    with pytest.raises(cards.CardsError, match="expected one line"):
        cards.with_process(state, 0, 1, 10, "two\nlines")


def test_xid_sequences_grow_even_if_the_clock_does_not() -> None:
    state = cards.State(cards=tuple(cards.cards_from_spec("16", "gpu1", "s")))
    future = cards.Xid(2**63 - 10, state.cards[0].uuid, 1)
    state = cards.State(cards=state.cards, xids=(future,))
    assert cards.with_xid(state, 0, 79).xids[-1].sequence == future.sequence + 1


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpus.state"

    def run(*arguments: str) -> int:
        return cards.main([*arguments, str(path)])

    assert run("write", "--cards", "2x16", "--node", "gpu1", "--minors", "4,2") == 0
    assert run("lost", "1") == 0
    assert run("set", "0", "compute_mode", "3") == 0
    assert run("list") == 0
    uuids = [card.uuid for card in cards.cards_from_spec("2x16", "gpu1", "gpushare")]
    assert capsys.readouterr().out.splitlines() == [
        f"0\t4\t{uuids[0]}\t16384\tok\tTesla T4",
        f"1\t2\t{uuids[1]}\t16384\tlost\tTesla T4",
    ]
    assert cards.read_state(path).cards[0].compute_mode == 3
    before = path.read_bytes()
    assert run("xid", "2", "79") == 1
    assert run("set", "0", "colour", "red") == 1
    assert path.read_bytes() == before
    assert "card 2 does not exist; there are 2, counted from 0" in capsys.readouterr().err
