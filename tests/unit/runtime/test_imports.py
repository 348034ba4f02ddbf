# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Each folder of the runtime imports only what it may, and the core knows nothing of the outside: no clock, socket, file or log."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpushare_runtime

ROOT = Path(gpushare_runtime.__file__).parent
PACKAGE = "gpushare_runtime"
# Folder → the other folders that it may import. What stands deeper counts first.
CONTRACTS = {
    "errors": (),
    "core": (),
    "daemon": (),
    "kube": ("daemon",),
    "mps": ("core", "daemon"),
    "pki": ("core.protocol", "daemon.files"),
    "probe": (),
    "extender": ("core", "daemon", "kube"),
    "device_plugin": ("core", "daemon", "kube"),
    "device_plugin.node": ("core", "daemon.exposition", "daemon.sync"),
    "device_plugin.kubelet": ("core", "daemon", "device_plugin.node"),
    "device_plugin.gpu": ("core", "daemon", "device_plugin.node"),
    "device_plugin.host": ("core", "daemon", "device_plugin.node"),
    "kubectl_gpushare": ("core", "kube"),
    # It shows what the views compute.
    "dashboard": ("core", "daemon", "kube", "kubectl_gpushare"),
    # A command starts the dashboard.
    "kubectl_program": ("core", "kube", "kubectl_gpushare", "dashboard.local"),
    "doctor": (
        "core.protocol",
        "core.inventory",
        "kube",
        "pki",
        "device_plugin.host.cdi_specs",
        "device_plugin.kubelet.checkpoint",
        "device_plugin.node.cdi",
    ),
}
# What every folder may import, and that imports none.
EVERYWHERE = ("__version__", "errors")
PURE = {
    "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "enum", "fractions", "functools", "hashlib", "heapq", "itertools",
    "json", "math", "operator", "re", "typing",
}  # fmt: skip
# What reads times that others have written must not look at the clock itself.
TIMES = {"core.node_report": {"datetime"}}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def folder_of(module: str) -> str:
    """The contract that a module is under; "" for the package itself."""
    return max((folder for folder in CONTRACTS if module == folder or module.startswith(f"{folder}.")), key=len, default="")


def imports(source: str) -> set[str]:
    """The modules that are imported anywhere; of this package without its name, "" for itself."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            # The name may be a module's or one in it.
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def forbidden(module: str, source: str) -> Iterator[str]:
    """What it imports although its folder may not."""
    own = folder_of(module)
    allowed = (own, *CONTRACTS[own], *EVERYWHERE) if own else ()
    for name in sorted(imports(source)):
        if not name.startswith(f"{PACKAGE}."):
            if own in ("core", "errors") and name.split(".")[0] not in PURE | TIMES.get(module, set()):
                yield name
            continue
        inner = name.removeprefix(f"{PACKAGE}.")
        # Below a folder of its own kind a deeper one is another folder.
        inside = any(inner == one or inner.startswith(f"{one}.") for one in allowed)
        if not inside:
            yield inner


MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_each_folder_imports_what_it_may(path: Path) -> None:
    assert folder_of(module_of(path)), f"{path} is in no folder of CONTRACTS"
    assert list(forbidden(module_of(path), path.read_text())) == []


@pytest.mark.parametrize("path", [path for path in MODULES if module_of(path).startswith("core.")], ids=module_of)
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
    ],
)  # fmt: skip
def test_the_check_sees_what_it_forbids(module: str, source: str, found: list[str]) -> None:
    assert list(forbidden(module, source)) == found
