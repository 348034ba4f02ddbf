# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The whole of container_runtime on a host with docker that is a folder: dockerd and systemd are models, the files are real."""

from __future__ import annotations

import importlib
import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import Converged
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import docker, docker_config, unix_http
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import service as runtime_service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.default_runtime import WantedRuntime, converge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.plan import Runtimes, SilentError

from unit.fakes.plugins.kills import at, killed
from unit.fakes.plugins.runtimes import fake_docker
from unit.fakes.plugins.runtimes.docker_host import KUBEADM, UNIT, DockerHost
from unit.golden import Golden

MINIMAL = '{\n    "default-runtime": "nvidia",\n    "runtimes": {\n        "nvidia": {\n            "path": "PROGRAM",\n'
MINIMAL += '            "runtimeArgs": []\n        }\n    }\n}\n'


PACKAGE = converge.__module__.rpartition(".")[0]


@pytest.fixture(params=["20.10.24", "28.5.1", *fake_docker.real_programs()])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerHost:
    host = DockerHost(tmp_path / "host", request.param)
    monkeypatch.setattr(journal, "FOLDER", str(host.folder / "journal"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(docker, "info", host.info)
    monkeypatch.setattr(runtime_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runtime_service, "STEADY_SECONDS", 0.01)
    return host


def test_check_mode_predicts_what_the_run_then_does_and_the_second_run_does_nothing(host: DockerHost) -> None:
    before = host.tree()
    predicted = host.converge(check=True)
    assert (host.tree(), host.done) == (before, [])
    assert host.converge() == predicted
    # Running containers do not stand in the way: dockerd reads its file again.
    assert (host.default(), host.done) == ("nvidia", ["reload"])
    assert predicted.files == [str(host.config)]
    assert host.config.read_text() == MINIMAL.replace("PROGRAM", str(host.program))
    after = host.tree()
    assert host.converge() == Converged()
    assert (host.tree(), host.done) == (after, ["reload"])


NVIDIA_DOCKER2 = (
    '{\n    "runtimes": {\n        "nvidia": {\n            "path": "nvidia-container-runtime",\n            "runtimeArgs": []\n'
)
NVIDIA_DOCKER2 += "        }\n    }\n}\n"  # the package nvidia-docker2; `nvidia-ctk runtime configure` writes "args" in its place
CTK = NVIDIA_DOCKER2.replace("runtimeArgs", "args")
DGX = '{"default-runtime": "runc", "live-restore": true, "runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}'
SEED = '{\n"default-runtime": "nvidia",\n"runtimes": {\n"nvidia": {\n"path": "/usr/bin/nvidia-container-runtime",\n"runtimeArgs": []\n'
SEED += "}\n}\n}\n"
MINE = '"runtimes": {\n    "nvidia": {\n      "path": "PROGRAM",\n      "runtimeArgs": []\n    }\n  }'
ADDED = ',\n  "default-runtime": "nvidia",\n  ' + MINE + "\n}\n"
# What is on one line does not stay there, unless the whole file is.
BROKEN = KUBEADM.replace('["native.cgroupdriver=systemd"]', '[\n    "native.cgroupdriver=systemd"\n  ]')
INPUTS = {
    "kubeadm": (KUBEADM, BROKEN.replace('"overlay2"\n}\n', '"overlay2"' + ADDED)),
    "empty object": ("{}", MINIMAL.rstrip("\n")),
    "CRLF": (KUBEADM.replace("\n", "\r\n"), BROKEN.replace('"overlay2"\n}\n', '"overlay2"' + ADDED).replace("\n", "\r\n")),
    "the seed's": (SEED, SEED.replace("/usr/bin/nvidia-container-runtime", "PROGRAM")),
    "DGX": (DGX, DGX.replace('"runc"', '"nvidia"').replace("/usr/bin/nvidia-container-runtime", "PROGRAM")),
}


@pytest.mark.parametrize(("text", "after"), INPUTS.values(), ids=INPUTS)
def test_the_file_keeps_its_indentation_and_comes_back_to_the_byte(host: DockerHost, text: str, after: str) -> None:
    host.config.write_bytes(text.replace("/usr/bin/nvidia-container-runtime", str(host.folder / "other")).encode())
    original, mode = host.config.read_bytes(), 0o640
    host.config.chmod(mode)
    host.start()
    host.converge()
    assert host.config.read_bytes().decode() == after.replace("PROGRAM", str(host.program))
    assert host.default() == "nvidia"
    assert not host.converge(check=True).changed
    host.converge("absent", allowed=True)
    assert (host.config.read_bytes(), host.config.stat().st_mode & 0o777) == (original, mode)
    assert not any(path.startswith("journal") for path in host.files())


@pytest.mark.parametrize("text", [NVIDIA_DOCKER2, CTK], ids=["nvidia-docker2", "nvidia-ctk"])
def test_what_nvidias_tools_have_written_is_taken_as_it_is(host: DockerHost, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(docker_config, "_FOLDERS", (str(host.folder),))
    host.write(text)
    host.start()
    host.converge()
    assert host.config.read_text() == text.replace("    }\n}\n", '    },\n    "default-runtime": "nvidia"\n}\n')
    host.converge("absent", allowed=True)
    assert host.config.read_text() == text
    host.config.write_text(text.replace("    }\n}\n", '    },\n    "default-runtime": "nvidia"\n}\n'))
    host.start()
    assert host.converge() == Converged()


def test_unchanged_registers_the_runtime_only(host: DockerHost) -> None:
    host.converge(default="unchanged")
    assert json.loads(host.config.read_text()) == {"runtimes": {"nvidia": {"path": str(host.program), "runtimeArgs": []}}}
    assert (host.default(), list(host.state()["runtimes"])) == ("runc", ["nvidia"])
    assert not host.converge(default="unchanged").changed
    assert host.converge().changed
    assert host.default() == "nvidia"


def test_a_flag_that_makes_nvidia_the_default_is_adopted(host: DockerHost) -> None:
    """As the seed of 2018 has it, in the unit: with the key in the file, too, docker would not start."""
    host.properties["NeedDaemonReload"] = "yes"  # for another reason
    host.start_words = "dockerd -H fd:// --default-runtime=nvidia"
    host.unit.write_text(UNIT.replace("$DOCKER_OPTS", "--default-runtime=nvidia"))
    host.write(NVIDIA_DOCKER2)
    host.start()
    found = host.converge()
    assert json.loads(host.config.read_text()) == {"runtimes": {"nvidia": {"path": str(host.program), "runtimeArgs": []}}}
    where = f"{host.unit}:3"
    assert found.notes == [f"{where} has --default-runtime=nvidia already: it stays, and {host.config} gets no default runtime"]
    assert host.start(), "docker starts with it"
    assert host.default() == "nvidia"
    assert not host.converge(check=True).changed


def test_the_keys_of_a_runtime_count_in_any_case_and_are_written_as_they_are_spelled(host: DockerHost) -> None:
    """As dockerd reads them: of several, the last one."""
    text = '{"runtimes": {"nvidia": {"path": "/a", "PATH": "/opt/old", "runtimeargs": ["--x"]}}, "default-runtime": "runc"}'
    host.write(text)
    host.start()
    assert host.converge().changed
    after = text.replace("/opt/old", str(host.program)).replace('"default-runtime": "runc"', '"default-runtime": "nvidia"')
    assert host.config.read_text() == after
    assert host.default() == "nvidia"
    assert not host.converge().changed
    assert host.converge("absent").changed
    assert host.config.read_text() == text
    host.write('{"runtimes": {"nvidia": {"RuntimeType": "io.containerd.runc.v2"}}}')
    with pytest.raises(Rejected, match="has a runtimeType"):
        host.converge()


def test_only_our_part_of_a_runtime_in_another_spelling_goes(host: DockerHost) -> None:
    text = '{"runtimes": {"nvidia": {"Path": "/opt/old"}}, "debug": false}'
    host.write(text)
    host.start()
    host.converge()
    host.write(host.config.read_text().replace("false", "true"))
    host.converge("absent", allowed=True)
    assert json.loads(host.config.read_text()) == {"runtimes": {"nvidia": {"Path": "/opt/old"}}, "debug": True}


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ({"path": "runc", "runtimeArgs": ["--systemd-cgroup"]}, "runtimeArgs ['--systemd-cgroup']"),
        ({"Path": "runc", "runtimeargs": ["--systemd-cgroup"]}, "runtimeArgs ['--systemd-cgroup']"),
        ({"path": "/opt/crun/crun"}, "path /opt/crun/crun"),
        ({"runtimeType": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}, "options {'SystemdCgroup': True}"),
        ({"path": "runc", "runtimeArgs": []}, ""),
        ({"runtimeType": "io.containerd.runc.v2"}, ""),
    ],
)
def test_what_pods_had_by_a_replaced_default_runtime_is_said(tmp_path: Path, entry: dict[str, object], shown: str) -> None:
    host = DockerHost(tmp_path / "host", "28.5.1")
    data = {"default-runtime": "site", "runtimes": {"site": entry}}
    start = docker_config.DockerdStart("docker.service", [], [])
    notes = docker_config.needed(data, "/etc/docker/daemon.json", start, str(host.program), True)[1]
    assert notes == (
        [
            f"/etc/docker/daemon.json: pods have had {shown} by the default runtime site, and do not get that from nvidia: add arguments "
            "that they need to runtimes.nvidia, and put another program than runc first in the list `runtimes` of "
            "/etc/nvidia-container-runtime/config.toml"
        ]
        if shown
        else []
    )


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        ("--default-runtime=crun", "{}", r"default:2 has --default-runtime=crun, and dockerd accepts no other one .* daemon-reload"),
        (
            "--default-runtime nvidia",
            SEED,
            r"daemon.json has 'default-runtime' and \S+default:2 has --default-runtime=nvidia, so docker would not",
        ),
        ("--add-runtime=nvidia=/opt/x", "{}", r"default:2 has --add-runtime nvidia=/opt/x, expected"),
        ("-s overlay2", '{\n  "storage-driver": "overlay2"\n}', "storage-driver: .from flag: overlay2, from file: overlay2"),
        ("--insecure-registry a", '{"insecure-registries": []}', r"daemon.json:1 and \S+default:2\); nothing was changed"),
        ("--log-opt a=b", '{\n\n  "log-opts": {}\n}', r"daemon.json:3 and \S+default:2\); nothing was changed"),
        ("", '{"hosts": ["fd://"]}', r"daemon.json:1 and the command line of docker.service"),
        ("", '{"no-such-option": 1}', "don't match any configuration option: no-such-option"),
        ("", '{\n  "debug": true,\n  "debug": false\n}', "daemon.json: the key 'debug' stands twice in one object"),
        ("", '{\n  "debug": true, // so\n}', "daemon.json: line 2: .*. dockerd needs plain JSON"),
        ("", '{"debug": true,}', "daemon.json: line 1: "),
        ("", "[]", "is not an object whose 'runtimes' is an object of objects"),
        ("", '{"runtimes": []}', "is not an object whose 'runtimes' is an object of objects"),
        ("", '{"runtimes": {"nvidia": "/x"}}', "is not an object whose 'runtimes' is an object of objects"),
        ("", '{"runtimes": {"nvidia": {"runtimeType": "x"}}}', "the runtime nvidia has a runtimeType, expected a path"),
        ("", '{"default-runtime": "kata", "runtimes": {"kata": {"path": "/opt/kata-runtime"}}}', "is kata .*isolation"),
        ("", '{"default-runtime": "v", "runtimes": {"v": {"runtimeType": "io.containerd.runsc.v1"}}}', "runsc.v1.*isolation"),
    ],
)
def test_what_cannot_be_right_is_rejected_before_anything_is_written(host: DockerHost, options: str, text: str, message: str) -> None:
    host.options.write_text(f"# options\nDOCKER_OPTS='{options}'\n")
    host.config.write_text(text)
    before = host.tree()
    for check in (True, False):
        with pytest.raises(Rejected, match=message) as caught:
            host.converge(check=check)
        assert tempfile.gettempdir() + "/gpushare" not in str(caught.value)
    assert (host.tree(), host.done) == (before, [])


FLAG = "{}: (from flag: a, from file: b)"


@pytest.mark.parametrize(
    ("version", "answer", "message"),
    [
        ((1, "Docker version 28.5.1", "broken  library"), (0, "", ""), "names no version: Docker version 28.5.1$"),
        ((1, "", "broken  library"), (0, "", ""), "^dockerd --version failed .* version: broken library$"),
        ((0, "Docker", ""), (0, "", ""), "names no version: Docker$"),
        ((0, "Docker version 28.5.1", ""), (1, "", "x" * 601), r"daemon.json: x{600}; nothing was changed$"),
        ((0, "Docker version 28.5.1", ""), (1, "", FLAG.format("none")), r"from file: b\); nothing was changed$"),
        ((0, "Docker version 28.5.1", ""), (1, "", FLAG.format("iptables")), r"daemon.json:1 and \S+default:1\); nothing was changed$"),
    ],
)
def test_what_dockerd_says_against_it_is_told(
    host: DockerHost, version: tuple[int, str, str], answer: tuple[int, str, str], message: str
) -> None:
    host.config.write_text('{"iptables": true}')
    host.options.write_text("OPTIONS=--iptables=true\n")
    host.dockerd = lambda words: version if words == ["--version"] else answer
    with pytest.raises(Rejected, match=message):
        host.converge()


@pytest.mark.parametrize(("host", "validates"), [("22.6.0", False), ("23.0.0", True)], indirect=["host"])
def test_from_release_23_on_dockerd_is_asked_without_a_start(host: DockerHost, validates: bool, tmp_path: Path) -> None:
    asked, dockerd = list[Sequence[str]](), host.dockerd
    host.dockerd = lambda words: asked.append(words) or dockerd(words)
    host.write('{"registry-mirrors": ["https://ü"]}')
    host.converge()
    assert ("--validate" in asked[-1], "--pidfile" in " ".join(asked[-1])) == (validates, not validates)
    assert list(tmp_path.iterdir()) == [host.folder]


@pytest.mark.parametrize("entry", ['{"path": "/usr/bin/crun"}', '{"runtimeType": "io.containerd.runc.v2"}'])
def test_a_default_that_runs_containers_as_runc_does_is_replaced(host: DockerHost, entry: str) -> None:
    host.config.write_text(f'{{"default-runtime": "x", "runtimes": {{"x": {entry}}}}}')
    host.start()
    host.converge()
    assert host.default() == "nvidia"
    host.converge("absent")
    assert host.default() == "x"


@pytest.mark.parametrize(("options", "started"), [("--add-runtime=nvidia=PROGRAM", []), ("", ["--default-runtime=runc"])])
def test_beside_a_runtime_of_the_command_line_docker_is_restarted(host: DockerHost, options: str, started: list[str]) -> None:
    """A reload would forget the runtimes of the command line. And dockerd wants the default runtime of the file in the file.

    started: what the process has on its command line, but not the next one.
    """
    host.options.write_text(f"DOCKER_OPTS={options.replace('PROGRAM', str(host.program))}\n")
    host.start()
    monitored = host.run

    def run(argv: list[str], timeout: float) -> Outcome:
        outcome = monitored(argv, timeout)
        return Outcome(argv, 0, outcome.out.replace("MainPID=0", "MainPID=7")) if argv[:2] == ["systemctl", "show"] else outcome

    modules = [importlib.import_module(f"{PACKAGE}.{name}") for name in ("default_runtime", "docker")]
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "arguments_of", lambda _pid: ["dockerd", *started, *host.words])
        with pytest.raises(
            Rejected, match=r"restarting docker.service would end the 3 running containers .* without live-restore; nothing"
        ):
            converge(host.wanted(), False, run)
        host.containers = 0
        assert converge(host.wanted(), False, run).changed
    assert host.config.read_text() == MINIMAL.replace("PROGRAM", str(host.program))
    assert (host.done, host.default()) == (["restart"], "nvidia")


def test_a_flag_that_systemd_has_not_read_is_rejected(host: DockerHost) -> None:
    host.unit.write_text(UNIT.replace("$DOCKER_OPTS", "--default-runtime=runc"))
    assert host.converge(check=True).changed, "a drop-in may replace this command line"
    host.properties["NeedDaemonReload"] = "yes"
    with pytest.raises(Rejected, match=r"docker.service:3 has --default-runtime, which systemd has not read; nothing was changed"):
        host.converge()
    host.unit.write_text("# --default-runtime=runc\n" + UNIT)
    assert host.converge().changed


def test_absent_undoes_it_to_the_byte_and_once_only(host: DockerHost) -> None:
    """The default goes back by a restart, which live-restore, an empty host or the administrator allow: it is no longer in the file."""
    before = host.files()
    host.converge()
    host.done.clear()
    with pytest.raises(Rejected, match=r"restarting docker.service would end the 3 running containers .* switch live-restore on"):
        host.converge("absent")
    assert host.default() == "nvidia"
    assert host.config.exists()
    predicted = host.converge("absent", check=True, allowed=True)
    assert host.converge("absent", allowed=True) == predicted
    assert (host.files(), host.default(), host.done) == (before, "runc", ["restart"])
    assert host.converge("absent").notes == ["nothing of ours is recorded on this host"]
    assert host.done == ["restart"]


@pytest.mark.parametrize(("text", "containers"), [('{"live-restore": true}', 3), ("{}", 0), ("{}", None)])
def test_a_restart_that_ends_no_container_is_allowed(host: DockerHost, text: str, containers: int | None) -> None:
    host.write(text)
    host.start()
    host.converge()
    host.containers = containers
    host.converge("absent")
    assert (host.default(), host.done) == ("runc", ["reload", "restart"])


def test_a_default_that_stood_in_the_file_comes_back_by_a_reload(host: DockerHost) -> None:
    host.write('{"default-runtime": "runc"}')
    host.start()
    host.converge()
    host.converge("absent")
    assert (host.default(), host.done) == ("runc", ["reload", "reload"])


def test_containers_that_started_meanwhile_are_not_ended(host: DockerHost, golden: Golden) -> None:
    host.properties["CanReload"], host.containers, before = "no", 0, host.tree()
    with golden.raised(TransactionError):
        host.converge(point=lambda _point: setattr(host, "containers", 3))
    assert (host.tree(), host.done) == (before, [])


def test_a_file_that_is_lost_comes_back_without_a_restart(host: DockerHost) -> None:
    host.converge()
    text = host.config.read_text()
    host.config.unlink()
    host.options.unlink()  # systemd does not need it either
    host.properties["CanReload"] = "no"
    assert host.converge().changed
    assert (host.config.read_text(), host.done) == (text, ["reload"])


def test_where_docker_cannot_be_reloaded_it_is_restarted(host: DockerHost) -> None:
    host.properties["CanReload"] = "no"
    with pytest.raises(Rejected, match="would end the 3 running"):
        host.converge()
    assert host.converge(allowed=True).changed
    assert (host.default(), host.done) == ("nvidia", ["restart"])


def test_a_later_edit_of_others_stays(host: DockerHost) -> None:
    host.write(KUBEADM)
    host.start()
    host.converge()
    host.config.write_text(host.config.read_text().replace("100m", "50m"))
    found = host.converge("absent", allowed=True)
    assert host.config.read_text() == BROKEN.replace("100m", "50m")
    assert found.notes == [f"{host.config} was changed by others since: only our part is taken out"]


def test_a_file_of_ours_with_anothers_key_keeps_that(host: DockerHost) -> None:
    host.converge()
    host.config.write_text(host.config.read_text().replace("{", '{\n    "debug": true,', 1))
    host.converge("absent", allowed=True)
    assert json.loads(host.config.read_text()) == {"debug": True}
    host.converge()
    host.config.unlink()
    assert host.converge("absent", allowed=True).notes == [
        f"{host.config} was there before this collection and is gone now; it is not brought back"
    ]


def test_a_folder_in_the_place_of_a_former_file_stays_with_what_the_journal_has_of_it(host: DockerHost) -> None:
    host.converge()
    former, host.config = host.config, host.folder / "other.json"
    former.unlink()
    former.mkdir()
    found = host.converge("absent", allowed=True)
    assert (list(found.left), host.default()) == ([str(former)], "runc")
    assert [entry.path for entry in journal.Journal().entries()] == [str(former)]


def test_a_way_back_with_which_docker_would_not_start_is_rejected(host: DockerHost) -> None:
    host.converge()
    host.options.write_text("DOCKER_OPTS=--default-runtime=nvidia\n")
    text = json.dumps({"runtimes": json.loads(host.config.read_text())["runtimes"]})
    for file, message in (
        (text, "specified default runtime 'nvidia' does not exist"),
        (text.replace("{", '{"no-such-option": 1, ', 1), "configuration option: no-such-option"),
        (text + "}", "daemon.json: line 1: .* correct the file"),
    ):
        host.write(file)
        before = host.tree()
        with pytest.raises(Rejected, match=message):
            host.converge("absent", allowed=True)
        assert host.tree() == before


def test_a_docker_that_dies_of_the_change_gets_its_old_file_back(host: DockerHost, golden: Golden) -> None:
    before, host.dislikes = host.tree(), "nvidia"
    with golden.raised(TransactionError):
        host.converge()
    assert host.tree() == before
    assert host.done == ["reload", "restart"]


def test_a_reload_that_docker_does_not_follow_is_put_back_without_a_restart(
    host: DockerHost, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    before = host.tree()
    monkeypatch.setattr(host, "reload", lambda: None)
    with golden.raised(TransactionError):
        host.converge()
    assert (host.tree(), host.done) == (before, ["reload"])


def test_a_reload_that_systemd_rejects_is_put_back(host: DockerHost, golden: Golden) -> None:
    before, monitored = host.tree(), host.run

    def run(argv: list[str], timeout: float) -> Outcome:
        return Outcome(argv, 1, err="Job failed") if argv[:2] == ["systemctl", "reload"] else monitored(argv, timeout)

    with golden.raised(TransactionError):
        converge(host.wanted(), False, run)
    assert host.tree() == before


def points(host: DockerHost, state: str) -> list[str]:
    passed: list[str] = []
    host.converge(state, point=passed.append, allowed=True)
    return passed


@pytest.mark.parametrize(("state", "other", "default"), [("present", "absent", "nvidia"), ("absent", "present", "runc")])
def test_killed_anywhere_the_next_run_finishes(host: DockerHost, state: str, other: str, default: str) -> None:
    host.write(KUBEADM)
    host.start()
    host.converge(other, allowed=True)
    all_points = points(host, state)
    assert [point.split()[0] for point in all_points] == ["before", "noted", "written", "restarted", "done"]
    wanted = host.files()
    for victim in all_points:
        host.converge(other, allowed=True)
        before = host.config.read_bytes()
        assert killed(partial(host.converge, state, point=at(victim), allowed=True)), victim
        assert host.config.read_bytes() in (before, wanted["etc/docker/daemon.json"]), victim
        host.converge(state, allowed=True)
        assert host.default() == default, victim
        assert host.files() == wanted, victim
        assert not host.converge(state, check=True).changed


def test_what_a_killed_run_left_broken_is_put_back(host: DockerHost, golden: Golden) -> None:
    before, host.dislikes = host.tree(), "nvidia"
    assert killed(partial(host.converge, point=at(f"written {host.config}"), allowed=True))
    host.start()
    assert host.default() == ""
    with golden.raised(TransactionError):
        host.converge()
    assert host.tree() == before


def test_secrets_of_the_configuration_are_in_no_diff(host: DockerHost) -> None:
    text = '{"log-driver": "splunk", "log-opts": {"splunk-token": "geheim", "splunk-url": "https://me:geheim@splunk"}}'
    host.write(text)
    (diff,) = host.converge(check=True).diff
    assert diff["before"] == text.replace("me:geheim", "(hidden)").replace('"geheim"', '"(hidden)"')
    assert "geheim" not in diff["after"]
    assert "nvidia" in diff["after"]


def test_no_runtime_gets_anothers_entries(host: DockerHost) -> None:
    host.converge()
    assert [entry.owner for entry in journal.Journal("/").entries()] == ["container_runtime.docker"]
    # kubelet may use another one by now: what is ours on docker goes all the same.
    wanted = WantedRuntime("absent", str(host.program), "", None, 0.2, True, "containerd")
    assert converge(wanted, False, host.run).changed
    assert host.default() == "runc"


def test_the_unit_of_kubespray_and_its_drop_ins_are_read(host: DockerHost) -> None:
    """roles/container-engine/docker: the options are in drop-ins, as variables of the unit."""
    host.start_words = "dockerd $DOCKER_OPTS $DOCKER_DNS_OPTIONS"
    drop_in = host.folder / "docker-options.conf"
    drop_in.write_text('[Service]\nEnvironment="DOCKER_OPTS= --iptables=false --default-runtime=runc"\n')
    host.properties |= {"DropInPaths": str(drop_in), "Environment": '"DOCKER_OPTS= --default-runtime=runc"'}
    with pytest.raises(Rejected, match=r"docker-options.conf:2 has --default-runtime=runc"):
        host.converge()


class Api:
    """docker's API on a socket, which answers once with these bytes."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.asked = b""
        self._thread = threading.Thread(target=self._serve, args=(answer,))
        self._thread.start()

    def _serve(self, answer: bytes) -> None:
        connection, _address = self._listener.accept()
        with connection:
            self.asked = connection.recv(4096)
            connection.sendall(answer)

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Callable[[bytes], tuple[Api, str]]]:
    made: list[Api] = []

    def serve(answer: bytes) -> tuple[Api, str]:
        path = tmp_path / f"{len(made)}.sock"
        made.append(Api(path, answer))
        return made[-1], str(path)

    yield serve
    for one in made:
        one.close()


def test_docker_is_asked_over_its_socket(api: Callable[[bytes], tuple[Api, str]], tmp_path: Path) -> None:
    body = b'{"DefaultRuntime": "nvidia"}'
    server, address = api(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert docker.info(address, 5.0) == {"DefaultRuntime": "nvidia"}
    assert server.asked.startswith(b"GET /info HTTP/1.1\r\nHost: localhost\r\n")
    for answer, words in (
        (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}", "answers 500: {}"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", r"answers \[\]"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{", "does not answer: Expecting"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000, "does not answer: maximum recursion"),
        (b"what?", "does not answer: "),
    ):
        with pytest.raises(SilentError, match=words):
            docker.info(api(answer)[1], 5.0)
    with pytest.raises(SilentError, match="does not answer: "):
        docker.info(str(tmp_path / "none"), 5.0)


def test_a_long_answer_of_docker_is_none(api: Callable[[bytes], tuple[Api, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_http, "_LIMIT", 4)
    with pytest.raises(SilentError, match="answers /info with more than 4 bytes"):
        docker.info(api(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n     ")[1], 5.0)


def test_a_docker_that_says_a_byte_now_and_then_does_not_hold_us_up(tmp_path: Path) -> None:
    over = threading.Event()

    def drip() -> None:
        connection, _peer = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n")
            while not over.wait(0.1):
                connection.sendall(b" ")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            # The whole of it would take seven minutes.
            with pytest.raises(SilentError, match="timed out"):
                docker.info(str(tmp_path / "s"), 1.0)
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ([], "/run/docker.sock"),
        (["-H", "fd://"], "/run/docker.sock"),
        (["--containerd", "unix:///c"], "/run/docker.sock"),
        (["-H", "unix:///srv/d"], "/srv/d"),
        (["-H", "tcp://x", "--host=unix:///srv/d"], "/srv/d"),
    ],
)
def test_where_docker_listens_is_what_its_command_line_says(words: list[str], address: str) -> None:
    assert docker._address(words) == address


def test_the_file_is_the_one_asked_for_or_that_of_the_command_line(host: DockerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = runtime_service.find_unit("docker.service", host.run, lambda _pid: [])

    def service(config: str | None) -> docker.DockerService:
        return docker.DockerService.of(unit, config, host.run, 1.0)

    assert [service(config).config for config in ("/asked", None)] == ["/asked", str(host.config)]
    host.properties["ExecStart"] = "{ path=dockerd ; argv[]=dockerd ; }"
    assert service(None).config == "/etc/docker/daemon.json"
    monkeypatch.setattr(docker, "info", lambda _address, _timeout: {})
    assert service(None).running() == ({"RuntimeReady": (True, "")}, Runtimes("", {}))


def test_what_a_process_has_beyond_the_file_is_no_reason_to_restart_it(golden: Golden) -> None:
    nvidia = {"nvidia": {"path": "/x"}}
    assert docker_config.not_running(Runtimes("runc", {}), Runtimes("runc", nvidia)) is None
    golden(docker_config.not_running(Runtimes("runc", nvidia), Runtimes("runc", {})))
