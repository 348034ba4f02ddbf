# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Each folder of the runtime and of the plugins imports only what tools/contracts.py lets it, and the core does nothing outside."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from contracts import AREAS, PLUGINS, RUNTIME, Area, below

PREFIX = f"{PLUGINS.package}."
MODULES = [pytest.param(area, path, id=area.module_of(path)) for area in AREAS for path in area.modules()]


@pytest.mark.parametrize(("area", "path"), MODULES)
def test_each_folder_imports_what_it_may(area: Area, path: Path) -> None:
    module = area.module_of(path)
    assert area.contract_of(module), f"{path} is under no row of tools/contracts.py"
    assert list(area.forbidden(module, path.read_text())) == []


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.folder)
def test_no_row_allows_what_nobody_imports(area: Area) -> None:
    used: defaultdict[str, set[str]] = defaultdict(set)
    for path in area.modules():
        module = area.module_of(path)
        used[area.contract_of(module)] |= {name.removeprefix(f"{area.package}.") for name in area.imports(module, path.read_text())}
    assert set(used) >= set(area.contracts), "a row without a module"
    unused = [
        (row, other) for row, others in area.contracts.items() for other in others if not any(below(name, other) for name in used[row])
    ]
    assert unused == []


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.folder)
def test_the_folders_do_not_import_each_other_in_a_circle(area: Area) -> None:
    done: list[str] = []
    left = {row: {area.contract_of(other) for other in others} - {""} for row, others in area.contracts.items()}
    while left:
        free = [row for row, others in left.items() if others <= set(done)]
        assert free, f"these import each other: {sorted(left)}"
        done += free
        left = {row: others for row, others in left.items() if row not in free}


@pytest.mark.parametrize("path", [path for path in RUNTIME.modules() if below(RUNTIME.module_of(path), "core")], ids=RUNTIME.module_of)
def test_the_core_does_nothing_outside(path: Path) -> None:
    source = path.read_text()
    assert ".now(" not in source
    calls = {node.func.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"open", "print", "input", "exec", "eval", "__import__"}


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("core.ledger", "import socket", ["socket"]),
        ("core.ledger", "def f():\n    from time import time", ["time"]),
        ("core.ledger", "from datetime import datetime", ["datetime"]),
        ("core.node_report", "from datetime import datetime", []),
        ("core.ledger", "from gpushare_runtime.kube.client import KubeClient", ["kube.client.KubeClient"]),
        ("daemon.runner", "from gpushare_runtime.core import protocol", ["core.protocol"]),
        ("device_plugin.node.usage", "from gpushare_runtime.device_plugin.kubelet.server import X", ["device_plugin.kubelet.server.X"]),
        ("device_plugin.node.usage", "from gpushare_runtime.daemon.sync import Changes", []),
        ("device_plugin.node.usage", "from gpushare_runtime.daemon.files import x", ["daemon.files.x"]),
        ("device_plugin.main", "from gpushare_runtime.device_plugin.kubelet.server import X", []),
        ("device_plugin.main", "from gpushare_runtime import __version__", []),
        ("extender.main", "from gpushare_runtime.device_plugin import main", ["device_plugin.main"]),
        ("core.ledger", "from gpushare_runtime.errors import GpushareError", []),
        ("errors", "import socket", ["socket"]),
        ("errors", "from gpushare_runtime.core import protocol", ["core.protocol"]),
        ("probe.main", "import pynvml", ["pynvml"]),
        ("mps.gpu", "import pynvml", []),
    ],
)  # fmt: skip
def test_the_check_sees_what_it_forbids_in_the_runtime(module: str, source: str, found: list[str]) -> None:
    assert list(RUNTIME.forbidden(module, source)) == found


def whole(module: str, name: str = "X") -> str:
    return f"from ...{module} import {name}"


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("module_utils._formats.toml", "import re", []),
        ("module_utils._formats.toml", whole("module_utils._host.files"), ["module_utils._host.files.X"]),
        ("module_utils._formats.toml", "import yaml", ["yaml"]),
        ("module_utils._host.host", whole("module_utils._formats.versions"), []),
        ("module_utils._host.host", whole("module_utils._host", "command"), []),
        ("module_utils._host.host", whole("module_utils._change", "journal"), ["module_utils._change.journal"]),
        ("module_utils._facts.node", whole("module_utils._cluster.names"), []),
        ("module_utils._facts.node", whole("module_utils._cluster", "kubectl"), ["module_utils._cluster.kubectl"]),
        ("module_utils._cluster.names", whole("module_utils._cluster.kubectl"), ["module_utils._cluster.kubectl.X"]),
        ("module_utils._evidence.host", whole("plugin_utils._verdict.judge"), ["plugin_utils._verdict.judge.X"]),
        (
            "module_utils._evidence.host",
            "def f():\n    from ansible.module_utils.basic import AnsibleModule",
            ["ansible.module_utils.basic"],
        ),
        ("module_utils._evidence.host", "from . import daemons", []),
        ("module_utils._evidence.host", "from .._takeover import judge", ["module_utils._takeover.judge"]),
        ("module_utils._evidence.host", f"from {PREFIX}module_utils._takeover import aside", ["module_utils._takeover.aside"]),
        ("plugin_utils._scheduler.plan", "import yaml", []),
        ("plugin_utils._scheduler.plan", whole("plugin_utils._verdict.judge"), ["plugin_utils._verdict.judge.X"]),
        ("modules.gpu_node_info", "from ..module_utils._facts.node import X", []),
        ("modules.gpu_node_info", "from ..plugin_utils._preflight.host import X", ["plugin_utils._preflight.host.X"]),
        ("modules.gpu_node_info", "from ansible.plugins.action import ActionBase", ["ansible.plugins.action"]),
        ("action.gpushare_judge", "from ..plugin_utils._preflight.host import X", []),
    ],
)
def test_the_check_sees_what_it_forbids_in_the_plugins(module: str, source: str, found: list[str]) -> None:
    assert list(PLUGINS.forbidden(module, source)) == found


def test_a_module_without_a_row_has_no_contract() -> None:
    assert RUNTIME.contract_of("coreless.ledger") == ""
    assert PLUGINS.contract_of("module_utils._new.files") == ""
