# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What apt is asked where it would choose otherwise by itself: an older set of packages, and a held package that must go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.apt import Apt
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.model import (
    Installed,
    Package,
    PackagePlan,
    PackageSet,
    Repository,
    check,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.openpgp import Key

from unit.golden import Golden

FILE = "/etc/apt/preferences.d/gpushare-nvidia-driver"
KEY = Key("A" * 40, b"\x99\x00\x01x")
REPOSITORY = Repository("nvidia-driver", "https://example.org/x", (KEY,), version="580.126.20")


class Machine:
    """Answers of dpkg, and every command."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def run(self, argv: list[str], _seconds: float) -> Outcome:
        self.calls.append(argv)
        if argv[0] == "dpkg":
            return Outcome(argv, 0, "amd64\n")
        if argv[0] == "dpkg-query":
            return Outcome(argv, 1, "nvidia-kernel-dkms\t550.163.01-1\tinstalled\thold\n")
        return Outcome(argv, 0)


def test_a_version_is_preferred_for_packages_that_others_need_too() -> None:
    text = Apt(Machine().run).files(REPOSITORY)[FILE]
    assert text is not None
    assert text.decode().splitlines()[1:] == ["Package: /./", "Pin: version 580.126.20-*", "Pin-Priority: 1001"]
    assert FILE not in Apt(Machine().run).files(replace(REPOSITORY, version=""))


def test_a_package_that_is_not_installed_is_not_held() -> None:
    found = Apt(Machine().run).installed(["nvidia-kernel-dkms", "nvidia-other"])
    assert found == {"nvidia-kernel-dkms": Installed("550.163.01-1", True), "nvidia-other": Installed(None, False)}


def test_what_may_go_is_named_to_apt_if_it_is_there() -> None:
    machine = Machine()
    wanted = PackageSet("x", (Package("nvidia-kernel-open-dkms", "580.126.20"),), replaces=("nvidia-kernel-dkms", "nvidia-other"))
    Apt(machine.run).install(wanted, PackagePlan({"nvidia-kernel-open-dkms": "580.126.20-1"}, ()))
    assert machine.calls[-1][-2:] == ["nvidia-kernel-open-dkms=580.126.20-1", "nvidia-kernel-dkms-"]


@pytest.mark.parametrize("version", ["580 evil", "a\nPin: x", "x" * 300])
def test_a_preferred_version_is_a_version(version: str, golden: Golden) -> None:
    with golden.raised(Rejected):
        check(PackageSet("x", (Package("a"),), replace(REPOSITORY, version=version)))
