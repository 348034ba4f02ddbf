# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Each package that the role's data names, against records of what the repositories have: tools/repositories.py."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.names import Names, every

import repositories
from unit.fakes.plugins.driver.hosts import HOSTS, data

RECORDS = {path.stem: json.loads(path.read_text()) for path in repositories.RECORDS.glob("*.json")}
SOURCES = {f"{name}.{source}" for name in HOSTS for source in data(name)["sources"]}
# Nothing public that was found names their packages with a version. opensuse_15 and rhel_8 have the names of suse_15 and rhel_9.
UNRECORDED = {
    *(f"{name}.nvidia" for name in ("debian_13", "rhel_8", "rhel_10", "suse_15", "suse_16", "opensuse_15")),
    *(f"ubuntu_{release}.distribution" for release in ("22.04", "24.04", "26.04")),
}
_OF_A_DRIVER = re.compile(r"(?:\d+:)?([3-9]\d\d)\.\d")
# Their versions are their own.
_APART = ("beside", "nvlink5", "headers")


def branch_of(version: str) -> int:
    """The driver's branch; 0 for a version that is no driver's."""
    found = _OF_A_DRIVER.match(version)
    return int(found[1]) if found else 0


def asked(of: dict[str, Any], one: Any, machine: str, branch: int) -> re.Pattern[str] | None:
    """The package that the role asks for by one name of the data, of any kernel; None where it has none for this branch or machine."""
    names = Names(replace(HOSTS["debian_12"], machine=machine), f"{branch}.1.1", of.get("unbranched_from") or 0)
    parts = {key: value for key, value in names.parts().items() if key in ("branch", "suffix", "fabric_suffix")}
    for name in names.chosen([one]):
        return repositories.pattern(re.sub(r"\{(\w+)\}", lambda part: parts.get(part[1], part[0]), name))
    return None


def faults(of: dict[str, Any], source: str, record: dict[str, Any]) -> Iterator[str]:
    """What the role asks for and the repositories do not have, and what they have that it asks for by another name.

    An incomplete record shows a name by one branch, a complete one by each branch that it has.
    """
    listed = [(group, one) for group, names in repositories.groups(of, source).items() for one in names]
    for machine, there in record["packages"].items():
        drivers = [one for group, one in listed if group not in _APART]
        known = {name: {branch_of(version) for version in versions} for name, versions in there.items()}
        branches = {
            branch for one in drivers for name in known if repositories.pattern(*every([one])).fullmatch(name) for branch in known[name]
        }
        branches |= set().union(*known.values()) if not record["complete"] else set()
        for branch in sorted(branches - {0}):
            names = [wanted for _, one in listed if (wanted := asked(of, one, machine, branch))]
            for name in sorted(known):
                if branch in known[name] and not any(one.fullmatch(name) for one in names):
                    yield f"{machine}: the repository has {name} for {branch}, which the data does not ask for"
        for group, one in listed:
            (name,) = every([one])
            wanted_by = {branch: wanted for branch in branches - {0} if (wanted := asked(of, one, machine, branch))}
            lacking = [
                branch
                for branch, wanted in wanted_by.items()
                if not any(wanted.fullmatch(there) and (group in _APART or branch in of_branch) for there, of_branch in known.items())
            ]
            if name not in record["lacks"] and lacking and (record["complete"] or len(lacking) == len(wanted_by)):
                yield f"{machine}: {name} ({group}) is not there for {sorted(lacking)}"


def test_every_source_has_a_record_or_is_known_to_have_none() -> None:
    assert set(RECORDS) | UNRECORDED == SOURCES
    assert not set(RECORDS) & UNRECORDED


@pytest.mark.parametrize("which", sorted(RECORDS))
def test_the_repositories_have_what_the_data_asks_for(which: str) -> None:
    name, _, source = which.rpartition(".")
    assert list(faults(data(name), source, RECORDS[which])) == []


@pytest.mark.parametrize("which", sorted(RECORDS))
def test_a_record_says_where_it_is_from_and_lacks_nothing_that_it_has(which: str) -> None:
    name, _, source = which.rpartition(".")
    record = RECORDS[which]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", record["read"])
    assert record["from"]
    assert record["complete"] == (record["lacks"] == [] and record["from"] == ["the repositories"])
    assert set(record["lacks"]) <= set(repositories.named(data(name), source))
    for one in record["lacks"]:
        assert not [there for packages in record["packages"].values() for there in packages if repositories.pattern(one).fullmatch(there)]


def changed(of: dict[str, Any], source: str, group: str, names: list[Any]) -> dict[str, Any]:
    made = copy.deepcopy(of)
    made["sources"][source][group] = names
    return made


@pytest.mark.parametrize(
    ("which", "group", "names", "says"),
    [
        # As the data once was.
        ("rhel_9.nvidia", "fabric", ["nvidia-fabricmanager-{branch}", "nvidia-imex-{branch}"], "has nvidia-fabric-manager for 570, which"),
        (
            "rhel_9.nvidia",
            "fabric",
            ["nvidia-fabricmanager-{branch}"],
            "nvidia-fabricmanager-{branch} (fabric) is not there for [570, 580, 595]",
        ),
        ("ubuntu_24.04.nvidia", "fabric", ["nvidia-fabricmanager-{branch}"], "has nvidia-fabricmanager for 580, which"),
        ("ubuntu_26.04.nvidia", "fabric", ["nvidia-fabricmanager{fabric_suffix}"], "has libnvidia-nscq for 595, which"),
        ("ubuntu_22.04.nvidia", "fabric", ["nvidia-fabricmanager"], "has nvidia-fabricmanager-570 for 570, which"),
        ("debian_12.distribution", "driver", ["nvidia-smi", "libnvidia-ml"], "libnvidia-ml (driver) is not there for [535]"),
        ("debian_12.distribution", "beside", ["nvidia-persistence"], "nvidia-persistence (beside) is not there for [535]"),
        ("debian_13.distribution", "driver", [{"name": "nvidia-smi", "before": 550}], "has nvidia-smi for 550, which"),
    ],
)
def test_a_wrong_name_is_found(which: str, group: str, names: list[Any], says: str) -> None:
    name, _, source = which.rpartition(".")
    assert says in "\n".join(faults(changed(data(name), source, group, names), source, RECORDS[which]))
