# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The variables that a role reads and another one describes: tools/variables.py writes them into the first entry point of its
specification and into its defaults, between `# made from other roles` and `# end`. Where an entry point names one itself, with `See P(…)`
as its description, type and default follow the other role all the same.

So each variable has one place, every role still has a default of its own and its whole list for ansible-doc, and no play includes a role
for the sake of defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml

import settings_files

KIND: Final = "other"
#: A description that names the role with the variable's own one.
SEE: Final = re.compile(r"See P\(gpushare\.kubernetes\.(\w+)#role\)\.")
#: The option of such a variable in a specification, with its anchor.
REFERENCE: Final = re.compile(
    r"^( {6})(gpushare_\w+):( &\w+)?(?: \{description: See P\([^\n]*\n|\n {8}\{?description: See P\([^\n]*\n(?: {8}[^\n]*\n)*)",
    re.MULTILINE,
)
_NAME: Final = re.compile(r"\bgpushare_[a-z0-9_]+\b")
_EXPRESSION: Final = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|^ *(?:-? *(?:when|that|until|failed_when|changed_when): |- [^:]*$).*?$", re.DOTALL | re.MULTILINE
)
_LITERAL: Final = re.compile(r"'[^'\n]*'")
# Made by group_by; groups live in the same expressions.
_GROUPS: Final = {"gpushare_control_planes", "gpushare_gpu_nodes"}
_MODULE: Final = re.compile(r"^ *gpushare\.kubernetes\.(\w+):", re.MULTILINE)
# The file of module_utils with a module's operation, its options, and the variables that they follow.
_OPERATION: Final = re.compile(r"^from \.\.module_utils\.([\w.]+) import (?=.*\bARGUMENTS\b)", re.MULTILINE)
_SPECS, _DEFAULTS = "meta/argument_specs.yml", "defaults/main.yml"


def names_in_expressions(text: str) -> set[str]:
    """Variables of ours in the Jinja of a task file or template, without those in quotes."""
    text = text.replace("gpushare.kubernetes.gpushare_", "")
    return {name for found in _EXPRESSION.findall(text) for name in _NAME.findall(_LITERAL.sub("", found))} - _GROUPS


def names_of_actions(root: Path, text: str) -> set[str]:
    """Variables of ours that the action plugins of a task file's modules read for it."""
    return {variable for name in _MODULE.findall(text) for variable in _followed(root / "plugins", name)}


@lru_cache
def _followed(plugins: Path, module: str) -> list[str]:
    """The variables that options of a module follow, which stand beside the options of its operation."""
    file = plugins / f"modules/{module}.py"
    operation = _OPERATION.search(file.read_text()) if file.is_file() else None
    if operation is None:
        return []
    found = import_module(f"ansible_collections.gpushare.kubernetes.plugins.module_utils.{operation[1]}")
    return list(getattr(found, "VARIABLES", {}).values())


def files(role: Path) -> Iterator[Path]:
    """The files of a role that read variables."""
    for part in ("tasks", "handlers", "templates", "vars"):
        yield from sorted(path for path in (role / part).rglob("*") if path.is_file())


def described(spec: Mapping[str, Any]) -> str:
    """The description as one paragraph."""
    text = spec.get("description", "")
    return " ".join(text) if isinstance(text, list) else str(text)


def filled(root: Path, made: Mapping[str, str]) -> dict[str, str]:
    """Path to what it must be, of the roles. made: the texts that other parts of them must be."""
    roles = sorted(path for path in (root / "roles").iterdir() if (path / _SPECS).is_file())
    texts = {role: {name: _bare(root, f"roles/{role.name}/{name}", made) for name in (_SPECS, _DEFAULTS)} for role in roles}
    entries = {role: _entries(text[_SPECS]) for role, text in texts.items()}
    homes: dict[str, tuple[str, dict[str, Any]]] = {}
    for role, options in ((role, options) for role, of_role in entries.items() for options in of_role):
        own = {name: (role.name, spec) for name, spec in options.items() if SEE.fullmatch(described(spec)) is None}
        homes = {**own, **homes}
    found: dict[str, str] = {}
    for role, text in texts.items():
        reads = set().union(*(names_in_expressions(path.read_text()) | names_of_actions(root, path.read_text()) for path in files(role)))
        part = _has_part(text[_SPECS])
        named = set().union(*entries[role])
        lacking = [name for name in sorted(homes) if name in reads - named and homes[name][0] != role.name]
        if lacking and not part:
            raise SystemExit(f"roles/{role.name}/{_SPECS} lacks {lacking[0]}; expected it, or # made from {KIND} … # end")
        if part:
            specs = [line for name in lacking for line in settings_files.reference(name, *homes[name])]
            defaults = [f"{name}: {settings_files.yaml_of(homes[name][1]['default'])}" for name in lacking if "default" in homes[name][1]]
            for name, lines in ((_SPECS, specs), (_DEFAULTS, defaults)):
                text[name] = settings_files.filled(text[name], KIND, lines, f"roles/{role.name}/{name}", "other roles")
        referred = {line[2]: homes[line[2]][1] for line in REFERENCE.finditer(text[_SPECS]) if line[2] in homes}
        text[_DEFAULTS] = _with_defaults(text[_DEFAULTS], referred)
        text[_SPECS] = REFERENCE.sub(partial(_reference, homes), text[_SPECS])
        found |= {f"roles/{role.name}/{name}": whole for name, whole in text.items() if whole}
    return found


def _reference(homes: Mapping[str, tuple[str, dict[str, Any]]], found: re.Match[str]) -> str:
    if found[2] not in homes:
        return found[0]
    lines = settings_files.reference(found[2], *homes[found[2]], found[3] or "")
    return "".join(f"{found[1]}{line}\n" for line in lines)


def _with_defaults(text: str, specs: Mapping[str, Mapping[str, Any]]) -> str:
    """A role's defaults with those of these variables, each at its place."""
    for name, spec in specs.items():
        line = f"{name}: {settings_files.yaml_of(spec['default'])}\n" if "default" in spec else ""
        text, there = re.subn(rf"^{name}:.*\n(?:[ -].*\n)*", line.replace("\\", r"\\"), text, flags=re.MULTILINE)
        text += "" if there else line
    return text


def _bare(root: Path, path: str, made: Mapping[str, str]) -> str:
    """A file without its part of this kind."""
    file = root / path
    text = made.get(path) or (file.read_text() if file.is_file() else "")
    return settings_files.filled(text, KIND, [], path, "other roles") if _has_part(text) else text


def _has_part(text: str) -> bool:
    return f"# made from {KIND}" in text


def _entries(text: str) -> list[dict[str, dict[str, Any]]]:
    """The options of each entry point, less those whose anchor is in the part that is made."""
    text = re.sub(r"^ +gpushare_\w+: \*(\w+)\n", lambda line: line[0] if f"&{line[1]}" in text else "", text, flags=re.MULTILINE)
    entries = (yaml.safe_load(text) or {}).get("argument_specs") or {}
    return [(entry or {}).get("options") or {} for entry in entries.values()]
