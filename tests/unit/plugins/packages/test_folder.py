# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Package files without a signature are root's, in folders of root's, and are installed by the path that was checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages import rpm
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.apt import Apt
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.model import Package, PackageSet

Files = Callable[[Path], dict[str, dict[str, str]]]


def deb(folder: Path) -> dict[str, dict[str, str]]:
    def run(argv: list[str], _timeout: float) -> Outcome:
        return Outcome(argv, 0, "amd64" if argv[0] == "dpkg" else "toolkit\t1.0-1\tall")

    return Apt(run)._files_of(PackageSet("o", (Package("toolkit"),), folder=str(folder)))


def of_rpm(folder: Path) -> dict[str, dict[str, str]]:
    def run(argv: list[str], _timeout: float) -> Outcome:
        return Outcome(argv, 0, "toolkit\t0:1.0-1\tnoarch\n")

    return rpm.files_of(run, PackageSet("o", (Package("toolkit"),), folder=str(folder)))


@pytest.fixture(params=[(deb, "toolkit.deb"), (of_rpm, "toolkit.rpm")], ids=["apt", "rpm"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    """How it reads a folder, and a package file there."""
    files, name = request.param
    path = tmp_path / "media" / name
    path.parent.mkdir(mode=0o755)
    path.write_text("a package")
    path.chmod(0o644)
    return files, path


def test_a_package_of_root_is_taken(manager: tuple[Files, Path]) -> None:
    files, path = manager
    assert files(path.parent) == {"toolkit": {"1.0-1": str(path)}}


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_package_that_others_may_write_is_rejected(manager: tuple[Files, Path], mode: int) -> None:
    files, path = manager
    path.chmod(mode)
    with pytest.raises(Rejected, match=r"others than root may write the file .*; nothing was changed"):
        files(path.parent)


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_in_which_others_may_put_a_package_is_rejected(manager: tuple[Files, Path], mode: int) -> None:
    files, path = manager
    path.parent.chmod(mode)
    with pytest.raises(Rejected, match="others than root may write the folder "):
        files(path.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody else")
def test_a_package_of_somebody_else_is_rejected(manager: tuple[Files, Path]) -> None:
    files, path = manager
    os.chown(path, 65534, 65534)
    with pytest.raises(Rejected, match="others than root may write the file"):
        files(path.parent)


def test_a_link_is_followed_before_the_check_and_installed_by_its_target(manager: tuple[Files, Path], tmp_path: Path) -> None:
    files, path = manager
    link = tmp_path / "open" / path.name
    link.parent.mkdir(mode=0o777)
    link.parent.chmod(0o777)
    link.symlink_to(path)
    assert files(link.parent) == {"toolkit": {"1.0-1": str(path)}}
    link.unlink()
    link.symlink_to(path.parent)
    with pytest.raises(Rejected, match="which is not a file"):
        files(link.parent)
    link.unlink()
    link.symlink_to(path.with_name("gone"))
    with pytest.raises(Rejected, match="cannot be read"):
        files(link.parent)
