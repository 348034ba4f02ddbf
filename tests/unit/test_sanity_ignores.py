# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What ansible-test sanity finds after minutes, found in a second: wrong lines of ignored findings, assert, YAML's booleans."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from sanity_ignores import BY_HAND, ignored, of_core
from tree import released

ROOT = Path(__file__).parents[2]
TREE = {
    "plugins/plugin_utils/_lock.py": "from packaging.version import Version\n",
    "plugins/plugin_utils/_late.py": "def f():\n    import packaging\n",
    "plugins/plugin_utils/_packaging.py": "from .packaging import x\n",
    "plugins/action/bundle.py": "from ..plugin_utils import _lock\n",
    "plugins/modules/bundle.py": "from ..plugin_utils import _lock\n",
    "plugins/modules/unused.py": "for _ in range(3): pass\n",
    "plugins/modules/given.py": "def f(_): ...\nlambda _: None\ndef g(*_, **__): ...\n",
    "plugins/modules/used.py": "from gettext import gettext as _\nlambda _: None\nprint(_)\ndef g(*_): ...\n",
    "docs/two.yaml": "---\na: 1\n---\nb: 1\n",
    "docs/one.yaml": "---\na: 1\n",
}


def test_what_a_file_itself_says_is_ignored_without_a_list() -> None:
    lines = [line.partition(" # ")[0] for line in ignored((2, 19), ("3.12", "3.13"), TREE)]
    assert sorted(set(lines) - set(BY_HAND)) == [
        "docs/two.yaml yamllint:multiple-yaml-documents",
        "plugins/action/bundle.py import-3.12!skip",
        "plugins/action/bundle.py import-3.13!skip",
        "plugins/modules/given.py pylint:disallowed-name",
        "plugins/modules/unused.py pylint:disallowed-name",
        "plugins/plugin_utils/_lock.py import-3.12!skip",
        "plugins/plugin_utils/_lock.py import-3.13!skip",
    ]


def test_a_finding_of_newer_tests_is_ignored_from_their_release_on_and_every_file_is_there() -> None:
    older, newer = (set(ignored(release, (), {})) for release in ((2, 19), (2, 22)))
    assert {line.split()[1] for line in newer - older} == {"pylint:ansible-bad-function"}
    assert older < newer
    assert [line for line in newer if not (ROOT / line.split()[0]).exists()] == []


def test_the_ansible_core_of_this_environment_says_which_file_it_reads() -> None:
    name, text = of_core(Path(sys.executable))
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert name == "ignore-{}.{}.txt".format(*version("ansible-core").split("."))
    assert f"plugins/plugin_utils/_bundle/lock.py import-{here}!skip # " in text


def test_no_released_file_has_quotation_marks_of_typography() -> None:
    paths = [path for path in released() if not path.endswith((".png", ".svg"))]
    assert len(paths) > 500
    assert [path for path in paths if set("‘’“”") & set((ROOT / path).read_text())] == []


def test_plugins_assert_nothing() -> None:
    sources = sorted((ROOT / "plugins").rglob("*.py"))
    assert len(sources) > 100
    assert [str(path) for path in sources if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text())))] == []


def test_names_in_the_documentation_of_modules_are_texts() -> None:
    def wrong(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [key for key in value if not isinstance(key, str)] + [one for each in value.values() for one in wrong(each)]
        return [one for each in value for one in wrong(each)] if isinstance(value, list) else []

    for path in sorted((ROOT / "plugins/modules").glob("*.py")):
        constants = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
        values = {node.targets[0].id: node.value for node in constants if isinstance(node.targets[0], ast.Name)}
        for part in ("DOCUMENTATION", "RETURN"):
            # `off` and `yes` are booleans in YAML.
            assert wrong(yaml.safe_load(ast.literal_eval(values[part]))) == [], f"{path.name}: {part}"
