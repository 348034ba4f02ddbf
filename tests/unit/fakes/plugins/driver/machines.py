# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Machines as they are sold and rented, and what the role nvidia_driver plans for each: docs/start/drivers.md shows it.

The facts are those of the public PCI id database, of the distributions' kernels and of NVIDIA's guides. None of them was run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.facts import HostFacts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.plan import DriverPlan, Wish, make

from unit.fakes.plugins.driver.hosts import HOSTS, data

A100_SXM, H100_SXM, H200_SXM, GH200, L40S, T4, V100_SXM = "0x20b2", "0x2330", "0x2335", "0x2342", "0x26b9", "0x1eb8", "0x1db5"
B200, B300, GB200, RTX_PRO_6000 = "0x2901", "0x3182", "0x2941", "0x2bb5"
LTS, CURRENT, NEW = "535.309.01", "580.159.03", "595.71.05"


@dataclass(frozen=True)
class Machine:
    """distribution: of HOSTS; changes: of its facts."""

    name: str
    distribution: str
    wish: Wish
    changes: dict[str, Any]

    @property
    def facts(self) -> HostFacts:
        return replace(HOSTS[self.distribution], **self.changes)

    def plan(self) -> DriverPlan:
        return make(self.facts, self.wish, data(self.distribution))


def _kernel(release: str, *packages: str, **more: Any) -> dict[str, Any]:
    return {"release": release, "next_release": release, "kernel_packages": packages, **more}


def _hgx(device: str, **more: Any) -> dict[str, Any]:
    return {"devices": (device,) * 8, **({"nvlink5": True} if device in (B200, B300) else {"switches": 4}), **more}


_ARM = {"machine": "aarch64"}
_HWE = _kernel("6.8.0-60-generic", "linux-image-generic-hwe-22.04")
_GENERIC = _kernel("6.8.0-60-generic", "linux-image-generic")
_EL_64K = {**_ARM, "devices": (GH200,), **_kernel("5.14.0-570.12.1.el9_6.aarch64+64k")}
_NVIDIA_64K = {**_ARM, "devices": (GH200,), **_kernel("6.8.0-1028-nvidia-64k", "linux-image-nvidia-64k")}
_SECURE = {"strict": True, "secure_boot": "enabled"}
_DISTRIBUTION = "distribution"
MACHINES = (
    Machine("HGX A100", "ubuntu_22.04", Wish(LTS), _hgx(A100_SXM)),
    Machine("HGX A100", "ubuntu_22.04", Wish(CURRENT), _hgx(A100_SXM)),
    Machine("HGX A100", "rhel_8", Wish(LTS), _hgx(A100_SXM)),
    Machine("HGX H100", "ubuntu_22.04", Wish(CURRENT), _hgx(H100_SXM, **_HWE)),
    Machine("HGX H100", "ubuntu_24.04", Wish(CURRENT), _hgx(H100_SXM, **_GENERIC)),
    Machine("HGX H100", "rhel_9", Wish("570.211.01"), _hgx(H100_SXM)),
    Machine("HGX H100", "rhel_9", Wish(CURRENT), _hgx(H100_SXM)),
    Machine("HGX H200", "suse_15", Wish(CURRENT), _hgx(H200_SXM)),
    Machine("HGX H200, Canonical's packages", "ubuntu_24.04", Wish(CURRENT, source=_DISTRIBUTION), _hgx(H200_SXM, **_GENERIC)),
    Machine("HGX B200", "ubuntu_24.04", Wish(CURRENT), _hgx(B200, **_GENERIC)),
    Machine("HGX B200", "rhel_9", Wish(CURRENT), _hgx(B200)),
    Machine("HGX B300", "ubuntu_24.04", Wish(NEW), _hgx(B300, **_GENERIC)),
    Machine("HGX B300", "suse_16", Wish(NEW), _hgx(B300)),
    Machine("GH200", "ubuntu_24.04", Wish(CURRENT), _NVIDIA_64K),
    Machine("GH200", "rhel_9", Wish(CURRENT), _EL_64K),
    Machine("GB200 NVL72", "ubuntu_24.04", Wish(CURRENT), {**_NVIDIA_64K, "devices": (GB200,) * 4}),
    Machine("DGX H100 with DGX OS", "ubuntu_22.04", Wish(CURRENT), _hgx(H100_SXM, vendor="DGX OS 6.3.1")),
    Machine("L40S, HWE kernel", "ubuntu_22.04", Wish(CURRENT), {"devices": (L40S,) * 4, **_HWE}),
    Machine("L40S, Secure Boot", "ubuntu_24.04", Wish(CURRENT, source=_DISTRIBUTION), {"devices": (L40S,), **_GENERIC, **_SECURE}),
    Machine("L40S, Secure Boot", "suse_15", Wish(CURRENT), {"devices": (L40S,), **_SECURE}),
    Machine("RTX PRO 6000", "ubuntu_26.04", Wish(NEW, source=_DISTRIBUTION), {"devices": (RTX_PRO_6000,) * 2}),
    Machine("RTX PRO 6000", "rhel_10", Wish(NEW, fingerprints=("A" * 40,)), {"devices": (RTX_PRO_6000,) * 2}),
    Machine(
        "T4, cloud kernel", "debian_12", Wish(CURRENT), {"devices": (T4,), **_kernel("6.1.0-30-cloud-amd64", "linux-image-cloud-amd64")}
    ),
    Machine("T4, AWS kernel", "ubuntu_24.04", Wish(CURRENT), {"devices": (T4,), **_kernel("6.8.0-1029-aws", "linux-image-aws")}),
    Machine("T4, UEK", "rhel_9", Wish(CURRENT), {"devices": (T4,), "id": "ol", **_kernel("5.15.0-307.178.5.el9uek.x86_64")}),
    Machine("V100", "debian_13", Wish(CURRENT), {"devices": (V100_SXM,) * 4}),
    Machine("V100", "ubuntu_24.04", Wish(NEW), {"devices": (V100_SXM,) * 8, **_GENERIC}),
)
