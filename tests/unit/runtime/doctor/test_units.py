# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Units and their processes, as the doctor reads and judges them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.doctor import host as doctor_host
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import EXTENDER, MOST_BYTES, PLUGIN, CannotLook, DaemonUnit, HostReader, printed, shown
from gpushare_runtime.doctor.units import TRIGGERS, judge_trigger, judge_unit
from unit.fakes.runtime.doctor.fake_host import COPIES, ENVIRONMENT, STAMP, UNITS, FakeHost, said, settings
from unit.golden import Golden


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def test_a_unit_with_the_generations_of_its_settings_and_of_its_process(host: FakeHost) -> None:
    host.install(EXTENDER, StatusText="a=b")
    lines = settings(EXTENDER, "/opt/x/gpushare-extender --token-file y --listen 127.0.0.1:1", "new")
    host.file(f"/etc/gpushare/{EXTENDER}.env", lines)
    # It may say of itself what it likes; root reads the files that are named there, and sends one of them away.
    host.file("/proc/77/cmdline", b"/opt/x/gpushare-extender\0--metrics-token-file\0/etc/shadow\0")
    host.file("/proc/77/environ", b"XGPUSHARE_GENERATION=x\0A=1\0GPUSHARE_GENERATION=old\0GPUSHARE_GENERATION=later\0")
    unit = host.unit(EXTENDER)
    assert unit == DaemonUnit(EXTENDER, UNITS[EXTENDER], lines, "active", "running", True, "a=b", 77, "old", "a=b", "loaded")
    assert unit.arguments == ["/opt/x/gpushare-extender", "--token-file", "y", "--listen", "127.0.0.1:1"]
    assert (unit.file_stamp, unit.option("token-file"), unit.option("tls-cert")) == ("new", "y", "")


def test_a_unit_of_which_less_is_there(host: FakeHost) -> None:
    assert host.unit(EXTENDER) == DaemonUnit(EXTENDER, None, "", "inactive", "dead")
    host.states["gpushare-extender.service"] = {}
    assert host.unit(EXTENDER) == DaemonUnit(EXTENDER, None)
    text = "[Service]\n# EnvironmentFile=/etc/gpushare/gpushare-extender.env\n"
    host.install(EXTENDER, text=text, ActiveState="inactive", SubState="dead", UnitFileState="disabled", MainPID="")
    host.file("/proc/0/environ", b"")
    unit = host.unit(EXTENDER)
    assert unit == DaemonUnit(EXTENDER, text, "", "inactive", "dead", load="loaded")
    assert (unit.file_stamp, unit.arguments) == ("", [])
    host.states["gpushare-extender.service"]["MainPID"] = "78"
    assert host.unit(EXTENDER).stamp is None
    host.file("/proc/78/environ", b"A=1")
    assert host.unit(EXTENDER).stamp == ""
    assert replace(unit, settings='GPUSHARE_COMMAND="x\n').arguments == []


def test_systemd_is_asked_about_the_unit_by_its_file_name(host: FakeHost) -> None:
    host.unit("x")
    ((program, verb, name, properties),) = host.asked
    assert (program, verb, name) == ("systemctl", "show", "x.service")
    wanted = {"LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "StatusText", "Result", "InvocationID"}
    assert set(properties.removeprefix("--property=").split(",")) == wanted


def test_what_the_extender_reads_from_copies_is_read_where_root_has_it(host: FakeHost) -> None:
    host.install(EXTENDER)
    unit = host.unit(EXTENDER)
    assert unit.option("seed-token-file") == f"{COPIES}/extender.token"
    assert unit.file("seed-token-file") == "/etc/gpushare/extender.token"
    assert unit.file("tls-cert") == "/etc/gpushare/pki/extender.crt"
    assert unit.file("client-ca") == "/etc/gpushare/pki/ca.crt"
    assert unit.file("token-file") == "/var/lib/gpushare-extender/token"
    assert unit.file("metrics-token-file") == ""
    host.install(PLUGIN)
    assert host.unit(PLUGIN).file("seed-token-file") == "/etc/gpushare/device-plugin.token"


def test_nothing_but_a_regular_file_is_read_and_of_it_not_more_than_the_limit(host: FakeHost) -> None:
    host.file("/a", b"x" * (MOST_BYTES + 1))
    assert host.read("/a") == b"x" * MOST_BYTES
    assert host.read("/a", 3) == b"xxx"
    # The extender may write to its own folder what it likes.
    host.at("/link").symlink_to(host.at("/a"))
    os.mkfifo(host.at("/pipe"))
    host.at("/folder").mkdir()
    host.socket("/socket")
    for name in ("link", "pipe", "folder", "socket", "nothing", "\0"):
        assert host.read(f"/{name}") is None, name


def test_a_daemon_that_failed_before_it_said_anything_is_quoted_from_its_journal(host: FakeHost) -> None:
    wrong = "gpushare-device-plugin: error: argument --memory-unit: invalid choice: '512MiB'"
    start = "a1" * 16
    host.last_lines[f"_SYSTEMD_INVOCATION_ID={start}"] = f"{wrong}\n"
    for changes, words in (
        ({"ActiveState": "failed"}, wrong),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, wrong),
        ({"ActiveState": "activating", "SubState": "start"}, ""),
        ({"ActiveState": "inactive", "SubState": "dead"}, ""),
        ({"ActiveState": "failed", "StatusText": "no GPU"}, "no GPU"),
    ):
        host.install(PLUGIN, **{"StatusText": "", "InvocationID": start, **changes})
        assert host.unit(PLUGIN).says == words
    del host.last_lines[f"_SYSTEMD_INVOCATION_ID={start}"]
    host.install(PLUGIN, StatusText="", ActiveState="failed", InvocationID=start)
    assert host.unit(PLUGIN).says == ""
    # Such as a folder that is missing: the process was never its own program.
    host.last_lines[f"INVOCATION_ID={start}"] = "Failed at step NAMESPACE spawning /bin/mkdir: No such file or directory\n"
    assert host.unit(PLUGIN).says.startswith("Failed")


def test_the_words_of_an_earlier_and_healthy_process_are_no_last_words(host: FakeHost) -> None:
    host.last_lines[f"_SYSTEMD_INVOCATION_ID={'b2' * 16}"] = "INFO gpushare_runtime.device_plugin.main stopped\n"
    for now in ("a1" * 16, "", "x"):
        host.install(PLUGIN, StatusText="", ActiveState="failed", InvocationID=now)
        assert host.unit(PLUGIN).says == ""


def test_what_others_wrote_is_shown_in_one_line_and_not_in_full() -> None:
    assert shown("a\x1b[2J\n b ") == "a [2J b"
    assert shown("x" * 301) == "x" * 300 + "…"
    assert shown("x" * 300) == "x" * 300


def test_the_command_of_a_process_has_three_words(host: FakeHost) -> None:
    host.file("/proc/5/cmdline", b"/bin/other-plugin\0--x\0y\0z\0")
    assert (host.command(5), host.command(6)) == ("/bin/other-plugin --x y", "")


def test_systemctl_that_fails_hangs_or_is_not_there_is_no_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, golden: Golden) -> None:
    program = tmp_path / "systemctl"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program.write_text('#!/bin/sh\nif [ "$1" = fail ]; then echo no bus >&2; exit 1; fi\necho "$@"\n')
    program.chmod(0o755)
    assert printed(["systemctl", "show", "x"]) == "show x\n"
    with golden.raised(CannotLook):
        printed(["systemctl", "fail"])
    monkeypatch.setattr(doctor_host, "_SYSTEMCTL_SECONDS", 0.2)
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(CannotLook, match="timed out"):
        printed(["systemctl", "show"])
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with golden.raised(CannotLook):
        printed(["systemctl", "show"])


# Judgements

NOT_FROM_DISK = f"{EXTENDER}.service running from other files than those on the disk"


@pytest.mark.parametrize(
    ("changes", "runs", "expected"),
    [
        ({}, True, []),
        ({"text": None, "active": "failed"}, False, [("extender_missing", f"no unit {EXTENDER}.service")]),
        ({"active": "activating", "state": "start", "says": "waits", "stamp": "new", "enabled": False}, True, []),
        ({"active": "activating", "state": "start"}, False, [("extender_down", f"{EXTENDER}.service activating (start)")]),
        (
            {"active": "activating", "state": "auto-restart", "says": "no API"},
            False,
            [("extender_down", f"{EXTENDER}.service activating (auto-restart, its last words: no API)")],
        ),
        ({"active": "failed", "state": "", "enabled": False}, False, [("extender_down", f"{EXTENDER}.service failed (no state)")]),
        (
            {"active": "deactivating", "state": "start", "says": "y"},
            False,
            [("extender_down", f"{EXTENDER}.service deactivating (start, its last words: y)")],
        ),
        ({"stamp": "new"}, True, [("extender_older_than_file", NOT_FROM_DISK)]),
        ({"enabled": False}, True, [("warning extender_not_at_boot", f"{EXTENDER}.service not enabled")]),
        (
            {"enabled": False, "stamp": None},
            True,
            [("extender_older_than_file", NOT_FROM_DISK), ("warning extender_not_at_boot", f"{EXTENDER}.service not enabled")],
        ),
    ],
)
def test_a_daemon_runs_from_the_files_on_the_disk_now_and_after_a_boot(
    host: FakeHost, changes: dict[str, Any], runs: bool, expected: list[tuple[str, str]]
) -> None:
    host.install(EXTENDER)
    found = Findings()
    assert judge_unit(found, replace(host.unit(EXTENDER), **changes), ENVIRONMENT) is runs
    assert said(found) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (ENVIRONMENT, []),
        ("/opt/gpushare/0.2.0-0123456789ab", [("runtime_differs", f"{EXTENDER}.service running {ENVIRONMENT}/bin/gpushare-extender")]),
        (ENVIRONMENT[:-1], [("runtime_differs", f"{EXTENDER}.service running {ENVIRONMENT}/bin/gpushare-extender")]),
    ],
)
def test_a_daemon_runs_from_the_runtime_in_use(host: FakeHost, environment: str, expected: list[tuple[str, str]]) -> None:
    host.install(EXTENDER)
    found = Findings()
    assert judge_unit(found, host.unit(EXTENDER), environment)
    assert said(found) == expected
    # Without a program in its file it is not told from where it runs; that it is another file is said.
    found = Findings()
    judge_unit(found, replace(host.unit(EXTENDER), settings="", stamp=STAMP), environment)
    assert said(found) == [("extender_older_than_file", NOT_FROM_DISK)]


def test_a_plugin_that_is_down_is_called_stopped(host: FakeHost) -> None:
    host.install(PLUGIN, ActiveState="failed", SubState="failed", StatusText="")
    found = Findings()
    assert not judge_unit(found, host.unit(PLUGIN), ENVIRONMENT)
    assert said(found) == [("plugin_stopped", f"{PLUGIN}.service failed (failed)")]
    assert f"systemctl restart {PLUGIN};" in found.findings[0].cure
    found = Findings()
    judge_unit(found, DaemonUnit(PLUGIN, None), ENVIRONMENT)
    assert said(found) == [("plugin_missing", f"no unit {PLUGIN}.service")]


@pytest.mark.parametrize(
    ("result", "words", "cure"),
    [
        ("success", "failed (failed)", f"journalctl -u {PLUGIN} -n 50"),
        ("exit-code", "failed (failed)", f"journalctl -u {PLUGIN} -n 50"),
        ("oom-kill", "oom-kill: the kernel ended it for lack of memory", "-p MemoryMax -p DropInPaths"),
        ("signal", "signal: a signal ended it", "dmesg"),
        ("watchdog", "watchdog: it hung", "nvidia-smi"),
    ],
)
def test_what_ended_a_daemon_is_said_as_systemd_knows_it(host: FakeHost, result: str, words: str, cure: str) -> None:
    host.install(PLUGIN, ActiveState="failed", SubState="failed", StatusText="", Result=result)
    found = Findings()
    judge_unit(found, host.unit(PLUGIN), ENVIRONMENT)
    (one,) = found.findings
    assert one.check == "plugin_stopped"
    assert words in one.found
    assert one.cure.startswith(f"systemctl restart {PLUGIN};")
    assert cure in one.cure


def test_a_masked_unit_is_unmasked_before_anything_else(host: FakeHost, golden: Golden) -> None:
    host.install(PLUGIN, ActiveState="inactive", SubState="dead", LoadState="masked")
    found = Findings()
    judge_unit(found, host.unit(PLUGIN), ENVIRONMENT)
    assert found.findings[0].cure == f"systemctl unmask {PLUGIN}; systemctl restart {PLUGIN}"
    # As `systemctl mask` leaves it where somebody has moved the file away before.
    path = host.at(f"/etc/systemd/system/{PLUGIN}.service")
    path.unlink()
    path.symlink_to("/dev/null")
    found = Findings()
    judge_unit(found, host.unit(PLUGIN), ENVIRONMENT)
    assert found.findings[0].check == "plugin_missing"
    golden(found.findings[0].found)
    golden(found.findings[0].cure)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"ActiveState": "active", "UnitFileState": "enabled"}, []),
        ({"ActiveState": "active", "UnitFileState": "enabled-runtime"}, []),
        ({"ActiveState": "inactive", "UnitFileState": "disabled"}, ["gpushare-pki.timer inactive (disabled): nothing renews"]),
        ({"ActiveState": "inactive", "UnitFileState": "enabled"}, ["gpushare-pki.timer inactive (enabled): nothing renews"]),
        ({"ActiveState": "active", "UnitFileState": "disabled"}, ["gpushare-pki.timer active (disabled): nothing renews"]),
    ],
)
def test_a_timer_that_is_off_is_told_before_the_certificates_run_out(host: FakeHost, state: dict[str, str], expected: list[str]) -> None:
    host.install(EXTENDER)
    found = Findings()
    host.states["gpushare-pki.timer"] = state
    judge_trigger(found, host, host.unit(EXTENDER))
    assert said(found) == [], "plain http has no certificates, and so no timer"
    host.file("/etc/systemd/system/gpushare-pki.timer", "[Timer]\n")
    judge_trigger(found, host, host.unit(EXTENDER))
    assert [code for code, _ in said(found)] == ["warning trigger_stopped"] * len(expected)
    assert all(one.found.startswith(words) for one, words in zip(found.findings, expected, strict=True))
    assert all(one.cure == "systemctl enable --now gpushare-pki.timer" for one in found.findings)


def test_what_starts_others_is_what_the_installer_writes() -> None:
    from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.subjects import units

    assert {name for name, _ in TRIGGERS.values()} == {name for name in units() if name.endswith((".timer", ".path"))}


def test_the_doctor_reads_what_the_installer_writes(host: FakeHost) -> None:
    from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.service import apart

    path = f"/srv/gpushare/{EXTENDER}.env"
    rendered = "[Unit]\n\n[Service]\nType=notify\nExecStart=/opt/x/bin/gpushare-extender \\\n  --listen 127.0.0.1:1\nRestart=always\n"
    text, lines = apart(rendered, path, ["a"])
    host.install(EXTENDER, text=text)
    host.file(path, lines)
    unit = host.unit(EXTENDER)
    assert (unit.arguments, len(unit.file_stamp)) == (["/opt/x/bin/gpushare-extender", "--listen", "127.0.0.1:1"], 16)
    assert unit.option("listen") == "127.0.0.1:1"


def test_the_installer_names_the_variable_of_the_generation_alike() -> None:
    from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import names
    from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.service import VARIABLE
    from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import UNITS

    assert (VARIABLE, UNITS) == (doctor_host.GENERATION, doctor_host.UNITS)
    assert (names.PLUGIN, names.EXTENDER) == (PLUGIN, EXTENDER)
    assert HostReader().at("/etc/x") == Path("/etc/x")


def test_the_settings_of_a_unit_are_options_or_a_file(host: FakeHost) -> None:
    """As gpushare 0.1 had them, and as they are since."""
    host.install(PLUGIN)
    of_options = host.unit(PLUGIN)
    assert (of_options.option("kubelet-root"), of_options.option("token-file")) == (
        "/data/kubelet",
        "/var/lib/gpushare-device-plugin/token",
    )
    file = "/etc/gpushare/gpushare-device-plugin.yaml"
    host.install(PLUGIN, command=f"{ENVIRONMENT}/bin/gpushare-device-plugin --config {file}")
    assert host.unit(PLUGIN).option("kubelet-root") == ""
    host.file(file, "# A comment.\nkubeletRoot: /data/kubelet\ncdiSpecDirs: [/a, /b]\ntokenSeconds: 600\n")
    unit = host.unit(PLUGIN)
    assert (unit.option("kubelet-root"), unit.options("cdi-spec-dir"), unit.option("token-seconds")) == (
        "/data/kubelet",
        ["/a", "/b"],
        "600",
    )
    assert unit.option("token-file") == ""
    host.file(file, "a: b: c\n")
    assert host.unit(PLUGIN).config == {}
