# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The runtime's environments: which one is wanted, what a killed build leaves, and how one follows the other."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon import virtual_environment as core

ARTIFACT = core.Artifact("0.1.0", "w" * 64, "r" * 64)
PYTHON = core.Interpreter("/usr/bin/python3", "3.11")


class Host:
    """Runs python, venv and pip by name; `fails` is the pip step that does not succeed."""

    def __init__(self, versions: dict[str, str], fails: str = "none") -> None:
        self.versions, self.fails = versions, fails
        self.calls: list[list[str]] = []

    def which(self, name: str) -> str | None:
        return name if name in self.versions else None

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        self.calls.append(argv)
        if argv[1] == "-c":
            return 0, self.versions[argv[0]] + "\n", ""
        if argv[1:3] == ["-m", "venv"]:
            os.makedirs(os.path.join(argv[3], "bin"))
            Path(argv[3], "bin", "python").touch(mode=0o755)
        return (1, "", "no such package") if self.fails in argv else (0, "", "")


@pytest.mark.parametrize(
    ("versions", "wanted", "found"),
    [
        ({"python3": "3.11", "python3.13": "3.13"}, "", "python3"),
        ({"python3": "3.9", "python3.11": "3.11", "python3.12": "3.12"}, "", "python3.12"),
        ({"python3": "3.11", "python3.12": "3.12"}, "python3.12", "python3.12"),
    ],
)
def test_the_distributions_python_is_taken_unless_it_is_too_old(versions: dict[str, str], wanted: str, found: str) -> None:
    host = Host(versions)
    assert core.find_python(host.run, host.which, wanted) == core.Interpreter(found, versions[found])


@pytest.mark.parametrize(("versions", "words"), [({}, "found none"), ({"python3": "3.9"}, "python3 is 3.9")])
def test_no_python_is_rejected_with_what_was_found(versions: dict[str, str], words: str) -> None:
    host = Host(versions)
    with pytest.raises(core.RuntimeEnvError, match=rf"3\.10 or newer is needed.*{words}.*gpushare_python"):
        core.find_python(host.run, host.which, "")


def test_the_name_changes_with_everything_that_is_inside() -> None:
    names = {
        core.environment_name(ARTIFACT, "3.11"),
        core.environment_name(ARTIFACT, "3.12"),
        core.environment_name(core.Artifact("0.1.0", "x" * 64, "r" * 64), "3.11"),
        core.environment_name(core.Artifact("0.1.0", "w" * 64, "x" * 64), "3.11"),
    }
    assert len(names) == 4
    assert all(name.startswith("0.1.0-") for name in names)


def build(environments: core.Environments, name: str, host: Host) -> None:
    environments.build(name, PYTHON, [["install", "one"], ["install", "two"]], host.run, {"version": "0.1.0"})


def test_an_environment_whose_building_stopped_is_not_whole_and_is_built_anew(tmp_path: Path) -> None:
    environments = core.Environments(str(tmp_path / "opt"))
    with pytest.raises(core.RuntimeEnvError, match="no such package"):
        build(environments, "0.1.0-aaaaaaaaaaaa", Host({}, fails="two"))
    assert not environments.is_whole("0.1.0-aaaaaaaaaaaa")
    left_over = tmp_path / "opt" / "0.1.0-aaaaaaaaaaaa" / "left over"
    left_over.touch()
    build(environments, "0.1.0-aaaaaaaaaaaa", Host({}))
    assert environments.is_whole("0.1.0-aaaaaaaaaaaa")
    assert not left_over.exists()
    (tmp_path / "opt" / "0.1.0-aaaaaaaaaaaa" / "bin" / "python").unlink()  # the distribution's Python went away
    assert not environments.is_whole("0.1.0-aaaaaaaaaaaa")


def test_switching_keeps_what_was_in_use_before_and_nothing_older(tmp_path: Path) -> None:
    environments = core.Environments(str(tmp_path))
    (tmp_path / "of somebody else").mkdir()
    (tmp_path / "current.new").symlink_to("killed")
    names = ["0.1.0-aaaaaaaaaaaa", "0.1.0-bbbbbbbbbbbb", "0.2.0-cccccccccccc"]
    for name in names:
        build(environments, name, Host({}))
        before = environments.current()
        environments.switch(name)
        removed = environments.remove_all_but([name, before])
    assert (environments.current(), removed) == (names[2], [names[0]])
    assert sorted(os.listdir(tmp_path)) == [names[1], names[2], "current", "of somebody else"]
    assert os.path.realpath(tmp_path / "current") == str(tmp_path / names[2])


def test_what_a_unit_names_or_a_process_was_started_from_is_not_removed(tmp_path: Path) -> None:
    # Two upgrades that failed: the daemons still run from the first environment, and import from it when they need to.
    environments = core.Environments(str(tmp_path / "opt"))
    names = ["0.1.0-aaaaaaaaaaaa", "0.2.0-bbbbbbbbbbbb", "0.3.0-cccccccccccc", "0.4.0-dddddddddddd", "0.5.0-eeeeeeeeeeee"]
    for name in names:
        build(environments, name, Host({}))
    root = tmp_path / "opt"
    units, proc = tmp_path / "units", tmp_path / "proc"
    units.mkdir()
    (units / "gpushare-pki.service").write_text(f"ExecStart={root}/{names[0]}/bin/gpushare-pki ensure\n")
    (units / "other.service").write_text(f"ExecStart={root}/{names[1]}/bin/x\n")
    (proc / "77").mkdir(parents=True)
    (proc / "77/cmdline").write_bytes(f"{root}/{names[2]}/bin/python\0{root}/current/bin/gpushare-extender\0".encode())
    (proc / "self").mkdir()
    (proc / "self/cmdline").write_bytes(f"{root}/{names[3]}/bin/python".encode())
    # A file of a size that no unit has is not read to its end.
    (units / "gpushare-long.service").write_bytes(b"#" * 1024 * 1024 + f"{root}/{names[4]}/bin/x\n".encode())
    used = environments.in_use(str(units), str(proc))
    assert used == [names[0], names[2]]
    assert environments.remove_all_but([names[4], None, *used]) == [names[1], names[3]]
    assert environments.in_use(str(tmp_path / "none"), str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    "given",
    [
        ["--index-url", "https://deploy:s3cr3t@nexus.corp/simple"],
        ["--index-url=https://deploy:s3cr3t@nexus.corp/simple"],
        ["--index-url", "https://dl.example/s3cr3t/simple/"],
        ["--extra-index-url", "https://dl.example/simple/?token=s3cr3t"],
        ["--proxy", "deploy:s3cr3t@proxy:3128"],
        ["--proxy=deploy:s3cr3t@proxy:3128"],
    ],
)
def test_nothing_that_was_given_to_pip_is_shown_when_it_fails(tmp_path: Path, given: list[str]) -> None:
    def run(argv: list[str]) -> tuple[int, str, str]:
        # As pip does it: with the value in words of its own, far before the end.
        return (1, "", f"Could not fetch {argv[-1]}{'x' * 1990}") if "pip" in argv else (0, "", "")

    with pytest.raises(core.RuntimeEnvError, match=r"-m pip install --\S+.*\*\*\*.* failed with exit status 1: ") as failure:
        core.Environments(str(tmp_path)).build("0.1.0-aaaaaaaaaaaa", PYTHON, [["install", *given]], run, {}, private=given)
    assert "s3cr3t" not in str(failure.value)
    # Which index or proxy it was can be seen.
    assert re.search("nexus.corp|dl.example|--proxy", str(failure.value))


def test_pip_checks_every_hash_and_asks_no_index_for_our_own_wheel() -> None:
    files, (dependencies, own) = core.pip_steps("/tmp/r.txt", "/tmp/x.whl", "h" * 64, ["--index-url", "https://mirror.example"])
    assert files == {"/tmp/x.whl.txt": f"/tmp/x.whl --hash=sha256:{'h' * 64}\n"}
    assert "--require-hashes" in dependencies
    assert "--require-hashes" in own
    assert "--index-url" in dependencies
    assert {"--no-index", "--no-deps"} <= set(own)


def test_the_marker_says_what_is_inside(tmp_path: Path) -> None:
    environments = core.Environments(str(tmp_path))
    build(environments, "0.1.0-aaaaaaaaaaaa", Host({}))
    marker: Any = (tmp_path / "0.1.0-aaaaaaaaaaaa" / core.MARKER).read_text()
    assert '"version": "0.1.0"' in marker
