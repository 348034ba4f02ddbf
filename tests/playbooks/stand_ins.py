# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The real playbooks and roles in a copy of the collection, whose modules are stand-ins: what they would bring to a host is a file each.

A stand-in answers on the controller. It changes a host the first time, changes nothing the second time, and with `state: absent` takes
back what it has made. Each call is a line of the log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from playbooks.play import LOCAL, ROOT, Hosts
from results import Results, environment, reserved_keys

ACTION = (Path(__file__).parent / "stand_in.py").read_text()
PARTS = ("galaxy.yml", "ansible.cfg", "site.yml", "meta", "playbooks", "plugins", "roles", "files")


@dataclass(frozen=True)
class Call:
    """One call of a module of ours. check: whether it only planned; changed: whether it did, or would."""

    host: str
    module: str
    arguments: dict[str, Any]
    check: bool
    changed: bool

    @property
    def name(self) -> str:
        """The module, with what it is asked about."""
        return " ".join([self.module, *(str(self.arguments[key]) for key in ("what", "owner") if key in self.arguments)])


@dataclass(frozen=True)
class Run:
    """One run of a playbook."""

    code: int
    output: str
    calls: list[Call]
    results: Results | None

    def of(self, host: str, check: bool | None = None) -> list[str]:
        """The names of the calls on a host."""
        return [call.name for call in self.calls if call.host == host and check in (None, call.check)]


class Collection:
    """A copy of the collection below a folder, and the hosts that its stand-ins change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "ansible_collections/gpushare/kubernetes"
        self.root.mkdir(parents=True)
        # The only files that a role writes without a module of ours: the links of the kubectl plugins.
        for place in ("hosts", "bin", "opt/current/bin"):
            (folder / place).mkdir(parents=True)
        for program in ("kubectl-gpushare", "kubectl-inspect-gpushare", "kubectl_complete-gpushare"):
            (folder / "opt/current/bin" / program).touch()
        for name in PARTS:
            source, target = ROOT / name, self.root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(source, target)
        routes = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["plugin_routing"]["action"].values()
        actions = {route["redirect"].rpartition(".")[2] for route in routes}
        for module in {path.stem for path in (ROOT / "plugins/modules").glob("*.py")} | actions:
            (self.root / f"plugins/action/{module}.py").write_text(ACTION)

    def play(self, playbook: str, hosts: Hosts, *arguments: str, **variables: Any) -> Run:
        """Run a playbook of the copy."""
        log, results = self.folder / "calls", self.folder / "results"
        log.unlink(missing_ok=True)
        places = {"gpushare_install_dir": str(self.folder / "opt"), "gpushare_kubectl_plugin_dir": str(self.folder / "bin")}
        inventory = {
            "all": {"vars": LOCAL | places | variables, "children": {group: {"hosts": members} for group, members in hosts.items()}}
        }
        (self.folder / "hosts.json").write_text(json.dumps(inventory))
        done = subprocess.run(
            [Path(sys.executable).parent / "ansible-playbook", "-i", self.folder / "hosts.json", f"{playbook}.yml", *arguments],
            env={name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
            | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_NOCOLOR": "1"}
            | {"ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"), "STAND_INS": str(self.folder)}
            | environment(results),
            cwd=self.root / "playbooks",
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        calls = [Call(**json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
        output = done.stdout + done.stderr
        assert reserved_keys(output) == [], output
        return Run(done.returncode, output, calls, Results.read(results) if done.returncode == 0 else None)
