# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Configurations of NVIDIA's container toolkit as people have them get the strict settings. tomllib judges, not our own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.toml import TomlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._toolkit.toolkit import CONFIG, WantedToolkit, converge, restore

from unit.fakes.plugins.fake_root import FakeRoot
from unit.fakes.plugins.real_files.corpus import Case, kept, line_ends, parameters

STRICT = {"accept-nvidia-visible-devices-envvar-when-unprivileged": False, "accept-nvidia-visible-devices-as-volume-mounts": True}


def run(argv: list[str], _timeout: float) -> Outcome:
    """nvidia-ctk, which prints what it reads."""
    named = [word.partition("=")[2] for word in argv if word.startswith("--config-file=")]
    return Outcome(argv, 0, Path(named[0]).read_bytes().decode() if named else "NVIDIA Container Toolkit CLI version 1.20.0")


@pytest.mark.parametrize("case", parameters("toolkit"))
def test_a_configuration(tmp_path: Path, case: Case) -> None:
    (content,) = case.files(CONFIG).values()
    root = FakeRoot(tmp_path)
    root.program("/usr/bin/nvidia-ctk", "")
    root.file(CONFIG, content)
    host, place = Host(str(root), run=run), root.at(CONFIG)
    strict = WantedToolkit(strict=True)
    if case.is_rejected():
        with pytest.raises(TomlError) as caught:
            converge(strict, host, run, False)
        assert [words for words in case.says if words not in str(caught.value)] == [], caught.value
        assert place.read_bytes() == content
        return
    before = tomllib.loads(content.decode("utf-8-sig"))
    converge(strict, host, run, False)
    written = place.read_bytes()
    assert tomllib.loads(written.decode("utf-8-sig")) == {**before, **STRICT}
    assert kept(content.decode(), written.decode(), *STRICT) == []
    assert line_ends(written.decode()) == line_ends(content.decode())

    assert not converge(strict, host, run, False).changed
    assert place.read_bytes() == written

    restore(host, run, False)
    assert place.read_bytes() == content
