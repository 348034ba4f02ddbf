# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/start/modes.md says what holds in which mode. A sentence elsewhere that holds in one mode alone names it, or links to that page."""

from __future__ import annotations

import re

import pytest

import modes
from docs.pages import rows
from tree import REPOSITORY, files

PAGE = "docs/start/modes.md"
#: Words that are true of one mode alone, as people write them.
OF_ONE_MODE = re.compile(
    r"no (?:second|own|extra) scheduler|not a scheduler of its own|scheduler of (?:its|their) own|default scheduler"
    r"|systemd services|\bno images?\b|without an image|install(?:s|ed|ation)? (?:by|with) (?:Ansible|Helm)|registers (?:right|at once)"
    r"|(?:k3s|RKE2|OpenShift|[Mm]anaged control planes?)\b[^.]*\brejected|rejected[^.]*\b(?:k3s|RKE2|OpenShift)"
)
#: What names a mode.
NAMES_A_MODE = re.compile(
    r"modes\.md|services of hosts|\bas (?:services|pods)\b|(?:are|runs?|were) (?:as )?pods\b|kubernetes\.md|deploy_mode|`site`|`cluster`"
    r"|mode `(?:systemd|kubernetes)`|gpushare_scheduler|gpushare-scheduler\b|Helm chart",
    re.IGNORECASE,
)
#: Pages about one mode, and about other projects or former releases.
OF_A_MODE = (
    PAGE,
    "docs/operate/kubernetes.md",
    "docs/operate/clusters-of-others.md",
    "docs/operate/eks.md",
    "docs/operate/openshift.md",
    "docs/start/quickstart.md",
    "docs/project/comparison.md",
)
PAGES = [
    path
    for path in files()
    if (path in ("README.md", "SECURITY.md") or (path.startswith("docs/") and path.endswith(".md") and ".zh-" not in path))
    and path not in OF_A_MODE
    and not path.startswith("docs/project/benchmarks/")
]


def bound_to_a_mode(text: str) -> list[str]:
    """The paragraphs, items and rows of a page that say what holds in one mode, without its name."""
    text = re.sub(r"^```.*?^```$|<!-- generated.*?/generated -->|<!--.*?-->", "", text, flags=re.M | re.S)
    parts = re.split(r"\n\s*\n|\n(?=\s*[-|\d])|\n(?=#)", text)
    return [part.strip()[:120] for part in parts if OF_ONE_MODE.search(" ".join(part.split())) and not NAMES_A_MODE.search(part)]


@pytest.mark.parametrize("page", PAGES)
def test_what_holds_in_one_mode_names_it(page: str) -> None:
    assert bound_to_a_mode((REPOSITORY / page).read_text()) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "There is no webhook, no custom resource\nand no second scheduler.",
        "All of them are systemd services on hosts. No pod, webhook, custom resource, image or registry is part of it.",
        "| extended resources and an extender, not a scheduler of its own | manifests stay |",
        "The pod must use the default scheduler.",
        "| managed control planes, k3s, RKE2, OpenShift | rejected: kube-scheduler must be kubeadm's static pod |",
        "The collection itself is installed by Ansible.",
    ],
)
def test_a_sentence_of_one_mode_is_found(sentence: str) -> None:
    assert len(bound_to_a_mode(f"# Title\n\nWords.\n\n{sentence}\n")) == 1
    assert bound_to_a_mode(f"# Title\n\n{sentence} [Services or pods](../start/modes.md) says where.\n") == []


def test_each_question_has_an_answer_for_each_mode() -> None:
    table = rows((REPOSITORY / PAGE).read_text().partition("\n## ")[0])
    assert len(table) >= 15
    assert {len(row) for row in table} == {1 + len(modes.MODES)}
    assert all(cell for row in table for cell in row)


def test_links_fit_the_page_that_has_the_table() -> None:
    text = "[a](docs/operate/mig.md#b) [c](https://x.example/d) [e](#f)"
    assert modes.rebased(text, "README.md") == text
    assert modes.rebased(text, PAGE) == "[a](../operate/mig.md#b) [c](https://x.example/d) [e](#f)"
