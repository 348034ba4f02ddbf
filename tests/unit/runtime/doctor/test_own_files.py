# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Owner and mode of the files below /etc/gpushare."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import EXTENDER
from gpushare_runtime.doctor.own_files import judge_own_files
from unit.fakes.runtime.doctor.fake_host import FakeHost


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.install(EXTENDER)
    for name in ("extender.token", "extender-metrics.token", "extender.kubeconfig", "pki/ca.key", "pki/scheduler/tls.key", "pki/ca.crt"):
        host.file(f"/etc/gpushare/{name}", "x")
    return host


def judged(host: FakeHost) -> list[tuple[str, str]]:
    found = Findings()
    judge_own_files(found, host)
    assert all(one.severity == "error" for one in found.findings)
    return [(one.found, one.cure.partition("; where")[0]) for one in found.findings]


def test_files_of_root_are_nothing_to_say(host: FakeHost) -> None:
    host.at("/etc/gpushare/pki/ca.crt").chmod(0o644)
    host.at("/etc/gpushare/gpushare-extender.env").chmod(0o644)
    assert judged(host) == []


def test_a_restored_backup_with_the_number_of_another_user(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = host.root_user()
    monkeypatch.setattr(host, "root_user", lambda: mine + 1)
    ((found, cure),) = judged(host)
    assert "/etc/gpushare, /etc/gpushare/extender-metrics.token, /etc/gpushare/extender.kubeconfig" in found
    assert f"than {mine + 1}" in found
    assert cure.startswith(f"chown -h {mine + 1} /etc/gpushare ")
    for name in ("pki/ca.key", "pki/scheduler/tls.key", "gpushare-extender.env", "pki/scheduler"):
        assert f" /etc/gpushare/{name}" in cure
    assert "extender.token" not in cure, "identity.py knows whose that is"


@pytest.mark.parametrize(
    ("name", "mode", "cure"),
    [
        ("pki/ca.key", 0o640, "chmod go-rwx /etc/gpushare/pki/ca.key"),
        ("extender-metrics.token", 0o604, "chmod go-rwx /etc/gpushare/extender-metrics.token"),
        ("gpushare-extender.env", 0o664, "chmod go-w /etc/gpushare/gpushare-extender.env"),
        ("extender.kubeconfig", 0o602, "chmod go-w /etc/gpushare/extender.kubeconfig"),
    ],
)
def test_a_file_that_is_open_to_others(host: FakeHost, name: str, mode: int, cure: str) -> None:
    host.at(f"/etc/gpushare/{name}").chmod(mode)
    assert [one[1] for one in judged(host)] == [cure]


def test_links_and_names_of_others_do_no_harm(host: FakeHost) -> None:
    host.at("/etc/gpushare/to").symlink_to("/etc")
    host.file("/etc/gpushare/a; reboot.key", "x")
    host.at("/etc/gpushare/a; reboot.key").chmod(0o644)
    assert [one[1] for one in judged(host)] == ["chmod go-rwx '/etc/gpushare/a; reboot.key'"]
