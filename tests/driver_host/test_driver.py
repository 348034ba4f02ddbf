# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role nvidia_driver against a real apt and a signed repository: installed, held, changed with permission only, taken back.

The tests follow each other on one host, as its administrator would go.
"""

from __future__ import annotations

from typing import Any

import pytest

from driver_host.host import DriverHost, changed, files, instead_of, rejection
from driver_host.packages import VERSIONS

FIRST, OLD, NEW = VERSIONS
OURS = ("nvidia-driver-cuda", "nvidia-smi", "nvidia-persistenced", "nvidia-modprobe", "libnvidia-ml1")
BEFORE: dict[str, Any] = {}


def test_a_distribution_that_there_are_no_drivers_for_is_rejected_before_anything_is_changed(host: DriverHost) -> None:
    BEFORE.update(packages=host.packages(), files=files(host))
    text = 'ID=debian\nVERSION_ID="11"\nPRETTY_NAME="Debian GNU/Linux 11 (bullseye)"\n'
    host.sh("cp --remove-destination -L /etc/os-release /root/os-release.kept; cat > /etc/os-release", stdin=text)
    try:
        assert "distribution: found Debian GNU/Linux 11 (bullseye) on x86_64" in rejection(host.role(gpushare_driver_version=FIRST))
    finally:
        host.sh("cp /root/os-release.kept /etc/os-release")
    assert (host.packages(), files(host)) == (BEFORE["packages"], BEFORE["files"])


def test_secure_boot_is_found_and_explained_before_anything_is_changed(host: DriverHost) -> None:
    variable = "efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    with instead_of(host, "/sys/firmware", f"mkdir -p efi/efivars; printf '\\006\\000\\000\\000\\001' > {variable}"):
        said = rejection(host.role(gpushare_driver_version=FIRST))
        assert "secure_boot: found a kernel that accepts signed modules only (Secure Boot enabled)" in said
        assert "mokutil --import KEY" in said
        assert changed(host.role("--check", gpushare_driver_version=FIRST, gpushare_driver_own_key=True)) >= 2
    assert (host.packages(), files(host)) == (BEFORE["packages"], BEFORE["files"])


def test_nouveau_that_is_loaded_is_blacklisted_and_keeps_the_driver_out_until_the_reboot(host: DriverHost) -> None:
    with instead_of(host, "/sys/module", "mkdir nouveau"):
        done = host.role(gpushare_driver_version=FIRST, gpushare_driver_reboot_ok=True)
        assert changed(done) >= 2
        assert "Reboot required on me: nouveau is loaded and keeps the GPUs from NVIDIA's driver" in done.stdout
        assert "blacklist nouveau" in host.sh("cat /etc/modprobe.d/gpushare-nouveau.conf")
        assert not host.loaded()
        done = host.role(gpushare_driver_version=FIRST)
        assert changed(done) == 0
        assert "Reboot required" in done.stdout
    host.reboot()
    assert FIRST in host.loaded()
    # As the boot does with what is enabled.
    host.sh("systemctl start nvidia-persistenced")
    done = host.role(gpushare_driver_version=FIRST)
    assert changed(done) == 0
    assert "Reboot required" not in done.stdout
    assert changed(host.role(gpushare_driver_state="absent")) >= 2
    assert (host.packages(), files(host)) == (BEFORE["packages"], BEFORE["files"])
    host.sh("rm -rf /proc/driver/nvidia")


def test_headers_that_no_repository_has_are_rejected_before_anything_is_changed(host: DriverHost) -> None:
    host.sh("mv /etc/apt/sources.list.d/headers.list /root; rm -rf /var/lib/apt/lists/*")
    try:
        assert "no package linux-headers-" in rejection(host.role(gpushare_driver_version=FIRST))
    finally:
        host.sh("mv /root/headers.list /etc/apt/sources.list.d; apt-get -q update")
    assert (host.packages(), files(host)) == (BEFORE["packages"], BEFORE["files"])


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"gpushare_driver_fingerprints": ["A" * 40]}, "is not trusted"),
        ({"gpushare_driver_repository": "file:///nowhere"}, "apt cannot use the repository file:///nowhere"),
        # The repository has another key than the one that is trusted.
        ({"gpushare_driver_repository": "file:///packages/driver-second"}, "apt cannot use the repository file:///packages/driver-second"),
        ({"gpushare_driver_version": "999.1"}, "no version 999.1 of nvidia-driver-cuda"),
        ({"gpushare_driver_version": ""}, "no gpushare_driver_version"),
    ],
)
def test_what_cannot_be_installed_leaves_the_driver_out(host: DriverHost, variables: dict[str, Any], words: str) -> None:
    assert words in rejection(host.role(**{"gpushare_driver_version": FIRST, **variables}))
    assert set(host.packages()) - set(BEFORE["packages"]) <= {"linux-headers-amd64", f"linux-headers-{host.sh('uname -r').strip()}"}
    assert not host.loaded()


def test_check_mode_and_then_the_installation_of_a_version_that_is_not_the_newest(host: DriverHost) -> None:
    assert changed(host.role("--check", gpushare_driver_version=FIRST)) >= 2
    assert "nvidia-smi" not in host.packages()
    assert changed(host.role(gpushare_driver_version=FIRST)) >= 2
    packages = host.packages()
    assert {packages[name] for name in OURS} == {f"{FIRST}-1"}
    assert packages["nvidia-kernel-dkms"] == f"{FIRST}-1"
    assert FIRST in host.loaded()
    assert "blacklist nouveau" in host.sh("cat /etc/modprobe.d/gpushare-nouveau.conf")
    assert host.sh("systemctl is-enabled nvidia-persistenced").strip() == "enabled"


def test_a_second_run_changes_nothing(host: DriverHost) -> None:
    before = files(host)
    assert changed(host.role(gpushare_driver_version=FIRST)) == 0
    assert files(host) == before


def test_the_hosts_own_upgrade_passes_the_driver_over(host: DriverHost) -> None:
    host.sh("apt-get -q update; apt-get -qy full-upgrade")
    assert {host.packages()[name] for name in OURS} == {f"{FIRST}-1"}


def test_another_version_needs_permission_and_then_a_reboot_that_this_machine_never_gets(host: DriverHost) -> None:
    assert "gpushare_driver_change_ok" in rejection(host.role(gpushare_driver_version=NEW))
    assert host.packages()["nvidia-smi"] == f"{FIRST}-1"
    done = host.role(gpushare_driver_version=NEW, gpushare_driver_change_ok=True, gpushare_driver_reboot_ok=True)
    assert changed(done) >= 1
    assert f"kernel module {FIRST} is loaded, {NEW} is installed" in done.stdout
    assert "the machine that Ansible runs on, which is never rebooted" in done.stdout
    packages = host.packages()
    assert {packages[name] for name in OURS} == {f"{NEW}-1"}
    # From 560 on the open kernel module is the default: the other one was held, and goes.
    assert packages["nvidia-kernel-open-dkms"] == f"{NEW}-1"
    assert "nvidia-kernel-dkms" not in packages


def test_until_the_reboot_each_run_reports_it_and_after_it_none(host: DriverHost) -> None:
    done = host.role(gpushare_driver_version=NEW)
    assert changed(done) == 0
    assert "Reboot required" in done.stdout
    host.reboot()
    assert "Open Kernel Module" in host.loaded()
    done = host.role(gpushare_driver_version=NEW)
    assert changed(done) == 0
    assert "Reboot required" not in done.stdout


def test_a_downgrade_from_a_repository_whose_key_was_rotated(host: DriverHost) -> None:
    assert "(downgrade)" in rejection(host.role(gpushare_driver_version=OLD))
    rotated = {"gpushare_driver_repository": "file:///packages/driver-second", "gpushare_driver_change_ok": True}
    assert "apt cannot use the repository" in rejection(host.role(gpushare_driver_version=OLD, **rotated))
    assert {host.packages()[name] for name in OURS} == {f"{NEW}-1"}
    rotated |= {"gpushare_driver_key": "/packages/second.asc", "gpushare_driver_fingerprints": [host.second]}
    assert changed(host.role(gpushare_driver_version=OLD, **rotated)) >= 1
    assert {host.packages()[name] for name in OURS} == {f"{OLD}-1"}
    host.reboot()
    assert changed(host.role(gpushare_driver_version=OLD, **rotated)) == 0


def test_absent_gives_back_the_packages_and_files_of_before(host: DriverHost) -> None:
    done = host.role(gpushare_driver_state="absent")
    assert changed(done) >= 2
    assert f"Reboot required on me: kernel module {OLD} stays loaded until then" in done.stdout
    assert host.packages() == BEFORE["packages"]
    assert files(host) == BEFORE["files"]
    assert host.sh("ls /var/lib/gpushare/journal 2>/dev/null || true") == ""
    assert changed(host.role(gpushare_driver_state="absent")) == 0
