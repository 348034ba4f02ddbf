# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The collection as a whole: what its files promise each other."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml

ROOT = Path(__file__).resolve().parents[3]
ON_HOSTS = sorted(path for folder in ("modules", "module_utils") for path in (ROOT / "plugins" / folder).rglob("*.py"))


def load(*parts: str) -> Any:
    return yaml.safe_load((ROOT.joinpath(*parts)).read_text())


def test_the_collection_and_the_runtime_have_one_version() -> None:
    pyproject = tomllib.loads((ROOT / "files" / "gpushare_runtime" / "pyproject.toml").read_text())
    assert load("galaxy.yml")["version"] == pyproject["project"]["version"]


def test_a_checkout_is_the_collection() -> None:
    link = ROOT / ".collections" / "ansible_collections" / "gpushare" / "kubernetes"
    assert (os.readlink(link), link.resolve()) == ("../../..", ROOT)


@pytest.mark.parametrize("path", ON_HOSTS, ids=lambda path: "/".join(path.parts[-2:]))
def test_what_runs_on_hosts_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
