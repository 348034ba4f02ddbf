# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who tries to see GPUs that kubelet has not allocated to him, and what docs/operate/visibility.md says that he then sees."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from e2e.api import Json
from e2e.manifests import pod

PAGE = Path(__file__).resolve().parents[2] / "docs/operate/visibility.md"
HEADING = "## What each strategy stops"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
#: An image that presets the variable, as those made from nvidia/cuda do.
PRESETS_ALL = "docker.io/gpushare-test/presets-all:1"
MOUNTS, ENVIRONMENT = "accept-nvidia-visible-devices-as-volume-mounts", "accept-nvidia-visible-devices-envvar-when-unprivileged"
# What the words of a cell mean, as the foreign GPUs that a container then has.
NONE, NAMED, ALL = "none", "the named one", "all"
_WORDS = {
    "no GPU": NONE,
    "no foreign GPU": NONE,
    "its own GPU": NONE,
    "the named GPU": NAMED,
    "the named GPUs": NAMED,
    "all GPUs": ALL,
    "all device nodes": ALL,
}


class Setting(NamedTuple):
    """A column of the table, as variables set it up."""

    column: str
    strategy: str
    default_runtime: str


# `unchanged` adds the runtime nvidia, which a pod can name, and leaves runc the default.
CDI = Setting("`cdi`, default runtime runc", "cdi", "unchanged")
CDI_NVIDIA = Setting("`cdi`, default runtime nvidia", "cdi", "nvidia")
VOLUMES = Setting("`volume-mounts`", "volume-mounts", "auto")
ENVVAR = Setting("`envvar`", "envvar", "auto")


@dataclass(frozen=True)
class Attempt:
    """One pod that tries. row: the beginning of its row in the table, "" for one that never has a GPU of others.

    make: of its name, its node, its GPU and the one that it names; allocated: whether kubelet gives it a GPU; settings: lines of the
    toolkit's config.toml that its cell depends on; cells: what a condition or a footnote of the table says instead, by column; not_on:
    container runtimes of the lab that cannot start it.
    """

    name: str
    row: str
    make: Callable[[str, str, str, str], Json]
    allocated: bool = False
    settings: tuple[tuple[str, bool], ...] = ()
    cells: Mapping[str, str] | None = None
    not_on: tuple[str, ...] = ()

    def expected(self, table: Mapping[str, Mapping[str, str]], column: str) -> str:
        """NONE, NAMED or ALL."""
        if self.cells is not None and column in self.cells:
            return self.cells[column]
        if not self.row:
            return NONE
        (row,) = [row for row in table if row.startswith(self.row)]
        return meaning(table[row][column])


def with_gpu(manifest: Json, uuid: str) -> Json:
    """The pod, on this GPU only."""
    manifest["metadata"]["annotations"] = {"gpushare.request/gpus": uuid}
    return manifest


def with_context(manifest: Json, context: Json) -> Json:
    manifest["spec"]["containers"][0]["securityContext"] = context
    return manifest


def presets_all(name: str, node: str, _own: str, _other: str) -> Json:
    manifest = pod(name, node=node)
    manifest["spec"]["containers"][0]["image"] = PRESETS_ALL
    return manifest


def of_class(name: str, node: str, _own: str, other: str) -> Json:
    manifest = pod(name, node=node, environment={VARIABLE: other})
    manifest["spec"]["runtimeClassName"] = "nvidia"
    return manifest


ADMINISTRATOR: Json = {"capabilities": {"add": ["SYS_ADMIN"]}}
ATTEMPTS = (
    Attempt("one", "", lambda name, node, own, _: with_gpu(pod(name, node=node, memory=1), own), True),
    Attempt("other", "", lambda name, node, _, other: with_gpu(pod(name, node=node, memory=2), other), True),
    Attempt("nothing", "", lambda name, node, *_: pod(name, node=node)),
    Attempt("presets-all", "a pod without GPU request, image", presets_all),
    Attempt(
        "names", "a pod without GPU request that sets", lambda name, node, _, other: pod(name, node=node, environment={VARIABLE: other})
    ),
    Attempt(
        "asks-and-names",
        "a pod with a GPU request that names",
        lambda name, node, own, other: with_gpu(pod(name, node=node, memory=1, environment={VARIABLE: other}), own),
        True,
    ),
    Attempt(
        "administrator",
        "a container with the capability",
        lambda name, node, _, other: with_context(pod(name, node=node, environment={VARIABLE: other}), ADMINISTRATOR),
    ),
    Attempt(
        "asks-as-administrator",
        "a container with the capability",
        lambda name, node, own, other: with_context(
            with_gpu(pod(name, node=node, memory=1, environment={VARIABLE: other}), own), ADMINISTRATOR
        ),
        True,
        # These cells say "if it has no GPU request".
        cells=dict.fromkeys((CDI_NVIDIA.column, VOLUMES.column), NONE),
    ),
    Attempt(
        "privileged",
        "a privileged container",
        lambda name, node, *_: with_context(pod(name, node=node), {"privileged": True}),
        # docker 20.10 asks for every capability that the kernel has, and a node of the lab has fewer.
        not_on=("docker",),
    ),
    Attempt(
        "mounts",
        "a pod with a hostPath volume on `/dev/null`",
        lambda name, node, _, other: pod(name, node=node, mounted=[other]),
        # The second footnote.
        settings=((MOUNTS, True),),
        cells={ENVVAR.column: NAMED},
    ),
    Attempt(
        "mounts-where-that-is-off",
        "a pod with a hostPath volume on `/dev/null`",
        lambda name, node, _, other: pod(name, node=node, mounted=[other]),
        settings=((MOUNTS, False),),
        cells=dict.fromkeys((CDI_NVIDIA.column, VOLUMES.column), NONE),
    ),
    # cri-dockerd 0.4.6 rejects every runtime handler but docker (core/sandbox_run.go), as dockershim did; 0.4.0 took them.
    Attempt("of-class", "a pod with `runtimeClassName: nvidia`", of_class, cells={CDI.column: NONE}, not_on=("docker",)),
    Attempt(
        "of-class-where-the-environment-counts",
        "a pod with `runtimeClassName: nvidia`",
        of_class,
        settings=((ENVIRONMENT, True),),
        # The first footnote: without this setting the column is as `envvar`.
        cells=dict.fromkeys((CDI_NVIDIA.column, VOLUMES.column), NAMED),
        not_on=("docker",),
    ),
)


def table() -> dict[str, dict[str, str]]:
    """The table of the page: row to column to cell, without the marks of footnotes."""
    lines = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0].splitlines()
    rows = [[plain(cell) for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]
    head, cells = rows[0], rows[2:]
    assert all(len(row) == len(head) for row in cells), "a row has another number of cells than the head"
    found = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in cells}
    for row in found.values():
        # "same" is the cell on its left.
        for before, column in pairwise(head[1:]):
            row[column] = row[before] if row[column] == "same" else row[column]
    return found


def plain(cell: str) -> str:
    return re.sub("[¹²*]", "", cell).strip()


def meaning(cell: str) -> str:
    """What a cell says, without its condition. KeyError for words that mean nothing here."""
    return _WORDS[cell.partition(",")[0]]


def foreign(devices: Sequence[str], own: Collection[str]) -> set[str]:
    """GPU nodes that a container has beyond those of its own GPUs."""
    return {name for name in devices if re.fullmatch(r"nvidia\d+|nvidia-caps/.*", name)} - set(own)
