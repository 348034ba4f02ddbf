# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that is known of each container runtime before a host is asked, in one table.

The places that cannot read it have the same names: the choices of roles and modules, and the runtime's device_plugin/node/node_kind.py.
tests/unit/plugins/host/test_container_runtimes.py compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

# kubelet's images are in this namespace. The layers are unpacked when a container first needs them, as with an image that was pulled by
# another program.
_IMPORT = ("--address", "{address}", "--namespace", "k8s.io", "images", "import")


@dataclass(frozen=True)
class CdiReleases:
    """The first releases that have a part of CDI. since: it passes on the CDI devices of kubelet's own field, once CDI is on.

    default: CDI is on unless its configuration says otherwise; the same release where it has no such switch. specs: its library reads
    version 0.7.0 of the CDI specification.
    """

    since: Tuple[int, ...]
    default: Tuple[int, ...]
    specs: Tuple[int, ...]


@dataclass(frozen=True)
class RuntimeKind:
    """A kind of container runtime. owner: of its journal entries. unit: its usual service. program: what that starts.

    version: a pattern of what `PROGRAM --version` prints. sockets: its usual ones, the first is its own default. names: words in the path
    of kubelet's endpoint that mean it. settings: the folder of its configuration. writes: the folder in which we write.
    imports: commands that import an archive of images, whose path follows; the first counts whose program is there, and {address} is the
    path of its socket. without_cdi: why an old release, at {version}, does not pass CDI devices on. cdi: None where no release does.
    """

    owner: str
    unit: str
    program: str
    version: str
    sockets: Tuple[str, ...]
    names: Tuple[str, ...]
    settings: str
    writes: str
    imports: Tuple[Tuple[str, ...], ...]
    without_cdi: str
    cdi: Optional[CdiReleases] = None


#: By the names that the facts about a host use.
KINDS: Mapping[str, RuntimeKind] = {
    "containerd": RuntimeKind(
        owner="container_runtime",
        unit="containerd.service",
        program="containerd",
        version=r"containerd [^\s]+ v?([0-9][^\s]*)",
        sockets=("/run/containerd/containerd.sock",),
        names=("containerd",),
        settings="/etc/containerd",
        writes="/etc/containerd/conf.d",
        imports=(("ctr", *_IMPORT), ("k3s", "ctr", *_IMPORT)),
        without_cdi="containerd {version} does not take CDI devices from kubelet, releases from 1.7.2 on do",
        # From `since` on the CRI's own field counts. Releases before it read annotations, which kubelet no longer sends. The toolkit
        # writes version 0.7.0 from 1.19 on where a device node has a group: NVIDIA's release notes of 1.19.1, and go.mod of containerd
        # (0.6.2 in 1.7.15, 0.7.2 in 1.7.16) and of CRI-O (0.7.2 in 1.30.0); read 2026-11-24.
        cdi=CdiReleases(since=(1, 7, 2), default=(2, 0), specs=(1, 7, 16)),
    ),
    "docker": RuntimeKind(
        owner="container_runtime.docker",
        unit="docker.service",
        program="dockerd",
        version=r"Docker version ([0-9][^\s,]*)",
        sockets=("/run/docker.sock",),
        names=("cri-dockerd", "dockershim"),
        settings="/etc/docker",
        writes="/etc/docker",
        imports=(("docker", "load", "--input"),),
        without_cdi="cri-dockerd up to 0.4.3 does not pass CDI devices to docker",
    ),
    "cri-o": RuntimeKind(
        owner="container_runtime.cri-o",
        unit="crio.service",
        program="crio",
        version=r"crio version ([0-9][^\s]*)",
        sockets=("/run/crio/crio.sock",),
        names=("crio",),
        settings="/etc/crio",
        writes="/etc/crio/crio.conf.d",
        # Both have their images in the same folder.
        imports=(("podman", "load", "--input"),),
        without_cdi="CRI-O {version} reads CDI devices from annotations only, releases from 1.28 on do not",
        cdi=CdiReleases(since=(1, 28), default=(1, 28), specs=(1, 30)),
    ),
}
DEFAULT_SOCKET = KINDS["containerd"].sockets[0]


def socket_path(endpoint: Optional[str]) -> str:
    """The path of the socket that kubelet's endpoint means; None is kubelet's own default."""
    return (endpoint or DEFAULT_SOCKET).replace("unix://", "")
