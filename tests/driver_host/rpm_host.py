# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A host of Enterprise Linux or SUSE, as far as its packages are concerned: Debian's builds of dnf, zypper and rpm, with systemd.

Its rpm database has packages of its own, and it knows nothing of dpkg's. Its kernel is this machine's, but Python, by which Ansible's
modules and dnf ask for its release, answers with that of the distribution.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from driver_host.host import MODPROBE, DriverHost
from driver_host.rpm_packages import Distribution, RpmRepositories
from gpushare_lab.overlay import FileSystem
from packages.machine import disguise

#: What the role finds where the driver's headers or modules were rebuilt for the boot.
DRACUT = "/run/dracut-was-run"
_UNAME = """
import os
_asked = os.uname
os.uname = lambda: os.uname_result((*_asked()[:2], {release!r}, *_asked()[3:]))
"""
_OS = "[os]\nname=os\nbaseurl=file:///packages/os\nenabled=1\ngpgcheck=0\nrepo_gpgcheck=0\n"


class RpmHost(DriverHost):
    """The host. before: what it had before the tests."""

    def __init__(self, root: Path, repositories: RpmRepositories, distribution: Distribution) -> None:
        super().__init__(str(root), repositories)
        # Beside the host of the tests for apt, in one run.
        self._name += f"-{distribution.name}"
        self.distribution = distribution
        self.folder = repositories.folder
        self.before: dict[str, str] = {}
        self.files_before: dict[str, str] = {}

    def prepare(self) -> None:
        release = self.distribution.release
        modprobe = MODPROBE.replace(
            "/lib/modules/$(uname -r)/updates/dkms/nvidia.ko", f"$(ls /lib/modules/{release}/*/nvidia.ko 2>/dev/null || echo nothing)"
        )
        self.sh(
            f"mkdir -p /lib/modules/{release} /run/driver; touch /lib/modules/{release}/modules.builtin; "
            "mount --bind /run/driver /proc/driver; cat > /usr/local/sbin/modprobe; chmod 755 /usr/local/sbin/modprobe",
            stdin=modprobe,
        )
        self.sh(f"printf '#!/bin/sh\\necho \"$@\" >> {DRACUT}\\n' > /usr/local/sbin/dracut; chmod 755 /usr/local/sbin/dracut")
        self.sh("cat >> /etc/python3.11/sitecustomize.py", stdin=_UNAME.format(release=release))
        folder = "/etc/yum.repos.d" if self.distribution.kind == "dnf" else "/etc/zypp/repos.d"
        self.sh(f"cat > {folder}/os.repo; rpm --install --force-debian /packages/os/noarch/bash-*.rpm", stdin=_OS)
        if self.distribution.kind == "dnf" and not self.distribution.versionlock:
            self.sh("printf '[main]\\nenabled = 0\\n' > /etc/dnf/plugins/versionlock.conf")

    def packages(self) -> dict[str, str]:
        rows = self.sh("rpm --query --all --queryformat '%{NAME}\\t%{VERSION}\\n'").splitlines()
        return {name if name != "gpg-pubkey" else f"{name}-{version}": version for name, version in (row.split("\t") for row in rows)}

    def reboot(self) -> None:
        self.sh("rm -rf /proc/driver/nvidia; /usr/local/sbin/modprobe nvidia")

    def files(self) -> dict[str, str]:
        """The sums of the files that the role and the packages may change, without what package managers note for themselves."""
        rows = self.sh("find /etc /lib/modules /usr/src -type f ! -name '*-' ! -path '/etc/alternatives/*' | xargs sha256sum").splitlines()
        return {path: digest for digest, path in (row.split(maxsplit=1) for row in rows)}

    def upgrade(self) -> None:
        """What an administrator, or an unattended upgrade, does."""
        self.sh("dnf -qy upgrade" if self.distribution.kind == "dnf" else "zypper --non-interactive update")

    def held(self) -> str:
        """The file where packages are held."""
        return self.sh("cat /etc/dnf/plugins/versionlock.list /etc/dnf/dnf.conf /etc/zypp/locks 2>/dev/null || true")

    @contextmanager
    def without(self, folder: str) -> Iterator[None]:
        """While this repository does not answer."""
        (self.folder / folder).rename(self.folder / f"{folder}-gone")
        try:
            yield
        finally:
            (self.folder / f"{folder}-gone").rename(self.folder / folder)


@contextmanager
def started(folder: Path, layers: list[Path], repositories: RpmRepositories, distribution: Distribution) -> Iterator[RpmHost]:
    """The booted host, on these layers."""
    system = FileSystem(folder)
    system.describe(layers, "")
    system.mount()
    try:
        disguise(system.root, distribution.kind, distribution.os_release)
        # A host of this kind has no dpkg.
        (system.root / "var/lib/dpkg/status").unlink()
        with RpmHost(system.root, repositories, distribution) as host:
            yield host
    finally:
        system.unmount()
