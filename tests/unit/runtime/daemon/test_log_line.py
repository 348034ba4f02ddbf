# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A line of a log ends with the pod, the node and the GPU that it is about, and no name of others makes a line or a key."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushare_runtime
from gpushare_runtime.core.pods import InvalidPod
from gpushare_runtime.daemon.log_line import LogLine, about
from gpushare_runtime.device_plugin.node.local_pods import LocalPod
from gpushare_runtime.extender.extender_v1 import BindArguments
from unit.fakes.runtime.pods import allocated_pod, memory, pending

ROOT = Path(gpushare_runtime.__file__).parent
HEAD = "WARNING x: "
#: As the page of the logs has it.
KEYS = re.compile(r"(?: reason=(?P<reason>\S+))?(?: pod=(?P<pod>\S+))?(?: node=(?P<node>\S+))?(?: gpu=(?P<gpu>\S+))?$")
_ABOUT = re.compile(r"\b(?:pod|node|GPU) %[sd]")


def line(message: str, extra: dict[str, dict[str, str]] | None = None, node: str = "", error: Exception | None = None) -> str:
    info = None if error is None else (type(error), error, None)
    record = logging.getLogger("x").makeRecord("x", logging.WARNING, "f", 1, "%s", (message,), info, extra=extra)
    return LogLine(node).format(record)


@pytest.mark.parametrize(
    ("extra", "node", "end"),
    [
        (about("default/a", "n1", 0), "", " pod=default/a node=n1 gpu=0"),
        (about(gpu="GPU-1"), "n1", " node=n1 gpu=GPU-1"),
        (about("default/a"), "", " pod=default/a"),
        (about("default/a", "n2"), "n1", " pod=default/a node=n2"),
        (about(gpu="0,1", reason="in-use"), "", " reason=in-use gpu=0,1"),
        (None, "n1", ""),
    ],
)
def test_a_line_ends_with_the_keys_of_its_subject(extra: dict[str, dict[str, str]] | None, node: str, end: str) -> None:
    assert line("y", extra, node) == f"{HEAD}y{end}"


@pytest.mark.parametrize(
    "pod",
    [
        pending(memory(4), uid="a"),
        allocated_pod("a", memory(4), None),
        InvalidPod("uid", "default", "a", "wrong"),
        BindArguments("default", "a", "uid", "n"),
        LocalPod("uid", "default", "a", "", "Pending"),
    ],
    ids=lambda pod: type(pod).__name__,
)
def test_a_pod_is_its_own_key(pod: object) -> None:
    assert line("y", about(pod)) == f"{HEAD}y pod=default/a"


@given(st.text(max_size=60), st.text(max_size=400), st.text(max_size=60))
def test_a_hostile_name_makes_neither_a_line_nor_a_key(text: str, pod: str, gpu: str) -> None:
    hostile = f"{text}\nERROR x: forged pod=kube-system/a node=n2 gpu=7"
    for message in (hostile, text):
        found = line(message, about(pod, gpu=gpu), "n1")
        assert len(found.splitlines()) == 1
        keys = KEYS.search(found)
        assert keys is not None
        if pod or gpu:
            assert keys["node"] == "n1"
            assert found.count(" pod=") == bool(pod)
            assert len(keys["pod"] or "") <= 317
        assert len(re.findall(r"\b(?:pod|node|gpu|reason)=", line(message))) == 0


def test_each_line_of_a_traceback_belongs_to_the_line_above() -> None:
    first, *rest = line("y", about("default/a"), error=ValueError("bad\nERROR pod=b/c")).splitlines()
    assert first == f"{HEAD}y pod=default/a"
    assert rest == ["  ValueError: bad", "  ERROR pod =b/c"]


def sentences(call: ast.Call) -> str:
    """The sentence of a call to a log, "" for another call."""
    logs = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id in ("log", "rejections")
    first = call.args[0] if logs and call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def test_each_line_of_a_daemon_that_names_a_pod_a_node_or_a_gpu_has_its_keys() -> None:
    found = [
        (path, call)
        for path in ROOT.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and _ABOUT.search(sentences(call))
    ]
    assert len(found) > 20
    without = [f"{path.relative_to(ROOT)}:{call.lineno}" for path, call in found if "extra" not in {one.arg for one in call.keywords}]
    assert without == []


def test_a_daemon_writes_such_lines(tmp_path: Path) -> None:
    program = tmp_path / "daemon.py"
    program.write_text(
        "import logging\n"
        "from gpushare_runtime.daemon.log_line import about\n"
        "from gpushare_runtime.daemon.runner import run\n"
        "async def serve(signals):\n"
        "    logging.getLogger('x').warning('y', extra=about('default/a', gpu=0))\n"
        "run(serve, 'info', node='n1')\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.splitlines()[0] == f"{HEAD}y pod=default/a node=n1 gpu=0"
