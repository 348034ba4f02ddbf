# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every single mutation of a source file. Pure: text in, mutated code out.

A mutation is a change of one node of the syntax tree. Its words, `was` and `became`, are the changed statement (or the largest part of it
that is short enough) as `ast.unparse` writes it: they do not depend on how the source is laid out. Messages are left alone: formatted
strings, what is raised, what is logged. So are decorators, annotations and docstrings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final

REMOVED: Final = "(removed)"
_LONGEST: Final = 110
_COMPARISONS: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_SWAPPED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_TEXT_METHODS: Final = {"strip", "lstrip", "rstrip", "lower", "upper", "casefold", "removeprefix", "removesuffix", "replace"}
_LOGGERS: Final = {"log", "_log", "logger", "logging"}
_BLOCKS: Final = ("body", "orelse", "finalbody")


@dataclass(frozen=True)
class Edit:
    """One node of the tree with other values in some of its fields."""

    node: ast.AST
    fields: Mapping[str, object]

    def swap(self) -> Edit:
        """Make the change; what undoes it."""
        undo = Edit(self.node, {name: getattr(self.node, name) for name in self.fields})
        for name, value in self.fields.items():
            setattr(self.node, name, value)
        return undo


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    last_line: int
    function: str
    kind: str
    was: str
    became: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.was} -> {self.became}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a note in equivalent.txt must say to mean this one: quotes, brackets and space do not count."""
        return self.file, self.function, plain(self.was), plain(self.became)


def plain(text: str) -> str:
    """Code without what differs between two ways to write it: space, quotes, brackets."""
    return re.sub(r"[\s⏎'\"()\\]", "", text)


class Source:
    """A source file and its mutants; `required` is from `required_arguments`."""

    def __init__(self, file: str, path: Path, required: Mapping[str, set[str]] | None = None) -> None:
        self.file, self.path = file, path
        self.text = path.read_text()
        self._tree = ast.parse(self.text)
        walk = _Walk(file, required or {})
        walk.block(self._tree)
        self._edits: dict[Mutant, Edit] = {}
        for mutant, edit in walk.found:
            self._edits.setdefault(mutant, edit)

    @property
    def mutants(self) -> tuple[Mutant, ...]:
        return tuple(self._edits)

    def mutated(self, mutant: Mutant) -> CodeType:
        undo = self._edits[mutant].swap()
        try:
            return compile(ast.fix_missing_locations(self._tree), str(self.path), "exec")
        finally:
            undo.swap()

    def dump(self, mutant: Mutant) -> str:
        """The mutated tree as text, to compare it with another."""
        undo = self._edits[mutant].swap()
        try:
            return ast.dump(self._tree)
        finally:
            undo.swap()

    def function_at(self, line: int) -> str:
        inner = "module"
        nodes: list[tuple[ast.AST, str]] = [(self._tree, "")]
        for node, prefix in nodes:
            for child in ast.iter_child_nodes(node):
                name = prefix
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    name = f"{prefix}.{child.name}".lstrip(".")
                    if child.lineno <= line <= (child.end_lineno or child.lineno):
                        inner = name
                nodes.append((child, name))
        return inner


def required_arguments(paths: Sequence[Path]) -> dict[str, set[str]]:
    """Name of a function or dataclass to its arguments that have no default: to leave one out is no mistake that could stay unseen."""
    found: dict[str, set[str]] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = node.args.posonlyargs + node.args.args
                names = [one.arg for one in given[: len(given) - len(node.args.defaults)]]
                names += [one.arg for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value is None]
                found.setdefault(node.name, set()).update(names)
            elif isinstance(node, ast.ClassDef):
                fields = (one for one in node.body if isinstance(one, ast.AnnAssign) and one.value is None)
                found.setdefault(node.name, set()).update(one.target.id for one in fields if isinstance(one.target, ast.Name))
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                        given = inner.args.args[1:] if not inner.args.defaults else inner.args.args[1 : -len(inner.args.defaults)]
                        found[node.name] |= {one.arg for one in given}
    return found


class _Walk:
    def __init__(self, file: str, required: Mapping[str, set[str]]) -> None:
        self.found: list[tuple[Mutant, Edit]] = []
        self._file, self._required = file, required
        self._functions: list[str] = []
        self._is_function = False
        self._chain: list[ast.AST] = []  # from the statement down to the node that is looked at

    # Statements

    def block(self, node: ast.AST) -> None:
        for field in _BLOCKS:
            for index, statement in enumerate(getattr(node, field, None) or ()):
                if isinstance(statement, ast.stmt):
                    outer, self._chain = self._chain, [statement]
                    self._statement(statement, node, field, index)
                    self._chain = outer
        for handler in getattr(node, "handlers", ()):
            self.block(handler)
        for case in getattr(node, "cases", ()):
            self.block(case)

    def _statement(self, node: ast.stmt, parent: ast.AST, field: str, index: int) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._functions.append(node.name)
            was, self._is_function = self._is_function, not isinstance(node, ast.ClassDef)
            if not isinstance(node, ast.ClassDef):
                self._children(node.args, ("defaults", "kw_defaults"))
            self.block(node)
            self._is_function = was
            self._functions.pop()
            return
        if _is_left_alone(node):
            return
        if _can_be_removed(node):
            edit = Edit(parent, _with(parent, field, index, ast.copy_location(ast.Pass(), node)))
            self._found("statement removed", edit, ast.unparse(node), REMOVED)
        if isinstance(node, ast.Raise):
            return
        if isinstance(node, ast.If):
            for value in (True, False):
                self._change("guard", node, test=ast.Constant(value))
        if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
            self._change("return None", node, value=ast.Constant(None))
            self._members(node.value)
        if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
            self._change("operator", node, op=_ARITHMETIC[type(node.op)]())
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._set_default(node, node.value)
        skipped = (*_BLOCKS, "handlers", "cases", "annotation")
        self._children(node, tuple(name for name in node._fields if name not in skipped))
        self.block(node)

    def _set_default(self, node: ast.Expr, call: ast.Call) -> None:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "setdefault" and len(call.args) == 2:
            setting = ast.Call(ast.Attribute(call.func.value, "__setitem__", ast.Load()), call.args, [])
            self._change("setdefault", node, value=setting)

    def _members(self, value: ast.expr) -> None:
        """`return a, b, c` and `return {"a": b}` without one member."""
        self._chain.append(value)
        if isinstance(value, ast.Tuple) and len(value.elts) > 1:
            for index in range(len(value.elts)):
                self._change("member dropped", value, elts=value.elts[:index] + value.elts[index + 1 :])
        if isinstance(value, ast.Dict) and len(value.keys) > 1:
            for index in range(len(value.keys)):
                fewer = {"keys": value.keys[:index] + value.keys[index + 1 :], "values": value.values[:index] + value.values[index + 1 :]}
                entry = ast.unparse(ast.Dict([value.keys[index]], [value.values[index]]))
                self._found("member dropped", Edit(value, fewer), entry, REMOVED)
        self._chain.pop()

    # Expressions

    def _children(self, node: ast.AST, fields: Sequence[str] | None = None) -> None:
        for field in node._fields if fields is None else fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        self._expression(item, node, field, index)
            elif isinstance(value, ast.AST):
                self._expression(value, node, field, None)

    def _expression(self, node: ast.AST, parent: ast.AST, field: str, index: int | None) -> None:
        if isinstance(node, ast.JoinedStr) or _is_logging(node):
            return
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
            return

        def instead(kind: str, new: ast.expr) -> None:
            self._change(kind, parent, **_with(parent, field, index, new))

        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                instead("constant", ast.Constant(not node.value))
            elif isinstance(node.value, int):
                instead("constant", ast.Constant(node.value + 1))
                if node.value == 1:
                    instead("constant", ast.Constant(0))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            instead("not", node.operand)
        elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
            instead("operand removed", node.values[1])
            instead("operand removed", node.values[0])
        elif isinstance(node, ast.IfExp):
            instead("either", node.body)
            instead("either", node.orelse)
        self._chain.append(node)
        self._of_node(node)
        self._chain.pop()
        if isinstance(node, ast.Call):
            self._call(node, instead)
        self._chain.append(node)
        self._children(node, ("body",) if isinstance(node, ast.Lambda) else None)
        self._chain.pop()

    def _of_node(self, node: ast.AST) -> None:
        """Changes inside the node itself."""
        if isinstance(node, ast.Compare):
            for place, op in enumerate(node.ops):
                self._change("comparison", node, ops=[*node.ops[:place], _COMPARISONS[type(op)](), *node.ops[place + 1 :]])
        elif isinstance(node, ast.BoolOp):
            self._change("and/or", node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
            for place in range(len(node.values) if len(node.values) > 2 else 0):
                self._change("operand removed", node, values=node.values[:place] + node.values[place + 1 :])
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
            if self._is_function or not isinstance(node.op, (ast.BitOr, ast.BitAnd)):  # elsewhere it joins types
                self._change("operator", node, op=_ARITHMETIC[type(node.op)]())
        elif isinstance(node, ast.comprehension):
            for place in range(len(node.ifs)):
                self._change("condition removed", node, ifs=node.ifs[:place] + node.ifs[place + 1 :])
        elif isinstance(node, ast.Slice):
            for name in ("lower", "upper"):
                bound = getattr(node, name)
                if bound is not None and not isinstance(bound, (ast.Constant, ast.UnaryOp)):
                    self._change("slice", node, **{name: ast.BinOp(bound, ast.Add(), ast.Constant(1))})
        elif isinstance(node, ast.Lambda):
            self._members(node.body)

    def _call(self, node: ast.Call, instead: Callable[[str, ast.expr], None]) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Name) and name in _SWAPPED:
            instead("min/max", ast.Call(ast.Name(_SWAPPED[name], ast.Load()), node.args, node.keywords))
        if isinstance(node.func, ast.Attribute) and name in _TEXT_METHODS and not _is_text(node.func.value):
            instead("method removed", node.func.value)
        self._chain.append(node)
        for place, keyword in enumerate(node.keywords):
            if keyword.arg is not None and keyword.arg not in self._required.get(name, ()):
                self._change("argument dropped", node, keywords=node.keywords[:place] + node.keywords[place + 1 :])
        self._chain.pop()

    # What was found

    def _change(self, kind: str, node: ast.AST, **fields: object) -> None:
        edit = Edit(node, fields)
        place = max(index for index, one in enumerate(self._chain) if one is node) if any(one is node for one in self._chain) else 0
        was = [_words(one) for one in self._chain[: place + 1]]
        undo = edit.swap()
        became = [_words(one) for one in self._chain[: place + 1]]
        undo.swap()
        for before, after in zip(was, became, strict=True):
            if before and after and max(len(before), len(after)) <= _LONGEST:
                break
        else:
            before, after = next((a, b) for a, b in zip(reversed(was), reversed(became), strict=True) if a and b)
        self._found(kind, edit, before, after)

    def _found(self, kind: str, edit: Edit, was: str, became: str) -> None:
        at, statement = edit.node, self._chain[0]
        line = getattr(at, "lineno", None) or statement.lineno  # type: ignore[attr-defined]
        if became == REMOVED or isinstance(at, (ast.Module, ast.stmt)):
            line = statement.lineno  # type: ignore[attr-defined]
        last = getattr(statement, "end_lineno", line)
        if getattr(statement, "body", None):
            last = max(line, statement.body[0].lineno - 1)  # type: ignore[attr-defined]
        function = ".".join(self._functions) or "module"
        self.found.append((Mutant(self._file, line, last, function, kind, was, became), edit))


def _words(node: ast.AST) -> str:
    """A statement without its block, an expression; "" for what cannot be written alone."""
    if isinstance(node, (ast.comprehension, ast.Slice, ast.arguments, ast.keyword, ast.withitem)):
        return ""
    if isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor)):
        fields = {name: getattr(node, name) for name in node._fields}
        return ast.unparse(ast.fix_missing_locations(type(node)(**{**fields, "body": [], "orelse": []})))
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return ast.unparse(type(node)(items=node.items, body=[], lineno=node.lineno))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return ast.unparse(type(node)(name=node.name, args=node.args, body=[], decorator_list=[], lineno=node.lineno))
    return "" if isinstance(node, (ast.Try, ast.Match, ast.ClassDef)) else ast.unparse(node)


def _with(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> dict[str, object]:
    if index is None:
        return {field: new}
    items = list(getattr(parent, field))
    items[index] = new
    return {field: items}


def _can_be_removed(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(value, ast.Call)
    if isinstance(node, ast.Assign):
        return all(isinstance(one, ast.Subscript) for one in node.targets)
    return isinstance(node, (ast.AugAssign, ast.Delete, ast.Raise, ast.Continue))


def _is_left_alone(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom)) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return True
    if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets):
        return True
    return isinstance(node, ast.Expr) and _is_logging(node.value)


def _is_logging(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return ast.unparse(node.func.value).rpartition(".")[2].lower() in _LOGGERS


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple))
