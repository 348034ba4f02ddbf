# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Single mistakes planted in the core, and whether the unit tests notice: `make mutants`, `python -m mutants` (docs/project/mutants.md)."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

# The files of the system are read-only to what a mutant does: see _apart.
_APART: Final = "GPUSHARE_MUTANTS_SCRATCH"
_MOUNTS: Final = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--file", action="append", metavar="GLOB", help="only these sources, by path or the end of a path; may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants, evenly over the files")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--given", type=Path, metavar="FILE", help="the mutants of this table of `where | was | became`")
    parser.add_argument("--list", action="store_true", help="name the mutants and run nothing")
    parser.add_argument("--survivors", action="store_true", help="end with a table of those that survived, which --given reads")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every verdict there, those so far where the run is ended")
    parser.add_argument("--least", type=float, default=85.0, metavar="PERCENT", help="fail below this score (default: 85)")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time (default: one per core)")
    options = parser.parse_args()

    from mutants.work import Asked, chosen, run

    files = [file for file in _targets() if not options.file or any(_is_meant(file, one) for one in options.file)]
    if not files:
        parser.error(f"no target matches {' '.join(options.file)}")
    given = options.given.read_text() if options.given else None
    asked = Asked(tuple(files), options.sample, options.seed, given)
    if options.list:
        for mutant in chosen(asked):
            print(mutant)
        return 0
    scratch = os.environ.get(_APART)
    if scratch is None:
        return _apart(options.json)
    report = run(asked, Path(scratch), options.jobs)
    print(report.words(options.survivors), flush=True)
    if not report.sound:
        print("incomplete: see above")
    elif report.score < options.least:
        print(f"not enough: at least {options.least:g} % of the mutants that are not equivalent must be killed")
    if not report.sound or report.score < options.least:
        return 1
    return 0


def _targets() -> list[str]:
    from mutants.targets import targets

    return list(targets())


def _is_meant(file: str, pattern: str) -> bool:
    return fnmatch(file, pattern) or fnmatch(file, f"*/{pattern}")


def _apart(out: Path | None) -> int:
    """Run this again where a mutant can do no harm: as root with only its own folder to write and its own processes to end."""
    from mutants.work import VERDICTS

    scratch = tempfile.mkdtemp(prefix="mutants-")
    command = [sys.executable, "-m", "mutants", *sys.argv[1:]]
    if os.geteuid() == 0:
        apart = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--propagation", "private"]
        apart += ["sh", "-c", _MOUNTS, scratch]
        if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode == 0:
            command = [*apart, *command]
        else:
            print("this machine lets root have no mounts of its own: mutants run as root, with all of its files")
    # Who ends this process ends those below it as well.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    try:
        return subprocess.run(command, env={**os.environ, _APART: scratch}, check=False).returncode
    finally:
        verdicts = Path(scratch) / VERDICTS
        if out is not None and verdicts.exists():
            shutil.copyfile(verdicts, out)
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
