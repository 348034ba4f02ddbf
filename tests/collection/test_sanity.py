# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""ansible-test sanity passes, on every Python of this machine; what it ignores has a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collection.sanity import run_sanity
from cores import Core, oldest, own
from pythons import interpreters
from sanity_ignores import of_core

# What the community package never accepts in a list of ignored findings.
NEVER = (
    "doc-choices-do-not-match-spec",
    "doc-default-does-not-match-spec",
    "doc-missing-type",
    "doc-required-mismatch",
    "mutually_exclusive-unknown",
    "no-log-needed",
    "nonexistent-parameter-documented",
    "parameter-list-no-elements",
    "parameter-type-not-in-doc",
)


@pytest.mark.timeout(2400)
def test_sanity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pythons = interpreters()
    said = sanity(tmp_path, own())
    compiled = ran(said, "compile") & ran(said, "import")
    assert own().on in compiled
    # A newer ansible-core no longer manages hosts with an older Python; the oldest that is admitted does.
    for left in sorted(set(pythons) - compiled):
        older = sanity(tmp_path / left, oldest(), "--python", left, "--test", "compile", "--test", "import")
        compiled |= ran(older, "compile") & ran(older, "import")
    assert set(pythons) <= compiled, f"compile and import ran on {sorted(compiled)} only; there are {sorted(pythons)}"
    with capsys.disabled():
        print(f"\nansible-test sanity on {' '.join(pythons)}:", len(set(re.findall(r'Running sanity test "(\S+)"', said))), "tests")


def sanity(folder: Path, core: Core, *arguments: str) -> str:
    """What it says, where it passes."""
    done = run_sanity(folder, core, *arguments)
    log = folder / "sanity.log"
    log.write_text(done.stdout)
    findings = [line for line in done.stdout.splitlines() if re.match(r"(?:ERROR|FATAL|WARNING): |\S+:\d+:\d+: |Found \d+ ", line)]
    assert done.returncode == 0, "\n".join([*findings, f"everything it said: {log}"])
    return done.stdout


def ran(said: str, kind: str) -> set[str]:
    """The Pythons on which that test ran."""
    return set(re.findall(rf'^Running sanity test "{kind}" on Python ([0-9.]+)', said, re.MULTILINE))


def test_every_ignored_finding_has_a_reason() -> None:
    name, text = of_core(own().program)
    assert name.startswith("ignore-2.")
    for line in text.splitlines():
        assert re.fullmatch(r"\S+ [a-z0-9.-]+(?:[:!]\S+)? # \S.*", line), f"{line!r} has no reason behind a #"
        assert not any(finding in line for finding in NEVER), f"{line!r} is for fixing, never for ignoring"
