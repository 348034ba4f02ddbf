# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A daemon's files, its companions under a pretended systemd, and gpushare-pki's answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import engine, journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import Converged
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon import pki
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.files import DaemonFiles, InstalledDaemon, health_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.service import Companions, Daemon, Health, SystemdError, sockets

from unit.fakes.plugins.identity.tokens import claims, jwt

UNIT = "[Unit]\nDescription=x\n\n[Service]\nExecStart=/x --listen 127.0.0.1:7\n"
SOCKET, METRICS = "gpushare-extender.socket", "gpushare-extender-metrics.socket"


def nothing_runs(argv: list[str]) -> tuple[int, str, str]:
    return 0, "ActiveState=inactive\nMainPID=0\n", ""


def idle(wanted: DaemonFiles, folder: Path) -> InstalledDaemon:
    """One that does not run."""
    daemon = Daemon("gpushare-extender", Health(None, "synced", 0), nothing_runs, lambda pid: b"", str(folder), settings=str(folder))
    return InstalledDaemon(wanted, daemon, Companions({}, nothing_runs, str(folder), str(folder)), lambda: None)


@pytest.fixture
def wanted(tmp_path: Path) -> DaemonFiles:
    return DaemonFiles(
        name="gpushare-extender",
        unit=UNIT,
        kubeconfig_path=str(tmp_path / "x.kubeconfig"),
        kubeconfig_content="server: a\n",
        seed_path=str(tmp_path / "x.token"),
        token_path=str(tmp_path / "state/token"),
        copies=(str(tmp_path / "tls.crt"),),
    )


def files(wanted: DaemonFiles, folder: Path) -> dict[str, str]:
    """The files that it shall have: name to content."""
    return {Path(path).name: str(text) for path, text in idle(wanted, folder).present(None).files.items() if text is not None}


def diff(wanted: DaemonFiles, folder: Path) -> str:
    return json.dumps(engine.converge(idle(wanted, folder), False, True).diff)


def test_a_daemon_is_its_kubeconfig_its_seed_and_its_unit(wanted: DaemonFiles, tmp_path: Path) -> None:
    found = files(replace(wanted, seed_content="a.b.c"), tmp_path)
    assert list(found) == ["x.kubeconfig", "x.token", "gpushare-extender.service", "gpushare-extender.env"]
    assert found["x.token"] == "a.b.c\n"
    assert wanted.copied == {str(tmp_path / "tls.crt"): "/run/gpushare-extender-copies/tls.crt"}


def test_every_file_has_its_mode_and_a_secret_that_is_not_wanted_goes(wanted: DaemonFiles, systemd: Systemd, tmp_path: Path) -> None:
    gone = tmp_path / "gone.token"
    gone.write_text("s3cret")
    secrets = {str(tmp_path / "m.token"): " s3cret\n\n", str(gone): ""}
    assert converge(replace(wanted, seed_content=" a.b.c ", secrets=secrets), systemd).changed
    found = {path.name: (path.read_text(), oct(path.stat().st_mode & 0o777)) for path in tmp_path.glob("*.*")}
    assert found == {"x.kubeconfig": ("server: a\n", "0o600"), "x.token": ("a.b.c\n", "0o600"), "m.token": ("s3cret\n", "0o600")}
    assert {oct(path.stat().st_mode & 0o777) for path in systemd.folder.iterdir()} == {"0o644"}


def test_the_settings_name_what_the_kubeconfig_on_the_host_holds_where_none_is_given(wanted: DaemonFiles, tmp_path: Path) -> None:
    given = files(wanted, tmp_path)
    without = replace(wanted, kubeconfig_content=None)
    none = files(without, tmp_path)
    assert list(none) == ["gpushare-extender.service", "gpushare-extender.env"]
    Path(wanted.kubeconfig_path).write_text("server: a\n")
    assert files(without, tmp_path) == {name: given[name] for name in none}
    assert (none["gpushare-extender.env"] != given["gpushare-extender.env"], none["gpushare-extender.service"]) == (
        True,
        given["gpushare-extender.service"],
    )
    assert "x.token" not in files(replace(wanted, seed_content=""), tmp_path)
    assert list(files(replace(without, seed_path=None, seed_content="a"), tmp_path)) == list(none)
    with pytest.raises(SystemdError, match=r"the unit must have a line \[Service\]"):
        files(replace(without, unit=None), tmp_path)


def test_health_is_asked_as_it_was_said_and_after_a_new_seed_its_own_token_is_waited_for(wanted: DaemonFiles) -> None:
    seed, token = jwt(claims()), Path(wanted.token_path or "")
    health = health_of(replace(wanted, seed_content=seed), "https://x", "/ca", "synced", 7)
    assert (health.url, health.key, health.timeout, health.ca, health.says) == ("https://x", "synced", 7, "/ca", ())
    assert health_of(wanted, None, None, "synced", 7, ["registered"]).says == ["registered"]
    Path(wanted.seed_path or "").write_text(seed + "\n")
    assert health.also() == f"it must get a token of its own with the new seed in {wanted.seed_path}; {token} is missing"
    token.parent.mkdir()
    for older in (b"\xff", jwt(claims(iat=1)).encode()):
        token.write_bytes(older)
        assert (health.also() or "").endswith("holds an older one")
    token.write_text(seed)
    assert health.also() is None
    for without in (wanted, replace(wanted, seed_content=seed, seed_path=None)):
        assert health_of(without, None, None, "synced", 0).also() is None


def test_other_secrets_are_files_of_their_own_that_restart_nothing(wanted: DaemonFiles, tmp_path: Path) -> None:
    path = str(tmp_path / "x-metrics.token")
    before, with_one = files(wanted, tmp_path), files(replace(wanted, secrets={path: "s3cret"}), tmp_path)
    assert with_one == {**before, "x-metrics.token": "s3cret\n"}
    assert files(replace(wanted, secrets={path: ""}), tmp_path) == before
    Path(path).write_text("s3cret\n")
    for content in ("", "another"):
        shown = diff(replace(wanted, secrets={path: content}), tmp_path)
        assert (path in shown, "s3cret" in shown, "another" in shown) == (True, False, False)


def test_settings_in_a_file_are_what_the_process_was_started_with_and_stand_in_the_diff(
    wanted: DaemonFiles, systemd: Systemd, tmp_path: Path
) -> None:
    one = replace(wanted, config={"kind": "XConfig", "overuseGrace": 60, "nodeName": "gpu1"})
    found = files(one, tmp_path)
    assert found["gpushare-extender.yaml"].splitlines()[2:] == [
        "apiVersion: gpushare.kubernetes/v1",
        "kind: XConfig",
        'nodeName: "gpu1"',
        "overuseGrace: 60",
    ]
    other = replace(one, config={**one.config, "overuseGrace": 90})
    changed = files(other, tmp_path)
    assert {name for name in found if found[name] != changed[name]} == {"gpushare-extender.env", "gpushare-extender.yaml"}
    assert "overuseGrace: 90" in diff(other, tmp_path)
    assert converge(one, systemd).changed
    assert oct((tmp_path / "gpushare-extender.yaml").stat().st_mode & 0o777) == "0o644"


def test_secrets_are_in_no_diff(wanted: DaemonFiles, tmp_path: Path) -> None:
    (tmp_path / "x.kubeconfig").write_text("token: of-a-former-release\n")
    shown = diff(replace(wanted, seed_content="a.b.c"), tmp_path)
    assert "of-a-former-release" not in shown
    assert "a.b.c" not in shown


def test_a_seed_changes_nothing_that_a_restart_would_be_due_for(wanted: DaemonFiles, tmp_path: Path) -> None:
    settings = files(wanted, tmp_path)["gpushare-extender.env"]
    assert files(replace(wanted, seed_content="a.b.c"), tmp_path)["gpushare-extender.env"] == settings
    for other in (
        replace(wanted, kubeconfig_content="server: b\n"),
        replace(wanted, unit=UNIT + "User=x\n"),
        replace(wanted, unit=UNIT.replace("/x", "/y")),
    ):
        assert files(other, tmp_path)["gpushare-extender.env"] != settings


def test_a_seed_that_was_put_back_is_waited_for_no_longer(wanted: DaemonFiles) -> None:
    health = health_of(replace(wanted, seed_content=jwt(claims())), None, None, "synced", 0)
    Path(wanted.seed_path or "").write_text(jwt(claims(iat=1)))
    assert health.also() is None


class Systemd:
    """systemctl with any number of units: those loaded with their content, enabled and active ones, and what a process was started from.

    held: the sockets that the process got. taken: an address that somebody else has. starts: whether a service does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded: dict[str, str] = {}
        self.enabled: set[str] = set()
        self.active: set[str] = set()
        self.process = ""
        self.rejects = ""
        self.reloads = 0
        self.held: set[str] = set()
        self.taken = ""
        self.starts = True
        self.read_as_enabled = False
        self.hurts: str | None = None

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "journalctl":
            return 0, "it said this", ""
        verb, name = argv[1], argv[-1]
        if verb == self.rejects:
            return 1, "", "Access denied"
        on_disk = {path.name: path.read_text() for path in self.folder.iterdir() if path.suffix != ".env"}
        if verb == "show":
            name = argv[2]
            state = {
                "ActiveState": "active" if name in self.active else "inactive",
                "MainPID": "7" if name in self.active else "0",
                "LoadState": "loaded" if name in self.loaded else "not-found",
                "NeedDaemonReload": "yes" if name in self.loaded and self.loaded[name] != on_disk.get(name) else "no",
            }
            return 0, "".join(f"{key}={value}\n" for key, value in state.items()), ""
        if verb == "is-enabled":
            return (0 if name in self.enabled else 1), "", ""
        if verb == "daemon-reload":
            self.reloads += 1
            self.loaded = {name: text for name, text in on_disk.items() if name in self.loaded}
        elif verb == "enable":
            assert "--no-reload" in argv
            assert name in on_disk
            self.enabled.add(name)
        elif verb in ("restart", "start"):
            self.loaded.setdefault(name, on_disk[name])
            if name in self.active and verb == "start":
                return 0, "", ""
            if name.endswith(".socket") and (
                "gpushare-extender.service" in self.active or f"ListenStream={self.taken}\n" in self.loaded[name]
            ):
                self.active.discard(name)
                return 1, "", f"Job for {name} failed"
            if name.endswith(".service"):
                return self._start(name)
            if name.endswith(".socket"):  # it has systemd read its service, and keep what it finds
                self.read_as_enabled = "gpushare-extender.service" in self.enabled
            if name.endswith(".timer"):  # it has systemd read what it starts
                self.loaded |= {other: text for other, text in on_disk.items() if other == name.replace(".timer", ".service")}
            self.active.add(name)
        elif verb == "stop":
            self.active.discard(name)
            if name == "gpushare-extender.service" and self._sockets():
                # Somebody calls at once, and systemd starts what the socket belongs to.
                self._start(name)
        elif verb == "disable":
            self.enabled.discard(name)
        return 0, "", ""

    def _start(self, name: str) -> tuple[int, str, str]:
        settings = self.folder / name.replace(".service", ".env")
        self.process, self.held = settings.read_text() if settings.exists() else "", self._sockets()
        self.active.add(name)
        if not self.starts:
            self.active.discard(name)
            return 1, "", "it ended"
        return 0, "", ""

    def _sockets(self) -> set[str]:
        return {name for name in self.active if name.endswith(".socket")}

    def environ(self, pid: str) -> bytes:
        return b"\0".join(line.encode() for line in self.process.splitlines()) + b"\0"

    def companions(self, **contents: str | None) -> Companions:
        return Companions({name.replace("_", "."): content for name, content in contents.items()}, self, str(self.folder), str(self.folder))


def test_a_timer_is_started_once_and_looked_at_again_when_it_changes(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    (tmp_path / "p.service").write_text("s")
    (tmp_path / "p.timer").write_text("t")
    companions = systemd.companions(p_service="s", p_timer="t")
    assert companions.due()
    companions.settle()
    assert (systemd.active, systemd.enabled) == ({"p.timer"}, {"p.timer"})
    assert not companions.due()
    (tmp_path / "p.service").write_text("other")
    assert companions.due()
    companions.settle()
    assert not companions.due()
    systemd.active.clear()
    assert companions.due()


def test_a_timer_that_is_not_wanted_is_stopped(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    (tmp_path / "p.timer").write_text("t")
    systemd.companions(p_timer="t").settle()
    (tmp_path / "p.timer").unlink()
    companions = systemd.companions(p_timer=None)
    assert companions.due()
    companions.settle()
    assert (systemd.active, systemd.enabled) == (set(), set())
    assert not companions.due()


def test_systemds_own_words_are_the_error(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    (tmp_path / "p.timer").write_text("t")
    systemd.rejects = "enable"
    with pytest.raises(SystemdError, match=r"systemctl enable --no-reload --quiet p\.timer failed with exit status 1: Access denied"):
        systemd.companions(p_timer="t").settle()


class Killed(BaseException):
    """As SIGKILL: nothing of the module runs any more."""


def converge(
    wanted: DaemonFiles, systemd: Systemd, point: Callable[[str], None] = lambda name: None, held: dict[str, str | None] | None = None
) -> Converged:
    """As the module does. held: other sockets than those of the unit."""
    folder = str(systemd.folder)
    daemon = Daemon("gpushare-extender", Health(None, "synced", 0), systemd, systemd.environ, folder, settings=folder)
    others = {"p.timer": "timer", "p.service": "[Service]\nExecStart=/p\n"}
    of_unit = sockets(wanted.name, wanted.unit or "", wanted.config) if held is None else held
    companions = Companions({**of_unit, **others}, systemd, folder, folder)
    return engine.converge(InstalledDaemon(wanted, daemon, companions, lambda: systemd.hurts), False, False, point)


def test_killed_anywhere_the_next_run_converges(wanted: DaemonFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[str] = []
    for victim in [None, *range(100)]:
        folder = tmp_path / f"units-{victim}"
        folder.mkdir()
        monkeypatch.setattr(journal, "FOLDER", str(tmp_path / f"journal-{victim}").lstrip("/"))
        systemd = Systemd(folder)
        one = replace(wanted, kubeconfig_path=str(tmp_path / f"kubeconfig-{victim}"), seed_path=str(tmp_path / f"seed-{victim}"))
        passed: list[str] = []

        def point(name: str, passed: list[str] = passed, victim: int | None = victim) -> None:
            passed.append(name)
            if victim is not None and len(passed) > victim:
                raise Killed

        if victim is None:
            converge(replace(one, seed_content="a.b.c"), systemd, point)
            points = passed
            continue
        if victim >= len(points):
            break
        with pytest.raises(Killed):
            converge(replace(one, seed_content="a.b.c"), systemd, point)
        # The next run has made another seed, if the daemon has no token yet.
        assert converge(replace(one, seed_content="d.e.f"), systemd).changed
        assert Path(one.seed_path or "").read_text() == "d.e.f\n"
        assert systemd.process == (folder / "gpushare-extender.env").read_text()
        assert systemd.reloads == 0
        assert (systemd.active, systemd.enabled) == ({"gpushare-extender.service", SOCKET, "p.timer"},) * 2
        assert systemd.held == {SOCKET}
        assert not converge(one, systemd).changed
    assert len(points) > 15


def test_what_is_edited_by_hand_and_a_companion_at_once_are_both_taken_back(
    wanted: DaemonFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "units"
    folder.mkdir()
    monkeypatch.setattr(journal, "FOLDER", str(tmp_path / "journal").lstrip("/"))
    systemd = Systemd(folder)
    assert converge(wanted, systemd).changed
    unit = folder / "gpushare-extender.service"
    unit.write_text(unit.read_text() + "User=nobody\n")
    (folder / "p.timer").write_text("other")
    systemd(["systemctl", "daemon-reload"])
    systemd(["systemctl", "restart", unit.name])
    assert converge(wanted, systemd).changed
    assert systemd.loaded[unit.name] == unit.read_text()
    assert "User=nobody" not in unit.read_text()
    assert not converge(wanted, systemd).changed


def with_address(wanted: DaemonFiles, *options: str) -> DaemonFiles:
    return replace(wanted, unit=UNIT.replace("--listen 127.0.0.1:7", " ".join(options)))


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    folder = tmp_path / "units"
    folder.mkdir()
    monkeypatch.setattr(journal, "FOLDER", str(tmp_path / "journal").lstrip("/"))
    return Systemd(folder)


def test_each_address_of_a_daemon_is_roots_before_the_daemon_is_started(wanted: DaemonFiles, systemd: Systemd) -> None:
    both = with_address(wanted, "--listen", "127.0.0.1:7", "\\\n ", "--metrics-listen", "[::1]:8")
    assert converge(both, systemd).changed
    assert systemd.held == {SOCKET, METRICS} <= systemd.enabled
    assert systemd.read_as_enabled
    text = (systemd.folder / METRICS).read_text()
    assert "\n[Socket]\nService=gpushare-extender.service\nListenStream=[::1]:8\nBindIPv6Only=ipv6-only\n" in text
    assert "\n[Install]\nWantedBy=sockets.target gpushare-extender.service\n" in text
    assert not converge(both, systemd).changed
    systemd.active.discard(METRICS)
    assert converge(both, systemd).changed
    assert systemd.held == {SOCKET, METRICS}
    assert converge(wanted, systemd).changed
    assert (systemd.held, (systemd.folder / METRICS).exists(), METRICS in systemd.enabled) == ({SOCKET}, False, False)
    assert not converge(wanted, systemd).changed
    assert systemd.reloads == 0


def test_a_daemon_that_holds_its_address_itself_gives_it_to_root_without_a_daemon_reload(wanted: DaemonFiles, systemd: Systemd) -> None:
    assert converge(wanted, systemd, held={SOCKET: None, METRICS: None}).changed
    assert systemd.held == set()
    assert converge(wanted, systemd).changed
    assert (systemd.held, systemd.reloads) == ({SOCKET}, 0)
    assert not converge(wanted, systemd).changed


def test_an_address_that_somebody_has_is_not_taken_and_all_is_as_before(wanted: DaemonFiles, systemd: Systemd) -> None:
    assert converge(wanted, systemd, held={SOCKET: None, METRICS: None}).changed
    before, process = {path.name: path.read_text() for path in systemd.folder.iterdir()}, systemd.process
    systemd.taken = "127.0.0.1:7"
    with pytest.raises(TransactionError, match=rf"systemctl start {SOCKET} failed with exit status 1: .*; what was there is restored"):
        converge(wanted, systemd)
    assert {path.name: path.read_text() for path in systemd.folder.iterdir()} == before
    assert (systemd.active, systemd.process) == ({"gpushare-extender.service", "p.timer"}, process)
    systemd.taken = ""
    assert converge(wanted, systemd).changed
    assert systemd.held == {SOCKET}


def test_a_daemon_that_does_not_start_has_no_sockets_afterwards_but_those_of_before(wanted: DaemonFiles, systemd: Systemd) -> None:
    systemd.starts = False
    with pytest.raises(TransactionError):
        converge(wanted, systemd)
    assert not {"gpushare-extender.service", SOCKET} & systemd.active
    systemd.starts = True
    assert converge(wanted, systemd).changed
    systemd.rejects = "enable"
    with pytest.raises(TransactionError):
        converge(with_address(wanted, "--listen", "127.0.0.1:7", "--metrics-listen", "127.0.0.1:8"), systemd)
    systemd.rejects = ""
    converge(wanted, systemd)
    assert (systemd.held, systemd.active) == ({SOCKET}, {"gpushare-extender.service", SOCKET, "p.timer"})


def test_another_address_is_read_by_a_daemon_reload_and_no_other_way(wanted: DaemonFiles, systemd: Systemd) -> None:
    assert converge(wanted, systemd).changed
    other = with_address(wanted, "--listen", "127.0.0.1:9")
    folder = str(systemd.folder)
    changed = Companions(sockets(other.name, other.unit or "", other.config), systemd, folder, folder)
    assert changed.needs_reload([str(systemd.folder / SOCKET)])
    assert changed.sockets_are_due([str(systemd.folder / SOCKET)])
    assert not changed.sockets_are_due()
    assert converge(other, systemd).changed
    assert (systemd.held, systemd.reloads, "ListenStream=127.0.0.1:9\n" in systemd.loaded[SOCKET]) == ({SOCKET}, 1, True)
    assert not converge(other, systemd).changed


def test_what_would_hurt_containers_is_rejected_before_anything_changes(wanted: DaemonFiles, systemd: Systemd) -> None:
    first = converge(wanted, systemd)
    assert (first.changed, first.why) == (True, "gpushare-extender.service is not as its files are")
    before, systemd.hurts = {path.name: path.read_text() for path in systemd.folder.iterdir()}, "It hurts"
    with pytest.raises(Rejected, match=r"^gpushare-extender.service has changed, .* It hurts. Drain this node .*; nothing was changed$"):
        converge(with_address(wanted, "--listen", "127.0.0.1:9"), systemd)
    assert {path.name: path.read_text() for path in systemd.folder.iterdir()} == before
    # What no daemon-reload is needed for goes on.
    assert converge(replace(wanted, unit=UNIT.replace("/x", "/y")), systemd).changed


def test_a_seed_alone_starts_nothing_again_and_a_missing_socket_does(wanted: DaemonFiles, systemd: Systemd) -> None:
    converge(wanted, systemd)
    found = converge(replace(wanted, seed_content="a.b.c"), systemd)
    assert (found.changed, found.why) == (True, "")
    systemd.active.discard(SOCKET)
    assert converge(wanted, systemd).why == "gpushare-extender.service does not have its sockets"


def test_gpushare_pki_is_told_what_to_reload_only_when_it_writes() -> None:
    assert pki.command("/x", "/pki", "plan", "e.service") == ["/x", "plan", "--dir", "/pki"]
    assert pki.command("/x", "/pki", "ensure", "e.service") == ["/x", "ensure", "--dir", "/pki", "--reload", "e.service"]
    assert pki.command("/x", "/pki", "ensure", "") == ["/x", "ensure", "--dir", "/pki"]


def test_what_gpushare_pki_says_is_the_result() -> None:
    found = pki.ask(lambda argv: (0, json.dumps({"changed": ["ca.crt"], "certificates": []}), ""), ["/x"])
    assert found == pki.Pki(["ca.crt"])
    assert found.diff() == {"before": "", "after": "made anew: ca.crt\n"}


@pytest.mark.parametrize(("status", "out", "err", "words"), [(1, "", "no room\n", "status 1: no room"), (0, "[]", "", "must print JSON")])
def test_a_gpushare_pki_that_fails_is_quoted(status: int, out: str, err: str, words: str) -> None:
    with pytest.raises(pki.PkiError, match=words):
        pki.ask(lambda argv: (status, out, err), ["/x", "plan"])


def test_without_the_program_every_missing_file_is_predicted(tmp_path: Path) -> None:
    assert pki.missing(str(tmp_path)).changed == list(pki.CERTIFICATES)
    (tmp_path / "ca.crt").write_text("")
    assert "ca.crt" not in pki.missing(str(tmp_path)).changed
