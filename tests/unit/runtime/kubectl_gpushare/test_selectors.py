# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""-l as kubectl reads it: the examples of Kubernetes' documentation on labels and selectors."""

from __future__ import annotations

import pytest

from gpushare_runtime.kubectl_gpushare.errors import UsageError
from gpushare_runtime.kubectl_gpushare.selectors import parse_selector
from unit.golden import Golden

LABELS = (("environment", "production"), ("example.com/tier", "frontend"), ("empty", ""))


@pytest.mark.parametrize(
    ("selector", "fulfilled"),
    [
        ("", True),
        (" ", True),
        ("environment=production", True),
        ("environment == production", True),
        ("environment=qa", False),
        ("environment!=qa", True),
        ("absent!=qa", True),
        ("absent=qa", False),
        ("environment in (production, qa)", True),
        ("environment in (qa)", False),
        ("environment notin (qa)", True),
        ("absent notin (qa)", True),
        ("environment notin (qa,production)", False),
        ("environment", True),
        ("!environment", False),
        ("absent", False),
        ("!absent", True),
        ("empty=", True),
        ("empty in (,x)", True),
        ("environment=production,example.com/tier=frontend", True),
        ("environment in (production,qa),example.com/tier notin (backend)", True),
        ("environment=production,example.com/tier=backend", False),
    ],
)
def test_selectors(selector: str, fulfilled: bool) -> None:
    assert parse_selector(selector)(LABELS) is fulfilled


@pytest.mark.parametrize(
    "selector", ["a=b=c", "a in b", "a in (b", ",", "a,,b", "=b", "a b", "a=b c", "\x1b[31m", "-a", "a in (-)", "a=b-"]
)
def test_what_cannot_be_read_is_quoted(selector: str, golden: Golden) -> None:
    with pytest.raises(UsageError) as error:
        parse_selector(selector)
    assert str(error.value).isprintable()
    golden(str(error.value))


def test_a_selector_without_end(golden: Golden) -> None:
    with golden.raised(UsageError):
        parse_selector("a" * 5000)
