# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The language of documentation, as far as a program can judge it: `python tools/language.py [FILE…]`.

It reads the text of Markdown pages, of roles' argument specifications and of modules' documentation, without code and names in code
quotes. `code` reads docstrings, comments and messages of errors, which `make house` counts. CONTRIBUTING.md has the rules in full;
`RULES` and the bounds are the part that is checked. The linter Vale could not judge YAML in Python files, and is a Go program with 40
modules that a fresh machine would have to build first.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml

from tree import REPOSITORY, files

#: A longer sentence is a warning only.
MOST_WORDS = 30
#: Outside of tables and code.
MOST_COLUMNS = 120
#: Stands for code, a name or a figure in code quotes: one word.
CODE = "CODE"
SOURCES = re.compile(r".*\.md|roles/[^/]+/meta/argument_specs\.yml|plugins/(modules|lookup|doc_fragments)/\w+\.py")
#: Keys of YAML whose values are sentences.
SENTENCES = {"description", "short_description", "notes", "details"}
#: Comments for programs, and those of every file's head.
NO_PROSE = re.compile(r"#:? *(?:!|-\*-|SPDX|Copyright|GNU General|type:|noqa|fmt:|pragma)")
#: A text with so many words is a message, unless it is a pattern or has several lines.
MESSAGE_WORDS, OTHERS_WORDS = 4, re.compile(r"[|\\\n]")
#: What Ansible reads of a module; its sentences are read as YAML.
DOCUMENTATION = {"DOCUMENTATION", "EXAMPLES", "RETURN"}
BETWEEN_COMMENTS = {tokenize.COMMENT, tokenize.NL}
IRREGULAR = "Begun|Broken|Built|Done|Found|Given|Gone|Got|Held|Kept|Known|Left|Lost|Made|Meant|Proven|Seen|Sent|Shown|Taken|Told|Written"


@dataclass(frozen=True)
class Rule:
    """What a sentence must not have: `pattern` is searched in each; `instead` says what to write."""

    pattern: str
    instead: str
    #: Only where the sentence begins; headings and headers of tables are exempt.
    opening: bool = False

    def breaks(self, sentence: str) -> str:
        """The words that break the rule, or an empty text."""
        found = re.match(self.pattern, sentence) if self.opening else re.search(self.pattern, sentence, re.IGNORECASE)
        return found[0] if found else ""


RULES = (
    Rule(rf"(?!Need|Seed|Feed|Speed|Shared|Red\b|Un)[A-Z]\w+ed\b|(?:{IRREGULAR})\b", "begin with the subject, not with a participle", True),
    Rule(r"(?i:who|what|whoever|whatever|whichever)\b(?!.*\?$)", "name the actor or the thing as the subject", True),
    Rule(r"\b(?:whoever|somebody|nobody)\b", "name the actor"),
    Rule(r"\bin words\b", "say what it is: a message, an error, an Event"),
    Rule(r"\bbut for\b|\b(?:all|any|anything|every\w*|nobody|none|nothing) but\b", "except"),
    Rule(r"\banew\b", "again, new"),
    Rule(r"\bas ever\b", "as usual"),
    Rule(r"\bbec[ao]mes? of\b", "say what happens to it"),
    Rule(r"\bg(?:oes?|oing) on\b|\bwent on\b", "continue"),
    Rule(r"\blets? go\b|\bput(?:s|ting)? back\b", "release; restore"),
    Rule(r"(?<!there )\b(?:is|are|was|were) no (?!(?:long|old|new|low|high|larg|small|great|bett|oth)er\b|more\b|less\b)", "is not a"),
    Rule(r"\bof\b(?: [\w'-]+){1,3} of\b(?: [\w'-]+){1,3} of\b", "make two sentences, or use a verb: no chain of three 'of'"),
    Rule(r"\b(?:has|have)\b(?: [\w'-]+){1,4} of\b(?: [\w'-]+){1,3} of\b", "a verb that says more than has, without a chain of 'of'"),
    Rule(r"\bcontrol groups? of version\b", "cgroup v2"),
    # Words that had another meaning here than in the field.
    Rule(r"\b(?:lingering|outlived?|holdings?)\b", "orphaned, terminating, still in use; usage"),
    Rule(r"\bheld\b(?! back)", "allocated, in use, reserved"),
    Rule(r"\brefus(?:e[sd]?|als?|ing)\b", "rejected (admission), incompatible (GPU), unschedulable (pod), unauthorized (caller)"),
    Rule(r"\brecall(?:s|ed|ing)?\b", "requeue"),
    Rule(r"\bfenc(?:es?|ed|ing)\b|\blanded\b", "leadership, send window, wait, drained"),
    Rule(r"\bpro(?:ven|ved?|ves|of)\b", "verify, verified, verification"),
    Rule(r"\bsteer(?:s|ed|ing)?\b|\bwhose turn\b", "as planned; pending container"),
    Rule(r"\boffer(?:s|ed|ing)?\b", "publish, register, provide"),
    Rule(r"\blook(?:s|ed|ing)?\b", "verify, check, read"),
    Rule(r"\bpoint(?:s|ed|ing)? at\b|\bkeep(?:s|ing)? off\b|\bgives? (?:back|out|away)\b", "configure; restrict; allocate, release"),
)


@dataclass(frozen=True)
class Block:
    """A paragraph, an item of a list, a cell of a table or a description. heading: also the header of a table."""

    line: int
    text: str
    heading: bool = False


def cells(line: str) -> list[str]:
    """The cells of a row; bars in code do not count."""
    hidden = re.sub(r"`[^`]*`|\\\|", lambda code: "\0" * len(code[0]), line.strip().strip("|"))
    ends = [-1, *(at for at, char in enumerate(hidden) if char == "|"), len(hidden)]
    stripped = line.strip().strip("|")
    return [stripped[start + 1 : end].strip() for start, end in pairwise(ends)]


def markdown(text: str) -> Iterator[Block]:
    """The blocks of a page, without code and comments."""
    gathered: list[str] = []
    begin, fenced, lines = 0, False, text.splitlines()

    def block() -> Iterator[Block]:
        if gathered:
            yield Block(begin, " ".join(gathered))
            gathered.clear()

    for number, line in enumerate([*lines, ""], 1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
            yield from block()
        elif not stripped or fenced or (line.startswith("    ") and not gathered) or stripped.startswith("<!--"):
            yield from block()
        elif stripped.startswith("#"):
            yield from block()
            yield Block(number, stripped.lstrip("# "), heading=True)
        elif stripped.startswith("|"):
            yield from block()
            if not re.fullmatch(r"[|: -]+", stripped):
                header = number < len(lines) and re.fullmatch(r"[|: -]+", lines[number].strip()) is not None
                yield from (Block(number, cell, heading=header) for cell in cells(stripped))
        else:
            item = re.match(r"(?:[-*]|\d+\.) +", stripped)
            if item:
                yield from block()
            if not gathered:
                begin = number
            gathered.append(stripped[item.end() :] if item else stripped)


def descriptions(text: str, first: int = 1) -> Iterator[Block]:
    """The sentences in a YAML text whose first line has this number."""

    def walk(node: yaml.Node, sentences: bool) -> Iterator[Block]:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                # A key may be an option's name; the value of an option is a mapping.
                yield from walk(value, key.value in SENTENCES)
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                yield from walk(value, sentences)
        elif sentences:
            yield Block(first + node.start_mark.line, " ".join(node.value.split()))

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        yield from walk(root, False)


def docstrings(text: str) -> Iterator[Block]:
    """The sentences in the YAML texts of a plugin: DOCUMENTATION, RETURN, and the parts of a fragment."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if any(name.isupper() and name != "EXAMPLES" for name in names):
                yield from descriptions(node.value.value, node.value.lineno)


def code(text: str) -> Iterator[Block]:
    """The docstrings, the comments and the messages in a Python text. Lines of comments below one another are one block."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
            yield from (Block(node.body[0].lineno, " ".join(part.split())) for part in doc.split("\n\n"))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from (Block(node.lineno, words) for words in map(message, node.exc.args) if words)
    yield from _messages(tree)
    gathered: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_prose = token.type == tokenize.COMMENT and not NO_PROSE.match(token.string)
        if gathered and ((is_prose and token.start[0] > gathered[-1][0] + 1) or token.type not in BETWEEN_COMMENTS):
            yield Block(gathered[0][0], " ".join(words for _line, words in gathered))
            gathered = []
        if is_prose:
            gathered.append((token.start[0], token.string.lstrip("#: ")))


def _messages(tree: ast.AST) -> Iterator[Block]:
    """The texts of four words or more, without docstrings, those of a `raise` and parts of others. The first word of one may be any."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in DOCUMENTATION):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            skipped |= set(map(id, node.exc.args))
        elif isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
        words = message(node) if isinstance(node, ast.expr) and id(node) not in skipped else ""
        if len(words.split()) >= MESSAGE_WORDS and not OTHERS_WORDS.search(words):
            yield Block(getattr(node, "lineno", 0), words, True)


def message(node: ast.expr) -> str:
    """The text of an argument: a literal, with what is filled in as one word; "" for a name and anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else CODE for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value else ""


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text()
    return {".md": markdown, ".yml": descriptions, ".py": docstrings}[path.suffix](text)


def plain(text: str) -> str:
    """The text as it is read: code is one word, a link its text; without marks."""
    text = re.sub(r"`[^`]*`|\b[CVOEMPU]\([^)]*\)|https?://\S+", CODE, text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\*+|(?<!\w)_+|_+(?!\w)", "", text)


def sentences(text: str) -> list[str]:
    """The sentences of a plain text: one may begin with a small letter, as the names of programs do."""
    return [part for part in re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!al\.)[\"')]*\s+", text) if part]


def problems(block: Block) -> Iterator[str]:
    """What breaks a rule in a block: the words, and what to write."""
    text = plain(block.text)
    if text.count(";") > 1 and not block.heading:
        yield f"{text.count(';')} semicolons: at most one in a paragraph; make sentences or a list of it"
    for sentence in sentences(text):
        for rule in RULES:
            if not (rule.opening and block.heading) and (found := rule.breaks(sentence)):
                yield f'"{found}" in "{sentence[:60]}": {rule.instead}'


def warnings(block: Block) -> Iterator[str]:
    """Sentences that are hard to read for their length alone; some must be so."""
    for sentence in sentences(plain(block.text)):
        words = sum(1 for word in sentence.split() if re.search(r"\w", word))
        if words > MOST_WORDS:
            yield f'{words} words: "{sentence[:60]}…"'


def long_lines(text: str) -> Iterator[int]:
    """Numbers of a page's lines that are too long."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        breakable = " " in re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", CODE, line.strip())
        if len(line) > MOST_COLUMNS and breakable and not fenced and not line.startswith(("|", "    ")):
            yield number


def file_problems(path: Path) -> Iterator[str]:
    """What breaks a rule in a file, each with its line."""
    for block in blocks(path):
        yield from (f"{block.line}: {problem}" for problem in problems(block))
    # A line break in a paragraph becomes a space, which Chinese does not have between sentences.
    if path.suffix == ".md" and not path.name.endswith(".zh-CN.md"):
        yield from (f"{number}: longer than {MOST_COLUMNS} columns" for number in long_lines(path.read_text()))


def main(arguments: list[str]) -> None:
    paths = arguments or [path for path in files() if SOURCES.fullmatch(path)]
    for path in paths:
        for block in blocks(REPOSITORY / path):
            for warning in warnings(block):
                print(f"{path}:{block.line}: warning: {warning}")
    found = [f"{path}:{problem}" for path in paths for problem in file_problems(REPOSITORY / path)]
    if found:
        sys.exit("\n".join([*found, f"{len(found)} sentences to rewrite; CONTRIBUTING.md has the rules"]))
    print(f"{len(paths)} texts keep the rules of language")


if __name__ == "__main__":
    main(sys.argv[1:])
