# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How a cure of verify is read, and that each code of verify is planted on a lab, or stands with the reason why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._verdict.findings import CHECKS, PREFLIGHT

from verify.cures import Cure, read
from verify.planted import ELSEWHERE, GROUPS

SITE = "run site.yml again"


@pytest.mark.parametrize(
    ("text", "commands", "site"),
    [
        ("systemctl restart a; if it does not stay: journalctl -u a -n 50", ["systemctl restart a"], False),
        (f"{SITE}, or: systemctl restart containerd.service", ["systemctl restart containerd.service"], False),
        (f"{SITE}, or add b to managedResources and restart the scheduler", [], True),
        (f"rm /a/b; then {SITE}: it gives the daemon a fresh one; then see why", ["rm /a/b"], True),
        ("chown 0 /a; chmod 0600 /a; systemctl restart c", ["chown 0 /a", "chmod 0600 /a", "systemctl restart c"], False),
        ("end it (ss -ltnp 'sport = :1' names it), then: systemctl stop a; systemctl start a",
         ["systemctl stop a", "systemctl start a"], False),
        ("see dmesg, then: mount -o remount,rw $(findmnt -n -T /a); then: systemctl restart b",
         ["mount -o remount,rw $(findmnt -n -T /a)", "systemctl restart b"], False),
        (f"is https://a in /b your API server, and does curl -k https://a on this host answer? journalctl -u b says why; {SITE}", [], True),
        ("another may register: systemctl status a; journalctl -u a -n 50; or kubelet has an old list: systemctl restart kubelet",
         ["systemctl restart kubelet"], False),
        (f"site.yml --check --diff shows the lines; {SITE}", [], True),
        ("reboot the host, or reload the nvidia modules once nothing uses them", [], False),
    ],
)  # fmt: skip
def test_commands_of_a_cure(text: str, commands: list[str], site: bool) -> None:
    assert read(text) == Cure(tuple(commands), site)


def test_each_code_is_planted_or_says_why_not() -> None:
    planted = [one.code for group in GROUPS.values() for one in group]
    known = {name for name, (_, by) in CHECKS.items() if PREFLIGHT not in by}
    assert set(planted) | ELSEWHERE.keys() == known
    assert not set(planted) & ELSEWHERE.keys()
    assert all(ELSEWHERE.values())


def test_the_page_of_planted_faults_names_groups_that_plant_them() -> None:
    page = (Path(__file__).parents[2] / "docs/project/faults.md").read_text()
    first = page.partition("\n## ")[0]
    rows = [line.split("|") for line in first.splitlines() if re.match(r"\| \d+[ab]?\. ", line)]
    assert len(rows) == 26
    for _, planted, _, found, proven, _, _ in rows:
        codes = set(re.findall(r"`([a-z_]+)`", found))
        if group := re.findall("`(.*)`", proven):
            assert codes & {one.code for one in GROUPS[group[0]]}, planted
        else:
            assert codes <= ELSEWHERE.keys(), planted


def test_by_hand_are_few() -> None:
    every = [one for group in GROUPS.values() for one in group]
    assert 4 * sum(one.by_hand is not None for one in every) <= len(every)
