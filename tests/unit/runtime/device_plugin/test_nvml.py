# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What NVML says that keeps a GPU from being shared. The calls themselves run against the simulated library, in the lab."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.gpu.nvml import Pynvml, _failed


@pytest.mark.parametrize("in_container", [True, False])
@pytest.mark.parametrize(
    ("code", "other_library"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, True),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, True),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, False),
        (pynvml.NVML_ERROR_GPU_IS_LOST, False),
    ],
)
def test_another_library_needs_a_new_container(code: int, other_library: bool, in_container: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", answers(-code))
    with pytest.raises(NvmlError) as caught:
        Pynvml(in_container=in_container).start()
    assert caught.value.reload == (other_library and in_container)
    assert ("a new container gets" in str(caught.value)) == caught.value.reload


UNSUPPORTED, FUNCTION_MISSING = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


def answers(value: object) -> Callable[..., object]:
    def answer(*_: object) -> object:
        if isinstance(value, int) and value < 0:
            raise pynvml.NVMLError(-value)
        return value

    return answer


@pytest.mark.parametrize(
    ("mig", "mode", "rows", "words"),
    [
        ([0, 0], pynvml.NVML_COMPUTEMODE_DEFAULT, (0, 0, 0, 0), ""),
        (-UNSUPPORTED, -UNSUPPORTED, -UNSUPPORTED, ""),
        (-FUNCTION_MISSING, 0, -UNSUPPORTED, ""),
        ([1, 1], 0, (0, 0, 0, 0), "MIG mode is on"),
        # It is to be on, or off, after the next reset.
        ([0, 1], 0, (0, 0, 0, 0), ""),
        ([1, 0], 0, (0, 0, 0, 0), "MIG mode is on"),
        ([0, 0], pynvml.NVML_COMPUTEMODE_PROHIBITED, (0, 0, 0, 0), "its compute mode is Prohibited"),
        # What MPS wants.
        ([0, 0], pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, (0, 0, 0, 0), ""),
        ([1, 1], pynvml.NVML_COMPUTEMODE_PROHIBITED, (0, 0, 0, 1), "remapping a bad row"),
    ],
)
def test_why_a_gpu_is_not_to_be_used(mig: object, mode: object, rows: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", answers(mig))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeMode", answers(mode))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetRemappedRows", answers(rows))
    found = _failed(object())
    assert found.startswith(words)
    assert bool(found) == bool(words)
