# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Small real rpm packages in the names and with the dependencies of NVIDIA's for Enterprise Linux and of SUSE's, in signed repositories.

The packages of the kernel module "build" it, or bring it: a file with the version and the licence that a real module has. NVIDIA's
repository for Enterprise Linux 9 has each branch and kind of driver in a stream of the module nvidia-driver, so this one has, too. SUSE's
own repository has the signed kernel modules, whose versions name the kernel, and NVIDIA's the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from driver_host.packages import UNIT, Repositories
from packages.machine import inside


@dataclass(frozen=True)
class Distribution:
    """One that packages are made for. name: of the role's data file; kind: its package manager; release: of its kernel.

    dist: the end of the release of its packages; streams: whether NVIDIA's repository has module streams for it; versionlock: whether its
    dnf has that plugin.
    """

    name: str
    kind: str
    os_release: str
    release: str
    dist: str
    streams: bool = False
    versionlock: bool = False

    @property
    def kernel(self) -> str:
        """The release without the machine, as packages have it in their versions."""
        return self.release.removesuffix(".x86_64")

    @property
    def kernel_base(self) -> str:
        return self.kernel.rpartition(".el")[0]


def _rocky(version: str, major: int) -> str:
    names = f'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="{version}"\nPRETTY_NAME="Rocky Linux {version}"\n'
    return f'{names}PLATFORM_ID="platform:el{major}"\n'


DISTRIBUTIONS = {
    one.name: one
    for one in (
        Distribution("rhel_9", "dnf", _rocky("9.5", 9), "5.14.0-503.11.1.el9_5.x86_64", ".el9", streams=True, versionlock=True),
        Distribution("rhel_10", "dnf", _rocky("10.1", 10), "6.12.0-55.9.1.el10_0.x86_64", ".el10"),
        Distribution(
            "suse_15",
            "zypper",
            'ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"\nPRETTY_NAME="SUSE Linux Enterprise Server 15 SP6"\n',
            "6.4.0-150600.21-default",
            "",
        ),
    )
}
OPEN, PROPRIETARY = "Dual MIT/GPL", "NVIDIA"
#: SUSE's packages of drivers from 590 on have other names, and its repositories have them beside those of G06.
G07 = "595.71.05"
_HEAD = """\
%global _binaries_in_noarch_packages_terminate_build 0
%global __os_install_post %{{nil}}
%global _build_id_links none
Name: {name}
{epoch}Version: {version}
Release: {release}
Summary: stub
License: stub
BuildArch: noarch
%description
stub
"""
# An older package is removed after the newer one was installed, so each takes away only its own.
_REMOVED = """\
for one in /lib/modules/*/*/nvidia.ko; do
  grep -qs 'version={version}' $one && grep -qs 'license={licence}' $one && rm $one
done
ls /lib/modules/*/*/nvidia.ko > /dev/null 2>&1 || rm -f /lib/modules/*/modules.dep
"""
_BUILT = """\
for release in $(ls /lib/modules); do
  test -e /usr/src/kernels/$release/Makefile || continue
  mkdir -p /lib/modules/$release/extra
  cp /usr/src/{name}-{version}/nvidia.ko /lib/modules/$release/extra/nvidia.ko
  echo "extra/nvidia.ko:" > /lib/modules/$release/modules.dep
done
"""
_BROUGHT = "mkdir -p /lib/modules/{release}/updates\ncp /usr/share/{name}/nvidia.ko /lib/modules/{release}/updates/nvidia.ko\n"
_BROUGHT += "echo 'updates/nvidia.ko:' > /lib/modules/{release}/modules.dep\n"


@dataclass(frozen=True)
class Rpm:
    """One package. files: path to content; more: lines of its head; after, before_removal: its scripts."""

    name: str
    version: str
    release: str
    more: tuple[str, ...] = ()
    files: tuple[tuple[str, str | Path], ...] = ()
    after: str = ""
    before_removal: str = ""
    epoch: str = ""

    def spec(self, tree: str) -> str:
        """The text for rpmbuild. tree: where its files are."""
        epoch = f"Epoch: {self.epoch}\n" if self.epoch else ""
        text = _HEAD.format(name=self.name, version=self.version, release=self.release, epoch=epoch)
        head, description = text.split("%description")
        text = head + "AutoReqProv: no\n" + "".join(f"{line}\n" for line in self.more) + "%description" + description
        text += f"%install\nmkdir -p %{{buildroot}}\ncp -r {tree}/. %{{buildroot}}/\n"
        for section, script in (("post", self.after), ("preun", self.before_removal)):
            text += f"%{section}\n{script}" if script else ""
        return text + "%files\n" + "".join(f"/{path}\n" for path, _content in self.files)


@dataclass(frozen=True)
class RpmRepositories(Repositories):
    """folder: has `driver`, the same with another key as `driver-second`, `driver-mixed` with metadata and packages of different keys,
    `empty`, and `os`, the distribution's own, unsigned. fingerprint, second: of the keys, which lie beside them as key.asc and second.asc.
    """


def make_rpm(root: Path, distribution: Distribution, versions: Sequence[str], nvidia_smi: Path) -> RpmRepositories:
    """Build them below /srv of a root that has rpmbuild and createrepo_c."""
    place = root / "srv" / distribution.name
    build = _enterprise if distribution.kind == "dnf" else _suse
    ours, theirs = build(distribution, versions, nvidia_smi)
    theirs.append(Rpm("bash", "5.1", "1", ("Provides: /bin/sh",)))
    for folder, packages in (("driver", ours), ("os", theirs)):
        for one in packages:
            _lay_out(root, distribution, folder, one)
    if distribution.streams:
        (root / "tmp" / distribution.name / "modules.yaml").write_text(_streams(distribution, versions))
    inside(root, ["bash", "-s", distribution.name], _SCRIPT, HOME="/root")
    first, second = (place / "fingerprints").read_text().split()
    return RpmRepositories(place, first, second)


def _enterprise(distribution: Distribution, versions: Sequence[str], nvidia_smi: Path) -> tuple[list[Rpm], list[Rpm]]:
    dist = distribution.dist
    ours = []
    for version in versions:
        exact = f"3:{version}"

        def rpm(name: str, *more: str, version: str = version, **rest: object) -> Rpm:
            return Rpm(name, version, f"1{dist}", more, epoch="3", **rest)  # type: ignore[arg-type]

        # What the role does not name follows by its exact version.
        ours += [
            rpm(
                "nvidia-driver-cuda",
                *(f"Requires: {name} = {exact}" for name in ("nvidia-driver-cuda-libs", "nvidia-persistenced", "nvidia-kmod-common")),
                files=(("usr/bin/nvidia-smi", nvidia_smi),),
            ),
            rpm("nvidia-driver-cuda-libs", f"Requires: libnvidia-ml = {exact}"),
            rpm("libnvidia-ml", files=((f"usr/lib64/libnvidia-ml.so.{version}", "stub"),)),
            rpm("nvidia-persistenced", files=(("usr/lib/systemd/system/nvidia-persistenced.service", UNIT),)),
            rpm("nvidia-modprobe"),
            rpm("nvidia-kmod-common", f"Requires: nvidia-kmod = {exact}", "Requires: nvidia-modprobe"),
        ]
        kmod = (f"Provides: nvidia-kmod = {exact}", f"Requires: nvidia-kmod-common = {exact}", "Requires(post): /bin/sh")
        for name, other, licence in (
            ("kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms", OPEN),
            ("kmod-nvidia-latest-dkms", "kmod-nvidia-open-dkms", PROPRIETARY),
        ):
            ours.append(
                rpm(
                    name,
                    *kmod,
                    "Requires: dkms",
                    f"Conflicts: {other}",
                    files=((f"usr/src/{name}-{version}/nvidia.ko", _module(version, licence)),),
                    after=_BUILT.format(name=name, version=version),
                    before_removal=_REMOVED.format(version=version, licence=licence),
                )
            )
        name = f"kmod-nvidia-open-{version}-{distribution.kernel_base}"
        ours.append(
            rpm(
                name,
                *kmod,
                "Conflicts: kmod-nvidia-latest-dkms",
                "Conflicts: kmod-nvidia-open-dkms",
                files=((f"usr/share/{name}/nvidia.ko", _module(version, OPEN)),),
                after=_BROUGHT.format(name=name, release=distribution.release),
                before_removal=_REMOVED.format(version=version, licence=OPEN),
            )
        )
    kernel, _dash, release = distribution.kernel.partition("-")
    headers = ((f"usr/src/kernels/{distribution.release}/Makefile", "# stub\n"),)
    theirs = [Rpm("kernel-devel", kernel, release, files=headers), Rpm("kernel-devel-matched", kernel, release), Rpm("dkms", "3.0.13", "1")]
    return ours, theirs


def _suse(distribution: Distribution, versions: Sequence[str], nvidia_smi: Path) -> tuple[list[Rpm], list[Rpm]]:
    ours: list[Rpm] = []
    theirs: list[Rpm] = []
    kernel = distribution.release.rpartition("-")[0].replace("-", "_")
    unit = ("usr/lib/systemd/system/nvidia-persistenced.service", UNIT)
    for version in (*versions, G07):
        branch = int(version.partition(".")[0])
        series, former = ("G06", "G05") if branch < 590 else ("G07", "G06")
        # As in SUSE's sources: nvidia-persistenced and nvidia-modprobe were parts of nvidia-compute-utils before they were packages.
        apart = branch >= 570
        signed, proprietary = f"nvidia-open-driver-{series}-signed-kmp", f"nvidia-driver-{series}-kmp"
        ours += [
            Rpm(
                f"nvidia-compute-{series}",
                version,
                "1",
                (
                    f"Provides: nvidia-compute{series} = {version}",
                    f"Conflicts: nvidia-compute{former}",
                    *((f"Requires(pre): nvidia-persistenced >= {version}",) if apart else ()),
                ),
                files=((f"usr/lib64/libnvidia-ml.so.{version}", "stub"),),
            ),
            Rpm(
                f"nvidia-compute-utils-{series}",
                version,
                "1",
                (f"Requires: nvidia-compute-{series} = {version}", f"Requires: ({signed} = {version} or {proprietary} = {version})"),
                files=(("usr/bin/nvidia-smi", nvidia_smi), *(() if apart else (unit,))),
            ),
        ]
        if apart:
            ours += [Rpm("nvidia-persistenced", version, "1", files=(unit,)), Rpm("nvidia-modprobe", version, "1")]
        modules = [(f"nvidia-open-driver-{series}-signed-cuda-kmp-default", signed, proprietary, OPEN, theirs)]
        if branch < 575:
            modules.append((f"{proprietary}-default", proprietary, signed, PROPRIETARY, ours))
        for name, provided, other, licence, packages in modules:
            packages.append(
                Rpm(
                    name,
                    f"{version}_k{kernel}",
                    "150600.3.63.1",
                    (f"Provides: {provided} = {version}", f"Conflicts: {other}", "Requires(post): /bin/sh"),
                    files=((f"usr/share/{name}/nvidia.ko", _module(version, licence)),),
                    after=_BROUGHT.format(name=name, release=distribution.release),
                    before_removal=_REMOVED.format(version=version, licence=licence),
                )
            )
    return ours, theirs


def _module(version: str, licence: str) -> str:
    return f"\x7fELF\0license={licence}\0version={version}\0"


def _lay_out(root: Path, distribution: Distribution, folder: str, one: Rpm) -> None:
    """The files and the spec of a package, below the builder's /tmp."""
    name = f"{one.name}-{one.version}"
    tree = root / "tmp" / distribution.name / folder / name
    for path, content in one.files:
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copy(content, target)
        else:
            target.write_text(content)
    tree.mkdir(parents=True, exist_ok=True)
    tree.with_name(f"{name}.spec").write_text(one.spec(f"/{tree.relative_to(root)}"))


def _streams(distribution: Distribution, versions: Sequence[str]) -> str:
    """The module nvidia-driver: the default stream has the newest driver with the proprietary kernel module, as NVIDIA's."""
    newest, documents = versions[-1], []
    streams = {"latest-dkms": [(newest, "kmod-nvidia-latest-dkms")], "open-dkms": [(newest, "kmod-nvidia-open-dkms")]}
    for version in versions:
        branch = version.partition(".")[0]
        streams.setdefault(f"{branch}-dkms", []).append((version, "kmod-nvidia-latest-dkms"))
        streams.setdefault(f"{branch}-open", []).append((version, "kmod-nvidia-open-dkms"))
    names = (
        "nvidia-driver-cuda",
        "nvidia-driver-cuda-libs",
        "libnvidia-ml",
        "nvidia-persistenced",
        "nvidia-modprobe",
        "nvidia-kmod-common",
    )
    for stream, content in streams.items():
        rpms = [f"{name}-3:{version}-1{distribution.dist}.noarch" for version, kmod in content for name in (*names, kmod)]
        documents.append(
            "document: modulemd\nversion: 2\ndata:\n  name: nvidia-driver\n"
            f'  stream: "{stream}"\n  version: 20250101000000\n  context: f56de2b252\n  arch: x86_64\n'
            "  summary: stub\n  description: stub\n  license:\n    module: [MIT]\n"
            "  profiles:\n    default:\n      rpms: [nvidia-driver-cuda]\n"
            "  artifacts:\n    rpms:\n" + "".join(f"    - {one}\n" for one in rpms)
        )
    documents.append(
        "document: modulemd-defaults\nversion: 1\ndata:\n  module: nvidia-driver\n  stream: latest-dkms\n"
        "  profiles:\n" + "".join(f'    "{stream}": [default]\n' for stream in streams)
    )
    return "".join(f"---\n{one}...\n" for one in documents)


_SCRIPT = """\
set -euo pipefail
work=/tmp/$1 place=/srv/$1
mkdir -p /srv/gnupg-driver "$place"
chmod 700 /srv/gnupg-driver
export GNUPGHOME=/srv/gnupg-driver
for who in key second; do
    gpg -q --list-keys "$who@example.org" > /dev/null 2>&1 ||
        gpg -q --batch --passphrase '' --quick-gen-key "$who <$who@example.org>" rsa2048 sign never
    gpg -q --armor --export "$who@example.org" > "$place/$who.asc"
    gpg --with-colons --list-keys "$who@example.org" | sed -n 's/^fpr:::::::::\\(.*\\):$/\\1/p' | head -1
done > "$place/fingerprints"
for folder in driver os; do
    rpmbuild -bb --quiet --define "_rpmdir $place/$folder" --define "_topdir $work/rpmbuild" "$work/$folder"/*.spec 2> "$work/log" || {
        cat "$work/log" >&2
        exit 1
    }
done
sign() { # folder key
    rpmsign --define '__gpg /usr/bin/gpg' --define "_gpg_name $2@example.org" --addsign "$1"/noarch/*.rpm > /dev/null
}
index() { # folder key
    createrepo_c -q "$1"
    if [ -e "$work/modules.yaml" ]; then modifyrepo_c --mdtype=modules "$work/modules.yaml" "$1/repodata" > /dev/null; fi
    gpg -q --armor -u "$2@example.org" --detach-sign "$1/repodata/repomd.xml"
}
cd "$place"
mkdir -p empty
cp -r driver driver-second
sign driver key
sign driver-second second
cp -r driver-second driver-mixed
index driver key
index driver-second second
index driver-mixed key
createrepo_c -q empty
gpg -q --armor -u key@example.org --detach-sign empty/repodata/repomd.xml
createrepo_c -q os
chmod -R a+rX "$place"
"""
