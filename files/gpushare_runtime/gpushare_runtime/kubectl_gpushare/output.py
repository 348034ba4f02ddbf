# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A view of a cluster → what is printed, in the format that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import yaml

from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.layout import Table, lines_of, sort_rows
from gpushare_runtime.kubectl_gpushare.views import VIEWS, Selection, document

_Dumper: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class Format:
    """How a view is printed. width: of the terminal, None without one; blocks: whether it shows letters such as ▁ and █."""

    name: str = "table"
    sort_by: str = ""
    reverse: bool = False
    headers: bool = True
    width: int | None = None
    colours: bool = False
    blocks: bool = False

    def lines(self, table: Table) -> list[str]:
        """A table in this form, without line ends."""
        wide = self.name == "wide"
        return lines_of(table, wide=wide, width=self.width, headers=self.headers, colours=self.colours, blocks=self.blocks)


def table_of(cluster: Cluster, view: str, select: Selection, form: Format) -> Table:
    """The rows, sorted. UsageError for a column that the view has not."""
    table = VIEWS[view](cluster, select)
    if form.sort_by:
        sort_rows(table, form.sort_by, form.reverse)
    elif form.reverse:
        table.rows.reverse()
    return table


def render(cluster: Cluster, view: str, select: Selection, form: Format) -> str:
    """With a line end behind the last line; "" for no line at all."""
    if form.name in ("json", "yaml"):
        return written(document(cluster, view, select), form.name)
    table = table_of(cluster, view, select, form)
    lines = [row.name for row in table.rows] if form.name == "name" else form.lines(table)
    return "".join(f"{line}\n" for line in lines)


def written(value: Mapping[str, Any], form: str) -> str:
    """As JSON or YAML, for people."""
    if form == "yaml":
        text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
        return text
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
