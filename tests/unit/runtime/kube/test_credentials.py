# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Credentials from files, with an error that names the file, and read again when it changes.

Two readers, the daemons' own and that of kubectl's plugin, take the same of what both understand.
"""

from __future__ import annotations

import base64
import datetime
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import gpushare_runtime
from gpushare_runtime.kube import credentials
from gpushare_runtime.kube.credentials import REREAD_SECONDS, UNANSWERED_SECONDS, Credentials, CredentialsError, load
from gpushare_runtime.kubectl_gpushare.kubeconfig import context_namespace, load_kubeconfig
from gpushare_runtime.pki.certificates import issue
from unit.fakes.runtime.kube.fake_api import kubeconfig

SERVER = "https://10.0.0.1:6443"
Read = Callable[[str], Credentials]
both = pytest.mark.parametrize("read", [load, load_kubeconfig])


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def certificate(name: str) -> tuple[bytes, bytes]:
    """A self-signed certificate and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    built = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(1))
    pem = built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return pem, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@both
def test_token(tmp_path: Path, read: Read) -> None:
    loaded = read(write(tmp_path / "config", kubeconfig(SERVER + "/", token="secret")))
    assert loaded.server == SERVER
    assert loaded.authorization() == "Bearer secret"
    context = loaded.ssl()
    assert context is not None
    assert context.check_hostname


@both
@pytest.mark.parametrize("server", ["http://10.0.0.1:8080", "http://api.example.org", "http://127.0.0.1.example.org"])
def test_a_token_does_not_go_over_plain_http_off_this_host(tmp_path: Path, server: str, read: Read) -> None:
    file = write(tmp_path / "config", kubeconfig(server, token="secret"))
    with pytest.raises(CredentialsError, match="expected https://"):
        read(file)
    with pytest.raises(CredentialsError, match="expected https://"):
        load(file, tokens=Spoken())
    assert read(write(tmp_path / "without", kubeconfig(server))).ssl() is None


@both
def test_plain_http_has_no_tls(tmp_path: Path, read: Read) -> None:
    assert read(write(tmp_path / "config", kubeconfig("http://127.0.0.1:8080"))).ssl() is None


@both
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a kubeconfig"),
        ("- a", "expected a kubeconfig"),
        ("{", "expected a kubeconfig"),
        ("nothing", "expected a kubeconfig"),
        (kubeconfig(SERVER).replace("current-context: here", "current-context: there"), "there"),
        (kubeconfig("10.0.0.1:6443"), "'10.0.0.1:6443'; expected a URL"),
        (kubeconfig(SERVER, tokenFile="/nonexistent/token"), "/nonexistent/token"),
        (kubeconfig(SERVER, **{"client-certificate": "/nonexistent/pem"}), "/nonexistent/pem"),
        (kubeconfig(SERVER, **{"client-certificate-data": "###"}), "expected"),
    ],
)
def test_a_broken_kubeconfig_is_named(tmp_path: Path, text: str, said: str, read: Read) -> None:
    with pytest.raises(CredentialsError) as caught:
        read(write(tmp_path / "broken", text))
    assert str(tmp_path / "broken") in str(caught.value)
    assert said in str(caught.value)


@both
def test_a_missing_kubeconfig_is_named(tmp_path: Path, read: Read) -> None:
    with pytest.raises(CredentialsError, match="nowhere: no such file; expected a kubeconfig there"):
        read(str(tmp_path / "nowhere"))


def test_no_kubeconfig_outside_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CredentialsError, match="no kubeconfig was given, and this is not a pod"):
        load(None)


@both
def test_a_token_file_is_read_again(tmp_path: Path, read: Read) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    file = write(tmp_path / "config", kubeconfig(SERVER, tokenFile=str(token)))
    now = 0.0
    source = read(file)
    watched = Credentials(source._read, clock=lambda: now)
    assert watched.authorization() == "Bearer first"
    token.write_text("second\n")
    assert watched.authorization() == "Bearer first"
    now = REREAD_SECONDS
    assert watched.authorization() == "Bearer second"
    token.unlink()
    now = 3 * REREAD_SECONDS
    assert watched.authorization() == "Bearer second"


@both
def test_a_mended_server_is_used_soon_after_one_that_does_not_answer(tmp_path: Path, read: Read) -> None:
    file = write(tmp_path / "config", kubeconfig("https://127.0.0.1:9"))
    now = 0.0
    source = read(file)
    watched = Credentials(source._read, clock=lambda: now)
    write(tmp_path / "config", kubeconfig(SERVER))
    now = REREAD_SECONDS / 2
    assert watched.server == "https://127.0.0.1:9"
    watched.unanswered()
    assert watched.server == SERVER
    write(tmp_path / "config", kubeconfig("https://127.0.0.1:9"))
    now += UNANSWERED_SECONDS
    assert watched.server == SERVER, "it answers"


@both
def test_client_certificates_from_files_and_inline(tmp_path: Path, read: Read) -> None:
    pem, key = certificate("system:node:n1")
    both = tmp_path / "kubelet-client-current.pem"
    both.write_bytes(pem + key)
    user = {"client-certificate": both.name, "client-key": both.name}
    loaded = read(write(tmp_path / "kubelet.conf", kubeconfig(SERVER, **user)))
    assert loaded.authorization() is None
    before = loaded.ssl()
    loaded.reload()
    assert loaded.ssl() is before
    pem, key = certificate("system:node:n1")
    both.unlink()
    both.write_bytes(pem + key + b"\n")
    loaded.reload()
    assert loaded.ssl() is not before
    inline = {"client-certificate-data": base64.b64encode(pem).decode(), "client-key-data": base64.b64encode(key).decode()}
    assert read(write(tmp_path / "inline", kubeconfig(SERVER, **inline))).ssl() is not None


def test_the_image_reads_the_kubeconfig_of_who_needs_no_program_to_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "kubernetes" or name.startswith("kubernetes.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    file = write(tmp_path / "config", kubeconfig(SERVER, token="t"))
    assert (load_kubeconfig(file).authorization(), context_namespace(file)) == ("Bearer t", "default")
    Path(file).write_text(Path(file).read_text().replace('"cluster":', '"namespace": "team", "cluster":', 1))
    for two_things in ({"context": "other"}, {}):
        with pytest.raises(CredentialsError, match="`kubernetes` is not installed here, which reads several"):
            load_kubeconfig(file if two_things else f"{file}:{file}", **two_things)


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"exec": {"command": "login"}}, "its user logs in by `exec`, where a daemon needs a token"),
        ({"username": "u", "password": "p"}, "its user logs in by `username`"),
        ({"client-certificate-data": "IyMj"}, "client-certificate-data: .*expected PEM: .*with its key in client-key-data"),
    ],
)
def test_a_user_that_a_daemon_cannot_be(tmp_path: Path, user: dict[str, object], said: str) -> None:
    with pytest.raises(CredentialsError, match=said):
        load(write(tmp_path / "config", kubeconfig(SERVER, **user)))


def test_the_pods_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(CredentialsError, match=f"this is not a pod with a service account .*{tmp_path}/token"):
        load(None)
    (tmp_path / "token").write_text("of the pod\n")
    with pytest.raises(CredentialsError, match=f"the pod's service account: {tmp_path}/ca.crt: No such file"):
        load(None)
    (tmp_path / "ca.crt").write_bytes(certificate("cluster")[0])
    loaded = load(None)
    assert (loaded.server, loaded.authorization()) == ("https://[fd00::1]:443", "Bearer of the pod")
    assert loaded.ssl() is not None


@both
def test_a_broken_certificate_is_named(tmp_path: Path, read: Read) -> None:
    (tmp_path / "pem").write_text("no certificate")
    user = {"client-certificate": str(tmp_path / "pem"), "client-key": str(tmp_path / "pem")}
    with pytest.raises(CredentialsError, match=r"pem: .*expected PEM: a client certificate, with its key"):
        read(write(tmp_path / "config", kubeconfig(SERVER, **user)))


@both
def test_server_name_and_proxy_of_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://elsewhere:3128")
    data = yaml.safe_load(kubeconfig(SERVER))
    assert read(write(tmp_path / "one", yaml.safe_dump(data))).proxy is None
    data["clusters"][0]["cluster"] |= {"tls-server-name": "kubernetes", "proxy-url": "http://proxy:3128"}
    loaded = read(write(tmp_path / "two", yaml.safe_dump(data)))
    assert (loaded.tls_server_name, loaded.proxy) == ("kubernetes", "http://proxy:3128")


class Spoken:
    """Where tokens come from."""

    def __init__(self) -> None:
        self.rejected: list[str | None] = []

    def authorization(self) -> str:
        return "Bearer own"

    def unauthorized(self, authorization: str | None) -> None:
        self.rejected.append(authorization)


def test_with_tokens_of_its_own_only_the_cluster_counts(tmp_path: Path) -> None:
    pem = issue("ca", None, datetime.datetime.now(datetime.timezone.utc)).certificate_pem
    data = yaml.safe_load(kubeconfig(SERVER, tokenFile="/nonexistent", **{"client-certificate": "/nonexistent"}))
    cluster = data["clusters"][0]["cluster"]
    cluster |= {"certificate-authority-data": base64.b64encode(pem).decode(), "tls-server-name": "kubernetes", "proxy-url": "http://p:1"}
    tokens = Spoken()
    loaded = load(write(tmp_path / "config", yaml.safe_dump(data)), tokens=tokens)
    assert (loaded.server, loaded.authorization(), loaded.tls_server_name, loaded.proxy) == (
        SERVER,
        "Bearer own",
        "kubernetes",
        "http://p:1",
    )
    context = loaded.ssl()
    assert context is not None
    assert [dict(entry[0] for entry in ca["subject"]) for ca in context.get_ca_certs()] == [{"commonName": "gpushare"}]  # type: ignore[misc]
    loaded.reload("Bearer old")
    assert (tokens.rejected, loaded.ssl() is context) == (["Bearer old"], True)
    cluster |= {"certificate-authority": "ca.pem"}
    del cluster["certificate-authority-data"]
    (tmp_path / "ca.pem").write_bytes(pem)
    write(tmp_path / "config", yaml.safe_dump(data))
    loaded.reload()
    assert loaded.ssl() is not context
    assert loaded.ssl().get_ca_certs() == context.get_ca_certs()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file; expected a kubeconfig there"),
        ("", "expected a kubeconfig"),
        ("{", "expected a kubeconfig"),
        ("a: b", "'contexts' is not there; expected a kubeconfig (kind: Config) whose current-context names a cluster with `server`"),
        (kubeconfig(SERVER).replace("current-context: here", "current-context: there"), "'there' is not there"),
        (kubeconfig("10.0.0.1:6443"), "'10.0.0.1:6443'; expected a URL"),
        (kubeconfig(SERVER).replace("server:", "certificate-authority: /nonexistent/ca\n    server:"), "/nonexistent/ca: No such file"),
        (kubeconfig(SERVER).replace("server:", "certificate-authority-data: IyMj\n    server:"), "expected PEM: a certificate authority"),
        (kubeconfig(SERVER).replace("server:", "certificate-authority-data: 5\n    server:"), "expected a kubeconfig"),
    ],
)
def test_a_broken_cluster_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "broken"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CredentialsError) as caught:
        load(str(file), tokens=Spoken())
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def test_daemons_run_without_the_package(tmp_path: Path) -> None:
    # Only the extra `kubectl` has it.
    write(tmp_path / "config", kubeconfig(SERVER, token="secret"))
    code = (
        "import sys; sys.modules['kubernetes'] = None; from gpushare_runtime.kube.credentials import load; "
        "import gpushare_runtime.extender.main, gpushare_runtime.device_plugin.main; load('config')"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(gpushare_runtime.__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
