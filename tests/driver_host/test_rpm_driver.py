# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role nvidia_driver against real dnf, zypper and rpm, and signed repositories: what test_driver.py does with apt.

The tests follow each other on each host, as its administrator would go.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from driver_host.host import changed, rejection
from driver_host.packages import VERSIONS
from driver_host.rpm_host import DRACUT, RpmHost, started
from driver_host.rpm_packages import DISTRIBUTIONS, G07, make_rpm
from gpushare_lab import debian
from packages.machine import BUILDERS, ZYPPER, cache, layers, mounted, possible

FIRST, OLD, NEW = VERSIONS
LIBRARIES = {
    "dnf": ("nvidia-driver-cuda", "nvidia-driver-cuda-libs", "libnvidia-ml"),
    "zypper": ("nvidia-compute-utils-G06", "nvidia-compute-G06"),
}
MODULES = {
    "dnf": {"open": "kmod-nvidia-open-dkms", "proprietary": "kmod-nvidia-latest-dkms"},
    "zypper": {"open": "nvidia-open-driver-G06-signed-cuda-kmp-default", "proprietary": "nvidia-driver-G06-kmp-default"},
}
pytestmark = pytest.mark.timeout(1200)
ALL, EL, EL9 = ("rhel_9", "rhel_10", "suse_15"), ("rhel_9", "rhel_10"), ("rhel_9",)


def on(names: tuple[str, ...]) -> pytest.MarkDecorator:
    """The hosts of a test."""
    return pytest.mark.parametrize("host", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if why := possible():
        pytest.skip(why)
    with mounted(tmp_path_factory.mktemp("builder"), layers(cache(), BUILDERS)) as root:
        yield root


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest, builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpmHost]:
    distribution = DISTRIBUTIONS[request.param]
    repositories = make_rpm(builder, distribution, VERSIONS, debian.nvidia_smi(cache()))
    below = layers(cache(), BUILDERS if distribution.kind == "dnf" else ZYPPER)
    with started(tmp_path_factory.mktemp(distribution.name), below, repositories, distribution) as made:
        made.before, made.files_before = made.packages(), made.files()
        yield made


def check_untouched(host: RpmHost) -> None:
    assert host.packages() == host.before
    assert host.files() == host.files_before


def check_driver(host: RpmHost, version: str, module: str) -> None:
    """All of the set is of this version, with this kernel module and no other, and its daemon starts at boot."""
    packages, kind = host.packages(), host.distribution.kind
    assert {name: packages.get(name) for name in LIBRARIES[kind]} == dict.fromkeys(LIBRARIES[kind], version)
    modules = {one: packages.get(name, "").partition("_")[0] for one, name in MODULES[kind].items()}
    assert modules == {"open": "", "proprietary": "", module: version}
    assert f"version={version}" in host.sh(f"tr '\\0' '\\n' < $(ls /lib/modules/{host.distribution.release}/*/nvidia.ko)")
    assert host.sh("systemctl is-enabled nvidia-persistenced").strip() == "enabled"


@contextmanager
def os_release(host: RpmHost, text: str) -> Iterator[None]:
    host.sh("cp /etc/os-release /etc/os-release.kept; cat > /etc/os-release", stdin=text)
    try:
        yield
    finally:
        host.sh("mv /etc/os-release.kept /etc/os-release")


@on(("rhel_9", "suse_15"))
def test_a_distribution_that_there_are_no_drivers_for_is_rejected_before_anything_is_changed(host: RpmHost) -> None:
    others = {
        "dnf": 'ID="fedora"\nVERSION_ID="43"\nPRETTY_NAME="Fedora Linux 43"\n',
        "zypper": 'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\nVERSION_ID="20261101"\nPRETTY_NAME="openSUSE Tumbleweed"\n',
    }
    with os_release(host, others[host.distribution.kind]):
        assert "distribution: found " in rejection(host.role(gpushare_driver_version=FIRST))
    check_untouched(host)


@on(EL)
def test_headers_that_no_repository_has_are_rejected_before_anything_is_changed(host: RpmHost) -> None:
    host.sh("mv /etc/yum.repos.d/os.repo /root")
    try:
        assert "no package kernel-devel in the repositories of this host" in rejection(host.role(gpushare_driver_version=FIRST))
    finally:
        host.sh("mv /root/os.repo /etc/yum.repos.d")
    check_untouched(host)


@on(ALL)
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"gpushare_driver_fingerprints": ["A" * 40]}, "is not trusted"),
        ({"gpushare_driver_repository": "file:///nowhere"}, "cannot use the repository file:///nowhere"),
        ({"gpushare_driver_repository": "file:///packages/empty"}, "which may be one of another distribution"),
        # The metadata is signed with a key that nobody trusts.
        ({"gpushare_driver_repository": "file:///packages/driver-second"}, "cannot use the repository file:///packages/driver-second"),
        ({"gpushare_driver_version": "999.1"}, "no version 999.1 of nvidia-"),
    ],
    ids=("fingerprint", "down", "empty", "signature", "version"),
)
def test_what_cannot_be_installed_leaves_the_driver_out(host: RpmHost, variables: dict[str, Any], words: str) -> None:
    assert words in rejection(host.role(**{"gpushare_driver_version": FIRST, **variables}))
    assert set(host.packages()) - set(host.before) <= {"kernel-devel", "kernel-devel-matched"}
    assert not host.loaded()


@on(EL9)
def test_the_streams_of_the_module_do_not_hide_a_version(host: RpmHost) -> None:
    ask = "dnf -q --repofrompath=plain,file:///packages/driver --nogpgcheck repoquery nvidia-driver-cuda"
    # As it is without us: the default stream has the newest version only.
    assert FIRST not in host.sh(f"{ask} --showduplicates")
    for state in ("enable nvidia-driver:580-open", "disable nvidia-driver"):
        host.sh(f"dnf -qy --repofrompath=plain,file:///packages/driver --nogpgcheck module {state}")
        assert changed(host.role("--check", gpushare_driver_version=FIRST)) >= 2
        host.sh("dnf -qy --repofrompath=plain,file:///packages/driver --nogpgcheck module reset nvidia-driver; rm -f /etc/dnf/modules.d/*")


@on(ALL)
def test_check_mode_and_then_the_installation_of_a_version_that_is_not_the_newest(host: RpmHost) -> None:
    before = host.packages()
    assert changed(host.role("--check", gpushare_driver_version=FIRST)) >= 2
    assert host.packages() == before
    assert changed(host.role(gpushare_driver_version=FIRST)) >= 2
    check_driver(host, FIRST, "proprietary")
    assert FIRST in host.loaded()
    assert "blacklist nouveau" in host.sh("cat /etc/modprobe.d/gpushare-nouveau.conf")
    assert host.sh(f"cat {DRACUT}") == "--force --regenerate-all\n"


@on(ALL)
def test_a_second_run_changes_nothing_also_with_the_repository_down(host: RpmHost) -> None:
    before = host.files()
    with host.without("driver"):
        assert changed(host.role(gpushare_driver_version=FIRST)) == 0
        assert "nothing was changed" in rejection(host.role(gpushare_driver_version=NEW, gpushare_driver_change_ok=True))
    assert host.files() == before
    check_driver(host, FIRST, "proprietary")


@on(ALL)
def test_the_hosts_own_upgrade_passes_the_driver_over(host: RpmHost) -> None:
    host.upgrade()
    check_driver(host, FIRST, "proprietary")


@on(ALL)
def test_another_version_needs_permission_and_then_a_reboot_that_this_machine_never_gets(host: RpmHost) -> None:
    assert "gpushare_driver_change_ok" in rejection(host.role(gpushare_driver_version=NEW))
    check_driver(host, FIRST, "proprietary")
    done = host.role(gpushare_driver_version=NEW, gpushare_driver_change_ok=True, gpushare_driver_reboot_ok=True)
    assert changed(done) >= 1
    assert f"kernel module {FIRST} is loaded, {NEW} is installed" in done.stdout
    assert "the machine that Ansible runs on, which is never rebooted" in done.stdout
    # From 560 on the open kernel module is the default: the other one was held, and goes with its hold.
    check_driver(host, NEW, "open")
    assert MODULES[host.distribution.kind]["open"] in host.held()
    assert MODULES[host.distribution.kind]["proprietary"] not in host.held()
    host.upgrade()
    check_driver(host, NEW, "open")


@on(ALL)
def test_until_the_reboot_each_run_reports_it_and_after_it_none(host: RpmHost) -> None:
    done = host.role(gpushare_driver_version=NEW)
    assert changed(done) == 0
    assert "Reboot required" in done.stdout
    host.reboot()
    assert "Open Kernel Module" in host.loaded()
    assert "Reboot required" not in host.role(gpushare_driver_version=NEW).stdout


@on(ALL)
def test_a_downgrade_from_a_repository_whose_key_was_rotated(host: RpmHost) -> None:
    rotated = {
        "gpushare_driver_repository": "file:///packages/driver-second",
        "gpushare_driver_version": OLD,
        "gpushare_driver_change_ok": True,
    }
    assert "nothing was changed" in rejection(host.role(**rotated))
    rotated |= {"gpushare_driver_key": "/packages/second.asc", "gpushare_driver_fingerprints": [host.second]}
    assert "(downgrade)" in rejection(host.role(**{**rotated, "gpushare_driver_change_ok": False}))
    assert changed(host.role(**rotated)) >= 1
    check_driver(host, OLD, "open")
    host.reboot()
    assert changed(host.role(**rotated)) == 0


@on(EL9)
def test_packages_that_the_key_of_the_metadata_did_not_sign_are_not_installed(host: RpmHost) -> None:
    mixed = {
        "gpushare_driver_repository": "file:///packages/driver-mixed",
        "gpushare_driver_version": NEW,
        "gpushare_driver_change_ok": True,
    }
    # The second key is trusted until here.
    trusted = host.sh("rpm -qa 'gpg-pubkey*'").split()
    second = next(one for one in trusted if host.second.lower().endswith(one.split("-")[2]))
    host.sh(f"rpm --export gpg-pubkey > /dev/null 2>&1 || true; rpm --erase {second}")
    assert "the packages are now: " in rejection(host.role(**mixed))
    check_driver(host, OLD, "open")


@on(EL9)
def test_precompiled_modules_have_the_driver_in_their_names(host: RpmHost) -> None:
    precompiled = {"gpushare_driver_build": "precompiled", "gpushare_driver_change_ok": True}
    base = host.distribution.kernel_base
    for version, former in ((NEW, "kmod-nvidia-open-dkms"), (OLD, f"kmod-nvidia-open-{NEW}-{base}")):
        assert changed(host.role(gpushare_driver_version=version, **precompiled)) >= 1
        packages = host.packages()
        assert packages[f"kmod-nvidia-open-{version}-{base}"] == packages["libnvidia-ml"] == version
        assert former not in packages
        assert f"{former}-" not in host.held()
    assert changed(host.role(gpushare_driver_version=OLD, **precompiled)) == 0


@on(("suse_15",))
def test_packages_of_suses_other_names_take_the_place_of_the_former(host: RpmHost) -> None:
    assert changed(host.role(gpushare_driver_version=G07, gpushare_driver_change_ok=True)) >= 1
    packages = host.packages()
    assert packages["nvidia-compute-G07"] == packages["nvidia-compute-utils-G07"] == packages["nvidia-persistenced"] == G07
    assert packages["nvidia-open-driver-G07-signed-cuda-kmp-default"].startswith(f"{G07}_k")
    assert not [one for one in (*packages, *host.held().split()) if "G06" in one]
    host.upgrade()
    host.reboot()
    assert G07 in host.loaded()
    assert changed(host.role(gpushare_driver_version=G07)) == 0


@on(ALL)
def test_absent_gives_back_the_packages_and_files_of_before(host: RpmHost) -> None:
    done = host.role(gpushare_driver_state="absent")
    assert changed(done) >= 2
    check_untouched(host)
    assert "nvidia" not in host.held()
    assert host.sh("ls /var/lib/gpushare/journal 2>/dev/null || true") == ""
    assert changed(host.role(gpushare_driver_state="absent")) == 0
