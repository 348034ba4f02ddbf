# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What kubectl gets to complete a command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gpushare_runtime.kubectl_program import completion
from gpushare_runtime.kubectl_program.completion import complete, main
from gpushare_runtime.kubectl_program.main import COMMANDS, options_of
from unit.fakes.runtime.kube.fake_api import FakeApi, kubeconfig, serving
from unit.fakes.runtime.kubectl_gpushare.command import OBJECTS


def names(kind: str, namespace: str) -> list[str]:
    found = {"nodes": ["gpu1", "gpu2"], "namespaces": ["default", "team", "te\x1bam"], "pods": [f"{namespace or 'own'}-1", "q"]}
    return found[kind]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], list(COMMANDS)),
        (["n"], ["nodes", "namespaces"]),
        (["nodes", ""], ["gpu1", "gpu2"]),
        (["no", "gpu1", ""], ["gpu2"]),
        (["gpus", "gpu"], ["gpu1", "gpu2"]),
        (["pods", "-n", "team", ""], ["team-1", "q"]),
        (["-n", "x", "pods", "o"], []),
        (["pods", "o"], ["own-1"]),
        (["pods", "-n", "te"], ["team"]),
        (["-o", "w"], ["wide"]),
        (["-o", "wide", "mod"], ["models"]),
        (["pods", "--from-file", ""], None),
        (["models", ""], []),
        (["pods", "--no"], ["--no-headers", "--node"]),
        (["--re"], ["--reverse"]),
        (["nonsense", ""], []),
    ],
)  # fmt: skip
def test_candidates(words: list[str], found: list[str] | None) -> None:
    assert complete(words, names) == found


def test_the_options_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    from gpushare_runtime.kubectl_program.main import main as program

    with pytest.raises(SystemExit):
        program(["pods", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    assert {word for word in words if word.startswith("--")} - {"--help"} == set(options_of("pods"))


def test_names_come_from_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    # People wait for three seconds; a busy machine for a test may need more.
    monkeypatch.setattr(completion, "SECONDS", 60.0)

    async def go() -> None:
        async with serving(FakeApi()) as api:
            for path, value in OBJECTS.items():
                await api.put(path, json.loads(json.dumps(value)))
            (tmp_path / "config").write_text(kubeconfig(api.url))
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
            await asyncio.to_thread(main, ["pods", "-n", "team", ""])

    asyncio.run(go())
    assert capsys.readouterr().out.splitlines() == ["t", "w", ":4"]


def test_without_a_cluster_there_are_no_names_and_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent/config")
    assert main(["nodes", ""]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (":4\n", "")
