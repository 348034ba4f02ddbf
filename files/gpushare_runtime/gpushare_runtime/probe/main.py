# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-probe: prints as JSON which device nodes of NVIDIA this container has, and what its first process was told about GPUs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from gpushare_runtime import __version__

NAME: Final = "gpushare-probe"
_MOST_DEVICES: Final = 256
_MOST_VARIABLES: Final = 64
_LONGEST: Final = 4096
_CAPS: Final = "nvidia-caps"
_MOST_BYTES: Final = 1024 * 1024
_PREFIXES: Final = ("ALIYUN_COM_", "NVIDIA_VISIBLE_DEVICES")


def probe(root: Path = Path("/")) -> dict[str, Any]:
    """devices: names below /dev. environment: of process 1. truncated: whether there is more than is listed."""
    devices = sorted(name for name in _names(root / "dev") if name.startswith("nvidia") and name != _CAPS)
    # Those of MIG instances.
    devices += sorted(f"{_CAPS}/{name}" for name in _names(root / "dev" / _CAPS))
    try:
        with (root / "proc/1/environ").open("rb") as file:
            raw = file.read(_MOST_BYTES)
    except OSError as error:
        return {"devices": devices[:_MOST_DEVICES], "environment": {}, "error": f"/proc/1/environ: {error.strerror}"}
    pairs = (pair.decode(errors="replace").partition("=") for pair in raw.split(b"\0"))
    found = sorted((name, value) for name, sign, value in pairs if sign and name.startswith(_PREFIXES))
    return {
        "devices": devices[:_MOST_DEVICES],
        "environment": {name[:_LONGEST]: value[:_LONGEST] for name, value in found[:_MOST_VARIABLES]},
        "truncated": len(devices) > _MOST_DEVICES or len(found) > _MOST_VARIABLES or any(len(value) > _LONGEST for _, value in found),
    }


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, 65536)]
    except OSError:
        return []


def main(argv: Sequence[str] | None = None) -> int:
    """The console command. Returns the exit status: 1 if the first process's environment cannot be read."""
    parser = argparse.ArgumentParser(prog=NAME, description="Show as JSON the GPUs that this container has got.")
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    parser.parse_args(argv)
    found = probe()
    print(json.dumps(found, sort_keys=True))
    return 1 if "error" in found else 0


if __name__ == "__main__":
    sys.exit(main())
