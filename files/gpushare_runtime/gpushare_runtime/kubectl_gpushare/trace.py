# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Traces of GPU clusters in the form of Alibaba's openb (cluster-trace-gpu-v2023): nodes and pods as CSV. A GPU counts 1000 units, as
the trace writes shares; a pod of a whole GPU or of several asks for whole GPUs. Some of its files lack the models that pods name
(gpu_spec) and the times."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare_runtime.core.bounds import MOST_GPUS, MOST_UNITS, is_text, quote
from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.quantity import UNITS as UNIT_SIZES
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from gpushare_runtime.kubectl_gpushare.errors import InputError

UNITS: Final = 1000
"""Of one GPU."""
MOST_ROWS: Final = 1_000_000
MOST_BYTES: Final = 512 * 1024**2
_MOST_NAME: Final = 253
_MOST_MODELS: Final = 64


@dataclass
class FreeResources:
    """The resources of a node that kube-scheduler counts and that are still free: CPU in thousandths, memory in MiB."""

    name: str
    cpu: int
    memory: int


@dataclass(frozen=True)
class TracePod:
    """One line of the trace. request: None of a pod without GPUs. asked: units of GPUs. created: seconds, 0 without."""

    name: str
    cpu: int
    memory: int
    request: Request | None
    asked: int
    created: int = 0


def read_hosts(file: Path) -> tuple[list[FreeResources], Ledger]:
    """The nodes, and a ledger of their GPUs. InputError, OSError."""
    hosts, gpus = [], []
    for where, row in _rows(file):
        name, model = _text(row, "sn", where), _text(row, "model", where)
        cpu = _number(row, "cpu_milli", where)
        gpus.append((name, _number(row, "gpu", where, MOST_GPUS), model, cpu))
        hosts.append(FreeResources(name, cpu, _number(row, "memory_mib", where)))
    return hosts, ledger_of(gpus)


def ledger_of(nodes: Iterable[tuple[str, int, str, int]]) -> Ledger:
    """A ledger of nodes with so many GPUs of a model each, and so many thousandths of a CPU."""
    ledger = Ledger()
    for name, count, model, cpu in nodes:
        if count:
            gpus = tuple(Gpu(i, f"GPU-{name}-{i}", i, f"0000:{i:02x}:00.0", model, UNITS, UNITS) for i in range(count))
            ledger.set_inventory(name, Inventory(UNIT_SIZES["MiB"], gpus, cpu=cpu))
    return ledger


def read_pods(file: Path) -> list[TracePod]:
    """All pods, in the file's order. InputError, OSError."""
    return [_pod(row, where) for where, row in _rows(file)]


def _pod(row: Mapping[str, str], where: str) -> TracePod:
    gpus, milli = _number(row, "num_gpu", where, MOST_GPUS), _number(row, "gpu_milli", where, UNITS)
    cpu, memory = _number(row, "cpu_milli", where), _number(row, "memory_mib", where)
    created = _number(row, "creation_time", where) if "creation_time" in row else 0
    name = _text(row, "name", where)
    if not gpus or not milli:
        return TracePod(name, cpu, memory, None, 0, created)
    whole = gpus if milli >= UNITS or gpus > 1 else 0
    spec = _text(row, "gpu_spec", where) if "gpu_spec" in row else ""
    models = tuple(dict.fromkeys(filter(None, spec.split("|")[:_MOST_MODELS])))
    container = ContainerRequest(Kind.APP, 0, "main", units=0 if whole else milli, whole_gpus=whole)
    request = Request((container,), rules=Rules(models=models), cpu=cpu)
    return TracePod(name, cpu, memory, request, gpus * milli, created)


def _rows(file: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(file and line, columns) of each row."""
    if file.stat().st_size > MOST_BYTES:
        raise InputError(f"{file}: found more than {MOST_BYTES} bytes; expected a trace of at most {MOST_ROWS} rows")
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for count, row in enumerate(csv.DictReader(lines)):
                if count >= MOST_ROWS:
                    raise InputError(f"{file}: found more than {MOST_ROWS} rows; expected at most so many")
                yield f"{file}, line {count + 2}", row
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{file}: found no CSV ({quote(str(error))}); expected a trace as openb_pod_list_default.csv") from None


def _text(row: Mapping[str, str], column: str, where: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not is_text(value, _MOST_NAME):
        raise InputError(f"{where}: found {quote(value)} as {column}; expected a short text")
    return value


def _number(row: Mapping[str, str], column: str, where: str, most: int = MOST_UNITS) -> int:
    value = row.get(column)
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()) or len(value) > 18 or int(value) > most:
        raise InputError(f"{where}: found {quote(value)} as {column}; expected a whole number of at most {most}")
    return int(value)
