# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""--watch: a cluster kept current by two watches. On a terminal a screen that follows it, else the rows that are new or have changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from typing import Final, NoReturn

import orjson
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpushare_runtime.core.bounds import as_text
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kubectl_gpushare.cluster import NOTHING_KNOWN, Cluster, Used
from gpushare_runtime.kubectl_gpushare.errors import InputError
from gpushare_runtime.kubectl_gpushare.layout import lines_of
from gpushare_runtime.kubectl_gpushare.output import Format, render, table_of
from gpushare_runtime.kubectl_gpushare.views import Selection, document
from gpushare_runtime.kubectl_gpushare.watcher import Watcher

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 0.5
"""Between two screens: what happens meanwhile is one change."""
USED_SECONDS: Final = 10.0
"""Between two readings of the memory in use: Prometheus scrapes every 15 to 60 seconds."""
_MOST_NOTE: Final = 200
Show = Callable[[Cluster, str, Selection, Format, str], None]


class _LastRecord(logging.Handler):
    """Log records would tear the screen: the last one is shown below it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = as_text(record.getMessage(), _MOST_NOTE)


async def follow(
    client: KubeClient,
    cluster: Cluster,
    namespace: str,
    view: str,
    select: Selection,
    form: Format,
    console: Console,
    used: Callable[[], Awaitable[Used]] | None = None,
) -> NoReturn:
    """Show the view whenever it changes, until it is cancelled. console: where it is printed; used: reads the memory in use."""
    watcher, last = Watcher(client, cluster, namespace), _LastRecord()
    every = logging.getLogger("gpushare_runtime")
    every.addHandler(last)
    every.propagate = False
    async with AsyncExitStack() as stack:
        watching = asyncio.ensure_future(watcher.run())
        stack.callback(watching.cancel)
        if used is not None:
            polling = asyncio.ensure_future(_poll(cluster, used, watcher))
            stack.callback(polling.cancel)
        show = _screen(stack, console) if console.is_terminal and form.name in ("table", "wide") else _changes(console)
        while True:
            cluster.settle()
            # A view is always made whole.
            cluster.changed.take()
            show(cluster, view, select, form, last.text)
            waiting = asyncio.ensure_future(watcher.changed.wait())
            await asyncio.wait({watching, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                waiting.cancel()
                watching.result()
            await asyncio.sleep(REFRESH_SECONDS)
            watcher.changed.clear()


async def _poll(cluster: Cluster, used: Callable[[], Awaitable[Used]], watcher: Watcher) -> NoReturn:
    while True:
        await asyncio.sleep(USED_SECONDS)
        try:
            cluster.used = await used()
        except InputError as error:
            # Values that were read before are old: better none.
            cluster.used = NOTHING_KNOWN
            log.warning("%s", error)
        watcher.changed.set()


def _screen(stack: AsyncExitStack, console: Console) -> Show:
    """The whole terminal, restored at the end."""
    live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))

    def show(cluster: Cluster, view: str, select: Selection, form: Format, note: str) -> None:
        sized = replace(form, width=console.width)
        lines = render(cluster, view, select, sized).splitlines()
        room = max(1, console.height - 2)
        hidden = len(lines) - room
        more = f"; {hidden} more lines below" if hidden > 0 else ""
        status = f"{datetime.now():%H:%M:%S}  Ctrl-C ends{more}{'; ' if note else ''}{note}"
        text = Text.from_ansi("\n".join([*lines[:room], "", status]), no_wrap=True, overflow="crop")
        live.update(text, refresh=True)

    return show


def _changes(console: Console) -> Show:
    """Rows that are new or have changed, as kubectl does; of JSON and YAML the whole document."""
    shown: dict[str, str] = {}
    headed = False

    def show(cluster: Cluster, view: str, select: Selection, form: Format, note: str) -> None:
        nonlocal headed
        if form.name in ("json", "yaml"):
            value = document(cluster, view, select)
            text = orjson.dumps(value).decode() if form.name == "json" else f"---\n{render(cluster, view, select, form).rstrip()}"
            if shown.get("") != text:
                shown[""] = text
                console.file.write(f"{text}\n")
                console.file.flush()
            return
        table = table_of(cluster, view, select, form)
        table.legend, table.marks = (), ""
        rows = list(table.rows)
        if form.name == "name":
            lines = [row.name for row in rows]
        else:
            # Without a width no row takes more than one line.
            lines = lines_of(table, wide=form.name == "wide", headers=form.headers, colours=form.colours)
        if form.headers and form.name != "name":
            if not headed:
                console.file.write(f"{lines[0]}\n")
            lines = lines[1:]
        headed = True
        for row, line in zip(rows, lines, strict=True):
            moving = [cell.text for cell, column in zip(row.cells, table.columns, strict=True) if not column.clock]
            content = "\t".join([*moving, *(cell.text for cell in row.grid)])
            if shown.get(row.name) != content:
                console.file.write(f"{line}\n")
            shown[row.name] = content
        for gone in shown.keys() - {row.name for row in rows}:
            del shown[gone]
        console.file.flush()

    return show
