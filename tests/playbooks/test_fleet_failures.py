# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Hosts of a fleet that fail, and a controller that is killed: real playbooks on stand-ins of the benchmark of fleets.

GPUSHARE_FULL=1: one host hangs as well, for as long as preflight waits for it, which is five minutes.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from bench.fleet.__main__ import Fleet
from bench.fleet.answers import FAULTS

FULL = os.environ.get("GPUSHARE_FULL") == "1"
BATCHES = {"gpushare_serial": 1}


def words(fleet: Fleet) -> str:
    return " ".join((fleet.folder / "output").read_text().split())


@pytest.mark.timeout(1800)
def test_each_host_that_does_not_answer_has_a_line_and_nothing_is_changed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet", 6, forks=8)
    faults = {"gpu002": "unreachable", "gpu003": "garbage", "gpu005": "unreachable", "gpu006": "alpine"}
    faults |= {"gpu004": "hang"} if FULL else {}
    (fleet.folder / FAULTS).write_text(json.dumps(faults))
    with pytest.raises(RuntimeError, match="nothing was changed"):
        fleet.run("preflight")
    said = words(fleet)
    silent = [name for name, fault in sorted(faults.items()) if fault not in ("garbage", "alpine")]
    assert f"3 problems, nothing was changed ({len(silent)} hosts unreachable)" in said
    assert f"unreachable {', '.join(silent)} found no connection (Connection timed out){' (gpu002, gpu005)' * FULL} " in said, said
    if FULL:
        assert "found no connection (Task failed: Timed out after 300 second(s).) (gpu004) expected every host of the run to answer" in said
    assert "facts gpu003 found a module that failed" in said
    assert "os gpu006 found Alpine Linux v3.22 expected" in said, said
    assert "Traceback" not in said
    assert not list((fleet.folder / "state").iterdir())


@pytest.mark.timeout(1800)
def test_a_controller_that_is_killed_in_its_third_batch_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet", 3, forks=8)
    process = fleet.start("site", **BATCHES)
    until = time.monotonic() + 1500
    # First with its facts, then in its batch.
    while (fleet.folder / "calls").read_text().count("gpu003 gpushare_sharing") < 2:
        assert process.poll() is None, words(fleet)
        assert time.monotonic() < until, words(fleet)
        time.sleep(0.1)
    process.kill()
    process.wait()
    done = {path.name: path.read_text() for path in (fleet.folder / "state").iterdir()}
    cost, found = fleet.run("site", **BATCHES)
    assert {host for host, _play, _task in found.changes()} >= {"gpu003"}, found.changes()
    # The planes answer for the accounts of the third node; the nodes of the first two batches are as they were.
    assert [change for change in found.changes() if change[0] in ("gpu001", "gpu002")] == []
    assert {host: (fleet.folder / "state" / host).read_text() for host in ("gpu001", "gpu002")} == {
        host: done[host] for host in ("gpu001", "gpu002")
    }
    assert fleet.run("site", **BATCHES)[0].changed == 0 < cost.changed


@pytest.mark.timeout(1800)
def test_a_connection_that_drops_leaves_the_other_hosts_done_and_the_next_run_does_nothing_twice(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet", 3, forks=8)
    (fleet.folder / FAULTS).write_text(json.dumps({"gpu002": "drop"}))
    with pytest.raises(RuntimeError):
        fleet.run("site", gpushare_serial="100%")
    assert "Connection reset by peer" in words(fleet)
    done = {path.name: path.read_text() for path in (fleet.folder / "state").iterdir()}
    assert len(done["gpu001"]) > len(done["gpu002"]) > 2, done
    (fleet.folder / FAULTS).unlink()
    assert "gpu002" in {host for host, _play, _task in fleet.run("site", gpushare_serial="100%")[1].changes()}
    assert fleet.run("site", gpushare_serial="100%")[0].changed == 0
