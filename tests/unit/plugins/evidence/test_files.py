# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The files that run our daemons, against the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import FOLDER
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.files import files
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.daemons import judge_files
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import VerifyFindings

from unit.fakes.plugins.fake_root import FakeRoot

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
    return dict(answer_of(files(Host(str(root)))))


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


PLUGIN = "gpushare-device-plugin.service"
PATHS = "/etc/systemd/system.control /etc/systemd/system /run/systemd/system /usr/local/lib/systemd/system /usr/lib/systemd/system"


def systemd(root: Path, *loaded: str, **state: str) -> None:
    """What it answers, of its folders and of the plugin. loaded: paths of drop-ins that it has read."""
    known = {
        "ActiveState": "active",
        "Result": "success",
        "NeedDaemonReload": "no",
        "ExecMainStartTimestampMonotonic": str(10**15),
        **state,
    }
    lines = [f"Id={PLUGIN}", f"DropInPaths={' '.join(loaded)}", *(f"{key}={value}" for key, value in known.items())]
    FakeRoot(root).program("/usr/bin/systemctl", "\n".join([f"UnitPath={PATHS}", "", *lines]))


def put(root: Path, path: str, text: str) -> None:
    FakeRoot(root).file(path, text)
    FakeRoot(root).file(f"{path}~", text)


@pytest.mark.parametrize(
    ("folder", "text", "starts"),
    [
        ("etc/systemd/system", "[Service]\nExecStart=\nExecStart=/opt/x --memory-unit 256MiB\n", True),
        ("run/systemd/system", "[Service]\nEnvironment=GPUSHARE_COMMAND=x\n", True),
        ("run/systemd/system", "[Service]\nWatchdogSec=0\n", False),
        ("usr/lib/systemd/system", "[Service]\n# ExecStart=x\nNice=1\n", False),
        ("usr/local/lib/systemd/system", "[Service]\nNice=1\n", False),
        ("etc/systemd/system", "[Service]\nEnvironment=LOG_LEVEL=debug\n", False),
        ("etc/systemd/system", "[Service]\nEnvironment=LOG_LEVEL=debug LD_PRELOAD=/x\n", True),
        ("etc/systemd/system", "[Service]\nEnvironment=LOG_LEVEL=debug\nEnvironment=LD_PRELOAD=/x\n", True),
        ("etc/systemd/system", "[Service]\nEnvironment=LOG_LEVEL=debug\\\n LD_PRELOAD=/x\n", True),
    ],
)
@pytest.mark.parametrize("name", [PLUGIN, "gpushare-device-.service", "gpushare-.service"])
def test_drop_ins_are_named_and_whether_they_start_something_else(root: Path, folder: str, text: str, starts: bool, name: str) -> None:
    """systemd has read none of them yet, and will at the next daemon-reload."""
    systemd(root)
    path = f"/{folder}/{name}.d/90-mine.conf"
    put(root, path, text)
    looked = seen(root)
    assert looked == {**NOTHING, "drop_ins": [{"path": path, "starts": starts, "stops": []}]}
    found = VerifyFindings("gpu1")
    judge_files(found, looked)
    assert [(one.check, one.severity) for one in found.list] == [("unit_overridden", "error") if starts else ("unit_extended", "warning")]
    assert path in found.list[0].found


MINE = f"/etc/systemd/system/{PLUGIN}.d/50-mine.conf"
HARD = "[Service]\nPrivateDevices=yes\nMemoryMax=20M\nWatchdogSec=0\n"


@pytest.mark.parametrize(
    ("loaded", "state", "stops"),
    [
        (True, {}, False),
        (True, {"ActiveState": "inactive"}, False),
        (False, {}, True),
        (True, {"NeedDaemonReload": "yes"}, True),
        (True, {"ExecMainStartTimestampMonotonic": "0"}, True),
        (True, {"ActiveState": "activating", "Result": "signal"}, True),
        (True, {"ActiveState": "failed", "Result": "oom-kill"}, True),
    ],
)
def test_a_drop_in_that_takes_something_is_a_fault_until_the_daemon_has_run_with_it(
    root: Path, loaded: bool, state: dict[str, str], stops: bool
) -> None:
    put(root, MINE, HARD)
    systemd(root, *([MINE] if loaded else []), **state)
    looked = seen(root)
    assert looked["drop_ins"] == [{"path": MINE, "starts": False, "stops": ["PrivateDevices=yes", "MemoryMax=20M"] if stops else []}]
    found = VerifyFindings("gpu1")
    judge_files(found, looked)
    assert [(one.check, one.severity) for one in found.list] == [("unit_overridden", "error") if stops else ("unit_extended", "warning")]
    assert ("PrivateDevices=yes, MemoryMax=20M" in found.list[0].found) == stops


@pytest.mark.parametrize(
    "text", ["MemoryMax=infinity", "PrivateDevices=no", "IPAddressDeny=", "ProtectHome=false", "# MemoryMax=1M", "Nice=5"]
)
def test_what_switches_a_limit_off_takes_nothing(root: Path, text: str) -> None:
    systemd(root)
    put(root, MINE, f"[Service]\n{text}\nCPUWeight=10\n")
    assert seen(root)["drop_ins"] == [{"path": MINE, "starts": False, "stops": []}]


@pytest.mark.parametrize(
    ("text", "state", "said"),
    [
        ("TimeoutStopFailureMode=abort", {}, []),
        ("ProtectHome=yes", {}, []),
        ("PrivateDevices=yes", {"ActiveState": "failed", "Result": "exit-code"}, ["PrivateDevices=yes"]),
    ],
)
def test_a_distributions_drop_in_for_all_services_counts_where_a_daemon_fails_with_it(
    root: Path, text: str, state: dict[str, str], said: list[str]
) -> None:
    """Such as Fedora's 10-timeout-abort.conf."""
    path = "/usr/lib/systemd/system/service.d/10-all.conf"
    put(root, path, f"[Service]\n{text}\n")
    systemd(root, path, **state)
    assert seen(root)["drop_ins"] == ([{"path": path, "starts": False, "stops": said}] if said else [])


def test_a_drop_in_that_another_one_of_its_name_replaces_is_none(root: Path) -> None:
    systemd(root)
    put(root, f"/usr/lib/systemd/system/{PLUGIN}.d/50-mine.conf", HARD)
    FakeRoot(root).link(MINE, "/dev/null")
    assert seen(root) == NOTHING


def test_a_journal_that_cannot_be_used_or_lacks_files_is_a_warning() -> None:
    for changes, words, cure in (
        ({"problem": "x cannot be used"}, "x cannot be used", "do what the message states, then run site.yml again"),
        ({"unrecorded": [UNIT, ENV]}, f"no entry of {UNIT}, {ENV} in the journal", "run site.yml again: it notes its files again"),
    ):
        found = VerifyFindings("gpu1")
        judge_files(found, {**NOTHING, **changes})
        assert [(one.check, one.severity, one.found, one.cure) for one in found.list] == [("journal_lost", "warning", words, cure)]
