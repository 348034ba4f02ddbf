# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The whole of container_runtime on a host that is a folder, with a model of containerd that reads its files when it starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import Converged
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import service as runtime_service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd import Installation
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_config import dump_section
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.default_runtime import WantedRuntime, converge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.plan import Asked

from unit.fakes.plugins.kills import at, killed
from unit.fakes.plugins.runtimes.fake_containerd import model
from unit.golden import Golden

CONFIG = 'version = 3\n\n[plugins."io.containerd.cri.v1.runtime".containerd]\n  default_runtime_name = "runc"\n'
RELEASE = "2.1.4"


class Host:
    """A host below a folder. dislikes: text in its files with which containerd does not start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "etc/containerd/config.toml"
        self.program = folder / "nvidia-container-runtime"
        self.running = folder / "running"
        self.dislikes = "\0"
        self.properties = {"LoadState": "loaded", "KillMode": "process", "ExecMainStartTimestampMonotonic": "1"}
        self.restarts = 0
        self.cdi = True
        self.config.parent.mkdir(parents=True)
        self.config.write_text(CONFIG)
        self.program.write_text("")
        self.program.chmod(0o755)
        self.start()

    def default(self) -> str:
        return str(dump_section(Installation(model(RELEASE), str(self.config)).dump())["default_runtime_name"])

    def start(self) -> bool:
        """The process keeps what it read in a file, so that it outlives a killed test process."""
        bad = any(self.dislikes in path.read_text() for path in self.config.parent.rglob("*.toml") if path.is_file())
        self.running.write_text("" if bad else self.default())
        return not bad

    def run(self, argv: list[str], _timeout: float) -> Outcome:
        if argv[0] == "containerd":
            return Outcome(argv, *model(RELEASE)(argv[1:]))
        if argv[:2] == ["systemctl", "show"]:
            start = f"{{ path=containerd ; argv[]=containerd --config {self.config} ; }}"
            found = {
                **self.properties,
                "ActiveState": "active" if self.running.read_text() else "failed",
                "ExecStart": start,
                "MainPID": "0",
            }
            return Outcome(argv, 0, "".join(f"{key}={value}\n" for key, value in found.items()))
        if argv[:2] == ["systemctl", "restart"]:
            self.restarts += 1
            return Outcome(argv, 0 if self.start() else 1, err="Job failed")
        return Outcome(argv, 0, "level=error msg=no\n" if argv[0] == "journalctl" else "")

    def status(self, _address: str, _timeout: float) -> cri.RuntimeStatus:
        default = self.running.read_text()
        if not default:
            raise cri.CriError("the container runtime does not answer")
        options = {"BinaryName": str(self.program)}
        runtimes = {name: {"runtimeType": "io.containerd.runc.v2", "options": {}} for name in ("runc", "nvidia")}
        runtimes["nvidia"]["options"] = options
        names = ("runc", "nvidia") if default == "nvidia" else ("runc",)
        containerd = {"defaultRuntimeName": default, "runtimes": {name: runtimes[name] for name in names}}
        return cri.RuntimeStatus({"RuntimeReady": (True, "")}, {"enableCDI": self.cdi, "containerd": containerd})

    def converge(self, state: str = "present", check: bool = False, point: Callable[[str], None] = lambda _point: None) -> Converged:
        return converge(WantedRuntime(state, str(self.program), "containerd.service", None, 0.2, False), check, self.run, point)

    def tree(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path / "host")
    monkeypatch.setattr(journal, "FOLDER", str(host.folder / "journal"))
    monkeypatch.setattr(cri, "status", host.status)
    monkeypatch.setattr(runtime_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runtime_service, "STEADY_SECONDS", 0.01)
    return host


def test_check_mode_predicts_what_the_run_then_does_and_the_second_run_does_nothing(host: Host) -> None:
    before = host.tree()
    predicted = host.converge(check=True)
    assert (host.tree(), host.restarts) == (before, 0)
    assert host.converge() == predicted
    assert (host.running.read_text(), host.restarts) == ("nvidia", 1)
    assert [Path(path).name for path in predicted.files] == ["zz-gpushare.toml", "config.toml"]
    after = host.tree()
    assert host.converge() == Converged()
    assert (host.tree(), host.restarts) == (after, 1)


def test_absent_undoes_it_to_the_byte_and_once_only(host: Host) -> None:
    before = host.tree()
    host.converge()
    host.config.chmod(0o600)
    host.converge("absent")
    assert host.tree() == before
    assert host.config.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in host.config.parent.iterdir()) == ["config.toml"]
    assert host.restarts == 2
    assert host.converge("absent").notes == ["nothing of ours is recorded on this host"]


def test_a_change_that_does_not_start_is_put_back(host: Host, golden: Golden) -> None:
    before, host.dislikes = host.tree(), "nvidia"
    with golden.raised(TransactionError):
        host.converge()
    assert host.tree() == before


def points(host: Host, state: str) -> list[str]:
    passed: list[str] = []
    host.converge(state, point=passed.append)
    return passed


@pytest.mark.parametrize(("state", "other", "default"), [("present", "absent", "nvidia"), ("absent", "present", "runc")])
def test_killed_anywhere_the_next_run_finishes(host: Host, state: str, other: str, default: str) -> None:
    host.converge(other)
    all_points = points(host, state)
    assert len(all_points) == 8
    wanted = host.tree()
    for victim in all_points:
        host.converge(other)
        assert killed(partial(host.converge, state, point=at(victim))), victim
        host.converge(state)
        assert host.running.read_text() == default, victim
        assert host.tree() == wanted, victim
        assert not host.converge(state, check=True).changed


def test_what_a_killed_run_left_broken_is_put_back(host: Host, golden: Golden) -> None:
    before, host.dislikes = host.tree(), "nvidia"
    assert killed(partial(host.converge, point=at(f"written {host.config}")))
    host.start()
    assert host.running.read_text() == ""
    with golden.raised(TransactionError):
        host.converge()
    assert host.tree() == before


def test_an_edit_that_containerd_has_not_loaded_is_told(host: Host) -> None:
    assert host.converge(check=True).warnings == [
        f"{host.config} was changed after containerd was started, and not by us: its restart brings that change, too"
    ]
    host.properties["ExecMainStartTimestampMonotonic"] = str(10**18)
    assert host.converge(check=True).warnings == []


def test_a_containerd_that_is_unwell_without_us_is_left_alone(host: Host, golden: Golden) -> None:
    host.running.write_text("")
    before = host.tree()
    with golden.raised(Rejected):
        host.converge()
    assert (host.tree(), host.restarts) == (before, 0)


def test_a_containerd_that_does_not_answer_is_left_alone(host: Host, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    def silent(address: str, _timeout: float) -> cri.RuntimeStatus:
        raise cri.CriError(f"the container runtime at {address} does not answer: timed out")

    monkeypatch.setattr(cri, "status", silent)
    before = host.tree()
    with golden.raised(Rejected):
        host.converge()
    assert (host.tree(), host.restarts) == (before, 0)


@pytest.mark.parametrize("check", [False, True])
def test_a_missing_program_is_rejected(host: Host, check: bool) -> None:
    host.program.unlink()
    with pytest.raises(Rejected, match="does not exist or cannot be executed: install NVIDIA's container toolkit"):
        host.converge(check=check)


def test_secrets_of_the_configuration_are_in_no_diff(host: Host) -> None:
    host.config.write_text(CONFIG + '[registry.auth]\npassword = "geheim"\n')
    (diff,) = [one for one in host.converge(check=True).diff if one["before_header"] == str(host.config)]
    assert diff["before"] == CONFIG + '[registry.auth]\npassword = "(hidden)"\n'
    assert "geheim" not in diff["after"]
    assert "nvidia" in str(host.converge(check=True).diff)


def test_a_restart_that_would_end_containers_is_rejected_before_anything_is_written(host: Host) -> None:
    host.properties["KillMode"] = "control-group"
    before = host.tree()
    for check in (True, False):
        with pytest.raises(Rejected, match="KillMode=control-group"):
            host.converge(check=check)
    assert (host.tree(), host.restarts) == (before, 0)
    allowed = WantedRuntime("present", str(host.program), "containerd.service", None, 0.2, True)
    assert converge(allowed, False, host.run).changed
    host.properties["KillMode"] = "process"
    host.converge("absent")
    # Nothing to do is nothing to restart.
    host.properties["KillMode"] = "control-group"
    assert host.converge("absent") == Converged(notes=["nothing of ours is recorded on this host"])


def test_the_file_that_is_asked_for_is_the_one_that_is_changed(host: Host) -> None:
    other = host.config.parent / "other.toml"
    other.write_text(CONFIG)
    wanted = WantedRuntime("present", str(host.program), "containerd.service", str(other), 0.2, False)
    assert [Path(path).name for path in converge(wanted, True, host.run).files] == ["zz-gpushare.toml", "other.toml"]


def test_a_folder_in_the_place_of_our_file_stays_with_what_the_journal_has_of_it(host: Host) -> None:
    host.converge()
    host.config.write_text(CONFIG)
    drop_in = host.config.parent / "conf.d/zz-gpushare.toml"
    drop_in.unlink()
    drop_in.mkdir()
    found = host.converge("absent")
    assert (list(found.left), host.running.read_text()) == ([str(drop_in)], "runc")
    assert [entry.path for entry in journal.Journal().entries()] == [str(drop_in)]


def test_check_mode_predicts_the_way_back_too(host: Host) -> None:
    host.converge()
    before = host.tree()
    predicted = host.converge("absent", check=True)
    assert (host.tree(), host.restarts) == (before, 1)
    assert host.converge("absent") == predicted
    assert (predicted.changed, predicted.why) == (True, "its default runtime is 'nvidia', expected 'runc'")


def test_a_restart_that_was_lost_is_made_up_for_and_brings_nothing_of_others_along(host: Host) -> None:
    host.converge()
    host.running.write_text("runc")
    found = host.converge(check=True)
    assert found == Converged(True, why="its default runtime is 'runc', expected 'nvidia'")
    assert host.converge() == found
    assert (host.running.read_text(), host.restarts) == ("nvidia", 2)
    host.config.write_text(host.config.read_text() + "# theirs\n")
    host.running.write_text("runc")
    assert [warning.split()[0] for warning in host.converge(check=True).warnings] == [str(host.config)]


def test_a_containerd_that_is_unwell_with_what_may_be_our_change_is_gone_on_with(host: Host) -> None:
    host.converge()
    host.running.write_text("")
    assert host.converge().changed
    assert (host.running.read_text(), host.restarts) == ("nvidia", 2)
    host.running.write_text("")
    host.converge("absent")
    assert (host.running.read_text(), host.restarts) == ("runc", 3)


def test_what_others_have_recorded_is_none_of_ours(host: Host) -> None:
    journal.Journal("/").record("/theirs", "scheduler", None, b"x")
    assert host.converge("absent").notes == ["nothing of ours is recorded on this host"]
    host.converge()
    host.converge("absent")
    assert [entry.path for entry in journal.Journal("/").entries()] == ["/theirs"]


def test_cdi_alone_adds_no_runtime_and_needs_no_program(host: Host, golden: Golden) -> None:
    assert WantedRuntime("present", "/p", "", None, 1.0, False, cdi=True).asked() == Asked(None, True, True)
    assert WantedRuntime("present", "/p", "", None, 1.0, False, default_runtime="nvidia", cdi=True).asked() == Asked("/p", True, True)
    assert WantedRuntime("present", "/p", "", None, 1.0, False, default_runtime="unchanged", cdi=True).asked() == Asked("/p", False, True)
    host.program.unlink()
    # This containerd has CDI on.
    wanted = WantedRuntime("present", str(host.program), "containerd.service", None, 0.2, False, cdi=True)
    host.cdi = True
    assert converge(wanted, False, host.run) == Converged()
    host.cdi = False
    golden(converge(wanted, True, host.run).why)


def test_cdi_is_switched_on_in_containerd_only(host: Host, golden: Golden) -> None:
    wanted = WantedRuntime("present", str(host.program), "containerd.service", None, 0.2, False, cdi=True, runtime="docker")
    with golden.raised(Rejected):
        converge(wanted, False, host.run)
