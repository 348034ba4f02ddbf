# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Release binaries from a server with the layout of the official ones: used if their checksum is right, built otherwise."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpushare_lab import components, releases
from gpushare_lab.cache import Cache
from gpushare_lab.process import LabError

PROGRAMS = ("kubeadm", "kubelet")
KUBERNETES = "/dl.k8s.io/release/v1.36.3/bin/linux/amd64"
ETCD = "/github.com/etcd-io/etcd/releases/download/v3.6.5"


@dataclass
class Server:
    """A server of files by path; ``odd`` has answers that are none of a good server's."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    odd: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def publish(self, path: str, content: bytes) -> None:
        """A file with its checksum beside it."""
        self.files[path] = content
        self.files[f"{path}.sha256"] = hashlib.sha256(content).hexdigest().encode()

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        """Say nothing until the test ends."""
        self.ended.wait()
        handler.close_connection = True

    def break_off(self, handler: BaseHTTPRequestHandler) -> None:
        """Half of the file, and no more."""
        content = self.files[handler.path]
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2])
        handler.close_connection = True


def redirect(to: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.asked.append(self.path)
            if self.path in found.odd:
                found.odd[self.path](self)
                return
            content = found.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *args: object) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, args=[0.01], daemon=True).start()
    found.address = f"http://127.0.0.1:{listening.server_address[1]}"
    for name in PROGRAMS:
        found.publish(f"{KUBERNETES}/{name}", name.encode() * 1000)
    publish_etcd(found, b"etcd itself")
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("GPUSHARE_LAB_BIN", raising=False)
    monkeypatch.setenv(releases.VARIABLE, found.address + "/")
    yield found
    found.ended.set()
    listening.shutdown()
    listening.server_close()


def publish_etcd(server: Server, program: bytes) -> None:
    archive, name = io.BytesIO(), "etcd-v3.6.5-linux-amd64"
    with tarfile.open(fileobj=archive, mode="w:gz") as content:
        info = tarfile.TarInfo(f"{name}/etcd")
        info.size = len(program)
        content.addfile(info, io.BytesIO(program))
    server.files[f"{ETCD}/{name}.tar.gz"] = archive.getvalue()
    other = hashlib.sha256(b"another file").hexdigest()
    right = hashlib.sha256(archive.getvalue()).hexdigest()
    server.files[f"{ETCD}/SHA256SUMS"] = f"{other}  other-{name}.tar.gz\n{right}  {name}.tar.gz\n{other}  {name}.zip\n".encode()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def kubernetes(cache: Cache) -> Path | None:
    return releases.kubernetes(cache, "1.36.3", PROGRAMS)


def left_in(cache: Cache) -> list[str]:
    return [path.name for path in cache.root.glob("*") if path.name not in ("locks", "logs")]


def test_programs_whose_checksums_are_right_are_an_entry_whose_name_says_where_they_are_from(server: Server, cache: Cache) -> None:
    folder = kubernetes(cache)
    assert folder is not None
    assert folder.name.startswith("kubernetes-released-1.36.3-")
    assert {path.name: (path.read_bytes(), path.stat().st_mode & 0o777) for path in folder.iterdir()} == {
        name: (name.encode() * 1000, 0o755) for name in PROGRAMS
    }
    asked = len(server.asked)
    assert (kubernetes(cache), len(server.asked)) == (folder, asked)


def test_etcd_is_taken_out_of_its_archive(server: Server, cache: Cache) -> None:
    folder = releases.etcd(cache, "3.6.5")
    assert folder is not None
    assert folder.name.startswith("etcd-released-3.6.5-")
    assert [(path.name, path.read_bytes(), path.stat().st_mode & 0o777) for path in folder.iterdir()] == [("etcd", b"etcd itself", 0o755)]


def test_a_wrong_checksum_is_an_error_and_nothing_of_it_stays(server: Server, cache: Cache) -> None:
    server.files[f"{KUBERNETES}/kubelet"] = b"something else"
    with pytest.raises(LabError, match=r"/kubelet has the SHA-256 checksum \w{64}, published is \w{64}: it is not used"):
        kubernetes(cache)
    assert left_in(cache) == []


def test_a_wrong_checksum_is_told_also_where_another_file_cannot_be_had(server: Server, cache: Cache) -> None:
    server.files[f"{KUBERNETES}/kubelet"] = b"something else"
    server.odd[f"{KUBERNETES}/kubeadm"] = server.break_off
    with pytest.raises(LabError, match="/kubelet has the SHA-256 checksum"):
        kubernetes(cache)


def test_a_wrong_checksum_of_etcd_is_an_error(server: Server, cache: Cache) -> None:
    sums = f"{ETCD}/SHA256SUMS"
    right = hashlib.sha256(server.files[f"{ETCD}/etcd-v3.6.5-linux-amd64.tar.gz"]).hexdigest()
    server.files[sums] = server.files[sums].replace(right.encode(), b"0" * 64)
    with pytest.raises(LabError, match="it is not used"):
        releases.etcd(cache, "3.6.5")
    assert left_in(cache) == []


@pytest.mark.parametrize("missing", ["kubeadm", "kubelet", "kubeadm.sha256", "kubelet.sha256"])
def test_where_a_file_is_missing_it_is_built(server: Server, cache: Cache, missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    del server.files[f"{KUBERNETES}/{missing}"]
    assert kubernetes(cache) is None
    assert "HTTP Error 404" in capsys.readouterr().err
    assert left_in(cache) == []


def test_where_a_file_breaks_off_it_is_built(server: Server, cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    server.odd[f"{KUBERNETES}/kubelet"] = server.break_off
    assert kubernetes(cache) is None
    assert "kubelet broke off after 3500 of 7000 bytes" in capsys.readouterr().err
    assert left_in(cache) == []


@pytest.mark.parametrize("silent", ["kubeadm.sha256", "kubelet"])
def test_a_server_that_hangs_is_not_waited_for(server: Server, cache: Cache, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "SILENCE_S", 0.2)
    server.odd[f"{KUBERNETES}/{silent}"] = server.hang
    assert kubernetes(cache) is None
    assert left_in(cache) == []


def test_a_page_of_somebody_else_is_no_checksum(server: Server, cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    server.files[f"{KUBERNETES}/kubeadm.sha256"] = b"<html>please log in</html>"
    assert kubernetes(cache) is None
    assert "kubeadm.sha256 has no checksum" in capsys.readouterr().err


def test_a_redirect_is_followed(server: Server, cache: Cache) -> None:
    for name in ("kubelet", "kubelet.sha256"):
        server.files[f"/elsewhere/{name}"] = server.files.pop(f"{KUBERNETES}/{name}")
        server.odd[f"{KUBERNETES}/{name}"] = redirect(f"{server.address}/elsewhere/{name}")
    folder = kubernetes(cache)
    assert folder is not None
    assert (folder / "kubelet").read_bytes() == b"kubelet" * 1000


def test_a_redirect_never_leads_out_of_encryption() -> None:
    request = releases.urllib.request.Request("https://dl.k8s.io/x")
    with pytest.raises(releases.Unavailable, match="not encrypted"):
        releases._NoDowngrade().redirect_request(request, io.BytesIO(), 302, "", releases.http.client.HTTPMessage(), "http://cdn/x")


def test_where_nobody_listens_it_is_built(cache: Cache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        monkeypatch.setenv(releases.VARIABLE, f"http://127.0.0.1:{port}")
        assert kubernetes(cache) is None
    assert "it is built from Go modules" in capsys.readouterr().err


def test_releases_that_are_not_wanted_are_not_asked_for(server: Server, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(releases.VARIABLE, "off")
    assert (kubernetes(cache), releases.etcd(cache, "3.6.5"), server.asked) == (None, None, [])


def test_the_official_hosts_are_asked_if_nothing_else_is_said() -> None:
    assert releases.base({}) == releases.base({releases.VARIABLE: ""}) == "https://"
    assert releases.base({releases.VARIABLE: "http://mirror/x/"}) == "http://mirror/x/"
    with pytest.raises(LabError, match="expected an address"):
        releases.base({releases.VARIABLE: "mirror"})


def test_what_was_built_before_is_used_without_asking(server: Server, cache: Cache) -> None:
    entry = cache.entry("etcd-built", components.ETCD, components.sources_recipe(components.SOURCES / "go/etcd"), lambda folder: None)
    assert (components.etcd(cache), server.asked) == (entry, [])


def test_what_can_be_downloaded_is_not_built(server: Server, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "ETCD", "3.6.5")
    assert components.etcd(cache).name.startswith("etcd-released-3.6.5-")
