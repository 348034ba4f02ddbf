# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role nvidia_container_toolkit on hosts with real apt, dnf, zypper and rpm, and NVIDIA's real nvidia-ctk behind small packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.make import Recipe, make
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.packages import PackagesOf

from gpushare_lab.components import nvidia_toolkit
from packages.machine import OTHERS, SET, Machine, cache, inside
from tree import REPOSITORY

CONFIG = "etc/nvidia-container-runtime/config.toml"
_RECAP = re.compile(r"ok=(\d+) +changed=(\d+) +unreachable=0 +failed=(\d+)")


class Role:
    """Runs the role there, over a shell that starts in the host's root."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine, self._folder = machine, folder
        folder.mkdir()
        shell = folder / "shell"
        shell.write_text(f'#!/bin/sh\nshift\nexec chroot {machine.root} /bin/sh -c "$@"\n')
        # Ansible names it again for what it runs there.
        there = machine.root / str(shell).lstrip("/")
        there.parent.mkdir(parents=True)
        there.write_text('#!/bin/sh\nexec /bin/sh "$@"\n')
        for path in (shell, there):
            path.chmod(0o755)
        # Files go there without the shell.
        self._remote = folder / "remote"
        (machine.root / str(self._remote).lstrip("/")).mkdir()
        self._remote.symlink_to(machine.root / str(self._remote).lstrip("/"))
        self.variables = {
            # A root of its own is not a machine of its own.
            "gpushare_node_name": os.uname().nodename.lower(),
            "gpushare_toolkit_state": "managed",
            "gpushare_toolkit_version": "1.18.0",
            "gpushare_toolkit_minimum": "1.17.8",
            "gpushare_toolkit_repository": machine.repository()["url"],
            "gpushare_toolkit_key": machine.repository()["key"],
            "gpushare_toolkit_key_fingerprints": machine.repository()["fingerprints"],
            "gpushare_device_strategy": "volume-mounts",
        }

    def __call__(self, *options: str, tasks: str = "main", fails: bool = False, **variables: Any) -> tuple[int, str]:
        """How many tasks changed something, and the output."""
        play = {
            "hosts": "all",
            "gather_facts": False,
            "vars": {**self.variables, **variables},
            "tasks": [{"ansible.builtin.include_role": {"name": "gpushare.kubernetes.nvidia_container_toolkit", "tasks_from": tasks}}],
        }
        (self._folder / "play.yml").write_text(yaml.safe_dump([play]))
        env = dict(os.environ, ANSIBLE_CONFIG=str(REPOSITORY / "ansible.cfg"), ANSIBLE_EXECUTABLE=str(self._folder / "shell"))
        env.update(ANSIBLE_PIPELINING="1", ANSIBLE_NOCOLOR="1", ANSIBLE_REMOTE_TMP=str(self._remote))
        argv: list[str | Path] = [
            Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            "node,",
            "-c",
            "local",
            "-e",
            "ansible_python_interpreter=/usr/bin/python3",
        ]
        done = subprocess.run(
            [*argv, *options, self._folder / "play.yml"], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=900, check=False
        )
        assert (done.returncode != 0) == fails, done.stdout[-6000:] + done.stderr[-2000:]
        recap = _RECAP.search(done.stdout)
        assert recap, done.stdout
        return int(recap.group(2)), done.stdout


@pytest.fixture
def role(machine: Machine, tmp_path: Path) -> Role:
    real = machine.root / "usr/local/lib/nvidia-ctk"
    shutil.copy(nvidia_toolkit(cache()) / "nvidia-ctk", real)
    return Role(machine, tmp_path / "role")


def test_installed_configured_and_taken_back(role: Role) -> None:
    machine = role.machine
    before = machine.files()
    changed, out = role("--check", "--diff")
    assert changed == 2
    assert "+Signed-By" in out or "+gpgkey" in out
    assert machine.tree() == before
    assert role()[0] == 2
    assert machine.versions(*SET, *OTHERS) == ["1.18.0-1"] * 4
    config = (machine.root / CONFIG).read_text()
    # NVIDIA's nvidia-ctk has made the file, and reads it as it was meant.
    read = machine.run("nvidia-ctk", "config")
    for line in ("accept-nvidia-visible-devices-envvar-when-unprivileged = false", "accept-nvidia-visible-devices-as-volume-mounts = true"):
        assert f"\n{line}\n" in f"\n{config}"
        assert f"\n{line}\n" in f"\n{read}"
    assert '#swarm-resource = "DOCKER_RESOURCE_GPU"' in config
    after = machine.tree()
    assert role()[0] == 0
    assert machine.tree() == after
    # Kubelet hands GPUs over by the environment again: what was set is taken back.
    assert role(gpushare_device_strategy="envvar")[0] == 1
    assert "\naccept-nvidia" not in (machine.root / CONFIG).read_text()
    assert role()[0] == 1
    role(tasks="restore")
    machine.removed()
    left = {name: content for name, content in machine.files().items() if name not in before}
    # The packages do not take away the file that they make.
    assert list(left) in ([CONFIG], [])
    assert "accept-nvidia-visible-devices-as-volume-mounts = true" not in "".join(content.decode() for content in left.values())


# As on a machine with a network that makes a bundle: `collect` asks the package manager that is there.
_DOWNLOAD = """
import sys
from pathlib import Path
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.packages import PackagesOf, collect
Path("/srv/scratch").mkdir(parents=True)
for path in collect(PackagesOf(sys.argv[1], "x86_64", names=tuple(sys.argv[2:])), Path("/srv/scratch")):
    print(path)
"""
_OTHERS = {"apt": "debian-13", "dnf": "rhel-8", "zypper": "suse-16"}
_SYSTEMS = {"apt": "debian-12", "dnf": "rhel-9", "zypper": "suse-15"}


def downloaded(machine: Machine) -> list[Path]:
    """The set in one version, from the repository, which the machine knows only meanwhile."""
    url = machine.repository()["url"]
    files = {
        "apt": ("etc/apt/sources.list.d/x.list", f"deb [trusted=yes] {url} ./\n"),
        "dnf": ("etc/yum.repos.d/x.repo", f"[x]\nname=x\nbaseurl={url}\ngpgcheck=0\n"),
        "zypper": ("etc/zypp/repos.d/x.repo", f"[x]\nname=x\nbaseurl={url}\nenabled=1\ngpgcheck=0\n"),
    }
    name, text = files[machine.kind]
    (machine.root / name).write_text(text)
    if machine.kind == "apt":
        machine.run("apt-get", "update", "-o", "Dir::Etc::sourcelist=/dev/null")
    equals = "-" if machine.kind == "dnf" else "="
    names = [f"{one}{equals}1.18.0-1" for one in (*SET, *OTHERS)]
    found = inside(
        machine.root, ["python3", "-c", _DOWNLOAD, _SYSTEMS[machine.kind], *names], PYTHONPATH="/libraries:/repository/.collections"
    ).stdout
    (machine.root / name).unlink()
    return [machine.root / line.lstrip("/") for line in found.split()]


@pytest.mark.timeout(900)
def test_installed_from_a_bundle_without_a_repository(role: Role, tmp_path: Path) -> None:
    machine = role.machine
    folder = tmp_path / "packages"
    folder.mkdir()
    for path in downloaded(machine):
        shutil.copy(path, folder)
    assert len(list(folder.iterdir())) == 4

    def bundle(system: str) -> str:
        packages = (PackagesOf(system, "x86_64", str(folder)),)
        return str(make(Recipe(REPOSITORY, tmp_path / system, (), (), packages=packages), lambda _words: None).bundle)

    machine.server.stop()
    before = machine.files()
    settings: dict[str, Any] = {"gpushare_toolkit_repository": "auto", "gpushare_bundle": bundle(_SYSTEMS[machine.kind])}
    try:
        seen = role(fails=True, **{**settings, "gpushare_bundle": bundle(_OTHERS[machine.kind])})[1]
        assert f"no packages for {_SYSTEMS[machine.kind]} on x86_64" in seen, seen
        assert role("--check", **settings)[0] == 2
        assert machine.files() == before
        assert role(**settings)[0] == 2
        assert machine.versions(*SET, *OTHERS) == ["1.18.0-1"] * 4
        assert role(**settings)[0] == 0
        assert list((machine.root / "var/tmp").glob("gpushare-*")) == []
    finally:
        machine.server.start()


def test_what_is_there_must_do(role: Role) -> None:
    machine = role.machine
    out = role(fails=True, gpushare_toolkit_state="present")[1]
    assert "expected NVIDIA's container toolkit" in out.replace("\\'", "'")
    machine.packages("1.17.7")
    out = role(fails=True, gpushare_toolkit_state="present")[1]
    assert "1.17.7, expected 1.17.8 or newer" in out
    assert "CVE-2025-23266" in out
    before = machine.tree()
    assert role(gpushare_toolkit_state="unmanaged")[0] == 0
    assert machine.tree() == before
    # An upgrade of the set that somebody else has installed.
    role()
    assert machine.versions(*SET, *OTHERS) == ["1.18.0-1"] * 4
    assert "would be 1.17.7-1, expected 1.17.8 or newer" in role(fails=True, gpushare_toolkit_version="1.17.7")[1]


@pytest.mark.parametrize("machine", ["apt"], indirect=True)
def test_dgx_os_brings_its_own(role: Role) -> None:
    (role.machine.root / "etc/dgx-release").write_text('DGX_NAME="DGX Server"\n')
    before = role.machine.tree()
    assert role()[0] == 0
    assert role.machine.tree() == before
