# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The whole of container_runtime on a host with CRI-O that is a folder.

The model of CRI-O reads its files as pkg/config/config.go of cri-o does: the main file, then every drop-in in the order of the names; a
runtime's table of a later file replaces that of an earlier one as a whole. Inputs are those of crio.conf(5) and of nvidia-ctk.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import Converged
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri, crio, unix_http
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import service as runtime_service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.default_runtime import Wanted, converge

from unit.plugins.runtimes.fake_containerd import dumped

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
CTK = (
    '\n[crio]\n\n  [crio.runtime]\n    default_runtime = "nvidia"\n\n    [crio.runtime.runtimes]\n\n      [crio.runtime.runtimes.nvidia]\n'
)
CTK += '        runtime_path = "PROGRAM"\n        runtime_type = "oci"\n'
OURS = """# Made by gpushare.kubernetes: the runtime nvidia.
[crio.runtime]
default_runtime = "nvidia"

[crio.runtime.runtimes.nvidia]
allowed_annotations = ["io.containers.trace-syscall"]
monitor_env = ["PATH=/usr/bin"]
monitor_path = "/usr/libexec/crio/conmon"
runtime_path = "PROGRAM"
runtime_root = "/run/crun"
runtime_type = "oci"
"""


class Host:
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
        self.drop_ins.mkdir(parents=True)
        self.write("10-crio.conf", PACKAGED)
        self.program.write_text("")
        self.program.chmod(0o755)
        self.start()

    def write(self, name: str, text: str) -> None:
        (self.drop_ins / name).write_text(text.replace("PROGRAM", str(self.program)))

    def start(self) -> bool:
        try:
            found = effective(self.config, self.drop_ins)
            bad = any(self.dislikes in path.read_text() for path in self.drop_ins.iterdir())
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

    def run(self, argv: list[str], _timeout: float) -> Outcome:
        if argv[0] == "crio":
            return Outcome(argv, *self.crio(argv[1:]))
        if argv[:2] == ["systemctl", "show"]:
            words = f"crio --config={self.config} --config-dir {self.drop_ins} {self.flags}"
            found = {"LoadState": "loaded", "ActiveState": "active" if self.process.read_text() else "failed", "MainPID": "0"}
            found |= {"ExecStart": f"{{ path=crio ; argv[]={words} ; }}", "ExecMainStartTimestampMonotonic": str(10**18)}
            return Outcome(argv, 0, "".join(f"{key}={value}\n" for key, value in found.items()))
        if argv[:2] == ["systemctl", "restart"]:
            self.restarts += 1
            return Outcome(argv, 0 if self.start() else 1, err="Job failed")
        return Outcome(argv, 0, "level=fatal msg=no\n" if argv[0] == "journalctl" else "")

    def get(self, _address: str, path: str, _timeout: float) -> bytes:
        assert path == "/config"
        return dumped({"crio": {"runtime": json.loads(self.process.read_text())}}).encode()

    def status(self, _address: str, _timeout: float) -> cri.Status:
        if not self.process.read_text():
            raise cri.CriError("the container runtime does not answer")
        return cri.Status({"RuntimeReady": (True, ""), "NetworkReady": (True, "")}, {})

    def converge(
        self, state: str = "present", check: bool = False, point: Callable[[str], None] = lambda _point: None, default: str = "auto"
    ) -> Converged:
        return converge(Wanted(state, str(self.program), "", None, 0.2, False, "cri-o", default), check, self.run, point)

    def tree(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


def effective(config: Path, folder: Path) -> dict[str, Any]:
    """Of the process: with every default filled in."""
    found: dict[str, Any] = {"default_runtime": "crun", "runtimes": {"crun": dict(CRUN)}}
    for path in [config, *sorted(folder.iterdir())]:
        if path.exists():
            section = tomllib.loads(path.read_text()).get("crio", {}).get("runtime", {})
            found["default_runtime"] = section.get("default_runtime", found["default_runtime"])
            found["runtimes"].update({name: {**CRUN, "runtime_root": "", **entry} for name, entry in section.get("runtimes", {}).items()})
    if found["default_runtime"] not in found["runtimes"]:
        raise ValueError("default_runtime set, but no runtime entry table was found")
    return found


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path / "host")
    monkeypatch.setattr(journal, "FOLDER", str(host.folder / "journal"))
    monkeypatch.setattr(unix_http, "get", host.get)
    monkeypatch.setattr(cri, "status", host.status)
    monkeypatch.setattr(runtime_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runtime_service, "STEADY_SECONDS", 0.01)
    monkeypatch.setattr(crio, "HOOKS", (str(host.folder / "oci-nvidia-hook.json"),))
    monkeypatch.setattr(crio, "TOOLKIT", str(host.folder / "toolkit.toml"))
    return host


def test_check_mode_predicts_what_the_run_then_does_and_the_second_run_does_nothing(host: Host) -> None:
    before = host.tree()
    predicted = host.converge(check=True)
    assert (host.tree(), host.restarts) == (before, 0)
    assert host.converge() == predicted
    assert (host.default(), host.restarts, predicted.files) == ("nvidia", 1, [str(host.drop_in)])
    assert host.drop_in.read_text() == OURS.replace("PROGRAM", str(host.program))
    after = host.tree()
    assert host.converge() == Converged()
    assert (host.tree(), host.restarts) == (after, 1)


def test_absent_undoes_it_to_the_byte_and_once_only(host: Host) -> None:
    before = host.tree()
    host.converge()
    predicted = host.converge("absent", check=True)
    assert host.converge("absent") == predicted
    assert (host.tree(), host.default(), host.restarts) == (before, "crun", 2)
    assert host.converge("absent").notes == ["nothing of ours is recorded on this host"]


def test_what_nvidia_ctk_has_written_is_taken_as_it_is(host: Host) -> None:
    host.write("99-nvidia.conf", CTK)
    host.start()
    assert host.converge() == Converged()
    host.write("99-nvidia.conf", CTK.replace("PROGRAM", "/opt/nvidia-container-runtime"))
    host.start()
    host.converge()
    assert json.loads(host.process.read_text())["runtimes"]["nvidia"]["runtime_path"] == str(host.program)


def test_unchanged_registers_the_runtime_only(host: Host) -> None:
    host.converge(default="unchanged")
    assert host.drop_in.read_text() == OURS.replace('[crio.runtime]\ndefault_runtime = "nvidia"\n\n', "").replace(
        "PROGRAM", str(host.program)
    )
    assert host.default() == "crun"
    assert not host.converge(check=True, default="unchanged").changed
    host.converge()
    assert host.default() == "nvidia"


def test_a_file_of_ours_with_anothers_key_keeps_that(host: Host) -> None:
    host.converge()
    host.drop_in.write_text(host.drop_in.read_text() + '\n[crio.image]\npause_image = "p"\n')
    found = host.converge("absent")
    assert tomllib.loads(host.drop_in.read_text()) == {"crio": {"image": {"pause_image": "p"}}}
    assert found.notes == [f"{host.drop_in} was changed by others since: only our part is taken out"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "zzz.conf",
            '[crio.runtime]\ndefault_runtime = "crun"\n',
            "zzz.conf takes back what .*zz-gpushare.conf would say; nothing was changed",
        ),
        ("20.conf", "[crio.runtime\n", "20.conf cannot be read: "),
        ("20.conf", "[crio.runtime]\na = 1\na = 2\n", "20.conf cannot be read: .*line 3"),
        (
            "20.conf",
            '[crio.runtime]\ndefault_runtime = "kata"\n[crio.runtime.runtimes.kata]\nruntime_type = "vm"\n',
            "the default runtime is kata of type vm, which is not run by runc or crun",
        ),
    ],
)
def test_what_cannot_be_right_is_rejected_before_anything_is_written(host: Host, name: str, text: str, message: str) -> None:
    host.write(name, text)
    if "kata" in text:
        host.start()
    before = host.tree()
    for check in (True, False):
        with pytest.raises(Rejected, match=message):
            host.converge(check=check)
    assert (host.tree(), host.restarts) == (before, 0)


def test_a_default_on_the_command_line_and_a_file_that_crio_rejects_are_rejected(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.flags = "--default-runtime=crun"
    with pytest.raises(Rejected, match=r"command line of crio.service has --default-runtime=crun, which no file can change"):
        host.converge()
    host.flags = ""
    monkeypatch.setattr(host, "crio", lambda _arguments: (1, "", "no such option"))
    before = host.tree()
    with pytest.raises(Rejected, match="crio config rejects the new configuration: no such option; nothing was changed"):
        host.converge()
    assert host.tree() == before


def test_the_hook_of_older_toolkits_and_another_order_of_runtimes_are_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.folder / "oci-nvidia-hook.json").write_text("{}")
    monkeypatch.setattr(crio.Host, "program", lambda _host, name: f"/usr/bin/{name}")
    order, hook = host.converge(check=True).notes[::-1]
    assert hook.endswith("oci-nvidia-hook.json is NVIDIA's hook for all containers: remove it, the runtime nvidia does its work")
    assert order.endswith(
        "toolkit.toml starts runc first, and CRI-O uses crun: put crun first in its list `runtimes`, or containers do not end"
    )
    (host.folder / "toolkit.toml").write_text('[nvidia-container-runtime]\nruntimes = ["crun", "runc"]\n')
    assert host.converge(check=True).notes == [hook]


def test_a_crio_that_does_not_start_with_the_change_gets_its_old_files_back(host: Host) -> None:
    before, host.dislikes = host.tree(), "nvidia"
    with pytest.raises(
        TransactionError, match=r"systemctl restart crio.service failed: Job failed. It said:\nlevel=fatal msg=no; put back"
    ):
        host.converge()
    assert host.tree() == before


def killed(host: Host, state: str, victim: str) -> None:
    child = os.fork()
    if child == 0:
        try:
            host.converge(state, point=lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == victim else None)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize(("state", "other", "default"), [("present", "absent", "nvidia"), ("absent", "present", "crun")])
def test_killed_anywhere_the_next_run_finishes(host: Host, state: str, other: str, default: str) -> None:
    host.converge(other)
    points: list[str] = []
    host.converge(state, point=points.append)
    assert [point.split()[0] for point in points] == ["before", "noted", "written", "restarted", "done"]
    wanted = host.tree()
    for victim in points:
        host.converge(other)
        killed(host, state, victim)
        host.converge(state)
        assert (host.default(), host.tree()) == (default, wanted), victim


def test_what_a_killed_run_left_broken_is_put_back(host: Host) -> None:
    before, host.dislikes = host.tree(), "nvidia"
    killed(host, "present", f"written {host.drop_in}")
    host.start()
    with pytest.raises(TransactionError, match="of an earlier run that did not end; put back what was there before it"):
        host.converge()
    assert host.tree() == before


def test_a_crio_that_does_not_run_is_left_alone(host: Host) -> None:
    host.process.write_text("")
    with pytest.raises(Rejected, match=r"crio.service is failed, expected active; nothing was changed"):
        host.converge()
