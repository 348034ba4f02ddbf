# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A host with CRI-O that is a folder.

The model of CRI-O reads its files as pkg/config/config.go of cri-o does: the main file, then every drop-in in the order of the names; a
runtime's table of a later file replaces that of an earlier one as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import Converged
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.default_runtime import WantedRuntime, converge

from unit.fakes.plugins.runtimes.fake_containerd import dumped

CRUN = {
    "runtime_path": "/usr/libexec/crio/crun",
    "runtime_type": "oci",
    "runtime_root": "/run/crun",
    "monitor_path": "/usr/libexec/crio/conmon",
    "monitor_env": ["PATH=/usr/bin"],
    "allowed_annotations": ["io.containers.trace-syscall"],
    "privileged_without_host_devices": False,
}

# The drop-in of the packages of cri-o (10-crio.conf).
PACKAGED = '[crio.runtime]\ndefault_runtime = "crun"\n\n[crio.runtime.runtimes.crun]\nruntime_path = "/usr/libexec/crio/crun"\n'
PACKAGED += 'runtime_root = "/run/crun"\nmonitor_path = "/usr/libexec/crio/conmon"\n'


class CrioHost:
    """dislikes: text in its files with which CRI-O does not start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "etc/crio/crio.conf"
        self.drop_ins = folder / "etc/crio/crio.conf.d"
        self.drop_in = self.drop_ins / "zz-gpushare.conf"
        self.program = folder / "nvidia-container-runtime"
        self.process = folder / "process"
        self.dislikes = "\0"
        self.flags = ""
        self.restarts = 0
        self.restart_timeout = 0.0
        self.drop_ins.mkdir(parents=True)
        self.write("10-crio.conf", PACKAGED)
        self.program.write_text("")
        self.program.chmod(0o755)
        self.start()

    def write(self, name: str, text: str) -> None:
        (self.drop_ins / name).parent.mkdir(exist_ok=True)
        (self.drop_ins / name).write_text(text.replace("PROGRAM", str(self.program)))

    def start(self) -> bool:
        try:
            found = effective(self.config, self.drop_ins)
            bad = any(self.dislikes in path.read_text() for path in files(self.drop_ins))
        except ValueError:
            bad = True
        self.process.write_text("" if bad else json.dumps(found))
        return not bad

    def default(self) -> str:
        return str(json.loads(self.process.read_text() or "{}").get("default_runtime", ""))

    def crio(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        config, folder, what = arguments
        assert what == "config"
        try:
            return 0, dumped(effective(Path(config.partition("=")[2]), Path(folder.partition("=")[2]))), ""
        except ValueError as error:
            return 1, "", f'level=fatal msg="unable to decode configuration: {error}"'

    def run(self, argv: list[str], timeout: float) -> Outcome:
        if argv[0] == "crio":
            return Outcome(argv, *self.crio(argv[1:]))
        if argv[:2] == ["systemctl", "show"]:
            words = f"crio --config={self.config} --config-dir {self.drop_ins} {self.flags}"
            found = {"LoadState": "loaded", "ActiveState": "active" if self.process.read_text() else "failed", "MainPID": "0"}
            found |= {"ExecStart": f"{{ path=crio ; argv[]={words} ; }}", "ExecMainStartTimestampMonotonic": str(10**18)}
            return Outcome(argv, 0, "".join(f"{key}={value}\n" for key, value in found.items()))
        if argv[:2] == ["systemctl", "restart"]:
            self.restarts += 1
            self.restart_timeout = timeout
            return Outcome(argv, 0 if self.start() else 1, err="Job failed")
        return Outcome(argv, 0, "level=fatal msg=no\n" if argv[0] == "journalctl" else "")

    def get(self, _address: str, path: str, _timeout: float) -> bytes:
        assert path == "/config"
        return dumped({"crio": {"runtime": json.loads(self.process.read_text())}}).encode()

    def status(self, _address: str, _timeout: float) -> cri.RuntimeStatus:
        if not self.process.read_text():
            raise cri.CriError("the container runtime does not answer")
        return cri.RuntimeStatus({"RuntimeReady": (True, ""), "NetworkReady": (True, "")}, {})

    def converge(
        self, state: str = "present", check: bool = False, point: Callable[[str], None] = lambda _point: None, default: str = "auto"
    ) -> Converged:
        return converge(WantedRuntime(state, str(self.program), "", None, 0.2, False, "cri-o", default), check, self.run, point)

    def tree(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


def files(folder: Path) -> list[Path]:
    """In the order in which CRI-O reads them: folder by folder."""
    assert folder.is_dir()
    return sorted(path for path in folder.rglob("*") if path.is_file())


def effective(config: Path, folder: Path) -> dict[str, Any]:
    """Of the process: with every default filled in."""
    found: dict[str, Any] = {"default_runtime": "crun", "runtimes": {"crun": dict(CRUN)}}
    for path in [config, *files(folder)]:
        if path.exists():
            section = folded(tomllib.loads(path.read_text("utf-8-sig")).get("crio", {}).get("runtime", {}))
            found["default_runtime"] = section.get("default_runtime", found["default_runtime"])
            found["runtimes"].update(
                {name: {**CRUN, "runtime_root": "", **folded(entry)} for name, entry in section.get("runtimes", {}).items()}
            )
    if found["default_runtime"] not in found["runtimes"]:
        raise ValueError("default_runtime set, but no runtime entry table was found")
    return found


def folded(table: dict[str, Any]) -> dict[str, Any]:
    """A table with its keys as CRI-O's reader, github.com/BurntSushi/toml, takes them: in any case."""
    return {key.lower(): value for key, value in table.items()}
