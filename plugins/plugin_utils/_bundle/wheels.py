# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The locked wheels for Pythons and architectures other than those of this machine, downloaded by pip with their hashes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ...module_utils._daemon.virtual_environment import without_values
from ...module_utils._formats.credentials import without_credentials
from .archive import sha256_of
from .contents import BundleError
from .lock import Pin, Target, chosen, names

_SECONDS = 900
Say = Callable[[str], None]


def collect_wheels(lock: str, targets: Collection[Target], folder: Path, extra: Sequence[str], say: Say) -> list[Path]:
    """One wheel of each locked package for each target, in a new folder. BundleError. extra: more arguments of pip."""
    folder.mkdir()
    wheels: dict[str, str] = {}
    needed: set[str] = set()
    for target in targets:
        lacking = chosen(lock, target, wheels)[1]
        if lacking:
            say(f"downloading {len(lacking)} wheels for {target}")
            download(target, lacking, folder, extra)
            wheels = {path.name: sha256_of(path) for path in folder.glob("*.whl")}
        found, lacking = chosen(lock, target, wheels)
        if lacking:
            cure = "leave this Python or architecture out of gpushare_bundle_pythons or gpushare_bundle_architectures"
            raise BundleError(f"no wheel of {names(lacking)} for {target}", "one whose hash is in the lock", cure)
        needed.update(found)
    return [folder / name for name in sorted(needed)]


def download(target: Target, wanted: Collection[Pin], folder: Path, extra: Sequence[str] = ()) -> None:
    """A wheel of each of these packages for the target into the folder. BundleError with pip's words, without what `extra` says."""
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(pin.line for pin in wanted))
    abis = [f"cp{target.python.replace('.', '')}", "abi3", "none"]
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp", f"--python-version={target.python}"]
    options += [f"--abi={abi}" for abi in abis] + [f"--platform={platform}" for platform in target.platforms]
    command = [*_pip(), "download", "--disable-pip-version-check", "--no-input", "--quiet", *options, f"--dest={folder}", *extra]
    try:
        done = subprocess.run(
            [*command, "-r", str(requirements)], capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
        words = done.stderr or "it gives no reason" if done.returncode else ""
    except subprocess.TimeoutExpired:
        words = f"it did not end within {_SECONDS} s"
    if words:
        shown = without_credentials(without_values(" ".join(words.split()), extra))[-400:]
        cure = "see its configuration on this machine, or name an index in gpushare_pip_extra_args"
        raise BundleError(f"pip that fails for {target}: {shown}", "the locked packages from a package index", cure)


def _pip() -> list[str]:
    """Of the Python that runs Ansible, else the one of this machine: it downloads for others in any case."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip3") or shutil.which("pip")
    if program is None:
        raise BundleError("no pip on this machine", "pip, which downloads the locked packages", "install it (python3-pip)")
    return [program]
