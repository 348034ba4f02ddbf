# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""TOML is read as Python's own tomllib reads it, and edited without touching another byte."""

from __future__ import annotations

import copy
import re
from random import Random
from typing import Any

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.toml import TomlError, loads, parse
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.toml_edit import (
    append,
    drop,
    remove,
    remove_empty_header,
    set_value,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

KEYS = ["a", "b", "runtimes", "runc", "nvidia", "io.containerd.grpc.v1.cri", "", "it's", 'quo"te', "ümlaut", "tab\t"]
LETTERS = "ab 'ü\"\\#=,.[]{}\n\t\0\x7f\U0001f600"
# A document is written by a random generator, which is fifty times as fast as one that Hypothesis makes piece by piece.
SEEDS = st.integers(0, 2**64)


def basic(text: str) -> str:
    """A basic string; only what TOML forbids is escaped."""
    return '"' + "".join(f"\\u{ord(c):04x}" if c in '"\\' or (ord(c) < 32 and c != "\t") or ord(c) == 127 else c for c in text) + '"'


class Writer(Random):
    """TOML as people and programs write it; now and then a document that is not TOML at all. Every comment has its own number."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.comments = 0

    def some(self, most: int) -> range:
        return range(self.randint(0, most))

    def comment(self) -> str:
        self.comments += 1
        return f"# {self.comments}."

    def path(self, longest: int = 4) -> tuple[str, ...]:
        return tuple(self.choice(KEYS) for _ in range(self.randint(1, longest)))

    def paths(self, most: int, longest: int = 4) -> list[tuple[str, ...]]:
        return list(dict.fromkeys(self.path(longest) for _ in self.some(most)))

    def scalar(self) -> Any:
        numbers = [0, 1, 9, self.randint(-(2**63), 2**63 - 1), 1.0, -0.5, 1e300, float("inf")]
        texts = ["", "runc", "/usr/bin/x", "".join(self.choices(LETTERS, k=self.randint(0, 9)))]
        return self.choice([True, False, *self.choices(numbers, k=2), *self.choices(texts, k=4)])

    def key(self, part: str) -> str:
        forms = [basic(part)]
        if part and all(c.isascii() and (c.isalnum() or c in "-_") for c in part):
            forms += [part] * 3
        if "'" not in part:
            forms.append(f"'{part}'")
        return self.choice(forms)

    def dotted(self, path: tuple[str, ...]) -> str:
        return self.choice([".", ".", " . "]).join(self.key(part) for part in path)

    def value(self, depth: int = 2) -> str:
        kind = self.choice(["scalar"] * 4 + ["array", "inline"] * (depth > 0))
        if kind == "array":
            gap = self.choice(["", " ", "\n  ", f" {self.comment()}\n"])
            values = [self.value(depth - 1) for _ in self.some(3)]
            comma = self.choice(["", ","]) if values else ""
            return "[" + gap + ("," + gap).join(values) + comma + gap + "]"
        if kind == "inline":
            pairs = [f"{self.dotted(path)} = {self.value(depth - 1)}" for path in self.paths(3)]
            return self.choice(["{{ {} }}", "{{{}}}", "{{  {}}}"]).format(", ".join(pairs))
        value = self.scalar()
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str):
            forms = [basic(value), basic(value), '"""' + basic(value)[1:-1] + '"""']
            if "'" not in value and basic(value)[1:-1] == value:
                forms += [f"'{value}'", f"'''\n{value}'''"]
            return self.choice(forms)
        if isinstance(value, int):
            return self.choice([str(value), f"{value:_}", f"0x{abs(value):x}"])
        return repr(value)

    def document(self) -> str:
        lines: list[str] = []
        nested, blank = self.random() < 0.5, self.random() < 0.5

        def keys(indent: str) -> None:
            for path in self.paths(3, 2):
                if self.random() < 0.2:
                    lines.append(indent + self.comment())
                lines.append(f"{indent}{self.dotted(path)} = {self.value()}" + self.choice(["", f"  {self.comment()}"]))

        keys("")
        for path in self.paths(5):
            indent = "  " * len(path) if nested else ""
            lines += [""] * blank
            if self.random() < 0.2:
                lines.append(f"{indent}{self.comment()} [commented.out]")
            brackets = ("[[", "]]") if self.random() < 0.1 else ("[", "]")
            lines.append(indent + brackets[0] + self.dotted(path) + brackets[1])
            keys(indent + "  " * nested)
        text = "\n".join(lines) + self.choice(["", "\n", f"\n\n{self.comment()} the end\n"])
        return text.replace("\n", "\r\n") if self.random() < 0.3 else text

    def valid(self) -> str:
        while True:
            text = self.document()
            if oracle(text) is not None:
                return text


def oracle(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def ours(text: str) -> dict[str, Any] | None:
    try:
        return loads(text)
    except TomlError:
        return None


def same(left: Any, right: Any) -> bool:
    return repr(left) == repr(right)


@settings(max_examples=400)
@given(SEEDS)
def test_it_reads_what_tomllib_reads_and_rejects_what_it_rejects(seed: int) -> None:
    text = Writer(seed).document()
    assert same(ours(text), oracle(text))


DAMAGE = ["'", '"', *"[]{}=.,#\\ \r\n\t\0\x7f\x0b-+_01aeEx", '"""', "'''", "[[", "\\u00e4", "\\ud800", "\\\n ", "inf", "\r\n", "# \0"]


@settings(max_examples=700)
@given(SEEDS)
def test_so_it_does_with_damaged_documents(seed: int) -> None:
    writer = Writer(seed)
    text = writer.valid()
    at = writer.randint(0, len(text))
    damaged = text[:at] + writer.choice(DAMAGE) + text[at + writer.randint(0, 3) :]
    assert same(ours(damaged), oracle(damaged))


# One form each, right and wrong, between bars: tomllib knows which.
FORMS = r"""
[a]⏎[a] | [[a]]⏎[a] | [a]⏎[[a]] | a = []⏎[[a]] | a = 1⏎[a] | a = 1⏎[a.b] | a = 1⏎[[a.b]] | a.b = 1⏎[a] | a.b = 1⏎[a.c] | a.b = 1⏎[[a]]
[a.b]⏎[a]⏎b.c = 1 | [a.b.c]⏎[a]⏎b.d = 1 | a = 1⏎a.b = 2 | [x]⏎a.b.c = 1⏎a.b = 2 | [x]⏎a.b.c = 1⏎a.b.d = 2 | [x]⏎a.b = 1⏎[x.a.c]
a = {}⏎[a.b] | a = {}⏎a.b = 1 | [a]⏎b = {}⏎[a.b.c] | a.b = {}⏎a.b.c = 1 | [[a]]⏎[a.b]⏎[[a]]⏎[a.b] | [[a]]⏎[[a.b]]⏎[[a]]⏎[[a.b]]
[[a]]⏎[a.b]⏎[a.b] | [a]⏎[[a.b]]⏎[a.c]⏎d=1 | [[a]]⏎b.c = 1⏎[[a]]⏎b.c = 2 | [[a]]⏎b = 1⏎[a.b.c] | [[a.b]]⏎[a]⏎c = 1 | [[a]]⏎[[b]]⏎[a.c]
a | = 1 | a = | [a | [[a] | [] | [a.] | a. = 1 | [ a . 'b' ] | [[ a . b ]] | a . b = 1 | "" = 1 | QQQaQQQ = 1 | 'a' = 1 | a b = 1 | [a] b
a = 1 b | a = '' b | a = 'b'c | a = [1 2] | a = [1 | a = [,] | a = [1,,2] | a = [[1], [2, 3,],]
a = [ # b⏎ 1, # c⏎ # d⏎] | a = "b | a = '''b
a = { b = 1 c = 2 } | a = { b = 1, } | a = { b = 1, b = 2 } | a = { b = 1, b.c = 2 } | a = { b.c = 1, b.d = 2 } | a = { b.c = 1, b.c.d = 2 }
a = { b⏎= 1 } | a = { b = [⏎1] } | a = { , } | a = {b = {}, c = {d = 1}} | a = [{}, {b = 1}] | a = { b = 1 | a = { b.c = {}, b.c.d = 1 }
a = "\q" | a = "\b\t\n\f\r\"\\" | a = "\u00e4\U0001f600" | a = "\ud800" | a = "\udfff" | a = "\ue000" | a = "\U0010ffff" | a = "\U00110000"
a = "\⏎b" | a = QQQ\⏎ b\  ⏎⏎ cQQQ | a = QQQ\ bQQQ | a = QQQ⏎⏎b⏎QQQ | a = '''⏎\b⏎''' | a = QQQ"b"QQQ | a = QQQb""QQQ | a = QQQbQQQQQQ
a = "\u12" | a = QQQ""QQQ | a = ''''b'''' | a = '''b'''''' | a = '''b'c''d''' | a = QQQb"c""dQQQ | a = "b\\" | a = "'" | a = '"' | a = '\'
a = 01 | a = -0 | a = +1_0 | a = 1__0 | a = 1_ | a = 0x_1 | a = 0xF_f | a = +0x1 | a = 0o17 | a = 0o8 | a = 0b11 | a = 0b2 | a = 1. | a = .1
a = 1e | a = 1e5 | a = 1_0.0_1e+1_0 | a = 1.5E-3 | a = -0.0 | a = nan | a = +inf | a = -inf | a = -nan
a = truex | a = true | a = false | a = True
a = 12:30 | a = 1# b | # a | [a] # b | a = 1 # b | a = "b" # c"
""".replace("QQQ", '"""')


@pytest.mark.parametrize("text", [one.strip().replace("⏎", "\n") for one in re.split(r" \| |\n", FORMS) if one])
def test_every_form_is_read_as_tomllib_reads_it(text: str) -> None:
    for whole in (text, text + "\n", "z = 1\n" + text + "\n[y]\n"):
        assert same(ours(whole), oracle(whole))


@pytest.mark.parametrize("control", ["\0", "\x08", "\x0b", "\x1f", "\x7f", "\r"])
@pytest.mark.parametrize(
    "form", ['a = "{}"', "a = '{}'", 'a = """{}"""', "a = '''{}'''", "# {}", "a = [ # {}b\n]", "a = 1 # {}", "[a] # {}", "a{} = 1"]
)
def test_control_characters_stand_nowhere(form: str, control: str) -> None:
    assert oracle(form.format(control)) is None
    assert ours(form.format(control)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = 2021-01-01\n", "line 2: dates and times are not supported: '2021-01-01'"),
        ("a = 1\n\na = 2\n", "line 3: the key is there twice: 'a = 2'"),
        ("a = { b = 1, b = 2 }\n", "line 1: the key is there twice: 'b = 2 }'"),
        ("[a]\n [a] # why it is there again\n", "line 2: the table is defined already: '[a] # why it is ther'"),
        ("[[a]]\n[a]\n", "line 2: the table is defined already: '[a]'"),
        ("a.b = 1\n[a.b.c]\n", "line 2: a.b is a value, not a table: '[a.b.c]'"),
        ("[a.b]\n[a]\nb.c = 1\n", "line 3: a.b is defined elsewhere: 'b.c = 1'"),
        ("a = { b.c = 1, b.c.d = 2 }\n", "line 1: b.c is a value already: 'b.c.d = 2 }'"),
        ('a = "b\n', "line 1: the string does not end: '\"b'"),
        ("a = \n", "line 1: expected a value: ''"),
        ("a = 1 b\n", "line 1: expected the end of the line: 'b'"),
        ("a = [1 2]\n", "line 1: expected a comma or the end of the array: '2]'"),
        ("\n[[a]\n", "line 2: expected ']]': ']'"),
        ("[]\n", "line 1: expected a key: ']'"),
        ('a = "\\q"\n', "line 1: unknown escape \\q in a string: '\"\\\\q\"'"),
        ('a = "\\ud800"\n', "line 1: \\ud800 is not a character: '\"\\\\ud800\"'"),
        ("a = '\x7f'\n", "line 1: found the control character '\\x7f' in a string: \"'\\x7f'\""),
        ("a = [\n # \x01\n]\n", "line 2: found the control character '\\x01' in a comment: '# \\x01'"),
        ("a = 1\r\nb\r = 1\n", "line 2: found a carriage return without a newline: '\\r = 1'"),
        # More than Python reads, and more than it prints.
        ("a = " + "1" * 5000, "line 1: a number of 5000 digits, expected at most 1000: '" + "1" * 20 + "'"),
        ("a = 0x" + "f" * 4500, "line 1: a number of 4502 digits, expected at most 1000: '0x" + "f" * 18 + "'"),
    ],
)
def test_an_error_names_the_line(text: str, message: str) -> None:
    with pytest.raises(TomlError) as error:
        loads(text)
    assert str(error.value) == message


def test_where_everything_stands_is_remembered() -> None:
    text = "a = {b = [1, 2]} # x\n[ x . 'y' ]\n  c.d = 1\n[[z]]\ne = [1]\n[z.f]\n[w]"
    found = parse(text)
    assert [(text[one.start : one.end], one.path, one.raw) for one in found.headers] == [
        ("[ x . 'y' ]\n", ("x", "y"), ("x", "'y'")),
        ("[w]", ("w",), ("w",)),
    ]
    assert [(text[one.start : one.end], one.path, text[slice(*one.value)], one.header, one.inline) for one in found.items] == [
        ("a = {b = [1, 2]} # x\n", ("a",), "{b = [1, 2]}", -1, False),
        ("b = [1, 2]", ("a", "b"), "[1, 2]", -1, True),
        ("  c.d = 1\n", ("x", "y", "c", "d"), "1", 0, False),
    ]
    assert {path: text[slice(*place)] for path, place in found.inline_tables.items()} == {("a",): "{b = [1, 2]}"}
    assert {path: [text[slice(*one)] for one in places] for path, places in found.arrays.items()} == {("a", "b"): ["1", "2"]}


def put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any] | None:
    """The data with this value; None if something on the way is no table."""
    data = copy.deepcopy(data)
    table: Any = data
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return None
    table[path[-1]] = value
    return data


def is_insertion(shorter: str, longer: str) -> bool:
    prefix = 0
    while prefix < len(shorter) and shorter[prefix] == longer[prefix]:
        prefix += 1
    return longer.endswith(shorter[prefix:]) and len(longer) >= len(shorter)


def numbers(text: str) -> list[str]:
    """The comments, by their numbers."""
    return re.findall(r"# \d+\.", text)


def paths_in(data: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of every table that is in no array."""
    if not isinstance(data, dict):
        return []
    return [found for key, value in data.items() for found in [(*path, key), *paths_in(value, (*path, key))]]


def is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value))


@settings(max_examples=400)
@given(SEEDS)
def test_setting_a_value_changes_that_value_and_taking_it_away_leaves_the_old_bytes(seed: int) -> None:
    writer = Writer(seed)
    text, value = writer.valid(), writer.choice([writer.scalar(), writer.scalar(), ["nvidia", "", True][: writer.randint(0, 3)]])
    before = tomllib.loads(text)
    path = writer.choice([writer.path(), writer.choice([*paths_in(before), ("a",)]) + writer.path()[: writer.randint(0, 2)]])
    wanted, old = put(before, path, value), lookup(before, path)
    try:
        after = set_value(text, path, value)
    except TomlError:
        assert wanted is None or is_table(old)
        return
    assert same_data(tomllib.loads(after), wanted)
    assert set_value(after, path, value) == after
    # The only line break of the text may be in the value that goes.
    assert not re.search(r"(?<!\r)\n" if "\r\n" in text else r"\r\n", after)
    if old is None:
        assert is_insertion(text, after)
        assert headerless(remove(after, path), text, path) == text
    elif not isinstance(old, (list, dict)):
        assert numbers(after) == numbers(text)


def same_data(left: Any, right: Any) -> bool:
    """Equal with types, whatever the order of keys."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_data(left[key], right[key]) for key in left)
    return same(left, right)


def lookup(data: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return None
        data = data[part]
    return data


def headerless(text: str, original: str, path: tuple[str, ...]) -> str:
    """Without the header that only the removed key needed."""
    return text if text == original else remove_empty_header(text, path[:-1])


@settings(max_examples=400)
@given(SEEDS)
def test_removing_leaves_everything_else(seed: int) -> None:
    writer = Writer(seed)
    text = writer.valid()
    before = tomllib.loads(text)
    path = writer.choice([*paths_in(before), ("a",)])
    try:
        after = remove(text, path)
    except TomlError:
        assert is_table(lookup(before, path))
        return
    if lookup(before, path) is None:
        assert after == text
        return
    assert same_data(without(tomllib.loads(after), path), without(before, path))
    assert is_subsequence(numbers(after), numbers(text))


def is_subsequence(shorter: list[str], longer: list[str]) -> bool:
    rest = iter(longer)
    return all(one in rest for one in shorter)


def without(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The data without this key, and without the tables on the way to it that are empty then."""
    kept = {key: value for key, value in data.items() if key != path[0]}
    inner = without(data[path[0]], path[1:]) if path[0] in data and len(path) > 1 else {}
    return {**kept, path[0]: inner} if inner else kept


ELEMENTS = st.lists(st.sampled_from(["/etc/containerd/conf.d/*.toml", "x", "it's"]), max_size=3)


@settings(deadline=None)
@given(ELEMENTS, st.sampled_from(["[{}]", "[ {} ]", "[\n  {},\n]", "[{}] # comment"]), st.sampled_from([", ", ",", ",\n  "]))
def test_a_list_gets_one_element_and_loses_it_again(elements: list[str], form: str, between: str) -> None:
    assume(elements or "," not in form)
    text = "version = 2\nimports = " + form.format(between.join(basic(element) for element in elements)) + "\n[plugins]\n"
    after = append(text, ("imports",), "/new")
    assert tomllib.loads(after) == {"version": 2, "imports": [*elements, "/new"], "plugins": {}}
    assert is_insertion(text, after)
    assert drop(after, ("imports",), "/new") == text


def test_a_missing_list_is_made_among_the_first_keys() -> None:
    assert append("version = 3\n\n[plugins]\n", ("imports",), "x") == 'version = 3\nimports = ["x"]\n\n[plugins]\n'


def at(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        # Among the first keys, whatever comes below.
        ("", "a", 1, "a = 1\n"),
        ("", "", 1, '"" = 1\n'),
        ("a = 1", "b", 2, "a = 1\nb = 2"),
        ("# top\n\n[x]\ny = 1\n", "a", 1, "a = 1\n# top\n\n[x]\ny = 1\n"),
        ("  a = 1 # why\n\n[y]\n", "b", 1, "  a = 1 # why\n  b = 1\n\n[y]\n"),
        ("[[a]]\nb = 1\n[c]\nd = 1\n", "e", 1, "e = 1\n[[a]]\nb = 1\n[c]\nd = 1\n"),
        ("x = nan\n", "a", 1, "x = nan\na = 1\n"),
        # Behind the last key of its table, or its header.
        ("[x] # why", "x.y", 1, "[x] # why\ny = 1"),
        ("  [x]\n  # why\n\n[y]\n", "x.y", 1, "  [x]\n  y = 1\n  # why\n\n[y]\n"),
        ("[x]\n  a = 1\n[y]\n", "y.b", 2, "[x]\n  a = 1\n[y]\n  b = 2\n"),
        ("[x]\na = 1\n\n[y]\n", "y.b", 2, "[x]\na = 1\n\n[y]\nb = 2\n"),
        # A new table: behind its family, indented as its siblings or one step deeper, with a blank line if they have one.
        ("", "a.b", 1, "[a]\nb = 1\n"),
        ("x = 1\n", "c.d", 1, "x = 1\n\n[c]\nd = 1\n"),
        ("x = 1\n[a]\n", "b.c", 1, "x = 1\n[a]\n[b]\nc = 1\n"),
        ("x = 1\n\n[a]\n", "b.c", 1, "x = 1\n\n[a]\n\n[b]\nc = 1\n"),
        ("[a]\ny = 1\n", "c.d", 1, "[a]\ny = 1\n\n[c]\nd = 1\n"),
        ("[a]\nb = 1\n[c]\nd = 1\n", "a.e.f", 1, "[a]\nb = 1\n[a.e]\nf = 1\n[c]\nd = 1\n"),
        ("[a.x]\nb = 1\n[a.y]\nb = 1\n\n[c]\n", "a.z.f", 1, "[a.x]\nb = 1\n[a.y]\nb = 1\n[a.z]\nf = 1\n\n[c]\n"),
        ("[x]\n\ta = 1\n\n[y]\n", "x.y.z", 1, "[x]\n\ta = 1\n\n[x.y]\n\tz = 1\n\n[y]\n"),
        ("[x]\n\ta = 1\n\t[x.v]\n\t\tb = 1\n\n[y]\n", "x.y.z", 1, "[x]\n\ta = 1\n\t[x.v]\n\t\tb = 1\n\t[x.y]\n\t\tz = 1\n\n[y]\n"),
        ("[x]\na = 1\n\n  [x.v]\n  b = 1\n", "x.v.w.c", 1, "[x]\na = 1\n\n  [x.v]\n  b = 1\n\n    [x.v.w]\n    c = 1\n"),
        ("    [x]\n  a = 1\n", "x.y.z", 1, "    [x]\n  a = 1\n\n      [x.y]\n      z = 1\n"),
        ("e = 1\n[[a]]\nb = 1\n", "c.d", 1, "e = 1\n\n[c]\nd = 1\n[[a]]\nb = 1\n"),
        # Above the tables that are inside it, and their comments.
        ("[x]\na = 1\n  [x.y.z]\n  b = 1\n", "x.y.c", 1, "[x]\na = 1\n  [x.y]\n  c = 1\n  [x.y.z]\n  b = 1\n"),
        ("[x]\n\n  # of z\n  # and b\n  [x.y.z]\n", "x.y.c", 1, "[x]\n\n  [x.y]\n  c = 1\n\n  # of z\n  # and b\n  [x.y.z]\n"),
        ("# inner\n[x.y]\nb = 1\n", "x.c", 1, "[x]\nc = 1\n# inner\n[x.y]\nb = 1\n"),
        # A table without keys.
        ("", "a", {}, "[a]\n"),
        ("[a]\nb = {}\n", "a.c", {}, "[a]\nb = {}\n\n[a.c]\n"),
        ("a.b = 1\n", "a.c", {}, "a.b = 1\na.c = {}\n"),
        # Beside dotted keys.
        ("a.b = 1\nc = 1\n", "a.d", 2, "a.b = 1\na.d = 2\nc = 1\n"),
        ("[x]\n  a.b.c = 1 # why\n\n[y]\n", "x.a.d", 2, "[x]\n  a.b.c = 1 # why\n  a.d = 2\n\n[y]\n"),
        ("[x]\n  a.b.c = 1 # why\n\n[y]\n", "x.a.b.d", 2, "[x]\n  a.b.c = 1 # why\n  a.b.d = 2\n\n[y]\n"),
        # Inside the braces that are nearest.
        ("a = {}\n", "a.b", 1, "a = {b = 1}\n"),
        ("a = {  }\n", "a.b", 1, "a = { b = 1 }\n"),
        ("a = { b = { c = 1 }, d = 2 }\n", "a.b.e", 1, "a = { b = { c = 1, e = 1 }, d = 2 }\n"),
        ("a = { b = { c = 1 }, d = 2 } # why\n", "a.e.f", 1, "a = { b = { c = 1 }, d = 2, e.f = 1 } # why\n"),
        ("a = { b = {}, d = 2 }\n", "a.b.e", 1, "a = { b = {e = 1}, d = 2 }\n"),
        ("a = {b = 1}\nc = {d = 1}\n", "a.e", 1, "a = {b = 1, e = 1}\nc = {d = 1}\n"),
        # With the quotes that most values have, where these can hold it.
        ("a = 'x'\nb = 'y'\nc = \"y\"\n", "d", "z", "a = 'x'\nb = 'y'\nc = \"y\"\nd = 'z'\n"),
        ("a = 'x'\nb = \"y\"\n", "c", "z", 'a = \'x\'\nb = "y"\nc = "z"\n'),
        ("a = 'x'\n", "c", "it's", "a = 'x'\nc = \"it's\"\n"),
        ("a = 'x'\n", "c", "\t", "a = 'x'\nc = '\t'\n"),
        ("a = 'x'\n", "c", "\n", "a = 'x'\nc = \"\\n\"\n"),
        ("a = 'x'\n", "c", "\x7f", "a = 'x'\nc = \"\\u007f\"\n"),
        ("", "c", 'ü"\\', 'c = "ü\\"\\\\"\n'),
        ("a = 'x'\n", "c d", "y", "a = 'x'\n'c d' = 'y'\n"),
        ("", "c d.é", "y", '["c d"]\n"é" = "y"\n'),
        ("a = 'x'\n", "it's.e", "y", "a = 'x'\n\n[\"it's\"]\ne = 'y'\n"),
        ("", "x\n", 1, '"x\\n" = 1\n'),
        # A header as the others are written, as far as they go.
        ("[a.'b']\nc = 1\n[d.\"b\".e]\n", "a.b.f.g", 1, "[a.'b']\nc = 1\n[a.'b'.f]\ng = 1\n[d.\"b\".e]\n"),
        ('[a."b"]\n[a . \'b\'."c d"]\n', "a.b.c d.g.h", 1, '[a."b"]\n[a . \'b\'."c d"]\n[a.\'b\'."c d".g]\nh = 1\n'),
        # With the line ends of the text.
        ("[a]\r\nb = 1\r\n\r\n[c]\r\n", "a.x.y", 1, "[a]\r\nb = 1\r\n\r\n[a.x]\r\ny = 1\r\n\r\n[c]\r\n"),
        ("[a]\r\nb = 1", "a.c", 1, "[a]\r\nb = 1\r\nc = 1"),
    ],
)
def test_where_a_new_value_goes_and_how_it_looks(text: str, path: str, value: Any, after: str) -> None:
    assert set_value(text, at(path), value) == after
    assert headerless(remove(after, at(path)), text, at(path)) == text


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ("a = 'x' # why\nb = \"y\"\n", "a", "z", "a = 'z' # why\nb = \"y\"\n"),
        ("b = \"y\"\na = 'y'\n", "a", ["z", "w"], "b = \"y\"\na = ['z', 'w']\n"),
        ("a = 1\nb = 'y'\n", "a", "z", "a = 'z'\nb = 'y'\n"),
        ("a = { b = { c = 1 }, d = 2 }\n", "a.d", "x", 'a = { b = { c = 1 }, d = "x" }\n'),
        ("a = { b = { c = 1 }, d = 2 }\n", "a.b", {}, "a = { b = {}, d = 2 }\n"),
        # Equal to Python, but not to TOML.
        ("a = 1\n", "a", True, "a = true\n"),
        ("a = true\n", "a", 1, "a = 1\n"),
        ("a = 1\n", "a", 1.0, "a = 1.0\n"),
        ("a = [1]\n", "a", [True, False, 1.5], "a = [true, false, 1.5]\n"),
        # The same, in another form.
        ("a = 0x1 # mask\n", "a", 1, "a = 0x1 # mask\n"),
        ('a = """x"""\n', "a", "x", 'a = """x"""\n'),
        ("a = { }\n", "a", {}, "a = { }\n"),
        ("[a]\n", "a", {}, "[a]\n"),
    ],
)
def test_another_value_takes_the_place_of_the_old_one(text: str, path: str, value: Any, after: str) -> None:
    assert set_value(text, at(path), value) == after


@pytest.mark.parametrize(
    ("text", "path", "after"),
    [
        ("a = 1 # x\n# of b\nb = 2\n", "a", "# of b\nb = 2\n"),
        ("a = 1\r\nb = 2", "b", "a = 1"),
        ("b = 2", "b", ""),
        ("a = 1\n", "a.b", "a = 1\n"),
        # A table goes with all that is in it, wherever that stands, and the blank line above; comments stay.
        ("[x]\na = 1\n\n[y]\nb = 1\n# end\n\n[z]\n", "y", "[x]\na = 1\n# end\n\n[z]\n"),
        ("[x]\n\n\n[y]\nb = 1\n[z]\n", "y", "[x]\n\n[z]\n"),
        ("\r\n[y]\r\nb = 1\r\n[z]\r\n", "y", "[z]\r\n"),
        ("[x]\n\n[y]\nb=1", "y", "[x]"),
        ("[y]\nb = 1\n\n[y.z]\nc = 1\n[x]\n[y.w]\n", "y", "[x]\n"),
        ("[y]\nb = 1\n\n[y.z]\nc = 1\n[x]\n[y.w]\n", "y.z", "[y]\nb = 1\n[x]\n[y.w]\n"),
        ("a.b.c = 1\nf = 1\na.b.d = 2\na.e = 3\n", "a.b", "f = 1\na.e = 3\n"),
        ("[y]\nb = { c = 1, d = 2 }\n", "y.b", "[y]\n"),
        # In braces with the comma that is too much.
        ("a = { b = 1, c = 2, d = 3 }\n", "a.b", "a = { c = 2, d = 3 }\n"),
        ("a = { b = 1, c = 2, d = 3 }\n", "a.c", "a = { b = 1, d = 3 }\n"),
        ("a = { b = 1, c = 2, d = 3 }\n", "a.d", "a = { b = 1, c = 2 }\n"),
        ("a = { b = 1 }\nx = { b = 1, c = 1 }\n", "a.b", "a = {  }\nx = { b = 1, c = 1 }\n"),
        ("a = { b = { c = 1 }, d = { e = 1, f = 1 } }\n", "a.b.c", "a = { b = {  }, d = { e = 1, f = 1 } }\n"),
        ("a = { b = { c = 1 }, d = { e = 1, f = 1 } }\n", "a.d.e", "a = { b = { c = 1 }, d = { f = 1 } }\n"),
        ("a = { b = { c = 1 }, d = { e = 1, f = 1 } }\n", "a.d", "a = { b = { c = 1 } }\n"),
        ("a = { b.c = 1, d = 1 }\n", "a.b.c", "a = { d = 1 }\n"),
    ],
)
def test_what_goes_takes_its_own_bytes_along_and_no_others(text: str, path: str, after: str) -> None:
    assert remove(text, at(path)) == after


@pytest.mark.parametrize(
    ("text", "path", "after"),
    [
        ("b = 1\n\n[a]\n[c]\n", "a", "b = 1\n[c]\n"),
        ("[a]\n\n[a.b]\n", "a", "\n[a.b]\n"),
        ("[a]\n[b]\nc = 1\n[d]\n", "d", "[a]\n[b]\nc = 1\n"),
        ("b = 1\n\n[a] # x", "a", "b = 1"),
        ("[a]\nb = 1\n", "a", "[a]\nb = 1\n"),
        ("[a]\nb = 1\n", "b", "[a]\nb = 1\n"),
    ],
)
def test_a_header_goes_only_if_no_key_stands_below_it(text: str, path: str, after: str) -> None:
    assert remove_empty_header(text, at(path)) == after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a = []\n", 'a = ["/n"]\n'),
        ("a = [\n]\n", 'a = ["/n"\n]\n'),
        ('a = [ "x" ]\n', 'a = [ "x", "/n" ]\n'),
        ("a = ['x','y',]\n", "a = ['x','y',\"/n\",]\n"),
        ("a = ['x',\n  'y'\n]\n", "a = ['x',\n  'y',\n  \"/n\"\n]\n"),
        # What stands between the last two is no mere comma.
        ("a = [\n  'x', # why\n  'y', # z\n]\n", "a = [\n  'x', # why\n  'y', \"/n\", # z\n]\n"),
        ('a = [ "x" , "y" ]\n', 'a = [ "x" , "y", "/n" ]\n'),
        ("b = { a = 'x' }\na = []\n", "b = { a = 'x' }\na = ['/n']\n"),
    ],
)
def test_a_list_grows_as_it_is_written(text: str, after: str) -> None:
    assert append(text, ("a",), "/n") == after
    assert drop(after, ("a",), "/n") == text


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ('a = ["x"]\n', "a = []\n"),
        ('a = [\n  "x" ,\n]\n', "a = [\n  \n]\n"),
        ('a = ["x", "y", "z"]\n', 'a = ["y", "z"]\n'),
        ('a = ["y", "x", "z"]\n', 'a = ["y", "z"]\n'),
        ('a = [\n  "y",\n  "x", # x\n]\n', 'a = [\n  "y", # x\n]\n'),
        ('a = ["y"]\n', 'a = ["y"]\n'),
        ('a = "x"\n', 'a = "x"\n'),
        ("b = 1\n", "b = 1\n"),
    ],
)
def test_a_list_loses_one_element_and_its_comma(text: str, after: str) -> None:
    assert drop(text, ("a",), "x") == after


def test_what_lies_in_an_array_of_tables_is_rejected() -> None:
    with pytest.raises(TomlError, match="is not a table"):
        set_value("[[a]]\nb = 1\n", ("a", "c"), 2)


def test_a_value_is_not_turned_into_a_table() -> None:
    with pytest.raises(TomlError, match=r'^a\.b\."c d" cannot be set: b is not a table$'):
        set_value("[a]\nb = 1\n", ("a", "b", "c d"), 2)


def test_what_would_lose_something_else_is_rejected() -> None:
    words = r"^the layout around a is not one that can be edited safely; change it by hand$"
    with pytest.raises(TomlError, match=words):
        set_value("[a.b]\nc = 1\n", ("a",), {})
    with pytest.raises(TomlError, match=words):
        remove("[a]\n[[a.b]]\nc = 1\n", ("a",))


def test_only_what_toml_has_is_written() -> None:
    with pytest.raises(TomlError, match=r"^\{'b': 1\} cannot be written as a TOML value$"):
        set_value("", ("a",), {"b": 1})
