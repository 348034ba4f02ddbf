# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Hosts as the plan of a driver sees them, and the data of their distributions as the role ships them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.facts import HostFacts
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._driver.data import read

VARS = Path(__file__).resolve().parents[5] / "roles/nvidia_driver/vars"
T4, V100, P100, A100, H100, GH200, B200 = "0x1eb8", "0x1db5", "0x15f8", "0x20b0", "0x2330", "0x2342", "0x2901"

DEBIAN = HostFacts(
    id="debian",
    like=(),
    os_version="12",
    name="Debian GNU/Linux 12 (bookworm)",
    machine="x86_64",
    release="6.1.0-30-amd64",
    next_release="6.1.0-30-amd64",
    headers=(),
    devices=(T4,),
    switches=0,
    strict=False,
    secure_boot="none",
    nouveau_loaded=False,
    nouveau_blacklisted=False,
    vendor="",
    container=False,
    run_file=False,
    packages={},
    loaded=None,
    version=None,
    module=None,
    dkms=True,
)
_EL = {"id": "rocky", "like": ("rhel", "centos", "fedora")}
_SLES = {"id": "sles", "like": ("suse",)}
HOSTS: dict[str, HostFacts] = {
    "debian_12": DEBIAN,
    "debian_13": replace(DEBIAN, os_version="13", release="6.12.41+deb13-amd64", next_release="6.12.41+deb13-amd64"),
    "ubuntu_22.04": replace(DEBIAN, id="ubuntu", os_version="22.04", release="5.15.0-119-generic", next_release="5.15.0-119-generic"),
    "ubuntu_24.04": replace(DEBIAN, id="ubuntu", os_version="24.04", release="6.8.0-45-generic", next_release="6.8.0-45-generic"),
    "ubuntu_26.04": replace(DEBIAN, id="ubuntu", os_version="26.04", release="7.0.0-12-generic", next_release="7.0.0-12-generic"),
    "rhel_8": replace(
        DEBIAN, **_EL, os_version="8.10", release="4.18.0-553.16.1.el8_10.x86_64", next_release="4.18.0-553.16.1.el8_10.x86_64"
    ),
    "rhel_9": replace(DEBIAN, **_EL, os_version="9.5", release="5.14.0-503.11.1.el9_5.x86_64", next_release="5.14.0-503.11.1.el9_5.x86_64"),
    "rhel_10": replace(DEBIAN, **_EL, os_version="10.1", release="6.12.0-55.9.1.el10_0.x86_64", next_release="6.12.0-55.9.1.el10_0.x86_64"),
    "suse_15": replace(DEBIAN, **_SLES, os_version="15.6", release="6.4.0-150600.21-default", next_release="6.4.0-150600.21-default"),
    "opensuse_15": replace(
        DEBIAN,
        id="opensuse-leap",
        like=("suse", "opensuse"),
        os_version="15.6",
        release="6.4.0-150600.21-default",
        next_release="6.4.0-150600.21-default",
    ),
    "suse_16": replace(DEBIAN, **_SLES, os_version="16.0", release="6.12.0-160000.5-default", next_release="6.12.0-160000.5-default"),
}


def data(name: str) -> dict[str, Any]:
    """What the role knows of the distribution."""
    return read(VARS / f"{name}.yml")
