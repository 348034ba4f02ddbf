# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Hosts that may be thrown away: with apt, with dnf and rpm, and with zypper and rpm. Not booted, not in a network.

Below all is the root file system of the lab's nodes, and on it what builds packages and repositories, or zypper. dnf, zypper and rpm are
Debian's own builds of the programs that RHEL and SUSE have; the os-release of such a host says that it is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ansible  # type: ignore[import-untyped]

from gpushare_lab.cache import Cache
from gpushare_lab.debian import root_file_system
from gpushare_lab.overlay import FileSystem
from tree import REPOSITORY

BUILDERS = ("apt-utils", "gnupg", "createrepo-c", "dnf", "rpm", "dnf-plugins-core")
#: zypper does not stand beside the plugins of dnf.
ZYPPER = ("gnupg", "rpm", "zypper")
COLLECTION = "ansible_collections.gpushare.kubernetes"
#: The packages, and the versions that the repository has of each. The first depends on the second by exact version.
SET, VERSIONS = ("nvidia-container-toolkit", "nvidia-container-toolkit-base"), ("1.17.7", "1.17.8", "1.18.0")
OTHERS = ("libnvidia-container-tools", "libnvidia-container1")
_OS_RELEASES = {
    "dnf": 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.5"\nPRETTY_NAME="Rocky Linux 9.5"\n',
    "zypper": 'ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"\nPRETTY_NAME="SUSE Linux Enterprise Server 15 SP6"\n',
}
#: Where SUSE has rpm's database; Debian's rpm keeps one for each user.
_DATABASE = "/usr/lib/sysimage/rpm"
#: Debian's build of dnf comes with plugins that EL9 has not, or not switched on.
_PLUGINS = ("local", "copr", "debuginfo-install", "post-transaction-actions")
_BUILD = REPOSITORY / "tests/packages/build.sh"
_SECONDS = 300.0
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


def layers(cache: Cache, programs: Sequence[str]) -> list[Path]:
    """A root file system with these packages of Debian; the uppermost layer first."""
    below = root_file_system(cache)

    def build(folder: Path) -> None:
        made = FileSystem(folder)
        made.describe([below], "")
        made.mount()
        try:
            shutil.copy("/etc/resolv.conf", made.root / "etc/resolv.conf")
            with chrooted(made.root):
                inside(made.root, ["apt-get", "-qy", "update"])
                inside(made.root, ["apt-get", "-qy", "install", "--no-install-recommends", *programs])
            for archive in made.root.glob("var/cache/apt/archives/*.deb"):
                archive.unlink()
        finally:
            made.unmount()

    return [cache.entry("packages-root", "bookworm", {"builders": " ".join(programs), "below": below.parent.name}, build) / "upper", below]


@contextmanager
def chrooted(root: Path) -> Iterator[None]:
    """With what programs expect of a running system."""
    for name in ("proc", "dev"):
        subprocess.run(["mount", "--bind", f"/{name}", root / name], check=True)
    try:
        yield
    finally:
        for name in ("dev", "proc"):
            subprocess.run(["umount", "--lazy", root / name], check=True)


def inside(root: Path, argv: Sequence[str], given: str = "", check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the root, without what this process has in its environment."""
    done = subprocess.run(
        ["chroot", root, *argv], input=given, env={**ENVIRONMENT, **env}, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(argv)}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def kill_all(root: Path) -> None:
    """End every process of this root at once, as when a host loses its power."""
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and Path(os.readlink(path / "root")) == root:
                os.kill(int(path.name), signal.SIGKILL)


def disguise(root: Path, kind: str, os_release: str) -> None:
    """Let the root be one of the distribution, as far as dnf, zypper and rpm are concerned."""
    (root / "etc/os-release").unlink()
    (root / "etc/os-release").write_text(os_release)
    for folder in ("etc/yum.repos.d", "etc/pki/rpm-gpg") if kind == "dnf" else ("etc/zypp/repos.d", "etc/rpm", _DATABASE.lstrip("/")):
        (root / folder).mkdir(parents=True)
    if kind == "dnf":
        for name in _PLUGINS:
            (root / f"etc/dnf/plugins/{name}.conf").write_text("[main]\nenabled = false\n")
    else:
        (root / "etc/rpm/macros").write_text(f"%_dbpath {_DATABASE}\n")
        shutil.rmtree(root / "var/lib/rpm", ignore_errors=True)
        (root / "var/lib/rpm").symlink_to(f"../..{_DATABASE}")


class Server:
    """Files over HTTP on this machine; can be down. port: the same all the time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.requests: list[str] = []
        self.start()

    def start(self) -> None:
        server = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_arguments: object) -> None:
                server.requests.append(self.path)

        self._httpd = ThreadingHTTPServer(("127.0.0.1", self.port), partial(Handler, directory=str(self.folder)))
        self.port = self._httpd.server_address[1]
        threading.Thread(target=self._httpd.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"


class Machine:
    """One host. kind: "apt", "dnf" or "zypper"; server: has both repositories, with the keys of first and second beside them."""

    def __init__(self, kind: str, root: Path, server: Server, fingerprints: Mapping[str, str]) -> None:
        self.kind, self.root, self.server, self.fingerprints = kind, root, server, fingerprints
        self.family = "deb" if kind == "apt" else "rpm"
        if kind == "apt":
            return
        disguise(root, kind, _OS_RELEASES[kind])
        if kind == "zypper":
            # No SUSE is without a package, and libsolv's rpmdb2solv takes a database without one for an error.
            shutil.copy(server.folder / "rpm/noarch/slow-1.0-1.noarch.rpm", root / "tmp/base.rpm")
            self.run("rpm", "--install", "--force-debian", "/tmp/base.rpm")

    def run(self, *argv: str, check: bool = True) -> str:
        return inside(self.root, argv, check=check).stdout

    def module(self, name: str, check_mode: bool = False, **arguments: Any) -> dict[str, Any]:
        """What the module of this collection answers there."""
        with self.start(name, check_mode, **arguments) as running:
            out, err = running.communicate(timeout=_SECONDS)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        assert lines, f"{name} answers nothing: {out[-2000:]} {err[-3000:]}"
        return dict(json.loads(lines[-1]))

    def start(self, name: str, check_mode: bool = False, **arguments: Any) -> subprocess.Popen[str]:
        """The same, without waiting for it."""
        given = {"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check_mode, "_ansible_diff": True}}
        (self.root / "tmp/arguments.json").write_text(json.dumps(given))
        program = (
            "import runpy; from ansible.module_utils import basic; basic._ANSIBLE_ARGS = open('/tmp/arguments.json', 'rb').read(); "
            f"basic._ANSIBLE_PROFILE = 'legacy'; runpy.run_module('{COLLECTION}.plugins.modules.{name}', run_name='__main__')"
        )
        env = {"PYTHONPATH": "/libraries:/repository/.collections", "PYTHONDONTWRITEBYTECODE": "1"}
        argv: list[str | Path] = ["chroot", self.root, "python3", "-c", program]
        return subprocess.Popen(argv, env={**ENVIRONMENT, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def repository(self, key: str = "first", folder: str = "") -> dict[str, Any]:
        """The repository option of the module."""
        return {
            "name": "toolkit",
            "url": self.server.url(folder or self.family),
            "key": self.server.url(f"{key}.asc"),
            "fingerprints": [self.fingerprints[key]] if key in self.fingerprints else list(self.fingerprints.values()),
            "package_signatures": False,
        }

    def packages(self, version: str, check_mode: bool = False, **options: Any) -> dict[str, Any]:
        """The module gpushare_packages for the set in this version."""
        arguments = {"packages": [{"name": name} for name in SET], "version": version, "repository": self.repository(), **options}
        return self.module("gpushare_packages", check_mode, owner="toolkit", **arguments)

    def removed(self, check_mode: bool = False, **options: Any) -> dict[str, Any]:
        return self.module("gpushare_packages", check_mode, state="absent", **options)

    def versions(self, *names: str) -> list[str]:
        """Of the set, or of these packages, as the package manager says; "" for one that is not installed."""
        return [self._version(name) for name in names or SET]

    def _version(self, name: str) -> str:
        if self.kind == "apt":
            found = self.run("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Version}", name, check=False)
            return found.partition(" ")[2] if found.startswith("installed ") else ""
        found = self.run("rpm", "--query", "--queryformat", "%{VERSION}-%{RELEASE}", name, check=False)
        return "" if "not installed" in found else found

    def files(self) -> dict[str, bytes]:
        """What an administrator may have written: /etc, without what package managers and the system write there."""
        passed = ("etc/ld.so.cache", "etc/resolv.conf", "etc/hostname", "etc/mtab")
        paths = (path for path in (self.root / "etc").rglob("*") if path.is_file() and not path.is_symlink())
        return {name: path.read_bytes() for path in paths if (name := str(path.relative_to(self.root))) not in passed}

    def tree(self) -> dict[str, bytes]:
        """The same, with our journal."""
        journal = self.root / "var/lib/gpushare"
        return {**self.files(), **{str(path): path.read_bytes() for path in journal.rglob("*") if path.is_file()}}


@contextmanager
def mounted(folder: Path, below: Sequence[Path]) -> Iterator[Path]:
    """A root file system of its own, with the collection and Ansible's modules in it."""
    system = FileSystem(folder)
    system.describe(list(below), "")
    system.mount()
    libraries = Path(ansible.__file__).parents[1]
    binds = {"repository": REPOSITORY, "libraries": libraries}
    try:
        with chrooted(system.root):
            for name, source in binds.items():
                (system.root / name).mkdir()
                subprocess.run(["mount", "--bind", source, system.root / name], check=True)
            try:
                yield system.root
            finally:
                # gpg leaves an agent.
                kill_all(system.root)
                for name in binds:
                    subprocess.run(["umount", "--lazy", system.root / name], check=True)
    finally:
        system.unmount()


def build(root: Path) -> dict[str, str]:
    """Keys, packages and repositories below /srv of this root; the fingerprints of the keys by name."""
    inside(root, ["bash", "-s", *VERSIONS], _BUILD.read_text())
    return dict(line.split() for line in (root / "srv/fingerprints").read_text().splitlines())


def cache() -> Cache:
    from gpushare_lab.places import cache_root

    return Cache(cache_root(os.environ))


def possible() -> str:
    """Why these tests cannot run here; "" if they can."""
    if os.geteuid() != 0:
        return "needs root"
    return "" if sys.platform == "linux" else "needs Linux"
