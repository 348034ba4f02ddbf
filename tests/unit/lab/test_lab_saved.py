# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Saved states and the layers of nodes: what is kept, what is shared, what goes, and what a killed command leaves."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_lab import nodes, overlay, saved, state
from gpushare_lab.cluster import stale_pods
from gpushare_lab.overlay import FileSystem, mount_options, mounts_below
from gpushare_lab.process import LabError
from gpushare_lab.state import Instance

LAB = Instance("one", "10.231.0.0/24", "1.36.3", True, {"gpu1": "16"})


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance that was written down and has no container."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state.save(LAB)
    return LAB


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> dict[Path, str]:
    """The mounts that were asked for, none of which is made."""
    mounts: dict[Path, str] = {}
    monkeypatch.setattr(overlay, "is_mounted", mounts.__contains__)
    monkeypatch.setattr(overlay, "_mount", lambda root, options: mounts.setdefault(root, os.fsdecode(options)))
    return mounts


def made_node(instance: Instance, name: str, *layers: Path) -> FileSystem:
    files = nodes.file_system(instance, name)
    files.describe(layers, "recipe")
    files.upper.mkdir()
    return files


def made_state(instance: Instance, name: str, *layers: Path, **fields: str) -> Path:
    """A complete state of cp1 as `save` writes it."""
    folder = instance.folder / "saved" / name
    (folder / "nodes/cp1").mkdir(parents=True)
    FileSystem(folder / "nodes/cp1").describe(layers, "recipe")
    content = {"version": 1, "recipe": nodes.made_by(), "kubernetes": "1.36.3", "made": "2026-01-01T00:00:00Z", "nodes": ["cp1"], **fields}
    (folder / "state.json").write_text(json.dumps(content))
    return folder


def unfinished(instance: Instance, command: str, name: str) -> Path:
    marker = instance.folder / "unfinished.json"
    marker.write_text(json.dumps({"command": command, "state": name}))
    return marker


@given(st.lists(st.text(st.sampled_from("ab:,\\"), min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_path_with_a_separator_stays_one_path(names: list[str]) -> None:
    text = os.fsdecode(mount_options([Path(f"/{name}") for name in names], Path("/u,p"), Path("/w")))
    # As the kernel reads it: options end at a comma and layers at a colon that has no backslash before it.
    plain = text.replace("\\\\", "\0").replace("\\:", "\1").replace("\\,", "\2")
    options = dict(option.split("=", 1) for option in plain.split(","))
    found = [layer.replace("\0", "\\").replace("\1", ":").replace("\2", ",") for layer in options["lowerdir"].split(":")]
    assert found == [f"/{name}" for name in names]
    assert options["upperdir"].replace("\2", ",") == "/u,p"


def test_more_layers_than_a_mount_can_name_are_rejected_in_words() -> None:
    with pytest.raises(LabError, match="a node has 99 layers"):
        mount_options([Path(f"/{'x' * 60}/{number}") for number in range(99)], Path("/u"), Path("/w"))


def test_mounts_are_found_by_folder_the_innermost_first() -> None:
    lines = [f"36 35 98:0 / {point} rw - ext4 /dev/sda rw" for point in ("/", "/a", r"/a\040b/root", r"/a\040b/root/proc", "/ab/root")]
    assert mounts_below(Path("/a b"), "\n".join(lines)) == [Path("/a b/root/proc"), Path("/a b/root")]


def test_what_a_node_wrote_is_its_uppermost_layer_after_a_freeze(lab: Instance, mounted: dict[Path, str], tmp_path: Path) -> None:
    base, layer = tmp_path / "base", lab.folder / "layers/bare.0/gpu1"
    base.mkdir()
    files = made_node(lab, "gpu1", base)
    (files.upper / "file").write_text("written")
    files.freeze(layer)
    files.mount()
    assert (layer / "file").read_text() == "written"
    assert list(files.upper.iterdir()) == []
    assert f"lowerdir={layer}:{base}," in mounted[files.root]
    assert files.recipe == "recipe"


def test_a_freeze_that_was_killed_before_it_moved_anything_is_finished_by_the_next_mount(
    lab: Instance, mounted: dict[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = lab.folder / "layers/bare.0/gpu1"
    files = made_node(lab, "gpu1", tmp_path)
    (files.upper / "file").write_text("written")
    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", _killed_at(layer, Path.rename))
        with pytest.raises(KeyboardInterrupt):
            files.freeze(layer)
    files.mount()
    assert (layer / "file").read_text() == "written"
    assert f"lowerdir={layer}:{tmp_path}," in mounted[files.root]


def _killed_at(target: Path, real):  # type: ignore[no-untyped-def]
    def rename(self: Path, to: Path) -> Path:
        if to == target:
            raise KeyboardInterrupt
        return real(self, to)  # type: ignore[no-any-return]

    return rename


def test_a_file_system_whose_layer_is_gone_is_not_mounted(lab: Instance, mounted: dict[Path, str], tmp_path: Path) -> None:
    files = made_node(lab, "gpu1", tmp_path, tmp_path / "gone")
    with pytest.raises(LabError, match=r"lacks .*/gone"):
        files.mount()
    assert mounted == {}


def test_a_copy_of_containerds_folder_shares_only_what_never_changes(tmp_path: Path) -> None:
    source, target = tmp_path / "containerd", tmp_path / "kept/containerd"
    content, snapshot = source / "io.containerd.content.v1.content", source / "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs"
    for file in (
        content / "blobs/sha256/ab",
        content / "ingest/cd/data",
        snapshot / "etc/file",
        source / "io.containerd.metadata.v1.bolt/meta.db",
    ):
        file.parent.mkdir(parents=True)
        file.write_text(file.name)
    (snapshot / "link").symlink_to("nowhere")
    (snapshot / "etc").chmod(0o750)
    saved.copy_containerd(source, target)
    found = {path.relative_to(target): path.lstat() for path in target.rglob("*")}
    expected = {path.relative_to(source): path.lstat() for path in source.rglob("*")}
    assert {path: (stat.st_mode, stat.st_mtime_ns) for path, stat in found.items() if path.parts[1:]} == {
        path: (stat.st_mode, stat.st_mtime_ns) for path, stat in expected.items() if path.parts[1:]
    }
    shared = [str(path) for path, stat in found.items() if stat.st_ino == expected[path].st_ino]
    assert shared == ["io.containerd.content.v1.content/blobs/sha256/ab"]


@given(st.data())
def test_a_layer_stays_as_long_as_a_node_or_a_state_has_it(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        state.save(LAB)
        layers = [LAB.folder / f"layers/{name}.0/cp1" for name in "abcd"]
        for layer in layers:
            (layer / "sub").mkdir(parents=True)
        some = st.lists(st.sampled_from(layers), unique=True)
        of_node, of_states = data.draw(some), [data.draw(some), data.draw(some)]
        made_node(LAB, "cp1", *of_node)
        for name, of_state in zip("xy", of_states, strict=True):
            made_state(LAB, name, *of_state)
        saved._collect(LAB)
        assert {layer for layer in layers if (layer / "sub").exists()} == {*of_node, *of_states[0], *of_states[1]}
        assert {path.name for path in (LAB.folder / "layers").iterdir()} == {layer.parent.name for layer in layers if layer.exists()}


def test_a_forgotten_state_takes_its_own_layers_with_it(lab: Instance) -> None:
    shared, own = lab.folder / "layers/a.0/cp1", lab.folder / "layers/b.0/cp1"
    shared.mkdir(parents=True)
    own.mkdir(parents=True)
    made_node(lab, "cp1", shared)
    made_state(lab, "b", own, shared)
    saved.forget(lab, "b")
    assert (saved.listed(lab), shared.exists(), own.exists()) == ({}, True, False)
    assert not (lab.folder / "trash").exists()
    with pytest.raises(LabError, match="has no saved state b; it has none"):
        saved.forget(lab, "b")


@pytest.mark.parametrize("complete", [False, True])
def test_a_save_that_was_killed_left_a_complete_state_or_none(lab: Instance, complete: bool) -> None:
    marker = unfinished(lab, "save", "bare")
    partial = lab.folder / "saved/.bare.partial/nodes/cp1"
    partial.mkdir(parents=True)
    if complete:
        made_state(lab, "bare")
    saved.settle(lab, finish_restore=False)
    assert list(saved.listed(lab)) == ["bare"] * complete
    assert not marker.exists()
    assert not partial.exists()


def test_a_state_that_is_not_complete_is_none(lab: Instance) -> None:
    (lab.folder / "saved/.bare.partial").mkdir(parents=True)
    assert saved.listed(lab) == {}


def test_after_a_restore_that_was_killed_nothing_else_is_done(lab: Instance) -> None:
    unfinished(lab, "restore", "bare")
    made_state(lab, "bare")
    for rejected in (lambda: saved.settle(lab, finish_restore=False), lambda: saved.reject_half_restored(lab)):
        with pytest.raises(LabError, match=r"restoring the state bare was interrupted: `lab --name one up` finishes it"):
            rejected()


def test_a_killed_save_is_no_reason_to_reject(lab: Instance) -> None:
    unfinished(lab, "save", "bare")
    saved.reject_half_restored(lab)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"recipe": "of another checkout"}, "made by other sources of the lab"),
        ({"kubernetes": "1.35.8"}, r"has Kubernetes 1\.35\.8, the lab has 1\.36\.3 by now"),
    ],
)
def test_a_state_of_another_recipe_is_rejected(lab: Instance, fields: dict[str, str], reason: str) -> None:
    made_state(lab, "bare", **fields)
    with pytest.raises(LabError, match=reason):
        saved._check(lab, "bare")


def test_a_state_whose_layer_is_gone_is_rejected(lab: Instance, tmp_path: Path) -> None:
    made_state(lab, "bare", tmp_path / "gone", tmp_path)
    with pytest.raises(LabError, match=r"the state bare lacks /\S+/gone:"):
        saved._check(lab, "bare")


def test_a_state_that_can_be_restored_is_not_rejected(lab: Instance, tmp_path: Path) -> None:
    made_state(lab, "bare", tmp_path)
    saved._check(lab, "bare")


def test_layers_of_a_save_are_new_ones(lab: Instance) -> None:
    for expected in ("bare.0", "bare.1", "bare.2"):
        folder = saved._new_layers(lab, "bare")
        assert folder.name == expected
        folder.mkdir(parents=True)


@given(st.text(string.ascii_letters + string.digits + "._-/ ", max_size=42))
def test_a_state_has_a_name_that_a_folder_can_have_and_the_lab_does_not_use_itself(name: str) -> None:
    try:
        assert saved.check_state_name(name) == name
    except LabError:
        return
    assert Path(name).name == name
    assert not name.startswith((".", "-"))


def pod(name: str, node: str | None, *started: str | None) -> dict[str, object]:
    """A pod whose containers run since then, or wait."""
    states = [{"running": {"startedAt": since}} if since else {"waiting": {}} for since in started]
    spec = {"nodeName": node} if node else {}
    statuses = {"containerStatuses": [{"state": one} for one in states]} if states else {}
    return {"metadata": {"namespace": "default", "name": name}, "spec": spec, "status": statuses}


def test_pods_that_are_said_to_run_since_before_all_nodes_stopped_are_stale() -> None:
    before, since, after = "2026-01-01T00:00:09Z", "2026-01-01T00:00:10Z", "2026-01-01T00:00:11Z"
    pods = [
        pod("one", "cp1", before),
        pod("both", "cp1", after, before),
        pod("started", "cp1", after, since),
        pod("waits", "cp1", None),
        pod("pending", None),
        pod("made", "kwok-1", before),
    ]
    assert stale_pods(pods, {"cp1"}, since) == ["default/one", "default/both"]
