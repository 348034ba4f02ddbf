# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""No default lets a toolkit pass that has a known way out of a container, and the page names what the code names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers
from ansible_collections.gpushare.kubernetes.plugins.module_utils._toolkit.advisories import ADVISORIES, MINIMUM, READ_UP_TO, known_in

ROOT = Path(__file__).resolve().parents[4]
ROLE = ROOT / "roles/nvidia_container_toolkit"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
MODULE = yaml.safe_load((ROOT / "plugins/modules/gpushare_toolkit.py").read_text().split('DOCUMENTATION = r"""')[1].split('"""')[0])


@pytest.mark.parametrize(
    "version",
    [MINIMUM, DEFAULTS["gpushare_toolkit_minimum"], DEFAULTS["gpushare_toolkit_version"], MODULE["options"]["minimum"]["default"]],
)
def test_no_default_has_a_known_vulnerability(version: str) -> None:
    assert [one for one in ADVISORIES if (numbers(version) or ()) < (numbers(one.fixed_in) or ())] == []


def test_the_page_has_the_same_table() -> None:
    page = (ROLE / "README.md").read_text()
    rows = re.findall(r"^\| (CVE-[^|]*) \| ([0-9.]+) \| ([0-9]+) \| ([0-9-]+) \|$", page, re.MULTILINE)
    assert rows == [(", ".join(one.cves), one.fixed_in, str(one.bulletin), one.published) for one in ADVISORIES]
    assert f"up to\n{READ_UP_TO}." in page
    assert f"`gpushare_toolkit_minimum` ({MINIMUM})" in page


def test_a_version_is_told_what_it_has() -> None:
    assert known_in("1.19.1") == ""
    assert known_in("1.19.0") == "CVE-2026-24260 (fixed in 1.19.1)"
    assert known_in("1.17.4").endswith("CVE-2025-23267 (fixed in 1.17.8)")
    assert known_in("1.16.1").endswith(" and 7 more")
