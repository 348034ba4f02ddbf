# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The options of kernel modules: what may be one, what Grace needs, and when the loaded module has another."""

from __future__ import annotations

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.generations import is_coherent
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.options import (
    modules_text,
    not_in_use,
    options_text,
    unreadable,
    with_defaults,
)
from hypothesis import given
from hypothesis import strategies as st

CDMM = "nvidia NVreg_CoherentGPUMemoryMode=driver"


@pytest.mark.parametrize(
    ("option", "good"),
    [
        (CDMM, True),
        ("nvidia-drm modeset=1", True),
        ('nvidia NVreg_RegistryDwords="RMBug5172204War=4"', True),
        ("nvidia NVreg_TemporaryFilePath=/var/tmp", True),
        ("NVreg_CoherentGPUMemoryMode=driver", False),
        ("vfio-pci ids=10de:2330", False),
        ("nvidia NVreg_X=1 NVreg_Y=2", False),
        ("nvidia NVreg_X=1\ninstall nvidia /bin/sh", False),
        ("nvidia NVreg_X=$(reboot) #", False),
        ("nvidia NVreg_X=" + "1" * 300, False),
        ("", False),
    ],
)
def test_what_is_an_option(option: str, good: bool) -> None:
    assert unreadable([option]) == ([] if good else [option])


@given(st.text())
def test_no_option_is_more_than_a_line_of_its_own(text: str) -> None:
    assert unreadable([text]) or options_text([text]).count("\n") == 2


def test_grace_keeps_gpu_memory_from_the_kernel() -> None:
    assert with_defaults(["nvidia NVreg_X=1"], True, 580) == (CDMM, "nvidia NVreg_X=1")
    assert with_defaults([], True, 570) == with_defaults([], False, 580) == ()
    # Somebody who wants it otherwise has that.
    numa = "nvidia NVreg_CoherentGPUMemoryMode=numa"
    assert with_defaults([numa, "nvidia NVreg_X=1"], True, 580) == (numa, "nvidia NVreg_X=1")
    assert [is_coherent(one) for one in ("0x2342", "0x2330", "0x31C2", "0x2901", "x")] == [True, False, True, False, False]


def test_texts() -> None:
    assert options_text([CDMM]).splitlines()[1:] == [f"options {CDMM}"]
    assert modules_text(["ib_umad"]).splitlines()[1:] == ["ib_umad"]


@pytest.mark.parametrize(
    ("used", "words"),
    [
        ({"CoherentGPUMemoryMode": "driver"}, ""),
        ({"CoherentGPUMemoryMode": ""}, "the loaded kernel module has CoherentGPUMemoryMode='', 'driver' is configured"),
        ({}, ""),
        ({"Dwords": "a=4"}, ""),
        ({"Dwords": "b"}, "the loaded kernel module has Dwords='b', 'a=4' is configured"),
        # The name of no parameter of the driver.
        ({"t": "0"}, ""),
    ],
)
def test_an_option_that_waits_for_a_reboot(used: dict[str, str], words: str) -> None:
    assert not_in_use(["", "nvidia-drm modeset=1", "nvidia modeset=1", CDMM, 'nvidia NVreg_Dwords="a=4"'], used) == words
