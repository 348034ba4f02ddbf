# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Packages at exact versions on hosts with real package managers: from nothing over upgrades and failures to as it was."""

from __future__ import annotations

import time
from typing import Any

import pytest

from packages.machine import SET, Machine, kill_all


def upgrade(machine: Machine) -> None:
    """What an administrator, or an unattended upgrade, does."""
    if machine.kind == "apt":
        machine.run("apt-get", "-qy", "full-upgrade")
    elif machine.kind == "dnf":
        machine.run("dnf", "-qy", "upgrade")
    else:
        machine.run("zypper", "--non-interactive", "update")


def test_from_nothing_over_an_upgrade_to_as_it_was(machine: Machine) -> None:
    before = machine.files()
    predicted = machine.packages("1.17.8", check_mode=True)
    assert machine.tree() == before
    assert predicted["changed"]
    assert machine.versions() == ["", ""]
    done = machine.packages("1.17.8")
    for key in ("changed", "steps", "versions", "held", "files", "diff"):
        assert done[key] == predicted[key], key
    assert machine.versions() == ["1.17.8-1", "1.17.8-1"]
    # The repository has 1.18.0, which nobody asked for.
    upgrade(machine)
    assert machine.versions() == ["1.17.8-1", "1.17.8-1"]
    after = machine.tree()
    machine.server.requests.clear()
    second = machine.packages("1.17.8")
    assert not second["changed"]
    assert machine.tree() == after
    # Only its key was fetched.
    assert machine.server.requests == ["/first.asc"]
    assert machine.packages("1.18.0", check_mode=True)["steps"] == machine.packages("1.18.0")["steps"] != []
    upgrade(machine)
    assert machine.versions() == ["1.18.0-1", "1.18.0-1"]
    assert not machine.packages("1.18.0")["changed"]
    machine.packages("1.17.7")
    assert machine.versions() == ["1.17.7-1", "1.17.7-1"]
    predicted, done = machine.removed(check_mode=True), machine.removed()
    assert predicted["steps"] == done["steps"]
    assert not done["left"]
    assert machine.versions() == ["", ""]
    assert machine.files() == before
    assert not machine.removed()["changed"]


def test_a_set_that_was_there_before_goes_back_to_its_version(machine: Machine) -> None:
    machine.packages("1.17.7")
    (journal,) = machine.root.glob("var/lib/gpushare/journal")
    for entry in journal.iterdir():
        entry.unlink()
    if machine.kind == "apt":
        machine.run("apt-mark", "unhold", *SET)
    before = machine.files()
    machine.packages("1.18.0")
    assert machine.versions() == ["1.18.0-1", "1.18.0-1"]
    assert machine.removed()["left"] == []
    assert machine.versions() == ["1.17.7-1", "1.17.7-1"]
    if machine.kind == "apt":
        assert machine.run("apt-mark", "showhold") == ""
        assert machine.files() == before


def test_a_repository_that_is_down_changes_nothing_and_is_not_needed_by_a_host_that_has_all(machine: Machine) -> None:
    # The key as text, as one does without a way out.
    key = {**machine.repository(), "key": (machine.server.folder / "first.asc").read_text()}
    before = machine.tree()
    machine.server.stop()
    rejected = machine.packages("1.17.8", repository=key)
    assert rejected["failed"]
    assert "nothing was changed" in rejected["msg"]
    assert machine.tree() == before
    machine.server.start()
    machine.packages("1.17.8", repository=key)
    machine.server.stop()
    assert not machine.packages("1.17.8", repository=key)["changed"]
    before = machine.tree()
    assert "nothing was changed" in machine.packages("1.18.0", repository=key)["msg"]
    assert machine.tree() == before
    assert machine.versions() == ["1.17.8-1", "1.17.8-1"]
    machine.server.start()


def test_a_key_that_is_not_the_expected_one(machine: Machine) -> None:
    before = machine.tree()
    for repository, words in (
        # The file has another key than the fingerprint.
        ({**machine.repository("second"), "fingerprints": [machine.fingerprints["first"]]}, machine.fingerprints["second"]),
        # A key beside the expected one.
        ({**machine.repository("both"), "fingerprints": [machine.fingerprints["first"]]}, machine.fingerprints["second"]),
        # The key is the expected one, and the repository is signed with another.
        (machine.repository(folder=f"{machine.family}-second"), "cannot use the repository"),
        ({**machine.repository(), "key": machine.server.url("none.asc")}, "404"),
    ):
        rejected = machine.packages(
            "1.17.8", repository={**machine.repository(), "fingerprints": [machine.fingerprints["first"]], **repository}
        )
        assert rejected["failed"]
        assert words in rejected["msg"]
        assert "nothing was changed" in rejected["msg"]
        assert machine.tree() == before


def test_a_rotated_key(machine: Machine) -> None:
    machine.packages("1.17.8")
    folder = f"{machine.family}-second"
    done = machine.packages("1.17.8", repository=machine.repository("both", folder))
    assert len(done["files"]) == 2
    assert done["steps"] == []
    assert machine.versions() == ["1.17.8-1", "1.17.8-1"]
    machine.packages("1.18.0", repository=machine.repository("second", folder))
    assert machine.versions() == ["1.18.0-1", "1.18.0-1"]
    machine.removed()
    assert not [name for name in machine.files() if "gpushare" in name]


def test_another_distribution_and_a_version_that_there_is_not(machine: Machine) -> None:
    before = machine.tree()
    empty = machine.repository(folder=f"{machine.family}-empty")
    rejected = machine.packages("1.17.8", repository=empty)
    assert "which may be one of another distribution" in rejected["msg"]
    rejected = machine.packages("1.17.9")
    assert "which has 1.18.0-1, 1.17.8-1, 1.17.7-1" in rejected["msg"]
    rejected = machine.packages("1.17.7", minimum="1.17.8")
    assert "expected 1.17.8 or newer" in rejected["msg"]
    assert machine.tree() == before


def test_a_folder_of_packages_needs_no_repository(machine: Machine) -> None:
    folder = machine.root / "media"
    source, suffix = ("deb", "deb") if machine.kind == "apt" else ("rpm/noarch", "rpm")
    for path in (machine.server.folder / source).glob(f"*.{suffix}"):
        (folder / path.name).write_bytes(path.read_bytes())
    machine.server.stop()
    options: dict[str, Any] = {"repository": None, "folder": "/media"}
    assert machine.packages("1.17.8", check_mode=True, **options)["changed"]
    machine.packages("1.17.8", **options)
    assert machine.versions() == ["1.17.8-1", "1.17.8-1"]
    assert not machine.packages("1.17.8", **options)["changed"]
    (folder / f"broken.{suffix}").write_text("x")
    assert "remove it from the folder" in machine.packages("1.18.0", **options)["msg"]
    (folder / f"broken.{suffix}").unlink()
    machine.removed()
    assert machine.versions() == ["", ""]
    machine.server.start()


@pytest.mark.parametrize("machine", ["apt"], indirect=True)
def test_the_repository_of_nvidia_docker_is_taken_over(machine: Machine) -> None:
    """As NVIDIA's instructions of 2019 made it, with a key of apt-key; apt rejects one repository with two keys."""
    old = machine.root / "etc/apt/sources.list.d/nvidia-docker.list"
    old.write_text(
        "deb https://nvidia.github.io/libnvidia-container/stable/debian10/$(ARCH) /\n"
        "deb https://nvidia.github.io/nvidia-docker/debian10/$(ARCH) /\n"
    )
    other = machine.root / "etc/apt/sources.list.d/other.list"
    other.write_text(f"# mine\ndeb [trusted=yes] {machine.server.url('deb')} /\ndeb [trusted=yes] {machine.server.url('deb-empty')} /\n")
    before = machine.files()
    former = ["https://nvidia.github.io/nvidia-docker", "https://nvidia.github.io/libnvidia-container"]
    machine.packages("1.17.8", repository={**machine.repository(), "replaces": former})
    assert not old.exists()
    assert other.read_text().count("\ndeb ") == 1
    # apt does not work at all where it sees two keys.
    machine.run("apt-get", "-q", "--print-uris", "update")
    machine.removed()
    assert machine.files() == before


@pytest.mark.parametrize("machine", ["apt"], indirect=True)
def test_killed_in_the_middle_of_dpkg(machine: Machine) -> None:
    arguments: dict[str, Any] = {"packages": [{"name": "slow", "version": "1.0"}], "repository": machine.repository()}
    (machine.root / "tmp/hang").touch()
    with machine.start("gpushare_packages", owner="toolkit", **arguments) as running:
        deadline = time.monotonic() + 120
        while not (machine.root / "tmp/hangs").exists():
            assert time.monotonic() < deadline
            assert running.poll() is None
            time.sleep(0.1)
        kill_all(machine.root)
    (machine.root / "tmp/hang").unlink()
    assert machine.run("dpkg", "--audit") != ""
    done = machine.packages("", **arguments)
    assert not done.get("failed"), done
    assert machine.run("dpkg", "--audit") == ""
    assert machine.versions("slow") == ["1.0-1"]
    machine.removed()
    assert machine.versions("slow") == [""]
