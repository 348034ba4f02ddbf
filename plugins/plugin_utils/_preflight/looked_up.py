# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of facts of others: what each is about, until when its sources were read, and which file has it.

Pure. Facts about past releases of others do not change and are not here: their day stands beside them. These do: NVIDIA and Kubernetes
publish on. preflight notes a table that is old, the docs print its day, and `tools/release.py` makes no release with one. The presets for
clusters of others have their days in their own files (`charts/gpushare/presets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import NamedTuple

from ...module_utils._formats.finding import NOTE, Finding

#: After how many days preflight says so, and after how many no release is made: so that a new one is quiet for a month.
OLD_DAYS, OLD_FOR_RELEASE_DAYS = 90, 60


class FactTable(NamedTuple):
    """read_up_to: the day up to which all that the source has published is in it. source: "" where the file names it. file: below the
    collection's root."""

    subject: str
    read_up_to: str
    source: str
    file: str

    def days(self, today: date) -> int:
        """Since then; 0 by a clock that is behind."""
        return max(0, (today - date.fromisoformat(self.read_up_to)).days)


BULLETINS = FactTable(
    "NVIDIA's security bulletins about driver and container toolkit",
    "2026-09-30",
    "https://github.com/NVIDIA/product-security",
    "plugins/module_utils/_facts/advisories.py",
)
BRANCHES = FactTable(
    "the branches of NVIDIA's driver",
    "2026-11-29",
    "https://docs.nvidia.com/datacenter/tesla/drivers/",
    "plugins/module_utils/_facts/driver_branches.py",
)
KUBERNETES = FactTable(
    "the parts of Kubernetes that end with a release",
    "2026-11-29",
    "https://github.com/kubernetes/kubernetes",
    "plugins/plugin_utils/_preflight/kubernetes_ends.py",
)
GATES = FactTable(
    "kubelet's feature gates about devices",
    "2026-11-29",
    "https://kubernetes.io/docs/reference/command-line-tools-reference/feature-gates/",
    "plugins/module_utils/_kubelet/gates.py",
)
GENERATIONS = FactTable(
    "PCI device ids of NVIDIA's GPUs", "2026-11-24", "https://pci-ids.ucw.cz/", "plugins/module_utils/_driver/generations.py"
)
XIDS = FactTable(
    "NVIDIA's catalogue of XID errors",
    "2026-11-25",
    "https://docs.nvidia.com/deploy/xid-errors/",
    "files/gpushare_runtime/gpushare_runtime/device_plugin/gpu/health.py",
)
TABLES = (BULLETINS, BRANCHES, KUBERNETES, GATES, GENERATIONS, XIDS)


def every(presets: Mapping[str, str]) -> list[FactTable]:
    """The tables and a row for each preset. presets: name to its day."""
    return [*TABLES, *(FactTable(f"the preset {name}", day, "", f"charts/gpushare/presets/{name}.yaml") for name, day in presets.items())]


def old(tables: Iterable[FactTable], today: date, days: int) -> list[FactTable]:
    return [table for table in tables if table.days(today) > days]


def judge(today: date) -> list[Finding]:
    """One note about all of them."""
    named = [f"{table.subject} (read up to {table.read_up_to})" for table in old(TABLES, today, OLD_DAYS)]
    if not named:
        return []
    cure = "take a newer release of the collection, and read the sources yourself until then; no check can know what came later"
    return [Finding("old_facts", "; ".join(named), f"tables of facts that are at most {OLD_DAYS} days old", cure, NOTE)]


def too_old(presets: Mapping[str, str], today: date) -> list[str]:
    """A sentence for each table that was read too long ago to be published."""
    return [
        f"{table.file} ({table.subject}) was read up to {table.read_up_to}, {table.days(today)} days ago; expected at most "
        f"{OLD_FOR_RELEASE_DAYS}: read {table.source or 'the source that it names'}, correct the table, and write the new day"
        for table in old(every(presets), today, OLD_FOR_RELEASE_DAYS)
    ]
