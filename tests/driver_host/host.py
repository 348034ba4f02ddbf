# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A Debian with systemd in a container, with a repository of drivers, on which Ansible runs the role nvidia_driver as on its own machine.

What the kernel would show is a folder over /proc/driver: the container's modprobe "loads" the module that the packages built.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from driver_host.packages import Repositories

REPOSITORY = Path(__file__).resolve().parents[2]
#: "Loads" what the packages built.
MODPROBE = r"""#!/bin/sh
module=/lib/modules/$(uname -r)/updates/dkms/nvidia.ko
test -e "$module" || { echo "modprobe: FATAL: Module nvidia not found in directory ${module%/*/nvidia.ko}" >&2; exit 1; }
version=$(tr '\0' '\n' < "$module" | sed -n 's/^version=//p')
case $(tr '\0' '\n' < "$module" | sed -n 's/^license=//p') in
  Dual*) words="Open Kernel Module for x86_64" ;;
  *) words="x86_64 Kernel Module" ;;
esac
mkdir -p /proc/driver/nvidia
echo "NVRM version: NVIDIA UNIX $words  $version  Wed Jan  1 00:00:00 UTC 2025" > /proc/driver/nvidia/version
"""


_Host = TypeVar("_Host", bound="DriverHost")


class DriverHost:
    """The host. Use as a context. root: of its file system, or with ":O" at its end, of one below a layer that is thrown away."""

    def __init__(self, root: str, repositories: Repositories) -> None:
        self._root = root
        self._repositories = repositories
        #: The fingerprint of the repository's other key.
        self.second = repositories.second
        self._name = f"gpushare-driver-test-{os.getpid()}"
        # Ansible's own Python is the one that runs this test.
        self._python = Path(sys.prefix)

    def __enter__(self: _Host) -> _Host:
        base = Path(sys.executable).resolve().parents[1]
        mounts = {base: base, self._python: self._python, REPOSITORY: REPOSITORY, self._repositories.folder: Path("/packages")}
        limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        argv = ["podman", "--runtime", "runc", "run", "--detach", "--name", self._name, "--hostname", "driver", "--network", "none"]
        argv += ["--systemd=false", "--privileged", "--cgroupns=private", "--stop-signal=SIGRTMIN+3", "--pids-limit=-1"]
        argv += [word for name, kind in limits.items() for word in ("--ulimit", "{0}={1}:{1}".format(name, _bounded(kind)))]
        argv += ["--tmpfs", "/run:mode=755", "--tmpfs", "/tmp", "-e", "container=podman"]
        argv += [word for source, target in mounts.items() for word in ("-v", f"{source}:{target}:ro")]
        subprocess.run([*argv, "--rootfs", self._root, "/sbin/init"], check=True, capture_output=True)
        try:
            self._until_booted()
            self.prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        subprocess.run(["podman", "rm", "--force", "--time", "0", self._name], check=False, capture_output=True)

    def prepare(self) -> None:
        """The kernel's part, and the repository with the headers."""
        self.sh(
            "mkdir -p /lib/modules/$(uname -r) /run/driver; touch /lib/modules/$(uname -r)/modules.builtin; "
            "mount --bind /run/driver /proc/driver; rm -f /etc/apt/sources.list; cat > /usr/local/sbin/modprobe; "
            "chmod 755 /usr/local/sbin/modprobe",
            stdin=MODPROBE,
        )
        self.sh("printf 'deb [trusted=yes] file:///packages/headers ./\\n' > /etc/apt/sources.list.d/headers.list; apt-get -q update")

    def sh(self, script: str, stdin: str = "") -> str:
        """What the script prints. CalledProcessError if it fails."""
        argv = ["podman", "exec", "--interactive", self._name, "sh", "-ec", script]
        return subprocess.run(argv, check=True, capture_output=True, text=True, input=stdin).stdout

    def role(self, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run the role on the host, from the host."""
        settings = {
            "gpushare_driver_state": "managed",
            "gpushare_driver_repository": "file:///packages/driver",
            "gpushare_driver_key": "/packages/key.asc",
            "gpushare_driver_fingerprints": [self._repositories.fingerprint],
            **variables,
        }
        return self.play([{"ansible.builtin.include_role": {"name": "gpushare.kubernetes.nvidia_driver"}}], *arguments, **settings)

    def play(self, tasks: list[dict[str, Any]], *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run tasks on the host, from the host."""
        with tempfile.TemporaryDirectory(dir=self._repositories.folder) as folder:
            Path(folder).chmod(0o755)
            Path(folder, "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
            here = f"/packages/{Path(folder).name}/play.yml"
            environment = {
                "PATH": f"{self._python}/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
                "ANSIBLE_CONFIG": f"{REPOSITORY}/ansible.cfg",
                "ANSIBLE_LOCAL_TEMP": "/tmp/ansible",
                "ANSIBLE_HOME": "/tmp/ansible-home",
                "ANSIBLE_NOCOLOR": "1",
            }
            argv = ["podman", "exec", "-w", str(REPOSITORY)]
            argv += [word for key, value in environment.items() for word in ("-e", f"{key}={value}")]
            argv += [self._name, "ansible-playbook", "-i", "me,", "-c", "local", "-e", "ansible_python_interpreter=/usr/bin/python3"]
            return subprocess.run([*argv, "-e", json.dumps(settings), *arguments, here], capture_output=True, text=True, check=False)

    @property
    def packages_folder(self) -> Path:
        """What the host has as /packages."""
        return self._repositories.folder

    def packages(self) -> dict[str, str]:
        """Every installed package with its version."""
        rows = self.sh("dpkg-query --show --showformat '${db:Status-Status}\\t${Package}\\t${Version}\\n'").splitlines()
        return {name: version for state, name, version in (row.split("\t") for row in rows) if state == "installed"}

    def loaded(self) -> str:
        """The kernel's line about the driver, "" for none."""
        return self.sh("cat /proc/driver/nvidia/version 2>/dev/null || true").strip()

    def reboot(self) -> None:
        """What a boot does to the driver: the module that lies on disk is loaded."""
        self.sh("rm -rf /proc/driver/nvidia; modprobe nvidia")

    def _until_booted(self) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            argv = ["podman", "exec", self._name, "systemctl", "is-system-running"]
            state = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
            if state in ("running", "degraded"):
                return
            time.sleep(0.5)
        raise TimeoutError(f"the container {self._name} has not booted within 180 s")


def changed(done: subprocess.CompletedProcess[str]) -> int:
    """How many tasks changed something. AssertionError if the run failed."""
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = re.findall(r"changed=(\d+)", done.stdout)
    return int(found)


def rejection(done: subprocess.CompletedProcess[str]) -> str:
    """What a run said that failed. AssertionError if it did not."""
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stdout + done.stderr


def _bounded(kind: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return 20000 if hard == resource.RLIM_INFINITY else min(hard, 20000)


def files(host: DriverHost) -> str:
    return host.sh("find /etc /lib/modules -type f ! -name '*-' ! -path '/etc/alternatives/*' | sort | xargs sha256sum")


@contextmanager
def instead_of(host: DriverHost, folder: str, script: str) -> Iterator[None]:
    """While in it, the host sees what the script makes, in an empty folder, in the place of one of the kernel's folders."""
    host.sh(f"mount -t tmpfs none {folder}; cd {folder}; {script}")
    try:
        yield
    finally:
        host.sh(f"umount {folder}")
