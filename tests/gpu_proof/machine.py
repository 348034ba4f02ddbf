# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The machine as it is found: where the driver's library and programs lie, PyTorch, control groups, the namespace of processes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"
# Where container runtimes, cloud images and driver containers put the driver.
_FOLDERS: Final = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib64-nvidia",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/home/kubernetes/bin/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/opt/nvidia/lib64",
)
# The inode of the first namespace of processes, in include/linux/proc_ns.h.
_FIRST_NAMESPACE: Final = "pid:[4026531836]"
_SECONDS: Final = 60


_LOADS: Final = """
import ctypes
ctypes.CDLL("libnvidia-ml.so.1")
with open("/proc/self/maps") as maps:
    print(next(line.split(maxsplit=5)[5].strip() for line in maps if "/libnvidia-ml.so" in line))
"""
_HAS_TORCH: Final = """
import importlib.util, os, runpy, sys
found = importlib.util.find_spec("torch")
version = os.path.join(os.path.dirname(found.origin or ""), "version.py") if found else ""
sys.exit(not found or (os.path.exists(version) and not runpy.run_path(version).get("cuda")))
"""


def cdi_command(ctk: str, hook: str, output: Path, library: str) -> list[str]:
    """nvidia-ctk as the installer's service calls it. hook, library: "" to leave it to nvidia-ctk."""
    command = [ctk, "cdi", "generate", "--device-name-strategy=uuid", "--device-name-strategy=index", f"--output={output}"]
    command += [f"--nvidia-cdi-hook-path={hook}"] if hook else []
    # It looks in ld.so's cache alone, and a driver's folder need not be there.
    return [*command, *([f"--library-search-path={library}"] if library else [])]


def library_folder() -> tuple[str, bool]:
    """Where the driver's library lies, "" without one, and whether ld.so finds it by itself."""
    loaded = subprocess.run([sys.executable, "-c", _LOADS], capture_output=True, text=True, check=False, timeout=_SECONDS)
    if loaded.returncode == 0:
        return os.path.dirname(loaded.stdout.strip()), True
    return next((folder for folder in _candidates() if os.path.exists(f"{folder}/{LIBRARY}")), ""), False


def _candidates() -> Iterator[str]:
    # A container runtime mounts each file of the driver.
    for line in _lines("/proc/self/mountinfo"):
        fields = line.split()
        if len(fields) > 4 and "libnvidia-ml.so" in fields[4]:
            yield os.path.dirname(fields[4])
    for line in _lines("/proc/self/maps"):
        if "/libcuda.so" in line or "/libnvidia-ml.so" in line:
            yield os.path.dirname(line.split(maxsplit=5)[-1])
    if found := shutil.which("nvidia-smi"):
        beside = Path(os.path.realpath(found)).parent
        yield from (str(beside), str(beside.parent / "lib64"), str(beside.parent / "lib"), str(beside.parent / "lib/x86_64-linux-gnu"))
    yield from _FOLDERS


def program(name: str, library: str) -> str:
    """The path of a program of the driver: in PATH, or beside its library; "" without."""
    if found := shutil.which(name):
        return found
    base = Path(library).parent if library else Path("/usr")
    places = [library, base / "bin", base.parent / "bin", base.parent.parent / "bin", "/usr/local/nvidia/bin", "/run/nvidia/driver/usr/bin"]
    return next((f"{place}/{name}" for place in places if place and os.access(f"{place}/{name}", os.X_OK)), "")


def torch_python(pythons: Sequence[str] | None = None) -> str:
    """The Python of this machine whose PyTorch was built for CUDA; "" without. To import it here would take seconds for each."""
    named = [sys.executable, *(shutil.which(name) or "" for name in ("python3", "python3.12", "python"))]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for python in dict.fromkeys(pythons or [*named, "/opt/conda/bin/python", "/usr/bin/python3", "/usr/local/bin/python3"]):
        if os.access(python, os.X_OK):
            asked = subprocess.run([python, "-c", _HAS_TORCH], capture_output=True, check=False, timeout=_SECONDS, env=plain)
            if asked.returncode == 0:
                return python
    return ""


def own_namespace() -> str:
    """Why NVML's process numbers, which are the host's, mean nothing to this process; "" if they do."""
    try:
        found = os.readlink("/proc/self/ns/pid")
    except OSError as error:
        return f"found no namespace of processes ({error.strerror})"
    return (
        ""
        if found == _FIRST_NAMESPACE
        else f"found the namespace {found}; expected the host's, {_FIRST_NAMESPACE}, whose numbers NVML reports"
    )


def facts(library: str, found: bool, torch: str) -> dict[str, Any]:
    """For the report; nothing that identifies the machine."""
    return {
        "system": _release(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "library": f"{library or 'not found'}{', by ld.so' if found else ''}",
        "pytorch": bool(torch),
        "nvcc": bool(shutil.which("nvcc") or os.access("/usr/local/cuda/bin/nvcc", os.X_OK)),
        "namespace": own_namespace() or "the host's",
        "control_groups": [" ".join(line.split()[4:6]) for line in _lines("/proc/self/mountinfo") if " - cgroup" in line],
    }


def _release() -> str:
    named = dict(line.split("=", 1) for line in _lines("/etc/os-release") if "=" in line)
    return str(named.get("PRETTY_NAME", "unknown")).strip('"')


def _lines(path: str) -> Sequence[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return ()
