# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A host with containerd that is a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Entry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import digest, read_state
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd import Installation
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_config import dump_section
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.plan import Asked, RuntimePlan, stripped

from unit.fakes.plugins.runtimes.fake_containerd import Containerd

BINARY = "/usr/bin/nvidia-container-runtime"

ASKED = Asked(BINARY)


class Machine:
    """One containerd with its files in a folder, and a journal of what we have done to them."""

    def __init__(self, containerd: Containerd, folder: Path) -> None:
        self.folder = folder
        self.containerd = containerd
        self.config = folder / "config.toml"
        self.installation = Installation(containerd, str(self.config))
        self.entries: dict[str, Entry] = {}

    def write(self, files: dict[str, str]) -> Machine:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
        return self

    def texts(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    def do(self, plan: RuntimePlan) -> None:
        for path, text in plan.files.items():
            before, after = read_state(path), None if text is None else text.encode()
            self.entries.setdefault(
                path, Entry(path, "container_runtime", before, (digest(before.content if before else None), digest(after)), False)
            )
            if after is None:
                Path(path).unlink()
            else:
                Path(path).parent.mkdir(exist_ok=True)
                Path(path).write_bytes(after)

    def present(self, asked: Asked = ASKED) -> RuntimePlan:
        plan = self.installation.present(asked)
        self.do(plan)
        return plan

    def absent(self) -> RuntimePlan:
        plan = self.installation.absent(list(self.entries.values()))
        plan = replace(plan, files=plan.back.texts, notes=plan.back.notes)
        self.do(plan)
        return plan

    def section(self) -> dict[str, Any]:
        return dump_section(self.installation.dump())


def others(dump: dict[str, Any]) -> Any:
    """All of a dump that is none of our business."""
    found = dict(dump, imports=None)
    containerd = dump_section(found)
    containerd.pop("default_runtime_name")
    runtimes = containerd.pop("runtimes")
    return found, {name: stripped(entry) for name, entry in runtimes.items() if name != "nvidia"}
