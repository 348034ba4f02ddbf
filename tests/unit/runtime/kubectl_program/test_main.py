# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare`: what it reads over HTTP with which rights, what it prints, and its exit status."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpushare_runtime.core import protocol
from gpushare_runtime.kubectl_gpushare import used
from gpushare_runtime.kubectl_gpushare.cluster import Used
from gpushare_runtime.kubectl_program import main as program
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.core.ledger_schema import check
from unit.fakes.runtime.kube.fake_api import fail, status
from unit.fakes.runtime.kubectl_gpushare.command import OBJECTS, run


@pytest.fixture(autouse=True)
def no_kubeconfig_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def forbidding(*prefixes: str) -> Callable[[web.Request], Any]:
    """A tenant's rights: everything else is allowed."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        if request.path in prefixes:
            return status(403, "Forbidden", f'{request.path} is forbidden: User "me" cannot list it at the cluster scope')
        return None

    return fault


def test_without_a_command_all_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, api = run(tmp_path)
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert printed.out.splitlines()[:2] == [
        "NAME  GPUS  ALLOC/TOTAL  LARGEST  ISOLATION  GPU0  GPU1",
        "gpu1   2/2         8/32       14  -          2/16  6/16",
    ]
    assert printed.out.endswith("8 of 32 GiB allocated (25 %), 24 GiB free on usable GPUs, 1 pod pending\n")
    assert sorted((path, query.get("fieldSelector")) for _, path, query in api.requests) == [
        ("/api/v1/nodes", None),
        ("/api/v1/pods", protocol.UNFINISHED),
        ("/apis/resource.k8s.io/v1/resourceslices", "spec.driver=gpushare.kubernetes"),
    ]


@pytest.mark.parametrize(
    ("argv", "namespace", "names"),
    [
        (("pods",), "", ["pod/p"]),
        (("pods",), "team", ["pod/t", "pod/w"]),
        (("pods", "-n", "team"), "", ["pod/t", "pod/w"]),
        (("-n", "team", "po"), "", ["pod/t", "pod/w"]),
        (("pods", "-A"), "", ["pod/default/p", "pod/team/t", "pod/team/w"]),
        (("ns",), "", ["namespace/default", "namespace/team"]),
        (("ns", "-n", "team"), "", ["namespace/team"]),
        (("gpus", "gpu1"), "", ["gpu/gpu1/0", "gpu/gpu1/1"]),
        (("models",), "", ["model/Tesla T4"]),
        (("gpu1",), "", ["node/gpu1"]),
        (("po", "-A", "--node", "gpu1", "--gpu", "0"), "", ["pod/team/t"]),
        (("pods", "-A", "--sort-by=allocated"), "", ["pod/team/w", "pod/team/t", "pod/default/p"]),
    ],
)  # fmt: skip
def test_commands(argv: tuple[str, ...], namespace: str, names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(tmp_path, "-o", "name", *argv, namespace=namespace)
    assert (code, capsys.readouterr().out.splitlines()) == (0, names)


@pytest.mark.parametrize(
    ("argv", "names"), [(("idle",), ["p"]), (("idle", "-n", "team"), ["t"]), (("idle", "-A"), ["default/p", "team/t"])]
)
def test_idle_pods_of_one_namespace(
    argv: tuple[str, ...], names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(used, "published", lambda cluster: Used(idle={"uid-p": 1.0, "uid-t": 2.0}))
    code, _ = run(tmp_path, "-o", "name", *argv)
    assert (code, sorted(capsys.readouterr().out.split())) == (0, [f"pod/{name}" for name in names])


def test_a_tenant_sees_his_namespace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rights = [forbidding("/api/v1/nodes", "/api/v1/pods")] * 9
    code, _ = run(tmp_path, faults=lambda: rights, namespace="team")
    printed = capsys.readouterr()
    assert code == 0
    assert [line.split() for line in printed.out.splitlines()] == [
        ["NAME", "NODE", "GPU", "ALLOCATED", "AGE", "STATE", "REASON"],
        ["t", "gpu1", "0", "2", "units", "-", "bound"],
        ["w", "-", "-", "-", "-", "pending", "kube-scheduler", "has", "reported", "nothing", "yet"],
    ]
    assert printed.err.splitlines() == [
        "warning: you may not list nodes, so their GPUs are not known",
        "warning: you may not list the pods of all namespaces, so only those of namespace 'team' are known",
    ]


def test_a_tenant_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "pods", "-o", "json", faults=lambda: [forbidding("/api/v1/nodes")] * 9, namespace="team")
    made = json.loads(capsys.readouterr().out)
    check(made)
    assert (made["complete"], [one["name"] for one in made["pending"]]) == (False, ["w"])
    assert [(n["unit"], [(p["name"], p["by_gpu"]) for p in n["pods"]]) for n in made["nodes"]] == [(None, [("t", {"0": 2})])]


def test_with_his_namespace_alone_nobody_knows_what_is_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(tmp_path, "nodes", faults=lambda: [forbidding("/api/v1/pods")] * 9)
    error = capsys.readouterr().err
    assert code == 1
    assert error == "kubectl gpushare: kubectl gpushare nodes needs to list nodes and all pods. As you are: kubectl gpushare pods\n"


def test_without_any_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(tmp_path, "pods", faults=lambda: [fail(403, "Forbidden", "pods is forbidden")] * 9)
    assert code == 1
    assert "pods is forbidden\n  It needs to list pods in namespace default" in capsys.readouterr().err


def test_pages_that_expire_are_read_in_one_piece(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(tmp_path, "-o", "name", faults=lambda: [fail(410, "Expired", "too old")])
    assert (code, capsys.readouterr().out) == (0, "node/gpu1\n")


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("nodes", "gpu9"), 1, "found no node 'gpu9' with shared GPUs; there are: gpu1"),
        (("pods", "x"), 1, "found no pod 'x' with shared GPUs in namespace default; there are: p"),
        (("--sort-by", "no"), 2, "found --sort-by='no'; expected a column of this view: name, gpus"),
        (("no-such-view",), 2, "found no node 'no-such-view' with shared GPUs; there are: gpu1. And it is not a command, which are: "),
        (("explian", "p"), 2, "found no node 'explian' with shared GPUs; there are: gpu1. And it is not a command; did you mean explain?"),
        (("explain",), 2, "expected the name of a pod, or -f FILE"),
        (("explain", "x", "-f", "y"), 2, "expected the name of a pod, or -f FILE"),
        (("simulate",), 2, "expected -f FILE with pods"),
        (("-l", "a=b=c"), 2, "found 'a=b=c' in the label selector"),
    ],
)
def test_wrong_arguments(argv: tuple[str, ...], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, *argv)[0] == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"kubectl gpushare: {said}" in printed.err


@pytest.mark.parametrize("command", program.COMMANDS)
def test_each_help_has_examples_that_can_be_typed_and_the_statuses_of_its_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = capsys.readouterr().out
    examples, _, statuses = printed.partition("\nexamples:\n")[2].partition("\n\nexit status:\n")
    lines = examples.splitlines()
    assert lines
    for line in lines:
        typed, _, _ = line.strip().partition(" | ")
        assert typed.startswith("kubectl gpushare")
        # argparse ends the process where it cannot read them.
        read = program.parse(shlex.split(typed)[2:])
        assert read.command == command
    assert statuses.startswith("  0 ")
    assert ("3 " in statuses) is (command in ("explain", "simulate", "status"))


@pytest.mark.parametrize("argv", [("-o", "xml"), ("pods", "-A", "-n", "x"), ("nodes", "--nonsense")])
def test_a_wrong_command_line(argv: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2


def test_no_pod_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(tmp_path, "pods", "-n", "nobody")
    printed = capsys.readouterr()
    assert (code, printed.out.split()[0], printed.err) == (0, "NAME", "no pods with shared GPUs found in namespace nobody\n")


def test_files_instead_of_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {"kind": "NodeList", "items": [value for path, value in OBJECTS.items() if "/nodes/" in path]}
    pods = {"kind": "List", "items": [{**value, "kind": "Pod"} for path, value in OBJECTS.items() if "/pods/" in path]}
    (tmp_path / "nodes.json").write_text(json.dumps(nodes))
    text = json.dumps(pods)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["--from-file", str(tmp_path / "nodes.json"), "--from-file", "-", "pods", "-A", "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    check(made)
    assert (made["complete"], [c["free"] for c in made["nodes"][0]["gpus"]]) == (True, [14, 10])
    assert main(["--from-file", str(tmp_path / "nodes.json")]) == 1
    assert "found no Pod in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nodes", "found no JSON ("),
        ("[1]", "found JSON that is not a Kubernetes list"),
        ('{"kind":"List","items":3}', "found JSON that is not a Kubernetes list"),
        ('{"kind":"List","items":[{"kind":"Node","metadata":3}]}', "found a Node that cannot be read ("),
        ('{"kind":"List","items":[{"kind":"Pod","metadata":{}}]}', "found a Pod that cannot be read ("),
    ],
)
def test_files_that_are_none(content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(content)
    assert main(["--from-file", str(tmp_path / "x.json")]) == 1
    assert said in capsys.readouterr().err
    assert main(["--from-file", str(tmp_path / "none.json")]) == 1
    assert "none.json: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["rich", "kubernetes"])
def test_without_the_extra_it_says_where_the_plugin_is(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("layout", "output", "views", "live"):
        monkeypatch.delitem(sys.modules, f"gpushare_runtime.kubectl_gpushare.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    more = ["--context", "other"] if package == "kubernetes" else []
    assert main(["--kubeconfig", str(tmp_path / "config"), *more]) == 1
    said = capsys.readouterr().err
    assert f"the Python package `{package}` is not installed here" in said
    assert "use the plugin of a control plane" in said
