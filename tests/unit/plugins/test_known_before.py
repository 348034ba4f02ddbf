# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What Ansible's main process knows already, so that no process of a host and a task makes it again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._operations import container_runtime, toolkit
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils import _shape
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._shape import Either, Map, Maybe, Open, learn, other_shape

ROOT = Path(__file__).resolve().parents[3]
PLUGINS = "ansible_collections.gpushare.kubernetes.plugins"


@dataclass(frozen=True)
class Inner:
    count: int


@dataclass(frozen=True)
class Outer:
    inner: Inner | None
    inners: list[Inner]


def test_the_types_of_a_shape_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _shape.of_class.cache_clear()
    shape: Any = {"a": [Maybe(Outer)], "b": Map(Either(Open({"c": Inner}), (Inner, None)))}
    learn(shape)
    monkeypatch.setattr(_shape, "get_type_hints", None)
    outer = {"inner": {"count": 1}, "inners": [{"count": 2}]}
    assert other_shape(shape, {"a": [outer, None], "b": {"x": {"c": {"count": 1}}, "y": [{"count": 1}, None]}}) is None
    assert other_shape(shape, {"a": [{**outer, "inners": [{"count": "2"}]}], "b": {}}) is not None


@pytest.mark.parametrize(
    ("action", "module", "name"),
    [
        ("gpushare_judge", "_preflight.variables", "variables"),
        ("gpushare_judge", "_shape", "of_class"),
        ("gpushare_runtime_env", "_wheel", "wheel_hash"),
    ],
)
def test_an_action_that_is_loaded_has_read_what_each_host_needs(action: str, module: str, name: str) -> None:
    read = f"import {PLUGINS}.action.{action}, {PLUGINS}.plugin_utils.{module} as read; print(read.{name}.cache_info().currsize)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", read], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.mark.parametrize(
    ("module", "role", "variables"),
    [
        ("gpushare_verify_host", "verify", host.VARIABLES),
        ("gpushare_toolkit", "nvidia_container_toolkit", toolkit.VARIABLES),
        ("container_runtime", "container_runtime", container_runtime.VARIABLES),
    ],
)
def test_each_option_that_a_task_does_not_name_follows_a_variable_of_its_role(module: str, role: str, variables: dict[str, str]) -> None:
    defaults = yaml.safe_load((ROOT / f"roles/{role}/defaults/main.yml").read_text())
    assert [variable for variable in variables.values() if variable not in defaults] == []
    options = yaml.safe_load(re.findall(r'DOCUMENTATION = r"""(.*?)"""', (ROOT / f"plugins/modules/{module}.py").read_text(), re.S)[0])
    assert [option for option in variables if option not in options["options"]] == []
