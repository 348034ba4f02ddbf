# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The installation of the runtime into a versioned virtual environment."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional, Sequence

from .._daemon.virtual_environment import (
    COMES,
    Artifact,
    Environments,
    Interpreter,
    RuntimeEnvError,
    environment_name,
    find_python,
    pip_steps,
)
from .._formats.answers import ABSENT, DiffPart, ModuleAnswer, like
from .._host.answering import changing
from .._host.command import Run
from .._host.host import Host
from .._host.received import unpacked

_PYTHON, _MACHINE = re.compile(r"3\.[0-9]{1,3}"), re.compile("[a-z0-9_]{1,20}")
ARGUMENTS: Dict[str, Dict[str, Any]] = {
    "root": {"type": "path", "default": "/opt/gpushare"},
    "python": {"type": "str", "default": ""},
    "link": {"type": "bool", "default": True},
    "comes": {"type": "bool", "default": False},
    "artifact": {
        "type": "dict",
        "options": {
            "version": {"type": "str", "required": True},
            "wheel_sha256": {"type": "str", "required": True},
            "requirements_sha256": {"type": "str", "required": True},
            # An index's URL may have a password.
            "pip_extra_args": {"type": "str", "no_log": True},
            "wheel_path": {"type": "path"},
            "requirements_path": {"type": "path"},
            "wheels_path": {"type": "path"},
            "wheels_sha256": {"type": "str", "default": ""},
        },
    },
}


@dataclass(frozen=True)
class EnvironmentAnswer(ModuleAnswer):
    """The answer of gpushare_runtime_env. missing, python_version, machine: of a host that lacks it, whose files its action plugin then
    sends; such a host has no other key.
    """

    environment: Optional[str] = field(default=None, metadata=ABSENT)
    linked: Optional[bool] = field(default=None, metadata=ABSENT)
    python: Optional[str] = field(default=None, metadata=ABSENT)
    removed: Optional[List[str]] = field(default=None, metadata=ABSENT)
    missing: Optional[bool] = field(default=None, metadata=ABSENT)
    python_version: Optional[str] = field(default=None, metadata={**like(_PYTHON), **ABSENT})
    machine: Optional[str] = field(default=None, metadata={**like(_MACHINE), **ABSENT})
    diff: Optional[DiffPart] = field(default=None, metadata=ABSENT)


def answer(module: Any) -> EnvironmentAnswer:
    """Install it, where its files have been sent. In check mode, whether it would be."""
    # Daemons that do not run as root read these files, whatever root's own mask is.
    os.umask(0o022)
    given = module.params["artifact"]
    if given is None:
        module.fail_json(msg="gpushare_runtime_env was run without its action plugin; call it by its full name gpushare.kubernetes.…")
    with changing(module):
        artifact = Artifact(given["version"], given["wheel_sha256"], given["requirements_sha256"])
        environments = Environments(module.params["root"])
        try:
            python = find_python(module.run_command, Host().program, module.params["python"])
        except RuntimeEnvError:
            if not (module.check_mode and module.params["comes"]):
                raise
            python = Interpreter(f"/usr/bin/python{COMES}", COMES)
        name, before = environment_name(artifact, python.version), environments.current()
        whole = environments.is_whole(name)
        switch = module.params["link"] and before != name
        former = before if module.params["link"] else name if whole else None
        result = EnvironmentAnswer(
            changed=not whole or switch,
            environment=environments.path(name),
            linked=whole and before == name,
            python=python.path,
            diff={"before": f"{former or 'none'}\n", "after": f"{name}\n"},
        )
        if not module.check_mode:
            if not whole and not given["wheel_path"]:
                return EnvironmentAnswer(False, missing=True, python_version=python.version, machine=Host().machine)
            if not whole:
                _install(given, environments, name, python, module.run_command)
            if switch:
                environments.switch(name)
                result = replace(result, removed=environments.remove_all_but([name, before, *environments.in_use()]))
    return result


def _install(artifact: Dict[str, Any], environments: Environments, name: str, python: Interpreter, run: Run) -> None:
    """Build the environment from the files that the action plugin has sent."""
    for path, wanted in (
        (artifact["wheel_path"], artifact["wheel_sha256"]),
        (artifact["requirements_path"], artifact["requirements_sha256"]),
    ):
        with open(path, "rb") as file:
            found = hashlib.sha256(file.read()).hexdigest()
        if found != wanted:
            raise RuntimeEnvError(f"{path} arrived with SHA-256 {found}, expected {wanted}: the transfer was damaged, run again")
    if artifact["wheels_path"]:
        with unpacked(artifact["wheels_path"], artifact["wheels_sha256"]) as wheels:
            _build(environments, name, python, artifact, run, ["--no-index", f"--find-links={wheels}"])
    else:
        extra: List[str] = json.loads(artifact["pip_extra_args"] or "[]")
        _build(environments, name, python, artifact, run, extra)


def _build(environments: Environments, name: str, python: Interpreter, artifact: Dict[str, Any], run: Run, extra: Sequence[str]) -> None:
    """extra: more arguments of pip, by which it finds the dependencies."""
    files, steps = pip_steps(artifact["requirements_path"], artifact["wheel_path"], artifact["wheel_sha256"], extra)
    for path, content in files.items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
    contents = {key: artifact[key] for key in ("version", "wheel_sha256", "requirements_sha256")}
    environments.build(name, python, steps, run, {**contents, "python": python.version}, private=extra)
