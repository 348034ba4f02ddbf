# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A daemon of ours under a pretended systemd: restarted when what runs is older than the files, and only then."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.health import fetch_json, unhealthy
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.service import Daemon, Health, SystemdError, apart, generation

from unit.fakes.plugins.daemon.fake_systemd import Systemd

UNIT = "[Unit]\nDescription=x\n\n[Service]\nExecStart=/x\n"


def test_a_new_unit_is_started_and_then_left_alone(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    daemon = systemd.daemon()
    assert not daemon.due()  # no unit, nothing runs
    systemd.write(UNIT, "g1")
    assert daemon.due()
    daemon.restart()
    assert systemd.calls == ["enable", "restart"]
    assert not daemon.due()
    assert daemon.problem() is None


def test_a_process_that_is_older_than_its_unit_is_due_whoever_wrote_it(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    systemd.write(UNIT, "g1")
    systemd.daemon().restart()
    systemd.write(UNIT, "g2")
    assert systemd.daemon().due()
    assert "does not run it from its unit file" in (systemd.daemon().problem() or "")


def test_a_unit_that_was_edited_by_hand_is_due_although_its_generation_is_ours(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    systemd.write(UNIT + "User=nobody\n", "g1")
    systemd.daemon().restart()
    systemd.write(UNIT, "g1")
    assert systemd.daemon().due()
    systemd.daemon().restart()
    assert not systemd.daemon().due()


def test_where_only_copies_are_old_it_is_told_to_reload(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    source, copy = tmp_path / "tls.crt", tmp_path / "copy.crt"
    systemd.copies = {str(source): str(copy)}
    source.write_text("old")
    systemd.write(UNIT, "g1")
    systemd.daemon().restart()
    assert not systemd.daemon().due()
    source.write_text("new")
    daemon = systemd.daemon()
    assert (daemon.due(), daemon.is_stale()) == (True, False)
    daemon.restart()
    assert systemd.calls[-1] == "reload"
    assert not daemon.due()


def test_copies_of_what_does_not_run_are_nobodys(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    systemd.copies = {str(tmp_path / "tls.crt"): str(tmp_path / "copy.crt")}
    (tmp_path / "tls.crt").write_text("new")
    assert not systemd.daemon().due()


def test_what_else_must_be_so_is_part_of_its_health(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    health = Health(None, "synced", 0, also=lambda: "it has no token")
    systemd.write(UNIT, "g1")
    systemd.daemon().restart()
    assert "it has no token" in (
        Daemon("gpushare-x", health, systemd, systemd.environ, str(tmp_path), settings=str(tmp_path)).problem() or ""
    )


def test_what_its_status_must_say_is_part_of_its_health(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    systemd.write(UNIT, "g1")
    systemd.daemon().restart()

    def problem(*says: str) -> str | None:
        health = Health(None, "synced", 0, says=says)
        return Daemon("gpushare-x", health, systemd, systemd.environ, str(tmp_path), settings=str(tmp_path)).problem()

    systemd.status = "gpus: 2 = 40; a: registered; b: waiting"
    assert (problem(), problem("a: registered")) == (None, None)
    words = "its status must say 'b: registered'; it says 'gpus: 2 = 40; a: registered; b: waiting'"
    assert words in (problem("a: registered", "b: registered") or "")


def test_a_process_that_died_is_due(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    systemd.write(UNIT, "g1")
    systemd.daemon().restart()
    systemd.running = None
    assert systemd.daemon().due()


def test_without_a_unit_it_is_stopped(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    systemd.write(UNIT, "g1")
    systemd.daemon().restart()
    systemd.path.unlink()
    assert systemd.daemon().due()
    systemd.daemon().restart()
    assert (systemd.running, systemd.enabled) == (None, False)
    assert systemd.daemon().problem() is None


def test_what_does_not_start_is_said_in_its_own_words(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path, starts=False)
    systemd.write(UNIT, "g1")
    with pytest.raises(SystemdError, match=r"(?s)restart gpushare-x.service failed.*Job failed.*it said this"):
        systemd.daemon().restart()


def test_any_part_changes_the_generation() -> None:
    parts: list[list[str | None]] = [["a", "b"], ["ab", ""], ["a", None], ["a", ""], ["b", "a"]]
    assert len({generation(one) for one in parts}) == len(parts)


def test_a_unit_without_a_service_is_rejected() -> None:
    with pytest.raises(SystemdError, match=r"\[Service\]"):
        apart("[Unit]\n", "/x.env", ["g1"])


def test_a_new_release_is_started_without_a_daemon_reload(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    systemd.write(UNIT, "g1")
    systemd.daemon().restart()
    before, systemd.hurts = systemd.path.read_text(), "gpu pods would lose their GPUs"
    systemd.calls.clear()
    systemd.write(UNIT.replace("ExecStart=/x", "ExecStart=/opt/2/x --option y"), "g2")
    assert systemd.path.read_text() == before
    daemon = systemd.daemon()
    assert (daemon.due(), daemon.needs_reload([daemon.settings])) == (True, False)
    daemon.restart()
    assert systemd.calls == ["enable", "restart"]
    assert not daemon.due()


def test_a_changed_unit_is_not_read_where_that_would_hurt(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    systemd.write(UNIT, "g1")
    assert not systemd.daemon().needs_reload([systemd.daemon().path]), "systemd reads a unit that is new to it anyway"
    systemd.daemon().restart()
    assert systemd.daemon().needs_reload([systemd.daemon().path])
    assert not systemd.daemon().needs_reload([])
    systemd.calls.clear()
    systemd.write(UNIT + "Nice=1\n", "g2")
    assert systemd.daemon().needs_reload([])
    systemd.hurts = "That would take the GPUs from running containers: x.scope (nvidia0)"
    with pytest.raises(SystemdError, match=r"gpushare-x\.service has changed.*take the GPUs.*x\.scope \(nvidia0\)\. Drain this node"):
        systemd.daemon().restart()
    assert systemd.calls == []
    systemd.hurts = None
    systemd.daemon().restart()
    assert systemd.calls == ["daemon-reload", "enable", "restart"]


@pytest.mark.parametrize("word", ["a'b", 'a"b', "a\\b", "$HOME", "%h", "a;b", "x" * 90 + "'"])
def test_a_word_that_systemd_would_read_otherwise_is_rejected(word: str) -> None:
    with pytest.raises(SystemdError, match="a word may have letters, digits") as error:
        apart(f"[Service]\nExecStart=/x {word} y\n", "/x.env", [])
    assert len(str(error.value)) < 260


def test_a_unit_that_starts_nothing_is_rejected() -> None:
    with pytest.raises(SystemdError, match="a line ExecStart="):
        apart("[Service]\nType=oneshot\n", "/x.env", [])


def test_a_certificate_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    found, why = fetch_json("https://127.0.0.1:1/healthz", ca=str(tmp_path / "ca.crt"))
    assert found is None
    assert f"{tmp_path}/ca.crt must be a certificate authority in PEM" in why


def test_an_answer_is_read_to_its_bound_and_quoted_in_few_words() -> None:
    assert fetch_json('data:,{"synced":true}') == ({"synced": True}, "")
    assert fetch_json(f'data:,{{"synced":true}}{" " * (2**20 - 15)}') == ({"synced": True}, "")
    found, why = fetch_json(f'data:,{{"synced":"{"x" * (2**20 - 12)}"}}')
    assert (found, why.partition(" must answer JSON; it answers ")[2]) == (None, f"""b'{{"synced":"{"x" * 69}'""")


def test_health_is_the_key_being_true() -> None:
    assert unhealthy({"synced": True}, "", "synced") is None
    assert "it says" in (unhealthy({"synced": False}, "", "synced") or "")
    assert "it says" in (unhealthy({"synced": "true"}, "", "synced") or "")
    assert unhealthy(None, "cannot be read", "synced") == "cannot be read"


def test_a_converged_node_is_only_asked(tmp_path: Path) -> None:
    # A daemon-reload can take the GPUs from containers that run: systemd closes the devices that it does not know of.
    systemd = Systemd(tmp_path)
    systemd.write(UNIT, "g1")
    systemd.daemon().restart()
    systemd.calls.clear()
    daemon = systemd.daemon()
    assert not daemon.due()
    daemon.restart()
    assert daemon.problem() is None
    assert systemd.calls == []
    systemd.enabled = False
    assert daemon.due()
    daemon.restart()
    assert (systemd.enabled, systemd.calls, daemon.due()) == (True, ["enable"], False)


@pytest.mark.parametrize("restored", ["gpushare-x.yaml", "gpushare-x.env"])
def test_a_process_that_a_person_started_with_other_settings_is_started_again_with_ours(tmp_path: Path, restored: str) -> None:
    """The hash of the settings stands beside them, where a change by hand leaves it as it is."""
    systemd, file = Systemd(tmp_path), tmp_path / restored
    config = tmp_path / "gpushare-x.yaml"
    config.write_text("ours")
    systemd.write(UNIT, "g1")
    systemd.daemon(config).restart()
    assert not systemd.daemon(config).due()
    ours, theirs = file.read_text(), file.read_text() + "# by hand\n"
    file.write_text(theirs)
    systemd.on_restart()
    assert not systemd.daemon(config).due()
    file.write_text(ours)
    # The kernel's own time of a write is a few milliseconds old.
    os.utime(file, (time.time(),) * 2)
    systemd.calls.clear()
    systemd.daemon(config).restart()
    assert systemd.calls == ["enable", "restart"]
    assert not systemd.daemon(config).due()
    # On a host whose clock was ahead.
    os.utime(file, (time.time() + 3600,) * 2)
    assert not systemd.daemon(config).due()


INVOCATION = "0123456789abcdef" * 2
PORT = "ERROR extender: cannot listen on 127.0.0.1:32766: Address already in use"


@pytest.mark.parametrize(
    ("invocation", "of_this", "of_unit", "said"),
    [
        (INVOCATION, f"INFO a\n{PORT}\nINFO b", "INFO of another start", f"{PORT}\nBefore that:\nINFO a\n{PORT}\nINFO b"),
        (INVOCATION, f"{PORT}\nINFO b", "INFO of another start", f"{PORT}\nINFO b"),
        (INVOCATION, "x: error: argument --memory-unit\n", "", "x: error: argument --memory-unit"),
        (INVOCATION, "", "INFO of another start", "INFO of another start"),
        ("", "never", "INFO of any start", "INFO of any start"),
        ("--unit=x", "never", "INFO of any start", "INFO of any start"),
        (INVOCATION, "", "", "(its journal is empty)"),
    ],
)
def test_a_failed_start_quotes_its_own_words_and_its_last_error_first(invocation: str, of_this: str, of_unit: str, said: str) -> None:
    def run(argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "systemctl":
            return 0, f"InvocationID={invocation}\n", ""
        assert argv[-1] == "--output=cat"
        return 0, of_this if f"_SYSTEMD_INVOCATION_ID={INVOCATION}" in argv else of_unit, ""

    assert Daemon("gpushare-x", Health(None, "synced", 0), run, lambda _pid: b"").journal() == said
