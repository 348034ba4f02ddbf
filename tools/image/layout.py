# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the image has and where: names of packages, files that are kept, and how it runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.lock import Target

from gpushare_lab.archive import Link, Member, Text

PYTHON: Final = "3.11"
"""Debian bookworm's."""
#: Python, what its modules and the wheels are linked to, and the name of the system for scanners.
PACKAGES: Final = (
    "base-files",
    "gcc-12-base",
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    "libssl3",
    "libstdc++6",
    "libuuid1",
    f"python{PYTHON}-minimal",
    "zlib1g",
)
ROOT: Final = "opt/gpushare"
SITE: Final = f"{ROOT}/lib/python{PYTHON}/site-packages"
USER: Final = 65535
# As `platform.machine` of Linux says it, and the C library's name of the linker.
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
NAME: Final = "localhost/gpushare"
MOST_PACKED_MB: Final = 60
MOST_MB: Final = 150

#: NVIDIA's program that writes CDI specs, for the device plugin on nodes that somebody else prepares.
CTK: Final = f"{ROOT}/bin/nvidia-ctk"
CTK_NOTICE_FILE: Final = "usr/share/doc/nvidia-container-toolkit/copyright"
CTK_NOTICE: Final = """\
nvidia-ctk of NVIDIA's container toolkit {version}, built from its Go module without changes.
Source: https://github.com/NVIDIA/nvidia-container-toolkit
Copyright: NVIDIA CORPORATION. Licence: Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0
`go version -m nvidia-ctk` lists the Go modules in it.
"""

#: What the image has of the extra `kubectl`. The package `kubernetes` reads kubeconfigs whose users log in by a program, which is in no
#: image: with what it needs it would be more than half of this one.
OF_KUBECTL: Final = ("markdown-it-py", "mdurl", "pygments", "rich")

#: An interpreter below our folder: take_over.yml tells our processes from those of the original by the first word of their command.
_INTERPRETER: Final = f"/{ROOT}/bin/python3"
#: How containers of the image run, unless their pod says something else. The Containerfile says the same.
ENVIRONMENT: Final = {"PATH": f"/{ROOT}/bin:/usr/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}
COMMAND: Final = ("kubectl-gpushare", "--help")

_KEPT: Final = re.compile(
    rf"""usr/lib/(?!systemd/|tmpfiles\.d/)(?!.*/(?:gconv|audit|perl-base|engines-3|ossl-modules)/).*
    | usr/lib64/.* | usr/bin/python{re.escape(PYTHON)} | etc/python.*/.* | etc/os-release | etc/debian_version
    | usr/share/doc/[^/]+(?:/copyright)?""",
    re.VERBOSE,
)
_STANDARD_LIBRARY: Final = f"usr/lib/python{PYTHON}/"
# Programs to change or show Python programs; pip's is not in Debian's package.
_NOT_NEEDED: Final = ("distutils/", "ensurepip/", "idlelib/", "lib2to3/", "pydoc_data/", "tkinter/", "turtledemo/")


def kept(name: str) -> str | None:
    """Where a file of a package goes, None for nowhere. /lib and the like are links into /usr, as on any Debian since 12."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0] == "/":
        return None
    if parts[0] in ("bin", "sbin", "lib", "lib64"):
        parts = ("usr", *parts)
    place = "/".join(parts)
    if place.startswith(_STANDARD_LIBRARY) and place.removeprefix(_STANDARD_LIBRARY).startswith(_NOT_NEEDED):
        return None
    return place if _KEPT.fullmatch(place) else None


def target(architecture: str) -> Target:
    """The image's Python, with Debian bookworm's C library, 2.36."""
    return Target(PYTHON, MACHINES[architecture], glibc=36)


def wheel_place(name: str) -> str | None:
    """Where a file of a wheel goes, None for nowhere: the programs of others are not in the image."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0] == "/" or name.endswith("/"):
        return None
    if parts[0].endswith(".data"):
        return "/".join([SITE, *parts[2:]]) if parts[1] in ("purelib", "platlib") else None
    return "/".join([SITE, *parts])


@dataclass(frozen=True)
class Program:
    """A program of ours: `module:function`."""

    module: str
    function: str

    @property
    def text(self) -> str:
        return f"#!{_INTERPRETER} -I\nimport sys\nfrom {self.module} import {self.function}\nsys.exit({self.function}())\n"


def own_members(scripts: Mapping[str, str]) -> dict[str, Member]:
    """What is from no package. scripts: name → `module:function`, as in pyproject.toml."""
    members: dict[str, Member] = {name: Link(f"usr/{name}") for name in ("bin", "lib", "lib64")}
    members |= {f"{ROOT}/bin/{name}": Text(Program(*entry.split(":")).text, 0o755) for name, entry in scripts.items()}
    members[f"{ROOT}/bin/python3"] = Link(f"/usr/bin/python{PYTHON}")
    # What makes the folder an environment of that Python.
    members[f"{ROOT}/pyvenv.cfg"] = Text("home = /usr/bin\ninclude-system-site-packages = false\n")
    members["etc/passwd"] = Text(f"root:x:0:0::/:/\ngpushare:x:{USER}:{USER}::/:/\n")
    members["etc/group"] = Text(f"root:x:0:\ngpushare:x:{USER}:\n")
    return members
