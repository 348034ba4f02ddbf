# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/project/comparison.md: what it says of another project has a source, each source its days, and what it says of gpushare a test."""

from __future__ import annotations

import re
from datetime import date, timedelta

import pytest

from docs.pages import rows
from tree import REPOSITORY

PAGE = "docs/project/comparison.md"
OURS, PEERS = 2, 6
#: A reader's window shows so many.
MOST_COLUMNS = 6
TESTED = ("(tested)", "(simulated)", "(real GPU)", "(from docs)", "; tested)", "(tested; ", "(tested:", "([real GPU]")
# What needs no source, because it claims nothing.
NOTHING = ("not read", "not needed", "NVIDIA")
# A project that is read so much earlier than the others may have changed since.
DAYS = timedelta(60)
LINK = re.compile(r"\[[^\]]+\]\((https://[^)\s]+)\)")
DAY = r"20\d\d-\d\d-\d\d"


def part(text: str, heading: str) -> str:
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def cited(text: str) -> list[str]:
    return re.findall(r"\[(\w+)\](?!\()", text)


def faults(text: str) -> list[str]:
    """What a reader could not check."""
    head, found = text.partition("\n## ")[0], []
    intro = re.search(rf"^As of ({DAY}): (.*?)\n\n", head, re.MULTILINE | re.DOTALL)
    if intro is None:
        return ["the page does not say of which day it is"]
    own = date.fromisoformat(intro[1])
    found += [f"no source: {peer}" for peer in re.split(r", (?:and )?", intro[2].rstrip(".")) if not cited(peer)]
    found += [f"no source: against {row[0]}" for row in rows(head) if not cited(row[1])]
    for project, *cells in rows(part(text, "Feature by feature")):
        stated = [cell for cell in cells if cell not in NOTHING]
        if project.startswith("gpushare"):
            found += [f"no test: {project}: {cell}" for cell in stated if not any(word in cell for word in TESTED)]
        else:
            found += [f"no source: {project}: {cell}" for cell in stated if not cited(cell)]
    for heading in ("Feature by feature", "When another one fits better"):
        for line in re.findall(r"^- (.*?)(?=\n- |\n\n|\Z)", part(text, heading), re.MULTILINE | re.DOTALL):
            if not cited(line):
                found.append(f"no source: {line[:60]}")
    sources = rows(part(text, "Sources"))
    for number, link, its, read in sources:
        url = LINK.fullmatch(link)
        if url is None or ("/blob/" in url[1] and not re.search(r"/blob/[0-9a-f]{40}/", url[1])):
            found.append(f"{number} is no link to one version: {link}")
        day = re.match(rf"(?:after )?({DAY})\b", its)
        if day is None or not re.fullmatch(DAY, read):
            found.append(f"{number} has no day: {its}, {read}")
        elif not date.fromisoformat(day[1]) <= date.fromisoformat(read) <= own <= date.fromisoformat(read) + DAYS:
            found.append(f"{number} is of {its}, and was read on {read}, for a page of {own}")
    names, used = [row[0] for row in sources], set(cited(text.partition("\n## Sources\n")[0]))
    return found + [f"{number} is cited and no source, or the other way round" for number in sorted(used ^ set(names))]


def test_each_claim_has_a_source_and_each_source_its_days() -> None:
    text = (REPOSITORY / PAGE).read_text()
    assert faults(text) == []
    table = rows(part(text, "Feature by feature"))
    assert len(table) == 2 * (OURS + PEERS)
    assert {len(row) for row in table} == {MOST_COLUMNS}
    # A feature that few pages state belongs into the list below the tables.
    assert sum(row.count("not read") for row in table) < len(table) / 2


@pytest.mark.parametrize(
    ("there", "instead", "fault"),
    [
        (r"As of 20\d\d-\d\d-\d\d", "Today", "does not say of which day"),
        (r"HAMi 2.10 \[h3\], KAI", "HAMi 2.10, KAI", "no source: HAMi 2.10"),
        (r"Replicas are equal and know no memory \[n\]", "Replicas are equal", "no source: against NVIDIA's device plugin"),
        (r"none: equal replicas \[n\]", "none", "no source: NVIDIA's device plugin: none"),
        (r"gpushare, pods \| the same \(tested\)", "gpushare, pods | the same", "no test: gpushare, pods: the same"),
        (
            r"of each container \[h5\]. KAI\s+Scheduler has memory and SM\s+utilization \[g\]",
            "of each container",
            r"no source: \*\*use of each pod",
        ),
        (r"Use HAMi \[h3\]", "Use HAMi", r"no source: \*\*Several vendors"),
        (r"/blob/[0-9a-f]{40}/README.md\) \| 2026-08-19", "/blob/main/README.md) | 2026-08-19", "n is no link to one version"),
        (r"\| 2026-08-20 \|", "| not stated |", "h1 has no day: not stated"),
        (r"\| 2026-09-23 \| 20\d\d-\d\d-\d\d", "| 2026-09-23 | 2026-09-22", "k5 is of 2026-09-23, and was read on 2026-09-22"),
        (r"\| 2026-08-20 \| 20\d\d-\d\d-\d\d", "| 2026-08-20 | 2026-08-21", "h1 is of 2026-08-20, and was read on 2026-08-21, for"),
        (r"proposed for 0.20 \[k6\]", "proposed for 0.20 [k66]", "k66 is cited and no source"),
    ],
)
def test_a_claim_without_a_source_or_a_day_is_found(there: str, instead: str, fault: str) -> None:
    text, changed = re.subn(there, instead, (REPOSITORY / PAGE).read_text(), count=1)
    assert changed == 1, "the page does not have what this test changes"
    assert any(re.search(fault, one) for one in faults(text)), faults(text)
