# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change a text that Kubernetes reads, YAML or JSON, as little as possible: the language stays, and of YAML comments, order and quoting.

The new text is read again as Kubernetes reads it (`_yaml`). It needs PyYAML, which hosts may not have.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import yaml

from ...module_utils._formats import json_edit, line_ends
from ...module_utils._formats.failure import Failure
from ...module_utils._formats.yaml_scalars import first_document
from .. import _yaml

_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*\S", re.MULTILINE)


class _CannotSplice(Failure):
    """This text has a form that is not edited in place."""


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


def splice(text: str, wanted: Any) -> str:
    """`text`, changed so that Kubernetes reads `wanted` in it. Where that cannot be done in place, `wanted` written as a new text of the
    same language. Behind the first document of a text, nothing changes.

    yaml.YAMLError where Kubernetes would not read `wanted` in any text that is made here.
    """
    return line_ends.kept(text, lambda lines: _spliced(lines, wanted))


def _spliced(text: str, wanted: Any) -> str:
    is_json = _yaml.is_json(text)
    first, rest = (text, "") if is_json else first_document(text)
    try:
        if _same(_yaml.load(text), wanted):
            return text
        result = text if is_json else _Splicer(first).result(wanted) + rest
        if _same(_yaml.load(result), wanted):
            return result
    except (_CannotSplice, yaml.YAMLError):
        pass
    result = json_edit.dumps(wanted, text) if is_json else _yaml.dump(wanted) + rest
    if not _same(_yaml.load(result), wanted):
        raise yaml.YAMLError(f"a value that cannot be written for Kubernetes: {str(wanted)[:80]}")
    return result


def lost_comments(before: str, after: str) -> int:
    """How many comments of the one text the other does not have. Text that only resembles a comment, in a string, stays with its string."""
    return len([comment for comment in _COMMENT.findall(before) if comment not in after])


def _same(left: Any, right: Any) -> bool:
    """Equal, and of equal types (to Python, True equals 1); the order of keys does not count."""
    return json.dumps(left, sort_keys=True, default=repr) == json.dumps(right, sort_keys=True, default=repr)


class _Splicer:
    def __init__(self, text: str) -> None:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise _CannotSplice("an alias would change in two places")
        self.text = text
        self.edits: list[_Edit] = []

    def result(self, wanted: Any) -> str:
        root = yaml.compose(self.text, Loader=_yaml.Loader)
        if root is None:
            raise _CannotSplice("nothing there")
        if isinstance(root, yaml.CollectionNode) and root.flow_style:
            # In braces. Without what stands before them, Kubernetes would take it for JSON.
            start, end = root.start_mark.index, root.end_mark.index
            before = self.text[:start] + ("" if self.text[:start].endswith(("\n", "\r")) or not start else "\n")
            return before + _yaml.dump(wanted).rstrip("\n") + self.text[end:]
        self._value(root, _yaml.load(self.text), wanted)
        text = self.text
        # Later edits first; of two insertions at one place, the outer one first, so that the inner one comes before it.
        for _place, edit in sorted(enumerate(self.edits), key=lambda placed: (placed[1].start, placed[0]), reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text

    def _value(self, node: yaml.Node, current: Any, wanted: Any) -> None:
        if _same(current, wanted):
            return
        if isinstance(node, yaml.MappingNode) and isinstance(wanted, dict) and self._is_block(node):
            self._mapping(node, current, wanted)
        elif isinstance(node, yaml.SequenceNode) and isinstance(wanted, list) and self._is_block(node):
            self._sequence(node, current, wanted)
        elif self._is_block(node):
            raise _CannotSplice("a block becomes something else")
        else:
            inline = _yaml.dump(wanted, flow=True)
            self.edits.append(_Edit(node.start_mark.index, node.end_mark.index, inline.removesuffix("...\n").rstrip("\n")))

    def _mapping(self, node: yaml.MappingNode, current: dict[Any, Any], wanted: dict[Any, Any]) -> None:
        if len(node.value) != len(current):
            raise _CannotSplice("a key stands there twice, or is merged in")
        if not wanted:
            raise _CannotSplice("the whole document goes")
        column = node.start_mark.column
        for (key, value), name in zip(node.value, current, strict=True):
            if name not in wanted:
                self._delete(key, value, "")
            elif not _same(current[name], wanted[name]):
                self._member(key, value, current[name], wanted[name], column)
        added = {name: value for name, value in wanted.items() if name not in current}
        if added:
            self._insert_after(node, self._block(added, column))

    def _member(self, key: yaml.Node, value: yaml.Node, current: Any, wanted: Any, column: int) -> None:
        """Another value under a key that stays."""
        is_collection = isinstance(wanted, (dict, list))
        if self._is_empty(value) and is_collection and wanted:
            self.edits.append(_Edit(self._colon(key), self._end(value), "\n" + self._block(wanted, column + 2)))
        elif self._is_block(value) and is_collection and not wanted:
            self.edits.append(_Edit(self._colon(key), self._end(value), " {}" if isinstance(wanted, dict) else " []"))
        else:
            self._value(value, current, wanted)

    def _sequence(self, node: yaml.SequenceNode, current: list[Any], wanted: list[Any]) -> None:
        if self.text[node.start_mark.index] != "-" or not wanted:
            raise _CannotSplice("a list in a form of its own, or the whole of it goes")
        before, after = ([json.dumps(member, sort_keys=True, default=repr) for member in items] for items in (current, wanted))
        for what, start, end, first, last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if what == "equal":
                continue
            both = min(end - start, last - first)
            for place in range(both):
                self._value(node.value[start + place], current[start + place], wanted[first + place])
            for element in node.value[start + both : end]:
                self._delete(element, element, "-")
            if last - first > both:
                if end == 0:
                    raise _CannotSplice("an element comes before the first one")
                # It is indented as the dash of the others is.
                self._insert_after(node.value[end - 1], self._block(wanted[first + both : last], node.start_mark.column))

    def _delete(self, first: yaml.Node, last: yaml.Node, before: str) -> None:
        """Take out the lines from `first` to `last`, which must be all that stands there, with `before` in front."""
        start = self.text.rfind("\n", 0, first.start_mark.index) + 1
        if self.text[start : first.start_mark.index].strip() != before:
            raise _CannotSplice("something else begins on the same line")
        end = self._line_end(self._end(last))
        self.edits.append(_Edit(start, min(end + 1, len(self.text)), ""))

    def _insert_after(self, node: yaml.Node, block: str) -> None:
        line_end = self._line_end(self._end(node))
        self.edits.append(_Edit(line_end, line_end, "\n" + block))

    def _line_end(self, end: int) -> int:
        """Where the line ends on which a node ends; only a comment may follow the node there."""
        line_end = self.text.find("\n", end)
        line_end = len(self.text) if line_end < 0 else line_end
        rest = self.text[end:line_end].strip()
        if rest and not rest.startswith("#"):
            raise _CannotSplice("something follows on the same line")
        return line_end

    def _colon(self, key: yaml.Node) -> int:
        return self.text.index(":", key.end_mark.index) + 1

    def _end(self, node: yaml.Node) -> int:
        """Where the node's last character is; PyYAML ends a block only at the next token, after any comments."""
        while self._is_block(node):
            last = node.value[-1]
            node = last[1] if isinstance(node, yaml.MappingNode) else last
        end: int = node.end_mark.index
        while end > node.start_mark.index and self.text[end - 1] in "\r\n":
            end -= 1
        return end

    @staticmethod
    def _is_block(node: yaml.Node) -> bool:
        return isinstance(node, yaml.CollectionNode) and not node.flow_style and bool(node.value)

    @staticmethod
    def _is_empty(node: yaml.Node) -> bool:
        return (isinstance(node, yaml.CollectionNode) and not node.value) or node.tag == "tag:yaml.org,2002:null"

    @staticmethod
    def _block(value: Any, column: int) -> str:
        lines = _yaml.dump(value).rstrip("\n").split("\n")
        return "\n".join(" " * column + line if line else line for line in lines)
