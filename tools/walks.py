# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The files that a reader opens on three ways through the product, in their order: `make house` prints how many.

A file counts where it decides something on the way or names the next one. Values and helpers that a reader need not open do not count, nor
what only carries a call to a file that its caller names.
`tests/unit/test_walks.py` checks that each file is there and that an earlier one names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tree import REPOSITORY

_RUNTIME: Final = "files/gpushare_runtime/gpushare_runtime"


class Step(NamedTuple):
    """A file. named: the words by which an earlier file names it, "" for the first one."""

    file: str
    named: str


class Walk(NamedTuple):
    """most: its files at most."""

    most: int
    steps: tuple[Step, ...]


WALKS: Final[Mapping[str, Walk]] = {
    "site.yml to config.toml of containerd": Walk(
        16,
        (
            Step("site.yml", ""),
            Step("playbooks/site.yml", "playbooks/site.yml"),
            Step("playbooks/gpu_nodes.yml", "gpu_nodes.yml"),
            Step("playbooks/tasks/gpu_nodes.yml", "tasks/gpu_nodes.yml"),
            Step("plugins/plugin_utils/_subjects/rows.py", "plugins/plugin_utils/_subjects/rows.py"),
            Step("plugins/module_utils/_change/subjects.py", "_change.subjects"),
            Step("roles/container_runtime/tasks/main.yml", '"container_runtime"'),
            Step("roles/container_runtime/tasks/configure.yml", "configure.yml"),
            Step("plugins/module_utils/_operations/container_runtime.py", "plugins/module_utils/_operations/container_runtime.py"),
            Step("plugins/module_utils/_runtimes/default_runtime.py", "_runtimes.default_runtime"),
            Step("plugins/module_utils/_change/engine.py", "engine.converge"),
            Step("plugins/module_utils/_runtimes/containerd.py", "ContainerdService.of"),
            Step("plugins/module_utils/_runtimes/containerd_config.py", "containerd_config.edited"),
            Step("plugins/module_utils/_formats/toml_edit.py", "_formats.toml_edit"),
            Step("plugins/module_utils/_change/transaction.py", "transaction.apply"),
            Step("plugins/module_utils/_host/files.py", ".take_place()"),
        ),
    ),
    "a finding of verify to its cure": Walk(
        13,
        (
            Step("playbooks/verify.yml", ""),
            Step("roles/verify/tasks/main.yml", "gpushare.kubernetes.verify"),
            Step("plugins/action/gpushare_verify_host.py", "gpushare.kubernetes.gpushare_verify_host"),
            Step("plugins/module_utils/_evidence/host.py", "_evidence.host"),
            Step("plugins/module_utils/_facts/stopped_unit.py", "stopped_unit"),
            Step("plugins/plugin_utils/_answers.py", "plugin_utils._answers"),
            Step("plugins/action/gpushare_judge.py", "gpushare.kubernetes.gpushare_judge"),
            Step("plugins/plugin_utils/_judge/verify.py", "VerifyJudge"),
            Step("plugins/plugin_utils/_verdict/judge.py", "_verdict.judge"),
            Step("plugins/plugin_utils/_verdict/gpu_node.py", "judge_node"),
            Step("plugins/plugin_utils/_verdict/findings.py", "VerifyFindings"),
            Step("plugins/plugin_utils/_verdict/links.py", ".links"),
            Step("plugins/plugin_utils/_report.py", "_report"),
        ),
    ),
    "a call of filter to its answer": Walk(
        14,
        (
            Step(f"{_RUNTIME}/extender/http_server.py", ""),
            Step(f"{_RUNTIME}/extender/leadership.py", "leadership"),
            Step(f"{_RUNTIME}/extender/extender_v1.py", "extender_v1"),
            Step(f"{_RUNTIME}/extender/verbs.py", "extender.verbs"),
            Step(f"{_RUNTIME}/core/objects.py", "core.objects"),
            Step(f"{_RUNTIME}/core/request.py", "core.request"),
            Step(f"{_RUNTIME}/core/ledger.py", "core.ledger"),
            Step(f"{_RUNTIME}/core/placement/view.py", "view_of"),
            Step(f"{_RUNTIME}/core/placement/policies.py", "core.placement.policies"),
            Step(f"{_RUNTIME}/core/placement/ranking.py", ".ranking("),
            Step(f"{_RUNTIME}/core/placement/scarcity.py", "scarcity"),
            Step(f"{_RUNTIME}/core/node_ledger.py", "core.node_ledger"),
            Step(f"{_RUNTIME}/core/allocation.py", "core.allocation"),
            Step(f"{_RUNTIME}/core/placement/explain.py", "no_fit"),
        ),
    ),
}


def broken(walks: Mapping[str, Walk]) -> Iterator[str]:
    """Each step that leads nowhere, and each walk that is longer than it may be."""
    for name, walk in walks.items():
        before = ""
        for step in walk.steps:
            path = REPOSITORY / step.file
            if not path.is_file():
                yield f"{name}: there is no {step.file}"
                continue
            if step.named and step.named not in before:
                yield f"{name}: no file before {step.file} has {step.named!r}"
            before += path.read_text()
        if not before or len(walk.steps) > walk.most:
            yield f"{name}: found {len(walk.steps)} files, expected at most {walk.most}: shorten it"


def main() -> None:
    print("\nfiles to open on a way through the product:")
    for name, walk in WALKS.items():
        print(f"{len(walk.steps):7,}  {name} (at most {walk.most})")


if __name__ == "__main__":
    main()
