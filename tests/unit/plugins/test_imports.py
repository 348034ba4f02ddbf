# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The modules of the plugins load, and lie where Ansible and ansible-test look for them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from contracts import PLUGINS

ROOT = PLUGINS.root
MODULES = [path for path in PLUGINS.modules() if path.name != "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=PLUGINS.module_of)
def test_each_module_finds_the_names_that_it_imports(path: Path) -> None:
    importlib.import_module(f"{PLUGINS.package}.{PLUGINS.module_of(path)}")


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
    assert loose == {"_answers.py", "_report.py", "_screen.py", "_secrets.py", "_shape.py", "_wheel.py", "_yaml.py"}
