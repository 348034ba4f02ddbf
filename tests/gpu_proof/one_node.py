# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A Debian with systemd, kubeadm, kubelet and containerd, packed on one machine and booted in namespaces of another one that has a GPU."""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gpu_proof import machine
from gpu_proof.context import REPOSITORY
from gpushare_lab import components, debian, golang, images, payload, runtimes
from gpushare_lab.places import SOURCES
from gpushare_lab.prepare import the_cache
from gpushare_lab.spec import POD_SUBNET

NODE: Final = "gpu1"
ARCHIVE: Final = "node.tar.xz"
PROGRAMS: Final = "srv/programs"
BUNDLE: Final = "srv/bundle.tar"
CONTROLLER: Final = "srv/controller"
#: Of its file system, which is in memory.
MOST_GIB: Final = 12
_ADDRESS: Final = "10.231.0.10"
_CONTAINERD: Final = "containerd-2.4"
# Of the Python of the node's Debian.
_PYTHON: Final = "3.11"
_ANSIBLE: Final = "ansible-core==2.19.14"
_PLATFORMS: Final = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_LEFT_OUT: Final = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt")
_TOOLKIT: Final = "github.com/NVIDIA/nvidia-container-toolkit"
_DRIVER: Final = ("libcuda*.so*", "libnvidia-*.so*")
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT: Final = (_PATH, "HOME=/root", "LC_ALL=C.UTF-8", "KUBECONFIG=/etc/kubernetes/admin.conf")
# Without an interface of its own, the node has no address.
_NETWORK: Final = f"""
ip link set lo up
ip link add eth0 type bridge
ip address add {_ADDRESS}/24 dev eth0
ip link set eth0 up
ip route add default via 10.231.0.1
ldconfig
"""
_MOUNTS: Final = (
    *(("/proc", "proc", ""), ("/sys", "sysfs", ""), ("/sys/fs/cgroup", "cgroup", ""), ("/dev", "tmpfs", "mode=755")),
    *(("/dev/pts", "devpts", "newinstance ptmxmode=0666"), ("/dev/shm", "tmpfs", "mode=1777"), ("/dev/mqueue", "mqueue", "")),
    *(("/run", "tmpfs", "mode=755"), ("/tmp", "tmpfs", "mode=1777")),
)
# By number.
_CAPABILITIES: Final = """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE
SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND
AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"""


class Failed(Exception):
    """A command that failed, or a condition that did not come; with its last words."""


def done(*command: str | Path, seconds: float = 600, log: Path | None = None, **more: Any) -> str:
    """What it printed. log: a file that gets it, so that it is there after a deadline, too."""
    with log.open("w+") if log else tempfile.TemporaryFile("w+") as words:
        try:
            ended = subprocess.run(command, stdout=words, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False, **more)
            why = f"ended with {ended.returncode}" if ended.returncode else ""
        except subprocess.TimeoutExpired:
            why = f"did not end within {seconds:g} s"
        words.seek(0)
        said = words.read()
    if why:
        raise Failed(f"{' '.join(map(str, command))[-300:]} {why}: {said.strip()[-3000:]}")
    return said


def until(what: str, condition: Callable[[], Any], seconds: float) -> Any:
    """What the condition returns, once that is true. A command that fails may succeed later."""
    deadline, trouble = time.monotonic() + seconds, ""
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except (Failed, LookupError, ValueError, OSError) as error:
            trouble = f": {error}"
        time.sleep(0.2)
    raise Failed(f"not so within {seconds:g} s: {what}{trouble}")


def pack(folder: Path) -> None:
    """The whole file system of the node as one archive, with all that the installation needs where there is no network."""
    cache = the_cache()
    kubernetes, rootfs = components.kubernetes(cache, components.KUBERNETES), debian.root_file_system(cache)
    archives = images.archives(cache, components.KUBERNETES, kubernetes, rootfs)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name) / "root"
        programs = payload.programs_layer(cache, components.KUBERNETES, kubernetes)
        for layer in (rootfs, *runtimes.layers(cache, _CONTAINERD, rootfs), programs, SOURCES / "node/base"):
            done("cp", "-a", f"{layer}/.", root)
        for left_out in _LEFT_OUT:
            shutil.rmtree(root / left_out)
        (root / "var/lib/apt/lists").mkdir()
        _settings(root, archives.pause)
        (root / PROGRAMS).mkdir(parents=True)
        for number, archive in enumerate((archives.every_node, archives.control_plane)):
            shutil.copy(archive, root / f"srv/images{number}.tar")
        source = Path(__file__).with_name("programs") / "pod_client.c"
        done("gcc", "-O2", "-Wall", "-Wextra", "-Wno-cast-function-type", "-o", root / PROGRAMS / "pod_client", source, "-ldl")
        _ansible(root, Path(name) / "wheels")
        packages = [{"system": "debian-12", "folder": str(_packages(Path(name)))}]
        wanted = {"pythons": [_PYTHON], "architectures": ["x86_64"], "folder": name, "packages": packages}
        variables = json.dumps({f"gpushare_bundle_{key}": value for key, value in wanted.items()})
        done(Path(sys.executable).with_name("ansible-playbook"), "playbooks/bundle.yml", "-e", variables, cwd=REPOSITORY)
        next(Path(name).glob("gpushare-bundle-*.tar")).rename(root / BUNDLE)
        # The programs of Kubernetes are in an image, too: the window spans both.
        packed = f"tar -c -C {root} . | xz --lzma2=preset=2,dict=512MiB > {folder / ARCHIVE}"
        done("bash", "-o", "pipefail", "-c", packed, seconds=3600)


def _settings(root: Path, pause: str) -> None:
    """The lab's for a node of its own, and its own control plane."""
    variables = {"address": _ADDRESS, "endpoint": "", "etcd_arguments": "[]", "version": components.KUBERNETES, "pod_subnet": POD_SUBNET}
    kubeadm = payload.render("kubeadm.yaml", **variables)
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "/usr/bin/python3",
        "gpushare_bundle": f"/{BUNDLE}",
        "gpushare_toolkit_state": "managed",
        "gpushare_metrics_address": "127.0.0.1",
    }
    groups = {group: {"hosts": {NODE: host}} for group in ("kube_control_plane", "gpu_nodes")}
    files = {
        "etc/hosts": f"127.0.0.1 localhost\n{_ADDRESS} {NODE}\n",
        "etc/resolv.conf": "",
        "etc/containerd/config.toml": payload.render("containerd-2.toml", sandbox_image=pause, version=runtimes.CONTAINERDS_2[_CONTAINERD]),
        "etc/cni/net.d/10-lab.conflist": payload.render("cni.conflist", pod_range=POD_SUBNET.replace("/16", "/24")),
        "srv/kubeadm.yaml": re.sub(r"(?<=ignorePreflightErrors: )\[.*\]", "[all]\n  taints: []", kubeadm),
        "srv/hosts.json": json.dumps({"all": {"children": groups}}),
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "opt/cni").mkdir()
    (root / "opt/cni/bin").symlink_to("/usr/lib/cni")
    (root / "etc/systemd/system/multi-user.target.wants/ssh.service").unlink()
    for name, place in (("gpushare-lab-boot", "/etc"), ("kubelet", "/usr/lib")):
        (root / f"etc/systemd/system/multi-user.target.wants/{name}.service").symlink_to(f"{place}/systemd/system/{name}.service")


def _ansible(root: Path, wheels: Path) -> None:
    """A virtual environment of the node's own Python."""
    chosen = ["--only-binary=:all:", f"--python-version={_PYTHON}", *(f"--platform={name}" for name in _PLATFORMS)]
    done(sys.executable, "-m", "pip", "download", "--quiet", *chosen, "--dest", wheels, _ANSIBLE)
    shutil.copytree(wheels, root / "tmp/wheels")
    done("chroot", root, "python3", "-m", "venv", f"/{CONTROLLER}")
    done("chroot", root, f"/{CONTROLLER}/bin/pip", "install", "--quiet", "--no-index", "--find-links=/tmp/wheels", _ANSIBLE)
    shutil.rmtree(root / "tmp/wheels")


def _packages(folder: Path) -> Path:
    """NVIDIA's container toolkit as packages of the same names, of the lab's programs and the units and scripts of NVIDIA's module."""
    cache, version, packages = the_cache(), components.NVIDIA_TOOLKIT, folder / "packages"
    command: list[str | Path] = [golang.go_command(cache), "mod", "download", "-json", f"{_TOOLKIT}@v{version}"]
    module = Path(json.loads(done(*command, cwd=folder, env=golang.go_environment(cache, cgo=False)))["Dir"])
    toolkit, units = components.nvidia_toolkit(cache), module / "deployments/systemd"
    base = {f"usr/bin/{name}": toolkit / name for name in ("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime")}
    base |= {f"lib/systemd/system/nvidia-cdi-refresh.{kind}": units / f"nvidia-cdi-refresh.{kind}" for kind in ("service", "path")}
    base["DEBIAN/postinst"] = module / "packaging/debian/nvidia-container-toolkit-base.postinst"
    hook = {"usr/bin/nvidia-container-runtime-hook": toolkit / "nvidia-container-runtime-hook"}
    contents: dict[str, dict[str, Path]] = {"nvidia-container-toolkit-base": base, "nvidia-container-toolkit": hook}
    packages.mkdir()
    for name, files in {**contents, "libnvidia-container1": {}, "libnvidia-container-tools": {}}.items():
        (folder / name / "DEBIAN").mkdir(parents=True)
        for path, source in files.items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name / path)
            (folder / name / path).chmod(0o644 if "systemd" in path else 0o755)
        fields = {"Package": name, "Version": f"{version}-1", "Architecture": "amd64", "Maintainer": "the lab", "Description": name}
        (folder / name / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
        done("dpkg-deb", "--root-owner-group", "--build", folder / name, packages)
    return packages


class Node:
    """folder: for its file system, which is in memory; log: folder."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.root = folder / "root"
        self._folder, self._log, self._pid = folder, log, ""

    def unpack(self, archive: Path) -> None:
        """With the driver of this machine where a package of it puts it."""
        self.root.mkdir()
        done("mount", "-t", "tmpfs", "-o", f"mode=755,size={MOST_GIB}g", "tmpfs", self.root)
        with subprocess.Popen(["tar", "-x", "-C", self.root], stdin=subprocess.PIPE) as tar, lzma.open(archive) as stream:
            assert tar.stdin
            shutil.copyfileobj(stream, tar.stdin, 2**20)
            tar.stdin.close()
        if tar.returncode:
            raise Failed(f"tar ended with {tar.returncode}")
        library, _ = machine.library_folder()
        for path in (path for pattern in _DRIVER for path in Path(library).glob(pattern)):
            copy = self.root / _LIBRARIES / path.name
            copy.symlink_to(path.readlink().name) if path.is_symlink() else shutil.copy(path, copy)
        shutil.copy(machine.program("nvidia-smi", library), self.root / "usr/bin/nvidia-smi")
        # The toolkit's unit looks for the module there; this machine has it loaded already.
        modules = self.root / "lib/modules" / platform.release()
        modules.mkdir(parents=True)
        (modules / "modules.dep").write_text("updates/dkms/nvidia.ko:\n")

    def boot(self) -> None:
        (self._folder / "config.json").write_text(json.dumps(self._configuration()))
        command = [*self._runc, "run", "--detach", "--bundle", self._folder, "--pid-file", self._folder / "pid", NODE]
        done(*command, seconds=60, log=self._log / "boot.log", stdin=subprocess.DEVNULL)
        self._pid = (self._folder / "pid").read_text()
        self.run("sh", "-ec", _NETWORK)
        until("the node has booted", lambda: self.run("sh", "-c", "systemctl is-active gpushare-lab-boot containerd && ctr version"), 60)

    @property
    def _runc(self) -> tuple[str | Path, ...]:
        return self.root / "usr/sbin/runc", "--root", self._folder / "runc"

    def run(self, *command: str, seconds: float = 60, log: str = "", text: str | None = None) -> str:
        """What a command in the node printed. log: the name of a file for it."""
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
        inside = ["nsenter", f"--target={self._pid}", "--all", "env", "-i", *_ENVIRONMENT]
        return done(*inside, *command, seconds=seconds, log=self._log / log if log else None, **given)

    def keep_logs(self) -> None:
        """Whatever of it can be had."""
        state = "systemctl --failed; ip a; mount; nvidia-smi; ls -l /dev; kubectl get nodes,pods,events -A -o yaml"
        for name, command in (("journal.log", "journalctl --no-pager -o short-precise"), ("state.log", state)):
            with contextlib.suppress(Failed):
                self.run("sh", "-c", command, log=name)

    def down(self) -> None:
        subprocess.run([*self._runc, "delete", "--force", NODE], check=False)
        subprocess.run(["umount", "--lazy", self.root], check=False)

    def _configuration(self) -> dict[str, Any]:
        ours = int(re.findall(r"^CapBnd:\s*(\w+)", Path("/proc/self/status").read_text(), re.M)[0], 16)
        names = [f"CAP_{name}" for number, name in enumerate(_CAPABILITIES.split()) if ours >> number & 1]
        mounts = [{"destination": at, "type": kind, "source": kind, "options": how.split()} for at, kind, how in _MOUNTS]
        devices = [
            {"path": str(path), "type": "c", "major": os.major(number), "minor": os.minor(number), "fileMode": 0o666}
            for path in (Path("/dev/kmsg"), *Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("*"))
            if stat.S_ISCHR(path.stat().st_mode)
            for number in (path.stat().st_rdev,)
        ]
        process: dict[str, Any] = {"user": {"uid": 0, "gid": 0}, "args": ["/sbin/init"], "cwd": "/", "env": [_PATH, "container=runc"]}
        process["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), names)
        linux = {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network", "cgroup")],
            "cgroupsPath": f"/gpushare-{NODE}",
            "resources": {"devices": [{"allow": True, "access": "rwm"}]},
            "devices": devices,
        }
        return {"ociVersion": "1.0.2", "process": process, "root": {"path": "root"}, "hostname": NODE, "mounts": mounts, "linux": linux}
