# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Small real packages in the names and with the dependencies of NVIDIA's, of several versions, in a signed repository for apt.

The packages of the kernel module "build" it: a file with the version and the licence that a real module has, below /lib/modules, if the
headers of the kernel are there. nvidia-smi is Debian's real one. On a node of the lab the libraries are the simulated ones.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

#: The oldest first.
VERSIONS = ("550.163.01", "580.95.05", "580.126.20")
UNIT = "[Unit]\nDescription=stub\n[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
_KINDS = {"nvidia-kernel-open-dkms": "Dual MIT/GPL", "nvidia-kernel-dkms": "NVIDIA"}
_BUILD = """\
for release in $(ls /lib/modules); do
  test -e /usr/src/linux-headers-$release/Makefile || continue
  mkdir -p /lib/modules/$release/updates/dkms
  cp /usr/src/{name}-{version}/nvidia.ko /lib/modules/$release/updates/dkms/nvidia.ko
  echo "updates/dkms/nvidia.ko:" > /lib/modules/$release/modules.dep
done
"""
_UNBUILD = "for release in $(ls /lib/modules); do rm -rf /lib/modules/$release/updates /lib/modules/$release/modules.dep; done\n"


@dataclass(frozen=True)
class Repositories:
    """folder: has the packages as `driver` and `headers`, and `driver-second`, which is `driver` signed with another key. fingerprint,
    second: of the keys, which lie beside them as key.asc and second.asc."""

    folder: Path
    fingerprint: str
    second: str


def make(
    folder: Path, nvidia_smi: Path, versions: tuple[str, ...], release: str, libraries: Mapping[str, Path] | None = None
) -> Repositories:
    """Build both repositories. release: of the kernel that has headers; libraries: such as libcuda.so, to a file for each version."""
    driver, headers = folder / "driver", folder / "headers"
    for version in versions:
        _driver(driver, version, nvidia_smi, libraries or {"libnvidia-ml.so": "stub"})
    _package(headers, f"linux-headers-{release}", "1", files={f"usr/src/linux-headers-{release}/Makefile": "# stub\n"})
    _package(headers, "linux-headers-amd64", "1", depends=f"linux-headers-{release}")
    (first, fingerprint), (other, second) = (_key(folder, name) for name in ("key", "second"))
    for place in (driver, headers):
        _index(place)
        _sign(place, first)
    _sign(shutil.copytree(driver, folder / "driver-second"), other)
    return Repositories(folder, fingerprint, second)


def _key(folder: Path, name: str) -> tuple[list[str], str]:
    """(a gpg that has it, its fingerprint)."""
    home = folder / f"gnupg-{name}"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch"]
    _run([*gpg, "--passphrase", "", "--quick-gen-key", f"Test {name} <test@example.org>", "rsa2048", "sign", "never"])
    (folder / f"{name}.asc").write_bytes(_run([*gpg, "--armor", "--export"]))
    rows = _run([*gpg, "--with-colons", "--fingerprint"]).decode().splitlines()
    return gpg, next(row.split(":")[9] for row in rows if row.startswith("fpr:"))


def _driver(place: Path, version: str, nvidia_smi: Path, libraries: Mapping[str, str | Path]) -> None:
    full = f"{version}-1"
    for name, licence in _KINDS.items():
        (other,) = set(_KINDS) - {name}
        module = f"\x7fELF\0license={licence}\0version={version}\0"
        scripts = {"postinst": _BUILD.format(name=name, version=version), "prerm": _UNBUILD}
        _package(place, name, full, files={f"usr/src/{name}-{version}/nvidia.ko": module}, scripts=scripts, conflicts=other)
    _package(place, "nvidia-smi", full, files={"usr/bin/nvidia-smi": nvidia_smi})
    files = {f"usr/lib/x86_64-linux-gnu/{name}.{version}": content for name, content in libraries.items()}
    _package(place, "libnvidia-ml1", full, files=files, scripts={"postinst": "ldconfig\n", "postrm": "ldconfig\n"})
    # What it needs is named by exact version, as NVIDIA's are: apt alone would take the newest of it.
    _package(place, "nvidia-driver-cuda", full, depends=f"nvidia-smi (= {full}), libnvidia-ml1 (= {full})")
    _package(place, "nvidia-persistenced", full, files={"lib/systemd/system/nvidia-persistenced.service": UNIT})
    _package(place, "nvidia-modprobe", full)


def _package(
    place: Path,
    name: str,
    version: str,
    depends: str = "",
    conflicts: str = "",
    files: Mapping[str, str | Path] | None = None,
    scripts: Mapping[str, str] | None = None,
) -> None:
    tree = place / "build" / f"{name}_{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    fields = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "Test <test@example.org>", "Description": "stub"}
    fields |= {key: value for key, value in (("Depends", depends), ("Conflicts", conflicts), ("Provides", conflicts)) if value}
    (tree / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
    for script, text in (scripts or {}).items():
        (tree / "DEBIAN" / script).write_text(f"#!/bin/sh\nset -e\n{text}")
        (tree / "DEBIAN" / script).chmod(0o755)
    for path, content in (files or {}).items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copy(content, target)
        else:
            target.write_bytes(content.encode())
    _run(["dpkg-deb", "--build", "--root-owner-group", "-Znone", str(tree), str(place / f"{name}_{version}_amd64.deb")])


def _index(place: Path) -> None:
    shutil.rmtree(place / "build")
    entries = []
    for path in sorted(place.glob("*.deb")):
        content = path.read_bytes()
        control = _run(["dpkg-deb", "--field", str(path)]).decode()
        entries.append(f"{control}Filename: ./{path.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n")
    packages = "\n".join(entries).encode()
    (place / "Packages").write_bytes(packages)
    (place / "Packages.gz").write_bytes(gzip.compress(packages))
    sums = []
    for name in ("Packages", "Packages.gz"):
        content = (place / name).read_bytes()
        sums.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n")
    date = formatdate(usegmt=True).replace("GMT", "UTC")
    (place / "Release").write_text(f"Origin: test\nSuite: stable\nDate: {date}\nSHA256:\n{''.join(sums)}")


def _sign(place: Path, gpg: list[str]) -> None:
    (place / "InRelease").unlink(missing_ok=True)
    _run([*gpg, "--clearsign", "--output", str(place / "InRelease"), str(place / "Release")])


def _run(argv: list[str]) -> bytes:
    return subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "LC_ALL": "C"}).stdout
