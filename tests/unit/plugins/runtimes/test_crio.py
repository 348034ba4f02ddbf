# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The whole of container_runtime on a host with CRI-O that is a folder.

Inputs are those of crio.conf(5) and of nvidia-ctk.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import Converged
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri, crio, unix_http
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import service as runtime_service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.plan import Runtimes

from unit.fakes.plugins.kills import at, killed
from unit.fakes.plugins.runtimes.crio_host import CrioHost, files
from unit.golden import Golden

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


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CrioHost:
    host = CrioHost(tmp_path / "host")
    monkeypatch.setattr(journal, "FOLDER", str(host.folder / "journal"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(unix_http, "get", host.get)
    monkeypatch.setattr(cri, "status", host.status)
    monkeypatch.setattr(runtime_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runtime_service, "STEADY_SECONDS", 0.01)
    monkeypatch.setattr(crio, "HOOKS", (str(host.folder / "oci-nvidia-hook.json"),))
    monkeypatch.setattr(crio, "TOOLKIT", str(host.folder / "toolkit.toml"))
    return host


def test_check_mode_predicts_what_the_run_then_does_and_the_second_run_does_nothing(host: CrioHost) -> None:
    before = host.tree()
    predicted = host.converge(check=True)
    assert (host.tree(), host.restarts) == (before, 0)
    assert host.converge() == predicted
    assert (host.default(), host.restarts, predicted.files) == ("nvidia", 1, [str(host.drop_in)])
    # systemd kills a CRI-O that does not end, after so long.
    assert host.restart_timeout > 90
    assert host.drop_in.read_text() == OURS.replace("PROGRAM", str(host.program))
    assert [diff["after"] for diff in predicted.diff] == [host.drop_in.read_text()]
    after = host.tree()
    assert host.converge() == Converged()
    assert (host.tree(), host.restarts) == (after, 1)
    assert list(host.folder.parent.iterdir()) == [host.folder]


def test_absent_undoes_it_to_the_byte_and_once_only(host: CrioHost) -> None:
    before = host.tree()
    host.converge()
    predicted = host.converge("absent", check=True)
    assert host.converge("absent") == predicted
    assert (host.tree(), host.default(), host.restarts) == (before, "crun", 2)
    assert host.converge("absent").notes == ["nothing of ours is recorded on this host"]


def test_what_nvidia_ctk_has_written_is_taken_as_it_is(host: CrioHost) -> None:
    host.write("99-nvidia.conf", CTK)
    host.start()
    assert host.converge() == Converged()
    host.write("99-nvidia.conf", CTK.replace("PROGRAM", "/opt/nvidia-container-runtime"))
    host.start()
    host.converge()
    assert json.loads(host.process.read_text())["runtimes"]["nvidia"]["runtime_path"] == str(host.program)


def test_an_entry_of_others_keeps_what_it_says(host: CrioHost) -> None:
    host.write("99-nvidia.conf", CTK.replace('"oci"', '"vm"\n        runtime_root = "/theirs"'))
    host.start()
    host.converge()
    entry = tomllib.loads(host.drop_in.read_text())["crio"]["runtime"]["runtimes"]["nvidia"]
    assert (entry["runtime_path"], entry["runtime_type"], entry["runtime_root"]) == (str(host.program), "oci", "/theirs")


def test_a_right_entry_of_others_gets_the_default_only(host: CrioHost) -> None:
    host.write("99-nvidia.conf", CTK.replace('default_runtime = "nvidia"', ""))
    host.start()
    assert host.converge(default="unchanged") == Converged()
    host.converge()
    assert (host.default(), host.drop_in.read_text()) == ("nvidia", crio.HEADER + '[crio.runtime]\ndefault_runtime = "nvidia"\n')


def test_crio_checks_the_files_as_they_will_be(host: CrioHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those in folders below. A later folder counts more, and `10/` comes before `10-crio.conf`."""
    host.config.write_text("# ours\r\n")
    host.write("10/a.conf", '[crio.runtime]\ndefault_runtime = "nvidia"\n')
    seen: list[dict[str, bytes]] = []

    def look(arguments: list[str]) -> tuple[int, str, str]:
        config, folder = (Path(argument.partition("=")[2]) for argument in arguments[:2])
        assert folder == config.parent / "crio.conf.d"
        seen.append({str(path.relative_to(config.parent)): path.read_bytes() for path in config.parent.rglob("*") if path.is_file()})
        return 0, "", ""

    monkeypatch.setattr(host, "crio", look)
    host.converge()
    assert seen == [{str(path.relative_to(host.config.parent)): path.read_bytes() for path in (host.config, *files(host.drop_ins))}]
    assert host.default() == "nvidia"


def test_crio_is_asked_where_it_listens(host: CrioHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.flags = "--listen=/run/other.sock"
    asked = set[str]()
    monkeypatch.setattr(unix_http, "get", lambda address, path, timeout: asked.add(address) or host.get(address, path, timeout))
    monkeypatch.setattr(cri, "status", lambda address, timeout: asked.add(address) or host.status(address, timeout))
    host.converge()
    assert asked == {"/run/other.sock"}


def test_a_way_back_with_which_crio_would_not_start_is_rejected(host: CrioHost, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    host.converge()
    with monkeypatch.context() as patch:
        patch.setattr(host, "crio", lambda _arguments: (1, "", "no"))
        with golden.raised(Rejected):
            host.converge("absent")
    host.write("20.conf", '[crio.runtime]\ndefault_runtime = "nvidia"\n')
    with golden.raised(Rejected):
        host.converge("absent")
    host.write("20.conf", CTK)
    (host.drop_ins / "10-crio.conf").unlink()
    host.converge("absent")
    assert (host.default(), list(host.drop_ins.iterdir())) == ("nvidia", [host.drop_ins / "20.conf"])


def test_the_only_drop_in_goes_again(host: CrioHost) -> None:
    (host.drop_ins / "10-crio.conf").unlink()
    host.converge()
    host.converge("absent")
    assert (host.default(), list(host.drop_ins.iterdir())) == ("crun", [])


def test_unchanged_registers_the_runtime_only(host: CrioHost) -> None:
    host.converge(default="unchanged")
    assert host.drop_in.read_text() == OURS.replace('[crio.runtime]\ndefault_runtime = "nvidia"\n\n', "").replace(
        "PROGRAM", str(host.program)
    )
    assert host.default() == "crun"
    assert not host.converge(check=True, default="unchanged").changed
    host.converge()
    assert (host.default(), host.drop_in.read_text().count(crio.HEADER)) == ("nvidia", 1)


def test_a_file_of_ours_with_anothers_key_keeps_that(host: CrioHost) -> None:
    host.converge()
    host.drop_in.write_text(host.drop_in.read_text() + '\n[crio.image]\npause_image = "p"\n')
    found = host.converge("absent")
    assert tomllib.loads(host.drop_in.read_text()) == {"crio": {"image": {"pause_image": "p"}}}
    assert found.notes == [f"{host.drop_in} was changed by others since: only our part is taken out"]


def test_a_folder_in_the_place_of_our_file_stays_with_what_the_journal_has_of_it(host: CrioHost) -> None:
    host.converge()
    host.drop_in.unlink()
    host.drop_in.mkdir()
    for changed in (True, False):
        found = host.converge("absent")
        assert (found.changed, list(found.left), host.default()) == (changed, [str(host.drop_in)], "crun")
        assert [entry.path for entry in journal.Journal().entries()] == [str(host.drop_in)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "zzz.conf",
            '[crio.runtime]\ndefault_runtime = "crun"\n',
            "^[^,]*zzz.conf takes back what .*zz-gpushare.conf would say; nothing was changed",
        ),
        ("zzz.conf", '[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n', "^[^,]*zzz.conf takes back what "),
        ("zzz.conf", '[Crio.Runtime]\nDefault_Runtime = "crun"\n', "^[^,]*zzz.conf takes back what "),
        ("20.conf", "[crio.runtime\n", "20.conf cannot be read: "),
        ("20.conf", "[crio.runtime]\na = 1\na = 2\n", "20.conf cannot be read: .*line 3"),
        (
            "20.conf",
            '[crio.runtime]\ndefault_runtime = "kata"\n[crio.runtime.runtimes.kata]\nruntime_type = "vm"\n',
            "the default runtime is kata of type vm, which is not run by runc or crun",
        ),
    ],
)
def test_what_cannot_be_right_is_rejected_before_anything_is_written(host: CrioHost, name: str, text: str, message: str) -> None:
    host.write(name, text)
    if "kata" in text:
        host.start()
    before = host.tree()
    for check in (True, False):
        with pytest.raises(Rejected, match=message):
            host.converge(check=check)
    assert (host.tree(), host.restarts) == (before, 0)


def test_a_default_on_the_command_line_and_a_file_that_crio_rejects_are_rejected(host: CrioHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.flags = "--default-runtime=crun"
    with pytest.raises(Rejected, match=r"command line of crio.service has --default-runtime=crun, which no file can change"):
        host.converge()
    assert host.converge(check=True, default="unchanged").changed
    host.flags = ""
    before = host.tree()
    start = 'time="2026-11-24T10:00:00Z" level=info msg="Starting CRI-O, version: 1.37.0"\n' * 9
    for said, quoted in (
        ("usage:\nno such option\n", "no such option"),
        (
            f'{start}time="2026-11-24T10:00:00Z" level=fatal msg="validating runtime config: no \\"x\\""\n',
            'validating runtime config: no "x"',
        ),
    ):
        monkeypatch.setattr(host, "crio", lambda _arguments, said=said: (1, "", said))
        with pytest.raises(Rejected, match=f"crio config rejects the new configuration: {quoted}; nothing was changed"):
            host.converge()
    assert host.tree() == before


def test_the_hook_of_older_toolkits_and_another_order_of_runtimes_are_named(host: CrioHost, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.folder / "oci-nvidia-hook.json").write_text("{}")
    monkeypatch.setattr(crio.Host, "program", lambda _host, name: f"/usr/bin/{name}")
    order, hook = host.converge(check=True).notes[::-1]
    assert hook.endswith("oci-nvidia-hook.json is NVIDIA's hook for all containers: remove it, the runtime nvidia does its work")
    assert order.endswith(
        "toolkit.toml starts runc first, and CRI-O uses crun: put crun first in its list `runtimes`, or containers do not end"
    )
    (host.folder / "toolkit.toml").write_text('[nvidia-container-runtime]\nruntimes = ["crun", "runc"]\n')
    assert host.converge(check=True).notes == [hook]
    host.write("99-nvidia.conf", CTK.replace("PROGRAM", "/opt/nvidia-container-runtime"))
    host.start()
    (host.folder / "toolkit.toml").unlink()
    assert host.converge(check=True).notes == [hook, order], "also where nvidia is the default already"
    (host.drop_ins / "99-nvidia.conf").unlink()
    host.start()
    (host.folder / "toolkit.toml").write_text("[")
    assert host.converge(check=True).notes == [hook]
    (host.folder / "toolkit.toml").unlink()
    for there in ([], ["crun"]):
        monkeypatch.setattr(crio.Host, "program", lambda _host, name, there=there: name if name in there else None)
        assert host.converge(check=True).notes == [hook]


def test_unchanged_leaves_another_kind_of_runtime_the_default(host: CrioHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crio.Host, "program", lambda _host, name: f"/usr/bin/{name}")
    host.write("20.conf", '[crio.runtime]\ndefault_runtime = "kata"\n[crio.runtime.runtimes.kata]\nruntime_type = "vm"\n')
    host.start()
    assert host.converge(default="unchanged").notes == []
    assert (host.default(), host.restarts) == ("kata", 1)


@pytest.mark.parametrize(
    ("arguments", "config", "places"),
    [
        ([], None, ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d")),
        (["--config=/a", "--config-dir=/b"], None, ("/a", "/b")),
        (["-c", "/a", "-d", "/b"], None, ("/a", "/b")),
        (["--config=/a"], "/asked", ("/asked", "/etc/crio/crio.conf.d")),
    ],
)
def test_the_files_are_those_of_the_command_line(arguments: list[str], config: str | None, places: tuple[str, str]) -> None:
    unit = runtime_service.RuntimeUnit("crio.service", "active", "", 0, 0.0, "crio", arguments)
    service = crio.CrioService.of(unit, config, lambda argv, _timeout: Outcome(argv, 0), 1.0)
    assert (service.config, service.folder) == places


def test_headers_that_only_held_our_part_go_with_it() -> None:
    assert crio.reverted(CTK + '[crio.image]\npause_image = "p"\n').split() == ["[crio.image]", "pause_image", "=", '"p"']
    assert crio.reverted("# theirs\n" + OURS) is None
    assert crio.reverted(OURS.replace('"nvidia"', '"crun"')).endswith('[crio.runtime]\ndefault_runtime = "crun"\n')


@pytest.mark.parametrize(("said", "reason"), [("", "it printed nothing"), ("no\n \n\n", "no"), ("x" * 601, "x" * 600)])
def test_crios_last_line_is_quoted(said: str, reason: str) -> None:
    assert crio.reason(said) == reason


def test_a_default_of_the_process_is_right_where_no_file_names_one() -> None:
    assert crio.not_running(Runtimes("", {}), Runtimes("crun", {})) is None
    assert crio.not_running(Runtimes("crun", {}), Runtimes("crun", {"nvidia": {"runtime_path": "/x"}})) is None
    assert "expected 'its own'" in str(crio.not_running(Runtimes("", {}), Runtimes("nvidia", {})))


def test_a_process_that_runs_the_same_program_in_another_way_is_restarted(golden: Golden) -> None:
    ours = Runtimes("", {"nvidia": {"runtime_path": "/x", "runtime_type": "oci"}})
    assert crio.not_running(ours, Runtimes("crun", {"nvidia": {"runtime_path": "/x"}})) is None
    other = Runtimes("crun", {"nvidia": {"runtime_path": "/x", "runtime_type": "vm"}})
    golden(crio.not_running(ours, other))


def test_an_answer_that_is_no_configuration_is_rejected(host: CrioHost, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(unix_http, "get", lambda _address, _path, _timeout: b"[")
    with golden.raised(Rejected):
        host.converge()


def test_a_crio_that_does_not_start_with_the_change_gets_its_old_files_back(host: CrioHost, golden: Golden) -> None:
    before, host.dislikes = host.tree(), "nvidia"
    with golden.raised(TransactionError):
        host.converge()
    assert host.tree() == before


@pytest.mark.parametrize(("state", "other", "default"), [("present", "absent", "nvidia"), ("absent", "present", "crun")])
def test_killed_anywhere_the_next_run_finishes(host: CrioHost, state: str, other: str, default: str) -> None:
    host.converge(other)
    points: list[str] = []
    host.converge(state, point=points.append)
    assert [point.split()[0] for point in points] == ["before", "noted", "written", "restarted", "done"]
    wanted = host.tree()
    for victim in points:
        host.converge(other)
        assert killed(partial(host.converge, state, point=at(victim))), victim
        host.converge(state)
        assert (host.default(), host.tree()) == (default, wanted), victim


def test_what_a_killed_run_left_broken_is_put_back(host: CrioHost, golden: Golden) -> None:
    before, host.dislikes = host.tree(), "nvidia"
    assert killed(partial(host.converge, point=at(f"written {host.drop_in}")))
    host.start()
    with golden.raised(TransactionError):
        host.converge()
    assert host.tree() == before


def test_keys_count_in_any_case_and_names_of_runtimes_as_they_are(golden: Golden) -> None:
    """As BurntSushi/toml 1.5.0 decodes CRI-O's structures."""
    first = '[Crio.RUNTIME]\nDefault_Runtime = "crun"\n[Crio.RUNTIME.Runtimes.Nvidia]\nRuntime_Path = "/other"\n'
    later = '[crio.runtime.runtimes.nvidia]\nRUNTIME_PATH = "/usr/bin/nvidia-container-runtime"\n'
    entries = {"Nvidia": {"runtime_path": "/other"}, "nvidia": {"runtime_path": "/usr/bin/nvidia-container-runtime"}}
    assert crio.effective({"/a": first, "/b": later}) == Runtimes("crun", entries)
    # Of two in one file, any may win: ten runs of that decoder gave both.
    with golden.raised(Rejected):
        crio.effective({"/a": first + later})
    with pytest.raises(Rejected, match=r"/b has default_runtime and Default_Runtime"):
        crio.effective({"/b": '[crio.runtime]\ndefault_runtime = "a"\nDefault_Runtime = "b"\n'})
