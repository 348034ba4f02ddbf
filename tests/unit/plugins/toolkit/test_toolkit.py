# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""NVIDIA's config.toml and CDI spec: only our settings change, the host's own nvidia-ctk agrees, and all of it goes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.nvidia_config import STRICT
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.toml import TomlError, loads
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._toolkit.toolkit import (
    CONFIG,
    OWNER_CDI,
    SPEC,
    WantedToolkit,
    converge,
    restore,
)

# What `nvidia-ctk config` of release 1.20.1 prints, which its packages install, without the tables after the first.
SHIPPED = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
ldconfig = "@/sbin/ldconfig"

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]
"""
GPU = "GPU-01234567-89ab-cdef-0123-456789abcdef"
STRICTLY = WantedToolkit(strict=True)
LOOSELY = WantedToolkit(strict=False)


class Commands:
    """nvidia-ctk, nvidia-smi and systemd of a host. version: what the toolkit prints; reads: what nvidia-ctk reads of a candidate."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = "NVIDIA Container Toolkit CLI version 1.20.0"
        self.reads: Callable[[str], str] = lambda text: text
        self.enabled: set[str] = set()
        self.active: set[str] = set()
        self.generates = True
        # What a program answers where it fails, by its name or that of a verb of systemctl.
        self.failures: dict[str, str] = {}
        self.calls: list[str] = []
        self.candidates: list[Path] = []

    def __call__(self, argv: list[str], timeout: float) -> Outcome:
        program, words = Path(argv[0]).name, argv[1:]
        self.calls.append(" ".join([program, *words]))
        self.candidates += [Path(word.partition("=")[2]) for word in words if word.startswith("--config-file=")]
        for name in (program, *words):
            if name in self.failures and "--version" not in words:
                return Outcome(argv, 1, self.failures[name])
        if "--version" in words:
            return Outcome(argv, 0, self.version)
        if program == "nvidia-ctk":
            assert self.candidates[-1].suffix == ".toml"
            return Outcome(argv, 0, self.reads(self.candidates[-1].read_text()))
        if program == "journalctl":
            return Outcome(argv, 0, f"log of {words[1]}")
        if program == "nvidia-smi":
            return Outcome(argv, 0, f"GPU 0: NVIDIA H100 (UUID: {GPU})\n")
        if program == "systemctl" and words[0] == "show":
            unit = words[1]
            state = {"UnitFileState": "enabled" if unit in self.enabled else "disabled"}
            state["ActiveState"] = "active" if unit in self.active else "inactive"
            return Outcome(argv, 0, "".join(f"{name}={value}\n" for name, value in state.items()))
        if program == "systemctl" and "enable" in words:
            self.enabled.update(word for word in words if "." in word)
        elif program == "systemctl":
            self.active.add(words[-1])
            if words[-1].endswith(".service") and self.generates:
                self.spec(GPU)
        return Outcome(argv, 0)

    def spec(self, *gpus: str) -> None:
        """A spec of these GPUs, with the library of the driver that is there."""
        path, library = self.root / SPEC[1:], self.root / LIBRARY[1:]
        for one in (path, library):
            one.parent.mkdir(parents=True, exist_ok=True)
        library.touch()
        devices = "".join(f"- name: {gpu}\n" for gpu in gpus)
        path.write_text(f"kind: nvidia.com/gpu\ndevices:\n{devices}containerEdits:\n  mounts:\n  - hostPath: {LIBRARY}\n")


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    folder = tmp_path / "usr/bin"
    folder.mkdir(parents=True)
    for name in ("nvidia-ctk", "nvidia-smi"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    path = tmp_path / CONFIG[1:]
    path.parent.mkdir(parents=True)
    path.write_text(SHIPPED)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return Commands(tmp_path)


def host(commands: Commands) -> Host:
    return Host(str(commands.root), run=commands)


def text(commands: Commands) -> str:
    path = commands.root / CONFIG[1:]
    return path.read_text() if path.exists() else ""


def tree(commands: Commands) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in commands.root.rglob("*") if path.is_file()}


def test_two_settings_and_no_other_byte(commands: Commands) -> None:
    predicted = converge(STRICTLY, host(commands), commands, True)
    assert text(commands) == SHIPPED
    done = converge(STRICTLY, host(commands), commands, False)
    assert predicted == done
    assert done.files == [CONFIG]
    assert done.notes == []
    added = [line for line in text(commands).splitlines() if line not in SHIPPED.splitlines()]
    assert {**loads("\n".join(added))} == {
        "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
        "accept-nvidia-visible-devices-as-volume-mounts": True,
    }
    assert [line for line in text(commands).splitlines() if line not in added] == SHIPPED.splitlines()
    before = tree(commands)
    assert not converge(STRICTLY, host(commands), commands, False).changed
    assert tree(commands) == before
    predicted = restore(host(commands), commands, True)
    assert tree(commands) == before
    assert restore(host(commands), commands, False) == predicted
    assert (predicted.changed, predicted.files, predicted.notes) == (True, [CONFIG], [])
    assert text(commands) == SHIPPED
    assert not restore(host(commands), commands, False).changed


@pytest.mark.parametrize("back", ["restore", "loosely"])
def test_others_changes_stay_and_exactly_our_part_goes(commands: Commands, back: str) -> None:
    mine = SHIPPED.replace("#accept-nvidia-visible-devices-as-volume-mounts", "accept-nvidia-visible-devices-as-volume-mounts")
    (commands.root / CONFIG[1:]).write_text(mine)
    converge(STRICTLY, host(commands), commands, False)
    changed = text(commands).replace('"info"', '"debug"')
    (commands.root / CONFIG[1:]).write_text(changed)
    if back == "restore":
        assert restore(host(commands), commands, False).notes
    else:
        assert converge(LOOSELY, host(commands), commands, False).changed
    assert loads(text(commands)) == loads(mine.replace('"info"', '"debug"'))
    assert [line for line in text(commands).splitlines() if line.startswith("#")] == [
        line for line in mine.splitlines() if line.startswith("#")
    ]
    assert Journal(str(commands.root)).entries() == []


def test_the_strategy_envvar_permits_what_was_forbidden(commands: Commands) -> None:
    mine = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n" + SHIPPED
    (commands.root / CONFIG[1:]).write_text(mine)
    assert converge(LOOSELY, host(commands), commands, False).files == [CONFIG]
    assert text(commands) == mine.replace("unprivileged = false", "unprivileged = true")
    assert not converge(LOOSELY, host(commands), commands, False).changed
    converge(STRICTLY, host(commands), commands, False)
    converge(LOOSELY, host(commands), commands, False)
    assert text(commands) == mine.replace("unprivileged = false", "unprivileged = true")
    restore(host(commands), commands, False)
    assert text(commands) == mine


def test_without_a_file_one_is_made_and_goes_again(commands: Commands) -> None:
    (commands.root / CONFIG[1:]).unlink()
    assert not converge(LOOSELY, host(commands), commands, False).changed
    converge(STRICTLY, host(commands), commands, False)
    assert loads(text(commands)) == STRICT
    assert text(commands).startswith("# Made by gpushare.kubernetes")
    assert (commands.root / CONFIG[1:]).stat().st_mode & 0o777 == 0o644
    ours = text(commands)
    restore(host(commands), commands, False)
    assert not (commands.root / CONFIG[1:]).exists()
    converge(STRICTLY, host(commands), commands, False)
    converge(LOOSELY, host(commands), commands, False)
    assert not (commands.root / CONFIG[1:]).exists()
    assert Journal(str(commands.root)).entries() == []
    # One that others removed is not brought back.
    converge(STRICTLY, host(commands), commands, False)
    (commands.root / CONFIG[1:]).unlink()
    assert restore(host(commands), commands, False).notes == []
    assert Journal(str(commands.root)).entries() == []
    # What others have written into ours stays.
    converge(STRICTLY, host(commands), commands, False)
    (commands.root / CONFIG[1:]).write_text(ours + "\n[nvidia-container-runtime]\nlog-level = 'debug'\n")
    restore(host(commands), commands, False)
    assert loads(text(commands)) == {"nvidia-container-runtime": {"log-level": "debug"}}


def test_a_file_that_was_empty_is_empty_again(commands: Commands) -> None:
    (commands.root / CONFIG[1:]).write_text("")
    converge(STRICTLY, host(commands), commands, False)
    restore(host(commands), commands, False)
    assert (commands.root / CONFIG[1:]).read_bytes() == b""


def test_a_file_that_is_no_text_stays(commands: Commands) -> None:
    (commands.root / CONFIG[1:]).write_bytes(b"# \xff\n")
    with pytest.raises(Rejected, match="not UTF-8"):
        converge(STRICTLY, host(commands), commands, False)
    assert (commands.root / CONFIG[1:]).read_bytes() == b"# \xff\n"


class Killed(BaseException):
    """As by a signal."""


@pytest.mark.parametrize(("wanted", "point"), [(STRICTLY, f"written {CONFIG}"), (WantedToolkit(False, cdi=True), "restarted")])
def test_a_killed_run_is_finished_by_the_next_one(commands: Commands, wanted: WantedToolkit, point: str) -> None:
    def kill(here: str) -> None:
        if here == point:
            raise Killed

    with pytest.raises(Killed):
        converge(wanted, host(commands), commands, False, kill)
    assert converge(wanted, host(commands), commands, True).changed
    assert converge(wanted, host(commands), commands, False).changed
    assert not converge(wanted, host(commands), commands, False).changed


@pytest.mark.parametrize("broken", ["x = [", "a = 1\na = 2\n", "accept-nvidia-visible-devices-as-volume-mounts.x = 1\n[a\n"])
def test_a_broken_file_stays(commands: Commands, broken: str) -> None:
    (commands.root / CONFIG[1:]).write_text(broken)
    with pytest.raises(TomlError):
        converge(STRICTLY, host(commands), commands, False)
    assert text(commands) == broken


def test_a_candidate_that_nvidia_ctk_reads_in_another_way_is_not_written(commands: Commands) -> None:
    commands.reads = lambda _text: SHIPPED
    with pytest.raises(Rejected, match="in another way than written"):
        converge(STRICTLY, host(commands), commands, False)
    commands.reads = lambda _text: "x = ["
    with pytest.raises(Rejected, match="not TOML"):
        converge(STRICTLY, host(commands), commands, False)
    commands.failures["nvidia-ctk"] = "unable to load the config"
    for dry in (True, False):
        with pytest.raises(Rejected, match="unable to load the config"):
            converge(STRICTLY, host(commands), commands, dry)
    assert text(commands) == SHIPPED
    assert not [path for path in commands.candidates if path.exists()]


def test_old_toolkits_are_rejected_with_what_they_let_happen(commands: Commands) -> None:
    commands.version = "NVIDIA Container Runtime version 1.17.7"
    with pytest.raises(Rejected, match=r"1\.17\.7, expected 1\.19\.1 or newer.*CVE-2025-23266"):
        converge(STRICTLY, host(commands), commands, False)
    commands.version = "NVIDIA Container Runtime version 1.19.0"
    with pytest.raises(Rejected, match=r"let a container reach its host: CVE-2026-24260 \(fixed in 1\.19\.1\)\)"):
        converge(STRICTLY, host(commands), commands, False)
    commands.version = "NVIDIA Container Runtime version 1.20.0"
    with pytest.raises(Rejected, match=r"1\.20\.0, expected 1\.21 or newer; nothing"):
        converge(WantedToolkit(True, "1.21"), host(commands), commands, False)
    commands.version = "NVIDIA Container Runtime version 1.17.7"
    assert text(commands) == SHIPPED
    for minimum in ("1.17.4", "1.17.7", ""):
        assert converge(WantedToolkit(True, minimum), host(commands), commands, True).notes == []
    commands.version = "NVIDIA Container Toolkit CLI version unknown"
    silent = converge(STRICTLY, host(commands), commands, True)
    assert "does not print its version" in silent.notes[0]
    for name in ("nvidia-ctk", "nvidia-smi"):
        (commands.root / "usr/bin" / name).unlink()
    with pytest.raises(Rejected, match="gpushare_toolkit_state: managed"):
        converge(STRICTLY, host(commands), commands, False)
    # What only has been predicted need not be there yet.
    predicted = converge(WantedToolkit(True, comes=True, cdi=True), host(commands), commands, True)
    assert (predicted.changed, predicted.notes) == (True, [])
    assert not [call for call in commands.calls if call.startswith("systemctl")]
    assert [Path(path).name for path in predicted.files] == ["config.toml", *UNITS]


def test_an_old_host_has_the_runtime_only(commands: Commands) -> None:
    (commands.root / "usr/bin/nvidia-ctk").rename(commands.root / "usr/bin/nvidia-container-runtime")
    assert converge(STRICTLY, host(commands), commands, False).notes == []
    assert commands.calls == ["nvidia-container-runtime --version"]


def test_a_host_of_somebody_else_is_left_alone(commands: Commands) -> None:
    assert converge(WantedToolkit(True), host(commands), commands, True).changed
    (commands.root / "etc/dgx-release").write_text("DGX_NAME=x\n")
    before = tree(commands)
    found = converge(WantedToolkit(True, cdi=True), host(commands), commands, False)
    assert not found.changed
    assert found.notes == ["DGX OS manages the container toolkit of this host: nothing was changed"]
    assert tree(commands) == before


LIBRARY = "/usr/lib64/libnvidia-ml.so.580.95.05"
UNITS = ("gpushare-cdi-refresh.service", "gpushare-cdi-refresh.path")


def test_the_spec_is_written_now_and_by_units_without_daemon_reload(commands: Commands) -> None:
    wanted = WantedToolkit(False, cdi=True)
    done = converge(wanted, host(commands), commands, False)
    assert [Path(path).name for path in done.files] == list(UNITS)
    assert [one["after_header"] for one in done.diff] == done.files
    assert {(commands.root / path[1:]).stat().st_mode & 0o777 for path in done.files} == {0o644}
    assert commands.enabled == set(UNITS)
    assert not [call for call in commands.calls if "daemon-reload" in call]
    assert [call for call in commands.calls if "enable" in call] == ["systemctl --no-reload enable " + " ".join(UNITS[::-1])]
    before = tree(commands)
    assert not converge(wanted, host(commands), commands, False).changed
    assert tree(commands) == before
    commands.spec("GPU-ffffffff-89ab-cdef-0123-456789abcdef")
    assert converge(wanted, host(commands), commands, True).changed
    assert converge(wanted, host(commands), commands, False).changed
    assert GPU in (commands.root / SPEC[1:]).read_text()


def test_a_spec_of_the_former_driver_is_written_anew(commands: Commands) -> None:
    converge(WantedToolkit(False, cdi=True), host(commands), commands, False)
    (commands.root / LIBRARY[1:]).unlink()
    assert converge(WantedToolkit(False, cdi=True), host(commands), commands, False).changed
    assert not converge(WantedToolkit(False, cdi=True), host(commands), commands, False).changed


def test_the_unit_of_the_toolkit_is_used_where_it_is_there(commands: Commands) -> None:
    folder = commands.root / "usr/lib/systemd/system"
    folder.mkdir(parents=True)
    (folder / "nvidia-cdi-refresh.path").write_text("")
    done = converge(WantedToolkit(False, cdi=True), host(commands), commands, False)
    assert done.changed
    assert done.files == []
    assert commands.enabled == {"nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service"}
    # Uninstall disables what was not enabled before.
    entries = {entry.path: entry for entry in Journal(str(commands.root)).entries()}
    assert set(entries) == {"service:nvidia-cdi-refresh.path", "service:nvidia-cdi-refresh.service"}
    assert {entry.owner for entry in entries.values()} == {OWNER_CDI}


def test_our_units_make_room_for_those_of_a_newer_toolkit(commands: Commands) -> None:
    ours = converge(WantedToolkit(False, cdi=True), host(commands), commands, False).files
    folder = commands.root / "usr/lib/systemd/system"
    folder.mkdir(parents=True)
    (folder / "nvidia-cdi-refresh.path").write_text("")
    assert converge(WantedToolkit(False, cdi=True), host(commands), commands, False).files == ours
    assert not [path for path in ours if (commands.root / path[1:]).exists()]


def test_a_spec_of_somebody_else_does_not_count(commands: Commands) -> None:
    converge(WantedToolkit(False, cdi=True), host(commands), commands, False)
    spec, theirs = commands.root / SPEC[1:], commands.root / "etc/cdi/other.yaml"
    theirs.parent.mkdir()
    theirs.write_text(spec.read_text())
    assert not converge(WantedToolkit(False, cdi=True), host(commands), commands, True).changed
    theirs.write_text("kind: nvidia.com/gpu\n")
    assert not converge(WantedToolkit(False, cdi=True), host(commands), commands, True).changed
    spec.rename(theirs)
    assert converge(WantedToolkit(False, cdi=True), host(commands), commands, True).changed


def test_a_spec_that_lacks_a_gpu_puts_the_units_back(commands: Commands) -> None:
    commands.generates = False
    with pytest.raises(TransactionError, match=f"does not name {GPU}"):
        converge(WantedToolkit(False, cdi=True), host(commands), commands, False)
    assert not list((commands.root / "etc/systemd").rglob("*.path"))
    assert Journal(str(commands.root)).entries() == []


@pytest.mark.parametrize("verb", ["enable", "start", "restart"])
def test_units_that_systemd_does_not_start_are_put_back_and_their_log_is_shown(commands: Commands, verb: str) -> None:
    commands.failures[verb] = "Unit is masked"
    with pytest.raises(TransactionError, match=r"Unit is masked; the log of gpushare-cdi-refresh\.service says: log of gpushare-cdi"):
        converge(WantedToolkit(False, cdi=True), host(commands), commands, False)
    assert not list((commands.root / "etc/systemd").rglob("gpushare-*"))


@pytest.mark.parametrize("there", [True, False])
def test_without_a_driver_that_answers_a_spec_may_name_nothing(commands: Commands, there: bool) -> None:
    commands.failures["nvidia-smi"] = f"GPU 0: NVIDIA H100 (UUID: {GPU})\nUnable to determine the device handle for gpu 0000:0B:00.0"
    if not there:
        (commands.root / "usr/bin/nvidia-smi").unlink()
    commands.generates = False
    assert converge(WantedToolkit(False, cdi=True), host(commands), commands, False).changed
    assert not converge(WantedToolkit(False, cdi=True), host(commands), commands, False).changed


def test_where_systemd_does_not_run_no_unit_is_written(commands: Commands) -> None:
    (commands.root / "run/systemd/system").rmdir()
    found = converge(WantedToolkit(False, cdi=True), host(commands), commands, False)
    assert (found.changed, found.files, len(found.notes)) == (False, [], 1)
    assert converge(LOOSELY, host(commands), commands, False).notes == []
    assert not [call for call in commands.calls if call.startswith("systemctl")]


def test_units_that_are_stopped_or_disabled_are_started_again(commands: Commands) -> None:
    wanted = WantedToolkit(False, cdi=True)
    converge(wanted, host(commands), commands, False)
    for states, one in ((commands.enabled, UNITS[0]), (commands.enabled, UNITS[1]), (commands.active, UNITS[1])):
        states.discard(one)
        assert converge(wanted, host(commands), commands, True).changed
        assert converge(wanted, host(commands), commands, False).changed
        assert one in states
        assert not converge(wanted, host(commands), commands, False).changed
