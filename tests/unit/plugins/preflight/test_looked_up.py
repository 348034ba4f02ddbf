# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The days of the tables of facts of others: what preflight says of old ones, and that each stands where it is said to."""

from __future__ import annotations

import re
from datetime import date, timedelta

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import presets
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight import looked_up

from tree import REPOSITORY


def test_an_old_table_is_noted_with_its_day() -> None:
    oldest = min(looked_up.TABLES, key=lambda table: table.read_up_to)
    day = date.fromisoformat(oldest.read_up_to) + timedelta(days=looked_up.OLD_DAYS)
    assert looked_up.judge(day) == []
    (one,) = looked_up.judge(day + timedelta(days=1))
    assert (one.check, one.severity, one.host) == ("old_facts", "note", "")
    assert f"{oldest.subject} (read up to {oldest.read_up_to})" in one.found
    assert looked_up.judge(date(2000, 1, 1)) == []


def test_each_table_is_there_once_and_no_day_is_ahead() -> None:
    files = [table.file for table in looked_up.TABLES]
    assert len(files) == len(set(files))
    for table in looked_up.TABLES:
        assert (REPOSITORY / table.file).is_file(), table.file
        assert re.fullmatch("20[0-9]{2}-[01][0-9]-[0-3][0-9]", table.read_up_to)
        assert table.source.startswith("https://")


def test_a_file_that_names_a_day_of_reading_in_its_header_has_the_one_of_the_registry() -> None:
    for table in looked_up.TABLES:
        header = (REPOSITORY / table.file).read_text().split('"""')[1]
        days = re.findall("20[0-9]{2}-[01][0-9]-[0-3][0-9]", header)
        assert not days or table.read_up_to in days, table.file


def test_a_release_is_rejected_for_each_table_and_preset_that_is_too_old() -> None:
    tables = looked_up.every(presets.read_days())
    assert {table.file for table in tables} >= {f"charts/gpushare/presets/{name}.yaml" for name in presets.names()}
    oldest = min(date.fromisoformat(table.read_up_to) for table in tables)
    assert looked_up.too_old(presets.read_days(), oldest + timedelta(days=looked_up.OLD_FOR_RELEASE_DAYS)) == []
    said = looked_up.too_old(presets.read_days(), date(2036, 1, 1))
    assert [sentence.partition(" ")[0] for sentence in said] == [table.file for table in tables]
    assert f"was read up to {tables[0].read_up_to}, " in said[0]
    (one,) = looked_up.too_old({"eks": "2026-01-01"}, date(2026, 3, 3))
    assert one.startswith("charts/gpushare/presets/eks.yaml (the preset eks) was read up to 2026-01-01, 61 days ago; expected at most 60: ")
