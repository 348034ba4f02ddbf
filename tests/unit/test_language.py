# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The linter of language finds what it is there for, in every kind of text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import language
from language import Block
from tree import REPOSITORY, files

# Each breaks exactly the one rule whose `instead` begins so.
WRONG = {
    "Restarted is only one service.": "begin with the subject",
    "Seen by kubelet, it is registered.": "begin with the subject",
    "Who has no certificate gets 403.": "name the actor or the thing",
    "what the extender does is logged": "name the actor or the thing",
    "The file of somebody else stays.": "name the actor",
    "The error is returned in words.": "say what it is",
    "All files but one stay. It has everything but a name.": "except",
    "The daemon keeps all files, but for one.": "except",
    "The file is written anew.": "again, new",
    "They start as soon as ever.": "as usual",
    "The report lists what became of it.": "say what happens",
    "The daemon goes on.": "continue",
    "The old files are put back.": "release; restore",
    "The node is no member.": "is not a",
    "The ids are lingering.": "orphaned",
    "The units are held.": "allocated",
    "The pod is refused.": "rejected",
    "The pod is recalled.": "requeue",
    "The extender is fenced.": "leadership",
    "The run is proven.": "verify",
    "It steers kubelet.": "as planned",
    "It offers units.": "publish",
    "It looks for units.": "verify, check",
    "It is the name of the pod of the node of kubelet.": "make two sentences",
    "It has the units of the GPU of that node.": "a verb that says more",
    "It needs control groups of version 2.": "cgroup v2",
    "It points at the file.": "configure",
    "One; two; three.": "semicolons",
}
RIGHT = (
    "kubelet is restarted. Only services that changed are restarted.",
    "There is no webhook. The pod is no longer there. The value is no more than 3.",
    "What does it cost? Shared GPUs need no label. Unallocated units stay.",
    "The option `refused` has the value `held; anew; in words`, and [a page](https://example.org/asked/told) describes it.",
)


@pytest.mark.parametrize("text", WRONG)
def test_what_breaks_a_rule_is_found(text: str) -> None:
    (problem,) = list(language.problems(Block(1, text)))
    assert WRONG[text] in problem


def test_every_rule_has_an_example() -> None:
    found = [problem for text in WRONG for problem in language.problems(Block(1, text))]
    assert [rule.instead for rule in language.RULES if not any(problem.endswith(rule.instead) for problem in found)] == []


def test_a_long_sentence_is_a_warning() -> None:
    assert [list(language.warnings(Block(1, "word " * words))) for words in (language.MOST_WORDS, language.MOST_WORDS + 1)] == [
        [],
        [f'{language.MOST_WORDS + 1} words: "{("word " * 12)[:60]}…"'],
    ]


@pytest.mark.parametrize("text", RIGHT)
def test_what_keeps_the_rules_is_left_alone(text: str) -> None:
    assert list(language.problems(Block(1, text))) == []


def test_a_heading_may_begin_as_it_likes() -> None:
    assert list(language.problems(Block(1, "What is public", heading=True))) == []


def test_the_blocks_of_a_page() -> None:
    page = """\
# Title

Two lines
of text.
- one
  item
1. another

| head | er |
|---|---|
| `a | b` | c |

```shell
code is asked
```

    code is told

<!-- a comment says -->
"""
    assert [(block.line, block.text, block.heading) for block in language.markdown(page)] == [
        (1, "Title", True),
        (3, "Two lines of text.", False),
        (5, "one item", False),
        (7, "another", False),
        (9, "head", True),
        (9, "er", True),
        (11, "`a | b`", False),
        (11, "c", False),
    ]


def test_the_descriptions_in_yaml_and_in_a_module() -> None:
    documentation = "\ndescription:\n  - One.\noptions:\n  description:\n    description: Two\n      lines.\n    type: str\n"
    expected = [(3, "One."), (6, "Two lines.")]
    assert [(block.line, block.text) for block in language.descriptions(documentation)] == expected
    module = f'"""A module says."""\n\nDOCUMENTATION = r"""{documentation}"""\nEXAMPLES = r"""\ndescription: asked\n"""\n'
    assert [(block.line, block.text) for block in language.docstrings(module)] == [(line + 2, text) for line, text in expected]


def test_a_page_in_chinese_has_its_paragraphs_on_one_line(tmp_path: Path) -> None:
    long = "多个 Pod 共用一块 GPU。" * 20
    for name, expected in (("x.md", ["1: longer than 120 columns"]), ("x.zh-CN.md", [])):
        (tmp_path / name).write_text(f"{long}\n")
        assert list(language.file_problems(tmp_path / name)) == expected


def test_long_lines_count_outside_of_tables_and_code() -> None:
    long = "x " + "x" * (language.MOST_COLUMNS - 1)
    assert list(language.long_lines(f"{long}\n| {long} |\n```\n{long}\n```\n{long[:-1]}\n`{long}`\n{long}\n")) == [1, 8]


def test_a_wrong_file_ends_the_linter(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("It is so.\n\nIt is refused.\n")
    with pytest.raises(SystemExit, match=r"page\.md:3: "):
        language.main([str(tmp_path / "page.md")])


def test_every_kind_of_text_is_among_the_sources() -> None:
    read = [path for path in files() if language.SOURCES.fullmatch(path)]
    for path in (
        "README.md",
        "docs/reference/names.md",
        "roles/verify/README.md",
        "roles/verify/meta/argument_specs.yml",
        "plugins/modules/gpu_node_info.py",
        "plugins/doc_fragments/attributes.py",
        "plugins/lookup/control_plane.py",
    ):
        assert path in read


# Words of the field, in code as in docs: names of others that contain the word.
OTHERS = re.compile(r"discard|wildcard|cardinal|scorecard", re.IGNORECASE)


def test_a_gpu_is_called_gpu_everywhere() -> None:
    # The field says GPU, and an H100 SXM is none of the other things.
    word = "ca" + "rd"
    texts = {
        path: (REPOSITORY / path).read_text(errors="ignore")
        for path in files()
        if (REPOSITORY / path).is_file() and Path(path).suffix not in (".png", ".xml")
    }
    found = {path for path, text in texts.items() if word in OTHERS.sub("", path + text).lower()}
    assert found == set()


def test_docstrings_comments_and_messages_of_code_are_read() -> None:
    text = '''"""A module.

It has two paragraphs."""
# noqa: E501
value = 1  # alone
# One comment
# of two lines.


#: Another one.
def f():
    """Docstring."""
    say(f"pod {value} of that node", "not so long", r"a pattern (of|or) so")
    raise ValueError(f"found {value}; expected 2", 3) from None
'''
    assert sorted((block.line, block.text) for block in language.code(text)) == [
        (1, "A module."),
        (1, "It has two paragraphs."),
        (5, "alone"),
        (6, "One comment of two lines."),
        (10, "Another one."),
        (12, "Docstring."),
        (13, "pod CODE of that node"),
        (14, "found CODE; expected 2"),
    ]
