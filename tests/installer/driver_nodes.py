# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPU nodes of a lab whose driver comes from packages: the kernel module that lies on the disk is loaded at boot, and a boot is real.

A container cannot boot a kernel. So a unit shows at each boot what the kernel would: the loaded module's version, and another boot id.
The simulated GPUs answer with the version that is loaded, and not at all while the library on the disk is of another one.

`python -m installer.driver_nodes FOLDER VERSION...` writes what a node needs into the folder: node.tar, to be unpacked at its root,
setup.sh, to be run there, and the fingerprint of the repository's key.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from driver_host.host import MODPROBE
from driver_host.packages import Repositories, make
from e2e.cluster import Cluster, CommandError
from gpushare_lab import components, debian
from gpushare_lab.cache import Cache
from gpushare_lab.places import cache_root

_STATE = "/var/lib/gpushare-lab/gpus.state"
# What is loaded stays until the next boot. At the end as nvidia-cdi-refresh does.
_MODPROBE = f"""#!/bin/sh
test ! -e /proc/driver/nvidia/version || exit 0
{MODPROBE}sed -i "s/^driver_version=.*/driver_version=$version/; s/^driver=.*/driver=ok/" {_STATE}
gpushare-lab-gpu refresh
"""
_BOOT = """#!/bin/sh
set -e
mkdir -p /run/driver
mount --bind /run/driver /proc/driver
cat /proc/sys/kernel/random/uuid > /run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
modprobe nvidia || true
"""
_UNIT = """[Unit]
Description=The kernel's part of the driver
After=gpushare-lab-boot.service
Before=containerd.service kubelet.service ssh.service gpushare-device-plugin.service
[Service]
Type=oneshot
RemainAfterExit=true
Environment=PATH=/usr/local/sbin:/usr/sbin:/usr/bin
ExecStart=/usr/local/sbin/driver-boot
[Install]
WantedBy=multi-user.target
"""
# After another library has come, the one that is loaded no longer fits.
_CHANGED = f"""#!/bin/sh
library=$(readlink -f /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1)
grep -qF " ${{library##*.so.}} " /proc/driver/nvidia/version 2>/dev/null || sed -i 's/^driver=.*/driver=mismatch/' {_STATE}
"""
# The nodes have no logind, which shutdown asks. The terminal of the command may go before setsid has run.
_SHUTDOWN = "#!/bin/sh\ntrap '' HUP\nsetsid sh -c 'sleep 1; exec systemctl reboot --force' > /dev/null 2>&1 &\n"
_HOOK = 'DPkg::Post-Invoke {"/usr/local/sbin/driver-changed";};\n'
_FILES = {
    "usr/local/sbin/modprobe": _MODPROBE,
    "usr/local/sbin/driver-boot": _BOOT,
    "usr/local/sbin/driver-changed": _CHANGED,
    "usr/sbin/shutdown": _SHUTDOWN,
    "etc/systemd/system/driver-boot.service": _UNIT,
    "etc/apt/apt.conf.d/90driver-changed": _HOOK,
}
_SETUP = """\
chown -R root: /packages
chmod -R a+rX /packages
mkdir -p /lib/modules/$(uname -r)
touch /lib/modules/$(uname -r)/modules.builtin
rm -f /etc/apt/sources.list
printf 'deb [trusted=yes] file:///packages/headers ./\\n' > /etc/apt/sources.list.d/headers.list
apt-get -q update
systemctl daemon-reload
systemctl enable --now -q driver-boot
"""


def repositories(folder: Path, versions: tuple[str, ...]) -> Repositories:
    """Drivers of these versions with the simulated libraries."""
    cache = Cache(cache_root(os.environ))
    library = components.nvml(cache)
    libraries = {f"{name}.so": next(library.glob(f"{name}.so.*.*")) for name in ("libnvidia-ml", "libcuda")}
    return make(folder, debian.nvidia_smi(cache), versions, os.uname().release, libraries)


def archive(repositories: Repositories) -> bytes:
    """A tar file of the repositories at /packages of a node, and of its kernel's part."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name in ("driver", "headers", "key.asc"):
            made.add(repositories.folder / name, f"packages/{name}")
        for path, text in _FILES.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text.encode()), 0o755 if "sbin" in path else 0o644
            made.addfile(member, BytesIO(text.encode()))
    return buffer.getvalue()


def prepare(cluster: Cluster, node: str, repositories: Repositories) -> None:
    """Let a node have them."""
    cluster.feed(node, "tar", "-x", "-C", "/", content=archive(repositories))
    cluster.on(node, "sh", "-ec", _SETUP)


@contextmanager
def switched_on_again(cluster: Cluster, nodes: Sequence[str]) -> Iterator[list[str]]:
    """While in it, a node that reboots comes back, as a machine would. The nodes that did, in their order."""
    came, stop = [], threading.Event()

    def is_off(node: str) -> bool:
        try:
            cluster.on(node, "true", seconds=60)
        except CommandError as error:
            # One that only answers late is not off.
            return "did not end within" not in str(error)
        return False

    def switch_on() -> None:
        try:
            cluster.lab("up", seconds=600)
        except CommandError as error:
            # On a busy machine, its nodes may take longer to be ready than the lab waits.
            print(f"lab up: {error}")

    def watch() -> None:
        while not stop.wait(1):
            for node in filter(is_off, nodes):
                came.append(node)
                switch_on()
                while is_off(node) and not stop.wait(1):
                    switch_on()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield came
    finally:
        stop.set()
        thread.join()


def driver_of(cluster: Cluster, node: str) -> str:
    """The driver with which the node's GPUs answer, as nvidia-smi says it."""
    lines = cluster.on(node, "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()
    (version,) = set(lines)
    return version


def units_of(cluster: Cluster, node: str) -> str:
    return str(cluster.node(node)["status"]["allocatable"].get("aliyun.com/gpu-mem"))


def variables(repositories: Repositories, version: str, **more: object) -> tuple[str, ...]:
    """Arguments for ansible-playbook: the driver of that version, from the node's own repository."""
    settings = {
        "gpushare_driver_state": "managed",
        "gpushare_driver_repository": "file:///packages/driver",
        "gpushare_driver_key": "/packages/key.asc",
        "gpushare_driver_fingerprints": [repositories.fingerprint],
        "gpushare_driver_version": version,
        # The lab's inventory changes all nodes at once.
        "gpushare_serial": [1, "25%"],
        **more,
    }
    return ("--extra-vars", json.dumps(settings))


def main(folder: str, *versions: str) -> None:
    made = Path(folder)
    made.mkdir(parents=True)
    there = repositories(made / "repositories", versions)
    (made / "node.tar").write_bytes(archive(there))
    (made / "setup.sh").write_text(_SETUP)
    (made / "fingerprint").write_text(there.fingerprint)


if __name__ == "__main__":
    main(*sys.argv[1:])
