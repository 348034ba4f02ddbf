# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is said to a control daemon and what its answers mean, by a script in its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpushare_runtime.mps import control
from gpushare_runtime.mps.control import ControlDaemon, ControlError
from unit.fakes.runtime.mps.stand_ins import UUID
from unit.golden import Golden


class Dialogue(ControlDaemon):
    """answers: by command; "" for one without, an error for "?"."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        super().__init__("mps", UUID, Path("/r"), Path("/l"))
        self.answers, self.asked = dict(answers), list[str]()

    async def ask(self, command: str, within: float = 0.0) -> str:
        self.asked.append(command)
        answer = self.answers.get(command, "")
        if answer == "?":
            raise ControlError(f"no answer to {command}")
        return answer


@pytest.fixture
def daemon(root: Path) -> Callable[[str], ControlDaemon]:
    """A daemon whose program is this script of a shell."""

    def made(script: str) -> ControlDaemon:
        program = root / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return ControlDaemon(str(program), UUID, root / "r", root / "l")

    return made


def test_the_program_sees_one_gpu_and_its_folders_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"CUDA_MPS_PIPE_DIRECTORY": "/r/pipe", "CUDA_MPS_LOG_DIRECTORY": "/l", "CUDA_VISIBLE_DEVICES": UUID}
    monkeypatch.setenv("PATH", "/bin")
    assert Dialogue({}).environment == {"PATH": "/bin", **own}
    monkeypatch.delenv("PATH")
    assert Dialogue({}).environment == {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **own}


async def test_servers_are_process_numbers(golden: Golden) -> None:
    for answer, servers in (("", []), ("4711\n4712", [4711, 4712])):
        assert await Dialogue({"get_server_list": answer}).servers() == servers
    for odd in ("4711 x", "\u00b2", "-1"):
        with golden.raised(ControlError):
            await Dialogue({"get_server_list": odd}).servers()


async def test_each_server_is_told_to_end() -> None:
    none, two = Dialogue({}), Dialogue({"get_server_list": "1 2"})
    assert (await none.end_servers(), await two.end_servers()) == (True, False)
    assert (none.asked, two.asked) == (["get_server_list"], ["get_server_list", "shutdown_server 1", "shutdown_server 2"])


GET, GET_OF_7 = "get_default_device_pinned_mem_limit 0", "get_device_pinned_mem_limit 7 0"


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ({GET: "16160M"}, ""),
        ({GET: "16160MB"}, ""),
        ({GET: "15G"}, ""),
        ({GET: "16G"}, "the daemon's memory limit is '16G' after 16160M was set"),
        ({GET: ""}, "the daemon's memory limit is '' after 16160M was set"),
        ({GET: "15G", "get_server_list": "7", GET_OF_7: "15G"}, ""),
        ({GET: "15G", "get_server_list": "7", GET_OF_7: "8G"}, "the memory limit of server 7 is '8G' after 16160M was set"),
        (
            {GET: "15G", "get_server_list": "7", GET_OF_7: "?"},
            f"the memory limit of server 7 is 'no answer to {GET_OF_7}' after 16160M was set",
        ),
    ],
)
async def test_a_limit_is_set_and_read_back(answers: dict[str, str], error: str) -> None:
    daemon = Dialogue(answers)
    if error:
        with pytest.raises(ControlError, match=error):
            await daemon.bound_clients(16160)
    else:
        await daemon.bound_clients(16160)
    asked = ["set_default_device_pinned_mem_limit 0 16160M", GET]
    asked += ["get_server_list", "set_device_pinned_mem_limit 7 0 16160M", GET_OF_7] if "get_server_list" in answers else []
    assert daemon.asked[: len(asked)] == asked


async def test_a_server_that_has_ended_meanwhile_needs_no_limit() -> None:
    class Ends(Dialogue):
        async def ask(self, command: str, within: float = 0.0) -> str:
            answer = await super().ask(command)
            self.answers["get_server_list"] = "8"
            return answer

    await Ends({GET: "15G", "get_server_list": "7 8", GET_OF_7: "?", "get_device_pinned_mem_limit 8 0": "15G"}).bound_clients(16160)


async def test_an_answer_is_that_of_a_program_that_succeeds(daemon: Callable[[str], ControlDaemon]) -> None:
    assert await daemon('read said; echo " $said $CUDA_VISIBLE_DEVICES "; echo more >&2').ask("hello") == f"hello {UUID} \nmore"
    assert len(await daemon("head -c 20000 /dev/zero | tr '\\0' x").ask("hello")) == 16 * 1024
    for script, error in (
        ("echo " + 100 * "x" + "; exit 3", f"'hello' was answered with '{80 * 'x'}' \\(exit status 3\\)"),
        ("echo Unknown command", r"'hello' was answered with 'Unknown command' \(exit status 0\)"),
    ):
        with pytest.raises(ControlError, match=error):
            await daemon(script).ask("hello")


def test_a_program_that_does_not_answer_is_killed(daemon: Callable[[str], ControlDaemon], root: Path, golden: Golden) -> None:
    silent = daemon(f"echo $$ > {root}/pid; exec sleep 600")
    with golden.raised(ControlError):
        asyncio.run(silent.ask("hello", 1.0))
    assert not Path("/proc", (root / "pid").read_text().strip()).exists()


async def test_the_last_words_are_the_two_last_lines_that_are_no_dialogue(golden: Golden) -> None:
    daemon = Dialogue({})
    with golden.raised(ControlError):
        await daemon.ended()
    assert await daemon._last_words() == ""
    output = asyncio.StreamReader()
    lines = ["begin", *["[2026-11-26 17:26:19.692 Control   532] Cmd: x"] * 100, "[2026 x]  first", "second", 100 * "z", "  ", "UI closed"]
    output.feed_data("\n".join(lines).encode())
    output.feed_eof()
    daemon._reading = asyncio.ensure_future(daemon._listen(output))
    golden(await daemon._last_words())
    assert len(daemon._logged) == 4096


async def test_what_cannot_be_removed_from_the_folder_of_pipes_ends_the_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "empty", lambda folder: [100 * "x"] if folder == root / "r/pipe" else [])
    daemon = ControlDaemon("/nonexistent", UUID, root / "r", root / "l")
    with pytest.raises(ControlError, match=f"found 1 files in {root}/r/pipe that cannot be removed \\('{80 * 'x'}'\\): remove them"):
        await daemon.start()
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (root / "r/pipe", root / "r/shm", root / "l")}
    assert modes == {"pipe": 0o755, "shm": 0o1777, "l": 0o755}


@pytest.mark.parametrize(
    ("script", "status"),
    [("exec sleep 600", -15), ("trap '' TERM; while :; do sleep 0.05; done", -9), ("while [ ! -e $0.quit ]; do sleep 0.05; done", 0)],
    ids=["ends at SIGTERM", "ends at SIGKILL", "quits"],
)
async def test_a_daemon_is_told_to_quit_then_terminated_then_killed(
    script: str, status: int, daemon: Callable[[str], ControlDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_QUIT_SECONDS", 1.0)
    made = daemon(f'if [ "$1" = -f ]; then {script}; else read said; if [ "$said" = quit ]; then touch $0.quit; fi; fi')
    await made.stop()
    await made.start()
    began = time.monotonic()
    await made.stop()
    assert time.monotonic() - began > (1.0 if status else 0.0)
    assert await made.ended() == f"status {status}"
    await made.stop()
