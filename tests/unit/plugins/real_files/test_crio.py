# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Files of CRI-O as people have them get nvidia as the default runtime, by a file of our own. tomllib judges, not our own reader."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri, crio, unix_http
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import service as runtime_service

from unit.fakes.plugins.real_files.corpus import Case, parameters
from unit.fakes.plugins.runtimes.crio_host import CrioHost

CONFIG = "/etc/crio/crio.conf"
DROP_IN = "etc/crio/crio.conf.d/zz-gpushare.conf"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CrioHost:
    host = CrioHost(tmp_path / "host")
    monkeypatch.setattr(journal, "FOLDER", str(host.folder / "journal"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(unix_http, "get", host.get)
    monkeypatch.setattr(cri, "status", host.status)
    monkeypatch.setattr(runtime_service, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runtime_service, "STEADY_SECONDS", 0.01)
    monkeypatch.setattr(crio, "HOOKS", ())
    monkeypatch.setattr(crio, "TOOLKIT", str(host.folder / "toolkit.toml"))
    return host


@pytest.mark.parametrize("case", parameters("crio"))
def test_files_of_crio(host: CrioHost, case: Case) -> None:
    for path, content in case.files(CONFIG).items():
        place = host.folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    runs = host.start()
    before = host.tree()
    if case.is_rejected():
        with pytest.raises(Rejected) as caught:
            host.converge()
        assert [words for words in case.says if words not in str(caught.value)] == [], caught.value
        assert host.tree() == before
        return
    assert runs, "CRI-O starts with them"
    was = json.loads(host.process.read_text())

    host.converge()
    now = json.loads(host.process.read_text())
    low_level = was["runtimes"][was["default_runtime"]]
    assert now["default_runtime"] == "nvidia"
    entry = now["runtimes"].pop("nvidia")
    assert (entry["runtime_path"], entry["runtime_type"]) == (str(host.program), "oci")
    assert {name: entry[name] for name in ("monitor_path", "monitor_env")} == {
        name: low_level[name] for name in ("monitor_path", "monitor_env")
    }
    was["runtimes"].pop("nvidia", None)
    assert now["runtimes"] == was["runtimes"]
    written = host.tree()
    assert {path for path in written if written[path] != before.get(path) and not path.startswith("journal")} == {DROP_IN, "process"}

    assert not host.converge().changed
    assert host.tree() == written

    host.converge("absent")
    assert host.tree() == before
