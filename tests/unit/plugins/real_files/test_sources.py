# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Lists of package sources as people have them lose NVIDIA's repositories, which ours takes over: apt itself and configparser judge.

A case is below `apt_sources` or `rpm_sources`; its name says which form it has.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages import sources
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.model import Repository

from tree import REPOSITORY
from unit.fakes.plugins.real_files.corpus import Case, kept, line_ends, parameters

FORMER = yaml.safe_load((REPOSITORY / "roles/nvidia_container_toolkit/vars/main.yml").read_text())["__toolkit_former_repositories"]
OURS = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
FOLDER = "/etc/apt/sources.list.d"


def listed(folder: Path, name: str, texts: dict[str, str]) -> tuple[int, set[str], str]:
    """What apt would fetch with these lists alone: its status, the addresses of repositories, and what it says."""
    root = folder / name
    for part in ("etc/sources.list.d", "etc/preferences.d", "etc/trusted.gpg.d", "etc/apt.conf.d", "state/lists/partial", "cache"):
        (root / part).mkdir(parents=True)
    for file, text in texts.items():
        (root / "etc/sources.list.d" / file).write_bytes(text.encode())
    options = [f"-oDir::{option}={root}/{place}" for option, place in (("Etc", "etc"), ("State", "state"), ("Cache", "cache"))]
    done = subprocess.run(["apt-get", "update", "--print-uris", *options], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, set(re.findall(r"'(\S+)/InRelease'", done.stdout)), done.stderr


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt judges")
@pytest.mark.parametrize("case", parameters("apt_sources"))
def test_a_list_of_apt(tmp_path: Path, case: Case) -> None:
    (before,) = case.texts("/").values()
    change = sources.without_stanzas if case.name.endswith(".sources") else sources.without_lines
    after = change(before, FORMER)
    own = sources.deb822(Repository("toolkit", OURS, ()), "/x.asc", "amd64")
    _status, was, _said = listed(tmp_path, "was", {case.name: before})
    status, now, said = listed(tmp_path, "now", {case.name: after, "ours.sources": own})
    assert (status, said) == (0, "")
    theirs = {url for url in was if "nvidia.github.io" not in url.lower()}
    assert theirs
    assert now == {*theirs, OURS}
    assert kept(before, after, "nvidia.github.io", "NVIDIA", "Enabled") == []
    assert line_ends(after) == line_ends(before)
    assert change(after, FORMER) == after


@pytest.mark.parametrize("case", parameters("rpm_sources"))
def test_a_repository_file_of_rpm(case: Case) -> None:
    (before,) = case.texts("/").values()
    after = sources.without_sections(before, FORMER)
    was, now = (configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#", ";")) for _ in range(2))
    was.read_string(before)
    now.read_string(after)
    assert now.sections() == was.sections()
    for section in was.sections():
        taken = "nvidia.github.io" in was[section].get("baseurl", "")
        assert dict(now[section]) == {**dict(was[section]), **({"enabled": "0"} if taken else {})}
    assert any("nvidia.github.io" in was[section].get("baseurl", "") for section in was.sections())
    assert kept(before, after, "enabled") == []
    assert line_ends(after) == line_ends(before)
    assert sources.without_sections(after, FORMER) == after
