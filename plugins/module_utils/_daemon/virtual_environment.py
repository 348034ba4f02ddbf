# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runtime's virtual environments under one folder: which one is wanted, whether it is whole, building and switching.

An environment is built where it stays, because its scripts name its path; a marker that is written last tells a whole one from one whose
building was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .._cluster.names import PREFIX
from .._formats.credentials import SHORT, without_credentials
from .._formats.failure import Failure
from .._host.command import Run
from .._host.files import relabel
from .._host.systemd import UNITS

MARKER = ".gpushare-complete.json"
LINK = "current"
OLDEST = (3, 10)
#: The packages that a run with `gpushare_prerequisites: managed` installs where a host has none.
COMES = "3.11"
# The distribution's own first: its venv package is the one that is installed.
CANDIDATES = ("python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10")
# Scheme, user and host of a URL; the rest of it.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,15}://[^/?#]{1,1024})([/?#].*)", re.DOTALL)
# The rest of an address that every index has hides nothing.
_PLAIN = ("", "/simple")
_NAME = re.compile(r"[0-9][0-9A-Za-z.+]*-[0-9a-f]{12}")


class RuntimeEnvError(Failure):
    """An environment cannot be made; the message says what was found and what to do."""


@dataclass(frozen=True)
class Artifact:
    """The contents of the environment, by hash (hexadecimal SHA-256)."""

    version: str
    wheel_sha256: str
    requirements_sha256: str


@dataclass(frozen=True)
class Interpreter:
    """A Python of this host; version such as "3.11"."""

    path: str
    version: str


def find_python(run: Run, which: Callable[[str], Optional[str]], wanted: str) -> Interpreter:
    """The Python to build with: `wanted` if it is not empty, else the first candidate that is new enough."""
    seen = []
    for name in [wanted] if wanted else CANDIDATES:
        path = which(name)
        if path is None:
            continue
        status, out, _dummy = run([path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        version = out.strip()
        if status == 0 and tuple(int(part) for part in version.split(".")) >= OLDEST:
            return Interpreter(path, version)
        seen.append(f"{path} is {version or 'not usable'}")
    raise RuntimeEnvError(
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed on this host; found {', '.join(seen) or 'none'}: "
        "install one from the distribution, or name its path in gpushare_python"
    )


def environment_name(artifact: Artifact, python_version: str) -> str:
    """The folder's name: the version, and a hash over all that the environment is made of."""
    parts = "\n".join([artifact.wheel_sha256, artifact.requirements_sha256, python_version])
    return f"{artifact.version}-{hashlib.sha256(parts.encode()).hexdigest()[:12]}"


class Environments:
    """The environments under `root` and the link `current` to the one in use."""

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str) -> str:
        """Absolute path of an environment, whether it exists or not."""
        return os.path.join(self.root, name)

    def current(self) -> Optional[str]:
        """The name of the environment in use, None if there is none."""
        try:
            return os.path.basename(os.readlink(self.path(LINK)))
        except OSError:
            return None

    def is_whole(self, name: str) -> bool:
        """Whether it was built to the end and its interpreter is still there."""
        path = self.path(name)
        return os.path.isfile(os.path.join(path, MARKER)) and os.access(os.path.join(path, "bin", "python"), os.X_OK)

    def build(
        self,
        name: str,
        python: Interpreter,
        steps: Sequence[Sequence[str]],
        run: Run,
        contents: Mapping[str, Any],
        private: Sequence[str] = (),
    ) -> None:
        """Make a new one: a virtual environment, then each step (arguments of its pip), then the marker.

        private: arguments among them whose values no error shows.
        """
        path = self.path(name)
        if os.path.lexists(path):
            shutil.rmtree(path)
        os.makedirs(self.root, exist_ok=True)
        pip = [os.path.join(path, "bin", "python"), "-m", "pip"]
        self._must(run, [python.path, "-m", "venv", path], "; install the distribution's package with Python's venv (python3-venv)")
        for step in steps:
            self._must(run, [*pip, *step], "", private)
        # The programs in its bin are started by systemd.
        relabel(path, recursive=True)
        temporary = os.path.join(path, MARKER + ".new")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(dict(contents), file, indent=2, sort_keys=True)
        os.replace(temporary, os.path.join(path, MARKER))

    def switch(self, name: str) -> None:
        """Switch the link to it. A process that follows the link sees the old one or the new one, never none."""
        temporary = self.path(LINK + ".new")
        if os.path.lexists(temporary):
            os.unlink(temporary)
        os.symlink(name, temporary)
        os.replace(temporary, self.path(LINK))

    def in_use(self, units: str = UNITS, proc: str = "/proc") -> List[str]:
        """The names of those that a unit starts something from, or that a process was started from: it may still import from there."""
        texts = [_text(os.path.join(units, name)) for name in _names(units) if name.startswith(PREFIX)]
        texts += [_text(os.path.join(proc, name, "cmdline")) for name in _names(proc) if name.isdigit()]
        named = re.compile(re.escape(os.path.join(self.root, "").encode()) + b"(" + _NAME.pattern.encode() + b")/")
        return sorted({found.decode() for text in texts for found in named.findall(text)})

    def remove_all_but(self, kept: Sequence[Optional[str]]) -> List[str]:
        """Remove the environments that are not in `kept`; nothing else in the folder is touched. The names removed."""
        removed = []
        for name in sorted(os.listdir(self.root)):
            if is_environment(name) and name not in kept:
                shutil.rmtree(self.path(name))
                removed.append(name)
        return removed

    def _must(self, run: Run, argv: List[str], cure: str, private: Sequence[str] = ()) -> None:
        status, out, err = run(argv)
        if status != 0:
            # Cut after the values are hidden: half a password is not found any more.
            words = without_credentials(without_values((err or out).strip(), private))[-2000:]
            command = without_credentials(without_values(" ".join(argv), private))
            raise RuntimeEnvError(f"{command} failed with exit status {status}: {words}{cure}")


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1024 * 1024)
    except OSError:
        return b""


def without_values(text: str, arguments: Sequence[str]) -> str:
    """The text without the values of these arguments of pip, except for the hosts of URLs: a proxy may be given without a scheme, a
    token may stand in a path, and pip names paths by themselves."""
    hidden = {}
    for argument in arguments:
        value = argument.partition("=")[2] if argument.startswith("-") else argument
        url = _URL.fullmatch(value)
        if url is None:
            hidden[value] = "***"
        elif url.group(2).rstrip("/") not in _PLAIN:
            hidden[value] = f"{url.group(1)}/***"
            hidden[url.group(2).rstrip("/")] = "/***"
    for value in sorted((value for value in hidden if len(value) > SHORT), key=len, reverse=True):
        text = text.replace(value, hidden[value])
    return text


def is_environment(name: str) -> bool:
    """Whether a folder of this name is one of our environments."""
    return bool(_NAME.fullmatch(name))


def pip_steps(
    requirements_path: str, wheel_path: str, wheel_sha256: str, extra_args: Sequence[str]
) -> Tuple[Dict[str, str], List[List[str]]]:
    """The pip calls that fill an environment, and the files that they read besides (path to content).

    Every file that pip installs has its hash checked; nothing is compiled from sources, whose build tools have none.
    """
    own = wheel_path + ".txt"
    common = ["install", "--disable-pip-version-check", "--no-input", "--quiet", "--require-hashes"]
    return (
        {own: f"{wheel_path} --hash=sha256:{wheel_sha256}\n"},
        [[*common, "--only-binary=:all:", *extra_args, "-r", requirements_path], [*common, "--no-index", "--no-deps", "-r", own]],
    )
