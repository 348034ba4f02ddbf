# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`make image`: write build/image/gpushare-VERSION-ARCH.tar, which ctr, docker and podman load, and print its name and digest."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import tomllib  # type: ignore[import-not-found,unused-ignore]

HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / ".collections"))

from gpushare_lab.process import LabError  # noqa: E402

from .build import build, machine  # noqa: E402
from .layout import MACHINES  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(prog="make image", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the image goes")
    parser.add_argument("--architecture", choices=list(MACHINES), default=machine() or "amd64", help="default: this machine's")
    parser.add_argument(
        "--unpacked", action="store_true", help="put the files of the image into the folder, as the Containerfile wants them"
    )
    given = parser.parse_args()
    source = HERE / "files/gpushare_runtime"
    version = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
    folder = given.folder.resolve()
    output = folder / f"gpushare-{version}-{given.architecture}.tar"
    if given.unpacked:
        folder.mkdir(parents=True, exist_ok=True)
        output = folder
    began = time.monotonic()
    try:
        reference, digest = build(source, given.architecture, folder.with_name(f".{folder.name}-{given.architecture}"), output)
    except LabError as error:
        raise SystemExit(str(error)) from None
    if given.unpacked:
        return
    print(f"{given.folder / output.name}: {output.stat().st_size / 1e6:.1f} MB, {time.monotonic() - began:.0f} s")
    print(f"{reference}@{digest}")


if __name__ == "__main__":
    main()
