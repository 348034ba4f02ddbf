# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""containerd's files as people have them get nvidia as the default runtime. tomllib and containerd itself judge, not our own reader.

A model of containerd reads them, and the real ones that GPUSHARE_CONTAINERDS names: see fake_containerd.py of the fakes.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected

from unit.fakes.plugins.real_files.corpus import Case, kept, line_ends, parameters
from unit.fakes.plugins.runtimes.containerd_host import BINARY, Machine
from unit.fakes.plugins.runtimes.fake_containerd import NEW, OLD, Containerd, model, real, real_programs

FOLDER = "/etc/containerd"
CONFIG = f"{FOLDER}/config.toml"
# The lines whose values we may change.
OURS = ("default_runtime_name", "imports", "BinaryName", "binaryName", "binary_name")


@pytest.fixture(params=["1.7.24", "2.4.2", *real_programs()])
def containerd(request: pytest.FixtureRequest) -> Containerd:
    return real(request.param) if "/" in request.param else model(request.param)


def newest(containerd: Containerd) -> int:
    """The newest version of a file that it reads."""
    return int(tomllib.loads(containerd(["config", "default"])[1])["version"])


def machine(containerd: Containerd, case: Case, folder: Path) -> Machine:
    """A host with these files."""
    folder = folder / FOLDER.lstrip("/")
    folder.mkdir(parents=True)
    texts = {path: text.replace(FOLDER, str(folder)) for path, text in case.texts(CONFIG).items()}
    return Machine(containerd, folder).write({path[len(FOLDER) + 1 :]: text for path, text in texts.items()})


def effective(containerd: Containerd, machine: Machine) -> dict[str, Any]:
    """All that containerd makes of its files."""
    how = "dump" if newest(containerd) == 2 else "migrate"
    status, out, err = containerd(["--config", str(machine.config), "config", how])
    assert status == 0, err
    return tomllib.loads(out)


def runtimes(found: dict[str, Any]) -> dict[str, Any]:
    section: dict[str, Any] = found["plugins"][OLD if found["version"] == 2 else NEW]["containerd"]
    return section


def said(value: Any) -> Any:
    """A setting without what is empty: containerd prints each default of a runtime that has an entry."""
    if isinstance(value, dict):
        return {key: said(one) for key, one in value.items() if said(one) not in ({}, [], "", 0, False)}
    return value


def option(found: dict[str, Any], name: str, field: str) -> Any:
    """A runtime's option as containerd decodes it: 1.x tries four spellings in this order, 2.x takes the last one of any spelling."""
    options = runtimes(found)["runtimes"].get(name, {}).get("options", {})
    tried = [field, field.lower(), field.upper(), field[0].lower() + field[1:]]
    if found["version"] > 2:
        tried = sorted((key for key in options if key.lower() == field.lower()), reverse=True)
    return next((options[key] for key in tried if key in options), None)


def others(found: dict[str, Any]) -> Any:
    """All that is none of our business."""
    found = copy.deepcopy({**found, "imports": None})
    section = runtimes(found)
    del section["default_runtime_name"]
    section["runtimes"].pop("nvidia", None)
    section["runtimes"] = said(section["runtimes"])
    return found


def loaded(content: bytes) -> dict[str, Any]:
    return tomllib.loads(content.decode("utf-8-sig"))


def data(texts: dict[str, bytes]) -> dict[str, Any]:
    """Each file as data, without what we may change; one that declares no version may get one."""
    found = {path: {"version": 2, **loaded(content)} for path, content in texts.items()}
    for one in found.values():
        one.pop("imports", None)
        for name in (OLD, NEW):
            section = one.get("plugins", {}).get(name, {}).get("containerd", {})
            section.pop("default_runtime_name", None)
            for runtime in ("nvidia", "runc"):
                section.get("runtimes", {}).pop(runtime, None)
    return found


def pruned(value: Any) -> Any:
    """Without tables that have become, or were, empty."""
    if isinstance(value, dict):
        return {key: pruned(one) for key, one in value.items() if pruned(one) != {}}
    return value


@pytest.mark.parametrize("case", parameters("containerd"))
def test_a_file_of_containerd(containerd: Containerd, tmp_path: Path, case: Case) -> None:
    host = machine(containerd, case, tmp_path)
    release = re.sub(r"^containerd \S+ v?", "", containerd(["--version"])[1])
    if case.is_rejected(release):
        before = host.texts()
        with pytest.raises(Rejected) as caught:
            host.present()
        assert [words for words in case.says if words not in str(caught.value)] == [], f"{release}: {caught.value}"
        assert host.texts() == before
    else:
        accepted(containerd, host)


def accepted(containerd: Containerd, host: Machine) -> None:
    """It gets the runtime nvidia as its default, all else stays, a second time changes nothing, and it comes back to the byte."""
    original = host.texts()
    if max(loaded(content).get("version", 2) for content in original.values()) > newest(containerd):
        with pytest.raises(Rejected, match="version"):
            host.present()
        return
    before = effective(containerd, host)
    default = runtimes(before)["default_runtime_name"]

    host.present()
    after = effective(containerd, host)
    assert runtimes(after)["default_runtime_name"] == "nvidia"
    entry = runtimes(after)["runtimes"]["nvidia"]
    assert entry["runtime_type"] == "io.containerd.runc.v2"
    assert option(after, "nvidia", "BinaryName") == BINARY
    assert bool(option(after, "nvidia", "SystemdCgroup")) is bool(option(before, default, "SystemdCgroup"))
    assert others(after) == others(before)

    texts = host.texts()
    written = {path: content for path, content in texts.items() if path in original}
    assert pruned(data(written)) == pruned(data(original))
    for path, content in original.items():
        assert kept(content.decode(), texts[path].decode(), *OURS) == []
        assert line_ends(texts[path].decode()) <= (line_ends(content.decode()) or {"\n"})

    assert host.present().files == {}
    assert host.texts() == texts
    assert host.absent().notes == []
    assert host.texts() == original
