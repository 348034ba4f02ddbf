# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What NVML says that keeps a GPU from being shared. The calls themselves run against the simulated library, in the lab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.gpu.nvml import Pynvml, _failed, _instances, _mib, _recovery, _rows, _unfit
from unit.golden import Golden


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


def test_gpus_and_instances_that_the_host_gets_need_a_new_container_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", answers(0))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", answers(1))
    (tmp_path / "nvidia90").touch()
    nvml = Pynvml(in_container=True, host_dev=tmp_path)
    nvml.start()
    assert nvml.count() == 1
    # A MIG instance and a GPU.
    (tmp_path / "nvidia-caps").mkdir()
    for node in ("nvidia-caps/nvidia-cap900", "nvidia91"):
        (tmp_path / node).touch()
        with golden.raised(NvmlError) as caught:
            nvml.count()
        assert caught.value.reload
        # The next process lacks it as well: to end again would mend nothing.
        nvml = Pynvml(in_container=True, host_dev=tmp_path)
        assert nvml.count() == 1


def test_the_hosts_own_library_is_loaded_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(pynvml, "nvmlInit", answers(0))
    monkeypatch.setattr("gpushare_runtime.device_plugin.gpu.nvml.ctypes.CDLL", loaded.append)
    Pynvml(in_container=True, library=lambda: tmp_path / "libnvidia-ml.so.1").start()
    assert loaded == [str(tmp_path / "libnvidia-ml.so.1")]


UNSUPPORTED, FUNCTION_MISSING = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


def answers(value: object) -> Callable[..., object]:
    def answer(*_: object) -> object:
        if isinstance(value, int) and value < 0:
            raise pynvml.NVMLError(-value)
        return value

    return answer


def without_fabric(handle: object, info: object) -> None:
    raise pynvml.NVMLError(FUNCTION_MISSING)


@pytest.mark.parametrize(
    ("mode", "rows", "words"),
    [
        (pynvml.NVML_COMPUTEMODE_DEFAULT, (0, 0, 0, 0), ""),
        (-UNSUPPORTED, -UNSUPPORTED, ""),
        (pynvml.NVML_COMPUTEMODE_PROHIBITED, (0, 0, 0, 0), "its compute mode is Prohibited"),
        # What MPS wants.
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, (0, 0, 0, 0), ""),
        (pynvml.NVML_COMPUTEMODE_PROHIBITED, (0, 0, 0, 1), "remapping a bad row"),
    ],
)
def test_why_a_gpu_is_not_to_be_used(mode: object, rows: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeMode", answers(mode))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetRemappedRows", answers(rows))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuFabricInfo", without_fabric)
    found = _failed(object(), _rows(object()))
    assert found.startswith(words)
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("pages", "rows", "waits"),
    [
        (0, (0, 0, 0, 0), False),
        (1, -UNSUPPORTED, True),
        (0, (0, 0, 1, 0), True),
        (-UNSUPPORTED, -UNSUPPORTED, False),
        (0, (1, 1, 0, 1), False),
    ],
)
def test_memory_that_the_next_reset_retires(pages: object, rows: object, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetRetiredPagesPendingStatus", answers(pages))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetRemappedRows", answers(rows))
    assert bool(_unfit(object(), _rows(object()))) is waits


@pytest.mark.parametrize("mig", [[0, 0], [0, 1], -UNSUPPORTED, -FUNCTION_MISSING])
def test_without_mig_mode_there_are_no_instances(mig: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """[0, 1]: it will be on after the next reset."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", answers(mig))
    assert _instances(object(), 0) is None


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        (pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, 0, ""),
        (pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, 0, "(Not Started)"),
        (pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS, 0, "(In Progress)"),
        (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, 0, ""),
        # The library writes one byte, whatever stands behind it.
        (0xABCDEF00 | pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, 0, ""),
        (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_ERROR_TIMEOUT, "(completed with error 10)"),
    ],
)
def test_a_gpu_behind_nvswitches_waits_for_its_fabric(state: int, status: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA programs on it fail with error 802 until then."""

    def fabric(handle: object, info: Any) -> None:
        info._obj.state, info._obj.status = state, status

    for name in ("nvmlDeviceGetComputeMode", "nvmlDeviceGetRemappedRows"):
        monkeypatch.setattr(pynvml, name, answers(-UNSUPPORTED))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuFabricInfo", fabric)
    found = _failed(object(), _rows(object()))
    assert (words in found, bool(found)) == (True, bool(words))


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (pynvml.NVML_GPU_RECOVERY_ACTION_NONE, ""),
        (pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET, "the driver requires a reset: "),
        (pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT, "the driver requires a reboot of the host"),
        # Only traffic between GPUs has to end: a pod has one.
        (pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P, ""),
        (pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET, "the driver requires a reset when "),
        (pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN, ""),
        (pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET, "the driver requires a reset of the GPU's PCIe bus"),
        (pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT, "the driver requires a reboot of the host"),
        (99, ""),
    ],
)
def test_what_the_driver_requires_before_a_gpu_is_used(action: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(handle: object, fields: list[int]) -> list[object]:
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        return [field]

    field = pynvml.c_nvmlFieldValue_t(nvmlReturn=pynvml.NVML_SUCCESS, value=pynvml.c_nvmlValue_t(uiVal=action))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", answer)
    found = _recovery(object())
    assert found.startswith(words)
    assert bool(found) == bool(words)
    # A driver that does not know the field, and one without the call.
    field.nvmlReturn = UNSUPPORTED
    assert _recovery(object()) == ""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda *_: answers(-FUNCTION_MISSING)(None))
    assert _recovery(object()) == ""


def test_a_gpu_with_unified_memory_is_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As GB10 answers; of any other failure the reason is another one."""
    for code, words in ((UNSUPPORTED, r"^its memory is the host's; gpushare cannot share it"), (pynvml.NVML_ERROR_UNKNOWN, "^nvml")):
        answer = answers(-code)
        answer.__name__ = "nvmlDeviceGetMemoryInfo"
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", answer)
        with pytest.raises(NvmlError, match=words) as caught:
            _mib(None)
        assert caught.value.code == code
