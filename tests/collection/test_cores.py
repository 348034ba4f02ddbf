# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Action plugins, modules and playbooks through other releases of ansible-core than this environment's."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable

import pytest

from cores import Core, coming, newest, oldest
from tree import REPOSITORY

# All that run Ansible, and what is beside them of action plugins.
TESTS = ("tests/playbooks/test_*.py", "tests/unit/plugins/test_*.py")
SECONDS = 2400


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("release", [oldest, newest, coming])
def test_what_runs_in_ansible_runs_in_another_release(release: Callable[[], "Core | None"], capsys: pytest.CaptureFixture[str]) -> None:
    core = release()
    if core is None:
        pytest.skip("pip offers no pre-release that is newer than the newest release")
    with capsys.disabled():
        print(f"\n{release.__name__}: {core}{f'; {core.lacks}' if core.lacks else ''}")
    if core.is_own:
        pytest.skip(f"{core} is this environment's: the suites playbooks and unit run all of them on it")
    tests = [str(path) for pattern in TESTS for path in sorted(REPOSITORY.glob(pattern))]
    environment = os.environ | {
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
        "PATH": f"{core.program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "files/gpushare_runtime"),
    }
    ask = "from ansible.release import __version__; print(__version__)"
    said = subprocess.run([core.program, "-c", ask], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == core.version
    done = subprocess.run(
        [core.program, "-m", "pytest", *tests, "-q", "-n", "2", "-p", "no:cacheprovider"],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{core}:\n{done.stdout}"
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 150, done.stdout[-2000:]
