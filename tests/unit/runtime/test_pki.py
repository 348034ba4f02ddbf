# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-pki: what it makes, when it renews, what it heals and what it reports; its clock is given."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

import gpushare_runtime
from gpushare_runtime.daemon import files
from gpushare_runtime.pki import main as command
from gpushare_runtime.pki.certificates import issue, read_certificate, read_key
from gpushare_runtime.pki.folder import Folder
from gpushare_runtime.pki.main import keep
from unit.fakes.runtime.handshake import shake_hands

NOW = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)
DAY = timedelta(days=1)
ALL = ["ca.crt", "ca.key", "extender.crt", "extender.key", "scheduler/ca.crt", "scheduler/tls.crt", "scheduler/tls.key"]
SERVER = ["extender.crt", "extender.key"]
CLIENT = ["scheduler/tls.crt", "scheduler/tls.key"]
ROLES = {"ca.crt": "ca", "extender.crt": "server", "scheduler/tls.crt": "client", "scheduler/ca.crt": "ca"}


class Host:
    """A host's folder and the command on it. systemctl: a script in front of PATH that notes its calls and ends as told."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.dir = root / "etc" / "pki"
        self.now = NOW
        self._capsys = capsys
        self._calls = root / "calls"
        self._fails = root / "fails"
        script = root / "bin" / "systemctl"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\necho "$@" >> {self._calls}\nif [ -e {self._fails} ]; then cat {self._fails} >&2; exit 5; fi\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = command.main([arguments[0], "--dir", str(self.dir), *arguments[1:]], now=lambda: self.now)
        return code, *self._capsys.readouterr()

    def ensure(self, *arguments: str) -> list[str]:
        """Changed files; the plan before must have said the same, and the status after must find nothing wrong."""
        contents = self.contents()
        planned = self.plan()
        assert self.contents() == contents
        code, out, err = self.run("ensure", *arguments)
        assert (code, err) == (0, "")
        changed: list[str] = json.loads(out)["changed"]
        assert changed == planned
        assert set(self.problems().values()) == {""}
        return changed

    def plan(self) -> list[str]:
        planned: list[str] = json.loads(self.run("plan")[1])["changed"]
        return planned

    def status(self) -> dict[str, dict[str, Any]]:
        return {state["path"]: state for state in json.loads(self.run("status")[1])["certificates"]}

    def problems(self) -> dict[str, str]:
        return {name: state["problem"] for name, state in self.status().items()}

    def contents(self) -> dict[str, tuple[bytes, int]]:
        """Every file with its time."""
        found = (path for path in self.dir.rglob("*") if path.is_file()) if self.dir.exists() else ()
        return {str(path.relative_to(self.dir)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}

    def certificate(self, name: str) -> x509.Certificate:
        return read_certificate((self.dir / name).read_bytes())

    def systemctl_fails(self, words: str) -> None:
        self._fails.write_text(words) if words else self._fails.unlink()

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []


@pytest.fixture
def host(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, capsys, monkeypatch)


def test_what_is_made(host: Host) -> None:
    assert host.ensure() == ALL
    modes = {str(path.relative_to(host.dir)): stat.S_IMODE(path.stat().st_mode) for path in [host.dir, *host.dir.rglob("*")]}
    assert {name for name, mode in modes.items() if mode == 0o700} == {".", "scheduler"}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca.key", "extender.key", "scheduler/tls.key"}
    assert {name for name, mode in modes.items() if mode == 0o644} == {"ca.crt", "extender.crt", "scheduler/ca.crt", "scheduler/tls.crt"}
    assert len(modes) == len(ALL) + 2
    server, client, ca = host.certificate("extender.crt"), host.certificate("scheduler/tls.crt"), host.certificate("ca.crt")
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name) for name in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert client.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "gpushare-scheduler"
    for certificate, usage in ((server, ExtendedKeyUsageOID.SERVER_AUTH), (client, ExtendedKeyUsageOID.CLIENT_AUTH)):
        assert list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [usage]
        assert certificate.not_valid_after_utc == NOW + 90 * DAY
    assert ca.not_valid_after_utc == NOW + 3650 * DAY
    assert all(isinstance(each.public_key(), ec.EllipticCurvePublicKey) for each in (server, client, ca))
    assert (host.dir / "scheduler/ca.crt").read_bytes() == (host.dir / "ca.crt").read_bytes()


def test_openssl_takes_them_at_its_strictest(host: Host) -> None:
    host.now = datetime.now(timezone.utc)
    host.ensure()
    for name, purpose in (("extender.crt", "sslserver"), ("scheduler/tls.crt", "sslclient")):
        line = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.crt", name]
        assert subprocess.run(line, cwd=host.dir, capture_output=True, check=True).stdout == f"{name}: OK\n".encode()


def test_the_answer(host: Host) -> None:
    _, out, _ = host.run("plan")
    assert json.loads(out) == {"changed": ALL, "certificates": [{"path": name, "not_after": ""} for name in ROLES]}
    assert not host.dir.exists()
    _, out, _ = host.run("ensure")
    ends = {name: "2036-11-18T10:00:00Z" if role == "ca" else "2027-02-19T10:00:00Z" for name, role in ROLES.items()}
    assert json.loads(out) == {"changed": ALL, "certificates": [{"path": name, "not_after": end} for name, end in ends.items()]}
    host.now += 1.5 * DAY
    days = {"ca": 3648.5, "server": 88.5, "client": 88.5}
    assert host.status() == {
        name: {"path": name, "role": role, "not_after": ends[name], "days_left": days[role], "problem": ""} for name, role in ROLES.items()
    }


def test_a_second_run_writes_nothing(host: Host) -> None:
    host.ensure()
    before = host.contents()
    host.now += 59 * DAY
    assert host.ensure("--reload", "u.service") == []
    assert (host.contents(), host.calls) == (before, [])


def test_leaves_are_renewed_when_a_third_of_their_life_is_left(host: Host) -> None:
    host.ensure()
    host.now += 61 * DAY
    ca = (host.dir / "ca.crt").read_bytes()
    assert host.ensure("--reload", "gpushare-extender.service") == sorted(SERVER + CLIENT)
    assert (host.dir / "ca.crt").read_bytes() == ca
    assert host.status()["extender.crt"]["days_left"] == 90.0
    assert host.calls == ["try-reload-or-restart gpushare-extender.service"]


def test_the_ca_is_renewed_with_its_key_so_that_old_and_new_verify_each_other(host: Host) -> None:
    host.ensure()
    old, key = host.certificate("ca.crt"), (host.dir / "ca.key").read_bytes()
    host.now += 3650 * DAY * 2 / 3 - DAY
    leaf = sorted(SERVER + CLIENT)
    assert host.ensure() == leaf
    issued = host.certificate("extender.crt")
    host.now += 2 * DAY
    assert host.ensure() == ["ca.crt", "scheduler/ca.crt"]
    new = host.certificate("ca.crt")
    assert (host.dir / "ca.key").read_bytes() == key
    issued.verify_directly_issued_by(new)
    host.now += 60 * DAY
    assert host.ensure() == leaf
    host.certificate("extender.crt").verify_directly_issued_by(old)


@pytest.mark.parametrize(
    ("name", "made_again"),
    [
        ("ca.crt", ["ca.crt", "scheduler/ca.crt"]),
        ("ca.key", ALL),
        ("extender.crt", SERVER),
        ("extender.key", SERVER),
        ("scheduler/tls.crt", CLIENT),
        ("scheduler/tls.key", CLIENT),
        ("scheduler/ca.crt", ["scheduler/ca.crt"]),
    ],
)
@pytest.mark.parametrize("how", ["missing", "empty", "half", "other"])
def test_what_is_missing_or_broken_is_named_and_healed(host: Host, name: str, made_again: list[str], how: str) -> None:
    host.ensure()
    file = host.dir / name
    if how == "missing":
        file.unlink()
    elif how == "other":
        stranger = issue("ca", None, NOW)
        file.write_bytes(stranger.key_pem if name.endswith("key") else stranger.certificate_pem)
    else:
        file.write_bytes(file.read_bytes()[:100] if how == "half" else b"")
    problems = {path: problem for path, problem in host.problems().items() if problem}
    assert problems
    if name in ROLES:
        assert name in problems
    if name == "ca.key" and how == "other":
        # The key that is there makes the CA; what the lost one has signed is signed again.
        made_again = sorted({*ALL} - {"ca.key"})
    assert host.ensure() == made_again


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda pki: (pki / "extender.crt").unlink(), "extender.crt is missing"),
        (lambda pki: (pki / "extender.crt").write_text("x"), "extender.crt is not a certificate in PEM"),
        (lambda pki: (pki / "extender.key").unlink(), "extender.key is missing"),
        (lambda pki: (pki / "extender.key").write_text("x"), "extender.key is not a private key in PEM"),
        (lambda pki: (pki / "extender.key").write_bytes((pki / "ca.key").read_bytes()), "extender.key is not the key of extender.crt"),
        (lambda pki: (pki / "extender.key").chmod(0o640), "extender.key is open to others; expected mode 0600"),
        (lambda pki: (pki / "extender.crt").chmod(0o666), "extender.crt is open to others; expected mode 0644"),
        (lambda pki: (pki / "ca.crt").write_bytes(issue("ca", None, NOW).certificate_pem), "extender.crt is not signed by ca.crt"),
        (lambda pki: (pki / "extender.crt").write_bytes((pki / "scheduler/tls.crt").read_bytes()), "not made for the purpose (server)"),
        (lambda pki: [(pki / "extender.crt").unlink(), (pki / "extender.crt").mkdir()], "extender.crt cannot be read: Is a directory"),
    ],
)
def test_status_says_what_is_wrong(host: Host, break_it: Any, said: str) -> None:
    host.ensure()
    break_it(host.dir)
    assert said in host.problems()["extender.crt"]


def test_status_says_what_time_does(host: Host) -> None:
    host.ensure()
    host.now = NOW + 74 * DAY
    assert set(host.problems().values()) == {""}
    host.now = NOW + 76 * DAY
    assert "ends at 2027-02-19T10:00:00Z and should have been renewed by now: gpushare-pki.timer" in host.problems()["extender.crt"]
    host.now = NOW + 91 * DAY
    state = host.status()["scheduler/tls.crt"]
    assert (state["problem"], state["days_left"]) == ("scheduler/tls.crt has expired at 2027-02-19T10:00:00Z", -1.0)
    host.now = NOW - DAY
    assert "is not valid before 2026-11-21T09:00:00Z, and it is 2026-11-20T10:00:00Z" in host.problems()["ca.crt"]
    assert host.ensure() == sorted({*ALL} - {"ca.key"})


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user, as root")
def test_files_of_another_user_are_given_back_to_root(host: Host) -> None:
    """As after the restore of a backup whose numbers are not this host's."""
    host.ensure()
    content = (host.dir / "ca.key").read_bytes()
    for name in ("ca.key", "scheduler", "extender.crt"):
        os.chown(host.dir / name, 65534, 65534)
    host.ensure()
    assert {path.stat().st_uid for path in [host.dir, *host.dir.rglob("*")]} == {0}
    assert (host.dir / "ca.key").read_bytes() == content
    assert stat.S_IMODE((host.dir / "ca.key").stat().st_mode) == 0o600


def test_open_modes_are_closed_and_what_is_closed_further_is_left(host: Host) -> None:
    host.ensure()
    before = host.contents()
    for name, mode in (("", 0o755), ("scheduler", 0o750), ("ca.key", 0o644), ("scheduler/ca.crt", 0o664), ("ca.crt", 0o600)):
        (host.dir / name).chmod(mode)
    problems = host.problems()
    assert problems["ca.crt"] == f"{host.dir} is open to others; expected mode 0700"
    assert problems["scheduler/ca.crt"] == "scheduler/ca.crt is open to others; expected mode 0644"
    assert host.ensure() == [".", "ca.key", "scheduler", "scheduler/ca.crt"]
    assert stat.S_IMODE((host.dir / "ca.crt").stat().st_mode) == 0o600
    assert host.contents() == before


class Killed(BaseException):
    """The process is gone: nothing catches it."""


@pytest.mark.parametrize("age", [0, 61, 3000])
def test_a_crash_at_any_write_is_healed(host: Host, monkeypatch: pytest.MonkeyPatch, age: int) -> None:
    """Killed at each rename and at each write before: no file is half written, and the next run makes pairs that match."""
    unharmed = 0
    while True:
        if age:
            host.now = NOW
            host.ensure()
            host.now = NOW + age * DAY
        calls = 0

        def dies(real: Any, at: int = unharmed) -> Any:
            def step(*arguments: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > at:
                    raise Killed
                return real(*arguments, **options)

            return step

        with monkeypatch.context() as patch:
            patch.setattr(files.os, "replace", dies(os.replace))
            patch.setattr(files.os, "fsync", dies(os.fsync))
            try:
                host.run("ensure")
            except Killed:
                whole = False
            else:
                whole = True
        for path in [path for path in host.dir.rglob("*") if path.is_file() and not path.name.startswith(".")]:
            read_key(path.read_bytes()) if path.suffix == ".key" else read_certificate(path.read_bytes())
        host.ensure()
        assert host.ensure() == []
        assert not list(host.dir.rglob("*.new"))
        if whole:
            break
        unharmed += 1
        for path in host.dir.rglob("*.*"):
            path.unlink()
    assert unharmed >= 8


def test_a_reload_that_failed_is_made_up_for(host: Host) -> None:
    host.ensure()
    host.now += 61 * DAY
    host.systemctl_fails("Unit u.service not found.\n")
    code, out, err = host.run("ensure", "--reload", "u.service")
    assert (code, out) == (1, "")
    assert err == (
        "gpushare-pki: the certificates are in place, but systemctl try-reload-or-restart u.service says: Unit u.service not found.; "
        "see journalctl -u u.service. It is tried again at the next call\n"
    )
    assert host.plan() == []
    host.systemctl_fails("")
    assert host.ensure("--reload", "u.service") == []
    assert host.ensure("--reload", "u.service") == []
    assert host.calls == ["try-reload-or-restart u.service"] * 2


def test_a_new_client_certificate_alone_needs_no_reload(host: Host) -> None:
    host.ensure()
    (host.dir / "scheduler/tls.key").unlink()
    assert host.ensure("--reload", "u.service") == CLIENT
    assert host.calls == []


def test_what_the_disk_rejects_is_named(host: Host) -> None:
    host.dir.parent.mkdir()
    host.dir.write_text("a file")
    code, out, err = host.run("ensure")
    assert (code, out) == (1, "")
    assert f"gpushare-pki: {host.dir}: " in err
    assert "run as root, and check the path and the disk" in err


@pytest.mark.parametrize("name", ["ca.key", "ca.crt", "extender.key", "scheduler/ca.crt"])
def test_what_cannot_be_read_is_not_replaced(host: Host, name: str) -> None:
    """It may be good: a new CA would shut kube-scheduler out."""
    host.ensure()
    (host.dir / name).unlink()
    (host.dir / name).mkdir()
    before = host.contents()
    code, out, err = host.run("ensure")
    assert (code, out) == (1, "")
    assert f"gpushare-pki: {host.dir / name}" in err or f"gpushare-pki: {host.dir / 'scheduler'}" in err
    assert "Is a directory" in err
    assert {path: content for path, content in host.contents().items() if not path.endswith(".new")} == before


def test_two_at_once_make_one_set(host: Host) -> None:
    line = [sys.executable, "-m", "gpushare_runtime.pki.main", "ensure", "--dir", str(host.dir)]
    environment = os.environ | {"PYTHONPATH": str(Path(gpushare_runtime.__file__).parent.parent)}
    both = [subprocess.Popen(line, env=environment, stdout=subprocess.PIPE) for _ in range(4)]
    changed = [json.loads(each.communicate(timeout=60)[0])["changed"] for each in both]
    assert sorted(changed) == [[], [], [], ALL]
    host.now = datetime.now(timezone.utc)
    assert set(host.problems().values()) == {""}


@pytest.mark.parametrize("module", ["extender.main", "device_plugin.main", "device_plugin.gpu.nvml", "kubectl_gpushare.inspect_main"])
def test_the_daemons_do_not_load_cryptography(module: str) -> None:
    code = f"import sys, gpushare_runtime.{module}; sys.exit('cryptography' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(Path(gpushare_runtime.__file__).parent.parent)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_python_tls_takes_them(host: Host) -> None:
    host.now = datetime.now(timezone.utc)
    host.ensure()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=host.dir / "ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(host.dir / "extender.crt", host.dir / "extender.key")
    client = ssl.create_default_context(cafile=host.dir / "scheduler/ca.crt")
    client.load_cert_chain(host.dir / "scheduler/tls.crt", host.dir / "scheduler/tls.key")
    _, its_end = shake_hands(client, server, "localhost")
    assert dict(pair[0] for pair in its_end.getpeercert()["subject"]) == {"commonName": "gpushare-scheduler"}  # type: ignore[index,misc]


def test_a_pod_keeps_them_and_copies_what_its_server_needs(tmp_path: Path) -> None:
    folder, to, stop = Folder(tmp_path / "pki"), tmp_path / "copies", threading.Event()
    to.mkdir()
    keeper = threading.Thread(target=keep, args=(folder, lambda: datetime.now(timezone.utc), to, stop, 0.05))
    keeper.start()
    try:
        until(lambda: (to / "ca.crt").is_file())
        assert sorted(path.name for path in to.iterdir()) == ["ca.crt", "extender.crt", "extender.key"]
        assert {path.stat().st_mode & 0o777 for path in to.iterdir()} == {0o600}
        before = (to / "extender.crt").read_bytes()
        # What is lost is made again; what is not due stays.
        (folder.path / "extender.key").unlink()
        until(lambda: (to / "extender.crt").read_bytes() != before)
        assert (to / "extender.crt").read_bytes() == (folder.path / "extender.crt").read_bytes()
        # A folder that cannot be written is told of, and tried again.
        (folder.path / "ca.key").unlink()
        (folder.path / "ca.key").mkdir()
    finally:
        stop.set()
        keeper.join(30)
    assert not keeper.is_alive()


def test_a_folder_that_cannot_be_made_ends_it_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "pki").write_text("")
    with pytest.raises(OSError, match="pki"):
        keep(Folder(tmp_path / "pki"), lambda: datetime.now(timezone.utc), tmp_path, threading.Event())


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
