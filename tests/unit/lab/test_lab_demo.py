# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The end of `make demo`: it shows the product's own commands, and what it says to try next exists."""

from __future__ import annotations

import re
import shlex
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

import pytest

from e2e.samples import TOO_LARGE
from gpushare_lab.cli import parser
from gpushare_runtime.kubectl_program.main import _parser
from tree import REPOSITORY


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    loader = SourceFileLoader("demo_script", str(REPOSITORY / "tools/lab/demo"))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


class OfOnePod:
    """A cluster that answers each command with its name."""

    def pods(self) -> list[dict[str, object]]:
        return [
            {"metadata": {"name": "share-1", "annotations": {"ALIYUN_COM_GPU_MEM_IDX": "1"}}, "status": {"phase": "Running"}, "spec": {}}
        ]

    def log(self, pod: str) -> str:
        return f"log of {pod}\n"

    def on(self, node: str, *command: str) -> str:
        return f"{node} ran {command[-1]}\n"


def test_it_ends_with_the_table_and_the_reason_of_the_waiting_pod(
    demo: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "apply_samples", lambda cluster, say: None)
    demo.show(OfOnePod(), demo.gpushare)
    printed = capsys.readouterr().out
    ran = re.findall(r"^cp1 ran (.*) \|\| \[ \$\? -eq 3 \]$", printed, re.M)
    assert ran == ["kubectl gpushare", f"kubectl gpushare explain {TOO_LARGE}"]
    assert printed.rstrip().endswith("-eq 3 ]")
    for command in ran:
        _parser().parse_args(shlex.split(command)[2:] or ["nodes"])


@pytest.mark.parametrize("tries", ["TRY", "TRY_PODS"])
def test_what_to_try_next_exists(demo: ModuleType, tries: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    lines = [line.strip() for line in demo.what_next("demo", getattr(demo, tries)).splitlines()[::2]]
    assert lines[0] == "make demo-dashboard"
    assert any(f"gpushare explain {TOO_LARGE}" in line for line in lines) == (tries == "TRY")
    for line in lines:
        words = shlex.split(line)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.M), line
            continue
        assert (REPOSITORY / words[0]).is_file()
        parser().parse_known_args(words[1:])
        if "gpushare" in words and "inspect" not in words:
            _parser().parse_args(words[words.index("gpushare") + 1 :] or ["nodes"])


def test_another_lab_is_named_in_each_line(demo: ModuleType) -> None:
    for line in demo.what_next("other", demo.TRY).splitlines()[::2]:
        assert "LAB_NAME=other" in line or "--name other" in line
