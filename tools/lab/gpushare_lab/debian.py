# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Debian's part: packages on this machine, the nodes' root file system, and nvidia-smi from non-free."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .cache import Cache
from .process import LabError, environment, run, run_logged, say

SUITE = "bookworm"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

#: Each package of this machine that the lab needs, with a file that tells whether it is there.
HOST_PACKAGES = {
    "podman": "/usr/bin/podman",
    "runc": "/usr/sbin/runc",
    "crun": "/usr/bin/crun",
    "netavark": "/usr/lib/podman/netavark",
    "aardvark-dns": "/usr/lib/podman/aardvark-dns",
    "uidmap": "/usr/bin/newuidmap",
    "iptables": "/usr/sbin/iptables",
    "conntrack": "/usr/sbin/conntrack",
    "debootstrap": "/usr/sbin/debootstrap",
    "gcc": "/usr/bin/gcc",
    "libc6-dev": "/usr/include/stdlib.h",
    "make": "/usr/bin/make",
    "openssh-client": "/usr/bin/ssh-keygen",
    "iproute2": "/usr/sbin/ip",
    "debian-archive-keyring": _KEYRING,
}

NODE_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "python3-venv",
    "iproute2",
    "iptables",
    "containerd",
    "runc",
    "containernetworking-plugins",
    "conntrack",
    "ethtool",
    "socat",
    "kmod",
    "procps",
    "mount",
    "openssh-server",
    "ca-certificates",
    # For tests whose Ansible connects as a user.
    "sudo",
    # For the test image.
    "busybox-static",
)

# What would change the machine (kernel settings, binary formats), or has nothing to do in a container.
MASKED_UNITS = (
    "systemd-sysctl.service",
    "systemd-binfmt.service",
    "proc-sys-fs-binfmt_misc.automount",
    "systemd-modules-load.service",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "sys-fs-fuse-connections.mount",
    "systemd-pstore.service",
    "systemd-random-seed.service",
    "systemd-logind.service",
    "getty.target",
    "e2scrub_reap.service",
    "e2scrub_all.timer",
    "fstrim.timer",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
)


def missing_host_packages() -> list[str]:
    """The packages of HOST_PACKAGES that this machine lacks, and venv support if this Python lacks it."""
    missing = [name for name, proof in HOST_PACKAGES.items() if not Path(proof).exists()]
    if run([sys.executable, "-c", "import ensurepip"], check=False).returncode != 0:
        missing.append("python3-venv")
    return missing


def install_host_packages(cache: Cache) -> None:
    """Install what is missing through apt-get, naming it."""
    if not (missing := missing_host_packages()):
        return
    if not shutil.which("apt-get"):
        raise LabError(f"this machine lacks {', '.join(missing)} and has no apt-get: install them (the lab is for Debian)")
    say(f"installing Debian packages: {', '.join(missing)} (they stay when the lab goes)")
    log = cache.log("host-packages")
    env = environment(DEBIAN_FRONTEND="noninteractive")
    run_logged("apt-get update", ["apt-get", "-q", "update"], log, env=env)
    argv = ["apt-get", "-qy", "install", "--no-install-recommends", *missing]
    run_logged("apt-get install", argv, log, env=env)
    if still := missing_host_packages():
        raise LabError(f"apt-get installed {', '.join(missing)}, but {', '.join(still)} still seem to be missing: see {log}")


def root_file_system(cache: Cache) -> Path:
    """The folder ``rootfs`` of a Debian for nodes, without keys or a machine id of its own."""

    def build(folder: Path) -> None:
        rootfs = folder / "rootfs"
        argv = ["debootstrap", f"--keyring={_KEYRING}", "--variant=minbase", f"--include={','.join(NODE_PACKAGES)}"]
        run_logged("debootstrap", [*argv, SUITE, rootfs, _mirror()], cache.log("debootstrap"))
        for key in rootfs.glob("etc/ssh/ssh_host_*"):
            key.unlink()
        (rootfs / "etc/machine-id").write_text("")
        (rootfs / "etc/hostname").unlink(missing_ok=True)
        for archive in rootfs.glob("var/cache/apt/archives/*.deb"):
            archive.unlink()
        for unit in MASKED_UNITS:
            link = rootfs / "etc/systemd/system" / unit
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")

    recipe = {"suite": SUITE, "packages": " ".join(NODE_PACKAGES), "masked": " ".join(MASKED_UNITS)}
    return cache.entry("debian", SUITE, recipe, build) / "rootfs"


def nvidia_smi(cache: Cache) -> Path:
    """The program nvidia-smi of Debian's non-free component."""
    return _nvidia_program(cache, "nvidia-smi", "usr/lib/nvidia/*/nvidia-smi")


def nvidia_mps(cache: Cache) -> Path:
    """The MPS control daemon, from the same place. It runs without a GPU; its servers do not."""
    return _nvidia_program(cache, "nvidia-cuda-mps", "usr/bin/nvidia-cuda-mps-control")


def _nvidia_program(cache: Cache, package: str, place: str) -> Path:
    """A program of NVIDIA. The package is unpacked only: installing it would bring the real libnvidia-ml."""
    name = place.rpartition("/")[2]

    def build(folder: Path) -> None:
        work = folder / ".work"
        (archive,) = download(work, [package], cache.log(package))
        run(["dpkg", "-x", archive, work / "unpacked"])
        (program,) = work.glob(f"unpacked/{place}")
        program.rename(folder / name)
        shutil.rmtree(work)

    return cache.entry(package, SUITE, {"suite": SUITE}, build) / name


def prometheus(cache: Cache) -> Path:
    """A folder with the programs prometheus and promtool. The package is unpacked only: installing it would start a service."""

    def build(folder: Path) -> None:
        work = folder / ".work"
        (package,) = download(work, ["prometheus"], cache.log("prometheus"))
        run(["dpkg", "-x", package, work / "unpacked"])
        for name in ("prometheus", "promtool"):
            (work / "unpacked/usr/bin" / name).rename(folder / name)
        shutil.rmtree(work)

    return cache.entry("prometheus", SUITE, {"suite": SUITE}, build)


def download(
    work: Path, names: Sequence[str], log: Path, installed: Path | None = None, *, architecture: str = "", updates: bool = False
) -> list[Path]:
    """The archives of packages, below a folder to make, by an apt of its own: this machine's sources, lists and archives stay as they are.

    installed: a file of dpkg with what is there; then the archives are those of all that is missing to install the packages.
    architecture: "" for this machine's; updates: also from the suite's updates, as this machine's own sources have them.
    """
    for name in ("etc/apt.conf.d", "etc/preferences.d", "lists/partial", "archives/partial", "unpacked"):
        (work / name).mkdir(parents=True)
    components = "main non-free non-free-firmware"
    sources = [(_mirror(), SUITE), *(_updates() if updates else ())]
    (work / "etc/sources.list").write_text("".join(f"deb [signed-by={_KEYRING}] {at} {suite} {components}\n" for at, suite in sources))
    config = work / "apt.conf"
    own = f'APT::Architecture "{architecture}";\nAPT::Architectures {{ "{architecture}"; }};\n' if architecture else ""
    config.write_text(_private_apt_configuration(work, run(["apt-config", "dump"]).stdout) + own)
    env = environment(APT_CONFIG=str(config))
    run_logged(f"apt-get update for {' '.join(names)}", ["apt-get", "-q", "update"], log, env=env)
    if installed:
        shutil.copyfile(installed, work / "status")
        how, found = ["install", "--download-only", "--yes", "--no-install-recommends"], work / "archives"
    else:
        how, found = ["download"], work
    run_logged(f"downloading {' '.join(names)}", ["apt-get", "-q", *how, *names], log, env=env, cwd=work)
    return sorted(found.glob("*.deb"))


def _private_apt_configuration(folder: Path, host_configuration: str) -> str:
    """apt's configuration with all of its folders below ``folder``, and this machine's way to the network."""
    network = [line for line in host_configuration.splitlines() if re.match(r"Acquire::(http|https|ftp)::", line)]
    own = [
        f'Dir::Etc "{folder}/etc";',
        'Dir::Etc::sourceparts "-";',
        f'Dir::State "{folder}";',
        f'Dir::State::status "{folder}/status";',
        f'Dir::Cache "{folder}";',
        # The sandbox user could not write below the cache of root.
        'APT::Sandbox::User "root";',
        'Acquire::Languages "none";',
    ]
    (folder / "status").write_text("")
    return "\n".join([*network, *own]) + "\n"


def _mirror() -> str:
    """The address that this machine's own sources have for the suite; LabError if they have none."""
    address = _configured_mirror()
    if address is None:
        # apt lists only what it has fetched.
        run(["apt-get", "-q", "update"])
        address = _configured_mirror()
    if address is None:
        raise LabError(
            f"apt of this machine has no http(s) source for Debian {SUITE}, component main; the nodes are made from it: "
            "add one to /etc/apt/sources.list"
        )
    return address


def _updates() -> list[tuple[str, str]]:
    """Address and suite of each source of updates that this machine has."""
    listed = run(["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)", "Created-By: Packages"], check=False).stdout
    found = [line.split("|") for line in listed.splitlines()]
    wanted = (f"{SUITE}-updates", f"{SUITE}-security")
    return sorted({(at, suite) for at, suite, component in found if suite in wanted and component == "main" and at.startswith("http")})


def _configured_mirror() -> str | None:
    fields = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
    listed = run(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"], check=False).stdout
    for line in listed.splitlines():
        address, release, component = line.split("|")
        # debootstrap does not know apt's other schemes, such as mirror+file.
        if (release, component) == (SUITE, "main") and address.startswith(("http://", "https://")):
            return address.rstrip("/")
    return None
