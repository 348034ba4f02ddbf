# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The scheduler's configuration on its way to a host that joins as a control plane."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.before_join import JoinError, plan, read

from unit.fakes.plugins.scheduler.manifests import MANIFEST
from unit.golden import Golden

ANNOTATION = "  annotations:\n    gpushare.kubernetes/scheduler-config-sha256: " + "a" * 64 + "\n"


def manifest(folder: Path, names: str, annotation: str = ANNOTATION) -> str:
    """A manifest of a scheduler with this configuration."""
    text = MANIFEST.replace("metadata:\n", "metadata:\n" + annotation).replace("    - --kubeconfig=", f"{names}    - --kubeconfig=")
    path = folder / "kube-scheduler.yaml"
    path.write_text(text)
    return str(path)


def config(path: Path) -> str:
    return f"    - --config={path}\n"


def test_the_file_that_the_manifest_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("kind: KubeSchedulerConfiguration\n")
    found = read(manifest(tmp_path, config(tmp_path / "config.yaml")))
    assert found == {str(tmp_path / "config.yaml"): "kind: KubeSchedulerConfiguration\n"}


def test_a_path_of_the_container_alone_is_left_out(tmp_path: Path) -> None:
    assert read(manifest(tmp_path, config(tmp_path / "nowhere.yaml"))) == {}


def test_a_scheduler_without_us_has_nothing_to_copy(tmp_path: Path, golden: Golden) -> None:
    with golden.raised(JoinError):
        read(manifest(tmp_path, "", annotation=""))
    with golden.raised(JoinError):
        read(str(tmp_path / "no-manifest.yaml"))


def test_a_file_that_is_too_large_is_not_sent_round(tmp_path: Path, golden: Golden) -> None:
    path, text = tmp_path / "config.yaml", "x" * 1_048_576
    path.write_text(text)
    assert read(manifest(tmp_path, config(path))) == {str(path): text}
    assert plan(Transaction("scheduler", str(tmp_path)), {PATH: text}) == ()
    path.write_text(text + "x")
    with pytest.raises(JoinError, match="has 1048577 bytes; expected 1048576 at most"):
        read(manifest(tmp_path, config(path)))
    with golden.raised(JoinError):
        plan(Transaction("scheduler", str(tmp_path)), {PATH: text + "x"})


PATH = "/etc/kubernetes/gpushare/kube-scheduler.yaml"


def prepared(root: Path, text: str) -> tuple[list[str], tuple[str, ...]]:
    """What a run changes on the host of this root, and what it leaves."""
    transaction = Transaction("scheduler", str(root))
    kept = plan(transaction, {PATH: text})
    changed = [change.path for change in transaction.changes]
    transaction.apply()
    return changed, kept


def test_a_missing_file_is_written_once_with_its_folder_in_the_journal(tmp_path: Path) -> None:
    assert prepared(tmp_path, "a: 1\n") == ([f"folder:{Path(PATH).parent}", PATH], ())
    assert (tmp_path / PATH[1:]).read_text() == "a: 1\n"
    assert prepared(tmp_path, "a: 1\n") == ([], ())
    entries = {entry.path: entry.original for entry in Transaction("scheduler", str(tmp_path)).journal.entries()}
    assert entries == {f"folder:{Path(PATH).parent}": None, PATH: None}


def test_our_own_copy_follows_the_other_control_plane_and_a_file_of_others_stays(tmp_path: Path) -> None:
    prepared(tmp_path, "a: 1\n")
    assert prepared(tmp_path, "a: 2\n") == ([PATH], ())
    (tmp_path / PATH[1:]).write_text("theirs: true\n")
    assert prepared(tmp_path, "a: 3\n") == ([], (PATH,))
    assert (tmp_path / PATH[1:]).read_text() == "theirs: true\n"


def test_a_file_that_another_role_has_written_is_not_ours(tmp_path: Path) -> None:
    other = Transaction("other", str(tmp_path))
    other.write(PATH, b"a: 1\n")
    other.apply()
    assert prepared(tmp_path, "a: 1\n") == ([], ()), "it is as it is to be"
    assert prepared(tmp_path, "a: 2\n") == ([], (PATH,))


@pytest.mark.parametrize(
    "path",
    [
        "relative.yaml",
        "",
        "/etc/kubernetes/../passwd",
        "/etc/kubernetes//x.yaml",
        # Another control plane, which may be in other hands, must not choose what runs on this host.
        "/etc/cron.d/x",
        "/root/.ssh/authorized_keys",
        "/etc/kubernetes/manifests/x.yaml",
    ],
)
def test_a_path_that_a_host_must_not_take_from_another_is_rejected(path: str, golden: Golden) -> None:
    with golden.raised(JoinError):
        plan(Transaction("scheduler"), {path: ""})


def test_no_more_files_than_a_scheduler_names(tmp_path: Path) -> None:
    assert plan(Transaction("scheduler", str(tmp_path)), {f"/etc/kubernetes/{number}": "" for number in range(8)}) == ()
    with pytest.raises(JoinError, match="9 files; expected 8 at most"):
        plan(Transaction("scheduler", str(tmp_path)), {f"/etc/kubernetes/{number}": "" for number in range(9)})
