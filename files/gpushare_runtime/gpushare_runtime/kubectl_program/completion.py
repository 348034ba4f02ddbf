# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The program that kubectl runs to complete `kubectl gpushare …`: kubectl_complete-gpushare. Its arguments are the words so far, the last
of them unfinished; it prints the candidates, and cobra's directive that no files are meant."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import is_text
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.kube.client import METADATA_LIST, KubeClient
from gpushare_runtime.kubectl_gpushare.api import NODES, pods_path
from gpushare_runtime.kubectl_gpushare.kubeconfig import context_namespace, find_kubeconfig, load_kubeconfig
from gpushare_runtime.kubectl_program.main import ALIASES, COMMANDS, WITH_VALUE, options_of

SECONDS: Final = 3.0
_MOST: Final = 1000
_NO_FILES: Final = ":4"
_FILES: Final = ":0"
_OF_FILES: Final = ("--kubeconfig", "--from-file", "-f", "--filename", "--trace", "--trace-nodes")
FORMATS: Final = ("table", "wide", "json", "yaml", "name")

Names = Callable[[str, str], Iterable[str]]
"""(kind: "nodes", "pods" or "namespaces"; namespace or "" for that of the context) → names in the cluster."""


def complete(words: Sequence[str], names: Names) -> list[str] | None:
    """Candidates for the last word; None where it is a file's name."""
    *before, current = words or [""]
    option = before[-1] if before else ""
    if option in _OF_FILES:
        return None
    if option in WITH_VALUE:
        return _starting(current, _values(option, names))
    command = _command(before)
    if current.startswith("-"):
        return _starting(current, options_of(command or "nodes"))
    if not command:
        return _starting(current, COMMANDS)
    return _starting(current, _arguments(command, before, names))


def _values(option: str, names: Names) -> Iterable[str]:
    if option in ("-o", "--output"):
        return FORMATS
    kind = {"-n": "namespaces", "--namespace": "namespaces", "--node": "nodes"}.get(option)
    return names(kind, "") if kind else ()


def _command(before: Sequence[str]) -> str:
    """The first word that is neither an option nor its value."""
    skip = False
    for word in before:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in WITH_VALUE
        else:
            return ALIASES.get(word, word)
    return ""


def _arguments(command: str, before: Sequence[str], names: Names) -> Iterable[str]:
    namespace = next((value for option, value in pairwise(before) if option in ("-n", "--namespace")), "")
    kind = {"gpus": "nodes", "cordon": "nodes", "uncordon": "nodes", "drain": "nodes", "explain": "pods", "top": "pods"}.get(
        command, command
    )
    return [name for name in names(kind, namespace) if name not in before] if kind in ("nodes", "pods", "namespaces") else ()


def _starting(current: str, candidates: Iterable[str]) -> list[str]:
    return [candidate for candidate in candidates if candidate.startswith(current) and is_text(candidate)][:_MOST]


async def _read(kind: str, namespace: str, before: Sequence[str]) -> list[str]:
    flag = {option: value for option, value in pairwise(before) if option in ("--kubeconfig", "--context")}
    file = find_kubeconfig(flag.get("--kubeconfig"))
    credentials = load_kubeconfig(file, context=flag.get("--context"))
    own = namespace or context_namespace(file, flag.get("--context"))
    path = {"nodes": NODES, "namespaces": "/api/v1/namespaces", "pods": pods_path(own)}[kind]
    selector = protocol.UNFINISHED if kind == "pods" else ""
    async with KubeClient(credentials, user_agent="kubectl_complete-gpushare", timeout=SECONDS) as client:
        page = await client.get(path, accept=METADATA_LIST, limit=_MOST, fieldSelector=selector)
    return [str(item["metadata"]["name"]) for item in page.get("items") or ()]


def main(argv: Sequence[str] | None = None) -> int:
    """Always 0: a person who types wants candidates or nothing, and no error."""
    words = list(sys.argv[1:] if argv is None else argv)

    def names(kind: str, namespace: str) -> Iterable[str]:
        try:
            return asyncio.run(asyncio.wait_for(_read(kind, namespace, words), SECONDS))
        except (GpushareError, ModuleNotFoundError, TimeoutError, asyncio.TimeoutError, KeyError):
            return ()

    found = complete(words, names)
    for candidate in found or ():
        print(candidate)
    print(_FILES if found is None else _NO_FILES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
