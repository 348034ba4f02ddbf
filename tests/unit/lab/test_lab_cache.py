# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Cache entries are complete or absent, and a changed recipe is another entry."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_lab.cache import Cache, recipe_hash, sources_recipe

recipes = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.binary(max_size=5), max_size=4)


@given(recipes, recipes)
def test_recipes_that_differ_have_different_hashes(first: dict[str, str | bytes], second: dict[str, str | bytes]) -> None:
    def as_bytes(recipe: dict[str, str | bytes]) -> dict[str, bytes]:
        return {key: value.encode() if isinstance(value, str) else value for key, value in recipe.items()}

    assert (recipe_hash(first) == recipe_hash(second)) == (as_bytes(first) == as_bytes(second))


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def build(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("content")

    cache = Cache(tmp_path)
    first, second = (cache.entry("thing", "1", {"a": "b"}, build) for _ in range(2))
    assert first == second
    assert (first / "file").read_text() == "content"
    assert len(made) == 1
    assert made[0] != first
    assert cache.entry("thing", "1", {"a": "c"}, build) != first


def test_what_is_there_does_not_wait_for_others_that_build(tmp_path: Path) -> None:
    """Seen: a lab that had all it needed waited ten minutes for another one's build of another version."""
    cache, steps = Cache(tmp_path), list[str]()
    there = cache.entry("thing", "1", {}, lambda folder: steps.append("first"), turns="go")
    with cache.turn("go"):
        assert cache.entry("thing", "1", {}, lambda folder: steps.append("again"), turns="go") == there
        other = threading.Thread(target=lambda: cache.entry("thing", "2", {}, lambda folder: steps.append("second"), turns="go"))
        other.start()
        other.join(0.5)
        assert steps == ["first"]
    other.join(60)
    assert steps == ["first", "second"]
    assert [name.partition("-")[0] for name in cache.made] == ["thing", "thing"]


def test_a_failed_build_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError, match="no network"):
        cache.entry("thing", "1", {}, fail)
    assert list(tmp_path.glob("thing*")) == []
    assert cache.entry("thing", "1", {}, lambda folder: None).is_dir()


def test_what_a_killed_build_left_is_removed_once_nothing_is_mounted_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    unmounted: list[Path] = []
    monkeypatch.setattr("gpushare_lab.cache.unmount_below", lambda folder: unmounted.append(folder) if (folder / "half").exists() else None)
    final = cache.entry("thing", "1", {}, lambda folder: None)
    leftover = tmp_path / f"{final.name}.tmp12345"
    final.rename(leftover)
    (leftover / "half").write_text("")
    cache.entry("thing", "1", {}, lambda folder: None)
    assert list(tmp_path.glob("thing*")) == [final]
    assert list(final.iterdir()) == []
    assert unmounted == [leftover]


def test_sources_are_their_content_and_whether_they_can_be_run(tmp_path: Path) -> None:
    script = tmp_path / "sub/run"
    script.parent.mkdir()
    script.write_text("one")
    before = recipe_hash(sources_recipe(tmp_path))
    os.chmod(script, 0o755)
    executable = recipe_hash(sources_recipe(tmp_path))
    script.write_text("two")
    assert len({before, executable, recipe_hash(sources_recipe(tmp_path))}) == 3
