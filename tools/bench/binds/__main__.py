# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Very many binds through the real extender core and the real NodeState, in virtual time: `python -m bench.binds`.

kube-scheduler moves between two control planes, in the middle of bursts, each with an extender of its own; extenders are killed
and stand still. Watches are late, repeat themselves and break off; Bindings land late, get lost or conflict. kubelet's device
manager frees ids with the pod object while processes go on. Counted is, after every Binding that lands, what the API server's
own pods say, and at every admission which ids processes have. Deterministic: the same seed gives the same run.
Exit status 1 when a GPU was given twice.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any, Final

from bench.binds.flaws import FLAWS, WORDS, switched_on
from bench.binds.run import run
from unit.fakes.runtime.extender import virtual

_STEP: Final = 3000


def bad(found: dict[str, Any]) -> bool:
    """Whether something was given twice, or half."""
    return bool(found["node_over"] or found["ledger_excess"] or found["half_bound"])


def main() -> int:
    """The command; 1 when a GPU was given twice, with --without-each when a fault was not noticed."""
    parser = argparse.ArgumentParser(description="Very many binds through the extender's core, counted by API server and nodes.")
    parser.add_argument("--binds", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", choices=FLAWS, default="", help="switch this fault on: must find GPUs given twice")
    parser.add_argument("--without-each", type=int, metavar="BINDS", help="each fault alone: every one must show within so many binds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.without_each:
        unnoticed = [flaw for flaw in FLAWS if not _noticed(flaw, options.seed, options.without_each)]
        if unnoticed:
            print(f"not noticed: {', '.join(unnoticed)}")
        return 1 if unnoticed else 0
    with switched_on(options.without):
        found = virtual.run(run(options.seed, options.binds))
    print(", ".join(f"{key} {value}" for key, value in found.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if bad(found) else 0


def _noticed(flaw: str, seed: int, most: int) -> bool:
    """Whether this fault shows within so many binds, in short runs one after the other: some need a rare coincidence."""
    binds = 0
    while binds < most:
        with switched_on(flaw):
            found = virtual.run(run(seed, _STEP))
        binds, seed = binds + found["bound"], seed + 1
        if bad(found):
            over = f"node over {found['node_over']}, ledger {found['ledger_excess']}, half {found['half_bound']}"
            print(f"{flaw} ({WORDS[flaw]}): {over}, within {binds} binds", flush=True)
            return True
    return False


if __name__ == "__main__":
    raise SystemExit(main())
