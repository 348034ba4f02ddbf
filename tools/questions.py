# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The questions of newcomers, and how long the pages take to answer each: the table of docs/project/questions.md.

`python tools/questions.py --write` writes it. Minutes are counted, the same for everybody: on each page a reader reads the headings up to
the right one, then the section up to the link that leads on, or up to the answer, at 200 words a minute; opening a page takes 10 s.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = "docs/project/questions.md"
WORDS_PER_MINUTE: Final = 200
PAGE_MINUTES: Final = 10 / 60
MOST_MINUTES: Final = 2.0
#: The README among them.
MOST_PAGES: Final = 2
_BEGIN, _END = "<!-- generated: questions -->\n", "<!-- /generated -->"


@dataclass(frozen=True)
class Step:
    """On a page, below a heading ("" for what stands before the first one below the title), up to these words."""

    page: str
    heading: str
    words: str


@dataclass(frozen=True)
class Question:
    who: str
    text: str
    steps: tuple[Step, ...]


README = "README.md"
_INSTALL, _NOT, _READ = "Install", "Does it fit?", "Read on"
QUESTIONS: Final = (
    Question("platform engineer", "Has it run on a real GPU, and who uses it?", (Step(README, "", "a real H100"),)),
    Question(
        "platform engineer",
        "Does it fit a cluster whose driver comes from the GPU Operator's container?",
        (
            Step(README, _INSTALL, "docs/operate/gpu-operator.md"),
            Step("docs/operate/gpu-operator.md", "Who owns what", "the operator's driver container"),
        ),
    ),
    Question(
        "platform engineer",
        "Was an installation on Ubuntu 24.04 tested?",
        (Step(README, "", "docs/start/support.md"), Step("docs/start/support.md", "Distributions", "Ubuntu 22.04, 24.04")),
    ),
    Question(
        "platform engineer",
        "Which services, ports and how much memory does it take?",
        (
            Step(README, _READ, "docs/operate/footprint.md"),
            Step("docs/operate/footprint.md", "Processes", "Firewall"),
            Step("docs/operate/footprint.md", "Memory and CPU", "512 MiB"),
        ),
    ),
    Question(
        "platform engineer",
        "What does HAMi have that this has not?",
        (Step(README, "", "docs/project/comparison.md"), Step("docs/project/comparison.md", "", "fewer features and vendors")),
    ),
    Question(
        "platform engineer",
        "What is restarted when I install it, and do running containers stop?",
        (Step(README, _INSTALL, "docs/start/quickstart.md"), Step("docs/start/quickstart.md", "4. Install", "without `live-restore`")),
    ),
    Question(
        "platform engineer",
        "How do I check that the release is what the maintainers built?",
        (Step(README, _READ, "docs/project/release.md"), Step("docs/project/release.md", "Verify a release", "gpg --verify")),
    ),
    Question("ML engineer", "What do I write for 8 GiB of a GPU?", (Step(README, "", "aliyun.com/gpu-mem: 8"),)),
    Question(
        "ML engineer",
        "Do I need runtimeClassName?",
        (
            Step(README, "", "docs/use/first-pod.md"),
            Step("docs/use/first-pod.md", "3. Do I need `runtimeClassName: nvidia`?", "No, as a rule."),
        ),
    ),
    Question(
        "ML engineer",
        "Why does nvidia-smi show more than I requested?",
        (Step(README, "", "docs/use/first-pod.md"), Step("docs/use/first-pod.md", "2. What you see", "not your 2 GiB")),
    ),
    Question(
        "ML engineer",
        "How do I keep vLLM inside its share?",
        (Step(README, _READ, "docs/use/frameworks.md"), Step("docs/use/frameworks.md", "vLLM", "--gpu-memory-utilization")),
    ),
    Question(
        "ML engineer",
        "Why is my pod Pending? I have no rights on nodes.",
        (
            Step(README, _READ, "docs/operate/troubleshooting.md"),
            Step("docs/operate/troubleshooting.md", "", "as the owner of the pod"),
            Step("docs/operate/troubleshooting.md", "A pod stays Pending", "are free on one"),
        ),
    ),
    Question(
        "on call",
        "An alert names XID 79: what do I do?",
        (Step(README, _READ, "docs/operate/on-call.md"), Step("docs/operate/on-call.md", "XIDs", "| 79 |")),
    ),
    Question(
        "on call",
        "A pod waits although GPUs have room: what is wrong?",
        (
            Step(README, _READ, "docs/operate/on-call.md"),
            Step("docs/operate/on-call.md", "A pod stays Pending", "CPU, main memory, taints"),
        ),
    ),
    Question(
        "user of the original",
        "I run the original on Kubernetes 1.23 with docker and CentOS 7: what is the path?",
        (
            Step(README, "", "docs/operate/migrate-original.md"),
            Step("docs/operate/migrate-original.md", "Which path", "reinstall node by node"),
        ),
    ),
)


def minutes(question: Question) -> float:
    """ValueError where a step is not there."""
    total, pages = 0.0, list(dict.fromkeys(step.page for step in question.steps))
    for step in question.steps:
        total += _words(step) / WORDS_PER_MINUTE
    return total + PAGE_MINUTES * len(pages)


def _words(step: Step) -> int:
    text = re.sub(r"<!--.*?-->", "", (ROOT / step.page).read_text(), flags=re.DOTALL)
    parts = re.split(r"^(?:# .*|## (.*))$", text, flags=re.MULTILINE)
    # What stands before the title has no heading, as what stands below it.
    sections = [("", parts[0] + parts[2]), *zip(parts[3::2], parts[4::2], strict=True)]
    read = 0
    for heading, body in sections:
        read += len(heading.split())
        if heading == step.heading:
            before, found, _ = body.partition(step.words)
            if not found:
                raise ValueError(f"{step.page}, below {heading!r}: no {step.words!r}")
            return read + _read_words(before) + len(step.words.split())
    raise ValueError(f"{step.page}: no heading {step.heading!r}")


def _read_words(markdown: str) -> int:
    """Of a table those of its first column, by which rows are found, and the whole last row; of links the text."""
    words, rows = 0, []
    for line in re.sub(r"\]\([^)]*\)", "]", markdown).splitlines():
        if line.startswith("|"):
            rows.append(line)
        else:
            words += len(line.split())
    words += sum(len(row.split("|")[1].split()) for row in rows[:-1] if "---" not in row)
    return words + (len(rows[-1].replace("|", " ").split()) if rows else 0)


def table() -> str:
    """In the order of QUESTIONS."""
    lines = ["| who | question | pages | minutes |", "|---|---|---|---|"]
    for one in QUESTIONS:
        pages = {step.page: step.heading for step in one.steps}
        links = ", ".join(f"[{_name(page)}]({_link(page, heading)})" for page, heading in pages.items())
        lines.append(f"| {one.who} | {one.text} | {links} | {minutes(one):.1f} |")
    return "\n".join(lines) + "\n"


def _name(page: str) -> str:
    return "README" if page == README else Path(page).stem


def _link(page: str, heading: str) -> str:
    path = Path(page)
    relative = f"../{path.relative_to('docs')}" if page.startswith("docs/") else f"../../{page}"
    slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    return f"{relative}#{slug}" if slug else relative


def filled(text: str) -> str:
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{rest.partition(_END)[2]}"


def main() -> None:
    path = ROOT / PAGE
    text = path.read_text()
    if sys.argv[1:] == ["--write"]:
        path.write_text(filled(text))
    elif filled(text) != text:
        sys.exit(f"{PAGE} is not what the pages have; run `python tools/questions.py --write`")


if __name__ == "__main__":
    main()
