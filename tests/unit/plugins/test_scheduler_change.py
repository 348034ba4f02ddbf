# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A control plane's scheduler is changed and changed back as a whole: refused, proven, put back, and finished after a kill anywhere."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _journal, _scheduler_change, _scheduler_service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubectl import KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler_change import Refused
from ansible_collections.gpushare.kubernetes.plugins.module_utils._transaction import TransactionError

from unit.plugins.control_plane import CLUSTER, ControlPlane
from unit.plugins.scheduler_files import MANIFEST


@pytest.fixture
def plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    plane = ControlPlane(tmp_path / "plane")
    monkeypatch.setattr(_journal, "FOLDER", str(plane.folder / "journal"))
    for module in (_scheduler_change, _scheduler_service):
        monkeypatch.setattr(module, "fetch_json", plane.health)
    monkeypatch.setattr(_scheduler_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(_scheduler_service, "LOGS", str(plane.folder / "no-logs"))
    plane.kubelet()
    return plane


def test_there_and_back_again_and_nothing_the_second_time(plane: ControlPlane) -> None:
    before = plane.tree()
    assert plane.converge()
    assert "gpushare-pki" in plane.known()["cluster"]
    after = plane.tree()
    starts = plane.known()["starts"]
    assert not plane.converge()
    assert (plane.tree(), plane.known()["starts"]) == (after, starts)
    assert plane.converge("absent")
    assert (plane.tree(), plane.known()["cluster"]) == (before, CLUSTER)
    assert not plane.config.parent.exists()
    assert not plane.converge("absent")
    assert (plane.known()["starts"], plane.known()["ends"]) == (3, 0)


def test_a_configuration_that_the_scheduler_refuses_is_never_written(plane: ControlPlane) -> None:
    before, plane.refuses = plane.tree(), 'unknown field "extendrs"'
    with pytest.raises(Refused, match=r'nothing was written. It says:\nerror: unknown field "extendrs"'):
        plane.converge()
    assert plane.tree() == before


def test_missing_certificates_are_named_before_anything_is_written(plane: ControlPlane) -> None:
    (plane.pki / "tls.key").unlink()
    before = plane.tree()
    with pytest.raises(Refused, match=r"has no tls.key, which kube-scheduler needs"):
        plane.converge()
    assert plane.tree() == before


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ({"runs_with": lambda config: "aliyun.com" not in config}, "CrashLoopBackOff"),
        ({"deaf": "aliyun.com"}, "has not called the extender"),
    ],
)
def test_what_passes_the_check_and_then_fails_is_put_back(plane: ControlPlane, flaw: dict[str, Any], words: str) -> None:
    before = plane.tree()
    vars(plane).update(flaw)
    with pytest.raises(TransactionError, match=f"(?s){words}.*put back what was there"):
        plane.converge()
    assert (plane.tree(), plane.known()["cluster"]) == (before, CLUSTER)
    assert not plane.config.parent.exists()
    assert plane.known()["ran"] == MANIFEST


def test_an_absent_that_does_not_hold_is_put_back_too(plane: ControlPlane) -> None:
    plane.converge()
    before, cluster = plane.tree(), plane.known()["cluster"]
    plane.runs_with = lambda config: "aliyun.com" in config
    with pytest.raises(TransactionError, match="put back what was there"):
        plane.converge("absent")
    assert (plane.tree(), plane.known()["cluster"]) == (before, cluster)


def test_when_only_kubeadms_part_fails_the_next_run_does_it_alone(plane: ControlPlane) -> None:
    plane.refuses_patch = True
    with pytest.raises(KubectlError, match="configmaps is forbidden"):
        plane.converge()
    starts, plane.refuses_patch = plane.known()["starts"], False
    assert plane.converge()
    assert (plane.known()["starts"], "gpushare-pki" in plane.known()["cluster"]) == (starts, True)
    assert not plane.converge()


def test_a_new_authority_restarts_the_scheduler_that_has_read_the_old_one(plane: ControlPlane) -> None:
    plane.converge()
    later = plane.pki.stat().st_mtime + 3600
    os.utime(plane.pki / "ca.crt", (later, later))
    plane.known(since="2026-01-01T00:00:00Z")
    os.utime(plane.pki / "ca.crt")
    assert plane.plan("present")[1]
    plane.converge()
    assert plane.known()["ends"] == 1
    assert not plane.converge()


def test_a_scheduler_whose_manifest_does_not_change_is_restarted_all_the_same(plane: ControlPlane) -> None:
    """Somebody's own configuration, plain http, and a manifest that kubeadm wrote anew: nothing of ours is in the manifest."""
    plane.config.parent.mkdir()
    plane.config.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    folder = plane.config.parent
    with_config = (
        MANIFEST.replace("    - --bind-address", f"    - --config={plane.config}\n    - --bind-address")
        .replace("    volumeMounts:\n", f"    volumeMounts:\n    - mountPath: {folder}\n      name: own\n")
        .replace("  volumes:\n", f"  volumes:\n  - hostPath:\n      path: {folder}\n    name: own\n")
    )
    original = plane.config.read_text()
    plane.manifest.write_text(with_config)
    plane.extender = replace(plane.extender, url_prefix="http://127.0.0.1:1/x", tls_dir="")
    plane.converge()
    plane.manifest.write_text(with_config)
    plane.kubelet()
    plane.known(since="2026-01-01T00:00:00Z")
    plane.converge("absent")
    assert (plane.config.read_text(), plane.manifest.read_text()) == (original, with_config)
    assert (plane.known()["ends"], plane.known()["reads"]) == (1, original)


# Kills.


def killed(plane: ControlPlane, state: str, victim: str, when: int = 0) -> bool:
    """Converge in a process that kills itself at a point, or around the n-th call that changes a folder; whether it came to that."""
    child = os.fork()
    if child == 0:
        seen = 0

        def moment() -> None:
            nonlocal seen
            seen += 1
            if seen == when:
                os.kill(os.getpid(), signal.SIGKILL)

        def around(real: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: str) -> None:
                moment()
                real(*arguments)
                moment()

            return call

        for name in ("rename", "unlink", "rmdir") if when else ():
            setattr(os, name, around(getattr(os, name)))
        try:
            plane.converge(state, lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == victim else None)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def starting_as(plane: ControlPlane, state: str, folder: Path) -> tuple[Callable[[], None], dict[str, tuple[int, bytes]], str]:
    """What puts the host into the other state again, and the files and kubeadm's part when all is done."""
    if state == "absent":
        plane.converge("present")
    shutil.copytree(plane.folder, folder)

    def again() -> None:
        shutil.rmtree(plane.folder)
        shutil.copytree(folder, plane.folder)

    plane.converge(state)
    return again, plane.tree(), plane.known()["cluster"]


@pytest.mark.parametrize("state", ["present", "absent"])
def test_killed_at_any_point_the_next_run_finishes(plane: ControlPlane, state: str, tmp_path: Path) -> None:
    again, wanted, cluster = starting_as(plane, state, tmp_path / "start")
    again()
    points = plane.passed(state)
    assert [point.split()[0] for point in points if "kubeadm-config" in point and "forgotten" not in point] == [
        "before",
        "noted",
        "written",
    ]
    assert {"restarted", "done"} <= set(points)
    old = (tmp_path / "start" / plane.manifest.relative_to(plane.folder)).read_bytes()
    for victim in points:
        again()
        assert killed(plane, state, victim), victim
        assert plane.manifest.read_bytes() in (old, wanted[str(plane.manifest.relative_to(plane.folder))][1])
        assert [path.name for path in plane.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]
        plane.converge(state)
        assert (plane.tree(), plane.known()["cluster"]) == (wanted, cluster), victim
        assert not plane.converge(state), victim


@pytest.mark.parametrize("state", ["present", "absent"])
def test_killed_around_any_rename_the_next_run_finishes_and_nothing_is_left(plane: ControlPlane, state: str, tmp_path: Path) -> None:
    again, wanted, cluster = starting_as(plane, state, tmp_path / "start")
    when = 0
    while True:
        when += 1
        again()
        if not killed(plane, state, "", when):
            break
        assert [path.name for path in plane.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]
        plane.converge(state)
        assert (plane.tree(), plane.known()["cluster"]) == (wanted, cluster), when
        assert not plane.converge(state), when
    assert when > 20


def test_what_a_killed_run_left_broken_is_put_back_by_the_next(plane: ControlPlane) -> None:
    before = plane.tree()
    assert killed(plane, "present", f"written {plane.manifest}")
    plane.runs_with = lambda config: "aliyun.com" not in config
    plane.kubelet()
    assert plane.pod()["status"]["containerStatuses"][0]["restartCount"] == 3
    with pytest.raises(TransactionError, match="of an earlier run that did not end; put back what was there before it"):
        plane.converge()
    assert (plane.tree(), plane.known()["ran"]) == (before, MANIFEST)
    assert not plane.config.parent.exists()
