# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role nvidia_driver with a run file: what fails before, half-way and while the driver is in use; taken back by nvidia-uninstall.

The tests follow each other on one host. The run file is a stand-in, see run_file.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from driver_host import run_file
from driver_host.host import DriverHost, changed, files, rejection
from gpushare_lab import debian
from gpushare_lab.cache import Cache
from gpushare_lab.places import cache_root

OLD, NEW = "535.261.03", "580.126.20"
BEFORE: dict[str, Any] = {}
LOG: Final = "/var/log/gpushare-nvidia-installer.log"


def path_of(version: str) -> str:
    return f"/root/NVIDIA-Linux-x86_64-{version}.run"


def wanted(version: str, **more: Any) -> dict[str, Any]:
    """The variables of a host whose driver is that of a run file."""
    named = {"gpushare_driver_source": "run_file", "gpushare_driver_version": version, "gpushare_driver_run_file": path_of(version)}
    return {**named, "gpushare_driver_module": "auto", **more}


@pytest.fixture(scope="module", autouse=True)
def run_files(host: DriverHost) -> None:
    nvidia_smi = debian.nvidia_smi(Cache(cache_root(os.environ)))
    BEFORE.update(packages=host.packages(), files=files(host))
    for version in (OLD, NEW):
        made = run_file.write(host.packages_folder / Path(path_of(version)).name, version, nvidia_smi)
        host.sh(f"install -m 0600 /packages/{made.name} {path_of(version)}")


DKMS: Final = "/usr/sbin/dkms"


def parts(host: DriverHost) -> list[str]:
    """What of a driver lies on the host's disk."""
    places = "/lib/modules/$(uname -r)/updates/dkms/nvidia.ko /usr/lib/*/libnvidia-ml.so.1 /usr/bin/nvidia-smi /usr/bin/nvidia-uninstall"
    return [Path(line).name for line in host.sh(f"for one in {places}; do test ! -e $one || echo $one; done").splitlines()]


def test_a_run_file_that_everybody_may_write_is_not_run(host: DriverHost) -> None:
    host.sh(f"printf '#!/bin/sh\\n' > {DKMS}; chmod 0755 {DKMS}; chmod 0666 {path_of(OLD)}")
    try:
        said = rejection(host.role(**wanted(OLD)))
    finally:
        host.sh(f"chmod 0600 {path_of(OLD)}; rm {DKMS}")
    assert f"would run as root, and others than root may write the file {path_of(OLD)}; nothing was changed" in said
    assert (parts(host), host.loaded()) == ([], "")


def test_without_dkms_it_is_not_run_because_it_would_fail_half_way(host: DriverHost) -> None:
    said = rejection(host.role(**wanted(OLD)))
    assert "no program dkms: the installer would remove the driver that is there, and then fail" in said
    assert (parts(host), host.loaded()) == ([], "")
    host.sh(f"printf '#!/bin/sh\\n' > {DKMS}; chmod 0755 {DKMS}")


def test_one_that_there_is_not_is_named(host: DriverHost) -> None:
    elsewhere = f"/srv/NVIDIA-Linux-x86_64-{OLD}.run"
    assert f"the run file {elsewhere} cannot be read" in rejection(host.role(**wanted(OLD, gpushare_driver_run_file=elsewhere)))


def test_one_that_cannot_build_its_module_is_named_with_the_words_of_its_log(host: DriverHost) -> None:
    host.sh(f"echo build > {run_file.FAULT}")
    said = rejection(host.role(**wanted(OLD)))
    assert "Unable to build the NVIDIA kernel module: cc1: out of memory" in said
    assert "the host has no kernel module, no library and no nvidia-smi on disk now" in said
    assert (parts(host), host.loaded()) == ([], "")


def test_one_that_is_killed_half_way_is_named_and_the_next_run_finishes(host: DriverHost) -> None:
    host.sh(f"echo killed > {run_file.FAULT}")
    said = rejection(host.role(**wanted(OLD)))
    assert f"the host has {OLD} kernel module, no library and no nvidia-smi on disk now" in said
    assert "nvidia.ko" in parts(host)
    assert "nvidia-smi" not in parts(host)
    host.sh(f"rm {run_file.FAULT}")
    assert changed(host.role(**wanted(OLD))) >= 1
    assert parts(host) == ["nvidia.ko", "libnvidia-ml.so.1", "nvidia-smi", "nvidia-uninstall"]
    assert OLD in host.loaded()
    assert "is now complete" in host.sh(f"cat {LOG}")


def test_a_second_run_changes_nothing(host: DriverHost) -> None:
    before = files(host)
    assert changed(host.role(**wanted(OLD))) == 0
    assert files(host) == before


def test_packages_are_rejected_beside_it(host: DriverHost) -> None:
    said = rejection(host.role(gpushare_driver_version=NEW, gpushare_driver_change_ok=True))
    assert "a driver that NVIDIA's installer (.run) installed" in said


def test_another_version_needs_permission_and_is_installed_beside_the_one_in_use(host: DriverHost) -> None:
    assert "gpushare_driver_change_ok" in rejection(host.role(**wanted(NEW)))
    done = host.role(**wanted(NEW, gpushare_driver_change_ok=True, gpushare_driver_reboot_ok=True))
    assert changed(done) >= 1
    assert f"kernel module {OLD} is loaded, {NEW} is installed" in done.stdout
    assert OLD in host.loaded()
    host.reboot()
    assert "Open Kernel Module" in host.loaded()
    assert NEW in host.loaded()
    assert changed(host.role(**wanted(NEW))) == 0


def test_an_installer_that_cannot_do_so_leaves_the_driver_in_use(host: DriverHost) -> None:
    said = rejection(host.role(**wanted(OLD, gpushare_driver_change_ok=True)))
    assert "appears to already be loaded in your kernel" in said
    assert f"the host has {NEW} kernel module, {NEW} library and nvidia-smi on disk now" in said
    assert NEW in host.loaded()


def test_absent_runs_nvidia_uninstall_and_gives_back_what_was_there(host: DriverHost) -> None:
    assert changed(host.role(gpushare_driver_state="absent")) >= 2
    assert parts(host) == []
    assert host.packages() == BEFORE["packages"]
    assert files(host) == BEFORE["files"]
    assert host.sh("ls /var/lib/gpushare/journal 2>/dev/null || true") == ""
    assert changed(host.role(gpushare_driver_state="absent")) == 0
