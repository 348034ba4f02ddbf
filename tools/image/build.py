# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Build the image: download, unpack, compile, pack. Needs apt of Debian 12, and pip."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import tomllib  # type: ignore[import-not-found,unused-ignore]
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.contents import BundleError
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.lock import pins
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.wheels import download
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._wheel import build_wheel, locked_requirements

from gpushare_lab import components, debian
from gpushare_lab.archive import File, Folder, Image, Link, Member, Text, write_image, write_layer
from gpushare_lab.prepare import the_cache

from .layout import (
    COMMAND,
    CTK,
    CTK_NOTICE,
    CTK_NOTICE_FILE,
    ENVIRONMENT,
    MACHINES,
    NAME,
    OF_KUBECTL,
    PACKAGES,
    PYTHON,
    SITE,
    USER,
    kept,
    own_members,
    target,
    wheel_place,
)

SECONDS = 900
# /tmp is the only folder that anybody may write, where the root file system may be written at all.
_FOLDERS: dict[str, Member] = {
    "tmp": Folder(0o1777),
    "proc": Folder(),
    "sys": Folder(),
    "dev": Folder(),
    "run": Folder(),
    "var/run": Link("/run"),
}


def machine() -> str:
    """Debian's name of this machine's architecture."""
    return next((name for name, machine in MACHINES.items() if machine == os.uname().machine), "")


def unpack_packages(archives: Sequence[Path], root: Path) -> None:
    """The kept files of Debian's archives. Their control files stay where scanners look for them in images without dpkg."""
    for archive in archives:
        with tarfile.open(fileobj=io.BytesIO(_run("dpkg-deb", "--fsys-tarfile", str(archive)))) as files:
            for member in files:
                place = kept(member.name)
                if place is None or member.isdir():
                    continue
                target = root / place
                target.parent.mkdir(parents=True, exist_ok=True)
                if member.issym():
                    target.symlink_to(member.linkname)
                elif (source := files.extractfile(member)) is not None:
                    target.write_bytes(source.read())
                    target.chmod(0o755 if member.mode & 0o111 else 0o644)
        control = root / "var/lib/dpkg/status.d" / archive.name.partition("_")[0]
        control.parent.mkdir(parents=True, exist_ok=True)
        control.write_bytes(_run("dpkg-deb", "--field", str(archive)))


def unpack_wheels(wheels: Sequence[Path], root: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as files:
            for name in files.namelist():
                if (place := wheel_place(name)) is not None:
                    target = root / place
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(files.read(name))


def download_wheels(source: Path, architecture: str, folder: Path) -> list[Path]:
    folder.mkdir(parents=True)
    wanted = [*pins(locked_requirements(source).decode(), target(architecture))]
    wanted += [pin for pin in pins(locked_requirements(source, "kubectl").decode(), target(architecture)) if pin.name in OF_KUBECTL]
    try:
        download(target(architecture), wanted, folder)
    except BundleError as error:
        raise SystemExit(f"{error.finding.found}; {error.finding.cure}") from error
    return sorted(folder.glob("*.whl"))


def compile_all(root: Path, packages: Path) -> None:
    """Bytecode that is never compared with its source, by the Python of the packages: other versions write another.

    It is the same for each architecture, so the Python is this machine's. packages: where that one is unpacked.
    """
    libraries = f"{packages}/usr/lib/{MACHINES[machine()]}-linux-gnu"
    linker = next(Path(libraries).glob("ld-linux-*.so.*"))
    python = [str(linker), "--library-path", libraries, f"{packages}/usr/bin/python{PYTHON}", "-B", "-s", "-E"]
    places = [str(root / f"usr/lib/python{PYTHON}"), str(root / SITE)]
    compile_them = ["-m", "compileall", "-q", "-s", str(root), "-p", "/", "--invalidation-mode", "unchecked-hash", *places]
    done = subprocess.run(
        ["env", "-u", "PYTHONPATH", f"PYTHONHOME={packages}/usr", "PYTHONHASHSEED=0", *python[:-1], *compile_them],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"bytecode could not be made: {(done.stdout + done.stderr)[-2000:]}")


def members_of(root: Path) -> dict[str, Member]:
    """All files below a folder, by their names in the image."""
    members: dict[str, Member] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            place = str(path.relative_to(root))
            members[place] = Link(os.readlink(path)) if path.is_symlink() else File(path, path.stat().st_mode & 0o755)
        for name in [one for one in os.listdir(folder) if (Path(folder) / one).is_symlink() and (Path(folder) / one).is_dir()]:
            path = Path(folder) / name
            members[str(path.relative_to(root))] = Link(os.readlink(path))
    return members


def ctk_members(architecture: str) -> dict[str, Member]:
    """NVIDIA's program that writes CDI specs."""
    made = components.nvidia_toolkit if architecture == machine() else partial(components.nvidia_ctk, go_architecture=architecture)
    notice = CTK_NOTICE.format(version=components.NVIDIA_TOOLKIT)
    return {CTK: File(made(the_cache()) / "nvidia-ctk"), CTK_NOTICE_FILE: Text(notice)}


def build(source: Path, architecture: str, work: Path, output: Path) -> tuple[str, str]:
    """Write the image of the runtime at `source`. Returns its reference and its digest. work: a folder to make and remove.

    output: its file; if it is a folder, the files of the image are put there instead, and there is no digest.
    """
    if not machine():
        raise SystemExit(f"this machine is {os.uname().machine}; the image is built on {' or '.join(MACHINES.values())}")
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    root, log = work / "root", work / "apt.log"
    work.mkdir(parents=True)
    try:
        unpack_packages(debian.download(work / "apt", PACKAGES, log, architecture=architecture, updates=True), root)
        compiler = root
        if architecture != machine():
            compiler = work / "compiler"
            unpack_packages(debian.download(work / "apt-of-this-machine", PACKAGES, log, updates=True), compiler)
        unpack_wheels(download_wheels(source, architecture, work / "wheels"), root)
        own = build_wheel(source)
        (work / own.filename).write_bytes(own.content)
        unpack_wheels([work / own.filename], root)
        compile_all(root, compiler)
        reference = f"{NAME}:{project['version']}"
        write_layer(work / "layer.tar", {**_FOLDERS, **members_of(root), **ctk_members(architecture), **own_members(project["scripts"])})
        if output.is_dir():
            with tarfile.open(work / "layer.tar") as layer:
                layer.extractall(output, filter="tar")
            return reference, ""
        labels = {
            "org.opencontainers.image.title": "gpushare",
            "org.opencontainers.image.version": project["version"],
            "org.opencontainers.image.licenses": "Apache-2.0",
        }
        image = Image([reference], work / "layer.tar", COMMAND, ENVIRONMENT, architecture, f"{USER}:{USER}", labels)
        output.parent.mkdir(parents=True, exist_ok=True)
        return reference, write_image(output, image)
    finally:
        shutil.rmtree(work)


def _run(*command: str) -> bytes:
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout
