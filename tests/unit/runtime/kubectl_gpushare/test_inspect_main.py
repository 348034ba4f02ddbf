# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The command: what it reads over HTTP, what it prints, and how it says what went wrong."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_runtime.kubectl_gpushare.inspect_main import main
from unit.fakes.runtime.kube.fake_api import FakeApi, fail, kubeconfig, serving
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod
from unit.golden import Golden

CP1 = {"metadata": {"name": "cp1"}, "status": {"allocatable": {"cpu": "2"}}}


@pytest.fixture(autouse=True)
def no_kubeconfig_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def inspect(tmp_path: Path, *argv: str, change: Callable[[FakeApi], None] = lambda api: None) -> tuple[int, FakeApi]:
    """Run the command against a server with gpu1, gpu2 and cp1, with its kubeconfig at ~/.kube/config."""

    async def run() -> tuple[int, FakeApi]:
        async with serving(FakeApi()) as api:
            for value in (CP1, node("gpu1", "10.0.0.1", 16, 16), node("gpu2", "10.0.0.2", 16, 24)):
                await api.put(f"/api/v1/nodes/{value['metadata']['name']}", value)
            await api.put("/api/v1/namespaces/default/pods/p", pod("p", "gpu1", gpu=1, mem=6))
            change(api)
            (tmp_path / ".kube").mkdir()
            (tmp_path / ".kube/config").write_text(kubeconfig(api.url))
            return await asyncio.to_thread(main, argv), api

    return asyncio.run(run())


def test_all_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, api = inspect(tmp_path)
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert printed.out.splitlines()[1:3] == [
        "gpu1  10.0.0.1   0/16                   6/16                   6/32",
        "gpu2  10.0.0.2   0/16                   0/24                   0/40",
    ]
    assert sorted((path, query.get("fieldSelector"), query["limit"]) for _, path, query in api.requests) == [
        ("/api/v1/nodes", None, "500"),
        ("/api/v1/pods", "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!=", "500"),
        ("/apis/resource.k8s.io/v1/resourceslices", "spec.driver=gpushare.kubernetes", "500"),
    ]


def test_the_strategy_of_each_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = node("gpu2", "10.0.0.2", 16, 24)
    gpus = other["metadata"]["annotations"]
    gpus["gpushare/gpus"] = gpus["gpushare/gpus"].replace('"gpus":', '"strategy":"cdi","gpus":', 1)

    def change(api: FakeApi) -> None:
        api.objects["/api/v1/nodes/gpu2"] = other

    assert inspect(tmp_path, "-o", "wide", change=change)[0] == 0
    assert [line.split()[-2:] for line in capsys.readouterr().out.splitlines()[1:3]] == [["unknown", "6/32"], ["cdi", "0/40"]]


def test_one_node_in_detail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, api = inspect(tmp_path, "-d", "gpu1")
    out = capsys.readouterr().out
    assert code == 0
    assert "p            default    0                6" in out
    assert "gpu2" not in out
    assert "spec.nodeName=gpu1" in str(api.requests)


@pytest.mark.parametrize(("name", "fault"), [("gpu9", "node 'gpu9' does not exist"), ("cp1", "node 'cp1' has no aliyun.com/gpu-mem")])
def test_a_wrong_node_names_the_right_ones(name: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = inspect(tmp_path, name)
    printed = capsys.readouterr()
    assert (code, printed.out) == (1, "")
    assert printed.err == f"kubectl inspect gpushare: {fault}; nodes with shared GPUs: gpu1, gpu2\n"


def test_no_node_with_gpus_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    def only_cp1(api: FakeApi) -> None:
        api.objects = {"/api/v1/nodes/cp1": CP1}

    code, _ = inspect(tmp_path, change=only_cp1)
    printed = capsys.readouterr()
    assert code == 0
    golden(printed.err)
    assert printed.out.endswith("\n0/0 (0%)  \n")


def test_forbidden(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    def forbid(api: FakeApi) -> None:
        api.faults = [fail(403, "Forbidden", 'nodes is forbidden: User "me" cannot list resource "nodes"')] * 2

    code, _ = inspect(tmp_path, change=forbid)
    assert code == 1
    golden(capsys.readouterr().err)


def test_credentials_that_the_server_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def expect_token(api: FakeApi) -> None:
        api.token = "another"

    code, _ = inspect(tmp_path, change=expect_token)
    assert code == 1
    assert "does not accept these credentials (Unauthorized): renew them" in capsys.readouterr().err


def test_a_server_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def break_it(api: FakeApi) -> None:
        api.faults = [fail(500, "InternalError", "etcdserver: request timed out")] * 2

    code, _ = inspect(tmp_path, change=break_it)
    assert code == 1
    assert "cannot answer: etcdserver: request timed out (500 InternalError)" in capsys.readouterr().err


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{unused.getsockname()[1]}"
        (tmp_path / "config").write_text(kubeconfig(server))
        assert main(["--kubeconfig", str(tmp_path / "config")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("kubectl inspect gpushare: cannot reach the API server: ")
    assert f"Is {server} right? The kubeconfig says so (--kubeconfig, --context)" in error


def test_no_kubeconfig(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert f"kubeconfig {tmp_path}/.kube/config: no such file" in capsys.readouterr().err


def test_the_variable_kubeconfig_and_an_unknown_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").write_text(kubeconfig("http://127.0.0.1:9"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "mine"))
    assert main(["--context", "there"]) == 1
    error = capsys.readouterr().err
    assert f"kubeconfig {tmp_path}/mine: " in error
    assert "there" in error.split("mine: ", 1)[1]


@pytest.mark.parametrize(("argv", "code", "said"), [(["--version"], 0, "kubectl-inspect-gpushare 0."), (["-h"], 0, "--context NAME")])
def test_help_and_version(argv: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == code
    assert said in capsys.readouterr().out
