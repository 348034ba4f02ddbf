# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How far `make lock` may move a package."""

from __future__ import annotations

import pytest

import locks

HASHES = " \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"


@pytest.mark.parametrize(
    ("pin", "within"),
    [
        ("grpcio==1.85.1", "grpcio>=1.85.1,<1.86"),
        ("rich==15", "rich>=15,<15.1"),
        ("types-PyYAML==6.0.12.20261113", "types-PyYAML>=6.0.12.20261113,<6.1"),
        ("ansible-lint==26.10.1", "ansible-lint>=26.10.1,<26.11"),
        ("certifi==2026.10.18", "certifi>=2026.10.18"),
        ("big==0.14+local", "big>=0.14+local,<0.15"),
        ("multidict==7.1.0 ; python_full_version < '3.11'", "multidict>=7.1.0,<7.2 ; python_full_version < '3.11'"),
    ],
)
def test_a_package_moves_to_its_next_patch_release_and_no_further(pin: str, within: str) -> None:
    assert locks.within(pin + HASHES + "ansible-core==2.21.5 ; python_full_version >= '3.12'" + HASHES) == [within]


def test_each_pin_of_each_lock_may_move_and_only_ansible_core_without_a_limit() -> None:
    for base in (locks.RUNTIME, locks.KUBECTL, locks.DEV, locks.DOCS, locks.LOCK):
        lock = base.with_suffix(".txt")
        free = {name for name in locks.pins(lock) if name == "ansible-core"}
        made = locks.within(lock.read_text())
        assert {locks.normal(one.split(">")[0]) for one in made} == set(locks.pins(lock)) - free
