# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare dashboard` and gpushare-dashboard: their options, what others of the machine can see, and whose pods are shown."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from gpushare_runtime.daemon.runner import FatalError
from gpushare_runtime.dashboard import local
from gpushare_runtime.dashboard.feed import Feed
from gpushare_runtime.dashboard.main import Certificate, parse_arguments
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kubectl_gpushare.api import find_scope
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.errors import InputError
from gpushare_runtime.kubectl_gpushare.kubeconfig import context_name
from gpushare_runtime.kubectl_gpushare.watcher import Watcher
from gpushare_runtime.kubectl_program import main as kubectl
from unit.fakes.runtime.kube.fake_api import FakeApi, fail, until
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text("0123456789abcdef")
    return file


def test_the_service_listens_on_loopback_by_default(token: Path) -> None:
    made = parse_arguments(["--viewer-token-file", str(token), "--title", "a\x1bb"])
    assert (*made.listen, made.token.current(), made.title, made.history) == ("127.0.0.1", 9442, "0123456789abcdef", "a b", None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--viewer-token-file"),
        (["--viewer-token-file", "/nonexistent"], "cannot read the token file"),
        (["--viewer-token-file", "{token}", "--listen", "10.0.0.1:9442"], "clear text"),
        (["--viewer-token-file", "{token}", "--tls-cert", "/x"], "go together"),
        (["--viewer-token-file", "{token}", "--listen", "0.0.0.0:9442", "--tls-cert", "/x", "--tls-key", "/y"], "--host-name too"),
        (["--viewer-token-file", "{token}", "--listen", "localhost:9442"], "is not an IP address and a port from 1 to 65535"),
        (["--viewer-token-file", "{token}", "--listen", "127.0.0.1:99999"], "is not an IP address and a port from 1 to 65535"),
        (["--viewer-token-file", "{token}", "--host-name", "a b"], "is not a host name without a port"),
        (["--viewer-token-file", "{token}", "--host-name", "a:80"], "is not a host name without a port"),
        (["--viewer-token-file", "{token}", "--prometheus", "prometheus"], "is not a URL such as http://prometheus"),
        (["--viewer-token-file", "{token}", "--prometheus", "http://:9090"], "is not the URL of a Prometheus server"),
        (["--viewer-token-file", "{token}", "--own-tokens"], "expected one of"),
        (["--viewer-token-file", "{token}", "--seed-token-file", "/x"], "go together"),
    ],
)
def test_settings_that_cannot_be_used_end_the_program(
    argv: list[str], message: str, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments([one.format(token=token) for one in argv])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_service_needs_no_package_of_the_extra_kubectl() -> None:
    code = (
        "import sys; sys.modules.update(rich=None, kubernetes=None); from gpushare_runtime.dashboard import main; main.main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("gpushare-dashboard ")


def test_a_certificate_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("none")
    with pytest.raises(FatalError, match="expected both as PEM"):
        Certificate(tmp_path / "cert", tmp_path / "key")


async def test_a_new_certificate_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gpushare_runtime.dashboard import main

    monkeypatch.setattr(main, "_CERTIFICATE_SECONDS", 0.01)
    cert, key = tmp_path / "cert", tmp_path / "key"

    def issue(name: str) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        subprocess.run([*command, "-subj", f"/CN={name}", "-keyout", key, "-out", cert], check=True, capture_output=True)

    def served(port: int) -> str:
        text = ssl.get_server_certificate(("127.0.0.1", port), timeout=30)
        return subprocess.run(["openssl", "x509", "-noout", "-subject"], input=text, text=True, capture_output=True, check=True).stdout

    issue("first")
    certificate = Certificate(cert, key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context)
    port = server.sockets[0].getsockname()[1]
    assert "first" in await asyncio.to_thread(served, port)
    reload = asyncio.Event()
    following = asyncio.ensure_future(certificate.follow(reload))
    cert.write_text("broken")
    await until(lambda: "the new certificate cannot be used" in caplog.text)
    assert "first" in await asyncio.to_thread(served, port)
    issue("second")
    deadline = asyncio.get_running_loop().time() + 60
    while "second" not in await asyncio.to_thread(served, port):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    # `systemctl reload` does not wait for the next look at the files.
    monkeypatch.setattr(main, "_CERTIFICATE_SECONDS", 3600.0)
    following.cancel()
    following = asyncio.ensure_future(certificate.follow(reload))
    issue("third")
    assert "second" in await asyncio.to_thread(served, port)
    reload.set()
    while "third" not in await asyncio.to_thread(served, port):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    following.cancel()
    server.close()


# kubectl gpushare dashboard.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json"
    items = [node("a", "10.0.0.1", 16) | {"kind": "Node"}, pod("p", "a", gpu=0, mem=3) | {"kind": "Pod"}]
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


def arguments(*argv: str) -> Any:
    return kubectl._parser().parse_args(["dashboard", *argv])


def test_the_browser_gets_the_address_by_a_file_that_only_its_user_can_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    shown: list[str] = []
    seen: dict[str, Any] = {}

    def opened(address: str) -> bool:
        assert "#" not in address
        page = Path(unquote(urlsplit(address).path))
        seen["modes"] = [stat.S_IMODE(os.stat(path).st_mode) for path in (page, page.parent)]
        seen["text"] = page.read_text()
        url = re.search(r"url=(http://127\.0\.0\.1:\d+/)#token=([\w-]+)\"", seen["text"])
        assert url
        request = urllib.request.Request(f"{url[1]}api/state", headers={"Authorization": f"Bearer {url[2]}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            seen["state"] = json.loads(response.read())
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(30)
        loop.call_soon_threadsafe(main_task.cancel)
        return True

    async def go() -> None:
        nonlocal loop, main_task
        loop, main_task = (
            asyncio.get_running_loop(),
            asyncio.ensure_future(local._serve(arguments("--from-file", str(file)), None, shown.append, opened)),
        )
        with pytest.raises(asyncio.CancelledError):
            await main_task

    loop: asyncio.AbstractEventLoop
    main_task: asyncio.Future[None]
    asyncio.run(asyncio.wait_for(go(), 120))
    assert seen["modes"] == [0o600, 0o700]
    assert seen["state"]["sums"]["allocated"] == 3 * 1024
    assert (seen["state"]["title"], seen["state"]["synced"]) == ("cluster.json", True)
    assert len(re.findall(r"#token=[\w-]{43}\n", shown[0])) == 1


def test_two_starts_have_two_tokens_and_leave_nothing_behind(file: Path) -> None:
    async def start() -> str:
        shown: list[str] = []
        task = asyncio.ensure_future(
            local._serve(arguments("--from-file", str(file), "--no-browser"), None, shown.append, lambda url: True)
        )
        await until(lambda: shown[0])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        address, token = shown[0].split()[0].split("#token=")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(local.ADDRESS, urlsplit(address).port)
        return token

    assert asyncio.run(start()) != asyncio.run(start())


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["--port", "65536"], "expected a port"), (["--port", "x"], "expected a port"), (["--port", "²"], "expected a port")],
)
def test_a_port_that_is_none_is_rejected(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(*argv)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_prometheus_that_is_none_is_rejected_before_anything_is_read() -> None:
    with pytest.raises(InputError, match="--prometheus: 'here' is not the URL"):
        local.run(arguments("--prometheus", "here", "--from-file", "/nonexistent"))


def test_a_port_in_use_is_named(file: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="choose another --port"):
            local.run(arguments("--from-file", str(file), "--port", str(taken.getsockname()[1]), "--no-browser"))


@pytest.mark.parametrize(("context", "expected"), [(None, "prod"), ("lab", "lab")])
@pytest.mark.parametrize("package", [True, False])
def test_the_title_is_the_name_of_the_context(
    context: str | None, expected: str, package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not package:
        monkeypatch.setitem(sys.modules, "kubernetes", None)
    file = tmp_path / "kubeconfig"
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("lab", "prod")]
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "prod",
                "contexts": contexts,
                "clusters": [{"name": "c", "cluster": {}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    assert context_name(str(file), context) == expected


# Whose pods.


async def test_somebody_with_all_rights_sees_all(api: FakeApi, client: KubeClient) -> None:
    cluster = Cluster()
    assert await find_scope(client, cluster, "mine") == ""
    assert (cluster.complete, cluster.knows_nodes, cluster.warnings) == (True, True, [])


async def test_a_tenant_sees_the_pods_of_his_namespace_and_that_these_are_not_all(api: FakeApi, client: KubeClient) -> None:
    await api.put("/api/v1/namespaces/mine/pods/p", pod("p", "a", gpu=0, mem=3, namespace="mine"))
    await api.put("/api/v1/namespaces/other/pods/q", pod("q", "a", gpu=0, mem=3, namespace="other"))
    api.faults += [fail(403, "Forbidden"), fail(403, "Forbidden")]
    cluster = Cluster()
    assert await find_scope(client, cluster, "mine") == "mine"
    feed = Feed(cluster, "e")
    task = asyncio.ensure_future(feed.watch(Watcher(client, cluster, "mine")))
    await until(lambda: feed.synced)
    made = json.loads(feed.state.whole())
    assert (made["complete"], made["knows_nodes"]) == (False, False)
    assert "may not list nodes" in made["warnings"][0]
    assert "only those of namespace 'mine'" in made["warnings"][1]
    assert [one[:2] for one in made["nodes"][0]["pods"]] == [["mine", "p"]]
    # It follows.
    await api.put("/api/v1/namespaces/mine/pods/r", pod("r", "a", gpu=0, mem=1, namespace="mine"))
    await until(lambda: feed.state.sums.pods == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_somebody_without_any_right_gets_the_servers_word(api: FakeApi, client: KubeClient) -> None:
    api.faults += [fail(403, "Forbidden")] * 3
    with pytest.raises(KubeError) as error:
        await find_scope(client, Cluster(), "mine")
    assert error.value.status == 403
    api.faults += [fail(500)]
    with pytest.raises(KubeError) as error:
        await find_scope(client, Cluster(), "mine")
    assert error.value.status == 500
