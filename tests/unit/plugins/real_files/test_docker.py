# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Files daemon.json as people have them get nvidia as the default runtime. The standard library's json judges, not our own reader.

A model of dockerd starts with them, and the real ones that GPUSHARE_DOCKERDS names: see fake_docker.py of the fakes.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import docker
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import service as runtime_service

from unit.fakes.plugins.real_files.corpus import Case, line_ends, parameters
from unit.fakes.plugins.runtimes import fake_docker
from unit.fakes.plugins.runtimes.docker_host import DockerHost

CONFIG = "/etc/docker/daemon.json"


@pytest.fixture(params=["20.10.24", "28.5.1", *fake_docker.real_programs()])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerHost:
    host = DockerHost(tmp_path / "host", request.param)
    monkeypatch.setattr(journal, "FOLDER", str(host.folder / "journal"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(docker, "info", host.info)
    monkeypatch.setattr(runtime_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runtime_service, "STEADY_SECONDS", 0.01)
    return host


def loaded(content: bytes) -> Any:
    text = content.decode("utf-8-sig")
    return json.loads(text) if text.strip() else {}


@pytest.mark.parametrize("case", parameters("docker"))
def test_a_file_of_docker(host: DockerHost, case: Case) -> None:
    (content,) = case.files(CONFIG).values()
    host.config.write_bytes(content)
    before = host.tree()
    if case.is_rejected(host.release):
        for default in ("auto", "nvidia"):
            with pytest.raises(Rejected) as caught:
                host.converge(default=default)
            assert [words for words in case.says if words not in str(caught.value)] == [], caught.value
        assert host.tree() == before
    else:
        accepted(host, content)


def accepted(host: DockerHost, content: bytes) -> None:
    """It gets the runtime nvidia as its default, all else stays in order, a second time changes nothing, and it comes back to the byte."""
    host.start()
    assert host.state(), "docker starts with it"
    host.converge()
    written = host.config.read_bytes()
    wanted = loaded(content)
    entry = dict(wanted.get("runtimes", {}).get("nvidia", {"path": "", "runtimeArgs": []}), path=str(host.program))
    wanted = {**wanted, "default-runtime": "nvidia", "runtimes": {**wanted.get("runtimes", {}), "nvidia": entry}}
    assert json.dumps(loaded(written)) == json.dumps(wanted)
    assert line_ends(written.decode()) <= (line_ends(content.decode()) or {"\n"})
    assert host.default() == "nvidia"

    assert not host.converge().changed
    assert host.config.read_bytes() == written

    host.converge("absent", allowed=True)
    assert host.config.read_bytes() == content
