# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Run one long command beside others that run one after another: `python tests/beside.py "LONG" "FIRST" "SECOND" … [--then "LAST"]`.

Suites on lab clusters wait for much of their time, so two at once end sooner. The long one's output follows when the others
have ended, up to its own end. What measures comes last, alone. All are run, whatever one of them says; exit status 1 when any
has failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description="Run one long command beside others that run one after another.")
    parser.add_argument("long")
    parser.add_argument("others", nargs="+")
    parser.add_argument("--then", help="run when all others have ended")
    given = parser.parse_args(arguments)
    long, then = given.long, given.then
    # As make would end by: the clusters of both are taken down by their suites.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed: list[str] = []
    with tempfile.TemporaryFile() as output:
        print(f"--- in the background, its output comes later: {long}", flush=True)
        beside = subprocess.Popen(shlex.split(long), stdout=output, stderr=subprocess.STDOUT)
        try:
            for command in given.others:
                print(f"--- {command}", flush=True)
                if subprocess.run(shlex.split(command), check=False).returncode:
                    failed.append(command)
            print(f"--- {long}", flush=True)
            _follow(beside, output.fileno())
        finally:
            if beside.poll() is None:
                beside.send_signal(signal.SIGINT)
                beside.wait()
    if beside.returncode:
        failed.append(long)
    if then:
        print(f"--- {then}", flush=True)
        if subprocess.run(shlex.split(then), check=False).returncode:
            failed.append(then)
    for command in failed:
        print(f"failed: {command}", flush=True)
    return 1 if failed else 0


def _follow(process: subprocess.Popen[bytes], output: int) -> None:
    """Print what it has said, and says until it ends. output: a descriptor of the file that it writes to."""
    offset = 0
    while True:
        ended = process.poll() is not None
        while text := os.pread(output, 65536, offset):
            offset += len(text)
            sys.stdout.buffer.write(text)
            sys.stdout.flush()
        if ended:
            return
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
