# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the probe says of the container around it, in a bounded number of bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushare_runtime.probe import main as program
from gpushare_runtime.probe.main import main, probe


def root(folder: Path, environ: bytes, *devices: str) -> Path:
    (folder / "proc/1").mkdir(parents=True)
    (folder / "proc/1/environ").write_bytes(environ)
    (folder / "dev").mkdir()
    for name in devices:
        (folder / "dev" / name).touch()
    return folder


def test_devices_and_what_the_first_process_was_told(tmp_path: Path) -> None:
    environ = b"PATH=/bin\0NVIDIA_VISIBLE_DEVICES=GPU-1\0ALIYUN_COM_GPU_MEM_IDX=0\0SECRET=x\0broken\0"
    made = root(tmp_path, environ, "nvidia1", "nvidiactl", "null", "nvidia0")
    # Of a MIG instance.
    (made / "dev/nvidia-caps").mkdir()
    (made / "dev/nvidia-caps/nvidia-cap67").touch()
    assert probe(made) == {
        "devices": ["nvidia0", "nvidia1", "nvidiactl", "nvidia-caps/nvidia-cap67"],
        "environment": {"ALIYUN_COM_GPU_MEM_IDX": "0", "NVIDIA_VISIBLE_DEVICES": "GPU-1"},
        "truncated": False,
    }


def test_whatever_is_there_the_answer_is_short_and_json(tmp_path: Path) -> None:
    environ = b"".join(b"ALIYUN_COM_%d=%s\0" % (number, b"\xff" * 9000) for number in range(100))
    found = probe(root(tmp_path, environ, *(f"nvidia{number}" for number in range(300))))
    assert (len(found["devices"]), len(found["environment"]), found["truncated"]) == (256, 64, True)
    assert len(json.dumps(found, ensure_ascii=False)) < 300_000


def test_without_the_first_process_it_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "probe", lambda: probe(tmp_path))
    assert main([]) == 1
    assert json.loads(capsys.readouterr().out) == {"devices": [], "environment": {}, "error": "/proc/1/environ: No such file or directory"}
