# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Owner and mode of the files below /etc/gpushare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import EXTENDER, DaemonUnit
from gpushare_runtime.doctor.own_files import judge_own_files
from unit.fakes.runtime.doctor.fake_host import FakeHost


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.install(EXTENDER)
    for name in ("extender.token", "extender-metrics.token", "extender.kubeconfig", "pki/ca.key", "pki/scheduler/tls.key", "pki/ca.crt"):
        host.file(f"/etc/gpushare/{name}", "x")
    return host


def judged(host: FakeHost, *units: DaemonUnit, environment: Path | None = None) -> list[tuple[str, str]]:
    found = Findings()
    judge_own_files(found, host, units, environment)
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


@pytest.mark.parametrize("path", ["/var/lib/gpushare", "/var/lib/gpushare-mps", "/opt/gpushare", "/opt/gpushare/0.1.0-0123"])
def test_a_folder_in_which_others_may_write(host: FakeHost, path: str) -> None:
    """Who writes there chooses what uninstall restores, or what the daemons run."""
    environment = Path("/opt/gpushare/0.1.0-0123")
    for folder in ("/var/lib/gpushare", "/var/lib/gpushare-mps", str(environment)):
        host.at(folder).mkdir(parents=True)
    assert judged(host, environment=environment) == []
    host.at(path).chmod(0o775)
    assert [cure for _found, cure in judged(host, environment=environment)] == [f"chmod go-w {path}"]


def test_the_folder_of_a_daemons_state_is_its_own(host: FakeHost) -> None:
    state = host.at("/var/lib/private/gpushare-extender")
    state.mkdir(parents=True, mode=0o700)
    host.at("/var/lib/gpushare-extender").symlink_to("private/gpushare-extender")
    mine = host.root_user()
    host.file("/proc/77/status", f"Uid:\t{mine}\t{mine}\t{mine}\t{mine}\n")
    unit = replace(host.unit(EXTENDER), pid=77)
    assert unit.option("token-file") == "/var/lib/gpushare-extender/token"
    assert judged(host, unit) == []
    state.chmod(0o755)
    ((found, cure),) = judged(host, unit)
    assert {"/var/lib/gpushare-extender", str(mine), "0755,"} <= {*found.split()}
    assert cure.split() == ["systemctl", "restart", EXTENDER]
    host.file("/proc/77/status", f"Uid:\t{mine}\t{mine}\t{mine}\t{mine + 1}\n")
    state.chmod(0o700)
    assert len(judged(host, unit)) == 1, "restored from a backup, with the number of another user"
    assert judged(host, replace(unit, pid=0)) == [], "who does not run has no user"


def test_links_and_names_of_others_do_no_harm(host: FakeHost) -> None:
    host.at("/etc/gpushare/to").symlink_to("/etc")
    host.file("/etc/gpushare/a; reboot.key", "x")
    host.at("/etc/gpushare/a; reboot.key").chmod(0o644)
    assert [one[1] for one in judged(host)] == ["chmod go-rwx '/etc/gpushare/a; reboot.key'"]
