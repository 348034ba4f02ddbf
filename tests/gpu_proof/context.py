# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What every step gets: the machine as it was found, the programs that use the GPU, and where to write."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_PROGRAMS: Final = Path(__file__).with_name("programs")
DRIVER_CLIENT: Final = (sys.executable, str(_PROGRAMS / "driver_client.py"))

CONTEXT_MIB: Final = 1536
PODS: Final = 200


@dataclass(frozen=True)
class Context:
    """folder: of this step's own files; out: of the results.

    library: folder of libnvidia-ml; loads: whether ld.so finds it by itself; smi, mps, ctk, hook: paths of programs, "" without.
    namespace: why NVML's process numbers are not those of this machine, "" if they are. driver: the client on the driver's own library;
    framework: the one with PyTorch, empty without. seconds: of each measurement; pods: of the churn; context_mib: what a client may have
    beside what it allocates.
    """

    folder: Path
    out: Path
    library: str = ""
    loads: bool = True
    smi: str = ""
    mps: str = ""
    ctk: str = ""
    hook: str = ""
    namespace: str = ""
    driver: tuple[str, ...] = DRIVER_CLIENT
    framework: tuple[str, ...] = ()
    seconds: float = 3.0
    pods: int = PODS
    context_mib: int = CONTEXT_MIB
    path: tuple[str, ...] = field(default_factory=tuple)  # of Python's modules

    def to_json(self) -> str:
        return json.dumps({name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()})

    @classmethod
    def from_json(cls, text: str) -> Context:
        values: dict[str, Any] = json.loads(text)
        for name in ("folder", "out"):
            values[name] = Path(values[name])
        for name in ("driver", "framework", "path"):
            values[name] = tuple(values[name])
        return cls(**values)

    @property
    def client(self) -> tuple[str, ...]:
        """The one with a framework, where there is one."""
        return self.framework or self.driver


def torch_client(python: str) -> tuple[str, ...]:
    """With the machine's own PyTorch, and without the proof's modules."""
    return "env", "-u", "PYTHONPATH", python, str(_PROGRAMS / "torch_client.py")
