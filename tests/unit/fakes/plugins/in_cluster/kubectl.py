# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubectl with answers by the words that it is asked, which writes down what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl

Json = dict[str, Any]
Answer = Json | list[Json] | str | Callable[[], Any]


class Fake:
    """answers: the beginning of what is asked → a List's items, an object, a text, or what makes one. Whatever else is an empty List."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.inputs: list[tuple[str, str]] = []

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self, "kubectl", "admin.conf")

    def __call__(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        words = " ".join(argv[4:])
        self.asked.append(words)
        self.inputs += [(words, data)] if data is not None else []
        answer: Any = next((found for known, found in self.answers.items() if words.startswith(known)), [])
        answer = answer() if callable(answer) else answer
        if isinstance(answer, Exception):
            return 1, "", str(answer)
        if isinstance(answer, str):
            return 0, answer, ""
        return 0, json.dumps({"kind": "List", "items": answer, "metadata": {}} if isinstance(answer, list) else answer), ""

    def writes(self) -> list[str]:
        return [words for words in self.asked if words.split()[0] in ("create", "delete", "patch", "apply")]


def named(kind: str, name: str, namespace: str = "", **more: Any) -> Json:
    """An object that we have applied."""
    managers = [{"manager": "gpushare.kubernetes", "operation": "Apply"}]
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, "managedFields": managers, "generation": 1}, **more}
