# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The command line of gpushare-doctor: which daemons it checks, how the answer is printed, and the exit status."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime import __version__
from gpushare_runtime.doctor.findings import SITE, Findings
from gpushare_runtime.doctor.host import DAEMONS, CannotLook, HostReader
from gpushare_runtime.doctor.installed_files import judge_installed_files
from gpushare_runtime.doctor.own_files import judge_own_files

NAME: Final = "gpushare-doctor"
# The parts have shorter limits of their own; this one is for a daemon that answers a byte at a time.
_SECONDS: Final = 60


def look(host: HostReader, environment: Path, expected: Sequence[str]) -> Findings:
    """Check the daemons that are expected; where none is, those with a unit. CannotLook where nothing can be judged.

    environment: the folder of the runtime in use.
    """
    found = Findings()
    judge_installed_files(found, environment)
    units = [host.settled_unit(name) for name in expected or DAEMONS]
    if not expected:
        units = [unit for unit in units if unit.text is not None]
    judge_own_files(found, host, units, environment)
    if not units:
        raise CannotLook(f"no unit of {' or '.join(DAEMONS)}; expected one: run it on a host that site.yml has installed")
    try:
        # Late: where files of the runtime are damaged, the doctor still names them.
        from gpushare_runtime.doctor import daemons
    except Exception as error:
        if found.findings:
            return found
        why = f"the runtime in {environment} does not work: {error!r}; expected all of its packages"
        raise CannotLook(f"{why}; rm -r {environment}, then {SITE}: it is built again") from None
    for unit in units:
        daemons.look(found, host, unit, environment)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status: 0 without findings, 1 with some, 2 if it could not check."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Check the gpushare daemons of this host. Exit status: 0 without findings, 1 with some, 2 if they cannot be checked.",
    )
    parser.add_argument("--output", choices=("text", "json"), default="text", help="default: %(default)s")
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    parser.add_argument(
        "daemons", nargs="*", metavar="DAEMON", help=f"{' or '.join(DAEMONS)}, which this host must have (default: those with a unit)"
    )
    options = parser.parse_args(argv)
    if not set(options.daemons) <= set(DAEMONS):
        parser.error(f"found {' '.join(options.daemons)}; expected {' or '.join(DAEMONS)}")
    try:
        if os.geteuid() != 0:
            raise CannotLook("found another user than root, who may not read the daemons' files; run it with sudo")
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(_SECONDS)
        found = look(HostReader(), Path(sys.prefix), options.daemons)
    except CannotLook as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    finally:
        signal.alarm(0)
    print(found.as_json() if options.output == "json" else found.as_text())
    return 1 if found.findings else 0


def _too_long(*_: object) -> NoReturn:
    raise CannotLook(f"not done after {_SECONDS} seconds; expected each daemon to answer in some: see what hangs, then run it again")


if __name__ == "__main__":
    sys.exit(main())
