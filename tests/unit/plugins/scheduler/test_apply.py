# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A control plane's scheduler is changed and changed back as a whole: rejected, proven, put back, and finished after a kill anywhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl, KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import ANNOTATION_SCHEDULER_CONFIG
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import FileState, digest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import apply, manifest, service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.kubeadm import PATH

from unit.fakes.plugins.kills import at, killed, killed_around
from unit.fakes.plugins.scheduler.control_plane import CLUSTER, ControlPlane, now, parsed
from unit.fakes.plugins.scheduler.manifests import MANIFEST
from unit.golden import Golden


@pytest.fixture
def plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    plane = ControlPlane(tmp_path / "plane")
    monkeypatch.setattr(journal, "FOLDER", str(plane.folder / "journal"))
    for module in (apply, service):
        monkeypatch.setattr(module, "fetch_json", plane.health)
    monkeypatch.setattr(service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(service, "LOGS", str(plane.folder / "no-logs"))
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


def test_a_configuration_that_the_scheduler_rejects_is_never_written(plane: ControlPlane, golden: Golden) -> None:
    before, plane.rejects = plane.tree(), 'unknown field "extendrs"'
    with golden.raised(Rejected):
        plane.converge()
    assert plane.tree() == before


def test_missing_certificates_are_named_before_anything_is_written(plane: ControlPlane, golden: Golden) -> None:
    (plane.pki / "tls.key").unlink()
    before = plane.tree()
    with golden.raised(Rejected):
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
    with pytest.raises(TransactionError, match=f"(?s){words}.*what was there is restored"):
        plane.converge()
    assert (plane.tree(), plane.known()["cluster"]) == (before, CLUSTER)
    assert not plane.config.parent.exists()
    assert plane.known()["ran"] == MANIFEST


def test_an_absent_that_does_not_hold_is_put_back_too(plane: ControlPlane, golden: Golden) -> None:
    plane.converge()
    before, cluster = plane.tree(), plane.known()["cluster"]
    plane.runs_with = lambda config: "aliyun.com" in config
    with golden.raised(TransactionError):
        plane.converge("absent")
    assert (plane.tree(), plane.known()["cluster"]) == (before, cluster)


def test_when_only_kubeadms_part_fails_the_next_run_does_it_alone(plane: ControlPlane) -> None:
    plane.rejects_patch = True
    with pytest.raises(KubectlError, match="configmaps is forbidden"):
        plane.converge()
    starts, plane.rejects_patch = plane.known()["starts"], False
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


# A policy in a ConfigMap, which schedulers up to 1.22 read at their start.

POLICY = '{"kind": "Policy", "apiVersion": "v1", "predicates": [{"name": "PodFitsResources"}]}'


def with_policy_map(plane: ControlPlane) -> str:
    text = MANIFEST.replace("v1.36.3", "v1.22.17").replace(
        "    - --bind-address", "    - --policy-configmap=scheduler-policy\n    - --bind-address"
    )
    plane.manifest.write_text(text)
    plane.known(policy=POLICY)
    plane.kubelet()
    return text


def test_a_policy_in_a_configmap_is_changed_read_and_given_back(plane: ControlPlane, golden: Golden) -> None:
    text = with_policy_map(plane)
    assert plane.converge()
    assert "gpushare-scheduler" in plane.known()["policy"]
    # The scheduler was started anew after the ConfigMap was changed.
    assert plane.known()["reads"] == plane.known()["policy"]
    golden(plane.result["candidate"])
    assert not plane.converge()
    assert plane.converge("absent")
    assert (plane.known()["policy"], plane.manifest.read_text(), plane.known()["reads"]) == (POLICY, text, POLICY)
    assert not plane.converge("absent")


def test_a_policy_in_a_configmap_killed_anywhere_is_finished_by_the_next_run(plane: ControlPlane) -> None:
    with_policy_map(plane)
    points = {state: list(plane.passed(state)) for state in ("present", "absent")}
    assert any(point.startswith("written configmap:kube-system/scheduler-policy") for point in points["present"])
    for state, passed in points.items():
        for wanted in passed:
            if state == "absent":
                plane.converge()

            def kill(point: str, wanted: str = wanted) -> None:
                if point == wanted:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                plane.converge(state, kill)
            plane.converge(state)
            assert plane.known()["reads"] == plane.known()["policy"], (state, wanted)
            assert ("gpushare" in plane.known()["policy"]) is (state == "present"), (state, wanted)
            assert not plane.converge(state), (state, wanted)
            plane.converge("absent")
            assert plane.known()["policy"] == POLICY


def test_a_policy_with_which_the_scheduler_does_not_run_is_put_back(plane: ControlPlane, golden: Golden) -> None:
    text = with_policy_map(plane)
    plane.runs_with = lambda config: "aliyun.com" not in config
    with golden.raised(TransactionError):
        plane.converge()
    assert (plane.known()["policy"], plane.manifest.read_text(), plane.known()["reads"]) == (POLICY, text, POLICY)


def test_a_policy_that_somebody_changes_meanwhile_stays_theirs(plane: ControlPlane, golden: Golden) -> None:
    with_policy_map(plane)
    plan, _due = plane.plan("present")
    theirs = POLICY.replace("PodFitsResources", "HostName")
    plane.known(policy=theirs)
    with golden.raised(TransactionError):
        plane.carry_out(plan)
    assert plane.known()["policy"] == theirs


def test_an_extender_that_reports_no_health_is_not_called_for_proof(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlPlane, "host", property(lambda self: service.SchedulerHost("host", "cp1", str(self.manifest), "", 0.3)))
    plane.deaf = ""
    assert plane.converge()
    assert any("health_url is empty" in warning for warning in plane.result["warnings"])
    assert not any(words[0] == "create" for words in plane.asked if words)


# What a plan is made from.


def pod_on(node: str, annotated: bool = True, mirrored: bool = True, program: str = "kube-scheduler") -> dict[str, Any]:
    annotations = {
        **({ANNOTATION_SCHEDULER_CONFIG: "x"} if annotated else {}),
        **({"kubernetes.io/config.mirror": "x"} if mirrored else {}),
    }
    return {"metadata": {"annotations": annotations or None}, "spec": {"nodeName": node, "containers": [{"command": [program]}]}}


def test_what_is_read_is_all_that_a_plan_may_need(plane: ControlPlane) -> None:
    Journal("/").record("/theirs", "container_runtime", None, b"x")
    fresh = plane.read("/more")
    assert fresh == {
        "changed": False,
        "server": "v1.36.3",
        "policy": None,
        "files": {str(plane.manifest): MANIFEST, str(plane.config): None, "/more": None},
        "journal": [],
        "cluster": {"text": CLUSTER, "version": "1"},
        "nodes": 3,
        "others": [],
        "unreached": {},
        "unfinished": False,
        "running": manifest.SchedulerManifest.parsed(parsed(MANIFEST)).shape,
    }
    plane.converge()
    plane.other_pods = [
        pod_on("cp4"),
        pod_on("cp1"),
        pod_on("cp2"),
        pod_on("x", False),
        pod_on("y", mirrored=False),
        pod_on("z", program="sh"),
    ]
    known, found = plane.known(), plane.read()
    assert (found["cluster"], found["others"]) == ({"text": known["cluster"], "version": "2"}, ["cp2", "cp4"])
    paths = [one["path"] for one in found["journal"]]
    assert paths == sorted(
        [str(plane.config), str(plane.manifest), PATH, f"folder:{plane.config.parent}", "value:percentageOfNodesToScore"]
    )
    entries = {one["path"]: one for one in found["journal"]}
    assert entries[str(plane.manifest)] == {
        "path": str(plane.manifest),
        "original": MANIFEST,
        "mode": plane.manifest.stat().st_mode & 0o7777,
        "left": (digest(MANIFEST.encode()), digest(plane.manifest.read_bytes())),
        "others": False,
    }
    assert (entries[str(plane.config)]["original"], entries[str(plane.config)]["mode"]) == (None, None)
    assert entries[PATH]["original"] == CLUSTER
    assert entries["value:percentageOfNodesToScore"]["left"] == ("", digest(b"100"))
    # A scheduler that does not run as its manifest says, a cluster of another make, and what --config names beside what it is now.
    plane.known(cluster=None, ran=MANIFEST)
    plane.kubelet = lambda: None  # type: ignore[method-assign]
    plane.manifest.write_text(plane.manifest.read_text().replace("--leader-elect", "--config=/named.yaml\n    - --leader-elect"))
    found = plane.read()
    assert (found["running"], found["cluster"]) == (None, None)
    assert set(found["files"]) == {str(plane.manifest), str(plane.config), "/named.yaml"}


def test_without_a_manifest_there_is_nothing_to_run(plane: ControlPlane) -> None:
    plane.converge()
    plane.manifest.unlink()
    plane.kubelet = lambda: None  # type: ignore[method-assign]
    assert plane.read()["files"][str(plane.manifest)] is None


# What others do meanwhile.


def test_a_file_that_was_changed_since_the_plan_is_not_written_over(plane: ControlPlane, golden: Golden) -> None:
    for path in (plane.manifest, plane.config):
        plan, _due = plane.plan("present")
        content = path.read_bytes() if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs")
        before = plane.tree()
        with golden.raised(Rejected):
            plane.carry_out(plan)
        assert plane.tree() == before
        path.write_bytes(content) if content is not None else path.unlink()


@pytest.mark.parametrize("text", [CLUSTER + "# theirs\n", None])
def test_kubeadms_part_that_was_changed_since_the_plan_is_not_written_over(plane: ControlPlane, text: str | None, golden: Golden) -> None:
    plan, _due = plane.plan("present")
    plane.known(cluster=text)
    with golden.raised(KubectlError):
        plane.carry_out(plan)
    assert plane.known()["cluster"] == text
    assert Journal("/").entry(PATH) is None
    assert "aliyun.com" in plane.config.read_text()


def test_kubeadms_part_is_patched_at_the_version_that_was_read(plane: ControlPlane) -> None:
    plane.converge()
    (patch,) = [words for words in plane.asked if words[0] == "patch"]
    assert patch[:-1] == ["patch", "configmap", "--namespace", "kube-system", "kubeadm-config", "--type=merge", "--patch"]
    assert json.loads(patch[-1]) == {"metadata": {"resourceVersion": "1"}, "data": {"ClusterConfiguration": plane.known()["cluster"]}}
    entry = Journal("/").entry(PATH)
    assert entry is not None
    assert entry.original == FileState(CLUSTER.encode(), 0, 0, 0, None)
    assert entry.untouched(plane.known()["cluster"].encode())


# What must hold before.


def test_an_extender_that_is_not_in_sync_stops_what_would_restart_a_scheduler_and_nothing_else(plane: ControlPlane) -> None:
    words = "^the extender must be in sync before a scheduler is configured for it, so nothing was changed: .* synced: true; it says"
    plane.synced, before = False, plane.tree()
    with pytest.raises(Rejected, match=words):
        plane.converge()
    assert plane.tree() == before
    plane.synced = True
    assert killed(partial(plane.converge, "present", at(f"written {plane.manifest}")))
    plane.synced = False
    plan, _due = plane.plan("present")
    with pytest.raises(Rejected, match=words):
        plane.carry_out(plan)
    plane.synced = True
    plane.converge()
    plane.synced = False
    # Nothing is due; then only a restart is.
    plane.carry_out(plane.plan("present")[0])
    plane.known(since="2026-01-01T00:00:00Z")
    with pytest.raises(Rejected, match=words):
        plane.carry_out(plane.plan("present")[0])
    plane.known(since=now(1))
    plane.converge("absent")
    assert plane.manifest.read_text() == MANIFEST


def test_plain_http_needs_no_certificates(plane: ControlPlane, golden: Golden) -> None:
    for name in ("tls.key", "ca.crt"):
        (plane.pki / name).unlink()
    with golden.raised(Rejected):
        plane.converge()
    plan, _due = plane.plan("present")
    tools = apply.Tools(Kubectl(plane.kubectl, "kubectl", "x"), plane.run, None, str(plane.folder))
    plane.synced = False
    with golden.raised(Rejected):
        apply.apply(plane.host, tools, plan.for_module, "aliyun.com/gpu-mem", "", "present")


def test_the_candidate_is_read_by_the_schedulers_own_image_with_all_that_is_mounted(plane: ControlPlane, golden: Golden) -> None:
    plane.converge()
    image = "registry.k8s.io/kube-scheduler:v1.36.3"
    assert plane.result["candidate"] == f"accepted by {image}"
    assert plane.result.keys() == {"candidate", "warnings", "holder", "standby"}
    assert plane.result["warnings"] == []
    (run,) = [argv for argv in plane.asked if "run" in argv]
    mounts = [word.split(",")[1:3] for word in run if word.startswith("--mount")]
    # scheduler.conf and the folder of the configuration are not on this host (yet).
    assert mounts == [
        [f"src={plane.folder}/gpushare-candidate.yaml", "dst=/gpushare-candidate.yaml"],
        [f"src={plane.pki}", f"dst={plane.pki}"],
    ]
    assert run[run.index(image) + 2] == "kube-scheduler"
    assert plane.candidate == plane.config.read_text()
    assert not (plane.folder / "gpushare-candidate.yaml").exists()
    plane.carry_out(plane.plan("present")[0])
    assert plane.result["candidate"] == "not needed"
    plane.converge("absent")
    assert plane.candidate == ""
    plane.ctr = None
    plane.converge()
    golden(plane.result["candidate"])
    assert plane.result["warnings"] == [plane.result["candidate"]]


def test_a_container_is_ended_by_containerd_or_not_at_all(plane: ControlPlane, golden: Golden) -> None:
    def tools(ctr: str | None, status: int, out: str, err: str) -> apply.Tools:
        def run(argv: list[str]) -> tuple[int, str, str]:
            plane.asked.append(argv)
            return status, out, err

        return apply.Tools(Kubectl(plane.kubectl, "kubectl", "x"), run, ctr, "/")

    tools("/ctr", 0, "", "warning").end_container("c1")
    assert plane.asked[-1] == ["/ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGTERM", "c1"]
    for out, err in (("no\n", ""), ("yes", " no\n")):
        with golden.raised(OSError):
            tools("/ctr", 1, out, err).end_container("c1")
    with golden.raised(OSError):
        tools(None, 0, "", "").end_container("c1")


# What is left behind.


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_folder_of_ours_in_which_somebody_has_put_a_file_stays(plane: ControlPlane, state: str) -> None:
    own = plane.config.parent / "theirs"
    if state == "absent":
        plane.converge()
        own.write_text("x")
        plane.converge("absent")
    else:
        plane.runs_with = lambda config: "aliyun.com" not in config or own.write_text("x") == 0
        with pytest.raises(TransactionError):
            plane.converge()
    assert [path.name for path in plane.config.parent.iterdir()] == ["theirs"]
    assert [entry.path for entry in Journal("/").entries()] == []


def test_entries_of_others_stay(plane: ControlPlane) -> None:
    Journal("/").record("/theirs", "container_runtime", None, b"x")
    plane.converge()
    plane.converge("absent")
    assert [entry.path for entry in Journal("/").entries()] == ["/theirs"]


def test_a_change_that_could_not_be_put_back_keeps_its_folder_for_the_next_run(plane: ControlPlane, golden: Golden) -> None:
    def broken(point: str) -> None:
        if point == f"written {plane.manifest}":
            plane.manifest.unlink()
            plane.manifest.mkdir()
            raise OSError("no room")

    with golden.raised(TransactionError):
        plane.converge(point=broken)
    assert list(plane.config.parent.iterdir()) == []


# Kills.


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
        assert killed(partial(plane.converge, state, at(victim))), victim
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
        if not killed_around(partial(plane.converge, state), when):
            break
        assert [path.name for path in plane.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]
        plane.converge(state)
        assert (plane.tree(), plane.known()["cluster"]) == (wanted, cluster), when
        assert not plane.converge(state), when
    assert when > 20


def test_what_a_killed_run_left_broken_is_put_back_by_the_next(plane: ControlPlane, golden: Golden) -> None:
    before = plane.tree()
    assert killed(partial(plane.converge, "present", at(f"written {plane.manifest}")))
    plane.runs_with = lambda config: "aliyun.com" not in config
    plane.kubelet()
    assert plane.pod()["status"]["containerStatuses"][0]["restartCount"] == 3
    with golden.raised(TransactionError):
        plane.converge()
    assert (plane.tree(), plane.known()["ran"]) == (before, MANIFEST)
    assert not plane.config.parent.exists()
