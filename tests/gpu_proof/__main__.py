# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Proves on this machine's GPU what CI proves on simulated ones: `make gpu-proof`.

Exit status: 0 if all that is possible here did as expected, 1 if something did not, 2 if nothing is possible here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from gpu_proof import machine, page
from gpu_proof.context import DRIVER_CLIENT, PODS, REPOSITORY, Context, torch_client
from gpu_proof.runner import run_steps
from gpu_proof.steps import STEPS, TOTAL_SECONDS

_COLLECTION = "ansible_collections/gpushare/kubernetes"


def modules(pack: Path | None, folder: Path) -> list[str]:
    """Python's path for the steps: this checkout, the pack's wheels, and the collection under its name."""
    own = [str(REPOSITORY / name) for name in ("files/gpushare_runtime", "tests", "tools", "tools/lab")]
    # Whoever copies a checkout may leave out its links.
    collection = folder / "collections" / _COLLECTION
    collection.parent.mkdir(parents=True)
    collection.symlink_to(REPOSITORY)
    site = folder / "site"
    for wheel in sorted((pack / "wheels").glob("*.whl")) if pack else ():
        with zipfile.ZipFile(wheel) as content:
            content.extractall(site)
    return [*own, str(folder / "collections"), *([str(site)] if pack else []), *filter(None, sys.path)]


def tools(pack: Path | None, folder: Path) -> tuple[str, str]:
    """nvidia-ctk and nvidia-cdi-hook: a copy of the pack's that may be executed, else the machine's; "" without."""
    found = []
    for name in ("nvidia-ctk", "nvidia-cdi-hook"):
        packed = pack / "bin" / name if pack else None
        if packed and packed.exists():
            shutil.copy(packed, folder / name)
            (folder / name).chmod(0o755)
        found.append(str(folder / name) if packed and packed.exists() else shutil.which(name) or "")
    return found[0], found[1]


def unfit(pack: Path | None) -> str:
    """Why the pack is not for this Python; "" if it is."""
    if pack is None:
        return ""
    file = pack / "pack.json"
    if not file.exists():
        return f"found no {file}; expected a pack: run make gpu-proof-pack where there is a network"
    wanted, mine = json.loads(file.read_text())["python"], f"{sys.version_info[0]}.{sys.version_info[1]}"
    return (
        "" if wanted == mine else f"found Python {mine}; expected {wanted}, which the pack's wheels are for: set GPU_PYTHON=python{wanted}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(prog="gpu_proof", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the report and the fixtures go")
    parser.add_argument(
        "--pack", type=Path, metavar="DIR", help="what make gpu-proof-pack has filled; without: what this Python can import"
    )
    parser.add_argument("--only", action="append", choices=names, metavar="STEP", help=f"of {', '.join(names)}; repeat it for others")
    parser.add_argument("--total", type=float, default=TOTAL_SECONDS, metavar="SECONDS", help="for all steps (default: %(default)g)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (default: %(default)g)")
    parser.add_argument("--pods", type=int, default=PODS, help="of the churn (default: %(default)s)")
    parser.add_argument("--driver-program", type=shlex.split, help="instead of programs/driver_client.py")
    parser.add_argument("--framework-program", type=shlex.split, help="instead of programs/torch_client.py")
    options = parser.parse_args(argv)
    pack: Path | None = options.pack.resolve() if options.pack else None
    if why := unfit(pack):
        print(f"not possible here: {why}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    # Paths of sockets are short. The wheels' libraries are loaded from there: where /tmp is mounted noexec, TMPDIR names another folder.
    with tempfile.TemporaryDirectory(prefix="gp-", ignore_cleanup_errors=True) as name:
        folder, (library, loads), torch = Path(name), machine.library_folder(), machine.torch_python()
        ctk, hook = tools(pack, folder)
        context = Context(
            folder=folder,
            out=options.out.resolve(),
            library=library,
            loads=loads,
            smi=machine.program("nvidia-smi", library),
            mps=machine.program("nvidia-cuda-mps-control", library),
            ctk=ctk,
            hook=hook,
            namespace=machine.own_namespace(),
            framework=tuple(options.framework_program or (torch_client(torch) if torch else ())),
            seconds=options.seconds,
            pods=options.pods,
            path=tuple(modules(pack, folder)),
            driver=tuple(options.driver_program or DRIVER_CLIENT),
        )
        steps = [step for step in STEPS if step.name in (options.only or names)]
        status, report = run_steps(steps, context, machine.facts(library, loads, torch), options.total)
    kept = named(report)
    page.write(json.loads(kept.read_text()), kept)
    print(f"the report is {kept}")
    return status


def named(report: Path) -> Path:
    """The report under the name of the GPU's model, where that is known."""
    steps = json.loads(report.read_text())["steps"]
    model = next((str(one["values"]["model"]) for one in steps if one["values"].get("model")), "")
    word = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    if not word:
        return report
    made = report.with_name(f"gpu-{word}.json")
    os.replace(report, made)
    return made


if __name__ == "__main__":
    sys.exit(main())
