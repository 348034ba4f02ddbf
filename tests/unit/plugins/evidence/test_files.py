# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The files that run our daemons, against the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import FOLDER
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.files import files
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.daemons import judge_files
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import VerifyFindings

HEAD = "# Copyright: gpushare.kubernetes contributors\n"
UNIT, ENV = "/etc/systemd/system/gpushare-device-plugin.service", "/etc/gpushare/gpushare-device-plugin.env"
NOTHING = {"problem": "", "changed": [], "unrecorded": [], "drop_ins": []}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("etc/systemd/system", "etc/gpushare", "run/systemd/system"):
        (tmp_path / folder).mkdir(parents=True)
    transaction = Transaction("device_plugin", str(tmp_path))
    transaction.write(UNIT, f"{HEAD}WatchdogSec=30\n".encode())
    transaction.write(ENV, f"{HEAD}GPUSHARE_COMMAND=x --overuse report\n".encode())
    transaction.apply()
    return tmp_path


def seen(root: Path) -> dict[str, object]:
    return files(Host(str(root)))


def test_files_as_they_were_written_are_nothing_to_say(root: Path) -> None:
    assert seen(root) == NOTHING
    (root / "etc/gpushare/other.env").write_text(HEAD)
    (root / "etc/systemd/system/kubelet.service").write_text("[Unit]")
    assert seen(root) == NOTHING


def test_hand_edits_are_found_whatever_the_generation_says(root: Path) -> None:
    (root / ENV[1:]).write_text(f"{HEAD}GPUSHARE_COMMAND=x --overuse evict\n")
    assert seen(root) == {**NOTHING, "changed": [ENV]}
    (root / UNIT[1:]).write_text(f"{HEAD}WatchdogSec=300\n")
    assert seen(root)["changed"] == [ENV, UNIT]
    (root / UNIT[1:]).unlink()
    (root / ENV[1:]).unlink()
    assert seen(root)["changed"] == [ENV], "a unit that is gone, the doctor names"


@pytest.mark.parametrize("name", ["gpushare-pki.timer", "gpushare-pki.service", "gpushare-extender.socket", "gpushare-mps-GPU-0.service"])
def test_a_unit_that_is_gone_and_that_no_doctor_misses_is_found(root: Path, name: str) -> None:
    """Without the timer the certificates run out months later."""
    path = f"/etc/systemd/system/{name}"
    transaction = Transaction("extender", str(root))
    transaction.write(path, HEAD.encode())
    transaction.apply()
    assert seen(root) == NOTHING
    (root / path[1:]).unlink()
    assert seen(root) == {**NOTHING, "changed": [path]}


def test_a_lost_journal_is_found(root: Path) -> None:
    for entry in (root / FOLDER).glob("*.json"):
        entry.unlink()
    assert seen(root) == {**NOTHING, "unrecorded": [UNIT, ENV]}
    (root / FOLDER / "x.json").write_text("{")
    assert "cannot be used" in str(seen(root)["problem"])


@pytest.mark.parametrize(
    ("folder", "text", "starts"),
    [
        ("etc/systemd/system", "[Service]\nExecStart=\nExecStart=/opt/x --memory-unit 256MiB\n", True),
        ("run/systemd/system", "[Service]\nEnvironment=GPUSHARE_COMMAND=x\n", True),
        ("run/systemd/system", "[Service]\nWatchdogSec=0\n", False),
        ("usr/lib/systemd/system", "[Service]\n# ExecStart=x\n", False),
        ("etc/systemd/system", "[Service]\nEnvironment=LOG_LEVEL=debug\n", False),
        ("etc/systemd/system", "[Service]\nEnvironment=LOG_LEVEL=debug LD_PRELOAD=/x\n", True),
        ("etc/systemd/system", "[Service]\nEnvironment=LOG_LEVEL=debug\nEnvironment=LD_PRELOAD=/x\n", True),
        ("etc/systemd/system", "[Service]\nEnvironment=LOG_LEVEL=debug\\\n LD_PRELOAD=/x\n", True),
    ],
)
def test_drop_ins_are_named_and_whether_they_start_something_else(root: Path, folder: str, text: str, starts: bool) -> None:
    place = root / folder / "gpushare-device-plugin.service.d"
    place.mkdir(parents=True)
    (place / "90-mine.conf").write_text(text)
    (place / "90-mine.conf~").write_text(text)
    path = f"/{folder}/gpushare-device-plugin.service.d/90-mine.conf"
    looked = seen(root)
    assert looked == {**NOTHING, "drop_ins": [{"path": path, "starts": starts}]}
    found = VerifyFindings("gpu1")
    judge_files(found, looked)
    assert [(one.check, one.severity) for one in found.list] == [("unit_overridden", "error") if starts else ("unit_extended", "warning")]
    assert path in found.list[0].found


def test_a_journal_that_cannot_be_used_or_lacks_files_is_a_warning() -> None:
    for changes, words, cure in (
        ({"problem": "x cannot be used"}, "x cannot be used", "do what the message states, then run site.yml again"),
        ({"unrecorded": [UNIT, ENV]}, f"no entry of {UNIT}, {ENV} in the journal", "run site.yml again: it notes its files again"),
    ):
        found = VerifyFindings("gpu1")
        judge_files(found, {**NOTHING, **changes})
        assert [(one.check, one.severity, one.found, one.cure) for one in found.list] == [("journal_lost", "warning", words, cure)]
