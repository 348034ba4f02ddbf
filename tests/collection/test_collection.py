# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The collection as users get it: what is in the release, and that it works from wherever it lies. No lab, no root."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from blocks import lines
from tree import RELEASED, REPOSITORY, copy, files, released

BIN = Path(sys.executable).parent
# What Ansible may use of a collection when it runs, and the runtime's sources.
OFFICIAL = {"meta", "playbooks", "plugins", "roles", "files", "MANIFEST.json", "FILES.json"}
HOSTS = {
    "all": {
        # Nothing listens there.
        "vars": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "gpushare_extender_prot": 1},
        "children": {"kube_control_plane": {"hosts": {"cp1": {}}}, "gpu_nodes": {"hosts": {"gpu1": {}}}},
    }
}
OLD = "an older release"


def ansible(folder: Path, *command: object, **environment: object) -> subprocess.CompletedProcess[str]:
    """Run a program of Ansible in `folder`, at home nowhere and without any setting of the caller's."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    own |= {"HOME": str(folder / "home"), "ANSIBLE_NOCOLOR": "1", **{name: str(value) for name, value in environment.items()}}
    program, *arguments = map(str, command)
    return subprocess.run([str(BIN / program), *arguments], cwd=folder, env=own, capture_output=True, text=True, timeout=240)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """All that it said, without line breaks."""
    return " ".join((done.stdout + done.stderr).split())


def gets_to_preflight(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether site.yml went as far as the verdict on all hosts, in this release's words."""
    words = ["cp1: unreachable: found no connection", "gpu1: unreachable: found no connection", "did you mean gpushare_extender_port?"]
    told = lines(done.stdout)
    return done.returncode == 2 and all(word in told for word in words) and OLD not in said(done)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working directory with an inventory of hosts that do not answer."""
    folder = tmp_path / "elsewhere"
    (folder / "home").mkdir(parents=True)
    (folder / "hosts.yml").write_text(json.dumps(HOSTS))
    return folder


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of this tree, as `git clone` would make it."""
    folder = tmp_path_factory.mktemp("clone") / "gpushare.kubernetes"
    copy(files(), folder)
    return folder


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tarball, built from the work tree itself with all that lies about in it."""
    folder = tmp_path_factory.mktemp("release")
    command = [str(BIN / "ansible-galaxy"), "collection", "build", "--output-path", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    (tarball,) = folder.glob("*.tar.gz")
    return tarball


def install(release: Path, folder: Path) -> Path:
    """Install the tarball alone, below `folder`; the collection's own folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = ansible(folder.parent, "ansible-galaxy", "collection", "install", "--offline", "--no-cache", "-p", folder, release)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "ansible_collections/gpushare/kubernetes"


def install_old(release: Path, folder: Path) -> Path:
    """An older release, which says so when its preflight runs, below `folder`."""
    collection = install(release, folder)
    task = {"name": "Look", "ansible.builtin.fail": {"msg": OLD}}
    (collection / "roles/preflight/tasks/main.yml").write_text(yaml.safe_dump([task]))
    manifest = json.loads((collection / "MANIFEST.json").read_text())
    manifest["collection_info"]["version"] = "0.0.1"
    (collection / "MANIFEST.json").write_text(json.dumps(manifest))
    return folder


def test_the_release_holds_exactly_what_users_need(release: Path) -> None:
    with tarfile.open(release) as archive:
        members = archive.getmembers()
    found = {member.name for member in members if not member.isdir()}
    wanted = set(released())
    assert {path.split("/")[0] for path in wanted} == RELEASED
    assert found - wanted == {"MANIFEST.json", "FILES.json"}
    assert wanted - found == set()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    # The community package's limit is 20 MB, without binaries.
    # Half a megabyte of it are pictures of the docs.
    assert release.stat().st_size < 2_300_000


def test_every_role_of_the_release_is_documented_and_specified(checkout: Path) -> None:
    roles = sorted((checkout / "roles").iterdir())
    missing = [role.name for role in roles for path in ("README.md", "meta/argument_specs.yml") if not (role / path).is_file()]
    assert (missing, len(roles) > 5) == ([], True)


def test_modules_that_share_the_options_of_kubectl_are_one_group(checkout: Path) -> None:
    group = yaml.safe_load((checkout / "meta/runtime.yml").read_text())["action_groups"]["kubectl"]
    modules = {path.stem for path in (checkout / "plugins/modules").glob("*.py") if "- gpushare.kubernetes.kubectl\n" in path.read_text()}
    assert (set(group), len(group)) == (modules, len(modules))


def test_from_a_checkout(checkout: Path, elsewhere: Path) -> None:
    for playbook in ("site.yml", "playbooks/site.yml"):
        done = subprocess.run(
            [BIN / "ansible-playbook", "-i", elsewhere / "hosts.yml", playbook],
            cwd=checkout,
            env={name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")} | {"HOME": str(elsewhere)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert gets_to_preflight(done), done.stdout + done.stderr


def test_from_another_working_directory(checkout: Path, elsewhere: Path) -> None:
    done = ansible(elsewhere, "ansible-playbook", "-i", "hosts.yml", checkout / "site.yml", ANSIBLE_CONFIG=checkout / "ansible.cfg")
    assert gets_to_preflight(done), done.stdout + done.stderr


def test_from_another_working_directory_without_settings_it_says_what_to_set(checkout: Path, elsewhere: Path) -> None:
    done = ansible(elsewhere, "ansible-playbook", "-i", "hosts.yml", checkout / "site.yml")
    assert done.returncode != 0
    assert f"Run it with ANSIBLE_CONFIG={checkout}/ansible.cfg" in said(done), done.stdout + done.stderr


def test_a_checkout_does_not_take_an_older_release_that_is_installed(checkout: Path, elsewhere: Path, release: Path) -> None:
    collections = install_old(release, elsewhere / "home/.ansible/collections")
    # The older one is one that would be used.
    old = ansible(elsewhere, "ansible-playbook", "-i", "hosts.yml", "gpushare.kubernetes.site")
    assert OLD in said(old), old.stdout + old.stderr

    done = ansible(elsewhere, "ansible-playbook", "-i", "hosts.yml", checkout / "site.yml", ANSIBLE_CONFIG=checkout / "ansible.cfg")
    assert gets_to_preflight(done), done.stdout + done.stderr

    rejected = ansible(elsewhere, "ansible-playbook", "-i", "hosts.yml", checkout / "site.yml")
    assert rejected.returncode != 0
    assert f"{collections}/ansible_collections/gpushare/kubernetes" in said(rejected), rejected.stdout + rejected.stderr
    assert f"Run it with ANSIBLE_CONFIG={checkout}/ansible.cfg" in said(rejected)
    assert OLD not in said(rejected)


def test_the_release_alone(release: Path, elsewhere: Path) -> None:
    install(release, elsewhere / "collections")
    done = ansible(
        elsewhere, "ansible-playbook", "-i", "hosts.yml", "gpushare.kubernetes.site", ANSIBLE_COLLECTIONS_PATH=elsewhere / "collections"
    )
    assert gets_to_preflight(done), done.stdout + done.stderr


def test_the_release_beside_a_playbook_of_ones_own(release: Path, elsewhere: Path) -> None:
    install(release, elsewhere / "collections")
    (elsewhere / "own.yml").write_text(yaml.safe_dump([{"import_playbook": "gpushare.kubernetes.site"}]))
    done = ansible(elsewhere, "ansible-playbook", "-i", "hosts.yml", "own.yml")
    assert gets_to_preflight(done), done.stdout + done.stderr


def test_the_official_folders_alone(release: Path, elsewhere: Path) -> None:
    collection = install(release, elsewhere / "collections")
    for path in collection.iterdir():
        if path.name not in OFFICIAL:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    environment = {"ANSIBLE_COLLECTIONS_PATH": elsewhere / "collections"}
    done = ansible(elsewhere, "ansible-playbook", "-i", "hosts.yml", "gpushare.kubernetes.site", **environment)
    assert gets_to_preflight(done), done.stdout + done.stderr

    # The runtime is built out of it as well.
    role = {"name": "gpushare.kubernetes.python_environment"}
    tasks = [{"ansible.builtin.include_role": role}, {"ansible.builtin.debug": {"var": "__python_environment"}}]
    (elsewhere / "runtime.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    variables = {"gpushare_install_dir": str(elsewhere / "opt"), "ansible_python_interpreter": sys.executable}
    done = ansible(
        elsewhere,
        "ansible-playbook",
        "--check",
        "-i",
        "localhost,",
        "-c",
        "local",
        "runtime.yml",
        "-e",
        json.dumps(variables),
        **environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf'"environment": "{re.escape(str(elsewhere))}/opt/[^"]+"', done.stdout), done.stdout
    assert "changed=1" in done.stdout
