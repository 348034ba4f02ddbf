# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The two tables of `kubectl inspect gpushare`, to the character as the original prints them, by the rules of Go's text/tabwriter. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpushare_runtime.kubectl_gpushare.inspect_usage import NodeUsage, PodUsage

PADDING: Final = 2


def align(text: str) -> str:
    """Every tab in `text` becomes spaces so that the cells of adjacent lines stand below each other.

    A column is a run of lines that each have a tab-terminated cell there; it is as wide as its widest cell
    plus PADDING. Text after a line's last tab belongs to no column. `text` ends with a newline.
    """
    lines = [line.split("\t") for line in text.splitlines()]
    out: list[str] = []
    _format(lines, (), out)
    return "".join(out)


def _format(lines: Sequence[Sequence[str]], widths: tuple[int, ...], out: list[str]) -> None:
    """Find the runs of lines that go on to one more column than `widths` knows; print the others between them."""
    column = len(widths)
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and len(lines[end]) - 1 > column:
            end += 1
        if end == at:
            out.append(_line(lines[at], widths))
            at += 1
        else:
            run = lines[at:end]
            _format(run, (*widths, max(len(line[column]) for line in run) + PADDING), out)
            at = end


def _line(cells: Sequence[str], widths: tuple[int, ...]) -> str:
    # Here as many widths are known as the line has tab-terminated cells.
    *columns, rest = cells
    return "".join(cell.ljust(width) for cell, width in zip(columns, widths, strict=True)) + rest + "\n"


def summary(nodes: Sequence[NodeUsage], *, wide: bool = False) -> str:
    """One line per node, with what is allocated on each GPU. wide: also what the original does not print."""
    columns = max((node.columns for node in nodes), default=0)
    pending = any(node.pending for node in nodes)
    rows = [_summary_row(node, columns, pending, wide) for node in nodes]
    header = ["NAME", "IPADDRESS", *(f"GPU{i}(Allocated/Total)" for i in range(columns))]
    header += ["PENDING(Allocated)"] if pending else []
    header += ["STRATEGY"] if wide else []
    header += [f"GPU Memory({_unit(nodes)})"]
    return align(
        "\t".join(header)
        + "\n"
        + "".join(rows)
        + (_rule(rows[0], 20) if rows else "\n")
        + f"Allocated/Total GPU Memory In Cluster:\n{_cluster(nodes)}\t\n"
    )


def details(nodes: Sequence[NodeUsage]) -> str:
    """One table per node, with one line per pod."""
    tables = [_pod_rows(node) for node in nodes]
    rule = _rule(tables[0] if tables else "", 10)
    text = "".join(_details_of(node, rows, rule) for node, rows in zip(nodes, tables, strict=True))
    return align(f"{text}\n\nAllocated/Total GPU Memory In Cluster:\t{_cluster(nodes)}\t\n")


def _summary_row(node: NodeUsage, columns: int, pending: bool, wide: bool) -> str:
    cells = [node.name, node.address]
    cells += [f"{node.by_gpu.get(i, 0)}/{node.gpus.get(i, 0)}" for i in range(columns)]
    if pending:
        cells.append(str(node.pending) if node.pending else "")
    if wide:
        cells.append(node.strategy or "unknown")
    cells.append(f"{node.allocated}/{node.total}")
    return "\t".join(cells) + "\n"


def _details_of(node: NodeUsage, rows: str, rule: str) -> str:
    header = ["NAME", "NAMESPACE", *(f"GPU{i}(Allocated)" for i in range(node.columns))]
    header += ["Pending(Allocated)"] if node.pending else []
    return (
        f"\nNAME:\t{node.name}\nIPADDRESS:\t{node.address}\n\n"
        + _row(header)
        + rows
        + f"Allocated :\t{node.allocated} ({_percent(node.allocated, node.total)}%)\t\n"
        + f"Total :\t{node.total} \t\n"
        + rule
    )


def _pod_rows(node: NodeUsage) -> str:
    """By the first GPU that a pod has, those without a known GPU last; otherwise in the API's order."""
    pods = sorted(node.pods, key=lambda pod: min(pod.by_gpu, default=node.columns))
    return "".join(_row(_pod_cells(pod, node)) for pod in pods)


def _pod_cells(pod: PodUsage, node: NodeUsage) -> Iterator[str]:
    yield from (pod.name, pod.namespace)
    yield from (str(pod.by_gpu.get(i, 0)) for i in range(node.columns))
    if node.pending:
        yield str(pod.pending)


def _row(cells: Iterable[str]) -> str:
    return "".join(f"{cell}\t" for cell in cells) + "\n"


def _rule(rows: str, more: int) -> str:
    # The original's length: bytes of the first rows before they are aligned, and some.
    return "-" * (len(rows.encode()) + more) + "\n"


def _unit(nodes: Iterable[NodeUsage]) -> str:
    return ",".join(sorted({node.unit for node in nodes})) or "GiB"


def _cluster(nodes: Iterable[NodeUsage]) -> str:
    allocated, total = sum(n.allocated for n in nodes), sum(n.total for n in nodes)
    return f"{allocated}/{total} ({_percent(allocated, total)}%)"


def _percent(part: int, whole: int) -> int:
    return part * 100 // whole if whole else 0
