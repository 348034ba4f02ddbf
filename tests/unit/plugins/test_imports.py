# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Each package of the plugins imports only what it may. What runs on hosts knows nothing of the controller, nor of Ansible or YAML."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3] / "plugins"
PREFIX = "ansible_collections.gpushare.kubernetes.plugins."
ROOT_OF_ERRORS = "module_utils._formats.failure"
# Package → the other packages or modules that it may import. What stands deeper counts first.
CONTRACTS = {
    "module_utils._formats": (),
    "module_utils._cluster.names": (),
    "module_utils._host": ("module_utils._formats",),
    "module_utils._host.container_runtimes": (),
    "module_utils._change": ("module_utils._host", "module_utils._cluster.names"),
    "module_utils._facts": ("module_utils._formats", "module_utils._host", "module_utils._cluster.names"),
    "module_utils._facts.cgroup_drivers": (
        "module_utils._formats",
        "module_utils._host",
        "module_utils._facts.kubernetes",
        "module_utils._runtimes",
    ),
    "module_utils._facts.device_strategy": (
        "module_utils._formats",
        "module_utils._host",
        "module_utils._facts.cdi_specs",
        "module_utils._facts.kubernetes",
        "module_utils._runtimes.cri",
    ),
    "module_utils._cluster": ("module_utils._formats", "module_utils._host"),
    "module_utils._identity": ("module_utils._host", "module_utils._cluster"),
    "module_utils._runtimes": ("module_utils._formats", "module_utils._host", "module_utils._change"),
    "module_utils._kubelet": (
        "module_utils._formats",
        "module_utils._host",
        "module_utils._change",
        "module_utils._facts",
        "module_utils._cluster.node_ready",
    ),
    "module_utils._driver": ("module_utils._formats", "module_utils._host", "module_utils._change", "module_utils._facts"),
    "module_utils._packages": ("module_utils._formats", "module_utils._host", "module_utils._change"),
    "module_utils._toolkit": tuple(
        f"module_utils.{name}" for name in ("_facts.advisories", "_facts.cdi_specs", "_formats", "_host", "_change")
    ),
    "module_utils._daemon": tuple(
        f"module_utils.{name}"
        for name in ("_formats.credentials", "_formats.finding", "_host", "_change", "_cluster.names", "_identity.token")
    ),
    "module_utils._scheduler": (
        "module_utils._host",
        "module_utils._change",
        "module_utils._cluster",
        "module_utils._daemon.health",
        "module_utils._formats.yaml_scalars",
    ),
    "module_utils._removal": tuple(f"module_utils.{name}" for name in ("_host", "_change", "_cluster", "_daemon", "_scheduler.manifest")),
    "module_utils._takeover": (
        "module_utils._cluster.names",
        "module_utils._cluster.kubectl",
        "module_utils._cluster.objects",
        "module_utils._facts.device_managers",
        "module_utils._formats.quantity",
    ),
    "module_utils._evidence": tuple(
        f"module_utils.{name}"
        for name in ("_formats", "_host", "_facts", "_cluster", "_runtimes", "_change", "_daemon.environment", "_scheduler")
    ),
    "module_utils._in_cluster": tuple(
        f"module_utils.{name}"
        for name in ("_formats", "_cluster", "_evidence.cluster", "_facts.capacity", "_removal.cluster", "_scheduler.proof", "_takeover")
    ),
    "plugin_utils._answers": ("module_utils._formats.finding", "plugin_utils._results", "plugin_utils._shape"),
    "plugin_utils._results": ("module_utils", "plugin_utils._scheduler.wiring", "plugin_utils._shape"),
    "plugin_utils._secrets": ("module_utils._formats.credentials",),
    "plugin_utils._shape": (),
    "plugin_utils._wheel": (),
    "plugin_utils._bundle": (
        *(f"module_utils.{name}" for name in ("_daemon.environment", "_formats", "_host.received", "_packages.openpgp")),
        "plugin_utils._shape",
        "plugin_utils._wheel",
    ),
    "plugin_utils._yaml": ("module_utils._formats.yaml_scalars", "plugin_utils._shape"),
    "plugin_utils._manifests": ("module_utils._cluster.names", "module_utils._cluster.public", "module_utils._scheduler"),
    "plugin_utils._preflight": (
        *(
            f"module_utils.{name}"
            for name in (
                "_cluster.names",
                "_cluster.public",
                "_driver.generations",
                "_facts",
                "_formats",
                "_host.container_runtimes",
                "_kubelet.gates",
                "_takeover.operator",
            )
        ),
        "plugin_utils._bundle",
        "plugin_utils._wheel",
    ),
    "plugin_utils._subjects": ("module_utils._change.subjects", "module_utils._formats.versions"),
    "plugin_utils._judge": (
        *(
            f"module_utils.{name}"
            for name in ("_cluster.names", "_driver", "_facts", "_formats.finding", "_scheduler.config", "_takeover.operator")
        ),
        *(
            f"plugin_utils.{name}"
            for name in (
                "_answers",
                "_bundle",
                "_driver",
                "_preflight",
                "_manifests",
                "_removal",
                "_subjects",
                "_takeover",
                "_verdict",
                "_wheel",
            )
        ),
    ),
    "plugin_utils._removal": ("module_utils._cluster.names", "plugin_utils._answers"),
    "plugin_utils._takeover": (
        "module_utils._cluster.names",
        "module_utils._facts.device_managers",
        "module_utils._formats",
        "module_utils._takeover.original",
    ),
    "plugin_utils._driver": ("module_utils._driver.facts", "plugin_utils._preflight.host"),
    "plugin_utils._scheduler": (
        "module_utils._change.journal",
        "module_utils._change.undo",
        "module_utils._cluster.names",
        "module_utils._formats",
        "module_utils._host",
        "module_utils._scheduler",
        "plugin_utils._yaml",
    ),
    "plugin_utils._verdict": (
        *(f"module_utils.{name}" for name in ("_facts", "_cluster", "_formats", "_scheduler")),
        "plugin_utils._preflight.gpus",
        "plugin_utils._preflight.host",
        "plugin_utils._preflight.report",
        "plugin_utils._yaml",
    ),
    "modules": ("module_utils",),
    "action": ("module_utils", "plugin_utils"),
    "lookup": ("plugin_utils._manifests", "plugin_utils._preflight.variables", "plugin_utils._subjects"),
    "doc_fragments": (),
}
# Beside the standard library.
OTHERS = {
    "modules": ("ansible.module_utils",),
    "action": ("ansible", "yaml"),
    "lookup": ("ansible",),
    "plugin_utils": ("ansible", "packaging", "yaml"),
}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def contract_of(module: str) -> str:
    """The contract that a module is under; "" for none."""
    return max((name for name in CONTRACTS if below(module, name)), key=len, default="")


def below(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports(module: str, source: str) -> set[str]:
    """The modules that it imports anywhere, of this collection with the name in them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = f"{PREFIX}{module}".split(".")[: -node.level] if node.level else []
            start = ".".join([*package, *filter(None, [node.module])])
            found |= {f"{start}.{alias.name}" for alias in node.names} if below(start, PREFIX.rstrip(".")) else {start}
    return found


def forbidden(module: str, source: str) -> Iterator[str]:
    """What it imports although its package may not."""
    own = contract_of(module)
    allowed = (own, ROOT_OF_ERRORS, *CONTRACTS.get(own, ()))
    others = OTHERS.get(module.split(".")[0], ())
    for name in sorted(imports(module, source)):
        if name.startswith(PREFIX):
            inner = name.removeprefix(PREFIX)
            # Below a package of its own kind a deeper contract is another package.
            if not any(below(inner, one) for one in allowed):
                yield inner
        elif name.split(".")[0] not in sys.stdlib_module_names and not any(below(name, one) for one in others):
            yield name


MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path.name != "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_each_package_imports_what_it_may(path: Path) -> None:
    assert contract_of(module_of(path)), f"{path} is in no package of CONTRACTS"
    assert list(forbidden(module_of(path), path.read_text())) == []


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_each_module_finds_the_names_that_it_imports(path: Path) -> None:
    importlib.import_module(PREFIX + module_of(path))


def test_packages_are_empty_and_nothing_lies_beside_them() -> None:
    """ansible-test wants them empty; a file beside them would be a second guess."""
    packages = list(ROOT.rglob("__init__.py"))
    assert {path.parent.parent.name for path in packages} == {"module_utils", "plugin_utils"}
    assert [path for path in packages if path.read_bytes()] == []
    # Plugins that Ansible finds by their names: in a deeper folder they would have another name.
    assert [
        path for path in MODULES if path.parts[len(ROOT.parts)] not in ("module_utils", "plugin_utils") and path.parent.parent != ROOT
    ] == []
    loose = {path.name for folder in ("module_utils", "plugin_utils") for path in (ROOT / folder).glob("*.py")}
    assert loose == {"_answers.py", "_results.py", "_secrets.py", "_shape.py", "_wheel.py", "_yaml.py"}


def test_the_packages_do_not_import_each_other_in_a_circle() -> None:
    done: list[str] = []
    left = {name: {contract_of(one) for one in may} - {""} for name, may in CONTRACTS.items()}
    while left:
        free = [name for name, may in left.items() if may <= set(done)]
        assert free, f"these import each other: {sorted(left)}"
        done += free
        left = {name: may for name, may in left.items() if name not in free}


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
def test_the_check_sees_what_it_forbids(module: str, source: str, found: list[str]) -> None:
    assert list(forbidden(module, source)) == found
