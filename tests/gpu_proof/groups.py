# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Control groups named as kubelet names them, by both of its drivers, on a machine without kubelet."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu_proof.findings import NotPossible

DRIVERS: Final = ("cgroupfs", "systemd")
# Of version 1: the plugin looks there in this order, and at version 2 last.
_CONTROLLERS: Final = ("memory", "pids", "devices", "cpu")
_MOUNTS: Final = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class PodGroup:
    """uid: of the pod; folder: of its container."""

    uid: str
    folder: Path


def hierarchy(mounts: Path = _MOUNTS) -> Path:
    """The mount in which the plugin looks for pods. NotPossible without a writable one."""
    found: dict[str, tuple[str, str]] = {}
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if right and right[0] in ("cgroup", "cgroup2"):
            for name in [""] if right[0] == "cgroup2" else right[-1].split(","):
                found.setdefault(name, (left[4], left[5]))
    place = next((found[name] for name in (*_CONTROLLERS, "") if name in found), None)
    if place is None:
        raise NotPossible("found no control groups in /proc/self/mountinfo; expected a mount of cgroup2")
    if "ro" in place[1].split(","):
        raise NotPossible(f"found {place[0]} mounted read-only; expected control groups that can be written, as outside of a container")
    return Path(place[0])


def names(driver: str, uid: str, container: str) -> tuple[str, ...]:
    """The folders of a pod's container, from the top."""
    if driver == "cgroupfs":
        return "kubepods", "burstable", f"pod{uid}", container
    pod = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    return "kubepods.slice", "kubepods-burstable.slice", pod, f"cri-containerd-{container}.scope"


@contextlib.contextmanager
def pod_groups(count: int, driver: str, top: Path, kept: Path | None = None) -> Iterator[list[PodGroup]]:
    """So many pods with one container each; what was made is removed again. NotPossible where nothing can be made.

    kept: a file that gets what is made, for whoever ends this process.
    """
    made: list[Path] = []
    try:
        pods = []
        for _ in range(count):
            uid, folder = str(uuid.uuid4()), top
            for name in names(driver, uid, uuid.uuid4().hex + uuid.uuid4().hex):
                folder = folder / name
                if not folder.exists():
                    folder.mkdir()
                    made.append(folder)
                    if kept:
                        kept.write_text("\n".join(map(str, made)))
            pods.append(PodGroup(uid, folder))
        yield pods
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith(str(top)):
            raise
        raise NotPossible(
            f"found {error.strerror} at {error.filename}; expected to make control groups in {top}, as root of the host"
        ) from None
    finally:
        remove(made)


def remove(made: Sequence[Path]) -> None:
    """The groups, in the order in which they were made; not those that others use."""
    for folder in reversed(made):
        # A process that ends needs a moment to leave its group.
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)
