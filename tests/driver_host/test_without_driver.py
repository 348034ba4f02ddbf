# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Debian's real nvidia-smi with its real library on a host without a driver: one sentence of it, and each cause has its name.

The tests follow each other on one host.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from driver_host.host import DriverHost, instead_of
from gpushare_lab import debian
from gpushare_lab.cache import Cache
from gpushare_lab.places import cache_root
from gpushare_lab.process import run

LIBRARY, MODULE = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "updates/dkms/nvidia.ko"
SECURE_BOOT = "efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
WORDS = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


def library(cache: Cache) -> Path:
    """Debian's libnvidia-ml. The package is unpacked only."""

    def build(folder: Path) -> None:
        work = folder / ".work"
        (archive,) = debian.download(work, ["libnvidia-ml1"], cache.log("libnvidia-ml1"))
        run(["dpkg", "-x", archive, work / "unpacked"])
        (found,) = work.glob("unpacked/usr/lib/*/nvidia/current/libnvidia-ml.so.[0-9][0-9]*")
        found.rename(folder / "libnvidia-ml.so.1")
        shutil.rmtree(work)

    return cache.entry("libnvidia-ml1", debian.SUITE, {"suite": debian.SUITE}, build) / "libnvidia-ml.so.1"


def problem(host: DriverHost) -> dict[str, Any]:
    """What the module reports."""
    show = {"ansible.builtin.debug": {"msg": "PROBLEM={{ found.problem | to_json | b64encode }}="}}
    done = host.play([{"gpushare.kubernetes.nvidia_smi_info": {}, "register": "found"}, show])
    assert done.returncode == 0, done.stdout + done.stderr
    (text,) = re.findall("PROBLEM=([A-Za-z0-9+/]+=*)=", done.stdout)
    found: dict[str, Any] = json.loads(base64.b64decode(text))
    return found


@pytest.fixture(scope="module", autouse=True)
def real_user_space(host: DriverHost) -> None:
    cache = Cache(cache_root(os.environ))
    for made, target in ((debian.nvidia_smi(cache), "/usr/bin/nvidia-smi"), (library(cache), LIBRARY)):
        (host.packages_folder / made.name).write_bytes(made.read_bytes())
        host.sh(f"install -m 0755 /packages/{made.name} {target}")
    host.sh("ldconfig")


def test_it_says_one_sentence(host: DriverHost) -> None:
    assert WORDS in host.sh("nvidia-smi -q -x || echo status $?")
    assert "status 9" in host.sh("nvidia-smi -q -x || echo status $?")


def test_no_module_for_the_running_kernel(host: DriverHost) -> None:
    found = problem(host)
    assert found["kind"] == "module_missing"
    assert "dkms autoinstall" in found["cure"]


def test_a_module_that_is_not_loaded(host: DriverHost) -> None:
    folder = f"/lib/modules/{host.sh('uname -r').strip()}"
    host.sh(
        f"mkdir -p {folder}/updates/dkms; echo {MODULE}: > {folder}/modules.dep; printf '\\000version=535.1.1\\000' > {folder}/{MODULE}"
    )
    found = problem(host)
    assert found["kind"] == "driver_not_loaded"
    assert WORDS in found["found"]
    assert "modprobe nvidia" in found["cure"]


def test_nouveau_in_the_way(host: DriverHost) -> None:
    with instead_of(host, "/sys/module", "mkdir nouveau"):
        assert problem(host)["kind"] == "nouveau"


def test_secure_boot_and_a_module_without_a_signature(host: DriverHost) -> None:
    with instead_of(host, "/sys/firmware", f"mkdir -p efi/efivars; printf '\\006\\000\\000\\000\\001' > {SECURE_BOOT}"):
        found = problem(host)
    assert found["kind"] == "secure_boot"
    assert "has no signature" in found["found"]


def test_a_driver_container(host: DriverHost) -> None:
    host.sh("mkdir -p /run/nvidia/driver/usr")
    assert problem(host)["kind"] == "driver_container"
    host.sh("rm -r /run/nvidia")


def test_a_library_that_is_not_there(host: DriverHost) -> None:
    host.sh(f"mv {LIBRARY} /root; ldconfig")
    found = problem(host)
    assert found["kind"] == "library_missing"
    assert "couldn't find libnvidia-ml.so library" in found["found"]
    host.sh(f"mv /root/libnvidia-ml.so.1 {LIBRARY}; ldconfig")


def test_no_nvidia_smi(host: DriverHost) -> None:
    host.sh("rm /usr/bin/nvidia-smi")
    assert problem(host)["kind"] == "not_installed"
