# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-pki for the dashboard: names that browsers use, and an authority that can sign for these only."""

from __future__ import annotations

import json
import ssl
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509

from gpushare_runtime.pki import main as command
from gpushare_runtime.pki.certificates import dashboard, issue, read_certificate, read_key
from gpushare_runtime.pki.folder import Folder
from unit.fakes.runtime.handshake import shake_hands

ALL = ["ca.crt", "ca.key", "dashboard.crt", "dashboard.key"]
NOW = datetime.now(timezone.utc)
NAMES = ("--name", "GPUS.example.org", "--name", "10.0.0.5", "--name", "fd00:0::5")


def pki(folder: Path, verb: str, capsys: pytest.CaptureFixture[str], *more: str, now: datetime = NOW) -> list[str]:
    capsys.readouterr()
    code = command.main([verb, "--dir", str(folder), "--for", "dashboard", *more], now=lambda: now)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    changed: list[str] = json.loads(out)["changed"]
    return changed


def names_of(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}


def test_what_is_made_and_what_openssl_and_python_make_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pki(tmp_path / "pki", "plan", capsys, *NAMES) == ALL
    assert not (tmp_path / "pki").exists()
    assert pki(tmp_path / "pki", "ensure", capsys, *NAMES) == ALL
    assert sorted(path.name for path in (tmp_path / "pki").iterdir()) == ALL
    certificate = read_certificate((tmp_path / "pki/dashboard.crt").read_bytes())
    assert names_of(certificate) == {"localhost", "127.0.0.1", "::1", "gpus.example.org", "10.0.0.5", "fd00::5"}
    line = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca.crt", "dashboard.crt"]
    assert subprocess.run(line, cwd=tmp_path / "pki", capture_output=True, check=True).stdout == b"dashboard.crt: OK\n"
    for name in ("gpus.example.org", "10.0.0.5", "::1", "localhost"):
        serves(tmp_path / "pki", name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        serves(tmp_path / "pki", "other.example.org")
    assert pki(tmp_path / "pki", "ensure", capsys, *NAMES, now=NOW + timedelta(days=59)) == []
    assert pki(tmp_path / "pki", "ensure", capsys, *NAMES, now=NOW + timedelta(days=61)) == ["dashboard.crt", "dashboard.key"]


def serves(folder: Path, name: str) -> None:
    """As a client that trusts the authority, and means a server of this name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "dashboard.crt", folder / "dashboard.key")
    client = ssl.create_default_context(cafile=folder / "ca.crt")
    assert shake_hands(client, server, name)[0].getpeercert()


def test_the_authority_cannot_sign_for_other_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pki"
    pki(folder, "ensure", capsys, *NAMES)
    ca = issue("ca", None, NOW, read_key((folder / "ca.key").read_bytes()), dashboard(["gpus.example.org"]))
    other = issue("server", ca, NOW, server=dashboard(["bank.example.com", "192.0.2.1"]))
    (folder / "other.crt").write_bytes(other.certificate_pem)
    line = ["openssl", "verify", "-CAfile", "ca.crt", "other.crt"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "permitted subtree violation" in done.stdout + done.stderr


def test_other_names_make_the_authority_again_with_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pki"
    pki(folder, "ensure", capsys, "--name", "a.example.org")
    key = (folder / "ca.key").read_bytes()
    assert pki(folder, "ensure", capsys, "--name", "a.example.org", "--name", "b") == ["ca.crt", "dashboard.crt", "dashboard.key"]
    assert (folder / "ca.key").read_bytes() == key
    assert "b" in names_of(read_certificate((folder / "dashboard.crt").read_bytes()))
    late = Folder(folder).status  # of the extender, whose folder this is not
    assert next(state["problem"] for state in late(NOW)) == "ca.crt is not made for the purpose (ca)"


@pytest.mark.parametrize("name", ["", "a b", "a:1", "-a", "*.example.org", "a/b", "x" * 254, "1.2.3.4.5", "a\n", "ä"])
def test_names_that_are_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["plan", "--dir", "/nowhere", "--for", "dashboard", f"--name={name}"])
    assert "expected a host name or an IP address" in capsys.readouterr().err
