# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a bare machine without a network needs for the proof, in one folder: `make gpu-proof-pack`.

The wheels are those of the runtime's lock, judged by its hashes; nvidia-ctk and nvidia-cdi-hook are built from NVIDIA's Go module.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpu_proof.context import REPOSITORY
from gpushare_lab import components
from gpushare_lab.cache import Cache
from gpushare_lab.places import cache_root

PYTHON: Final = "3.12"
PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PROGRAMS: Final = ("nvidia-ctk", "nvidia-cdi-hook")
LOCK: Final = REPOSITORY / "files/gpushare_runtime/requirements.txt"
# What such a machine is given with the checkout may have 64 MiB.
MOST_MIB: Final = 56


class PackError(Exception):
    """The pack cannot be made; says why."""


def wheels(folder: Path) -> None:
    """PackError if one cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", PYTHON, *(f"--platform={one}" for one in PLATFORMS), "-r", str(LOCK)]
    done = subprocess.run([*command, "--dest", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackError(f"pip download has failed: {(done.stderr.strip().splitlines() or ['it printed nothing'])[-1][:300]}")


def programs(folder: Path, built: Path) -> None:
    """The two that write a CDI spec and that it names. They are built without symbols."""
    folder.mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy(built / name, folder / name)


def sealed(folder: Path) -> float:
    """Writes pack.json; the size in MiB. PackError if it is too large."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    mib = sum(path.stat().st_size for path in files) / 2**20
    if mib > MOST_MIB:
        raise PackError(f"found {mib:.1f} MiB in {folder}; expected at most {MOST_MIB} MiB")
    sums = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / "pack.json").write_text(json.dumps({"v": 1, "python": PYTHON, "mib": round(mib, 1), "sha256": sums}, indent=1) + "\n")
    return mib


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what was in it is replaced")
    folder: Path = parser.parse_args(argv).folder
    made = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    try:
        (made / "wheels").mkdir(parents=True)
        wheels(made / "wheels")
        programs(made / "bin", components.nvidia_toolkit(Cache(cache_root(os.environ))))
        mib = sealed(made)
    except PackError as error:
        print(f"gpu_proof.pack: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    print(f"{folder}: {mib:.1f} MiB, for Python {PYTHON}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
