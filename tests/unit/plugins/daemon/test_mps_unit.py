# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role's unit of the MPS control daemons: its command, its folders and its sandbox."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import jinja2
import pytest

from gpushare_runtime.mps.main import parse_arguments

MOST_EXPOSURE = 2.3
GPU = "GPU-0f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8"


def rendered() -> str:
    text = (Path(__file__).resolve().parents[4] / "roles/mps/templates/gpushare-mps.service.j2").read_text()
    made = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined).from_string(text)
    return made.render(
        __gpushare_environment="/e",
        gpushare_mps_canary_seconds=30,
        gpushare_mps_control="/x/mps",
        gpushare_start_timeout=60,
        gpushare_mps_shared_memory_mib=2048,
    )


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_units_sandbox_gets_no_weaker(tmp_path: Path) -> None:
    unit = tmp_path / "gpushare-mps-x.service"
    unit.write_text(rendered().replace("/e/bin/gpushare-mps", "/bin/true").replace("@gpu@", GPU))
    analyze = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSURE * 10:.0f}", str(unit)]
    done = subprocess.run(analyze, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_roles_unit_is_one_and_its_command_is_understood() -> None:
    unit = rendered()
    command = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", unit, re.MULTILINE)
    assert command
    words = command[1].replace("\\\n", " ").replace("@gpu@", GPU).split()
    settings = parse_arguments(words[1:])
    assert (words[0], settings.uuid, settings.program, settings.canary) == ("/e/bin/gpushare-mps", GPU, "/x/mps", 30)
    assert (str(settings.run), str(settings.logs)) == ("/run/gpushare-mps", "/var/lib/gpushare-mps/log")
    assert "size=2048m,nr_inodes=16384 " in unit
    # systemd makes the folder before the mounts of any command of the unit, also of one with "+".
    assert "RuntimeDirectory=gpushare-mps/@gpu@/shm\n" in unit
    assert "BindPaths=/run/gpushare-mps /run/gpushare-mps/@gpu@/shm:/dev/shm\n" in unit
