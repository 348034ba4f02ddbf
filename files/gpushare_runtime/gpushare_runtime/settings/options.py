# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A daemon's command line: --config names its file, --check-config says what a file means.

For people, and for the units and pods of gpushare 0.1, each setting is an option as well. A file has all settings or none.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from gpushare_runtime.settings import document
from gpushare_runtime.settings.document import SettingsError
from gpushare_runtime.settings.schema import ChoiceType, ListType, NumberType, Setting, SwitchType, settings_of, shown

T = TypeVar("T")


@dataclass(frozen=True)
class Given(Generic[T]):
    """The settings that a process was given. settings: with the environment. options: of the command line. file: None without one."""

    settings: T
    names: frozenset[str]
    options: argparse.Namespace
    parser: argparse.ArgumentParser
    file: Path | None = None

    def name(self, field: str) -> str:
        """A setting as a person has written it."""
        each = next(each for each in settings_of(type(self.settings)) if each.name == field)
        return f"--{each.option}" if self.file is None else each.key

    def reject(self, words: str) -> NoReturn:
        """End the process with a message."""
        self.parser.error(words if self.file is None else f"{self.file}: {words}")

    def fit(self) -> None:
        """End the process with a message where settings do not fit each other, as far as their schema says so."""
        for each in settings_of(type(self.settings)):
            if each.together and (getattr(self.settings, each.name) is None) != (getattr(self.settings, each.together) is None):
                self.reject(f"{self.name(each.name)} and {self.name(each.together)} go together: give both, or none for {each.without}")
            if each.misfit and (wrong := each.misfit(self.settings, self.name)):
                self.reject(f"{self.name(each.name)}: {wrong}")

    def checked(self) -> None:
        """End the process where it was asked only what a file means, with the answer."""
        if self.options.check_config:
            print(document.explained(self.settings, self.names))
            self.parser.exit(0)


def add_options(parser: argparse.ArgumentParser, owner: type) -> None:
    """The options of a daemon with these settings."""
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    parser.add_argument(
        "--config", help=f"the file with the settings, of the kind {document.kind_of(owner)}; without other options", **file
    )
    parser.add_argument("--check-config", help="say what this file means, or what is wrong with it, and end", **file)
    for each in settings_of(owner):
        default = "" if each.default in (None, "", [], False) or "default" in each.doc else f" (default {each.default})"
        words: dict[str, Any] = {"dest": each.name, "default": argparse.SUPPRESS, "help": f"{each.doc}{default}"}
        if isinstance(each.kind, SwitchType):
            parser.add_argument(f"--{each.option}", action="store_true", **words)
        elif isinstance(each.kind, ChoiceType) and not each.metavar:
            parser.add_argument(f"--{each.option}", choices=each.kind.words, **words)
        else:
            action = "append" if isinstance(each.kind, ListType) else "store"
            parser.add_argument(f"--{each.option}", action=action, type=_reader(each), metavar=each.metavar or None, **words)


def read(
    parser: argparse.ArgumentParser, owner: type[T], arguments: Sequence[str] | None, environment: Mapping[str, str] = os.environ
) -> Given[T]:
    """The settings of a file or of the options. Ends the process with a message if they are invalid.

    environment: stands for settings that are not given.
    """
    options = parser.parse_args(arguments)
    known = {each.name: each for each in settings_of(owner)}
    values = {name: value for name, value in vars(options).items() if name in known}
    file = options.check_config or options.config
    if file and values:
        given = ", ".join(f"--{known[name].option}" for name in values)
        parser.error(f"{given} with a file of settings: write them into {file}, whose fields are those of docs/reference")
    try:
        settings, names = document.load(file, owner) if file else _by_options(owner, known, values)
        for each in known.values():
            value = environment.get(each.environment) if each.environment and each.name not in names else None
            if value:
                settings = replace(settings, **{each.name: _of_environment(each, value)})  # type: ignore[type-var]
    except SettingsError as error:
        parser.error(str(error))
    found = Given(settings, names, options, parser, file)
    found.fit()
    return found


def _by_options(owner: type[T], known: Mapping[str, Setting], values: Mapping[str, Any]) -> tuple[T, frozenset[str]]:
    """The settings whose texts the readers of the options have checked."""
    return owner(**{name: known[name].kind.read(value) for name, value in values.items()}), frozenset(values)


def _of_environment(each: Setting, value: str) -> Any:
    try:
        return each.kind.read(value)
    except ValueError as error:
        raise SettingsError(f"{each.environment}: found {value[:80]!r}; expected {error}") from None


def _reader(each: Setting) -> Callable[[str], Any]:
    """The reader of an option's text: the value as a file has it."""
    kind = each.kind.each if isinstance(each.kind, ListType) else each.kind

    def reader(text: str) -> Any:
        value: Any = int(text) if isinstance(kind, NumberType) and text.isascii() and text.isdigit() and len(text) < 12 else text
        try:
            kind.read(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {error}") from None
        return value

    return reader
