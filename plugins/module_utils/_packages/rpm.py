# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The common part of dnf and zypper: rpm's database, files of packages, and the folder of repositories."""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, Optional, Sequence

from .._change.undo import Rejected
from .._formats.answers import LeftThing
from .._host.command import RunWithin
from .._host.files import read_state
from . import sources
from .folder import package_files
from .model import QUESTION_SECONDS, STEP_SECONDS, PackageManager, PackageSet, Repository, last_words

_KEY, _MOST_KEYS = "gpg-pubkey", 1000
_SHOWN = "%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\t%{ARCH}\n"


class RpmBased(PackageManager):
    """A package manager that works on rpm's database."""

    def __init__(self, run: RunWithin, timeout: float = STEP_SECONDS) -> None:
        self._run = run
        self._timeout = timeout

    def interrupted(self) -> str:
        # rpm ends a transaction whole or names what is there twice, which the next one tells.
        return ""

    def repair(self) -> None:
        return

    def trusted(self, fingerprints: Sequence[str]) -> Dict[str, str]:
        """The keys among these that are in rpm's database, each with the version of the package as which it is there."""
        outcome = self._run(["rpm", "--query", "--all", "--queryformat", "%{VERSION}\t%{RELEASE}\n", f"{_KEY}*"], QUESTION_SECONDS)
        rows = [line.split("\t") for line in outcome.out.splitlines()[:_MOST_KEYS] if line.count("\t") == 1]
        # The version is the end of the fingerprint, which one may cut, or all of it in rpm 6.
        found = {}
        for fingerprint in fingerprints:
            for end, made in rows:
                if len(end) >= 8 and fingerprint.lower().endswith(end.lower()):
                    found[fingerprint] = f"{end}-{made}"
        return found

    def distrust(self, keys: Mapping[str, str]) -> List[LeftThing]:
        """Take these keys out of rpm's database; those that stay, and why. keys: as `trusted` gives them."""
        left: List[LeftThing] = []
        for version in keys.values():
            outcome = self._run(["rpm", "--erase", "--allmatches", f"{_KEY}-{version}"], QUESTION_SECONDS)
            if not outcome.ok:
                left.append({"what": f"key {_KEY}-{version} in rpm's database", "why": f"rpm does not remove it: {last_words(outcome)}"})
        return left


def versions(run: RunWithin, names: Sequence[str]) -> Dict[str, str]:
    """The whole version of each of these packages that is installed."""
    outcome = run(["rpm", "--query", "--queryformat", _SHOWN, *names], QUESTION_SECONDS)
    if outcome.status is None:
        raise Rejected(f"rpm does not answer ({last_words(outcome)}); nothing was changed: run `rpm --rebuilddb` on the host")
    rows = [line.split("\t") for line in outcome.out.splitlines() if line.count("\t") == 2]
    return {row[0]: plain(row[1]) for row in rows}


def files_of(run: RunWithin, wanted: PackageSet) -> Dict[str, Dict[str, str]]:
    """The package files of the folder: name to version to path."""
    found: Dict[str, Dict[str, str]] = {}
    names = {package.name for package in wanted.packages}
    for path in package_files(wanted.folder, ".rpm"):
        outcome = run(["rpm", "--query", "--package", "--nosignature", "--queryformat", _SHOWN, path], QUESTION_SECONDS)
        row = outcome.out.strip().split("\t")
        if not outcome.ok or len(row) != 3:
            raise Rejected(f"{path} is not an rpm package ({last_words(outcome)}); nothing was changed: remove it from the folder")
        if row[0] in names and row[2] in ("noarch", os.uname().machine):
            found.setdefault(row[0], {})[plain(row[1])] = path
    return found


def repository_files(folder: str) -> List[str]:
    """The files in which repositories are named."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if name.endswith(".repo")]


def own_file(folder: str, repository: Repository) -> str:
    """Where our repository is named."""
    return f"{folder}/{sources.PREFIX}{repository.name}.repo"


def without_former(folder: str, repository: Repository) -> "Dict[str, Optional[bytes]]":
    """The files of others that name the repository, or one of which it takes the place, without it."""
    texts: "Dict[str, Optional[bytes]]" = {}
    for path in repository_files(folder):
        state = None if path == own_file(folder, repository) else read_state(path)
        if state is None:
            continue
        before = state.content.decode("utf-8", "surrogateescape")
        after = sources.without_sections(before, (repository.url, *repository.replaces))
        if after != before:
            texts[path] = after.encode("utf-8", "surrogateescape")
    return texts


def copies(folder: str, files: "Mapping[str, Optional[bytes]]", keys: Mapping[str, str]) -> Dict[str, bytes]:
    """The repository files of the host as they would be with these files. keys: path of a key to where it lies for now."""
    texts = {path: state.content for path in repository_files(folder) for state in [read_state(path)] if state is not None}
    for path, content in files.items():
        if content is None:
            texts.pop(path, None)
        elif path not in keys:
            for original, copy in keys.items():
                content = content.replace(original.encode(), copy.encode())
            texts[path] = content
    return texts


def plain(version: str) -> str:
    """Without an epoch that is none."""
    return version[2:] if version.startswith("0:") else version[7:] if version.startswith("(none):") else version


def write(path: str, content: bytes) -> None:
    """A file in a scratch folder."""
    with open(path, "wb") as stream:
        stream.write(content)
