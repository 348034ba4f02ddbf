# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The sentences of the product that tests see, in one file per folder of tests: `sentences.json`.

A test asserts reasons and values, and gives the whole text to the fixture `golden`, which compares it with the file. `pytest
--write-golden` writes those of the tests that it runs; a person reads the difference before it is committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FILE = "sentences.json"
OPTION = "--write-golden"


class Sentences:
    """The file of a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}

    def write(self, test: str, texts: list[str]) -> None:
        """Replace the texts of a test, and drop those of tests whose file has no such function any more."""
        self.known[test] = texts
        kept = {name: self.known[name] for name in sorted(self.known) if self.known[name] and self.is_there(name)}
        self.path.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n")

    def is_there(self, test: str) -> bool:
        """Whether the function of a test is in its file. Parameters do not count."""
        file, _, name = test.partition("::")
        path = self.path.parent / file
        return path.exists() and f"def {name.partition('[')[0].rpartition('::')[2]}(" in path.read_text()


class Golden:
    """The texts of one test, in the order in which it gives them. written: None to compare, else the texts so far."""

    def __init__(self, test: str, sentences: Sentences, writes: bool) -> None:
        self._test = test
        self._known = sentences.known.get(test, [])
        self._writes = writes
        self._hidden: dict[str, str] = {}
        self.texts: list[str] = []

    def hide(self, text: object, name: str) -> None:
        """Write `name` for a text that differs from run to run, such as a path."""
        self._hidden[str(text)] = name

    def __call__(self, text: str | BaseException) -> None:
        """Compare a text, or that of an error, with the file's."""
        assert isinstance(text, (str, BaseException)), f"found {type(text).__name__}; expected a text or an error"
        said = str(text)
        # A path before the folder that it lies in.
        for hidden, name in sorted(self._hidden.items(), key=lambda item: -len(item[0])):
            said = said.replace(hidden, name)
        at = len(self.texts)
        self.texts.append(said)
        if not self._writes:
            known = self._known[at] if at < len(self._known) else None
            assert said == known, f"{FILE} has another sentence {at} of {self._test}; if the new one is right: pytest {OPTION}"

    @contextmanager
    def raised(self, kind: type[BaseException], reason: str | None = None) -> Iterator[pytest.ExceptionInfo[Any]]:
        """An error of this class with this reason; its text is compared."""
        with pytest.raises(kind) as error:
            yield error
        if reason is not None:
            assert getattr(error.value, "reason", None) == reason
        self(error.value)

    def end(self) -> None:
        """No sentence of the file is left."""
        assert self._writes or len(self.texts) == len(self._known), f"{FILE} has more sentences of {self._test}: pytest {OPTION}"
