# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the doctor makes of an active plugin's own words, and of the folder for a daemon's state."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.kubeconfig import daemon_kubeconfig

from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import PLUGIN
from gpushare_runtime.doctor.work import judge_state_folder, judge_words
from unit.fakes.runtime.doctor.fake_host import Clock, FakeHost, said
from unit.golden import Golden

STATE = f"/var/lib/{PLUGIN}"
NO_TOKEN = f"token: no token works: {STATE}/token cannot be read: Permission denied"
NOT_REACHED = "API server: not reached yet; until then containers get a GPU without the scheduler's plan"
WELL = "API server: watching the pods of this node; token: good until 2027-02-19T10:00:00Z"


@pytest.mark.parametrize(
    "says",
    [
        NO_TOKEN,
        NOT_REACHED,
        f"{NO_TOKEN}; {NOT_REACHED}",
        f"gpus: GPU 0 (a): {'bad, ' * 100}; API server: silent for minutes; until it answers, new pods may get another GPU than planned",
    ],
)
def test_a_plugin_that_does_not_know_its_pods_is_a_finding(tmp_path: Path, says: str, golden: Golden) -> None:
    host = FakeHost(tmp_path)
    host.install(PLUGIN, StatusText=says)
    found = Findings()
    judge_words(found, host, host.unit(PLUGIN))
    ((code, words),) = said(found)
    assert code == "plugin_not_synced"
    golden(words)
    assert "not reached" in words or "no token works" in words or "silent" in words
    host.file("/etc/gpushare/device-plugin.kubeconfig", daemon_kubeconfig("https://10.0.0.9:6443", "PEM"))
    found = Findings()
    judge_words(found, host, host.unit(PLUGIN))
    assert "curl -k https://10.0.0.9:6443/version" in found.findings[0].cure


def test_a_plugin_that_does_not_trust_its_api_server_is_told_so(tmp_path: Path) -> None:
    """curl -k would answer, and hide it."""
    host = FakeHost(tmp_path)
    host.install(PLUGIN, StatusText="API server: not reached yet ([SSL: CERTIFICATE_VERIFY_FAILED] self-signed); until then")
    found = Findings()
    judge_words(found, host, host.unit(PLUGIN))
    assert "CERTIFICATE_VERIFY_FAILED" in found.findings[0].found
    assert "another authority" in found.findings[0].cure
    assert "curl" not in found.findings[0].cure


@pytest.mark.parametrize("first", [NOT_REACHED, "", "token: good until 2027-02-19T10:00:00Z"])
def test_a_plugin_that_was_just_started_gets_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    host = FakeHost(tmp_path, patience=20)
    clock = Clock(monkeypatch, lambda passed: host.install(PLUGIN, StatusText=first if passed < 12 else WELL))
    found = Findings()
    judge_words(found, host, host.unit(PLUGIN))
    assert said(found) == []
    assert 12 <= clock.passed < 13


def test_a_plugin_that_never_says_anything_of_the_api_server_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(tmp_path, patience=20)
    Clock(monkeypatch, lambda passed: host.install(PLUGIN, StatusText="gpus: 2"))
    found = Findings()
    judge_words(found, host, host.unit(PLUGIN))
    assert said(found) == [("plugin_not_synced", "a device plugin that says nothing of the API server")]


def test_a_plugin_that_watches_has_no_finding_whatever_its_gpus_are_called(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.install(PLUGIN, StatusText=f"gpus: GPU 0: is the token: no token works; {WELL}")
    found = Findings()
    judge_words(found, host, host.unit(PLUGIN))
    assert said(found) == []


@pytest.mark.parametrize(
    ("flags", "blocks", "inodes", "words"),
    [
        (0, 1000, 9, None),
        (os.ST_RDONLY, 1000, 9, "read-only"),
        (0, 0, 9, "with 0 KiB free"),
        (0, 255, 9, "with 1020 KiB free"),
        (0, 1000, 0, "with no inode free"),
    ],
)
def test_the_state_of_a_daemon_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, blocks: int, inodes: int, words: str | None
) -> None:
    host = FakeHost(tmp_path)
    host.install(PLUGIN)
    disk = SimpleNamespace(f_flag=flags, f_bavail=blocks, f_frsize=4096, f_files=9, f_favail=inodes)
    monkeypatch.setattr("gpushare_runtime.doctor.work.os.statvfs", lambda path: disk)
    found = Findings()
    judge_state_folder(found, host, host.unit(PLUGIN))
    assert said(found) == ([("state_not_kept", f"{STATE} {words}")] if words else [])
    monkeypatch.undo()
    judge_state_folder(found, FakeHost(tmp_path / "other"), host.unit(PLUGIN))
    assert len(found.findings) == bool(words), "without the folder there is nothing to say"
