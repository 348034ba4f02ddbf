# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which unit tests `make check` runs: those that a change can reach, and never fewer."""

from __future__ import annotations

import pytest

import reach
from tree import REPOSITORY, files

RUNTIME = "files/gpushare_runtime/gpushare_runtime"
COLLECTION = "from ansible_collections.gpushare.kubernetes.plugins"
SOURCES = {
    f"{RUNTIME}/__init__.py": "",
    f"{RUNTIME}/core/__init__.py": "",
    f"{RUNTIME}/core/units.py": "GIB = 2**30\n",
    f"{RUNTIME}/core/ledger.py": "from gpushare_runtime.core import units\n",
    f"{RUNTIME}/probe/main.py": "import json\n",
    "plugins/module_utils/_host/files.py": "",
    "plugins/modules/gpu.py": "from ..module_utils._host import files\n",
    "tests/unit/conftest.py": "",
    "tests/unit/fakes/node.py": "from gpushare_runtime.core.ledger import Ledger\n",
    "tests/unit/runtime/conftest.py": "",
    "tests/unit/runtime/test_units.py": "from gpushare_runtime.core.units import GIB\n",
    "tests/unit/runtime/test_ledger.py": "from unit.fakes import node\n",
    "tests/unit/runtime/test_program.py": 'COMMAND = ["python", "-m", "gpushare_runtime.probe.main"]\n',
    "tests/unit/plugins/test_gpu.py": f"{COLLECTION}.modules import gpu\n",
    "tests/unit/plugins/test_templates.py": 'TEMPLATE = ROOT / "roles/mps/templates" / "unit.j2"\n',
    "tests/unit/test_docs.py": "from tree import files\n",
    **dict.fromkeys(reach.ALWAYS, ""),
}


def reached(*changed: str) -> set[str]:
    return {path.rpartition("/")[2].removesuffix(".py") for path in set(reach.reached(SOURCES, changed)) - set(reach.ALWAYS)}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (f"{RUNTIME}/core/units.py", {"test_units", "test_ledger"}),
        (f"{RUNTIME}/core/ledger.py", {"test_ledger"}),
        (f"{RUNTIME}/probe/main.py", {"test_program"}),
        (f"{RUNTIME}/core/__init__.py", {"test_units", "test_ledger"}),
        ("plugins/module_utils/_host/files.py", {"test_gpu"}),
        ("tests/unit/runtime/conftest.py", {"test_units", "test_ledger", "test_program"}),
        ("tests/unit/runtime/test_units.py", {"test_units"}),
        ("roles/mps/templates/unit.j2", {"test_templates", "test_docs"}),
        ("docs/use/faq.md", {"test_docs"}),
        (f"{RUNTIME}/core/gone.py", set()),
    ],
)
def test_a_change_reaches_what_imports_it_or_names_it(changed: str, tests: set[str]) -> None:
    assert reached(changed) == tests


def test_what_looks_at_the_whole_repository_always_runs() -> None:
    assert set(reach.ALWAYS) <= set(reach.reached(SOURCES, [f"{RUNTIME}/probe/main.py"]))
    assert all((REPOSITORY / path).exists() for path in (*reach.ALWAYS, *reach.ALL))


def test_a_change_of_the_core_reaches_the_tests_of_its_folder_and_not_those_of_the_driver() -> None:
    sources = {path: (REPOSITORY / path).read_text() for path in files() if path.endswith(".py")}
    found = reach.reached(sources, [f"{RUNTIME}/core/placement/scarcity.py"])
    own = {path for path in sources if path.startswith("tests/unit/runtime/") and "placement.scarcity import" in sources[path]}
    assert own
    assert own <= set(found)
    assert "tests/unit/plugins/driver/test_plan.py" not in found
    assert len(found) < sum(map(reach.is_test, sources)) / 2
