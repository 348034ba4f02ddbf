# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A host with docker that is a folder: dockerd and systemd are models, the files are real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import Converged
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import environment, expanded
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.default_runtime import WantedRuntime, converge

from unit.fakes.plugins.runtimes import fake_containerd, fake_docker

START = "dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS"

UNIT = f"[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=/usr/sbin/{START}\n"


class DockerHost:
    """A host below a folder. release: dockerd's, or the path of a real one. dislikes: text in daemon.json with which docker dies."""

    def __init__(self, folder: Path, release: str) -> None:
        self.folder = folder
        self.release = "20.10.24" if "/" in release else release
        self.dockerd = fake_containerd.real(release) if "/" in release else fake_docker.model(release)
        self.config = folder / "etc/docker/daemon.json"
        self.unit = folder / "docker.service"
        self.options = folder / "default"
        self.program = folder / "nvidia-container-runtime"
        self.process = folder / "process"
        self.start_words = START
        self.properties = {"LoadState": "loaded", "KillMode": "process", "ExecMainStartTimestampMonotonic": "1", "CanReload": "yes"}
        self.properties["NeedDaemonReload"] = "no"
        self.dislikes = "\0"
        self.live_restore = False
        self.containers: int | None = 3
        self.done: list[str] = []
        self.config.parent.mkdir(parents=True)
        self.unit.write_text(UNIT)
        self.options.write_text("# made by Debian\n")
        self.program.write_text("")
        self.program.chmod(0o755)
        self.start()

    @property
    def words(self) -> list[str]:
        """The command line of the next start."""
        variables = environment(self.options.read_text())
        return [f"--config-file={self.config}", *(word for word, _by in expanded(self.start_words.split()[1:], variables))]

    def start(self) -> bool:
        """The process keeps what it read in a file, so that it outlives a killed test process."""
        try:
            words = self.words
            found = fake_docker.configured(words, self.release)
            bad = self.config.exists() and self.dislikes in self.config.read_text()
        except fake_docker.DockerdError:
            bad = True
        self.process.write_text("" if bad else json.dumps({**found, "words": words}))
        return not bad

    def reload(self) -> None:
        """As dockerd does: an error is logged only, and what the file does not say stays as it was."""
        now = self.state()
        try:
            found = fake_docker.configured(now["words"], self.release, reload=True)
        except fake_docker.DockerdError:
            return
        self.process.write_text("" if self.dislikes in self.config.read_text() else json.dumps({**now, **found}))

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.process.read_text() or "{}")
        return found

    def default(self) -> str:
        return str(self.state().get("default-runtime", ""))

    def run(self, argv: list[str], _timeout: float) -> Outcome:
        if argv[0] == "dockerd":
            return Outcome(argv, *self.dockerd(argv[1:]))
        if argv[:2] == ["systemctl", "show"]:
            lines = [f"{key}={value}" for key, value in self.properties.items()]
            lines += [f"ActiveState={'active' if self.state() else 'failed'}", "MainPID=0"]
            if "ExecStart" not in self.properties:
                lines += [f"ExecStart={{ path=dockerd ; argv[]={self.start_words} --config-file={self.config} ; }}"]
            lines += [f"FragmentPath={self.unit}", f"EnvironmentFiles={self.options} (ignore_errors=yes)"]
            return Outcome(argv, 0, "\n".join(lines) + "\n")
        if argv[:2] in (["systemctl", "reload"], ["systemctl", "restart"]):
            self.done.append(argv[1])
            if argv[1] == "reload":
                self.reload()
                return Outcome(argv, 0)
            return Outcome(argv, 0 if self.start() else 1, err="Job failed")
        return Outcome(argv, 0, "level=error msg=no\n" if argv[0] == "journalctl" else "")

    def info(self, _address: str, _timeout: float) -> dict[str, Any]:
        found = self.state()
        assert found, "docker is asked although it does not run: systemd would start it"
        runtimes = {"runc": {"path": "runc"}, **found["runtimes"]}
        live = {"LiveRestoreEnabled": found.get("live-restore", self.live_restore), "ContainersRunning": self.containers}
        return {"DefaultRuntime": found["default-runtime"], "Runtimes": runtimes, **live}

    def wanted(self, state: str = "present", default: str = "auto", allowed: bool = False) -> WantedRuntime:
        return WantedRuntime(state, str(self.program), "", None, 0.2, allowed, "docker", default)

    def converge(
        self,
        state: str = "present",
        check: bool = False,
        point: Callable[[str], None] = lambda _point: None,
        default: str = "auto",
        allowed: bool = False,
    ) -> Converged:
        return converge(self.wanted(state, default, allowed), check, self.run, point)

    def write(self, text: str) -> None:
        self.config.write_text(text.replace("PROGRAM", str(self.program)))

    def tree(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def files(self) -> dict[str, bytes]:
        return {path: content for path, content in self.tree().items() if path != "process"}


# Files as tools and distributions write them, and what they are afterwards.
KUBEADM = """{
  "exec-opts": ["native.cgroupdriver=systemd"],
  "log-driver": "json-file",
  "log-opts": {
    "max-size": "100m"
  },
  "storage-driver": "overlay2"
}
"""  # kubernetes.io, "Container runtimes", 1.22
