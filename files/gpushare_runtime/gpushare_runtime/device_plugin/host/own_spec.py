# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Writes our own CDI spec for the GPUs of a host whose files are mounted in this container, by NVIDIA's nvidia-ctk.

On a node of NVIDIA's GPU Operator no other spec names single GPUs: its toolkit's has the device `all` of another kind, and the one of its
device plugin goes with that. nvidia-ctk reads the mounts and writes their paths. Here they become the host's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import quote
from gpushare_runtime.daemon.files import replace_files
from gpushare_runtime.device_plugin.host.cdi_specs import MOST_BYTES, SpecError, parse_spec
from gpushare_runtime.errors import GpushareError

#: Where a driver's files are, as the host sees it: in the container of the GPU Operator's driver, else on the host itself.
DRIVER_ROOTS: Final = ("/run/nvidia/driver", "/")
#: The program that prepares containers: of the GPU Operator's toolkit, which k3s and RKE2 find too, of a package, and of Talos.
HOOKS: Final = ("/usr/local/nvidia/toolkit/nvidia-cdi-hook", "/usr/bin/nvidia-cdi-hook", "/usr/local/bin/nvidia-cdi-hook")
LIBRARY: Final = "libnvidia-ml.so.1"
_LIBRARIES: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    # Debian's packages: the others are links to links that begin with /.
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib",
    "usr/local/glibc/usr/lib",
    "lib64",
    "lib",
)
# Behind a program that is a script of the GPU Operator's toolkit.
_REAL: Final = ".real"
_MOST_PROGRAM_BYTES: Final = 64 * 1024 * 1024
_SECONDS: Final = 30
_MODE: Final = 0o644
_MESSAGE: Final = re.compile(r'msg="(.*)"$')
_COMMAND: Final = ("nvidia-ctk", "--quiet", "cdi", "generate", "--mode=nvml", "--format=json", "--device-name-strategy=uuid")


class OwnSpecError(GpushareError):
    """Why no spec can be written, and what to do."""


@dataclass(frozen=True)
class HostFiles:
    """Where this container sees the host. root: the folder below which the host's paths are mounted, as far as they are.

    driver_root: the only place of the driver's files, as the host sees it; "" for any of DRIVER_ROOTS.
    """

    root: Path
    driver_root: str = ""

    def at(self, path: str) -> Path:
        """Where this container sees a path of the host."""
        return self.root / path.lstrip("/")

    def library(self) -> tuple[str, Path] | None:
        """The driver's root, as the host sees it, and its libnvidia-ml.so.1 as this container sees it; None without one."""
        for root in [self.driver_root] if self.driver_root else DRIVER_ROOTS:
            for folder in _LIBRARIES:
                if (found := self.at(root) / folder / LIBRARY).exists():
                    return root, found
        return None

    def hook(self) -> str | None:
        """The hook program, as the host sees it; None without one."""
        return next((path for path in self.hooks() if os.access(self.at(path), os.X_OK)), None)

    def hooks(self) -> tuple[str, ...]:
        """Paths at which the hook may be. On GKE the GPU Operator's toolkit is in the folder of the driver."""
        return (f"{self.driver_root}/toolkit/nvidia-cdi-hook", *HOOKS) if self.driver_root else HOOKS


def on_host(text: bytes, root: str, hooks: bytes) -> dict[str, Any]:
    """The spec that nvidia-ctk has written, with the host's paths instead of those below `root`. SpecError if it is none.

    hooks: the hook program. A toolkit of the host that is older than nvidia-ctk here fails at a hook that it does not know, and with it
    every container: what the program has no name for is left out.
    """
    try:
        spec = json.loads(text)
        for edits in (spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])):
            if "hooks" in edits:
                edits["hooks"] = [hook for hook in edits["hooks"] if hook["args"][1].encode() in hooks]
            for node in edits.get("deviceNodes", ()):
                # The container runtime reads them from the node: that of nvidia-uvm may change when the driver is loaded again.
                node.pop("major", None)
                node.pop("minor", None)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise SpecError(f"nvidia-ctk has written {quote(text.decode(errors='replace'))} ({type(error).__name__})") from None
    found = _replaced(spec, root.rstrip("/"))
    assert isinstance(found, dict)
    return found


def _replaced(value: Any, root: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(entry, root) for key, entry in value.items()}
    if isinstance(value, list):
        return [_replaced(entry, root) for entry in value]
    if not isinstance(value, str):
        return value
    # Also in an argument such as --folder=PATH.
    option, equals, path = value.partition("=") if value.startswith("--") else ("", "", value)
    if path == root or path.startswith(f"{root}/"):
        return f"{option}{equals}{path[len(root) :] or '/'}"
    return value


class OwnSpec:
    """path: of our spec, in a folder of CDI specs; scratch: a folder of this process alone, for what nvidia-ctk writes meanwhile."""

    def __init__(self, path: Path, files: HostFiles, scratch: Path) -> None:
        self.path = path
        self._files = files
        self._scratch = scratch
        self._written: bytes | None = None

    def intact(self) -> bool:
        """Whether the file has what this process has written."""
        return self._written is not None and self._content() == self._written

    def write(self, uuids: Sequence[str]) -> None:
        """Write the spec of these GPUs, of all of them without any. Blocks. OwnSpecError if that fails; then the file is as before.

        Only a whole spec is ever there: what was made is read by the same parser as the specs of others before it takes its place.
        """
        data = self._made(uuids)
        if data == self._content():
            self._written = data
            return
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._check_folder()
            replace_files({self.path: data}, {self.path: _MODE})
        except OSError as error:
            raise OwnSpecError(f"{self.path}: {error.strerror or error}") from None
        self._written = data

    def _made(self, uuids: Sequence[str]) -> bytes:
        root = str(self._files.root)
        found = self._files.library()
        if found is None:
            places = self._files.driver_root or " or ".join(DRIVER_ROOTS)
            raise OwnSpecError(f"no {LIBRARY} of the driver below {places} of the host: name the driver's place in gpushare_driver_root")
        hook = self._files.hook()
        if hook is None:
            raise OwnSpecError(
                f"the host has no {' or '.join(self._files.hooks())}: install NVIDIA's container toolkit 1.17 or newer there"
            )
        arguments = [
            f"--vendor={protocol.CDI_KIND_OWN.partition('/')[0]}",
            f"--class={protocol.CDI_KIND_OWN.partition('/')[2]}",
            # No device that is every GPU.
            "--no-all-device",
            f"--driver-root={self._files.at(found[0])}",
            f"--dev-root={root}",
            f"--nvidia-cdi-hook-path={hook}",
            *(f"--device-id={uuid}" for uuid in uuids),
        ]
        try:
            spec = on_host(_run(self._scratch, [*_COMMAND, *arguments]), root, _program(self._files.at(hook)))
            data = json.dumps(spec, indent=1).encode() + b"\n"
            parsed = parse_spec(data)
        except (OSError, SpecError) as error:
            raise OwnSpecError(str(error)) from None
        names = {name.removeprefix(f"{protocol.CDI_KIND_OWN}=") for name in parsed.devices}
        if parsed.kind != protocol.CDI_KIND_OWN or not names or (uuids and names != set(uuids)):
            raise OwnSpecError(f"nvidia-ctk has named {quote(sorted(names))} as {parsed.kind}; expected {quote(sorted(uuids))}")
        return data

    def _content(self) -> bytes | None:
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                return file.read(MOST_BYTES + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
        except OSError:
            return None

    def _check_folder(self) -> None:
        """Only root may write there: the container runtime does as root what a spec says."""
        status = os.stat(self.path.parent, follow_symlinks=False)
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
            found = f"{self.path.parent} of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}"
            raise OwnSpecError(f"{found}; expected a folder of root that others may not write: chown root:root, chmod 0755")


def _program(path: Path) -> bytes:
    """The bytes of the program, behind a script of the GPU Operator's toolkit."""
    for name in _candidates(path):
        with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:
            return file.read(_MOST_PROGRAM_BYTES)
    raise FileNotFoundError(f"{path} is gone")


def _candidates(path: Path) -> Iterator[Path]:
    yield path.with_name(path.name + _REAL)
    yield path


def _run(scratch: Path, command: Sequence[str]) -> bytes:
    """The output of nvidia-ctk, which it writes to a file of its own first. scratch: a folder for that."""
    try:
        with tempfile.TemporaryDirectory(prefix=".nvidia-ctk-", dir=scratch) as folder:
            environment = {**os.environ, "TMPDIR": folder}
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OwnSpecError(f"{command[0]}: {error}"[:300]) from None
    if done.returncode:
        # Only the last line of a failure is for users. Its time would make each failure another one.
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        message = _MESSAGE.search(last)
        raise OwnSpecError(f"{command[0]} failed: {(message[1] if message else last)[-300:]}")
    return done.stdout
