# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""No default lets a toolkit pass that has a known way out of a container, and no example names a driver with a known vulnerability."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.advisories import (
    DRIVER,
    TOOLKIT,
    TOOLKIT_MINIMUM,
    open_in_driver,
    open_in_toolkit,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.looked_up import BULLETINS

ROOT = Path(__file__).resolve().parents[4]
ROLE = ROOT / "roles/nvidia_container_toolkit"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
MODULE = yaml.safe_load((ROOT / "plugins/modules/gpushare_toolkit.py").read_text().split('DOCUMENTATION = r"""')[1].split('"""')[0])


@pytest.mark.parametrize(
    "version",
    [TOOLKIT_MINIMUM, DEFAULTS["gpushare_toolkit_minimum"], DEFAULTS["gpushare_toolkit_version"], MODULE["options"]["minimum"]["default"]],
)
def test_no_default_has_a_known_vulnerability(version: str) -> None:
    assert open_in_toolkit(version) == ""


def test_the_page_names_the_minimum() -> None:
    assert f"`gpushare_toolkit_minimum` ({TOOLKIT_MINIMUM})" in (ROLE / "README.md").read_text()


def test_no_example_installs_a_driver_with_a_known_vulnerability() -> None:
    """People copy the version from there."""
    files = [
        *ROOT.glob("roles/nvidia_driver/**/*.*"),
        *ROOT.glob("plugins/modul*/**/*driver*.py"),
        *ROOT.glob("plugins/module_utils/_driver/*.py"),
    ]
    files += [*ROOT.glob("docs/**/*.md"), *ROOT.glob("inventory.example/**/*.yml"), ROOT / "README.md"]
    example = re.compile(r"""(?:version: "?|such as C?\(?"|such as `"|such as )([0-9]{3}\.[0-9]{2,3}\.[0-9]{2})\b""")
    found = {(file.name, version) for file in files for version in example.findall(file.read_text())}
    assert {name for name, _ in found} >= {"README.md", "argument_specs.yml", "variables.md", "plan.py", "gpushare_driver.py"}
    assert {version: open_in_driver(version) for _, version in found if open_in_driver(version)} == {}


def test_the_rows_are_the_newest_first_and_none_is_younger_than_the_day_of_reading() -> None:
    for rows in (TOOLKIT, DRIVER):
        days = [BULLETINS.read_up_to, *(one.published for one in rows)]
        assert all(later >= earlier for later, earlier in pairwise(days))
        assert all(re.fullmatch(r"20[0-9]{2}-[01][0-9]-[0-3][0-9]", day) for day in days)
    for one in DRIVER:
        branches = [(numbers(fixed) or ())[0] for fixed in one.fixed_in]
        assert branches == sorted(set(branches))


def test_a_version_of_the_toolkit_is_told_what_it_has() -> None:
    assert open_in_toolkit("1.19.1") == ""
    assert open_in_toolkit("1.19.0") == "CVE-2026-24260 (fixed in 1.19.1)"
    assert open_in_toolkit("1.17.4").endswith("CVE-2025-23267 (fixed in 1.17.8)")
    assert open_in_toolkit("1.16.1").endswith(" and 7 more")


@pytest.mark.parametrize(
    ("version", "to", "fixed"),
    [
        ("580.178.04", None, None),
        ("595.91.07", None, None),
        ("610.57.04", None, None),
        ("615.71.09", None, None),
        ("620.20.01", None, None),
        ("580.159.04", "CVE-2026-47601 (CVSS 7.8) and 78 more known vulnerabilities", "580.178.04 or newer"),
        ("615.71.08", "CVE-2026-47601 (CVSS 7.8) and 78 more known vulnerabilities", "615.71.09 or newer"),
        ("580.105.08", "CVE-2026-47601 (CVSS 7.8) and 91 more known vulnerabilities", "580.178.04 or newer"),
        # Branches that NVIDIA no longer mends: of those that it mends, the ones to stay on.
        (
            "535.309.01",
            "CVE-2026-47601 (CVSS 7.8) and 78 more known vulnerabilities",
            "580.178.04 or 595.91.07, or newer: the branch 535 got no fix",
        ),
        (
            "600.10.01",
            "CVE-2026-47601 (CVSS 7.8) and 78 more known vulnerabilities",
            "610.57.04 or 615.71.09, or newer: the branch 600 got no fix",
        ),
        ("", None, None),
        ("garbage", None, None),
    ],
)
def test_a_driver_is_told_what_it_has(version: str, to: str | None, fixed: str | None) -> None:
    found = open_in_driver(version)
    assert (found and found.to, found and found.fixed) == (to, fixed)
